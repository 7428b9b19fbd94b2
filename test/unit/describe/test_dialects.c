/* test_dialects.c - one drafter in every dialect: read to one description, relabelled without loss, and
 * refused with the reason where a file leaves open what it means. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../../../common/make/convert.h"
#include "../../../common/describe/desc.h"
#include "../../../common/describe/dialect.h"
#include "../../../common/base/mem.h"
#include "../../dialect_files.h"
#include "../scratch.h"

static struct df_drafter drafter;
static const struct df_change plain = {0};
static char said[8192];

static void say(void *ctx, enum convert_level level, const char *text)
{
    (void)ctx;
    (void)level;
    snprintf(said + strlen(said), sizeof said - strlen(said), "%s\n", text);
}

static const struct spelling *spelling(const char *name)
{
    for (int i = 0; i < N_SPELLINGS; i++)
        if (!strcmp(spellings[i].name, name)) return &spellings[i];
    fail_msg("no spelling %s", name);
    return NULL;
}

static const char *write_file(const char *file, const char *name, const struct df_change *c)
{
    struct err e = {0};
    const char *path = scratch(file);
    if (df_write(path, &drafter, spelling(name), c, &e)) fail_msg("%s", e.msg);
    return path;
}

/* Description of a file, or NULL with e. */
static struct desc *describe(const char *path, const struct desc_override *o, struct err *e)
{
    struct gguf *g;
    struct desc *d = NULL;
    if (gguf_open(&g, path, e)) fail_msg("%s", e->msg);
    desc_read(&d, g, o, e);
    gguf_close(g);
    return d;
}

static struct desc *read_as(const char *name, const struct df_change *c, const struct desc_override *o)
{
    struct err e = {0};
    struct desc *d = describe(write_file("a.gguf", name, c), o, &e);
    if (!d) fail_msg("%s: %s", name, e.msg);
    return d;
}

static void refused(const char *name, const struct df_change *c, const struct desc_override *o,
                    enum err_class code, const char *what, const char *hint)
{
    struct err e = {0};
    struct desc *d = describe(write_file("a.gguf", name, c), o, &e);
    if (d) fail_msg("%s: read, expected '%s'", name, what);
    if (e.code != code || !strstr(e.msg, what))
        fail_msg("%s: got (%d) %s; expected %s", name, e.code, e.msg, what);
    if (!strstr(e.hint, hint ? hint : "")) fail_msg("%s: hint %s; expected %s", name, e.hint, hint);
    if (!hint && e.hint[0]) fail_msg("%s: a hint: %s", name, e.hint);
}

/* All that decides the forward pass. */
static void same_description(const struct desc *a, const struct desc *b)
{
    assert_int_equal(a->n_layer, b->n_layer);
    assert_int_equal(a->n_embd, b->n_embd);
    assert_int_equal(a->n_vocab, b->n_vocab);
    assert_int_equal(a->n_ctx_train, b->n_ctx_train);
    assert_true(a->rms_eps == b->rms_eps);
    assert_int_equal(a->tied_head, b->tied_head);
    assert_memory_equal(a->layer, b->layer, sizeof a->layer);
    assert_int_equal(a->n_rope, b->n_rope);
    assert_memory_equal(&a->rope[0], &b->rope[0], sizeof a->rope[0]);
    assert_int_equal(a->block_size, b->block_size);
    assert_int_equal(a->mask_id, b->mask_id);
    assert_int_equal(a->n_taps, b->n_taps);
    assert_memory_equal(a->taps, b->taps, sizeof a->taps);
    assert_int_equal(a->n_features, b->n_features);
    assert_int_equal(a->has_embedding_scale, b->has_embedding_scale);
    assert_int_equal(a->has_softcap, b->has_softcap);
    assert_string_equal(a->kind, b->kind);
    assert_string_equal(a->pieces, b->pieces);
}

/* The name that a spelling is recognised by. */
static const char *recognised(const char *name)
{
    return !strcmp(name, "unshifted-2") ? "unshifted" : !strcmp(name, "lucebox-names") ? "lucebox" : name;
}

