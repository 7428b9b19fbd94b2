/* mm_plan.h - how a matrix product is distributed over blocks and warps: a pure function of shapes, types,
 * rows, tunings and device, in plain C. mm.cu asks and launches. None of these choices changes a bit of the
 * results but the slices. mm.cuh has the concepts. */
#ifndef DFLASH_CUDA_MM_PLAN_H
#define DFLASH_CUDA_MM_PLAN_H

#include "../../blocks/grids.h"
#include "../core/device.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MM_WARPS 8        /* of a block, */
#define MM_WARPS_MOST 16  /* or so many */
#define MM_SLICE_MAX 1024 /* columns a slice of float weights: 32 lanes * 8 * 4 */
#define MM_SLICES_MAX 64
#define MM_WIDTH_MAX KN_MATRICES
#define MM_RECORD 128      /* floats of a partial sum of 16 rows x 8 tokens */
#define MM_PREP_ROWS 64    /* rows prepared at a time, */
#define MM_WIDE_MOST 128   /* or so many, of mm_wide.cuh */
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
const struct mm_type *product_type_of(uint32_t type); /* NULL: cannot multiply */

/* The slices of a row, by its length and the type alone, for they decide the bits. */
void product_slices(const struct mm_type *t, int64_t n_in, int32_t *slice_units, int32_t *slices);

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
    uint32_t grid;       /* mm_points */
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
/* mm_wide.cuh: bytes of a unit of a row, and of a unit of n rows in shared memory; floats from token to token
 * of a tile's sums. */
#define WIDE_UNIT 292
#define WIDE_ROWS(n) ((WIDE_UNIT * (uint32_t)(n) + 127) / 128 * 128)
#define WIDE_PITCH 68
#define MM_BARS 640 /* bytes of barriers: 8 warps * up to 8 stages or 16 * 4, one for the activations */

/* The points that types with grids want in shared memory (grid_unit.cuh): of the table of all, in pieces of
 * 16 bytes. */
struct mm_points {
    int32_t first, count;
};
static inline struct mm_points mm_points_with(struct mm_points p, uint32_t type)
{
    const int32_t first = grid_first(type) / 8, end = grid_end(type) / 8, last = p.first + p.count;
    if (!grid_has(type)) return p;
    if (!p.count)
        p.first = first, p.count = end - first;
    else {
        if (first < p.first) p.first = first;
        p.count = (end > last ? end : last) - p.first;
    }
    return p;
}
static inline uint32_t mm_points_bytes(struct mm_points p)
{
    return 16 * (uint32_t)p.count;
}

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
    int32_t normed;           /* what the rows are made of: mm_plan.c */
    int32_t log2_slice_warps; /* mm_few.cuh */
    int32_t warps;            /* of its block, there */
    int32_t ahead;      /* copies of a ring that are asked for before the launch before is over, there */
    int32_t pace;       /* and then, meanwhile, one when the one before has arrived (FEW_PACED) */
    int32_t count_w;    /* matrices */
    int32_t wide_tiles; /* mm_wide.cuh: tiles of 64 rows, of all matrices */
    int32_t wide_share; /* tiles may be shared by blocks, there: a slice is the least */
    int32_t cluster;    /* blocks that are given the same rows together: 1 or a power of two */
    uint32_t pitch, ring_bytes; /* of a ring, there: from place to place; of all */
    struct mm_points points;
};
/* Which of the kernels of K types is for a type: 0, mm_kernel_k; 1, mm_kernel_low; 2, mm_kernel_grid. Each
 * knows the types of those before. */
static inline int mm_low(uint32_t type)
{
    return grid_has(type) ? 2 : type == KN_Q2_K || type == KN_Q3_K || type == KN_IQ4_XS;
}
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
    int stages;       /* at most */
    int copy_k;       /* units of 256 columns a copy, K types */
    int copy_32;      /* units of 32 columns a copy, other quantised types */
    int copy_float;   /* units of 32 columns a copy, float types */
    int slices;       /* of a row of 2,048 columns or more */
    int skip;         /* bits: entries of the list of plans (mm_plan.c) that are not considered */
    int rounds;       /* panels a block sums up between two barriers, at most */
    int slices_float; /* of 4,096 columns, float types */
    int any;          /* 1: any plan for any launch, copies of one size */
    int no_split;     /* 1: gates and ups by the same warps */
    int long_row;     /* columns beyond which there are twice as many slices, 8-bit kinds */
    int no_few;       /* 1: no kernel of mm_few.cuh */
    int few_stages;   /* of its rings at most; 0: as measured */
    int few_sets;     /* 1: sums in one place; 0: in two, where there is room */
    int few_from;     /* rows from which on; 0: as measured */
    int few_cluster;  /* blocks of a cluster; 0: as measured */
    int few_apart;    /* 1: slices apart, 2: together; 0: as measured */
    int few_warps;    /* 1: blocks of 12 warps, where they hold all slices; 0: as measured */
    int few_copy;     /* units of 32 columns a copy of its rings, even; 0 with few_stages 0: as measured */
    int no_left;      /* 1: products add their slices' sums themselves */
    int no_wide;      /* 1: no kernel of mm_wide.cuh */
    int wide_most;    /* rows that it takes, at most MM_WIDE_MOST */
    int wide_groups;  /* tiles of its blocks; 0: as measured */
    int wide_stages;  /* at most; 0: as measured */
    int wide_share;   /* 1: whole tiles, 2: tiles shared by blocks; 0: as measured */
    int few_pace;     /* 1 + how rings are filled early, FEW_AT_ONCE ...; 0: as measured */
};
extern struct mm_tuning mm_tuning;

