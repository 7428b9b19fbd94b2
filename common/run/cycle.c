/* cycle.c - see cycle.h. What is launched is in play.c. */
#include "cycle.h"
#include "pages.h"
#include "session_impl.h"
#include "tree.h"

#include <string.h>

static bool same_sampler(const struct kn_sampler *a, const struct kn_sampler *b)
{
    return a->temp == b->temp && a->top_p == b->top_p && a->min_p == b->min_p &&
           a->repeat_penalty == b->repeat_penalty && a->top_k == b->top_k &&
           a->repeat_last == b->repeat_last && a->seed == b->seed && a->presence == b->presence &&
           a->frequency == b->frequency && a->order == b->order && a->n_bias == b->n_bias &&
           a->bias == b->bias;
}

void session_use_sampler(struct session *s, const struct kn_sampler *sampler)
{
    if (!same_sampler(&s->sampler, sampler)) session_plays_forget(s, SESSION_DRAFT);
    s->sampler = *sampler;
}

int session_cycles_begin(struct session *s, int32_t anchor, const struct kn_sampler *sampler, struct err *e)
{
    session_use_sampler(s, sampler);
    if (session_anchor_check(s, e)) return -1;
    if (!s->source && s->tried && session_settle(s, e)) return -1;
    if (session_turn(s, e) || session_catch_up(s, e)) return -1;
    s->accepted = 0;
    s->finished = s->started, s->open = false; /* of cycles before: what was started ahead and not wanted */
    s->logits_rows = s->look_same = 0;
    s->anchored = true;
    s->history[s->n_past] = anchor;
    int rc = s->op->upload(s->be, s->d_history + s->n_past, &anchor, sizeof anchor);
    if (rc) return model_failed(s->target, "upload", rc, e);
    return session_place(s, &anchor, 1, e);
}

/* ---- recurrent state: what is pending, and what a cycle does about it ---- */

static uint32_t running(const struct session *s)
{
    return s->started - s->finished;
}

/* The i-th of the cycles that run. */
static const struct session_started *runs(const struct session *s, uint32_t i)
{
    return &s->begun[(s->finished + i) % SESSION_RESULTS];
}

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
    for (uint32_t i = 0; i < running(s); i++) {
        if (runs(s, i)->rows > 1) return false;
        *p = pending_after(*p, runs(s, i), 1);
    }
    return true;
}

/* Is the state taken over the row of a cycle of one? */
static bool takes_row(const struct session *s, struct pending p)
{
    return !s->every || p.n + 1 >= s->every || (p.tried && p.n);
}

/* Does the session's own source propose on the host? */
static bool looks(const struct session *s, const struct plan *p)
{
    return p->draft && s->by[p->draft - 1].of->op->look;
}

/* Who is asked on the host; NULL: nobody. */
static struct session_source *asked(struct session *s)
{
    if (s->source && s->source->op->look) return &s->by[0];
    return s->o.look ? &s->look : NULL;
}

/* Of the source that b's proposals are of. */
static int32_t block_of(const struct session *s, const struct session_started *b)
{
    return s->by[b->source - 1].block;
}

int32_t session_cycles_ahead(const struct session *s, const struct plan *p)
{
    struct pending next;
    if (!session_records(s) || looks(s, p) || s->pool) return 0;
    if (!s->delta || !p->rows) return 1;
    return pending_next(s, &next) && (p->rows > 1 || !takes_row(s, next));
}

/* What a cycle of b's rows is played as, for what is pending. Rows that were tried lie otherwise in the log
 * than those that every counts, and are taken along with the first that is not. */
static int choose_play(struct session *s, struct session_started *b, int *play, struct err *e)
{
    struct pending p;
    const bool plain = !b->offer && b->rows == 1;
    *play = plain ? SESSION_PLAIN : b->tree ? SESSION_TREE : SESSION_VERIFY;
    if (!s->delta || b->rows > 1) return 0;
    if (!pending_next(s, &p)) return err_set(e, ERR_USAGE, "a cycle was started before its time");
    b->takes = takes_row(s, p);
    if (p.n && (p.tried || !s->every)) *play = plain ? SESSION_PLAIN_ADVANCES : SESSION_VERIFY_ADVANCES;
    return 0;
}

