/* test_lookup.c - look-ups against the rule of lookup.h spelled out over all places: random streams, periodic
 * ones, copies with changes, and the prompts of data/ as tokens; growing, taken back, and made again. */
#include "../token/tok_fixture.h"

#include "../../../common/base/mem.h"
#include "../../../common/run/lookup.h"
#include "../rnd.h"

enum { ROOM = 16384, MOST = 63 };

/* ---- the rule ---- */

struct found {
    int32_t n, match, ids[MOST];
};

static int32_t match_at(const int32_t *a, int32_t end, const int32_t *own, int32_t n)
{
    int32_t k = 0;
    while (k < LOOKUP_MATCH && k < end && k < n && a[end - 1 - k] == own[n - 1 - k]) k++;
    return k;
}

/* The end of the best place in a[0 .. size), 0: none. */
static int32_t best_end(const int32_t *a, int32_t size, const int32_t *own, int32_t n, int32_t least,
                        int32_t *match)
{
    int32_t best = 0, tries = 0;
    *match = 0;
    for (int32_t end = size - 1; end > 0 && tries < LOOKUP_TRIES; end--) {
        const int32_t k = match_at(a, end, own, n);
        if (k < least) continue;
        tries++;
        if (k > *match) best = end, *match = k;
    }
    return best;
}

static struct found rule(const int32_t *own, int32_t n, const int32_t *text, int32_t n_text, int32_t least,
                         int32_t most)
{
    struct found f = {0};
    int32_t in_text = 0, end = best_end(own, n, own, n, least, &f.match), other = 0;
    if (text) other = best_end(text, n_text, own, n, least, &in_text);
    if (in_text > f.match) {
        f.match = in_text;
        for (int32_t i = other; i < n_text && f.n < most; i++) f.ids[f.n++] = text[i];
        return f;
    }
    for (int32_t i = end; end && f.n < most; i++, f.n++) f.ids[f.n] = i < n ? own[i] : f.ids[i - n];
    return f;
}

static void same_found(const struct lookup *x, const int32_t *own, int32_t n, const int32_t *text,
                       int32_t n_text, int32_t least, int32_t most)
{
    const struct found want = rule(own, n, text, n_text, least, most);
    struct found got = {0};
    got.n = lookup_find(x, most, got.ids, &got.match);
    if (got.n != want.n || got.match != want.match || memcmp(got.ids, want.ids, sizeof want.ids))
        fail_msg("at %d tokens, least %d: %d ids of a match of %d (expected %d of %d)", n, least, got.n,
                 got.match, want.n, want.match);
}

/* ---- streams ---- */

static struct lookup *open_stream(int32_t room, int32_t least, const struct lookup_text *t)
{
    struct err e = {0};
    struct lookup *x;
    must(lookup_open(&x, room, least, t, &e), &e);
    return x;
}

static struct lookup_text *open_text(const int32_t *ids, int32_t n, int32_t least)
{
    struct err e = {0};
    struct lookup_text *t;
    must(lookup_text_open(&t, ids, n, least, &e), &e);
    return t;
}

static void set(struct lookup *x, const int32_t *ids, int32_t n, int32_t same)
{
    struct err e = {0};
    must(lookup_set(x, ids, n, same, &e), &e);
}

static int32_t below(uint64_t *s, int32_t n)
{
    return (int32_t)(rnd_next(s) % (uint64_t)n);
}

enum kind { RANDOM, PERIODIC, COPIES, KINDS };

/* n tokens below n_vocab: each by itself; a pattern that is broken now and then; pieces of what stands before
 * with single tokens changed. */
static void make(enum kind kind, int32_t *ids, int32_t n, int32_t n_vocab, uint64_t *s)
{
    int32_t period = 1 + below(s, 9);
    for (int32_t i = 0; i < n; i++) {
        ids[i] = below(s, n_vocab);
        if (kind == PERIODIC && below(s, 50) == 0) period = 1 + below(s, 9);
        if (kind == PERIODIC && i >= period && below(s, 50)) ids[i] = ids[i - period];
        if (kind == COPIES && i > 20 && below(s, 10) == 0) {
            const int32_t from = below(s, i), some = 1 + below(s, 90);
            for (int32_t k = 0; k < some && i < n - 1; k++, i++)
                ids[i] = below(s, 30) ? ids[from + k] : below(s, n_vocab);
        }
    }
}

