/* experts_gpu.c - products with the experts that rows chose, on the CUDA backend, against double precision.
 *
 * usage: experts_gpu [--generic] [--device DEVICE] [--small]   check; DEVICE cpu runs the checks themselves,
 *                                                      without a GPU; --small: few cases, for
 * compute-sanitizer experts_gpu --bench                           microseconds and bytes of real shapes
 *
 * Activations are integers of at most 127, the largest of every 32 columns 127: rounding them to 8 bits is
 * exact, also after a norm with one weight for all columns, so what is left is the error of float sums and a
 * wrong code, scale, column or expert shows. (Rounding itself is that of the dense products: mm_gpu.) Every
 * case is computed for all rows at once, for each row alone and in uneven groups, and must have the same
 * bits; outputs are NaN before. Prints "ok   gpu/..." or "FAIL gpu/..." a case; exit 1 if any failed, 5 if
 * there is no device. */
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../../kernels/kernels.h"

static struct kn_backend *gpu;
static long passed, failed;

static void verdict(bool ok, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    printf(ok ? "ok   gpu/" : "FAIL gpu/");
    vprintf(fmt, ap);
    va_end(ap);
    printf("\n");
    fflush(stdout);
    passed += ok;
    failed += !ok;
}

static void must(const char *what, int rc)
{
    if (!rc) return;
    printf("FAIL gpu/%s: %s\n", what, kn_message(gpu));
    exit(rc == KN_EDEVICE ? 5 : 1);
}

static void *host_alloc(size_t bytes)
{
    void *p = calloc(1, bytes ? bytes : 1);
    if (!p) {
        printf("FAIL gpu/experts: no memory\n");
        exit(1);
    }
    return p;
}

static void *put(const void *host, size_t bytes)
{
    void *p = kn_op(gpu)->alloc(gpu, bytes);
    if (!p) must("alloc", KN_EMEM);
    if (host) must("upload", kn_op(gpu)->upload(gpu, p, host, bytes));
    return p;
}

static void get(void *host, const void *p, size_t bytes)
{
    must("download", kn_op(gpu)->download(gpu, host, p, bytes));
}

static uint64_t rnd_state = 1;
static uint32_t rnd(void)
{
    rnd_state = rnd_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(rnd_state >> 32);
}

/* ---- weights, activations, choices ---- */

struct matrices {
    uint32_t type;
    int32_t n_mat;
    int64_t n_in, n_out;
    uint8_t *file;
    struct kn_weight w;
};

static void encode_row(uint32_t type, uint8_t *dst, int64_t n)
{
    const struct kn_type_info *t = kn_type_info(type);
    float *x = host_alloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = (float)((int32_t)rnd() * 0x1p-31);
    if (kn_encode_row(type, x, dst, n, NULL)) /* any codes; no scale that is NaN */
        for (size_t i = 0; i < kn_row_bytes(t->type, n); i++) dst[i] = (uint8_t)(rnd() & 0x3f);
    free(x);
}

static struct matrices matrices_make(uint32_t type, int32_t n_mat, int64_t n_out, int64_t n_in)
{
    struct matrices m = {.type = type, .n_mat = n_mat, .n_in = n_in, .n_out = n_out};
    const size_t row = kn_row_bytes(type, n_in), rows = (size_t)(n_mat * n_out);
    m.file = host_alloc(rows * row);
    for (size_t i = 0; i < rows; i++)
        if (i < 300)
            encode_row(type, m.file + i * row, n_in);
        else /* of those, in another order */
            memcpy(m.file + i * row, m.file + rnd() % 300 * row, row);
    must("experts_load", kn_op(gpu)->experts_load(gpu, &m.w, type, n_in, n_out, n_mat, m.file));
    return m;
}

static void matrices_free(struct matrices *m)
{
    kn_op(gpu)->weight_free(gpu, &m->w);
    free(m->file);
}

static void integers(float *x, size_t n, float scale)
{
    for (size_t i = 0; i < n; i++) {
        const int32_t v = (int32_t)(rnd() % 255) - 127;
        x[i] = scale * (float)(i % 32 == 5 ? 127 : v);
    }
}

