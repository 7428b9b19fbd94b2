/* draft_left.c - what stands before a place, of heads that read it through a unit: DSpark's gated and
 * recurrent Markov heads, and Domino.
 *
 * A tree's second choices want to know how well each candidate c of place i follows each candidate p of the
 * place before. All three heads add to the logits of place i a product of a matrix and a short vector, which
 * the unit makes of p and of what it knows besides. So the vector is made here for each p in place of the
 * proposal, and op->edges multiplies it with the rows of the c:
 *
 *     gated:     left = e * sigmoid(Wg [h_i; e] + bg),  e = W1[p]
 *     rnn:       left = tanh(o),  g, c, o = Wj [s; e; h_i] + bj
 *     Domino:    left = silu(Wdown [z_i; s'])           s' = the unit's state behind s and embed(p)
 *
 * s is the state behind the proposals before p. Behind one second choice that is the state of the path;
 * behind two or more the unit has read the proposal where the path has the first of them. A state of its own
 * for each path would need the host between any two places: a node is chosen by what the one before it
 * reached.
 *
 * Places are made a few at a time, so that products have KN_CYCLE_ROWS rows: their matrices are read once for
 * those. What the sums of a row are does not depend on it. */
#include "draft.h"

#include "../base/mem.h"

enum { EACH, PART, PART_OF = PART + 3, LISTS = PART_OF + 3 };

struct draft_left {
    int32_t first;              /* of the places: those before it, of Domino's prefix, stay zeros */
    int32_t k, places, group;   /* candidates of a place; places behind another, 0: none; of a call */
    float *left;                /* [places + 1, k, rank]; those of place 0 stay zeros */
    float *e, *in, *x, *turned; /* [group k, ..] embeddings, the unit's input, its product, its parts apart */
    float *h, *parts_h;         /* Domino: Wh s of the places [places, 3 n_state], and as turned */
    float *states, *state;      /* Domino: s of the proposals [places + 1, n_state]; of the rows */
    float *next;                /* [group k, ..] states that come */
    float *bias;                /* as x, or as turned */
    int32_t *list[LISTS]; /* [group k] of row r: r / k; its parts 3 r + j; those of its place 3 (r / k) + j */
};

static int64_t rank_of(const struct desc *d)
{
    return d->n_state ? d->n_correct : d->markov_rank;
}

static int new_lists(struct draft_left *l, const struct model *m, struct err *e)
{
    const struct kn_ops *op = kn_op(m->be);
    int32_t list[KN_CYCLE_ROWS];
    for (int i = 0; i < LISTS; i++) {
        for (int32_t r = 0; r < l->group * l->k; r++)
            list[r] = i == EACH ? r / l->k : i < PART_OF ? 3 * r + i - PART : 3 * (r / l->k) + i - PART_OF;
        const int rc = op->upload(m->be, l->list[i], list, (size_t)(l->group * l->k) * sizeof *list);
        if (rc) return model_failed(m, "upload", rc, e);
    }
    return 0;
}

/* The bias, for all rows at once. */
static int new_bias(struct draft_left *l, const struct model *m, struct err *e)
{
    const struct kn_ops *op = kn_op(m->be);
    const int32_t rows = l->group * l->k, parts = m->d->markov == MARKOV_RNN ? 3 : 1;
    const int64_t rank = m->d->markov_rank;
    int rc = 0;
    for (int32_t j = 0; l->bias && j < parts && rc == 0; j++)
        for (int32_t r = 0; r < rows && rc == 0; r++)
            rc = op->copy(m->be, l->bias + (j * rows + r) * rank, m->heads.mix_bias + j * rank,
                          (size_t)rank * sizeof *l->bias);
    return rc ? model_failed(m, "copy", rc, e) : 0;
}

