/* test_recurrent.c - sessions over models with gated delta nets: their state must stand where the stream
 * stands, whatever was tried and rejected on the way.
 *
 * What is compared is bytes: logits of rows at once with those of rows one by one, drafted with undrafted
 * streams, resumed with uninterrupted ones, and state files with each other. */
#include "hybrid_fixture.h"

static struct session *start(struct model *t, struct model *d, int32_t chunk, uint32_t kv)
{
    struct err e = {0};
    struct session *s;
    const struct session_options o = {.ctx = 400, .chunk = chunk, .kv = {kv, kv}};
    must(session_new(&s, t, d, &o, &e), &e);
    return s;
}

/* ---- memory ---- */

static int much(struct kn_backend *b, size_t *free_bytes, size_t *total)
{
    (void)b;
    *free_bytes = *total = (size_t)1 << 40;
    return 0;
}
static size_t as_it_is(size_t bytes)
{
    return bytes;
}
static size_t no_weight(uint32_t type, int64_t n_in, int64_t n_out, int32_t n_mat, unsigned use)
{
    (void)type, (void)n_in, (void)n_out, (void)n_mat, (void)use;
    return 0;
}
static size_t no_scratch(int32_t n, int64_t width)
{
    (void)n, (void)width;
    return 0;
}
static size_t no_scratch_kv(int32_t n, int32_t n_head, const struct kn_kv *kv, int32_t window)
{
    (void)n, (void)n_head, (void)kv, (void)window;
    return 0;
}
static size_t no_scratch_delta(const struct kn_delta *d)
{
    (void)d;
    return 0;
}

static size_t largest;
static void *(*alloc_inner)(struct kn_backend *, size_t);
static void *alloc_watched(struct kn_backend *b, size_t bytes)
{
    if (bytes > largest) largest = bytes;
    return alloc_inner(b, bytes);
}

/* A plan has room for the copy that times are measured with, where cycles are planned. */
static void test_planned_memory(void **state)
{
    (void)state;
    static const struct kn_memory memory = {.query = much,
                                            .alloc = as_it_is,
                                            .weight = no_weight,
                                            .scratch = no_scratch,
                                            .scratch_kv = no_scratch_kv,
                                            .scratch_delta = no_scratch_delta,
                                            .products = no_scratch};
    struct kn_backend_head *head = (struct kn_backend_head *)(void *)be;
    const struct kn_ops *inner = head->op;
    const struct session_options o = {.ctx = 400, .kv = {KN_F32, KN_F32}};
    const struct session_timing timing = {
        .sampler = {.top_p = 1, .repeat_penalty = 1}, .rows = (const int32_t[]){2}, .n = 1, .budget_s = 1};
    struct model *t = target(0), *d = drafter(state);
    struct session *s = start(t, d, 64, KN_F32);
    struct kn_ops op = *inner;
    struct err e = {0};
    struct session_times times;
    must(session_prefill(s, (const int32_t[]){1, 2, 3}, 3, NULL, NULL, &e), &e);
    const size_t bytes = session_time_bytes(s);
    assert_true(bytes > 0);
    largest = 0, alloc_inner = inner->alloc, op.alloc = alloc_watched;
    s->op = &op;
    must(session_time(s, &timing, &times, &e), &e);
    s->op = inner;
    assert_int_equal(largest, bytes);
    session_free(s);
    op = *inner, op.memory = &memory;
    head->op = &op;
    for (int drafted = 0; drafted < 2; drafted++) {
        struct memory_planner *p;
        struct memory_plan plan;
        const struct desc_override over = {.draft_causal = -1};
        must(memory_plan_open(&p, be,
                              &(struct memory_plan_of){.target = "target.gguf",
                                                       .drafter = drafted ? "drafter.gguf" : NULL,
                                                       .drafter_override = &over},
                              &e),
             &e);
        must(memory_plan_session(p, &o, true, &plan, &e), &e);
        assert_int_equal(plan.scratch, drafted ? bytes : 0);
        memory_plan_close(p);
    }
    head->op = inner;
    model_free(d);
    model_free(t);
}

