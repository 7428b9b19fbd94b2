/* families_gpu_delta.c - of families_gpu: gated delta nets against double, cut into calls in many ways, with
 * the product behind them, prompts of them; times. */
#include "families_gpu.h"
#include "../forms.h"

/* ---- a layer on the device ---- */

struct on_device {
    struct layer l; /* its arrays on the device */
    float *out;
    struct kn_delta_state s;
    size_t n_s, n_conv, n_log;
    int32_t *pending;
};

static struct on_device delta_up(struct kn_backend *be, const struct layer *l)
{
    const struct shape *s = &l->s;
    const size_t n = (size_t)l->n, v = (size_t)s->n_v;
    struct on_device d = {.l = *l,
                          .n_s = l->size * (size_t)s->d_k * 4,
                          .n_conv = l->width * (size_t)(s->n_conv - 1) * 4,
                          .n_log = KN_DELTA_LOG * (l->width + 2 * v) * 4};
    d.l.qkv = put(be, l->qkv, n * l->width * 4);
    d.l.alpha = put(be, l->alpha, n * v * 4);
    d.l.beta = put(be, l->beta, n * v * 4);
    d.l.z = put(be, l->z, n * l->size * 4);
    d.l.conv = put(be, l->conv, l->width * (size_t)s->n_conv * 4);
    d.l.a = put(be, l->a, v * 4);
    d.l.dt = put(be, l->dt, v * 4);
    d.l.norm = put(be, l->norm, (size_t)s->d_v * 4);
    d.out = put(be, NULL, n * l->size * 4);
    d.s = (struct kn_delta_state){put(be, NULL, d.n_s), put(be, NULL, d.n_conv), put(be, NULL, d.n_log)};
    d.pending = put(be, NULL, 4);
    const struct kn_delta a = {
        .n = l->n, .n_k = s->n_k, .n_v = s->n_v, .d_k = s->d_k, .d_v = s->d_v, .n_conv = s->n_conv};
    if (kn_op(be)->reserve_delta) must(be, "reserve_delta", kn_op(be)->reserve_delta(be, &a));
    return d;
}

static void delta_down(struct kn_backend *be, struct on_device *d)
{
    void *all[] = {d->l.qkv,  d->l.alpha, d->l.beta, d->l.z,    d->l.conv, d->l.a,    d->l.dt,
                   d->l.norm, d->out,     d->s.s,    d->s.conv, d->s.log,  d->pending};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) drop(be, all[i]);
}

static struct kn_delta delta_args(const struct on_device *d, int from, int n, bool commit)
{
    return layer_call(&d->l, &d->s, from, n, d->pending, commit, d->out);
}

static void delta_rows(struct kn_backend *be, const struct on_device *d, int from, int n, int32_t pending,
                       bool commit)
{
    const struct kn_delta a = delta_args(d, from, n, commit);
    must(be, "upload", kn_op(be)->upload(be, d->pending, &pending, 4));
    must(be, "delta", kn_op(be)->delta(be, &a));
}

static bool same(struct kn_backend *be, const void *device, const void *host, size_t bytes)
{
    void *p = get(be, device, bytes);
    const bool ok = !memcmp(p, host, bytes);
    free(p);
    return ok;
}

/* The rows of a call, of which accepted; 0 ends, after which the rest is final. */
static const int plans[][12] = {{1, 1, 1, 1, 1, 1, 2, 2, 0},
                                {5, 3, 4, 0, 4, 4, 16, 1, 7, 2, 0},
                                {16, 16, 0},
                                {3, 2, 64, 9, 0},
                                {17, 5, 16, 7, 0},
                                {64, 20, 48, 9, 0}};

