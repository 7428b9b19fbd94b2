/* attention/leaves.cuh - attention of some rows, up to 16, over few keys, in one launch: leaves and their
 * sum.
 *
 * Between two products nothing counts but the chain of latencies, so each step asks for what the next one
 * needs: keys and values that were there before, by the warps that will have no queries; the queries, as soon
 * as the projections are complete. A block has a tile and up to P leaves at once, each of which SIDE warps
 * share: scores by keys, the output by columns. In between, a warp makes the weights of its own keys where
 * their scores are, in its registers; the warps of a leaf exchange the rows' maxima, then fragments of
 * weights and parts of sums. A weight or a result has attn_step's chain of operations.
 *
 * Results of leaves are handed on through memory, in words that carry their own flag: of a (tile, kv head)
 * they are strips of 256, row after row; a strip has a place for each leaf: 256 values, then (top, sum) of
 * its rows. A place holds words that no arithmetic gives until they are written. A block adds some strips of
 * its (tile, kv head): reads until each word is another, puts these back, and rounds for the product that
 * follows. So there is no fence, no flag and no second launch. All blocks that have leaves must be resident;
 * the next kernel's start only when all of these stand.
 *
 * Wins over two launches: 8B at 16 rows 2.62 to 2.52 ms, 27B 7.41 to 7.31. dflash-bench rows -m
 * 8b-q4_k_m.gguf --device cuda --rows 1,2,4,8,16 --context 512 */
#include "heads.cuh"
#include "paths.cuh"
#include "../core/patience.cuh"

template <int D> struct places {
    static constexpr int LEAF = few<D>::LEAF, LEAVES = few<D>::LEAVES;
    static constexpr int WARPS = 8, THREADS = 32 * WARPS;
    static constexpr int P = PLACES_SIDE(D); /* leaves side by side */
    static constexpr int SIDE = WARPS / P;   /* warps of a leaf */
    static constexpr int NT = LEAF / 8;      /* n8 tiles of scores */
    static constexpr int KT =
        NT > 4 ? NT / 4 : 1;                /* of a warp: with fewer, more warps would read the queries */
    static constexpr int KEYED = NT / KT;   /* warps of a leaf that have keys: 4 */
    static constexpr int CT = D / 8 / SIDE; /* n8 tiles of a warp's output */
    static constexpr int PITCH = D + 8;     /* halves of a key: on other banks than the next */
    static constexpr int SLOT = LEAF * PITCH * 2;        /* bytes of a leaf's keys, or values */
    static constexpr int QUERY = (D / 16) * 2 * 512;     /* bytes, [D / 16][part][lane] */
    static constexpr int WEIGHT = (LEAF / 16) * 2 * 512; /* of a leaf, [LEAF / 16][part][lane] */
    static constexpr int TOPS = TILE * KEYED * 4;        /* maxima of a leaf, [row][warp] */
    static constexpr int SUMS = TILE * 4 * KEYED * 4;    /* sums of a leaf, [row][lane of a quad][warp] */
    static constexpr int FIXED =
        (QUERY + P * (WEIGHT + TOPS + SUMS) + TILE * (4 + 8) + 16 * P + 127) / 128 * 128;
    static constexpr int BYTES = FIXED + 2 * P * SLOT;
    static constexpr int STRIPS = TILE * D / 256;
    /* of n rows of a tree: behind all that */
    static constexpr int PATHS(int n)
    {
        return BYTES + WAY_BYTES + WARPS * MINE_BYTES + 2 * (n + 1) * PITCH * 2;
    }
};

#define PLACE_EMPTY 0xffffffffu

DEV float *place_of(const attn &a, int strips, int tile, int kv_head, int strip, int leaf)
{
    return a.part +
           (((kv_head * a.n_tiles + tile - a.tile0) * strips + strip) * a.slots + leaf) * PLACE_FLOATS;
}
DEV bool place_empty(float x)
{
    return __float_as_uint(x) == PLACE_EMPTY;
}
DEV void place_put(float *p, float x, float y)
{
    asm volatile("st.relaxed.gpu.global.v2.f32 [%0], {%1, %2};" ::"l"(p), "f"(x), "f"(y) : "memory");
}
DEV float2 place_get(const float *p)
{
    float2 v;
    asm volatile("ld.relaxed.gpu.global.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "l"(p) : "memory");
    return v;
}
/* A warp's results of a leaf at columns `col` on, of rows g and g + 8 below `real`; place(r): of row r's
 * strip there. */
template <int D, int CT, class P>
DEV void put_results(const float acc[CT][4], int real, int col, const P &place)
{
    const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int r = g + 8 * half;
        if (r >= real) continue;
        float *const to_place = place(r) + (r * D + col + 2 * c) % 256;
#pragma unroll
        for (int t = 0; t < CT; t++) place_put(to_place + 8 * t, acc[t][2 * half], acc[t][2 * half + 1]);
    }
}
/* A word of each line of the arguments, by a warp of its own: they are in no cache, and come a line at a
 * time. */
