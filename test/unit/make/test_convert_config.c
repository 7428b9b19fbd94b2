/* test_convert_config.c - the exact message of every way in which a config.json can fail to say what the
 * forward pass is, and the spellings that must pass. */
#include "convert_fixture.h"

/* ---- pitfalls of config.json ---- */

struct config_case {
    struct pair change[4];
    const char *msg;
};

static void run_cases(const char *dir, const struct pair *base, const struct config_case *c, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct convert o = options(dir);
        write_config(dir, base, c[i].change);
        if (c[i].msg)
            convert_bad(&o, ERR_FORMAT, c[i].msg);
        else
            convert_ok(&o);
    }
}

static const struct config_case target_cases[] = {
    {{{"rope_theta", NULL}},
     "t/config.json: rope_theta is missing (expected at rope_parameters.rope_theta, "
     "rope_parameters.<layer type>.rope_theta or rope_theta)"},
    {{{"rope_theta", NULL}, {"rope_parameters", "{\"rope_theta\": 5e5, \"rope_type\": \"default\"}"}}, NULL},
    {{{"rope_parameters", "{\"rope_theta\": 5e5}"}},
     "t/config.json: rope_parameters.rope_theta and rope_theta disagree (500000 against 1000000)"},
    {{{"rope_theta", "0"}}, "t/config.json: rope_theta is out of range (expected a positive number, got 0)"},
    {{{"rope_theta", "\"1e6\""}}, "t/config.json: rope_theta is not usable (expected a number, got \"1e6\")"},
    {{{"rope_scaling", "{\"rope_type\": \"yarn\", \"factor\": 4.0}"}},
     "t/config.json: rope_scaling.rope_type is not usable (expected \"default\": no other rotation is "
     "implemented for this family, got \"yarn\")"},
    {{{"rope_scaling", "{\"factor\": 4.0}"}},
     "t/config.json: rope_scaling.factor is not usable (expected no such key: it would change the "
     "rotation, got 4.0)"},
    {{{"rope_scaling", "{\"type\": \"default\"}"}}, NULL},
    {{{"rope_scaling", "{\"rope_type\": \"default\", \"type\": \"default\"}"}}, NULL},
    {{{"partial_rotary_factor", "0.25"}},
     "t/config.json: partial_rotary_factor changes the forward pass and is not implemented (expected 1, "
     "got 0.25)"},
    {{{"attention_bias", "true"}},
     "t/config.json: attention_bias changes the forward pass and is not implemented (expected false, got "
     "true)"},
    {{{"hidden_act", "\"gelu\""}},
     "t/config.json: hidden_act changes the forward pass and is not implemented (expected \"silu\", got "
     "\"gelu\")"},
    {{{"use_sliding_window", "true"}},
     "t/config.json: use_sliding_window changes the forward pass and is not implemented (expected false, "
     "got true)"},
    {{{"layer_types", "[\"full_attention\", \"sliding_attention\"]"}},
     "t/config.json: layer_types[1] changes the forward pass and is not implemented for Qwen3 targets "
     "(expected \"full_attention\", got \"sliding_attention\")"},
    {{{"layer_types", "[\"full_attention\"]"}},
     "t/config.json: layer_types has the wrong length (expected 2 layers, got 1)"},
    {{{"layer_types", "[\"full_attention\", \"full_attention\"]"}}, NULL},
    {{{"new_gate", "{\"x\": 1}"}},
     "t/config.json: new_gate is not a key that is known (its value: {\"x\":1})"},
    {{{"new_gate", "null"}}, NULL},
    {{{"quantization_config", "{\"quant_method\": \"fp8\"}"}},
     "t/config.json: quantization_config is not a key that is known (its value: "
     "{\"quant_method\":\"fp8\"})"},
    {{{"hidden_size", "48"}},
     "t/config.json: hidden_size does not match the tensors (expected 32 from model.embed_tokens.weight, "
     "got 48)"},
    {{{"head_dim", "32"}},
     "t/config.json: head_dim does not match the tensors (expected 16 from "
     "model.layers.0.self_attn.q_norm.weight, got 32)"},
    {{{"num_attention_heads", "4"}},
     "t/config.json: num_attention_heads does not match the tensors (expected 2 from "
     "model.layers.0.self_attn.q_proj.weight / model.layers.0.self_attn.q_norm.weight, got 4)"},
    {{{"num_key_value_heads", "2"}},
     "t/config.json: num_key_value_heads does not match the tensors (expected 1 from "
     "model.layers.0.self_attn.k_proj.weight / model.layers.0.self_attn.q_norm.weight, got 2)"},
    {{{"intermediate_size", "65"}},
     "t/config.json: intermediate_size does not match the tensors (expected 64 from "
     "model.layers.0.mlp.gate_proj.weight, got 65)"},
    {{{"num_hidden_layers", "3"}},
     "t/config.json: num_hidden_layers does not match the tensors (expected 2 from the highest layer "
     "number, got 3)"},
    {{{"vocab_size", "41"}},
     "t/config.json: vocab_size does not match the tensors (expected 40 from model.embed_tokens.weight, "
     "got 41)"},
    {{{"vocab_size", "40.5"}},
     "t/config.json: vocab_size is not usable (expected an integer from 0 to 2147483647, got 40.5)"},
    {{{"rms_norm_eps", NULL}}, "t/config.json: rms_norm_eps is missing"},
    {{{"hidden_act", NULL}}, "t/config.json: hidden_act is missing (expected \"silu\")"},
    {{{"max_position_embeddings", NULL}}, "t/config.json: max_position_embeddings is missing"},
    {{{"eos_token_id", "[2, 40]"}},
     "t/config.json: eos_token_id is outside the vocabulary (expected 0 to 39, got 40)"},
    {{{"tie_word_embeddings", "false"}},
     "t: lm_head.weight is missing (t/config.json: tie_word_embeddings is false)"},
    {{{"tie_word_embeddings", NULL}},
     "t/config.json: tie_word_embeddings is missing and there is no lm_head.weight"},
    {{{"architectures", "[\"PhiForCausalLM\"]"}},
     "t/config.json: architecture PhiForCausalLM is not supported (expected Qwen3ForCausalLM, ..."},
    {{{"architectures", "[\"MambaForCausalLM\"]"}},
     "t/config.json: architecture MambaForCausalLM is not supported (expected "
     "Qwen3ForCausalLM, ..."},
    {{{"architectures", NULL}},
     "t/config.json: architectures does not name one model (expected one name, got 0: known are "
     "Qwen3ForCausalLM, ..."},
};

