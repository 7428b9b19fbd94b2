/* delta/many.cu - a gated delta net layer over a prompt: blocks of 32 tokens instead of one token after
 * another.
 *
 * With G_t the sum of the log decays of the block up to token t, S the state before it, all of one value
 * head:
 *
 *     A[t, j] = b_t exp(G_t - G_j) k_t . k_j  for j < t, else 0;   T = (1 + A)^-1
 *     E = T X, X_t = b_t (v_t - exp(G_t) S k_t)                     the block's corrections e_t, at once
 *     o_t = exp(G_t) S q_t + sum over j <= t of P[t, j] e_j,        P[t, j] = exp(G_t - G_j) q_t . k_j
 *     S becomes exp(G_31) S + sum over j of exp(G_31 - G_j) e_j k_j^T
 *
 * delta_blocks makes what does not depend on S, for all blocks of a key head at once: q, k, v after
 * convolution and norm, T (by substitution, in float32) and P. delta_scan then walks the blocks: a warp has
 * 16 rows of one head's state in registers, as the sums of its tensor products, whose layout is also that of
 * their left factor, so that R = S K^T, E = X T^T, o and the new S follow from registers, and warps only
 * share what they read. S is float32 and rounded by nothing but its sums.
 *
 * Products: a float32 factor is split into two bf16, x = high + low to 2^-17 of it, and high * high + high *
 * low + low * high are summed in float32: 2^-16 a product at worst, where the products before and after this
 * layer round their factors to 2^-12. Exponents are differences of sums in double, at most 0.
 *
 * Bits depend on where blocks begin, that is on the rows before in the call, modulo 32; not on what follows,
 * nor on how a call is cut into segments (whole blocks). Rows past the end are tokens without effect: k, v, b
 * and the log decay 0. A NaN or Inf of one token spoils the tokens before it in its block too, as zeros times
 * it are NaN.
 *
 * Bound for d_k = d_v = 128: 324 mma a warp and block in delta_scan, (d_v / 16) n_v warps;
 * docs/speed/delta-nets.md has the counts, and what lost. Longer keys than 128: delta.cu, token by token.
 *
 * Wins over token by token: 4,096 rows of a layer 4.55 to 0.620 ms. build/test/families_gpu --bench */
#include "many_scan.cuh"

/* ---- blocks ---- */

struct work {
    __align__(16) uint16_t k[2][BLOCK * KPITCH], q[2][BLOCK * KPITCH]; /* high, low */
    float kk[BLOCK][BLOCK + 1], qk[BLOCK][BLOCK + 1];
    int32_t next; /* item that no warp has taken */
    __align__(
        16) float a[SLOTS][BLOCK][BLOCK + 4]; /* A of a head, or of a warp where heads are more than warps */
};

/* Four values at p, those from left on zeros. */
DEV float4 load_four(const float *p, int left, bool aligned)
{
    if (left >= 4 && aligned) return *(const float4 *)p;
    return make_float4(left > 0 ? p[0] : 0.0f, left > 1 ? p[1] : 0.0f, left > 2 ? p[2] : 0.0f,
                       left > 3 ? p[3] : 0.0f);
}

/* u[STRIP] = silu(convolution) of the four channels from `channel` on (left of them there) at the STRIP
 * tokens from t on; zeros from row `end` on. */
template <int TAPS, int STRIP>
static __device__ void convolve(const struct layer &l, float4 u[STRIP], int64_t channel, int left, int32_t t,
                                int32_t end)
{
    const int taps = l.a.n_conv;
    const bool aligned = l.width % 4 == 0 && channel % 4 == 0;
    float w[4][TAPS];
    float4 x[STRIP + TAPS - 1];
#pragma unroll
    for (int c = 0; c < 4; c++)
#pragma unroll
        for (int j = 0; j < TAPS; j++)
            w[c][j] = c < left && j < taps ? l.a.conv[(channel + c) * taps + j] : 0.0f;
#pragma unroll
    for (int i = 0; i < STRIP + TAPS - 1; i++)
        x[i] = i < STRIP + taps - 1 && t + i - (taps - 1) < end
                   ? load_four(input(l, t + i - (taps - 1), 0) + channel, left, aligned)
                   : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int i = 0; i < STRIP; i++) {
        float4 s = make_float4(__fmul_rn(w[0][0], x[i].x), __fmul_rn(w[1][0], x[i].y),
                               __fmul_rn(w[2][0], x[i].z), __fmul_rn(w[3][0], x[i].w));
#pragma unroll
        for (int j = 1; j < TAPS; j++)
            if (j < taps) {
                s.x = __fmaf_rn(w[0][j], x[i + j].x, s.x);
                s.y = __fmaf_rn(w[1][j], x[i + j].y, s.y);
                s.z = __fmaf_rn(w[2][j], x[i + j].z, s.z);
                s.w = __fmaf_rn(w[3][j], x[i + j].w, s.w);
            }
        u[i] = t + i < end ? make_float4(quick_silu(s.x), quick_silu(s.y), quick_silu(s.z), quick_silu(s.w))
                           : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
}

