/* convert_dspark_gemma4.c - DSpark drafters with Gemma 4's blocks (DeepSpec's Gemma4DSparkModel).
 *
 * Every layer is one of Gemma 4's full layers: values made of the keys' projection, norms behind both
 * branches, a scale of the layer, scores without a scale, gelu, proportional rotation. The GGUF says each of
 * these by the keys and tensors that the dialect upstream has for them (docs/drafter.md); the heads are
 * DSpark's. The class embeds as its target does and caps no logits, which other readers are told by keys. */
#include "convert_drafter.h"

#include <math.h>
#include <string.h>
#include "../../kernels/kernels.h"

#define LAYER "layers.%d."
static const struct conv_rule rules[] = {
    STACK_BEGINS,
    {LAYER "input_layernorm.weight", "blk.%d.attn_norm.weight", {DIM_EMBD}, 0},
    {LAYER "self_attn.q_proj.weight", "blk.%d.attn_q.weight", {DIM_Q, DIM_EMBD}, 0},
    {LAYER "self_attn.q_norm.weight", "blk.%d.attn_q_norm.weight", {DIM_HEAD}, 0},
    {LAYER "self_attn.k_proj.weight", "blk.%d.attn_k.weight", {DIM_KV, DIM_EMBD}, 0},
    {LAYER "self_attn.k_norm.weight", "blk.%d.attn_k_norm.weight", {DIM_HEAD}, 0},
    {LAYER "self_attn.o_proj.weight", "blk.%d.attn_output.weight", {DIM_EMBD, DIM_Q}, 0},
    {LAYER "post_attention_layernorm.weight", "blk.%d.post_attention_norm.weight", {DIM_EMBD}, 0},
    {LAYER "pre_feedforward_layernorm.weight", "blk.%d.ffn_norm.weight", {DIM_EMBD}, 0},
    CONV_FFN_RULES,
    {LAYER "post_feedforward_layernorm.weight", "blk.%d.post_ffw_norm.weight", {DIM_EMBD}, 0},
    {LAYER "layer_scalar", "blk.%d.layer_output_scale.weight", {DIM_ONE}, 0},
    {"norm.weight", "output_norm.weight", {DIM_EMBD}, 0},
    DSPARK_HEADS,
    {"rope_freqs", "rope_freqs.weight", {DIM_ROT}, CONV_MADE},
    {NULL, NULL, {DIM_NONE}, 0},
};

static const struct hf_rule config[] = {
    {"attention_bias", "[false]"},
    {"attention_k_eq_v", "[true]"},
    {"enable_moe_block", "[false]"},
    {"head_dim", NULL}, /* these two and the window: of sliding layers, which there are none of */
    {"num_key_value_heads", NULL},
    {"sliding_window", NULL},
    {"hidden_activation", "[\"gelu_pytorch_tanh\"]"},
    {"hidden_size_per_layer_input", "[0]"},
    {"model_type", "[\"gemma4_text\", \"gemma4\", \"gemma4_dspark\"]"},
    {"moe_intermediate_size", NULL},
    {"num_experts", NULL},
    {"num_kv_shared_layers", "[0]"},
    {"top_k_experts", NULL},
    {"partial_rotary_factor", "[1]"},
    {"sliding_window_pattern", NULL},
    {"_sliding_window_pattern", NULL},
    {"use_bidirectional_attention", NULL}, /* of images' tokens */
    {"use_double_wide_mlp", "[false]"},
    {"vocab_size_per_layer_input", NULL},
    {"tie_word_embeddings", NULL},
    {"dflash_config.use_swa", "[false]"},
    {"num_anchors", NULL},
    {"loss_decay_gamma", NULL},
    {"target_model_type", NULL},
    {NULL, NULL},
};

/* Full layers alone, whose values are their keys'. */
static int check_layers(struct conv *c, struct err *e)
{
    const char *types[DESC_MAX_LAYERS];
    bool same = false;
    int n = 0;
    const int r = hf_get_str_list(c->cfg, "layer_types", types, DESC_MAX_LAYERS, &n, e);
    if (r < 0 || hf_get_bool(c->cfg, "attention_k_eq_v", &same, e) < 0) return -1;
    if (r == 1) return err_set(e, ERR_FORMAT, "%s: layer_types is missing", hf_config_name(c->cfg));
    for (int i = 0; i < n; i++)
        if (strcmp(types[i], "full_attention"))
            return err_set(
                e, ERR_FORMAT,
                "%s: layer_types[%d] is not implemented in a drafter with Gemma 4's blocks (expected "
                "\"full_attention\", got \"%.64s\")",
                hf_config_name(c->cfg), i, types[i]);
    if (same) return 0;
    return err_set(
        e, ERR_FORMAT,
        "%s: attention_k_eq_v: values of their own are not implemented in a drafter with Gemma 4's "
        "blocks (expected true)",
        hf_config_name(c->cfg));
}

static int parts(struct conv *c, struct err *e)
{
    if (conv_dspark_parts(c, e) || check_layers(c, e)) return -1;
    c->d.gemma4 = true;
    c->d.pieces = "Gemma 4's blocks, a Markov head, a confidence head";
    return 0;
}

static int make(struct conv *c, struct conv_tensor *t, struct err *e)
{
    const char *where = NULL;
    const int r = hf_get_rope(c->cfg, c->fam->rope_layers, c->fam->rope, &c->rope, &where, e);
    if (r < 0) return -1;
    if (r == 1) return 0;               /* refused where the base is put */
    if (c->rope.partial == 1) return 0; /* all turn */
    return conv_make_divisors(c, t, c->dim[DIM_HEAD], "head size / 2", "", e);
}

static int keys(struct conv *c, struct err *e)
{
    const float scale = kn_bf16_to_f32(kn_f32_to_bf16(sqrtf((float)c->dim[DIM_EMBD])));
    if (conv_dspark_keys(c, e) || conv_put_f32(c, "attention.scale", 1, e) ||
        conv_put_str(c, "hidden_activation", "gelu_pytorch_tanh", e))
        return -1;
    if (!c->d.has_scale && conv_put_f32(c, "embedding_scale", (double)scale, e)) return -1;
    if (c->d.has_softcap)
        return err_set(e, ERR_FORMAT,
                       "%s: final_logit_softcapping is not implemented in a drafter with Gemma 4's blocks "
                       "(expected null)",
                       hf_config_name(c->cfg));
    return conv_put_f32(c, "final_logit_softcapping", 0, e);
}

const struct conv_family conv_dspark_gemma4 = {
    .hf = "Gemma4DSparkModel",
    .arch = "dflash",
    .drafter = true,
    .rules = rules,
    .config = config,
    .relatives = conv_dspark_relatives,
    .skip = conv_dspark_skip,
    .rope_layers = "full_attention",
    .rope = HF_ROPE_PROPORTIONAL,
    .act_key = "hidden_activation",
    .act = "gelu_pytorch_tanh",
    .head_key = "global_head_dim",
    .kv_key = "num_global_key_value_heads",
    .parts = parts,
    .sizes = conv_dspark_sizes,
    .make = make,
    .keys = keys,
    .finish = conv_drafter_finish,
};
