/* chain/products.cuh - a product of K types as a step of a chain: the row it reads, the terms of its tiles,
 * its outputs, and the warp that writes them early. */
#ifndef DFLASH_CUDA_CHAIN_PRODUCTS_CUH
#define DFLASH_CUDA_CHAIN_PRODUCTS_CUH

#include "far_ring.cuh"
#include "grid.cuh"
#include "pair.cuh"
#include "post.cuh"
#include "split.cuh"

/* ---- the row ---- */

/* Places of the launch's values. (Volatile: read again where they are needed, not kept in registers.) */
DEV float *values_of(const chain_args &a, const chain_room &r)
{
    return a.values + (((const volatile uint32_t *)r.state)[1] & 1 ? a.set : 0);
}
/* Where the step's outputs go, among the places of both sets. */
DEV int outputs_at(const chain_args &a, const chain_room &r, const chain_step &s)
{
    return s.at + (((const volatile uint32_t *)r.state)[1] & 1 ? (int)a.set : 0);
}
/* What a step reads. */
DEV const float *row_of(const chain_args &a, const chain_room &r, const chain_step &s, bool first)
{
    return first ? s.x : values_of(a, r) + s.from;
}

/* Forms that have registers to spare: what is kept in these elsewhere ends in local memory, far away. */
/* Where steps of other types are a function that is called (chain_items_apart), which leaves registers to K
 * types. */
template <class KV> constexpr bool items_apart = KV::items && (KV::nets || KV::writer || KV::grids);
template <class KV> constexpr bool has_room = !KV::ring && !KV::wide && (!KV::items || items_apart<KV>);

/* The factor of a norm of the row, as prepare_row adds squares up; over: 1 / width. */
template <class KV> DEV float norm_of(const chain_step &s, const float *squares, float width, float over)
{
    const int lane = threadIdx.x % 32, units = s.units;
    float ss;
    if (units == 16) {
        ss = sum_16(squares);
    } else {
        ss = lane < units ? __fadd_rn(0.0f, squares[lane]) : 0.0f;
#pragma unroll
        for (int o = 16; o; o /= 2) ss = __fadd_rn(ss, __shfl_xor_sync(0xffffffff, ss, o));
    }
    if (!has_room<KV>) return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(ss, width), s.eps)));
    ss = units == 16 ? __fmul_rn(ss, 1.0f / 4096.0f) : post_over(ss, width, over); /* the former is exact */
    return inverse_root(__fadd_rn(ss, s.eps));
}
/* The row, normed as prepare_row does, rounded, in shared memory; where s.own, the warp waits for nobody but
 * for the squares, and each has what itself needs. First: of x, which earlier kernels wrote; else of the
 * values of the step before. B blocks a warp. */