/* Keys and queries of the block, a warp eight tokens of one of them: to shared memory and to scratch. */
template <int TAPS>
static __device__ void keys_of(const struct layer &l, struct work &m, uint8_t *to, int32_t t0, int32_t end)
{
    const struct kn_delta &a = l.a;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = warp % 4 * 8;
    const bool query = warp >= 4;
    const int64_t channel = (int64_t)((query ? 0 : a.n_k) + (int)blockIdx.y) * a.d_k + 4 * lane;
    const float scale = query ? __fdiv_rn(1.0f, __fsqrt_rn((float)a.d_k)) : 1.0f;
    float4 u[8];
    convolve<TAPS, 8>(l, u, channel, a.d_k - 4 * lane, t0 + first, end);
    uint16_t *high = query ? m.q[0] : m.k[0], *low = query ? m.q[1] : m.k[1];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float4 x = u[i];
        const float sum = warp_sum(
                        __fmaf_rn(x.x, x.x, __fmaf_rn(x.y, x.y, __fmaf_rn(x.z, x.z, __fmul_rn(x.w, x.w))))),
                    r = __fmul_rn(__fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(sum, 1e-6f))), scale);
        uint2 h, s;
        h.x = split(__fmul_rn(x.x, r), __fmul_rn(x.y, r), &s.x);
        h.y = split(__fmul_rn(x.z, r), __fmul_rn(x.w, r), &s.y);
        const int t = first + i;
        *(uint2 *)(high + t * KPITCH + 4 * lane) = h;
        *(uint2 *)(low + t * KPITCH + 4 * lane) = s;
        uint8_t *out = to + (query ? 2 * PLANE : 0) + t * HEAD * 2 + 8 * lane;
        *(uint2 *)out = h;
        *(uint2 *)(out + PLANE) = s;
    }
}

/* k_t . k_j and q_t . k_j, j <= t and a few more: a warp 16 x 16 of one of them. */
static __device__ void dots_of(struct work &m)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = warp / 2 % 2 * 16, col = warp % 2 * 16;
    const bool query = warp >= 4;
    if (col > row) return;
    const int own = (row + lane % 16) * KPITCH + lane / 16 * 8,
              other = (col + lane % 8 + lane / 16 * 8) * KPITCH + lane / 8 % 2 * 8;
    const unsigned ah = shared_at((query ? m.q : m.k)[0] + own), al = shared_at((query ? m.q : m.k)[1] + own),
                   bh = shared_at(m.k[0] + other), bl = shared_at(m.k[1] + other);
    float c[2][4] = {};
#pragma unroll
    for (int s = 0; s < HEAD / 16; s++) {
        const uint4 h = load_matrices(ah + 32 * s), g = load_matrices(al + 32 * s),
                    x = load_matrices(bh + 32 * s), y = load_matrices(bl + 32 * s);
        const uint32_t fh[4] = {h.x, h.y, h.z, h.w}, fl[4] = {g.x, g.y, g.z, g.w};
        mma(c[0], fh, x.x, x.y), mma(c[1], fh, x.z, x.w);
        mma(c[0], fh, y.x, y.y), mma(c[1], fh, y.z, y.w);
        mma(c[0], fl, x.x, x.y), mma(c[1], fl, x.z, x.w);
    }
    float(*to)[BLOCK + 1] = query ? m.qk : m.kk;
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            to[row + lane / 4 + e / 2 * 8][col + 8 * n + 2 * (lane % 4) + e % 2] = c[n][e];
}

/* Element [t, lane] of a square, a warp a row: an even lane stores the high parts of two, an odd one the low.
 */
DEV void keep(uint8_t *square, int t, int lane, float x)
{
    const float y = __shfl_xor_sync(~0u, x, 1);
    const bool odd = lane % 2;
    uint32_t low;
    const uint32_t high = split(odd ? y : x, odd ? x : y, &low);
    *(uint32_t *)(square + (odd ? SQUARE : 0) + (t * BLOCK + lane - odd) * 2) = odd ? low : high;
}