/* ---- what is proposed ---- */

static struct session_started *opened(struct session *s)
{
    return &s->begun[s->started % SESSION_RESULTS];
}

static const struct kn_offer *offer_of(const struct session *s, const struct session_started *b)
{
    return b->offer ? &s->offers[(b->offer - 1) % SESSION_RESULTS] : NULL;
}

static int await_offer(struct session *s, const struct session_started *b, struct err *e)
{
    int rc = s->op->await(s->be, &offer_of(s, b)->number, b->offer);
    return rc ? model_failed(s->target, "draft", rc, e) : 0;
}

/* The source on the host is asked, for at most so many proposals behind the last token that is known. */
static int ask(struct session *s, int32_t most, int32_t *ids, struct source_look *l, struct err *e)
{
    *l = (struct source_look){
        .history = s->history, .n = s->n_past + 1, .same = s->look_same, .most = most, .ids = ids};
    struct session_source *x = asked(s);
    if (x->of->op->look(s, x, l, e)) return -1;
    s->look_same = l->n;
    for (int32_t i = 0; i < l->found; i++)
        if (l->found > most || ids[i] < 0 || ids[i] >= s->target->d->n_vocab)
            return err_set(e, ERR_FORMAT,
                           "source %s: proposal %d of %d is none (expected at most %d ids below %d, got %d)",
                           x->of->op->name, i, l->found, most, s->target->d->n_vocab, ids[i]);
    return 0;
}

static int look(struct session *s, struct session_started *b, int32_t most, struct err *e)
{
    struct source_look l = {.found = 0};
    b->looked = true;
    if (most > 0 && ask(s, most, b->ids + 1, &l, e)) return -1;
    b->ids[0] = s->history[s->n_past];
    b->n_look = l.found;
    b->match = l.found ? l.match : 0;
    return 0;
}

int session_look_waits(struct session *s, bool *waits, struct err *e)
{
    int32_t id;
    struct source_look l;
    *waits = true;
    if (!running(s) || runs(s, 0)->rows > 1 || !asked(s)) return 0;
    if (ask(s, 1, &id, &l, e)) return -1;
    *waits = l.found > 0;
    return 0;
}

/* What the planner may know: behind await_offer, where there is an offer. */
static struct plan_offer offer_told(struct session *s, struct session_started *b, int32_t pos)
{
    const struct kn_offer *o = offer_of(s, b);
    struct plan_offer p = {.pos = pos, .source = b->source, .n_look = b->n_look, .match = b->match};
    if (o) p.n_draft = o->usable ? block_of(s, b) - 1 : 0, p.logp = o->logp;
    const struct session_synthetic *x = s->o.synthetic;
    if (o && s->by[b->source - 1].n_top) {
        struct session_ranked *c = session_ranked(s, b);
        p.top = c->logp, p.n_top = c->n_top;
        if (c->edges) p.behind = session_behind, p.behind_ctx = c;
    }
    if (o && x) p.logp = x->logp + (int64_t)(pos < x->n ? pos : x->n - 1) * x->slots;
    while (p.agree < p.n_draft && p.agree < p.n_look && o->ids[1 + p.agree] == b->ids[1 + p.agree]) p.agree++;
    return p;
}

/* ---- starting ---- */

/* Rows that wait for their context get it before a cycle that makes context of its own, and before a plain
 * one whose row would stand before theirs where they wait. All cycles that run are plain where rows wait, so
 * the next one's position is known. */
static int context_before(struct session *s, bool plain, struct err *e)
{
    const int32_t pos = s->n_past + (int32_t)running(s);
    if (!s->waiting || (plain && pos % SESSION_MAX_ROWS)) return 0;
    return session_make_context(s, pos, e);
}

