/* desc_impl.h - what the files of the description share: a reader over one GGUF, and a family's parts.
 *
 * A family is one struct desc_family in a file of its own and one line in the list of desc.c. Its read
 * function goes: refuse unknown keys (its own list), read sizes and layers into r->d, then check every tensor
 * with one table of struct desc_expect. What no table and no find touched is refused in the end. */
#ifndef DFLASH_DESC_IMPL_H
#define DFLASH_DESC_IMPL_H

#include <stdbool.h>
#include <stdint.h>
#include "desc.h"

struct desc_reader {
    const struct gguf *g;
    struct desc *d;
    const struct desc_override *o; /* may be NULL */
    struct err *e;
    struct gguf_str arch; /* general.architecture */
    bool *seen;           /* [n_tensors] */
};

struct desc_family {
    const char *name; /* general.architecture; a drafter is found by its name as a part */
    enum desc_arch arch;
    int (*read)(struct desc_reader *r); /* arch, arch_name, dialect "" and an embedding scale of 1 are set */
};
extern const struct desc_family desc_qwen3, desc_qwen3moe, desc_qwen35, desc_qwen35moe, desc_llama,
    desc_gemma4, desc_dflash, desc_qwen35_mtp, desc_qwen35moe_mtp, desc_assistant, desc_assistant_old;

/* ---- desc_read.c: one key, one tensor. Return 0, 1 (maybe_*: absent) or -1 with the error ---- */

