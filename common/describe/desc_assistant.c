/* desc_assistant.c - assistants of Gemma 4: small stacks without keys and values of their own, in the
 * spelling of llama.cpp (gemma4-assistant) and an older one (gemma4_assistant). */
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include "../../kernels/kernels.h"
#include "desc_impl.h"

enum { USUAL_BLOCK = 4, MOST_ROWS = 64 }; /* the anchor and three proposals */

static const struct desc_expect tensors[] = {
    {"token_embd.weight", {NE_EMBD, NE_VOCAB}, 0}, {"output_norm.weight", {NE_EMBD}, 0},
    {"rope_freqs.weight", {NE_ROT}, ON_DIVISORS},  {"blk.%d.attn_norm.weight", {NE_EMBD}, 0},
    {"blk.%d.attn_q.weight", {NE_EMBD, NE_Q}, 0},  {"blk.%d.attn_output.weight", {NE_Q, NE_EMBD}, 0},
    {"blk.%d.attn_q_norm.weight", {NE_HEAD}, 0},   {"blk.%d.post_attention_norm.weight", {NE_EMBD}, 0},
    {"blk.%d.ffn_norm.weight", {NE_EMBD}, 0},      {"blk.%d.ffn_gate.weight", {NE_EMBD, NE_FF}, 0},
    {"blk.%d.ffn_up.weight", {NE_EMBD, NE_FF}, 0}, {"blk.%d.ffn_down.weight", {NE_FF, NE_EMBD}, 0},
    {"blk.%d.post_ffw_norm.weight", {NE_EMBD}, 0}, {0},
};

static const char *const keys[] = {"attention.k_eq_v",
                                   "attention.key_length_swa",
                                   "attention.shared_kv_layers",
                                   "attention.sliding_window",
                                   "attention.sliding_window_pattern",
                                   "attention.value_length_swa",
                                   "centroid_top_k",
                                   "embedding_length_out",
                                   "embedding_length_per_layer_input",
                                   "n_centroids",
                                   "n_embd_backbone",
                                   "nextn_predict_layers",
                                   "requires_target_arch",
                                   "rope.dimension_count_swa",
                                   "rope.freq_base_swa",
                                   "use_ordered_embeddings",
                                   NULL};

/* Of every layer from its own tensors: queries alone. */
static int read_layers(struct desc_reader *r)
{
    struct desc *d = r->d;
    char name[64], norm[64];
    int32_t rows;
    for (int32_t i = 0; i < d->n_layer; i++) {
        struct desc_layer *y = &d->layer[i];
        snprintf(norm, sizeof norm, "blk.%d.attn_q_norm.weight", i);
        snprintf(name, sizeof name, "blk.%d.attn_q.weight", i);
        if (desc_dim(r, norm, 0, &y->head_dim) || desc_dim(r, name, 1, &rows)) return -1;
        if (y->head_dim % 2 || rows % y->head_dim)
            return desc_fail(
                r,
                "blk.%d: heads do not divide (expected an even head size that divides the rows of "
                "attn_q, got %d and %d)",
                i, y->head_dim, rows);
        y->n_head = y->n_head_kv = rows / y->head_dim; /* key heads are the target's */
        y->causal = true;
        snprintf(name, sizeof name, "blk.%d.ffn_gate.weight", i);
        if (desc_dim(r, name, 1, &y->n_ff) ||
            desc_agree_i32(r, y->window ? "attention.key_length_swa" : "attention.key_length", y->head_dim,
                           norm))
            return -1;
    }
    return desc_gemma4_agree(r, "attention.head_count", offsetof(struct desc_layer, n_head),
                             "attn_q.weight") ||
                   desc_gemma4_agree(r, "feed_forward_length", offsetof(struct desc_layer, n_ff),
                                     "ffn_gate.weight")
               ? -1
               : 0;
}

