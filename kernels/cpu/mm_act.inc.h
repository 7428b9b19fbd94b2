/* mm_act.inc.h - activations as the kernels want them: interleaved by tile, and 8-bit for quantised weights.
 *
 * A block of 32 or 256 values x becomes q = round(x * (127 / amax)), ties to even, and d = amax / 127, amax
 * the largest |x|. Every step is one rounded float32 operation, so the result is the same everywhere.
 * Non-finite values: the largest bit pattern of |x| shows a NaN or Inf; d is then NaN (q zero), and so is
 * every product. amax below MM_ACT_TINY, where 127 / amax nears the end of the float range, counts as zero:
 * the absolute error of an output is below MM_ACT_TINY times the sum of |w|. */
#include <string.h>

#define MM_ACT_TINY 1e-30f

static inline uint32_t act_max_bits(const float *x, int n)
{
    uint32_t m = 0;
    for (int i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, x + i, 4);
        u &= 0x7fffffffu;
        m = u > m ? u : m;
    }
    return m;
}

/* q [n] of x [n]; returns d. */
static inline float act_round(int8_t *q, const float *x, int n)
{
    const uint32_t bits = act_max_bits(x, n);
    float amax;
    memcpy(&amax, &bits, 4);
    if (!(amax >= MM_ACT_TINY) || bits >= 0x7f800000u) {
        memset(q, 0, (size_t)n);
        return bits >= 0x7f800000u ? __builtin_nanf("") : 0.0f;
    }
    const float inverse = 127.0f / amax;
    for (int i = 0; i < n; i++) {
        /* Adding 1.5 * 2^23 rounds to an integer, ties to even, in the low bits. |x * inverse| < 127.5. */
        const float r = x[i] * inverse + 12582912.0f;
        int32_t u;
        memcpy(&u, &r, 4);
        q[i] = (int8_t)(u - 0x4b400000);
    }
    return amax / 127.0f;
}

/* sum [n / 16] of each 16 of q [n], a word of four at a time: biased to unsigned, two 16-bit sums a word. */
static inline void act_sums(int16_t *sum, const int8_t *q, int n)
{
    uint32_t w[64];
    for (int g = 0; g < n / 4; g++) {
        memcpy(w + g, q + 4 * g, 4);
        w[g] ^= 0x80808080u;
        w[g] = (w[g] & 0x00ff00ffu) + (w[g] >> 8 & 0x00ff00ffu);
    }
    for (int j = 0; j < n / 16; j++) {
        const uint32_t s = w[4 * j] + w[4 * j + 1] + w[4 * j + 2] + w[4 * j + 3];
        sum[j] = (int16_t)((int32_t)(s & 0xffff) + (int32_t)(s >> 16) - 16 * 128);
    }
}

/* n / 4 groups of q to dst[n / 4][T][4], token t. */
static inline void act_spread(uint8_t *dst, const int8_t *q, int n, int t, int T)
{
    dst += 4 * t;
    for (int g = 0; g < n / 4; g++, dst += 4 * T) memcpy(dst, q + 4 * g, 4);
}

static void act_q32(uint8_t *act, const float *x, int64_t n_in, int t, int T)
{
    const int64_t nb = n_in / 32;
    float *d = (float *)(act + n_in * T), *s = d + 2 * nb * T;
    int32_t *nsum = (int32_t *)(d + nb * T);
    int8_t q[32] = {0};
    int16_t sum[2] = {0};
    for (int64_t b = 0; b < nb; b++) {
        const float db = x ? act_round(q, x + 32 * b, 32) : 0.0f;
        if (x) act_sums(sum, q, 32);
        act_spread(act + 32 * b * T, q, 32, t, T);
        d[b * T + t] = db;
        nsum[b * T + t] = -(sum[0] + sum[1]);
        s[b * T + t] = db * (float)(sum[0] + sum[1]);
    }
}

/* Which codes could make the sum of a sub-block leave 16 bits: MM_WIDE_* (mm.h). q [256], sum its sums of 16.
 * The largest sum of unsigned codes is the largest code times the sum of the positive q, or of the negative
 * ones, and twice the larger of these is sum |q| + |sum q|. Q6_K's codes are -32 to 31: 32 times sum |q|. */
