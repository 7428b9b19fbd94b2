/* half.c - scalar f16 and bf16 conversions: integer arithmetic only, so the bits are the same on every
 * machine. */
#include "../kernels.h"

#include <string.h>

static uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

static float float_of(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}

float kn_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exp = h >> 10 & 31, man = h & 0x3ff;
    if (exp == 31) return float_of(sign | 0x7f800000 | man << 13);
    if (exp) return float_of(sign | (exp + 112) << 23 | man << 13);
    /* Zero and subnormals: man * 2^-24, exact in f32. */
    float f = (float)man * 0x1p-24f;
    return float_of(sign | bits_of(f));
}

uint16_t kn_f32_to_f16(float f)
{
    uint32_t u = bits_of(f), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;
    if (a > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (a >> 13 & 0x3ff)); /* quiet NaN, payload kept */
    if (a >= 0x477ff000) return (uint16_t)(sign | 0x7c00); /* 65520 and above round to Inf */
    if (a >= 0x38800000) {                                 /* normal: 2^-14 and above */
        uint32_t r = a - 0x38000000;
        return (uint16_t)(sign | (r + 0xfff + (r >> 13 & 1)) >> 13);
    }
    if (a <= 0x33000000) return (uint16_t)sign; /* at most half of the least subnormal: ties go to zero */
    uint32_t shift = 126 - (a >> 23),
             man = (a & 0x7fffff) | 0x800000; /* value = man * 2^(exp-150), unit 2^-24 */
    uint32_t q = man >> shift, rest = man & ((1u << shift) - 1), half = 1u << (shift - 1);
    if (rest > half || (rest == half && (q & 1))) q++;
    return (uint16_t)(sign | q);
}

float kn_bf16_to_f32(uint16_t h)
{
    return float_of((uint32_t)h << 16);
}

uint16_t kn_f32_to_bf16(float f)
{
    uint32_t u = bits_of(f);
    if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)(u >> 16 | 0x40); /* quiet NaN */
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
