/* mm_low.inc.h - the quantised types that files of others hold and that dflash.c reads: IQ4_NL, MXFP4,
 * IQ4_XS, Q2_K, Q3_K. Sums as in mm_quant.inc.h: exact integers inside a block, one or two fused
 * multiply-adds a block. */

/* ---- IQ4_NL and MXFP4 ----
 * Block: d [LANES] f16 (MXFP4: [LANES] bytes, an exponent), 4 vectors of nibbles, as Q4_0. A nibble becomes
 * its value + 128 by a table, and what remains is Q8_0. unit: bytes from a token to the next. */
static const uint8_t iq4_table[16] = MM_IQ4_BIASED, mxfp4_table[16] = MM_MXFP4_BIASED;

static ALWAYS_INLINE void dots_table(vi *dot, const uint8_t *table, const uint8_t *p, const uint8_t *a,
                                     const int T, const int unit)
{
    UNROLL for (int g = 0; g < 4; g++)
    {
        const vi w = vi_load(p + g * V);
        const vi low = vi_table(table, vi_and(w, vi_set(0x0f0f0f0f))),
                 high = vi_table(table, vi_and(vi_shr(w, 4), vi_set(0x0f0f0f0f)));
        UNROLL for (int t = 0; t < T; t++) dot[t] = vi_dot_s8(dot[t], low, a + (g * T + t) * unit);
        UNROLL for (int t = 0; t < T; t++) dot[t] = vi_dot_s8(dot[t], high, a + ((g + 4) * T + t) * unit);
    }
}

/* 2^(e - 128) of the byte e of each lane: two factors, so that none leaves the range of normal numbers. */
static ALWAYS_INLINE vf vf_from_e8(const uint8_t *p)
{
    const vi e = vi_from_u8(p), half = vi_shr(e, 1), bias = vi_set(63);
    return vf_mul(vf_bits(vi_shl(vi_add(half, bias), 23)),
                  vf_bits(vi_shl(vi_add(vi_sub(e, half), bias), 23)));
}

static ALWAYS_INLINE void mul_table(const struct mm_call *c, const int T, const uint8_t *table,
                                    const int scale_bytes)
{
    const int64_t nb = c->n_in / 32;
    const uint8_t *p = c->panel, *a = c->act, *ahead = c->ahead;
    const float *da = (const float *)(a + c->n_in * T);
    const int32_t *nsum = (const int32_t *)(da + nb * T);
    vf acc[MM_TILE_MAX];
    UNROLL for (int t = 0; t < T; t++) acc[t] = vf_zero();
    for (int64_t b = 0; b < nb; b++) {
        ahead = prefetch_lines(ahead, c->ahead_step);
        const vf d = scale_bytes == 1 ? vf_from_e8(p) : vf_from_f16(p);
        vi dot[MM_TILE_MAX];
        UNROLL for (int t = 0; t < T; t++) dot[t] = vi_dot_s8_start(nsum + t);
        dots_table(dot, table, p + scale_bytes * LANES, a, T, 4);
        UNROLL for (int t = 0; t < T; t++) acc[t] =
            vf_fma(vf_cvt(dot[t]), vf_mul(d, vf_bcast(da + t)), acc[t]);
        p += (16 + scale_bytes) * LANES;
        a += 32 * T;
        da += T, nsum += T;
    }
    put_out(c, acc, T);
}

static ALWAYS_INLINE void mul_iq4_nl(const struct mm_call *c, const int T)
{
    mul_table(c, T, iq4_table, 2);
}
static ALWAYS_INLINE void mul_mxfp4(const struct mm_call *c, const int T)
{
    mul_table(c, T, mxfp4_table, 1);
}

/* ---- IQ4_XS ----
 * Block: d [LANES] f16, high bit pairs of the scales [LANES] u16, low nibbles of the scales [LANES] u32, then
 * 8 sub-blocks of 32: 4 vectors of nibbles. Scales are -32..31. A sub-block's sum needs 20 bits, so nothing
 * is paired. */