int draft_left_new(struct draft_left **out, const struct model *m, int32_t n, int32_t k, uint64_t *bytes,
                   struct err *e)
{
    const struct kn_ops *op = kn_op(m->be);
    const struct desc *d = m->d;
    const bool domino = d->n_state > 0, rnn = d->markov == MARKOV_RNN && !domino;
    struct draft_left *l = *out = NULL;
    if (!domino && (!d->markov_rank || d->markov == MARKOV_VANILLA)) return 0;
    if (!(l = mem_calloc(1, sizeof *l))) return err_set(e, ERR_IO, "out of memory (edges of a tree)");
    l->k = k, l->places = n - 1;
    l->first = domino && d->pure_prefix > 1 ? d->pure_prefix - 1 : 0;
    if (l->first >= l->places) l->first = l->places ? l->places - 1 : 0;
    l->group = KN_CYCLE_ROWS / k < l->places - l->first ? KN_CYCLE_ROWS / k : l->places - l->first;
    const int64_t rows = (int64_t)l->group * k, rank = rank_of(d), state = d->n_state,
                  mixed = domino ? 3 * state
                          : rnn  ? 3 * rank
                                 : rank;
    struct {
        void *at;
        int64_t count;
    } all[] = {{&l->left, (int64_t)n * k * rank},
               {&l->e, rows * (domino ? d->n_embd : rank)},
               {&l->in, rows * (d->n_embd + (domino ? state
                                             : rnn  ? 2 * rank
                                                    : rank))},
               {&l->x, rows * (mixed > rank ? mixed : rank)},
               {&l->turned, domino || rnn ? rows * mixed : 0},
               {&l->h, domino ? l->places * 3 * state : 0},
               {&l->parts_h, domino ? rows * mixed : 0},
               {&l->states, (int64_t)n * state},
               {&l->state, rows * state},
               {&l->next, domino ? rows * state
                          : rnn  ? rows * rank
                                 : 0},
               {&l->bias, domino ? 0 : rows * mixed},
               {&l->list[EACH], rows},
               {&l->list[PART], rows},
               {&l->list[PART + 1], rows},
               {&l->list[PART + 2], rows},
               {&l->list[PART_OF], rows},
               {&l->list[PART_OF + 1], rows},
               {&l->list[PART_OF + 2], rows}};
    *out = l;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        void *p = all[i].count ? op->alloc(m->be, (size_t)all[i].count * 4) : NULL;
        if (all[i].count && !p) return model_no_memory(m->be, e, "edges of a tree");
        *(void **)all[i].at = p;
        *bytes += (uint64_t)all[i].count * 4;
    }
    return l->places && (new_lists(l, m, e) || new_bias(l, m, e)) ? -1 : 0;
}

void draft_left_free(struct draft_left *l, const struct model *m)
{
    if (!l) return;
    void *const all[] = {l->left,    l->e,      l->in,    l->x,    l->turned, l->h,
                         l->parts_h, l->states, l->state, l->next, l->bias};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) kn_op(m->be)->free(m->be, all[i]);
    for (int i = 0; i < LISTS; i++) kn_op(m->be)->free(m->be, l->list[i]);
    mem_free(l);
}

const float *draft_left_rows(const struct draft_left *l)
{
    return l ? l->left : NULL;
}

/* Parts j of rows, side by side: out [3, rows, width] of x. */
static int apart(const struct model *m, const struct draft_left *l, int list, float *out, const float *x,
                 int64_t width)
{
    const int32_t rows = l->group * l->k;
    int rc = 0;
    for (int j = 0; j < 3 && rc == 0; j++)
        rc = kn_op(m->be)->gather(m->be, out + j * rows * width, x, l->list[list + j], rows, width);
    return rc;
}

/* Places p + 1 .. p + group of a DSpark: ids are the candidates of the places before. */
static int markov(const struct model *m, const struct draft *t, const struct draft_left *l, int32_t p)
{
    const struct kn_ops *op = kn_op(m->be);
    const struct desc *d = m->d;
    const struct work *w = t->pass.w;
    const bool rnn = d->markov == MARKOV_RNN;
    const int32_t rows = l->group * l->k, rank = d->markov_rank, row = t->first + p + 1;
    const int64_t width = rnn ? d->n_embd + 2 * (int64_t)rank : d->n_embd + (int64_t)rank;
    const float *beside = (rnn ? w->joint : w->beside) + row * width;
    struct kn_cell cell = {.kind = rnn ? KN_CELL_MARKOV : KN_CELL_GATE,
                           .width = rows * rank,
                           .x = rnn ? l->turned : l->x,
                           .bias = l->bias,
                           .e = l->e,
                           .next = l->next,
                           .out = l->left + (int64_t)(p + 1) * l->k * rank};
    int rc = op->embed(m->be, l->e, &m->heads.w1, t->edges.ids + p * l->k, rows, 1.0f);
    if (rc == 0) rc = op->gather(m->be, l->in, beside, l->list[EACH], rows, width);
    if (rc == 0) rc = op->tap(m->be, l->in, width, rnn ? rank : d->n_embd, l->e, rows, rank);
    if (rc == 0) rc = op->linear(m->be, l->x, &m->heads.mix, l->in, rows, false);
    if (rc == 0 && rnn) rc = apart(m, l, PART, l->turned, l->x, rank);
    return rc ? rc : op->cell(m->be, &cell);
}

