/* delta_plan.c - see delta_plan.h. */
#include "delta_plan.h"

struct delta_tuning delta_tuning = {.segment = 2048, .chunks_from = DELTA_CHUNKS_FROM};

enum delta_form delta_form_of(const struct cuda_device *dev, const struct kn_delta *a, int64_t n_in)
{
    const bool few = cuda_device_early(dev) && !delta_tuning.apart && n_in && a->n > 0 &&
                     a->n <= KN_DELTA_LOG && a->d_k == DELTA_FUSED_HEAD && a->d_v == DELTA_FUSED_HEAD &&
                     a->n_v % 2 == 0 && 4 * a->n_k <= DELTA_COUNTERS && a->n_conv <= DELTA_FUSED_TAPS &&
                     n_in == (int64_t)a->n_v * DELTA_FUSED_HEAD;
    if (few && a->n >= delta_tuning.chunks_from) return DELTA_CHUNKS;
    if (few)
        return a->n == 1 && a->n_conv == DELTA_FUSED_TAPS && (uintptr_t)a->conv % 16 == 0 ? DELTA_ONE
                                                                                          : DELTA_FEW;
    return a->n > KN_DELTA_LOG && a->d_k <= DELTA_BLOCK_HEAD && !delta_tuning.rows ? DELTA_BLOCKS
                                                                                   : DELTA_ROWS;
}
