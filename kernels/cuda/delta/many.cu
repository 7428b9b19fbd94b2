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
 * docs/speed/delta-nets.md has the counts, and what lost. Longer keys than 128: delta.cu, token by token. */
#include "delta.cuh"
#include "../core/shared.cuh"

#include <stddef.h>

#define BLOCK 32     /* tokens */
#define HEAD 128     /* d_k at most; shorter keys are filled up with zeros */
#define WIDE 64      /* rows of a state that a block of delta_scan has */
#define SEGMENT 2048 /* rows whose blocks are in scratch at a time */
#define KTHREADS 256 /* of delta_blocks */
#define SLOTS (KTHREADS / 32)
#define STHREADS (WIDE * 2)
#define KPITCH (HEAD + 8)          /* of keys and queries in delta_blocks' memory, elements */
#define PLANE (BLOCK * HEAD * 2)   /* bytes of keys or queries, high or low */
#define SQUARE (BLOCK * BLOCK * 2) /* bytes of T or P, high or low */
#define GATES (3 * BLOCK)
#define LOG2E 1.4426950408889634f

/* What delta_blocks leaves for delta_scan. All by block of tokens, [head][block]. */
struct blocks {
    uint8_t *keys;    /* key heads: k high, k low, q high, q low, each [BLOCK, HEAD] bf16 */
    uint8_t *squares; /* T high, T low, P high, P low, each [t, j] bf16 */
    float *values;    /* [BLOCK, wide] */
    float *gates;     /* exp(G_t); exp(G_31 - G_t); b_t */
    int32_t n_blocks, wide;
    int32_t from, n; /* rows of the call that this segment has */
};

DEV float bf_low(uint32_t pair)
{
    return __uint_as_float(pair << 16);
}
DEV float bf_high(uint32_t pair)
{
    return __uint_as_float(pair & 0xffff0000u);
}
/* x in the low half, y in the high one, rounded to nearest; what is left of them, rounded. */
DEV uint32_t split(float x, float y, uint32_t *low)
{
    uint32_t high;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(high) : "f"(y), "f"(x));
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;"
        : "=r"(*low)
        : "f"(__fsub_rn(y, bf_high(high))), "f"(__fsub_rn(x, bf_low(high))));
    return high;
}

DEV void mma(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
DEV uint4 load_matrices(unsigned at)
{
    uint4 v;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at));
    return v;
}
DEV uint4 load_transposed(unsigned at)
{
    uint4 v;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at));
    return v;
}
/* 2^x, 2 ulp. */
DEV float exp_two(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
/* silu to |x| 2^-24 of it, an eighth of delta.cu's instructions. */
DEV float quick_silu(float x)
{
    return __fdividef(x, __fadd_rn(1.0f, exp_two(__fmul_rn(x, -LOG2E))));
}

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

/* ---- scan ---- */

/* Chunks of 16 bytes of a row are exchanged so that the rows that are read together lie in different banks.
 */
struct stage {
    uint8_t keys[4][PLANE];     /* k high, k low, q high, q low: chunk c of row t at c ^ t % 8 */
    uint8_t squares[4][SQUARE]; /* T high, T low, P high, P low: chunk c of row t at c ^ t / 2 % 4 */
    float values[BLOCK * WIDE]; /* [token, row of the state]: chunk c of token t at c ^ t / 2 % 4 * 2 */
    float gates[GATES];
};

DEV void copy16(void *to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_at(to)), "l"(from) : "memory");
}

