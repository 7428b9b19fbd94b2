/* convert_qwen3.c - Qwen3 dense and MoE (Qwen3ForCausalLM, Qwen3MoeForCausalLM) to "qwen3" and "qwen3moe" as
 * llama.cpp names them.
 *
 * Rope is NEOX in both worlds, so no rows move; norm weights are stored as they are. HF's
 * post_attention_layernorm is a norm before the feed-forward, hence ffn_norm. */
#include "convert_impl.h"

#include <string.h>

static const struct conv_rule rules[] = {
    {"embed_tokens.weight", "token_embd.weight", {DIM_VOCAB, DIM_EMBD}, CONV_EMBED},
    CONV_ATTENTION_RULES,
    CONV_FFN_RULES,
    CONV_END_RULES,
    {NULL, NULL, {DIM_NONE}, 0},
};

static const struct hf_rule config[] = {
    {"attention_bias", "[false]"},
    {"hidden_act", "[\"silu\"]"},
    {"mlp_bias", "[false]"},
    {"model_type", "[\"qwen3\"]"},
    {"partial_rotary_factor", "[1]"},
    {"sliding_window", NULL}, /* takes effect through use_sliding_window and layer_types alone */
    {"use_sliding_window", "[false]"},
    {NULL, NULL},
};

static const struct conv_rule moe_rules[] = {
    {"embed_tokens.weight", "token_embd.weight", {DIM_VOCAB, DIM_EMBD}, CONV_EMBED},
    CONV_ATTENTION_RULES,
    {"layers.%d.mlp.gate.weight", "blk.%d.ffn_gate_inp.weight", {DIM_EXPERTS, DIM_EMBD}, 0},
    CONV_EXPERT_RULES("layers.%d.mlp.experts."),
    CONV_END_RULES,
    {NULL, NULL, {DIM_NONE}, 0},
};

static const struct hf_rule moe_config[] = {
    {"attention_bias", "[false]"},
    {"decoder_sparse_step", "[1]"}, /* every layer has experts */
    {"hidden_act", "[\"silu\"]"},
    {"intermediate_size", NULL}, /* of dense layers, of which there are none */
    {"mlp_bias", "[false]"},
    {"mlp_only_layers", "[[]]"},
    {"model_type", "[\"qwen3_moe\"]"},
    {"norm_topk_prob", "[true]"}, /* the architecture always renormalises */
    {"output_router_logits", NULL},
    {"partial_rotary_factor", "[1]"},
    {"qkv_bias", "[false]"},
    {"router_aux_loss_coef", NULL},
    {"shared_expert_intermediate_size", "[0]"},
    {"sliding_window", NULL}, /* takes effect through use_sliding_window and layer_types alone */
    {"use_qk_norm", "[true]"},
    {"use_sliding_window", "[false]"},
    {NULL, NULL},
};

static int keys(struct conv *c, struct err *e)
{
    const char *types[DESC_MAX_LAYERS];
    int n = 0;
    int r = hf_get_str_list(c->cfg, "layer_types", types, DESC_MAX_LAYERS, &n, e);
    if (r < 0) return -1;
    if (r == 0 && n != c->n_layer)
        return err_set(e, ERR_FORMAT, "%s: layer_types has the wrong length (expected %d layers, got %d)",
                       hf_config_name(c->cfg), c->n_layer, n);
    for (int i = 0; r == 0 && i < n; i++)
        if (strcmp(types[i], "full_attention"))
            return err_set(e, ERR_FORMAT,
                           "%s: layer_types[%d] changes the forward pass and is not implemented for Qwen3 "
                           "targets (expected \"full_attention\", got \"%.64s\")",
                           hf_config_name(c->cfg), i, types[i]);
    if (conv_put_common(c, e)) return -1;
    return conv_put_u32(c, "vocab_size", c->n_vocab, e);
}

/* norm_topk_prob false is Hugging Face's default, so that a config without it says false. */
static int moe_keys(struct conv *c, struct err *e)
{
    if (!hf_has(c->cfg, "norm_topk_prob"))
        return err_set(
            e, ERR_FORMAT,
            "%s: norm_topk_prob is missing (expected true: the architecture renormalises the weights of the "
            "chosen experts)",
            hf_config_name(c->cfg));
    return keys(c, e) || conv_put_experts(c, "num_experts_per_tok", e) ? -1 : 0;
}

const struct conv_family conv_qwen3 = {
    .hf = "Qwen3ForCausalLM",
    .arch = "qwen3",
    .rules = rules,
    .config = config,
    .keys = keys,
};

const struct conv_family conv_qwen3moe = {
    .hf = "Qwen3MoeForCausalLM",
    .arch = "qwen3moe",
    .rules = moe_rules,
    .config = moe_config,
    .sizes = conv_expert_sizes,
    .keys = moe_keys,
};
