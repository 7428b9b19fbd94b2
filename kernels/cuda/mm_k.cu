/* mm_k.cu - the product kernels of Q4_K, Q5_K and Q6_K: one, for they may be mixed in a call. */
#include "mm_int.cuh"
#include "mm_kernel.cuh"

mm_kernel_fn mm_kernel_k(enum mm_act act, int log2_tiles, bool generic)
{
    return act == MM_ACT_K ? mm_pick_kernel<frag_k<false>>(log2_tiles, generic) : nullptr;
}