/* The tree of b's nodes, to the device. */
static int place_tree(struct session *s, struct session_started *b, struct err *e)
{
    const struct session_ranked *c = session_ranked(s, b);
    int32_t parents[SESSION_MAX_ROWS], depth[SESSION_MAX_ROWS] = {0};
    b->ids[0] = s->history[s->n_past];
    for (int32_t r = 0; r < b->rows; r++) {
        parents[r] = c->nodes[r].parent;
        if (!r) continue;
        depth[r] = depth[parents[r]] + 1;
        b->ids[r] = c->ids[(depth[r] - 1) * c->n_top + c->nodes[r].rank];
    }
    return session_tree_place(s, b->ids, parents, b->rows, e);
}

/* Where the rows from n_past on stand in the caches: nothing runs, so that is known. */
static int place_rows(struct session *s)
{
    int32_t place[SESSION_MAX_ROWS];
    for (int32_t i = 0; i < SESSION_MAX_ROWS; i++) place[i] = s->n_past + i - pages_shift(s);
    return s->op->upload(s->be, s->d->place, place, sizeof place);
}

/* The rows of the cycle that is open. */
static int launch_rows(struct session *s, struct session_started *b, struct err *e)
{
    const uint32_t at = s->started % SESSION_RESULTS;
    int play, rc = 0;
    if (choose_play(s, b, &play, e)) return -1;
    const bool plain = play == SESSION_PLAIN || play == SESSION_PLAIN_ADVANCES;
    if (context_before(s, plain, e)) return -1;
    if (b->tree && place_tree(s, b, e)) return -1;
    if (s->pool && (rc = place_rows(s))) return model_failed(s->target, "places", rc, e);
    if (b->look) rc = s->op->upload(s->be, s->d->ids + 1, b->ids + 1, (size_t)(b->rows - 1) * sizeof *b->ids);
    if (rc) return model_failed(s->target, "proposals", rc, e);
    s->trying = !session_records(s);
    s->fault = (struct fault){INT32_MAX, 0};
    int bad = session_play(s, play, b->rows, e);
    s->trying = false;
    if (bad) return -1;
    s->started++;
    s->open = false;
    for (int32_t i = 0; plain && i < s->n_sources; i++)
        if (s->by[i].of->op->context) {
            s->waiting++;
            break;
        }
    if (play == SESSION_PLAIN_ADVANCES ||
        play == SESSION_VERIFY_ADVANCES) { /* nothing is pending behind it */
        const int32_t none = 0;
        rc = s->op->upload(s->be, &s->d->pending, &none, sizeof none);
        if (rc) return model_failed(s->target, "upload", rc, e);
    }
    if (session_records(s)) return 0;
    const struct kn_result *r = &s->results[at];
    rc = s->op->await(s->be, &r->number, s->started);
    const struct session_rows kept = {
        .ids = s->d_history + r->pos, .pos = s->g->d_pos + r->pos, .n = r->kept, .first_pos = r->pos};
    if (rc) return model_failed(s->target, "cycle", rc, e);
    return plain ? 0 : session_run_context(s, &kept, b->tree ? SESSION_GATHERED : SESSION_OF_PASS, e);
}

/* most: tokens still wanted. Where the host knows in time, no more rows, and none for proposals that are
 * none. */
static int verify(struct session *s, struct session_started *b, int64_t most, struct err *e)
{
    b->rows = b->planned;
    if (b->rows > pages_rows(s)) b->rows = pages_rows(s);
    if (!session_records(s) && !b->tree) {
        if (b->rows > most) b->rows = most < 1 ? 1 : (int32_t)most;
        if (b->offer && await_offer(s, b, e)) return -1;
        if (b->offer && !b->look && !offer_of(s, b)->usable) b->rows = 1;
    }
    if (b->rows == 1) b->look = b->tree = false;
    return launch_rows(s, b, e);
}