DEV void touch_arguments(const attn &a)
{
    const int at = 16 * (int)(threadIdx.x / 32);
    if (at < (int)sizeof a / 4) {
        const int word = ((const int *)&a)[at];
        asm volatile("" ::"r"(word));
    }
}
/* Bytes that a barrier (cluster.cuh) was told to expect. */
DEV void copy_counted(unsigned to, const void *from, unsigned bytes, unsigned bar)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
        "l"(from), "r"(bytes), "r"(bar)
        : "memory");
#endif
}
/* The warps of a leaf meet. */
template <int SIDE> DEV void meet_side(int p)
{
    asm volatile("bar.sync %0, %1;" ::"r"(1 + p), "n"(32 * SIDE) : "memory");
}

/* (top, sum) of a leaf, as soon as they are there, by a whole warp. */
DEV float2 tops_of(const float *place, bool waits)
{
    float2 ts = make_float2(-INFINITY, 0.0f);
    patience wait;
    do {
        if (waits) {
            ts = place_get(place);
            waits = place_empty(ts.x) || place_empty(ts.y);
        }
        wait.turn();
    } while (__any_sync(~0u, waits));
    return ts;
}

/* Of leaves, a lane each in order: their node's top with them, and the powers of two that bring the node's
 * sum so far and their own to it. node: the lane where my leaf's node began, below 0 if in leaves before
 * these, of top t. begins: lanes where one does. */
struct node_tops {
    float top, down, weight;
    unsigned begins;
};
DEV node_tops tops_of_nodes(float own, int node, float t)
{
    const int lane = threadIdx.x % 32;
    float top = own;
#pragma unroll
    for (int o = 1; o < 32; o *= 2) {
        const float u = __shfl_up_sync(~0u, top, o);
        if (lane - o >= max(node, 0)) top = fmaxf(top, u);
    }
    if (node < 0) top = fmaxf(top, t);
    float before = __shfl_up_sync(~0u, top, 1);
    if (lane == max(node, 0)) before = node < 0 ? t : -INFINITY;
    return {top, factor(before, top), factor(own, top), __ballot_sync(~0u, lane == node)};
}

/* A strip's places as they were before, by a warp; there: my values are of a row that is. */
template <int D> DEV void empty_places(float *base, int strip, int real, int count, bool there)
{
    const int lane = threadIdx.x % 32;
    const uint4 e = make_uint4(PLACE_EMPTY, PLACE_EMPTY, PLACE_EMPTY, PLACE_EMPTY);
    const bool first_there = (strip * 256 + lane * 4) / D < real;
#pragma unroll 1
    for (int k = 0; k < count; k++) {
        float *const place = base + k * PLACE_FLOATS;
        if (first_there) __stcg((uint4 *)place + lane, e);
        if (there) __stcg((uint4 *)place + 32 + lane, e);
        if (lane == 0) __stcg((uint4 *)place + 64, e);
    }
}

/* One strip, by two warps: leaves [first, first + count), those of a node in order, nodes by class, of which
 * each has one at most; rows below `real`. mine: room in shared memory for at_once leaves, of my thread. A
 * lane has four values of a row, and (top, sum) of a leaf, from which it finds the powers of two that bring
 * the node's sum and that leaf to one top. */
