/* math.h - exp, tanh, the activations, and (in double) log, sin and cos: ours, so that their bits are the
 * same on every machine and from every instruction set. Vectors are those of vec.h; the polynomials were
 * fitted with Remez' algorithm for this file, errors measured by test/unit/kernels/test_math.c against long
 * double: v_exp       1 ulp, any float (subnormal results too); exp(-inf) = 0, NaN stays NaN v_tanh      1.5
 * ulp v_silu      3 ulp     x / (1 + exp(-x)) v_sigmoid   3 ulp     from exp(-|x|): no overflow, subnormal
 * results too cpu_softplus 2 ulp    max(x, 0) + log(1 + exp(-|x|)), the logarithm in double v_gelu_tanh 2 ulp
 * above 0, 1e-6 absolute below (1 + tanh cancels) cpu_log     1 ulp (double) cpu_sincos  1 ulp of 1 for |x|
 * to 2^31: Cody and Waite with three parts of pi/2 and fused products */
#ifndef DFLASH_CPU_MATH_H
#define DFLASH_CPU_MATH_H

#include "vec.h"

/* e^x = 2^n e^r, n = rint(x / ln 2), |r| <= ln(2)/2; e^r = 1 + r + r^2 P(r), |error| < 2^-28. The power of
 * two is multiplied in as two halves, so that subnormal results are rounded once. The argument order of max
 * and min keeps NaN. */
static inline struct vec v_exp(struct vec x)
{
    x = v_min(v_set1(89.0f), v_max(v_set1(-104.0f), x));
    struct vec t = v_rint(v_mul(x, v_set1(0x1.715476p+0f)));
    struct vec r = v_fma(t, v_set1(-0x1.62e430p-1f), x);
    r = v_fma(t, v_set1(0x1.05c610p-29f), r);
    struct vec p = v_set1(0x1.6a1a6cp-10f);
    p = v_fma(p, r, v_set1(0x1.123fc6p-7f));
    p = v_fma(p, r, v_set1(0x1.555916p-5f));
    p = v_fma(p, r, v_set1(0x1.55548ap-3f));
    p = v_fma(p, r, v_set1(0x1.fffffcp-2f));
    p = v_add(v_set1(1.0f), v_fma(v_mul(r, r), p, r));
    struct ivec n = v_to_int(t), half = iv_sar(n, 1);
    return v_mul(v_mul(p, v_pow2(half)), v_pow2(iv_sub(n, half)));
}

/* One value, the bits of v_exp. */
static inline float cpu_expf(float x)
{
    float r[VEC_LANES];
    v_store(r, v_exp(v_set1(x)));
    return r[0];
}

/* |x| < 0.625: x + x^3 P(x^2); above: 1 - 2 / (1 + exp(2|x|)); the sign comes back at the end. */
static inline struct vec v_tanh(struct vec x)
{
    struct vec a = v_abs(x), z = v_mul(x, x);
    struct vec p = v_set1(-0x1.722adep-8f);
    p = v_fma(p, z, v_set1(0x1.5157f4p-6f));
    p = v_fma(p, z, v_set1(-0x1.b81dc0p-5f));
    p = v_fma(p, z, v_set1(0x1.110646p-3f));
    p = v_fma(p, z, v_set1(-0x1.55552ep-2f));
    struct vec small = v_fma(v_mul(x, z), p, x);
    struct vec one = v_set1(1.0f), e = v_exp(v_add(a, a));
    struct vec big = v_sub(one, v_div(v_set1(2.0f), v_add(one, e)));
    struct vec y = v_if_lt(a, v_set1(0.625f), small, big); /* NaN takes the second */
    return v_float(iv_or(v_bits(y), iv_and(v_bits(x), iv_set1(INT32_MIN))));
}

static inline struct vec v_silu(struct vec x)
{
    return v_div(x, v_add(v_set1(1.0f), v_exp(v_sub(v_zero(), x))));
}

/* 1 / (1 + e^-x), and for x < 0 e^x / (1 + e^x): the power never exceeds 1. */
static inline struct vec v_sigmoid(struct vec x)
{
    struct vec one = v_set1(1.0f), e = v_exp(v_sub(v_zero(), v_abs(x))), d = v_add(one, e);
    return v_if_lt(x, v_zero(), v_div(e, d), v_div(one, d)); /* NaN takes the second, as e is NaN */
}

