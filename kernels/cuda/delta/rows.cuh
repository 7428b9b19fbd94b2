/* delta/rows.cuh - tokens of a gated delta net one after another, by blocks that have 32 rows of one value
 * head's state each: what delta.cu and delta/step.cu share. A block is (quarter x, head y) of the grid. */
#ifndef DFLASH_CUDA_DELTA_ROWS_CUH
#define DFLASH_CUDA_DELTA_ROWS_CUH

#include "delta.cuh"

#define ROWS 32 /* of a head's state a block */
#define LANES 8 /* a row */
#define THREADS (ROWS * LANES)
#define STRIP 8 /* tokens that a thread convolves together */

/* What a chunk of tokens is to all rows of a block: q, k, v after convolution and norm, the gates, k . q. */
template <int D, int CHUNK> struct shared {
    float q[CHUNK][D], k[CHUNK][D], v[CHUNK][ROWS];
    float decay[CHUNK], beta[CHUNK], kq[CHUNK];
};

/* The same where a call's row of token t is path[t], with nothing pending. */
DEV const float *input_on(const struct layer &l, const uint8_t *path, int32_t t)
{
    return t < 0 ? l.s.conv + (t + l.a.n_conv - 1) * l.width : l.a.qkv + path[t] * l.width;
}

/* Channels of the block for the tokens [t0, t0 + n): a thread has one channel of STRIP tokens. The oldest tap
 * first. PATH: tokens are those of a path, nothing is pending. */
template <int D, int CHUNK, int TAPS, bool PATH = false>
static __device__ void convolve(const struct layer &l, struct shared<D, CHUNK> &m, int32_t t0, int32_t n,
                                int32_t pending, int row0, const uint8_t *path = nullptr)
{
    const struct kn_delta &a = l.a;
    const int h = blockIdx.y, rows = min(ROWS, a.d_v - row0), strips = (n + STRIP - 1) / STRIP,
              taps = a.n_conv;
    for (int i = threadIdx.x; i < strips * (2 * D + ROWS); i += THREADS) {
        const int c = i % (2 * D + ROWS), from = i / (2 * D + ROWS) * STRIP;
        if (c >= 2 * D + rows) continue;
        const int64_t channel = c < D ? (int64_t)(h % a.n_k) * a.d_k + c
                                : c < 2 * D
                                    ? (int64_t)(a.n_k + h % a.n_k) * a.d_k + c - D
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
            x[j] = j >= taps - 1 + min(STRIP, n - from) ? 0.0f
                   : PATH ? input_on(l, path, t0 + from + j - (taps - 1))[channel]
                          : input(l, t0 + from + j - (taps - 1), pending)[channel];
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

/* Norms of q and k and their product: a warp a token, two at a time; the four roots are made by four lanes at
 * once. */
template <int D, class M> static __device__ void norms(const struct layer &l, M &m, int32_t n)
{
    const int lane = threadIdx.x % 32;
    const float scale = __fdiv_rn(1.0f, __fsqrt_rn((float)l.a.d_k));
#pragma unroll 1
    for (int t = threadIdx.x / 32; t < n; t += 2 * (THREADS / 32)) {
        const int u = t + THREADS / 32 < n ? t + THREADS / 32 : t; /* or the same once more */
        float *const at[4] = {m.q[t], m.k[t], m.q[u], m.k[u]};
        float x[4][D / 32], sum[4] = {0.0f, 0.0f, 0.0f, 0.0f}, kq[2] = {0.0f, 0.0f};
#pragma unroll
        for (int i = 0; i < D / 32; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                x[j][i] = at[j][32 * i + lane];
                sum[j] = __fmaf_rn(x[j][i], x[j][i], sum[j]);
            }
#pragma unroll
        for (int o = 16; o; o >>= 1)
#pragma unroll
            for (int j = 0; j < 4; j++) sum[j] = __fadd_rn(sum[j], __shfl_xor_sync(~0u, sum[j], o));
        const float mine = lane & 2 ? (lane & 1 ? sum[3] : sum[2]) : (lane & 1 ? sum[1] : sum[0]),
                    root = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mine, 1e-6f)));
        float r[4];
#pragma unroll
        for (int j = 0; j < 4; j++) r[j] = __shfl_sync(~0u, root, j);
#pragma unroll
        for (int i = 0; i < D / 32; i++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const float q = __fmul_rn(__fmul_rn(x[2 * j][i], r[2 * j]), scale),
                            k = __fmul_rn(x[2 * j + 1][i], r[2 * j + 1]);
                at[2 * j][32 * i + lane] = q;
                at[2 * j + 1][32 * i + lane] = k;
                kq[j] = __fmaf_rn(k, q, kq[j]);
            }
#pragma unroll
        for (int o = 16; o; o >>= 1)
#pragma unroll
            for (int j = 0; j < 2; j++) kq[j] = __fadd_rn(kq[j], __shfl_xor_sync(~0u, kq[j], o));
        if (lane == 0) m.kq[t] = kq[0], m.kq[u] = kq[1];
    }
}
/* The gates, a thread a token: of the block's last warp. */
template <bool PATH = false, class M>
static __device__ void gates(const struct layer &l, M &m, int32_t t0, int32_t n, int32_t pending,
                             const uint8_t *path = nullptr)
{
    const struct kn_delta &a = l.a;
    const int h = blockIdx.y, t = THREADS - 1 - (int)threadIdx.x;
    if (t >= n) return; /* n <= THREADS */
    const int32_t row = PATH ? path[t0 + t] : t0 + t - pending;
    const float *alpha = row < 0 ? l.s.log + (t0 + t) * (l.width + 2 * a.n_v) + l.width
                                 : a.alpha + (int64_t)row * a.n_v,
                *beta = row < 0 ? alpha + a.n_v : a.beta + (int64_t)row * a.n_v;
    m.decay[t] = dev_exp(__fmul_rn(a.a[h], dev_softplus(__fadd_rn(alpha[h], a.dt[h]))));
    m.beta[t] = dev_sigmoid(beta[h]);
}

/* A token: s is the thread's part of its row, elements 32 i + 4 lane .. + 3. Returns o = S q, in every lane
 * of the row. */
template <int D, class M>
static __device__ __forceinline__ float step(float *s, M &m, int t, int row, int lane, bool output)
{
    const float decay = m.decay[t];
    __align__(16) float k[D / LANES];
    float sk[2] = {0.0f, 0.0f}, sq[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < D / 32; i++) *(float4 *)(k + 4 * i) = *(const float4 *)(m.k[t] + 32 * i + 4 * lane);
#pragma unroll
    for (int i = 0; i < D / LANES; i++) {
        s[i] = __fmul_rn(s[i], decay);
        sk[i & 1] = __fmaf_rn(s[i], k[i], sk[i & 1]);
    }
    if (output) {
#pragma unroll
        for (int i = 0; i < D / 32; i++) {
            const float4 q = *(const float4 *)(m.q[t] + 32 * i + 4 * lane);
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

#endif