template <int D>
DEV void add_strip(const attn &a, float4 *mine, int at_once, int tile, int kv_head, int strip, int real,
                   int first, int count)
{
    constexpr int L = few<D>::LEAVES, APART = 64; /* lanes of a leaf's results */
    const int lane = threadIdx.x % 32, at_value = strip * 256 + threadIdx.x % 64 * 4, r = at_value / D,
              at_row = tile * TILE + r;
    const int ahead = leaves_ahead<D>(first, count);
    const bool there = r < real;
    float *const base = place_of(a, places<D>::STRIPS, tile, kv_head, strip, 0), *const values =
                                                                                     base +
                                                                                     threadIdx.x % 64 * 4;
    float *const tops = base + 256 + (D < 256 ? 2 * (r % 2) : 0);
    const int at_out =
        (row_of(a, at_row) * (a.n_head - a.n_rep) + kv_head * a.n_rep + at_row) * D + at_value % D;
    const auto leaf = [&](int q) { return ahead + q < count ? ahead + q : ahead + q - count; };
    const float4 gate = gate_at(a, at_out, there);
    float T = -INFINITY, S = 0.0f, Y[4] = {}, t = -INFINITY, s = 0.0f, y[4] = {};
#pragma unroll 1
    for (int q0 = 0; q0 < count; q0 += at_once) {
        const int n = min(count - q0, at_once), k = leaf(q0 + min(lane, n - 1));
        const auto ask = [&](int from) { /* for the values of those from `from` on */
                                         const float *p = values + leaf(q0 + from) * PLACE_FLOATS;
                                         unsigned to = shared_at(mine + from * APART);
#pragma unroll 1
                                         for (int q = q0 + from; q < q0 + n; q++) {
                                             if (there) copy_async(to, p);
                                             to += APART * 16;
                                             p = q + 1 == count - ahead ? values : p + PLACE_FLOATS;
                                         }
                                         copy_commit();
        };
        const float2 ts = tops_of(tops + k * PLACE_FLOATS, there && lane < n); /* there before the values */
        ask(0);
        const node_tops nodes = tops_of_nodes(ts.x, lane - min((first + k) % L, k), t);
        copy_wait(0);
#pragma unroll 1
        for (int j0 = 0; j0 < n; j0 += 4) {
            float4 u[4];
            for (;;) { /* have these come? They do, for whoever wrote the tops is at work */
                unsigned most = 0;
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    u[i] = mine[min(j0 + i, n - 1) * APART];
                    most = max(max(most, max(__float_as_uint(u[i].x), __float_as_uint(u[i].y))),
                               max(__float_as_uint(u[i].z), __float_as_uint(u[i].w)));
                }
                if (!__any_sync(~0u, there && most == PLACE_EMPTY)) break;
                ask(j0);
                copy_wait(0);
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int j = j0 + i;
                if (j >= n) break;
                if (nodes.begins >> j & 1) {
                    add_result<4>(T, S, Y, t, s, y);
                    s = y[0] = y[1] = y[2] = y[3] = 0.0f;
                }
                const float x[4] = {u[i].x, u[i].y, u[i].z, u[i].w};
                const float f = __shfl_sync(~0u, nodes.down, j), g = __shfl_sync(~0u, nodes.weight, j);
                s = __fmaf_rn(g, __shfl_sync(~0u, ts.y, j), __fmul_rn(s, f));
                t = __shfl_sync(~0u, nodes.top, j);
#pragma unroll
                for (int k = 0; k < 4; k++) y[k] = __fmaf_rn(g, x[k], __fmul_rn(y[k], f));
            }
        }
    }
    add_result<4>(T, S, Y, t, s, y);
    const float4 z = make_float4(divided(Y[0], S), divided(Y[1], S), divided(Y[2], S), divided(Y[3], S));
    if (there) __stcg((float4 *)(a.out + at_out), z);
    *mine = gated(a, z, gate);
    asm volatile("bar.sync %0, 64;" ::"r"(8 + (int)threadIdx.x / 64)
                 : "memory"); /* and both have read all tops */
    if (threadIdx.x / 32 % 2 == 0) {
        if (a.prepare)
            prepare_strip<D>(a, (const float *)(mine - threadIdx.x % 64), kv_head,
                             tile * TILE + strip * 256 / D, strip * 256 % D);
    } else { /* the other warp puts the words back */
        empty_places<D>(base, strip, real, count, there);
    }
    asm volatile("bar.sync %0, 64;" ::"r"(8 + (int)threadIdx.x / 64) : "memory"); /* the room is used again */
}

/* Of a leaf's scores x of a warp's keys, of rows g and g + 8: weights as fragments, parts of their sums; top:
 * the rows' maxima, rounded up. All warps of the leaf call, and meet. */
