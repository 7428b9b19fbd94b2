/* mm_frag.cuh - from a stage of packed weights to sums: the part of the product kernel that knows weight
 * types.
 *
 * Each type has stage<NT>(): fin[t] += W x for the units of one stage and NT tiles of 8 tokens, fin in the
 * layout of the mma's C: [0], [1] row g, tokens 2 q, 2 q + 1; [2], [3] row g + 8. Every float operation is
 * written as an intrinsic, so that the compiler contracts none of them differently for another NT: a token's
 * bits must not depend on NT.
 *
 * 4-bit codes become f16 without conversions: a nibble or'ed into the mantissa of 1024 is 1024 + code (rows
 * g: low nibbles) or 1024 + 16 code (rows g + 8: high nibbles), and one fused multiply-add per two codes
 * takes the 1024 off. */
#ifndef DFLASH_CUDA_MM_FRAG_CUH
#define DFLASH_CUDA_MM_FRAG_CUH

#include "mm.cuh"

#include <cuda_fp16.h>

#define DEV static __device__ __forceinline__

/* A stage's view of the activations: bytes of shared memory at the stage's first column. */
template <int NT> struct mm_view {
    const uint8_t *b; /* + plane * plane_bytes + row[t] */
    uint32_t row[NT]; /* this lane's token of each tile, row g; tokens that are not there read the last */
    uint32_t plane_bytes;
    const uint8_t *sums;      /* of token 0, at the stage's first block or group */
    uint32_t row_bytes, last; /* of a token; the last token */
    uint32_t magic;           /* 0x64006400 */
};

