/* mm_plan.cuh - how a matrix product is distributed over blocks and warps (mm_plan.cu): a pure function of
 * shape, types, rows, tunings and device, so the launches in mm.cu only ask. None of these choices changes a
 * bit. */
#ifndef DFLASH_CUDA_MM_PLAN_CUH
#define DFLASH_CUDA_MM_PLAN_CUH

#include "mm.cuh"

struct mm_plan {
    bool together;             /* slices; or apart (mm_args) */
    bool beside;               /* the next launch's blocks have room on the multiprocessor */
    int blocks, warps, stages; /* blocks a multiprocessor, warps of one, stages at least */
};

/* Is there room for all blocks of a group, one a slice, which wait for each other? `blocks` of them on a
 * multiprocessor. */
bool mm_may_wait(const struct cuda_backend *be, int32_t slices, int blocks);
/* The kernel for a launch of mm_choose: mm.cu. low: some matrix is of such a type (mm_is_low). */
mm_kernel_fn mm_kernel_of(enum mm_act act, int log2_tiles, int warps, bool generic, bool low);

/* How many rows a launch takes and which plan: the first that fits, then with fewer rows. most: units of a
 * copy. widest: bytes of the largest unit. mixed: matrices of types of several sizes; low: some of a low
 * type. Fills a->n, stages, stage_units, block_slices, slice_warps, at and *plan; returns log2 of the tiles,
 * or -1. */
int mm_choose(struct cuda_backend *be, enum mm_act act, int32_t n, int32_t panels, int32_t most,
              int32_t widest, bool mixed, bool low, struct mm_args *a, const struct mm_plan **plan);
/* The same for the kernels of mm_few.cuh, of up to 16 rows; false: none fits, or others were quicker. */
bool mm_choose_few(const struct cuda_backend *be, enum mm_act act, int32_t n, int32_t panels, int32_t widest,
                   struct mm_args *a, int *log2_tiles, const struct mm_plan **plan);
/* Slices apart: a->groups, the blocks of each slice but the last, and a->last_groups. */
void mm_few_split(int32_t grid, int32_t panels, struct mm_args *a);
/* Blocks of a cluster that are given their rows together; a->groups is known. */
int mm_few_cluster(enum mm_act act, const struct mm_args *a);
/* Is it for mm_few_late.cuh? */
bool mm_few_is_late(const struct mm_args *a, enum mm_act act, int log2_tiles, bool low);

#endif
