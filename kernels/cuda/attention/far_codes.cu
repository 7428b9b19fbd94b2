/* attention/far_codes.cu - attention of 2 to FEW rows over quantised caches, heads of 128, by products
 * of four warps (compute capability 9.0).
 *
 * Bound: reading the codes once, or making halves of them: attn_codes makes them for two tiles and then again
 * for the next two. Here eight warps of a block do nothing else, four with keys and four with values: of
 * *items* of 64 keys. Low bits come as boxes of tensor maps, which nobody waits for but who needs them,
 * scales and high bits by loads an item ahead; halves times scales go to shared memory as the products of two
 * groups of four warps want them (four.cuh): once for 64 (row, head)s, or for 128.
 *
 *     codes   item 0, item 1, ...          boxes, a ring of as many as there is room for
 *     halves  K0 V0 K1 V1 K2 V2            three items' room, each part with its own barriers
 *     rows    one group (64 rows' heads):  both groups of warps have it, of items by turns
 *             two groups and more:         each has one, of all items
 *
 * The same bits as attn_codes (codes.cuh): a leaf of 32 keys is added to the sum of its number modulo 4 at
 * that sum's own top; so an item is added to two sums, and the next one to the other two. One group: each
 * group of warps has two sums, and at a node's end the second hands its own to the first. Two: items of even
 * number come first, what their sums came to waits in memory. Columns of keys stand in the order in which
 * attn_codes multiplies them. rope_store is a launch before, or its work is done here (a.fold): queries by
 * who multiplies them, new keys and values by who has the node that they are in. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#pragma nv_diag_suppress 177 /* nothing of this is for such a device */
#endif
#define mma attention_mma /* as four.cuh */
#include "codes.cuh"
#include "heads.cuh"
#undef mma
#include "codes_launch.cuh"
#include "four.cuh"