/* ---- rows ---- */

static int take_rows(void *ctx, const float *rows, int32_t n, int32_t first_pos, struct err *e)
{
    (void)e;
    memcpy((float *)ctx + first_pos * IDS, rows, (size_t)n * IDS * sizeof *rows);
    return 0;
}

static void prefill_rows(struct model *t, int32_t chunk, uint32_t kv, float *out)
{
    struct err e = {0};
    struct session *s = start(t, NULL, chunk, kv);
    must(session_prefill(s, prompt, N_ROWS, take_rows, out, &e), &e);
    session_free(s);
}

/* n rows at n_past, each with the logits that it has in all. */
static void forward_rows(struct session *s, int32_t n, const float *all)
{
    struct err e = {0};
    float row[IDS];
    int32_t at = s->n_past;
    must(session_forward(s, prompt + at, n, &e), &e);
    for (int32_t i = 0; i < n; i++) {
        must(session_logits(s, i, row, &e), &e);
        if (memcmp(row, all + (at + i) * IDS, sizeof row))
            fail_msg("position %d, row %d of %d", at + i, i, n);
    }
}

/* Rows forward, of which some are kept, none, or all; then a prefill that begins with rows to be replayed. */
static void check_steps(struct model *t, uint32_t kv, const float *all)
{
    static const int32_t rows[] = {1, 64, 5, 16, 2, 64, 3, 1}, kept[] = {1, 3, 5, 0, 1, 0, 2, 1};
    static float some[N_ROWS * IDS];
    struct err e = {0};
    for (int32_t first = 1; first < 20; first += 17) {
        struct session *s = start(t, NULL, 16, kv);
        must(session_prefill(s, prompt, first, NULL, NULL, &e), &e);
        for (int i = 0; i < 20 && s->n_past + 64 < N_ROWS; i++) {
            forward_rows(s, rows[i % 8], all);
            if (kept[i % 8]) must(session_commit(s, kept[i % 8], &e), &e);
        }
        forward_rows(s, 6, all);
        must(session_commit(s, 4, &e), &e);
        int32_t at = s->n_past;
        assert_int_equal(s->pending, 4);
        must(session_prefill(s, prompt + at, N_ROWS - at, take_rows, some, &e), &e);
        assert_memory_equal(some + at * IDS, all + at * IDS, (size_t)(N_ROWS - at) * IDS * sizeof *all);
        session_free(s);
    }
}

static void test_rows(void **state)
{
    static float all[N_ROWS * IDS], some[N_ROWS * IDS];
    static const int32_t chunk[] = {1, 7, 64, 65};
    static const uint32_t kv[] = {KN_F16, KN_BF16, KN_F32};
    (void)state;
    for (int kind = 0; kind < KINDS; kind++) {
        struct model *t = target(kind);
        for (int k = 0; k < 3; k++) {
            prefill_rows(t, 512, kv[k], all);
            for (int i = 0; i < 4; i++) {
                prefill_rows(t, chunk[i], kv[k], some);
                assert_memory_equal(all, some, sizeof all);
            }
            check_steps(t, kv[k], all);
        }
        model_free(t);
    }
}

/* The same keys and values with another state give other logits; else the other tests would see nothing. */
static void test_state_matters(void **state)
{
    static float a[N_ROWS * IDS], b[N_ROWS * IDS];
    struct err e = {0};
    struct session *s;
    (void)state;
    struct model *t = target(0);
    prefill_rows(t, 512, KN_F32, a);
    s = start(t, NULL, 512, KN_F32);
    must(session_prefill(s, prompt, N_ROWS - 1, NULL, NULL, &e), &e);
    float *z = mem_calloc(1, (size_t)(6 * 20 * 24) * sizeof *z);
    assert_non_null(z);
    must(s->op->upload(be, s->delta[1].s, z, (size_t)(6 * 20 * 24) * sizeof *z), &e);
    mem_free(z);
    must(session_forward(s, prompt + N_ROWS - 1, 1, &e), &e);
    must(session_logits(s, 0, b, &e), &e);
    assert_memory_not_equal(a + (N_ROWS - 1) * IDS, b, IDS * sizeof *b);
    session_free(s);
    model_free(t);
}

