/* encode.c - float32 rows to blocks: the entry, the plain types, the checks, and the types with one scale a
 * block. The K types are in encode_k.c. */
#include "encode.h"

#include <stdatomic.h>

const struct search *search_best(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    /* Everything that the Makefile lets the compiler use in these files. */
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("f16c"))
        return &search_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))
        return &search_avx2;
#endif
    return &search_base;
}

/* The largest magnitude each type holds: f16's largest finite value times the largest code. A row past it is
 * refused, never saturated. */
static float largest(uint32_t type)
{
    const float h = 65504.0f;
    switch (type) {
    case KN_F16: return 65519.996f; /* rounds to 65504 */
    case KN_BF16: return 0x1.fefffep127f;
    case KN_Q8_0: return h * 127;
    case KN_Q4_0: return h * 8;
    case KN_Q5_0: return h * 16;
    case KN_Q4_1:
    case KN_Q5_1: return h;
    case KN_Q4_K:
    case KN_Q5_K: return h * 63;
    case KN_Q6_K: return h * 127 * 31;
    case KN_IQ4_NL: return h * 113;
    case KN_IQ4_XS: return h * 31 * 113;
    case KN_Q3_K: return h * 31 * 3;
    case KN_Q2_K: return h * 15;
    case KN_IQ2_XXS:
    case KN_IQ2_XS:
    case KN_IQ2_S: return h * 31 * 43 / 8;
    case KN_IQ3_XXS: return h * 31 * 62 / 4;
    case KN_IQ3_S: return h * 31 * 15;
    case KN_MXFP4:
        return 0x1.8p126f; /* a quarter of the largest that it has, so that no search leaves float's range */
    default: return 0x1.fffffep127f;
    }
}

/* NaN, Inf and anything above limit compare above as bit patterns. */
static bool fits(const float *x, int64_t n, float limit)
{
    uint32_t top;
    memcpy(&top, &limit, 4);
    uint32_t bad = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, x + i, 4);
        bad |= (uint32_t)((int32_t)(u & 0x7fffffff) > (int32_t)top);
    }
    return !bad;
}

static bool positive(const float *w, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (!(w[i] > 0 && w[i] <= 0x1p60f)) return false;
    return true;
}

static void encode_bf16(const float *x, uint8_t *dst, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, x + i, 4);
        u += 0x7fff + (u >> 16 & 1);
        const uint16_t h = (uint16_t)(u >> 16);
        memcpy(dst + 2 * i, &h, 2);
    }
}

/* m[l][k] = v[k * len + l] */
static void transpose(float (*m)[SEARCH_COLS], const float *v, int len, int n)
{
    for (int k = 0; k < n; k++)
        for (int l = 0; l < len; l++) m[l][k] = v[k * len + l];
}

void search_load(struct search_cols *c, const float *x, const float *importance, int n)
{
    /* Not a loop over the missing columns: gcc 12 at -O3 turned that into an aligned store at an unaligned
     * address. */
    if (n < SEARCH_COLS) memset(c->x, 0, sizeof c->x);
    transpose(c->x, x, c->len, n);
    if (!importance || n < SEARCH_COLS)
        for (int l = 0; l < c->len; l++)
            for (int k = 0; k < SEARCH_COLS; k++) c->w[l][k] = 1;
    if (importance) transpose(c->w, importance, c->len, n);
}

float search_round_f16(float f, uint16_t *h)
{
    f = f > 65504.0f ? 65504.0f : f < -65504.0f ? -65504.0f : f;
    *h = kn_f32_to_f16(f);
    return kn_f16_to_f32(*h);
}

/* Q4_0, Q5_0: sixteen blocks at a time. */
static void encode_symmetric(const struct search *s, struct search_cols *c, uint8_t *dst, int n, bool five)
{
    uint16_t h[SEARCH_COLS];
    const int bias = five ? 16 : 8;
    s->symmetric(c, bias);
    for (int k = 0; k < SEARCH_COLS; k++) c->scale[k] = search_round_f16(c->scale[k], &h[k]);
    s->symmetric_code(c, bias);
    for (int k = 0; k < n; k++, dst += five ? 22 : 18) {
        uint8_t *q = dst + (five ? 6 : 2);
        uint32_t high = 0;
        put_u16(dst, h[k]);
        for (int l = 0; l < 16; l++) {
            const unsigned a = c->code[l][k], b = c->code[l + 16][k];
            q[l] = (uint8_t)((a & 15) | (b & 15) << 4);
            high |= (uint32_t)(a >> 4) << l | (uint32_t)(b >> 4) << (l + 16);
        }
        if (five) put_u32(dst + 2, high);
    }
}

