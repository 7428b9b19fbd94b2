/* test_compress.c - prompts of which tokens were left out: the choice, scores, and streams behind gaps. */
#include "engine_fixture.h"

#include "../../../common/run/compress.h"
#include "../../../common/run/engine.h"

/* ---- the choice ---- */

enum { N_TEXT = 1000 };

static void test_budget(void **state)
{
    (void)state;
    assert_int_equal(compress_budget(1, 77), 77);
    assert_int_equal(compress_budget(0.5f, 77), 39);
    assert_int_equal(compress_budget(0.5f, 78), 39);
    for (int32_t n = 10; n <= 1 << 20; n *= 2) { /* numbers whose floats are larger, and smaller */
        assert_int_equal(compress_budget(0.3f, n * 10), n * 3);
        assert_int_equal(compress_budget(0.7f, n * 10), n * 7);
        assert_int_equal(compress_budget(0.1f, n * 10), n);
    }
    assert_int_equal(compress_budget(1, 1 << 24), 1 << 24);
    assert_int_equal(compress_budget(1e-9f, 77), 1);
}

static void test_choose(void **state)
{
    float score[N_TEXT] = {0};
    bool stays[N_TEXT] = {0};
    int32_t at[N_TEXT], n, k = 0;
    struct err e = {0};
    (void)state;
    stays[500] = true;                                            /* one of block 15 */
    for (int i = 320; i < 352; i++) score[i] = 2;                 /* block 10 */
    for (int i = 640; i < 672; i++) score[i] = 3;                 /* block 20 */
    for (int i = 480; i < 512; i++) score[i] = i == 500 ? 90 : 1; /* what stays anyway does not count */
    must(compress_protect(stays, N_TEXT, 250, &e), &e);
    /* 32 + 128 + 1 stay, 89 are left: block 20, block 10, the 8 of block 27 that may go; no other fits 17. */
    n = compress_choose(score, stays, N_TEXT, 250, at, &e);
    assert_int_equal(n, 32 + 1 + 128 + 64 + 8);
    for (int i = 0; i < N_TEXT; i++)
        if (i < 32 || i >= 864 || i == 500 || i / 32 == 10 || i / 32 == 20) assert_int_equal(at[k++], i);
    assert_int_equal(k, n);
    /* With 31 more block 15 stands before its equals; with all there is, all. */
    assert_int_equal(compress_choose(score, stays, N_TEXT, 161 + 64 + 31, at, &e), 161 + 64 + 31);
    assert_int_equal(at[32 + 32], 480);
    n = compress_choose(score, stays, N_TEXT, N_TEXT, at, &e);
    assert_int_equal(n, N_TEXT);
    for (int i = 0; i < n; i++) assert_int_equal(at[i], i);
    /* Of equals the later ones. */
    memset(score, 0, sizeof score);
    n = compress_choose(score, stays, N_TEXT, 161 + 39, at, &e);
    assert_int_equal(n,
                     161 + 8 + 31); /* block 27's 8, then 31 are left: block 15's, before which none fits */
    assert_int_equal(at[32], 480);
}

static void test_protect(void **state)
{
    bool stays[N_TEXT] = {0};
    struct err e = {0};
    (void)state;
    for (int i = 100; i < 110; i++) stays[i] = true;
    expect_error(
        compress_protect(stays, N_TEXT, 201, &e), &e, ERR_USAGE,
        "the budget of 201 of 1000 tokens is too small for what must stay (expected at least 202: 10 of "
        "chat frames and tools, the first 32, the last 128, and a block of 32)");
    assert_non_null(strstr(e.hint, "--compress 0.202 would do"));
    e = (struct err){0};
    memset(stays, 0, sizeof stays);
    must(compress_protect(stays, 20, 20, &e), &e); /* a short prompt stays whole */
    expect_error(compress_protect(stays, 20, 19, &e), &e, ERR_USAGE, "expected at least 20");
}

/* ---- scores ---- */

