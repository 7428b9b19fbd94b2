/* kv_ref.h - rows of quantised caches in double, written from the page on them (docs/kv.md), not from the
 * code. */
#ifndef TEST_KV_REF_H
#define TEST_KV_REF_H

#include "../../../kernels/kernels.h"

#include <math.h>
#include <string.h>

static const uint32_t kv_ref_types[] = {KN_F16, KN_BF16, KN_F32, KN_Q8_0, KN_Q5_0, KN_Q4_0, KN_TQ3_0};
#define KV_REF_TYPES 7
#define KV_REF_HEAD 512

static inline double kv_ref_half(const uint8_t *p)
{
    return (double)kn_f16_to_f32((uint16_t)(p[0] | p[1] << 8));
}

/* -1 at the set bits of the masks, 1 elsewhere. */
static inline double kv_ref_sign(int which, int i)
{
    static const uint32_t mask[2][4] = {{0xe46a0359u, 0x42f85949u, 0xa4c63bbbu, 0x49f250a9u},
                                        {0x16acee90u, 0x3f628fdcu, 0xb7a5357au, 0xbea56562u}};
    return mask[which][i / 32] >> i % 32 & 1 ? -1 : 1;
}

/* x[d] out of the rotated space, by the matrix itself. */
static inline void kv_ref_turn_back(uint32_t type, bool values, double *x, int d)
{
    double y[KV_REF_HEAD];
    int n = type == KN_TQ3_0 ? 128 : values ? 64 : 512;
    while (d % n) n /= 2;
    for (int i = 0; i < d; i++) {
        y[i] = 0;
        for (int j = 0; j < n; j++) {
            const double h = __builtin_popcount((unsigned)(i % n) & (unsigned)j) % 2 ? -1 : 1,
                         s = type == KN_TQ3_0 ? kv_ref_sign(1, j) * kv_ref_sign(0, i % n) : 1;
            y[i] += s * h * x[i / n * n + j];
        }
        y[i] /= sqrt(n);
    }
    memcpy(x, y, (size_t)d * sizeof *x);
}

/* Number i of a head, still rotated, from its planes. */
static inline double kv_ref_code(uint32_t type, const uint8_t *low, const uint8_t *high, const uint8_t *scale,
                                 int i)
{
    static const double level[8] = {-0.190685, -0.117832, -0.065717, -0.021460,
                                    0.021460,  0.065717,  0.117832,  0.190685};
    const int b = i / 32, j = i % 32, nibble = low[16 * b + j % 16] >> (j < 16 ? 0 : 4) & 15;
    if (type == KN_Q8_0) return kv_ref_half(scale + 2 * b) * (int8_t)low[i];
    if (type == KN_Q4_0) return kv_ref_half(scale + 2 * b) * (nibble - 8);
    if (type == KN_Q5_0) { /* bit 8 (j % 4) + (j % 16) / 4 + 4 (j / 16) of a little-endian word */
        const int fifth = high[4 * b + j % 4] >> ((j % 16) / 4 + 4 * (j / 16)) & 1;
        return kv_ref_half(scale + 2 * b) * (nibble + 16 * fifth - 16);
    }
    const int at = 4 * (j % 8) + 2 * (j / 8 % 2), up = 4 * (j % 8) + j / 8;
    const int two = low[i / 16 * 4 + at / 8] >> at % 8 & 3, third = high[4 * b + up / 8] >> up % 8 & 1;
    return kv_ref_half(scale + i / 128 * 2) * level[two + 4 * third];
}

/* out[n_kv, d] of a row, as they were before they were stored. */
static inline void kv_ref_row(uint32_t type, bool values, const void *row, int n_kv, int d, double *out)
{
    const uint8_t *p = row;
    const int bits_low = type == KN_Q8_0    ? 8
                         : type == KN_TQ3_0 ? 2
                                            : 4,
              bits_high = type == KN_Q5_0 || type == KN_TQ3_0, group = type == KN_TQ3_0 ? 128 : 32;
    for (int h = 0; h < n_kv; h++) {
        double *x = out + h * d;
        const uint8_t *low = p + h * d * bits_low / 8,
                      *high = p + n_kv * d * bits_low / 8 + h * d * bits_high / 8,
                      *scale = p + n_kv * d * (bits_low + bits_high) / 8 + h * (d / group) * 2;
        for (int i = 0; i < d; i++) {
            if (type == KN_F32)
                x[i] = (double)((const float *)row)[h * d + i];
            else if (type == KN_F16 || type == KN_BF16) {
                const uint16_t v = ((const uint16_t *)row)[h * d + i];
                x[i] = (double)(type == KN_F16 ? kn_f16_to_f32(v) : kn_bf16_to_f32(v));
            } else
                x[i] = kv_ref_code(type, low, high, scale, i);
        }
        if (kn_kv_coded(type)) kv_ref_turn_back(type, values, x, d);
    }
}

/* What a stored head may be off, as a share of its length: half a step of the codes. The rotated numbers of a
 * block of 32 are near normal, their largest some 2.1 times their root mean square, 3.5 at the very most that
 * is asked for here; a step is that over 127, 16 or 8, and tq3_0's eight levels leave 0.0345 of the variance
 * (Lloyd-Max), 0.186 of the length. */
static inline double kv_ref_error(uint32_t type)
{
    switch (type) {
    case KN_F32: return 0;
    case KN_F16: return 0x1p-11;
    case KN_BF16: return 0x1p-8;
    case KN_Q8_0: return 3.5 / 127 / sqrt(12);
    case KN_Q5_0: return 3.5 / 16 / sqrt(12);
    case KN_Q4_0: return 3.5 / 8 / sqrt(12);
    default: return 0.25;
    }
}

#endif
