/* session.h - one stream of tokens through a target and, if there are any, sources of proposals.
 *
 * A session owns what a stream leaves behind: the token history, the target's keys and values, the sources'
 * context (of a drafter keys and values made of the target's features), the activations of a pass, and the
 * logits of the last rows. Position n_past is the first one the target has not committed; everything before
 * it is in the caches, nothing after it counts. Three verbs move a stream: session_prefill commits a prompt;
 * session_forward runs rows at n_past, n_past+1, ... without committing them (a decoding step is one row, a
 * verify is a whole block); session_commit keeps the first of those rows and gives their features to the
 * source. session_draft asks the source for a block after the token at n_past. A *cycle* (cycle.h) is all
 * of these in one, without the host between them; the loop over cycles is spec.h. All memory is taken by
 * session_new; no verb allocates, but that a backend which records keeps recordings of what is repeated.
 * Models, source and backend are borrowed and outlive the session.
 *
 * Rows past n_past are simply written over later: a rejected row is never undone. Recurrent layers keep the
 * inputs of a forward's rows and replay those that were committed at the start of the next pass. The row of a
 * cycle that tries nothing always stays; they take it along at once, or, where a backend would rather write
 * states seldom, every so many rows. */
#ifndef DFLASH_SESSION_H
#define DFLASH_SESSION_H

#include <stdbool.h>
#include <stdint.h>
#include "../base/err.h"
#include "../model/model.h"
#include "planner.h"

#define SESSION_MAX_ROWS 64       /* rows of session_forward, and of logits held at once */
#define SESSION_CHUNK 512         /* default of options.chunk */
#define SESSION_MAX_CTX (1 << 30) /* positions of a session at most; of a state too */

enum { SESSION_DRAFT_ALL = INT32_MAX }; /* options.draft_window */

struct source;

/* For benchmarks: what becomes of proposals is stated by the anchor's position, and not computed. The stream
 * is then none that the target would write. Borrowed by who is handed it. */
struct session_synthetic {
    int32_t n, slots;     /* positions: a context's at least; proposals a position */
    const int32_t *equal; /* [n] so many stay, if they are verified */
    const float *logp;    /* [n, slots] what planners are told of them (planner.h) */
    /* NULL, or of trees too: [n, slots] which candidate of a place stays where all before it do, -1: none;
     * then equal is of those that are 0. And what planners are told of candidates: [slots, KN_TOP] */
    const int8_t *rank;
    const float *top;
};

/* Block-sparse prompts (docs/sparse.md): whole blocks of rows, in the layers that see every position. */
struct session_sparse {
    bool on;
    float alpha;   /* kn_sparse's */
    int32_t dense; /* the first of these layers that stay dense */
    bool spread;   /* for tests and benchmarks: kn_sparse's */
    float density;
};

/* A prompt of which tokens were left out (docs/compress.md): of n_text tokens n_kept were run, as rows 0 ..
 * n_kept - 1. A row's keys and queries turn by the place that its token had in the text; rows behind go on at
 * n_text. Nothing else knows of the text: caches, history and noise go by rows. */
struct session_gaps {
    int32_t n_text, n_kept; /* 0: nothing was left out */
    float keep;             /* the fraction that was asked for */
    uint8_t scorer_id[16];  /* identity of the scorer's file, and its general.name */
    char scorer[128];
};

