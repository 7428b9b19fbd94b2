/* mm_wide.cu - the product kernels of K types for 17 to 64 rows. */
#include "mm_wide.cuh"

mm_kernel_fn mm_kernel_wide(int rows, int groups)
{
    return rows == 24   ? (groups == 3 ? mm_wide<3, 3> : groups == 4 ? mm_wide<3, 4> : nullptr)
           : rows == 32 ? (groups == 3 ? mm_wide<4, 3> : groups == 4 ? mm_wide<4, 4> : nullptr)
           : rows == 48 ? (groups == 3 ? mm_wide<6, 3> : nullptr)
           : rows == 64 ? (groups == 2 ? mm_wide<8, 2> : groups == 3 ? mm_wide<8, 3> : nullptr)
                        : nullptr;
}
