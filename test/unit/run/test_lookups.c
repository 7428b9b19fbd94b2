/* test_lookups.c - look-ups in cycles, alone and beside a drafter: the stream is the target's own, a
 * drafter's blocks are what they are without them, and a stream in which nothing is found runs as a plain
 * one. (The index by itself: test_lookup.c. Recurrent targets: test_recurrent.c.) */
#include "engine_fixture.h"

#include "../../../common/run/times.h"
#include "../often.h"
#include "turns_tiny.h"

/* N_NEW tokens behind the prompt in a session of its own. */
static void go(const struct setting *y, const struct spec_options *how, struct run *r)
{
    struct err e = {0};
    struct engine *g = setting_engine(y, true);
    struct session *s = setting_stream(y, g);
    struct spec_options o = *how;
    o.n = N_NEW, o.sampler = y->sampler;
    o.tokens = take_tokens, o.proposals = take_proposals, o.ctx = r;
    memset(r, 0, sizeof *r);
    must(session_prefill(s, prompt, y->n_prompt, NULL, NULL, &e), &e);
    must(spec_generate(s, &o, &r->st, &e), &e);
    assert_int_equal(r->n, N_NEW);
    session_free(s);
    engine_close(g);
}

static const int32_t length[] = {1, 33, 250, 770};

/* ---- any plan ---- */

/* A source on the host beside a drafter, and beside none: it mostly knows, far beyond a block; which chain is
 * tried, and how much of it, is drawn. */
static void test_beside(void **state)
{
    static struct run plain, ref, r;
    int64_t longest = 0, looked = 0;
    (void)state;
    for (int i = 0; i < OFTEN(192); i++) {
        struct setting y = setting(i, i / 2 % 2, i / 4 % 2, length[i / 8 % 4]);
        const bool recorded = i / 32 % 2;
        struct script k = {.source = {.op = &beside_ops, .rows = i % 5 ? SESSION_MAX_ROWS : 3 + i % 7},
                           .will = plain.id,
                           .n_will = N_NEW,
                           .n_prompt = y.n_prompt,
                           .wrong = i % 3 ? 40 : 5,
                           .seed = (uint32_t)i};
        setting_alone(&y, &plain, &ref);
        y.o.look = &k.source;
        struct draw draw = {
            .x = (uint32_t)i * 2654435761u + 3, .most = y.source ? TINY_BLOCK : 1, .looks = k.source.rows};
        const struct planner p = draw_planner(&draw);
        if (recorded) recorder_on(be);
        go(&y, &(struct spec_options){.planner = &p}, &r);
        if (recorded) recorder_off(be);
        same_ids(&plain, &r);
        if (y.source) same_proposals(&ref, &r, TINY_BLOCK);
        assert_int_equal(draw.seen, r.st.steps);
        assert_true(r.st.look_cycles <= draw.looked && r.st.look_cycles + 2 >= draw.looked);
        assert_int_equal(r.st.cycles, r.st.steps);
        for (int j = TINY_BLOCK; j < SESSION_MAX_ROWS; j++) longest += r.st.accepted[j];
        looked += r.st.look_cycles;
    }
    assert_true(looked > OFTEN(600) && longest > OFTEN(150));
}

/* ---- the plans of the loop ---- */

/* With a text that knows the stream nearly all of it is accepted, a power of two of rows at a time, whatever
 * stands beside; with the history alone less is found. No plan has more rows than the width. */
static void test_known(void **state)
{
    static struct run plain, ref, r;
    static const int32_t widths[] = {0, 1, 2, 6, 40};
    int64_t own = 0;
    (void)state;
    for (int i = 0; i < 120; i++) {
        struct setting y = setting(i, i / 2 % 2, i / 4 % 2, length[i / 8 % 4]);
        struct known k;
        struct source_lookup alone = source_lookup(2, NULL);
        const int32_t width = widths[i % 5];
        const bool recorded = i / 5 % 2, text = i % 3;
        const struct spec_options how = {.width = width, .look_only = i / 3 % 2};
        setting_alone(&y, &plain, &ref);
        known_open(&k, &y, 2);
        y.o.look = text ? &k.source.source : &alone.source;
        if (recorded) recorder_on(be);
        go(&y, &how, &r);
        if (recorded) recorder_off(be);
        known_close(&k);
        same_ids(&plain, &r);
        if (y.source && !how.look_only) same_proposals(&ref, &r, TINY_BLOCK);
        assert_true((r.n_trace > 0) == (y.source && !how.look_only));
        for (int32_t j = width ? width : SESSION_MAX_ROWS; j < SESSION_MAX_ROWS; j++)
            assert_int_equal(r.st.accepted[j], 0);
        if (width == 1) assert_int_equal(r.st.steps, N_NEW - 1);
        if (text && width != 1) assert_true(r.st.look_accepted > 0);
        if (text && (!width || width > 8) && y.n_prompt >= 250) assert_true(r.st.steps < 12);
        if (!text) own += r.st.look_accepted;
    }
    assert_true(own > 50); /* streams over few ids repeat themselves */
}

