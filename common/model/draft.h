/* draft.h - kinds of drafters: how the rows of a block become proposals.
 *
 * To add a kind, write common/model/KIND.c beside its paper with one struct draft_kind and list it in
 * draft.c. Then name its keys and tensors, and that it runs, in desc_pieces.c, its tensors in model_load.c's
 * lists, and its activations in work.c; everything above (source_dflash.c, cycles, traces, states) stays as
 * it is.
 *
 * All kinds share the context (dflash_context) and the frame of a block (dflash_block): the anchor and mask
 * tokens, embedded as the target embeds, through the kind's layers. What differs is the layer, and how
 * proposals are made of the rows: one pick over all rows (DFlash), or a chain of operations with a pick each,
 * where a row reads the proposal before it. Everything is operations on the device: a draft is recorded, and
 * nobody waits for it. A proposal is picked by the sampler that it is handed, at its own position, so that it
 * meets the noise of the target's pick of that place (docs/sampling.md). */
#ifndef DFLASH_DRAFT_H
#define DFLASH_DRAFT_H

#include "model.h"

/* What a tree of proposals is made of: of every place the k best candidates, and how well each follows each
 * of the place before (op->top, op->edges). */
struct draft_left;
struct draft_edges {
    int32_t k; /* 0: not wanted */
    int32_t *ids;
    float *values, *scores;
    struct draft_left *left; /* of kinds that read what stands before through a unit, else NULL */
};

/* One block, and where its proposals go. Row first + i of the block proposes the token at the anchor's
 * position + 1 + i. */
struct draft {
    struct pass pass;           /* n rows; ids = [anchor, mask, ...] */
    const struct model *target; /* lends its embedding and head */
    int32_t first;              /* desc.first_row */
    int32_t skip;               /* rows that get no logits: first, or 0 where all are to be shown */
    float *logits;       /* [n - skip - idle_rows, n_vocab] is left for who looks: what is picked from */
    struct kn_pick pick; /* of the proposals, n in number: logits (of row first), pos, history, sampler; out
                            [n] and logp [n] are to be filled. A chain picks one after the other. logp is what
                            the drafter takes the probability to be that the target picks the same: that of
                            the pick, or what a head says that was trained to say it */
    struct draft_edges edges; /* of a kind that has any: to be filled, where k is not 0 */
};

struct draft_kind {
    const char *name; /* desc.kind */
    /* Layer i over w->x, as model_family.block. NULL: a Qwen3 block. */
    int (*block)(const struct model *m, const struct pass *p, int32_t i);
    /* From the rows of the block in w->x: logits and proposals. A row without any gives KN_PICK_NAN. */
    int (*propose)(const struct model *m, const struct draft *t, struct err *e);
    /* Candidates of a place whose scores of following each other it knows; NULL or 0: it does not. */
    int32_t (*edges)(const struct desc *d);
    bool edges_behind; /* values of candidates have the edge from the proposal before in them already */
};

/* The kind of a drafter's description; NULL: none that runs. */
const struct draft_kind *draft_kind_of(const struct desc *d);
/* A block and its proposals: dflash_block, then the kind's own. */
int draft_propose(const struct model *m, const struct draft *t, struct err *e);
/* Logits of rows skip and on, as model_logits; the first half of most kinds' propose. Those of a reduced
 * vocabulary stand in w->part too. */
int draft_logits(const struct model *m, const struct draft *t, struct err *e);
/* Tokens as a block begins with them: out [n, n_embd]. Returns what the operation returned. */
int draft_embed(const struct model *m, const struct model *target, float *out, const int32_t *ids, int32_t n);
/* A chain: proposal i is picked from its row of logits, for what stands there. Returns as above. */
int draft_pick_one(const struct model *m, const struct draft *t, int32_t i);
/* draft_left.c: room for what the heads of n proposals of k candidates make of what may stand before each, or
 * NULL where they make nothing; *bytes is added to. On failure (ERR_IO, ERR_DEVICE) what was taken is given
 * back by draft_left_free. draft_left makes it, behind a block's proposals and candidates, and returns what
 * the operation returned; draft_left_rows is kn_edges.left. */
int draft_left_new(struct draft_left **l, const struct model *m, int32_t n, int32_t k, uint64_t *bytes,
                   struct err *e);
void draft_left_free(struct draft_left *l, const struct model *m);
int draft_left(const struct model *m, const struct draft *t);
const float *draft_left_rows(const struct draft_left *l);
/* Candidates behind the proposals, and how well each follows each of the place before (edges.k 0: neither):
 * of heads that add after [n_vocab or row_of's, rank] times a vector. */
int draft_candidates(const struct model *m, const struct draft *t, const struct kn_weight *before,
                     const struct kn_weight *after);
/* The token before proposal i: the anchor, or proposal i - 1. */
static inline const int32_t *draft_before(const struct draft *t, int32_t i)
{
    return i ? t->pick.out + i - 1 : t->pass.ids;
}
/* The kinds, one a file. */
extern const struct draft_kind draft_dflash, draft_dflash2, draft_dspark, draft_domino;

#endif