static bool delta_plan(struct kn_backend *be, const struct layer *l, const int *plan, const float *out,
                       const float *s, const float *conv)
{
    struct on_device d = delta_up(be, l);
    int32_t pending = 0;
    int at = 0;
    bool ok = true;
    for (const int *c = plan; c[0]; c += 2) {
        const int n = l->n - at < c[0] ? l->n - at : c[0];
        void *before = get(be, d.s.s, d.n_s);
        delta_rows(be, &d, at, n, pending, false);
        if (!pending) ok &= same(be, d.s.s, before, d.n_s);
        free(before);
        pending = n < c[1] ? n : c[1];
        at += pending;
    }
    if (plan == plans[1]) { /* replay alone */
        delta_rows(be, &d, at, 0, pending, false);
        pending = 0;
    }
    delta_rows(be, &d, at, l->n - at, pending, true);
    ok &= same(be, d.out, out, (size_t)l->n * l->size * 4) && same(be, d.s.s, s, d.n_s) &&
          same(be, d.s.conv, conv, d.n_conv);
    delta_down(be, &d);
    return ok;
}

/* One row after another, the state written after every so many. */
static bool delta_seldom(struct kn_backend *be, const struct layer *l, int32_t every, const float *out,
                         const float *s, const float *conv)
{
    struct on_device d = delta_up(be, l);
    int32_t pending = 0;
    bool ok = true;
    for (int at = 0; at < l->n; at++) {
        struct kn_delta a = delta_args(&d, at, 1, true);
        void *before = get(be, d.s.s, d.n_s);
        a.every = every;
        must(be, "upload", kn_op(be)->upload(be, d.pending, &pending, 4));
        must(be, "delta", kn_op(be)->delta(be, &a));
        pending = (pending + 1) % every;
        if (pending) ok &= same(be, d.s.s, before, d.n_s);
        free(before);
    }
    delta_rows(be, &d, l->n, 0, pending, true);
    ok &= same(be, d.out, out, (size_t)l->n * l->size * 4) && same(be, d.s.s, s, d.n_s) &&
          same(be, d.s.conv, conv, d.n_conv);
    delta_down(be, &d);
    return ok;
}

static const struct shape delta_shapes[] = {
    {2, 4, 128, 128, 4}, {16, 48, 128, 128, 4}, {2, 6, 32, 32, 4},   {1, 2, 256, 256, 4}, {4, 8, 64, 33, 5},
    {3, 3, 32, 48, 1},   {2, 2, 128, 7, 2},     {3, 3, 20, 28, 3},   {1, 1, 1, 1, 2},     {1, 3, 255, 13, 16},
    {2, 2, 33, 256, 7},  {1, 2, 130, 100, 4},   {5, 10, 127, 65, 4}, {1, 9, 96, 192, 4}};

/* The largest error of a run over the bound, of outputs and of the state. */
static void delta_errors(const struct layer *l, const struct reference *r, const float *out, const float *s,
                         double *worst, double *worst_s)
{
    *worst = *worst_s = 0;
    for (size_t k = 0; k < (size_t)l->n * l->size; k++) {
        const double e = fabs(out[k] - r->out[k]) / r->bound_out[k];
        *worst = e != e ? INFINITY : fmax(*worst, e);
    }
    for (size_t k = 0; k < l->size * (size_t)l->s.d_k; k++) {
        const double e = fabs(s[k] - r->s[k]) / (r->bound_s[k / (size_t)l->s.d_k] / (r->mass ? 4 : 16));
        *worst_s = e != e ? INFINITY : fmax(*worst_s, e);
    }
}

void check_delta(void)
{
    for (size_t i = 0; i < sizeof delta_shapes / sizeof *delta_shapes; i++) {
        struct layer l = layer_make(delta_shapes + i, i == 2 ? 64 : 45, i + 1);
        struct reference r = reference_make(&l);
        struct on_device d = delta_up(gpu, &l);
        delta_rows(gpu, &d, 0, l.n, 0, true);
        float *out = get(gpu, d.out, (size_t)l.n * l.size * 4), *s = get(gpu, d.s.s, d.n_s),
              *conv = get(gpu, d.s.conv, d.n_conv);
        double worst, worst_s;
        delta_errors(&l, &r, out, s, &worst, &worst_s);
        int other = 0;
        for (size_t p = 0; p < sizeof plans / sizeof *plans; p++)
            other += !delta_plan(gpu, &l, plans[p], out, s, conv);
        other += !delta_seldom(gpu, &l, 2, out, s, conv) + !delta_seldom(gpu, &l, 16, out, s, conv);
        verdict(worst <= 1 && worst_s <= 1 && !other,
                "delta %d, %d heads of %d, %d, %d rows: %.3f of the bound, state %.3f; %d of 8 cuttings with "
                "other bits",
                l.s.n_k, l.s.n_v, l.s.d_k, l.s.d_v, l.n, worst, worst_s, other);
        delta_down(gpu, &d);
        free(out), free(s), free(conv);
        reference_free(&r);
        layer_free(&l);
    }
}

