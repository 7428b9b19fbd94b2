/* mm_few_k.cuh - mm_few.cuh for K types. *Side*: for each unit the sums of 16 columns as f16 (|sum| <= 2,032)
 * and the scales of all tokens, put together once a block: one tensor operation multiplies the sums by the
 * minimums (by the scales, for the codes' offset), exactly: all are integers below 2^22, or such times 2^-24.
 */
#ifndef DFLASH_CUDA_MM_FEW_K_CUH
#define DFLASH_CUDA_MM_FEW_K_CUH

#include "mm_few.cuh"

/* ---- units: y, which the float sum takes as fin += y * (scale of the token), or * (d * that): few_has_mins
 * ---- */

/* What a unit is multiplied with: activations of this lane's token of each tile; sums; scales. */
template <int NT> struct few_view {
    const uint8_t *b[NT], *sums, *scales;
    const uint16_t *points;
};

/* m = A times the sums of 16 columns of tile t. */
template <int NT> DEV void few_times_sums(float m[4], const uint32_t a[4], const few_view<NT> &v, int t)
{
    const uint2 s = lds8(v.sums + 256 * t);
    zero(m);
    mma<false>(m, a, s.x, s.y);
}
/* y of minimums m (a: as f16, their integers times 2^-24), dmin times 2^24. */
template <int NT>
DEV void few_less_mins(float y[NT][4], const int sum[NT][4], const float d[2], const float dmin[2],
                       const uint32_t a[4], const few_view<NT> &v)
{
    const float up[2] = {__fmul_rn(dmin[0], 16777216.0f), __fmul_rn(dmin[1], 16777216.0f)};
#pragma unroll
    for (int t = 0; t < NT; t++) {
        float m[4];
        few_times_sums<NT>(m, a, v, t);
#pragma unroll
        for (int i = 0; i < 4; i++)
            y[t][i] = __fmaf_rn(__int2float_rn(sum[t][i]), d[i / 2], -__fmul_rn(m[i], up[i / 2]));
    }
}
/* y of signed scales (128 added: four bytes of rows g and g + 8), less `offset` times the sums that they
 * multiply. sum counts from offset times MM_BITS_OF, what the bits of m + 12582912 count from. */
template <int NT>
DEV void few_less_offset(float y[NT][4], const int sum[NT][4], const uint32_t scales[2], uint32_t offset,
                         const few_view<NT> &v)
{
    uint32_t a[4];
#pragma unroll
    for (int hi = 0; hi < 2; hi++) { /* as f16: 1024 + (128 + scale) - 1152 */
        const uint32_t even = (scales[hi] & 0x00ff00ff) | 0x64006400,
                       odd = __byte_perm(scales[hi], 0x64646464, 0x4341);
        asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(a[hi]) : "r"(even), "r"(0x64806480));
        asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(a[2 + hi]) : "r"(odd), "r"(0x64806480));
    }
#pragma unroll
    for (int t = 0; t < NT; t++) {
        float m[4];
        few_times_sums<NT>(m, a, v, t);
#pragma unroll
        for (int i = 0; i < 4; i++)
            y[t][i] = __int2float_rn(
                (int)((uint32_t)sum[t][i] - offset * __float_as_uint(__fadd_rn(m[i], 12582912.0f))));
    }
}

