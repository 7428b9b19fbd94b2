/* attention.cu - grouped-query attention over the ring of keys and values.
 *
 * Bound: reading the visible keys and values once, 4 * head_dim * n_head_kv bytes a position (f16, bf16), at
 * up to 64 rows.
 *
 * attn_mma (f16 and bf16 caches, head sizes 64, 128, 256, 512). A tile is 16 query rows, (row, query head of
 * one kv head), the M of mma m16n8k16. A block takes a tile and a split of KN_KV_SPLIT keys; warp w its keys
 * 32 w .. 32 w + 31, whole: keys go from memory to the fragments directly, values through the warp's own
 * shared memory, asked for before anything else; the order of k inside a product and the columns of an output
 * are chosen to fit 16-byte loads. Queries and weights enter as the sum of two halves (22 and 16 bits for f16
 * and bf16), so what is lost against float is below the cache's own rounding. Up to 64 rows every split has
 * its own block, and the last block of a tile to finish merges: warp s % 8 takes split s, ascending, the
 * chains are added in order. More rows: a block walks all splits of its tile. What a row gets depends on its
 * own query and visible keys alone: warps and splits lie at absolute positions, a key that it does not see
 * weighs an exact zero, and a split without visible keys adds exact zeros. A NaN in a value that only
 * companions see is taken out before the product (see `ragged`). attn_any (f32 caches and other head sizes):
 * one block a query row, keys by threads, plain float arithmetic. For completeness, not speed. */
#include "math.cuh"
#include "ops.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define WARPS 8
#define TILE 16             /* query rows of a block */
#define FEW 64              /* rows up to which the splits are spread over blocks */
#define BUDGET (256u << 20) /* bytes of partial results beyond which tiles are launched in turns */

struct attn {
    const float *q;
    float *out, *part;
    const void *k, *v;
    const int32_t *pos, *first;
    unsigned *count;
    int32_t n, n_head, n_kv, n_rep, d, cap, window, tile0, n_tiles, slots, chunks;
    uint32_t type;
    float scale;
    bool causal;
    bool spread; /* one split a block */
    bool apart;  /* spread, and attn_merge follows */
};

/* Row i sees the positions [lo, hi). */
static __device__ __forceinline__ void visible(const attn &a, int i, int &lo, int &hi)
{
    const int64_t pos = a.pos[i], last = a.pos[a.n - 1];
    int64_t from = a.window ? pos - a.window + 1 : 0, to = a.causal ? pos + 1 : last + 1;
    if (!a.causal && a.window && to > pos + a.window) to = pos + a.window;
    if (a.first && from < *a.first) from = *a.first;
    from = from < 0 ? 0 : from;
    lo = (int)from;
    hi = (int)(to > from ? to : from);
}

/* What a tile sees: lo, hi of row lane % TILE; [tile_lo, tile_hi) holds what any row sees, and every row sees
 * all of [full_lo, full_hi). */
struct range {
    int lo, hi, tile_lo, tile_hi, full_lo, full_hi, split0, n_splits;
};
static __device__ __forceinline__ struct range tile_range(const attn &a, int tile)
{
    struct range v = {};
    const int row = (tile * TILE + (int)threadIdx.x % TILE) / a.n_rep;
    if (row < a.n) visible(a, row, v.lo, v.hi);
    const bool some = v.lo < v.hi, real = row < a.n;
    v.tile_lo = some ? v.lo : INT32_MAX;
    v.tile_hi = some ? v.hi : 0;
    v.full_lo = real ? v.lo : 0;
    v.full_hi = real ? v.hi : INT32_MAX;
    for (int i = TILE / 2; i; i >>= 1) {
        v.tile_lo = min(v.tile_lo, __shfl_xor_sync(~0u, v.tile_lo, i));
        v.tile_hi = max(v.tile_hi, __shfl_xor_sync(~0u, v.tile_hi, i));
        v.full_lo = max(v.full_lo, __shfl_xor_sync(~0u, v.full_lo, i));
        v.full_hi = min(v.full_hi, __shfl_xor_sync(~0u, v.full_hi, i));
    }
    v.split0 = v.tile_hi ? v.tile_lo / KN_KV_SPLIT : 0;
    v.n_splits = v.tile_hi ? (v.tile_hi - 1) / KN_KV_SPLIT - v.split0 + 1 : 0;
    return v;
}

/* exp(x - top) where top is a maximum that may be -inf (nothing seen yet, or only NaN). */
static __device__ __forceinline__ float weight(float x, float top)
{
    return dev_exp(__fsub_rn(x, top == -INFINITY ? 0.0f : top));
}

