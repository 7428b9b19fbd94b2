/* test_engine.c - models, sessions, the speculative loop and states, on a tiny random pair.
 *
 * What is compared is bytes: the drafted stream with the target's own, and the draft trace with that of
 * another way to the same point (other chunks, hence other ring sizes; a state; other threads and instruction
 * sets). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "../../common/mem.h"
#include "../../common/session.h"
#include "../../common/spec.h"
#include "../../common/state.h"
#include "recorder.h"
#include "tiny_pair.h"

static struct kn_backend *be;
static char target_path[128], drafter_path[128];

static void must(int rc, const struct err *e)
{
    if (rc) fail_msg("(%d) %s", e->code, e->msg);
}

static struct kn_backend *open_backend(const char *isa, int threads)
{
    char msg[256];
    struct kn_backend *b;
    const struct kn_open o = {.device = "cpu", .isa = isa, .threads = threads};
    return kn_backend_open(&b, &o, msg, sizeof msg) ? NULL : b;
}

static struct model *load(const char *path, struct kn_backend *b)
{
    struct err e = {0};
    struct model *m;
    must(model_load(&m, path, b, NULL, NULL, NULL, &e), &e);
    return m;
}

/* ---- runs ---- */

enum { N_NEW = 40, MAX_PROMPT = 1100 };

struct run {
    int32_t id[N_NEW], trace[N_NEW * TINY_BLOCK];
    int n, n_trace;
    int made[N_NEW]; /* tokens written when cycle i drafted */
    struct spec_stats st;
};

