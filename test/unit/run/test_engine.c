/* test_engine.c - models, sessions and the speculative loop, on a tiny random pair: streams and logits.
 *
 * What is compared is bytes: the drafted stream with the target's own, recorded cycles with those launched
 * one by one. */
#include "../../../common/run/source.h"
#include "engine_fixture.h"

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
    /* The pair is random over 11 ids: some proposals must have been right, or
     * the loop was never exercised. */
    assert_true(accepted > cycles / 20 && accepted < 3 * cycles);
    model_free(d);
    model_free(t);
}

/* Keys and values of different types, layers that differ: drafted as undrafted, launched or recorded, and
 * resumed as never stopped. Each type shows: streams of other types differ somewhere. */
static void test_kv_types(void **state)
{
    static const struct kn_kv_types types[][TINY_LAYERS + TINY_DRAFT_LAYERS] = {
        {{KN_F32, KN_BF16}, {KN_F32, KN_BF16}, {KN_F32, KN_BF16}, {KN_F32, KN_BF16}, {KN_F32, KN_BF16}},
        {{KN_F16, KN_F32}, {KN_BF16, KN_F16}, {KN_F32, KN_F32}, {KN_BF16, KN_BF16}, {KN_F16, KN_BF16}},
        {{KN_BF16, KN_F16}, {KN_F16, KN_F16}, {KN_F16, KN_BF16}, {KN_F32, KN_F16}, {KN_F16, KN_F32}},
    };
    static struct run plain, r;
    struct model *t = load(target_path, be), *d = load(drafter_path, be);
    (void)state;
    for (size_t k = 0; k < sizeof types / sizeof types[0]; k++) {
        struct way y = {.prompt = 300,
                        .chunk = 64,
                        .types = types[k],
                        .sampler = sampled,
                        .target_model = t,
                        .drafter_model = d};
        run(&y, &plain);
        y.drafter = true;
        run(&y, &r);
        same_ids(&plain, &r);
        run_recorded(&y, &r);
        same_ids(&plain, &r);
        y.state = true;
        run(&y, &r);
        same_ids(&plain, &r);
        y.width = 3;
        run(&y, &r);
        same_ids(&plain, &r);
    }
    model_free(d);
    model_free(t);
}

/* The bytes of the caches, counted by hand, and a state of them. */
static void test_kv_bytes(void **state)
{
    static const struct kn_kv_types types[] = {
        {KN_F32, KN_BF16}, {KN_F16, KN_F16}, {KN_BF16, KN_F32}, {KN_F16, KN_F32}, {KN_F32, KN_F32}};
    struct model *t = load(target_path, be), *d = load(drafter_path, be);
    struct err e = {0};
    struct state *st;
    struct state_info info;
    const struct way y = {.prompt = 30, .chunk = 16, .types = types, .drafter = true};
    const size_t row = 2 * 16, draft_row = 2 * 48;
    struct session *s = start(&y, t, d);
    (void)state;
    assert_int_equal(kn_kv_row_bytes(&s->kv[0], s->kv[0].type.k), 4 * row);
    assert_int_equal(kn_kv_row_bytes(&s->kv[0], s->kv[0].type.v), 2 * row);
    assert_int_equal(kn_kv_row_bytes(&s->kv[2], s->kv[2].type.v), 4 * row);
    int32_t n_draft;
    const struct kn_kv *draft_kv = s->source->op->caches(s, &s->by[0], &n_draft);
    assert_int_equal(kn_kv_row_bytes(&draft_kv[0], draft_kv[0].type.k), 2 * draft_row);
    assert_int_equal(kn_kv_bytes(&s->kv[1], KN_F16), (size_t)kn_kv_positions(&s->kv[1]) * 2 * row);
    must(session_prefill(s, prompt, y.prompt, NULL, NULL, &e), &e);
    save(s, scratch("mixed"));
    session_free(s);
    must(state_open(&st, scratch("mixed"), &info, &e), &e);
    assert_int_equal(info.n_layer, TINY_LAYERS);
    assert_memory_equal(info.kv, types, TINY_LAYERS * sizeof *types);
    assert_memory_equal(info.by[0].kv, types + TINY_LAYERS, TINY_DRAFT_LAYERS * sizeof *types);
    /* Without its drafter; with one layer's values of another type; all of one type. */
    struct kn_kv_types other[TINY_LAYERS + TINY_DRAFT_LAYERS];
    memcpy(other, types, sizeof types);
    struct session_options o = {.ctx = 60, .chunk = 16, .kv = {KN_F16, KN_F16}, .kv_layers = other};
    must(state_check(st, t->d, NULL, 0, &o, &e), &e);
    other[2].v = KN_F16;
    e = (struct err){0};
    expect_error(state_check(st, t->d, NULL, 0, &o, &e), &e, ERR_FORMAT,
                 "another cache type (target layer 2: expected BF16,F16, got BF16,F32)");
    o.kv_layers = NULL;
    e = (struct err){0};
    expect_error(state_check(st, t->d, NULL, 0, &o, &e), &e, ERR_FORMAT,
                 "another cache type (target layer 0: expected F16, got F32,BF16)");
    o.kv_layers = types;
    e = (struct err){0};
    expect_error(state_check(st, t->d, (const struct desc *[]){d->d}, 1, &o, &e), &e, ERR_FORMAT,
                 "another cache type (drafter layer 0: expected");
    state_close(st);
    other[1].k = KN_Q4_1;
    o.kv_layers = other;
    e = (struct err){0};
    expect_error(session_new(&s, t, NULL, &o, &e), &e, ERR_USAGE,
                 "cache of layer 1: KV types Q4_1 and F16 (expected each to be " KN_KV_TYPES ")");
    other[1].k = KN_Q8_0;
    e = (struct err){0};
    expect_error(session_new(&s, t, NULL, &o, &e), &e, ERR_USAGE,
                 "cache of layer 1: 2 KV heads of 16 as Q8_0 (expected a head size that 32 divides)");
    model_free(d);
    model_free(t);
}

