/* chain/wide.cuh - attention of one row as a step of a chain, as chain/attend.cuh has it, for heads of 128,
 * 256 and 512, windows, values that are normed or made of the keys' projection.
 *
 * Keys and values of a leaf are 66 KB, too many beside a ring and the step before. A block asks for them when
 * the step begins and has them when it has seen its queries: keys in the place of activations and terms,
 * values in registers, until keys are done with. A leaf is 64 keys, 32 of heads of 512; a node is 512 keys,
 * at an absolute multiple, and nodes are added by their number modulo CLASSES: with a window the first is
 * seldom number 0. The results of 32 columns are a *group*: a warp takes a node of one.
 *
 * Wins, with chain/post.cuh, over launches: 31B 105.2 to 89.4 us a layer, one row. dflash-bench rows -m
 * 31b-q4_k_m.gguf --device cuda --rows 1 --context 512 */
#ifndef DFLASH_CUDA_CHAIN_WIDE_CUH
#define DFLASH_CUDA_CHAIN_WIDE_CUH

#include "attend.cuh"
#include "ring.cuh"

/* What the row at pos sees: leaves [first, first + count), keys from lo on. */
struct wide_seen {
    int lo, first, count;
};
template <int D> DEV wide_seen wide_sees(const chain_step &s, int pos)
{
    constexpr int LEAF = few<D>::LEAF;
    const int lo = s.window ? max(pos - s.window + 1, 0) : 0;
    return {lo, lo / LEAF, pos / LEAF - lo / LEAF + 1};
}
DEV int wide_pairs(const chain_step &s, int d) /* of a leaf of a kv head: as LEAF_PAIRS */
{
    return s.n_rep * (d + 2);
}

/* A head's vector from values: as head_of loads it. */
template <int D>
DEV void wide_take(head_of<D> &h, const float *values, const float *norm, const float *table, int half)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < D / 32; j++) h.g[j] = norm ? __ldg(norm + lane + 32 * j) : 1.0f;
#pragma unroll
    for (int j = 0; j < D / 64; j++)
        h.cs[j] =
            table && 32 * j < half ? __ldcg((const float2 *)table + lane + 32 * j) : make_float2(1.0f, 0.0f);
    value_wait w;
    bool there;
    do {
        there = true;
#pragma unroll
        for (int j = 0; j < D / 32; j++) there &= value_get(&h.x[j], values + lane + 32 * j);
    } while (w.more(!__all_sync(~0u, there)));
}

/* A warp: query `it` of a kv head to the tile of queries, or the new key or value to its row and to the ring.
 */
template <int D, bool BF16>
DEV void wide_row(const chain_step &s, int pos, int kv_head, bool query, bool value, int it, const float *in,
                  uint4 *queries, float *units, uint16_t *key, uint16_t *fresh)
{
    const int from = query   ? (kv_head * s.n_rep + it) * D
                     : value ? s.v_from + kv_head * D
                             : s.k_from + kv_head * D;
    const float *const norm = query ? s.q_norm : value ? nullptr : s.k_norm;
    head_of<D> h;
    attn a;
    a.scale = s.scale, a.half = s.turn, a.eps = s.eps;
    wide_take<D>(h, in + from, norm, value || !s.turn ? nullptr : s.table, s.turn);
    h.turn(a, value ? s.v_norm != 0 : norm != nullptr, !value && s.turn);
    if (query && s.n_rep <= 8) {
        h.template put_query<BF16, true>(a, queries, units, it);
    } else if (query) {
        h.template put_query<BF16>(a, queries, units, it);
    } else {
        h.template put<BF16>(value ? fresh : key);
        h.template put<BF16>(
            KV_ROW(D, value ? s.v : s.k, KV_SLOT(s.where, pos), (size_t)(s.n_kv * D), kv_head));
    }
}
/* From one unit of a block to its next: of the same kv head, where there are blocks for all of them. */
DEV int wide_stride(const chain_step &s)
{
    const int blocks = (int)gridDim.x;
    return blocks < s.n_kv ? blocks : blocks / s.n_kv * s.n_kv;
}

/* The units of a block from u on, every `on`th: their leaves' outputs to parts. at: in shared memory, queries
 * and so on; then keys or values, then the new values. */
