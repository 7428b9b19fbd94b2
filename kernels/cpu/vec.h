/* vec.h - the virtual vector: 16 float lanes, the same bits from every instruction set.
 *
 * struct vec is one AVX-512 register, two AVX2 registers or an array of 16 floats; struct ivec the same of
 * int32. A file that holds kernels defines VEC_ISA (0 scalar, 1 AVX2, 2 AVX-512) before it includes this
 * header; the functions are static inline, so each of the three compilations has its own. Every function here
 * is exact or correctly rounded in each lane (IEEE 754, round to nearest even, subnormals kept), and every
 * reduction is one fixed tree: lanes i and i+8, then i and i+4, then i and i+2, then i and i+1. So code
 * written over these vectors gives the same bits on all machines. (One exception: which NaN comes out of
 * two.) Multiply-adds are fused where v_fma is written and nowhere else; the build says -ffp-contract=off. */
#ifndef DFLASH_CPU_VEC_H
#define DFLASH_CPU_VEC_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#ifndef VEC_ISA
#define VEC_ISA 0
#endif
#if VEC_ISA > 0
#include <immintrin.h>
#endif

#define VEC_LANES 16

/* ---- one float, any instruction set ---- */

static inline uint32_t vec_bits1(float f)
{
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}
static inline float vec_float1(uint32_t u)
{
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static inline float vec_bf16_1(uint16_t h)
{
    return vec_float1((uint32_t)h << 16);
}
static inline uint16_t vec_to_bf16_1(float f)
{
    uint32_t u = vec_bits1(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}
/* As the F16C instructions do it: NaNs become quiet and keep the upper bits of their payload. */
static inline float vec_f16_1(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, e = h >> 10 & 31, m = h & 0x3ffu;
    if (e == 31) return vec_float1(sign | 0x7f800000u | m << 13 | (m ? 0x400000u : 0));
    if (e) return vec_float1(sign | (e + 112) << 23 | m << 13);
    float v = (float)m * 0x1p-24f; /* exact */
    return sign ? -v : v;
}
static inline uint16_t vec_to_f16_1(float f)
{
    uint32_t u = vec_bits1(f), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (a >> 13 & 0x3ffu));
    if (a >= 0x477ff000u) /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (a < 0x38800000u) { /* below 2^-14: the float sum puts the last place of f16 at that of 0.5 */
        float r = vec_float1(a) + 0.5f;
        return (uint16_t)(sign | (vec_bits1(r) - 0x3f000000u));
    }
    a += 0xfffu + (a >> 13 & 1);
    return (uint16_t)(sign | ((a >> 13) - (112u << 10)));
}

#if VEC_ISA == 2
/* ---- AVX-512 ---- */

struct vec {
    __m512 v;
};
struct ivec {
    __m512i v;
};
#define VEC_1(e) ((struct vec){e})
#define IVEC_1(e) ((struct ivec){e})

static inline struct vec v_set1(float f)
{
    return VEC_1(_mm512_set1_ps(f));
}
static inline struct vec v_load(const float *p)
{
    return VEC_1(_mm512_loadu_ps(p));
}
static inline void v_store(float *p, struct vec a)
{
    _mm512_storeu_ps(p, a.v);
}
static inline __mmask16 vec_mask(int n)
{
    return (__mmask16)((1u << n) - 1);
}
static inline struct vec v_load_n(const float *p, int n)
{
    return VEC_1(_mm512_maskz_loadu_ps(vec_mask(n), p));
}
static inline void v_store_n(float *p, struct vec a, int n)
{
    _mm512_mask_storeu_ps(p, vec_mask(n), a.v);
}
static inline struct vec v_add(struct vec a, struct vec b)
{
    return VEC_1(_mm512_add_ps(a.v, b.v));
}
static inline struct vec v_sub(struct vec a, struct vec b)
{
    return VEC_1(_mm512_sub_ps(a.v, b.v));
}
static inline struct vec v_mul(struct vec a, struct vec b)
{
    return VEC_1(_mm512_mul_ps(a.v, b.v));
}
static inline struct vec v_div(struct vec a, struct vec b)
{
    return VEC_1(_mm512_div_ps(a.v, b.v));
}
static inline struct vec v_fma(struct vec a, struct vec b, struct vec c)
{
    return VEC_1(_mm512_fmadd_ps(a.v, b.v, c.v));
}
static inline struct vec v_max(struct vec a, struct vec b)
{
    return VEC_1(_mm512_max_ps(a.v, b.v));
}
static inline struct vec v_min(struct vec a, struct vec b)
{
    return VEC_1(_mm512_min_ps(a.v, b.v));
}
static inline struct vec v_rint(struct vec a)
{
    return VEC_1(_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
static inline struct vec v_abs(struct vec a)
{
    return VEC_1(_mm512_abs_ps(a.v));
}
static inline struct vec v_sqrt(struct vec a)
{
    return VEC_1(_mm512_sqrt_ps(a.v));
}
static inline struct vec v_if_lt(struct vec a, struct vec b, struct vec x, struct vec y)
{
    return VEC_1(_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), y.v, x.v));
}
static inline uint32_t v_mask_ge(struct vec a, struct vec b)
{
    return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ);
}
static inline uint32_t v_mask_nan(struct vec a)
{
    return _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
}
static inline struct vec v_load_f16(const uint16_t *p)
{
    return VEC_1(_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)));
}
static inline void v_store_f16(uint16_t *p, struct vec a)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
static inline struct vec v_load_bf16(const uint16_t *p)
{
    __m512i u = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return VEC_1(_mm512_castsi512_ps(_mm512_slli_epi32(u, 16)));
}
static inline void v_store_bf16(uint16_t *p, struct vec a)
{
    __m512i u = _mm512_castps_si512(a.v);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i r = _mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd);
    r = _mm512_mask_or_epi32(r, _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q), u, _mm512_set1_epi32(0x400000));
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(r, 16)));
}
static inline struct ivec v_bits(struct vec a)
{
    return IVEC_1(_mm512_castps_si512(a.v));
}
static inline struct vec v_float(struct ivec a)
{
    return VEC_1(_mm512_castsi512_ps(a.v));
}
static inline struct ivec v_to_int(struct vec a)
{
    return IVEC_1(_mm512_cvtps_epi32(a.v));
}
static inline struct vec v_from_int(struct ivec a)
{
    return VEC_1(_mm512_cvtepi32_ps(a.v));
}
static inline struct ivec iv_set1(int32_t i)
{
    return IVEC_1(_mm512_set1_epi32(i));
}
static inline struct ivec iv_load(const int32_t *p)
{
    return IVEC_1(_mm512_loadu_si512(p));
}
static inline void iv_store(int32_t *p, struct ivec a)
{
    _mm512_storeu_si512(p, a.v);
}
static inline struct ivec iv_add(struct ivec a, struct ivec b)
{
    return IVEC_1(_mm512_add_epi32(a.v, b.v));
}
static inline struct ivec iv_sub(struct ivec a, struct ivec b)
{
    return IVEC_1(_mm512_sub_epi32(a.v, b.v));
}
static inline struct ivec iv_and(struct ivec a, struct ivec b)
{
    return IVEC_1(_mm512_and_si512(a.v, b.v));
}
static inline struct ivec iv_or(struct ivec a, struct ivec b)
{
    return IVEC_1(_mm512_or_si512(a.v, b.v));
}
static inline struct ivec iv_xor(struct ivec a, struct ivec b)
{
    return IVEC_1(_mm512_xor_si512(a.v, b.v));
}
#define iv_shl(a, n) IVEC_1(_mm512_slli_epi32((a).v, n))
#define iv_sar(a, n) IVEC_1(_mm512_srai_epi32((a).v, n))
#define iv_shr(a, n) IVEC_1(_mm512_srli_epi32((a).v, n))
static inline void iv_mul_wide(struct ivec a, uint32_t m, struct ivec *hi, struct ivec *lo)
{
    const __m512i mm = _mm512_set1_epi32((int32_t)m);
    __m512i even = _mm512_mul_epu32(a.v, mm), odd = _mm512_mul_epu32(_mm512_srli_epi64(a.v, 32), mm);
    hi->v = _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
    lo->v = _mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
}
static inline void iv_turn4(struct ivec *a)
{
    __m512i t0 = _mm512_unpacklo_epi32(a[0].v, a[1].v), t1 = _mm512_unpackhi_epi32(a[0].v, a[1].v);
    __m512i t2 = _mm512_unpacklo_epi32(a[2].v, a[3].v), t3 = _mm512_unpackhi_epi32(a[2].v, a[3].v);
    a[0].v = _mm512_unpacklo_epi64(t0, t2);
    a[1].v = _mm512_unpackhi_epi64(t0, t2);
    a[2].v = _mm512_unpacklo_epi64(t1, t3);
    a[3].v = _mm512_unpackhi_epi64(t1, t3);
}

