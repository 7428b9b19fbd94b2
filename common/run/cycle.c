/* cycle.c - see cycle.h; and the playing of recorded steps. */
#include "cycle.h"
#include "session_impl.h"

#include <string.h>

/* ---- the operations ---- */

/* Rows of the cursor. */
static struct session_rows rows_at(struct session *s, int32_t n)
{
    return (struct session_rows){.ids = s->d->ids, .pos = s->d->pos, .n = n, .first_pos = s->n_past};
}

static int forward_rows(struct session *s, int32_t n, enum session_fate fate, struct err *e)
{
    const struct session_rows r = rows_at(s, n);
    return session_run_target(s, &r, fate, e) || session_run_head(s, s->target, 0, n, e) ? -1 : 0;
}

static int stamp(struct session *s, int i, struct err *e)
{
    int rc = s->op->stamp(s->be, &s->d->stamp[i]);
    return rc ? model_failed(s->target, "stamp", rc, e) : 0;
}

static bool looks_back(const struct kn_sampler *sampler)
{
    return sampler->repeat_penalty != 1 && sampler->repeat_last > 0;
}

static bool drafts(int what)
{
    return what & SESSION_DRAFTS;
}

static bool advances(int what)
{
    return what & SESSION_ADVANCES;
}

static int draft_part(struct session *s, int what, struct err *e)
{
    if (stamp(s, 0, e)) return -1;
    return drafts(what) && (s->source->op->propose(s, false, e) || stamp(s, 1, e)) ? -1 : 0;
}

/* A row alone stays: recurrent state takes it along at once, or it stays pending like those before it, until
 * there are s->every. */
static enum session_fate fate_of(int what, int32_t rows)
{
    return rows > 1 ? SESSION_TRIED : advances(what) ? SESSION_ADVANCED : SESSION_FINAL;
}

static int verify_part(struct session *s, int what, int32_t rows, struct err *e)
{
    const struct kn_pick pick = {.logits = s->g->logits,
                                 .pos = s->d->pos,
                                 .history = s->d_history,
                                 .n = rows,
                                 .n_vocab = s->target->d->n_vocab,
                                 .sampler = s->sampler,
                                 .out = s->d->picks};
    int rc = 0;
    if (rows > 1 && looks_back(&s->sampler))
        rc = s->op->place(s->be, s->d_history, s->d->pos, s->d->ids, rows);
    if (rc) return model_failed(s->target, "place", rc, e);
    if (forward_rows(s, rows, fate_of(what, rows), e)) return -1;
    rc = s->op->pick(s->be, &pick);
    return rc ? model_failed(s->target, "pick", rc, e) : stamp(s, 2, e);
}

static int accept_part(struct session *s, int what, int32_t rows, int32_t n_ids, struct err *e)
{
    struct cursor *d = s->d;
    const struct kn_accept accept = {.ids = d->ids,
                                     .picks = d->picks,
                                     .n = rows,
                                     .n_ids = n_ids,
                                     .pos = d->pos,
                                     .history = s->d_history,
                                     .anchor = d->block,
                                     .first = &d->first,
                                     .window = s->o.draft_window,
                                     .kept = rows > 1 ? &d->pending : &d->kept,
                                     .number = &d->number,
                                     .stamp = d->stamp,
                                     .results = s->results,
                                     .n_results = SESSION_RESULTS,
                                     .behind = rows == 1 && s->every && !advances(what) ? &d->pending : NULL,
                                     .every = s->every};
    int rc = s->op->accept(s->be, &accept);
    return rc ? model_failed(s->target, "accept", rc, e) : 0;
}

/* Ids of a cycle, the anchor's among them: what is recorded has either a source's block or what is tried. */
static int32_t ids_of(const struct session *s, int what, int32_t rows)
{
    return drafts(what) ? s->o.block : rows;
}

/* The context takes all rows, at their positions before accept moves on. */
static int whole_cycle(struct session *s, int what, int32_t rows, struct err *e)
{
    const struct session_rows r = rows_at(s, rows);
    if (draft_part(s, what, e) || verify_part(s, what, rows, e)) return -1;
    if (session_run_context(s, &r, drafts(what), e)) return -1;
    return accept_part(s, what, rows, ids_of(s, what, rows), e);
}

/* ---- playing ---- */

