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
    bool scored = false;
    if (!s->o.tree) return 0;
    s->n_top = d->n_vocab < TREE_CANDIDATES ? d->n_vocab : TREE_CANDIDATES;
    s->tail = mem_calloc((size_t)d->n_layer, sizeof *s->tail);
    s->settle = mem_calloc((size_t)d->n_layer, sizeof *s->settle);
    s->ranked = mem_calloc(SESSION_RESULTS, sizeof *s->ranked);
    if (!s->tail || !s->settle || !s->ranked) return err_set(e, ERR_IO, "out of memory (a tree's rows)");
    s->tree = take(s, 1, sizeof *s->tree);
    s->top_ids = take(s, slots * (uint64_t)s->n_top, sizeof *s->top_ids);
    s->top_values = take(s, slots * (uint64_t)s->n_top, sizeof *s->top_values);
    for (int32_t i = 0; i < s->n_sources; i++) {
        const int32_t edges = s->by[i].of->edges;
        if (s->by[i].of->tree) s->by[i].n_top = edges && edges < s->n_top ? edges : s->n_top;
        scored |= edges > 0;
        if (edges && s->by[i].n_top &&
            draft_left_new(&s->by[i].left, s->by[i].of->model, s->by[i].block - 1, s->by[i].n_top, &s->bytes,
                           e))
            return -1;
    }
    if (s->o.synthetic) s->stated = take(s, SESSION_MAX_ROWS, sizeof *s->stated);
    if (scored)
        s->top_scores = take(s, slots * (uint64_t)s->n_top * (uint64_t)s->n_top, sizeof *s->top_scores);
    s->candidates = s->op->alloc_shared(s->be, SESSION_RESULTS * sizeof *s->candidates);
    bool there = s->tree && s->top_ids && s->top_values && s->candidates && (!scored || s->top_scores) &&
                 (!s->o.synthetic || s->stated);
    for (int i = 0; i < d->n_layer && there; i++) {
        there = d->layer[i].recurrent || new_tail(s, &s->kv[i], &s->tail[i]) == 0;
        settle_layer(s, i);
    }
    return there ? 0 : model_no_memory(s->be, e, "a tree's rows: lower --ctx or -n");
}

void session_tree_free(struct session *s)
{
    void *device[] = {s->tree, s->top_ids, s->top_values, s->top_scores, s->stated};
    for (size_t i = 0; i < sizeof device / sizeof device[0]; i++) s->op->free(s->be, device[i]);
    for (int32_t i = 0; i < s->n_sources; i++)
        if (s->by[i].left) draft_left_free(s->by[i].left, s->by[i].of->model), s->by[i].left = NULL;
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
    const struct kn_follow w = {
        .tree = s->tree, .picks = s->stated ? s->stated : s->d->picks, .n = n, .kept = &s->d->pending};
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
                               .k = x->n_top,
                               .ids = s->top_ids,
                               .values = s->top_values};
    if (!x->n_top) return 0;
    const int rc = s->op->top(s->be, &top);
    return rc ? model_failed(s->target, "candidates", rc, e) : 0;
}

struct draft_edges session_edges(const struct session *s, const struct session_source *x)
{
    if (!x->n_top || !x->of->edges) return (struct draft_edges){0};
    return (struct draft_edges){x->n_top, s->top_ids, s->top_values, s->top_scores, x->left};
}

/* A place's candidates while they are ranked: ids, what is said of them, where they came from. */
struct ranking {
    int32_t *ids;
    float *logp;
    int8_t *from;
    int32_t n;
};

static void exchange(struct ranking *k, int32_t i, int32_t j)
{
    const int32_t id = k->ids[i];
    const float p = k->logp[i];
    const int8_t from = k->from[i];
    k->ids[i] = k->ids[j], k->logp[i] = k->logp[j], k->from[i] = k->from[j];
    k->ids[j] = id, k->logp[j] = p, k->from[j] = from;
}

/* Falling from candidate first on: few, and mostly in order. A NaN is none. */
static void fall(struct ranking *k, int32_t first)
{
    for (int32_t i = first; i < k->n; i++) {
        if (!(k->logp[i] > -INFINITY)) k->logp[i] = -INFINITY;
        for (int32_t j = i; j > first && k->logp[j] > k->logp[j - 1]; j--) exchange(k, j, j - 1);
    }
}

/* Candidate at becomes the first; those before it move back. */
static void to_front(struct ranking *k, int32_t at)
{
    for (; at > 0; at--) exchange(k, at, at - 1);
}

/* The proposal of a place becomes its first candidate, also where it is none of them: then of the last's
 * place. */
static void proposal_first(struct ranking *k, int32_t id, float id_logp)
{
    int32_t at = 0;
    while (at < k->n - 1 && k->ids[at] != id) at++;
    if (k->ids[at] != id) k->ids[at] = id, k->logp[at] = id_logp, k->from[at] = -1;
    to_front(k, at);
}

/* Coupled (docs/sampling.md): the pick will be the largest of log-probability and noise. With the drafter's
 * log-probabilities for the target's that is the proposal; where the target's are a little other, one of
 * those whose sums come close: the sums' softmax says how close. Temperature and filters are the sampler's;
 * what top-p takes its share of are the candidates. The proposal, also where it is none of them, has the
 * largest sum. */
