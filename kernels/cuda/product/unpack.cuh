/* unpack.cuh - values from the streaming layout (pack.cuh): what pack.cuh put together, taken apart again.
 * Compiled for the device (many_panel.cu) and for the host, where test/gpu/check/test_layout.cc compares it
 * with the reference codecs.
 *
 * unpack_unit<TYPE>(u, lane, put): lane `lane` of a warp takes its share of the unit at u: it calls put(hi,
 * column, v) with v[4] = the values of columns column .. column + 3 of row lane / 4 + 8 * hi, hi 0 and 1, for
 * 8 quads of 32 columns, times `by`, a power of two. magic is 2^23 as a float, from where the compiler does
 * not see it where that counts: an instruction holds one constant. FROM, TO: of the 8 runs of 32 columns
 * of a unit of 256, those alone; even. LATE: the codes of a run are read when it is its turn, where all of
 * them at once would let the compiler make all values first. Each value is one float: scale times code is
 * exact, so a type with minimums rounds once, in the fused multiply-add. */
#ifndef DFLASH_CUDA_UNPACK_CUH
#define DFLASH_CUDA_UNPACK_CUH

#include "grid_unit.cuh"

#include <math.h>
#ifdef __CUDACC__
#include <cuda_fp16.h>
#endif

MM_HD float unpack_f16(uint32_t h)
{
#ifdef __CUDA_ARCH__
    return __half2float(__ushort_as_half((unsigned short)(h & 0xffff)));
#else
    return kn_f16_to_f32((uint16_t)h);
#endif
}
MM_HD float unpack_bits(uint32_t w)
{
    float f;
    memcpy(&f, &w, 4);
    return f;
}
/* A code below 2^23 less `offset`, without a conversion, exact. */
MM_HD float unpack_code(uint32_t code, int offset)
{
    return unpack_bits(code | 0x4b000000) - (float)(8388608 + offset);
}
/* Element e (0..3) of a quad of MXFP4. */
MM_HD uint32_t quad_table(uint32_t w, int hi, int e)
{
    return w >> (4 * (e / 2) + 8 * (e % 2) + 16 * hi) & 15u;
}

/* Byte i of a word as a float, less `offset`. */
MM_HD float unpack_byte(uint32_t w, int i, int offset, uint32_t magic = 0x4b000000)
{
#ifdef __CUDA_ARCH__
    return unpack_bits(__byte_perm(w, magic, 0x7440 + i)) - (float)(8388608 + offset);
#else
    (void)magic;
    return unpack_code(w >> 8 * i & 255, offset);
#endif
}
/* 2^-p, p a constant below 24. */
MM_HD float unpack_down(int p)
{
    return 1.0f / (float)(1 << p);
}

/* The four codes of half e % 2 stand in a word at bits p = 4 hi + 8 (e / 2), and are left there: code times
 * 2^p, which is exact, meets its scale times 2^-p. */
