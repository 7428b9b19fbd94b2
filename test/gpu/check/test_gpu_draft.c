/* test_gpu_draft.c - the operations of drafters against the CPU's (test_gpu.c). */
#include "test_gpu.h"

/* ---- convolution ---- */

struct conv_case {
    int n, width, group, taps;
    bool norm, add;
    uint32_t type; /* of the projection of the taps, and of the matrix behind; KN_TYPE_NONE: without */
};
static const struct conv_case convs[] = {
    {8, 256, 16, 2, true, false, KN_TYPE_NONE},   {16, 4096, 16, 2, true, false, KN_TYPE_NONE},
    {16, 5120, 16, 2, false, true, KN_TYPE_NONE}, {1, 512, 16, 2, true, false, KN_TYPE_NONE},
    {5, 66, 3, 4, true, true, KN_TYPE_NONE},      {64, 1024, 64, 16, false, false, KN_TYPE_NONE},
    {7, 520, 4, 3, true, false, KN_TYPE_NONE},    {8, 4096, 16, 2, true, false, KN_Q4_K},
    {16, 4096, 16, 2, true, false, KN_Q4_K},      {16, 5120, 16, 2, true, false, KN_Q6_K},
    {3, 1024, 16, 2, true, false, KN_Q8_0},       {16, 2560, 16, 2, true, false, KN_Q4_0},
    {20, 2048, 16, 2, true, false, KN_Q4_K},      {64, 1024, 16, 2, true, false, KN_Q4_K},
    {8, 1024, 16, 2, true, false, KN_BF16},       {2, 2048, 32, 3, true, false, KN_Q5_0},
};

static void random_weight(struct kn_backend *be, struct kn_weight *w, uint32_t type, int64_t n_in,
                          int64_t n_out)
{
    const size_t row = kn_row_bytes(type, n_in);
    char *data = malloc(row * (size_t)n_out);
    for (int64_t i = 0; i < n_out; i++) {
        float *x = gaussians((size_t)n_in, 0.05f);
        if (kn_encode_row(type, x, data + (size_t)i * row, n_in, NULL))
            die("encode", kn_type_info(type)->name);
        free(x);
    }
    *w = (struct kn_weight){0};
    must(be, "weight_load", kn_op(be)->weight_load(be, w, type, n_in, n_out, data, KN_USE_LINEAR));
    free(data);
}

struct conv_out {
    float *out, *behind, *product; /* side 0; what side 1 adds to x; a product of side 0's rows */
};

/* Both sides as a drafter's layer has them: taps by a product where there is one, side 0 of normed rows, a
 * product of them, side 1 onto x of that product's rows. */
static struct conv_out run_conv(struct kn_backend *be, const struct conv_case *c, uint64_t seed)
{
    const struct kn_ops *op = kn_op(be);
    const int groups = c->width / c->group, stride = 2 * c->taps * groups;
    const size_t all = (size_t)c->n * (size_t)c->width, taps = (size_t)c->n * (size_t)stride;
    struct kn_weight proj = {0}, then = {0};
    const struct kn_weight *first = &proj, *second = &then;
    rnd_state = seed;
    float *x = gaussians(all, 1.0f), *norm = gaussians((size_t)c->width, 0.3f),
          *base = gaussians((size_t)(2 * c->taps * c->width), 0.5f), *dyn = gaussians(taps, 0.3f);
    float *dx = put(be, x, all * 4), *dn = put(be, norm, (size_t)c->width * 4),
          *db = put(be, base, (size_t)(2 * c->taps * c->width) * 4), *dd = put(be, dyn, taps * 4),
          *dout = put(be, NULL, all * 4), *dy = put(be, x, all * 4), *dp = put(be, x, all * 4);
    must(be, "reserve", op->reserve(be, 64, c->width, 0, 2, 64));
    if (c->type != KN_TYPE_NONE) {
        random_weight(be, &proj, c->type, c->width, stride);
        random_weight(be, &then, c->type, c->width, c->width);
        must(be, "norm_linear", op->norm_linear(be, &dd, &first, 1, dx, dn, 1e-6f, c->n));
    }
    struct kn_conv a = {.x = dx,
                        .norm = c->norm ? dn : NULL,
                        .eps = 1e-6f,
                        .base = db,
                        .dynamic = dd,
                        .stride = stride,
                        .out = dout,
                        .add = c->add,
                        .n = c->n,
                        .width = c->width,
                        .group = c->group,
                        .taps = c->taps,
                        .then = c->type == KN_TYPE_NONE ? NULL : &then};
    must(be, "conv", op->conv(be, &a));
    if (c->type != KN_TYPE_NONE) {
        must(be, "norm_linear", op->norm_linear(be, &dp, &second, 1, dout, NULL, 0, c->n));
    }
    a.x = dp, a.norm = NULL, a.base = db + c->taps * c->width, a.offset = c->taps * groups, a.out = dy;
    a.add = true, a.then = NULL;
    must(be, "conv", op->conv(be, &a));
    struct conv_out o = {get(be, dout, all * 4), get(be, dy, all * 4), get(be, dp, all * 4)};
    op->weight_free(be, &proj), op->weight_free(be, &then);
    drop(be, dx), drop(be, dn), drop(be, db), drop(be, dd), drop(be, dout), drop(be, dy), drop(be, dp);
    free(x), free(norm), free(base), free(dyn);
    return o;
}

