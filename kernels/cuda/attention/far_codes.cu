/* attention/far_codes.cu - attention of 2 to FEW rows over long quantised caches, heads of 128, by products
 * of four warps (compute capability 9.0).
 *
 * Bound: reading the codes once, or making halves of them: attn_codes makes them for two tiles and then again
 * for the next two. Here eight warps of a block do nothing else, four with keys and four with values. They
 * copy a kv head's codes (cp.async, each warp those of 16 keys of an *item* of 64, some items ahead), and
 * write halves times scales to shared memory, as the products of two groups of four warps want them
 * (four.cuh): once for 64 (row, head)s, or for 128.
 *
 *     codes   item 0, item 1, ...          cp.async, a ring of as many as there is room for
 *     halves  K0 V0 K1 V1 K2 V2            three items' room, each part with its own barriers
 *     rows    one group (64 rows' heads):  both groups of warps have it, of items by turns
 *             two groups and more:         each has one, of all items
 *
 * The same bits as attn_codes (codes.cuh): a leaf of 32 keys is added to the sum of its number modulo 4 at
 * that sum's own top; so an item is added to two sums, and the next one to the other two. One group: each
 * group of warps has two sums. Two: items of even number come first, what their sums came to waits in memory.
 * Columns of keys stand in the order in which attn_codes multiplies them. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#pragma nv_diag_suppress 177 /* nothing of this is for such a device */
#endif
#define mma attention_mma /* as four.cuh */
#include "codes.cuh"
#undef mma
#include "codes_launch.cuh"
#include "four.cuh"

