/* test_delta.c - the gated delta net on the CPU: against plain code in double written here; the same bits
 * from every instruction set, thread count and cutting of rows into calls; what is accepted late equals what
 * was never in doubt. */
#include "delta_ref.h"
#include "ops_util.h"

static const struct shape shapes[] = {
    {2, 4, 128, 128, 4}, {2, 6, 32, 32, 4},   {1, 1, 20, 9, 3},  {3, 3, 16, 48, 1},
    {2, 2, 128, 7, 2},   {1, 2, 256, 256, 4}, {4, 8, 64, 33, 5},
};
#define N_SHAPES (sizeof shapes / sizeof *shapes)

struct memory {
    struct kn_delta_state s;
    size_t n_s, n_conv, n_log;
};

static struct memory memory_make(const struct layer *l)
{
    const struct shape *s = &l->s;
    struct memory m = {.n_s = l->size * (size_t)s->d_k,
                       .n_conv = l->width * (size_t)(s->n_conv - 1),
                       .n_log = KN_DELTA_LOG * (l->width + 2 * (size_t)s->n_v)};
    m.s = (struct kn_delta_state){test_alloc(m.n_s * 4), test_alloc(m.n_conv * 4), test_alloc(m.n_log * 4)};
    return m;
}

static void memory_free(struct memory *m)
{
    free(m->s.s), free(m->s.conv), free(m->s.log);
}

static void rows(struct kn_backend *be, const struct layer *l, const struct memory *m, int from, int n,
                 int32_t pending, bool commit, float *out)
{
    struct kn_delta d = layer_call(l, &m->s, from, n, &pending, commit, out);
    assert_ok(be, kn_op(be)->delta(be, &d));
}

static struct kn_backend *opened(struct kn_backend *be)
{
    if (be) assert_ok(be, kn_op(be)->reserve(be, 1, 0, 0, 1, 16));
    return be;
}

/* ---- against double ---- */

static void test_double(void **state)
{
    (void)state;
    struct kn_backend *be = opened(test_fastest());
    double worst = 0, worst_s = 0;
    for (size_t i = 0; i < N_SHAPES; i++) {
        struct layer l = layer_make(shapes + i, 20, i + 1);
        struct memory m = memory_make(&l);
        struct reference r = reference_make(&l);
        float *out = test_alloc((size_t)l.n * l.size * 4);
        rows(be, &l, &m, 0, l.n, 0, true, out);
        for (size_t k = 0; k < (size_t)l.n * l.size; k++) {
            const double e = fabs(out[k] - r.out[k]);
            if (!(e <= r.bound_out[k]))
                fail_msg("shape %zu, value %zu: %g, expected %g (bound %g)", i, k, (double)out[k], r.out[k],
                         r.bound_out[k]);
            worst = fmax(worst, e / r.bound_out[k]);
        }
        for (size_t k = 0; k < m.n_s; k++) {
            const double e = fabs(m.s.s[k] - r.s[k]), bound = r.bound_s[k / (size_t)l.s.d_k] / 16;
            assert_true(e <= bound);
            worst_s = fmax(worst_s, e / bound);
        }
        free(out);
        reference_free(&r);
        memory_free(&m);
        layer_free(&l);
    }
    print_message("largest error: %.3f of the bound, of the state %.3f\n", worst, worst_s);
    assert_true(worst > 0.02 && worst_s > 0.02); /* a bound that says nothing is none */
    kn_backend_close(be);
}

/* ---- bits ---- */

/* The same tokens through calls of every kind; out, state and the convolution's state must be those of one
 * final call. */
