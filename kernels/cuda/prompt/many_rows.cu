/* many_rows.cu - activations of products of more than 64 rows: normed, scaled and rounded to f16 on the way
 * in, scaled back and gated on the way out.
 *
 * Bound: bytes. A row of 4,096: 16 KB in, 8 KB out; gate and up of 12,288: 96 KB in, 48 KB out. */
#include "../core/bulk.cuh"
#include "many_impl.cuh"

/* Of a block of 512 threads: `join` of all warps' x, which a warp has as all of its lanes' in `of_warp`. */
template <class T, class F> DEV T block_of_512(T of_warp, T *warp, F join)
{
    __syncthreads();
    if (threadIdx.x % 32 == 0) warp[threadIdx.x / 32] = of_warp;
    __syncthreads();
    T all = warp[0];
    for (int i = 1; i < 16; i++) all = join(all, warp[i]);
    return all;
}
/* Four values from i on; what lies past n_in reads as 0, or 1 where it is a norm. */
DEV float4 four_at(const float *x, int i, int n_in, bool whole, float past)
{
    if (whole && i < n_in) return *(const float4 *)(x + i);
    float v[4];
    for (int e = 0; e < 4; e++) v[e] = i + e < n_in ? x[i + e] : past;
    return make_float4(v[0], v[1], v[2], v[3]);
}

#define KEPT 8 /* quads of a row that a thread keeps: rows of up to 16,384 values are read once */

/* One block a row; what of it is not kept is read twice, the second time from a cache. */
static __global__ void __launch_bounds__(512) prepare_rows(const act_args a)
{
    __shared__ float sums[16];
    __shared__ uint32_t tops[16];
    const float *x = a.x + (int64_t)blockIdx.x * a.n_in;
    __half *act = a.act + (int64_t)blockIdx.x * a.ld;
    const bool whole = a.n_in % 4 == 0;
    float4 kept[KEPT]; /* x, times the norm's weight */
    float ss = 0.0f, r = 1.0f;
    uint32_t top = 0;
    cuda_grid_start();
    const auto take = [&](int i) {
        float4 v = four_at(x, i, a.n_in, whole, 0.0f);
        if (a.norm) {
            const float4 w = four_at(a.norm, i, a.n_in, whole, 1.0f);
            ss = __fmaf_rn(v.x, v.x, ss), ss = __fmaf_rn(v.y, v.y, ss);
            ss = __fmaf_rn(v.z, v.z, ss), ss = __fmaf_rn(v.w, v.w, ss);
            v = make_float4(__fmul_rn(v.x, w.x), __fmul_rn(v.y, w.y), __fmul_rn(v.z, w.z),
                            __fmul_rn(v.w, w.w));
        }
        return v;
    };
    const auto high = [&](const float4 &v) {
        const float m[4] = {v.x, v.y, v.z, v.w};
        for (int e = 0; e < 4; e++) top = max(top, __float_as_uint(m[e]) & 0x7fffffff);
    };
#pragma unroll
    for (int j = 0; j < KEPT; j++) {
        const int i = 4 * (int)threadIdx.x + 2048 * j;
        kept[j] = i < a.n_in ? take(i) : make_float4(0, 0, 0, 0);
        high(kept[j]);
    }
    for (int i = 4 * (int)threadIdx.x + 2048 * KEPT; i < a.n_in; i += 2048) high(take(i));
    if (a.norm) {
        for (int i = 16; i; i >>= 1) ss = __fadd_rn(ss, __shfl_xor_sync(~0u, ss, i));
        ss = block_of_512(ss, sums, [](float x, float y) { return __fadd_rn(x, y); });
        r = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(ss, (float)a.n_in), a.eps)));
    }
    top = block_of_512(__reduce_max_sync(~0u, top), tops, [](uint32_t x, uint32_t y) { return max(x, y); });
    /* 2^-8 <= largest < 2^15: as it is, so that the residual need not be scaled with it. NaN, Inf, 0: as they
     * are. */
    const uint32_t big = __float_as_uint(__fmul_rn(__uint_as_float(top), r)) & 0x7fffffff;
    float scale = 1.0f, factor = 1.0f;
    if (top && top < 0x7f800000 && big < 0x7f800000 && (big < 0x3b800000 || big >= 0x47000000)) {
        int e = 9 - ((int)(big >> 23) - 127); /* to [2^9, 2^10) */
        e = min(e, 60);
        scale = __uint_as_float((uint32_t)(127 + e) << 23);
        factor = __uint_as_float((uint32_t)(127 - e) << 23);
        if (a.residual)
            for (int64_t i = threadIdx.x; i < a.n_out; i += 512) {
                float *y = a.residual + (int64_t)blockIdx.x * a.n_out + i;
                *y = __fmul_rn(*y, scale);
            }
    }
    if (threadIdx.x == 0) a.factor[blockIdx.x] = factor;
    const auto give = [&](int i, const float4 &v) {
        const __half2 lo = __floats2half2_rn(__fmul_rn(__fmul_rn(v.x, r), scale),
                                             __fmul_rn(__fmul_rn(v.y, r), scale)),
                      hi = __floats2half2_rn(__fmul_rn(__fmul_rn(v.z, r), scale),
                                             __fmul_rn(__fmul_rn(v.w, r), scale));
        if (a.pad) {
            const int turn = blockIdx.x % 8, piece = i % 64 / 16 * 2;
            uint8_t *to = (uint8_t *)a.act + (i / 64 * a.pad + blockIdx.x) * 128 + i % 16;
            *(uint32_t *)(to + ((piece ^ turn) << 4)) = *(const uint32_t *)&lo;
            *(uint32_t *)(to + ((piece + 1 ^ turn) << 4)) = *(const uint32_t *)&hi;
        } else
            *(uint2 *)(act + i) = make_uint2(*(const uint32_t *)&lo, *(const uint32_t *)&hi);
    };
