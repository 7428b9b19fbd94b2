/* grid_unit.cuh - the types with grids (blocks/grids.h) in the streaming layout: a lane's codes of 32 columns
 * at a time, as the A registers of an mma of 8 bits (columns ascending), and their scales. Compiled for the
 * device and for the host.
 *
 * The points' table: [point][2 (IQ3: 1)] 16 bits, four levels of four bits each: what prmt picks bytes by.
 * Products have it in shared memory, where 32 lanes meet some three conflicts; that of the device is read
 * through the first-level cache. Four values cost a load, and 3 logic operations (IQ3: 5). */
#ifndef DFLASH_CUDA_GRID_UNIT_CUH
#define DFLASH_CUDA_GRID_UNIT_CUH

#include "load.cuh"

#include "../../blocks/grid_sets.h"

/* In the order of grid_first (blocks/grids.h). */
struct alignas(16) grid_table {
    uint16_t iq3_xxs[256], iq3_s[512], iq2_xxs[512], iq2_xs[1024], iq2_s[2048], iq1[4096];
};

/* The numbers that the set holds, in order: their digits of `base`, four bits each. */
constexpr void grid_fill(uint16_t *to, const uint32_t *set, int words, unsigned base, int values)
{
    for (int i = 0; i < words; i++)
        for (unsigned bit = 0; bit < 32; bit++) {
            if (!(set[i] >> bit & 1)) continue;
            unsigned n = 32 * (unsigned)i + bit;
            for (int k = 0; k < values; k += 4) {
                unsigned w = 0;
                for (int e = 0; e < 4; e++, n /= base) w |= n % base << 4 * e;
                *to++ = (uint16_t)w;
            }
        }
}
constexpr grid_table grid_make()
{
    grid_table t = {};
    grid_fill(t.iq2_xxs, set_iq2_xxs, 206, 3, 8);
    grid_fill(t.iq2_xs, set_iq2_xs, 206, 3, 8);
    grid_fill(t.iq2_s, set_iq2_s, 206, 3, 8);
    grid_fill(t.iq1, set_iq1, 206, 3, 8);
    grid_fill(t.iq3_xxs, set_iq3_xxs, 128, 8, 4);
    grid_fill(t.iq3_s, set_iq3_s, 128, 8, 4);
    return t;
}
/* Templates, so that a file of kernels that reads no grid has no copy of 17 KB. */
#ifdef __CUDACC__
template <class TABLE> static __device__ const TABLE grid_on_device = grid_make();
#endif
#ifndef __CUDA_ARCH__
static constexpr grid_table grid_on_host = grid_make();
#endif

/* All of it, in the device's memory or the host's. */
template <class TABLE = grid_table> MM_HD const uint16_t *grid_all()
{
#ifdef __CUDA_ARCH__
    return (const uint16_t *)&grid_on_device<TABLE>;
#else
    return (const uint16_t *)&grid_on_host;
#endif
}