template <bool BF16> static __device__ __forceinline__ uint16_t to_half(float x)
{
    if (BF16) return __bfloat16_as_ushort(__float2bfloat16_rn(x));
    return __half_as_ushort(__float2half_rn(x));
}
template <bool BF16> static __device__ __forceinline__ float from_half(uint16_t h)
{
    if (BF16) return __uint_as_float((uint32_t)h << 16);
    return __half2float(__ushort_as_half(h));
}
/* x and y as pairs of high and low parts: x in the low half of a word. */
template <bool BF16>
static __device__ __forceinline__ void two_parts(float x, float y, uint32_t &high, uint32_t &low)
{
    const uint16_t hx = to_half<BF16>(x), hy = to_half<BF16>(y);
    high = hx | (uint32_t)hy << 16;
    low = to_half<BF16>(__fsub_rn(x, from_half<BF16>(hx))) |
          (uint32_t)to_half<BF16>(__fsub_rn(y, from_half<BF16>(hy))) << 16;
}

/* c[16, 8] += a[16, 16] b[16, 8] */
template <bool BF16>
static __device__ __forceinline__ void mma(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    if (BF16)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Halves of w that are NaN or Inf become 0. */
template <bool BF16> static __device__ __forceinline__ bool make_finite(uint32_t &w)
{
    const uint32_t e = BF16 ? 0x7f80u : 0x7c00u;
    const bool low = (w & e) == e, high = (w >> 16 & e) == e;
    if (low) w &= 0xffff0000u;
    if (high) w &= 0x0000ffffu;
    return low || high;
}

template <int D> struct shape {
    static constexpr int DC = D < 128 ? D : 128; /* columns of the output that a block computes */
    static constexpr int CHUNKS = D / DC;
    static constexpr int STEPS = D / 16; /* k16 steps of a score */
    static constexpr int NT = DC / 8;    /* n8 tiles of the output */
    static constexpr int ROW =
        DC + 8; /* halves a value takes in shared memory: padded against bank conflicts */
    static constexpr int PART =
        TILE * (DC + 2); /* floats of a tile's partial result: maxima, sums, then the fragments */
    struct memory {
        uint4 q[STEPS][2][32]; /* fragments of the queries: high and low parts */
        union {
            uint16_t v[32 * ROW]; /* a warp's values, then */
            float4 acc[NT][32];   /* its result, as the fragments lie */
        } box[WARPS];
        float unit[TILE]; /* scale times the power of two taken out of the query */
        float top[WARPS][TILE], sum[WARPS][TILE], f[WARPS][TILE];
        float total_top[TILE];
        int last;
    };
};

/* Where element e of fragment t of a lane stands: row and column. */
static __device__ __forceinline__ int frag_row(int lane, int e)
{
    return lane / 4 + e / 2 * 8;
}
static __device__ __forceinline__ int frag_col(int lane, int t, int e)
{
    return t / 8 * 64 + 8 * (lane % 4 * 2 + e % 2) + t % 8;
}

static __device__ __forceinline__ void copy_async(void *to, const void *from, bool really)
{
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(really ? 16 : 0)
                 : "memory");
}
static __device__ __forceinline__ void copy_wait()
{
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncwarp();
}

/* The tile's queries as fragments. Column order within 32: lane c of a quad holds d = 8 c .. 8 c + 7, two k16
 * steps' worth, as the 16-byte loads of keys leave it. Each row is scaled by a power of two to at most 1, so
 * that halves neither overflow nor lose low parts. */
template <int D, bool BF16>
static __device__ void load_queries(const attn &a, typename shape<D>::memory &m, int tile, int kv_head)
{
    const int lane = threadIdx.x % 32, w = threadIdx.x / 32;
#pragma unroll
    for (int k = 0; k < TILE / WARPS; k++) {
        const int r = w + k * WARPS;
        const int at = tile * TILE + r, row = at / a.n_rep, head = kv_head * a.n_rep + at % a.n_rep;
        const float *q = a.q + ((int64_t)row * a.n_head + head) * D;
        const bool here = row < a.n;
        float2 x[D / 64];
        float top = 0.0f;
        for (int i = 0; i < D / 64; i++) {
            x[i] = here ? *(const float2 *)(q + 64 * i + 2 * lane) : make_float2(0.0f, 0.0f);
            top = fmaxf(top, fmaxf(fabsf(x[i].x), fabsf(x[i].y)));
        }
        for (int i = 16; i; i >>= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, i));
        int e = (__float_as_int(top) >> 23) - 126; /* top < 2^e */
        e = top == INFINITY || e < -100 ? 0 : e > 126 ? 126 : e;
        const float down = __int_as_float((127 - e) << 23);
        if (lane == 0) m.unit[r] = __fmul_rn(a.scale, __int_as_float((127 + e) << 23));
        for (int i = 0; i < D / 64; i++) {
            const int d = 64 * i + 2 * lane, c = d % 32 / 8, pair = d % 8 / 2, step = d / 32 * 2 + pair / 2;
            const int word = pair % 2 * 2 + r / 8, to = r % 8 * 4 + c;
            uint32_t high, low;
            two_parts<BF16>(__fmul_rn(x[i].x, down), __fmul_rn(x[i].y, down), high, low);
            ((uint32_t *)&m.q[step][0][to])[word] = high;
            ((uint32_t *)&m.q[step][1][to])[word] = low;
        }
    }
    __syncthreads();
}

/* Write fragments [t0, t0 + N) of the tile's rows: sums of the warps' boxes in order, over the sum of
 * weights. */
