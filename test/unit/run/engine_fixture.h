/* engine_fixture.h - one way to generate on a tiny random pair, and what of two runs must be equal.
 *
 * Of the programs test_engine*.c. The pair, its backend and a prompt live from engine_begin to engine_end; a
 * run loads models of its own unless its way brings them, which stay the caller's. */
#ifndef TEST_ENGINE_FIXTURE_H
#define TEST_ENGINE_FIXTURE_H

#include "../streams.h"

#include "../../../common/base/mem.h"
#include "../model/recorder.h"
#include "tiny_pair.h"

static struct kn_backend *be;
static char target_path[128], drafter_path[128];

static inline struct kn_backend *open_backend(const char *isa, int threads)
{
    char msg[256];
    struct kn_backend *b;
    const struct kn_open o = {.device = "cpu", .isa = isa, .threads = threads};
    return kn_backend_open(&b, &o, msg, sizeof msg) ? NULL : b;
}

static inline struct model *load(const char *path, struct kn_backend *b)
{
    struct err e = {0};
    struct model *m;
    must(model_load(&m, path, b, NULL, NULL, NULL, &e), &e);
    return m;
}

/* ---- runs ---- */

/* One way to generate; zero: the plain one. */
struct way {
    int prompt, chunk, block, width, draft_window, kv_host, pool, tree;
    uint32_t kv;                     /* of keys and values of all layers; 0: f16 */
    const struct kn_kv_types *types; /* [TINY_LAYERS] of the target, then [TINY_DRAFT_LAYERS]; NULL: as kv */
    bool drafter, draft_greedy, state, append;
    struct kn_sampler sampler;
    struct model *target_model, *drafter_model;
};

static const struct kn_sampler greedy = {.top_p = 1, .repeat_penalty = 1};
static const struct kn_sampler sampled = {.temp = 0.9f,
                                          .top_k = 9,
                                          .top_p = 0.95f,
                                          .min_p = 0.01f,
                                          .repeat_penalty = 1.1f,
                                          .repeat_last = 20,
                                          .seed = 5};

static inline struct session *start(const struct way *y, struct model *t, struct model *d)
{
    struct err e = {0};
    struct session *s;
    const struct session_options o = {.ctx = y->prompt + N_NEW + MAX_BLOCK,
                                      .chunk = y->chunk,
                                      .block = y->block,
                                      .tree = d ? y->tree : 0,
                                      .draft_window = y->draft_window,
                                      .draft_greedy = y->draft_greedy,
                                      .kv_host = y->kv_host,
                                      .pool = y->pool,
                                      .kv = {y->kv ? y->kv : KN_F16, y->kv ? y->kv : KN_F16},
                                      .kv_layers = y->types,
                                      .draft_kv_layers = y->types ? y->types + TINY_LAYERS : NULL};
    must(session_new(&s, t, d, &o, &e), &e);
    return s;
}

static inline struct session *through_state(struct session *s, const struct way *y, struct model *t,
                                            struct model *d)
{
    struct err e = {0};
    struct state *st;
    struct state_info info;
    const char *path = scratch("state");
    save(s, path);
    session_free(s);
    must(state_open(&st, path, &info, &e), &e);
    s = start(y, t, d);
    must(state_restore(st, s, &e), &e);
    assert_int_equal(info.n_drafters, d != NULL);
    assert_int_equal(info.n_tokens, s->n_past);
    state_close(st);
    return s;
}

static inline void run(const struct way *y, struct run *r)
{
    struct err e = {0};
    struct model *t = y->target_model ? y->target_model : load(target_path, be), *d = NULL;
    if (y->drafter) d = y->drafter_model ? y->drafter_model : load(drafter_path, t->be);
    struct session *s = start(y, t, d);
    int before = y->append ? y->prompt - 9 : y->prompt;
    const struct spec_options o = {.n = N_NEW,
                                   .sampler = y->sampler.top_p > 0 ? y->sampler : greedy,
                                   .width = y->width,
                                   .tree = y->drafter ? y->tree : 0,
                                   .tokens = take_tokens,
                                   .proposals = take_proposals,
                                   .ctx = r};
    memset(r, 0, sizeof *r);
    must(session_prefill(s, prompt, before, NULL, NULL, &e), &e);
    if (y->state) s = through_state(s, y, t, d);
    if (y->append) must(session_prefill(s, prompt + before, y->prompt - before, NULL, NULL, &e), &e);
    must(spec_generate(s, &o, &r->st, &e), &e);
    assert_int_equal(r->n, N_NEW);
    session_free(s);
    if (!y->drafter_model) model_free(d);
    if (!y->target_model) model_free(t);
}

static inline void other_trace(const struct run *a, const struct run *b)
{
    assert_true(a->n_trace != b->n_trace ||
                memcmp(a->trace, b->trace, (size_t)a->n_trace * sizeof *a->trace));
}

/* As run, with a backend that records. */
static inline void run_recorded(const struct way *y, struct run *r)
{
    recorder_on(be);
    run(y, r);
    recorder_off(be);
    assert_true(recorder.replayed > 3 && recorder.recorded <= 2);
}

/* All that is counted, but for times. */
static inline void same_counts(const struct spec_stats *a, const struct spec_stats *b)
{
    assert_int_equal(a->generated, b->generated);
    assert_int_equal(a->cycles, b->cycles);
    assert_int_equal(a->steps, b->steps);
    assert_int_equal(a->nan_cycles, b->nan_cycles);
    assert_memory_equal(a->accepted, b->accepted, sizeof a->accepted);
    assert_int_equal(a->full_cycles, b->full_cycles);
    assert_int_equal(a->full_accepted, b->full_accepted);
    assert_int_equal(a->stop, b->stop);
}

static inline void expect_error(int rc, const struct err *e, enum err_class code, const char *what)
{
    if (rc == 0) fail_msg("succeeded (expected: %s)", what);
    if (e->code != code || !strstr(e->msg, what))
        fail_msg("got (%d) %s; expected (%d) ... %s", e->code, e->msg, code, what);
}

/* Of a group of tests: the pair in a directory of its own, the prompt, the backend. */
static inline int engine_begin(void **state)
{
    struct err e = {0};
    (void)state;
    scratch_begin();
    snprintf(target_path, sizeof target_path, "%s", scratch("target.gguf"));
    snprintf(drafter_path, sizeof drafter_path, "%s", scratch("drafter.gguf"));
    if (tiny_write(target_path, &(struct tiny){.seed = 1}, &e) ||
        tiny_write(drafter_path, &(struct tiny){.seed = 2, .drafter = true}, &e)) {
        fprintf(stderr, "%s\n", e.msg);
        return -1;
    }
    make_prompt(TINY_VOCAB - 1);
    be = open_backend("auto", 1);
    return 0;
}

static inline int engine_end(void **state)
{
    (void)state;
    kn_backend_close(be);
    scratch_end();
    return 0;
}

/* The same with the pair's target loaded, for tests that leave it as it is. */
static struct model *pair_target;
static inline int engine_begin_target(void **state)
{
    if (engine_begin(state)) return -1;
    pair_target = load(target_path, be);
    return 0;
}

static inline int engine_end_target(void **state)
{
    model_free(pair_target);
    return engine_end(state);
}

#endif
