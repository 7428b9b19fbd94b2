/* encode_grid.c - IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS and IQ3_S, and MXFP4.
 *
 * A point is chosen among those near to what its values ask for: the number whose digits are the nearest
 * levels, or, where the grid lacks it, the points of the shortest lists by distance, by the weighted error
 * that they really give. Each run of 16 or 32 columns tries inverse scales around "largest value over largest
 * code", solves each for the scale exactly, and keeps the best; the super-block's f16 scale follows, and in
 * turns the runs' integers and points for it and the scale for those; the best turn is kept. Scalar code,
 * every operation rounded: the same bytes on every machine. */
#include "encode.h"
#include "grids.h"

#include <math.h>
#include <pthread.h>

#define NEAR 12 /* points that a number has in its list */
#define TURNS 3
#define TRIES 13

/* What a type's search wants: levels and, of each number, the points near it. */
struct near {
    const struct grid_kind *kind;
    const uint32_t *points;
    int base;                  /* levels */
    float half[8];             /* above half[l] the level is above l */
    uint16_t list[6561][NEAR]; /* of each number, the nearest first */
    uint8_t exact[6561];       /* the number is a point */
    float code[1024][8];       /* of the points, without sign */
};
static struct near nears[5];

static int level_at(uint32_t point, int i)
{
    return (int)(point >> (8 * (i % 4) + 4 * (i / 4)) & 15);
}

/* The NEAR points with the least distance from each number's codes; equal ones in order. */
static void make_lists(struct near *n)
{
    const int values = n->kind->values, numbers = n->base == 3 ? 6561 : 4096;
    for (int m = 0; m < numbers; m++) {
        float at[8], best[NEAR];
        uint16_t *list = n->list[m];
        int count = 0, rest = m;
        for (int i = 0; i < values; i++, rest /= n->base) at[i] = (float)n->kind->code[rest % n->base];
        for (int p = 0; p < n->kind->points; p++) {
            float d = 0;
            for (int i = 0; i < values; i++) d += (at[i] - n->code[p][i]) * (at[i] - n->code[p][i]);
            if (count == NEAR && !(d < best[NEAR - 1])) continue;
            int k = count < NEAR ? count++ : NEAR - 1;
            for (; k > 0 && d < best[k - 1]; k--) best[k] = best[k - 1], list[k] = list[k - 1];
            best[k] = d, list[k] = (uint16_t)p;
        }
        n->exact[m] = best[0] == 0;
    }
}

static void make_nears(void)
{
    static const uint32_t types[5] = {KN_IQ2_XXS, KN_IQ2_XS, KN_IQ2_S, KN_IQ3_XXS, KN_IQ3_S};
    for (int t = 0; t < 5; t++) {
        struct near *n = &nears[t];
        n->kind = grid_kind_of(types[t]);
        n->points = grid_points(types[t]);
        n->base = n->kind->values == 8 ? 3 : 8;
        for (int l = 0; l + 1 < n->base; l++)
            n->half[l] = 0.5f * (float)(n->kind->code[l] + n->kind->code[l + 1]);
        for (int p = 0; p < n->kind->points; p++)
            for (int i = 0; i < n->kind->values; i++)
                n->code[p][i] = (float)n->kind->code[level_at(n->points[p], i)];
        make_lists(n);
    }
}

static const struct near *near_of(uint32_t type)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_nears);
    for (int t = 0; t < 5; t++)
        if (nears[t].kind->type == type) return &nears[t];
    return NULL;
}

/* A super-block on its way: sizes and signs of its values, weights, and what is chosen. */
struct super_grid {
    float x[256], w[256]; /* sizes, where the sign bit says so below 0 */
    uint8_t signs[32];
    uint16_t point[64];
    uint8_t stored[16]; /* of each run: (scale - 1) / 2 */
};

/* Signs of 8 values; where they must be even in number and are not, that of the value whose flip costs least
 * by its weighted square is turned, and its size with it. */
static void take_signs(struct super_grid *z, const float *x, bool even)
{
    for (int i = 0; i < 32; i++) {
        unsigned bits = 0, count = 0;
        int least = 0;
        for (int j = 0; j < 8; j++) {
            const int k = 8 * i + j;
            const bool minus = x[k] < 0;
            z->x[k] = minus ? -x[k] : x[k];
            bits |= (unsigned)minus << j, count += minus;
            if (z->w[k] * z->x[k] * z->x[k] < z->w[8 * i + least] * z->x[8 * i + least] * z->x[8 * i + least])
                least = j;
        }
        if (even && count % 2) bits ^= 1u << least, z->x[8 * i + least] = -z->x[8 * i + least];
        z->signs[i] = (uint8_t)bits;
    }
}

/* The best point for the values at k, which are the codes times `scale`; adds to the sums of codes times
 * values, codes squared. Returns the error. */