template <uint32_t T, int FROM, int TO, bool LATE, class F>
MM_HD void unpack_k(const uint8_t *u, int lane, F &put, float by, uint32_t magic)
{
    const int g = lane / 4;
    constexpr bool six = T == KN_Q6_K;
    constexpr int records = T == KN_Q5_K ? 2560 : six ? 3072 : 2048;
    constexpr int bits = T == KN_Q4_K ? 4 : T == KN_Q5_K ? 5 : 6, offset = six ? 32 : 0;
    unpack_words rec[2], codes[4], high[2] = {};
    float d[2], dmin[2] = {0, 0};
    for (int hi = 0; hi < 2; hi++) rec[hi] = load_16(u + records + 16 * (g + 8 * hi));
    const uint32_t dd = six ? load_4(u + 3328 + 4 * g) : 0;
    UNPACK_UNROLL for (int part = FROM / 2; part < TO / 2 && !LATE; part++) codes[part] =
        load_16(u + 512 * part + 16 * lane);
    if (T == KN_Q5_K || (six && FROM < 4)) high[0] = load_16(u + 2048 + 16 * lane);
    if (six && TO > 4) high[1] = load_16(u + 2560 + 16 * lane);
    UNPACK_UNROLL for (int hi = 0; hi < 2; hi++)
    {
        uint32_t *r = rec[hi].w;
        if (six) {
            d[hi] = by * unpack_down(4 * hi) * unpack_f16(dd >> 16 * hi);
            continue;
        }
        /* 12 bytes, to 8 scales and 8 minimums of 6 bits */
        const uint32_t sc = r[1], m = r[2], both = r[3];
        d[hi] = by * unpack_down(4 * hi) * unpack_f16(r[0]), dmin[hi] = by * unpack_f16(r[0] >> 16);
        r[0] = sc & 0x3f3f3f3f, r[1] = (both & 0x0f0f0f0f) | (sc >> 2 & 0x30303030);
        r[2] = m & 0x3f3f3f3f, r[3] = (both >> 4 & 0x0f0f0f0f) | (m >> 2 & 0x30303030);
    }
    UNPACK_UNROLL for (int j = FROM; j < TO; j++)
    {
        float scale[2], low[2] = {0, 0};
        if (LATE) {
            const unpack_words two = load_8(u + 512 * (j / 2) + 16 * lane + 8 * (j % 2));
            codes[j / 2].w[2 * (j % 2)] = two.w[0], codes[j / 2].w[2 * (j % 2) + 1] = two.w[1];
        }
        UNPACK_UNROLL for (int hi = 0; hi < 2 && !six; hi++)
        {
            scale[hi] = d[hi] * unpack_byte(rec[hi].w[j / 4], j % 4, 0, magic);
            low[hi] = -(dmin[hi] * unpack_byte(rec[hi].w[2 + j / 4], j % 4, 0, magic));
        }
        UNPACK_UNROLL for (int s = 0; s < 2; s++)
        {
            const uint32_t w = codes[j / 2].w[2 * (j % 2) + s], word[2] = {w, w >> 16};
            const uint32_t above = T == KN_Q5_K ? high[0].w[j / 2] : high[j / 4].w[j % 4];
            const int at = T == KN_Q5_K ? j % 2 + 2 * s : 2 * s; /* where they begin above: to bit 4 */
            const uint32_t top[2] = {above << (4 - at), above >> (12 + at)};
            UNPACK_UNROLL for (int hi = 0; hi < 2; hi++)
            {
                float v[4];
                if (six) scale[hi] = d[hi] * unpack_byte(rec[hi].w[j / 2], 2 * (j % 2) + s, 128, magic);
                UNPACK_UNROLL for (int e = 0; e < 4; e++)
                {
                    const int p = 4 * hi + 8 * (e / 2);
                    uint32_t c = (word[e % 2] & (15u << p)) | magic;
                    if (T != KN_Q4_K) c |= top[e % 2] & (((1u << bits) - 16) << p);
                    const float code = unpack_bits(c) - (float)(8388608 + (offset << p)),
                                unit = scale[hi] * unpack_down(p - 4 * hi);
                    v[e] = six ? unit * code : fmaf(unit, code, low[hi]);
                }
                put(hi, 32 * j + 16 * s + 4 * (lane % 4), v);
            }
        }
    }
}

/* Codes of IQ4_NL and IQ4_XS of rows g and g + 8, four columns each, to bytes: what they stand for and 128.
 */
MM_HD void unpack_iq4(uint32_t a[2], uint32_t w)
{
    const uint32_t in = w & 0x77777777, which = 0x32103210 | (w >> 1 & 0x44444444);
    UNPACK_UNROLL for (int hi = 0; hi < 2; hi++) a[hi] =
        load_pick(load_pick(0x3f2d1801, 0x766a5d4f, in >> 16 * hi),
                  load_pick(0xa6998d81, 0xf1d9c5b5, in >> 16 * hi), which >> 16 * hi);
}

template <int FROM, int TO, class F>
MM_HD void unpack_iq4_xs(const uint8_t *u, int lane, F &put, float by, uint32_t magic)
{
    const int g = lane / 4, q = lane % 4;
    const unpack_words rec[2] = {load_8(u + 2048 + 8 * g), load_8(u + 2112 + 8 * g)};
    UNPACK_UNROLL for (int j = FROM; j < TO; j++)
    {
        const unpack_words codes = load_8(u + 512 * (j / 2) + 16 * lane + 8 * (j % 2));
        UNPACK_UNROLL for (int s = 0; s < 2; s++)
        {
            uint32_t a[2];
            unpack_iq4(a, codes.w[s]);
            UNPACK_UNROLL for (int hi = 0; hi < 2; hi++)
            {
                const uint32_t sc = (rec[hi].w[1] >> 4 * j & 15) | (rec[hi].w[0] >> (16 + 2 * j) & 3) << 4;
                const float scale = by * unpack_f16(rec[hi].w[0]) * unpack_code(sc, 32);
                float v[4];
                UNPACK_UNROLL for (int e = 0; e < 4; e++) v[e] =
                    scale * unpack_byte(a[hi], 2 * (e % 2) + e / 2, 128, magic);
                put(hi, 32 * j + 16 * s + 4 * q, v);
            }
        }
    }
}

