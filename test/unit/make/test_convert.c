/* test_convert.c - the converter over small checkpoints: values and keys, tensors that do not fit, drafters
 * beside a target and without config.json, random weights, failing allocations. What configs can say wrong:
 * test_convert_config.c. */
#include "convert_fixture.h"

/* ---- values ---- */

static void check_bf16(const struct gguf *g, const char *name, const char *hf, uint64_t n)
{
    const struct gguf_tensor *t = gguf_tensor(g, name);
    assert_non_null(t);
    for (uint64_t i = 0; i < n; i++) {
        uint32_t want = (uint32_t)value_bits(hf, i) << 16, got = 0;
        if (t->type == KN_F32)
            memcpy(&got, t->data + 4 * i, 4);
        else
            memcpy((uint8_t *)&got + 2, t->data + 2 * i, 2);
        assert_int_equal(got, want);
    }
}

static void test_target(void **state)
{
    (void)state;
    struct spec s = target_spec("model.");
    write_config("t", base_target, NULL);
    write_weights("t", &s);
    for (int f32_type = 0; f32_type < 2; f32_type++) {
        struct convert o = options("t");
        o.type_given = f32_type;
        o.type = QUANT_F32;
        convert_ok(&o);
        struct gguf *g = open_out();
        assert_int_equal(g->n_tensors, 2 + 11 * LAYERS);
        assert_int_equal(u32(g, "general.file_type"), f32_type ? 0 : 32);
        assert_int_equal(u32(g, "qwen3.block_count"), LAYERS);
        assert_int_equal(u32(g, "qwen3.context_length"), 128);
        assert_int_equal(u32(g, "qwen3.embedding_length"), EMBD);
        assert_int_equal(u32(g, "qwen3.feed_forward_length"), FF);
        assert_int_equal(u32(g, "qwen3.attention.head_count"), HEADS);
        assert_int_equal(u32(g, "qwen3.attention.head_count_kv"), KV);
        assert_int_equal(u32(g, "qwen3.attention.key_length"), HEAD);
        assert_int_equal(u32(g, "qwen3.attention.value_length"), HEAD);
        assert_int_equal(u32(g, "qwen3.vocab_size"), VOCAB);
        assert_true(f32(g, "qwen3.rope.freq_base") == 1e6f);
        assert_true(f32(g, "qwen3.attention.layer_norm_rms_epsilon") == 1e-6f);
        assert_int_equal(u32(g, "tokenizer.ggml.eos_token_id"), 2);
        array_is(g, "tokenizer.ggml.stop_token_ids", GGUF_I32, (int64_t[]){2}, 1);
        assert_string_equal(g->tensor[0].name, "token_embd.weight");
        assert_string_equal(g->tensor[g->n_tensors - 1].name, "output_norm.weight");
        assert_int_equal(gguf_tensor(g, "blk.1.ffn_down.weight")->type, f32_type ? KN_F32 : KN_BF16);
        assert_int_equal(gguf_tensor(g, "output_norm.weight")->type, KN_F32);
        check_bf16(g, "token_embd.weight", "model.embed_tokens.weight", VOCAB * EMBD);
        check_bf16(g, "blk.1.ffn_down.weight", "model.layers.1.mlp.down_proj.weight", EMBD * FF);
        check_bf16(g, "blk.0.attn_q_norm.weight", "model.layers.0.self_attn.q_norm.weight", HEAD);
        check_bf16(g, "blk.1.ffn_norm.weight", "model.layers.1.post_attention_layernorm.weight", EMBD);
        gguf_close(g);
    }
}

static void test_drafter(void **state)
{
    (void)state;
    struct spec s = drafter_spec("");
    write_config("d", base_drafter, NULL);
    write_weights("d", &s);
    struct convert o = options("d");
    convert_ok(&o);
    assert_non_null(strstr(said, "no --target: the drafter file has no tokenizer\n"));
    struct gguf *g = open_out();
    assert_int_equal(g->n_tensors, 3 + 11 * LAYERS);
    assert_true(f32(g, "dflash.rope.freq_base") == 1e7f); /* nested under rope_parameters */
    assert_int_equal(u32(g, "dflash.block_size"), 8);
    assert_int_equal(u32(g, "tokenizer.ggml.mask_token_id"), 39);
    assert_null(gguf_find(g, "tokenizer.ggml.model"));
    array_is(g, "dflash.target_layers", GGUF_I32, (int64_t[]){1, 2}, 2);
    assert_int_equal(u32(g, "dflash.attention.sliding_window"), 24);
    array_is(g, "dflash.attention.sliding_window_pattern", GGUF_BOOL, (int64_t[]){1, 0}, 2);
    array_is(g, "dflash.attention.causal_pattern", GGUF_BOOL, (int64_t[]){1, 0}, 2);
    assert_null(gguf_find(g, "dflash.attention.causal"));
    assert_null(gguf_find(g, "dflash.embedding_scale"));
    assert_null(gguf_find(g, "dflash.final_logit_softcapping"));
    check_bf16(g, "fc.weight", "fc.weight", EMBD * TAPS * EMBD);
    check_bf16(g, "enc.output_norm.weight", "hidden_norm.weight", EMBD);
    gguf_close(g);
}

