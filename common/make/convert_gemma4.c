/* convert_gemma4.c - Gemma 4, dense and with experts (Gemma4ForCausalLM; Gemma4ForConditionalGeneration,
 * whose text model lies in text_config) to "gemma4" as llama.cpp names it.
 *
 * Layers are sliding or full (layer_types) and differ in head size and key heads. Published configs name the
 * full layers' sizes global_head_dim and num_global_key_value_heads, newer writers per_layer_config; the
 * tensors say them in any case. With attention_k_eq_v full layers have no v_proj. The proportional rotation
 * of full layers, whose first pairs turn with the frequencies of the whole head and whose others stand still,
 * becomes divisors in rope_freqs.weight. Norm weights are stored as they are. */
#include "convert_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "../../kernels/kernels.h"
#include "../base/mem.h"

enum { SLIDING = 1, FULL = 2, VALUES = 4, MOE = 8 }; /* VALUES: with a v_proj */

#define LAYER "layers.%d."

/* What targets and their assistants (below) have in common: the queries of a layer, what follows its values,
 * and what ends a layer and the stack. */
#define RULES_QUERIES                                                                                        \
    {LAYER "input_layernorm.weight", "blk.%d.attn_norm.weight", {DIM_EMBD}, 0},                              \
        {LAYER "self_attn.q_proj.weight", "blk.%d.attn_q.weight", {DIM_Q, DIM_EMBD}, CONV_KIND(SLIDING)},    \
        {LAYER "self_attn.q_proj.weight", "blk.%d.attn_q.weight", {DIM_Q_FULL, DIM_EMBD}, CONV_KIND(FULL)},  \
        {LAYER "self_attn.q_norm.weight", "blk.%d.attn_q_norm.weight", {DIM_HEAD}, CONV_KIND(SLIDING)},      \
    {                                                                                                        \
        LAYER "self_attn.q_norm.weight", "blk.%d.attn_q_norm.weight", {DIM_HEAD_FULL}, CONV_KIND(FULL)       \
    }
#define RULES_BODY                                                                                           \
    {LAYER "self_attn.o_proj.weight", "blk.%d.attn_output.weight", {DIM_EMBD, DIM_Q}, CONV_KIND(SLIDING)},   \
        {LAYER "self_attn.o_proj.weight",                                                                    \
         "blk.%d.attn_output.weight",                                                                        \
         {DIM_EMBD, DIM_Q_FULL},                                                                             \
         CONV_KIND(FULL)},                                                                                   \
        {LAYER "post_attention_layernorm.weight", "blk.%d.post_attention_norm.weight", {DIM_EMBD}, 0},       \
        {LAYER "pre_feedforward_layernorm.weight", "blk.%d.ffn_norm.weight", {DIM_EMBD}, 0}, CONV_FFN_RULES, \
    {                                                                                                        \
        LAYER "post_feedforward_layernorm.weight", "blk.%d.post_ffw_norm.weight", {DIM_EMBD}, 0              \
    }
#define RULES_END                                                                                            \
    {LAYER "layer_scalar", "blk.%d.layer_output_scale.weight", {DIM_ONE}, 0}, CONV_END_RULES,                \
    {                                                                                                        \
        "rope_freqs", "rope_freqs.weight", {DIM_ROT}, CONV_MADE                                              \
    }

