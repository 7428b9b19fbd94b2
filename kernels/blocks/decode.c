/* decode.c - blocks to float32. Each value is computed as the format defines it: d*sc in float32, times the
 * code, minus dmin*m, every step rounded, so that the result is the same bits as any other faithful reader's.
 */
#include "blocks.h"
#include "grids.h"

static void decode_q8_0(const uint8_t *b, float *y)
{
    const float d = kn_f16_to_f32(get_u16(b));
    const int8_t *q = (const int8_t *)(b + 2);
    for (int j = 0; j < 32; j++) y[j] = d * (float)q[j];
}

static void decode_q4_0(const uint8_t *b, float *y)
{
    const float d = kn_f16_to_f32(get_u16(b));
    const uint8_t *q = b + 2;
    for (int j = 0; j < 16; j++) {
        y[j] = d * (float)((q[j] & 15) - 8);
        y[j + 16] = d * (float)((q[j] >> 4) - 8);
    }
}

static void decode_q4_1(const uint8_t *b, float *y)
{
    const float d = kn_f16_to_f32(get_u16(b)), m = kn_f16_to_f32(get_u16(b + 2));
    const uint8_t *q = b + 4;
    for (int j = 0; j < 16; j++) {
        y[j] = d * (float)(q[j] & 15) + m;
        y[j + 16] = d * (float)(q[j] >> 4) + m;
    }
}

static void decode_q5_0(const uint8_t *b, float *y)
{
    const float d = kn_f16_to_f32(get_u16(b));
    const uint32_t qh = get_u32(b + 2);
    const uint8_t *q = b + 6;
    for (int j = 0; j < 16; j++) {
        y[j] = d * (float)((int)((q[j] & 15) | (qh >> j & 1) << 4) - 16);
        y[j + 16] = d * (float)((int)((q[j] >> 4) | (qh >> (j + 16) & 1) << 4) - 16);
    }
}

static void decode_q5_1(const uint8_t *b, float *y)
{
    const float d = kn_f16_to_f32(get_u16(b)), m = kn_f16_to_f32(get_u16(b + 2));
    const uint32_t qh = get_u32(b + 4);
    const uint8_t *q = b + 8;
    for (int j = 0; j < 16; j++) {
        y[j] = d * (float)((q[j] & 15) | (qh >> j & 1) << 4) + m;
        y[j + 16] = d * (float)((q[j] >> 4) | (qh >> (j + 16) & 1) << 4) + m;
    }
}

static void decode_q4_k(const uint8_t *b, float *y)
{
    const float d = kn_f16_to_f32(get_u16(b)), dmin = kn_f16_to_f32(get_u16(b + 2));
    for (int j = 0; j < 8; j++) {
        unsigned sc, m;
        get_scale_min(b + 4, j, &sc, &m);
        const float ds = d * (float)sc, dm = dmin * (float)m;
        const uint8_t *q = b + 16 + 32 * (j / 2);
        const int shift = 4 * (j % 2);
        for (int l = 0; l < 32; l++) y[32 * j + l] = ds * (float)(q[l] >> shift & 15) - dm;
    }
}

static void decode_q5_k(const uint8_t *b, float *y)
{
    const float d = kn_f16_to_f32(get_u16(b)), dmin = kn_f16_to_f32(get_u16(b + 2));
    const uint8_t *qh = b + 16;
    for (int j = 0; j < 8; j++) {
        unsigned sc, m;
        get_scale_min(b + 4, j, &sc, &m);
        const float ds = d * (float)sc, dm = dmin * (float)m;
        const uint8_t *q = b + 48 + 32 * (j / 2);
        const int shift = 4 * (j % 2);
        for (int l = 0; l < 32; l++)
            y[32 * j + l] = ds * (float)((q[l] >> shift & 15) | (qh[l] >> j & 1) << 4) - dm;
    }
}

static void decode_q6_k(const uint8_t *b, float *y)
{
    const float d = kn_f16_to_f32(get_u16(b + 208));
    const int8_t *sc = (const int8_t *)(b + 192);
    for (int j = 0; j < 16; j++) { /* sub-blocks of 16; 8 a half of 128 */
        const int half = j / 8, quarter = j / 2 % 4, base = 16 * (j % 2);
        const uint8_t *ql = b + 64 * half + 32 * (quarter % 2) + base;
        const uint8_t *qh = b + 128 + 32 * half + base;
        const float ds = d * (float)sc[j];
        for (int l = 0; l < 16; l++) {
            const int low = ql[l] >> 4 * (quarter / 2) & 15, high = qh[l] >> 2 * quarter & 3;
            y[16 * j + l] = ds * (float)((low | high << 4) - 32);
        }
    }
}

static void decode_q2_k(const uint8_t *b, float *y)
{
    const float d = kn_f16_to_f32(get_u16(b + 80)), dmin = kn_f16_to_f32(get_u16(b + 82));
    for (int j = 0; j < 16; j++) { /* sub-blocks of 16; 8 a half of 128 */
        const uint8_t *q = b + 16 + 32 * (j / 8) + 16 * (j % 2);
        const float ds = d * (float)(b[j] & 15), dm = dmin * (float)(b[j] >> 4);
        const int shift = 2 * (j / 2 % 4);
        for (int l = 0; l < 16; l++) y[16 * j + l] = ds * (float)(q[l] >> shift & 3) - dm;
    }
}