template <int B, class KV>
DEV void chain_norm(const chain_args &a, const chain_room &r, const chain_step &s, bool first, uint8_t *act,
                    float *squares)
{
    const int lane = threadIdx.x % 32, warp = warp_of(), units = s.units,
              n = B > 2 && warp + 2 * CHAIN_WARPS < units ? 3
                  : B > 1 && warp + CHAIN_WARPS < units   ? 2
                  : warp < units                          ? 1
                                                          : 0;
    const float width = (float)(256 * units);
    float over = has_room<KV> ? __frcp_rn(width) : 0.0f;
    if (has_room<KV>) asm volatile("" : "+f"(over)); /* not made while others wait */
    float v[B][8] = {}, w[B][8] = {};
    const float *const p = row_of(a, r, s, first) + 256 * warp;
    static_assert(B <= CHAIN_K_NORM_BLOCKS && B * CHAIN_WARPS <= 32, "a lane a block's squares");
    values_ask<B, CHAIN_WARPS>(v, p, n, 0);
#pragma unroll
    for (int c = 0; c < B; c++)
        if (c < n) load_eight(w[c], s.norm, 256 * (warp + c * CHAIN_WARPS) + 8 * lane, 256 * units);
    if (!first) values_settle<B, CHAIN_WARPS>(v, p, n);
#pragma unroll
    for (int c = 0; c < B; c++) {
        const float ss = block_squares(v[c]);
        if (lane == 0 && c < n) squares[warp + c * CHAIN_WARPS] = ss;
    }
    const bool own = s.own;
    chain_meet();
    const float near = norm_of<KV>(s, squares, width, over);
#pragma unroll
    for (int c = 0; c < B; c++)
#pragma unroll
        for (int i = 0; i < 8; i++) v[c][i] = __fmul_rn(__fmul_rn(v[c][i], near), w[c][i]);
    if (n > 0) chain_round_of<B, has_room<KV>, has_room<KV>>(act, units, warp, CHAIN_WARPS, n, v);
    if (own)
        __syncwarp();
    else
        chain_meet();
}
/* The same without a norm, all of it. */
template <class KV>
DEV void chain_row_load(const chain_args &a, const chain_room &r, const chain_step &s, bool first,
                        uint8_t *act)
{
    constexpr int B = CHAIN_ROW_BLOCKS;
    const int warp = warp_of(), units = s.units;
    const float *const p = row_of(a, r, s, first);
    float v[B][8] = {};
#pragma unroll 1
    for (int b = warp; b < units; b += B * CHAIN_WARPS) {
        const int n = (units - b + CHAIN_WARPS - 1) / CHAIN_WARPS;
        values_ask<B, CHAIN_WARPS>(v, p + 256 * b, n, 0);
        if (!first) values_settle<B, CHAIN_WARPS>(v, p + 256 * b, n);
        chain_round_of<B, has_room<KV>, has_room<KV>>(act, units, b, CHAIN_WARPS, n, v);
    }
    chain_meet();
}

/* ---- sums and results ---- */

/* v, of which nothing is made in advance. (Over long contexts that, or another, would be in local memory, by
 * which a layer takes 2 us more.) */
DEV int made_now(int v)
{
    asm volatile("" : "+r"(v));
    return v;
}

/* The terms of a tile's two units, of TYPE (as chain/ring.cuh has it), the warp's. term: floats to the second
 * panel's; SPLIT: as the tile says. */
