/* qwen35_mtp.c - the block of Qwen3.5 that predicts further tokens.
 *
 * A row joins a token x[t + 1] with the hidden state h[t] that the target left a position before it, after
 * its final norm, and names x[t + 2]:
 *
 *     z = Weh [rms_norm(embed(x[t + 1]); enorm), rms_norm(h[t]; hnorm)]
 *     y = rms_norm(block(z); shared_head_norm)           an attention block of the target's kind (qwen35.c)
 *     logits = Whead y                                   embedding and head are the target's
 *
 * Attention sees the rows before, by a cache of its own. Of rows whose token and hidden state are known it
 * needs keys and values alone (context). A draft goes on from the last token: its row reads h of the token
 * before it; every further row reads the token that the one before has proposed, and y in place of h:
 *
 *     row     (x[n], h[n-1])   (d1, y1)   (d2, y2)
 *     gives   d1, y1           d2, y2     d3
 *
 * The row of x[t + 1] stands at place t of the cache: the row of x[0] would have no h, and there is none.
 * Rope looks at differences only. Source: the Qwen3.5 and Qwen3-Next models of vLLM and llama.cpp; the MTP
 * layer of Hugging Face transformers. */
#include "model.h"

/* What the block reads, from tokens and hidden states y; into w->x. */
static int joined(const struct model *m, const struct model *target, const struct pass *p, const float *y,
                  const struct mtp_rows *r)
{
    const struct kn_ops *op = kn_op(m->be);
    const struct kn_weight *embed = m->d->own_embed ? &m->embed : &target->embed;
    struct work *w = p->w;
    const struct kn_norm_pair pair = {.out = w->fused,
                                      .x = w->x,
                                      .x_weight = m->embed_norm,
                                      .y = y,
                                      .y_weight = m->hidden_norm,
                                      .late = r->late,
                                      .slots = r->slots,
                                      .pos = p->pos,
                                      .before = r->before,
                                      .n = p->n,
                                      .n_before = r->n_before,
                                      .width = m->d->n_embd,
                                      .eps = m->d->rms_eps};
    int rc = op->embed(m->be, w->x, embed, p->ids, p->n, target->d->embedding_scale);
    if (rc == 0) rc = op->norm_pair(m->be, &pair);
    return rc;
}

/* Behind the pair, for it may have written the places; and before the products, which may start early. */
static int turned(const struct model *m, const struct pass *p, const int32_t *pos, int32_t n)
{
    return kn_op(m->be)->rope_table(m->be, p->w->rope[0], pos, p->origin, n, m->rope_freq[0],
                                    m->d->rope[0].n_rot);
}

int qwen35_mtp_context(const struct model *m, const struct model *target, const struct pass *p,
                       const struct mtp_rows *r, struct err *e)
{
    const struct kn_ops *op = kn_op(m->be);
    const struct desc *d = m->d;
    const struct model_layer *y = &m->layer[0];
    struct work *w = p->w;
    const int32_t *places = r->before ? r->before : r->places ? r->places : p->pos;
    float *out[] = {w->k, w->v};
    const struct kn_weight *kv[] = {&y->wk, &y->wv};
    const struct kn_rope_store store = {.k = w->k,
                                        .v = w->v,
                                        .k_norm = y->k_norm,
                                        .table = w->rope[0],
                                        .pos = places,
                                        .n = p->n,
                                        .n_head = d->layer[0].n_head,
                                        .n_rot = d->rope[0].n_rot,
                                        .interleaved = d->rope[0].interleaved,
                                        .eps = d->rms_eps,
                                        .kv = &p->kv[0]};
    int rc = joined(m, target, p, p->features, r);
    if (rc == 0) rc = turned(m, p, places, p->n);
    if (rc == 0) rc = op->linear(m->be, w->x, &m->fc, w->fused, p->n, false);
    if (rc == 0) rc = op->norm_linear(m->be, out, kv, 2, w->x, y->attn_norm, d->rms_eps, p->n);
    if (rc == 0) rc = op->rope_store(m->be, &store);
    return rc ? model_failed(m, "MTP context", rc, e) : 0;
}

int qwen35_mtp_step(const struct model *m, const struct model *target, const struct pass *p,
                    const struct mtp_rows *r, int32_t i, float *h, float *logits, struct err *e)
{
    const struct kn_ops *op = kn_op(m->be);
    const struct desc *d = m->d;
    const struct kn_weight *head = m->head ? m->head : target->head;
    const struct mtp_rows recursive = {0};
    struct work w = *p->w;
    struct pass row = *p;
    row.w = &w;
    int rc = joined(m, target, p, h, i ? &recursive : r);
    if (rc == 0 && i == 0) rc = turned(m, p, r->before, r->n_before);
    if (rc == 0) rc = op->linear(m->be, w.x, &m->fc, w.fused, 1, false);
    row.pos = r->before + i;
    w.rope[0] += (int64_t)i * d->rope[0].n_rot;
    if (rc == 0) rc = qwen35_block(m, &row, 0);
    if (rc == 0) rc = op->rms_norm(m->be, h, w.x, m->output_norm, 1, d->n_embd, d->rms_eps);
    if (rc == 0) rc = op->linear(m->be, logits, head, h, 1, false);
    return rc ? model_failed(m, "MTP block", rc, e) : 0;
}
