/* ops_watch.h - a table of operations that stands before the backend's own and stamps the time behind every
 * one.
 *
 * A *pass* is what is called between watch_begin and watch_end; a backend that records does both itself,
 * inside its recording, so that the stamps are run again with every replay and no host stands between two
 * operations. Each stamp waits for all before it, so an operation here begins when its predecessor has ended
 * and its writes are seen. */
#ifndef DFLASH_BENCH_OPS_WATCH_H
#define DFLASH_BENCH_OPS_WATCH_H

#include "../../kernels/kernels.h"

#define WATCH_MOST 8192 /* operations of a pass */
#define WATCH_EMPTY 8   /* pairs of stamps with nothing between them, at the start of a pass */

struct watch_entry {
    char op[16], shape[160];
    double bytes; /* of weights */
};
struct watch {
    struct kn_ops op; /* first: the backend's head points at it */
    const struct kn_ops *inner;
    struct kn_backend *be;
    bool each; /* stamp every operation; else the ends of the pass alone */
    bool open;
    int32_t n;
    struct watch_entry *entry; /* [WATCH_MOST] of the newest pass */
    uint64_t *at;              /* device [1 + WATCH_EMPTY + WATCH_MOST] ns */
};

/* Stand before be's table until watch_close. 0 or a KN_E* (KN_EMEM: no memory). */
int watch_open(struct watch *k, struct kn_backend *be);
void watch_close(struct watch *k);
/* Around a pass, where the backend does not record (op.replay NULL). */
int watch_begin(struct watch *k);
int watch_end(struct watch *k);
/* Nanoseconds of the newest pass, which must be over: of an empty interval, the mean; of each operation,
 * [k->n], or of the whole in ns[0] where not each. ns: [WATCH_MOST]. */
int watch_times(struct watch *k, double *empty, double *ns);

#endif
