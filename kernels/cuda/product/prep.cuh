/* prep.cuh - 8-bit activations of a token, prepared by the warps of one block: normed, rounded, in the order
 * that the mma wants (mm.cuh). Used by the kernels of prep.cu and of experts: the same function, so the same
 * bits, whatever the number of warps. The layout: prep_block.cuh. */
#ifndef DFLASH_CUDA_PREP_CUH
#define DFLASH_CUDA_PREP_CUH

#include "mm_frag.cuh"
#include "prep_block.cuh"

/* Columns 8 lane .. 8 lane + 7 of a 256-column block; zeros beyond the row's end. */
DEV void load_eight(float v[8], const float *x, int k, int n_in)
{
    float4 a = make_float4(0.0f, 0.0f, 0.0f, 0.0f), b = a;
    if (k < n_in) {
        a = __ldcg((const float4 *)(x + k));
        b = __ldcg((const float4 *)(x + k + 4));
    }
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}
/* Sum of the squares of a block's 256 columns, in all lanes. */
DEV float block_squares(const float v[8])
{
    float s = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; i++) s = __fmaf_rn(v[i], v[i], s);
#pragma unroll
    for (int o = 16; o; o /= 2) s = __fadd_rn(s, __shfl_xor_sync(0xffffffff, s, o));
    return s;
}
/* The inverse root of a row's mean square, of all blocks' squares. */
DEV float inverse_rms(const float *squares, int blocks, int n_in, float eps)
{
    float s = 0.0f;
    for (int b = threadIdx.x % 32; b < blocks; b += 32) s = __fadd_rn(s, squares[b]);
#pragma unroll
    for (int o = 16; o; o /= 2) s = __fadd_rn(s, __shfl_xor_sync(0xffffffff, s, o));
    return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(s, (float)n_in), eps)));
}
/* v = v r w */
DEV void scale_eight(float v[8], float r, const float w[8])
{
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = __fmul_rn(__fmul_rn(v[i], r), w[i]);
}
/* Blocks first .. end - 1 of the token x to `row`. WARPS warps call, all threads; each keeps a block in
 * registers between the two passes. squares: shared memory, one float a block of the row. Waits for the grid
 * before it (norm is constant and read before). */
template <enum mm_act ACT, int WARPS>
DEV void prepare_row(const mm_prep &a, const float *x, uint8_t *row, int first, int end, float *squares,
                     int token = 0)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, mine = first + warp;
    if (!a.norm) { /* many loads in flight */
        constexpr int batch = 48 / WARPS;
        cuda_grid_wait();
#pragma unroll 1
        for (int b = mine; b < end; b += batch * WARPS) {
            float u[batch][8];
#pragma unroll
            for (int c = 0; c < batch; c++)
                if (b + c * WARPS < end) load_eight(u[c], x, 256 * (b + c * WARPS) + 8 * lane, a.n_in);
#pragma unroll
            for (int c = 0; c < batch; c++)
                if (b + c * WARPS < end) store_block<ACT>(a, row, b + c * WARPS, u[c], token);
        }
        return;
    }
    const int blocks = (a.n_in + 255) / 256;
    float v[8], w[8];
    if (mine < end) load_eight(w, a.norm, 256 * mine + 8 * lane, a.n_in);
    cuda_grid_wait();
    if (mine < end) {
        load_eight(v, x, 256 * mine + 8 * lane, a.n_in);
        const float s = block_squares(v);
        if (lane == 0) squares[mine] = s;
    }
    for (int b = warp; b < blocks; b += WARPS) {
        if (b >= first && b < min(end, first + WARPS)) continue;
        float u[8];
        load_eight(u, x, 256 * b + 8 * lane, a.n_in);
        const float s = block_squares(u);
        if (lane == 0) squares[b] = s;
    }
    __syncthreads();
    float s = 0.0f;
    for (int b = lane; b < blocks; b += 32) s = __fadd_rn(s, squares[b]);
#pragma unroll
    for (int o = 16; o; o /= 2) s = __fadd_rn(s, __shfl_xor_sync(0xffffffff, s, o));
    const float r = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(s, (float)a.n_in), a.eps)));
    for (int b = mine; b < end; b += WARPS) {
        if (b > mine) {
            load_eight(v, x, 256 * b + 8 * lane, a.n_in);
            load_eight(w, a.norm, 256 * b + 8 * lane, a.n_in);
        }
        scale_eight(v, r, w);
        store_block<ACT>(a, row, b, v, token);
    }
}

#endif
