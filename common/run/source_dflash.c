/* source_dflash.c - a DFlash drafter, or a relative (draft.h), as a source: the two passes of dflash.c over a
 * stream's caches.
 *
 * Its context is keys and values, one ring a layer, made of the taps of the rows that stay. A block is the
 * anchor and masks; its proposals are the likeliest tokens, or coupled: picked by the stream's sampler with
 * the noise of the target's own picks. Row by row the same noise picks the same token as often as the two
 * distributions are alike, and more often than the likeliest token is picked by chance. */
#include "session_impl.h"
#include "state_impl.h"

#include "../base/mem.h"
#include "../model/draft.h"

/* Of one stream. */
struct context {
    struct kn_kv *kv; /* [n_layer] */
};

static struct kn_kv *caches_of(const struct session_source *x)
{
    return x->context ? ((struct context *)x->context)->kv : NULL;
}

static int open_context(struct session *s, struct session_source *x, int32_t pass_rows, struct err *e)
{
    struct context *c = x->context = mem_calloc(1, sizeof *c);
    if (!c) return err_set(e, ERR_IO, "out of memory (a drafter's context)");
    return session_new_caches(s, x->of->model, x, pass_rows, &c->kv, e);
}

static void close_context(struct session *s, struct session_source *x)
{
    session_free_caches(s, x->of->model, caches_of(x));
    mem_free(x->context);
    x->context = NULL;
}

static const struct kn_kv *caches(const struct session *s, const struct session_source *x, int32_t *n)
{
    (void)s;
    *n = x->of->model->d->n_layer;
    return caches_of(x);
}

/* What a drafter works with: its own angles, the rest as the target. */
static struct work draft_work(const struct session *s)
{
    struct work w = s->g->work;
    w.rope[0] = w.draft_rope;
    return w;
}

static int context(struct session *s, struct session_source *x, const struct session_rows *r, struct err *e)
{
    struct work w = draft_work(s);
    const struct pass p = {.w = &w,
                           .kv = caches_of(x),
                           .n = r->n,
                           .first_pos = r->first_pos,
                           .pos = r->pos,
                           .origin = s->origin,
                           .features = (float *)r->features};
    return dflash_context(x->of->model, &p, e);
}

/* Without the penalties: they look at the tokens before a place, and those of all places but the first are
 * only being proposed. */
struct kn_sampler source_sampler(const struct session *s)
{
    struct kn_sampler k = s->sampler;
    if (s->o.draft_greedy || k.temp == 0)
        k = (struct kn_sampler){.top_p = 1, .bias = k.bias, .n_bias = k.n_bias};
    k.repeat_penalty = 1;
    k.presence = k.frequency = 0;
    return k;
}

/* The proposal of slot i is held against what row i of the verify picks, and is picked as if by that row. */
static int propose(struct session *s, struct session_source *x, bool all_rows, struct err *e)
{
    const struct model *m = x->of->model;
    const int32_t first = m->d->first_row, skip = all_rows ? 0 : first, n_vocab = s->target->d->n_vocab;
    struct work w = draft_work(s);
    const struct draft t = {.pass = {.w = &w,
                                     .kv = caches_of(x),
                                     .n = desc_block_rows(m->d, x->block),
                                     .first_pos = s->n_past,
                                     .ids = s->d->block,
                                     .pos = s->d->pos,
                                     .origin = s->origin,
                                     .reach = s->g->draft_reach ? desc_draft_reach(m->d) : 0,
                                     .visible_from = s->o.draft_window ? &s->d->first : NULL},
                            .target = s->target,
                            .first = first,
                            .skip = skip,
                            .logits = s->g->logits,
                            .pick = {.logits = s->g->logits + (int64_t)(first - skip) * n_vocab,
                                     .pos = s->d->pos,
                                     .history = s->d_history,
                                     .n = x->block - 1,
                                     .n_vocab = n_vocab,
                                     .sampler = source_sampler(s),
                                     .out = s->d->ids + 1,
                                     .logp = s->d->logp},
                            .edges = session_edges(s, x)};
    if (draft_propose(m, &t, e)) return -1;
    return t.edges.k ? 0 : session_candidates(s, x, t.pick.logits, t.pick.n, e);
}

static int save(struct session *s, struct session_source *x, struct snap_writer *w, struct err *e)
{
    const struct desc *d = x->of->model->d;
    for (int i = 0; i < d->n_layer; i++)
        if (state_save_layer(s, &caches_of(x)[i], &d->layer[i], s->n_past, "DKV ", w, e)) return -1;
    return 0;
}

static int load(struct session *s, struct session_source *x, struct state *st, struct err *e)
{
    const struct desc *d = x->of->model->d;
    for (int i = 0; i < d->n_layer; i++)
        if (state_load_layer(st, s, &caches_of(x)[i], &d->layer[i], (int32_t)st->m.n_tokens, "DKV ", e))
            return -1;
    return 0;
}

static const struct source_ops dflash = {.name = "dflash",
                                         .open = open_context,
                                         .close = close_context,
                                         .caches = caches,
                                         .context = context,
                                         .propose = propose,
                                         .save = save,
                                         .load = load};

struct source source_dflash(struct model *drafter)
{
    const struct draft_kind *kind = draft_kind_of(drafter->d);
    return (struct source){.op = &dflash,
                           .model = drafter,
                           .rows = desc_cycle_rows(drafter->d),
                           .mask = drafter->d->mask_id,
                           .needs = {.tapped = drafter->d},
                           .tree = true,
                           .edges = kind && kind->edges ? kind->edges(drafter->d) : 0,
                           .edges_behind = kind && kind->edges_behind};
}