/* An error of class ERR_FORMAT, with the file's name before it; returns -1. */
int desc_fail(struct desc_reader *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int desc_missing(struct desc_reader *r, const char *key, const char *expected);
const char *desc_key(const struct desc_reader *r, const char *name, char *buf, size_t n); /* arch.name */
void desc_infer(struct desc_reader *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

int desc_maybe_i32(struct desc_reader *r, const char *name, int32_t lo, int32_t hi, int32_t *v);
int desc_need_i32(struct desc_reader *r, const char *name, int32_t lo, int32_t hi, int32_t *v);
int desc_maybe_f32(struct desc_reader *r, const char *name, float *v); /* above 0 */
int desc_need_f32(struct desc_reader *r, const char *name, float *v);
int desc_need_theta(struct desc_reader *r, const char *name, float *v); /* a rotary base, 1 or more */
/* A key that may be there but must then say found, which where (a tensor, say) says. */
int desc_agree_i32(struct desc_reader *r, const char *name, int32_t found, const char *where);
/* A number a layer: an array of n_layer, or one number for all. */
int desc_maybe_i32s(struct desc_reader *r, const char *name, int32_t lo, int32_t hi, int32_t *v);
int desc_maybe_bools(struct desc_reader *r, const char *name, bool *v); /* bool[n_layer] */
/* Every key below the architecture's prefix must be in one of the lists (more may be NULL). */
int desc_known_keys(struct desc_reader *r, const char *const *known, const char *const *more);

int desc_dim(struct desc_reader *r, const char *name, int i, int32_t *v); /* dimension i of a tensor */
/* Tensor name must be [ne0], [ne0, ne1] or [ne0, ne1, ne2]; the first 0 ends. */
int desc_shape(struct desc_reader *r, const int64_t ne[3], const char *name);
/* Tensor blk.N.part.weight stands in every layer or in none: a layer that lacks what others have has lost it.
 */
int desc_all_or_none(struct desc_reader *r, const char *part);

/* ---- desc_stack.c: the parts that stacks of blocks have in common ---- */

/* Keys that desc_base, desc_heads and desc_rope_plain look at or that say nothing of the forward pass. */
extern const char *const desc_stack_keys[];
/* block_count, context_length, eps, width; of targets the vocabulary and whether the head is tied. */
int desc_base(struct desc_reader *r, bool target);
/* Head size and counts of every layer from those of block 0, checked against the keys. */
int desc_heads(struct desc_reader *r);
/* The same of one layer from its own tensors, checked against no key. q_parts: rows of attn_q a head and
 * dimension (2: [q | gate]). head_dim 0: the length of attn_q_norm. */
int desc_layer_heads(struct desc_reader *r, int32_t layer, int32_t q_parts, int32_t head_dim);
/* n_ff of every layer from blk.0.ffn_gate, checked against feed_forward_length. */
int desc_dense(struct desc_reader *r);
/* n_expert, n_expert_used, n_ff_exp, scale, fused or not; every layer becomes moe. */
int desc_experts(struct desc_reader *r);
/* rope[0]: its base, and that nothing scales it. The sizes are the caller's. */
int desc_rope_base(struct desc_reader *r);
/* The same with all dimensions of a head, of all layers. */
int desc_rope_plain(struct desc_reader *r);
/* attention.sliding_window with a pattern a layer (true: sliding). Both absent: every layer sees all. */
int desc_windows(struct desc_reader *r);

/* ---- desc_qwen35.c: what its targets and their MTP blocks share ---- */

extern const char *const *const desc_qwen35_keys, *const desc_qwen35moe_keys[];
int desc_qwen35_rope(struct desc_reader *r);
/* Heads of layer i, which has attention: keys agree with the shapes. */
int desc_qwen35_heads(struct desc_reader *r, int32_t i);
/* Experts, and the one that all rows share. */
int desc_qwen35_experts(struct desc_reader *r);
struct desc_expect;
/* Every tensor of the table before, then those of the blocks. */
int desc_qwen35_expect(struct desc_reader *r, const struct desc_expect *before);
/* Does the file hold an MTP block and no target? */
bool desc_mtp_apart(const struct gguf *g, struct gguf_str arch);
/* Does it hold one? */
bool desc_mtp_there(const struct gguf *g, struct gguf_str arch);

/* ---- desc_gemma4.c: what its targets and their assistants share ---- */

/* A rope set for each kind of layer; the windows must be there. */
int desc_gemma4_rope(struct desc_reader *r);
int desc_gemma4_windows(struct desc_reader *r);
/* A key of one number, or one a layer, against a field of struct desc_layer that tensor says. */
int desc_gemma4_agree(struct desc_reader *r, const char *name, size_t field, const char *tensor);

/* ---- desc_pieces.c: relatives of DFlash drafters ---- */

/* The kind of drafter that a key below arch belongs to, NULL if it is no piece of a relative. */
const char *desc_piece_key(const char *key, const char *arch);
/* Find the pieces: kind, pieces, n_vocab_draft; their tensors count as known. */
int desc_pieces(struct desc_reader *r);
/* Their keys and shapes, where the format is known (DFlash2, DSpark, Domino). After the sizes of the drafter.
 */
int desc_piece_shapes(struct desc_reader *r);
/* desc_heads.c: those of what corrects a row's logits by the token before it, and of reduced vocabularies. */
int desc_head_shapes(struct desc_reader *r);

/* Sizes that tensors are spelled with, of a model or of one layer of it. */
enum desc_size {
    NE_NONE,
    NE_EMBD,
    NE_EMBD2, /* 2 n_embd */
    NE_TARGET,
    NE_TARGET2, /* n_embd_target, and twice that */
    NE_CLUSTERS,
    NE_VOCAB,
    NE_Q,     /* n_head * head_dim */
    NE_Q2,    /* the same twice: [q | gate] a head */
    NE_KV,    /* n_head_kv * head_dim */
    NE_HEAD,  /* head_dim */
    NE_FF,    /* the layer's n_ff */
    NE_EXP,   /* n_expert */
    NE_FFX,   /* n_ff_exp */
    NE_FFX2,  /* 2 n_ff_exp */
    NE_FFS,   /* n_ff_shexp */
    NE_WIDTH, /* desc_delta_width */
    NE_VALUE, /* n_v * d_v */
    NE_N_V,
    NE_D_V,
    NE_CONV, /* n_conv */
    NE_ROT,  /* n_rot / 2 of the set with divisors */
    NE_ONE,
};
/* Which layers have a tensor: all of the bits must hold. */
#define ON_ATTENTION 1u /* not recurrent */
#define ON_RECURRENT 2u
#define ON_DENSE 4u       /* n_ff > 0 */
#define ON_MOE 8u         /* moe */
#define ON_VALUES 16u     /* attention with values of its own */
#define ON_FUSED 32u      /* gate_up_fused */
#define ON_SPLIT 64u      /* not gate_up_fused */
#define ON_SHARED 128u    /* n_ff_shexp > 0 */
#define ON_UNTIED 256u    /* not tied_head */
#define ON_DIVISORS 512u  /* some rope set has divisors */
#define ON_CLUSTERS 1024u /* n_clusters > 0 */

/* One tensor of a family, or one a layer where the name holds "%d". ne in ggml order, contiguous first. */
struct desc_expect {
    const char *name;
    enum desc_size ne[3];
    unsigned on;
};
/* Check every tensor of the table (ends with name NULL): there, and of that shape. */
int desc_expect_all(struct desc_reader *r, const struct desc_expect *table);
/* The same of a Qwen block's feed-forward: dense, or experts, and the one that all rows share. */
int desc_expect_ff(struct desc_reader *r);
/* What the tables of targets begin with. */
#define DESC_EXPECT_ENDS                                                                                     \
    {"token_embd.weight", {NE_EMBD, NE_VOCAB}, 0}, {"output_norm.weight", {NE_EMBD}, 0},                     \
    {                                                                                                        \
        "output.weight", {NE_EMBD, NE_VOCAB}, ON_UNTIED                                                      \
    }

#endif
