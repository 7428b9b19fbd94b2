/* test_many.c - products of more than 64 rows on CUDA, and the speed of a prompt.
 *
 * usage: test_many [--small]        every weight type against double precision, panels, extremes, the same
 * bits again test_many --prompt MODEL   a prompt of 512 and of 4096 tokens: time by operation, share of the
 * library's product, variants Prints "ok   gpu/..." or "FAIL gpu/..." a case; exit 1 if any failed, 5 if
 * there is no device. */
#include "../../block_scales.h"
#include "../../../common/run/session.h"
#include "../../../kernels/cuda/core/cuda.h"
#include "../../../kernels/blocks/grids.h"
#include "../forms.h"
#include "../harness.h"

static struct kn_backend *gpu;

/* ---- a weight, and what it decodes to ---- */

struct matrix {
    struct kn_weight w;
    float *y; /* [n_out, n_in] */
    int n_in, n_out;
};

static struct matrix make_matrix(uint32_t type, int n_in, int n_out, float sigma)
{
    const struct kn_type_info *t = kn_type_info(type);
    size_t row = kn_row_bytes(type, n_in), blocks = (size_t)n_in / t->block;
    unsigned char *data = malloc(row * (size_t)n_out);
    struct matrix m = {.y = malloc((size_t)n_in * (size_t)n_out * 4), .n_in = n_in, .n_out = n_out};
    float *x = malloc((size_t)n_in * 4);
    for (int i = 0; i < n_out; i++) {
        unsigned char *at = data + (size_t)i * row;
        for (int k = 0; k < n_in; k++) x[k] = gaussian(sigma);
        if (type == KN_F32) {
            memcpy(at, x, row);
        } else if (t->can_encode) {
            if (kn_encode_row(type, x, at, n_in, NULL)) abort();
        } else { /* any codes, scales of the size of sigma */
            const float parts = type == KN_MXFP4 ? 4 : type == KN_IQ1_S || type == KN_IQ1_M ? 6 : 64;
            for (size_t b = 0; b < blocks; b++) {
                for (uint32_t j = 0; j < t->bytes; j++) at[b * t->bytes + j] = (unsigned char)rnd();
                block_set_scales(type, at + b * t->bytes, sigma / parts, 0);
            }
        }
        if (kn_decode_row(type, at, m.y + (size_t)i * (size_t)n_in, n_in)) abort();
    }
    must(gpu, "weight_load", kn_op(gpu)->weight_load(gpu, &m.w, type, n_in, n_out, data, KN_USE_LINEAR));
    free(data), free(x);
    return m;
}
static void drop_matrix(struct matrix *m)
{
    kn_op(gpu)->weight_free(gpu, &m->w);
    free(m->y);
}

/* The row's inputs as the operation sees them, in double. */
static void normed(double *y, const float *x, const float *norm, int n)
{
    double ss = 0;
    for (int k = 0; k < n; k++) ss += (double)x[k] * x[k];
    for (int k = 0; k < n; k++) y[k] = norm ? x[k] * norm[k] / sqrt(ss / n + 1e-6) : x[k];
}
/* W y, and the 2-norm of its terms. */
static double product(const struct matrix *m, int o, const double *y, double *size)
{
    double sum = 0, square = 0;
    for (int k = 0; k < m->n_in; k++) {
        double t = y[k] * m->y[(size_t)o * (size_t)m->n_in + (size_t)k];
        sum += t;
        square += t * t;
    }
    *size = sqrt(square);
    return sum;
}

/* ---- operations against double precision ---- */

struct shape {
    int n_in, n_out, n;
};
/* Rows of x: normal, but 3 huge, 5 tiny, 9 zero, and 7 with a NaN. */
static float *make_rows(int n, int n_in)
{
    float *x = malloc((size_t)n * (size_t)n_in * 4);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < n_in; k++)
            x[(size_t)i * (size_t)n_in + (size_t)k] = i == 9 ? 0
                                                             : gaussian(i == 3   ? 1e7f
                                                                        : i == 5 ? 1e-9f
                                                                                 : 1.0f);
    x[7 * (size_t)n_in + 2] = NAN;
    return x;
}

/* Two distances from double precision, of the terms' 2-norm.
 *
 * ROUNDING, from W x itself: each factor of a term is rounded to the 11 bits of f16, an error uniform in half
 * a unit of the last place: 2^-11 / sqrt(3) of it root mean square where all significands lie at 1, less
 * elsewhere; two factors, sqrt(2). A sum of many is normal, and the largest of a case's 1.5 M outputs is 5.2
 * of its deviation: 2^-11 / sqrt(3) * sqrt(2) * 5.2 = 2.1e-3.
 *
 * SUMS, from the product of the rounded factors: only the tensor core's sums are left, which cut each of n_in
 * / 16 steps at 2^-25 of the largest of its 17 terms, 2^-21 together; the largest is a partial sum, hardly
 * more than 4 times the 2-norm. */
