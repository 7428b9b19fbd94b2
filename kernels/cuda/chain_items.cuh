/* chain_items.cuh - a step of a chain whose weights are not of the K types: blocks of 32 columns with a scale
 * (Q8_0, Q4_0, Q5_0, IQ4_NL), F16 and BF16. Arithmetic: that of mm_int.cuh (frag_32), mm_frag.cuh and
 * prep.cu, to the bit.
 *
 * Concepts. Sums of these types are float from the first unit of 32 columns (or pair of units) on, so a
 * warp keeps them for a whole slice: an *item* is a slice of a panel. A block has `pairs_here` groups of
 * s.members panels (gated: gate and up; a single matrix: neighbours; else one panel), each of s.items items.
 * Items go to the warps in rounds of CHAIN_WARPS; an item's tiles (s.per units of one panel) are as many for
 * all items of a step: tile t of a block is part t / W % s.parts of item t % W of round t / W / s.parts. So
 * a warp has every CHAIN_WARPS-th tile, as with the K types. Tiles of items that are not there, or are
 * shorter, have no bytes.
 *
 * Every column of the mma's B is the row. Activations of a row:
 *   CHAIN_32   [units][32] int8 and [units] of {float scale, minus the sum}, as prep_block.cuh orders them
 *   floats     [planes][units][32] of 16 bits, as prep.cu orders them; squares: of each slice the sum of
 *              squares, then (from ITEM_INVERSE on) what its sums are to be multiplied by
 * Bound: bytes; eight units of Q8_0 (4,352 bytes) are 173 instructions of a warp, eight of BF16 (8 KB) 120.
 */
#ifndef DFLASH_CUDA_CHAIN_ITEMS_CUH
#define DFLASH_CUDA_CHAIN_ITEMS_CUH

#include "chain_unit.cuh"

#define ITEM_INVERSE 64 /* of CHAIN_BLOCKS squares */
static_assert(ITEM_INVERSE >= MM_SLICES_MAX && ITEM_INVERSE + MM_SLICES_MAX <= CHAIN_BLOCKS, "no room");

/* ---- where things are ---- */

DEV int item_divide(int v, uint32_t by) /* by: chain_divisor */
{
    return by ? (int)__umulhi((unsigned)v, by) : v;
}
DEV int item_rounds(const chain_step &s)
{
    return (pairs_here(s) * s.items + CHAIN_WARPS - 1) / CHAIN_WARPS;
}
DEV int item_tiles(const chain_step &s)
{
    return item_rounds(s) * CHAIN_WARPS * s.parts;
}
/* The panel of a group of this block, and its matrix. */
DEV const chain_matrix &item_panel(const chain_step &s, int group, int member, int *panel)
{
    int at = (int)blockIdx.x + group * (int)gridDim.x, j = 0;
    if (s.gated) {
        *panel = at;
        return s.m[member];
    }
    while (at >= s.m[j].pair_end) j++;
    if (j) at -= s.m[j - 1].pair_end;
    *panel = s.members * at + member;
    return s.m[j];
}
struct item_at {
    int local, slice, unit, units; /* local: panel of the block; units 0: there is no such item */
    uint32_t type;
    const uint8_t *w; /* its first unit */
    int unit_bytes;
};
DEV item_at item_of(const chain_step &s, int e)
{
    item_at i = {};
    if (e >= pairs_here(s) * s.items) return i;
    const int group = item_divide(e, s.per_items), r = e - group * s.items, two = s.members - 1;
    int panel;
    const chain_matrix &m = item_panel(s, group, r & two, &panel);
    i.local = s.members * group + (r & two);
    i.slice = r >> two;
    i.unit = i.slice * s.slice_units;
    i.units = 16 * panel < m.n_out ? min(s.slice_units, s.units - i.unit) : 0;
    i.type = m.type;
    i.unit_bytes = m.unit_bytes;
    i.w = m.w + ((size_t)panel * (size_t)s.units + (size_t)i.unit) * (size_t)m.unit_bytes;
    return i;
}
/* Tile t: its bytes, and how many. */
DEV const uint8_t *item_tile(const chain_step &s, int t, uint32_t *bytes)
{
    const int turn = t / CHAIN_WARPS, round = item_divide(turn, s.per_parts), part = turn - round * s.parts;
    const item_at i = item_of(s, CHAIN_WARPS * round + t % CHAIN_WARPS);
    const int n = min(s.per, i.units - part * s.per);
    *bytes = n > 0 ? (uint32_t)(n * i.unit_bytes) : 0;
    return i.w + (size_t)(part * s.per) * (size_t)i.unit_bytes;
}

/* ---- the row, for blocks of 32 ---- */

/* Blocks `block` and, with two, `block` + CHAIN_WARPS of 256 columns (v: columns 8 lane ..): rounded as
 * store_block rounds. */
