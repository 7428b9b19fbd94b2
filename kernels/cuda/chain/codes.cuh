/* chain/codes.cuh - attention of one row over a quantised cache as a step of a chain.
 *
 * A block is two *halves* of four warps, each with nodes of its own (attention/codes.cuh: 256 keys below
 * position 4,096, else 1,024) of one kv head: half h of all has head h % n_kv, so neighbours read heads of
 * the same rows at the same time. In a half, warp w has the leaves of 32 keys whose number modulo 4 is w, as
 * in attn_codes. It copies them itself, keys and values in turn, into a tile of the ring that is its own for
 * as long as the step takes: codes go from there to registers, become halves times their scale, and are
 * multiplied. Weights of later steps come through the rest of the ring meanwhile.
 *
 * There is one query row, and its heads of a kv head are at most eight: so they are the columns of the mma,
 * and keys, or columns of values, its rows: half as many products as tiles of 16 queries want. What meets
 * what, and in which order, is as in attn_codes, so the bits are. The half with the newest node makes the new
 * key and value, writes them to the cache, and puts them into the leaf that was copied without them.
 *
 * Then a block takes a head and adds nodes up: a warp a class, classes in order; it rotates the result back.
 *
 * Bound: the codes, read once, or some 840 instructions of a warp a leaf (tq3_0: 1,180), whichever is longer
 * (docs/speed/attention.md). */
#ifndef DFLASH_CUDA_CHAIN_CODES_CUH
#define DFLASH_CUDA_CHAIN_CODES_CUH

#include "attend.cuh"
#include "ring.cuh"

#include "../attention/codes_leaf.cuh"

#define CODE_LEAF ATTN_CODES_LEAF(CHAIN_HEAD)
#define CODE_WARPS 4                 /* of a half */
#define CODE_FRESH 160               /* bytes: a head's codes of the new row, at most */
#define CODE_ROW (CHAIN_HEAD + 8)    /* floats of a result: on other banks than the next */
#define CODE_QUERY (CHAIN_HEAD * 16) /* bytes: [D / 16][lane] of a half */
#define CODE_FIXED (2 * CODE_QUERY + 4 * CODE_FRESH + CHAIN_HEADS * 64 + 2 * 32)

/* ---- who has what ---- */

/* The nodes of a half (the first ones of all blocks come before the second ones), in this order: the large
 * ones `slot`, slot + on, ...; then small ones: halves that have a large one less take up to four in its
 * place, what is left goes to all. */
struct code_share {
    int kv_head, slot, on;
    int large, first, more; /* nodes of each kind */
    int first_from, first_on, more_from;
    int leaves; /* of a warp */
};
DEV code_share code_share_of(const chain_step &s, int pos)
{
    constexpr int SMALL = ATTN_CODES_NEAR / 256;
    int rank = block_of(s) - s.rest; /* blocks with less of the projections have more nodes */
    if (rank < 0) rank += (int)gridDim.x;
    const int half = rank + (int)gridDim.x * (warp_of() / CODE_WARPS), n_kv = s.n_kv,
              on = 2 * (int)gridDim.x / n_kv;
    code_share f = {};
    f.slot = half / n_kv, f.kv_head = half - f.slot * n_kv, f.on = on;
    if (f.slot >= on) return f;
    const int large = max(ATTN_CODES_NODE(0, pos) + 1 - SMALL, 0),
              small = min(ATTN_CODES_NODE(0, pos) + 1, SMALL), base = large / on, extra = large - base * on,
              less = on - extra, room = min(small, 4 * less), own = f.slot - extra, rest = small - room;
    f.large = base + (f.slot < extra ? 1 : 0);
    f.first = own >= 0 && own < room ? (room - 1 - own) / less + 1 : 0;
    f.first_from = own, f.first_on = less;
    f.more = f.slot < rest ? (rest - 1 - f.slot) / on + 1 : 0;
    f.more_from = room + f.slot;
    f.leaves = 8 * f.large + 2 * (f.first + f.more);
    return f;
}
/* Through the half's leaves that are the warp's. */
struct code_walk {
    int item, in, node;
    __device__ __forceinline__ void enter(const code_share &f)
    {
        const int i = item - f.large, j = i - f.first;
        node = item < f.large ? ATTN_CODES_NEAR / 256 + f.slot + item * f.on
               : j < 0        ? f.first_from + i * f.first_on
                              : f.more_from + j * f.on;
    }
    __device__ __forceinline__ void begin(const code_share &f)
    {
        item = in = 0;
        enter(f);
    }
    __device__ __forceinline__ int n(const code_share &f) const /* leaves of the node, of a warp */
    {
        return item < f.large ? 8 : 2;
    }
    __device__ __forceinline__ int at() const /* the leaf's first position */
    {
        return ATTN_CODES_START(0, node) + (CODE_WARPS * in + warp_of() % CODE_WARPS) * CODE_LEAF;
    }
    __device__ __forceinline__ void on(const code_share &f)
    {
        if (++in < n(f)) return;
        in = 0, item++;
        enter(f);
    }
    __device__ __forceinline__ bool over(const code_share &f) const
    {
        return item >= f.large + f.first + f.more;
    }
};