static const struct conv_rule rules[] = {
    {"embed_tokens.weight", "token_embd.weight", {DIM_VOCAB, DIM_EMBD}, CONV_EMBED},
    RULES_QUERIES,
    {LAYER "self_attn.k_proj.weight", "blk.%d.attn_k.weight", {DIM_KV, DIM_EMBD}, CONV_KIND(SLIDING)},
    {LAYER "self_attn.k_proj.weight", "blk.%d.attn_k.weight", {DIM_KV_FULL, DIM_EMBD}, CONV_KIND(FULL)},
    {LAYER "self_attn.k_norm.weight", "blk.%d.attn_k_norm.weight", {DIM_HEAD}, CONV_KIND(SLIDING)},
    {LAYER "self_attn.k_norm.weight", "blk.%d.attn_k_norm.weight", {DIM_HEAD_FULL}, CONV_KIND(FULL)},
    {LAYER "self_attn.v_proj.weight", "blk.%d.attn_v.weight", {DIM_KV, DIM_EMBD}, CONV_KIND(SLIDING)},
    {LAYER "self_attn.v_proj.weight", "blk.%d.attn_v.weight", {DIM_KV_FULL, DIM_EMBD}, CONV_KIND(VALUES)},
    RULES_BODY,
    {LAYER "post_feedforward_layernorm_1.weight",
     "blk.%d.post_ffw_norm_1.weight",
     {DIM_EMBD},
     CONV_KIND(MOE)},
    {LAYER "pre_feedforward_layernorm_2.weight", "blk.%d.pre_ffw_norm_2.weight", {DIM_EMBD}, CONV_KIND(MOE)},
    {LAYER "post_feedforward_layernorm_2.weight",
     "blk.%d.post_ffw_norm_2.weight",
     {DIM_EMBD},
     CONV_KIND(MOE)},
    {LAYER "router.proj.weight", "blk.%d.ffn_gate_inp.weight", {DIM_EXPERTS, DIM_EMBD}, CONV_KIND(MOE)},
    {LAYER "router.scale", "blk.%d.ffn_gate_inp.scale", {DIM_EMBD}, CONV_KIND(MOE)},
    {LAYER "experts.gate_up_proj",
     "blk.%d.ffn_gate_up_exps.weight",
     {DIM_EXPERTS, DIM_FFX2, DIM_EMBD},
     CONV_KIND(MOE)},
    {LAYER "experts.down_proj",
     "blk.%d.ffn_down_exps.weight",
     {DIM_EXPERTS, DIM_EMBD, DIM_FFX},
     CONV_KIND(MOE)},
    {LAYER "router.per_expert_scale", "blk.%d.ffn_down_exps.scale", {DIM_EXPERTS}, CONV_KIND(MOE)},
    RULES_END,
    {NULL, NULL, {DIM_NONE}, 0},
};

static const struct hf_rule config[] = {
    {"attention_bias", "[false]"},
    {"hidden_activation", "[\"gelu_pytorch_tanh\"]"},
    {"model_type", "[\"gemma4_text\", \"gemma4\"]"},
    {"moe_intermediate_size", NULL}, /* these three: of experts, where enable_moe_block says there are any */
    {"num_experts", NULL},
    {"top_k_experts", NULL},
    {"num_global_key_value_heads", NULL}, /* looked at where attention_k_eq_v gives it a meaning */
    {"partial_rotary_factor", "[1]"},
    {"sliding_window_pattern", NULL}, /* layer_types says it */
    {"_sliding_window_pattern", NULL},
    {"use_bidirectional_attention", "[\"vision\"]"}, /* of images' tokens: text stays causal */
    {"vocab_size_per_layer_input", NULL},            /* of per-layer embeddings, which there are none of */
    /* what stands beside text_config: the towers that are left out, and the ids of their tokens */
    {"audio_config", NULL},
    {"vision_config", NULL},
    {"audio_token_id", NULL},
    {"boa_token_id", NULL},
    {"boa_token_index", NULL},
    {"boi_token_id", NULL},
    {"boi_token_index", NULL},
    {"eoa_token_id", NULL},
    {"eoa_token_index", NULL},
    {"eoi_token_id", NULL},
    {"eoi_token_index", NULL},
    {"image_token_id", NULL},
    {"image_token_index", NULL},
    {"video_token_id", NULL},
    {"vision_soft_tokens_per_image", NULL},
    {NULL, NULL},
};

static const struct conv_relative skip[] = {
    {"vision_tower.", "vision tower"},
    {"embed_vision.", "vision embedder"},
    {"audio_tower.", "audio tower"},
    {"embed_audio.", "audio embedder"},
    {NULL, NULL},
};

/* ---- kinds of layers ---- */

static int refuse_small(struct conv *c, struct err *e)
{
    static const struct conv_relative parts[] = {
        {"hidden_size_per_layer_input", "per-layer embeddings"},
        {"num_kv_shared_layers", "layers that share another layer's keys and values"},
    };
    bool wide = false;
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        int64_t v = 0;
        if (hf_get_i64(c->cfg, parts[i].part, 0, INT32_MAX, &v, e) < 0) return -1;
        if (v)
            return err_set(e, ERR_FORMAT,
                           "%s: %s: %s (as in E2B and E4B) are not supported (expected 0, got %lld)",
                           hf_config_name(c->cfg), parts[i].part, parts[i].name, (long long)v);
    }
    if (hf_get_bool(c->cfg, "use_double_wide_mlp", &wide, e) < 0) return -1;
    if (wide)
        return err_set(e, ERR_FORMAT,
                       "%s: use_double_wide_mlp: double-wide feed-forwards (as in E2B) are not supported "
                       "(expected false, got true)",
                       hf_config_name(c->cfg));
    return 0;
}

