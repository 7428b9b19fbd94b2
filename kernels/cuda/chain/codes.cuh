/* chain/codes.cuh - attention of one row over a quantised cache as a step of a chain.
 *
 * Rows of a cache lie one behind the other, and each has all of its heads: a tile of the ring is 32 rows of
 * keys or of values, the *leaf* of attention/codes.cuh, which the warp that asks fetches in the step's turn,
 * as far ahead as the ring has room: some rows a copy, as many as leave rows on other banks than their
 * neighbours. A warp has a head; codes go from the tile to its registers, become halves times their scale,
 * and are multiplied. It waits for its tile, and for no other warp.
 *
 * A *class* is the leaves of a node whose number modulo 4 is the same, as a warp of attn_codes has them.
 * Blocks share classes out (code_share). Two classes of a node that one block has, the first two or the last,
 * are added there; what is left of (0 + 1) + (2 + 3) is added by who adds nodes up.
 *
 * Tiles have all heads, or eight of more. A block's eight warps are *sets*, each with classes and tiles of
 * its own: a set has all heads of a tile, or two or four where most blocks would have nothing to do; several
 * fetch the same tile then. If one set of a block has classes, the others make queries for it.
 *
 * There is one query row, and its heads of a kv head are at most eight: so they are the columns of the mma,
 * and keys, or columns of values, its rows: half as many products as tiles of 16 queries want. What meets
 * what, and in which order, is as in attn_codes, so the bits are. The blocks with the fewest classes make the
 * new key and value, meanwhile, and write them to the cache; who has the newest leaf reads them as results
 * are read, when it comes to that leaf, and puts them into the tiles that were fetched without them.
 *
 * Then a block takes a head and adds nodes up: a warp a class of nodes, in order; it rotates the result back.
 *
 * Bound: the codes, read once, or some 810 instructions of a warp a leaf (of q8_0), whichever is longer
 * (docs/speed/attention.md). */
#ifndef DFLASH_CUDA_CHAIN_CODES_CUH
#define DFLASH_CUDA_CHAIN_CODES_CUH

#include "attend.cuh"
#include "code_share.h"
#include "ring.cuh"

#include "../attention/codes_leaf.cuh"

#define CODE_FRESH 160               /* bytes: a head's codes of the new row, at most */
#define CODE_ROW (CHAIN_HEAD + 8)    /* floats of a result, its top, its sum */
#define CODE_QUERY (CHAIN_HEAD * 16) /* bytes: [D / 16][lane] of a head */
/* Of a warp: the new key and value, units, queries; a class's results. */
#define CODE_KEPT (2 * CODE_FRESH + 32 + CODE_QUERY)
#define CODE_ROOM(n_rep) (CODE_KEPT + (n_rep)*CODE_ROW * 4)

/* ---- who has what: code_share.h ---- */

DEV code_cut code_cut_of(const chain_step &s)
{
    return {(int)gridDim.x, s.n_kv, s.far};
}
/* Of this block's first set. */
DEV code_share code_share_here(const chain_step &s, int pos)
{
    int number = block_of(s) - s.rest; /* blocks with less of the projections have more */
    if (number < 0) number += (int)gridDim.x;
    const code_cut cut = code_cut_of(s);
    return code_share_of(&cut, number, pos);
}
/* What was planned: f: of the first set; how many have classes. */
DEV void code_share_put(const code_share &f, int busy, chain_plan &g)
{
    g.pairs = f.number | busy << 16, g.split = f.on, g.unit = f.each, g.leaf = f.more,
    g.share = f.step | f.halves << 16;
}
DEV code_share code_share_get(const chain_plan &g, const chain_step &s, int pos, int set)
{
    code_share f;
    f.number = g.pairs & 0xffff, f.on = g.split;
    f.nodes = ATTN_CODES_NODE(0, pos) + 1;
    f.each = g.unit, f.more = g.leaf, f.step = g.share & 0xffff, f.halves = g.share >> 16;
    const code_cut cut = code_cut_of(s);
    code_share_set(&f, &cut, set);
    return f;
}
DEV int code_busy_of(const chain_plan &g)
{
    return g.pairs >> 16;
}

/* ---- tiles ---- */

