/* chain/grid_words.cuh - the types with grids for one row: a lane's codes of 32 columns at a time, in the
 * streaming layout (product/pack.cuh), as grid_unit.cuh has them to the bit, but with fewer operations: one
 * row has no others to share them with. Compiled for the device and for the host.
 *
 * Concepts. Points stand as words of four values, several times over: 32 lanes that read at random meet 3.5
 * times where all read one copy, and twice where each two lanes have one. There are two tables. That of IQ3
 * and IQ2_XXS is 256 *lines* of 256 bytes; an index has the line of its low 8 bits, so that one byte permute
 * makes an address, of the index and the lane's own byte. In a line each of these types that the launch has
 * stands in a *block*, IQ3_S in two, by the bit above: copies side by side, in banks of their own. The points
 * of the other types, more of them and fewer copies, stand one behind the other. A word is: of IQ3 signed
 * bytes, of which, and of their negatives, signs choose bytes; of IQ2 levels, which with their signs choose;
 * of IQ1 signed bytes without the move of levels: ones, which a product of their own adds, are what they are
 * moved by. */
#ifndef DFLASH_CUDA_CHAIN_GRID_WORDS_CUH
#define DFLASH_CUDA_CHAIN_GRID_WORDS_CUH

#include "../product/grid_unit.cuh"
#include "chain_plan.h"

/* Word `at` of the table, bytes: of a device that at CHAIN_GRID_AT in shared memory, known when it is
 * compiled, for any other place would be an addition. page: of the host. */
#define GRID_SHARED 1024 /* where a block's own shared memory begins: what is before is the system's */
MM_HD uint32_t grid_load_word(const uint8_t *page, uint32_t at)
{
#ifdef __CUDA_ARCH__
    uint32_t v;
    (void)page;
    asm("ld.shared.u32 %0, [%1 + %2];" : "=r"(v) : "r"(at), "n"(GRID_SHARED + CHAIN_GRID_AT));
    return v;
#else
    return load_4(page + at);
#endif
}

/* 0, which the assembler does not know (%tid.y is): with it constants stay in registers. As constants it
 * would take operations apart that have room for one alone, and make additions of multiplications, which
 * other units make. */
MM_HD uint32_t grid_none()
{
#ifdef __CUDA_ARCH__
    uint32_t none;
    asm volatile("mov.u32 %0, %%tid.y;" : "=r"(none));
    return none;
#else
    return 0;
#endif
}
/* v * m >> 32: to the right by a multiplication, where m is a power of two that grid_none hides. */
MM_HD uint32_t grid_times(uint32_t v, uint32_t m)
{
#ifdef __CUDA_ARCH__
    return __umulhi(v, m);
#else
    return (uint32_t)((uint64_t)v * m >> 32);
#endif
}
/* (v & mask) | rest. */
MM_HD uint32_t grid_choice(uint32_t v, uint32_t mask, uint32_t rest)
{
#ifdef __CUDA_ARCH__
    uint32_t x;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(x) : "r"(v), "r"(mask), "r"(rest));
    return x;
#else
    return (v & mask) | rest;
#endif
}

/* Four values of a point: word i of the table of all. */
template <uint32_t TYPE> MM_HD uint32_t grid_word(uint32_t levels)
{
    return TYPE == KN_IQ3_S       ? load_pick(0x07050301, 0x0f0d0b09, levels)
           : TYPE == KN_IQ3_XXS   ? load_pick(0x1c140c04, 0x3e342c24, levels)
           : grid_unit<TYPE>::one ? load_pick(0x000800f8, 0, levels)
                                  : levels;
}
/* Where a type stands: of lines its first byte, and the binary logarithm of a block's bytes; else its first
 * byte of all, and that of its copies. */
struct grid_slot {
    uint32_t first, log;
};
/* Bytes of a word's copies side by side, of points of four values or eight. */
template <uint32_t TYPE> MM_HD uint32_t grid_block(const grid_slot &s)
{
    return (chain_grid_lines(TYPE) ? 1u : grid_unit<TYPE>::four ? 4u : 8u) << s.log;
}
/* Where a lane's copy begins, of the first point. */
template <uint32_t TYPE> MM_HD uint32_t grid_lane_at(int lane, const grid_slot &s)
{
    const uint32_t l = (uint32_t)lane;
    return s.first +
           ((grid_unit<TYPE>::four ? 4 * l : 8 * (l / 2) + 4 * (l & 1)) & (grid_block<TYPE>(s) - 1));
}
/* Where word i of the type stands, copy `copy`. */
template <uint32_t TYPE> MM_HD uint32_t grid_word_at(uint32_t i, uint32_t copy, const grid_slot &s)
{
    constexpr bool four = grid_unit<TYPE>::four;
    const uint32_t point = four ? i : i / 2, block = grid_block<TYPE>(s);
    return s.first +
           (chain_grid_lines(TYPE) ? CHAIN_GRID_LINE * (point % 256) + point / 256 * block : point * block) +
           (four ? 4 * copy : 8 * copy + 4 * (i & 1));
}
MM_HD uint32_t grid_turned(uint32_t v, int right)
{
#ifdef __CUDA_ARCH__
    return __funnelshift_r(v, v, (uint32_t)right);
#else
    return right & 31 ? v >> (right & 31) | v << (32 - (right & 31)) : v;
#endif
}

