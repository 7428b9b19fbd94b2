/* chain_attend.cuh - attention of one row as a step of a chain: the arithmetic of attention_step.cuh, blocks
 * that exchange by values with tags.
 *
 * A block takes a leaf of 64 keys of a kv head (or several, in turn): it norms and rotates the head's
 * queries, makes scores, weights and outputs, and leaves (top, sum) and outputs a query head, with tags. The
 * block that has the newest leaf also makes the new key and value, which it writes to the ring. Then blocks
 * take 32 columns each, add up all leaves (a warp a node of eight leaves, nodes by class, as near_sum does)
 * and hand the results to the next step. Old keys and values are asked for long before, chain_keys; or, where
 * they have no place until then, brought to the L2 cache (chain_ring.cuh). */
#ifndef DFLASH_CUDA_CHAIN_ATTEND_CUH
#define DFLASH_CUDA_CHAIN_ATTEND_CUH

#define mma attention_mma /* the products have an mma of their own */
#include "attention_step.cuh"
#undef mma
#include "chain_sync.cuh"
#include "chain_pair.cuh"

#define LEAF_PAIRS(n_rep) ((n_rep) * (CHAIN_HEAD + 2)) /* of {value, tag}: outputs; {top, tag, sum, tag} */

using chain_few = step<CHAIN_HEAD, 1>;

/* Keys and values of a leaf that were there before this pass; zeros after them. */
DEV void chain_keys(const chain_step &s, int pos, int leaf, int kv_head, uint8_t *keys)
{
    const int p0 = leaf * chain_few::LEAF, at = p0 < s.cap ? p0 : p0 % s.cap;
    const int key = (int)threadIdx.x / 16, piece = (int)threadIdx.x % 16 * 8, stride = s.n_kv * CHAIN_HEAD;
    const size_t from = (size_t)(at + key) * (size_t)stride + (size_t)(kv_head * CHAIN_HEAD + piece);
    unsigned to = shared_at(keys) + (unsigned)(key * chain_few::PITCH + piece) * 2;
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

/* A head's vector from values, normed and rotated as head_of does. */
struct chain_head : head_of<CHAIN_HEAD> {
    __device__ __forceinline__ void take(const float *values, const float *norm, const float *table,
                                         float eps)
    {
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
            for (int j = 0; j < W; j++) there &= value_get(&x[j], values + lane + 32 * j);
        } while (w.more(!__all_sync(~0u, there), __LINE__, 0));
        if (norm) {
            float sum = 0.0f;
#pragma unroll
            for (int j = 0; j < W; j++) sum = __fmaf_rn(x[j], x[j], sum);
#pragma unroll
            for (int i = 16; i; i >>= 1) sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, i));
            const float r = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(sum, (float)CHAIN_HEAD), eps)));
#pragma unroll
            for (int j = 0; j < W; j++) x[j] = __fmul_rn(__fmul_rn(x[j], r), g[j]);
        }
        if (!table) return;
#pragma unroll
        for (int j = 0; j < W / 2; j++) rotate(x[j], x[j + W / 2], cs[j]);
    }
};