/* ---- a leaf's codes into the ring ---- */

/* Bytes of a head's codes of a row in each plane. */
struct code_bytes {
    int low, high, scale;
};
DEV code_bytes code_bytes_of(uint32_t type)
{
    return {type == KN_Q8_0    ? 128
            : type == KN_TQ3_0 ? 32
                               : 64,
            type == KN_Q5_0 || type == KN_TQ3_0 ? 16 : 0, type == KN_TQ3_0 ? 2 : 8};
}
DEV int code_row_bytes(const code_bytes &b, int n_kv)
{
    return (n_kv * (b.low + b.high + b.scale) + 15) / 16 * 16;
}
/* Of a scale within its word. */
DEV int code_odd(const code_bytes &b, int kv_head)
{
    return kv_head * b.scale & 2;
}
/* BYTES of `there` keys, zeros for others. */
template <int BYTES, int PITCH, bool ALL>
DEV void code_plane(unsigned to, const unsigned char *from, int row, int there)
{
    constexpr int EACH = BYTES % 16 == 0 ? 16 : BYTES, PIECES = BYTES / EACH, ON = 32 / PIECES;
    static_assert(EACH == 16 || EACH == 8 || EACH == 4, "what is copied at once");
    const int lane = threadIdx.x % 32, key = lane / PIECES, piece = lane % PIECES * EACH;
    to += (unsigned)(key * PITCH + piece), from += key * row + piece;
#pragma unroll
    for (int i = 0; i < CODE_LEAF; i += ON) {
        const int bytes = ALL || key + i < there ? EACH : 0;
        if (EACH == 16)
            asm volatile(
                "cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to + i * PITCH),
                "l"(from + i * row), "r"(bytes), "l"(WEIGHTS_POLICY)
                : "memory");
        else
            asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to + i * PITCH),
                         "l"(from + i * row), "n"(EACH), "r"(bytes)
                         : "memory");
    }
}
template <uint32_t TYPE, bool ALL>
DEV void code_stage(unsigned to, const unsigned char *row0, int n_kv, int kv_head, int there)
{
    using S = staged<TYPE, CHAIN_HEAD>;
    const code_bytes b = {S::LOW, S::HIGH, S::SCALE};
    const int row = code_row_bytes(b, n_kv);
    code_plane<S::LOW, S::LOW_PITCH, ALL>(to, row0 + kv_head * S::LOW, row, there);
    row0 += n_kv * S::LOW;
    if constexpr (S::HIGH > 0)
        code_plane<S::HIGH, S::HIGH_PITCH, ALL>(to + S::high_at(CODE_LEAF), row0 + kv_head * S::HIGH, row,
                                                there);
    /* A scale of two bytes comes with its neighbour's: its word. */
    code_plane<S::SCALE_PITCH, S::SCALE_PITCH, ALL>(
        to + S::scale_at(CODE_LEAF), row0 + n_kv * S::HIGH + (kv_head * S::SCALE & ~3), row, there);
}
/* Keys or values of the leaf from p0 on that were there before this pass. */
template <uint32_t TYPE>
DEV void code_ask(unsigned to, const chain_step &s, const void *ring, int kv_head, int p0, int pos)
{
    const code_bytes b = code_bytes_of(TYPE);
    const unsigned char *row0 =
        (const unsigned char *)ring + (int64_t)KV_SLOT(s.where, p0) * code_row_bytes(b, s.n_kv);
    if (p0 + CODE_LEAF <= pos)
        code_stage<TYPE, true>(to, row0, s.n_kv, kv_head, CODE_LEAF);
    else
        code_stage<TYPE, false>(to, row0, s.n_kv, kv_head, pos - p0);
}

