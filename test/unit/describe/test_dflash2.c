/* test_dflash2.c - DFlash2 drafters: converted with all of their pieces, described, in the spellings that
 * there are; torn and malformed files. */
#include "../make/convert_fixture.h"

#include "../../../common/describe/desc.h"
#include "../../../common/inspect/diff.h"

enum { KERNEL = 2, GROUP = 16, RANK = 8, TOP_K = 4 };

static const struct pair dflash2[] = {
    {"architectures", "[\"DFlash2DraftModel\"]"},
    {"is_causal", "false"},
    {"dflash_config", "{\"mask_token_id\": 39, \"target_layer_ids\": [0, 1], \"conv_kernel_size\": 2, "
                      "\"conv_group_size\": 16, \"selector_rank\": 8, \"selector_top_k\": 4}"},
    {NULL, NULL},
};

/* suffix: of the codebooks' names, which exporters write with and without. */
static struct spec dflash2_spec(const char *suffix)
{
    static const char *const side[] = {"attention_conv", "mlp_conv"};
    struct spec s = drafter_spec("");
    for (int i = 0; i < LAYERS; i++)
        for (int j = 0; j < 2; j++) {
            add(&s, 2, KERNEL, "layers.%d.%s.base_kernel", i, side[j]);
            add_dim(&s, EMBD);
            add(&s, 2 * KERNEL * EMBD / GROUP, EMBD, "layers.%d.%s.kernel_projection.weight", i, side[j]);
        }
    add(&s, VOCAB, RANK, "candidate_selector.predecessor_codebook%s", suffix);
    add(&s, VOCAB, RANK, "candidate_selector.successor_codebook%s", suffix);
    add(&s, RANK, EMBD, "candidate_selector.hidden_projection.weight");
    return s;
}

static struct spec_tensor *named(struct spec *s, const char *part)
{
    for (int i = 0; i < s->n; i++)
        if (strstr(s->t[i].name, part)) return &s->t[i];
    fail_msg("no %s", part);
    return NULL;
}

static void write_all(const struct spec *s, const struct pair *change)
{
    write_changed("d", base_drafter, dflash2, change);
    write_weights("d", s);
}

static void tensor_is(const struct gguf *g, const char *name, const char *hf, uint32_t type, int64_t ne0,
                      int64_t ne1, int64_t ne2)
{
    const struct gguf_tensor *t = gguf_tensor(g, name);
    if (!t) fail_msg("no %s", name);
    assert_int_equal(t->type, type);
    assert_int_equal(t->ne[0], ne0);
    assert_int_equal(t->ne[1], ne1);
    assert_int_equal(t->ne[2], ne2);
    for (int64_t i = 0; i < ne0 * ne1 * ne2; i++) {
        uint32_t want = (uint32_t)value_bits(hf, (uint64_t)i) << 16, got = 0;
        if (type == KN_F32)
            memcpy(&got, t->data + 4 * i, 4);
        else
            memcpy((uint8_t *)&got + 2, t->data + 2 * i, 2);
        assert_int_equal(got, want);
    }
}

