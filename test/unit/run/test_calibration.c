/* test_calibration.c - probabilities of proposals: what is learnt from which labels, how fast, and the file.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include <math.h>

#include "../../../common/base/mem.h"
#include "../../../common/run/calibration.h"
#include "../scratch.h"

static uint64_t chance;

static double uniform(void)
{
    chance += 0x9e3779b97f4a7c15u;
    uint64_t x = chance;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return ((double)((x ^ (x >> 31)) >> 11) + 0.5) / 9007199254740992.;
}

static double logp_of(double logit)
{
    return -log1p(exp(-logit));
}

static double truth(double logit)
{
    return 1 / (1 + exp(-logit));
}

static double mean_of(const struct calibration *c, int32_t j, double logp)
{
    return calibration_draft(c, 0, j, logp, 0);
}

/* A cycle that verified n proposals of logits x [n], the first right of them right. */
static void cycle(struct calibration *c, const double *x, int32_t n, int32_t right)
{
    float logp[CALIBRATION_SLOTS];
    struct plan_result r = {
        .offer = {.n_draft = n, .logp = logp}, .choice = {.rows = n + 1}, .drafted = true};
    for (int32_t j = 0; j < n; j++) logp[j] = (float)logp_of(x[j]);
    r.kept = right + 1, r.labelled = n < r.kept ? n : r.kept, r.equal = right;
    calibration_seen(c, 0, &r);
}

static void test_temperatures(void **state)
{
    (void)state;
    static const double t[] = {0, 0.01, 0.65, 0.66, 0.9, 0.91, 5};
    static const int32_t coupled[] = {0, 1, 1, 2, 2, 3, 3}, greedy[] = {0, 4, 4, 5, 5, 6, 6};
    for (size_t i = 0; i < 7; i++) {
        assert_int_equal(calibration_bucket(1, t[i], false), coupled[i]);
        assert_int_equal(calibration_bucket(1, t[i], true), greedy[i]);
    }
}

/* Whatever comes is a probability; in the prior, likelier proposals are no less likely. */
static void test_is_a_probability(void **state)
{
    (void)state;
    static const double odd[] = {-INFINITY, -1e30, -800, -20, -7, -1, -1e-3, -1e-12, 0, 1, INFINITY};
    struct calibration c;
    calibration_init(&c);
    for (int round = 0; round < 2; round++) {
        for (int32_t t = 0; t < CALIBRATION_BUCKETS; t++)
            for (int32_t j = 0; j < 80; j++) {
                double before = 0;
                for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
                    const double h = calibration_draft(&c, t, j, odd[i], 0);
                    assert_true(h > 0 && h < 1 && (round || h >= before));
                    before = h;
                }
                const double unknown = calibration_draft(&c, t, j, NAN, 0);
                assert_true(unknown == calibration_draft(&c, t, j, -log(2), 0));
                assert_true(calibration_draft(&c, t, j, -1, 0.6) > calibration_draft(&c, t, j, -1, 0));
            }
        /* Also after labels that contradict all sense: the improbable right, the sure wrong. */
        for (int i = 0; i < 300; i++) {
            const double x[] = {i % 2 ? 9. : -9.};
            cycle(&c, x, 1, i % 2 ? 0 : 1);
        }
    }
}

