/* chain/items.cuh - a step of a chain whose weights are not of the K types: blocks of 32 columns with a scale
 * (Q8_0, Q4_0, Q5_0, IQ4_NL), F16 and BF16. Arithmetic: that of mm_int.cuh (frag_32), mm_frag.cuh and
 * prep.cu, to the bit.
 *
 * Concepts. Sums of these types are float from the first unit of 32 columns (or pair of units) on, so a
 * warp keeps them for a whole slice: an *item* is a slice of a panel. A block has `pairs_here` groups of
 * s.members panels (gated: one of gate and up, or two; a single matrix: neighbours; else one panel). Its
 * items, panel after panel and slice after slice, go to the warps in rounds of CHAIN_WARPS; the last round
 * may have fewer. An item is s.parts tiles (of s.per units each; what a shorter slice or a panel that is not
 * there lacks is tiles without bytes). Tiles of a round stand in the ring by parts: the first of all its
 * items, the second...
 *
 * Every column of the mma's B is the row. Activations of a row:
 *   CHAIN_32   [units][32] int8 and [units] of {float scale, minus the sum}, as prep_block.cuh orders them
 *   floats     [planes][units][32] of 16 bits, as prep.cu orders them; squares: of each slice the sum of
 *              squares, then (from ITEM_INVERSE on) what its sums are to be multiplied by
 * Rows that are not normed come rounded from the step before, where a warp there has 32 outputs in a row
 * (attention; gates and ups by two panels of each): a quarter of the bytes, and nobody rounds them again.
 * Bound: bytes; eight units of Q8_0 (4,352 bytes) are 85 instructions of a warp, eight of BF16 (8 KB) 120.
 */
#ifndef DFLASH_CUDA_CHAIN_ITEMS_CUH
#define DFLASH_CUDA_CHAIN_ITEMS_CUH

#include "attend.cuh"
#include "far_ring.cuh"
#include "pair.cuh"

#define ITEM_INVERSE 64 /* of CHAIN_BLOCKS squares */
static_assert(ITEM_INVERSE >= MM_SLICES_MAX && ITEM_INVERSE + MM_SLICES_MAX <= CHAIN_BLOCKS, "no room");

/* ---- where things are ---- */

DEV int item_divide(int v, uint32_t by) /* by: chain_divisor */
{
    return by ? (int)__umulhi((unsigned)v, by) : v;
}
DEV int items_here(const chain_step &s)
{
    return pairs_here(s) * s.members * s.slices;
}
/* Panel `local` of this block: its matrix, its panel there. */
DEV const chain_matrix &item_panel(const chain_step &s, int local, int *panel)
{
    const int two = s.members / 2;
    int at = (int)blockIdx.x + (local >> two) * (int)gridDim.x, j = 0;
    if (s.gated) {
        *panel = two == 2 ? 2 * at + (local >> 1 & 1) : at;
        return s.m[local & 1];
    }
    while (at >= s.m[j].pair_end) j++;
    if (j) at -= s.m[j - 1].pair_end;
    *panel = s.members * at + (local & two);
    return s.m[j];
}
/* What a tile's `w` says (chain/ring.cuh): its type, ITEM_UNITS times its units. `z`: its first unit, 65536
 * times where its item's sums go among the terms. */
