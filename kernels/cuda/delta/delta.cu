/* delta.cu - a gated delta net layer, token by token: convolution, norms, state and log.
 *
 * Two kernels. delta_state: a block has 32 rows of one value head's state [d_v, d_k] in registers, 8 lanes a
 * row, and takes them through the tokens of the call: first those pending in the log, then its own. What all
 * rows share (q and k after convolution and norm, the gates) it computes for itself, a chunk of tokens at a
 * time in shared memory; within a chunk the warps do not meet. The state is read once and written at most
 * once: 64 KB a head, 2 to 3 MB a layer, is the bound for one token; for 16 the chain of their steps is.
 * delta_finish: the norm and gate of the outputs, the convolution's state and the log, which delta_state's
 * blocks read.
 *
 * A token's numbers do not depend on the chunk or call that it is in; the state passes through memory
 * exactly. So any cutting of tokens into calls gives the same bits. The sums over d_k are 8 lanes' chains and
 * a tree: other bits than the CPU's. Keys of any length are filled up with zeros to the next that there is
 * code for, which changes no sum. More than KN_DELTA_LOG final rows are a prompt's: delta/many.cu. */
#include "rows.cuh"

template <int D, int CHUNK, int TAPS>
static __global__ void __launch_bounds__(THREADS) delta_state(const struct layer l)
{
    __shared__ __align__(16) struct shared<D, CHUNK> m;
    const struct kn_delta &a = l.a;
    const int lane = threadIdx.x % LANES, row = threadIdx.x / LANES, row0 = (int)blockIdx.x * ROWS;
    const bool mine = row0 + row < a.d_v;
    float *state = l.s.s + ((int64_t)blockIdx.y * a.d_v + row0 + row) * a.d_k;
    __align__(16) float s[D / LANES];
    cuda_grid_start();
    const int32_t pending = pending_of(l), all = pending + a.n;
    if (!all) return;
#pragma unroll
    for (int i = 0; i < D / LANES; i++) s[i] = 0.0f;
    if (mine) move_state<D, false>(s, state, lane, a.d_k);
    for (int32_t t0 = 0; t0 < all; t0 += CHUNK) {
        const int32_t n = min(CHUNK, all - t0);
        __syncthreads();
        convolve<D, CHUNK, TAPS>(l, m, t0, n, pending, row0);
        __syncthreads();
        norms<D>(l, m, n);
        gates(l, m, t0, n, pending);
        __syncthreads();
        for (int t = 0; t < n; t++) {
            const int32_t r = t0 + t - pending;
            if (r == 0 && pending && !a.commit && mine) move_state<D, true>(s, state, lane, a.d_k);
            const float o = step<D>(s, m, t, row, lane, r >= 0);
            if (r >= 0 && mine && lane == 0)
                a.out[((int64_t)r * a.n_v + blockIdx.y) * a.d_v + row0 + row] = o;
        }
    }
    if ((final_of(l, pending) || !a.n) && mine) move_state<D, true>(s, state, lane, a.d_k);
}

/* Paths of a tree, a block's z each, from the state that stands; nothing is pending. What paths share each of
 * them writes, the same bits. */
template <int D, int CHUNK, int TAPS>
static __global__ void __launch_bounds__(THREADS) delta_paths(const struct layer l)
{
    __shared__ __align__(16) struct shared<D, CHUNK> m;
    const struct kn_delta &a = l.a;
    const int lane = threadIdx.x % LANES, row = threadIdx.x / LANES, row0 = (int)blockIdx.x * ROWS;
    const bool mine = row0 + row < a.d_v;
    float *state = l.s.s + ((int64_t)blockIdx.y * a.d_v + row0 + row) * a.d_k;
    __align__(16) float s[D / LANES];
    cuda_grid_start();
    if ((int32_t)blockIdx.z >= a.tree->n_leaves) return;
    const int32_t leaf = a.tree->leaf[blockIdx.z], all = a.tree->pos[leaf] - a.tree->pos[0] + 1;
    const uint8_t *path = a.tree->path[leaf];
#pragma unroll
    for (int i = 0; i < D / LANES; i++) s[i] = 0.0f;
    if (mine) move_state<D, false>(s, state, lane, a.d_k);
    for (int32_t t0 = 0; t0 < all; t0 += CHUNK) {
        const int32_t n = min(CHUNK, all - t0);
        __syncthreads();
        convolve<D, CHUNK, TAPS, true>(l, m, t0, n, 0, row0, path);
        __syncthreads();
        norms<D>(l, m, n);
        gates<true>(l, m, t0, n, 0, path);
        __syncthreads();
        for (int t = 0; t < n; t++) {
            const float o = step<D>(s, m, t, row, lane, true);
            if (mine && lane == 0)
                a.out[((int64_t)path[t0 + t] * a.n_v + blockIdx.y) * a.d_v + row0 + row] = o;
        }
    }
}

