/* experts/types_32.cu - the kernels of experts of Q8_0, Q4_0, Q5_0, Q4_1 and Q5_1. */
#include "kernel.cuh"
#include "../product/mm_int.cuh"

experts_kernel_fn experts_kernel_32(enum mm_act act, int log2_tiles, enum experts_form form, bool generic)
{
    return act == MM_ACT_32    ? experts_pick<frag_32<false>>(log2_tiles, form, generic)
           : act == MM_ACT_32M ? experts_pick<frag_32<true>>(log2_tiles, form, generic)
                               : nullptr;
}
