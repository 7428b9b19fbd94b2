/* test_qwen35.c - Qwen3.5: where the rows and values of its tensors go, both spellings of its checkpoints,
 * what is left out, and what its configs and files must say. */
#include "qwen35_files.h"

#include "../../../common/inspect/check.h"
#include "../../../common/inspect/diff.h"
#include "../../../common/model/model.h"
#include "../../foreign_files.h"

/* ---- conversion ---- */

/* Value head g * 3 + j of the checkpoint is j * 2 + g of the file: by hand. */
static const int head_from[N_V] = {0, 3, 1, 4, 2, 5};

static int value_from(int i)
{
    return head_from[i / D_V] * D_V + i % D_V;
}

static int width_from(int i)
{
    return i < 2 * N_K * D_K ? i : 2 * N_K * D_K + value_from(i - 2 * N_K * D_K);
}

static int head_row(int i)
{
    return head_from[i];
}

/* Every element of a matrix [rows, cols] of the file: rows (by_row) or columns of the source in the order of
 * from. */
static void check_matrix(const struct gguf *g, const char *name, const char *hf, int rows, int cols,
                         int (*from)(int), bool by_row)
{
    const struct gguf_tensor *t = need(g, name);
    assert_int_equal(t->n_dims, 2);
    assert_int_equal(t->ne[0], cols);
    assert_int_equal(t->ne[1], rows);
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < cols; c++) {
            uint64_t at = by_row ? (uint64_t)(from(r) * cols + c) : (uint64_t)(r * cols + from(c));
            float x, want = source(hf, at);
            if (t->type == KN_F32) {
                memcpy(&x, t->data + 4 * (r * cols + c), 4);
            } else {
                uint16_t bits;
                assert_int_equal(t->type, KN_BF16);
                memcpy(&bits, t->data + 2 * (r * cols + c), 2);
                x = kn_bf16_to_f32(bits);
            }
            if (x != want)
                fail_msg("%s: row %d, column %d: %g, expected %g", name, r, c, (double)x, (double)want);
        }
}

enum change { AS_IT_IS, PLUS_ONE, NEG_EXP };

static void check_vector(const struct gguf *g, const char *name, const char *hf, int n, bool heads,
                         enum change how)
{
    const struct gguf_tensor *t = need(g, name);
    assert_int_equal(t->type, KN_F32);
    assert_int_equal(t->n_dims, 1);
    assert_int_equal(t->ne[0], n);
    for (int i = 0; i < n; i++) {
        float x, y = source(hf, (uint64_t)(heads ? head_from[i] : i));
        float want = how == PLUS_ONE ? 1 + y : how == NEG_EXP ? (float)-exp((double)y) : y;
        memcpy(&x, t->data + 4 * i, 4);
        if (x != want) fail_msg("%s: element %d: %g, expected %g", name, i, (double)x, (double)want);
    }
}

static void check_delta(const struct gguf *g, const char *prefix, int i)
{
    char name[64], hf[128];
#define NAMES(a, b)                                                                                          \
    (snprintf(name, sizeof name, "blk.%d." a, i), snprintf(hf, sizeof hf, "%slayers.%d." b, prefix, i))
    NAMES("attn_qkv.weight", "linear_attn.in_proj_qkv.weight");
    check_matrix(g, name, hf, WIDTH, EMBD, width_from, true);
    NAMES("attn_gate.weight", "linear_attn.in_proj_z.weight");
    check_matrix(g, name, hf, VALUE, EMBD, value_from, true);
    NAMES("ssm_alpha.weight", "linear_attn.in_proj_a.weight");
    check_matrix(g, name, hf, N_V, EMBD, head_row, true);
    NAMES("ssm_beta.weight", "linear_attn.in_proj_b.weight");
    check_matrix(g, name, hf, N_V, EMBD, head_row, true);
    NAMES("ssm_conv1d.weight", "linear_attn.conv1d.weight");
    check_matrix(g, name, hf, WIDTH, TAPS_OF_CONV, width_from, true);
    assert_int_equal(need(g, name)->type, KN_F32);
    NAMES("ssm_out.weight", "linear_attn.out_proj.weight");
    check_matrix(g, name, hf, EMBD, VALUE, value_from, false);
    NAMES("ssm_a", "linear_attn.A_log");
    check_vector(g, name, hf, N_V, true, NEG_EXP);
    NAMES("ssm_dt.bias", "linear_attn.dt_bias");
    check_vector(g, name, hf, N_V, true, AS_IT_IS);
    NAMES("ssm_norm.weight", "linear_attn.norm.weight");
    check_vector(g, name, hf, D_V, false, AS_IT_IS);
    NAMES("attn_norm.weight", "input_layernorm.weight");
    check_vector(g, name, hf, EMBD, false, PLUS_ONE);
    NAMES("post_attention_norm.weight", "post_attention_layernorm.weight");
    check_vector(g, name, hf, EMBD, false, PLUS_ONE);
#undef NAMES
}

