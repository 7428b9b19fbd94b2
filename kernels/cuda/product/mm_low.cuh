/* mm_low.cuh - part of mm_int.cuh: units of the types that files of others hold, IQ4_XS, Q2_K and Q3_K, and
 * the table of IQ4_NL. Codes of IQ4 become signed bytes (their values), so nothing is taken off afterwards.
 * Bounds:
 *   IQ4_NL, IQ4_XS   a sub-block of 32: 127 * 127 * 32 < 2^19; 8 of them, scales to 32: < 2^27
 *   Q2_K   16 sub-blocks of 16: 3 * 127 * 16 * 15 * 16 < 2^21; minimums 15 * 2,032 * 16 < 2^19
 *   Q3_K   7 * 127 * 16 * 32 * 16 < 2^23, minus 4 * 32 * 2,032 * 16 < 2^22 */
#ifndef DFLASH_CUDA_MM_LOW_CUH
#define DFLASH_CUDA_MM_LOW_CUH

#include "load.cuh"

/* __byte_perm masks its selector first: an operation more. */
DEV uint32_t pick_bytes(uint32_t low, uint32_t high, uint32_t which)
{
    return load_pick(low, high, which);
}
/* Codes of rows g and g + 8, four columns each, to the bytes they stand for: two tables of eight bytes,
 * chosen by the code's top bit. */
DEV void iq4_words(uint32_t *a0, uint32_t *a1, uint32_t w)
{
    const uint32_t in = w & 0x77777777, which = 0x32103210 | (w >> 1 & 0x44444444);
    *a0 = pick_bytes(pick_bytes(0xbfad9881, 0xf6eaddcf, in), pick_bytes(0x26190d01, 0x71594535, in), which);
    *a1 = pick_bytes(pick_bytes(0xbfad9881, 0xf6eaddcf, in >> 16),
                     pick_bytes(0x26190d01, 0x71594535, in >> 16), which >> 16);
}

/* The same of MXFP4: sizes, then the sign where there is one. */
DEV void mxfp4_words(uint32_t *a0, uint32_t *a1, uint32_t w)
{
    const uint32_t in = w & 0x77777777, which = 0x32103210 | (w >> 1 & 0x44444444);
    *a0 = pick_bytes(pick_bytes(0x03020100, 0x0c080604, in), pick_bytes(0xfdfeff00, 0xf4f8fafc, in), which);
    *a1 = pick_bytes(pick_bytes(0x03020100, 0x0c080604, in >> 16),
                     pick_bytes(0xfdfeff00, 0xf4f8fafc, in >> 16), which >> 16);
}
template <uint32_t TYPE> DEV void table_words(uint32_t *a0, uint32_t *a1, uint32_t w)
{
    if (TYPE == KN_MXFP4)
        mxfp4_words(a0, a1, w);
    else
        iq4_words(a0, a1, w);
}

/* ---- as codes_45 (mm_int.cuh) ---- */

template <int NT, class ACT>
DEV void codes_iq4_xs(int sum[NT][4], float d[2], const uint8_t *st, int lane, ACT act)
{
    const int g = lane / 4;
    const uint2 r0 = lds8(st + 2048 + 8 * g), r1 = lds8(st + 2112 + 8 * g); /* d, high bits; low nibbles */
    d[0] = h_low(r0.x), d[1] = h_low(r1.x);
#pragma unroll
    for (int part = 0; part < 4; part++) {
        const uint4 codes = lds16(st + 512 * part + 16 * lane);
        const uint32_t w[4] = {codes.x, codes.y, codes.z, codes.w};
        uint4 b[NT];
#pragma unroll
        for (int t = 0; t < NT; t++) b[t] = act(t, part);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int j = 2 * part + i;
            uint32_t a[4];
            iq4_words(a, a + 1, w[2 * i]);
            iq4_words(a + 2, a + 3, w[2 * i + 1]);
            const int low = (int)((r0.y >> 4 * j & 15) | (shift(r0.x, -(12 + 2 * j)) & 0x30)) - 32,
                      top = (int)((r1.y >> 4 * j & 15) | (shift(r1.x, -(12 + 2 * j)) & 0x30)) - 32;
#pragma unroll
            for (int t = 0; t < NT; t++) {
                int c[4];
                mma_32<true>(c, a, i ? b[t].z : b[t].x, i ? b[t].w : b[t].y, 0, 0);
                scale_int(sum[t], c, low, top, j == 0);
            }
        }
    }
}

