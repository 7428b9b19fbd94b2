/* chain/pair.cuh - a pair of units (two panels, the same 256 columns) times one row: the term of every
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
#ifndef DFLASH_CUDA_CHAIN_PAIR_CUH
#define DFLASH_CUDA_CHAIN_PAIR_CUH

#include "chain.cuh"
#include "../product/prep.cuh"
#include "../product/row_units.cuh"

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
DEV void put_shared_if(bool there, uint32_t at, uint32_t v) /* no branch: lanes part and meet again slowly */
{
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.u32 p, %0, 0;\n@p st.shared.u32 [%1], %2;\n}" ::"r"((unsigned)there),
        "r"(at), "r"(v)
        : "memory");
}
DEV void put_shared_short_if(bool there, uint32_t at, int v)
{
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.u32 p, %0, 0;\n@p st.shared.u16 [%1], %2;\n}" ::"r"((unsigned)there),
        "r"(at), "h"((short)v)
        : "memory");
}
DEV void put_shared_two_if(bool there, uint32_t at, uint32_t v, uint32_t w)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %0, 0;\n@p st.shared.v2.u32 [%1], {%2, %3};\n}" ::"r"(
                     (unsigned)there),
                 "r"(at), "r"(v), "r"(w)
                 : "memory");
}
DEV float most_of(float a, float b) /* of magnitudes; a NaN stays one */
{
    float m;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(m) : "f"(a), "f"(b));
    return m;
}
/* a / 127 to the bit, of finite a >= 1e-30 (all mantissas tried). */
DEV float over_127(float a)
{
    const float y = 1.0f / 127.0f, q = __fmul_rn(a, y);
    return __fmaf_rn(__fmaf_rn(-127.0f, q, a), y, q);
}
/* 127 / a to the bit, of finite a >= 1e-30: what __fdiv_rn does for 127 and a's mantissa, which no check of
 * operands and no other way is for; what is 2^n is taken off before and put back behind. */
DEV float of_127(float a)
{
    const uint32_t bits = __float_as_uint(a), mantissa = (bits & 0x007fffff) | 0x3f800000;
    const float m = __uint_as_float(mantissa);
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(m));
    y = __fmaf_rn(y, __fmaf_rn(-m, y, 1.0f), y);
    const float q = __fmul_rn(127.0f, y);
    return __uint_as_float(__float_as_uint(__fmaf_rn(__fmaf_rn(-m, q, 127.0f), y, q)) + mantissa - bits);
}
/* Activations of blocks of 32 columns that are handed on rounded, by a warp that has one, y of column lane:
 * words of the row as it will stand in shared memory (chain/items.cuh), changed so that none is
 * CHAIN_NOT_YET: no code is -128, no sum of 32 near 2^30. */
#define ROUNDED_CODES 0x7f7f7f7fu
#define ROUNDED_SUM 0x40000000u
DEV void rounded_put(float *row, int units, int unit, float y)
{
    const int lane = threadIdx.x % 32, j = lane % 8;
    const uint32_t top = __reduce_max_sync(0xffffffff, __float_as_uint(y) & 0x7fffffff);
    const bool odd = top >= 0x7f800000, none = odd || __uint_as_float(top) < 1e-30f;
    const float amax = none ? 1.0f : __uint_as_float(top), inverse = __fdiv_rn(127.0f, amax),
                d = odd    ? __uint_as_float(0x7fc00000)
                    : none ? 0.0f
                           : over_127(amax);
    float v[4];
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = __shfl_sync(0xffffffff, y, 4 * j + i);
    const uint32_t codes = none ? 0 : round_four(v, inverse);
    const int sum = __reduce_add_sync(0xffffffff, lane < 8 ? __dp4a((int)codes, 0x01010101, 0) : 0);
    uint32_t *const at = (uint32_t *)row;
    const int to = lane < 8 ? 16 * (unit / 2) + 2 * (unit % 2) + 8 * (j / 2 % 2) + 4 * (j % 2) + j / 4
                            : 8 * units + 2 * unit + lane - 8;
    const uint32_t word = lane < 8    ? codes ^ ROUNDED_CODES
                          : lane == 8 ? __float_as_uint(d)
                                      : (uint32_t)-sum ^ ROUNDED_SUM;
    if (lane < 10) asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(at + to), "r"(word) : "memory");
}