static void couple(const struct session *s, int32_t pos, int32_t id, struct ranking *c)
{
    const struct kn_sampler *k = &s->sampler;
    double score[TREE_CANDIDATES], most = -INFINITY, sum = 0, mass = 0, kept = 0;
    const double temp = (double)k->temp;
    const int32_t last = c->n - 1;
    int32_t n = 0, at = 0;
    while (n < c->n && c->logp[n] > -INFINITY) n++;
    while (at < last && c->ids[at] != id) at++;
    for (int32_t i = 0; i < n; i++) mass += exp(((double)c->logp[i] - (double)c->logp[0]) / temp);
    for (int32_t i = 0; i < c->n; i++) {
        const double x = i < n ? ((double)c->logp[i] - (double)c->logp[0]) / temp : -INFINITY, p = exp(x);
        const bool out =
            i >= n || (i && ((k->top_k > 0 && i >= k->top_k) || kept >= (double)k->top_p * mass ||
                             (k->min_p > 0 && p < (double)k->min_p)));
        kept += p;
        score[i] = out ? -INFINITY : x + kn_noise(k->seed, pos, c->ids[i]);
        if (i != at && score[i] > most) most = score[i];
    }
    if (c->ids[at] != id)
        score[at] = -INFINITY, c->ids[at] = id, c->from[at] = -1; /* the least likely makes room */
    if (!(score[at] > most)) score[at] = most > -INFINITY ? most : 0;
    const double first = score[at];
    for (int32_t i = 0; i < c->n; i++) sum += exp(score[i] - first);
    for (int32_t i = 0; i < c->n; i++) c->logp[i] = (float)(score[i] - first - log(sum));
    to_front(c, at);
    fall(c, 1);
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

static bool coupled(const struct session *s)
{
    return s->sampler.temp > 0 && !s->o.draft_greedy;
}

/* A place's candidates as they were offered, falling: behind the proposal before where that is known. */
static struct ranking offered(const struct session *s, struct session_ranked *c,
                              const struct kn_candidates *of, int32_t j)
{
    const int32_t k = c->n_top, at = j * k, before = j ? c->from[at - k] : 0;
    const float *values =
        c->edges && !c->edges_behind && before >= 0 ? c->scores + (at + before) * k : of->values + at;
    struct ranking r = {c->ids + at, c->logp + at, c->from + at, k};
    (void)s;
    memcpy(r.ids, of->ids + at, (size_t)k * sizeof *r.ids);
    memcpy(r.logp, values, (size_t)k * sizeof *r.logp);
    for (int32_t i = 0; i < k; i++) r.from[i] = (int8_t)i;
    fall(&r, 0);
    return r;
}

struct session_ranked *session_ranked(struct session *s, struct session_started *b)
{
    const uint32_t at = (b->offer - 1) % SESSION_RESULTS;
    const struct session_source *x = &s->by[b->source - 1];
    const struct kn_candidates *of = &s->candidates[at];
    struct session_ranked *c = &s->ranked[at];
    const struct kn_offer *o = &s->offers[at];
    if (b->ranked) return c;
    b->ranked = true;
    const struct session_synthetic *told = s->o.synthetic;
    c->n_top = x->n_top, c->edges = x->of->edges && !told, c->edges_behind = x->of->edges_behind, c->s = s,
    c->pos = o->pos;
    const size_t places = (size_t)x->block - 1, k = (size_t)c->n_top;
    if (c->edges) memcpy(c->scores, of->scores, places * k * k * sizeof *c->scores);
    if (c->edges) memcpy(c->values, of->values, places * k * sizeof *c->values);
    for (int32_t j = 0; o->usable && j < x->block - 1; j++) {
        struct ranking r = offered(s, c, of, j);
        if (coupled(s)) {
            couple(s, o->pos + 1 + j, o->ids[1 + j], &r);
        } else {
            likely(r.logp, r.n, o->logp[j]);
            proposal_first(&r, o->ids[1 + j], o->logp[j]);
        }
        if (told && told->top) memcpy(r.logp, told->top + (int64_t)j * KN_TOP, (size_t)r.n * sizeof *r.logp);
    }
    return c;
}

/* What candidate i of a place is worth behind candidate before of the place before, both by their places in
 * scores. */
static double score_behind(const struct session_ranked *c, int32_t place, int32_t before, int32_t i)
{
    const int32_t k = c->n_top, at = place * k, first = c->from[at - k];
    const double score = (double)c->scores[(at + before) * k + i];
    if (!c->edges_behind) return score;
    return (double)c->values[at + i] + score - (double)c->scores[(at + first) * k + i];
}

/* By the scores of following that candidate; as couple where proposals are. A probability is one among the
 * candidates: more is not known. */
const float *session_behind(void *ctx, int32_t place, int32_t rank)
{
    struct session_ranked *c = ctx;
    const struct session *s = c->s;
    const int32_t k = c->n_top, at = place * k, before = c->from[at - k + rank];
    const double temp = coupled(s) ? (double)s->sampler.temp : 1;
    double x[KN_TOP], most = -INFINITY, sum = 0, mass = 0;
    if (before < 0 || (c->edges_behind && c->from[at - k] < 0)) return c->logp + at;
    for (int32_t i = 0; i < k; i++) {
        const int32_t from = c->from[at + i];
        x[i] = from < 0 ? -INFINITY : score_behind(c, place, before, from) / temp;
        if (coupled(s)) x[i] += kn_noise(s->sampler.seed, c->pos + 1 + place, c->ids[at + i]);
        if (!(x[i] > -INFINITY)) x[i] = -INFINITY;
        if (x[i] > most) most = x[i];
    }
    for (int32_t i = 0; i < k; i++) sum += exp(x[i] - most), mass += exp((double)c->logp[at + i]);
    const double all = log(sum) - fmin(0, log(mass));
    for (int32_t i = 0; i < k; i++) c->row[i] = (float)(x[i] - most - all);
    return c->row;
}
