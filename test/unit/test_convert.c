/* test_convert.c - the converter over small checkpoints that the test writes itself: values, keys, and the exact message of
 * every way in which a checkpoint can fail to say what its forward pass is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../common/convert.h"
#include "../../common/gguf.h"
#include "../../common/mem.h"

/* ---- checkpoints ---- */

enum { EMBD = 32, FF = 64, HEADS = 2, KV = 1, HEAD = 16, LAYERS = 2, VOCAB = 40, TAPS = 2, MAX_TENSORS = 64 };

struct spec_tensor {
    char name[96], dtype[8];
    int64_t shape[2];
};

struct spec {
    struct spec_tensor t[MAX_TENSORS];
    int n;
};

struct pair {
    const char *key, *value; /* value NULL: take the key out */
};

static const struct pair base_target[] = {
    { "architectures", "[\"Qwen3ForCausalLM\"]" }, { "attention_bias", "false" },
    { "attention_dropout", "0.0" },                { "bos_token_id", "1" },
    { "eos_token_id", "2" },                       { "head_dim", "16" },
    { "hidden_act", "\"silu\"" },                  { "hidden_size", "32" },
    { "initializer_range", "0.02" },               { "intermediate_size", "64" },
    { "max_position_embeddings", "128" },          { "max_window_layers", "28" },
    { "model_type", "\"qwen3\"" },                 { "num_attention_heads", "2" },
    { "num_hidden_layers", "2" },                  { "num_key_value_heads", "1" },
    { "rms_norm_eps", "1e-06" },                   { "rope_scaling", "null" },
    { "rope_theta", "1000000" },                   { "sliding_window", "null" },
    { "tie_word_embeddings", "true" },             { "torch_dtype", "\"bfloat16\"" },
    { "transformers_version", "\"4.51.0\"" },      { "use_cache", "true" },
    { "use_sliding_window", "false" },             { "vocab_size", "40" },
    { NULL, NULL },
};

static const struct pair base_drafter[] = {
    { "architectures", "[\"DFlashDraftModel\"]" },
    { "auto_map", "{\"AutoModel\": \"dflash.DFlashDraftModel\"}" },
    { "attention_bias", "false" },
    { "block_size", "8" },
    { "dflash_config", "{\"mask_token_id\": 39, \"target_layer_ids\": [0, 1]}" },
    { "dtype", "\"bfloat16\"" },
    { "head_dim", "16" },
    { "hidden_act", "\"silu\"" },
    { "hidden_size", "32" },
    { "intermediate_size", "64" },
    { "layer_types", "[\"sliding_attention\", \"full_attention\"]" },
    { "max_position_embeddings", "128" },
    { "model_type", "\"qwen3\"" },
    { "num_attention_heads", "2" },
    { "num_hidden_layers", "2" },
    { "num_key_value_heads", "1" },
    { "num_target_layers", "3" },
    { "rms_norm_eps", "1e-06" },
    { "rope_parameters", "{\"rope_theta\": 10000000.0, \"rope_type\": \"default\"}" },
    { "sliding_window", "24" },
    { "tie_word_embeddings", "false" },
    { "use_sliding_window", "true" },
    { "vocab_size", "40" },
    { NULL, NULL },
};