/* N blocks as codes and what belongs to them; N at a time, for most of it is waiting. WHOLE: no branches;
 * else of fewer registers. */
template <int N, bool WHOLE> struct chain_codes {
    uint32_t w[N][2];
    float d[N];
    int sum[N], both[N];
    __device__ __forceinline__ void of(const float (*v)[8])
    {
        constexpr uint32_t LEAST = 0x0da24260, INF = 0x7f800000; /* LEAST: 1e-30 */
        uint32_t top[N];
#pragma unroll
        for (int n = 0; n < N; n++) {
            float m[4];
#pragma unroll
            for (int i = 0; i < 4; i++) m[i] = most_of(fabsf(v[n][i]), fabsf(v[n][4 + i]));
            top[n] = __float_as_uint(most_of(most_of(m[0], m[1]), most_of(m[2], m[3]))) & 0x7fffffff;
        }
#pragma unroll
        for (int n = 0; n < N; n++) top[n] = __reduce_max_sync(0xffffffff, top[n]);
#pragma unroll
        for (int n = 0; n < N; n++) {
            const bool odd = top[n] >= INF, none = top[n] - LEAST >= INF - LEAST;
            const float amax = none ? 1.0f : __uint_as_float(top[n]),
                        inverse = WHOLE ? of_127(amax) : __fdiv_rn(127.0f, amax), over = over_127(amax);
            const uint32_t mask = none ? 0 : 0xffffffff;
            d[n] = __uint_as_float(odd ? 0x7fc00000 : __float_as_uint(over) & mask);
            w[n][0] = round_four(v[n], inverse) & mask;
            w[n][1] = round_four(v[n] + 4, inverse) & mask;
            sum[n] = __dp4a((int)w[n][0], 0x01010101, __dp4a((int)w[n][1], 0x01010101, 0));
        }
#pragma unroll
        for (int n = 0; n < N; n++) sum[n] += __shfl_xor_sync(0xffffffff, sum[n], 1);
#pragma unroll
        for (int n = 0; n < N; n++) both[n] = sum[n] + __shfl_xor_sync(0xffffffff, sum[n], 2);
    }
};
/* Where a lane's part of block 0 stands in shared memory. */
struct chain_codes_at {
    uint32_t codes, s16, s32, scale;
    template <int N, bool WHOLE>
    __device__ __forceinline__ void put(const chain_codes<N, WHOLE> &c, int n, int block, bool there) const
    {
        const int lane = threadIdx.x % 32;
        put_shared_if(there, codes + 256 * block, c.w[n][0]);
        put_shared_if(there, codes + 256 * block + 16, c.w[n][1]);
        put_shared_short_if(there && lane % 2 == 0, s16 + 32 * block, c.sum[n]);
        put_shared_short_if(there && lane % 4 == 0, s32 + 16 * block, c.both[n]);
        put_shared_if(there && lane == 0, scale + 4 * block, __float_as_uint(c.d[n]));
    }
};
DEV chain_codes_at codes_at(uint32_t act, int units)
{
    const uint32_t lane = threadIdx.x % 32, n = (uint32_t)units;
    return {act + 64 * (lane / 8) + 32 * (lane % 2) + 8 * (lane / 4 % 2) + 4 * (lane / 2 % 2),
            act + 256 * n + lane, act + 288 * n + lane / 2, act + 304 * n};
}
/* act: in shared memory. The first `count` of N blocks so far apart. */
template <int N, bool WHOLE>
DEV void chain_round_here(uint32_t act, int units, int block, int apart, int count, const chain_some<N> &e)
{
    chain_codes<N, WHOLE> c;
    c.of(e.v);
    asm volatile("" : "+r"(act)); /* places are made now, not kept meanwhile */
    const chain_codes_at at = codes_at(act, units);
#pragma unroll
    for (int n = 0; n < N; n++) at.put(c, n, block + n * apart, n < count);
}

