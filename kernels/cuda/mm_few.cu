/* mm_few.cu - the product kernels of K types for 2 to 16 rows; those that know Q2_K, Q3_K and IQ4_XS as well take calls
 * with one of these. */
#include "mm_few.cuh"

mm_kernel_fn mm_kernel_few(int log2_tiles, bool low)
{
    switch (log2_tiles) {
    case 0: return low ? mm_few<1, MM_WARPS_MOST, 1, true> : mm_few<1, MM_WARPS_MOST, 1, false>;
    case 1: return low ? mm_few<2, MM_WARPS_MOST, 1, true> : mm_few<2, MM_WARPS_MOST, 1, false>;
    default: return nullptr;
    }
}