static void test_target_config(void **state)
{
    (void)state;
    struct spec s = target_spec("model.");
    write_config("t", base_target, NULL);
    write_weights("t", &s);
    run_cases("t", base_target, target_cases, sizeof target_cases / sizeof target_cases[0]);
}

static const struct config_case drafter_cases[] = {
    {{{"rope_parameters", NULL}},
     "d/config.json: rope_theta is missing (expected at rope_parameters.rope_theta, "
     "rope_parameters.<layer type>.rope_theta or rope_theta)"},
    {{{"rope_parameters", NULL}, {"rope_theta", "1e6"}}, NULL},
    {{{"rope_parameters",
       "{\"full_attention\": {\"rope_theta\": 1e6, \"rope_type\": \"default\"}, \"sliding_attention\": "
       "{\"rope_theta\": 1e6}}"}},
     NULL},
    {{{"rope_parameters",
       "{\"full_attention\": {\"rope_theta\": 1e6}, \"sliding_attention\": {\"rope_theta\": 1e4}}"}},
     "d/config.json: rope_parameters: layer types disagree (full_attention has rope_theta 1000000, "
     "sliding_attention has 10000): one base for all layers is implemented"},
    {{{"rope_parameters", "{\"full_attention\": {\"rope_type\": \"default\"}}"}},
     "d/config.json: rope_parameters.full_attention.rope_theta is missing"},
    {{{"rope_parameters", "{\"rope_theta\": 1e6, \"partial_rotary_factor\": 0.5}"}},
     "d/config.json: rope_parameters.partial_rotary_factor is not usable (expected 1: a partial rotation "
     "is not implemented for this family, got 0.5)"},
    {{{"block_size", NULL}},
     "d/config.json: the block size is missing (expected at dflash_config.block_size or block_size)"},
    {{{"block_size", NULL},
      {"dflash_config", "{\"block_size\": 4, \"mask_token_id\": 39, \"target_layer_ids\": [0, 1]}"}},
     NULL},
    {{{"dflash_config", "{\"block_size\": 4, \"mask_token_id\": 39, \"target_layer_ids\": [0, 1]}"}},
     "d/config.json: dflash_config.block_size and block_size disagree (4 against 8)"},
    {{{"dflash_config", "{\"target_layer_ids\": [0, 1]}"}},
     "d/config.json: the mask token id is missing (expected at dflash_config.mask_token_id or "
     "mask_token_id)"},
    {{{"dflash_config", "{\"target_layer_ids\": [0, 1]}"}, {"mask_token_id", "39"}}, NULL},
    {{{"dflash_config", "{\"mask_token_id\": 39}"}},
     "d/config.json: the list of tapped target layers is missing (expected at "
     "dflash_config.target_layer_ids, dflash_config.aux_hidden_state_layer_ids, or either at top level)"},
    {{{"dflash_config", "{\"mask_token_id\": 39, \"target_layer_ids\": \"0,1\"}"}},
     "d/config.json: dflash_config.target_layer_ids is not usable (expected a list of integers, got "
     "\"0,1\")"},
    {{{"dflash_config", "{\"mask_token_id\": 39, \"target_layer_ids\": []}"}},
     "d: dflash_config.target_layer_ids is empty (expected the zero-based target layers whose output is "
     "tapped)"},
    {{{"sample_from_anchor", "true"}},
     "d/config.json: sample_from_anchor changes the forward pass and is not implemented (expected false, "
     "got true)"},
    {{{"dflash_config", "{\"mask_token_id\": 39}"}, {"target_layer_ids", "[0, 1]"}}, NULL},
    {{{"dflash_config", "{\"mask_token_id\": 39}"}, {"aux_hidden_state_layer_ids", "[0, 1]"}}, NULL},
    {{{"dflash_config", "{\"mask_token_id\": 39, \"aux_hidden_state_layer_ids\": [0, 1]}"}}, NULL},
    {{{"target_layer_ids", "[0, 2]"}},
     "d/config.json: dflash_config.target_layer_ids and target_layer_ids disagree ([0,1] against [0,2])"},
    {{{"dflash_config", "{\"mask_token_id\": 39, \"target_layer_ids\": [0, -2]}"}},
     "d: dflash_config.target_layer_ids[1] is out of range (expected a zero-based layer, or -1, the "
     "embeddings, got -2)"},
    {{{"dflash_config", "{\"mask_token_id\": 39, \"target_layer_ids\": [-1, 1]}"}}, NULL},
    {{{"dflash_config", "{\"mask_token_id\": 39, \"target_layer_ids\": [0, 3]}"}},
     "d: tap 1 is out of range (expected below the target's 3 layers, got 3)"},
    {{{"dflash_config", "{\"mask_token_id\": 39, \"target_layer_ids\": [0, 1, 2]}"}},
     "d: fc.weight does not fit the taps (expected 3 taps x 32 = 96 columns, got 64)"},
    {{{"dflash_config", "{\"mask_token_id\": 40, \"target_layer_ids\": [0, 1]}"}},
     "d: the mask token id is outside the vocabulary (expected below 40, got 40)"},
    {{{"dflash_config", "{\"mask_token_id\": 39, \"target_layer_ids\": [0, 1], \"mixer\": 2}"}},
     "d/config.json: dflash_config.mixer is not a key that is known (its value: 2)"},
    {{{"dflash_config", "{\"mask_token_id\": 39, \"target_layer_ids\": [0, 1], \"conv_kernel_size\": 2}"}},
     "d/config.json: key dflash_config.conv_kernel_size shows a DFlash2 drafter, which is not supported "
     "(expected a plain DFlashDraftModel)"},
    {{{"markov_rank", "256"}},
     "d/config.json: key markov_rank shows a DSpark drafter, which is not supported (expected a plain "
     "DFlashDraftModel)"},
    {{{"output_multiplier", "1.0"}}, NULL},
    {{{"output_multiplier", "0.5"}}, NULL},
    {{{"output_multiplier", "-0.5"}},
     "d/config.json: output_multiplier is out of range (expected a positive number, got -0.5)"},
    {{{"sliding_window", "null"}},
     "d/config.json: sliding_window is missing (layer_types has sliding layers)"},
    {{{"use_sliding_window", "false"}},
     "d/config.json: layer_types has sliding layers but use_sliding_window is false"},
    {{{"layer_types", NULL}},
     "d/config.json: use_sliding_window is true but layer_types is missing: which layers slide is not "
     "known"},
    {{{"layer_types", NULL}, {"use_sliding_window", "false"}}, NULL},
    {{{"layer_types", "[\"full_attention\", \"linear_attention\"]"}},
     "d/config.json: layer_types[1] is not implemented (expected \"full_attention\" or "
     "\"sliding_attention\", got \"linear_attention\")"},
    {{{"dflash_config", "{\"mask_token_id\": 39, \"target_layer_ids\": [0, 1], \"num_target_layers\": 4}"}},
     "d/config.json: dflash_config.num_target_layers and num_target_layers disagree (4 against 3)"},
    {{{"target_hidden_size", "64"}},
     "d/config.json: target_hidden_size does not match the tensors (expected 32 from fc.weight, got 64)"},
    {{{"dflash_config", "{\"mask_token_id\": 39, \"target_layer_ids\": [0, 1], \"causal\": true}"},
      {"is_causal", "false"}},
     "d/config.json: dflash_config.causal and is_causal disagree (true against false)"},
    {{{"dflash_config", "{\"mask_token_id\": 39, \"target_layer_ids\": [0, 1], \"causal_head\": true}"},
      {"is_causal", "false"}},
     "d/config.json: is_causal and dflash_config.causal_head disagree (false against true)"},
    {{{"dflash_config", "{\"mask_token_id\": 39, \"target_layer_ids\": [0, 1], \"causal_head\": 1}"}},
     "d/config.json: dflash_config.causal_head is not usable (expected true or false, got 1)"},
    {{{"dflash_config",
       "{\"mask_token_id\": 39, \"target_layer_ids\": [0, 1], \"projector_type\": \"domino\"}"}},
     "d/config.json: shift_label is missing (expected at dflash_config.shift_label or shift_label)"},
    {{{"dflash_config",
       "{\"mask_token_id\": 39, \"target_layer_ids\": [0, 1], \"projector_type\": \"other\"}"}},
     "d/config.json: dflash_config.projector_type changes the forward pass and is not implemented "
     "(expected \"dflash\", got \"other\")"},
    {{{"dspine_config", "{\"transfer_rank\": 8}"}},
     "d/config.json: key dspine_config shows a DSpine drafter, which is not supported (expected a plain "
     "DFlashDraftModel)"},
    {{{"dflash_config", "{\"mask_token_id\": 39, \"target_layer_ids\": [0, 1], \"gru_hidden_dim\": 8}"}},
     "d/config.json: key dflash_config.gru_hidden_dim shows a Domino drafter, which is not supported "
     "(expected a plain DFlashDraftModel)"},
    {{{"rope_parameters",
       "{\"rope_theta\": 1e7, \"mrope_section\": [3, 3, 2], \"mrope_interleaved\": true}"}},
     NULL},
    {{{"num_anchors", "64"}, {"loss_decay_gamma", "7.0"}, {"image_token_id", "5"}}, NULL},
    {{{"model_type", "\"llama\""}},
     "d/config.json: model_type changes the forward pass and is not implemented (expected one of "
     "[\"qwen3\",\"dflash\"], got \"llama\")"},
};