DEV uint4 lds16(const uint8_t *p)
{
    return *(const uint4 *)p;
}
DEV uint2 lds8(const uint8_t *p)
{
    return *(const uint2 *)p;
}
DEV uint32_t lds4(const uint8_t *p)
{
    return *(const uint32_t *)p;
}
DEV uint32_t h2_fma(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
DEV uint32_t h2_add(uint32_t a, uint32_t b)
{
    uint32_t d;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
DEV uint32_t h2_mul(uint32_t a, uint32_t b)
{
    uint32_t d;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}
/* float of the low and the high half */
DEV float h_low(uint32_t w)
{
    return __half2float(__ushort_as_half((unsigned short)(w & 0xffff)));
}
DEV float h_high(uint32_t w)
{
    return __half2float(__ushort_as_half((unsigned short)(w >> 16)));
}
DEV uint32_t shift(uint32_t w, int left) /* left < 0: right; a constant */
{
    return left >= 0 ? w << left : w >> -left;
}

template <bool BF16> DEV void mma(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    if (BF16)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
DEV void zero(float c[4])
{
    c[0] = c[1] = c[2] = c[3] = 0.0f;
}
/* fin += scale of the row * c */
DEV void scale_add(float fin[4], float low, float high, const float c[4])
{
    fin[0] = __fmaf_rn(low, c[0], fin[0]);
    fin[1] = __fmaf_rn(low, c[1], fin[1]);
    fin[2] = __fmaf_rn(high, c[2], fin[2]);
    fin[3] = __fmaf_rn(high, c[3], fin[3]);
}

/* (w & mask) | c in one instruction; mask a constant */
template <uint32_t MASK> DEV uint32_t and_or(uint32_t w, uint32_t c)
{
    uint32_t d;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(w), "n"(MASK), "r"(c));
    return d;
}
/* Codes of one mma step as 1024 + code (a0, a2) and 1024 + 16 code (a1, a3). */
DEV void nibbles(uint32_t a[4], uint32_t w, uint32_t magic)
{
    const uint32_t v = w >> 8;
    a[0] = and_or<0x000f000f>(w, magic);
    a[1] = and_or<0x00f000f0>(w, magic);
    a[2] = and_or<0x000f000f>(v, magic);
    a[3] = and_or<0x00f000f0>(v, magic);
}

/* ---- Q4_K, Q5_K: sc * code is exact in f16 (at most 63 * 31), so d meets the sums of 128 columns. Minimums
 * are one mma a block: A holds the eight m twice, B the eight sums of 32 activations as f16 high and low
 * parts. ---- */
template <int BITS> struct frag_k45 {
    static constexpr int unit_k = 256, unit_bytes = BITS == 5 ? 2816 : 2304, stage_units = 1, planes = 1,
                         tiles_max = 8;
    static constexpr enum mm_sums sums = MM_SUMS_K;
    static constexpr bool bf16 = false;

    struct row_scales {
        uint32_t d, sc[2], m[2];
    };
    DEV row_scales unpack(const uint8_t *record)
    {
        const uint4 r = lds16(record);
        row_scales s;
        s.d = r.x;
        s.sc[0] = r.y & 0x3f3f3f3f;
        s.m[0] = r.z & 0x3f3f3f3f;
        s.sc[1] = (r.w & 0x0f0f0f0f) | (r.y >> 2 & 0x30303030);
        s.m[1] = (r.w >> 4 & 0x0f0f0f0f) | (r.z >> 2 & 0x30303030);
        return s;
    }
    DEV uint32_t min_pair(const row_scales &s, int q) /* half2 (m[2q], m[2q+1]) */
    {
        const uint32_t v = __byte_perm(q < 2 ? s.m[0] : s.m[1], 0x64646464, q & 1 ? 0x4342 : 0x4140);
        return h2_add(v, 0xe400e400);
    }

    template <int NT> DEV void stage(float fin[NT][4], const uint8_t *st, int, const mm_view<NT> &v, int lane)
    {
        const int g = lane / 4, q = lane % 4;
        constexpr int records = BITS == 5 ? 2560 : 2048;
        const row_scales lo = unpack(st + records + 16 * g), hi = unpack(st + records + 128 + 16 * g);
        const float d0 = h_low(lo.d), d1 = h_low(hi.d);
        uint4 high = make_uint4(0, 0, 0, 0);
        if (BITS == 5) high = lds16(st + 2048 + 16 * lane);
        const uint32_t hw[4] = {high.x, high.y, high.z, high.w};
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float acc[NT][4];
#pragma unroll
            for (int t = 0; t < NT; t++) zero(acc[t]);
#pragma unroll
            for (int part = 2 * half; part < 2 * half + 2; part++) {
                const uint4 codes = lds16(st + 512 * part + 16 * lane);
                const uint32_t w[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const int j = 2 * part + i;
                    const uint32_t pick = 0x4040 + 0x0101 * (j % 4);
                    /* rows g: (1024 + q) sc - 1024 sc; rows g + 8: (1024 + 16 q) sc/16 - 64 sc */
                    const uint32_t s0 = h2_add(__byte_perm(lo.sc[j / 4], 0x64646464, pick), 0xe400e400);
                    const uint32_t s1 =
                        h2_fma(__byte_perm(hi.sc[j / 4], 0x64646464, pick), 0x2c002c00, 0xd400d400);
                    const uint32_t o0 = h2_mul(s0, 0xe400e400), o1 = h2_mul(s1, 0xe400e400);
                    uint32_t a[2][4];
#pragma unroll
                    for (int s = 0; s < 2; s++) {
                        nibbles(a[s], w[2 * i + s], v.magic);
                        if (BITS == 5) {
#pragma unroll
                            for (int rp = 0; rp < 2; rp++) {
                                const uint32_t x = shift(hw[part], 4 - (8 * i + 2 * s + rp));
                                a[s][2 * rp] = and_or<0x00100010>(x, a[s][2 * rp]);
                                a[s][2 * rp + 1] = and_or<0x01000100>(x, a[s][2 * rp + 1]);
                            }
                        }
                        a[s][0] = h2_fma(a[s][0], s0, o0);
                        a[s][1] = h2_fma(a[s][1], s1, o1);
                        a[s][2] = h2_fma(a[s][2], s0, o0);
                        a[s][3] = h2_fma(a[s][3], s1, o1);
                    }
#pragma unroll
                    for (int t = 0; t < NT; t++) {
                        const uint4 b = lds16(v.b + v.row[t] + 64 * j);
                        mma<false>(acc[t], a[0], b.x, b.y);
                        mma<false>(acc[t], a[1], b.z, b.w);
                    }
                }
            }
#pragma unroll
            for (int t = 0; t < NT; t++) scale_add(fin[t], d0, d1, acc[t]);
        }
        const uint32_t m0 = min_pair(lo, q), m1 = min_pair(hi, q), am[4] = {m0, m1, m0, m1};
        const float n0 = -h_high(lo.d), n1 = -h_high(hi.d);
#pragma unroll
        for (int t = 0; t < NT; t++) {
            float acc[4];
            zero(acc);
            const uint2 b = lds8(v.sums + v.row[t] - 8 * q); /* row has 16 q, the sums 8 q */
            mma<false>(acc, am, b.x, b.y);
            scale_add(fin[t], n0, n1, acc);
        }
    }
};

/* ---- Q6_K: a scale for 16 columns, one mma step; code - 32 is exact, sc * (code - 32) is not, so d * sc
 * meets each step's sum ---- */
struct frag_k6 {
    static constexpr int unit_k = 256, unit_bytes = 3360, stage_units = 1, planes = 1, tiles_max = 8;
    static constexpr enum mm_sums sums = MM_SUMS_NONE;
    static constexpr bool bf16 = false;

    /* d * (byte i of w - 128) */
    DEV float scale(float d, uint32_t w, int i)
    {
        const float s = __uint_as_float(__byte_perm(w, 0x4b000000, 0x7440 + i));
        return __fmul_rn(d, __fsub_rn(s, 8388736.0f));
    }
    template <int NT> DEV void stage(float fin[NT][4], const uint8_t *st, int, const mm_view<NT> &v, int lane)
    {
        const int g = lane / 4;
        const uint4 lo4 = lds16(st + 3072 + 16 * g), hi4 = lds16(st + 3072 + 128 + 16 * g);
        const uint32_t lo[4] = {lo4.x, lo4.y, lo4.z, lo4.w}, hi[4] = {hi4.x, hi4.y, hi4.z, hi4.w};
        const uint32_t dd = lds4(st + 3328 + 4 * g);
        const float d0 = h_low(dd), d1 = h_high(dd);
#pragma unroll
        for (int part = 0; part < 4; part++) {
            const uint4 codes = lds16(st + 512 * part + 16 * lane);
            const uint32_t w[4] = {codes.x, codes.y, codes.z, codes.w};
            const uint2 pairs = lds8(st + 2048 + 512 * (part / 2) + 16 * lane + 8 * (part % 2));
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int j = 2 * part + i;
                uint32_t a[2][4];
#pragma unroll
                for (int s = 0; s < 2; s++) {
                    nibbles(a[s], w[2 * i + s], v.magic);
#pragma unroll
                    for (int rp = 0; rp < 2; rp++) {
                        const uint32_t x = shift(i ? pairs.y : pairs.x, 4 - (8 * s + 2 * rp));
                        a[s][2 * rp] = h2_add(and_or<0x00300030>(x, a[s][2 * rp]), 0xe420e420); /* - 1056 */
                        a[s][2 * rp + 1] = h2_fma(and_or<0x03000300>(x, a[s][2 * rp + 1]), 0x2c002c00,
                                                  0xd600d600); /* / 16 - 96 */
                    }
                }
                float s0[2], s1[2];
#pragma unroll
                for (int s = 0; s < 2; s++) {
                    s0[s] = scale(d0, lo[j / 2], 2 * (j % 2) + s);
                    s1[s] = scale(d1, hi[j / 2], 2 * (j % 2) + s);
                }
#pragma unroll
                for (int t = 0; t < NT; t++) {
                    const uint4 b = lds16(v.b + v.row[t] + 64 * j);
                    float acc[4];
                    zero(acc);
                    mma<false>(acc, a[0], b.x, b.y);
                    scale_add(fin[t], s0[0], s1[0], acc);
                    zero(acc);
                    mma<false>(acc, a[1], b.z, b.w);
                    scale_add(fin[t], s0[1], s1[1], acc);
                }
            }
        }
    }
};

