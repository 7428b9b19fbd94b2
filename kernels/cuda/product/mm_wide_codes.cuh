/* mm_wide_codes.cuh - mm_wide.cuh's factors A: codes of a unit times their integer scales, as low and high
 * bytes in registers.
 *
 * Q4_K, Q5_K: the scale is 8 h + l, bytes are code * l and code * h, at most 31 * 7; four at once by one
 * multiplication. Others: |P| = |code * scale| is Q6_K 4,096, IQ4_XS 4,064, Q3_K 128, in 16 bits: its low
 * byte, unsigned, and its high byte, signed (types with grids: 1,922). Q2_K: 45, a low byte alone. Sums of
 * 256 columns: low below 2^23 (255 times 127 times 256), weight times high below 2^29. */
#ifndef DFLASH_CUDA_MM_WIDE_CODES_CUH
#define DFLASH_CUDA_MM_WIDE_CODES_CUH

#include "mm_int.cuh"

/* ---- factors A: of step j (32 columns) low and high bytes of codes times scales, in mma.sync's order ----
 */

/* Of two words of 16-bit products, those of a word of codes. */
DEV void wide_bytes(uint32_t *low, uint32_t *high, uint32_t even, uint32_t odd)
{
    *low = pick_bytes(even, odd, 0x6240);
    *high = pick_bytes(even, odd, 0x7351);
}
/* Products of four codes (unsigned bytes) that have `offset` added, with a signed scale. */
DEV void wide_signed(uint32_t *low, uint32_t *high, uint32_t codes, int scale, int offset)
{
    const uint32_t start = 0x80008000u - (uint32_t)(scale * offset) * 0x10001u;
    wide_bytes(low, high, pick_bytes(codes, 0, 0x4240) * (uint32_t)scale + start,
               pick_bytes(codes, 0, 0x4341) * (uint32_t)scale + start);
    *high ^= 0x80808080;
}

