/* dflash2.c - a DFlash2 drafter: a DFlash block with short convolutions around its branches, and a selector.
 *
 * Rows of a DFlash block are computed side by side, and none knows what its neighbour will say. DFlash2 lets
 * them know twice. First, every branch of a layer, attention and feed-forward, stands between two
 * convolutions along the block, whose taps depend on the row (T taps, groups of channels):
 *
 *     n = rms_norm(x; attn_norm)
 *     d = Wd n                                     taps of both sides: [2, T, channels / group] a row
 *     c[i] = sum over t (base[0, t] + d[i, 0, t]) n[i - t]                rows before the block are zero
 *     q, k, v from c;  y = Wo attention(q, [context, block])              the context: no norm, no
 * convolution x[i] += sum over t (base[1, t] + d[i, 1, t]) y[i - t]               then the same around the
 * feed-forward
 *
 * Second, a selector chooses among the K best candidates of each row by the one chosen before it, beginning
 * with the anchor; rank R, h the row's hidden state after the final norm:
 *
 *     score(p -> c) = logit(c) + < A[p] * (Wh h), B[c] >
 *     greedy: the largest score, slot after slot; sampled: a pick from softmax(score / temperature)
 *
 * Row 0, the anchor's, takes part in the block, so row 1 reads it, but proposes nothing. The head's logits
 * come with the model's own scale (output_multiplier), which stands in the final norm's weight here and is
 * taken off h again. Source: DFlash2 of Inco AI and Z Lab, dflash/model.py. */
#include "draft.h"

enum { ATTENTION, FEED_FORWARD };
enum { BEFORE, BEHIND };

/* One side of a convolution around a branch: from x (through norm where there is one), into or onto out. */
static struct kn_conv side_of(const struct model *m, const struct pass *p, int32_t i, int branch, int side)
{
    const struct desc *d = m->d;
    const int64_t groups = d->n_embd / d->conv_group, taps = (int64_t)d->conv_kernel * groups;
    return (struct kn_conv){.eps = d->rms_eps,
                            .base =
                                m->layer[i].conv_base[branch] + (int64_t)side * d->conv_kernel * d->n_embd,
                            .dynamic = p->w->dynamic,
                            .stride = 2 * taps,
                            .offset = side * taps,
                            .n = p->n,
                            .width = d->n_embd,
                            .group = d->conv_group,
                            .taps = d->conv_kernel};
}

/* The taps, and the branch's input: w->conv. first: the weight that reads it. */
static int convolve_before(const struct model *m, const struct pass *p, int32_t i, int branch,
                           const float *norm, const struct kn_weight *first)
{
    const struct kn_ops *op = kn_op(m->be);
    const struct kn_weight *proj = &m->layer[i].conv_proj[branch];
    struct kn_conv c = side_of(m, p, i, branch, BEFORE);
    c.x = p->w->x, c.norm = norm, c.out = p->w->conv, c.then = first;
    int rc = op->norm_linear(m->be, &p->w->dynamic, &proj, 1, p->w->x, norm, m->d->rms_eps, p->n);
    return rc ? rc : op->conv(m->be, &c);
}

/* x += the branch's output, w->conv, convolved. What reads x next are the taps of the next branch. */
static int convolve_behind(const struct model *m, const struct pass *p, int32_t i, int branch)
{
    struct kn_conv c = side_of(m, p, i, branch, BEHIND);
    const int32_t next = branch == ATTENTION ? i : i + 1;
    c.x = p->w->conv, c.out = p->w->x, c.add = true;
    if (next < m->d->n_layer) {
        c.then = &m->layer[next].conv_proj[!branch];
        c.then_norm = branch == ATTENTION ? m->layer[next].ffn_norm : m->layer[next].attn_norm;
    }
    return kn_op(m->be)->conv(m->be, &c);
}

static int attention(const struct model *m, const struct pass *p, int32_t i)
{
    const struct kn_ops *op = kn_op(m->be);
    const struct model_layer *y = &m->layer[i];
    struct work *w = p->w;
    float *qkv[] = {w->q, w->k, w->v};
    const struct kn_weight *wqkv[] = {&y->wq, &y->wk, &y->wv};
    const struct pass_heads h = pass_heads(m, p, i);
    int rc = convolve_before(m, p, i, ATTENTION, y->attn_norm, &y->wq);
    if (rc == 0) rc = op->norm_linear(m->be, qkv, wqkv, 3, w->conv, NULL, 0, p->n);
    if (rc == 0) rc = pass_attend(m, &h);
    if (rc == 0) rc = op->linear(m->be, w->conv, &y->wo, w->attn, p->n, false);
    return rc ? rc : convolve_behind(m, p, i, ATTENTION);
}

static int feed_forward(const struct model *m, const struct pass *p, int32_t i)
{
    const struct kn_ops *op = kn_op(m->be);
    const struct model_layer *y = &m->layer[i];
    struct work *w = p->w;
    int rc = convolve_before(m, p, i, FEED_FORWARD, y->ffn_norm, &y->gate);
    if (rc == 0) rc = op->norm_gated(m->be, w->ff, &y->gate, &y->up, w->conv, NULL, 0, KN_ACT_SILU, p->n);
    if (rc == 0) rc = op->linear(m->be, w->conv, &y->down, w->ff, p->n, false);
    return rc ? rc : convolve_behind(m, p, i, FEED_FORWARD);
}

static int block(const struct model *m, const struct pass *p, int32_t i)
{
    const int rc = attention(m, p, i);
    return rc ? rc : feed_forward(m, p, i);
}

/* Candidates, edges, and the walk along them. */
static int propose(const struct model *m, const struct draft *t, struct err *e)
{
    const struct kn_ops *op = kn_op(m->be);
    const struct desc *d = m->d;
    struct work *w = t->pass.w;
    const int32_t n = t->pick.n, k = d->selector_k;
    const bool tree = t->edges.k > 0;
    int32_t *ids = tree ? t->edges.ids : w->candidates;
    float *values = tree ? t->edges.values : w->candidate_logits, *scores = tree ? t->edges.scores : w->edges;
    const float *x = w->x + (int64_t)t->skip * d->n_embd;
    const struct kn_top top = {t->pick.logits, n, t->pick.n_vocab, k, ids, values};
    const struct kn_edges edges = {.ids = ids,
                                   .values = values,
                                   .anchor = t->pass.ids,
                                   .hidden = w->selector + (int64_t)(t->first - t->skip) * d->selector_rank,
                                   .before = &m->selector.before,
                                   .after = &m->selector.after,
                                   .scale = 1 / d->logit_scale,
                                   .n = n,
                                   .k = k,
                                   .scores = scores};
    const struct kn_walk walk = {.ids = ids,
                                 .scores = scores,
                                 .pos = t->pick.pos,
                                 .n = n,
                                 .k = k,
                                 .sampler = t->pick.sampler,
                                 .out = t->pick.out,
                                 .logp = t->pick.logp};
    if (model_logits_beside(m, t->target, x, t->pass.n - t->skip, t->logits, &m->selector.hidden, w->selector,
                            e))
        return -1;
    int rc = op->top(m->be, &top);
    if (rc == 0) rc = op->edges(m->be, &edges);
    if (rc == 0) rc = op->walk(m->be, &walk);
    return rc ? model_failed(m, "selector", rc, e) : 0;
}

/* A tree's candidates are those that the selector chooses among. */
static int32_t edges_of(const struct desc *d)
{
    return d->selector_k <= KN_TOP ? d->selector_k : 0;
}

const struct draft_kind draft_dflash2 = {
    .name = "DFlash2", .block = block, .propose = propose, .edges = edges_of};