/* The rows of look-ups can be timed, also without a source, and nothing of it stays. */
static void test_timed(void **state)
{
    static const int32_t rows[] = {2, 64};
    static struct run plain, ref, r;
    (void)state;
    for (int i = 0; i < 8; i++) {
        struct setting y = setting(i, false, i / 2 % 2, 250);
        struct source_lookup x = source_lookup(2, NULL);
        struct session_times times;
        struct err e = {0};
        const struct session_timing o = {.sampler = y.sampler, .rows = rows, .n = 2, .budget_s = 60};
        setting_alone(&y, &plain, &ref);
        y.o.look = &x.source;
        if (i / 4) recorder_on(be);
        struct engine *g = setting_engine(&y, true);
        struct session *s = setting_stream(&y, g);
        must(session_prefill(s, prompt, y.n_prompt, NULL, NULL, &e) || session_time(s, &o, &times, &e), &e);
        assert_int_equal(times.missing, 0);
        assert_true(times.verify_s[2] > 0 && times.verify_s[64] > 0 &&
                    (times.draft_s[0] > 0) == (y.source != NULL));
        setting_go(&y, s, NULL, N_NEW, NULL, 0, &r);
        session_free(s);
        engine_close(g);
        if (i / 4) recorder_off(be);
        same_ids(&plain, &r);
        if (y.source) same_proposals(&ref, &r, TINY_BLOCK);
    }
}

/* ---- nothing is found ---- */

struct watch {
    struct session *s;
    struct plan plan;
    int ahead, all;
};

static void watch_next(void *ctx, struct plan *p)
{
    struct watch *w = ctx;
    w->ahead += w->s->started - w->s->finished > 1;
    w->all++;
    *p = w->plan;
}

static void never(void *ctx, const struct plan_offer *o, struct plan_choice *c)
{
    (void)ctx;
    assert_int_equal(o->n_look, 0);
    *c = (struct plan_choice){.rows = 1};
}

static int silent_look(struct session *s, struct session_source *x, struct source_look *l, struct err *e)
{
    (void)s, (void)x, (void)l, (void)e;
    return 0;
}

/* Cycles run ahead of the host as often as those of a plain stream, and no pass is more than a row. */
static void test_silent(void **state)
{
    static const struct source_ops silent = {.name = "silent", .look = silent_look};
    static struct run plain, ref;
    struct source quiet = {.op = &silent, .rows = SESSION_MAX_ROWS};
    (void)state;
    for (int i = 0; i < 8; i++) {
        struct setting y = setting(i, i / 2 % 2, false, 33);
        int ahead[2];
        setting_alone(&y, &plain, &ref);
        for (int with = 0; with < 2; with++) {
            struct err e = {0};
            struct run r = {.n = 0};
            y.o.look = with ? &quiet : NULL;
            recorder_on(be);
            struct engine *g = setting_engine(&y, false);
            struct watch w = {.s = setting_stream(&y, g), .plan = {.rows = with ? 0 : 1}};
            const struct planner p = {watch_next, never, NULL, &w};
            const struct spec_options o = {
                .n = N_NEW, .sampler = y.sampler, .planner = &p, .tokens = take_tokens, .ctx = &r};
            must(session_prefill(w.s, prompt, y.n_prompt, NULL, NULL, &e), &e);
            must(spec_generate(w.s, &o, &r.st, &e), &e);
            session_free(w.s);
            engine_close(g);
            recorder_off(be);
            same_ids(&plain, &r);
            assert_int_equal(r.st.steps, N_NEW - 1);
            assert_int_equal(w.all, N_NEW);
            ahead[with] = w.ahead;
        }
        assert_int_equal(ahead[0], N_NEW - 2);
        assert_int_equal(ahead[1], N_NEW - 2);
    }
}

/* ---- streams ---- */

/* Stopped in the middle of a long chain or anywhere, saved, gone on with. */
static void test_any_stop(void **state)
{
    int cut = 0;
    (void)state;
    for (int i = 0; i < 24; i++) {
        struct setting y = setting(i, i / 2 % 2, i / 4 % 2, length[1 + i / 8]);
        struct known k;
        int here = 0;
        known_open(&k, &y, 2);
        y.o.look = &k.source.source;
        if (i / 2 % 2 ^ i % 2) recorder_on(be);
        any_stop(&y, i / 8 == 0 ? 18 : 5, (uint32_t)i, scratch_dir, &here);
        if (i / 2 % 2 ^ i % 2) recorder_off(be);
        known_close(&k);
        cut += here;
    }
    assert_true(cut > 0);
}