namespace far_codes
{
using namespace four;
enum {
    D = 128,
    ITEM = 64,
    LEAF = ATTN_CODES_LEAF(D),
    TILES = 4, /* of a group of rows: a warp each */
    GROUPS = 2,
    THREADS = 128 * GROUPS,      /* that multiply */
    ALL_THREADS = THREADS + 256, /* and that copy codes, and make halves of them */
    KEYS = 16,                   /* of an item, of a warp that makes halves */
    HALF = ITEM * 128,           /* bytes of 64 columns of an item, or of a group's queries */
    PART = 2 * HALF,             /* of an item's keys, or values */
    STAGES = 3,                  /* items as halves */
    MOST = 6,                    /* items as codes, at most */
    AT_HALVES = GROUPS * PART,
    AT_UNITS = AT_HALVES + STAGES * 2 * PART,
    AT_BAD = AT_UNITS + 4 * GROUPS * TILES * TILE,
    AT_BARS = AT_BAD + 4 * 4 * STAGES, /* bits of 16 keys, of a warp */
    AT_CODES = AT_BARS + 8 * (4 * STAGES + 2 * MOST),
    BYTES = AT_CODES + 1024 /* to stand at a multiple of 1,024; and codes */
};
static_assert(BYTES == ATTN_FAR_CODES_BYTES && KEYS == ATTN_FAR_CODES_KEYS && MOST == ATTN_FAR_CODES_MOST,
              "as attention_plan.h has it");

/* Nodes of a block, of `ranks` of a kv head: those of 1,024 keys in turn, then the last of them where it is
 * not whole, then those of 256, to who has one of 1,024 less. */
struct deal {
    int large, whole, part, small, n_small, rank, ranks; /* part: of the last one's 256 keys, of 4 */
    int at, next_small;
    __device__ __forceinline__ void open(const attn &a, const struct span &seen, int rank_, int ranks_)
    {
        constexpr int NEAR = ATTN_CODES_NEAR / 256;
        const bool any = seen.hi > seen.lo && ranks_ > 0;
        const int first = any ? ATTN_CODES_NODE(a.window, seen.lo) : 0,
                  last = any ? ATTN_CODES_NODE(a.window, seen.hi - 1) : -1;
        rank = at = rank_, ranks = max(ranks_, 1);
        small = first, n_small = max((a.window ? last : min(last, NEAR - 1)) + 1 - first, 0);
        large = max(first, NEAR);
        whole = a.window ? 0 : max(last + 1 - large, 0);
        part = whole ? (seen.hi - ATTN_CODES_START(0, last) + 255) / 256 % 4 : 0;
        if (part) whole--;
        next_small = -1;
    }
    __device__ __forceinline__ int owner(int j) const
    {
        const int r = whole % ranks, m = ranks - r;
        if (j < part * (m - 1)) return r + 1 + j % (m - 1);
        j -= part * (m - 1);
        if (j < (4 - part) * m) return r + j % m;
        return (j - (4 - part) * m) % ranks;
    }
    __device__ __forceinline__ int next() /* -1: no more */
    {
        if (at < whole) {
            at += ranks;
            return large + at - ranks;
        }
        if (next_small < 0) {
            next_small = 0;
            if (part && rank == whole % ranks) return large + whole;
        }
        while (next_small < n_small)
            if (owner(next_small++) == rank) return small + next_small - 1;
        return -1;
    }
};
/* Items of a node. */
struct items {
    int from, to;
};
DEV struct items items_of(const attn &a, int node, const struct span &seen)
{
    return {max(ATTN_CODES_START(a.window, node), seen.lo) / ITEM,
            (min(ATTN_CODES_START(a.window, node + 1), seen.hi) - 1) / ITEM + 1};
}
/* Items in the order in which they are made. both: by both groups of warps, even ones of a node first. */
struct walk {
    struct deal nodes;
    struct items of;
    int at;
    bool odd;
    __device__ __forceinline__ void open(const struct deal &d)
    {
        nodes = d, of = {0, 0}, at = 0, odd = true;
    }
    __device__ __forceinline__ bool next(const attn &a, const struct span &seen, bool both)
    {
        at += both ? 2 : 1;
        while (at >= of.to) {
            if (both && !odd) {
                odd = true;
                at = of.from | 1;
                continue;
            }
            const int node = nodes.next();
            if (node < 0) return false;
            of = items_of(a, node, seen);
            at = both ? (of.from + 1) & ~1 : of.from;
            odd = false;
        }
        return true;
    }
};

struct work {
    int kv_head, tile, tiles, rank, ranks;
};
DEV struct work work_of(const struct codes_args &p, bool both)
{
    const int n = p.a.n_kv, pairs = both ? (p.turned + 2 * TILES - 1) / (2 * TILES) : 1, id = (int)blockIdx.x,
              ranks = (int)gridDim.x / (n * pairs), at = id % (n * pairs), rank = id / (n * pairs);
    return {at % n, p.a.tile0 + at / n * 2 * TILES, both ? 2 * TILES : TILES, rank, rank < ranks ? ranks : 0};
}

/* ---- codes to halves ---- */

/* 16 keys of an item: `raw` their codes, `to` the item's part. A lane has a block of 32 columns of a key at a
 * time. Values that not all rows see: those that are no numbers become zeros; bits of their keys. */
template <uint32_t TYPE, bool VALUES>
DEV uint32_t make_halves(uint8_t *to, const unsigned char *raw, int w, int odd, bool ragged)
{
    using S = staged<TYPE, D>;
    constexpr int WORDS = S::LOW / 16; /* of the block's codes */
    const int lane = threadIdx.x % 32, b = lane / 8;
    uint32_t bad = 0;
#pragma unroll 1
    for (int t = 0; t < KEYS; t += 8) {
        const int k = t + lane % 8, key = KEYS * w + k;
        const unsigned char *low = raw + k * S::LOW_PITCH + b * (S::LOW / 4);
        uint32_t d = scale_twice(raw + S::scale_at(KEYS) + k * S::SCALE_PITCH +
                                 b * 32 / kv_code<TYPE>::GROUP * 2 + odd),
                 codes[8], high = 0;
        if (WORDS == 2)
            *(uint2 *)codes = *(const uint2 *)low;
        else
#pragma unroll
            for (int i = 0; i < WORDS; i += 4) *(uint4 *)(codes + i) = *(const uint4 *)(low + 4 * i);
        if (S::HIGH) high = *(const uint32_t *)(raw + S::high_at(KEYS) + k * S::HIGH_PITCH + 4 * b);
        if (VALUES && ragged) {
            const uint32_t none = __ballot_sync(~0u, (d & 0x7c00) == 0x7c00);
            if (none >> lane & 1) d = 0;
            bad |= ((none | none >> 8 | none >> 16 | none >> 24) & 255) << t;
        }
        uint8_t *row = to + b / 2 * HALF + key * 128;
#pragma unroll
        for (int s = 0; s < 2; s++) { /* 16 columns */
            uint32_t y[4][2];
#pragma unroll
            for (int c = 0; c < 4; c++) {
                kv_halves_of<TYPE>(
                    kv_four<TYPE>((const unsigned char *)codes, (const unsigned char *)&high, 4 * s + c),
                    y[c]);
                y[c][0] = kv_mul(y[c][0], d), y[c][1] = kv_mul(y[c][1], d);
            }
#pragma unroll
            for (int e = 0; e < 2; e++) { /* keys: columns 4 c and the next, then the other two */
                const uint4 z = VALUES
                                    ? make_uint4(y[2 * e][0], y[2 * e][1], y[2 * e + 1][0], y[2 * e + 1][1])
                                    : make_uint4(y[0][e], y[1][e], y[2][e], y[3][e]);
                *(uint4 *)(row + ((b % 2 * 4 + 2 * s + e) ^ key % 8) * 16) = z;
            }
        }
    }
    return bad;
}
template <bool VALUES>
DEV uint32_t make_any(uint32_t type, uint8_t *to, const unsigned char *raw, int w, int odd, bool ragged)
{
    switch (type) {
    case KN_Q8_0: return make_halves<KN_Q8_0, VALUES>(to, raw, w, odd, ragged);
    case KN_Q5_0: return make_halves<KN_Q5_0, VALUES>(to, raw, w, odd, ragged);
    case KN_Q4_0: return make_halves<KN_Q4_0, VALUES>(to, raw, w, odd, ragged);
    default: return make_halves<KN_TQ3_0, VALUES>(to, raw, w, odd, ragged);
    }
}

struct place {
    uint32_t at, phase;
    __device__ __forceinline__ void next()
    {
        if (++at == STAGES) at = 0, phase ^= 1;
    }
};

/* Bytes of 16 keys' codes, and where the codes of an item begin: [item][warp][keys, values]. */
struct code_ring {
    unsigned char *at;
    uint64_t *full, *empty; /* [stages] */
    int each, stages;
};
/* The barrier hears of it when all copies of the thread so far have landed. */
DEV void copies_arrive(uint64_t *b)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_at(b)) : "memory");
#endif
}
/* A warp of the four that copy codes. Who makes halves has to wait for all it has asked for (a fence between
 * proxies), so these are others. */
