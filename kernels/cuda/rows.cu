/* rows.cu - norms, gates, tap, soft cap and the search for bad numbers: a pass over rows, bound by the launch at
 * small n. */
#include "math.cuh"
#include "ops.cuh"

/* The sum over a block of 256, in every thread: a tree in the warp, then the warps in order. */
static __device__ __forceinline__ float block_sum(float x, float *warp)
{
    for (int i = 16; i; i >>= 1) x = __fadd_rn(x, __shfl_xor_sync(~0u, x, i));
    if (threadIdx.x % 32 == 0) warp[threadIdx.x / 32] = x;
    __syncthreads();
    float sum = warp[0];
    for (int i = 1; i < 8; i++) sum = __fadd_rn(sum, warp[i]);
    return sum;
}

/* One block a row; thread t adds the squares of t, t + 256, ... */
static __global__ void __launch_bounds__(256)
    rms_norm_rows(float *out, const float *x, const float *weight, int64_t width, float eps)
{
    __shared__ float warp[8];
    cuda_grid_start();
    x += blockIdx.x * width;
    out += blockIdx.x * width;
    float sum = 0.0f;
    for (int64_t i = threadIdx.x; i < width; i += 256) sum = __fmaf_rn(x[i], x[i], sum);
    sum = block_sum(sum, warp);
    const float r = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(sum, (float)width), eps)));
    for (int64_t i = threadIdx.x; i < width; i += 256) {
        float y = __fmul_rn(x[i], r);
        out[i] = weight ? __fmul_rn(y, weight[i]) : y;
    }
}

int cuda_rms_norm(struct kn_backend *kb, float *out, const float *x, const float *weight, int32_t n,
                  int64_t width, float eps)
{
    struct cuda_backend *be = cuda_of(kb);
    if (n < 1 || width < 1) return cuda_fail(be, KN_EINVAL, "rms_norm: %d rows of %lld", n, (long long)width);
    return cuda_check(
        be, "rms_norm",
        cuda_launch(be, rms_norm_rows, dim3((unsigned)n), dim3(256), 0, out, x, weight, width, eps));
}

/* As rms_norm_rows, then a sum and a product. */
static __global__ void __launch_bounds__(256)
    norm_add_rows(float *out, const float *x, const float *y, const float *weight, int64_t width, float eps, float scale)
{
    __shared__ float warp[8];
    cuda_grid_start();
    const int64_t row = blockIdx.x * width;
    float sum = 0.0f;
    for (int64_t i = threadIdx.x; i < width; i += 256) sum = __fmaf_rn(y[row + i], y[row + i], sum);
    sum = block_sum(sum, warp);
    const float r = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(sum, (float)width), eps)));
    for (int64_t i = threadIdx.x; i < width; i += 256) {
        float u = __fmul_rn(y[row + i], r);
        if (weight) u = __fmul_rn(u, weight[i]);
        out[row + i] = __fmul_rn(__fadd_rn(x[row + i], u), scale);
    }
}

int cuda_norm_add(struct kn_backend *kb, float *out, const float *x, const float *y, const float *weight, int32_t n,
                  int64_t width, float eps, float scale)
{
    struct cuda_backend *be = cuda_of(kb);
    if (n < 1 || width < 1)
        return cuda_fail(be, KN_EINVAL, "norm_add: %d rows of width %lld", n, (long long)width);
    return cuda_check(be, "norm_add",
                      cuda_launch(be, norm_add_rows, dim3((unsigned)n), dim3(256), 0, out, x, y, weight, width, eps, scale));
}

struct join {
    float *out;
    const float *x, *y, *y_weight, *z, *z_weight, *weight;
    int64_t width;
    float eps, scale;
};
/* 1 / rms of what the block's threads have squared. */
static __device__ __forceinline__ float inverse_rms(float sum, const struct join &a, float *warp)
{
    sum = block_sum(sum, warp);
    return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(sum, (float)a.width), a.eps)));
}
/* The values of rms_norm_rows and norm_add_rows, one after another. */
static __global__ void __launch_bounds__(256) norm_join_rows(const __grid_constant__ struct join a)
{
    __shared__ float warp[3][8];
    cuda_grid_start();
    const int64_t row = blockIdx.x * a.width;
    float y = 0.0f, z = 0.0f, w = 0.0f;
    for (int64_t i = threadIdx.x; i < a.width; i += 256) {
        y = __fmaf_rn(a.y[row + i], a.y[row + i], y);
        z = __fmaf_rn(a.z[row + i], a.z[row + i], z);
    }
    const float ry = inverse_rms(y, a, warp[0]), rz = inverse_rms(z, a, warp[1]);
    const auto joined = [&](int64_t i) {
        return __fadd_rn(__fmul_rn(__fmul_rn(a.y[row + i], ry), a.y_weight[i]),
                         __fmul_rn(__fmul_rn(a.z[row + i], rz), a.z_weight[i]));
    };
    for (int64_t i = threadIdx.x; i < a.width; i += 256) w = __fmaf_rn(joined(i), joined(i), w);
    const float r = inverse_rms(w, a, warp[2]);
    for (int64_t i = threadIdx.x; i < a.width; i += 256)
        a.out[row + i] =
            __fmul_rn(__fadd_rn(a.x[row + i], __fmul_rn(__fmul_rn(joined(i), r), a.weight[i])), a.scale);
}

