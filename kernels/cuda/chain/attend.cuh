/* chain/attend.cuh - attention of one row as a step of a chain: the arithmetic of attention/step.cuh, blocks
 * that exchange by values with tags.
 *
 * A block takes a leaf of 64 keys of a kv head (or several, in turn): it norms and rotates the head's
 * queries, makes scores, weights and outputs, and leaves (top, sum) and outputs a query head, with tags. The
 * block that has the newest leaf also makes the new key and value, which it writes to the ring. Then blocks
 * take 32 columns each, add up all leaves (a warp a node of eight leaves, nodes by class, as near_sum does)
 * and hand the results to the next step. Old keys and values are asked for long before, chain_keys; or, where
 * they have no place until then, brought to the L2 cache (chain/ring.cuh). */
#ifndef DFLASH_CUDA_CHAIN_ATTEND_CUH
#define DFLASH_CUDA_CHAIN_ATTEND_CUH

#define mma attention_mma /* the products have an mma of their own */
#include "../attention/step.cuh"
#undef mma
#include "sync.cuh"
#include "pair.cuh"

#define LEAF_PAIRS(n_rep) ((n_rep) * (CHAIN_HEAD + 2)) /* of {value, tag}: outputs; {top, tag, sum, tag} */

using chain_few = step<CHAIN_HEAD, 1>;

/* Keys or values of a leaf that were there before this pass and are seen; zeros for the others. Some come to
 * registers first, since who attends has one place for keys and then for values. */
template <int D> struct leaf_rows {
    using F = step<D, 1>;
    static constexpr int PIECES = D / 8, ON = 32 * CHAIN_HEADS / PIECES,
                         N = F::LEAF / ON; /* ON: keys at once */
    uint4 v[N];
    /* The thread's share of a leaf of `ring`: a piece of a key. */
    static __device__ __forceinline__ const uint16_t *share(const chain_step &s, const void *ring, int leaf,
                                                            int kv_head)
    {
        const int p0 = leaf * F::LEAF, at = KV_SLOT(s.where, p0) + (int)threadIdx.x / PIECES;
        return KV_ROW(D, ring, at, (size_t)(s.n_kv * D), kv_head) + (int)threadIdx.x % PIECES * 8;
    }
    static __device__ __forceinline__ int key(int leaf, int i)
    {
        return leaf * F::LEAF + (int)threadIdx.x / PIECES + i * ON;
    }
    static __device__ __forceinline__ unsigned place(int i)
    {
        return (unsigned)(((int)threadIdx.x / PIECES + i * ON) * F::PITCH + (int)threadIdx.x % PIECES * 8) *
               2;
    }
    /* To shared memory; the row at pos is somebody else's. */
    static __device__ __forceinline__ void copy(const chain_step &s, const void *ring, int pos, int lo,
                                                int leaf, int kv_head, unsigned to)
    {
        const uint16_t *from = share(s, ring, leaf, kv_head);
#pragma unroll
        for (int i = 0; i < N; i++, from += ON * s.n_kv * D) {
            const int p = key(leaf, i);
            const bool there = p >= lo && p < pos;
            if (p != pos) copy_async(to + place(i), there ? (const void *)from : ring, there);
        }
        copy_commit();
    }
    /* To registers, and from there; fresh: the row at pos. */
    __device__ __forceinline__ void load(const chain_step &s, const void *ring, int pos, int lo, int leaf,
                                         int kv_head)
    {
        const uint16_t *from = share(s, ring, leaf, kv_head);
#pragma unroll
        for (int i = 0; i < N; i++, from += ON * s.n_kv * D) {
            const int p = key(leaf, i);
            v[i] = p >= lo && p < pos ? __ldcg((const uint4 *)from) : make_uint4(0, 0, 0, 0);
        }
    }
    __device__ __forceinline__ void put(int pos, int leaf, const uint8_t *fresh, uint8_t *to) const
    {
#pragma unroll
        for (int i = 0; i < N; i++) {
            const bool now = key(leaf, i) == pos;
            *(uint4 *)(to + place(i)) = now ? *(const uint4 *)(fresh + (int)threadIdx.x % PIECES * 16) : v[i];
        }
    }
};

