/* rows.cu - norms, gates, tap, soft cap and the search for bad numbers: a pass over rows, bound by the launch
 * at small n. */
#include "../chain/chain.cuh"
#include "../core/math.cuh"
#include "../product/mm.cuh"
#include "../core/ops.cuh"

#define NORM_THREADS 512
#define NORM_KEPT 3 /* groups of four values that a thread keeps: rows of 6,144 */

/* The sum over a block, in every thread: a tree in the warp, then the warps in order. */
DEV float block_sum(float x, float *warp)
{
    for (int i = 16; i; i >>= 1) x = __fadd_rn(x, __shfl_xor_sync(~0u, x, i));
    if (threadIdx.x % 32 == 0) warp[threadIdx.x / 32] = x;
    __syncthreads();
    float sum = warp[0];
    for (int i = 1; i < NORM_THREADS / 32; i++) sum = __fadd_rn(sum, warp[i]);
    return sum;
}
/* Values 4 i .. 4 i + 3 of a row; of a row whose length is no multiple of four, one at a time, and zeros. */
DEV float4 four(const float *p, int i, int width, bool whole)
{
    if (whole) return *(const float4 *)(p + 4 * i);
    float4 v = make_float4(p[4 * i], 0.0f, 0.0f, 0.0f);
    if (4 * i + 1 < width) v.y = p[4 * i + 1];
    if (4 * i + 2 < width) v.z = p[4 * i + 2];
    if (4 * i + 3 < width) v.w = p[4 * i + 3];
    return v;
}
DEV void put_four(float *p, int i, int width, bool whole, float4 v)
{
    if (whole) {
        *(float4 *)(p + 4 * i) = v;
        return;
    }
    p[4 * i] = v.x;
    if (4 * i + 1 < width) p[4 * i + 1] = v.y;
    if (4 * i + 2 < width) p[4 * i + 2] = v.z;
    if (4 * i + 3 < width) p[4 * i + 3] = v.w;
}
DEV float square_four(float sum, float4 v)
{
    return __fmaf_rn(v.w, v.w, __fmaf_rn(v.z, v.z, __fmaf_rn(v.y, v.y, __fmaf_rn(v.x, v.x, sum))));
}
/* (x + y r w) scale, or y r w */
template <bool ADD> DEV float normed(float x, float y, float r, float w, float scale)
{
    const float u = __fmul_rn(__fmul_rn(y, r), w);
    return ADD ? __fmul_rn(__fadd_rn(x, u), scale) : u;
}
template <bool ADD> DEV float4 normed_four(float4 x, float4 y, float r, float4 w, float scale)
{
    return make_float4(normed<ADD>(x.x, y.x, r, w.x, scale), normed<ADD>(x.y, y.y, r, w.y, scale),
                       normed<ADD>(x.z, y.z, r, w.z, scale), normed<ADD>(x.w, y.w, r, w.w, scale));
}

/* One block a row: out = y / rms(y) * weight, or (x + that) * scale. Thread t has the groups t, t + 512, ...
 * of four values; the first of them stay in registers, all loads in flight at once: between two products the
 * latency counts. */
template <bool ADD>
static __global__ void __launch_bounds__(NORM_THREADS, 2)
    norm_rows(float *out, const float *x, const float *y, const float *weight, int width, float eps,
              float scale, bool whole)
{
    __shared__ float warp[NORM_THREADS / 32];
    const int groups = (width + 3) / 4;
    const int64_t row = (int64_t)blockIdx.x * width;
    const float4 one = make_float4(1.0f, 1.0f, 1.0f, 1.0f);
    float4 u[NORM_KEPT], v[NORM_KEPT], w[NORM_KEPT];
    cuda_grid_early();
#pragma unroll
    for (int k = 0; k < NORM_KEPT; k++) {
        const int i = threadIdx.x + k * NORM_THREADS;
        w[k] = weight && i < groups ? four(weight, i, width, whole) : one;
    }
    cuda_grid_wait();
    x += row, y += row, out += row;
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < NORM_KEPT; k++) {
        const int i = threadIdx.x + k * NORM_THREADS;
        v[k] = i < groups ? four(y, i, width, whole) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (ADD && i < groups) u[k] = four(x, i, width, whole);
    }
#pragma unroll
    for (int k = 0; k < NORM_KEPT; k++) sum = square_four(sum, v[k]);
    for (int i = threadIdx.x + NORM_KEPT * NORM_THREADS; i < groups; i += NORM_THREADS)
        sum = square_four(sum, four(y, i, width, whole));
    sum = block_sum(sum, warp);
    const float r = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(sum, (float)width), eps)));
