/* chain_unit.cuh - a pair of units (two panels, the same 256 columns) times one row: the term of every
 * output.
 *
 * Lane (g = lane / 4, q = lane % 4) makes column g of B from the activations of sub-block g, and zeros
 * elsewhere: step j of the mma then adds sub-block j to column j of the accumulator, where lane q finds those
 * of sub-blocks 2 q and 2 q + 1. It multiplies them by their scales; four lanes add up in two exchanges that
 * leave lane q the row of panel q / 2, g + 8 (q % 2). All of it is exact in int32 (mm_int.cuh), so the order
 * does not matter.
 *
 * Activations of a row: [units][256] int8 as in prep.cuh; [units][16] int16 sums of 16 columns; [units][8]
 * int16 sums of 32; [units] float scales. */
#ifndef DFLASH_CUDA_CHAIN_UNIT_CUH
#define DFLASH_CUDA_CHAIN_UNIT_CUH

#include "chain_sync.cuh"
#include "prep.cuh"
#include "row_units.cuh"

#ifndef CHAIN_FIVES
#define CHAIN_FIVES 2
#endif /* units of Q5_K at a time */

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
static __device__ __noinline__ void chain_round_two(uint8_t *act, int units, int block0, int block1,
                                                    chain_some<2> e)
{
    const int lane = threadIdx.x % 32;
    const bool two = block1 != block0;
    uint32_t top[2] = {0, 0}, w[2][2];
    float d[2];
    int sum[2], both[2];
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int i = 0; i < 8; i++) top[n] = max(top[n], __float_as_uint(e.v[n][i]) & 0x7fffffff);
#pragma unroll
    for (int n = 0; n < 2; n++) top[n] = __reduce_max_sync(0xffffffff, top[n]);
#pragma unroll
    for (int n = 0; n < 2; n++) {
        const bool odd = top[n] >= 0x7f800000, none = odd || __uint_as_float(top[n]) < 1e-30f;
        const float amax = none ? 1.0f : __uint_as_float(top[n]), inverse = __fdiv_rn(127.0f, amax);
        d[n] = odd ? __uint_as_float(0x7fc00000) : none ? 0.0f : __fdiv_rn(amax, 127.0f);
        w[n][0] = none ? 0 : round_four(e.v[n], inverse);
        w[n][1] = none ? 0 : round_four(e.v[n] + 4, inverse);
        sum[n] = __dp4a((int)w[n][0], 0x01010101, __dp4a((int)w[n][1], 0x01010101, 0));
    }
#pragma unroll
    for (int n = 0; n < 2; n++) sum[n] += __shfl_xor_sync(0xffffffff, sum[n], 1);
#pragma unroll
    for (int n = 0; n < 2; n++) both[n] = sum[n] + __shfl_xor_sync(0xffffffff, sum[n], 2);
#pragma unroll
    for (int n = 0; n < 2; n++) {
        if (n && !two) return;
        const int block = n ? block1 : block0;
        uint8_t *q =
            act + 256 * block + 64 * (lane / 8) + 32 * (lane % 2) + 8 * (lane / 4 % 2) + 4 * (lane / 2 % 2);
        *(uint32_t *)q = w[n][0];
        *(uint32_t *)(q + 16) = w[n][1];
        if (lane % 2 == 0) *(short *)(act + 256 * units + 32 * block + lane) = (short)sum[n];
        if (lane % 4 == 0) *(short *)(act + 288 * units + 16 * block + lane / 2) = (short)both[n];
        if (lane == 0) *(float *)(act + 304 * units + 4 * block) = d[n];
    }
}

/* Q4_K, Q5_K: y: the terms' sums, their factors the blocks' scales; of N pairs of units at st, of columns u:
 * what is independent hides what waits. bytes: from the first panel's units to the second's. */
