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

/* Block: d [LANES] f16, [minimum [LANES] f16], [1 vector of fifth bits], 4 vectors of nibbles or 8 of bytes.
 */
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
    UNROLL for (int t = 0; t < T; t++) vf_store(c->out + t * LANES, acc[t]);
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

/* ---- Q4_K and Q5_K ----
 * Block: 3 vectors of 6-bit pairs, d [LANES] f16, dmin [LANES] f16, then 8 sub-blocks of 32: [fifth bits] 4
 * vectors of nibbles. A pair is (even, odd) in the low and high half of a lane's word; pairs 0..3 are
 * minimums, 4..7 scales. Words 0..2 hold pairs 0..5 in bits 0-5 and 6-11 of each half; pairs 6 and 7 are in
 * the spare bits 12-15. */
static ALWAYS_INLINE vi pair_6bit(const vi w[3], const int i)
{
    const vi m = vi_set(0x003f003f);
    if (i < 6) return vi_and(vi_shr(w[i / 2], i % 2 * 6), m);
    if (i == 6)
        return vi_or(vi_and(vi_shr(w[0], 12), vi_set(0x000f000f)),
                     vi_and(vi_shr(w[1], 8), vi_set(0x00300030)));
    return vi_or(vi_and(vi_shr(w[1], 14), vi_set(0x00030003)), vi_and(vi_shr(w[2], 10), vi_set(0x003c003c)));
}