static int launch(struct session *s, int what, int32_t rows, int32_t bound, struct err *e)
{
    int rc;
    kn_bound(s->be, bound);
    switch (what) {
    case SESSION_FORWARD: rc = forward_rows(s, rows, SESSION_TRIED, e); break;
    case SESSION_DRAFT: rc = s->source->op->propose(s, false, e); break;
    default: rc = whole_cycle(s, what, rows, e);
    }
    kn_bound(s->be, 0);
    return rc;
}

static bool records(const struct session *s)
{
    return s->op->replay && !s->o.check_layers; /* which waits after every layer */
}

static int record(struct session *s, int what, int32_t rows, int32_t bound, void **recording, struct err *e)
{
    int rc = s->op->record_begin(s->be);
    if (rc) return model_failed(s->target, "record", rc, e);
    int bad = launch(s, what, rows, bound, e);
    rc = s->op->record_end(s->be, recording);
    if (bad) {
        s->op->record_free(s->be, *recording);
        *recording = NULL;
        return -1;
    }
    return rc ? model_failed(s->target, "record", rc, e) : 0;
}

/* The i-th of the cycles that are started and not finished. */
static const struct session_started *running(const struct session *s, uint32_t i)
{
    return &s->begun[(s->finished + i) % SESSION_RESULTS];
}

/* No row of what comes next stands at this position or later, however many of the cycles that are running
 * keep all they can. */
static int32_t end_of_rows(const struct session *s, int32_t rows)
{
    int32_t end = s->n_past + (s->source && s->o.block > rows ? s->o.block : rows);
    for (uint32_t i = 0; i < s->started - s->finished; i++) end += running(s, i)->rows;
    return end;
}

/* A power of two of splits, so that a recording lasts until the context has doubled. */
static int32_t bound_of(int32_t end)
{
    int32_t bound = 4 * KN_KV_SPLIT;
    while (bound < end && bound <= INT32_MAX / 2) bound *= 2;
    return bound < end ? 0 : bound;
}

int session_play(struct session *s, int what, int32_t rows, struct err *e)
{
    void **r = &s->plays[what][rows].recording;
    int32_t end = end_of_rows(s, rows), *bound = &s->plays[what][rows].bound;
    bool *ran = &s->plays[what][rows].ran;
    int rc = 0;
    if (!records(s) || !*ran) {
        *ran = true;
        return launch(s, what, rows, end, e);
    }
    if (*r && (end <= *bound || !*bound)) {
        rc = s->op->replay(s->be, *r);
        if (rc == 0) return 0;
        if (rc != KN_ESTALE) return model_failed(s->target, "replay", rc, e);
    }
    if (*r) s->op->record_free(s->be, *r);
    *r = NULL;
    *bound = bound_of(end);
    if (record(s, what, rows, *bound, r, e)) return -1;
    rc = s->op->replay(s->be, *r);
    return rc ? model_failed(s->target, "replay", rc, e) : 0;
}

static void forget(struct session *s, int what)
{
    for (int32_t i = 0; i <= SESSION_MAX_ROWS; i++) {
        if (s->plays[what][i].recording) s->op->record_free(s->be, s->plays[what][i].recording);
        s->plays[what][i].recording = NULL;
    }
}

void session_plays_free(struct session *s)
{
    for (int what = 0; what < SESSION_PLAYS; what++) forget(s, what);
}

/* ---- cycles ---- */

static bool same_sampler(const struct kn_sampler *a, const struct kn_sampler *b)
{
    return a->temp == b->temp && a->top_p == b->top_p && a->min_p == b->min_p &&
           a->repeat_penalty == b->repeat_penalty && a->top_k == b->top_k &&
           a->repeat_last == b->repeat_last && a->seed == b->seed;
}

int session_cycles_begin(struct session *s, int32_t anchor, const struct kn_sampler *sampler, struct err *e)
{
    if (!same_sampler(&s->sampler, sampler))
        for (int what = SESSION_CYCLE; what < SESSION_PLAYS; what++) forget(s, what);
    if (!s->source && s->tried && session_settle(s, e)) return -1;
    if (session_turn(s, e)) return -1;
    s->sampler = *sampler;
    s->accepted = 0;
    s->finished = s->started; /* of cycles before: what was started ahead and not wanted */
    s->logits_rows = 0;
    s->anchored = true;
    s->history[s->n_past] = anchor;
    int rc = s->op->upload(s->be, s->d_history + s->n_past, &anchor, sizeof anchor);
    if (rc) return model_failed(s->target, "upload", rc, e);
    return session_place(s, &anchor, 1, e);
}

