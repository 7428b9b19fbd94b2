/* times.h - how long the parts of a cycle take, measured before the first one.
 *
 * A planner that chooses rows wants to know what they cost. session_time runs a plain row, a draft and
 * verifies of given rows at the place where the stream stands, and looks at the device's clock. Nothing of it
 * stays: the stream goes on, bit for bit, as if it had not been asked, for rows past n_past count for nothing
 * and what else a row changes (recurrent state, the logits of the last token, the cursor) is put back. What
 * does stay, on a backend that records, are the recordings: the first cycles of a stream need not make them.
 */
#ifndef DFLASH_TIMES_H
#define DFLASH_TIMES_H

#include "session.h"

struct session_times {                     /* in seconds; 0: not measured */
    double plain_s;                        /* a row alone, to its acceptance */
    double draft_s[SESSION_SOURCES];       /* of each source, without what the host is told */
    double verify_s[SESSION_MAX_ROWS + 1]; /* by rows, to their acceptance */
    double wait_s;                         /* from the end of a draft to the start of a verify that the host
                                              launches when it has heard of it: the round trip; of a backend
                                              that records */
    int32_t missing;                       /* of the rows asked for: not measured */
    double spent_s;                        /* by the host's clock */
};

struct session_timing {
    struct kn_sampler sampler; /* of the cycles to come: recordings depend on it */
    const int32_t
        *rows;     /* [n] rows of verifies, 1 .. block or those of look-ups or trees, the most wanted first */
    int32_t n;     /* 0 without either */
    int32_t reach; /* recordings are made for positions below this at least; 0: as they come */
    double budget_s; /* no part but the plain row is begun of which the one before says that it
                        would not fit */
};

/* Bytes that session_time takes while it measures: a copy of the recurrent state; 0 without any. */
size_t session_time_bytes(const struct session *s);

/* Behind a prefill or between runs of cycles; more than one row of logits is lost. Nothing is measured (all
 * 0) where there is no memory for a copy of the recurrent state. ERR_USAGE: cycles run, or rows are out of
 * range.
 */
int session_time(struct session *s, const struct session_timing *o, struct session_times *t, struct err *e);

#endif
