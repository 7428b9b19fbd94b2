/* mm_32.cu - the product kernels of the types with blocks of 32: Q8_0, Q4_0, Q5_0, IQ4_NL, and, with
 * minimums, Q4_1 and Q5_1. */
#include "mm_int.cuh"
#include "mm_kernel.cuh"

mm_kernel_fn mm_kernel_32(enum mm_act act, int log2_tiles, int warps, bool generic)
{
    switch (act) {
    case MM_ACT_32: return mm_pick_kernel<frag_32<false>, true>(log2_tiles, warps, generic);
    case MM_ACT_32M: return mm_pick_kernel<frag_32<true>, true>(log2_tiles, warps, generic);
    default: return nullptr;
    }
}