/* ---- recurrent state: what is pending, and what a cycle does about it ---- */

struct pending {
    int32_t n;
    bool tried;
};

static struct pending pending_after(struct pending p, const struct session_started *b, int32_t kept)
{
    if (b->rows > 1) return (struct pending){kept, true};
    if (b->takes) return (struct pending){0, false};
    return (struct pending){p.n + 1, false};
}

/* What will be pending when all that runs is finished. false: that is not known before. */
static bool pending_next(const struct session *s, struct pending *p)
{
    *p = (struct pending){s->pending, s->tried};
    for (uint32_t i = 0; i < s->started - s->finished; i++) {
        if (running(s, i)->rows > 1) return false;
        *p = pending_after(*p, running(s, i), 1);
    }
    return true;
}

/* Is the state taken over the row of a cycle of one? */
static bool takes_row(const struct session *s, struct pending p)
{
    return !s->every || p.n + 1 >= s->every || (p.tried && p.n);
}

int32_t session_cycles_ahead(const struct session *s, const struct plan *p)
{
    struct pending next;
    if (!records(s) || (p->draft && s->source && s->source->op->look)) return 0;
    if (!s->delta) return 1;
    return pending_next(s, &next) && (p->rows > 1 || !takes_row(s, next));
}

/* How a cycle of so many rows treats what is pending. Rows that were tried lie otherwise in the log than
 * those that every counts, and are taken along with the first that is not. */
static int choose_fate(struct session *s, struct session_started *b, struct err *e)
{
    struct pending p;
    if (!s->delta || b->rows > 1) return 0;
    if (!pending_next(s, &p)) return err_set(e, ERR_USAGE, "a cycle was started before its time");
    b->takes = takes_row(s, p);
    if (p.n && (p.tried || !s->every)) b->play |= SESSION_ADVANCES;
    return 0;
}

/* ---- starting ---- */

/* A source on the host is asked; what it proposes goes behind the anchor. */
static int look(struct session *s, struct session_started *b, struct err *e)
{
    int32_t ids[SESSION_MAX_ROWS], n = 0;
    if (b->rows > 1 && s->source->op->look(s, s->history, s->n_past + 1, b->rows - 1, ids, &n, e)) return -1;
    for (int32_t i = 0; i < n; i++)
        if (n >= b->rows || ids[i] < 0 || ids[i] >= s->target->d->n_vocab)
            return err_set(e, ERR_FORMAT,
                           "source %s: proposal %d of %d is none (expected at most %d ids below %d, got %d)",
                           s->source->op->name, i, n, b->rows - 1, s->target->d->n_vocab, ids[i]);
    b->rows = b->n_ids = 1 + n;
    int rc = n ? s->op->upload(s->be, s->d->ids + 1, ids, (size_t)n * sizeof *ids) : 0;
    return rc ? model_failed(s->target, "proposals", rc, e) : 0;
}

/* Rows that can matter: as far as tokens are wanted, and no proposals where one of a drafter's is none. */
static int fewer_rows(struct session *s, struct session_started *b, int64_t most, struct err *e)
{
    int32_t ids[SESSION_MAX_ROWS];
    if (b->rows > most) b->rows = most < 1 ? 1 : (int32_t)most;
    if (b->rows == 1 || !drafts(b->play)) return 0;
    int rc = s->op->download(s->be, ids, s->d->ids, (size_t)b->n_ids * sizeof *ids);
    if (rc) return model_failed(s->target, "proposals", rc, e);
    for (int32_t i = 1; i < b->n_ids; i++)
        if (ids[i] == KN_PICK_NAN) b->rows = 1;
    return 0;
}

/* Part by part, with the host between them; only rows that stay become context. */
static int cycle_in_parts(struct session *s, struct session_started *b, int64_t most, struct err *e)
{
    const struct kn_result *r = &s->results[s->started % SESSION_RESULTS];
    int bad = -1;
    kn_bound(s->be, end_of_rows(s, b->rows));
    if (draft_part(s, b->play, e) || fewer_rows(s, b, most, e) || choose_fate(s, b, e)) goto out;
    s->trying = true;
    s->fault = (struct fault){INT32_MAX, 0};
    if (verify_part(s, b->play, b->rows, e) || accept_part(s, b->play, b->rows, b->n_ids, e)) goto out;
    int rc = s->op->await(s->be, &r->number, s->started + 1);
    const struct session_rows kept = {.pos = s->g->d_pos + r->pos, .n = r->kept, .first_pos = r->pos};
    bad = rc ? model_failed(s->target, "cycle", rc, e) : session_run_context(s, &kept, false, e);
out:
    s->trying = false;
    kn_bound(s->be, 0);
    return bad;
}

