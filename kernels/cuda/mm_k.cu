/* mm_k.cu - the product kernels of Q4_K, Q5_K and Q6_K. */
#include "mm_kernel.cuh"

mm_kernel_fn mm_kernel_k(uint32_t type, int log2_tiles, bool generic)
{
    switch (type) {
    case KN_Q4_K: return mm_pick_kernel<frag_k45<4>>(log2_tiles, generic);
    case KN_Q5_K: return mm_pick_kernel<frag_k45<5>>(log2_tiles, generic);
    case KN_Q6_K: return mm_pick_kernel<frag_k6>(log2_tiles, generic);
    default: return nullptr;
    }
}