/* Block i of the head into a stage. */
static __device__ void fetch(struct stage *s, const struct blocks &b, int32_t n_k, int32_t i)
{
    const int32_t h = blockIdx.y;
    const int64_t at = (int64_t)h * b.n_blocks + i;
    const uint8_t *keys = b.keys + ((int64_t)(h % n_k) * b.n_blocks + i) * (4 * PLANE),
                  *squares = b.squares + at * (4 * SQUARE);
    const float *values = b.values + at * BLOCK * b.wide + (int64_t)blockIdx.x * WIDE,
                *gates = b.gates + at * GATES;
    const int thread = threadIdx.x;
#pragma unroll
    for (int j = 0; j < 4 * PLANE / 16; j += STHREADS) {
        const int c = (j + thread) % 16, t = (j + thread) / 16; /* rows of all four planes */
        copy16(s->keys[0] + t * 256 + (c ^ t % 8) * 16, keys + (j + thread) * 16);
    }
#pragma unroll
    for (int j = 0; j < 4 * SQUARE / 16; j += STHREADS) {
        const int c = (j + thread) % 4, t = (j + thread) / 4;
        copy16(s->squares[0] + t * 64 + (c ^ t / 2 % 4) * 16, squares + (j + thread) * 16);
    }
#pragma unroll
    for (int j = 0; j < BLOCK * WIDE / 4; j += STHREADS) {
        const int c = (j + thread) % 16, t = (j + thread) / 16;
        copy16(s->values + t * WIDE + (c ^ t / 2 % 4 * 2) * 4, values + (int64_t)t * b.wide + 4 * c);
    }
    if (thread < GATES / 4) copy16(s->gates + 4 * thread, gates + 4 * thread);
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Two tiles of sums as the left factor of a product along their 16 columns. */
DEV void factor(uint32_t high[4], uint32_t low[4], const float x[4], const float y[4])
{
    high[0] = split(x[0], x[1], low), high[1] = split(x[2], x[3], low + 1);
    high[2] = split(y[0], y[1], low + 2), high[3] = split(y[2], y[3], low + 3);
}

/* r += S K^T and o += S Q^T: the rows' products with all tokens of the block. */
DEV void project(float r[4][4], float o[4][4], const float s[16][4], unsigned keys)
{
    const int lane = threadIdx.x % 32,
              t = lane % 8 + lane / 16 * 8; /* row of the matrix that the lane points at */
#pragma unroll
    for (int i = 0; i < HEAD / 16; i++) {
        uint32_t fh[4], fl[4];
        factor(fh, fl, s[2 * i], s[2 * i + 1]);
        const unsigned at = keys + t * 256 + ((2 * i + lane / 8 % 2) ^ t % 8) * 16;
        uint4 k[2][2], q[2][2]; /* high, low; tokens 0 .. 15, 16 .. 31 */
#pragma unroll
        for (int p = 0; p < 2; p++)
#pragma unroll
            for (int n = 0; n < 2; n++) {
                k[p][n] = load_matrices(at + p * PLANE + n * 16 * 256);
                q[p][n] = load_matrices(at + (2 + p) * PLANE + n * 16 * 256);
            }
#pragma unroll
        for (int part = 0; part < 3;
             part++) { /* low * high, high * low, high * high: eight chains side by side */
            const uint32_t *f = part ? fh : fl;
#pragma unroll
            for (int n = 0; n < 2; n++) {
                const uint4 x = k[part == 1][n], y = q[part == 1][n];
                mma(r[2 * n], f, x.x, x.y), mma(r[2 * n + 1], f, x.z, x.w);
                mma(o[2 * n], f, y.x, y.y), mma(o[2 * n + 1], f, y.z, y.w);
            }
        }
    }
}

/* c += x Y^T, Y a square at y (T or P), zero above its diagonal. Products of high parts and the others are
 * chains of their own. */
DEV void by_square(float c[4][4], const uint32_t xh[2][4], const uint32_t xl[2][4], unsigned y)
{
    const int lane = threadIdx.x % 32, t = lane % 8 + lane / 16 * 8;
    float small[4][4] = {};
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint4 h[2], s[2];
#pragma unroll
        for (int n = i; n < 2; n++) {
            const unsigned at = y + (t + 16 * n) * 64 + ((2 * i + lane / 8 % 2) ^ t / 2 % 4) * 16;
            h[n] = load_matrices(at), s[n] = load_matrices(at + SQUARE);
        }
#pragma unroll
        for (int n = i; n < 2; n++) {
            mma(small[2 * n], xl[i], h[n].x, h[n].y), mma(small[2 * n + 1], xl[i], h[n].z, h[n].w);
            mma(c[2 * n], xh[i], h[n].x, h[n].y), mma(c[2 * n + 1], xh[i], h[n].z, h[n].w);
        }
#pragma unroll
        for (int n = i; n < 2; n++)
            mma(small[2 * n], xh[i], s[n].x, s[n].y), mma(small[2 * n + 1], xh[i], s[n].z, s[n].w);
    }
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) c[n][e] = __fadd_rn(c[n][e], small[n][e]);
}

