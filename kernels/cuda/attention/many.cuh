/* attention/many.cuh - what the kernels for more than FEW rows share: scores to weights, 8 NT keys of a
 * warp's rows g and g + 8 at a time. */
#ifndef DFLASH_CUDA_ATTENTION_MANY_CUH
#define DFLASH_CUDA_ATTENTION_MANY_CUH

#include "attention.cuh"

/* Scores that rows g and g + 8 of a tile do not see become -inf. */
template <int NT> DEV void hide(float x[NT][4], int p0, const struct span &v0, const struct span &v1)
{
    const int at = p0 + 2 * (threadIdx.x % 4);
#pragma unroll
    for (int j = 0; j < NT; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int p = at + 8 * j + e % 2;
            const struct span &r = e < 2 ? v0 : v1;
            if (!(p >= r.lo && p < r.hi)) x[j][e] = -INFINITY;
        }
}
/* The rows' tops with these scores, that are to be multiplied by unit > 0. */
template <int NT>
DEV void raise_top(float here[2], const float x[NT][4], const float unit[2], const float top[2])
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float most = -INFINITY;
#pragma unroll
        for (int j = 0; j < NT; j++) most = fmaxf(most, fmaxf(x[j][2 * half], x[j][2 * half + 1]));
        here[half] = fmaxf(ceilf(__fmul_rn(quad_max(most), unit[half])), top[half]);
    }
}
/* Weights relative to 2^top, as fragments of keys, and their sums added to sum: a lane's keys, the quad meets
 * at the end. */
template <int NT, bool BF16>
DEV void weights_of(uint32_t p[NT / 2][4], float sum[2], float x[NT][4], const float unit[2],
                    const float top[2])
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float base = top[half] == -INFINITY ? 0.0f : -top[half];
        float part = 0.0f;
#pragma unroll
        for (int j = 0; j < NT; j++) {
            const float y = exp_two(__fmaf_rn(x[j][2 * half], unit[half], base)),
                        z = exp_two(__fmaf_rn(x[j][2 * half + 1], unit[half], base));
            part = __fadd_rn(__fadd_rn(part, y), z);
            p[j / 2][j % 2 * 2 + half] = pair_of<BF16>(y, z);
        }
        sum[half] = __fadd_rn(sum[half], part);
    }
}

#endif
