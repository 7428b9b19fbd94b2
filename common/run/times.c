/* times.c - see times.h. */
#include "times.h"

#include <string.h>
#include <time.h>
#include "session_impl.h"

enum { REPEAT = 4 }; /* the first is launched one by one, the second recorded */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- what a row changes ---- */

/* Recurrent state, from its layers to copy or back. */
static int move_states(struct session *s, uint8_t *copy, bool back, struct err *e)
{
    const struct desc *d = s->target->d;
    const size_t state = (size_t)d->n_v * (size_t)d->d_v * (size_t)d->d_k * sizeof(float),
                 conv = (size_t)(d->n_conv - 1) * (size_t)desc_delta_width(d) * sizeof(float);
    int rc = 0;
    for (int i = 0; i < d->n_layer && !rc; i++) {
        if (!d->layer[i].recurrent) continue;
        rc = s->op->copy(s->be, back ? (uint8_t *)s->delta[i].s : copy,
                         back ? copy : (uint8_t *)s->delta[i].s, state);
        copy += state;
        if (!rc && conv)
            rc = s->op->copy(s->be, back ? (uint8_t *)s->delta[i].conv : copy,
                             back ? copy : (uint8_t *)s->delta[i].conv, conv);
        copy += conv;
    }
    return rc ? model_failed(s->target, "copy", rc, e) : 0;
}

size_t session_time_bytes(const struct session *s)
{
    const struct desc *d = s->target->d;
    size_t n = 0;
    for (int i = 0; s->delta && i < d->n_layer; i++) n += d->layer[i].recurrent;
    return n *
           ((size_t)d->n_v * (size_t)d->d_v * (size_t)d->d_k +
            (size_t)(d->n_conv - 1) * (size_t)desc_delta_width(d)) *
           sizeof(float);
}

/* The logits of the last token, to the slot or back. */
static int move_logits(struct session *s, bool back, struct err *e)
{
    const size_t bytes = (size_t)s->target->d->n_vocab * sizeof(float);
    int rc = 0;
    if (s->logits_rows > 1) s->logits_rows = 0;
    if (s->logits_rows)
        rc = s->op->copy(s->be, back ? s->g->logits : s->last, back ? s->last : s->g->logits, bytes);
    return rc ? model_failed(s->target, "copy", rc, e) : 0;
}

/* ---- measuring ---- */

/* Tokens for rows rows: of the stream, where it has as many, for experts are chosen by them. */
static void some_ids(const struct session *s, int32_t rows, int32_t *ids)
{
    for (int32_t i = 0; i < rows; i++)
        ids[i] = s->n_past >= rows ? s->history[s->n_past - rows + i]
                                   : (int32_t)(((int64_t)i * 7919 + 13) % s->target->d->n_vocab);
    if (s->anchored) ids[0] = s->history[s->n_past];
}

static double seconds_of(uint64_t begin, uint64_t end)
{
    return end > begin ? 1e-9 * (double)(end - begin) : 1e-9;
}

/* The operations of what, and what the host hears of them. *result: NULL of a draft. */
static int play_and_hear(struct session *s, int what, int32_t rows, const struct kn_result **result,
                         struct err *e)
{
    int rc;
    *result = NULL;
    s->trying = !session_records(s);
    s->fault = (struct fault){INT32_MAX, 0};
    const int bad = session_play(s, what, rows, e);
    s->trying = false;
    if (bad) return -1;
    if (what == SESSION_OFFER) {
        const struct kn_offer *o = &s->offers[s->offered++ % SESSION_RESULTS];
        rc = s->op->await(s->be, &o->number, s->offered);
    } else {
        const struct kn_result *r = *result = &s->results[s->started++ % SESSION_RESULTS];
        s->finished = s->started;
        rc = s->op->await(s->be, &r->number, s->started);
    }
    return rc ? model_failed(s->target, "times", rc, e) : 0;
}

/* One play at n_past, and how long it took. */
static int play_once(struct session *s, int what, int32_t rows, double *seconds, struct err *e)
{
    int32_t ids[SESSION_MAX_ROWS];
    uint64_t stamp[KN_STAMPS];
    const struct kn_result *r;
    some_ids(s, rows, ids);
    if (session_place(s, ids, rows, e) || play_and_hear(s, what, rows, &r, e)) return -1;
    int rc = s->op->download(s->be, stamp, s->d->stamp, sizeof stamp);
    if (rc) return model_failed(s->target, "times", rc, e);
    *seconds = r ? seconds_of(stamp[2], r->accepted) : seconds_of(stamp[0], stamp[1]);
    return 0;
}

/* A draft, and the rows that the host launches when it has heard of it: what passes between them, at least.
 */