#define ROUNDING 2.1e-3
static double sums_limit(int n_in)
{
    return n_in / 16.0 * 4 * 0x1p-21;
}

/* To 11 bits, half to even, as f16 does where nothing is subnormal. */
static double rounded(double v)
{
    int e;
    if (v == 0 || !isfinite(v)) return v;
    double m = frexp(v, &e);
    return ldexp(nearbyint(ldexp(m, 11)), e - 11);
}
static void round_all(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) x[i] = (float)rounded(x[i]);
}

static double worst_of(const struct matrix *m, const float *x, const float *norm, const float *out,
                       const float *before, int n, bool *nan_right)
{
    double *y = malloc((size_t)m->n_in * sizeof *y), worst = 0, size;
    for (int i = 0; i < n; i++) {
        normed(y, x + (size_t)i * (size_t)m->n_in, norm, m->n_in);
        for (int o = 0; o < m->n_out; o++) {
            float got = out[(size_t)i * (size_t)m->n_out + (size_t)o];
            if (i == 7) {
                *nan_right &= isnan(got);
                continue;
            }
            double want = product(m, o, y, &size),
                   was = before ? before[(size_t)i * (size_t)m->n_out + (size_t)o] : 0;
            /* the sum with the residual rounds to a float */
            double err = fabs(got - want - was) - 0x1p-22 * fabs(was);
            double rel = err <= 0 ? 0 : err / (size + 1e-30);
            if (!(rel <= worst)) worst = rel;
        }
    }
    free(y);
    return worst;
}

/* In passes of many_tuning.rows: by tiles where the device has them, they know the type and the rows are few
 * enough, else by the library; a rest too short for both by the row kernels. */
static bool by_many(const struct forms *before, uint32_t type, int n)
{
    const int most = cuda_is_early(gpu) && !grid_has(type) && type != KN_MXFP4 ? many_tuning.tile_rows : 0,
              rest = n % many_tuning.rows;
    long tiles = 0, library = 0;
    *(many_tuning.rows <= most ? &tiles : &library) += n / many_tuning.rows;
    if (rest > 64) ++*(rest <= most ? &tiles : &library);
    const long others = forms_range(gpu, before, CUDA_PRODUCT_GENERIC, CUDA_PRODUCT_WIDE);
    return forms_since(gpu, before, CUDA_PRODUCT_TILES) == tiles &&
           forms_since(gpu, before, CUDA_PRODUCT_LIBRARY) == library &&
           (rest > 0 && rest <= 64 ? others > 0 : others == 0);
}
static const char *way(void)
{
    return many_tuning.tile_rows ? "" : ", library";
}

static void check_linear(uint32_t type, const struct shape *s)
{
    struct matrix m = make_matrix(type, s->n_in, s->n_out, 0.03f);
    size_t outs = (size_t)s->n * (size_t)s->n_out;
    float *x = make_rows(s->n, s->n_in), *r = malloc(outs * 4);
    for (size_t i = 0; i < outs; i++) r[i] = gaussian(2.0f);
    float *dx = put(gpu, x, (size_t)s->n * (size_t)s->n_in * 4), *dout = put(gpu, NULL, outs * 4);
    must(gpu, "reserve", kn_op(gpu)->reserve(gpu, s->n, s->n_in, 8, 1, 64));
    const struct forms before = forms_now(gpu);
    must(gpu, "linear", kn_op(gpu)->linear(gpu, dout, &m.w, dx, s->n, false));
    const bool taken = by_many(&before, type, s->n);
    float *out = get(gpu, dout, outs * 4);
    must(gpu, "linear", kn_op(gpu)->linear(gpu, dout, &m.w, dx, s->n, false));
    float *again = get(gpu, dout, outs * 4);
    must(gpu, "upload", kn_op(gpu)->upload(gpu, dout, r, outs * 4));
    must(gpu, "linear", kn_op(gpu)->linear(gpu, dout, &m.w, dx, s->n, true));
    float *sum = get(gpu, dout, outs * 4);
    bool nan_right = true;
    double a = worst_of(&m, x, NULL, out, NULL, s->n, &nan_right),
           b = worst_of(&m, x, NULL, sum, r, s->n, &nan_right);
    round_all(m.y, (size_t)m.n_in * (size_t)m.n_out);
    round_all(x, (size_t)s->n * (size_t)s->n_in);
    double c = worst_of(&m, x, NULL, out, NULL, s->n, &nan_right), limit = sums_limit(s->n_in);
    bool same = !memcmp(out, again, outs * 4);
    verdict(a <= ROUNDING && b <= ROUNDING && c <= limit && nan_right && same && taken,
            "many %s [%d, %d] x %d%s: error %.2g, added %.2g of %.2g; of the sums %.2g of %.2g%s%s%s",
            kn_type_info(type)->name, s->n_out, s->n_in, s->n, way(), a, b, ROUNDING, c, limit,
            nan_right ? "" : ", NaN lost", same ? "" : ", other bits again",
            taken ? "" : ", not by the form that it is for");
    free(x), free(r), free(out), free(again), free(sum);
    drop(gpu, dx), drop(gpu, dout);
    drop_matrix(&m);
}

