/* test_draft_ops.c - the operations of drafters on the CPU: against references in double written here, the
 * same bits from every instruction set and thread count, and what they refuse. */
#include "ops_util.h"

/* ---- convolution ---- */

struct conv_case {
    int n, width, group, taps, offset;
    bool norm, add;
};
static const struct conv_case convs[] = {
    {8, 256, 16, 2, 0, true, false},   {8, 256, 16, 2, 32, false, true}, {1, 64, 16, 2, 0, true, true},
    {16, 4096, 16, 2, 0, true, false}, {5, 66, 3, 4, 7, true, true},     {64, 96, 32, 16, 0, false, false},
    {7, 40, 1, 3, 0, true, false},     {3, 50, 50, 1, 0, false, false},
};
enum { N_CONVS = sizeof convs / sizeof *convs, WORST = 1 << 16 };
static float conv_x[WORST], conv_norm[4096], conv_base[WORST], conv_dynamic[WORST], conv_old[WORST];

static struct kn_conv conv_make(const struct conv_case *c, float *out, uint64_t seed)
{
    const int stride = c->offset + c->taps * (c->width / c->group) + 3;
    assert_true(c->n * c->width <= WORST && c->n * stride <= WORST && c->taps * c->width <= WORST);
    rnd_fill(conv_x, (size_t)(c->n * c->width), 1.0f, &seed);
    rnd_fill(conv_norm, (size_t)c->width, 0.5f, &seed);
    rnd_fill(conv_base, (size_t)(c->taps * c->width), 0.7f, &seed);
    rnd_fill(conv_dynamic, (size_t)(c->n * stride), 0.4f, &seed);
    rnd_fill(conv_old, (size_t)(c->n * c->width), 1.0f, &seed);
    memcpy(out, conv_old, (size_t)(c->n * c->width) * sizeof *out);
    return (struct kn_conv){.x = conv_x,
                            .norm = c->norm ? conv_norm : NULL,
                            .eps = 1e-5f,
                            .base = conv_base,
                            .dynamic = conv_dynamic,
                            .stride = stride,
                            .offset = c->offset,
                            .out = out,
                            .add = c->add,
                            .n = c->n,
                            .width = c->width,
                            .group = c->group,
                            .taps = c->taps};
}

static void test_conv(void **state)
{
    (void)state;
    float *first = test_alloc(WORST * 4), *out = test_alloc(WORST * 4);
    for (int k = 0; k < N_CONVS; k++) {
        const struct conv_case *c = &convs[k];
        struct kn_backend *be;
        double worst = 0;
        for (int b = 0; (be = test_backend(b)); b++) {
            const struct kn_conv a = conv_make(c, b ? out : first, (uint64_t)k + 1);
            assert_ok(be, kn_op(be)->conv(be, &a));
            if (b && memcmp(out, first, (size_t)(c->n * c->width) * 4))
                fail_msg("case %d: other bits from backend %d", k, b);
            kn_backend_close(be);
        }
        const struct kn_conv a = conv_make(c, out, (uint64_t)k + 1);
        for (int i = 0; i < c->n; i++)
            for (int ch = 0; ch < c->width; ch++) {
                double want = c->add ? (double)conv_old[i * c->width + ch] : 0, size = fabs(want);
                for (int t = 0; t < c->taps && t <= i; t++) {
                    const float *row = conv_x + (i - t) * c->width;
                    double square = 0, v = (double)row[ch];
                    for (int j = 0; j < c->width; j++) square += (double)row[j] * (double)row[j];
                    if (c->norm) v *= (double)conv_norm[ch] / sqrt(square / c->width + (double)a.eps);
                    const double w = (double)conv_base[t * c->width + ch] +
                                     (double)conv_dynamic[i * a.stride + c->offset +
                                                          t * (c->width / c->group) + ch / c->group];
                    want += w * v;
                    size += fabs(v) * (fabs((double)conv_base[t * c->width + ch]) + fabs(w));
                }
                /* the norm's sum, root and division, two products; the tap's sum; a product a tap; the sum */
                const double e =
                    fabs((double)first[i * c->width + ch] - want) / (size * EPS32 * (12 + c->taps));
                worst = e > worst || e != e ? e : worst;
            }
        if (!(worst < 1)) fail_msg("case %d: error of %g of what roundings make", k, worst);
    }
    free(first), free(out);
}