template <uint32_t TYPE> struct grid_words {
    using unit = grid_unit<TYPE>;
    static constexpr grid_layout y = grid_layout_of(TYPE);
    static constexpr bool lines = chain_grid_lines(TYPE);
    const uint8_t *st, *table;
    int own;
    uint32_t mine, block;       /* the lane's byte of a line; bytes of a block */
    uint32_t high[3], sign[4];  /* high: turned so that place 0 is where an address or index has it */
    uint32_t order, less, down; /* bytes as they are; -1; 2^16 */
    unpack_words index;         /* of four steps */

    MM_HD_MEMBER void open(const uint8_t *at, int lane, const uint8_t *page, const grid_slot &s,
                           uint32_t none)
    {
        st = at, table = page, own = unit::four ? lane : lane / 2;
        mine = grid_lane_at<TYPE>(lane, s), block = grid_block<TYPE>(s);
        order = 0x32103210 ^ none, less = 0xffffffff ^ none, down = 0x10000 ^ none;
        UNPACK_UNROLL for (int k = 0; k < unit::planes; k++) high[k] =
            load_4(st + 4 * y.high + (unit::four ? 128 : 64) * k + 4 * own);
        if (unit::planes > 1) { /* two bits of even places, then of odd ones */
            const uint32_t first = high[0], second = high[1];
            high[0] = (first & 0x55555555) | (second << 1 & 0xaaaaaaaa);
            high[1] = (first >> 1 & 0x55555555) | (second & 0xaaaaaaaa);
        }
        UNPACK_UNROLL for (int k = 0; k < unit::planes; k++) high[k] =
            grid_turned(high[k], -(lines ? (int)s.log : 8) - (k == 2 ? 2 : 0));
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
        UNPACK_UNROLL for (int s = 0; s < 2; s++)
        {
            const int t = 2 * (j % 2) + s;
            uint32_t signs = 0; /* of rows g and g + 8, at bit 2 of nibbles */
            if (!unit::one) signs = t < 2 ? sign[j / 2] << (2 - t) : sign[j / 2] >> (t - 2);
            if (unit::four) signs = grid_choice(signs, 0x44444444, order);
            UNPACK_UNROLL for (int hi = 0; hi < 2; hi++)
            {
                const int place = 4 * j + 2 * s + hi;
                uint32_t at = lines ? load_pick(index.w[j % 4], mine, 0x5504 + 0x10 * (2 * s + hi))
                                    : load_pick(index.w[j % 4], 0, 0x4440 + 2 * s + hi);
                const uint32_t bit = lines ? block : 256;
                if (unit::planes == 1) at = grid_choice(grid_turned(high[0], place), bit, at);
                if (unit::planes > 1) at = grid_choice(grid_turned(high[hi], place - hi), 3 * bit, at);
                if (unit::planes > 2) at = grid_choice(grid_turned(high[2], place), 4 * bit, at);
                if (!lines) at = at * block + mine;
                const uint32_t word = grid_load_word(table, at), some = hi ? grid_times(signs, down) : signs;
                if (unit::one) {
                    const uint32_t w = TYPE == KN_IQ1_M ? sign[0] << (31 - place) : sign[hi] << (28 - 4 * j);
                    a[2 * s + hi] = word;
                    ones[2 * s + hi] = (uint32_t)((int32_t)w >> 31) | 0x01010101;
                } else if (unit::four) {
                    a[2 * s + hi] = load_pick(word, word * less + 0x01010100u, some);
                } else {
                    a[2 * s + hi] = load_pick(0x002b1908, 0x00d5e7f8, grid_choice(some, 0x4444, word));
                }
            }
        }
    }
    /* What is stored of the scales of columns 32 (2 q) and 32 (2 q + 1) of row `row`; of types with one every
     * 16 columns of those of 128 part + 16 (2 q) and 16 columns behind. A scale is twice that and 1. */
    static MM_HD_MEMBER void scales(int v[2], const uint8_t *st, int row, int q, int part)
    {
        uint32_t w;
        if (TYPE == KN_IQ1_M) {
            const unpack_words u = load_8(st + 4 * y.scale + 8 * row);
            w = (part ? u.w[0] >> 24 | u.w[1] << 8 : u.w[0]) >> 6 * q;
            v[0] = (int)(w & 7), v[1] = (int)(w >> 3 & 7);
            return;
        }
        constexpr uint32_t mask = TYPE == KN_IQ1_S ? 7 : 15;
        w = load_4(st + 4 * y.scale + (unit::halves ? 8 * row + 4 * part : 4 * row)) >> 8 * q;
        v[0] = (int)(w & mask), v[1] = (int)(w >> 4 & mask);
    }
    /* d of row g + 8 hi, an f16 in the low bits. */
    static MM_HD_MEMBER uint32_t d_of(const uint8_t *st, int g, int hi)
    {
        if (TYPE == KN_IQ1_M) return load_4(st + 4 * y.scale + 8 * (g + 8 * hi) + 4) >> 16;
        return load_4(st + 4 * y.d + 4 * g) >> 16 * hi & 0xffff;
    }
};

#endif
