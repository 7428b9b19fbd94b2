/* attention/heads.cuh - vectors of heads in the registers of a warp: loaded, normed, rotated, stored.
 *
 * One head a warp, a column in 32 a lane (head_of), or several side by side (heads_of): the same sums in the
 * same order. */
#include "few.cuh"

/* A head's vector in a warp: value j of a lane is column lane + 32 j. As turn of rope.cu. */
template <int D> struct head_of {
    static constexpr int W = D / 32;
    float x[W], g[W];
    float2 cs[W / 2];
    __device__ __forceinline__ void load(const attn &a, const float *src, const float *norm,
                                         const float2 *table)
    {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int j = 0; j < W; j++) x[j] = __ldcg(src + lane + 32 * j);
        if (table)
#pragma unroll
            for (int j = 0; j < W / 2; j++)
                if (32 * j < a.half) cs[j] = __ldcg(table + lane + 32 * j);
#pragma unroll
        for (int j = 0; j < W; j++) g[j] = norm ? __ldg(norm + lane + 32 * j) : 1.0f;
    }
    __device__ __forceinline__ void turn(const attn &a, bool normed, bool turned)
    {
        if (normed) {
            float sum = 0.0f;
#pragma unroll
            for (int j = 0; j < W; j++) sum = __fmaf_rn(x[j], x[j], sum);
#pragma unroll
            for (int i = 16; i; i >>= 1) sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, i));
            static_assert((D & (D - 1)) == 0, "sum / D is sum times what is a float");
            const float r = __frcp_rn(__fsqrt_rn(__fadd_rn(__fmul_rn(sum, 1.0f / (float)D), a.eps)));
#pragma unroll
            for (int j = 0; j < W; j++) x[j] = __fmul_rn(__fmul_rn(x[j], r), g[j]);
        }
        if (!turned) return;
        if (a.half == D / 2) {
#pragma unroll
            for (int j = 0; j < W / 2; j++) rotate(x[j], x[j + W / 2], cs[j]);
        } else if (a.half) { /* 32 */
            rotate(x[0], x[1], cs[0]);
        }
    }
    static __device__ __forceinline__ void rotate(float &p, float &q, const float2 &cs)
    {
        const float u = p, w = q;
        p = __fmaf_rn(u, cs.x, -__fmul_rn(w, cs.y));
        q = __fmaf_rn(u, cs.y, __fmul_rn(w, cs.x));
    }
    /* As row r of the tiles' queries: fragments, and what the scores are multiplied by. As query_rows::put.
     * EIGHT: of no more rows, whose low parts are rows 8 to 15 (scores_eight). */
    template <bool BF16, bool EIGHT = false>
    __device__ __forceinline__ void put_query(const attn &a, uint4 *to, float *unit, int r)
    {
        const int lane = threadIdx.x % 32;
        unsigned top = 0;
#pragma unroll
        for (int j = 0; j < W; j++) top = max(top, __float_as_uint(x[j]) & 0x7fffffff);
        top = __reduce_max_sync(~0u, top);
        int e = (int)(top >> 23) - 126; /* |x| < 2^e */
        e = top >= 0x7f800000 || e < -100 ? 0 : e;
        const float down = __int_as_float((127 - e) << 23);
        if (lane == 0)
            unit[r] = __fmul_rn(__fmul_rn(a.scale, 0x1.715476p+0f), __int_as_float((127 + e) << 23));
        constexpr int STEP = EIGHT ? 32 : 64; /* fragments of 16 columns */
        uint16_t *at =
            (uint16_t *)&to[r / TILE * (D / 16 * STEP) + lane / 16 * STEP + r % 8 * 4 + lane % 8 / 2] +
            (lane % 16 / 8 * 2 + r / 8 % 2) * 2 + lane % 2;
#pragma unroll
        for (int j = 0; j < W; j++) {
            const float y = __fmul_rn(x[j], down);
            const uint16_t high = to_half<BF16>(y);
            at[j * 16 * STEP] = high;
            at[j * 16 * STEP + (EIGHT ? 2 : 256)] = to_half<BF16>(__fsub_rn(y, from_half<BF16>(high)));
        }
    }
    template <bool BF16> __device__ __forceinline__ void put(uint16_t *to) const
    {
#pragma unroll
        for (int j = 0; j < W; j++) to[threadIdx.x % 32 + 32 * j] = to_half<BF16>(x[j]);
    }
};

/* As many head vectors side by side in a warp as give a lane N values (or one, of more): lane l of a row has
 * what lanes V l to V l + V - 1 of head_of have, x[j][v] being column V l + v + 32 j. The same sums in the
 * same order, so the same bits; one chain of latencies serves all rows. */