/* s += x K: 16 rows of the state, and the block's keys; eight chains side by side. */
DEV void update(float s[16][4], const uint32_t xh[2][4], const uint32_t xl[2][4], unsigned keys)
{
    const int lane = threadIdx.x % 32, t = lane % 16; /* matrices: tokens 0 and 8, then the next 8 columns */
#pragma unroll
    for (int j = 0; j < 8; j += 4)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint4 h[4], g[4];
#pragma unroll
            for (int n = 0; n < 4; n++) {
                const unsigned at = keys + (t + 16 * i) * 256 + ((2 * (j + n) + lane / 16) ^ t % 8) * 16;
                h[n] = load_transposed(at), g[n] = load_transposed(at + PLANE);
            }
#pragma unroll
            for (int part = 0; part < 3; part++) {
                const uint32_t *f = part ? xh[i] : xl[i];
#pragma unroll
                for (int n = 0; n < 4; n++) {
                    const uint4 y = part == 1 ? g[n] : h[n];
                    mma(s[2 * (j + n)], f, y.x, y.y), mma(s[2 * (j + n) + 1], f, y.z, y.w);
                }
            }
        }
}

/* A block of 32 tokens for a warp's 16 rows: from the row `row` on of those that the stage has. out: the row
 * of the block's first token. left: tokens, rows: rows of the state that there are. */
static __device__ void take_block(const struct stage &st, float s[16][4], int row, float *out, int64_t stride,
                                  int left, int rows)
{
    const int g = threadIdx.x % 32 / 4, c = 2 * (threadIdx.x % 4);
    const unsigned keys = shared_at(st.keys[0]), squares = shared_at(st.squares[0]);
    float r[4][4] = {}, o[4][4] = {}, e[4][4] = {};
    uint32_t xh[2][4], xl[2][4];
    project(r, o, s, keys);
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int t = 8 * n + c + i % 2, v = row + g + i / 2 * 8;
            const float decay = st.gates[t],
                        value = st.values[t * WIDE + ((v / 4) ^ t / 2 % 4 * 2) * 4 + v % 4];
            r[n][i] = __fmul_rn(st.gates[2 * BLOCK + t], __fmaf_rn(-decay, r[n][i], value));
            o[n][i] = __fmul_rn(o[n][i], decay);
        }
    factor(xh[0], xl[0], r[0], r[1]), factor(xh[1], xl[1], r[2], r[3]);
    by_square(e, xh, xl, squares);
    factor(xh[0], xl[0], e[0], e[1]), factor(xh[1], xl[1], e[2], e[3]);
    by_square(o, xh, xl, squares + 2 * SQUARE);
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int t = 8 * n + c + i % 2, v = g + i / 2 * 8;
            if (t < left && v < rows) out[t * stride + v] = o[n][i];
            e[n][i] = __fmul_rn(e[n][i], st.gates[BLOCK + t]);
        }
    factor(xh[0], xl[0], e[0], e[1]), factor(xh[1], xl[1], e[2], e[3]);
    const float decay = st.gates[BLOCK - 1];
#pragma unroll
    for (int n = 0; n < 16; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) s[n][i] = __fmul_rn(s[n][i], decay);
    update(s, xh, xl, keys);
}