static int as_it_is(int i)
{
    return i;
}

static void check_whole(const struct gguf *g, const char *prefix)
{
    char hf[128];
    static const int64_t sections[] = {1, 1, 0, 0};
    check_delta(g, prefix, 0);
    check_delta(g, prefix, 2);
    snprintf(hf, sizeof hf, "%slayers.1.self_attn.q_proj.weight", prefix);
    check_matrix(g, "blk.1.attn_q.weight", hf, 2 * HEADS * HEAD, EMBD, as_it_is, true);
    snprintf(hf, sizeof hf, "%slayers.1.self_attn.q_norm.weight", prefix);
    check_vector(g, "blk.1.attn_q_norm.weight", hf, HEAD, false, PLUS_ONE);
    snprintf(hf, sizeof hf, "%slayers.1.self_attn.k_norm.weight", prefix);
    check_vector(g, "blk.1.attn_k_norm.weight", hf, HEAD, false, PLUS_ONE);
    snprintf(hf, sizeof hf, "%snorm.weight", prefix);
    check_vector(g, "output_norm.weight", hf, EMBD, false, PLUS_ONE);
    assert_null(gguf_tensor(g, "blk.1.attn_qkv.weight"));
    assert_null(gguf_tensor(g, "blk.0.attn_q.weight"));
    assert_int_equal(u32(g, "qwen35.full_attention_interval"), 2);
    array_is(g, "qwen35.rope.dimension_sections", GGUF_I32, sections, 4);
    assert_null(gguf_find(g, "qwen35.attention.recurrent_layers"));
    assert_int_equal(u32(g, "qwen35.rope.dimension_count"), HEAD / 4);
    assert_int_equal(u32(g, "qwen35.ssm.conv_kernel"), TAPS_OF_CONV);
    assert_int_equal(u32(g, "qwen35.ssm.state_size"), D_K);
    assert_int_equal(u32(g, "qwen35.ssm.group_count"), N_K);
    assert_int_equal(u32(g, "qwen35.ssm.time_step_rank"), N_V);
    assert_int_equal(u32(g, "qwen35.ssm.inner_size"), VALUE);
    assert_int_equal(u32(g, "qwen35.block_count"), BLOCKS);
    assert_int_equal(u32(g, "qwen35.attention.head_count"), HEADS);
}

static void test_tensors(void **state)
{
    (void)state;
    struct spec s = delta_spec("model.", false);
    write_weights("t", &s);
    family_config("t", parts, NULL);
    struct convert o = options("t");
    convert_ok(&o);
    struct gguf *g = open_out();
    check_whole(g, "model.");
    gguf_close(g);
}

/* A checkpoint of text and pictures: keys under text_config, other names, parts
 * that are left out and listed. */
