/* quantize.h - which type each tensor of a file gets, and the rows encoded with threads.
 *
 * A *recipe* is a file's target: a plain type, or a mix with rules a tensor (Q4_K_M, IQ4_XS and others). A
 * *plan* is the recipe applied to the whole list of a file's tensors (rules look at names, shapes and
 * neighbours), with overrides by pattern. convert and quantize make the same plan and encode through
 * quant_rows. The caller owns every array named here. docs/dflash-quantize.1. */
#ifndef DFLASH_QUANTIZE_H
#define DFLASH_QUANTIZE_H

#include <stdbool.h>
#include <stdint.h>
#include "../base/err.h"
#include "../../kernels/kernels.h"

enum quant_recipe {
    QUANT_F32,
    QUANT_F16,
    QUANT_BF16,
    QUANT_Q8_0,
    QUANT_Q4_0,
    QUANT_Q5_0,
    QUANT_Q4_K,
    QUANT_Q5_K,
    QUANT_Q6_K,
    QUANT_Q4_1,
    QUANT_Q5_1,
    QUANT_Q4_K_S, /* mixes from here on */
    QUANT_Q4_K_M,
    QUANT_Q5_K_S,
    QUANT_Q5_K_M,
    QUANT_Q2_K,
    QUANT_Q3_K_S,
    QUANT_Q3_K_M,
    QUANT_Q3_K_L,
    QUANT_IQ4_NL,
    QUANT_IQ4_XS,
    QUANT_IQ2_XXS,
    QUANT_IQ2_XS,
    QUANT_IQ2_S,
    QUANT_IQ2_M,
    QUANT_IQ3_XXS,
    QUANT_IQ3_XS,
    QUANT_IQ3_S,
    QUANT_IQ3_M,
    QUANT_MXFP4_MOE,
    QUANT_RECIPES,
};
/* Any case. On failure ERR_USAGE with the list of names. */
int quant_recipe_by_name(const char *name, enum quant_recipe *r, struct err *e);
const char *quant_recipe_name(enum quant_recipe r);   /* "Q4_K_M" */
const char *quant_recipe_names(void);                 /* "F32, F16, ...", for messages and --help */
bool quant_recipe_is_mix(enum quant_recipe r);        /* its rules look at quant_model */
uint32_t quant_recipe_file_type(enum quant_recipe r); /* the value of general.file_type */

/* A tensor as the plan sees it, in file order. ne[0] is the contiguous dimension (n_in), unused are 1. */
struct quant_tensor {
    const char *name; /* its name in the output GGUF */
    uint32_t n_dims;
    int64_t ne[4];
    uint32_t from; /* source type; of a source without a kn type (F8): KN_F32 */
};

struct quant_model {
    const char *arch; /* general.architecture */
    int32_t n_layer;  /* block_count */
    int32_t n_expert; /* expert_count, 0 if none */
    int32_t n_head,
        n_head_kv;   /* of the first layer, 0 if unknown: heads that share a v get it in more bits */
    bool importance; /* there is an importance matrix: IQ4 and IQ3_XXS have rules without */
};

/* From "PATTERN=TYPE": an fnmatch(3) pattern over the whole tensor name. */
struct quant_override {
    char *pattern; /* mem_alloc'ed */
    uint32_t type;
};
int quant_override_parse(struct quant_override *o, const char *arg, struct err *e); /* ERR_USAGE */
void quant_override_free(struct quant_override *o);

/* May this tensor's type be changed at all by a quantising recipe: two or more dimensions, named *.weight,
 * and none of those that must stay exact (norms, routers, short convolutions: docs/dflash-quantize.1). */
bool quant_may_quantize(const struct quant_tensor *t);

/* Fill to[n] with the type of every tensor.
 * keep: the type of float tensors that the recipe leaves alone; KN_TYPE_NONE: their own (quantize). convert
 * passes KN_F32. Tensors of integer types keep theirs. The last override that matches wins. Errors: an
 * override that matches no tensor, or none that may be quantised, or rows that its type's block does not
 * divide (ERR_USAGE); a source type that cannot be decoded (ERR_FORMAT). */
int quant_plan(enum quant_recipe r, const struct quant_model *m, const struct quant_tensor *t, int64_t n,
               uint32_t keep, const struct quant_override *o, int n_override, uint32_t *to, struct err *e);

/* How many tensors of a plan have rows that the blocks of r do not divide, so that they got another type than
 * r says; *first: the first of them, or -1. To be told: the file is larger than its name says. */
int64_t quant_fell_back(enum quant_recipe r, const struct quant_tensor *t, int64_t n, int64_t *first);
/* Tensors of blocks already that the plan quantises again, whose error comes on top; text: "48 Q4_K, 9 Q6_K".
 */
int64_t quant_again(const struct quant_tensor *t, const uint32_t *to, int64_t n, char *text, size_t room);

/* Tensors that become of types so coarse that an importance matrix is expected: IQ2 and IQ3_XXS; *first: the
 * first, or -1. */
int64_t quant_coarse(const struct quant_tensor *t, const uint32_t *to, int64_t n, int64_t *first);

/* Squared error of what was encoded, against the decoded source. Sums in double, rows added in order: the
 * same for any number of threads. */
struct quant_error {
    double err2, ref2;
    uint64_t count;
};
double quant_rel_rms(const struct quant_error *q); /* sqrt(err2 / ref2); 0 if nothing was lost */
void quant_error_add(struct quant_error *sum, const struct quant_error *part);

/* Encode n_rows rows of n_in elements: src in type from (KN_F32, or any type that kn_decode_row knows), dst
 * in type to. Where the types are equal the bytes are copied and nothing is added to q. row0: index of the
 * first row in its tensor, for messages. threads: 0 = as OpenMP decides. q may be NULL (no error measured),
 * else it is added to. The bytes and q do not depend on threads. Errors: NaN, Inf or a value that the type
 * cannot hold (ERR_FORMAT, naming tensor, row and element), a type without codec (ERR_FORMAT), memory
 * (ERR_IO). */
int quant_rows(const char *name, uint32_t from, const void *src, uint32_t to, void *dst, int64_t n_in,
               int64_t n_rows, int64_t row0, int threads, struct quant_error *q, struct err *e);

/* The same with weights of the squared error: importance[n_in], above 0, for every row of the call
 * (imatrix.h). What q reports stays unweighted. Types without a search (floats, Q8_0) do not look at it. */
int quant_rows_weighted(const char *name, uint32_t from, const void *src, uint32_t to, void *dst,
                        int64_t n_in, int64_t n_rows, int64_t row0, const float *importance, int threads,
                        struct quant_error *q, struct err *e);

/* How many rows to pass at a time so that source, result and scratch stay near 32 MiB; at least 1. */
int64_t quant_slab_rows(uint32_t from, uint32_t to, int64_t n_in);

#endif