DEV int code_tile_heads(const chain_step &s)
{
    return min(s.n_kv, CHAIN_HEADS);
}
/* Of a row of so many heads: in the cache, and in a tile. */
DEV int code_row_bytes(const kv_code_bytes &b, int heads)
{
    return ATTN_CODES_ROW(heads * b.all());
}
/* Where rows of a tile begin. */
struct code_lines {
    int row, run, pad;
    __device__ __forceinline__ code_lines(const kv_code_bytes &b, const chain_step &s, bool value)
    {
        const bool whole = s.n_kv <= CHAIN_HEADS;
        row = code_row_bytes(b, code_tile_heads(s));
        run = ATTN_CODES_RUN(row, whole), pad = ATTN_CODES_PAD(row, whole, value);
    }
    __device__ __forceinline__ int at(int key) const
    {
        return key * row + (key >> run) * pad;
    }
    __device__ __forceinline__ int eight() const /* from a key to the eighth behind it */
    {
        return 8 * row + (8 >> run) * pad;
    }
    __device__ __forceinline__ int next() const /* from an even key to the odd one behind it */
    {
        return run ? row : row + pad;
    }
};

/* What the warp that asks and the one that plans know of it. */
struct code_keys : few_keys {
    static constexpr bool ring = true, codes = true;
    int pos = -1;
    /* Of the step that was begun: how many of the block's sets have classes, and the first's share. */
    int busy = 0;
    code_share first;
    __device__ __forceinline__ int begin(const chain_step &s)
    {
        if (pos < 0) {
            cuda_grid_wait(); /* for the position, and keys of the launch before */
            pos = __ldcg(s.pos);
        }
        int leaves;
        first = code_share_here(s, pos);
        const code_cut cut = code_cut_of(s);
        busy = code_busy(first, &cut, &leaves);
        return 2 * busy * leaves;
    }
    __device__ __forceinline__ void share(const chain_step &s, chain_plan &g) const
    {
        code_share_put(first, busy, g);
    }
    static __device__ __forceinline__ uint32_t align(uint32_t at)
    {
        return at;
    }
    /* Tile t of the step: set t % busy's; a leaf's keys come first. apart: rows that were there before. */
    __device__ __forceinline__ chain_source source(const chain_args &, const chain_step &s, int t) const
    {
        const int turn = busy > 1 ? t / busy : t, set = t - turn * busy, value = turn & 1;
        code_share f = first;
        const code_cut cut = code_cut_of(s);
        code_share_set(&f, &cut, set);
        chain_source c = {};
        if (turn / 2 >= code_leaves(&f)) return c;
        const int each = code_leaves_of(f.from), p0 = code_at(f.from + turn / 2 / each, turn / 2 % each);
        const kv_code_bytes b = kv_code_bytes_of(s.m[value].type);
        c.apart = (uint32_t)min(max(pos - p0, 0), CODE_LEAF);
        c.bytes =
            c.apart * (uint32_t)(s.n_kv <= CHAIN_HEADS ? code_row_bytes(b, s.n_kv) : CHAIN_HEADS * b.all());
        c.kind = (uint32_t)(2 * (f.head / CHAIN_HEADS * CHAIN_HEADS) + value);
        c.p =
            (const uint8_t *)(value ? s.v : s.k) + (int64_t)KV_SLOT(s.where, p0) * code_row_bytes(b, s.n_kv);
        return c;
    }
    /* Asks for it: all lanes. */
    static __device__ __forceinline__ void copy(const chain_step &s, uint8_t *dst, const chain_source &c,
                                                uint64_t *bar)
    {
        const bool asks = threadIdx.x % 32 == 0;
        if (asks && c.bytes) bar_expect(bar, c.bytes);
        if (asks && !c.bytes) bar_arrive(bar);
        __syncwarp();
        constexpr int heads = CHAIN_HEADS;
        const int n_kv = s.n_kv, n = (int)c.apart, value = (int)c.kind & 1, head = (int)c.kind / 2;
        const kv_code_bytes b = kv_code_bytes_of(s.m[value].type);
        const code_lines to(b, s, value);
        if (n_kv <= heads) {
            const int bytes = to.row << to.run, rest = n & ((1 << to.run) - 1);
            const uint8_t *from = c.p;
#pragma unroll 4
            for (int i = n >> to.run; i; i--, from += bytes, dst += bytes + to.pad)
                copy_weights_elected(dst, from, (uint32_t)bytes, bar);
            if (rest) copy_weights_elected(dst, from, (uint32_t)(rest * to.row), bar);
            return;
        }
        const int row = code_row_bytes(b, n_kv), low = heads * b.low, high = heads * b.high,
                  plane = n_kv * b.low;
        copy_rows(dst, to, c.p + head * b.low, row, low, n, bar);
        if (high) copy_rows(dst + low, to, c.p + plane + head * b.high, row, high, n, bar);
        copy_rows(dst + low + high, to, c.p + plane + n_kv * b.high + head * b.scale, row, heads * b.scale, n,
                  bar);
    }
    /* `bytes` of each of n rows: all lanes, which have the same numbers. */
    static __device__ __forceinline__ void copy_rows(uint8_t *dst, const code_lines &to, const uint8_t *from,
                                                     int row, int bytes, int n, uint64_t *bar)
    {
        const int pitch = to.run ? to.row : to.row + to.pad; /* parts of rows lie alike */
#pragma unroll 4
        for (int i = n; i; i--, from += row, dst += pitch)
            copy_weights_elected(dst, from, (uint32_t)bytes, bar);
    }
};

