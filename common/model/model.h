/* model.h - weights on a device, and one forward pass a family.
 *
 * A model is a description (desc.h) and its tensors loaded through a backend's operation table. A family is
 * one file (qwen3.c, llama.c, dflash.c) that spells the forward pass as calls on that table and reads beside
 * the paper. A step is the rows of one pass: the caller owns its buffers, caches and positions (session.c),
 * the family only computes. */
#ifndef DFLASH_MODEL_H
#define DFLASH_MODEL_H

#include <stdint.h>
#include "../describe/desc.h"
#include "../base/err.h"
#include "../file/gguf.h"
#include "../../kernels/kernels.h"

/* What a family does not have stays empty (kn_weight.type KN_TYPE_NONE or all zero, pointers NULL). Names on
 * the right are those of the file; shapes are C order. */
struct model_layer {
    float *attn_norm, *ffn_norm; /* [n_embd] */
    float *post_attn_norm;       /* [n_embd] post_attention_norm: qwen35's norm before the
                                    feed-forward, gemma4's after attention */
    float *post_ffw_norm;        /* [n_embd] */
    float *post_ffw_norm_1, *post_ffw_norm_2, *pre_ffw_norm_2; /* [n_embd] */
    float *q_norm, *k_norm;                                    /* [head_dim] */
    float *sinks;                                              /* [n_head] attn_sinks */
    struct kn_weight wq, wk, wv;           /* [n_head*head_dim, n_embd], [n_head_kv*head_dim, n_embd] x2 */
    struct kn_weight wg;                   /* [n_head*head_dim, n_embd] the gates held in attn_q */
    struct kn_weight wo;                   /* [n_embd, n_head*head_dim] */
    struct kn_weight gate, up, down;       /* [n_ff, n_embd] x2, [n_embd, n_ff] */
    struct kn_weight router;               /* [n_expert, n_embd] ffn_gate_inp */
    float *router_scale, *expert_scale;    /* [n_embd] ffn_gate_inp.scale / sqrt(n_embd), the weight of the
                                              router's norm; [n_expert] ffn_down_exps.scale */
    struct kn_weight gate_x, up_x, down_x; /* [n_expert, n_ff_exp, n_embd] x2, [n_expert, n_embd, n_ff_exp] */
    struct kn_weight gate_s, up_s,
        down_s;              /* the shared expert: [n_ff_shexp, n_embd] x2, [n_embd, n_ff_shexp] */
    struct kn_weight shared; /* [1, n_embd] ffn_gate_inp_shexp: its gate */
    struct kn_weight qkv, z, alpha, beta; /* [width, n_embd], [n_v*d_v, n_embd], [n_v, n_embd] x2 */
    struct kn_weight ssm_out;             /* [n_embd, n_v*d_v] */
    float *conv, *a, *dt, *ssm_norm;      /* [width, n_conv], [n_v] x2, [d_v] */
    float *conv_base[2]; /* DFlash2, around attention and around the feed-forward: [2, taps, n_embd],
                            before it and behind it */
    struct kn_weight conv_proj[2]; /* [2 * taps * n_embd / group, n_embd] */
    float out_scale;               /* layer_output_scale on the whole residual stream; 1 if absent */
};

