/* mm_few_k.cu - the product kernels of K types for 2 to 16 rows; those that know Q2_K, Q3_K and IQ4_XS as
 * well take calls with one of these. */
#include "mm_few_k.cuh"

mm_kernel_fn mm_kernel_few_late()
{
    return mm_few<few_k<0>, 2, MM_WARPS_MOST, true>;
}

mm_kernel_fn mm_kernel_few_k(int log2_tiles, int low)
{
    return low == 2 ? mm_kernel_few_grid(log2_tiles)
           : low    ? few_pick<few_k<1>>(log2_tiles)
                    : few_pick<few_k<0>>(log2_tiles);
}
