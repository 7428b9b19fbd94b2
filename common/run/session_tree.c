/* session_tree.c - trees of proposals in a session: the memory of their rows, candidates, a pass over them,
 * and what becomes of the path that stays. See tree.h and cycle.h. */
#include "session_impl.h"

#include <math.h>
#include <string.h>
#include "../base/mem.h"
#include "tree.h"

/* ---- memory ---- */

static void *take(struct session *s, uint64_t count, size_t size)
{
    void *p = s->op->alloc(s->be, (size_t)count * size);
    if (p) s->bytes += count * size;
    return p;
}

/* Keys and values of a tree's rows, by row: a cache of one layer like kv, of which only the first
 * SESSION_MAX_ROWS positions are there. */
static int new_tail(struct session *s, const struct kn_kv *kv, struct kn_kv *tail)
{
    *tail = kn_kv_like(kv, SESSION_MAX_ROWS);
    tail->k = take(s, SESSION_MAX_ROWS, kn_kv_row_bytes(kv, kv->type.k));
    tail->v = take(s, SESSION_MAX_ROWS, kn_kv_row_bytes(kv, kv->type.v));
    return tail->k && tail->v ? 0 : -1;
}

static void settle_layer(struct session *s, int i)
{
    const struct desc *d = s->target->d;
    const bool recurrent = d->layer[i].recurrent;
    s->settle[i] = (struct kn_settle){.tree = s->tree,
                                      .kept = &s->d->pending,
                                      .most = SESSION_MAX_ROWS,
                                      .kv = recurrent ? NULL : &s->kv[i],
                                      .tail = recurrent ? NULL : &s->tail[i],
                                      .log = recurrent ? s->delta[i].log : NULL,
                                      .width = recurrent ? desc_delta_width(d) + 2 * (int64_t)d->n_v : 0,
                                      .next = i + 1 < d->n_layer ? &s->settle[i + 1] : NULL};
}

int session_tree_new(struct session *s, struct err *e)
{
    const struct desc *d = s->target->d;
    const uint64_t slots = (uint64_t)session_block(s) - 1;
    if (!s->o.tree) return 0;
    s->n_top = d->n_vocab < TREE_CANDIDATES ? d->n_vocab : TREE_CANDIDATES;
    s->tail = mem_calloc((size_t)d->n_layer, sizeof *s->tail);
    s->settle = mem_calloc((size_t)d->n_layer, sizeof *s->settle);
    s->ranked = mem_calloc(SESSION_RESULTS, sizeof *s->ranked);
    if (!s->tail || !s->settle || !s->ranked) return err_set(e, ERR_IO, "out of memory (a tree's rows)");
    s->tree = take(s, 1, sizeof *s->tree);
    s->top_ids = take(s, slots * (uint64_t)s->n_top, sizeof *s->top_ids);
    s->top_values = take(s, slots * (uint64_t)s->n_top, sizeof *s->top_values);
    s->candidates = s->op->alloc_shared(s->be, SESSION_RESULTS * sizeof *s->candidates);
    bool there = s->tree && s->top_ids && s->top_values && s->candidates;
    for (int i = 0; i < d->n_layer && there; i++) {
        there = d->layer[i].recurrent || new_tail(s, &s->kv[i], &s->tail[i]) == 0;
        settle_layer(s, i);
    }
    return there ? 0 : model_no_memory(s->be, e, "a tree's rows: lower --ctx or -n");
}

void session_tree_free(struct session *s)
{
    void *device[] = {s->tree, s->top_ids, s->top_values};
    for (size_t i = 0; i < sizeof device / sizeof device[0]; i++) s->op->free(s->be, device[i]);
    s->op->free_shared(s->be, s->candidates);
    session_free_caches(s, s->target, s->tail);
    mem_free(s->settle);
    mem_free(s->ranked);
}

/* ---- rows ---- */

int session_tree_place(struct session *s, const int32_t *ids, const int32_t *parents, int32_t n,
                       struct err *e)
{
    struct kn_tree t;
    tree_rows(&t, ids, parents, n, s->n_past);
    int rc = s->op->upload(s->be, s->tree, &t, offsetof(struct kn_tree, stays));
    return rc ? model_failed(s->target, "upload", rc, e) : 0;
}

int session_tree_forward(struct session *s, int32_t n, struct err *e)
{
    const struct session_rows r = {.ids = s->tree->ids, .pos = s->tree->pos, .n = n, .first_pos = s->n_past};
    return session_run_target(s, &r, SESSION_TRIED, e) || session_run_head(s, s->target, 0, n, e) ||
                   session_leave_hidden(s, n, e)
               ? -1
               : 0;
}