/* d, dmin: of rows g and g + 8; mins: A of the products with sums, as f16 bits. */
template <uint32_t TYPE> struct wide_codes {
    static constexpr bool in_threes = TYPE == KN_Q4_K || TYPE == KN_Q5_K; /* 8 high + low, both unsigned */
    static constexpr bool is_low = TYPE == KN_Q2_K, has_mins = TYPE == KN_Q4_K || TYPE == KN_Q5_K || is_low;
    const uint8_t *st;
    uint32_t sc[2][4];
    float d[2], dmin[2];
    uint32_t mins[4];
    uint4 codes, more; /* of a part; what is above them */
    uint2 r[2];        /* IQ4_XS */
    grid_unit<grid_has(TYPE) ? TYPE : (uint32_t)KN_IQ2_S> grid;
    int lane;

    __device__ __forceinline__ void open(const uint8_t *unit, int at, const uint16_t *points)
    {
        st = unit, lane = at;
        (void)points;
        const int g = lane / 4, q = lane % 4;
        if constexpr (TYPE == KN_Q4_K || TYPE == KN_Q5_K) {
            uint32_t m[2][2];
#pragma unroll
            for (int hi = 0; hi < 2; hi++) {
                const uint4 w = lds16(st + (TYPE == KN_Q5_K ? 2560 : 2048) + 128 * hi + 16 * g);
                d[hi] = h_low(w.x), dmin[hi] = h_high(w.x);
                sc[hi][0] = w.y & 0x3f3f3f3f;
                sc[hi][1] = (w.w & 0x0f0f0f0f) | (w.y >> 2 & 0x30303030);
                m[hi][0] = w.z & 0x3f3f3f3f;
                m[hi][1] = (w.w >> 4 & 0x0f0f0f0f) | (w.z >> 2 & 0x30303030);
                mins[hi] = mins[2 + hi] = __byte_perm(m[hi][0], m[hi][1], 0x0100 + 0x0202 * q) & 0x00ff00ff;
            }
#pragma unroll
            for (int hi = 0; hi < 2; hi++) /* three bits each */
#pragma unroll
                for (int k = 0; k < 2; k++)
                    sc[hi][2 + k] = sc[hi][k] >> 3 & 0x07070707, sc[hi][k] &= 0x07070707;
            if (TYPE == KN_Q5_K) more = lds16(st + 2048 + 16 * lane);
        } else if constexpr (TYPE == KN_Q6_K) {
#pragma unroll
            for (int hi = 0; hi < 2; hi++) {
                const uint4 w = lds16(st + 3072 + 128 * hi + 16 * g);
                sc[hi][0] = w.x ^ 0x80808080, sc[hi][1] = w.y ^ 0x80808080;
                sc[hi][2] = w.z ^ 0x80808080, sc[hi][3] = w.w ^ 0x80808080;
            }
            const uint32_t dd = lds4(st + 3328 + 4 * g);
            d[0] = h_low(dd), d[1] = h_high(dd);
        } else if constexpr (TYPE == KN_IQ4_XS) {
            r[0] = lds8(st + 2048 + 8 * g), r[1] = lds8(st + 2112 + 8 * g);
            d[0] = h_low(r[0].x), d[1] = h_low(r[1].x);
        } else if constexpr (grid_has(TYPE)) {
            grid.open(st, lane, points);
#pragma unroll
            for (int hi = 0; hi < 2; hi++) d[hi] = __fmul_rn(h_low(grid.d_of(hi)), grid_down<TYPE>());
        } else {
            uint32_t am[2];
#pragma unroll
            for (int hi = 0; hi < 2; hi++) {
                if (is_low) {
                    const uint4 w = lds16(st + 1024 + 128 * hi + 16 * g);
                    sc[hi][0] = w.x & 0x0f0f0f0f, sc[hi][1] = w.y & 0x0f0f0f0f;
                    sc[hi][2] = w.z & 0x0f0f0f0f, sc[hi][3] = w.w & 0x0f0f0f0f;
                    am[hi] = lds4(st + 1024 + 128 * hi + 16 * g + 4 * q) >> 4 & 0x0f0f0f0f;
                    mins[hi] = am[hi] & 0x00ff00ff, mins[2 + hi] = am[hi] >> 8 & 0x00ff00ff;
                } else {
                    const uint8_t *p = st + 1536 + 12 * (g + 8 * hi);
                    const uint32_t w[3] = {lds4(p), lds4(p + 4), lds4(p + 8)};
#pragma unroll
                    for (int k = 0; k < 4; k++) sc[hi][k] = scales_q3(w, k);
                }
            }
            const uint32_t dd = lds4(st + (is_low ? 1280 + 8 * g : 1728 + 4 * g));
            d[0] = h_low(dd), d[1] = h_high(dd);
            if (is_low) {
                const uint32_t mm = lds4(st + 1284 + 8 * g);
                dmin[0] = h_low(mm), dmin[1] = h_high(mm);
            } else
                more = lds16(st + 1024 + 16 * lane);
        }
    }
    /* Steps in ascending order; j: a constant. */
    __device__ __forceinline__ void step(int j, uint32_t low[4], uint32_t high[4])
    {
        if constexpr (grid_has(TYPE)) {
            uint32_t a[4];
            grid.step(j, a);
#pragma unroll
            for (int i = 0; i < 4; i++)
                wide_signed(low + i, high + i, grid_ordered(a[i]) ^ 0x80808080,
                            grid.scale_of(j, i / 2, i % 2), 128);
            return;
        }
        const int part = j / 2, i = j % 2;
        constexpr bool pairs = TYPE == KN_Q2_K || TYPE == KN_Q3_K;
        if (pairs) {
            if (j % 4 == 0) codes = lds16(st + 512 * (j / 4) + 16 * lane);
        } else if (i == 0) {
            codes = lds16(st + 512 * part + 16 * lane);
        }
        if (TYPE == KN_Q6_K && j % 4 == 0) more = lds16(st + 2048 + 512 * (j / 4) + 16 * lane);
        const uint32_t c4[4] = {codes.x, codes.y, codes.z, codes.w}, h4[4] = {more.x, more.y, more.z, more.w};
        if constexpr (TYPE == KN_Q4_K || TYPE == KN_Q5_K) {
#pragma unroll
            for (int s = 0; s < 2; s++) {
                uint32_t a[2];
                code_words(a, a + 1, c4[2 * i + s]);
                if (TYPE == KN_Q5_K) {
                    a[0] |= shift(h4[part], 4 - (2 * s + i)) & 0x10101010;
                    a[1] |= shift(h4[part], -(2 * s + i)) & 0x10101010;
                }
#pragma unroll
                for (int hi = 0; hi < 2; hi++) {
                    low[2 * s + hi] = a[hi] * pick_bytes(sc[hi][j / 4], 0, 0x4440 + j % 4);
                    high[2 * s + hi] = a[hi] * pick_bytes(sc[hi][2 + j / 4], 0, 0x4440 + j % 4);
                }
            }
        } else if constexpr (TYPE == KN_Q6_K) {
#pragma unroll
            for (int s = 0; s < 2; s++) {
                uint32_t a[2];
                code_words(a, a + 1, c4[2 * i + s]);
                a[0] |= shift(h4[j % 4], 4 - 2 * s) & 0x30303030;
                a[1] |= shift(h4[j % 4], -2 * s) & 0x30303030;
#pragma unroll
                for (int hi = 0; hi < 2; hi++)
                    wide_signed(low + 2 * s + hi, high + 2 * s + hi, a[hi],
                                signed_byte(sc[hi][part], 2 * i + s), 32);
            }
        } else if constexpr (TYPE == KN_IQ4_XS) {
#pragma unroll
            for (int s = 0; s < 2; s++) {
                uint32_t a[2];
                iq4_words(a, a + 1, c4[2 * i + s]);
#pragma unroll
                for (int hi = 0; hi < 2; hi++)
                    wide_signed(low + 2 * s + hi, high + 2 * s + hi, a[hi] ^ 0x80808080,
                                (int)((r[hi].y >> 4 * j & 15) | (shift(r[hi].x, -(12 + 2 * j)) & 0x30)) - 32,
                                128);
            }
        } else {
#pragma unroll
            for (int s = 0; s < 2; s++) {
                const uint32_t w = c4[j % 4];
                uint32_t a[2] = {shift(w, -2 * s) & 0x03030303, shift(w, -2 * s - 4) & 0x03030303};
                if (TYPE == KN_Q3_K) {
                    a[0] |= shift(h4[part], 2 - (2 * s + i)) & 0x04040404;
                    a[1] |= shift(h4[part], -2 - (2 * s + i)) & 0x04040404;
                }
#pragma unroll
                for (int hi = 0; hi < 2; hi++) {
                    const int scale = signed_byte(sc[hi][part], 2 * i + s);
                    if (is_low)
                        low[2 * s + hi] = a[hi] * (uint32_t)scale;
                    else
                        wide_signed(low + 2 * s + hi, high + 2 * s + hi, a[hi], scale, 4);
                }
            }
        }
    }
};

#endif
