/* diff.h - two model files, key by key and tensor by tensor, across formats, types and names.
 *
 * Each side is a GGUF or safetensors (file, index or directory). Tensors are paired by their GGUF name; a
 * safetensors name is taken through the converter's tables. Values are compared as float32. */
#ifndef DFLASH_DIFF_H
#define DFLASH_DIFF_H

#include <stdbool.h>
#include <stdint.h>
#include "../base/err.h"

struct diff_tensor {
    const char *name;            /* GGUF name */
    const char *name_a, *name_b; /* as each file spells it; NULL: absent */
    const char *type_a, *type_b;
    int64_t count;                 /* elements compared; 0 where absent or of other shapes */
    char shape_a[96], shape_b[96]; /* "4096x256", rows first */
    double rel_rms;  /* rms(a - b) / rms(a); NaN where either holds a NaN; 0 where both are zero */
    double max_abs;  /* largest |a - b| */
    int64_t max_at;  /* its flat index */
    bool same_bits;  /* as float32 */
    bool comparable; /* present on both sides, same shape, both decodable */
};
/* A key that one of two GGUFs lacks or that has another type or value there. */
struct diff_key {
    const char *key;
    const char *type_a, *type_b; /* NULL: absent; of an array its elements' */
    bool array_a, array_b;
    char a[128], b[128]; /* values; of arrays of one type and length the first elements that differ */
    int64_t at;          /* their index; -1: no arrays, or of other types or lengths */
};
struct diff_total {
    int64_t keys, keys_differ, keys_missing; /* of two GGUFs; else 0 */
    int64_t tensors, compared, identical, missing, shape, undecodable, not_finite;
    double rel_rms; /* over all compared values */
};
/* Keys first, by name; then tensors. key and progress may be NULL: nobody asks. */
struct diff_fns {
    void (*key)(void *ctx, const struct diff_key *k);
    void (*tensor)(void *ctx, const struct diff_tensor *t);
    void (*progress)(void *ctx, uint64_t done, uint64_t total);
};
/* progress: weights of a that were compared, and all of them. */
int diff_files(const char *a, const char *b, int threads, const struct diff_fns *fn, void *ctx,
               struct diff_total *total, struct err *e);

#endif
