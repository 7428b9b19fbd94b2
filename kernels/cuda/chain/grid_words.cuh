/* chain/grid_words.cuh - the types with grids for one row: a lane's codes of 32 columns at a time, in the
 * streaming layout (product/pack.cuh), as grid_unit.cuh has them to the bit, but with fewer operations: one
 * row has no others to share them with. Compiled for the device and for the host.
 *
 * Concepts. A point stands as one word, several times over. There are two tables. That of IQ3 and IQ2_XXS is
 * 256 *lines* of 256 bytes; an index has the line of its low 8 bits, so that one byte permute makes an
 * address, of the index and the lane's own byte. In a line each of these types that the launch has stands in
 * a *block*, IQ3_S in two, by the bit above: copies side by side, in banks of their own. The points of the
 * other types, more of them and fewer copies, stand one behind the other.
 *
 * A word of IQ3 is four signed bytes, of which, and of their negatives, signs choose bytes. One of IQ2 and
 * IQ1 is eight levels of four bits, which with their signs choose: a lane takes whole points, so that each is
 * looked up once. The layout has four values of a point a lane: an even lane takes points 0 and 1 of 32
 * columns' four, for both, an odd one 2 and 3, and gets the other four signs from the other lane.
 *
 * What counts are operations of the logic unit, 1.8 clocks of a scheduler each; a high product would be 2.7,
 * a product 0.75 (docs/speed/decode.md). */
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

/* Word i of a type's table, of what the table of all has: four values, or eight levels. */
template <uint32_t TYPE> MM_HD uint32_t grid_word(const uint16_t *all, uint32_t i)
{
    const uint16_t *const levels = all + grid_first(TYPE);
    return TYPE == KN_IQ3_S     ? load_pick(0x07050301, 0x0f0d0b09, levels[i])
           : TYPE == KN_IQ3_XXS ? load_pick(0x1c140c04, 0x3e342c24, levels[i])
                                : levels[2 * i] | (uint32_t)levels[2 * i + 1] << 16;
}
template <uint32_t TYPE>
constexpr int grid_count = (grid_end(TYPE) - grid_first(TYPE)) / (grid_unit<TYPE>::four ? 1 : 2);
/* Where a type stands: of lines its first byte, and the binary logarithm of a block's bytes; else its first
 * byte of all, and that of its copies. */
struct grid_slot {
    uint32_t first, log;
};
/* Bytes of a word's copies side by side. */
template <uint32_t TYPE> MM_HD uint32_t grid_block(const grid_slot &s)
{
    return (chain_grid_lines(TYPE) ? 1u : 4u) << s.log;
}
/* Where a lane's copy begins, of the first point. */
template <uint32_t TYPE> MM_HD uint32_t grid_lane_at(int lane, const grid_slot &s)
{
    return s.first + (4 * (uint32_t)lane & (grid_block<TYPE>(s) - 1));
}
/* Where the word of point i of the type stands, copy `copy`. */
template <uint32_t TYPE> MM_HD uint32_t grid_word_at(uint32_t i, uint32_t copy, const grid_slot &s)
{
    const uint32_t block = grid_block<TYPE>(s);
    return s.first + (chain_grid_lines(TYPE) ? CHAIN_GRID_LINE * (i % 256) + i / 256 * block : i * block) +
           4 * copy;
}
/* Of byte `place` of an index word and of lows, which are below 128, the address in lines. */
MM_HD uint32_t grid_line_at(uint32_t index, uint32_t lows, int place)
{
#ifdef __CUDA_ARCH__
    return load_pick(index, lows,
                     0xcc04 + 0x11 * (uint32_t)place); /* c: the sign of byte 0 of lows, four times */
#else
    return (index >> 8 * place & 255) << 8 | (lows >> 8 * place & 255);
#endif
}
MM_HD uint32_t grid_turned(uint32_t v, int right)
{
#ifdef __CUDA_ARCH__
    return __funnelshift_r(v, v, (uint32_t)right);
#else
    return right & 31 ? v >> (right & 31) | v << (32 - (right & 31)) : v;
#endif
}

/* What lane ^ 1 has of v. */
MM_HD uint32_t grid_other(uint32_t v)
{
#ifdef __CUDA_ARCH__
    return __shfl_xor_sync(0xffffffff, v, 1);
#else
    return v;
#endif
}