static void test_turns(void **state)
{
    (void)state;
    for (int i = 0; i < 16; i++) {
        struct setting y[STREAMS];
        struct known k;
        for (int n = 0; n < STREAMS; n++) y[n] = setting(i + n, i & 1, i & 2, 5 + 61 * n + 7 * i);
        known_open(&k, &y[1], 2);
        for (int n = 0; n < STREAMS; n++) y[n].o.look = &k.source.source;
        if (i & 4) recorder_on(be);
        any_turns(y, 2 + i / 8, (uint32_t)i * 31 + 5, 2);
        if (i & 4) recorder_off(be);
        known_close(&k);
    }
}

/* A history that is restored where a longer one was looked up in: what is found is what stands there. */
static void test_restored(void **state)
{
    static struct run r[2];
    struct err e = {0};
    const char *path = scratch("history");
    struct source_lookup x = source_lookup(1, NULL);
    struct setting y = setting(0, false, false, 60);
    (void)state;
    y.o.look = &x.source;
    struct engine *g = setting_engine(&y, false);
    struct session *s = setting_stream(&y, g);
    must(session_prefill(s, prompt, 60, NULL, NULL, &e), &e);
    save(s, path);
    session_free(s);
    for (int used = 0; used < 2; used++) {
        const struct spec_options o = {.n = 30, .sampler = greedy, .tokens = take_tokens, .ctx = &r[used]};
        if (used) { /* the same slot: there is one */
            s = setting_stream(&y, g);
            must(session_prefill(s, prompt + 300, 200, NULL, NULL, &e), &e);
            must(spec_generate(s, &o, &r[used].st, &e), &e);
            session_free(s);
            r[used].n = 0;
        }
        s = setting_restore(&y, g, path);
        must(spec_generate(s, &o, &r[used].st, &e), &e);
        session_free(s);
    }
    assert_int_equal(g->slots, 1);
    engine_close(g);
    assert_memory_equal(r[0].id, r[1].id, 30 * sizeof *r[0].id);
    same_counts(&r[0].st, &r[1].st);
    assert_int_equal(r[0].st.look_cycles, r[1].st.look_cycles);
    assert_int_equal(r[0].st.look_accepted, r[1].st.look_accepted);
    assert_true(r[0].st.look_accepted > 0);
}

/* Another history in the same session, behind a prefill that goes on and in a slot that is used again: what
 * is looked up is what stands there. */
static void test_histories(void **state)
{
    static struct run r, fresh;
    struct err e = {0};
    struct source_lookup x = source_lookup(1, NULL);
    struct setting y = setting(0, false, false, 60);
    const struct spec_options o = {.n = 9, .sampler = greedy, .tokens = take_tokens, .ctx = &r},
                              o_fresh = {.n = 9, .sampler = greedy, .tokens = take_tokens, .ctx = &fresh};
    (void)state;
    y.o.look = &x.source;
    struct engine *g = setting_engine(&y, false);
    for (int i = 0; i < 12; i++) {
        static int32_t all[MAX_PROMPT];
        struct session *s = setting_stream(&y, g);
        int32_t n = 20 + i;
        memcpy(all, prompt + i, (size_t)n * sizeof *all);
        must(session_prefill(s, all, n, NULL, NULL, &e), &e);
        for (int k = 0; k < 3; k++) {
            struct session *other = setting_stream(&y, g);
            r.n = fresh.n = 0;
            must(spec_generate(s, &o, &r.st, &e), &e);
            must(session_prefill(other, all, n, NULL, NULL, &e), &e);
            must(spec_generate(other, &o_fresh, &fresh.st, &e), &e);
            assert_memory_equal(r.id, fresh.id, 9 * sizeof *r.id);
            same_counts(&r.st, &fresh.st);
            assert_int_equal(r.st.look_accepted, fresh.st.look_accepted);
            session_free(other);
            memcpy(all + n, r.id, 9 * sizeof *all);
            if (k % 2) { /* other tokens than were written, from one of them on */
                n += 9;
                must(session_prefill(s, prompt + 100 * k, 7, NULL, NULL, &e), &e);
                memcpy(all + n - 1, prompt + 100 * k, 7 * sizeof *all);
                n += 6;
            } else {
                n += 9;
                must(session_prefill(s, all + n - 1, 1, NULL, NULL, &e), &e);
            }
        }
        session_free(s);
    }
    engine_close(g);
}

/* ---- choosing ---- */

