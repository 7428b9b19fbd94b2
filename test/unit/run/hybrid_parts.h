/* hybrid_parts.h - sizes of small Qwen3.5 models, for configs of random weights: dense, with as many key
 * heads as value heads, and a mixture. */
#ifndef TEST_HYBRID_PARTS_H
#define TEST_HYBRID_PARTS_H
#include "../model/family_fixture.h"

#define SIZES(layers, types, n_k, n_v, d_k, d_v, taps)                                                       \
    {"num_hidden_layers", layers}, {"layer_types", types}, {"linear_conv_kernel_dim", taps},                 \
        {"linear_key_head_dim", d_k}, {"linear_num_key_heads", n_k}, {"linear_num_value_heads", n_v},        \
        {"linear_value_head_dim", d_v}, {"rope_theta", NULL}, {"rope_scaling", NULL},                        \
        {"use_sliding_window", NULL}, {"max_window_layers", NULL}, {"vocab_size", "9"},                      \
        {"tie_word_embeddings", "false"},                                                                    \
    {                                                                                                        \
        "rope_parameters",                                                                                   \
            "{\"rope_type\": \"default\", \"rope_theta\": 10000, \"partial_rotary_factor\": 0.5}"            \
    }
#define FULL "\"full_attention\""
#define LINEAR "\"linear_attention\""

static const struct pair dense[] = {
    {"architectures", "[\"Qwen3_5ForCausalLM\"]"},
    {"model_type", "\"qwen3_5_text\""},
    SIZES("4", "[" LINEAR ", " LINEAR ", " LINEAR ", " FULL "]", "2", "6", "24", "20", "4"),
    {NULL, NULL},
};
static const struct pair even[] = {
    {"architectures", "[\"Qwen3_5ForCausalLM\"]"},
    {"model_type", "\"qwen3_5_text\""},
    SIZES("3", "[" FULL ", " LINEAR ", " LINEAR "]", "3", "3", "16", "32", "2"),
    {NULL, NULL},
};
static const struct pair experts[] = {
    {"architectures", "[\"Qwen3_5MoeForCausalLM\"]"},
    {"model_type", "\"qwen3_5_moe_text\""},
    {"num_experts", "5"},
    {"num_experts_per_tok", "2"},
    {"moe_intermediate_size", "24"},
    {"shared_expert_intermediate_size", "20"},
    SIZES("5", "[" LINEAR ", " FULL ", " LINEAR ", " FULL ", " LINEAR "]", "2", "8", "16", "16", "4"),
    {NULL, NULL},
};

#endif