/* As scores of attention.cuh has them, to the bit, of 8 keys and no more than 8 rows: the high parts of
 * queries are rows 0 to 7 of the product, the low ones rows 8 to 15, so half as many do. y: of the lane's
 * row, keys 2 c and 2 c + 1. */
template <int D, bool BF16, int PITCH> DEV float2 scores_eight(const uint4 *q, unsigned k)
{
    const int lane = threadIdx.x % 32;
    float x[4] = {};
    k += (unsigned)(lane % 8 * PITCH + lane / 8 * 8) * 2;
#pragma unroll
    for (int s = 0; s < D / 16; s += 2) {
        const uint4 b = load_matrices(k + s * 32), f0 = q[s * 32 + lane], f1 = q[(s + 1) * 32 + lane];
        const uint32_t a0[4] = {f0.x, f0.y, f0.z, f0.w}, a1[4] = {f1.x, f1.y, f1.z, f1.w};
        attention_mma<BF16>(x, a0, b.x, b.y);
        attention_mma<BF16>(x, a1, b.z, b.w);
    }
    return make_float2(__fadd_rn(x[0], x[2]), __fadd_rn(x[1], x[3]));
}

/* Keys and values of a leaf that were there before this pass; zeros after them. */
DEV void chain_keys(const chain_step &s, int pos, int leaf, int kv_head, uint8_t *keys)
{
    const int p0 = leaf * chain_few::LEAF, at = KV_SLOT(s.where, p0);
    const int key = (int)threadIdx.x / 16, piece = (int)threadIdx.x % 16 * 8, stride = s.n_kv * CHAIN_HEAD;
    unsigned to = shared_at(keys) + (unsigned)(key * chain_few::PITCH + piece) * 2;
    const size_t from = KV_AT(at + key, stride, kv_head * CHAIN_HEAD + piece);
    const uint16_t *k = (const uint16_t *)s.k + from, *v = (const uint16_t *)s.v + from;
#pragma unroll 1
    for (int p = p0 + key; p < p0 + chain_few::LEAF; p += 2 * CHAIN_HEADS) {
        if (p != pos) {
            copy_async(to, p < pos ? (const void *)k : s.k, p < pos);
            copy_async(to + chain_few::SLOT, p < pos ? (const void *)v : s.v, p < pos);
        }
        k += 2 * CHAIN_HEADS * stride;
        v += 2 * CHAIN_HEADS * stride;
        to += 2 * CHAIN_HEADS * chain_few::PITCH * 2;
    }
    copy_commit();
}
DEV int chain_units(const chain_step &s, int pos)
{
    return (pos / chain_few::LEAF + 1) * s.n_kv;
}

/* Heads' vectors from values, row after row, normed and rotated as head_of does; zeros from row n >= 1 on.
 * QUICK: by more registers. */
struct chain_head : head_of<CHAIN_HEAD> {
    template <bool QUICK>
    __device__ __forceinline__ void take(const float *values, const float *norm, const float *table,
                                         float eps);
};
template <int N, bool QUICK>
DEV void take_heads(chain_head h[N], const float *values, int n, const float *norm, const float *table,
                    float eps)
{
    constexpr int W = chain_head::W;
    const int lane = threadIdx.x % 32;
    float g[W];
    float2 cs[W / 2];
#pragma unroll
    for (int j = 0; j < W; j++) g[j] = norm ? __ldg(norm + lane + 32 * j) : 1.0f;
#pragma unroll
    for (int j = 0; j < W / 2; j++)
        cs[j] = table ? __ldcg((const float2 *)table + lane + 32 * j) : make_float2(1.0f, 0.0f);
    value_wait w;
    bool there;
    do {
        there = true;
#pragma unroll
        for (int i = 0; i < N; i++)
#pragma unroll
            for (int j = 0; j < W; j++) /* without branches, so that all are asked for at once */
                there &= value_get(&h[i].x[j], values + min(i, n - 1) * CHAIN_HEAD + lane + 32 * j);
    } while (w.more(!__all_sync(~0u, there)));
#pragma unroll
    for (int i = 1; i < N; i++)
#pragma unroll
        for (int j = 0; j < W; j++) h[i].x[j] = i < n ? h[i].x[j] : 0.0f;
    if (norm)
#pragma unroll
        for (int i = 0; i < N; i++) {
            float *const x = h[i].x;
            float sum = 0.0f;
#pragma unroll
            for (int j = 0; j < W; j++) sum = __fmaf_rn(x[j], x[j], sum);
#pragma unroll
            for (int o = 16; o; o >>= 1) sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, o));
            const float t = __fadd_rn(__fmul_rn(sum, 1.0f / (float)CHAIN_HEAD), eps),
                        r = QUICK ? inverse_root(t)
                                  : __fdiv_rn(1.0f,
                                              __fsqrt_rn(__fadd_rn(__fdiv_rn(sum, (float)CHAIN_HEAD), eps)));
