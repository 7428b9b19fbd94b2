/* shared.cuh - a block's shared memory as instructions want it: addresses, and which writes come before
 * which. */
#ifndef DFLASH_CUDA_SHARED_CUH
#define DFLASH_CUDA_SHARED_CUH

#include <stdint.h>

#define DEV static __device__ __forceinline__

/* asm volatile of instructions of compute capability 9.0; nothing elsewhere, where no kernel comes to it. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define asm_90(...) asm volatile(__VA_ARGS__)
#else
#define asm_90(...) (void)0
#endif

DEV uint32_t shared_at(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}
/* What was written as usual is there for products of four warps, and comes before what bulk copies write
 * there. */
DEV void shared_fence()
{
    asm_90("fence.proxy.async.shared::cta;" ::: "memory");
}

#endif
