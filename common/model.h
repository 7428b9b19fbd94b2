/* model.h - weights on a device, and one forward pass a family.
 *
 * A model is a description (desc.h) and its tensors loaded through a backend's operation table. A family is
 * one file (qwen3.c, dflash.c) that spells the forward pass as calls on that table and reads beside the
 * paper. A step is the rows of one pass: the caller owns its buffers, caches and positions (session.c), the
 * family only computes. */
#ifndef DFLASH_MODEL_H
#define DFLASH_MODEL_H

#include <stdint.h>
#include "desc.h"
#include "err.h"
#include "gguf.h"
#include "../kernels/kernels.h"

struct model_layer {
    float *attn_norm, *ffn_norm;     /* [n_embd] */
    float *q_norm, *k_norm;          /* [head_dim] */
    struct kn_weight wq, wk, wv;     /* [n_head*head_dim, n_embd], [n_head_kv*head_dim, n_embd] x2 */
    struct kn_weight wo;             /* [n_embd, n_head*head_dim] */
    struct kn_weight gate, up, down; /* [n_ff, n_embd] x2, [n_embd, n_ff] */
};

struct model {
    struct kn_backend *be;
    struct desc *d;
    struct gguf *file;
    struct kn_weight embed;       /* [n_vocab, n_embd]; rows, and linear where tied. Drafters: usually absent */
    struct kn_weight output;      /* [n_vocab, n_embd]; absent where tied, and usually in drafters */
    const struct kn_weight *head; /* &output or &embed; drafters: NULL where the target's is borrowed */
    float *output_norm;           /* [n_embd] */
    struct kn_weight fc;          /* drafters: [n_embd, n_features] */
    float *hidden_norm;           /* drafters: [n_embd] */
    double *rope_freq;            /* [head_dim/2] device: theta^(-2i/head_dim) */
    struct model_layer *layer;    /* [n_layer] */
    uint64_t bytes_step;          /* weight bytes read by a one-row step, as stored in the file */
};

typedef void (*model_progress_fn)(void *ctx, uint64_t done, uint64_t total);
/* Load a target or drafter GGUF. path may not be a directory or safetensors: those are refused with the
 * convert command. */
int model_load(struct model **m, const char *path, struct kn_backend *be, const struct desc_override *o,
               model_progress_fn progress, void *ctx, struct err *e);
/* The same over an open file, which the model takes (and closes, also on failure). */
int model_load_gguf(struct model **m, struct gguf *g, struct kn_backend *be, const struct desc_override *o,
                    model_progress_fn progress, void *ctx, struct err *e);
void model_free(struct model *m);

/* Activations of one pass, on the device. Target and drafter take turns in the same ones. */
struct work {
    int32_t rows; /* capacity: the most rows a pass may have */
    float *x;     /* [rows, n_embd] the residual stream */
    float *q;     /* [rows, n_head * head_dim] */
    float *k, *v; /* [rows, n_head_kv * head_dim] */
    float *attn;  /* [rows, n_head * head_dim] */
    float *ff;    /* [rows, n_ff] */
    float *rope;  /* [rows, head_dim/2, 2] cos, sin */
};

/* The rows of one pass: n tokens at n consecutive positions, and what they read and leave. */
struct pass {
    struct work *w;
    const struct kn_kv *kv; /* [n_layer] */
    int32_t n;
    int32_t first_pos;  /* the position of row 0, as the host knows it: for messages */
    const int32_t *ids; /* [n] device */
    const int32_t *pos; /* [n] device, ascending by one */
    float *features;    /* [n, n_features] tap-major: left by a target, read by a drafter; NULL: not wanted */
    const struct desc *tapped;   /* the drafter whose taps a target leaves; NULL where features is */
    const int32_t *visible_from; /* drafters: NULL, or one int32 (device): context before it is not seen */
    bool check;                  /* look for NaN and Inf after every layer (slow; waits for the device) */
};

/* qwen3.c: the causal pass of a target. Leaves the residual stream in w->x (before output_norm), keys and
 * values in kv, the taps in features. ERR_DEVICE where the device fails, or with check where a layer leaves a
 * NaN or Inf. */
int qwen3_pass(const struct model *m, const struct pass *p, struct err *e);
/* One Qwen3 block over w->x: attention as the layer's description says (causal, window), then the feed-forward. A DFlash
 * drafter is made of the same blocks. Returns what the operation that failed returned. */
int qwen3_block(const struct model *m, const struct pass *p, int32_t i);

/* dflash.c: keys and values of context rows from the features of the target, into kv at their positions. ids
 * unused. */
int dflash_context(const struct model *m, const struct pass *p, struct err *e);
/* dflash.c: one block. ids = [anchor, mask...]; target lends its embedding. Leaves the residual stream in
 * w->x. */
int dflash_block(const struct model *m, const struct model *target, const struct pass *p, struct err *e);

/* logits[n, n_vocab] = head(rms_norm(x; output_norm)) of rows x[n, n_embd], softcapped where the model says
 * so. A drafter without a head of its own borrows target's; target is m itself for a target. */
int model_logits(const struct model *m, const struct model *target, const float *x, int32_t n, float *logits,
                 struct err *e);
/* Turn the failure of an operation into an error naming the model and the operation; returns -1. */
int model_failed(const struct model *m, const char *what, int rc, struct err *e);

#endif