#pragma unroll
    for (int k = 0; k < NORM_KEPT; k++) {
        const int i = threadIdx.x + k * NORM_THREADS;
        if (i < groups)
            put_four(out, i, width, whole, normed_four<ADD>(ADD ? u[k] : v[k], v[k], r, w[k], scale));
    }
    for (int i = threadIdx.x + NORM_KEPT * NORM_THREADS; i < groups; i += NORM_THREADS)
        put_four(out, i, width, whole,
                 normed_four<ADD>(four(ADD ? x : y, i, width, whole), four(y, i, width, whole), r,
                                  weight ? four(weight, i, width, whole) : one, scale));
}

/* Rows that begin at multiples of 16 bytes and are whole groups of four. */
static bool is_whole(const float *out, const float *x, const float *y, const float *weight, int64_t width)
{
    return width % 4 == 0 && (((uintptr_t)out | (uintptr_t)x | (uintptr_t)y | (uintptr_t)weight) & 15) == 0;
}

int cuda_rms_norm(struct kn_backend *kb, float *out, const float *x, const float *weight, int32_t n,
                  int64_t width, float eps)
{
    struct cuda_backend *be = cuda_of(kb);
    if (n < 1 || width < 1 || width > INT32_MAX)
        return cuda_fail(be, KN_EINVAL, "rms_norm: %d rows of %lld", n, (long long)width);
    return cuda_check(be, "rms_norm",
                      cuda_launch(be, norm_rows<false>, dim3((unsigned)n), dim3(NORM_THREADS), 0, out, x, x,
                                  weight, (int)width, eps, 1.0f, is_whole(out, x, x, weight, width)));
}

int cuda_norm_add(struct kn_backend *kb, float *out, const float *x, const float *y, const float *weight,
                  int32_t n, int64_t width, float eps, float scale)
{
    struct cuda_backend *be = cuda_of(kb);
    if (n < 1 || width < 1 || width > INT32_MAX)
        return cuda_fail(be, KN_EINVAL, "norm_add: %d rows of width %lld", n, (long long)width);
    const struct mm_add add = {out, x, y, weight, eps, scale};
    bool done = false;
    if (n == 1 && be->chain_steps) {
        const int kept = chain_norm_add(be, &add, width);
        if (kept) return kept < 0 ? kept : 0;
    }
    const int rc = is_whole(out, x, y, weight, width) ? mm_norm_add(be, &add, n, width, &done) : 0;
    be->head.next_w = nullptr;
    if (rc || done) return rc;
    return cuda_check(be, "norm_add",
                      cuda_launch(be, norm_rows<true>, dim3((unsigned)n), dim3(NORM_THREADS), 0, out, x, y,
                                  weight, (int)width, eps, scale, is_whole(out, x, y, weight, width)));
}

struct join {
    float *out;
    const float *x, *y, *y_weight, *z, *z_weight, *weight;
    int64_t width;
    float eps, scale;
};
/* 1 / rms of what the block's threads have squared. */
DEV float inverse_rms(float sum, const struct join &a, float *warp)
{
    sum = block_sum(sum, warp);
    return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(sum, (float)a.width), a.eps)));
}

/* As norm_rows has it, group by group: the bits of three operations. */
static __global__ void __launch_bounds__(NORM_THREADS)
    norm_join_rows(const __grid_constant__ struct join a, bool whole)
{
    __shared__ float warp[3][NORM_THREADS / 32];
    const int width = (int)a.width, groups = (width + 3) / 4;
    const int64_t row = (int64_t)blockIdx.x * a.width;
    float y = 0.0f, z = 0.0f, w = 0.0f;
    cuda_grid_start();
    for (int i = threadIdx.x; i < groups; i += NORM_THREADS) {
        y = square_four(y, four(a.y + row, i, width, whole));
        z = square_four(z, four(a.z + row, i, width, whole));
    }
    const float ry = inverse_rms(y, a, warp[0]), rz = inverse_rms(z, a, warp[1]);
    const auto joined = [&](int i) {
        const float4 u = four(a.y + row, i, width, whole), v = four(a.z + row, i, width, whole);
        const float4 none = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        return normed_four<true>(normed_four<false>(none, u, ry, four(a.y_weight, i, width, whole), 1.0f), v,
                                 rz, four(a.z_weight, i, width, whole), 1.0f);
    };
    for (int i = threadIdx.x; i < groups; i += NORM_THREADS) w = square_four(w, joined(i));
    const float r = inverse_rms(w, a, warp[2]);
    for (int i = threadIdx.x; i < groups; i += NORM_THREADS)
        put_four(a.out + row, i, width, whole,
                 normed_four<true>(four(a.x + row, i, width, whole), joined(i), r,
                                   four(a.weight, i, width, whole), a.scale));
}

