/* spec.c - see spec.h. */
#include "spec.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <time.h>
#include "cycle.h"
#include "../base/mem.h"
#include "session_impl.h"
#include "tree.h"

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool is_stop(const struct spec_options *o, int32_t id)
{
    for (int32_t i = 0; i < o->n_stops; i++)
        if (o->stops[i] == id) return true;
    return false;
}

/* Tokens with the logits that they were picked from: rows of the session's, from the first on or those of a
 * path. */
static int show_picked(const struct session *s, const struct spec_options *o, const int32_t *ids,
                       const int32_t *path, int32_t n, struct err *e)
{
    const int32_t n_vocab = s->target->d->n_vocab;
    const size_t bytes = (size_t)n_vocab * sizeof(float);
    int rc = 0;
    for (int32_t i = 0; i < n && rc == 0; i++) {
        const size_t row = path ? (size_t)path[i] : (size_t)i;
        rc = s->op->download(s->be, o->row, s->g->logits + row * (size_t)n_vocab, bytes);
        rc = rc ? model_failed(s->target, "logits", rc, e) : o->picked(o->ctx, ids[i], o->row, n_vocab, e);
    }
    return rc;
}

/* Hand out ids, picked from the first rows of the session's logits, or those of a path, up to the first stop;
 * *ended where there is one. */
static int write_out(const struct session *s, const struct spec_options *o, struct spec_stats *st,
                     const int32_t *ids, const int32_t *path, int32_t n, bool *ended, struct err *e)
{
    int32_t k = 0;
    *ended = false;
    while (k < n && !*ended) {
        const int32_t id = ids[k++];
        const bool stop = is_stop(o, id), text = o->ends && o->ends(o->ctx, id);
        *ended = stop || text;
        if (!*ended) continue;
        st->stop = stop ? SPEC_STOP_TOKEN : SPEC_STOP_TEXT;
        st->stop_id = id;
    }
    if (o->picked && show_picked(s, o, ids, path, k, e)) return -1;
    st->generated += k;
    return o->tokens ? o->tokens(o->ctx, ids, k, e) : 0;
}

static bool interrupted(const struct spec_options *o, struct spec_stats *st)
{
    if (st->generated == o->n || !o->interrupted || !o->interrupted(o->ctx)) return false;
    st->stop = SPEC_STOP_INTERRUPT;
    return true;
}

static int write_draft_rows(struct session *s, const struct spec_options *o, struct err *e)
{
    int32_t n_vocab = s->target->d->n_vocab;
    float *row = mem_alloc((size_t)n_vocab * sizeof *row);
    int rc = row ? 0 : err_set(e, ERR_IO, "out of memory (a row of logits)");
    for (int32_t i = 0; i < s->logits_rows && rc == 0; i++) {
        rc = session_logits(s, i, row, e);
        if (rc == 0) rc = o->draft_row(o->ctx, row, n_vocab, e);
    }
    mem_free(row);
    return rc;
}

/* The logits of the first block, from a draft of their own: the same bits as the first cycle's. */
static int block_logits(struct session *s, const struct spec_options *o, int32_t anchor, struct err *e)
{
    int32_t proposals[SESSION_MAX_ROWS];
    bool usable;
    if (!s->source || !o->draft_logits || !o->draft_row) return 0;
    return session_draft(s, anchor, proposals, &usable, true, e) || write_draft_rows(s, o, e) ? -1 : 0;
}

/* Count a cycle of which rows rows can matter, where the setting allows full. */
static void count_cycle(struct spec_stats *st, const struct session_cycle *c, int32_t accepted, int32_t rows,
                        int32_t full)
{
    bool would_go_on =
        c->tree ? c->kept > rows : accepted == rows - 1 && rows < full && c->picks[accepted] == c->ids[rows];
    st->cycles++;
    st->accepted[accepted]++;
    if (would_go_on) return;
    st->full_cycles++;
    st->full_accepted += accepted;
}

/* What a finished cycle says: counts, proposals, tokens. Rows beyond the tokens that are wanted do not exist,
 * whether they were verified or not. *kept: rows of it that are written, or stay without having been. */