enum routing { MIXED, SAME, APART };
static const char *const routing_names[] = {"mixed", "the same", "apart"};

static void choose(int32_t *ids, int n, int used, int n_mat, enum routing how)
{
    for (int i = 0; i < n; i++)
        for (int j = 0; j < used; j++) {
            int id = how == SAME ? j : how == APART ? (i * used + j) % n_mat : (int)(rnd() % (uint32_t)n_mat);
            for (bool again = how == MIXED; again;) { /* a row's experts differ */
                again = false;
                for (int k = 0; k < j; k++)
                    if (ids[i * used + k] == id) id = (id + 1) % n_mat, again = true;
            }
            ids[i * used + j] = id;
        }
}

/* ---- references ---- */

/* Row `row` of matrix m times x, and the sum of the terms' magnitudes. */
static double dot(const struct matrices *m, int32_t id, int64_t row, const float *x, double times,
                  float *decoded, double *terms)
{
    double sum = 0;
    *terms = 0;
    kn_decode_row(m->type, m->file + (size_t)(id * m->n_out + row) * kn_row_bytes(m->type, m->n_in), decoded,
                  m->n_in);
    for (int64_t k = 0; k < m->n_in; k++) {
        const double t = (double)decoded[k] * x[k] * times;
        sum += t;
        *terms += fabs(t);
    }
    return sum;
}

static double act_of(enum kn_act act, double g)
{
    return act == KN_ACT_SILU ? g / (1 + exp(-g))
                              : 0.5 * g * (1 + tanh(0.7978845608028654 * (g + 0.044715 * g * g * g)));
}

/* A product's sum in float32: a rounding for each unit, slice, scale; the tensor core's own sums of float
 * types keep fewer bits than float32 has (mm_gpu's bound: 2^-20 of the terms). */
static double sum_error(uint32_t type, int64_t n_in, double terms)
{
    const bool whole = type != KN_F32 && type != KN_F16 && type != KN_BF16;
    return whole ? terms * 0x1p-24 * ((double)n_in / 32 + 24) : terms * 0x1p-20;
}

struct shape {
    const char *name;
    int32_t n_mat, used;
    int64_t embd, ff;
    uint32_t gate, down;
    enum kn_act act;
};

struct data {
    const struct shape *s;
    struct matrices gate, up, down;
    int n;
    float *x, *h, *weights, *old; /* [n, embd], [n, used, ff], [n, used], [n, embd] */
    float *norm;
    int32_t *ids;
    float *d_x, *d_h, *d_weights, *d_norm, *d_out;
    int32_t *d_ids;
    size_t hidden, out; /* values of a row */
};
static const float norm_weight = 0.75f, eps = 1e-6f;

static void data_make(struct data *d, const struct shape *s, int n, enum routing how)
{
    d->n = n;
    d->hidden = (size_t)(s->used * s->ff), d->out = (size_t)s->embd;
    d->x = host_alloc((size_t)n * d->out * 4);
    d->h = host_alloc((size_t)n * d->hidden * 4);
    d->weights = host_alloc((size_t)(n * s->used) * 4);
    d->old = host_alloc((size_t)n * d->out * 4);
    d->norm = host_alloc(d->out * 4);
    d->ids = host_alloc((size_t)(n * s->used) * 4);
    integers(d->x, (size_t)n * d->out, 0.125f);
    integers(d->h, (size_t)n * d->hidden, 0.25f);
    for (int i = 0; i < n * s->used; i++) d->weights[i] = (float)(rnd() >> 8) * 0x1p-24f;
    for (size_t i = 0; i < (size_t)n * d->out; i++) d->old[i] = (float)((int32_t)rnd() * 0x1p-28);
    for (size_t i = 0; i < d->out; i++) d->norm[i] = norm_weight;
    choose(d->ids, n, s->used, s->n_mat, how);
    d->d_x = put(d->x, (size_t)n * d->out * 4);
    d->d_h = put(d->h, (size_t)n * d->hidden * 4);
    d->d_weights = put(d->weights, (size_t)(n * s->used) * 4);
    d->d_norm = put(d->norm, d->out * 4);
    d->d_ids = put(d->ids, (size_t)(n * s->used) * 4);
    d->d_out = put(NULL, (size_t)n * (d->hidden > d->out ? d->hidden : d->out) * 4);
}

