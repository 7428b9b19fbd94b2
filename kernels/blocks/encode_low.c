/* encode_low.c - IQ4_NL, and the super-blocks of IQ4_XS, Q3_K and Q2_K.
 *
 * As in encode_k.c each column gets its own best scale (and min), from which the super-block's f16 scale and
 * the columns' integers follow. These types have few codes and coarse scales, so what is rounded is then
 * chosen anew in turns: integers for the f16 scale by the error they really give, the f16 scale for the
 * integers and codes by least squares; the best of the turns is kept. */
#include "encode.h"

#include <math.h>

#define TURNS 3

void encode_iq4_nl(const struct search *s, const float *x, uint8_t *dst, int64_t n, const float *importance)
{
    struct search_cols c = {.len = 32};
    for (int64_t b = 0; b < n / 32; b += SEARCH_COLS) {
        const int cols = n / 32 - b < SEARCH_COLS ? (int)(n / 32 - b) : SEARCH_COLS;
        uint16_t h[SEARCH_COLS];
        search_load(&c, x + 32 * b, importance ? importance + 32 * b : NULL, cols);
        s->table(&c);
        for (int k = 0; k < SEARCH_COLS; k++) c.scale[k] = search_round_f16(c.scale[k], &h[k]);
        s->table_code(&c);
        for (int k = 0; k < cols; k++, dst += 18) {
            put_u16(dst, h[k]);
            for (int l = 0; l < 16; l++) dst[2 + l] = (uint8_t)(c.code[l][k] | c.code[l + 16][k] << 4);
        }
    }
}

/* ---- one scale a column, -32..31: IQ4_XS and Q3_K ---- */

/* A super-block's part of the columns, first .. first + count - 1. */
struct super {
    int first, count;
    uint16_t h;
    int sc[SEARCH_COLS]; /* of column first + i */
};

struct kind { /* what differs: the table, or codes 0..7 less 4 */
    bool table;
};

static void round_codes(const struct search *s, const struct kind *kind, struct search_cols *c)
{
    kind->table ? s->table_code(c) : s->symmetric_code(c, 4);
}
static void round_error(const struct search *s, const struct kind *kind, struct search_cols *c)
{
    kind->table ? s->table_error(c) : s->symmetric_error(c, 4);
}

static int clamp(int v, int low, int high)
{
    return v < low ? low : v > high ? high : v;
}
static int round_to(float f, int low, int high)
{
    if (!(f > (float)low)) return low; /* a NaN, of sums beyond float's range, as well */
    if (f > (float)high) return high;
    return (int)(f < 0 ? f - 0.5f : f + 0.5f);
}

/* With the super-blocks' scales as they are: each column's integer of least error among the nearest to its
 * own scale and the two around. Codes and errors are left in c. */
static void choose_scales(const struct search *s, const struct kind *kind, struct search_cols *c,
                          struct super *z, int blocks, const float *own)
{
    float best[SEARCH_COLS] = {0};
    int base[SEARCH_COLS] = {0}, at[SEARCH_COLS] = {0};
    float d[SEARCH_COLS] = {0};
    for (int b = 0; b < blocks; b++)
        for (int i = 0; i < z[b].count; i++) {
            const int k = z[b].first + i;
            d[k] = kn_f16_to_f32(z[b].h);
            base[k] = d[k] != 0 ? round_to(own[k] / d[k], -32, 31) : 0;
        }
    for (int t = 0; t < 3; t++) {
        const int by = t == 2 ? -1 : t; /* the nearest first: a tie keeps it */
        for (int k = 0; k < SEARCH_COLS; k++) c->scale[k] = d[k] * (float)clamp(base[k] + by, -32, 31);
        round_error(s, kind, c);
        for (int k = 0; k < SEARCH_COLS; k++)
            if (t == 0 || c->error[k] < best[k]) best[k] = c->error[k], at[k] = clamp(base[k] + by, -32, 31);
    }
    for (int b = 0; b < blocks; b++)
        for (int i = 0; i < z[b].count; i++) z[b].sc[i] = at[z[b].first + i];
    for (int k = 0; k < SEARCH_COLS; k++) c->scale[k] = d[k] * (float)at[k];
    round_codes(s, kind, c);
}

/* The f16 scale that suits the integers and codes best. */
static uint16_t solve_scale(const struct kind *kind, const struct search_cols *c, const struct super *z)
{
    float xl = 0, ll = 0;
    uint16_t h;
    for (int i = 0; i < z->count; i++) {
        const int k = z->first + i;
        float cxl = 0, cll = 0;
        for (int l = 0; l < c->len; l++) {
            const float q = (float)(kind->table ? iq4_values[c->code[l][k]] : c->code[l][k] - 4);
            const float wq = c->w[l][k] * q;
            cxl += wq * c->x[l][k];
            cll += wq * q;
        }
        xl += (float)z->sc[i] * cxl;
        ll += (float)(z->sc[i] * z->sc[i]) * cll;
    }
    const float d = xl / ll;
    search_round_f16(isfinite(d) ? d : 0.0f, &h);
    return h;
}

