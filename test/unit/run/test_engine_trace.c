/* test_engine_trace.c - what the drafter proposes does not depend on what must not change it.
 *
 * What is compared is bytes: the draft trace with that of another way to the same point (other chunks, hence
 * other ring sizes; a state; other threads and instruction sets), or with that of a drafter that must draft
 * otherwise. */
#include "engine_fixture.h"

/* Around the ends of the sliding layer's ring (256 positions with chunks of 64; 512 with chunks of 300). */
static void test_trace_rings(void **state)
{
    static const int length[] = {1, 11, 12, 13, 255, 256, 257, 768};
    static const int chunk[] = {300, 7};
    static struct run a, b;
    struct model *t = load(target_path, be), *d = load(drafter_path, be);
    (void)state;
    for (size_t i = 0; i < sizeof length / sizeof length[0]; i++) {
        struct way y = {
            .prompt = length[i], .chunk = 64, .drafter = true, .target_model = t, .drafter_model = d};
        run(&y, &a);
        for (size_t j = 0; j < sizeof chunk / sizeof chunk[0]; j++) {
            y.chunk = chunk[j];
            run(&y, &b);
            same_ids(&a, &b);
            same_trace(&a, &b);
        }
        y.chunk = 64;
        y.state = true;
        run(&y, &b);
        same_ids(&a, &b);
        same_trace(&a, &b);
        y.append = length[i] > 9;
        run(&y, &b);
        same_ids(&a, &b);
        same_trace(&a, &b);
    }
    model_free(d);
    model_free(t);
}

static void test_trace_backends(void **state)
{
    static const char *const isa[] = {"scalar", "avx2", "avx512"};
    static struct run a, b;
    struct way y = {.prompt = 40, .chunk = 64, .drafter = true, .sampler = sampled};
    (void)state;
    run(&y, &a);
    for (int i = 0; i < 3; i++)
        for (int threads = 1; threads <= 3; threads += 2) {
            struct kn_backend *own = be;
            be = open_backend(isa[i], threads);
            if (be) {
                run(&y, &b);
                same_ids(&a, &b);
                same_trace(&a, &b);
                kn_backend_close(be);
            }
            be = own;
        }
}

/* The context that commits leave is the one a prefill of the same tokens makes: every cycle's proposals
 * again, from a new session that prefilled everything before the anchor. */
static void test_trace_from_prefill(void **state)
{
    static struct run r;
    static int32_t text[MAX_PROMPT];
    struct err e = {0};
    struct model *t = load(target_path, be), *d = load(drafter_path, be);
    struct way y = {.prompt = 30, .drafter = true, .target_model = t, .drafter_model = d};
    int several = 0, cycle = 0;
    (void)state;
    run(&y, &r);
    memcpy(text, prompt, sizeof text);
    memcpy(text + y.prompt, r.id, sizeof r.id);
    for (; cycle < r.st.cycles; cycle++) {
        int32_t proposals[TINY_BLOCK], anchor = y.prompt + r.made[cycle] - 1;
        bool usable;
        struct session *s = start(&y, t, d);
        several += cycle && r.made[cycle] > r.made[cycle - 1] + 1;
        must(session_prefill(s, text, anchor, NULL, NULL, &e), &e);
        must(session_draft(s, text[anchor], proposals, &usable, cycle % 2, &e), &e);
        assert_true(usable);
        assert_memory_equal(proposals, r.trace + cycle * (TINY_BLOCK - 1),
                            (TINY_BLOCK - 1) * sizeof *proposals);
        session_free(s);
    }
    assert_true(several > 0); /* commits of more than one row among them */
    model_free(d);
    model_free(t);
}

/* What slot 1 .. of the block behind the anchor at position `at` are to be, from the drafter's logits: the
 * likeliest tokens, or what the sampler picks with the noise of the places that they are for. */
static void proposals_of_logits(struct session *s, int32_t at, const struct kn_sampler *sampler, int32_t *out)
{
    const int32_t n_vocab = s->target->d->n_vocab;
    float *row = mem_alloc((size_t)n_vocab * sizeof *row);
    struct err e = {0};
    for (int32_t slot = 1; slot < TINY_BLOCK; slot++) {
        const int32_t before = at + slot - 1; /* what stands at at + slot is picked there */
        const struct kn_pick p = {.logits = row,
                                  .pos = &before,
                                  .n = 1,
                                  .n_vocab = n_vocab,
                                  .sampler = *sampler,
                                  .out = out + slot - 1};
        must(session_logits(s, slot, row, &e), &e);
        assert_int_equal(kn_op(be)->pick(be, &p), 0);
    }
    mem_free(row);
}