/* x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) */
static inline struct vec v_gelu_tanh(struct vec x)
{
    struct vec c = v_fma(v_mul(v_mul(x, x), v_set1(0.044715f)), x, x);
    struct vec t = v_tanh(v_mul(v_set1(0x1.988454p-1f), c));
    return v_mul(v_mul(v_set1(0.5f), x), v_add(v_set1(1.0f), t));
}

/* ---- double, one value ---- */

static inline uint64_t cpu_bits64(double d)
{
    uint64_t u;
    memcpy(&u, &d, 8);
    return u;
}
static inline double cpu_double(uint64_t u)
{
    double d;
    memcpy(&d, &u, 8);
    return d;
}

/* log x = k ln 2 + log(1 + f), sqrt(1/2) <= 1 + f < sqrt 2. With s = f / (2 + f): log(1 + f) = 2 s + s R, R =
 * s^2 P(s^2), |error| < 2^-59, and since 2 s = f - s f it is f - s (f - R), whose first term is exact. */
static inline double cpu_log(double x)
{
    uint64_t u = cpu_bits64(x);
    int k = 0;
    if (!(x > 0.0) || u >= 0x7ff0000000000000u)
        return x == 0.0 ? -HUGE_VAL : x > 0.0 ? x : cpu_double(0x7ff8000000000000u);
    if (u < 0x0010000000000000u) {
        u = cpu_bits64(x * 0x1p54);
        k = -54;
    }
    const uint64_t sqrt_half = 0x3fe6a09e667f3bcdu;
    int64_t e = (int64_t)(u - sqrt_half) >> 52;
    k += (int)e;
    double f = cpu_double(u - ((uint64_t)e << 52)) - 1.0;
    double s = f / (2.0 + f), z = s * s;
    double p = 0x1.2f15c1e41575bp-3;
    p = fma(p, z, 0x1.39a02e43b07c0p-3);
    p = fma(p, z, 0x1.74664d7d2809fp-3);
    p = fma(p, z, 0x1.c71c51c649955p-3);
    p = fma(p, z, 0x1.249249423e868p-2);
    p = fma(p, z, 0x1.999999997f8a2p-2);
    p = fma(p, z, 0x1.5555555555593p-1);
    double low = s * (f - z * p);
    return fma((double)k, 0x1.62e42fefa3800p-1, f - fma(-(double)k, 0x1.ef35793c76730p-45, low));
}

/* log(1 + e^x), one value. Below 2^-20 two terms of the series keep what 1 + e would drop. */
static inline float cpu_softplus(float x)
{
    double e = (double)cpu_expf(-fabsf(x));
    double l = e < 0x1p-20 ? fma(-0.5 * e, e, e) : cpu_log(1.0 + e);
    return (float)((x > 0.0f ? (double)x : 0.0) + l);
}

/* sin and cos of x + tail, |x| <= 2^31, |tail| <= 1 ulp of x: tail carries what a product rounded away. x - n
 * pi/2 is exact for the first part of pi/2 (a multiple of 2^-52 below 1), and rounds once for each of the
 * others. */
static inline void cpu_sincos(double x, double tail, double *sine, double *cosine)
{
    double n = rint(x * 0x1.45f306dc9c883p-1);
    double r = fma(-n, 0x1.921fb54442d18p+0, x);
    r = fma(-n, 0x1.1a62633145c07p-54, r + tail);
    r = fma(n, 0x1.f1976b7ed8fbcp-110, r);
    double z = r * r;
    double s = 0x1.5d8dfd45f6ebdp-33;
    s = fma(s, z, -0x1.ae5e546f04fcdp-26);
    s = fma(s, z, 0x1.71de35603aac6p-19);
    s = fma(s, z, -0x1.a01a019bf577ep-13);
    s = fma(s, z, 0x1.111111110f78fp-7);
    s = fma(s, z, -0x1.5555555555548p-3);
    s = fma(r * z, s, r);
    double c = -0x1.8facd10e73278p-37;
    c = fma(c, z, 0x1.1ee9e8901956bp-29);
    c = fma(c, z, -0x1.27e4f80532b12p-22);
    c = fma(c, z, 0x1.a01a019cab727p-16);
    c = fma(c, z, -0x1.6c16c16c15140p-10);
    c = fma(c, z, 0x1.555555555554cp-5);
    c = fma(z * z, c, fma(-0.5, z, 1.0));
    switch ((int64_t)n & 3) {
    case 0: *sine = s, *cosine = c; break;
    case 1: *sine = c, *cosine = -s; break;
    case 2: *sine = -s, *cosine = -c; break;
    default: *sine = -c, *cosine = s; break;
    }
}

#endif
