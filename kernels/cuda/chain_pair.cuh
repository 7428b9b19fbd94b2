/* chain_pair.cuh - a pair of units (two panels, the same 256 columns; or one panel, 512 columns) times one
 * row: the term of every output.
 *
 * Lane (g = lane / 4, q = lane % 4) makes column g of B from the activations of sub-block g, and zeros
 * elsewhere: step j of the mma then adds sub-block j to column j of the accumulator, where lane q finds those
 * of sub-blocks 2 q and 2 q + 1. It multiplies them by their scales; four lanes add up in two exchanges that
 * leave lane q the row of panel q / 2, g + 8 (q % 2). All of it is exact in int32 (mm_int.cuh), so the order
 * does not matter. LONG: both units are of one panel, and each has a B of its own.
 *
 * Activations of a row: [units][256] int8 as in prep.cuh; [units][16] int16 sums of 16 columns; [units][8]
 * int16 sums of 32; [units] float scales. */
#ifndef DFLASH_CUDA_CHAIN_PAIR_CUH
#define DFLASH_CUDA_CHAIN_PAIR_CUH

#include "chain.cuh"
#include "prep.cuh"
#include "row_units.cuh"

struct chain_row {
    const uint8_t *q, *s16, *s32;
    const float *scale;
};
DEV chain_row chain_row_at(const uint8_t *act, int units)
{
    return {act, act + 256 * units, act + 288 * units, (const float *)(act + 304 * units)};
}

/* Block `block` of the row (v: columns 8 lane ..): rounded as store_block of prep.cuh rounds. */
template <int N> struct chain_some {
    float v[N][8];
};
/* Two at a time, for most of it is waiting; block1 may be block0: then that alone. */
DEV void put_shared(uint32_t at, uint32_t v)
{
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(v) : "memory");
}
DEV void put_shared_short(uint32_t at, int v)
{
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(at), "h"((short)v) : "memory");
}
/* a / 127 to the bit, of finite a >= 1e-30 (all mantissas tried). */
DEV float over_127(float a)
{
    const float y = 1.0f / 127.0f, q = __fmul_rn(a, y);
    return __fmaf_rn(__fmaf_rn(-127.0f, q, a), y, q);
}
/* act: in shared memory. */
template <int N>
static __device__ __noinline__ void chain_round(uint32_t act, int units, int block0, int block1,
                                                chain_some<N> e)
{
    const int lane = threadIdx.x % 32;
    const bool two = block1 != block0;
    uint32_t top[N] = {}, w[N][2];
    float d[N];
    int sum[N], both[N];
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 8; i++) top[n] = max(top[n], __float_as_uint(e.v[n][i]) & 0x7fffffff);
#pragma unroll
    for (int n = 0; n < N; n++) top[n] = __reduce_max_sync(0xffffffff, top[n]);
#pragma unroll
    for (int n = 0; n < N; n++) {
        const bool odd = top[n] >= 0x7f800000, none = odd || __uint_as_float(top[n]) < 1e-30f;
        const float amax = none ? 1.0f : __uint_as_float(top[n]), inverse = __fdiv_rn(127.0f, amax);
        d[n] = odd ? __uint_as_float(0x7fc00000) : none ? 0.0f : over_127(amax);
        w[n][0] = none ? 0 : round_four(e.v[n], inverse);
        w[n][1] = none ? 0 : round_four(e.v[n] + 4, inverse);
        sum[n] = __dp4a((int)w[n][0], 0x01010101, __dp4a((int)w[n][1], 0x01010101, 0));
    }
#pragma unroll
    for (int n = 0; n < N; n++) sum[n] += __shfl_xor_sync(0xffffffff, sum[n], 1);
#pragma unroll
    for (int n = 0; n < N; n++) both[n] = sum[n] + __shfl_xor_sync(0xffffffff, sum[n], 2);
    const uint32_t to = act + 64 * (lane / 8) + 32 * (lane % 2) + 8 * (lane / 4 % 2) + 4 * (lane / 2 % 2),
                   s16 = act + 256 * units + lane, s32 = act + 288 * units + lane / 2;