template <uint32_t T, int FROM, int TO, class F>
MM_HD void unpack_23(const uint8_t *u, int lane, F &put, float by)
{
    constexpr bool three = T == KN_Q3_K;
    const int g = lane / 4, q = lane % 4;
    const uint32_t dd = load_4(u + (three ? 1728 + 4 * g : 1280 + 8 * g)),
                   mm = three ? 0 : load_4(u + 1284 + 8 * g);
    const unpack_words high = three ? load_16(u + 1024 + 16 * lane) : unpack_words{};
    UNPACK_UNROLL for (int j = FROM; j < TO; j++) /* 32 columns, two sub-blocks */
    {
        const uint32_t codes = load_4(u + 512 * (j / 4) + 16 * lane + 4 * (j % 4));
        UNPACK_UNROLL for (int s = 0; s < 2; s++) UNPACK_UNROLL for (int hi = 0; hi < 2; hi++)
        {
            const int at = 2 * j + s, byte = 8 * (at % 4), row = g + 8 * hi;
            float scale, low = 0, v[4];
            if (three) {
                const uint8_t *r = u + 1536 + 12 * row;
                const uint32_t sc = (load_4(r + 4 * (at / 4 % 2)) >> byte >> 4 * (at / 8) & 15) |
                                    (load_4(r + 8) >> byte >> 2 * (at / 4) & 3) << 4;
                scale = by * unpack_f16(dd >> 16 * hi) * unpack_code(sc, 32);
            } else {
                const uint32_t sc = load_4(u + 1024 + 16 * row + 4 * (at / 4)) >> byte;
                scale = by * unpack_f16(dd >> 16 * hi) * unpack_code(sc & 15, 0);
                low = -(by * unpack_f16(mm >> 16 * hi) * unpack_code(sc >> 4 & 15, 0));
            }
            UNPACK_UNROLL for (int e = 0; e < 4; e++)
            {
                const int bit = 2 * s + 8 * (e / 2) + 4 * hi + 16 * (e % 2);
                uint32_t c = codes >> bit & 3u;
                if (three) c |= (high.w[j / 2] >> (bit + j % 2) & 1u) << 2;
                v[e] = three ? scale * unpack_code(c, 4) : fmaf(scale, unpack_code(c, 0), low);
            }
            put(hi, 32 * j + 16 * s + 4 * q, v);
        }
    }
}

template <uint32_t T, int FROM, int TO, class F>
MM_HD void unpack_grid(const uint8_t *u, int lane, F &put, float by)
{
    grid_unit<T> unit;
    unit.open(u, lane, grid_all());
    const float d[2] = {by * grid_down<T>() * unpack_f16(unit.d_of(0)),
                        by * grid_down<T>() * unpack_f16(unit.d_of(1))};
    UNPACK_UNROLL for (int j = FROM / 4 * 4; j < TO; j++)
    {
        uint32_t a[4];
        if (j < FROM && j % 4) continue;
        unit.step(j, a);
        if (j < FROM) continue;
        UNPACK_UNROLL for (int s = 0; s < 2; s++) UNPACK_UNROLL for (int hi = 0; hi < 2; hi++)
        {
            const float scale = d[hi] * unpack_code((uint32_t)unit.scale_of(j, s, hi), 0);
            float v[4];
            UNPACK_UNROLL for (int e = 0; e < 4; e++) v[e] =
                scale * unpack_byte(a[2 * s + hi] ^ 0x80808080, e, 128);
            put(hi, 32 * j + 16 * s + 4 * (lane % 4), v);
        }
    }
}