static void check_norm(uint32_t type, uint32_t other, const struct shape *s)
{
    struct matrix m[3] = {make_matrix(type, s->n_in, s->n_out, 0.03f),
                          make_matrix(type, s->n_in, s->n_out, 0.2f),
                          make_matrix(other, s->n_in, s->n_out / 2, 0.05f)};
    float *x = make_rows(s->n, s->n_in), *norm = malloc((size_t)s->n_in * 4);
    for (int k = 0; k < s->n_in; k++) norm[k] = 1.0f + gaussian(0.3f);
    float *dx = put(gpu, x, (size_t)s->n * (size_t)s->n_in * 4), *dn = put(gpu, norm, (size_t)s->n_in * 4),
          *dout[3], *out[3];
    const struct kn_weight *w[3] = {&m[0].w, &m[1].w, &m[2].w};
    must(gpu, "reserve", kn_op(gpu)->reserve(gpu, s->n, s->n_in, 8, 1, 64));
    for (int j = 0; j < 3; j++) dout[j] = put(gpu, NULL, (size_t)s->n * (size_t)m[j].n_out * 4);
    must(gpu, "norm_linear", kn_op(gpu)->norm_linear(gpu, dout, w, 3, dx, dn, 1e-6f, s->n));
    double worst = 0;
    bool nan_right = true;
    for (int j = 0; j < 3; j++) {
        out[j] = get(gpu, dout[j], (size_t)s->n * (size_t)m[j].n_out * 4);
        worst = fmax(worst, worst_of(&m[j], x, norm, out[j], NULL, s->n, &nan_right));
    }
    verdict(worst <= ROUNDING && nan_right, "many norm_linear %s, %s [%d, %d] x %d%s: error %.2g of %.2g%s",
            kn_type_info(type)->name, kn_type_info(other)->name, s->n_out, s->n_in, s->n, way(), worst,
            ROUNDING, nan_right ? "" : ", NaN lost");
    /* gated, of the first two */
    for (int act = 0; act < 2; act++) {
        must(gpu, "norm_gated",
             kn_op(gpu)->norm_gated(gpu, dout[0], w[0], w[1], dx, dn, 1e-6f, (enum kn_act)act, s->n));
        float *g = get(gpu, dout[0], (size_t)s->n * (size_t)s->n_out * 4);
        double *y = malloc((size_t)s->n_in * sizeof *y), top = 0;
        for (int i = 0; i < s->n; i++) {
            normed(y, x + (size_t)i * (size_t)s->n_in, norm, s->n_in);
            for (int o = 0; o < s->n_out && i != 7; o++) {
                double size[2], a = product(&m[0], o, y, &size[0]), u = product(&m[1], o, y, &size[1]);
                double f = act ? 0.5 * a * (1 + tanh(0.7978845608028654 * (a + 0.044715 * a * a * a)))
                               : a / (1 + exp(-a));
                /* an error of a moves the activation by at most 1.13 times it */
                double tol =
                    ROUNDING * (1.13 * size[0] * fabs(u) + fabs(f) * size[1]) + 1e-5 * (fabs(f * u) + 1e-3);
                double err = fabs(g[(size_t)i * (size_t)s->n_out + (size_t)o] - f * u) / tol;
                if (!(err <= top)) top = err;
            }
        }
        verdict(top <= 1, "many norm_gated %s, %s [%d, %d] x %d%s: %.2g of the tolerance",
                act ? "gelu" : "silu", kn_type_info(type)->name, s->n_out, s->n_in, s->n, way(), top);
        free(g), free(y);
    }
    for (int j = 0; j < 3; j++) free(out[j]), drop(gpu, dout[j]), drop_matrix(&m[j]);
    free(x), free(norm), drop(gpu, dx), drop(gpu, dn);
}