static void test_choose(void **state)
{
    static const struct {
        int32_t width, rows, n_draft, n_look, match, agree, want;
        bool look;
    } t[] = {
        {5, 64, 4, 0, 0, 0, 5, false},   /* no look-up */
        {3, 64, 4, 0, 0, 0, 3, false},   /* the width */
        {5, 64, 4, 63, 7, 0, 5, false},  /* a short match against the draft */
        {5, 64, 4, 63, 8, 0, 8, true},   /* long enough */
        {5, 64, 4, 63, 15, 0, 16, true}, /* rows double */
        {5, 64, 4, 63, 64, 0, 64, true}, /* */
        {5, 6, 4, 63, 64, 0, 6, true},   /* no more than there may be */
        {5, 64, 4, 9, 64, 0, 8, true},   /* what was found */
        {5, 64, 4, 63, 6, 4, 5, false},  /* both agree, and it is no longer */
        {5, 64, 4, 63, 7, 4, 8, true},   /* and longer */
        {8, 64, 7, 63, 4, 7, 8, false},  /* as long */
        {5, 64, 4, 63, 7, 3, 5, false},  /* they do not agree */
        {1, 64, 0, 63, 4, 0, 4, true},   /* no draft */
        {1, 64, 0, 63, 1, 0, 2, true},   /* */
        {1, 1, 0, 63, 9, 0, 1, false},   /* one row */
        {5, 64, 0, 0, 0, 0, 1, false},   /* nothing */
        {5, 64, 4, 1, 20, 0, 2, true},   /* few are left of the text */
    };
    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof t[0]; i++) {
        struct plan_looks y = {
            .draft = true, .width = t[i].width, .rows = t[i].rows, .match = PLAN_LOOK_MATCH};
        const struct plan_offer o = {
            .n_draft = t[i].n_draft, .n_look = t[i].n_look, .match = t[i].match, .agree = t[i].agree};
        struct plan_choice c;
        struct plan p;
        planner_looks_next(&y, &p);
        assert_true(p.draft && !p.rows);
        planner_looks_choose(&y, &o, &c);
        if (c.rows != t[i].want || c.look != t[i].look)
            fail_msg("offer %d: %d rows of the %s (expected %d)", (int)i, c.rows,
                     c.look ? "look-up" : "draft", t[i].want);
    }
}

/* ---- what is refused ---- */

static int wrong_look(struct session *s, struct session_source *x, struct source_look *l, struct err *e)
{
    (void)x, (void)e;
    if (l->most) l->ids[0] = s->target->d->n_vocab, l->found = 1;
    return 0;
}

static void test_refused(void **state)
{
    static const struct source_ops wrong = {.name = "wrong", .look = wrong_look};
    struct source_lookup x = source_lookup(4, NULL);
    struct source bad = {.op = &script_ops, .rows = 5}, ids = {.op = &wrong, .rows = 5};
    struct setting y = setting(0, false, true, 20);
    struct engine *g;
    struct run r;
    struct err e = {0};
    (void)state;
    y.o.look = &bad;
    expect_error(engine_open(&g, y.target, &source, &y.o, &e), &e, ERR_USAGE,
                 "script cannot stand beside another");
    e = (struct err){0};
    y.o.look = &source;
    expect_error(engine_open(&g, y.target, NULL, &y.o, &e), &e, ERR_USAGE,
                 "dflash cannot stand beside another");
    e = (struct err){0};
    y.o.look = &x.source;
    bad = (struct source){.op = &script_ops, .rows = 5};
    expect_error(engine_open(&g, y.target, &bad, &y.o, &e), &e, ERR_USAGE,
                 "lookup cannot stand beside another");
    e = (struct err){0};
    x.least = 65;
    g = setting_engine(&y, true);
    struct session *s;
    expect_error(session_open(&s, g, &e), &e, ERR_USAGE, "shortest match of a look-up out of range");
    engine_close(g);
    e = (struct err){0};
    for (int i = 0; i < 2; i++) {
        x.least = 4;
        y.o.look = i ? &ids : &x.source;
        g = setting_engine(&y, true);
        s = setting_stream(&y, g);
        const struct spec_options o = {
            .n = 9, .sampler = greedy, .width = i ? 0 : 65, .tokens = take_tokens, .ctx = &r};
        must(session_prefill(s, prompt, 20, NULL, NULL, &e), &e);
        memset(&r, 0, sizeof r);
        if (i)
            expect_error(spec_generate(s, &o, &r.st, &e), &e, ERR_FORMAT,
                         "source wrong: proposal 0 of 1 is none");
        else
            expect_error(spec_generate(s, &o, &r.st, &e), &e, ERR_USAGE,
                         "width out of range (expected 1 to the chain of a look-up of 64, got 65)");
        session_free(s);
        engine_close(g);
        e = (struct err){0};
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_beside),    cmocka_unit_test(test_known),    cmocka_unit_test(test_timed),
        cmocka_unit_test(test_silent),    cmocka_unit_test(test_any_stop), cmocka_unit_test(test_turns),
        cmocka_unit_test(test_histories), cmocka_unit_test(test_restored), cmocka_unit_test(test_choose),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests_name("lookups", tests, open_all, close_all);
}
