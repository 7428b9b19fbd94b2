/* qwen35.c - the block of a Qwen3.5 target, dense or with experts: a gated delta net in most layers, gated
 * attention in the others.
 *
 *     n = rms_norm(x; attn_norm)
 *
 *     attention:  q, k = rope(head_norm(Wq n)), rope(head_norm(Wk n));  v = Wv n
 *                 x += Wo (attention(q, k, v) * sigmoid(Wg n))
 *                 rope turns the first dimensions of a head
 *
 *     delta net:  u = silu(conv(Wqkv n)), a short causal convolution a channel
 *                 q, k, v = u, q and k of norm 1
 *                 S = exp(g) S;  S += b (v - S k) k^T;  o = S q / sqrt(d_k)      a state S a head
 *                 with g = a softplus(Walpha n + dt), b = sigmoid(Wbeta n)
 *                 x += Wout (rms_norm(o; ssm_norm) * silu(Wz n))
 *
 *     m = rms_norm(x; post_attention_norm)
 *     dense:      x += Wdown (silu(Wgate m) * (Wup m))
 *     experts:    p = softmax(Wrouter m); the largest few, their p divided by their sum
 *                 x += sum over them of p Wdown_e (silu(Wgate_e m) * (Wup_e m))
 *                 x += Wdown_s (sigmoid(w m) (silu(Wgate_s m) * (Wup_s m)))      the expert that all share
 *
 * Wq and Wg lie in one tensor, [q | gate] a head, and are parted when they are loaded; the gate of the shared
 * expert is a number a row, so it may come before Wdown_s, or after it. Source: the Qwen3.5 and Qwen3.5 MoE
 * models of Hugging Face transformers; "Gated Delta Networks", arXiv 2412.06464. */
#include "model.h"

static int attention(const struct model *m, const struct pass *p, int32_t i)
{
    struct kn_backend *be = m->be;
    const struct kn_ops *op = kn_op(be);
    const struct desc *d = m->d;
    const struct desc_layer *l = &d->layer[i];
    const struct model_layer *y = &m->layer[i];
    struct work *w = p->w;
    float *qgkv[] = {w->q, w->g, w->k, w->v};
    const struct kn_weight *weights[] = {&y->wq, &y->wg, &y->wk, &y->wv};
    struct pass_heads h = pass_heads(m, p, i);
    const int64_t width = (int64_t)l->n_head * l->head_dim;
    h.attention.gate = w->g;
    int rc = op->norm_linear(be, qgkv, weights, 4, w->x, y->attn_norm, d->rms_eps, p->n);
    if (rc == 0) rc = pass_attend(m, &h);
    if (rc == 0 && op->gate_linear) return op->gate_linear(be, w->x, &y->wo, w->attn, w->g, p->n);
    if (rc == 0) rc = op->gate(be, w->attn, w->g, p->n, width, width);
    return rc ? rc : op->linear(be, w->x, &y->wo, w->attn, p->n, true);
}

/* The state of layer i through the rows of the pass: n of them, after those that are pending. */
static struct kn_delta state_rows(const struct model *m, const struct pass *p, int32_t i)
{
    const struct desc *d = m->d;
    const struct model_layer *y = &m->layer[i];
    const struct work *w = p->w;
    return (struct kn_delta){.qkv = w->qkv,
                             .alpha = w->alpha,
                             .beta = w->beta,
                             .z = w->z,
                             .conv = y->conv,
                             .a = y->a,
                             .dt = y->dt,
                             .norm = y->ssm_norm,
                             .eps = d->rms_eps,
                             .out = w->attn,
                             .n = p->n,
                             .n_k = d->n_k,
                             .n_v = d->n_v,
                             .d_k = d->d_k,
                             .d_v = d->d_v,
                             .n_conv = d->n_conv,
                             .state = &p->delta[i],
                             .pending = p->pending,
                             .commit = p->commit,
                             .every = p->every,
                             .tree = p->tree};
}

static int delta_net(const struct model *m, const struct pass *p, int32_t i)
{
    struct kn_backend *be = m->be;
    const struct kn_ops *op = kn_op(be);
    const struct model_layer *y = &m->layer[i];
    struct work *w = p->w;
    float *out[] = {w->qkv, w->z, w->alpha, w->beta};
    const struct kn_weight *weights[] = {&y->qkv, &y->z, &y->alpha, &y->beta};
    int rc = op->norm_linear(be, out, weights, 4, w->x, y->attn_norm, m->d->rms_eps, p->n);
    const struct kn_delta delta = state_rows(m, p, i);
    if (rc == 0 && op->delta_linear) return op->delta_linear(be, &delta, w->x, &y->ssm_out);
    if (rc == 0) rc = op->delta(be, &delta);
    return rc ? rc : op->linear(be, w->x, &y->ssm_out, w->attn, p->n, true);
}

int qwen35_replay(const struct model *m, const struct pass *p)
{
    int rc = 0;
    for (int32_t i = 0; i < m->d->n_layer && rc == 0; i++) {
        if (!m->d->layer[i].recurrent) continue;
        const struct kn_delta delta = state_rows(m, p, i);
        rc = kn_op(m->be)->delta(m->be, &delta);
    }
    return rc;
}

static int dense(const struct model *m, const struct pass *p, int32_t i)
{
    const struct kn_ops *op = kn_op(m->be);
    const struct model_layer *y = &m->layer[i];
    struct work *w = p->w;
    int rc = op->norm_gated(m->be, w->ff, &y->gate, &y->up, w->x, y->post_attn_norm, m->d->rms_eps,
                            KN_ACT_SILU, p->n);
    return rc ? rc : op->linear(m->be, w->x, &y->down, w->ff, p->n, true);
}

/* x is added to when all that read it have. */
static int experts(const struct model *m, const struct pass *p, int32_t i)
{
    struct kn_backend *be = m->be;
    const struct kn_ops *op = kn_op(be);
    const struct desc *d = m->d;
    const struct model_layer *y = &m->layer[i];
    struct work *w = p->w;
    const float *norm = y->post_attn_norm;
    const struct kn_weight *gate = &y->shared;
    const struct pass_mixture routed = {norm, norm, KN_ACT_SILU, w->x, true, pass_shares(m, i)};
    if (routed.shared) return pass_experts(m, p, i, &routed);
    int rc = op->norm_linear(be, &w->shared, &gate, 1, w->x, norm, d->rms_eps, p->n);
    if (rc == 0)
        rc = op->norm_gated(be, w->ff, &y->gate_s, &y->up_s, w->x, norm, d->rms_eps, KN_ACT_SILU, p->n);
    if (rc == 0) rc = op->gate(be, w->ff, w->shared, p->n, d->n_ff_shexp, 1);
    if (rc == 0) rc = pass_experts(m, p, i, &routed);
    return rc ? rc : op->linear(be, w->x, &y->down_s, w->ff, p->n, true);
}

int qwen35_block(const struct model *m, const struct pass *p, int32_t i)
{
    const struct desc_layer *l = &m->d->layer[i];
    int rc = l->recurrent ? delta_net(m, p, i) : attention(m, p, i);
    if (rc) return rc;
    return l->moe ? experts(m, p, i) : dense(m, p, i);
}

const struct model_family family_qwen35 = {DESC_QWEN35, qwen35_block};
const struct model_family family_qwen35moe = {DESC_QWEN35MOE, qwen35_block};