template <int N, bool WHOLE>
static __device__ __noinline__ void chain_round(uint32_t act, int units, int block, int apart, int count,
                                                chain_some<N> e)
{
    chain_round_here<N, WHOLE>(act, units, block, apart, count, e);
}
/* The same of v; HERE: no call. */
template <int N, bool WHOLE, bool HERE = false>
DEV void chain_round_of(const uint8_t *act, int units, int block, int apart, int count, const float (*v)[8])
{
    chain_some<N> e;
#pragma unroll
    for (int i = 0; i < 8 * N; i++) e.v[i / 8][i % 8] = v[i / 8][i % 8];
    if (HERE)
        chain_round_here<N, WHOLE>(shared_at(act), units, block, apart, count, e);
    else
        chain_round<N, WHOLE>(shared_at(act), units, block, apart, count, e);
}

#ifndef CHAIN_LEAN /* 1: kernels with types with grids, which want the registers of chain_lane's zeroes */
#define CHAIN_LEAN 0
#endif
/* What a lane has of its own while a row is multiplied: addresses in shared memory of its first unit's
 * activations, and B of unit after unit. Integer instructions are what a unit costs (64 lanes a clock), so
 * all of it is kept, and nothing is made again. */
struct chain_lane {
    uint32_t b_32, b_16, sums_32, sums_16, scale; /* activations: by 32 and by 16 columns, sums, scales */
    uint32_t codes, record;                       /* of a unit */
    uint32_t pick, shift, plain, joined;          /* row_fields, without a choice */
    uint2 b[8];                                   /* b[j] is zero but where j is the lane's column */
    uint32_t half[8];                             /* the same of 16 columns, of Q6_K */
    uint32_t one[8];                              /* 1 where j is the lane's column, else 0: of grids */
};
DEV uint32_t kept(uint32_t v) /* not to be made again */
{
    asm volatile("" : "+r"(v));
    return v;
}
DEV chain_lane chain_lane_at(const uint8_t *act, int units)
{
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, q = lane % 4, at = shared_at(act),
                   n = (uint32_t)units;
    chain_lane l;
    l.b_32 = kept(at + 64 * (g / 2) + 16 * q + 8 * (g % 2));
    l.b_16 = at + 64 * (g / 4) + 16 * q + 4 * (g % 4);
    l.sums_32 = kept(at + 288 * n + 4 * q);
    l.sums_16 = at + 256 * n + 4 * q;
    l.scale = at + 304 * n;
    l.codes = kept(16 * lane);
    l.record = kept(16 * g);
    l.pick = kept(q & 1 ? 0x7632 : 0x5410);
    l.shift = kept(q < 2 ? 0 : 2);
    l.plain = kept(q < 2 ? 0x3f3f3f3f : 0x30303030);
    l.joined = kept(q < 2 ? 0 : 0x0f0f0f0f);
#pragma unroll
    for (int j = 0; j < 8; j++) l.b[j] = make_uint2(0, 0), l.half[j] = 0;
    if (CHAIN_LEAN)
#pragma unroll
        for (int j = 0; j < 8; j++) l.one[j] = kept(g == (uint32_t)j);
    return l;
}
DEV uint32_t row_fields_at(uint4 r, const chain_lane &l)
{
    const uint32_t u = __byte_perm(r.y, r.z, l.pick), w = __byte_perm(r.w, r.w >> 4, l.pick);
    return (u >> l.shift & l.plain) | (w & l.joined);
}
/* v = what stands at `at`, in lanes of column j. In others it is zero: and stays so, or, in kernels whose
 * registers are wanted for types with grids (CHAIN_LEAN), is made so again. */
DEV void column_8(uint2 &v, uint32_t at, int j)
{
    if (CHAIN_LEAN) v = make_uint2(0, 0);
    asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, %2, %3;\n@p ld.shared.v2.u32 {%0, %1}, [%4];\n}"
                 : "+r"(v.x), "+r"(v.y)
                 : "r"(threadIdx.x % 32 / 4), "r"(j), "r"(at));
}
DEV void column_4(uint32_t &v, uint32_t at, int j)
{
    if (CHAIN_LEAN) v = 0;
    asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, %1, %2;\n@p ld.shared.u32 %0, [%3];\n}"
                 : "+r"(v)
                 : "r"(threadIdx.x % 32 / 4), "r"(j), "r"(at));
}
DEV uint32_t shared_4(uint32_t at)
{
    uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at));
    return v;
}

