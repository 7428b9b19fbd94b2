/* mm_tile512.inc.h - the activations of a whole tile of 8 tokens at once, over AVX-512: the bytes of act_q256.
 *
 * A token at a time every group of four codes is a write of its own, 32 bytes from the next. Here a block of 256
 * is rounded in registers, and the codes of 8 tokens are turned so that whole vectors are written, of which the
 * sums of 16 are then taken for all tokens side by side. */

/* 16 values at k of token t, normed where asked: the operations of rms_norm. */
INLINE __m512 tile_load(const struct mm_rows *r, int t, int64_t k)
{
    __m512 x = _mm512_loadu_ps(r->x[t] + k);
    if (!r->scaled) return x;
    x = _mm512_mul_ps(x, _mm512_set1_ps(r->scale[t]));
    return r->norm ? _mm512_mul_ps(x, _mm512_loadu_ps(r->norm + k)) : x;
}

/* Codes of 256 values at k of token t: dword 4 l + w of code[c] is group 16 c + 4 w + l. Returns d. */
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
        code[c][t] = _mm512_packs_epi16(_mm512_packs_epi32(q[0], q[1]), _mm512_packs_epi32(q[2], q[3]));
    }
    return amax / 127.0f;
}

/* out[w][2]: groups 4 w .. 4 w + 3 of 8 tokens, [group][token][4]. */
INLINE void tile_turn(__m512i out[4][2], const __m512i code[8])
{
    const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    const __m512i second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    __m512i v[4][2];
    UNROLL for (int h = 0; h < 2; h++)
    {
        const __m512i *q = code + 4 * h;
        const __m512i lo01 = _mm512_unpacklo_epi32(q[0], q[1]), lo23 = _mm512_unpacklo_epi32(q[2], q[3]);
        const __m512i hi01 = _mm512_unpackhi_epi32(q[0], q[1]), hi23 = _mm512_unpackhi_epi32(q[2], q[3]);
        v[0][h] = _mm512_unpacklo_epi64(lo01, lo23);
        v[1][h] = _mm512_unpackhi_epi64(lo01, lo23);
        v[2][h] = _mm512_unpacklo_epi64(hi01, hi23);
        v[3][h] = _mm512_unpackhi_epi64(hi01, hi23);
    }
    UNROLL for (int w = 0; w < 4; w++)
    {
        out[w][0] = _mm512_permutex2var_epi64(v[w][0], first, v[w][1]);
        out[w][1] = _mm512_permutex2var_epi64(v[w][0], second, v[w][1]);
    }
}

INLINE __m256i tile_halves(__m512i a)
{
    return _mm256_add_epi32(_mm512_castsi512_si256(a), _mm512_extracti64x4_epi64(a, 1));
}

/* 64 values of 8 tokens to q [512], n16 [4][8], s32 [8]; the largest sizes so far in most16 and most32 (act_wide). */
INLINE void tile_chunk(uint8_t *q, int32_t *n16, int32_t *s32, const __m512i code[8], __m256i *most16,
                       __m256i *most32)
{
    const __m512i ones = _mm512_set1_epi8(1), zero = _mm512_setzero_si512();
    __m512i o[4][2];
    __m256i sum[4], size[4];
    tile_turn(o, code);
    UNROLL for (int w = 0; w < 4; w++)
    {
        __m512i s = zero, a = zero;
        UNROLL for (int h = 0; h < 2; h++)
        {
            _mm512_storeu_si512(q + 128 * w + 64 * h, o[w][h]);
            s = _mm512_dpbusd_epi32(s, ones, o[w][h]);
            a = _mm512_dpbusd_epi32(a, _mm512_abs_epi8(o[w][h]), ones);
        }
        sum[w] = tile_halves(s);
        size[w] = tile_halves(a);
        *most16 = _mm256_max_epi32(*most16, size[w]);
        _mm256_storeu_si256((__m256i *)(n16 + 8 * w),
                            _mm256_sub_epi32(_mm256_set1_epi32(w % 2 ? 0 : 0x8000), _mm256_slli_epi32(sum[w], 5)));
    }
    const __m256i even = _mm256_add_epi32(sum[0], sum[1]), odd = _mm256_add_epi32(sum[2], sum[3]);
    _mm256_storeu_si256((__m256i *)s32, _mm256_or_si256(_mm256_and_si256(even, _mm256_set1_epi32(0xffff)),
                                                        _mm256_slli_epi32(odd, 16)));
    *most32 = _mm256_max_epi32(
        *most32, _mm256_add_epi32(_mm256_add_epi32(size[0], size[1]), _mm256_abs_epi32(even)));
    *most32 = _mm256_max_epi32(
        *most32, _mm256_add_epi32(_mm256_add_epi32(size[2], size[3]), _mm256_abs_epi32(odd)));
}

static void act_q256_tile(uint8_t *act, const struct mm_rows *r, int64_t n_in)
{
    int32_t *s32 = (int32_t *)(act + n_in * 8), *n16 = (int32_t *)(act + (n_in + n_in / 16) * 8);
    float *d = (float *)(act + (n_in + n_in / 16 + n_in / 4) * 8);
    int32_t *wide = (int32_t *)(d + n_in / 256 * 8);
    for (int64_t b = 0; b < n_in / 256; b++, n16 += 128, s32 += 32, d += 8, wide += 8) {
        __m512i code[4][8];
        __m256i most16 = _mm256_setzero_si256(), most32 = most16;
        for (int t = 0; t < 8; t++) {
            if (r->x[t]) {
                d[t] = tile_round(code, r, t, 256 * b);
                continue;
            }
            d[t] = 0.0f;
            for (int c = 0; c < 4; c++) code[c][t] = _mm512_setzero_si512();
        }
        for (int c = 0; c < 4; c++, act += 512)
            tile_chunk(act, n16 + 32 * c, s32 + 8 * c, code[c], &most16, &most32);
        most32 = _mm256_srli_epi32(most32, 1);
        const __mmask8 four = _mm256_cmpgt_epi32_mask(most32, _mm256_set1_epi32(32767 / 15));
        const __mmask8 five = _mm256_cmpgt_epi32_mask(most32, _mm256_set1_epi32(32767 / 31));
        const __mmask8 six = _mm256_cmpgt_epi32_mask(most16, _mm256_set1_epi32(32767 / 32));
        __m256i bits = _mm256_maskz_set1_epi32(four, MM_WIDE_4);
        bits = _mm256_or_si256(bits, _mm256_maskz_set1_epi32(five, MM_WIDE_5));
        bits = _mm256_or_si256(bits, _mm256_maskz_set1_epi32(six, MM_WIDE_6));
        _mm256_storeu_si256((__m256i *)wide, bits);
    }
}
