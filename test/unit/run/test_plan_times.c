/* test_plan_times.c - times of plans: what is looked up and estimated, what stamps change, and the file. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include <math.h>

#include "../../../common/base/mem.h"
#include "../../../common/run/plan_times.h"
#include "../scratch.h"

static void near(double is, double want)
{
    if (!(fabs(is - want) <= 1e-12 * fabs(want))) fail_msg("%.17g, expected %.17g", is, want);
}

/* A cliff between 8 and 9 rows. */
static struct plan_times made(void)
{
    struct plan_times t = {.of = "made up", .overhead_s = 6e-6};
    t.draft_s[0][0] = 5e-4, t.draft_s[0][2] = 7e-4;
    t.rows_s[0][1] = 1e-3, t.rows_s[0][2] = 1.5e-3, t.rows_s[0][8] = 1.8e-3, t.rows_s[0][9] = 3e-3;
    t.rows_s[0][16] = 3.1e-3;
    t.rows_s[2][1] = 2e-3;
    return t;
}

static void test_buckets(void **state)
{
    (void)state;
    static const int32_t c[][2] = {{-1, 0},       {0, 0},         {2047, 0},       {2048, 1},
                                   {4095, 1},     {4096, 2},      {(1 << 20), 10}, {(1 << 21) - 1, 10},
                                   {1 << 21, 11}, {INT32_MAX, 11}};
    for (size_t i = 0; i < sizeof c / sizeof c[0]; i++) assert_int_equal(plan_times_bucket(c[i][0]), c[i][1]);
    for (int32_t b = 0; b < PLAN_TIMES_BUCKETS; b++)
        assert_int_equal(plan_times_bucket(plan_times_context(b)), b);
}

static void test_looked_up(void **state)
{
    (void)state;
    struct plan_times t = made();
    near(plan_times_rows(&t, 1, 0), 1e-3);
    near(plan_times_rows(&t, 8, 100), 1.8e-3);
    near(plan_times_rows(&t, 9, 100), 3e-3); /* the cliff is where it was measured */
    near(plan_times_rows(&t, 5, 0), 1.65e-3);
    near(plan_times_rows(&t, 17, 0), 3.1e-3 + 0.1e-3 / 7);
    near(plan_times_rows(&t, 99, 0), plan_times_rows(&t, 64, 0));
    near(plan_times_rows(&t, 0, 0), 1e-3);
    near(plan_times_draft(&t, 1, 0), 5e-4);
    /* Buckets without times: the one below's, by the ratio of plain steps where both are known. */
    near(plan_times_rows(&t, 8, 3000), 1.8e-3);
    near(plan_times_rows(&t, 8, 5000), 3.6e-3);
    near(plan_times_rows(&t, 8, 1 << 20), 1.8e-3);
    near(plan_times_draft(&t, 1, 3000), 5e-4);
    near(plan_times_draft(&t, 1, 9000), 7e-4);
    assert_true(plan_times_measured(&t, 9, 2047) && !plan_times_measured(&t, 9, 2048));
    assert_false(plan_times_measured(&t, 5, 0) || plan_times_measured(&t, 65, 0));
    /* A falling end is not drawn on. */
    t.rows_s[0][16] = 2.9e-3;
    near(plan_times_rows(&t, 40, 0), 2.9e-3);
    /* Of the bucket above where there is none below. */
    struct plan_times far = {0};
    far.rows_s[3][1] = 1, far.rows_s[3][4] = 2, far.draft_s[0][4] = 3;
    near(plan_times_rows(&far, 4, 0), 2);
    near(plan_times_draft(&far, 1, 0), 3);
    assert_true(plan_times_rows(&(struct plan_times){0}, 4, 0) == 0);
    /* Put as measured. */
    double verify_s[PLAN_TIMES_ROWS + 1] = {7, 7, 0, 3}, draft_s[PLAN_SOURCES] = {2};
    plan_times_put(&t, 3000, 1, draft_s, verify_s);
    near(plan_times_rows(&t, 1, 2048), 1), near(plan_times_draft(&t, 1, 4095), 2);
    near(plan_times_rows(&t, 3, 2048), 3), near(plan_times_rows(&t, 2, 2048), 2);
    assert_false(plan_times_measured(&t, 2, 2048));
}