/* Q4_K, Q5_K: the term's sum; its factor is the block's scale. st: the first unit, of columns u; bytes: from
 * there to the second. */
template <int BITS> DEV float chain_45(const uint8_t *st, uint32_t bytes, chain_lane &l, uint32_t u)
{
    constexpr int records = BITS == 5 ? 2560 : 2048;
    const int q = threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < 8; j++) column_8(l.b[j], l.b_32 + 256 * u, j);
    const uint8_t *const at[2] = {st + l.codes, st + l.codes + bytes};
    int c[2][4] = {};
    uint4 high[2];
    if (BITS == 5)
#pragma unroll
        for (int p = 0; p < 2; p++) high[p] = lds16(at[p] + 2048);
#pragma unroll
    for (int part = 0; part < 4; part++) {
        uint4 codes[2];
#pragma unroll
        for (int p = 0; p < 2; p++) codes[p] = lds16(at[p] + 512 * part);
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int p = 0; p < 2; p++) {
                const uint2 b = l.b[2 * part + i];
                const uint32_t w0 = i ? codes[p].z : codes[p].x, w1 = i ? codes[p].w : codes[p].y;
                if (BITS == 4) { /* rows g + 8: 16 times the code, and the code of row g */
                    row_mma_32(c[p], w0 & 0x0f0f0f0f, w0, w1 & 0x0f0f0f0f, w1, b.x, b.y);
                } else {
                    const uint32_t hw[4] = {high[p].x, high[p].y, high[p].z, high[p].w}, h = hw[part];
                    row_mma_32(c[p], (w0 & 0x0f0f0f0f) | (shift(h, 4 - i) & 0x10101010),
                               (w0 >> 4 & 0x0f0f0f0f) | (shift(h, -i) & 0x10101010),
                               (w1 & 0x0f0f0f0f) | (shift(h, 2 - i) & 0x10101010),
                               (w1 >> 4 & 0x0f0f0f0f) | (shift(h, -2 - i) & 0x10101010), b.x, b.y);
                }
            }
    }
    int sum[4], low[4]; /* of the panels' rows g and g + 8 */
#pragma unroll
    for (int p = 0; p < 2; p++) {
        const uint32_t sums = shared_4(l.sums_32 + 16 * u);
        if (BITS == 4) c[p][2] -= c[p][0], c[p][3] -= c[p][1];
#pragma unroll
        for (int hi = 0; hi < 2; hi++) {
            const uint32_t f = row_fields_at(lds16(st + l.record + (p ? bytes : 0) + records + 128 * hi), l);
            sum[2 * p + hi] =
                c[p][2 * hi] * (int)(f & 255) + c[p][2 * hi + 1] * (int)__byte_perm(f, 0, 0x4441);
            low[2 * p + hi] = row_dot_high(sums, f);
        }
    }
    const int s = row_gather(sum, q), m = row_gather(low, q);
    const uint32_t dd = lds4(st + l.record + (q / 2 ? bytes : 0) + records + 128 * (q % 2));
    return __fmaf_rn(__int2float_rn(BITS == 4 && q % 2 ? s >> 4 : s), h_low(dd),
                     -__fmul_rn(__int2float_rn(m), h_high(dd)));
}

