/* test_plans.c - plans that change from cycle to cycle, and sources that are no drafter: the stream is the
 * target's own whatever was tried, and a block is a function of the tokens before it. */
#include "engine_fixture.h"

#include "../../../common/run/cycle.h"
#include "../../../common/run/planner_auto.h"
#include "../../../common/run/session_impl.h"
#include "../often.h"
#include "plans.h"

static int slide(struct gguf_writer *w, struct err *e)
{
    const uint8_t sliding[] = {1, 0, 1};
    if (gguf_put_u32(w, "qwen3.attention.sliding_window", 9, e)) return -1;
    return gguf_put_array(w, "qwen3.attention.sliding_window_pattern", GGUF_BOOL, sliding, 3, e);
}

static void run_planned(const struct way *y, struct source *x, const struct planner *p, struct run *r)
{
    struct err e = {0};
    struct engine *g;
    struct session *s;
    const struct session_options o = {.ctx = y->prompt + N_NEW + SESSION_MAX_ROWS,
                                      .chunk = y->chunk,
                                      .block = y->block,
                                      .draft_window = y->draft_window,
                                      .kv = {KN_F16, KN_F16}};
    const struct spec_options go = {.n = N_NEW,
                                    .sampler = y->sampler,
                                    .width = y->width,
                                    .planner = p,
                                    .tokens = take_tokens,
                                    .proposals = x && x->op->look ? NULL : take_proposals,
                                    .ctx = r};
    memset(r, 0, sizeof *r);
    must(engine_open(&g, y->target_model, x, &o, &e) || session_open(&s, g, &e), &e);
    must(session_prefill(s, prompt, y->prompt, NULL, NULL, &e), &e);
    must(spec_generate(s, &go, &r->st, &e), &e);
    assert_int_equal(r->n, N_NEW);
    session_free(s);
    engine_close(g);
}

/* Random plans over a target: full, and with rings that wrap; launched one by one, and recorded. */
static void any_plans(struct model *t, struct model *d, int32_t window)
{
    static struct run plain, ref, r;
    static const int length[] = {1, 33, 250, 770};
    static const int32_t blocks[] = {5, 5, 3, 2};
    struct source x = source_dflash(d);
    int64_t accepted = 0, cycles = 0, steps = 0, chosen = 0, next_right = 0, next_wrong = 0;
    for (int sampling = 0; sampling < 2; sampling++)
        for (size_t i = 0; i < sizeof length / sizeof length[0]; i++) {
            struct way y = {.prompt = length[i],
                            .chunk = 64,
                            .draft_window = window,
                            .sampler = sampling ? sampled : greedy,
                            .target_model = t};
            run_planned(&y, NULL, NULL, &plain);
            y.block = blocks[i], y.width = 1;
            run_planned(&y, &x, NULL, &ref);
            same_ids(&plain, &ref);
            assert_int_equal(ref.n_trace, (N_NEW - 1) * (y.block - 1));
            for (uint32_t seed = 0; seed < OFTEN(40); seed++) {
                struct draw draw = {
                    .x = seed * 2654435761u + 99, .most = y.block, .of = &ref, .prompt = length[i]};
                const struct planner p = draw_planner(&draw);
                if (seed % 2) recorder_on(be);
                run_planned(&y, &x, &p, &r);
                if (seed % 2) recorder_off(be);
                next_right += draw.next_right, next_wrong += draw.next_wrong;
                same_ids(&plain, &r);
                same_proposals(&ref, &r, y.block);
                assert_int_equal(r.n_trace / (y.block - 1), r.st.cycles);
                assert_int_equal(draw.seen, r.st.steps);
                assert_true(draw.chosen <= draw.opened && draw.chosen >= draw.opened - 2);
                for (int j = 0; j < y.block; j++) accepted += j * r.st.accepted[j];
                cycles += r.st.cycles, steps += r.st.steps, chosen += draw.chosen;
            }
        }
    /* Some cycles drafted and some did not, and proposals were right now and then. */
    assert_true(cycles > steps / 4 && cycles < steps * 3 / 4);
    assert_true(chosen > cycles / 4 && chosen < cycles * 3 / 4);
    assert_true(accepted > cycles / 40 && accepted < 3 * cycles);
    assert_true(next_right > 0 && next_wrong > 0); /* labels of proposals that were not verified, too */
}

