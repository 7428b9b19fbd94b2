/* noise.c - the noise of sampling, for the host: the number that op->pick adds to an id's log-probability
 * (ops/sample.h). */
#include "cpu/noise.h"
#include "kernels.h"

double kn_noise(uint64_t seed, int32_t position, int32_t id)
{
    return pick_gumbel(pick_word(seed, (uint32_t)position, (uint32_t)id));
}