static void test_scores(void **state)
{
    enum { N = 333 };
    static const int32_t chunks[] = {512, 7, 64, 100};
    static const struct {
        const char *isa;
        int threads;
    } on[] = {{"scalar", 1}, {"auto", 3}, {"auto", 1}};
    float want[N], got[N];
    double sum = 0;
    (void)state;
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++)
        for (size_t k = 0; k < sizeof on / sizeof *on; k++) {
            struct kn_backend *b = open_backend(on[k].isa, on[k].threads);
            struct model *t = load(target_path, b);
            struct err e = {0};
            must(compress_score(t, prompt, N, &(struct session_options){.chunk = chunks[i]}, got, &e), &e);
            if (i || k) assert_memory_equal(got, want, sizeof want);
            memcpy(want, got, sizeof want);
            model_free(t);
            kn_backend_close(b);
        }
    for (int i = 0; i < N; i++) {
        assert_true(want[i] >= 0 && want[i] <= 1);
        sum += (double)want[i];
    }
    assert_true(sum > 0.5); /* some head gives all of its weight to the prompt */
}

/* ---- streams behind gaps ---- */

/* Of a prompt's 300 tokens: runs of 1 to 40 stay, and as many go. */
enum { TEXT = 300 };
static int32_t places[TEXT], kept_ids[TEXT], n_places;

static void draw_places(void)
{
    uint32_t x = 5;
    n_places = 0;
    for (int32_t i = 0; i < TEXT;) {
        x = x * 1664525u + 1013904223u;
        const int32_t run = 1 + (int32_t)(x >> 16) % 40;
        for (int32_t k = i; k < i + run && k < TEXT; k++) places[n_places++] = k;
        i += run + 1 + (int32_t)(x >> 24) % 40;
    }
    if (places[n_places - 1] != TEXT - 1) places[n_places++] = TEXT - 1;
    for (int32_t i = 0; i < n_places; i++) kept_ids[i] = prompt[places[i]];
}

static struct session_gaps gaps_of(int32_t n_text, int32_t n_kept)
{
    struct session_gaps g = {.n_text = n_text, .n_kept = n_kept, .keep = 0.5f, .scorer = "a scorer"};
    memset(g.scorer_id, 7, sizeof g.scorer_id);
    return g;
}

struct gapped {
    const struct way *way;
    const int32_t *ids, *at;
    int32_t n, n_text; /* n_text 0: no gaps */
    bool state, pieces, recorded;
};

static struct session *start_gapped(const struct gapped *x, struct model *t, struct model *d)
{
    struct err e = {0};
    struct way y = *x->way;
    y.prompt = x->n;
    struct session *s = start(&y, t, d);
    if (x->n_text) {
        const struct session_gaps g = gaps_of(x->n_text, x->n);
        must(session_set_gaps(s, &g, x->at, &e), &e);
    }
    return s;
}

/* Tokens and proposals behind the prompt; and the state behind its first part, if asked for. */
static void run_gapped(const struct gapped *x, struct run *r)
{
    struct err e = {0};
    struct model *t = load(target_path, be), *d = x->way->drafter ? load(drafter_path, be) : NULL;
    const struct spec_options o = {.n = N_NEW,
                                   .sampler = x->way->sampler.top_p > 0 ? x->way->sampler : greedy,
                                   .width = x->way->width,
                                   .tokens = take_tokens,
                                   .proposals = take_proposals,
                                   .ctx = r};
    if (x->recorded) recorder_on(be);
    struct session *s = start_gapped(x, t, d);
    const int32_t some = x->pieces ? x->n / 3 : x->n;
    memset(r, 0, sizeof *r);
    must(session_prefill(s, x->ids, some, NULL, NULL, &e), &e);
    if (some < x->n) must(session_prefill(s, x->ids + some, x->n - some, NULL, NULL, &e), &e);
    if (x->state) {
        struct state *st;
        struct state_info info;
        struct way y = *x->way;
        y.prompt = x->n;
        save(s, scratch("state"));
        session_free(s);
        s = start(&y, t, d);
        must(state_open(&st, scratch("state"), &info, &e) || state_restore(st, s, &e), &e);
        assert_int_equal(info.gaps.n_text, x->n_text);
        assert_int_equal(info.gaps.n_kept, x->n_text ? x->n : 0);
        assert_string_equal(info.gaps.scorer, x->n_text ? "a scorer" : "");
        assert_int_equal(session_text(s), x->n_text ? x->n_text : x->n);
        state_close(st);
    }
    must(spec_generate(s, &o, &r->st, &e), &e);
    session_free(s);
    if (x->recorded) {
        recorder_off(be);
        assert_true(recorder.replayed > 3);
    }
    model_free(d);
    model_free(t);
}