static void data_free(struct data *d)
{
    void *device[] = {d->d_x, d->d_h, d->d_weights, d->d_norm, d->d_ids, d->d_out};
    void *host[] = {d->x, d->h, d->weights, d->old, d->norm, d->ids};
    for (int i = 0; i < 6; i++) {
        kn_op(gpu)->free(gpu, device[i]);
        free(host[i]);
    }
}

/* Rows in groups of at most `step`, 0: of 1, 2, 3, ... */
static void run_gated(const struct data *d, int step, float *out)
{
    const struct shape *s = d->s;
    const size_t bytes = (size_t)d->n * d->hidden * 4;
    memset(out, 0xff, bytes);
    must("upload", kn_op(gpu)->upload(gpu, d->d_out, out, bytes));
    for (int i = 0, k = 1, some; i < d->n; i += some, k++) {
        some = step ? step : k;
        if (some > d->n - i) some = d->n - i;
        must("experts_gated", kn_op(gpu)->experts_gated(gpu, d->d_out + (size_t)i * d->hidden, &d->gate.w,
                                                        &d->up.w, d->d_x + (size_t)i * d->out, d->d_norm, eps,
                                                        s->act, d->d_ids + i * s->used, some, s->used));
    }
    get(out, d->d_out, bytes);
}
static void run_down(const struct data *d, int step, bool add, float *out)
{
    const struct shape *s = d->s;
    const size_t bytes = (size_t)d->n * d->out * 4;
    memset(out, 0xff, bytes);
    must("upload", kn_op(gpu)->upload(gpu, d->d_out, add ? d->old : out, bytes));
    for (int i = 0, k = 1, some; i < d->n; i += some, k++) {
        some = step ? step : k;
        if (some > d->n - i) some = d->n - i;
        must("experts_down", kn_op(gpu)->experts_down(gpu, d->d_out + (size_t)i * d->out, &d->down.w,
                                                      d->d_h + (size_t)i * d->hidden, d->d_ids + i * s->used,
                                                      d->d_weights + i * s->used, some, s->used, add));
    }
    get(out, d->d_out, bytes);
}

/* Of the outputs of a row: the first and last 16 and every 29th. */
static bool sampled(int64_t i, int64_t n)
{
    return i < 16 || i >= n - 16 || i % 29 == 0;
}

/* The largest error in bounds, over a sample; INFINITY where it is NaN. */
static double gated_error(const struct data *d, const float *out)
{
    const struct shape *s = d->s;
    float *decoded = host_alloc((size_t)s->embd * 4);
    double worst = 0;
    for (int p = 0; p<d->n * s->used; p += d->n> 20 ? 1 + d->n * s->used / 97 : 1) {
        const float *x = d->x + (size_t)(p / s->used) * d->out;
        double squares = 0;
        for (int64_t i = 0; i < s->embd; i++) squares += (double)x[i] * x[i];
        const double r = norm_weight / sqrt(squares / (double)s->embd + (double)eps);
        for (int64_t o = 0; o < s->ff; o++) {
            if (!sampled(o, s->ff)) continue;
            double tg, tu;
            const double g = dot(&d->gate, d->ids[p], o, x, r, decoded, &tg),
                         u = dot(&d->up, d->ids[p], o, x, r, decoded, &tu);
            /* the norm: its sum and root; both slopes are below 1.13 */
            const double norm = 0x1p-24 * ((double)s->embd / 32 + 24),
                         eg = sum_error(s->gate, s->embd, tg) + norm * tg,
                         eu = sum_error(s->gate, s->embd, tu) + norm * tu, a = act_of(s->act, g);
            const double bound = 1.13 * eg * (fabs(u) + eu) + (fabs(a) + 1e-6) * eu + fabs(a * u) * 0x1p-20 +
                                 fabs(u) * fabs(g) * 0x1p-21 + 1e-30;
            const double e = fabs(out[(size_t)p * (size_t)s->ff + (size_t)o] - a * u) / bound;
            worst = e != e ? INFINITY : fmax(worst, e);
        }
    }
    free(decoded);
    return worst;
}
static double down_error(const struct data *d, bool add, const float *out)
{
    const struct shape *s = d->s;
    float *decoded = host_alloc((size_t)s->ff * 4);
    double worst = 0;
    for (int i = 0; i<d->n; i += d->n> 20 ? 1 + d->n / 9 : 1)
        for (int64_t o = 0; o < s->embd; o++) {
            if (!sampled(o, s->embd)) continue;
            const size_t at = (size_t)i * d->out + (size_t)o;
            double sum = add ? d->old[at] : 0, bound = 1e-30, all = fabs(sum);
            for (int j = 0; j < s->used; j++) {
                const int p = i * s->used + j;
                double terms;
                const double v = d->weights[p] * dot(&d->down, d->ids[p], o, d->h + (size_t)p * (size_t)s->ff,
                                                     1, decoded, &terms);
                sum += v;
                all += fabs(v);
                bound += d->weights[p] * sum_error(s->down, s->ff, terms);
            }
            bound += 0x1p-24 * (s->used + 2) * all;
            const double e = fabs(out[at] - sum) / bound;
            worst = e != e ? INFINITY : fmax(worst, e);
        }
    free(decoded);
    return worst;
}