static void read_whole(const char *path, uint8_t **data, size_t *n)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    *n = (size_t)st.st_size;
    *data = malloc(*n + 1);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    assert_int_equal(fread(*data, 1, *n, f), *n);
    fclose(f);
}

static void same_files(const char *a, const char *b)
{
    uint8_t *x, *y;
    size_t n, m;
    read_whole(a, &x, &n);
    read_whole(b, &y, &m);
    assert_int_equal(n, m);
    assert_memory_equal(x, y, n);
    free(x);
    free(y);
}

/* The file is the same with and without "model." in the names, in one file or in shards. */
static void test_prefix_and_shards(void **state)
{
    (void)state;
    struct spec plain = drafter_spec(""), prefixed = drafter_spec("model.");
    write_config("d", base_drafter, NULL);
    write_weights("d", &plain);
    struct convert o = options("d");
    o.output = "one.gguf";
    convert_ok(&o);
    struct spec s = prefixed; /* values follow the name: give both the same ones */
    for (int i = 0; i < s.n; i++) assert_string_equal(s.t[i].name + 6, plain.t[i].name);
    mkdir("sh", 0777);
    write_config("sh", base_drafter, NULL);
    write_shard("sh/model-00001-of-00002.safetensors", &plain, 0, 10);
    write_shard("sh/model-00002-of-00002.safetensors", &plain, 10, plain.n);
    char index[8192];
    size_t n = (size_t)sprintf(index, "{\"metadata\":{},\"weight_map\":{");
    for (int i = 0; i < plain.n; i++)
        n += (size_t)sprintf(index + n, "%s\"%s\":\"model-0000%d-of-00002.safetensors\"", i ? "," : "",
                             plain.t[i].name, i < 10 ? 1 : 2);
    n += (size_t)sprintf(index + n, "}}");
    write_file("sh/model.safetensors.index.json", index, n);
    o = options("sh");
    o.output = "two.gguf";
    o.name = "d";
    convert_ok(&o);
    same_files("one.gguf", "two.gguf");
    write_config("pre", base_drafter, NULL);
    write_weights("pre", &prefixed);
    o = options("pre");
    convert_ok(&o);
    struct gguf *g = open_out();
    check_bf16(g, "fc.weight", "model.fc.weight", EMBD * TAPS * EMBD);
    gguf_close(g);
    add(&prefixed, EMBD, 0, "norm.weight");
    write_weights("pre", &prefixed);
    o = options("pre");
    convert_bad(&o, ERR_FORMAT, "pre: norm.weight and model.norm.weight are both there (expected one)");
}

/* ---- tensors ---- */