int cuda_norm_join(struct kn_backend *kb, float *out, const float *x, const float *y, const float *y_weight, const float *z,
                   const float *z_weight, const float *weight, int32_t n, int64_t width, float eps, float scale)
{
    struct cuda_backend *be = cuda_of(kb);
    if (n < 1 || width < 1)
        return cuda_fail(be, KN_EINVAL, "norm_join: %d rows of width %lld", n, (long long)width);
    const struct join a = {out, x, y, y_weight, z, z_weight, weight, width, eps, scale};
    return cuda_check(be, "norm_join",
                      cuda_launch(be, norm_join_rows, dim3((unsigned)n), dim3(256), 0, a));
}

static __global__ void __launch_bounds__(256)
    gate_rows(float *x, const float *g, int64_t n, int64_t width, int64_t g_width)
{
    cuda_grid_start();
    for (int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x; i < n * width; i += (int64_t)gridDim.x * 256)
        x[i] = __fmul_rn(x[i], dev_sigmoid(g[g_width == 1 ? i / width : i]));
}

int cuda_gate(struct kn_backend *kb, float *x, const float *g, int32_t n, int64_t width, int64_t g_width)
{
    struct cuda_backend *be = cuda_of(kb);
    if (n < 1 || width < 1 || (g_width != width && g_width != 1))
        return cuda_fail(be, KN_EINVAL, "gate: %d rows of width %lld with %lld gates (expected as many, or 1)", n,
                         (long long)width, (long long)g_width);
    int64_t blocks = ((int64_t)n * width + 255) / 256;
    dim3 grid((unsigned)(blocks < 8 * be->sm_count ? blocks : 8 * be->sm_count));
    return cuda_check(be, "gate", cuda_launch(be, gate_rows, grid, dim3(256), 0, x, g, (int64_t)n, width, g_width));
}

static __global__ void __launch_bounds__(256)
    tap_rows(float *dst, int64_t stride, int64_t offset, const float *x, int64_t n, int64_t width)
{
    cuda_grid_start();
    for (int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x; i < n * width; i += (int64_t)gridDim.x * 256)
        dst[i / width * stride + offset + i % width] = x[i];
}

int cuda_tap(struct kn_backend *kb, float *dst, int64_t stride, int64_t offset, const float *x, int32_t n,
             int64_t width)
{
    struct cuda_backend *be = cuda_of(kb);
    if (offset < 0 || width < 0 || offset + width > stride)
        return cuda_fail(be, KN_EINVAL, "tap: %lld values at %lld of a row of %lld", (long long)width,
                         (long long)offset, (long long)stride);
    if (!n || !width) return 0;
    int64_t blocks = (n * width + 255) / 256;
    dim3 grid((unsigned)(blocks < 4 * be->sm_count ? blocks : 4 * be->sm_count));
    return cuda_check(
        be, "tap", cuda_launch(be, tap_rows, grid, dim3(256), 0, dst, stride, offset, x, (int64_t)n, width));
}

static __global__ void __launch_bounds__(256) softcap_values(float *x, int64_t count, float cap)
{
    cuda_grid_start();
    for (int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x; i < count; i += (int64_t)gridDim.x * 256)
        x[i] = __fmul_rn(cap, dev_tanh(__fdiv_rn(x[i], cap)));
}

int cuda_softcap(struct kn_backend *kb, float *x, int64_t count, float cap)
{
    struct cuda_backend *be = cuda_of(kb);
    if (!(cap > 0.0f)) return cuda_fail(be, KN_EINVAL, "softcap: %g (expected more than 0)", (double)cap);
    if (count < 1) return 0;
    int64_t blocks = (count + 255) / 256;
    dim3 grid((unsigned)(blocks < 8 * be->sm_count ? blocks : 8 * be->sm_count));
    return cuda_check(be, "softcap", cuda_launch(be, softcap_values, grid, dim3(256), 0, x, count, cap));
}

/* *first counts down from n: n - (the first bad row), kept as the largest, so that 0 means none. */
static __global__ void __launch_bounds__(256)
    find_bad_rows(const float *x, int32_t n, int64_t width, unsigned *first)
{
    cuda_grid_start();
    x += blockIdx.x * width;
    bool bad = false;
    for (int64_t i = threadIdx.x; i < width; i += 256) bad |= !isfinite(x[i]);
    if (__syncthreads_or(bad) && threadIdx.x == 0) atomicMax(first, (unsigned)n - blockIdx.x);
}

int cuda_find_bad(struct kn_backend *kb, const float *x, int32_t n, int64_t width, int32_t *bad)
{
    struct cuda_backend *be = cuda_of(kb);
    unsigned first = 0;
    *bad = -1;
    if (n < 1 || width < 1) return 0;
    int rc =
        cuda_check(be, "find_bad",
                   cuda_launch(be, find_bad_rows, dim3((unsigned)n), dim3(256), 0, x, n, width, be->count));
    if (rc == 0) rc = be->head.op->download(kb, &first, be->count, sizeof first);
    if (rc == 0) rc = cuda_check(be, "find_bad", cudaMemsetAsync(be->count, 0, sizeof first, be->stream));
    if (rc == 0 && first) *bad = n - (int32_t)first;
    return rc;
}