static void test_read(void **state)
{
    (void)state;
    const struct desc_override bidirectional = {.draft_causal = 0};
    for (int windows = 0; windows < 2; windows++) {
        const struct df_change c = {.windows = windows};
        const struct desc_override *o = windows ? &bidirectional : NULL;
        struct desc *up = read_as("upstream", &c, o);
        assert_int_equal(up->layer[0].window, windows ? DF_WINDOW : 0);
        assert_int_equal(up->n_taps, DF_TAPS);
        assert_memory_equal(up->taps, df_taps, sizeof df_taps);
        assert_int_equal(up->mask_id, DF_MASK);
        assert_int_equal(up->block_size, DF_BLOCK);
        for (int i = 0; i < N_SPELLINGS; i++) {
            if (windows && !spellings[i].pattern) continue;
            struct desc *d = read_as(spellings[i].name, &c, o);
            assert_string_equal(d->dialect, recognised(spellings[i].name));
            assert_string_equal(d->arch_name, spellings[i].arch);
            assert_int_equal(d->tap_shift, spellings[i].shift);
            same_description(up, d);
            desc_free(d);
        }
        desc_free(up);
    }
}

static int is_causal(struct gguf_writer *w, struct err *e)
{
    return gguf_put_bool(w, "dflash-draft.attention.causal", true, e);
}
static int is_laguna(struct gguf_writer *w, struct err *e)
{
    return gguf_put_bool(w, "dflash-draft.dflash.laguna", true, e);
}
static int is_no_laguna(struct gguf_writer *w, struct err *e)
{
    return gguf_put_bool(w, "dflash-draft.dflash.laguna", false, e);
}
static int is_bidirectional(struct gguf_writer *w, struct err *e)
{
    return gguf_put_bool(w, "dflash.attention.causal", false, e);
}

/* Which layers are causal: what is not said is inferred of the windows, and so it is in the dialect ik, whose
 * writers say false whatever the drafter is and whose readers do not look, but for Laguna. */
static void test_causal(void **state)
{
    (void)state;
    const struct df_change windows = {.windows = true};
    for (int i = 0; i < N_SPELLINGS; i++) {
        if (!spellings[i].pattern) continue;
        struct desc *d = read_as(spellings[i].name, &windows, NULL);
        assert_true(d->causal_inferred);
        assert_int_equal(d->causal_ignored, spellings[i].causal >= 0);
        assert_true(d->layer[0].causal);
        assert_false(d->layer[1].causal);
        desc_free(d);
    }
    const struct desc_override none = {.draft_causal = 0};
    static const struct {
        const char *name;
        struct df_change c;
        bool given, inferred, ignored, first, second;
    } k[] = {
        {"ik", {.windows = false}, false, true, false, false, false}, /* what it says is right */
        {"ik", {.windows = true, .edit = is_causal}, false, true, true, true, false},
        {"ik", {.windows = true, .edit = is_no_laguna}, false, true, true, true, false},
        {"ik", {.windows = true, .edit = is_laguna}, false, false, false, false, false},
        {"ik", {.windows = true}, true, false, false, false, false},
        {"upstream", {.windows = true, .edit = is_bidirectional}, false, false, false, false, false},
    };
    for (size_t i = 0; i < sizeof k / sizeof *k; i++) {
        struct desc *d = read_as(k[i].name, &k[i].c, k[i].given ? &none : NULL);
        if (d->causal_inferred != k[i].inferred || d->causal_ignored != k[i].ignored ||
            d->layer[0].causal != k[i].first || d->layer[1].causal != k[i].second)
            fail_msg("case %zu: %d %d %d %d", i, d->causal_inferred, d->causal_ignored, d->layer[0].causal,
                     d->layer[1].causal);
        desc_free(d);
    }
}

/* ---- quirks ---- */

