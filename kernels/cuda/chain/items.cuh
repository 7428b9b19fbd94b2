/* chain/items.cuh - a step of a chain whose weights are not of the K types: blocks of 32 columns with a scale
 * (Q8_0, Q4_0, Q5_0, IQ4_NL; in forms of their own Q4_1, Q5_1 and MXFP4), F16, BF16 and F32. Arithmetic: that
 * of mm_int.cuh (frag_32), mm_frag.cuh and prep.cu, to the bit.
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
 *
 * Wins over launches: a layer of 8B in Q8_0 79.4 to 54.2 us. dflash-bench rows -m 8b-q8_0.gguf --device
 * cuda --rows 1 --context 512 */
#ifndef DFLASH_CUDA_CHAIN_ITEMS_CUH
#define DFLASH_CUDA_CHAIN_ITEMS_CUH

#include "attend.cuh"
#include "far_ring.cuh"
#include "items_rows.cuh"
#include "pair.cuh"

/* ---- where things are ---- */

DEV int items_here(const chain_step &s)
{
    return groups_here(s) * s.members * (s.spread ? 1 : s.slices);
}
/* Panel `local` of this block: its matrix, its panel there. */
DEV const chain_matrix &item_panel(const chain_step &s, int local, int *panel)
{
    const int two = s.members / 2;
    int at = group_at(s, local >> two), j = 0;
    if (s.spread) at = item_divide(at, s.per_slices);
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
    return type == KN_Q8_0    ? 0
           : type == KN_BF16  ? 1
           : type == KN_F16   ? 2
           : type == KN_Q4_0  ? 3
           : type == KN_Q5_0  ? 4
           : type == KN_F32   ? 6
           : type == KN_Q4_1  ? 7
           : type == KN_Q5_1  ? 8
           : type == KN_MXFP4 ? 9
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
    const int local = s.spread ? item : item_divide(item, s.per_slices),
              slice = s.spread ? slice_at(s, local) : item - local * s.slices;
    int panel;
    const chain_matrix &m = item_panel(s, local, &panel);
    const int in = part * s.per, unit = slice * s.slice_units + in,
              n = 16 * panel < m.n_out ? max(min(s.per, min(s.slice_units - in, s.units - unit)), 0) : 0;
    chain_source c = {};
    c.p = m.w + ((size_t)panel * (size_t)s.units + (size_t)unit) * (size_t)m.unit_bytes;
    c.bytes = (uint32_t)(n * m.unit_bytes);
    c.kind = item_code(m.type) | (uint32_t)(ITEM_UNITS * n);
    c.unit = unit | (local * ((int)s.terms / 4) + (s.spread ? 0 : 16 * slice)) << 16;
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
        g.pairs = groups_here(s);
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
        const int unit = block_of(s) - s.rest, in_turn = unit < 0 ? unit + (int)gridDim.x : unit;
        return in_turn < s.rounds * s.n_kv;
    }
};
using far_items = items_beside<far_keys>;
using code_items = items_beside<code_keys>;
/* The same with Q2_K, Q3_K, Q4_1, Q5_1 and MXFP4. */
template <class ITEMS> struct low_beside : ITEMS {
    static constexpr bool low = true;
};
using net_items = items_beside<net_steps>;
/* Steps of other types among many of K types: attention and early outputs as K types have them. */
using pair_items = items_beside<near_keys>;
/* The same with types with grids and with low ones. */
template <class ITEMS> struct grids_beside : low_beside<ITEMS> {
    static constexpr bool grids = true;
};

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
#define ITEM_MMA(TYPE)                                                                                       \
    asm("mma.sync.aligned.m16n8k32.row.col.s32." TYPE ".s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "      \
        "{%10,%11,%12,%13};"                                                                                 \
        : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])                                                     \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(i.of[0]), "r"(i.of[1]),          \
          "r"(i.of[2]), "r"(i.of[3]))
    if (SIGNED)
        ITEM_MMA("s8");
    else
        ITEM_MMA("u8");
}
/* fin (row g + 8 (lane % 2)) += n units (a multiple of 8) of a type with blocks of 32. q, aux: the row's at
 * the first unit, q at 16 bytes of the lane's quarter. */
