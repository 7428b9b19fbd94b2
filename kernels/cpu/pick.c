/* pick.c - sampling: argument checks, and one row a thread at a time. The chain itself is in pick.inc.h. */
#include "cpu.h"
#include "rows.h"

#include <stdatomic.h>

static size_t round64(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

/* An item's scratch: a changed copy, the block maxima, the heap (before it, counts of ids). */
static size_t thread_bytes(int64_t n_vocab)
{
    size_t v = (size_t)n_vocab;
    return round64(v * sizeof(float)) + round64((v / 64 + 1) * sizeof(float)) +
           round64((v + 64) * sizeof(uint64_t));
}

/* Rows are dealt out to this many items, each with its own scratch. */
static int pick_items(const struct cpu_backend *be, int32_t n)
{
    int t = n < be->threads ? n : be->threads;
    return t < 16 ? t : 16;
}

size_t cpu_pick_scratch(const struct cpu_backend *be, int32_t n, int64_t n_vocab)
{
    return (size_t)pick_items(be, n) * thread_bytes(n_vocab);
}

static int check(struct cpu_backend *be, const struct kn_pick *p)
{
    const struct kn_sampler *s = &p->sampler;
    if (p->n < 1 || p->n_vocab < 1)
        return cpu_fail(be, KN_EINVAL, "pick: %d rows of %d logits", p->n, p->n_vocab);
    if (!(s->temp >= 0.0f) || s->temp - s->temp != 0.0f)
        return cpu_fail(be, KN_EINVAL, "pick: temperature %g (expected 0 or more)", (double)s->temp);
    if (!(s->top_p >= 0.0f && s->top_p <= 1.0f) || !(s->min_p >= 0.0f && s->min_p <= 1.0f))
        return cpu_fail(be, KN_EINVAL, "pick: top-p %g, min-p %g (expected 0 to 1)", (double)s->top_p,
                        (double)s->min_p);
    if (s->top_k < 0 || s->repeat_last < 0)
        return cpu_fail(be, KN_EINVAL, "pick: top-k %d, repeat-last %d (expected 0 or more)", s->top_k,
                        s->repeat_last);
    if (!(s->repeat_penalty > 0.0f) || s->repeat_penalty - s->repeat_penalty != 0.0f)
        return cpu_fail(be, KN_EINVAL, "pick: repeat penalty %g (expected more than 0)",
                        (double)s->repeat_penalty);
    if (s->presence - s->presence != 0.0f || s->frequency - s->frequency != 0.0f)
        return cpu_fail(be, KN_EINVAL, "pick: penalties of presence %g and frequency %g (expected numbers)",
                        (double)s->presence, (double)s->frequency);
    if (s->order > 15 || s->n_bias < 0)
        return cpu_fail(be, KN_EINVAL, "pick: order %u, %d biases (expected 0 to 15, 0 or more)", s->order,
                        s->n_bias);
    for (int32_t i = 0; i < s->n_bias; i++)
        if (s->bias[i].id < 0 || s->bias[i].id >= p->n_vocab)
            return cpu_fail(be, KN_EINVAL, "pick: a bias of token %d (expected 0 to %d)", s->bias[i].id,
                            p->n_vocab - 1);
    for (int32_t i = 0; i < p->n; i++)
        if (p->pos[i] < 0) return cpu_fail(be, KN_EINVAL, "pick: position %d in row %d", p->pos[i], i);
    return 0;
}

struct pick_job {
    const struct cpu_rows *rows;
    const struct kn_pick *p;
    const struct kn_top *t; /* or this */
    int32_t n_vocab;
    char *scratch;
    size_t per; /* bytes of scratch an item */
    int items;
    atomic_int outside; /* a row whose history holds what is no token; -1: none */
};

static struct cpu_pick_work work_of(const struct pick_job *j, int64_t item)
{
    char *at = j->scratch + (size_t)item * j->per;
    const size_t v = (size_t)j->n_vocab, logits = round64(v * sizeof(float)),
                 block = round64((v / 64 + 1) * sizeof(float));
    return (struct cpu_pick_work){
        .logits = (float *)at, .block = (float *)(at + logits), .heap = (uint64_t *)(at + logits + block)};
}

static void top_rows(void *ctx, int64_t item, int thread)
{
    const struct pick_job *j = ctx;
    const struct cpu_pick_work w = work_of(j, item);
    (void)thread;
    for (int32_t i = (int32_t)item; i < j->t->n; i += j->items) j->rows->top(j->t, i, &w);
}

static void pick_rows(void *ctx, int64_t item, int thread)
{
    struct pick_job *j = ctx;
    const struct cpu_pick_work w = work_of(j, item);
    (void)thread;
    for (int32_t i = (int32_t)item; i < j->p->n; i += j->items) {
        int32_t id = j->rows->pick(j->p, i, &w);
        if (id < KN_PICK_NAN) atomic_store(&j->outside, i);
        j->p->out[i] = id;
    }
}

static int make_job(struct cpu_backend *be, const char *what, int32_t n, int32_t n_vocab,
                    struct pick_job *job)
{
    const size_t need = cpu_pick_scratch(be, n, n_vocab);
    if (need > be->scratch_rows_bytes)
        return cpu_fail(be, KN_EINVAL, "%s: %d rows of %d logits want %zu bytes of scratch, %zu are reserved",
                        what, n, n_vocab, need, be->scratch_rows_bytes);
    *job = (struct pick_job){.rows = be->isa->rows,
                             .n_vocab = n_vocab,
                             .scratch = be->scratch_rows,
                             .per = thread_bytes(n_vocab),
                             .items = pick_items(be, n)};
    return 0;
}

int cpu_top(struct kn_backend *kb, const struct kn_top *t)
{
    struct cpu_backend *be = cpu_of(kb);
    struct pick_job job;
    if (t->n < 1 || t->n_vocab < 1 || t->k < 1 || t->k > KN_TOP || t->k > t->n_vocab)
        return cpu_fail(be, KN_EINVAL, "top: %d of %d logits in %d rows (expected 1 to %d of them)", t->k,
                        t->n_vocab, t->n, KN_TOP);
    const int rc = make_job(be, "top", t->n, t->n_vocab, &job);
    if (rc) return rc;
    job.t = t;
    pool_run(be->pool, job.items, top_rows, &job);
    return 0;
}

int cpu_pick(struct kn_backend *kb, const struct kn_pick *p)
{
    struct cpu_backend *be = cpu_of(kb);
    struct pick_job job;
    int rc = check(be, p);
    if (rc == 0) rc = make_job(be, "pick", p->n, p->n_vocab, &job);
    if (rc) return rc;
    job.p = p;
    atomic_init(&job.outside, -1);
    pool_run(be->pool, job.items, pick_rows, &job);
    const int32_t outside = atomic_load(&job.outside);
    if (outside >= 0)
        return cpu_fail(be, KN_EINVAL, "pick: the history before position %d holds a token outside 0 to %d",
                        p->pos[outside] + 1, p->n_vocab - 1);
    return 0;
}
