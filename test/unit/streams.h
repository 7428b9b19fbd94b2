/* streams.h - what the speculative loop writes, kept for comparing: tokens, proposals, counts; a prompt; a
 * state on disk.
 *
 * Of the programs that hold streams against each other byte by byte (test_engine*.c, test_gemma4.c,
 * test_recurrent.c). */
#ifndef TEST_STREAMS_H
#define TEST_STREAMS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#include "../../common/run/session.h"
#include "../../common/run/spec.h"
#include "../../common/run/state.h"

enum { N_NEW = 40, MAX_BLOCK = 6, MAX_PROMPT = 1100 };

/* The ctx of take_tokens and take_proposals; may stand first in a larger one. */
struct run {
    int32_t id[N_NEW + 1], trace[N_NEW * MAX_BLOCK];
    int n, n_trace;
    int made[N_NEW]; /* tokens written when cycle i drafted */
    struct spec_stats st;
};

static int32_t prompt[MAX_PROMPT];

static inline void must(int rc, const struct err *e)
{
    if (rc) fail_msg("(%d) %s", e->code, e->msg);
}

/* Ids below n_ids, always the same. */
static inline void make_prompt(int n_ids)
{
    uint32_t x = 7;
    for (int i = 0; i < MAX_PROMPT; i++) {
        x = x * 1664525u + 1013904223u;
        prompt[i] = (int32_t)((x >> 16) % (uint32_t)n_ids);
    }
}

static inline int take_tokens(void *ctx, const int32_t *ids, int32_t n, struct err *e)
{
    struct run *r = ctx;
    (void)e;
    assert_true(n > 0 && (size_t)(r->n + n) <= sizeof r->id / sizeof *r->id);
    memcpy(r->id + r->n, ids, (size_t)n * sizeof *ids);
    r->n += n;
    return 0;
}

static inline int take_proposals(void *ctx, const int32_t *ids, int32_t n, struct err *e)
{
    struct run *r = ctx;
    (void)e;
    assert_true(n > 0 && (size_t)(r->n_trace + n) <= sizeof r->trace / sizeof *r->trace);
    memcpy(r->trace + r->n_trace, ids, (size_t)n * sizeof *ids);
    r->made[r->n_trace / n] = r->n;
    r->n_trace += n;
    return 0;
}

static inline void go_on(struct session *s, const struct kn_sampler *sampler, int64_t n, int32_t width,
                         struct run *r)
{
    struct err e = {0};
    const struct spec_options o = {.n = n,
                                   .sampler = *sampler,
                                   .width = width,
                                   .tokens = take_tokens,
                                   .proposals = take_proposals,
                                   .ctx = r};
    memset(r, 0, sizeof *r);
    must(spec_generate(s, &o, &r->st, &e), &e);
}

static inline void same_ids(const struct run *a, const struct run *b)
{
    assert_memory_equal(a->id, b->id, N_NEW * sizeof *a->id);
}

static inline void same_trace(const struct run *a, const struct run *b)
{
    assert_true(a->n_trace > 0);
    assert_int_equal(a->n_trace, b->n_trace);
    assert_memory_equal(a->trace, b->trace, (size_t)a->n_trace * sizeof *a->trace);
}

static inline void save(struct session *s, const char *path)
{
    struct err e = {0};
    struct io_out o;
    must(io_out_open(&o, path, true, NULL, 0, &e) || state_save(s, &o, &e) || io_out_commit(&o, &e), &e);
}

#endif