struct model {
    struct kn_backend *be;
    struct desc *d;
    struct gguf *file;
    const struct model_family *family; /* NULL: a drafter */
    const struct draft_kind *kind;     /* draft.h; NULL: a target */
    struct kn_weight embed;  /* [n_vocab, n_embd]; rows, and linear where tied. Drafters: usually absent */
    struct kn_weight output; /* [n_vocab, n_embd]; absent where tied, and usually in drafters */
    const struct kn_weight *head; /* &output or &embed; drafters: NULL where the target's is borrowed */
    float *output_norm;           /* [n_embd], times desc.logit_scale */
    struct kn_weight post;        /* assistants: post_projection [n_embd_target, n_embd] */
    struct kn_weight centroids;   /* assistants: [n_clusters, n_embd], or none */
    int32_t *cluster;             /* assistants: [n_vocab] device: of each id */
    struct kn_weight fc;          /* assistants: pre_projection [n_embd, 2 n_embd_target]; DFlash: [n_embd,
                                     n_features]; MTP: eh_proj [n_embd, 2 n_embd] */
    float *hidden_norm;           /* drafters: [n_embd]; MTP: hnorm */
    float *embed_norm;            /* MTP: enorm [n_embd] */
    float *value_scale;           /* drafters: [n_embd] of desc.value_scale; NULL: none */
    float *scaled_rows;           /* host: rows of markov_w2 times its scale, which the weight may point at */
    struct {
        struct kn_weight hidden, before, after; /* [rank, n_embd], [n_vocab, rank] x2 (rows) */
    } selector;                                 /* DFlash2 */
    struct draft_heads {             /* drafters that correct their logits one after the other: draft.h */
        struct kn_weight w1, w2;     /* DSpark: [n_vocab, rank] rows, [n_vocab_draft or n_vocab, rank] */
        struct kn_weight mix;        /* [rank, n_embd + rank] gated, [3 rank, 2 rank + n_embd] rnn */
        struct kn_weight conf;       /* [1, n_embd (+ rank)] */
        float *mix_bias, *conf_bias; /* [rank] or [3 rank]; [1] or NULL */
        struct kn_weight ih, hh;     /* Domino: [3 n_state, n_embd], [3 n_state, n_state] */
        struct kn_weight down, up;   /* [n_correct, n_embd + n_state], [n_vocab, n_correct] */
    } heads;
    double *rope_freq[DESC_MAX_ROPES]; /* [n_rot/2] device: what desc_rope says */
    struct model_layer *layer;         /* [n_layer] */
    struct model_matrix {
        const struct kn_weight *w;
        const char *name;
    } * matrix; /* [n_matrix] the weights of products and their tensors; of one stored in halves, the first */
    int32_t n_matrix;
    int32_t n_host; /* experts a layer whose matrices stay in the host's memory (model_place) */
    int32_t *host;  /* [n_layer, n_host] which; NULL where n_host is 0 */
    uint64_t
        bytes_step; /* weight bytes read by a one-row step, as stored in the file; of experts, those used */
};

typedef void (*model_progress_fn)(void *ctx, uint64_t done, uint64_t total);
/* Open a target or drafter GGUF: its description, and whether the backend can run it. No weight is read and
 * nothing but d is there to be used, until model_fill. o->kv: keys that get other values than the file's.
 * path may not be a directory or safetensors: those are refused with the convert command. */
int model_open(struct model **m, const char *path, struct kn_backend *be, const struct desc_override *o,
               struct err *e);
/* Of an open model: n experts a layer stay in the host's memory (kn_hosted), those that counts, an importance
 * matrix of the model, says were chosen least; of equals, and without it, those with the highest ids. What
 * the model computes does not depend on it. counts NULL: none; its entries may take the shapes of their
 * tensors. ERR_USAGE: the model has no experts, or not more than n; ERR_FORMAT: counts lacks a layer, or does
 * not tell experts apart. */
struct imatrix; /* ../file/imatrix.h */
int model_place(struct model *m, int32_t n, const struct imatrix *counts, struct err *e);
/* The same experts as of another model of the same file, or of one like it. */
int model_place_like(struct model *m, const struct model *other, struct err *e);
uint64_t model_host_bytes(const struct model *m); /* of all of theirs, as the file has them */
/* The weights of an open model. On failure it can only be freed. */
int model_fill(struct model *m, model_progress_fn progress, void *ctx, struct err *e);
/* Both. */
int model_load(struct model **m, const char *path, struct kn_backend *be, const struct desc_override *o,
               model_progress_fn progress, void *ctx, struct err *e);
/* The same over an open file, which the model takes (and closes, also on failure). */
int model_load_gguf(struct model **m, struct gguf *g, struct kn_backend *be, const struct desc_override *o,
                    model_progress_fn progress, void *ctx, struct err *e);
void model_free(struct model *m);

/* Activations of one pass, on the device, in work.c. Target and drafter take turns in the same ones; what
 * neither needs is NULL. */