/* ---- with the product behind them ---- */

/* The calls of a plan with the product behind delta, as one operation or as two; all that is left behind
 * each. plan NULL: one row after another, the state written after every third; what is left at the end. */
static void *delta_linear_plan(const struct layer *l, const int *plan, const struct kn_weight *w, bool apart,
                               size_t *bytes)
{
    struct on_device d = delta_up(gpu, l);
    const size_t n_out = (size_t)w->n_out * 4, part = d.n_s + d.n_conv + d.n_log;
    float *to = put(gpu, NULL, n_out * (size_t)l->n);
    char *all = calloc(8, part + n_out * (size_t)l->n);
    int32_t pending = 0;
    int at = 0;
    *bytes = 0;
    for (const int *c = plan;; c += plan ? 2 : 0) {
        const bool last = plan ? !c[0] : at == l->n - 1;
        const int n = !plan ? 1 : last || l->n - at < c[0] ? l->n - at : c[0];
        struct kn_delta a = delta_args(&d, at, n, last || !plan);
        a.every = plan ? 0 : 3;
        float *rows = to + (size_t)at * (size_t)w->n_out;
        must(gpu, "upload", kn_op(gpu)->upload(gpu, d.pending, &pending, 4));
        if (apart) {
            must(gpu, "delta", kn_op(gpu)->delta(gpu, &a));
            must(gpu, "linear", kn_op(gpu)->linear(gpu, rows, w, d.out + (size_t)at * l->size, n, true));
        } else {
            must(gpu, "delta_linear", kn_op(gpu)->delta_linear(gpu, &a, rows, w));
        }
        const void *const left[] = {d.s.s, d.s.conv, d.s.log, to};
        const size_t size[] = {d.n_s, d.n_conv, plan ? d.n_log : d.n_log / 2, n_out * (size_t)l->n};
        if (!plan && !last) {
            pending = (pending + 1) % 3, at++;
            continue;
        }
        for (int i = 0; i < 4; i++) {
            must(gpu, "download", kn_op(gpu)->download(gpu, all + *bytes, left[i], size[i]));
            *bytes += size[i];
        }
        if (last) break;
        pending = n < c[1] ? n : c[1];
        at += pending;
    }
    drop(gpu, to);
    delta_down(gpu, &d);
    return all;
}

void check_delta_linear(void)
{
    static const struct {
        struct shape s;
        uint32_t type;
    } cases[] = {{{16, 32, 128, 128, 4}, KN_Q4_K}, {{16, 48, 128, 128, 4}, KN_Q6_K},
                 {{2, 2, 128, 128, 2}, KN_Q8_0},   {{3, 6, 128, 128, 3}, KN_Q5_1},
                 {{1, 4, 128, 128, 1}, KN_Q5_K},   {{3, 3, 128, 128, 4}, KN_Q8_0},
                 {{2, 4, 64, 64, 4}, KN_Q4_K},     {{2, 4, 128, 128, 4}, KN_BF16}};
    if (!kn_op(gpu)->delta_linear) return;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        void *file;
        if (small && cases[i].s.n_v > 4) continue;
        struct layer l = layer_make(&cases[i].s, KN_DELTA_LOG, i + 31);
        struct kn_weight w = weight_make(gpu, cases[i].type, (int64_t)l.size, 72, &file);
        int other = 0;
        long fused = 0, chunks = 0, rows = 0; /* launches with norm and rounding in them; without */
        for (size_t p = 0; p <= sizeof plans / sizeof *plans; p++) {
            const int *plan = p < sizeof plans / sizeof *plans ? plans[p] : NULL;
            size_t a, b;
            const struct forms before = forms_now(gpu);
            void *one = delta_linear_plan(&l, plan, &w, false, &a);
            fused += forms_since(gpu, &before, CUDA_DELTA_FEW) + forms_since(gpu, &before, CUDA_DELTA_ONE);
            chunks += forms_since(gpu, &before, CUDA_DELTA_CHUNKS);
            rows += forms_since(gpu, &before, CUDA_DELTA_ROWS);
            void *two = delta_linear_plan(&l, plan, &w, true, &b);
            other += a != b || memcmp(one, two, a);
            free(one), free(two);
        }
        /* Pairs of heads of 128, weights that want their rows rounded to 8 bits: in one launch. */
        const bool one_launch =
                       cuda_is_early(gpu) && l.s.d_k == 128 && l.s.n_v % 2 == 0 && cases[i].type != KN_BF16,
                   taken = one_launch ? fused > 0 && chunks > 0 && rows == 0
                                      : fused == 0 && chunks == 0 && rows > 0;
        verdict(!other && taken,
                "delta_linear %d, %d heads of %d, %s: %d of 7 cuttings with other bits than delta and "
                "linear%s",
                l.s.n_k, l.s.n_v, l.s.d_k, kn_type_info(cases[i].type)->name, other,
                taken ? "" : ", not by the form that it is for");
        kn_op(gpu)->weight_free(gpu, &w);
        free(file);
        layer_free(&l);
    }
}

