/* mm_256.inc.h - what mm_avx2.c and mm_avxvnni.c have in common: vectors of 8 lanes over AVX2 and FMA. */
#include <immintrin.h>

#define LANES 8
#define INLINE static inline __attribute__((always_inline))

typedef __m256i vi;
typedef __m256 vf;

INLINE vi vi_load(const uint8_t *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}
INLINE vi vi_zero(void)
{
    return _mm256_setzero_si256();
}
INLINE vi vi_set(int32_t x)
{
    return _mm256_set1_epi32(x);
}
INLINE vi vi_bcast(const void *p)
{
    return _mm256_set1_epi32(*(const int32_t *)p);
}
INLINE vi vi_and(vi a, vi b)
{
    return _mm256_and_si256(a, b);
}
INLINE vi vi_or(vi a, vi b)
{
    return _mm256_or_si256(a, b);
}
INLINE vi vi_xor(vi a, vi b)
{
    return _mm256_xor_si256(a, b);
}
INLINE vi vi_add(vi a, vi b)
{
    return _mm256_add_epi32(a, b);
}
INLINE vi vi_sub(vi a, vi b)
{
    return _mm256_sub_epi32(a, b);
}
INLINE vi vi_mul(vi a, vi b)
{
    return _mm256_mullo_epi32(a, b);
}
INLINE vi vi_shl(vi a, int n)
{
    return _mm256_slli_epi32(a, n);
}
INLINE vi vi_shr(vi a, int n)
{
    return _mm256_srli_epi32(a, n);
}
INLINE vi vi_sar(vi a, int n)
{
    return _mm256_srai_epi32(a, n);
}
/* 8 bytes over and over. */
INLINE vi vi_bcast8(const void *p)
{
    int64_t x;
    __builtin_memcpy(&x, p, 8);
    return _mm256_set1_epi64x(x);
}
/* a where mask has ones, else b. */
INLINE vi vi_pick(vi mask, vi a, vi b)
{
    return _mm256_or_si256(_mm256_and_si256(mask, a), _mm256_andnot_si256(mask, b));
}
INLINE vi vi_from_s8_pairs(const uint8_t *p)
{
    return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p));
}
INLINE vf vf_zero(void)
{
    return _mm256_setzero_ps();
}
INLINE vf vf_load(const uint8_t *p)
{
    return _mm256_loadu_ps((const float *)p);
}
INLINE void vf_store(float *p, vf v)
{
    _mm256_storeu_ps(p, v);
}
INLINE vf vf_bcast(const float *p)
{
    return _mm256_broadcast_ss(p);
}
INLINE vf vf_from_f16(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}
INLINE vf vf_from_bf16(const uint8_t *p)
{
    return _mm256_castsi256_ps(
        _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
INLINE vf vf_cvt(vi a)
{
    return _mm256_cvtepi32_ps(a);
}
INLINE vf vf_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}
INLINE vf vf_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}
INLINE vf vf_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}
INLINE vf vf_fms(vf a, vf b, vf c)
{
    return _mm256_fmsub_ps(a, b, c);
}
/* Bytes 0..15: what the table says of them. */
INLINE vi vi_table(const uint8_t table[16], vi nibbles)
{
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table)), nibbles);
}
INLINE vi vi_gather(const uint32_t *table, vi index)
{
    return _mm256_i32gather_epi32((const int *)table, index, 4);
}
INLINE vi vi_from_u8(const uint8_t *p)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
}
INLINE vi vi_bits(vf a)
{
    return _mm256_castps_si256(a);
}
INLINE vf vf_bits(vi a)
{
    return _mm256_castsi256_ps(a);
}
