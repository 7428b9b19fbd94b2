/* chain_post.cuh - x = (x + norm(y) post) scale, the norm of that, and its rounding, as the row of a step of
 * a chain: Gemma's norms behind its products. Arithmetic: add_whole of prep.cu, to the bit.
 *
 * y comes from the step before. Each block needs all of the new x, so each makes it for itself; and keeps it,
 * a thread what it will need, in memory that is the block's alone (args.rows): nobody waits for it, and it
 * comes while y is waited for. The first x of a chain is in memory (post_x); the last is left there
 * (post_out), a block of columns by a block. */
#ifndef DFLASH_CUDA_CHAIN_POST_CUH
#define DFLASH_CUDA_CHAIN_POST_CUH

#include "chain_pair.cuh"
#include "chain_ring.cuh"

/* a / n to the bit, of n = 256 to 6,144 in steps of 256 and y = 1 / n: with the remainder of a y, where
 * nothing of that underflows (all mantissas tried). */
DEV float post_over(float a, float n, float y)
{
    const float q = __fmul_rn(a, y);
    return a > 1e-30f && a < 1e38f ? __fmaf_rn(__fmaf_rn(-n, q, a), y, q) : __fdiv_rn(a, n);
}
/* 1 / rms of n columns, from the squares of their blocks of 256. */
DEV float post_inverse(const float *squares, int units, float n, float y, float eps)
{
    const int lane = threadIdx.x % 32;
    float ss = lane < units ? __fadd_rn(0.0f, squares[lane]) : 0.0f;
#pragma unroll
    for (int o = 16; o; o /= 2) ss = __fadd_rn(ss, __shfl_xor_sync(0xffffffff, ss, o));
    return __frcp_rn(__fsqrt_rn(__fadd_rn(post_over(ss, n, y), eps)));
}
/* N blocks, the first `block`, of which `n` are there. */
template <int N> DEV void post_round(uint8_t *act, int units, int block, int n, const float (*v)[8])
{
    chain_some<N> e;
    if (n < 1) return;
#pragma unroll
    for (int i = 0; i < 8 * N; i++) e.v[i / 8][i % 8] = v[i / 8][i % 8];
    chain_round<N>(shared_address(act), units, block, CHAIN_WARPS, n, e);
}
/* Eight columns of the new row to where the block keeps it, and to memory. */
DEV void post_keep(const chain_step &s, float *own, const float v[8], int column, int block)
{
    const float4 lo = make_float4(v[0], v[1], v[2], v[3]), hi = make_float4(v[4], v[5], v[6], v[7]);
    __stcg((float4 *)(own + column), lo);
    __stcg((float4 *)(own + column + 4), hi);
    if (s.post_out && (unsigned)block % gridDim.x == blockIdx.x) {
        *(float4 *)(s.post_out + column) = lo;
        *(float4 *)(s.post_out + column + 4) = hi;
    }
}
/* y: what the step before gave. All warps that multiply. */
DEV void chain_post(const chain_step &s, float *rows, const float *y, uint8_t *act, float *squares)
{
    constexpr int B = CHAIN_K_NORM_BLOCKS;
    static_assert(B == 3 && B * CHAIN_WARPS <= 32 && 2 * B * CHAIN_WARPS <= CHAIN_BLOCKS, "a lane a block");
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, units = s.units, n_in = 256 * units,
              n = min(B, (units - warp + CHAIN_WARPS - 1) / CHAIN_WARPS);
    float *const own = rows + (size_t)blockIdx.x * (256 * B * CHAIN_WARPS);
    const float *const old = s.post_x ? s.post_x : own, *const p = y + 256 * warp;
    float v[B][8] = {}, x[B][8], w[B][8], g[B][8];
    const auto column = [&](int c) { return 256 * (warp + c * CHAIN_WARPS) + 8 * lane; };
    values_ask<B, CHAIN_WARPS>(v, p, n, 0);
#pragma unroll
    for (int c = 0; c < B; c++) {
        load_eight(x[c], old, column(c), n_in);
        load_eight(w[c], s.post, column(c), n_in);
        load_eight(g[c], s.norm, column(c), n_in);
    }
    const float width = (float)n_in, over = __frcp_rn(width);
    values_settle<B, CHAIN_WARPS>(v, p, n);
    CHAIN_STAMP(1);
    float *at = squares + B * CHAIN_WARPS;
#pragma unroll
    for (int c = 0; c < B; c++) {
        const float ss = block_squares(v[c]);
        if (lane == 0 && c < n) at[warp + c * CHAIN_WARPS] = ss;
    }
    chain_meet();
    float r = post_inverse(at, units, width, over, s.post_eps);
#pragma unroll
    for (int c = 0; c < B; c++) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[c][i] = __fmul_rn(__fadd_rn(x[c][i], __fmul_rn(__fmul_rn(v[c][i], r), w[c][i])), s.post_scale);
        if (c < n) post_keep(s, own, v[c], column(c), warp + c * CHAIN_WARPS);
        const float ss = block_squares(v[c]);
        if (lane == 0 && c < n) squares[warp + c * CHAIN_WARPS] = ss;
    }
    chain_meet();
    r = post_inverse(squares, units, width, over, s.eps);
#pragma unroll
    for (int c = 0; c < B; c++) {
#pragma unroll
        for (int i = 0; i < 8; i++) v[c][i] = __fmul_rn(__fmul_rn(v[c][i], r), g[c][i]);
    }
    post_round<B>(act, units, warp, n, v);
    if (s.own)
        __syncwarp();
    else
        chain_meet();
}

#endif