DEV void item_round(uint8_t *act, int units, int block, bool two, const float v[2][8])
{
    const int lane = threadIdx.x % 32;
    uint32_t top[2] = {0, 0}, w[2][2];
    float d[2];
    int sum[2];
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int i = 0; i < 8; i++) top[n] = max(top[n], __float_as_uint(v[n][i]) & 0x7fffffff);
#pragma unroll
    for (int o = 1; o < 4; o *= 2)
#pragma unroll
        for (int n = 0; n < 2; n++) top[n] = max(top[n], __shfl_xor_sync(0xffffffff, top[n], o));
#pragma unroll
    for (int n = 0; n < 2; n++) {
        const bool odd = top[n] >= 0x7f800000, none = odd || __uint_as_float(top[n]) < 1e-30f;
        const float amax = none ? 1.0f : __uint_as_float(top[n]), inverse = __fdiv_rn(127.0f, amax);
        d[n] = odd ? __uint_as_float(0x7fc00000) : none ? 0.0f : __fdiv_rn(amax, 127.0f);
        w[n][0] = none ? 0 : round_four(v[n], inverse);
        w[n][1] = none ? 0 : round_four(v[n] + 4, inverse);
        sum[n] = __dp4a((int)w[n][0], 0x01010101, __dp4a((int)w[n][1], 0x01010101, 0));
    }
#pragma unroll
    for (int o = 1; o < 4; o *= 2)
#pragma unroll
        for (int n = 0; n < 2; n++) sum[n] += __shfl_xor_sync(0xffffffff, sum[n], o);
#pragma unroll
    for (int n = 0; n < 2; n++) {
        if (n && !two) return;
        const int b = block + n * CHAIN_WARPS;
        uint8_t *q =
            act + 256 * b + 64 * (lane / 8) + 32 * (lane % 2) + 8 * (lane / 4 % 2) + 4 * (lane / 2 % 2);
        *(uint32_t *)q = w[n][0];
        *(uint32_t *)(q + 16) = w[n][1];
        if (lane % 4 == 0)
            *(uint2 *)(act + 32 * units + 64 * b + 2 * lane) =
                make_uint2(__float_as_uint(d[n]), (uint32_t)-sum[n]);
    }
}
/* The row, normed as prepare_row does. */
DEV void item_norm_32(const chain_step &s, bool first, const float *values, uint8_t *act, float *squares)
{
    constexpr int B = CHAIN_NORM_BLOCKS;
    static_assert(B == 2, "two are rounded at a time");
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, blocks = s.units / 8, n_in = 32 * s.units;
    const int n = min(B, (blocks - warp + CHAIN_WARPS - 1) / CHAIN_WARPS);
    const float *p = (first ? s.x : values) + 256 * warp;
    float v[B][8] = {}, w[B][8] = {};
#pragma unroll
    for (int c = 0; c < B; c++)
        if (c < n) load_eight(w[c], s.norm, 256 * (warp + c * CHAIN_WARPS) + 8 * lane, n_in);
    values_ask<B, CHAIN_WARPS>(v, p, n, 0);
    if (!first) values_settle<B, CHAIN_WARPS>(v, p, n);
    CHAIN_STAMP(1);
#pragma unroll
    for (int c = 0; c < B; c++)
        if (c < n) {
            const float ss = block_squares(v[c]);
            if (lane == 0) squares[warp + c * CHAIN_WARPS] = ss;
        }
    chain_meet();
    const float r = norm_factor(s, squares, lane, blocks, n_in);
#pragma unroll
    for (int c = 0; c < B; c++)
#pragma unroll
        for (int i = 0; i < 8; i++) v[c][i] = __fmul_rn(__fmul_rn(v[c][i], r), w[c][i]);
    if (n > 0) item_round(act, s.units, warp, n > 1, v);
}
/* The row as it is: what comes next is asked for before what is there is rounded. */
DEV void item_row_32(const chain_step &s, bool first, const float *values, uint8_t *act)
{
    const int warp = threadIdx.x / 32, blocks = s.units / 8;
    const float *p = first ? s.x : values;
    float v[2][8] = {};
    int n = (blocks - warp + CHAIN_WARPS - 1) / CHAIN_WARPS; /* left */
    values_ask<2, CHAIN_WARPS>(v, p + 256 * warp, n, 0);
#pragma unroll 1
    for (int b = warp; b < blocks; b += 2 * CHAIN_WARPS) {
        float u[2][8];
        if (!first) values_settle<2, CHAIN_WARPS>(v, p + 256 * b, n);
        if (b == warp) CHAIN_STAMP(1);
#pragma unroll
        for (int i = 0; i < 16; i++) u[i / 8][i % 8] = v[i / 8][i % 8];
        const int now = n;
        n -= 2;
        values_ask<2, CHAIN_WARPS>(v, p + 256 * (b + 2 * CHAIN_WARPS), n, 0);
        item_round(act, s.units, b, now > 1, u);
    }
}

