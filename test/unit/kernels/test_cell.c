/* test_cell.c - what stands between the products of a drafter's chain: each kind against double precision,
 * the same bits from every instruction set and number of threads; and the logits of a reduced vocabulary. */
#include "ops_util.h"

enum { MOST = 300 };
static float x[3 * MOST], h[3 * MOST], bias[3 * MOST], e[MOST], state[MOST];

static double sigma(double v)
{
    return 1.0 / (1.0 + exp(-v));
}
static double with(const float *v, int i)
{
    return v ? (double)v[i] : 0.0;
}

/* Element i of out and next. */
static void reference(const struct kn_cell *a, int i, double *out, double *next)
{
    const int n = a->width;
    const double s = with(a->state, i);
    double keep = 0, fresh = 0;
    *out = *next = 0;
    switch (a->kind) {
    case KN_CELL_SILU: *out = a->x[i] * sigma(a->x[i]); return;
    case KN_CELL_GATE: *out = a->e[i] * sigma(a->x[i] + with(a->bias, i)); return;
    case KN_CELL_LOGP: *out = -log1p(exp(-(a->x[i] + with(a->bias, 0)))); return;
    case KN_CELL_MARKOV:
        *out = tanh(a->x[2 * n + i] + with(a->bias, 2 * n + i));
        keep = sigma(a->x[i] + with(a->bias, i));
        fresh = tanh(a->x[n + i] + with(a->bias, n + i));
        break;
    case KN_CELL_GRU:
        keep = sigma(a->x[n + i] + with(a->h, n + i));
        fresh = tanh(a->x[2 * n + i] + sigma(a->x[i] + with(a->h, i)) * with(a->h, 2 * n + i));
        break;
    }
    *next = keep * s + (1 - keep) * fresh;
}

/* Sums of inputs are rounded to float before a function, so their half ulp (of up to 40) is added to what the
 * functions err, a few ulps of the result. */
static bool near(float got, double want, double in)
{
    return fabs(got - want) <= (fabs(want) * 8 + 1e-30 + in) * 0x1p-24;
}

static void check(struct kn_backend *be, struct kn_cell a, bool first, float *want_out, float *want_next)
{
    float out[MOST] = {0}, next[MOST] = {0};
    const bool has_next = a.kind == KN_CELL_MARKOV || a.kind == KN_CELL_GRU;
    a.out = a.kind == KN_CELL_GRU ? NULL : out;
    a.next = has_next ? next : NULL;
    assert_ok(be, kn_op(be)->cell(be, &a));
    for (int i = 0; i < a.width && first; i++) {
        double o, s;
        reference(&a, i, &o, &s);
        if (!near(out[i], o, 60) || !near(next[i], s, 60))
            fail_msg("kind %d, %d of %d: %.9g, %.9g (expected %.9g, %.9g)", (int)a.kind, i, a.width,
                     (double)out[i], (double)next[i], o, s);
    }
    if (first) memcpy(want_out, out, sizeof out), memcpy(want_next, next, sizeof next);
    assert_memory_equal(out, want_out, sizeof out);
    assert_memory_equal(next, want_next, sizeof next);
}

static void test_kinds(void **test)
{
    (void)test;
    static const int widths[] = {1, 15, 16, 32, 70, 256, MOST};
    float want_out[MOST], want_next[MOST];
    uint64_t seed = 11;
    struct kn_backend *be;
    rnd_fill(x, 3 * MOST, 4.0f, &seed), rnd_fill(h, 3 * MOST, 4.0f, &seed);
    rnd_fill(bias, 3 * MOST, 2.0f, &seed), rnd_fill(e, MOST, 1.0f, &seed), rnd_fill(state, MOST, 1.0f, &seed);
    x[0] = 0, x[1] = 30, x[2] = -30, x[3] = -0.0f;
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
        for (int kind = KN_CELL_SILU; kind <= KN_CELL_LOGP; kind++)
            for (int bare = 0; bare < 2; bare++) {
                const bool gru = kind == KN_CELL_GRU;
                const struct kn_cell a = {.kind = (enum kn_cell_kind)kind,
                                          .width = widths[w],
                                          .x = x,
                                          .h = gru && !bare ? h : NULL,
                                          .bias = bare || gru || kind == KN_CELL_SILU ? NULL : bias,
                                          .e = e,
                                          .state = bare ? NULL : state};
                for (int b = 0; (be = test_backend(b)); b++) {
                    check(be, a, b == 0, want_out, want_next);
                    kn_backend_close(be);
                }
            }
}

/* The state may be written over, and a confidence that is none stays none. */
static void test_places(void **test)
{
    (void)test;
    struct kn_backend *be = test_fastest();
    float s[40], out[40], next[40];
    uint64_t seed = 12;
    rnd_fill(x, 120, 2.0f, &seed), rnd_fill(h, 120, 2.0f, &seed), rnd_fill(s, 40, 1.0f, &seed);
    struct kn_cell a = {
        .kind = KN_CELL_GRU, .width = 40, .x = x, .h = h, .state = s, .next = next, .out = NULL};
    assert_ok(be, kn_op(be)->cell(be, &a));
    a.next = s;
    assert_ok(be, kn_op(be)->cell(be, &a));
    assert_memory_equal(s, next, sizeof s);
    x[3] = NAN, x[4] = 200, x[5] = -200;
    const struct kn_cell logp = {.kind = KN_CELL_LOGP, .width = 8, .x = x, .out = out};
    assert_ok(be, kn_op(be)->cell(be, &logp));
    assert_true(isnan(out[3]) && out[4] == 0 && out[5] == -200);
    const struct kn_cell bad[] = {{.kind = KN_CELL_SILU, .width = 0, .x = x, .out = out},
                                  {.kind = KN_CELL_GATE, .width = 4, .x = x, .out = out},
                                  {.kind = KN_CELL_MARKOV, .width = 4, .x = x, .out = out},
                                  {.kind = KN_CELL_GRU, .width = 4, .x = x, .h = h, .next = next},
                                  {.kind = KN_CELL_LOGP, .width = 4, .x = x}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(kn_op(be)->cell(be, &bad[i]), KN_EINVAL);
    kn_backend_close(be);
}

static void test_spread(void **test)
{
    (void)test;
    enum { N = 3, V = 70001, PART = 1234 };
    float *part = test_alloc(N * PART * 4), *out = test_alloc((size_t)N * V * 4);
    int32_t *from = test_alloc(V * 4);
    uint64_t seed = 13;
    struct kn_backend *be;
    rnd_fill(part, N * PART, 3.0f, &seed);
    for (int v = 0; v < V; v++) from[v] = v % 56 == 7 && v / 56 < PART ? PART - 1 - v / 56 : -1;
    for (int b = 0; (be = test_backend(b)); b++) {
        assert_ok(be, kn_op(be)->spread(be, out, V, part, PART, from, N));
        for (int i = 0; i < N; i++)
            for (int v = 0; v < V; v++)
                assert_true(out[i * V + v] == (from[v] < 0 ? -INFINITY : part[i * PART + from[v]]));
        assert_int_equal(kn_op(be)->spread(be, out, V, part, PART - 1, from, 1), KN_EINVAL);
        assert_non_null(strstr(kn_message(be), "for 7 (expected below 1233)"));
        assert_int_equal(kn_op(be)->spread(be, out, 5, part, 6, from, 1), KN_EINVAL);
        kn_backend_close(be);
    }
    free(part), free(out), free(from);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_spread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