int cuda_norm_join(struct kn_backend *kb, float *out, const float *x, const float *y, const float *y_weight,
                   const float *z, const float *z_weight, const float *weight, int32_t n, int64_t width,
                   float eps, float scale)
{
    struct cuda_backend *be = cuda_of(kb);
    if (n < 1 || width < 1 || width > INT32_MAX)
        return cuda_fail(be, KN_EINVAL, "norm_join: %d rows of width %lld", n, (long long)width);
    const struct join a = {out, x, y, y_weight, z, z_weight, weight, width, eps, scale};
    return cuda_check(
        be, "norm_join",
        cuda_launch(be, norm_join_rows, dim3((unsigned)n), dim3(NORM_THREADS), 0, a,
                    is_whole(out, x, y, y_weight, width) && is_whole(out, z, z_weight, weight, width)));
}

/* A block a row and half, as norm_rows has it; the first one moves the positions too. */
static __global__ void __launch_bounds__(NORM_THREADS)
    norm_pair_rows(const __grid_constant__ struct kn_norm_pair a, bool whole)
{
    __shared__ float warp[NORM_THREADS / 32];
    const int width = (int)a.width, groups = (width + 3) / 4, row = (int)blockIdx.x;
    const bool second = blockIdx.y;
    cuda_grid_start();
    const float *x = a.x + (int64_t)row * width, *weight = second ? a.y_weight : a.x_weight;
    if (second && a.late)
        x = row ? a.y + (int64_t)(row - 1) * width
                : a.late + (int64_t)(max(a.pos[0] - 1, 0) % a.slots) * width;
    else if (second)
        x = a.y + (int64_t)row * width;
    if (a.before && row == 0 && !second)
        for (int i = threadIdx.x; i < a.n_before; i += NORM_THREADS) a.before[i] = max(a.pos[i] - 1, 0);
    float *out = a.out + (2 * (int64_t)row + second) * width;
    if (a.raw) {
        for (int i = threadIdx.x; i < width; i += NORM_THREADS) out[i] = x[i];
        return;
    }
    float sum = 0.0f;
    for (int i = threadIdx.x; i < groups; i += NORM_THREADS) sum = square_four(sum, four(x, i, width, whole));
    sum = block_sum(sum, warp);
    const float r = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(sum, (float)width), a.eps)));
    const float4 none = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int i = threadIdx.x; i < groups; i += NORM_THREADS)
        put_four(out, i, width, whole,
                 normed_four<false>(none, four(x, i, width, whole), r, four(weight, i, width, whole), 1.0f));
}

int cuda_norm_pair(struct kn_backend *kb, const struct kn_norm_pair *a)
{
    struct cuda_backend *be = cuda_of(kb);
    if (a->n < 1 || a->width < 1 || a->width > INT32_MAX || (a->late && a->slots < 1))
        return cuda_fail(be, KN_EINVAL, "norm_pair: %d rows of width %lld, %d slots", a->n,
                         (long long)a->width, a->slots);
    const bool whole = !a->raw && is_whole(a->out, a->x, a->x_weight, a->y_weight, a->width) &&
                       is_whole(a->out, a->late ? a->late : a->y, a->n > 1 || !a->late ? a->y : a->x, NULL,
                                a->width);
    const int rc = cuda_check(be, "norm_pair",
                              cuda_launch(be, norm_pair_rows, dim3((unsigned)a->n, 2), dim3(NORM_THREADS), 0,
                                          *a, whole));
    if (a->before) be->positions = be->launches;
    return rc;
}

#define CLUSTER_THREADS 1024

/* One block a row: which clusters are the best, by counting those before each; the smallest logit of their
 * ids; then all others'. The scores lie in shared memory, behind them a byte a cluster. */