struct session_options {
    int32_t ctx;   /* positions the caches must hold: prompt + generated + block */
    int32_t chunk; /* rows a prefill pass; 0: SESSION_CHUNK. Chunks end at absolute multiples of it */
    int32_t block; /* rows a block of the first source, 2 .. as trained; 0: as trained. Of others: as usual
                      (source.h) */
    int32_t draft_window; /* N: a block starting at s sees no position < s - N, on any layer; DRAFT_ALL: all
                             that the layers' windows show; 0: the same, but where some layers of a DFlash
                             drafter have a window a row of the others sees the last three of the widest */
    bool draft_greedy; /* a drafter proposes its likeliest tokens; else those that the stream's sampler picks
                          of its logits with the noise that the target's picks of these places will meet
                          (docs/sampling.md): at temperature 0 the same */
    struct kn_kv_types kv; /* of the caches of every layer, where no list below says other */
    const struct kn_kv_types *kv_layers,
        *draft_kv_layers; /* [n_layer] of target, of drafters, one behind the other; NULL: as kv.
                             Borrowed: they outlive the session */
    int32_t kv_host;      /* so many of the target's layers, the last that see everything and that no drafter
                             reads, have their keys and values in the host's memory; more: all of them.
                             Nothing depends on it but time. Where all memory is the host's it says nothing */
    int32_t pool;    /* positions of the target's that layers without a window keep in the device's memory:
                        a multiple of POOL_PAGE (pages.h); 0: all */
    bool kv_convert; /* a state of other types is brought into these, not refused */
    const struct session_synthetic *synthetic; /* NULL: proposals are compared */
    int32_t tree; /* proposals of a tree at most, that plans may have; 0: chains alone. Then the drafter
                     offers candidates for every place, and the slot has room for a tree's rows */
    struct source *look; /* asked on the host beside the source, or alone: look-ups. Borrowed; NULL: none */
    struct session_sparse sparse;
    bool check_layers; /* name the first layer that leaves a NaN or Inf in a row that stays */
    void (*progress)(void *ctx, int64_t done, int64_t total); /* of a prefill, in tokens; NULL: none */
    void *progress_ctx;
    /* Of a prefill: every layer's rows (model.h); NULL: nobody wants them. */
    int (*hidden)(void *ctx, int32_t plane, const float *rows, int32_t n, int32_t first_pos, struct err *e);
    void *hidden_ctx;
};

/* Where a stream stands, on the device: all that differs from one step or cycle to the next, so that the same
 * operations with the same pointers are the next one too. */
struct cursor {
    int32_t pos[SESSION_MAX_ROWS];   /* of the rows: n_past, n_past + 1, ... */
    int32_t place[SESSION_MAX_ROWS]; /* and less the pool's shift */
    int32_t ids[SESSION_MAX_ROWS];   /* their tokens: the anchor, then what is tried */
    int32_t block[SESSION_MAX_ROWS]; /* what a drafter reads: the anchor, mask, mask, ... */
    int32_t first;                   /* first visible position of the context, for draft_window */
    int32_t pending;                 /* rows of the last pass that were committed since, to be replayed */
    /* The host writes what is above, the device alone what is below. */
    int32_t picks[SESSION_MAX_ROWS];
    int32_t kept;                 /* rows of the last cycle that stay, where none of them is pending */
    uint32_t number;              /* of the last cycle */
    uint32_t offered;             /* offers so far */
    float logp[SESSION_MAX_ROWS]; /* of the proposals, from 0; NaN where the source does not say */
    uint64_t stamp[KN_STAMPS];
};

/* What is recorded, by the number of rows; drafts by their source's number. A drafted cycle is an offer and a
 * verify, a plain one is a plain row. Those of one row that advance take recurrent state over it and all
 * before it, whatever every is. */
enum session_play {
    SESSION_FORWARD,
    SESSION_DRAFT,
    SESSION_OFFER,
    SESSION_VERIFY,
    SESSION_VERIFY_ADVANCES,
    SESSION_TREE,
    SESSION_TREE_FORWARD,
    SESSION_PLAIN,
    SESSION_PLAIN_ADVANCES,
    SESSION_PLAYS
};
enum { SESSION_RESULTS = 4 }; /* cycles whose results are kept */

struct engine;

enum { SESSION_SOURCES = PLAN_SOURCES }; /* of an engine at most */

/* What a stream has of a source. */
struct session_source {
    struct source *of;       /* the engine's */
    int32_t block;           /* rows of its blocks */
    int32_t n_top;           /* candidates a place, where there are trees; 0: it offers none */
    struct draft_left *left; /* where there are trees, and its edges want it (draft.h); NULL */
    int32_t first_layer;     /* of its caches, in a list of all sources' layers */
    void *context;           /* what it keeps of the stream */
    int64_t width;           /* values of a row that a pass leaves for it; 0: none */
    float *features;         /* device [engine.rows, width] the engine's: of the last pass */
    float *kept; /* device [SESSION_MAX_ROWS, width]: of rows whose context is not made yet, at their position
                    modulo the rows; NULL where it makes none, or of no features */
};