/* A row sees the rows before it alone: what stands behind changes nothing. */
static void test_conv_rows(void **state)
{
    (void)state;
    struct kn_backend *be = test_fastest();
    float *all = test_alloc(WORST * 4), *few = test_alloc(WORST * 4);
    for (int k = 0; k < N_CONVS; k++) {
        struct kn_conv a = conv_make(&convs[k], all, 9);
        assert_ok(be, kn_op(be)->conv(be, &a));
        a = conv_make(&convs[k], few, 9);
        a.n = (a.n + 1) / 2;
        for (int i = a.n * a.width; i < convs[k].n * a.width; i++) conv_x[i] = NAN;
        assert_ok(be, kn_op(be)->conv(be, &a));
        assert_memory_equal(all, few, (size_t)(a.n * a.width) * 4);
    }
    free(all), free(few);
    kn_backend_close(be);
}

/* norm_linear and norm_gated without a norm are products of the rows as they are. */
static void test_without_norm(void **state)
{
    (void)state;
    static const uint32_t types[] = {KN_F32, KN_BF16, KN_Q8_0, KN_Q4_K};
    enum { IN = 256, OUT = 48, N = 5 };
    struct kn_backend *be = test_fastest();
    const struct kn_ops *op = kn_op(be);
    float x[N * IN], out[3][N * OUT], ones[IN], *to[2] = {out[0], out[1]};
    uint64_t seed = 4;
    rnd_fill(x, N * IN, 2.0f, &seed);
    for (int i = 0; i < IN; i++) ones[i] = 1;
    assert_ok(be, op->reserve(be, N, IN, 0, 2, 64));
    for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
        struct kn_weight w[2] = {{0}, {0}};
        const struct kn_weight *both[] = {&w[0], &w[1]};
        const size_t row = kn_row_bytes(types[k], IN);
        for (int j = 0; j < 2; j++) {
            char *data = test_alloc(row * OUT);
            float r[IN];
            for (int i = 0; i < OUT; i++) {
                rnd_fill(r, IN, 0.1f, &seed);
                assert_int_equal(kn_encode_row(types[k], r, data + (size_t)i * row, IN, NULL), 0);
            }
            assert_ok(be, op->weight_load(be, &w[j], types[k], IN, OUT, data, KN_USE_LINEAR));
            free(data);
        }
        assert_ok(be, op->norm_linear(be, to, both, 2, x, NULL, 0, N));
        for (int j = 0; j < 2; j++) {
            assert_ok(be, op->linear(be, out[2], &w[j], x, N, false));
            assert_memory_equal(out[j], out[2], sizeof out[2]);
        }
        assert_ok(be, op->norm_gated(be, out[2], &w[0], &w[1], x, NULL, 0, KN_ACT_SILU, N));
        for (int i = 0; i < N * OUT; i++) {
            const double g = (double)out[0][i], want = g / (1 + exp(-g)) * (double)out[1][i];
            assert_true(fabs((double)out[2][i] - want) <= 1e-6 * (1 + fabs(want)));
        }
        assert_ok(be, op->norm_linear(be, to, both, 1, x, ones, 1e-6f, N));
        assert_true(memcmp(to[0], out[1], sizeof out[1]) != 0);
        op->weight_free(be, &w[0]), op->weight_free(be, &w[1]);
    }
    kn_backend_close(be);
}

/* ---- the largest logits ---- */

static const float *sorted_by;
static int by_logit(const void *x, const void *y)
{
    const int32_t a = *(const int32_t *)x, b = *(const int32_t *)y;
    return sorted_by[a] != sorted_by[b] ? sorted_by[a] < sorted_by[b] ? 1 : -1 : a < b ? -1 : 1;
}