static void test_multimodal(void **state)
{
    (void)state;
    const char *prefix = "model.language_model.";
    struct spec s = delta_spec(prefix, false);
    char text[4096] = "{", outer[6000];
    size_t n = 1, size = 0;
    add(&s, 8, 8, "model.visual.blocks.0.attn.qkv.weight");
    add(&s, 8, 8, "model.visual.merger.mlp.0.weight");
    add(&s, EMBD, 2 * EMBD, "mtp.fc.weight");
    add(&s, EMBD, 0, "mtp.layers.0.input_layernorm.weight");
    write_weights("v", &s);
    family_config("t", parts, NULL); /* the same keys, one level down */
    FILE *f = fopen("t/config.json", "rb");
    assert_non_null(f);
    size = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[size] = 0;
    n = (size_t)snprintf(
        outer, sizeof outer,
        "{\"architectures\": [\"Qwen3_5ForConditionalGeneration\"], \"image_token_id\": 30, "
        "\"model_type\": \"qwen3_5\", \"vision_config\": {\"depth\": 1, \"hidden_size\": 8}, "
        "\"tie_word_embeddings\": true, \"video_token_id\": 31, \"text_config\": %s}",
        text);
    assert_true(n < sizeof outer);
    write_file("v/config.json", outer, n);
    struct convert o = options("v");
    o.mtp = CONVERT_MTP_NONE;
    convert_ok(&o);
    assert_non_null(strstr(said, "left out: 2 tensors of the vision tower (visual.*, "));
    assert_non_null(strstr(said, "left out: 2 tensors of the multi-token prediction (mtp.*, "));
    assert_non_null(strstr(said, "left out: mtp.layers.0.input_layernorm.weight (multi-token prediction)"));
    assert_non_null(strstr(said, "left out: model.visual.merger.mlp.0.weight (vision tower)"));
    struct gguf *g = open_out();
    check_whole(g, prefix);
    assert_null(gguf_find(g, "qwen35.nextn_predict_layers"));
    gguf_close(g);
    add(&s, 8, 8, "model.audio.fc.weight"); /* of no model of this kind */
    write_weights("v", &s);
    convert_bad(&o, ERR_FORMAT,
                "v: tensor model.audio.fc.weight is not part of a Qwen3_5ForCausalLM that is known");
}

static void test_experts(void **state)
{
    (void)state;
    struct spec s = delta_spec("model.", true);
    write_weights("t", &s);
    family_config("t", moe_parts, NULL);
    struct convert o = options("t");
    convert_ok(&o);
    struct gguf *g = open_out();
    check_delta(g, "model.", 2);
    check_vector(g, "blk.2.ffn_gate_inp_shexp.weight", "model.layers.2.mlp.shared_expert_gate.weight", EMBD,
                 false, AS_IT_IS);
    check_matrix(g, "blk.2.ffn_gate_shexp.weight", "model.layers.2.mlp.shared_expert.gate_proj.weight", FFS,
                 EMBD, as_it_is, true);
    check_matrix(g, "blk.2.ffn_down_shexp.weight", "model.layers.2.mlp.shared_expert.down_proj.weight", EMBD,
                 FFS, as_it_is, true);
    assert_int_equal(need(g, "blk.0.ffn_up_exps.weight")->ne[2], EXPERTS);
    assert_int_equal(need(g, "blk.0.ffn_gate_inp.weight")->type, KN_F32);
    assert_int_equal(u32(g, "qwen35moe.expert_count"), EXPERTS);
    assert_int_equal(u32(g, "qwen35moe.expert_shared_feed_forward_length"), FFS);
    assert_null(gguf_find(g, "qwen35moe.feed_forward_length"));
    gguf_close(g);
}

/* Attention in layer at alone; at < 0: in all. */
static struct spec one_full(int at)
{
    struct spec s = {.n = 0};
    add(&s, VOCAB, EMBD, "model.embed_tokens.weight");
    for (int i = 0; i < BLOCKS; i++) {
        add(&s, EMBD, 0, "model.layers.%d.input_layernorm.weight", i);
        add_mixer(&s, "model.", i, at < 0 || i == at);
        add(&s, EMBD, 0, "model.layers.%d.post_attention_layernorm.weight", i);
        add_ff(&s, "model.", i, false);
    }
    add(&s, EMBD, 0, "model.norm.weight");
    return s;
}