static int take_cycle(const struct session *s, const struct spec_options *o, struct spec_stats *st,
                      const struct session_cycle *c, int32_t *kept, bool *ended, struct err *e)
{
    int64_t wanted = o->n - st->generated;
    const bool look = c->result.choice.look, none = !look && !c->usable;
    int32_t full = none ? 1 : c->tree ? c->kept : c->planned < c->n_ids ? c->planned : c->n_ids;
    int32_t rows = full < wanted ? full : (int32_t)wanted;
    *kept = c->kept < rows ? c->kept : rows;
    st->steps++;
    st->draft_s += c->result.draft_s;
    st->wait_s += c->result.wait_s;
    st->verify_s += c->result.verify_s;
    st->commit_s += c->result.commit_s;
    st->idle_s += c->result.idle_s;
    if (c->result.idle_s > st->idle_max_s) st->idle_max_s = c->result.idle_s;
    st->nan_cycles += !c->usable;
    st->tried += c->rows - 1;
    if (c->block && o->proposals && o->proposals(o->ctx, c->block + 1, c->n_block - 1, e)) return -1;
    /* Accepted proposals are the picks before the first that differs, and that one follows them. Where a row
     * that stays came to no number, what stands before it is written as it is without a drafter, and may end
     * the run. */
    const bool fault = s->o.check_layers && s->fault.pos - c->pos < *kept;
    const int32_t good = fault ? s->fault.pos - c->pos : *kept - (c->picks[*kept - 1] == KN_PICK_NAN);
    if ((c->drafted || s->o.look) && good == *kept) count_cycle(st, c, *kept - 1, rows, full);
    if (c->tree) st->tree_cycles++, st->tree_rows += c->rows;
    if (look && good == *kept) st->look_cycles++, st->look_accepted += *kept - 1;
    int64_t before = st->generated;
    if (good && write_out(s, o, st, c->picks, c->path, good, ended, e)) return -1;
    if (good < *kept && !*ended)
        return fault ? model_fault(&s->fault, e) : session_no_number(s, c->pos + good, e);
    *kept = (int32_t)(st->generated - before);
    return 0;
}

/* ---- the loop ---- */

/* Start what may be started. Every cycle writes a token at least, so one is started only where another token
 * is wanted for certain, but for a stop id. Where a plan may not start ahead with its rows, its draft does,
 * and the rows follow when the cycle before is finished. */
static int start_cycles(struct spec_run *l, int64_t wanted, struct err *e)
{
    while (!l->open && l->running < wanted) {
        struct plan now = l->plan;
        if (l->o->picked && l->running) return 0;                /* it would write over the logits */
        const bool asks = !now.draft && !now.rows && l->running; /* behind a token that is not known */
        bool waits = false;
        if (asks) now.rows = 1;
        if (now.draft && l->running > session_cycles_ahead(l->s, &now)) now.rows = 0;
        if (l->running > session_cycles_ahead(l->s, &now)) return 0;
        if (asks && session_look_waits(l->s, &waits, e)) return -1;
        if (waits) return 0;
        if (session_cycle_start(l->s, &now, wanted, e)) return -1;
        l->open = !now.rows;
        l->open_rows = l->plan.rows;
        l->running += !l->open;
        l->planner->next(l->planner->ctx, &l->plan);
    }
    return 0;
}

/* The rows of the cycle that is open. */
static int launch_open(struct spec_run *l, int64_t wanted, struct err *e)
{
    struct plan_offer offer;
    struct plan_choice choice = {.rows = l->open_rows};
    if (!l->open_rows) {
        if (session_cycle_offer(l->s, &offer, NULL, e)) return -1;
        l->planner->choose(l->planner->ctx, &offer, &choice);
    }
    if (session_cycle_verify(l->s, &choice, wanted, e)) return -1;
    l->open = false;
    l->running++;
    return 0;
}

/* Who plans, where nobody else does. */
static void choose_planner(struct spec_run *u)
{
    const struct session *s = u->s;
    const struct spec_options *o = u->o;
    const int32_t block = s->source ? s->o.block : 1, most = s->o.look ? s->o.look->rows : block,
                  width = o->width ? o->width : block;
    u->every = (struct plan){.draft = s->source != NULL, .rows = s->source ? width : 1};
    u->looks = (struct plan_looks){.draft = s->source && !o->look_only,
                                   .width = width,
                                   .rows = o->width && o->width < most ? o->width : most,
                                   .match = PLAN_LOOK_MATCH};
    u->trees = (struct plan_trees){.proposals = o->tree, .seed = o->tree_seed, .looks = u->looks};
    if (!s->o.look) u->trees.looks.rows = 1;
    u->fixed =
        o->tree
            ? (struct planner){.next = planner_trees_next, .choose = planner_trees_choose, .ctx = &u->trees}
        : s->o.look ? (struct planner){planner_looks_next, planner_looks_choose, NULL, &u->looks}
                    : (struct planner){.next = planner_fixed, .ctx = &u->every};
    u->planner = o->planner ? o->planner : &u->fixed;
}

