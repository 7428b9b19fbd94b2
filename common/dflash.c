/* dflash.c - the two passes of a DFlash drafter.
 *
 * The drafter never reads the text before its block. What it knows of it are features: the target's residual
 * stream after a few blocks (the taps), concatenated. Every committed token leaves, in every drafter layer,
 * one key and one value:
 *
 *     context:   c = rms_norm(fc features; hidden_norm)               once a token, shared by the layers
 *                k = rope(head_norm(Wk c)), v = Wv c                  no attn_norm, no query, no feed-forward
 *
 * A block is the last committed token (the anchor) and mask tokens at the positions after it. Row r of its
 * output names the token at row r's own position:
 *
 *     block:     x = embed([anchor, mask, mask, ...])                 the target's embedding
 *                for every layer (a Qwen3 block, qwen3.c):
 *                                  n = rms_norm(x; attn_norm);  q, k, v from n as in the target
 *                                  x += Wo attention(q, [context, block])
 *                                  x += Wdown (silu(Wgate m) * (Wup m)),  m = rms_norm(x; ffn_norm)
 *
 * Context keys lie before the anchor, so the causal flag of a layer only matters inside the block: a causal
 * row sees the block up to itself, a bidirectional one sees all of it. The block's keys and values go into
 * the cache at the block's own positions and are overwritten by the context of the tokens that the target
 * then commits there. Source: DFlash, and the attention rules of its reference implementation. */
#include "model.h"

int dflash_context(const struct model *m, const struct pass *p, struct err *e)
{
    struct kn_backend *be = m->be;
    const struct kn_ops *op = kn_op(be);
    const struct desc *d = m->d;
    struct work *w = p->w;
    float *kv[] = {w->k, w->v};
    int rc = op->linear(be, w->x, &m->fc, p->features, p->n, false);
    if (rc == 0) rc = op->rope_table(be, w->rope[0], p->pos, p->n, m->rope_freq[0], d->rope[0].n_rot);
    for (int32_t i = 0; i < d->n_layer && rc == 0; i++) {
        const struct model_layer *y = &m->layer[i];
        const struct kn_weight *wkv[] = {&y->wk, &y->wv};
        const struct kn_rope_store store = {.k = w->k,
                                            .v = w->v,
                                            .k_norm = y->k_norm,
                                            .table = w->rope[0],
                                            .pos = p->pos,
                                            .n = p->n,
                                            .n_head = d->layer[i].n_head,
                                            .n_rot = d->rope[0].n_rot,
                                            .eps = d->rms_eps,
                                            .kv = &p->kv[i]};
        rc = op->norm_linear(be, kv, wkv, 2, w->x, m->hidden_norm, d->rms_eps, p->n);
        if (rc == 0) rc = op->rope_store(be, &store);
    }
    return rc ? model_failed(m, "drafter context", rc, e) : 0;
}

int dflash_block(const struct model *m, const struct model *target, const struct pass *p, struct err *e)
{
    const struct kn_ops *op = kn_op(m->be);
    const struct desc *d = m->d;
    const struct kn_weight *embed = m->embed.rows ? &m->embed : &target->embed;
    float scale = d->has_embedding_scale ? d->embedding_scale : target->d->embedding_scale;
    int rc = op->embed(m->be, p->w->x, embed, p->ids, p->n, scale);
    if (rc == 0) rc = op->rope_table(m->be, p->w->rope[0], p->pos, p->n, m->rope_freq[0], d->rope[0].n_rot);
    for (int32_t i = 0; i < d->n_layer && rc == 0; i++) rc = qwen3_block(m, p, i);
    return rc ? model_failed(m, "drafter block", rc, e) : 0;
}
