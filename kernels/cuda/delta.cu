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
 * a tree: other bits than the CPU's. Keys of any length are filled up with zeros to the next that there is code
 * for, which changes no sum. More than KN_DELTA_LOG final rows are a prompt's: delta_many.cu. */
#include "delta.cuh"

#define ROWS 32 /* of a head's state a block */
#define LANES 8 /* a row */
#define THREADS (ROWS * LANES)
#define STRIP 8 /* tokens that a thread convolves together */

template <int D, int CHUNK> struct shared {
    float q[CHUNK][D], k[CHUNK][D], v[CHUNK][ROWS];
    float decay[CHUNK], beta[CHUNK], kq[CHUNK];
};

/* Channels of the block for the tokens [t0, t0 + n): a thread has one channel of STRIP tokens. The oldest tap
 * first. */
template <int D, int CHUNK, int TAPS>
static __device__ void convolve(const struct layer &l, struct shared<D, CHUNK> &m, int32_t t0, int32_t n,
                                int32_t pending, int row0)
{
    const struct kn_delta &a = l.a;
    const int h = blockIdx.y, rows = min(ROWS, a.d_v - row0), strips = (n + STRIP - 1) / STRIP,
              taps = a.n_conv;
    for (int i = threadIdx.x; i < strips * (2 * D + ROWS); i += THREADS) {
        const int c = i % (2 * D + ROWS), from = i / (2 * D + ROWS) * STRIP;
        if (c >= 2 * D + rows) continue;
        const int64_t channel = c < D       ? (int64_t)(h % a.n_k) * a.d_k + c
                                : c < 2 * D ? (int64_t)(a.n_k + h % a.n_k) * a.d_k + c - D
                                            : 2 * (int64_t)a.n_k * a.d_k + (int64_t)h * a.d_v + row0 + c - 2 * D;
        if (c < 2 * D && c % D >= a.d_k) { /* beyond the head */
            for (int t = from; t < min(from + STRIP, n); t++) (c < D ? m.q : m.k)[t][c % D] = 0.0f;
            continue;
        }
        float w[TAPS], x[TAPS + STRIP - 1];
#pragma unroll
        for (int j = 0; j < TAPS; j++) w[j] = j < taps ? a.conv[channel * taps + j] : 0.0f;
#pragma unroll
        for (int j = 0; j < TAPS + STRIP - 1; j++)
            x[j] = j < taps - 1 + min(STRIP, n - from)
                       ? input(l, t0 + from + j - (taps - 1), pending)[channel]
                       : 0.0f;
#pragma unroll
        for (int t = 0; t < STRIP; t++) {
            if (from + t >= n) break;
            float s = __fmul_rn(w[0], x[t]);
#pragma unroll
            for (int j = 1; j < TAPS; j++)
                if (j < taps) s = __fmaf_rn(w[j], x[t + j], s);
            s = silu(s);
            if (c < D)
                m.q[from + t][c] = s;
            else if (c < 2 * D)
                m.k[from + t][c - D] = s;
            else
                m.v[from + t][c - 2 * D] = s;
        }
    }
}

/* Norms of q and k and their product, a warp a token; the gates, a thread a token. */
template <int D, int CHUNK>
static __device__ void prepare(const struct layer &l, struct shared<D, CHUNK> &m, int32_t t0, int32_t n,
                               int32_t pending)
{
    const struct kn_delta &a = l.a;
    const int lane = threadIdx.x % 32, h = blockIdx.y;
    const float scale = __fdiv_rn(1.0f, __fsqrt_rn((float)a.d_k));
    for (int t = threadIdx.x / 32; t < n; t += THREADS / 32) {
        float qq = 0.0f, kk = 0.0f, kq = 0.0f;
#pragma unroll
        for (int i = 0; i < D / 32; i++) {
            const float q = m.q[t][32 * i + lane], k = m.k[t][32 * i + lane];
            qq = __fmaf_rn(q, q, qq);
            kk = __fmaf_rn(k, k, kk);
        }
        const float rq = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(warp_sum(qq), 1e-6f))),
                    rk = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(warp_sum(kk), 1e-6f)));