/* ---- delta, prompts ---- */

/* Final rows [0, n) in calls of these lengths (0: the rest), after `first` rows that a call without commit
 * had and all of which stay. */
static bool prompt_same(const struct layer *l, const int *cuts, int first, const float *out, const float *s,
                        const float *conv)
{
    struct on_device d = delta_up(gpu, l);
    int at = first;
    if (first) delta_rows(gpu, &d, 0, first, 0, false);
    for (int pending = first; at < l->n; cuts++, pending = 0) {
        const int n = *cuts && *cuts < l->n - at ? *cuts : l->n - at;
        delta_rows(gpu, &d, at, n, pending, true);
        at += n;
    }
    const bool ok = same(gpu, d.out, out, (size_t)l->n * l->size * 4) && same(gpu, d.s.s, s, d.n_s) &&
                    same(gpu, d.s.conv, conv, d.n_conv);
    delta_down(gpu, &d);
    return ok;
}

/* Prompts: against double; the same bits again, cut at multiples of 32, and after rows whose acceptance was
 * pending where they were final before. */
void check_prompt(void)
{
    static const int lengths[] = {65, 96, 300, 2083};
    static const int again[] = {0}, cut[] = {96, 128, 1056, 0};
    for (size_t i = 0; i < sizeof delta_shapes / sizeof *delta_shapes; i++)
        for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
            const struct shape *sh = delta_shapes + i;
            if (i == 1 && k != 2) continue; /* for the double's time */
            if (k == 3 && i != 0 && i != 7) continue;
            if (small && (k > 1 || (i != 0 && i != 7 && i != 12))) continue;
            struct layer l = layer_make(sh, lengths[k], 100 * i + k);
            struct reference r = reference_of(&l, sh->d_k <= 128); /* longer keys: row by row */
            struct on_device d = delta_up(gpu, &l);
            delta_rows(gpu, &d, 0, l.n, 0, true);
            float *out = get(gpu, d.out, (size_t)l.n * l.size * 4), *s = get(gpu, d.s.s, d.n_s),
                  *conv = get(gpu, d.s.conv, d.n_conv);
            double worst, worst_s;
            delta_errors(&l, &r, out, s, &worst, &worst_s);
            bool ok = prompt_same(&l, again, 0, out, s, conv) &&
                      (l.n < 300 || prompt_same(&l, cut, 0, out, s, conv));
            delta_down(gpu, &d);
            if (l.n >= 96) { /* 9 rows first: final, and pending */
                d = delta_up(gpu, &l);
                delta_rows(gpu, &d, 0, 9, 0, true);
                delta_rows(gpu, &d, 9, l.n - 9, 0, true);
                float *out9 = get(gpu, d.out, (size_t)l.n * l.size * 4), *s9 = get(gpu, d.s.s, d.n_s);
                delta_down(gpu, &d);
                ok &= prompt_same(&l, again, 9, out9, s9, conv);
                free(out9), free(s9);
            }
            verdict(worst <= 1 && worst_s <= 1 && ok,
                    "delta prompt %d, %d heads of %d, %d, taps %d, %d rows: %.3f of the bound, state %.3f%s",
                    sh->n_k, sh->n_v, sh->d_k, sh->d_v, sh->n_conv, l.n, worst, worst_s,
                    ok ? "" : ", other bits");
            free(out), free(s), free(conv);
            reference_free(&r);
            layer_free(&l);
        }
}

