/* mm_tile512.inc.h - the activations of a whole tile of 8 tokens at once, over AVX-512: the bytes of
 * act_q256.
 *
 * A token at a time every group of four codes is a write of its own, 32 bytes from the next. Here a block of
 * 256 is rounded in registers, and the codes of 8 tokens are turned so that whole vectors are written, of
 * which the sums of 16 are then taken for all tokens side by side. */

/* 16 values at k of token t, normed where asked: the operations of rms_norm. */
INLINE __m512 tile_load(const struct mm_rows *r, int t, int64_t k)
{
    __m512 x = _mm512_loadu_ps(r->x[t] + k);
    if (!r->scaled) return x;
    x = _mm512_mul_ps(x, _mm512_set1_ps(r->scale[t]));
    return r->norm ? _mm512_mul_ps(x, _mm512_loadu_ps(r->norm + k)) : x;
}

/* Codes of 256 values at k of token t: quadword 2 l + h of code[c] is groups 16 c + 4 h + l and 8 later.
 * Returns d. */
INLINE float tile_round(__m512i code[4][8], const struct mm_rows *r, int t, int64_t k)
{
    const __m512i size = _mm512_set1_epi32(0x7fffffff);
    __m512 v[16];
    __m512i m = _mm512_setzero_si512();
    UNROLL for (int i = 0; i < 16; i++)
    {
        v[i] = tile_load(r, t, k + 16 * i);
        m = _mm512_max_epu32(m, _mm512_and_si512(_mm512_castps_si512(v[i]), size));
    }
    const uint32_t bits = _mm512_reduce_max_epu32(m);
    float amax;
    memcpy(&amax, &bits, 4);
    if (!(amax >= MM_ACT_TINY) || bits >= 0x7f800000u) {
        for (int c = 0; c < 4; c++) code[c][t] = _mm512_setzero_si512();
        return bits >= 0x7f800000u ? __builtin_nanf("") : 0.0f;
    }
    const __m512 inverse = _mm512_set1_ps(127.0f / amax);
    UNROLL for (int c = 0; c < 4; c++)
    {
        __m512i q[4];
        UNROLL for (int i = 0; i < 4; i++) q[i] = _mm512_cvtps_epi32(_mm512_mul_ps(v[4 * c + i], inverse));
        code[c][t] = _mm512_packs_epi16(_mm512_packs_epi32(q[0], q[2]), _mm512_packs_epi32(q[1], q[3]));
    }
    return amax / 127.0f;
}

/* out[4 h + l] = quadword 2 l + h of 8 tokens. */
INLINE void tile_turn(__m512i out[8], const __m512i code[8])
{
    UNROLL for (int h = 0; h < 2; h++)
    {
        __m512i two[4]; /* of lane l of each: tokens 2 i and 2 i + 1 */
        UNROLL for (int i = 0; i < 4; i++) two[i] = h ? _mm512_unpackhi_epi64(code[2 * i], code[2 * i + 1])
                                                      : _mm512_unpacklo_epi64(code[2 * i], code[2 * i + 1]);
        const __m512i a = _mm512_shuffle_i32x4(two[0], two[1], 0x44),
                      b = _mm512_shuffle_i32x4(two[2], two[3], 0x44);
        const __m512i c = _mm512_shuffle_i32x4(two[0], two[1], 0xee),
                      d = _mm512_shuffle_i32x4(two[2], two[3], 0xee);
        out[4 * h] = _mm512_shuffle_i32x4(a, b, 0x88);
        out[4 * h + 1] = _mm512_shuffle_i32x4(a, b, 0xdd);
        out[4 * h + 2] = _mm512_shuffle_i32x4(c, d, 0x88);
        out[4 * h + 3] = _mm512_shuffle_i32x4(c, d, 0xdd);
    }
}

/* 64 codes of 8 tokens and what goes with them: of each token's two words, the even and the odd sub-block's.
 * most16 and most32: the largest sums of |q| of 16, and |q| and |sum q| of 32. */
