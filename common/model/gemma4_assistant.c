/* gemma4_assistant.c - a small stack that proposes by what its Gemma 4 target has in its caches.
 *
 * It owns no keys and no values. Each layer attends to those of the target's last layer of its kind, sliding
 * or full, as they stand when the draft begins: the tokens before the last one, x[n], which the target has
 * not run. A step reads a token and a hidden state:
 *
 *     x = Wpre [embed(token) s, h]                           embedding and s are the target's; no norm
 *     for every layer:  q = rope(head_norm(Wq rms_norm(x; attn_norm)); n), and the rest as in gemma4.c
 *     y = rms_norm(x; output_norm);  logits = Whead y        its own head, no soft cap
 *     h = Wpost y                                            for the next step
 *
 *     step   (x[n], h[n-1] of the target, after its final norm)   (d1, h)   (d2, h)
 *     gives  d1                                                   d2        d3
 *
 * The query stands at position n in every step. A sliding layer of window W sees keys k with n - k < W, which
 * are W - 1 of them: the target's own rule. (Hugging Face transformers shows the last W + 1.) With clusters,
 * the ids outside the best of them get the smallest logit of the others, minus 1. Source: the Gemma 4
 * assistant of Hugging Face transformers. */
#include "model.h"

/* Of layer i: queries at n over the keys before it. */
static int attend(const struct model *m, const struct pass *p, const struct assistant_rows *r, int32_t i)
{
    const struct kn_ops *op = kn_op(m->be);
    const struct desc *d = m->d;
    const struct model_layer *y = &m->layer[i];
    struct work *w = p->w;
    const struct kn_weight *wq = &y->wq;
    struct pass_heads h = pass_heads(m, p, i);
    h.rope.k = NULL;
    h.rope.v = NULL;
    h.rope.k_norm = NULL;
    h.attention.pos = r->before; /* the newest key's, of which the window is one shorter */
    h.attention.window = d->layer[i].window ? d->layer[i].window - 1 : 0;
    h.attention.scale = 1;
    int rc = op->norm_linear(m->be, &w->q, &wq, 1, w->x, y->attn_norm, d->rms_eps, 1);
    if (rc == 0) rc = op->rope_store(m->be, &h.rope);
    if (rc == 0) rc = op->attention(m->be, &h.attention);
    return rc ? rc : op->linear(m->be, w->y, &y->wo, w->attn, 1, false);
}

/* The step's row, from its token and h; i 0: the target's, and where the newest key stands. */
static int begin(const struct model *m, const struct model *target, const struct pass *p,
                 const struct assistant_rows *r, int32_t i)
{
    const struct kn_ops *op = kn_op(m->be);
    const struct desc *d = m->d;
    struct work *w = p->w;
    const struct kn_norm_pair pair = {.out = w->fused,
                                      .raw = true,
                                      .x = w->x,
                                      .y = r->h,
                                      .late = i ? NULL : r->late,
                                      .slots = r->slots,
                                      .pos = p->pos,
                                      .before = i ? NULL : r->before,
                                      .n = 1,
                                      .n_before = 1,
                                      .width = d->n_embd_target};
    int rc = op->embed(m->be, w->x, &target->embed, p->ids, 1, target->d->embedding_scale);
    if (rc == 0) rc = op->norm_pair(m->be, &pair);
    for (int32_t set = 0; set < d->n_rope && i == 0 && rc == 0; set++)
        rc = op->rope_table(m->be, w->rope[set], p->pos, p->origin, 1, m->rope_freq[set], d->rope[set].n_rot);
    return rc ? rc : op->linear(m->be, w->x, &m->fc, w->fused, 1, false);
}

static int head(const struct model *m, const struct pass *p, const struct assistant_rows *r, float *logits)
{
    const struct kn_ops *op = kn_op(m->be);
    const struct desc *d = m->d;
    const struct kn_clusters clusters = {.logits = logits,
                                         .scores = r->scores,
                                         .of_id = m->cluster,
                                         .n = 1,
                                         .n_vocab = d->n_vocab,
                                         .n_clusters = d->n_clusters,
                                         .n_best = d->n_best};
    int rc = op->rms_norm(m->be, r->y, p->w->x, m->output_norm, 1, d->n_embd, d->rms_eps);
    if (rc == 0) rc = op->linear(m->be, logits, m->head, r->y, 1, false);
    if (rc == 0 && d->n_clusters) rc = op->linear(m->be, r->scores, &m->centroids, r->y, 1, false);
    if (rc == 0 && d->n_clusters) rc = op->clusters(m->be, &clusters);
    return rc ? rc : op->linear(m->be, r->h, &m->post, r->y, 1, false);
}

int gemma4_assistant_step(const struct model *m, const struct model *target, const struct pass *p,
                          const struct assistant_rows *r, int32_t i, float *logits, struct err *e)
{
    int rc = begin(m, target, p, r, i);
    for (int32_t k = 0; k < m->d->n_layer && rc == 0; k++) {
        rc = attend(m, p, r, k);
        if (rc == 0) rc = gemma4_branches(m, p, k);
    }
    if (rc == 0) rc = head(m, p, r, logits);
    return rc ? model_failed(m, "assistant", rc, e) : 0;
}
