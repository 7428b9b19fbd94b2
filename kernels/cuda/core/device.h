/* device.h - what planners know of a device.
 *
 * A *planner* is plain C without CUDA: from shapes, rows, types and a device it chooses the form of a kernel,
 * its tiles, splits, warps and grid, and fills the arguments that say so. Launchers call it and launch. It is
 * compiled into every build, and test/unit/kernels/test_choices.c compares its choices for real models with a
 * committed table, on machines without a device. */
#ifndef DFLASH_CUDA_DEVICE_H
#define DFLASH_CUDA_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

struct cuda_device {
    int32_t cc; /* architecture of the code that runs * 10: 80, 90 */
    int32_t sm_count;
    int32_t smem_block, smem_sm; /* bytes of shared memory: of a block at most, of a multiprocessor */
    bool generic;                /* no instruction newer than sm_80, no dependent launch */
};

/* Has it bulk copies, clusters and launches that start early? */
static inline bool cuda_device_early(const struct cuda_device *d)
{
    return d->cc >= 90 && !d->generic;
}

#endif