template <int D, int N>
static __device__ void write_rows(const attn &a, typename shape<D>::memory &m, int tile, int kv_head,
                                  int chunk, int t0)
{
    using S = shape<D>;
    for (int item = threadIdx.x; item < N * 32; item += 32 * WARPS) {
        const int lane = item % 32, t = t0 + item / 32;
        float y[4] = {}, sum[2] = {};
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            const float4 v = m.box[w].acc[t][lane];
            const float f0 = m.f[w][lane / 4], f1 = m.f[w][lane / 4 + 8];
            y[0] = __fmaf_rn(f0, v.x, y[0]);
            y[1] = __fmaf_rn(f0, v.y, y[1]);
            y[2] = __fmaf_rn(f1, v.z, y[2]);
            y[3] = __fmaf_rn(f1, v.w, y[3]);
            sum[0] = __fmaf_rn(f0, m.sum[w][lane / 4], sum[0]);
            sum[1] = __fmaf_rn(f1, m.sum[w][lane / 4 + 8], sum[1]);
        }
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int at = tile * TILE + frag_row(lane, e), row = at / a.n_rep;
            if (row >= a.n) continue;
            /* + 0: a zero has the sign it has after a merge */
            a.out[((int64_t)row * a.n_head + kv_head * a.n_rep + at % a.n_rep) * D + chunk * S::DC +
                  frag_col(lane, t, e)] =
                sum[e / 2] == 0.0f ? 0.0f : __fdiv_rn(__fadd_rn(y[e], 0.0f), sum[e / 2]);
        }
    }
}

/* Merge the splits of a tile, fragments [t0, t0 + N): warp w takes split s where s % WARPS is w, ascending;
 * write_rows adds the warps' sums. */
template <int D, int N>
static __device__ void merge(const attn &a, typename shape<D>::memory &m, const float *part, int split0,
                             int n_splits, int tile, int kv_head, int chunk, int t0)
{
    using S = shape<D>;
    const int lane = threadIdx.x % 32, w = threadIdx.x / 32, rows = min(TILE, a.n * a.n_rep - tile * TILE);
    for (int r = w; r < rows; r += WARPS) {
        float top = -INFINITY;
        for (int s = lane; s < n_splits; s += 32) top = fmaxf(top, __ldcg(part + (int64_t)s * S::PART + r));
        for (int i = 16; i; i >>= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, i));
        if (lane == 0) m.total_top[r] = top;
    }
    __syncthreads();
    float4 acc[N];
    float sum = 0.0f;
    const bool mine = lane < rows, one = lane / 4 < rows, two = lane / 4 + 8 < rows;
#pragma unroll
    for (int t = 0; t < N; t++) acc[t] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll(N <= 4 ? 4 : 1)
    for (int s = (w - split0 % WARPS + WARPS) % WARPS; s < n_splits; s += WARPS) {
        const float *p = part + (int64_t)s * S::PART;
        const float f = mine ? weight(__ldcg(p + lane), m.total_top[lane]) : 0.0f;
        const float f0 = __shfl_sync(~0u, f, lane / 4), f1 = __shfl_sync(~0u, f, lane / 4 + 8);
        if (mine) sum = __fmaf_rn(f, __ldcg(p + TILE + lane), sum);
        const float4 *v = (const float4 *)(p + 2 * TILE) + 32 * t0 + lane;
#pragma unroll
        for (int t = 0; t < N; t++) {
            if (one) {
                const float2 y = __ldcg((const float2 *)(v + 32 * t));
                acc[t].x = __fmaf_rn(f0, y.x, acc[t].x);
                acc[t].y = __fmaf_rn(f0, y.y, acc[t].y);
            }
            if (two) {
                const float2 y = __ldcg((const float2 *)(v + 32 * t) + 1);
                acc[t].z = __fmaf_rn(f1, y.x, acc[t].z);
                acc[t].w = __fmaf_rn(f1, y.y, acc[t].w);
            }
        }
    }
#pragma unroll
    for (int t = 0; t < N; t++) m.box[w].acc[t0 + t][lane] = acc[t];
    if (lane < TILE) m.sum[w][lane] = sum, m.f[w][lane] = 1.0f;
    __syncthreads();
    write_rows<D, N>(a, m, tile, kv_head, chunk, t0);
}

/* The merge as a kernel of its own, MERGE_N fragments a block: where there are many splits, so that none is
 * the last. */
#define MERGE_N 4
template <int D> static __global__ void __launch_bounds__(32 * WARPS) attn_merge(const attn a)
{
    using S = shape<D>;
    constexpr int BLOCKS = S::NT / MERGE_N;
    extern __shared__ __align__(16) unsigned char raw[];
    typename S::memory &m = *(typename S::memory *)raw;
    cuda_grid_start();
    const int tile = a.tile0 + blockIdx.x, kv_head = blockIdx.y, chunk = blockIdx.z / BLOCKS,
              t0 = blockIdx.z % BLOCKS * MERGE_N;
    const struct range seen = tile_range(a, tile);
    if (seen.n_splits <= 1) return; /* written already */
    const int group = (chunk * a.n_kv + kv_head) * a.n_tiles + tile - a.tile0;
    merge<D, MERGE_N>(a, m, a.part + (int64_t)group * a.slots * S::PART, seen.split0, seen.n_splits, tile,
                      kv_head, chunk, t0);
}