/* ---- this pass's row ---- */

/* The head's codes at `fresh` to a row of n_kv heads. */
DEV void code_keep(unsigned char *row, const kv_code_bytes &b, int n_kv, int head, const unsigned char *fresh)
{
    const int lane = threadIdx.x % 32;
    if (4 * lane < b.low)
        *(uint32_t *)(row + head * b.low + 4 * lane) = *(const uint32_t *)(fresh + 4 * lane);
    row += n_kv * b.low;
    if (4 * lane < b.high)
        *(uint32_t *)(row + head * b.high + 4 * lane) = *(const uint32_t *)(fresh + b.low + 4 * lane);
    row += n_kv * b.high;
    if (2 * lane < b.scale)
        *(uint16_t *)(row + head * b.scale + 2 * lane) =
            *(const uint16_t *)(fresh + b.low + b.high + 2 * lane);
}
/* And to row `key` of a tile. Of values, if there are rows behind, scales: zeros there; of a key or its like
 * that is no number, zero; was there one? As bad_scales. */
DEV bool code_patch(unsigned char *tile, int key, uint32_t type, const chain_step &s, int head,
                    const unsigned char *fresh, bool value)
{
    const int heads = code_tile_heads(s);
    const kv_code_bytes b = kv_code_bytes_of(type);
    const code_lines rows(b, s, value);
    const int lane = threadIdx.x % 32;
    code_keep(tile + rows.at(key), b, heads, head, fresh);
    __syncwarp();
    if (!value || key == CODE_LEAF - 1) return false;
    uint16_t *scale = (uint16_t *)(tile + rows.at(lane) + heads * (b.low + b.high) + head * b.scale);
    bool bad = false;
    for (int i = 0; i < b.scale / 2; i++) {
        const bool none = lane <= key && (scale[i] & 0x7c00) == 0x7c00;
        if (none || lane > key) scale[i] = 0;
        bad |= none;
    }
    __syncwarp();
    return __any_sync(~0u, bad);
}

/* ---- products ---- */

/* Where a lane's first codes of a head lie in a tile: the low ones of key g, or of the values of 2 c; from
 * there to the eighth row behind, and to the next; to its other planes. Made once a step: a leaf's first
 * loads would wait for it. */
struct code_place {
    int low, eight, next, high, scale;
    __device__ __forceinline__ code_place(uint32_t type, const chain_step &s, int head, bool value)
    {
        const int heads = code_tile_heads(s), lane = threadIdx.x % 32;
        const kv_code_bytes b = kv_code_bytes_of(type);
        const code_lines rows(b, s, value);
        low = head * b.low + rows.at(value ? lane % 4 * 2 : lane / 4);
        eight = rows.eight(), next = rows.next();
        high = heads * b.low + head * (b.high - b.low);
        scale = heads * (b.low + b.high) + head * (b.scale - b.low);
    }
};
/* Scales of a row's blocks of 32. */
template <uint32_t TYPE> struct code_scales {
    uint2 w;
    __device__ __forceinline__ void take(const unsigned char *at)
    {
        if (kv_code<TYPE>::GROUP == 32)
            w = *(const uint2 *)at;
        else
            w.x = *(const uint16_t *)at;
    }
    __device__ __forceinline__ uint32_t word(int b) const
    {
        return kv_code<TYPE>::GROUP > 32 || b < 2 ? w.x : w.y;
    }
    __device__ __forceinline__ static bool upper(int b)
    {
        return kv_code<TYPE>::GROUP == 32 && b % 2;
    }
    __device__ __forceinline__ uint32_t twice(int b) const
    {
        return kv_perm(word(b), 0, upper(b) ? 0x3232 : 0x1010);
    }
    /* This one's and another row's. */
    __device__ __forceinline__ uint32_t with(const code_scales &other, int b) const
    {
        return kv_perm(word(b), other.word(b), upper(b) ? 0x7632 : 0x5410);
    }
};
/* x[m][e] += q k: key 16 m + 8 (e / 2) + g, row 2 c + e % 2. As code_scores has it, its factors changed
 * about.
 */
