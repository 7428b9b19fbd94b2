/* spec.h - generation: the speculative loop over a session.
 *
 * A cycle asks the source for proposals after the last token, lets the target run that token and the
 * proposals in one pass, picks a token from every row, and keeps proposals as long as each equals the pick of
 * the row before it, then the first pick that differs. A pick is a function of its row's logits, position and
 * history alone, so the stream is the one that the target alone writes, greedy or sampled; source and plans
 * change speed only. A cycle without proposals is one row and one token. Source: DFlash (block diffusion for
 * speculative decoding); acceptance by equality instead of rejection sampling. */
#ifndef DFLASH_SPEC_H
#define DFLASH_SPEC_H

#include <stdbool.h>
#include <stdint.h>
#include "../base/err.h"
#include "planner.h"
#include "session.h"
#include "tree.h"

struct spec_options {
    int64_t n; /* tokens to write at most, 1 or more */
    struct kn_sampler sampler;
    const int32_t *stops; /* ids that end the stream (and are written) */
    int32_t n_stops;
    int32_t width;  /* verify rows a cycle at most, 1 .. block, with look-ups 1 .. their rows; 0:
                       the block, and their rows of theirs */
    int32_t tree;   /* 0, or proposals of a tree that every cycle verifies in place of width rows: up to the
                       session's options.tree */
    bool tree_seed; /* it begins with the chain */
    bool look_only; /* where there are look-ups, the source proposes nothing */
    const struct planner *planner; /* NULL: every cycle drafts and verifies width rows, or those of a look-up
                                      as planner_looks chooses */
    bool draft_logits;             /* call draft_rows once, for the first block */
    /* Final tokens, as soon as they are; called once a cycle, while the next one may already run. */
    int (*tokens)(void *ctx, const int32_t *ids, int32_t n, struct err *e);
    /* What a drafter proposed in a cycle, tried or not: block - 1 ids. May be NULL. Not called where the
     * drafter's logits were unusable. */
    int (*proposals)(void *ctx, const int32_t *ids, int32_t n, struct err *e);
    /* Logits of the first block, row by row [n_vocab], block times. May be NULL unless draft_logits. */
    int (*draft_row)(void *ctx, const float *row, int32_t n_vocab, struct err *e);
    /* NULL, or asked once of every token, in order: does it end the stream? It is written then, and nothing
     * behind it. */
    bool (*ends)(void *ctx, int32_t id);
    /* NULL, or called before tokens with each of them and the logits [n_vocab] that it was picked from, as
     * the target left them. No cycle is started ahead then. */
    int (*picked)(void *ctx, int32_t id, const float *logits, int32_t n_vocab, struct err *e);
    float *row; /* [n_vocab] where picked is there: what it is handed */
    /* Asked behind every cycle's tokens: true ends the stream there, at a token as any. NULL: nobody asks. */
    bool (*interrupted)(void *ctx);
    void *ctx;
};

enum spec_stop {
    SPEC_STOP_LENGTH,
    SPEC_STOP_TOKEN,
    SPEC_STOP_TEXT, /* ends said so */
    SPEC_STOP_INTERRUPT,
};

struct spec_stats {
    int64_t generated;                  /* tokens written, stop token included */
    int64_t cycles;                     /* draft-and-verify cycles, all with look-ups; 0 without either */
    int64_t steps;                      /* target passes after the prefill */
    int64_t nan_cycles;                 /* cycles whose drafter gave NaN and that proposed nothing */
    int64_t accepted[SESSION_MAX_ROWS]; /* cycles by the number of proposals that equalled the picks */
    int64_t tried;                      /* proposals that were verified */
    int64_t tree_cycles, tree_rows;     /* cycles that verified a tree, and their rows */
    int64_t look_cycles,
        look_accepted; /* cycles that tried a look-up's chain, and its tokens that were right */
    int64_t full_cycles, full_accepted; /* cycles that n did not cut, and their accepted proposals */
    double first_s;                     /* picking the first token */
    double decode_s;                    /* everything after it */
    double draft_s, verify_s;           /* of decode_s: drafts with their picks; target passes with theirs */
    double wait_s;                      /* of decode_s: from the end of a draft to the start of its verify */
    double commit_s;                    /* of decode_s: the drafter's context, where a cycle is recorded */
    double idle_s, idle_max_s; /* of decode_s: from accepting in one cycle to the start of the next; the
                                  longest of these, which is the one that recorded */
    enum spec_stop stop;
    int32_t stop_id; /* the token that ended it, unless stop is SPEC_STOP_LENGTH */
};
/* Mean of accepted + 1 over cycles that the limit did not cut; NaN if there is none. A cycle is cut where
 * fewer rows were verified than its plan allows, all their proposals were kept, and the next proposal would
 * have been too. */
double spec_tau(const struct spec_stats *st);

/* A generation that is under way, a step at a time: spec_begin picks the first token, spec_step finishes a
 * cycle, spec_end leaves the stream where spec_generate would. Between any two of these calls another stream
 * of the engine may have its turn. */
struct spec_run {
    struct session *s; /* NULL: not begun, or ended */
    const struct spec_options *o;
    struct spec_stats *st;
    const struct planner *planner;
    struct planner fixed; /* where o has no planner */
    struct plan every;    /* its context */
    struct plan_looks looks;
    struct plan_trees trees;
    struct plan plan;  /* of the cycle that is started next */
    int32_t running;   /* cycles whose rows were launched, and that are not finished */
    bool open;         /* one more is begun */
    int32_t open_rows; /* that its plan says; 0: the planner is asked */
    bool ended;        /* nothing is left to do but spec_end */
    bool cycled;       /* a cycle was finished: */
    int32_t pos, kept; /* of the last one */
    double start;
};

/* ERR_USAGE: a width (0: as wide as may be) that spec_generate would refuse with blocks of that size and
 * look-ups, or NULL. */
int spec_width_check(int32_t width, int32_t block, const struct source *look, struct err *e);
/* Generate after the session's committed tokens. The session must hold logits of its last token
 * (session_prefill, or state_restore), or have generated before: then the stream goes on. Afterwards all
 * tokens written but the last are committed, with or without a source, and logits are those of no row. st is
 * filled as far as it went, also on failure. ERR_USAGE: n does not fit ctx, or width is out of range. */
int spec_generate(struct session *s, const struct spec_options *o, struct spec_stats *st, struct err *e);

/* Everything handed over outlives the run; the struct stays where it is. Errors: those of spec_generate. */
int spec_begin(struct spec_run *u, struct session *s, const struct spec_options *o, struct spec_stats *st,
               struct err *e);
/* Finish one cycle, unless the run has ended. */
int spec_step(struct spec_run *u, struct err *e);
/* At any token, also where the run has not ended. Behind a failure it is not called: the stream is given up.
 */
int spec_end(struct spec_run *u, struct err *e);

#endif