/* ---- 32-blocks: code - offset exact, d meets the sum of 32 columns; minimums meet the float sum of 32
 * activations ---- */
template <int BITS, bool MIN> struct frag_32 {
    static constexpr int unit_k = 32, unit_bytes = 64 * BITS + (MIN ? 64 : 32), stage_units = 8, planes = 1,
                         tiles_max = 8;
    static constexpr enum mm_sums sums = MIN ? MM_SUMS_32 : MM_SUMS_NONE;
    static constexpr bool bf16 = false;

    DEV void codes(uint32_t a[2][4], const uint8_t *u, int lane, uint32_t magic)
    {
        if (BITS == 8) {
            const uint4 c = lds16(u + 16 * lane);
            const uint32_t w[4] = {c.x, c.y, c.z, c.w};
#pragma unroll
            for (int i = 0; i < 4; i++) { /* 1024 + 128 + code, less 1152 */
                a[i / 2][2 * (i % 2)] = h2_add(__byte_perm(w[i], 0x64646464, 0x4140), 0xe480e480);
                a[i / 2][2 * (i % 2) + 1] = h2_add(__byte_perm(w[i], 0x64646464, 0x4342), 0xe480e480);
            }
            return;
        }
        const uint2 c = lds8(u + 8 * lane);
        uint32_t high = 0; /* bits 0-7 of each half: (s, r) at 2 s + r / 2 + 4 (r % 2) */
        if (BITS == 5) high = __byte_perm(*(const unsigned short *)(u + 256 + 2 * lane), 0, 0x4140);
        /* minus the offset: 1024 + 8 and (1024 / 16) + 8; 5 bits 16; with minimums 0 */
        const uint32_t o0 = MIN ? 0xe400e400 : BITS == 5 ? 0xe410e410 : 0xe408e408;
        const uint32_t o1 = MIN ? 0xd400d400 : BITS == 5 ? 0xd500d500 : 0xd480d480;
#pragma unroll
        for (int s = 0; s < 2; s++) {
            nibbles(a[s], s ? c.y : c.x, magic);
            if (BITS == 5) {
#pragma unroll
                for (int rp = 0; rp < 2; rp++) {
                    const uint32_t x = high << (4 - (2 * s + rp));
                    a[s][2 * rp] = and_or<0x00100010>(x, a[s][2 * rp]);
                    a[s][2 * rp + 1] = and_or<0x01000100>(x, a[s][2 * rp + 1]);
                }
            }
            a[s][0] = h2_add(a[s][0], o0);
            a[s][1] = h2_fma(a[s][1], 0x2c002c00, o1);
            a[s][2] = h2_add(a[s][2], o0);
            a[s][3] = h2_fma(a[s][3], 0x2c002c00, o1);
        }
    }
    template <int NT>
    DEV void stage(float fin[NT][4], const uint8_t *st, int units, const mm_view<NT> &v, int lane)
    {
        const int g = lane / 4;
#pragma unroll 4
        for (int u = 0; u < units; u++, st += unit_bytes) {
            uint32_t a[2][4], dd, mm = 0;
            codes(a, st, lane, v.magic);
            if (MIN) {
                const uint2 dm = lds8(st + 64 * BITS + 8 * g);
                dd = dm.x, mm = dm.y;
            } else {
                dd = lds4(st + 64 * BITS + 4 * g);
            }
            const float d0 = h_low(dd), d1 = h_high(dd), m0 = h_low(mm), m1 = h_high(mm);
#pragma unroll
            for (int t = 0; t < NT; t++) {
                const uint4 b = lds16(v.b + v.row[t] + 64 * u);
                float acc[4];
                zero(acc);
                mma<false>(acc, a[0], b.x, b.y);
                mma<false>(acc, a[1], b.z, b.w);
                scale_add(fin[t], d0, d1, acc);
                if (MIN) {
                    const uint32_t token = 8 * t + 2 * (lane % 4);
                    const float s0 = *(const float *)(v.sums + 4 * u + min(token, v.last) * v.row_bytes);
                    const float s1 = *(const float *)(v.sums + 4 * u + min(token + 1, v.last) * v.row_bytes);
                    const float sum[4] = {s0, s1, s0, s1};
                    scale_add(fin[t], m0, m1, sum);
                }
            }
        }
    }
};