static void test_top(void **state)
{
    (void)state;
    static const struct {
        int n_vocab, k;
    } c[] = {{1, 1}, {5, 5}, {64, 8}, {65, 64}, {1000, 16}, {4099, 7}, {50000, 16}};
    enum { N = 9 };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        const int v = c[i].n_vocab, k = c[i].k;
        float *l = test_alloc((size_t)(N * v) * 4), values[N * 64];
        int32_t *order = test_alloc((size_t)v * 4), ids[N * 64], first[N * 64];
        uint64_t seed = i;
        struct kn_backend *be;
        rnd_fill(l, (size_t)(N * v), 3.0f, &seed);
        for (int j = 0; j < v; j++) {
            l[v + j] = rintf(l[v + j]); /* row 1: ties, 2: all equal, 3: masked, 4: nothing */
            l[2 * v + j] = -1.5f;
            if (j % 7) l[3 * v + j] = -INFINITY;
            l[4 * v + j] = -INFINITY;
            l[7 * v + j] = -fabsf(l[7 * v + j]);
        }
        l[5 * v + v / 2] = NAN, l[6 * v + v - 1] = INFINITY;
        l[8 * v] = -0.0f;
        if (v > 1) l[8 * v + 1] = 0.0f;
        for (int b = 0; (be = test_backend(b)); b++) {
            const struct kn_top a = {l, N, v, k, ids, values};
            assert_ok(be, kn_op(be)->reserve(be, N, 0, v, 2, 64));
            assert_ok(be, kn_op(be)->top(be, &a));
            if (b) assert_memory_equal(ids, first, (size_t)(N * k) * 4);
            memcpy(first, ids, sizeof ids);
            kn_backend_close(be);
        }
        for (int r = 0; r < N; r++) {
            const bool none = r >= 4 && r <= 6;
            for (int j = 0; j < v; j++) order[j] = j;
            sorted_by = l + r * v;
            if (!none) qsort(order, (size_t)v, sizeof *order, by_logit);
            for (int j = 0; j < k; j++) {
                const float got = values[r * k + j];
                if (none) {
                    assert_int_equal(ids[r * k + j], KN_PICK_NAN);
                    assert_true(isnan(got));
                } else if (sorted_by[order[j]] == -INFINITY) {
                    assert_int_equal(ids[r * k + j], KN_PICK_NAN);
                    assert_true(got == -INFINITY);
                } else {
                    assert_int_equal(ids[r * k + j], order[j]);
                    assert_true(got == sorted_by[order[j]]);
                }
            }
        }
        free(l), free(order);
    }
}

/* ---- edges ---- */

enum { VOCAB = 70, SLOTS = 6, MOST_K = 20, MOST_RANK = 512 };
struct tables {
    struct kn_weight w[2];
    char *data[2];
    float *values[2]; /* as they decode */
};

static void tables_make(struct tables *t, struct kn_backend *be, const uint32_t *type, int rank)
{
    uint64_t seed = 5;
    for (int j = 0; j < 2; j++) {
        const size_t row = kn_row_bytes(type[j], rank);
        float x[MOST_RANK];
        t->data[j] = test_alloc(row * VOCAB);
        t->values[j] = test_alloc((size_t)(VOCAB * rank) * 4);
        for (int i = 0; i < VOCAB; i++) {
            rnd_fill(x, (size_t)rank, 1.0f, &seed);
            assert_int_equal(kn_encode_row(type[j], x, t->data[j] + (size_t)i * row, rank, NULL), 0);
            kn_decode_row(type[j], t->data[j] + (size_t)i * row, t->values[j] + i * rank, rank);
        }
        t->w[j] = (struct kn_weight){0};
        assert_ok(be, kn_op(be)->weight_load(be, &t->w[j], type[j], rank, VOCAB, t->data[j], KN_USE_ROWS));
    }
}

static void tables_free(struct tables *t, struct kn_backend *be)
{
    for (int j = 0; j < 2; j++) {
        kn_op(be)->weight_free(be, &t->w[j]);
        free(t->data[j]), free(t->values[j]);
    }
}

/* What stands on the left, and a reduced vocabulary. */
enum edges_form { HIDDEN, NO_HIDDEN, GIVEN, REDUCED, FORMS };
struct edges_case {
    int number, k, rank;
    enum edges_form form;
    const int32_t *ids, anchor, *row_of;
    const float *left, *values, *hidden, *got;
};