/* A stream that grows in pieces, as prompts and cycles do. Returns how many were compared. */
static int grow(const int32_t *own, int32_t n, const int32_t *text, int32_t n_text, int32_t least,
                uint64_t *s)
{
    struct lookup_text *t = text ? open_text(text, n_text, least) : NULL;
    struct lookup *x = open_stream(n, least, t);
    int cases = 0;
    for (int32_t have = 0; have < n; cases++) {
        const int32_t more = below(s, 8) ? 1 + below(s, 4) : 1 + below(s, 64), before = have;
        have = have + more < n ? have + more : n;
        set(x, own, have, before);
        same_found(x, own, have, text, n_text, least, 1 + below(s, MOST));
    }
    lookup_close(x);
    lookup_text_close(t);
    return cases;
}

static void test_rule(void **state)
{
    static int32_t own[ROOM], text[ROOM];
    static const int32_t vocab[] = {1, 2, 3, 8, 40, 4096}, least[] = {1, 2, 3, 4, 6, 12, LOOKUP_MATCH};
    uint64_t s = 7;
    int cases = 0;
    (void)state;
    for (int i = 0; i < 400; i++) {
        const int32_t n = 1 + below(&s, 600), n_text = below(&s, 600), v = vocab[below(&s, 6)];
        make((enum kind)(i % KINDS), own, n, v, &s);
        make((enum kind)below(&s, KINDS), text, n_text, v, &s);
        /* A text that has what the stream has. */
        if (i % 5 == 0 && n_text > 100 && n > 100) memcpy(text + 20, own + 10, 80 * sizeof *own);
        cases += grow(own, n, i % 2 ? text : NULL, n_text, least[below(&s, 7)], &s);
    }
    assert_true(cases > 10000);
}

/* More places than are compared, with the longest match before them, and none where it would be. */
static void test_many_places(void **state)
{
    static int32_t own[ROOM];
    int32_t n = 0, match, ids[MOST];
    struct lookup *x = open_stream(ROOM, 2, NULL);
    (void)state;
    for (int i = 0; i < LOOKUP_TRIES + 3; i++) { /* 1 2 i, and a longer one as the third */
        if (i == 2) own[n++] = 9;
        own[n++] = 1, own[n++] = 2, own[n++] = 100 + i;
    }
    own[n++] = 9, own[n++] = 1, own[n++] = 2;
    set(x, own, n, 0);
    same_found(x, own, n, NULL, 0, 2, MOST);
    assert_int_equal(lookup_find(x, MOST, ids, &match), MOST);
    assert_int_equal(match, 2);
    assert_int_equal(ids[0], 100 + LOOKUP_TRIES + 2);
    own[n - 6] = 7; /* the newest is none: now the third is among those */
    set(x, own, n, n - 7);
    lookup_find(x, MOST, ids, &match);
    assert_int_equal(match, 3);
    assert_int_equal(ids[0], 102);
    lookup_close(x);
}

/* ---- going back ---- */

/* What is left of the tokens and of the table is as if it had never been further. */
static void test_back(void **state)
{
    static int32_t a[ROOM], b[ROOM];
    static const int32_t vocab[] = {1, 3, 40};
    uint64_t s = 11;
    int cases = 0;
    (void)state;
    for (int i = 0; i < 150; i++) {
        const int32_t v = vocab[i % 3], least = 1 + below(&s, 6), n = 500;
        struct lookup *x = open_stream(n, least, NULL);
        make(i % 2 ? COPIES : PERIODIC, a, n, v, &s);
        memcpy(b, a, sizeof a);
        set(x, a, n, 0);
        for (int k = 0; k < 20; k++) { /* another end each time, from any place on */
            const int32_t from = below(&s, n), to = from + below(&s, n - from + 1);
            make(RANDOM, b + from, n - from, v, &s);
            set(x, b, to, from);
            same_found(x, b, to, NULL, 0, least, MOST);
            set(x, b, to, 0); /* which changes nothing */
            struct lookup *fresh = open_stream(n, least, NULL);
            set(fresh, b, to, 0);
            for (int32_t m = to; m >= 0; m -= 1 + below(&s, 60), cases++) {
                set(x, b, m, m);
                set(fresh, b, m, 0);
                same_found(x, b, m, NULL, 0, least, MOST);
                same_found(fresh, b, m, NULL, 0, least, MOST);
            }
            set(x, b, n, below(&s, 2));
            lookup_close(fresh);
        }
        lookup_close(x);
    }
    assert_true(cases > 10000);
}

/* ---- real tokens ---- */

static const char *const prompts[] = {"python-8-long", "manual-8-long", "python-6-medium", "manual-4-medium"};

struct tokens {
    int32_t *ids, n;
};

static int take(void *ctx, const int32_t *ids, size_t n, struct err *e)
{
    struct tokens *t = ctx;
    (void)e;
    if (t->n + (int32_t)n <= ROOM) memcpy(t->ids + t->n, ids, n * sizeof *ids);
    t->n += (int32_t)n;
    return 0;
}