/* A row's bits do not depend on the number of rows of a call, nor on the tiles that took it. */
static void check_bits(uint32_t type, int n_in, int n_out)
{
    static const int rows[] = {65, 100, 128, 300, 512, 600};
    const int n = 1000;
    const struct many_tuning usual = many_tuning;
    struct matrix m = make_matrix(type, n_in, n_out, 0.03f);
    float *x = malloc((size_t)n * (size_t)n_in * 4);
    for (size_t i = 0; i < (size_t)n * (size_t)n_in; i++) x[i] = gaussian(1.0f);
    float *dx = put(gpu, x, (size_t)n * (size_t)n_in * 4),
          *dout = put(gpu, NULL, (size_t)n * (size_t)n_out * 4);
    must(gpu, "reserve", kn_op(gpu)->reserve(gpu, n, n_in, 8, 1, 64));
    many_tuning.tile_rows = n;
    must(gpu, "linear", kn_op(gpu)->linear(gpu, dout, &m.w, dx, n, false));
    float *all = get(gpu, dout, (size_t)n * (size_t)n_out * 4);
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        int others = 0;
        for (int tile = -1; tile < many_tile_kinds; tile++) {
            many_tuning.tile = tile;
            must(gpu, "upload", kn_op(gpu)->upload(gpu, dout, x, (size_t)rows[k] * (size_t)n_out * 4));
            must(gpu, "linear", kn_op(gpu)->linear(gpu, dout, &m.w, dx, rows[k], false));
            float *some = get(gpu, dout, (size_t)rows[k] * (size_t)n_out * 4);
            others += memcmp(some, all, (size_t)rows[k] * (size_t)n_out * 4) != 0;
            free(some);
        }
        many_tuning.tile = -1;
        verdict(!others, "many bits %s [%d, %d], %d rows: %d of %d kinds of tiles give others than of %d",
                kn_type_info(type)->name, n_out, n_in, rows[k], others, many_tile_kinds + 1, n);
    }
    many_tuning = usual;
    free(all), free(x), drop(gpu, dx), drop(gpu, dout), drop_matrix(&m);
}

/* Gates and ups have the same bits by every kind of tiles. */
static void check_gated_bits(uint32_t type, int n_in, int n_out, int n)
{
    const struct many_tuning usual = many_tuning;
    struct matrix m[2] = {make_matrix(type, n_in, n_out, 0.03f), make_matrix(type, n_in, n_out, 0.2f)};
    const size_t in = (size_t)n * (size_t)n_in * 4, outs = (size_t)n * (size_t)n_out * 4;
    float *x = malloc(in), *first = NULL;
    for (size_t i = 0; i < in / 4; i++) x[i] = gaussian(1.0f);
    float *dx = put(gpu, x, in), *dout = put(gpu, NULL, outs);
    int others = 0;
    must(gpu, "reserve", kn_op(gpu)->reserve(gpu, n, n_in, 8, 1, 64));
    many_tuning.tile_rows = n;
    for (int tile = -1; tile < many_tile_kinds; tile++) {
        many_tuning.tile = tile;
        must(gpu, "norm_gated",
             kn_op(gpu)->norm_gated(gpu, dout, &m[0].w, &m[1].w, dx, NULL, 1e-6f, KN_ACT_SILU, n));
        float *some = get(gpu, dout, outs);
        others += first && memcmp(some, first, outs) != 0;
        if (first)
            free(some);
        else
            first = some;
    }
    verdict(!others, "many bits of gates and ups, %s [%d, %d], %d rows: %d of %d kinds of tiles give others",
            kn_type_info(type)->name, n_out, n_in, n, others, many_tile_kinds + 1);
    many_tuning = usual;
    free(x), free(first), drop(gpu, dx), drop(gpu, dout), drop_matrix(&m[0]), drop_matrix(&m[1]);
}

/* Up to many_tuning.wide_rows rows of K types have the bits of rows that come in calls of 64; beside another
 * type they do not go that way. */