/* Gates, T and P of one value head, by one warp: lane j has column j. */
static __device__ void head_of(const struct layer &l, const struct blocks &b, struct work &m, int slot,
                               int32_t h, int32_t t0, int32_t end)
{
    const struct kn_delta &a = l.a;
    const int lane = threadIdx.x % 32;
    const bool there = t0 + lane < end;
    const int64_t at = (int64_t)h * b.n_blocks + blockIdx.x, gate = (int64_t)(t0 + lane) * a.n_v + h;
    const float beta = there ? dev_sigmoid(a.beta[gate]) : 0.0f;
    double g = there ? (double)__fmul_rn(a.a[h], dev_softplus(__fadd_rn(a.alpha[gate], a.dt[h]))) : 0.0;
    for (int i = 1; i < 32; i *= 2) {
        const double before = __shfl_up_sync(~0u, g, i);
        if (lane >= i) g += before;
    }
    g *= 1.4426950408889634; /* powers of two from here on */
    const double all = __shfl_sync(~0u, g, 31);
    float *gates = b.gates + at * GATES;
    gates[lane] = exp_two((float)g);
    gates[BLOCK + lane] = exp_two((float)(all - g));
    gates[2 * BLOCK + lane] = beta;
    uint8_t *square = b.squares + at * (4 * SQUARE);
    float(*A)[BLOCK + 4] = m.a[slot];
    float T[BLOCK];
#pragma unroll 4
    for (int t = 0; t < BLOCK; t++) {
        const double gt = __shfl_sync(~0u, g, t);
        const float bt = __shfl_sync(~0u, beta, t), d = lane <= t ? exp_two((float)(gt - g)) : 0.0f;
        A[t][lane] = lane < t ? __fmul_rn(bt, __fmul_rn(d, m.kk[t][lane])) : 0.0f;
        keep(square + 2 * SQUARE, t, lane, lane <= t ? __fmul_rn(d, m.qk[t][lane]) : 0.0f);
    }
    __syncwarp();
#pragma unroll
    for (int t = 0; t < BLOCK; t++) {
        float s[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int i = 0; i < t; i += 4) {
            const float4 x = *(const float4 *)&A[t][i]; /* zeros from t on */
            s[0] = __fmaf_rn(x.x, T[i], s[0]);
            if (i + 1 < t) s[1] = __fmaf_rn(x.y, T[i + 1], s[1]);
            if (i + 2 < t) s[2] = __fmaf_rn(x.z, T[i + 2], s[2]);
            if (i + 3 < t) s[3] = __fmaf_rn(x.w, T[i + 3], s[3]);
        }
        T[t] = __fsub_rn(t == lane ? 1.0f : 0.0f, __fadd_rn(__fadd_rn(s[0], s[1]), __fadd_rn(s[2], s[3])));
        keep(square, t, lane, t < lane ? 0.0f : T[t]);
    }
    __syncwarp();
}

/* Values of 8 tokens and 128 columns of one head. */
template <int TAPS>
static __device__ void values_of(const struct layer &l, const struct blocks &b, int32_t h, int32_t first,
                                 int32_t col, int32_t t0, int32_t end)
{
    const struct kn_delta &a = l.a;
    const int c = col + 4 * (threadIdx.x % 32);
    const int64_t channel = 2 * (int64_t)a.n_k * a.d_k + (int64_t)h * a.d_v + c;
    float4 u[8];
    if (c >= b.wide) return;
    convolve<TAPS, 8>(l, u, channel, a.d_v - c, t0 + first, end);
    float *to = b.values + (((int64_t)h * b.n_blocks + blockIdx.x) * BLOCK + first) * b.wide + c;
#pragma unroll
    for (int i = 0; i < 8; i++) *(float4 *)(to + (int64_t)i * b.wide) = u[i];
}

/* Block x of key head y: its keys and queries first, then value heads and pieces of values as warps come. */
template <int TAPS>
static __global__ void __launch_bounds__(KTHREADS, TAPS <= 4 ? 3 : 1)
    delta_blocks(const struct layer l, const struct blocks b)
{
    extern __shared__ __align__(16) uint8_t memory[];
    struct work &m = *(struct work *)memory;
    const int32_t rep = l.a.n_v / l.a.n_k, t0 = b.from + (int32_t)blockIdx.x * BLOCK,
                  end = min(b.from + b.n, t0 + BLOCK), columns = (b.wide + HEAD - 1) / HEAD,
                  items = rep * (1 + BLOCK / 8 * columns);
    cuda_grid_start();
    if (threadIdx.x == 0) m.next = 0;
    keys_of<TAPS>(l, m, b.keys + ((int64_t)blockIdx.y * b.n_blocks + blockIdx.x) * (4 * PLANE), t0, end);
    __syncthreads();
    dots_of(m);
    __syncthreads();
    for (;;) {
        int32_t i = 0;
        if (threadIdx.x % 32 == 0) i = atomicAdd(&m.next, 1); /* which warp has it changes nothing */
        i = __shfl_sync(~0u, i, 0);
        if (i >= items) break;
        if (i < rep) {
            head_of(l, b, m, rep <= SLOTS ? i : (int)threadIdx.x / 32, (int32_t)blockIdx.y + i * l.a.n_k, t0,
                    end);
        } else {
            const int32_t piece = (i - rep) % (BLOCK / 8 * columns);
            values_of<TAPS>(l, b, (int32_t)blockIdx.y + (i - rep) / (BLOCK / 8 * columns) * l.a.n_k,
                            piece % 4 * 8, piece / 4 * HEAD, t0, end);
        }
    }
}