static void decode_q3_k(const uint8_t *b, float *y)
{
    const float d = kn_f16_to_f32(get_u16(b + 108));
    for (int j = 0; j < 16; j++) {
        const uint8_t *high = b + 16 * (j % 2), *q = b + 32 + 32 * (j / 8) + 16 * (j % 2);
        const float ds = d * (float)(get_scale_q3(b + 96, j) - 32);
        const int shift = 2 * (j / 2 % 4), bit = j / 2;
        for (int l = 0; l < 16; l++)
            y[16 * j + l] = ds * (float)((q[l] >> shift & 3) - (high[l] >> bit & 1 ? 0 : 4));
    }
}

static void decode_iq4_nl(const uint8_t *b, float *y)
{
    const float d = kn_f16_to_f32(get_u16(b));
    const uint8_t *q = b + 2;
    for (int j = 0; j < 16; j++) {
        y[j] = d * (float)iq4_values[q[j] & 15];
        y[j + 16] = d * (float)iq4_values[q[j] >> 4];
    }
}

static void decode_iq4_xs(const uint8_t *b, float *y)
{
    const float d = kn_f16_to_f32(get_u16(b));
    for (int j = 0; j < 8; j++) {
        const float ds = d * (float)(get_scale_iq4(b + 2, j) - 32);
        const uint8_t *q = b + 8 + 16 * j;
        for (int l = 0; l < 16; l++) {
            y[32 * j + l] = ds * (float)iq4_values[q[l] & 15];
            y[32 * j + l + 16] = ds * (float)iq4_values[q[l] >> 4];
        }
    }
}

static void decode_mxfp4(const uint8_t *b, float *y)
{
    const uint32_t u = mxfp4_scale(b[0]);
    const uint8_t *q = b + 1;
    float d;
    memcpy(&d, &u, 4);
    for (int j = 0; j < 16; j++) {
        y[j] = d * (float)mxfp4_values[q[j] & 15];
        y[j + 16] = d * (float)mxfp4_values[q[j] >> 4];
    }
}

/* kn_f16_to_f32 without branches, so that the loop becomes vectors: the multiplication by 2^112 moves the
 * exponent's bias and is exact for subnormals too; Inf and NaN come out as 65536 and above and get their
 * exponent back. */
static void decode_f16(const uint8_t *b, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, b + 2 * i, 2);
        uint32_t u = (uint32_t)(h & 0x7fff) << 13;
        float f;
        memcpy(&f, &u, 4);
        f *= 0x1p112f;
        memcpy(&u, &f, 4);
        u |= (u >= 0x47800000 ? 0x7f800000u : 0) | (uint32_t)(h & 0x8000) << 16;
        memcpy(&y[i], &u, 4);
    }
}

static void decode_bf16(const uint8_t *b, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, b + 2 * i, 2);
        const uint32_t u = (uint32_t)h << 16;
        memcpy(&y[i], &u, 4);
    }
}

static void decode_plain(uint32_t type, const uint8_t *b, float *y, int64_t n)
{
    if (type == KN_F32) {
        memcpy(y, b, (size_t)n * 4);
    } else if (type == KN_F16) {
        decode_f16(b, y, n);
    } else if (type == KN_BF16) {
        decode_bf16(b, y, n);
    } else { /* F64: rounded to nearest even, the only inexact decode */
        for (int64_t i = 0; i < n; i++) {
            double v;
            memcpy(&v, b + 8 * i, 8);
            y[i] = (float)v;
        }
    }
}

int kn_decode_row(uint32_t type, const void *src, float *dst, int64_t n)
{
    const struct kn_type_info *t = kn_type_info(type);
    if (!t || !t->can_decode) return KN_ETYPE;
    if (n < 0 || n % t->block || (n && (!src || !dst))) return KN_EINVAL;
    if (n == 0) return 0;
    void (*block)(const uint8_t *, float *) = NULL;
    switch (type) {
    case KN_F32:
    case KN_F16:
    case KN_BF16:
    case KN_F64: decode_plain(type, src, dst, n); return 0;
    case KN_Q8_0: block = decode_q8_0; break;
    case KN_Q4_0: block = decode_q4_0; break;
    case KN_Q4_1: block = decode_q4_1; break;
    case KN_Q5_0: block = decode_q5_0; break;
    case KN_Q5_1: block = decode_q5_1; break;
    case KN_Q4_K: block = decode_q4_k; break;
    case KN_Q5_K: block = decode_q5_k; break;
    case KN_Q6_K: block = decode_q6_k; break;
    case KN_Q2_K: block = decode_q2_k; break;
    case KN_Q3_K: block = decode_q3_k; break;
    case KN_IQ4_NL: block = decode_iq4_nl; break;
    case KN_IQ4_XS: block = decode_iq4_xs; break;
    case KN_MXFP4: block = decode_mxfp4; break;
    case KN_IQ2_XXS:
    case KN_IQ2_XS:
    case KN_IQ2_S:
    case KN_IQ3_XXS:
    case KN_IQ3_S:
    case KN_IQ1_S:
    case KN_IQ1_M: decode_grid(type, src, dst, n); return 0;
    default: return KN_ETYPE;
    }
    const uint8_t *b = src;
    for (int64_t i = 0; i < n / t->block; i++) block(b + (size_t)i * t->bytes, dst + i * t->block);
    return 0;
}
