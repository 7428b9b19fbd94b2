/* mm_quant.inc.h - quantised weights against 8-bit activations.
 *
 * V bytes are one vector of codes: [LANES] rows of 4 consecutive k. dot4 adds, in each lane, 4 products of
 * unsigned codes and signed activations to an int32, exactly. One block costs one fused multiply-add a token
 * (two with minimums): 32-blocks:  acc += float(sum of (code - offset) * q) * (d * da)      [+ min * (da *
 * sum of q)] K types:    acc += float(sum over sub-blocks of sc * (code sum)) * (d * da)   [- float(sum of m
 * * q sums) * (dmin * da)] Integer sums stay below 2^29, so their order is free and all sets agree; the float
 * operations are written in one order. */

#define V (4 * LANES)

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
            UNROLL for (int g = 0; g < 4; g++)
            {
                const vi w = vi_load(q + g * V);
                vi low = vi_and(w, vi_set(0x0f0f0f0f)), high = vi_and(vi_shr(w, 4), vi_set(0x0f0f0f0f));
                if (bits == 5) {
                    low = vi_or(low, vi_shl(vi_and(vi_shr(h, g), vi_set(0x01010101)), 4));
                    high = vi_or(high, vi_and(vi_shr(h, g), vi_set(0x10101010)));
                }
                UNROLL for (int t = 0; t < T; t++) dot[t] = vi_dot4(dot[t], low, a + (g * T + t) * 4);
                UNROLL for (int t = 0; t < T; t++) dot[t] = vi_dot4(dot[t], high, a + ((g + 4) * T + t) * 4);
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

/* ---- K types: two sub-blocks in one multiplication ----
 * A scale product costs as much as a dot4. Where the sums of both sub-blocks of a pair fit 16 bits (act_q256
 * knows: the sizes of the activations bound them whatever the codes are), one dot2 with the pair of scales
 * does both products. So that joining them is one instruction, a vector of codes holds both sub-blocks of
 * half of a panel's rows: of every four lanes `low` has the even and the odd one's codes of the first row,
 * then of the second, `high` those of the third and fourth, and activations come as the 4 of the even and the
 * 4 of the odd sub-block. vi_join puts (even, odd) of the rows, in order, into the halves of words. */

/* low, high += one group of codes of each sub-block of a pair times its activations. */
static ALWAYS_INLINE void dot_pair(vi *low, vi *high, const vi code_low, const vi code_high, const uint8_t *a,
                                   const int T)
{
    UNROLL for (int t = 0; t < T; t++)
    {
        const vi q = vi_bcast8(a + 8 * t);
        low[t] = vi_dot4v(low[t], code_low, q);
        high[t] = vi_dot4v(high[t], code_high, q);
    }
}

/* isum += the sums of a pair's sub-blocks times their scales; narrow: the sums fit 16 bits. */
static ALWAYS_INLINE void scale_pair(vi *isum, const vi scales, const vi *low, const vi *high, const int T,
                                     const int narrow)
{
    UNROLL for (int t = 0; t < T; t++)
    {
        if (narrow) {
            isum[t] = vi_dot2v(isum[t], scales, vi_join(low[t], high[t]));
            continue;
        }
        isum[t] = vi_add(isum[t], vi_mul(vi_evens(low[t], high[t]), vi_sar(vi_shl(scales, 16), 16)));
        isum[t] = vi_add(isum[t], vi_mul(vi_odds(low[t], high[t]), vi_sar(scales, 16)));
    }
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
static ALWAYS_INLINE const uint8_t *block_45k(vi *isum, const vi w[3], const uint8_t *p, const uint8_t *a,
                                              const uint8_t *ahead, const int32_t step, const int T,
                                              const int bits, const int narrow)
{
    const int sub = (bits == 5 ? 5 : 4) * V;
    UNROLL for (int t = 0; t < T; t++) isum[t] = vi_zero();
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
        vi isum[MM_TILE_MAX], msum[MM_TILE_MAX];
        if (any_wide(wide, T, bits == 5 ? MM_WIDE_5 : MM_WIDE_4))
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
            acc[t] = vf_fma(vf_fms(vf_cvt(isum[t]), d, low), vf_bcast(da + t), acc[t]);
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

/* isum = sum over a block's sub-blocks of scale * dot. Returns the prefetched address. */
static ALWAYS_INLINE const uint8_t *block_6k(vi *isum, const uint8_t *scales, const uint8_t *p,
                                             const uint8_t *a, const int32_t *n16, const uint8_t *ahead,
                                             const int32_t step, const int T, const int narrow)
{
    const vi six = vi_set(0x3f3f3f3f), two = vi_set(0x03030303), four = vi_set(0x0f0f0f0f);
    UNROLL for (int t = 0; t < T; t++) isum[t] = vi_zero();
    for (int i = 0; i < 8; i++, p += 6 * V, a += 32 * T, n16 += 2 * T, scales += 2 * LANES) {
        if (i % 2 == 0) ahead = prefetch_lines(ahead, step);
        vi low[MM_TILE_MAX], high[MM_TILE_MAX];
        UNROLL for (int t = 0; t < T; t++) low[t] = high[t] = vi_bcast8(n16 + 2 * t);
        const vi v0 = vi_load(p), v1 = vi_load(p + V);
        vi last = vi_pick(two, vi_shr(v0, 6), vi_shr(v1, 4));
        dot_pair(low, high, vi_and(v0, six), vi_and(v1, six), a, T);
        const vi v2 = vi_load(p + 2 * V), v3 = vi_load(p + 3 * V);
        last = vi_and(vi_pick(four, last, vi_shr(v2, 2)), six);
        vi last_high = vi_shr(v3, 6);
        dot_pair(low, high, vi_and(v2, six), vi_and(v3, six), a + 8 * T, T);
        const vi v4 = vi_load(p + 4 * V), v5 = vi_load(p + 5 * V);
        last_high = vi_pick(two, last_high, vi_shr(v4, 4));
        last_high = vi_and(vi_pick(four, last_high, vi_shr(v5, 2)), six);
        dot_pair(low, high, vi_and(v4, six), vi_and(v5, six), a + 16 * T, T);
        dot_pair(low, high, last, last_high, a + 24 * T, T);
        scale_pair(isum, vi_from_s8_pairs(scales), low, high, T, narrow);
    }
    return ahead;
}

static ALWAYS_INLINE void mul_q6_k(const struct mm_call *c, const int T)
{
    const int64_t nb = c->n_in / 256;
    const uint8_t *p = c->panel, *a = c->act, *ahead = c->ahead;
    const int32_t *n16 = (const int32_t *)(a + c->n_in * T + c->n_in / 16 * T);
    const float *da = (const float *)(n16 + c->n_in / 16 * T);
    const int32_t *wide = (const int32_t *)(da + nb * T);
    vf acc[MM_TILE_MAX];
    UNROLL for (int t = 0; t < T; t++) acc[t] = vf_zero();
    for (int64_t b = 0; b < nb; b++) {
        const vf d = vf_from_f16(p);
        const uint8_t *scales = p + 2 * LANES, *codes = p + 18 * LANES;
        vi isum[MM_TILE_MAX];
        if (any_wide(wide, T, MM_WIDE_6))
            ahead = block_6k(isum, scales, codes, a, n16, ahead, c->ahead_step, T, 0);
        else
            ahead = block_6k(isum, scales, codes, a, n16, ahead, c->ahead_step, T, 1);
        UNROLL for (int t = 0; t < T; t++)
        {
            acc[t] = vf_fma(vf_cvt(isum[t]), vf_mul(d, vf_bcast(da + t)), acc[t]);
        }
        p += 210 * LANES;
        a += 256 * T;
        n16 += 16 * T;
        da += T, wide += T;
    }
    put_out(c, acc, T);
}