/* ---- launch ---- */

static size_t whole(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

/* The scratch of segments of up to n rows, at p (or NULL): its parts; returns its bytes. */
static size_t divide(struct blocks *b, const struct kn_delta *a, int32_t n, uint8_t *p)
{
    if (n > delta_tuning.segment) n = delta_tuning.segment;
    b->n_blocks = (n + BLOCK - 1) / BLOCK;
    b->wide = (a->d_v + WIDE - 1) / WIDE * WIDE;
    const size_t blocks = (size_t)b->n_blocks, n_v = (size_t)a->n_v,
                 keys = whole(blocks * (size_t)a->n_k * 4 * PLANE),
                 squares = whole(blocks * n_v * 4 * SQUARE),
                 values = whole(blocks * n_v * BLOCK * (size_t)b->wide * 4);
    b->keys = p;
    b->squares = p + keys;
    b->values = (float *)(p + keys + squares);
    b->gates = (float *)(p + keys + squares + values);
    return keys + squares + values + whole(blocks * n_v * GATES * 4);
}

size_t cuda_delta_scratch(const struct kn_delta *a)
{
    struct blocks b;
    const bool has = a->d_k <= HEAD && !delta_tuning.rows; /* as delta_form_of */
    return a->n <= KN_DELTA_LOG || !has ? 0 : divide(&b, a, a->n, nullptr);
}

static cudaError_t allow(const void *kernel, size_t bytes)
{
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}

/* Shared memory of delta_blocks: no more slots than heads. */
static size_t work_bytes(const struct kn_delta *a)
{
    const int rep = a->n_v / a->n_k, slots = rep < SLOTS ? rep : SLOTS;
    return offsetof(struct work, a) + (size_t)slots * sizeof(((struct work *)nullptr)->a[0]);
}

/* Rows [from, from + n) of the call. */
static cudaError_t run_segment(struct cuda_backend *be, const struct layer *l, int32_t from, int32_t n)
{
    const struct kn_delta *a = &l->a;
    void (*const make)(const struct layer, const struct blocks) =
        a->n_conv <= 4 ? delta_blocks<4> : delta_blocks<KN_DELTA_TAPS>;
    struct blocks b;
    divide(&b, a, n, (uint8_t *)be->scratch_rows);
    b.from = from;
    b.n = n;
    cudaError_t err = allow((const void *)make, work_bytes(a));
    if (!err) err = allow((const void *)delta_scan, 2 * sizeof(struct stage));
    if (err) return err;
    const dim3 blocks((unsigned)b.n_blocks, (unsigned)a->n_k),
        scans((unsigned)(b.wide / WIDE), (unsigned)a->n_v);
    /* None early: the scan's blocks, waiting, would take the memory that two of the others' need. */
    be->launches += 2;
    make<<<blocks, KTHREADS, work_bytes(a), be->stream>>>(*l, b);
    err = cudaGetLastError();
    if (err) return err;
    delta_scan<<<scans, STHREADS, 2 * sizeof(struct stage), be->stream>>>(*l, b);
    err = cudaGetLastError();
    return err ? err : cuda_delta_finish(be, l, from, n, false);
}

int cuda_delta_many(struct cuda_backend *be, const struct layer *l)
{
    const int32_t all = l->a.n, most = delta_tuning.segment;
    const size_t want = cuda_delta_scratch(&l->a);
    cudaError_t err = cudaSuccess;
    cuda_count(be, CUDA_DELTA_BLOCKS);
    if (want > be->scratch_rows_bytes)
        return cuda_fail(be, KN_EINVAL, "delta: %zu bytes of scratch for %d rows, %zu are reserved", want,
                         all, be->scratch_rows_bytes);
    for (int32_t from = 0; from < all && !err; from += most)
        err = run_segment(be, l, from, all - from < most ? all - from : most);
    return cuda_check(be, "delta", err);
}