/* ---- streams ---- */

static void run(struct model *t, struct model *d, int32_t n_prompt, int sampler, int32_t width, struct run *r)
{
    struct err e = {0};
    struct session *s = start(t, d, 16, KN_F16);
    must(session_prefill(s, prompt, n_prompt, NULL, NULL, &e), &e);
    go_on(s, &samplers[sampler], N_NEW, width, r);
    assert_int_equal(r->n, N_NEW);
    session_free(s);
}

/* Drafted as undrafted, with the host between the parts of a cycle and with cycles recorded and started
 * early. */
static void test_lossless(void **state)
{
    static struct run plain, host, early;
    static const int32_t width[] = {0, 1, 2, 4};
    int64_t accepted = 0, cycles = 0;
    (void)state;
    for (int kind = 0; kind < KINDS; kind++) {
        struct model *t = target(kind), *d = drafter(state);
        for (int sampler = 0; sampler < 2; sampler++)
            for (int i = 0; i < 4; i++) {
                run(t, NULL, 33, sampler, 0, &plain);
                run(t, d, 33, sampler, width[i], &host);
                same(&plain, &host, false);
                recorder_on(be);
                run(t, NULL, 33, sampler, 0, &early);
                same(&plain, &early, false);
                run(t, d, 33, sampler, width[i], &early);
                recorder_off(be);
                assert_true(recorder.replayed > 3);
                same(&host, &early, true);
                for (int j = 0; j < BLOCK; j++) accepted += j * host.st.accepted[j];
                cycles += host.st.cycles;
            }
        model_free(d);
        model_free(t);
    }
    /* Random models over 9 ids: some proposals must have been right, and more than one in a row. */
    assert_true(accepted > cycles / 20 && accepted < 4 * cycles);
}

/* Plans that change from cycle to cycle: rows that may be rejected, rows that stay and wait in the log, and
 * those behind the other kind. */
static void test_plans(void **state)
{
    static struct run plain, ref, r;
    static const int32_t every[] = {0, 2, 3, 6};
    int64_t accepted = 0, cycles = 0, steps = 0;
    (void)state;
    for (int kind = 0; kind < KINDS; kind++) {
        struct model *t = target(kind), *d = drafter(state);
        struct source x = source_drafter(d);
        for (int sampler = 0; sampler < 2; sampler++) {
            run_planned(t, NULL, sampler, 0, NULL, 0, &plain);
            run_planned(t, &x, sampler, 0, NULL, 1, &ref);
            same(&plain, &ref, false);
            for (uint32_t i = 0; i < OFTEN(120); i++) {
                struct draw draw = {.x = i * 2654435761u + 7, .most = BLOCK};
                const struct planner p = draw_planner(&draw);
                struct script k = {.source = {.op = &script_ops, .rows = BLOCK},
                                   .will = plain.id,
                                   .n_will = N_NEW,
                                   .n_prompt = 33,
                                   .seed = i};
                const bool look = i % 3 == 2;
                if (i / 4 % 2) recorder_on(be);
                run_planned(t, look ? &k.source : &x, sampler, every[i % 4], &p, 0, &r);
                if (i / 4 % 2) recorder_off(be);
                same(&plain, &r, false);
                if (look) continue;
                same_proposals(&ref, &r, BLOCK);
                for (int j = 0; j < BLOCK; j++) accepted += j * r.st.accepted[j];
                cycles += r.st.cycles, steps += r.st.steps;
            }
        }
        model_free(d);
        model_free(t);
    }
    assert_true(cycles > steps / 4 && cycles < steps * 3 / 4);
    assert_true(accepted > cycles / 40 && accepted < 4 * cycles);
}

