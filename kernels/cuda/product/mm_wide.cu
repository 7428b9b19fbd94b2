/* mm_wide.cu - the product kernels of K types for 17 to MM_WIDE_MOST rows. */
#include "mm_wide.cuh"

mm_kernel_fn mm_kernel_wide(int rows, int groups)
{
    return wide_pick_rows<false>(rows, groups);
}