static int lie(struct gguf_writer *w, struct err *e)
{
    return gguf_put_u32(w, "gemma4-dflash-draft.dflash.n_target_layers", 60, e);
}
static int features_lie(struct gguf_writer *w, struct err *e)
{
    return gguf_put_u32(w, "dflash-draft.dflash.n_target_features", 60, e);
}
static int width_lies(struct gguf_writer *w, struct err *e)
{
    return gguf_put_u32(w, "dflash.target_hidden_size", DF_EMBD + 1, e);
}
static int mask_elsewhere(struct gguf_writer *w, struct err *e)
{
    return gguf_put_u32(w, "dflash.mask_token_id", DF_MASK, e);
}
static int two_masks(struct gguf_writer *w, struct err *e)
{
    return gguf_put_u32(w, "dflash.mask_token_id", DF_MASK - 1, e);
}
static int both_taps(struct gguf_writer *w, struct err *e)
{
    return gguf_put_array(w, "dflash.target_layer_ids", GGUF_I32, df_taps, DF_TAPS, e);
}
static int unshifted_ids(struct gguf_writer *w, struct err *e)
{
    return gguf_put_array(w, "dflash.target_layers", GGUF_I32, df_taps, DF_TAPS, e);
}
static int below_ids(struct gguf_writer *w, struct err *e)
{
    return gguf_put_array(w, "dflash.target_layers", GGUF_I32, (const int32_t[]){-1, 2}, 2, e);
}
static int other_arch(struct gguf_writer *w, struct err *e)
{
    return gguf_put_str(w, "general.architecture", "dflash-draft", 12, e);
}
static int unknown_arch(struct gguf_writer *w, struct err *e)
{
    return gguf_put_str(w, "general.architecture", "phi-dflash", 10, e);
}
static int deepseek(struct gguf_writer *w, struct err *e)
{
    return gguf_put_str(w, "general.architecture", "deepseek4-dflash-draft", 22, e);
}
static int unknown_key(struct gguf_writer *w, struct err *e)
{
    return gguf_put_u32(w, "dflash-draft.dflash.depth", 3, e);
}
static int other_ids(struct gguf_writer *w, struct err *e)
{
    const float ids[] = {0, 2};
    return gguf_put_array(w, "qwen35-dflash-draft.dflash.target_layer_ids", GGUF_F32, ids, 2, e);
}
static int scaled(struct gguf_writer *w, struct err *e)
{
    return gguf_put_f32(w, "dflash.logit_scale", -0.5f, e);
}

static void test_lies(void **state)
{
    (void)state;
    struct df_change c = {.edit = lie};
    struct desc *d = read_as("lucebox-gemma4", &c, NULL);
    assert_int_equal(d->n_taps, DF_TAPS);
    assert_string_equal(d->inferred,
                        "gemma4-dflash-draft.dflash.n_target_layers says 60: not used, there are 2 taps");
    desc_free(d);
    c.edit = features_lie;
    refused(
        "ik", &c, NULL, ERR_FORMAT,
        "key 'dflash-draft.dflash.n_target_features': disagrees with dflash_fc.weight (expected 64, got 60)",
        NULL);
    c.edit = width_lies;
    refused("unshifted", &c, NULL, ERR_FORMAT,
            "key 'dflash.target_hidden_size': disagrees with fc.weight (expected 32, got 33)", NULL);
}