DEV void copy(const struct codes_args &p, const struct work &o, const struct span &seen, int pos0, bool both,
              const struct code_ring &ring)
{
    const attn &a = p.a;
    const int w = __shfl_sync(~0u, (int)threadIdx.x / 32 % 4, 0);
    bool waited = !a.early;
    struct deal d;
    d.open(a, seen, o.rank, o.ranks);
    struct walk now;
    now.open(d);
    int slot = 0;
    uint32_t phase = 1;
#pragma unroll 1
    while (now.next(a, seen, both)) {
        if (!waited && (now.at + 1) * ITEM > pos0) cuda_grid_wait(), waited = true;
        const int p0 = now.at * ITEM + KEYS * w;
        const int64_t at = KV_SLOT(a.where, p0);
        const unsigned to = shared_at(ring.at) + (unsigned)((slot * 4 + w) * ring.each);
        bar_wait(ring.empty + slot, phase);
        struct code_rows<false> rows = {
            p.k.at + at *p.k.row, nullptr, nullptr, p.k.row, 0
        };
        stage_any<D, D, KEYS>(p.k, rows, to, p0, o.kv_head, 0, seen);
        rows.ring = p.v.at + at * p.v.row, rows.stride = p.v.row;
        stage_any<D, D, KEYS>(p.v, rows, to + (unsigned)p.values_at, p0, o.kv_head, 0, seen);
        copies_arrive(ring.full + slot);
        if (++slot == ring.stages) slot = 0, phase ^= 1;
    }
    copy_commit();
    copy_wait(0);
}
/* A warp of the four that make halves. bars: full ones of keys and values by turns, then empty ones. */
DEV void make(const struct codes_args &p, const struct work &o, const struct span &seen,
              const struct span &whole, bool both, unsigned char *base, uint64_t *bars,
              const struct code_ring &ring)
{
    const attn &a = p.a;
    const int lane = threadIdx.x % 32, w = __shfl_sync(~0u, (int)threadIdx.x / 32 % 4, 0),
              k_odd = scale_odd(p.k, o.kv_head), v_odd = scale_odd(p.v, o.kv_head);
    uint32_t *const bad_at = (uint32_t *)(base + AT_BAD) + w;
    struct deal d;
    d.open(a, seen, o.rank, o.ranks);
    struct walk now;
    now.open(d);
    int slot = 0;
    uint32_t phase = 0;
    struct place at = {0, 1};
#pragma unroll 1
    while (now.next(a, seen, both)) {
        const unsigned char *const codes = ring.at + (slot * 4 + w) * ring.each;
        const int p0 = now.at * ITEM;
        const bool ragged = p0 < whole.lo || p0 + ITEM > whole.hi;
        uint8_t *const to = base + AT_HALVES + at.at * 2 * PART;
        uint64_t *const full = bars + 2 * at.at, *const empty = full + 2 * STAGES;
        bar_wait(ring.full + slot, phase);
        bar_wait(empty, at.phase);
        make_any<false>(p.k.type, to, codes, w, k_odd, false);
        shared_fence();
        __syncwarp();
        if (lane == 0) bar_arrive(full);
        bar_wait(empty + 1, at.phase);
        const uint32_t bad = make_any<true>(p.v.type, to + PART, codes + p.values_at, w, v_odd, ragged);
        if (ragged && lane == 0) bad_at[4 * at.at] = bad;
        shared_fence();
        __syncwarp();
        if (lane == 0) {
            bar_arrive(full + 1);
            bar_arrive(ring.empty + slot);
        }
        if (++slot == ring.stages) slot = 0, phase ^= 1;
        at.next();
    }
}