static double relative(const float *want, const float *got, size_t n)
{
    double square = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        const double e = (double)got[i] - (double)want[i];
        square += e * e, norm += (double)want[i] * (double)want[i];
    }
    return sqrt(square / (norm > 0 ? norm : 1));
}

void check_conv(void)
{
    for (size_t k = 0; k < sizeof convs / sizeof *convs; k++) {
        const struct conv_case *c = &convs[k];
        const size_t all = (size_t)c->n * (size_t)c->width;
        if (small && all > 20000) continue;
        struct conv_out want = run_conv(cpu, c, k + 1), got = run_conv(gpu, c, k + 1);
        /* Without a product: roundings of the taps and of the norm's sum. With one: both sides round the
         * same rows to 8 bits, and a value that falls to the other side of a half is 2^-8 of a block's
         * largest; the products that meet them differ in the order of their sums alone. */
        const double tol = c->type == KN_TYPE_NONE ? 1e-6 : 3e-3;
        const double a = relative(want.out, got.out, all), b = relative(want.behind, got.behind, all);
        verdict(a <= tol && b <= tol,
                "conv %d rows of %d by %d, groups of %d%s%s%s%s: error %.2g, %.2g of %.2g", c->n, c->width,
                c->taps, c->group, c->norm ? ", normed" : "", c->add ? ", added" : "",
                c->type == KN_TYPE_NONE ? "" : ", between products of ",
                c->type == KN_TYPE_NONE ? "" : kn_type_info(c->type)->name, a, b, tol);
        free(want.out), free(want.behind), free(want.product);
        free(got.out), free(got.behind), free(got.product);
    }
}

/* A product's rows behind a convolution that knows of it or not. norms: behind a branch's end, a product of
 * few rows whose sums of slices it may find, added to x, which the product behind norms. */
static float *run_then(const struct conv_case *c, bool hint, bool norms, uint64_t seed)
{
    const struct kn_ops *op = kn_op(gpu);
    const int groups = c->width / c->group, stride = 2 * c->taps * groups;
    const size_t all = (size_t)c->n * (size_t)c->width, taps = (size_t)c->n * (size_t)stride;
    struct kn_weight then, branch;
    const struct kn_weight *w = &then;
    rnd_state = seed;
    random_weight(gpu, &then, c->type, c->width, c->width);
    random_weight(gpu, &branch, c->type, c->width, c->width);
    float *x = gaussians(all, 1.0f), *base = gaussians((size_t)(c->taps * c->width), 0.5f),
          *dyn = gaussians(taps, 0.3f), *norm = gaussians((size_t)c->width, 0.5f);
    float *dx = put(gpu, x, all * 4), *db = put(gpu, base, (size_t)(c->taps * c->width) * 4),
          *dd = put(gpu, dyn, taps * 4), *dout = put(gpu, x, all * 4), *dy = put(gpu, NULL, all * 4),
          *dn = put(gpu, norm, (size_t)c->width * 4), *dp = put(gpu, NULL, all * 4);
    must(gpu, "reserve", op->reserve(gpu, 64, c->width, 0, 2, 64));
    if (norms) must(gpu, "linear", op->linear(gpu, dy, &branch, dx, c->n, false));
    const struct kn_conv a = {.x = norms ? dy : dx,
                              .eps = 1e-6f,
                              .base = db,
                              .dynamic = dd,
                              .stride = stride,
                              .out = dout,
                              .add = norms,
                              .n = c->n,
                              .width = c->width,
                              .group = c->group,
                              .taps = c->taps,
                              .then = hint ? &then : NULL,
                              .then_norm = hint && norms ? dn : NULL};
    must(gpu, "conv", op->conv(gpu, &a));
    must(gpu, "norm_linear",
         op->norm_linear(gpu, &dp, &w, 1, dout, norms ? dn : NULL, norms ? 1e-6f : 0, c->n));
    float *out = get(gpu, dp, all * 4);
    op->weight_free(gpu, &then), op->weight_free(gpu, &branch);
    drop(gpu, dx), drop(gpu, db), drop(gpu, dd), drop(gpu, dout), drop(gpu, dy), drop(gpu, dn), drop(gpu, dp);
    free(x), free(base), free(dyn), free(norm);
    return out;
}

