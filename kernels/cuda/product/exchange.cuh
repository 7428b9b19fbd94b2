/* exchange.cuh - squares of a row between the blocks of a cluster that has it: for a norm. */
#ifndef DFLASH_CUDA_EXCHANGE_CUH
#define DFLASH_CUDA_EXCHANGE_CUH

#include "../core/cluster.cuh"

/* s, this warp's block's of `squares` in all blocks of the cluster, whose barriers count it; then all of them
 * here. */
DEV void exchange(float *squares, unsigned bar, int b, float s)
{
    const int lane = threadIdx.x % 32;
    if (lane < (int)gridDim.x) {
        const unsigned there = cluster_at(bar, (unsigned)lane);
        cluster_store(there + shared_at(squares + b) - bar, s, there);
    }
    cluster_bar_wait(bar);
}
/* The barriers of `count` exchanges, before any block of the cluster stores. */
DEV void exchange_open(uint64_t *bars, int count, unsigned warps = 4)
{
    if ((int)threadIdx.x < count) {
        cluster_bar_init(shared_at(bars + threadIdx.x));
        cluster_bar_expect(shared_at(bars + threadIdx.x), 4 * warps * gridDim.x);
    }
    __syncthreads();
    cluster_arrive(); /* my barriers are there */
}

#endif
