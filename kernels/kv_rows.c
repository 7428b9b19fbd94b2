/* kv_rows.c - see kv_rows.h. Plain C in a fixed order: the same bits on every machine. */
#include "kv_rows.h"

#include <math.h>
#include <string.h>

bool kv_test_flat;

/* The best eight levels for a number of variance 1/128. */
const float kv_centroids[8] = {-0.190685f, -0.117832f, -0.065717f, -0.021460f,
                               0.021460f,  0.065717f,  0.117832f,  0.190685f};
const float kv_mids[7] = {-0.154259f, -0.091775f, -0.043589f, 0, 0.043589f, 0.091775f, 0.154259f};
const uint32_t kv_signs[2][4] = {{0xe46a0359u, 0x42f85949u, 0xa4c63bbbu, 0x49f250a9u},
                                 {0x16acee90u, 0x3f628fdcu, 0xb7a5357au, 0xbea56562u}};

const struct kv_layout *kv_layout_of(uint32_t type)
{
    static const struct kv_layout q8 = {8, 0, 32}, q5 = {4, 1, 32}, q4 = {4, 0, 32}, tq3 = {2, 1, 128};
    switch (type) {
    case KN_Q8_0: return &q8;
    case KN_Q5_0: return &q5;
    case KN_Q4_0: return &q4;
    case KN_TQ3_0: return &tq3;
    default: return NULL;
    }
}

struct kv_planes kv_planes_of(const struct kv_layout *y, int32_t n_head_kv, int32_t head_dim, int32_t head)
{
    const size_t n = (size_t)n_head_kv, h = (size_t)head, d = (size_t)head_dim, low = d * (size_t)y->low / 8,
                 high = d * (size_t)y->high / 8, scale = d / (size_t)y->group * 2;
    return (struct kv_planes){.low = h * low,
                              .high = n * low + h * high,
                              .scale = n * (low + high) + h * scale,
                              .row = (n * (low + high + scale) + 15) & ~(size_t)15};
}

/* ---- rotation ---- */

int32_t kv_turn_size(uint32_t type, bool values, int32_t head_dim)
{
    if (type == KN_TQ3_0) return 128;
    return values ? (head_dim % 64 ? 32 : 64) : head_dim & -head_dim;
}

/* x[n] = H x. Every pass adds and subtracts numbers h apart. */
static void hadamard(float *x, int32_t n)
{
    const float scale = 1.0f / sqrtf((float)n);
    for (int32_t h = 1; h < n; h *= 2)
        for (int32_t i = 0; i < n; i += 2 * h)
            for (int32_t j = i; j < i + h; j++) {
                const float a = x[j], b = x[j + h];
                x[j] = a + b;
                x[j + h] = a - b;
            }
    for (int32_t i = 0; i < n; i++) x[i] *= scale;
}

static void sign(float *x, const uint32_t mask[4])
{
    for (int i = 0; i < 128; i++)
        if (mask[i / 32] >> i % 32 & 1) x[i] = -x[i];
}

static void turn(uint32_t type, bool values, float *x, int32_t d, bool back)
{
    if (!kv_layout_of(type) || kv_test_flat) return;
    const int32_t n = kv_turn_size(type, values, d);
    for (int32_t i = 0; i < d; i += n) {
        if (type == KN_TQ3_0) sign(x + i, kv_signs[back]);
        hadamard(x + i, n);
        if (type == KN_TQ3_0) sign(x + i, kv_signs[!back]);
    }
}

void kv_turn(uint32_t type, bool values, float *x, int32_t d)
{
    turn(type, values, x, d, false);
}

void kv_turn_back(uint32_t type, bool values, float *x, int32_t d)
{
    turn(type, values, x, d, true);
}

/* ---- codes ---- */

static void put_half(uint8_t *p, uint16_t h)
{
    p[0] = (uint8_t)h;
    p[1] = (uint8_t)(h >> 8);
}

static float get_half(const uint8_t *p)
{
    return kn_f16_to_f32((uint16_t)(p[0] | p[1] << 8));
}

static void put_word(uint8_t *p, uint32_t w)
{
    for (int i = 0; i < 4; i++) p[i] = (uint8_t)(w >> 8 * i);
}

