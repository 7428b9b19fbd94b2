/* gemma4.c - the block of a Gemma 4 target, dense or with experts beside the dense branch.
 *
 *     n = rms_norm(x; attn_norm)
 *     q = rope(head_norm(Wq n; q_norm));  k = rope(head_norm(Wk n; k_norm));  v = head_norm(Wv n)
 *     a = x + rms_norm(Wo attention(q, k, v); post_attention_norm)
 *     dense:    y = Wdown (gelu(Wgate m) * (Wup m)),  m = rms_norm(a; ffn_norm)
 *     experts:  y = rms_norm(y; post_ffw_norm_1) + rms_norm(z; post_ffw_norm_2)
 *               p = softmax(Wrouter (rms_norm(a) * scale / sqrt(n_embd)))
 *               the largest few, their p divided by their sum, times the expert's own scale
 *               z = sum over them of p Wdown_e (gelu(Wgate_e h) * (Wup_e h))
 *               h = rms_norm(a; pre_ffw_norm_2)
 *     x = (a + rms_norm(y; post_ffw_norm)) * layer_output_scale
 *
 * Layers are sliding or full, with head sizes, key heads and rope sets of their own. The norms of q and k set
 * the size of the scores, so they are not divided by sqrt(head_dim). The norm of v has no weight. Full layers
 * may have no Wv: v is then made of Wk n, before k's norm and rotation. Of the pairs of a full layer's head
 * only the first quarter turns (the rope set's divisors stop the rest). gelu is the tanh form. What is around
 * the blocks: the embedding times sqrt(n_embd), and c tanh(logits / c). Source: the Gemma 4 text model of
 * Hugging Face transformers. */
#include "model.h"

static int attention(const struct model *m, const struct pass *p, int32_t i)
{
    struct kn_backend *be = m->be;
    const struct kn_ops *op = kn_op(be);
    const struct desc *d = m->d;
    const struct desc_layer *l = &d->layer[i];
    const struct model_layer *y = &m->layer[i];
    struct work *w = p->w;
    float *qkv[] = {w->q, w->k, w->v};
    const struct kn_weight *wqkv[] = {&y->wq, &y->wk, &y->wv};
    struct pass_heads h = pass_heads(m, p, i);
    if (l->value_is_key) h.rope.v = w->k;
    h.rope.v_norm = true;
    h.attention.scale = 1;
    int rc = op->norm_linear(be, qkv, wqkv, l->value_is_key ? 2 : 3, w->x, y->attn_norm, d->rms_eps, p->n);
    if (rc == 0) rc = pass_attend(m, &h);
    return rc ? rc : op->linear(be, w->y, &y->wo, w->attn, p->n, false);
}

/* w->y = the dense branch of w->x. */
static int dense(const struct model *m, const struct pass *p, const struct model_layer *y)
{
    const struct kn_ops *op = kn_op(m->be);
    struct work *w = p->w;
    int rc = op->norm_gated(m->be, w->ff, &y->gate, &y->up, w->x, y->ffn_norm, m->d->rms_eps,
                            KN_ACT_GELU_TANH, p->n);
    return rc ? rc : op->linear(m->be, w->y, &y->down, w->ff, p->n, false);
}

/* w->y2 = the branch of experts of w->x. router_scale was divided by sqrt(n_embd) when it was loaded. */
static int experts(const struct model *m, const struct pass *p, int32_t i)
{
    const struct model_layer *y = &m->layer[i];
    const struct pass_mixture x = {
        y->router_scale, y->pre_ffw_norm_2, KN_ACT_GELU_TANH, p->w->y2, false, false};
    return pass_experts(m, p, i, &x);
}

int gemma4_branches(const struct model *m, const struct pass *p, int32_t i)
{
    struct kn_backend *be = m->be;
    const struct kn_ops *op = kn_op(be);
    const struct desc *d = m->d;
    const struct model_layer *y = &m->layer[i];
    struct work *w = p->w;
    kn_next(be, &y->gate, y->ffn_norm);
    int rc = op->norm_add(be, w->x, w->x, w->y, y->post_attn_norm, p->n, d->n_embd, d->rms_eps, 1);
    if (rc == 0) rc = dense(m, p, y);
    if (rc == 0 && d->layer[i].moe) {
        rc = experts(m, p, i);
        if (rc == 0 && op->norm_join)
            return op->norm_join(be, w->x, w->x, w->y, y->post_ffw_norm_1, w->y2, y->post_ffw_norm_2,
                                 y->post_ffw_norm, p->n, d->n_embd, d->rms_eps, y->out_scale);
        if (rc == 0) rc = op->rms_norm(be, w->y, w->y, y->post_ffw_norm_1, p->n, d->n_embd, d->rms_eps);
        if (rc == 0)
            rc = op->norm_add(be, w->y, w->y, w->y2, y->post_ffw_norm_2, p->n, d->n_embd, d->rms_eps, 1);
    }
    if (i + 1 < d->n_layer) kn_next(be, &m->layer[i + 1].wq, m->layer[i + 1].attn_norm);
    return rc ? rc
              : op->norm_add(be, w->x, w->x, w->y, y->post_ffw_norm, p->n, d->n_embd, d->rms_eps,
                             y->out_scale);
}

static int block(const struct model *m, const struct pass *p, int32_t i)
{
    const int rc = attention(m, p, i);
    return rc ? rc : gemma4_branches(m, p, i);
}

const struct model_family family_gemma4 = {DESC_GEMMA4, block};