int session_cycle_start(struct session *s, const struct plan *p, int64_t most, struct err *e)
{
    struct session_started *b = opened(s);
    if (p->draft && !s->source)
        return err_set(e, ERR_USAGE, "a plan with proposals (expected none: there is no source)");
    if (p->draft < 0 || p->draft > s->n_sources)
        return err_set(e, ERR_USAGE, "a plan with proposals of source %d (expected 0 to %d)", p->draft,
                       s->n_sources);
    const int32_t longest = p->draft ? s->by[p->draft - 1].block : s->source ? s->o.block : 1;
    if (plan_check(p, longest, s->o.look, e)) return -1;
    if (s->open) return err_set(e, ERR_USAGE, "a cycle was started before the rows of the last one");
    if ((int32_t)running(s) > session_cycles_ahead(s, p))
        return err_set(e, ERR_USAGE, "a cycle was started before its time (expected %d running, got %d)",
                       session_cycles_ahead(s, p), (int)running(s));
    if (session_turn(s, e) || pages_turn(s, s->history[s->n_past], e)) return -1;
    *b = (struct session_started){.rows = p->rows, .planned = p->rows, .source = p->draft};
    if (p->draft && !looks(s, p)) {
        if (context_before(s, false, e) || session_play(s, SESSION_OFFER, p->draft, e)) return -1;
        b->offer = ++s->offered;
    }
    s->open = true;
    if (!p->rows) return 0;
    if (looks(s, p)) {
        if (look(s, b, p->rows - 1, e)) return -1;
        b->planned = 1 + b->n_look, b->look = b->n_look > 0;
    }
    return verify(s, b, most, e);
}

static int must_be_open(const struct session *s, struct err *e)
{
    if (s->open && !running(s)) return 0;
    return err_set(e, ERR_USAGE,
                   s->open ? "rows were asked for before the cycle before is finished (%d running)"
                           : "rows were asked for, and no cycle waits for any (%d running)",
                   (int)running(s));
}

int session_cycle_offer(struct session *s, struct plan_offer *o, const int32_t **ids, struct err *e)
{
    struct session_started *b = opened(s);
    if (must_be_open(s, e)) return -1;
    if (asked(s) && !b->looked && look(s, b, (asked(s) == &s->look ? s->o.look->rows : s->o.block) - 1, e))
        return -1; /* while the device drafts */
    if (b->offer && await_offer(s, b, e)) return -1;
    *o = offer_told(s, b, s->n_past);
    if (ids) *ids = b->offer ? offer_of(s, b)->ids : b->ids;
    return 0;
}

int session_cycle_verify(struct session *s, const struct plan_choice *c, int64_t most, struct err *e)
{
    struct session_started *b = opened(s);
    struct plan_offer o;
    if (must_be_open(s, e) || session_turn(s, e)) return -1;
    if (c->nodes && b->offer && await_offer(s, b, e)) return -1;
    if (b->offer && !c->look && !c->nodes)
        o = (struct plan_offer){.n_draft = block_of(s, b) - 1}; /* the device looks whether there are any */
    else
        o = offer_told(s, b, s->n_past);
    if (plan_choice_check(c, &o, e)) return -1;
    if (c->nodes && c->rows > s->o.tree + 1)
        return err_set(e, ERR_USAGE, "a tree of %d proposals (expected at most %d)", c->rows - 1, s->o.tree);
    b->planned = c->rows;
    b->look = c->look;
    b->tree = c->nodes && !tree_is_chain(c->nodes, c->rows);
    if (b->tree) memcpy(session_ranked(s, b)->nodes, c->nodes, (size_t)c->rows * sizeof *c->nodes);
    return verify(s, b, most, e);
}

/* ---- finishing ---- */

static double seconds(uint64_t from, uint64_t to)
{
    return to > from ? 1e-9 * (double)(to - from) : 0;
}

static void take_times(struct session *s, const struct kn_result *r, bool drafted, struct plan_result *t)
{
    t->draft_s = drafted ? seconds(r->stamp[0], r->stamp[1]) : 0;
    t->wait_s = drafted ? seconds(r->stamp[1], r->stamp[2]) : 0;
    t->verify_s = seconds(r->stamp[2], r->stamp[3]);
    t->commit_s = seconds(r->stamp[3], r->accepted);
    t->idle_s = s->accepted ? seconds(s->accepted, r->stamp[drafted ? 0 : 2]) : 0;
    s->accepted = r->accepted;
}