template <int D, bool BF16>
DEV void wide_leaves(const chain_step &s, int pos, const wide_seen &seen, int u, const float *in,
                     uint2 *parts, unsigned part_tag, uint8_t *at)
{
    using F = step<D, 1>;
    constexpr int PITCH = F::PITCH, CT = F::CT;
    static_assert(F::WARPS == CHAIN_HEADS, "the warps that attend");
    uint4 *queries = (uint4 *)at, *weights = (uint4 *)(at + F::QUERY);
    float *exchange = (float *)(at + F::QUERY + F::WEIGHT), *units = exchange + F::SCORES / 4;
    float2 *tops = (float2 *)(units + TILE);
    int2 *spans = (int2 *)(tops + TILE);
    uint8_t *const keys = at + F::FIXED, *const fresh = keys + F::SLOT; /* fresh: the new values */
    const unsigned k = shared_at(keys);
    const int lane = threadIdx.x % 32, w = threadIdx.x / 32, g = lane / 4, c = lane % 4;
    const int all = seen.count * s.n_kv, on = wide_stride(s);
    leaf_rows<D> rows;
    if (threadIdx.x < TILE) spans[threadIdx.x] = make_int2(seen.lo, pos + 1);
#pragma unroll 1
    for (bool begins = true; u < all; u += on, begins = false) {
        const int leaf = seen.first + u / s.n_kv, kv_head = u % s.n_kv, p0 = leaf * F::LEAF;
        if (!begins) chain_heads_meet(); /* the values before are done with */
        rows.copy(s, s.k, pos, seen.lo, leaf, kv_head, k);
        rows.load(s, s.v, pos, seen.lo, leaf, kv_head);
        const int n_q = begins || on % s.n_kv ? s.n_rep : 0, n = n_q + (pos < p0 + F::LEAF ? 2 : 0);
#pragma unroll 1
        for (int it = w; it < n; it += CHAIN_HEADS)
            wide_row<D, BF16>(s, pos, kv_head, it<n_q, it> n_q, it, in, queries, units,
                              (uint16_t *)keys + (pos - p0) * PITCH, (uint16_t *)fresh);
        copy_wait(0);
        chain_heads_meet(); /* queries and keys are here, and new values */
        if (w < F::NT) {
            static_assert(F::KT == 1, "a warp has 8 keys or none");
            const unsigned mine = k + (unsigned)(w * 8 * PITCH * 2);
            float *row = exchange + g * F::SPITCH + w * 8 + 2 * c;
            if (s.n_rep <= 8) {
                *(float2 *)row = scores_eight<D, BF16, PITCH>(queries, mine);
            } else {
                float part[1][4];
                scores<D, BF16, 1, PITCH, 2>(part, queries, mine);
                *(float2 *)row = make_float2(part[0][0], part[0][1]);
                *(float2 *)(row + 8 * F::SPITCH) = make_float2(part[0][2], part[0][3]);
            }
        }
        chain_heads_meet(); /* keys are done with */
        rows.put(pos, leaf, fresh, keys);
        step_weights<D, BF16, false>(exchange, units, spans, (uint32_t *)weights, tops, s.n_rep, p0, 0, 0, 0);
        chain_heads_meet();
        float acc[CT][4];
        weigh_stored<BF16, F::LEAF / 16, CT, PITCH>(acc, weights, k, w * CT * 8);
        uint2 *part = parts + (size_t)u * (size_t)wide_pairs(s, D);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int r = g + 8 * half;
            if (r >= s.n_rep) continue;
#pragma unroll
            for (int t = 0; t < CT; t++)
                pair_put(part + r * D + w * CT * 8 + 8 * t + 2 * c, acc[t][2 * half], acc[t][2 * half + 1],
                         part_tag);
        }
        if (threadIdx.x < s.n_rep)
            pair_put(part + s.n_rep * D + 2 * threadIdx.x, tops[threadIdx.x].x, tops[threadIdx.x].y,
                     part_tag);
    }
}

