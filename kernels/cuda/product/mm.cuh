/* mm.cuh - matrix products on CUDA: the streaming layout of weights, the plan of a product, and its kernels.
 *
 * Concepts. A *unit* is 16 output rows by 32 or 256 columns of a weight: exactly the bytes of the file's
 * blocks, re-tiled so that the 32 lanes of a warp load them with 4- to 16-byte accesses and hold, after a few
 * logic operations, the A fragments of mma.sync. A *panel* is 16 rows: the units of all columns, in order. A
 * *slice* is a run of units of a panel, the same columns for all panels; slices depend on the shape alone. A
 * *warp* multiplies the slice of one panel with up to 32 tokens in tiles of 8 columns of the mma; tiles never
 * meet, so a token's bits do not depend on the others. The sums of the slices are added in ascending order,
 * wherever they were computed.
 *
 * Columns. Every 32 columns are two steps s (0, 1) of 16, and lane quarter q holds columns 16 s + 4 q + {0,
 * 1, 2, 3}. Rows: g = lane / 4 and g + 8.
 *
 * Arithmetic, one choice for every row count:
 *   quantised weights: activations (x, normed) are rounded to 8 bits, int8 and a float32 scale for
 *     256 columns (K types) or 32 (the others), as the CPU backend does. Codes times activations times
 *     the integer scales of sub-blocks are summed exactly in int32; a block's sum meets its float scales
 *     once, and blocks are added in float32 in ascending order of a slice.
 *   F16, BF16, F32: x (times the norm's weight) is scaled by a power of two a token and slice so that
 *     its largest magnitude lies in [512, 1024). Then F16: activations as f16 high + low part (22 bits);
 *     BF16: three bf16 (24 bits: the float32 value itself); F32: weights three bf16, activations three
 *     bf16, the six largest cross products. Products accumulate in float32 inside the tensor core.
 * A NaN or Inf in a token makes its outputs NaN or Inf. */
#ifndef DFLASH_CUDA_MM_CUH
#define DFLASH_CUDA_MM_CUH

#include "../core/cuda.cuh"
#include "mm_plan.h"

typedef void (*mm_kernel_fn)(const mm_args);
/* The kernel of a kind of activations for 1, 2 or 4 tiles (log2) and blocks of 8 or 16 warps, or NULL.
 * generic: without bulk copies. mm_float.cu, mm_32.cu, mm_k.cu, mm_low.cu. */
mm_kernel_fn mm_kernel_float(enum mm_act act, int log2_tiles, int warps, bool generic);
mm_kernel_fn mm_kernel_32(enum mm_act act, int log2_tiles, int warps, bool generic);
mm_kernel_fn mm_kernel_k(enum mm_act act, int log2_tiles, int warps, bool generic);
mm_kernel_fn mm_kernel_low(enum mm_act act, int log2_tiles, int warps, bool generic);
mm_kernel_fn mm_kernel_grid(enum mm_act act, int log2_tiles, int warps, bool generic);
/* The kernel of mm_kernel.cuh for a choice: mm.cu. low: that of its matrices (mm_low). NULL
 * where mm_has says so. */
mm_kernel_fn mm_kernel_of(enum mm_act act, int log2_tiles, int warps, bool generic, int low);
/* The same for 1 or 2 tiles, 16 warps, sm_90, or NULL. low: of K types.
 * mm_few_k.cu, mm_few_grid.cu, mm_few_32.cu, mm_few_float.cu. */