#define ITEM_UNITS 16
DEV uint32_t item_code(uint32_t type)
{
    return type == KN_Q8_0   ? 0
           : type == KN_BF16 ? 1
           : type == KN_F16  ? 2
           : type == KN_Q4_0 ? 3
           : type == KN_Q5_0 ? 4
                             : 5;
}
/* Tile t of the step. */
DEV chain_source item_source(const chain_step &s, int t)
{
    const int all = items_here(s), some = all % CHAIN_WARPS, whole = (all - some) * s.parts;
    int part, item;
    if (t < whole) {
        const int turn = t / CHAIN_WARPS, round = item_divide(turn, s.per_parts);
        part = turn - round * s.parts, item = CHAIN_WARPS * round + t % CHAIN_WARPS;
    } else {
        part = (t - whole) / some, item = all - some + (t - whole) - part * some;
    }
    const int local = item_divide(item, s.per_slices), slice = item - local * s.slices;
    int panel;
    const chain_matrix &m = item_panel(s, local, &panel);
    const int in = part * s.per, unit = slice * s.slice_units + in,
              n = 16 * panel < m.n_out ? max(min(s.per, min(s.slice_units - in, s.units - unit)), 0) : 0;
    chain_source c = {};
    c.p = m.w + ((size_t)panel * (size_t)s.units + (size_t)unit) * (size_t)m.unit_bytes;
    c.bytes = (uint32_t)(n * m.unit_bytes);
    c.kind = item_code(m.type) | (uint32_t)(ITEM_UNITS * n);
    c.unit = unit | (local * ((int)s.terms / 4) + 16 * slice) << 16;
    return c;
}
/* What the warps that ask and plan know of such steps. */
#define ITEM_EARLY 4       /* of so many tiles one is brought to the L2 cache */
#define ITEM_EARLY_MOST 24 /* of a step */
#define ITEM_PACE 450      /* clocks from one to the next */
template <class KEYS> struct items_beside : KEYS {
    static constexpr bool items = true;
    chain_source cached = {}; /* a tile a lane that is to come to the L2 cache, of step cached_of */
    int cached_of = -1;
    long long cached_at = 0; /* clock of the last */
    static __device__ __forceinline__ int tiles(const chain_step &s)
    {
        return items_here(s) * s.parts;
    }
    static __device__ __forceinline__ chain_source item(const chain_step &s, int t)
    {
        return item_source(s, t);
    }
    /* The ring is full, so the memory idles: every ITEM_EARLY-th tile of step i behind `from` comes to the L2
     * cache, one every ITEM_PACE clocks, what a multiprocessor gets of the memory. (Between those that do
     * not, later: one behind the other they come no faster from there than from memory.) */
    __device__ __forceinline__ void early(const chain_step &s, int i, int from, int all)
    {
        const int lane = threadIdx.x % 32;
        if (cached_of != i) {
            const int t = (from / ITEM_EARLY + 1 + lane) * ITEM_EARLY + ITEM_EARLY - 1;
            cached_of = i, cached.bytes = 0, cached_at = clock64();
            if (t < all && lane < ITEM_EARLY_MOST) cached = item_source(s, t);
        }
        const unsigned wanted = __ballot_sync(0xffffffff, cached.bytes != 0);
        if (!wanted || clock64() - cached_at < ITEM_PACE) return;
        cached_at = clock64();
        if (lane == __ffs((int)wanted) - 1) {
            prefetch_bulk(cached.p, cached.bytes);
            cached.bytes = 0;
        }
    }
    /* unit: tiles of whole rounds; leaf: items of the last one */
    static __device__ __forceinline__ int plan(const chain_step &s, chain_plan &g)
    {
        const int all = items_here(s);
        g.pairs = pairs_here(s);
        g.leaf = all % CHAIN_WARPS;
        g.unit = (all - g.leaf) * s.parts;
        return all * s.parts;
    }
};
/* s.rounds: leaves that a row may see. */
struct near_items : items_beside<few_keys> {
    static constexpr bool held = true;
    static __device__ __forceinline__ int place(const chain_step &s)
    {
        const int unit = (int)blockIdx.x - s.rest, in_turn = unit < 0 ? unit + (int)gridDim.x : unit;
        return in_turn < s.rounds * s.n_kv;
    }
};
using far_items = items_beside<far_keys>;

/* Columns 128 i + 4 lane .. of a slice at p, as values_ask and values_settle have it. */
#define ITEM_PARTS 4 /* of 128 columns: a slice, at most */
DEV void item_ask(float v[ITEM_PARTS][4], const float *p, int parts, unsigned there)
{
#pragma unroll
    for (int i = 0; i < ITEM_PARTS; i++)
        asm volatile(
            "{\n.reg .pred p;\nsetp.eq.u32 p, %4, 0;\n@p ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, "
            "[%5];\n}"
            : "+f"(v[i][0]), "+f"(v[i][1]), "+f"(v[i][2]), "+f"(v[i][3])
            : "r"((there >> i & 1) | (i < parts ? 0u : 1u)), "l"(p + 128 * i + threadIdx.x % 32 * 4)
            : "memory");
}
DEV void item_settle(float v[ITEM_PARTS][4], const float *p, int parts)
{
    value_wait wait;
    for (;;) {
        unsigned there = 0;
#pragma unroll
        for (int i = 0; i < ITEM_PARTS; i++) {
            bool here = true;
#pragma unroll
            for (int j = 0; j < 4; j++) here = here && __float_as_uint(v[i][j]) != CHAIN_NOT_YET;
            there |= here || i >= parts ? 1u << i : 0;
        }
        if (!wait.more(!__all_sync(0xffffffff, there == (1u << ITEM_PARTS) - 1))) return;
        item_ask(v, p, parts, there);
    }
}

/* ---- the row, for blocks of 32 ---- */

/* Blocks of 256 columns that a warp rounds: those of a slice by the warps that multiply it (s.own of them,
 * all its items are of one slice), or all blocks by all warps. */
