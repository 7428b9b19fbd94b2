/* test_gemma4.c - Gemma 4: checkpoints to files, what files must say, and sessions over rings of two shapes.
 *
 * Numbers against the reference implementation are test/reference's; here bits are compared with bits. */
#include "family_fixture.h"

#include "recorder.h"
#include "../../../common/run/engine.h"
#include "../streams.h"

enum { HEAD_FULL = 32, KV_FULL = 2, EXPERTS = 3, FFX = 24 };

static const struct pair base_gemma[] = {
    {"architectures", "[\"Gemma4ForCausalLM\"]"},
    {"attention_bias", "false"},
    {"attention_k_eq_v", "true"},
    {"bos_token_id", "2"},
    {"enable_moe_block", "false"},
    {"eos_token_id", "1"},
    {"final_logit_softcapping", "30.0"},
    {"global_head_dim", "32"},
    {"head_dim", "16"},
    {"hidden_activation", "\"gelu_pytorch_tanh\""},
    {"hidden_size", "32"},
    {"hidden_size_per_layer_input", "0"},
    {"intermediate_size", "64"},
    {"layer_types", "[\"sliding_attention\", \"full_attention\"]"},
    {"max_position_embeddings", "128"},
    {"model_type", "\"gemma4_text\""},
    {"num_attention_heads", "2"},
    {"num_global_key_value_heads", "2"},
    {"num_hidden_layers", "2"},
    {"num_key_value_heads", "1"},
    {"num_kv_shared_layers", "0"},
    {"rms_norm_eps", "1e-06"},
    {"rope_parameters",
     "{\"full_attention\": {\"rope_theta\": 1e6, \"rope_type\": \"proportional\", \"partial_rotary_factor\": "
     "0.25}, \"sliding_attention\": {\"rope_theta\": 1e4, \"rope_type\": \"default\"}}"},
    {"sliding_window", "24"},
    {"tie_word_embeddings", "true"},
    {"use_double_wide_mlp", "false"},
    {"vocab_size", "40"},
    {NULL, NULL},
};
static const struct pair with_experts[] = {
    {"enable_moe_block", "true"},    {"num_experts", "3"}, {"top_k_experts", "2"},
    {"moe_intermediate_size", "24"}, {NULL, NULL},
};

/* ---- checkpoints ---- */

static void add_gemma_layer(struct spec *s, const char *at, bool full, bool moe)
{
    static const char *const norms[] = {"input_layernorm",
                                        "post_attention_layernorm",
                                        "pre_feedforward_layernorm",
                                        "post_feedforward_layernorm",
                                        "post_feedforward_layernorm_1",
                                        "pre_feedforward_layernorm_2",
                                        "post_feedforward_layernorm_2"};
    const int dim = full ? HEAD_FULL : HEAD, kv = full ? KV_FULL : KV;
    for (int i = 0; i < (moe ? 7 : 4); i++) add(s, EMBD, 0, "%s.%s.weight", at, norms[i]);
    add(s, HEADS * dim, EMBD, "%s.self_attn.q_proj.weight", at);
    add(s, kv * dim, EMBD, "%s.self_attn.k_proj.weight", at);
    if (!full) add(s, kv * dim, EMBD, "%s.self_attn.v_proj.weight", at);
    add(s, EMBD, HEADS * dim, "%s.self_attn.o_proj.weight", at);
    add(s, dim, 0, "%s.self_attn.q_norm.weight", at);
    add(s, dim, 0, "%s.self_attn.k_norm.weight", at);
    add(s, FF, EMBD, "%s.mlp.gate_proj.weight", at);
    add(s, FF, EMBD, "%s.mlp.up_proj.weight", at);
    add(s, EMBD, FF, "%s.mlp.down_proj.weight", at);
    add(s, 1, 0, "%s.layer_scalar", at);
    if (!moe) return;
    add(s, EXPERTS, EMBD, "%s.router.proj.weight", at);
    add(s, EMBD, 0, "%s.router.scale", at);
    add(s, EXPERTS, 0, "%s.router.per_expert_scale", at);
    add(s, EXPERTS, 2 * FFX, "%s.experts.gate_up_proj", at);
    add_dim(s, EMBD);
    add(s, EXPERTS, EMBD, "%s.experts.down_proj", at);
    add_dim(s, FFX);
}