INLINE void tile_chunk(uint8_t *q, int32_t *n16, int32_t *s32, const __m512i code[8], __m512i *most16,
                       __m512i *most32)
{
    const __m512i ones = _mm512_set1_epi8(1), zero = _mm512_setzero_si512();
    __m512i o[8], sum[2], size[2];
    tile_turn(o, code);
    UNROLL for (int h = 0; h < 2; h++)
    {
        sum[h] = size[h] = zero;
        UNROLL for (int l = 0; l < 4; l++)
        {
            _mm512_storeu_si512(q + 64 * (4 * h + l), o[4 * h + l]);
            sum[h] = _mm512_dpbusd_epi32(sum[h], ones, o[4 * h + l]);
            size[h] = _mm512_dpbusd_epi32(size[h], _mm512_abs_epi8(o[4 * h + l]), ones);
        }
        *most16 = _mm512_max_epi32(*most16, size[h]);
        _mm512_storeu_si512(n16 + 16 * h, _mm512_sub_epi32(zero, _mm512_slli_epi32(sum[h], 5)));
    }
    const __m512i all = _mm512_add_epi32(sum[0], sum[1]);
    _mm256_storeu_si256((__m256i *)s32, _mm512_cvtepi32_epi16(all));
    *most32 = _mm512_max_epi32(*most32,
                               _mm512_add_epi32(_mm512_add_epi32(size[0], size[1]), _mm512_abs_epi32(all)));
}

/* The larger of each token's two words. */
INLINE __m256i tile_larger(__m512i m)
{
    return _mm512_cvtepi64_epi32(_mm512_max_epi32(m, _mm512_srli_epi64(m, 32)));
}

static void act_q256_tile(uint8_t *act, const struct mm_rows *r, int64_t n_in)
{
    int32_t *s32 = (int32_t *)(act + n_in * 8), *n16 = (int32_t *)(act + (n_in + n_in / 16) * 8);
    float *d = (float *)(act + (n_in + n_in / 16 + n_in / 4) * 8);
    int32_t *wide = (int32_t *)(d + n_in / 256 * 8);
    act += 2048 * r->first, n16 += 128 * r->first, s32 += 32 * r->first, d += 8 * r->first,
        wide += 8 * r->first;
    for (int64_t b = r->first; b < r->end; b++, n16 += 128, s32 += 32, d += 8, wide += 8) {
        __m512i code[4][8];
        __m512i m16 = _mm512_setzero_si512(), m32 = m16;
        for (int t = 0; t < 8; t++) {
            if (r->x[t]) {
                d[t] = tile_round(code, r, t, 256 * b);
                continue;
            }
            d[t] = 0.0f;
            for (int c = 0; c < 4; c++) code[c][t] = _mm512_setzero_si512();
        }
        for (int c = 0; c < 4; c++, act += 512)
            tile_chunk(act, n16 + 32 * c, s32 + 8 * c, code[c], &m16, &m32);
        const __m256i most16 = tile_larger(m16), most32 = _mm256_srli_epi32(tile_larger(m32), 1);
        const __mmask8 four = _mm256_cmpgt_epi32_mask(most32, _mm256_set1_epi32(32767 / 15));
        const __mmask8 five = _mm256_cmpgt_epi32_mask(most32, _mm256_set1_epi32(32767 / 31));
        const __mmask8 six = _mm256_cmpgt_epi32_mask(most16, _mm256_set1_epi32(32767 / 32));
        __m256i bits = _mm256_maskz_set1_epi32(four, MM_WIDE_4);
        bits = _mm256_or_si256(bits, _mm256_maskz_set1_epi32(five, MM_WIDE_5));
        bits = _mm256_or_si256(bits, _mm256_maskz_set1_epi32(six, MM_WIDE_6));
        _mm256_storeu_si256((__m256i *)wide, bits);
    }
}