static float error_of(const struct search_cols *c, const struct super *z)
{
    float sum = 0;
    for (int i = 0; i < z->count; i++) sum += c->error[z->first + i];
    return sum;
}

/* The columns of c (searched: scale) as super-blocks z; the codes of the best are left in c. */
static void fit_scales(const struct search *s, const struct kind *kind, struct search_cols *c,
                       struct super *z, int blocks)
{
    float own[SEARCH_COLS], least[2] = {0};
    struct super best[2] = {0};
    memcpy(own, c->scale, sizeof own);
    for (int b = 0; b < blocks; b++) {
        float peak = 0;
        for (int k = z[b].first; k < z[b].first + z[b].count; k++)
            peak = fabsf(own[k]) > fabsf(peak) ? own[k] : peak;
        search_round_f16(peak / -32.0f, &z[b].h);
    }
    for (int t = 0; t < TURNS; t++) {
        choose_scales(s, kind, c, z, blocks, own);
        for (int b = 0; b < blocks; b++) {
            const float e = error_of(c, &z[b]);
            if (t == 0 || e < least[b]) least[b] = e, best[b] = z[b];
            z[b].h = solve_scale(kind, c, &z[b]);
        }
    }
    for (int b = 0; b < blocks; b++) {
        z[b] = best[b];
        for (int i = 0; i < z[b].count; i++)
            c->scale[z[b].first + i] = kn_f16_to_f32(z[b].h) * (float)z[b].sc[i];
    }
    round_codes(s, kind, c);
}

static void pack_iq4_xs(const struct search_cols *c, const struct super *z, uint8_t *dst)
{
    unsigned high = 0;
    memset(dst, 0, 8);
    put_u16(dst, z->h);
    for (int j = 0; j < 8; j++) {
        const unsigned sc = (unsigned)(z->sc[j] + 32);
        high |= sc >> 4 << 2 * j;
        dst[4 + j / 2] |= (uint8_t)((sc & 15) << 4 * (j % 2));
        for (int l = 0; l < 16; l++)
            dst[8 + 16 * j + l] = (uint8_t)(c->code[l][z->first + j] | c->code[l + 16][z->first + j] << 4);
    }
    put_u16(dst + 2, (uint16_t)high);
}

void encode_iq4_xs(const struct search *s, const float *x, uint8_t *dst, int64_t n, const float *importance)
{
    static const struct kind kind = {true};
    struct search_cols c = {.len = 32};
    for (int64_t i = 0; i < n; i += 512) {
        const int blocks = n - i >= 512 ? 2 : 1;
        struct super z[2] = {{.first = 0, .count = 8}, {.first = 8, .count = 8}};
        search_load(&c, x + i, importance ? importance + i : NULL, 8 * blocks);
        encode_weigh(&c, importance != NULL, 8);
        s->table(&c);
        fit_scales(s, &kind, &c, z, 2);
        for (int b = 0; b < blocks; b++, dst += 136) pack_iq4_xs(&c, &z[b], dst);
    }
}

/* Codes of 16 columns of 16, their low two bits, to 64 bytes. */
static void pack_two(const struct search_cols *c, uint8_t *q)
{
    for (int half = 0; half < 2; half++)
        for (int l = 0; l < 32; l++) {
            const uint8_t *code =
                &c->code[l % 16][8 * half + l / 16]; /* columns two apart are 32 values apart */
            q[32 * half + l] =
                (uint8_t)((code[0] & 3) | (code[2] & 3) << 2 | (code[4] & 3) << 4 | (code[6] & 3) << 6);
        }
}

void encode_k3(const struct search *s, const float *x, uint8_t *dst, int64_t n, const float *importance)
{
    static const struct kind kind = {false};
    struct search_cols c = {.len = 16};
    for (int64_t i = 0; i < n; i += 256, dst += 110) {
        struct super z = {.first = 0, .count = 16};
        search_load(&c, x + i, importance ? importance + i : NULL, SEARCH_COLS);
        if (!importance) encode_weigh(&c, false, 16);
        s->symmetric(&c, 4);
        fit_scales(s, &kind, &c, &z, 1);
        memset(dst, 0, 110);
        for (int l = 0; l < 32; l++)
            for (int j = 0; j < 8; j++) dst[l] |= (uint8_t)(c.code[l % 16][2 * j + l / 16] >> 2 << j);
        pack_two(&c, dst + 32);
        for (int j = 0; j < 16; j++) {
            const unsigned sc = (unsigned)(z.sc[j] + 32);
            dst[96 + j % 8] |= (uint8_t)((sc & 15) << 4 * (j / 8));
            dst[104 + j % 4] |= (uint8_t)(sc >> 4 << 2 * (j / 4));
        }
        put_u16(dst + 108, z.h);
    }
}

/* ---- a scale and a min a column, 0..15: Q2_K ---- */

