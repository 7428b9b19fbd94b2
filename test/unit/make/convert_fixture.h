/* convert_fixture.h - small checkpoints that the converter's tests write themselves, and what they look at
 * afterwards.
 *
 * Tests run in a directory of their own (setup, teardown); names in them are relative. A checkpoint is a
 * config, given as a base and changes to it, and a list of tensors whose values are a hash of name and
 * position. */
#ifndef CONVERT_FIXTURE_H
#define CONVERT_FIXTURE_H

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
#include "../../../common/make/convert.h"
#include "../../../common/file/gguf.h"
#include "../../../common/base/mem.h"

/* ---- checkpoints ---- */

enum { EMBD = 32, FF = 64, HEADS = 2, KV = 1, HEAD = 16, LAYERS = 2, VOCAB = 40, TAPS = 2, MAX_TENSORS = 80 };

struct spec_tensor {
    char name[96], dtype[8];
    int64_t shape[3];
};

struct spec {
    struct spec_tensor t[MAX_TENSORS];
    int n;
};

struct pair {
    const char *key, *value; /* value NULL: take the key out */
};

static const struct pair base_target[] = {
    {"architectures", "[\"Qwen3ForCausalLM\"]"},
    {"attention_bias", "false"},
    {"attention_dropout", "0.0"},
    {"bos_token_id", "1"},
    {"eos_token_id", "2"},
    {"head_dim", "16"},
    {"hidden_act", "\"silu\""},
    {"hidden_size", "32"},
    {"initializer_range", "0.02"},
    {"intermediate_size", "64"},
    {"max_position_embeddings", "128"},
    {"max_window_layers", "28"},
    {"model_type", "\"qwen3\""},
    {"num_attention_heads", "2"},
    {"num_hidden_layers", "2"},
    {"num_key_value_heads", "1"},
    {"rms_norm_eps", "1e-06"},
    {"rope_scaling", "null"},
    {"rope_theta", "1000000"},
    {"sliding_window", "null"},
    {"tie_word_embeddings", "true"},
    {"torch_dtype", "\"bfloat16\""},
    {"transformers_version", "\"4.51.0\""},
    {"use_cache", "true"},
    {"use_sliding_window", "false"},
    {"vocab_size", "40"},
    {NULL, NULL},
};

static const struct pair base_drafter[] = {
    {"architectures", "[\"DFlashDraftModel\"]"},
    {"auto_map", "{\"AutoModel\": \"dflash.DFlashDraftModel\"}"},
    {"attention_bias", "false"},
    {"block_size", "8"},
    {"dflash_config", "{\"mask_token_id\": 39, \"target_layer_ids\": [0, 1]}"},
    {"dtype", "\"bfloat16\""},
    {"head_dim", "16"},
    {"hidden_act", "\"silu\""},
    {"hidden_size", "32"},
    {"intermediate_size", "64"},
    {"layer_types", "[\"sliding_attention\", \"full_attention\"]"},
    {"max_position_embeddings", "128"},
    {"model_type", "\"qwen3\""},
    {"num_attention_heads", "2"},
    {"num_hidden_layers", "2"},
    {"num_key_value_heads", "1"},
    {"num_target_layers", "3"},
    {"rms_norm_eps", "1e-06"},
    {"rope_parameters", "{\"rope_theta\": 10000000.0, \"rope_type\": \"default\"}"},
    {"sliding_window", "24"},
    {"tie_word_embeddings", "false"},
    {"use_sliding_window", "true"},
    {"vocab_size", "40"},
    {NULL, NULL},
};