struct item_share {
    int first, on, n; /* on: from one to the next */
};
DEV item_share item_share_of(const chain_step &s)
{
    const int warp = warp_of(), own = s.own, from = (warp & (s.slices - 1)) * s.slice_units,
              m = warp * own / CHAIN_WARPS;
    if (!own) return {warp, CHAIN_WARPS, (s.units / 8 - warp + CHAIN_WARPS - 1) / CHAIN_WARPS};
    return {from / 8 + m, own, (min(s.slice_units, s.units - from) / 8 - m + own - 1) >> (31 - __clz(own))};
}
/* They meet. */
DEV void item_meet(const chain_step &s)
{
    const int own = s.own;
    if (own == 1)
        __syncwarp();
    else if (own == 0 || own == CHAIN_WARPS)
        chain_meet();
    else
        asm volatile("bar.sync %0, %1;" ::"r"(4 + (warp_of() & (s.slices - 1))), "r"(32 * own) : "memory");
}
/* n <= N blocks, `block`, `block` + on... (v: columns 8 lane ..): rounded as store_block rounds. */
template <int N> DEV void item_round(uint8_t *act, int units, int block, int on, int n, const float (*v)[8])
{
    const int lane = threadIdx.x % 32;
    uint32_t top[N], w[N][2];
    float d[N];
    int sum[N];
#pragma unroll
    for (int c = 0; c < N; c++) {
        uint32_t m[8];
#pragma unroll
        for (int i = 0; i < 8; i++) m[i] = __float_as_uint(v[c][i]) & 0x7fffffff;
        top[c] = max(max(max(m[0], m[1]), max(m[2], m[3])), max(max(m[4], m[5]), max(m[6], m[7])));
    }
#pragma unroll
    for (int o = 1; o < 4; o *= 2)
#pragma unroll
        for (int c = 0; c < N; c++) top[c] = max(top[c], __shfl_xor_sync(0xffffffff, top[c], o));
#pragma unroll
    for (int c = 0; c < N; c++) {
        const bool odd = top[c] >= 0x7f800000, none = odd || __uint_as_float(top[c]) < 1e-30f;
        const float amax = none ? 1.0f : __uint_as_float(top[c]), inverse = __fdiv_rn(127.0f, amax);
        d[c] = odd ? __uint_as_float(0x7fc00000) : none ? 0.0f : over_127(amax);
        w[c][0] = none ? 0 : round_four(v[c], inverse);
        w[c][1] = none ? 0 : round_four(v[c] + 4, inverse);
        sum[c] = __dp4a((int)w[c][0], 0x01010101, __dp4a((int)w[c][1], 0x01010101, 0));
    }
#pragma unroll
    for (int o = 1; o < 4; o *= 2)
#pragma unroll
        for (int c = 0; c < N; c++) sum[c] += __shfl_xor_sync(0xffffffff, sum[c], o);
#pragma unroll
    for (int c = 0; c < N; c++) {
        const bool there = c < n;
        const uint32_t b = (uint32_t)(block + c * on), at = shared_at(act),
                       q = at + 256 * b + 64 * (lane / 8) + 32 * (lane % 2) + 8 * (lane / 4 % 2) +
                           4 * (lane / 2 % 2);
        put_shared_if(there, q, w[c][0]);
        put_shared_if(there, q + 16, w[c][1]);
        put_shared_two_if(there && lane % 4 == 0, at + 32 * units + 64 * b + 2 * lane, __float_as_uint(d[c]),
                          (uint32_t)-sum[c]);
    }
}
/* The row, normed as prepare_row does. */
DEV void item_norm_32(const chain_step &s, bool first, const float *row, uint8_t *act, float *squares)
{
    constexpr int B = CHAIN_NORM_BLOCKS;
    const item_share h = item_share_of(s);
    const int lane = threadIdx.x % 32, n_in = 32 * s.units;
    const float *p = row + 256 * h.first;
    float v[B][8] = {}, w[B][8] = {};
    values_ask<B, 0>(v, p, h.n, 0, h.on);
#pragma unroll
    for (int c = 0; c < B; c++)
        if (c < h.n) load_eight(w[c], s.norm, 256 * (h.first + c * h.on) + 8 * lane, n_in);
    if (!first) values_settle<B, 0>(v, p, h.n, h.on);
    const uint32_t to = shared_at(squares + h.first);
    if (h.n == 1)
        put_shared_if(lane == 0, to, __float_as_uint(block_squares(v[0])));
    else if (h.n > 1)
#pragma unroll
        for (int c = 0; c < B; c++) {
            const float ss = block_squares(v[c]);
            put_shared_if(c < h.n && lane == 0, to + 4 * c * h.on, __float_as_uint(ss));
        }
    chain_meet();
    const float r = norm_factor(s, squares, lane, s.units / 8, n_in);
#pragma unroll
    for (int c = 0; c < B; c++)
#pragma unroll
        for (int i = 0; i < 8; i++) v[c][i] = __fmul_rn(__fmul_rn(v[c][i], r), w[c][i]);
    if (h.n > 0) item_round<B>(act, s.units, h.first, h.on, h.n, v);
}
/* The row as it is: what comes next is asked for before what is there is rounded. */
DEV void item_row_32(const chain_step &s, bool first, const float *row, uint8_t *act)
{
    constexpr int B = 3;
    const item_share h = item_share_of(s);
    const float *p = row + 256 * h.first;
    float v[B][8] = {};
    values_ask<B, 0>(v, p, h.n, 0, h.on);
#pragma unroll 1
    for (int at = h.first, n = h.n; n > 0; n -= B, at += B * h.on) {
        float u[B][8];
        if (!first) values_settle<B, 0>(v, p, n, h.on);
#pragma unroll
        for (int i = 0; i < 8 * B; i++) u[i / 8][i % 8] = v[i / 8][i % 8];
        p += 256 * B * h.on;
        values_ask<B, 0>(v, p, n - B, 0, h.on);
        item_round<B>(act, s.units, at, h.on, n, u);
    }
}

