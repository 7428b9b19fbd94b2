/* convert_qwen35.c - Qwen3.5 and 3.6, dense and MoE (Qwen3_5ForCausalLM, Qwen3_5MoeForCausalLM, and the
 * models of text and pictures around them) to "qwen35" and "qwen35moe" as llama.cpp names them.
 *
 * Norms compute x * (1 + w) and are stored as 1 + w, in float32; but linear_attn.norm, which computes x * w.
 * A_log is stored as -exp(A_log). Hugging Face's value head h reads key head h / r, r value heads a key head;
 * the architecture's reads h % n_k: value head g * r + j goes to j * n_k + g, in all that has value heads.
 * The block that predicts further tokens (mtp.*) stands behind the others. */
#include "convert_impl.h"

#include <stdio.h>
#include <string.h>

enum { FULL = 1, LINEAR = 2 }; /* kinds of layers */
#define FULL_LAYERS CONV_KIND(FULL)
#define LINEAR_LAYERS CONV_KIND(LINEAR)

/* The beginning and the attention of every layer; the names of both families. */
#define MIXER_RULES                                                                                          \
    {"embed_tokens.weight", "token_embd.weight", {DIM_VOCAB, DIM_EMBD}, CONV_EMBED},                         \
        {"layers.%d.input_layernorm.weight", "blk.%d.attn_norm.weight", {DIM_EMBD}, CONV_PLUS_ONE},          \
        {"layers.%d.self_attn.q_proj.weight", "blk.%d.attn_q.weight", {DIM_Q2, DIM_EMBD}, FULL_LAYERS},      \
        {"layers.%d.self_attn.q_norm.weight",                                                                \
         "blk.%d.attn_q_norm.weight",                                                                        \
         {DIM_HEAD},                                                                                         \
         FULL_LAYERS | CONV_PLUS_ONE},                                                                       \
        {"layers.%d.self_attn.k_proj.weight", "blk.%d.attn_k.weight", {DIM_KV, DIM_EMBD}, FULL_LAYERS},      \
        {"layers.%d.self_attn.k_norm.weight",                                                                \
         "blk.%d.attn_k_norm.weight",                                                                        \
         {DIM_HEAD},                                                                                         \
         FULL_LAYERS | CONV_PLUS_ONE},                                                                       \
        {"layers.%d.self_attn.v_proj.weight", "blk.%d.attn_v.weight", {DIM_KV, DIM_EMBD}, FULL_LAYERS},      \
        {"layers.%d.self_attn.o_proj.weight", "blk.%d.attn_output.weight", {DIM_EMBD, DIM_Q}, FULL_LAYERS},  \
        {"layers.%d.linear_attn.in_proj_qkv.weight",                                                         \
         "blk.%d.attn_qkv.weight",                                                                           \
         {DIM_WIDTH, DIM_EMBD},                                                                              \
         LINEAR_LAYERS | CONV_ROWS},                                                                         \
        {"layers.%d.linear_attn.in_proj_z.weight",                                                           \
         "blk.%d.attn_gate.weight",                                                                          \
         {DIM_VALUE, DIM_EMBD},                                                                              \
         LINEAR_LAYERS | CONV_ROWS},                                                                         \
        {"layers.%d.linear_attn.in_proj_a.weight",                                                           \
         "blk.%d.ssm_alpha.weight",                                                                          \
         {DIM_N_V, DIM_EMBD},                                                                                \
         LINEAR_LAYERS | CONV_ROWS},                                                                         \
        {"layers.%d.linear_attn.in_proj_b.weight",                                                           \
         "blk.%d.ssm_beta.weight",                                                                           \
         {DIM_N_V, DIM_EMBD},                                                                                \
         LINEAR_LAYERS | CONV_ROWS},                                                                         \
        {"layers.%d.linear_attn.A_log",                                                                      \
         "blk.%d.ssm_a",                                                                                     \
         {DIM_N_V},                                                                                          \
         LINEAR_LAYERS | CONV_COLS | CONV_NEG_EXP},                                                          \
        {"layers.%d.linear_attn.dt_bias",                                                                    \
         "blk.%d.ssm_dt.bias",                                                                               \
         {DIM_N_V},                                                                                          \
         LINEAR_LAYERS | CONV_COLS | CONV_AROUND_0},                                                         \
        {"layers.%d.linear_attn.conv1d.weight",                                                              \
         "blk.%d.ssm_conv1d.weight",                                                                         \
         {DIM_WIDTH, DIM_CONV},                                                                              \
         LINEAR_LAYERS | CONV_ROWS | CONV_SQUEEZE},                                                          \
        {"layers.%d.linear_attn.norm.weight", "blk.%d.ssm_norm.weight", {DIM_D_V}, LINEAR_LAYERS},           \
        {"layers.%d.linear_attn.out_proj.weight",                                                            \
         "blk.%d.ssm_out.weight",                                                                            \
         {DIM_EMBD, DIM_VALUE},                                                                              \
         LINEAR_LAYERS | CONV_COLS},                                                                         \
    {                                                                                                        \
        "layers.%d.post_attention_layernorm.weight", "blk.%d.post_attention_norm.weight", {DIM_EMBD},        \
            CONV_PLUS_ONE                                                                                    \
    }