struct session {
    struct engine *g;
    bool solo;             /* the engine goes with the session */
    struct session *next;  /* of slots without a stream */
    struct model *target;  /* these four are the engine's */
    struct source *source; /* the first of them; NULL: none */
    struct kn_backend *be;
    const struct kn_ops *op;
    struct session_options o;                  /* with defaults filled in */
    struct session_source by[SESSION_SOURCES]; /* [n_sources] the sources; by[0].of is source */
    int32_t n_sources;
    struct session_source look; /* options.look; of NULL: none */
    int32_t look_same;          /* the first tokens of the history that stand as at the last question */
    int32_t n_past;             /* committed positions */
    bool anchored;              /* history[n_past] is the last token written, which the target has not run */
    int32_t
        pending; /* the cursor's when all cycles finished that were, where there is recurrent state; else 0 */
    bool tried;  /* the rows pending are of a pass that may have had more; else each was a final one */
    int32_t every;      /* of cycles of one row: recurrent state is written after so many, the rows before are
                           pending; 0: after each */
    struct pages *pool; /* pages.h; NULL: none */
    float *watch;       /* device: pass.queries of the pass that is run; NULL: nobody wants them */
    int64_t n_watch;
    struct kn_kv *here;  /* [n_layer] pass.here; NULL: no layer's keys and values are the host's */
    uint64_t host_bytes; /* of the host's memory, for keys and values */
    int32_t *history;    /* host [positions]: ids of positions 0 .. n_past-1, then whatever is being tried */
    int32_t *d_history;  /* the same on the device */
    struct cursor *d;    /* device */
    struct kn_kv *kv;    /* [target n_layer]; all zero for recurrent layers */
    struct kn_delta_state *delta; /* [target n_layer], of recurrent layers; NULL where there are none */
    int32_t waiting;    /* rows whose context is not made yet: the last so many before the next cycle's, those
                           that run among them */
    int32_t logits_pos; /* position of the input token of logits row 0 */
    int32_t logits_rows; /* of the engine's, or where another stream has its turn 1, in last; 0: none */
    float *last;         /* device [n_vocab] */
    uint64_t bytes;      /* of device memory taken */

    /* session_gaps.c */
    struct session_gaps gaps; /* zero: none */
    int32_t *gaps_at;         /* host [gaps.n_kept] the place of each row's token in the text */
    int32_t *d_origin;        /* device [positions] the place of every row; NULL: no stream here had gaps */
    const int32_t *origin;    /* the same, or NULL without gaps */
    const struct pass_seen *seen; /* NULL, or what prompts attend to is wanted. Borrowed */

    /* session_sparse.c; all NULL without options.sparse */
    struct kn_sparse *sparse; /* [target n_layer]; mean.k NULL: a layer that stays dense */
    uint64_t *sparse_kept;    /* device [target n_layer, 2] */
    uint64_t *stamps;         /* device [target n_layer + 1] of the last pass of a prompt */
    double *layer_ns;         /* [target n_layer] of all passes of prompts */

    /* session_tree.c; all NULL where options.tree is 0 */
    struct kn_tree *tree;     /* device: of the cycle that runs */
    struct kn_kv *tail;       /* [target n_layer] keys and values of its rows */
    struct kn_settle *settle; /* [target n_layer] a list: what becomes of those that stay */
    int32_t n_top;            /* candidates a place at most */
    int32_t *top_ids;         /* device [longest block - 1, n_top] what a source proposes from */
    float *top_values;        /* the same: logits */
    int32_t *stated; /* device [SESSION_MAX_ROWS] of o.synthetic: for each row the id that stays behind it */
    float *top_scores;                /* [longest block - 1, n_top, n_top], where a source has edges; NULL */
    struct kn_candidates *candidates; /* shared [SESSION_RESULTS], of the offers */
    struct session_ranked *ranked;    /* host [SESSION_RESULTS] the same, as planners see them */

    /* cycle.c */
    struct kn_result *results;  /* shared [SESSION_RESULTS] */
    struct kn_offer *offers;    /* the same of drafts */
    uint32_t started, finished; /* cycles so far whose rows were launched; the device's number follows */
    uint32_t offered;           /* offers so far; the device's follows */
    bool open; /* a cycle is begun and its rows are not: begun[started], which started does not count */
    uint64_t accepted; /* when the last one finished was, by the device's clock; 0: none in this run */
    struct session_started {
        int32_t rows, planned;                        /* verified; of the plan, or chosen */
        int32_t source;                               /* that was asked: its number from 1; 0: none */
        uint32_t offer;                               /* the number of its offer; 0: none */
        bool looked, look;                            /* a look-up was asked; its chain is verified */
        bool ranked, tree;                            /* its candidates are in order; its rows are a tree's */
        int32_t n_look, match, ids[SESSION_MAX_ROWS]; /* its proposals, from 1 on */
        bool takes;            /* recurrent state is taken over its row, with all before it */
    } begun[SESSION_RESULTS];  /* those started */
    int32_t reach;             /* recordings are made for positions below this at least */
    struct kn_sampler sampler; /* of the cycles */
    bool trying;               /* the rows of a cycle, of which some may be rejected, are being run */
    struct fault fault;        /* of the last cycle's rows, where layers are checked */
    struct {
        void *recording; /* NULL: none */
        int32_t bound;   /* positions that it was promised to stay below */
        bool ran;        /* it has been run, and is worth recording */
    } plays[SESSION_PLAYS][SESSION_MAX_ROWS + 1];
};

