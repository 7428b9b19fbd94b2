/* delta/norm.cuh - the norms of a token's q and k of 128 values, and their product: the bits of norms<128>
 * (delta/rows.cuh), for kernels that keep q and k as they are. */
#ifndef DFLASH_CUDA_DELTA_NORM_CUH
#define DFLASH_CUDA_DELTA_NORM_CUH

#define DELTA_SCALE 0x1.6a09e6p-4f /* 1 / sqrtf(128), rounded */

struct delta_roots {
    float q, k, kq; /* what q and k are multiplied by (q by DELTA_SCALE too); k . q of the products */
};
/* A warp, all of whose lanes have the results; lane: of the thread in it. */
static __device__ __forceinline__ struct delta_roots delta_roots_of(const float *q, const float *k, int lane)
{
    float x[2][4], sum[2] = {0.0f, 0.0f}, kq = 0.0f;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            x[j][i] = (j ? k : q)[32 * i + lane];
            sum[j] = __fmaf_rn(x[j][i], x[j][i], sum[j]);
        }
#pragma unroll
    for (int o = 16; o; o >>= 1)
#pragma unroll
        for (int j = 0; j < 2; j++) sum[j] = __fadd_rn(sum[j], __shfl_xor_sync(~0u, sum[j], o));
    const float root = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(lane & 1 ? sum[1] : sum[0], 1e-6f))),
                root_q = __shfl_sync(~0u, root, 0), root_k = __shfl_sync(~0u, root, 1);
#pragma unroll
    for (int i = 0; i < 4; i++)
        kq = __fmaf_rn(__fmul_rn(x[1][i], root_k), __fmul_rn(__fmul_rn(x[0][i], root_q), DELTA_SCALE), kq);
#pragma unroll
    for (int o = 16; o; o >>= 1) kq = __fadd_rn(kq, __shfl_xor_sync(~0u, kq, o));
    return {root_q, root_k, kq};
}

#endif