/* Which candidates the picks were. */
static void label_tree(struct session *s, struct session_started *b, const struct kn_result *r,
                       struct plan_result *t)
{
    struct session_ranked *c = session_ranked(s, b);
    t->labelled = t->offer.n_draft < r->kept ? t->offer.n_draft : r->kept;
    t->equal = 0;
    t->ranks = c->ranks;
    for (int32_t j = 0; j < t->labelled; j++) {
        const int32_t *ids = c->ids + j * c->n_top;
        int32_t k = 0;
        while (k < c->n_top && ids[k] != r->picks[j]) k++;
        c->ranks[j] = (int8_t)(k < c->n_top ? k : -1);
        if (t->equal == j && k == 0) t->equal++;
    }
}

/* ids: [1 + proposals] the chain. */
static void label(const struct session *s, const struct session_started *b, const struct kn_result *r,
                  const int32_t *ids, struct plan_result *t)
{
    const struct session_synthetic *x = s->o.synthetic;
    const int32_t n = b->look ? b->n_look : t->offer.n_draft;
    t->labelled = n < r->kept ? n : r->kept;
    t->equal = r->kept - 1;
    if (t->equal >= t->labelled)
        t->equal = t->labelled;
    else if (x && t->offer.n_draft)
        t->equal += x->equal[r->pos < x->n ? r->pos : x->n - 1] >= r->kept;
    else
        t->equal += ids[r->kept] == r->picks[r->kept - 1];
}

int session_cycle_finish(struct session *s, struct session_cycle *c, struct err *e)
{
    uint32_t i = s->finished % SESSION_RESULTS;
    const struct kn_result *r = &s->results[i];
    struct session_started *b = &s->begun[i];
    const struct kn_offer *offer = offer_of(s, b);
    if (!running(s)) return err_set(e, ERR_USAGE, "a cycle was to be finished, and none runs");
    int rc = s->op->await(s->be, &r->number, s->finished + 1);
    if (rc) return model_failed(s->target, "cycle", rc, e);
    s->finished++;
    *c = (struct session_cycle){
        .pos = r->pos, .rows = b->rows, .planned = b->planned, .kept = r->kept, .picks = r->picks};
    c->drafted = b->source;
    c->usable = !offer || offer->usable;
    c->ids = b->n_look ? b->ids : r->ids;
    c->n_ids = 1 + b->n_look;
    if (offer && !b->look) c->ids = offer->ids, c->n_ids = block_of(s, b);
    if (offer && offer->usable) c->block = offer->ids, c->n_block = block_of(s, b);
    c->tree = b->tree;
    if (b->tree) c->ids = r->ids, c->n_ids = r->kept, c->path = r->rows;
    struct plan_result *t = &c->result;
    t->offer = offer_told(s, b, r->pos);
    t->choice = (struct plan_choice){b->rows, b->look, b->tree ? session_ranked(s, b)->nodes : NULL};
    t->drafted = b->source;
    t->kept = r->kept;
    if (b->tree)
        label_tree(s, b, r, t);
    else
        label(s, b, r, c->ids, t);
    take_times(s, r, offer != NULL, t);
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
    const uint32_t ahead = running(s);
    if (session_catch_up(s, e)) return -1;
    if (s->delta) {
        /* Several rows that were tried replayed what was pending, and are in the log themselves. */
        if (ahead && runs(s, 0)->takes)
            return err_set(e, ERR_USAGE, "cycles end before one that was not started ahead is finished");
        s->pending = ahead && runs(s, 0)->rows > 1 ? 0 : s->pending - (s->n_past - n_past);
        int rc = ahead || n_past < s->n_past
                     ? s->op->upload(s->be, &s->d->pending, &s->pending, sizeof s->pending)
                     : 0;
        if (rc) return model_failed(s->target, "upload", rc, e);
    }
    s->n_past = n_past;
    s->open = false;
    s->logits_rows = 0;
    return 0;
}