/* Ids in clusters: all rows of the ordering are one cluster's. */
static int read_clusters(struct desc_reader *r)
{
    struct desc *d = r->d;
    bool ordered = false;
    char key[160];
    const struct gguf_tensor *t = gguf_tensor(r->g, "mtp.token_ordering.weight");
    if (gguf_get_bool(r->g, desc_key(r, "use_ordered_embeddings", key, sizeof key), &ordered, r->e) < 0)
        return -1;
    if (!ordered) return 0;
    if (desc_need_i32(r, "n_centroids", 1, KN_CLUSTERS, &d->n_clusters) ||
        desc_need_i32(r, "centroid_top_k", 1, d->n_clusters, &d->n_best))
        return -1;
    if (d->n_vocab % d->n_clusters)
        return desc_fail(r, "key '%s': clusters do not divide the vocabulary (got %d and %d)",
                         desc_key(r, "n_centroids", key, sizeof key), d->n_clusters, d->n_vocab);
    const int64_t rows[3] = {d->n_embd, d->n_clusters, 0}, ids[3] = {d->n_vocab, 0, 0};
    if (desc_shape(r, rows, "mtp.centroids.weight") || desc_shape(r, ids, "mtp.token_ordering.weight"))
        return -1;
    if (t->type != KN_I32)
        return desc_fail(r, "tensor 'mtp.token_ordering.weight': has the wrong type (expected I32, got %s)",
                         kn_type_info(t->type)->name);
    return 0;
}

static int read_scales(struct desc_reader *r)
{
    const int64_t one[3] = {1, 0, 0};
    char name[64];
    for (int32_t i = 0; i < r->d->n_layer; i++) {
        snprintf(name, sizeof name, "blk.%d.layer_output_scale.weight", i);
        if (gguf_tensor(r->g, name) && desc_shape(r, one, name)) return -1;
    }
    return desc_all_or_none(r, "layer_output_scale");
}

static int read_any(struct desc_reader *r, const char *width_key, const char *pre, const char *post)
{
    struct desc *d = r->d;
    struct gguf_str target;
    char key[160];
    int32_t v;
    d->dialect = "assistant";
    d->kind = "assistant";
    d->pre_name = pre;
    d->post_name = post;
    d->first_row = 1;
    d->mask_id = 0;
    d->block_size = r->o && r->o->block_size ? r->o->block_size : USUAL_BLOCK;
    d->block_most = MOST_ROWS;
    d->has_embedding_scale = false;
    if (desc_known_keys(r, desc_stack_keys, keys) || desc_base(r, false)) return -1;
    d->tied_head = true; /* its own embedding, which nothing else reads */
    if (desc_need_i32(r, width_key, 1, INT32_MAX, &d->n_embd_target) ||
        desc_dim(r, "token_embd.weight", 1, &d->n_vocab) ||
        desc_agree_i32(r, "vocab_size", d->n_vocab, "token_embd.weight"))
        return -1;
    if (desc_maybe_i32(r, "nextn_predict_layers", 0, INT32_MAX, &v) == 0 && v != d->n_layer)
        return desc_fail(r, "key '%s': is not block_count (expected %d, got %d)",
                         desc_key(r, "nextn_predict_layers", key, sizeof key), d->n_layer, v);
    const int rc = gguf_get_str(r->g, desc_key(r, "requires_target_arch", key, sizeof key), &target, r->e);
    if (rc < 0) return -1;
    if (rc == 0 && !gguf_str_is(target, "gemma4"))
        return desc_fail(r, "key '%s': is not supported (expected gemma4, got %.*s)", key,
                         (int)(target.n < 60 ? target.n : 60), target.s);
    const int64_t in[3] = {2 * (int64_t)d->n_embd_target, d->n_embd, 0},
                  out[3] = {d->n_embd, d->n_embd_target, 0};
    if (desc_shape(r, in, pre) || desc_shape(r, out, post) || desc_gemma4_windows(r) || read_layers(r) ||
        desc_gemma4_rope(r) || read_clusters(r))
        return -1;
    return read_scales(r) || desc_expect_all(r, tensors) ? -1 : 0;
}

bool desc_is_assistant(struct gguf_str arch)
{
    return gguf_str_is(arch, desc_assistant.name) || gguf_str_is(arch, desc_assistant_old.name);
}

static int read_new(struct desc_reader *r)
{
    return read_any(r, "embedding_length_out", "nextn.pre_projection.weight", "nextn.post_projection.weight");
}

static int read_old(struct desc_reader *r)
{
    return read_any(r, "n_embd_backbone", "mtp.pre_projection.weight", "mtp.post_projection.weight");
}

const struct desc_family desc_assistant = {"gemma4-assistant", DESC_GEMMA4_ASSISTANT, read_new};
const struct desc_family desc_assistant_old = {"gemma4_assistant", DESC_GEMMA4_ASSISTANT, read_old};