/* Sliding or full, of every layer. */
static int layer_kinds(struct conv *c, struct err *e)
{
    const char *types[DESC_MAX_LAYERS];
    int n = 0;
    int r = hf_get_str_list(c->cfg, "layer_types", types, DESC_MAX_LAYERS, &n, e);
    if (r < 0) return -1;
    if (r == 1 || n != c->n_layer)
        return err_set(e, ERR_FORMAT, "%s: layer_types %s (expected %d layers, got %d)",
                       hf_config_name(c->cfg), r ? "is missing" : "has the wrong length", c->n_layer, n);
    for (int32_t i = 0; i < n; i++) {
        bool sliding = !strcmp(types[i], "sliding_attention");
        if (!sliding && strcmp(types[i], "full_attention"))
            return err_set(e, ERR_FORMAT,
                           "%s: layer_types[%d] is not known (expected \"sliding_attention\" or "
                           "\"full_attention\", got \"%.64s\")",
                           hf_config_name(c->cfg), i, types[i]);
        c->kind[i] = sliding ? SLIDING : FULL;
    }
    return 0;
}

static int kinds(struct conv *c, struct err *e)
{
    bool same = false, moe = false;
    if (refuse_small(c, e) || layer_kinds(c, e)) return -1;
    int r = hf_get_bool(c->cfg, "attention_k_eq_v", &same, e);
    if (r < 0) return -1;
    if (r == 1)
        return err_set(e, ERR_FORMAT,
                       "%s: attention_k_eq_v is missing (expected true or false: whether full layers make "
                       "their values of the key projection)",
                       hf_config_name(c->cfg));
    if (hf_get_bool(c->cfg, "enable_moe_block", &moe, e) < 0) return -1;
    for (int32_t i = 0; i < c->n_layer; i++)
        c->kind[i] |= (uint8_t)(((c->kind[i] & FULL) && !same ? VALUES : 0) | (moe ? MOE : 0));
    return 0;
}

/* ---- sizes ---- */

/* What config.json says of the layers of one kind in per_layer_config, else v as it is. Layers are named 5,
 * or 05 where the last one has two digits. */
static int layer_config(struct conv *c, int kind, const char *key, int64_t *v, struct err *e)
{
    int32_t first = -1;
    for (int32_t i = 0; i < c->n_layer; i++) {
        char path[3][96];
        const char *const paths[] = {path[0], path[1], path[2], NULL};
        int64_t one = 0;
        if (!(c->kind[i] & kind)) continue;
        for (int w = 0; w < 3; w++)
            snprintf(path[w], sizeof path[w], "per_layer_config.%0*d.%s", w + 1, i, key);
        int r = hf_find_i64(c->cfg, paths, 1, INT32_MAX, &one, NULL, e);
        if (r < 0) return -1;
        if (r == 1) one = *v;
        if (first >= 0 && one != *v)
            return err_set(e, ERR_FORMAT,
                           "%s: %s differs between layers of a kind (expected %lld as in layer %d, got %lld)",
                           hf_config_name(c->cfg), path[0], (long long)*v, first, (long long)one);
        if (first < 0) first = i;
        *v = one;
    }
    return 0;
}

/* Head size and key heads of both kinds, as config.json says them; 0: it does not. */
struct said {
    int64_t heads, dim[2], kv[2]; /* [0] sliding, [1] full */
};