static void test_tensors(void **state)
{
    (void)state;
    struct spec s = target_spec("model.");
    struct convert o = options("t");
    write_config("t", base_target, NULL);

    strcpy(find(&s, "model.layers.1.mlp.up_proj.weight")->name, "model.layers.1.mlp.up_proj.bias");
    write_weights("t", &s);
    convert_bad(&o, ERR_FORMAT, "t: tensor layers.1.mlp.up_proj.weight is missing");

    s = target_spec("model.");
    find(&s, "model.layers.1.self_attn.k_proj.weight")->shape[0] = 32;
    write_weights("t", &s);
    convert_bad(
        &o, ERR_FORMAT,
        "t: model.layers.1.self_attn.k_proj.weight has the wrong shape: dimension 0 (expected 16 as in "
        "model.layers.0.self_attn.k_proj.weight, got 32)");

    s = target_spec("model.");
    find(&s, "model.norm.weight")->shape[1] = 1;
    write_weights("t", &s);
    convert_bad(&o, ERR_FORMAT, "t: model.norm.weight has the wrong shape (expected 1 dimension, got 2)");

    s = target_spec("model.");
    add(&s, 16, 0, "model.layers.0.self_attn.q_proj.bias");
    write_weights("t", &s);
    convert_bad(
        &o, ERR_FORMAT,
        "t: tensor model.layers.0.self_attn.q_proj.bias is not part of a Qwen3ForCausalLM that is known");

    s = target_spec("model.");
    strcpy(find(&s, "model.norm.weight")->dtype, "I16");
    write_weights("t", &s);
    convert_bad(&o, ERR_FORMAT, "t: model.norm.weight is of an integer type (expected floats, got I16)");

    s = target_spec("model.");
    add(&s, 8, 0, "model.layers.0.self_attn.rotary_emb.inv_freq");
    write_weights("t", &s);
    convert_ok(&o);
    assert_non_null(
        strstr(said, "left out: model.layers.0.self_attn.rotary_emb.inv_freq, a buffer that is computed\n"));
}

static void test_relatives(void **state)
{
    (void)state;
    struct spec s = drafter_spec("");
    struct convert o = options("d");
    write_config("d", base_drafter, NULL);
    add(&s, 8, 0, "layers.0.attention_conv.base_kernel");
    write_weights("d", &s);
    convert_bad(
        &o, ERR_FORMAT,
        "d: tensor layers.0.attention_conv.base_kernel shows a DFlash2 drafter, which is not supported "
        "(expected a plain DFlashDraftModel)");
    add(&s, 8, 0, "lilicorr.token_proj.weight"); /* which has a DFlash2's convolutions */
    write_weights("d", &s);
    convert_bad(&o, ERR_FORMAT,
                "d: tensor lilicorr.token_proj.weight shows a LiLiCorr drafter, which is not supported "
                "(expected a plain DFlashDraftModel)");
    s = drafter_spec("");
    add(&s, 8, 0, "injection.bias");
    write_weights("d", &s);
    convert_bad(&o, ERR_FORMAT,
                "d: tensor injection.bias shows a DSpine drafter, which is not supported (expected a plain "
                "DFlashDraftModel)");
    s = drafter_spec("");
    add(&s, VOCAB, EMBD, "embed_tokens.weight");
    write_weights("d", &s);
    convert_bad(&o, ERR_FORMAT,
                "d: tensor embed_tokens.weight: an embedding or head of the drafter's own is not supported");
}

static void test_tied(void **state)
{
    (void)state;
    struct spec s = target_spec("model.");
    struct convert o = options("t");
    static const struct pair untied[] = {{"tie_word_embeddings", "false"}, {NULL, NULL}};
    add(&s, VOCAB, EMBD, "lm_head.weight"); /* written with the embedding's values */
    write_config("t", base_target, NULL);
    write_weights("t", &s);
    convert_ok(&o);
    struct gguf *g = open_out();
    assert_null(gguf_tensor(g, "output.weight"));
    gguf_close(g);
    write_config("t", base_target, untied);
    convert_ok(&o);
    g = open_out();
    assert_non_null(gguf_tensor(g, "output.weight"));
    assert_string_equal(g->tensor[g->n_tensors - 1].name, "output.weight");
    gguf_close(g);
    find(&s, "lm_head.weight")->shape[0] = VOCAB;
    strcpy(find(&s, "lm_head.weight")->dtype, "F32");
    write_config("t", base_target, NULL);
    write_weights("t", &s);
    convert_bad(&o, ERR_FORMAT,
                "t: lm_head.weight differs from model.embed_tokens.weight (t/config.json: "
                "tie_word_embeddings is true)");
}

/* Values that a type cannot hold, or that nobody should. */
static void patch(const char *path, uint64_t from_end, uint16_t bits)
{
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, -(long)from_end, SEEK_END), 0);
    assert_int_equal(fwrite(&bits, 2, 1, f), 1);
    fclose(f);
}

