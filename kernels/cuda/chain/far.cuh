/* chain/far.cuh - attention of one row over a long context as a step of a chain.
 *
 * Keys and values come through the ring of weights: the warps that ask fetch them as tiles of 16 to 64 rows
 * of one kv head (s.far of 16) in the step's turn, as far ahead as the ring has room, so that memory streams
 * from the products before to those behind. Rows of a kv head lie apart in memory; a tensor map of the ring
 * of keys, and one of the values', lets the device gather them, two copies a tile: columns 0 to 63, then 64
 * to 127, rows of 128 bytes whose pieces of 16 stand turned by the row (what is called a swizzle of 128
 * bytes), so that eight rows of a matrix are on different banks.
 *
 * A block takes nodes of eight leaves, all those of a kv head side by side (far_share); a tile is a warp's, a
 * leaf is a warp's, as in attention/stream.cuh: keys, then values, scores, weights and results in registers.
 * The node's leaves are added in shared memory, in order, and only a node's result is handed on. Then blocks
 * take 32 columns each and add nodes up: a warp a class, classes in order.
 *
 * There is one query row, and its heads of a kv head are at most eight: so they are the columns of the mma,
 * and keys, or columns of values, its rows, which takes half of the products that tiles of 16 queries would.
 * Every sum is that of attn_step and attn_stream to the bit. The key and value of this pass are made by the
 * block that has the newest node; it puts them into the tiles that were fetched without them, and zeros in
 * place of the values behind.
 *
 * Wins over launches: 8B at 16,384 positions 79.2 to 53.7 us a layer. dflash-bench rows -m
 * 8b-q4_k_m.gguf --device cuda --rows 1 --context 16384 */
#ifndef DFLASH_CUDA_CHAIN_FAR_CUH
#define DFLASH_CUDA_CHAIN_FAR_CUH

#include "attend.cuh"

#define FAR_ROW (CHAIN_HEAD + 8)      /* floats of a result: on other banks than the next */
#define FAR_QUERIES (CHAIN_HEAD * 32) /* bytes: [D / 16][lane] */
#define FAR_FIXED                                                                                            \
    (FAR_QUERIES + CHAIN_HEAD * 4 + CHAIN_HEADS * 64 + 32) /* queries, new key and value, tops, units */

/* The nodes of this block: [first, first + n) of n_kv times `nodes`. */
struct far_share {
    int nodes, first, n;
};
DEV far_share far_share_of(const chain_step &s, int pos)
{
    const int nodes = pos / NODE + 1, all = nodes * s.n_kv, blocks = (int)gridDim.x, each = all / blocks,
              more = all - each * blocks;
    int rank = block_of(s) - s.rest; /* blocks with less of the projections have more nodes */
    if (rank < 0) rank += blocks;
    return {nodes, rank * each + min(rank, more), each + (rank < more ? 1 : 0)};
}
/* Tiles of a leaf, as a power of two. */
DEV int far_log(const chain_step &s)
{
    return 3 - (s.far >> 1);
}

/* ---- asking ---- */

/* Rows from `row` of a head, 64 columns: as many rows as the map's box has. */
DEV void copy_box(uint8_t *dst, const chain_map *map, int column, int head, int row, uint64_t *b)
{
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
        "[%1, {%2, %3, %4}], [%5], %6;" ::"r"(shared_at(dst)),
        "l"(map), "r"(column), "r"(head), "r"(row), "r"(shared_at(b)), "l"(WEIGHTS_POLICY)
        : "memory");
#endif
}

/* ---- leaves ---- */

/* Row `row` of 16 at `to` (half a row a tile's half) is that at `from`, or zeros. */
DEV void far_row(uint8_t *to, int row, const uint16_t *from, int far)
{
    const int lane = threadIdx.x % 32;
    to += lane / 16 * (far * 16 * 128) + row * 128 + ((lane / 2 ^ row) % 8 * 16) + lane % 2 * 8;
    *(uint2 *)to = from ? ((const uint2 *)from)[lane] : make_uint2(0, 0);
}

/* Weights of the leaf's 64 keys for the rows 2 c and 2 c + 1 from their scores (x[h][e]: key 8 h + g, row
 * 2 c + e), as words of fragments of keys; and (top, sum). As mask_scores and make_weights do. */