static const struct {
    const char *name;
    struct df_change c;
    const char *what, *hint;
} refusals[] = {
    {"upstream",
     {.edit = other_arch},
     "keys begin with 'dflash.' (expected 'dflash-draft.', as general.arch",
     NULL},
    {"upstream",
     {.edit = unknown_arch},
     "drafter dialect not supported (expected architecture dflash, dfl",
     NULL},
    {"upstream", {.edit = deepseek}, "a DeepSeek V4 drafter of lucebox", NULL},
    {"upstream", {.edit = both_taps}, "taps under two keys", "--draft-dialect upstream, unshifted or rx"},
    {"upstream", {.edit = below_ids}, "element 0 out of range (expected 0 to 1024, got -1)", NULL},
    {"upstream",
     {.edit = scaled},
     "key 'dflash.logit_scale': out of range (expected a finite number above 0, got -0.5)",
     NULL},
    {"upstream", {.drop = "@.target_layers"}, "the taps are missing", "--draft-taps LIST"},
    {"upstream", {.drop = "tokenizer.ggml.mask_token_id"}, "mask_token_id': is missing", "--draft-mask-id N"},
    {"upstream",
     {.drop = "tokenizer.ggml.mask_token_id", .edit = mask_elsewhere},
     "whether it counts from the embeddings or from block 0 is not known",
     "--draft-tap-shift 1 (from the embeddings) or --draft-tap-shift 0"},
    {"upstream",
     {.edit = two_masks},
     "disagree about the mask token (got 39 and 38)",
     "--draft-mask-id N says"},
    {"unshifted-2",
     {.edit = two_masks},
     "disagree about the mask token (got 38 and 39)",
     "--draft-mask-id N says"},
    {"upstream", {.extra_tensor = "blk.0.attn_post_norm.weight"}, "is not part of a dflash model", NULL},
    {"upstream",
     {.extra_tensor = "dflash_hidden_norm.weight"},
     "tensor 'dflash_hidden_norm.weight': is not",
     NULL},
    {"rx", {.drop = "@.mask_token_id"}, "key 'dflash.mask_token_id': is missing", "--draft-mask-id N"},
    {"ik", {.edit = unknown_key}, "key 'dflash-draft.dflash.depth': is not supported", NULL},
    {"ik",
     {.drop = "@.rope.freq_base"},
     "key 'dflash-draft.rope.freq_base': is missing",
     "--draft-rope-theta X"},
    {"ik", {.drop = "@.dflash.target_layer_ids"}, "target_layer_ids': is missing", "--draft-taps LIST"},
    {"ik", {.drop_tensor = "fc.weight"}, "'dflash_fc.weight': is missing, and 'dflash.fc.weight' too", NULL},
    {"buun",
     {.drop_tensor = "blk.1.ffn_norm.weight"},
     "'blk.1.post_attention_norm.weight': is missing",
     NULL},
    {"buun",
     {.extra_tensor = "blk.1.ffn_norm.weight"},
     "tensor 'blk.1.ffn_norm.weight': is not part of",
     NULL},
    {"buun",
     {.windows = true, .drop = "@.attention.sliding_window_pattern"},
     "sliding_window_pattern': is missing",
     "--draft-sliding-pattern TEXT"},
    {"lucebox",
     {.windows = true, .drop = "@.attention.sliding_window_pattern"},
     "sliding_window_pattern': is missing",
     "--draft-sliding-pattern TEXT"},
    {"lucebox",
     {.drop = "@.dflash.target_layer_ids"},
     "key 'qwen35-dflash-draft.dflash.target_layer_ids': is missing",
     "--draft-taps LIST"},
    {"lucebox", {.edit = other_ids}, "has the wrong type (expected 1 to 64 of i32, got f32[2])", NULL},
    {"lucebox", {.drop = "@.dflash.block_size"}, "dflash.block_size': is missing", "--draft-block-size N"},
    {"lucebox", {.drop = "@.rope.freq_base"}, "rope.freq_base': is missing", "--draft-rope-theta X"},
};

static void test_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++)
        refused(refusals[i].name, &refusals[i].c, NULL, ERR_FORMAT, refusals[i].what, refusals[i].hint);
}

/* What is refused above reads with the flag of its hint, to the same description. */
static void test_flags(void **state)
{
    (void)state;
    const struct {
        const char *name;
        struct df_change c;
        struct desc_override o;
    } r[] = {
        {"upstream", {.drop = "@.target_layers"}, {.n_taps = 2, .taps = {0, 2}}},
        {"rx", {.drop = "@.target_layer_ids"}, {.n_taps = 2, .taps = {0, 2}}},
        {"unshifted", {.drop = "@.target_layers"}, {.n_taps = 2, .taps = {0, 2}}},
        {"lucebox", {.drop = "@.dflash.target_layer_ids"}, {.n_taps = 2, .taps = {0, 2}}},
        {"buun", {.drop = "@.dflash.target_layer_ids"}, {.n_taps = 2, .taps = {0, 2}}},
        {"upstream", {.drop = "tokenizer.ggml.mask_token_id"}, {.has_mask_id = true, .mask_id = DF_MASK}},
        {"upstream",
         {.drop = "tokenizer.ggml.mask_token_id", .edit = mask_elsewhere},
         {.has_tap_shift = true, .tap_shift = 1}},
        {"upstream", {.edit = unshifted_ids}, {.has_tap_shift = true, .tap_shift = 0}},
        {"upstream", {.edit = both_taps}, {.dialect = "upstream"}},
        {"lucebox", {.drop = "@.dflash.block_size"}, {.block_size = DF_BLOCK}},
        {"lucebox", {.drop = "@.rope.freq_base"}, {.rope_theta = 10000}},
        {"ik", {.drop = "@.dflash.mask_token_id"}, {.has_mask_id = true, .mask_id = DF_MASK}},
        {"lucebox",
         {.windows = true, .drop = "@.attention.sliding_window_pattern"},
         {.sliding_pattern = "ff"}},
    };
    struct desc *up = read_as("upstream", &plain, NULL);
    for (size_t i = 0; i < sizeof r / sizeof r[0]; i++) {
        struct desc_override o = r[i].o;
        o.draft_causal = -1;
        struct desc *d = read_as(r[i].name, &r[i].c, &o);
        same_description(up, d);
        assert_int_equal(d->taps_given, o.n_taps > 0);
        desc_free(d);
    }
    desc_free(up);
}