/* Scales of 16 sub-blocks of Q3_K, four a word, signed. k: the word. w: the 12 bytes. */
DEV uint32_t scales_q3(const uint32_t w[3], int k)
{
    const uint32_t low = (k & 1 ? w[1] : w[0]) >> (k & 2 ? 4 : 0) & 0x0f0f0f0f;
    const uint32_t t = (low | (w[2] >> 2 * k & 0x03030303) << 4) ^ 0x20202020;
    return t | (t & 0x20202020) * 6; /* bit 5, the sign, into bits 6 and 7 */
}

/* Q2_K, Q3_K of codes with their offset; sums count from `start`. am: of rows g and g + 8, Q2_K's minimums
 * and Q3_K's scales (signed) of sub-blocks 4 q .. 4 q + 3. dmin: Q2_K. */
template <int BITS, int NT, class ACT>
DEV void codes_23(int sum[NT][4], float d[2], float dmin[2], uint32_t am[2], const uint8_t *st, int lane,
                  ACT act, uint32_t start = 0)
{
    const int g = lane / 4, q = lane % 4;
    uint32_t sc[2][4], high[4] = {0, 0, 0, 0};
#pragma unroll
    for (int hi = 0; hi < 2; hi++) {
        if (BITS == 2) {
            const uint4 r = lds16(st + 1024 + 128 * hi + 16 * g);
            sc[hi][0] = r.x & 0x0f0f0f0f, sc[hi][1] = r.y & 0x0f0f0f0f;
            sc[hi][2] = r.z & 0x0f0f0f0f, sc[hi][3] = r.w & 0x0f0f0f0f;
            am[hi] = lds4(st + 1024 + 128 * hi + 16 * g + 4 * q) >> 4 & 0x0f0f0f0f;
        } else {
            const uint8_t *p = st + 1536 + 12 * (g + 8 * hi);
            const uint32_t r[3] = {lds4(p), lds4(p + 4), lds4(p + 8)};
#pragma unroll
            for (int k = 0; k < 4; k++) sc[hi][k] = scales_q3(r, k);
            am[hi] = scales_q3(r, q);
        }
    }
    const uint32_t dd = lds4(st + (BITS == 2 ? 1280 + 8 * g : 1728 + 4 * g));
    d[0] = h_low(dd), d[1] = h_high(dd);
    if (BITS == 2) {
        const uint32_t mm = lds4(st + 1284 + 8 * g);
        dmin[0] = h_low(mm), dmin[1] = h_high(mm);
    } else {
        const uint4 h = lds16(st + 1024 + 16 * lane);
        high[0] = h.x, high[1] = h.y, high[2] = h.z, high[3] = h.w;
    }
#pragma unroll
    for (int part = 0; part < 4; part++) {
        const uint2 pairs = lds8(st + 512 * (part / 2) + 16 * lane + 8 * (part % 2));
        uint4 b[NT];
#pragma unroll
        for (int t = 0; t < NT; t++) b[t] = act(t, part);
#pragma unroll
        for (int e = 0; e < 4; e++) { /* 16 columns each */
            const int j = 4 * part + e, s = e % 2, i = e / 2;
            const uint32_t w = i ? pairs.y : pairs.x;
            uint32_t a0 = shift(w, -2 * s) & 0x03030303, a1 = shift(w, -2 * s - 4) & 0x03030303;
            if (BITS == 3) {
                a0 |= shift(high[part], 2 - (2 * s + i)) & 0x04040404;
                a1 |= shift(high[part], -2 - (2 * s + i)) & 0x04040404;
            }
            const int low = signed_byte(sc[0][part], e), top = signed_byte(sc[1][part], e);
#pragma unroll
            for (int t = 0; t < NT; t++) {
                int c[4];
                mma_16<false>(c, a0, a1, e == 0 ? b[t].x : e == 1 ? b[t].y : e == 2 ? b[t].z : b[t].w);
                scale_int(sum[t], c, low, top, j == 0, start);
            }
        }
    }
}

#endif