template <bool BF16>
DEV void far_weights(uint32_t p[8][2], float x[8][2], float2 ts[2], const float2 unit, int p0, int pos)
{
    const bool ragged = p0 + chain_few::LEAF > pos + 1;
    const int at = p0 + threadIdx.x % 32 / 4;
    float top[2] = {-INFINITY, -INFINITY}, tree[8][2];
#pragma unroll
    for (int h = 0; h < 8; h++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            x[h][e] = __fmul_rn(x[h][e], e ? unit.y : unit.x);
            if (ragged && at + 8 * h > pos) x[h][e] = -INFINITY;
            top[e] = fmaxf(top[e], x[h][e]);
        }
#pragma unroll
    for (int i = 4; i < 32; i *= 2)
#pragma unroll
        for (int e = 0; e < 2; e++) top[e] = fmaxf(top[e], __shfl_xor_sync(~0u, top[e], i));
#pragma unroll
    for (int e = 0; e < 2; e++) top[e] = ceilf(top[e]);
    const float base[2] = {top[0] == -INFINITY ? 0.0f : top[0], top[1] == -INFINITY ? 0.0f : top[1]};
#pragma unroll
    for (int h = 0; h < 8; h++) {
#pragma unroll
        for (int e = 0; e < 2; e++) x[h][e] = exp_two(__fsub_rn(x[h][e], base[e]));
#pragma unroll
        for (int e = 0; e < 2; e++) tree[h][e] = __fadd_rn(x[h][e], __shfl_xor_sync(~0u, x[h][e], 4));
        parts_of<2, BF16>(x[h][0], x[h][1], p[h]);
#pragma unroll
        for (int n = 0; n < 2; n++) asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(p[h][n]));
    }
#pragma unroll
    for (int i = 1; i < 8; i *= 2)
#pragma unroll
        for (int h = 0; h < 8; h += 2 * i)
#pragma unroll
            for (int e = 0; e < 2; e++) tree[h][e] = __fadd_rn(tree[h][e], tree[h + i][e]);
#pragma unroll
    for (int i = 8; i < 32; i *= 2)
#pragma unroll
        for (int e = 0; e < 2; e++) tree[0][e] = __fadd_rn(tree[0][e], __shfl_xor_sync(~0u, tree[0][e], i));
    ts[0] = make_float2(top[0], tree[0][0]), ts[1] = make_float2(top[1], tree[0][1]);
}

/* The leaf from p0 on: acc[t][2 i + e] is column 16 t + 8 i + g of row 2 c + e. fresh: this pass's key and
 * value. ts: (top, sum) of rows 2 c and 2 c + 1. Keys and values are the mma's rows, queries its columns. */
template <bool BF16, class R>
DEV void far_leaf(float acc[8][4], float2 ts[2], R &r, const uint4 *queries, const float *units,
                  const uint16_t *fresh, int p0, int pos)
{
    const int lane = threadIdx.x % 32;
    const unsigned half = (unsigned)r.far * 16 * 128;
    uint4 q[8];
    float x[8][2] = {};
    uint32_t p[8][2];
#pragma unroll
    for (int s = 0; s < 8; s++) q[s] = queries[s * 32 + lane];
#pragma unroll 1
    for (int part = 0; part < 4; part++) {
        uint8_t *rows = r.take(part);
        const int mine = pos - p0 - 16 * part;
        if (mine >= 0 && mine < 16) {
            far_row(rows, mine, fresh, r.far);
            __syncwarp();
        }
        const unsigned k = shared_at(rows) + (unsigned)(lane % 16 * 128),
                       turn = (unsigned)((lane % 8 ^ lane / 16) * 16);
        float y[2][4] = {}; /* [part of the query] */
#pragma unroll
        for (int s = 0; s < 8; s++) {
            const uint4 b = load_matrices(k + s / 4 * half + (turn ^ (unsigned)(s % 4 * 32)));
            const uint32_t f[4] = {b.x, b.y, b.z, b.w};
            attention_mma<BF16>(y[0], f, q[s].x, q[s].z);
            attention_mma<BF16>(y[1], f, q[s].y, q[s].w);
        }
        r.done(part);
#pragma unroll
        for (int h = 0; h < 6; h++) x[h][0] = x[h + 2][0], x[h][1] = x[h + 2][1];
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) x[6 + n][e] = __fadd_rn(y[0][2 * n + e], y[1][2 * n + e]);
    }
    far_weights<BF16>(p, x, ts, *(const float2 *)(units + lane % 4 * 2), p0, pos);
