/* desc_stack.c - what stacks of transformer blocks have in common: sizes from tensor shapes, which the keys
 * must agree with, and a family's table of tensors against the file. */
#include <stdio.h>
#include <string.h>
#include "desc_impl.h"

const char *const desc_stack_keys[] = {"block_count",
                                       "context_length",
                                       "embedding_length",
                                       "feed_forward_length",
                                       "vocab_size",
                                       "attention.head_count",
                                       "attention.head_count_kv",
                                       "attention.key_length",
                                       "attention.value_length",
                                       "attention.layer_norm_rms_epsilon",
                                       "rope.freq_base",
                                       "rope.dimension_count",
                                       "rope.scaling.type",
                                       NULL};

/* ---- sizes ---- */

int desc_base(struct desc_reader *r, bool target)
{
    struct desc *d = r->d;
    int32_t v;
    if (desc_need_i32(r, "block_count", 1, DESC_MAX_LAYERS, &d->n_layer) ||
        desc_need_i32(r, "context_length", 0, INT32_MAX, &d->n_ctx_train) ||
        desc_need_f32(r, "attention.layer_norm_rms_epsilon", &d->rms_eps) ||
        desc_dim(r, "output_norm.weight", 0, &d->n_embd) ||
        desc_need_i32(r, "embedding_length", 1, INT32_MAX, &v) ||
        desc_agree_i32(r, "embedding_length", d->n_embd, "output_norm.weight"))
        return -1;
    for (int i = 0; i < d->n_layer; i++) d->layer[i].causal = true;
    if (!target) return 0;
    d->tied_head = !gguf_tensor(r->g, "output.weight");
    return desc_dim(r, "token_embd.weight", 1, &d->n_vocab) ||
                   desc_agree_i32(r, "vocab_size", d->n_vocab, "token_embd.weight")
               ? -1
               : 0;
}

int desc_layer_heads(struct desc_reader *r, int32_t layer, int32_t q_parts, int32_t head_dim)
{
    struct desc_layer *y = &r->d->layer[layer];
    int32_t q_rows, k_rows;
    const int32_t block = r->d->first_block + layer;
    char q[64], k[64], norm[64];
    snprintf(q, sizeof q, "blk.%d.attn_q.weight", block);
    snprintf(k, sizeof k, "blk.%d.attn_k.weight", block);
    snprintf(norm, sizeof norm, "blk.%d.attn_q_norm.weight", block);
    if (!head_dim && desc_dim(r, norm, 0, &head_dim)) return -1;
    if (desc_dim(r, q, 1, &q_rows) || desc_dim(r, k, 1, &k_rows)) return -1;
    if (head_dim % 2 || q_rows % (q_parts * head_dim) || k_rows % head_dim)
        return desc_fail(r,
                         "blk.%d: heads do not divide (expected an even head size that divides the rows of "
                         "attn_q and attn_k, got %d, %d and %d)",
                         block, head_dim, q_rows, k_rows);
    y->head_dim = head_dim;
    y->n_head = q_rows / (q_parts * head_dim);
    y->n_head_kv = k_rows / head_dim;
    if (y->n_head % y->n_head_kv)
        return desc_fail(r, "blk.%d: query heads are no multiple of key heads (got %d and %d)", block,
                         y->n_head, y->n_head_kv);
    return 0;
}

int desc_heads(struct desc_reader *r)
{
    struct desc *d = r->d;
    struct desc_layer *y = d->layer;
    const char *from = "blk.0.attn_q_norm.weight";
    int32_t heads, heads_kv, head_dim = 0, q_rows;
    if (desc_need_i32(r, "attention.head_count", 1, INT32_MAX, &heads) ||
        desc_need_i32(r, "attention.head_count_kv", 1, INT32_MAX, &heads_kv))
        return -1;
    if (!gguf_tensor(r->g, from)) { /* a family without head norms: the rows and the count say the size */
        if (desc_dim(r, "blk.0.attn_q.weight", 1, &q_rows)) return -1;
        if (q_rows % heads)
            return desc_fail(r,
                             "key '%s.attention.head_count': does not divide the rows of blk.0.attn_q.weight "
                             "(got %d heads, %d rows)",
                             d->arch_name, heads, q_rows);
        head_dim = q_rows / heads;
        from = "blk.0.attn_q.weight";
    }
    if (desc_layer_heads(r, 0, 1, head_dim) ||
        desc_agree_i32(r, "attention.head_count", y->n_head, "blk.0.attn_q.weight") ||
        desc_agree_i32(r, "attention.head_count_kv", y->n_head_kv, "blk.0.attn_k.weight") ||
        desc_agree_i32(r, "attention.key_length", y->head_dim, from) ||
        desc_agree_i32(r, "attention.value_length", y->head_dim, from))
        return -1;
    for (int i = 1; i < d->n_layer; i++) {
        y[i].n_head = y->n_head;
        y[i].n_head_kv = y->n_head_kv;
        y[i].head_dim = y->head_dim;
    }
    return 0;
}

