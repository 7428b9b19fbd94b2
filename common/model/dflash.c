/* dflash.c - the two passes of a DFlash drafter, which its relatives (draft.h) share.
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
#include "draft.h"

/* Layers whose keys and values are computed in one product and stored in one call. The work of a layer is
 * less than the time of a launch, and none depends on another: they all read the same normed features. */
enum { GROUP = KN_MATRICES / 2 };

int64_t dflash_context_width(const struct desc *d)
{
    int64_t most = 0;
    for (int32_t i = 0; i < d->n_layer; i += GROUP) {
        int64_t sum = 0;
        for (int32_t j = i; j < d->n_layer && j < i + GROUP; j++)
            sum += 2 * (int64_t)d->layer[j].n_head_kv * d->layer[j].head_dim;
        if (sum > most) most = sum;
    }
    return most;
}

/* Keys and values of layers i .. i + n - 1 (n <= GROUP) from the features in w->fused. */
static int context_layers(const struct model *m, const struct pass *p, int32_t i, int32_t n)
{
    const struct kn_ops *op = kn_op(m->be);
    const struct desc *d = m->d;
    float *out[2 * GROUP], *at = p->w->context;
    const struct kn_weight *w[2 * GROUP];
    struct kn_rope_store store[GROUP];
    for (int32_t j = 0; j < n; j++) {
        const struct model_layer *y = &m->layer[i + j];
        const int64_t size = (int64_t)p->n * d->layer[i + j].n_head_kv * d->layer[i + j].head_dim;
        w[2 * j] = &y->wk;
        w[2 * j + 1] = &y->wv;
        out[2 * j] = at;
        out[2 * j + 1] = at + size;
        at += 2 * size;
        store[j] = (struct kn_rope_store){.k = out[2 * j],
                                          .v = out[2 * j + 1],
                                          .k_norm = y->k_norm,
                                          .table = p->w->rope[0],
                                          .pos = p->pos,
                                          .n = p->n,
                                          .n_head = d->layer[i + j].n_head,
                                          .n_rot = d->rope[0].n_rot,
                                          .eps = d->rms_eps,
                                          .kv = &p->kv[i + j],
                                          .next = j + 1 < n ? &store[j + 1] : NULL};
    }
    int rc = op->norm_linear(m->be, out, w, 2 * n, p->w->fused, m->hidden_norm, d->rms_eps, p->n);
    return rc ? rc : op->rope_store(m->be, store);
}

int dflash_context(const struct model *m, const struct pass *p, struct err *e)
{
    const struct kn_ops *op = kn_op(m->be);
    const struct desc *d = m->d;
    int rc = op->rope_table(m->be, p->w->rope[0], p->pos, p->n, m->rope_freq[0], d->rope[0].n_rot);
    if (rc == 0) rc = op->linear(m->be, p->w->fused, &m->fc, p->features, p->n, false);
    for (int32_t i = 0; i < d->n_layer && rc == 0; i += GROUP)
        rc = context_layers(m, p, i, d->n_layer - i < GROUP ? d->n_layer - i : GROUP);
    return rc ? model_failed(m, "drafter context", rc, e) : 0;
}

int dflash_block(const struct model *m, const struct model *target, const struct pass *p, struct err *e)
{
    const struct kn_ops *op = kn_op(m->be);
    const struct desc *d = m->d;
    int rc = draft_embed(m, target, p->w->x, p->ids, p->n);
    if (rc == 0) rc = op->rope_table(m->be, p->w->rope[0], p->pos, p->n, m->rope_freq[0], d->rope[0].n_rot);
    for (int32_t i = 0; i < d->n_layer && rc == 0; i++)
        rc = m->kind->block ? m->kind->block(m, p, i) : qwen3_block(m, p, i);
    return rc ? model_failed(m, "drafter block", rc, e) : 0;
}

/* Each row's own pick, all of them at once. */
static int propose(const struct model *m, const struct draft *t, struct err *e)
{
    if (draft_logits(m, t, e)) return -1;
    const int rc = kn_op(m->be)->pick(m->be, &t->pick);
    return rc ? model_failed(m, "pick", rc, e) : 0;
}

const struct draft_kind draft_dflash = {.name = "DFlash", .propose = propose};