/* ---- this pass's row ---- */

/* The head's codes at `fresh` to the cache. */
DEV void code_keep(const chain_step &s, bool value, int pos, int kv_head, const unsigned char *fresh)
{
    const int lane = threadIdx.x % 32;
    const code_bytes b = code_bytes_of(s.m[value].type);
    unsigned char *row =
        (unsigned char *)(value ? s.v : s.k) + (int64_t)KV_SLOT(s.where, pos) * code_row_bytes(b, s.n_kv);
    if (4 * lane < b.low)
        *(uint32_t *)(row + kv_head * b.low + 4 * lane) = *(const uint32_t *)(fresh + 4 * lane);
    row += s.n_kv * b.low;
    if (4 * lane < b.high)
        *(uint32_t *)(row + kv_head * b.high + 4 * lane) = *(const uint32_t *)(fresh + b.low + 4 * lane);
    row += s.n_kv * b.high;
    if (2 * lane < b.scale)
        *(uint16_t *)(row + kv_head * b.scale + 2 * lane) =
            *(const uint16_t *)(fresh + b.low + b.high + 2 * lane);
}
/* And into a leaf that was copied. */
static __device__ __noinline__ void code_patch(unsigned char *leaf, int key, uint32_t type, int kv_head,
                                               const unsigned char *fresh)
{
    const int lane = threadIdx.x % 32;
    const code_bytes b = code_bytes_of(type);
    const int low = ATTN_CODES_PITCH(b.low), high = ATTN_CODES_PITCH(b.high), scale = max(b.scale, 4);
    if (4 * lane < b.low) *(uint32_t *)(leaf + key * low + 4 * lane) = *(const uint32_t *)(fresh + 4 * lane);
    leaf += CODE_LEAF * low;
    if (4 * lane < b.high)
        *(uint32_t *)(leaf + key * high + 4 * lane) = *(const uint32_t *)(fresh + b.low + 4 * lane);
    leaf += CODE_LEAF * high;
    if (2 * lane < b.scale)
        *(uint16_t *)(leaf + key * scale + code_odd(b, kv_head) + 2 * lane) =
            *(const uint16_t *)(fresh + b.low + b.high + 2 * lane);
    __syncwarp();
}
/* Of a leaf of values: is a scale no number? It becomes zero; as bad_scales. */
static __device__ __noinline__ bool code_bad(unsigned char *leaf, uint32_t type, int kv_head)
{
    const code_bytes b = code_bytes_of(type);
    uint16_t *scale = (uint16_t *)(leaf + CODE_LEAF * (ATTN_CODES_PITCH(b.low) + ATTN_CODES_PITCH(b.high)) +
                                   threadIdx.x % 32 * (unsigned)max(b.scale, 4) + code_odd(b, kv_head));
    bool bad = false;
    for (int i = 0; i < b.scale / 2; i++)
        if ((scale[i] & 0x7c00) == 0x7c00) scale[i] = 0, bad = true;
    __syncwarp();
    return __any_sync(~0u, bad);
}

/* ---- products ---- */

/* x[m][e] += q k: key 16 m + 8 (e / 2) + g, row 2 c + e % 2. As code_scores has it, its factors changed
 * about.
 */
