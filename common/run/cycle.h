/* cycle.h - draft, verify, accept, commit: a cycle of a session.
 *
 * A cycle does what its plan says (planner.h), in two parts. The first is the draft: the source proposes
 * behind the anchor (the token at n_past), or does not, and what it proposes is offered to the host. The
 * second is the verify: the anchor and the proposals run through the target; a token is picked from every
 * row; rows stay whose tokens equal the pick before them; their features become the source's context; the
 * next anchor and its position are left on the device. On a backend that records each part is a recording,
 * the verify by its rows. A plan that says how many rows has both launched at once, without the host between
 * them; one that leaves them open has the draft launched, and the verify when they are chosen. The next cycle
 * may be started before the last one's result is known (session_cycles_ahead), a draft always: it is in no
 * state. So the draft of the next cycle stands behind a verify, and a cycle has one round trip with the host,
 * however its rows are chosen: it hears of the verify and of the next draft, and launches that one's rows.
 *
 * A cycle without a draft makes no context. The features of its row wait in a buffer of the stream, of
 * SESSION_MAX_ROWS rows, at the row's position modulo those. They become context in one pass
 * (session_make_context): before a cycle that makes context of its own, which every draft does; before a
 * plain row that would take the first place of the buffer, so that what waits lies side by side; and when the
 * cycles end. A pass of so few rows has the bits of single ones, so a drafter that comes back has lost
 * nothing.
 *
 * Where the verify is recorded, all its rows become context, the rejected ones too, for the shape must not
 * depend on what was accepted. That is safe whatever the plans. Say a draft is made at M, and its source's
 * block has B rows.
 *
 *  - Every position below M holds context of its own token. A verify of W rows at N, K of them kept, writes
 *    context at N .. N + W - 1, and the next cycle is at N + K; rows that waited are written before the
 * draft.
 *  - The block writes its own keys at M .. M + B - 1, in every layer before that layer's attention, and none
 * of its rows looks further, causal or not. So nothing is left from before where a row of the block can look:
 *    neither rejected rows, of which a look-up's chain may leave more than a block has, nor the keys of older
 *    blocks, of however many cycles ago, nor of a draft that was made ahead of a verify and whose rows nobody
 *    asked for. A cycle without a draft looks at nothing of the drafter's.
 *  - The target's rows see no position after their own, and write their own.
 *
 * So what is proposed at an anchor is a function of the tokens up to it. In a ring, the newest position
 * written ahead (a second cycle started early, its block or its rows: N + 2 SESSION_MAX_ROWS - 1 at most)
 * must not take the slot of the oldest that a row at N may see, nor may rows that waited take one that a
 * block behind them sees: caps are at least window + AHEAD_ROWS.
 *
 * Recurrent state is where a row that should not have been taken along can't be left behind. Rows that may be
 * rejected (more than one in a cycle) wait in the log of their layer and are pending when they stay: the next
 * pass replays them. A row alone always stays; it is taken along at once or goes to the log behind those
 * pending, which are taken along every so many rows (kn_delta.every). What is started ahead takes along no
 * row that the host has not seen to stay: not behind a cycle of several rows, of which the stream may want
 * fewer than the device kept; and not where the row itself would be taken along. There the next cycle waits
 * for the host, some 5 us. So a stream may end at any token, and its state stands there or is in the log. */
#ifndef DFLASH_CYCLE_H
#define DFLASH_CYCLE_H

#include "planner.h"
#include "session.h"

/* What a cycle left; pointers stay valid until SESSION_RESULTS - 1 more cycles are started. */
struct session_cycle {
    int32_t pos;     /* of row 0 */
    int32_t rows;    /* verified */
    int32_t planned; /* by its plan: rows, where nothing made them fewer */
    int32_t kept;    /* rows that stay: the anchor and the accepted proposals */
    int32_t n_ids;   /* the anchor and all proposals of the chain that was tried, those not verified too */
    bool drafted;    /* the source was asked */
    bool usable; /* false: the drafter's logits held a NaN or no finite maximum; none of its was accepted */
    const int32_t *ids;   /* [n_ids] */
    const int32_t *block; /* [n_block] the anchor and what the drafter proposed, tried or not; NULL: none */
    int32_t n_block;
    const int32_t *picks; /* [rows]; the last kept one may be KN_PICK_NAN. Of a tree [kept] */
    bool tree;           /* the rows were a tree's. ids and picks are of the path that stays: n_ids is kept */
    const int32_t *path; /* NULL, or [kept] of a tree: the rows of the pass that stay */
    struct plan_result result; /* what a planner is told. Passes are with their heads and picks; the commit is
                                  from there to accepting: the context, where it is part of the cycle; idle
                                  is from the accepting of the cycle before to this one's start (0: it is the
                                  first) */
};

/* Begin cycles with the anchor at n_past. */
int session_cycles_begin(struct session *s, int32_t anchor, const struct kn_sampler *sampler, struct err *e);
/* How many cycles whose results are not known may run when one with that plan is started now: 0 or 1. Where
 * a plan that drafts may not start ahead, its draft may: the same plan with its rows left open. */
int32_t session_cycles_ahead(const struct session *s, const struct plan *p);
/* Start a cycle; with a plan that leaves the rows open its draft alone. most: tokens still wanted, where the
 * host knows; a backend that does not run ahead verifies no more rows than that. ERR_USAGE: a plan that this
 * session cannot run, more cycles are running than session_cycles_ahead says, or the last one's rows are
 * open. */
int session_cycle_start(struct session *s, const struct plan *p, int64_t most, struct err *e);
/* May the cycle behind the one that runs be a row alone that is started ahead, as far as look-ups go? They
 * are asked with what is known, which is all but the token that the running one will leave. Where that
 * matches nothing, waiting for the token would hardly give more; where it does, or where several rows run,
 * *waits. */
int session_look_waits(struct session *s, bool *waits, struct err *e);
/* Of the cycle whose rows are open, when all before it are finished: wait for its proposals, and ask look-ups
 * meanwhile. ids: NULL, or becomes the anchor and the drafter's proposals, or the others where there is no
 * drafter; what is pointed at stays as long as a session_cycle's. */
int session_cycle_offer(struct session *s, struct plan_offer *o, const int32_t **ids, struct err *e);
/* The same cycle's rows. A drafter's need not have been asked for by session_cycle_offer. ERR_USAGE: rows
 * that were not proposed. */
int session_cycle_verify(struct session *s, const struct plan_choice *c, int64_t most, struct err *e);
/* Wait for the oldest cycle whose rows were started and that is not finished; n_past becomes its pos + kept.
 */
int session_cycle_finish(struct session *s, struct session_cycle *c, struct err *e);
/* End cycles: positions before n_past are committed, which is behind the first row of the last cycle that was
 * finished and no later than its kept ones. What was started ahead is never looked at: its rows lie past
 * n_past. ERR_USAGE: a cycle that was not started ahead is not finished, and its row is in the recurrent
 * state. */
int session_cycles_end(struct session *s, int32_t n_past, struct err *e);

#endif
