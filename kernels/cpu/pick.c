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

int cpu_check_sampler(struct cpu_backend *be, const char *op, const struct kn_sampler *s)
{
    if (!(s->temp >= 0.0f) || s->temp - s->temp != 0.0f)
        return cpu_fail(be, KN_EINVAL, "%s: temperature %g (expected 0 or more)", op, (double)s->temp);
    if (!(s->top_p >= 0.0f && s->top_p <= 1.0f) || !(s->min_p >= 0.0f && s->min_p <= 1.0f))
        return cpu_fail(be, KN_EINVAL, "%s: top-p %g, min-p %g (expected 0 to 1)", op, (double)s->top_p,
                        (double)s->min_p);
    if (s->top_k < 0 || s->repeat_last < 0)
        return cpu_fail(be, KN_EINVAL, "%s: top-k %d, repeat-last %d (expected 0 or more)", op, s->top_k,
                        s->repeat_last);
    if (!(s->repeat_penalty > 0.0f) || s->repeat_penalty - s->repeat_penalty != 0.0f)
        return cpu_fail(be, KN_EINVAL, "%s: repeat penalty %g (expected more than 0)", op,
                        (double)s->repeat_penalty);
    if (s->presence - s->presence != 0.0f || s->frequency - s->frequency != 0.0f)
        return cpu_fail(be, KN_EINVAL, "%s: penalties of presence %g and frequency %g (expected numbers)", op,
                        (double)s->presence, (double)s->frequency);
    if (s->order > 15 || s->n_bias < 0)
        return cpu_fail(be, KN_EINVAL, "%s: order %u, %d biases (expected 0 to 15, 0 or more)", op, s->order,
                        s->n_bias);
    return 0;
}

static int check(struct cpu_backend *be, const struct kn_pick *p)
{
    const struct kn_sampler *s = &p->sampler;
    if (p->n < 1 || p->n_vocab < 1)
        return cpu_fail(be, KN_EINVAL, "pick: %d rows of %d logits", p->n, p->n_vocab);
    const int rc = cpu_check_sampler(be, "pick", s);
    if (rc) return rc;
    for (int32_t i = 0; i < s->n_bias; i++)
        if (s->bias[i].id < 0 || s->bias[i].id >= p->n_vocab)
            return cpu_fail(be, KN_EINVAL, "pick: a bias of token %d (expected 0 to %d)", s->bias[i].id,
                            p->n_vocab - 1);
    for (int32_t i = 0; i < p->n; i++)
        if (p->pos[i] < 0) return cpu_fail(be, KN_EINVAL, "pick: position %d in row %d", p->pos[i], i);
    return 0;
}

int cpu_pick_room(struct cpu_backend *be, const char *op, int32_t n, int64_t n_vocab, struct cpu_pick_room *r)
{
    const size_t need = cpu_pick_scratch(be, n, n_vocab);
    *r = (struct cpu_pick_room){be->scratch_rows, n_vocab, pick_items(be, n)};
    if (need <= be->scratch_rows_bytes) return 0;
    return cpu_fail(be, KN_EINVAL, "%s: %d rows of %lld logits want %zu bytes of scratch, %zu are reserved",
                    op, n, (long long)n_vocab, need, be->scratch_rows_bytes);
}

struct cpu_pick_work cpu_pick_work(const struct cpu_pick_room *r, int64_t item)
{
    char *at = r->scratch + (size_t)item * thread_bytes(r->n_vocab);
    const size_t v = (size_t)r->n_vocab;
    return (struct cpu_pick_work){
        .logits = (float *)at,
        .block = (float *)(at + round64(v * sizeof(float))),
        .heap = (uint64_t *)(at + round64(v * sizeof(float)) + round64((v / 64 + 1) * sizeof(float)))};
}

struct pick_job {
    const struct cpu_rows *rows;
    const struct kn_pick *p;
    const struct cpu_pick_room *room;
    atomic_int outside; /* a row whose history holds what is no token; -1: none */
};

static void pick_rows(void *ctx, int64_t item, int thread)
{
    struct pick_job *j = ctx;
    const struct cpu_pick_work w = cpu_pick_work(j->room, item);
    (void)thread;
    for (int32_t i = (int32_t)item; i < j->p->n; i += j->room->items) {
        int32_t id = j->rows->pick(j->p, i, &w);
        if (id < KN_PICK_NAN) atomic_store(&j->outside, i);
        j->p->out[i] = id;
    }
}

int cpu_pick(struct kn_backend *kb, const struct kn_pick *p)
{
    struct cpu_backend *be = cpu_of(kb);
    int rc = check(be, p);
    struct cpu_pick_room room;
    if (rc == 0) rc = cpu_pick_room(be, "pick", p->n, p->n_vocab, &room);
    if (rc) return rc;
    struct pick_job job = {be->isa->rows, p, &room, -1};
    pool_run(be->pool, room.items, pick_rows, &job);
    const int32_t outside = atomic_load(&job.outside);
    if (outside >= 0)
        return cpu_fail(be, KN_EINVAL, "pick: the history before position %d holds a token outside 0 to %d",
                        p->pos[outside] + 1, p->n_vocab - 1);
    return 0;
}
