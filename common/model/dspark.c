/* dspark.c - the head of a DSpark drafter: a DFlash stack whose proposals are made one after the other.
 *
 * Row k of the block, h_k behind the final norm, has the logits z_k of the head. To them is added what a
 * matrix of low rank knows of the token t before the row's own: that of the anchor for the first proposal,
 * then the proposal that was just picked.
 *
 *     e = W1[t]
 *     vanilla:   z_k += W2 e
 *     gated:     z_k += W2 (e * sigmoid(Wg [h_k; e] + bg))
 *     rnn:       g, c, o = Wj [s; e; h_k] + bj;  z_k += W2 tanh(o)
 *                s = sigmoid(g) s + (1 - sigmoid(g)) tanh(c)                 0 before the first row
 *     t = pick of z_k
 *
 * With a reduced vocabulary z_k and W2 have a row for each of its tokens. How likely a proposal is to be
 * taken has a head of its own, sigmoid(wc [h_k; e] + bc) with the plain e, or of h_k alone; it was trained on
 * rejection sampling, where ours asks for equality, so who plans by it must calibrate it
 * (common/run/calibration.h). Source: DSpark, DeepSpec's Qwen3 model. */
#include "draft.h"

/* Rows from the first that proposes on: their width, and where row k has its token's e. */
struct rows {
    const struct desc *d;
    const struct work *w;
    int64_t width;
};

static float *row_of(const struct rows *r, int32_t k)
{
    return r->w->beside + k * r->width;
}
static float *token_of(const struct rows *r, int32_t k)
{
    return row_of(r, k) + r->d->n_embd;
}
static float *joint_of(const struct rows *r, int32_t k)
{
    return r->w->joint + k * (2 * (int64_t)r->d->markov_rank + r->d->n_embd);
}

/* Normed rows, where the head reads them. */
static int place_rows(const struct model *m, const struct draft *t, const struct rows *r)
{
    const struct kn_ops *op = kn_op(m->be);
    const struct desc *d = m->d;
    struct work *w = t->pass.w;
    const int32_t n = t->pass.n;
    if (d->markov == MARKOV_VANILLA && !d->confidence) return 0;
    int rc = op->rms_norm(m->be, w->fused, w->x, m->output_norm, n, d->n_embd, d->rms_eps);
    if (rc == 0) rc = op->tap(m->be, w->beside, r->width, 0, w->fused, n, d->n_embd);
    if (rc == 0 && d->markov == MARKOV_RNN) /* no row's state or token */
        rc = op->tap(m->be, w->joint, 2 * (int64_t)d->markov_rank + d->n_embd, 2 * (int64_t)d->markov_rank,
                     w->fused, n, d->n_embd);
    return rc;
}

/* What W2 is multiplied with, of row k, whose token's e is there. */
static int mix(const struct model *m, const struct rows *r, int32_t k, const float **latent)
{
    const struct kn_ops *op = kn_op(m->be);
    const int32_t rank = r->d->markov_rank;
    float *e = token_of(r, k), *product = r->w->mixed, *out = product + 3 * (int64_t)rank;
    struct kn_cell cell = {
        .width = rank, .x = product, .bias = m->heads.mix_bias, .out = out, .kind = KN_CELL_GATE, .e = e};
    int rc;
    *latent = out;
    if (r->d->markov == MARKOV_GATED) {
        rc = op->linear(m->be, product, &m->heads.mix, row_of(r, k), 1, false);
        return rc ? rc : op->cell(m->be, &cell);
    }
    float *joint = joint_of(r, k);
    cell.kind = KN_CELL_MARKOV, cell.state = joint, cell.next = joint_of(r, k + 1);
    rc = op->tap(m->be, joint, 2 * (int64_t)rank + r->d->n_embd, rank, e, 1, rank);
    if (rc == 0) rc = op->linear(m->be, product, &m->heads.mix, joint, 1, false);
    return rc ? rc : op->cell(m->be, &cell);
}

/* Proposal i, of row first + i. */
static int slot(const struct model *m, const struct draft *t, const struct rows *r, int32_t i)
{
    const struct kn_ops *op = kn_op(m->be);
    const struct desc *d = m->d;
    const int32_t k = t->first + i;
    const float *latent = token_of(r, k);
    float *row = (float *)t->pick.logits + (int64_t)i * t->pick.n_vocab;
    float *z = d->n_vocab_draft ? r->w->part + (int64_t)(k - t->skip) * d->n_vocab_draft : row;
    int rc = op->embed(m->be, token_of(r, k), &m->heads.w1, draft_before(t, i), 1, 1.0f);
    if (rc == 0 && d->markov != MARKOV_VANILLA) rc = mix(m, r, k, &latent);
    if (rc == 0) rc = op->linear(m->be, z, &m->heads.w2, latent, 1, true);
    if (rc == 0 && d->n_vocab_draft)
        rc = op->spread(m->be, row, t->pick.n_vocab, z, d->n_vocab_draft, r->w->from, 1);
    return rc ? rc : draft_pick_one(m, t, i);
}

static int confidences(const struct model *m, const struct draft *t, const struct rows *r)
{
    const struct kn_ops *op = kn_op(m->be);
    const float *x =
        m->d->confidence_markov ? row_of(r, t->first) : r->w->fused + (int64_t)t->first * m->d->n_embd;
    const struct kn_cell cell = {.kind = KN_CELL_LOGP,
                                 .width = t->pick.n,
                                 .x = r->w->mixed,
                                 .bias = m->heads.conf_bias,
                                 .out = t->pick.logp};
    const int rc = op->linear(m->be, r->w->mixed, &m->heads.conf, x, t->pick.n, false);
    return rc ? rc : op->cell(m->be, &cell);
}

/* For a tree: candidates by the logits behind the proposals, and what W2 adds for each token that may stand
 * before in place of one. (Candidates by the head's own logits lost: of the trained pair's trees of 31 they
 * gave 5.54 tokens a cycle, these 5.80, and no edges 5.62.) */
static int32_t edges_of(const struct desc *d)
{
    const int32_t n = d->n_vocab_draft ? d->n_vocab_draft : KN_TOP;
    return d->markov_rank && d->markov_rank <= KN_EDGE_RANK ? n < KN_TOP ? n : KN_TOP : 0;
}

static int propose(const struct model *m, const struct draft *t, struct err *e)
{
    const struct desc *d = m->d;
    const struct rows r = {d, t->pass.w, (int64_t)d->n_embd + d->markov_rank};
    struct draft chain = *t;
    if (d->confidence) chain.pick.logp = NULL; /* the head's stand there */
    if (draft_logits(m, t, e)) return -1;
    int rc = place_rows(m, t, &r);
    if (rc == 0 && !d->markov_rank) rc = kn_op(m->be)->pick(m->be, &chain.pick);
    for (int32_t i = 0; i < t->pick.n && d->markov_rank && rc == 0; i++) rc = slot(m, &chain, &r, i);
    if (rc == 0 && d->confidence) rc = confidences(m, t, &r);
    if (rc == 0) rc = draft_candidates(m, t, &m->heads.w1, &m->heads.w2);
    return rc ? model_failed(m, "DSpark head", rc, e) : 0;
}

const struct draft_kind draft_dspark = {
    .name = "DSpark", .propose = propose, .edges = edges_of, .edges_behind = true};