static float choose_point(const struct near *n, const struct super_grid *z, int k, float scale, float inverse,
                          uint16_t *point, float *xc, float *cc)
{
    const int values = n->kind->values;
    int number = 0;
    for (int i = values; i-- > 0;) {
        const float v = z->x[k + i] * inverse;
        int level = 0;
        while (level + 1 < n->base && v > n->half[level]) level++;
        number = number * n->base + level;
    }
    const uint16_t *list = n->list[number];
    float best = INFINITY;
    int at = 0;
    for (int c = 0; c < (n->exact[number] ? 1 : NEAR); c++) {
        const float *code = n->code[list[c]];
        float e = 0;
        for (int i = 0; i < values; i++) {
            const float d = z->x[k + i] - scale * code[i];
            e += z->w[k + i] * d * d;
        }
        if (e < best) best = e, at = list[c];
    }
    *point = (uint16_t)at;
    for (int i = 0; i < values; i++) {
        const float c = n->code[at][i], wc = z->w[k + i] * c;
        *xc += wc * z->x[k + i], *cc += wc * c;
    }
    return best;
}

/* The points of run r for a scale. Returns the error; *solved: the scale that suits the points best, and
 * *gained by how much it would take off the weighted squares of the values. */
static float choose_run(const struct near *n, const struct super_grid *z, int r, float scale,
                        uint16_t *points, float *solved, float *gained)
{
    const int run = n->kind->runs, values = n->kind->values;
    const float inverse = scale > 0 ? 1.0f / scale : 0.0f;
    float e = 0, xc = 0, cc = 0;
    for (int i = 0; i < run / values; i++)
        e += choose_point(n, z, run * r + values * i, scale, isfinite(inverse) ? inverse : 0.0f, points + i,
                          &xc, &cc);
    *solved = xc > 0 && cc > 0 ? xc / cc : 0.0f;
    *gained = *solved * xc;
    return e;
}

/* The run's own best scale: the largest value at 0.7 to 1.3 of the largest code, or at one of the codes. */
static float search_run(const struct near *n, const struct super_grid *z, int r)
{
    const int run = n->kind->runs, top = n->kind->code[n->base - 1];
    uint16_t points[8];
    float peak = 0, best = 0, at = 0;
    for (int k = run * r; k < run * (r + 1); k++) peak = z->x[k] > peak ? z->x[k] : peak;
    if (!(peak > 0)) return 0;
    for (int t = 0; t < TRIES + n->base - 1; t++) {
        const float code =
            t < TRIES ? (float)top * (0.7f + 0.05f * (float)t) : (float)n->kind->code[t - TRIES];
        float solved, gained;
        choose_run(n, z, r, peak / code, points, &solved, &gained);
        if (gained > best) best = gained, at = solved;
    }
    return at;
}

/* Integers and points of all runs for the super-block's d; sums to solve it anew. Returns the error. */
static float choose_all(const struct near *n, struct super_grid *z, float d, const float *own, float *solved)
{
    const int run = n->kind->runs, per = run / n->kind->values;
    float sum = 0, xc = 0, cc = 0;
    for (int r = 0; r < 256 / run; r++) {
        const float ideal = d > 0 ? 0.5f * (own[r] / d - 1.0f) : 0.0f;
        const int base = ideal > 0 ? (ideal < 15 ? (int)(ideal + 0.5f) : 15) : 0;
        float best = INFINITY;
        for (int t = 0; t < 3; t++) {
            const int s = base + (t == 2 ? -1 : t);
            uint16_t points[8];
            float ignored[2];
            if (s < 0 || s > 15) continue;
            const float e = choose_run(n, z, r, d * (float)(2 * s + 1), points, ignored, ignored + 1);
            if (e < best) {
                best = e, z->stored[r] = (uint8_t)s;
                memcpy(z->point + per * r, points, (size_t)per * sizeof *points);
            }
        }
        sum += best;
    }
    for (int k = 0; k < 256; k++) {
        const float c =
            n->code[z->point[k / n->kind->values]][k % n->kind->values] * (float)(2 * z->stored[k / run] + 1);
        xc += z->w[k] * c * z->x[k], cc += z->w[k] * c * c;
    }
    *solved = xc > 0 && cc > 0 ? xc / cc : 0.0f;
    return sum;
}

/* ---- bytes ---- */

static void pack_2(uint32_t type, const struct super_grid *z, uint8_t *b)
{
    for (int i = 0; i < 32; i++) {
        const unsigned p = z->point[i];
        if (type == KN_IQ2_XXS)
            b[2 + 8 * (i / 4) + i % 4] = (uint8_t)p;
        else if (type == KN_IQ2_XS)
            put_u16(b + 2 + 2 * i, (uint16_t)(p | (unsigned)(z->signs[i] & 127) << 9));
        else
            b[2 + i] = (uint8_t)p, b[34 + i] = z->signs[i], b[66 + i / 4] |= (uint8_t)(p >> 8 << 2 * (i % 4));
    }
    if (type == KN_IQ2_XXS)
        for (int r = 0; r < 8; r++) {
            uint32_t w = (uint32_t)z->stored[r] << 28;
            for (int i = 0; i < 4; i++) w |= (uint32_t)(z->signs[4 * r + i] & 127) << 7 * i;
            put_u32(b + 6 + 8 * r, w);
        }
    else
        for (int r = 0; r < 16; r++)
            b[(type == KN_IQ2_XS ? 66 : 74) + r / 2] |= (uint8_t)(z->stored[r] << 4 * (r % 2));
}