/* Drafters that think too much or too little of themselves. */
static void test_learns(void **state)
{
    (void)state;
    static const double a[] = {0, -2, 1.5, 0.5}, w[] = {1, 0.5, 1.5, 0};
    enum { SLOTS = 7 };
    for (size_t k = 0; k < 4; k++) {
        struct calibration c;
        double off = 0, prior_off = 0;
        int n = 0;
        calibration_init(&c);
        for (int i = 0; i < 1500; i++) {
            double x[SLOTS];
            int32_t right = 0;
            bool good = true;
            for (int j = 0; j < SLOTS; j++) {
                x[j] = 6 * uniform() - 3;
                good = good && uniform() < truth(a[k] + w[k] * x[j]);
                right += good;
            }
            if (i == 500) memset(c.draft_gauge, 0, sizeof c.draft_gauge);
            cycle(&c, x, SLOTS, right);
        }
        struct calibration fresh;
        calibration_init(&fresh);
        for (double x = -2.5; x <= 2.5; x += 0.5, n++) {
            off += fabs(mean_of(&c, 1, logp_of(x)) - truth(a[k] + w[k] * x));
            prior_off += fabs(mean_of(&fresh, 1, logp_of(x)) - truth(a[k] + w[k] * x));
        }
        /* Beliefs age, so some 25 labels' noise stays. */
        if (!(off / n < 0.08)) fail_msg("%zu: off by %.3f on average", k, off / n);
        assert_true(k == 0 || off < prior_off);
        const struct calibration_gauge *g = &c.draft_gauge[0][0];
        assert_int_equal(g->labels, 1000);
        if (!(fabs(g->predicted - (double)g->equal) < 45)) /* 3 deviations of 1000 labels */
            fail_msg("%zu: predicted %.1f, seen %ld", k, g->predicted, (long)g->equal);
        assert_true(c.draft_gauge[0][6].labels < g->labels);
    }
}

static void test_how_fast(void **state)
{
    (void)state;
    const double sure[] = {3.5, 3.5, 3.5};
    struct calibration c;
    calibration_init(&c);
    assert_true(mean_of(&c, 1, logp_of(3.5)) > 0.9);
    int n = 0;
    while (mean_of(&c, 1, logp_of(3.5)) > 0.4 && n < 100) cycle(&c, sure, 3, 0), n++;
    assert_in_range(n, 2, 6);                        /* never right and always sure */
    assert_true(mean_of(&c, 3, logp_of(3.5)) < 0.6); /* slots share it */
    /* One that was right a hundred times is not doubted for one miss, and is for ten. */
    calibration_init(&c);
    for (int i = 0; i < 100; i++) cycle(&c, sure, 3, 3);
    cycle(&c, sure, 3, 0);
    assert_true(mean_of(&c, 1, logp_of(3.5)) > 0.9);
    for (n = 1; mean_of(&c, 1, logp_of(3.5)) > 0.4 && n < 100; n++) cycle(&c, sure, 3, 0);
    assert_in_range(n, 5, 30);
}

/* No label, nothing learnt; and only where what stands before matched. */
static void test_labels(void **state)
{
    (void)state;
    const double x[] = {1, 1, 1, 1};
    const struct plan_result plain = {.choice = {.rows = 1}, .kept = 1};
    struct calibration c, was;
    calibration_init(&c);
    was = c;
    calibration_seen(&c, 0, &plain);
    assert_memory_equal(&c, &was, sizeof c); /* the prior does not age */
    cycle(&c, x, 4, 1);
    assert_int_equal(c.draft_gauge[0][0].labels, 1), assert_int_equal(c.draft_gauge[0][0].equal, 1);
    assert_int_equal(c.draft_gauge[0][1].labels, 1), assert_int_equal(c.draft_gauge[0][1].equal, 0);
    assert_int_equal(c.draft_gauge[0][2].labels, 0);
    assert_true(c.draft[0].slot[0].mean > 0 && c.draft[0].slot[1].mean < 0 && c.draft[0].slot[2].mean == 0);
    for (int32_t t = 1; t < CALIBRATION_BUCKETS; t++)
        assert_memory_equal(&c.draft[t], &was.draft[t], sizeof c.draft[t]);
    assert_memory_equal(c.look, was.look, sizeof c.look);
    /* Labels make sure, time makes unsure again, and never more so than at first. */
    for (int i = 0; i < 30; i++) cycle(&c, x, 4, 4);
    assert_true(c.draft[0].intercept.variance < was.draft[0].intercept.variance / 3);
    const double mean = c.draft[0].intercept.mean;
    for (int i = 0; i < 1000; i++) calibration_seen(&c, 0, &plain);
    assert_true(c.draft[0].intercept.variance == was.draft[0].intercept.variance);
    assert_true(c.draft[0].slot[0].variance == was.draft[0].slot[0].variance);
    assert_true(c.draft[0].intercept.mean == mean);
}

