/* search.inc.h - the code behind struct search, over vectors of W lanes. The including file defines W and
 * SEARCH_NAME.
 *
 * Rounding is to nearest even by adding and subtracting 1.5 * 2^23. Multiplications and additions are
 * separate (nothing is contracted), division is exact, so any W gives the same bits. */
#include "blocks.h"
#include "search.h"

#include <math.h>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

typedef float vf __attribute__((vector_size(4 * W), may_alias));
typedef int32_t vi __attribute__((vector_size(4 * W), may_alias));
typedef uint8_t vb __attribute__((vector_size(W), may_alias));

static inline vf v_set(float f)
{
    return (vf){0} + f;
}

static inline vf v_load(const float *p)
{
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline void v_store(float *p, vf v)
{
    memcpy(p, &v, sizeof v);
}

/* m ? a : b, lane by lane; m is all ones or all zeros. */
static inline vf v_pick(vi m, vf a, vf b)
{
    return (vf)(((vi)a & m) | ((vi)b & ~m));
}

static inline vf v_min(vf a, vf b)
{
#if defined(__AVX512F__) && W == 16
    return (vf)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX__) && W == 8
    return (vf)_mm256_min_ps((__m256)a, (__m256)b);
#elif defined(__SSE2__) && W == 4
    return (vf)_mm_min_ps((__m128)a, (__m128)b);
#else
    return v_pick((vi)(a < b), a, b);
#endif
}

static inline vf v_max(vf a, vf b)
{
#if defined(__AVX512F__) && W == 16
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX__) && W == 8
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__SSE2__) && W == 4
    return (vf)_mm_max_ps((__m128)a, (__m128)b);
#else
    return v_pick((vi)(a > b), a, b);
#endif
}

static inline vf v_abs(vf a)
{
    return (vf)((vi)a & 0x7fffffff);
}

static inline vf v_round(vf a)
{
    const vf magic = v_set(12582912.0f);
    return (a + magic) - magic;
}

static inline vf v_clamp(vf a, float top)
{
    return v_min(v_max(a, v_set(0.0f)), v_set(top));
}

/* Inverse scales tried: (top + FROM + STEP*k) / range. POLISH: rounds of codes
 * and scale in turn after that. */
#ifndef SEARCH_TRIES
#define SEARCH_FROM (-1.0f)
#define SEARCH_STEP 0.1f
#define SEARCH_TRIES 21
#define SEARCH_POLISH 2
#define SYMMETRIC_FROM (-0.9f)
#define SYMMETRIC_STEP 0.1f
#define SYMMETRIC_TRIES 19
#define TABLE_STEP 6.0f /* of the table's value that the peak is tried at */
#define TABLE_TRIES 9
#endif

/* 1 / a, or 0 where a is 0. */
static inline vf v_inverse(vf a)
{
    const vi zero = (vi)(a == v_set(0.0f));
    return v_pick(zero, v_set(0.0f), v_set(1.0f) / v_pick(zero, v_set(1.0f), a));
}

/* Weighted sums of one assignment of codes. */
struct sums {
    vf l, ll, xl;
};

/* Codes round(inv * x + shift) clamped to 0..top. bias: what is taken off a code before it counts. */
static inline struct sums assign(const struct search_cols *c, int at, vf inv, vf shift, float top, float bias)
{
    struct sums s = {v_set(0.0f), v_set(0.0f), v_set(0.0f)};
    for (int i = 0; i < c->len; i++) {
        const vf x = v_load(&c->x[i][at]), w = v_load(&c->w[i][at]);
        const vf q = v_round(v_clamp(x * inv + shift, top)) - v_set(bias);
        const vf wq = w * q;
        s.l += wq;
        s.ll += wq * q;
        s.xl += wq * x;
    }
    return s;
}

/* The best scale and min for the codes behind s, and how much of sum w x^2 they explain. */
static inline vf solve_affine(struct sums s, vf sw, vf swx, bool no_positive, vf *scale, vf *min)
{
    const vf zero = v_set(0.0f), det = sw * s.ll - s.l * s.l;
    const vi ok = (vi)(det > zero);
    const vf one_over = v_set(1.0f) / v_pick(ok, det, v_set(1.0f));
    vf a = (sw * s.xl - swx * s.l) * one_over, b = (s.ll * swx - s.l * s.xl) * one_over;
    if (no_positive) {
        const vi positive = (vi)(b > zero);
        a = v_pick(positive, s.xl * v_inverse(s.ll), a);
        b = v_pick(positive, zero, b);
    }
    *scale = a;
    *min = b;
    return v_pick(ok, a * s.xl + b * swx, v_set(-1.0f));
}

