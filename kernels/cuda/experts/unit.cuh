/* experts/unit.cuh - two units (16 rows x 256 columns each) times one row's activations of their columns: the
 * term of every output, for a mixture of one row (experts/whole.cu).
 *
 * One row needs one column of the mma's B. Here its eight columns are the sub-blocks of the 256: lane (g =
 * lane / 4, q = lane % 4) makes column g from the activations of sub-block g, and zeros elsewhere, step j of
 * the mma adds sub-block j to column j of the accumulator, and lane q finds those of sub-blocks 2 q and 2 q +
 * 1 in it. It multiplies them by their integer scales; four lanes add up in two exchanges that leave lane q
 * the row g + 8 (q % 2) of unit q / 2. All of it is exact in int32 (mm_int.cuh), so a term, and a sum of
 * terms in order of the columns, has the bits that the kernels for more rows give it.
 *
 * Activations of 256 columns, UNIT_ACT bytes: [256] int8 in the order of prep_block.cuh; [16] int16 sums of
 * 16 columns; [8] int16 sums of 32; the float scale. */
#ifndef DFLASH_CUDA_EXPERTS_UNIT_CUH
#define DFLASH_CUDA_EXPERTS_UNIT_CUH

#include "hand.cuh"
#include "../product/prep.cuh"
#include "../product/row_units.cuh"

#define UNIT_ACT 320 /* bytes; 308 are used */
#define UNIT_SUMS 256
#define UNIT_SUMS_32 288
#define UNIT_SCALE 304

/* Codes and scale to where the products look for them. */
DEV void unit_put(uint8_t *act, const rounded &r)
{
    const int lane = threadIdx.x % 32;
    int sum = __dp4a((int)r.w0, 0x01010101, __dp4a((int)r.w1, 0x01010101, 0));
    sum += __shfl_xor_sync(0xffffffff, sum, 1);
    const int both = sum + __shfl_xor_sync(0xffffffff, sum, 2);
    uint8_t *q = act + 64 * (lane / 8) + 32 * (lane % 2) + 8 * (lane / 4 % 2) + 4 * (lane / 2 % 2);
    *(uint32_t *)q = r.w0;
    *(uint32_t *)(q + 16) = r.w1;
    if (lane % 2 == 0) *(short *)(act + UNIT_SUMS + lane) = (short)sum;
    if (lane % 4 == 0) *(short *)(act + UNIT_SUMS_32 + lane / 2) = (short)both;
    if (lane == 0) *(float *)(act + UNIT_SCALE) = r.d;
}
/* v: columns 8 lane .. of a block; rounded as store_block rounds (prep_block.cuh). */
DEV void unit_round(uint8_t *act, const float v[8])
{
    unit_put(act, round_block<true>(v));
}
/* A unit that the launch before hands over. */
DEV void unit_of_hand(const uint4 *unit, unsigned tag, uint8_t *act)
{
    unit_put(act, hand_get(unit, tag));
}

/* Unit `unit` of a prepared row, as unit_round would leave it. */
DEV void unit_of_row(const uint8_t *rows, int slice_units, int slice_row, int unit, uint8_t *act)
{
    const int lane = threadIdx.x % 32, slice = unit / slice_units, local = unit - slice * slice_units,
              j = lane % 16;
    const uint8_t *from = rows + (size_t)slice * (size_t)slice_row,
                  *sums = from + 256 * slice_units + 32 * local + 8 * (j / 4);
    const uint2 q = __ldcg((const uint2 *)(from + 256 * local) + lane), s = __ldcg((const uint2 *)sums);
    const float d = __ldcg((const float *)(from + 288 * slice_units) + local);
    const int sum = signed_byte(s.x, j % 4) + 128 * signed_byte(s.y, j % 4),
              both = sum + __shfl_xor_sync(~0u, sum, 1);
    ((uint2 *)act)[lane] = q;
    if (lane < 16) *(short *)(act + UNIT_SUMS + 2 * j) = (short)sum;
    if (lane < 16 && j % 2 == 0) *(short *)(act + UNIT_SUMS_32 + j) = (short)both;
    if (lane == 0) *(float *)(act + UNIT_SCALE) = d;
}

/* Q4_K, Q5_K: units st[0], st[1] and their activations. {the term's sum, its factor}. */
template <int BITS> DEV float2 unit_45(const uint8_t *const st[2], const uint8_t *const x[2], int lane)
{
    const int g = lane / 4, q = lane % 4;
    constexpr int records = BITS == 5 ? 2560 : 2048;
    uint2 b[2];
    int c[2][4] = {};
    uint4 high[2];
#pragma unroll
    for (int p = 0; p < 2; p++) {
        b[p] = lds8(x[p] + 64 * (g / 2) + 16 * q + 8 * (g % 2));
        if (BITS == 5) high[p] = lds16(st[p] + 2048 + 16 * lane);
    }
#pragma unroll
    for (int part = 0; part < 4; part++) {
        uint4 codes[2];
#pragma unroll
        for (int p = 0; p < 2; p++) codes[p] = lds16(st[p] + 512 * part + 16 * lane);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const bool mine = g == 2 * part + i;
#pragma unroll
            for (int p = 0; p < 2; p++) {
                const uint32_t b0 = mine ? b[p].x : 0, b1 = mine ? b[p].y : 0;
                const uint32_t w0 = i ? codes[p].z : codes[p].x, w1 = i ? codes[p].w : codes[p].y;
                if (BITS == 4) { /* rows g + 8: 16 times the code and the code of g */
                    row_mma_32(c[p], w0 & 0x0f0f0f0f, w0, w1 & 0x0f0f0f0f, w1, b0, b1);
                } else {
                    const uint32_t hw[4] = {high[p].x, high[p].y, high[p].z, high[p].w}, h = hw[part];
                    row_mma_32(c[p], (w0 & 0x0f0f0f0f) | (shift(h, 4 - i) & 0x10101010),
                               (w0 >> 4 & 0x0f0f0f0f) | (shift(h, -i) & 0x10101010),
                               (w1 & 0x0f0f0f0f) | (shift(h, 2 - i) & 0x10101010),
                               (w1 >> 4 & 0x0f0f0f0f) | (shift(h, -2 - i) & 0x10101010), b0, b1);
                }
            }
        }
    }
    int sum[4], low[4];
    uint32_t dd = 0; /* of this lane's row */
