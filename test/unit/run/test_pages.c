/* test_pages.c - a stream whose rows see a pool of pages: as without one until the pool is full, then one
 * stream for drafted and plain, for prompts in any pieces, and for a state that goes on; pages that come back
 * are the bytes that left. */
#include "engine_fixture.h"

#include "../../../common/run/engine.h"
#include "../../../common/run/pages.h"

enum { POOL = POOL_LEAST };

static void same_run(const struct run *a, const struct run *b)
{
    assert_memory_equal(a->id, b->id, sizeof a->id);
    assert_int_equal(a->n_trace, b->n_trace);
    assert_memory_equal(a->trace, b->trace, (size_t)a->n_trace * sizeof *a->trace);
}

/* A pool that holds everything, and one that is not full yet. */
static void test_all_is_held(void **state)
{
    static struct run dense, pooled;
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct way y = {.prompt = i & 1 ? 370 : 500, .drafter = i & 2, .sampler = i & 2 ? sampled : greedy};
        run(&y, &dense);
        y.pool = i & 1 ? POOL : 16 * 64;
        run(&y, &pooled);
        same_run(&dense, &pooled);
    }
}

/* Plain and drafted, in pieces of other sizes, recorded. */
static void test_one_stream(void **state)
{
    static struct run plain, r;
    static const int lengths[] = {380, 447, 448, 449, 600, 1000};
    static const int chunks[] = {512, 64, 17};
    (void)state;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        for (int sampling = 0; sampling < 2; sampling++) {
            struct way y = {.prompt = lengths[i], .pool = POOL, .sampler = sampling ? sampled : greedy};
            run(&y, &plain);
            for (int c = 0; c < 3; c++) {
                y = (struct way){.prompt = lengths[i],
                                 .pool = POOL,
                                 .chunk = chunks[c],
                                 .drafter = true,
                                 .block = c == 1 ? 3 : 0,
                                 .sampler = sampling ? sampled : greedy};
                if (c == 1) recorder_on(be);
                run(&y, &r);
                if (c == 1) recorder_off(be);
                if (c == 1) assert_true(recorder.replayed > 3);
                assert_memory_equal(plain.id, r.id, sizeof plain.id);
            }
        }
}

/* A row sees its turn's pages: those of the start and of the end, as many as there are slots, none twice;
 * what lies in them are the bytes of the positions (of layer 0, whose keys and values are functions of
 * tokens). */
static void check_pages(struct session *pooled, struct session *dense)
{
    int32_t n;
    const int32_t *held = pages_held(pooled, &n), now = pooled->n_past / POOL_PAGE;
    const struct kn_kv *a = &pooled->kv[0], *b = &dense->kv[0];
    const size_t row = kn_kv_row_bytes(a, a->type.k);
    bool seen[64] = {false};
    assert_int_equal(n, POOL / POOL_PAGE);
    for (int32_t i = 0; i < n; i++) {
        assert_in_range(held[i], 0, now);
        assert_false(seen[held[i]]);
        seen[held[i]] = true;
        const int32_t rows = held[i] == now ? pooled->n_past % POOL_PAGE : POOL_PAGE;
        assert_memory_equal((const char *)a->k + (size_t)(i * POOL_PAGE) * row,
                            (const char *)b->k + (size_t)(held[i] * POOL_PAGE) * row, (size_t)rows * row);
        assert_memory_equal((const char *)a->v + (size_t)(i * POOL_PAGE) * row,
                            (const char *)b->v + (size_t)(held[i] * POOL_PAGE) * row, (size_t)rows * row);
    }
    assert_true(seen[0] && held[n - 1] == now);
    for (int32_t t = 1; t <= POOL_TAIL; t++) assert_true(seen[now - t]);
}

static void test_pages(void **state)
{
    (void)state;
    struct err e = {0};
    struct way y = {.prompt = 1090}, p = {.prompt = 1090, .pool = POOL};
    struct model *t = load(target_path, be);
    struct session *dense = start(&y, t, NULL), *pooled = start(&p, t, NULL);
    float a[TINY_VOCAB], b[TINY_VOCAB];
    int pos = 0, steps = 0;
    assert_true(pages_held(dense, &steps) == NULL && pages_rows(dense) == INT32_MAX);
    for (int some = 401; pos < y.prompt; pos += some, some = 1 + (some * 7 + 3) % 90) {
        if (some > y.prompt - pos) some = y.prompt - pos;
        must(session_prefill(dense, prompt + pos, some, NULL, NULL, &e), &e);
        must(session_prefill(pooled, prompt + pos, some, NULL, NULL, &e), &e);
        if (pos + some > POOL && (pos + some) % POOL_PAGE) check_pages(pooled, dense);
        assert_in_range(pages_rows(pooled), 1, POOL);
    }
    const struct pages_stats st = pages_stats(pooled);
    assert_int_equal(st.turns, (1090 - POOL) / POOL_PAGE + 1); /* at 448, 512, ... 1088 */
    assert_true(st.scored > 0 && st.scored <= st.turns && st.came > 0 && st.bytes > 0);
    must(session_logits(dense, 0, a, &e), &e);
    must(session_logits(pooled, 0, b, &e), &e);
    assert_memory_not_equal(a, b, sizeof a); /* what left is not seen */
    session_free(pooled), session_free(dense);
    model_free(t);
}

