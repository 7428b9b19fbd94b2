/* mm_grid.inc.h - the types with grids (blocks/grids.h), and MXFP4. Sums as in mm_quant.inc.h: exact integers
 * inside a block, then one fused multiply-add.
 *
 * A panel holds the words of the file's blocks as they are: block: d [LANES] f16 (IQ1_M: none, it is in the
 * scales), then each word of the row's block [LANES]. A run of 32 columns is 4 indices (IQ3: 8) a lane, which
 * a gather turns into 8 nibbles a lane, level and sign; a table makes codes of them, with GRID_BIAS added: 2
 * to 126, so that two products fit 16 bits. */
#define GRID_BIAS 64

/* What is stored for several runs: next is the next run's, in the lowest bits. */
struct grid_rest {
    vi high, scale;
};

/* Where a block's words are, in words. */
static ALWAYS_INLINE int grid_high_at(const uint32_t type)
{
    return type == KN_IQ1_S || type == KN_IQ1_M ? 8 : 16;
}
static ALWAYS_INLINE int grid_scale_at(const uint32_t type)
{
    return type == KN_IQ2_XS ? 16 : type == KN_IQ2_S ? 18 : type == KN_IQ3_S ? 26 : 12;
}
static ALWAYS_INLINE int grid_words(const uint32_t type)
{
    return type == KN_IQ2_XXS   ? 16
           : type == KN_IQ2_XS  ? 18
           : type == KN_IQ2_S   ? 20
           : type == KN_IQ3_XXS ? 24
           : type == KN_IQ3_S   ? 27
           : type == KN_IQ1_S   ? 12
                                : 14;
}

/* Load what run i is the first to need; move on to what it needs. */
static ALWAYS_INLINE void grid_next(struct grid_rest *r, const uint8_t *w, const int i, const uint32_t type)
{
    const bool wide = type == KN_IQ1_S || type == KN_IQ1_M; /* 16 bits of high a run; others: 8 */
    if (wide ? i % 2 == 0 : i % 4 == 0)
        r->high = type == KN_IQ2_S || type == KN_IQ3_S || wide
                      ? vi_load(w + (grid_high_at(type) + i / (wide ? 2 : 4)) * V)
                      : vi_zero();
    else
        r->high = wide ? vi_shr(r->high, 16) : vi_shr(r->high, 8);
    if (type == KN_IQ3_S)
        r->scale = i ? vi_shr(r->scale, 4) : vi_load(w + grid_scale_at(type) * V);
    else if (type == KN_IQ2_XS || type == KN_IQ2_S)
        r->scale = i % 4 ? vi_shr(r->scale, 8) : vi_load(w + (grid_scale_at(type) + i / 4) * V);
    else if (type == KN_IQ1_M) /* two runs' 12 bits in the low part of each half */
        r->scale = i % 4 == 0   ? vi_load(w + (grid_scale_at(type) + i / 4) * V)
                   : i % 2 == 0 ? vi_shr(r->scale, 10)
                                : vi_shr(r->scale, 6);
}

/* Bit f of the result: whether an odd number of bits f to f + 6 of w are set. */
static ALWAYS_INLINE vi grid_odd(const vi w)
{
    const vi two = vi_xor(w, vi_shr(w, 1)), four = vi_xor(two, vi_shr(two, 2));
    return vi_xor(vi_xor(four, vi_shr(two, 4)), vi_shr(w, 6));
}

/* Bits 0 to 7 of s to bit 3 of the nibbles of values 0 to 7. */
static ALWAYS_INLINE vi grid_spread(const vi s)
{
    return vi_and(vi_or(vi_or(vi_shl(s, 3), vi_shl(s, 10)), vi_or(vi_shl(s, 17), vi_shl(s, 24))),
                  vi_set((int32_t)0x88888888));
}

/* Eight signs of seven bits of w at bit `at`; odd: grid_odd of w. */
static ALWAYS_INLINE vi grid_seven(const vi w, const vi odd, const int at)
{
    return vi_or(vi_and(vi_shr(w, at), vi_set(127)), vi_shl(vi_and(vi_shr(odd, at), vi_set(1)), 7));
}