static void test_drafter_config(void **state)
{
    (void)state;
    struct spec s = drafter_spec("");
    write_config("d", base_drafter, NULL);
    write_weights("d", &s);
    run_cases("d", base_drafter, drafter_cases, sizeof drafter_cases / sizeof drafter_cases[0]);
}

/* Our own keys: scale, softcap and is_causal are written where the config has them. */
static void test_drafter_extras(void **state)
{
    (void)state;
    struct spec s = drafter_spec("");
    static const struct pair change[] = {{"input_embedding_scale", "5.5"},
                                         {"final_logit_softcapping", "30.0"},
                                         {"is_causal", "false"},
                                         {NULL, NULL}};
    write_config("d", base_drafter, change);
    write_weights("d", &s);
    struct convert o = options("d");
    convert_ok(&o);
    struct gguf *g = open_out();
    assert_true(f32(g, "dflash.embedding_scale") == 5.5f);
    assert_true(f32(g, "dflash.final_logit_softcapping") == 30.0f);
    array_is(g, "dflash.attention.sliding_window_pattern", GGUF_BOOL, (int64_t[]){1, 0}, 2);
    array_is(g, "dflash.attention.causal_pattern", GGUF_BOOL, (int64_t[]){0, 0}, 2);
    bool causal = true;
    assert_int_equal(gguf_get_bool(g, "dflash.attention.causal", &causal, NULL), 0);
    assert_false(causal);
    gguf_close(g);
}

