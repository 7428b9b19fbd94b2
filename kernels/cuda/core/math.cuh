/* math.cuh - the functions of kernels/cpu/math.h on the device: the same polynomials in the same order, every
 * multiply-add fused, every other rounding written out, so that a value has the bits it has on the CPU. */
#ifndef DFLASH_CUDA_MATH_CUH
#define DFLASH_CUDA_MATH_CUH

#include <stdint.h>

/* 1 ulp, any float (subnormal results too); exp(-inf) = 0, NaN stays NaN. */
static __device__ __forceinline__ float dev_exp(float x)
{
    if (x != x) return x;
    x = fminf(89.0f, fmaxf(x, -104.0f));
    float t = rintf(__fmul_rn(x, 0x1.715476p+0f));
    float r = __fmaf_rn(t, -0x1.62e430p-1f, x);
    r = __fmaf_rn(t, 0x1.05c610p-29f, r);
    float p = 0x1.6a1a6cp-10f;
    p = __fmaf_rn(p, r, 0x1.123fc6p-7f);
    p = __fmaf_rn(p, r, 0x1.555916p-5f);
    p = __fmaf_rn(p, r, 0x1.55548ap-3f);
    p = __fmaf_rn(p, r, 0x1.fffffcp-2f);
    p = __fadd_rn(1.0f, __fmaf_rn(__fmul_rn(r, r), p, r));
    int n = (int)t, half = n >> 1;
    return __fmul_rn(__fmul_rn(p, __int_as_float((half + 127) << 23)),
                     __int_as_float((n - half + 127) << 23));
}

/* 1.5 ulp. */
static __device__ __forceinline__ float dev_tanh(float x)
{
    float a = fabsf(x), z = __fmul_rn(x, x), y;
    if (a < 0.625f) {
        float p = -0x1.722adep-8f;
        p = __fmaf_rn(p, z, 0x1.5157f4p-6f);
        p = __fmaf_rn(p, z, -0x1.b81dc0p-5f);
        p = __fmaf_rn(p, z, 0x1.110646p-3f);
        p = __fmaf_rn(p, z, -0x1.55552ep-2f);
        y = __fmaf_rn(__fmul_rn(x, z), p, x);
    } else {
        y = __fsub_rn(1.0f, __fdiv_rn(2.0f, __fadd_rn(1.0f, dev_exp(__fadd_rn(a, a)))));
    }
    return copysignf(y, x);
}

/* 3 ulp: 1 / (1 + e^-x), and below 0 e^x / (1 + e^x). */
static __device__ __forceinline__ float dev_sigmoid(float x)
{
    const float e = dev_exp(-fabsf(x)), d = __fadd_rn(1.0f, e);
    return __fdiv_rn(x < 0.0f ? e : 1.0f, d);
}

/* log in double, 1 ulp. */
static __device__ __forceinline__ double dev_log(double x)
{
    uint64_t u = (uint64_t)__double_as_longlong(x);
    int k = 0;
    if (!(x > 0.0) || u >= 0x7ff0000000000000ull)
        return x == 0.0  ? -__longlong_as_double(0x7ff0000000000000ll)
               : x > 0.0 ? x
                         : __longlong_as_double(0x7ff8000000000000ll);
    if (u < 0x0010000000000000ull) {
        u = (uint64_t)__double_as_longlong(x * 0x1p54);
        k = -54;
    }
    int64_t e = (int64_t)(u - 0x3fe6a09e667f3bcdull) >> 52;
    k += (int)e;
    double f = __dadd_rn(__longlong_as_double((long long)(u - ((uint64_t)e << 52))), -1.0);
    double s = __ddiv_rn(f, __dadd_rn(2.0, f)), z = __dmul_rn(s, s);
    double p = 0x1.2f15c1e41575bp-3;
    p = __fma_rn(p, z, 0x1.39a02e43b07c0p-3);
    p = __fma_rn(p, z, 0x1.74664d7d2809fp-3);
    p = __fma_rn(p, z, 0x1.c71c51c649955p-3);
    p = __fma_rn(p, z, 0x1.249249423e868p-2);
    p = __fma_rn(p, z, 0x1.999999997f8a2p-2);
    p = __fma_rn(p, z, 0x1.5555555555593p-1);
    double low = __dmul_rn(s, __dsub_rn(f, __dmul_rn(z, p)));
    return __fma_rn((double)k, 0x1.62e42fefa3800p-1,
                    __dsub_rn(f, __fma_rn(-(double)k, 0x1.ef35793c76730p-45, low)));
}

/* 2 ulp: log(1 + e^x). */
static __device__ __forceinline__ float dev_softplus(float x)
{
    const double e = (double)dev_exp(-fabsf(x));
    const double l = e < 0x1p-20 ? __fma_rn(__dmul_rn(-0.5, e), e, e) : dev_log(__dadd_rn(1.0, e));
    return __double2float_rn(__dadd_rn(x > 0.0f ? (double)x : 0.0, l));
}

/* sin and cos of x + tail, |x| <= 2^31, 1 ulp of 1. */
static __device__ __forceinline__ void dev_sincos(double x, double tail, double *sine, double *cosine)
{
    double n = rint(__dmul_rn(x, 0x1.45f306dc9c883p-1));
    double r = __fma_rn(-n, 0x1.921fb54442d18p+0, x);
    r = __fma_rn(-n, 0x1.1a62633145c07p-54, __dadd_rn(r, tail));
    r = __fma_rn(n, 0x1.f1976b7ed8fbcp-110, r);
    double z = __dmul_rn(r, r);
    double s = 0x1.5d8dfd45f6ebdp-33;
    s = __fma_rn(s, z, -0x1.ae5e546f04fcdp-26);
    s = __fma_rn(s, z, 0x1.71de35603aac6p-19);
    s = __fma_rn(s, z, -0x1.a01a019bf577ep-13);
    s = __fma_rn(s, z, 0x1.111111110f78fp-7);
    s = __fma_rn(s, z, -0x1.5555555555548p-3);
    s = __fma_rn(__dmul_rn(r, z), s, r);
    double c = -0x1.8facd10e73278p-37;
    c = __fma_rn(c, z, 0x1.1ee9e8901956bp-29);
    c = __fma_rn(c, z, -0x1.27e4f80532b12p-22);
    c = __fma_rn(c, z, 0x1.a01a019cab727p-16);
    c = __fma_rn(c, z, -0x1.6c16c16c15140p-10);
    c = __fma_rn(c, z, 0x1.555555555554cp-5);
    c = __fma_rn(__dmul_rn(z, z), c, __fma_rn(-0.5, z, 1.0));
    switch ((long long)n & 3) {
    case 0: *sine = s, *cosine = c; break;
    case 1: *sine = c, *cosine = -s; break;
    case 2: *sine = -s, *cosine = -c; break;
    default: *sine = -c, *cosine = s; break;
    }
}

#endif
