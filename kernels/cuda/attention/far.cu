/* attention/far.cu - attention of 2 to FEW rows over long contexts, heads of 128 and 256, by products of four
 * warps (compute capability 9.0).
 *
 * Bound: one read of the visible keys and values, for up to 64 (row, head)s a kv head; beyond, tensor
 * operations: 1,024 a ((row, head), key), for queries and weights are two halves each. Eight warps that read
 * keys and values of a tile by ldmatrix (attn_step) move 200 KB of shared memory a leaf, and meet twice; here
 * a product reads keys once for 64 (row, head)s, and nobody meets.
 *
 * A *group* is four tiles: 64 (row, head)s, the rows of a product, a tile a warp. A block has two groups of
 * four warps, each with a leaf's whole chain: scores, weights, products with the values, the node's sum, all
 * in registers. While one makes weights the other's products run. Where a kv head has one group of rows, both
 * have nodes of their own (of two kv heads side by side) and half of the ring each; else they have two groups
 * of rows and share nodes and ring. A warp more for each ring asks for boxes of a leaf's keys or values.
 * Nodes are dealt in turn, so that all blocks move along the context side by side.
 *
 * Same bits as attn_step: leaves, nodes, masks and sums are those of attention.cuh, scores and results chains
 * of the same products in the same order. rope_store is a launch before; boxes of old keys are asked for
 * before it has ended. Partial results go to memory, attn_merge adds them. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#pragma nv_diag_suppress 177 /* nothing of this is for such a device */
#endif
#define mma attention_mma /* as four.cuh */
#include "few.cuh"
#undef mma
#include "four.cuh"