static void test_look_ups(void **state)
{
    (void)state;
    struct calibration c, was;
    calibration_init(&c);
    for (int32_t m = 2; m < 40; m++)
        assert_true(calibration_look(&c, m, 1) >= calibration_look(&c, m - 1, 1));
    assert_true(calibration_look(&c, 40, 60) > 0.9);
    /* Never right: found out within a few labels, and in matches of that length alone. */
    struct plan_result r = {
        .offer = {.n_look = 8, .match = 12}, .choice = {8, true}, .kept = 1, .labelled = 1};
    was = c;
    int n = 0;
    for (; calibration_look(&c, 12, 1) > 0.3 && n < 100; n++) calibration_seen(&c, 0, &r);
    assert_in_range(n, 2, 8);
    assert_true(calibration_look(&c, 3, 1) == calibration_look(&was, 3, 1));
    assert_true(calibration_look(&c, 12, 2) == calibration_look(&was, 12, 2));
    assert_int_equal(c.look_gauge[0].labels, n), assert_int_equal(c.look_gauge[0].equal, 0);
    /* Right again: within tens. */
    r.kept = 8, r.labelled = r.equal = 7;
    for (n = 0; calibration_look(&c, 12, 1) < 0.7 && n < 100; n++) calibration_seen(&c, 0, &r);
    assert_in_range(n, 3, 40);
    assert_int_equal(c.look_gauge[6].equal, n);
}

/* A proposal that both chains share is a label of both; what they don't share, of the chosen one. */
static void test_shared(void **state)
{
    (void)state;
    const float logp[] = {-1, -1, -1, -1};
    for (int look = 0; look < 2; look++) {
        struct calibration c;
        struct plan_result r = {.offer = {.n_draft = 4, .logp = logp, .n_look = 6, .match = 5, .agree = 2},
                                .choice = {5, look},
                                .drafted = true,
                                .kept = 5,
                                .labelled = 4,
                                .equal = 4};
        calibration_init(&c);
        calibration_seen(&c, 0, &r);
        for (int j = 0; j < 4; j++) {
            assert_int_equal(c.draft_gauge[0][j].labels, j < 2 || !look);
            assert_int_equal(c.look_gauge[j].labels, j < 2 || look);
        }
    }
}

static void test_file(void **state)
{
    (void)state;
    static const char doc[] = "{\"schema\": 1, \"of\": \"a pair\", \"draft\": [{\"bucket\": \"coupled 0.9\", "
                              "\"intercept\": [0.5, 0.1], "
                              "\"slope\": [1.25, 0.01], \"slots\": [[0.25, 0.5], [-1, 0]]}]}";
    const double x[] = {1, -1, 2};
    struct calibration c, back, prior;
    struct err e = {0};
    calibration_init(&prior);
    assert_int_equal(calibration_parse(&c, doc, strlen(doc), "doc", &e), 0);
    assert_string_equal(c.of, "a pair");
    assert_true(c.draft[2].intercept.mean == 0.5 && c.draft[2].slope.variance == 0.01);
    assert_true(c.draft[2].slot[0].mean == 0.25 && c.draft[2].slot[62].mean == -1);
    assert_memory_equal(c.draft, prior.draft, 2 * sizeof c.draft[0]);
    assert_memory_equal(c.look, prior.look, sizeof c.look);
    /* What was learnt, written and read, predicts the same bits. */
    for (int i = 0; i < 20; i++) cycle(&c, x, 3, i % 4);
    char path[160];
    snprintf(path, sizeof path, "%s", scratch("calibration.json"));
    assert_int_equal(calibration_write(&c, path, false, &e), 0);
    assert_int_equal(calibration_read(&back, path, &e), 0);
    assert_memory_equal(c.draft, back.draft, sizeof c.draft);
    assert_memory_equal(c.look, back.look, sizeof c.look);
    assert_string_equal(c.of, back.of);
    assert_int_equal(calibration_read(&back, "/nonexistent/c.json", &e), -1);
    assert_int_equal(e.code, ERR_IO);
}