static void check_paths(struct kn_backend *be, const struct layer *l, const float *want,
                        const struct memory *last)
{
    static const int plans[][12] = {/* rows of a call, of which accepted; 0: final, 0 0 ends */
                                    {1, 1, 1, 1, 1, 1, 2, 2, 0, 0},
                                    {5, 3, 4, 0, 4, 4, 16, 1, 7, 2, 0, 0},
                                    {16, 16, 0, 0},
                                    {3, 2, 64, 9, 0, 0}};
    float *out = test_alloc((size_t)(l->n + 64) * l->size * 4), *before = test_alloc(last->n_s * 4);
    for (size_t p = 0; p < 4; p++) {
        struct memory m = memory_make(l);
        int32_t pending = 0;
        int at = 0;
        if (p == 3) { /* a prompt first */
            rows(be, l, &m, 0, 7, 0, true, out);
            at = 7;
        }
        for (const int *c = plans[p]; c[0]; c += 2) {
            const int n = l->n - at < c[0] ? l->n - at : c[0], take = n < c[1] ? n : c[1];
            if (!pending) memcpy(before, m.s.s, m.n_s * 4);
            rows(be, l, &m, at, n, pending, false, out);
            if (!pending) assert_memory_equal(before, m.s.s, m.n_s * 4); /* not touched by rows in doubt */
            /* what is written past the accepted rows will be written again */
            at += take;
            pending = take;
        }
        if (p == 1) { /* replay alone */
            rows(be, l, &m, at, 0, pending, false, out);
            pending = 0;
        }
        rows(be, l, &m, at, l->n - at, pending, true, out);
        assert_memory_equal(out, want, (size_t)l->n * l->size * 4);
        assert_memory_equal(m.s.s, last->s.s, m.n_s * 4);
        assert_memory_equal(m.s.conv, last->s.conv, m.n_conv * 4);
        memory_free(&m);
    }
    free(out), free(before);
}

/* The same one after another, the state written after so many. */
static void check_every(struct kn_backend *be, const struct layer *l, const float *want,
                        const struct memory *last)
{
    float *out = test_alloc((size_t)l->n * l->size * 4), *before = test_alloc(last->n_s * 4);
    for (int32_t every = 2; every <= KN_DELTA_EVERY; every += 7) {
        struct memory m = memory_make(l);
        int32_t pending = 0;
        for (int at = 0; at < l->n; at++) {
            struct kn_delta d = layer_call(l, &m.s, at, 1, &pending, true, out);
            d.every = every;
            memcpy(before, m.s.s, m.n_s * 4);
            assert_ok(be, kn_op(be)->delta(be, &d));
            pending = (pending + 1) % every;
            if (pending) assert_memory_equal(before, m.s.s, m.n_s * 4);
        }
        rows(be, l, &m, l->n, 0, pending, true, out);
        assert_memory_equal(out, want, (size_t)l->n * l->size * 4);
        assert_memory_equal(m.s.s, last->s.s, m.n_s * 4);
        assert_memory_equal(m.s.conv, last->s.conv, m.n_conv * 4);
        memory_free(&m);
    }
    free(out), free(before);
}

static void test_bits(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_SHAPES; i++) {
        struct layer l = layer_make(shapes + i, i == 1 ? 300 : 37, i + 10);
        struct memory last = memory_make(&l), m;
        const size_t n = (size_t)l.n * l.size;
        float *want = test_alloc(n * 4), *out = test_alloc(n * 4);
        struct kn_backend *be;
        for (int b = 0; (be = opened(test_backend(b))); b++) {
            if (b == 0) {
                rows(be, &l, &last, 0, l.n, 0, true, want);
                for (size_t k = 0; k < last.n_log; k++) assert_true(last.s.log[k] == 0.0f);
            }
            m = memory_make(&l);
            rows(be, &l, &m, 0, l.n, 0, true, out);
            assert_memory_equal(out, want, n * 4);
            assert_memory_equal(m.s.s, last.s.s, m.n_s * 4);
            assert_memory_equal(m.s.conv, last.s.conv, m.n_conv * 4);
            memory_free(&m);
            if (b % 2 == 0) check_paths(be, &l, want, &last);
            if (b % 2 == 0) check_every(be, &l, want, &last);
            kn_backend_close(be);
        }
        memory_free(&last);
        layer_free(&l);
        free(want), free(out);
    }
}

/* The log holds the rows' own inputs. */
static void test_log(void **state)
{
    (void)state;
    struct kn_backend *be = opened(test_fastest());
    struct layer l = layer_make(shapes + 1, 64, 5);
    struct memory m = memory_make(&l);
    float *out = test_alloc((size_t)l.n * l.size * 4);
    rows(be, &l, &m, 0, 64, 0, false, out);
    const size_t row = l.width + 2 * (size_t)l.s.n_v, gates = (size_t)l.s.n_v;
    for (size_t i = 0; i < 64; i++) {
        assert_memory_equal(m.s.log + i * row, l.qkv + i * l.width, l.width * 4);
        assert_memory_equal(m.s.log + i * row + l.width, l.alpha + i * gates, gates * 4);
        assert_memory_equal(m.s.log + i * row + l.width + gates, l.beta + i * gates, gates * 4);
    }
    for (size_t i = 0; i < m.n_s; i++) assert_true(m.s.s[i] == 0.0f);
    for (size_t i = 0; i < m.n_conv; i++) assert_true(m.s.conv[i] == 0.0f);
    free(out);
    memory_free(&m);
    layer_free(&l);
    kn_backend_close(be);
}

