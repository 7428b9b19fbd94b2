/* mm_k.cu - the product kernels of Q4_K, Q5_K and Q6_K: one, for they may be mixed in a call. */
#include "mm_int.cuh"
#include "mm_kernel.cuh"

mm_kernel_fn mm_kernel_k(enum mm_act act, int log2_tiles, int warps, bool generic)
{
    return act == MM_ACT_K ? mm_pick_kernel<frag_k<0>, true>(log2_tiles, warps, generic) : nullptr;
}