/* The types of a layer's cache; a drafter's by its place in the list of all sources' layers. */
struct kn_kv_types session_kv(const struct session_options *o, bool drafter, int layer);
/* Rows of the longest block; 1 without a source. */
int32_t session_block(const struct session *s);

/* ERR_USAGE: more than ctx tokens, which session_prefill would refuse. */
int session_prompt_check(int32_t ctx, int64_t n, struct err *e);
/* A stream of an engine, at position 0: in a slot that a stream before it left, or a new one. ERR_IO,
 * ERR_DEVICE: memory. */
int session_open(struct session **s, struct engine *g, struct err *e);
/* A stream over an engine of its own, which goes with it, and a source, with those beside it (NULL: none).
 * Errors: those of engine_open and session_open. */
int session_over(struct session **s, struct model *target, struct source *source,
                 const struct session_options *o, struct err *e);
/* The same with a drafter as the source (NULL: none). */
int session_new(struct session **s, struct model *target, struct model *drafter,
                const struct session_options *o, struct err *e);
/* The stream ends; its slot stays with the engine. */
void session_free(struct session *s);
/* Device memory taken, by the stream's slot and its engine. */
uint64_t session_bytes(const struct session *s);
/* Are the keys and values of the target's layer i the host's? Of how many are they? */
bool session_kv_is_host(const struct session *s, int i);
int32_t session_kv_hosted(const struct session *s);
/* The prompt that a new stream (n_past 0) will be given has gaps: at [g->n_kept], ascending, below g->n_text.
 * The verb takes 4 bytes a position. ERR_USAGE: a target with sliding layers, which count distances in the
 * text. */
int session_set_gaps(struct session *s, const struct session_gaps *g, const int32_t *at, struct err *e);
int session_gaps_check(const struct desc *target, struct err *e);
/* Tokens of the text up to n_past, those that were left out among them. */
int32_t session_text(const struct session *s);
/* Run the last token written, where the target has not (anchored): then it is committed, and logits are its.
 * The bits are those that it has as the first row of a cycle. */
int session_settle_anchor(struct session *s, struct err *e);

/* Of sparse prompts: the layers of a target that see every position; blocks kept and blocks seen by them so
 * far (kept [n_layer, 2], 0 of dense layers); layer_ns has the layers' times. */
int32_t session_sparse_layers(const struct desc *d);
int session_sparse_kept(struct session *s, uint64_t *kept, struct err *e);

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
/* Keep the first n rows of the last forward: their features become the source's context, n_past += n. */
int session_commit(struct session *s, int32_t n, struct err *e);

/* The same of a tree, over n rows whose parents[r] < r stand before them; row 0 stands at n_past. ERR_USAGE:
 * no tree, or options.tree does not allow it. */
int session_forward_tree(struct session *s, const int32_t *ids, const int32_t *parents, int32_t n,
                         struct err *e);
/* Keep the path of the last session_forward_tree up to row: as session_commit of its rows. */
int session_commit_path(struct session *s, int32_t row, struct err *e);

/* Draft a block after anchor, the token at n_past: block - 1 proposals (host) for positions n_past + 1 ...,
 * the likeliest tokens (those of cycles may be others: options.draft_greedy).
 * *usable false where the drafter's logits hold a NaN or no finite maximum. Commits nothing; overwrites
 * logits. all_rows: compute row 0 too where it proposes nothing, so that logits holds [rows of the block,
 * n_vocab] (else those that propose). ERR_USAGE: there is no source that proposes by operations. */
int session_draft(struct session *s, int32_t anchor, int32_t *proposals, bool *usable, bool all_rows,
                  struct err *e);

/* Copy row i of the last logits [n_vocab] to the host. */
int session_logits(struct session *s, int32_t i, float *row, struct err *e);
/* A host row's check: ERR_DEVICE naming pos where it holds a NaN or no finite maximum. */
int session_check_row(const struct session *s, const float *row, int32_t pos, struct err *e);

#endif