struct work {
    int32_t rows;                /* capacity: the most rows a pass may have */
    float *x;                    /* [rows, n_embd] the residual stream */
    float *y;                    /* [rows, n_embd] a branch before it is normed and added */
    float *y2;                   /* [rows, n_embd] a second branch beside it */
    float *q;                    /* [rows, n_head * head_dim] */
    float *g;                    /* [rows, n_head * head_dim] gates of the attention's output */
    float *k, *v;                /* [rows, n_head_kv * head_dim] */
    float *fused;                /* DFlash: [rows, n_embd] features through fc; MTP: [rows, 2 n_embd] what
                                    eh_proj reads */
    float *context;              /* [rows, dflash_context_width] keys and values of a drafter's context */
    float *attn;                 /* [rows, n_head * head_dim], or [rows, n_v * d_v] of a delta net */
    float *ff;                   /* [rows, max(n_ff, n_ff_shexp)] */
    float *rope[DESC_MAX_ROPES]; /* [rows, n_rot/2, 2] cos, sin */
    float *draft_rope;           /* the same of a drafter: a block's are those of the context that follows */
    float *router;               /* [rows, n_expert] */
    int32_t *expert;             /* [rows, n_expert_used] ids; with a shared expert room for one more a row */
    float *expert_w;             /* [rows, n_expert_used] their weights; the same */
    float *expert_ff;            /* [rows, n_expert_used, n_ff_exp]; the same */
    float *shared;               /* [rows, 1] gate of the shared expert */
    /* Of a drafter's head (dspark.c, domino.c); block: rows of a block, and one more */
    int32_t *from; /* [n_vocab] the row of a reduced vocabulary that is an id's, -1: none */
    float *part;   /* [block, n_vocab_draft] its logits */
    float
        *beside;  /* [block, n_embd + rank or n_state] normed rows, each with what the head knows beside it */
    float *joint; /* [block, 2 rank + n_embd] the recurrent Markov head's input: its first row begins with
                     zeros, which nobody writes. Domino: the embedding of a token */
    float *mixed; /* [work_mixed] results of small products */
    float *qkv, *z, *alpha, *beta; /* [rows, width], [rows, n_v * d_v], [rows, n_v] x2 */
    /* Of blocks, KN_CYCLE_ROWS rows at most. DFlash2: */
    float *conv;                     /* [, n_embd] a branch's input, then its output */
    float *dynamic;                  /* [, 2 * taps * n_embd / group] of its convolutions */
    float *selector;                 /* [, rank] */
    int32_t *candidates;             /* [, k] */
    float *candidate_logits, *edges; /* [, k], [, k, k] */
};

/* Values of work.mixed. */
int64_t work_mixed(const struct desc *d);
/* Take what the models need for passes of up to rows rows, and the backend's scratch; *bytes is added to.
 * drafters: n of them. On failure (ERR_IO, ERR_DEVICE) what was taken is given back by work_free. */
int work_new(struct work *w, const struct model *target, const struct model *const *drafters, int32_t n,
             int32_t rows, uint64_t *bytes, struct err *e);
void work_free(struct work *w, struct kn_backend *be);

/* Who wants to see the residual stream. A plane is what a layer leaves: 0 the embeddings (scaled), i the rows
 * after block i - 1; the last, n_layer, after output_norm. So the planes are the hidden_states of Hugging
 * Face transformers, and the tap of block i is plane i + 1. */
struct hidden {
    /* rows: host [n, n_embd] of a plane, of positions first_pos ..; planes ascending within a pass. */
    int (*fn)(void *ctx, int32_t plane, const float *rows, int32_t n, int32_t first_pos, struct err *e);
    void *ctx;
    float *normed, *host; /* device and host [rows, n_embd]: scratch */
};

/* What the rows at positions from .. attend to: kn_attention_weights, over the layers that are wanted. */
#define PASS_SEEN_ROWS 8 /* rows a call */
struct pass_seen {
    bool wanted[DESC_MAX_LAYERS];
    int32_t from, n_keys;
    int32_t pool;
    float *scratch; /* device [PASS_SEEN_ROWS, most heads of a layer, n_keys] */
    float *out;     /* device [rows, n_keys] */
};

