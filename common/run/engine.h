/* engine.h - what streams share: the models, the scratch of a pass, and what recordings depend on.
 *
 * An engine holds a target, sources of proposals or none, options, and the activations of one pass. A stream
 * (session.h) holds what a sequence of tokens leaves behind: caches, recurrent states, the source's context,
 * history, position, results. Streams of one engine take turns, at any verb and between any two cycles, and
 * give the bits that each gives alone. One thread uses an engine at a time. Models, source and backend are
 * borrowed and outlive it; it outlives its streams.
 *
 * A recording has the addresses of a stream's memory in it. So a stream lives in a *slot*: its memory and the
 * recordings that name it. When the stream ends the engine keeps the slot, and the next stream moves in: a
 * process with N streams at most records N times whatever it is asked for, and changing from one stream to
 * another records nothing. Slots are as large as the options say, all alike.
 *
 * What lost: a table of pointers in device memory, through which every kernel would reach a stream's memory,
 * so that one recording served all streams. Each kernel that reads keys, values or state would wait for one
 * more load before it could ask for anything, every attention and delta kernel would change, and what is
 * saved is some 5 ms and a graph's memory a slot and kind of cycle. Batches of rows of several streams will
 * want such a table; a slot is then an entry of it.
 *
 * The backend's own scratch (partial sums, tickets, what layers of one row hand on) is one a backend. Its
 * users run in the order of one stream of the device, and none leaves anything there for the next pass. */
#ifndef DFLASH_ENGINE_H
#define DFLASH_ENGINE_H

#include "session.h"

struct engine {
    struct model *target;
    struct source *source; /* the first; NULL: none */
    struct source *own;    /* NULL, or the same, to be freed with the engine */
    struct session_source
        by[SESSION_SOURCES]; /* [n_sources] what all streams have alike of each: no context */
    int32_t n_sources;
    struct kn_backend *be;
    const struct kn_ops *op;
    struct session_options o; /* with defaults filled in */
    int32_t rows;             /* of the longest pass */
    int32_t draft_reach;      /* positions that a row of a drafter's layer without a window sees; 0: all */
    int32_t positions;        /* that fit the caches: ctx, and what is written ahead of it */
    int32_t *d_pos;           /* device [positions]: 0, 1, 2, ... */
    int32_t *equal;           /* device [positions], of o.synthetic; NULL without it */
    struct work work;
    struct hidden hidden; /* fn NULL: not wanted */
    void *here[2];        /* device: a layer's keys and values at a time of those in the host's memory */
    float *logits;        /* device [SESSION_MAX_ROWS, n_vocab], of the last pass (target's or source's) */
    struct session *on;   /* the stream whose features and logits these are; NULL: none's */
    struct session *idle; /* slots without a stream: a list by session.next */
    int32_t slots;        /* all */
    void *sparse_scratch; /* device; NULL without sparse prompts */
    uint64_t bytes;       /* of device memory taken, but for the slots' */
};

/* What engine_open would refuse, before a weight is loaded: of the models only the descriptions are looked
 * at. Fills in o's defaults. */
int engine_check(struct model *target, struct source *source, struct session_options *o, struct err *e);
/* source: NULL without; with it come those beside it. What o's lists of types point at lives as long as the
 * engine. ERR_USAGE: an option out of range, or a source wants what is not left for it; ERR_FORMAT: the
 * models do not fit (desc_pair), or the backend has no sparse attention of such heads and caches; ERR_IO,
 * ERR_DEVICE: memory. */
int engine_open(struct engine **g, struct model *target, struct source *source,
                const struct session_options *o, struct err *e);
/* Its streams have been freed. */
void engine_close(struct engine *g);

#endif