/* For a Gemma 4 target its scale and cap are written out, since llama.cpp takes an absent key as none; the
 * config's win, and a dialect whose readers do not look gets neither. */
static void test_target_ends(void **state)
{
    (void)state;
    struct spec s = drafter_spec("");
    static const struct pair gemma[] = {{"architectures", "[\"Gemma4ForCausalLM\"]"},
                                        {"final_logit_softcapping", "30.0"},
                                        {NULL, NULL}},
                             of_two[] = {{"num_target_layers", "2"}, {NULL, NULL}},
                             own[] = {
                                 {"num_target_layers", "2"}, {"input_embedding_scale", "5.5"}, {NULL, NULL}};
    struct convert o = options("d");
    o.target = "t";
    write_weights("d", &s);
    for (int i = 0; i < 4; i++) {
        write_config("t", base_target, i < 3 ? gemma : NULL);
        write_config("d", base_drafter, i == 1 ? own : of_two);
        o.dialect = i == 2 ? "ik" : NULL;
        convert_ok(&o);
        struct gguf *g = open_out();
        if (i < 2) {
            assert_true(f32(g, "dflash.embedding_scale") ==
                        (i ? 5.5f : 5.65625f)); /* the root of 32 in bf16 */
            assert_true(f32(g, "dflash.final_logit_softcapping") == 30.0f);
        } else {
            assert_null(gguf_find(g, i == 2 ? "dflash-draft.embedding_scale" : "dflash.embedding_scale"));
            assert_null(gguf_find(g, "dflash.final_logit_softcapping"));
        }
        assert_null(strstr(said, "only our key dflash.embedding_scale"));
        gguf_close(g);
    }
}