/* ---- queries ---- */

/* A warp's tile of queries, as code_queries makes them, as a quarter of the group's rows; columns in the
 * order of keys. units: their 16. */
DEV void queries(const struct codes_args &p, uint8_t *to, float *units, int tile, int kv_head)
{
    constexpr int N = 4, W = D / 32; /* rows at a time */
    const attn &a = p.a;
    const int lane = threadIdx.x % 32, row64 = (int)threadIdx.x % 128 / 32 * TILE,
              col = lane / 16 * 16 + lane % 4 / 2 * 8 + lane % 16 / 4 * 2 + lane % 2; /* of 32 */
#pragma unroll 1
    for (int r0 = 0; r0 < TILE; r0 += N) {
        float x[N][W];
#pragma unroll
        for (int i = 0; i < N; i++) {
            const int at = tile * TILE + r0 + i, row = row_of(a, at);
            const float *q = a.q + head_of_row(a, row, kv_head, at) * D;
#pragma unroll
            for (int j = 0; j < W; j++) x[i][j] = row < a.n ? q[lane + 32 * j] : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < N; i++) kv_turn_head<W>(x[i], p.k.type, false, false);
#pragma unroll
        for (int i = 0; i < N; i++) {
            const int r = row64 + r0 + i;
            float top = 0.0f;
#pragma unroll
            for (int j = 0; j < W; j++) top = fmaxf(top, fabsf(x[i][j]));
            top = kv_warp_max(top);
            int e = (__float_as_int(top) >> 23) - 126; /* top < 2^e */
            e = top == INFINITY || e < -100 ? 0 : e > 126 ? 126 : e;
            const float down = __int_as_float((127 - e) << 23);
            if (lane == 0)
                units[r0 + i] =
                    __fmul_rn(__fmul_rn(a.scale, 0x1.715476p+0f), __int_as_float((127 + e) << 23));
#pragma unroll
            for (int j = 0; j < W; j++) {
                const int at = j % 2 * 32 + col;
                *(uint16_t *)(to + j / 2 * HALF + r * 128 + ((at / 8 ^ r) & 7) * 16 + at % 8 * 2) =
                    to_half<false>(__fmul_rn(x[i][j], down));
            }
        }
    }
}