/* A thread has one column of the log, so that it reads what the convolution keeps of it before it writes. */
static __device__ void keep_column(const struct layer &l, int64_t c)
{
    const struct kn_delta &a = l.a;
    const int32_t pending = pending_of(l), at = logged_at(l, pending);
    const bool final = final_of(l, pending);
    const int32_t done = final ? pending + a.n : a.commit ? 0 : pending;
    const int64_t stride = l.width + 2 * a.n_v;
    if (c >= stride) return;
    if (c < l.width && done) {
        float x[KN_DELTA_TAPS - 1];
#pragma unroll
        for (int j = 0; j < KN_DELTA_TAPS - 1; j++)
            if (j < a.n_conv - 1) x[j] = input(l, done - (a.n_conv - 1) + j, pending)[c];
#pragma unroll
        for (int j = 0; j < KN_DELTA_TAPS - 1; j++)
            if (j < a.n_conv - 1) l.s.conv[j * l.width + c] = x[j];
    }
    if (final) return;
    const int64_t g = c - l.width;
    const float *from = g < 0 ? a.qkv + c : g < a.n_v ? a.alpha + g : a.beta + g - a.n_v;
    const int64_t step = g < 0 ? l.width : a.n_v;
    for (int32_t i = 0; i < a.n; i++) l.s.log[(at + i) * stride + c] = from[i * step];
}

/* A warp: one head of one row. */
static __device__ void finish_head(const struct layer &l, int64_t at)
{
    const struct kn_delta &a = l.a;
    const int lane = threadIdx.x % 32;
    float *o = a.out + at * a.d_v, sum = 0.0f;
    const float *z = a.z + at * a.d_v;
    for (int i = lane; i < a.d_v; i += 32) sum = __fmaf_rn(o[i], o[i], sum);
    const float r = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(warp_sum(sum), (float)a.d_v), a.eps)));
    for (int i = lane; i < a.d_v; i += 32)
        o[i] = __fmul_rn(__fmul_rn(__fmul_rn(o[i], r), a.norm[i]), silu(z[i]));
}

/* The first blocks have the columns, the others heads [at, end). */
static __global__ void __launch_bounds__(THREADS)
    delta_finish(const struct layer l, int32_t columns, int64_t at, int64_t end)
{
    cuda_grid_start();
    if ((int32_t)blockIdx.x < columns) {
        keep_column(l, (int64_t)blockIdx.x * THREADS + threadIdx.x);
    } else {
        at += (int64_t)(blockIdx.x - columns) * (THREADS / 32) + threadIdx.x / 32;
        if (at < end) finish_head(l, at);
    }
}

cudaError_t cuda_delta_finish(struct cuda_backend *be, const struct layer *l, int32_t from, int32_t n,
                              bool early)
{
    const int64_t all = l->width + 2 * l->a.n_v, heads = (int64_t)n * l->a.n_v, at = (int64_t)from * l->a.n_v,
                  columns = from + n == l->a.n ? (all + THREADS - 1) / THREADS : 0,
                  blocks = columns + (heads + THREADS / 32 - 1) / (THREADS / 32);
    if (!early) {
        be->launches++;
        delta_finish<<<(unsigned)blocks, THREADS, 0, be->stream>>>(*l, (int32_t)columns, at, at + heads);
        return cudaGetLastError();
    }
    return cuda_launch(be, delta_finish, dim3((unsigned)blocks), dim3(THREADS), 0, *l, (int32_t)columns, at,
                       at + heads);
}