static void test_convert(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct spec s = dflash2_spec(i ? ".weight" : "");
        write_all(&s, NULL);
        struct convert o = options("d");
        convert_ok(&o);
        struct gguf *g = open_out();
        const char *suffix = i ? ".weight" : "";
        char book[96];
        assert_int_equal(g->n_tensors, 3 + 11 * LAYERS + 4 * LAYERS + 3);
        assert_int_equal(u32(g, "dflash.conv_kernel_size"), KERNEL);
        assert_int_equal(u32(g, "dflash.conv_group_size"), GROUP);
        assert_int_equal(u32(g, "dflash.selector_rank"), RANK);
        assert_int_equal(u32(g, "dflash.selector_top_k"), TOP_K);
        array_is(g, "dflash.attention.causal_pattern", GGUF_BOOL, (int64_t[]){0, 0}, 2);
        tensor_is(g, "blk.1.attn_conv_base", "layers.1.attention_conv.base_kernel", KN_F32, EMBD, KERNEL, 2);
        tensor_is(g, "blk.0.ffn_conv_base", "layers.0.mlp_conv.base_kernel", KN_F32, EMBD, KERNEL, 2);
        tensor_is(g, "blk.1.ffn_conv_proj.weight", "layers.1.mlp_conv.kernel_projection.weight", KN_BF16,
                  EMBD, 8, 1);
        snprintf(book, sizeof book, "candidate_selector.predecessor_codebook%s", suffix);
        tensor_is(g, "selector_predecessor.weight", book, KN_BF16, RANK, VOCAB, 1);
        snprintf(book, sizeof book, "candidate_selector.successor_codebook%s", suffix);
        tensor_is(g, "selector_successor.weight", book, KN_BF16, RANK, VOCAB, 1);
        tensor_is(g, "selector_hidden.weight", "candidate_selector.hidden_projection.weight", KN_BF16, EMBD,
                  RANK, 1);
        gguf_close(g);
    }
}

static void test_described(void **state)
{
    (void)state;
    struct spec s = dflash2_spec("");
    struct err e = {0};
    struct desc *d;
    write_all(&s, NULL);
    struct convert o = options("d");
    convert_ok(&o);
    struct gguf *g = open_out();
    if (desc_read(&d, g, NULL, &e)) fail_msg("%s", e.msg);
    assert_string_equal(d->kind, "DFlash2");
    assert_int_equal(d->conv_kernel, KERNEL);
    assert_int_equal(d->conv_group, GROUP);
    assert_int_equal(d->selector_rank, RANK);
    assert_int_equal(d->selector_k, TOP_K);
    assert_non_null(strstr(d->pieces, "dflash.conv_kernel_size 2"));
    assert_non_null(strstr(d->pieces, "blk.0.attn_conv_base [32, 2, 2]"));
    assert_null(strstr(d->pieces, "blk.1."));
    assert_true(d->runs);
    assert_int_equal(desc_runnable(d, &e), 0);
    assert_int_equal(d->first_row, 1);
    assert_int_equal(desc_cycle_rows(d), d->block_size);
    desc_free(d);
    gguf_close(g);
}

/* Without is_causal no layer of a DFlash2 is causal, whether it slides or not. */
static void test_causal(void **state)
{
    (void)state;
    static const struct pair silent[] = {{"is_causal", NULL}, {NULL, NULL}};
    struct spec s = dflash2_spec("");
    write_all(&s, silent);
    struct convert o = options("d");
    convert_ok(&o);
    struct gguf *g = open_out();
    assert_null(gguf_find(g, "dflash.attention.causal"));
    array_is(g, "dflash.attention.sliding_window_pattern", GGUF_BOOL, (int64_t[]){1, 0}, 2);
    array_is(g, "dflash.attention.causal_pattern", GGUF_BOOL, (int64_t[]){0, 0}, 2);
    gguf_close(g);
}

#define CONFIG(parts) "{\"mask_token_id\": 39, \"target_layer_ids\": [0, 1], " parts "}"