#pragma unroll
    for (int n = 0; n < N; n++) {
        if (n && !two) return;
        const int block = n ? block1 : block0;
        put_shared(to + 256 * block, w[n][0]);
        put_shared(to + 256 * block + 16, w[n][1]);
        if (lane % 2 == 0) put_shared_short(s16 + 32 * block, sum[n]);
        if (lane % 4 == 0) put_shared_short(s32 + 16 * block, both[n]);
        if (lane == 0) put_shared(act + 304 * units + 4 * block, __float_as_uint(d[n]));
    }
}

/* Q4_K, Q5_K: the term's sum; its factor is the block's scale. bytes: from the first unit to the second; u:
 * of which columns the first is. */
template <int BITS, bool LONG>
DEV float chain_45(const uint8_t *st, int bytes, const chain_row &x, int u, int lane)
{
    const int g = lane / 4, q = lane % 4;
    constexpr int records = BITS == 5 ? 2560 : 2048;
    uint2 b[2];
#pragma unroll
    for (int p = 0; p < (LONG ? 2 : 1); p++)
        b[p] = lds8(x.q + 256 * (u + p) + 64 * (g / 2) + 16 * q + 8 * (g % 2));
    const uint8_t *const at[2] = {st, st + bytes};
    int c[2][2][4] = {}; /* of columns 0 to 3, 4 to 7: two chains are half as long */
    uint4 high[2];
    if (BITS == 5)
#pragma unroll
        for (int p = 0; p < 2; p++) high[p] = lds16(at[p] + 2048 + 16 * lane);
#pragma unroll
    for (int part = 0; part < 4; part++) {
        uint4 codes[2];
#pragma unroll
        for (int p = 0; p < 2; p++) codes[p] = lds16(at[p] + 512 * part + 16 * lane);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const bool mine = g == 2 * part + i;
#pragma unroll
            for (int p = 0; p < 2; p++) {
                const uint32_t b0 = mine ? b[LONG ? p : 0].x : 0, b1 = mine ? b[LONG ? p : 0].y : 0;
                const uint32_t w0 = i ? codes[p].z : codes[p].x, w1 = i ? codes[p].w : codes[p].y;
                if (BITS == 4) { /* rows g + 8: 16 times the code */
                    row_mma_32(c[part / 2][p], w0 & 0x0f0f0f0f, w0 & 0xf0f0f0f0, w1 & 0x0f0f0f0f,
                               w1 & 0xf0f0f0f0, b0, b1);
                } else {
                    const uint32_t hw[4] = {high[p].x, high[p].y, high[p].z, high[p].w}, h = hw[part];
                    row_mma_32(c[part / 2][p], (w0 & 0x0f0f0f0f) | (shift(h, 4 - i) & 0x10101010),
                               (w0 >> 4 & 0x0f0f0f0f) | (shift(h, -i) & 0x10101010),
                               (w1 & 0x0f0f0f0f) | (shift(h, 2 - i) & 0x10101010),
                               (w1 >> 4 & 0x0f0f0f0f) | (shift(h, -2 - i) & 0x10101010), b0, b1);
                }
            }
        }
    }
#pragma unroll
    for (int p = 0; p < 2; p++)
#pragma unroll
        for (int i = 0; i < 4; i++) c[0][p][i] += c[1][p][i];
    int sum[4], low[4]; /* of the panels' rows g and g + 8 */
#pragma unroll
    for (int p = 0; p < 2; p++) {
        const uint32_t sums = lds4(x.s32 + 16 * (u + (LONG ? p : 0)) + 4 * q);
#pragma unroll
        for (int hi = 0; hi < 2; hi++) {
            const uint32_t f = row_fields(lds16(at[p] + records + 128 * hi + 16 * g), q);
            sum[2 * p + hi] =
                c[0][p][2 * hi] * (int)(f & 255) + c[0][p][2 * hi + 1] * (int)__byte_perm(f, 0, 0x4441);
            low[2 * p + hi] = row_dot_high(sums, f);
        }
    }
    const int s = row_gather(sum, q), m = row_gather(low, q);
    const uint32_t dd = lds4((q / 2 ? at[1] : at[0]) + records + 128 * (q % 2) + 16 * g);
    return __fmaf_rn(__int2float_rn(BITS == 4 && q % 2 ? s >> 4 : s), h_low(dd),
                     -__fmul_rn(__int2float_rn(m), h_high(dd)));
}