/* An interval is written where one fits, else a bool a layer; the description reads both. */
static void test_kinds(void **state)
{
    (void)state;
    static const struct pair by_interval[] = {
        {"layer_types", NULL}, {"full_attention_interval", "3"}, {NULL, NULL}};
    static const struct pair first[] = {
        {"layer_types", "[\"full_attention\", \"linear_attention\", \"linear_attention\"]"}, {NULL, NULL}};
    static const int64_t recurrent[] = {0, 1, 1};
    for (int at = 0; at < BLOCKS; at += 2) {
        struct spec s = one_full(at);
        struct err e = {0};
        struct desc *d;
        write_weights("t", &s);
        family_config("t", parts, at ? by_interval : first);
        struct convert o = options("t");
        convert_ok(&o);
        struct gguf *g = open_out();
        if (at) {
            assert_int_equal(u32(g, "qwen35.full_attention_interval"), 3);
            assert_null(gguf_find(g, "qwen35.attention.recurrent_layers"));
        } else {
            array_is(g, "qwen35.attention.recurrent_layers", GGUF_BOOL, recurrent, BLOCKS);
            assert_null(gguf_find(g, "qwen35.full_attention_interval"));
        }
        if (desc_read(&d, g, NULL, &e)) fail_msg("%s", e.msg);
        for (int i = 0; i < BLOCKS; i++) assert_int_equal(d->layer[i].recurrent, i != at);
        desc_free(d);
        gguf_close(g);
    }
}

/* No layer is a delta net: the sizes of one may be in the config, as they are in all of them, and say
 * nothing. */
static void test_attention_alone(void **state)
{
    (void)state;
    static const struct pair with[] = {{"layer_types",
                                        "[\"full_attention\", \"full_attention\", \"full_attention\"]"},
                                       {NULL, NULL}},
                             without[] = {{"layer_types", NULL},
                                          {"full_attention_interval", "1"},
                                          {"linear_conv_kernel_dim", NULL},
                                          {"linear_key_head_dim", NULL},
                                          {"linear_num_key_heads", NULL},
                                          {"linear_num_value_heads", NULL},
                                          {"linear_value_head_dim", NULL},
                                          {NULL, NULL}};
    struct spec s = one_full(-1);
    write_weights("t", &s);
    for (int i = 0; i < 4; i++) { /* of weights, and random ones */
        struct err e = {0};
        struct desc *d;
        family_config("t", parts, i % 2 ? without : with);
        struct convert o = options("t");
        if (i > 1) o.input = "t/config.json", o.random = true;
        convert_ok(&o);
        struct gguf *g = open_out();
        assert_int_equal(u32(g, "qwen35.full_attention_interval"), 1);
        assert_null(gguf_find(g, "qwen35.ssm.state_size"));
        if (desc_read(&d, g, NULL, &e)) fail_msg("%s", e.msg);
        for (int l = 0; l < BLOCKS; l++) assert_int_equal(d->layer[l].recurrent, 0);
        desc_free(d);
        gguf_close(g);
    }
}

/* ---- configs ---- */