static void test_refused(void **state)
{
    (void)state;
    static const struct {
        struct pair change[3];
        const char *msg;
    } c[] = {
        {{{"dflash_config",
           CONFIG("\"conv_kernel_size\": 2, \"conv_group_size\": 16, \"selector_rank\": 8")}},
         "d/config.json: selector_top_k is missing (expected at dflash_config.selector_top_k or "
         "selector_top_k)"},
        {{{"dflash_config", CONFIG("\"conv_group_size\": 16, \"selector_rank\": 8, \"selector_top_k\": 4")}},
         "d/config.json: conv_kernel_size is missing..."},
        {{{"dflash_config", CONFIG("\"conv_kernel_size\": 3, \"conv_group_size\": 16, \"selector_rank\": 8, "
                                   "\"selector_top_k\": 4")}},
         "d: layers.0.attention_conv.base_kernel has the wrong shape: dimension 1 (expected 3 as in "
         "conv_kernel_size, got 2)"},
        {{{"dflash_config", CONFIG("\"conv_kernel_size\": 2, \"conv_group_size\": 16, \"selector_rank\": 9, "
                                   "\"selector_top_k\": 4")}},
         "d: candidate_selector.predecessor_codebook has the wrong shape: dimension 1 (expected 9 as in "
         "selector_rank, got 8)"},
        {{{"dflash_config", CONFIG("\"conv_kernel_size\": 2, \"conv_group_size\": 8, \"selector_rank\": 8, "
                                   "\"selector_top_k\": 4")}},
         "d: layers.0.attention_conv.kernel_projection.weight does not fit conv_kernel_size 2 and "
         "conv_group_size 8 (expected 16 rows, got 8)"},
        {{{"dflash_config", CONFIG("\"conv_kernel_size\": 2, \"conv_group_size\": 7, \"selector_rank\": 8, "
                                   "\"selector_top_k\": 4")}},
         "d/config.json: conv_group_size does not divide the width (expected a divisor of 32, got 7)"},
        {{{"vocab_size", "41"}},
         "d: candidate_selector.predecessor_codebook: rows (expected the vocabulary's 41, got 40)"},
        {{{"architectures", "[\"DFlashDraftModel\"]"}},
         "d/config.json: key dflash_config.conv_kernel_size shows a DFlash2 drafter..."},
        {{{"markov_rank", "4"}}, "d/config.json: key markov_rank shows a DSpark drafter..."},
        {{{"architectures", "[\"Qwen3DSparkModel\"]"}},
         "d/config.json: key dflash_config.conv_kernel_size shows a DFlash2 drafter, which is not supported "
         "(expected a plain Qwen3DSparkModel)"},
        {{{"architectures", "[\"Gemma4DSparkModel\"]"}},
         "d/config.json: key dflash_config.conv_kernel_size shows a DFlash2 drafter, which is not supported "
         "(expected a plain Gemma4DSparkModel)"},
        {{{"architectures", "[\"OtherAssistantForCausalLM\"]"}},
         "d/config.json: architecture OtherAssistantForCausalLM: MTP assistant drafters are not "
         "supported..."},
        {{{"architectures", "[\"DominoDraftModel\"]"}},
         "d/config.json: key dflash_config.conv_kernel_size shows a DFlash2 drafter, which is not supported "
         "(expected a plain DominoDraftModel)"},
    };
    struct spec s = dflash2_spec("");
    for (size_t i = 0; i < sizeof c / sizeof c[0]; i++) {
        write_all(&s, c[i].change);
        struct convert o = options("d");
        convert_bad(&o, ERR_FORMAT, c[i].msg);
    }
}

static void test_torn(void **state)
{
    (void)state;
    struct spec s = dflash2_spec("");
    struct convert o = options("d");
    named(&s, "successor_codebook")->shape[0] = VOCAB - 1;
    write_all(&s, NULL);
    convert_bad(
        &o, ERR_FORMAT,
        "d: candidate_selector.successor_codebook has the wrong shape: dimension 0 (expected 40 as in "
        "candidate_selector.predecessor_codebook, got 39)");
    s = dflash2_spec("");
    strcpy(named(&s, "layers.1.mlp_conv.base_kernel")->name, "layers.1.mlp_conv.base_kernels");
    write_all(&s, NULL);
    convert_bad(&o, ERR_FORMAT, "d: tensor layers.1.mlp_conv.base_kernel is missing");
    s = dflash2_spec("");
    write_all(&s, NULL);
    unlink("d/config.json");
    o.rope_theta = 1e6;
    o.n_taps = 2;
    o.taps[1] = 1;
    o.mask_id = 39;
    o.block_size = 8;
    convert_bad(&o, ERR_FORMAT, "d: a DFlash2 drafter does not convert without its config.json");
}

