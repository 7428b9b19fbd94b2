/* mm_vnni_emulated.h - the kernels of mm_avxvnni.c with its two instructions written out as they are defined
 * (none saturates), for processors that have AVX2 and not AVX-VNNI. */
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#ifdef __SANITIZE_ADDRESS__
#pragma GCC optimize("O1") /* its checks in what -O2 unrolls take minutes to compile */
#endif
#include <immintrin.h>

/* acc + the sum of 4 products of unsigned and signed bytes, in each 32 bits. */
static inline __attribute__((always_inline)) __m256i emulated_dpbusd(__m256i acc, __m256i u, __m256i s)
{
    const __m256i even = _mm256_madd_epi16(_mm256_and_si256(u, _mm256_set1_epi16(255)),
                                           _mm256_srai_epi16(_mm256_slli_epi16(s, 8), 8));
    const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(u, 8), _mm256_srai_epi16(s, 8));
    return _mm256_add_epi32(acc, _mm256_add_epi32(even, odd));
}
/* acc + the sum of 2 products of signed 16 bits. */
static inline __attribute__((always_inline)) __m256i emulated_dpwssd(__m256i acc, __m256i a, __m256i b)
{
    return _mm256_add_epi32(acc, _mm256_madd_epi16(a, b));
}

extern const struct cpu_mm mm_vnni_emulated;
#define MM_NAME mm_vnni_emulated
#define DPBUSD emulated_dpbusd
#define DPWSSD emulated_dpwssd
#include "../../../kernels/cpu/mm_avxvnni.c"
#undef MM_NAME
#pragma GCC pop_options
