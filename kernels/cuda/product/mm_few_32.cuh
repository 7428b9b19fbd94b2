/* mm_few_32.cuh - mm_few.cuh for the types with blocks of 32 columns. Units go in pairs, which share a word
 * of activations. *Side*: [pair of units]{[tile][quarter q][unit][tokens 2 q, 2 q + 1] scales, (MIN) the same
 * of scales times sums}, so that a lane reads the four that it needs at once and no two lanes the same bank.
 * A's codes are made signed bytes, 2^k times as large where that is cheaper, so nothing is taken off
 * afterwards: c counts from the bits of 1.5 * 2^(23 - k), and an addition makes the float of the sum itself.
 * Bounds: 127 * 127 * 32 < 2^19 (Q8_0), 16 * 8 * 127 * 32 < 2^19 (Q4_0, Q5_0). */
#ifndef DFLASH_CUDA_MM_FEW_32_CUH
#define DFLASH_CUDA_MM_FEW_32_CUH

#include "mm_few.cuh"

/* (x & mask) ^ flip: one operation where both are registers. */
DEV uint32_t few_flip(uint32_t x, uint32_t mask, uint32_t flip)
{
    uint32_t v;
    asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(v) : "r"(x), "r"(mask), "r"(flip));
    return v;
}

/* Codes of a unit as A, what their sums count from, and the float of these bits. */
template <uint32_t TYPE> struct few_codes {
    static constexpr bool min = TYPE == KN_Q4_1 || TYPE == KN_Q5_1;
    static constexpr int bits = TYPE == KN_Q8_0 ? 8 : TYPE == KN_Q5_0 || TYPE == KN_Q5_1 ? 5 : 4;
    static constexpr int unit_bytes = 64 * bits + (min ? 64 : TYPE == KN_MXFP4 ? 16 : 32);
    static constexpr int start = TYPE == KN_Q4_0 ? 0x49400000 : TYPE == KN_Q5_0 ? 0x49c00000 : MM_BITS_OF;
    static constexpr float base = TYPE == KN_Q4_0 ? 786432.0f : TYPE == KN_Q5_0 ? 1572864.0f : 12582912.0f;

    DEV void load(uint32_t a[4], const uint8_t *u, int lane)
    {
        if (TYPE == KN_Q8_0 || min) return frag_32<min>::template codes<bits>(a, u, lane);
        const uint2 c = lds8(u + 8 * lane);
        if (TYPE == KN_IQ4_NL || TYPE == KN_MXFP4) {
            table_words<TYPE>(a, a + 1, c.x);
            table_words<TYPE>(a + 2, a + 3, c.y);
        } else if (TYPE == KN_Q4_0) {
            const uint32_t mask = 0xf0f0f0f0, flip = 0x80808080;
            a[0] = few_flip(c.x << 4, mask, flip), a[1] = few_flip(c.x, mask, flip);
            a[2] = few_flip(c.y << 4, mask, flip), a[3] = few_flip(c.y, mask, flip);
        } else {
            const uint32_t high = ~high_5(u, lane);
            a[0] = (c.x << 3 & 0x78787878) | (high << 7 & 0x80808080);
            a[1] = (c.x >> 1 & 0x78787878) | (high << 3 & 0x80808080);
            a[2] = (c.y << 3 & 0x78787878) | (high << 5 & 0x80808080);
            a[3] = (c.y >> 1 & 0x78787878) | (high << 1 & 0x80808080);
        }
    }
};

#define FEW_PAIR(NT, MIN)                                                                                    \
    (64 * (NT) * ((MIN) ? 2 : 1) + 16) /* bytes of a pair of units; 16: for the banks                        \
                                        */

/* What a pair of units is multiplied with: activations of this lane's token of each tile; scales. */
template <int NT> struct few_view_32 {
    const uint8_t *b[NT], *scales;
};

