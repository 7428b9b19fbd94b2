/* tagged.cuh - values that blocks of one launch hand each other: words {value, tag} of 8 bytes, written by
 * one store. Who needs a value reads until its word bears the launch's tag; no fence or flag is wanted, and
 * no order between stores. The tag is one more than that of the launch before, which a block leaves behind
 * that has seen words of all others. All blocks of such a launch that others wait for must be resident. */
#ifndef DFLASH_CUDA_TAGGED_CUH
#define DFLASH_CUDA_TAGGED_CUH

#include <stdint.h>

static __device__ __forceinline__ void value_put(unsigned long long *p, float v, unsigned tag)
{
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p),
                 "l"((unsigned long long)tag << 32 | __float_as_uint(v))
                 : "memory");
}
static __device__ __forceinline__ unsigned long long value_ask(const unsigned long long *p)
{
    unsigned long long v;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}

#endif