static void test_values(void **state)
{
    (void)state;
    struct spec s = target_spec("model.");
    /* the last tensor of the file is the norm [EMBD], before it down_proj of layer 1 [EMBD, FF] */
    uint64_t down_end = 2 * EMBD + 2;
    write_config("t", base_target, NULL);
    write_weights("t", &s);
    patch("t/model.safetensors", down_end, 0x4780); /* 65536 */
    struct convert o = options("t");
    convert_ok(&o);
    o.type_given = true;
    o.type = QUANT_F16;
    struct err e = {0};
    unlink("out.gguf");
    assert_int_equal(convert_run(&o, &e), -1);
    assert_int_equal(e.code, ERR_FORMAT);
    assert_string_equal(e.hint, "bf16 has the range of f32: --type bf16");
    assert_non_null(strstr(e.msg, "model.layers.1.mlp.down_proj.weight"));
    assert_int_equal(access("out.gguf", F_OK), -1);
    for (int type = 0; type < 3; type++) {
        static const enum quant_recipe types[] = {QUANT_BF16, QUANT_F32, QUANT_Q8_0};
        patch("t/model.safetensors", down_end, 0x7fc0); /* NaN */
        o.type = types[type];
        e = (struct err){0};
        assert_int_equal(convert_run(&o, &e), -1);
        if (types[type] == QUANT_BF16) /* copied, so found here and not by the encoder */
            assert_string_equal(e.msg,
                                "t: model.layers.1.mlp.down_proj.weight holds a NaN or an infinity (row 31, "
                                "element 63)");
        assert_int_equal(e.code, ERR_FORMAT);
        assert_non_null(strstr(e.msg, "model.layers.1.mlp.down_proj.weight"));
    }
}

/* ---- target beside the drafter, and drafters without config.json ---- */

/* What a drafter's config says against a target, a checkpoint or a GGUF. */
static void against(const char *target)
{
    static const struct pair deep[] = {
        {"num_target_layers", NULL},
        {"dflash_config", "{\"mask_token_id\": 39, \"target_layer_ids\": [0, 2]}"},
        {NULL, NULL}};
    static const struct pair count[] = {{"num_target_layers", "2"}, {NULL, NULL}};
    static const struct pair vocab[] = {{"num_target_layers", "2"}, {"vocab_size", "41"}, {NULL, NULL}};
    struct convert o = options("d");
    char msg[256];
    o.target = target;
    write_config("d", base_drafter, NULL);
    snprintf(msg, sizeof msg,
             "d/config.json: num_target_layers does not fit the target %s (expected 2, got 3)", target);
    convert_bad(&o, ERR_FORMAT, msg);
    write_config("d", base_drafter, deep);
    convert_bad(&o, ERR_FORMAT, "d: tap 1 is out of range (expected below the target's 2 layers, got 2)");
    write_config("d", base_drafter, vocab);
    snprintf(msg, sizeof msg, "d/config.json: vocab_size does not fit the target %s (expected 40, got 41)",
             target);
    convert_bad(&o, ERR_FORMAT, msg);
    write_config("d", base_drafter, count);
    convert_ok(&o);
}

static void test_pair(void **state)
{
    (void)state;
    struct spec t = target_spec("model."), d = drafter_spec("");
    static const struct pair wide[] = {{"hidden_size", "64"}, {NULL, NULL}};
    static const struct pair other[] = {{"intermediate_size", "999"},     {"num_attention_heads", "8"},
                                        {"num_key_value_heads", "4"},     {"head_dim", "128"},
                                        {"rms_norm_eps", "1e-5"},         {"rope_theta", "5e5"},
                                        {"max_position_embeddings", "7"}, {NULL, NULL}};
    write_config("t", base_target, NULL);
    write_weights("t", &t);
    write_weights("d", &d);
    struct convert o = options("t");
    o.output = "target.gguf";
    convert_ok(&o);
    against("t");
    against("target.gguf");
    o = options("d");
    write_config("t", base_target, other); /* sizes that need not be equal stay the drafter's own */
    o.target = "t";
    convert_ok(&o);
    struct gguf *g = open_out();
    assert_int_equal(u32(g, "dflash.feed_forward_length"), FF);
    assert_int_equal(u32(g, "dflash.attention.head_count"), HEADS);
    assert_int_equal(u32(g, "dflash.attention.head_count_kv"), KV);
    assert_int_equal(u32(g, "dflash.attention.key_length"), HEAD);
    assert_int_equal(u32(g, "dflash.block_count"), LAYERS);
    assert_int_equal(u32(g, "dflash.context_length"), 128);
    assert_true(f32(g, "dflash.rope.freq_base") == 1e7f);
    assert_true(f32(g, "dflash.attention.layer_norm_rms_epsilon") == 1e-6f);
    gguf_close(g);
    write_config("t", base_target,
                 wide); /* the drafter's sizes stay its own: a wider target is refused, not taken over */
    o.target = "t";
    convert_bad(&o, ERR_FORMAT,
                "d: the drafter does not fit the target t: hidden size (expected 64 as the target, got 32)");
    o = options("t");
    o.target = "t";
    write_config("t", base_target, NULL);
    convert_bad(&o, ERR_USAGE, "t: --target is for drafters that read taps, this is a Qwen3ForCausalLM");
    unlink("target.gguf");
}