template <uint32_t TYPE>
DEV void code_scores_few(float x[2][4], const uint2 *q, const unsigned char *k, int odd)
{
    const int lane = threadIdx.x % 32, g = lane / 4;
#pragma unroll
    for (int b = 0; b < CHAIN_HEAD / 32; b++) {
        uint32_t y[4][2][2];
#pragma unroll
        for (int j = 0; j < 4; j++) key_factors<TYPE, CHAIN_HEAD, CODE_LEAF>(y[j], k, 8 * j + g, b, odd);
#pragma unroll
        for (int s = 0; s < 2; s++) {
            const uint2 f = q[(2 * b + s) * 32 + lane];
#pragma unroll
            for (int m = 0; m < 2; m++) {
                const uint32_t a[4] = {y[2 * m][s][0], y[2 * m + 1][s][0], y[2 * m][s][1],
                                       y[2 * m + 1][s][1]};
                attention_mma<false>(x[m], a, f.x, f.y);
            }
        }
    }
}
/* acc[2 b + h][e] += x v: column 32 b + 4 g + 2 h + e / 2 of row 2 c + e % 2. */
template <uint32_t TYPE>
DEV void code_weigh_few(float acc[8][4], const uint32_t p[4], const unsigned char *v, int odd)
{
    const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
#pragma unroll
    for (int s = 0; s < 2; s++)
#pragma unroll
        for (int b = 0; b < CHAIN_HEAD / 32; b++) {
            uint32_t y[2][4];
#pragma unroll
            for (int i = 0; i < 2; i++)
                value_factors<TYPE, CHAIN_HEAD, CODE_LEAF>(y[i], v, 16 * s + 8 * i + 2 * c, b, g, odd);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const uint32_t a[4] = {y[0][2 * h], y[0][2 * h + 1], y[1][2 * h], y[1][2 * h + 1]};
                attention_mma<false>(acc[2 * b + h], a, p[2 * s], p[2 * s + 1]);
            }
        }
}

/* What a warp has come to in a node, of rows 2 c and 2 c + 1. */
struct code_few {
    float acc[8][4], top[2], sum[2];
    __device__ __forceinline__ void clear()
    {
        top[0] = top[1] = -INFINITY, sum[0] = sum[1] = 0.0f;
#pragma unroll
        for (int t = 0; t < 8; t++) acc[t][0] = acc[t][1] = acc[t][2] = acc[t][3] = 0.0f;
    }
    /* Weights p of the leaf's scores, relative to the tops that these raise; a lane sums its own keys up. */
    __device__ __forceinline__ void weights(uint32_t p[4], float x[2][4], const float2 units, int p0, int pos)
    {
        const float unit[2] = {units.x, units.y};
        const int g = threadIdx.x % 32 / 4;
        if (p0 + CODE_LEAF > pos + 1)
#pragma unroll
            for (int m = 0; m < 2; m++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    if (p0 + 16 * m + 8 * (e / 2) + g > pos) x[m][e] = -INFINITY;
        float here[2];
#pragma unroll
        for (int e = 0; e < 2; e++) here[e] = fmaxf(fmaxf(x[0][e], x[0][2 + e]), fmaxf(x[1][e], x[1][2 + e]));
#pragma unroll
        for (int i = 4; i < 32; i *= 2)
#pragma unroll
            for (int e = 0; e < 2; e++) here[e] = fmaxf(here[e], __shfl_xor_sync(~0u, here[e], i));
#pragma unroll
        for (int e = 0; e < 2; e++) here[e] = fmaxf(ceilf(__fmul_rn(here[e], unit[e])), top[e]);
        if (__any_sync(~0u, here[0] != top[0] || here[1] != top[1])) {
            const float f[2] = {factor(top[0], here[0]), factor(top[1], here[1])};
#pragma unroll
            for (int e = 0; e < 2; e++) sum[e] = __fmul_rn(sum[e], f[e]), top[e] = here[e];
#pragma unroll
            for (int t = 0; t < 8; t++)
#pragma unroll
                for (int e = 0; e < 4; e++) acc[t][e] = __fmul_rn(acc[t][e], f[e % 2]);
        }
        float part[2] = {0.0f, 0.0f};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float y[2];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const float base = top[e] == -INFINITY ? 0.0f : -top[e];
                y[e] = exp_two(__fmaf_rn(x[j / 2][j % 2 * 2 + e], unit[e], base));
                part[e] = __fadd_rn(part[e], y[e]);
            }
            parts_of<1, false>(y[0], y[1], p + j);
            asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(p[j]));
        }