/* ---- cases ---- */

static const int row_counts[] = {1, 2, 5, 8, 9, 16, 17, 40, 64, 0};
static const int few_counts[] = {1, 3, 11, 20, 0};

static void check_rows(struct data *d, int n, enum routing how)
{
    const struct shape *s = d->s;
    data_make(d, s, n, how);
    const size_t hidden = (size_t)n * d->hidden * 4, outs = (size_t)n * d->out * 4;
    float *all = host_alloc(hidden > outs ? hidden : outs), *part = host_alloc(hidden > outs ? hidden : outs);
    run_gated(d, n, all);
    double worst = gated_error(d, all);
    bool same = true;
    for (int step = 0; step < 2; step++) {
        run_gated(d, step, part);
        same &= !memcmp(all, part, hidden);
    }
    verdict(worst <= 1 && same, "experts_gated %s, %d rows choose %s: %.3f of the bound%s", s->name, n,
            routing_names[how], worst, same ? "" : ", other bits in other company");
    const bool add = n % 2;
    run_down(d, n, add, all);
    worst = down_error(d, add, all);
    same = true;
    for (int step = 0; step < 2; step++) {
        run_down(d, step, add, part);
        same &= !memcmp(all, part, outs);
    }
    verdict(worst <= 1 && same, "experts_down %s, %d rows choose %s: %.3f of the bound%s", s->name, n,
            routing_names[how], worst, same ? "" : ", other bits in other company");
    free(all), free(part);
    data_free(d);
}

/* A row that holds a NaN spoils its own outputs, all of them, and no other's. */
static void check_nan(struct data *d)
{
    const struct shape *s = d->s;
    data_make(d, s, 5, MIXED);
    d->x[2 * d->out + 7] = NAN;
    d->h[2 * d->hidden + (size_t)s->ff + 3] = NAN;
    must("upload", kn_op(gpu)->upload(gpu, d->d_x, d->x, 5 * d->out * 4));
    must("upload", kn_op(gpu)->upload(gpu, d->d_h, d->h, 5 * d->hidden * 4));
    float *out = host_alloc(5 * (d->hidden > d->out ? d->hidden : d->out) * 4);
    int wrong = 0;
    run_gated(d, 5, out);
    for (size_t i = 0; i < 5 * d->hidden; i++) wrong += isnan(out[i]) != (i / d->hidden == 2);
    run_down(d, 5, false, out);
    for (size_t i = 0; i < 5 * d->out; i++) wrong += isnan(out[i]) != (i / d->out == 2);
    verdict(!wrong, "experts %s, a NaN in a row: %d values wrong", s->name, wrong);
    free(out);
    data_free(d);
}

