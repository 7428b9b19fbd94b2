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
/* Of a draft step by step: where a reader wants logits of the anchor's row too, there are none: zeros. */
int session_clear_anchor(struct session *s, struct err *e);
/* That of the last position, as the section DHID. */
int late_save(struct session *s, const struct session_source *by, const struct late *x, struct snap_writer *w,
              struct err *e);
int late_load(struct session *s, const struct session_source *by, const struct late *x, struct state *st,
              struct err *e);

#endif