/* Other dialects have no names for the pieces; its own keeps every byte. */
static void test_dialects(void **state)
{
    (void)state;
    struct spec s = dflash2_spec("");
    write_all(&s, NULL);
    struct convert o = options("d");
    o.dialect = "ik";
    convert_bad(&o, ERR_FORMAT,
                "d: dialect ik has no place for the parts of a DFlash2 drafter (convolutions, a...");
    o = options("d");
    o.dialect = "upstream";
    o.output = "up.gguf";
    convert_ok(&o);
    o = options("up.gguf");
    convert_ok(&o);
    struct err e = {0};
    struct gguf *a, *b;
    assert_int_equal(gguf_open(&a, "up.gguf", &e), 0);
    b = open_out();
    assert_int_equal(a->map.size, b->map.size);
    for (uint64_t i = 0; i < a->n_tensors; i++)
        assert_memory_equal(a->tensor[i].data, b->tensor[i].data, a->tensor[i].bytes);
    gguf_close(a);
    gguf_close(b);
    o = options("up.gguf");
    o.dialect = "lucebox";
    convert_bad(&o, ERR_FORMAT,
                "up.gguf: dialect lucebox has no place for the parts of a DFlash2 drafter (dflash.con...");
}

/* ---- files that were changed ---- */

/* A GGUF like that at from, of which something is other. */
struct change {
    const char *drop;   /* a tensor or a key */
    const char *key;    /* that has another value, */
    int32_t value;      /* this one */
    const char *tensor; /* that has another shape: */
    int64_t ne[3];      /* this one, and zeros */
    const char *more;   /* one tensor more, of [8] zeros */
    const char *put;    /* one key more */
    bool lucebox;       /* as lucebox spells it all */
};

static const char *respelled(const char *name, bool tensor, char *buf, size_t n)
{
    static const char *const names[][2] = {
        {"fc.weight", "dflash.fc.weight"},
        {"enc.output_norm.weight", "dflash.hidden_norm.weight"},
        {"selector_hidden.weight", "selector.hidden_proj.weight"},
        {"selector_predecessor.weight", "selector.pred_codebook"},
        {"selector_successor.weight", "selector.succ_codebook"},
        {"dflash.block_size", "qwen35-dflash-draft.dflash.block_size"},
        {"dflash.conv_kernel_size", "qwen35-dflash-draft.dflash.conv_kernel_size"},
        {"dflash.conv_group_size", "qwen35-dflash-draft.dflash.conv_group_size"},
        {"dflash.selector_rank", "qwen35-dflash-draft.dflash.selector_rank"},
        {"dflash.selector_top_k", "qwen35-dflash-draft.dflash.selector_top_k"},
        {"tokenizer.ggml.mask_token_id", "qwen35-dflash-draft.dflash.mask_token_id"},
    };
    int layer;
    char rest[64];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i][0])) return names[i][1];
    if (tensor && sscanf(name, "blk.%d.%63s", &layer, rest) == 2 && strstr(rest, "_conv_")) {
        snprintf(buf, n, "blk.%d.%s", layer, rest);
        *strstr(strstr(buf, "_conv_") + 1, "_") = '.';
        return buf;
    }
    if (!tensor && !strncmp(name, "dflash.", 7)) {
        snprintf(buf, n, "qwen35-dflash-draft.%s", name + 7);
        return buf;
    }
    return name;
}

static void put_changed(struct gguf_writer *w, const struct gguf_kv *kv, const struct change *c,
                        struct err *e)
{
    char buf[128];
    struct gguf_kv copy = *kv;
    if (c->lucebox) copy.key = (char *)respelled(kv->key, false, buf, sizeof buf);
    if (c->drop && !strcmp(c->drop, kv->key)) return;
    if (c->key && !strcmp(c->key, kv->key))
        assert_int_equal(gguf_put_i32(w, kv->key, c->value, e), 0);
    else if (c->lucebox && !strcmp(kv->key, "general.architecture"))
        assert_int_equal(gguf_put_str(w, kv->key, "qwen35-dflash-draft", 19, e), 0);
    else if (c->lucebox && !strcmp(kv->key, "dflash.target_layers")) {
        const int32_t taps[] = {0, 1}; /* zero-based there */
        assert_int_equal(
            gguf_put_array(w, "qwen35-dflash-draft.dflash.target_layer_ids", GGUF_I32, taps, 2, e), 0);
    } else
        assert_int_equal(gguf_put_kv(w, &copy, e), 0);
}

