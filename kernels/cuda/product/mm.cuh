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

#define MM_WARPS 8        /* of a block, */
#define MM_WARPS_MOST 16  /* or so many */
#define MM_SLICE_MAX 1024 /* columns a slice of float weights: 32 lanes * 8 * 4 */
#define MM_SLICES_MAX 64
#define MM_WIDTH_MAX KN_MATRICES
#define MM_RECORD 128      /* floats of a partial sum of 16 rows x 8 tokens */
#define MM_PREP_ROWS 64    /* rows prepared at a time */
#define MM_ROW_BLOCKS 1024 /* 256-column blocks of a row, at most */

/* What a weight type wants activations to be; matrices that want the same share a launch.
 *   K      int8 and a scale for 256 columns, sums of 16 columns
 *   32, 32M   int8 and a scale for 32 columns, and minus their sum; scale times their sum
 *   F2, B3 two f16, three bf16 planes */
enum mm_act { MM_ACT_K, MM_ACT_32, MM_ACT_32M, MM_ACT_F16, MM_ACT_BF16, MM_ACT_F32 };

/* Are activations rounded to 8 bits? */
static inline bool mm_is_int8(enum mm_act act)
{
    return act == MM_ACT_K || act == MM_ACT_32 || act == MM_ACT_32M;
}

struct mm_type {
    uint32_t type;
    int32_t unit_k, unit_bytes; /* columns, bytes of 16 rows */
    enum mm_act act;
};
const struct mm_type *mm_type_of(uint32_t type); /* NULL: cannot multiply */

/* mm.cu: the slices of a row, by its length and the type alone, for they decide the bits. */
void mm_slices(const struct mm_type *t, int64_t n_in, int32_t *slice_units, int32_t *slices);

static inline int64_t mm_panel_bytes(const struct mm_type *t, int64_t n_in)
{
    return (n_in + t->unit_k - 1) / t->unit_k * t->unit_bytes;
}

/* Shared memory of a launch, in bytes from its start; the warps' rings follow the barriers at MM_BARS. */
struct mm_memory {
    uint32_t act, merge, merge_bytes, total;
    int32_t merge_rounds, merge_sets; /* sums of so many rounds between two barriers; sets that take turns */
    uint32_t
        row_bytes; /* of a token: 64 modulo 128, so that the rows of two tokens fall on different banks */
    uint32_t ring, side; /* mm_few.cuh */
};
enum {
    FEW_AT_ONCE,
    FEW_PACED,
    FEW_HALVES
};                     /* mm_few.cuh: a ring's copies; FEW_HALVES: half of the warps at a time */
#define FEW_BARRIER 16 /* mm_few.cuh: bytes of a barrier in front of each place of a ring, */
#define FEW_SIDE(NT) (288 * (uint32_t)(NT)) /* of a unit's sums and scales, of all rows */
#define FEW_THERE                                                                                            \
    32 /* mm_few_late.cuh, from the start of shared memory: barriers; rings of all kinds, a multiple of 128  \
        */
#define FEW_RINGS 128
#define MM_BARS 640 /* bytes of barriers: 8 warps * up to 8 stages or 16 * 4, one for the activations */

/* One launch: items first_item .. first_item + n_items - 1 of the matrices' panels (gated: pairs of panels).
 * Two distributions of the slices, chosen by what fits into shared memory, with the same bits:
 *   together   a block holds the activations of all slices; `slice_warps` of its warps share an item, sums
 *              meet in shared memory
 *   apart      a block holds one slice, a warp an item; the blocks of a group (one block a slice, the same
 *              items) leave their sums in memory, wait for each other and add up a share each. All blocks of
 *              the grid are resident, so they may wait. left: they leave them there (mm_owed), and wait for
 * nobody */
