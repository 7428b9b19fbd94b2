/* mm_wide_grid.cu - the product kernels of K types for 17 to MM_WIDE_MOST rows that know the types with
 * grids. */
#include "mm_wide.cuh"

mm_kernel_fn mm_kernel_wide_grid(int rows, int groups)
{
    return wide_pick_rows<true>(rows, groups);
}