int desc_dense(struct desc_reader *r)
{
    struct desc *d = r->d;
    int32_t n_ff, v;
    char name[64];
    snprintf(name, sizeof name, "blk.%d.ffn_gate.weight", d->first_block);
    if (desc_dim(r, name, 1, &n_ff) || desc_need_i32(r, "feed_forward_length", 1, INT32_MAX, &v) ||
        desc_agree_i32(r, "feed_forward_length", n_ff, name))
        return -1;
    for (int i = 0; i < d->n_layer; i++) d->layer[i].n_ff = n_ff;
    return 0;
}

int desc_experts(struct desc_reader *r)
{
    struct desc *d = r->d;
    int32_t v;
    char name[64];
    snprintf(name, sizeof name, "blk.%d.ffn_gate_up_exps.weight", d->first_block);
    d->gate_up_fused = gguf_tensor(r->g, name) != NULL;
    snprintf(name, sizeof name, "blk.%d.ffn_down_exps.weight", d->first_block);
    if (desc_need_i32(r, "expert_count", 1, INT32_MAX, &v) || desc_dim(r, name, 2, &d->n_expert) ||
        desc_agree_i32(r, "expert_count", d->n_expert, name) || desc_dim(r, name, 0, &d->n_ff_exp) ||
        desc_agree_i32(r, "expert_feed_forward_length", d->n_ff_exp, name) ||
        desc_need_i32(r, "expert_used_count", 1, d->n_expert, &d->n_expert_used))
        return -1;
    d->expert_weights_scale = 1;
    if (desc_maybe_f32(r, "expert_weights_scale", &d->expert_weights_scale) < 0) return -1;
    for (int i = 0; i < d->n_layer; i++) d->layer[i].moe = true;
    return 0;
}

int desc_rope_base(struct desc_reader *r)
{
    struct desc *d = r->d;
    char key[160];
    struct gguf_str s;
    d->n_rope = 1;
    d->rope[0] = (struct desc_rope){0};
    if (desc_need_theta(r, "rope.freq_base", &d->rope[0].theta)) return -1;
    int rc = gguf_get_str(r->g, desc_key(r, "rope.scaling.type", key, sizeof key), &s, r->e);
    if (rc == 0 && !gguf_str_is(s, "none"))
        return desc_fail(r, "key '%s': rope scaling is not supported (expected none, got %.*s)", key,
                         (int)(s.n < 60 ? s.n : 60), s.s);
    return rc < 0 ? -1 : 0;
}

int desc_rope_plain(struct desc_reader *r)
{
    const int32_t head_dim = desc_attention(r->d)->head_dim;
    if (desc_rope_base(r)) return -1;
    r->d->rope[0].n_rot = r->d->rope[0].base = head_dim;
    return desc_agree_i32(r, "rope.dimension_count", head_dim, "the head size");
}

int desc_windows(struct desc_reader *r)
{
    struct desc *d = r->d;
    char key[160];
    bool sliding[DESC_MAX_LAYERS] = {false};
    int32_t window = 0;
    if (desc_maybe_i32(r, "attention.sliding_window", 0, INT32_MAX, &window) < 0) return -1;
    int rc = desc_maybe_bools(r, "attention.sliding_window_pattern", sliding);
    if (rc < 0) return -1;
    if (window && rc > 0)
        return desc_missing(r, desc_key(r, "attention.sliding_window_pattern", key, sizeof key),
                            "a bool a layer, as attention.sliding_window is set");
    for (int i = 0; i < d->n_layer; i++) {
        if (sliding[i] && !window)
            return desc_missing(r, desc_key(r, "attention.sliding_window", key, sizeof key),
                                "the window, as the pattern has sliding layers");
        d->layer[i].window = sliding[i] ? window : 0;
    }
    return 0;
}

/* ---- tables of tensors ---- */