/* ---- sums ---- */

/* One of a node's four: of a warp's tile. */
struct chain_sum {
    float acc[16][4], top[2], sum[2], odd[2];
    __device__ __forceinline__ void clear()
    {
        top[0] = top[1] = -INFINITY, sum[0] = sum[1] = odd[0] = odd[1] = 0.0f;
#pragma unroll
        for (int t = 0; t < 16; t++) acc[t][0] = acc[t][1] = acc[t][2] = acc[t][3] = 0.0f;
    }
    /* Weights of 32 keys from their scores, as fragments; what was there is brought to the new top. */
    __device__ __forceinline__ void weights(uint32_t p[2][4], float x[4][4], const float unit[2])
    {
        float here[2];
        raise_top<4>(here, x, unit, top);
        raise_results<16>(acc, sum, top, here, odd);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float base = top[half] == -INFINITY ? 0.0f : -top[half];
            float all[2] = {0.0f, 0.0f};
#pragma unroll
            for (int j = 0; j < 4; j++) {
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float &y = x[j][2 * half + e];
                    y = exp_two(__fmaf_rn(y, unit[half], base));
                    all[e] = __fadd_rn(all[e], y);
                }
                p[j / 2][j % 2 * 2 + half] = pair_of<false>(x[j][2 * half], x[j][2 * half + 1]);
            }
            sum[half] = __fadd_rn(sum[half], all[0]);
            odd[half] = __fadd_rn(odd[half], all[1]);
        }
    }
    __device__ __forceinline__ void weigh(const uint32_t p[2][4], uint32_t v)
    {
        weigh_128<false>(acc, p[0], v, 1);
        weigh_128<false>(acc, p[1], v + (uint32_t)(16 * 128 >> 4), 1);
    }
    __device__ __forceinline__ void spoil(uint32_t bad0, uint32_t bad1)
    {
        const float none = __int_as_float(0x7fc00000);
#pragma unroll
        for (int t = 0; t < 16; t++) {
            if (bad0) acc[t][0] = acc[t][1] = none;
            if (bad1) acc[t][2] = acc[t][3] = none;
        }
    }
    __device__ __forceinline__ void close()
    {
#pragma unroll
        for (int half = 0; half < 2; half++) sum[half] = quad_sum(__fadd_rn(sum[half], odd[half]));
    }
    __device__ __forceinline__ void add(const chain_sum &o)
    {
        float f[2], h[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float to = fmaxf(top[i], o.top[i]);
            f[i] = factor(top[i], to), h[i] = factor(o.top[i], to);
            top[i] = to, sum[i] = __fmaf_rn(h[i], o.sum[i], __fmul_rn(sum[i], f[i]));
        }
#pragma unroll
        for (int t = 0; t < 16; t++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                acc[t][e] = __fmaf_rn(h[e / 2], o.acc[t][e], __fmul_rn(acc[t][e], f[e / 2]));
    }
};

/* A tile's record; and its results into it. add: to what is there (last: what is there comes last). */
DEV void put(const struct codes_args &p, const chain_sum &s, int tile, int kv_head, int slot, bool add,
             bool last)
{
    const attn &a = p.a;
    const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
    float *record = code_record(p, tile, kv_head, slot, D);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int r = g + 8 * half;
        if (row_of(a, tile * TILE + r) >= a.n) continue;
        float *dst = record + 2 * TILE + r * D + 2 * c;
        float f = 1.0f, h = 0.0f, top = s.top[half], sum = s.sum[half];
        if (add) {
            const float t = record[r], n = record[TILE + r], to = fmaxf(top, t);
            f = factor(last ? top : t, to), h = factor(last ? t : top, to);
            sum = last ? __fmaf_rn(h, n, __fmul_rn(sum, f)) : __fmaf_rn(h, sum, __fmul_rn(n, f));
            top = to;
        }
#pragma unroll
        for (int t = 0; t < 16; t++) {
            float2 z = make_float2(s.acc[t][2 * half], s.acc[t][2 * half + 1]);
            if (add) {
                const float2 y = *(const float2 *)(dst + 8 * t);
                z = last ? make_float2(__fmaf_rn(h, y.x, __fmul_rn(z.x, f)),
                                       __fmaf_rn(h, y.y, __fmul_rn(z.y, f)))
                         : make_float2(__fmaf_rn(h, z.x, __fmul_rn(y.x, f)),
                                       __fmaf_rn(h, z.y, __fmul_rn(y.y, f)));
            }
            *(float2 *)(dst + 8 * t) = z;
        }
        __syncwarp(15u << (threadIdx.x & 28)); /* the row's lanes have read */
        if (c == 0) record[r] = top, record[TILE + r] = sum;
    }
    __syncwarp();
}