/* SPREAD: one split a block, a.spread. */
template <int D, bool BF16, bool SPREAD>
static __global__ void __launch_bounds__(32 * WARPS, D <= 128 && SPREAD ? 2 : 1) attn_mma(const attn a)
{
    using S = shape<D>;
    constexpr int DC = S::DC;
    extern __shared__ __align__(16) unsigned char raw[];
    typename S::memory &m = *(typename S::memory *)raw;
    cuda_grid_start();

    const int lane = threadIdx.x % 32, w = threadIdx.x / 32, g = lane / 4, c = lane % 4;
    const int tile = a.tile0 + (SPREAD ? blockIdx.x : gridDim.x - 1 - blockIdx.x); /* the longest first */
    const int kv_head = blockIdx.y, chunk = blockIdx.z % S::CHUNKS, slot = blockIdx.z / S::CHUNKS;

    const struct range seen = tile_range(a, tile);
    const int tile_lo = seen.tile_lo, tile_hi = seen.tile_hi, split0 = seen.split0, n_splits = seen.n_splits;
    const int lo0 = __shfl_sync(~0u, seen.lo, g),
              hi0 = __shfl_sync(~0u, seen.hi, g); /* of my rows, g and g + 8 */
    const int lo1 = __shfl_sync(~0u, seen.lo, g + 8), hi1 = __shfl_sync(~0u, seen.hi, g + 8);
    if (SPREAD && slot >= max(n_splits, 1)) return;

    float acc[S::NT][4], top0 = -INFINITY, top1 = -INFINITY, sum0 = 0.0f, sum1 = 0.0f;
#pragma unroll
    for (int t = 0; t < S::NT; t++) acc[t][0] = acc[t][1] = acc[t][2] = acc[t][3] = 0.0f;
    const int64_t stride = (int64_t)a.n_kv * D;
    const int s_from = SPREAD ? split0 + slot : split0,
              s_to = SPREAD ? min(s_from + 1, split0 + n_splits) : split0 + n_splits;
    uint16_t *my_v = m.box[w].v;
    float unit0 = 0.0f, unit1 = 0.0f;
    bool ready = false; /* the queries are in place: the first keys and values are asked for before */

    for (int s = s_from; s < s_to; s = SPREAD ? s_to : s + 1) {
        const int p0 = s * KN_KV_SPLIT + 32 * w; /* my warp's first key */
        const bool any = p0 < tile_hi && p0 + 32 > tile_lo;
        const int64_t at = ((int64_t)(s * KN_KV_SPLIT % a.cap) + 32 * w) * stride + kv_head * D;
        const uint16_t *k = (const uint16_t *)a.k + at + g * stride + 8 * c;
        const uint16_t *v = (const uint16_t *)a.v + at + chunk * DC;
        constexpr int GROUP = D < 128 ? 2 : 4; /* 32 columns of keys at a time in registers */
        uint4 b[GROUP][4];
        bool key_in[4];
#pragma unroll
        for (int j = 0; j < 4; j++) key_in[j] = p0 + 8 * j + g >= tile_lo && p0 + 8 * j + g < tile_hi;
        if (any) {
            constexpr int PIECES = DC / 8,
                          KEYS = 32 / PIECES; /* 16-byte pieces of a value, values a turn of the warp */
            const int piece = lane % PIECES;
#pragma unroll
            for (int key = lane / PIECES, i = 0; i < PIECES; i++, key += KEYS) {
                const bool in = p0 + key >= tile_lo && p0 + key < tile_hi;
                copy_async(my_v + key * S::ROW + 8 * piece, in ? v + key * stride + 8 * piece : v, in);
            }
#pragma unroll
            for (int i = 0; i < GROUP; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    b[i][j] =
                        key_in[j] ? *(const uint4 *)(k + 8 * j * stride + 32 * i) : make_uint4(0, 0, 0, 0);
        }
        if (!ready) {
            load_queries<D, BF16>(a, m, tile, kv_head);
            unit0 = m.unit[g], unit1 = m.unit[g + 8];
            ready = true;
        }
        if (!any) continue;
        float x[4][4] = {};
#pragma unroll
        for (int first = 0; first < D / 32; first += GROUP) {
            if (first)
#pragma unroll
                for (int i = 0; i < GROUP; i++)
#pragma unroll
                    for (int j = 0; j < 4; j++)
                        b[i][j] = key_in[j] ? *(const uint4 *)(k + 8 * j * stride + 32 * (first + i))
                                            : make_uint4(0, 0, 0, 0);
#pragma unroll
            for (int i = 0; i < GROUP; i++)
#pragma unroll
                for (int part = 0; part < 2; part++) {
                    const uint4 a0 = m.q[2 * (first + i)][part][lane],
                                a1 = m.q[2 * (first + i) + 1][part][lane];
                    const uint32_t f0[4] = {a0.x, a0.y, a0.z, a0.w}, f1[4] = {a1.x, a1.y, a1.z, a1.w};
#pragma unroll
                    for (int j = 0; j < 4; j++) mma<BF16>(x[j], f0, b[i][j].x, b[i][j].y);
#pragma unroll
                    for (int j = 0; j < 4; j++) mma<BF16>(x[j], f1, b[i][j].z, b[i][j].w);
                }
        }
        /* Scores to weights. x[j][0], [1]: row g, keys 8 j + 2 c and the next; [2], [3]: row g + 8. */
        float new0 = top0, new1 = top1;
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int p = p0 + 8 * j + 2 * c + e;
                x[j][e] = p >= lo0 && p < hi0 ? __fmul_rn(x[j][e], unit0) : -INFINITY;
                x[j][e + 2] = p >= lo1 && p < hi1 ? __fmul_rn(x[j][e + 2], unit1) : -INFINITY;
                new0 = fmaxf(new0, x[j][e]);
                new1 = fmaxf(new1, x[j][e + 2]);
            }
#pragma unroll
        for (int i = 1; i < 4; i <<= 1) {
            new0 = fmaxf(new0, __shfl_xor_sync(~0u, new0, i));
            new1 = fmaxf(new1, __shfl_xor_sync(~0u, new1, i));
        }
        float part0 = 0.0f, part1 = 0.0f;
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                x[j][e] = weight(x[j][e], new0);
                x[j][e + 2] = weight(x[j][e + 2], new1);
                part0 = __fadd_rn(part0, x[j][e]);
                part1 = __fadd_rn(part1, x[j][e + 2]);
            }
#pragma unroll
        for (int i = 1; i < 4; i <<= 1) {
            part0 = __fadd_rn(part0, __shfl_xor_sync(~0u, part0, i));
            part1 = __fadd_rn(part1, __shfl_xor_sync(~0u, part1, i));
        }
        if (!SPREAD && s > s_from) {
            const float f0 = weight(top0, new0), f1 = weight(top1, new1);
            sum0 = __fmul_rn(sum0, f0);
            sum1 = __fmul_rn(sum1, f1);
#pragma unroll
            for (int t = 0; t < S::NT; t++) {
                acc[t][0] = __fmul_rn(acc[t][0], f0);
                acc[t][1] = __fmul_rn(acc[t][1], f0);
                acc[t][2] = __fmul_rn(acc[t][2], f1);
                acc[t][3] = __fmul_rn(acc[t][3], f1);
            }
        }
        sum0 = __fadd_rn(sum0, part0);
        sum1 = __fadd_rn(sum1, part1);
        top0 = new0;
        top1 = new1;
        /* Some row of the tile does not see some key of the warp: a NaN there must not meet its zero weight.
         */
        const bool ragged = p0 < seen.full_lo || p0 + 32 > seen.full_hi;
        bool nan0 = false, nan1 = false;
        copy_wait();
#pragma unroll
        for (int t = 0; t < 2; t++) { /* keys 16 t .. 16 t + 15 */
            uint32_t high[4], low[4];
            two_parts<BF16>(x[2 * t][0], x[2 * t][1], high[0], low[0]);
            two_parts<BF16>(x[2 * t][2], x[2 * t][3], high[1], low[1]);
            two_parts<BF16>(x[2 * t + 1][0], x[2 * t + 1][1], high[2], low[2]);
            two_parts<BF16>(x[2 * t + 1][2], x[2 * t + 1][3], high[3], low[3]);
#pragma unroll
            for (int u = 0; u < DC / 64; u++) {
                uint32_t b[4][4]; /* of keys 2 c, 2 c + 1, 2 c + 8, 2 c + 9: columns 64 u + 8 g .. + 7 */
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const int key = 16 * t + j / 2 * 8 + j % 2 + 2 * c;
                    const uint4 y = *(const uint4 *)(my_v + key * S::ROW + 64 * u + 8 * g);
                    b[j][0] = y.x, b[j][1] = y.y, b[j][2] = y.z, b[j][3] = y.w;
                }
                if (ragged)
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        bool bad = false;
                        for (int i = 0; i < 4; i++) bad |= make_finite<BF16>(b[j][i]);
                        /* All lanes of this c hold the same key. */
                        for (int i = 4; i < 32; i <<= 1) bad |= (bool)__shfl_xor_sync(~0u, (int)bad, i);
                        const int p = p0 + 16 * t + j / 2 * 8 + j % 2 + 2 * c;
                        nan0 |= bad && p >= lo0 && p < hi0;
                        nan1 |= bad && p >= lo1 && p < hi1;
                    }
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float *even = acc[8 * u + 2 * i], *odd = acc[8 * u + 2 * i + 1];
                    const uint32_t e0 = __byte_perm(b[0][i], b[1][i], 0x5410),
                                   e1 = __byte_perm(b[2][i], b[3][i], 0x5410);
                    const uint32_t o0 = __byte_perm(b[0][i], b[1][i], 0x7632),
                                   o1 = __byte_perm(b[2][i], b[3][i], 0x7632);
                    mma<BF16>(even, high, e0, e1);
                    mma<BF16>(odd, high, o0, o1);
                    mma<BF16>(even, low, e0, e1);
                    mma<BF16>(odd, low, o0, o1);
                }
            }
        }
        if (ragged) {
            for (int i = 1; i < 4; i <<= 1) {
                nan0 |= (bool)__shfl_xor_sync(~0u, (int)nan0, i);
                nan1 |= (bool)__shfl_xor_sync(~0u, (int)nan1, i);
            }
            if (nan0) sum0 = __int_as_float(0x7fc00000);
            if (nan1) sum1 = __int_as_float(0x7fc00000);
        }
    }

    /* The warps' results, each in its box, and what each weighs. */
    __syncwarp();
    if (c == 0) {
        m.top[w][g] = top0, m.top[w][g + 8] = top1;
        m.sum[w][g] = sum0, m.sum[w][g + 8] = sum1;
    }