static void affine_lanes(struct search_cols *c, int at, int top, bool no_positive)
{
    const vf zero = v_set(0.0f);
    vf lo = v_load(&c->x[0][at]), hi = lo, sw = zero, swx = zero;
    for (int i = 0; i < c->len; i++) {
        const vf x = v_load(&c->x[i][at]), w = v_load(&c->w[i][at]);
        lo = v_min(lo, x);
        hi = v_max(hi, x);
        sw += w;
        swx += w * x;
    }
    if (no_positive) lo = v_min(lo, zero);
    const vf range = hi - lo, per = v_inverse(range);
    /* The plain choice stands until a better one is found, and for columns without spread or weight. */
    vf scale = range * (1.0f / (float)top), min = lo, best = v_set(-1.0f);
    for (int k = 0; k < SEARCH_TRIES; k++) {
        const vf inv = per * ((float)top + SEARCH_FROM + SEARCH_STEP * (float)k);
        vf a, b;
        const struct sums s = assign(c, at, inv, zero - lo * inv, (float)top, 0.0f);
        const vf gain = solve_affine(s, sw, swx, no_positive, &a, &b);
        const vi better = (vi)(gain > best) & (vi)(a > zero);
        scale = v_pick(better, a, scale);
        min = v_pick(better, b, min);
        best = v_pick(better, gain, best);
    }
    for (int k = 0; k < SEARCH_POLISH; k++) { /* alternate: codes for the scale, scale for the codes */
        const vf inv = v_inverse(scale);
        vf a, b;
        const struct sums s = assign(c, at, inv, zero - min * inv, (float)top, 0.0f);
        const vf gain = solve_affine(s, sw, swx, no_positive, &a, &b);
        const vi better = (vi)(gain > best) & (vi)(a > zero);
        scale = v_pick(better, a, scale);
        min = v_pick(better, b, min);
        best = v_pick(better, gain, best);
    }
    v_store(&c->scale[at], scale);
    v_store(&c->min[at], min);
}

static void symmetric_lanes(struct search_cols *c, int at, int bias)
{
    const vf zero = v_set(0.0f);
    vf lo = v_load(&c->x[0][at]), hi = lo;
    for (int i = 1; i < c->len; i++) {
        const vf x = v_load(&c->x[i][at]);
        lo = v_min(lo, x);
        hi = v_max(hi, x);
    }
    /* The end of larger magnitude takes code 0, the only one whose mirror image does not exist. */
    const vf peak = v_pick((vi)(hi > zero - lo), hi, lo), per = v_inverse(peak);
    const float top = (float)(2 * bias - 1);
    vf scale = peak * (-1.0f / (float)bias), best = v_set(-1.0f);
    for (int k = 0; k < SYMMETRIC_TRIES + SEARCH_POLISH; k++) {
        vf inv = v_inverse(scale);
        if (k < SYMMETRIC_TRIES) inv = per * -((float)bias + SYMMETRIC_FROM + SYMMETRIC_STEP * (float)k);
        const struct sums s = assign(c, at, inv, v_set((float)bias), top, (float)bias);
        const vf a = s.xl * v_inverse(s.ll), gain = a * s.xl;
        const vi better = (vi)(gain > best) & (vi)(a != zero);
        scale = v_pick(better, a, scale);
        best = v_pick(better, gain, best);
    }
    v_store(&c->scale[at], scale);
}

static inline vf code_lanes(struct search_cols *c, int at, vf scale, vf min, vf shift, float top, float bias,
                            bool keep)
{
    const vf inv = v_inverse(scale);
    vf error = v_set(0.0f);
    for (int i = 0; i < c->len; i++) {
        const vf x = v_load(&c->x[i][at]), w = v_load(&c->w[i][at]);
        const vf q = v_round(v_clamp((x - min) * inv + shift, top));
        const vf d = x - (scale * (q - v_set(bias)) + min);
        error += w * d * d;
        if (keep) {
            const vb b = __builtin_convertvector(__builtin_convertvector(q, vi), vb);
            memcpy(&c->code[i][at], &b, W);
        }
    }
    return error;
}

