/* mm.cuh - matrix products on CUDA: the streaming layout of weights, the plan of a product, and its kernels.
 *
 * Concepts. A *unit* is 16 output rows by 32 or 256 columns of a weight: exactly the bytes of the file's
 * blocks, re-tiled so that the 32 lanes of a warp load them with 4- to 16-byte accesses and hold, after a few
 * logic operations, the A fragments of mma.sync m16n8k16. A *panel* is 16 rows: the units of all columns, in
 * order. A *slice* is a run of units of a panel, the same columns for all panels; slices depend on the shape
 * and the device alone. A *warp* multiplies the slice of one panel with up to 64 tokens in tiles of 8 columns
 * of the mma; tiles never meet, so a token's bits do not depend on the others. The sums of the slices are
 * added in ascending order, wherever they were computed.
 *
 * Columns. In every 32 columns, mma step s (0, 1) covers columns 16 s .. 16 s + 15, and lane quarter q holds
 * columns 16 s + 4 q + {0, 1} (registers a0, a1; b0) and + {2, 3} (a2, a3; b1). Rows: a0, a2 row g = lane /
 * 4; a1, a3 row g + 8.
 *
 * Arithmetic, one choice for every row count: x (times the norm's weight) is scaled by a power of two a token
 * and slice so that its largest magnitude lies in [512, 1024), then rounded. Products accumulate in float32
 * inside the tensor core.
 *   quantised weights   codes are exact in f16; activations one f16 (11 bits: a relative error of at most
 *                       2^-11 a value)
 *   F16                 activations f16 high + low part (22 bits)
 *   BF16                activations three bf16 (24 bits: the float32 value itself)
 *   F32                 weights three bf16, activations three bf16, the six largest cross products
 * A NaN or Inf in a token makes its outputs NaN or Inf. */
#ifndef DFLASH_CUDA_MM_CUH
#define DFLASH_CUDA_MM_CUH

#include "cuda.cuh"

#define MM_WARPS 8
#ifndef MM_RESIDENT
#define MM_RESIDENT 2 /* blocks a multiprocessor has registers for, at 8 rows */
#endif
#define MM_SLICE_MAX 1024 /* columns a slice: 32 lanes * 8 * 4 */
#define MM_SLICES_MAX 64
#define MM_WIDTH_MAX KN_MATRICES
#define MM_RECORD 128   /* floats of a partial sum of 16 rows x 8 tokens */
#define MM_PREP_ROWS 64 /* rows prepared at a time */

enum mm_sums { MM_SUMS_NONE, MM_SUMS_K, MM_SUMS_32 }; /* sums of 32 activations that minimums need */

struct mm_type {
    uint32_t type;
    int32_t unit_k, unit_bytes; /* columns, bytes of 16 rows */
    int32_t stage_units;        /* units of one bulk copy */
    int32_t planes;             /* 16-bit parts of an activation */
    int32_t slice_k;            /* columns of a slice, at most */
    int32_t tiles_max;          /* widest kernel: tiles of 8 tokens */
    enum mm_sums sums;
};
const struct mm_type *mm_type_of(uint32_t type); /* NULL: cannot multiply */

static inline int64_t mm_panel_bytes(const struct mm_type *t, int64_t n_in)
{
    return (n_in + t->unit_k - 1) / t->unit_k * t->unit_bytes;
}

/* One launch: items first_item .. first_item + n_items - 1 of the matrices' panels (gated: pairs of panels).
 * Two distributions of the slices, chosen by what fits into shared memory, with the same bits:
 *   together   a block holds the activations of all slices; `slice_warps` of its warps share an item, sums
 *              meet in shared memory
 *   apart      a block holds one slice, a warp an item; the blocks of a group (one block a slice, the same
 *              items) leave their sums in memory, wait for each other and add up a share each. All blocks of
 *              the grid are resident, so they may wait. */