static __global__ void __launch_bounds__(CLUSTER_THREADS) cluster_rows(const __grid_constant__ kn_clusters a)
{
    extern __shared__ float scores[];
    __shared__ float warp[CLUSTER_THREADS / 32];
    bool *best = (bool *)(scores + a.n_clusters);
    cuda_grid_start();
    float *logits = a.logits + (int64_t)blockIdx.x * a.n_vocab, least = INFINITY;
    for (int k = threadIdx.x; k < a.n_clusters; k += CLUSTER_THREADS)
        scores[k] = a.scores[(int64_t)blockIdx.x * a.n_clusters + k];
    __syncthreads();
    for (int k = threadIdx.x; k < a.n_clusters; k += CLUSTER_THREADS) {
        const float own = scores[k];
        int before = 0;
        for (int j = 0; j < a.n_clusters; j++) before += scores[j] > own || (scores[j] == own && j < k);
        best[k] = before < a.n_best;
    }
    __syncthreads();
    for (int v = threadIdx.x; v < a.n_vocab; v += CLUSTER_THREADS)
        if (best[a.of_id[v]] && logits[v] < least) least = logits[v];
    for (int i = 16; i; i >>= 1) least = fminf(least, __shfl_xor_sync(~0u, least, i));
    if (threadIdx.x % 32 == 0) warp[threadIdx.x / 32] = least;
    __syncthreads();
    for (int i = 0; i < CLUSTER_THREADS / 32; i++) least = fminf(least, warp[i]);
    for (int v = threadIdx.x; v < a.n_vocab; v += CLUSTER_THREADS)
        if (!best[a.of_id[v]]) logits[v] = __fadd_rn(least, -1.0f);
}

int cuda_clusters(struct kn_backend *kb, const struct kn_clusters *a)
{
    struct cuda_backend *be = cuda_of(kb);
    if (a->n < 1 || a->n_vocab < 1 || a->n_clusters < 1 || a->n_clusters > KN_CLUSTERS || a->n_best < 1 ||
        a->n_best > a->n_clusters)
        return cuda_fail(be, KN_EINVAL, "clusters: %d rows of %d ids, the best %d of %d clusters", a->n,
                         a->n_vocab, a->n_best, a->n_clusters);
    return cuda_check(be, "clusters",
                      cuda_launch(be, cluster_rows, dim3((unsigned)a->n), dim3(CLUSTER_THREADS),
                                  (size_t)a->n_clusters * 5, *a));
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
        return cuda_fail(be, KN_EINVAL,
                         "gate: %d rows of width %lld with %lld gates (expected as many, or 1)", n,
                         (long long)width, (long long)g_width);
    int64_t blocks = ((int64_t)n * width + 255) / 256;
    dim3 grid((unsigned)(blocks < 8 * be->sm_count ? blocks : 8 * be->sm_count));
    return cuda_check(be, "gate",
                      cuda_launch(be, gate_rows, grid, dim3(256), 0, x, g, (int64_t)n, width, g_width));
}

static __global__ void __launch_bounds__(256)
    tap_rows(float *dst, int64_t stride, int64_t offset, const float *x, int64_t n, int64_t width)
{
    cuda_grid_start();
    for (int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x; i < n * width; i += (int64_t)gridDim.x * 256)
        dst[i / width * stride + offset + i % width] = x[i];
}

static int launch_tap(struct cuda_backend *be, float *dst, int64_t stride, int64_t offset, const float *x,
                      int32_t n, int64_t width)
{
    int64_t blocks = (n * width + 255) / 256;
    dim3 grid((unsigned)(blocks < 4 * be->sm_count ? blocks : 4 * be->sm_count));
    return cuda_check(
        be, "tap", cuda_launch(be, tap_rows, grid, dim3(256), 0, dst, stride, offset, x, (int64_t)n, width));
}
int chain_tap_alone(struct cuda_backend *be, float *to, const float *x, int64_t width)
{
    return launch_tap(be, to, width, 0, x, 1, width);
}

/* Of one row: a store of whoever makes x, where that has not been launched. */
int cuda_tap(struct kn_backend *kb, float *dst, int64_t stride, int64_t offset, const float *x, int32_t n,
             int64_t width)
{
    struct cuda_backend *be = cuda_of(kb);
    if (offset < 0 || width < 0 || offset + width > stride)
        return cuda_fail(be, KN_EINVAL, "tap: %lld values at %lld of a row of %lld", (long long)width,
                         (long long)offset, (long long)stride);
    if (!n || !width) return 0;
    if (n == 1) {
        if (experts_tap(be, dst + offset, x, width)) return 0;
        const int kept = chain_tap(be, dst + offset, x, width);
        if (kept) return kept < 0 ? kept : 0;
    }
    return launch_tap(be, dst, stride, offset, x, n, width);
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
    if (rc == 0) rc = cuda_flush(be);
    if (rc == 0) rc = cuda_check(be, "find_bad", cudaMemsetAsync(be->count, 0, sizeof first, be->stream));
    if (rc == 0 && first) *bad = n - (int32_t)first;
    return rc;
}