static int whole(struct session *s, struct session_started *b, struct err *e)
{
    return choose_fate(s, b, e) || session_play(s, b->play, b->rows, e) ? -1 : 0;
}

int session_cycle_start(struct session *s, const struct plan *p, int64_t most, struct err *e)
{
    const bool looks = p->draft && s->source && s->source->op->look;
    struct session_started b = {
        .rows = p->rows, .planned = p->rows, .n_ids = 1, .drafted = p->draft, .play = SESSION_CYCLE};
    if (p->draft && !s->source)
        return err_set(e, ERR_USAGE, "a plan with proposals (expected none: there is no source)");
    if (plan_check(p, s->source ? s->o.block : 1, e)) return -1;
    if (!p->rows) return err_set(e, ERR_USAGE, "a plan without rows (expected 1 to %d, got 0)", s->o.block);
    if ((int32_t)(s->started - s->finished) > session_cycles_ahead(s, p))
        return err_set(e, ERR_USAGE, "a cycle was started before its time (expected %d running, got %d)",
                       session_cycles_ahead(s, p), (int)(s->started - s->finished));
    if (session_turn(s, e) || (looks && look(s, &b, e))) return -1;
    if (p->draft && !looks) b.play |= SESSION_DRAFTS, b.n_ids = s->o.block;
    if (records(s) ? whole(s, &b, e) : cycle_in_parts(s, &b, most, e)) return -1;
    if (advances(b.play)) { /* nothing is pending behind it */
        const int32_t none = 0;
        int rc = s->op->upload(s->be, &s->d->pending, &none, sizeof none);
        if (rc) return model_failed(s->target, "upload", rc, e);
    }
    s->begun[s->started++ % SESSION_RESULTS] = b;
    return 0;
}

/* ---- finishing ---- */

static double seconds(uint64_t from, uint64_t to)
{
    return to > from ? 1e-9 * (double)(to - from) : 0;
}

int session_cycle_finish(struct session *s, struct session_cycle *c, struct err *e)
{
    uint32_t i = s->finished % SESSION_RESULTS;
    const struct kn_result *r = &s->results[i];
    const struct session_started *b = &s->begun[i];
    int rc = s->op->await(s->be, &r->number, s->finished + 1);
    if (rc) return model_failed(s->target, "cycle", rc, e);
    s->finished++;
    *c = (struct session_cycle){.pos = r->pos,
                                .rows = b->rows,
                                .planned = b->planned,
                                .kept = r->kept,
                                .n_ids = b->n_ids,
                                .drafted = b->drafted,
                                .usable = r->usable,
                                .ids = r->ids,
                                .picks = r->picks};
    c->draft_s = drafts(b->play) ? seconds(r->stamp[0], r->stamp[1]) : 0;
    c->verify_s = seconds(r->stamp[drafts(b->play) ? 1 : 0], r->stamp[2]);
    c->commit_s = seconds(r->stamp[2], r->accepted);
    c->idle_s = s->accepted ? seconds(s->accepted, r->stamp[0]) : 0;
    s->accepted = r->accepted;
    memcpy(s->history + r->pos + 1, r->picks, (size_t)r->kept * sizeof *r->picks);
    s->n_past = r->pos + r->kept;
    if (s->delta) {
        const struct pending p = pending_after((struct pending){s->pending, s->tried}, b, r->kept);
        s->pending = p.n, s->tried = p.tried;
    }
    return 0;
}

int session_cycles_end(struct session *s, int32_t n_past, struct err *e)
{
    const uint32_t ahead = s->started - s->finished;
    if (s->delta) {
        /* Several rows that were tried replayed what was pending, and are in the log themselves. */
        if (ahead && running(s, 0)->takes)
            return err_set(e, ERR_USAGE, "cycles end before one that was not started ahead is finished");
        s->pending = ahead && running(s, 0)->rows > 1 ? 0 : s->pending - (s->n_past - n_past);
        int rc = ahead || n_past < s->n_past
                     ? s->op->upload(s->be, &s->d->pending, &s->pending, sizeof s->pending)
                     : 0;
        if (rc) return model_failed(s->target, "upload", rc, e);
    }
    s->n_past = n_past;
    s->logits_rows = 0;
    return 0;
}