template <uint32_t TYPE>
DEV void code_scores_few(float x[2][4], const uint2 *q, const unsigned char *tile, const code_place &at)
{
    const int lane = (int)(thread_now() % 32);
    const unsigned char *row[4];
    code_scales<TYPE> d[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
        row[j] = tile + at.low + j * at.eight;
        d[j].take(row[j] + at.scale);
    }
#pragma unroll 1 /* straight code comes cold */
    for (int b = 0; b < CHAIN_HEAD / 32; b++) {
        uint32_t y[4][2][2];
#pragma unroll
        for (int j = 0; j < 4; j++)
            key_factors_at<TYPE>(y[j], row[j] + b * (4 * kv_code<TYPE>::LOW), row[j] + at.high + 4 * b,
                                 d[j].twice(b));
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint2 f = q[(2 * b + half) * 32 + lane];
#pragma unroll
            for (int m = 0; m < 2; m++) {
                const uint32_t a[4] = {y[2 * m][half][0], y[2 * m + 1][half][0], y[2 * m][half][1],
                                       y[2 * m + 1][half][1]};
                attention_mma<false>(x[m], a, f.x, f.y);
            }
        }
    }
}
/* acc[2 b + h][e] += x v: column 32 b + 4 g + 2 h + e / 2 of row 2 c + e % 2. */
template <uint32_t TYPE>
DEV void code_weigh_few(float acc[8][4], const uint32_t p[4], const unsigned char *tile, const code_place &at)
{
    const int g = (int)(thread_now() % 32) / 4;
#pragma unroll 1 /* straight code comes cold */
    for (int half = 0; half < 2; half++) {
        const unsigned char *row[2];
        code_scales<TYPE> d[2][2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            row[i] = tile + at.low + (2 * half + i) * at.eight;
            d[i][0].take(row[i] + at.scale);
            d[i][1].take(row[i] + at.next + at.scale);
        }
#pragma unroll
        for (int b = 0; b < CHAIN_HEAD / 32; b++) {
            uint32_t y[2][4];
#pragma unroll
            for (int i = 0; i < 2; i++)
                value_factors_at<TYPE>(y[i], row[i] + b * (4 * kv_code<TYPE>::LOW), at.next,
                                       row[i] + at.high + 4 * b, at.next, d[i][0].with(d[i][1], b), g);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const uint32_t a[4] = {y[0][2 * h], y[0][2 * h + 1], y[1][2 * h], y[1][2 * h + 1]};
                attention_mma<false>(acc[2 * b + h], a, p[2 * half], p[2 * half + 1]);
            }
        }
    }
}

