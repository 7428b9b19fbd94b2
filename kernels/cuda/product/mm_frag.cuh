/* mm_frag.cuh - from a stage of packed weights to sums: what all kinds share, and the float weights. The
 * 8-bit kinds are in mm_int.cuh.
 *
 * Each kind has stage<NT>(): fin[t] += W x for the units of one stage and NT tiles of 8 tokens, fin in the
 * layout of the mma's C: [0], [1] row g, tokens 2 q, 2 q + 1; [2], [3] row g + 8. Every float operation is
 * written as an intrinsic, so that the compiler contracts none of them differently for another NT: a token's
 * bits must not depend on NT. */
#ifndef DFLASH_CUDA_MM_FRAG_CUH
#define DFLASH_CUDA_MM_FRAG_CUH

#include "mm.cuh"

#include <cuda_fp16.h>

/* f(of), of.type: a constant, that of TYPE and MORE which `type` is, or the last of them. */
template <uint32_t TYPE> struct type_of {
    static constexpr uint32_t type = TYPE;
};
template <uint32_t TYPE, uint32_t... MORE, class F> DEV void of_types(uint32_t type, F f)
{
    if constexpr (sizeof...(MORE) == 0)
        f(type_of<TYPE>());
    else if (type == TYPE)
        f(type_of<TYPE>());
    else
        of_types<MORE...>(type, f);
}

/* A stage's view of the activations: shared memory, at the stage's first unit. */
template <int NT> struct mm_view {
    const uint8_t *b;    /* what B registers are read from, + row[t] */
    const uint8_t *sums; /* K types: the sums of 16 columns, + row[t] - 8 q */
    const uint8_t *aux;  /* 8-bit kinds: scales, + pair[t][0, 1] */
    uint32_t
        row[NT]; /* of this lane's token g of each tile, + 16 q; tokens that are not there read the last */
    uint32_t pair[NT][2];   /* of this lane's tokens 2 q and 2 q + 1 */
    uint32_t plane_bytes;   /* float kinds */
    const uint16_t *points; /* kinds with grids: grid_there */
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
/* The 16-bit parts of (x, y). */
template <int PLANES, bool BF16> DEV void planes_of(uint32_t p[PLANES], float x, float y)
{
#pragma unroll
    for (int i = 0; i < PLANES; i++) {
        if (BF16) { /* truncated: what is left is exact, three hold all 24 bits */
            p[i] = __byte_perm(__float_as_uint(x), __float_as_uint(y), 0x7632);
            x = __fsub_rn(x, __uint_as_float(__float_as_uint(x) & 0xffff0000));
            y = __fsub_rn(y, __uint_as_float(__float_as_uint(y) & 0xffff0000));
        } else {
            const __half2 h = __floats2half2_rn(x, y);
            p[i] = *(const uint32_t *)&h;
            x = __fsub_rn(x, h_low(p[i]));
            y = __fsub_rn(y, h_high(p[i]));
        }
    }
}
/* ---- F16, BF16, F32: the sum of 64 columns, all planes, is one chain; then it is added in float32 ---- */
template <uint32_t TYPE> struct frag_float {
    static constexpr bool grids = false;
    static constexpr int unit_bytes = TYPE == KN_F32 ? 2048 : 1024, planes = TYPE == KN_F16 ? 2 : 3;
    static constexpr bool bf16 = TYPE != KN_F16, whole = false; /* whole: 8-bit */
    static constexpr int b_unit = 64, sums_unit = 0, aux_unit = 0;

    template <int NT>
    DEV void add_unit(float acc[NT][4], const uint8_t *st, int u, const mm_view<NT> &v, int lane)
    {
#pragma unroll
        for (int s = 0; s < 2; s++) {
            uint32_t a[3][4];
            if (TYPE == KN_F32) {
#pragma unroll
                for (int part = 0; part < 2; part++) {
                    const float4 w = *(const float4 *)(st + 1024 * s + 512 * part + 16 * lane);
                    uint32_t first[3], second[3];
                    planes_of<3, true>(first, w.x, w.y);
                    planes_of<3, true>(second, w.z, w.w);
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
    template <int NT>
    DEV void stage(float fin[NT][4], const uint8_t *st, int units, uint32_t, const mm_view<NT> &v, int lane)
    {
        for (int first = 0; first < units; first += 2) {
            float acc[NT][4];
#pragma unroll
            for (int t = 0; t < NT; t++) zero(acc[t]);
#pragma unroll 1
            for (int u = first; u < min(units, first + 2); u++, st += unit_bytes)
                add_unit<NT>(acc, st, u, v, lane);
#pragma unroll
            for (int t = 0; t < NT; t++)
#pragma unroll
                for (int i = 0; i < 4; i++) fin[t][i] = __fadd_rn(fin[t][i], acc[t][i]);
        }
    }
};

#endif