template <int TYPE, bool SPLIT>
DEV void chain_term(const uint8_t *ring, const uint4 tile, int sub, int two, int term, chain_lane &l,
                    float *terms)
{
    constexpr int bytes = TYPE == 0   ? 2304
                          : TYPE == 1 ? 2816
                          : TYPE == 2 ? 3360
                          : TYPE == 3 ? 2176
                          : TYPE == 4 ? 1760
                                      : 1344;
    const int lane = threadIdx.x % 32, unit = (int)(tile.z & 0xffff) + sub;
    if (sub >= (int)(tile.w / CHAIN_UNITS & 3)) return;
    const uint8_t *const st = ring + tile.x + sub * bytes;
    const uint32_t apart = two ? 2 * bytes : bytes;
    float y, factor = 0.0f;
    if (TYPE == 0)
        y = chain_45<4>(st, apart, l, (uint32_t)unit);
    else if (TYPE == 1)
        y = chain_45<5>(st, apart, l, (uint32_t)unit);
    else if (TYPE == 2)
        y = chain_6(st, apart, l, (uint32_t)unit, &factor);
    else if (TYPE == 3)
        y = chain_iq4(st, apart, l, (uint32_t)unit, &factor);
    else
        y = chain_23 < TYPE == 4 ? 3 : 2 > (st, apart, l, (uint32_t)unit, &factor);
    if (SPLIT) term = (int)(tile.w / CHAIN_TERM) * 16;
    float *const to =
        terms + (int)(tile.z >> 16) + 16 * unit + 8 * (lane % 2) + lane / 4 + (lane & 2 ? term : 0);
    *to = y;
    if (TYPE >= 2 && TYPE < 5) to[term / 2 - 8] = factor;
}
/* The same of a type with a grid. */
template <uint32_t TYPE, bool SPLIT>
DEV void chain_term_grid(const chain_args &a, const uint8_t *ring, const uint4 tile, int sub, int two,
                         int term, chain_lane &l, float *terms)
{
    constexpr int bytes = 4 * grid_layout_of(TYPE).end;
    const int lane = threadIdx.x % 32, unit = (int)(tile.z & 0xffff) + sub;
    if (sub >= (int)(tile.w / CHAIN_UNITS & 3)) return;
    float factor;
    const float y = chain_grid<TYPE>(ring + tile.x + sub * bytes, two ? 2 * bytes : bytes, l, (uint32_t)unit,
                                     grid_slot_of(a.grids, TYPE), &factor);
    if (SPLIT) term = (int)(tile.w / CHAIN_TERM) * 16;
    float *const to =
        terms + (int)(tile.z >> 16) + 16 * unit + 8 * (lane % 2) + lane / 4 + (lane & 2 ? term : 0);
    *to = y;
    to[term / 2 - 8] = factor;
}
/* Of which: what is a tile's type, less CHAIN_GRID. */
template <bool SPLIT, class... REST>
DEV void chain_term_grids(unsigned what, const chain_args &a, REST &&...rest)
{
    if (what == 0)
        chain_term_grid<KN_IQ3_XXS, SPLIT>(a, rest...);
    else if (what == 2)
        chain_term_grid<KN_IQ2_XXS, SPLIT>(a, rest...);
    else if (what == 1)
        chain_term_grid<KN_IQ3_S, SPLIT>(a, rest...);
    else if (what == 3)
        chain_term_grid<KN_IQ2_XS, SPLIT>(a, rest...);
    else if (what == 4)
        chain_term_grid<KN_IQ2_S, SPLIT>(a, rest...);
    else if (what == 5)
        chain_term_grid<KN_IQ1_S, SPLIT>(a, rest...);
    else
        chain_term_grid<KN_IQ1_M, SPLIT>(a, rest...);
}
/* Terms of the block's tiles, a unit a warp in turn: first those of pairs that all blocks share, which are
 * added meanwhile (chain/split.cuh). rounds: the warp first rounds the columns of each unit, which it has
 * asked for during the one before; the block's own pair then begins with the columns of its pieces, so that
 * each warp finds rounded what it rounded for these. */