/* The levels and signs of values 8 e to 8 e + 7 of run i: 8 nibbles a lane. aux: the run's word of signs. */
static ALWAYS_INLINE vi grid_point(const uint8_t *w, const struct grid_rest *r, const int i, const int e,
                                   const vi aux, const vi odd, const uint32_t type, const uint32_t *points)
{
    const vi byte = vi_set(255);
    if (type == KN_IQ3_XXS || type == KN_IQ3_S) {
        const vi two = vi_shr(vi_load(w + (2 * i + e / 2) * V), 16 * (e % 2));
        vi a = vi_and(two, byte), b = vi_and(vi_shr(two, 8), byte);
        if (type == KN_IQ3_S) {
            a = vi_or(a, vi_and(vi_shl(vi_shr(r->high, 2 * e), 8), vi_set(256)));
            b = vi_or(b, vi_and(vi_shl(vi_shr(r->high, 2 * e + 1), 8), vi_set(256)));
        }
        const vi level = vi_or(vi_gather(points, a), vi_shl(vi_gather(points, b), 4));
        const vi signs = type == KN_IQ3_S ? vi_and(vi_shr(aux, 8 * e), byte) : grid_seven(aux, odd, 7 * e);
        return vi_or(level, grid_spread(signs));
    }
    if (type == KN_IQ2_XS) {
        const vi two = vi_load(w + (2 * i + e / 2) * V), own = vi_shr(two, 16 * (e % 2));
        return vi_or(vi_gather(points, vi_and(own, vi_set(511))),
                     grid_spread(grid_seven(two, grid_odd(two), 9 + 16 * (e % 2))));
    }
    vi at = vi_and(vi_shr(vi_load(w + (type == KN_IQ2_XXS ? 2 * i : i) * V), 8 * e), byte);
    if (type == KN_IQ2_XXS) return vi_or(vi_gather(points, at), grid_spread(grid_seven(aux, odd, 7 * e)));
    if (type == KN_IQ2_S) {
        at = vi_or(at, vi_shl(vi_and(vi_shr(r->high, 2 * e), vi_set(3)), 8));
        return vi_or(vi_gather(points, at), grid_spread(vi_and(vi_shr(aux, 8 * e), byte)));
    }
    const int bits = type == KN_IQ1_S ? 3 : 4;
    const vi high = vi_shr(r->high, bits * e);
    at = vi_or(at, vi_shl(vi_and(high, vi_set(7)), 8));
    const vi moved = type == KN_IQ1_S ? vi_shl(r->high, 16) : vi_shl(high, 28); /* to bit 31 */
    return vi_or(vi_gather(points, at), vi_and(vi_sar(moved, 31), vi_set((int32_t)0x88888888)));
}

/* The scales of run i: of its columns 0 to 15 and of the others. */
static ALWAYS_INLINE vi grid_scale_of(const struct grid_rest *r, const vi aux, const int half,
                                      const uint32_t type)
{
    const vi stored = type == KN_IQ2_XXS || type == KN_IQ3_XXS ? vi_shr(aux, 28)
                      : type == KN_IQ1_S                       ? vi_and(vi_shr(r->high, 12), vi_set(7))
                      : type == KN_IQ1_M                       ? vi_and(vi_shr(r->scale, 3 * half), vi_set(7))
                                         : vi_and(vi_shr(r->scale, 4 * half), vi_set(15));
    return vi_or(vi_shl(stored, 1), vi_set(1));
}

/* isum += run i's sums times their scales. a: the run's activations; n16: the block's. */
static ALWAYS_INLINE void grid_run(vi *isum, const uint8_t *w, const struct grid_rest *r, const int i,
                                   const uint8_t *a, const int32_t *n16, const int T, const uint32_t type,
                                   const uint32_t *points, const uint8_t *table)
{
    const bool halves = type == KN_IQ2_XS || type == KN_IQ2_S || type == KN_IQ1_M;
    const vi aux = type == KN_IQ2_XXS   ? vi_load(w + (2 * i + 1) * V)
                   : type == KN_IQ2_S   ? vi_load(w + (8 + i) * V)
                   : type == KN_IQ3_XXS ? vi_load(w + (16 + i) * V)
                   : type == KN_IQ3_S   ? vi_load(w + (18 + i) * V)
                                        : vi_zero();
    const vi odd = type == KN_IQ2_XXS || type == KN_IQ3_XXS ? grid_odd(aux) : vi_zero();
    vi dot[MM_TILE_MAX];
    UNROLL for (int t = 0; t < T; t++)
    {
        dot[t] = vi_grid_start(n16 + act_n16_at(2 * i, T) + 2 * t);
        if (!halves) dot[t] = vi_add(dot[t], vi_grid_start(n16 + act_n16_at(2 * i + 1, T) + 2 * t));
    }
    UNROLL for (int e = 0; e < 4; e++)
    {
        const vi p = grid_point(w, r, i, e, aux, odd, type, points);
        const vi low = vi_table(table, vi_and(p, vi_set(0x0f0f0f0f))),
                 high = vi_table(table, vi_and(vi_shr(p, 4), vi_set(0x0f0f0f0f)));
        UNROLL for (int t = 0; t < T; t++) dot[t] = vi_dot4(dot[t], low, a + (2 * e * T + t) * 8);
        UNROLL for (int t = 0; t < T; t++) dot[t] = vi_dot4(dot[t], high, a + ((2 * e + 1) * T + t) * 8);
        if (e == 3 || (halves && e == 1)) {
            const vi scale = grid_scale_of(r, aux, halves ? e / 2 : 0, type);
            UNROLL for (int t = 0; t < T; t++)
            {
                isum[t] = vi_add(isum[t], vi_mul(dot[t], scale));
                if (e == 1) dot[t] = vi_grid_start(n16 + act_n16_at(2 * i + 1, T) + 2 * t);
            }
        }
    }
}