static void test_config(void **state)
{
    (void)state;
    static const struct family_case c[] = {
        {{{NULL, NULL}}, NULL},
        {{{"layer_types", NULL}},
         "t/config.json: layer_types is missing (expected it or full_attention_interval: which layers have "
         "attention)"},
        {{{"full_attention_interval", "2"}}, NULL}, /* says the same of 3 layers */
        {{{"full_attention_interval", "3"}},
         "t/config.json: layer_types[1] disagrees with full_attention_interval 3"},
        {{{"layer_types", "[\"linear_attention\", \"full_attention\"]"}},
         "t/config.json: layer_types has the wrong length (expected 3 layers, got 2)"},
        {{{"layer_types", "[\"linear_attention\", \"full_attention\", \"sliding_attention\"]"}},
         "t/config.json: layer_types[2] is not known..."},
        {{{"layer_types", "[\"linear_attention\", \"linear_attention\", \"linear_attention\"]"}},
         "t/config.json: no layer has attention..."},
        {{{"layer_types", "[\"full_attention\", \"full_attention\", \"linear_attention\"]"}},
         "t: tensor layers.0.self_attn.q_proj.weight is missing"},
        {{{"linear_num_key_heads", NULL}}, "t/config.json: linear_num_key_heads is missing..."},
        {{{"linear_num_key_heads", "4"}},
         "t: model.layers.0.linear_attn.in_proj_qkv.weight: rows are not those of the heads (expected 2 x 4 "
         "key heads of 8 and 6 value heads of 4, got 56 rows)"},
        {{{"linear_num_key_heads", "4"}, {"linear_key_head_dim", "4"}},
         "t/config.json: linear_num_value_heads is no multiple of linear_num_key_heads (got 6 and 4)"},
        {{{"linear_num_value_heads", "12"}},
         "t/config.json: linear_num_value_heads does not match the tensors (expected 6 from "
         "model.layers.0.linear_attn.in_proj_a.weight, got 12)"},
        {{{"linear_value_head_dim", "8"}},
         "t/config.json: linear_value_head_dim does not match the tensors..."},
        {{{"linear_conv_kernel_dim", "3"}},
         "t/config.json: linear_conv_kernel_dim does not match the tensors..."},
        {{{"attn_output_gate", "true"}, {"mtp_num_hidden_layers", "1"}, {"mamba_ssm_dtype", "\"float32\""}},
         NULL},
        {{{"attn_output_gate", "false"}},
         "t/config.json: attn_output_gate changes the forward pass and is not implemented (expected true, "
         "got false)"},
        {{{"attention_bias", "true"}}, "t/config.json: attention_bias changes the forward pass..."},
        {{{"hidden_act", "\"gelu\""}}, "t/config.json: hidden_act changes the forward pass..."},
        {{{"partial_rotary_factor", "0.5"}},
         "t/config.json: partial_rotary_factor disagrees with rope_parameters (0.5 against 0.25)"},
        {{{"rope_parameters",
           "{\"rope_type\": \"default\", \"rope_theta\": 10000, \"partial_rotary_factor\": 0.3}"}},
         "t/config.json: partial_rotary_factor does not give pairs (expected an even part of 16, got 4.8)"},
        {{{"rope_parameters", "{\"rope_type\": \"yarn\", \"rope_theta\": 10000, \"factor\": 4}"}},
         "t/config.json: rope_parameters.rope_type is not usable..."},
        {{{"rope_parameters", "{\"rope_type\": \"default\", \"rope_theta\": 10000}"}},
         "t/config.json: partial_rotary_factor is missing (expected it in rope_parameters or at top level)"},
        {{{"rope_parameters", "{\"rope_type\": \"default\", \"rope_theta\": 10000}"},
          {"partial_rotary_factor", "0.25"}},
         NULL},
        {{{"rope_parameters", NULL}, {"rope_theta", "10000"}},
         "t/config.json: partial_rotary_factor is missing..."},
        {{{"rope_parameters", "{\"rope_type\": \"default\"}"}}, "t/config.json: rope_theta is missing..."},
        {{{"num_experts", "8"}}, "t/config.json: num_experts is not a key that is known..."},
        {{{"linear_odd", "1"}}, "t/config.json: linear_odd is not a key that is known (its value: 1)"},
    };
    struct spec s = delta_spec("model.", false);
    run_family(parts, &s, c, sizeof c / sizeof c[0]);
}

static void test_moe_config(void **state)
{
    (void)state;
    static const struct family_case c[] = {
        {{{NULL, NULL}}, NULL},
        {{{"norm_topk_prob", "true"}, {"router_aux_loss_coef", "0.1"}, {"intermediate_size", "7"}}, NULL},
        {{{"norm_topk_prob", "false"}}, "t/config.json: norm_topk_prob changes the forward pass..."},
        {{{"mlp_only_layers", "[0]"}}, "t/config.json: mlp_only_layers changes the forward pass..."},
        {{{"num_experts_per_tok", "4"}}, "t/config.json: num_experts_per_tok is not usable..."},
        {{{"shared_expert_intermediate_size", "24"}},
         "t/config.json: shared_expert_intermediate_size does not match the tensors (expected 20 from "
         "model.layers.0.mlp.shared_expert.gate_proj.weight, got 24)"},
    };
    struct spec s = delta_spec("model.", true);
    run_family(moe_parts, &s, c, sizeof c / sizeof c[0]);
}

