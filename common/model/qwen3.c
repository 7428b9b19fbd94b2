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
#include "model.h"

int qwen3_attention(const struct model *m, const struct pass *p, int32_t i)
{
    struct kn_backend *be = m->be;
    const struct kn_ops *op = kn_op(be);
    const struct desc *d = m->d;
    const struct model_layer *y = &m->layer[i];
    struct work *w = p->w;
    float *qkv[] = {w->q, w->k, w->v};
    const struct kn_weight *wqkv[] = {&y->wq, &y->wk, &y->wv};
    const struct pass_heads h = pass_heads(m, p, i);
    int rc = op->norm_linear(be, qkv, wqkv, 3, w->x, y->attn_norm, d->rms_eps, p->n);
    if (rc == 0) rc = pass_attend(m, &h);
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
    const float *norm = m->layer[i].ffn_norm;
    const struct pass_mixture x = {norm, norm, KN_ACT_SILU, p->w->x, true, false};
    int rc = qwen3_attention(m, p, i);
    return rc ? rc : pass_experts(m, p, i, &x);
}

const struct model_family family_qwen3 = {DESC_QWEN3, qwen3_block};
const struct model_family family_qwen3moe = {DESC_QWEN3MOE, moe_block};