#define END_RULES                                                                                            \
    {"norm.weight", "output_norm.weight", {DIM_EMBD}, CONV_PLUS_ONE},                                        \
        {"lm_head.weight", "output.weight", {DIM_VOCAB, DIM_EMBD}, CONV_OPTIONAL | CONV_HEAD},               \
    {                                                                                                        \
        NULL, NULL, {DIM_NONE}, 0                                                                            \
    }

/* The block that predicts further tokens: attention of the full layers' shape. */
#define MTP_RULES                                                                                            \
    {"mtp.fc.weight", "blk.%d.nextn.eh_proj.weight", {DIM_EMBD, DIM_EMBD2}, CONV_MTP},                       \
        {"mtp.pre_fc_norm_embedding.weight",                                                                 \
         "blk.%d.nextn.enorm.weight",                                                                        \
         {DIM_EMBD},                                                                                         \
         CONV_MTP | CONV_PLUS_ONE},                                                                          \
        {"mtp.pre_fc_norm_hidden.weight",                                                                    \
         "blk.%d.nextn.hnorm.weight",                                                                        \
         {DIM_EMBD},                                                                                         \
         CONV_MTP | CONV_PLUS_ONE},                                                                          \
        {"mtp.norm.weight", "blk.%d.nextn.shared_head_norm.weight", {DIM_EMBD}, CONV_MTP | CONV_PLUS_ONE},   \
        {"mtp.layers.%d.input_layernorm.weight",                                                             \
         "blk.%d.attn_norm.weight",                                                                          \
         {DIM_EMBD},                                                                                         \
         CONV_MTP | CONV_PLUS_ONE},                                                                          \
        {"mtp.layers.%d.self_attn.q_proj.weight", "blk.%d.attn_q.weight", {DIM_Q2, DIM_EMBD}, CONV_MTP},     \
        {"mtp.layers.%d.self_attn.q_norm.weight",                                                            \
         "blk.%d.attn_q_norm.weight",                                                                        \
         {DIM_HEAD},                                                                                         \
         CONV_MTP | CONV_PLUS_ONE},                                                                          \
        {"mtp.layers.%d.self_attn.k_proj.weight", "blk.%d.attn_k.weight", {DIM_KV, DIM_EMBD}, CONV_MTP},     \
        {"mtp.layers.%d.self_attn.k_norm.weight",                                                            \
         "blk.%d.attn_k_norm.weight",                                                                        \
         {DIM_HEAD},                                                                                         \
         CONV_MTP | CONV_PLUS_ONE},                                                                          \
        {"mtp.layers.%d.self_attn.v_proj.weight", "blk.%d.attn_v.weight", {DIM_KV, DIM_EMBD}, CONV_MTP},     \
        {"mtp.layers.%d.self_attn.o_proj.weight", "blk.%d.attn_output.weight", {DIM_EMBD, DIM_Q}, CONV_MTP}, \
    {                                                                                                        \
        "mtp.layers.%d.post_attention_layernorm.weight", "blk.%d.post_attention_norm.weight", {DIM_EMBD},    \
            CONV_MTP | CONV_PLUS_ONE                                                                         \
    }
#define DENSE_RULES(at, more)                                                                                \
    {at "mlp.gate_proj.weight", "blk.%d.ffn_gate.weight", {DIM_FF, DIM_EMBD}, more},                         \
        {at "mlp.up_proj.weight", "blk.%d.ffn_up.weight", {DIM_FF, DIM_EMBD}, more},                         \
    {                                                                                                        \
        at "mlp.down_proj.weight", "blk.%d.ffn_down.weight", {DIM_EMBD, DIM_FF}, more                        \
    }