/* What a convolution rounds for the product behind it is what the product would have rounded. */
void check_conv_then(void)
{
    for (size_t k = 0; k < 2 * (sizeof convs / sizeof *convs); k++) {
        const struct conv_case *c = &convs[k / 2];
        const size_t all = (size_t)c->n * (size_t)c->width;
        if (c->type == KN_TYPE_NONE || (small && all > 20000)) continue;
        float *without = run_then(c, false, k % 2, 77 + k), *with = run_then(c, true, k % 2, 77 + k);
        verdict(!memcmp(without, with, all * 4), "conv, prepared for %s%s, %d rows of %d: the product's bits",
                kn_type_info(c->type)->name, k % 2 ? " behind a branch, with a norm" : "", c->n, c->width);
        free(without), free(with);
    }
}

/* ---- the largest logits ---- */

void check_top(void)
{
    static const int vocab[] = {8, 63, 127, 128, 129, 1000, 4103, 32768, 151936, 248320, 262145};
    static const int ks[] = {1, 8, 16, 64};
    for (size_t v = 0; v < sizeof vocab / sizeof *vocab; v++)
        for (size_t q = 0; q < sizeof ks / sizeof *ks; q++) {
            const int n_vocab = vocab[v], k = ks[q], n = n_vocab > 100000 ? 7 : 15;
            const size_t count = (size_t)n * (size_t)n_vocab, found = (size_t)n * (size_t)k;
            long wrong = 0;
            if (k > n_vocab || (small && n_vocab > 5000)) continue;
            for (int shape = 0; shape < 5; shape++) {
                rnd_state = v * 10 + (unsigned)shape;
                float *l = gaussians(count, 3.0f), *values[2];
                int32_t *ids[2];
                for (size_t i = 0; i < count; i++) {
                    if (shape == 1) l[i] = rintf(l[i]);                       /* ties */
                    if (shape == 2) l[i] = 1.0f;                              /* nothing else */
                    if (shape == 3 && i % 17) l[i] = -INFINITY;               /* masked */
                    if (shape == 4) l[i] = (float)(i % (size_t)n_vocab) / 64; /* all in the last groups */
                }
                if (n_vocab > 60) {
                    l[(size_t)2 * (size_t)n_vocab + 50] = NAN;
                    l[(size_t)3 * (size_t)n_vocab + 50] = INFINITY;
                    for (int i = 0; i < n_vocab; i++) l[(size_t)4 * (size_t)n_vocab + (size_t)i] = -INFINITY;
                    l[0] = -0.0f, l[1] = 0.0f;
                }
                for (int b = 0; b < 2; b++) {
                    struct kn_backend *be = b ? gpu : cpu;
                    float *d = put(be, l, count * 4), *dv = put(be, NULL, found * 4);
                    int32_t *di = put(be, NULL, found * 4);
                    const struct kn_top a = {d, n, n_vocab, k, di, dv};
                    must(be, "reserve", kn_op(be)->reserve(be, n, 0, n_vocab, 2, 64));
                    must(be, "top", kn_op(be)->top(be, &a));
                    ids[b] = get(be, di, found * 4), values[b] = get(be, dv, found * 4);
                    drop(be, d), drop(be, dv), drop(be, di);
                }
                for (size_t i = 0; i < found; i++)
                    wrong += ids[0][i] != ids[1][i] ||
                             (isnan(values[0][i]) ? !isnan(values[1][i]) : values[0][i] != values[1][i]);
                free(ids[0]), free(ids[1]), free(values[0]), free(values[1]), free(l);
            }
            verdict(wrong == 0, "top %d of %d: %ld differ", k, n_vocab, wrong);
        }
}