/* What a warp has come to in a class of a node's leaves, of rows 2 c and 2 c + 1. */
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
    /* The class has been gone through: sums of all lanes. Even and odd keys, then as quad_sum adds. */
    __device__ __forceinline__ void end()
    {
#pragma unroll
        for (int e = 0; e < 2; e++)
#pragma unroll
            for (int i = 4; i < 32; i *= 2) sum[e] = __fadd_rn(sum[e], __shfl_xor_sync(~0u, sum[e], i));
    }
    /* Columns 32 b + 4 g to 32 b + 4 g + 3 of row 2 c + e. */
    __device__ __forceinline__ float4 four(int b, int e) const
    {
        return make_float4(acc[2 * b][e], acc[2 * b][2 + e], acc[2 * b + 1][e], acc[2 * b + 1][2 + e]);
    }
    /* To shared memory, [n_rep][CODE_ROW]; and added to what a class before left there. */
    __device__ __forceinline__ void leave(int n_rep, float *results) const
    {
        const int lane = (int)(thread_now() % 32), g = lane / 4, c = lane % 4;
#pragma unroll
        for (int e = 0; e < 2; e++) {
            if (2 * c + e >= n_rep) continue;
            float *const to = results + (2 * c + e) * CODE_ROW;
#pragma unroll
            for (int b = 0; b < 4; b++) *(float4 *)(to + 32 * b + 4 * g) = four(b, e);
            if (g == 0) *(float2 *)(to + CHAIN_HEAD) = make_float2(top[e], sum[e]);
        }
    }
    __device__ __forceinline__ void join(int n_rep, const float *results)
    {
        const int lane = (int)(thread_now() % 32), g = lane / 4, c = lane % 4;
#pragma unroll
        for (int e = 0; e < 2; e++) {
            if (2 * c + e >= n_rep) continue;
            const float *const from = results + (2 * c + e) * CODE_ROW;
            const float2 ts = *(const float2 *)(from + CHAIN_HEAD);
            float T = ts.x, S = ts.y;
#pragma unroll
            for (int b = 0; b < 4; b++) {
                const float4 y = *(const float4 *)(from + 32 * b + 4 * g), z = four(b, e);
                const float own[4] = {z.x, z.y, z.z, z.w};
                float Y[4] = {y.x, y.y, y.z, y.w};
                T = ts.x, S = ts.y;
                add_result<4>(T, S, Y, top[e], sum[e], own);
                acc[2 * b][e] = Y[0], acc[2 * b][2 + e] = Y[1];
                acc[2 * b + 1][e] = Y[2], acc[2 * b + 1][2 + e] = Y[3];
            }
            top[e] = T, sum[e] = S;
        }
    }
};
/* What was left there, to parts: whole lines at a time. */
DEV void code_give(int n_rep, const float *results, uint2 *part, unsigned tag)
{
    const int lane = (int)(thread_now() % 32);
#pragma unroll 2
    for (int row = 0; row < n_rep; row++, results += CODE_ROW)
#pragma unroll
        for (int i = 2 * lane; i < CHAIN_HEAD; i += 64) {
            const float2 y = *(const float2 *)(results + i);
            pair_put(part + row * CHAIN_HEAD + i, y.x, y.y, tag);
        }
    if (lane >= n_rep) return;
    const float2 y = *(const float2 *)(results - (n_rep - lane) * CODE_ROW + CHAIN_HEAD);
    pair_put(part + n_rep * CHAIN_HEAD + 2 * lane, y.x, y.y, tag);
}

/* ---- queries and results ---- */

/* What stands in shared memory in place of activations and terms; of a warp. */
struct code_room {
    unsigned char *fresh; /* the new key, and the new value */
    float *units;         /* [8] */
    uint2 *queries;       /* [D / 16][lane] */
    float *results;       /* [n_rep][CODE_ROW] */
};
DEV code_room code_room_at(uint8_t *at, int n_rep, int warp)
{
    code_room m;
    m.fresh = at + warp * CODE_ROOM(n_rep);
    m.units = (float *)(m.fresh + 2 * CODE_FRESH);
    m.queries = (uint2 *)(m.units + 8);
    m.results = (float *)(m.fresh + CODE_KEPT);
    return m;
}
/* The new key or value of a head, to the cache and, by pairs with tags, to `to`, where who has the newest
 * leaf reads it. Another block makes it than has that leaf, while that one makes queries. fresh: room. */