#pragma unroll
    for (int t = 0; t < 8; t++) acc[t][0] = acc[t][1] = acc[t][2] = acc[t][3] = 0.0f;
#pragma unroll 1
    for (int part = 0; part < 4; part++) {
        uint8_t *rows = r.take(part);
        const int mine = pos - p0 - 16 * part;
        if (mine < 16) { /* rows behind mine are not of this row's past */
#pragma unroll 1
            for (int row = max(mine, 0); row < 16; row++)
                far_row(rows, row, row == mine ? fresh + CHAIN_HEAD : nullptr, r.far);
            __syncwarp();
        }
        const unsigned v = shared_at(rows) + (unsigned)((lane % 8 + lane / 16 * 8) * 128),
                       turn = (unsigned)((lane % 8 ^ lane / 8 % 2) * 16);
#pragma unroll
        for (int t = 0; t < 8; t++) {
            const uint4 b = load_transposed(v + t / 4 * half + (turn ^ (unsigned)(t % 4 * 32)));
            const uint32_t f[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
            for (int n = 0; n < 2; n++) attention_mma<BF16>(acc[t], f, p[0][n], p[1][n]);
        }
        r.done(part);
#pragma unroll
        for (int h = 0; h < 6; h++) p[h][0] = p[h + 2][0], p[h][1] = p[h + 2][1];
    }
}

/* ---- a kv head's rows ---- */

/* What stands in shared memory in place of activations and terms. */
struct far_room {
    uint4 *queries;
    float *units;
    float2 *tops;    /* [warp][row] */
    uint16_t *fresh; /* key and value */
    float *results;  /* [warp][n_rep][FAR_ROW] */
};
DEV far_room far_room_at(uint8_t *at)
{
    far_room m;
    m.queries = (uint4 *)at;
    m.fresh = (uint16_t *)(at + FAR_QUERIES);
    m.tops = (float2 *)(at + FAR_QUERIES + CHAIN_HEAD * 4);
    m.units = (float *)(m.tops + CHAIN_HEADS * 8);
    m.results = (float *)(at + FAR_FIXED);
    return m;
}

/* The kv head's queries; where newest, the new key and value too, which go to the cache as well. A warp one
 * at a time. */
template <bool BF16>
DEV void far_rows(const chain_step &s, int pos, int kv_head, bool newest, const float *in, const far_room &m)
{
    constexpr int D = CHAIN_HEAD;
#pragma unroll 1
    for (int it = warp_of(); it < s.n_rep + (newest ? 2 : 0); it += CHAIN_HEADS) {
        const bool query = it<s.n_rep, value = it> s.n_rep;
        const int head = query ? kv_head * s.n_rep + it : s.n_head + (value ? s.n_kv : 0) + kv_head;
        chain_head h;
        h.take<false>(in + head * D,
                      query   ? s.q_norm
                      : value ? nullptr
                              : s.k_norm,
                      value || !s.turn ? nullptr : s.table, s.eps);
        if (query) {
            attn a;
            a.scale = s.scale;
            h.template put_query<BF16, true>(a, m.queries, m.units, it);
        } else {
            h.template put<BF16>(m.fresh + (value ? D : 0));
            h.template put<BF16>(
                KV_ROW(D, value ? s.v : s.k, KV_SLOT(s.where, pos), (size_t)(s.n_kv * D), kv_head));
        }
    }
}

/* ---- results ---- */

/* A node's leaves, added in order, to parts. */
DEV void far_node(const chain_step &s, int count, const float *results, const float2 *tops, uint2 *part,
                  unsigned tag)
{
    constexpr int D = CHAIN_HEAD;
#pragma unroll 1
    for (int at = 2 * (int)threadIdx.x; at < s.n_rep * D; at += 64 * CHAIN_HEADS) {
        const int r = at / D;
        float T = -INFINITY, S = 0.0f, Y[2] = {0.0f, 0.0f};
#pragma unroll 4
        for (int l = 0; l < count; l++) {
            const float2 ts = tops[l * 8 + r],
                         y = *(const float2 *)(results + (l * s.n_rep + r) * FAR_ROW + at % D);
            const float v[2] = {y.x, y.y};
            add_result<2>(T, S, Y, ts.x, ts.y, v);
        }
        pair_put(part + at, Y[0], Y[1], tag);
        if (at % D == 0) pair_put(part + s.n_rep * D + 2 * r, T, S, tag);
    }
}