#pragma unroll
            for (int j = 0; j < W; j++) x[j] = __fmul_rn(__fmul_rn(x[j], r), g[j]);
        }
    if (!table) return;
#pragma unroll
    for (int i = 0; i < N; i++)
#pragma unroll
        for (int j = 0; j < W / 2; j++) chain_head::rotate(h[i].x[j], h[i].x[j + W / 2], cs[j]);
}
template <bool QUICK>
__device__ __forceinline__ void chain_head::take(const float *values, const float *norm, const float *table,
                                                 float eps)
{
    take_heads<1, QUICK>(this, values, 1, norm, table, eps);
}

/* Where attention has what in shared memory. LATE: weights stand where queries were, values where keys were,
 * and of up to 8 heads a kv head there is room for no more; the new value stands behind. */
struct leaf_room {
    using F = chain_few;
    uint4 *queries, *weights;
    float *exchange, *units;
    uint8_t *keys;
};
static constexpr __host__ __device__ __forceinline__ uint32_t leaf_late(int n_rep) /* bytes before the keys */
{
    using F = chain_few;
    return (uint32_t)((F::QUERY + F::SCORES >> (n_rep > 8 ? 0 : 1)) + F::NOTES + 127) / 128 * 128;
}
template <bool LATE> DEV leaf_room leaf_room_at(uint8_t *at, uint8_t *keys, int n_rep)
{
    using F = chain_few;
    const int few = LATE && n_rep <= 8;
    leaf_room r;
    r.queries = (uint4 *)at;
    r.weights = (uint4 *)(LATE ? at : at + F::QUERY);
    r.exchange = (float *)(at + (LATE ? F::QUERY >> few : F::QUERY + F::WEIGHT));
    r.units = r.exchange + (F::SCORES / 4 >> few);
    r.keys = LATE ? at + leaf_late(n_rep) : keys;
    return r;
}