template <bool SPLIT, class KV>
DEV void chain_multiply(const chain_args &a, const chain_step &s, const chain_plan &plan, const chain_room &r,
                        bool rounds, bool first, uint8_t *act, float *terms)
{
    const int lane = threadIdx.x % 32, warp = warp_of(), units = s.units, two = s.per - 1,
              on = CHAIN_WARPS >> two, sub = two & warp, term = SPLIT ? 0 : (int)s.terms / 4,
              shared = SPLIT ? plan.split & 0xffff : 0, until = plan.total + plan.tiles;
    const bool split = SPLIT && s.split;
    int number = plan.total + (warp >> two), stop = split ? plan.total + shared : until, mine = warp,
        more = 0; /* SPLIT: behind the last tile before which there is more to round */
    if (SPLIT && rounds) {
        more = until - shared;
        mine += plan.split >> 16;
        if (mine >= units) mine -= units;
    }
    constexpr bool here = has_room<KV>;
    chain_lane l = chain_lane_at(act, units);
    chain_codes_at codes = {};
    if (here) {
        codes = codes_at(shared_at(act), units);
        codes = {kept(codes.codes), kept(codes.s16), kept(codes.s32), kept(codes.scale)};
    }
    float v[1][8] = {};
    const float *row = rounds ? row_of(a, r, s, first) + (SPLIT ? 0 : 256 * warp) : nullptr;
    if (rounds && warp < units) {
        values_ask<1, 1>(v, SPLIT ? row + 256 * mine : row, 1, 0);
        if (!first) values_settle<1, 1>(v, SPLIT ? row + 256 * mine : row, 1);
    }
    if (!SPLIT && !here) asm volatile("" : "+l"(row)); /* it says whether the warp rounds */
    if (lane == 0) r.done[warp] = min(number, stop);
    for (bool begins = split;; begins = false) {
#pragma unroll 1
        for (; number < stop;
             number += KV::wide || (KV::items && !items_apart<KV>) ? CHAIN_WARPS >> made_now(two) : on) {
            if (SPLIT ? more > 0 : here ? rounds : row != nullptr) {
                if (!first) values_settle<1, 1>(v, SPLIT ? row + 256 * mine : row, 1);
                if (here) {
                    chain_codes<1, true> c;
                    c.of(v);
                    codes.put(c, 0, mine, true);
                } else {
                    chain_round_of<1, has_room<KV>, has_room<KV>>(act, units, mine, 1, 1, v);
                }
                __syncwarp();
                mine += CHAIN_WARPS;
                if (SPLIT && mine >= units) mine -= units;
                if (!SPLIT) row += 256 * CHAIN_WARPS;
                if (number + on < (SPLIT ? more : stop))
                    values_ask<1, 1>(v, SPLIT ? row + 256 * mine : row, 1, 0);
            }
            const unsigned slot = (unsigned)number % CHAIN_TILES;
            bar_wait(r.full + slot, (unsigned)number / CHAIN_TILES & 1);
            const uint4 tile = r.tile[slot];
            const unsigned what = tile.w & (KV::grids ? 15 : KV::low ? 7 : 3);
            if (KV::grids && what >= CHAIN_GRID)
                chain_term_grids<SPLIT>(what - CHAIN_GRID, a, r.ring, tile, sub, two, term, l, terms);
            else if (what == 0)
                chain_term<0, SPLIT>(r.ring, tile, sub, two, term, l, terms);
            else if (what == 2)
                chain_term<2, SPLIT>(r.ring, tile, sub, two, term, l, terms);
            else if ((KV::items || KV::low) && what == 3)
                chain_term<3, SPLIT>(r.ring, tile, sub, two, term, l, terms);
            else if (KV::low && what == 4)
                chain_term<4, SPLIT>(r.ring, tile, sub, two, term, l, terms);
            else if (KV::low && what == 5)
                chain_term<5, SPLIT>(r.ring, tile, sub, two, term, l, terms);
            else
                chain_term<1, SPLIT>(r.ring, tile, sub, two, term, l, terms);
            __syncwarp();
            if (lane == 0) r.done[warp] = min(number + on, stop);
        }
        if (!SPLIT) break;
        const int all = ((const volatile chain_plan &)plan).total + ((const volatile chain_plan &)plan).tiles;
        if (stop == all) break;
        const int had = ((const volatile chain_plan &)plan).split & 0xffff;
        if (begins && lane == 0) bar_arrive(r.split); /* all of its terms of pairs that all share */
        if (begins && rounds) {
            stop += had, more = 0; /* what is rounded */
            number = stop - had + (warp >> two);
        } else {
            stop = all, more = rounds ? all : 0;
        }
    }
}