static inline __m256 vec_lo(__m512 a)
{
    return _mm512_castps512_ps256(a);
}
static inline __m256 vec_hi(__m512 a)
{
    return _mm512_extractf32x8_ps(a, 1);
}
static inline float v_sum(struct vec a)
{
    __m256 s = _mm256_add_ps(vec_lo(a.v), vec_hi(a.v));
    __m128 t = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    t = _mm_add_ps(t, _mm_movehl_ps(t, t));
    return _mm_cvtss_f32(_mm_add_ss(t, _mm_movehdup_ps(t)));
}
static inline float v_hmax(struct vec a)
{
    __m256 s = _mm256_max_ps(vec_lo(a.v), vec_hi(a.v));
    __m128 t = _mm_max_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    t = _mm_max_ps(t, _mm_movehl_ps(t, t));
    return _mm_cvtss_f32(_mm_max_ss(t, _mm_movehdup_ps(t)));
}
/* Lane k = v_sum(a[k]), for 16 vectors at once. */
static inline struct vec v_sum16(const struct vec *a)
{
    __m512 t[8], u[4], w[2];
#pragma GCC unroll 8
    for (int k = 0; k < 8; k++)
        t[k] = _mm512_add_ps(_mm512_shuffle_f32x4(a[k].v, a[k + 8].v, 0x44),
                             _mm512_shuffle_f32x4(a[k].v, a[k + 8].v, 0xee));
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++)
        u[k] = _mm512_add_ps(_mm512_shuffle_f32x4(t[k], t[k + 4], 0x88),
                             _mm512_shuffle_f32x4(t[k], t[k + 4], 0xdd));