#pragma unroll
    for (int t = 0; t < S::NT; t++)
        m.box[w].acc[t][lane] = make_float4(acc[t][0], acc[t][1], acc[t][2], acc[t][3]);
    __syncthreads();
    if (threadIdx.x < WARPS * TILE) {
        const int r = threadIdx.x % TILE;
        float top = m.top[0][r];
#pragma unroll
        for (int i = 1; i < WARPS; i++) top = fmaxf(top, m.top[i][r]);
        m.f[threadIdx.x / TILE][r] = weight(m.top[threadIdx.x / TILE][r], top);
        if (threadIdx.x < TILE) m.total_top[r] = top;
    }
    __syncthreads();
    const bool whole = !SPREAD || n_splits <= 1;
    if (whole) {
        write_rows<D, S::NT>(a, m, tile, kv_head, chunk, 0);
        return;
    }
    const int group = (chunk * a.n_kv + kv_head) * a.n_tiles + tile - a.tile0;
    float *part = a.part + (int64_t)group * a.slots * S::PART, *mine = part + (int64_t)slot * S::PART;
    for (int item = threadIdx.x; item < S::NT * 32; item += 32 * WARPS) {
        const int l = item % 32, t = item / 32;
        float4 y = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (int i = 0; i < WARPS; i++) {
            const float4 v = m.box[i].acc[t][l];
            const float f0 = m.f[i][l / 4], f1 = m.f[i][l / 4 + 8];
            y.x = __fmaf_rn(f0, v.x, y.x);
            y.y = __fmaf_rn(f0, v.y, y.y);
            y.z = __fmaf_rn(f1, v.z, y.z);
            y.w = __fmaf_rn(f1, v.w, y.w);
        }
        ((float4 *)(mine + 2 * TILE))[item] = y;
    }
    if (threadIdx.x < TILE) {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < WARPS; i++) sum = __fmaf_rn(m.f[i][threadIdx.x], m.sum[i][threadIdx.x], sum);
        mine[threadIdx.x] = m.total_top[threadIdx.x];
        mine[TILE + threadIdx.x] = sum;
    }
    if (a.apart) return;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        m.last = atomicAdd(&a.count[group], 1u) == (unsigned)n_splits - 1;
        if (m.last) a.count[group] = 0;
    }
    __syncthreads();
    if (!m.last) return;
    __threadfence();
    merge<D, S::NT>(a, m, part, split0, n_splits, tile, kv_head, chunk, 0);
}

