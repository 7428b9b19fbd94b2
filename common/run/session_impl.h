/* session_impl.h - what session.c, play.c and cycle.c share: the parts of a step, each a few operations on
 * the session's buffers that neither wait nor move memory to or from the host. */
#ifndef DFLASH_SESSION_IMPL_H
#define DFLASH_SESSION_IMPL_H

#include "../model/draft.h"
#include "engine.h"
#include "planner.h"
#include "session.h"
#include "source.h"

enum { AHEAD_ROWS = 2 * SESSION_MAX_ROWS }; /* positions that cycles write past n_past: two blocks */

/* Rows of the longest prefill pass: several chunks where the device gains from it. */
int32_t session_pass_rows(const struct session_options *o, const struct kn_ops *op);
/* The engine's features and logits become s's to fill; those of the stream before that may still be wanted,
 * the logits of its last token, go to its slot, and s's come back from there. */
int session_turn(struct session *s, struct err *e);
void session_slot_free(struct session *s);

/* Set the cursor to n_past: positions, n ids from the anchor on, the block, the draft window's first. */
int session_place(struct session *s, const int32_t *ids, int32_t n, struct err *e);
/* What becomes of a pass's rows: some may be rejected; it is one, and stays (kn_delta.every applies); the
 * same, and recurrent state is taken over it; all stay, and whoever asked for the layers of a prefill sees
 * them. */
enum session_fate { SESSION_TRIED, SESSION_FINAL, SESSION_ADVANCED, SESSION_PROMPT };
int session_run_target(struct session *s, const struct session_rows *r, enum session_fate fate,
                       struct err *e); /* fate TRIED with s->tree's ids: its rows are the tree's */
/* Take recurrent state over the rows that were committed since the last pass: nothing is pending then. */
int session_settle(struct session *s, struct err *e);
/* How many rows of the last pass, a tried one, the delta nets replay before the next one. */
int session_set_pending(struct session *s, int32_t n, struct err *e);
/* Behind the head of a pass of n rows: what a source that needs hidden states reads, into its
 * features. */
int session_leave_hidden(struct session *s, int32_t n, struct err *e);
/* ERR_USAGE: a source that reads the hidden state before the anchor, and there is none. */
int session_anchor_check(const struct session *s, struct err *e);
/* Rows become the sources' context (source.h), of features that lie as the last pass left them, where rows
 * wait for their context, or where a tree's path was gathered. */
enum session_features { SESSION_OF_PASS, SESSION_WAITED, SESSION_GATHERED };
int session_run_context(struct session *s, const struct session_rows *r, enum session_features from,
                        struct err *e);
/* The rows that wait for their context get it, in one pass: all of them, the next cycle standing at end. */
int session_make_context(struct session *s, int32_t end, struct err *e);
/* Those of the cycles that were finished, at n_past; others are forgotten. */
int session_catch_up(struct session *s, struct err *e);
/* A ring a layer with attention of m; of the target, or of a source that keeps keys and values. */
int session_new_caches(struct session *s, const struct model *m, const struct session_source *x,
                       int32_t pass_rows, struct kn_kv **out, struct err *e); /* x: NULL of the target */
