/* model.h - weights on a device, and one forward pass a family.
 *
 * A model is a description (desc.h) and its tensors loaded through a backend's operation table. A family is one file
 * (qwen3.c, dflash.c) that spells the forward pass as calls on that table and reads beside the paper. A step is the rows
 * of one pass: the caller owns its buffers, caches and positions (session.c), the family only computes. */
#ifndef DFLASH_MODEL_H
#define DFLASH_MODEL_H

#include <stdint.h>
#include "desc.h"
#include "err.h"
#include "gguf.h"
#include "../kernels/kernels.h"

struct model_layer {
    float *attn_norm, *ffn_norm;                      /* [n_embd] */
    float *q_norm, *k_norm;                           /* [head_dim] */
    struct kn_weight wq, wk, wv;                      /* [n_head*head_dim, n_embd], [n_head_kv*head_dim, n_embd] x2 */
    struct kn_weight wo;                              /* [n_embd, n_head*head_dim] */
    struct kn_weight gate, up, down;                  /* [n_ff, n_embd] x2, [n_embd, n_ff] */
};

struct model {
    struct kn_backend *be;
    struct desc *d;
    struct gguf *file;
    struct kn_weight embed;  /* [n_vocab, n_embd]; rows, and linear where the head is tied. Drafters: borrowed */
    struct kn_weight output; /* [n_vocab, n_embd]; unused where tied */
    const struct kn_weight *head; /* &output or &embed */
    float *output_norm;      /* [n_embd] */
    struct kn_weight fc;     /* drafters: [n_embd, n_features] */
    float *hidden_norm;      /* drafters: [n_embd] */
    double *rope_freq;       /* [head_dim/2] device: theta^(-2i/head_dim) */
    struct model_layer *layer; /* [n_layer] */
    uint64_t bytes_step;     /* weight bytes read by a one-row step, as stored in the file */
};

typedef void (*model_progress_fn)(void *ctx, uint64_t done, uint64_t total);
/* Load a target or drafter GGUF. path may not be a directory or safetensors: those are refused with the convert command. */
int model_load(struct model **m, const char *path, struct kn_backend *be, const struct desc_override *o,
               model_progress_fn progress, void *ctx, struct err *e);
void model_free(struct model *m);

#endif