#define D(x) "{\"schema\":1,\"draft\":[" x "]}"
#define OK "\"intercept\":[0,1],\"slope\":[1,1]"
static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *msg;
    } c[] = {
        {"[]", "f: not a calibration (expected a JSON object, got [])"},
        {"{}", "f: schema (expected 1, got nothing)"},
        {"{\"schema\":1}", "f: draft (expected an array of one bucket or more, got nothing)"},
        {"{\"schema\":1,\"drafts\":1}",
         "f: unknown key \"drafts\" (expected schema or another that is documented)"},
        {D("{}"), "f: draft[0]: bucket (expected \"0\", or coupled or greedy and 0.65, 0.9 or above, as "
                  "\"coupled 0.9\", got nothing)"},
        {D("{\"bucket\":\"0.65\"}"), /* of which kind? */
         "f: draft[0]: bucket (expected \"0\", or coupled or greedy and 0.65, 0.9 or above, as \"coupled "
         "0.9\", got \"0.65\")"},
        {D("{\"bucket\":\"0\"}"), "f: draft[0]: intercept (expected [-100 to 100, 0 to 100], got nothing)"},
        {D("{\"bucket\":\"0\",\"intercept\":[0,-1]}"),
         "f: draft[0]: intercept (expected [-100 to 100, 0 to 100], got [0,-1])"},
        {D("{\"bucket\":\"0\",\"intercept\":[0,1],\"slope\":[1]}"),
         "f: draft[0]: slope (expected [-100 to 100, 0 to 100], got [1])"},
        {D("{\"bucket\":\"0\"," OK "}"), "f: draft[0]: slots (expected an array of 1 to 63, got nothing)"},
        {D("{\"bucket\":\"0\"," OK ",\"slots\":[]}"),
         "f: draft[0]: slots (expected an array of 1 to 63, got [])"},
        {D("{\"bucket\":\"0\"," OK ",\"slots\":[[0,0],[0,\"x\"]]}"),
         "f: draft[0]: slots[1] (expected [-100 to 100, 0 to 100], got [0,\"x\"])"},
        {D("{\"bucket\":\"0\"," OK ",\"slots\":[[0,0]]},{\"bucket\":\"0\"}"),
         "f: draft[1]: bucket (expected one that was not there before, got \"0\")"},
        {"{\"schema\":1,\"draft\":[{\"bucket\":\"0\"," OK ",\"slots\":[[0,0]]}],\"lookup\":[]}",
         "f: lookup (expected an array of 7 rows, got [])"},
        {"{\"schema\":1,\"draft\":[{\"bucket\":\"0\"," OK
         ",\"slots\":[[0,0]]}],\"lookup\":[[[2,1],0,0,0],0,0,0,0,0,0]}",
         "f: lookup[0][0] (expected [0 to 1, 0 to 1e+09], got [2,1])"},
    };
    for (size_t i = 0; i < sizeof c / sizeof c[0]; i++) {
        struct calibration k;
        struct err e = {0};
        assert_int_equal(calibration_parse(&k, c[i].text, strlen(c[i].text), "f", &e), -1);
        assert_int_equal(e.code, ERR_FORMAT);
        assert_string_equal(e.msg, c[i].msg);
    }
}

static void test_memory_fails(void **state)
{
    (void)state;
    struct calibration c, back;
    const char *path = scratch("fails.json");
    calibration_init(&c);
    bool failed = true;
    for (uint64_t n = 1; failed; n = n < 40 ? n + 1 : n + 37) {
        struct err e = {0};
        mem_fail_one(n);
        failed = calibration_write(&c, path, true, &e);
        mem_fail_at(0);
        if (failed) assert_int_equal(e.code, ERR_IO);
        if (failed) assert_int_equal(access(path, F_OK), -1);
        assert_true(n < 20000);
    }
    struct err e = {0};
    assert_int_equal(calibration_read(&back, path, &e), 0);
    assert_memory_equal(&c, &back, sizeof c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_temperatures), cmocka_unit_test(test_is_a_probability),
        cmocka_unit_test(test_learns),       cmocka_unit_test(test_how_fast),
        cmocka_unit_test(test_labels),       cmocka_unit_test(test_look_ups),
        cmocka_unit_test(test_shared),       cmocka_unit_test(test_file),
        cmocka_unit_test(test_refused),      cmocka_unit_test(test_memory_fails),
    };
    scratch_begin();
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    scratch_end();
    return failed;
}