#pragma unroll
    for (int j = 0; j < KEPT; j++) {
        const int i = 4 * (int)threadIdx.x + 2048 * j;
        if (i < a.ld) give(i, kept[j]);
    }
    for (int i = 4 * (int)threadIdx.x + 2048 * KEPT; i < a.ld; i += 2048)
        give(i, i < a.n_in ? take(i) : make_float4(0, 0, 0, 0));
}

cudaError_t many_prepare(const struct cuda_backend *be, const struct act_args *a, int32_t n)
{
    return cuda_launch(be, prepare_rows, dim3((unsigned)n), dim3(512), 0, *a);
}

static __global__ void __launch_bounds__(256) restore_rows(const restore_args a)
{
    cuda_grid_start();
    const float f = a.factor[blockIdx.x];
    if (f == 1.0f) return;
    for (int j = 0; j < a.n_w; j++)
        for (int64_t i = threadIdx.x; i < a.n_out[j]; i += 256) {
            float *y = a.out[j] + (int64_t)blockIdx.x * a.n_out[j] + i;
            *y = __fmul_rn(*y, f);
        }
}

cudaError_t many_restore(const struct cuda_backend *be, const struct restore_args *a, int32_t n)
{
    return cuda_launch(be, restore_rows, dim3((unsigned)n), dim3(256), 0, *a);
}

/* y to out + i, as much of it as lies before `end`; aligned: rows begin at multiples of 16 bytes. */
DEV void put_four(float *out, int i, int end, bool aligned, const float y[4])
{
    if (aligned && i + 3 < end)
        *(float4 *)(out + i) = make_float4(y[0], y[1], y[2], y[3]);
    else
        for (int e = 0; e < 4 && i + e < end; e++) out[i + e] = y[e];
}

static __global__ void __launch_bounds__(256) share_rows(const share_args a)
{
    cuda_grid_start();
    const float f = a.factor[blockIdx.x];
    const float *s = a.sums + (int64_t)blockIdx.x * a.width;
    for (int j = 0; j < a.n_w; j++) {
        float *out = a.out[j] + (int64_t)blockIdx.x * a.n_out[j];
        const bool whole = a.n_out[j] % 4 == 0;
        for (int i = 4 * (int)threadIdx.x; i < a.n_out[j]; i += 1024) {
            const float4 v = *(const float4 *)(s + i);
            const float y[4] = {__fmul_rn(v.x, f), __fmul_rn(v.y, f), __fmul_rn(v.z, f), __fmul_rn(v.w, f)};
            put_four(out, i, a.n_out[j], whole, y);
        }
        s += (a.n_out[j] + 15) / 16 * 16;
    }
}

cudaError_t many_share(const struct cuda_backend *be, const struct share_args *a, int32_t n)
{
    return cuda_launch(be, share_rows, dim3((unsigned)n), dim3(256), 0, *a);
}

static __global__ void __launch_bounds__(256) gate_rows(const gate_args a)
{
    cuda_grid_start();
    const float f = a.factor[blockIdx.y];
    const float *s = a.sums + (int64_t)blockIdx.y * 2 * a.rows;
    float *out = a.out + (int64_t)blockIdx.y * a.n_out;
    const int i = 4 * (int)(blockIdx.x * 256 + threadIdx.x);
    if (i >= a.some) return;
    const float4 g = *(const float4 *)(s + i), u = *(const float4 *)(s + a.rows + i);
    const float y[4] = {__fmul_rn(act_gate(a.act, __fmul_rn(g.x, f)), __fmul_rn(u.x, f)),
                        __fmul_rn(act_gate(a.act, __fmul_rn(g.y, f)), __fmul_rn(u.y, f)),
                        __fmul_rn(act_gate(a.act, __fmul_rn(g.z, f)), __fmul_rn(u.z, f)),
                        __fmul_rn(act_gate(a.act, __fmul_rn(g.w, f)), __fmul_rn(u.w, f))};
    put_four(out, i, a.some, a.n_out % 4 == 0, y);
}

cudaError_t many_gate(const struct cuda_backend *be, cudaStream_t s, const struct gate_args *a, int32_t n)
{
    const dim3 grid((unsigned)((a->some + 1023) / 1024), (unsigned)n);
    if (s == be->stream) return cuda_launch(be, gate_rows, grid, dim3(256), 0, *a);
    gate_rows<<<grid, 256, 0, s>>>(*a);
    return cudaGetLastError();
}
