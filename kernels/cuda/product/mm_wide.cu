/* mm_wide.cu - the product kernels of K types for 17 to 64 rows. */
#include "mm_wide.cuh"

mm_kernel_fn mm_kernel_wide(int rows, int groups)
{
#define WIDE(NT, G)                                                                                          \
    if (rows == 8 * NT && groups == G) return mm_wide<NT, G>;
#ifdef WIDE_MICRO
    WIDE(3, 3)
    WIDE(4, 3)
    WIDE(6, 3)
    WIDE(8, 2) WIDE(8, 3)
#else
    WIDE(3, 2)
    WIDE(3, 3)
    WIDE(3, 4)
    WIDE(4, 2)
    WIDE(4, 3) WIDE(4, 4) WIDE(6, 2) WIDE(6, 3) WIDE(8, 2) WIDE(8, 3)
#endif
#undef WIDE
        return nullptr;
}