/* One way to generate; zero: the plain one. */
struct way {
    int prompt, chunk, block, width, draft_window;
    uint32_t kv;
    bool drafter, state, append;
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

static int32_t prompt[MAX_PROMPT];

static void make_prompt(void)
{
    uint32_t x = 7;
    for (int i = 0; i < MAX_PROMPT; i++) {
        x = x * 1664525u + 1013904223u;
        prompt[i] = (int32_t)((x >> 16) % (TINY_VOCAB - 1));
    }
}

static int take_tokens(void *ctx, const int32_t *ids, int32_t n, struct err *e)
{
    struct run *r = ctx;
    (void)e;
    memcpy(r->id + r->n, ids, (size_t)n * sizeof *ids);
    r->n += n;
    return 0;
}

static int take_proposals(void *ctx, const int32_t *ids, int32_t n, struct err *e)
{
    struct run *r = ctx;
    (void)e;
    memcpy(r->trace + r->n_trace, ids, (size_t)n * sizeof *ids);
    r->made[r->n_trace / n] = r->n;
    r->n_trace += n;
    return 0;
}

static struct session *start(const struct way *y, struct model *t, struct model *d)
{
    struct err e = {0};
    struct session *s;
    const struct session_options o = {.ctx = y->prompt + N_NEW + TINY_BLOCK,
                                      .chunk = y->chunk,
                                      .block = y->block,
                                      .draft_window = y->draft_window,
                                      .kv_type = y->kv ? y->kv : KN_F16};
    must(session_new(&s, t, d, &o, &e), &e);
    return s;
}

static struct session *through_state(struct session *s, const struct way *y, struct model *t, struct model *d)
{
    struct err e = {0};
    struct io_out o;
    struct state *st;
    struct state_info info;
    const char *path = scratch("state");
    must(io_out_open(&o, path, true, NULL, 0, &e) || state_save(s, &o, &e) || io_out_commit(&o, &e), &e);
    session_free(s);
    must(state_open(&st, path, &info, &e), &e);
    s = start(y, t, d);
    must(state_restore(st, s, &e), &e);
    assert_int_equal(info.has_drafter, d != NULL);
    assert_int_equal(info.n_tokens, s->n_past);
    state_close(st);
    return s;
}

static void run(const struct way *y, struct run *r)
{
    struct err e = {0};
    struct model *t = y->target_model ? y->target_model : load(target_path, be), *d = NULL;
    if (y->drafter) d = y->drafter_model ? y->drafter_model : load(drafter_path, t->be);
    struct session *s = start(y, t, d);
    int before = y->append ? y->prompt - 9 : y->prompt;
    const struct spec_options o = {.n = N_NEW,
                                   .sampler = y->sampler.top_p > 0 ? y->sampler : greedy,
                                   .width = y->width,
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

static void same_ids(const struct run *a, const struct run *b)
{
    assert_memory_equal(a->id, b->id, sizeof a->id);
}

static void same_trace(const struct run *a, const struct run *b)
{
    assert_true(a->n_trace > 0);
    assert_int_equal(a->n_trace, b->n_trace);
    assert_memory_equal(a->trace, b->trace, (size_t)a->n_trace * sizeof *a->trace);
}

static void other_trace(const struct run *a, const struct run *b)
{
    assert_true(a->n_trace != b->n_trace ||
                memcmp(a->trace, b->trace, (size_t)a->n_trace * sizeof *a->trace));
}

/* ---- drafted equals undrafted ---- */

static void test_lossless(void **state)
{
    static struct run plain, drafted;
    static const int shape[][2] = {{5, 5}, {2, 2}, {5, 1}, {4, 3}, {3, 0}};
    static const uint32_t kv[] = {KN_F16, KN_BF16, KN_F32};
    struct model *t = load(target_path, be), *d = load(drafter_path, be);
    int64_t accepted = 0, cycles = 0;
    (void)state;
    for (int sampling = 0; sampling < 2; sampling++)
        for (int k = 0; k < 3; k++) {
            struct way y = {.prompt = 33,
                            .kv = kv[k],
                            .sampler = sampling ? sampled : greedy,
                            .target_model = t,
                            .drafter_model = d};
            run(&y, &plain);
            assert_int_equal(plain.st.cycles, 0);
            y.drafter = true;
            for (size_t i = 0; i < sizeof shape / sizeof shape[0]; i++) {
                y.block = shape[i][0];
                y.width = shape[i][1];
                run(&y, &drafted);
                same_ids(&plain, &drafted);
                assert_int_equal(drafted.n_trace, drafted.st.cycles * (y.block - 1));
                for (int j = 0; j < y.block; j++) accepted += j * drafted.st.accepted[j];
                cycles += drafted.st.cycles;
            }
        }
    /* The pair is random over 11 ids: some proposals must have been right, or the loop was never exercised.
     */
    assert_true(accepted > cycles / 20 && accepted < 3 * cycles);
    model_free(d);
    model_free(t);
}

/* Every cut of the last cycle: the same first ids for every length. */
static void test_lengths(void **state)
{
    static struct run all, r;
    struct err e = {0};
    struct model *t = load(target_path, be), *d = load(drafter_path, be);
    struct way y = {.prompt = 20, .target_model = t, .drafter_model = d};
    (void)state;
    run(&y, &all);
    for (int n = 1; n < 12; n++) {
        struct session *s = start(&y, t, d);
        const struct spec_options o = {.n = n, .sampler = greedy, .tokens = take_tokens, .ctx = &r};
        memset(&r, 0, sizeof r);
        must(session_prefill(s, prompt, y.prompt, NULL, NULL, &e), &e);
        must(spec_generate(s, &o, &r.st, &e), &e);
        assert_int_equal(r.n, n);
        assert_int_equal(r.st.generated, n);
        assert_int_equal(r.st.stop, SPEC_STOP_LENGTH);
        assert_memory_equal(r.id, all.id, (size_t)n * sizeof *r.id);
        session_free(s);
    }
    model_free(d);
    model_free(t);
}

/* A stop id ends the stream, is written, and nothing after it. */
static void test_stops(void **state)
{
    static struct run all, r;
    struct err e = {0};
    struct model *t = load(target_path, be), *d = load(drafter_path, be);
    struct way y = {.prompt = 20, .sampler = sampled, .target_model = t, .drafter_model = d};
    (void)state;
    run(&y, &all);
    for (int32_t id = 0; id < TINY_VOCAB; id++) {
        int first = 0;
        while (first < N_NEW && all.id[first] != id) first++;
        struct session *s = start(&y, t, id % 2 ? d : NULL);
        const struct spec_options o = {
            .n = N_NEW, .sampler = sampled, .stops = &id, .n_stops = 1, .tokens = take_tokens, .ctx = &r};
        memset(&r, 0, sizeof r);
        must(session_prefill(s, prompt, y.prompt, NULL, NULL, &e), &e);
        must(spec_generate(s, &o, &r.st, &e), &e);
        assert_int_equal(r.n, first < N_NEW ? first + 1 : N_NEW);
        assert_int_equal(r.st.stop, first < N_NEW ? SPEC_STOP_TOKEN : SPEC_STOP_LENGTH);
        assert_memory_equal(r.id, all.id, (size_t)r.n * sizeof *r.id);
        session_free(s);
    }
    model_free(d);
    model_free(t);
}

/* ---- cycles that are recorded, and started before the last one's result is known ---- */

/* As run, with a backend that records. */
static void run_recorded(const struct way *y, struct run *r)
{
    recorder_on(be);
    run(y, r);
    recorder_off(be);
    assert_true(recorder.replayed > 3 && recorder.recorded <= 2);
}

/* All that is counted, but for times. */
static void same_counts(const struct spec_stats *a, const struct spec_stats *b)
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

static void test_recorded(void **state)
{
    static struct run plain, host, r;
    static const int shape[][2] = {{5, 5}, {2, 2}, {5, 1}, {4, 3}, {3, 0}};
    static const int length[] = {1, 33, 250, 256, 770};
    (void)state;
    for (int sampling = 0; sampling < 2; sampling++)
        for (size_t i = 0; i < sizeof length / sizeof length[0]; i++) {
            struct way y = {.prompt = length[i], .chunk = 64, .sampler = sampling ? sampled : greedy};
            run(&y, &plain);
            run_recorded(&y, &r);
            same_ids(&plain, &r);
            same_counts(&plain.st, &r.st);
            y.drafter = true;
            y.draft_window = i == 2 ? 3 : 0;
            y.block = shape[i][0];
            y.width = shape[i][1];
            run(&y, &host);
            run_recorded(&y, &r);
            same_ids(&plain, &r);
            same_trace(&host, &r);
            same_counts(&host.st, &r.st);
        }
}

/* Lengths and stop ids cut a cycle, with another one started behind it; the session goes on from there as one
 * that was prefilled. */
static void test_recorded_ends(void **state)
{
    static struct run all, host, r;
    struct err e = {0};
    struct way y = {.prompt = 20, .sampler = sampled};
    (void)state;
    run(&y, &all);
    for (int i = 0; i < 24; i++) {
        const int32_t stop = i < 12 ? TINY_VOCAB : i - 12;
        const struct spec_options o = {.n = i < 12 ? i + 1 : N_NEW,
                                       .sampler = sampled,
                                       .stops = &stop,
                                       .n_stops = 1,
                                       .tokens = take_tokens,
                                       .proposals = take_proposals};
        int32_t ids[2][9];
        for (int recorded = 0; recorded < 2; recorded++) {
            struct run *to = recorded ? &r : &host;
            struct spec_options own = o;
            if (recorded) recorder_on(be);
            struct model *t = load(target_path, be), *d = load(drafter_path, be);
            struct session *s = start(&y, t, d);
            memset(to, 0, sizeof *to);
            own.ctx = to;
            must(session_prefill(s, prompt, y.prompt, NULL, NULL, &e), &e);
            must(spec_generate(s, &own, &to->st, &e), &e);
            assert_int_equal(s->n_past, y.prompt + to->n - 1);
            assert_memory_equal(s->history + y.prompt, all.id, (size_t)(to->n - 1) * sizeof *to->id);
            own.stops = NULL, own.n_stops = 0, own.n = 9, own.tokens = NULL, own.proposals = NULL;
            if (to->n < 30) {
                must(session_prefill(s, to->id + to->n - 1, 1, NULL, NULL, &e), &e);
                struct spec_stats more;
                struct run next = {0};
                own.tokens = take_tokens, own.ctx = &next;
                must(spec_generate(s, &own, &more, &e), &e);
                memcpy(ids[recorded], next.id, sizeof ids[0]);
                if (to->n + 9 <= N_NEW) assert_memory_equal(next.id, all.id + to->n, sizeof ids[0]);
            }
            session_free(s);
            model_free(d);
            model_free(t);
            if (recorded) recorder_off(be);
        }
        assert_int_equal(host.n, r.n);
        assert_memory_equal(host.id, r.id, sizeof r.id);
        assert_memory_equal(r.id, all.id, (size_t)r.n * sizeof *r.id);
        same_counts(&host.st, &r.st);
        assert_int_equal(host.n_trace, r.n_trace);
        assert_memory_equal(host.trace, r.trace, (size_t)r.n_trace * sizeof *r.trace);
    }
}

/* A recording that memory has moved under is made anew. */
static void test_recorded_stale(void **state)
{
    static struct run plain, r;
    struct way y = {.prompt = 20, .drafter = true};
    (void)state;
    run(&y, &plain);
    recorder_on(be);
    recorder.stale_at = 3;
    run(&y, &r);
    recorder_off(be);
    assert_true(recorder.replayed > 3);
    assert_int_equal(recorder.recorded, 2);
    same_ids(&plain, &r);
    same_trace(&plain, &r);
}

/* ---- the draft trace does not depend on what must not change it ---- */

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

/* A bound on the context must bite, must not change the stream, and a bound larger than the context must do
 * nothing. */
static void test_draft_window(void **state)
{
    static struct run a, b, c;
    struct way y = {.prompt = 100, .drafter = true};
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

static int slide(struct gguf_writer *w, struct err *e)
{
    const uint8_t sliding[] = {1, 0, 1};
    if (gguf_put_u32(w, "qwen3.attention.sliding_window", 9, e)) return -1;
    return gguf_put_array(w, "qwen3.attention.sliding_window_pattern", GGUF_BOOL, sliding, 3, e);
}

/* A target with sliding layers: its rings wrap as well. */
static void test_sliding_target(void **state)
{
    static struct run full, a, b;
    struct err e = {0};
    const char *path = scratch("slide.gguf");
    struct way y = {.prompt = 270, .chunk = 64};
    (void)state;
    run(&y, &full);
    must(tiny_write(path, &(struct tiny){.seed = 1, .edit = slide}, &e), &e);
    y.target_model = load(path, be);
    assert_int_equal(y.target_model->d->layer[0].window, 9);
    assert_int_equal(y.target_model->d->layer[1].window, 0);
    run(&y, &a);
    assert_memory_not_equal(full.id, a.id, sizeof a.id);
    y.drafter = true;
    run(&y, &b);
    same_ids(&a, &b);
    y.state = true;
    y.append = true;
    run(&y, &b);
    same_ids(&a, &b);
    y.chunk = 300;
    y.state = y.append = false;
    run(&y, &b);
    same_ids(&a, &b);
    run_recorded(&y, &b);
    same_ids(&a, &b);
    model_free(y.target_model);
}

/* ---- logits ---- */

struct rows {
    float *v;
    int32_t n;
};

static int take_rows(void *ctx, const float *rows, int32_t n, int32_t pos, struct err *e)
{
    struct rows *r = ctx;
    (void)e;
    assert_int_equal(pos, r->n);
    memcpy(r->v + (size_t)pos * TINY_VOCAB, rows, (size_t)n * TINY_VOCAB * sizeof *rows);
    r->n += n;
    return 0;
}

/* Row by row as verify computes it, in chunks, and at once: the same bits. */
static void test_rows(void **state)
{
    enum { N = 150 };
    static float all[N * TINY_VOCAB], some[N * TINY_VOCAB], one[TINY_VOCAB];
    struct err e = {0};
    struct model *t = load(target_path, be);
    struct way y = {.prompt = N, .chunk = 200};
    struct rows r = {all, 0};
    struct session *s = start(&y, t, NULL);
    (void)state;
    must(session_prefill(s, prompt, N, take_rows, &r, &e), &e);
    assert_int_equal(r.n, N);
    session_free(s);
    y.chunk = 13;
    r = (struct rows){some, 0};
    s = start(&y, t, NULL);
    must(session_prefill(s, prompt, N, take_rows, &r, &e), &e);
    assert_memory_equal(all, some, sizeof all);
    session_free(s);
    s = start(&y, t, NULL);
    must(session_prefill(s, prompt, 40, NULL, NULL, &e), &e);
    for (int pos = 40; pos < N; pos += 3) {
        int n = N - pos < 64 ? N - pos : 64; /* 64 rows, of which 3 stay */
        must(session_forward(s, prompt + pos, n, &e), &e);
        for (int i = 0; i < n; i++) {
            must(session_logits(s, i, one, &e), &e);
            assert_memory_equal(one, all + (pos + i) * TINY_VOCAB, sizeof one);
        }
        must(session_commit(s, 3 < n ? 3 : n, &e), &e);
    }
    session_free(s);
    model_free(t);
}

/* ---- NaN ---- */

static void test_nan_target(void **state)
{
    struct err e = {0};
    struct tiny y = {.nan_tensor = "blk.1.ffn_down.weight"};
    const char *path = scratch("nan.gguf");
    struct session *s;
    int32_t id;
    (void)state;
    must(tiny_write(path, &y, &e), &e);
    struct model *t = load(path, be);
    for (int check = 0; check < 2; check++) {
        const struct session_options o = {.ctx = 50, .kv_type = KN_F16, .check_layers = check};
        must(session_new(&s, t, NULL, &o, &e), &e);
        int rc = session_prefill(s, prompt, 20, NULL, NULL, &e);
        if (!check) {
            must(rc, &e);
            rc = session_pick(s, &greedy, 1, &id, &e);
        }
        assert_int_equal(rc, -1);
        assert_int_equal(e.code, ERR_DEVICE);
        assert_non_null(
            strstr(e.msg, check ? "position 0: NaN or Inf in the output of layer 1" : "position 19"));
        session_free(s);
        e = (struct err){0};
    }
    model_free(t);
}

static void test_nan_drafter(void **state)
{
    static struct run plain, r;
    struct err e = {0};
    struct tiny y = {.drafter = true, .nan_tensor = "output_norm.weight"};
    const char *path = scratch("nan-drafter.gguf");
    struct way w = {.prompt = 20};
    (void)state;
    run(&w, &plain);
    must(tiny_write(path, &y, &e), &e);
    w.drafter = true;
    w.drafter_model = load(path, be);
    run(&w, &r);
    same_ids(&plain, &r);
    assert_int_equal(r.st.cycles, N_NEW - 1);
    assert_int_equal(r.st.nan_cycles, N_NEW - 1);
    assert_int_equal(r.n_trace, 0);
    w.sampler = sampled; /* with a penalty: proposals that are none enter the history */
    w.drafter = false;
    run(&w, &plain);
    w.drafter = true;
    recorder_on(be);
    run(&w, &r);
    recorder_off(be);
    same_ids(&plain, &r);
    assert_int_equal(r.st.nan_cycles, N_NEW - 1);
    assert_int_equal(r.n_trace, 0);
    model_free(w.drafter_model);
}

/* ---- refusals ---- */

static void expect_error(int rc, const struct err *e, enum err_class code, const char *what)
{
    if (rc == 0) fail_msg("succeeded (expected: %s)", what);
    if (e->code != code || !strstr(e->msg, what))
        fail_msg("got (%d) %s; expected (%d) ... %s", e->code, e->msg, code, what);
}

static int add_unknown_key(struct gguf_writer *w, struct err *e)
{
    return gguf_put_u32(w, "qwen3.expert_count", 8, e);
}
static int add_scaling(struct gguf_writer *w, struct err *e)
{
    return gguf_put_str(w, "qwen3.rope.scaling.type", "yarn", 4, e);
}
static int wrong_heads(struct gguf_writer *w, struct err *e)
{
    return gguf_put_u32(w, "qwen3.attention.head_count", 5, e);
}
static int other_arch(struct gguf_writer *w, struct err *e)
{
    return gguf_put_str(w, "general.architecture", "phi3", 4, e);
}
static int other_dialect(struct gguf_writer *w, struct err *e)
{
    return gguf_put_str(w, "general.architecture", "dflash-draft", 12, e);
}
static int conv_key(struct gguf_writer *w, struct err *e)
{
    return gguf_put_u32(w, "dflash.conv_kernel_size", 2, e);
}
static int short_pattern(struct gguf_writer *w, struct err *e)
{
    const uint8_t one = 1;
    return gguf_put_array(w, "dflash.attention.sliding_window_pattern", GGUF_BOOL, &one, 1, e);
}
static int tap_zero(struct gguf_writer *w, struct err *e)
{
    const int32_t taps[] = {0, 3};
    return gguf_put_array(w, "dflash.target_layers", GGUF_I32, taps, 2, e);
}
static int three_taps(struct gguf_writer *w, struct err *e)
{
    const int32_t taps[] = {1, 2, 3};
    return gguf_put_array(w, "dflash.target_layers", GGUF_I32, taps, 3, e);
}
static int stop_out_of_range(struct gguf_writer *w, struct err *e)
{
    return gguf_put_u32(w, "tokenizer.ggml.eos_token_id", TINY_VOCAB, e);
}

static void test_desc_refuses(void **state)
{
    static const struct {
        struct tiny y;
        const char *what;
    } c[] = {
        {{.drop_key = "general.architecture"}, "key 'general.architecture': is missing"},
        {{.edit = other_arch}, "or dflash, got phi3"},
        {{.drop_key = "qwen3.rope.freq_base"}, "key 'qwen3.rope.freq_base': is missing"},
        {{.drop_key = "qwen3.attention.layer_norm_rms_epsilon"}, "layer_norm_rms_epsilon': is missing"},
        {{.drop_key = "qwen3.block_count"}, "key 'qwen3.block_count': is missing"},
        {{.edit = add_unknown_key}, "key 'qwen3.expert_count': is not supported"},
        {{.edit = add_scaling}, "rope scaling is not supported (expected none, got yarn)"},
        {{.edit = wrong_heads}, "(expected 6, got 5)"},
        {{.edit = stop_out_of_range},
         "key 'tokenizer.ggml.eos_token_id': out of range (expected 0 to 10, got 11)"},
        {{.drop_tensor = "blk.2.attn_k_norm.weight"}, "tensor 'blk.2.attn_k_norm.weight': is missing"},
        {{.wide_tensor = "blk.1.ffn_up.weight"}, "(expected [40, 52], got [40, 53])"},
        {{.wide_tensor = "blk.1.attn_norm.weight"}, "(expected [40], got [41])"},
        {{.drafter = true, .edit = other_dialect}, "keys begin with 'dflash.' (expected 'dflash-draft.', as"},
        {{.drafter = true, .edit = conv_key}, "a DFlash2 drafter: running it is not supported (found dflash.conv_kernel_size 2)"},
        {{.drafter = true, .edit = short_pattern}, "(expected bool[2], got bool[1])"},
        {{.drafter = true, .edit = tap_zero}, "element 0 out of range (expected 1 to 1024, got 0)"},
        {{.drafter = true, .edit = three_taps}, "is no multiple of the 3 taps"},
        {{.drafter = true, .drop_key = "dflash.block_size"}, "key 'dflash.block_size': is missing"},
        {{.drafter = true, .drop_key = "tokenizer.ggml.mask_token_id"}, "mask_token_id': is missing"},
        {{.drafter = true, .drop_key = "dflash.attention.sliding_window_pattern"},
         "sliding_window_pattern': is missing"},
        {{.drafter = true, .drop_key = "dflash.attention.sliding_window"}, "sliding_window': is missing"},
        {{.drafter = true, .drop_key = "dflash.target_layers"}, "no key that lists target layers"},
        {{.drafter = true, .drop_tensor = "enc.output_norm.weight"},
         "tensor 'enc.output_norm.weight': is missing"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof c / sizeof c[0]; i++) {
        struct err e = {0};
        struct gguf *g;
        struct desc *d;
        const char *path = scratch("refused.gguf");
        must(tiny_write(path, &c[i].y, &e), &e);
        must(gguf_open(&g, path, &e), &e);
        int rc = desc_read(&d, g, NULL, &e);
        expect_error(rc, &e, ERR_FORMAT, c[i].what);
        assert_non_null(strstr(e.msg, "refused.gguf: "));
        gguf_close(g);
    }
}

static void test_pair_refuses(void **state)
{
    struct err e = {0};
    struct model *t = load(target_path, be), *d = load(drafter_path, be);
    struct desc x = *d->d;
    (void)state;
    must(desc_pair(t->d, &x, &e), &e);
    x.taps[1] = 3;
    expect_error(desc_pair(t->d, &x, &e), &e, ERR_FORMAT,
                 "tap 1 out of range (expected a block of the target, 0 to 2, got 3)");
    x = *d->d, e = (struct err){0};
    x.n_features = 60;
    expect_error(desc_pair(t->d, &x, &e), &e, ERR_FORMAT, "= 80, got 60");
    x = *d->d, e = (struct err){0};
    x.mask_id = TINY_VOCAB;
    expect_error(desc_pair(t->d, &x, &e), &e, ERR_FORMAT, "mask id");
    x = *d->d, e = (struct err){0};
    x.n_vocab = 12;
    expect_error(desc_pair(t->d, &x, &e), &e, ERR_FORMAT, "vocabulary (expected the target's 11, got 12)");
    e = (struct err){0};
    expect_error(desc_pair(d->d, d->d, &e), &e, ERR_FORMAT, "is a drafter");
    model_free(d);
    model_free(t);
}

static void test_session_refuses(void **state)
{
    static const int32_t bad[] = {1, 2, TINY_VOCAB};
    struct model *t = load(target_path, be), *d = load(drafter_path, be);
    struct session_options o = {.ctx = 50, .kv_type = KN_F16, .block = TINY_BLOCK + 1};
    struct spec_options g = {.n = 50, .sampler = greedy};
    struct spec_stats st;
    struct session *s;
    struct err e = {0};
    (void)state;
    expect_error(session_new(&s, t, d, &o, &e), &e, ERR_USAGE, "expected 2 to the 5");
    o.block = 0, e = (struct err){0};
    must(session_new(&s, t, d, &o, &e), &e);
    expect_error(session_prefill(s, prompt, 51, NULL, NULL, &e), &e, ERR_USAGE,
                 "expected at most 50 tokens, got 51");
    e = (struct err){0};
    expect_error(session_prefill(s, bad, 3, NULL, NULL, &e), &e, ERR_FORMAT,
                 "token 2: id out of the vocabulary");
    e = (struct err){0};
    expect_error(session_prefill(s, prompt, 0, NULL, NULL, &e), &e, ERR_FORMAT, "empty");
    e = (struct err){0};
    expect_error(spec_generate(s, &g, &st, &e), &e, ERR_USAGE, "context is too small");
    g.n = 5, e = (struct err){0};
    expect_error(spec_generate(s, &g, &st, &e), &e, ERR_USAGE, "prefill first");
    session_free(s);
    model_free(d);
    model_free(t);
}

static void test_forms_refused(void **state)
{
    struct err e = {0};
    struct model *m;
    (void)state;
    expect_error(model_load(&m, scratch_dir, be, NULL, NULL, NULL, &e), &e, ERR_FORMAT, "is a directory");
    assert_non_null(strstr(e.hint, "dflash-convert "));
    e = (struct err){0};
    expect_error(model_load(&m, scratch("none.gguf"), be, NULL, NULL, NULL, &e), &e, ERR_IO, "none.gguf");
}

/* ---- states ---- */

static void save(struct session *s, const char *path)
{
    struct err e = {0};
    struct io_out o;
    must(io_out_open(&o, path, true, NULL, 0, &e) || state_save(s, &o, &e) || io_out_commit(&o, &e), &e);
}

static void expect_refused(const char *path, struct model *t, struct model *d, int chunk, uint32_t kv,
                           int ctx, enum err_class code, const char *what)
{
    struct err e = {0};
    struct state *st;
    struct state_info info;
    struct session *s = NULL;
    const struct session_options o = {.ctx = ctx, .chunk = chunk, .kv_type = kv};
    int rc = state_open(&st, path, &info, &e);
    if (rc == 0) {
        must(session_new(&s, t, d, &o, &e), &e);
        rc = state_restore(st, s, &e);
    }
    expect_error(rc, &e, code, what);
    session_free(s);
    state_close(st);
}

static void test_state_refuses(void **state)
{
    struct err e = {0};
    char other_path[128], other_drafter[128], with[128], without[128];
    struct way y = {.prompt = 30, .chunk = 16};
    (void)state;
    snprintf(other_path, sizeof other_path, "%s", scratch("other.gguf"));
    snprintf(other_drafter, sizeof other_drafter, "%s", scratch("other-drafter.gguf"));
    snprintf(with, sizeof with, "%s", scratch("with"));
    snprintf(without, sizeof without, "%s", scratch("without"));
    must(tiny_write(other_path, &(struct tiny){.seed = 9}, &e), &e);
    must(tiny_write(other_drafter, &(struct tiny){.seed = 9, .drafter = true}, &e), &e);
    struct model *t = load(target_path, be), *d = load(drafter_path, be);
    struct model *t2 = load(other_path, be), *d2 = load(other_drafter, be);
    struct session *s = start(&y, t, d);
    must(session_prefill(s, prompt, 30, NULL, NULL, &e), &e);
    save(s, with);
    session_free(s);
    s = start(&y, t, NULL);
    must(session_prefill(s, prompt, 30, NULL, NULL, &e), &e);
    save(s, without);
    session_free(s);
    expect_refused(with, t2, NULL, 16, KN_F16, 50, ERR_FORMAT, "another target");
    expect_refused(with, t, d2, 16, KN_F16, 50, ERR_FORMAT, "another drafter");
    expect_refused(with, t, d, 32, KN_F16, 50, ERR_FORMAT, "another chunk (expected 32, got 16)");
    expect_refused(with, t, d, 16, KN_BF16, 50, ERR_FORMAT, "another cache type (expected BF16, got F16)");
    expect_refused(with, t, d, 16, KN_F16, 29, ERR_USAGE, "expected at most 29 tokens, got 30");
    expect_refused(without, t, d, 16, KN_F16, 50, ERR_FORMAT, "(expected taps 0 2, got none)");
    model_free(t);
    model_free(d);
    model_free(t2);
    model_free(d2);
}

/* Any byte of a state changed, any cut: refused, and never a crash. */
static void test_state_broken(void **state)
{
    struct err e = {0};
    struct way y = {.prompt = 3};
    struct model *t = load(target_path, be);
    struct session *s = start(&y, t, NULL);
    char path[128], broken[128];
    uint8_t *data;
    uint64_t n;
    (void)state;
    snprintf(path, sizeof path, "%s", scratch("good"));
    snprintf(broken, sizeof broken, "%s", scratch("broken"));
    must(session_prefill(s, prompt, 3, NULL, NULL, &e), &e);
    save(s, path);
    session_free(s);
    FILE *f = fopen(path, "rb");
    must(io_read_all(fileno(f), path, 1 << 20, &data, &n, &e), &e);
    fclose(f);
    for (uint64_t i = 0; i < 2 * n; i += 1 + n / 90) {
        struct state *st;
        struct state_info info;
        struct io_out o;
        uint64_t at = i % n;
        if (i < n) data[at] ^= 0x55;
        must(io_out_open(&o, broken, true, NULL, 0, &e) || io_out_write(&o, data, i < n ? n : at, &e) ||
                 io_out_commit(&o, &e),
             &e);
        if (i < n) data[at] ^= 0x55;
        int rc = state_open(&st, broken, &info, &e);
        if (rc == 0) {
            s = start(&y, t, NULL);
            rc = state_restore(st, s, &e);
            session_free(s);
            state_close(st);
        }
        assert_int_equal(rc, -1);
        assert_int_equal(e.code, ERR_FORMAT);
        e = (struct err){0};
    }
    mem_free(data);
    model_free(t);
}

/* ---- memory ---- */

static int load_and_run(struct err *e)
{
    struct model *t = NULL, *d = NULL;
    struct session *s = NULL;
    const struct session_options o = {.ctx = 50, .kv_type = KN_F16};
    const struct spec_options g = {.n = 9, .sampler = greedy};
    struct spec_stats st;
    int rc = -1;
    if (model_load(&t, target_path, be, NULL, NULL, NULL, e) ||
        model_load(&d, drafter_path, be, NULL, NULL, NULL, e))
        goto out;
    if (session_new(&s, t, d, &o, e) || session_prefill(s, prompt, 10, NULL, NULL, e)) goto out;
    rc = spec_generate(s, &g, &st, e);
out:
    session_free(s);
    model_free(d);
    model_free(t);
    return rc;
}

static void test_memory(void **state)
{
    (void)state;
    for (uint64_t n = 1;; n += n < 40 ? 1 : 7) {
        struct err e = {0};
        mem_fail_at(n);
        int rc = load_and_run(&e);
        mem_fail_at(0);
        if (rc == 0) {
            assert_true(n > 40);
            return;
        }
        if (e.code != ERR_IO || !strstr(e.msg, "out of memory"))
            fail_msg("allocation %d: (%d) %s", (int)n, e.code, e.msg);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lossless),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_stops),
        cmocka_unit_test(test_recorded),
        cmocka_unit_test(test_recorded_ends),
        cmocka_unit_test(test_recorded_stale),
        cmocka_unit_test(test_trace_rings),
        cmocka_unit_test(test_trace_backends),
        cmocka_unit_test(test_draft_window),
        cmocka_unit_test(test_draft_causal),
        cmocka_unit_test(test_trace_from_prefill),
        cmocka_unit_test(test_own_ends),
        cmocka_unit_test(test_sliding_target),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_nan_target),
        cmocka_unit_test(test_nan_drafter),
        cmocka_unit_test(test_desc_refuses),
        cmocka_unit_test(test_pair_refuses),
        cmocka_unit_test(test_session_refuses),
        cmocka_unit_test(test_forms_refused),
        cmocka_unit_test(test_state_refuses),
        cmocka_unit_test(test_state_broken),
        cmocka_unit_test(test_memory),
    };
    struct err e = {0};
    scratch_begin();
    snprintf(target_path, sizeof target_path, "%s", scratch("target.gguf"));
    snprintf(drafter_path, sizeof drafter_path, "%s", scratch("drafter.gguf"));
    if (tiny_write(target_path, &(struct tiny){.seed = 1}, &e) ||
        tiny_write(drafter_path, &(struct tiny){.seed = 2, .drafter = true}, &e)) {
        fprintf(stderr, "%s\n", e.msg);
        return 4;
    }
    make_prompt();
    be = open_backend("auto", 1);
    int rc = cmocka_run_group_tests_name("engine", tests, NULL, NULL);
    kn_backend_close(be);
    scratch_end();
    return rc;
}