/* JetSpec: one flag, where its exporter puts it or at top level. A full layer is causal then, and a sliding
 * one is not where it says false. */
static void test_causal_head(void **state)
{
    (void)state;
    struct spec s = drafter_spec("");
    static const struct pair change[][3] = {
        {{"dflash_config", "{\"mask_token_id\": 39, \"target_layer_ids\": [0, 1], \"causal_head\": true}"}},
        {{"causal_head", "false"}}};
    for (int i = 0; i < 2; i++) {
        write_config("d", base_drafter, change[i]);
        write_weights("d", &s);
        struct convert o = options("d");
        convert_ok(&o);
        struct gguf *g = open_out();
        array_is(g, "dflash.attention.causal_pattern", GGUF_BOOL, (int64_t[]){!i, !i}, 2);
        bool causal = i;
        assert_int_equal(gguf_get_bool(g, "dflash.attention.causal", &causal, NULL), 0);
        assert_int_equal(causal, !i);
        gguf_close(g);
    }
}

/* ---- malformed text ---- */

static void test_json(void **state)
{
    (void)state;
    struct spec t = target_spec("model.");
    struct convert o = options("j");
    write_weights("j", &t);
    write_file("j/config.json", "{\"a\": 1,}", 9);
    convert_bad(&o, ERR_FORMAT,
                "j/config.json: bad JSON in line 1, column 9: string or '}' expected near '}'");
    write_file("j/config.json", "[1]", 3);
    convert_bad(&o, ERR_FORMAT, "j/config.json: not a config.json (expected a JSON object, got [1])");
    write_file("j/config.json", "{\"a\": 1, \"a\": 2}", 16);
    convert_bad(&o, ERR_FORMAT,
                "j/config.json: bad JSON in line 1, column 12: duplicate object key near '\"a\"'");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_target_config),  cmocka_unit_test(test_drafter_config),
        cmocka_unit_test(test_drafter_extras), cmocka_unit_test(test_causal_head),
        cmocka_unit_test(test_target_ends),    cmocka_unit_test(test_json),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