/* Types whose float sum takes y * (scale of the token); of the others it takes y * (d * that). */
DEV constexpr bool few_has_mins(uint32_t type)
{
    return type == KN_Q4_K || type == KN_Q5_K || type == KN_Q2_K;
}
/* Types whose unit is read into registers at once, so that its place is free before the arithmetic. */
DEV constexpr bool few_reads_first(uint32_t type)
{
    return type == KN_Q4_K || type == KN_Q5_K || type == KN_Q6_K;
}
template <uint32_t TYPE, int NT, class R>
DEV void few_unit(float y[NT][4], float d[2], R &ring, const few_view<NT> &v, int lane)
{
    const uint8_t *const st = ring.wait();
    const auto act = [&](int t, int part) { return lds16(v.b[t] + 64 * part); };
    uint4 codes[4];
    if (few_reads_first(TYPE)) {
#pragma unroll
        for (int part = 0; part < 4; part++) codes[part] = lds16(st + 512 * part + 16 * lane);
    }
    const auto code = [&](int part) { return codes[part]; };
    const auto read = [&] { ring.next(codes[3].w); };
    int sum[NT][4];
    float dmin[2];
    if constexpr (TYPE == KN_Q4_K || TYPE == KN_Q5_K) {
        uint32_t mins[2][2], a[4];
        codes_45<TYPE == KN_Q4_K ? 4 : 5, NT>(sum, d, dmin, mins, st, lane, act, code, read);
#pragma unroll
        for (int hi = 0; hi < 2; hi++) /* minimums 2 q and 2 q + 1: each for two sums */
            a[hi] = a[2 + hi] =
                __byte_perm(mins[hi][0], mins[hi][1], 0x0100 + 0x0202 * (lane % 4)) & 0x00ff00ff;
        few_less_mins<NT>(y, sum, d, dmin, a, v);
    } else if constexpr (TYPE == KN_Q6_K) {
        const uint32_t scales[2] = {lds4(st + 3072 + 4 * lane), lds4(st + 3200 + 4 * lane)};
        const uint4 high[2] = {lds16(st + 2048 + 16 * lane), lds16(st + 2560 + 16 * lane)};
        codes_6<NT>(
            sum, d, st, lane, act, 32u * MM_BITS_OF, code,
            [&](int part) {
                const uint4 h = high[part / 2];
                return part % 2 ? make_uint2(h.z, h.w) : make_uint2(h.x, h.y);
            },
            read);
        few_less_offset<NT>(y, sum, scales, 32, v);
    } else if constexpr (is_signed_k(TYPE)) {
        if constexpr (TYPE == KN_IQ4_XS)
            codes_iq4_xs<NT>(sum, d, st, lane, act);
        else
            codes_grid<TYPE, NT>(sum, d, st, lane, act, v.points);
#pragma unroll
        for (int t = 0; t < NT; t++)
#pragma unroll
            for (int i = 0; i < 4; i++) y[t][i] = __int2float_rn(sum[t][i]);
    } else {
        uint32_t am[2];
        codes_23<TYPE == KN_Q2_K ? 2 : 3, NT>(sum, d, dmin, am, st, lane, act,
                                              TYPE == KN_Q2_K ? 0 : 4u * MM_BITS_OF);
        if (TYPE == KN_Q2_K) {
            const uint32_t a[4] = {am[0] & 0x00ff00ff, am[1] & 0x00ff00ff, am[0] >> 8 & 0x00ff00ff,
                                   am[1] >> 8 & 0x00ff00ff};
            few_less_mins<NT>(y, sum, d, dmin, a, v);
        } else {
            const uint32_t scales[2] = {am[0] ^ 0x80808080, am[1] ^ 0x80808080};
            few_less_offset<NT>(y, sum, scales, 4, v);
        }
    }
}

/* ---- side: [unit]{[token][sums of columns 64 k + 16 {0, 2, 1, 3}], [token] scales} ---- */

/* f16 of bytes (0, 2) or (1, 3) of w, which have 128 added, less 128 */
DEV __half2 few_halves(uint32_t w, uint32_t which)
{
    const uint32_t h = __byte_perm(w, 0x64646464, which), offset = 0x64806480;
    return __hsub2(*(const __half2 *)&h, *(const __half2 *)&offset);
}
/* A warp a token, a lane 64 columns of any slice; then they meet. */
template <int NT> DEV void few_side(const mm_args &a, uint8_t *smem)
{
    const __half2 high = __float2half2_rn(128.0f);
    const int quarters = 4 * a.slice_units, codes = 256 * a.slice_units;
#pragma unroll 1
    for (int t = threadIdx.x / 32; t < a.n; t += blockDim.x / 32) {
        const uint8_t *src = smem + a.at.act + t * a.at.row_bytes;
        uint8_t *to = smem + a.at.side;
        int left = a.block_slices;
#pragma unroll 1
        for (int i = threadIdx.x % 32;; i += 32) {
            for (; i >= quarters && left > 0; i -= quarters, left--)
                src += a.slice_row, to += FEW_SIDE(NT) * a.slice_units;
            if (left <= 0) break;
            uint2 w = lds8(src + codes + 8 * i);
            w.x ^= 0x80808080, w.y ^= 0x80808080;
            const __half2 even = __hfma2(few_halves(w.y, 0x4240), high, few_halves(w.x, 0x4240)),
                          odd = __hfma2(few_halves(w.y, 0x4341), high, few_halves(w.x, 0x4341));
            uint8_t *u = to + FEW_SIDE(NT) * (i / 4);
            *(uint2 *)(u + 32 * t + 8 * (i % 4)) =
                make_uint2(*(const uint32_t *)&even, *(const uint32_t *)&odd);
            if (i % 4 == 0)
                *(float *)(u + 256 * NT + 4 * t) = lds_float(src + codes + 32 * a.slice_units + i);
        }
    }
}