/* Extremes of the gates: no overflow, and a NaN shows. */
static void test_extremes(void **state)
{
    (void)state;
    struct kn_backend *be = opened(test_fastest());
    struct layer l = layer_make(shapes + 1, 8, 6);
    struct memory m = memory_make(&l);
    float *out = test_alloc((size_t)l.n * l.size * 4);
    const int n_v = l.s.n_v;
    l.alpha[0] = 1e30f, l.alpha[n_v] = -1e30f, l.beta[0] = -1e30f, l.beta[n_v] = 1e30f;
    memset(l.qkv + 2 * l.width, 0, l.width * 4); /* rows of zeros have no direction */
    memset(l.qkv + 3 * l.width, 0, l.width * 4);
    memset(l.qkv + 4 * l.width, 0, l.width * 4);
    memset(l.qkv + 5 * l.width, 0, l.width * 4);
    l.qkv[7 * l.width + 1] = NAN; /* of the first query head */
    rows(be, &l, &m, 0, 8, 0, true, out);
    for (size_t i = 0; i < 7 * l.size; i++) assert_true(isfinite(out[i]));
    for (size_t i = 7 * l.size; i < 8 * l.size; i++)
        assert_int_equal(isnan(out[i]) != 0, (i - 7 * l.size) / (size_t)l.s.d_v % (size_t)l.s.n_k == 0);
    free(out);
    memory_free(&m);
    layer_free(&l);
    kn_backend_close(be);
}

static void test_refuses(void **state)
{
    (void)state;
    struct kn_backend *be = test_fastest();
    struct layer l = layer_make(shapes + 1, 65, 5);
    struct memory m = memory_make(&l);
    float *out = test_alloc((size_t)l.n * l.size * 4);
    int32_t pending = 0;
    struct kn_delta d = layer_call(&l, &m.s, 0, 1, &pending, false, out);
    assert_int_equal(kn_op(be)->delta(be, &d), KN_EINVAL);
    assert_non_null(strstr(kn_message(be), "reserved"));
    opened(be);
    assert_ok(be, kn_op(be)->delta(be, &d));
#define REFUSED(change, code, word)                                                                          \
    do {                                                                                                     \
        d = layer_call(&l, &m.s, 0, 1, &pending, false, out);                                                \
        change;                                                                                              \
        assert_int_equal(kn_op(be)->delta(be, &d), code);                                                    \
        assert_non_null(strstr(kn_message(be), "delta: " word));                                             \
    } while (0)
    REFUSED(d.n = 65, KN_EINVAL, "65 rows");
    REFUSED(d.n = -1, KN_EINVAL, "-1 rows");
    REFUSED(d.n_v = 5, KN_ETYPE, "5 value heads over 2");
    REFUSED(d.d_k = 257, KN_ETYPE, "heads of 257");
    REFUSED(d.d_v = 0, KN_ETYPE, "heads of 32 and 0");
    REFUSED(d.n_conv = 17, KN_ETYPE, "a convolution of 17");
    REFUSED(d.pending = NULL, KN_EINVAL, "no state");
    REFUSED(d.state = NULL, KN_EINVAL, "no state");
    REFUSED(d.every = 4, KN_EINVAL, "a state every 4 rows"); /* which are not final */
    REFUSED((d.commit = true, d.every = 17), KN_EINVAL, "a state every 17 rows");
    REFUSED((d.commit = true, d.every = 2, d.n = 2), KN_EINVAL, "a state every 2 rows");
    REFUSED(pending = 65, KN_EINVAL, "65 pending");
    REFUSED(pending = -1, KN_EINVAL, "-1 pending");
    pending = 0;
    d = layer_call(&l, &m.s, 0, 0, &pending, false, out);
    assert_ok(be, kn_op(be)->delta(be, &d));
    d = layer_call(&l, &m.s, 0, 65, &pending, true, out);
    assert_ok(be, kn_op(be)->delta(be, &d));
    free(out);
    memory_free(&m);
    layer_free(&l);
    kn_backend_close(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_double),   cmocka_unit_test(test_bits),    cmocka_unit_test(test_log),
        cmocka_unit_test(test_extremes), cmocka_unit_test(test_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
