/* mm_quant.inc.h - quantised weights against 8-bit activations.
 *
 * V bytes are one vector of codes: [LANES] rows of 4 consecutive k. dot4 adds, in each lane, 4 products of
 * unsigned codes and signed activations to an int32, exactly. One block costs one fused multiply-add a token
 * (two with minimums): 32-blocks:  acc += float(sum of (code - offset) * q) * (d * da)      [+ min * (da *
 * sum of q)] K types:    acc += float(sum over sub-blocks of sc * (code sum)) * (d * da)   [- float(sum of m
 * * q sums) * (dmin * da)] Integer sums stay below 2^29, so their order is free and all sets agree; the float
 * operations are written in one order. */

#define V (4 * LANES)

/* Tokens that lie beside each other in a tile and meet a vector of codes from registers. */
#define BESIDE(T) ((T) < TILE_BESIDE ? (T) : TILE_BESIDE)

#if !SHORT_SUMS
#define vs_dot4v vi_dot4v
struct isum {
    vi all;
};
INLINE struct isum isum_zero(void)
{
    return (struct isum){vi_zero()};
}
INLINE vi isum_total(struct isum s)
{
    return s.all;
}
#endif

/* dot += one group of 4 k of unsigned codes times their activations, a token every `unit` bytes. SHORT_SUMS:
 * to part, which end_part adds to dot. */
static ALWAYS_INLINE void dot_group(vi *dot, vi *part, const vi code, const uint8_t *a, const int T,
                                    const int unit)
{
    UNROLL for (int t = 0; t < T; t++)
    {
#if SHORT_SUMS
        (void)dot;
        part[t] = vs_dot4v(part[t], code, vi_bcast(a + t * unit));
#else
        (void)part;
        dot[t] = vi_dot4(dot[t], code, a + t * unit);
#endif
    }
}

static ALWAYS_INLINE void end_part(vi *dot, vi *part, const int T)
{
#if SHORT_SUMS
    UNROLL for (int t = 0; t < T; t++)
    {
        dot[t] = vi_dot2v(dot[t], part[t], vi_set(0x00010001));
        part[t] = vi_zero();
    }
#else
    (void)dot, (void)part, (void)T;
#endif
}

/* ---- 32-blocks ---- */

/* Block: d [LANES] f16, [minimum [LANES] f16], [1 vector of fifth bits], 4
 * vectors of nibbles or 8 of bytes. */
static ALWAYS_INLINE void mul_32(const struct mm_call *c, const int T, const int bits, const int has_min)
{
    const int64_t nb = c->n_in / 32;
    const int vectors = bits == 8 ? 8 : bits == 5 ? 5 : 4;
    const uint8_t *p = c->panel, *a = c->act, *ahead = c->ahead;
    const float *da = (const float *)(a + c->n_in * T), *s = da + 2 * nb * T;
    const int32_t *nsum = (const int32_t *)(da + nb * T);
    vf acc[MM_TILE_MAX];
    UNROLL for (int t = 0; t < T; t++) acc[t] = vf_zero();
    for (int64_t b = 0; b < nb; b++) {
        ahead = prefetch_lines(ahead, c->ahead_step);
        const vf d = vf_from_f16(p), m = has_min ? vf_from_f16(p + 2 * LANES) : vf_zero();
        p += (has_min ? 4 : 2) * LANES;
        vi dot[MM_TILE_MAX];
        UNROLL for (int t = 0; t < T; t++)
        {
            if (bits == 8)
                dot[t] = vi_dot_s8_start(nsum + t);
            else
                dot[t] = has_min ? vi_zero() : vi_shl(vi_bcast(nsum + t), bits == 5 ? 4 : 3);
        }
        if (bits == 8) {
            UNROLL for (int g = 0; g < 8; g++)
            {
                const vi w = vi_load(p + g * V);
                UNROLL for (int t = 0; t < T; t++) dot[t] = vi_dot_s8(dot[t], w, a + (g * T + t) * 4);
            }
        } else {
            const uint8_t *q = bits == 5 ? p + V : p;
            vi h = bits == 5 ? vi_load(p) : vi_zero();
            vi part[MM_TILE_MAX];
            UNROLL for (int t = 0; t < T; t++) part[t] = vi_zero();
            UNROLL for (int g = 0; g < 4; g++)
            {
                const vi w = vi_load(q + g * V);
                vi low = vi_and(w, vi_set(0x0f0f0f0f)), high = vi_and(vi_shr(w, 4), vi_set(0x0f0f0f0f));
                if (bits == 5) {
                    low = vi_or(low, vi_shl(vi_and(vi_shr(h, g), vi_set(0x01010101)), 4));
                    high = vi_or(high, vi_and(vi_shr(h, g), vi_set(0x10101010)));
                }
                dot_group(dot, part, low, a + g * T * 4, T, 4);
                dot_group(dot, part, high, a + (g + 4) * T * 4, T, 4);
                if (bits == 5 ? g % 2 : g == 3) end_part(dot, part, T);
            }
        }
        UNROLL for (int t = 0; t < T; t++)
        {
            acc[t] = vf_fma(vf_cvt(dot[t]), vf_mul(d, vf_bcast(da + t)), acc[t]);
            if (has_min) acc[t] = vf_fma(m, vf_bcast(s + t), acc[t]);
        }
        p += vectors * V;
        a += 32 * T;
        da += T, s += T, nsum += T;
    }
    put_out(c, acc, T);
}