template <uint32_t TYPE> struct grid_unit {
    static constexpr bool four = TYPE == KN_IQ3_XXS || TYPE == KN_IQ3_S,
                          one = TYPE == KN_IQ1_S || TYPE == KN_IQ1_M,
                          even = TYPE == KN_IQ2_XXS || TYPE == KN_IQ2_XS || TYPE == KN_IQ3_XXS,
                          halves = TYPE == KN_IQ2_XS || TYPE == KN_IQ2_S || TYPE == KN_IQ1_M;
    static constexpr int planes = one                                     ? 3
                                  : TYPE == KN_IQ2_S                      ? 2
                                  : TYPE == KN_IQ2_XS || TYPE == KN_IQ3_S ? 1
                                                                          : 0;
    const uint8_t *st;
    const uint16_t *points; /* the type's table */
    int lane;
    uint32_t high[3], sign[4], scale[2][2]; /* scale: of rows g and g + 8 */
    unpack_words index;                     /* of four steps */

    /* Types with signs: those of a lane of the unit at st, word k of [4]. */
    static MM_HD_MEMBER void signs_of(const uint8_t *st, int lane, uint32_t s[4])
    {
        constexpr grid_layout y = grid_layout_of(TYPE);
        if (!even) {
            const unpack_words w = load_16(st + 4 * y.sign + 16 * lane);
            UNPACK_UNROLL for (int k = 0; k < 4; k++) s[k] = w.w[k];
            return;
        }
        uint32_t o[3];
        const uint32_t p = load_4(st + 4 * y.sign + 384 + 4 * (lane / 2));
        UNPACK_UNROLL for (int k = 0; k < 3; k++) o[k] = load_4(st + 4 * y.sign + 128 * k + 4 * lane);
        s[0] = o[0] & 0x0fff0fff, s[1] = o[1] & 0x0fff0fff, s[2] = o[2] & 0x0fff0fff;
        s[3] = (o[0] >> 12 & 0x000f000f) | (o[1] >> 8 & 0x00f000f0) | (o[2] >> 4 & 0x0f000f00);
        UNPACK_UNROLL for (int k = 0; k < 4; k++)
        {
            const uint32_t w = s[k];
            s[k] |= (w << 4 ^ w << 8 ^ w << 12 ^ p << 4 * (3 - k)) & 0xf000f000;
        }
    }
    /* all: grid_all(), or a copy in shared memory. */
    MM_HD_MEMBER void open(const uint8_t *unit, int at, const uint16_t *all)
    {
        constexpr grid_layout y = grid_layout_of(TYPE);
        st = unit, lane = at, points = all + grid_first(TYPE);
        const int g = lane / 4, own = four ? lane : lane / 2;
        UNPACK_UNROLL for (int k = 0; k < planes; k++) high[k] =
            load_4(st + 4 * y.high + (four ? 128 : 64) * k + 4 * own);
        if (TYPE == KN_IQ1_M)
            sign[0] = load_4(st + 4 * y.sign + 4 * own);
        else if (!one)
            signs_of(st, lane, sign);
        UNPACK_UNROLL for (int hi = 0; hi < 2; hi++)
        {
            const unpack_words w = halves
                                       ? load_8(st + 4 * y.scale + 8 * (g + 8 * hi))
                                       : unpack_words{{load_4(st + 4 * y.scale + 4 * (g + 8 * hi)), 0, 0, 0}};
            scale[hi][0] = w.w[0], scale[hi][1] = w.w[1];
        }
    }
    /* The f16 d of row g + 8 hi, in the low bits. */
    MM_HD_MEMBER uint32_t d_of(int hi) const
    {
        constexpr grid_layout y = grid_layout_of(TYPE);
        if (TYPE == KN_IQ1_M) return scale[hi][1] >> 16;
        return load_4(st + 4 * y.d + 4 * (lane / 4)) >> 16 * hi;
    }
    /* Of columns 32 j + 16 s and on, row g + 8 hi. */
    MM_HD_MEMBER int scale_of(int j, int s, int hi) const
    {
        uint32_t v;
        if (TYPE == KN_IQ1_M) {
            const int at = 3 * (2 * j + s);
            v = at == 30  ? (scale[hi][0] >> 30 | scale[hi][1] << 2) & 7
                : at > 30 ? scale[hi][1] >> ((at - 32) & 31) & 7
                          : scale[hi][0] >> (at & 31) & 7;
        } else if (halves) {
            v = scale[hi][j / 4] >> 4 * (2 * (j % 4) + s) & 15;
        } else {
            v = scale[hi][0] >> 4 * j & (TYPE == KN_IQ1_S ? 7 : 15);
        }
        return (int)(2 * v + 1);
    }
    /* Signed codes of columns 32 j + 16 s + 4 q .. + 3 of row g + 8 hi: a[2 s + hi]. j: in order, from a
     * multiple of four on; a constant. */
    MM_HD_MEMBER void step(int j, uint32_t a[4])
    {
        if (j % 4 == 0) index = load_16(st + (four ? 512 : 256) * (j / 4) + 16 * (four ? lane : lane / 2));
        UNPACK_UNROLL for (int s = 0; s < 2; s++) UNPACK_UNROLL for (int hi = 0; hi < 2; hi++)
        {
            const int place = 4 * j + 2 * s + hi, t = 2 * (j % 2) + s;
            uint32_t i = load_pick(index.w[j % 4], 0, 0x4440 + 2 * s + hi);
            UNPACK_UNROLL for (int k = 0; k < planes; k++) i |=
                (place > 8 + k ? high[k] >> ((place - 8 - k) & 31) : high[k] << ((8 + k - place) & 31)) &
                256u << k;
            const uint32_t level = points[four ? i : 2 * i + (uint32_t)(lane % 2)];
            if (one) { /* which way the levels are moved: all of a point's */
                const uint32_t w = TYPE == KN_IQ1_M ? sign[0] << (31 - place) : scale[hi][0] << (28 - 4 * j);
                a[2 * s + hi] =
                    load_pick(0x000901f9, 0x0007fff7, level | ((uint32_t)((int32_t)w >> 31) & 0x4444));
                continue;
            }
            const int from = 16 * hi + t - 2;
            const uint32_t minus =
                (from < 0 ? sign[j / 2] << (-from & 31) : sign[j / 2] >> (from & 31)) & 0x4444;
            if (!four) {
                a[2 * s + hi] = load_pick(0x002b1908, 0x00d5e7f8, level | minus);
                continue;
            }
            const uint32_t plus = TYPE == KN_IQ3_S ? load_pick(0x07050301, 0x0f0d0b09, level)
                                                   : load_pick(0x1c140c04, 0x3e342c24, level);
            a[2 * s + hi] = load_pick(plus, 0x01010100u - plus, 0x3210 | minus);
        }
    }
};
/* What a level and its sign stand for (blocks/grids.h): one value. */
template <uint32_t TYPE> MM_HD int grid_code(uint32_t level, bool minus)
{
    constexpr bool one = TYPE == KN_IQ1_S || TYPE == KN_IQ1_M;
    const int code = TYPE == KN_IQ3_XXS ? (level == 7 ? 62 : 4 + 8 * (int)level)
                     : TYPE == KN_IQ3_S ? 1 + 2 * (int)level
                     : one              ? 8 * (int)level - 8
                     : level == 0       ? 8
                     : level == 1       ? 25
                                        : 43;
    return one ? code + (minus ? -1 : 1) : minus ? -code : code;
}
/* 2^-shift (blocks/grids.h). */
template <uint32_t TYPE> MM_HD float grid_down()
{
    return TYPE == KN_IQ3_S ? 1.0f : TYPE == KN_IQ3_XXS ? 0.25f : 0.125f;
}

#endif