/* Proposals that are none: rows of NaN are verified, and must leave nothing in the state. */
static void test_no_proposals(void **state)
{
    static struct run plain, r;
    (void)state;
    for (int kind = 0; kind < KINDS; kind++) {
        struct model *t = target(kind), *d = drafter(state);
        struct err e = {0};
        float nan[EMBD];
        for (int i = 0; i < EMBD; i++) nan[i] = NAN;
        must(kn_op(be)->upload(be, d->output_norm, nan, sizeof nan), &e);
        run(t, NULL, 20, 1, 0, &plain);
        for (int recorded = 0; recorded < 2; recorded++) {
            if (recorded) recorder_on(be);
            run(t, d, 20, 1, 0, &r);
            if (recorded) recorder_off(be);
            same(&plain, &r, false);
            assert_int_equal(r.st.nan_cycles, N_NEW - 1);
        }
        model_free(d);
        model_free(t);
    }
}

/* ---- states ---- */

static struct session *restore(const char *path, struct model *t, struct model *d)
{
    struct err e = {0};
    struct state *st;
    struct state_info info;
    struct session *s = start(t, d, 16, KN_F16);
    must(state_open(&st, path, &info, &e) || state_restore(st, s, &e), &e);
    state_close(st);
    return s;
}

static void same_files(const char *a, const char *b)
{
    struct err e = {0};
    struct io_map x, y;
    must(io_map_open(&x, a, &e) || io_map_open(&y, b, &e), &e);
    assert_int_equal(x.size, y.size);
    assert_memory_equal(x.data, y.data, x.size);
    io_map_close(&x);
    io_map_close(&y);
}

/* Its sections in their order; of an MTP block the hidden state is one of them. */
static void check_state(const char *path, bool hidden)
{
    struct err e = {0};
    struct state *st;
    struct state_info info;
    uint64_t n;
    must(state_open(&st, path, &info, &e) || state_verify(st, &n, &e), &e);
    assert_true(info.n_drafters == 1 && info.by[0].hidden == hidden);
    assert_int_equal(n, 3 + info.n_layer + info.by[0].n_layer + hidden);
    state_close(st);
}

/* Around the borders of chunks: resumed, and resumed with more of the prompt after it. */
static void test_resume(void **state)
{
    static struct run whole, r;
    static const int32_t length[] = {1, 2, 3, 15, 16, 17, 47, 48, 49};
    struct err e = {0};
    (void)state;
    for (int kind = 0; kind < KINDS; kind++) {
        struct model *t = target(kind), *d = drafter(state);
        for (size_t i = 0; i < sizeof length / sizeof length[0]; i++) {
            struct session *s = start(t, d, 16, KN_F16);
            run(t, d, length[i], 0, 0, &whole);
            must(session_prefill(s, prompt, length[i], NULL, NULL, &e), &e);
            save(s, "state");
            session_free(s);
            s = restore("state", t, d);
            save(s, "again");
            same_files("state", "again");
            go_on(s, &samplers[0], N_NEW, 0, &r);
            same(&whole, &r, true);
            session_free(s);
            check_state("state", *state != NULL);
            s = restore("state", t, NULL);
            go_on(s, &samplers[0], N_NEW, 0, &r);
            same(&whole, &r, false);
            session_free(s);
            s = restore("state", t, d);
            run(t, d, length[i] + 20, 0, 0, &whole);
            must(session_prefill(s, prompt + length[i], 20, NULL, NULL, &e), &e);
            go_on(s, &samplers[0], N_NEW, 0, &r);
            same(&whole, &r, true);
            session_free(s);
        }
        model_free(d);
        model_free(t);
    }
}