static void test_shapes(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int dim, size;
        const char *msg;
    } c[] = {
        {"model.layers.1.self_attn.q_proj.weight", 0, 32,
         "t: model.layers.1.self_attn.q_proj.weight: rows are not queries and their gates (expected 2 x 32 "
         "from model.layers.1.self_attn.o_proj.weight, got 32)"},
        {"model.layers.0.linear_attn.norm.weight", 0, 8,
         "t: model.layers.2.linear_attn.norm.weight has the wrong shape: dimension 0 (expected 8 as in "
         "model.layers.0.linear_attn.norm.weight, got 4)"},
        {"model.layers.0.linear_attn.conv1d.weight", 1, 2,
         "t: model.layers.0.linear_attn.conv1d.weight has the wrong shape (expected 2 dimensions, got 3)"},
        {"model.layers.2.linear_attn.dt_bias", 0, 5,
         "t: model.layers.2.linear_attn.dt_bias has the wrong shape..."},
        {"model.layers.0.linear_attn.in_proj_z.weight", 0, 20,
         "t: model.layers.0.linear_attn.out_proj.weight has the wrong shape..."},
    };
    for (size_t i = 0; i < sizeof c / sizeof c[0]; i++) {
        struct spec s = delta_spec("model.", false);
        struct convert o = options("t");
        find(&s, c[i].name)->shape[c[i].dim] = c[i].size;
        write_weights("t", &s);
        family_config("t", parts, NULL);
        convert_bad(&o, ERR_FORMAT, c[i].msg);
    }
}

/* ---- descriptions ---- */

static void test_desc(void **state)
{
    (void)state;
    static const struct desc_case c[] = {
        {NULL, NULL, 0, NULL},
        {"qwen35.rope.dimension_sections", NULL, 0, NULL},
        {"qwen35.attention.key_length", NULL, 0, NULL},
        {"qwen35.full_attention_interval", NULL, 0, "no layer has attention"}, /* of 3: every fourth */
        {NULL, "qwen35.full_attention_interval", 1, "tensor 'blk.0.attn_q_norm.weight': is missing"},
        {"qwen35.rope.dimension_count", NULL, 0, "key 'qwen35.rope.dimension_count': is missing"},
        {NULL, "qwen35.rope.dimension_count", 5, "is odd (expected pairs, got 5)"},
        {NULL, "qwen35.rope.dimension_count", 32, "out of range (expected 2 to 16, got 32)"},
        {"qwen35.ssm.group_count", NULL, 0, "key 'qwen35.ssm.group_count': is missing"},
        {NULL, "qwen35.ssm.group_count", 4, "is no multiple of ssm.group_count (got 6 and 4)"},
        {NULL, "qwen35.ssm.group_count", 3, "tensor 'blk.0.attn_qkv.weight': has the wrong shape"},
        {NULL, "qwen35.ssm.state_size", 16, "tensor 'blk.0.attn_qkv.weight': has the wrong shape"},
        {NULL, "qwen35.ssm.time_step_rank", 5, "is no multiple of ssm.time_step_rank (got 24 and 5)"},
        {NULL, "qwen35.ssm.time_step_rank", 12,
         "disagrees with ssm.inner_size / ssm.time_step_rank (expected [2], got [4])"},
        {NULL, "qwen35.ssm.inner_size", 48, "disagrees with ssm.inner_size"},
        {NULL, "qwen35.ssm.conv_kernel", 3, "tensor 'blk.0.ssm_conv1d.weight': has the wrong shape"},
        {NULL, "qwen35.attention.head_count", 4, "disagrees with blk.1.attn_q.weight (expected 2, got 4)"},
        {NULL, "qwen35.expert_count", 4, "key 'qwen35.expert_count': is not supported"},
        {NULL, "qwen35.nextn_predict_layers", 3, "out of range (expected 0 to 2, got 3)"},
        {"blk.2.ssm_a", NULL, 0, "tensor 'blk.2.ssm_a': is missing"},
        {"blk.0.ssm_dt.bias", NULL, 0, "tensor 'blk.0.ssm_dt.bias': is missing"},
        {"blk.1.attn_v.weight", NULL, 0, "tensor 'blk.1.attn_v.weight': is missing"},
        {"blk.1.post_attention_norm.weight", NULL, 0,
         "tensor 'blk.1.post_attention_norm.weight': is missing"},
    };
    struct spec s = delta_spec("model.", false);
    write_weights("t", &s);
    family_config("t", parts, NULL);
    struct convert o = options("t");
    convert_ok(&o);
    run_descs(c, sizeof c / sizeof c[0]);
}