static void check_wide(uint32_t type, uint32_t other, int n_in, int n_out, int n)
{
    struct matrix m[3] = {make_matrix(type, n_in, n_out, 0.03f), make_matrix(type, n_in, n_out, 0.2f),
                          make_matrix(other, n_in, n_out, 0.05f)};
    const struct kn_weight *w[] = {&m[0].w, &m[1].w, &m[2].w};
    const size_t outs = (size_t)n * (size_t)n_out;
    const bool rows = kn_type_info(other)->block == 256 && cuda_is_early(gpu);
    float *x = make_rows(n, n_in), *r = malloc(outs * 4), *norm = malloc((size_t)n_in * 4), *got[2][5];
    for (size_t i = 0; i < outs; i++) r[i] = gaussian(2.0f);
    for (int k = 0; k < n_in; k++) norm[k] = 1.0f + gaussian(0.3f);
    float *dx = put(gpu, x, (size_t)n * (size_t)n_in * 4), *dn = put(gpu, norm, (size_t)n_in * 4), *dout[5];
    long forms[2];
    must(gpu, "reserve", kn_op(gpu)->reserve(gpu, n, n_in, 8, 1, 64));
    for (int j = 0; j < 5; j++) dout[j] = put(gpu, r, outs * 4);
    for (int how = 0; how < 2; how++) { /* at once, in calls of up to 64 rows */
        const struct forms before = forms_now(gpu);
        for (int i = 0, step = how ? 64 : n; i < n; i += step) {
            const int some = n - i < step ? n - i : step;
            float *const at = dx + (size_t)i * (size_t)n_in, *to[5];
            for (int j = 0; j < 5; j++) to[j] = dout[j] + (size_t)i * (size_t)n_out;
            must(gpu, "norm_linear", kn_op(gpu)->norm_linear(gpu, to, w, 3, at, dn, 1e-6f, some));
            must(gpu, "norm_gated",
                 kn_op(gpu)->norm_gated(gpu, to[3], w[0], w[1], at, dn, 1e-6f, KN_ACT_SILU, some));
            must(gpu, "linear", kn_op(gpu)->linear(gpu, to[4], w[0], at, some, true));
        }
        forms[how] = forms_since(gpu, &before, CUDA_PRODUCT_WIDE);
        for (int j = 0; j < 5; j++) {
            got[how][j] = get(gpu, dout[j], outs * 4);
            must(gpu, "upload", kn_op(gpu)->upload(gpu, dout[j], r, outs * 4));
        }
    }
    int others = 0;
    for (int j = 0; j < 5; j++) others += memcmp(got[0][j], got[1][j], outs * 4) != 0;
    const bool taken = cuda_is_early(gpu) ? forms[0] >= (rows ? 3 : 2) : forms[0] == 0;
    verdict((rows ? others == 0 : others >= 3) && taken,
            "many %s and %s [%d, %d] x %d: %d of 5 results other than of calls of 64 rows, expected %s%s",
            kn_type_info(type)->name, kn_type_info(other)->name, n_out, n_in, n, others,
            rows ? "none" : "what is of another form", taken ? "" : ", not by the form that it is for");
    for (int j = 0; j < 5; j++) drop(gpu, dout[j]), free(got[0][j]), free(got[1][j]);
    for (int j = 0; j < 3; j++) drop_matrix(&m[j]);
    free(x), free(r), free(norm), drop(gpu, dx), drop(gpu, dn);
}

static const uint32_t types[] = {KN_F32,   KN_F16,     KN_BF16,   KN_Q8_0,  KN_Q4_0,    KN_Q4_1,
                                 KN_Q5_0,  KN_Q5_1,    KN_Q4_K,   KN_Q5_K,  KN_Q6_K,    KN_Q2_K,
                                 KN_Q3_K,  KN_IQ4_NL,  KN_IQ4_XS, KN_MXFP4, KN_IQ2_XXS, KN_IQ2_XS,
                                 KN_IQ2_S, KN_IQ3_XXS, KN_IQ3_S,  KN_IQ1_S, KN_IQ1_M};
enum { N_TYPES = sizeof types / sizeof *types };

/* The library, which takes more rows, and all on other devices. */
static void check_library(void)
{
    const struct many_tuning usual = many_tuning;
    many_tuning.tile_rows = 0;
    for (size_t k = 0; k < N_TYPES; k++) check_linear(types[k], &(struct shape){256, 37, 65});
    many_tuning.panel_bytes = (size_t)1 << 20; /* 512 rows, 2 panels of 384 and 316 */
    check_linear(KN_Q4_K, &(struct shape){1024, 700, 200});
    check_norm(KN_Q4_K, KN_Q6_K, &(struct shape){1024, 700, 200});
    many_tuning = usual;
}