static ALWAYS_INLINE void mul_iq4_xs(const struct mm_call *c, const int T)
{
    const int64_t nb = c->n_in / 256;
    const uint8_t *p = c->panel, *a = c->act, *ahead = c->ahead;
    const int32_t *n16 = (const int32_t *)(a + c->n_in * T + c->n_in / 16 * T);
    const float *da = (const float *)(n16 + c->n_in / 16 * T);
    vf acc[MM_TILE_MAX];
    UNROLL for (int t = 0; t < T; t++) acc[t] = vf_zero();
    for (int64_t b = 0; b < nb; b++) {
        const vf d = vf_from_f16(p);
        const vi bytes = vi_from_s8_pairs(p + 2 * LANES);
        vi high = vi_or(vi_and(bytes, vi_set(0xff)), vi_and(vi_shr(bytes, 8), vi_set(0xff00)));
        vi low = vi_load(p + 4 * LANES);
        vi isum[MM_TILE_MAX];
        UNROLL for (int t = 0; t < T; t++) isum[t] = vi_zero();
        p += 2 * V;
        for (int i = 0; i < 8; i++, p += 4 * V) {
            if (i % 2 == 0) ahead = prefetch_lines(ahead, c->ahead_step);
            const vi scale =
                vi_sub(vi_or(vi_and(low, vi_set(15)), vi_and(vi_shl(high, 4), vi_set(0x30))), vi_set(32));
            vi dot[MM_TILE_MAX];
            low = vi_shr(low, 4);
            high = vi_shr(high, 2);
            UNROLL for (int t = 0; t < T; t++)
            {
                const int32_t nsum =
                    (n16[act_n16_at(2 * i, T) + 2 * t] + n16[act_n16_at(2 * i + 1, T) + 2 * t]) / 32;
                dot[t] = vi_dot_s8_start(&nsum);
            }
            dots_table(dot, iq4_table, p, a + act_at(32 * i, T), T, 8);
            UNROLL for (int t = 0; t < T; t++) isum[t] = vi_add(isum[t], vi_mul(dot[t], scale));
        }
        UNROLL for (int t = 0; t < T; t++) acc[t] =
            vf_fma(vf_cvt(isum[t]), vf_mul(d, vf_bcast(da + t)), acc[t]);
        a += 256 * T;
        n16 += 16 * T;
        da += T;
    }
    put_out(c, acc, T);
}

/* ---- Q2_K and Q3_K ----
 * Sub-blocks of 16 whose sums always fit 16 bits (3 * 127 * 16, and 4 * 127 * 16 with Q3_K's 4 taken off at
 * the start), so two meet their scales in one dot2. */

/* dot += a sub-block of 16: 2 bits a code at p; Q3_K's third bits are bits 4 * odd + g of each byte of h. */
static ALWAYS_INLINE void dots_23k(vi *dot, const uint8_t *p, const vi h, const int odd, const uint8_t *a,
                                   const int T, const int bits)
{
    const vi v = vi_load(p);
    UNROLL for (int g = 0; g < 4; g++)
    {
        vi code = vi_and(vi_shr(v, 2 * g), vi_set(0x03030303));
        if (bits == 3) code = vi_or(code, vi_shl(vi_and(vi_shr(h, 4 * odd + g), vi_set(0x01010101)), 2));
#if SHORT_SUMS
        dot_group(NULL, dot, code, a + g * T * 8, T, 8);
#else
        dot_group(dot, NULL, code, a + g * T * 8, T, 8);
#endif
    }
}

static ALWAYS_INLINE vi pair_join(const vi even, const vi odd)
{
    return vi_or(vi_and(even, vi_set(0xffff)), vi_shl(odd, 16));
}

/* The low half of a word in both, and the high half. */
static ALWAYS_INLINE vi both_low(const vi a)
{
    return pair_join(a, a);
}
static ALWAYS_INLINE vi both_high(const vi a)
{
    return pair_join(vi_shr(a, 16), vi_shr(a, 16));
}

/* Where sums of Q3_K start: -4 times the sum of q, of -32 times it. */
static ALWAYS_INLINE vi start_3k(const int32_t *n16)
{
#if SHORT_SUMS
    return vs_sar(vi_bcast(n16), 3);
#else
    return vi_sar(vi_bcast(n16), 3);
#endif
}

/* isum += the sums of pair i of a block's sub-blocks times their scales (low and high half of a lane's word).
 */
static ALWAYS_INLINE void pair_23k(vi *isum, const vi scales, const uint8_t *p, const uint8_t *a,
                                   const int32_t *n16, const int i, const int T, const int bits)
{
    const int32_t *start = n16 + act_n16_at(2 * i, T), *odd_start = n16 + act_n16_at(2 * i + 1, T);
    const vi h = bits == 3 ? vi_load(p + 2 * V) : vi_zero();
    vi dot[MM_TILE_MAX], odd[MM_TILE_MAX];
    UNROLL for (int t = 0; t < T; t++)
    {
        odd[t] = bits == 3 ? start_3k(odd_start + 2 * t) : vi_zero();
        dot[t] = bits == 3 ? start_3k(start + 2 * t) : vi_zero();
    }
    dots_23k(odd, p + V, h, 1, a + act_at(32 * i + 16, T), T, bits);
    dots_23k(dot, p, h, 0, a + act_at(32 * i, T), T, bits);
#if SHORT_SUMS
    const vi scale = both_low(scales), odd_scale = both_high(scales);
    UNROLL for (int t = 0; t < T; t++) isum[t] =
        vi_dot2v(vi_dot2v(isum[t], scale, dot[t]), odd_scale, odd[t]);
#else
    UNROLL for (int t = 0; t < T; t++) isum[t] = vi_dot2v(isum[t], scales, pair_join(dot[t], odd[t]));
#endif
}

/* msum += minus the minimums of pair i (low and high half of a word) times the sums of q; SHORT_SUMS: 32
 * times that, as n16 has it. */