namespace far
{
using namespace four;
enum {
    LEAF = 64,
    LEAVES = NODE / LEAF,
    TILES = 4, /* of a group: a warp each */
    GROUPS = 2,
    THREADS = 128 * GROUPS, /* that multiply */
    HALF = LEAF * 128,      /* bytes of 64 columns of a leaf, or of a group's queries */
    PART = 2 * HALF,        /* of 128 columns: a place of the ring */
    PLACES = 14,            /* of queries and of the ring */
    STAGES = 10,            /* of the ring at most */
    AT_UNITS = PLACES * PART,
    AT_BAD = AT_UNITS + 4 * GROUPS * TILES * TILE,
    AT_BARS = AT_BAD + 16 * GROUPS,
    BYTES = AT_BARS + 16 * STAGES + 1024 /* to stand at a multiple of 1,024 */
};
static_assert(BYTES == ATTN_FAR_BYTES, "shared memory as attention_plan.h has it");

template <int D> struct shape {
    static constexpr int PARTS = D / 128;    /* of keys, or of values */
    static constexpr int LOW = PARTS * PART; /* of a group's queries: where their second halves begin */
    static constexpr int QUERIES = 2 * LOW;
    static constexpr int PASS = D == 128 ? 128 : 64, PASSES = D / PASS; /* columns that are added at once */
    static constexpr bool ONE_HEAD = D > 128; /* both groups of a block have one, so one copy of queries */
    static constexpr bool AHEAD = D == 128; /* the next leaf's scores run while this one's weights are made */
};

/* What a ring brings: units rank, rank + ranks, ... of what these tiles see, of one kv head. */
struct work {
    int kv_head, tile, tiles, rank, ranks;
};
/* Of ring r (of two where groups are apart). Those of the first rings of all blocks come first, so that few
 * units are spread over all blocks. */
template <int D> DEV struct work work_of(const attn &a, bool apart, int r)
{
    const int n = a.n_kv, all = apart ? n : n * ((a.n_tiles + 2 * TILES - 1) / (2 * TILES)),
              block = blockIdx.x;
    int at = block % all, rank = block / all, ranks = gridDim.x / all;
    bool mine = rank < ranks;
    if (apart && shape<D>::ONE_HEAD) {
        rank += r * ranks, ranks *= 2;
    } else if (apart) {
        const int id = block + (int)gridDim.x * r;
        at = id % n, rank = id / n, ranks = 2 * (int)gridDim.x / n;
        mine = rank < ranks;
    }
    return {at % n, a.tile0 + at / n * 2 * TILES, apart ? TILES : 2 * TILES, rank, mine ? ranks : 0};
}
/* Leaves of a unit. */
struct leaves {
    int from, to;
};
DEV struct leaves leaves_of(const attn &a, int unit, const struct span &seen)
{
    if (a.leaves) return {unit, unit + 1};
    return {max(unit * LEAVES, seen.lo / LEAF), min(unit * LEAVES + LEAVES, (seen.hi - 1) / LEAF + 1)};
}

/* One leaf after the other of the units of a ring. */
struct walk {
    int unit, leaf, to;
    __device__ __forceinline__ void enter(const attn &a, int at, const struct span &seen)
    {
        unit = at;
        const struct leaves l = leaves_of(a, at, seen);
        leaf = l.from, to = l.to;
    }
    __device__ __forceinline__ struct walk next(const attn &a, const struct span &seen, int ranks) const
    {
        struct walk w = {unit, leaf + 1, to};
        if (w.leaf >= to) w.enter(a, unit + ranks, seen);
        return w;
    }
};

/* One thread: keys and values, leaf by leaf; keys of the next leaf before values of this one, where they are
 * wanted in that order (AHEAD). What the pass before has not written yet waits for it. */
template <int D>
DEV void ask(const attn &a, const chain_map *mk, const chain_map *mv, const struct work &o,
             const struct span &seen, const struct units &u, int pos0, uint32_t ring, uint64_t *full,
             uint64_t *empty, uint32_t stages)
{
    struct place p = {0, 1};
    bool waited = !a.early;
    /* What no other block reads leaves the L2 cache before partial results do. */
    const uint64_t policy = a.n_tiles <= 2 * TILES ? WEIGHTS_POLICY : BOX_KEPT;
    const auto bring = [&](const chain_map *map, int leaf) {
        if (!waited && (leaf + 1) * LEAF > pos0) cuda_grid_wait(), waited = true;
        const int slot = KV_SLOT(a.where, leaf * LEAF);
#pragma unroll
        for (int col = 0; col < D; col += 128) {
            const uint32_t at = ring + p.at * PART;
            uint64_t *b = full + p.at;
            bar_wait(empty + p.at, p.phase);
            bar_expect(b, PART);
            box(at, map, col, o.kv_head, slot, b, policy);
            box(at + HALF, map, col + 64, o.kv_head, slot, b, policy);
            p.next(stages);
        }
    };
    const int end = u.first + u.count;
    struct walk c = {u.first + o.rank, 0, 0}, n;
    if (c.unit >= end) return;
    c.enter(a, c.unit, seen);
    bring(mk, c.leaf);
#pragma unroll 1
    for (;; c = n) {
        n = c.next(a, seen, o.ranks);
        const bool more = n.unit < end;
        if (!shape<D>::AHEAD) bring(mv, c.leaf);
        if (more) bring(mk, n.leaf);
        if (shape<D>::AHEAD) bring(mv, c.leaf);
        if (!more) return;
    }
}

/* A warp's tile of queries as a quarter of the group's, turned; scaled as query_rows does. units: their 16.
 */
template <int D, bool BF16> DEV void queries(const attn &a, uint8_t *to, float *units, int tile, int kv_head)
{
    constexpr int N = 4, W = D / 128; /* rows at a time; a lane has four columns of 128 */
    const int lane = threadIdx.x % 32, row64 = (int)threadIdx.x % 128 / 32 * TILE;
    to += lane / 16 * HALF + lane % 2 * 8;
#pragma unroll 1
    for (int k = 0; k < TILE; k += N) {
        float4 x[N][W];
        uint32_t top[N];
#pragma unroll
        for (int i = 0; i < N; i++) {
            const int at = tile * TILE + k + i, row = row_of(a, at);
            const float *q = a.q + head_of_row(a, row, kv_head, at) * D + 4 * lane;
#pragma unroll
            for (int j = 0; j < W; j++)
                x[i][j] = row < a.n ? *(const float4 *)(q + 128 * j) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            float most = 0.0f; /* a NaN is no maximum */
#pragma unroll
            for (int j = 0; j < W; j++)
                most = fmaxf(fmaxf(fmaxf(fmaxf(most, fabsf(x[i][j].x)), fabsf(x[i][j].y)), fabsf(x[i][j].z)),
                             fabsf(x[i][j].w));
            top[i] = __reduce_max_sync(~0u, __float_as_uint(most));
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            const int r = row64 + k + i;
            int e = (int)(top[i] >> 23) - 126; /* top < 2^e */
            e = top[i] >= 0x7f800000 || e < -100 ? 0 : e > 126 ? 126 : e;
            const float down = __int_as_float((127 - e) << 23);
            uint8_t *row = to + r * 128 + ((lane % 16 / 2 ^ r) % 8 * 16);
#pragma unroll
            for (int j = 0; j < W; j++) {
                uint32_t p[2], q[2];
                parts_of<2, BF16>(__fmul_rn(x[i][j].x, down), __fmul_rn(x[i][j].y, down), p);
                parts_of<2, BF16>(__fmul_rn(x[i][j].z, down), __fmul_rn(x[i][j].w, down), q);
                *(uint2 *)(row + j * PART) = make_uint2(p[0], q[0]);
                *(uint2 *)(row + j * PART + shape<D>::LOW) = make_uint2(p[1], q[1]);
            }
            if (lane == 0)
                units[k + i] = __fmul_rn(__fmul_rn(a.scale, 0x1.715476p+0f), __int_as_float((127 + e) << 23));
        }
    }
}

DEV void meet(bool apart, int group)
{
    asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "r"(apart ? 128 : (int)THREADS) : "memory");
}
/* Values of a leaf that not all rows see: zeros where nobody does (what lies there is of any kind), and, as
 * clean_values, in place of NaN and Inf. Which keys had such: a bit each. All who share the ring. */