/* c += A B, A of signed bytes. */
DEV void row_mma_signed(int c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
/* IQ4_XS: the term's sum; *factor: d * the block's scale. */
DEV float chain_iq4(const uint8_t *st, uint32_t bytes, chain_lane &l, uint32_t u, float *factor)
{
    const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < 8; j++) column_8(l.b[j], l.b_32 + 256 * u, j);
    const uint8_t *const at[2] = {st + l.codes, st + l.codes + bytes};
    int c[2][4] = {}, sum[4]; /* sum: of the panels' rows g and g + 8 */
#pragma unroll
    for (int part = 0; part < 4; part++)
#pragma unroll
        for (int p = 0; p < 2; p++) {
            const uint4 codes = lds16(at[p] + 512 * part);
            uint32_t a[4];
            iq4_words(a, a + 1, codes.x);
            iq4_words(a + 2, a + 3, codes.y);
            row_mma_signed(c[p], a, l.b[2 * part].x, l.b[2 * part].y);
            iq4_words(a, a + 1, codes.z);
            iq4_words(a + 2, a + 3, codes.w);
            row_mma_signed(c[p], a, l.b[2 * part + 1].x, l.b[2 * part + 1].y);
        }
#pragma unroll
    for (int p = 0; p < 2; p++)
#pragma unroll
        for (int hi = 0; hi < 2; hi++) { /* scales of sub-blocks 2 q, 2 q + 1: four bits, and two above */
            const uint2 r = lds8(st + (p ? bytes : 0) + 2048 + 64 * hi + 8 * g);
            const uint32_t low = r.y >> 8 * q, high = r.x >> (12 + 4 * q);
            sum[2 * p + hi] = c[p][2 * hi] * ((int)((low & 15) | (high & 0x30)) - 32) +
                              c[p][2 * hi + 1] * ((int)((low >> 4 & 15) | (high >> 2 & 0x30)) - 32);
        }
    const int v = row_gather(sum, q);
    const uint32_t d = lds4(st + (q / 2 ? bytes : 0) + 2048 + 64 * (q % 2) + 8 * g);
    *factor = __fmul_rn(h_low(d), __uint_as_float(shared_4(l.scale + 4 * u)));
    return __int2float_rn(v);
}

