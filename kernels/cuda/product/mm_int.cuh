/* mm_int.cuh - from a stage of packed quantised weights to sums: 8-bit activations, integer tensor cores.
 *
 * Codes are bytes of A as they are (unsigned): a word of eight codes and two logic operations are two
 * registers. mma.m16n8k32 sums a sub-block of 32 columns exactly (k16: 16 columns), integer scales multiply
 * these sums, and all stays within int32:
 *   Q4_K, Q5_K   8 sub-blocks of 32: |code| <= 31, |x| <= 127: 31 * 127 * 32 * 63 * 8 < 2^26
 *                Q4_K's codes of rows g + 8 stay 16 times as large, where they lie in their bytes: < 2^29
 *                minimums: 63 * 4,064 * 8 < 2^22
 *   Q6_K         16 sub-blocks of 16: 63 * 127 * 16 * 128 * 16 < 2^28,
 *                minus 32 * 128 * 2,032 * 16 < 2^27.1
 *   32-blocks    255 * 127 * 32 < 2^20
 * Below 2^22, an int becomes a float by an addition: 0x4b400000 + i are the bits of 12582912 + i. */
#ifndef DFLASH_CUDA_MM_INT_CUH
#define DFLASH_CUDA_MM_INT_CUH

#include "mm_frag.cuh"

#define MM_BITS_OF 0x4b400000
DEV float of_bits(int i) /* MM_BITS_OF + value, |value| < 2^22 */
{
    return __fsub_rn(__int_as_float(i), 12582912.0f);
}

/* c = init + A B; A unsigned or signed bytes, B signed */
template <bool SIGNED>
DEV void mma_32(int c[4], const uint32_t a[4], uint32_t b0, uint32_t b1, int i0, int i1)
{
    if (SIGNED)
        asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%10,%11,%10,%11};"
            : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(i0), "r"(i1));
    else
        asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%10,%11,%10,%11};"
            : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(i0), "r"(i1));
}
template <bool SIGNED> DEV void mma_16(int c[4], uint32_t a0, uint32_t a1, uint32_t b)
{
    if (SIGNED)
        asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};"
            : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
            : "r"(a0), "r"(a1), "r"(b), "r"(0));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};"
            : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
            : "r"(a0), "r"(a1), "r"(b), "r"(0));
}
/* sum (first: start) += c times the scales of row g and of row g + 8; modulo 2^32 */
DEV void scale_int(int sum[4], const int c[4], int low, int high, bool first, uint32_t start = 0)
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        sum[i] = (int)((uint32_t)c[i] * (uint32_t)(i / 2 ? high : low) + (first ? start : (uint32_t)sum[i]));
}
/* Byte i of w, its sign spread above it. (__byte_perm ignores the selector's sign bits.) */
DEV int signed_byte(uint32_t w, int i)
{
    int v;
    asm("prmt.b32 %0, %1, 0, %2;" : "=r"(v) : "r"(w), "r"(0x8880 + 0x1111 * i));
    return v;
}
DEV float lds_float(const uint8_t *p)
{
    return *(const float *)p;
}
/* Codes of rows g and g + 8: 4 columns each. */
DEV void code_words(uint32_t *a0, uint32_t *a1, uint32_t w)
{
    *a0 = w & 0x0f0f0f0f;
    *a1 = w >> 4 & 0x0f0f0f0f;
}

/* ---- sums of codes times activations times integer scales of a unit, without what is common to the unit
 * ----
 *
 * act(t, part): the 16 int8 of 64 columns, those of this lane's token of tile t (prep_block.cuh). code(part):
 * this lane's codes of these columns. read(): called when all else of the unit has been read. */
struct unit_codes {
    const uint8_t *at;
    __device__ __forceinline__ uint4 operator()(int part) const
    {
        return lds16(at + 512 * part);
    }
};

