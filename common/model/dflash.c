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
    int32_t n_w = 0;
    for (int32_t j = 0; j < n; j++) {
        const struct model_layer *y = &m->layer[i + j];
        const int64_t size = (int64_t)p->n * d->layer[i + j].n_head_kv * d->layer[i + j].head_dim;
        float *k = at, *v = d->layer[i + j].value_is_key ? k : at + size;
        w[n_w] = &y->wk, out[n_w++] = k;
        if (v != k) w[n_w] = &y->wv, out[n_w++] = v;
        at += 2 * size;
        store[j] = (struct kn_rope_store){.k = k,
                                          .v = v,
                                          .v_norm = v == k,
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
    int rc = op->norm_linear(m->be, out, w, n_w, p->w->fused, m->hidden_norm, d->rms_eps, p->n);
    return rc ? rc : op->rope_store(m->be, store);
}

int dflash_context(const struct model *m, const struct pass *p, struct err *e)
{
    const struct kn_ops *op = kn_op(m->be);
    const struct desc *d = m->d;
    int rc = op->rope_table(m->be, p->w->rope[0], p->pos, p->origin, p->n, m->rope_freq[0], d->rope[0].n_rot);
    if (rc == 0) rc = op->linear(m->be, p->w->fused, &m->fc, p->features, p->n, false);
    for (int32_t i = 0; i < d->n_layer && rc == 0; i += GROUP)
        rc = context_layers(m, p, i, d->n_layer - i < GROUP ? d->n_layer - i : GROUP);
    return rc ? model_failed(m, "drafter context", rc, e) : 0;
}

/* w->y times the scale of what attention leaves, into or onto out: a convolution of one tap. */
static int times_scale(const struct model *m, const struct pass *p, float *out, bool add)
{
    const struct kn_conv c = {.x = p->w->y,
                              .base = m->value_scale,
                              .dynamic = p->w->dynamic,
                              .stride = 1,
                              .out = out,
                              .add = add,
                              .n = p->n,
                              .width = m->d->n_embd,
                              .group = m->d->n_embd,
                              .taps = 1};
    return kn_op(m->be)->conv(m->be, &c);
}

/* Layer i of a drafter whose blocks are not Qwen3's: values made of keys, norms behind the branches, scores
 * and activation as Gemma's (gemma4.c), a scale of what Wo leaves, each where the file has it. */
static int other_attention(const struct model *m, const struct pass *p, int32_t i)
{
    const struct kn_ops *op = kn_op(m->be);
    const struct desc *d = m->d;
    const struct model_layer *y = &m->layer[i];
    struct work *w = p->w;
    float *qkv[] = {w->q, w->k, w->v};
    const struct kn_weight *wqkv[] = {&y->wq, &y->wk, &y->wv};
    const bool shared = d->layer[i].value_is_key;
    struct pass_heads h = pass_heads(m, p, i);
    if (shared) h.rope.v = w->k, h.rope.v_norm = true;
    if (d->attention_scale > 0) h.attention.scale = d->attention_scale;
    int rc = op->norm_linear(m->be, qkv, wqkv, shared ? 2 : 3, w->x, y->attn_norm, d->rms_eps, p->n);
    if (rc == 0) rc = pass_attend(m, &h);
    if (rc || (!y->post_attn_norm && !m->value_scale))
        return rc ? rc : op->linear(m->be, w->x, &y->wo, w->attn, p->n, true);
    rc = op->linear(m->be, w->y, &y->wo, w->attn, p->n, false);
    if (rc == 0 && m->value_scale)
        rc = times_scale(m, p, y->post_attn_norm ? w->y2 : w->x, !y->post_attn_norm);
    if (rc || !y->post_attn_norm) return rc;
    return op->norm_add(m->be, w->x, w->x, m->value_scale ? w->y2 : w->y, y->post_attn_norm, p->n, d->n_embd,
                        d->rms_eps, 1);
}

static int other_block(const struct model *m, const struct pass *p, int32_t i)
{
    const struct kn_ops *op = kn_op(m->be);
    const struct desc *d = m->d;
    const struct model_layer *y = &m->layer[i];
    struct work *w = p->w;
    int rc = other_attention(m, p, i);
    if (rc == 0)
        rc = op->norm_gated(m->be, w->ff, &y->gate, &y->up, w->x, y->ffn_norm, d->rms_eps,
                            d->gelu ? KN_ACT_GELU_TANH : KN_ACT_SILU, p->n);
    if (rc || !y->post_ffw_norm) return rc ? rc : op->linear(m->be, w->x, &y->down, w->ff, p->n, true);
    rc = op->linear(m->be, w->y, &y->down, w->ff, p->n, false);
    return rc ? rc
              : op->norm_add(m->be, w->x, w->x, w->y, y->post_ffw_norm, p->n, d->n_embd, d->rms_eps,
                             y->out_scale);
}

int dflash_block(const struct model *m, const struct model *target, const struct pass *p, struct err *e)
{
    const struct kn_ops *op = kn_op(m->be);
    const struct desc *d = m->d;
    int rc = draft_embed(m, target, p->w->x, p->ids, p->n);
    if (rc == 0)
        rc = op->rope_table(m->be, p->w->rope[0], p->pos, p->origin, p->n, m->rope_freq[0], d->rope[0].n_rot);
    for (int32_t i = 0; i < d->n_layer && rc == 0; i++)
        rc = m->kind->block   ? m->kind->block(m, p, i)
             : d->other_block ? other_block(m, p, i)
                              : qwen3_block(m, p, i);
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