/* 32 columns of the result: nodes added up, handed on. box: [8][3][32] of (T, S, Y) in shared memory. */
DEV void far_join(const chain_step &s, int nodes, int group, const uint2 *parts, unsigned tag, float *out,
                  float *box)
{
    constexpr int D = CHAIN_HEAD, B = 8;
    const int lane = threadIdx.x % 32, w = warp_of(), head = group / (D / 32), kv_head = head / s.n_rep,
              r = head - kv_head * s.n_rep, col = group % (D / 32) * 32 + lane;
    float t = -INFINITY, u = 0.0f, z = 0.0f;
    const size_t pairs = LEAF_PAIRS(s.n_rep), step = (size_t)(s.n_kv * CLASSES) * pairs;
    const uint2 *p = parts + (size_t)(w * s.n_kv + kv_head) * pairs;
#pragma unroll 1
    for (int node = w; node < nodes; node += B * CLASSES, p += B * step) {
        const int n = (nodes - node + CLASSES - 1) / CLASSES;
        float y[B], top[B], sum[B];
        parts_get<B>(y, top, sum, n, p, step, s, D, r, col, tag);
#pragma unroll
        for (int i = 0; i < B; i++)
            if (i < n) add_result<1>(t, u, &z, top[i], sum[i], y + i);
    }
    box[(w * 3) * 32 + lane] = t;
    box[(w * 3 + 1) * 32 + lane] = u;
    box[(w * 3 + 2) * 32 + lane] = z;
    chain_heads_meet();
    if (w) return;
    join_write(s, min(nodes, CLASSES), head, col, lane, out, box);
}

/* All warps that multiply. f: the block's nodes; r: the ring, at the warp's first tile; in, out: values of
 * the step before and of this one; at: room in shared memory. Results of leaves take the place of keys and
 * values of short contexts. */
template <bool BF16, class R>
static __device__ __noinline__ void far_attention(const chain_step &s, int pos, far_share f, R r, uint8_t *at,
                                                  uint2 *parts, const float *in, float *out, unsigned tag)
{
    const int lane = threadIdx.x % 32, w = warp_of(), g = lane / 4, c = lane % 4;
    const far_room m = far_room_at(at);
    int known = -1; /* the kv head whose queries are there */
#pragma unroll 1
    for (int u = f.first; u < f.first + f.n; u++) {
        const int kv_head = u / f.nodes, node = u - kv_head * f.nodes, leaf0 = node * chain_few::LEAVES,
                  count = min(chain_few::LEAVES, pos / chain_few::LEAF + 1 - leaf0);
        if (kv_head != known) {
            known = kv_head;
            chain_heads_meet(); /* the queries before are done with */
            far_rows<BF16>(s, pos, kv_head, (kv_head + 1) * f.nodes <= f.first + f.n, in, m);
            chain_heads_meet();
        }
        float acc[8][4];
        float2 ts[2];
        if (w < count) {
            far_leaf<BF16>(acc, ts, r, m.queries, m.units, m.fresh, (leaf0 + w) * chain_few::LEAF, pos);
        } else {
#pragma unroll 1
            for (int part = 0; part < 8; part++) {
                r.take(part);
                r.done(part);
            }
        }
        chain_heads_meet(); /* results of the node before are done with */
        if (w < count)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int row = 2 * c + e;
                if (row >= s.n_rep) continue;
                float *to = m.results + (w * s.n_rep + row) * FAR_ROW + g;
#pragma unroll
                for (int t = 0; t < 8; t++) to[16 * t] = acc[t][e], to[16 * t + 8] = acc[t][2 + e];
                if (g == 0) m.tops[w * 8 + row] = ts[e];
            }
        chain_heads_meet();
        far_node(s, count, m.results, m.tops,
                 parts + (size_t)(node * s.n_kv + kv_head) * (size_t)LEAF_PAIRS(s.n_rep), tag);
    }
#pragma unroll 1
    for (int i = blockIdx.x; i < s.n_head * (CHAIN_HEAD / 32); i += gridDim.x) {
        chain_heads_meet(); /* queries, or the columns before, are done with */
        far_join(s, f.nodes, i, parts, tag, out, (float *)at);
    }
}
#endif
