/* attention/many.cuh - what the kernels for more than FEW rows share: scores to weights, 8 NT keys of a
 * warp's rows g and g + 8 at a time. */
#ifndef DFLASH_CUDA_ATTENTION_MANY_CUH
#define DFLASH_CUDA_ATTENTION_MANY_CUH

#include "attention.cuh"

/* x[MT][N][4] = q k of MT tiles and 8 N keys at k (rows of PITCH halves). */
template <int D, bool BF16, int MT, int N, int PITCH>
DEV void scores_of(float x[MT][N][4], const uint4 *q, unsigned k)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < MT; m++)
#pragma unroll
        for (int j = 0; j < N; j++) x[m][j][0] = x[m][j][1] = x[m][j][2] = x[m][j][3] = 0.0f;
    k += (unsigned)((lane % 8 + lane / 16 * 8) * PITCH + lane / 8 % 2 * 8) * 2;
#pragma unroll
    for (int s = 0; s < D / 16; s++) {
        uint4 a[MT], b[N / 2];
#pragma unroll
        for (int m = 0; m < MT; m++) a[m] = q[(m * (D / 16) + s) * 32 + lane];
#pragma unroll
        for (int j = 0; j < N / 2; j++) b[j] = load_matrices(k + j * 16 * PITCH * 2 + s * 32);
#pragma unroll
        for (int j = 0; j < N / 2; j++)
#pragma unroll
            for (int m = 0; m < MT; m++) {
                const uint32_t f[4] = {a[m].x, a[m].y, a[m].z, a[m].w};
                mma<BF16>(x[m][2 * j], f, b[j].x, b[j].y);
                mma<BF16>(x[m][2 * j + 1], f, b[j].z, b[j].w);
            }
    }
}
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
/* What is relative to `top` made so to `here`. others: NULL, or two sums more. */
template <int CT>
DEV void raise_results(float acc[CT][4], float sum[2], float top[2], const float here[2],
                       float *others = nullptr)
{
    if (!__any_sync(~0u, here[0] != top[0] || here[1] != top[1])) return;
    const float f0 = factor(top[0], here[0]), f1 = factor(top[1], here[1]);
    sum[0] = __fmul_rn(sum[0], f0);
    sum[1] = __fmul_rn(sum[1], f1);
    if (others) others[0] = __fmul_rn(others[0], f0), others[1] = __fmul_rn(others[1], f1);
#pragma unroll
    for (int t = 0; t < CT; t++) {
        acc[t][0] = __fmul_rn(acc[t][0], f0);
        acc[t][1] = __fmul_rn(acc[t][1], f0);
        acc[t][2] = __fmul_rn(acc[t][2], f1);
        acc[t][3] = __fmul_rn(acc[t][3], f1);
    }
    top[0] = here[0];
    top[1] = here[1];
}
/* Rows g and g + 8 of tile `tile` of a kv head to a.out, columns col on. */
template <int D, int CT>
DEV void put_rows(const attn &a, const float acc[CT][4], const float sum[2], int tile, int kv_head, int col)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int at = tile * TILE + lane / 4 + 8 * e, row = row_of(a, at);
        const float s = quad_sum(sum[e]);
        if (row >= a.n) continue;
        float *out = a.out + head_of_row(a, row, kv_head, at) * D + col + 2 * (lane % 4);
#pragma unroll
        for (int t = 0; t < CT; t++)
            *(float2 *)(out + 8 * t) = make_float2(divided(acc[t][2 * e], s), divided(acc[t][2 * e + 1], s));
    }
}

#endif