/* Q6_K: the term's sum; *factor: d * the block's scale. */
template <bool LONG>
DEV float chain_6(const uint8_t *st, int bytes, const chain_row &x, int u, int lane, float *factor)
{
    const int g = lane / 4, q = lane % 4;
    uint32_t b[2][2];
#pragma unroll
    for (int p = 0; p < (LONG ? 2 : 1); p++)
#pragma unroll
        for (int h = 0; h < 2; h++)
            b[p][h] = lds4(x.q + 256 * (u + p) + 128 * h + 64 * (g / 4) + 16 * q + 4 * (g % 4));
    int sum[4] = {}, low[4] = {}; /* of the panels' rows g and g + 8 */
#pragma unroll
    for (int half = 0; half < 2; half++) { /* columns are sub-blocks 8 half .. */
        /* Low four bits and high two apart, where they lie in their bytes: a mask each and no shift. Rows g +
         * 8 have 16 times the low ones; of the high ones even columns have 1 and 16 times, odd ones 4 and 64.
         */
        int c[2][4] = {}, h[2][4] = {};
        uint4 high[2];
#pragma unroll
        for (int p = 0; p < 2; p++) high[p] = lds16(st + p * bytes + 2048 + 512 * half + 16 * lane);
#pragma unroll
        for (int k = 0; k < 2; k++) {
            uint4 codes[2];
#pragma unroll
            for (int p = 0; p < 2; p++) codes[p] = lds16(st + p * bytes + 512 * (2 * half + k) + 16 * lane);
#pragma unroll
            for (int e = 0; e < 2; e++) {
#pragma unroll
                for (int p = 0; p < 2; p++) {
                    const uint32_t mine = b[LONG ? p : 0][half], b0 = g == 4 * k + 2 * e ? mine : 0,
                                   b1 = g == 4 * k + 2 * e + 1 ? mine : 0;
                    const uint32_t w0 = e ? codes[p].z : codes[p].x, w1 = e ? codes[p].w : codes[p].y,
                                   t = k   ? e ? high[p].w : high[p].z
                                       : e ? high[p].y
                                           : high[p].x;
                    row_mma_32(c[p], w0 & 0x0f0f0f0f, w0 & 0xf0f0f0f0, w1 & 0x0f0f0f0f, w1 & 0xf0f0f0f0, b0,
                               b1);
                    row_mma_32(h[p], t & 0x03030303, t & 0x30303030, t & 0x0c0c0c0c, t & 0xc0c0c0c0, b0, b1);
                }
            }
        }
#pragma unroll
        for (int p = 0; p < 2; p++) {
            /* of sub-blocks 2 q, 2 q + 1 */
            const uint32_t s = lds4(x.s16 + 32 * (u + (LONG ? p : 0)) + 16 * half + 4 * q);
#pragma unroll
            for (int hi = 0; hi < 2; hi++) {
                const uint8_t *r = st + p * bytes + 3072 + 128 * hi + 16 * g + 2 * q + 8 * half;
                const uint32_t f = (uint32_t) * (const unsigned short *)r ^ 0x8080;
                const int even = c[p][2 * hi] + 16 * h[p][2 * hi],
                          odd = c[p][2 * hi + 1] + 4 * h[p][2 * hi + 1];
                low[2 * p + hi] = row_dot_signed(s, f, false, low[2 * p + hi]);
                sum[2 * p + hi] +=
                    (hi ? even >> 4 : even) * signed_byte(f, 0) + (hi ? odd >> 4 : odd) * signed_byte(f, 1);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) sum[i] -= 32 * low[i];
    const int v = row_gather(sum, q);
    const uint32_t dd = lds4(st + q / 2 * bytes + 3328 + 4 * g);
    *factor = __fmul_rn(q % 2 ? h_high(dd) : h_low(dd), x.scale[u + (LONG ? q / 2 : 0)]);
    return __int2float_rn(v);
}

#endif