static void check(bool small)
{
    static const struct shape plain[] = {{77, 21, 65}, {1000, 333, 130}},
                              whole[] = {{256, 37, 65}, {768, 304, 130}};
    const int wide = many_tuning.wide_rows;
    many_tuning.wide_rows = 0;
    for (size_t k = 0; k < N_TYPES; k++) {
        const struct shape *s = kn_type_info(types[k])->block == 1 ? plain : whole;
        rnd_state = k + 1;
        check_linear(types[k], &s[0]);
        if (small) continue;
        check_linear(types[k], &s[1]);
        check_norm(types[k], kn_type_info(types[k])->block == 1 ? KN_BF16 : KN_Q6_K, &s[1]);
    }
    if (small) return;
    const struct shape big = {1024, 700, 2148}; /* more than one pass: 2048 and 100 rows */
    check_linear(KN_Q4_K, &big);
    check_norm(KN_Q4_K, KN_Q8_0, &(struct shape){1024, 700, 200}); /* two launches of tiles */
    check_norm(KN_Q8_0, KN_Q5_1,
               &(struct shape){1024, 700, 200});             /* of sets that have kernels of their own */
    check_linear(KN_Q4_K, &(struct shape){1024, 2100, 500}); /* several tiles a block */
    check_linear(KN_Q8_0, &(struct shape){1024, 2100, 500});
    check_library();
    if (!cuda_is_early(gpu)) return;
    check_bits(KN_Q4_K, 4096, 1000);
    check_bits(KN_Q6_K, 2048, 1000);
    check_bits(KN_Q8_0, 2080, 1000);
    check_bits(KN_Q5_1, 1056, 1000);
    check_bits(KN_IQ4_NL, 2048, 1000);
    check_bits(KN_BF16, 1056, 1000);
    check_gated_bits(KN_Q4_K, 1024, 700, 300);
    check_gated_bits(KN_Q3_K, 1280, 1000, 129);
    check_gated_bits(KN_Q8_0, 1056, 700, 200);
    check_gated_bits(KN_BF16, 1056, 328, 100);
    many_tuning.wide_rows = wide;
    check_wide(KN_Q4_K, KN_Q6_K, 1024, 700, 65);
    check_wide(KN_Q6_K, KN_Q4_K, 5120, 1024, 80);
    check_wide(KN_Q5_K, KN_IQ4_XS, 12288, 512, 81);
    check_wide(KN_Q3_K, KN_Q2_K, 2048, 304, 96);
    check_wide(KN_Q6_K, KN_IQ4_XS, 4096, 304, 100);
    check_wide(KN_Q5_K, KN_Q3_K, 2304, 1000, 128);
    check_wide(KN_Q2_K, KN_Q4_K, 17408, 200, 128);
    check_wide(KN_Q4_K, KN_Q8_0, 1024, 700, 100);
    check_wide(KN_IQ3_S, KN_Q4_K, 2048, 304, 96);
    check_wide(KN_Q5_K, KN_IQ2_XS, 1024, 700, 80);
}

/* ---- the speed of a prompt ---- */

/* Multiply-adds x 2 of n rows from position 0: all matrices, attention, the head of one row. */
static double operations(const struct model *m, int n)
{
    const struct desc *d = m->d;
    const struct model_layer *y = &m->layer[0];
    double heads = (double)y->wq.n_out, kv = (double)y->wk.n_out, ff = (double)y->gate.n_out;
    double layer = 2.0 * d->n_embd * (heads + 2 * kv) + 2.0 * heads * d->n_embd + 6.0 * d->n_embd * ff;
    return d->n_layer * (layer * n + 4.0 * heads * n * (n + 1) / 2) + 2.0 * d->n_embd * d->n_vocab;
}

/* ---- the time of each operation, waiting after each ---- */

static struct kn_ops real, timed;
enum { T_EMBED, T_TABLE, T_LINEAR, T_NORM_LINEAR, T_GATED, T_STORE, T_ATTENTION, T_COUNT };
static const char *const timed_name[T_COUNT] = {"embed",      "rope_table", "linear",   "norm_linear",
                                                "norm_gated", "rope_store", "attention"};
static double timed_s[T_COUNT];
static long timed_n[T_COUNT];
static int took(int what, double from, int rc)
{
    real.sync(gpu);
    timed_s[what] += seconds_now() - from;
    timed_n[what]++;
    return rc;
}
static int t_embed(struct kn_backend *b, float *o, const struct kn_weight *t, const int32_t *ids, int32_t n,
                   float f)
{
    double from = seconds_now();
    return took(T_EMBED, from, real.embed(b, o, t, ids, n, f));
}
static int t_table(struct kn_backend *b, float *o, const int32_t *pos, const int32_t *at, int32_t n,
                   const double *f, int32_t rot)
{
    double from = seconds_now();
    return took(T_TABLE, from, real.rope_table(b, o, pos, at, n, f, rot));
}
static int t_linear(struct kn_backend *b, float *o, const struct kn_weight *w, const float *x, int32_t n,
                    bool add)
{
    double from = seconds_now();
    return took(T_LINEAR, from, real.linear(b, o, w, x, n, add));
}
static int t_norm_linear(struct kn_backend *b, float *const *o, const struct kn_weight *const *w, int32_t n_w,
                         const float *x, const float *norm, float eps, int32_t n)
{
    double from = seconds_now();
    return took(T_NORM_LINEAR, from, real.norm_linear(b, o, w, n_w, x, norm, eps, n));
}
static int t_gated(struct kn_backend *b, float *o, const struct kn_weight *g, const struct kn_weight *u,
                   const float *x, const float *norm, float eps, enum kn_act act, int32_t n)
{
    double from = seconds_now();
    return took(T_GATED, from, real.norm_gated(b, o, g, u, x, norm, eps, act, n));
}
static int t_store(struct kn_backend *b, const struct kn_rope_store *a)
{
    double from = seconds_now();
    return took(T_STORE, from, real.rope_store(b, a));
}
static int t_attention(struct kn_backend *b, const struct kn_attention *a)
{
    double from = seconds_now();
    return took(T_ATTENTION, from, real.attention(b, a));
}