static void test_plans(void **state)
{
    struct err e = {0};
    const char *path = scratch("slide.gguf");
    struct model *t = load(target_path, be), *d = load(drafter_path, be);
    (void)state;
    any_plans(t, d, 0);
    any_plans(t, d, 3);
    model_free(t);
    must(tiny_write(path, &(struct tiny){.seed = 1, .edit = slide}, &e), &e);
    t = load(path, be);
    assert_int_equal(t->d->layer[0].window, 9);
    any_plans(t, d, 0);
    model_free(d);
    model_free(t);
}

/* Without a draft there is no trace of the drafter in a stream, and where every cycle has one, plans of the
 * same width are the setting's. */
static void test_fixed(void **state)
{
    static struct run plain, set, planned;
    struct model *t = load(target_path, be), *d = load(drafter_path, be);
    struct source x = source_dflash(d);
    struct way y = {.prompt = 33, .sampler = sampled, .target_model = t, .width = 3};
    (void)state;
    for (int recorded = 0; recorded < 2; recorded++) {
        struct plan one = {.rows = 1}, three = {.draft = true, .rows = 3};
        const struct planner never = {.next = planner_fixed, .ctx = &one},
                             always = {.next = planner_fixed, .ctx = &three};
        if (recorded) recorder_on(be);
        run_planned(&y, NULL, NULL, &plain);
        run_planned(&y, &x, NULL, &set);
        run_planned(&y, &x, &always, &planned);
        same_ids(&plain, &set);
        same_ids(&plain, &planned);
        same_trace(&set, &planned);
        same_counts(&set.st, &planned.st);
        run_planned(&y, &x, &never, &planned);
        if (recorded) recorder_off(be);
        same_ids(&plain, &planned);
        assert_int_equal(planned.n_trace, 0);
        assert_int_equal(planned.st.cycles, 0);
        assert_int_equal(planned.st.steps, N_NEW - 1);
    }
    model_free(d);
    model_free(t);
}

/* ---- the plain arm ---- */

enum { LONG = 210 };

/* A long stream: its tokens, and the blocks of the anchors at which it drafted. */
struct arm {
    int32_t id[LONG], block[LONG][MAX_BLOCK - 1];
    int n, blocks;
    bool drafted[LONG];  /* by tokens written */
    int32_t plain, left; /* cycles without a draft before one with; of these, still to come */
    bool open;
    uint32_t x;
};

static int arm_tokens(void *ctx, const int32_t *ids, int32_t n, struct err *e)
{
    struct arm *a = ctx;
    (void)e;
    assert_true(a->n + n <= LONG);
    memcpy(a->id + a->n, ids, (size_t)n * sizeof *ids);
    a->n += n;
    return 0;
}

static int arm_proposals(void *ctx, const int32_t *ids, int32_t n, struct err *e)
{
    struct arm *a = ctx;
    (void)e;
    assert_true(n < MAX_BLOCK && !a->drafted[a->n]);
    memcpy(a->block[a->n], ids, (size_t)n * sizeof *ids);
    a->drafted[a->n] = true;
    a->blocks++;
    return 0;
}

static void arm_plan(void *ctx, struct plan *p)
{
    struct arm *a = ctx;
    *p = (struct plan){.rows = 1};
    if (a->left-- > 0) return;
    a->left = a->plain;
    p->draft = true;
    p->rows = a->open ? 0 : a->plain ? 1 + (int32_t)(draw_next(&a->x) % 3) : 1;
}

static void arm_choose(void *ctx, const struct plan_offer *o, struct plan_choice *c)
{
    struct arm *a = ctx;
    *c = (struct plan_choice){.rows = 1 + (int32_t)(draw_next(&a->x) % (uint32_t)(1 + o->n_draft))};
}

/* LONG tokens, with a state saved and restored behind the first part of them where part is given. */
static void run_arm(const struct way *y, struct source *x, int part, struct arm *a)
{
    struct err e = {0};
    struct engine *g;
    struct session *s;
    const char *path = scratch("arm");
    const struct planner p = {.next = arm_plan, .choose = arm_choose, .ctx = a};
    const struct session_options o = {
        .ctx = y->prompt + LONG + SESSION_MAX_ROWS, .chunk = y->chunk, .kv = {KN_F16, KN_F16}};
    struct spec_options go = {.n = part ? part : LONG,
                              .sampler = y->sampler,
                              .planner = x ? &p : NULL,
                              .tokens = arm_tokens,
                              .proposals = arm_proposals,
                              .ctx = a};
    struct spec_stats st;
    must(engine_open(&g, y->target_model, x, &o, &e) || session_open(&s, g, &e), &e);
    must(session_prefill(s, prompt, y->prompt, NULL, NULL, &e), &e);
    must(spec_generate(s, &go, &st, &e), &e);
    if (part) {
        struct state *state;
        struct state_info info;
        save(s, path);
        session_free(s);
        must(session_open(&s, g, &e), &e);
        must(state_open(&state, path, &info, &e) || state_restore(state, s, &e), &e);
        state_close(state);
        go.n = LONG - part;
        must(spec_generate(s, &go, &st, &e), &e);
    }
    assert_int_equal(a->n, LONG);
    session_free(s);
    engine_close(g);
}