/* got against the sums in double. */
static void edges_check(const struct edges_case *c, const struct tables *t)
{
    for (int s = 0; s < SLOTS; s++)
        for (int p = 0; p < (s ? c->k : 1); p++)
            for (int x = 0; x < c->k; x++) {
                const int32_t before = s ? c->ids[(s - 1) * c->k + p] : c->anchor,
                              after = c->ids[s * c->k + x];
                const int32_t row =
                    c->form == REDUCED && after >= 0 && after < VOCAB ? c->row_of[after] : after;
                const bool from = before >= 0 && (before < VOCAB || c->form == GIVEN),
                           to = row >= 0 && row < VOCAB;
                double sum = 0, size = 1;
                const float got = c->got[(s * c->k + p) * c->k + x];
                for (int r = 0; from && to && r < c->rank; r++) {
                    const double l =
                        c->form == GIVEN
                            ? (double)c->left[(s * c->k + p) * c->rank + r]
                            : (double)t->values[0][before * c->rank + r] *
                                  (c->form == NO_HIDDEN ? 1 : (double)c->hidden[s * c->rank + r]);
                    const double e = l * (double)t->values[1][row * c->rank + r];
                    sum += e, size += fabs(e);
                }
                if (!from)
                    assert_true(isnan(got));
                else if (c->values[s * c->k + x] == -INFINITY)
                    assert_true(got == -INFINITY);
                else if (!(fabs((double)got - ((double)c->values[s * c->k + x] + 0.5 * sum)) <
                           EPS32 * (c->rank / 16 + 8) * size))
                    fail_msg("case %d, slot %d, %d to %d: %g, expected %g", c->number, s, p, x, (double)got,
                             (double)c->values[s * c->k + x] + 0.5 * sum);
            }
}

static void test_edges(void **state)
{
    (void)state;
    static const struct {
        uint32_t type[2];
        int k, rank;
    } c[] = {{{KN_F32, KN_F32}, 8, 32},     {{KN_BF16, KN_BF16}, 16, 256}, {{KN_F16, KN_F16}, 1, 7},
             {{KN_Q4_K, KN_Q6_K}, 20, 512}, {{KN_Q8_0, KN_Q8_0}, 17, 96},  {{KN_Q6_K, KN_Q6_K}, 5, 256}};
    int32_t row_of[VOCAB];
    for (int i = 0; i < VOCAB; i++) row_of[i] = i % 5 ? (i * 7 + 3) % VOCAB : -1;
    for (size_t at = 0; at < FORMS * sizeof c / sizeof *c; at++) {
        const size_t i = at / FORMS;
        const enum edges_form form = (enum edges_form)(at % FORMS);
        const int k = c[i].k, rank = c[i].rank;
        static float left[SLOTS * MOST_K * MOST_RANK];
        static float values[SLOTS * MOST_K], hidden[SLOTS * MOST_RANK], first[SLOTS * MOST_K * MOST_K],
            scores[SLOTS * MOST_K * MOST_K];
        int32_t ids[SLOTS * MOST_K], anchor = 3;
        uint64_t seed = 11 + i;
        struct kn_backend *be;
        struct tables t;
        rnd_fill(values, SLOTS * MOST_K, 2.0f, &seed);
        rnd_fill(hidden, SLOTS * MOST_RANK, 0.5f, &seed);
        rnd_fill(left, SLOTS * MOST_K * MOST_RANK, 0.5f, &seed);
        for (int j = 0; j < SLOTS * k; j++) ids[j] = (int32_t)(rnd_next(&seed) % VOCAB);
        ids[2 * k + k - 1] = KN_PICK_NAN, values[2 * k + k - 1] = -INFINITY; /* no candidate */
        ids[4 * k] = VOCAB;                                                  /* no id */
        for (int b = 0; (be = test_backend(b)); b++) {
            tables_make(&t, be, c[i].type, rank);
            const struct kn_edges a = {.ids = ids,
                                       .values = values,
                                       .anchor = &anchor,
                                       .hidden = form == NO_HIDDEN ? NULL : hidden,
                                       .before = form == GIVEN ? NULL : &t.w[0],
                                       .after = &t.w[1],
                                       .scale = 0.5f,
                                       .n = SLOTS,
                                       .k = k,
                                       .scores = b ? scores : first,
                                       .left = form == GIVEN ? left : NULL,
                                       .row_of = form == REDUCED ? row_of : NULL,
                                       .n_ids = VOCAB};
            memset(a.scores, 0, sizeof scores);
            assert_ok(be, kn_op(be)->edges(be, &a));
            if (b) assert_memory_equal(scores, first, sizeof scores);
            tables_free(&t, be);
            kn_backend_close(be);
        }
        be = test_fastest();
        tables_make(&t, be, c[i].type, rank);
        edges_check(
            &(struct edges_case){(int)i, k, rank, form, ids, anchor, row_of, left, values, hidden, first},
            &t);
        tables_free(&t, be);
        kn_backend_close(be);
    }
}

/* ---- the walk ---- */

