/* source.h - where a stream's proposals come from.
 *
 * A source proposes tokens to stand behind the anchor, a stream's last token. A cycle knows no more of it
 * than this table: what the target's passes have to leave for it, how rows that stay become its context, and
 * how it proposes. There are two kinds. One proposes by operations on the device (a drafter): they are part
 * of a recording, and the host need not see the proposals before they are verified. One is asked on the host
 * (a look-up in the history); it may propose fewer tokens than there is room for, or none, and it may be
 * without a model. One of that kind may stand beside the sources of an engine (session_options.look): then a
 * cycle has two chains to choose from. Three questions are three: is there a source, does it propose in this
 * cycle (struct plan), and may rows of the cycle be rejected (only where there is more than one).
 *
 * An engine may have several of the first kind (source.beside), of which a plan names the one that proposes.
 * All of them are left what they need by every pass, and have context of every row that stays, whoever
 * proposed: so each proposes what it would propose alone.
 *
 * What a source proposes is a function of the tokens before the anchor, the anchor and the stream's sampler,
 * whatever was tried on the way: the same history, the same proposals.
 *
 * A source belongs to an engine; what a stream has of it, its context among that, is a struct session_source,
 * which every operation is handed. */
#ifndef DFLASH_SOURCE_H
#define DFLASH_SOURCE_H

#include "session.h"

struct snap_writer;
struct state;

/* Rows of a pass on the device. */
struct session_rows {
    const int32_t *ids, *pos; /* [n] */
    const float *features; /* [n, width], as the source that is asked needs them; NULL where it needs none */
    int32_t n;
    int32_t first_pos; /* of row 0, for messages */
};

/* What the target's passes leave for a source. */
struct source_needs {
    const struct desc *tapped; /* the features of this description's taps; NULL: none */
    bool hidden;               /* the rows after the target's final norm */
    bool caches;               /* the target's own keys and values */
};

/* A question to a source on the host. */
struct source_look {
    const int32_t *history; /* [n] tokens up to and with the anchor */
    int32_t n;
    int32_t same; /* the first so many are as they were when this stream asked last */
    int32_t most; /* proposals that are wanted; 0: none, the history is shown ahead of a question */
    int32_t *ids; /* [most] they go here */
    int32_t found;
    int32_t match; /* tokens up to and with the anchor that stood before as they do now; 0: not known */
};

struct source_ops {
    const char *name;
    /* A stream's context, passes of the target having up to pass_rows rows. NULL: none is kept. close is
     * called also where open failed. */
    int (*open)(struct session *s, struct session_source *x, int32_t pass_rows, struct err *e);
    void (*close)(struct session *s, struct session_source *x);
    /* Another stream begins where one has ended. NULL: what stands in the context is as good as rows that
     * were rejected. */
    void (*reset)(struct session *s, struct session_source *x);
    /* The keys and values among the context, n of them, all zero where a layer has none. NULL: none. */
    const struct kn_kv *(*caches)(const struct session *s, const struct session_source *x, int32_t *n);
    /* What it keeps on the device of position pos, the stream's last, beside caches: *n bytes. Its caches,
     * if it has any, then end a position earlier. NULL: nothing. */
    void *(*last)(const struct session *s, const struct session_source *x, int32_t pos, size_t *n);
    /* The rows' features become context. They come in the order of positions, up to SESSION_MAX_ROWS of
     * rows that were run one by one at once. Operations alone: nothing waits, nothing moves to or from the
     * host. All rows of a verify come here where it is recorded, those that are rejected too (cycle.h). */
    int (*context)(struct session *s, struct session_source *x, const struct session_rows *r, struct err *e);
    /* Proposals for the places behind the anchor, x->block - 1, into the cursor's ids from 1 on; one that
     * is none is KN_PICK_NAN. Their log-probabilities into the cursor's logp. Operations alone. all_rows:
     * leave logits of row 0 too where it proposes nothing, so that they are those of all rows of the block.
     * NULL: look is there. */
    int (*propose)(struct session *s, struct session_source *x, bool all_rows, struct err *e);
    /* The same on the host: fills in ids, found and match. */
    int (*look)(struct session *s, struct session_source *x, struct source_look *l, struct err *e);
    /* The context in a state's sections, and back, when the history stands (state_impl.h). NULL: it has none,
     * or makes it of the history. */
    int (*save)(struct session *s, struct session_source *x, struct snap_writer *w, struct err *e);
    int (*load)(struct session *s, struct session_source *x, struct state *st, struct err *e);
};

struct source {
    const struct source_ops *op;
    struct model *model; /* borrowed; NULL: it has none */
    int32_t rows;        /* a block: the anchor and as many proposals as it can make, 2 .. SESSION_MAX_ROWS */
    int32_t usual;       /* rows of a block unless somebody says other; 0: all of them */
    int32_t mask;        /* the id in the places of a block that are to be filled; 0 where none is read */
    struct source_needs needs;
    bool tree;     /* propose leaves candidates too, where options.tree asks for them (session_candidates) */
    int32_t edges; /* so many of a place, and how well each follows each of the place before; 0: each place's
                      alone */
    struct source *beside; /* another of the engine's, that may propose in its place; NULL: none. Borrowed */
};

/* Values that a pass of the target leaves of a row for x; 0: none. */
static inline int64_t source_width(const struct source *x, const struct desc *target)
{
    return x->needs.tapped ? x->needs.tapped->n_features : x->needs.hidden ? target->n_embd : 0;
}

/* A drafter, of whatever kind it is. */
struct source source_drafter(struct model *drafter);
/* source_dflash.c: a DFlash drafter. */
struct source source_dflash(struct model *drafter);
/* What picks a drafter's proposals: the stream's sampler, or none. */
struct kn_sampler source_sampler(const struct session *s);
/* source_mtp.c: the block of the target's file that predicts further tokens. */
struct source source_mtp(struct model *block);
/* source_assistant.c: a Gemma 4 assistant. */
struct source source_assistant(struct model *assistant);

/* source_lookup.c: look-ups in the stream and in a text (lookup.h), for session_options.look. */
struct source_lookup {
    struct source source; /* first; made by source_lookup */
    int32_t least;
    const struct lookup_text *text; /* borrowed; NULL: none */
};
struct source_lookup source_lookup(int32_t least, const struct lookup_text *text);

#endif