/* Items from `item` on, a warp in turn; c: of the first. */
template <int SHARE>
DEV void chain_write(const chain_step &s, int pairs, int item, chain_output c, unsigned flags, float *values,
                     const uint8_t *act, const float *terms, float *keep)
{
    constexpr int lanes = 1 << SHARE, width = 32 / lanes;
    const int lane = threadIdx.x % 32, j = lane / width, items = pairs << SHARE, units = s.units,
              slices = s.slices, slice_units = s.slice_units;
    const float *const scale = chain_row_at(act, units).scale;
#pragma unroll 1
    while (item < items) {
        const bool mine = c.at >= 0 && lane < (flags & CHAIN_GATED ? width / 2 : width),
                   own = c.bits >> 14 & 1;
        const int term = (int)(c.bits & 0x3fff), o = (int)(c.bits >> 17);
        const chain_matrix &m = s.m[c.bits >> 15 & 3];
        float old = 0.0f;
        if (flags & CHAIN_OLD && mine) old = flags & CHAIN_KEPT ? keep[o] : __ldcg(s.old + c.at);
        float y = 0.0f;
        const int on = own ? 16 : 1;
        constexpr int SOME = SHARE == 2 ? 1 : SHARE ? 2 : 4; /* slices of a lane side by side */
#pragma unroll 1
        for (int slice = 0; slice < slices; slice += lanes * SOME) {
            float fin[SOME];
            const int u = (slice + j) * slice_units, apart = lanes * slice_units;
            const float *p = terms + term + 16 * u, *f = own ? p + 16 * units : scale + u;
#pragma unroll
            for (int k = 0; k < SOME; k++) fin[k] = 0.0f;
            if (SOME == 1) { /* without branches */
                const int n = c.at < 0 ? 0 : min(slice_units, units - u);
#pragma unroll 1
                for (int i = 0; i < slice_units; i += 4, p += 64, f += 4 * on)
#pragma unroll
                    for (int l = 0; l < 4; l++)
                        if (i + l < n) fin[0] = __fmaf_rn(p[16 * l], f[on * l], fin[0]);
            } else if (c.at >= 0 &&
                       (slice + lanes * (SOME - 1)) * slice_units <= units) { /* whole, but for the last */
                const int left = units - u - (SOME - 1) * apart;
#pragma unroll 2
                for (int i = 0; i < slice_units; i++, p += 16, f += on)
#pragma unroll
                    for (int k = 0; k < SOME; k++)
                        if (k < SOME - 1 || i < left)
                            fin[k] = __fmaf_rn(p[16 * k * apart], f[on * k * apart], fin[k]);
            } else {
#pragma unroll
                for (int k = 0; k < SOME; k++) {
                    const int n = c.at < 0 ? 0 : min(slice_units, units - u - k * apart);
#pragma unroll 4
                    for (int i = 0; i < n; i++)
                        fin[k] = __fmaf_rn(p[16 * (k * apart + i)], f[on * (k * apart + i)], fin[k]);
                }
            }
#pragma unroll
            for (int k = 0; k < SOME; k++) {
                if (SOME > 1 && slice + k * lanes >= slices) continue;
#pragma unroll
                for (int l = 0; l < lanes; l++)
                    y = __fadd_rn(y, lanes == 1 ? fin[k]
                                                : __shfl_sync(0xffffffff, fin[k], l * width + lane % width));
            }
        }
        if (flags & CHAIN_GATED) {
            const float up = __shfl_down_sync(0xffffffff, y, width / 2);
            y = __fmul_rn(act_gate(s.act, y), up);
        }
        if (mine) {
            if (flags & CHAIN_OLD) y = __fadd_rn(old, y);
            if (flags & CHAIN_PASS) value_put(values + c.at, y);
            if (flags & CHAIN_KEEPS) keep[o] = y;
            if (flags & CHAIN_OUT && m.out) m.out[c.at - m.column] = y;
        }
        item += CHAIN_WARPS;
        if (item < items) c = output_of(s, pairs, item, SHARE);
    }
}

/* The same of the warp's item, of no more than there are warps, in forms with room: c has its place among
 * those of both sets, and a lane's slices, of 8 at most, are added side by side. */