static const struct kn_bias biases[] = {{5, 2.5f}, {9, -INFINITY}};
static const struct kn_sampler samplers[] = {
    {.top_p = 1, .repeat_penalty = 1},
    {.top_p = 1, .repeat_penalty = 1, .bias = biases, .n_bias = 2},
    {.temp = 0.8f, .top_p = 1, .repeat_penalty = 1, .seed = 1},
    {.temp = 1.5f, .top_p = 1, .top_k = 3, .repeat_penalty = 1, .seed = 2},
    {.temp = 1, .top_p = 0.7f, .repeat_penalty = 1, .seed = 3},
    {.temp = 1, .top_p = 1, .min_p = 0.2f, .repeat_penalty = 1, .seed = 4},
    {.temp = 0.6f,
     .top_k = 9,
     .top_p = 0.8f,
     .min_p = 0.05f,
     .repeat_penalty = 1,
     .seed = 5,
     .bias = biases,
     .n_bias = 2},
    {.temp = 3, .top_k = 9, .top_p = 0.8f, .min_p = 0.05f, .repeat_penalty = 1, .seed = 6, .order = 1},
    {.temp = 3, .top_k = 9, .top_p = 0.8f, .min_p = 0.05f, .repeat_penalty = 1, .seed = 7, .order = 2},
    {.temp = 2, .top_k = 9, .top_p = 0.8f, .min_p = 0.05f, .repeat_penalty = 1, .seed = 8, .order = 4},
    {.temp = 2, .top_k = 9, .top_p = 0.8f, .min_p = 0.05f, .repeat_penalty = 1, .seed = 9, .order = 8},
    {.temp = 2, .top_k = 9, .top_p = 0.8f, .min_p = 0.05f, .repeat_penalty = 1, .seed = 10, .order = 15},
};

/* In each slot the sampler's own pick of a row whose logits are the scores, and nothing else: the token and
 * its probability, to the bit. The other scores of a slot are poison: they belong to other predecessors. */
static void walk_as_picks(struct kn_backend *be, const struct kn_sampler *s, int k, bool ties, uint64_t seed)
{
    static float scores[SLOTS * MOST_K * MOST_K], row[VOCAB];
    int32_t ids[SLOTS * MOST_K], pos[SLOTS], out[SLOTS], history[200] = {0};
    float logp[SLOTS];
    rnd_fill(scores, sizeof scores / sizeof *scores, 1.5f, &seed);
    for (size_t i = 0; ties && i < sizeof scores / sizeof *scores; i++) scores[i] = rintf(scores[i]);
    for (int i = 0; i < SLOTS; i++) {
        pos[i] = 100 + i;
        for (int c = 0; c < k; c++) ids[i * k + c] = (c * 31 + 5 * i + 5) % VOCAB; /* in no order */
    }
    const struct kn_walk a = {ids, scores, pos, SLOTS, k, *s, out, logp};
    assert_ok(be, kn_op(be)->walk(be, &a));
    for (int i = 0, p = 0; i < SLOTS; i++) {
        int32_t want;
        float want_logp;
        for (int j = 0; j < VOCAB; j++) row[j] = -INFINITY;
        for (int c = 0; c < k; c++) row[ids[i * k + c]] = scores[(i * k + p) * k + c];
        const struct kn_pick pick = {.logits = row,
                                     .pos = &pos[i],
                                     .history = history,
                                     .n = 1,
                                     .n_vocab = VOCAB,
                                     .sampler = *s,
                                     .out = &want,
                                     .logp = &want_logp};
        assert_ok(be, kn_op(be)->pick(be, &pick));
        assert_int_equal(out[i], want);
        /* (without a filter pick adds up its weights sixteen lanes side by side) */
        if (!(fabs((double)logp[i] - (double)want_logp) < 4e-7))
            fail_msg("slot %d: log-probability %.9g, expected %.9g", i, (double)logp[i], (double)want_logp);
        for (p = 0; ids[i * k + p] != out[i]; p++) assert_true(p < k);
    }
}

static void test_walk(void **state)
{
    (void)state;
    struct kn_backend *be = test_fastest();
    assert_ok(be, kn_op(be)->reserve(be, 1, 0, VOCAB, 2, 64));
    for (size_t i = 0; i < sizeof samplers / sizeof *samplers; i++)
        for (int k = samplers[i].n_bias ? 4 : 1; k <= MOST_K; k += 4)
            for (uint64_t seed = 0; seed < 40; seed++) walk_as_picks(be, &samplers[i], k, seed % 2, seed);
    kn_backend_close(be);
}

