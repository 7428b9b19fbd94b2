/* mm_few_32.cu - the product kernels of the types with blocks of 32 for 2 to 16 rows. */
#include "mm_few_32.cuh"

mm_kernel_fn mm_kernel_few_32(int log2_tiles, bool min)
{
    switch (log2_tiles) {
    case 0: return min ? mm_few<few_32<true>, 1, MM_WARPS_MOST> : mm_few<few_32<false>, 1, MM_WARPS_MOST>;
    case 1: return min ? mm_few<few_32<true>, 2, MM_WARPS_MOST> : mm_few<few_32<false>, 2, MM_WARPS_MOST>;
    default: return nullptr;
    }
}