static void test_moe_desc(void **state)
{
    (void)state;
    static const struct desc_case c[] = {
        {NULL, NULL, 0, NULL},
        {"qwen35moe.expert_shared_feed_forward_length", NULL, 0, NULL},
        {NULL, "qwen35moe.expert_shared_feed_forward_length", 24,
         "disagrees with blk.0.ffn_gate_shexp.weight (expected 20, got 24)"},
        {"blk.1.ffn_gate_inp_shexp.weight", NULL, 0, "tensor 'blk.1.ffn_gate_inp_shexp.weight': is missing"},
        {"blk.0.ffn_gate_shexp.weight", NULL, 0, "tensor 'blk.0.ffn_gate_shexp.weight': is missing"},
        {"qwen35moe.expert_used_count", NULL, 0, "key 'qwen35moe.expert_used_count': is missing"},
    };
    struct spec s = delta_spec("model.", true);
    write_weights("t", &s);
    family_config("t", moe_parts, NULL);
    struct convert o = options("t");
    convert_ok(&o);
    run_descs(c, sizeof c / sizeof c[0]);
}

static const struct {
    struct pair change[2];
    int d_k, d_v, taps;
    const char *msg;
} limits[] = {
    {{{"linear_key_head_dim", "256"}}, 256, D_V, TAPS_OF_CONV, NULL},
    {{{"linear_conv_kernel_dim", "16"}}, D_K, D_V, 16, NULL},
    {{{"linear_key_head_dim", "257"}},
     257,
     D_V,
     TAPS_OF_CONV,
     "out.gguf: key 'qwen35.ssm.state_size': keys of this length are not supported (expected at most "
     "256, got 257)"},
    {{{"linear_value_head_dim", "260"}},
     D_K,
     260,
     TAPS_OF_CONV,
     "out.gguf: key 'qwen35.ssm.inner_size': values (of ssm.time_step_rank heads) of this length are not "
     "supported "
     "(expected at most 256, got 260)"},
    {{{"linear_conv_kernel_dim", "17"}},
     D_K,
     D_V,
     17,
     "out.gguf: key 'qwen35.ssm.conv_kernel': convolutions of this length are not supported (expected at "
     "most 16, "
     "got 17)"},
};

/* Sizes that no backend has code for are refused when the model is loaded, by key. */
static void test_limits(void **state)
{
    (void)state;
    struct kn_open open = {.device = "cpu"};
    struct kn_backend *be;
    char msg[128];
    assert_int_equal(kn_backend_open(&be, &open, msg, sizeof msg), 0);
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        struct spec s = delta_spec("model.", false);
        struct err e = {0};
        struct model *m = NULL;
        const int64_t value = N_V * limits[i].d_v, width = 2 * N_K * limits[i].d_k + value;
        for (int layer = 0; layer < BLOCKS; layer += 2) {
            const struct {
                const char *name;
                int dim;
                int64_t size;
            } t[] = {{"in_proj_qkv.weight", 0, width}, {"in_proj_z.weight", 0, value},
                     {"conv1d.weight", 0, width},      {"conv1d.weight", 2, limits[i].taps},
                     {"out_proj.weight", 1, value},    {"norm.weight", 0, limits[i].d_v}};
            for (size_t j = 0; j < sizeof t / sizeof t[0]; j++) {
                char name[80];
                snprintf(name, sizeof name, "model.layers.%d.linear_attn.%s", layer, t[j].name);
                find(&s, name)->shape[t[j].dim] = t[j].size;
            }
        }
        write_weights("t", &s);
        family_config("t", parts, limits[i].change);
        struct convert o = options("t");
        convert_ok(&o);
        const int rc = model_load(&m, "out.gguf", be, NULL, NULL, NULL, &e);
        if (rc != (limits[i].msg ? -1 : 0) || (limits[i].msg && strcmp(e.msg, limits[i].msg)))
            fail_msg("case %zu: \"%s\"", i, e.msg);
        if (limits[i].msg) assert_int_equal(e.code, ERR_FORMAT);
        model_free(m);
    }
    kn_backend_close(be);
}