/* Where a slot picks nothing, none behind it does. */
static void test_walk_nan(void **state)
{
    (void)state;
    struct kn_backend *be = test_fastest();
    enum { K = 3 };
    static const float odd[] = {NAN, INFINITY};
    for (int with = 0; with < 2; with++)
        for (size_t s = 0; s < sizeof samplers / sizeof *samplers; s++) {
            float scores[SLOTS * K * K], logp[SLOTS];
            int32_t ids[SLOTS * K], pos[SLOTS], out[SLOTS];
            for (int i = 0; i < SLOTS * K * K; i++) scores[i] = (float)(i % K);
            for (int i = 0; i < SLOTS * K; i++) ids[i] = 20 + i;
            for (int i = 0; i < SLOTS; i++) pos[i] = i;
            for (int p = 0; p < K; p++) scores[(3 * K + p) * K + 1] = odd[with];
            const struct kn_walk a = {ids, scores, pos, SLOTS, K, samplers[s], out, logp};
            assert_ok(be, kn_op(be)->walk(be, &a));
            for (int i = 0; i < SLOTS; i++) {
                assert_int_equal(out[i] >= 0, i < 3);
                assert_int_equal(isnan(logp[i]), i >= 3);
            }
            for (int i = 0; i < K * K; i++) scores[i] = -INFINITY; /* all masked */
            assert_ok(be, kn_op(be)->walk(be, &a));
            assert_int_equal(out[0], KN_PICK_NAN);
        }
    kn_backend_close(be);
}

/* ---- refusals ---- */

static void refused(struct kn_backend *be, int rc, const char *begins)
{
    assert_true(rc == KN_EINVAL || rc == KN_ETYPE);
    if (strncmp(kn_message(be), begins, strlen(begins)))
        fail_msg("message: %s (expected %s...)", kn_message(be), begins);
}

static void test_refused(void **state)
{
    (void)state;
    struct kn_backend *be = test_fastest();
    const struct kn_ops *op = kn_op(be);
    float x[64] = {0}, y[64] = {0};
    int32_t ids[4] = {0}, out[4];
    struct kn_conv c = {
        .x = x, .base = x, .dynamic = x, .stride = 4, .out = y, .n = 2, .width = 4, .group = 2, .taps = 2};
    assert_ok(be, op->conv(be, &c));
    c.group = 3;
    refused(be, op->conv(be, &c), "conv: 2 rows of 4 by 2 taps of groups of 3");
    c.group = 2, c.offset = 1;
    refused(be, op->conv(be, &c), "conv: 4 taps of a row from 1 on");
    c.offset = 0, c.taps = KN_CONV_TAPS + 1;
    refused(be, op->conv(be, &c), "conv: 2 rows");
    c.taps = 2, c.n = KN_CYCLE_ROWS + 1;
    refused(be, op->conv(be, &c), "conv: 65 rows");
    struct kn_top t = {x, 1, 8, 9, ids, y};
    refused(be, op->top(be, &t), "top: the 9 largest of 1 rows of 8 logits");
    t = (struct kn_top){x, 1, 100, KN_TOP_MOST + 1, ids, y};
    refused(be, op->top(be, &t), "top: the 65 largest");
    t.k = 2, t.n_vocab = 1 << 28;
    refused(be, op->top(be, &t), "top: 1 rows of 268435456 logits want");
    struct tables a, b;
    tables_make(&a, be, (uint32_t[]){KN_F32, KN_F32}, 8);
    tables_make(&b, be, (uint32_t[]){KN_F32, KN_F32}, 16);
    struct kn_edges e = {ids, x, ids, x, &a.w[0], &b.w[1], 1, 1, 2, y, NULL, NULL, 0};
    refused(be, op->edges(be, &e), "edges: tables of unequal shapes");
    e.after = &a.w[1], e.k = 0;
    refused(be, op->edges(be, &e), "edges: 1 slots of 0 candidates");
    struct kn_walk w = {ids, x, ids, 1, 2, {.temp = -1, .top_p = 1, .repeat_penalty = 1}, out, NULL};
    refused(be, op->walk(be, &w), "walk: temperature -1");
    w.n = 0;
    refused(be, op->walk(be, &w), "walk: 0 slots of 2 candidates");
    tables_free(&a, be), tables_free(&b, be);
    kn_backend_close(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conv),         cmocka_unit_test(test_conv_rows),
        cmocka_unit_test(test_without_norm), cmocka_unit_test(test_top),
        cmocka_unit_test(test_edges),        cmocka_unit_test(test_walk),
        cmocka_unit_test(test_walk_nan),     cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