static void pack_3(uint32_t type, const struct super_grid *z, uint8_t *b)
{
    for (int i = 0; i < 64; i++) b[2 + i] = (uint8_t)z->point[i];
    if (type == KN_IQ3_XXS) {
        for (int r = 0; r < 8; r++) {
            uint32_t w = (uint32_t)z->stored[r] << 28;
            for (int i = 0; i < 4; i++) w |= (uint32_t)(z->signs[4 * r + i] & 127) << 7 * i;
            put_u32(b + 66 + 4 * r, w);
        }
        return;
    }
    for (int i = 0; i < 64; i++) b[66 + i / 8] |= (uint8_t)(z->point[i] >> 8 << i % 8);
    for (int i = 0; i < 32; i++) b[74 + i] = z->signs[i];
    for (int r = 0; r < 8; r++) b[106 + r / 2] |= (uint8_t)(z->stored[r] << 4 * (r % 2));
}

/* Weights: importance times the root of (2 mean squares of the super-block + x^2), or |x| and the
 * super-block's root mean square together, as of the K types. */
static void weigh(struct super_grid *z, const float *x, const float *importance)
{
    float squares = 0;
    for (int k = 0; k < 256; k++) squares += x[k] * x[k];
    const float mean = squares / 256.0f, rms = sqrtf(mean);
    for (int k = 0; k < 256; k++)
        z->w[k] = importance ? importance[k] * sqrtf(2.0f * mean + x[k] * x[k]) : rms + fabsf(x[k]);
}

static void encode_block(const struct near *n, const float *x, uint8_t *b, const float *importance)
{
    const struct grid_kind *kind = n->kind;
    const bool even = kind->type == KN_IQ2_XXS || kind->type == KN_IQ2_XS || kind->type == KN_IQ3_XXS;
    const int runs = 256 / kind->runs;
    struct super_grid z, best = {0};
    float own[16], top = 0, least = INFINITY, unit = 1.0f / (float)(1 << kind->shift);
    uint16_t h, best_h = 0;
    weigh(&z, x, importance);
    take_signs(&z, x, even);
    for (int k = 0; k < 256; k++) z.x[k] /= unit; /* codes times scales, whole numbers times d */
    for (int r = 0; r < runs; r++) own[r] = search_run(n, &z, r), top = own[r] > top ? own[r] : top;
    float d = search_round_f16(top / 31.0f, &h);
    for (int t = 0; t < TURNS; t++) {
        float solved;
        const float e = choose_all(n, &z, d, own, &solved);
        if (e < least) least = e, best = z, best_h = h;
        d = search_round_f16(isfinite(solved) ? solved : 0.0f, &h);
    }
    memset(b, 0, kn_type_info(kind->type)->bytes);
    put_u16(b, best_h);
    kind->values == 8 ? pack_2(kind->type, &best, b) : pack_3(kind->type, &best, b);
}

void encode_grid(uint32_t type, const float *x, uint8_t *dst, int64_t n, const float *importance)
{
    const struct near *near = near_of(type);
    const size_t bytes = kn_type_info(type)->bytes;
    for (int64_t i = 0; i < n; i += 256, dst += bytes)
        encode_block(near, x + i, dst, importance ? importance + i : NULL);
}

/* ---- MXFP4 ---- */

/* The code of the value nearest to v, in units of the scale. */
static unsigned nearest_mxfp4(float v)
{
    const float size = fabsf(v);
    unsigned code = 0;
    for (unsigned i = 1; i < 8; i++)
        if (size > 0.5f * (float)(mxfp4_values[i - 1] + mxfp4_values[i])) code = i;
    return v < 0 && code ? code | 8 : code;
}

/* Of the powers of two around the one where the largest value is in range, the one of least error. */
void encode_mxfp4(const float *x, uint8_t *dst, int64_t n, const float *importance)
{
    for (int64_t b = 0; b < n; b += 32, dst += 17) {
        float peak = 0, least = INFINITY;
        for (int i = 0; i < 32; i++) peak = fabsf(x[b + i]) > peak ? fabsf(x[b + i]) : peak;
        memset(dst, 0, 17);
        if (!(peak > 0)) continue;
        const int middle = ilogbf(peak) - 3 + 128; /* 8 to 16 units */
        for (int e = middle - 1; e <= middle + 1; e++) {
            if (e < 0 || e > 254) continue;
            const uint32_t u = mxfp4_scale((uint32_t)e);
            uint8_t q[17] = {(uint8_t)e};
            float d, sum = 0;
            memcpy(&d, &u, 4);
            for (int i = 0; i < 32; i++) {
                const unsigned code = nearest_mxfp4(x[b + i] / d);
                const float off = x[b + i] / peak - d / peak * (float)mxfp4_values[code];
                sum += (importance ? importance[b + i] : 1.0f) * off * off;
                q[1 + i % 16] |= (uint8_t)(code << 4 * (i / 16));
            }
            if (sum < least) least = sum, memcpy(dst, q, 17);
        }
    }
}