/* The rows of one pass: n tokens at n consecutive positions, or of a tree, and what they read and leave. */
struct pass {
    struct work *w;
    const struct kn_kv *kv; /* [n_layer]; all zero for recurrent layers */
    const int32_t *places;  /* [n] device: where the rows stand in caches without a window; NULL: at pos */
    float *queries; /* NULL, or of a pass of one row: the queries of every layer with attention, as they
                       meet its keys, [n_layer, n_queries] */
    int64_t n_queries;
    const struct kn_kv *here; /* [n_layer] where kv's keys and values lie in the host's memory: the same cache
                                 in the device's, all layers' in one place; k NULL: the layer's do not. NULL:
                                 none does */
    const struct kn_delta_state *delta; /* [n_layer], used for recurrent layers; NULL where there are none */
    const int32_t *pending; /* device: rows of the last pass that were kept, for the delta nets to replay */
    const struct kn_sparse
        *sparse;      /* NULL, or [n_layer]: rows are whole blocks of a prompt; mean.k NULL: dense */
    uint64_t *stamps; /* NULL, or device [n_layer + 1]: when each layer begins, and the last ends */
    bool commit; /* the rows are final (a prefill, a cycle without a drafter): delta nets advance their state
                  */
    int32_t every; /* of one final row: kn_delta's */
    int32_t n;
    int32_t first_pos;     /* the position of row 0, as the host knows it: for messages */
    const int32_t *ids;    /* [n] device */
    const int32_t *pos;    /* [n] device, ascending by one */
    const int32_t *origin; /* NULL, or device: row pos turns by origin[pos] in rope, not by pos; a prompt that
                              was compressed */
    const struct pass_seen *seen; /* NULL, or what rows attend to is wanted; caches then are of floats */
    const struct kn_tree *tree;   /* NULL, or the rows are a tree's (device); ids and pos are its own then, */
    const struct kn_kv *tail;     /* [n_layer] their keys and values go here, row r to position r, */
    const int32_t *rows;          /* [n] device: 0, 1, 2, ... */
    float *features; /* [n, n_features] tap-major: left by a target, read by a drafter; NULL: not wanted */
    const struct desc *tapped;   /* the drafter whose taps a target leaves; NULL where features is */
    int32_t reach;               /* drafters: the window of layers without one; 0: none */
    const int32_t *visible_from; /* drafters: NULL, or one int32 (device): context before it is not seen */
    bool check;                  /* look for NaN and Inf after every layer (slow; waits for the device) */
    struct fault *fault; /* NULL: what is found is an error; else it is left here, for rows may be rejected */
    const struct hidden *hidden; /* NULL, or show it every layer (slow; waits for the device) */
};

/* The earliest row that a layer left a NaN or Inf in: its position (INT32_MAX: none) and the first such
 * layer, -1 for the embedding. */
struct fault {
    int32_t pos, layer;
};
int model_fault(const struct fault *f, struct err *e); /* sets e, returns -1 */

/* A family's forward pass is one block, in a file of its own that reads beside the paper; what is around the
 * blocks is the same for all (model_pass). block runs layer i over p->w->x and returns what the operation
 * that failed returned. */
struct model_family {
    enum desc_arch arch;
    int (*block)(const struct model *m, const struct pass *p, int32_t i);
};
extern const struct model_family family_qwen3, family_qwen3moe, family_qwen35, family_qwen35moe, family_llama,
    family_gemma4;
const struct model_family *model_family_of(enum desc_arch arch); /* NULL: none, or a drafter */

/* pass.c: the causal pass of a target. Leaves the residual stream in w->x (before output_norm), keys and
 * values in kv, the taps in features. ERR_DEVICE where the device fails, or with check where a layer leaves a
 * NaN or Inf. */
int model_pass(const struct model *m, const struct pass *p, struct err *e);
/* What a layer's heads do, as its description says (heads, rope set, causal, window): queries, keys and
 * values in w->q, w->k, w->v, the result in w->attn, scores over sqrt(head_dim). A family changes what
 * differs. */
struct pass_heads {
    struct kn_rope_store rope;
    struct kn_attention attention;
    const struct pass_seen *seen; /* NULL, or wanted of this layer */
    int32_t first_pos;
    const struct kn_kv *here; /* NULL, or pass.here of the layer */
    float *queries;           /* NULL, or its place in pass.queries */
};
struct pass_heads pass_heads(const struct model *m, const struct pass *p, int32_t i);
/* rope_store and attention. Returns what the operation that failed returned. */
int pass_attend(const struct model *m, const struct pass_heads *h);
/* Router and experts of a layer over w->x. expert_scale may be NULL. Returns what the operation that failed
 * returned. */
struct pass_mixture {
    const float *router_norm, *norm; /* what the router and what the experts read x through */
    enum kn_act act;
    float *out;  /* the weighted sum goes here, */
    bool add;    /* or is added to it */
    bool shared; /* with the expert that all rows share: only where pass_shares */
};
int pass_experts(const struct model *m, const struct pass *p, int32_t i, const struct pass_mixture *x);
/* May the backend run layer i's shared expert as one of the others? */
bool pass_shares(const struct model *m, int32_t i);
/* qwen3.c: attention of layer i over w->x as its description says (causal, window, heads, rope set), added to
 * w->x. norms of heads where the layer has them. Also Llama's and the drafters'. */