/* Recorded with some experts, replayed with others. */
static void check_replay(struct data *d)
{
    const struct kn_ops *op = kn_op(gpu);
    const struct shape *s = d->s;
    const int n = 6;
    void *recording = NULL;
    if (!op->record_begin) return;
    data_make(d, s, n, SAME);
    const size_t bytes = (size_t)n * d->out * 4;
    float *want = host_alloc(bytes), *got = host_alloc(bytes), *h = put(NULL, (size_t)n * d->hidden * 4);
    for (int turn = 0; turn < 2; turn++) {
        int rc = 0;
        if (turn) must("record_begin", op->record_begin(gpu));
        if (!turn || !rc)
            rc = op->experts_gated(gpu, h, &d->gate.w, &d->up.w, d->d_x, d->d_norm, eps, s->act, d->d_ids, n,
                                   s->used);
        if (!rc)
            rc = op->experts_down(gpu, d->d_out, &d->down.w, h, d->d_ids, d->d_weights, n, s->used, false);
        must("experts", rc);
        if (turn) must("record_end", op->record_end(gpu, &recording));
    }
    choose(d->ids, n, s->used, s->n_mat, MIXED);
    must("upload", op->upload(gpu, d->d_ids, d->ids, (size_t)(n * s->used) * 4));
    must("replay", op->replay(gpu, recording));
    get(got, d->d_out, bytes);
    must("experts", op->experts_gated(gpu, h, &d->gate.w, &d->up.w, d->d_x, d->d_norm, eps, s->act, d->d_ids,
                                      n, s->used));
    must("experts",
         op->experts_down(gpu, d->d_out, &d->down.w, h, d->d_ids, d->d_weights, n, s->used, false));
    get(want, d->d_out, bytes);
    verdict(!memcmp(want, got, bytes), "experts %s, recorded with other experts than replayed", s->name);
    op->record_free(gpu, recording);
    op->free(gpu, h);
    free(want), free(got);
    data_free(d);
}

static void check_shape(const struct shape *s, const int *counts, bool rest)
{
    struct data d = {.s = s};
    d.gate = matrices_make(s->gate, s->n_mat, s->ff, s->embd);
    d.up = matrices_make(s->gate, s->n_mat, s->ff, s->embd);
    d.down = matrices_make(s->down, s->n_mat, s->embd, s->ff);
    for (int i = 0; counts[i]; i++) check_rows(&d, counts[i], MIXED);
    if (rest) {
        check_rows(&d, 16, SAME);
        check_rows(&d, 40, SAME);
        check_rows(&d, 12, APART);
        check_rows(&d, 301, MIXED);
        check_rows(&d, 70, SAME);
        check_nan(&d);
        check_replay(&d);
    }
    matrices_free(&d.gate), matrices_free(&d.up), matrices_free(&d.down);
}

