/* experts/types_float.cu - the kernels of experts of F16, BF16 and F32. */
#include "kernel.cuh"

experts_kernel_fn experts_kernel_float(enum mm_act act, int log2_tiles, enum experts_form form, bool generic)
{
    switch (act) {
    case MM_ACT_F16: return experts_pick<frag_float<KN_F16>>(log2_tiles, form, generic);
    case MM_ACT_BF16: return experts_pick<frag_float<KN_BF16>>(log2_tiles, form, generic);
    case MM_ACT_F32: return experts_pick<frag_float<KN_F32>>(log2_tiles, form, generic);
    default: return nullptr;
    }
}