/* ---- edges and walks ---- */

struct chain_out {
    float *scores, *logp;
    int32_t *ids;
};

/* What edges are made of: tables and hidden states, tables alone, rows that are given, rows of a reduced
 * vocabulary. */
enum edges_form { TABLES, NO_HIDDEN, GIVEN, REDUCED, EDGES_FORMS };

static struct chain_out run_chain(struct kn_backend *be, uint32_t before, uint32_t after, int n, int k,
                                  int rank, const struct kn_sampler *s, uint64_t seed, const float *given,
                                  enum edges_form form)
{
    enum { VOCAB = 301 };
    const struct kn_ops *op = kn_op(be);
    const uint32_t types[2] = {before, after};
    const size_t all = (size_t)n * (size_t)k, square = all * (size_t)k;
    struct kn_weight w[2];
    char *data[2];
    rnd_state = seed;
    for (int t = 0; t < 2; t++) {
        const size_t row = kn_row_bytes(types[t], rank);
        data[t] = malloc(row * VOCAB);
        for (int i = 0; i < VOCAB; i++) {
            float *x = gaussians((size_t)rank, 1.0f);
            if (kn_encode_row(types[t], x, data[t] + (size_t)i * row, rank, NULL)) die("encode", "table");
            free(x);
        }
        w[t] = (struct kn_weight){0};
        must(be, "weight_load", op->weight_load(be, &w[t], types[t], rank, VOCAB, data[t], KN_USE_ROWS));
    }
    int32_t *ids = malloc(all * 4), *pos = malloc((size_t)n * 4), anchor = 17;
    float *values = gaussians(all, 2.0f), *hidden = gaussians((size_t)n * (size_t)rank, 0.3f);
    for (size_t i = 0; i < all; i++)
        ids[i] = (int32_t)((i % (size_t)k) * 4 + rnd() % 4); /* different in a slot */
    if (n > 5) ids[4 * k + k - 1] = -1, values[4 * k + k - 1] = -INFINITY;
    for (int i = 0; i < n; i++) pos[i] = 1000 + i;
    const struct kn_bias bias[2] = {{ids[1], 3.0f}, {ids[0], -INFINITY}};
    int32_t *di = put(be, ids, all * 4), *dp = put(be, pos, (size_t)n * 4), *da = put(be, &anchor, 4),
            *dout = put(be, NULL, (size_t)n * 4);
    float *dv = put(be, values, all * 4), *dh = put(be, hidden, (size_t)n * (size_t)rank * 4),
          *ds = put(be, given, square * 4), *dl = put(be, NULL, (size_t)n * 4);
    struct kn_bias *db = put(be, bias, sizeof bias);
    int32_t row_of[VOCAB];
    for (int i = 0; i < VOCAB; i++) row_of[i] = i % 5 ? (i * 7 + 3) % VOCAB : -1;
    float *left = form == GIVEN ? gaussians(all * (size_t)rank, 0.3f) : NULL,
          *dleft = left ? put(be, left, all * (size_t)rank * 4) : NULL;
    int32_t *drow = form == REDUCED ? put(be, row_of, sizeof row_of) : NULL;
    const struct kn_edges e = {.ids = di,
                               .values = dv,
                               .anchor = da,
                               .hidden = form == NO_HIDDEN ? NULL : dh,
                               .before = form == GIVEN ? NULL : &w[0],
                               .after = &w[1],
                               .scale = 0.7f,
                               .n = n,
                               .k = k,
                               .scores = ds,
                               .left = dleft,
                               .row_of = drow,
                               .n_ids = VOCAB};
    struct kn_walk a = {
        .ids = di, .scores = ds, .pos = dp, .n = n, .k = k, .sampler = *s, .out = dout, .logp = dl};
    if (a.sampler.n_bias) a.sampler.bias = db;
    must(be, "reserve", op->reserve(be, n, 0, 4096, 2, 64));
    if (!given) must(be, "edges", op->edges(be, &e));
    must(be, "walk", op->walk(be, &a));
    struct chain_out o = {get(be, ds, square * 4), get(be, dl, (size_t)n * 4), get(be, dout, (size_t)n * 4)};
    op->weight_free(be, &w[0]), op->weight_free(be, &w[1]);
    drop(be, di), drop(be, dp), drop(be, da), drop(be, dout), drop(be, dv), drop(be, dh), drop(be, ds),
        drop(be, dl), drop(be, db);
    if (dleft) drop(be, dleft);
    if (drow) drop(be, drow);
    free(left), free(ids), free(pos), free(values), free(hidden), free(data[0]), free(data[1]);
    return o;
}