/* The row as the step before has rounded it (rounded_put): a copy, of a slice by the warps that multiply it,
 * or of all by all; CHAIN_ROUNDED_WORDS of a warp at most. */
DEV void item_row_rounded(const chain_step &s, const float *row, uint8_t *act)
{
    static_assert(CHAIN_ROUNDED_WORDS == 128 * ITEM_PARTS, "as many as a lane has registers for");
    const int warp = warp_of(), own = s.own, by = own ? own : CHAIN_WARPS,
              unit = own ? (warp & (s.slices - 1)) * s.slice_units : 0,
              units = own ? min(s.slice_units, s.units - unit) : s.units, codes = 8 * units,
              words = 10 * units, each = ((words + 127) / 128 + by - 1) >> (31 - __clz(by)),
              jump = 8 * (s.units - units) - 6 * unit, /* of sums, to where they stand */
        first = 128 * each * (warp * by / CHAIN_WARPS) + threadIdx.x % 32 * 4;
    const float *const p = row + 8 * unit + first;
    float v[ITEM_PARTS][4] = {};
    value_wait wait;
    unsigned there = 0;
    do {
#pragma unroll
        for (int i = 0; i < ITEM_PARTS; i++) {
            const int k = first + 128 * i;
            asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, %4, 0;\n@p ld.relaxed.gpu.global.v4.f32 {%0, %1, "
                         "%2, %3}, [%5];\n}"
                         : "+f"(v[i][0]), "+f"(v[i][1]), "+f"(v[i][2]), "+f"(v[i][3])
                         : "r"((there >> i & 1) | (i < each && k < words ? 0u : 1u)),
                           "l"(p + 128 * i + (k < codes ? 0 : jump))
                         : "memory");
        }
        there = 0;
#pragma unroll
        for (int i = 0; i < ITEM_PARTS; i++) {
            bool here = true;
#pragma unroll
            for (int j = 0; j < 4; j++) here = here && __float_as_uint(v[i][j]) != CHAIN_NOT_YET;
            there |= here ? 1u << i : 0;
        }
    } while (wait.more(!__all_sync(0xffffffff, there == (1u << ITEM_PARTS) - 1)));
#pragma unroll
    for (int i = 0; i < ITEM_PARTS; i++) {
        const int k = first + 128 * i;
        if (i >= each || k >= words) continue;
        const bool sums = k >= codes;
        const uint32_t x = sums ? 0 : ROUNDED_CODES, y = sums ? ROUNDED_SUM : ROUNDED_CODES;
        *(uint4 *)(act + 4 * (8 * unit + k + (sums ? jump : 0))) =
            make_uint4(__float_as_uint(v[i][0]) ^ x, __float_as_uint(v[i][1]) ^ y,
                       __float_as_uint(v[i][2]) ^ x, __float_as_uint(v[i][3]) ^ y);
    }
}

/* ---- the row, for floats ---- */

/* The 16-bit parts of (x, y), as prep.cu has them. */
template <bool BF16> DEV void item_planes(uint32_t *p, float x, float y)
{
#pragma unroll
    for (int i = 0; i < (BF16 ? 3 : 2); i++) {
        if (BF16) { /* truncated: what is left is exact */
            p[i] = __byte_perm(__float_as_uint(x), __float_as_uint(y), 0x7632);
            x = __fsub_rn(x, __uint_as_float(__float_as_uint(x) & 0xffff0000));
            y = __fsub_rn(y, __uint_as_float(__float_as_uint(y) & 0xffff0000));
        } else {
            const __half2 h = __floats2half2_rn(x, y);
            p[i] = *(const uint32_t *)&h;
            x = __fsub_rn(x, h_low(p[i]));
            y = __fsub_rn(y, h_high(p[i]));
        }
    }
}
/* A slice, scaled so that its largest magnitude is in [512, 1024), in planes. */
template <bool BF16>
DEV void item_slice(const chain_step &s, int slice, int parts, float v[ITEM_PARTS][4],
                    const float w[ITEM_PARTS][4], uint8_t *act, float *squares)
{
    constexpr int planes = BF16 ? 3 : 2;
    const int lane = threadIdx.x % 32;
    uint32_t top = 0;
    float ss = 0.0f;
#pragma unroll
    for (int i = 0; i < ITEM_PARTS; i++) {
        if (i >= parts) continue;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (s.norm) {
                ss = __fmaf_rn(v[i][j], v[i][j], ss);
                v[i][j] = __fmul_rn(v[i][j], w[i][j]);
            }
            top = max(top, __float_as_uint(v[i][j]) & 0x7fffffff);
        }
    }
    top = __reduce_max_sync(0xffffffff, top);
    if (s.norm)