#define MOE_RULES(at, more)                                                                                  \
    {at "mlp.gate.weight", "blk.%d.ffn_gate_inp.weight", {DIM_EXPERTS, DIM_EMBD}, more},                     \
        CONV_EXPERT_RULES_OF(at "mlp.experts.", more),                                                       \
        {at "mlp.shared_expert_gate.weight",                                                                 \
         "blk.%d.ffn_gate_inp_shexp.weight",                                                                 \
         {DIM_EMBD},                                                                                         \
         CONV_SQUEEZE | (more)},                                                                             \
        {at "mlp.shared_expert.gate_proj.weight",                                                            \
         "blk.%d.ffn_gate_shexp.weight",                                                                     \
         {DIM_FFS, DIM_EMBD},                                                                                \
         more},                                                                                              \
        {at "mlp.shared_expert.up_proj.weight", "blk.%d.ffn_up_shexp.weight", {DIM_FFS, DIM_EMBD}, more},    \
    {                                                                                                        \
        at "mlp.shared_expert.down_proj.weight", "blk.%d.ffn_down_shexp.weight", {DIM_EMBD, DIM_FFS}, more   \
    }

static const struct conv_rule rules[] = {
    MIXER_RULES, DENSE_RULES("layers.%d.", 0), MTP_RULES, DENSE_RULES("mtp.layers.%d.", CONV_MTP), END_RULES,
};

static const struct conv_rule moe_rules[] = {
    MIXER_RULES, MOE_RULES("layers.%d.", 0), MTP_RULES, MOE_RULES("mtp.layers.%d.", CONV_MTP), END_RULES,
};

/* Of the model around the text model, and of what is left out of it. */
#define OUTER_CONFIG                                                                                         \
    {"image_token_id", NULL}, {"language_model_only", NULL}, {"video_token_id", NULL},                       \
        {"vision_config", NULL}, {"vision_end_token_id", NULL},                                              \
    {                                                                                                        \
        "vision_start_token_id", NULL                                                                        \
    }
#define MIXER_CONFIG                                                                                         \
    {"attention_bias", "[false]"}, {"attn_output_gate", "[true]"}, {"hidden_act", "[\"silu\"]"},             \
        {"mamba_ssm_dtype", NULL}, /* of the state; here always float32 */                                   \
        {"mlp_only_layers", "[[]]"}, {"mtp_num_hidden_layers", NULL},                                        \
        {"mtp_use_dedicated_embeddings", NULL},                                                              \
    {                                                                                                        \
        "sliding_window", "[null]"                                                                           \
    }

static const struct hf_rule config[] = {
    OUTER_CONFIG,
    MIXER_CONFIG,
    {"model_type", "[\"qwen3_5_text\", \"qwen3_5\"]"},
    {NULL, NULL},
};

static const struct hf_rule moe_config[] = {
    OUTER_CONFIG,
    MIXER_CONFIG,
    {"decoder_sparse_step", "[1]"}, /* every layer has experts */
    {"intermediate_size", NULL},    /* of dense layers, of which there are none */
    {"model_type", "[\"qwen3_5_moe_text\", \"qwen3_5_moe\"]"},
    {"norm_topk_prob", "[true]"}, /* the architecture always renormalises, and its configs need not say it */
    {"output_router_logits", NULL},
    {"router_aux_loss_coef", NULL},
    {NULL, NULL},
};

static const struct conv_relative skip[] = {
    {"visual.", "vision tower"},
    {"mtp.", "multi-token prediction"},
    {NULL, NULL},
};

/* ---- layers ---- */

static int kinds_by_types(struct conv *c, struct err *e)
{
    const char *types[DESC_MAX_LAYERS];
    int n = 0, r = hf_get_str_list(c->cfg, "layer_types", types, DESC_MAX_LAYERS, &n, e);
    if (r) return r;
    if (n != c->n_layer)
        return err_set(e, ERR_FORMAT, "%s: layer_types has the wrong length (expected %d layers, got %d)",
                       hf_config_name(c->cfg), c->n_layer, n);
    for (int i = 0; i < n; i++) {
        bool full = !strcmp(types[i], "full_attention");
        if (!full && strcmp(types[i], "linear_attention"))
            return err_set(
                e, ERR_FORMAT,
                "%s: layer_types[%d] is not known (expected \"linear_attention\" or \"full_attention\", got "
                "\"%.64s\")",
                hf_config_name(c->cfg), i, types[i]);
        c->kind[i] = full ? FULL : LINEAR;
    }
    return 0;
}