template <bool BF16>
DEV uint64_t clean(uint8_t *v, uint32_t *bad, int p0, const struct span &seen, bool apart)
{
    const int t = threadIdx.x % 128, key = t % 64, p = p0 + key, group = threadIdx.x / 128;
    uint4 *row = (uint4 *)(v + t / 64 * HALF + key * 128);
    const bool in = p >= seen.lo && p < seen.hi;
    bool here = false;
#pragma unroll 1
    for (int i = 0; i < 8; i++) {
        uint4 x = row[i];
        here |= make_finite<BF16>(x);
    }
    const uint32_t bits = __ballot_sync(~0u, in && here);
    bad += 4 * group;
    if (t % 32 == 0) bad[t / 32] = bits;
    meet(apart, apart ? group : 0); /* both groups have read */
    if (here || !in)
#pragma unroll 1
        for (int i = 0; i < 8; i++) {
            uint4 x = row[i];
            make_finite<BF16>(x);
            row[i] = in ? x : make_uint4(0, 0, 0, 0);
        }
    shared_fence();
    meet(apart, apart ? group : 0);
    return (uint64_t)(bad[1] | bad[3]) << 32 | (bad[0] | bad[2]);
}

/* What a leaf's results and those there are multiplied by. */
struct leaf_factors {
    float node[2], leaf[2];
};
/* A leaf's top and sum to the node's. Tops seldom rise: then what is there is left as it is. */
template <int D>
DEV struct leaf_factors rise(float node[D / 8][4], float node_top[2], float node_sum[2], const float top[2],
                             const float sum[2])
{
    struct leaf_factors f;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float to = fmaxf(node_top[half], top[half]);
        f.node[half] = factor(node_top[half], to), f.leaf[half] = factor(top[half], to);
        node_sum[half] = __fmaf_rn(f.leaf[half], sum[half], __fmul_rn(node_sum[half], f.node[half]));
        node_top[half] = to;
    }
    if (!__all_sync(~0u, f.node[0] == 1.0f && f.node[1] == 1.0f))
#pragma unroll
        for (int t = 0; t < D / 8; t++)
#pragma unroll
            for (int e = 0; e < 4; e++) node[t][e] = __fmul_rn(node[t][e], f.node[e / 2]);
    return f;
}

/* What the node (or leaf) came to, of a warp's tile; the result itself where it is all there is. */
template <int D>
DEV void put(const attn &a, const float node[D / 8][4], const float top[2], const float sum[2], int tile,
             int kv_head, int slot, bool alone)
{
    const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
    float *record = record_of(a, tile, kv_head, slot, D);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int r = g + 8 * half, at = tile * TILE + r, row = row_of(a, at);
        if (row >= a.n) continue;
        float *dst =
            (alone ? a.out + head_of_row(a, row, kv_head, at) * D : record + 2 * TILE + r * D) + 2 * c;
        if (alone) {
#pragma unroll
            for (int t = 0; t < D / 8; t++)
                *(float2 *)(dst + 8 * t) = make_float2(divided(node[t][2 * half], sum[half]),
                                                       divided(node[t][2 * half + 1], sum[half]));
            continue;
        }
#pragma unroll
        for (int t = 0; t < D / 8; t++)
            *(float2 *)(dst + 8 * t) = make_float2(node[t][2 * half], node[t][2 * half + 1]);
        if (c == 0) record[r] = top[half], record[TILE + r] = sum[half];
    }
}