static void change_file(const char *from, const char *to, const struct change *c)
{
    static const float zeros[4096];
    struct err e = {0};
    struct gguf *g;
    struct gguf_writer *w;
    struct io_out o = {.fd = -1};
    char buf[128];
    if (gguf_open(&g, from, &e) || gguf_writer_new(&w, &e)) fail_msg("%s", e.msg);
    for (uint64_t i = 0; i < g->n_kv; i++) put_changed(w, &g->kv[i], c, &e);
    if (c->put) assert_int_equal(gguf_put_u32(w, c->put, 1, &e), 0);
    for (int data = 0; data < 2; data++) {
        if (data && (io_out_open(&o, to, true, NULL, 0, &e) || gguf_write_header(w, &o, &e)))
            fail_msg("%s", e.msg);
        for (uint64_t i = 0; i < g->n_tensors; i++) {
            const struct gguf_tensor *t = &g->tensor[i];
            const bool other = c->tensor && !strcmp(c->tensor, t->name);
            const int64_t ne[4] = {c->ne[0], c->ne[1] ? c->ne[1] : 1, c->ne[2] ? c->ne[2] : 1, 1};
            if (c->drop && !strcmp(c->drop, t->name)) continue;
            const int rc =
                data ? gguf_write_data(
                           w, &o, other ? (const void *)zeros : t->data,
                           other ? kn_row_bytes(t->type, ne[0]) * (uint64_t)(ne[1] * ne[2]) : t->bytes, &e)
                     : gguf_add_tensor(w, c->lucebox ? respelled(t->name, true, buf, sizeof buf) : t->name,
                                       t->type, other ? 3 : t->n_dims, other ? ne : t->ne, &e);
            if (rc) fail_msg("%s", e.msg);
        }
        const int64_t eight[4] = {8, 1, 1, 1};
        if (c->more && (data ? gguf_write_data(w, &o, zeros, 32, &e)
                             : gguf_add_tensor(w, c->more, KN_F32, 1, eight, &e)))
            fail_msg("%s", e.msg);
    }
    if (gguf_write_end(w, &o, &e) || io_out_commit(&o, &e)) fail_msg("%s", e.msg);
    gguf_writer_free(w);
    gguf_close(g);
}

/* The names that lucebox and buun use: read as the same drafter, and converted back to it. */
static void test_lucebox(void **state)
{
    (void)state;
    static const struct change lucebox = {.lucebox = true};
    struct spec s = dflash2_spec("");
    struct err e = {0};
    struct desc *a, *b;
    write_all(&s, NULL);
    struct convert o = options("d");
    o.output = "up.gguf";
    convert_ok(&o);
    change_file("up.gguf", "luce.gguf", &lucebox);
    struct gguf *up, *luce, *back;
    if (gguf_open(&up, "up.gguf", &e) || gguf_open(&luce, "luce.gguf", &e) || desc_read(&a, up, NULL, &e) ||
        desc_read(&b, luce, NULL, &e))
        fail_msg("%s", e.msg);
    assert_non_null(gguf_tensor(luce, "blk.1.ffn_conv.proj.weight"));
    assert_string_equal(b->dialect, "lucebox");
    assert_string_equal(b->kind, "DFlash2");
    assert_true(b->runs);
    assert_int_equal(b->conv_kernel, a->conv_kernel);
    assert_int_equal(b->conv_group, a->conv_group);
    assert_int_equal(b->selector_rank, a->selector_rank);
    assert_int_equal(b->selector_k, a->selector_k);
    assert_int_equal(b->n_vocab, a->n_vocab);
    desc_free(b);
    o = options("luce.gguf");
    o.dialect = "upstream";
    convert_ok(&o);
    back = open_out();
    assert_int_equal(back->n_tensors, up->n_tensors);
    for (uint64_t i = 0; i < up->n_tensors; i++) {
        const struct gguf_tensor *t = gguf_tensor(back, up->tensor[i].name);
        if (!t) fail_msg("no %s", up->tensor[i].name);
        assert_memory_equal(t->data, up->tensor[i].data, t->bytes);
    }
    if (desc_read(&b, back, NULL, &e)) fail_msg("%s", e.msg);
    assert_string_equal(b->dialect, "upstream");
    assert_int_equal(b->selector_k, a->selector_k);
    o = options("luce.gguf"); /* what other readers than its own call the pieces is not known */
    o.dialect = "buun";
    convert_bad(&o, ERR_FORMAT, "luce.gguf: dialect buun has no place for the parts of a DFlash2 drafter...");
    desc_free(a), desc_free(b);
    gguf_close(up), gguf_close(luce), gguf_close(back);
}

