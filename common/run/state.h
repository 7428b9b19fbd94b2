/* state.h - a session on paper: what a stream resumes from, in another session or process.
 *
 * A state holds all of a stream together - token history, keys and values of the target, context of the
 * drafter if there was one, and the logits of the last token - in a layout that knows no ring sizes and no
 * device, inside the container of snapshot.h. It names the models it belongs to, the chunk and the cache
 * types; resuming with others is refused. A stream resumed from a state equals the one that never stopped.
 * Layout: docs/snapshot.md. */
#ifndef DFLASH_STATE_H
#define DFLASH_STATE_H

#include <stdbool.h>
#include <stdint.h>
#include "../base/err.h"
#include "../base/io.h"
#include "session.h"

struct state; /* an opened state: its sections in memory */

struct state_info {
    int32_t n_tokens; /* committed positions */
    int32_t chunk;
    int32_t n_layer, n_draft_layer;
    const struct kn_kv_types *kv, *draft_kv; /* of the layers' caches; the state's, until it is closed */
    bool has_drafter;
};

/* Write the session: after a prefill, or after it has generated, at any token; the last token written is then
 * run first (session_settle_anchor), so that its logits are there. o stays open: the caller commits it. */
int state_save(struct session *s, struct io_out *o, struct err *e);
/* Read a state from a file or, for "-" and anything that cannot be mapped, a stream. */
int state_open(struct state **st, const char *path, struct state_info *info, struct err *e);
/* What state_restore would refuse of a session with these options (session_options_check filled them in),
 * before there is one. drafter: NULL without. */
int state_check(const struct state *st, const struct desc *target, const struct desc *drafter,
                const struct session_options *o, struct err *e);
/* Bring a new session (n_past 0, ctx large enough) to where the state stands. ERR_FORMAT naming what differs:
 * target, drafter (with the taps found), cache type, chunk. */
int state_restore(struct state *st, struct session *s, struct err *e);
void state_close(struct state *st);

#endif
