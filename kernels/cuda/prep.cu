/* prep.cu - activations for matrix products: normed, scaled, rounded, in the order that the mma wants
 * (mm.cuh).
 *
 * One block a token, one warp a slice at a time. Reads 4 bytes a value, writes 2 a plane; bound by latency:
 * it stands between two products. Doing this in each block of the product instead was measured and lost from
 * 8 rows on (SPEED.md). A row, slice by slice: [planes][columns] 16-bit values, in every 32 columns in the
 * order 4 (k % 16 / 4) + k % 4 + 4 (k / 16) pairs of quarters (lane quarter q finds its 8 values in 16
 * bytes); sums of 32 columns; the slice's factor, padded to 16 bytes. */
#include "mm_frag.cuh"

#define WARPS 16

DEV uint32_t magnitude(float x)
{
    return __float_as_uint(x) & 0x7fffffff;
}
DEV float4 load_four(const float *x, int k, int end, bool aligned)
{
    if (aligned && k + 3 < end) return __ldcg((const float4 *)(x + k));
    float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (k < end) v.x = __ldcg(x + k);
    if (k + 1 < end) v.y = __ldcg(x + k + 1);
    if (k + 2 < end) v.z = __ldcg(x + k + 2);
    if (k + 3 < end) v.w = __ldcg(x + k + 3);
    return v;
}
/* The 16-bit parts of (x, y). */
template <int PLANES, bool BF16> DEV void planes_of(uint32_t p[PLANES], float x, float y)
{
#pragma unroll
    for (int i = 0; i < PLANES; i++) {
        if (BF16) { /* truncated: what is left is exact, three hold all 24 bits */
            p[i] = __byte_perm(__float_as_uint(x), __float_as_uint(y), 0x7632);
            x = __fsub_rn(x, __uint_as_float(__float_as_uint(x) & 0xffff0000));
            y = __fsub_rn(y, __uint_as_float(__float_as_uint(y) & 0xffff0000));
        } else {
            const __half2 h = __floats2half2_rn(x, y);
            p[i] = *(const uint32_t *)&h;
            x = __fsub_rn(x, h_low(p[i]));
            y = __fsub_rn(y, h_high(p[i]));
        }
    }
}

