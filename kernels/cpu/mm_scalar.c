/* mm_scalar.c - the matrix kernels in plain C: 16 rows a panel, tiles of up to 4 tokens. The reference of the
 * other sets, and what runs where there is no AVX2. */
#include "mm.h"

#include <math.h>
#include <string.h>

#define LANES 16
#define TILE 4
#define TILE_BESIDE TILE
#define SHORT_SUMS 0
#define MM_NAME cpu_mm_scalar
#define INLINE static inline __attribute__((always_inline))
#define EACH for (int l = 0; l < LANES; l++)
#define UNROLL /* 16 lanes of plain C: unrolling more costs compile time and gains nothing */
#pragma GCC diagnostic ignored "-Wpsabi" /* the vectors never cross a call */

typedef uint32_t vi __attribute__((vector_size(4 * LANES))); /* the compiler's own vectors: any machine */
typedef int32_t vis __attribute__((vector_size(4 * LANES)));
typedef float vf __attribute__((vector_size(4 * LANES)));

INLINE vi vi_load(const uint8_t *p)
{
    vi r;
    memcpy(&r, p, sizeof r);
    return r;
}
INLINE vi vi_zero(void)
{
    return (vi){0};
}
INLINE vi vi_set(uint32_t x)
{
    return (vi){0} + x;
}
INLINE vi vi_bcast(const void *p)
{
    uint32_t x;
    memcpy(&x, p, 4);
    return vi_set(x);
}
INLINE vi vi_and(vi a, vi b)
{
    return a & b;
}
INLINE vi vi_or(vi a, vi b)
{
    return a | b;
}
INLINE vi vi_xor(vi a, vi b)
{
    return a ^ b;
}
INLINE vi vi_add(vi a, vi b)
{
    return a + b;
}
INLINE vi vi_sub(vi a, vi b)
{
    return a - b;
}
INLINE vi vi_mul(vi a, vi b)
{
    return a * b;
}
INLINE vi vi_shl(vi a, int n)
{
    return a << n;
}
INLINE vi vi_shr(vi a, int n)
{
    return a >> n;
}
INLINE vi vi_sar(vi a, int n)
{
    return (vi)((vis)a >> n);
}
INLINE vi vi_dot4(vi acc, vi codes, const uint8_t *a)
{
    for (int i = 0; i < 4; i++) acc += (codes >> 8 * i & 255) * (uint32_t)(int8_t)a[i];
    return acc;
}
INLINE vi vi_dot4v(vi acc, vi codes, vi a)
{
    for (int i = 0; i < 32; i += 8) acc += (codes >> i & 255) * vi_sar(a << (24 - i), 24);
    return acc;
}
/* 8 bytes over and over. */
INLINE vi vi_bcast8(const void *p)
{
    uint32_t x[2];
    vi r;
    memcpy(x, p, 8);
    EACH r[l] = x[l % 2];
    return r;
}
/* Of each four lanes: low 0, low 2, high 0, high 2, and the others. */
INLINE vi vi_evens(vi low, vi high)
{
    vi r;
    EACH r[l] = l % 4 < 2 ? low[l / 4 * 4 + l % 2 * 2] : high[l / 4 * 4 + l % 2 * 2];
    return r;
}
INLINE vi vi_odds(vi low, vi high)
{
    vi r;
    EACH r[l] = l % 4 < 2 ? low[l / 4 * 4 + l % 2 * 2 + 1] : high[l / 4 * 4 + l % 2 * 2 + 1];
    return r;
}
/* Of each four lanes: (low 0, low 1), (low 2, low 3), (high 0, high 1), (high 2, high 3) as halves of words;
 * the numbers fit them. */
INLINE vi vi_join(vi low, vi high)
{
    return (vi_evens(low, high) & 0xffff) | vi_odds(low, high) << 16;
}
/* a where mask has ones, else b. */
INLINE vi vi_pick(vi mask, vi a, vi b)
{
    return (a & mask) | (b & ~mask);
}
#include "mm_unsigned.inc.h"
INLINE vi vi_dot2(vi acc, vi pairs, const uint8_t *a)
{
    int16_t q[2];
    memcpy(q, a, 4);
    return acc + vi_sar(pairs << 16, 16) * (uint32_t)q[0] + vi_sar(pairs, 16) * (uint32_t)q[1];
}
/* acc + the products of both 16-bit halves. */
INLINE vi vi_dot2v(vi acc, vi a, vi b)
{
    return acc + vi_sar(a << 16, 16) * vi_sar(b << 16, 16) + vi_sar(a, 16) * vi_sar(b, 16);
}
INLINE vi vi_from_s8_pairs(const uint8_t *p)
{
    vi r;
    EACH r[l] = (uint32_t)(uint16_t)(int8_t)p[2 * l] | (uint32_t)(int8_t)p[2 * l + 1] << 16;
    return r;
}
/* Bytes 0..15: what the table says of them. */
INLINE vi vi_table(const uint8_t table[16], vi nibbles)
{
    uint8_t b[4 * LANES];
    memcpy(b, &nibbles, sizeof b);
    for (int i = 0; i < 4 * LANES; i++) b[i] = table[b[i]];
    return vi_load(b);
}
INLINE vi vi_gather(const uint32_t *table, vi index)
{
    EACH index[l] = table[index[l]];
    return index;
}
INLINE vi vi_from_u8(const uint8_t *p)
{
    vi r;
    EACH r[l] = p[l];
    return r;
}
INLINE vi vi_bits(vf a)
{
    return (vi)a;
}
INLINE vf vf_bits(vi a)
{
    return (vf)a;
}
INLINE vf vf_zero(void)
{
    return (vf){0};
}
INLINE vf vf_load(const uint8_t *p)
{
    vf r;
    memcpy(&r, p, sizeof r);
    return r;
}
INLINE void vf_store(float *p, vf v)
{
    memcpy(p, &v, sizeof v);
}
INLINE vf vf_bcast(const float *p)
{
    vf r;
    EACH r[l] = *p;
    return r;
}
INLINE vi load_u16(const uint8_t *p)
{
    uint16_t h[LANES];
    vi r;
    memcpy(h, p, sizeof h);
    EACH r[l] = h[l];
    return r;
}
/* Exact: the exponent and mantissa in place are the value times 2^-112, subnormals too. */
INLINE vf vf_from_f16(const uint8_t *p)
{
    const vi h = load_u16(p), u = (h & 0x7fff) << 13;
    const vi special = (vi)((vis)u >= 0x0f800000) & 0x7f800000; /* Inf, NaN */
    return (vf)((vi)((vf)u * 0x1p112f) | special | (h & 0x8000) << 16);
}
INLINE vf vf_from_bf16(const uint8_t *p)
{
    return (vf)(load_u16(p) << 16);
}
INLINE vf vf_cvt(vi a)
{
    return __builtin_convertvector((vis)a, vf);
}
INLINE vf vf_add(vf a, vf b)
{
    return a + b;
}
INLINE vf vf_mul(vf a, vf b)
{
    return a * b;
}
INLINE vf vf_fma(vf a, vf b, vf c)
{
    EACH c[l] = fmaf(a[l], b[l], c[l]);
    return c;
}
INLINE vf vf_fms(vf a, vf b, vf c)
{
    EACH c[l] = fmaf(a[l], b[l], -c[l]);
    return c;
}

#include "mm_table.inc.h"