/* ---- as another converter leaves it ---- */

static void no_finding(void *ctx, const struct check_finding *f)
{
    (void)ctx;
    if (f->level == CHECK_BAD) fail_msg("%s: %s", f->subject, f->text);
}

static void no_difference(void *ctx, const struct diff_tensor *t)
{
    (void)ctx;
    if (!t->same_bits) fail_msg("%s: [%s] and [%s]", t->name, t->shape_a, t->shape_b);
}

static void read_file(const char *path, char *data, size_t size, size_t *n)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    *n = fread(data, 1, size, f);
    assert_true(*n > 0 && *n < size);
    fclose(f);
}

/* llama.cpp's converter keeps the shared expert's gate as the row of a matrix, [32, 1] of 32 values: the same
 * model everywhere. part: the tensors that have such a dimension too many ("blk.": all that can). */
static void test_trailing(void **state)
{
    (void)state;
    enum { ROOM = 1 << 20 };
    static const char *const parts_of[] = {"ffn_gate_inp_shexp", "blk."};
    static char a[ROOM], b[ROOM];
    struct spec s = delta_spec("model.", true);
    struct err e = {0};
    struct kn_backend *be = NULL;
    size_t na, nb;
    const struct kn_open open = {.device = "cpu", .threads = 1};
    char msg[256];
    assert_int_equal(kn_backend_open(&be, &open, msg, sizeof msg), 0);
    write_weights("t", &s);
    family_config("t", moe_parts, NULL);
    for (int i = 0; i < 2; i++) {
        struct convert o = options("t");
        struct diff_total total;
        struct model *m = NULL;
        convert_ok(&o);
        rename("out.gguf", "ours.gguf");
        assert_int_equal(foreign_trailing("ours.gguf", "theirs.gguf", parts_of[i]), 0);
        read_file("ours.gguf", a, sizeof a, &na);
        read_file("theirs.gguf", b, sizeof b, &nb);
        assert_true(na != nb || memcmp(a, b, na)); /* the dimensions are there */
        if (model_load(&m, "theirs.gguf", be, NULL, NULL, NULL, &e)) fail_msg("load: %s", e.msg);
        model_free(m);
        assert_int_equal(check_gguf("theirs.gguf", NULL, true, 1, no_finding, NULL, NULL, &e), 0);
        for (int side = 0; side < 3; side++) {
            const char *other = side == 2 ? "t" : side ? "ours.gguf" : "theirs.gguf";
            assert_int_equal(diff_files(other, side ? "theirs.gguf" : "ours.gguf", 1,
                                        &(struct diff_fns){.tensor = no_difference}, NULL, &total, &e),
                             0);
            assert_int_equal(total.compared, total.tensors);
        }
        o.input = "theirs.gguf";
        convert_ok(&o);
        read_file("out.gguf", b, sizeof b, &nb);
        assert_int_equal(na, nb);
        assert_memory_equal(a, b, na);
        /* a matrix of one row is a vector to the quantiser as well */
        o.type = QUANT_Q8_0;
        o.type_given = true;
        convert_ok(&o);
        struct gguf *g = open_out();
        assert_int_equal(need(g, "blk.0.ffn_gate_inp_shexp.weight")->type, KN_F32);
        assert_int_equal(need(g, "blk.0.ffn_gate_shexp.weight")->type, KN_Q8_0);
        gguf_close(g);
    }
    kn_backend_close(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_multimodal),
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_attention_alone),
        cmocka_unit_test(test_config),
        cmocka_unit_test(test_moe_config),
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_desc),
        cmocka_unit_test(test_moe_desc),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_trailing),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