/* Q4_K, Q5_K. mins: of rows g and g + 8, eight bytes each. Q4_K's d of row g + 8 is divided by 16. */
template <int BITS, int NT, class ACT, class CODE, class READ>
DEV void codes_45(int sum[NT][4], float d[2], float dmin[2], uint32_t mins[2][2], const uint8_t *st, int lane,
                  ACT act, CODE code, READ read)
{
    const int g = lane / 4;
    constexpr int records = BITS == 5 ? 2560 : 2048;
    uint32_t sc[2][2];
#pragma unroll
    for (int hi = 0; hi < 2; hi++) {
        const uint4 r = lds16(st + records + 128 * hi + 16 * g);
        d[hi] = h_low(r.x), dmin[hi] = h_high(r.x);
        sc[hi][0] = r.y & 0x3f3f3f3f;
        sc[hi][1] = (r.w & 0x0f0f0f0f) | (r.y >> 2 & 0x30303030);
        mins[hi][0] = r.z & 0x3f3f3f3f;
        mins[hi][1] = (r.w >> 4 & 0x0f0f0f0f) | (r.z >> 2 & 0x30303030);
    }
    uint4 high = make_uint4(0, 0, 0, 0);
    if (BITS == 5) high = lds16(st + 2048 + 16 * lane);
    read();
    if (BITS == 4) d[1] = __fmul_rn(d[1], 0.0625f); /* exact: codes 16 times as large */
    const uint32_t hw[4] = {high.x, high.y, high.z, high.w};
#pragma unroll
    for (int part = 0; part < 4; part++) {
        const uint4 codes = code(part);
        const uint32_t w[4] = {codes.x, codes.y, codes.z, codes.w};
        uint4 b[NT];
#pragma unroll
        for (int t = 0; t < NT; t++) b[t] = act(t, part);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int j = 2 * part + i;
            uint32_t a[4];
#pragma unroll
            for (int s = 0; s < 2; s++) {
                code_words(a + 2 * s, a + 2 * s + 1, w[2 * i + s]);
                if (BITS == 4) a[2 * s + 1] = w[2 * i + s] & 0xf0f0f0f0;
                if (BITS == 5) {
                    a[2 * s] |= shift(hw[part], 4 - (2 * s + i)) & 0x10101010;
                    a[2 * s + 1] |= shift(hw[part], -(2 * s + i)) & 0x10101010;
                }
            }
            const int low = (int)__byte_perm(sc[0][j / 4], 0, 0x4440 + j % 4),
                      top = (int)__byte_perm(sc[1][j / 4], 0, 0x4440 + j % 4);
#pragma unroll
            for (int t = 0; t < NT; t++) {
                int c[4];
                mma_32<false>(c, a, i ? b[t].z : b[t].x, i ? b[t].w : b[t].y, 0, 0);
                scale_int(sum[t], c, low, top, j == 0);
            }
        }
    }
}

template <int BITS, int NT, class ACT>
DEV void codes_45(int sum[NT][4], float d[2], float dmin[2], uint32_t mins[2][2], const uint8_t *st, int lane,
                  ACT act)
{
    codes_45<BITS, NT>(sum, d, dmin, mins, st, lane, act, unit_codes{st + 16 * lane}, [] {});
}