/* ---- the row, for floats ---- */

#define ITEM_PARTS 4 /* of 128 columns: a slice, at most */

/* Columns 128 i + 4 lane .. of a slice at p, as values_ask and values_settle have it. */
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
        if (!wait.more(!__all_sync(0xffffffff, there == (1u << ITEM_PARTS) - 1), __LINE__, (unsigned)parts))
            return;
        item_ask(v, p, parts, there);
    }
}
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
template <bool BF16>
DEV void item_row_float(const chain_step &s, bool first, const float *values, uint8_t *act, float *squares)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, whole = 32 * s.slice_units;
    const float *p = (first ? s.x : values) + warp * whole, *norm = s.norm + warp * whole + 4 * lane;
    const auto parts_of = [&](int slice) { return min(s.slice_units, s.units - slice * s.slice_units) / 4; };
    float v[ITEM_PARTS][4] = {};
    if (warp < s.slices) item_ask(v, p, parts_of(warp), 0);
#pragma unroll 1
    for (int slice = warp; slice < s.slices; slice += CHAIN_WARPS) {
        const int parts = parts_of(slice);
        float u[ITEM_PARTS][4], w[ITEM_PARTS][4];
#pragma unroll
        for (int i = 0; i < ITEM_PARTS; i++)
            if (s.norm && i < parts) {
                const float4 f = __ldcg((const float4 *)(norm + 128 * i));
                w[i][0] = f.x, w[i][1] = f.y, w[i][2] = f.z, w[i][3] = f.w;
            }
        if (!first) item_settle(v, p, parts);
        if (slice == warp) CHAIN_STAMP(1);
#pragma unroll
        for (int i = 0; i < 4 * ITEM_PARTS; i++) u[i / 4][i % 4] = v[i / 4][i % 4];
        p += CHAIN_WARPS * whole;
        norm += CHAIN_WARPS * whole;
        if (slice + CHAIN_WARPS < s.slices) item_ask(v, p, parts_of(slice + CHAIN_WARPS), 0);
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

/* fin (rows g and g + 8) += n units (a multiple of 8) of a type with blocks of 32. q, aux: the row's at the
 * first unit, q at 16 bytes of the lane's quarter. */
template <int BITS, bool TABLE>
DEV void item_32(float fin[2], const uint8_t *st, int n, const uint8_t *q, const uint8_t *aux, int lane)
{
    constexpr int unit_bytes = 64 * BITS + 32, left = BITS == 8 ? 7 : BITS == 5 ? 4 : 3;
    const int g = lane / 4;
#pragma unroll 1
    for (; n > 0; n -= 8, st += 8 * unit_bytes, q += 256, aux += 64) {
#pragma unroll
        for (int u = 0; u < 8; u++) {
            const uint4 b = lds16(q + 32 * (u & ~1)); /* of two units */
            const uint2 x = lds8(aux + 8 * u);
            const uint32_t dd = lds4(st + u * unit_bytes + 64 * BITS + 4 * g);
            const float da = __uint_as_float(x.x);
            const int from = MM_BITS_OF + (TABLE ? 0 : (int)(x.y << left));
            uint32_t a[4];
            int c[4];
            if (TABLE) {
                const uint2 w = lds8(st + u * unit_bytes + 8 * lane);
                iq4_words(a, a + 1, w.x);
                iq4_words(a + 2, a + 3, w.y);
                mma_32_signed(c, a, u % 2 ? b.z : b.x, u % 2 ? b.w : b.y, from, from);
            } else {
                frag_32<false>::codes<BITS>(a, st + u * unit_bytes, lane);
                mma_32<false>(c, a, u % 2 ? b.z : b.x, u % 2 ? b.w : b.y, from, from);
            }
            fin[0] = __fmaf_rn(of_bits(c[0]), __fmul_rn(h_low(dd), da), fin[0]);
            fin[1] = __fmaf_rn(of_bits(c[2]), __fmul_rn(h_high(dd), da), fin[1]);
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

/* Sums of the block's items, to terms [local panel][slice][16 rows]. base, lap: as chain_multiply's. */
DEV void item_multiply(const chain_args &a, const chain_step &s, int base, int lap, uint8_t *smem,
                       const uint8_t *act, const float *squares, float *terms)
{
    uint64_t *const full = (uint64_t *)smem, *const empty = full + CHAIN_SLOTS;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, slots = a.slots, rounds = item_rounds(s);
    const bool floats = s.kind != CHAIN_32;
    const float rms = floats ? item_inverse_rms(s, squares) : 1.0f;
    int slot = base + warp;
    if (slot >= slots) slot -= slots, lap++;
#pragma unroll 1
    for (int round = 0; round < rounds; round++) {
        const item_at i = item_of(s, CHAIN_WARPS * round + warp);
        float fin[2] = {0.0f, 0.0f};
        int left = i.units;
        const uint8_t *b = act + (floats ? 64 : 32) * i.unit + 16 * (lane % 4),
                      *aux = act + 32 * s.units + 8 * i.unit;
#pragma unroll 1
        for (int part = 0; part < s.parts; part++) {
            const uint8_t *st = smem + CHAIN_RING + (size_t)slot * a.slot_bytes;
            const int n = min(s.per, left);
            CHAIN_SPENT(50, 0, bar_pass(full + slot, lap & 1));
            if (i.type == KN_Q8_0)
                item_32<8, false>(fin, st, n, b, aux, lane);
            else if (i.type == KN_BF16)
                item_float<true>(fin, st, n, b, 64 * s.units, lane);
            else if (i.type == KN_F16)
                item_float<false>(fin, st, n, b, 64 * s.units, lane);
            else if (i.type == KN_Q4_0)
                item_32<4, false>(fin, st, n, b, aux, lane);
            else if (i.type == KN_Q5_0)
                item_32<5, false>(fin, st, n, b, aux, lane);
            else if (i.type == KN_IQ4_NL)
                item_32<4, true>(fin, st, n, b, aux, lane);
            __syncwarp();
            if (lane == 0) bar_arrive(empty + slot);
            left -= n;
            b += (floats ? 64 : 32) * s.per;
            aux += 8 * s.per;
            slot += CHAIN_WARPS;
            if (slot >= slots) slot -= slots, lap++;
        }
        if (i.units == 0 || lane % 4 > 1) continue;
        float y = lane % 4 ? fin[1] : fin[0];
        if (floats) y = __fmul_rn(y, __fmul_rn(squares[ITEM_INVERSE + i.slice], rms));
        terms[i.local * ((int)s.terms / 4) + 16 * i.slice + 8 * (lane % 4) + lane / 4] = y;
    }
}

/* Outputs from terms: a warp two panels, a lane an output (gated: half of the warp the gates, half the ups).
 */
DEV void item_write(const chain_step &s, float *values, const float *terms, float *keep)
{
    const int lane = threadIdx.x % 32, locals = pairs_here(s) * s.members, two = s.members - 1;
#pragma unroll 1
    for (int in = threadIdx.x / 32; 2 * in < locals; in += CHAIN_WARPS) {
        const int local = min(2 * in + lane / 16, locals - 1), o = 32 * in + lane;
        int panel;
        const chain_matrix &m = item_panel(s, local >> two, s.gated ? 0 : local & two, &panel);
        const int row = 16 * panel + lane % 16;
        const bool mine = row < m.n_out && 2 * in + lane / 16 < locals && (!s.gated || lane < 16);
        float old = 0.0f;
        if (s.old && mine) old = s.kept ? keep[o] : __ldcg(s.old + row);
        const float *p = terms + local * ((int)s.terms / 4) + lane % 16;
        float y = 0.0f;
#pragma unroll 4
        for (int i = 0; i < s.slices; i++) y = __fadd_rn(y, p[16 * i]);
        if (s.gated) {
            const float up = __shfl_down_sync(0xffffffff, y, 16);
            y = __fmul_rn(act_gate(s.act, y), up);
        }
        if (!mine) continue;
        if (s.old) y = __fadd_rn(old, y);
        if (s.pass_on) value_put(values + m.column + row, y);
        if (s.keep) keep[o] = y;
        if (m.out) m.out[row] = y;
    }
}

/* The step, but for who meets behind it. smem: of the block. Called, so that the K types' registers and code
 * stay what they are. */
static __device__ __noinline__ void chain_items(const chain_args &a, const chain_step &s, int base, int lap,
                                                bool first, const float *in, float *out, uint8_t *smem)
{
    float *const squares = (float *)(smem + CHAIN_AT_SQUARES), *const terms = (float *)(smem + a.terms);
    uint8_t *const act = smem + a.act;
    if (s.kind == CHAIN_BF16)
        item_row_float<true>(s, first, in, act, squares);
    else if (s.kind == CHAIN_F16)
        item_row_float<false>(s, first, in, act, squares);
    else if (s.norm)
        item_norm_32(s, first, in, act, squares);
    else
        item_row_32(s, first, in, act);
    chain_meet();
    CHAIN_STAMP(2);
    item_multiply(a, s, base, lap, smem, act, squares, terms);
    CHAIN_STAMP(3);
    chain_meet();
    CHAIN_STAMP(4);
    item_write(s, out, terms, (float *)(smem + CHAIN_AT_KEEP));
}

#endif
