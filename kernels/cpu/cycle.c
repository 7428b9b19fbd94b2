/* cycle.c - what ends a draft and a verify: the offer, ids into the history, features kept for later,
 * acceptance, the result. Nothing is recorded here: every
 * operation is done when it returns. */
#include "cpu.h"
#include "kv.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

void *cpu_alloc_shared(struct kn_backend *kb, size_t bytes)
{
    void *p = calloc(bytes ? bytes : 1, 1);
    if (!p) cpu_fail(cpu_of(kb), KN_EMEM, "out of memory (%zu bytes)", bytes);
    return p;
}

void cpu_free_shared(struct kn_backend *kb, void *p)
{
    (void)kb;
    free(p);
}

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

int cpu_stamp(struct kn_backend *kb, uint64_t *at)
{
    (void)kb;
    *at = now();
    return 0;
}

int cpu_place(struct kn_backend *kb, int32_t *history, const int32_t *pos, const int32_t *ids, int32_t n)
{
    (void)kb;
    for (int32_t i = 0; i < n; i++) history[pos[i]] = ids[i];
    return 0;
}

int cpu_offer(struct kn_backend *kb, const struct kn_offering *a)
{
    if (a->n < 1 || a->n > KN_CYCLE_ROWS || a->n_offers < 1)
        return cpu_fail(cpu_of(kb), KN_EINVAL, "offer: %d rows (expected 1 to %d), %d offers", a->n,
                        KN_CYCLE_ROWS, a->n_offers);
    struct kn_offer *o = &a->offers[*a->number % (uint32_t)a->n_offers];
    *a->stamp = now();
    memcpy(o->ids, a->ids, (size_t)a->n * sizeof *o->ids);
    memcpy(o->logp, a->logp, (size_t)(a->n - 1) * sizeof *o->logp);
    o->pos = a->pos[0];
    o->usable = 1;
    for (int32_t i = 1; i < a->n; i++)
        if (a->ids[i] < 0) o->usable = 0;
    for (int32_t i = 1; i < a->n && !o->usable; i++) a->ids[i] = KN_PICK_NAN;
    if (a->top_ids) {
        struct kn_candidates *c = &a->candidates[*a->number % (uint32_t)a->n_offers];
        const size_t count = (size_t)(a->n - 1) * (size_t)a->top;
        memcpy(c->ids, a->top_ids, count * sizeof *c->ids);
        memcpy(c->values, a->top_values, count * sizeof *c->values);
        if (a->top_scores) memcpy(c->scores, a->top_scores, count * (size_t)a->top * sizeof *c->scores);
    }
    o->number = ++*a->number;
    return 0;
}

int cpu_keep(struct kn_backend *kb, float *dst, int32_t slots, const int32_t *pos, const float *x, int32_t n,
             int64_t width)
{
    if (n < 1 || n > slots || width < 1)
        return cpu_fail(cpu_of(kb), KN_EINVAL, "keep: %d rows of width %lld in %d slots", n, (long long)width,
                        slots);
    for (int32_t i = 0; i < n; i++)
        memcpy(dst + pos[i] % slots * width, x + i * width, (size_t)width * sizeof *x);
    return 0;
}

/* The row behind at whose id is its pick; 0: none. */
static int32_t next_row(const struct kn_follow *a, int32_t at)
{
    for (int32_t r = at + 1; r < a->n; r++)
        if (a->tree->parent[r] == at && a->tree->ids[r] == a->picks[at]) return r;
    return 0;
}

int cpu_follow(struct kn_backend *kb, const struct kn_follow *a)
{
    int32_t kept = 0;
    if (a->n < 1 || a->n > KN_CYCLE_ROWS)
        return cpu_fail(cpu_of(kb), KN_EINVAL, "follow: %d rows (expected 1 to %d)", a->n, KN_CYCLE_ROWS);
    memset(a->tree->stays, 0, sizeof a->tree->stays);
    for (int32_t r = 0; r || !kept; r = next_row(a, r)) a->tree->stays[kept++] = r;
    for (int32_t i = 0; i < KN_CYCLE_ROWS; i++) a->tree->stay_ids[i] = a->tree->ids[a->tree->stays[i]];
    *a->kept = kept;
    return 0;
}