/* Where positions lie: slots, runs and what is still there, around the ring's end. */
static void test_kv_ring(void **state)
{
    const struct kn_kv kv = {.type = {KN_F16, KN_F32}, .cap = 512, .n_head_kv = 2, .head_dim = 16};
    char why[160];
    (void)state;
    assert_int_equal(kn_kv_room(1), 256);
    assert_int_equal(kn_kv_room(256), 256);
    assert_int_equal(kn_kv_room(257), 512);
    assert_int_equal(kn_kv_slot(&kv, 511), 511);
    assert_int_equal(kn_kv_slot(&kv, 512), 0);
    assert_int_equal(kn_kv_slot(&kv, 1234567), 1234567 % 512);
    assert_int_equal(kn_kv_run(&kv, 510, 9), 2);
    assert_int_equal(kn_kv_run(&kv, 512, 9), 9);
    assert_int_equal(kn_kv_run(&kv, 1023, 1), 1);
    for (int split = 0; split < 9; split++) /* what every walk along positions relies on */
        assert_true(kn_kv_run(&kv, split * KN_KV_SPLIT, KN_KV_SPLIT) == KN_KV_SPLIT);
    assert_true(kn_kv_holds(&kv, 0, 511));
    assert_false(kn_kv_holds(&kv, 0, 512));
    assert_true(kn_kv_holds(&kv, 1, 512));
    assert_int_equal(kn_kv_check(&kv, why, sizeof why), 0);
    struct kn_kv bad = kv;
    bad.cap = 300;
    assert_int_equal(kn_kv_check(&bad, why, sizeof why), KN_EINVAL);
    bad = kv;
    bad.type.v = 12345;
    assert_int_equal(kn_kv_check(&bad, why, sizeof why), KN_ETYPE);
    assert_string_equal(why, "KV types F16 and an unknown number (expected each to be " KN_KV_TYPES ")");
    assert_false(kn_kv_known(KN_Q4_1));
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
    assert_int_equal(recorder.recorded, 3); /* of draft and verify, and the stale one */
    same_ids(&plain, &r);
    same_trace(&plain, &r);
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
        const struct session_options o = {.ctx = 50, .kv = {KN_F16, KN_F16}, .check_layers = check};
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

/* ---- memory ---- */

static int load_and_run(struct err *e)
{
    struct model *t = NULL, *d = NULL;
    struct session *s = NULL;
    const struct session_options o = {.ctx = 50, .kv = {KN_F16, KN_F16}};
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
        cmocka_unit_test(test_lossless),       cmocka_unit_test(test_kv_types),
        cmocka_unit_test(test_kv_bytes),       cmocka_unit_test(test_kv_ring),
        cmocka_unit_test(test_lengths),        cmocka_unit_test(test_stops),
        cmocka_unit_test(test_recorded),       cmocka_unit_test(test_recorded_ends),
        cmocka_unit_test(test_recorded_stale), cmocka_unit_test(test_sliding_target),
        cmocka_unit_test(test_rows),           cmocka_unit_test(test_nan_target),
        cmocka_unit_test(test_nan_drafter),    cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests_name("engine", tests, engine_begin, engine_end);
}
