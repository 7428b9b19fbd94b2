/* test_families_ops.c - the CPU's operations of norms after a branch, gates and experts: each against plain
 * code in double written here, and the same bits from every instruction set, thread count and grouping of
 * rows. */
#include "ops_util.h"

#define EPS32 0x1p-24 /* half an ulp of 1: the rounding of one float operation */

static bool same_bits(const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++) /* NaNs compare as one */
        if (memcmp(a + i, b + i, 4) && !(isnan(a[i]) && isnan(b[i]))) return false;
    return true;
}

/* ---- norm_add ---- */

struct norm_case {
    int n, width;
    bool weight, in_place;
    float scale;
};

static void norm_add_check(const struct norm_case *c, uint64_t seed)
{
    const size_t w = (size_t)c->width, size = (size_t)c->n * w;
    float *x = test_alloc(size * 4), *y = test_alloc(size * 4), *g = test_alloc(w * 4),
          *want = test_alloc(size * 4), *out = test_alloc(size * 4);
    const float *weight = c->weight ? g : NULL;
    struct kn_backend *be;
    rnd_fill(x, size, 3.0f, &seed);
    rnd_fill(y, size, 0.02f, &seed);
    rnd_fill(g, w, 1.0f, &seed);
    for (int b = 0; (be = test_backend(b)); b++) {
        float *o = b ? out : want;
        const int step = b == 1 ? 1 : c->n; /* rows alone, rows together */
        memcpy(o, x, size * 4);
        for (int i = 0; i < c->n; i += step)
            assert_ok(be, kn_op(be)->norm_add(be, o + (size_t)i * w, (c->in_place ? o : x) + (size_t)i * w,
                                              y + (size_t)i * w, weight, step, c->width, 1e-5f, c->scale));
        if (b) assert_true(same_bits(out, want, size));
        kn_backend_close(be);
    }
    for (int i = 0; i < c->n; i++) {
        const float *yi = y + (size_t)i * w;
        double s = 0;
        for (int j = 0; j < c->width; j++) s += (double)yi[j] * yi[j];
        for (int j = 0; j < c->width; j++) {
            const size_t at = (size_t)i * w + (size_t)j;
            const double t = yi[j] / sqrt(s / c->width + 1e-5f) * (c->weight ? g[j] : 1.0);
            /* the norm's roundings: a chain of width / 64 sums, the tree and six more, half of them in the
             * root; then a sum and a product, of x + t */
            const double bound =
                EPS32 * (fabs(t) * (c->width / 128.0 + 9) + 2 * fabs(x[at] + t)) * fabs(c->scale);
            assert_true(fabs(want[at] - (x[at] + t) * c->scale) <= bound + 1e-37);
        }
    }
    free(x), free(y), free(g), free(want), free(out);
}

static void test_norm_add(void **state)
{
    (void)state;
    static const struct norm_case cases[] = {
        {1, 1, true, false, 1.0f},    {3, 15, true, true, 0.5f},      {5, 64, false, true, 1.0f},
        {4, 130, true, false, 0.07f}, {7, 2816, true, true, 0.0625f}, {40, 2048, true, true, 1.0f},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) norm_add_check(cases + i, i + 1);
    struct kn_backend *be = test_fastest();
    float x[4] = {1, 2, 3, 4};
    assert_int_equal(kn_op(be)->norm_add(be, x, x, x, NULL, 0, 4, 1e-6f, 1.0f), KN_EINVAL);
    assert_int_equal(kn_op(be)->norm_add(be, x, x, x, NULL, 1, 0, 1e-6f, 1.0f), KN_EINVAL);
    assert_non_null(strstr(kn_message(be), "norm_add"));
    kn_backend_close(be);
}

/* ---- gate ---- */

static void gate_check(int n, int width, int g_width, uint64_t seed)
{
    const size_t size = (size_t)n * (size_t)width, gates = (size_t)n * (size_t)g_width;
    float *x = test_alloc(size * 4), *g = test_alloc(gates * 4), *want = test_alloc(size * 4),
          *out = test_alloc(size * 4);
    struct kn_backend *be;
    rnd_fill(x, size, 1.0f, &seed);
    rnd_fill(g, gates, 8.0f, &seed);
    g[gates - 1] = -95.0f; /* a subnormal factor */
    for (int b = 0; (be = test_backend(b)); b++) {
        float *o = b ? out : want;
        const int step = b == 1 ? 1 : n;
        memcpy(o, x, size * 4);
        for (int i = 0; i < n; i += step)
            assert_ok(be, kn_op(be)->gate(be, o + i * width, g + i * g_width, step, width, g_width));
        if (b) assert_true(same_bits(out, want, size));
        kn_backend_close(be);
    }
    for (size_t i = 0; i < size; i++) {
        const double s = x[i] / (1 + exp(-(double)g[g_width == 1 ? i / (size_t)width : i]));
        assert_true(fabs(want[i] - s) <= 7 * EPS32 * fabs(s) + 0x1p-148); /* 3 ulp of sigmoid and a product */
    }
    free(x), free(g), free(want), free(out);
}

static void test_gate(void **state)
{
    (void)state;
    static const int cases[][3] = {{1, 1, 1},     {3, 17, 17},  {5, 33, 1},
                                   {2, 256, 256}, {9, 2048, 1}, {16, 4096, 4096}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        gate_check(cases[i][0], cases[i][1], cases[i][2], i + 1);
    struct kn_backend *be = test_fastest();
    float x[8] = {0};
    assert_int_equal(kn_op(be)->gate(be, x, x, 1, 8, 4), KN_EINVAL);
    assert_non_null(strstr(kn_message(be), "gate"));
    assert_int_equal(kn_op(be)->gate(be, x, x, 0, 8, 8), KN_EINVAL);
    kn_backend_close(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_norm_add),
        cmocka_unit_test(test_gate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