static void check_shapes(bool small)
{
    static const struct shape small_shapes[] = {
        {"5 of [64, 256] Q4_K, down Q8_0", 5, 2, 256, 64, KN_Q4_K, KN_Q8_0, KN_ACT_SILU},
        {"9 of [40, 96] F16, down F32", 9, 3, 96, 40, KN_F16, KN_F32, KN_ACT_SILU}};
    static const struct shape shapes[] = {
        {"256 of [512, 2048] Q4_K", 256, 8, 2048, 512, KN_Q4_K, KN_Q4_K, KN_ACT_SILU},
        {"64 of [768, 2048] Q4_K, down Q6_K", 64, 8, 2048, 768, KN_Q4_K, KN_Q6_K, KN_ACT_SILU},
        {"32 of [704, 2816] Q4_K, down Q5_0", 32, 8, 2816, 704, KN_Q4_K, KN_Q5_0, KN_ACT_GELU_TANH},
        {"8 of [704, 2816] Q6_K, down Q8_0", 8, 8, 2816, 704, KN_Q6_K, KN_Q8_0, KN_ACT_GELU_TANH},
        {"4 of [1408, 5120] Q5_K, down Q5_1", 4, 4, 5120, 1408, KN_Q5_K, KN_Q5_1, KN_ACT_SILU}};
    static const uint32_t types[] = {KN_F32,  KN_F16,  KN_BF16, KN_Q8_0, KN_Q4_0, KN_Q4_1,
                                     KN_Q5_0, KN_Q5_1, KN_Q4_K, KN_Q5_K, KN_Q6_K};
    if (small) {
        for (int i = 0; i < 2; i++) check_shape(small_shapes + i, few_counts, i == 0);
        return;
    }
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) check_shape(shapes + i, row_counts, true);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) { /* odd sizes */
        const struct kn_type_info *t = kn_type_info(types[i]);
        const int64_t k = t->block == 1 ? 1 : t->block, embd = t->block == 1 ? 119 : 5 * k,
                      ff = t->block == 1 ? 43 : 3 * k;
        char name[64];
        const struct shape s = {name, 11,       3,        embd,
                                ff,   types[i], types[i], i % 2 ? KN_ACT_SILU : KN_ACT_GELU_TANH};
        snprintf(name, sizeof name, "11 of [%lld, %lld] %s", (long long)ff, (long long)embd, t->name);
        check_shape(&s, few_counts, true);
    }
    static const struct shape
        one = {"1 of [17, 64] Q8_0, down BF16", 1, 1, 64, 17, KN_Q8_0, KN_BF16, KN_ACT_SILU},
        wide = {"40 of [32, 512] F32, 32 a row", 40, 32, 512, 32, KN_F32, KN_Q8_0, KN_ACT_SILU};
    check_shape(&one, few_counts, false);
    check_shape(&wide, few_counts, true);
}

static void refused(int rc, int want, const char *word)
{
    verdict(rc == want && strstr(kn_message(gpu), word), "refused: %s", kn_message(gpu));
}

static void check_refusals(void)
{
    const struct kn_ops *op = kn_op(gpu);
    struct matrices a = matrices_make(KN_Q8_0, 3, 16, 64), b = matrices_make(KN_Q8_0, 3, 32, 64),
                    c = matrices_make(KN_F16, 3, 16, 64);
    struct kn_weight none = {0}, w;
    float *x = put(NULL, 1 << 16);
    int32_t *ids = put(NULL, 1 << 10);
    refused(op->experts_gated(gpu, x, &a.w, &b.w, x, x, eps, KN_ACT_SILU, ids, 1, 2), KN_EINVAL,
            "unequal shapes");
    if (!strcmp(op->name, "cuda"))
        refused(op->experts_gated(gpu, x, &a.w, &c.w, x, x, eps, KN_ACT_SILU, ids, 1, 2), KN_ETYPE,
                "gate of type Q8_0");
    refused(op->experts_gated(gpu, x, &a.w, &a.w, x, x, eps, KN_ACT_SILU, ids, 0, 2), KN_EINVAL, "0 rows");
    refused(op->experts_down(gpu, x, &a.w, x, ids, x, 1, 99, false), KN_ETYPE, "99 experts a row");
    refused(op->experts_down(gpu, x, &none, x, ids, x, 1, 2, false), KN_EINVAL, "experts_load did not load");
    refused(op->experts_load(gpu, &w, KN_IQ2_XS, 256, 16, 2, x), KN_ETYPE, "IQ2_XS");
    refused(op->experts_load(gpu, &w, KN_Q4_K, 300, 16, 2, x), KN_ETYPE, "300");
    op->free(gpu, x), op->free(gpu, ids);
    matrices_free(&a), matrices_free(&b), matrices_free(&c);
}

/* ---- bench ---- */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

enum { SETS = 32 }; /* of choices, so that experts come from memory */