static int read_said(struct conv *c, struct said *s, struct err *e)
{
    bool same = false;
    *s = (struct said){0};
    if (hf_get_i64(c->cfg, "num_attention_heads", 1, INT32_MAX, &s->heads, e) < 0 ||
        hf_get_i64(c->cfg, "head_dim", 1, INT32_MAX, &s->dim[0], e) < 0 ||
        hf_get_i64(c->cfg, "num_key_value_heads", 1, INT32_MAX, &s->kv[0], e) < 0 ||
        hf_get_bool(c->cfg, "attention_k_eq_v", &same, e) < 0)
        return -1;
    s->dim[1] = s->dim[0];
    s->kv[1] = s->kv[0];
    /* the second has a meaning only where full layers have no values of their own */
    if (hf_get_i64(c->cfg, "global_head_dim", 1, INT32_MAX, &s->dim[1], e) < 0 ||
        (same && hf_get_i64(c->cfg, "num_global_key_value_heads", 1, INT32_MAX, &s->kv[1], e) < 0))
        return -1;
    return layer_config(c, SLIDING, "head_dim", &s->dim[0], e) ||
                   layer_config(c, FULL, "head_dim", &s->dim[1], e) ||
                   layer_config(c, SLIDING, "num_key_value_heads", &s->kv[0], e) ||
                   layer_config(c, FULL, "num_key_value_heads", &s->kv[1], e)
               ? -1
               : 0;
}

/* Sizes of a kind that no tensor has. */
static int set_kind(struct conv *c, const struct said *s, bool full, struct err *e)
{
    if (!s->heads || !s->dim[full] || !s->kv[full])
        return err_set(e, ERR_FORMAT,
                       "%s: the heads of %s layers are not known (expected num_attention_heads, %s and %s)",
                       hf_config_name(c->cfg), full ? "full" : "sliding",
                       full ? "global_head_dim" : "head_dim",
                       full ? "num_global_key_value_heads" : "num_key_value_heads");
    conv_set_dim(c, full ? DIM_HEAD_FULL : DIM_HEAD, s->dim[full], full ? "global_head_dim" : "head_dim");
    conv_set_dim(c, full ? DIM_Q_FULL : DIM_Q, s->heads * s->dim[full], "num_attention_heads x head size");
    return conv_set_dim(c, full ? DIM_KV_FULL : DIM_KV, s->kv[full] * s->dim[full], "key heads x head size");
}

static int sizes(struct conv *c, struct err *e)
{
    struct said s;
    bool moe = false;
    int64_t n, ff;
    if (kinds(c, e) || read_said(c, &s, e) || set_kind(c, &s, false, e) || set_kind(c, &s, true, e))
        return -1;
    if (hf_get_bool(c->cfg, "enable_moe_block", &moe, e) < 0) return -1;
    if (!moe) return 0;
    if (conv_need_i64(c, "num_experts", &n, e) || conv_need_i64(c, "moe_intermediate_size", &ff, e))
        return -1;
    conv_set_dim(c, DIM_EXPERTS, n, "num_experts");
    conv_set_dim(c, DIM_FFX2, 2 * ff, "2 x moe_intermediate_size");
    return conv_set_dim(c, DIM_FFX, ff, "moe_intermediate_size");
}

/* Heads of full layers: a whole number of them, as many queries as the sliding ones, as config.json says. */
static int check_full(struct conv *c, const struct said *s, struct err *e)
{
    const int64_t dim = c->dim[DIM_HEAD_FULL], q = c->dim[DIM_Q_FULL], kv = c->dim[DIM_KV_FULL];
    if (dim % 2 || q % dim || kv % dim || !kv || (q / dim) % (kv / dim))
        return err_set(
            e, ERR_FORMAT,
            "%s: heads of full layers do not divide (got a head size of %lld from %s, %lld rows of "
            "q_proj and %lld of k_proj)",
            c->label, (long long)dim, c->dim_from[DIM_HEAD_FULL], (long long)q, (long long)kv);
    const struct {
        const char *what;
        int64_t said, have;
        const char *from;
    } all[] = {{"the head size of full layers", s->dim[1], dim, c->dim_from[DIM_HEAD_FULL]},
               {"the number of heads", s->heads, q / dim, c->dim_from[DIM_Q_FULL]},
               {"the number of key heads of full layers", s->kv[1], kv / dim, c->dim_from[DIM_KV_FULL]}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i].said && all[i].said != all[i].have)
            return err_set(e, ERR_FORMAT,
                           "%s: %s does not match the tensors (expected %lld from %s, got %lld)",
                           hf_config_name(c->cfg), all[i].what, (long long)all[i].have, all[i].from,
                           (long long)all[i].said);
    return 0;
}

/* What keys say once the heads are known: c->head_dim is that of full layers, which the keys without a suffix
 * are of; key heads a layer. */