/* Sampled streams: every cycle's proposals from the logits of a new session that prefilled everything before
 * the anchor, greedy and coupled. */
static void test_trace_sampled(void **state)
{
    static struct run r[2];
    static int32_t text[MAX_PROMPT];
    struct err e = {0};
    struct model *t = load(target_path, be), *d = load(drafter_path, be);
    struct kn_sampler draft = sampled;
    (void)state;
    draft.repeat_penalty = 1;
    for (int coupled = 0; coupled < 2; coupled++) {
        const struct way y = {.prompt = 30,
                              .drafter = true,
                              .draft_greedy = !coupled,
                              .sampler = sampled,
                              .target_model = t,
                              .drafter_model = d};
        run(&y, &r[coupled]);
        memcpy(text, prompt, sizeof text);
        memcpy(text + y.prompt, r[coupled].id, sizeof r->id);
        for (int cycle = 0; cycle < r[coupled].st.cycles; cycle++) {
            int32_t likeliest[TINY_BLOCK], want[TINY_BLOCK], anchor = y.prompt + r[coupled].made[cycle] - 1;
            bool usable;
            struct session *s = start(&y, t, d);
            must(session_prefill(s, text, anchor, NULL, NULL, &e), &e);
            must(session_draft(s, text[anchor], likeliest, &usable, true, &e), &e);
            proposals_of_logits(s, anchor, coupled ? &draft : &greedy, want);
            if (!coupled) assert_memory_equal(want, likeliest, (TINY_BLOCK - 1) * sizeof *want);
            assert_memory_equal(want, r[coupled].trace + cycle * (TINY_BLOCK - 1),
                                (TINY_BLOCK - 1) * sizeof *want);
            session_free(s);
        }
    }
    same_ids(&r[0], &r[1]);
    other_trace(&r[0], &r[1]);
    model_free(d);
    model_free(t);
}

/* At a temperature at which all tokens are alike to both models the noise alone decides. So a coupled
 * proposal is what the target picks at its place, and no other place's noise will do; the likeliest token is
 * right once in a vocabulary. Recorded too, where what was recorded for another sampler must not be played.
 */
static void test_coupled(void **state)
{
    static struct run r;
    struct err e = {0};
    struct model *t = load(target_path, be), *d = load(drafter_path, be);
    (void)state;
    for (int i = 0; i < 4; i++) {
        const bool recorded = i % 2;
        const struct way y = {.prompt = 30, .drafter = true, .draft_greedy = i / 2};
        if (recorded) recorder_on(be);
        struct session *s = start(&y, t, d);
        must(session_prefill(s, prompt, y.prompt - N_NEW / 4, NULL, NULL, &e), &e);
        for (uint64_t seed = 0; seed < 3; seed++) {
            const struct kn_sampler hot = {.temp = 1000, .top_p = 1, .repeat_penalty = 1, .seed = seed};
            const struct spec_options o = {
                .n = N_NEW / 4, .sampler = seed ? hot : greedy, .tokens = take_tokens, .ctx = &r};
            int64_t accepted = 0;
            memset(&r, 0, sizeof r);
            must(spec_generate(s, &o, &r.st, &e), &e);
            for (int j = 0; j < TINY_BLOCK; j++) accepted += j * r.st.accepted[j];
            if (seed && !y.draft_greedy) assert_true(accepted >= 7);
            if (seed && y.draft_greedy) assert_true(accepted <= 1);
        }
        session_free(s);
        if (recorded) recorder_off(be);
    }
    model_free(d);
    model_free(t);
}

/* A bound on the context must bite, must not change the stream, and a bound larger than the context must do
 * nothing. */
static void test_draft_window(void **state)
{
    static struct run a, b, c;
    struct way y = {.prompt = 100, .drafter = true, .draft_window = SESSION_DRAFT_ALL};
    (void)state;
    run(&y, &a);
    y.draft_window = 3;
    run(&y, &b);
    y.draft_window = 1000;
    run(&y, &c);
    same_ids(&a, &b);
    same_trace(&a, &c);
    other_trace(&a, &b);
}

