/* chain/grid.cuh - a pair of units of the types with grids times one row (as chain/pair.cuh has K types), and
 * the tables of points that a block has in shared memory.
 *
 * Concepts. Steps of these types are steps of K types: the same row, terms and factors. Their codes are
 * signed bytes in the order of the file, so the row's, which K types want as columns 0, 2, 1, 3 of four, are
 * turned when a lane takes its column. The two panels are multiplied one after the other: a loop, for there
 * are seven types and code comes cold. Bound: operations, not bytes, nor look-ups
 * (docs/design/one-launch.md). */
#ifndef DFLASH_CUDA_CHAIN_GRID_CUH
#define DFLASH_CUDA_CHAIN_GRID_CUH

#include "grid_words.cuh"
#include "pair.cuh"

/* ---- the table ---- */

DEV grid_slot grid_slot_of(const chain_grids &g, uint32_t type)
{
    const uint32_t s = g.slot[chain_grid_table(type)];
    return {s / CHAIN_GRID_SLOT, s % CHAIN_GRID_SLOT - 1};
}
/* The words of a type, so many copies of each: the warps that multiply, before they meet. */
template <uint32_t TYPE> DEV void grid_fill_type(const chain_grids &g, uint8_t *to)
{
    constexpr int n = grid_count<TYPE>, threads = 32 * CHAIN_WARPS,
                  SOME = n % (4 * threads) == 0   ? 4
                         : n % (2 * threads) == 0 ? 2
                                                  : 1;
    if (!g.slot[chain_grid_table(TYPE)]) return;
    const grid_slot slot = grid_slot_of(g, TYPE);
    const uint32_t copies = grid_block<TYPE>(slot) / 4;
#pragma unroll 1
    for (int i = (int)threadIdx.x; i < n; i += SOME * threads) {
        uint32_t w[SOME];
#pragma unroll
        for (int k = 0; k < SOME; k++) w[k] = grid_word<TYPE>(grid_all(), (uint32_t)(i + k * threads));
#pragma unroll 1
        for (uint32_t c = 0; c < copies; c++)
#pragma unroll
            for (int k = 0; k < SOME; k++) { /* lanes begin with copies of their own: on other banks */
                const uint32_t copy = (c + threadIdx.x) & (copies - 1);
                *(uint32_t *)(to + grid_word_at<TYPE>((uint32_t)(i + k * threads), copy, slot)) = w[k];
            }
    }
}
DEV void grid_fill(const chain_grids &g, uint8_t *smem)
{
    uint8_t *const to = smem + CHAIN_GRID_AT;
    if (shared_at(smem) != GRID_SHARED) chain_fault();
    grid_fill_type<KN_IQ3_XXS>(g, to);
    grid_fill_type<KN_IQ3_S>(g, to);
    grid_fill_type<KN_IQ2_XXS>(g, to);
    grid_fill_type<KN_IQ2_XS>(g, to);
    grid_fill_type<KN_IQ2_S>(g, to);
    grid_fill_type<KN_IQ1_S>(g, to);
}

/* ---- units ---- */

/* The row's codes that the lane multiplies in its column, in the order of the file, of 32 columns. */
template <uint32_t TYPE> DEV uint2 grid_columns(const chain_lane &l, uint32_t u)
{
    uint2 v;
    if (grid_unit<TYPE>::four) {
        asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(l.b_32 + 256 * u));
    } else { /* of four lanes, two have columns 0 to 7 and 16 to 23, two those behind */
        const uint32_t at = l.b_32 - 12 * (threadIdx.x & 1) + 256 * u;
        v = make_uint2(shared_4(at), shared_4(at + 16));
    }
    return make_uint2(__byte_perm(v.x, 0, 0x3120), __byte_perm(v.y, 0, 0x3120));
}
/* The same of types with a scale every 16 columns, of 128 columns: a lane's eight are all of one such run. */
DEV uint2 grid_halves(const chain_lane &l, uint32_t u, int half)
{
    const uint32_t g = threadIdx.x % 32 / 4, odd = threadIdx.x & 1, to = 64 * (g / 4) + 8 * (g / 2 % 2),
                   from = 64 * (g / 2) + 8 * (g % 2), /* of columns 32 (g / 2) on, not 32 g */
        at = l.b_32 + to - from - 12 * odd + 256 * u + 128 * (uint32_t)half,
                   mine = (g & 1) == odd ? 0xffffffff : 0;
    return make_uint2(__byte_perm(shared_4(at), 0, 0x3120) & mine,
                      __byte_perm(shared_4(at + 16), 0, 0x3120) & mine);
}

/* The sums of a panel's unit: rows g and g + 8, of the lane's two columns of each accumulator. */
template <uint32_t TYPE>
DEV void grid_panel(int sum[2], const uint8_t *st, const chain_lane &l, uint32_t u, uint2 v, grid_slot slot,
                    uint32_t none)
{
    using unit = grid_words<TYPE>;
    constexpr bool halves = grid_unit<TYPE>::halves;
    constexpr int parts = halves ? 2 : 1, steps = 8 / parts;
    const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    unit w;
    w.open(st, lane, nullptr, slot, none);
    sum[0] = sum[1] = 0;
#pragma unroll
    for (int part = 0; part < parts; part++) { /* all columns; or 128, of 16 of which are the accumulator's */
        int c[2][4] = {};
        if (halves) v = grid_halves(l, u, part);
#pragma unroll
        for (int i = 0; i < steps; i++) {
            uint32_t a[4];
            w.step(steps * part + i, a);
            /* Zero but in the lane's column, by a multiplication: another unit's than all else. */
            const uint32_t one = halves ? l.one[2 * i % 8] + l.one[(2 * i + 1) % 8] : l.one[i];
            row_mma_signed(c[i % 2], a, v.x * one, v.y * one);
        }
#pragma unroll
        for (int hi = 0; hi < 2; hi++) {
            int d[2];
            unit::scales(d, st, g + 8 * hi, q, part);
            const int low = c[0][2 * hi] + c[1][2 * hi], top = c[0][2 * hi + 1] + c[1][2 * hi + 1];
            sum[hi] += 2 * (low * d[0] + top * d[1]) + (low + top);
        }
    }
}

/* The term's sum; *factor: d * the block's scale. As chain_iq4. */
template <uint32_t TYPE>
DEV float chain_grid(const uint8_t *st, uint32_t bytes, const chain_lane &l, uint32_t u, grid_slot slot,
                     float *factor)
{
    const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
    int sum[4] = {}; /* of the panels' rows g and g + 8 */
    uint2 b = {};
    if (!grid_unit<TYPE>::halves) b = grid_columns<TYPE>(l, u);
    const uint8_t *at = st;
    const uint32_t none = grid_none();
#pragma unroll(grid_words <TYPE>::lines ? 2 : 1)
    for (int p = 0; p < 2; p++, at += bytes) {
        sum[0] = sum[2], sum[1] = sum[3];
        grid_panel<TYPE>(sum + 2, at, l, u, b, slot, none);
    }
    const int v = row_gather(sum, q);
    const uint32_t d = grid_words<TYPE>::d_of(st + (q / 2 ? bytes : 0), g, q % 2);
    *factor = __fmul_rn(__fmul_rn(h_low(d), grid_down<TYPE>()), __uint_as_float(shared_4(l.scale + 4 * u)));
    return __int2float_rn(v);
}

#endif