/* ---- any type, any head size ---- */

static __device__ __forceinline__ float cache_at(const void *p, uint32_t type, int64_t i)
{
    if (type == KN_F32) return ((const float *)p)[i];
    return type == KN_F16 ? from_half<false>(((const uint16_t *)p)[i])
                          : from_half<true>(((const uint16_t *)p)[i]);
}

static __global__ void __launch_bounds__(KN_KV_SPLIT) attn_any(const attn a)
{
    __shared__ float q[512], w[KN_KV_SPLIT], tree[KN_KV_SPLIT / 32];
    cuda_grid_start();
    const int t = threadIdx.x, head = blockIdx.x, row = blockIdx.y, kv_head = head / a.n_rep;
    const int64_t at = ((int64_t)row * a.n_head + head) * a.d, stride = (int64_t)a.n_kv * a.d;
    for (int i = t; i < a.d; i += KN_KV_SPLIT) q[i] = a.q[at + i];
    int lo, hi;
    visible(a, row, lo, hi);
    float top = -INFINITY, sum = 0.0f, acc[2] = {0.0f, 0.0f};
    for (int s = lo / KN_KV_SPLIT; lo < hi && s <= (hi - 1) / KN_KV_SPLIT; s++) {
        const int p = s * KN_KV_SPLIT + t, from = max(lo - s * KN_KV_SPLIT, 0),
                  to = min(hi - s * KN_KV_SPLIT, KN_KV_SPLIT);
        const int64_t base = (int64_t)(s * KN_KV_SPLIT % a.cap) * stride + kv_head * a.d;
        float x = -INFINITY, here;
        __syncthreads();
        if (p >= lo && p < hi) {
            x = 0.0f;
            for (int i = 0; i < a.d; i++)
                x = __fmaf_rn(q[i], cache_at(a.k, a.type, base + t * stride + i), x);
            x = __fmul_rn(x, a.scale);
        }
        here = x;
        for (int i = 16; i; i >>= 1) here = fmaxf(here, __shfl_xor_sync(~0u, here, i));
        if (t % 32 == 0) tree[t / 32] = here;
        __syncthreads();
        for (int i = 0; i < KN_KV_SPLIT / 32; i++) here = fmaxf(here, tree[i]);
        here = fmaxf(here, top);
        x = weight(x, here);
        w[t] = x;
        for (int i = 16; i; i >>= 1) x = __fadd_rn(x, __shfl_xor_sync(~0u, x, i));
        __syncthreads();
        if (t % 32 == 0) tree[t / 32] = x;
        __syncthreads();
        const float f = weight(top, here);
        sum = __fmul_rn(sum, f);
        for (int i = 0; i < KN_KV_SPLIT / 32; i++) sum = __fadd_rn(sum, tree[i]);
        top = here;
        for (int i = 0; i < 2; i++) {
            const int d = t + i * KN_KV_SPLIT;
            if (d >= a.d) break;
            acc[i] = __fmul_rn(acc[i], f);
            for (int j = from; j < to; j++)
                acc[i] = __fmaf_rn(w[j], cache_at(a.v, a.type, base + j * stride + d), acc[i]);
        }
    }
    for (int i = 0; i < 2; i++)
        if (t + i * KN_KV_SPLIT < a.d)
            a.out[at + t + i * KN_KV_SPLIT] = sum == 0.0f ? 0.0f : __fdiv_rn(acc[i], sum);
}

