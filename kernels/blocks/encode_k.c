/* encode_k.c - Q4_K, Q5_K and Q6_K: super-blocks of 256 values with quantised scales.
 *
 * Three steps. Each column gets its own best scale and min (search.inc.h). The super-block's f16 scale
 * follows from the largest, and the columns' scales become integers. Then, because an integer scale is not
 * the one the codes were chosen for, the integers around it are tried with the error they really give, and
 * codes are rounded against the scales as they will be read. */
#include "encode.h"

#include <math.h>

void encode_weigh(struct search_cols *c, bool importance, int cols_a_block)
{
    float ms[SEARCH_COLS];
    for (int k = 0; k < SEARCH_COLS; k++) ms[k] = 0;
    for (int l = 0; l < c->len; l++)
        for (int k = 0; k < SEARCH_COLS; k++) ms[k] += c->x[l][k] * c->x[l][k];
    if (!importance) {
        for (int k = 0; k < SEARCH_COLS; k++) ms[k] = sqrtf(ms[k] / (float)c->len);
        for (int l = 0; l < c->len; l++)
            for (int k = 0; k < SEARCH_COLS; k++) c->w[l][k] = ms[k] + fabsf(c->x[l][k]);
        return;
    }
    for (int b = 0; b < SEARCH_COLS; b += cols_a_block) {
        float sum = 0;
        for (int k = b; k < b + cols_a_block; k++) sum += ms[k];
        for (int k = b; k < b + cols_a_block; k++) ms[k] = 2 * sum / (float)(c->len * cols_a_block);
    }
    for (int l = 0; l < c->len; l++)
        for (int k = 0; k < SEARCH_COLS; k++) c->w[l][k] *= sqrtf(ms[k] + c->x[l][k] * c->x[l][k]);
}

static int nearest(float f, int top)
{
    const int q = (int)(f + 0.5f); /* f >= 0 */
    return q > top ? top : q;
}

struct super45 {
    float d[SEARCH_COLS], dmin[SEARCH_COLS]; /* as read back, of each column's super-block */
    int sc[SEARCH_COLS], m[SEARCH_COLS];
    uint16_t hd[SEARCH_COLS / 8], hmin[SEARCH_COLS / 8];
};

static void set45(struct search_cols *c, const struct super45 *z, int dsc, int dm)
{
    for (int k = 0; k < SEARCH_COLS; k++) {
        const int sc = z->sc[k] + dsc, m = z->m[k] + dm;
        c->scale[k] = z->d[k] * (float)(sc < 0 ? 0 : sc > 63 ? 63 : sc);
        c->min[k] = -(z->dmin[k] * (float)(m < 0 ? 0 : m > 63 ? 63 : m));
    }
}

/* Try the integer scales and mins around the rounded ones, keep the pair of least error in every column. */
static void refine45(const struct search *s, struct search_cols *c, struct super45 *z, int top)
{
    float best[SEARCH_COLS] = {0};
    int at[SEARCH_COLS] = {0};
    for (int t = 0; t < 9; t++) {
        const int i = (t + 4) % 9; /* the rounded pair first: a tie keeps it */
        set45(c, z, i / 3 - 1, i % 3 - 1);
        s->affine_error(c, top);
        for (int k = 0; k < SEARCH_COLS; k++)
            if (t == 0 || c->error[k] < best[k]) {
                best[k] = c->error[k];
                at[k] = i;
            }
    }
    for (int k = 0; k < SEARCH_COLS; k++) {
        const int sc = z->sc[k] + at[k] / 3 - 1, m = z->m[k] + at[k] % 3 - 1;
        z->sc[k] = sc < 0 ? 0 : sc > 63 ? 63 : sc;
        z->m[k] = m < 0 ? 0 : m > 63 ? 63 : m;
    }
}