/* A drafter that comes back after any number of rows proposes what it would have proposed had it never been
 * away, also where the rows that waited were more than are kept, and in a stream that was saved meanwhile. */
static void test_plain_arm(void **state)
{
    static struct arm plain, ref, a;
    static const int length[] = {1, 33, 63, 64, 250};
    static const int32_t away[] = {1, 2, 15, 62, 63, 64, 65, 66, 127, 129, 140};
    struct model *t = load(target_path, be), *d = load(drafter_path, be);
    struct source x = source_dflash(d);
    int compared = 0;
    (void)state;
    for (int i = 0; i < 10; i++) {
        const struct way y = {
            .prompt = length[i / 2], .chunk = 64, .sampler = i % 2 ? sampled : greedy, .target_model = t};
        plain = ref = (struct arm){0};
        run_arm(&y, NULL, 0, &plain);
        run_arm(&y, &x, 0, &ref); /* a row and a block in every cycle */
        assert_int_equal(ref.blocks, LONG - 1);
        assert_memory_equal(plain.id, ref.id, sizeof plain.id);
        for (int k = 0; k < 22; k++) {
            a = (struct arm){
                .plain = away[k % 11], .left = k * 7 % 30, .open = k % 3 != 1, .x = (uint32_t)(i * 22 + k)};
            if (k / 2 % 2) recorder_on(be);
            run_arm(&y, &x, k % 4 == 3 ? 40 + 5 * k : 0, &a);
            if (k / 2 % 2) recorder_off(be);
            assert_memory_equal(plain.id, a.id, sizeof a.id);
            assert_true(a.blocks > 0 && a.blocks <= 1 + LONG / a.plain);
            for (int n = 0; n < LONG; n++) {
                if (!a.drafted[n]) continue;
                assert_memory_equal(a.block[n], ref.block[n], sizeof a.block[n]);
                compared++;
            }
        }
    }
    assert_true(compared > 500);
    model_free(d);
    model_free(t);
}

/* ---- a source without a model ---- */

static void test_script(void **state)
{
    static struct run plain, r;
    static const int32_t rows[] = {2, 5, 12, SESSION_MAX_ROWS};
    struct model *t = load(target_path, be), *d = load(drafter_path, be);
    int64_t accepted = 0, cycles = 0;
    (void)state;
    for (int i = 0; i < OFTEN(160); i++) {
        struct way y = {.prompt = i % 3 ? 33 : 250, .sampler = i % 2 ? sampled : greedy, .target_model = t};
        struct draw draw = {.x = (uint32_t)i * 77, .most = rows[i / 2 % 4]};
        const struct planner p = draw_planner(&draw);
        const bool recorded = i / 8 % 2;
        struct script k = {
            .source = {.op = &script_ops, .rows = draw.most, .needs = {.tapped = i / 16 % 2 ? d->d : NULL}},
            .will = plain.id,
            .n_will = N_NEW,
            .n_prompt = y.prompt,
            .seed = (uint32_t)i,
            .watch = !recorded && i / 16 % 2};
        run_planned(&y, NULL, NULL, &plain);
        if (recorded) recorder_on(be);
        run_planned(&y, &k.source, i % 5 ? &p : NULL, &r);
        if (recorded) recorder_off(be);
        same_ids(&plain, &r);
        assert_true(k.asked > 0);
        if (k.watch) assert_int_equal(k.next, y.prompt + N_NEW - 1);
        for (int j = 0; j < SESSION_MAX_ROWS; j++) accepted += j * r.st.accepted[j];
        cycles += r.st.cycles;
        assert_true(k.silent > 0 || draw.most > 2);
    }
    assert_true(accepted > cycles / 2); /* it mostly knows */
    model_free(d);
    model_free(t);
}

/* ---- what is refused ---- */