/* A norm_add, with the norm of the product behind it (mm.cuh). */
#define MM_ADD_WIDTH 8192
struct mm_add {
    float *out;
    const float *x, *y, *weight;
    float eps, scale;
};

/* ---- planning ---- */

#define MM_ROWS_BYTES ((size_t)32 << 20) /* rows prepared at a time, of all that mm_plan_slices takes */
#define MM_GROUPS 512                    /* groups of blocks, at most: multiprocessors, twice */

/* The kernel that runs. */
enum mm_form {
    MM_GENERIC,  /* mm_kernel.cuh with asynchronous copies of sm_80 */
    MM_BULK,     /* mm_kernel.cuh with bulk copies */
    MM_FEW,      /* mm_few.cuh: up to 16 rows */
    MM_FEW_LATE, /* mm_few_late.cuh */
    MM_WIDE,     /* mm_wide.cuh: 17 to MM_WIDE_MOST rows */
};

/* Matrices of one n_in, whose outputs one launch may compute. */
struct mm_shape {
    int32_t n_w;
    uint32_t type[MM_WIDTH_MAX];
    int64_t n_in, n_out[MM_WIDTH_MAX];
    int32_t n;   /* rows of the call */
    bool gated;  /* two matrices: gate, up */
    bool norm;   /* rows are normed first */
    bool placed; /* outputs begin at multiples of 16 bytes */
};
/* What all launches of a shape share. */
struct mm_group {
    const struct mm_type *t;
    int32_t panels, widest;          /* of all; bytes of the largest unit */
    bool mixed, leave;               /* units of several sizes; the slices' sums may be left */
    int low;                         /* the highest mm_low */
    int32_t most_units, least_units; /* of a copy */
};

/* How panels are distributed: together or apart (mm_args), blocks a multiprocessor. */
struct mm_plan {
    bool together;             /* slices; or apart (mm_args) */
    bool beside;               /* the next launch's blocks have room on the multiprocessor */
    int blocks, warps, stages; /* blocks a multiprocessor, warps of one, stages at least */
};
/* One launch. What the kernel is told is in its mm_args. */
struct mm_choice {
    enum mm_form form;
    const struct mm_plan *plan;
    int log2_tiles; /* tiles of 8 rows that a warp multiplies with */
    int warps;      /* of a block */
    bool few;       /* a kernel of mm_few.cuh */
    int low;        /* mm_group's */
    bool together;
    int32_t blocks;
    int wide_rows, wide_groups; /* MM_WIDE: rows it multiplies with, tiles of a block */
};

/* The slices of a row, and bytes of a token's slice, to a; false: it is too long. */
bool mm_plan_slices(const struct mm_type *t, int64_t n_in, struct mm_args *a);
/* Shape, types and slices to g and a. partial_bytes: memory for sums of slices. false: rows are too long. */
bool mm_plan_group(const struct mm_shape *s, size_t partial_bytes, struct mm_group *g, struct mm_args *a);
/* Are n rows prepared as the kernels of few rows want those of K types, with `side` apart? */
bool mm_few_format(const struct cuda_device *dev, enum mm_act act, int32_t n, int32_t slice_units);
/* Are they prepared for mm_wide.cuh? Of so many rows, then. */
bool mm_wide_format(const struct cuda_device *dev, enum mm_act act, int32_t n);
static inline int32_t mm_wide_rows(int32_t n)
{
    return n <= 24 ? 24 : n <= 32 ? 32 : n <= 48 ? 48 : n <= 64 ? 64 : n <= 80 ? 80 : n <= 96 ? 96 : 128;
}
/* Bytes of a slice of all rows, there. */
static inline int32_t mm_wide_slice(int32_t n, int32_t slice_units)
{
    return WIDE_UNIT * mm_wide_rows(n) * slice_units;
}
/* The plan of mm_wide.cuh, all panels in one launch; partial_bytes: as for mm_plan_group. */
void mm_plan_wide(const struct cuda_device *dev, const struct mm_group *g, int32_t n, size_t partial_bytes,
                  struct mm_args *a, struct mm_choice *c);
/* Bytes of a token's slice, there. */
static inline int32_t mm_few_row(int32_t slice_units)
{
    return 256 * slice_units;
}
/* Is there a plan for the kernels of mm_few.cuh? Fills a as mm_plan_rows does. */
bool mm_plan_few(const struct cuda_device *dev, const struct mm_group *g, int32_t n, struct mm_args *a,
                 struct mm_choice *c);
/* The next launch, of up to n rows: how many (a->n) and how. false: nothing fits. */
bool mm_plan_rows(const struct cuda_device *dev, const struct mm_group *g, int32_t n, struct mm_args *a,
                  struct mm_choice *c);
/* Panels of one launch, at most: all, or as many as partial sums have room for. */
int32_t mm_plan_panels(const struct cuda_device *dev, const struct mm_choice *c, int32_t panels,
                       size_t partial_bytes, struct mm_args *a);
/* The launch of panels first .. first + most - 1: blocks, clusters, and whether it is MM_FEW_LATE. */
void mm_plan_launch(const struct cuda_device *dev, struct mm_choice *c, int32_t first, int32_t most,
                    int32_t panels, struct mm_args *a);
/* Is there code for it? mm_kernel_of (mm.cuh) returns a kernel for these and no others. */
bool mm_has(enum mm_act act, int log2_tiles, int warps, bool generic, int low);

#ifdef __cplusplus
}
#endif
#endif
