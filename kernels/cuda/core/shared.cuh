/* shared.cuh - a block's shared memory as instructions want it: addresses, and which writes come before
 * which. */
#ifndef DFLASH_CUDA_SHARED_CUH
#define DFLASH_CUDA_SHARED_CUH

#include <stdint.h>

static __device__ __forceinline__ uint32_t shared_at(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}
/* What was written as usual is there for products of four warps, and comes before what bulk copies write
 * there. */
static __device__ __forceinline__ void shared_fence()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

#endif