static struct spec gemma_spec(const char *prefix, bool moe)
{
    struct spec s = {.n = 0};
    char at[64];
    add(&s, VOCAB, EMBD, "%sembed_tokens.weight", prefix);
    for (int i = 0; i < LAYERS; i++) {
        snprintf(at, sizeof at, "%slayers.%d", prefix, i);
        add_gemma_layer(&s, at, i == LAYERS - 1, moe);
    }
    add(&s, EMBD, 0, "%snorm.weight", prefix);
    return s;
}

/* Tensor name holds the values of the checkpoint's tensor hf, element by element. */
static void holds(const struct gguf *g, const char *name, const char *hf)
{
    const struct gguf_tensor *t = need(g, name);
    for (int64_t i = 0; i < t->ne[0] * t->ne[1] * t->ne[2]; i++) {
        float v = kn_bf16_to_f32(value_bits(hf, (uint64_t)i)), got = 0;
        assert_int_equal(kn_decode_row(t->type, t->data + (size_t)i * kn_row_bytes(t->type, 1), &got, 1), 0);
        assert_memory_equal(&v, &got, sizeof v);
    }
}

static void test_tensors(void **state)
{
    (void)state;
    static const char *const same[][2] = {
        {"token_embd.weight", "model.embed_tokens.weight"},
        {"blk.0.attn_q.weight", "model.layers.0.self_attn.q_proj.weight"},
        {"blk.0.attn_v.weight", "model.layers.0.self_attn.v_proj.weight"},
        {"blk.1.attn_q.weight", "model.layers.1.self_attn.q_proj.weight"},
        {"blk.1.attn_k.weight", "model.layers.1.self_attn.k_proj.weight"},
        {"blk.1.attn_q_norm.weight", "model.layers.1.self_attn.q_norm.weight"},
        {"blk.1.post_attention_norm.weight", "model.layers.1.post_attention_layernorm.weight"},
        {"blk.1.ffn_norm.weight", "model.layers.1.pre_feedforward_layernorm.weight"},
        {"blk.1.post_ffw_norm.weight", "model.layers.1.post_feedforward_layernorm.weight"},
        {"blk.1.post_ffw_norm_1.weight", "model.layers.1.post_feedforward_layernorm_1.weight"},
        {"blk.1.post_ffw_norm_2.weight", "model.layers.1.post_feedforward_layernorm_2.weight"},
        {"blk.1.pre_ffw_norm_2.weight", "model.layers.1.pre_feedforward_layernorm_2.weight"},
        {"blk.1.ffn_gate_inp.weight", "model.layers.1.router.proj.weight"},
        {"blk.1.ffn_gate_inp.scale", "model.layers.1.router.scale"},
        {"blk.1.ffn_down_exps.scale", "model.layers.1.router.per_expert_scale"},
        {"blk.1.ffn_gate_up_exps.weight", "model.layers.1.experts.gate_up_proj"},
        {"blk.1.ffn_down_exps.weight", "model.layers.1.experts.down_proj"},
        {"blk.1.layer_output_scale.weight", "model.layers.1.layer_scalar"},
    };
    static const int64_t kv[] = {KV, KV_FULL}, sliding[] = {1, 0};
    struct spec s = gemma_spec("model.", true);
    struct convert o = options("t");
    write_weights("t", &s);
    write_config("t", base_gemma, with_experts);
    convert_ok(&o);
    struct gguf *g = open_out();
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) holds(g, same[i][0], same[i][1]);
    assert_null(gguf_tensor(g, "blk.1.attn_v.weight"));
    const struct gguf_tensor *freqs = need(g, "rope_freqs.weight");
    assert_int_equal(freqs->ne[0], HEAD_FULL / 2);
    for (int i = 0; i < HEAD_FULL / 2; i++) { /* a quarter of the pairs turns */
        float x;
        memcpy(&x, freqs->data + 4 * i, 4);
        assert_true(x == (i < HEAD_FULL / 8 ? 1.0f : 1e30f));
    }
    array_is(g, "gemma4.attention.head_count_kv", GGUF_I32, kv, 2);
    array_is(g, "gemma4.attention.sliding_window_pattern", GGUF_BOOL, sliding, 2);
    assert_int_equal(u32(g, "gemma4.attention.key_length"), HEAD_FULL);
    assert_int_equal(u32(g, "gemma4.attention.key_length_swa"), HEAD);
    assert_int_equal(u32(g, "gemma4.attention.sliding_window"), 24);
    assert_int_equal(u32(g, "gemma4.expert_used_count"), 2);
    assert_true(f32(g, "gemma4.rope.freq_base") == 1e6f && f32(g, "gemma4.rope.freq_base_swa") == 1e4f);
    assert_true(f32(g, "gemma4.final_logit_softcapping") == 30);
    gguf_close(g);
}