/* Nothing to see: zeros. A warp's tile. */
template <int D> DEV void put_zeros(const attn &a, int tile, int kv_head)
{
#pragma unroll 1
    for (int i = threadIdx.x % 32; i < TILE * D / 4; i += 32) {
        const int at = tile * TILE + i / (D / 4), row = row_of(a, at);
        if (row < a.n)
            *(float4 *)(a.out + head_of_row(a, row, kv_head, at) * D + i % (D / 4) * 4) =
                make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
}

/* The products of queries with a leaf's 64 keys, on their way: 128 columns a place of the ring, from p on. */
template <int D, bool BF16>
DEV void scores_begin(float x[8][4], float low[8][4], uint32_t q, uint32_t ring, uint64_t *full,
                      struct place p, uint32_t stages, bool wait)
{
    asm volatile("" : "+r"(q)); /* or what follows from it is kept in registers there are not */
#pragma unroll
    for (int i = 0; i < shape<D>::PARTS; i++) {
        const uint32_t k = matrix_at(ring + p.at * PART, 16), q_now = q + (uint32_t)(i * PART >> 4);
        if (wait) bar_wait(full + p.at, p.phase);
        products_begin();
#pragma unroll
        for (int s = 0; s < 8; s++) {
            const uint32_t off = (uint32_t)((s / 4 * HALF + s % 4 * 32) >> 4);
            score_64<BF16>(x, q_now + off, k + off, i + s);
            score_64<BF16>(low, q_now + off + (shape<D>::LOW >> 4), k + off, i + s);
        }
        p.next(stages);
    }
    products_commit();
}
/* They are there, and added to y; their places are left. */
template <int D>
DEV void scores_end(float y[8][4], float x[8][4], float low[8][4], uint64_t *empty, struct place &p,
                    uint32_t stages, bool really)
{
    products_wait();
    settle_64(x);
    settle_64(low);
    if (really)
#pragma unroll
        for (int i = 0; i < shape<D>::PARTS; i++) {
            if (threadIdx.x % 32 == 0) bar_arrive(empty + p.at);
            p.next(stages);
        }
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) y[j][e] = __fadd_rn(x[j][e], low[j][e]);
}