static int kinds(struct conv *c, struct err *e)
{
    int64_t interval = 0;
    bool full = false;
    int a = kinds_by_types(c, e),
        b = a < 0 ? -1 : hf_get_i64(c->cfg, "full_attention_interval", 1, INT32_MAX, &interval, e);
    if (a < 0 || b < 0) return -1;
    if (a && b)
        return err_set(e, ERR_FORMAT,
                       "%s: layer_types is missing (expected it or full_attention_interval: which layers "
                       "have attention)",
                       hf_config_name(c->cfg));
    for (int32_t i = 0; i < c->n_layer; i++) {
        uint8_t kind = b == 0 && (i + 1) % interval == 0 ? FULL : LINEAR;
        if (a == 0 && b == 0 && kind != c->kind[i])
            return err_set(e, ERR_FORMAT, "%s: layer_types[%d] disagrees with full_attention_interval %lld",
                           hf_config_name(c->cfg), i, (long long)interval);
        if (a) c->kind[i] = kind;
        full |= c->kind[i] == FULL;
    }
    return full ? 0
                : err_set(e, ERR_FORMAT, "%s: no layer has attention (expected some of the %d)",
                          hf_config_name(c->cfg), c->n_layer);
}

static bool any_linear(const struct conv *c)
{
    for (int32_t i = 0; i < c->n_layer; i++)
        if (c->kind[i] == LINEAR) return true;
    return false;
}

/* ---- sizes ---- */

static int sizes(struct conv *c, struct err *e)
{
    int64_t n_k, n_v, d_k, d_v, taps;
    if (kinds(c, e)) return -1;
    if (!any_linear(c)) return 0;
    if (conv_need_i64(c, "linear_num_key_heads", &n_k, e) ||
        conv_need_i64(c, "linear_num_value_heads", &n_v, e) ||
        conv_need_i64(c, "linear_key_head_dim", &d_k, e) ||
        conv_need_i64(c, "linear_value_head_dim", &d_v, e) ||
        conv_need_i64(c, "linear_conv_kernel_dim", &taps, e))
        return -1;
    conv_set_dim(c, DIM_WIDTH, 2 * n_k * d_k + n_v * d_v, "linear_*");
    conv_set_dim(c, DIM_VALUE, n_v * d_v, "linear_num_value_heads x linear_value_head_dim");
    conv_set_dim(c, DIM_N_V, n_v, "linear_num_value_heads");
    conv_set_dim(c, DIM_D_V, d_v, "linear_value_head_dim");
    return conv_set_dim(c, DIM_CONV, taps, "linear_conv_kernel_dim");
}

static int moe_sizes(struct conv *c, struct err *e)
{
    int64_t shared;
    if (sizes(c, e) || conv_expert_sizes(c, e) ||
        conv_need_i64(c, "shared_expert_intermediate_size", &shared, e))
        return -1;
    return conv_set_dim(c, DIM_FFS, shared, "shared_expert_intermediate_size");
}

/* The tensors tell the value heads; how the rest of in_proj_qkv divides into key
 * heads only config.json does. */
static int delta_heads(struct conv *c, struct err *e)
{
    const int64_t n_v = c->dim[DIM_N_V], d_v = c->dim[DIM_D_V], keys = c->dim[DIM_WIDTH] - n_v * d_v;
    int64_t n_k, d_k;
    if (n_v * d_v != c->dim[DIM_VALUE])
        return err_set(
            e, ERR_FORMAT,
            "%s: %s: rows are not those of the value heads (expected %lld heads of %lld, got %lld rows)",
            c->label, c->dim_from[DIM_VALUE], (long long)n_v, (long long)d_v, (long long)c->dim[DIM_VALUE]);
    if (conv_need_i64(c, "linear_num_key_heads", &n_k, e) || conv_need_i64(c, "linear_key_head_dim", &d_k, e))
        return -1;
    if (keys != 2 * n_k * d_k)
        return err_set(e, ERR_FORMAT,
                       "%s: %s: rows are not those of the heads (expected 2 x %lld key heads of %lld and "
                       "%lld value heads of %lld, got %lld rows)",
                       c->label, c->dim_from[DIM_WIDTH], (long long)n_k, (long long)d_k, (long long)n_v,
                       (long long)d_v, (long long)c->dim[DIM_WIDTH]);
    if (n_v % n_k)
        return err_set(
            e, ERR_FORMAT,
            "%s: linear_num_value_heads is no multiple of linear_num_key_heads (got %lld and %lld)",
            hf_config_name(c->cfg), (long long)n_v, (long long)n_k);
    c->n_k = (int32_t)n_k;
    c->n_v = (int32_t)n_v;
    c->d_k = (int32_t)d_k;
    c->d_v = (int32_t)d_v;
    return conv_witness(c, "linear_num_value_heads", n_v, c->dim_from[DIM_N_V], e) ||
                   conv_witness(c, "linear_value_head_dim", d_v, c->dim_from[DIM_D_V], e) ||
                   conv_witness(c, "linear_conv_kernel_dim", c->dim[DIM_CONV], c->dim_from[DIM_CONV], e)
               ? -1
               : 0;
}

