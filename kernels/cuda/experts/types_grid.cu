/* experts/types_grid.cu - the kernels of experts where some are of a type with a grid: all K types, for they
 * may be mixed. */
#include "kernel.cuh"
#include "../product/mm_int.cuh"

experts_kernel_fn experts_kernel_grid(enum mm_act act, int log2_tiles, enum experts_form form, bool generic)
{
    return act == MM_ACT_K ? experts_pick<frag_k<2>>(log2_tiles, form, generic) : nullptr;
}