namespace far_codes
{
using namespace four;
enum {
    D = 128,
    ITEM = ATTN_FAR_CODES_ITEM,
    LEAF = ATTN_CODES_LEAF(D),
    TILES = 4, /* of a group of rows: a warp each */
    GROUPS = 2,
    THREADS = 128 * GROUPS,       /* that multiply */
    ALL_THREADS = THREADS + 256,  /* and that make halves, four warps of keys, four of values */
    KEYS = 16,                    /* of an item, of a warp that makes halves */
    HALF = ITEM * 128,            /* bytes of 64 columns of an item, or of a group's queries */
    PART = 2 * HALF,              /* of an item's keys, or values */
    STAGES = 3,                   /* items as halves */
    MOST = ATTN_FAR_CODES_MOST,   /* items as codes, at most */
    NODES = ATTN_FAR_CODES_NODES, /* of a block, at most */
    AT_BOX = PART,                /* of a group's sums; or queries of the second group of rows */
    AT_HALVES = AT_BOX + 17 * 16 * 128,
    AT_ROWS = AT_HALVES + STAGES * 2 * PART, /* a new row of keys or values, of a warp that multiplies */
    AT_UNITS = AT_ROWS + 4 * D * 4 * GROUPS,
    AT_BAD = AT_UNITS + 4 * GROUPS * TILES * TILE, /* of items as halves: bits of 16 keys, of a warp */
    AT_BARS = AT_BAD + 4 * 4 * STAGES,
    AT_NODES = AT_BARS + 8 * (4 * STAGES + 2 * MOST + 3), /* their number, then they */
    AT_ASKING = AT_NODES + 4 * (NODES + 1),
    AT_CODES = (AT_ASKING + 64 + 1023) / 1024 * 1024,
    BYTES = AT_CODES + 1024 /* to stand at a multiple of 1,024; and codes */
};
static_assert(BYTES == ATTN_FAR_CODES_BYTES && AT_BARS % 8 == 0, "as attention_plan.h has it");
/* Boxes of low bits: rows of 128, 64 or 32 bytes. */
struct maps {
    chain_map side[2];
};

/* Nodes of a block, of `ranks` of a kv head: those of 1,024 keys in turn, then the last of them where it is
 * not whole, then those of 256, to who has one of 1,024 less. */
struct deal {
    int large, whole, part, small, n_small, rank, ranks; /* part: of the last one's 256 keys, of 4 */
    __device__ __forceinline__ void open(const attn &a, const struct span &seen, int rank_, int ranks_)
    {
        constexpr int NEAR = ATTN_CODES_SMALL;
        const bool any = seen.hi > seen.lo && ranks_ > 0;
        const int first = any ? ATTN_CODES_NODE(a.window, seen.lo) : 0,
                  last = any ? ATTN_CODES_NODE(a.window, seen.hi - 1) : -1;
        rank = rank_, ranks = max(ranks_, 1);
        small = first, n_small = max((a.window ? last : min(last, NEAR - 1)) + 1 - first, 0);
        large = max(first, NEAR);
        whole = a.window ? 0 : max(last + 1 - large, 0);
        part = whole ? (seen.hi - ATTN_CODES_START(0, last) + 255) / 256 % 4 : 0;
        if (part) whole--;
    }
    __device__ __forceinline__ int owner(int j) const
    {
        const int r = whole % ranks, m = ranks - r;
        if (j < part * (m - 1)) return r + 1 + j % (m - 1);
        j -= part * (m - 1);
        if (j < (4 - part) * m) return r + j % m;
        return (j - (4 - part) * m) % ranks;
    }
    __device__ __forceinline__ bool has(int node) const
    {
        const int j = node - large;
        if (j >= 0 && (whole || part)) return (j < whole ? j % ranks : whole % ranks) == rank;
        return owner(node - small) == rank;
    }
    /* A warp: their number, then they. */
    __device__ __forceinline__ void list(int *to) const
    {
        const int lane = threadIdx.x % 32;
        int n = whole > rank ? (whole - 1 - rank) / ranks + 1 : 0;
        for (int i = lane; i < n; i += 32) to[1 + i] = large + rank + i * ranks;
        if (part && rank == whole % ranks) {
            if (lane == 0) to[1 + n] = large + whole;
            n++;
        }
#pragma unroll 1
        for (int j = 0; j < n_small; j += 32) {
            const bool mine = j + lane < n_small && owner(j + lane) == rank;
            const uint32_t all = __ballot_sync(~0u, mine);
            if (mine) to[1 + n + __popc(all & ((1u << lane) - 1))] = small + j + lane;
            n += __popc(all);
        }
        if (lane == 0) to[0] = n;
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
    int node, from, to, at;
    bool odd;
    __device__ __forceinline__ void open()
    {
        node = 0, from = to = at = 0, odd = true;
    }
    __device__ __forceinline__ bool next(const attn &a, const int *nodes, const struct span &seen, bool both)
    {
        at += both ? 2 : 1;
        while (at >= to) {
            if (both && !odd) {
                odd = true;
                at = from | 1;
                continue;
            }
            if (node >= nodes[0]) return false;
            const struct items i = items_of(a, nodes[1 + node++], seen);
            from = i.from, to = i.to;
            at = both ? (from + 1) & ~1 : from;
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

/* A lane has a block of 32 columns of a key: its low bits, where the driver has turned rows of so many bytes.
 */
template <uint32_t TYPE> struct block_codes {
    static constexpr int WORDS = kv_code<TYPE>::LOW, ROW = D * kv_code<TYPE>::LOW / 8;
    uint32_t low[WORDS];
    __device__ __forceinline__ void load(const unsigned char *raw, int key, int b)
    {
        const unsigned char *row = raw + key * ROW;
        if constexpr (ROW == 128) {
            *(uint4 *)low = *(const uint4 *)(row + ((2 * b) ^ (key & 7)) * 16);
            *(uint4 *)(low + 4) = *(const uint4 *)(row + ((2 * b + 1) ^ (key & 7)) * 16);
        } else if constexpr (ROW == 64) {
            *(uint4 *)low = *(const uint4 *)(row + (b ^ (key >> 1 & 3)) * 16);
        } else {
            *(uint2 *)low = *(const uint2 *)(row + (b / 2 ^ (key >> 2 & 1)) * 16 + b % 2 * 8);
        }
    }
};
/* What is not in the boxes, of a lane's block of two keys, 8 apart: scales and high bits, from memory,
 * before they are needed. */
struct beside {
    uint32_t scale[2], high[2];
    __device__ __forceinline__ void ask(const struct kv_side &s, const unsigned char *row, int t)
    {
        const int b = threadIdx.x % 32 / 8;
        row += (int64_t)(8 * t) * s.row;
        const unsigned char *at = row + (s.type == KN_TQ3_0 ? 0 : 2 * b);
        scale[t] = __ldcg((const uint16_t *)at);
    }
    __device__ __forceinline__ void ask_high(const struct kv_side &s, const unsigned char *row, int t)
    {
        high[t] = __ldcg((const uint32_t *)(row + (int64_t)(8 * t) * s.row + threadIdx.x % 32 / 8 * 4));
    }
};
/* 16 keys of an item, from `first` on: `raw` the side's codes, `to` its halves. Values that not all rows see:
 * those that are no numbers become zeros; bits of their keys. then: of the next item's first key of this
 * lane, scales and high bits, which are asked for as soon as those of this one have been used. */
template <uint32_t TYPE, bool VALUES>
DEV uint32_t make_halves(uint8_t *to, const unsigned char *raw, int first, bool ragged, struct beside &x,
                         const struct kv_side &side, const unsigned char *then_scale,
                         const unsigned char *then_high)
{
    const int lane = threadIdx.x % 32, b = lane / 8;
    uint32_t bad = 0;
    first += lane % 8;
#pragma unroll
    for (int t = 0; t < 2; t++) {
        const int key = first + 8 * t;
        struct block_codes<TYPE> codes;
        codes.load(raw, key, b);
        uint32_t d = x.scale[t] * 0x10001u;
        if (VALUES && ragged) {
            const uint32_t none = __ballot_sync(~0u, (d & 0x7c00) == 0x7c00);
            if (none >> lane & 1) d = 0;
            bad |= ((none | none >> 8 | none >> 16 | none >> 24) & 255) << 8 * t;
        }
        uint8_t *row = to + b / 2 * HALF + key * 128;
#pragma unroll
        for (int s = 0; s < 2; s++) { /* 16 columns */
            uint32_t y[4][2];
#pragma unroll
            for (int c = 0; c < 4; c++) {
                kv_halves_of<TYPE>(kv_four<TYPE>((const unsigned char *)codes.low,
                                                 (const unsigned char *)&x.high[t], 4 * s + c),
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
        if (then_scale) {
            x.ask(side, then_scale, t);
            if (kv_code<TYPE>::HIGH) x.ask_high(side, then_high, t);
        }
    }
    return bad;
}

/* A ring of items' codes: keys', then values'. */
struct code_ring {
    unsigned char *at;
    uint64_t *full, *empty; /* [stages] */
    int each, stages;
};
DEV void box_2d(uint32_t to, const chain_map *map, int column, int row, uint64_t *b, uint64_t policy)
{
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
        "[%1, {%2, %3}], [%4], %5;" ::"r"(to),
        "l"(map), "r"(column), "r"(row), "r"(shared_at(b)), "l"(policy)
        : "memory");
#endif
}
/* Keys and values of this pass are not read before they are there. */
DEV void wait_for_rows(const attn &a, bool &waited, int item, int pos0, uint64_t *made)
{
    if (waited || (item + 1) * ITEM <= pos0) return;
    if (a.fold)
        bar_wait(made, 0);
    else
        cuda_grid_wait();
    waited = true;
}
/* Who asks for items' codes: the first of the warps that make halves. Lies in shared memory, for its
 * registers are few. */
struct asking {
    struct walk now;
    struct place slot;
    bool waited, more;
};
DEV void ask(volatile int *at, const struct codes_args &p, const struct maps *m, const struct work &o,
             const int *nodes, const struct span &seen, int pos0, bool both, const struct code_ring &ring,
             uint64_t *made, int times)
{
    const attn &a = p.a;
    struct asking s;
    s.now.node = at[0], s.now.from = at[1], s.now.to = at[2], s.now.at = at[3], s.now.odd = at[4];
    s.slot = {(uint32_t)at[5], (uint32_t)at[6]}, s.waited = at[7], s.more = at[8];
#pragma unroll 1
    for (; times && s.more; times--) {
        s.more = s.now.next(a, nodes, seen, both);
        if (!s.more) break;
        wait_for_rows(a, s.waited, s.now.at, pos0, made);
        bar_wait(ring.empty + s.slot.at, s.slot.phase);
        if (threadIdx.x % 32 == 0) {
            const uint32_t to = shared_at(ring.at) + s.slot.at * (uint32_t)ring.each;
            const uint64_t policy = p.turned <= 2 * TILES ? WEIGHTS_POLICY : BOX_KEPT;
            const int row = KV_SLOT(a.where, s.now.at * ITEM);
            uint64_t *const full = ring.full + s.slot.at;
            bar_expect(full, (uint32_t)ring.each);
            box_2d(to, m->side, o.kv_head * p.k.head[0], row, full, policy);
            box_2d(to + (uint32_t)p.values_at, m->side + 1, o.kv_head * p.v.head[0], row, full, policy);
        }
        s.slot.next((uint32_t)ring.stages);
    }
    __syncwarp();
    at[0] = s.now.node, at[1] = s.now.from, at[2] = s.now.to, at[3] = s.now.at, at[4] = s.now.odd;
    at[5] = (int)s.slot.at, at[6] = (int)s.slot.phase, at[7] = s.waited, at[8] = s.more;
    __syncwarp();
}
/* Four warps that make halves, of keys or of values, of items in order: who takes every other item of three
 * places would pass a place's barrier by its parity, a turn too early. bars: full ones of keys and values by
 * turns, then empty ones. */
template <uint32_t TYPE, bool VALUES>
DEV void make(const struct codes_args &p, const struct maps *m, const struct work &o, const struct span &seen,
              const struct span &whole, int pos0, bool both, unsigned char *base, uint64_t *bars,
              const struct code_ring &ring, uint64_t *made)
{
    const attn &a = p.a;
    const struct kv_side &side = VALUES ? p.v : p.k;
    const int *nodes = (const int *)(base + AT_NODES);
    const int lane = threadIdx.x % 32, w = __shfl_sync(~0u, (int)threadIdx.x / 32 % 4, 0), first = w * KEYS;
    const bool asks = !VALUES && w == 0;
    volatile int *const asking_at = (volatile int *)(base + AT_ASKING);
    if (asks) {
        asking_at[0] = asking_at[1] = asking_at[2] = asking_at[3] = 0, asking_at[4] = 1;
        asking_at[5] = 0, asking_at[6] = 1, asking_at[7] = !a.early && !a.fold, asking_at[8] = 1;
        __syncwarp();
        ask(asking_at, p, m, o, nodes, seen, pos0, both, ring, made, ring.stages);
    }
    struct walk now;
    now.open();
    bool more = now.next(a, nodes, seen, both), waited = !a.early && !a.fold;
    struct place slot = {0, 0}, at = {0, 1};
    const int64_t scale_at = side.scale + o.kv_head * side.head[2],
                  high_at = side.high + o.kv_head * side.head[1];
    const auto row_at = [&](int item) {
        return side.at + (KV_SLOT(a.where, item * ITEM) + first + lane % 8) * (int64_t)side.row;
    };
    struct beside x = {};
    if (more) {
        wait_for_rows(a, waited, now.at, pos0, made);
        const unsigned char *row = row_at(now.at);
#pragma unroll
        for (int t = 0; t < 2; t++) {
            x.ask(side, row + scale_at, t);
            if (kv_code<TYPE>::HIGH) x.ask_high(side, row + high_at, t);
        }
    }
    int turns = 0;
#pragma unroll 1
    while (more) {
        const int p0 = now.at * ITEM;
        const bool ragged = p0 < whole.lo || p0 + ITEM > whole.hi;
        more = now.next(a, nodes, seen, both);
        if (asks && turns++ > 1) /* to the place of two items before, which others have taken by now */
            ask(asking_at, p, m, o, nodes, seen, pos0, both, ring, made, 1);
        const unsigned char *row = nullptr;
        if (more) {
            wait_for_rows(a, waited, now.at, pos0, made);
            row = row_at(now.at);
        }
        const unsigned char *const codes =
            ring.at + slot.at * (uint32_t)ring.each + (VALUES ? p.values_at : 0);
        uint8_t *const to = base + AT_HALVES + at.at * 2 * PART + (VALUES ? PART : 0);
        uint64_t *const full = bars + 2 * at.at + (VALUES ? 1 : 0), *const empty = full + 2 * STAGES;
        bar_wait(ring.full + slot.at, slot.phase);
        bar_wait(empty, at.phase);
        const uint32_t bad = make_halves<TYPE, VALUES>(
            to, codes, first, ragged, x, side, row ? row + scale_at : nullptr, row ? row + high_at : nullptr);
        if (VALUES && ragged && lane == 0) ((uint32_t *)(base + AT_BAD))[4 * at.at + w] = bad;
        shared_fence();
        __syncwarp();
        if (lane == 0) {
            bar_arrive(full);
            bar_arrive(ring.empty + slot.at);
        }
        slot.next((uint32_t)ring.stages);
        at.next(STAGES);
    }
}

template <bool VALUES>
DEV void make_any(const struct codes_args &p, const struct maps *m, const struct work &o,
                  const struct span &seen, const struct span &whole, int pos0, bool both, unsigned char *base,
                  uint64_t *bars, const struct code_ring &ring, uint64_t *made)
{
    switch (VALUES ? p.v.type : p.k.type) {
    case KN_Q8_0: make<KN_Q8_0, VALUES>(p, m, o, seen, whole, pos0, both, base, bars, ring, made); break;
    case KN_Q5_0: make<KN_Q5_0, VALUES>(p, m, o, seen, whole, pos0, both, base, bars, ring, made); break;
    case KN_Q4_0: make<KN_Q4_0, VALUES>(p, m, o, seen, whole, pos0, both, base, bars, ring, made); break;
    default: make<KN_TQ3_0, VALUES>(p, m, o, seen, whole, pos0, both, base, bars, ring, made);
    }
}

/* ---- queries ---- */

/* Rows of a warp's tile of queries, as code_queries makes them, as a quarter of the group's rows; columns in
 * the order of keys. units: their 16. FOLD: they are as the projections left them. */
template <bool FOLD, int N>
DEV void queries(const struct codes_args &p, uint8_t *to, float *units, int tile, int kv_head, int from,
                 int end)
{
    constexpr int W = D / 32; /* N: rows at a time */
    const attn &a = p.a;
    const int lane = threadIdx.x % 32, row64 = (int)threadIdx.x % 128 / 32 * TILE,
              col = lane / 16 * 16 + lane % 4 / 2 * 8 + lane % 16 / 4 * 2 + lane % 2; /* of 32 */
#pragma unroll 1
    for (int r0 = from; r0 < end; r0 += N) {
        float x[N][W];
        if constexpr (FOLD) {
            struct head_of<D> h[N];
#pragma unroll
            for (int i = 0; i < N; i++) { /* of rows that are not there: the last one's, which nobody keeps */
                const int at = min(tile * TILE + r0 + i, a.n * a.n_rep - 1), row = row_of(a, at);
                h[i].load(a, a.q + head_of_row(a, row, kv_head, at) * D, a.q_norm,
                          a.half ? (const float2 *)a.table + (int64_t)row * a.half : nullptr);
            }
#pragma unroll
            for (int i = 0; i < N; i++) {
                h[i].turn(a, a.q_norm != nullptr, a.half);
#pragma unroll
                for (int j = 0; j < W; j++) x[i][j] = h[i].x[j];
            }
        } else {
#pragma unroll
            for (int i = 0; i < N; i++) {
                const int at = tile * TILE + r0 + i, row = row_of(a, at);
                const float *q = a.q + head_of_row(a, row, kv_head, at) * D;
#pragma unroll
                for (int j = 0; j < W; j++) x[i][j] = row < a.n ? q[lane + 32 * j] : 0.0f;
            }
        }
#pragma unroll
        for (int i = 0; i < N; i++) kv_turn_head<W>(x[i], p.k.type, false, false);
#pragma unroll
        for (int i = 0; i < N; i++) {
            const int r = row64 + r0 + i;
            const float down = code_down<W>(x[i], a.scale, units + r0 + i);
#pragma unroll
            for (int j = 0; j < W; j++) {
                const int at = j % 2 * 32 + col;
                *(uint16_t *)(to + j / 2 * HALF + r * 128 + ((at / 8 ^ r) & 7) * 16 + at % 8 * 2) =
                    to_half<false>(__fmul_rn(x[i][j], down));
            }
        }
    }
}

/* New keys and values to the ring: of positions that these tiles see, in nodes that this block has. A warp
 * that multiplies, of all. y: its room for a row. */
DEV void new_rows(const struct codes_args &p, const struct work &o, const struct span &seen, int pos0, int w,
                  float *y)
{
    const attn &a = p.a;
    struct deal d;
    d.open(a, seen, o.rank, o.ranks);
#pragma unroll 1
    for (int it = w; it < 2 * a.n; it += 4 * GROUPS) {
        const int j = it / 2, at = pos0 + j;
        const bool value = it % 2,
                   sees = at >= seen.lo && at < seen.hi; /* what none of these sees: the first */
        if (sees ? !d.has(ATTN_CODES_NODE(a.window, at)) : o.rank != 0) continue;
        struct head_of<D> h;
        h.load(a, (value ? a.new_v : a.new_k) + ((int64_t)j * a.n_kv + o.kv_head) * D,
               value ? nullptr : a.k_norm,
               value || !a.half ? nullptr : (const float2 *)a.table + (int64_t)j * a.half);
        h.turn(a, value ? a.v_norm : a.k_norm != nullptr, !value && a.half);
        __syncwarp();
#pragma unroll
        for (int i = 0; i < D / 32; i++) y[threadIdx.x % 32 + 32 * i] = h.x[i];
        kv_put_head(value ? p.v : p.k, KV_SLOT(a.where, at), o.kv_head, y, D, value);
    }
    __threadfence();
    asm volatile("fence.proxy.async;" ::: "memory"); /* boxes come behind */
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
    /* Weights of 32 keys from their scores, as fragments; the top is theirs already. */
    __device__ __forceinline__ void weights(uint32_t p[2][4], float x[4][4], const float unit[2])
    {
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
    /* To another group's threads of the same numbers, and from them. */
    __device__ __forceinline__ void give(float4 *box) const
    {
        const int t = threadIdx.x % 128;
        box[t] = make_float4(top[0], top[1], sum[0], sum[1]);
#pragma unroll
        for (int i = 0; i < 16; i++)
            box[(i + 1) * 128 + t] = make_float4(acc[i][0], acc[i][1], acc[i][2], acc[i][3]);
    }
    __device__ __forceinline__ void take(const float4 *box)
    {
        const int t = threadIdx.x % 128;
        const float4 x = box[t];
        top[0] = x.x, top[1] = x.y, sum[0] = x.z, sum[1] = x.w;
#pragma unroll
        for (int i = 0; i < 16; i++) {
            const float4 y = box[(i + 1) * 128 + t];
            acc[i][0] = y.x, acc[i][1] = y.y, acc[i][2] = y.z, acc[i][3] = y.w;
        }
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

/* A tile's record; and its results into it. add: to what is there. */
DEV void put(const struct codes_args &p, const chain_sum &s, int tile, int kv_head, int slot, bool add)
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
            f = factor(t, to), h = factor(top, to);
            sum = __fmaf_rn(h, sum, __fmul_rn(n, f));
            top = to;
        }
#pragma unroll
        for (int t = 0; t < 16; t++) {
            float2 z = make_float2(s.acc[t][2 * half], s.acc[t][2 * half + 1]);
            if (add) {
                const float2 y = *(const float2 *)(dst + 8 * t);
                z = make_float2(__fmaf_rn(h, z.x, __fmul_rn(y.x, f)), __fmaf_rn(h, z.y, __fmul_rn(y.y, f)));
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
    attn_far_codes(const __grid_constant__ struct codes_args p, const __grid_constant__ struct maps m,
                   int stages)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    extern __shared__ unsigned char raw[];
    unsigned char *const base = raw + (1024 - (shared_at(raw) & 1023)) % 1024;
    uint64_t *const bars = (uint64_t *)(base + AT_BARS), *const code_bars = bars + 4 * STAGES,
                    *const box_bars = code_bars + 2 * MOST, *const made = box_bars + 2;
    const attn &a = p.a;
    const bool both = p.turned > TILES;
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2 * STAGES; i++) {
            bar_open(bars + i, 4);
            bar_open(bars + 2 * STAGES + i, both ? 4 * GROUPS : 4);
        }
        for (int i = 0; i < MOST; i++) {
            bar_open(code_bars + i, 1);
            bar_open(code_bars + MOST + i, 8);
        }
        bar_open(box_bars, 4), bar_open(box_bars + 1, 4), bar_open(made, 4 * GROUPS);
        bar_fence();
    }
    cuda_grid_early();
    if (!a.early) cuda_grid_wait();

    const int lane = threadIdx.x % 32, w = __shfl_sync(~0u, (int)threadIdx.x / 32, 0), group = w / 4;
    const struct work o = work_of(p, both);
    const int pos0 = a.pos[0], bound = a.first ? *a.first : 0;
    const struct span seen = visible_any(a, o.tile, o.tiles, pos0, bound);
    const int last = min(row_of(a, (o.tile + o.tiles) * TILE - 1), a.n - 1),
              begin = min(row_of(a, o.tile * TILE), a.n - 1);
    const struct span whole = {visible(a, last, pos0, bound).lo, visible(a, begin, pos0, bound).hi};
    if (w == 0) {
        struct deal d;
        d.open(a, seen, o.rank, o.ranks);
        d.list((int *)(base + AT_NODES));
    }
    __syncthreads();
    if (group >= GROUPS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 48;");
        const struct code_ring codes = {base + AT_CODES, code_bars, code_bars + MOST, p.warp_bytes, stages};
        if (group == GROUPS)
            make_any<false>(p, &m, o, seen, whole, pos0, both, base, bars, codes, made);
        else
            make_any<true>(p, &m, o, seen, whole, pos0, both, base, bars, codes, made);
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 208;");
    const int g = lane / 4, own = o.tile + (both ? group * TILES : 0), tile = own + w % 4; /* the warp's */
    const struct span mine = visible_any(a, own, TILES, pos0, bound);
    const int node0 = ATTN_CODES_NODE(a.window, mine.lo),
              node_last = mine.hi > mine.lo && own < a.tile0 + p.turned
                              ? ATTN_CODES_NODE(a.window, mine.hi - 1)
                              : -1; /* nothing is kept of a second group that this launch does not have */
    float *const units_at = (float *)(base + AT_UNITS) + 16 * (both ? w : w % 4);
    uint8_t *const q_at = base + (both ? group * PART : 0);
    if (a.early) cuda_grid_wait();
    const int from = both ? 0 : group * TILE / 2,
              end = both ? TILE : from + TILE / 2; /* else both have them */
    if (a.fold) {
        if (o.ranks) new_rows(p, o, seen, pos0, w, (float *)(base + AT_ROWS) + w * D);
        __syncwarp();
        if (lane == 0) bar_arrive(made);
        queries<true, 8>(p, q_at, units_at, tile, o.kv_head, from, end);
    } else {
        queries<false, 8>(p, q_at, units_at, tile, o.kv_head, from, end);
    }
    shared_fence();
    asm volatile("bar.sync 1, %0;" ::"n"((int)THREADS) : "memory");
    const float unit[2] = {units_at[g], units_at[g + 8]};
    const uint32_t q = matrix_at(shared_at(q_at), 16);

    const int *const nodes = (const int *)(base + AT_NODES);
    struct place at = {0, 0};
    uint32_t turn = 0; /* of the box */
    chain_sum sums[2];
#pragma unroll 1
    for (int k = 0; k < nodes[0]; k++) {
        const int node = nodes[1 + k];
        const struct items of = items_of(a, node, seen);
#pragma unroll 1
        for (int pass = 0; pass < (both ? 2 : 1); pass++) {
            sums[0].clear(), sums[1].clear();
#pragma unroll 1
            for (int item = both ? of.from + ((of.from ^ pass) & 1) : of.from; item < of.to;
                 item += both ? 2 : 1) {
                if (!both && (item & 1) != group) { /* the other's */
                    at.next(STAGES);
                    continue;
                }
                const int p0 = item * ITEM;
                uint64_t *const filled = bars + 2 * at.at, *const empty = filled + 2 * STAGES;
                const uint32_t part = shared_at(base) + AT_HALVES + at.at * 2 * PART;
                const bool ragged = p0 < whole.lo || p0 + ITEM > whole.hi;
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
                if (ragged)
                    hide<8>(x, p0, visible_at(a, tile * TILE + g, pos0, bound),
                            visible_at(a, tile * TILE + g + 8, pos0, bound));
                float here[2][2];
                raise_top<4>(here[0], x, unit, sums[0].top);
                raise_top<4>(here[1], x + 4, unit, sums[1].top);
                if (__any_sync(~0u, here[0][0] != sums[0].top[0] || here[0][1] != sums[0].top[1] ||
                                        here[1][0] != sums[1].top[0] || here[1][1] != sums[1].top[1])) {
#pragma unroll
                    for (int i = 0; i < 2; i++)
                        raise_results<16>(sums[i].acc, sums[i].sum, sums[i].top, here[i], sums[i].odd);
                }
                sums[0].weights(weights[0], x, unit);
                sums[1].weights(weights[1], x + 4, unit);
                bar_wait(filled + 1, at.phase);
                uint64_t bad = 0;
                if (ragged) {
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
                at.next(STAGES);
                if (bad) { /* who sees it gets none */
                    const uint64_t b0 = bad & bits_of(visible_at(a, tile * TILE + g, pos0, bound), p0),
                                   b1 = bad & bits_of(visible_at(a, tile * TILE + g + 8, pos0, bound), p0);
                    sums[0].spoil((uint32_t)b0, (uint32_t)b1);
                    sums[1].spoil((uint32_t)(b0 >> 32), (uint32_t)(b1 >> 32));
                }
            }
            sums[0].close(), sums[1].close();
            sums[0].add(sums[1]);
            if (both) {
                if (node >= node0 && node <= node_last)
                    put(p, sums[0], tile, o.kv_head, node - node0, pass == 1);
                continue;
            }
            float4 *const box = (float4 *)(base + AT_BOX);
            if (group == 1) {
                bar_wait(box_bars + 1, turn ^ 1);
                sums[0].give(box);
                __syncwarp();
                if (lane == 0) bar_arrive(box_bars);
            } else {
                bar_wait(box_bars, turn);
                sums[1].take(box);
                __syncwarp();
                if (lane == 0) bar_arrive(box_bars + 1);
                sums[0].add(sums[1]);
                put(p, sums[0], tile, o.kv_head, node - node0, false);
            }
            turn ^= 1;
        }
    }
#endif
}
} /* namespace far_codes */

static bool maps_of(const struct kv_side side[2], kv_where where, struct far_codes::maps *m)
{
    for (int i = 0; i < 2; i++)
        if (!kv_code_map(m->side + i, side[i].at, side[i].row, where, side[i].head[0], far_codes::ITEM))
            return false;
    return true;
}
bool attn_far_codes_takes(const struct cuda_backend *be, const struct kn_kv *kv)
{
    const struct kv_side side[2] = {kv_side_of(kv, false), kv_side_of(kv, true)};
    struct far_codes::maps m;
    return be->cc >= 90 && !be->generic && kv->head_dim == far_codes::D && kn_kv_coded(kv->type.k) &&
           kn_kv_coded(kv->type.v) && be->smem_block >= far_codes::BYTES &&
           maps_of(side, kv_where_of(kv), &m);
}
int attn_far_codes_open(struct cuda_backend *be)
{
    if (be->cc < 90 || be->generic || be->smem_block < far_codes::BYTES) return 0;
    return cuda_check(be, "attention",
                      cudaFuncSetAttribute(far_codes::attn_far_codes,
                                           cudaFuncAttributeMaxDynamicSharedMemorySize, be->smem_block));
}
int attn_far_codes_launch(struct cuda_backend *be, const struct codes_args *p, const struct attn_plan *plan)
{
    const struct kv_side side[2] = {p->k, p->v};
    struct far_codes::maps m;
    if (!maps_of(side, p->a.where, &m)) return cuda_check(be, "attention", cudaErrorUnknown);
    return cuda_check(be, "attention",
                      cuda_launch(be, far_codes::attn_far_codes, dim3((unsigned)plan->blocks),
                                  dim3(far_codes::ALL_THREADS), plan->smem, *p, m, (int)plan->stages));
}
