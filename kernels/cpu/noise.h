/* noise.h - the sampler's noise for one id: docs/sampling.md. */
#ifndef DFLASH_CPU_NOISE_H
#define DFLASH_CPU_NOISE_H

#include "math.h"

/* Philox4x32-10 (Salmon et al., SC 2011), counter (position, id / 4, 0, 0): word id % 4 belongs to the id. */
static inline uint32_t pick_word(uint64_t seed, uint32_t position, uint32_t id)
{
    uint32_t c[4] = {position, id / 4, 0, 0}, k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)c[0] * 0xd2511f53u, b = (uint64_t)c[2] * 0xcd9e8d57u;
        c[0] = (uint32_t)(b >> 32) ^ c[1] ^ k0;
        c[1] = (uint32_t)b;
        c[2] = (uint32_t)(a >> 32) ^ c[3] ^ k1;
        c[3] = (uint32_t)a;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    return c[id % 4];
}

/* -log(-log u), u = (word + 1/2) / 2^32 */
static inline double pick_gumbel(uint32_t word)
{
    return -cpu_log(-cpu_log(((double)word + 0.5) * 0x1p-32));
}

#endif