struct super2 {
    uint16_t hd, hmin;
    int sc[SEARCH_COLS], m[SEARCH_COLS];
};

static void set2(struct search_cols *c, const struct super2 *z, int dsc, int dm)
{
    const float d = kn_f16_to_f32(z->hd), dmin = kn_f16_to_f32(z->hmin);
    for (int k = 0; k < SEARCH_COLS; k++) {
        c->scale[k] = d * (float)clamp(z->sc[k] + dsc, 0, 15);
        c->min[k] = -(dmin * (float)clamp(z->m[k] + dm, 0, 15));
    }
}

/* Of the pairs of integers around z's, each column's of least error. Codes and errors are left in c. */
static void choose2(const struct search *s, struct search_cols *c, struct super2 *z)
{
    float best[SEARCH_COLS] = {0};
    int at[SEARCH_COLS] = {0};
    for (int t = 0; t < 9; t++) {
        const int i = (t + 4) % 9; /* the rounded pair first: a tie keeps it */
        set2(c, z, i / 3 - 1, i % 3 - 1);
        s->affine_error(c, 3);
        for (int k = 0; k < SEARCH_COLS; k++)
            if (t == 0 || c->error[k] < best[k]) best[k] = c->error[k], at[k] = i;
    }
    for (int k = 0; k < SEARCH_COLS; k++) {
        z->sc[k] = clamp(z->sc[k] + at[k] / 3 - 1, 0, 15);
        z->m[k] = clamp(z->m[k] + at[k] % 3 - 1, 0, 15);
    }
    set2(c, z, 0, 0);
    s->affine_code(c, 3);
}

/* The two f16 scales that suit the integers and codes best: x ~ d (sc q) - dmin m. Neither may be negative.
 */
static void solve2(const struct search_cols *c, struct super2 *z)
{
    float aa = 0, ab = 0, bb = 0, xa = 0, xb = 0;
    for (int k = 0; k < SEARCH_COLS; k++) {
        float ww = 0, wq = 0, wqq = 0, wx = 0, wxq = 0;
        for (int l = 0; l < c->len; l++) {
            const float w = c->w[l][k], q = (float)c->code[l][k], u = w * q;
            ww += w, wq += u, wqq += u * q, wx += w * c->x[l][k], wxq += u * c->x[l][k];
        }
        const float sc = (float)z->sc[k], m = (float)z->m[k];
        aa += sc * sc * wqq, ab -= sc * m * wq, bb += m * m * ww, xa += sc * wxq, xb -= m * wx;
    }
    const float det = aa * bb - ab * ab;
    float d = aa > 0 ? xa / aa : 0, dmin = 0;
    if (det > 1e-6f * aa * bb) {
        const float e = (aa * xb - ab * xa) / det, f = (bb * xa - ab * xb) / det;
        if (e > 0 && f > 0) d = f, dmin = e;
    }
    search_round_f16(d > 0 && isfinite(d) ? d : 0, &z->hd);
    search_round_f16(isfinite(dmin) ? dmin : 0, &z->hmin);
}

void encode_k2(const struct search *s, const float *x, uint8_t *dst, int64_t n, const float *importance)
{
    struct search_cols c = {.len = 16};
    for (int64_t i = 0; i < n; i += 256, dst += 84) {
        struct super2 z, best = {0};
        float scale[SEARCH_COLS], min[SEARCH_COLS], top = 0, low = 0, least = 0;
        search_load(&c, x + i, importance ? importance + i : NULL, SEARCH_COLS);
        if (!importance) encode_weigh(&c, false, 16);
        s->affine(&c, 3, true);
        for (int k = 0; k < SEARCH_COLS; k++) {
            scale[k] = c.scale[k], min[k] = -c.min[k];
            top = scale[k] > top ? scale[k] : top;
            low = min[k] > low ? min[k] : low;
        }
        search_round_f16(top / 15.0f, &z.hd);
        search_round_f16(low / 15.0f, &z.hmin);
        for (int t = 0; t < TURNS; t++) {
            const float d = kn_f16_to_f32(z.hd), dmin = kn_f16_to_f32(z.hmin);
            for (int k = 0; k < SEARCH_COLS; k++) {
                z.sc[k] = d > 0 ? round_to(scale[k] / d, 0, 15) : 0;
                z.m[k] = dmin > 0 ? round_to(min[k] / dmin, 0, 15) : 0;
            }
            choose2(s, &c, &z);
            float e = 0;
            for (int k = 0; k < SEARCH_COLS; k++) e += c.error[k];
            if (t == 0 || e < least) least = e, best = z;
            solve2(&c, &z);
        }
        set2(&c, &best, 0, 0);
        s->affine_code(&c, 3);
        for (int k = 0; k < 16; k++) dst[k] = (uint8_t)(best.sc[k] | best.m[k] << 4);
        pack_two(&c, dst + 16);
        put_u16(dst + 80, best.hd);
        put_u16(dst + 82, best.hmin);
    }
}
