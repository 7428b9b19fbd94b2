/* mm_few_float.cu - the product kernels of F16 and BF16 for 2 to 16 rows. */
#include "mm_few_float.cuh"

mm_kernel_fn mm_kernel_few_float(enum mm_act act, int log2_tiles)
{
    if (act == MM_ACT_F16)
        return log2_tiles ? mm_few<few_float<KN_F16>, 2, MM_WARPS_MOST>
                          : mm_few<few_float<KN_F16>, 1, MM_WARPS_MOST>;
    if (act == MM_ACT_BF16)
        return log2_tiles ? mm_few<few_float<KN_BF16>, 2, MM_WARPS_MOST>
                          : mm_few<few_float<KN_BF16>, 1, MM_WARPS_MOST>;
    return nullptr;
}