/* The text model of a multimodal checkpoint is the same model; its towers are listed, and left out. */
static void test_multimodal(void **state)
{
    (void)state;
    struct convert o = options("t");
    struct err e = {0};
    struct gguf *a, *b;
    struct spec s = gemma_spec("model.language_model.", false);
    char text[4096] = "{";
    size_t n = 1;
    for (const struct pair *p = base_gemma + 1; p->key; p++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s\"%s\": %s", n > 1 ? ", " : "", p->key, p->value);
    snprintf(text + n, sizeof text - n, "}");
    const struct pair top[] = {{"architectures", "[\"Gemma4ForConditionalGeneration\"]"},
                               {"model_type", "\"gemma4\""},
                               {"text_config", text},
                               {"vision_config", "{\"hidden_size\": 7, \"deeper\": {\"still\": 1}}"},
                               {"audio_config", "null"},
                               {"image_token_id", "5"},
                               {"vision_soft_tokens_per_image", "280"},
                               {NULL, NULL}};
    add(&s, 4, 4, "model.vision_tower.encoder.layers.0.mlp.gate_proj.linear.weight");
    add(&s, 4, 4, "model.vision_tower.patch_embedder.input_proj.weight");
    add(&s, 4, 4, "model.embed_vision.embedding_projection.weight");
    write_weights("t", &s);
    write_config("t", top, NULL);
    convert_ok(&o);
    assert_non_null(strstr(said, "left out: 2 tensors of the vision tower"));
    assert_non_null(strstr(said, "left out: 1 tensors of the vision embedder"));
    assert_int_equal(rename("out.gguf", "nested.gguf"), 0);
    write_config("t", base_gemma, NULL);
    s.n -= 3; /* values follow names, so those stay */
    write_weights("t", &s);
    convert_ok(&o);
    assert_int_equal(gguf_open(&a, "nested.gguf", &e), 0);
    b = open_out();
    assert_int_equal(a->n_tensors, b->n_tensors);
    assert_int_equal(a->n_kv, b->n_kv);
    for (uint64_t i = 0; i < a->n_tensors; i++) {
        assert_string_equal(a->tensor[i].name, b->tensor[i].name);
        assert_memory_equal(a->tensor[i].data, b->tensor[i].data, a->tensor[i].bytes);
    }
    gguf_close(a);
    gguf_close(b);
}

#define PER_LAYER(v)                                                                                         \
    {"per_layer_config", v}, {"global_head_dim", NULL},                                                      \
    {                                                                                                        \
        "num_global_key_value_heads", NULL                                                                   \
    }