#pragma unroll
        for (int o = 16; o; o /= 2) ss = __fadd_rn(ss, __shfl_xor_sync(0xffffffff, ss, o));
    const uint32_t e = max(top >> 23, 9u);
    float scale = 1.0f, inverse = 1.0f;
    if (e != 255 && top) {
        scale = __uint_as_float((263 - e) << 23);
        inverse = __uint_as_float(e > 9 ? (e - 9) << 23 : 0x00400000);
    }
    if (lane == 0) {
        squares[slice] = ss;
        squares[ITEM_INVERSE + slice] = inverse;
    }
    uint8_t *to = act + 64 * slice * s.slice_units + lane / 8 * 64 + lane % 4 * 16 + lane / 4 % 2 * 8;
#pragma unroll
    for (int i = 0; i < ITEM_PARTS; i++) {
        if (i >= parts) continue;
        uint32_t lo[planes], hi[planes];
        item_planes<BF16>(lo, __fmul_rn(v[i][0], scale), __fmul_rn(v[i][1], scale));
        item_planes<BF16>(hi, __fmul_rn(v[i][2], scale), __fmul_rn(v[i][3], scale));
#pragma unroll
        for (int p = 0; p < planes; p++)
            *(uint2 *)(to + p * 64 * s.units + 256 * i) = make_uint2(lo[p], hi[p]);
    }
}
/* Parts of a slice; and what a norm multiplies those of one by, at `norm`. */
DEV int item_parts(const chain_step &s, int slice)
{
    return min(s.slice_units, s.units - slice * s.slice_units) / 4;
}
DEV void item_norm(float w[ITEM_PARTS][4], const chain_step &s, const float *norm, int parts)
{
#pragma unroll
    for (int i = 0; i < ITEM_PARTS; i++)
        if (s.norm && i < parts) {
            const float4 f = __ldcg((const float4 *)(norm + 128 * i));
            w[i][0] = f.x, w[i][1] = f.y, w[i][2] = f.z, w[i][3] = f.w;
        }
}
template <bool BF16>
DEV void item_row_float(const chain_step &s, bool first, const float *values, uint8_t *act, float *squares)
{
    const int lane = threadIdx.x % 32, warp = warp_of(), whole = 32 * s.slice_units;
    const float *p = (first ? s.x : values) + warp * whole, *norm = s.norm + warp * whole + 4 * lane;
    float v[ITEM_PARTS][4] = {};
    if (warp < s.slices) item_ask(v, p, item_parts(s, warp), 0);
#pragma unroll 1
    for (int slice = warp; slice < s.slices; slice += CHAIN_WARPS) {
        const int parts = item_parts(s, slice);
        float u[ITEM_PARTS][4], w[ITEM_PARTS][4];
        item_norm(w, s, norm, parts);
        if (!first) item_settle(v, p, parts);
#pragma unroll
        for (int i = 0; i < 4 * ITEM_PARTS; i++) u[i / 4][i % 4] = v[i / 4][i % 4];
        p += CHAIN_WARPS * whole;
        norm += CHAIN_WARPS * whole;
        if (slice + CHAIN_WARPS < s.slices) item_ask(v, p, item_parts(s, slice + CHAIN_WARPS), 0);
        item_slice<BF16>(s, slice, parts, u, w, act, squares);
    }
}
/* 1 / rms, of the squares of all slices, as prep.cu adds them; 1 where there is no norm. */
DEV float item_inverse_rms(const chain_step &s, const float *squares)
{
    if (!s.norm) return 1.0f;
    float ss = 0.0f;
#pragma unroll 8
    for (int i = 0; i < s.slices; i++) ss = __fadd_rn(ss, squares[i]);
    return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(ss, (float)(32 * s.units)), s.eps)));
}

/* ---- sums ---- */

/* c = MM_BITS_OF + A B; of: four times that, in registers of their own, which nobody writes. */
struct item_bits {
    int of[4];
};
DEV item_bits item_bits_of()
{
    item_bits b;
#pragma unroll
    for (int i = 0; i < 4; i++) b.of[i] = (int)kept(MM_BITS_OF);
    return b;
}
template <bool SIGNED>
DEV void item_mma(int c[4], const uint32_t a[4], uint32_t b0, uint32_t b1, const item_bits &i)
{
    if (SIGNED)
        asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%10,%11,%12,%13};"
            : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(i.of[0]), "r"(i.of[1]),
              "r"(i.of[2]), "r"(i.of[3]));
    else
        asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%10,%11,%12,%13};"
            : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(i.of[0]), "r"(i.of[1]),
              "r"(i.of[2]), "r"(i.of[3]));
}
/* fin (row g + 8 (lane % 2)) += n units (a multiple of 8) of a type with blocks of 32. q, aux: the row's at
 * the first unit, q at 16 bytes of the lane's quarter. */
