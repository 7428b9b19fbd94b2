/* test_sources.c - two sources at once: any of them may propose, in any order, and a stream is what it is
 * without.
 *
 * A DFlash drafter and the MTP block of a random target. What is compared is bytes: streams with plain ones,
 * blocks with those that their source drafts alone, states with those of a prefill. */
#include "hybrid_fixture.h"

/* A target of a kind and the sources beside it: a drafter, and beside that the MTP block. */
struct sources {
    struct model *t, *d, *b;
    struct source x, beside, alone; /* alone: x with none beside */
};

static void sources_open(struct sources *y, int kind)
{
    void *dflash = NULL, *mtp = y;
    *y = (struct sources){.t = target(kind)};
    y->d = drafter(&dflash);
    y->b = drafter(&mtp);
    y->alone = y->x = source_drafter(y->d);
    y->beside = source_drafter(y->b);
    y->x.beside = &y->beside;
}

static void sources_close(struct sources *y)
{
    model_free(y->b);
    model_free(y->d);
    model_free(y->t);
}

/* The plain stream, and the streams of both sources, each alone, which propose otherwise. */
static void runs_alone(struct sources *y, int sampler, struct run *plain, struct run ref[2])
{
    run_planned(y->t, NULL, sampler, 0, NULL, 0, plain);
    run_planned(y->t, &y->alone, sampler, 0, NULL, 1, &ref[0]);
    run_planned(y->t, &y->beside, sampler, 0, NULL, 1, &ref[1]);
    assert_memory_not_equal(ref[0].trace, ref[1].trace, sizeof ref[0].trace);
}

/* Two sources, of which any may propose, and none, in any order: each proposes what it proposes alone. */
static void test_two(void **state)
{
    (void)state;
    static struct run plain, ref[2], r;
    static const int32_t every[] = {0, 2, 3, 6};
    int32_t by[2] = {0, 0};
    for (int kind = 0; kind < KINDS; kind++) {
        struct sources of;
        sources_open(&of, kind);
        for (int sampler = 0; sampler < 2; sampler++) {
            runs_alone(&of, sampler, &plain, ref);
            for (uint32_t i = 0; i < OFTEN(72); i++) {
                struct source second = of.beside, first = of.x;
                struct draw draw = {.x = i * 2654435761u + 7,
                                    .most = BLOCK,
                                    .sources = 2,
                                    .now = &r,
                                    .refs = {&ref[i / 8 % 2], &ref[1 - i / 8 % 2]}};
                const struct planner p = draw_planner(&draw);
                first.beside = &second; /* in either order */
                if (i / 8 % 2)
                    second = first, second.beside = NULL, first = of.beside, first.beside = &second;
                if (i / 4 % 2) recorder_on(be);
                run_planned(of.t, &first, sampler, every[i % 4], &p, 0, &r);
                if (i / 4 % 2) recorder_off(be);
                same(&plain, &r, false);
                by[0] += draw.by[0], by[1] += draw.by[1];
            }
        }
        sources_close(&of);
    }
    assert_true(by[0] > 300 && by[1] > 300);
}

/* The same with trees among the plans: of the block's rows, of the MTP block's steps, and of either. */
static void test_trees(void **state)
{
    (void)state;
    static struct run plain, ref[2], r;
    int treed = 0;
    int32_t by[2] = {0, 0};
    for (int kind = 0; kind < KINDS; kind++) {
        struct sources of;
        sources_open(&of, kind);
        for (int sampler = 0; sampler < 2; sampler++) {
            runs_alone(&of, sampler, &plain, ref);
            planned_tree = 20;
            for (uint32_t i = 0; i < OFTEN(36); i++) {
                struct source *const with[] = {&of.x, &of.beside, &of.alone};
                const bool two = i % 3 == 0;
                struct draw draw = {.x = i * 2654435761u + 11,
                                    .most = BLOCK,
                                    .trees = planned_tree,
                                    .sources = two ? 2 : 1,
                                    .now = &r,
                                    .refs = {i % 3 == 1 ? &ref[1] : &ref[0], &ref[1]}};
                const struct planner p = draw_planner(&draw);
                if (i / 6 % 2) recorder_on(be);
                run_planned(of.t, with[i % 3], sampler, i / 3 % 2 ? 3 : 0, &p, 0, &r);
                if (i / 6 % 2) recorder_off(be);
                same(&plain, &r, false);
                treed += draw.treed;
                by[0] += draw.by[0], by[1] += draw.by[1];
            }
            planned_tree = 0;
        }
        sources_close(&of);
    }
    assert_true(treed > 200 && by[0] > 100 && by[1] > 50);
}