static ALWAYS_INLINE void minimums_2k(vi *msum, const vi m, const int32_t *n16, const int i, const int T)
{
    const int32_t *even = n16 + act_n16_at(2 * i, T), *odd = n16 + act_n16_at(2 * i + 1, T);
#if SHORT_SUMS
    const vi low = both_low(m), high = both_high(m);
    UNROLL for (int t = 0; t < T; t++) msum[t] =
        vi_dot2(vi_dot2(msum[t], low, (const uint8_t *)(even + 2 * t)), high, (const uint8_t *)(odd + 2 * t));
#else
    UNROLL for (int t = 0; t < T; t++)
    {
        const int16_t neg[2] = {(int16_t)(even[2 * t] / 32), (int16_t)(odd[2 * t] / 32)};
        msum[t] = vi_dot2(msum[t], m, (const uint8_t *)neg);
    }
#endif
}

/* Q2_K. Block: d [LANES] f16, dmin [LANES] f16, 8 half vectors of [LANES] byte pairs (even, odd sub-block;
 * scale low, minimum high nibble), 16 vectors of 2-bit codes. */
static ALWAYS_INLINE void mul_q2_k(const struct mm_call *c, const int T)
{
    const int64_t nb = c->n_in / 256;
    const uint8_t *p = c->panel, *a = c->act, *ahead = c->ahead;
    const int32_t *n16 = (const int32_t *)(a + c->n_in * T + c->n_in / 16 * T);
    const float *da = (const float *)(n16 + c->n_in / 16 * T);
    vf acc[MM_TILE_MAX];
    UNROLL for (int t = 0; t < T; t++) acc[t] = vf_zero();
    for (int64_t b = 0; b < nb; b++) {
        const vf d = vf_from_f16(p), dmin = vf_from_f16(p + 2 * LANES);
        const uint8_t *s = p + 4 * LANES;
        vi isum[MM_TILE_MAX], msum[MM_TILE_MAX]; /* msum: minus the sum of minimums times activations */
        UNROLL for (int t = 0; t < T; t++) isum[t] = msum[t] = vi_zero();
        p += 20 * LANES;
        for (int i = 0; i < 8; i++, p += 2 * V, s += 2 * LANES) {
            if (i % 2 == 0) ahead = prefetch_lines(ahead, c->ahead_step);
            const vi bytes = vi_from_s8_pairs(s), m = vi_and(vi_shr(bytes, 4), vi_set(0x000f000f));
            pair_23k(isum, vi_and(bytes, vi_set(0x000f000f)), p, a, n16, i, T, 2);
            minimums_2k(msum, m, n16, i, T);
        }
        UNROLL for (int t = 0; t < T; t++)
        {
            const vf low = vf_mul(vf_cvt(SHORT_SUMS ? vi_sar(msum[t], 5) : msum[t]), dmin);
            acc[t] = vf_fma(vf_fma(vf_cvt(isum[t]), d, low), vf_bcast(da + t), acc[t]);
        }
        a += 256 * T;
        n16 += 16 * T;
        da += T;
    }
    put_out(c, acc, T);
}

/* Q3_K. Block: 3 vectors of 6-bit pairs (pair_6bit; 32 still to be taken off), d [LANES] f16, then 8 pairs of
 * sub-blocks: the even one's and the odd one's 2-bit codes, the third bits of both. */
static ALWAYS_INLINE void mul_q3_k(const struct mm_call *c, const int T)
{
    const int64_t nb = c->n_in / 256;
    const uint8_t *p = c->panel, *a = c->act, *ahead = c->ahead;
    const int32_t *n16 = (const int32_t *)(a + c->n_in * T + c->n_in / 16 * T);
    const float *da = (const float *)(n16 + c->n_in / 16 * T);
    vf acc[MM_TILE_MAX];
    UNROLL for (int t = 0; t < T; t++) acc[t] = vf_zero();
    for (int64_t b = 0; b < nb; b++) {
        const vi w[3] = {vi_load(p), vi_load(p + V), vi_load(p + 2 * V)};
        const vf d = vf_from_f16(p + 3 * V);
        vi isum[MM_TILE_MAX], scales[8];
        UNROLL for (int i = 0; i < 8; i++)
        {
            /* 16 bits each: 0x8000 keeps the lower half from borrowing */
            const vi raised = vi_or(pair_6bit(w, i), vi_set(0x80008000));
            scales[i] = vi_xor(vi_sub(raised, vi_set(0x00200020)), vi_set(0x80008000));
        }
        UNROLL for (int t = 0; t < T; t++) isum[t] = vi_zero();
        p += 14 * LANES;
        for (int i = 0; i < 8; i++, p += 3 * V) {
            if (i % 2 == 0) ahead = prefetch_lines(ahead, c->ahead_step);
            pair_23k(isum, scales[i], p, a, n16, i, T, 3);
        }
        UNROLL for (int t = 0; t < T; t++) acc[t] =
            vf_fma(vf_cvt(isum[t]), vf_mul(d, vf_bcast(da + t)), acc[t]);
        a += 256 * T;
        n16 += 16 * T;
        da += T;
    }
    put_out(c, acc, T);
}
