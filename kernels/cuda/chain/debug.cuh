/* chain/debug.cuh - what builds with CHAIN_TRACE (clocks by step and phase) and CHAIN_CHECK (who waited in
 * vain) hand to test/gpu/check/chain_gpu.c. Each kernel's file has its own of both, under names of its own;
 * other builds have nothing. */
#ifndef DFLASH_CUDA_CHAIN_DEBUG_CUH
#define DFLASH_CUDA_CHAIN_DEBUG_CUH

#include "sync.cuh"

#ifdef CHAIN_TRACE
#define CHAIN_TIMES_GET(name)                                                                                \
    extern "C" void name(unsigned long long t[CHAIN_STAMPS])                                                 \
    {                                                                                                        \
        const unsigned long long z[CHAIN_STAMPS] = {};                                                       \
        cudaMemcpyFromSymbol(t, chain_times, sizeof chain_times);                                            \
        cudaMemcpyToSymbol(chain_times, z, sizeof z);                                                        \
    }
#else
#define CHAIN_TIMES_GET(name)
#endif

#ifdef CHAIN_CHECK
static unsigned *chain_fault_host;
static cudaError_t chain_fault_open(void)
{
    cudaError_t err = cudaHostAlloc(&chain_fault_host, 64, cudaHostAllocMapped | cudaHostAllocPortable);
    if (err) return err;
    for (int i = 0; i < 16; i++) chain_fault_host[i] = 0;
    return cudaMemcpyToSymbol(chain_fault_at, &chain_fault_host, sizeof chain_fault_host);
}
#define CHAIN_FAULT_GET(name)                                                                                \
    extern "C" void name(unsigned f[5])                                                                      \
    {                                                                                                        \
        for (int i = 0; i < 5; i++)                                                                          \
            f[i] = chain_fault_host ? ((volatile unsigned *)chain_fault_host)[i] : 0;                        \
    }
#else
static inline cudaError_t chain_fault_open(void)
{
    return cudaSuccess;
}
#define CHAIN_FAULT_GET(name)
#endif

#endif