static void test_flags_alone(void **state)
{
    (void)state;
    struct spec d = drafter_spec("");
    write_weights("bare", &d);
    struct convert o = options("bare/model.safetensors");
    convert_bad(
        &o, ERR_USAGE,
        "bare/model.safetensors: the list of tapped target layers is not known: there is no config.json");
    o.n_taps = 2;
    o.taps[0] = 0;
    o.taps[1] = 1;
    convert_bad(&o, ERR_USAGE,
                "bare/model.safetensors: the block size is not known: there is no config.json");
    o.block_size = 8;
    convert_bad(&o, ERR_USAGE,
                "bare/model.safetensors: the mask token id is not known: there is no config.json");
    o.mask_id = 0;
    convert_bad(&o, ERR_USAGE, "bare/model.safetensors: the rope base is not known: there is no config.json");
    o.rope_theta = 1e6;
    convert_bad(&o, ERR_USAGE,
                "bare/model.safetensors: the norms' epsilon is not known: there is no config.json");
    o.rms_eps = 1e-6;
    o.n_head = 4;
    o.n_head_kv = 1;
    convert_bad(&o, ERR_USAGE,
                "bare/model.safetensors: --heads does not match the tensors (expected 2,1, got 4,1)");
    o.n_head = 2;
    convert_ok(&o);
    struct gguf *g = open_out();
    assert_int_equal(u32(g, "tokenizer.ggml.mask_token_id"), 0);
    assert_null(gguf_find(g, "dflash.attention.sliding_window"));
    array_is(g, "dflash.attention.causal_pattern", GGUF_BOOL, (int64_t[]){0, 0}, 2);
    gguf_close(g);

    struct spec t = target_spec("model.");
    write_weights("bare", &t);
    o = options("bare/model.safetensors");
    convert_bad(
        &o, ERR_FORMAT,
        "bare/model.safetensors: no config.json (only a DFlash drafter converts without, with its parts as "
        "flags)");
}

/* A flag wins over the config, and says so. */
static void test_flags(void **state)
{
    (void)state;
    struct spec d = drafter_spec("");
    struct convert o = options("d");
    write_config("d", base_drafter, NULL);
    write_weights("d", &d);
    o.rope_theta = 5e5;
    o.n_taps = 2;
    o.taps[0] = 1;
    o.taps[1] = 2;
    convert_ok(&o);
    assert_non_null(strstr(
        said,
        "warning: --rope-theta 500000 is used, d/config.json: rope_parameters.rope_theta says 10000000\n"));
    assert_non_null(strstr(
        said, "warning: --taps 1,2 is used, d/config.json: dflash_config.target_layer_ids says 0,1\n"));
    struct gguf *g = open_out();
    assert_true(f32(g, "dflash.rope.freq_base") == 5e5f);
    array_is(g, "dflash.target_layers", GGUF_I32, (int64_t[]){2, 3}, 2);
    gguf_close(g);

    write_file("in.gguf", "GGUF\3\0\0\0", 8);
    o = options("in.gguf");
    o.n_head = 3;
    convert_bad(&o, ERR_USAGE, "in.gguf: --heads is for checkpoints, this is a GGUF");
    o.n_head = 0;
    convert_bad(&o, ERR_FORMAT, "in.gguf: header: the file ends early (expected 8 bytes at offset 8, got 0)");
    o = options("d");
    o.dialect = "gguf";
    convert_bad(&o, ERR_USAGE, "--dialect gguf is not known (expected upstream...");
    o = options("d");
    o.output = "d/model.safetensors";
    struct err e = {0};
    assert_int_equal(convert_run(&o, &e), -1);
    assert_int_equal(e.code, ERR_USAGE);
}

/* ---- random ---- */

/* A uniform matrix of deviation 0.02 (blocks: within a tenth) and mean 0 up to 5 standard errors; norms near
 * 1. */