/* ---- launching ---- */

typedef void (*kernel)(attn);

template <int D> static kernel pick_type(uint32_t type, bool spread, size_t *smem)
{
    *smem = sizeof(typename shape<D>::memory);
    if (spread) return type == KN_BF16 ? attn_mma<D, true, true> : attn_mma<D, false, true>;
    return type == KN_BF16 ? attn_mma<D, true, false> : attn_mma<D, false, false>;
}

static kernel pick_kernel(int32_t d, uint32_t type, bool spread, size_t *smem)
{
    if (type == KN_F32) return NULL;
    switch (d) {
    case 64: return pick_type<64>(type, spread, smem);
    case 128: return pick_type<128>(type, spread, smem);
    case 256: return pick_type<256>(type, spread, smem);
    case 512: return pick_type<512>(type, spread, smem);
    default: return NULL;
    }
}

static kernel merge_kernel(int32_t d)
{
    return d == 64    ? attn_merge<64>
           : d == 128 ? attn_merge<128>
           : d == 256 ? attn_merge<256>
                      : attn_merge<512>;
}

/* Splits from which the merge is a kernel of its own. The bits are the same. */
int cuda_attention_apart = 5;

int cuda_attention_open(struct cuda_backend *be)
{
    static const int sizes[] = {64, 128, 256, 512};
    static const uint32_t types[] = {KN_F16, KN_BF16};
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {
            size_t smem = 0;
            kernel f = pick_kernel(sizes[i], types[j / 2], j % 2, &smem);
            if (smem > (size_t)be->smem_block)
                return cuda_fail(be, KN_EDEVICE,
                                 "attention: %zu bytes of shared memory a block wanted, the device has %d",
                                 smem, be->smem_block);
            int rc = cuda_check(be, "attention",
                                cudaFuncSetAttribute((const void *)f,
                                                     cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem));
            if (rc == 0)
                rc = cuda_check(be, "attention",
                                cudaFuncSetAttribute((const void *)merge_kernel(sizes[i]),
                                                     cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem));
            if (rc) return rc;
        }
    return 0;
}

/* The most splits that a tile can see. */
static int32_t split_slots(const struct kn_kv *kv, int32_t window)
{
    int64_t slots = kv->cap / KN_KV_SPLIT + 1, bounded = (2 * (int64_t)window + TILE) / KN_KV_SPLIT + 2;
    return (int32_t)(window && bounded < slots ? bounded : slots);
}

/* Bytes of one tile's partial results, all heads. */
static size_t tile_bytes(const struct kn_kv *kv, int32_t window)
{
    int32_t dc = kv->head_dim < 128 ? kv->head_dim : 128, chunks = kv->head_dim / dc;
    return (size_t)chunks * kv->n_head_kv * split_slots(kv, window) * TILE * (dc + 2) * sizeof(float);
}

static int32_t tiles_of(int32_t n, int32_t n_rep)
{
    return (int32_t)(((int64_t)n * n_rep + TILE - 1) / TILE);
}

size_t cuda_attention_scratch(int32_t n, int32_t n_head, const struct kn_kv *kv, int32_t window)
{
    size_t smem = 0, one = tile_bytes(kv, window);
    if (!pick_kernel(kv->head_dim, kv->type, true, &smem)) return 0;
    size_t all = one * (size_t)tiles_of(n < FEW ? n : FEW, n_head / kv->n_head_kv),
           most = one > BUDGET ? one : BUDGET;
    return all < most ? all : most;
}

