/* desc_gemma4.c - Gemma 4 targets, dense and mixture of experts: sliding and full layers with head sizes and
 * key heads of their own, values made of the key projection, two rope sets, scales that the format implies.
 *
 * Not supported, and refused by name: per-layer embeddings and layers that share another one's cache (the
 * small E models). */
#include <math.h>
#include <stdio.h>
#include "../../kernels/kernels.h"
#include "desc_impl.h"

static const struct desc_expect tensors[] = {
    DESC_EXPECT_ENDS,
    {"rope_freqs.weight", {NE_ROT}, ON_DIVISORS},
    {"blk.%d.attn_norm.weight", {NE_EMBD}, 0},
    {"blk.%d.attn_q.weight", {NE_EMBD, NE_Q}, 0},
    {"blk.%d.attn_k.weight", {NE_EMBD, NE_KV}, 0},
    {"blk.%d.attn_v.weight", {NE_EMBD, NE_KV}, ON_VALUES},
    {"blk.%d.attn_output.weight", {NE_Q, NE_EMBD}, 0},
    {"blk.%d.attn_q_norm.weight", {NE_HEAD}, 0},
    {"blk.%d.attn_k_norm.weight", {NE_HEAD}, 0},
    {"blk.%d.post_attention_norm.weight", {NE_EMBD}, 0},
    {"blk.%d.ffn_norm.weight", {NE_EMBD}, 0},
    {"blk.%d.ffn_gate.weight", {NE_EMBD, NE_FF}, 0},
    {"blk.%d.ffn_up.weight", {NE_EMBD, NE_FF}, 0},
    {"blk.%d.ffn_down.weight", {NE_FF, NE_EMBD}, 0},
    {"blk.%d.post_ffw_norm.weight", {NE_EMBD}, 0},
    {"blk.%d.post_ffw_norm_1.weight", {NE_EMBD}, ON_MOE},
    {"blk.%d.pre_ffw_norm_2.weight", {NE_EMBD}, ON_MOE},
    {"blk.%d.post_ffw_norm_2.weight", {NE_EMBD}, ON_MOE},
    {"blk.%d.ffn_gate_inp.weight", {NE_EMBD, NE_EXP}, ON_MOE},
    {"blk.%d.ffn_gate_inp.scale", {NE_EMBD}, ON_MOE},
    {"blk.%d.ffn_gate_up_exps.weight", {NE_EMBD, NE_FFX2, NE_EXP}, ON_MOE | ON_FUSED},
    {"blk.%d.ffn_gate_exps.weight", {NE_EMBD, NE_FFX, NE_EXP}, ON_MOE | ON_SPLIT},
    {"blk.%d.ffn_up_exps.weight", {NE_EMBD, NE_FFX, NE_EXP}, ON_MOE | ON_SPLIT},
    {"blk.%d.ffn_down_exps.weight", {NE_FFX, NE_EMBD, NE_EXP}, ON_MOE},
    {"blk.%d.ffn_down_exps.scale", {NE_EXP}, ON_MOE},
    {"blk.%d.layer_output_scale.weight", {NE_ONE}, 0},
    {0},
};

static const char *const keys[] = {"attention.key_length_swa",   "attention.value_length_swa",
                                   "attention.sliding_window",   "attention.sliding_window_pattern",
                                   "attention.shared_kv_layers", "embedding_length_per_layer_input",
                                   "final_logit_softcapping",    "rope.freq_base_swa",
                                   "rope.dimension_count_swa",   "expert_count",
                                   "expert_used_count",          "expert_feed_forward_length",
                                   "expert_weights_scale",       NULL};

static const struct desc_layer *first_layer(const struct desc *d, bool sliding)
{
    for (int32_t i = 0; i < d->n_layer; i++)
        if ((d->layer[i].window > 0) == sliding) return &d->layer[i];
    return NULL;
}

