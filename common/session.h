/* session.h - one stream of tokens through a target and, if there is one, its drafter.
 *
 * A session owns what a stream leaves behind: the token history, the target's keys and values, the drafter's
 * context (keys and values made of the target's features), the activations of a pass, and the logits of the
 * last rows. Position n_past is the first one the target has not committed; everything before it is in the
 * caches, nothing after it counts. Three verbs move a stream: session_prefill commits a prompt;
 * session_forward runs rows at n_past, n_past+1, ... without committing them (a decoding step is one row, a
 * verify is a whole block); session_commit keeps the first of those rows and gives their features to the
 * drafter. session_draft asks the drafter for a block after the token at n_past. The loop that puts them
 * together is spec.h. All memory is taken by session_new; no verb allocates. Models and backend are borrowed
 * and outlive the session.
 *
 * Rows past n_past are simply written over later: a rejected row is never undone. Recurrent layers keep the
 * inputs of a forward's rows and replay those that were committed at the start of the next pass. */
#ifndef DFLASH_SESSION_H
#define DFLASH_SESSION_H

#include <stdbool.h>
#include <stdint.h>
#include "err.h"
#include "model.h"

#define SESSION_MAX_ROWS 64 /* rows of session_forward, and of logits held at once */
#define SESSION_CHUNK 512   /* default of options.chunk */

struct session_options {
    int32_t ctx;   /* positions the caches must hold: prompt + generated + block */
    int32_t chunk; /* rows a prefill pass; 0: SESSION_CHUNK. Chunks end at absolute multiples of it */
    int32_t block; /* rows a block, 2 .. as trained; 0: as trained */
    int32_t
        draft_window;  /* 0: all context; N: a block starting at s sees no position < s - N, on any layer */
    uint32_t kv_type;  /* KN_F16, KN_BF16 or KN_F32 */
    bool check_layers; /* name the first layer that leaves a NaN or Inf */
    void (*progress)(void *ctx, int64_t done, int64_t total); /* of a prefill, in tokens; NULL: none */
    void *progress_ctx;
};

struct session {
    struct model *target, *drafter; /* drafter may be NULL */
    struct kn_backend *be;
    const struct kn_ops *op;
    struct session_options o; /* with defaults filled in */
    int32_t n_past;           /* committed positions */
    int32_t *history; /* host [ctx + SESSION_MAX_ROWS]: ids of positions 0 .. n_past-1, then whatever is being
                         tried */
    int32_t *d_history; /* the same on the device */
    int32_t *d_pos;     /* device [ctx + SESSION_MAX_ROWS]: 0, 1, 2, ... */
    int32_t *d_block;   /* device [block]: anchor, mask, mask, ... */
    int32_t *d_first;   /* device: first visible position of the context, for draft_window */
    int32_t *d_picks;   /* device [SESSION_MAX_ROWS] */
    struct work work;
    struct kn_kv *kv;             /* [target n_layer]; all zero for recurrent layers */
    struct kn_delta_state *delta; /* [target n_layer], of recurrent layers; NULL where there are none */
    int32_t *d_pending;     /* device: rows of the last forward that were committed and wait to be replayed */
    int32_t pending;        /* the same, as the host knows it */
    struct kn_kv *draft_kv; /* [drafter n_layer] */
    float *features;        /* device [max(chunk, SESSION_MAX_ROWS), n_features], of the last pass */
    float *logits;          /* device [SESSION_MAX_ROWS, n_vocab], of the last pass (target's or drafter's) */
    int32_t logits_pos;     /* position of the input token of logits row 0 */
    int32_t logits_rows;
    uint64_t bytes; /* of device memory taken */
};

/* ERR_USAGE: block or draft_window out of range; ERR_FORMAT: the models do not fit (desc_pair); ERR_IO:
 * memory. */
int session_new(struct session **s, struct model *target, struct model *drafter,
                const struct session_options *o, struct err *e);
void session_free(struct session *s);

/* Rows of logits as a prefill makes them, in order: rows [n, n_vocab] on the host, first_pos the position of
 * row 0. */
typedef int (*session_rows_fn)(void *ctx, const float *rows, int32_t n, int32_t first_pos, struct err *e);
/* Commit n tokens (1 or more). rows NULL: logits are computed for the last token only. Afterwards logits row
 * 0 (logits_rows = 1) is the last token's. ERR_USAGE: more tokens than ctx holds; ERR_FORMAT: an id out of
 * the vocabulary, with its index. */
int session_prefill(struct session *s, const int32_t *ids, int64_t n, session_rows_fn rows, void *ctx,
                    struct err *e);

/* The target over n tokens (1 .. SESSION_MAX_ROWS) at n_past ..: leaves their logits (n rows) and features,
 * commits nothing. */
int session_forward(struct session *s, const int32_t *ids, int32_t n, struct err *e);
/* What the n rows of the last prefill or forward pick (host). ERR_DEVICE where a row holds a NaN or no finite
 * maximum. */
int session_pick(struct session *s, const struct kn_sampler *sampler, int32_t n, int32_t *picks,
                 struct err *e);
/* Keep the first n rows of the last forward: their features become drafter context, n_past += n. */
int session_commit(struct session *s, int32_t n, struct err *e);

/* Draft a block after anchor, the token at n_past: block - 1 proposals (host) for positions n_past + 1 ...
 * *usable false where the drafter's logits hold a NaN or no finite maximum. Commits nothing; overwrites
 * logits. all_rows: compute row 0 too, so that logits holds [block, n_vocab] (else rows 1 .. block-1 are at
 * logits). */
int session_draft(struct session *s, int32_t anchor, int32_t *proposals, bool *usable, bool all_rows,
                  struct err *e);

/* Copy row i of the last logits [n_vocab] to the host. */
int session_logits(struct session *s, int32_t i, float *row, struct err *e);
/* A host row's check: ERR_DEVICE naming pos where it holds a NaN or no finite maximum. */
int session_check_row(const struct session *s, const float *row, int32_t pos, struct err *e);

#endif
