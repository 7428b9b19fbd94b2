/* compress.h - which tokens of a prompt a target is given, and which are left out (docs/compress.md).
 *
 * A scorer runs the whole prompt, writes a few tokens behind it, and says of every token of the prompt how
 * much the last one and those attend to it. Blocks of COMPRESS_BLOCK tokens, at absolute multiples, are taken
 * by their mean score until the budget is spent. What must stay is in the budget: the first block, the last
 * tokens, and what the caller names. All of it is a function of tokens, models and options. Source:
 * "Speculative Prefill", arXiv 2502.02789. */
#ifndef DFLASH_COMPRESS_H
#define DFLASH_COMPRESS_H

#include "session.h"

enum {
    COMPRESS_BLOCK = 32, /* tokens that stay or go together */
    COMPRESS_TAIL = 128, /* last tokens that stay */
    COMPRESS_AHEAD = 7,  /* tokens that the scorer writes, or fewer, up to one that ends the text */
    COMPRESS_POOL = 13,  /* neighbours over which a head's attention is averaged */
};

/* ERR_USAGE: m cannot score: no layer of it sees every position, or the backend lacks the operation. */
int compress_check(const struct model *m, struct err *e);
/* score [n] of ids [n]: the mean over the queries of the largest over layers and heads. chunk, progress and
 * progress_ctx of o alone count. Errors: those of compress_check, session_new and session_prefill. */
int compress_score(struct model *m, const int32_t *ids, int32_t n, const struct session_options *o,
                   float *score, struct err *e);
/* The same in turns: a step is a pass of the prompt, or a token behind it; when done is set, the scores. ids
 * are borrowed. Whatever fails, compress_scores_free; a zeroed struct is legal there. */
struct compress_scores {
    struct session *s;
    struct pass_seen seen;
    const int32_t *ids; /* [n] */
    int32_t n, ahead;   /* ahead: tokens behind the prompt */
    bool done;
};
int compress_scores_begin(struct compress_scores *x, struct model *m, const int32_t *ids, int32_t n,
                          int32_t chunk, struct err *e);
int compress_scores_step(struct compress_scores *x, struct err *e);
int compress_scores_end(struct compress_scores *x, float *score, struct err *e);
void compress_scores_free(struct compress_scores *x);

/* Of ids [n], stays [n] is set for what a chat or its tools may not lose (frames.h), by the tokenizer in m's
 * file; without one nothing is. */
int compress_frames(const struct model *m, const int32_t *ids, int32_t n, bool *stays, struct err *e);
/* Tokens that KEEP of n are: rounded up, of the number that keep was before it became a float. */
int32_t compress_budget(float keep, int32_t n);
/* Of n tokens, stays [n] those that are not to be left out; the first block's and the last COMPRESS_TAIL are
 * added. ERR_USAGE, with the numbers: they leave not even a block of the budget to what is scored. */
int compress_protect(bool *stays, int32_t n, int32_t budget, struct err *e);
/* at [budget]: the places of those that stay, ascending; returns how many. Blocks of equal scores: the later
 * one first. A block that does not fit what is left of the budget is passed over. ERR_IO: memory (-1). */
int32_t compress_choose(const float *score, const bool *stays, int32_t n, int32_t budget, int32_t *at,
                        struct err *e);

#endif