static const struct {
    struct pair change[4];
    const char *msg; /* NULL: converts */
} configs[] = {
    {{{NULL, NULL}}, NULL},
    {{PER_LAYER("{\"1\": {\"head_dim\": 32, \"num_key_value_heads\": 2}}")}, NULL},
    {{PER_LAYER("{\"01\": {\"head_dim\": 32, \"num_key_value_heads\": 2}}")}, NULL},
    {{PER_LAYER("{\"1\": {\"head_dim\": 32, \"num_key_value_heads\": 2}, \"01\": {\"head_dim\": 16}}")},
     "t/config.json: per_layer_config.1.head_dim and per_layer_config.01.head_dim disagree..."},
    {{PER_LAYER("{\"1\": {\"head_dim\": 16, \"num_key_value_heads\": 2}}")},
     "t/config.json: the head size of full layers does not match the tensors (expected 32 from "
     "model.layers.1.self_attn.q_norm.weight, got 16)"},
    {{PER_LAYER("{\"1\": {\"head_dim\": 32, \"num_key_value_heads\": 2, \"sliding_window\": 3}}")},
     "t/config.json: per_layer_config.1.sliding_window is not a key that is known (its value: 3)"},
    {{{"num_global_key_value_heads", "1"}},
     "t/config.json: the number of key heads of full layers does not match the tensors (expected 2 from "
     "model.layers.1.self_attn.k_proj.weight, got 1)"},
    {{{"num_attention_heads", "4"}}, "t/config.json: num_attention_heads does not match the tensors..."},
    {{{"hidden_size_per_layer_input", "256"}},
     "t/config.json: hidden_size_per_layer_input: per-layer embeddings (as in E2B and E4B) are not "
     "supported (expected 0, got 256)"},
    {{{"num_kv_shared_layers", "1"}},
     "t/config.json: num_kv_shared_layers: layers that share another layer's keys and values (as in E2B "
     "and E4B) are not supported (expected 0, got 1)"},
    {{{"use_double_wide_mlp", "true"}}, "t/config.json: use_double_wide_mlp: double-wide feed-forwards..."},
    {{{"attention_k_eq_v", "false"}}, "t: tensor layers.1.self_attn.v_proj.weight is missing"},
    {{{"attention_k_eq_v", NULL}}, "t/config.json: attention_k_eq_v is missing..."},
    {{{"enable_moe_block", "true"}}, "t: tensor layers.0.post_feedforward_layernorm_1.weight is missing"},
    {{{"layer_types", NULL}}, "t/config.json: layer_types is missing (expected 2 layers, got 0)"},
    {{{"layer_types", "[\"sliding_attention\", \"linear_attention\"]"}},
     "t/config.json: layer_types[1] is not known (expected \"sliding_attention\" or \"full_attention\", "
     "got \"linear_attention\")"},
    {{{"layer_types", "[\"full_attention\", \"sliding_attention\"]"}},
     "t: tensor layers.1.self_attn.v_proj.weight is missing"},
    {{{"sliding_window", NULL}}, "t/config.json: sliding_window is missing"},
    {{{"hidden_activation", NULL}},
     "t/config.json: hidden_activation is missing (expected \"gelu_pytorch_tanh\")"},
    {{{"hidden_activation", "\"gelu\""}},
     "t/config.json: hidden_activation changes the forward pass and is not implemented..."},
    {{{"final_logit_softcapping", "-1"}},
     "t/config.json: final_logit_softcapping is out of range (expected above 0, got -1)"},
    {{{"final_logit_softcapping", "null"}}, NULL},
    {{{"use_bidirectional_attention", "\"vision\""}}, NULL},
    {{{"use_bidirectional_attention", "\"all\""}},
     "t/config.json: use_bidirectional_attention changes the forward pass..."},
    {{{"rope_parameters", "{\"full_attention\": {\"rope_theta\": 1e6}}"}},
     "t/config.json: rope_parameters.sliding_attention.rope_theta is missing"},
    {{{"rope_parameters", "{\"full_attention\": {\"rope_theta\": 1e6, \"partial_rotary_factor\": 0.25}}"}},
     "t/config.json: rope_parameters.full_attention: a partial rotation of type default is not "
     "implemented (expected \"proportional\")"},
};

static void test_config(void **state)
{
    (void)state;
    struct spec s = gemma_spec("model.", false);
    write_weights("t", &s);
    for (size_t i = 0; i < sizeof configs / sizeof configs[0]; i++) {
        struct convert o = options("t");
        write_config("t", base_gemma, configs[i].change);
        if (configs[i].msg)
            convert_bad(&o, ERR_FORMAT, configs[i].msg);
        else
            convert_ok(&o);
    }
}

/* ---- descriptions ---- */

