/* experts/types_k.cu - the kernels of experts of Q4_K, Q5_K and Q6_K: one, for they may be mixed. */
#include "kernel.cuh"
#include "../product/mm_int.cuh"

experts_kernel_fn experts_kernel_k(enum mm_act act, int log2_tiles, enum experts_form form, bool generic)
{
    return act == MM_ACT_K ? experts_pick<frag_k<0>>(log2_tiles, form, generic) : nullptr;
}