static void test_wrong_flags(void **state)
{
    (void)state;
    struct desc_override o = {.draft_causal = -1, .dialect = "ik", .flag = "--"};
    refused("upstream", &plain, &o, ERR_FORMAT,
            "dialect ik has another architecture (expected dflash-draft, got dfl", NULL);
    o.dialect = "gguf";
    refused("upstream", &plain, &o, ERR_USAGE, "--from-dialect gguf is not known (expected upstream, ", NULL);
    o = (struct desc_override){.draft_causal = -1, .n_taps = 3, .taps = {0, 1, 2}, .flag = "--"};
    refused("upstream", &plain, &o, ERR_FORMAT, "its width 64 is no multiple of the 3 taps of --taps", NULL);
    o = (struct desc_override){.draft_causal = -1, .sliding_pattern = "sf", .flag = "--"};
    refused("upstream", &plain, &o, ERR_USAGE, "(expected --sliding-window N)", NULL);
    o.sliding_pattern = "sfs";
    refused("upstream", &plain, &o, ERR_USAGE, "--sliding-pattern: expected 2 letters s or f", NULL);
    o.sliding_pattern = "fF";
    refused("upstream", &plain, &o, ERR_USAGE, "--sliding-pattern: expected 2 letters s or f", NULL);
    o = (struct desc_override){.draft_causal = -1, .sliding_window = 9};
    refused("upstream", &plain, &o, ERR_FORMAT, "sliding_window_pattern': is missing",
            "--draft-sliding-pattern");
    o = (struct desc_override){.draft_causal = -1, .has_tap_shift = true, .tap_shift = 1};
    refused("buun", &plain, &o, ERR_FORMAT, "element 0 out of range (expected 1 to 1024, got 0)", NULL);
}

/* A flag that changes what the drafter's context is made of makes it another drafter. */
static void test_identity(void **state)
{
    (void)state;
    const struct desc_override o[] = {{.draft_causal = 0},
                                      {.draft_causal = -1, .n_taps = 2, .taps = {0, 1}},
                                      {.draft_causal = -1, .has_tap_shift = true, .tap_shift = 0},
                                      {.draft_causal = -1, .rope_theta = 500},
                                      {.draft_causal = -1, .sliding_pattern = "sf", .sliding_window = 8}};
    struct desc *d = read_as("upstream", &plain, NULL);
    for (int i = 0; i < 5; i++) {
        struct desc *x = read_as("upstream", &plain, &o[i]);
        assert_int_equal(!memcmp(x->identity, d->identity, sizeof d->identity), i == 0);
        desc_free(x);
    }
    desc_free(d);
}

/* ---- names ---- */

static void test_names(void **state)
{
    (void)state;
    static const char *const names[] = {"fc.weight", "enc.output_norm.weight", "blk.12.ffn_norm.weight"};
    char a[128], b[128];
    int n = 0;
    for (const struct dialect *x = dialects; x->name; x++) {
        if (x->refused) continue;
        n++;
        assert_ptr_equal(dialect_by_name(x->name), x);
        assert_non_null(strstr(dialect_names(), x->name));
        for (int i = 0; i < 3; i++)
            assert_string_equal(
                dialect_to_upstream(NULL, dialect_from_upstream(x, names[i], a, sizeof a), b, sizeof b),
                names[i]);
    }
    assert_int_equal(n, 8);
    assert_string_equal(dialect_to_upstream(NULL, "blk.3.attn_q.weight", a, sizeof a), "blk.3.attn_q.weight");
    assert_string_equal(dialect_to_upstream(NULL, "blk.x.post_attention_norm.weight", a, sizeof a),
                        "blk.x.post_attention_norm.weight");
    assert_string_equal(dialect_to_upstream(NULL, "blk.7.post_attention_norm.weight", a, sizeof a),
                        "blk.7.ffn_norm.weight");
}

/* ---- relabelling ---- */

static int convert(const char *in, const char *out, const char *dialect, struct err *e)
{
    struct convert o;
    convert_defaults(&o);
    o.input = in;
    o.output = out;
    o.dialect = dialect;
    o.force = true;
    o.say = say;
    said[0] = 0;
    return convert_run(&o, e);
}

static void must_convert(const char *in, const char *out, const char *dialect)
{
    struct err e = {0};
    if (convert(in, out, dialect, &e)) fail_msg("%s: %s", dialect, e.msg);
}