int32_t session_tree_depth(const struct session *s, int32_t n)
{
    const int32_t block = session_block(s);
    return n < block ? n : block;
}

struct session_rows session_tree_kept(struct session *s, int32_t n)
{
    return (struct session_rows){
        .ids = s->tree->stay_ids, .pos = s->tree->at, .n = n, .first_pos = s->n_past};
}

int session_tree_settle(struct session *s, int32_t n, bool walk, struct err *e)
{
    const struct kn_follow w = {.tree = s->tree, .picks = s->d->picks, .n = n, .kept = &s->d->pending};
    int rc = walk ? s->op->follow(s->be, &w) : 0;
    if (rc == 0) rc = s->op->settle(s->be, s->settle);
    for (int32_t i = 0; i < s->n_sources && rc == 0; i++) {
        const struct session_source *x = &s->by[i];
        if (x->kept)
            rc = s->op->gather(s->be, x->kept, x->features, s->tree->stays,
                               walk ? session_tree_depth(s, n) : n, x->width);
    }
    return rc ? model_failed(s->target, "settle", rc, e) : 0;
}

/* ---- verbs ---- */

int session_forward_tree(struct session *s, const int32_t *ids, const int32_t *parents, int32_t n,
                         struct err *e)
{
    if (!s->tree || n < 1 || n > s->o.tree + 1 || s->n_past > s->o.ctx)
        return err_set(e, ERR_USAGE,
                       "a tree does not fit (expected 1 to %d rows at a position up to %d, got "
                       "%d at %d)",
                       s->o.tree + 1, s->o.ctx, n, s->n_past);
    for (int32_t r = 0; r < n; r++)
        if (ids[r] < 0 || ids[r] >= s->target->d->n_vocab || (r && (parents[r] < 0 || parents[r] >= r)))
            return err_set(e, ERR_USAGE, "row %d of a tree: token %d behind row %d (expected an earlier row)",
                           r, ids[r], parents[r]);
    if (session_turn(s, e) || session_catch_up(s, e)) return -1;
    s->anchored = false, s->logits_rows = 0;
    if (session_tree_place(s, ids, parents, n, e) || session_play(s, SESSION_TREE_FORWARD, n, e) ||
        session_set_pending(s, 0, e))
        return -1;
    s->logits_pos = s->n_past;
    s->logits_rows = n;
    return 0;
}

int session_commit_path(struct session *s, int32_t row, struct err *e)
{
    struct kn_tree t;
    int rc = s->op->download(s->be, &t, s->tree, sizeof t);
    if (s->g->on != s)
        return err_set(e, ERR_USAGE, "rows cannot be kept behind another stream's turn (run them again)");
    const int32_t n = t.pos[row] - t.pos[0] + 1;
    for (int32_t i = 0; i < KN_CYCLE_ROWS; i++) {
        t.stays[i] = i < n ? t.path[row][i] : 0;
        t.stay_ids[i] = t.ids[t.stays[i]];
    }
    if (rc == 0) rc = s->op->upload(s->be, s->tree, &t, sizeof t);
    if (rc == 0) rc = s->op->upload(s->be, &s->d->pending, &n, sizeof n);
    if (rc == 0)
        rc = s->op->upload(s->be, s->d_history + s->n_past, t.stay_ids, (size_t)n * sizeof *t.stay_ids);
    if (rc) return model_failed(s->target, "settle", rc, e);
    memcpy(s->history + s->n_past, t.stay_ids, (size_t)n * sizeof *t.stay_ids);
    const struct session_rows kept = session_tree_kept(s, n);
    if (session_tree_settle(s, n, false, e) || session_run_context(s, &kept, SESSION_GATHERED, e)) return -1;
    s->tried = true;
    if (s->delta) s->pending = n;
    s->n_past += n;
    return 0;
}

/* ---- candidates ---- */

int session_candidates(struct session *s, const struct session_source *x, const float *logits, int32_t n,
                       struct err *e)
{
    const struct kn_top top = {.logits = logits,
                               .n = n,
                               .n_vocab = s->target->d->n_vocab,
                               .k = s->n_top,
                               .ids = s->top_ids,
                               .values = s->top_values};
    if (!s->tree || !x->of->tree) return 0;
    const int rc = s->op->top(s->be, &top);
    return rc ? model_failed(s->target, "candidates", rc, e) : 0;
}