static int64_t size_of(const struct desc *d, const struct desc_layer *y, enum desc_size s)
{
    switch (s) {
    case NE_NONE: return 0;
    case NE_EMBD: return d->n_embd;
    case NE_EMBD2: return 2 * (int64_t)d->n_embd;
    case NE_TARGET: return d->n_embd_target;
    case NE_TARGET2: return 2 * (int64_t)d->n_embd_target;
    case NE_CLUSTERS: return d->n_clusters;
    case NE_VOCAB: return d->n_vocab;
    case NE_Q: return (int64_t)y->n_head * y->head_dim;
    case NE_Q2: return 2 * (int64_t)y->n_head * y->head_dim;
    case NE_KV: return (int64_t)y->n_head_kv * y->head_dim;
    case NE_HEAD: return y->head_dim;
    case NE_FF: return y->n_ff;
    case NE_EXP: return d->n_expert;
    case NE_FFX: return d->n_ff_exp;
    case NE_FFX2: return 2 * (int64_t)d->n_ff_exp;
    case NE_FFS: return d->n_ff_shexp;
    case NE_WIDTH: return desc_delta_width(d);
    case NE_VALUE: return (int64_t)d->n_v * d->d_v;
    case NE_N_V: return d->n_v;
    case NE_D_V: return d->d_v;
    case NE_CONV: return d->n_conv;
    case NE_ROT:
        for (int i = 0; i < d->n_rope; i++)
            if (d->rope[i].has_divisors) return d->rope[i].n_rot / 2;
        return 0;
    case NE_ONE: return 1;
    }
    return 0;
}

/* What holds of a layer (of the model: layer NULL), as ON_ bits. */
static unsigned holds(const struct desc *d, const struct desc_layer *y)
{
    unsigned on = d->gate_up_fused ? ON_FUSED : ON_SPLIT;
    if (d->n_ff_shexp) on |= ON_SHARED;
    if (!d->tied_head) on |= ON_UNTIED;
    if (d->n_clusters) on |= ON_CLUSTERS;
    for (int i = 0; i < d->n_rope; i++)
        if (d->rope[i].has_divisors) on |= ON_DIVISORS;
    if (!y) return on;
    on |= y->recurrent ? ON_RECURRENT : ON_ATTENTION;
    if (!y->recurrent && !y->value_is_key) on |= ON_VALUES;
    if (y->n_ff) on |= ON_DENSE;
    if (y->moe) on |= ON_MOE;
    return on;
}

static int expect(struct desc_reader *r, const struct desc_expect *t, const struct desc_layer *y,
                  int32_t layer)
{
    char name[128];
    const char *hole = strstr(t->name, "%d");
    int64_t ne[3];
    if ((holds(r->d, y) & t->on) != t->on) return 0;
    for (int i = 0; i < 3; i++) ne[i] = size_of(r->d, y, t->ne[i]);
    if (hole)
        snprintf(name, sizeof name, "%.*s%d%s", (int)(hole - t->name), t->name, layer, hole + 2);
    else
        snprintf(name, sizeof name, "%s", t->name);
    return desc_shape(r, ne, name);
}

int desc_expect_all(struct desc_reader *r, const struct desc_expect *table)
{
    for (; table->name; table++) {
        bool each = strstr(table->name, "%d") != NULL;
        for (int32_t i = 0; i < (each ? r->d->n_layer : 1); i++)
            if (expect(r, table, each ? &r->d->layer[i] : NULL, r->d->first_block + i)) return -1;
    }
    return 0;
}

static const struct desc_expect ff[] = {
    {"blk.%d.ffn_gate.weight", {NE_EMBD, NE_FF}, ON_DENSE},
    {"blk.%d.ffn_up.weight", {NE_EMBD, NE_FF}, ON_DENSE},
    {"blk.%d.ffn_down.weight", {NE_FF, NE_EMBD}, ON_DENSE},
    {"blk.%d.ffn_gate_inp.weight", {NE_EMBD, NE_EXP}, ON_MOE},
    {"blk.%d.ffn_gate_exps.weight", {NE_EMBD, NE_FFX, NE_EXP}, ON_MOE | ON_SPLIT},
    {"blk.%d.ffn_up_exps.weight", {NE_EMBD, NE_FFX, NE_EXP}, ON_MOE | ON_SPLIT},
    {"blk.%d.ffn_gate_up_exps.weight", {NE_EMBD, NE_FFX2, NE_EXP}, ON_MOE | ON_FUSED},
    {"blk.%d.ffn_down_exps.weight", {NE_FFX, NE_EMBD, NE_EXP}, ON_MOE},
    {"blk.%d.ffn_gate_inp_shexp.weight", {NE_EMBD}, ON_SHARED},
    {"blk.%d.ffn_gate_shexp.weight", {NE_EMBD, NE_FFS}, ON_SHARED},
    {"blk.%d.ffn_up_shexp.weight", {NE_EMBD, NE_FFS}, ON_SHARED},
    {"blk.%d.ffn_down_shexp.weight", {NE_FFS, NE_EMBD}, ON_SHARED},
    {0},
};

int desc_expect_ff(struct desc_reader *r)
{
    return desc_expect_all(r, ff);
}