#pragma unroll
    for (int p = 0; p < 2; p++) {
        if (BITS == 4) c[p][2] -= c[p][0], c[p][3] -= c[p][1];
#pragma unroll
        for (int hi = 0; hi < 2; hi++) {
            const uint4 r = lds16(st[p] + records + 128 * hi + 16 * g);
            const uint32_t f = row_fields(r, q);
            dd = q == 2 * p + hi ? r.x : dd;
            sum[2 * p + hi] =
                c[p][2 * hi] * (int)(f & 255) + c[p][2 * hi + 1] * (int)__byte_perm(f, 0, 0x4441);
            low[2 * p + hi] = row_dot_high(lds4(x[p] + UNIT_SUMS_32 + 4 * q), f);
        }
    }
    const int s = row_gather(sum, q), m = row_gather(low, q);
    return make_float2(__fmaf_rn(__int2float_rn(BITS == 4 && q % 2 ? s >> 4 : s), h_low(dd),
                                 -__fmul_rn(__int2float_rn(m), h_high(dd))),
                       q < 2 ? lds_float(x[0] + UNIT_SCALE) : lds_float(x[1] + UNIT_SCALE));
}

/* Q6_K, the same. */
DEV float2 unit_6(const uint8_t *const st[2], const uint8_t *const x[2], int lane)
{
    const int g = lane / 4, q = lane % 4;
    int sum[4];
#pragma unroll
    for (int p = 0; p < 2; p++) {
        uint32_t b[2];
        int c[2][4] = {}; /* columns 0 to 7 are sub-blocks 0 to 7, 8 to 15 */
#pragma unroll
        for (int h = 0; h < 2; h++) b[h] = lds4(x[p] + 128 * h + 64 * (g / 4) + 16 * q + 4 * (g % 4));
#pragma unroll
        for (int part = 0; part < 4; part++) {
            const uint4 codes = lds16(st[p] + 512 * part + 16 * lane);
            const uint2 pairs = lds8(st[p] + 2048 + 512 * (part / 2) + 16 * lane + 8 * (part % 2));
            const uint32_t w[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const uint32_t h = e / 2 ? pairs.y : pairs.x;
                row_mma_16(c[part / 2], (w[e] & 0x0f0f0f0f) | (shift(h, 4 - 2 * (e % 2)) & 0x30303030),
                           (w[e] >> 4 & 0x0f0f0f0f) | (shift(h, -2 * (e % 2)) & 0x30303030),
                           g == 4 * (part % 2) + e ? b[part / 2] : 0);
            }
        }
        /* sums of sub-blocks 2 q, 2 q + 1 and 8 + these */
        const uint32_t s[2] = {lds4(x[p] + UNIT_SUMS + 4 * q), lds4(x[p] + UNIT_SUMS + 16 + 4 * q)};
#pragma unroll
        for (int hi = 0; hi < 2; hi++) {
            const uint8_t *r = st[p] + 3072 + 128 * hi + 16 * g + 2 * q;
            const uint32_t f = ((uint32_t) * (const unsigned short *)r |
                                (uint32_t) * (const unsigned short *)(r + 8) << 16) ^
                               0x80808080;
            const int low = row_dot_signed(s[0], f, false, row_dot_signed(s[1], f, true, 0));
            sum[2 * p + hi] = c[0][2 * hi] * signed_byte(f, 0) + c[0][2 * hi + 1] * signed_byte(f, 1) +
                              c[1][2 * hi] * signed_byte(f, 2) + c[1][2 * hi + 1] * signed_byte(f, 3) -
                              32 * low;
        }
    }
    const int v = row_gather(sum, q);
    const uint32_t dd = q < 2 ? lds4(st[0] + 3328 + 4 * g) : lds4(st[1] + 3328 + 4 * g);
    return make_float2(__int2float_rn(v),
                       __fmul_rn(q % 2 ? h_high(dd) : h_low(dd),
                                 q < 2 ? lds_float(x[0] + UNIT_SCALE) : lds_float(x[1] + UNIT_SCALE)));
}

/* Of whichever of the three types (without FIVE, Q5_K is not among them). A call: instructions that one
 * product has fetched are there for the next. */
template <bool FIVE>
static __device__ __noinline__ float2 unit_terms(uint32_t type, const uint8_t *st0, const uint8_t *st1,
                                                 const uint8_t *x0, const uint8_t *x1)
{
    const uint8_t *const st[2] = {st0, st1}, *const x[2] = {x0, x1};
    const int lane = threadIdx.x % 32;
    if (type == KN_Q4_K) return unit_45<4>(st, x, lane);
    return FIVE && type == KN_Q5_K ? unit_45<5>(st, x, lane) : unit_6(st, x, lane);
}

#endif