/* ---- what it refuses ---- */

void check_delta_refusals(void)
{
    const struct shape s = {2, 4, 32, 32, 4};
    struct layer l = layer_make(&s, 65, 1);
    struct on_device d = delta_up(gpu, &l);
    struct kn_delta a = {
        .state = &d.s, .pending = d.pending, .n = 65, .n_k = 2, .n_v = 4, .d_k = 32, .d_v = 32, .n_conv = 4};
    refused(kn_op(gpu)->delta(gpu, &a), KN_EINVAL, "delta: 65 rows");
    a.n = 1, a.n_v = 3;
    refused(kn_op(gpu)->delta(gpu, &a), KN_ETYPE, "delta: 3 value heads");
    a.n_v = 4, a.d_k = 300;
    refused(kn_op(gpu)->delta(gpu, &a), KN_ETYPE, "delta: heads of 300");
    a.d_k = 32, a.n_conv = 99;
    refused(kn_op(gpu)->delta(gpu, &a), KN_ETYPE, "delta: a convolution of 99");
    a.n_conv = 4, a.n = 1 << 20, a.commit = true, a.n_k = 128, a.n_v = 1024; /* more than any before it */
    if (kn_op(gpu)->reserve_delta)
        refused(kn_op(gpu)->delta(gpu, &a), KN_EINVAL, "of scratch for 1048576 rows");
    delta_down(gpu, &d);
    layer_free(&l);
}

/* ---- bench ---- */

static int repeats = 200;
#define TIME(us, call)                                                                                       \
    do {                                                                                                     \
        us = 1e9;                                                                                            \
        for (int r_ = 0; r_ < 5; r_++) {                                                                     \
            must(gpu, "sync", kn_op(gpu)->sync(gpu));                                                        \
            double t_ = seconds_now();                                                                       \
            for (int k_ = 0; k_ < repeats; k_++) call;                                                       \
            must(gpu, "sync", kn_op(gpu)->sync(gpu));                                                        \
            t_ = (seconds_now() - t_) * 1e6 / repeats;                                                       \
            us = t_ < us ? t_ : us;                                                                          \
        }                                                                                                    \
    } while (0)

static void bench_delta(struct on_device *d)
{
    /* rows, pending, final, token by token, rows a segment */
    static const int cases[][5] = {{1, 0, 1},
                                   {1, 1, 0},
                                   {8, 4, 0},
                                   {16, 1, 0},
                                   {16, 16, 0},
                                   {64, 0, 1},
                                   {512, 0, 1, 1},
                                   {2048, 0, 1, 1},
                                   {4096, 0, 1, 1},
                                   {512, 0, 1, 0, 512},
                                   {2048, 0, 1, 0, 512},
                                   {2048, 0, 1, 0, 1024},
                                   {2048, 0, 1, 0, 2048},
                                   {4096, 0, 1, 0, 512},
                                   {4096, 0, 1, 0, 1024},
                                   {4096, 0, 1, 0, 2048},
                                   {4096, 0, 1, 0, 4096}};
    const struct delta_tuning usual = delta_tuning;
    const struct kn_delta most = delta_args(d, 0, 4096, true);
    double us;
    delta_tuning.segment = 4096;
    must(gpu, "reserve_delta", kn_op(gpu)->reserve_delta(gpu, &most));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int32_t pending = cases[i][1];
        const struct kn_delta a = delta_args(d, 0, cases[i][0], cases[i][2]);
        delta_tuning.rows = cases[i][3];
        delta_tuning.segment = cases[i][4] ? cases[i][4] : usual.segment;
        must(gpu, "upload", kn_op(gpu)->upload(gpu, d->pending, &pending, 4));
        repeats = a.n > 64 ? 10 : 200;
        TIME(us, must(gpu, "delta", kn_op(gpu)->delta(gpu, &a)));
        printf("delta 16, 48 heads of 128, rows %4d%s pending %2d: %7.2f us%s, segments of %d\n", a.n,
               a.commit ? "-" : " ", pending, us, delta_tuning.rows ? ", token by token" : "",
               delta_tuning.segment);
    }
    delta_tuning = usual;
    repeats = 200;
}

