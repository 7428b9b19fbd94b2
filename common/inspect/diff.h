/* diff.h - two model files, tensor by tensor, across formats, types and names.
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
struct diff_total {
    int64_t tensors, compared, identical, missing, shape, undecodable, not_finite;
    double rel_rms; /* over all compared values */
};
typedef void (*diff_fn)(void *ctx, const struct diff_tensor *t);
/* progress: weights of a that were compared, and all of them; NULL: nobody asks. */
int diff_files(const char *a, const char *b, int threads, diff_fn fn,
               void (*progress)(void *ctx, uint64_t done, uint64_t total), void *ctx,
               struct diff_total *total, struct err *e);

#endif