static void test_stamps(void **state)
{
    (void)state;
    struct plan_times t = made(), was = t;
    plan_times_seen_rows(&t, 8, 10, 2.2e-3);
    near(t.rows_s[0][8], 1.85e-3);
    t.rows_s[0][8] = was.rows_s[0][8];
    assert_memory_equal(&t, &was, sizeof t); /* no other count, no other bucket */
    plan_times_seen_rows(&t, 8, 10, 1);      /* a pause counts as twice the time */
    near(t.rows_s[0][8], 1.8e-3 * 1.125);
    t = was;
    plan_times_seen_rows(&t, 8, 10, 1e-9);
    near(t.rows_s[0][8], 1.8e-3 * (1 - 0.0625));
    /* What was estimated is taken as it is, within bounds. */
    plan_times_seen_rows(&t, 5, 10, 1.7e-3);
    near(t.rows_s[0][5], 1.7e-3);
    plan_times_seen_rows(&t, 8, 3000, 9);
    near(t.rows_s[1][8], 2 * was.rows_s[0][8] * (1 - 0.0625));
    plan_times_seen_draft(&t, 1, 0, 5.8e-4);
    near(t.draft_s[0][0], 5.1e-4);
    plan_times_seen_overhead(&t, 14e-6);
    near(t.overhead_s, 6.75e-6);
    /* No number, or no row count. */
    was = t;
    plan_times_seen_rows(&t, 8, 0, NAN), plan_times_seen_rows(&t, 8, 0, INFINITY);
    plan_times_seen_rows(&t, 8, 0, 0), plan_times_seen_rows(&t, 8, 0, -1),
        plan_times_seen_draft(&t, 1, 0, NAN);
    plan_times_seen_rows(&t, 0, 0, 1), plan_times_seen_rows(&t, 65, 0, 1), plan_times_seen_overhead(&t, NAN);
    assert_memory_equal(&t, &was, sizeof t);
    /* A change that stays is followed. */
    for (int i = 0; i < 60; i++) plan_times_seen_rows(&t, 8, 0, 9e-3);
    assert_true(fabs(t.rows_s[0][8] - 9e-3) < 0.05 * 9e-3);
}

static void test_checked(void **state)
{
    (void)state;
    struct plan_times t = made();
    struct err e = {0};
    assert_int_equal(plan_times_check(&t, 1, &e), 0);
    memset(t.draft_s, 0, sizeof t.draft_s);
    assert_int_equal(plan_times_check(&t, 0, &e), 0);
    assert_int_equal(plan_times_check(&t, 1, &e), -1);
    assert_int_equal(e.code, ERR_USAGE);
    assert_string_equal(e.msg,
                        "times of plans of made up: no time of a draft (expected one in some context)");
    memset(&t, 0, sizeof t);
    memset(&e, 0, sizeof e);
    t.rows_s[0][1] = 1;
    assert_int_equal(plan_times_check(&t, 0, &e), -1);
    assert_string_equal(
        e.msg, "times of plans: no time of a verify of two rows or more (expected one in some context)");
}

static const char doc[] =
    "{\"schema\": 1, \"of\": \"Qwen3-8B\", \"overhead_s\": 6e-6, \"buckets\": [{\"context\": 0, \"plain_s\": "
    "0.00137, \"draft_s\": 0.00055, \"verify\": [[2, 0.00175], [16, 0.0021]]}, {\"context\": 4096, "
    "\"plain_s\": 0.002, \"verify\": []}]}";

static void test_file(void **state)
{
    (void)state;
    struct plan_times t, back;
    struct err e = {0};
    char path[160];
    assert_int_equal(plan_times_parse(&t, doc, strlen(doc), "doc", &e), 0);
    assert_string_equal(t.of, "Qwen3-8B");
    near(t.overhead_s, 6e-6), near(t.draft_s[0][0], 0.00055), near(t.rows_s[0][16], 0.0021);
    near(t.rows_s[2][1], 0.002), assert_true(t.draft_s[0][2] == 0);
    /* Written and read: the same bits, also of numbers that have no short form. */
    t.rows_s[0][3] = 1e-3 / 3, t.rows_s[11][1] = 0.1 + 1e-17, t.rows_s[11][64] = M_PI;
    snprintf(path, sizeof path, "%s", scratch("times.json"));
    assert_int_equal(plan_times_write(&t, path, false, &e), 0);
    assert_int_equal(plan_times_read(&back, path, &e), 0);
    assert_memory_equal(&t, &back, sizeof t);
    assert_int_equal(plan_times_write(&t, path, false, &e), -1); /* not over what is there */
    assert_int_equal(e.code, ERR_USAGE);
    memset(&e, 0, sizeof e);
    assert_int_equal(plan_times_write(&t, path, true, &e), 0);
    assert_int_equal(plan_times_read(&back, "/nonexistent/times.json", &e), -1);
    assert_int_equal(e.code, ERR_IO);
    memset(&e, 0, sizeof e);
    memset(&t, 0, sizeof t);
    assert_int_equal(plan_times_write(&t, path, true, &e), -1);
    assert_int_equal(e.code, ERR_USAGE);
}