#pragma unroll
        for (int e = 0; e < 2; e++) sum[e] = __fadd_rn(sum[e], part[e]);
    }
    /* Those of a NaN among the values. */
    __device__ __forceinline__ void none()
    {
#pragma unroll
        for (int t = 0; t < 8; t++)
#pragma unroll
            for (int e = 0; e < 4; e++) acc[t][e] = __int_as_float(0x7fc00000);
    }
    /* To shared memory: results [n_rep][CODE_ROW]; (top, sum) [8]. */
    __device__ __forceinline__ void give(int n_rep, float *results, float2 *tops) const
    {
        const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float s = sum[e]; /* even and odd keys, then as quad_sum adds */
#pragma unroll
            for (int i = 4; i < 32; i *= 2) s = __fadd_rn(s, __shfl_xor_sync(~0u, s, i));
            const int row = 2 * c + e;
            if (row < n_rep) {
                float *to = results + row * CODE_ROW + 4 * g;
#pragma unroll
                for (int b = 0; b < 4; b++)
                    *(float4 *)(to + 32 * b) = make_float4(acc[2 * b][e], acc[2 * b][2 + e],
                                                           acc[2 * b + 1][e], acc[2 * b + 1][2 + e]);
            }
            if (g == 0) tops[row] = make_float2(top[e], s);
        }
    }
};

/* ---- queries and results ---- */

/* What stands in shared memory in place of activations and terms; of a half. */
struct code_room {
    uint2 *queries;
    float *units;
    float2 *tops;         /* [warp][8] */
    unsigned char *fresh; /* the new key, and the new value */
    float *results;       /* [warp][n_rep][CODE_ROW] */
};
DEV code_room code_room_at(uint8_t *at, int half, int n_rep)
{
    code_room m;
    m.queries = (uint2 *)(at + half * CODE_QUERY);
    m.fresh = at + 2 * CODE_QUERY + half * (2 * CODE_FRESH);
    m.tops = (float2 *)(at + 2 * CODE_QUERY + 4 * CODE_FRESH) + half * (CODE_WARPS * 8);
    m.units = (float *)(at + 2 * CODE_QUERY + 4 * CODE_FRESH + CHAIN_HEADS * 64) + half * 8;
    m.results = (float *)(at + CODE_FIXED) + half * CODE_WARPS * n_rep * CODE_ROW;
    return m;
}
DEV void code_half_meet(int half)
{
    asm volatile("bar.sync %0, %1;" ::"r"(12 + half), "n"(32 * CODE_WARPS) : "memory");
}
/* As row r of the half's queries; as code_queries. */
DEV void code_query(const float x[4], float scale, const code_room &m, int r)
{
    const int lane = threadIdx.x % 32;
    const float down = code_down<4>(x, scale, m.units + r);
    uint16_t *to = (uint16_t *)(m.queries + lane / 16 * 32 + r * 4 + lane % 16 / 4) + lane % 4;
#pragma unroll
    for (int j = 0; j < 4; j++) to[j * (2 * 32 * 4)] = to_half<false>(__fmul_rn(x[j], down));
}
/* The half's queries; where newest, the new key and value too, which go to the cache as well. A warp one at a
 * time; it has room for a head where its results will be. */
static __device__ __noinline__ void code_rows(const chain_step &s, int pos, int kv_head, bool newest,
                                              const float *in, const code_room m)
{
    constexpr int D = CHAIN_HEAD;
    const int lane = threadIdx.x % 32, w = warp_of() % CODE_WARPS;
    float *const room = m.results + w * s.n_rep * CODE_ROW;
#pragma unroll 1
    for (int it = w; it < (newest ? 10 : 8); it += CODE_WARPS) {
        const bool query = it<8, value = it> 8;
        chain_head h = {};
        if (query && it >= s.n_rep) { /* no row: scores of zero */
            code_query(h.x, 0.0f, m, it);
            continue;
        }
        const int head = query ? kv_head * s.n_rep + it : s.n_head + (value ? s.n_kv : 0) + kv_head;
        h.take<false>(in + head * D,
                      query   ? s.q_norm
                      : value ? nullptr
                              : s.k_norm,
                      value || !s.turn ? nullptr : s.table, s.eps);
        if (query) {
            kv_turn_head<4>(h.x, s.m[0].type, false, false);
            code_query(h.x, s.scale, m, it);
            continue;
        }
        unsigned char *const fresh = m.fresh + (value ? CODE_FRESH : 0);
        const code_bytes b = code_bytes_of(s.m[value].type);
        const struct kv_side side = {fresh, s.m[value].type, 0, b.low, b.low + b.high, {0, 0, 0}};
        for (int j = 0; j < 4; j++) room[lane + 32 * j] = h.x[j];
        kv_put_head(side, 0, 0, room, D, value);
        __syncwarp();
        code_keep(s, value, pos, kv_head, fresh);
    }
}

