/* convert_qwen3.c - Qwen3 dense (Qwen3ForCausalLM) to arch "qwen3" as llama.cpp names it.
 *
 * Rope is NEOX in both worlds, so no rows move; norm weights are stored as they are. HF's
 * post_attention_layernorm is a norm before the feed-forward, hence ffn_norm. */
#include "convert_impl.h"

#include <string.h>

static const struct conv_rule rules[] = {
    {"embed_tokens.weight", "token_embd.weight", {DIM_VOCAB, DIM_EMBD}, CONV_EMBED},
    {"layers.%d.input_layernorm.weight", "blk.%d.attn_norm.weight", {DIM_EMBD}, 0},
    {"layers.%d.self_attn.q_proj.weight", "blk.%d.attn_q.weight", {DIM_Q, DIM_EMBD}, 0},
    {"layers.%d.self_attn.q_norm.weight", "blk.%d.attn_q_norm.weight", {DIM_HEAD}, 0},
    {"layers.%d.self_attn.k_proj.weight", "blk.%d.attn_k.weight", {DIM_KV, DIM_EMBD}, 0},
    {"layers.%d.self_attn.k_norm.weight", "blk.%d.attn_k_norm.weight", {DIM_HEAD}, 0},
    {"layers.%d.self_attn.v_proj.weight", "blk.%d.attn_v.weight", {DIM_KV, DIM_EMBD}, 0},
    {"layers.%d.self_attn.o_proj.weight", "blk.%d.attn_output.weight", {DIM_EMBD, DIM_Q}, 0},
    {"layers.%d.post_attention_layernorm.weight", "blk.%d.ffn_norm.weight", {DIM_EMBD}, 0},
    {"layers.%d.mlp.gate_proj.weight", "blk.%d.ffn_gate.weight", {DIM_FF, DIM_EMBD}, 0},
    {"layers.%d.mlp.up_proj.weight", "blk.%d.ffn_up.weight", {DIM_FF, DIM_EMBD}, 0},
    {"layers.%d.mlp.down_proj.weight", "blk.%d.ffn_down.weight", {DIM_EMBD, DIM_FF}, 0},
    {"norm.weight", "output_norm.weight", {DIM_EMBD}, 0},
    {"lm_head.weight", "output.weight", {DIM_VOCAB, DIM_EMBD}, CONV_OPTIONAL | CONV_HEAD},
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
                           "targets (expected "
                           "\"full_attention\", got \"%.64s\")",
                           hf_config_name(c->cfg), i, types[i]);
    if (conv_put_common(c, e)) return -1;
    return conv_put_u32(c, "vocab_size", c->n_vocab, e);
}

const struct conv_family conv_qwen3 = {
    .hf = "Qwen3ForCausalLM",
    .arch = "qwen3",
    .rules = rules,
    .config = config,
    .keys = keys,
};
