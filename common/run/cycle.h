/* cycle.h - draft, verify, accept, commit: a cycle of a session without the host in it.
 *
 * A cycle drafts a block after the anchor (the token at n_past), runs the anchor and the proposals through
 * the target, picks a token from every row, keeps the rows whose tokens equal the pick before them, makes
 * their features the drafter's context, and leaves the next anchor and its position on the device. Without a
 * drafter it is one row. On a backend that records, all of it is one recording, the same for every cycle, and
 * the next cycle may be started before the last one's result is known (session_cycles_ahead).
 *
 * Where a cycle is one recording, all its rows become context, the rejected ones too, for the shape must not
 * depend on what was accepted. That is safe: with n_past at N, block of B rows, width W <= B, and K >= 1 rows
 * kept, the rejected rows' keys lie at positions N + K .. N + W - 1 in target and drafter. The next cycle's
 * block begins at N + K and writes its own keys at N + K .. N + K + B - 1, in every layer before that layer's
 * attention, and N + K + B - 1 >= N + W - 1: nothing rejected is left where a row of the block can look,
 * causal or not. The target's rows see no position after their own, and write their own. In a ring, the
 * newest position written ahead (a second cycle started early: N + 2 B - 1) must not take the slot of the
 * oldest that a row at N may see: caps are at least window + AHEAD_ROWS. */
#ifndef DFLASH_CYCLE_H
#define DFLASH_CYCLE_H

#include "session.h"

/* What a cycle left; pointers stay valid until SESSION_RESULTS - 1 more cycles are started. */
struct session_cycle {
    int32_t pos;  /* of row 0 */
    int32_t rows; /* verified */
    int32_t kept; /* rows that stay: the anchor and the accepted proposals */
    bool usable;  /* false: the drafter's logits held a NaN or no finite maximum; nothing was accepted */
    const int32_t *ids;       /* [block] the anchor and all proposals; [1] without a drafter */
    const int32_t *picks;     /* [rows]; the last kept one may be KN_PICK_NAN */
    double draft_s, verify_s; /* passes with their heads and picks, by the device's clock */
    double commit_s;          /* from there to accepting: the context, where it is part of the cycle */
    double idle_s; /* from the accepting of the cycle before to this one's start; 0: it is the first */
};

/* Begin cycles with the anchor at n_past. width: rows verified, 1 .. block; ignored without a drafter. */
int session_cycles_begin(struct session *s, int32_t anchor, int32_t width, const struct kn_sampler *sampler,
                         struct err *e);
/* How many cycles may be started while one runs whose result is not known: 0 or 1. */
int32_t session_cycles_ahead(const struct session *s);
/* Start a cycle. most: tokens still wanted, where the host knows; a backend that does not run ahead verifies
 * no more rows than that. */
int session_cycle_start(struct session *s, int64_t most, struct err *e);
/* Wait for the oldest cycle that was started and not finished; n_past becomes its pos + kept. */
int session_cycle_finish(struct session *s, struct session_cycle *c, struct err *e);
/* End cycles: positions before n_past are committed. What was started beyond is never looked at, its rows lie
 * past n_past; but recurrent state it has taken along, and then nothing can follow in this session (spent).
 * Without a drafter positions before n_past are all that were finished, and nothing is left to be replayed.
 */
void session_cycles_end(struct session *s, int32_t n_past);

#endif