static void say_heads(struct conv *c)
{
    c->head_dim = (int32_t)c->dim[DIM_HEAD_FULL];
    for (int32_t i = 0; i < c->n_layer; i++)
        c->layer_kv[i] =
            c->kind[i] & FULL ? (int32_t)(c->dim[DIM_KV_FULL] / c->dim[DIM_HEAD_FULL]) : c->n_head_kv;
}

/* The sliding layers go through the common checks. */
static int heads(struct conv *c, struct err *e)
{
    struct said s;
    if (read_said(c, &s, e) || (!c->dim[DIM_HEAD] && set_kind(c, &s, false, e)) ||
        (!c->dim[DIM_HEAD_FULL] && set_kind(c, &s, true, e)))
        return -1;
    if (c->dim[DIM_FFX] && c->dim[DIM_FFX2] != 2 * c->dim[DIM_FFX])
        return err_set(
            e, ERR_FORMAT,
            "%s: %s: gate and up are not both of the experts' width (expected %lld rows, got %lld)", c->label,
            c->dim_from[DIM_FFX2], (long long)(2 * c->dim[DIM_FFX]), (long long)c->dim[DIM_FFX2]);
    if (conv_heads(c, e) || check_full(c, &s, e)) return -1;
    say_heads(c);
    return 0;
}

/* ---- rotation and keys ---- */

/* Divisors of the full layers' frequencies. */
static int make(struct conv *c, struct conv_tensor *t, struct err *e)
{
    const char *where = NULL;
    struct said s;
    bool full = false;
    int r = hf_get_rope(c->cfg, c->fam->rope_layers, c->fam->rope, &c->rope, &where, e);
    if (r < 0 || read_said(c, &s, e)) return -1;
    int64_t dim = c->dim[DIM_HEAD_FULL];
    for (int32_t i = 0; i < c->n_layer; i++) full |= (c->kind[i] & FULL) != 0;
    if (r == 1 || !full) return 0; /* no base: refused where it is put. No full layer: none turns so */
    return conv_make_divisors(c, t, dim, "head size of full layers / 2", "full layers: ", e);
}

static int put_windows(struct conv *c, struct err *e)
{
    bool sliding[DESC_MAX_LAYERS];
    int64_t window;
    char key[96];
    int r = hf_get_i64(c->cfg, "sliding_window", 1, INT32_MAX, &window, e);
    if (r < 0) return -1;
    if (r == 1) return err_set(e, ERR_FORMAT, "%s: sliding_window is missing", hf_config_name(c->cfg));
    for (int32_t i = 0; i < c->n_layer; i++) sliding[i] = c->kind[i] & SLIDING;
    snprintf(key, sizeof key, "%s.attention.sliding_window_pattern", conv_arch(c));
    return conv_put_u32(c, "attention.sliding_window", window, e) ||
                   gguf_put_array(c->w, key, GGUF_BOOL, sliding, (uint64_t)c->n_layer, e)
               ? -1
               : 0;
}

static int put_rope_swa(struct conv *c, struct err *e)
{
    struct hf_rope rope;
    const char *where = NULL;
    int r = hf_get_rope(c->cfg, "sliding_attention", 0, &rope, &where, e);
    if (r < 0) return -1;
    if (r == 1)
        return err_set(e, ERR_FORMAT, "%s: rope_parameters.sliding_attention.rope_theta is missing",
                       hf_config_name(c->cfg));
    conv_say(c, CONVERT_DETAIL, "rope theta of sliding layers: %.9g", rope.theta);
    return conv_put_f32(c, "rope.freq_base_swa", rope.theta, e) ||
                   conv_put_u32(c, "rope.dimension_count", c->dim[DIM_HEAD_FULL], e) ||
                   conv_put_u32(c, "rope.dimension_count_swa", c->dim[DIM_HEAD], e)
               ? -1
               : 0;
}