static void read_prompt(const struct tokenizer *t, const char *name, struct tokens *out)
{
    char path[200];
    struct err e = {0};
    struct io_map m;
    struct tok_encoder *x;
    snprintf(path, sizeof path, "data/prompts/%s.txt", name);
    must(io_map_open(&m, path, &e) || tok_encoder_new(&x, t, 0, true, &e), &e);
    must(tok_encode(x, m.data, m.size, true, take, out, &e), &e);
    tok_encoder_free(x);
    io_map_close(&m);
}

/* A prompt, and itself again with single tokens changed; the others as the text. */
static void test_prompts(void **state)
{
    static int32_t own[ROOM], text[ROOM];
    struct err e = {0};
    struct gguf_writer *w;
    struct tokenizer *t;
    bool found;
    uint64_t s = 3;
    int cases = 0;
    (void)state;
    must(gguf_writer_new(&w, &e) || tok_import(w, "data/pair/target", 4096, &found, &e), &e);
    assert_true(found);
    struct gguf *g = through_file(w);
    must(tok_open(&t, g, &e), &e);
    for (int i = 0; i < 4; i++)
        for (int32_t least = 2; least <= 6; least += 2) {
            struct tokens a = {own, 0}, b = {text, 0};
            for (int k = 0; k < 4; k++)
                if (k != i) read_prompt(t, prompts[k], &b);
            read_prompt(t, prompts[i], &a);
            const int32_t half = a.n;
            assert_true(half > 250 && b.n < ROOM && 2 * half < ROOM);
            for (int32_t k = 0; k < half; k++) own[half + k] = below(&s, 40) ? own[k] : below(&s, 4096);
            cases += grow(own, 2 * half, i % 2 ? text : NULL, b.n, least, &s);
        }
    assert_true(cases > 2000);
    tok_close(t);
    gguf_close(g);
}

/* ---- what is refused ---- */

/* The message of a call that failed, which must have said so. */
static void refused(int rc, struct err *e, enum err_class code, const char *what)
{
    assert_int_equal(rc, -1);
    assert_int_equal(e->code, code);
    if (!strstr(e->msg, what)) fail_msg("%s (expected: %s)", e->msg, what);
    *e = (struct err){0};
}

static void test_refused(void **state)
{
    static const int32_t ids[10] = {0};
    static const char range[] = "shortest match of a look-up out of range (expected 1 to 64, got ",
                      many[] = "(expected at most 1073741824, got 1073741825)",
                      other[] = "opened for another shortest match (expected 4, got 3)",
                      memory[] = "out of memory (look-ups";
    struct err e = {0};
    struct lookup *x;
    struct lookup_text *t;
    int32_t out[MOST], match;
    (void)state;
    for (int32_t least = 0; least <= LOOKUP_MATCH + 1; least += LOOKUP_MATCH + 1) {
        refused(lookup_open(&x, 10, least, NULL, &e), &e, ERR_USAGE, range);
        refused(lookup_text_open(&t, ids, 10, least, &e), &e, ERR_USAGE, range);
        assert_null(x);
        assert_null(t);
    }
    refused(lookup_text_open(&t, ids, (int64_t)LOOKUP_MAX + 1, 4, &e), &e, ERR_USAGE, many);
    t = open_text(ids, 10, 3);
    refused(lookup_open(&x, 10, 4, t, &e), &e, ERR_USAGE, other);
    x = open_stream(10, 3, t);
    assert_int_equal(lookup_find(x, MOST, out, &match), 0);
    assert_int_equal(match, 0);
    set(x, ids, 10, 0);
    refused(lookup_set(x, ids, 11, 10, &e), &e, ERR_USAGE, "(expected at most 10, got 11)");
    assert_int_equal(lookup_find(x, 0, out, &match), 0); /* none is asked for; what matched is said */
    assert_int_equal(match, 9);
    lookup_close(x);
    lookup_text_close(t);
    for (uint64_t i = 1; i <= 4; i++) {
        mem_fail_at(i);
        const int rc = lookup_open(&x, 10, 3, NULL, &e);
        mem_fail_at(0);
        refused(rc, &e, ERR_IO, memory);
        assert_null(x);
    }
    for (uint64_t i = 1; i <= 3; i++) {
        mem_fail_at(i);
        const int rc = lookup_text_open(&t, ids, 10, 3, &e);
        mem_fail_at(0);
        refused(rc, &e, ERR_IO, memory);
        assert_null(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rule),    cmocka_unit_test(test_many_places), cmocka_unit_test(test_back),
        cmocka_unit_test(test_prompts), cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests_name("lookup", tests, NULL, NULL);
}
