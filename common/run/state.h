/* state.h - a session on paper: what a stream resumes from, in another session or process.
 *
 * A state holds all of a stream together - token history, keys and values of the target, context of the
 * drafters if there were any, and the logits of the last token - in a layout that knows no ring sizes and no
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
    int32_t n_vocab, n_layer, n_drafters;
    /* The state's, until it is closed: */
    const struct kn_kv_types *kv; /* of the layers' caches; KN_TYPE_NONE: a layer without any */
    const char *target;           /* general.name of the file, "" where that has none */
    const uint8_t *target_id;     /* [16] desc.identity of the file */
    struct session_sparse sparse; /* of its prompts */
    int32_t pool;                 /* positions of its pool; 0: none */
    struct session_gaps gaps;     /* of its first prompt; zero: nothing was left out */
    struct state_drafter_info {   /* the same of a drafter */
        int32_t n_layer;          /* with a cache of their own */
        const struct kn_kv_types *kv;
        const char *name;
        const uint8_t *id;
        const uint32_t *taps; /* [n_taps] zero-based blocks of the target */
        int32_t n_taps;
        bool hidden;    /* the target's last hidden state is there: of an MTP block, or an assistant */
    } by[PLAN_SOURCES]; /* [n_drafters] in the order of the sources that wrote them */
};

/* Write the session: after a prefill, or after it has generated, at any token; the last token written is then
 * run first (session_settle_anchor), so that its logits are there. o stays open: the caller commits it. */
int state_save(struct session *s, struct io_out *o, struct err *e);
/* Read a state from a file or, for "-" and anything that cannot be mapped, a stream. */
int state_open(struct state **st, const char *path, struct state_info *info, struct err *e);
/* The same of a descriptor at the beginning of a state, which is the state's from here on, also on failure.
 */
int state_open_fd(struct state **st, int fd, const char *name, struct state_info *info, struct err *e);
/* What state_restore would refuse of a session with these options (engine_check filled them in),
 * before there is one. drafters: n of them, in any order; the state may hold more. */
int state_check(const struct state *st, const struct desc *target, const struct desc *const *drafters,
                int32_t n, const struct session_options *o, struct err *e);
/* Bring a new session (n_past 0, ctx large enough) to where the state stands. ERR_FORMAT naming what differs:
 * target, drafter (with the taps found), cache type, chunk. */
int state_restore(struct state *st, struct session *s, struct err *e);
/* The last id of an opened state's history, whose checksum is compared. Nothing else is read from it behind
 * that. */
int state_last_token(struct state *st, int32_t *id, struct err *e);
/* Instead of state_restore, and without a model: the rest of an opened state, its sections in their order and
 * their checksums compared. */
int state_verify(struct state *st, uint64_t *n_sections, struct err *e);
void state_close(struct state *st);

#endif