static ALWAYS_INLINE void mul_q8_0(const struct mm_call *c, const int T)
{
    mul_32(c, T, 8, 0);
}
static ALWAYS_INLINE void mul_q4_0(const struct mm_call *c, const int T)
{
    mul_32(c, T, 4, 0);
}
static ALWAYS_INLINE void mul_q5_0(const struct mm_call *c, const int T)
{
    mul_32(c, T, 5, 0);
}
static ALWAYS_INLINE void mul_q4_1(const struct mm_call *c, const int T)
{
    mul_32(c, T, 4, 1);
}
static ALWAYS_INLINE void mul_q5_1(const struct mm_call *c, const int T)
{
    mul_32(c, T, 5, 1);
}

/* ---- K types: a pair of sub-blocks of half of the rows in a vector ----
 * A scale product costs as much as a dot4, so it should meet as much as possible at once. A vector of codes
 * holds both sub-blocks of half of a panel's rows: of every four lanes `low` has the even and the odd one's
 * codes of the first row, then of the second, `high` those of the third and fourth, and activations come as
 * the 4 of the even and the 4 of the odd sub-block.
 *
 * SHORT_SUMS 0: the sum of a sub-block is one int32. Where both of a pair fit 16 bits (act_q256 knows: the
 * sizes of the activations bound them whatever the codes are), one vi_join puts (even, odd) of the rows, in
 * order, into the halves of words, and one dot2 with the pair of scales does both products.
 *
 * SHORT_SUMS 1: there is no dot4, only sums of two products in 16 bits, which are added up in 16 bits, the
 * first two of every four k in the low half of a word, the others in the high half, as many as cannot leave
 * the range; then one dot2 multiplies both halves by the scale and adds them. Q4_K, 16 products a half: 15 *
 * 127 * 16 = 30480. Q5_K, 8: 31 * 127 * 8 = 31496. Q6_K starts from -32 * sum of q, half by half (n16), so
 * its 8 products end within 32 * 127 * 8 = 32512, and what wraps on the way does not matter. */

/* low, high += one group of codes of each sub-block of a pair times its activations. */
static ALWAYS_INLINE void dot_pair(vi *low, vi *high, const vi code_low, const vi code_high, const uint8_t *a,
                                   const int T)
{
    UNROLL for (int t = 0; t < T; t++)
    {
        const vi q = vi_bcast8(a + 8 * t);
        low[t] = vs_dot4v(low[t], code_low, q);
        high[t] = vs_dot4v(high[t], code_high, q);
    }
}

/* isum += the sums of a pair's sub-blocks times their scales; narrow: the sums fit 16 bits. */
static ALWAYS_INLINE void scale_pair(struct isum *isum, const vi scales, const vi *low, const vi *high,
                                     const int T, const int narrow)
{
#if SHORT_SUMS
    const vi scale_low = vi_twice_low(scales), scale_high = vi_twice_high(scales);
    (void)narrow;
    UNROLL for (int t = 0; t < T; t++)
    {
        isum[t].low = vi_dot2v(isum[t].low, scale_low, low[t]);
        isum[t].high = vi_dot2v(isum[t].high, scale_high, high[t]);
    }
#else
    UNROLL for (int t = 0; t < T; t++)
    {
        if (narrow) {
            isum[t].all = vi_dot2v(isum[t].all, scales, vi_join(low[t], high[t]));
            continue;
        }
        isum[t].all = vi_add(isum[t].all, vi_mul(vi_evens(low[t], high[t]), vi_sar(vi_shl(scales, 16), 16)));
        isum[t].all = vi_add(isum[t].all, vi_mul(vi_odds(low[t], high[t]), vi_sar(scales, 16)));
    }
#endif
}