#ifdef CUDA_DEBUG_SYNC
/* Keys that a row should see but that the ring no longer holds would be read as others. */
static int check_ring(struct cuda_backend *be, const struct kn_attention *a)
{
    int32_t first[2], last, bound = 0;
    int rc = be->head.op->download((struct kn_backend *)be, first, a->pos, sizeof *first);
    if (rc == 0) rc = be->head.op->download((struct kn_backend *)be, &last, a->pos + a->n - 1, sizeof last);
    if (rc == 0 && a->first)
        rc = be->head.op->download((struct kn_backend *)be, &bound, a->first, sizeof bound);
    if (rc) return rc;
    int32_t lo = a->window && first[0] >= a->window ? first[0] - a->window + 1 : 0;
    if (lo < bound) lo = bound;
    if (first[0] < 0 || last != first[0] + a->n - 1)
        return cuda_fail(be, KN_EINVAL, "attention: positions %d to %d in %d rows", first[0], last, a->n);
    if (last - lo >= a->kv->cap)
        return cuda_fail(
            be, KN_EINVAL,
            "attention: row at %d sees position %d, which a ring of %d at position %d no longer holds",
            first[0], lo, a->kv->cap, last);
    return 0;
}
#endif

int cuda_attention(struct kn_backend *kb, const struct kn_attention *a)
{
    struct cuda_backend *be = cuda_of(kb);
    const struct kn_kv *kv = a->kv;
    int rc = cuda_check_kv(be, "attention", kv);
    if (rc) return rc;
    if (a->n < 1 || a->n > 65535 || a->n_head < 1 || a->n_head % kv->n_head_kv || a->window < 0 ||
        kv->n_head_kv > 65535)
        return cuda_fail(be, KN_EINVAL, "attention: %d rows of %d heads over %d KV heads, window %d", a->n,
                         a->n_head, kv->n_head_kv, a->window);
#ifdef CUDA_DEBUG_SYNC
    if ((rc = check_ring(be, a))) return rc;
#endif
    size_t smem = 0;
    kernel f = pick_kernel(kv->head_dim, kv->type, a->n <= FEW, &smem);
    struct attn p = {};
    p.q = a->q, p.out = a->out, p.part = (float *)be->scratch_rows, p.k = kv->k, p.v = kv->v, p.pos = a->pos,
    p.first = a->first;
    p.count = be->count + 1024; /* the first belong to find_bad and pick */
    p.n = a->n, p.n_head = a->n_head, p.n_kv = kv->n_head_kv, p.n_rep = a->n_head / kv->n_head_kv,
    p.d = kv->head_dim;
    p.cap = kv->cap, p.window = a->window, p.type = kv->type, p.scale = a->scale, p.causal = a->causal;
    if (!f)
        return cuda_check(
            be, "attention",
            cuda_launch(be, attn_any, dim3((unsigned)a->n_head, (unsigned)a->n), dim3(KN_KV_SPLIT), 0, p));
    const int32_t tiles = tiles_of(a->n, p.n_rep);
    p.spread = a->n <= FEW;
    p.slots = p.spread ? split_slots(kv, a->window) : 1;
    if (p.spread && be->head.kv_bound && be->head.kv_bound / KN_KV_SPLIT + 1 < p.slots)
        p.slots = be->head.kv_bound / KN_KV_SPLIT + 1;
    p.chunks = kv->head_dim < 128 ? 1 : kv->head_dim / 128;
    p.apart = p.spread && p.slots >= cuda_attention_apart;
    int64_t turn = tiles;
    if (p.spread) {
        const size_t one = tile_bytes(kv, a->window);
        const int64_t counted = (be->counters - 1024) / (p.chunks * p.n_kv);
        turn = (int64_t)(be->scratch_rows_bytes / one);
        if (turn > counted) turn = counted;
        if (turn < 1)
            return cuda_fail(be, KN_EINVAL,
                             "attention: %d heads of %d over a ring of %d want %zu bytes of scratch, %zu are "
                             "reserved (reserve_kv)",
                             a->n_head, kv->head_dim, kv->cap, one, be->scratch_rows_bytes);
    }
    for (p.tile0 = 0; p.tile0 < tiles && rc == 0; p.tile0 += (int32_t)turn) {
        p.n_tiles = (int32_t)(tiles - p.tile0 < turn ? tiles - p.tile0 : turn);
        dim3 grid((unsigned)p.n_tiles, (unsigned)p.n_kv, (unsigned)(p.slots * p.chunks));
        rc = cuda_check(be, "attention", cuda_launch(be, f, grid, dim3(32 * WARPS), smem, p));
        if (!p.apart || rc) continue;
        grid.z = (unsigned)(p.chunks * (kv->head_dim < 128 ? kv->head_dim : 128) / (8 * MERGE_N));
        rc = cuda_check(be, "attention",
                        cuda_launch(be, merge_kernel(kv->head_dim), grid, dim3(32 * WARPS), smem, p));
    }
    return rc;
}
