/* qwen3.c - the block of a Qwen3 target, dense or with experts.
 *
 *     n = rms_norm(x; attn_norm)
 *     q, k = rope(head_norm(Wq n)), rope(head_norm(Wk n));  v = Wv n
 *     x += Wo attention(q, k, v)                       causal, grouped heads, scale 1/sqrt(head_dim)
 *     m = rms_norm(x; ffn_norm)
 *     dense:    x += Wdown (silu(Wgate m) * (Wup m))
 *     experts:  p = softmax(Wrouter m); the largest few, their p divided by their sum
 *               x += sum over them of p Wdown_e (silu(Wgate_e m) * (Wup_e m))
 *
 * The last block's x is left for model_logits, which norms it. Source: the Qwen3 and Qwen3MoE models of
 * Hugging Face transformers. */
#include <math.h>
#include "model.h"

int qwen3_attention(const struct model *m, const struct pass *p, int32_t i)
{
    struct kn_backend *be = m->be;
    const struct kn_ops *op = kn_op(be);
    const struct desc *d = m->d;
    const struct desc_layer *l = &d->layer[i];
    const struct model_layer *y = &m->layer[i];
    struct work *w = p->w;
    float *qkv[] = {w->q, w->k, w->v};
    const struct kn_weight *wqkv[] = {&y->wq, &y->wk, &y->wv};
    const struct kn_rope_store rope = {.q = w->q,
                                       .k = w->k,
                                       .v = w->v,
                                       .q_norm = y->q_norm,
                                       .k_norm = y->k_norm,
                                       .table = w->rope[l->rope],
                                       .pos = p->pos,
                                       .n = p->n,
                                       .n_head = l->n_head,
                                       .n_rot = d->rope[l->rope].n_rot,
                                       .interleaved = d->rope[l->rope].interleaved,
                                       .eps = d->rms_eps,
                                       .kv = &p->kv[i]};
    const struct kn_attention attn = {.q = w->q,
                                      .out = w->attn,
                                      .kv = &p->kv[i],
                                      .pos = p->pos,
                                      .n = p->n,
                                      .n_head = l->n_head,
                                      .scale = 1.0f / sqrtf((float)l->head_dim),
                                      .causal = l->causal,
                                      .window = l->window,
                                      .first = p->visible_from};
    int rc = op->norm_linear(be, qkv, wqkv, 3, w->x, y->attn_norm, d->rms_eps, p->n);
    if (rc == 0) rc = op->rope_store(be, &rope);
    if (rc == 0) rc = op->attention(be, &attn);
    return rc ? rc : op->linear(be, w->x, &y->wo, w->attn, p->n, true);
}

int qwen3_block(const struct model *m, const struct pass *p, int32_t i)
{
    const struct kn_ops *op = kn_op(m->be);
    const struct model_layer *y = &m->layer[i];
    struct work *w = p->w;
    int rc = qwen3_attention(m, p, i);
    if (rc == 0)
        rc = op->norm_gated(m->be, w->ff, &y->gate, &y->up, w->x, y->ffn_norm, m->d->rms_eps, KN_ACT_SILU,
                            p->n);
    return rc ? rc : op->linear(m->be, w->x, &y->down, w->ff, p->n, true);
}

static int moe_block(const struct model *m, const struct pass *p, int32_t i)
{
    struct kn_backend *be = m->be;
    const struct kn_ops *op = kn_op(be);
    const struct desc *d = m->d;
    const struct model_layer *y = &m->layer[i];
    struct work *w = p->w;
    const int32_t used = d->n_expert_used;
    const struct kn_weight *router = &y->router;
    const struct kn_route route = {.logits = w->router,
                                   .n = p->n,
                                   .n_expert = d->n_expert,
                                   .n_used = used,
                                   .renorm = true,
                                   .scale = d->expert_weights_scale,
                                   .ids = w->expert,
                                   .weights = w->expert_w};
    int rc = qwen3_attention(m, p, i);
    if (rc == 0) rc = op->norm_linear(be, &w->router, &router, 1, w->x, y->ffn_norm, d->rms_eps, p->n);
    if (rc == 0) rc = op->route(be, &route);
    if (rc == 0)
        rc = op->experts_gated(be, w->expert_ff, &y->gate_x, &y->up_x, w->x, y->ffn_norm, d->rms_eps,
                               KN_ACT_SILU, w->expert, p->n, used);
    return rc ? rc
              : op->experts_down(be, w->x, &y->down_x, w->expert_ff, w->expert, w->expert_w, p->n, used,
                                 true);
}

const struct model_family family_qwen3 = {DESC_QWEN3, qwen3_block};
const struct model_family family_qwen3moe = {DESC_QWEN3MOE, moe_block};