template <int PLANES, bool BF16, int SUMS>
__global__ void __launch_bounds__(32 * WARPS) prep_kernel(const mm_prep a)
{
    constexpr int parts = MM_SLICE_MAX / 128;
    __shared__ float squares[MM_SLICES_MAX], inverses[MM_SLICES_MAX];
    const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
    const float *x = a.x + (size_t)blockIdx.x * (size_t)a.n_in;
    uint8_t *row = a.rows + (size_t)blockIdx.x * (size_t)a.slices * (size_t)a.slice_row;
    const bool aligned = (a.n_in & 3) == 0;
    cuda_grid_start();
    for (int s = threadIdx.x / 32; s < a.slices; s += warps) {
        const int k0 = s * a.slice_units * a.unit_k, whole = a.slice_units * a.unit_k;
        const int columns = min(a.slice_units, a.units - s * a.slice_units) * a.unit_k,
                  end = min(a.n_in, k0 + columns);
        float4 v[parts], w[parts];
#pragma unroll
        for (int i = 0; i < parts; i++)
            if (128 * i < columns) v[i] = load_four(x, k0 + 128 * i + 4 * lane, end, aligned);
        if (a.norm)
#pragma unroll
            for (int i = 0; i < parts; i++)
                if (128 * i < columns) w[i] = load_four(a.norm, k0 + 128 * i + 4 * lane, end, aligned);
        uint32_t top = 0;
        float ss = 0.0f;
#pragma unroll
        for (int i = 0; i < parts; i++) {
            if (128 * i >= columns) continue;
            if (a.norm) {
                ss = __fmaf_rn(v[i].x, v[i].x, ss);
                ss = __fmaf_rn(v[i].y, v[i].y, ss);
                ss = __fmaf_rn(v[i].z, v[i].z, ss);
                ss = __fmaf_rn(v[i].w, v[i].w, ss);
                v[i] = make_float4(__fmul_rn(v[i].x, w[i].x), __fmul_rn(v[i].y, w[i].y),
                                   __fmul_rn(v[i].z, w[i].z), __fmul_rn(v[i].w, w[i].w));
            }
            top = max(top, max(max(magnitude(v[i].x), magnitude(v[i].y)),
                               max(magnitude(v[i].z), magnitude(v[i].w))));
        }
        top = __reduce_max_sync(0xffffffff, top);
        if (a.norm)
#pragma unroll
            for (int o = 16; o; o /= 2) ss = __fadd_rn(ss, __shfl_xor_sync(0xffffffff, ss, o));
        /* scale = 2^(9 - exponent of the largest), inverse = 1 / scale; both finite and exact. NaN, Inf and
         * zeros: as they are */
        const uint32_t e = max(top >> 23, 9u);
        float scale = 1.0f, inverse = 1.0f;
        if (e != 255 && top) {
            scale = __uint_as_float((263 - e) << 23);
            inverse = __uint_as_float(e > 9 ? (e - 9) << 23 : 0x00400000);
        }
        if (lane == 0) {
            squares[s] = ss;
            inverses[s] = inverse;
        }
        uint8_t *dst = row + (size_t)s * (size_t)a.slice_row, *sums = dst + PLANES * 2 * whole;
#pragma unroll
        for (int i = 0; i < parts; i++) {
            if (128 * i >= columns) continue;
            const int at = 128 * i + 4 * lane;
            uint32_t lo[PLANES], hi[PLANES];
            planes_of<PLANES, BF16>(lo, __fmul_rn(v[i].x, scale), __fmul_rn(v[i].y, scale));
            planes_of<PLANES, BF16>(hi, __fmul_rn(v[i].z, scale), __fmul_rn(v[i].w, scale));
            if (at < columns)
#pragma unroll
                for (int p = 0; p < PLANES; p++)
                    *(uint2 *)(dst + p * 2 * whole + at / 32 * 64 + at % 16 / 4 * 16 + at / 16 % 2 * 8) =
                        make_uint2(lo[p], hi[p]);
            if (SUMS != MM_SUMS_NONE) { /* of the rounded values */
                float t =
                    __fadd_rn(__fadd_rn(h_low(lo[0]), h_high(lo[0])), __fadd_rn(h_low(hi[0]), h_high(hi[0])));
                t = __fadd_rn(t, __shfl_xor_sync(0xffffffff, t, 1));
                t = __fadd_rn(t, __shfl_xor_sync(0xffffffff, t, 2));
                t = __fadd_rn(t, __shfl_xor_sync(0xffffffff, t, 4));
                if (lane % 8 == 0 && at < columns) {
                    const int group = at / 32;
                    if (SUMS == MM_SUMS_K) { /* [256 columns][pair of groups][2 high, 2 low] */
                        const __half h = __float2half_rn(t),
                                     l = __float2half_rn(__fsub_rn(t, __half2float(h)));
                        __half *d = (__half *)(sums + group / 8 * 32 + group % 8 / 2 * 8) + group % 2;
                        d[0] = h;
                        d[2] = l;
                    } else {
                        ((float *)sums)[group] = t;
                    }
                }
            }
        }
    }
    __syncthreads();
    for (int s = threadIdx.x; s < a.slices; s += blockDim.x) {
        float f = inverses[s];
        if (a.norm) {
            float ss = 0.0f;
            for (int i = 0; i < a.slices; i++) ss = __fadd_rn(ss, squares[i]);
            f = __fmul_rn(f, __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(ss, (float)a.n_in), a.eps))));
        }
        *(float *)(row + (size_t)(s + 1) * (size_t)a.slice_row - 16) = f;
    }
}

typedef void (*prep_fn)(const mm_prep);
static prep_fn kernel_of(const struct mm_type *t)
{
    if (t->planes == 2) return prep_kernel<2, false, MM_SUMS_NONE>;
    if (t->planes == 3) return prep_kernel<3, true, MM_SUMS_NONE>;
    if (t->sums == MM_SUMS_K) return prep_kernel<1, false, MM_SUMS_K>;
    if (t->sums == MM_SUMS_32) return prep_kernel<1, false, MM_SUMS_32>;
    return prep_kernel<1, false, MM_SUMS_NONE>;
}

/* The products ask for all shared memory; a kernel that asks for another division cannot stand beside them.
 * */
cudaError_t mm_prepare_open(const struct mm_type *t)
{
    return cudaFuncSetAttribute(kernel_of(t), cudaFuncAttributePreferredSharedMemoryCarveout,
                                cudaSharedmemCarveoutMaxShared);
}

cudaError_t mm_prepare(const struct cuda_backend *be, const struct mm_type *t, const struct mm_prep *p,
                       int32_t n)
{
    const dim3 grid((unsigned)n), block(32 * (p->slices < WARPS ? p->slices : WARPS));
    return cuda_launch(be, kernel_of(t), grid, block, 0, *p);
}