/* A warp: leaves [from, to) of the row's, one node's, of a group; (T, S, Y) of a lane's column. */
template <int D>
DEV void wide_node(const chain_step &s, int from, int to, int group, const uint2 *parts, unsigned tag,
                   float *t, float *u, float *z)
{
    constexpr int SOME = 8; /* at a time: registers */
    const int lane = threadIdx.x % 32, head = group / (D / 32), kv_head = head / s.n_rep,
              r = head - kv_head * s.n_rep, col = group % (D / 32) * 32 + lane;
    const unsigned record = (unsigned)wide_pairs(s, D), on = (unsigned)s.n_kv * record;
    const uint2 *p = parts + (size_t)(from * s.n_kv + kv_head) * record;
    *t = -INFINITY, *u = 0.0f, *z = 0.0f;
#pragma unroll 1
    for (int n = to - from; n > 0; n -= SOME, p += SOME * on) {
        float y[SOME], top[SOME], sum[SOME];
        parts_get<SOME>(y, top, sum, n, p, on, s, D, r, col, tag);
#pragma unroll
        for (int i = 0; i < SOME; i++) add_result<1>(*t, *u, z, top[i], sum[i], y + i);
    }
}
/* Groups of 32 columns: leaves added up, handed on. box: [8][3][32] in shared memory. */
template <int D, class OUT>
DEV void wide_join(const chain_step &s, const wide_seen &seen, const uint2 *parts, unsigned tag,
                   const OUT &out, float *box)
{
    constexpr int L = few<D>::LEAVES;
    const int lane = threadIdx.x % 32, w = threadIdx.x / 32, node0 = seen.first / L,
              nodes = (seen.first + seen.count - 1) / L - node0 + 1, at_once = CHAIN_HEADS / nodes,
              groups = s.n_head * (D / 32);
    const int mine = w / nodes, node = w - mine * nodes; /* of the groups that the block takes at once */
#pragma unroll 1
    for (int first = blockIdx.x; first < groups; first += at_once * (int)gridDim.x) {
        const int group = first + mine * (int)gridDim.x, sums = first + w * (int)gridDim.x;
        float T = -INFINITY, S = 0.0f, Y = 0.0f;
        if (mine < at_once && group < groups) {
            const int from = max((node0 + node) * L - seen.first, 0),
                      to = min((node0 + node + 1) * L - seen.first, seen.count);
            float t, u, z;
            wide_node<D>(s, from, to, group, parts, tag, &t, &u, &z);
            if (nodes == 1) {
                add_result<1>(T, S, &Y, t, u, &z);
            } else {
                float *b = box + 96 * w + lane;
                b[0] = t, b[32] = u, b[64] = z;
            }
        }
        if (nodes > 1) chain_heads_meet();
        /* by classes: node n of the row's is in class (node0 + n) % CLASSES */
        if (w < at_once && sums < groups) {
            const int zero = -node0 & (CLASSES - 1); /* the node of class 0 */
            int n = zero < nodes ? zero : 0;
#pragma unroll 1
            for (int left = nodes > 1 ? nodes : 0; left; left--) {
                const float *b = box + 96 * (w * nodes + n) + lane;
                add_result<1>(T, S, &Y, b[0], b[32], b + 64);
                n = n + 1 == nodes ? 0 : n + 1;
            }
            const float y = divided(Y, S);
            const int o = sums * 32 + lane;
            value_put(out() + o, y);
            if (s.attn) s.attn[o] = y;
        }
        if (nodes > 1) chain_heads_meet(); /* the box is done with */
    }
}

/* The warps that attend. in: the values of the step before. */
template <int D, bool BF16, class OUT>
DEV void wide_attention(const chain_step &s, int pos, int unit, const float *in, const OUT &out, uint2 *parts,
                        unsigned tag, uint8_t *at)
{
    const wide_seen seen = wide_sees<D>(s, pos);
    if (unit < wide_stride(s)) wide_leaves<D, BF16>(s, pos, seen, unit, in, parts, tag, at);
    chain_heads_meet();
    wide_join<D>(s, seen, parts, tag, out, (float *)at);
}
template <bool BF16, class OUT>
DEV void chain_attention_wide(const chain_step &s, int pos, int unit, const float *in, const OUT &out,
                              uint2 *parts, unsigned tag, uint8_t *at)
{
    if (s.head == 256)
        wide_attention<256, BF16>(s, pos, unit, in, out, parts, tag, at);
    else if (s.head == 512)
        wide_attention<512, BF16>(s, pos, unit, in, out, parts, tag, at);
    else
        wide_attention<128, BF16>(s, pos, unit, in, out, parts, tag, at);
}
#endif