struct mm_args {
    const uint8_t *w[MM_WIDTH_MAX];
    float *out[MM_WIDTH_MAX];
    int32_t n_out[MM_WIDTH_MAX], panel_end[MM_WIDTH_MAX]; /* panel_end: cumulated panels */
    uint32_t type[MM_WIDTH_MAX];
    int32_t unit_bytes[MM_WIDTH_MAX];
    const uint8_t *rows; /* prepared activations (prep.cu): [n][slices][slice_row] bytes */
    const uint8_t *side; /* NULL, or what rows of K types leave apart from their codes (prep_block.cuh) */
    float *partial;      /* apart: [items][members][slices][tiles][MM_RECORD]; left: as mm_owed has it */
    unsigned *count;     /* apart: one a group, of this number of slices */
    int32_t n;
    int32_t first_item, n_items;
    int32_t units, slice_units, slices; /* units a panel and a slice */
    int32_t slice_row;                  /* bytes of a token's slice */
    int32_t block_slices;               /* slices a block: slices (together) or 1 (apart) */
    int32_t slice_warps,
        subs;       /* warps an item (split: and member): 1, 2, 4, 8; items at a time: of all warps */
    int32_t split;  /* 1: gates and ups by different warps */
    int32_t groups; /* together: blocks; apart: blocks / slices; left: of each slice, */
    int32_t left, last_groups; /* but of the last one, which may be shorter, so many */
    int32_t stages, stage_units,
        stage_bytes; /* of a warp's ring: stages; units of one copy; bytes of a stage */
    int32_t add, gated, act;
    struct mm_memory at;
    int32_t normed;           /* what the rows are made of: mm_plan.cu */
    int32_t log2_slice_warps; /* mm_few.cuh */
    int32_t warps;            /* of its block, there */
    int32_t ahead;   /* copies of a ring that are asked for before the launch before is over, there */
    int32_t pace;    /* and then, meanwhile, one when the one before has arrived (FEW_PACED) */
    int32_t cluster; /* blocks that are given the same rows together: 1 or a power of two */
    uint32_t pitch, ring_bytes; /* of a ring, there: from place to place; of all */
#ifdef MM_TRACE
    unsigned long long *trace;
#endif
};
typedef void (*mm_kernel_fn)(const mm_args);
/* The kernel of a kind of activations for 1, 2 or 4 tiles (log2) and blocks of 8 or 16 warps, or NULL.
 * generic: without bulk copies. mm_float.cu, mm_32.cu, mm_k.cu, mm_low.cu. */
mm_kernel_fn mm_kernel_float(enum mm_act act, int log2_tiles, int warps, bool generic);
mm_kernel_fn mm_kernel_32(enum mm_act act, int log2_tiles, int warps, bool generic);
mm_kernel_fn mm_kernel_k(enum mm_act act, int log2_tiles, int warps, bool generic);
mm_kernel_fn mm_kernel_low(enum mm_act act, int log2_tiles, int warps, bool generic);
/* The same for 1 or 2 tiles, 16 warps, sm_90, or NULL. low: K types with mm_is_low types among them.
 * mm_few_k.cu, mm_few_32.cu, mm_few_float.cu. */
mm_kernel_fn mm_kernel_few_k(int log2_tiles, bool low);
mm_kernel_fn mm_kernel_few_late(); /* mm_few_late.cuh: 2 tiles, not low */
mm_kernel_fn mm_kernel_few_32(int log2_tiles, bool min);
mm_kernel_fn mm_kernel_few_float(enum mm_act act, int log2_tiles);
static inline mm_kernel_fn mm_kernel_few(enum mm_act act, int log2_tiles, bool low)
{
    return act == MM_ACT_K                         ? mm_kernel_few_k(log2_tiles, low)
           : act == MM_ACT_32 || act == MM_ACT_32M ? mm_kernel_few_32(log2_tiles, act == MM_ACT_32M)
                                                   : mm_kernel_few_float(act, log2_tiles);
}
/* Types that mm_kernel_low and experts_kernel_low are for. */
static inline bool mm_is_low(uint32_t type)
{
    return type == KN_Q2_K || type == KN_Q3_K || type == KN_IQ4_XS;
}