static void free_chain(struct chain_out *o)
{
    free(o->scores), free(o->logp), free(o->ids);
}

void check_edges(void)
{
    static const struct {
        uint32_t before, after;
        int n, k, rank;
    } c[] = {
        {KN_BF16, KN_BF16, 15, 16, 256}, {KN_F32, KN_F32, 7, 8, 32},      {KN_F16, KN_F16, 7, 16, 256},
        {KN_Q4_K, KN_Q4_K, 15, 16, 256}, {KN_Q6_K, KN_Q6_K, 15, 16, 256}, {KN_Q4_K, KN_Q6_K, 7, 16, 512},
        {KN_Q8_0, KN_Q8_0, 7, 16, 64},   {KN_Q5_0, KN_Q5_0, 7, 5, 96},    {KN_BF16, KN_BF16, 63, 64, 1000},
        {KN_BF16, KN_BF16, 1, 1, 8},     {KN_BF16, KN_BF16, 9, 33, 12}};
    const struct kn_sampler greedy = {.top_p = 1, .repeat_penalty = 1};
    static const char *const forms[] = {"", ", no hidden states", ", given rows", ", a reduced vocabulary"};
    for (size_t j = 0; j < EDGES_FORMS * sizeof c / sizeof *c; j++) {
        const size_t i = j / EDGES_FORMS;
        const enum edges_form form = (enum edges_form)(j % EDGES_FORMS);
        const int n = c[i].n, k = c[i].k;
        struct chain_out want =
                             run_chain(cpu, c[i].before, c[i].after, n, k, c[i].rank, &greedy, i, NULL, form),
                         got =
                             run_chain(gpu, c[i].before, c[i].after, n, k, c[i].rank, &greedy, i, NULL, form);
        double worst = 0;
        for (int s = 0; s < n; s++)
            for (int p = 0; p < (s ? k : 1); p++)
                for (int x = 0; x < k; x++) {
                    const size_t at = ((size_t)s * (size_t)k + (size_t)p) * (size_t)k + (size_t)x;
                    const double a = want.scores[at], b = got.scores[at];
                    if (isnan(a) != isnan(b) || isinf(a) != isinf(b)) worst = INFINITY;
                    if (isfinite(a) && isfinite(b) && fabs(a - b) > worst) worst = fabs(a - b);
                }
        /* rank products of values of about 1 and 0.3, added in two orders */
        verdict(worst < 2e-4 && !memcmp(want.ids, got.ids, (size_t)n * 4),
                "edges %s %s, %d slots of %d, rank %d%s: error %.2g", kn_type_info(c[i].before)->name,
                kn_type_info(c[i].after)->name, n, k, c[i].rank, forms[form], worst);
        free_chain(&want), free_chain(&got);
    }
}