static void test_desc(void **state)
{
    (void)state;
    static const struct desc_case c[] = {
        {NULL, NULL, 0, NULL},
        /* what other converters leave out, or write otherwise */
        {"gemma4.attention.shared_kv_layers", NULL, 0, NULL},
        {"gemma4.vocab_size", NULL, 0, NULL},
        {"gemma4.rope.dimension_count", NULL, 0, NULL},
        {"gemma4.final_logit_softcapping", NULL, 0, NULL},
        {"gemma4.rope.freq_base_swa", NULL, 0, "key 'gemma4.rope.freq_base_swa': is missing"},
        {"gemma4.rope.freq_base", NULL, 0, "key 'gemma4.rope.freq_base': is missing"},
        {"gemma4.attention.sliding_window", NULL, 0, "key 'gemma4.attention.sliding_window': is missing"},
        {"gemma4.attention.sliding_window_pattern", NULL, 0, "sliding_window_pattern': is missing"},
        {"gemma4.attention.head_count_kv", NULL, 0, "key 'gemma4.attention.head_count_kv': is missing"},
        {NULL, "gemma4.attention.head_count_kv", 1,
         "key 'gemma4.attention.head_count_kv': disagrees with blk.1.attn_k.weight (expected 2, got 1)"},
        {NULL, "gemma4.attention.head_count", 3, "disagrees with blk.0.attn_q.weight"},
        {NULL, "gemma4.attention.key_length", 16,
         "disagrees with blk.1.attn_q_norm.weight (expected 32, got 16)"},
        {NULL, "gemma4.attention.value_length_swa", 32,
         "disagrees with blk.0.attn_q_norm.weight (expected 16, got 32)"},
        {NULL, "gemma4.feed_forward_length", 65, "disagrees with blk.0.ffn_gate.weight"},
        {NULL, "gemma4.rope.dimension_count_swa", 8, "dimension_count_swa': disagrees"},
        {NULL, "gemma4.attention.shared_kv_layers", 1,
         "key 'gemma4.attention.shared_kv_layers': layers that share another layer's cache"},
        {NULL, "gemma4.embedding_length_per_layer_input", 256,
         "key 'gemma4.embedding_length_per_layer_input': per-layer embeddings"},
        {NULL, "gemma4.attention.logit_softcapping", 50, "is not supported and could change"},
        {"gemma4.expert_count", NULL, 0, "key 'gemma4.expert_count': is missing"},
        {NULL, "gemma4.expert_used_count", 4, "out of range (expected 1 to 3, got 4)"},
        {"rope_freqs.weight", NULL, 0, "tensor 'rope_freqs.weight': is missing"},
        {"blk.0.attn_v.weight", NULL, 0, "tensor 'blk.0.attn_v.weight': is missing"},
        {"blk.1.layer_output_scale.weight", NULL, 0, "layer_output_scale.weight': is missing"},
        {"blk.1.ffn_gate_inp.scale", NULL, 0, "tensor 'blk.1.ffn_gate_inp.scale': is missing"},
        {"blk.1.ffn_down_exps.scale", NULL, 0, "tensor 'blk.1.ffn_down_exps.scale': is missing"},
        {"blk.0.post_ffw_norm.weight", NULL, 0, "tensor 'blk.0.post_ffw_norm.weight': is missing"},
    };
    struct spec s = gemma_spec("model.", true);
    struct convert o = options("t");
    struct err e = {0};
    struct desc *d;
    write_weights("t", &s);
    write_config("t", base_gemma, with_experts);
    convert_ok(&o);
    run_descs(c, sizeof c / sizeof c[0]);
    struct gguf *g = open_out();
    assert_int_equal(desc_read(&d, g, NULL, &e), 0);
    assert_true(d->embedding_scale == 5.65625f); /* sqrt(32) = 5.657 on bf16's grid of 1/32 */
    assert_true(d->layer[1].value_is_key && !d->layer[0].value_is_key);
    assert_true(d->layer[0].window == 24 && d->layer[1].window == 0);
    assert_true(d->rope[d->layer[0].rope].theta == 1e4f && !d->rope[d->layer[0].rope].has_divisors);
    assert_true(d->rope[d->layer[1].rope].theta == 1e6f && d->rope[d->layer[1].rope].has_divisors);
    assert_true(d->has_softcap && d->softcap == 30);
    desc_free(d);
    gguf_close(g);
}

/* ---- sessions ---- */

enum { WINDOW = 19, VOCAB_RUN = 11, N_RUN = 24, BLOCK = 5 };

static struct kn_backend *be;

