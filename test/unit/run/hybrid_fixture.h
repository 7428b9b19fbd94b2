/* hybrid_fixture.h - random models with gated delta nets, drafters of both kinds for them, and streams under
 * plans.
 *
 * Of test_recurrent.c and test_sources.c. */
#ifndef TEST_HYBRID_FIXTURE_H
#define TEST_HYBRID_FIXTURE_H

#include "../model/family_fixture.h"

#include "../model/recorder.h"
#include "../often.h"
#include "../streams.h"

#include "../../../common/run/cycle.h"
#include "../../../common/run/memory_plan.h"
#include "../../../common/run/session_impl.h"
#include "../../../common/run/times.h"
#include "spans.h"

enum { IDS = 9, BLOCK = 6, N_ROWS = 150 };

/* ---- models: random weights at the sizes of three configs ---- */

#include "hybrid_parts.h"
#include "random_models.h"

static const struct pair *const kinds[] = {dense, even, experts};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

static struct kn_backend *be;

/* Of the target's file: a target's weights and the block that predicts further tokens, which is read as a
 * drafter. */
static inline struct model *target(int kind)
{
    family_config("target", kinds[kind], NULL);
    return random_model(be, "target", 11 + (uint64_t)kind, kind == 1 ? QUANT_Q8_0 : QUANT_F32,
                        CONVERT_MTP_KEEP);
}

/* A test's state says which drafter: NULL, a DFlash drafter; else the MTP block of the newest target. */
static inline struct model *drafter(void **state)
{
    const struct desc_override o = {.drafter = true, .draft_causal = -1, .block_size = BLOCK};
    struct err e = {0};
    struct model *m;
    write_config("drafter", base_drafter, drafter_parts);
    if (!*state) return random_model(be, "drafter", 5, QUANT_F32, CONVERT_MTP_FOUND);
    must(model_load(&m, "target.gguf", be, &o, NULL, NULL, &e), &e);
    return m;
}

static const struct kn_sampler samplers[] = {
    {.top_p = 1, .repeat_penalty = 1},
    {.temp = 2, .top_k = 7, .top_p = 0.95f, .repeat_penalty = 1.1f, .repeat_last = 20, .seed = 3},
};

static inline void same(const struct run *a, const struct run *b, bool traces)
{
    same_ids(a, b);
    if (traces) same_trace(a, b);
}

/* Proposals of a tree at most that run_planned makes room for. */
static int32_t planned_tree;

/* A stream of source x under plans p, the recurrent state written every so many rows. */
static inline void run_planned(struct model *t, struct source *x, int sampler, int32_t every,
                               const struct planner *p, int32_t width, struct run *r)
{
    struct err e = {0};
    struct engine *g;
    struct session *s;
    const struct session_options o = {
        .ctx = 400, .chunk = 16, .kv = {KN_F16, KN_F16}, .tree = x && x->op->propose ? planned_tree : 0};
    const struct spec_options go = {.n = N_NEW,
                                    .sampler = samplers[sampler],
                                    .width = width,
                                    .planner = p,
                                    .tokens = take_tokens,
                                    .proposals = take_proposals,
                                    .ctx = r};
    memset(r, 0, sizeof *r);
    must(engine_open(&g, t, x, &o, &e) || session_open(&s, g, &e), &e);
    s->every = every;
    must(session_prefill(s, prompt, 33, NULL, NULL, &e) || spec_generate(s, &go, &r->st, &e), &e);
    assert_int_equal(r->n, N_NEW);
    session_free(s);
    engine_close(g);
}

static inline struct setting setting(struct model *t, struct source *x, int i, int32_t n_prompt)
{
    static const int32_t every[] = {0, 2, 3, 6};
    return (struct setting){.target = t,
                            .source = x,
                            .o = {.ctx = 400, .chunk = 16, .kv = {KN_F16, KN_F16}},
                            .sampler = samplers[i % 2],
                            .every = every[i / 2 % 4],
                            .n_prompt = n_prompt};
}

static inline int open_all(void **state)
{
    const struct kn_open o = {.device = "cpu", .threads = 1};
    char msg[128];
    make_prompt(IDS - 1);
    return setup(state) || kn_backend_open(&be, &o, msg, sizeof msg) ? -1 : 0;
}

static inline int close_all(void **state)
{
    kn_backend_close(be);
    return teardown(state);
}

#endif