#pragma unroll
        for (int i = 0; i < D / 32; i++) {
            const float q = __fmul_rn(__fmul_rn(m.q[t][32 * i + lane], rq), scale),
                        k = __fmul_rn(m.k[t][32 * i + lane], rk);
            m.q[t][32 * i + lane] = q;
            m.k[t][32 * i + lane] = k;
            kq = __fmaf_rn(k, q, kq);
        }
        kq = warp_sum(kq);
        if (lane == 0) m.kq[t] = kq;
    }
    for (int t = threadIdx.x; t < n; t += THREADS) {
        const int32_t row = t0 + t - pending;
        const float *logged = input(l, t0 + t, pending) + l.width;
        const float alpha = row < 0 ? logged[h] : a.alpha[(int64_t)row * a.n_v + h],
                    beta = row < 0 ? logged[a.n_v + h] : a.beta[(int64_t)row * a.n_v + h];
        m.decay[t] = dev_exp(__fmul_rn(a.a[h], dev_softplus(__fadd_rn(alpha, a.dt[h]))));
        m.beta[t] = dev_sigmoid(beta);
    }
}

/* A token: s is the thread's part of its row, elements 32 i + 4 lane .. + 3. Returns o = S q, in every lane
 * of the row. */
template <int D, int CHUNK>
static __device__ __forceinline__ float step(float *s, const struct shared<D, CHUNK> &m, int t, int row,
                                             int lane, bool output)
{
    const float decay = m.decay[t];
    __align__(16) float k[D / LANES];
    float sk[2] = {0.0f, 0.0f}, sq[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < D / 32; i++) *(float4 *)(k + 4 * i) = *(const float4 *)&m.k[t][32 * i + 4 * lane];
#pragma unroll
    for (int i = 0; i < D / LANES; i++) {
        s[i] = __fmul_rn(s[i], decay);
        sk[i & 1] = __fmaf_rn(s[i], k[i], sk[i & 1]);
    }
    if (output) {
#pragma unroll
        for (int i = 0; i < D / 32; i++) {
            const float4 q = *(const float4 *)&m.q[t][32 * i + 4 * lane];
            sq[0] = __fmaf_rn(s[4 * i], q.x, sq[0]);
            sq[1] = __fmaf_rn(s[4 * i + 1], q.y, sq[1]);
            sq[0] = __fmaf_rn(s[4 * i + 2], q.z, sq[0]);
            sq[1] = __fmaf_rn(s[4 * i + 3], q.w, sq[1]);
        }
    }
    float x = __fadd_rn(sk[0], sk[1]), y = __fadd_rn(sq[0], sq[1]);
#pragma unroll
    for (int i = LANES / 2; i; i >>= 1) {
        x = __fadd_rn(x, __shfl_xor_sync(~0u, x, i));
        y = __fadd_rn(y, __shfl_xor_sync(~0u, y, i));
    }
    const float e = __fmul_rn(m.beta[t], __fsub_rn(m.v[t][row], x));
#pragma unroll
    for (int i = 0; i < D / LANES; i++) s[i] = __fmaf_rn(e, k[i], s[i]);
    return __fmaf_rn(e, m.kq[t], y);
}

/* A row of the state [d_k], from or to memory. */
template <int D, bool STORE>
static __device__ __forceinline__ void move_state(float *s, float *state, int lane, int d_k)
{
#pragma unroll
    for (int i = 0; i < D / 32; i++) {
        const int c = 32 * i + 4 * lane;
        if (d_k == D) { /* rows are whole groups of 16 bytes */
            if (STORE)
                *(float4 *)(state + c) = *(float4 *)(s + 4 * i);
            else
                *(float4 *)(s + 4 * i) = *(float4 *)(state + c);
            continue;
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (c + j >= d_k) break;
            if (STORE)
                state[c + j] = s[4 * i + j];
            else
                s[4 * i + j] = state[c + j];
        }
    }
}

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
        prepare(l, m, t0, n, pending);
        __syncthreads();
        for (int t = 0; t < n; t++) {
            const int32_t r = t0 + t - pending;
            if (r == 0 && pending && !a.commit && mine) move_state<D, true>(s, state, lane, a.d_k);
            const float o = step(s, m, t, row, lane, r >= 0);
            if (r >= 0 && mine && lane == 0)
                a.out[((int64_t)r * a.n_v + blockIdx.y) * a.d_v + row0 + row] = o;
        }
    }
    if ((a.commit || !a.n) && mine) move_state<D, true>(s, state, lane, a.d_k);
}