/* A unit: its leaf's outputs to parts. */
template <bool BF16>
DEV void chain_leaf(const chain_step &s, int pos, int u, const float *in, uint2 *parts, unsigned part_tag,
                    uint8_t *at, uint8_t *keys)
{
    using F = chain_few;
    constexpr int D = CHAIN_HEAD, PITCH = F::PITCH, CT = F::CT;
    uint4 *queries = (uint4 *)at, *weights = (uint4 *)(at + F::QUERY);
    float *exchange = (float *)(at + F::QUERY + F::WEIGHT), *units = exchange + F::SCORES / 4;
    float2 *tops = (float2 *)(units + TILE);
    int2 *spans = (int2 *)(tops + TILE);
    const int lane = threadIdx.x % 32, w = threadIdx.x / 32, g = lane / 4, c = lane % 4;
    const int leaf = u / s.n_kv, kv_head = u - leaf * s.n_kv, p0 = leaf * F::LEAF;
    const bool newest = pos < p0 + F::LEAF;
    const unsigned k = shared_at(keys), v = k + F::SLOT;

    if (threadIdx.x < TILE) spans[threadIdx.x] = make_int2(0, pos + 1);
#pragma unroll 1
    for (int it = w; it < s.n_rep + (newest ? 2 : 0); it += CHAIN_HEADS) {
        const bool query = it<s.n_rep, value = it> s.n_rep;
        const int head = query ? kv_head * s.n_rep + it : s.n_head + (value ? s.n_kv : 0) + kv_head;
        chain_head h;
        h.take(in + head * D,
               query   ? s.q_norm
               : value ? nullptr
                       : s.k_norm,
               value || !s.turn ? nullptr : s.table, s.eps);
        if (query) {
            attn a;
            a.scale = s.scale;
            h.template put_query<BF16>(a, queries, units, it);
        } else {
            h.template put<BF16>((uint16_t *)(keys + (value ? F::SLOT : 0)) + (pos - p0) * PITCH);
            h.template put<BF16>((uint16_t *)(value ? s.v : s.k) +
                                 (size_t)(pos < s.cap ? pos : pos % s.cap) * (size_t)(s.n_kv * D) +
                                 kv_head * D);
        }
    }
    CHAIN_STAMP(1);
    copy_wait(0);
    chain_heads_meet(); /* queries, keys and values are here */
    {
        float part[F::KT][4];
        scores<D, BF16, F::KT, PITCH, 2>(part, queries, k + w * F::KT * 8 * PITCH * 2);
        float *row = exchange + g * F::SPITCH + w * F::KT * 8 + 2 * c;
#pragma unroll
        for (int j = 0; j < F::KT; j++) {
            *(float2 *)(row + 8 * j) = make_float2(part[j][0], part[j][1]);
            *(float2 *)(row + 8 * F::SPITCH + 8 * j) = make_float2(part[j][2], part[j][3]);
        }
    }
    chain_heads_meet();
    step_weights<D, BF16, false>(exchange, units, spans, (uint32_t *)weights, tops, s.n_rep, p0, 0, 0, 0);
    chain_heads_meet();
    float acc[CT][4];
#pragma unroll
    for (int t = 0; t < CT; t++) acc[t][0] = acc[t][1] = acc[t][2] = acc[t][3] = 0.0f;
    const unsigned values =
        v + (unsigned)((lane % 8 + lane / 8 % 2 * 8) * PITCH + lane / 16 * 8 + w * CT * 8) * 2;
#pragma unroll
    for (int i = 0; i < F::LEAF / 16; i++) {
        const uint4 f0 = weights[i * 64 + lane], f1 = weights[i * 64 + 32 + lane];
        const uint32_t p[2][4] = {{f0.x, f0.y, f0.z, f0.w}, {f1.x, f1.y, f1.z, f1.w}};
#pragma unroll
        for (int j = 0; j < CT / 2; j++) {
            const uint4 b = load_transposed(values + (unsigned)(i * 16 * PITCH + j * 16) * 2);
#pragma unroll
            for (int n = 0; n < 2; n++) {
                attention_mma<BF16>(acc[2 * j], p[n], b.x, b.y);
                attention_mma<BF16>(acc[2 * j + 1], p[n], b.z, b.w);
            }
        }
    }
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
    CHAIN_STAMP(2);
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
    const int lane = threadIdx.x % 32, w = threadIdx.x / 32, nodes = (count - 1) / L + 1;
    const int head = group / (D / 32), kv_head = head / s.n_rep, r = head - kv_head * s.n_rep,
              col = group % (D / 32) * 32 + lane;
    if (w < nodes) {
        const uint2 *p = parts + (size_t)((w * L) * s.n_kv + kv_head) * (size_t)LEAF_PAIRS(s.n_rep);
        const size_t step = (size_t)s.n_kv * (size_t)LEAF_PAIRS(s.n_rep);
        const int n = min(L, count - w * L);
        float y[L], top[L], sum[L];
        value_wait wait;
        bool there;
        do {
            there = true;
#pragma unroll
            for (int i = 0; i < L; i++)
                if (i < n) {
                    there &= one_try(y + i, p + i * step + r * D + col, tag);
                    there &= pair_try(top + i, sum + i, p + i * step + s.n_rep * D + 2 * r, tag);
                }
        } while (wait.more(!__all_sync(~0u, there), __LINE__, tag));
        float t = -INFINITY, u = 0.0f, z = 0.0f;
#pragma unroll
        for (int i = 0; i < L; i++)
            if (i < n) add_result<1>(t, u, &z, top[i], sum[i], y + i);
        box[(w * 3) * 32 + lane] = t;
        box[(w * 3 + 1) * 32 + lane] = u;
        box[(w * 3 + 2) * 32 + lane] = z;
    }
    CHAIN_STAMP(3);
    if (nodes > 1) chain_heads_meet();
    if (w) return;
    join_write<ROUNDS>(s, nodes, head, col, lane, out, box);
}

/* The first CHAIN_HEADS warps. in: the values of the step before. ROUNDS: results may be handed on rounded.
 * LATE: no keys have been asked for. */
template <bool BF16, bool ROUNDS = false, bool LATE = false>
static __device__ __noinline__ void chain_attention(const chain_step &s, int pos, int unit, const float *in,
                                                    float *out, uint2 *parts, unsigned tag, uint8_t *at,
                                                    uint8_t *keys)
{
    const int units = chain_units(s, pos);
#pragma unroll 1
    for (int u = unit; u < units; u += gridDim.x) {
        chain_heads_meet(); /* what stands at `at` is done with */
        if (LATE || u != unit) chain_keys(s, pos, u / s.n_kv, u % s.n_kv, keys);
        chain_leaf<BF16>(s, pos, u, in, parts, tag, at, keys);
    }
    chain_heads_meet(); /* keys and values are done with */
#pragma unroll 1
    for (int i = blockIdx.x; i < s.n_head * (CHAIN_HEAD / 32); i += gridDim.x) {
        chain_heads_meet();
        chain_join<ROUNDS>(s, pos / chain_few::LEAF + 1, i, parts, tag, out, (float *)at);
    }
    CHAIN_STAMP(5);
}
#endif