/* The warps' results of a node, (0 + 1) + (2 + 3), to parts. */
DEV void code_node(const chain_step &s, const code_room &m, uint2 *part, unsigned tag)
{
    constexpr int D = CHAIN_HEAD;
    const int apart = s.n_rep * CODE_ROW;
#pragma unroll 1
    for (int at = 4 * (int)(threadIdx.x % (32 * CODE_WARPS)); at < s.n_rep * D; at += 128 * CODE_WARPS) {
        const int r = at / D;
        const float *y = m.results + r * CODE_ROW + at % D;
        float T[2], S[2], Y[2][4];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float2 ts = m.tops[2 * i * 8 + r], other = m.tops[(2 * i + 1) * 8 + r];
            const float4 u = *(const float4 *)(y + 2 * i * apart),
                         v = *(const float4 *)(y + (2 * i + 1) * apart);
            const float more[4] = {v.x, v.y, v.z, v.w};
            T[i] = ts.x, S[i] = ts.y, Y[i][0] = u.x, Y[i][1] = u.y, Y[i][2] = u.z, Y[i][3] = u.w;
            add_result<4>(T[i], S[i], Y[i], other.x, other.y, more);
        }
        add_result<4>(T[0], S[0], Y[0], T[1], S[1], Y[1]);
        pair_put(part + at, Y[0][0], Y[0][1], tag);
        pair_put(part + at + 2, Y[0][2], Y[0][3], tag);
        if (at % D == 0) pair_put(part + s.n_rep * D + 2 * r, T[0], S[0], tag);
    }
}

/* A head's result: nodes added up, rotated back, handed on. box: [8][130] in shared memory. */
static __device__ __noinline__ void code_join(const chain_step &s, int nodes, int head, const uint2 *parts,
                                              unsigned tag, float *out, float *box)
{
    constexpr int D = CHAIN_HEAD, B = 4, W = D / 32, ROW = D + 2;
    const int lane = threadIdx.x % 32, w = warp_of(), kv_head = head / s.n_rep, r = head - kv_head * s.n_rep;
    const size_t pairs = LEAF_PAIRS(s.n_rep), step = (size_t)(s.n_kv * CLASSES) * pairs;
    const uint2 *p = parts + (size_t)(w * s.n_kv + kv_head) * pairs;
    float T = -INFINITY, S = 0.0f, Y[W] = {};
#pragma unroll 1
    for (int node = w; node < nodes; node += B * CLASSES, p += B * step) {
        const int n = min((nodes - node + CLASSES - 1) / CLASSES, B);
        float y[B][W], top[B], sum[B];
        value_wait wait;
        bool there;
        do {
            there = true;
#pragma unroll
            for (int i = 0; i < B; i++)
                if (i < n) {
                    const uint2 *q = p + i * step;
#pragma unroll
                    for (int j = 0; j < W; j++) there &= one_try(&y[i][j], q + r * D + lane + 32 * j, tag);
                    there &= pair_try(top + i, sum + i, q + s.n_rep * D + 2 * r, tag);
                }
        } while (wait.more(!__all_sync(~0u, there)));
#pragma unroll
        for (int i = 0; i < B; i++)
            if (i < n) add_result<W>(T, S, Y, top[i], sum[i], y[i]);
    }
#pragma unroll
    for (int j = 0; j < W; j++) box[w * ROW + lane + 32 * j] = Y[j];
    if (lane == 0) box[w * ROW + D] = T, box[w * ROW + D + 1] = S;
    chain_heads_meet();
    if (w) return;
#pragma unroll 1
    for (int i = 1; i < CLASSES; i++) {
        float y[W];
#pragma unroll
        for (int j = 0; j < W; j++) y[j] = box[i * ROW + lane + 32 * j];
        add_result<W>(T, S, Y, box[i * ROW + D], box[i * ROW + D + 1], y);
    }
#pragma unroll
    for (int j = 0; j < W; j++) Y[j] = divided(Y[j], S);
    kv_turn_head<W>(Y, s.m[1].type, true, true);
#pragma unroll
    for (int j = 0; j < W; j++) {
        value_put(out + head * D + lane + 32 * j, Y[j]);
        if (s.attn) s.attn[head * D + lane + 32 * j] = Y[j];
    }
}

