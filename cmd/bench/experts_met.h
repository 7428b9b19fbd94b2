/* experts_met.h - a table of operations that stands before the backend's own and counts the experts that a
 * pass meets.
 *
 * Rows of a pass choose experts for themselves; a backend reads each expert that any of them chose once. So
 * what a pass of several rows reads depends on the choices, and is counted, not expected: the ids are fetched
 * behind every operation that has experts. Passes are slow meanwhile, and nothing is recorded. */
#ifndef DFLASH_BENCH_EXPERTS_MET_H
#define DFLASH_BENCH_EXPERTS_MET_H

#include "../../kernels/kernels.h"

struct experts_met {
    struct kn_ops op; /* first: the backend's head points at it */
    const struct kn_ops *inner;
    struct kn_backend *be;
    bool on;
    double experts; /* met, of all matrices counted; */
    int64_t lists;  /* and how many matrices that were */
    double bytes;   /* of experts met beyond those that one row meets: to be added to a one-row step's */
    double host;    /* bytes of all experts met that stay in the host's memory */
    int32_t *ids;
    size_t n_ids;
};

/* Stand before be's table until experts_met_close; before anything takes that table (session_new). */
void experts_met_open(struct experts_met *k, struct kn_backend *be);
void experts_met_close(struct experts_met *k);
/* Count from here on, from nothing. */
void experts_met_start(struct experts_met *k);

#endif