static int keys(struct conv *c, struct err *e)
{
    double cap = 0;
    if (conv_put_common(c, e) || conv_put_u32(c, "vocab_size", c->n_vocab, e) ||
        conv_put_u32(c, "attention.key_length_swa", c->dim[DIM_HEAD], e) ||
        conv_put_u32(c, "attention.value_length_swa", c->dim[DIM_HEAD], e) || put_windows(c, e) ||
        put_rope_swa(c, e))
        return -1;
    /* llama.cpp asks for both, and that they are none */
    if (conv_put_u32(c, "attention.shared_kv_layers", 0, e) ||
        conv_put_u32(c, "embedding_length_per_layer_input", 0, e))
        return -1;
    int r = hf_get_f64(c->cfg, "final_logit_softcapping", &cap, e);
    if (r < 0) return -1;
    if (r == 0 && !(cap > 0))
        return err_set(e, ERR_FORMAT,
                       "%s: final_logit_softcapping is out of range (expected above 0, got %g)",
                       hf_config_name(c->cfg), cap);
    if (r) conv_say(c, CONVERT_NOTE, "no final_logit_softcapping: logits are not capped");
    if (r == 0 && conv_put_f32(c, "final_logit_softcapping", cap, e)) return -1;
    return c->dim[DIM_EXPERTS] ? conv_put_experts(c, "top_k_experts", e) : 0;
}

const struct conv_family conv_gemma4 = {
    .hf = "Gemma4ForCausalLM",
    .hf_nested = "Gemma4ForConditionalGeneration",
    .arch = "gemma4",
    .rules = rules,
    .config = config,
    .skip = skip,
    .rope_layers = "full_attention",
    .rope = HF_ROPE_PROPORTIONAL,
    .act_key = "hidden_activation",
    .act = "gelu_pytorch_tanh",
    .kinds = kinds,
    .sizes = sizes,
    .heads = heads,
    .make = make,
    .keys = keys,
};

/* By the architecture of its GGUF, or by its config.json. */
static int target_is_gemma4(const struct conv_target *t, struct err *e)
{
    struct gguf_str arch = {0};
    const char *name[8];
    int n = 0, rc;
    if (t->gguf) {
        rc = gguf_get_str(t->gguf, "general.architecture", &arch, e);
        return rc < 0 ? -1 : rc == 0 && gguf_str_is(arch, conv_gemma4.arch);
    }
    rc = hf_get_str_list(t->cfg, "architectures", name, 8, &n, e);
    for (int i = 0; rc == 0 && i < n; i++)
        if (!strcmp(name[i], conv_gemma4.hf) || !strcmp(name[i], conv_gemma4.hf_nested)) return 1;
    return rc < 0 ? -1 : 0;
}

int conv_target_ends(const struct conv *c, double *scale, double *cap, struct err *e)
{
    static const char *const paths[] = {"final_logit_softcapping", "text_config.final_logit_softcapping",
                                        NULL};
    const struct conv_target *t = &c->target;
    float v = 0;
    *scale = 1, *cap = 0;
    if (!t->gguf && !t->cfg) return 0;
    const int is = target_is_gemma4(t, e);
    if (is <= 0) return is;
    *scale = (double)kn_bf16_to_f32(kn_f32_to_bf16(sqrtf((float)t->n_embd)));
    if (!t->gguf) return hf_find_f64(t->cfg, paths, cap, NULL, e) < 0 ? -1 : 0;
    if (gguf_get_f32(t->gguf, "gemma4.final_logit_softcapping", &v, e) < 0) return -1;
    *cap = (double)v;
    return 0;
}

/* ---- assistants: stacks over the target's caches (Gemma4AssistantForCausalLM), as llama.cpp names them ----
 */

/* The ordering and the centroids of a vocabulary in clusters have no place in that spelling: they have the
 * names of an older one. */
static const struct conv_rule assistant_rules[] = {
    {"pre_projection.weight", "nextn.pre_projection.weight", {DIM_EMBD, DIM_TARGET2}, 0},
    {"post_projection.weight", "nextn.post_projection.weight", {DIM_TARGET, DIM_EMBD}, 0},
    {"embed_tokens.weight", "token_embd.weight", {DIM_VOCAB, DIM_EMBD}, CONV_EMBED},
    RULES_QUERIES,
    RULES_BODY,
    RULES_END,
    {"masked_embedding.centroids.weight", "mtp.centroids.weight", {DIM_CLUSTERS, DIM_EMBD}, CONV_OPTIONAL},
    {"masked_embedding.token_ordering", "mtp.token_ordering.weight", {DIM_VOCAB}, CONV_OPTIONAL | CONV_ORDER},
    {NULL, NULL, {DIM_NONE}, 0},
};