/* A thread has one column of the log, so that it reads what the convolution keeps of it before it writes. */
static __device__ void keep_column(const struct layer &l, int64_t c)
{
    const struct kn_delta &a = l.a;
    const int32_t pending = pending_of(l), done = a.commit ? pending + a.n : pending;
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
    if (a.commit) return;
    const int64_t g = c - l.width;
    const float *from = g < 0 ? a.qkv + c : g < a.n_v ? a.alpha + g : a.beta + g - a.n_v;
    const int64_t step = g < 0 ? l.width : a.n_v;
    for (int32_t i = 0; i < a.n; i++) l.s.log[i * stride + c] = from[i * step];
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

cudaError_t cuda_delta_finish(struct cuda_backend *be, const struct layer *l, int32_t from, int32_t n)
{
    const int64_t all = l->width + 2 * l->a.n_v, heads = (int64_t)n * l->a.n_v, at = (int64_t)from * l->a.n_v,
                  columns = from + n == l->a.n ? (all + THREADS - 1) / THREADS : 0,
                  blocks = columns + (heads + THREADS / 32 - 1) / (THREADS / 32);
    return cuda_launch(be, delta_finish, dim3((unsigned)blocks), dim3(THREADS), 0, *l, (int32_t)columns, at,
                       at + heads);
}

static int check(struct cuda_backend *be, const struct kn_delta *a)
{
    if (a->n_k < 1 || a->n_v < 1 || a->n_v % a->n_k || a->n_v > 65535)
        return cuda_fail(be, KN_ETYPE, "delta: %d value heads over %d key heads", a->n_v, a->n_k);
    if (a->d_k < 1 || a->d_v < 1 || a->d_k > KN_DELTA_HEAD || a->d_v > KN_DELTA_HEAD)
        return cuda_fail(be, KN_ETYPE, "delta: heads of %d and %d (expected 1 to %d)", a->d_k, a->d_v,
                         KN_DELTA_HEAD);
    if (a->n_conv < 1 || a->n_conv > KN_DELTA_TAPS)
        return cuda_fail(be, KN_ETYPE, "delta: a convolution of %d (expected 1 to %d)", a->n_conv, KN_DELTA_TAPS);
    if (a->n < 0 || (!a->commit && a->n > KN_DELTA_LOG))
        return cuda_fail(be, KN_EINVAL, "delta: %d rows (expected at most %d that may still be rejected)",
                         a->n, KN_DELTA_LOG);
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
    const int rc = cuda_check(
        be, "delta", cuda_launch(be, kernels[size][l->a.n_conv > 4], grid, dim3(THREADS), 0, *l));
    return rc ? rc : cuda_check(be, "delta", cuda_delta_finish(be, l, 0, l->a.n));
}

int cuda_delta(struct kn_backend *kb, const struct kn_delta *a)
{
    struct cuda_backend *be = cuda_of(kb);
    int rc = check(be, a);
    if (rc) return rc;
    struct layer l = {*a, *a->state, 2 * (int64_t)a->n_k * a->d_k + (int64_t)a->n_v * a->d_v, false};
    if (a->n <= KN_DELTA_LOG || !cuda_delta_many_has(a)) return run_rows(be, &l);
    l.a.n = 0; /* what is pending goes through the code that it was verified by */
    rc = run_rows(be, &l);
    l.a.n = a->n;
    l.settled = true;
    return rc ? rc : cuda_delta_many(be, &l);
}
