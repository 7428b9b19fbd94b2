/* fuzz_config_json.c - the reader of config.json over any text: every getter on paths that families use, then
 * the check of what is left. Nothing may crash, leak, or fail without a message. */
#include <stdlib.h>

#include "../../common/file/hf_config.h"
#include "json_mutate.h"

const char *const json_words[] = {"architectures",
                                  "Qwen3ForCausalLM",
                                  "DFlashDraftModel",
                                  "model_type",
                                  "qwen3",
                                  "dflash_config",
                                  "dflash_config.target_layer_ids",
                                  "target_layer_ids",
                                  "block_size",
                                  "output_multiplier",
                                  "mask_token_id",
                                  "hidden_act",
                                  "silu",
                                  "rope_parameters",
                                  "rope_theta",
                                  "rope_type",
                                  "type",
                                  "default",
                                  "llama3",
                                  "proportional",
                                  "yarn",
                                  "partial_rotary_factor",
                                  "full_attention",
                                  "sliding_attention",
                                  "factor",
                                  "low_freq_factor",
                                  "high_freq_factor",
                                  "original_max_position_embeddings",
                                  "rope_scaling",
                                  "tie_word_embeddings",
                                  "eos_token_id",
                                  "markov_",
                                  "markov_head",
                                  "text_config",
                                  "sliding_window",
                                  "layer_types",
                                  "is_encoder_decoder",
                                  "add_cross_attention",
                                  "pruned_heads",
                                  "torch_dtype",
                                  "bfloat16",
                                  "use_cache",
                                  "vocab_size",
                                  "rms_norm_eps",
                                  "attention_dropout",
                                  "attention_bias",
                                  "quantization_config",
                                  "a.b",
                                  "unknown",
                                  NULL};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must_say(int r, const struct err *e)
{
    if (r < 0 && (e->code == ERR_NONE || !e->msg[0])) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const places[] = {"dflash_config.target_layer_ids", "target_layer_ids", NULL};
    static const char *const scales[] = {"output_multiplier", "dflash_config.output_multiplier", NULL};
    static const char *const ties[] = {"tie_word_embeddings", "dflash_config.tie_word_embeddings", NULL};
    static const char *const blocks[] = {"dflash_config.block_size", "block_size", NULL};
    static const struct hf_rule rules[] = {
        {"hidden_act", "[\"silu\", 1, {}, null]"}, {"dflash_config.output_multiplier", "[1]"}, {NULL, NULL}};
    static const struct hf_rule *const tables[] = {hf_rules_common, rules, NULL};
    struct hf_config *c = NULL;
    struct err e = {0};
    int r = hf_config_parse(&c, (const char *)data, size, "fuzz", &e);
    must_say(r, &e);
    if (r) return 0;
    int32_t ids[16];
    const char *s = NULL, *list[16], *where = NULL;
    char key[64];
    int n = 0;
    int64_t i = 0;
    double d = 0;
    bool b = false;
    struct err e1 = {0}, e2 = {0}, e3 = {0}, e4 = {0}, e5 = {0}, e6 = {0}, e7 = {0}, e8 = {0};
    must_say(hf_get_str_list(c, "architectures", list, 16, &n, &e1), &e1);
    must_say(hf_get_str(c, "model_type", &s, &e2), &e2);
    must_say(hf_find_i32_list(c, places, ids, 16, &n, &where, &e3), &e3);
    must_say(hf_find_i64(c, blocks, 1, 1024, &i, &where, &e4), &e4);
    must_say(hf_get_rope_theta(c, &d, &where, &e5), &e5);
    struct hf_rope rope;
    struct err r1 = {0}, r2 = {0};
    must_say(hf_get_rope(c, "full_attention", HF_ROPE_PROPORTIONAL | HF_ROPE_PARTIAL, &rope, &where, &r1),
             &r1);
    must_say(hf_get_rope(c, NULL, HF_ROPE_LLAMA3, &rope, &where, &r2), &r2);
    must_say(hf_get_bool(c, "tie_word_embeddings", &b, &e6), &e6);
    must_say(hf_get_i32_list(c, "eos_token_id", true, ids, 16, &n, &e7), &e7);
    (void)hf_key_with(c, "markov_", key, sizeof key);
    must_say(hf_config_rest(c, tables, &e8), &e8);
    struct err f1 = {0}, f2 = {0};
    must_say(hf_find_f64(c, scales, &d, &where, &f1), &f1);
    must_say(hf_find_bool(c, ties, &b, &where, &f2), &f2);
    if (hf_config_name(c)[0] != 'f') abort();
    struct err n1 = {0}, n2 = {0}, n3 = {0};
    r = hf_config_nest(c, "text_config", &n1);
    must_say(r, &n1);
    must_say(hf_get_rope(c, NULL, HF_ROPE_PARTIAL, &rope, &where, &n2), &n2);
    must_say(hf_config_rest(c, tables, &n3), &n3);
    hf_config_free(c);
    return 0;
}