static inline int32_t act_wide(const int8_t *q, const int16_t *sum)
{
    int32_t most16 = 0, most32 = 0, size[16];
    for (int j = 0; j < 16; j++) {
        int32_t s = 0;
        for (int i = 0; i < 16; i++) s += q[16 * j + i] < 0 ? -q[16 * j + i] : q[16 * j + i];
        size[j] = s;
        most16 = s > most16 ? s : most16;
    }
    for (int j = 0; j < 16; j += 2) {
        const int32_t s = sum[j] + sum[j + 1], twice = size[j] + size[j + 1] + (s < 0 ? -s : s);
        most32 = twice > most32 ? twice : most32;
    }
    return (15 * (most32 / 2) > 32767 ? MM_WIDE_4 : 0) | (31 * (most32 / 2) > 32767 ? MM_WIDE_5 : 0) |
           (32 * most16 > 32767 ? MM_WIDE_6 : 0);
}

/* MM_ACT_Q256: where token 0's four codes from k on lie, those of token t 8 t bytes later, and among n16 the
 * number of sub-block s of 16, 2 t later. */
static inline int64_t act_at(int64_t k, int T)
{
    return (k / 64 * 64 + k % 32 / 4 * 8) * T + k / 32 % 2 * 4;
}
static inline int64_t act_n16_at(int64_t s, int T)
{
    return (s / 4 * 2 + s % 2) * 2 * T + s / 2 % 2;
}

/* What n16 holds for a sub-block of 16 q with that sum (mm.h). */
static inline int32_t act_n16(const int8_t *q, int16_t sum)
{
#if SHORT_SUMS
    int32_t low = 0;
    for (int i = 0; i < 16; i += 4) low += q[i] + q[i + 1];
    return (int32_t)((uint32_t)(-32 * low) & 0xffff) | (int32_t)((uint32_t)(-32 * (sum - low)) << 16);
#else
    (void)q;
    return -32 * sum;
#endif
}

static void act_q256(uint8_t *act, const float *x, int64_t n_in, int t, int T)
{
    const int64_t nb = n_in / 256;
    int16_t *s32 = (int16_t *)(act + n_in * T) + 2 * t;
    int32_t *n16 = (int32_t *)(act + (n_in + n_in / 16) * T) + 2 * t;
    float *d = (float *)(act + (n_in + n_in / 16 + n_in / 4) * T) + t;
    int32_t *wide = (int32_t *)(act + (n_in + n_in / 16 + n_in / 4 + n_in / 256 * 4) * T) + t;
    int8_t q[256] = {0};
    int16_t sum[16] = {0};
    for (int64_t b = 0; b < nb; b++) {
        d[b * T] = x ? act_round(q, x + 256 * b, 256) : 0.0f;
        if (x) act_sums(sum, q, 256);
        wide[b * T] = x ? act_wide(q, sum) : 0;
        for (int k = 0; k < 256; k += 4) memcpy(act + 256 * b * T + act_at(k, T) + 8 * t, q + k, 4);
        for (int j = 0; j < 16; j++) n16[16 * b * T + act_n16_at(j, T)] = act_n16(q + 16 * j, sum[j]);
        for (int j = 0; j < 4; j++, s32 += 2 * T) {
            s32[0] = (int16_t)(sum[4 * j] + sum[4 * j + 1]);
            s32[1] = (int16_t)(sum[4 * j + 2] + sum[4 * j + 3]);
        }
    }
}

static void act_f32(uint8_t *act, const float *x, int64_t n_in, int t, int T)
{
    float *y = (float *)act + t;
    for (int64_t k = 0; k < n_in; k++) y[k * T] = x ? x[k] : 0.0f;
    if (n_in % 2) y[n_in * T] = 0.0f;
}

static void act_prepare(enum mm_act a, uint8_t *act, const float *x, int64_t n_in, int t, int T)
{
    if (a == MM_ACT_Q256)
        act_q256(act, x, n_in, t, T);
    else if (a == MM_ACT_Q32)
        act_q32(act, x, n_in, t, T);
    else
        act_f32(act, x, n_in, t, T);
}