mm_kernel_fn mm_kernel_few_k(int log2_tiles, int low);
mm_kernel_fn mm_kernel_few_grid(int log2_tiles);
mm_kernel_fn mm_kernel_few_late(); /* mm_few_late.cuh: 2 tiles, not low */
/* mm_wide.cu, mm_wide_grid.cu: rows it multiplies with, tiles a block */
mm_kernel_fn mm_kernel_wide(int rows, int groups);
mm_kernel_fn mm_kernel_wide_grid(int rows, int groups);
mm_kernel_fn mm_kernel_few_32(int log2_tiles, bool min);
mm_kernel_fn mm_kernel_few_float(enum mm_act act, int log2_tiles);
static inline mm_kernel_fn mm_kernel_few(enum mm_act act, int log2_tiles, int low)
{
    return act == MM_ACT_K                         ? mm_kernel_few_k(log2_tiles, low)
           : act == MM_ACT_32 || act == MM_ACT_32M ? mm_kernel_few_32(log2_tiles, act == MM_ACT_32M)
                                                   : mm_kernel_few_float(act, log2_tiles);
}

/* out[j] [n, n_out of w[j]] = (normed) x times w[j], of matrices of one n_in; gated: act(gate) * up, of two
 * of one shape, to out[0]. */
struct mm_product {
    const char *name; /* of the operation, for errors */
    const struct kn_weight *w[MM_WIDTH_MAX];
    float *out[MM_WIDTH_MAX];
    int32_t n_w, n;
    const float *x, *norm; /* [n, n_in]; [n_in] or NULL */
    float eps;
    bool add, gated;
    enum kn_act act;
};

/* prep.cu: n tokens x [n, n_in], times norm [n_in] and 1 / rms where norm is not NULL, to rows as mm_args has
 * them. slice_units of unit_k columns a slice. */
struct mm_prep {
    const float *x, *norm;
    uint8_t *rows;
    float eps;
    int32_t n_in, units, unit_k, slice_units, slices, slice_row;
    uint8_t *side = nullptr; /* for the kernels of few rows: prep_block.cuh */
    int32_t tiles = 0;       /* of 8 rows, there */
    int32_t wide = 0;        /* rows as mm_wide.cuh wants them: so many */
};
/* mm_owed.cu. open: be->owed, freed by cuda_mm_close. The outputs of a launch with a->left: it owes them. */
int mm_owed_open(struct cuda_backend *be);
void mm_owe(struct cuda_backend *be, const struct mm_args *a, int count);
/* Are the n rows x of `width` columns owed, and does nothing else wait? Then the next launch may be one that
 * reads them as *o and completes them. mm_is_owed asks; mm_take makes them its caller's. */
bool mm_is_owed(const struct cuda_backend *be, const float *x, int32_t n, int64_t width);
bool mm_take(const struct cuda_backend *be, const float *x, int32_t n, int64_t width, struct mm_owed *o);

/* few: a kernel of mm_few.cuh stands before or behind it. */
cudaError_t mm_prepare(const struct cuda_backend *be, enum mm_act act, const struct mm_prep *p, int32_t n,
                       bool few);
/* mm.cu: how n rows for w are prepared, so that another kernel may do it: fills a (rows from the backend's
 * memory) and *act; false where it must not, for w wants floats. mm_prepared: the newest launch has done it
 * for the n rows x; gate: NULL, or what they were gated with before. */
bool mm_preparing(struct cuda_backend *be, const struct kn_weight *w, int32_t n, struct mm_prep *a,
                  enum mm_act *act);
void mm_prepared(struct cuda_backend *be, const float *x, const float *gate, int32_t n,
                 const struct mm_prep *a, enum mm_act act);
/* Has it? Gated by `gate`, where that is not NULL. a, act: mm_preparing's. */
bool mm_is_prepared(const struct cuda_backend *be, const float *x, const float *gate, int32_t n,
                    const struct mm_prep *a, enum mm_act act);

/* A norm_add whose out is p->x, and mm_prepare of it, in one launch. MM_ADD_WIDTH columns at most, a multiple
 * of 8; 8-bit kinds. */
cudaError_t mm_add_prepare(const struct cuda_backend *be, enum mm_act act, const struct mm_add *add,
                           const struct mm_prep *p, int32_t n);
/* mm.cu: norm_add, prepared for be->head.next_w; *done false, and nothing launched, where it cannot be. */
int mm_norm_add(struct cuda_backend *be, const struct mm_add *add, int32_t n, int64_t width, bool *done);

#endif