#pragma GCC unroll 2
    for (int k = 0; k < 2; k++)
        w[k] =
            _mm512_add_ps(_mm512_shuffle_ps(u[k], u[k + 2], 0x44), _mm512_shuffle_ps(u[k], u[k + 2], 0xee));
    __m512 s = _mm512_add_ps(_mm512_shuffle_ps(w[0], w[1], 0x88), _mm512_shuffle_ps(w[0], w[1], 0xdd));
    /* s holds the sums of a[0 2 1 3 | 8 10 9 11 | 4 6 5 7 | 12 14 13 15] */
    const __m512i order = _mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15);
    return VEC_1(_mm512_permutexvar_ps(order, s));
}

#elif VEC_ISA == 1
/* ---- AVX2: lanes 0..7 in lo, 8..15 in hi ---- */

struct vec {
    __m256 lo, hi;
};
struct ivec {
    __m256i lo, hi;
};

static inline struct vec v_set1(float f)
{
    return (struct vec){_mm256_set1_ps(f), _mm256_set1_ps(f)};
}
static inline struct vec v_load(const float *p)
{
    return (struct vec){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
static inline void v_store(float *p, struct vec a)
{
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}
static inline __m256i vec_mask(int n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
static inline struct vec v_load_n(const float *p, int n)
{
    return (struct vec){_mm256_maskload_ps(p, vec_mask(n)), _mm256_maskload_ps(p + 8, vec_mask(n - 8))};
}
static inline void v_store_n(float *p, struct vec a, int n)
{
    _mm256_maskstore_ps(p, vec_mask(n), a.lo);
    _mm256_maskstore_ps(p + 8, vec_mask(n - 8), a.hi);
}
#define VEC_OP2(name, f)                                                                                     \
    static inline struct vec name(struct vec a, struct vec b)                                                \
    {                                                                                                        \
        return (struct vec){f(a.lo, b.lo), f(a.hi, b.hi)};                                                   \
    }
VEC_OP2(v_add, _mm256_add_ps)
VEC_OP2(v_sub, _mm256_sub_ps)
VEC_OP2(v_mul, _mm256_mul_ps)
VEC_OP2(v_div, _mm256_div_ps)
VEC_OP2(v_max, _mm256_max_ps)
VEC_OP2(v_min, _mm256_min_ps)
#undef VEC_OP2
static inline struct vec v_fma(struct vec a, struct vec b, struct vec c)
{
    return (struct vec){_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
static inline struct vec v_rint(struct vec a)
{
    return (struct vec){_mm256_round_ps(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
                        _mm256_round_ps(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
static inline struct vec v_abs(struct vec a)
{
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return (struct vec){_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
static inline struct vec v_sqrt(struct vec a)
{
    return (struct vec){_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)};
}
static inline struct vec v_if_lt(struct vec a, struct vec b, struct vec x, struct vec y)
{
    return (struct vec){_mm256_blendv_ps(y.lo, x.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
                        _mm256_blendv_ps(y.hi, x.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}
static inline uint32_t vec_bits8(__m256 lo, __m256 hi)
{
    return (uint32_t)_mm256_movemask_ps(lo) | (uint32_t)_mm256_movemask_ps(hi) << 8;
}
static inline uint32_t v_mask_ge(struct vec a, struct vec b)
{
    return vec_bits8(_mm256_cmp_ps(a.lo, b.lo, _CMP_GE_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_GE_OQ));
}
static inline uint32_t v_mask_nan(struct vec a)
{
    return vec_bits8(_mm256_cmp_ps(a.lo, a.lo, _CMP_UNORD_Q), _mm256_cmp_ps(a.hi, a.hi, _CMP_UNORD_Q));
}
static inline struct vec v_load_f16(const uint16_t *p)
{
    return (struct vec){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
                        _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8)))};
}
static inline void v_store_f16(uint16_t *p, struct vec a)
{
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    _mm_storeu_si128((__m128i *)(p + 8),
                     _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
static inline __m256 vec_bf16_8(const uint16_t *p)
{
    __m256i u = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(u, 16));
}
static inline struct vec v_load_bf16(const uint16_t *p)
{
    return (struct vec){vec_bf16_8(p), vec_bf16_8(p + 8)};
}
static inline void vec_to_bf16_8(uint16_t *p, __m256 a)
{
    __m256i u = _mm256_castps_si256(a);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i r = _mm256_add_epi32(_mm256_add_epi32(u, _mm256_set1_epi32(0x7fff)), odd);
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q));
    r = _mm256_blendv_epi8(r, _mm256_or_si256(u, _mm256_set1_epi32(0x400000)), nan);
    r = _mm256_srli_epi32(r, 16);
    __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(r, r), 0xd8);
    _mm_storeu_si128((__m128i *)p, _mm256_castsi256_si128(packed));
}
static inline void v_store_bf16(uint16_t *p, struct vec a)
{
    vec_to_bf16_8(p, a.lo);
    vec_to_bf16_8(p + 8, a.hi);
}
static inline struct ivec v_bits(struct vec a)
{
    return (struct ivec){_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)};
}
static inline struct vec v_float(struct ivec a)
{
    return (struct vec){_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)};
}
static inline struct ivec v_to_int(struct vec a)
{
    return (struct ivec){_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)};
}
static inline struct vec v_from_int(struct ivec a)
{
    return (struct vec){_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)};
}
static inline struct ivec iv_set1(int32_t i)
{
    return (struct ivec){_mm256_set1_epi32(i), _mm256_set1_epi32(i)};
}
static inline struct ivec iv_load(const int32_t *p)
{
    return (struct ivec){_mm256_loadu_si256((const __m256i *)p),
                         _mm256_loadu_si256((const __m256i *)(p + 8))};
}
static inline void iv_store(int32_t *p, struct ivec a)
{
    _mm256_storeu_si256((__m256i *)p, a.lo);
    _mm256_storeu_si256((__m256i *)(p + 8), a.hi);
}
#define VEC_IOP2(name, f)                                                                                    \
    static inline struct ivec name(struct ivec a, struct ivec b)                                             \
    {                                                                                                        \
        return (struct ivec){f(a.lo, b.lo), f(a.hi, b.hi)};                                                  \
    }
VEC_IOP2(iv_add, _mm256_add_epi32)
VEC_IOP2(iv_sub, _mm256_sub_epi32)
VEC_IOP2(iv_and, _mm256_and_si256)
VEC_IOP2(iv_or, _mm256_or_si256)
VEC_IOP2(iv_xor, _mm256_xor_si256)
#undef VEC_IOP2
#define iv_shl(a, n) ((struct ivec){_mm256_slli_epi32((a).lo, n), _mm256_slli_epi32((a).hi, n)})
#define iv_sar(a, n) ((struct ivec){_mm256_srai_epi32((a).lo, n), _mm256_srai_epi32((a).hi, n)})
#define iv_shr(a, n) ((struct ivec){_mm256_srli_epi32((a).lo, n), _mm256_srli_epi32((a).hi, n)})
static inline void vec_mul_wide8(__m256i a, __m256i m, __m256i *hi, __m256i *lo)
{
    __m256i even = _mm256_mul_epu32(a, m), odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), m);
    *hi = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
    *lo = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
}
static inline void iv_mul_wide(struct ivec a, uint32_t m, struct ivec *hi, struct ivec *lo)
{
    const __m256i mm = _mm256_set1_epi32((int32_t)m);
    vec_mul_wide8(a.lo, mm, &hi->lo, &lo->lo);
    vec_mul_wide8(a.hi, mm, &hi->hi, &lo->hi);
}
static inline void vec_turn4_8(__m256i *a, __m256i *b, __m256i *c, __m256i *d)
{
    __m256i t0 = _mm256_unpacklo_epi32(*a, *b), t1 = _mm256_unpackhi_epi32(*a, *b);
    __m256i t2 = _mm256_unpacklo_epi32(*c, *d), t3 = _mm256_unpackhi_epi32(*c, *d);
    *a = _mm256_unpacklo_epi64(t0, t2);
    *b = _mm256_unpackhi_epi64(t0, t2);
    *c = _mm256_unpacklo_epi64(t1, t3);
    *d = _mm256_unpackhi_epi64(t1, t3);
}
static inline void iv_turn4(struct ivec *a)
{
    vec_turn4_8(&a[0].lo, &a[1].lo, &a[2].lo, &a[3].lo);
    vec_turn4_8(&a[0].hi, &a[1].hi, &a[2].hi, &a[3].hi);
}

static inline float v_sum(struct vec a)
{
    __m256 s = _mm256_add_ps(a.lo, a.hi);
    __m128 t = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    t = _mm_add_ps(t, _mm_movehl_ps(t, t));
    return _mm_cvtss_f32(_mm_add_ss(t, _mm_movehdup_ps(t)));
}
static inline float v_hmax(struct vec a)
{
    __m256 s = _mm256_max_ps(a.lo, a.hi);
    __m128 t = _mm_max_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    t = _mm_max_ps(t, _mm_movehl_ps(t, t));
    return _mm_cvtss_f32(_mm_max_ss(t, _mm_movehdup_ps(t)));
}
static inline __m256 vec_sum8(const struct vec *a)
{
    __m256 t[8], u[4], w[2];
#pragma GCC unroll 8
    for (int k = 0; k < 8; k++) t[k] = _mm256_add_ps(a[k].lo, a[k].hi);
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++)
        u[k] = _mm256_add_ps(_mm256_permute2f128_ps(t[k], t[k + 4], 0x20),
                             _mm256_permute2f128_ps(t[k], t[k + 4], 0x31));
#pragma GCC unroll 2
    for (int k = 0; k < 2; k++)
        w[k] =
            _mm256_add_ps(_mm256_shuffle_ps(u[k], u[k + 2], 0x44), _mm256_shuffle_ps(u[k], u[k + 2], 0xee));
    __m256 s = _mm256_add_ps(_mm256_shuffle_ps(w[0], w[1], 0x88), _mm256_shuffle_ps(w[0], w[1], 0xdd));
    return _mm256_permute_ps(s, 0xd8); /* s: a[0 2 1 3 | 4 6 5 7] */
}
static inline struct vec v_sum16(const struct vec *a)
{
    return (struct vec){vec_sum8(a), vec_sum8(a + 8)};
}

#else
/* ---- scalar: fmaf is exact, in hardware or in libm ---- */

struct vec {
    float f[VEC_LANES];
};
struct ivec {
    int32_t i[VEC_LANES];
};
#define VEC_EACH(expr)                                                                                       \
    struct vec r;                                                                                            \
    for (int l = 0; l < VEC_LANES; l++) r.f[l] = (expr);                                                     \
    return r
#define IVEC_EACH(expr)                                                                                      \
    struct ivec r;                                                                                           \
    for (int l = 0; l < VEC_LANES; l++) r.i[l] = (int32_t)(expr);                                            \
    return r

static inline struct vec v_set1(float f)
{
    VEC_EACH(f);
}
static inline struct vec v_load(const float *p)
{
    VEC_EACH(p[l]);
}
static inline void v_store(float *p, struct vec a)
{
    memcpy(p, a.f, sizeof a.f);
}
static inline struct vec v_load_n(const float *p, int n)
{
    VEC_EACH(l < n ? p[l] : 0.0f);
}
static inline void v_store_n(float *p, struct vec a, int n)
{
    for (int l = 0; l < n && l < VEC_LANES; l++) p[l] = a.f[l];
}
static inline struct vec v_add(struct vec a, struct vec b)
{
    VEC_EACH(a.f[l] + b.f[l]);
}
static inline struct vec v_sub(struct vec a, struct vec b)
{
    VEC_EACH(a.f[l] - b.f[l]);
}
static inline struct vec v_mul(struct vec a, struct vec b)
{
    VEC_EACH(a.f[l] * b.f[l]);
}
static inline struct vec v_div(struct vec a, struct vec b)
{
    VEC_EACH(a.f[l] / b.f[l]);
}
static inline struct vec v_fma(struct vec a, struct vec b, struct vec c)
{
    VEC_EACH(fmaf(a.f[l], b.f[l], c.f[l]));
}
static inline struct vec v_max(struct vec a, struct vec b)
{
    VEC_EACH(a.f[l] > b.f[l] ? a.f[l] : b.f[l]);
}
static inline struct vec v_min(struct vec a, struct vec b)
{
    VEC_EACH(a.f[l] < b.f[l] ? a.f[l] : b.f[l]);
}
static inline struct vec v_rint(struct vec a)
{
    VEC_EACH(rintf(a.f[l]));
}
static inline struct vec v_abs(struct vec a)
{
    VEC_EACH(vec_float1(vec_bits1(a.f[l]) & 0x7fffffffu));
}
static inline struct vec v_sqrt(struct vec a)
{
    VEC_EACH(sqrtf(a.f[l]));
}
static inline struct vec v_if_lt(struct vec a, struct vec b, struct vec x, struct vec y)
{
    VEC_EACH(a.f[l] < b.f[l] ? x.f[l] : y.f[l]);
}
static inline uint32_t v_mask_ge(struct vec a, struct vec b)
{
    uint32_t m = 0;
    for (int l = 0; l < VEC_LANES; l++) m |= (uint32_t)(a.f[l] >= b.f[l]) << l;
    return m;
}
static inline uint32_t v_mask_nan(struct vec a)
{
    uint32_t m = 0;
    for (int l = 0; l < VEC_LANES; l++) m |= (uint32_t)(a.f[l] != a.f[l]) << l;
    return m;
}
static inline struct vec v_load_f16(const uint16_t *p)
{
    VEC_EACH(vec_f16_1(p[l]));
}
static inline struct vec v_load_bf16(const uint16_t *p)
{
    VEC_EACH(vec_bf16_1(p[l]));
}
static inline void v_store_f16(uint16_t *p, struct vec a)
{
    for (int l = 0; l < VEC_LANES; l++) p[l] = vec_to_f16_1(a.f[l]);
}
static inline void v_store_bf16(uint16_t *p, struct vec a)
{
    for (int l = 0; l < VEC_LANES; l++) p[l] = vec_to_bf16_1(a.f[l]);
}
static inline struct ivec v_bits(struct vec a)
{
    IVEC_EACH(vec_bits1(a.f[l]));
}
static inline struct vec v_float(struct ivec a)
{
    VEC_EACH(vec_float1((uint32_t)a.i[l]));
}
/* What the instructions give: round to nearest even; NaN and anything out of range become INT32_MIN. */
static inline struct ivec v_to_int(struct vec a)
{
    IVEC_EACH(a.f[l] >= -0x1p31f && a.f[l] < 0x1p31f ? (int32_t)rintf(a.f[l]) : INT32_MIN);
}
static inline struct vec v_from_int(struct ivec a)
{
    VEC_EACH((float)a.i[l]);
}
static inline struct ivec iv_set1(int32_t i)
{
    IVEC_EACH(i);
}
static inline struct ivec iv_load(const int32_t *p)
{
    IVEC_EACH(p[l]);
}
static inline void iv_store(int32_t *p, struct ivec a)
{
    memcpy(p, a.i, sizeof a.i);
}
static inline struct ivec iv_add(struct ivec a, struct ivec b)
{
    IVEC_EACH((uint32_t)a.i[l] + (uint32_t)b.i[l]);
}
static inline struct ivec iv_sub(struct ivec a, struct ivec b)
{
    IVEC_EACH((uint32_t)a.i[l] - (uint32_t)b.i[l]);
}
static inline struct ivec iv_and(struct ivec a, struct ivec b)
{
    IVEC_EACH(a.i[l] & b.i[l]);
}
static inline struct ivec iv_or(struct ivec a, struct ivec b)
{
    IVEC_EACH(a.i[l] | b.i[l]);
}
static inline struct ivec iv_xor(struct ivec a, struct ivec b)
{
    IVEC_EACH(a.i[l] ^ b.i[l]);
}
static inline struct ivec iv_shr(struct ivec a, int n)
{
    IVEC_EACH((uint32_t)a.i[l] >> n);
}
static inline void iv_mul_wide(struct ivec a, uint32_t m, struct ivec *hi, struct ivec *lo)
{
    for (int l = 0; l < VEC_LANES; l++) {
        uint64_t p = (uint64_t)(uint32_t)a.i[l] * m;
        hi->i[l] = (int32_t)(p >> 32);
        lo->i[l] = (int32_t)p;
    }
}
static inline void iv_turn4(struct ivec *a)
{
    struct ivec t[4] = {a[0], a[1], a[2], a[3]};
    for (int j = 0; j < 4; j++)
        for (int l = 0; l < VEC_LANES; l++) a[j].i[l] = t[l % 4].i[l / 4 * 4 + j];
}
static inline struct ivec iv_shl(struct ivec a, int n)
{
    IVEC_EACH((uint32_t)a.i[l] << n);
}
static inline struct ivec iv_sar(struct ivec a, int n)
{
    IVEC_EACH(a.i[l] >> n);
}

static inline float v_sum(struct vec a)
{
    for (int w = VEC_LANES / 2; w; w /= 2)
        for (int l = 0; l < w; l++) a.f[l] += a.f[l + w];
    return a.f[0];
}
static inline float v_hmax(struct vec a)
{
    for (int w = VEC_LANES / 2; w; w /= 2)
        for (int l = 0; l < w; l++) a.f[l] = a.f[l] > a.f[l + w] ? a.f[l] : a.f[l + w];
    return a.f[0];
}
static inline struct vec v_sum16(const struct vec *a)
{
    VEC_EACH(v_sum(a[l]));
}
#endif

/* ---- made of the above ---- */
/* What each does, for all three: v_max(a, b) is a > b ? a : b in each lane and v_min a < b ? a : b, so a NaN
 * in b stays and a NaN in a is dropped. v_if_lt(a, b, x, y): a < b ? x : y. v_mask_*: bit l is lane l's
 * verdict. v_load_n and v_store_n touch the first n lanes (0..16) and no other memory; the rest load as zero.
 * v_sum, v_hmax: the fixed tree. iv_mul_wide: the unsigned 64-bit products with m, halves apart. iv_turn4: in
 * each group of four lanes, the four vectors' 4 x 4 numbers are transposed: a[j] lane 4 k + w becomes what
 * a[w] had in lane 4 k + j. */

static inline struct vec v_zero(void)
{
    return v_set1(0.0f);
}

/* 2^n in each lane, n integral in -126..127. */
static inline struct vec v_pow2(struct ivec n)
{
    return v_float(iv_shl(iv_add(n, iv_set1(127)), 23));
}

/* Dot product of two rows of n floats: four vectors in flight, then (0 + 1) + (2 + 3), then the tree. */
static inline float v_dot(const float *a, const float *b, int64_t n)
{
    struct vec s[4] = {v_zero(), v_zero(), v_zero(), v_zero()};
    int64_t i = 0;
    for (; i + 64 <= n; i += 64)
        for (int j = 0; j < 4; j++) s[j] = v_fma(v_load(a + i + 16 * j), v_load(b + i + 16 * j), s[j]);
    for (int j = 0; i < n; i += 16, j++) {
        int left = n - i < 16 ? (int)(n - i) : 16;
        s[j] = v_fma(v_load_n(a + i, left), v_load_n(b + i, left), s[j]);
    }
    return v_sum(v_add(v_add(s[0], s[1]), v_add(s[2], s[3])));
}

#endif