static const struct pair target_sizes[] = {
    {"hidden_size", "80"},
    {"head_dim", "48"},
    {"global_head_dim", "80"},
    {"num_attention_heads", "6"},
    {"num_key_value_heads", "3"},
    {"num_global_key_value_heads", "2"},
    {"intermediate_size", "96"},
    {"num_hidden_layers", "3"},
    {"layer_types", "[\"sliding_attention\", \"full_attention\", \"sliding_attention\"]"},
    {"sliding_window", "19"},
    {"final_logit_softcapping", "2.5"},
    {"vocab_size", "11"},
    {"num_experts", "5"},
    {"top_k_experts", "2"},
    {"moe_intermediate_size", "48"},
    {NULL, NULL},
};
static const struct pair drafter_sizes[] = {
    {"hidden_size", "80"},
    {"block_size", "5"},
    {"dflash_config", "{\"mask_token_id\": 10, \"target_layer_ids\": [0, 2]}"},
    {"vocab_size", "11"},
    {"sliding_window", "12"},
    {NULL, NULL},
};

/* A model of random weights, which depend on the seed and the tensors' names alone: base with sizes over it,
 * and one key other than they say (key NULL: none). */
static void make_model(const char *path, const struct pair *base, const struct pair *sizes, const char *key,
                       const char *value)
{
    struct pair all[32];
    int n = 0;
    struct convert o = options("m");
    for (const struct pair *p = sizes; p->key; p++)
        if (!key || strcmp(p->key, key)) all[n++] = *p;
    all[n++] = (struct pair){key, value};
    all[n] = (struct pair){NULL, NULL};
    o.random = true;
    o.seed = base == base_gemma ? 3 : 4;
    o.output = path;
    write_config("m", base, all);
    convert_ok(&o);
}

static void make_models(void)
{
    make_model("target-0.gguf", base_gemma, target_sizes, NULL, NULL);
    make_model("target-1.gguf", base_gemma, target_sizes, "enable_moe_block", "true");
    make_model("drafter.gguf", base_drafter, drafter_sizes, NULL, NULL);
    make_prompt(VOCAB_RUN - 1);
}

static struct model *load(const char *path)
{
    struct err e = {0};
    struct model *m;
    if (model_load(&m, path, be, NULL, NULL, NULL, &e)) fail_msg("%s", e.msg);
    return m;
}

static struct session *start(struct model *t, struct model *d, int n, int chunk, uint32_t kv)
{
    struct err e = {0};
    struct session *s;
    const struct session_options o = {.ctx = n + N_RUN + BLOCK, .chunk = chunk, .kv = {kv, kv}};
    must(session_new(&s, t, d, &o, &e), &e);
    return s;
}

struct run_logits {
    struct run r;
    float last[VOCAB_RUN]; /* logits of the prompt's last token */
    float end[VOCAB_RUN];  /* and of the last one written */
};

static void through_state(struct session **s, struct model *t, struct model *d, int n, int chunk)
{
    struct err e = {0};
    struct state *st;
    struct state_info info;
    save(*s, "state");
    session_free(*s);
    must(state_open(&st, "state", &info, &e), &e);
    *s = start(t, d, n, chunk, KN_F16);
    must(state_restore(st, *s, &e), &e);
    state_close(st);
}

static void run(struct model *t, struct model *d, int n, int chunk, bool state, struct run_logits *r)
{
    struct err e = {0};
    struct session *s = start(t, d, n, chunk, KN_F16);
    const struct spec_options o = {.n = N_RUN,
                                   .sampler = {.temp = 0.9f, .top_p = 1, .repeat_penalty = 1, .seed = 5},
                                   .tokens = take_tokens,
                                   .proposals = take_proposals,
                                   .ctx = r};
    memset(r, 0, sizeof *r);
    must(session_prefill(s, prompt, n, NULL, NULL, &e), &e);
    must(session_logits(s, 0, r->last, &e), &e);
    if (state) through_state(&s, t, d, n, chunk);
    must(spec_generate(s, &o, &r->r.st, &e), &e);
    assert_int_equal(r->r.n, N_RUN);
    must(session_forward(s, &r->r.id[N_RUN - 1], 1, &e), &e);
    must(session_logits(s, 0, r->end, &e), &e);
    session_free(s);
}