/* A warp's 16 rows of the state at p, from or to memory, elements past d_k zeros. */
template <bool STORE> DEV void move_rows(float s[16][4], float *p, int rows, int d_k)
{
    const int g = threadIdx.x % 32 / 4, c = 2 * (threadIdx.x % 4);
#pragma unroll
    for (int n = 0; n < 16; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int v = g + i / 2 * 8, k = 8 * n + c + i % 2;
            if (STORE && v < rows && k < d_k) p[(int64_t)v * d_k + k] = s[n][i];
            if (!STORE) s[n][i] = v < rows && k < d_k ? p[(int64_t)v * d_k + k] : 0.0f;
        }
}

/* Rows [WIDE x, ..) of value head y's state through all blocks. */
static __global__ void __launch_bounds__(STHREADS) delta_scan(const struct layer l, const struct blocks b)
{
    extern __shared__ __align__(16) uint8_t memory[];
    struct stage *stages = (struct stage *)memory;
    const struct kn_delta &a = l.a;
    const int row = (int)threadIdx.x / 32 * 16, first = (int)blockIdx.x * WIDE + row, rows = a.d_v - first;
    const int64_t stride = (int64_t)a.n_v * a.d_v;
    float *state = l.s.s + ((int64_t)blockIdx.y * a.d_v + first) * a.d_k,
          *out = a.out + (int64_t)b.from * stride + (int64_t)blockIdx.y * a.d_v + first;
    float s[16][4];
    cuda_grid_start();
    fetch(&stages[0], b, a.n_k, 0);
    move_rows<false>(s, state, rows, a.d_k);
    for (int32_t i = 0; i < b.n_blocks; i++) {
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncthreads();
        if (i + 1 < b.n_blocks) fetch(&stages[(i + 1) % 2], b, a.n_k, i + 1);
        take_block(stages[i % 2], s, row, out + (int64_t)i * BLOCK * stride, stride, b.n - i * BLOCK, rows);
    }
    move_rows<true>(s, state, rows, a.d_k);
}

/* ---- launch ---- */

struct delta_tuning delta_tuning = {SEGMENT, false, false, false};

bool cuda_delta_many_has(const struct kn_delta *a)
{
    return a->d_k <= HEAD && !delta_tuning.rows;
}

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
    return a->n <= KN_DELTA_LOG || !cuda_delta_many_has(a) ? 0 : divide(&b, a, a->n, nullptr);
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
    if (delta_tuning.early) {
        err = cuda_launch(be, make, blocks, dim3(KTHREADS), work_bytes(a), *l, b);
        if (!err) err = cuda_launch(be, delta_scan, scans, dim3(STHREADS), 2 * sizeof(struct stage), *l, b);
    } else { /* the scan's blocks, waiting, would take the memory that two of the others' need */
        be->launches += 2;
        make<<<blocks, KTHREADS, work_bytes(a), be->stream>>>(*l, b);
        err = cudaGetLastError();
        if (!err) {
            delta_scan<<<scans, STHREADS, 2 * sizeof(struct stage), be->stream>>>(*l, b);
            err = cudaGetLastError();
        }
    }
    return err ? err : cuda_delta_finish(be, l, from, n, delta_tuning.early);
}

int cuda_delta_many(struct cuda_backend *be, const struct layer *l)
{
    const int32_t all = l->a.n, most = delta_tuning.segment;
    const size_t want = cuda_delta_scratch(&l->a);
    cudaError_t err = cudaSuccess;
    if (want > be->scratch_rows_bytes)
        return cuda_fail(be, KN_EINVAL, "delta: %zu bytes of scratch for %d rows, %zu are reserved", want,
                         all, be->scratch_rows_bytes);
    for (int32_t from = 0; from < all && !err; from += most)
        err = run_segment(be, l, from, all - from < most ? all - from : most);
    return cuda_check(be, "delta", err);
}