void session_free_caches(struct session *s, const struct model *m, struct kn_kv *kv); /* kv may be NULL */
/* The sampler of cycles and proposals from here on; what was recorded with another one is forgotten. */
void session_use_sampler(struct session *s, const struct kn_sampler *sampler);
/* Logits of rows [row, row+n) of the activations. */
int session_run_head(struct session *s, const struct model *m, int32_t row, int32_t n, struct err *e);
/* An offer's candidates in the order of planners (planner.h), and the tree that was made of them. */
struct session_ranked {
    int32_t n_top;
    int32_t ids[SESSION_MAX_ROWS * KN_TOP];   /* [block - 1, n_top] the first of a place is its proposal */
    float logp[SESSION_MAX_ROWS * KN_TOP];    /* the same, behind the proposals */
    int8_t from[SESSION_MAX_ROWS * KN_TOP];   /* the same: where in scores; -1: nowhere */
    struct plan_node nodes[SESSION_MAX_ROWS]; /* of its cycle, where that is a tree's */
    int8_t ranks[SESSION_MAX_ROWS];           /* that its picks were */
    /* Behind other candidates: */
    const struct session *s;
    int32_t pos; /* of the anchor */
    bool edges, edges_behind;
    float row[KN_TOP];
    float values[SESSION_MAX_ROWS * KN_TOP];          /* [block - 1, n_top] as op->top left them */
    float scores[SESSION_MAX_ROWS * KN_TOP * KN_TOP]; /* [block - 1, n_top, n_top] as op->edges left them */
};
/* plan_offer.behind; ctx: a struct session_ranked with edges. */
const float *session_behind(void *ctx, int32_t place, int32_t rank);
/* Where a source that has edges is to leave them; k 0 where it has none, or there are no trees. */
struct draft_edges session_edges(const struct session *s, const struct session_source *x);

/* session_tree.c. Room for trees, where options.tree wants them; and back. */
int session_tree_new(struct session *s, struct err *e);
void session_tree_free(struct session *s);
/* The rows of a tree whose anchor stands at n_past, to the device: n ids and parents. */
int session_tree_place(struct session *s, const int32_t *ids, const int32_t *parents, int32_t n,
                       struct err *e);
/* The target over the n rows of the tree that was placed: their logits and features, nothing committed. */
int session_tree_forward(struct session *s, int32_t n, struct err *e);
/* Behind the picks of n rows: which stay, and their keys, values, inputs of recurrent layers and features,
 * the last in the sources' kept, in order. walk false: the host said which stay. */
int session_tree_settle(struct session *s, int32_t n, bool walk, struct err *e);
/* Rows that become the sources' context behind it: n of those that stay, or for a recording as many as can.
 */
struct session_rows session_tree_kept(struct session *s, int32_t n);
int32_t session_tree_depth(const struct session *s, int32_t n); /* rows of a path at most, of n */
/* Of the proposals' logits [n, n_vocab]: the candidates of the offer. Nothing without options.tree. For
 * sources, behind their picks. */
int session_candidates(struct session *s, const struct session_source *x, const float *logits, int32_t n,
                       struct err *e);
/* Of an offer that is there. The first candidate of a place is its proposal. */
struct session_ranked *session_ranked(struct session *s, struct session_started *b);

/* session_gaps.c: another stream begins, without gaps; back to the device. */
void session_gaps_reset(struct session *s);
void session_gaps_free(struct session *s);

/* session_sparse.c */
int session_sparse_check(const struct session_options *o, const struct model *target, struct err *e);
int session_sparse_new(struct session *s, struct err *e);
void session_sparse_free(struct session *s);
int session_sparse_reset(struct session *s, struct err *e);
/* Means are made of so many positions. */
void session_sparse_made(struct session *s, int32_t positions);
/* How many of the rows that a pass would take it may take, at n_past. */
int32_t session_sparse_pass(const struct session *s, int32_t rows);
/* Is a pass of a prompt whole blocks? */
bool session_sparse_takes(const struct session *s, int32_t first_pos, int32_t rows);
/* Behind a pass of a prompt: its layers' times are added. Waits. */
int session_sparse_timed(struct session *s, struct err *e);

int session_no_number(const struct session *s, int32_t pos, struct err *e); /* target logits of no use */

/* play.c. The operations of what at the cursor, rows rows (of a draft: the number of its source): launched at
 * the first call, recorded at the second where the backend records, and replayed from there on. */
int session_play(struct session *s, int what, int32_t rows, struct err *e); /* enum session_play */
bool session_records(const struct session *s);
void session_plays_forget(struct session *s, int from); /* the recordings of what follows from */

#endif