static void write_file(const char *path, const void *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* base with the changes put over it (both end with key NULL). */
static void write_config(const char *dir, const struct pair *base, const struct pair *change)
{
    char path[256], text[8192];
    size_t n = 1;
    mkdir(dir, 0777);
    text[0] = '{';
    for (int pass = 0; pass < 2; pass++)
        for (const struct pair *p = pass ? change : base; p && p->key; p++) {
            bool skip = pass && !p->value;
            for (const struct pair *c = change; !pass && c && c->key; c++)
                skip |= !strcmp(c->key, p->key);
            if (!skip)
                n += (size_t)snprintf(text + n, sizeof text - n, "%s\n \"%s\": %s", n > 1 ? "," : "", p->key, p->value);
        }
    n += (size_t)snprintf(text + n, sizeof text - n, "\n}\n");
    assert_true(n < sizeof text);
    snprintf(path, sizeof path, "%s/config.json", dir);
    write_file(path, text, n);
}

static void add(struct spec *s, int64_t rows, int64_t cols, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
static void add(struct spec *s, int64_t rows, int64_t cols, const char *fmt, ...)
{
    va_list ap;
    assert_true(s->n < MAX_TENSORS);
    struct spec_tensor *t = &s->t[s->n++];
    va_start(ap, fmt);
    vsnprintf(t->name, sizeof t->name, fmt, ap);
    va_end(ap);
    strcpy(t->dtype, "BF16");
    t->shape[0] = rows;
    t->shape[1] = cols; /* 0: one dimension */
}

static void add_layers(struct spec *s, const char *prefix, int embd, int ff, int head)
{
    for (int i = 0; i < LAYERS; i++) {
        add(s, embd, 0, "%slayers.%d.input_layernorm.weight", prefix, i);
        add(s, HEADS * head, embd, "%slayers.%d.self_attn.q_proj.weight", prefix, i);
        add(s, KV * head, embd, "%slayers.%d.self_attn.k_proj.weight", prefix, i);
        add(s, KV * head, embd, "%slayers.%d.self_attn.v_proj.weight", prefix, i);
        add(s, embd, HEADS * head, "%slayers.%d.self_attn.o_proj.weight", prefix, i);
        add(s, head, 0, "%slayers.%d.self_attn.q_norm.weight", prefix, i);
        add(s, head, 0, "%slayers.%d.self_attn.k_norm.weight", prefix, i);
        add(s, embd, 0, "%slayers.%d.post_attention_layernorm.weight", prefix, i);
        add(s, ff, embd, "%slayers.%d.mlp.gate_proj.weight", prefix, i);
        add(s, ff, embd, "%slayers.%d.mlp.up_proj.weight", prefix, i);
        add(s, embd, ff, "%slayers.%d.mlp.down_proj.weight", prefix, i);
    }
}

static struct spec target_spec(const char *prefix)
{
    struct spec s = { .n = 0 };
    add(&s, VOCAB, EMBD, "%sembed_tokens.weight", prefix);
    add_layers(&s, prefix, EMBD, FF, HEAD);
    add(&s, EMBD, 0, "%snorm.weight", prefix);
    return s;
}

static struct spec drafter_spec(const char *prefix)
{
    struct spec s = { .n = 0 };
    add(&s, EMBD, TAPS * EMBD, "%sfc.weight", prefix);
    add(&s, EMBD, 0, "%shidden_norm.weight", prefix);
    add_layers(&s, prefix, EMBD, FF, HEAD);
    add(&s, EMBD, 0, "%snorm.weight", prefix);
    return s;
}

static struct spec_tensor *find(struct spec *s, const char *name)
{
    for (int i = 0; i < s->n; i++)
        if (!strcmp(s->t[i].name, name))
            return &s->t[i];
    fail_msg("no %s", name);
    return NULL;
}

/* bf16 bits of element i of a tensor: about 0.1 in size, any sign. */
static uint16_t value_bits(const char *name, uint64_t i)
{
    uint32_t h = 2166136261u ^ (uint32_t)i;
    for (; *name; name++)
        h = (h ^ (uint8_t)*name) * 16777619u;
    h ^= h >> 15;
    h *= 0x2c1b3c6du;
    return (uint16_t)(((h >> 16) & 0x807fu) | (uint32_t)(0x3d00u + (h & 0x180u)));
}

static uint64_t count_of(const struct spec_tensor *t)
{
    return (uint64_t)t->shape[0] * (uint64_t)(t->shape[1] ? t->shape[1] : 1);
}

/* Tensors from .. to of the list as one safetensors file. tied: lm_head takes the embedding's values. */
static void write_shard(const char *path, const struct spec *s, int from, int to)
{
    char *head = calloc(1, 65536);
    size_t n = 8, off = 0;
    assert_non_null(head);
    n += (size_t)sprintf(head + n, "{");
    for (int i = from; i < to; i++) {
        const struct spec_tensor *t = &s->t[i];
        size_t bytes = count_of(t) * (!strcmp(t->dtype, "F32") ? 4u : 2u);
        char shape[48];
        if (t->shape[1])
            snprintf(shape, sizeof shape, "%lld,%lld", (long long)t->shape[0], (long long)t->shape[1]);
        else
            snprintf(shape, sizeof shape, "%lld", (long long)t->shape[0]);
        n += (size_t)sprintf(head + n, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
                             i > from ? "," : "", t->name, t->dtype, shape, off, off + bytes);
        off += bytes;
    }
    n += (size_t)sprintf(head + n, "}");
    uint64_t len = n - 8;
    memcpy(head, &len, 8);
    uint8_t *data = malloc(off + 1), *p = data;
    assert_non_null(data);
    for (int i = from; i < to; i++)
        for (uint64_t j = 0; j < count_of(&s->t[i]); j++) {
            const char *name = strcmp(s->t[i].name, "lm_head.weight") ? s->t[i].name : "model.embed_tokens.weight";
            uint16_t b = value_bits(name, j);
            if (!strcmp(s->t[i].dtype, "F32")) {
                uint32_t w = (uint32_t)b << 16 | 0x1234;
                memcpy(p, &w, 4);
                p += 4;
            } else {
                memcpy(p, &b, 2);
                p += 2;
            }
        }
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(head, 1, n, f), n);
    assert_int_equal(fwrite(data, 1, off, f), off);
    assert_int_equal(fclose(f), 0);
    free(head);
    free(data);
}

static void write_weights(const char *dir, const struct spec *s)
{
    char path[256];
    mkdir(dir, 0777);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    write_shard(path, s, 0, s->n);
}

/* ---- running ---- */

static char said[8192];

static void say(void *ctx, enum convert_level level, const char *text)
{
    (void)ctx;
    size_t n = strlen(said);
    snprintf(said + n, sizeof said - n, "%s%s\n", level == CONVERT_WARN ? "warning: " : "", text);
}

static struct convert options(const char *input)
{
    struct convert o;
    convert_defaults(&o);
    o.input = input;
    o.output = "out.gguf";
    o.force = true;
    o.say = say;
    o.threads = 1;
    said[0] = 0;
    return o;
}

static void convert_ok(const struct convert *o)
{
    struct err e = { 0 };
    if (convert_run(o, &e))
        fail_msg("%s", e.msg);
}

static void convert_bad(const struct convert *o, enum err_class code, const char *msg)
{
    struct err e = { 0 };
    unlink("out.gguf");
    assert_int_equal(convert_run(o, &e), -1);
    assert_string_equal(e.msg, msg);
    assert_int_equal(e.code, code);
    assert_int_equal(access("out.gguf", F_OK), -1);
}

static struct gguf *open_out(void)
{
    struct err e = { 0 };
    struct gguf *g = NULL;
    if (gguf_open(&g, "out.gguf", &e))
        fail_msg("%s", e.msg);
    return g;
}

static uint32_t u32(const struct gguf *g, const char *key)
{
    uint32_t v = 0;
    struct err e = { 0 };
    if (gguf_get_u32(g, key, &v, &e))
        fail_msg("%s: %s", key, e.msg);
    return v;
}

static float f32(const struct gguf *g, const char *key)
{
    float v = 0;
    struct err e = { 0 };
    if (gguf_get_f32(g, key, &v, &e))
        fail_msg("%s: %s", key, e.msg);
    return v;
}

static void array_is(const struct gguf *g, const char *key, uint32_t elem, const int64_t *v, uint64_t n)
{
    const struct gguf_kv *kv = gguf_find(g, key);
    assert_non_null(kv);
    assert_int_equal(kv->type, GGUF_ARRAY);
    assert_int_equal(kv->elem, elem);
    assert_int_equal(kv->count, n);
    for (uint64_t i = 0; i < n; i++)
        assert_int_equal(gguf_array_i64(kv, i), v[i]);
}

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
        array_is(g, "tokenizer.ggml.stop_token_ids", GGUF_I32, (int64_t[]){ 2 }, 1);
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
    array_is(g, "dflash.target_layers", GGUF_I32, (int64_t[]){ 1, 2 }, 2);
    assert_int_equal(u32(g, "dflash.attention.sliding_window"), 24);
    array_is(g, "dflash.attention.sliding_window_pattern", GGUF_BOOL, (int64_t[]){ 1, 0 }, 2);
    array_is(g, "dflash.attention.causal_pattern", GGUF_BOOL, (int64_t[]){ 1, 0 }, 2);
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
    for (int i = 0; i < s.n; i++)
        assert_string_equal(s.t[i].name + 6, plain.t[i].name);
    mkdir("sh", 0777);
    write_config("sh", base_drafter, NULL);
    write_shard("sh/model-00001-of-00002.safetensors", &plain, 0, 10);
    write_shard("sh/model-00002-of-00002.safetensors", &plain, 10, plain.n);
    char index[8192];
    size_t n = (size_t)sprintf(index, "{\"metadata\":{},\"weight_map\":{");
    for (int i = 0; i < plain.n; i++)
        n += (size_t)sprintf(index + n, "%s\"%s\":\"model-0000%d-of-00002.safetensors\"", i ? "," : "", plain.t[i].name,
                             i < 10 ? 1 : 2);
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

static void test_target_config(void **state)
{
    (void)state;
    static const struct config_case cases[] = {
        { { { "rope_theta", NULL } },
          "t/config.json: rope_theta is missing (expected at rope_parameters.rope_theta, "
          "rope_parameters.<layer type>.rope_theta or rope_theta)" },
        { { { "rope_theta", NULL }, { "rope_parameters", "{\"rope_theta\": 5e5, \"rope_type\": \"default\"}" } }, NULL },
        { { { "rope_parameters", "{\"rope_theta\": 5e5}" } },
          "t/config.json: rope_parameters.rope_theta and rope_theta disagree (500000 against 1000000)" },
        { { { "rope_theta", "0" } },
          "t/config.json: rope_theta is out of range (expected a positive number, got 0)" },
        { { { "rope_theta", "\"1e6\"" } }, "t/config.json: rope_theta is not usable (expected a number, got \"1e6\")" },
        { { { "rope_scaling", "{\"rope_type\": \"yarn\", \"factor\": 4.0}" } },
          "t/config.json: rope_scaling.rope_type is not usable (expected \"default\": no other rotation is implemented for "
          "this family, got \"yarn\")" },
        { { { "rope_scaling", "{\"factor\": 4.0}" } },
          "t/config.json: rope_scaling.factor is not usable (expected no such key: it would change the rotation, got 4.0)" },
        { { { "rope_scaling", "{\"type\": \"default\"}" } }, NULL },
        { { { "partial_rotary_factor", "0.25" } },
          "t/config.json: partial_rotary_factor changes the forward pass and is not implemented (expected 1, got 0.25)" },
        { { { "attention_bias", "true" } },
          "t/config.json: attention_bias changes the forward pass and is not implemented (expected false, got true)" },
        { { { "hidden_act", "\"gelu\"" } },
          "t/config.json: hidden_act changes the forward pass and is not implemented (expected \"silu\", got \"gelu\")" },
        { { { "use_sliding_window", "true" } },
          "t/config.json: use_sliding_window changes the forward pass and is not implemented (expected false, got true)" },
        { { { "layer_types", "[\"full_attention\", \"sliding_attention\"]" } },
          "t/config.json: layer_types[1] changes the forward pass and is not implemented for Qwen3 targets (expected "
          "\"full_attention\", got \"sliding_attention\")" },
        { { { "layer_types", "[\"full_attention\"]" } },
          "t/config.json: layer_types has the wrong length (expected 2 layers, got 1)" },
        { { { "layer_types", "[\"full_attention\", \"full_attention\"]" } }, NULL },
        { { { "new_gate", "{\"x\": 1}" } },
          "t/config.json: new_gate is not a key that is known (its value: {\"x\":1})" },
        { { { "new_gate", "null" } }, NULL },
        { { { "quantization_config", "{\"quant_method\": \"fp8\"}" } },
          "t/config.json: quantization_config is not a key that is known (its value: {\"quant_method\":\"fp8\"})" },
        { { { "hidden_size", "48" } },
          "t/config.json: hidden_size does not match the tensors (expected 32 from model.embed_tokens.weight, got 48)" },
        { { { "head_dim", "32" } },
          "t/config.json: head_dim does not match the tensors (expected 16 from model.layers.0.self_attn.q_norm.weight, got 32)" },
        { { { "num_attention_heads", "4" } },
          "t/config.json: num_attention_heads does not match the tensors (expected 2 from "
          "model.layers.0.self_attn.q_proj.weight / model.layers.0.self_attn.q_norm.weight, got 4)" },
        { { { "num_key_value_heads", "2" } },
          "t/config.json: num_key_value_heads does not match the tensors (expected 1 from "
          "model.layers.0.self_attn.k_proj.weight / model.layers.0.self_attn.q_norm.weight, got 2)" },
        { { { "intermediate_size", "65" } },
          "t/config.json: intermediate_size does not match the tensors (expected 64 from "
          "model.layers.0.mlp.gate_proj.weight, got 65)" },
        { { { "num_hidden_layers", "3" } },
          "t/config.json: num_hidden_layers does not match the tensors (expected 2 from the highest layer number, got 3)" },
        { { { "vocab_size", "41" } },
          "t/config.json: vocab_size does not match the tensors (expected 40 from model.embed_tokens.weight, got 41)" },
        { { { "vocab_size", "40.5" } },
          "t/config.json: vocab_size is not usable (expected an integer from 0 to 2147483647, got 40.5)" },
        { { { "rms_norm_eps", NULL } }, "t/config.json: rms_norm_eps is missing" },
        { { { "max_position_embeddings", NULL } }, "t/config.json: max_position_embeddings is missing" },
        { { { "eos_token_id", "[2, 40]" } },
          "t/config.json: eos_token_id is outside the vocabulary (expected 0 to 39, got 40)" },
        { { { "tie_word_embeddings", "false" } },
          "t: lm_head.weight is missing (t/config.json: tie_word_embeddings is false)" },
        { { { "tie_word_embeddings", NULL } },
          "t/config.json: tie_word_embeddings is missing and there is no lm_head.weight" },
        { { { "architectures", "[\"Gemma4ForCausalLM\"]" } },
          "t/config.json: architecture Gemma4ForCausalLM is not supported (expected Qwen3ForCausalLM or DFlashDraftModel)" },
        { { { "architectures", "[\"Qwen3MoeForCausalLM\"]" } },
          "t/config.json: architecture Qwen3MoeForCausalLM is not supported (expected Qwen3ForCausalLM or DFlashDraftModel)" },
        { { { "architectures", "[\"DFlash2DraftModel\"]" } },
          "t/config.json: architecture DFlash2DraftModel is not supported (expected Qwen3ForCausalLM or DFlashDraftModel)" },
        { { { "architectures", NULL } },
          "t/config.json: architectures does not name one model (expected Qwen3ForCausalLM or DFlashDraftModel, got 0 names)" },
    };
    struct spec s = target_spec("model.");
    write_config("t", base_target, NULL);
    write_weights("t", &s);
    run_cases("t", base_target, cases, sizeof cases / sizeof cases[0]);
}

static void test_drafter_config(void **state)
{
    (void)state;
    static const struct config_case cases[] = {
        { { { "rope_parameters", NULL } },
          "d/config.json: rope_theta is missing (expected at rope_parameters.rope_theta, "
          "rope_parameters.<layer type>.rope_theta or rope_theta)" },
        { { { "rope_parameters", NULL }, { "rope_theta", "1e6" } }, NULL },
        { { { "rope_parameters",
              "{\"full_attention\": {\"rope_theta\": 1e6, \"rope_type\": \"default\"}, \"sliding_attention\": "
              "{\"rope_theta\": 1e6}}" } },
          NULL },
        { { { "rope_parameters", "{\"full_attention\": {\"rope_theta\": 1e6}, \"sliding_attention\": {\"rope_theta\": 1e4}}" } },
          "d/config.json: rope_parameters: layer types disagree (full_attention has rope_theta 1000000, sliding_attention has "
          "10000): one base for all layers is implemented" },
        { { { "rope_parameters", "{\"full_attention\": {\"rope_type\": \"default\"}}" } },
          "d/config.json: rope_parameters.full_attention.rope_theta is missing" },
        { { { "rope_parameters", "{\"rope_theta\": 1e6, \"partial_rotary_factor\": 0.5}" } },
          "d/config.json: rope_parameters.partial_rotary_factor is not usable (expected 1: a partial rotation is not "
          "implemented for this family, got 0.5)" },
        { { { "block_size", NULL } },
          "d/config.json: the block size is missing (expected at dflash_config.block_size or block_size)" },
        { { { "block_size", NULL },
            { "dflash_config", "{\"block_size\": 4, \"mask_token_id\": 39, \"target_layer_ids\": [0, 1]}" } },
          NULL },
        { { { "dflash_config", "{\"block_size\": 4, \"mask_token_id\": 39, \"target_layer_ids\": [0, 1]}" } },
          "d/config.json: dflash_config.block_size and block_size disagree (4 against 8)" },
        { { { "dflash_config", "{\"target_layer_ids\": [0, 1]}" } },
          "d/config.json: the mask token id is missing (expected at dflash_config.mask_token_id or mask_token_id)" },
        { { { "dflash_config", "{\"target_layer_ids\": [0, 1]}" }, { "mask_token_id", "39" } }, NULL },
        { { { "dflash_config", "{\"mask_token_id\": 39}" } },
          "d/config.json: the list of tapped target layers is missing (expected at dflash_config.target_layer_ids, "
          "dflash_config.aux_hidden_state_layer_ids, or either at top level)" },
        { { { "dflash_config", "{\"mask_token_id\": 39}" }, { "target_layer_ids", "[0, 1]" } }, NULL },
        { { { "dflash_config", "{\"mask_token_id\": 39}" }, { "aux_hidden_state_layer_ids", "[0, 1]" } }, NULL },
        { { { "dflash_config", "{\"mask_token_id\": 39, \"aux_hidden_state_layer_ids\": [0, 1]}" } }, NULL },
        { { { "target_layer_ids", "[0, 2]" } },
          "d/config.json: dflash_config.target_layer_ids and target_layer_ids disagree ([0,1] against [0,2])" },
        { { { "dflash_config", "{\"mask_token_id\": 39, \"target_layer_ids\": [0, -1]}" } },
          "d: dflash_config.target_layer_ids[1] is out of range (expected a zero-based layer, got -1)" },
        { { { "dflash_config", "{\"mask_token_id\": 39, \"target_layer_ids\": [0, 3]}" } },
          "d: tap 1 is out of range (expected below the target's 3 layers, got 3)" },
        { { { "dflash_config", "{\"mask_token_id\": 39, \"target_layer_ids\": [0, 1, 2]}" } },
          "d: fc.weight does not fit the taps (expected 3 taps x 32 = 96 columns, got 64)" },
        { { { "dflash_config", "{\"mask_token_id\": 40, \"target_layer_ids\": [0, 1]}" } },
          "d: the mask token id is outside the vocabulary (expected below 40, got 40)" },
        { { { "dflash_config", "{\"mask_token_id\": 39, \"target_layer_ids\": [0, 1], \"mixer\": 2}" } },
          "d/config.json: dflash_config.mixer is not a key that is known (its value: 2)" },
        { { { "dflash_config", "{\"mask_token_id\": 39, \"target_layer_ids\": [0, 1], \"conv_kernel_size\": 2}" } },
          "d/config.json: key dflash_config.conv_kernel_size shows a DFlash2 drafter, which is not supported (expected a plain "
          "DFlashDraftModel)" },
        { { { "markov_rank", "256" } },
          "d/config.json: key markov_rank shows a DSpark drafter, which is not supported (expected a plain DFlashDraftModel)" },
        { { { "output_multiplier", "1.0" } }, NULL },
        { { { "output_multiplier", "0.5" } },
          "d/config.json: output_multiplier changes the forward pass and is not implemented (expected 1, got 0.5)" },
        { { { "sliding_window", "null" } },
          "d/config.json: sliding_window is missing (layer_types has sliding layers)" },
        { { { "use_sliding_window", "false" } },
          "d/config.json: layer_types has sliding layers but use_sliding_window is false" },
        { { { "layer_types", NULL } },
          "d/config.json: use_sliding_window is true but layer_types is missing: which layers slide is not known" },
        { { { "layer_types", NULL }, { "use_sliding_window", "false" } }, NULL },
        { { { "layer_types", "[\"full_attention\", \"linear_attention\"]" } },
          "d/config.json: layer_types[1] is not implemented (expected \"full_attention\" or \"sliding_attention\", got "
          "\"linear_attention\")" },
        { { { "dflash_config", "{\"mask_token_id\": 39, \"target_layer_ids\": [0, 1], \"num_target_layers\": 4}" } },
          "d/config.json: dflash_config.num_target_layers and num_target_layers disagree (4 against 3)" },
        { { { "target_hidden_size", "64" } },
          "d/config.json: target_hidden_size does not match the tensors (expected 32 from fc.weight, got 64)" },
        { { { "dflash_config", "{\"mask_token_id\": 39, \"target_layer_ids\": [0, 1], \"causal\": true}" }, { "is_causal", "false" } },
          "d/config.json: dflash_config.causal and is_causal disagree (true against false)" },
        { { { "dflash_config", "{\"mask_token_id\": 39, \"target_layer_ids\": [0, 1], \"projector_type\": \"domino\"}" } },
          "d/config.json: dflash_config.projector_type changes the forward pass and is not implemented (expected \"dflash\", got "
          "\"domino\")" },
        { { { "dflash_config", "{\"mask_token_id\": 39, \"target_layer_ids\": [0, 1], \"gru_hidden_dim\": 8}" } },
          "d/config.json: key dflash_config.gru_hidden_dim shows a Domino drafter, which is not supported (expected a plain "
          "DFlashDraftModel)" },
        { { { "rope_parameters", "{\"rope_theta\": 1e7, \"mrope_section\": [3, 3, 2], \"mrope_interleaved\": true}" } }, NULL },
        { { { "num_anchors", "64" }, { "loss_decay_gamma", "7.0" }, { "image_token_id", "5" } }, NULL },
        { { { "model_type", "\"llama\"" } },
          "d/config.json: model_type changes the forward pass and is not implemented (expected one of [\"qwen3\",\"dflash\"], "
          "got \"llama\")" },
    };
    struct spec s = drafter_spec("");
    write_config("d", base_drafter, NULL);
    write_weights("d", &s);
    run_cases("d", base_drafter, cases, sizeof cases / sizeof cases[0]);
}

/* Our own keys: scale, softcap and is_causal are written where the config has them. */
static void test_drafter_extras(void **state)
{
    (void)state;
    struct spec s = drafter_spec("");
    static const struct pair change[] = { { "input_embedding_scale", "5.5" },
                                          { "final_logit_softcapping", "30.0" },
                                          { "is_causal", "false" },
                                          { NULL, NULL } };
    write_config("d", base_drafter, change);
    write_weights("d", &s);
    struct convert o = options("d");
    convert_ok(&o);
    struct gguf *g = open_out();
    assert_true(f32(g, "dflash.embedding_scale") == 5.5f);
    assert_true(f32(g, "dflash.final_logit_softcapping") == 30.0f);
    array_is(g, "dflash.attention.sliding_window_pattern", GGUF_BOOL, (int64_t[]){ 1, 0 }, 2);
    array_is(g, "dflash.attention.causal_pattern", GGUF_BOOL, (int64_t[]){ 0, 0 }, 2);
    bool causal = true;
    assert_int_equal(gguf_get_bool(g, "dflash.attention.causal", &causal, NULL), 0);
    assert_false(causal);
    gguf_close(g);
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
    convert_bad(&o, ERR_FORMAT, "t: model.layers.1.self_attn.k_proj.weight has the wrong shape: dimension 0 (expected 16 as in "
                                "model.layers.0.self_attn.k_proj.weight, got 32)");

    s = target_spec("model.");
    find(&s, "model.norm.weight")->shape[1] = 1;
    write_weights("t", &s);
    convert_bad(&o, ERR_FORMAT, "t: model.norm.weight has the wrong shape (expected 1 dimension, got 2)");

    s = target_spec("model.");
    add(&s, 16, 0, "model.layers.0.self_attn.q_proj.bias");
    write_weights("t", &s);
    convert_bad(&o, ERR_FORMAT, "t: tensor model.layers.0.self_attn.q_proj.bias is not part of a Qwen3ForCausalLM that is known");

    s = target_spec("model.");
    strcpy(find(&s, "model.norm.weight")->dtype, "I16");
    write_weights("t", &s);
    convert_bad(&o, ERR_FORMAT, "t: model.norm.weight is of an integer type (expected floats, got I16)");

    s = target_spec("model.");
    add(&s, 8, 0, "model.layers.0.self_attn.rotary_emb.inv_freq");
    write_weights("t", &s);
    convert_ok(&o);
    assert_non_null(strstr(said, "left out: model.layers.0.self_attn.rotary_emb.inv_freq, a buffer that is computed\n"));

    s = drafter_spec("");
    write_config("d", base_drafter, NULL);
    add(&s, 8, 0, "layers.0.attention_conv.base_kernel");
    write_weights("d", &s);
    o = options("d");
    convert_bad(&o, ERR_FORMAT, "d: tensor layers.0.attention_conv.base_kernel shows a DFlash2 drafter, which is not supported "
                                "(expected a plain DFlashDraftModel)");
    s = drafter_spec("");
    add(&s, VOCAB, EMBD, "embed_tokens.weight");
    write_weights("d", &s);
    convert_bad(&o, ERR_FORMAT, "d: tensor embed_tokens.weight: an embedding or head of the drafter's own is not supported");
}

static void test_tied(void **state)
{
    (void)state;
    struct spec s = target_spec("model.");
    struct convert o = options("t");
    static const struct pair untied[] = { { "tie_word_embeddings", "false" }, { NULL, NULL } };
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
    convert_bad(&o, ERR_FORMAT, "t: lm_head.weight differs from model.embed_tokens.weight (t/config.json: "
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
    struct err e = { 0 };
    unlink("out.gguf");
    assert_int_equal(convert_run(&o, &e), -1);
    assert_int_equal(e.code, ERR_FORMAT);
    assert_non_null(strstr(e.msg, "model.layers.1.mlp.down_proj.weight"));
    assert_int_equal(access("out.gguf", F_OK), -1);
    for (int type = 0; type < 3; type++) {
        static const enum quant_recipe types[] = { QUANT_BF16, QUANT_F32, QUANT_Q8_0 };
        patch("t/model.safetensors", down_end, 0x7fc0); /* NaN */
        o.type = types[type];
        e = (struct err){ 0 };
        assert_int_equal(convert_run(&o, &e), -1);
        assert_int_equal(e.code, ERR_FORMAT);
        assert_non_null(strstr(e.msg, "model.layers.1.mlp.down_proj.weight"));
    }
}

/* ---- target beside the drafter, and drafters without config.json ---- */

static void test_pair(void **state)
{
    (void)state;
    struct spec t = target_spec("model."), d = drafter_spec("");
    static const struct pair deep[] = { { "num_target_layers", NULL },
                                        { "dflash_config", "{\"mask_token_id\": 39, \"target_layer_ids\": [0, 2]}" },
                                        { NULL, NULL } };
    static const struct pair count[] = { { "num_target_layers", "2" }, { NULL, NULL } };
    static const struct pair vocab[] = { { "num_target_layers", "2" }, { "vocab_size", "41" }, { NULL, NULL } };
    static const struct pair wide[] = { { "hidden_size", "64" }, { NULL, NULL } };
    write_config("t", base_target, NULL);
    write_weights("t", &t);
    write_weights("d", &d);
    struct convert o = options("t");
    o.output = "target.gguf";
    convert_ok(&o);
    for (int gguf = 0; gguf < 2; gguf++) {
        const char *target = gguf ? "target.gguf" : "t";
        char msg[256];
        write_config("t", base_target, NULL);
        o = options("d");
        o.target = target;
        write_config("d", base_drafter, NULL);
        snprintf(msg, sizeof msg, "d/config.json: num_target_layers does not fit the target %s (expected 2, got 3)", target);
        convert_bad(&o, ERR_FORMAT, msg);
        write_config("d", base_drafter, deep);
        convert_bad(&o, ERR_FORMAT, "d: tap 1 is out of range (expected below the target's 2 layers, got 2)");
        write_config("d", base_drafter, vocab);
        snprintf(msg, sizeof msg, "d/config.json: vocab_size does not fit the target %s (expected 40, got 41)", target);
        convert_bad(&o, ERR_FORMAT, msg);
        write_config("d", base_drafter, count);
        convert_ok(&o);
    }
    write_config("t", base_target, wide); /* the drafter's sizes stay its own: a wider target is refused, not taken over */
    o.target = "t";
    convert_bad(&o, ERR_FORMAT, "d: the drafter does not fit the target t: hidden size (expected 64 as the target, got 32)");
    o = options("t");
    o.target = "t";
    write_config("t", base_target, NULL);
    convert_bad(&o, ERR_USAGE, "t: --target is for drafters, this is a Qwen3ForCausalLM");
    unlink("target.gguf");
}

static void test_flags(void **state)
{
    (void)state;
    struct spec d = drafter_spec("");
    write_weights("bare", &d);
    const char *file = "bare/model.safetensors";
    struct convert o = options(file);
    convert_bad(&o, ERR_USAGE, "bare/model.safetensors: the list of tapped target layers is not known: there is no config.json");
    o.n_taps = 2;
    o.taps[0] = 0;
    o.taps[1] = 1;
    convert_bad(&o, ERR_USAGE, "bare/model.safetensors: the block size is not known: there is no config.json");
    o.block_size = 8;
    convert_bad(&o, ERR_USAGE, "bare/model.safetensors: the mask token id is not known: there is no config.json");
    o.mask_id = 0;
    convert_bad(&o, ERR_USAGE, "bare/model.safetensors: the rope base is not known: there is no config.json");
    o.rope_theta = 1e6;
    convert_bad(&o, ERR_USAGE, "bare/model.safetensors: the norms' epsilon is not known: there is no config.json");
    o.rms_eps = 1e-6;
    o.n_head = 4;
    o.n_head_kv = 1;
    convert_bad(&o, ERR_USAGE, "bare/model.safetensors: --heads does not match the tensors (expected 2,1, got 4,1)");
    o.n_head = 2;
    convert_ok(&o);
    struct gguf *g = open_out();
    assert_int_equal(u32(g, "tokenizer.ggml.mask_token_id"), 0);
    assert_null(gguf_find(g, "dflash.attention.sliding_window"));
    array_is(g, "dflash.attention.causal_pattern", GGUF_BOOL, (int64_t[]){ 0, 0 }, 2);
    gguf_close(g);

    /* a flag wins over the config, and says so */
    write_config("d", base_drafter, NULL);
    write_weights("d", &d);
    o = options("d");
    o.rope_theta = 5e5;
    o.n_taps = 2;
    o.taps[0] = 1;
    o.taps[1] = 2;
    convert_ok(&o);
    assert_non_null(strstr(said, "warning: --rope-theta 500000 is used, d/config.json: rope_parameters.rope_theta says 10000000\n"));
    assert_non_null(strstr(said, "warning: --taps 1,2 is used, d/config.json: dflash_config.target_layer_ids says 0,1\n"));
    g = open_out();
    assert_true(f32(g, "dflash.rope.freq_base") == 5e5f);
    array_is(g, "dflash.target_layers", GGUF_I32, (int64_t[]){ 2, 3 }, 2);
    gguf_close(g);

    struct spec t = target_spec("model.");
    write_weights("bare", &t);
    o = options(file);
    convert_bad(&o, ERR_FORMAT, "bare/model.safetensors: no config.json (only a DFlash drafter converts without, with its parts as "
                                "flags)");
    o.input = "out.gguf";
    write_file("in.gguf", "GGUF\3\0\0\0", 8);
    o.input = "in.gguf";
    convert_bad(&o, ERR_USAGE, "in.gguf: is a GGUF already (expected a Hugging Face directory or a .safetensors file)");
    o = options("d");
    o.dialect = "ik";
    convert_bad(&o, ERR_USAGE, "--dialect ik is not known (expected upstream)");
    o = options("d");
    o.output = "d/model.safetensors";
    struct err e = { 0 };
    assert_int_equal(convert_run(&o, &e), -1);
    assert_int_equal(e.code, ERR_USAGE);
}

/* ---- random ---- */

static void test_random(void **state)
{
    (void)state;
    static const enum quant_recipe types[] = { QUANT_F32, QUANT_F16, QUANT_BF16, QUANT_Q8_0, QUANT_Q4_K_M };
    static const struct pair wide[] = { { "hidden_size", "256" }, { "intermediate_size", "512" }, { "head_dim", "128" },
                                        { NULL, NULL } };
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
        for (uint64_t j = 0; j < g->n_tensors; j++) {
            const struct gguf_tensor *t = &g->tensor[j];
            int64_t n = t->ne[0] * t->ne[1];
            float *x = malloc((size_t)n * sizeof *x);
            double sum = 0, sq = 0;
            for (int64_t r = 0; r < t->ne[1]; r++)
                assert_int_equal(kn_decode_row(t->type, t->data + (size_t)r * kn_row_bytes(t->type, t->ne[0]),
                                               x + r * t->ne[0], t->ne[0]), 0);
            for (int64_t k = 0; k < n; k++) {
                sum += x[k];
                sq += (double)x[k] * x[k];
            }
            free(x);
            /* a uniform matrix of deviation 0.02 (blocks: within a tenth) and mean 0 up to 5 standard errors; norms near 1 */
            if (t->n_dims == 1) {
                assert_true(fabs(sum / (double)n - 1) < 0.05);
            } else {
                assert_true(fabs(sqrt(sq / (double)n) - 0.02) < 0.002);
                assert_true(fabs(sum / (double)n) < 5 * 0.02 / sqrt((double)n / 32));
            }
        }
        gguf_close(g);
    }
    write_config("r", base_drafter, NULL);
    struct convert o = options("r");
    o.random = true;
    convert_ok(&o);
    struct gguf *g = open_out();
    assert_int_equal(gguf_tensor(g, "fc.weight")->ne[0], TAPS * EMBD);
    gguf_close(g);
    static const struct pair no_head[] = { { "head_dim", NULL }, { NULL, NULL } };
    write_config("r", base_drafter, no_head);
    convert_bad(&o, ERR_FORMAT, "r/config.json: head_dim is missing (there are no weights to tell it)");
}

/* ---- malformed text ---- */

static void test_json(void **state)
{
    (void)state;
    struct spec t = target_spec("model.");
    struct convert o = options("j");
    write_weights("j", &t);
    write_file("j/config.json", "{\"a\": 1,}", 9);
    convert_bad(&o, ERR_FORMAT, "j/config.json: bad JSON in line 1, column 9: string or '}' expected near '}'");
    write_file("j/config.json", "[1]", 3);
    convert_bad(&o, ERR_FORMAT, "j/config.json: not a config.json (expected a JSON object)");
    write_file("j/config.json", "{\"a\": 1, \"a\": 2}", 16);
    convert_bad(&o, ERR_FORMAT, "j/config.json: bad JSON in line 1, column 12: duplicate object key near '\"a\"'");
}

/* The nth allocation fails: an error of the right class, nothing leaks (the sanitizer build looks), no output. */
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
        struct err e = { 0 };
        mem_fail_at(i);
        int r = convert_run(&o, &e);
        mem_fail_at(0);
        assert_int_equal(r, -1);
        if (e.code != ERR_IO)
            fail_msg("allocation %llu: %s", (unsigned long long)i, e.msg);
        assert_int_equal(access("out.gguf", F_OK), -1);
    }
}

static char tmp[] = "/tmp/test_convert.XXXXXX";

static int setup(void **state)
{
    (void)state;
    return mkdtemp(tmp) && !chdir(tmp) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    char cmd[64];
    snprintf(cmd, sizeof cmd, "rm -rf %s", tmp);
    return chdir("/") || system(cmd) ? -1 : 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_target),         cmocka_unit_test(test_drafter),
        cmocka_unit_test(test_prefix_and_shards), cmocka_unit_test(test_target_config),
        cmocka_unit_test(test_drafter_config), cmocka_unit_test(test_drafter_extras),
        cmocka_unit_test(test_tensors),        cmocka_unit_test(test_tied),
        cmocka_unit_test(test_values),         cmocka_unit_test(test_pair),
        cmocka_unit_test(test_flags),          cmocka_unit_test(test_random),
        cmocka_unit_test(test_json),           cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