template <int D, int N> struct heads_of {
    static constexpr int ROWS = 32 * N > D ? 32 * N / D : 1, LANES = 32 / ROWS, V = ROWS, J = D / 32;
    float x[J][V];
    float2 cs[J / 2][V];
    static __device__ __forceinline__ int column()
    {
        return (int)threadIdx.x % LANES * V;
    }
    /* M floats that begin at a multiple of M: V, or 2 V */
    template <int M, bool CONSTANT> static __device__ __forceinline__ void take(float *to, const float *p)
    {
        if constexpr (M >= 4) {
#pragma unroll
            for (int i = 0; i < M; i += 4) {
                const float4 v = CONSTANT ? __ldg((const float4 *)(p + i)) : __ldcg((const float4 *)(p + i));
                to[i] = v.x, to[i + 1] = v.y, to[i + 2] = v.z, to[i + 3] = v.w;
            }
        } else if constexpr (M == 2) {
            const float2 v = CONSTANT ? __ldg((const float2 *)p) : __ldcg((const float2 *)p);
            to[0] = v.x, to[1] = v.y;
        } else {
            to[0] = CONSTANT ? __ldg(p) : __ldcg(p);
        }
    }
    __device__ __forceinline__ void load(const attn &a, const float *src, const float2 *table)
    {
#pragma unroll
        for (int j = 0; j < J; j++) take<V, false>(x[j], src + column() + 32 * j);
        if (table)
#pragma unroll
            for (int j = 0; j < J / 2; j++)
                if (32 * j < a.half)
                    take<2 * V, false>(&cs[j][0].x, (const float *)(table + column() + 32 * j));
    }
    /* norm: NULL, or what a norm multiplies by. Its loads hide behind the sum's. */
    __device__ __forceinline__ void turn(const attn &a, bool normed, const float *norm, bool turned)
    {
        if (normed) {
            float sum[V];
            float g[J][V];
            if (norm)
#pragma unroll
                for (int j = 0; j < J; j++) take<V, true>(g[j], norm + column() + 32 * j);
#pragma unroll
            for (int v = 0; v < V; v++) {
                sum[v] = 0.0f;
#pragma unroll
                for (int j = 0; j < J; j++) sum[v] = __fmaf_rn(x[j][v], x[j][v], sum[v]);
#pragma unroll
                for (int i = LANES / 2; i; i >>= 1)
                    sum[v] = __fadd_rn(sum[v], __shfl_xor_sync(~0u, sum[v], i));
            }
#pragma unroll
            for (int i = V / 2; i; i >>= 1)
#pragma unroll
                for (int v = 0; v < i; v++) sum[v] = __fadd_rn(sum[v], sum[v + i]);
            const float r = __frcp_rn(__fsqrt_rn(__fadd_rn(__fmul_rn(sum[0], 1.0f / (float)D), a.eps)));
#pragma unroll
            for (int j = 0; j < J; j++)
#pragma unroll
                for (int v = 0; v < V; v++) {
                    x[j][v] = __fmul_rn(x[j][v], r);
                    if (norm) x[j][v] = __fmul_rn(x[j][v], g[j][v]);
                }
        }
        if (!turned) return;
#pragma unroll
        for (int v = 0; v < V; v++)
            if (a.half == D / 2) {
#pragma unroll
                for (int j = 0; j < J / 2; j++) head_of<D>::rotate(x[j][v], x[j + J / 2][v], cs[j][v]);
            } else if (a.half) { /* 32 */
                head_of<D>::rotate(x[0][v], x[1][v], cs[0][v]);
            }
    }
    /* As head_of has it; r: of my row. */
    template <bool BF16>
    __device__ __forceinline__ void put_query(const attn &a, uint4 *to, float *unit, int r, bool really)
    {
        const int c = column();
        unsigned top = 0;
#pragma unroll
        for (int j = 0; j < J; j++)
#pragma unroll
            for (int v = 0; v < V; v++) top = max(top, __float_as_uint(x[j][v]) & 0x7fffffff);
#pragma unroll
        for (int i = LANES / 2; i; i >>= 1) top = max(top, __shfl_xor_sync(~0u, top, i));
        int e = (int)(top >> 23) - 126; /* |x| < 2^e */
        e = top >= 0x7f800000 || e < -100 ? 0 : e;
        const float down = __int_as_float((127 - e) << 23);
        if (!really) return;
        if (c == 0) unit[r] = __fmul_rn(__fmul_rn(a.scale, 0x1.715476p+0f), __int_as_float((127 + e) << 23));
        uint16_t *row = (uint16_t *)&to[r / TILE * (D / 16 * 64) + r % 8 * 4] + r / 8 % 2 * 2;
#pragma unroll
        for (int v = 0; v<V; v += V> 1 ? 2 : 1) {
            const int at = c + v; /* two columns a word */
            uint16_t *word = row + at / 16 * 512 + at % 8 / 2 * 8 + at % 16 / 8 * 4 + at % 2;
#pragma unroll
            for (int j = 0; j < J; j++) {
                if constexpr (V > 1) {
                    uint32_t part[2];
                    parts_of<2, BF16>(__fmul_rn(x[j][v], down), __fmul_rn(x[j][v + 1], down), part);
                    *(uint32_t *)(word + j * 1024) = part[0];
                    *(uint32_t *)(word + j * 1024 + 256) = part[1];
                } else {
                    const float y = __fmul_rn(x[j][v], down);
                    const uint16_t high = to_half<BF16>(y);
                    word[j * 1024] = high;
                    word[j * 1024 + 256] = to_half<BF16>(__fsub_rn(y, from_half<BF16>(high)));
                }
            }
        }
    }
    template <bool BF16> __device__ __forceinline__ void put(uint16_t *to) const
    {
#pragma unroll
        for (int j = 0; j < J; j++) {
            uint16_t *dst = to + column() + 32 * j;
            if constexpr (V == 1) {
                dst[0] = to_half<BF16>(x[j][0]);
            } else if constexpr (V == 2) {
                *(uint32_t *)dst = pair_of<BF16>(x[j][0], x[j][1]);
            } else {
#pragma unroll
                for (int v = 0; v < V; v += 4)
                    *(uint2 *)(dst + v) = make_uint2(pair_of<BF16>(x[j][v], x[j][v + 1]),
                                                     pair_of<BF16>(x[j][v + 2], x[j][v + 3]));
            }
        }
    }
};
