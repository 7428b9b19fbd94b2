/* mm_avx2.c - the matrix kernels over AVX2 and FMA: 8 rows a panel, tiles of up to 8 tokens.
 *
 * A pair of products of vpmaddubsw must fit 16 bits: codes are at most 63 and activations within -127..127,
 * so a pair is at most 16002. Q8_0's signed codes go in as |code| with the sign moved to the activation: at
 * most 128 * 127 * 2 = 32512. */
#include "mm.h"
#include "mm_256.inc.h"

#define TILE 8
#define TILE_BESIDE 4
#define SHORT_SUMS 1
#define MM_NAME cpu_mm_avx2

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
/* Codes have 64 added: take 64 * sum of 16 q off at the start, of -32 times it, in two halves. */
INLINE vi vi_grid_start(const int32_t *n16)
{
    return _mm256_madd_epi16(vi_bcast(n16), _mm256_set1_epi16(2));
}
INLINE vi vi_dot2(vi acc, vi pairs, const uint8_t *a)
{
    return vi_in_order(vi_add(acc, _mm256_madd_epi16(pairs, vi_bcast(a))));
}
/* acc + the products of both 16-bit halves. */
INLINE vi vi_dot2v(vi acc, vi a, vi b)
{
    return vi_in_order(vi_add(acc, _mm256_madd_epi16(a, b)));
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

#include "mm_table.inc.h"