static inline void write_file(const char *path, const void *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* base with the changes put over it (both end with key NULL). */
static inline void write_config(const char *dir, const struct pair *base, const struct pair *change)
{
    char path[256], text[8192];
    size_t n = 1;
    mkdir(dir, 0777);
    text[0] = '{';
    for (int pass = 0; pass < 2; pass++)
        for (const struct pair *p = pass ? change : base; p && p->key; p++) {
            bool skip = pass && !p->value;
            for (const struct pair *c = change; !pass && c && c->key; c++) skip |= !strcmp(c->key, p->key);
            if (!skip)
                n += (size_t)snprintf(text + n, sizeof text - n, "%s\n \"%s\": %s", n > 1 ? "," : "", p->key,
                                      p->value);
        }
    n += (size_t)snprintf(text + n, sizeof text - n, "\n}\n");
    assert_true(n < sizeof text);
    snprintf(path, sizeof path, "%s/config.json", dir);
    write_file(path, text, n);
}

/* The same with a case's changes over a family's parts over the base. */
static inline void write_changed(const char *dir, const struct pair *base, const struct pair *parts,
                                 const struct pair *change)
{
    struct pair all[32];
    int n = 0;
    for (const struct pair *p = parts; p->key; p++) {
        bool changed = false;
        for (const struct pair *c = change; c && c->key; c++) changed |= !strcmp(c->key, p->key);
        if (!changed) all[n++] = *p;
    }
    for (const struct pair *c = change; c && c->key; c++) all[n++] = *c;
    all[n] = (struct pair){NULL, NULL};
    write_config(dir, base, all);
}

static inline void add(struct spec *s, int64_t rows, int64_t cols, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static inline void add(struct spec *s, int64_t rows, int64_t cols, const char *fmt, ...)
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
    t->shape[2] = 0;
}

/* The last tensor added gets a third dimension. */
static inline void add_dim(struct spec *s, int64_t n)
{
    s->t[s->n - 1].shape[2] = n;
}

static inline void add_layers(struct spec *s, const char *prefix, int embd, int ff, int head)
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

static inline struct spec target_spec(const char *prefix)
{
    struct spec s = {.n = 0};
    add(&s, VOCAB, EMBD, "%sembed_tokens.weight", prefix);
    add_layers(&s, prefix, EMBD, FF, HEAD);
    add(&s, EMBD, 0, "%snorm.weight", prefix);
    return s;
}

static inline struct spec drafter_spec(const char *prefix)
{
    struct spec s = {.n = 0};
    add(&s, EMBD, TAPS * EMBD, "%sfc.weight", prefix);
    add(&s, EMBD, 0, "%shidden_norm.weight", prefix);
    add_layers(&s, prefix, EMBD, FF, HEAD);
    add(&s, EMBD, 0, "%snorm.weight", prefix);
    return s;
}

static inline struct spec_tensor *find(struct spec *s, const char *name)
{
    for (int i = 0; i < s->n; i++)
        if (!strcmp(s->t[i].name, name)) return &s->t[i];
    fail_msg("no %s", name);
    return NULL;
}

/* bf16 bits of element i of a tensor: about 0.1 in size, any sign. */
static inline uint16_t value_bits(const char *name, uint64_t i)
{
    uint32_t h = 2166136261u ^ (uint32_t)i;
    for (; *name; name++) h = (h ^ (uint8_t)*name) * 16777619u;
    h ^= h >> 15;
    h *= 0x2c1b3c6du;
    return (uint16_t)(((h >> 16) & 0x807fu) | (uint32_t)(0x3d00u + (h & 0x180u)));
}

static inline uint64_t count_of(const struct spec_tensor *t)
{
    return (uint64_t)t->shape[0] * (uint64_t)(t->shape[1] ? t->shape[1] : 1) *
           (uint64_t)(t->shape[2] ? t->shape[2] : 1);
}

/* Tensors from .. to of the list as one safetensors file. tied: lm_head takes the embedding's values. */
static inline void write_shard(const char *path, const struct spec *s, int from, int to)
{
    char *head = calloc(1, 65536);
    size_t n = 8, off = 0;
    assert_non_null(head);
    n += (size_t)sprintf(head + n, "{");
    for (int i = from; i < to; i++) {
        const struct spec_tensor *t = &s->t[i];
        size_t bytes = count_of(t) * (!strcmp(t->dtype, "F32") ? 4u : !strcmp(t->dtype, "I64") ? 8u : 2u);
        char shape[72];
        if (t->shape[2])
            snprintf(shape, sizeof shape, "%lld,%lld,%lld", (long long)t->shape[0], (long long)t->shape[1],
                     (long long)t->shape[2]);
        else if (t->shape[1])
            snprintf(shape, sizeof shape, "%lld,%lld", (long long)t->shape[0], (long long)t->shape[1]);
        else
            snprintf(shape, sizeof shape, "%lld", (long long)t->shape[0]);
        n +=
            (size_t)sprintf(head + n, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
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
            const char *name =
                strcmp(s->t[i].name, "lm_head.weight") ? s->t[i].name : "model.embed_tokens.weight";
            uint16_t b = value_bits(name, j);
            if (!strcmp(s->t[i].dtype, "I64")) { /* differences from a row's place: every second id */
                memcpy(p, &j, 8);
                p += 8;
            } else if (!strcmp(s->t[i].dtype, "F32")) {
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

static inline void write_weights(const char *dir, const struct spec *s)
{
    char path[256];
    mkdir(dir, 0777);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    write_shard(path, s, 0, s->n);
}

/* ---- running ---- */

static char said[8192];

static inline void say(void *ctx, enum convert_level level, const char *text)
{
    (void)ctx;
    size_t n = strlen(said);
    snprintf(said + n, sizeof said - n, "%s%s\n", level == CONVERT_WARN ? "warning: " : "", text);
}

static inline struct convert options(const char *input)
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

static inline void convert_ok(const struct convert *o)
{
    struct err e = {0};
    if (convert_run(o, &e)) fail_msg("%s", e.msg);
}

/* msg may end in "...": what follows is not looked at. */
static inline void convert_bad(const struct convert *o, enum err_class code, const char *msg)
{
    struct err e = {0};
    size_t n = strlen(msg);
    unlink("out.gguf");
    assert_int_equal(convert_run(o, &e), -1);
    if (n > 3 && !strcmp(msg + n - 3, "...")) {
        n -= 3;
        if (strncmp(e.msg, msg, n)) fail_msg("got \"%s\", expected \"%s\"", e.msg, msg);
    } else {
        assert_string_equal(e.msg, msg);
    }
    assert_int_equal(e.code, code);
    assert_int_equal(access("out.gguf", F_OK), -1);
}

static inline struct gguf *open_out(void)
{
    struct err e = {0};
    struct gguf *g = NULL;
    if (gguf_open(&g, "out.gguf", &e)) fail_msg("%s", e.msg);
    return g;
}

static inline uint32_t u32(const struct gguf *g, const char *key)
{
    uint32_t v = 0;
    struct err e = {0};
    if (gguf_get_u32(g, key, &v, &e)) fail_msg("%s: %s", key, e.msg);
    return v;
}

static inline float f32(const struct gguf *g, const char *key)
{
    float v = 0;
    struct err e = {0};
    if (gguf_get_f32(g, key, &v, &e)) fail_msg("%s: %s", key, e.msg);
    return v;
}

static inline void array_is(const struct gguf *g, const char *key, uint32_t elem, const int64_t *v,
                            uint64_t n)
{
    const struct gguf_kv *kv = gguf_find(g, key);
    assert_non_null(kv);
    assert_int_equal(kv->type, GGUF_ARRAY);
    assert_int_equal(kv->elem, elem);
    assert_int_equal(kv->count, n);
    for (uint64_t i = 0; i < n; i++) assert_int_equal(gguf_array_i64(kv, i), v[i]);
}

static char tmp[] = "/tmp/test_convert.XXXXXX";

static inline int setup(void **state)
{
    (void)state;
    return mkdtemp(tmp) && !chdir(tmp) ? 0 : -1;
}

static inline int teardown(void **state)
{
    (void)state;
    char cmd[64];
    snprintf(cmd, sizeof cmd, "rm -rf %s", tmp);
    return chdir("/") || system(cmd) ? -1 : 0;
}

#endif
