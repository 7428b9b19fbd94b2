/* tok_fixture.h - vocabularies for the tokenizer's tests: through a GGUF file, as every program gets them. */
#ifndef TOK_FIXTURE_H
#define TOK_FIXTURE_H

#include <stdarg.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "../../../common/base/io.h"
#include "../../../common/token/tokenizer_priv.h"

struct model {
    struct gguf *g;
    struct tokenizer *t;
};

static inline void must(int rc, const struct err *e)
{
    if (rc) fail_msg("%s", e->msg);
}

static inline char *read_data(const char *name, size_t *n)
{
    char path[512];
    struct io_map m;
    struct err e = {0};
    snprintf(path, sizeof path, TEST_DATA "/%s", name);
    must(io_map_open(&m, path, &e), &e);
    char *p = malloc(m.size + 1);
    assert_non_null(p);
    memcpy(p, m.data, m.size);
    p[m.size] = 0;
    *n = m.size;
    io_map_close(&m);
    return p;
}

/* Write the keys of w to a file and open it. Frees w. */
static inline struct gguf *through_file(struct gguf_writer *w)
{
    struct err e = {0};
    struct io_out o = {0};
    struct gguf *g;
    const char *dir = getenv("TMPDIR");
    char path[512];
    snprintf(path, sizeof path, "%s/test_tokenizer_%ld.gguf", dir ? dir : P_tmpdir, (long)getpid());
    must(io_out_open(&o, path, true, NULL, 0, &e), &e);
    must(gguf_write_header(w, &o, &e), &e);
    must(gguf_write_end(w, &o, &e), &e);
    must(io_out_commit(&o, &e), &e);
    gguf_writer_free(w);
    must(gguf_open(&g, path, &e), &e);
    unlink(path);
    return g;
}

/* json with its first old replaced by new; the caller's to free. */
static inline char *with(const char *json, const char *old, const char *new)
{
    const char *at = strstr(json, old);
    if (!at) fail_msg("the fixture has no %s", old);
    size_t head = (size_t)(at - json), n = strlen(json) + strlen(new) + 1;
    char *out = malloc(n);
    assert_non_null(out);
    snprintf(out, n, "%.*s%s%s", (int)head, json, new, at + strlen(old));
    return out;
}

/* The four texts (NULL: not there) to keys of a new *w. */
static inline int import(struct gguf_writer **w, const char *const text[4], int64_t n_vocab, struct err *e)
{
    struct tok_hf f = {0};
    for (int i = 0; i < 4; i++) {
        f.text[i] = text[i];
        f.size[i] = text[i] ? strlen(text[i]) : 0;
    }
    must(gguf_writer_new(w, e), e);
    return tok_import_texts(*w, &f, n_vocab, e);
}

/* The definition: again and again the leftmost pair of the lowest rank, of the k ids there. Returns how many
 * are left. */
static inline size_t merge_by_the_book(const struct tokenizer *t, int32_t *ids, size_t k)
{
    for (;;) {
        const struct tok_merge *best = NULL;
        size_t at = 0;
        for (size_t i = 0; i + 1 < k; i++) {
            const struct tok_merge *m = tok_find_merge(t, (uint32_t)ids[i], (uint32_t)ids[i + 1]);
            if (m && (!best || m->rank < best->rank)) best = m, at = i;
        }
        if (!best) return k;
        ids[at] = (int32_t)best->id;
        memmove(ids + at + 1, ids + at + 2, (k - at - 2) * sizeof *ids);
        k--;
    }
}

/* An import of changed texts that must open (message NULL), or be refused with the message. */
static inline void check_import(size_t number, const char *change, const char *const text[4], int64_t n_vocab,
                                const char *message)
{
    struct gguf_writer *w;
    struct err e = {0};
    int rc = import(&w, text, n_vocab, &e);
    if (!message) {
        must(rc, &e);
    } else {
        if (rc != -1) fail_msg("case %zu: %s was accepted", number, change);
        assert_int_equal(e.code, ERR_FORMAT);
        if (!strstr(e.msg, message)) fail_msg("case %zu: got '%s'", number, e.msg);
    }
    gguf_writer_free(w);
}

static inline void open_fixture(struct model *m, const char *pre)
{
    struct err e = {0};
    struct gguf_writer *w;
    struct tok_hf f = {0};
    char name[64];
    snprintf(name, sizeof name, "tok_%s.json", pre);
    char *json = read_data(name, &f.size[0]);
    f.text[0] = json;
    must(gguf_writer_new(&w, &e), &e);
    bool spm = strcmp(pre, "gemma4") == 0 || strcmp(pre, "llama-spm") == 0;
    must(tok_import_texts(w, &f, spm ? 1100 : 700, &e), &e);
    free(json);
    m->g = through_file(w);
    must(tok_open(&m->t, m->g, &e), &e);
}

static inline void close_model(struct model *m)
{
    tok_close(m->t);
    gguf_close(m->g);
}

/* A growing result of either direction. */
struct result {
    int32_t *ids;
    uint8_t *bytes;
    size_t n, cap;
    size_t calls;
    size_t ends[256]; /* where writes of bytes ended, the first 256 */
};

static inline int take_ids(void *ctx, const int32_t *ids, size_t n, struct err *e)
{
    struct result *r = ctx;
    (void)e;
    if (r->n + n > r->cap) {
        r->cap = 2 * (r->n + n);
        r->ids = realloc(r->ids, r->cap * sizeof *ids);
        assert_non_null(r->ids);
    }
    memcpy(r->ids + r->n, ids, n * sizeof *ids);
    r->n += n;
    r->calls++;
    return 0;
}

static inline int take_bytes(void *ctx, const void *bytes, size_t n, struct err *e)
{
    struct result *r = ctx;
    (void)e;
    if (r->n + n > r->cap) {
        r->cap = 2 * (r->n + n);
        r->bytes = realloc(r->bytes, r->cap);
        assert_non_null(r->bytes);
    }
    memcpy(r->bytes + r->n, bytes, n);
    r->n += n;
    if (r->calls < 256) r->ends[r->calls] = r->n;
    r->calls++;
    return 0;
}

static inline void encode(struct tok_encoder *x, const void *p, size_t n, bool end, struct result *r)
{
    struct err e = {0};
    must(tok_encode(x, p, n, end, take_ids, r, &e), &e);
}

static inline void encode_all(const struct tokenizer *t, bool special, bool normalize, const void *p,
                              size_t n, struct result *r)
{
    struct err e = {0};
    struct tok_encoder *x;
    must(tok_encoder_new(&x, t, special ? TOK_SPECIAL_ALL : TOK_SPECIAL_NOT, normalize, &e), &e);
    encode(x, p, n, true, r);
    tok_encoder_free(x);
}

static inline void decode_all(const struct tokenizer *t, bool special, const int32_t *ids, size_t n,
                              struct result *r)
{
    struct err e = {0};
    struct tok_decoder *x;
    must(tok_decoder_new(&x, t, special, &e), &e);
    must(tok_decode(x, ids, n, true, take_bytes, r, &e), &e);
    tok_decoder_free(x);
}

static inline void free_result(struct result *r)
{
    free(r->ids);
    free(r->bytes);
    memset(r, 0, sizeof *r);
}

static inline uint32_t rnd(uint64_t *s)
{
    *s = *s * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*s >> 33);
}

#endif