/* ---- F16, BF16, F32: the sum of 64 columns, all planes, is one chain; then it is added in float32 ---- */
template <uint32_t TYPE> struct frag_float {
    static constexpr int unit_k = 32, unit_bytes = TYPE == KN_F32 ? 2048 : 1024, stage_units = 2,
                         planes = TYPE == KN_F16 ? 2 : 3, tiles_max = 4;
    static constexpr enum mm_sums sums = MM_SUMS_NONE;
    static constexpr bool bf16 = TYPE != KN_F16;

    /* F32: the high 16 bits of each are a bf16; what is left is exact. */
    DEV void split(uint32_t a[3], float x, float y)
    {
#pragma unroll
        for (int p = 0; p < 3; p++) {
            a[p] = __byte_perm(__float_as_uint(x), __float_as_uint(y), 0x7632);
            x = __fsub_rn(x, __uint_as_float(__float_as_uint(x) & 0xffff0000));
            y = __fsub_rn(y, __uint_as_float(__float_as_uint(y) & 0xffff0000));
        }
    }
    template <int NT>
    DEV void stage(float fin[NT][4], const uint8_t *st, int units, const mm_view<NT> &v, int lane)
    {
        float acc[NT][4];
#pragma unroll
        for (int t = 0; t < NT; t++) zero(acc[t]);
#pragma unroll 1
        for (int u = 0; u < units; u++, st += unit_bytes) {
#pragma unroll
            for (int s = 0; s < 2; s++) {
                uint32_t a[3][4];
                if (TYPE == KN_F32) {
#pragma unroll
                    for (int part = 0; part < 2; part++) {
                        const float4 w = *(const float4 *)(st + 1024 * s + 512 * part + 16 * lane);
                        uint32_t first[3], second[3];
                        split(first, w.x, w.y);
                        split(second, w.z, w.w);
#pragma unroll
                        for (int p = 0; p < 3; p++) a[p][2 * part] = first[p], a[p][2 * part + 1] = second[p];
                    }
                } else {
                    const uint4 w = lds16(st + 512 * s + 16 * lane);
                    a[0][0] = w.x, a[0][1] = w.y, a[0][2] = w.z, a[0][3] = w.w;
                }
#pragma unroll
                for (int t = 0; t < NT; t++) {
#pragma unroll
                    for (int p = planes - 1; p >= 0; p--) { /* smallest products first */
                        const uint2 b = lds8(v.b + p * v.plane_bytes + v.row[t] + 64 * u + 8 * s);
                        if (TYPE == KN_F32) {
#pragma unroll
                            for (int k = 2 - p; k > 0; k--) mma<true>(acc[t], a[k], b.x, b.y);
                        }
                        mma<bf16>(acc[t], a[0], b.x, b.y);
                    }
                }
            }
        }
#pragma unroll
        for (int t = 0; t < NT; t++)
#pragma unroll
            for (int i = 0; i < 4; i++) fin[t][i] = __fadd_rn(fin[t][i], acc[t][i]);
    }
};

#endif
