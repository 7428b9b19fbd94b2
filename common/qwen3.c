/* qwen3.c - the forward pass of a dense Qwen3 target.
 *
 *     x = embed(ids)
 *     for every block:   n = rms_norm(x; attn_norm)
 *                        q, k = rope(head_norm(Wq n)), rope(head_norm(Wk n));  v = Wv n
 *                        x += Wo attention(q, k, v)           causal, grouped heads, scale 1/sqrt(head_dim)
 *                        m = rms_norm(x; ffn_norm)
 *                        x += Wdown (silu(Wgate m) * (Wup m))
 *                        tap x where the drafter listens to this block
 *
 * The last block's x is left for model_logits, which norms it. Source: the Qwen3 model of Hugging Face
 * transformers. */
#include <math.h>
#include "model.h"

static int leave_taps(const struct model *m, const struct pass *p, int32_t block)
{
    const struct kn_ops *op = kn_op(m->be);
    int64_t width = m->d->n_embd;
    int rc = 0;
    for (int32_t t = 0; p->features && t < p->tapped->n_taps && rc == 0; t++)
        if (p->tapped->taps[t] == block)
            rc = op->tap(m->be, p->features, p->tapped->n_features, t * width, p->w->x, p->n, width);
    return rc;
}

static int check_block(const struct model *m, const struct pass *p, int32_t block, struct err *e)
{
    int32_t bad;
    int rc = kn_op(m->be)->find_bad(m->be, p->w->x, p->n, m->d->n_embd, &bad);
    if (rc) return model_failed(m, "find_bad", rc, e);
    if (bad < 0) return 0;
    if (block < 0)
        return err_set(e, ERR_DEVICE, "position %d: NaN or Inf in the embedding", p->first_pos + bad);
    return err_set(e, ERR_DEVICE, "position %d: NaN or Inf in the output of layer %d, the first that has one",
                   p->first_pos + bad, block);
}

int qwen3_block(const struct model *m, const struct pass *p, int32_t i)
{
    struct kn_backend *be = m->be;
    const struct kn_ops *op = kn_op(be);
    const struct desc *d = m->d;
    const struct model_layer *y = &m->layer[i];
    struct work *w = p->w;
    float *qkv[] = {w->q, w->k, w->v};
    const struct kn_weight *wqkv[] = {&y->wq, &y->wk, &y->wv};
    const struct kn_rope_store rope = {.q = w->q,
                                       .k = w->k,
                                       .v = w->v,
                                       .q_norm = y->q_norm,
                                       .k_norm = y->k_norm,
                                       .table = w->rope,
                                       .pos = p->pos,
                                       .n = p->n,
                                       .n_head = d->n_head,
                                       .n_rot = d->head_dim,
                                       .eps = d->rms_eps,
                                       .kv = &p->kv[i]};
    const struct kn_attention attn = {.q = w->q,
                                      .out = w->attn,
                                      .kv = &p->kv[i],
                                      .pos = p->pos,
                                      .n = p->n,
                                      .n_head = d->n_head,
                                      .scale = 1.0f / sqrtf((float)d->head_dim),
                                      .causal = d->layer[i].causal,
                                      .window = d->layer[i].window,
                                      .first = p->visible_from};
    int rc = op->norm_linear(be, qkv, wqkv, 3, w->x, y->attn_norm, d->rms_eps, p->n);
    if (rc == 0) rc = op->rope_store(be, &rope);
    if (rc == 0) rc = op->attention(be, &attn);
    if (rc == 0) rc = op->linear(be, w->x, &y->wo, w->attn, p->n, true);
    if (rc == 0)
        rc = op->norm_gated(be, w->ff, &y->gate, &y->up, w->x, y->ffn_norm, d->rms_eps, KN_ACT_SILU, p->n);
    if (rc == 0) rc = op->linear(be, w->x, &y->down, w->ff, p->n, true);
    return rc;
}

int qwen3_pass(const struct model *m, const struct pass *p, struct err *e)
{
    const struct kn_ops *op = kn_op(m->be);
    const struct desc *d = m->d;
    int rc = op->embed(m->be, p->w->x, &m->embed, p->ids, p->n, d->embedding_scale);
    if (rc == 0) rc = op->rope_table(m->be, p->w->rope, p->pos, p->n, m->rope_freq, d->head_dim);
    if (rc) return model_failed(m, "embedding", rc, e);
    if (p->check && check_block(m, p, -1, e)) return -1;
    for (int32_t i = 0; i < d->n_layer; i++) {
        rc = qwen3_block(m, p, i);
        if (rc == 0) rc = leave_taps(m, p, i);
        if (rc) return model_failed(m, "forward pass", rc, e);
        if (p->check && check_block(m, p, i, e)) return -1;
    }
    return 0;
}