/* on: operations are waited for and timed. */
static void time_operations(bool on)
{
    if (!on) {
        for (int i = 0; i < T_COUNT; i++)
            printf("time %s: %ld calls, %.2f ms\n", timed_name[i], timed_n[i], timed_s[i] * 1e3);
        ((struct kn_backend_head *)gpu)->op = &real;
        return;
    }
    timed = real;
    timed.embed = t_embed;
    timed.rope_table = t_table;
    timed.linear = t_linear;
    timed.norm_linear = t_norm_linear;
    timed.norm_gated = t_gated;
    timed.rope_store = t_store;
    timed.attention = t_attention;
    timed.attend = NULL; /* the two of it */
    memset(timed_s, 0, sizeof timed_s);
    memset(timed_n, 0, sizeof timed_n);
    ((struct kn_backend_head *)gpu)->op = &timed;
}

static double time_prompt(struct model *m, int n, int chunk, int times, bool by_operation)
{
    struct err e = {0};
    struct session *s;
    struct session_options o = {.ctx = n + 64, .chunk = chunk, .kv = {KN_F16, KN_F16}};
    int32_t *ids = malloc((size_t)n * sizeof *ids);
    double best = 1e9;
    for (int i = 0; i < n; i++) ids[i] = (int32_t)(rnd() % 100000 % (uint64_t)m->d->n_vocab);
    if (session_new(&s, m, NULL, &o, &e)) goto out;
    for (int i = 0; i < times + 1; i++) {
        double from = seconds_now();
        s->n_past = 0;
        if (session_prefill(s, ids, n, NULL, NULL, &e)) goto out;
        if (i && seconds_now() - from < best) best = seconds_now() - from;
        if (i == 0)
            printf("  (first run of %d tokens, chunk %d: %.1f ms)\n", n, chunk, (seconds_now() - from) * 1e3);
    }
    if (by_operation) {
        time_operations(true);
        s->op = kn_op(gpu);
        s->n_past = 0;
        double from = seconds_now();
        if (session_prefill(s, ids, n, NULL, NULL, &e)) goto out;
        printf("time all of a prompt of %d, waiting after each operation: %.2f ms\n", n,
               (seconds_now() - from) * 1e3);
        time_operations(false);
        s->op = &real;
    }
    session_free(s);
    free(ids);
    return best;
out:
    printf("FAIL gpu/prompt of %d: %s\n", n, e.msg);
    exit(1);
}

/* The matrices of the first layer alone, rows of a pass. */
static void bench_matrices(struct model *m, int n)
{
    const struct desc *d = m->d;
    const struct model_layer *y = &m->layer[0];
    int n_ff = (int)y->gate.n_out, widest = n_ff > d->n_embd ? n_ff : d->n_embd;
    float *x = malloc((size_t)n * (size_t)widest * 4);
    for (size_t i = 0; i < (size_t)n * (size_t)widest; i++) x[i] = gaussian(1.0f);
    float *dx = put(gpu, x, (size_t)n * (size_t)widest * 4),
          *a = put(gpu, NULL, (size_t)n * (size_t)widest * 4);
    float *b = put(gpu, NULL, (size_t)n * (size_t)widest * 4),
          *c = put(gpu, NULL, (size_t)n * (size_t)widest * 4);
    float *out[3] = {a, b, c};
    const struct kn_weight *qkv[] = {&y->wq, &y->wk, &y->wv};
    must(gpu, "reserve", kn_op(gpu)->reserve(gpu, n, widest, 8, 1, 64));
    double flops[4] = {2.0 * n * (double)d->n_embd * (double)(y->wq.n_out + y->wk.n_out + y->wv.n_out),
                       2.0 * n * (double)y->wo.n_in * d->n_embd, 4.0 * n * (double)d->n_embd * n_ff,
                       2.0 * n * (double)d->n_embd * n_ff};
    static const char *const name[] = {"qkv", "o", "gate+up", "down"};
    double total = 0, all = 0;
    for (int k = 0; k < 4; k++) {
        double from = 0;
        for (int i = 0; i < 25; i++) {
            if (i == 5) {
                kn_op(gpu)->sync(gpu);
                from = seconds_now();
            }
            must(gpu, name[k],
                 k == 0   ? kn_op(gpu)->norm_linear(gpu, out, qkv, 3, dx, y->attn_norm, 1e-6f, n)
                 : k == 1 ? kn_op(gpu)->linear(gpu, a, &y->wo, dx, n, true)
                 : k == 2 ? kn_op(gpu)->norm_gated(gpu, a, &y->gate, &y->up, dx, y->ffn_norm, 1e-6f,
                                                   KN_ACT_SILU, n)
                          : kn_op(gpu)->linear(gpu, a, &y->down, dx, n, true));
        }
        kn_op(gpu)->sync(gpu);
        double s = (seconds_now() - from) / 20;
        printf("bench %s, %d rows: %.1f us, %.0f TFLOP/s\n", name[k], n, s * 1e6, flops[k] / s * 1e-12);
        total += s, all += flops[k];
    }
    printf("bench layer's products, %d rows: %.1f us, %.0f TFLOP/s\n", n, total * 1e6, all / total * 1e-12);
    free(x);
    drop(gpu, dx), drop(gpu, a), drop(gpu, b), drop(gpu, c);
}

