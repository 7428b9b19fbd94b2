/* draft.c - see draft.h. */
#include "draft.h"

#include <string.h>

static const struct draft_kind *const kinds[] = {&draft_dflash, &draft_dflash2, &draft_dspark, &draft_domino};

const struct draft_kind *draft_kind_of(const struct desc *d)
{
    for (size_t i = 0; d->kind && i < sizeof kinds / sizeof kinds[0]; i++)
        if (!strcmp(kinds[i]->name, d->kind)) return kinds[i];
    return NULL;
}

int draft_propose(const struct model *m, const struct draft *t, struct err *e)
{
    return dflash_block(m, t->target, &t->pass, e) ? -1 : m->kind->propose(m, t, e);
}

int draft_logits(const struct model *m, const struct draft *t, struct err *e)
{
    const struct desc *d = m->d;
    const struct work *w = t->pass.w;
    const float *x = w->x + (int64_t)t->skip * d->n_embd;
    const int32_t n = t->pass.n - t->skip - d->idle_rows;
    if (!d->n_vocab_draft) return model_logits(m, t->target, x, n, t->logits, e);
    if (model_logits(m, t->target, x, n, w->part, e)) return -1;
    const int rc =
        kn_op(m->be)->spread(m->be, t->logits, t->pick.n_vocab, w->part, d->n_vocab_draft, w->from, n);
    return rc ? model_failed(m, "spread", rc, e) : 0;
}

int draft_embed(const struct model *m, const struct model *target, float *out, const int32_t *ids, int32_t n)
{
    const struct kn_weight *embed = m->embed.rows ? &m->embed : &target->embed;
    const float scale = m->d->has_embedding_scale ? m->d->embedding_scale : target->d->embedding_scale;
    return kn_op(m->be)->embed(m->be, out, embed, ids, n, scale);
}

int draft_pick_one(const struct model *m, const struct draft *t, int32_t i)
{
    struct kn_pick p = t->pick;
    p.logits += (int64_t)i * p.n_vocab;
    p.pos += i, p.out += i;
    p.logp = p.logp ? p.logp + i : NULL;
    p.n = 1;
    return kn_op(m->be)->pick(m->be, &p);
}

int draft_candidates(const struct model *m, const struct draft *t, const struct kn_weight *before,
                     const struct kn_weight *after)
{
    const struct kn_ops *op = kn_op(m->be);
    const struct kn_top top = {t->pick.logits, t->pick.n,    t->pick.n_vocab,
                               t->edges.k,     t->edges.ids, t->edges.values};
    const struct kn_edges edges = {.ids = t->edges.ids,
                                   .values = t->edges.values,
                                   .anchor = t->pass.ids,
                                   .before = before,
                                   .after = after,
                                   .scale = 1,
                                   .n = t->pick.n,
                                   .k = t->edges.k,
                                   .scores = t->edges.scores,
                                   .left = draft_left_rows(t->edges.left),
                                   .row_of = t->pass.w->from,
                                   .n_ids = t->pick.n_vocab};
    if (!t->edges.k) return 0;
    int rc = op->top(m->be, &top);
    if (rc == 0) rc = draft_left(m, t);
    return rc ? rc : op->edges(m->be, &edges);
}