/* A part of the small models that must say 0 or nothing. */
static int refuse(struct desc_reader *r, const char *name, const char *what)
{
    char key[160];
    int32_t v = 0;
    if (desc_maybe_i32(r, name, 0, INT32_MAX, &v) < 0) return -1;
    if (v == 0) return 0;
    return desc_fail(r, "key '%s': %s are not supported (expected 0 or no such key, got %d)",
                     desc_key(r, name, key, sizeof key), what, v);
}

int desc_gemma4_windows(struct desc_reader *r)
{
    char key[160];
    desc_key(r, "attention.sliding_window_pattern", key, sizeof key);
    if (!gguf_find(r->g, key)) return desc_missing(r, key, "a bool a layer, true: sliding");
    return desc_windows(r);
}

/* ---- heads ---- */

/* A key of one number, or one a layer, against what the tensors say. */
int desc_gemma4_agree(struct desc_reader *r, const char *name, size_t field, const char *tensor)
{
    char key[160];
    int32_t v[DESC_MAX_LAYERS];
    int rc = desc_maybe_i32s(r, name, 1, INT32_MAX, v);
    desc_key(r, name, key, sizeof key);
    if (rc) return rc < 0 ? -1 : desc_missing(r, key, "a number, or one a layer");
    for (int32_t i = 0; i < r->d->n_layer; i++) {
        int32_t found = *(const int32_t *)(const void *)((const char *)&r->d->layer[i] + field);
        if (v[i] != found)
            return desc_fail(r, "key '%s': disagrees with blk.%d.%s (expected %d, got %d)", key, i, tensor,
                             found, v[i]);
    }
    return 0;
}

/* Head sizes: those of all sliding layers are one, and those of all full ones, and the keys say so. */
static int agree_head_dims(struct desc_reader *r)
{
    static const char *const names[2][2] = {{"attention.key_length", "attention.value_length"},
                                            {"attention.key_length_swa", "attention.value_length_swa"}};
    const struct desc *d = r->d;
    for (int32_t i = 0; i < d->n_layer; i++) {
        bool sliding = d->layer[i].window > 0;
        char from[64];
        snprintf(from, sizeof from, "blk.%d.attn_q_norm.weight", i);
        for (int k = 0; k < 2; k++)
            if (desc_agree_i32(r, names[sliding][k], d->layer[i].head_dim, from)) return -1;
        if (d->layer[i].head_dim != first_layer(d, sliding)->head_dim)
            return desc_fail(r, "%s: %s layers differ in head size (expected %d, got %d)", from,
                             sliding ? "sliding" : "full", first_layer(d, sliding)->head_dim,
                             d->layer[i].head_dim);
    }
    return 0;
}

/* Full layers may lack attn_v, all of them or none: one alone has lost it. */
static int read_values(struct desc_reader *r)
{
    struct desc *d = r->d;
    const struct desc_layer *full = first_layer(d, false);
    int32_t none = 0;
    char name[64];
    for (int32_t i = 0; i < d->n_layer; i++) {
        struct desc_layer *y = &d->layer[i];
        snprintf(name, sizeof name, "blk.%d.attn_v.weight", i);
        y->value_is_key = !y->window && !gguf_tensor(r->g, name);
        none += y->value_is_key;
        if (!y->window && y->value_is_key != full->value_is_key)
            return desc_fail(r, "tensor '%s': full layers must all have values of their own, or none", name);
    }
    if (none) desc_infer(r, "%d full layers have no attn_v: their values are the key projection", none);
    return 0;
}

static int read_heads(struct desc_reader *r)
{
    for (int32_t i = 0; i < r->d->n_layer; i++)
        if (desc_layer_heads(r, i, 1, 0)) return -1;
    return desc_gemma4_agree(r, "attention.head_count", offsetof(struct desc_layer, n_head),
                             "attn_q.weight") ||
                   desc_gemma4_agree(r, "attention.head_count_kv", offsetof(struct desc_layer, n_head_kv),
                                     "attn_k.weight") ||
                   agree_head_dims(r) || read_values(r)
               ? -1
               : 0;
}