static void pack45(const struct search_cols *c, const struct super45 *z, int b, uint8_t *dst, bool five)
{
    put_u16(dst, z->hd[b]);
    put_u16(dst + 2, z->hmin[b]);
    uint8_t *s = dst + 4, *qh = dst + 16, *q = dst + (five ? 48 : 16);
    for (int j = 0; j < 4; j++) {
        const int lo = 8 * b + j, hi = lo + 4;
        s[j] = (uint8_t)(z->sc[lo] | (z->sc[hi] >> 4) << 6);
        s[j + 4] = (uint8_t)(z->m[lo] | (z->m[hi] >> 4) << 6);
        s[j + 8] = (uint8_t)((z->sc[hi] & 15) | (z->m[hi] & 15) << 4);
    }
    for (int l = 0; l < 32; l++) {
        const uint8_t *code = &c->code[l][8 * b];
        unsigned high = 0;
        for (int j = 0; j < 8; j++) high |= (unsigned)(code[j] >> 4) << j;
        for (int j = 0; j < 4; j++)
            q[32 * j + l] = (uint8_t)((code[2 * j] & 15) | (code[2 * j + 1] & 15) << 4);
        if (five) qh[l] = (uint8_t)high;
    }
}

void encode_k45(const struct search *s, const float *x, uint8_t *dst, int64_t n, const float *importance,
                bool five)
{
    const int top = five ? 31 : 15;
    struct search_cols c = {.len = 32};
    for (int64_t i = 0; i < n; i += 512) {
        const int blocks = n - i >= 512 ? 2 : 1;
        search_load(&c, x + i, importance ? importance + i : NULL, 8 * blocks);
        encode_weigh(&c, importance != NULL, 8);
        s->affine(&c, top, true);
        struct super45 z;
        for (int b = 0; b < 2; b++) {
            float scale = 0, min = 0;
            for (int k = 8 * b; k < 8 * b + 8; k++) {
                scale = c.scale[k] > scale ? c.scale[k] : scale;
                min = -c.min[k] > min ? -c.min[k] : min;
            }
            const float d = search_round_f16(scale / 63.0f, &z.hd[b]),
                        dmin = search_round_f16(min / 63.0f, &z.hmin[b]);
            for (int k = 8 * b; k < 8 * b + 8; k++) {
                z.d[k] = d;
                z.dmin[k] = dmin;
                z.sc[k] = d > 0 ? nearest(c.scale[k] / d, 63) : 0;
                z.m[k] = dmin > 0 ? nearest(-c.min[k] / dmin, 63) : 0;
            }
        }
        refine45(s, &c, &z, top);
        set45(&c, &z, 0, 0);
        s->affine_code(&c, top);
        for (int b = 0; b < blocks; b++, dst += five ? 176 : 144) pack45(&c, &z, b, dst, five);
    }
}

static void pack6(const struct search_cols *c, const int *sc, uint16_t h, uint8_t *dst)
{
    uint8_t *ql = dst, *qh = dst + 128;
    for (int half = 0; half < 2; half++, ql += 64, qh += 32)
        for (int l = 0; l < 32; l++) {
            const uint8_t *code =
                &c->code[l % 16][8 * half + l / 16]; /* columns two apart are 32 values apart */
            const unsigned a = code[0], b = code[2], e = code[4], f = code[6];
            ql[l] = (uint8_t)((a & 15) | (e & 15) << 4);
            ql[l + 32] = (uint8_t)((b & 15) | (f & 15) << 4);
            qh[l] = (uint8_t)(a >> 4 | b >> 4 << 2 | e >> 4 << 4 | f >> 4 << 6);
        }
    for (int k = 0; k < 16; k++) dst[192 + k] = (uint8_t)(int8_t)sc[k];
    put_u16(dst + 208, h);
}

void encode_k6(const struct search *s, const float *x, uint8_t *dst, int64_t n, const float *importance)
{
    struct search_cols c = {.len = 16};
    for (int64_t i = 0; i < n; i += 256, dst += 210) {
        search_load(&c, x + i, importance ? importance + i : NULL, SEARCH_COLS);
        if (!importance) encode_weigh(&c, false, 16);
        s->symmetric(&c, 32);
        float peak = 0;
        for (int k = 0; k < 16; k++) peak = fabsf(c.scale[k]) > fabsf(peak) ? c.scale[k] : peak;
        uint16_t h;
        int sc[16];
        const float d = search_round_f16(peak / -128.0f, &h);
        for (int k = 0; k < 16; k++) {
            const float f = d != 0 ? c.scale[k] / d : 0;
            const int q = (int)(f < 0 ? f - 0.5f : f + 0.5f);
            sc[k] = q < -128 ? -128 : q > 127 ? 127 : q;
            c.scale[k] = d * (float)sc[k];
        }
        s->symmetric_code(&c, 32);
        pack6(&c, sc, h, dst);
    }
}
