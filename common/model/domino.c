/* domino.c - the head of a Domino drafter: a DFlash stack whose logits are corrected by what a small
 * recurrent unit has read of the block so far.
 *
 * The unit reads the embeddings of the anchor and of the proposals, one by one; s_j is its state behind the
 * j-th of them (the anchor's is s_0). z_k is row k of the block behind the final norm.
 *
 *     r, z, n:   x = Wi embed(t),  h = Wh s
 *                s = (1 - u) tanh(xn + sigmoid(xr + hr) hn) + u s,   u = sigmoid(xz + hz);   0 before s_0
 *     row k:     logits_k += Wup silu(Wdown [z_k; s_j])
 *
 * Proposal j, from 0, is picked of row k = j + 1, or with shift_label of row j; the first few (pure_prefix)
 * are picked of the head's own logits. With shift_label the block's last row would propose one token more,
 * which no reference takes: it runs, for the rows before see it, and is not asked. Source: Domino, arXiv
 * 2605.29707; SpecForge's model. */
#include "draft.h"

/* s_j beside row k: from s_{j-1} beside the row before, and the token before proposal j. */
static int read_token(const struct model *m, const struct draft *t, int32_t j, float *row, int64_t width)
{
    const struct kn_ops *op = kn_op(m->be);
    const struct desc *d = m->d;
    const struct work *w = t->pass.w;
    const float *state = j ? row - width + d->n_embd : NULL;
    float *h = w->mixed + 3 * (int64_t)d->n_state;
    const struct kn_cell gru = {.kind = KN_CELL_GRU,
                                .width = d->n_state,
                                .x = w->mixed,
                                .h = state ? h : NULL,
                                .state = state,
                                .next = row + d->n_embd};
    int rc = draft_embed(m, t->target, w->joint, draft_before(t, j), 1);
    if (rc == 0) rc = op->linear(m->be, w->mixed, &m->heads.ih, w->joint, 1, false);
    if (rc == 0 && state) rc = op->linear(m->be, h, &m->heads.hh, state, 1, false);
    return rc ? rc : op->cell(m->be, &gru);
}

static int correct(const struct model *m, const struct draft *t, int32_t j, const float *row)
{
    const struct kn_ops *op = kn_op(m->be);
    float *low = t->pass.w->mixed + 6 * (int64_t)m->d->n_state;
    float *logits = (float *)t->pick.logits + (int64_t)j * t->pick.n_vocab;
    const struct kn_cell silu = {.kind = KN_CELL_SILU, .width = m->d->n_correct, .x = low, .out = low};
    int rc = op->linear(m->be, low, &m->heads.down, row, 1, false);
    if (rc == 0) rc = op->cell(m->be, &silu);
    return rc ? rc : op->linear(m->be, logits, &m->heads.up, low, 1, true);
}

static int propose(const struct model *m, const struct draft *t, struct err *e)
{
    const struct kn_ops *op = kn_op(m->be);
    const struct desc *d = m->d;
    struct work *w = t->pass.w;
    const int64_t width = (int64_t)d->n_embd + d->n_state;
    if (draft_logits(m, t, e)) return -1;
    int rc = op->rms_norm(m->be, w->fused, w->x, m->output_norm, t->pass.n, d->n_embd, d->rms_eps);
    if (rc == 0) rc = op->tap(m->be, w->beside, width, 0, w->fused, t->pass.n, d->n_embd);
    for (int32_t j = 0; j < t->pick.n && rc == 0; j++) {
        float *row = w->beside + (t->first + j) * width;
        rc = read_token(m, t, j, row, width);
        if (rc == 0 && j >= d->pure_prefix) rc = correct(m, t, j, row);
        if (rc == 0) rc = draft_pick_one(m, t, j);
    }
    if (rc == 0) rc = draft_candidates(m, t, NULL, &m->heads.up);
    return rc ? model_failed(m, "Domino head", rc, e) : 0;
}

static int32_t edges_of(const struct desc *d)
{
    return d->n_correct <= KN_EDGE_RANK ? KN_TOP : 0;
}

const struct draft_kind draft_domino = {
    .name = "Domino", .propose = propose, .edges = edges_of, .edges_behind = true};