/* Q4_1, Q5_1 */
static void encode_affine(const struct search *s, struct search_cols *c, uint8_t *dst, int n, bool five)
{
    uint16_t h[SEARCH_COLS], m[SEARCH_COLS];
    const int top = five ? 31 : 15;
    s->affine(c, top, false);
    for (int k = 0; k < SEARCH_COLS; k++) {
        c->scale[k] = search_round_f16(c->scale[k], &h[k]);
        c->min[k] = search_round_f16(c->min[k], &m[k]);
    }
    s->affine_code(c, top);
    for (int k = 0; k < n; k++, dst += five ? 24 : 20) {
        uint8_t *q = dst + (five ? 8 : 4);
        uint32_t high = 0;
        put_u16(dst, h[k]);
        put_u16(dst + 2, m[k]);
        for (int l = 0; l < 16; l++) {
            const unsigned a = c->code[l][k], b = c->code[l + 16][k];
            q[l] = (uint8_t)((a & 15) | (b & 15) << 4);
            high |= (uint32_t)(a >> 4) << l | (uint32_t)(b >> 4) << (l + 16);
        }
        if (five) put_u32(dst + 4, high);
    }
}

static void encode_simple(const struct search *s, uint32_t type, const float *x, uint8_t *dst, int64_t n,
                          const float *importance)
{
    const bool five = type == KN_Q5_0 || type == KN_Q5_1, affine = type == KN_Q4_1 || type == KN_Q5_1;
    const size_t bytes = kn_type_info(type)->bytes;
    struct search_cols c = {.len = 32};
    for (int64_t b = 0; b < n / 32; b += SEARCH_COLS) {
        const int cols = n / 32 - b < SEARCH_COLS ? (int)(n / 32 - b) : SEARCH_COLS;
        search_load(&c, x + 32 * b, importance ? importance + 32 * b : NULL, cols);
        (affine ? encode_affine : encode_symmetric)(s, &c, dst + bytes * (size_t)b, cols, five);
    }
}

int encode_with(const struct search *s, uint32_t type, const float *src, void *dst, int64_t n,
                const float *importance)
{
    const struct kn_type_info *t = kn_type_info(type);
    if (!t || !t->can_encode) return KN_ETYPE;
    if (n < 0 || n % t->block || (n && (!src || !dst))) return KN_EINVAL;
    if (n == 0) return 0;
    if (!fits(src, n, largest(type)) || (importance && !positive(importance, n))) return KN_EINVAL;
    switch (type) {
    case KN_F32: memcpy(dst, src, (size_t)n * 4); return 0;
    case KN_F16: s->f16(src, dst, n); return 0;
    case KN_BF16: encode_bf16(src, dst, n); return 0;
    case KN_Q8_0: s->q8_0(src, dst, n); return 0;
    case KN_Q4_0:
    case KN_Q4_1:
    case KN_Q5_0:
    case KN_Q5_1: encode_simple(s, type, src, dst, n, importance); return 0;
    case KN_Q4_K:
    case KN_Q5_K: encode_k45(s, src, dst, n, importance, type == KN_Q5_K); return 0;
    case KN_Q6_K: encode_k6(s, src, dst, n, importance); return 0;
    case KN_IQ4_NL: encode_iq4_nl(s, src, dst, n, importance); return 0;
    case KN_IQ4_XS: encode_iq4_xs(s, src, dst, n, importance); return 0;
    case KN_Q3_K: encode_k3(s, src, dst, n, importance); return 0;
    case KN_Q2_K: encode_k2(s, src, dst, n, importance); return 0;
    case KN_IQ2_XXS:
    case KN_IQ2_XS:
    case KN_IQ2_S:
    case KN_IQ3_XXS:
    case KN_IQ3_S: encode_grid(type, src, dst, n, importance); return 0;
    case KN_MXFP4: encode_mxfp4(src, dst, n, importance); return 0;
    default: return KN_ETYPE;
    }
}

int kn_encode_row(uint32_t type, const float *src, void *dst, int64_t n, const float *importance)
{
    static _Atomic(const struct search *) best;
    const struct search *s = atomic_load_explicit(&best, memory_order_relaxed);
    if (!s) atomic_store_explicit(&best, s = search_best(), memory_order_relaxed);
    return encode_with(s, type, src, dst, n, importance);
}
