/* mm_low.cu - the product kernels of calls with Q2_K, Q3_K or IQ4_XS: all K types, for they may be mixed. */
#include "mm_int.cuh"
#include "mm_kernel.cuh"

mm_kernel_fn mm_kernel_low(enum mm_act act, int log2_tiles, int warps, bool generic)
{
    if (act != MM_ACT_K || warps != MM_WARPS) return nullptr;
    return mm_pick_kernel<frag_k<1>, false>(log2_tiles, warps, generic);
}
