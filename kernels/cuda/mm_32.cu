/* mm_32.cu - the product kernels of the types with blocks of 32: Q8_0, Q4_0, Q5_0, Q4_1, Q5_1. */
#include "mm_kernel.cuh"

mm_kernel_fn mm_kernel_32(uint32_t type, int log2_tiles, bool generic)
{
    switch (type) {
    case KN_Q8_0: return mm_pick_kernel<frag_32<8, false>>(log2_tiles, generic);
    case KN_Q4_0: return mm_pick_kernel<frag_32<4, false>>(log2_tiles, generic);
    case KN_Q5_0: return mm_pick_kernel<frag_32<5, false>>(log2_tiles, generic);
    case KN_Q4_1: return mm_pick_kernel<frag_32<4, true>>(log2_tiles, generic);
    case KN_Q5_1: return mm_pick_kernel<frag_32<5, true>>(log2_tiles, generic);
    default: return nullptr;
    }
}
