/* chain/grid_words.cuh - the types with grids for one row: a lane's codes of 32 columns at a time, in the
 * streaming layout (product/pack.cuh), as grid_unit.cuh has them to the bit, but with fewer operations: one
 * row has no others to share them with. Compiled for the device and for the host.
 *
 * Concepts. The table of a type's points is words of four values, as signed bytes, not levels. In shared
 * memory it stands there several times over, copies side by side: 32 lanes that read at random meet 3.5 times
 * in one table, and twice where each two lanes have one. A point is at `point` bytes times its index; a lane
 * begins at its own copy's (`words`; of points of 8 at its half). Signs choose bytes of the word and of its
 * negative. IQ1 has values without the move of levels; ones, which a product of their own adds, are what they
 * are moved by. */
#ifndef DFLASH_CUDA_CHAIN_GRID_WORDS_CUH
#define DFLASH_CUDA_CHAIN_GRID_WORDS_CUH

#include "../product/grid_unit.cuh"
#include "chain_plan.h"

/* A place in a table: of a device an address in shared memory, for no other knows its base without an
 * addition. */
#ifdef __CUDA_ARCH__
using grid_place = uint32_t;
#else
using grid_place = const uint8_t *;
#endif
MM_HD uint32_t grid_load_word(grid_place at)
{
#ifdef __CUDA_ARCH__
    uint32_t v;
    asm("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at));
    return v;
#else
    return load_4(at);
#endif
}

/* v, in a register: as a constant the assembler would take operations apart that have room for one alone, and
 * make additions of multiplications, which other units than these make. (%tid.y is 0, and it can't know
 * that.) */
MM_HD uint32_t grid_constant(uint32_t v)
{
#ifdef __CUDA_ARCH__
    uint32_t none;
    asm("mov.u32 %0, %%tid.y;" : "=r"(none));
    return v ^ none;
#else
    return v;
#endif
}
/* order, and which bytes are to be of the negative. */
MM_HD uint32_t grid_choice(uint32_t signs, uint32_t order)
{
#ifdef __CUDA_ARCH__
    uint32_t v;
    asm("lop3.b32 %0, %1, 0x4444, %2, 0xea;" : "=r"(v) : "r"(signs), "r"(order));
    return v;
#else
    return (signs & 0x4444) | order;
#endif
}
/* v, which is not made again. */
MM_HD uint32_t grid_kept(uint32_t v)
{
#ifdef __CUDA_ARCH__
    asm("" : "+r"(v));
#endif
    return v;
}

/* Four values of a table's points: word i of the table of all. */
template <uint32_t TYPE> MM_HD uint32_t grid_word(uint32_t levels)
{
    return TYPE == KN_IQ3_S       ? load_pick(0x07050301, 0x0f0d0b09, levels)
           : TYPE == KN_IQ3_XXS   ? load_pick(0x1c140c04, 0x3e342c24, levels)
           : grid_unit<TYPE>::one ? load_pick(0x000800f8, 0, levels)
                                  : load_pick(0x002b1908, 0, levels);
}
/* Where the lane's copy of the points begins, of so many: bytes. */
MM_HD uint32_t grid_copy_at(bool four, int lane, uint32_t copies)
{
    const uint32_t l = (uint32_t)lane;
    return four ? 4 * (l & (copies - 1)) : 8 * (l / 2 & (copies - 1)) + 4 * (l & 1);
}

/* Where its word i is in copy `copy`. */
MM_HD uint32_t grid_word_at(bool four, uint32_t i, uint32_t copy, uint32_t copies)
{
    return four ? 4 * (copies * i + copy) : 8 * (copies * (i / 2) + copy) + 4 * (i % 2);
}

template <uint32_t TYPE> struct grid_words {
    using unit = grid_unit<TYPE>;
    static constexpr grid_layout y = grid_layout_of(TYPE);
    const uint8_t *st;
    grid_place words;
    uint32_t point;
    int own;
    uint32_t high[3], sign[4], half[2]; /* half: of a pair of steps, rows g and g + 8 */
    uint32_t order, less;               /* bytes as they are; -1 */
    unpack_words index;                 /* of four steps */

    MM_HD_MEMBER void open(const uint8_t *at, int lane, grid_place table, uint32_t bytes)
    {
        st = at, words = table, point = bytes, own = unit::four ? lane : lane / 2;
        order = grid_constant(0x3210), less = grid_constant(0xffffffff);
        UNPACK_UNROLL for (int k = 0; k < unit::planes; k++) high[k] =
            load_4(st + 4 * y.high + (unit::four ? 128 : 64) * k + 4 * own);
        if (unit::even) {
            uint32_t o[3];
            const uint32_t p = load_4(st + 4 * y.sign + 384 + 4 * (lane / 2));
            UNPACK_UNROLL for (int k = 0; k < 3; k++) o[k] = load_4(st + 4 * y.sign + 128 * k + 4 * lane);
            sign[0] = o[0] & 0x0fff0fff, sign[1] = o[1] & 0x0fff0fff, sign[2] = o[2] & 0x0fff0fff;
            sign[3] = (o[0] >> 12 & 0x000f000f) | (o[1] >> 8 & 0x00f000f0) | (o[2] >> 4 & 0x0f000f00);
            UNPACK_UNROLL for (int k = 0; k < 4; k++)
            {
                const uint32_t w = sign[k];
                sign[k] |= (w << 4 ^ w << 8 ^ w << 12 ^ p << 4 * (3 - k)) & 0xf000f000;
            }
        } else if (TYPE == KN_IQ1_M) {
            sign[0] = load_4(st + 4 * y.sign + 4 * own);
        } else if (!unit::one) {
            const unpack_words w = load_16(st + 4 * y.sign + 16 * lane);
            UNPACK_UNROLL for (int k = 0; k < 4; k++) sign[k] = w.w[k];
        } else { /* IQ1_S: bit 3 of the scales of rows g and g + 8 */
            sign[0] = load_4(st + 4 * y.scale + 4 * (lane / 4));
            sign[1] = load_4(st + 4 * y.scale + 4 * (lane / 4 + 8));
        }
    }
    /* Codes of columns 32 j + 16 s + 4 q .. + 3 of row g + 8 hi: a[2 s + hi]; of IQ1 without the move, ones:
     * that, for each. j: in order, a constant. */
    MM_HD_MEMBER void step(int j, uint32_t a[4], uint32_t ones[4])
    {
        if (j % 4 == 0) index = load_16(st + (unit::four ? 512 : 256) * (j / 4) + 16 * own);
        if (!unit::one && j % 2 == 0) half[0] = sign[j / 2], half[1] = grid_kept(sign[j / 2] >> 16);
        UNPACK_UNROLL for (int s = 0; s < 2; s++) UNPACK_UNROLL for (int hi = 0; hi < 2; hi++)
        {
            const int place = 4 * j + 2 * s + hi, t = 2 * (j % 2) + s;
            uint32_t i = load_pick(index.w[j % 4], 0, 0x4440 + 2 * s + hi);
            UNPACK_UNROLL for (int k = 0; k < unit::planes; k++) i |=
                (place > 8 + k ? high[k] >> ((place - 8 - k) & 31) : high[k] << ((8 + k - place) & 31)) &
                256u << k;
            const uint32_t plus = grid_load_word(words + i * point);
            if (unit::one) {
                const uint32_t w = TYPE == KN_IQ1_M ? sign[0] << (31 - place) : sign[hi] << (28 - 4 * j);
                a[2 * s + hi] = plus;
                ones[2 * s + hi] = (uint32_t)((int32_t)w >> 31) | 0x01010101;
                continue;
            }
            const uint32_t signs = t < 2 ? half[hi] << (2 - t) : half[hi] >> (t - 2);
            a[2 * s + hi] = load_pick(plus, plus * less + 0x01010100u, grid_choice(signs, order));
        }
    }
    /* The scales of columns 32 (2 q) and 32 (2 q + 1) of row `row`; of types with one every 16 columns those
     * of 128 part + 16 (2 q) and 16 columns behind. */
    static MM_HD_MEMBER void scales(int v[2], const uint8_t *st, int row, int q, int part)
    {
        uint32_t w;
        if (TYPE == KN_IQ1_M) {
            const unpack_words u = load_8(st + 4 * y.scale + 8 * row);
            w = (part ? u.w[0] >> 24 | u.w[1] << 8 : u.w[0]) >> 6 * q;
            v[0] = (int)(2 * (w & 7) + 1), v[1] = (int)(2 * (w >> 3 & 7) + 1);
            return;
        }
        constexpr uint32_t mask = TYPE == KN_IQ1_S ? 7 : 15;
        w = load_4(st + 4 * y.scale + (unit::halves ? 8 * row + 4 * part : 4 * row)) >> 8 * q;
        v[0] = (int)(2 * (w & mask) + 1), v[1] = (int)(2 * (w >> 4 & mask) + 1);
    }
    /* d of row g + 8 hi, an f16 in the low bits. */
    static MM_HD_MEMBER uint32_t d_of(const uint8_t *st, int g, int hi)
    {
        if (TYPE == KN_IQ1_M) return load_4(st + 4 * y.scale + 8 * (g + 8 * hi) + 4) >> 16;
        return load_4(st + 4 * y.d + 4 * g) >> 16 * hi & 0xffff;
    }
};

#endif