static void must_not(const char *in, const char *dialect, const char *what)
{
    struct err e = {0};
    assert_int_not_equal(convert(in, scratch("no.gguf"), dialect, &e), 0);
    if (!strstr(e.msg, what)) fail_msg("got %s; expected %s", e.msg, what);
}

static void same_file(const char *a, const char *b)
{
    FILE *f = fopen(a, "rb"), *g = fopen(b, "rb");
    int x, y;
    assert_non_null(f);
    assert_non_null(g);
    do {
        x = getc(f);
        y = getc(g);
        if (x != y) fail_msg("%s and %s differ", a, b);
    } while (x != EOF);
    fclose(f);
    fclose(g);
}

/* Every tensor of a is in b with the same bytes, under the name of its dialect. */
static void same_tensors(const char *a, const char *b)
{
    struct err e = {0};
    struct gguf *g, *h;
    char x[128], y[128];
    assert_int_equal(gguf_open(&g, a, &e) | gguf_open(&h, b, &e), 0);
    assert_int_equal(g->n_tensors, h->n_tensors);
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        const struct gguf_tensor *t = &g->tensor[i], *u = &h->tensor[i];
        assert_string_equal(dialect_to_upstream(NULL, t->name, x, sizeof x),
                            dialect_to_upstream(NULL, u->name, y, sizeof y));
        assert_int_equal(t->type, u->type);
        assert_memory_equal(t->ne, u->ne, sizeof t->ne);
        assert_int_equal(t->bytes, u->bytes);
        assert_memory_equal(t->data, u->data, t->bytes);
    }
    gguf_close(g);
    gguf_close(h);
}

/* From every engine's file to every dialect and back: tensors and description stay, and what convert wrote
 * once comes back byte for byte. */
static void test_there_and_back(void **state)
{
    (void)state;
    struct err e = {0};
    for (int windows = 0; windows < 2; windows++)
        for (int i = 0; i < N_SPELLINGS; i++) {
            const struct df_change c = {.windows = windows};
            if (windows && !spellings[i].pattern) continue;
            const char *foreign = write_file("foreign.gguf", spellings[i].name, &c);
            const char *from = recognised(spellings[i].name);
            char a[256], b[256], back[256];
            snprintf(a, sizeof a, "%s", scratch("own.gguf"));
            snprintf(b, sizeof b, "%s", scratch("there.gguf"));
            snprintf(back, sizeof back, "%s", scratch("back.gguf"));
            struct desc *d = describe(foreign, NULL, &e);
            assert_non_null(d);
            must_convert(foreign, a, NULL);
            same_tensors(foreign, a);
            for (const struct dialect *x = dialects; x->name; x++) {
                if (x->refused || (windows && !x->windows)) continue;
                must_convert(a, b, x->name);
                struct desc *there = describe(b, NULL, &e);
                if (!there) fail_msg("%s to %s: %s", from, x->name, e.msg);
                assert_string_equal(there->dialect, x->name);
                same_description(d, there);
                same_tensors(a, b);
                must_convert(b, back, from);
                same_file(a, back);
                desc_free(there);
            }
            desc_free(d);
        }
}

static int own_embed(struct gguf_writer *w, struct err *e)
{
    return gguf_put_bool(w, "dflash-draft.tie_word_embeddings", false, e);
}
static int scale_and_cap(struct gguf_writer *w, struct err *e)
{
    return gguf_put_f32(w, "dflash.embedding_scale", 2, e) |
           gguf_put_f32(w, "dflash.final_logit_softcapping", 30, e) |
           gguf_put_f32(w, "dflash.attention.layer_norm_rms_epsilon", 1e-5f, e);
}

