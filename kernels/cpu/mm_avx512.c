/* mm_avx512.c - the matrix kernels over AVX-512 with VNNI: 16 rows a panel, tiles of up to 8 tokens. */
#include "mm.h"

#include <immintrin.h>

#define LANES 16
#define TILE 8
#define TILE_BESIDE TILE
#define SHORT_SUMS 0
#define MM_NAME cpu_mm_avx512
#define MM_PREPARE_Q256 act_q256_tile
#define INLINE static inline __attribute__((always_inline))

typedef __m512i vi;
typedef __m512 vf;

INLINE vi vi_load(const uint8_t *p)
{
    return _mm512_loadu_si512(p);
}
INLINE vi vi_zero(void)
{
    return _mm512_setzero_si512();
}
INLINE vi vi_set(int32_t x)
{
    return _mm512_set1_epi32(x);
}
INLINE vi vi_bcast(const void *p)
{
    return _mm512_set1_epi32(*(const int32_t *)p);
}
INLINE vi vi_and(vi a, vi b)
{
    return _mm512_and_si512(a, b);
}
INLINE vi vi_or(vi a, vi b)
{
    return _mm512_or_si512(a, b);
}
INLINE vi vi_xor(vi a, vi b)
{
    return _mm512_xor_si512(a, b);
}
INLINE vi vi_add(vi a, vi b)
{
    return _mm512_add_epi32(a, b);
}
INLINE vi vi_sub(vi a, vi b)
{
    return _mm512_sub_epi32(a, b);
}
INLINE vi vi_mul(vi a, vi b)
{
    return _mm512_mullo_epi32(a, b);
}
INLINE vi vi_shl(vi a, unsigned n)
{
    return _mm512_slli_epi32(a, n);
}
INLINE vi vi_shr(vi a, unsigned n)
{
    return _mm512_srli_epi32(a, n);
}
INLINE vi vi_sar(vi a, unsigned n)
{
    return _mm512_srai_epi32(a, n);
}
INLINE vi vi_dot4(vi acc, vi codes, const uint8_t *a)
{
    return _mm512_dpbusd_epi32(acc, codes, vi_bcast(a));
}
INLINE vi vi_dot4v(vi acc, vi codes, vi a)
{
    return _mm512_dpbusd_epi32(acc, codes, a);
}
/* 8 bytes over and over. */
INLINE vi vi_bcast8(const void *p)
{
    int64_t x;
    __builtin_memcpy(&x, p, 8);
    return _mm512_set1_epi64(x);
}
/* Of each four lanes: (low 0, low 1), (low 2, low 3), (high 0, high 1), (high 2, high 3) as halves of words;
 * the numbers fit them. */
INLINE vi vi_join(vi low, vi high)
{
    return _mm512_packs_epi32(low, high);
}
/* Of each four lanes: low 0, low 2, high 0, high 2, and the others. */
INLINE vi vi_evens(vi low, vi high)
{
    return _mm512_castps_si512(_mm512_shuffle_ps(_mm512_castsi512_ps(low), _mm512_castsi512_ps(high), 0x88));
}
INLINE vi vi_odds(vi low, vi high)
{
    return _mm512_castps_si512(_mm512_shuffle_ps(_mm512_castsi512_ps(low), _mm512_castsi512_ps(high), 0xdd));
}
/* a where mask has ones, else b. */
INLINE vi vi_pick(vi mask, vi a, vi b)
{
    return _mm512_ternarylogic_epi32(mask, a, b, 0xca);
}
#include "mm_unsigned.inc.h"
INLINE vi vi_dot2(vi acc, vi pairs, const uint8_t *a)
{
    return _mm512_dpwssd_epi32(acc, pairs, vi_bcast(a));
}
/* acc + the products of both 16-bit halves. */
INLINE vi vi_dot2v(vi acc, vi a, vi b)
{
    return _mm512_dpwssd_epi32(acc, a, b);
}
INLINE vi vi_from_s8_pairs(const uint8_t *p)
{
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)p));
}
/* Bytes 0..15: what the table says of them. */
INLINE vi vi_table(const uint8_t table[16], vi nibbles)
{
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)table)), nibbles);
}
INLINE vi vi_gather(const uint32_t *table, vi index)
{
    return _mm512_i32gather_epi32(index, table, 4);
}
INLINE vi vi_from_u8(const uint8_t *p)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
}
INLINE vi vi_bits(vf a)
{
    return _mm512_castps_si512(a);
}
INLINE vf vf_bits(vi a)
{
    return _mm512_castsi512_ps(a);
}
INLINE vf vf_zero(void)
{
    return _mm512_setzero_ps();
}
INLINE vf vf_load(const uint8_t *p)
{
    return _mm512_loadu_ps(p);
}
INLINE void vf_store(float *p, vf v)
{
    _mm512_storeu_ps(p, v);
}
INLINE vf vf_bcast(const float *p)
{
    return _mm512_set1_ps(*p);
}
INLINE vf vf_from_f16(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
INLINE vf vf_from_bf16(const uint8_t *p)
{
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
INLINE vf vf_cvt(vi a)
{
    return _mm512_cvtepi32_ps(a);
}
INLINE vf vf_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}
INLINE vf vf_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}
INLINE vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}
INLINE vf vf_fms(vf a, vf b, vf c)
{
    return _mm512_fmsub_ps(a, b, c);
}

#include "mm_table.inc.h"
