/* noise.c - the noise of sampling, for the host: the number that op->pick adds to an id's log-probability
 * (ops/sample.h). */
#include "cpu/math.h"
#include "kernels.h"

/* Philox4x32-10 (Salmon et al., SC 2011), counter (position, id / 4, 0, 0): word id % 4 belongs to the id. */
static uint32_t word_of(uint64_t seed, uint32_t position, uint32_t id)
{
    uint32_t c[4] = {position, id / 4, 0, 0}, k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        const uint64_t a = (uint64_t)c[0] * 0xd2511f53u, b = (uint64_t)c[2] * 0xcd9e8d57u;
        c[0] = (uint32_t)(b >> 32) ^ c[1] ^ k0;
        c[1] = (uint32_t)b;
        c[2] = (uint32_t)(a >> 32) ^ c[3] ^ k1;
        c[3] = (uint32_t)a;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    return c[id % 4];
}

double kn_noise(uint64_t seed, int32_t position, int32_t id)
{
    const double u = ((double)word_of(seed, (uint32_t)position, (uint32_t)id) + 0.5) * 0x1p-32;
    return -cpu_log(-cpu_log(u));
}