/* Drafted is undrafted, and a stream that went through a state, or whose prompt came in pieces, is the same;
 * none of them is the stream whose rows turn by their own positions. */
static void test_lossless(void **state)
{
    static const struct way ways[] = {{.drafter = true, .block = 5},
                                      {.drafter = true, .block = 3, .width = 2, .chunk = 64},
                                      {.drafter = true, .block = 4, .draft_window = 20, .kv = KN_BF16}};
    (void)state;
    draw_places();
    for (size_t i = 0; i < 2 * sizeof ways / sizeof *ways; i++) {
        struct way with = ways[i / 2], without;
        struct run plain, packed, drafted, again;
        with.sampler = i % 2 ? sampled : greedy;
        without = with;
        without.drafter = false, without.block = 0, without.width = 0, without.draft_window = 0;
        run_gapped(&(struct gapped){&without, kept_ids, places, n_places, TEXT, false, false, false}, &plain);
        run_gapped(&(struct gapped){&without, kept_ids, places, n_places, 0, false, false, false}, &packed);
        assert_true(memcmp(plain.id, packed.id, sizeof plain.id) != 0);
        for (int k = 0; k < 8; k++) {
            run_gapped(&(struct gapped){&with, kept_ids, places, n_places, TEXT, k & 1, k & 2, k & 4},
                       k ? &again : &drafted);
            same_ids(k ? &again : &drafted, &plain);
            if (k) same_trace(&again, &drafted);
        }
    }
}

/* A prompt that lost its beginning: all distances are as they were, so the text is (rounding apart), and so
 * is what the drafter proposes. Context, block and target turn by the same places. */
static void test_shift(void **state)
{
    enum { N = 120, BY = 4711 };
    const struct way y = {.drafter = true, .block = 5};
    int32_t at[N];
    struct run want, got;
    (void)state;
    for (int i = 0; i < N; i++) at[i] = BY + i;
    run_gapped(&(struct gapped){&y, prompt, at, N, 0, false, false, false}, &want);
    run_gapped(&(struct gapped){&y, prompt, at, N, BY + N, false, false, false}, &got);
    same_ids(&got, &want);
    same_trace(&got, &want);
}

/* With nothing left out the bits are those of a prompt that was not compressed. */
static void test_whole(void **state)
{
    const struct way y = {.drafter = true, .block = 5};
    int32_t at[TEXT];
    struct run want, got;
    (void)state;
    for (int i = 0; i < TEXT; i++) at[i] = i;
    run_gapped(&(struct gapped){&y, prompt, at, TEXT, 0, false, false, false}, &want);
    run_gapped(&(struct gapped){&y, prompt, at, TEXT, TEXT, true, false, false}, &got);
    same_ids(&got, &want);
    same_trace(&got, &want);
}

/* Keys of the first layer are a token's and its place's alone: those of every row, behind the prompt too, are
 * those of the whole text there. */
static void test_places(void **state)
{
    struct err e = {0};
    const struct way y = {.prompt = TEXT + 30};
    struct model *t = load(target_path, be);
    struct session *whole = start(&y, t, NULL), *s = start(&y, t, NULL);
    (void)state;
    draw_places();
    const struct session_gaps g = gaps_of(TEXT, n_places);
    must(session_prefill(whole, prompt, TEXT + 20, NULL, NULL, &e), &e);
    must(session_set_gaps(s, &g, places, &e) || session_prefill(s, kept_ids, n_places, NULL, NULL, &e) ||
             session_prefill(s, prompt + TEXT, 20, NULL, NULL, &e),
         &e);
    const struct kn_kv *a = &whole->kv[0], *b = &s->kv[0];
    const size_t row = kn_kv_row_bytes(a, a->type.k);
    for (int32_t i = 0; i < n_places + 20; i++) {
        const int32_t at = i < n_places ? places[i] : TEXT + i - n_places;
        assert_memory_equal((char *)b->k + (size_t)kn_kv_slot(b, i) * row,
                            (char *)a->k + (size_t)kn_kv_slot(a, at) * row, row);
    }
    session_free(whole);
    session_free(s);
    model_free(t);
}