template <int BITS, int N>
DEV void chain_45(float y[N], const uint8_t *const st[N], int bytes, const chain_row &x, const int u[N],
                  int lane)
{
    const int g = lane / 4, q = lane % 4;
    constexpr int records = BITS == 5 ? 2560 : 2048, P = 2 * N; /* panels */
    uint2 b[N];
    const uint8_t *at[P];
#pragma unroll
    for (int n = 0; n < N; n++) {
        b[n] = lds8(x.q + 256 * u[n] + 64 * (g / 2) + 16 * q + 8 * (g % 2));
        at[2 * n] = st[n];
        at[2 * n + 1] = st[n] + bytes;
    }
    int c[P][4] = {};
    uint4 high[P];
    if (BITS == 5)
#pragma unroll
        for (int p = 0; p < P; p++) high[p] = lds16(at[p] + 2048 + 16 * lane);
#pragma unroll
    for (int part = 0; part < 4; part++) {
        uint4 codes[P];
#pragma unroll
        for (int p = 0; p < P; p++) codes[p] = lds16(at[p] + 512 * part + 16 * lane);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const bool mine = g == 2 * part + i;
#pragma unroll
            for (int p = 0; p < P; p++) {
                const uint32_t b0 = mine ? b[p / 2].x : 0, b1 = mine ? b[p / 2].y : 0;
                const uint32_t w0 = i ? codes[p].z : codes[p].x, w1 = i ? codes[p].w : codes[p].y;
                if (BITS == 4) { /* rows g + 8: 16 times the code */
                    row_mma_32(c[p], w0 & 0x0f0f0f0f, w0 & 0xf0f0f0f0, w1 & 0x0f0f0f0f, w1 & 0xf0f0f0f0, b0,
                                 b1);
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
    int sum[P][2], low[P][2];
#pragma unroll
    for (int p = 0; p < P; p++) {
        const uint32_t sums = lds4(x.s32 + 16 * u[p / 2] + 4 * q);
#pragma unroll
        for (int hi = 0; hi < 2; hi++) {
            const uint32_t f = row_fields(lds16(at[p] + records + 128 * hi + 16 * g), q);
            sum[p][hi] = c[p][2 * hi] * (int)(f & 255) + c[p][2 * hi + 1] * (int)__byte_perm(f, 0, 0x4441);
            low[p][hi] = row_dot_high(sums, f);
        }
    }
#pragma unroll
    for (int n = 0; n < N; n++) {
        const int s = row_gather(sum[2 * n], q), m = row_gather(low[2 * n], q);
        const uint32_t dd = lds4((q / 2 ? at[2 * n + 1] : at[2 * n]) + records + 128 * (q % 2) + 16 * g);
        y[n] = __fmaf_rn(__int2float_rn(BITS == 4 && q % 2 ? s >> 4 : s), h_low(dd),
                         -__fmul_rn(__int2float_rn(m), h_high(dd)));
    }
}

/* Q6_K: the term's sum; *factor: d * the block's scale. */
DEV float chain_6(const uint8_t *st, int bytes, const chain_row &x, int u, int lane, float *factor)
{
    const int g = lane / 4, q = lane % 4;
    uint32_t b[2];
#pragma unroll
    for (int h = 0; h < 2; h++) b[h] = lds4(x.q + 256 * u + 128 * h + 64 * (g / 4) + 16 * q + 4 * (g % 4));
    int c[2][2][4] = {}; /* [panel][columns 0 to 7 are sub-blocks 0 to 7, 8 to 15] */
#pragma unroll
    for (int part = 0; part < 4; part++)
#pragma unroll
        for (int p = 0; p < 2; p++) {
            const uint4 codes = lds16(st + p * bytes + 512 * part + 16 * lane);
            const uint2 pairs = lds8(st + p * bytes + 2048 + 512 * (part / 2) + 16 * lane + 8 * (part % 2));
            const uint32_t w[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const uint32_t h = e / 2 ? pairs.y : pairs.x;
                row_mma_16(c[p][part / 2], (w[e] & 0x0f0f0f0f) | (shift(h, 4 - 2 * (e % 2)) & 0x30303030),
                             (w[e] >> 4 & 0x0f0f0f0f) | (shift(h, -2 * (e % 2)) & 0x30303030),
                             g == 4 * (part % 2) + e ? b[part / 2] : 0);
            }
        }
    /* sums of sub-blocks 2 q, 2 q + 1 and 8 + these */
    const uint32_t s[2] = {lds4(x.s16 + 32 * u + 4 * q), lds4(x.s16 + 32 * u + 16 + 4 * q)};
    int sum[4];
#pragma unroll
    for (int p = 0; p < 2; p++)
#pragma unroll
        for (int hi = 0; hi < 2; hi++) {
            const uint8_t *r = st + p * bytes + 3072 + 128 * hi + 16 * g + 2 * q;
            const uint32_t f = ((uint32_t) * (const unsigned short *)r |
                                (uint32_t) * (const unsigned short *)(r + 8) << 16) ^
                               0x80808080;
            const int low = row_dot_signed(s[0], f, false, row_dot_signed(s[1], f, true, 0));
            sum[2 * p + hi] = c[p][0][2 * hi] * signed_byte(f, 0) + c[p][0][2 * hi + 1] * signed_byte(f, 1) +
                              c[p][1][2 * hi] * signed_byte(f, 2) + c[p][1][2 * hi + 1] * signed_byte(f, 3) -
                              32 * low;
        }
    const int v = row_gather(sum, q);
    const uint32_t dd = lds4(st + q / 2 * bytes + 3328 + 4 * g);
    *factor = __fmul_rn(q % 2 ? h_high(dd) : h_low(dd), x.scale[u]);
    return __int2float_rn(v);
}

#endif