static void is_random(const struct gguf_tensor *t)
{
    int64_t n = t->ne[0] * t->ne[1];
    float *x = malloc((size_t)n * sizeof *x);
    double sum = 0, sq = 0;
    for (int64_t r = 0; r < t->ne[1]; r++)
        assert_int_equal(kn_decode_row(t->type, t->data + (size_t)r * kn_row_bytes(t->type, t->ne[0]),
                                       x + r * t->ne[0], t->ne[0]),
                         0);
    for (int64_t k = 0; k < n; k++) {
        sum += x[k];
        sq += (double)x[k] * x[k];
    }
    free(x);
    if (t->n_dims == 1) {
        assert_true(fabs(sum / (double)n - 1) < 0.05);
    } else {
        assert_true(fabs(sqrt(sq / (double)n) - 0.02) < 0.002);
        assert_true(fabs(sum / (double)n) < 5 * 0.02 / sqrt((double)n / 32));
    }
}

static void test_random(void **state)
{
    (void)state;
    static const enum quant_recipe types[] = {
        QUANT_F32,    QUANT_F16,    QUANT_BF16,    QUANT_Q8_0,  QUANT_Q4_0,   QUANT_Q4_1, QUANT_Q5_0,
        QUANT_Q5_1,   QUANT_Q4_K,   QUANT_Q5_K,    QUANT_Q6_K,  QUANT_Q4_K_M, QUANT_Q2_K, QUANT_Q3_K_S,
        QUANT_IQ4_NL, QUANT_IQ4_XS, QUANT_IQ2_XXS, QUANT_IQ2_M, QUANT_IQ3_XS, QUANT_IQ3_S};
    static const struct pair wide[] = {
        {"hidden_size", "256"}, {"intermediate_size", "512"}, {"head_dim", "128"}, {NULL, NULL}};
    write_config("r", base_target, wide);
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        struct convert o = options("r/config.json");
        o.random = true;
        o.seed = 7;
        o.type_given = true;
        o.type = types[i];
        o.threads = 1;
        o.output = "a.gguf";
        convert_ok(&o);
        o.output = "b.gguf";
        o.threads = 3;
        convert_ok(&o);
        same_files("a.gguf", "b.gguf");
        o.output = "out.gguf";
        o.seed = 8;
        convert_ok(&o);
        struct gguf *g = open_out();
        for (uint64_t j = 0; j < g->n_tensors; j++) is_random(&g->tensor[j]);
        gguf_close(g);
    }
    write_config("r", base_drafter, NULL);
    struct convert o = options("r");
    o.random = true;
    convert_ok(&o);
    struct gguf *g = open_out();
    assert_int_equal(gguf_tensor(g, "fc.weight")->ne[0], TAPS * EMBD);
    gguf_close(g);
    static const struct pair no_tie[] = {{"tie_word_embeddings", NULL}, {NULL, NULL}};
    write_config("r", base_target, no_tie);
    convert_bad(&o, ERR_FORMAT,
                "r/config.json: tie_word_embeddings is missing and there is no lm_head.weight");
    static const struct pair no_head[] = {{"head_dim", NULL}, {NULL, NULL}};
    write_config("r", base_drafter, no_head);
    convert_bad(&o, ERR_FORMAT, "r/config.json: head_dim is missing (there are no weights to tell it)");
}

/* The nth allocation fails: an error of the right class, nothing leaks (the sanitizer build looks), no
 * output. */
static void test_memory(void **state)
{
    (void)state;
    struct spec d = drafter_spec("");
    write_config("d", base_drafter, NULL);
    write_weights("d", &d);
    struct convert o = options("d");
    mem_fail_at(0);
    convert_ok(&o);
    uint64_t n = mem_fail_at(0);
    assert_true(n > 20);
    unlink("out.gguf");
    for (uint64_t i = 1; i <= n; i += 1 + i / 16) {
        struct err e = {0};
        mem_fail_at(i);
        int r = convert_run(&o, &e);
        mem_fail_at(0);
        assert_int_equal(r, -1);
        if (e.code != ERR_IO) fail_msg("allocation %llu: %s", (unsigned long long)i, e.msg);
        assert_int_equal(access("out.gguf", F_OK), -1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_target),
        cmocka_unit_test(test_drafter),
        cmocka_unit_test(test_prefix_and_shards),
        cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_relatives),
        cmocka_unit_test(test_tied),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_pair),
        cmocka_unit_test(test_flags_alone),
        cmocka_unit_test(test_flags),
        cmocka_unit_test(test_random),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