/* A unit: its leaf's outputs to parts. */
template <bool BF16, bool LATE>
DEV void chain_leaf(const chain_step &s, int pos, int u, const float *in, uint2 *parts, unsigned part_tag,
                    uint8_t *at, uint8_t *keys_at)
{
    using F = chain_few;
    constexpr int D = CHAIN_HEAD, PITCH = F::PITCH, CT = F::CT;
    static_assert(F::QUERY / 2 >= F::WEIGHT && F::KT == 1, "room for weights; a warp has 8 keys");
    const leaf_room room = leaf_room_at<LATE>(at, keys_at, s.n_rep);
    uint4 *const queries = room.queries, *const weights = room.weights;
    float *const exchange = room.exchange, *const units = room.units;
    float2 *tops = (float2 *)(units + TILE);
    int2 *spans = (int2 *)(tops + TILE);
    uint8_t *const keys = room.keys, *const fresh = keys + F::SLOT;
    const bool few = LATE && s.n_rep <= 8;
    const int lane = threadIdx.x % 32, w = warp_of(), g = lane / 4, c = lane % 4;
    const int leaf = u / s.n_kv, kv_head = u - leaf * s.n_kv, p0 = leaf * F::LEAF;
    const bool newest = pos < p0 + F::LEAF;
    const unsigned k = shared_at(keys), v = LATE ? k : k + F::SLOT;
    leaf_rows<D> rows;

    if (LATE) {
        leaf_rows<D>::copy(s, s.k, pos, 0, leaf, kv_head, k);
        rows.load(s, s.v, pos, 0, leaf, kv_head);
    }
    if (threadIdx.x < TILE) spans[threadIdx.x] = make_int2(0, pos + 1);
#pragma unroll 1
    for (int it = w; it < s.n_rep + (newest ? 2 : 0); it += CHAIN_HEADS) {
        const bool query = it<s.n_rep, value = it> s.n_rep;
        const int head = query ? kv_head * s.n_rep + it : s.n_head + (value ? s.n_kv : 0) + kv_head;
        chain_head h;
        h.take<true>(in + head * D,
                     query   ? s.q_norm
                     : value ? nullptr
                             : s.k_norm,
                     value || !s.turn ? nullptr : s.table, s.eps);
        if (query) {
            attn a;
            a.scale = s.scale;
            if (few)
                h.template put_query<BF16, true>(a, queries, units, it);
            else
                h.template put_query<BF16>(a, queries, units, it);
        } else {
            h.template put<BF16>(LATE && value
                                     ? (uint16_t *)fresh
                                     : (uint16_t *)(keys + (value ? F::SLOT : 0)) + (pos - p0) * PITCH);
            h.template put<BF16>(
                KV_ROW(D, value ? s.v : s.k, KV_SLOT(s.where, pos), (size_t)(s.n_kv * D), kv_head));
        }
    }
    copy_wait(0);
    chain_heads_meet(); /* queries, keys and values are here */
    float *const row = exchange + g * F::SPITCH + w * 8 + 2 * c;
    if (few) {
        *(float2 *)row = scores_eight<D, BF16, PITCH>(queries, k + w * 8 * PITCH * 2);
    } else {
        float part[1][4];
        scores<D, BF16, 1, PITCH, 2>(part, queries, k + w * 8 * PITCH * 2);
        *(float2 *)row = make_float2(part[0][0], part[0][1]);
        *(float2 *)(row + 8 * F::SPITCH) = make_float2(part[0][2], part[0][3]);
    }
    chain_heads_meet(); /* LATE: queries and keys are done with */
    if (LATE) rows.put(pos, leaf, fresh, keys);
    step_weights<D, BF16, false>(exchange, units, spans, (uint32_t *)weights, tops, s.n_rep, p0, 0, 0, 0);
    chain_heads_meet();
    float acc[CT][4];
    weigh_stored<BF16, F::LEAF / 16, CT, PITCH>(acc, weights, v, w * CT * 8);
    uint2 *part = parts + (size_t)u * (size_t)LEAF_PAIRS(s.n_rep);
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
        pair_put(part + s.n_rep * D + 2 * threadIdx.x, tops[threadIdx.x].x, tops[threadIdx.x].y, part_tag);
}

/* The first n of B partial results of a row of a kv head, `apart` from p on, once they are there: of
 * column col of its row r, with its top and sum; behind them what adds nothing. */
template <int B, class N>
DEV void parts_get(float y[B], float top[B], float sum[B], int n, const uint2 *p, N apart,
                   const chain_step &s, int d, int r, int col, unsigned tag)
{
    value_wait wait;
    bool there;
    uint2 x[B];
    uint4 t[B];
#pragma unroll
    for (int i = 0; i < B; i++) {
        const unsigned is = i < n ? ~tag : tag; /* those behind are not asked for */
        x[i] = make_uint2(0, is), t[i] = make_uint4(0xff800000, is, 0, is);
    }
    do {
#pragma unroll
        for (int i = 0; i < B; i++) {
            const uint2 *const q = p + i * apart;
            one_ask(x[i], q + r * d + col, tag);
            pair_ask(t[i], q + s.n_rep * d + 2 * r, tag);
        }
        there = true;
#pragma unroll
        for (int i = 0; i < B; i++) there &= x[i].y == tag && t[i].y == tag && t[i].w == tag;
    } while (wait.more(!__all_sync(~0u, there)));
#pragma unroll
    for (int i = 0; i < B; i++)
        y[i] = __uint_as_float(x[i].x), top[i] = __uint_as_float(t[i].x), sum[i] = __uint_as_float(t[i].z);
}

