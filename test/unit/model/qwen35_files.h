/* qwen35_files.h - small checkpoints of Qwen3.5, dense and mixture: their configs and tensors. */
#ifndef TEST_QWEN35_FILES_H
#define TEST_QWEN35_FILES_H
#include "family_fixture.h"

enum {
    BLOCKS = 3, /* linear, full, linear */
    N_K = 2,
    N_V = 6,
    D_K = 8,
    D_V = 4,
    WIDTH = 2 * N_K * D_K + N_V * D_V,
    VALUE = N_V * D_V,
    TAPS_OF_CONV = 4,
    EXPERTS = 3,
    FFX = 24,
    FFS = 20,
};

/* ---- checkpoints ---- */

#define DELTA_PARTS                                                                                          \
    {"num_hidden_layers", "3"},                                                                              \
        {"layer_types", "[\"linear_attention\", \"full_attention\", \"linear_attention\"]"},                 \
        {"linear_conv_kernel_dim", "4"}, {"linear_key_head_dim", "8"}, {"linear_num_key_heads", "2"},        \
        {"linear_num_value_heads", "6"}, {"linear_value_head_dim", "4"}, {"rope_theta", NULL},               \
        {"rope_scaling", NULL}, {"use_sliding_window", NULL}, {"max_window_layers", NULL},                   \
    {                                                                                                        \
        "rope_parameters",                                                                                   \
            "{\"rope_type\": \"default\", \"rope_theta\": 10000000, \"partial_rotary_factor\": 0.25, "       \
            "\"mrope_section\": [1, 1, 0], \"mrope_interleaved\": true}"                                     \
    }

static const struct pair parts[] = {
    {"architectures", "[\"Qwen3_5ForCausalLM\"]"},
    {"model_type", "\"qwen3_5_text\""},
    DELTA_PARTS,
    {NULL, NULL},
};

static const struct pair moe_parts[] = {
    {"architectures", "[\"Qwen3_5MoeForCausalLM\"]"},
    {"model_type", "\"qwen3_5_moe_text\""},
    {"num_experts", "3"},
    {"num_experts_per_tok", "2"},
    {"moe_intermediate_size", "24"},
    {"shared_expert_intermediate_size", "20"},
    DELTA_PARTS,
    {NULL, NULL},
};

static void add_mixer(struct spec *s, const char *prefix, int i, bool full)
{
    if (full) {
        add(s, 2 * HEADS * HEAD, EMBD, "%slayers.%d.self_attn.q_proj.weight", prefix, i);
        add(s, KV * HEAD, EMBD, "%slayers.%d.self_attn.k_proj.weight", prefix, i);
        add(s, KV * HEAD, EMBD, "%slayers.%d.self_attn.v_proj.weight", prefix, i);
        add(s, EMBD, HEADS * HEAD, "%slayers.%d.self_attn.o_proj.weight", prefix, i);
        add(s, HEAD, 0, "%slayers.%d.self_attn.q_norm.weight", prefix, i);
        add(s, HEAD, 0, "%slayers.%d.self_attn.k_norm.weight", prefix, i);
        return;
    }
    add(s, WIDTH, EMBD, "%slayers.%d.linear_attn.in_proj_qkv.weight", prefix, i);
    add(s, VALUE, EMBD, "%slayers.%d.linear_attn.in_proj_z.weight", prefix, i);
    add(s, N_V, EMBD, "%slayers.%d.linear_attn.in_proj_a.weight", prefix, i);
    add(s, N_V, EMBD, "%slayers.%d.linear_attn.in_proj_b.weight", prefix, i);
    add(s, N_V, 0, "%slayers.%d.linear_attn.A_log", prefix, i);
    add(s, N_V, 0, "%slayers.%d.linear_attn.dt_bias", prefix, i);
    add(s, WIDTH, 1, "%slayers.%d.linear_attn.conv1d.weight", prefix, i);
    add_dim(s, TAPS_OF_CONV);
    add(s, D_V, 0, "%slayers.%d.linear_attn.norm.weight", prefix, i);
    add(s, EMBD, VALUE, "%slayers.%d.linear_attn.out_proj.weight", prefix, i);
}

static void add_ff(struct spec *s, const char *prefix, int i, bool moe)
{
    if (!moe) {
        add(s, FF, EMBD, "%slayers.%d.mlp.gate_proj.weight", prefix, i);
        add(s, FF, EMBD, "%slayers.%d.mlp.up_proj.weight", prefix, i);
        add(s, EMBD, FF, "%slayers.%d.mlp.down_proj.weight", prefix, i);
        return;
    }
    add(s, EXPERTS, EMBD, "%slayers.%d.mlp.gate.weight", prefix, i);
    add(s, EXPERTS, 2 * FFX, "%slayers.%d.mlp.experts.gate_up_proj", prefix, i);
    add_dim(s, EMBD);
    add(s, EXPERTS, EMBD, "%slayers.%d.mlp.experts.down_proj", prefix, i);
    add_dim(s, FFX);
    add(s, 1, EMBD, "%slayers.%d.mlp.shared_expert_gate.weight", prefix, i);
    add(s, FFS, EMBD, "%slayers.%d.mlp.shared_expert.gate_proj.weight", prefix, i);
    add(s, FFS, EMBD, "%slayers.%d.mlp.shared_expert.up_proj.weight", prefix, i);
    add(s, EMBD, FFS, "%slayers.%d.mlp.shared_expert.down_proj.weight", prefix, i);
}

static struct spec delta_spec(const char *prefix, bool moe)
{
    struct spec s = {.n = 0};
    add(&s, VOCAB, EMBD, "%sembed_tokens.weight", prefix);
    for (int i = 0; i < BLOCKS; i++) {
        add(&s, EMBD, 0, "%slayers.%d.input_layernorm.weight", prefix, i);
        add_mixer(&s, prefix, i, i == 1);
        add(&s, EMBD, 0, "%slayers.%d.post_attention_layernorm.weight", prefix, i);
        add_ff(&s, prefix, i, moe);
    }
    add(&s, EMBD, 0, "%snorm.weight", prefix);
    return s;
}

/* What the checkpoint holds at element i of tensor `name`. */
static float source(const char *name, uint64_t i)
{
    return kn_bf16_to_f32(value_bits(name, i));
}

#endif