static void test_inexpressible(void **state)
{
    (void)state;
    struct df_change c = {.windows = true};
    must_not(write_file("a.gguf", "ik", &c), "rx",
             "dialect rx has no place for sliding layers (layer 0 has a window of 12)");
    must_not(write_file("a.gguf", "ik", &c), "gguf", "--dialect gguf is not known (expected upstream, ");
    must_not(write_file("a.gguf", "ik", &c), "lucebox-deepseek4", "--dialect lucebox-deepseek4 is not known");
    /* sliding and causal: llama.cpp's readers know one bool for all layers, and that is told */
    for (int i = 0; i < 2; i++) {
        struct err e = {0};
        struct gguf *g = NULL;
        must_convert(write_file("a.gguf", i ? "upstream" : "ik", &c), scratch("b.gguf"), "upstream");
        assert_non_null(
            strstr(said, "1 of 2 layers are causal in the block: only our key "
                         "dflash.attention.causal_pattern says so, readers of the upstream dialect take "
                         "all layers as bidirectional, and fewer"));
        assert_int_equal(strstr(said, "attention.causal does not count in the file's dialect") != NULL,
                         i == 0);
        assert_int_equal(gguf_open(&g, scratch("b.gguf"), &e), 0);
        assert_null(gguf_find(g, "dflash.attention.causal"));
        const struct gguf_kv *kv = gguf_find(g, "dflash.attention.causal_pattern");
        assert_non_null(kv);
        assert_true(gguf_array_i64(kv, 0) == 1 && gguf_array_i64(kv, 1) == 0);
        gguf_close(g);
    }
    must_convert(write_file("a.gguf", "upstream", &c), scratch("b.gguf"), "ik");
    assert_null(strstr(said, "causal in the block: only")); /* its readers' own rule is the same */
    assert_non_null(
        strstr(said, "need the target's tokenizer in the file, and there is none: give --target"));
    must_convert(write_file("a.gguf", "upstream", &c), scratch("b.gguf"), "lucebox");
    assert_null(strstr(said, "causal in the block: only")); /* its own rule is the same */
    assert_null(strstr(said, "tokenizer"));
    must_convert(write_file("a.gguf", "upstream", &c), scratch("b.gguf"), "unshifted");
    assert_non_null(
        strstr(said, "the taps under dflash.target_layers count from block 0: llama.cpp as merged reads"));
    c = (struct df_change){.edit = scale_and_cap};
    must_convert(write_file("a.gguf", "upstream", &c), scratch("b.gguf"), "buun");
    assert_non_null(strstr(said, "embedding scale: only our key dflash-draft.embedding_scale"));
    assert_non_null(strstr(said, "softcap: only our key dflash-draft.final_logit_softcapping"));
    must_convert(write_file("a.gguf", "upstream", &c), scratch("b.gguf"), "lucebox");
    assert_null(strstr(said, "softcap: only"));
    assert_non_null(strstr(said, "epsilon of the norms is 1e-05: lucebox takes 1e-06"));
}

/* An embedding of the drafter's own: not every dialect has a place for it, and
 * without a head two readings. */
static void test_own_embedding(void **state)
{
    (void)state;
    struct err e = {0};
    const int n = drafter.n;
    struct df_tensor *t = &drafter.t[drafter.n++];
    static float rows[DF_EMBD * DF_VOCAB];
    *t = (struct df_tensor){.name = "token_embd.weight",
                            .type = KN_F32,
                            .n_dims = 2,
                            .ne = {DF_EMBD, DF_VOCAB, 1, 1},
                            .data = rows,
                            .bytes = sizeof rows};
    struct desc *d = read_as("ik", &plain, NULL);
    assert_true(d->tied_head);
    assert_string_equal(d->inferred, "an embedding of its own and no head: the head is the embedding");
    desc_free(d);
    const struct df_change c = {.edit = own_embed};
    d = read_as("ik", &c, NULL);
    assert_false(d->tied_head);
    desc_free(d);
    d = read_as("upstream", &plain, NULL);
    assert_false(d->tied_head);
    desc_free(d);
    must_not(write_file("a.gguf", "ik", &plain), "buun",
             "an embedding or a head of the drafter's own (token_embd.weight)");
    must_not(write_file("a.gguf", "ik", &plain), "upstream",
             "take the head from the target, here it is the embedding");
    must_not(write_file("a.gguf", "upstream", &plain), "ik",
             "take the head from the embedding, here it is the target's");
    must_convert(write_file("a.gguf", "upstream", &plain), scratch("b.gguf"), "lucebox");
    d = describe(scratch("b.gguf"), NULL, &e);
    assert_non_null(d);
    assert_false(d->tied_head);
    desc_free(d);
    drafter.n = n;
}