static const struct {
    struct change c;
    const char *msg;
} malformed[] = {
    {{.drop = "dflash.conv_kernel_size"}, "key 'dflash.conv_kernel_size': is missing"},
    {{.drop = "dflash.conv_group_size"}, "key 'dflash.conv_group_size': is missing"},
    {{.drop = "dflash.selector_rank"}, "key 'dflash.selector_rank': is missing"},
    {{.drop = "dflash.selector_top_k"}, "key 'dflash.selector_top_k': is missing"},
    {{.drop = "blk.1.attn_conv_base"}, "tensor 'blk.1.attn_conv_base': is missing"},
    {{.drop = "blk.0.ffn_conv_proj.weight"}, "tensor 'blk.0.ffn_conv_proj.weight': is missing"},
    {{.drop = "selector_predecessor.weight"}, "tensor 'selector_predecessor.weight': is missing"},
    {{.drop = "selector_successor.weight"}, "tensor 'selector_successor.weight': is missing"},
    {{.drop = "selector_hidden.weight"}, "tensor 'selector_hidden.weight': is missing"},
    {{.key = "dflash.conv_kernel_size", .value = 0}, "key 'dflash.conv_kernel_size': out of range"},
    {{.key = "dflash.conv_kernel_size", .value = 3}, "tensor 'blk.0.attn_conv_base': has the wrong shape"},
    {{.key = "dflash.conv_group_size", .value = 7},
     "key 'dflash.conv_group_size': does not divide the width"},
    {{.key = "dflash.conv_group_size", .value = 8},
     "tensor 'blk.0.attn_conv_proj.weight': has the wrong shape"},
    {{.key = "dflash.selector_rank", .value = 9},
     "tensor 'selector_predecessor.weight': has the wrong shape"},
    {{.key = "dflash.selector_top_k", .value = 0}, "key 'dflash.selector_top_k': out of range"},
    {{.key = "dflash.selector_top_k", .value = VOCAB + 1},
     "key 'dflash.selector_top_k': more than the vocabulary (expected at most 40, got 41)"},
    {{.tensor = "selector_successor.weight", .ne = {RANK, VOCAB - 1}},
     "tensor 'selector_successor.weight': has the wrong shape"},
    {{.tensor = "selector_predecessor.weight", .ne = {RANK, VOCAB + 1}},
     "tensor 'selector_predecessor.weight': rows (expected the vocabulary's 40, got 41)"},
    {{.tensor = "selector_hidden.weight", .ne = {EMBD, RANK + 1}},
     "tensor 'selector_hidden.weight': has the wrong shape"},
    {{.tensor = "blk.1.ffn_conv_base", .ne = {EMBD, KERNEL, 1}},
     "tensor 'blk.1.ffn_conv_base': has the wrong shape"},
    {{.more = "blk.0.attn_conv_gate"}, "tensor 'blk.0.attn_conv_gate': is not part of a dflash model"},
    {{.more = "blk.2.attn_conv_base"}, "tensor 'blk.2.attn_conv_base': is not part of a dflash model"},
    {{.more = "selector.pred_codebook"}, "tensor 'selector.pred_codebook': is not part of a dflash model"},
    {{.more = "selector_bias"}, "tensor 'selector_bias': is not part of a dflash model"},
    {{.put = "dflash.selector_temperature"}, "key 'dflash.selector_temperature': is not known"},
    {{.more = "blk.1.attn_sinks.weight"}, "tensor 'blk.1.attn_sinks.weight': has the wrong shape"},
    {{.more = "blk.1.attn_gate.weight"}, NULL},
    {{.more = "lilicorr.out_head.weight"}, NULL},
    {{.more = "injection.message.weight"}, NULL},
    {{.more = "transfer_codes"}, NULL},
    {{.put = "dflash.dspine.message_size"}, NULL},
};