/* Q6_K, of codes with their offset; sums count from `start`. high(part): the words of their high bits. */
template <int NT, class ACT, class CODE, class HIGH, class READ>
DEV void codes_6(int sum[NT][4], float d[2], const uint8_t *st, int lane, ACT act, uint32_t start, CODE code,
                 HIGH high, READ read)
{
    const int g = lane / 4;
    uint32_t sc[2][4];
#pragma unroll
    for (int hi = 0; hi < 2; hi++) {
        const uint4 r = lds16(st + 3072 + 128 * hi + 16 * g);
        sc[hi][0] = r.x ^ 0x80808080, sc[hi][1] = r.y ^ 0x80808080;
        sc[hi][2] = r.z ^ 0x80808080, sc[hi][3] = r.w ^ 0x80808080;
    }
    const uint32_t dd = lds4(st + 3328 + 4 * g);
    d[0] = h_low(dd), d[1] = h_high(dd);
    read();
#pragma unroll
    for (int part = 0; part < 4; part++) {
        const uint4 codes = code(part);
        const uint32_t w[4] = {codes.x, codes.y, codes.z, codes.w};
        const uint2 pairs = high(part);
        uint4 b[NT];
#pragma unroll
        for (int t = 0; t < NT; t++) b[t] = act(t, part);
#pragma unroll
        for (int e = 0; e < 4; e++) { /* 16 columns each */
            const int j = 4 * part + e, s = e % 2;
            const uint32_t hw = e / 2 ? pairs.y : pairs.x;
            uint32_t a0, a1;
            code_words(&a0, &a1, w[e]);
            a0 |= shift(hw, 4 - 2 * s) & 0x30303030;
            a1 |= shift(hw, -2 * s) & 0x30303030;
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

template <int NT, class ACT>
DEV void codes_6(int sum[NT][4], float d[2], const uint8_t *st, int lane, ACT act, uint32_t start = 0)
{
    codes_6<NT>(
        sum, d, st, lane, act, start, unit_codes{st + 16 * lane},
        [&](int part) { return lds8(st + 2048 + 512 * (part / 2) + 16 * lane + 8 * (part % 2)); }, [] {});
}

#include "mm_low.cuh"

#include "mm_grid.cuh"

/* Types whose codes are signed: nothing is taken off, and sums of activations are not wanted. */
DEV constexpr bool is_signed_k(uint32_t type)
{
    return type == KN_IQ4_XS || grid_has(type);
}
/* Bytes of a unit of a K type. */
DEV constexpr int unit_bytes_k(uint32_t type)
{
    return type == KN_Q4_K     ? 2304
           : type == KN_Q5_K   ? 2816
           : type == KN_Q6_K   ? 3360
           : type == KN_IQ4_XS ? 2176
           : type == KN_Q3_K   ? 1760
           : type == KN_Q2_K   ? 1344
                               : 4 * grid_layout_of(type).end;
}

/* K types; LOW 1: Q2_K, Q3_K and IQ4_XS as well; 2: and the types with grids. The kernel without them is a
 * few hundredths faster for the others. */
template <int LOW> struct frag_k {
    static constexpr bool grids = LOW == 2;
    static constexpr enum mm_act act = MM_ACT_K;
    static constexpr bool whole = true;
    static constexpr int planes = 1, b_unit = 256, sums_unit = 32, aux_unit = 4;

    /* Q4_K, Q5_K, Q2_K: fin += (d sum of sc * (codes . x) - dmin sum of m * (sum of x)) * scale of x
     * others: fin += sum of sc * ((codes - offset) . x) * (d * scale of x) */
    template <uint32_t TYPE, int NT>
    DEV void add_unit(float fin[NT][4], const uint8_t *st, const mm_view<NT> &v, int at, int lane)
    {
        constexpr bool mins = TYPE == KN_Q4_K || TYPE == KN_Q5_K || TYPE == KN_Q2_K;
        constexpr int offset = TYPE == KN_Q6_K ? 32 : TYPE == KN_Q3_K ? 4 : 0;
        const auto act = [&](int t, int part) { return lds16(v.b + 256 * at + v.row[t] + 64 * part); };
        const int q = lane % 4;
        int sum[NT][4];
        float d[2], dmin[2] = {0, 0};
        uint32_t am[2]; /* by which sums of x are multiplied: minimums, or scales */
        if constexpr (TYPE == KN_Q4_K || TYPE == KN_Q5_K) {
            uint32_t m[2][2];
            codes_45<TYPE == KN_Q4_K ? 4 : 5, NT>(sum, d, dmin, m, st, lane, act);
            /* of the eight minimums, 2 q and 2 q + 1, twice: one for each 16 columns */
            am[0] = __byte_perm(m[0][0], m[0][1], 0x1100 + 0x2222 * q);
            am[1] = __byte_perm(m[1][0], m[1][1], 0x1100 + 0x2222 * q);
        } else if constexpr (TYPE == KN_Q6_K) {
            am[0] = lds4(st + 3072 + 16 * (lane / 4) + 4 * q) ^ 0x80808080;
            am[1] = lds4(st + 3200 + 16 * (lane / 4) + 4 * q) ^ 0x80808080;
            codes_6<NT>(sum, d, st, lane, act);
        } else if constexpr (TYPE == KN_IQ4_XS) {
            codes_iq4_xs<NT>(sum, d, st, lane, act);
        } else if constexpr (grid_has(TYPE)) {
            codes_grid<TYPE, NT>(sum, d, st, lane, act, v.points);
        } else {
            codes_23<TYPE == KN_Q2_K ? 2 : 3, NT>(sum, d, dmin, am, st, lane, act);
        }
#pragma unroll
        for (int t = 0; t < NT; t++) {
            const uint2 s = is_signed_k(TYPE) ? make_uint2(0, 0) : lds8(v.sums + 32 * at + v.row[t] - 8 * q);
            const float da[2] = {lds_float(v.aux + 4 * at + v.pair[t][0]),
                                 lds_float(v.aux + 4 * at + v.pair[t][1])};
            int lo[4] = {0, 0, 0, 0}, hi[4] = {0, 0, 0, 0};
            if constexpr (!is_signed_k(TYPE)) {
                mma_16<!mins>(lo, am[0], am[1], s.x);
                mma_16<!mins>(hi, am[0], am[1], s.y);
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int m = (hi[i] << 7) + lo[i];
                if (mins) {
                    const float y = __fmaf_rn(__int2float_rn(sum[t][i]), d[i / 2],
                                              -__fmul_rn(of_bits(m + MM_BITS_OF), dmin[i / 2]));
                    fin[t][i] = __fmaf_rn(y, da[i % 2], fin[t][i]);
                } else {
                    fin[t][i] = __fmaf_rn(__int2float_rn(sum[t][i] - offset * m),
                                          __fmul_rn(d[i / 2], da[i % 2]), fin[t][i]);
                }
            }
        }
    }

    template <int NT>
    DEV void stage(float fin[NT][4], const uint8_t *st, int units, uint32_t type, const mm_view<NT> &v,
                   int lane)
    {
        if constexpr (LOW == 2) {
            of_types<KN_IQ3_XXS, KN_IQ3_S, KN_IQ2_XXS, KN_IQ2_XS, KN_IQ2_S, KN_IQ1_S, KN_IQ1_M, KN_Q4_K,
                     KN_Q6_K, KN_Q5_K, KN_IQ4_XS, KN_Q3_K, KN_Q2_K>(type, [&](auto of) {
#pragma unroll 1
                for (int u = 0; u < units; u++)
                    add_unit<of.type, NT>(fin, st + unit_bytes_k(of.type) * u, v, u, lane);
            });
        } else if (type == KN_Q4_K)
#pragma unroll 1
            for (int u = 0; u < units; u++) add_unit<KN_Q4_K, NT>(fin, st + 2304 * u, v, u, lane);
        else if (type == KN_Q6_K)
#pragma unroll 1
            for (int u = 0; u < units; u++) add_unit<KN_Q6_K, NT>(fin, st + 3360 * u, v, u, lane);
        else if (!LOW || type == KN_Q5_K)
#pragma unroll 1
            for (int u = 0; u < units; u++) add_unit<KN_Q5_K, NT>(fin, st + 2816 * u, v, u, lane);
        else if (type == KN_IQ4_XS)
#pragma unroll 1
            for (int u = 0; u < units; u++) add_unit<KN_IQ4_XS, NT>(fin, st + 2176 * u, v, u, lane);
        else if (type == KN_Q3_K)
#pragma unroll 1
            for (int u = 0; u < units; u++) add_unit<KN_Q3_K, NT>(fin, st + 1760 * u, v, u, lane);
        else
#pragma unroll 1
            for (int u = 0; u < units; u++) add_unit<KN_Q2_K, NT>(fin, st + 1344 * u, v, u, lane);
    }
};

/* ---- 32-blocks ---- */

/* Fifth bits of a unit: bit 2 s + 4 hi of each byte, its columns in the order of codes. */
DEV uint32_t high_5(const uint8_t *u, int lane)
{
    const uint32_t x = __byte_perm(*(const unsigned short *)(u + 256 + 2 * lane), 0, 0x1100);
    return (x & 0x00ff00ff) | (x >> 1 & 0x7f007f00);
}
/* Scales (MIN: and minimums) of rows g and g + 8, at p. */
template <bool MIN> DEV void scales_32(float d[2], float m[2], const uint8_t *p, int g)
{
    uint2 dm = make_uint2(0, 0);
    if (MIN)
        dm = lds8(p + 8 * g);
    else
        dm.x = lds4(p + 4 * g);
    d[0] = h_low(dm.x), d[1] = h_high(dm.x), m[0] = h_low(dm.y), m[1] = h_high(dm.y);
}

/* The same of MXFP4: powers of two, a byte each. */
DEV void scales_mxfp4(float d[2], const uint8_t *p, int g)
{
    const uint32_t e = *(const unsigned short *)(p + 2 * g);
    d[0] = __uint_as_float(mxfp4_scale(e & 255)), d[1] = __uint_as_float(mxfp4_scale(e >> 8));
}

/* fin += (codes - offset) . x * (d * scale of x) [+ m * (scale of x * sum of x)] */
template <bool MIN> struct frag_32 {
    static constexpr bool grids = false;
    static constexpr enum mm_act act = MIN ? MM_ACT_32M : MM_ACT_32;
    static constexpr bool whole = true;
    static constexpr int planes = 1, b_unit = 32, sums_unit = 0, aux_unit = 8;

    template <int BITS> DEV void codes(uint32_t a[4], const uint8_t *u, int lane)
    {
        if (BITS == 8) { /* signed */
            const uint4 c = lds16(u + 16 * lane);
            a[0] = c.x, a[1] = c.y, a[2] = c.z, a[3] = c.w;
            return;
        }
        const uint2 c = lds8(u + 8 * lane);
        code_words(a, a + 1, c.x);
        code_words(a + 2, a + 3, c.y);
        if (BITS == 5) {
            const uint32_t high = high_5(u, lane);
            a[0] |= high << 4 & 0x10101010, a[1] |= high & 0x10101010;
            a[2] |= high << 2 & 0x10101010, a[3] |= high >> 2 & 0x10101010;
        }
    }
    /* TABLE: IQ4_NL or MXFP4, signed values without an offset */
    template <int BITS, int NT, uint32_t TABLE = KN_F32>
    DEV void blocks(float fin[NT][4], const uint8_t *st, int units, const mm_view<NT> &v, int lane)
    {
        constexpr bool table = TABLE != KN_F32;
        constexpr int unit_bytes = 64 * BITS + (MIN ? 64 : TABLE == KN_MXFP4 ? 16 : 32);
        constexpr bool is_signed = table || BITS == 8;
#pragma unroll 2
        for (int first = 0; first < units; first += 2) {
            uint4 b[NT];
#pragma unroll
            for (int t = 0; t < NT; t++) b[t] = lds16(v.b + 32 * first + v.row[t]);
#pragma unroll
            for (int i = 0; i < 2; i++, st += unit_bytes) {
                if (first + i >= units) break;
                uint32_t a[4];
                float d[2], m[2];
                if (table) {
                    const uint2 w = lds8(st + 8 * lane);
                    table_words<TABLE>(a, a + 1, w.x);
                    table_words<TABLE>(a + 2, a + 3, w.y);
                } else {
                    codes<BITS>(a, st, lane);
                }
                if (TABLE == KN_MXFP4)
                    scales_mxfp4(d, st + 64 * BITS, lane / 4);
                else
                    scales_32<MIN>(d, m, st + 64 * BITS, lane / 4);
#pragma unroll
                for (int t = 0; t < NT; t++) {
                    const uint2 x0 = lds8(v.aux + 8 * (first + i) + v.pair[t][0]),
                                x1 = lds8(v.aux + 8 * (first + i) + v.pair[t][1]);
                    /* minus the offset: 16 or 8 times the sum */
                    constexpr int left = BITS == 5 ? 4 : 3;
                    const int i0 = MM_BITS_OF + (MIN || is_signed ? 0 : (int)(x0.y << left)),
                              i1 = MM_BITS_OF + (MIN || is_signed ? 0 : (int)(x1.y << left));
                    const float da[2] = {__uint_as_float(x0.x), __uint_as_float(x1.x)},
                                ds[2] = {__uint_as_float(x0.y), __uint_as_float(x1.y)};
                    int c[4];
                    mma_32<is_signed>(c, a, i ? b[t].z : b[t].x, i ? b[t].w : b[t].y, i0, i1);
#pragma unroll
                    for (int k = 0; k < 4; k++) {
                        fin[t][k] = __fmaf_rn(of_bits(c[k]), __fmul_rn(d[k / 2], da[k % 2]), fin[t][k]);
                        if (MIN) fin[t][k] = __fmaf_rn(m[k / 2], ds[k % 2], fin[t][k]);
                    }
                }
            }
        }
    }
    template <int NT>
    DEV void stage(float fin[NT][4], const uint8_t *st, int units, uint32_t type, const mm_view<NT> &v,
                   int lane)
    {
        if (type == KN_Q8_0)
            blocks<8, NT>(fin, st, units, v, lane);
        else if (type == KN_Q4_0 || type == KN_Q4_1)
            blocks<4, NT>(fin, st, units, v, lane);
        else if (!MIN && type == KN_IQ4_NL)
            blocks<4, NT, MIN ? KN_F32 : KN_IQ4_NL>(fin, st, units, v, lane);
        else if (!MIN && type == KN_MXFP4)
            blocks<4, NT, MIN ? KN_F32 : KN_MXFP4>(fin, st, units, v, lane);
        else
            blocks<5, NT>(fin, st, units, v, lane);
    }
};

#endif