static void affine(struct search_cols *c, int top, bool no_positive)
{
    for (int at = 0; at < SEARCH_COLS; at += W) affine_lanes(c, at, top, no_positive);
}

static void symmetric(struct search_cols *c, int bias)
{
    for (int at = 0; at < SEARCH_COLS; at += W) symmetric_lanes(c, at, bias);
}

static void affine_code(struct search_cols *c, int top)
{
    for (int at = 0; at < SEARCH_COLS; at += W)
        v_store(&c->error[at], code_lanes(c, at, v_load(&c->scale[at]), v_load(&c->min[at]), v_set(0.0f),
                                          (float)top, 0.0f, true));
}

static void affine_error(struct search_cols *c, int top)
{
    for (int at = 0; at < SEARCH_COLS; at += W)
        v_store(&c->error[at], code_lanes(c, at, v_load(&c->scale[at]), v_load(&c->min[at]), v_set(0.0f),
                                          (float)top, 0.0f, false));
}

static void symmetric_code(struct search_cols *c, int bias)
{
    for (int at = 0; at < SEARCH_COLS; at += W)
        v_store(&c->error[at], code_lanes(c, at, v_load(&c->scale[at]), v_set(0.0f), v_set((float)bias),
                                          (float)(2 * bias - 1), (float)bias, true));
}

static void symmetric_error(struct search_cols *c, int bias)
{
    for (int at = 0; at < SEARCH_COLS; at += W)
        v_store(&c->error[at], code_lanes(c, at, v_load(&c->scale[at]), v_set(0.0f), v_set((float)bias),
                                          (float)(2 * bias - 1), (float)bias, false));
}

/* The value of IQ4's table next to y; code: its number. Boundaries are at least 11.5 apart: of the 32 runs of
 * 8 from -128 on none has two. Where vectors hold the table, a run's boundary and the number of those below
 * it are looked up; elsewhere all fifteen are compared. Both are exact, so they agree. */
static inline vf nearest_value(vf y, vf *code)
{
#if W == 16
    static const float bound[32] __attribute__((aligned(64))) = {
        INFINITY, -115.5f,  INFINITY, INFINITY, -93.5f,   INFINITY, -74,      INFINITY,
        -57,      INFINITY, -42,      INFINITY, -28.5f,   INFINITY, -16,      -4.5f,
        7,        INFINITY, 19,       31.5f,    INFINITY, 45.5f,    INFINITY, 61,
        INFINITY, 79,       INFINITY, INFINITY, 101,      INFINITY, INFINITY, INFINITY};
    static const float below[32]
        __attribute__((aligned(64))) = {0, 0, 1, 1,  1,  2,  2,  3,  3,  4,  4,  5,  5,  6,  6,  7,
                                        8, 9, 9, 10, 11, 11, 12, 12, 13, 13, 14, 14, 14, 15, 15, 15};
    static const float value[16] __attribute__((aligned(64))) = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                                 1,    13,   25,  38,  53,  69,  89,  113};
    const vf run = v_min(v_max((y + v_set(128.0f)) * v_set(0.125f), v_set(0.0f)), v_set(31.0f));
    const vi at = __builtin_convertvector(run, vi);
    const vf limit = __builtin_shuffle(v_load(bound), v_load(bound + 16), at);
    const vf n =
        __builtin_shuffle(v_load(below), v_load(below + 16), at) + (vf)((vi)(y > limit) & (vi)v_set(1.0f));
    if (code) *code = n;
    return __builtin_shuffle(v_load(value), __builtin_convertvector(n, vi));
#else
    vf v = v_set(-127.0f), n = v_set(0.0f);
    for (int k = 0; k < 15; k++) {
        const vi above = (vi)(y > v_set(0.5f * (float)(iq4_values[k] + iq4_values[k + 1])));
        v += (vf)(above & (vi)v_set((float)(iq4_values[k + 1] - iq4_values[k])));
        if (code) n += (vf)(above & (vi)v_set(1.0f));
    }
    if (code) *code = n;
    return v;
#endif
}