static __device__ __noinline__ void code_new(const chain_step &s, int pos, int head, bool value,
                                             const float *in, unsigned char *fresh, uint2 *to, unsigned tag)
{
    const int lane = threadIdx.x % 32;
    const uint32_t type = s.m[value].type;
    const kv_code_bytes b = kv_code_bytes_of(type);
    chain_head h;
    take_heads<1, true>(&h, in + (s.n_head + (value ? s.n_kv : 0) + head) * CHAIN_HEAD, 1,
                        value ? nullptr : s.k_norm, value || !s.turn ? nullptr : s.table, s.eps);
    if (value)
        kv_turn_values(h.x, type);
    else
        kv_turn_keys(h.x, type);
    kv_put_some(h.x, 4, type, fresh, fresh + b.low, fresh + b.low + b.high);
    __syncwarp();
    const float2 *const words = (const float2 *)fresh;
    if (lane < CODE_FRESH / 8)
        pair_put(to + (value ? CODE_FRESH / 4 : 0) + 2 * lane, words[lane].x, words[lane].y, tag);
    code_keep((unsigned char *)(value ? s.v : s.k) +
                  (int64_t)KV_SLOT(s.where, pos) * code_row_bytes(b, s.n_kv),
              b, s.n_kv, head, fresh);
    __syncwarp();
}
/* Both, from there. */
DEV void code_fresh(unsigned char *fresh, const uint2 *from, unsigned tag)
{
    const int lane = threadIdx.x % 32;
    float *const to = (float *)fresh;
    value_wait wait;
    bool there;
    do {
        there = true;
#pragma unroll
        for (int i = 0; i < 2 * CODE_FRESH / 4; i += 32) {
            float word;
            if (i + lane >= 2 * CODE_FRESH / 4) continue;
            there &= one_try(&word, from + i + lane, tag);
            to[i + lane] = word;
        }
    } while (wait.more(!__all_sync(~0u, there)));
    __syncwarp();
}
/* The head's queries, as code_queries has them, as fragments, and their units: N rows at a time, for which
 * one chain of latencies serves, those from `first` on, `apart` behind one another. */
template <int N>
static __device__ __noinline__ void code_rows(const chain_step &s, int head, int first, int apart,
                                              const float *in, const code_room m)
{
    constexpr int D = CHAIN_HEAD;
    const int lane = threadIdx.x % 32;
    uint16_t *to = (uint16_t *)(m.queries + lane / 16 * 32 + lane % 16 / 4) + lane % 4;
#pragma unroll 1
    for (int r0 = first; r0 < 8; r0 += apart) {
        chain_head h[N];
        if (r0 >= s.n_rep) { /* no rows: scores of zero */
#pragma unroll
            for (int i = 0; i < N; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) to[(j * 2 * 32 + (r0 + i) * 4) * 4] = 0;
            if (lane < N) m.units[r0 + lane] = 0.0f;
            continue;
        }
        take_heads<N, true>(h, in + (head * s.n_rep + r0) * D, s.n_rep - r0, s.q_norm,
                            s.turn ? s.table : nullptr, s.eps);
#pragma unroll
        for (int i = 0; i < N; i++) kv_turn_keys(h[i].x, s.m[0].type);
#pragma unroll
        for (int i = 0; i < N; i++) {
            const float down = code_down<4>(h[i].x, r0 + i < s.n_rep ? s.scale : 0.0f, m.units + r0 + i);
#pragma unroll
            for (int j = 0; j < 4; j++)
                to[(j * 2 * 32 + (r0 + i) * 4) * 4] = to_half<false>(__fmul_rn(h[i].x[j], down));
        }
    }
    __syncwarp();
}

/* A head's result: nodes added up, rotated back, handed on. box: [8][130] in shared memory. Eight places are
 * read at a time, without branches, so that all are asked for at once: of four nodes, or of two if classes of
 * a pair may be apart. */