static uint32_t get_word(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static bool all_finite(const float *x, int n)
{
    float s = 0;
    for (int i = 0; i < n; i++) s += x[i] - x[i]; /* 0, or NaN */
    return s == 0;
}

/* The integers of a block of 32, -top - 1 (or -top: 127) <= q <= top. The scale is taken as it will be read.
 * With few levels the largest magnitude takes the end that has one more. */
static void levels(const float *x, int top, uint8_t *scale, int32_t q[32])
{
    float lo = x[0], hi = x[0];
    for (int i = 1; i < 32; i++) {
        lo = x[i] < lo ? x[i] : lo;
        hi = x[i] > hi ? x[i] : hi;
    }
    const float peak = hi > -lo ? hi : lo;
    const bool even = top == 127; /* as many levels on both sides */
    const uint16_t h =
        all_finite(x, 32) ? kn_f32_to_f16(even ? fabsf(peak) / 127.0f : peak / -(float)(top + 1)) : 0x7e00;
    const float d = kn_f16_to_f32(h), inv = d == 0.0f || d != d ? 0.0f : 1.0f / d;
    const float least = even ? -127.0f : -(float)(top + 1), most = (float)top;
    put_half(scale, h);
    for (int i = 0; i < 32; i++) {
        float y = d != d ? 0.0f : x[i] * inv;
        y = y < least ? least : y > most ? most : y;
        q[i] = (int32_t)((y + 12582912.0f) - 12582912.0f); /* to nearest, ties to even */
    }
}

static void put_nibbles(const int32_t q[32], int bias, uint8_t *low, uint8_t *high)
{
    uint32_t bits = 0;
    for (int j = 0; j < 16; j++) {
        const uint32_t a = (uint32_t)(q[j] + bias), b = (uint32_t)(q[j + 16] + bias),
                       at = 8u * (j % 4) + j / 4u;
        low[j] = (uint8_t)((a & 15) | (b & 15) << 4);
        bits |= (a >> 4 & 1) << at | (b >> 4 & 1) << (at + 4);
    }
    if (high) put_word(high, bits);
}

static void get_nibbles(const uint8_t *low, const uint8_t *high, int bias, float d, float *x)
{
    const uint32_t bits = high ? get_word(high) : 0;
    for (int j = 0; j < 16; j++) {
        const uint32_t at = 8u * (j % 4) + j / 4u;
        x[j] = d * (float)((int32_t)((low[j] & 15u) | (bits >> at & 1) << 4) - bias);
        x[j + 16] = d * (float)((int32_t)(low[j] >> 4 | (bits >> (at + 4) & 1) << 4) - bias);
    }
}

/* A group of 128: unit vectors are coded, and the scale makes the length right. */
static void encode_tq3(const float *x, uint8_t *low, uint8_t *high, uint8_t *scale)
{
    double xx = 0, cc = 0;
    uint32_t code[128];
    for (int i = 0; i < 128; i++) xx += (double)x[i] * x[i];
    const float g = (float)sqrt(xx);
    for (int i = 0; i < 128; i++) {
        code[i] = 0;
        for (int k = 0; k < 7; k++) code[i] += x[i] >= kv_mids[k] * g;
        cc += (double)kv_centroids[code[i]] * kv_centroids[code[i]];
    }
    put_half(scale, all_finite(x, 128) ? kn_f32_to_f16((float)(g / sqrt(cc))) : 0x7e00);
    for (int b = 0; b < 4; b++) {
        uint32_t w[2] = {0, 0}, h = 0;
        for (int i = 0; i < 32; i++) {
            const uint32_t c = code[32 * b + i];
            w[i / 16] |= (c & 3) << (4 * (i % 8) + 2 * (i / 8 % 2));
            h |= (c >> 2) << (4 * (i % 8) + i / 8);
        }
        put_word(low + 8 * b, w[0]);
        put_word(low + 8 * b + 4, w[1]);
        put_word(high + 4 * b, h);
    }
}

static void decode_tq3(const uint8_t *low, const uint8_t *high, float d, float *x)
{
    for (int i = 0; i < 128; i++) {
        const int j = i % 32;
        const uint32_t w = get_word(low + i / 16 * 4), h = get_word(high + i / 32 * 4);
        x[i] =
            d *
            kv_centroids[(w >> (4 * (j % 8) + 2 * (j / 8 % 2)) & 3) | (h >> (4 * (j % 8) + j / 8) & 1) << 2];
    }
}

void kv_encode(uint32_t type, const float *x, uint8_t *row, int32_t n_head_kv, int32_t d, int32_t head)
{
    const struct kv_layout *y = kv_layout_of(type);
    const struct kv_planes p = kv_planes_of(y, n_head_kv, d, head);
    for (int32_t i = 0; i < d; i += y->group) {
        uint8_t *low = row + p.low + i * y->low / 8, *high = row + p.high + i * y->high / 8,
                *scale = row + p.scale + i / y->group * 2;
        int32_t q[32];
        switch (type) {
        case KN_Q8_0:
            levels(x + i, 127, scale, q);
            for (int j = 0; j < 32; j++) low[j] = (uint8_t)q[j];
            break;
        case KN_Q5_0:
            levels(x + i, 15, scale, q);
            put_nibbles(q, 16, low, high);
            break;
        case KN_Q4_0:
            levels(x + i, 7, scale, q);
            put_nibbles(q, 8, low, NULL);
            break;
        default: encode_tq3(x + i, low, high, scale);
        }
    }
    if (head == n_head_kv - 1) { /* what fills the row up */
        const size_t end = p.scale + (size_t)(d / y->group) * 2;
        memset(row + end, 0, p.row - end);
    }
}

void kv_decode(uint32_t type, const uint8_t *row, float *x, int32_t n_head_kv, int32_t d, int32_t head)
{
    const struct kv_layout *y = kv_layout_of(type);
    const struct kv_planes p = kv_planes_of(y, n_head_kv, d, head);
    for (int32_t i = 0; i < d; i += y->group) {
        const uint8_t *low = row + p.low + i * y->low / 8, *high = row + p.high + i * y->high / 8;
        const float s = get_half(row + p.scale + i / y->group * 2);
        switch (type) {
        case KN_Q8_0:
            for (int j = 0; j < 32; j++) x[i + j] = s * (float)(int8_t)low[j];
            break;
        case KN_Q5_0: get_nibbles(low, high, 16, s, x + i); break;
        case KN_Q4_0: get_nibbles(low, NULL, 8, s, x + i); break;
        default: decode_tq3(low, high, s, x + i);
        }
    }
}