/* A state, before the pool is full, at a turn, between two, and gone on with in pieces. */
static void test_resumed(void **state)
{
    static struct run whole, r;
    static const int lengths[] = {300, 447, 448, 449, 512, 700, 1000};
    (void)state;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        for (int append = 0; append < 2; append++) {
            struct way y = {.prompt = lengths[i], .pool = POOL, .drafter = true, .sampler = sampled};
            run(&y, &whole);
            y.state = true, y.append = append;
            run(&y, &r);
            same_run(&whole, &r);
        }
}

/* A state names its pool; what continues it has it. */
static void test_other_pool(void **state)
{
    (void)state;
    struct err e = {0};
    struct way y = {.prompt = 500, .pool = POOL}, other = {.prompt = 500},
               third = {.prompt = 500, .pool = 512};
    struct model *t = load(target_path, be);
    struct session *s = start(&y, t, NULL);
    struct state *st;
    struct state_info info;
    must(session_prefill(s, prompt, 500, NULL, NULL, &e), &e);
    save(s, scratch("pooled"));
    session_free(s);
    for (int i = 0; i < 2; i++) {
        must(state_open(&st, scratch("pooled"), &info, &e), &e);
        assert_int_equal(info.pool, POOL);
        s = start(i ? &third : &other, t, NULL);
        expect_error(state_restore(st, s, &e), &e, ERR_FORMAT,
                     i ? "was made with another pool (expected 512 positions, got 448"
                       : "was made with another pool (expected 0 positions, got 448");
        memset(&e, 0, sizeof e);
        session_free(s);
        state_close(st);
    }
    model_free(t);
}

static void test_when_scores_are_made(void **state)
{
    (void)state;
    int n = 0;
    for (int32_t pos = 64; pos <= 1 << 20; pos += 64) n += pages_scores_at(pos);
    assert_true(pages_scores_at(64) && pages_scores_at(2048) && pages_scores_at(1 << 20));
    assert_true(!pages_scores_at((1 << 20) - 64));
    assert_in_range(n, 100, 1000); /* of 16,384 turns: as many for each doubling */
}

/* A slot that has had a stream. */
static void test_next_stream(void **state)
{
    (void)state;
    struct err e = {0};
    const struct session_options o = {.ctx = 1100, .kv = {KN_F16, KN_F16}, .pool = POOL};
    struct model *t = load(target_path, be);
    struct engine *g;
    struct session *s;
    float a[TINY_VOCAB], b[TINY_VOCAB];
    must(engine_open(&g, t, NULL, &o, &e), &e);
    for (int i = 0; i < 2; i++) {
        must(session_open(&s, g, &e), &e);
        must(session_prefill(s, prompt, 700, NULL, NULL, &e), &e);
        must(session_logits(s, 0, i ? b : a, &e), &e);
        session_free(s);
    }
    assert_memory_equal(a, b, sizeof a);
    engine_close(g);
    model_free(t);
}

static void test_refused(void **state)
{
    (void)state;
    struct model *t = load(target_path, be), *d = load(drafter_path, be);
    const struct {
        struct session_options o;
        const char *msg;
    } c[] = {{{.ctx = 999, .kv = {KN_F16, KN_F16}, .pool = POOL - 64}, "expected a multiple of 64 from 448"},
             {{.ctx = 999, .kv = {KN_F16, KN_F16}, .pool = POOL + 1}, "got 449"},
             {{.ctx = 999, .kv = {KN_F16, KN_F16}, .pool = -64}, "got -64"},
             {{.ctx = 999, .kv = {KN_F16, KN_F16}, .pool = POOL, .kv_host = 1},
              "keys and values in the host's memory"},
             {{.ctx = 999, .kv = {KN_F16, KN_F16}, .pool = POOL, .tree = 5},
              "a pool of 448 positions beside trees"}};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        struct err e = {0};
        struct session *s;
        expect_error(session_new(&s, t, d, &c[i].o, &e), &e, ERR_USAGE, c[i].msg);
    }
    struct err e = {0};
    const struct way y = {.prompt = 500, .pool = POOL};
    struct session *s = start(&y, t, NULL);
    must(session_prefill(s, prompt, 500, NULL, NULL, &e), &e);
    must(session_forward(s, prompt, 12, &e), &e); /* to 512 */
    expect_error(session_forward(s, prompt, 13, &e), &e, ERR_USAGE, "expected 1 to 12, got 13");
    session_free(s);
    model_free(d), model_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_is_held), cmocka_unit_test(test_one_stream),
        cmocka_unit_test(test_pages),       cmocka_unit_test(test_when_scores_are_made),
        cmocka_unit_test(test_next_stream), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_resumed),     cmocka_unit_test(test_other_pool),
    };
    return cmocka_run_group_tests(tests, engine_begin, engine_end);
}