/* Flags become what the file says. */
static void test_convert_flags(void **state)
{
    (void)state;
    struct err e = {0};
    const struct df_change c = {.drop = "@.dflash.target_layer_ids", .drop2 = "@.rope.freq_base"};
    struct convert o;
    convert_defaults(&o);
    o.input = write_file("a.gguf", "lucebox", &c);
    char out[256];
    snprintf(out, sizeof out, "%s", scratch("b.gguf"));
    o.output = out;
    o.dialect = "upstream";
    o.force = true;
    o.n_taps = 2;
    o.taps[0] = 1;
    o.taps[1] = 2;
    o.rope_theta = 5000;
    o.mask_id = 7;
    o.block_size = 4;
    o.sliding_window = 9;
    o.sliding_pattern = "fs";
    o.causal = 1;
    if (convert_run(&o, &e)) fail_msg("%s", e.msg);
    struct desc *d = describe(out, NULL, &e);
    if (!d) fail_msg("%s", e.msg);
    assert_string_equal(d->dialect, "upstream");
    assert_int_equal(d->taps[0], 1);
    assert_int_equal(d->taps[1], 2);
    assert_true(d->rope[0].theta == 5000);
    assert_int_equal(d->mask_id, 7);
    assert_int_equal(d->block_size, 4);
    assert_int_equal(d->layer[0].window, 0);
    assert_int_equal(d->layer[1].window, 9);
    assert_true(d->layer[0].causal && d->layer[1].causal);
    assert_false(d->causal_inferred);
    desc_free(d);
}

/* The nth allocation of a relabelling fails: no output is left, and the reason is said. */
static void test_memory(void **state)
{
    (void)state;
    char in[256], out[256];
    int n = 0, rc;
    snprintf(in, sizeof in, "%s", write_file("a.gguf", "lucebox", &plain));
    snprintf(out, sizeof out, "%s", scratch("memory.gguf"));
    do {
        struct err e = {0};
        mem_fail_at((uint64_t)++n);
        rc = convert(in, out, "ik", &e);
        mem_fail_at(0);
        if (rc && (e.code != ERR_IO || !strstr(e.msg, "out of memory")))
            fail_msg("allocation %d: %s", n, e.msg);
        assert_int_equal(access(out, F_OK), rc ? -1 : 0);
    } while (rc && n < 2000);
    assert_int_equal(rc, 0);
    assert_true(n > 40);
}

static int setup(void **state)
{
    (void)state;
    df_make(&drafter);
    scratch_begin();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    df_free(&drafter);
    scratch_end();
    return 0;
}

/* Taps that repeat are wrong, unless the exporters' rule gives them: for a target of so many blocks, or of
 * any. */
static void test_tap_twice(void **state)
{
    (void)state;
    static const struct {
        int32_t taps[5], n, n_layer, twice;
    } c[] = {
        {{1, 9, 17, 25, 33}, 5, 0, -1},
        {{1, 9, 17, 25, 33}, 5, 36, -1},
        {{3}, 1, 0, -1},
        {{1, 1}, 2, 0, -1},
        {{1, 1}, 2, 4, -1},
        {{1, 1}, 2, 5, 1},
        {{2, 2}, 2, 0, 2},
        {{1, 1, 2}, 3, 0, 1},
        {{1, 2, 2}, 3, 0, -1},
        {{1, 2, 2}, 3, 5, -1},
        {{1, 2, 2}, 3, 6, 2},
        {{1, 2, 2, 2, 3}, 5, 6, -1},
        {{1, 2, 2, 3, 4}, 5, 7, -1},
        {{1, 2, 2, 3, 4}, 5, 8, 2},
        {{1, 2, 4, 2, 6}, 5, 0, 2},
        {{5, 1, 5, 1}, 4, 0, 5},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++)
        if (desc_tap_twice(c[i].taps, c[i].n, c[i].n_layer) != c[i].twice)
            fail_msg("case %zu: %d", i, desc_tap_twice(c[i].taps, c[i].n, c[i].n_layer));
    int32_t usual[5];
    desc_usual_taps(36, 5, usual);
    assert_memory_equal(usual, c[0].taps, sizeof usual);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tap_twice),     cmocka_unit_test(test_read),
        cmocka_unit_test(test_causal),        cmocka_unit_test(test_lies),
        cmocka_unit_test(test_refused),       cmocka_unit_test(test_flags),
        cmocka_unit_test(test_wrong_flags),   cmocka_unit_test(test_identity),
        cmocka_unit_test(test_names),         cmocka_unit_test(test_there_and_back),
        cmocka_unit_test(test_inexpressible), cmocka_unit_test(test_own_embedding),
        cmocka_unit_test(test_convert_flags), cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