static __device__ __noinline__ void code_join(const chain_step &s, const chain_plan &plan, int head,
                                              const uint2 *parts, unsigned tag, float *out, float *box)
{
    constexpr int D = CHAIN_HEAD, W = D / 32, ROW = D + 2, N = 8;
    const int lane = threadIdx.x % 32, w = warp_of(), kv_head = head / s.n_rep, r = head - kv_head * s.n_rep;
    const size_t pairs = LEAF_PAIRS(s.n_rep);
    const code_share f = code_share_get(plan, s, same_of(plan.kv_head), 0);
    const bool apart = code_apart(&f);
    const int of = apart ? 4 : 2; /* places of a node */
    parts += (size_t)kv_head * pairs;
    float T = -INFINITY, S = 0.0f, Y[W] = {};
#pragma unroll 1
    for (int node = w; node < f.nodes; node += N / of * CLASSES) {
        /* A lane knows one of the places. */
        const int k = lane % N, its = code_read(&f, apart, node + k / of * CLASSES, k % of);
        const uint2 *const its_tops =
            parts + (size_t)max(its, 0) * ((size_t)s.n_kv * pairs) + s.n_rep * D + 2 * r;
        const unsigned read = __ballot_sync(~0u, its >= 0);
        float y[N][W], top[N], sum[N];
        unsigned from[N];
#pragma unroll
        for (int i = 0; i < N; i++)
            from[i] = (unsigned)max(__shfl_sync(~0u, its, i), 0) * (unsigned)(s.n_kv * pairs);
        value_wait wait;
        bool there;
        uint2 x[N][W];
        uint4 its_x = make_uint4(0, its < 0 ? tag : ~tag, 0, its < 0 ? tag : ~tag);
#pragma unroll
        for (int i = 0; i < N; i++)
#pragma unroll
            for (int j = 0; j < W; j++) x[i][j] = make_uint2(0, read >> i & 1 ? ~tag : tag);
        do { /* all that are not there are asked for before one is looked at */
#pragma unroll
            for (int i = 0; i < N; i++)
#pragma unroll
                for (int j = 0; j < W; j++) one_ask(x[i][j], parts + from[i] + r * D + lane + 32 * j, tag);
            pair_ask(its_x, its_tops, tag);
            there = its_x.y == tag && its_x.w == tag;
#pragma unroll
            for (int i = 0; i < N; i++)
#pragma unroll
                for (int j = 0; j < W; j++) there &= x[i][j].y == tag;
        } while (wait.more(!__all_sync(~0u, there)));
#pragma unroll
        for (int i = 0; i < N; i++) {
            top[i] = __shfl_sync(~0u, __uint_as_float(its_x.x), i);
            sum[i] = __shfl_sync(~0u, __uint_as_float(its_x.z), i);
#pragma unroll
            for (int j = 0; j < W; j++) y[i][j] = __uint_as_float(x[i][j].x);
        }
        if (apart)
#pragma unroll
            for (int i = 0; i < N / 2; i++) { /* pairs of classes to where they are otherwise */
                if (read >> (2 * i + 1) & 1)
                    add_result<W>(top[2 * i], sum[2 * i], y[2 * i], top[2 * i + 1], sum[2 * i + 1],
                                  y[2 * i + 1]);
                top[i] = top[2 * i], sum[i] = sum[2 * i];
#pragma unroll
                for (int j = 0; j < W; j++) y[i][j] = y[2 * i][j];
            }
#pragma unroll
        for (int i = 0; i < N; i += 2) {
            if (i >= 2 * N / of || node + i / 2 * CLASSES >= f.nodes) continue;
            add_result<W>(top[i], sum[i], y[i], top[i + 1], sum[i + 1], y[i + 1]);
            add_result<W>(T, S, Y, top[i], sum[i], y[i]);
        }
    }
#pragma unroll
    for (int j = 0; j < W; j++) box[w * ROW + lane + 32 * j] = Y[j];
    if (lane == 0) box[w * ROW + D] = T, box[w * ROW + D + 1] = S;
    chain_heads_meet();
    if (w) return;
#pragma unroll 1
    for (int i = 1; i < min(CLASSES, f.nodes + 1); i++) { /* of what no node has, one stands for all */
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

/* A warp's classes, one after the other. busy: sets of the block that have some; ring: at this one's first
 * tile; fresh: the new keys and values; parts: results. */
DEV void code_classes(const chain_step &s, const code_share &f, int head, int busy, int pos,
                      chain_reader ring, const code_room &m, const uint2 *fresh, uint2 *parts, unsigned tag)
{
    const int lane = threadIdx.x % 32, c = lane % 4, kv_head = f.head + head, from = f.from, until = f.until;
    const uint32_t type[2] = {s.m[0].type, s.m[1].type};
    const int there = kv_head % CHAIN_HEADS; /* in its tiles */
    const code_place keys(type[0], s, there, false), values(type[1], s, there, true);
    code_few sums;
#pragma unroll 1
    for (int at = from; at < until; at++) {
        const int n = code_leaves_of(at);
        sums.clear();
#pragma unroll 1
        for (int i = 0; i < n; i++) {
            const int p0 = code_at(at, i), mine = pos - p0;
            float x[2][4] = {};
            uint32_t p[4];
            ring.await();
            if (mine >= 0) {
                unsigned char *const k = ring.here();
                if (mine < CODE_LEAF) {
                    code_fresh(m.fresh, fresh + kv_head * LEAF_PAIRS(s.n_rep), tag);
                    code_patch(k, mine, s.m[0].type, s, there, m.fresh, false);
                }
                switch (type[0]) {
                case KN_Q8_0: code_scores_few<KN_Q8_0>(x, m.queries, k, keys); break;
                case KN_Q5_0: code_scores_few<KN_Q5_0>(x, m.queries, k, keys); break;
                case KN_Q4_0: code_scores_few<KN_Q4_0>(x, m.queries, k, keys); break;
                default: code_scores_few<KN_TQ3_0>(x, m.queries, k, keys);
                }
            }
            ring.pass(busy);
            if (mine >= 0) sums.weights(p, x, *(const float2 *)(m.units + 2 * c), p0, pos);
            ring.await();
            if (mine >= 0) {
                unsigned char *const v = ring.here();
                bool bad = false;
                if (mine < CODE_LEAF)
                    bad = code_patch(v, mine, s.m[1].type, s, there, m.fresh + CODE_FRESH, true);
                switch (type[1]) {
                case KN_Q8_0: code_weigh_few<KN_Q8_0>(sums.acc, p, v, values); break;
                case KN_Q5_0: code_weigh_few<KN_Q5_0>(sums.acc, p, v, values); break;
                case KN_Q4_0: code_weigh_few<KN_Q4_0>(sums.acc, p, v, values); break;
                default: code_weigh_few<KN_TQ3_0>(sums.acc, p, v, values);
                }
                if (bad) sums.none();
            }
            ring.pass(busy);
        }
        sums.end();
        const bool joined = !code_near(&f) && at % 2 && at > from;
        if (joined) {
            sums.join(s.n_rep, m.results);
            __syncwarp();
        }
        sums.leave(s.n_rep, m.results);
        __syncwarp();
        if (!code_near(&f) && at % 2 == 0 && at + 1 < until) continue; /* the next class is added to it */
        code_give(s.n_rep, m.results,
                  parts + (size_t)(code_place_here(&f, at) * s.n_kv + kv_head) * LEAF_PAIRS(s.n_rep), tag);
        __syncwarp();
    }
}
/* All warps that multiply. at: room in shared memory; in, out: values of the step before and of this one;
 * before: bytes of points of grids, before the ring. */
static __device__ __noinline__ void code_attention(const chain_step &s, const chain_plan &plan, uint8_t *at,
                                                   uint32_t before, uint2 *parts, const float *in, float *out,
                                                   unsigned tag)
{
    extern __shared__ __align__(128) uint8_t smem[];
    const int w = warp_of(), pos = same_of(plan.kv_head), warps = code_warps(s.far), set = w / warps,
              head = w - set * warps;
    chain_room r = chain_room_at(smem);
    r.ring += before;
    r.ring += (0u - shared_at(r.ring)) & 1023;
    const code_share f = code_share_get(plan, s, pos, set);
    const int busy = code_busy_of(plan), sets = code_block_sets(s.far);
    const bool idle = f.from == f.until || head >= s.far, helped = busy == 1 && sets > 1;
    const code_room m = code_room_at(at, s.n_rep, w);
    uint2 *const results = parts + s.n_kv * LEAF_PAIRS(s.n_rep);
    chain_reader ring;
    ring.begin(r, plan, idle ? plan.tiles : set);
    chain_heads_meet(); /* what stands at `at` is done with */
    if (helped) {       /* a warp makes some rows of queries, for the heads of the first set */
        const code_room theirs = code_room_at(at, s.n_rep, head);
        const int of = code_share_get(plan, s, pos, 0).head + head;
        if (head < s.far && sets > 2) code_rows<1>(s, of, set, sets, in, theirs);
        if (head < s.far && sets == 2) code_rows<2>(s, of, 2 * set, 4, in, theirs);
        chain_heads_meet();
    }
    /* Sets with halves of small nodes, or the last ones, have least to do. */
#pragma unroll 1
    for (int value = 0; value < 2; value++)
        if (f.rank == (f.halves > 1 ? value : max(f.on - 1 - value, 0)) && head < s.far)
            code_new(s, pos, f.head + head, value, in, m.fresh, parts + (f.head + head) * LEAF_PAIRS(s.n_rep),
                     tag);
    if (!idle && !helped) code_rows<4>(s, f.head + head, 0, 4, in, m);
    if (!idle) code_classes(s, f, head, busy, pos, ring, m, parts, results, tag);
    if (threadIdx.x % 32 == 0) r.done[w] = plan.total + plan.tiles;
#pragma unroll 1
    for (int i = blockIdx.x; i < s.n_head; i += gridDim.x) {
        chain_heads_meet(); /* rooms of warps, or the head before, are done with */
        code_join(s, plan, i, results, tag, out, (float *)at);
    }
}
#endif