/* Rows that were committed but not yet replayed are in the file, which is that of a prefill to the byte. */
static void test_settled(void **state)
{
    struct err e = {0};
    (void)state;
    for (int kind = 0; kind < KINDS; kind++) {
        struct model *t = target(kind);
        struct session *s = start(t, NULL, 16, KN_F16);
        must(session_prefill(s, prompt, 21, NULL, NULL, &e), &e);
        save(s, "state");
        session_free(s);
        s = start(t, NULL, 16, KN_F16);
        must(session_prefill(s, prompt, 12, NULL, NULL, &e), &e);
        must(session_forward(s, prompt + 12, 40, &e) || session_commit(s, 8, &e), &e);
        assert_int_equal(s->pending, 8);
        struct io_out o;
        must(io_out_open(&o, "not", true, NULL, 0, &e), &e);
        assert_int_equal(state_save(s, &o, &e), -1); /* the logits are not of the last token */
        assert_int_equal(e.code, ERR_USAGE);
        io_out_abort(&o);
        e = (struct err){0};
        must(session_forward(s, prompt + 20, 1, &e) || session_commit(s, 1, &e), &e);
        assert_int_equal(s->pending, 1);
        save(s, "other");
        assert_int_equal(s->pending, 0);
        same_files("state", "other");
        save(s, "other");
        same_files("state", "other");
        session_free(s);
        model_free(t);
    }
}

/* What was generated may be followed by more, as if it had been the prompt, also where the last cycle kept
 * more than was wanted. */
static void test_after(void **state)
{
    static struct run r, next, whole;
    struct err e = {0};
    int cut = 0;
    (void)state;
    for (int kind = 0; kind < KINDS; kind++) {
        struct model *t = target(kind), *d = drafter(state);
        run(t, NULL, 20, 1, 0, &whole);
        for (int i = 0; i < 22; i++) {
            const int n = 1 + i / 2;
            if (i % 2) recorder_on(be);
            struct session *s = start(t, d, 16, KN_F16);
            must(session_prefill(s, prompt, 20, NULL, NULL, &e), &e);
            go_on(s, &samplers[1], n, 0, &r);
            assert_int_equal(s->n_past, 20 + n - 1);
            assert_memory_equal(r.id, whole.id, (size_t)n * sizeof *r.id);
            cut += i % 2 && s->results[(s->finished - 1) % SESSION_RESULTS].kept > s->pending;
            must(session_prefill(s, r.id + n - 1, 1, NULL, NULL, &e), &e);
            go_on(s, &samplers[1], 9, 0, &next);
            assert_memory_equal(next.id, whole.id + n, 9 * sizeof *r.id);
            session_free(s);
            if (i % 2) recorder_off(be);
        }
        model_free(d);
        model_free(t);
    }
    assert_true(cut > 0); /* more was kept than was wanted */
}

/* n tokens without a drafter, and the state after all of them: a file. */
static void state_after(struct session *s, int n, const struct kn_sampler *sampler, struct run *r)
{
    struct err e = {0};
    const struct spec_options o = {.n = n, .sampler = *sampler, .tokens = take_tokens, .ctx = r};
    memset(r, 0, sizeof *r);
    must(spec_generate(s, &o, &r->st, &e), &e);
    assert_int_equal(r->n, n);
    assert_int_equal(s->pending, s->every ? (n - 1) % s->every : 0);
    must(session_prefill(s, r->id + n - 1, 1, NULL, NULL, &e), &e);
    save(s, "decoded");
}

/* Decoded without a drafter, the state is that of a prefill of the same tokens to the byte; also where rows
 * of a forward were pending before the first cycle, where the state is written after two or three rows, and
 * where a drafter goes on from it. */