template <int SHARE>
DEV void chain_write_shared(const chain_args &a, const chain_room &r, const chain_step &s,
                            const chain_output &c, unsigned flags, const uint8_t *act, const float *terms,
                            float *keep)
{
    constexpr int lanes = 1 << SHARE, width = 32 / lanes, SOME = 8 / lanes;
    const int lane = threadIdx.x % 32, j = lane / width, units = s.units, slice_units = s.slice_units,
              term = (int)(c.bits & 0x3fff), u = j * slice_units;
    const bool mine = c.at >= 0 && lane < (flags & CHAIN_GATED ? width / 2 : width), own = c.bits >> 14 & 1;
    if (!__any_sync(0xffffffff, c.at >= 0)) return;
    float old = 0.0f, fin[SOME], y = 0.0f;
    if (flags & CHAIN_OLD && mine)
        old = flags & CHAIN_KEPT ? keep[c.bits >> 17] : __ldcg(s.old + (c.at - outputs_at(a, r, s)));
    const float *p = terms + term + 16 * u, *f = own ? p + 16 * units : chain_row_at(act, units).scale + u;
    const int on = own ? 16 : 1, apart = lanes * slice_units;
#pragma unroll
    for (int k = 0; k < SOME; k++) fin[k] = 0.0f;
#pragma unroll 1
    for (int i = 0; i < slice_units; i += 2, p += 32, f += 2 * on)
#pragma unroll
        for (int l = 0; l < 2; l++)
#pragma unroll
            for (int k = 0; k < SOME; k++)
                if (i + l < min(slice_units, units - u - k * apart))
                    fin[k] = __fmaf_rn(p[16 * (l + k * apart)], f[on * (l + k * apart)], fin[k]);
#pragma unroll
    for (int k = 0; k < SOME; k++)
#pragma unroll
        for (int l = 0; l < lanes; l++) {
            const float one = __shfl_sync(0xffffffff, fin[k], l * width + lane % width);
            if (k * lanes + l < s.slices) y = __fadd_rn(y, one);
        }
    if (flags & CHAIN_GATED) y = __fmul_rn(act_gate(s.act, y), __shfl_down_sync(0xffffffff, y, width / 2));
    if (!mine) return;
    if (flags & CHAIN_OLD) y = __fadd_rn(old, y);
    if (flags & CHAIN_PASS) value_put(a.values + c.at, y);
    if (flags & CHAIN_KEEPS) keep[c.bits >> 17] = y;
    const chain_matrix &m = s.m[c.bits >> 15 & 3];
    if (flags & CHAIN_OUT && m.out) m.out[c.at - outputs_at(a, r, s) - m.column] = y;
}

/* The first of the others that is the warp's. */
template <class KV> DEV int first_late(const chain_step &s, const chain_plan &plan)
{
    return (early_of<KV>(s, plan.pairs) << plan.share) + warp_of();
}
/* Outputs of the pairs that are not early; in forms with room those that one lane adds up. */
template <class KV>
DEV void write_late(const chain_args &a, const chain_room &r, const chain_step &s, const chain_plan &plan,
                    const chain_output &c, unsigned flags, const uint8_t *act, const float *terms,
                    float *keep)
{
    const int item = first_late<KV>(s, plan), /* (again: not kept) */
        share = has_room<KV> ? 0 : ((const volatile chain_plan &)plan).share;
    float *const values = values_of(a, r) + s.at;
    if (share == 2)
        chain_write<2>(s, plan.pairs, item, c, flags, values, act, terms, keep);
    else if (share == 0)
        chain_write<0>(s, plan.pairs, item, c, flags, values, act, terms, keep);
    else
        chain_write<1>(s, plan.pairs, item, c, flags, values, act, terms, keep);
}
/* The warp that writes the outputs of early pairs. */
template <class KV> DEV void chain_early(const chain_args &a, uint8_t *smem)
{
    const chain_room r = chain_room_at(smem);
    const uint8_t *const act = smem + a.act;
    const float *const terms = (const float *)(smem + a.terms);
    float *const keep = (float *)(smem + CHAIN_K_KEEP);
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int i = 0; i < a.count; i++) {
        bar_wait(r.planned + i % CHAIN_DESCS, i / CHAIN_DESCS & 1);
        const chain_step &s = r.steps[i % CHAIN_DESCS];
        const chain_plan &plan = r.plan[i % CHAIN_DESCS];
        const int early = early_of<KV>(s, plan.pairs);
        int until = plan.total + (plan.split & 0xffff);
#pragma unroll 1
        for (int pair = 0; pair < early; pair++) {
            const chain_output c = output_of(s, early, pair, 0);
            until += s.cuts;
            while (__reduce_min_sync(0xffffffff, r.done[lane % CHAIN_WARPS]) < until) __nanosleep(40);
            __threadfence_block();
            chain_write<0>(s, pair + 1, pair, c, s.flags, values_of(a, r) + s.at, act, terms, keep);
        }
        if (early) chain_early_over(false);
        __syncwarp();
        if (lane == 0) bar_arrive(r.read + i % CHAIN_DESCS);
    }
}

#endif