/* Nibbles are left where they stand, as K types' are; bytes are picked. */
template <uint32_t T, class F>
MM_HD void unpack_32(const uint8_t *u, int lane, F &put, float by, uint32_t magic)
{
    constexpr bool five = T == KN_Q5_0 || T == KN_Q5_1, minimum = T == KN_Q4_1 || T == KN_Q5_1;
    constexpr int scales = T == KN_Q8_0 ? 512 : five ? 320 : 256;
    constexpr int offset = T == KN_Q4_0 ? 8 : T == KN_Q5_0 ? 16 : 0;
    const int g = lane / 4, q = lane % 4;
    const unpack_words codes = T == KN_Q8_0 ? load_16(u + 16 * lane) : load_8(u + 8 * lane),
                       dm = minimum         ? load_8(u + scales + 8 * g)
                            : T == KN_MXFP4 ? unpack_words{{load_2(u + scales + 2 * g), 0, 0, 0}}
                                            : unpack_words{{load_4(u + scales + 4 * g), 0, 0, 0}};
    const uint32_t high = five ? load_2(u + 256 + 2 * lane) : 0;
    UNPACK_UNROLL for (int s = 0; s < 2; s++) UNPACK_UNROLL for (int hi = 0; hi < 2; hi++)
    {
        const float d = by * (T == KN_MXFP4 ? unpack_bits(mxfp4_scale(dm.w[0] >> 8 * hi & 255))
                                            : unpack_f16(dm.w[0] >> 16 * hi)),
                    m = minimum ? by * unpack_f16(dm.w[1] >> 16 * hi) : 0.0f;
        float v[4];
        const uint32_t w = codes.w[T == KN_Q8_0 ? 2 * s + hi : s], word[2] = {w, w >> 16};
        uint32_t a[2] = {w ^ 0x80808080, w ^ 0x80808080};
        if (T == KN_IQ4_NL) unpack_iq4(a, w);
        const uint32_t bytes = a[hi];
        UNPACK_UNROLL for (int e = 0; e < 4; e++)
        {
            const int p = 4 * hi + 8 * (e / 2), from = 2 * s + e / 2 + 8 * (e % 2) - 8 * (e / 2) - 4;
            if (T == KN_Q8_0 || T == KN_IQ4_NL) {
                v[e] = d * unpack_byte(bytes, 2 * (e % 2) + e / 2, 128, magic);
                continue;
            }
            if (T == KN_MXFP4) {
                v[e] = d * (float)mm_mxfp4(quad_table(w, hi, e));
                continue;
            }
            uint32_t c = (word[e % 2] & (15u << p)) | magic;
            if (five) c |= (from < 0 ? high << -from : high >> from) & (16u << p);
            const float code = unpack_bits(c) - (float)(8388608 + (offset << p)), unit = d * unpack_down(p);
            v[e] = minimum ? fmaf(unit, code, m) : unit * code;
        }
        put(hi, 16 * s + 4 * q, v);
    }
}

template <uint32_t T, class F> MM_HD void unpack_float(const uint8_t *u, int lane, F &put, float by)
{
    const int q = lane % 4;
    UNPACK_UNROLL for (int s = 0; s < 2; s++)
    {
        unpack_words a = load_16(u + (T == KN_F32 ? 1024 : 512) * s + 16 * lane), b = a;
        if (T == KN_F32) b = load_16(u + 1024 * s + 512 + 16 * lane);
        UNPACK_UNROLL for (int hi = 0; hi < 2; hi++)
        {
            float v[4];
            UNPACK_UNROLL for (int e = 0; e < 4; e++)
            {
                if (T == KN_F32) {
                    v[e] = by * unpack_bits((e < 2 ? a : b).w[2 * hi + e % 2]);
                    continue;
                }
                const uint32_t x = a.w[hi + 2 * (e / 2)] >> 16 * (e % 2);
                v[e] = by * (T == KN_F16 ? unpack_f16(x & 0xffff) : unpack_bits(x << 16));
            }
            put(hi, 16 * s + 4 * q, v);
        }
    }
}

template <uint32_t T, int FROM = 0, int TO = 8, bool LATE = false, class F>
MM_HD void unpack_unit(const uint8_t *u, int lane, F &&put, float by = 1.0f, uint32_t magic = 0x4b000000)
{
    if constexpr (T == KN_Q4_K || T == KN_Q5_K || T == KN_Q6_K)
        unpack_k<T, FROM, TO, LATE>(u, lane, put, by, magic);
    else if constexpr (T == KN_IQ4_XS)
        unpack_iq4_xs<FROM, TO>(u, lane, put, by, magic);
    else if constexpr (T == KN_Q2_K || T == KN_Q3_K)
        unpack_23<T, FROM, TO>(u, lane, put, by);
    else if constexpr (grid_has(T))
        unpack_grid<T, FROM, TO>(u, lane, put, by);
    else if constexpr (T == KN_F32 || T == KN_F16 || T == KN_BF16)
        unpack_float<T>(u, lane, put, by);
    else
        unpack_32<T>(u, lane, put, by, magic);
}

#endif
