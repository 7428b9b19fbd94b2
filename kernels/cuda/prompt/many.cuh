/* many.cuh - matrix products of more than 64 rows: by tiles (many_tile.cuh), or through cublasLt on
 * dequantised panels.
 *
 * A panel is as many rows of a weight as fit half of a scratch of bounded size, taken from the streaming
 * layout to f16; one library call multiplies it with all activations of the pass, while a second stream
 * dequantises the next panel into the other half. No more of a model than that is ever there dequantised.
 *
 * Arithmetic. Weights are scaled by a power of two a matrix (its largest magnitude in [2^14, 2^15)) and
 * rounded to f16; activations, normed in float32, are rounded to f16, a row being scaled by a power of two
 * where its largest magnitude is not within [2^-8, 2^15). So both have 11 bits. Products are summed in
 * float32 by the tensor cores, along k in one run: no algorithm that splits k is taken. A NaN or Inf in a row
 * makes its outputs NaN or Inf. The bits are the same at every run for the same (device, library version,
 * shape, rows). Those of tiles do not depend on the number of rows; the library's may, as it may choose
 * another algorithm. Rows do not meet. */
#ifndef DFLASH_CUDA_MANY_CUH
#define DFLASH_CUDA_MANY_CUH

#include "../core/cuda.cuh"

#define MANY_MIN 65    /* rows from which the library is used */
#define MANY_ROWS 2048 /* rows of one pass over the weights, at most (many_tuning.rows) */

struct mm_product; /* product/mm.cuh */
/* The library's handle and a scratch for calls of up to n rows (cut to MANY_ROWS) of up to n_in values.
 * Grows, keeps. Nothing where the backend was built without the library. */
int many_reserve(struct cuda_backend *be, int32_t n, int64_t n_in);
void many_close(struct cuda_backend *be);
/* Bytes that many_reserve takes. */
size_t many_bytes(int32_t n, int64_t n_in);
/* true: products of n rows go through many_run. */
bool many_wanted(const struct cuda_backend *be, int32_t n);
/* true: the row kernels take the product, up to MM_WIDE_MOST rows at a time, with the bits of those rows: up
 * to two such passes over weights of K types are quicker than one by tiles (docs/speed/prompts.md). */
bool many_by_rows(const struct cuda_backend *be, const struct mm_product *p);
/* n in MANY_MIN .. MANY_ROWS. The weights have one n_in; gated: two of one shape. */
int many_run(struct cuda_backend *be, const struct mm_product *p);

/* w->exponent: of the largest finite magnitude of a packed weight (2^exponent <= it < 2^(exponent + 1)), or
 * 0. Waits. */
int many_exponent(struct cuda_backend *be, struct kn_weight *w);

#endif