template <int BITS, uint32_t TABLE = KN_F32, bool MIN = false>
DEV void item_32(float &fin, const uint8_t *st, int n, const uint8_t *q, const uint8_t *aux, int lane,
                 const item_bits &bits)
{
    constexpr bool table = TABLE != KN_F32, is_signed = table || BITS == 8; /* IQ4_NL, MXFP4 */
    constexpr int unit_bytes = 64 * BITS + (MIN ? 64 : TABLE == KN_MXFP4 ? 16 : 32), left = BITS == 5 ? 4 : 3;
    const uint8_t *scales =
        st + 64 * BITS +
        (TABLE == KN_MXFP4 ? lane / 4 * 2 + lane % 2 : lane / 4 * (MIN ? 8 : 4) + lane % 2 * 2);
    const bool second = lane & 1;
#pragma unroll 1
    for (; n > 0; n -= 8, st += 8 * unit_bytes, scales += 8 * unit_bytes, q += 256, aux += 64) {
#pragma unroll
        for (int u = 0; u < 8; u++) {
            const uint4 b = lds16(q + 32 * (u & ~1)), x = lds16(aux + 8 * (u & ~1)); /* of two units */
            const uint8_t *const at = scales + u * unit_bytes;
            const float d =
                TABLE == KN_MXFP4 ? __uint_as_float(mxfp4_scale(*at)) : __half2float(*(const __half *)at);
            const float da = __uint_as_float(u % 2 ? x.z : x.x);
            /* minus the codes' offset: 16 or 8 times the sum */
            const int offset = is_signed || MIN ? 0 : (int)((u % 2 ? x.w : x.y) << left);
            uint32_t a[4];
            int c[4];
            if (table) {
                const uint2 w = lds8(st + u * unit_bytes + 8 * lane);
                table_words<TABLE>(a, a + 1, w.x);
                table_words<TABLE>(a + 2, a + 3, w.y);
            } else {
                frag_32<false>::codes<BITS>(a, st + u * unit_bytes, lane);
            }
            item_mma<is_signed>(c, a, u % 2 ? b.z : b.x, u % 2 ? b.w : b.y, bits);
            fin = __fmaf_rn(of_bits((second ? c[2] : c[0]) + offset), __fmul_rn(d, da), fin);
            if (MIN) { /* the block's minimum times its sum */
                const __half m = *(const __half *)(at + 4);
                const int sum = -(int)(u % 2 ? x.w : x.y);
                fin = __fmaf_rn(__half2float(m), __fmul_rn(da, __int2float_rn(sum)), fin);
            }
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

/* The same of F32, whose planes are those of BF16; a sum of 64 columns at a time. */
DEV void item_float_32(float fin[2], const uint8_t *st, int n, const uint8_t *b, int plane, int lane)
{
#pragma unroll 1
    for (; n > 0; n -= 2, st += 4096, b += 128) {
        float acc[4];
        zero(acc);
#pragma unroll
        for (int u = 0; u < 2; u++) {
            uint4 x[3];
#pragma unroll
            for (int p = 0; p < 3; p++) x[p] = lds16(b + p * plane + 64 * u);
#pragma unroll
            for (int s = 0; s < 2; s++) {
                uint32_t w[3][4];
#pragma unroll
                for (int part = 0; part < 2; part++) {
                    const uint4 v = lds16(st + 2048 * u + 1024 * s + 512 * part + 16 * lane);
                    uint32_t first[3], second[3];
                    item_planes<true>(first, __uint_as_float(v.x), __uint_as_float(v.y));
                    item_planes<true>(second, __uint_as_float(v.z), __uint_as_float(v.w));
#pragma unroll
                    for (int p = 0; p < 3; p++) w[p][2 * part] = first[p], w[p][2 * part + 1] = second[p];
                }
#pragma unroll
                for (int p = 2; p >= 0; p--) /* smallest products first */
#pragma unroll
                    for (int k = 2 - p; k >= 0; k--)
                        mma<true>(acc, w[k], s ? x[p].z : x[p].x, s ? x[p].w : x[p].y);
            }
        }
        fin[0] = __fadd_rn(fin[0], acc[0]);
        fin[1] = __fadd_rn(fin[1], acc[2]);
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
        if (s.kind != CHAIN_F16)
            item_slice<true>(s, slice, parts, u, w, act, squares);
        else
            item_slice<false>(s, slice, parts, u, w, act, squares);
        __syncwarp();
    }
};

/* Sums of a tile of n units, of columns from unit `unit` on. b: at 16 bytes of the lane's quarter. */
template <bool LOW>
DEV void item_tile(item_blocks *, uint32_t code, float fin[2], const uint8_t *st, int n, int unit, int units,
                   const uint8_t *b, const uint8_t *aux, int lane, const item_bits &bits)
{
    b += 32 * unit, aux += 8 * unit;
    if (code == 0)
        item_32<8>(fin[0], st, n, b, aux, lane, bits);
    else if (code == 3)
        item_32<4>(fin[0], st, n, b, aux, lane, bits);
    else if (code == 4)
        item_32<5>(fin[0], st, n, b, aux, lane, bits);
    else if (LOW && code == 7)
        item_32<4, KN_F32, true>(fin[0], st, n, b, aux, lane, bits);
    else if (LOW && code == 9)
        item_32<4, KN_MXFP4>(fin[0], st, n, b, aux, lane, bits);
    else if (LOW && code == 8)
        item_32<5, KN_F32, true>(fin[0], st, n, b, aux, lane, bits);
    else
        item_32<4, KN_IQ4_NL>(fin[0], st, n, b, aux, lane, bits);
}
template <bool>
DEV void item_tile(item_slices *, uint32_t code, float fin[2], const uint8_t *st, int n, int unit, int units,
                   const uint8_t *b, const uint8_t *, int lane, const item_bits &)
{
    if (code == 6)
        item_float_32(fin, st, n, b + 64 * unit, 64 * units, lane);
    else if (code == 1)
        item_float<true>(fin, st, n, b + 64 * unit, 64 * units, lane);
    else
        item_float<false>(fin, st, n, b + 64 * unit, 64 * units, lane);
}
/* Sums of the block's items, to terms [local panel][slice][16 rows]. */
template <class COLUMNS, bool LOW>
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
            bar_wait(r.full + at, (unsigned)number / CHAIN_TILES & 1);
            const uint4 tile = r.tile[at];
            to = tile.z >> 16;
            item_tile<LOW>((COLUMNS *)nullptr, tile.w % ITEM_UNITS, fin, r.ring + tile.x,
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
        bar_wait(r.full + number % CHAIN_TILES, number / CHAIN_TILES & 1);
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

/* Sums of slices as they are to be added, to where whoever adds them looks: [slice][columns of the step]. */
DEV void item_write_sums(const chain_step &s, int locals, float *sums, const float *squares,
                         const float *terms)
{
    const int lane = threadIdx.x % 32, last = s.n_m - 1,
              columns = s.m[last].column + s.m[last].n_out - s.m[0].column;
    const float rms = s.kind == CHAIN_32 ? 1.0f : item_inverse_rms(s, squares);
#pragma unroll 1
    for (int local = 2 * warp_of() + lane / 16; local < locals; local += 2 * CHAIN_WARPS) {
        int panel;
        const chain_matrix &m = item_panel(s, local, &panel);
        const int row = 16 * panel + lane % 16, slice = slice_at(s, local);
        float y = terms[local * ((int)s.terms / 4) + lane % 16];
        if (s.kind != CHAIN_32) y = __fmul_rn(y, __fmul_rn(squares[ITEM_INVERSE + slice], rms));
        if (row < m.n_out) value_put(sums + slice * columns + m.column - s.m[0].column + row, y);
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
template <bool LOW>
DEV void chain_items(const chain_step &s, const chain_plan &plan, const chain_room &r, bool first,
                     const float *in, float *out, uint8_t *act, float *squares, float *terms, float *keep)
{
    const int locals = plan.pairs * s.members, mine = warp_of();
    item_output c = {};
    if (s.members < 4 && !s.spread && 2 * mine < locals) c = item_output_of(s, locals, mine);
    if (s.kind == CHAIN_32) {
        if (s.norm && s.units > 8 * CHAIN_NORM_BLOCKS * CHAIN_WARPS)
            item_norm_wide(s, first, in, act, squares);
        else if (s.norm)
            item_norm_32<CHAIN_NORM_BLOCKS>(s, first, in, act, squares);
        else if (s.flags & CHAIN_ROUNDED)
            item_row_rounded(s, in, act);
        else
            item_row_32(s, first, in, act);
        item_meet(s);
        item_multiply<item_blocks, LOW>(s, plan, r, first, in, act, squares, terms);
    } else {
        if (!s.own) {
            if (s.kind != CHAIN_F16)
                item_row_float<true>(s, first, in, act, squares);
            else
                item_row_float<false>(s, first, in, act, squares);
            chain_meet();
        }
        item_multiply<item_slices, LOW>(s, plan, r, first, in, act, squares, terms);
    }
    chain_meet();
    if (s.spread)
        item_write_sums(s, locals, out + s.spread, squares, terms);
    else if (s.members == 4)
        item_write_gated(s, plan.pairs, out, terms);
    else
        item_write(s, locals, c, out, squares, terms, keep);
    chain_meet(); /* activations and terms have been read; and who polls is in the way of who writes */
}

#endif