int qwen3_attention(const struct model *m, const struct pass *p, int32_t i);
/* qwen3.c: one dense Qwen3 block. A DFlash drafter is made of the same blocks. */
int qwen3_block(const struct model *m, const struct pass *p, int32_t i);
/* qwen35.c: take the state of every delta net over the *p->pending rows of the last pass that were kept, and
 * no further: p->n is 0. Returns what the operation that failed returned. */
int qwen35_replay(const struct model *m, const struct pass *p);

/* dflash.c: keys and values of context rows from the features of the target, into kv at their positions. ids
 * unused. */
int dflash_context(const struct model *m, const struct pass *p, struct err *e);
int64_t dflash_context_width(const struct desc *d); /* values a row in w->context */
/* dflash.c: one block, through the layers of the drafter's kind. ids = [anchor, mask...]; target lends its
 * embedding. Leaves the residual stream in w->x. */
int dflash_block(const struct model *m, const struct model *target, const struct pass *p, struct err *e);

/* qwen35.c: layer i, of an MTP block too. Returns what the operation that failed returned. */
int qwen35_block(const struct model *m, const struct pass *p, int32_t i);
/* qwen35_mtp.c. Rows of an MTP block: token ids[i] and the target's hidden state before it, after the final
 * norm. late: NULL, or [slots, n_embd] hidden states by position modulo slots: row i reads features[i - 1],
 * and row 0 the one of pos[0] - 1. A row stands in the cache one position before its token, which before
 * [n_before] is for, device memory. */
struct mtp_rows {
    const float *late;
    int32_t slots;
    int32_t *before, n_before; /* NULL: places are known */
    const int32_t *places;     /* [n] pos[i] - 1; NULL where before is, or pos are the places already */
};
/* Keys and values of rows whose hidden states are the target's, into kv. */
int qwen35_mtp_context(const struct model *m, const struct model *target, const struct pass *p,
                       const struct mtp_rows *r, struct err *e);
/* One row of a draft (p->n is 1) at place i of the draft, whose places are set by the call of i 0: logits
 * [n_vocab], and what the next row reads in place of the target's hidden state: h [n_embd], in place. i 0
 * reads late; later ones h. */
int qwen35_mtp_step(const struct model *m, const struct model *target, const struct pass *p,
                    const struct mtp_rows *r, int32_t i, float *h, float *logits, struct err *e);

/* gemma4.c: a block behind its attention, of an assistant too: w->y holds what Wo gave. Returns what the
 * operation that failed returned. */
int gemma4_branches(const struct model *m, const struct pass *p, int32_t i);
/* gemma4_assistant.c: one row of a draft, its token p->ids[0]; p->kv [n_layer] the target's caches that its
 * layers read, up to position p->pos[0] - 1. late, h, before as in mtp_rows and qwen35_mtp_step: i 0 reads
 * late and sets before [1], the place of the newest key; later rows read h [n_embd_target]. y: scratch
 * [n_embd], scores: [n_clusters]. */
struct assistant_rows {
    const float *late;
    int32_t slots;
    int32_t *before;
    float *h, *y, *scores;
};
int gemma4_assistant_step(const struct model *m, const struct model *target, const struct pass *p,
                          const struct assistant_rows *r, int32_t i, float *logits, struct err *e);

/* logits[n, n_vocab] = head(rms_norm(x; output_norm)) of rows x[n, n_embd], softcapped where the model says
 * so. A drafter without a head of its own borrows target's; target is m itself for a target. */
int model_logits(const struct model *m, const struct model *target, const float *x, int32_t n, float *logits,
                 struct err *e);
/* The same, and out[n, n_out of w] = w rms_norm(x; output_norm) beside them. w NULL: without. */
int model_logits_beside(const struct model *m, const struct model *target, const float *x, int32_t n,
                        float *logits, const struct kn_weight *w, float *out, struct err *e);
/* Turn the failure of an operation into an error naming the model and the operation; returns -1. */
int model_failed(const struct model *m, const char *what, int rc, struct err *e);
/* op->alloc (or alloc_shared) has just failed: ERR_IO where memory is the host's, ERR_DEVICE with the
 * device's own account where it is not. fmt: what it was for. Returns -1. */
int model_no_memory(struct kn_backend *be, struct err *e, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