template <int BITS, bool TABLE>
DEV void item_32(float &fin, const uint8_t *st, int n, const uint8_t *q, const uint8_t *aux, int lane,
                 const item_bits &bits)
{
    constexpr bool is_signed = TABLE || BITS == 8;
    constexpr int unit_bytes = 64 * BITS + 32, left = BITS == 5 ? 4 : 3;
    const uint8_t *scales = st + 64 * BITS + lane / 4 * 4 + lane % 2 * 2;
    const bool second = lane & 1;
#pragma unroll 1
    for (; n > 0; n -= 8, st += 8 * unit_bytes, scales += 8 * unit_bytes, q += 256, aux += 64) {
#pragma unroll
        for (int u = 0; u < 8; u++) {
            const uint4 b = lds16(q + 32 * (u & ~1)), x = lds16(aux + 8 * (u & ~1)); /* of two units */
            const __half d = *(const __half *)(scales + u * unit_bytes);
            const float da = __uint_as_float(u % 2 ? x.z : x.x);
            /* minus the codes' offset: 16 or 8 times the sum */
            const int offset = is_signed ? 0 : (int)((u % 2 ? x.w : x.y) << left);
            uint32_t a[4];
            int c[4];
            if (TABLE) {
                const uint2 w = lds8(st + u * unit_bytes + 8 * lane);
                iq4_words(a, a + 1, w.x);
                iq4_words(a + 2, a + 3, w.y);
            } else {
                frag_32<false>::codes<BITS>(a, st + u * unit_bytes, lane);
            }
            item_mma<is_signed>(c, a, u % 2 ? b.z : b.x, u % 2 ? b.w : b.y, bits);
            fin = __fmaf_rn(of_bits((second ? c[2] : c[0]) + offset), __fmul_rn(__half2float(d), da), fin);
        }
    }
}
/* The same of F16 or BF16; b: as q, plane: bytes of a plane of the row. Two sums of 64 columns side by
 * side; n is a multiple of 4. */
template <bool BF16>
DEV void item_float(float fin[2], const uint8_t *st, int n, const uint8_t *b, int plane, int lane)
{
    constexpr int planes = BF16 ? 3 : 2;
#pragma unroll 1
    for (; n > 0; n -= 4, st += 4096, b += 256) {
        float acc[2][4];
#pragma unroll
        for (int j = 0; j < 2; j++) zero(acc[j]);
#pragma unroll
        for (int u = 0; u < 2; u++) {
            uint4 x[2][planes];
#pragma unroll
            for (int j = 0; j < 2; j++)
#pragma unroll
                for (int p = 0; p < planes; p++) x[j][p] = lds16(b + p * plane + 64 * (2 * j + u));
#pragma unroll
            for (int s = 0; s < 2; s++) {
                uint4 w[2];
#pragma unroll
                for (int j = 0; j < 2; j++) w[j] = lds16(st + 1024 * (2 * j + u) + 512 * s + 16 * lane);
#pragma unroll
                for (int p = planes - 1; p >= 0; p--) /* smallest products first */
#pragma unroll
                    for (int j = 0; j < 2; j++) {
                        const uint32_t a[4] = {w[j].x, w[j].y, w[j].z, w[j].w};
                        mma<BF16>(acc[j], a, s ? x[j][p].z : x[j][p].x, s ? x[j][p].w : x[j][p].y);
                    }
            }
        }
#pragma unroll
        for (int j = 0; j < 2; j++) {
            fin[0] = __fadd_rn(fin[0], acc[j][0]);
            fin[1] = __fadd_rn(fin[1], acc[j][2]);
        }
    }
}

/* Blocks of 32: the row has been rounded. */
struct item_blocks {
    static constexpr bool both = false; /* sums of rows g and g + 8 */
    static __device__ __forceinline__ void begin(const chain_step &, const float *)
    {
    }
    static __device__ __forceinline__ void item(const chain_step &, bool, uint8_t *, float *)
    {
    }
};
/* Floats: the warp rounds its own slices, each before its item, as it multiplies the first panel (s.own). */
struct item_slices {
    static constexpr bool both = true;
    const float *p;
    int at, left;
    float v[ITEM_PARTS][4];
    __device__ __forceinline__ void begin(const chain_step &s, const float *row)
    {
        at = warp_of(), left = s.own ? s.slices / CHAIN_WARPS : 0, p = row + at * 32 * s.slice_units;
        if (left) item_ask(v, p, item_parts(s, at), 0);
    }
    __device__ __forceinline__ void item(const chain_step &s, bool first, uint8_t *act, float *squares)
    {
        if (left <= 0) return;
        const int slice = at, parts = item_parts(s, slice), whole = 32 * s.slice_units;
        float u[ITEM_PARTS][4], w[ITEM_PARTS][4];
        const float *norm = s.norm + slice * whole + 4 * (threadIdx.x % 32);
        item_norm(w, s, norm, parts);
        if (!first) item_settle(v, p, parts);
#pragma unroll
        for (int i = 0; i < 4 * ITEM_PARTS; i++) u[i / 4][i % 4] = v[i / 4][i % 4];
        at += CHAIN_WARPS, p += CHAIN_WARPS * whole;
        if (--left > 0) item_ask(v, p, item_parts(s, at), 0);
        if (s.kind == CHAIN_BF16)
            item_slice<true>(s, slice, parts, u, w, act, squares);
        else
            item_slice<false>(s, slice, parts, u, w, act, squares);
        __syncwarp();
    }
};

