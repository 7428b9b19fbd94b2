/* mm_wide.cu - the product kernels of K types for 17 to MM_WIDE_MOST rows. */
#include "mm_wide.cuh"

template <int NT> static mm_kernel_fn wide_pick(int groups)
{
    if (groups == 2) return mm_wide<NT, 2>;
    if constexpr (NT <= 8)
        if (groups == 3) return mm_wide<NT, 3>;
    if constexpr (NT <= 4)
        if (groups == 4) return mm_wide<NT, 4>;
    return nullptr;
}

mm_kernel_fn mm_kernel_wide(int rows, int groups)
{
    return rows == 24    ? wide_pick<3>(groups)
           : rows == 32  ? wide_pick<4>(groups)
           : rows == 48  ? wide_pick<6>(groups)
           : rows == 64  ? wide_pick<8>(groups)
           : rows == 80  ? wide_pick<10>(groups)
           : rows == 96  ? wide_pick<12>(groups)
           : rows == 128 ? wide_pick<16>(groups)
                         : nullptr;
}