static void test_refused(void **state)
{
    static const struct {
        struct plan p;
        bool source;
        const char *what;
    } bad[] = {
        {{.draft = true, .rows = 6}, true, "rows of a plan out of range (expected 1 to 5, got 6)"},
        {{.draft = true, .rows = -1}, true, "rows of a plan out of range (expected 1 to 5, got -1)"},
        {{.draft = false, .rows = 0}, true, "rows of a plan out of range (expected 1 to 5, got 0)"},
        {{.draft = false, .rows = 2}, true, "a plan of 2 rows without proposals"},
        {{.draft = false, .rows = 2}, false, "rows of a plan out of range (expected 1 to 1, got 2)"},
        {{.draft = true, .rows = 1}, false, "there is no source"},
    };
    struct model *t = load(target_path, be), *d = load(drafter_path, be);
    struct way y = {.prompt = 20};
    struct engine *g;
    struct session *s;
    struct err e = {0};
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        s = start(&y, t, bad[i].source ? d : NULL);
        must(session_prefill(s, prompt, 20, NULL, NULL, &e) || session_cycles_begin(s, 1, &greedy, &e), &e);
        expect_error(session_cycle_start(s, &bad[i].p, 9, &e), &e, ERR_USAGE, bad[i].what);
        e = (struct err){0};
        session_free(s);
    }
    struct script k = {.source = {.op = &script_ops, .rows = 5, .needs = {.tapped = d->d, .hidden = true}}};
    const struct session_options o = {.ctx = 50, .kv = {KN_F16, KN_F16}};
    expect_error(engine_open(&g, t, &k.source, &o, &e), &e, ERR_USAGE,
                 "wants the target's last hidden state");
    e = (struct err){0};
    k.source = (struct source){.op = &script_ops, .rows = SESSION_MAX_ROWS + 1};
    expect_error(engine_open(&g, t, &k.source, &o, &e), &e, ERR_USAGE, "65 rows");
    model_free(d);
    model_free(t);
}

/* The planner by time and probability, where drafts are said to be cheap and to be dear, by times that are
 * fixed and by the stamps of this machine: the plain stream, and blocks of a stream that drafted always. With
 * fixed times, the same plans again. */
static void test_auto(void **state)
{
    static struct run plain, ref, r, again;
    static struct planner_auto a;
    static const int32_t counts[] = {2, 3, 5};
    struct model *t = load(target_path, be), *d = load(drafter_path, be);
    struct source x = source_dflash(d);
    (void)state;
    for (int i = 0; i < 16; i++) {
        const bool cheap = i & 1, fixed = i & 2, recorded = i & 4;
        struct way y = {.prompt = 33,
                        .chunk = 64,
                        .draft_window = SESSION_DRAFT_ALL,
                        .sampler = i & 8 ? sampled : greedy,
                        .target_model = t,
                        .width = 1};
        struct plan_times times = {.draft_s[0] = {cheap ? 1e-5 : 3e-3},
                                   .rows_s = {{0, 1e-3, 1.01e-3, 0, 0, 1.02e-3}}};
        const struct planner_auto_options o = {.times = &times,
                                               .fixed = fixed,
                                               .temperature = i & 8 ? 1 : 0,
                                               .counts = counts,
                                               .n_counts = 3,
                                               .block = 5,
                                               .drafter = true};
        struct err e = {0};
        run_planned(&y, NULL, NULL, &plain);
        y.block = 5;
        run_planned(&y, &x, NULL, &ref);
        for (int twice = 0; twice < 2; twice++) {
            must(planner_auto_init(&a, &o, &e), &e);
            const struct planner p = planner_auto(&a);
            if (recorded) recorder_on(be);
            run_planned(&y, &x, &p, twice ? &again : &r);
            if (recorded) recorder_off(be);
        }
        same_ids(&plain, &r), same_ids(&plain, &again);
        same_proposals(&ref, &r, y.block), same_proposals(&ref, &again, y.block);
        assert_int_equal(a.stats.cycles, again.st.steps);
        if (!fixed) continue;
        same_counts(&r.st, &again.st);
        assert_int_equal(a.stats.tokens, N_NEW - 1);
        if (cheap)
            assert_true(r.st.cycles > r.st.steps / 2);
        else
            assert_in_range(r.st.cycles, 1, r.st.steps / 3);
    }
    model_free(d);
    model_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plans), cmocka_unit_test(test_fixed),  cmocka_unit_test(test_plain_arm),
        cmocka_unit_test(test_auto),  cmocka_unit_test(test_script), cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests_name("plans", tests, engine_begin, engine_end);
}