static void test_decoded(void **state)
{
    static struct run r, next, whole;
    static int32_t all[MAX_PROMPT];
    struct err e = {0};
    (void)state;
    for (int kind = 0; kind < KINDS; kind++) {
        struct model *t = target(kind), *d = drafter(state);
        for (int i = 0; i < 24; i++) {
            const int n = 2 + i / 4, recorded = i % 2, forward = i / 2 % 2;
            if (recorded) recorder_on(be);
            struct session *s = start(t, NULL, 16, KN_F16);
            s->every = i % 3 ? i % 3 + 1 : 0;
            must(session_prefill(s, prompt, 20 - 2 * forward, NULL, NULL, &e), &e);
            if (forward) {
                must(session_forward(s, prompt + 18, 1, &e) || session_commit(s, 1, &e), &e);
                must(session_forward(s, prompt + 19, 1, &e) || session_commit(s, 1, &e), &e);
                assert_int_equal(s->pending, 1);
            }
            state_after(s, n, &samplers[1], &r);
            go_on(s, &samplers[1], 9, 0, &next);
            session_free(s);
            if (recorded) recorder_off(be);
            memcpy(all, prompt, 20 * sizeof *all);
            memcpy(all + 20, r.id, (size_t)n * sizeof *all);
            s = start(t, NULL, 16, KN_F16);
            must(session_prefill(s, all, 20 + n, NULL, NULL, &e), &e);
            save(s, "state");
            same_files("state", "decoded");
            session_free(s);
            s = restore("decoded", t, NULL);
            go_on(s, &samplers[1], 9, 0, &whole);
            assert_memory_equal(next.id, whole.id, 9 * sizeof *r.id);
            session_free(s);
            s = start(t, d, 16, KN_F16);
            must(session_prefill(s, all, 20 + n, NULL, NULL, &e), &e);
            go_on(s, &samplers[1], 9, 0, &whole);
            assert_memory_equal(next.id, whole.id, 9 * sizeof *r.id);
            session_free(s);
        }
        model_free(d);
        model_free(t);
    }
}

/* A stop id ends undrafted cycles, where they are recorded with one more that may have been started; anything
 * may follow, however often the state is written. */
static void test_stopped(void **state)
{
    static struct run whole, r, next;
    int ahead = 0;
    (void)state;
    for (int kind = 0; kind < KINDS; kind++) {
        struct model *t = target(kind);
        run(t, NULL, 20, 1, 0, &whole);
        for (int recorded = 0; recorded < 2; recorded++)
            for (int32_t stop = 0; stop < 4 * (IDS - 1); stop++) {
                const int32_t every = stop / (IDS - 1) ? stop / (IDS - 1) + 1 : 0, id = stop % (IDS - 1);
                struct err e = {0};
                const struct spec_options o = {.n = 16,
                                               .sampler = samplers[1],
                                               .stops = &id,
                                               .n_stops = 1,
                                               .tokens = take_tokens,
                                               .ctx = &r};
                int n = 0;
                while (n < 16 && whole.id[n++] != id)
                    ;
                if (recorded) recorder_on(be);
                struct session *s = start(t, NULL, 16, KN_F16);
                s->every = every;
                must(session_prefill(s, prompt, 20, NULL, NULL, &e), &e);
                memset(&r, 0, sizeof r);
                must(spec_generate(s, &o, &r.st, &e), &e);
                assert_int_equal(r.n, n);
                assert_memory_equal(r.id, whole.id, (size_t)n * sizeof *r.id);
                assert_int_equal(s->n_past, 20 + n - 1);
                assert_true(recorded || s->started == s->finished);
                ahead += s->started != s->finished;
                must(session_prefill(s, r.id + n - 1, 1, NULL, NULL, &e), &e);
                go_on(s, &samplers[1], 9, 0, &next);
                assert_memory_equal(next.id, whole.id + n, 9 * sizeof *r.id);
                session_free(s);
                if (recorded) recorder_off(be);
            }
        model_free(t);
    }
    assert_true(ahead > 0);
}

/* ---- an engine's streams ---- */

/* Stopped at any token, with the next cycle running or not, and wherever the state stands in the log. */
static void test_any_stop(void **state)
{
    int cut = 0;
    (void)state;
    for (int kind = 0; kind < KINDS; kind++) {
        struct model *t = target(kind), *d = drafter(state);
        struct source x = source_drafter(d);
        for (int i = 0; i < 16; i++) {
            struct setting y = setting(t, i / 8 ? &x : NULL, i, 33);
            struct known k;
            known_open(&k, &y, 2);
            if (i / 4 % 2) y.o.look = &k.source.source;
            if ((i ^ i >> 1 ^ i >> 3) & 1) recorder_on(be);
            any_stop(&y, 14, (uint32_t)i, ".", &cut);
            if ((i ^ i >> 1 ^ i >> 3) & 1) recorder_off(be);
            known_close(&k);
        }
        model_free(d);
        model_free(t);
    }
    assert_true(cut > 0); /* some ended with a cycle running */
    assert_true(left_open > 0);
}

