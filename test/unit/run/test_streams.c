/* test_streams.c - an engine and its streams: a stream stops, is saved and goes on at any token; streams of
 * one engine give what each gives alone. (Recurrent targets: test_recurrent.c.) */
#include "engine_fixture.h"

#include "turns_tiny.h"

#include "spans.h"

static void test_any_stop(void **state)
{
    static const int32_t length[] = {1, 33, 250, 770};
    int cut = 0;
    (void)state;
    for (int i = 0; i < 32; i++) {
        const struct setting y = setting(i, i / 2 % 2, i / 4 % 2, length[i / 8]);
        const bool recorded = (i ^ i >> 1 ^ i >> 3) & 1;
        int here = 0;
        if (recorded) recorder_on(be);
        any_stop(&y, i / 8 == 1 ? 18 : 5, (uint32_t)i, scratch_dir, &here);
        if (recorded) recorder_off(be);
        assert_true(recorded || !here);
        cut += here;
    }
    assert_true(cut > 0); /* some ended with a cycle running */
    assert_true(left_open > 0);
}

static void test_turns(void **state)
{
    (void)state;
    for (int i = 0; i < 16; i++) {
        struct setting y[STREAMS];
        for (int k = 0; k < STREAMS; k++) y[k] = setting(i + k, i & 1, i & 2, 5 + 61 * k + 7 * i);
        if (i & 4) recorder_on(be);
        any_turns(y, 2 + i / 8, (uint32_t)i * 31 + 5, 2);
        if (i & 4) recorder_off(be);
    }
}

static void test_spans(void **state)
{
    (void)state;
    for (int i = 0; i < 16; i++) {
        struct setting y = setting(i, i & 1, i & 2, i & 8 ? 700 : 150);
        y.o.chunk = i & 8 ? 200 : 48;
        if (i & 4) recorder_on(be);
        any_spans(&y, scratch_dir);
        if (i & 4) recorder_off(be);
    }
}

static void test_runs(void **state)
{
    (void)state;
    for (int i = 0; i < 16; i++) {
        struct setting y[STREAMS];
        for (int k = 0; k < STREAMS; k++) y[k] = setting(i + k, i & 1, i & 2, 5 + 61 * k + 7 * i);
        if (i & 4) recorder_on(be);
        any_runs(y, 2 + i / 8, (uint32_t)i * 57 + 3);
        if (i & 4) recorder_off(be);
    }
}

static void test_slot(void **state)
{
    (void)state;
    for (int i = 0; i < 16; i++) {
        const struct setting y = setting(i / 8, i & 1, i & 2, 40), longer = setting(i / 8, i & 1, i & 2, 800);
        if (i & 4) recorder_on(be);
        slot_again(&y, &longer, i & 4);
        if (i & 4) recorder_off(be);
    }
}

static void test_times(void **state)
{
    struct err e = {0};
    struct session_times t;
    static const int32_t rows[] = {5, 6, 2};
    (void)state;
    for (int i = 0; i < 16; i++) {
        const struct setting y = setting(i / 8, i & 1, i & 2, 40);
        if (i & 4) recorder_on(be);
        any_times(&y, (uint32_t)i * 7 + 1, i & 4, scratch_dir);
        if (i & 4) recorder_off(be);
    }
    /* Without a budget the first part alone; and what is refused. */
    const struct setting y = setting(0, false, true, 20);
    struct engine *g = setting_engine(&y, true);
    struct session *s = setting_stream(&y, g);
    struct session_timing o = {.sampler = greedy, .rows = rows, .n = 1};
    must(session_time(s, &o, &t, &e), &e);
    assert_true(t.plain_s > 0 && t.draft_s[0] == 0 && t.verify_s[5] == 0 && t.missing == 1);
    o.n = 2;
    expect_error(session_time(s, &o, &t, &e), &e, ERR_USAGE,
                 "rows to be measured out of range (expected 1 to 5, got 6)");
    e = (struct err){0};
    o.n = 1;
    must(session_prefill(s, prompt, 20, NULL, NULL, &e) || session_cycles_begin(s, 1, &greedy, &e), &e);
    must(session_cycle_start(s, &(struct plan){.draft = true}, 9, &e), &e);
    expect_error(session_time(s, &o, &t, &e), &e, ERR_USAGE, "while cycles run");
    session_free(s);
    engine_close(g);
}

/* What another stream's turn takes from a stream is refused, not made up. */
static void test_refused(void **state)
{
    struct err e = {0};
    const struct setting y = setting(0, false, true, 20);
    struct engine *g = setting_engine(&y, true);
    struct session *a = setting_stream(&y, g), *b = setting_stream(&y, g);
    float row[TINY_VOCAB], again[TINY_VOCAB];
    int32_t id;
    (void)state;
    must(session_prefill(a, prompt, 20, NULL, NULL, &e), &e);
    must(session_logits(a, 0, row, &e), &e);
    must(session_prefill(b, prompt, 30, NULL, NULL, &e), &e);
    must(session_logits(a, 0, again, &e), &e); /* those of the last token are kept */
    assert_memory_equal(row, again, sizeof row);
    expect_error(session_logits(a, 1, again, &e), &e, ERR_USAGE, "no such logits (expected 2 rows, got 1)");
    e = (struct err){0};
    must(session_forward(a, prompt + 20, 3, &e), &e);
    must(session_logits(b, 0, again, &e), &e);
    expect_error(session_pick(a, &greedy, 1, &id, &e), &e, ERR_USAGE,
                 "no such logits (expected 1 rows, got 0)");
    e = (struct err){0};
    must(session_forward(a, prompt + 20, 3, &e), &e);
    must(session_pick(b, &greedy, 1, &id, &e), &e);
    expect_error(session_commit(a, 3, &e), &e, ERR_USAGE, "behind another stream's turn");
    e = (struct err){0};
    must(session_forward(a, prompt + 20, 3, &e) || session_commit(a, 3, &e), &e);
    assert_int_equal(a->n_past, 23);
    session_free(a);
    session_free(b);
    engine_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_stop), cmocka_unit_test(test_turns), cmocka_unit_test(test_spans),
        cmocka_unit_test(test_runs),     cmocka_unit_test(test_slot),  cmocka_unit_test(test_times),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests_name("streams", tests, open_all, close_all);
}