static void settle_rows(const struct kn_settle *a)
{
    const int32_t *stays = a->tree->stays;
    for (int32_t i = 0; a->kv && i < *a->kept; i++)
        for (int values = 0; values < 2; values++) {
            const size_t bytes = kn_kv_row_bytes(a->kv, values ? a->kv->type.v : a->kv->type.k);
            memcpy(cpu_kv_row(a->kv, values, a->tree->at[i]), cpu_kv_row(a->tail, values, stays[i]), bytes);
        }
    /* stays[i] >= i, and they rise: none is read after it is written. */
    for (int32_t i = 0; a->log && i < *a->kept; i++)
        memmove(a->log + i * a->width, a->log + stays[i] * a->width, (size_t)a->width * sizeof *a->log);
}

int cpu_settle(struct kn_backend *kb, const struct kn_settle *a)
{
    for (; a; a = a->next) {
        if (*a->kept < 1 || *a->kept > a->most || a->most > KN_CYCLE_ROWS)
            return cpu_fail(cpu_of(kb), KN_EINVAL, "settle: %d rows of at most %d (expected 1 to %d)",
                            *a->kept, a->most, KN_CYCLE_ROWS);
        settle_rows(a);
    }
    return 0;
}

int cpu_gather(struct kn_backend *kb, float *dst, const float *src, const int32_t *rows, int32_t n,
               int64_t width)
{
    if (n < 1 || n > KN_CYCLE_ROWS || width < 1)
        return cpu_fail(cpu_of(kb), KN_EINVAL, "gather: %d rows of width %lld", n, (long long)width);
    for (int32_t i = 0; i < n; i++)
        memcpy(dst + i * width, src + rows[i] * width, (size_t)width * sizeof *dst);
    return 0;
}

/* What a verify of a tree came to, in the order of the rows that stay. */
static int32_t followed(const struct kn_accept *a, struct kn_result *r)
{
    for (int32_t i = 0; i < a->n; i++) {
        const int32_t row = r->rows[i] = a->tree->stays[i];
        r->ids[i] = a->tree->ids[row];
        r->picks[i] = a->picks[row];
    }
    r->usable = 1;
    return *a->kept;
}

static int32_t equal_rows(const struct kn_accept *a, struct kn_result *r)
{
    int32_t kept = 1;
    memcpy(r->ids, a->ids, (size_t)a->n * sizeof *r->ids);
    memcpy(r->picks, a->picks, (size_t)a->n * sizeof *r->picks);
    r->usable = 1;
    for (int32_t i = 1; i < a->n; i++)
        if (a->ids[i] < 0) r->usable = 0;
    while (r->usable && kept < a->n &&
           (a->equal ? kept <= a->equal[a->pos[0]] : a->ids[kept] == a->picks[kept - 1]))
        kept++;
    return kept;
}

int cpu_accept(struct kn_backend *kb, const struct kn_accept *a)
{
    if (a->n < 1 || a->n > KN_CYCLE_ROWS || a->n_results < 1)
        return cpu_fail(cpu_of(kb), KN_EINVAL, "accept: %d rows (expected 1 to %d), %d results", a->n,
                        KN_CYCLE_ROWS, a->n_results);
    struct kn_result *r = &a->results[*a->number % (uint32_t)a->n_results];
    const int32_t pos = a->pos[0];
    r->accepted = now();
    memcpy(r->stamp, a->stamp, sizeof r->stamp);
    const int32_t kept = a->tree ? followed(a, r) : equal_rows(a, r);
    r->pos = pos;
    r->kept = *a->kept = kept;
    memcpy(a->history + pos + 1, r->picks, (size_t)kept * sizeof *a->history);
    a->ids[0] = r->picks[kept - 1];
    if (a->anchor) *a->anchor = a->ids[0];
    for (int32_t i = 0; i < KN_CYCLE_ROWS; i++) a->pos[i] += kept;
    if (a->behind) *a->behind = (*a->behind + kept) % a->every;
    if (a->first) *a->first = a->pos[0] > a->window ? a->pos[0] - a->window : 0;
    r->number = ++*a->number;
    return 0;
}

int cpu_await(struct kn_backend *kb, const uint32_t *number, uint32_t want)
{
    if (*number == want) return 0;
    return cpu_fail(cpu_of(kb), KN_EINVAL, "await: %u has not been run (the last was %u)", want, *number);
}
