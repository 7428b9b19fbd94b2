/* experts/types_low.cu - the kernels of experts where some are of Q2_K, Q3_K or IQ4_XS: all K types, for they
 * may be mixed. */
#include "kernel.cuh"
#include "../product/mm_int.cuh"

experts_kernel_fn experts_kernel_low(enum mm_act act, int log2_tiles, enum experts_form form, bool generic)
{
    return act == MM_ACT_K ? experts_pick<frag_k<1>>(log2_tiles, form, generic) : nullptr;
}