/* The peak is tried at both ends of the table, which are not alike. */
static void table_lanes(struct search_cols *c, int at)
{
    const vf zero = v_set(0.0f);
    vf lo = v_load(&c->x[0][at]), hi = lo;
    for (int i = 1; i < c->len; i++) {
        const vf x = v_load(&c->x[i][at]);
        lo = v_min(lo, x);
        hi = v_max(hi, x);
    }
    const vf peak = v_pick((vi)(hi > zero - lo), hi, lo), per = v_inverse(peak);
    vf scale = peak * (-1.0f / 127.0f), best = v_set(-1.0f);
    for (int k = 0; k < 2 * TABLE_TRIES + SEARCH_POLISH; k++) {
        vf inv = v_inverse(scale);
        if (k < 2 * TABLE_TRIES) {
            const float step = TABLE_STEP * (float)(k / 2 - TABLE_TRIES / 2);
            inv = per * (k % 2 ? 113.0f + step : -127.0f - step);
        }
        vf ll = zero, xl = zero;
        for (int i = 0; i < c->len; i++) {
            const vf x = v_load(&c->x[i][at]), q = nearest_value(x * inv, NULL),
                     wq = v_load(&c->w[i][at]) * q;
            ll += wq * q;
            xl += wq * x;
        }
        const vf a = xl * v_inverse(ll), gain = a * xl;
        const vi better = (vi)(gain > best) & (vi)(a != zero);
        scale = v_pick(better, a, scale);
        best = v_pick(better, gain, best);
    }
    v_store(&c->scale[at], scale);
}

static void table_round(struct search_cols *c, bool keep)
{
    for (int at = 0; at < SEARCH_COLS; at += W) {
        const vf scale = v_load(&c->scale[at]), inv = v_inverse(scale);
        vf error = v_set(0.0f), code;
        for (int i = 0; i < c->len; i++) {
            const vf x = v_load(&c->x[i][at]), d = x - scale * nearest_value(x * inv, &code);
            error += v_load(&c->w[i][at]) * d * d;
            if (!keep) continue;
            const vb b = __builtin_convertvector(__builtin_convertvector(code, vi), vb);
            memcpy(&c->code[i][at], &b, W);
        }
        v_store(&c->error[at], error);
    }
}

static void table(struct search_cols *c)
{
    for (int at = 0; at < SEARCH_COLS; at += W) table_lanes(c, at);
}

static void table_code(struct search_cols *c)
{
    table_round(c, true);
}

static void table_error(struct search_cols *c)
{
    table_round(c, false);
}

static void q8_0(const float *x, uint8_t *dst, int64_t n)
{
    for (int64_t i = 0; i < n; i += 32, x += 32, dst += 34) {
        vf m = v_set(0.0f);
        for (int j = 0; j < 32; j += W) m = v_max(m, v_abs(v_load(x + j)));
        float lanes[W], amax = 0;
        v_store(lanes, m);
        for (int j = 0; j < W; j++) amax = lanes[j] > amax ? lanes[j] : amax;
        /* The codes are rounded against the scale as it will be read, not against the unrounded one. */
        const uint16_t h = kn_f32_to_f16(amax / 127.0f);
        const float d = kn_f16_to_f32(h);
        const vf inv = v_inverse(v_set(d));
        put_u16(dst, h);
        for (int j = 0; j < 32; j += W) {
            const vf q = v_round(v_min(v_max(v_load(x + j) * inv, v_set(-127.0f)), v_set(127.0f)));
            const vb b = (vb) __builtin_convertvector(__builtin_convertvector(q, vi), vb);
            memcpy(dst + 2 + j, &b, W);
        }
    }
}

static void f16(const float *x, uint8_t *dst, int64_t n)
{
    int64_t i = 0;
#if defined(__F16C__)
    for (; i + 8 <= n; i += 8) {
        const __m128i h =
            _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        _mm_storeu_si128((__m128i *)(void *)(dst + 2 * i), h);
    }
#endif
    for (; i < n; i++) put_u16(dst + 2 * i, kn_f32_to_f16(x[i]));
}

const struct search SEARCH_NAME = {
    .name = SEARCH_TEXT,
    .affine = affine,
    .symmetric = symmetric,
    .affine_code = affine_code,
    .symmetric_code = symmetric_code,
    .affine_error = affine_error,
    .symmetric_error = symmetric_error,
    .table = table,
    .table_code = table_code,
    .table_error = table_error,
    .q8_0 = q8_0,
    .f16 = f16,
};
