/* around.cuh - small operations at the ends of a pass, put together: what is before its layers (stamp, embed,
 * rope_table) is one launch, and so is what is behind its logits (pick of one row, stamp, accept).
 *
 * Each of them is a launch of a block or two, a microsecond and more apart from the next. So they are
 * collected like the steps of a chain, and launched when anything else is (cuda_flush), in the stream's
 * order: nothing but a chain is ever collected behind them, and they go first. A chain that follows may start
 * while they run: its weights are asked for before what they leave is there. */
#ifndef DFLASH_CUDA_AROUND_CUH
#define DFLASH_CUDA_AROUND_CUH

#include "../core/cuda.cuh"

#define AROUND_TABLES 2 /* tables of angles that are made together */

/* The beginning of a pass; what is NULL is not wanted. */
struct around_table {
    float *out;
    const int32_t *pos;
    const double *freq;
    int32_t n, half;
};
struct around_start {
    uint64_t *stamp;
    float *x; /* [n, n_in]: rows of an embedding table */
    const uint8_t *rows;
    const int32_t *ids;
    uint32_t type, block, bytes;
    int32_t n, columns; /* columns: blocks of a row */
    int64_t n_in, n_out;
    size_t row_bytes;
    float scale;
    struct around_table table[AROUND_TABLES];
    int32_t n_tables;
    bool early; /* what follows waits for itself, with everything */
};
/* The end: what is done when the last block has picked. */
struct around_end {
    uint64_t *stamp; /* or NULL */
    struct kn_accept accept;
    bool accepts;
};

enum around_waits { AROUND_NOTHING, AROUND_START, AROUND_END };

/* embed.cu: launch the start. early: a chain is what comes next. */
int around_start_flush(struct cuda_backend *be, bool early);
/* pick.cu: launch the pick and what is behind it. */
int around_end_flush(struct cuda_backend *be);
/* *start: the one that waits, to which an operation can be added; launches whatever else waits. */
int around_starting(struct cuda_backend *be, struct around_start **start);
/* pick.cu: adds to the pick that waits and returns 1, or returns 0. */
int around_end_stamp(struct cuda_backend *be, uint64_t *at);
int around_end_accept(struct cuda_backend *be, const struct kn_accept *a);

#ifdef __CUDACC__
static __device__ __forceinline__ uint64_t device_ns()
{
    uint64_t t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}
#endif

#endif