static const struct hf_rule assistant_config[] = {
    {"attention_bias", "[false]"},
    {"attention_k_eq_v", NULL},            /* of the target's layers: there are no values here */
    {"centroid_intermediate_top_k", NULL}, /* looked at with use_ordered_embeddings */
    {"enable_moe_block", "[false]"},
    {"final_logit_softcapping", "[null]"}, /* its logits are not capped */
    {"hidden_activation", "[\"gelu_pytorch_tanh\"]"},
    {"hidden_size_per_layer_input", "[0]"},
    {"model_type", "[\"gemma4_assistant\", \"gemma4_text\"]"},
    {"moe_intermediate_size", NULL},
    {"num_centroids", NULL},
    {"num_experts", NULL},
    {"num_global_key_value_heads", NULL},
    {"partial_rotary_factor", "[1]"},
    {"sliding_window_pattern", NULL},
    {"_sliding_window_pattern", NULL},
    {"top_k_experts", NULL},
    {"use_bidirectional_attention", NULL}, /* one query: nothing stands behind it */
    {"use_double_wide_mlp", "[false]"},
    {"vocab_size_per_layer_input", NULL},
    {NULL, NULL},
};

/* All layers share the caches of another model. */
static int assistant_kinds(struct conv *c, struct err *e)
{
    int64_t shared = 0;
    const int r = hf_get_i64(c->cfg, "num_kv_shared_layers", 0, INT32_MAX, &shared, e);
    if (r < 0) return -1;
    if (r == 0 && shared != c->n_layer)
        return err_set(
            e, ERR_FORMAT,
            "%s: num_kv_shared_layers: layers with caches of their own are not supported (expected %d, "
            "got %lld)",
            hf_config_name(c->cfg), c->n_layer, (long long)shared);
    return layer_kinds(c, e);
}

static int assistant_sizes(struct conv *c, struct err *e)
{
    struct said s;
    int64_t target, n;
    bool ordered = false;
    if (assistant_kinds(c, e) || read_said(c, &s, e) || set_kind(c, &s, false, e) ||
        set_kind(c, &s, true, e) || conv_need_i64(c, "backbone_hidden_size", &target, e) ||
        hf_get_bool(c->cfg, "use_ordered_embeddings", &ordered, e) < 0)
        return -1;
    conv_set_dim(c, DIM_TARGET, target, "backbone_hidden_size");
    conv_set_dim(c, DIM_TARGET2, 2 * target, "2 x backbone_hidden_size");
    if (!ordered) return 0;
    return conv_need_i64(c, "num_centroids", &n, e) ? -1 : conv_set_dim(c, DIM_CLUSTERS, n, "num_centroids");
}

/* Centroids that the config does not use are left out. */
static int clusters(struct conv *c, struct err *e)
{
    bool ordered = false;
    int64_t n = 0, kept = 0;
    const int r = hf_get_bool(c->cfg, "use_ordered_embeddings", &ordered, e);
    if (r < 0) return -1;
    if (r == 1)
        return err_set(e, ERR_FORMAT, "%s: use_ordered_embeddings is missing (expected true or false)",
                       hf_config_name(c->cfg));
    if (!c->tied)
        return err_set(
            e, ERR_FORMAT,
            "%s: a head apart from the embedding is not supported (expected tie_word_embeddings true)",
            hf_config_name(c->cfg));
    for (int64_t i = 0; i < c->n_t; i++) {
        const bool of = !strncmp(c->t[i].name, "mtp.", 4);
        n += of;
        if (ordered || !of) c->t[kept++] = c->t[i];
    }
    c->n_t = kept;
    if (!ordered && n && c->st)
        conv_say(c, CONVERT_NOTE, "left out: the clusters, which config.json does not use");
    if (ordered && n != 2)
        return err_set(
            e, ERR_FORMAT,
            "%s: masked_embedding.centroids.weight and masked_embedding.token_ordering are not both "
            "there (%s: use_ordered_embeddings is true)",
            c->label, hf_config_name(c->cfg));
    if (ordered && c->dim[DIM_VOCAB] % c->dim[DIM_CLUSTERS])
        return err_set(e, ERR_FORMAT, "%s: clusters do not divide the vocabulary (got %lld and %lld)",
                       c->label, (long long)c->dim[DIM_CLUSTERS], (long long)c->dim[DIM_VOCAB]);
    return 0;
}