/* Configs have these keys also where no layer is linear; then they say nothing. */
static int no_delta(struct conv *c, struct err *e)
{
    static const char *const keys[] = {"linear_num_key_heads", "linear_num_value_heads",
                                       "linear_key_head_dim", "linear_value_head_dim",
                                       "linear_conv_kernel_dim"};
    int64_t v;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (hf_get_i64(c->cfg, keys[i], 1, INT32_MAX, &v, e) < 0) return -1;
    return 0;
}

static int heads(struct conv *c, struct err *e)
{
    if (c->dim[DIM_Q2] != 2 * c->dim[DIM_Q])
        return err_set(e, ERR_FORMAT,
                       "%s: %s: rows are not queries and their gates (expected 2 x %lld from %s, got %lld)",
                       c->label, c->dim_from[DIM_Q2], (long long)c->dim[DIM_Q], c->dim_from[DIM_Q],
                       (long long)c->dim[DIM_Q2]);
    if (c->n_mtp && c->dim[DIM_EMBD2] != 2 * c->dim[DIM_EMBD])
        return err_set(
            e, ERR_FORMAT,
            "%s: %s: columns are not an embedding and a hidden state (expected 2 x %lld from %s, got "
            "%lld)",
            c->label, c->dim_from[DIM_EMBD2], (long long)c->dim[DIM_EMBD], c->dim_from[DIM_EMBD],
            (long long)c->dim[DIM_EMBD2]);
    if (conv_heads(c, e)) return -1;
    return any_linear(c) ? delta_heads(c, e) : no_delta(c, e);
}

/* ---- order ---- */

/* The source of value head i. */
static int64_t value_head(const struct conv *c, int64_t i)
{
    return i % c->n_k * (c->n_v / c->n_k) + i / c->n_k;
}

/* The source of element i of a dimension that runs over value heads. */
static int64_t value_element(const struct conv *c, enum conv_dim d, int64_t i)
{
    const int64_t first = d == DIM_WIDTH ? 2 * (int64_t)c->n_k * c->d_k : 0, size = d == DIM_N_V ? 1 : c->d_v;
    if (i < first) return i;
    i -= first;
    return first + value_head(c, i / size) * size + i % size;
}

static int64_t row(const struct conv *c, const struct conv_rule *r, int64_t i)
{
    return value_element(c, r->dim[0], i);
}

static int64_t col(const struct conv *c, const struct conv_rule *r, int64_t i)
{
    return value_element(c, r->dim[1] == DIM_NONE ? r->dim[0] : r->dim[1], i);
}

/* ---- keys ---- */

/* The interval where there is one, else a bool a layer, which some readers do not know. */
static int put_kinds(struct conv *c, struct err *e)
{
    char key[64];
    uint8_t recurrent[DESC_MAX_LAYERS + 1];
    int32_t interval = 1;
    bool even = true;
    while (c->kind[interval - 1] != FULL) interval++;
    for (int32_t i = 0; i < c->n_layer; i++) {
        recurrent[i] = c->kind[i] == LINEAR;
        even = even && recurrent[i] == ((i + 1) % interval != 0);
    }
    if (even) return conv_put_u32(c, "full_attention_interval", interval, e);
    snprintf(key, sizeof key, "%s.attention.recurrent_layers", c->fam->arch);
    for (int32_t i = 0; i < c->n_mtp; i++) recurrent[c->n_layer + i] = 0;
    return gguf_put_array(c->w, key, GGUF_BOOL, recurrent, (uint64_t)(c->n_layer + c->n_mtp), e);
}