/* ---- a slice ---- */

/* fin = the sum of `units` units. */
template <uint32_t TYPE, int NT, class R>
DEV void few_slice(const mm_args &a, float fin[NT][4], R &ring, few_view<NT> v, int units, int lane)
{
#pragma unroll
    for (int t = 0; t < NT; t++) zero(fin[t]);
#pragma unroll 1
    for (; units > 0; units--) {
        float y[NT][4], d[2];
        few_unit<TYPE, NT>(y, d, ring, v, lane);
#pragma unroll
        for (int t = 0; t < NT; t++) {
            const float2 da = *(const float2 *)(v.scales + 32 * t);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float f = i % 2 ? da.y : da.x;
                fin[t][i] = __fmaf_rn(y[t][i], few_has_mins(TYPE) ? f : __fmul_rn(d[i / 2], f), fin[t][i]);
            }
            v.b[t] += 256;
        }
        v.sums += FEW_SIDE(NT), v.scales += FEW_SIDE(NT);
        if (!few_reads_first(TYPE)) ring.next();
    }
}
/* LOW: as of frag_k (mm_int.cuh). */
template <int LOW> struct few_k {
    static constexpr int registers = 104; /* prep_ahead.cuh */
    static constexpr bool single = true, grids = LOW == 2;
    template <int NT> DEV void prepare(const mm_args &a, uint8_t *smem)
    {
        if (!a.side) few_side<NT>(a, smem); /* else it has come with the rows */
    }
    template <int NT> DEV few_view<NT> view(const mm_args &a, const uint8_t *smem, int local, int lane)
    {
        few_view<NT> v;
        v.sums = smem + a.at.side + FEW_SIDE(NT) * a.slice_units * local + 8 * lane;
        v.scales = smem + a.at.side + FEW_SIDE(NT) * a.slice_units * local + 256 * NT + lane % 4 * 8;
#pragma unroll
        for (int t = 0; t < NT; t++) v.b[t] = few_row(a, smem, local, 8 * t + lane / 4) + lane % 4 * 16;
        if constexpr (grids) v.points = grid_there(smem + a.at.grid, a.points);
        return v;
    }
    template <int NT, class R>
    DEV void slice(const mm_args &a, float fin[NT][4], R &ring, uint32_t type, const few_view<NT> &v,
                   int units, int lane)
    {
        const auto sum = [&](auto of) { few_slice<of.type, NT>(a, fin, ring, v, units, lane); };
        if constexpr (LOW == 2)
            of_types<KN_IQ3_XXS, KN_IQ3_S, KN_IQ2_XXS, KN_IQ2_XS, KN_IQ2_S, KN_IQ1_S, KN_IQ1_M, KN_Q4_K,
                     KN_Q6_K, KN_Q5_K, KN_IQ4_XS, KN_Q3_K, KN_Q2_K>(type, sum);
        else if constexpr (LOW == 1)
            of_types<KN_Q4_K, KN_Q6_K, KN_Q5_K, KN_IQ4_XS, KN_Q3_K, KN_Q2_K>(type, sum);
        else
            of_types<KN_Q4_K, KN_Q6_K, KN_Q5_K>(type, sum);
    }
};

#endif