/* ---- the step ---- */

/* What the warp that asks and the one that plans know of it: the position; and tiles, one a warp, of which
 * nothing is copied. */
struct code_keys : few_keys {
    static constexpr bool ring = true, codes = true;
    int pos = -1;
    __device__ __forceinline__ int begin(const chain_step &s)
    {
        if (pos < 0) {
            cuda_grid_wait(); /* for the position */
            pos = __ldcg(s.pos);
        }
        return CHAIN_HEADS;
    }
    static __device__ __forceinline__ uint32_t align(uint32_t at)
    {
        return at;
    }
    __device__ __forceinline__ chain_source source(const chain_args &, const chain_step &, int) const
    {
        return {};
    }
    static __device__ __forceinline__ void copy(uint8_t *, const chain_source &, uint64_t *bar)
    {
        bar_arrive(bar);
    }
};

/* The warp's leaves on their way: keys, values of the first, keys of the next ... through places of its tile.
 */
struct code_stream {
    code_walk ahead;
    unsigned ring, to, from, place, end; /* place: bytes of one; end: of all */
    bool value;
    __device__ __forceinline__ void ask(const chain_step &s, const code_share &f, int pos)
    {
        if (!ahead.over(f)) {
            const int p0 = ahead.at();
            const void *rows = value ? s.v : s.k;
            if (p0 <= pos) switch (s.m[value].type) {
                case KN_Q8_0: code_ask<KN_Q8_0>(ring + to, s, rows, f.kv_head, p0, pos); break;
                case KN_Q5_0: code_ask<KN_Q5_0>(ring + to, s, rows, f.kv_head, p0, pos); break;
                case KN_Q4_0: code_ask<KN_Q4_0>(ring + to, s, rows, f.kv_head, p0, pos); break;
                default: code_ask<KN_TQ3_0>(ring + to, s, rows, f.kv_head, p0, pos);
                }
            if (value) ahead.on(f);
        }
        copy_commit();
        value = !value;
        if ((to += place) == end) to = 0;
    }
    /* What was asked for longest ago is here. */
    __device__ __forceinline__ void arrive(int places)
    {
        if (places == 4)
            copy_wait(3);
        else if (places == 3)
            copy_wait(2);
        else
            copy_wait(1);
        __syncwarp();
    }
    __device__ __forceinline__ void leave(const chain_step &s, const code_share &f, int pos)
    {
        __syncwarp();
        ask(s, f, pos);
        if ((from += place) == end) from = 0;
    }
};

/* All warps that multiply. at: room in shared memory; in, out: values of the step before and of this one;
 * before: bytes of points of grids, before the ring. */