/* Of the axes of a picture's positions. In text they are one; but other readers want the key. */
static int put_sections(struct conv *c, struct err *e)
{
    char key[64];
    int32_t sections[4] = {11, 11, 10, 0};
    int n = 3, r = hf_get_i32_list(c->cfg, "rope_parameters.mrope_section", false, sections, 4, &n, e);
    if (r < 0) return -1;
    for (int i = n; i < 4; i++) sections[i] = 0;
    snprintf(key, sizeof key, "%s.rope.dimension_sections", c->fam->arch);
    return gguf_put_array(c->w, key, GGUF_I32, sections, 4, e);
}

/* Absent it is 0.25 to Hugging Face's class, and 1 to its other classes: it must be there. */
static int put_rope(struct conv *c, struct err *e)
{
    if (!hf_has(c->cfg, "partial_rotary_factor") &&
        !hf_has(c->cfg, "rope_parameters.partial_rotary_factor") &&
        !hf_has(c->cfg, "rope_scaling.partial_rotary_factor"))
        return err_set(
            e, ERR_FORMAT,
            "%s: partial_rotary_factor is missing (expected it in rope_parameters or at top level)",
            hf_config_name(c->cfg));
    const double n_rot = c->head_dim * c->rope.partial;
    const int32_t n = (int32_t)n_rot;
    if (n != n_rot || n < 2 || n % 2)
        return err_set(e, ERR_FORMAT,
                       "%s: partial_rotary_factor does not give pairs (expected an even part of %d, got %g)",
                       hf_config_name(c->cfg), c->head_dim, n_rot);
    return conv_put_u32(c, "rope.dimension_count", n, e) || put_sections(c, e) ? -1 : 0;
}

static int put_delta(struct conv *c, struct err *e)
{
    if (put_kinds(c, e)) return -1;
    if (!any_linear(c)) return 0;
    return conv_put_u32(c, "ssm.conv_kernel", c->dim[DIM_CONV], e) ||
                   conv_put_u32(c, "ssm.state_size", c->d_k, e) ||
                   conv_put_u32(c, "ssm.group_count", c->n_k, e) ||
                   conv_put_u32(c, "ssm.time_step_rank", c->n_v, e) ||
                   conv_put_u32(c, "ssm.inner_size", (int64_t)c->n_v * c->d_v, e)
               ? -1
               : 0;
}

/* The block reads the target's embedding: one of its own would come as a tensor, which no rule knows. */
static int check_mtp(struct conv *c, struct err *e)
{
    bool own = false;
    if (!c->cfg || hf_get_bool(c->cfg, "mtp_use_dedicated_embeddings", &own, e) < 0) return c->cfg ? -1 : 0;
    if (own && c->n_mtp)
        return err_set(e, ERR_FORMAT,
                       "%s: mtp_use_dedicated_embeddings: an embedding of the MTP block's own is not "
                       "supported (expected false, got true)",
                       hf_config_name(c->cfg));
    return 0;
}

static int keys(struct conv *c, struct err *e)
{
    return check_mtp(c, e) || conv_put_common(c, e) || conv_put_u32(c, "vocab_size", c->n_vocab, e) ||
                   put_rope(c, e) || put_delta(c, e) ||
                   (c->n_mtp && conv_put_u32(c, "nextn_predict_layers", c->n_mtp, e))
               ? -1
               : 0;
}

static int moe_keys(struct conv *c, struct err *e)
{
    if (keys(c, e) || conv_put_experts(c, "num_experts_per_tok", e) ||
        conv_witness(c, "shared_expert_intermediate_size", c->dim[DIM_FFS], c->dim_from[DIM_FFS], e))
        return -1;
    return conv_put_u32(c, "expert_shared_feed_forward_length", c->dim[DIM_FFS], e);
}

const struct conv_family conv_qwen35 = {
    .hf = "Qwen3_5ForCausalLM",
    .hf_nested = "Qwen3_5ForConditionalGeneration",
    .arch = "qwen35",
    .rules = rules,
    .config = config,
    .skip = skip,
    .rope = HF_ROPE_PARTIAL,
    .kinds = kinds,
    .sizes = sizes,
    .heads = heads,
    .row = row,
    .col = col,
    .keys = keys,
};

const struct conv_family conv_qwen35moe = {
    .hf = "Qwen3_5MoeForCausalLM",
    .hf_nested = "Qwen3_5MoeForConditionalGeneration",
    .arch = "qwen35moe",
    .rules = moe_rules,
    .config = moe_config,
    .skip = skip,
    .rope = HF_ROPE_PARTIAL,
    .kinds = kinds,
    .sizes = moe_sizes,
    .heads = heads,
    .row = row,
    .col = col,
    .keys = moe_keys,
};