/* The proposal of a place becomes its first candidate, also where it is none of them. */
static void proposal_first(int32_t *ids, float *logp, int32_t k, int32_t id, float id_logp)
{
    int32_t at = 0;
    while (at < k - 1 && ids[at] != id) at++;
    const float p = ids[at] == id ? logp[at] : id_logp;
    memmove(ids + 1, ids, (size_t)at * sizeof *ids);
    memmove(logp + 1, logp, (size_t)at * sizeof *logp);
    ids[0] = id;
    logp[0] = p;
}

/* Coupled (docs/sampling.md): the pick will be the largest of log-probability and noise. With the drafter's
 * log-probabilities for the target's that is the proposal; where the target's are a little other, one of
 * those whose sums come close: the sums' softmax says how close. Temperature and filters are the sampler's;
 * what top-p takes its share of are the candidates. The proposal, also where it is none of them, has the
 * largest sum. */
static void couple(const struct session *s, int32_t pos, int32_t id, int32_t *ids, float *logp)
{
    const struct kn_sampler *k = &s->sampler;
    double score[TREE_CANDIDATES], most = -INFINITY, sum = 0, mass = 0, kept = 0;
    const double temp = (double)k->temp;
    const int32_t last = s->n_top - 1;
    int32_t n = 0, at = 0;
    while (n < s->n_top && logp[n] > -INFINITY) n++;
    while (at < last && ids[at] != id) at++;
    for (int32_t i = 0; i < n; i++) mass += exp(((double)logp[i] - (double)logp[0]) / temp);
    for (int32_t i = 0; i < s->n_top; i++) {
        const double x = i < n ? ((double)logp[i] - (double)logp[0]) / temp : -INFINITY, p = exp(x);
        const bool out =
            i >= n || (i && ((k->top_k > 0 && i >= k->top_k) || kept >= (double)k->top_p * mass ||
                             (k->min_p > 0 && p < (double)k->min_p)));
        kept += p;
        score[i] = out ? -INFINITY : x + kn_noise(k->seed, pos, ids[i]);
        if (i != at && score[i] > most) most = score[i];
    }
    if (ids[at] != id) score[at] = -INFINITY, ids[at] = id; /* the least likely makes room */
    if (!(score[at] > most)) score[at] = most > -INFINITY ? most : 0;
    const double first = score[at];
    memmove(ids + 1, ids, (size_t)at * sizeof *ids);
    memmove(score + 1, score, (size_t)at * sizeof *score);
    ids[0] = id, score[0] = first;
    for (int32_t i = 2; i < s->n_top; i++) /* in order: few, and nearly so */
        for (int32_t j = i; j > 1 && score[j] > score[j - 1]; j--) {
            const double x = score[j];
            const int32_t other = ids[j];
            score[j] = score[j - 1], score[j - 1] = x;
            ids[j] = ids[j - 1], ids[j - 1] = other;
        }
    for (int32_t i = 0; i < s->n_top; i++) sum += exp(score[i] - first);
    for (int32_t i = 0; i < s->n_top; i++) logp[i] = (float)(score[i] - first - log(sum));
}

/* Of logits, falling, the logs of the probabilities; first: of the first, or NaN: then among the candidates.
 */
static void likely(float *logits, int32_t k, float first)
{
    double sum = 0, top = (double)logits[0];
    for (int32_t i = 0; i < k; i++) sum += exp((double)logits[i] - top);
    const double log_first = first <= 0 ? (double)first : -log(sum);
    for (int32_t i = 0; i < k; i++) logits[i] = (float)((double)logits[i] - top + log_first);
}

struct session_ranked *session_ranked(struct session *s, struct session_started *b)
{
    const uint32_t at = (b->offer - 1) % SESSION_RESULTS;
    struct session_ranked *c = &s->ranked[at];
    const struct kn_offer *o = &s->offers[at];
    if (b->ranked) return c;
    b->ranked = true;
    c->of = s->candidates[at];
    for (int32_t j = 0; o->usable && j < s->by[b->source - 1].block - 1; j++) {
        int32_t *ids = c->of.ids + (int64_t)j * s->n_top;
        float *logp = c->of.values + (int64_t)j * s->n_top;
        if (s->sampler.temp > 0 && !s->o.draft_greedy) {
            couple(s, o->pos + 1 + j, o->ids[1 + j], ids, logp);
        } else {
            likely(logp, s->n_top, o->logp[j]);
            proposal_first(ids, logp, s->n_top, o->ids[1 + j], o->logp[j]);
        }
    }
    return c;
}
