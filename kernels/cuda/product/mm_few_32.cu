/* mm_few_32.cu - the product kernels of the types with blocks of 32 for 2 to 16 rows. */
#include "mm_few_32.cuh"

mm_kernel_fn mm_kernel_few_32(int log2_tiles, bool min)
{
    return min ? few_pick<few_32<true>>(log2_tiles) : few_pick<few_32<false>>(log2_tiles);
}