/* A warp: a column a lane of n sums (T, S, Y) in box, added up and handed on. */
template <bool ROUNDS = false>
DEV void join_write(const chain_step &s, int n, int head, int col, int lane, float *out, float *box)
{
    float T = -INFINITY, S = 0.0f, Y = 0.0f;
#pragma unroll 1
    for (int i = 0; i < n; i++)
        add_result<1>(T, S, &Y, box[3 * i * 32 + lane], box[(3 * i + 1) * 32 + lane],
                      box + (3 * i + 2) * 32 + lane);
    const float y = divided(Y, S);
    if (ROUNDS && s.flags & CHAIN_ROUNDS)
        rounded_put(out, s.n_head * (CHAIN_HEAD / 32), (head * CHAIN_HEAD + col) / 32, y);
    else
        value_put(out + head * CHAIN_HEAD + col, y);
    if (s.attn) s.attn[head * CHAIN_HEAD + col] = y;
}

/* 32 columns of the result: leaves added up, handed on. box: [8][32] of (T, S, Y) in shared memory. */
template <bool ROUNDS>
DEV void chain_join(const chain_step &s, int count, int group, const uint2 *parts, unsigned tag, float *out,
                    float *box)
{
    constexpr int D = CHAIN_HEAD, L = chain_few::LEAVES;
    const int lane = threadIdx.x % 32, w = warp_of(), nodes = (count - 1) / L + 1;
    const int head = group / (D / 32), kv_head = head / s.n_rep, r = head - kv_head * s.n_rep,
              col = group % (D / 32) * 32 + lane;
    if (w < nodes) {
        const uint2 *p = parts + (size_t)((w * L) * s.n_kv + kv_head) * (size_t)LEAF_PAIRS(s.n_rep);
        const size_t step = (size_t)s.n_kv * (size_t)LEAF_PAIRS(s.n_rep);
        const int n = min(L, count - w * L);
        float y[L], top[L], sum[L];
        parts_get<L>(y, top, sum, n, p, step, s, D, r, col, tag);
        float t = -INFINITY, u = 0.0f, z = 0.0f;
#pragma unroll
        for (int i = 0; i < L; i++)
            if (i < n) add_result<1>(t, u, &z, top[i], sum[i], y + i);
        box[(w * 3) * 32 + lane] = t;
        box[(w * 3 + 1) * 32 + lane] = u;
        box[(w * 3 + 2) * 32 + lane] = z;
    }
    if (nodes > 1) chain_heads_meet();
    if (w) return;
    join_write<ROUNDS>(s, nodes, head, col, lane, out, box);
}

/* The first CHAIN_HEADS warps, step `number`. in: the values of the step before. ROUNDS: results may be
 * handed on rounded. LATE: no keys have been asked for. */
template <bool BF16, bool ROUNDS = false, bool LATE = false>
static __device__ __noinline__ void chain_attention(int number, int pos, int unit, const float *in,
                                                    float *out, uint2 *parts, unsigned tag, uint8_t *at,
                                                    uint8_t *keys)
{
    extern __shared__ __align__(128) uint8_t smem[];
    const chain_step &s = ((const chain_step *)(smem + CHAIN_K_STEPS))[same_of(number) % CHAIN_DESCS];
    pos = same_of(pos), unit = same_of(unit);
    const int units = chain_units(s, pos);
#pragma unroll 1
    for (int u = unit; u < units; u += gridDim.x) {
        chain_heads_meet(); /* what stands at `at` is done with */
        if (!LATE && u != unit) chain_keys(s, pos, u / s.n_kv, u % s.n_kv, keys);
        chain_leaf<BF16, LATE>(s, pos, u, in, parts, tag, at, keys);
    }
    chain_heads_meet(); /* keys and values are done with */
#pragma unroll 1
    for (int i = blockIdx.x; i < s.n_head * (CHAIN_HEAD / 32); i += gridDim.x) {
        chain_heads_meet();
        chain_join<ROUNDS>(s, pos / chain_few::LEAF + 1, i, parts, tag, out, (float *)at);
    }
}
#endif