template <class F, bool BF16>
DEV void side_weights(float x[F::KT][4], float top[2], const float unit[2], const struct span v[2], int p0,
                      int p, int side, float *tops, float *sums, uint4 *weights)
{
    const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
    if (side < F::KEYED) {
        top[0] = top[1] = -INFINITY;
#pragma unroll
        for (int j = 0; j < F::KT; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int at = p0 + 8 * (side * F::KT + j) + 2 * c + e % 2;
                x[j][e] = at >= v[e / 2].lo && at < v[e / 2].hi ? __fmul_rn(x[j][e], unit[e / 2]) : -INFINITY;
                top[e / 2] = fmaxf(top[e / 2], x[j][e]);
            }
        top[0] = quad_max(top[0]);
        top[1] = quad_max(top[1]);
        if (c == 0) tops[g * F::KEYED + side] = top[0], tops[(g + 8) * F::KEYED + side] = top[1];
    }
    meet_side<F::SIDE>(p);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        top[half] = -INFINITY;
#pragma unroll
        for (int i = 0; i < F::KEYED; i += 4) {
            const float4 t = *(const float4 *)(tops + (g + 8 * half) * F::KEYED + i);
            top[half] = fmaxf(top[half], fmaxf(fmaxf(t.x, t.y), fmaxf(t.z, t.w)));
        }
        top[half] = ceilf(top[half]);
    }
    if (side >= F::KEYED) return;
    uint32_t part[F::KT][2][2]; /* [tile][half][part] */
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float base = top[half] == -INFINITY ? 0.0f : top[half];
        float sum[F::KT];
#pragma unroll
        for (int j = 0; j < F::KT; j++) {
            const float u = exp_two(__fsub_rn(x[j][2 * half], base)),
                        w = exp_two(__fsub_rn(x[j][2 * half + 1], base));
            sum[j] = __fadd_rn(u, w);
            parts_of<2, BF16>(u, w, part[j][half]);
        }
        sums[((g + 8 * half) * 4 + c) * F::KEYED + side] =
            F::KT == 2 ? __fadd_rn(sum[0], sum[F::KT - 1]) : sum[0];
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
        if constexpr (F::KT == 2)
            weights[(side * 2 + i) * 32 + lane] =
                make_uint4(part[0][0][i], part[0][1][i], part[1][0][i], part[1][1][i]);
        else
            *((uint2 *)&weights[(side / 2 * 2 + i) * 32 + lane] + side % 2) =
                make_uint2(part[0][0][i], part[0][1][i]);
}
/* The sum of row r's weights, in the lanes of a quad: neighbours, then keys 8, 16 and 32 apart, then 2 and 4.
 */
DEV float side_sum(const float *sums, int r)
{
    const float4 u = *(const float4 *)(sums + (r * 4 + threadIdx.x % 4) * 4);
    return quad_sum(__fadd_rn(__fadd_rn(u.x, u.y), __fadd_rn(u.z, u.w)));
}

/* Rows that a block norms and rotates, some of a kind at a time: the tile's queries (before begin_mine), new
 * keys and values of its leaves (before begin_unseen), and those of the tile's own rows that no row sees; of
 * a kind keys first, then values, which are less work. */
struct made_rows {
    int tile, begin_mine, begin_unseen, all; /* groups of them */
    int real, count_mine, unseen, mine, own; /* how many; the first row of the last two */
};
template <class H>
DEV made_rows made_rows_of(int tile, int groups_q, int real, int mine, int count_mine, int own, int unseen)
{
    made_rows m = {tile, groups_q, 0, 0, real, count_mine, unseen, mine, own};
    m.begin_unseen = m.begin_mine + (count_mine + H::ROWS - 1) / H::ROWS * 2;
    m.all = m.begin_unseen + (unseen + H::ROWS - 1) / H::ROWS * 2;
    return m;
}
/* Of group `it` the lane's: the i-th of its kind, row j of the pass; really: it is not one more of the last.
 */
struct made_row {
    int i, j;
    bool query, local, value, really;
};
template <class H> DEV made_row made_row_of(const attn &a, const made_rows &m, int it, int lane)
{
    made_row r;
    r.query = it < m.begin_mine, r.local = it < m.begin_unseen;
    const int at = it - (r.query   ? 0
                         : r.local ? m.begin_mine
                                   : m.begin_unseen),
              some = r.query   ? m.real
                     : r.local ? m.count_mine
                               : m.unseen,
              half = (some + H::ROWS - 1) / H::ROWS;
    r.value = !r.query && at >= half;
    const int mate = (r.value ? at - half : at) * H::ROWS + lane / H::LANES;
    r.i = min(mate, some - 1), r.really = mate < some;
    r.j = r.query ? row_of(a, m.tile * TILE + r.i) : (r.local ? m.mine : m.own) + r.i;
    return r;
}

