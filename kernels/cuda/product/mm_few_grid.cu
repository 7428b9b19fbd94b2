/* mm_few_grid.cu - the product kernels of K types for 2 to 16 rows that know the types with grids. */
#include "mm_few_k.cuh"

mm_kernel_fn mm_kernel_few_grid(int log2_tiles)
{
    return few_pick<few_k<2>>(log2_tiles);
}