/* A full layer beside sliding ones sees three windows, unless it is told to see all: other proposals once the
 * context is longer, whatever pieces it came in; the stream is one. */
static void test_draft_reach(void **state)
{
    static struct run all, three, again;
    static const int near[] = {3 * TINY_WINDOW - 1, 3 * TINY_WINDOW, 3 * TINY_WINDOW + 1, 255, 256, 257, 769};
    (void)state;
    for (size_t i = 0; i < sizeof near / sizeof *near; i++) {
        struct way y = {.prompt = near[i], .drafter = true, .draft_window = SESSION_DRAFT_ALL};
        run(&y, &all);
        y.draft_window = 0;
        run(&y, &three);
        same_ids(&all, &three);
        other_trace(&all, &three);
        y.chunk = 17, y.state = true;
        run(&y, &again);
        same_ids(&three, &again);
        same_trace(&three, &again);
    }
}

/* Which drafters have it. */
static void test_draft_reach_of(void **state)
{
    (void)state;
    struct model *t = load(target_path, be), *d = load(drafter_path, be);
    const struct desc_layer *y = d->d->layer;
    assert_true(y[0].window == TINY_WINDOW && !y[1].window); /* the pair's */
    assert_int_equal(desc_draft_reach(d->d), 3 * TINY_WINDOW);
    for (int i = 0; i < d->d->n_layer; i++) d->d->layer[i].window = TINY_WINDOW;
    assert_int_equal(desc_draft_reach(d->d), 0); /* all have one */
    for (int i = 0; i < d->d->n_layer; i++) d->d->layer[i].window = 0;
    assert_int_equal(desc_draft_reach(d->d), 0); /* none has */
    d->d->layer[0].window = 1;
    assert_int_equal(desc_draft_reach(d->d), 0); /* a block would not see itself whole */
    model_free(d);
    model_free(t);
}

/* Causal or not in the block must show in the drafts, and only there. */
static void test_draft_causal(void **state)
{
    static struct run r[3];
    struct err e = {0};
    (void)state;
    for (int causal = -1; causal < 2; causal++) {
        const struct desc_override o = {.draft_causal = causal};
        struct model *d;
        must(model_load(&d, drafter_path, be, &o, NULL, NULL, &e), &e);
        assert_int_equal(d->d->causal_inferred, causal < 0);
        assert_int_equal(d->d->layer[0].causal, causal != 0);
        assert_int_equal(d->d->layer[1].causal, causal == 1);
        struct model *t = load(target_path, be);
        struct way y = {.prompt = 30, .drafter = true, .target_model = t, .drafter_model = d};
        run(&y, &r[causal + 1]);
        model_free(d);
        model_free(t);
    }
    same_ids(&r[0], &r[1]);
    same_ids(&r[0], &r[2]);
    other_trace(&r[0], &r[1]);
    other_trace(&r[0], &r[2]);
}

/* A drafter that brings the same embedding and head as its target drafts the same. */
static void test_own_ends(void **state)
{
    static struct run a, b;
    struct err e = {0};
    const char *path = scratch("own.gguf");
    struct way y = {.prompt = 30, .drafter = true};
    (void)state;
    run(&y, &a);
    must(tiny_write(path, &(struct tiny){.seed = 2, .drafter = true, .own_ends = true}, &e), &e);
    y.drafter_model = load(path, be);
    assert_non_null(y.drafter_model->head);
    assert_int_equal(y.drafter_model->d->n_vocab, TINY_VOCAB);
    run(&y, &b);
    same_ids(&a, &b);
    same_trace(&a, &b);
    model_free(y.drafter_model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_trace_rings),        cmocka_unit_test(test_trace_backends),
        cmocka_unit_test(test_draft_window),       cmocka_unit_test(test_draft_reach),
        cmocka_unit_test(test_draft_reach_of),     cmocka_unit_test(test_draft_causal),
        cmocka_unit_test(test_trace_from_prefill), cmocka_unit_test(test_own_ends),
        cmocka_unit_test(test_trace_sampled),      cmocka_unit_test(test_coupled),
    };
    return cmocka_run_group_tests_name("engine_trace", tests, engine_begin, engine_end);
}