/* Files that are no sound DFlash2. */
static void test_malformed(void **state)
{
    (void)state;
    struct spec s = dflash2_spec("");
    write_all(&s, NULL);
    struct convert o = options("d");
    o.output = "up.gguf";
    convert_ok(&o);
    for (size_t i = 0; i < sizeof malformed / sizeof *malformed; i++) {
        struct err e = {0};
        struct gguf *g;
        struct desc *d;
        change_file("up.gguf", "bad.gguf", &malformed[i].c);
        if (gguf_open(&g, "bad.gguf", &e)) fail_msg("%s", e.msg);
        const int rc = desc_read(&d, g, NULL, &e);
        if (malformed[i].msg) {
            if (rc != -1 || e.code != ERR_FORMAT) fail_msg("read; expected %s", malformed[i].msg);
            if (!strstr(e.msg, malformed[i].msg)) fail_msg("got %s; expected %s", e.msg, malformed[i].msg);
        } else { /* a piece too many: never drafted without it */
            if (rc == 0) assert_int_equal(desc_runnable(d, &e), -1);
            if (rc == 0) desc_free(d);
        }
        gguf_close(g);
    }
}

static void ignore(void *ctx, const struct diff_tensor *t)
{
    (void)ctx;
    (void)t;
}

/* The checkpoint against its GGUF, through the same tables. */
static void test_diff(void **state)
{
    (void)state;
    struct spec s = dflash2_spec(".weight");
    struct err e = {0};
    struct diff_total total;
    write_all(&s, NULL);
    struct convert o = options("d");
    convert_ok(&o);
    if (diff_files("d", "out.gguf", 1, &(struct diff_fns){.tensor = ignore}, NULL, &total, &e))
        fail_msg("%s", e.msg);
    assert_int_equal(total.tensors, 3 + 15 * LAYERS + 3);
    assert_int_equal(total.identical, total.tensors);
    assert_int_equal(total.missing, 0);
}

/* The published shape has 81 tensors. */
static void test_random(void **state)
{
    (void)state;
    static const struct pair five[] = {
        {"num_hidden_layers", "5"},
        {"layer_types",
         "[\"sliding_attention\", \"sliding_attention\", \"sliding_attention\", \"sliding_attention\", "
         "\"sliding_attention\"]"},
        {NULL, NULL}};
    struct spec s = dflash2_spec("");
    write_all(&s, five);
    struct convert o = options("d/config.json");
    o.random = true;
    o.seed = 3;
    convert_ok(&o);
    struct gguf *g = open_out();
    struct err e = {0};
    struct desc *d;
    assert_int_equal(g->n_tensors, 81);
    if (desc_read(&d, g, NULL, &e)) fail_msg("%s", e.msg);
    assert_string_equal(d->kind, "DFlash2");
    desc_free(d);
    gguf_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_convert),   cmocka_unit_test(test_described), cmocka_unit_test(test_causal),
        cmocka_unit_test(test_refused),   cmocka_unit_test(test_torn),      cmocka_unit_test(test_dialects),
        cmocka_unit_test(test_random),    cmocka_unit_test(test_diff),      cmocka_unit_test(test_lucebox),
        cmocka_unit_test(test_malformed),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
