/* play.c - the parts of a step and of a cycle: sequences of operations on a session's buffers, launched one
 * by one, or recorded and replayed. See session_impl.h. */
#include "session_impl.h"

/* ---- the operations ---- */

/* Rows of the cursor. */
static struct session_rows rows_at(struct session *s, int32_t n)
{
    return (struct session_rows){.ids = s->d->ids, .pos = s->d->pos, .n = n, .first_pos = s->n_past};
}

static int forward_rows(struct session *s, int32_t n, enum session_fate fate, struct err *e)
{
    const struct session_rows r = rows_at(s, n);
    return session_run_target(s, &r, fate, e) || session_run_head(s, s->target, 0, n, e) ||
                   session_leave_hidden(s, n, e)
               ? -1
               : 0;
}

static int stamp(struct session *s, int i, struct err *e)
{
    int rc = s->op->stamp(s->be, &s->d->stamp[i]);
    return rc ? model_failed(s->target, "stamp", rc, e) : 0;
}

static bool looks_back(const struct kn_sampler *sampler)
{
    return (sampler->repeat_penalty != 1 || sampler->presence != 0 || sampler->frequency != 0) &&
           sampler->repeat_last > 0;
}

static bool advances(int what)
{
    return what == SESSION_PLAIN_ADVANCES || what == SESSION_VERIFY_ADVANCES;
}

static int offer_part(struct session *s, int32_t source, struct err *e)
{
    struct session_source *x = &s->by[source - 1];
    struct cursor *d = s->d;
    const struct kn_offering offering = {.ids = d->ids,
                                         .logp = d->logp,
                                         .pos = d->pos,
                                         .n = x->block,
                                         .stamp = &d->stamp[1],
                                         .number = &d->offered,
                                         .offers = s->offers,
                                         .n_offers = SESSION_RESULTS,
                                         .top_ids = x->n_top ? s->top_ids : NULL,
                                         .top_values = s->top_values,
                                         .top_scores = x->of->edges ? s->top_scores : NULL,
                                         .top = x->n_top,
                                         .candidates = s->candidates};
    if (stamp(s, 0, e) || x->of->op->propose(s, x, false, e)) return -1;
    int rc = s->op->offer(s->be, &offering);
    return rc ? model_failed(s->target, "offer", rc, e) : 0;
}

/* A row alone stays: recurrent state takes it along at once, or it stays pending like those before it, until
 * there are s->every. */
static enum session_fate fate_of(int what, int32_t rows)
{
    return rows > 1 ? SESSION_TRIED : advances(what) ? SESSION_ADVANCED : SESSION_FINAL;
}

static int accept_part(struct session *s, int what, int32_t rows, struct err *e)
{
    struct cursor *d = s->d;
    const struct kn_accept accept = {.ids = d->ids,
                                     .picks = d->picks,
                                     .n = rows,
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
                                     .every = s->every,
                                     .equal = s->g->equal,
                                     .tree = what == SESSION_TREE ? s->tree : NULL};
    int rc = s->op->accept(s->be, &accept);
    return rc ? model_failed(s->target, "accept", rc, e) : 0;
}

/* A tree's rows that stay are where a chain's would be. A plain row's features wait. Of a verify all rows
 * become context where what is kept is not known to the host in time, at their positions before accept moves
 * on. */
static int commit_part(struct session *s, int what, int32_t rows, struct err *e)
{
    const struct session_rows r = rows_at(s, rows);
    const bool plain = what == SESSION_PLAIN || what == SESSION_PLAIN_ADVANCES;
    if (what == SESSION_TREE) {
        const struct session_rows kept = session_tree_kept(s, session_tree_depth(s, rows));
        if (session_tree_settle(s, rows, true, e)) return -1;
        return session_records(s) ? session_run_context(s, &kept, SESSION_GATHERED, e) : 0;
    }
    if (!plain) return session_records(s) ? session_run_context(s, &r, SESSION_OF_PASS, e) : 0;
    int rc = 0;
    for (int32_t i = 0; i < s->n_sources && !rc; i++) {
        const struct session_source *x = &s->by[i];
        if (x->kept) rc = s->op->keep(s->be, x->kept, SESSION_MAX_ROWS, r.pos, x->features, rows, x->width);
    }
    return rc ? model_failed(s->target, "keep", rc, e) : 0;
}

static int verify_part(struct session *s, int what, int32_t rows, struct err *e)
{
    const bool tree = what == SESSION_TREE;
    const struct kn_pick pick = {.logits = s->g->logits,
                                 .pos = tree ? s->tree->pos : s->d->pos,
                                 .history = s->d_history,
                                 .n = rows,
                                 .n_vocab = s->target->d->n_vocab,
                                 .sampler = s->sampler,
                                 .out = s->d->picks,
                                 .tree = tree ? s->tree : NULL};
    int rc = 0;
    if (stamp(s, 2, e)) return -1;
    if (rows > 1 && !tree && looks_back(&s->sampler))
        rc = s->op->place(s->be, s->d_history, s->d->pos, s->d->ids, rows);
    if (rc) return model_failed(s->target, "place", rc, e);
    if (tree ? session_tree_forward(s, rows, e) : forward_rows(s, rows, fate_of(what, rows), e)) return -1;
    rc = s->op->pick(s->be, &pick);
    if (rc) return model_failed(s->target, "pick", rc, e);
    if (stamp(s, 3, e) || commit_part(s, what, rows, e)) return -1;
    return accept_part(s, what, rows, e);
}

/* ---- playing ---- */

bool session_records(const struct session *s)
{
    return s->op->replay && !s->o.check_layers; /* which waits after every layer */
}

static int launch(struct session *s, int what, int32_t rows, int32_t bound, struct err *e)
{
    int rc;
    kn_bound(s->be, bound);
    switch (what) {
    case SESSION_FORWARD: rc = forward_rows(s, rows, SESSION_TRIED, e); break;
    case SESSION_DRAFT: rc = s->by[rows - 1].of->op->propose(s, &s->by[rows - 1], false, e); break;
    case SESSION_OFFER: rc = offer_part(s, rows, e); break;
    case SESSION_TREE_FORWARD: rc = session_tree_forward(s, rows, e); break;
    default: rc = verify_part(s, what, rows, e);
    }
    kn_bound(s->be, 0);
    return rc;
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

/* No row of what comes next stands at this position or later, however many of the cycles that are running
 * keep all they can. */
static int32_t end_of_rows(const struct session *s, int32_t rows)
{
    const int32_t block = session_block(s);
    int32_t end = s->n_past + (block > rows ? block : rows);
    for (uint32_t i = s->finished; i != s->started; i++) end += s->begun[i % SESSION_RESULTS].rows;
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
    if (!session_records(s) || !*ran) {
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
    *bound = bound_of(end > s->reach ? end : s->reach);
    if (record(s, what, rows, *bound, r, e)) return -1;
    rc = s->op->replay(s->be, *r);
    return rc ? model_failed(s->target, "replay", rc, e) : 0;
}

void session_plays_forget(struct session *s, int from)
{
    for (int what = from; what < SESSION_PLAYS; what++)
        for (int32_t i = 0; i <= SESSION_MAX_ROWS; i++) {
            if (s->plays[what][i].recording) s->op->record_free(s->be, s->plays[what][i].recording);
            s->plays[what][i].recording = NULL;
        }
}