static __device__ __noinline__ void code_attention(const chain_step &s, const chain_plan &plan, uint8_t *at,
                                                   uint32_t before, uint2 *parts, const float *in, float *out,
                                                   unsigned tag)
{
    extern __shared__ __align__(128) uint8_t smem[];
    const int w = warp_of(), half = w / CODE_WARPS, c = threadIdx.x % 4, pos = same_of(plan.kv_head),
              places = same_of(s.far);
    const unsigned number = (unsigned)(plan.total + w);
    chain_room r = chain_room_at(smem);
    r.ring += before;
    r.ring += (0u - shared_at(r.ring)) & 1023;
    const code_share f = code_share_of(s, pos);
    const code_room m = code_room_at(at, half, s.n_rep);
    if (threadIdx.x % 32 == 0) r.done[w] = (int)number;
    bar_wait(r.full + number % CHAIN_TILES, number / CHAIN_TILES & 1);
    unsigned char *const tile = r.ring + r.tile[number % CHAIN_TILES].x;
    code_stream stream = {};
    stream.ring = shared_at(tile), stream.end = s.tile, stream.place = s.tile / (unsigned)places;
    stream.ahead.begin(f);
    for (int i = 0; i < places; i++) stream.ask(s, f, pos);
    chain_heads_meet(); /* what stands at `at` is done with */
    if (f.leaves) {
        const int n_item = f.large + f.first + f.more, newest = ATTN_CODES_NODE(0, pos);
        code_walk last = {};
        bool mine = false; /* the newest node */
        for (last.item = 0; last.item < n_item; last.item++) last.enter(f), mine |= last.node == newest;
        code_rows(s, pos, f.kv_head, mine, in, m);
        code_half_meet(half); /* queries, and the new row */
    }
    const int k_odd = code_odd(code_bytes_of(s.m[0].type), f.kv_head),
              v_odd = code_odd(code_bytes_of(s.m[1].type), f.kv_head);
    code_walk here;
    code_few sums;
    sums.clear();
#pragma unroll 1
    for (here.begin(f); !here.over(f);) {
        const int p0 = here.at(), node = here.node, mine = pos - p0;
        float x[2][4] = {};
        uint32_t p[4];
        stream.arrive(places);
        if (mine >= 0) {
            unsigned char *const k = tile + stream.from;
            if (mine < CODE_LEAF) code_patch(k, mine, s.m[0].type, f.kv_head, m.fresh);
            switch (s.m[0].type) {
            case KN_Q8_0: code_scores_few<KN_Q8_0>(x, m.queries, k, k_odd); break;
            case KN_Q5_0: code_scores_few<KN_Q5_0>(x, m.queries, k, k_odd); break;
            case KN_Q4_0: code_scores_few<KN_Q4_0>(x, m.queries, k, k_odd); break;
            default: code_scores_few<KN_TQ3_0>(x, m.queries, k, k_odd);
            }
        }
        stream.leave(s, f, pos);
        if (mine >= 0) sums.weights(p, x, *(const float2 *)(m.units + 2 * c), p0, pos);
        stream.arrive(places);
        if (mine >= 0) {
            unsigned char *const v = tile + stream.from;
            bool bad = false;
            if (mine < CODE_LEAF) code_patch(v, mine, s.m[1].type, f.kv_head, m.fresh + CODE_FRESH);
            if (mine < CODE_LEAF - 1) bad = code_bad(v, s.m[1].type, f.kv_head);
            switch (s.m[1].type) {
            case KN_Q8_0: code_weigh_few<KN_Q8_0>(sums.acc, p, v, v_odd); break;
            case KN_Q5_0: code_weigh_few<KN_Q5_0>(sums.acc, p, v, v_odd); break;
            case KN_Q4_0: code_weigh_few<KN_Q4_0>(sums.acc, p, v, v_odd); break;
            default: code_weigh_few<KN_TQ3_0>(sums.acc, p, v, v_odd);
            }
            if (bad) sums.none();
        }
        stream.leave(s, f, pos);
        here.on(f);
        if (here.in) continue;
        sums.give(s.n_rep, m.results + w % CODE_WARPS * s.n_rep * CODE_ROW, m.tops + w % CODE_WARPS * 8);
        sums.clear();
        code_half_meet(half); /* the node's results */
        code_node(s, m, parts + (size_t)(node * s.n_kv + f.kv_head) * (size_t)LEAF_PAIRS(s.n_rep), tag);
        code_half_meet(half); /* they are done with */
    }
    copy_wait(0);
    shared_fence(); /* what is copied there next comes after what was written there */
    __syncwarp();
    if (threadIdx.x % 32 == 0) r.done[w] = plan.total + plan.tiles;
#pragma unroll 1
    for (int i = blockIdx.x; i < s.n_head; i += gridDim.x) {
        chain_heads_meet(); /* queries, or the head before, are done with */
        code_join(s, ATTN_CODES_NODE(0, pos) + 1, i, parts, tag, out, (float *)at);
    }
}
#endif