/* node += what a leaf's weights make of PASS columns of its values, at v. bad0, bad1: the row gets none. */
template <int PASS, bool BF16>
DEV void weigh_leaf(float node[PASS / 8][4], const uint32_t weights[4][2][4], uint32_t v,
                    const struct leaf_factors &f, bool bad0, bool bad1)
{
    float acc[PASS / 8][4];
    products_begin();
#pragma unroll
    for (int s = 0; s < 4; s++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            if constexpr (PASS == 128)
                weigh_128<BF16>(acc, weights[s][i], v + (uint32_t)(s * 16 * 128 >> 4), s + i);
            else
                weigh_64<BF16>(acc, weights[s][i], v + (uint32_t)(s * 16 * 128 >> 4), s + i);
    products_end();
    if constexpr (PASS == 128)
        settle_128(acc);
    else
        settle_64(acc);
    if (bad0 || bad1)
#pragma unroll
        for (int t = 0; t < PASS / 8; t++) {
            if (bad0) acc[t][0] = acc[t][1] = __int_as_float(0x7fc00000);
            if (bad1) acc[t][2] = acc[t][3] = __int_as_float(0x7fc00000);
        }
#pragma unroll
    for (int t = 0; t < PASS / 8; t++)
#pragma unroll
        for (int e = 0; e < 4; e++) node[t][e] = __fmaf_rn(f.leaf[e / 2], acc[t][e], node[t][e]);
}

template <int D, bool BF16>
__global__ void __launch_bounds__(THREADS + 128, 1)
    attn_far(const __grid_constant__ attn a, const __grid_constant__ chain_map mk,
             const __grid_constant__ chain_map mv)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    using F = shape<D>;
    extern __shared__ unsigned char raw[];
    unsigned char *const base = raw + (1024 - (shared_at(raw) & 1023)) % 1024;
    uint64_t *full = (uint64_t *)(base + AT_BARS), *empty = full + STAGES;
    const bool apart = a.n_tiles <= TILES;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            bar_open(full + i, 1);
            bar_open(empty + i, apart ? 4 : 4 * GROUPS);
        }
        bar_fence();
    }
    __syncthreads();
    cuda_grid_early();
    if (!a.early) cuda_grid_wait();

    const int lane = threadIdx.x % 32, w = __shfl_sync(~0u, (int)threadIdx.x / 32, 0), group = w / 4,
              r = apart ? (group < GROUPS ? group : w % 2) : 0; /* the ring */
    const struct work o = work_of<D>(a, apart, r);
    /* Of a tree all rows see what lies before the anchor's leaf: as rows do that are not causal. */
    const int pos0 = a.tree ? a.pos[0] / LEAF * LEAF - a.n : a.pos[0], bound = a.first ? *a.first : 0;
    const struct span seen = visible_any(a, o.tile, o.tiles, pos0, bound);
    const struct units u = o.ranks ? units_of<D>(a, seen) : units{0, 0};
    const int copies = apart && F::ONE_HEAD ? 1 : GROUPS, all = PLACES - copies * (F::QUERIES / PART);
    const uint32_t stages = (uint32_t)(apart ? all / 2 : all),
                   ring = shared_at(base) + (uint32_t)(copies * F::QUERIES) + (uint32_t)r * stages * PART;
    full += r * (STAGES / 2), empty += r * (STAGES / 2);
    if (group == GROUPS) { /* a group of its own, for registers are given and taken by groups */
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (lane == 0 && w % 4 < (apart ? 2 : 1))
            ask<D>(a, &mk, &mv, o, seen, u, pos0, ring, full, empty, stages);
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    const int g = lane / 4, own = o.tile + (apart ? 0 : group * TILES), tile = own + w % 4; /* the warp's */
    const struct span mine = visible_any(a, own, TILES, pos0, bound),
                      full_mine = visible_all(a, tile, pos0, bound),
                      v0 = visible_at(a, tile * TILE + g, pos0, bound),
                      v1 = visible_at(a, tile * TILE + g + 8, pos0, bound);
    const int last = min(row_of(a, (o.tile + o.tiles) * TILE - 1), a.n - 1),
              begin = min(row_of(a, o.tile * TILE), a.n - 1);
    const struct span whole = {visible(a, last, pos0, bound).lo, visible(a, begin, pos0, bound).hi};
    /* Of a block's second group that this launch does not have nothing is kept. */
    const bool kept = o.ranks && own < a.tile0 + a.n_tiles;
    const struct units mine_u = kept ? units_of<D>(a, mine) : units{1 << 30, 2};
    float *const units_at = (float *)(base + AT_UNITS) + 16 * w;
    uint8_t *const q_at = base + (copies == 1 ? 0 : group * F::QUERIES);
    if (a.early) cuda_grid_wait();
    queries<D, BF16>(a, q_at, units_at, tile, o.kv_head);
    shared_fence();
    asm volatile("bar.sync %0, 128;" ::"r"(3 + group) : "memory");
    const float unit[2] = {units_at[g], units_at[g + 8]};
    const uint32_t q = matrix_at(shared_at(q_at), 16);

    float node[D / 8][4], node_top[2], node_sum[2];
    const auto begin_node = [&] {
        node_top[0] = node_top[1] = -INFINITY, node_sum[0] = node_sum[1] = 0.0f;
#pragma unroll
        for (int t = 0; t < D / 8; t++) node[t][0] = node[t][1] = node[t][2] = node[t][3] = 0.0f;
    };
    if (mine_u.count == 0 && o.rank == 0) put_zeros<D>(a, tile, o.kv_head);
    struct place p = {0, 0};
    struct walk c = {u.first + o.rank, 0, 0}, n;
    const int end = u.first + u.count;
    if (c.unit >= end) return;
    c.enter(a, c.unit, seen);
    float x[8][4];
    if (F::AHEAD) {
        float high[8][4], low[8][4];
        scores_begin<D, BF16>(high, low, q, ring, full, p, stages, true);
        scores_end<D>(x, high, low, empty, p, stages, true);
    }
#pragma unroll 1
    while (c.unit < end) {
        begin_node();
        const int at = c.unit;
#pragma unroll 1
        do {
            n = c.next(a, seen, o.ranks);
            const bool more = n.unit < end;
            const int p0 = c.leaf * LEAF;
            float top[2], sum[2], high[8][4], low[8][4];
            uint32_t weights[4][2][4];
            /* Behind the last leaf what lies there is multiplied, and left: no branch may be around products.
             */
            scores_begin<D, BF16>(high, low, q, ring, full, p, stages, !F::AHEAD || more);
            float(*const now)[4] = F::AHEAD ? x : high;
            if (!F::AHEAD) scores_end<D>(high, high, low, empty, p, stages, true);
            if (p0 < full_mine.lo || p0 + LEAF > full_mine.hi)
                mask_scores<8>(now, top, unit, true, p0, v0, v1);
            else
                mask_scores<8>(now, top, unit, false, p0, v0, v1);
            make_weights<8, 2, BF16>(weights, sum, now, top);
            sum[0] = quad_sum(sum[0]);
            sum[1] = quad_sum(sum[1]);
            const struct leaf_factors f = rise<D>(node, node_top, node_sum, top, sum);
            if (F::AHEAD) scores_end<D>(x, high, low, empty, p, stages, more);
            const bool ragged = p0 < whole.lo || p0 + LEAF > whole.hi;
#pragma unroll
            for (int part = 0; part < F::PARTS; part++) {
                const uint32_t v = ring + p.at * PART;
                uint64_t bad = 0;
                bar_wait(full + p.at, p.phase);
                if (ragged)
                    bad = clean<BF16>(base + (v - shared_at(base)), (uint32_t *)(base + AT_BAD), p0, seen,
                                      apart);
                const bool bad0 = bad & bits_of(v0, p0), bad1 = bad & bits_of(v1, p0);
#pragma unroll
                for (int pass = 0; pass < F::PASSES / F::PARTS; pass++)
                    weigh_leaf<F::PASS, BF16>(node + (part * 128 + pass * F::PASS) / 8, weights,
                                              matrix_at(v + (uint32_t)(pass * HALF), HALF), f, bad0, bad1);
                if (lane == 0) bar_arrive(empty + p.at);
                p.next(stages);
            }
            c = n;
        } while (c.unit == at);
        if (at >= mine_u.first && at < mine_u.first + mine_u.count)
            put<D>(a, node, node_top, node_sum, tile, o.kv_head, at - mine_u.first,
                   mine_u.count == 1 && !a.tree);
    }
#endif
}
} /* namespace far */