#define B(x) "{\"schema\":1,\"overhead_s\":0,\"buckets\":[" x "]}"
static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *msg;
    } c[] = {
        {"[]", "f: not times of plans (expected a JSON object, got [])"},
        {"{\"schema\":1", "f: bad JSON in line 1, column 11: '}' expected near end of file"},
        {"{}", "f: schema (expected 1, got nothing)"},
        {"{\"schema\":2}", "f: schema (expected 1, got 2)"},
        {"{\"schema\":1,\"buckets\":[]}", "f: overhead_s (expected seconds, 0 to 3600, got nothing)"},
        {"{\"schema\":1,\"overhead_s\":-1}", "f: overhead_s (expected seconds, 0 to 3600, got -1)"},
        {"{\"schema\":1,\"overhead\":1}",
         "f: unknown key \"overhead\" (expected schema or another that is documented)"},
        {"{\"schema\":1,\"of\":3}", "f: of (expected a string of less than 128 bytes, got 3)"},
        {B(""), "f: buckets (expected an array of one bucket or more, got [])"},
        {B("7"), "f: buckets[0]: a bucket (expected an object, got 7)"},
        {B("{\"context\":1000}"),
         "f: buckets[0]: context (expected 0, or 2048 times a power of two, got 1000)"},
        {B("{\"plain_s\":1}"),
         "f: buckets[0]: context (expected 0, or 2048 times a power of two, got nothing)"},
        {B("{\"context\":0,\"drafts\":1}"),
         "f: buckets[0]: unknown key \"drafts\" (expected context or another that is documented)"},
        {B("{\"context\":0,\"plain_s\":0}"),
         "f: buckets[0]: plain_s (expected seconds, above 0, at most 3600, got 0)"},
        {B("{\"context\":0,\"plain_s\":\"1\"}"),
         "f: buckets[0]: plain_s (expected seconds, above 0, at most 3600, got \"1\")"},
        {B("{\"context\":0,\"plain_s\":1,\"draft_s\":0}"),
         "f: buckets[0]: draft_s (expected seconds, above 0, at most 3600, got 0)"},
        {B("{\"context\":0,\"plain_s\":1}"),
         "f: buckets[0]: verify (expected an array of [rows, seconds], got nothing)"},
        {B("{\"context\":0,\"plain_s\":1,\"verify\":[3]}"),
         "f: buckets[0]: verify[0] (expected [rows, seconds], got 3)"},
        {B("{\"context\":0,\"plain_s\":1,\"verify\":[[1,1]]}"),
         "f: buckets[0]: verify[0] (expected rows, 2 to 64, rising, got 1)"},
        {B("{\"context\":0,\"plain_s\":1,\"verify\":[[4,1],[4,1]]}"),
         "f: buckets[0]: verify[1] (expected rows, 5 to 64, rising, got 4)"},
        {B("{\"context\":0,\"plain_s\":1,\"verify\":[[65,1]]}"),
         "f: buckets[0]: verify[0] (expected rows, 2 to 64, rising, got 65)"},
        {B("{\"context\":0,\"plain_s\":1,\"verify\":[[2.5,1]]}"),
         "f: buckets[0]: verify[0] (expected rows, 2 to 64, rising, got 2.5)"},
        {B("{\"context\":0,\"plain_s\":1,\"verify\":[[2,4000]]}"),
         "f: buckets[0]: verify[0] (expected seconds, above 0, at most 3600, got 4000)"},
        {B("{\"context\":2048,\"plain_s\":1,\"verify\":[]},{\"context\":0,\"plain_s\":1,\"verify\":[]}"),
         "f: buckets[1]: context (expected a context above that of the bucket before, got 0)"},
        {B("{\"context\":0,\"plain_s\":1,\"verify\":[]}"),
         "f: verify (expected a time of two rows or more in some bucket, got none)"},
    };
    for (size_t i = 0; i < sizeof c / sizeof c[0]; i++) {
        struct plan_times t;
        struct err e = {0};
        assert_int_equal(plan_times_parse(&t, c[i].text, strlen(c[i].text), "f", &e), -1);
        assert_int_equal(e.code, ERR_FORMAT);
        assert_string_equal(e.msg, c[i].msg);
    }
}

static void test_memory_fails(void **state)
{
    (void)state;
    struct plan_times t = made(), back;
    char path[160];
    bool failed = true;
    snprintf(path, sizeof path, "%s", scratch("fails.json"));
    for (uint64_t n = 1; failed; n++) {
        struct err e = {0};
        mem_fail_one(n);
        failed = plan_times_write(&t, path, true, &e);
        mem_fail_at(0);
        if (failed) assert_int_equal(e.code, ERR_IO);
        if (failed) assert_int_equal(access(path, F_OK), -1);
        assert_true(n < 1000);
    }
    struct err e = {0};
    assert_int_equal(plan_times_read(&back, path, &e), 0);
    assert_memory_equal(&t, &back, sizeof t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_buckets),      cmocka_unit_test(test_looked_up), cmocka_unit_test(test_stamps),
        cmocka_unit_test(test_checked),      cmocka_unit_test(test_file),      cmocka_unit_test(test_refused),
        cmocka_unit_test(test_memory_fails),
    };
    scratch_begin();
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    scratch_end();
    return failed;
}