/* Prompts that end at the edges of the window and of the rings (256 positions with chunks of 64, 512 with
 * chunks of 300, all of them with chunks of 1000), and go round three times: the same bits in all of them,
 * drafted or not, recorded, and from a state. */
static void test_rings(void **state)
{
    static const int length[] = {1, WINDOW - 1, WINDOW, WINDOW + 1, 255, 256, 257, 768};
    static struct run_logits want, r;
    (void)state;
    for (int moe = 0; moe < 2; moe++) {
        struct model *t = load(moe ? "target-1.gguf" : "target-0.gguf"), *d = load("drafter.gguf");
        for (size_t i = 0; i < sizeof length / sizeof length[0]; i++) {
            static struct run_logits traced;
            const int n = length[i];
            run(t, NULL, n, 1000, false, &want);
            run(t, d, n, 1000, false, &traced);
            same_ids(&want.r, &traced.r);
            for (int way = 0; way < 5; way++) {
                static const int chunk[] = {64, 300, 7, 64, 64};
                if (way == 4) recorder_on(be);
                run(t, d, n, chunk[way], way == 3, &r);
                if (way == 4) recorder_off(be);
                assert_memory_equal(want.last, r.last, sizeof want.last);
                same_ids(&want.r, &r.r);
                assert_memory_equal(want.end, r.end, sizeof want.end);
                same_trace(&traced.r, &r.r);
            }
        }
        model_free(d);
        model_free(t);
    }
}

/* A window of one more shows from the first row on that can see one more key, and not before. */
static void test_window(void **state)
{
    static struct run_logits a, b;
    (void)state;
    make_model("wider.gguf", base_gemma, target_sizes, "sliding_window", "20");
    struct model *t = load("target-0.gguf"), *w = load("wider.gguf");
    for (int n = WINDOW - 1; n < WINDOW + 3; n++) {
        run(t, NULL, n, 64, false, &a);
        run(w, NULL, n, 64, false, &b);
        assert_int_equal(memcmp(a.last, b.last, sizeof a.last) != 0, n > WINDOW);
    }
    model_free(w);
    model_free(t);
}

struct rows {
    float *at;
};

static int take_rows(void *ctx, const float *rows, int32_t n, int32_t first, struct err *e)
{
    struct rows *r = ctx;
    (void)e;
    memcpy(r->at + (size_t)first * VOCAB_RUN, rows, (size_t)n * VOCAB_RUN * sizeof *rows);
    return 0;
}

/* Rows of one pass, of passes of one row and of a forward that is not committed: the same bits, for every
 * cache type. */
static void test_row_invariance(void **state)
{
    enum { N = 70 };
    static float whole[N * VOCAB_RUN], ones[N * VOCAB_RUN];
    static const uint32_t kv[] = {KN_F16, KN_BF16, KN_F32};
    struct err e = {0};
    (void)state;
    for (int moe = 0; moe < 2; moe++)
        for (int k = 0; k < 3; k++) {
            struct model *t = load(moe ? "target-1.gguf" : "target-0.gguf");
            struct session *s = start(t, NULL, N, 512, kv[k]);
            must(session_prefill(s, prompt, N, take_rows, &(struct rows){whole}, &e), &e);
            session_free(s);
            s = start(t, NULL, N, 1, kv[k]);
            must(session_prefill(s, prompt, N, take_rows, &(struct rows){ones}, &e), &e);
            session_free(s);
            assert_memory_equal(whole, ones, sizeof whole);
            s = start(t, NULL, N, 512, kv[k]);
            must(session_prefill(s, prompt, 11, NULL, NULL, &e), &e);
            for (int at = 11, n = 1; at + n <= N; at += n, n = n % 17 + 3) {
                must(session_forward(s, prompt + at, n, &e), &e);
                for (int i = 0; i < n; i++) {
                    float row[VOCAB_RUN];
                    must(session_logits(s, i, row, &e), &e);
                    assert_memory_equal(row, whole + (size_t)(at + i) * VOCAB_RUN, sizeof row);
                }
                must(session_commit(s, n, &e), &e);
            }
            session_free(s);
            model_free(t);
        }
}

