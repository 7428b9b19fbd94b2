/* mm_avxvnni.c - the matrix kernels over AVX2 with AVX-VNNI: vpdpbusd and vpdpwssd of AVX-512's kernels, at 8
 * lanes. For processors that have these and not AVX-512. */
#include "mm.h"
#include "mm_256.inc.h"

#define TILE 4
#define TILE_BESIDE TILE
#define SHORT_SUMS 0
#ifndef MM_NAME /* a test compiles this file with the two instructions written out */
#define MM_NAME cpu_mm_avxvnni
#define DPBUSD _mm256_dpbusd_avx_epi32
#define DPWSSD _mm256_dpwssd_avx_epi32
#endif

INLINE vi vi_dot4(vi acc, vi codes, const uint8_t *a)
{
    return DPBUSD(acc, codes, vi_bcast(a));
}
INLINE vi vi_dot4v(vi acc, vi codes, vi a)
{
    return DPBUSD(acc, codes, a);
}
/* Of each four lanes: (low 0, low 1), (low 2, low 3), (high 0, high 1), (high 2, high 3) as halves of words;
 * the numbers fit them. */
INLINE vi vi_join(vi low, vi high)
{
    return _mm256_packs_epi32(low, high);
}
/* Of each four lanes: low 0, low 2, high 0, high 2, and the others. */
INLINE vi vi_evens(vi low, vi high)
{
    return _mm256_castps_si256(_mm256_shuffle_ps(_mm256_castsi256_ps(low), _mm256_castsi256_ps(high), 0x88));
}
INLINE vi vi_odds(vi low, vi high)
{
    return _mm256_castps_si256(_mm256_shuffle_ps(_mm256_castsi256_ps(low), _mm256_castsi256_ps(high), 0xdd));
}
#include "mm_unsigned.inc.h"
INLINE vi vi_dot2(vi acc, vi pairs, const uint8_t *a)
{
    return DPWSSD(acc, pairs, vi_bcast(a));
}
/* acc + the products of both 16-bit halves. */
INLINE vi vi_dot2v(vi acc, vi a, vi b)
{
    return DPWSSD(acc, a, b);
}

#include "mm_table.inc.h"