static ALWAYS_INLINE int any_wide(const int32_t *wide, const int T, const int32_t bit)
{
    int32_t any = 0;
    UNROLL for (int t = 0; t < T; t++) any |= wide[t];
    return any & bit;
}

/* ---- Q4_K and Q5_K ----
 * Block: 3 vectors of 6-bit pairs, d [LANES] f16, dmin [LANES] f16, then 4 pairs of sub-blocks of 32: twice
 * [fifth bits] and 4 vectors of nibbles (low, high). A pair is (even, odd) in the low and high half of a
 * lane's word; pairs 0..3 are minimums, 4..7 scales. Words 0..2 hold pairs 0..5 in bits 0-5 and 6-11 of each
 * half; pairs 6 and 7 are in the spare bits 12-15. */
static ALWAYS_INLINE vi pair_6bit(const vi w[3], const int i)
{
    const vi m = vi_set(0x003f003f);
    if (i < 6) return vi_and(vi_shr(w[i / 2], i % 2 * 6), m);
    if (i == 6)
        return vi_or(vi_and(vi_shr(w[0], 12), vi_set(0x000f000f)),
                     vi_and(vi_shr(w[1], 8), vi_set(0x00300030)));
    return vi_or(vi_and(vi_shr(w[1], 14), vi_set(0x00030003)), vi_and(vi_shr(w[2], 10), vi_set(0x003c003c)));
}

/* isum = sum over a block's sub-blocks of scale * dot. Returns the prefetched address. */
static ALWAYS_INLINE const uint8_t *block_45k(struct isum *isum, const vi w[3], const uint8_t *p,
                                              const uint8_t *a, const uint8_t *ahead, const int32_t step,
                                              const int T, const int bits, const int narrow)
{
    const int sub = (bits == 5 ? 5 : 4) * V;
    UNROLL for (int t = 0; t < T; t++) isum[t] = isum_zero();
    for (int i = 4; i < 8; i++, p += 2 * sub, a += 64 * T) {
        ahead = prefetch_lines(ahead, step);
        const vi pair = i == 4   ? pair_6bit(w, 4)
                        : i == 5 ? pair_6bit(w, 5)
                        : i == 6 ? pair_6bit(w, 6)
                                 : pair_6bit(w, 7);
        vi low[MM_TILE_MAX], high[MM_TILE_MAX];
        UNROLL for (int t = 0; t < T; t++) low[t] = high[t] = vi_zero();
        UNROLL for (int g = 0; g < 8; g++)
        {
            const uint8_t *q = p + g / 4 * sub;
            const vi v = vi_load(q + (g % 4 + (bits == 5)) * V);
            vi l = vi_and(v, vi_set(0x0f0f0f0f)), h = vi_and(vi_shr(v, 4), vi_set(0x0f0f0f0f));
            if (bits == 5) {
                const vi fifth = vi_shr(vi_load(q), g % 4);
                l = vi_or(l, vi_shl(vi_and(fifth, vi_set(0x01010101)), 4));
                h = vi_or(h, vi_and(fifth, vi_set(0x10101010)));
            }
            dot_pair(low, high, l, h, a + 8 * g * T, T);
            if (SHORT_SUMS && bits == 5 && g == 3) {
                scale_pair(isum, pair, low, high, T, narrow);
                UNROLL for (int t = 0; t < T; t++) low[t] = high[t] = vi_zero();
            }
        }
        scale_pair(isum, pair, low, high, T, narrow);
    }
    return ahead;
}