template <uint32_t TYPE> struct grid_words {
    using unit = grid_unit<TYPE>;
    static constexpr grid_layout y = grid_layout_of(TYPE);
    static constexpr bool lines = chain_grid_lines(TYPE);
    const uint8_t *st, *table;
    int own;
    uint32_t mine, block;       /* the lane's byte of a line; bytes of a block */
    uint32_t high[3];           /* turned so that place 0 is where an address or index has it */
    uint32_t sign[4], whole[8]; /* whole: of rows g and g + 8 in turn, eight values */
    uint32_t pick[2];           /* of an index word, rows g and g + 8 */
    uint32_t order, less;       /* bytes as they are; -1 */
    unpack_words index;         /* of four steps */

    MM_HD_MEMBER void open(const uint8_t *at, int lane, const uint8_t *page, const grid_slot &s,
                           uint32_t none)
    {
        const int odd = lane % 2;
        st = at, table = page, own = unit::four ? lane : lane / 2;
        mine = grid_lane_at<TYPE>(lane, s), block = grid_block<TYPE>(s);
        order = 0x32103210 ^ none, less = 0xffffffff ^ none;
        UNPACK_UNROLL for (int hi = 0; hi < 2; hi++) pick[hi] =
            (lines ? 0x5504 : 0x4440) + (lines ? 16 : 1) * (uint32_t)(2 * odd + hi);
        UNPACK_UNROLL for (int k = 0; k < unit::planes; k++) high[k] =
            load_4(st + 4 * y.high + (unit::four ? 128 : 64) * k + 4 * own);
        if (unit::planes > 1) { /* two bits of even places, then of odd ones */
            const uint32_t first = high[0], second = high[1];
            high[0] = (first & 0x55555555) | (second << 1 & 0xaaaaaaaa);
            high[1] = (first >> 1 & 0x55555555) | (second & 0xaaaaaaaa);
        }
        if (TYPE == KN_IQ3_S) mine *= 0x01010101; /* in every byte */
        if (!lines)                               /* a lane's places are two of every four */
            UNPACK_UNROLL for (int k = 0; k < unit::planes; k++) high[k] =
                grid_turned(high[k], 2 * odd - 8 - (k == 2 ? 2 : 0));
        if (TYPE == KN_IQ1_M) {
            sign[0] = load_4(st + 4 * y.sign + 4 * own) << (2 - 2 * odd);
        } else if (unit::one) { /* IQ1_S: bit 3 of the scales of rows g and g + 8 */
            sign[0] = load_4(st + 4 * y.scale + 4 * (lane / 4));
            sign[1] = load_4(st + 4 * y.scale + 4 * (lane / 4 + 8));
        } else {
            unit::signs_of(st, lane, sign);
        }
        if (unit::four || unit::one) return;
        /* The other four values of the lane's points are signed in the other lane's words. */
        uint32_t other[4];
#ifdef __CUDA_ARCH__
        if (!unit::even)
            unit::signs_of(st, lane ^ 1, other);
        else
            UNPACK_UNROLL for (int k = 0; k < 4; k++) other[k] = grid_other(sign[k]);
#else
        unit::signs_of(st, lane ^ 1, other);
#endif
        const uint32_t halves_of = odd ? 0x1054 : 0x5410, twice = 2u - (uint32_t)odd;
        UNPACK_UNROLL for (int k = 0; k < 8; k++) whole[k] =
            load_pick(sign[k / 2], other[k / 2], halves_of + 0x2222 * (k & 1)) * twice;
    }
    /* Types of eight values: codes of the lane's point of 32 columns, 16 (lane % 2) + 8 (lane % 4 / 2) and
     * on, of row g + 8 hi: a[hi], and four columns on a[2 + hi]. IQ3: of columns 32 j + 16 s + 4 q .. + 3:
     * a[2 s + hi]. j: in order, a constant. */
    MM_HD_MEMBER void step(int j, uint32_t a[4])
    {
        if (j % 4 == 0) index = load_16(st + (unit::four ? 512 : 256) * (j / 4) + 16 * own);
        if (unit::four)
            four(j, a);
        else
            eight(j, a);
    }
    MM_HD_MEMBER void four(int j, uint32_t a[4])
    {
        /* IQ3_S: a byte a place: the lane's, with the bit above an index's eight as its block. */
        const uint32_t lows =
            TYPE == KN_IQ3_S ? (((high[0] >> 4 * j & 15) * 0x204081) & 0x01010101) * block + mine : mine;
        UNPACK_UNROLL for (int s = 0; s < 2; s++)
        {
            const int t = 2 * (j % 2) + s;
            /* of rows g and g + 8, at bit 2 of nibbles */
            const uint32_t signs =
                grid_choice(t < 2 ? sign[j / 2] << (2 - t) : sign[j / 2] >> (t - 2), 0x44444444, order);
            UNPACK_UNROLL for (int hi = 0; hi < 2; hi++)
            {
                const uint32_t at = TYPE == KN_IQ3_S
                                        ? grid_line_at(index.w[j % 4], lows, 2 * s + hi)
                                        : load_pick(index.w[j % 4], lows, 0x5504 + 0x10 * (2 * s + hi));
                const uint32_t word = grid_load_word(table, at), some = hi ? signs >> 16 : signs;
                a[2 * s + hi] = load_pick(word, word * less + 0x01010100u, some);
            }
        }
    }
    MM_HD_MEMBER void eight(int j, uint32_t a[4])
    {
        constexpr uint32_t plus = unit::one ? 0x000901f9 : 0x002b1908,
                           minus = unit::one ? 0x0007fff7 : 0x00d5e7f8;
        UNPACK_UNROLL for (int hi = 0; hi < 2; hi++)
        {
            const int place = 4 * j + hi;
            uint32_t at = load_pick(index.w[j % 4], lines ? mine : 0, pick[hi]), sign_at;
            if (!lines && unit::planes == 1) at = grid_choice(grid_turned(high[0], place), 256, at);
            if (unit::planes > 1) at = grid_choice(grid_turned(high[hi], place - hi), 768, at);
            if (unit::planes > 2) at = grid_choice(grid_turned(high[2], place), 1024, at);
            if (!lines) at = at * block + mine;
            if (unit::one) {
                const uint32_t w = TYPE == KN_IQ1_M ? sign[0] << (29 - place) : sign[hi] << (28 - 4 * j);
                sign_at = (uint32_t)((int32_t)w >> 31);
            } else {
                sign_at = j % 2 ? whole[2 * (j / 2) + hi] >> 1 : whole[2 * (j / 2) + hi] << 1;
            }
            const uint32_t some = grid_choice(sign_at, 0x44444444, grid_load_word(table, at));
            a[hi] = load_pick(plus, minus, some);
            a[2 + hi] = load_pick(plus, minus, some >> 16);
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