/* prep.cu: n tokens x [n, n_in], times norm [n_in] and 1 / rms where norm is not NULL, to rows as mm_args has
 * them. slice_units of unit_k columns a slice. */
struct mm_prep {
    const float *x, *norm;
    uint8_t *rows;
    float eps;
    int32_t n_in, units, unit_k, slice_units, slices, slice_row;
    uint8_t *side = nullptr; /* for the kernels of few rows: prep_block.cuh */
    int32_t tiles = 0;       /* of 8 rows, there */
#ifdef MM_TRACE
    unsigned long long *trace = nullptr;
#endif
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
#define MM_ADD_WIDTH 8192
struct mm_add {
    float *out;
    const float *x, *y, *weight;
    float eps, scale;
};
cudaError_t mm_add_prepare(const struct cuda_backend *be, enum mm_act act, const struct mm_add *add,
                           const struct mm_prep *p, int32_t n);
/* mm.cu: norm_add, prepared for be->head.next_w; *done false, and nothing launched, where it cannot be. */
int mm_norm_add(struct cuda_backend *be, const struct mm_add *add, int32_t n, int64_t width, bool *done);
#ifdef MM_TRACE /* builds that time the parts of kernels: where the next launch leaves its times,            \
                   [block][MM_TRACE_TIMES] */
unsigned long long *mm_trace_next(const char *what);
#define MM_TRACE_BLOCKS 256 /* of a launch, at most */
#define MM_TRACE_TIMES 12
#endif

static inline int mm_planes(enum mm_act act)
{
    return act == MM_ACT_F16 ? 2 : 3;
}
/* Bytes of a token's slice of `units` units; the parts are described in prep.cuh. */
static inline int32_t mm_slice_row(enum mm_act act, int32_t units)
{
    if (act == MM_ACT_K) return (292 * units + 15) / 16 * 16;
    if (act == MM_ACT_32 || act == MM_ACT_32M) return (40 * units + 15) / 16 * 16;
    return mm_planes(act) * 64 * units + 16;
}

/* Chosen by measurement (docs/speed/verify.md); the bench program varies them. None of them changes a bit of
 * the results but columns. */
struct mm_tuning {
    int stages = 4;       /* at most */
    int copy_k = 2;       /* units of 256 columns a copy, K types */
    int copy_32 = 8;      /* units of 32 columns a copy, other quantised types */
    int copy_float = 4;   /* units of 32 columns a copy, float types */
    int slices = 4;       /* of a row of 2,048 columns or more */
    int skip = 0;         /* bits: entries of the list of plans (mm_plan.cu) that are not considered */
    int rounds = 8;       /* panels a block sums up between two barriers, at most */
    int slices_float = 8; /* of 4,096 columns, float types */
    int any = 0;          /* 1: any plan for any launch, copies of one size */
    int no_split = 0;     /* 1: gates and ups by the same warps */
    int long_row = 14336; /* columns beyond which there are twice as many slices, 8-bit kinds */
    int no_few = 0;       /* 1: no kernel of mm_few.cuh */
    int few_stages = 0;   /* of its rings at most; 0: as measured */
    int few_sets = 0;     /* 1: sums in one place; 0: in two, where there is room */
    int few_from = 0;     /* rows from which on; 0: as measured */
    int few_cluster = 0;  /* blocks of a cluster; 0: as measured */
    int few_apart = 0;    /* 1: slices apart, 2: together; 0: as measured */
    int few_warps = 0;    /* 1: blocks of 12 warps, where they hold all slices; 0: as measured */
    int few_copy = 0; /* units of 32 columns a copy of its rings, even; 0 with few_stages 0: as measured */
    int no_left = 0;  /* 1: products add their slices' sums themselves */
    int few_pace = 0; /* 1 + how rings are filled early, FEW_AT_ONCE ...; 0: as measured */
};
extern struct mm_tuning mm_tuning;

#endif