static ALWAYS_INLINE void mul_45k(const struct mm_call *c, const int T, const int bits)
{
    const int64_t nb = c->n_in / 256;
    const int sub = (bits == 5 ? 5 : 4) * V;
    const uint8_t *p = c->panel, *a = c->act, *ahead = c->ahead;
    const uint8_t *s32 = a + c->n_in * T;
    const float *da = (const float *)(s32 + c->n_in / 16 * T + c->n_in / 4 * T);
    vf acc[MM_TILE_MAX];
    UNROLL for (int t = 0; t < T; t++) acc[t] = vf_zero();
    for (int64_t b = 0; b < nb; b++) {
        const vi w[3] = {vi_load(p), vi_load(p + V), vi_load(p + 2 * V)};
        const vf d = vf_from_f16(p + 3 * V), dmin = vf_from_f16(p + 3 * V + 2 * LANES);
        p += 4 * V;
        vi isum[MM_TILE_MAX], msum[MM_TILE_MAX];
        UNROLL for (int t = 0; t < T; t++) isum[t] = vi_zero();
        for (int half = 0; half < 4; half++) {
            ahead = prefetch_lines(ahead, c->ahead_step);
            const vi pair = half == 0   ? pair_6bit(w, 4)
                            : half == 1 ? pair_6bit(w, 5)
                            : half == 2 ? pair_6bit(w, 6)
                                        : pair_6bit(w, 7);
            UNROLL for (int j = 0; j < 2; j++)
            {
                vi dot[MM_TILE_MAX];
                UNROLL for (int t = 0; t < T; t++) dot[t] = vi_zero();
                const uint8_t *q = bits == 5 ? p + V : p;
                const vi h = bits == 5 ? vi_load(p) : vi_zero();
                UNROLL for (int g = 0; g < 4; g++)
                {
                    const vi v = vi_load(q + g * V);
                    vi low = vi_and(v, vi_set(0x0f0f0f0f)), high = vi_and(vi_shr(v, 4), vi_set(0x0f0f0f0f));
                    if (bits == 5) {
                        low = vi_or(low, vi_shl(vi_and(vi_shr(h, g), vi_set(0x01010101)), 4));
                        high = vi_or(high, vi_and(vi_shr(h, g), vi_set(0x10101010)));
                    }
                    UNROLL for (int t = 0; t < T; t++) dot[t] = vi_dot4(dot[t], low, a + (g * T + t) * 4);
                    UNROLL for (int t = 0; t < T; t++) dot[t] =
                        vi_dot4(dot[t], high, a + ((g + 4) * T + t) * 4);
                }
                const vi sc = j ? vi_shr(pair, 16) : vi_and(pair, vi_set(0xffff));
                UNROLL for (int t = 0; t < T; t++) isum[t] = vi_add(isum[t], vi_mul(dot[t], sc));
                p += sub;
                a += 32 * T;
            }
        }
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
        s32 += 16 * T;
        da += T;
    }
    UNROLL for (int t = 0; t < T; t++) vf_store(c->out + t * LANES, acc[t]);
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
 * Block: d [LANES] f16, 8 half vectors of scales [LANES] int8 pairs (even, odd sub-block), then 16 sub-blocks
 * of 16: 2 vectors of low nibbles, 1 of high bit pairs (bits 2g, 2g+1 for group g). Codes 0..63, value code -
 * 32: the 32 is in the number a sum starts from, -32 * (sum of the 16 q): a load, where a multiplication
 * would take a slot from dot4. */
static ALWAYS_INLINE void mul_q6_k(const struct mm_call *c, const int T)
{
    const int64_t nb = c->n_in / 256;
    const uint8_t *p = c->panel, *a = c->act, *ahead = c->ahead;
    const int32_t *n16 = (const int32_t *)(a + c->n_in * T + c->n_in / 16 * T);
    const float *da = (const float *)(n16 + c->n_in / 16 * T);
    vf acc[MM_TILE_MAX];
    UNROLL for (int t = 0; t < T; t++) acc[t] = vf_zero();
    for (int64_t b = 0; b < nb; b++) {
        const uint8_t *scales = p + 2 * LANES;
        const vf d = vf_from_f16(p);
        p += 18 * LANES;
        vi isum[MM_TILE_MAX];
        UNROLL for (int t = 0; t < T; t++) isum[t] = vi_zero();
        for (int i = 0; i < 8; i++) {
            if (i % 2 == 0) ahead = prefetch_lines(ahead, c->ahead_step);
            const vi pair = vi_from_s8_pairs(scales + i * 2 * LANES);
            UNROLL for (int j = 0; j < 2; j++)
            {
                vi dot[MM_TILE_MAX];
                UNROLL for (int t = 0; t < T; t++) dot[t] = vi_bcast(n16 + (2 * i + j) * T + t);
                const vi h = vi_load(p + 2 * V);
                UNROLL for (int g = 0; g < 2; g++)
                {
                    const vi v = vi_load(p + g * V);
                    vi low = vi_and(v, vi_set(0x0f0f0f0f)), high = vi_and(vi_shr(v, 4), vi_set(0x0f0f0f0f));
                    low = vi_or(low, vi_and(vi_shl(h, g ? 2 : 4), vi_set(0x30303030)));
                    high = vi_or(high, vi_and(g ? vi_shr(h, 2) : h, vi_set(0x30303030)));
                    UNROLL for (int t = 0; t < T; t++) dot[t] = vi_dot4(dot[t], low, a + (g * T + t) * 4);
                    UNROLL for (int t = 0; t < T; t++) dot[t] =
                        vi_dot4(dot[t], high, a + ((g + 2) * T + t) * 4);
                }
                const vi sc = j ? vi_sar(pair, 16) : vi_sar(vi_shl(pair, 16), 16);
                UNROLL for (int t = 0; t < T; t++) isum[t] = vi_add(isum[t], vi_mul(dot[t], sc));
                p += 3 * V;
                a += 16 * T;
            }
        }
        UNROLL for (int t = 0; t < T; t++)
        {
            acc[t] = vf_fma(vf_cvt(isum[t]), vf_mul(d, vf_bcast(da + t)), acc[t]);
        }
        n16 += 16 * T;
        da += T;
    }
    UNROLL for (int t = 0; t < T; t++) vf_store(c->out + t * LANES, acc[t]);
}