/* TREE: the rows are a tree's (paths.cuh). */
template <int D, bool BF16, bool TREE>
__global__ void __launch_bounds__(places<D>::THREADS, 2) attn_places(const __grid_constant__ attn a)
{
    using F = places<D>;
    using H = heads_of<D, 16>;
    constexpr int LEAF = F::LEAF, PITCH = F::PITCH, WARPS = F::WARPS, SIDE = F::SIDE, CT = F::CT, P = F::P;
    extern __shared__ __align__(128) unsigned char raw[];
    uint4 *const queries = (uint4 *)raw;
    const int lane = threadIdx.x % 32, w = threadIdx.x / 32, g = lane / 4, c = lane % 4;
    const int p = w / SIDE, side = w % SIDE; /* my leaf of those side by side, my share of it */
    uint4 *const weights = (uint4 *)(raw + F::QUERY + p * F::WEIGHT);
    float *const tops = (float *)(raw + F::QUERY + P * F::WEIGHT + p * F::TOPS);
    float *const sums = (float *)(raw + F::QUERY + P * (F::WEIGHT + F::TOPS) + p * F::SUMS);
    float *const units = (float *)(raw + F::QUERY + P * (F::WEIGHT + F::TOPS + F::SUMS));
    int2 *const spans = (int2 *)(units + TILE);
    const unsigned bars = shared_at(spans + TILE); /* of 8 bytes: keys of P leaves, values of them */
    unsigned char *const slots = raw + F::FIXED;
    touch_arguments(a);
    if (threadIdx.x < 2 * P) cluster_bar_init(bars + 8 * threadIdx.x);
    cuda_grid_early();
    __syncthreads(); /* barriers are there */
    if (!a.known) cuda_grid_wait();
    const int tile = a.tile0 + (int)blockIdx.x, kv_head = blockIdx.y, rank = blockIdx.z;
    const int pos0 = a.pos[0], bound = a.first ? *a.first : 0;
    struct tile_paths paths = {};
    uint8_t *const way = raw + F::BYTES, *const my_tried = way + WAY_BYTES + w * MINE_BYTES;
    if constexpr (TREE) {
        paths.first = row_of(a, tile * TILE);
        paths.rows = min(row_of(a, tile * TILE + TILE - 1), a.n - 1) - paths.first + 1;
        paths.way = way, paths.tried = shared_at(way + WAY_BYTES + WARPS * MINE_BYTES), paths.pos0 = pos0;
    }
    const int tree_pos = TREE ? a.pos[paths.first + min(lane, paths.rows - 1)] : 0;
    const struct span seen = TREE ? span{0, (int)__reduce_max_sync(~0u, (unsigned)tree_pos) + 1}
                                  : visible_any(a, tile, 1, pos0, bound);
    const struct units u = units_of<D>(a, seen);
    const int per = units_a_block(a, u), busy = max((u.count + per - 1) / per, 1); /* blocks at work */
    if (rank >= busy) return;
    const int from = u.first + rank * per, to = min(from + per, u.first + u.count);
    const int real = min(TILE, a.n * a.n_rep - tile * TILE), groups_q = (real + H::ROWS - 1) / H::ROWS;
    /* Of what the tile sees, [seen.lo, old_hi) comes from the ring and [new_lo, seen.hi) is made here. */
    const bool makes = TREE || a.fold;
    const int old_hi = makes ? min(seen.hi, pos0) : seen.hi, new_lo = makes ? max(seen.lo, pos0) : seen.hi;
    const int stride = a.n_kv * D;
    const auto ring_at = [&](int position, bool value) {
        return KV_ROW(D, value ? a.v : a.k, KV_SLOT(a.where, position), (int64_t)stride, kv_head);
    };
    const auto tail_at = [&](int j, bool value) {
        return KV_ROW(D, value ? a.tail_v : a.tail_k, j, (int64_t)stride, kv_head);
    };
    const auto query_of = [&](int i, int j) {
        return a.q + (j * (a.n_head - a.n_rep) + kv_head * a.n_rep + tile * TILE + i) * D;
    };
    const auto table_of = [&](int j) { return a.half ? (const float2 *)a.table + j * a.half : NULL; };
    int n_tried = 0;
    if constexpr (TREE) {
        if (to * LEAF > pos0) {
            find_ways(a, paths, way);
            n_tried = find_mine(a, paths, max(from, to - P) * LEAF, to * LEAF, my_tried);
            for (int i = threadIdx.x; i < PITCH; i += 32 * WARPS) /* what no row of a path sees */
                ((uint32_t *)(way + WAY_BYTES + WARPS * MINE_BYTES + 4 * a.n * PITCH))[i] = 0;
        }
    }
    /* The i-th of n warps asks for its share of what is there of keys (items 0 to P - 1) and values (P to 2 P
     * - 1) of the leaves below high. A copy is an instruction of the whole warp, so many warps share them. */
    const auto ask = [&](int high, int item, int end, int i, int n) {
        if (i == 0 && lane >= item && lane < end && high - 1 - lane % P >= from) {
            const int p0 = (high - 1 - lane % P) * LEAF, keys = min(p0 + LEAF, old_hi) - max(p0, seen.lo);
            cluster_bar_expect(bars + 8 * (unsigned)lane, (unsigned)max(keys, 0) * kv_bytes<D>);
        }
#pragma unroll 1
        for (int k = item * LEAF + i + n * lane; k < end * LEAF; k += n * 32) {
            const int which = k / LEAF, leaf = high - 1 - which % P, key = leaf * LEAF + k % LEAF;
            if (leaf >= from && key >= seen.lo && key < old_hi)
                copy_counted(shared_at(slots) +
                                 (unsigned)((which % P * 2 + which / P) * F::SLOT + k % LEAF * PITCH * 2),
                             ring_at(key, which >= P), kv_bytes<D>, bars + 8 * (unsigned)which);
        }
    };
    const int first_asks = groups_q <= WARPS / 2 ? groups_q : 0;
    const bool soon = a.early && a.fold; /* what is asked for was there before this pass */
    if (a.known && !soon) cuda_grid_wait();
    if (w >= first_asks) ask(to, 0, 2 * P, w - first_asks, WARPS - first_asks);
    if (soon) cuda_grid_wait();
    H ahead; /* the rows that this warp makes next */
    if (w < groups_q) {
        const int i = min(w * H::ROWS + lane / H::LANES, real - 1), j = row_of(a, tile * TILE + i);
        ahead.load(a, query_of(i, j), table_of(j));
    }
    if (TREE) {
        const int of = lane < TILE ? path_of(a, paths, tile, lane) : -1,
                  end = __shfl_sync(~0u, tree_pos, max(of, 0)) + 1;
        if (threadIdx.x < TILE) spans[threadIdx.x] = make_int2(0, of < 0 ? 0 : end);
    } else if (threadIdx.x < TILE) {
        const struct span v = visible_at(a, tile * TILE + (int)threadIdx.x, pos0, bound);
        spans[threadIdx.x] = make_int2(v.lo, v.hi);
    }
    const struct span full = TREE ? seen : visible_all(a, tile, pos0, bound);
    /* Rows that are normed and rotated here, some of a kind at a time, the next ones' loads before: the
     * queries, where that begins; new keys and values of leaves [low, high), which go to their slots (a
     * tree's beside them) and, where they are the tile's, to the ring (the tail); of the tile's those that no
     * row sees, of which a tree has none. */
    const int own = row_of(a, tile * TILE + a.n_rep - 1),
              own_to = min(row_of(a, (tile + 1) * TILE + a.n_rep - 1), a.n);
    const auto make_rows = [&](int low, int high, bool begins) {
        if (TREE && !begins) n_tried = find_mine(a, paths, low * LEAF, high * LEAF, my_tried);
        const int mine = TREE ? 0 : max(low * LEAF, new_lo) - pos0,
                  count_mine =
                      TREE ? (a.fold ? n_tried : 0) : max(min(high * LEAF, seen.hi) - pos0 - mine, 0),
                  unseen = !TREE && begins && rank == 0 && a.fold
                               ? max(min(own_to, seen.hi > seen.lo ? new_lo - pos0 : a.n) - own, 0)
                               : 0;
        if (TREE && !a.fold)
            for (int i = threadIdx.x; i < n_tried * (D / 4); i += 32 * WARPS) {
                const int j = my_tried[i / (D / 4)], value = i / (D / 8) % 2, piece = i % (D / 8);
                *(uint4 *)(way + WAY_BYTES + WARPS * MINE_BYTES + (2 * j + value) * PITCH * 2 + 16 * piece) =
                    __ldcg((const uint4 *)tail_at(j, value) + piece);
            }
        const made_rows rows =
            made_rows_of<H>(tile, begins ? groups_q : 0, real, mine, count_mine, own, unseen);
#pragma unroll 1
        for (int it = w < rows.begin_mine ? w : w - WARPS; it < rows.all;
             it += WARPS) { /* queries are on their way */
            H h = ahead;
            if (it + WARPS < rows.all) {
                made_row r = made_row_of<H>(a, rows, it + WARPS, lane);
                if (TREE && !r.query) r.j = my_tried[r.i];
                ahead.load(a,
                           r.query ? query_of(r.i, r.j)
                                   : (r.value ? a.new_v : a.new_k) + r.j * stride + kv_head * D,
                           r.value ? NULL : table_of(r.j));
            }
            if (it < 0) continue;
            made_row r = made_row_of<H>(a, rows, it, lane);
            if (TREE && !r.query) r.j = my_tried[r.i];
            const float *norm = r.query ? a.q_norm : r.value ? NULL : a.k_norm;
            h.turn(a, r.value ? a.v_norm : norm != NULL, norm, !r.value && a.half);
            if (r.query) {
                h.template put_query<BF16>(a, queries, units, r.i, r.really);
            } else if (TREE) {
                if (r.really)
                    h.template put<BF16>((uint16_t *)(way + WAY_BYTES + WARPS * MINE_BYTES) +
                                         (2 * r.j + r.value) * PITCH);
                if (r.really && r.j >= own && r.j < own_to) h.template put<BF16>(tail_at(r.j, r.value));
            } else if (r.really) {
                const int at = pos0 + r.j, slot = 2 * (high - 1 - at / LEAF) + r.value;
                if (r.local) h.template put<BF16>((uint16_t *)(slots + slot * F::SLOT) + at % LEAF * PITCH);
                if (!r.local || (r.j >= own && r.j < own_to)) h.template put<BF16>(ring_at(at, r.value));
            }
        }
    };
#pragma unroll 1
    for (int high = to, turn = 0; !turn || high > from;
         high -= P, turn++) { /* the last leaves first: they have the new keys */
        const int leaf = high - 1 - p, p0 = leaf * LEAF;
        const bool mine = leaf >= from;
        unsigned char *const keys = slots + 2 * p * F::SLOT, *const values = keys + F::SLOT;
        if (turn) __syncthreads(); /* values are done with */
        if (turn) ask(high, P == 1 ? P : 0, 2 * P, w, WARPS);
        if (!TREE && mine &&
            (p0 < seen.lo ||
             p0 + LEAF > seen.hi)) /* values that nobody sees weigh nothing: no NaN among them */
#pragma unroll 1
            for (int i = threadIdx.x % (32 * SIDE); i < LEAF * D / 8; i += 32 * SIDE) {
                const int key = i / (D / 8);
                if (p0 + key < seen.lo || p0 + key >= seen.hi)
                    *((uint4 *)(values + key * PITCH * 2) + i % (D / 8)) = make_uint4(0, 0, 0, 0);
            }
        if (!turn || high * LEAF > new_lo) make_rows(max(from, high - P), high, !turn);
        if (high - P > from) shared_fence(); /* before copies to where rows were written */
        __syncthreads();                     /* rows that are made here */
        if (!mine) continue;
        cluster_bar_wait(bars + 8 * p, turn & 1);
        float x[F::KT][4], top[2];
        if (TREE && side < F::KEYED)
            scores_by_path<D, BF16, PITCH>(x, a, paths, queries, shared_at(keys), p0, side * F::KT * 8, tile,
                                           seen.hi);
        else if (side < F::KEYED)
            scores<D, BF16, F::KT, PITCH, 2>(x, queries, shared_at(keys) + side * F::KT * 8 * PITCH * 2);
        const int2 s0 = spans[g], s1 = spans[g + 8];
        const struct span sees[2] = {{s0.x, s0.y}, {s1.x, s1.y}};
        const float unit[2] = {units[g], units[g + 8]};
        side_weights<F, BF16>(x, top, unit, sees, p0, p, side, tops, sums,
                              weights); /* all have met: the keys are done with */
        if (P == 1 && leaf - P >= from) ask(leaf - P + 1, 0, 1, side, SIDE);
        meet_side<SIDE>(p); /* weights and sums are here */
        const auto place = [&](int r) {
            return place_of(a, F::STRIPS, tile, kv_head, (r * D + side * CT * 8) / 256, leaf - u.first);
        };
        if (side * CT * 8 % 256 == 0) { /* a strip's first columns: its tops are there before the values */
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int r = g + 8 * half;
                const float sum = side_sum(sums, r);
                if (r < real && c == 0)
                    place_put(place(r) + 256 + (D < 256 ? 2 * (r % 2) : 0), top[half], sum);
            }
        }
        cluster_bar_wait(bars + 8 * (P + p), turn & 1);
        /* Where some row sees a key that another of the tile does not, a NaN there must not meet its zero
         * weight: one shows in what comes out, and then all is done again without. 16 columns each, with
         * heads of 128: as attn_step has them. */
        constexpr int PARTS = P;
        const bool ragged = (full.lo > seen.lo && p0 < full.lo) || (full.hi < seen.hi && p0 + LEAF > full.hi);
        uint64_t bad[PARTS] = {};
        float acc[CT][4];
#pragma unroll 1
        for (bool again = false;; again = true) {
            if (TREE && p0 + LEAF > pos0)
                weigh_by_path<BF16, LEAF / 16, CT, PITCH>(acc, a, paths, weights, shared_at(values), p0,
                                                          side * CT * 8, tile, seen.hi);
            else
                weigh_stored<BF16, LEAF / 16, CT, PITCH>(acc, weights, shared_at(values), side * CT * 8);
            if (TREE || !ragged || again) break;
            float odd[4] = {};
#pragma unroll
            for (int t = 0; t < CT; t++)
#pragma unroll
                for (int e = 0; e < 4; e++) odd[e] = __fmaf_rn(acc[t][e], 0.0f, odd[e]);
            if (!__any_sync(~0u, !(odd[0] + odd[1] + odd[2] + odd[3] == 0.0f))) break;
#pragma unroll 1
            for (int i = 0; i < PARTS; i++) {
                const uint64_t b = clean_values<BF16, LEAF, CT * 8 / PARTS, PITCH>(
                    (uint16_t *)values + side * CT * 8 + i * (CT * 8 / PARTS));
                bad[PARTS - 1] = i ? b : bad[PARTS - 1], bad[0] = i ? bad[0] : b;
            }
            shared_fence(); /* before copies to where zeros were written */
        }
        if (bad[0] | bad[PARTS - 1]) {
            const uint64_t b0 = bits_of(sees[0], p0), b1 = bits_of(sees[1], p0);
#pragma unroll
            for (int t = 0; t < CT; t++) {
                if (bad[t * PARTS / CT] & b0) acc[t][0] = acc[t][1] = __int_as_float(0x7fc00000);
                if (bad[t * PARTS / CT] & b1) acc[t][2] = acc[t][3] = __int_as_float(0x7fc00000);
            }
        }
        put_results<D, CT>(acc, real, side * CT * 8, place);
    }
    __syncthreads(); /* slots are done with */
    const int strips = (real * D + 255) / 256,
              shares = min((strips - rank + busy - 1) / busy, WARPS / 2), /* pairs that add */
        at_once = min(32, 2 * P * F::SLOT / (1024 * max(shares, 1)));
#pragma unroll 1
    for (int strip = rank + busy * (w / 2); strip < strips; strip += busy * (WARPS / 2))
        add_strip<D>(a, (float4 *)slots + w / 2 * at_once * 64 + threadIdx.x % 64, at_once, tile, kv_head,
                     strip, real, u.first, u.count);
}

template <int D> static attn_fn places_of(uint32_t type, size_t *smem)
{
    *smem = (size_t)places<D>::BYTES;
    return kv_bf16(type) ? attn_places<D, true, false> : attn_places<D, false, false>;
}
template <int D> static attn_fn paths_of(uint32_t type, int32_t n, size_t *smem)
{
    *smem = (size_t)places<D>::PATHS(n);
    return kv_bf16(type) ? attn_places<D, true, true> : attn_places<D, false, true>;
}