static ALWAYS_INLINE void mul_45k(const struct mm_call *c, const int T, const int bits)
{
    const int64_t nb = c->n_in / 256;
    const int block = 4 * V + 8 * (bits == 5 ? 5 : 4) * V;
    const uint8_t *p = c->panel, *a = c->act, *ahead = c->ahead;
    const uint8_t *s32 = a + c->n_in * T;
    const float *da = (const float *)(s32 + c->n_in / 16 * T + c->n_in / 4 * T);
    const int32_t *wide = (const int32_t *)(da + nb * T);
    vf acc[MM_TILE_MAX];
    UNROLL for (int t = 0; t < T; t++) acc[t] = vf_zero();
    for (int64_t b = 0; b < nb; b++) {
        const vi w[3] = {vi_load(p), vi_load(p + V), vi_load(p + 2 * V)};
        const vf d = vf_from_f16(p + 3 * V), dmin = vf_from_f16(p + 3 * V + 2 * LANES);
        struct isum isum[MM_TILE_MAX];
        vi msum[MM_TILE_MAX];
        if (!SHORT_SUMS && any_wide(wide, T, bits == 5 ? MM_WIDE_5 : MM_WIDE_4))
            ahead = block_45k(isum, w, p + 4 * V, a, ahead, c->ahead_step, T, bits, 0);
        else
            ahead = block_45k(isum, w, p + 4 * V, a, ahead, c->ahead_step, T, bits, 1);
        UNROLL for (int t = 0; t < T; t++) msum[t] = vi_zero();
        UNROLL for (int i = 0; i < 4; i++)
        {
            const vi m = pair_6bit(w, i);
            UNROLL for (int t = 0; t < T; t++) msum[t] = vi_dot2(msum[t], m, s32 + (i * T + t) * 4);
        }
        UNROLL for (int t = 0; t < T; t++)
        {
            const vf low = vf_mul(vf_cvt(msum[t]), dmin);
            acc[t] = vf_fma(vf_fms(vf_cvt(isum_total(isum[t])), d, low), vf_bcast(da + t), acc[t]);
        }
        p += block;
        a += 256 * T;
        s32 += 16 * T;
        da += T, wide += T;
    }
    put_out(c, acc, T);
}

static ALWAYS_INLINE void mul_q4_k(const struct mm_call *c, const int T)
{
    mul_45k(c, T, 4);
}
static ALWAYS_INLINE void mul_q5_k(const struct mm_call *c, const int T)
{
    mul_45k(c, T, 5);
}

/* ---- Q6_K ----
 * Block: d [LANES] f16, 8 half vectors of scales [LANES] int8 pairs (even, odd sub-block), then 8 pairs of
 * sub-blocks of 16 that lie 32 apart: 6 vectors, (low, high) of groups 0, 1 and 2 in bits 0-5. Bits 6-7 of
 * the first three hold bits 0-1, 2-3 and 4-5 of low's group 3, those of the others high's. Codes 0..63, value
 * code - 32: the 32 is in the number a sum starts from, -32 * (sum of the 16 q): a load, where a
 * multiplication would take a slot from dot4. */

/* isum += a pair's sub-blocks times n tokens beside each other; codes of group g: code[2 g] and the next, or
 * NULL: from p. */
static ALWAYS_INLINE void pair_6k(struct isum *isum, const uint8_t *scales, const uint8_t *p, const vi *code,
                                  const uint8_t *a, const int32_t *n16, const int n, const int narrow)
{
    const vi six = vi_set(0x3f3f3f3f), two = vi_set(0x03030303), four = vi_set(0x0f0f0f0f);
    vi low[MM_TILE_MAX], high[MM_TILE_MAX];
    UNROLL for (int t = 0; t < n; t++) low[t] = high[t] = vi_bcast8(n16 + 2 * t);
    if (code) {
        UNROLL for (int g = 0; g < 4; g++)
            dot_pair(low, high, code[2 * g], code[2 * g + 1], a + 8 * g * n, n);
    } else {
        const vi v0 = vi_load(p), v1 = vi_load(p + V);
        vi last = vi_pick(two, vi_shr(v0, 6), vi_shr(v1, 4));
        dot_pair(low, high, vi_and(v0, six), vi_and(v1, six), a, n);
        const vi v2 = vi_load(p + 2 * V), v3 = vi_load(p + 3 * V);
        last = vi_and(vi_pick(four, last, vi_shr(v2, 2)), six);
        vi last_high = vi_shr(v3, 6);
        dot_pair(low, high, vi_and(v2, six), vi_and(v3, six), a + 8 * n, n);
        const vi v4 = vi_load(p + 4 * V), v5 = vi_load(p + 5 * V);
        last_high = vi_pick(two, last_high, vi_shr(v4, 4));
        last_high = vi_and(vi_pick(four, last_high, vi_shr(v5, 2)), six);
        dot_pair(low, high, vi_and(v4, six), vi_and(v5, six), a + 16 * n, n);
        dot_pair(low, high, last, last_high, a + 24 * n, n);
    }
    scale_pair(isum, vi_from_s8_pairs(scales), low, high, n, narrow);
}