/* ---- the rest ---- */

static int read_ff(struct desc_reader *r)
{
    struct desc *d = r->d;
    char name[64];
    int32_t count = 0;
    for (int32_t i = 0; i < d->n_layer; i++) {
        snprintf(name, sizeof name, "blk.%d.ffn_gate.weight", i);
        if (desc_dim(r, name, 1, &d->layer[i].n_ff)) return -1;
    }
    if (desc_gemma4_agree(r, "feed_forward_length", offsetof(struct desc_layer, n_ff), "ffn_gate.weight"))
        return -1;
    if (desc_maybe_i32(r, "expert_count", 0, INT32_MAX, &count) < 0) return -1;
    return count || gguf_tensor(r->g, "blk.0.ffn_gate_inp.weight") ? desc_experts(r) : 0;
}

/* One set for each kind of layer. rope_freqs.weight is that of the full ones, always there: which pairs turn
 * is in it alone. */
int desc_gemma4_rope(struct desc_reader *r)
{
    struct desc *d = r->d;
    char key[160];
    struct gguf_str s;
    int rc = gguf_get_str(r->g, desc_key(r, "rope.scaling.type", key, sizeof key), &s, r->e);
    if (rc == 0 && !gguf_str_is(s, "none"))
        return desc_fail(r, "key '%s': rope scaling is not supported (expected none, got %.*s)", key,
                         (int)(s.n < 60 ? s.n : 60), s.s);
    if (rc < 0) return -1;
    for (int kind = 0; kind < 2; kind++) {
        const struct desc_layer *y = first_layer(d, kind == 1);
        struct desc_rope *set = &d->rope[d->n_rope];
        if (!y) continue;
        *set = (struct desc_rope){.n_rot = y->head_dim, .base = y->head_dim, .has_divisors = kind == 0};
        if (desc_need_theta(r, kind ? "rope.freq_base_swa" : "rope.freq_base", &set->theta) ||
            desc_agree_i32(r, kind ? "rope.dimension_count_swa" : "rope.dimension_count", y->head_dim,
                           "the head size"))
            return -1;
        for (int32_t i = 0; i < d->n_layer; i++)
            if ((d->layer[i].window > 0) == (kind == 1)) d->layer[i].rope = d->n_rope;
        d->n_rope++;
    }
    return 0;
}

/* The embedding's factor stands in no key: sqrt(n_embd), which the published models round to bf16. */
static int read_scales(struct desc_reader *r)
{
    struct desc *d = r->d;
    d->embedding_scale = kn_bf16_to_f32(kn_f32_to_bf16(sqrtf((float)d->n_embd)));
    desc_infer(r, "embedding scale %g: the root of %d, rounded to bf16", (double)d->embedding_scale,
               d->n_embd);
    int rc = desc_maybe_f32(r, "final_logit_softcapping", &d->softcap);
    if (rc < 0) return -1;
    d->has_softcap = rc == 0;
    if (rc) desc_infer(r, "no final_logit_softcapping: logits are not capped");
    return 0;
}

static int read_gemma4(struct desc_reader *r)
{
    if (desc_known_keys(r, desc_stack_keys, keys) ||
        refuse(r, "embedding_length_per_layer_input", "per-layer embeddings (as in E2B and E4B)") ||
        refuse(r, "attention.shared_kv_layers",
               "layers that share another layer's cache (as in E2B and E4B)") ||
        desc_base(r, true) || desc_gemma4_windows(r) || read_heads(r) || read_ff(r) || desc_gemma4_rope(r) ||
        read_scales(r))
        return -1;
    return desc_expect_all(r, tensors);
}

const struct desc_family desc_gemma4 = {"gemma4", DESC_GEMMA4, read_gemma4};
