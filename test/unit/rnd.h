/* rnd.h - seeded numbers for tests: the same on every machine. */
#ifndef TEST_RND_H
#define TEST_RND_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

static inline uint64_t rnd_next(uint64_t *s)
{
    uint64_t z = *s += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}
static inline double rnd_uniform(uint64_t *s) /* (0, 1) */
{
    return ((double)(rnd_next(s) >> 12) + 0.5) * 0x1p-52;
}
static inline float rnd_normal(uint64_t *s)
{
    double u = rnd_uniform(s), v = rnd_uniform(s);
    return (float)(sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v));
}
static inline void rnd_fill(float *x, size_t n, float sigma, uint64_t *s)
{
    for (size_t i = 0; i < n; i++) x[i] = sigma * rnd_normal(s);
}

#endif