/* Key heads are the target's: config.json's number of them is a witness of nothing here. Written a layer, as
 * of the target: llama.cpp looks at the target's caches with them. */
static int assistant_heads(struct conv *c, struct err *e)
{
    struct said s;
    if (clusters(c, e) || read_said(c, &s, e)) return -1;
    if (c->dim[DIM_TARGET2] != 2 * c->dim[DIM_TARGET])
        return err_set(
            e, ERR_FORMAT,
            "%s: %s: columns are not an embedding and a hidden state (expected 2 x %lld from %s, got "
            "%lld)",
            c->label, c->dim_from[DIM_TARGET2], (long long)c->dim[DIM_TARGET], c->dim_from[DIM_TARGET],
            (long long)c->dim[DIM_TARGET2]);
    if (conv_witness(c, "backbone_hidden_size", c->dim[DIM_TARGET], c->dim_from[DIM_TARGET], e)) return -1;
    if ((!c->dim[DIM_HEAD] && set_kind(c, &s, false, e)) ||
        (!c->dim[DIM_HEAD_FULL] && set_kind(c, &s, true, e)))
        return -1;
    if (!s.kv[0] || !s.kv[1])
        return err_set(e, ERR_FORMAT, "%s: num_key_value_heads is missing (expected the target's)",
                       hf_config_name(c->cfg));
    conv_set_dim(c, DIM_KV, s.kv[0] * c->dim[DIM_HEAD], "num_key_value_heads x head size");
    conv_set_dim(c, DIM_KV_FULL, s.kv[1] * c->dim[DIM_HEAD_FULL], "key heads of full layers x head size");
    if (conv_heads(c, e) || check_full(c, &s, e)) return -1;
    say_heads(c);
    return 0;
}

static int assistant_keys(struct conv *c, struct err *e)
{
    char key[96];
    int64_t best = 0;
    if (conv_put_common(c, e) || conv_put_u32(c, "vocab_size", c->n_vocab, e) ||
        conv_put_u32(c, "attention.key_length_swa", c->dim[DIM_HEAD], e) ||
        conv_put_u32(c, "attention.value_length_swa", c->dim[DIM_HEAD], e) || put_windows(c, e) ||
        put_rope_swa(c, e) || conv_put_u32(c, "attention.shared_kv_layers", c->n_layer, e) ||
        conv_put_u32(c, "embedding_length_out", c->dim[DIM_TARGET], e) ||
        conv_put_u32(c, "nextn_predict_layers", c->n_layer, e))
        return -1;
    if (!c->dim[DIM_CLUSTERS]) return 0;
    if (conv_witness(c, "num_centroids", c->dim[DIM_CLUSTERS], c->dim_from[DIM_CLUSTERS], e) ||
        conv_need_i64(c, "centroid_intermediate_top_k", &best, e))
        return -1;
    if (best > c->dim[DIM_CLUSTERS])
        return err_set(e, ERR_FORMAT,
                       "%s: centroid_intermediate_top_k is out of range (expected 1 to %lld, got %lld)",
                       hf_config_name(c->cfg), (long long)c->dim[DIM_CLUSTERS], (long long)best);
    snprintf(key, sizeof key, "%s.use_ordered_embeddings", conv_arch(c));
    conv_say(c, CONVERT_NOTE,
             "clusters of the vocabulary: llama.cpp has no place for them and refuses the file");
    return gguf_put_bool(c->w, key, true, e) || conv_put_u32(c, "n_centroids", c->dim[DIM_CLUSTERS], e) ||
                   conv_put_u32(c, "centroid_top_k", best, e)
               ? -1
               : 0;
}

const struct conv_family conv_assistant = {
    .hf = "Gemma4AssistantForCausalLM",
    .hf_nested = "Gemma4AssistantForCausalLM",
    .arch = "gemma4-assistant",
    .rules = assistant_rules,
    .config = assistant_config,
    .rope_layers = "full_attention",
    .rope = HF_ROPE_PROPORTIONAL,
    .act_key = "hidden_activation",
    .act = "gelu_pytorch_tanh",
    .kinds = assistant_kinds,
    .sizes = assistant_sizes,
    .heads = assistant_heads,
    .make = make,
    .keys = assistant_keys,
};