/* code[2 g] and the next: the codes of group g of the pair at p. */
static ALWAYS_INLINE void codes_6k(vi code[8], const uint8_t *p)
{
    const vi two = vi_set(0x03030303), four = vi_set(0x0c0c0c0c), six = vi_set(0x30303030);
    UNROLL for (int h = 0; h < 2; h++)
    {
        const vi v0 = vi_load(p + 3 * h * V), v1 = vi_load(p + (3 * h + 1) * V),
                 v2 = vi_load(p + (3 * h + 2) * V);
        code[6 + h] =
            vi_or(vi_or(vi_and(vi_shr(v0, 6), two), vi_and(vi_shr(v1, 4), four)), vi_and(vi_shr(v2, 2), six));
    }
    UNROLL for (int g = 0; g < 6; g++) code[g] = vi_and(vi_load(p + g * V), vi_set(0x3f3f3f3f));
}

/* isum = sum over a block's sub-blocks of scale * dot. Returns the prefetched address. */
static ALWAYS_INLINE const uint8_t *block_6k(struct isum *isum, const uint8_t *scales, const uint8_t *p,
                                             const uint8_t *a, const int32_t *n16, const int64_t next,
                                             const uint8_t *ahead, const int32_t step, const int T,
                                             const int narrow)
{
    const int n = BESIDE(T);
    UNROLL for (int t = 0; t < T; t++) isum[t] = isum_zero();
    for (int i = 0; i < 8; i++, p += 6 * V, a += 32 * n, n16 += 2 * n, scales += 2 * LANES) {
        if (i % 2 == 0) ahead = prefetch_lines(ahead, step);
        if (n == T) {
            pair_6k(isum, scales, p, NULL, a, n16, n, narrow);
            continue;
        }
        vi code[8];
        codes_6k(code, p);
        pair_6k(isum, scales, p, code, a, n16, n, narrow);
        pair_6k(isum + n, scales, p, code, a + next, n16 + next / 4, n, narrow);
    }
    return ahead;
}

static ALWAYS_INLINE void end_6k(vf *acc, const struct isum *isum, const vf d, const float *da, const int n)
{
    UNROLL for (int t = 0; t < n; t++)
    {
        acc[t] = vf_fma(vf_cvt(isum_total(isum[t])), vf_mul(d, vf_bcast(da + t)), acc[t]);
    }
}

static ALWAYS_INLINE void mul_q6_k(const struct mm_call *c, const int T)
{
    const int64_t nb = c->n_in / 256;
    const int n = BESIDE(T);
    const uint8_t *p = c->panel, *a = c->act, *ahead = c->ahead;
    const int32_t *n16 = (const int32_t *)(a + c->n_in * n + c->n_in / 16 * n);
    const float *da = (const float *)(n16 + c->n_in / 16 * n);
    const int32_t *wide = (const int32_t *)(da + nb * n);
    const int64_t next = n < T ? (int64_t)mm_act_bytes(MM_ACT_Q256, c->n_in) * n : 0;
    vf acc[MM_TILE_MAX];
    UNROLL for (int t = 0; t < T; t++) acc[t] = vf_zero();
    for (int64_t b = 0; b < nb; b++) {
        const vf d = vf_from_f16(p);
        const uint8_t *scales = p + 2 * LANES, *codes = p + 18 * LANES;
        struct isum isum[MM_TILE_MAX];
        if (!SHORT_SUMS && any_wide(wide, T, MM_WIDE_6))
            ahead = block_6k(isum, scales, codes, a, n16, next, ahead, c->ahead_step, T, 0);
        else
            ahead = block_6k(isum, scales, codes, a, n16, next, ahead, c->ahead_step, T, 1);
        end_6k(acc, isum, d, da, n);
        if (n < T) end_6k(acc + n, isum + n, d, (const float *)((const uint8_t *)da + next), n);
        p += 210 * LANES;
        a += 256 * n;
        n16 += 16 * n;
        da += n, wide += n;
    }
    put_out(c, acc, T);
}