static void prompt(const char *path)
{
    struct err e = {0};
    struct model *m;
    double ceiling, from = seconds_now();
    must(gpu, "ceiling", many_ceiling(gpu, &ceiling));
    printf("bench library, bf16, 8192 cubed: %.0f TFLOP/s (%.2f s with opening it)\n", ceiling,
           seconds_now() - from);
    from = seconds_now();
    if (model_load(&m, path, gpu, NULL, NULL, NULL, &e)) {
        printf("FAIL gpu/load: %s\n", e.msg);
        exit(1);
    }
    printf("bench load: %.2f s, %.2f GB of a step\n", seconds_now() - from, (double)m->bytes_step * 1e-9);
    static const struct {
        size_t panel, gate;
        int rows;
        bool alone, beside, together;
    } v[] = {{64, 64, 2048, false, true, true},   {64, 64, 2048, false, false, true},
             {64, 64, 2048, false, true, false},  {64, 128, 2048, false, true, true},
             {128, 128, 2048, false, true, true}, {64, 64, 4096, false, true, true},
             {64, 128, 4096, false, true, true},  {64, 64, 2048, true, true, true}};
    for (size_t k = 0; k < sizeof v / sizeof *v; k++) {
        many_tuning.panel_bytes = v[k].panel << 20;
        many_tuning.gate_bytes = v[k].gate << 20;
        many_tuning.rows = v[k].rows;
        many_tuning.alone = v[k].alone;
        many_tuning.beside = v[k].beside;
        many_tuning.together = v[k].together;
        real.pass_rows = v[k].rows;
        printf("-- %d rows a pass, panels of %zu MiB, sums of %zu MiB%s%s%s\n", v[k].rows, v[k].panel,
               v[k].gate, v[k].alone ? ", dequantising alone" : "", v[k].beside ? "" : ", gating alone",
               v[k].together ? "" : ", small weights apart");
        for (int n = 512; n <= 4096; n *= 8) {
            if (n == 512 && v[k].rows != 2048) continue;
            double s = time_prompt(m, n, 512, n == 512 ? 5 : 3, k == 0), f = operations(m, n);
            printf("bench prompt of %d: %.1f ms, %.0f t/s, %.0f TFLOP/s, %.2f of the ceiling\n", n, s * 1e3,
                   n / s, f / s * 1e-12, f / s * 1e-12 / ceiling);
        }
        if (k < 3) bench_matrices(m, 512);
        bench_matrices(m, v[k].rows);
        fflush(stdout);
    }
    model_free(m);
}

int main(int argc, char **argv)
{
    char msg[256];
    struct kn_open g = {.device = "cuda"};
    bool benching = argc == 3 && !strcmp(argv[1], "--prompt"),
         small = argc == 2 && !strcmp(argv[1], "--small");
    if (argc != 1 && !benching && !small) {
        fprintf(stderr, "usage: test_many [--small] | test_many --prompt MODEL\n");
        return 2;
    }
    if (kn_backend_open(&gpu, &g, msg, sizeof msg)) {
        fprintf(stderr, "test_many: %s\n", msg);
        return 5;
    }
    real = *kn_op(gpu);
    ((struct kn_backend_head *)gpu)->op = &real;
    if (benching)
        prompt(argv[2]);
    else
        check(small);
    printf("test_many: %ld passed, %ld failed\n", passed, failed);
    kn_backend_close(gpu);
    return failed != 0;
}