/* fin += COUNT units of a pair */
template <uint32_t TYPE, int NT, int COUNT>
DEV void few_pair(float fin[NT][4], const uint8_t *st, const few_view_32<NT> &v, int lane)
{
    using code = few_codes<TYPE>;
    uint4 b[NT];
    float4 da[NT], ds[NT];
#pragma unroll
    for (int t = 0; t < NT; t++) {
        b[t] = lds16(v.b[t]);
        da[t] = *(const float4 *)(v.scales + (code::min ? 128 : 64) * t);
        if (code::min) ds[t] = *(const float4 *)(v.scales + 128 * t + 64);
    }
#pragma unroll
    for (int i = 0; i < COUNT; i++, st += code::unit_bytes) {
        uint32_t a[4];
        float d[2], m[2];
        code::load(a, st, lane);
        if (TYPE == KN_MXFP4)
            scales_mxfp4(d, st + 64 * code::bits, lane / 4);
        else
            scales_32<code::min>(d, m, st + 64 * code::bits, lane / 4);
#pragma unroll
        for (int t = 0; t < NT; t++) {
            const float s[2] = {i ? da[t].z : da[t].x, i ? da[t].w : da[t].y};
            int c[4];
            mma_32<!code::min>(c, a, i ? b[t].z : b[t].x, i ? b[t].w : b[t].y, code::start, code::start);
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const float y = __fsub_rn(__int_as_float(c[k]), code::base);
                fin[t][k] = __fmaf_rn(y, __fmul_rn(d[k / 2], s[k % 2]), fin[t][k]);
                if (code::min)
                    fin[t][k] = __fmaf_rn(m[k / 2], k % 2 ? (i ? ds[t].w : ds[t].y) : (i ? ds[t].z : ds[t].x),
                                          fin[t][k]);
            }
        }
    }
}

template <uint32_t TYPE, int NT, class R>
DEV void few_slice_32(const mm_args &a, float fin[NT][4], R &ring, few_view_32<NT> v, int units, int lane)
{
    using code = few_codes<TYPE>;
#pragma unroll
    for (int t = 0; t < NT; t++) zero(fin[t]);
    few_pairs<code::unit_bytes>(a, ring, units, [&](const uint8_t *st, auto count) {
        few_pair<TYPE, NT, decltype(count)::value>(fin, st, v, lane);
#pragma unroll
        for (int t = 0; t < NT; t++) v.b[t] += 64;
        v.scales += FEW_PAIR(NT, code::min);
    });
}

template <bool MIN> struct few_32 {
    static constexpr int registers = FEW_REGISTERS;
    static constexpr bool single = false, grids = false;

    /* Four tokens and eight units (one tile: two and 16) a warp at a time: no conflicts of banks but two a
     * read. */
    template <int NT> DEV void prepare(const mm_args &a, uint8_t *smem)
    {
        constexpr int per = NT == 1 ? 16 : 8, pair = FEW_PAIR(NT, MIN);
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
        const int t = 2 * (warp % 4) + lane / per % 2 + lane / (2 * per) * 8;
        if (t >= a.n) return;
        uint8_t *to = smem + a.at.side + (t / 8 * (MIN ? 128 : 64) + t % 8 / 2 * 16 + t % 2 * 4);
#pragma unroll 1
        for (int slice = 0; slice < a.block_slices; slice++, to += a.slice_units / 2 * pair) {
            const uint8_t *from =
                smem + a.at.act + t * a.at.row_bytes + slice * a.slice_row + 32 * a.slice_units;
#pragma unroll 1
            for (int u = warp / 4 * per + lane % per; u < a.slice_units; u += warps / 4 * per) {
                const uint2 w = lds8(from + 8 * u);
                uint8_t *p = to + u / 2 * pair + u % 2 * 8;
                *(uint32_t *)p = w.x;
                if (MIN) *(uint32_t *)(p + 64) = w.y;
            }
        }
    }
    template <int NT> DEV few_view_32<NT> view(const mm_args &a, const uint8_t *smem, int local, int lane)
    {
        few_view_32<NT> v;
        v.scales = smem + a.at.side + a.slice_units / 2 * local * FEW_PAIR(NT, MIN) + lane % 4 * 16;
#pragma unroll
        for (int t = 0; t < NT; t++) v.b[t] = few_row(a, smem, local, 8 * t + lane / 4) + lane % 4 * 16;
        return v;
    }
    template <int NT, class R>
    DEV void slice(const mm_args &a, float fin[NT][4], R &ring, uint32_t type, const few_view_32<NT> &v,
                   int units, int lane)
    {
        const auto sum = [&](auto of) { few_slice_32<of.type, NT>(a, fin, ring, v, units, lane); };
        if constexpr (MIN)
            of_types<KN_Q4_1, KN_Q5_1>(type, sum);
        else
            of_types<KN_Q8_0, KN_Q4_0, KN_IQ4_NL, KN_MXFP4, KN_Q5_0>(type, sum);
    }
};

#endif