/* An f16 in the low half of each word. */
static ALWAYS_INLINE vf grid_f16(const vi h)
{
    const vi u = vi_shl(vi_and(h, vi_set(0x7fff)), 13);
    const vi special = vi_and(vi_xor(vi_sar(vi_sub(u, vi_set(0x0f800000)), 31), vi_set(-1)),
                              vi_set(0x7f800000)); /* Inf, NaN */
    const float up = 0x1p112f;
    const vi value = vi_or(vi_bits(vf_mul(vf_bits(u), vf_bcast(&up))), special);
    return vf_bits(vi_or(value, vi_shl(vi_and(h, vi_set(0x8000)), 16)));
}

/* IQ1_M: the upper 4 bits of four 16-bit words, d's lowest first. */
static ALWAYS_INLINE vf grid_d_of_scales(const uint8_t *w)
{
    const vi a = vi_load(w + 12 * V), b = vi_load(w + 13 * V);
    return grid_f16(vi_or(vi_or(vi_and(vi_shr(a, 12), vi_set(0xf)), vi_and(vi_shr(a, 24), vi_set(0xf0))),
                          vi_or(vi_and(vi_shr(b, 4), vi_set(0xf00)), vi_and(vi_shr(b, 16), vi_set(0xf000)))));
}

static ALWAYS_INLINE void mul_grid(const struct mm_call *c, const int T, const uint32_t type,
                                   const float down)
{
    const int64_t nb = c->n_in / 256;
    const uint32_t *points = grid_points(type);
    const struct grid_kind *kind = grid_kind_of(type);
    const uint8_t *p = c->panel, *a = c->act, *ahead = c->ahead;
    const int32_t *n16 = (const int32_t *)(a + c->n_in * T + c->n_in / 16 * T);
    const float *da = (const float *)(n16 + c->n_in / 16 * T);
    uint8_t table[16];
    vf acc[MM_TILE_MAX];
    for (int j = 0; j < 16; j++) table[j] = (uint8_t)(kind->code[j] + GRID_BIAS);
    UNROLL for (int t = 0; t < T; t++) acc[t] = vf_zero();
    for (int64_t b = 0; b < nb; b++) {
        const uint8_t *w = type == KN_IQ1_M ? p : p + 2 * LANES;
        const vf d = vf_mul(type == KN_IQ1_M ? grid_d_of_scales(w) : vf_from_f16(p), vf_bcast(&down));
        struct grid_rest rest = {vi_zero(), vi_zero()};
        vi isum[MM_TILE_MAX];
        UNROLL for (int t = 0; t < T; t++) isum[t] = vi_zero();
        for (int i = 0; i < 8; i++) {
            if (i % 2 == 0) ahead = prefetch_lines(ahead, c->ahead_step);
            grid_next(&rest, w, i, type);
            grid_run(isum, w, &rest, i, a + act_at(32 * i, T), n16, T, type, points, table);
        }
        UNROLL for (int t = 0; t < T; t++) acc[t] =
            vf_fma(vf_cvt(isum[t]), vf_mul(d, vf_bcast(da + t)), acc[t]);
        p = w + grid_words(type) * V;
        a += 256 * T;
        n16 += 16 * T;
        da += T;
    }
    put_out(c, acc, T);
}

static ALWAYS_INLINE void mul_iq2_xxs(const struct mm_call *c, const int T)
{
    mul_grid(c, T, KN_IQ2_XXS, 0.125f);
}
static ALWAYS_INLINE void mul_iq2_xs(const struct mm_call *c, const int T)
{
    mul_grid(c, T, KN_IQ2_XS, 0.125f);
}
static ALWAYS_INLINE void mul_iq2_s(const struct mm_call *c, const int T)
{
    mul_grid(c, T, KN_IQ2_S, 0.125f);
}
static ALWAYS_INLINE void mul_iq3_xxs(const struct mm_call *c, const int T)
{
    mul_grid(c, T, KN_IQ3_XXS, 0.25f);
}
static ALWAYS_INLINE void mul_iq3_s(const struct mm_call *c, const int T)
{
    mul_grid(c, T, KN_IQ3_S, 1.0f);
}
static ALWAYS_INLINE void mul_iq1_s(const struct mm_call *c, const int T)
{
    mul_grid(c, T, KN_IQ1_S, 0.125f);
}
static ALWAYS_INLINE void mul_iq1_m(const struct mm_call *c, const int T)
{
    mul_grid(c, T, KN_IQ1_M, 0.125f);
}
