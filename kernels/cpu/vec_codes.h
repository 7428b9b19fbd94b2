/* vec_codes.h - what unpacking the codes of a quantised cache wants of the virtual vector (vec.h): 16 lanes,
 * the same bits from every instruction set. */
#ifndef DFLASH_CPU_VEC_CODES_H
#define DFLASH_CPU_VEC_CODES_H

#include "vec.h"

#if VEC_ISA == 2
static inline struct ivec iv_load_u8(const uint8_t *p)
{
    return IVEC_1(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
}
static inline struct ivec iv_load_i8(const int8_t *p)
{
    return IVEC_1(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
}
/* Lane by lane, 0 <= n < 32. */
static inline struct ivec iv_shr_each(struct ivec a, struct ivec n)
{
    return IVEC_1(_mm512_srlv_epi32(a.v, n.v));
}
/* table[i] in each lane, 0 <= i < 8. */
static inline struct vec v_lookup8(const float table[8], struct ivec i)
{
    return VEC_1(_mm512_permutexvar_ps(i.v, _mm512_broadcast_f32x8(_mm256_loadu_ps(table))));
}
#elif VEC_ISA == 1
static inline struct ivec iv_load_u8(const uint8_t *p)
{
    const __m128i b = _mm_loadu_si128((const __m128i *)(const void *)p);
    return (struct ivec){_mm256_cvtepu8_epi32(b), _mm256_cvtepu8_epi32(_mm_srli_si128(b, 8))};
}
static inline struct ivec iv_load_i8(const int8_t *p)
{
    const __m128i b = _mm_loadu_si128((const __m128i *)(const void *)p);
    return (struct ivec){_mm256_cvtepi8_epi32(b), _mm256_cvtepi8_epi32(_mm_srli_si128(b, 8))};
}
static inline struct ivec iv_shr_each(struct ivec a, struct ivec n)
{
    return (struct ivec){_mm256_srlv_epi32(a.lo, n.lo), _mm256_srlv_epi32(a.hi, n.hi)};
}
static inline struct vec v_lookup8(const float table[8], struct ivec i)
{
    const __m256 t = _mm256_loadu_ps(table);
    return (struct vec){_mm256_permutevar8x32_ps(t, i.lo), _mm256_permutevar8x32_ps(t, i.hi)};
}
#else
static inline struct ivec iv_load_u8(const uint8_t *p)
{
    IVEC_EACH(p[l]);
}
static inline struct ivec iv_load_i8(const int8_t *p)
{
    IVEC_EACH(p[l]);
}
static inline struct ivec iv_shr_each(struct ivec a, struct ivec n)
{
    IVEC_EACH((uint32_t)a.i[l] >> n.i[l]);
}
static inline struct vec v_lookup8(const float table[8], struct ivec i)
{
    VEC_EACH(table[i.i[l]]);
}
#endif

#endif