static bool maps_of(const struct attn *a, struct chain_map *mk, struct chain_map *mv)
{
    return kv_map(mk, a->k, a->type, a->n_kv, a->d, a->where, far::LEAF) &&
           kv_map(mv, a->v, a->type, a->n_kv, a->d, a->where, far::LEAF);
}
bool attn_far_takes(const struct cuda_backend *be, const struct attn *a)
{
    struct chain_map mk, mv;
    return be->cc >= 90 && !be->generic && (a->d == 128 || a->d == 256) && kv_halves(a->type) &&
           be->smem_block >= far::BYTES && maps_of(a, &mk, &mv);
}
int attn_far_launch(struct cuda_backend *be, const struct attn *a, int32_t blocks)
{
    struct chain_map mk, mv;
    const bool bf16 = kv_bf16(a->type);
    const auto f = a->d == 256 ? (bf16 ? far::attn_far<256, true> : far::attn_far<256, false>)
                               : (bf16 ? far::attn_far<128, true> : far::attn_far<128, false>);
    const cudaError_t err = cudaFuncSetAttribute(f, cudaFuncAttributeMaxDynamicSharedMemorySize, far::BYTES);
    if (err || !maps_of(a, &mk, &mv)) return cuda_check(be, "attention", err ? err : cudaErrorUnknown);
    return cuda_check(
        be, "attention",
        cuda_launch(be, f, dim3((unsigned)blocks), dim3(far::THREADS + 128), far::BYTES, *a, mk, mv));
}
