/* mm_avx2.c - the matrix kernels over AVX2 and FMA: 8 rows a panel, tiles of up to 4 tokens.
 *
 * A pair of products of vpmaddubsw must fit 16 bits: codes are at most 63 and activations within -127..127,
 * so a pair is at most 16002. Q8_0's signed codes go in as |code| with the sign moved to the activation: at
 * most 128 * 127 * 2 = 32512. */
#include "mm.h"

#include <immintrin.h>

#define LANES 8
#define TILE 8
#define TILE_BESIDE 4
#define SHORT_SUMS 1
#define MM_NAME cpu_mm_avx2
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
/* The compiler would add a tree of products, all of which it then keeps in memory: the asm holds the order.
 */
INLINE vi vi_in_order(vi a)
{
    __asm__("" : "+x"(a));
    return a;
}
INLINE vi vi_dot4(vi acc, vi codes, const uint8_t *a)
{
    return vi_in_order(
        vi_add(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(codes, vi_bcast(a)), _mm256_set1_epi16(1))));
}
INLINE vi vs_dot4v(vi acc, vi codes, vi a)
{
    return vi_in_order(_mm256_add_epi16(acc, _mm256_maddubs_epi16(codes, a)));
}
INLINE vi vs_sar(vi a, int n)
{
    return _mm256_srai_epi16(a, n);
}
/* Of each four lanes: the halves of words 0 and 1, each twice, and those of words 2 and 3. */
INLINE vi vi_twice_low(vi a)
{
    return _mm256_unpacklo_epi16(a, a);
}
INLINE vi vi_twice_high(vi a)
{
    return _mm256_unpackhi_epi16(a, a);
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
/* Codes are signed, stored with 128 added. The sum starts at zero, for the codes are made signed again. */
INLINE vi vi_dot_s8_start(const int32_t *nsum)
{
    (void)nsum;
    return vi_zero();
}
INLINE vi vi_dot_s8(vi acc, vi codes, const uint8_t *a)
{
    const vi w = _mm256_xor_si256(codes, _mm256_set1_epi8((char)0x80));
    const vi products = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(vi_bcast(a), w));
    return vi_in_order(vi_add(acc, _mm256_madd_epi16(products, _mm256_set1_epi16(1))));
}
INLINE vi vi_dot2(vi acc, vi pairs, const uint8_t *a)
{
    return vi_in_order(vi_add(acc, _mm256_madd_epi16(pairs, vi_bcast(a))));
}
/* Bytes 0..15: the values of IQ4_NL + 128. */
INLINE vi vi_iq4(vi nibbles)
{
    static const uint8_t table[16] = MM_IQ4_BIASED;
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)table)), nibbles);
}
/* acc + the products of both 16-bit halves. */
INLINE vi vi_dot2v(vi acc, vi a, vi b)
{
    return vi_in_order(vi_add(acc, _mm256_madd_epi16(a, b)));
}
INLINE vi vi_from_s8_pairs(const uint8_t *p)
{
    return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p));
}
struct isum {
    vi low, high; /* of each four lanes: the first two rows' even and odd sub-blocks; the others' */
};
INLINE struct isum isum_zero(void)
{
    return (struct isum){vi_zero(), vi_zero()};
}
INLINE vi isum_total(struct isum s)
{
    return _mm256_hadd_epi32(s.low, s.high);
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

#include "mm_table.inc.h"