/* The same of a Domino, over states and h of all places. */
static int domino(const struct model *m, const struct draft *t, const struct draft_left *l, int32_t p)
{
    const struct kn_ops *op = kn_op(m->be);
    const struct desc *d = m->d;
    const int32_t rows = l->group * l->k, state = d->n_state;
    const int64_t width = d->n_embd + (int64_t)state;
    const float *beside = t->pass.w->beside + (t->first + p + 1) * width;
    const struct kn_cell gru = {.kind = KN_CELL_GRU,
                                .width = rows * state,
                                .x = l->turned,
                                .h = l->parts_h,
                                .state = l->state,
                                .next = l->next},
                         silu = {.kind = KN_CELL_SILU,
                                 .width = rows * d->n_correct,
                                 .x = l->x,
                                 .out = l->left + (int64_t)(p + 1) * l->k * d->n_correct};
    int rc = draft_embed(m, t->target, l->e, t->edges.ids + p * l->k, rows);
    if (rc == 0) rc = op->linear(m->be, l->x, &m->heads.ih, l->e, rows, false);
    if (rc == 0) rc = apart(m, l, PART, l->turned, l->x, state);
    if (rc == 0) rc = apart(m, l, PART_OF, l->parts_h, l->h + (int64_t)p * 3 * state, state);
    if (rc == 0) rc = op->gather(m->be, l->state, l->states + (int64_t)p * state, l->list[EACH], rows, state);
    if (rc == 0) rc = op->cell(m->be, &gru);
    if (rc == 0) rc = op->gather(m->be, l->in, beside, l->list[EACH], rows, width);
    if (rc == 0) rc = op->tap(m->be, l->in, width, d->n_embd, l->next, rows, state);
    if (rc == 0) rc = op->linear(m->be, l->x, &m->heads.down, l->in, rows, false);
    return rc ? rc : op->cell(m->be, &silu);
}

/* s of every proposal, from beside its row, and Wh s. */
static int states(const struct model *m, const struct draft *t, const struct draft_left *l)
{
    const struct kn_ops *op = kn_op(m->be);
    const struct desc *d = m->d;
    const int64_t width = d->n_embd + (int64_t)d->n_state;
    int rc = 0;
    for (int32_t i = 0; i < l->places && rc == 0; i++)
        rc = op->tap(m->be, l->states, l->places * (int64_t)d->n_state, i * (int64_t)d->n_state,
                     t->pass.w->beside + (t->first + i) * width + d->n_embd, 1, d->n_state);
    return rc ? rc : op->linear(m->be, l->h, &m->heads.hh, l->states, l->places, false);
}

int draft_left(const struct model *m, const struct draft *t)
{
    const struct draft_left *l = t->edges.left;
    const struct desc *d = m->d;
    int rc = 0;
    if (!l) return 0;
    if (t->pick.n - 1 != l->places || t->edges.k != l->k) return KN_EINVAL; /* made for other blocks */
    if (!l->places || (d->n_state && d->pure_prefix > l->places)) return 0; /* zeros: all of the prefix */
    if (d->n_state) rc = states(m, t, l);
    for (int32_t p = l->first; p < l->places && rc == 0; p += l->group) {
        const int32_t at = p + l->group > l->places ? l->places - l->group : p; /* some twice */
        rc = d->n_state ? domino(m, t, l, at) : markov(m, t, l, at);
    }
    return rc;
}