static int measure_wait(struct session *s, int32_t rows, double *seconds, struct err *e)
{
    const struct kn_result *r;
    for (int i = 0; i < REPEAT; i++) {
        int32_t ids[SESSION_MAX_ROWS];
        some_ids(s, rows, ids);
        if (session_place(s, ids, rows, e) || play_and_hear(s, SESSION_OFFER, 1, &r, e) ||
            play_and_hear(s, SESSION_VERIFY, rows, &r, e))
            return -1;
        const double one = seconds_of(r->stamp[1], r->stamp[2]);
        if (!i || one < *seconds) *seconds = one;
    }
    return 0;
}

struct watch {
    double begun, budget,
        last; /* by the host's clock: the start, what may be spent, what the last part took */
};

/* The shortest of some plays, where the budget allows; *seconds stays 0 where it does not. */
static int measure(struct session *s, struct watch *w, int what, int32_t rows, double *seconds, struct err *e)
{
    const double begun = now();
    const int first = session_records(s) ? 1 : 0; /* one by one is another time */
    double one;
    if (w->last > 0 && begun - w->begun + w->last > w->budget) return 0;
    for (int i = 0; i < REPEAT; i++) {
        if (play_once(s, what, rows, &one, e)) return -1;
        if (i < first) continue;
        if (i == first || one < *seconds) *seconds = one;
        if (now() - w->begun > w->budget) break;
    }
    w->last = now() - begun;
    return 0;
}

static int measure_all(struct session *s, const struct session_timing *o, struct session_times *t,
                       struct err *e)
{
    struct watch w = {.begun = now(), .budget = o->budget_s};
    bool alone = false; /* a verify of one row is among them */
    double unused = 0;
    if (measure(s, &w, SESSION_PLAIN, 1, &t->plain_s, e)) return -1;
    for (int32_t i = 0; o->n && i < s->n_sources; i++)
        if (s->by[i].of->op->propose && measure(s, &w, SESSION_OFFER, i + 1, &t->draft_s[i], e)) return -1;
    for (int32_t i = 0; i < o->n; i++) {
        if (measure(s, &w, SESSION_VERIFY, o->rows[i], &t->verify_s[o->rows[i]], e)) return -1;
        alone |= o->rows[i] == 1;
    }
    if (session_records(s) && t->draft_s[0] > 0 && t->verify_s[o->rows[0]] > 0 &&
        now() - w.begun < w.budget && measure_wait(s, o->rows[0], &t->wait_s, e))
        return -1;
    /* What follows rows that were tried, where there is recurrent state, for its recordings' sake. */
    if (s->delta && o->n && session_records(s) &&
        (measure(s, &w, SESSION_PLAIN_ADVANCES, 1, &unused, e) ||
         (alone && measure(s, &w, SESSION_VERIFY_ADVANCES, 1, &unused, e))))
        return -1;
    for (int32_t i = 0; i < o->n; i++) t->missing += t->verify_s[o->rows[i]] == 0;
    return 0;
}

static int check(const struct session *s, const struct session_timing *o, struct err *e)
{
    const int32_t block = s->source ? session_block(s) : 0, tree = s->o.tree ? s->o.tree + 1 : 0,
                  look = s->o.look ? s->o.look->rows : 0, longer = look > tree ? look : tree,
                  most = block > longer ? block : longer;
    if (s->open || s->started != s->finished)
        return err_set(e, ERR_USAGE, "times are to be measured while cycles run (expected none)");
    if (s->n_past > s->o.ctx)
        return err_set(e, ERR_USAGE,
                       "times cannot be measured behind the context (expected at most %d, got %d)", s->o.ctx,
                       s->n_past);
    for (int32_t i = 0; i < o->n; i++)
        if (o->rows[i] < 1 || o->rows[i] > most)
            return err_set(e, ERR_USAGE, "rows to be measured out of range (expected 1 to %d, got %d)", most,
                           o->rows[i]);
    return 0;
}

int session_time(struct session *s, const struct session_timing *o, struct session_times *t, struct err *e)
{
    const double begun = now();
    const size_t bytes = session_time_bytes(s);
    const int32_t anchor = s->anchored ? s->history[s->n_past] : 0;
    uint8_t *copy = NULL;
    int rc = -1;
    memset(t, 0, sizeof *t);
    if (check(s, o, e)) return -1;
    if (bytes && !(copy = s->op->alloc(s->be, bytes))) {
        t->missing = o->n;
        return 0;
    }
    if (session_turn(s, e) || session_catch_up(s, e) || session_settle(s, e) || move_logits(s, false, e) ||
        (copy && move_states(s, copy, false, e)))
        goto out;
    session_use_sampler(s, &o->sampler);
    s->reach = o->reach;
    if (measure_all(s, o, t, e)) goto out;
    rc = (copy && move_states(s, copy, true, e)) || move_logits(s, true, e) || session_place(s, &anchor, 1, e)
             ? -1
             : 0;
out:
    s->op->free(s->be, copy);
    t->spent_s = now() - begun;
    return rc;
}
