/* mm_low.cu - the product kernels of calls with Q2_K, Q3_K or IQ4_XS: all K types, for they may be mixed. */
#include "mm_int.cuh"
#include "mm_kernel.cuh"

mm_kernel_fn mm_kernel_low(enum mm_act act, int log2_tiles, bool generic)
{
    return act == MM_ACT_K ? mm_pick_kernel<frag_k<true>>(log2_tiles, generic) : nullptr;
}