/* What cannot be together. */
static void test_two_refused(void **state)
{
    (void)state;
    struct err e = {0};
    struct engine *g;
    struct sources of;
    sources_open(&of, 0);
    const struct session_options o = {.ctx = 400, .chunk = 16, .kv = {KN_F16, KN_F16}};
    struct source same = of.x, third = of.beside;
    same.beside = NULL, of.x.beside = &same;
    assert_int_equal(engine_open(&g, of.t, &of.x, &o, &e), -1);
    assert_non_null(strstr(e.msg, "source dflash cannot stand beside another"));
    e = (struct err){0}, of.x.beside = &of.beside, of.beside.beside = &third;
    assert_int_equal(engine_open(&g, of.t, &of.x, &o, &e), -1);
    assert_non_null(strstr(e.msg, "more than 2 sources"));
    struct script k = {.source = {.op = &script_ops, .rows = BLOCK}};
    e = (struct err){0}, of.x.beside = &k.source;
    assert_int_equal(engine_open(&g, of.t, &of.x, &o, &e), -1);
    assert_non_null(strstr(e.msg, "source script cannot stand beside another"));
    sources_close(&of);
}

/* The contexts of both, wherever a stream stops, is saved, goes on, and takes turns with others. */
static void test_contexts(void **state)
{
    (void)state;
    int cut = 0;
    for (int kind = 0; kind < KINDS; kind++) {
        struct sources of;
        sources_open(&of, kind);
        for (int i = 0; i < 4; i++) {
            struct setting y[STREAMS];
            const bool recorded = (i ^ i >> 1) & 1;
            for (int k = 0; k < STREAMS; k++) y[k] = setting(of.t, &of.x, i * 3, 5 + 31 * k);
            if (recorded) recorder_on(be);
            any_stop(&y[1], 8, (uint32_t)i, ".", &cut);
            any_times(&y[1], (uint32_t)i * 5 + 3, recorded, ".");
            any_turns(y, 2 + i % 2, (uint32_t)i * 31 + 5, 1);
            slot_again(&y[0], &y[2], recorded);
            any_runs(y, 2 + i % 2, (uint32_t)i * 13 + 5);
            any_spans(&y[2], ".");
            if (recorded) recorder_off(be);
        }
        sources_close(&of);
    }
    assert_true(cut > 0);
}

/* A state of both goes on with both in any order, with each alone, and with none; one of one not with both.
 */
static void test_states(void **state)
{
    (void)state;
    static struct run whole, r;
    struct err e = {0};
    struct sources of;
    sources_open(&of, 0);
    struct source first = of.x, second = of.beside, alone[2] = {of.x, of.beside};
    first.beside = NULL, second.beside = &first, alone[0].beside = NULL;
    struct source *with[] = {&of.x, &second, &alone[0], &alone[1], NULL};
    struct setting y = setting(of.t, &of.x, 1, 33);
    struct engine *g = setting_engine(&y, true);
    struct session *s = setting_stream(&y, g);
    must(session_prefill(s, prompt, 33, NULL, NULL, &e), &e);
    save(s, "both");
    setting_go(&y, s, NULL, N_NEW, NULL, 0, &whole);
    session_free(s);
    engine_close(g);
    for (int i = 0; i < 5; i++) {
        y.source = with[i];
        g = setting_engine(&y, with[i] != NULL);
        s = setting_restore(&y, g, "both");
        if (i == 0) {
            save(s, "again");
            same_bytes("both", "again");
        }
        if (i == 2) save(s, "one");
        setting_go(&y, s, NULL, N_NEW, NULL, 0, &r);
        same_ids(&whole, &r);
        if (i == 0 || i == 2) same_trace(&whole, &r);
        session_free(s);
        engine_close(g);
    }
    struct state *st;
    struct state_info info;
    y.source = &of.x;
    g = setting_engine(&y, true);
    s = setting_stream(&y, g);
    must(state_open(&st, "one", &info, &e), &e);
    assert_int_equal(info.n_drafters, 1);
    assert_int_equal(state_restore(st, s, &e), -1);
    assert_non_null(strstr(e.msg, "holds the context of another drafter"));
    state_close(st);
    uint64_t n;
    must((e = (struct err){0}, state_open(&st, "both", &info, &e)) || state_verify(st, &n, &e), &e);
    assert_int_equal(info.n_drafters, 2);
    assert_true(!info.by[0].hidden && info.by[0].n_taps == 2 && info.by[1].hidden && info.by[1].n_layer == 1);
    assert_int_equal(n, 3 + info.n_layer + info.by[0].n_layer + 1 + 1);
    state_close(st);
    session_free(s);
    engine_close(g);
    sources_close(&of);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two),      cmocka_unit_test(test_trees),  cmocka_unit_test(test_two_refused),
        cmocka_unit_test(test_contexts), cmocka_unit_test(test_states),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
