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

int session_draft_rows(struct session *s, bool all_rows, struct err *e)
{
    int32_t skip = all_rows ? 0 : 1, n = s->o.block;
    const struct kn_pick pick = {.logits = s->logits + (all_rows ? s->target->d->n_vocab : 0),
                                 .pos = s->d->pos + 1,
                                 .history = s->d_history,
                                 .n = n - 1,
                                 .n_vocab = s->target->d->n_vocab,
                                 .sampler = {.top_p = 1, .repeat_penalty = 1}, /* greedy */
                                 .out = s->d->ids + 1};
    if (session_run_block(s, e) || session_run_head(s, s->drafter, skip, n - skip, e)) return -1;
    int rc = s->op->pick(s->be, &pick);
    return rc ? model_failed(s->drafter, "pick", rc, e) : 0;
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

/* Without a drafter the row of a cycle is the anchor alone, which always stays: recurrent state takes it
 * along at once, and nothing is left to be replayed, or it stays pending like those before it, until there
 * are s->every. */
static bool all_stay(const struct session *s)
{
    return !s->drafter;
}

static int draft_part(struct session *s, struct err *e)
{
    if (stamp(s, 0, e)) return -1;
    return s->drafter && (session_draft_rows(s, false, e) || stamp(s, 1, e)) ? -1 : 0;
}

static int verify_part(struct session *s, int32_t rows, struct err *e)
{
    const struct kn_pick pick = {.logits = s->logits,
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
    if (forward_rows(s, rows, all_stay(s) ? SESSION_FINAL : SESSION_TRIED, e)) return -1;
    rc = s->op->pick(s->be, &pick);
    return rc ? model_failed(s->target, "pick", rc, e) : stamp(s, 2, e);
}

static int accept_part(struct session *s, int32_t rows, struct err *e)
{
    struct cursor *d = s->d;
    const struct kn_accept accept = {.ids = d->ids,
                                     .picks = d->picks,
                                     .n = rows,
                                     .n_ids = s->drafter ? s->o.block : 1,
                                     .pos = d->pos,
                                     .history = s->d_history,
                                     .anchor = d->block,
                                     .first = &d->first,
                                     .window = s->o.draft_window,
                                     .kept = all_stay(s) ? &d->kept : &d->pending,
                                     .number = &d->number,
                                     .stamp = d->stamp,
                                     .results = s->results,
                                     .n_results = SESSION_RESULTS,
                                     .behind = all_stay(s) && s->every ? &d->pending : NULL,
                                     .every = s->every};
    int rc = s->op->accept(s->be, &accept);
    return rc ? model_failed(s->target, "accept", rc, e) : 0;
}

/* The context takes all rows, at their positions before accept moves on. */
static int whole_cycle(struct session *s, int32_t rows, struct err *e)
{
    const struct session_rows r = rows_at(s, rows);
    if (draft_part(s, e) || verify_part(s, rows, e)) return -1;
    if (session_run_context(s, &r, rows <= s->o.block, e)) return -1;
    return accept_part(s, rows, e);
}

/* ---- playing ---- */

static int launch(struct session *s, enum session_play what, int32_t rows, int32_t bound, struct err *e)
{
    int rc;
    kn_bound(s->be, bound);
    switch (what) {
    case SESSION_FORWARD: rc = forward_rows(s, rows, SESSION_TRIED, e); break;
    case SESSION_DRAFT: rc = session_draft_rows(s, false, e); break;
    default: rc = whole_cycle(s, rows, e);
    }
    kn_bound(s->be, 0);
    return rc;
}

static bool records(const struct session *s)
{
    return s->op->replay && !s->o.check_layers; /* which waits after every layer */
}

static int record(struct session *s, enum session_play what, int32_t rows, int32_t bound, void **recording,
                  struct err *e)
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

/* No row of what comes next stands at this position or later, however many of the cycles that are running
 * keep all they can. */
static int32_t end_of_rows(const struct session *s, int32_t rows)
{
    int32_t most = s->drafter && s->o.block > rows ? s->o.block : rows;
    return s->n_past + (int32_t)(s->started - s->finished) * s->width + most;
}

/* A power of two of splits, so that a recording lasts until the context has doubled. */
static int32_t bound_of(int32_t end)
{
    int32_t bound = 4 * KN_KV_SPLIT;
    while (bound < end && bound <= INT32_MAX / 2) bound *= 2;
    return bound < end ? 0 : bound;
}

int session_play(struct session *s, enum session_play what, int32_t rows, struct err *e)
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

static void forget(struct session *s, enum session_play what)
{
    for (int32_t i = 0; i <= SESSION_MAX_ROWS; i++) {
        if (s->plays[what][i].recording) s->op->record_free(s->be, s->plays[what][i].recording);
        s->plays[what][i].recording = NULL;
    }
}

void session_plays_free(struct session *s)
{
    for (int what = 0; what < SESSION_PLAYS; what++) forget(s, (enum session_play)what);
}

/* ---- cycles ---- */

static bool same_sampler(const struct kn_sampler *a, const struct kn_sampler *b)
{
    return a->temp == b->temp && a->top_p == b->top_p && a->min_p == b->min_p &&
           a->repeat_penalty == b->repeat_penalty && a->top_k == b->top_k &&
           a->repeat_last == b->repeat_last && a->seed == b->seed;
}

int session_cycles_begin(struct session *s, int32_t anchor, int32_t width, const struct kn_sampler *sampler,
                         struct err *e)
{
    if (!same_sampler(&s->sampler, sampler)) forget(s, SESSION_CYCLE);
    if (all_stay(s) && session_settle(s, e)) return -1;
    s->sampler = *sampler;
    s->width = s->drafter ? width : 1;
    s->accepted = 0;
    s->finished = s->started; /* of cycles before: what was started early and not wanted */
    s->history[s->n_past] = anchor;
    int rc = s->op->upload(s->be, s->d_history + s->n_past, &anchor, sizeof anchor);
    if (rc) return model_failed(s->target, "upload", rc, e);
    return session_place(s, &anchor, 1, e);
}

int32_t session_cycles_ahead(const struct session *s)
{
    return records(s) ? 1 : 0;
}

/* Part by part: the host looks at the proposals and verifies what can matter. */
static int cycle_in_parts(struct session *s, int64_t most, int32_t *rows, struct err *e)
{
    int32_t ids[SESSION_MAX_ROWS];
    kn_bound(s->be, end_of_rows(s, s->width));
    if (draft_part(s, e)) return -1;
    *rows = s->width < most ? s->width : (int32_t)most;
    if (*rows > 1) {
        int rc = s->op->download(s->be, ids, s->d->ids, (size_t)s->o.block * sizeof *ids);
        if (rc) return model_failed(s->drafter, "proposals", rc, e);
        for (int32_t i = 1; i < s->o.block; i++)
            if (ids[i] == KN_PICK_NAN) *rows = 1;
    }
    s->trying = true;
    s->fault = (struct fault){INT32_MAX, 0};
    int rc = verify_part(s, *rows, e) || accept_part(s, *rows, e) ? -1 : 0;
    s->trying = false;
    kn_bound(s->be, 0);
    return rc;
}

int session_cycle_start(struct session *s, int64_t most, struct err *e)
{
    int32_t rows = s->width;
    int bad = records(s) ? session_play(s, SESSION_CYCLE, rows, e) : cycle_in_parts(s, most, &rows, e);
    if (bad) return -1;
    s->started_rows[s->started++ % SESSION_RESULTS] = rows;
    return 0;
}

static double seconds(uint64_t from, uint64_t to)
{
    return to > from ? 1e-9 * (double)(to - from) : 0;
}

int session_cycle_finish(struct session *s, struct session_cycle *c, struct err *e)
{
    uint32_t i = s->finished % SESSION_RESULTS;
    const struct kn_result *r = &s->results[i];
    int rc = s->op->await(s->be, &r->number, s->finished + 1);
    if (rc) return model_failed(s->target, "cycle", rc, e);
    s->finished++;
    *c = (struct session_cycle){.pos = r->pos,
                                .rows = s->started_rows[i],
                                .kept = r->kept,
                                .usable = r->usable,
                                .ids = r->ids,
                                .picks = r->picks};
    c->draft_s = s->drafter ? seconds(r->stamp[0], r->stamp[1]) : 0;
    c->verify_s = seconds(r->stamp[s->drafter ? 1 : 0], r->stamp[2]);
    c->commit_s = seconds(r->stamp[2], r->accepted);
    c->idle_s = s->accepted ? seconds(s->accepted, r->stamp[0]) : 0;
    s->accepted = r->accepted;
    memcpy(s->history + r->pos + 1, r->picks, (size_t)r->kept * sizeof *r->picks);
    if (!records(s)) {
        const struct session_rows kept = {.pos = s->d_pos + r->pos, .n = r->kept, .first_pos = r->pos};
        if (session_run_context(s, &kept, false, e)) return -1;
    }
    s->n_past = r->pos + r->kept;
    if (s->delta && !all_stay(s)) s->pending = r->kept;
    if (s->every && all_stay(s)) s->pending = (s->pending + r->kept) % s->every;
    return 0;
}

void session_cycles_end(struct session *s, int32_t n_past)
{
    if (s->delta && !all_stay(s)) s->pending -= s->n_past - n_past;
    s->spent = s->delta && (s->started != s->finished || (all_stay(s) && n_past != s->n_past));
    s->n_past = n_past;
    s->logits_rows = 0;
}