/* 16 settings of every kind of target: plain and drafted. */
static void each_setting(void **state, void (*check)(struct model *t, struct source *x, int i))
{
    for (int kind = 0; kind < KINDS; kind++) {
        struct model *t = target(kind), *d = drafter(state);
        struct source x = source_drafter(d);
        for (int i = 0; i < 16; i++) check(t, i / 8 ? &x : NULL, i);
        model_free(d);
        model_free(t);
    }
}

/* The state is put back, whatever was measured. */
static void check_times(struct model *t, struct source *x, int i)
{
    const struct setting y = setting(t, x, i, 33);
    const bool recorded = (i ^ i >> 1 ^ i >> 3) & 1;
    if (recorded) recorder_on(be);
    any_times(&y, (uint32_t)i * 5 + 3, recorded, ".");
    if (recorded) recorder_off(be);
}

static void test_times(void **state)
{
    each_setting(state, check_times);
}

static void check_turns(struct model *t, struct source *x, int i)
{
    struct setting y[STREAMS];
    const bool recorded = (i ^ i >> 1) & 1;
    for (int k = 0; k < STREAMS; k++) y[k] = setting(t, x, i, 5 + 31 * k);
    y[1].sampler = samplers[(i + 1) % 2];
    struct known text;
    known_open(&text, &y[1], 2);
    for (int k = 0; k < STREAMS && i / 4 % 2; k++) y[k].o.look = &text.source.source;
    if (recorded) recorder_on(be);
    any_turns(y, 2 + i % 2, (uint32_t)i * 31 + 5, 2);
    known_close(&text);
    for (int k = 0; k < STREAMS; k++) y[k].o.look = NULL;
    slot_again(&y[0], &y[2], recorded);
    if (recorded) recorder_off(be);
}

static void test_turns(void **state)
{
    each_setting(state, check_turns);
}

/* In parts: behind spans and points of another stream, and a cycle of each in turn (spans.h). */
static void check_parts(struct model *t, struct source *x, int i)
{
    struct setting y[STREAMS];
    for (int k = 0; k < STREAMS; k++) y[k] = setting(t, x, i, 5 + 31 * k);
    if ((i ^ i >> 1) & 1) recorder_on(be);
    any_runs(y, 2 + i % 2, (uint32_t)i * 13 + 5);
    any_spans(&y[2], ".");
    if ((i ^ i >> 1) & 1) recorder_off(be);
}

static void test_parts(void **state)
{
    each_setting(state, check_parts);
}

/* The same with the MTP block as the drafter. */
#define MTP(test)                                                                                            \
    {                                                                                                        \
#test " mtp", test, NULL, NULL, &mtp                                                                 \
    }

int main(void)
{
    static bool mtp = true;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_planned_memory),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_state_matters),
        cmocka_unit_test(test_lossless),
        cmocka_unit_test(test_resume),
        cmocka_unit_test(test_no_proposals),
        cmocka_unit_test(test_settled),
        cmocka_unit_test(test_plans),
        cmocka_unit_test(test_any_stop),
        cmocka_unit_test(test_turns),
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_times),
        cmocka_unit_test(test_after),
        cmocka_unit_test(test_decoded),
        cmocka_unit_test(test_stopped),
        MTP(test_lossless),
        MTP(test_resume),
        MTP(test_no_proposals),
        MTP(test_plans),
        MTP(test_any_stop),
        MTP(test_turns),
        MTP(test_parts),
        MTP(test_times),
        MTP(test_after),
        MTP(test_decoded),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