/* Sums of a tile of n units, of columns from unit `unit` on. b: at 16 bytes of the lane's quarter. */
DEV void item_tile(item_blocks *, uint32_t code, float fin[2], const uint8_t *st, int n, int unit, int units,
                   const uint8_t *b, const uint8_t *aux, int lane, const item_bits &bits)
{
    b += 32 * unit, aux += 8 * unit;
    if (code == 0)
        item_32<8, false>(fin[0], st, n, b, aux, lane, bits);
    else if (code == 3)
        item_32<4, false>(fin[0], st, n, b, aux, lane, bits);
    else if (code == 4)
        item_32<5, false>(fin[0], st, n, b, aux, lane, bits);
    else
        item_32<4, true>(fin[0], st, n, b, aux, lane, bits);
}
DEV void item_tile(item_slices *, uint32_t code, float fin[2], const uint8_t *st, int n, int unit, int units,
                   const uint8_t *b, const uint8_t *, int lane, const item_bits &)
{
    if (code == 1)
        item_float<true>(fin, st, n, b + 64 * unit, 64 * units, lane);
    else
        item_float<false>(fin, st, n, b + 64 * unit, 64 * units, lane);
}
/* Sums of the block's items, to terms [local panel][slice][16 rows]. */
template <class COLUMNS>
DEV void item_multiply(const chain_step &s, const chain_plan &plan, const chain_room &r, bool first,
                       const float *row, uint8_t *act, float *squares, float *terms)
{
    const int lane = threadIdx.x % 32, warp = warp_of(), units = s.units, parts = s.parts, some = plan.leaf,
              whole = plan.total + plan.unit, until = plan.total + plan.tiles,
              end = warp < some ? until : whole;
    const uint8_t *const b = act + 16 * (lane % 4), *const aux = act + 32 * units;
    int number = plan.total + warp;
    const item_bits bits = item_bits_of();
    COLUMNS c;
    c.begin(s, row);
    if (lane == 0) r.done[warp] = number < end ? number : until;
#pragma unroll 1
    while (number < end) {
        const int on = number < whole ? CHAIN_WARPS : some;
        float fin[2] = {0.0f, 0.0f};
        uint32_t to = 0;
        c.item(s, first, act, squares);
#pragma unroll 1
        for (int part = 0; part < parts; part++) {
            const unsigned at = (unsigned)number % CHAIN_TILES;
            bar_pass(r.full + at, (unsigned)number / CHAIN_TILES & 1);
            const uint4 tile = r.tile[at];
            to = tile.z >> 16;
            item_tile((COLUMNS *)nullptr, tile.w % ITEM_UNITS, fin, r.ring + tile.x,
                      (int)(tile.w / ITEM_UNITS), (int)(tile.z & 0xffff), units, b, aux, lane, bits);
            number += on;
            __syncwarp();
            if (lane == 0) r.done[warp] = number < end ? number : until;
        }
        if (lane % 4 < 2) terms[to + 8 * (lane % 4) + lane / 4] = COLUMNS::both && lane % 4 ? fin[1] : fin[0];
    }
}

/* Attention over a short context, its keys and values where the ring has kept a place for them. */
template <bool BF16>
DEV void attention_held(const chain_step &s, const chain_plan &plan, const chain_room &r, int i, int pos,
                        const float *in, float *out, uint2 *parts, unsigned tag, uint8_t *act)
{
    uint8_t *keys = act;
    if (plan.tiles) {
        const unsigned number = (unsigned)plan.total;
        bar_pass(r.full + number % CHAIN_TILES, number / CHAIN_TILES & 1);
        keys = r.ring + r.tile[number % CHAIN_TILES].x;
        if (plan.leaf <= pos / chain_few::LEAF) chain_keys(s, pos, plan.leaf, plan.kv_head, keys);
    }
    chain_attention<BF16, true>(i, pos, plan.unit, in, out, parts, tag, act, keys);
    if (!plan.tiles) return;
    shared_fence(); /* what is copied there next comes after what was written there */
    __syncwarp();
    if (threadIdx.x % 32 == 0) r.done[threadIdx.x / 32] = plan.total + plan.tiles;
}