/* A net of 27B with the products before and behind it. */
static void bench_projected(struct on_device *d)
{
    static const int rows[] = {2, 8, 12, 16, 17, 24, 32, 48, 64}, pending[] = {0, 1, 3, 5, 12};
    const struct layer *l = &d->l;
    const int n_in = 5120;
    const int64_t n_out[] = {(int64_t)l->width, (int64_t)l->size, l->s.n_v, l->s.n_v};
    float *const out[] = {d->l.qkv, d->l.z, d->l.alpha, d->l.beta}, *x = put(gpu, NULL, 64 * n_in * 4),
                 *norm = put(gpu, NULL, n_in * 4);
    struct kn_weight w[4], down;
    const struct kn_weight *of[4];
    void *file[5];
    double us;
    for (int j = 0; j < 4; j++) w[j] = weight_make(gpu, KN_Q4_K, n_in, n_out[j], file + j), of[j] = w + j;
    down = weight_make(gpu, KN_Q4_K, (int64_t)l->size, n_in, file + 4);
    for (int i = 0; i < 9; i++) {
        printf("net between its products, %2d rows, pending", rows[i]);
        for (int j = 0; j < 5; j++) {
            const struct kn_delta a = delta_args(d, 0, rows[i], false);
            must(gpu, "upload", kn_op(gpu)->upload(gpu, d->pending, &pending[j], 4));
            TIME(us,
                 (must(gpu, "norm_linear", kn_op(gpu)->norm_linear(gpu, out, of, 4, x, norm, 1e-6f, rows[i])),
                  must(gpu, "delta_linear", kn_op(gpu)->delta_linear(gpu, &a, x, &down))));
            printf(" %d: %.2f us%s", pending[j], us, j < 4 ? "," : "\n");
        }
    }
    for (int j = 0; j < 4; j++) kn_op(gpu)->weight_free(gpu, w + j), free(file[j]);
    kn_op(gpu)->weight_free(gpu, &down);
    free(file[4]), drop(gpu, x), drop(gpu, norm);
}

void bench(void)
{
    static const struct shape s = {16, 48, 128, 128, 4};
    struct layer l = layer_make(&s, 4096, 1);
    struct on_device d = delta_up(gpu, &l);
    double us;
    bench_projected(&d);
    bench_delta(&d);
    float *logits = put(gpu, l.qkv, 64 * 512 * 4);
    struct kn_route r = {.logits = logits,
                         .n_used = 8,
                         .renorm = true,
                         .scale = 1.0f,
                         .ids = put(gpu, NULL, 64 * 8 * 4),
                         .weights = put(gpu, NULL, 64 * 8 * 4)};
    for (int i = 0; i < 4; i++) {
        r.n = i % 2 ? 16 : 1, r.n_expert = i / 2 ? 512 : 128;
        TIME(us, must(gpu, "route", kn_op(gpu)->route(gpu, &r)));
        printf("route %d of %d, rows %2d: %7.2f us\n", r.n_used, r.n_expert, r.n, us);
    }
    TIME(us, must(gpu, "gate", kn_op(gpu)->gate(gpu, d.out, d.l.z, 16, 6144, 6144)));
    printf("gate 16 rows of 6144: %7.2f us\n", us);
    TIME(us,
         must(gpu, "norm_add", kn_op(gpu)->norm_add(gpu, d.out, d.out, d.l.z, NULL, 16, 5120, 1e-6f, 1.0f)));
    printf("norm_add 16 rows of 5120: %7.2f us\n", us);
    delta_down(gpu, &d);
    drop(gpu, logits), drop(gpu, r.ids), drop(gpu, r.weights);
    layer_free(&l);
}
