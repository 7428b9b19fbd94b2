/* weights.cu - what rows of queries attend to (op->attention_weights): scores, softmax, and what is made of
 * them, a launch each. A prompt is scored once, by a few rows: keys are read once a call, and products are
 * made lane by lane. Sums have a fixed shape; they are not the CPU's, which are in double. */
#include "../core/math.cuh"
#include "../core/ops.cuh"
#include "kv.cuh"

enum {
    KEYS = 64,
    THREADS = 256,
    WARPS = THREADS / 32,
    LANE = 16
}; /* LANE: numbers of a head a lane, at most */

/* A warp a key of a KV head, and all queries of it in turn. */
template <class NUMBER>
static __global__ void __launch_bounds__(THREADS)
    score_keys(const __grid_constant__ struct kn_attention_weights a, const void *keys, kv_where where,
               int32_t n_kv, int32_t d)
{
    cuda_grid_start();
    const int32_t head = (int32_t)blockIdx.y, rep = a.n_head / n_kv, lane = (int32_t)threadIdx.x % 32;
    const int32_t end = min(((int32_t)blockIdx.x + 1) * KEYS, a.n_keys);
    for (int32_t j = (int32_t)blockIdx.x * KEYS + (int32_t)threadIdx.x / 32; j < end; j += WARPS) {
        float k[LANE];
        const int64_t at = ((int64_t)KV_SLOT(where, j) * n_kv + head) * d;
#pragma unroll
        for (int i = 0; i < LANE; i++)
            k[i] = i * 32 + lane < d ? kv_get<NUMBER>(keys, at + i * 32 + lane) : 0.0f;
        for (int32_t r = 0; r < a.n; r++)
            for (int32_t h = head * rep; h < (head + 1) * rep; h++) {
                const float *q = a.q + ((int64_t)r * a.n_head + h) * d;
                float s = 0;
#pragma unroll
                for (int i = 0; i < LANE; i++)
                    if (i * 32 + lane < d) s = __fmaf_rn(q[i * 32 + lane], k[i], s);
#pragma unroll
                for (int o = 16; o; o /= 2) s += __shfl_xor_sync(0xffffffffu, s, o);
                if (lane == 0) a.scratch[((int64_t)r * a.n_head + h) * a.n_keys + j] = __fmul_rn(s, a.scale);
            }
    }
}

/* The same of all threads, by a tree of fixed shape. */
template <class T, class F> static __device__ T all_threads(T x, T *shared, F f)
{
    __syncthreads();
    shared[threadIdx.x] = x;
    for (int n = THREADS / 2; n; n /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < n) shared[threadIdx.x] = f(shared[threadIdx.x], shared[threadIdx.x + n]);
    }
    __syncthreads();
    return shared[0];
}

/* A block a query. */
static __global__ void __launch_bounds__(THREADS)
    weigh_queries(const __grid_constant__ struct kn_attention_weights a)
{
    __shared__ double sums[THREADS];
    __shared__ float tops[THREADS];
    cuda_grid_start();
    float *s = a.scratch + (int64_t)blockIdx.x * a.n_keys, most = -INFINITY;
    const int32_t pos = a.pos[(int32_t)blockIdx.x / a.n_head], n = pos < a.n_keys ? pos + 1 : a.n_keys;
    double sum = 0;
    for (int32_t j = (int32_t)threadIdx.x; j < n; j += THREADS) most = fmaxf(most, s[j]);
    most = all_threads(most, tops, [](float x, float y) { return fmaxf(x, y); });
    for (int32_t j = (int32_t)threadIdx.x; j < n; j += THREADS) {
        s[j] = dev_exp(__fsub_rn(s[j], most));
        sum += (double)s[j];
    }
    sum = all_threads(sum, sums, [](double x, double y) { return x + y; });
    for (int32_t j = (int32_t)threadIdx.x; j < a.n_keys; j += THREADS)
        s[j] = j < n ? (float)((double)s[j] / sum) : 0.0f;
}

/* A thread a key of a row. */
static __global__ void __launch_bounds__(THREADS)
    join_heads(const __grid_constant__ struct kn_attention_weights a)
{
    cuda_grid_start();
    const int32_t j = (int32_t)blockIdx.x * THREADS + (int32_t)threadIdx.x, r = (int32_t)blockIdx.y;
    if (j >= a.n_keys) return;
    const int32_t lo = max(j - a.pool / 2, 0), hi = min(j + a.pool / 2, a.n_keys - 1);
    float out = a.out[(int64_t)r * a.n_keys + j];
    for (int32_t h = 0; h < a.n_head; h++) {
        const float *p = a.scratch + ((int64_t)r * a.n_head + h) * a.n_keys;
        float m = 0;
        for (int32_t i = lo; i <= hi; i++) m = __fadd_rn(m, p[i]);
        out = fmaxf(out, __fdiv_rn(m, (float)a.pool));
    }
    a.out[(int64_t)r * a.n_keys + j] = out;
}

int cuda_attention_weights(struct kn_backend *kb, const struct kn_attention_weights *a)
{
    struct cuda_backend *be = cuda_of(kb);
    const struct kn_kv *kv = a->kv;
    int rc = cuda_check_kv(be, "attention_weights", kv);
    if (rc == 0) rc = cuda_flush(be);
    if (rc) return rc;
    if (kn_kv_coded(kv->type.k) || a->n_head % kv->n_head_kv || kv->head_dim > LANE * 32)
        return cuda_fail(be, KN_ETYPE, "attention_weights: keys of type %s, %d query and %d key heads of %d",
                         kn_kv_name(kv->type.k), a->n_head, kv->n_head_kv, kv->head_dim);
    if (a->n < 1 || a->n > 65535 || a->n_keys < 1 || a->pool < 1 || a->pool % 2 == 0 ||
        a->n_keys > kn_kv_positions(kv))
        return cuda_fail(be, KN_EINVAL,
                         "attention_weights: %d rows, pool of %d (expected an odd one), %d keys", a->n,
                         a->pool, a->n_keys);
    const dim3 keys((unsigned)((a->n_keys + KEYS - 1) / KEYS), (unsigned)kv->n_head_kv),
        queries((unsigned)(a->n * a->n_head)),
        rows((unsigned)((a->n_keys + THREADS - 1) / THREADS), (unsigned)a->n);
    cudaError_t err = kv_of_types(kv->type, [&](auto number, auto) {
        using NUMBER = decltype(number);
        return cuda_launch(be, score_keys<NUMBER>, keys, dim3(THREADS), 0, *a, (const void *)kv->k,
                           kv_where_of(kv), kv->n_head_kv, kv->head_dim);
    });
    if (err == cudaSuccess) err = cuda_launch(be, weigh_queries, queries, dim3(THREADS), 0, *a);
    if (err == cudaSuccess) err = cuda_launch(be, join_heads, rows, dim3(THREADS), 0, *a);
    return cuda_check(be, "attention_weights", err);
}