void check_walk(const struct kn_sampler *samplers, size_t n_samplers)
{
    static const int ks[] = {1, 2, 8, 16, 33, 64};
    for (size_t q = 0; q < sizeof ks / sizeof *ks; q++) {
        long wrong = 0, tried = 0, far = 0;
        const int k = ks[q], n = 15;
        for (size_t i = 0; i < n_samplers; i++)
            for (int shape = 0; shape < 3; shape++) {
                const size_t square = (size_t)n * (size_t)k * (size_t)k;
                rnd_state = 31 * i + (unsigned)shape;
                float *scores = gaussians(square, 2.0f);
                for (size_t j = 0; shape == 1 && j < square; j++) scores[j] = rintf(scores[j]);
                for (size_t j = 0; shape == 2 && j < (size_t)k * (size_t)k; j++)
                    scores[(size_t)9 * (size_t)k * (size_t)k + j] = j % 2 ? NAN : 1.0f;
                struct chain_out want = run_chain(cpu, KN_BF16, KN_BF16, n, k, 32, &samplers[i], i, scores,
                                                  TABLES),
                                 got = run_chain(gpu, KN_BF16, KN_BF16, n, k, 32, &samplers[i], i, scores,
                                                 TABLES);
                for (int s = 0; s < n; s++) {
                    tried++;
                    wrong += want.ids[s] != got.ids[s];
                    far += isnan(want.logp[s]) ? !isnan(got.logp[s])
                                               : !(fabs((double)want.logp[s] - (double)got.logp[s]) < 1e-5);
                }
                free_chain(&want), free_chain(&got), free(scores);
            }
        verdict(wrong == 0 && far == 0, "walk over %d candidates: %ld of %ld picks differ, %ld probabilities",
                k, wrong, tried, far);
    }
}

/* ---- times ---- */

void bench_draft(void)
{
    static const int vocab[] = {151936, 202048, 248320}, rows[] = {1, 7, 15};
    for (size_t v = 0; v < sizeof vocab / sizeof *vocab; v++)
        for (int i_rows = 0; i_rows < 3; i_rows++) {
            const int n = rows[i_rows], n_vocab = vocab[v], k = 16, rank = 256;
            const size_t count = (size_t)n * (size_t)n_vocab;
            rnd_state = v;
            float *l = gaussians(count, 3.0f), *d = put(gpu, l, count * 4),
                  *values = put(gpu, NULL, 64 * 64 * 4), *hidden = put(gpu, l, (size_t)n * rank * 4),
                  *scores = put(gpu, NULL, 64 * 16 * 16 * 4), *logp = put(gpu, NULL, 256);
            int32_t *ids = put(gpu, NULL, 64 * 64 * 4), *out = put(gpu, NULL, 256),
                    *pos = put(gpu, NULL, 256);
            const size_t bytes = kn_row_bytes(KN_BF16, rank) * (size_t)n_vocab;
            uint16_t *book = malloc(bytes);
            for (size_t i = 0; i < bytes / 2; i++) book[i] = kn_f32_to_bf16(l[i % count]);
            struct kn_weight w[2] = {{0}, {0}};
            for (int t = 0; t < 2; t++)
                must(gpu, "weight_load",
                     kn_op(gpu)->weight_load(gpu, &w[t], KN_BF16, rank, n_vocab, book, KN_USE_ROWS));
            must(gpu, "reserve", kn_op(gpu)->reserve(gpu, 64, 0, n_vocab, 2, 64));
            const struct kn_top top = {d, n, n_vocab, k, ids, values};
            const struct kn_edges edges = {ids, values, pos,    hidden, &w[0], &w[1], 1.0f,
                                           n,   k,      scores, NULL,   NULL,  0};
            struct kn_walk walk = {.ids = ids,
                                   .scores = scores,
                                   .pos = pos,
                                   .n = n,
                                   .k = k,
                                   .out = out,
                                   .logp = logp,
                                   .sampler = {.top_p = 1, .repeat_penalty = 1}};
            double a, b, c, t;
            TIMED(a, 200, kn_op(gpu)->top(gpu, &top));
            TIMED(b, 200, kn_op(gpu)->edges(gpu, &edges));
            TIMED(c, 200, kn_op(gpu)->walk(gpu, &walk));
            walk.sampler =
                (struct kn_sampler){.temp = 0.8f, .top_k = 20, .top_p = 0.95f, .repeat_penalty = 1};
            TIMED(t, 200, kn_op(gpu)->walk(gpu, &walk));
            printf(
                "bench top %d of %d, %d rows: %.1f us; edges %.1f; walk greedy %.1f, top-k and top-p %.1f\n",
                k, n_vocab, n, a * 1e6, b * 1e6, c * 1e6, t * 1e6);
            kn_op(gpu)->weight_free(gpu, &w[0]), kn_op(gpu)->weight_free(gpu, &w[1]);
            drop(gpu, d), drop(gpu, values), drop(gpu, hidden), drop(gpu, scores), drop(gpu, logp);
            drop(gpu, ids), drop(gpu, out), drop(gpu, pos);
            free(book), free(l);
        }
}