/* The next stream of a slot knows of gaps what it was told itself, and so do its recordings. */
static void test_slot(void **state)
{
    struct err e = {0};
    const struct session_options o = {.ctx = TEXT + N_NEW + MAX_BLOCK};
    struct run r[3];
    (void)state;
    draw_places();
    struct model *t = load(target_path, be);
    recorder_on(be);
    struct engine *g;
    must(engine_open(&g, t, NULL, &o, &e), &e);
    for (int i = 0; i < 3; i++) { /* plain, with gaps, plain */
        struct session *s;
        struct spec_options p = {.n = N_NEW, .sampler = greedy, .tokens = take_tokens, .ctx = &r[i]};
        const struct session_gaps gaps = gaps_of(TEXT, n_places);
        memset(&r[i], 0, sizeof r[i]);
        must(session_open(&s, g, &e), &e);
        if (i == 1) must(session_set_gaps(s, &gaps, places, &e), &e);
        must(session_prefill(s, kept_ids, n_places, NULL, NULL, &e) || spec_generate(s, &p, &r[i].st, &e),
             &e);
        session_free(s);
    }
    same_ids(&r[2], &r[0]);
    engine_close(g);
    recorder_off(be);
    model_free(t);
    struct run alone;
    const struct way y = {.block = 0};
    run_gapped(&(struct gapped){&y, kept_ids, places, n_places, TEXT, false, false, false}, &alone);
    same_ids(&r[1], &alone);
    assert_true(memcmp(r[0].id, r[1].id, sizeof r[0].id) != 0);
}

static void refused(struct session *s, const struct session_gaps *g, const int32_t *at, enum err_class code,
                    const char *what)
{
    struct err e = {0};
    const int rc = session_set_gaps(s, g, at, &e);
    expect_error(rc, &e, code, what);
}

static void test_refused(void **state)
{
    struct err e = {0};
    const struct way y = {.prompt = 50};
    struct model *t = load(target_path, be);
    struct session *s = start(&y, t, NULL);
    int32_t at[4] = {0, 3, 3, 9};
    struct session_gaps g = gaps_of(10, 4);
    (void)state;
    refused(s, &g, at, ERR_FORMAT, "place 2 of 4 (expected ascending ones below 10, got 3)");
    at[2] = 8, at[3] = 10;
    refused(s, &g, at, ERR_FORMAT, "place 3 of 4");
    g.n_kept = 11;
    refused(s, &g, at, ERR_USAGE, "does not fit");
    must(session_prefill(s, prompt, 3, NULL, NULL, &e), &e);
    g.n_kept = 3;
    refused(s, &g, at, ERR_USAGE, "does not fit");
    t->d->layer[1].window = 9;
    refused(s, &g, at, ERR_USAGE, "expected none, got layer 1 with a window of 9");
    for (int i = 0; i < t->d->n_layer; i++) t->d->layer[i].window = 9;
    e = (struct err){0};
    expect_error(compress_check(t, &e), &e, ERR_USAGE, "no layer of the scorer sees every position");
    for (int i = 0; i < t->d->n_layer; i++) t->d->layer[i].window = 0;
    session_free(s);
    model_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_budget),  cmocka_unit_test(test_choose),   cmocka_unit_test(test_protect),
        cmocka_unit_test(test_scores),  cmocka_unit_test(test_lossless), cmocka_unit_test(test_shift),
        cmocka_unit_test(test_whole),   cmocka_unit_test(test_places),   cmocka_unit_test(test_slot),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, engine_begin, engine_end);
}