int spec_step(struct spec_run *u, struct err *e)
{
    struct session_cycle c;
    while (!u->ended) {
        const int64_t wanted = u->o->n - u->st->generated;
        bool ended = false;
        if (u->open && !u->running && launch_open(u, wanted, e)) return -1;
        if (start_cycles(u, wanted, e)) return -1;
        if (!u->running) continue; /* the first, and it is open */
        int rc = session_cycle_finish(u->s, &c, e);
        u->running--;
        u->cycled = true;
        if (rc == 0) rc = take_cycle(u->s, u->o, u->st, &c, &u->kept, &ended, e);
        if (rc == 0 && u->planner->seen) u->planner->seen(u->planner->ctx, &c.result);
        u->pos = c.pos;
        u->st->decode_s = now() - u->start;
        if (rc) return -1;
        u->ended = ended || interrupted(u->o, u->st) || u->st->generated >= u->o->n;
        break;
    }
    return 0;
}

int spec_end(struct spec_run *u, struct err *e)
{
    struct session *s = u->s;
    u->s = NULL;
    return s && u->cycled ? session_cycles_end(s, u->pos + u->kept, e) : 0;
}

int spec_width_check(int32_t width, int32_t block, const struct source *look, struct err *e)
{
    const bool longer = look && look->rows > block;
    const int32_t most = longer ? look->rows : block;
    if (width >= 0 && width <= most) return 0;
    return err_set(e, ERR_USAGE, "width out of range (expected 1 to the %s of %d, got %d)",
                   longer ? "chain of a look-up" : "block", most, width);
}

static int check(const struct session *s, const struct spec_options *o, struct err *e)
{
    int64_t need = s->n_past + s->anchored + o->n + session_block(s) - 1;
    if (o->n < 1)
        return err_set(e, ERR_USAGE, "nothing to generate (expected 1 token or more, got %" PRId64 ")", o->n);
    if (need > s->o.ctx)
        return err_set(e, ERR_USAGE,
                       "the context is too small (expected %" PRId64 " positions for %d tokens, %" PRId64
                       " new ones and a block, got %d)",
                       need, s->n_past, o->n, s->o.ctx);
    if ((s->source || s->o.look || o->width < 0) && spec_width_check(o->width, s->o.block, s->o.look, e))
        return -1;
    if (o->tree < 0 || o->tree > s->o.tree || (o->tree && o->look_only))
        return err_set(e, ERR_USAGE, "tree out of range (expected at most %d proposals%s, got %d)", s->o.tree,
                       o->look_only ? ", and a draft to make it of" : "", o->tree);
    if (!s->anchored && (s->n_past < 1 || s->logits_rows != 1 || s->logits_pos != s->n_past - 1))
        return err_set(e, ERR_USAGE, "the session holds no logits of its last token (prefill first)");
    return 0;
}

int spec_begin(struct spec_run *u, struct session *s, const struct spec_options *o, struct spec_stats *st,
               struct err *e)
{
    int32_t anchor;
    memset(st, 0, sizeof *st);
    *u = (struct spec_run){.o = o, .st = st};
    if (check(s, o, e) || session_settle_anchor(s, e)) return -1;
    double start = now();
    if (session_pick(s, &o->sampler, 1, &anchor, e)) return -1;
    st->first_s = now() - start;
    if (write_out(s, o, st, &anchor, NULL, 1, &u->ended, e)) return -1;
    u->ended = u->ended || st->generated == o->n || interrupted(o, st);
    if (!u->ended && block_logits(s, o, anchor, e)) return -1;
    u->start = now();
    if (session_cycles_begin(s, anchor, &o->sampler, e)) return -1;
    u->s = s;
    choose_planner(u);
    if (!u->ended) u->planner->next(u->planner->ctx, &u->plan);
    return 0;
}

int spec_generate(struct session *s, const struct spec_options *o, struct spec_stats *st, struct err *e)
{
    struct spec_run u;
    if (spec_begin(&u, s, o, st, e)) return -1;
    while (!u.ended)
        if (spec_step(&u, e)) return -1;
    return spec_end(&u, e);
}

double spec_tau(const struct spec_stats *st)
{
    return st->full_cycles ? 1 + (double)st->full_accepted / (double)st->full_cycles : NAN;
}