/* Outputs from terms: a warp two panels, a lane an output (gated: half of the warp the gates, half the ups).
 */
struct item_output {
    const chain_matrix *m;
    int row; /* of its matrix; -1: none */
};
DEV item_output item_output_of(const chain_step &s, int locals, int in)
{
    const int lane = threadIdx.x % 32, local = min(2 * in + lane / 16, locals - 1);
    int panel;
    item_output o;
    o.m = &item_panel(s, s.gated ? 2 * in : local, &panel);
    o.row = 16 * panel + lane % 16;
    if (o.row >= o.m->n_out || 2 * in + lane / 16 >= locals || (s.gated && lane > 15)) o.row = -1;
    return o;
}
DEV void item_write(const chain_step &s, int locals, item_output c, float *values, const float *squares,
                    const float *terms, float *keep)
{
    const int lane = threadIdx.x % 32, slices = s.slices;
    const bool floats = s.kind != CHAIN_32;
    float rms = 1.0f;
    if (floats && 2 * (warp_of()) < locals) rms = item_inverse_rms(s, squares);
#pragma unroll 1
    for (int in = warp_of(); 2 * in < locals;) {
        const int local = min(2 * in + lane / 16, locals - 1), o = 32 * in + lane;
        const bool mine = c.row >= 0;
        float old = 0.0f;
        if (s.old && mine) old = s.kept ? keep[o] : __ldcg(s.old + c.row);
        const float *p = terms + local * ((int)s.terms / 4) + lane % 16;
        float y = 0.0f;
        if (floats)
#pragma unroll 4
            for (int i = 0; i < slices; i++)
                y = __fadd_rn(y, __fmul_rn(p[16 * i], __fmul_rn(squares[ITEM_INVERSE + i], rms)));
        else
#pragma unroll 4
            for (int i = 0; i < slices; i++) y = __fadd_rn(y, p[16 * i]);
        if (s.gated) {
            const float up = __shfl_down_sync(0xffffffff, y, 16);
            y = __fmul_rn(act_gate(s.act, y), up);
        }
        if (mine) {
            if (s.old) y = __fadd_rn(old, y);
            if (s.pass_on) value_put(values + c.m->column + c.row, y);
            if (s.keep) keep[o] = y;
            if (c.m->out) c.m->out[c.row] = y;
        }
        in += CHAIN_WARPS;
        if (2 * in < locals) c = item_output_of(s, locals, in);
    }
}

/* The same of gates and ups by two panels of each: a warp 32 outputs, which may be handed on rounded. */
DEV void item_write_gated(const chain_step &s, int groups, float *values, const float *terms)
{
    const int lane = threadIdx.x % 32, slices = s.slices, panel = (int)s.terms / 4;
#pragma unroll 1
    for (int in = warp_of(); in < groups; in += CHAIN_WARPS) {
        const int unit = (int)blockIdx.x + in * (int)gridDim.x, row = 32 * unit + lane;
        const float *p = terms + (4 * in + lane / 16 * 2) * panel + lane % 16;
        float gate = 0.0f, up = 0.0f;
#pragma unroll 4
        for (int i = 0; i < slices; i++, p += 16) gate = __fadd_rn(gate, p[0]), up = __fadd_rn(up, p[panel]);
        const float y = __fmul_rn(act_gate(s.act, gate), up);
        if (s.flags & CHAIN_ROUNDS)
            rounded_put(values, s.m[0].n_out / 32, unit, y);
        else if (s.pass_on)
            value_put(values + row, y);
        if (s.m[0].out) s.m[0].out[row] = y;
    }
}

/* The step. */
DEV void chain_items(const chain_step &s, const chain_plan &plan, const chain_room &r, bool first,
                     const float *in, float *out, uint8_t *act, float *squares, float *terms, float *keep)
{
    const int locals = plan.pairs * s.members, mine = warp_of();
    item_output c = {};
    if (s.members < 4 && 2 * mine < locals) c = item_output_of(s, locals, mine);
    if (s.kind == CHAIN_32) {
        if (s.norm)
            item_norm_32(s, first, in, act, squares);
        else if (s.flags & CHAIN_ROUNDED)
            item_row_rounded(s, in, act);
        else
            item_row_32(s, first, in, act);
        item_meet(s);
        item_multiply<item_blocks>(s, plan, r, first, in, act, squares, terms);
    } else {
        if (!s.own) {
            if (s.kind == CHAIN_BF16)
                item_row_float<true>(s, first, in, act, squares);
            else
                item_row_float<false>(s, first, in, act, squares);
            chain_meet();
        }
        item_multiply<item_slices>(s, plan, r, first, in, act, squares, terms);
    }
    chain_meet();
    if (s.members == 4)
        item_write_gated(s, plan.pairs, out, terms);
    else
        item_write(s, locals, c, out, squares, terms, keep);
    chain_meet(); /* activations and terms have been read; and who polls is in the way of who writes */
}

#endif