struct mm_args {
    const uint8_t *w[MM_WIDTH_MAX];
    float *out[MM_WIDTH_MAX];
    int32_t n_out[MM_WIDTH_MAX], panel_end[MM_WIDTH_MAX]; /* panel_end: cumulated panels */
    const uint8_t *rows; /* prepared activations (prep.cu): [n][slices][slice_row] bytes */
    float *partial;      /* apart: [items][members][slices][tiles][MM_RECORD] */
    unsigned *count;     /* apart: one a group, of this number of slices */
    int64_t panel_bytes;
    int32_t n;
    int32_t first_item, n_items;
    int32_t units, slice_units, slices; /* units a panel and a slice */
    int32_t slice_row;                  /* bytes of a token's slice: planes, sums, 16 of factor */
    int32_t block_slices;               /* slices a block: slices (together) or 1 (apart) */
    int32_t slice_warps, subs;          /* warps an item: 1, 2, 4, 8; items at a time: 8 / slice_warps */
    int32_t groups;                     /* together: blocks; apart: blocks / slices */
    int32_t stages;                     /* of a warp's ring */
    int32_t add, gated, act;
    uint32_t magic; /* 0x64006400: from outside, it stays in a register, and and-or is one instruction */
#ifdef MM_PROBE
    int32_t probe; /* leave out: 1 the arithmetic, 2 the activations, 4 the results */
#endif
};
typedef void (*mm_kernel_fn)(const mm_args);
/* The kernel of a type for 1, 2, 4 or 8 tiles (log2), or NULL. generic: without bulk copies. mm_float.cu,
 * mm_32.cu, mm_k.cu. */
mm_kernel_fn mm_kernel_float(uint32_t type, int log2_tiles, bool generic);
mm_kernel_fn mm_kernel_32(uint32_t type, int log2_tiles, bool generic);
mm_kernel_fn mm_kernel_k(uint32_t type, int log2_tiles, bool generic);

/* prep.cu: n tokens x [n, n_in], times norm [n_in] and 1 / rms where norm is not NULL, to rows as mm_args has
 * them. slice_units of unit_k columns a slice. Each value is x * norm * 2^e rounded to the type's planes; the
 * slice's factor, 2^-e / rms, is a float behind them. */
struct mm_prep {
    const float *x, *norm;
    uint8_t *rows;
    float eps;
    int32_t n_in, units, unit_k, slice_units, slices, slice_row;
};
cudaError_t mm_prepare_open(const struct mm_type *t);
cudaError_t mm_prepare(const struct cuda_backend *be, const struct mm_type *t, const struct mm_prep *p,
                       int32_t n);

static inline int32_t mm_slice_row(int planes, int sums, int32_t columns)
{
    return planes * 2 * columns + (sums == MM_SUMS_NONE ? 0 : columns / 8) + 16;
}

/* Shared memory of a launch, in bytes from its start; the ring follows the barriers at MM_BARS. */
struct mm_memory {
    uint32_t act, merge, merge_bytes, total;
    uint32_t row_bytes; /* of a token */
};
#define MM_BARS 640 /* bytes of barriers: 8 warps * up to 8 stages, one for the activations */
#ifdef __CUDACC__
__host__ __device__
#endif
    static inline struct mm_memory
    mm_memory_of(int stage_bytes, const struct mm_args *a, int tiles)
{
    struct mm_memory m;
    const uint32_t row = (uint32_t)(a->block_slices * a->slice_row);
    m.row_bytes =
        (row + 63) / 128 * 128 + 64; /* 64 modulo 128: the rows of two tokens fall on different banks */
    m.act = MM_BARS + (uint32_t)(MM_WARPS * a->stages * stage_bytes);
    m.merge = m.act + (uint32_t)a->n * m.row_bytes;
    m.merge_bytes = a->block_slices == a->slices && (a->slices > 1 || a->gated)
                        ? (uint32_t)((a->gated ? 2 : 1) * a->subs * a->slices * tiles) * 512
                        : 0;
    m.total = m.merge + m.merge_bytes * (tiles == 1 ? 2 : 1);
    return m;
}

/* Chosen by measurement (SPEED.md); the bench program varies them. None of them changes a bit of the results
 * but slice_k. */
struct mm_tuning {
    int blocks_per_sm; /* of a grid */
    int stages;        /* at most */
    int slice_k;       /* 0: the type's own */
    int apart;         /* 1: never together; 2: together only where the next launch fits beside */
    int probe;         /* builds with MM_PROBE: see mm_args */
};
extern struct mm_tuning mm_tuning;

#endif
