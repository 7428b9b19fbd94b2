/* mm_few_float.cu - the product kernels of F16 and BF16 for 2 to 16 rows. */
#include "mm_few_float.cuh"

mm_kernel_fn mm_kernel_few_float(enum mm_act act, int log2_tiles)
{
    return act == MM_ACT_F16    ? few_pick<few_float<KN_F16>>(log2_tiles)
           : act == MM_ACT_BF16 ? few_pick<few_float<KN_BF16>>(log2_tiles)
                                : nullptr;
}