static void draft_logits(struct model *t, struct model *d, float *rows)
{
    struct err e = {0};
    int32_t proposals[BLOCK];
    bool usable;
    struct session *s = start(t, d, 40, 64, KN_F32);
    must(session_prefill(s, prompt, 40, NULL, NULL, &e), &e);
    must(session_draft(s, 3, proposals, &usable, true, &e), &e);
    assert_true(usable);
    for (int i = 0; i < BLOCK; i++) must(session_logits(s, i, rows + i * VOCAB_RUN, &e), &e);
    session_free(s);
}

/* A drafter that names neither takes the target's factor on the embedding and its cap; taps are the stream
 * after a layer's output scale. */
static void test_drafter_inherits(void **state)
{
    static float own[BLOCK * VOCAB_RUN], named[BLOCK * VOCAB_RUN], other[BLOCK * VOCAB_RUN],
        bare[BLOCK * VOCAB_RUN];
    (void)state;
    make_model("same.gguf", base_drafter, drafter_sizes, "input_embedding_scale",
               "8.9375"); /* sqrt(80), bf16 */
    make_model("one.gguf", base_drafter, drafter_sizes, "input_embedding_scale", "1");
    make_model("bare.gguf", base_gemma, target_sizes, "final_logit_softcapping", "null");
    assert_non_null(strstr(said, "no final_logit_softcapping: logits are not capped"));
    struct model *t = load("target-0.gguf"), *b = load("bare.gguf"), *d = load("drafter.gguf"),
                 *ds = load("same.gguf"), *d1 = load("one.gguf");
    draft_logits(t, d, own);
    draft_logits(t, ds, named);
    draft_logits(t, d1, other);
    draft_logits(b, d, bare);
    assert_memory_equal(own, named, sizeof own);
    assert_int_not_equal(memcmp(own, other, sizeof own), 0);
    for (int i = 0; i < BLOCK * VOCAB_RUN; i++) /* float32: two roundings of values below 2.5 */
        assert_true(fabs(own[i] - 2.5 * tanh(bare[i] / 2.5)) < 1e-6);
    struct err e = {0};
    float tap[2 * 80], x[80];
    struct session *s = start(t, d, 5, 64, KN_F16);
    must(session_prefill(s, prompt, 4, NULL, NULL, &e), &e);
    must(session_forward(s, prompt + 4, 1, &e), &e);
    assert_int_equal(s->op->download(be, tap, s->by[0].features, sizeof tap), 0);
    assert_int_equal(s->op->download(be, x, s->g->work.x, sizeof x), 0);
    assert_memory_equal(tap + 80, x, sizeof x); /* block 2 is the last one: its output goes to the head */
    session_free(s);
    model_free(d1);
    model_free(ds);
    model_free(d);
    model_free(b);
    model_free(t);
}

/* Layers of one kind alone: nothing of the other kind is in the file. */
static void test_one_kind(void **state)
{
    (void)state;
    static const char *const types[] = {
        "[\"sliding_attention\", \"sliding_attention\", \"sliding_attention\"]",
        "[\"full_attention\", \"full_attention\", \"full_attention\"]"};
    for (int full = 0; full < 2; full++) {
        make_model("out.gguf", base_gemma, target_sizes, "layer_types", types[full]);
        struct gguf *g = open_out();
        struct model *t = load("out.gguf");
        struct session *s = start(t, NULL, 40, 16, KN_F16);
        assert_int_equal(gguf_tensor(g, "rope_freqs.weight") != NULL, full);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(t->d->layer[i].window, full ? 0 : WINDOW);
            assert_int_equal(t->d->layer[i].head_dim, full ? 80 : 48);
        }
        session_free(s);
        model_free(t);
        gguf_close(g);
    }
}

static int begin(void **state)
{
    const struct kn_open open = {.device = "cpu"};
    char msg[128];
    if (setup(state) || kn_backend_open(&be, &open, msg, sizeof msg)) return -1;
    make_models();
    return 0;
}

static int end(void **state)
{
    kn_backend_close(be);
    return teardown(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensors),        cmocka_unit_test(test_multimodal),
        cmocka_unit_test(test_config),         cmocka_unit_test(test_desc),
        cmocka_unit_test(test_rings),          cmocka_unit_test(test_window),
        cmocka_unit_test(test_row_invariance), cmocka_unit_test(test_drafter_inherits),
        cmocka_unit_test(test_one_kind),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