int cuda_delta_check(struct cuda_backend *be, const struct kn_delta *a)
{
    if (a->n_k < 1 || a->n_v < 1 || a->n_v % a->n_k || a->n_v > 65535)
        return cuda_fail(be, KN_ETYPE, "delta: %d value heads over %d key heads", a->n_v, a->n_k);
    if (a->d_k < 1 || a->d_v < 1 || a->d_k > KN_DELTA_HEAD || a->d_v > KN_DELTA_HEAD)
        return cuda_fail(be, KN_ETYPE, "delta: heads of %d and %d (expected 1 to %d)", a->d_k, a->d_v,
                         KN_DELTA_HEAD);
    if (a->n_conv < 1 || a->n_conv > KN_DELTA_TAPS)
        return cuda_fail(be, KN_ETYPE, "delta: a convolution of %d (expected 1 to %d)", a->n_conv,
                         KN_DELTA_TAPS);
    if (a->n < 0 || (!a->commit && a->n > KN_DELTA_LOG))
        return cuda_fail(be, KN_EINVAL, "delta: %d rows (expected at most %d that may still be rejected)",
                         a->n, KN_DELTA_LOG);
    if (a->every && (a->n != 1 || !a->commit || a->every < 2 || a->every > KN_DELTA_EVERY))
        return cuda_fail(be, KN_EINVAL, "delta: a state every %d rows, of %d (expected 2 to %d, of one)",
                         a->every, a->n, KN_DELTA_EVERY);
    if (a->tree && (a->commit || a->n < 1))
        return cuda_fail(be, KN_EINVAL, "delta: %d rows of a tree that are final", a->n);
    if (!a->state || !a->pending)
        return cuda_fail(be, KN_EINVAL, "delta: no state, or no number of pending rows");
    return 0;
}

/* All rows of the layer, and those pending before them. */
static int run_rows(struct cuda_backend *be, const struct layer *l)
{
    typedef void (*kernel)(const struct layer);
    static const kernel kernels[4][2] = {{delta_state<32, 32, 4>, delta_state<32, 32, KN_DELTA_TAPS>},
                                         {delta_state<64, 32, 4>, delta_state<64, 32, KN_DELTA_TAPS>},
                                         {delta_state<128, 32, 4>, delta_state<128, 32, KN_DELTA_TAPS>},
                                         {delta_state<256, 16, 4>, delta_state<256, 16, KN_DELTA_TAPS>}};
    const int d_k = l->a.d_k, size = (d_k > 32) + (d_k > 64) + (d_k > 128);
    const dim3 grid((unsigned)((l->a.d_v + ROWS - 1) / ROWS), (unsigned)l->a.n_v);
    cuda_count(be, CUDA_DELTA_ROWS);
    const int rc =
        cuda_check(be, "delta", cuda_launch(be, kernels[size][l->a.n_conv > 4], grid, dim3(THREADS), 0, *l));
    return rc ? rc : cuda_check(be, "delta", cuda_delta_finish(be, l, 0, l->a.n, true));
}

/* A tree: what is pending goes into the state first, with the code that it was verified by; then the paths.
 */
static int run_paths(struct cuda_backend *be, struct layer *l)
{
    typedef void (*kernel)(const struct layer);
    static const kernel kernels[4][2] = {{delta_paths<32, 32, 4>, delta_paths<32, 32, KN_DELTA_TAPS>},
                                         {delta_paths<64, 32, 4>, delta_paths<64, 32, KN_DELTA_TAPS>},
                                         {delta_paths<128, 32, 4>, delta_paths<128, 32, KN_DELTA_TAPS>},
                                         {delta_paths<256, 16, 4>, delta_paths<256, 16, KN_DELTA_TAPS>}};
    const int d_k = l->a.d_k, size = (d_k > 32) + (d_k > 64) + (d_k > 128), n = l->a.n;
    const dim3 grid((unsigned)((l->a.d_v + ROWS - 1) / ROWS), (unsigned)l->a.n_v,
                    (unsigned)(n > 1 ? n - 1 : 1));
    l->a.n = 0;
    int rc = run_rows(be, l);
    l->a.n = n;
    l->settled = true;
    cuda_count(be, CUDA_DELTA_PATHS);
    if (rc == 0)
        rc = cuda_check(be, "delta",
                        cuda_launch(be, kernels[size][l->a.n_conv > 4], grid, dim3(THREADS), 0, *l));
    return rc ? rc : cuda_check(be, "delta", cuda_delta_finish(be, l, 0, n, true));
}

int cuda_delta(struct kn_backend *kb, const struct kn_delta *a)
{
    struct cuda_backend *be = cuda_of(kb);
    int rc = cuda_delta_check(be, a);
    if (rc == 0) rc = cuda_flush(be);
    if (rc) return rc;
    struct layer l = {*a, *a->state, 2 * (int64_t)a->n_k * a->d_k + (int64_t)a->n_v * a->d_v, false};
    const struct cuda_device dev = cuda_device_of(be);
    if (a->tree) return run_paths(be, &l);
    if (delta_form_of(&dev, a, 0) != DELTA_BLOCKS) return run_rows(be, &l);
    l.a.n = 0; /* what is pending goes through the code that it was verified by */
    rc = run_rows(be, &l);
    l.a.n = a->n;
    l.settled = true;
    return rc ? rc : cuda_delta_many(be, &l);
}