/* ---- the kernel ---- */

__global__ void __launch_bounds__(ALL_THREADS, 1)
    attn_far_codes(const __grid_constant__ struct codes_args p, int stages)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    extern __shared__ unsigned char raw[];
    unsigned char *const base = raw + (1024 - (shared_at(raw) & 1023)) % 1024;
    uint64_t *const bars = (uint64_t *)(base + AT_BARS);
    const attn &a = p.a;
    const bool both = p.turned > TILES;
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2 * STAGES; i++) {
            bar_open(bars + i, 4);
            bar_open(bars + 2 * STAGES + i, both ? 4 * GROUPS : 4);
        }
        for (int i = 0; i < MOST; i++) {
            bar_open(bars + 4 * STAGES + i, 128);
            bar_open(bars + 4 * STAGES + MOST + i, 4);
        }
        bar_fence();
    }
    __syncthreads();
    cuda_grid_early();
    if (!a.early) cuda_grid_wait();

    const int lane = threadIdx.x % 32, w = __shfl_sync(~0u, (int)threadIdx.x / 32, 0), group = w / 4;
    const struct work o = work_of(p, both);
    const int pos0 = a.pos[0], bound = a.first ? *a.first : 0;
    const struct span seen = visible_any(a, o.tile, o.tiles, pos0, bound);
    const int last = min(row_of(a, (o.tile + o.tiles) * TILE - 1), a.n - 1),
              begin = min(row_of(a, o.tile * TILE), a.n - 1);
    const struct span whole = {visible(a, last, pos0, bound).lo, visible(a, begin, pos0, bound).hi};
    if (group >= GROUPS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 48;");
        const struct code_ring codes = {base + AT_CODES, bars + 4 * STAGES, bars + 4 * STAGES + MOST,
                                        p.warp_bytes, stages};
        if (group == GROUPS)
            make(p, o, seen, whole, both, base, bars, codes);
        else
            copy(p, o, seen, pos0, both, codes);
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 208;");
    const int g = lane / 4, own = o.tile + (both ? group * TILES : 0), tile = own + w % 4; /* the warp's */
    const struct span mine = visible_any(a, own, TILES, pos0, bound),
                      full = visible_all(a, tile, pos0, bound),
                      v0 = visible_at(a, tile * TILE + g, pos0, bound),
                      v1 = visible_at(a, tile * TILE + g + 8, pos0, bound);
    const int node0 = ATTN_CODES_NODE(a.window, mine.lo),
              node_last = mine.hi > mine.lo && own < a.tile0 + p.turned
                              ? ATTN_CODES_NODE(a.window, mine.hi - 1)
                              : -1; /* nothing is kept of a second group that this launch does not have */
    float *const units_at = (float *)(base + AT_UNITS) + 16 * w;
    uint8_t *const q_at = base + group * PART;
    if (a.early) cuda_grid_wait();
    queries(p, q_at, units_at, tile, o.kv_head);
    shared_fence();
    asm volatile("bar.sync %0, 128;" ::"r"(1 + group) : "memory");
    const float unit[2] = {units_at[g], units_at[g + 8]};
    const uint32_t q = matrix_at(shared_at(q_at), 16);

    struct deal nodes;
    nodes.open(a, seen, o.rank, o.ranks);
    struct place at = {0, 0};
    chain_sum sums[2];
#pragma unroll 1
    for (int node = nodes.next(); node >= 0; node = nodes.next()) {
        const struct items of = items_of(a, node, seen);
        const bool kept = node >= node0 && node <= node_last;
#pragma unroll 1
        for (int pass = 0; pass < (both ? 2 : 1); pass++) {
            sums[0].clear(), sums[1].clear();
#pragma unroll 1
            for (int item = both ? of.from + ((of.from ^ pass) & 1) : of.from; item < of.to;
                 item += both ? 2 : 1) {
                if (!both && (item & 1) != group) { /* the other's */
                    at.next();
                    continue;
                }
                const int p0 = item * ITEM;
                uint64_t *const filled = bars + 2 * at.at, *const empty = filled + 2 * STAGES;
                const uint32_t part = shared_at(base) + AT_HALVES + at.at * 2 * PART;
                float x[8][4];
                uint32_t weights[2][2][4];
                const uint32_t k = matrix_at(part, 16), v = matrix_at(part + PART, HALF);
                uint32_t q_now = q;
                asm volatile(""
                             : "+r"(q_now)); /* or what follows from it is kept in registers there are not */
                bar_wait(filled, at.phase);
                products_begin();
#pragma unroll
                for (int s = 0; s < 8; s++) {
                    const uint32_t off = (uint32_t)((s / 4 * HALF + s % 4 * 32) >> 4);
                    score_64<false>(x, q_now + off, k + off, s);
                }
                products_end();
                settle_64(x);
                if (lane == 0) bar_arrive(empty);
                if (p0 < full.lo || p0 + ITEM > full.hi) hide<8>(x, p0, v0, v1);
                sums[0].weights(weights[0], x, unit);
                sums[1].weights(weights[1], x + 4, unit);
                bar_wait(filled + 1, at.phase);
                uint64_t bad = 0;
                if (p0 < whole.lo || p0 + ITEM > whole.hi) {
                    const uint32_t *b = (const uint32_t *)(base + AT_BAD) + 4 * at.at;
                    bad = (uint64_t)(b[2] | b[3] << 16) << 32 | (b[0] | b[1] << 16);
                }
                products_begin();
                sums[0].weigh(weights[0], v);
                sums[1].weigh(weights[1], v + (uint32_t)(LEAF * 128 >> 4));
                products_end();
                settle_128(sums[0].acc);
                settle_128(sums[1].acc);
                if (lane == 0) bar_arrive(empty + 1);
                at.next();
                if (bad) { /* who sees it gets none */
                    const uint64_t b0 = bad & bits_of(v0, p0), b1 = bad & bits_of(v1, p0);
                    sums[0].spoil((uint32_t)b0, (uint32_t)b1);
                    sums[1].spoil((uint32_t)(b0 >> 32), (uint32_t)(b1 >> 32));
                }
            }
            sums[0].close(), sums[1].close();
            sums[0].add(sums[1]);
            if (both) {
                if (kept) put(p, sums[0], tile, o.kv_head, node - node0, pass == 1, false);
                continue;
            }
            if (group == 1) put(p, sums[0], tile, o.kv_head, node - node0, false, false);
            asm volatile("bar.sync 3, %0;" ::"n"((int)THREADS) : "memory");
            if (group == 0) put(p, sums[0], tile, o.kv_head, node - node0, true, true);
        }
    }
#endif
}
} /* namespace far_codes */

int attn_far_codes_open(struct cuda_backend *be)
{
    if (be->cc < 90 || be->generic || be->smem_block < far_codes::BYTES) return 0;
    return cuda_check(be, "attention",
                      cudaFuncSetAttribute(far_codes::attn_far_codes,
                                           cudaFuncAttributeMaxDynamicSharedMemorySize, be->smem_block));
}
int attn_far_codes_launch(struct cuda_backend *be, const struct codes_args *p, const struct attn_plan *plan)
{
    return cuda_check(be, "attention",
                      cuda_launch(be, far_codes::attn_far_codes, dim3((unsigned)plan->blocks),
                                  dim3(far_codes::ALL_THREADS), plan->smem, *p, (int)plan->stages));
}
