/* chain/post.cuh - x = (x + norm(y) post) scale, the norm of that, and its rounding, as the row of a step of
 * a chain: Gemma's norms behind its products. Arithmetic: add_whole of prep.cu, to the bit.
 *
 * y comes from the step before. Each block needs all of the new x, so each makes it for itself; and keeps it
 * in its shared memory, a thread what it will need: nobody waits for it. (In memory that was the block's
 * alone all blocks wrote 22 KB at once, twice a layer: a microsecond.) The first x of a chain is in memory
 * (post_x); the last is left there (post_out), a block of columns by a block. */
#ifndef DFLASH_CUDA_CHAIN_POST_CUH
#define DFLASH_CUDA_CHAIN_POST_CUH

#include "pair.cuh"
#include "ring.cuh"

/* a / n to the bit, of n = 256 to 6,144 in steps of 256 and y = 1 / n: with the remainder of a y, where
 * nothing of that underflows (all mantissas tried). */
DEV float post_over(float a, float n, float y)
{
    const float q = __fmul_rn(a, y);
    return a > 1e-30f && a < 1e38f ? __fmaf_rn(__fmaf_rn(-n, q, a), y, q) : __fdiv_rn(a, n);
}
/* 1 / rms of n columns, from the squares of their blocks of 256, zeros behind them: added up as 32 lanes that
 * each have one and exchange them add them up; without the exchanges. */
DEV float post_inverse(const float *squares, float n, float y, float eps)
{
    float v[24];
#pragma unroll
    for (int i = 0; i < 6; i++) {
        const float4 f = *(const float4 *)(squares + 4 * i);
        v[4 * i] = f.x, v[4 * i + 1] = f.y, v[4 * i + 2] = f.z, v[4 * i + 3] = f.w;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = __fadd_rn(__fadd_rn(v[i], v[i + 16]), v[i + 8]);
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = __fadd_rn(v[i], v[i + 4]);
    const float ss = __fadd_rn(__fadd_rn(v[0], v[2]), __fadd_rn(v[1], v[3]));
    return inverse_root(__fadd_rn(post_over(ss, n, y), eps));
}
/* The thread's part of the row that is kept: of block c of its warp, so that lanes are on banks side by side.
 */
DEV float4 *post_place(float *kept, int c)
{
    return (float4 *)kept + 2 * c * 32 * CHAIN_WARPS + threadIdx.x;
}
/* The last row: the block's columns to memory. */
template <int B> DEV void post_leave(const chain_step &s, const float (*v)[8], int first, int n)
{
#pragma unroll
    for (int c = 0; c < B; c++)
        if (c < n && (thread_now() / 32 + c * CHAIN_WARPS) % gridDim.x == block_now()) {
            float4 *const to = (float4 *)(s.post_out + first + 256 * CHAIN_WARPS * c);
            to[0] = make_float4(v[c][0], v[c][1], v[c][2], v[c][3]);
            to[1] = make_float4(v[c][4], v[c][5], v[c][6], v[c][7]);
        }
}
/* y: what the step before gave. kept: the row. All warps that multiply. */
DEV void chain_post(const chain_step &s, float *kept, const float *y, uint8_t *act, float *squares)
{
    constexpr int B = CHAIN_K_NORM_BLOCKS,
                  HALF = 32 * CHAIN_WARPS; /* from a place's first four to the others */
    static_assert(B == 3 && B * CHAIN_WARPS == 24 && 2 * B * CHAIN_WARPS <= CHAIN_BLOCKS, "a place a block");
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, units = s.units, n_in = 256 * units,
              n = min(B, (units - warp + CHAIN_WARPS - 1) / CHAIN_WARPS);
    float v[B][8] = {}, w[B][8], g[B][8];
    const float *const p = y + 256 * warp;
    const auto column = [&](int c) { return 256 * (warp + c * CHAIN_WARPS) + 8 * lane; };
    values_ask<B, CHAIN_WARPS>(v, p, n, 0);
    if (s.post_x)
#pragma unroll
        for (int c = 0; c < B; c++)
            if (c < n) {
                copy_async(shared_at(post_place(kept, c)), s.post_x + column(c));
                copy_async(shared_at(post_place(kept, c) + HALF), s.post_x + column(c) + 4);
            }
    copy_commit();
#pragma unroll
    for (int c = 0; c < B; c++) {
        load_eight(w[c], s.post, column(c), n_in);
        load_eight(g[c], s.norm, column(c), n_in);
    }
    const float width = (float)n_in, over = __frcp_rn(width), scale = s.post_scale;
    values_settle<B, CHAIN_WARPS>(v, p, n);
    float *at = squares + B * CHAIN_WARPS;
#pragma unroll
    for (int c = 0; c < B; c++) {
        const float ss = block_squares(v[c]);
        if (lane == 0) at[warp + c * CHAIN_WARPS] = c < n ? ss : 0.0f;
    }
    copy_wait(0);
    chain_meet();
    float r = post_inverse(at, width, over, s.post_eps);
#pragma unroll
    for (int c = 0; c < B; c++) {
        if (c >= n) break; /* there is no place */
        float4 *const old = post_place(kept, c);
        const float4 lo = old[0], hi = old[HALF];
        const float x[8] = {lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w};
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[c][i] = __fmul_rn(__fadd_rn(x[i], __fmul_rn(__fmul_rn(v[c][i], r), w[c][i])), scale);
        old[0] = make_float4(v[c][0], v[c][1], v[c][2], v[c][3]);
        old[HALF] = make_float4(v[c][4], v[c][5], v[c][6], v[c][7]);
    }
#pragma unroll
    for (int c = 0; c < B; c++) {
        const float ss = block_squares(v[c]);
        if (lane == 0) squares[warp + c * CHAIN_WARPS] = c < n ? ss : 0.0f;
    }
    chain_meet();
    r = post_inverse(squares, width, over, s.eps);
    if (s.post_out) post_leave<B>(s, v, column(0), n);
#pragma unroll
    for (int c = 0; c < B; c++)
#pragma unroll
        for (int i = 0; i < 8; i++) v[c][i] = __fmul_rn(__fmul_rn(v[c][i], r), g[c][i]);
    if (n > 0) chain_round_of<B, false>(act, units, warp, CHAIN_WARPS, n, v);
    if (s.own)
        __syncwarp();
    else
        chain_meet();
}

#endif