/* Q6_K: the term's sum; *factor: d * the block's scale. */
DEV float chain_6(const uint8_t *st, uint32_t bytes, chain_lane &l, uint32_t u, float *factor)
{
    const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
    const uint8_t *const at[2] = {st + l.codes, st + l.codes + bytes};
    int sum[4] = {}, low[4] = {}; /* of the panels' rows g and g + 8 */
#pragma unroll
    for (int half = 0; half < 2; half++) { /* columns are sub-blocks 8 half .. */
#pragma unroll
        for (int j = 0; j < 8; j++) column_4(l.half[j], l.b_16 + 256 * u + 128 * half, j);
        /* Low four bits and high two apart, where they lie in their bytes: a mask each and no shift. Rows g +
         * 8 have 16 times the low ones, and those of row g; of the high ones even columns have 1 and 16
         * times, odd ones 4 and 64. */
        int c[2][4] = {}, h[2][4] = {};
        uint4 high[2];
#pragma unroll
        for (int p = 0; p < 2; p++) high[p] = lds16(at[p] + 2048 + 512 * half);
#pragma unroll
        for (int k = 0; k < 2; k++) {
            uint4 codes[2];
#pragma unroll
            for (int p = 0; p < 2; p++) codes[p] = lds16(at[p] + 512 * (2 * half + k));
#pragma unroll
            for (int e = 0; e < 2; e++) /* words x and z, y and w stand where the mma has its operands */
#pragma unroll
                for (int p = 0; p < 2; p++) {
                    const uint32_t b0 = l.half[4 * k + e], b1 = l.half[4 * k + 2 + e];
                    const uint32_t w0 = e ? codes[p].y : codes[p].x, w1 = e ? codes[p].w : codes[p].z,
                                   t0 = k ? high[p].z : high[p].x, t1 = k ? high[p].w : high[p].y;
                    row_mma_32(c[p], w0 & 0x0f0f0f0f, w0, w1 & 0x0f0f0f0f, w1, b0, b1);
                    if (e)
                        row_mma_32(h[p], t0 & 0x0c0c0c0c, t0 & 0xc0c0c0c0, t1 & 0x0c0c0c0c, t1 & 0xc0c0c0c0,
                                   b0, b1);
                    else
                        row_mma_32(h[p], t0 & 0x03030303, t0 & 0x30303030, t1 & 0x03030303, t1 & 0x30303030,
                                   b0, b1);
                }
        }
#pragma unroll
        for (int p = 0; p < 2; p++) {
            /* of sub-blocks 2 q, 2 q + 1 */
            const uint32_t s = shared_4(l.sums_16 + 32 * u + 16 * half);
            c[p][2] -= c[p][0], c[p][3] -= c[p][1];
#pragma unroll
            for (int hi = 0; hi < 2; hi++) {
                const uint8_t *r = st + (p ? bytes : 0) + 3072 + 128 * hi + 16 * g + 2 * q + 8 * half;
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
    const uint32_t dd = lds4(st + (q / 2 ? bytes : 0) + 3328 + 4 * g);
    const float scale = __uint_as_float(shared_4(l.scale + 4 * u));
    *factor = __fmul_rn(q % 2 ? h_high(dd) : h_low(dd), scale);
    return __int2float_rn(v);
}

/* Q2_K: the term's sum, its factor is the block's scale. Q3_K: the term's sum; *factor: d * the block's
 * scale.
 */
template <int BITS>
DEV float chain_23(const uint8_t *st, uint32_t bytes, chain_lane &l, uint32_t u, float *factor)
{
    const int g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
    const uint8_t *const at[2] = {st + l.codes, st + l.codes + bytes};
    int sum[4] = {}, low[4] = {}; /* of the panels' rows g and g + 8 */
    uint4 high[2] = {};
    if (BITS == 3)
#pragma unroll
        for (int p = 0; p < 2; p++) high[p] = lds16(at[p] + 1024);
#pragma unroll
    for (int half = 0; half < 2; half++) { /* columns are sub-blocks 8 half .. */
#pragma unroll
        for (int j = 0; j < 8; j++) column_4(l.half[j], l.b_16 + 256 * u + 128 * half, j);
        int c[2][4] = {};
#pragma unroll
        for (int k = 0; k < 2; k++)
#pragma unroll
            for (int p = 0; p < 2; p++) {
                const uint2 w = lds8(at[p] + 512 * half + 8 * k);
                const uint32_t h = k ? (half ? high[p].w : high[p].y) : (half ? high[p].z : high[p].x);
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    uint32_t a[4];
#pragma unroll
                    for (int i = 0; i < 4; i++) { /* rows g, g + 8 of sub-blocks 4 k + e, 4 k + e + 2 */
                        const int third = 2 * e + i / 2 + 4 * (i % 2);
                        a[i] = shift(i / 2 ? w.y : w.x, -2 * e - 4 * (i % 2)) & 0x03030303;
                        if (BITS == 3) a[i] |= shift(h, 2 - third) & 0x04040404;
                    }
                    row_mma_32(c[p], a[0], a[1], a[2], a[3], l.half[4 * k + e], l.half[4 * k + 2 + e]);
                }
            }
#pragma unroll
        for (int p = 0; p < 2; p++) { /* of sub-blocks 2 q, 2 q + 1 */
            const uint32_t s = shared_4(l.sums_16 + 32 * u + 16 * half);
#pragma unroll
            for (int hi = 0; hi < 2; hi++) {
                const uint8_t *const r = st + (p ? bytes : 0);
                uint32_t f, m;
                if (BITS == 2) {
                    m = *(const unsigned short *)(r + 1024 + 128 * hi + 16 * g + 8 * half + 2 * q);
                    f = m & 0x0f0f, m = m >> 4 & 0x0f0f;
                } else {
                    const uint8_t *const record = r + 1536 + 12 * (g + 8 * hi);
                    const uint32_t w[3] = {lds4(record), lds4(record + 4), lds4(record + 8)};
                    m = f = scales_q3(w, 2 * half + q / 2) >> 16 * (q % 2);
                }
                sum[2 * p + hi] += c[p][2 * hi] * signed_byte(f, 0) + c[p][2 * hi + 1] * signed_byte(f, 1);
                low[2 * p + hi] = row_dot_signed(s, m, false, low[2 * p + hi]);
            }
        }
    }
    const uint8_t *const r = st + (q / 2 ? bytes : 0);
    if constexpr (BITS == 2) {
        const int v = row_gather(sum, q), m = row_gather(low, q);
        const uint32_t d = lds4(r + 1280 + 8 * g), dmin = lds4(r + 1284 + 8 * g);
        return __fmaf_rn(__int2float_rn(v), q % 2 ? h_high(d) : h_low(d),
                         -__fmul_rn(__int2float_rn(m), q % 2 ? h_high(dmin) : h_low(dmin)));
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) sum[i] -= 4 * low[i];
        const int v = row_gather(sum, q);
        const uint32_t d = lds4(r + 1728 + 4 * g);
        *factor = __fmul_rn(q % 2 ? h_high(d) : h_low(d), __uint_as_float(shared_4(l.scale + 4 * u)));
        return __int2float_rn(v);
    }
}

#endif
