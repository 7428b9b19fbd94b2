/* mm_float.cu - the product kernels of F16, BF16 and F32. */
#include "mm_kernel.cuh"

mm_kernel_fn mm_kernel_float(enum mm_act act, int log2_tiles, int warps, bool generic)
{
    switch (act) {
    case MM_ACT_F16: return mm_pick_kernel<frag_float<KN_F16>, false>(log2_tiles, warps, generic);
    case MM_ACT_BF16: return mm_pick_kernel<frag_float<KN_BF16>, false>(log2_tiles, warps, generic);
    case MM_ACT_F32: return mm_pick_kernel<frag_float<KN_F32>, false>(log2_tiles, warps, generic);
    default: return nullptr;
    }
}