/* Microseconds of one call, of the recording of SETS. */
static double timed(const struct data *d, const struct shape *s, float *h, int n, bool gated, int sets)
{
    const struct kn_ops *op = kn_op(gpu);
    void *recording;
    must("record_begin", op->record_begin(gpu));
    for (int i = 0; i < sets; i++) {
        const int32_t *ids = d->d_ids + (size_t)i * (size_t)(n * s->used);
        must("experts",
             gated ? op->experts_gated(gpu, h, &d->gate.w, &d->up.w, d->d_x, d->d_norm, eps, s->act, ids, n,
                                       s->used)
                   : op->experts_down(gpu, d->d_out, &d->down.w, h, ids, d->d_weights, n, s->used, true));
    }
    must("record_end", op->record_end(gpu, &recording));
    double best = 1e9;
    for (int r = 0; r < 5; r++) {
        must("sync", op->sync(gpu));
        const double t = now();
        must("replay", op->replay(gpu, recording));
        must("sync", op->sync(gpu));
        best = fmin(best, (now() - t) * 1e6 / sets);
    }
    op->record_free(gpu, recording);
    return best;
}

static void bench(void)
{
    static const struct shape shapes[] = {
        {"35B-A3B", 256, 8, 2048, 512, KN_Q4_K, KN_Q4_K, KN_ACT_SILU},
        {"35B-A3B, down Q6_K", 256, 8, 2048, 512, KN_Q4_K, KN_Q6_K, KN_ACT_SILU},
        {"30B-A3B", 128, 8, 2048, 768, KN_Q4_K, KN_Q4_K, KN_ACT_SILU},
        {"26B-A4B, down Q5_0", 128, 8, 2816, 704, KN_Q4_K, KN_Q5_0, KN_ACT_GELU_TANH}};
    static const int counts[] = {1, 2, 4, 8, 16, 32, 64, 512, 2048};
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
        const struct shape *s = shapes + k;
        struct data d = {.s = s};
        d.gate = matrices_make(s->gate, s->n_mat, s->ff, s->embd);
        d.up = matrices_make(s->gate, s->n_mat, s->ff, s->embd);
        d.down = matrices_make(s->down, s->n_mat, s->embd, s->ff);
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
            const int n = counts[c], sets = n > 64 ? 4 : SETS;
            data_make(&d, s, n * sets, MIXED);
            float *h = put(d.h, (size_t)n * d.hidden * 4);
            double distinct = 0;
            for (int i = 0; i < sets; i++) {
                char seen[1024] = {0};
                for (int j = 0; j < n * s->used; j++) {
                    char *was = seen + d.ids[i * n * s->used + j];
                    distinct += !*was;
                    *was = 1;
                }
            }
            distinct /= sets;
            for (int gated = 1; gated >= 0; gated--) {
                const double us = timed(&d, s, h, n, gated, sets),
                             bytes = distinct * (gated ? 2 : 1) *
                                     (double)(gated ? d.gate : d.down).w.packed_bytes / s->n_mat;
                printf("%-20s %-5s rows %4d, %5.1f experts: %8.2f us, %6.1f MB, %.2f TB/s\n", s->name,
                       gated ? "gated" : "down", n, distinct, us, bytes * 1e-6, bytes / us * 1e-6);
                fflush(stdout);
            }
            kn_op(gpu)->free(gpu, h);
            data_free(&d);
        }
        matrices_free(&d.gate), matrices_free(&d.up), matrices_free(&d.down);
    }
}

int main(int argc, char **argv)
{
    char msg[256];
    bool benching = false, small = false;
    struct kn_open g = {.device = "cuda"};
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--generic")) {
            g.generic = true;
        } else if (!strcmp(argv[i], "--bench")) {
            benching = true;
        } else if (!strcmp(argv[i], "--small")) {
            small = true;
        } else if (!strcmp(argv[i], "--device") && i + 1 < argc) {
            g.device = argv[++i];
        } else {
            fprintf(stderr, "usage: experts_gpu [--generic] [--device DEVICE] [--small] [--bench]\n");
            return 2;
        }
    }
    if (kn_backend_open(&gpu, &g, msg, sizeof msg)) {
        fprintf(stderr, "experts_gpu: %s\n", msg);
        return 5;
    }
    if (benching) {
        bench();
    } else {
        check_shapes(small);
        check_refusals();
        printf("experts_gpu: %ld passed, %ld failed%s\n", passed, failed,
               g.generic ? " (generic kernels)" : "");
    }
    kn_backend_close(gpu);
    return failed != 0;
}
