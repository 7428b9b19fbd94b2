/* late.h - hidden states of the target that a source reads a row late.
 *
 * A pass leaves the hidden states of its own rows. The row behind them reads the last one that was kept, and
 * which that is may not be known when the next operations are launched. So they lie by position in a ring. It
 * holds those of two cycles that run, the second one started before the first one's result was known, and the
 * one before both: a row that stays is not written over before it is read. */
#ifndef DFLASH_LATE_H
#define DFLASH_LATE_H

#include "session_impl.h"
#include "state_impl.h"

enum { LATE_ROWS = AHEAD_ROWS + SESSION_MAX_ROWS };

struct late {
    float *rows; /* device [LATE_ROWS, width of the source] by position modulo LATE_ROWS */
};

int late_open(struct session *s, const struct session_source *by, struct late *x, struct err *e);
void late_close(struct session *s, struct late *x);
/* The features of rows, the newest of which are wanted again. */
int late_keep(struct session *s, const struct session_source *by, const struct late *x,
              const struct session_rows *r, struct err *e);
/* Where that of position pos, one of the newest, lies; *n bytes (source_ops.last). */
void *late_at(const struct session_source *by, const struct late *x, int32_t pos, size_t *n);
/* A draft step by step: each proposal is picked before the next step begins, with the noise of the target's
 * own pick of that place (or greedily). step: place i's logits [n_vocab], of one row. Where a reader wants
 * logits of the anchor's row too (all_rows), there are none: zeros. */
typedef int late_step(const struct session *s, const struct session_source *by, const struct pass *p,
                      int32_t i, float *logits, struct err *e);
int late_propose(struct session *s, struct session_source *by, struct work *w, const struct kn_kv *kv,
                 late_step *step, bool all_rows, struct err *e);
/* That of the last position, as the section DHID. */
int late_save(struct session *s, const struct session_source *by, const struct late *x, struct snap_writer *w,
              struct err *e);
int late_load(struct session *s, const struct session_source *by, const struct late *x, struct state *st,
              struct err *e);

#endif
