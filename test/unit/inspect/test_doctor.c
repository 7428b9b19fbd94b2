/* test_doctor.c - inspect --pair: every finding, made to be one on a tiny pair. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "../../../common/inspect/check.h"
#include "../../../common/base/mem.h"
#include "../../dialect_files.h"
#include "../run/tiny_pair.h"

/* ---- findings ---- */

enum { MOST = 64 };
static struct seen {
    enum check_level level;
    char subject[64], text[800], expected[200], found[800], hint[400];
} seen[MOST];
static int n_seen;

static void collect(void *ctx, const struct check_finding *f)
{
    (void)ctx;
    assert_true(n_seen < MOST);
    struct seen *s = &seen[n_seen++];
    s->level = f->level;
    snprintf(s->subject, sizeof s->subject, "%s", f->subject);
    snprintf(s->text, sizeof s->text, "%s", f->text);
    snprintf(s->expected, sizeof s->expected, "%s", f->expected ? f->expected : "");
    snprintf(s->found, sizeof s->found, "%s", f->found ? f->found : "");
    snprintf(s->hint, sizeof s->hint, "%s", f->hint ? f->hint : "");
    assert_int_equal(f->level == CHECK_BAD, f->expected != NULL); /* what a misfit is, it says */
    assert_int_equal(f->level == CHECK_BAD, f->found != NULL);
}

static int examine(const char *target, const char *drafter, const struct desc_override *o, struct err *e)
{
    n_seen = 0;
    return check_pair(target, drafter, o, collect, NULL, e);
}

/* The worst of a subject's findings, or NULL. */
static const struct seen *worst(const char *subject)
{
    const struct seen *w = NULL;
    for (int i = 0; i < n_seen; i++)
        if (!strcmp(seen[i].subject, subject) && (!w || seen[i].level > w->level)) w = &seen[i];
    return w;
}

/* ---- what is changed ---- */

static int words(struct gguf_writer *w, const char *last, const char *merge, int32_t eos, const char *chat,
                 struct err *e)
{
    struct gguf_str t[TINY_VOCAB], m = {merge, strlen(merge)};
    static const char *const names[] = {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"};
    for (int i = 0; i < TINY_VOCAB; i++) t[i].s = i < 10 ? names[i] : last, t[i].n = strlen(t[i].s);
    int bad = gguf_put_str(w, "tokenizer.ggml.model", "gpt2", 4, e) |
              gguf_put_strings(w, "tokenizer.ggml.tokens", t, TINY_VOCAB, e) |
              gguf_put_strings(w, "tokenizer.ggml.merges", &m, 1, e) |
              gguf_put_u32(w, "tokenizer.ggml.eos_token_id", (uint32_t)eos, e);
    if (chat) bad |= gguf_put_str(w, "tokenizer.chat_template", chat, strlen(chat), e);
    return bad;
}
static int causal(struct gguf_writer *w, struct err *e)
{
    return gguf_put_bool(w, "dflash.attention.causal", false, e);
}
static int words_t(struct gguf_writer *w, struct err *e)
{
    return words(w, "<mask>", "a b", 1, NULL, e);
}
static int words_d(struct gguf_writer *w, struct err *e)
{
    return words(w, "<mask>", "a b", 1, NULL, e) | causal(w, e);
}
static int other_token(struct gguf_writer *w, struct err *e)
{
    return words(w, "<msk>", "a b", 1, NULL, e) | causal(w, e);
}
static int other_merge(struct gguf_writer *w, struct err *e)
{
    return words(w, "<mask>", "a c", 1, NULL, e) | causal(w, e);
}
static int other_eos(struct gguf_writer *w, struct err *e)
{
    return words(w, "<mask>", "a b", 2, NULL, e) | causal(w, e);
}
static int instruct(struct gguf_writer *w, struct err *e)
{
    return words(w, "<mask>", "a b", 1, "{{ messages }}", e) | causal(w, e);
}
static int instruct_t(struct gguf_writer *w, struct err *e)
{
    return words(w, "<mask>", "a b", 1, "{{ other }}", e);
}
static int mask_stops(struct gguf_writer *w, struct err *e)
{
    return words(w, "<mask>", "a b", TINY_MASK, NULL, e);
}
static int silent(struct gguf_writer *w, struct err *e)
{
    return words(w, "<mask>", "a b", 1, NULL, e);
}
static int wordless(struct gguf_writer *w, struct err *e)
{
    return causal(w, e);
}
static int far_tap(struct gguf_writer *w, struct err *e)
{
    const int32_t taps[] = {1, 4};
    return gguf_put_array(w, "dflash.target_layers", GGUF_I32, taps, 2, e) | words_d(w, e);
}
static int tap_twice(struct gguf_writer *w, struct err *e)
{
    const int32_t taps[] = {2, 2};
    return gguf_put_array(w, "dflash.target_layers", GGUF_I32, taps, 2, e) | words_d(w, e);
}
static int one_tap(struct gguf_writer *w, struct err *e)
{
    const int32_t tap = 2;
    return gguf_put_array(w, "dflash.target_layers", GGUF_I32, &tap, 1, e) | words_d(w, e);
}
static int vocab(struct gguf_writer *w, struct err *e)
{
    return gguf_put_u32(w, "dflash.vocab_size", TINY_VOCAB + 1, e) | words_d(w, e);
}
static int mask_out(struct gguf_writer *w, struct err *e)
{
    return gguf_put_u32(w, "tokenizer.ggml.mask_token_id", TINY_VOCAB, e) | words_d(w, e);
}
static int theta(struct gguf_writer *w, struct err *e)
{
    return gguf_put_f32(w, "dflash.rope.freq_base", 1e6f, e) | words_d(w, e);
}
static int short_context(struct gguf_writer *w, struct err *e)
{
    return gguf_put_u32(w, "dflash.context_length", 128, e) | words_d(w, e);
}
static int block(struct gguf_writer *w, struct err *e)
{
    return gguf_put_u32(w, "dflash.block_size", 8, e) | words_d(w, e);
}
static int scale(struct gguf_writer *w, struct err *e)
{
    return gguf_put_f32(w, "dflash.embedding_scale", 3, e) | words_d(w, e);
}
static int cap(struct gguf_writer *w, struct err *e)
{
    return gguf_put_f32(w, "dflash.final_logit_softcapping", 30, e) | words_d(w, e);
}
static int no_theta(struct gguf_writer *w, struct err *e)
{
    gguf_remove(w, "dflash.rope.freq_base");
    return words_d(w, e);
}
static int hyper(struct gguf_writer *w, struct err *e)
{
    return gguf_put_u32(w, "dflash.hyper_connection.count", 4, e) | words_d(w, e);
}
static int confidence(struct gguf_writer *w, struct err *e)
{
    return gguf_put_bool(w, "dflash.has_confidence_head", true, e) | words_d(w, e);
}

/* Values of a tensor of the file replaced: n of them (0: all), from the first, in its own type F32 or F16. */
static void patch(const char *path, const char *name, int64_t first, int64_t n, float v)
{
    struct gguf *g;
    struct err e = {0};
    if (gguf_open(&g, path, &e)) fail_msg("%s", e.msg);
    const struct gguf_tensor *t = gguf_tensor(g, name);
    assert_non_null(t);
    const int64_t size = t->type == KN_F16 ? 2 : 4;
    const long at = (long)(g->data_offset + t->offset) + (long)(first * size);
    const uint16_t h = kn_f32_to_f16(v);
    if (!n) n = (int64_t)t->bytes / size;
    gguf_close(g);
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    fseek(f, at, SEEK_SET);
    for (int64_t i = 0; i < n; i++)
        assert_int_equal(fwrite(size == 2 ? (const void *)&h : &v, (size_t)size, 1, f), 1);
    assert_int_equal(fclose(f), 0);
}

/* ---- tests ---- */

struct sick {
    const char *subject;
    enum check_level level;
    const char *text, *expected, *found; /* parts of */
    struct tiny t, d;                    /* edit NULL: words_t, words_d */
    const char *patch_t, *patch_d;       /* a tensor of target or drafter whose values become value */
    int64_t first, n;
    float value;
};

static int domino_keys(struct gguf_writer *w, struct err *e)
{
    return gguf_put_bool(w, "dflash.domino.shift_label", false, e) ||
           gguf_put_u32(w, "dflash.domino.pure_draft_prefix_len", 1, e);
}

enum { E = TINY_EMBD, V = TINY_VOCAB };
static const struct tiny_tensor markov[] = {{"markov_w1.weight", {12, V}},
                                            {"markov_w2.weight", {12, V}},
                                            {"conf_proj.weight", {E + 12, 1}},
                                            {"", {0, 0}}},
                                domino[] = {{"domino_ih.weight", {E, 24}},
                                            {"domino_hh.weight", {8, 24}},
                                            {"domino_down.weight", {E + 8, 16}},
                                            {"domino_up.weight", {16, V}},
                                            {"", {0, 0}}},
                                reduced[] = {{"output.weight", {E, TINY_REDUCED}},
                                             {"d2t", {TINY_REDUCED, 0}},
                                             {"", {0, 0}}},
                                fewer[] = {{"output.weight", {E, TINY_REDUCED}}, {"", {0, 0}}},
                                sunk[] = {{"blk.0.attn_sinks.weight", {4, 0}}, {"", {0, 0}}};
static const int64_t beyond[TINY_REDUCED] = {9, 0, 3, 4, 12, 7, 2};

static const struct sick sick[] = {
    {.subject = "head", .level = CHECK_OK, .text = "a vanilla Markov head of rank 12", .d.extra = markov},
    {.subject = "confidence",
     .level = CHECK_OK,
     .text = "of the row and the token before",
     .d.extra = markov},
    {.subject = "head bytes",
     .level = CHECK_OK,
     .text = "read again for every proposal, the most of them markov_w2.weight in F32",
     .d.extra = markov},
    {.subject = "head",
     .level = CHECK_OK,
     .text = "a recurrent unit of 8, corrections through 16, 1 of 4 proposals without",
     .d.extra = domino,
     .d.edit = domino_keys},
    {.subject = "sinks",
     .level = CHECK_OK,
     .text = "1 of 2 layers: a head sees one key more",
     .d.extra = sunk},
    {.subject = "d2t", .level = CHECK_OK, .text = "7 of 11 tokens can be proposed", .d.extra = reduced},
    {.subject = "d2t",
     .level = CHECK_BAD,
     .text = "rows of a reduced vocabulary of 7",
     .expected = "ids 0 to 10",
     .found = "12",
     .d.extra = reduced,
     .d.d2t = beyond},
    {.subject = "vocabulary",
     .level = CHECK_BAD,
     .text = "rows of embedding and head",
     .expected = "11",
     .found = "7",
     .d.extra = fewer},
    {.subject = "taps",
     .level = CHECK_BAD,
     .text = "output of blocks 0,3, zero-based (1,4 counted from the embeddings)",
     .expected = "blocks 0 to 2 of the target",
     .found = "3",
     .d.edit = far_tap},
    {.subject = "taps twice",
     .level = CHECK_BAD,
     .text = "a block is tapped more than once",
     .expected = "different blocks",
     .found = "1",
     .d.edit = tap_twice},
    {.subject = "features",
     .level = CHECK_BAD,
     .text = "fc takes 80",
     .expected = "40",
     .found = "80",
     .d.edit = one_tap},
    {.subject = "vocabulary",
     .level = CHECK_BAD,
     .text = "rows",
     .expected = "11",
     .found = "12",
     .d.edit = vocab},
    {.subject = "tokenizer",
     .level = CHECK_BAD,
     .text = "tokens differ, first at 10",
     .expected = "\"<mask>\"",
     .found = "\"<msk>\"",
     .d.edit = other_token},
    {.subject = "tokenizer",
     .level = CHECK_BAD,
     .text = "merges differ, first at 0",
     .expected = "\"a b\"",
     .found = "\"a c\"",
     .d.edit = other_merge},
    {.subject = "tokenizer", .level = CHECK_WARN, .text = "the drafter's file has none", .d.edit = wordless},
    {.subject = "special tokens",
     .level = CHECK_WARN,
     .text = "eos 1 in the target, 2 in the drafter",
     .d.edit = other_eos},
    {.subject = "chat template",
     .level = CHECK_WARN,
     .text = "the drafter's copy has one, the target has none",
     .d.edit = instruct},
    {.subject = "chat template",
     .level = CHECK_WARN,
     .text = "they differ",
     .t.edit = instruct_t,
     .d.edit = instruct},
    {.subject = "mask id",
     .level = CHECK_BAD,
     .text = "an id of the target's vocabulary",
     .expected = "0 to 10",
     .found = "11",
     .d.edit = mask_out},
    {.subject = "mask id",
     .level = CHECK_BAD,
     .text = "10 (\"<mask>\"), its embedding row has RMS 0,",
     .expected = "a row that is not zero",
     .found = "0",
     .patch_t = "token_embd.weight",
     .first = TINY_MASK * TINY_EMBD,
     .n = TINY_EMBD},
    {.subject = "mask id",
     .level = CHECK_WARN,
     .text = "has RMS 1e-05",
     .patch_t = "token_embd.weight",
     .first = TINY_MASK * TINY_EMBD,
     .n = TINY_EMBD,
     .value = 1e-5f},
    {.subject = "mask token",
     .level = CHECK_WARN,
     .text = "10 is also a token that ends the text",
     .t.edit = mask_stops},
    {.subject = "rope",
     .level = CHECK_WARN,
     .text = "theta 10000 in the target, 1e+06 in the drafter",
     .d.edit = theta},
    {.subject = "layers",
     .level = CHECK_WARN,
     .text = "0: window 12, causal; 1: full, bidirectional",
     .d.edit = silent},
    {.subject = "context",
     .level = CHECK_WARN,
     .text = "trained to 4096 positions, drafter to 128",
     .d.edit = short_context},
    {.subject = "embedding scale", .level = CHECK_WARN, .text = "3, the target's is 1", .d.edit = scale},
    {.subject = "softcap", .level = CHECK_WARN, .text = "30, the target's is 0", .d.edit = cap},
    {.subject = "weights",
     .level = CHECK_BAD,
     .text = "fc.weight: F32",
     .expected = "numbers",
     .found = "1 NaN or Inf of 3200",
     .patch_d = "fc.weight",
     .first = 5,
     .n = 1,
     .value = INFINITY},
    {.subject = "weights",
     .level = CHECK_BAD,
     .text = "enc.output_norm.weight: F32",
     .expected = "not all zero",
     .found = "40 zeros",
     .patch_d = "enc.output_norm.weight"},
    {.subject = "weights",
     .level = CHECK_BAD,
     .text = "output_norm.weight: F32",
     .expected = "numbers",
     .found = "1 NaN or Inf of 40",
     .patch_d = "output_norm.weight",
     .n = 1,
     .value = NAN},
    {.subject = "weights", .level = CHECK_WARN, .text = "fc.weight: F16", .d.type = KN_F16},
    {.subject = "drafter",
     .level = CHECK_BAD,
     .text = "the file is not understood",
     .expected = "a model that is known",
     .found = "key 'dflash.rope.freq_base': is missing",
     .d.edit = no_theta},
    {.subject = "target",
     .level = CHECK_BAD,
     .text = "the file is not understood",
     .expected = "a model that is known",
     .found = "tensor 'blk.0.attn_q.weight': is missing",
     .t.drop_tensor = "blk.0.attn_q.weight"},
    {.subject = "kind",
     .level = CHECK_BAD,
     .text = "a DeepSeek-V4 drafter, which cannot be run here",
     .expected = "a plain DFlash drafter",
     .found = "dflash.hyper_connection.count 4",
     .d.edit = hyper},
    {.subject = "drafter",
     .level = CHECK_BAD,
     .text = "the file is not understood",
     .expected = "a model that is known",
     .found = "key 'dflash.has_confidence_head': disagrees with the tensors (expected false, got true)",
     .d.edit = confidence},
};

static void write_pair(const struct sick *s, const char *target, const char *drafter)
{
    struct err e = {0};
    struct tiny t = s->t, d = s->d;
    d.drafter = true;
    if (!t.edit) t.edit = words_t;
    if (!d.edit) d.edit = words_d;
    if (tiny_write(target, &t, &e) || tiny_write(drafter, &d, &e)) fail_msg("%s", e.msg);
    if (s->patch_t) patch(target, s->patch_t, s->first, s->n, s->value);
    if (s->patch_d) patch(drafter, s->patch_d, s->first, s->n, s->value);
}

/* The tiny pair itself has no misfit, and no note but that of its odd block. */
static void test_well(void **state)
{
    (void)state;
    const struct sick none = {0};
    struct err e = {0};
    write_pair(&none, scratch("t.gguf"), scratch("d.gguf"));
    assert_int_equal(examine(scratch("t.gguf"), scratch("d.gguf"), NULL, &e), 0);
    for (int i = 0; i < n_seen; i++)
        if (seen[i].level != CHECK_OK) assert_string_equal(seen[i].subject, "block size");
    assert_non_null(worst("block size"));
    struct sick eight = {.d.edit = block};
    write_pair(&eight, scratch("t.gguf"), scratch("d.gguf"));
    assert_int_equal(examine(scratch("t.gguf"), scratch("d.gguf"), NULL, &e), 0);
    assert_null(worst("block size"));
    assert_true(n_seen >= 18);
}

static void test_sick(void **state)
{
    (void)state;
    const struct sick none = {0};
    for (size_t i = 0; i < sizeof sick / sizeof sick[0]; i++) {
        const struct sick *s = &sick[i];
        struct err e = {0};
        write_pair(&none, scratch("t.gguf"), scratch("d.gguf"));
        assert_int_equal(examine(scratch("t.gguf"), scratch("d.gguf"), NULL, &e), 0);
        const struct seen *w = worst(s->subject);
        assert_true(!w || w->level == CHECK_OK); /* so that what follows is of the change */
        write_pair(s, scratch("t.gguf"), scratch("d.gguf"));
        int bad = examine(scratch("t.gguf"), scratch("d.gguf"), NULL, &e);
        w = worst(s->subject);
        if (!w || w->level != s->level || !strstr(w->text, s->text) ||
            (s->expected && !strstr(w->expected, s->expected)) || (s->found && !strstr(w->found, s->found)))
            fail_msg("%s: level %d: %s (expected %s, found %s)", s->subject, w ? (int)w->level : -1,
                     w ? w->text : "nothing", w ? w->expected : "", w ? w->found : "");
        if ((bad > 0) != (s->level == CHECK_BAD)) fail_msg("%s: %d misfits", s->subject, bad);
    }
}

/* Roles, a file that is none, and flags for how the drafter is read. */
static void test_ways(void **state)
{
    (void)state;
    const struct sick none = {0}, no_base = {.d.edit = no_theta};
    struct err e = {0};
    write_pair(&none, scratch("t.gguf"), scratch("d.gguf"));
    assert_int_equal(examine(scratch("d.gguf"), scratch("t.gguf"), NULL, &e), 1);
    assert_int_equal(worst("roles")->level, CHECK_BAD);
    assert_int_equal(examine(scratch("t.gguf"), scratch("t.gguf"), NULL, &e), 1);
    struct desc_override o = {.draft_causal = -1, .n_taps = 2, .taps = {1, 9}};
    assert_int_equal(examine(scratch("t.gguf"), scratch("d.gguf"), &o, &e), 1);
    assert_string_equal(worst("taps")->found, "9");
    assert_string_equal(worst("taps")->hint, "was the drafter made for this target?");
    o = (struct desc_override){.draft_causal = -1, .sliding_pattern = "x"};
    assert_int_equal(examine(scratch("t.gguf"), scratch("d.gguf"), &o, &e), -1);
    assert_int_equal(e.code, ERR_USAGE);
    write_pair(&no_base, scratch("t.gguf"), scratch("d.gguf"));
    assert_int_equal(examine(scratch("t.gguf"), scratch("d.gguf"), NULL, &e), 1);
    assert_string_equal(worst("drafter")->hint, "--rope-theta X gives it");
    o = (struct desc_override){.draft_causal = -1, .rope_theta = 10000};
    e = (struct err){0};
    assert_int_equal(examine(scratch("t.gguf"), scratch("d.gguf"), &o, &e), 0);
    FILE *f = fopen(scratch("d.gguf"), "r+b");
    fputs("FUGG", f);
    fclose(f);
    assert_int_equal(examine(scratch("t.gguf"), scratch("d.gguf"), NULL, &e), -1);
    assert_int_equal(e.code, ERR_FORMAT);
}

/* ---- drafters of another size and of other dialects, beside the tiny target ---- */

static int small_heads(struct gguf_writer *w, struct err *e)
{
    return gguf_put_u32(w, "dflash.attention.head_count", 8, e) |
           gguf_put_u32(w, "dflash.attention.head_count_kv", 4, e) |
           gguf_put_u32(w, "dflash.attention.key_length", 8, e) |
           gguf_put_u32(w, "dflash.attention.value_length", 8, e);
}
static int lie(struct gguf_writer *w, struct err *e)
{
    return gguf_put_u32(w, "qwen35-dflash-draft.dflash.n_target_layers", 60, e);
}

/* Write a drafter in a dialect and look for a finding. */
static void foreign(struct df_drafter *d, const char *name, const struct df_change *c, const char *subject,
                    enum check_level level, const char *text)
{
    const struct spelling *s = spellings;
    struct err e = {0};
    while (strcmp(s->name, name)) s++;
    if (df_write(scratch("d.gguf"), d, s, c, &e)) fail_msg("%s", e.msg);
    if (examine(scratch("t.gguf"), scratch("d.gguf"), NULL, &e) < 0) fail_msg("%s", e.msg);
    const struct seen *w = worst(subject);
    if (!w || w->level != level || !strstr(w->text, text))
        fail_msg("%s, %s: %s", name, subject, w ? w->text : "nothing");
}

static void test_foreign(void **state)
{
    (void)state;
    struct df_drafter d;
    const struct sick none = {0};
    const struct df_change plain = {0}, windows = {.windows = true}, liar = {.edit = lie},
                           heads = {.edit = small_heads};
    write_pair(&none, scratch("t.gguf"), scratch("d.gguf"));
    df_make(&d);
    foreign(&d, "upstream", &plain, "hidden size", CHECK_BAD, "need the target's 40");
    assert_string_equal(worst("hidden size")->expected, "40");
    assert_string_equal(worst("hidden size")->found, "32");
    foreign(&d, "upstream", &plain, "heads", CHECK_OK, "drafter 4/2 of 16");
    foreign(&d, "buun", &plain, "dialect", CHECK_OK, "dflash-draft: buun (ht, Anbeeld and buun");
    foreign(&d, "lucebox", &windows, "target", CHECK_WARN,
            "qwen35-dflash-draft names another family than the target's qwen3");
    assert_null(worst("windows"));
    foreign(&d, "lucebox", &plain, "windows", CHECK_WARN,
            "no sliding layers; converters of this dialect leave them out");
    foreign(&d, "lucebox", &liar, "inferred", CHECK_WARN, "n_target_layers says 60: not used");
    foreign(&d, "buun", &windows, "layers", CHECK_WARN, "0: window 12, causal");
    assert_null(worst("causality"));
    foreign(&d, "ik", &windows, "causality", CHECK_WARN, "attention.causal of the file does not count");
    for (int i = 0; i < d.n; i++)
        if (strstr(d.t[i].name, "_q_norm") || strstr(d.t[i].name, "_k_norm"))
            d.t[i].ne[0] = 8, d.t[i].bytes = 32;
    foreign(&d, "upstream", &heads, "heads", CHECK_BAD, "heads of a multiple of 16");
    assert_string_equal(worst("heads")->found, "8");
    df_free(&d);
    df_make(&d);
    for (int i = 0; i < d.n; i++)
        if (!strcmp(d.t[i].name, "blk.1.ffn_up.weight"))
            d.t[i].type = KN_Q8_1, d.t[i].bytes = DF_EMBD * DF_FF / 32 * 36;
    foreign(&d, "upstream", &plain, "types", CHECK_BAD,
            "the drafter's blk.1.ffn_up.weight cannot be multiplied here");
    assert_string_equal(worst("types")->found, "Q8_1 (1 tensor)");
    for (int i = 0; i < d.n; i++)
        if (!strcmp(d.t[i].name, "fc.weight"))
            d.t[i].type = KN_Q8_1, d.t[i].bytes = DF_TAPS * DF_EMBD * DF_EMBD / 32 * 36;
    foreign(&d, "upstream", &plain, "weights", CHECK_WARN, "fc.weight: Q8_1, not decoded here");
    df_free(&d);
}

static int no_taps(struct gguf_writer *w, struct err *e)
{
    gguf_remove(w, "dflash.target_layers");
    return words_d(w, e);
}

/* A file without taps: which ones other readers would take is said. */
static void test_no_taps(void **state)
{
    (void)state;
    const struct sick s = {.d.edit = no_taps};
    struct err e = {0};
    write_pair(&s, scratch("t.gguf"), scratch("d.gguf"));
    assert_int_equal(examine(scratch("t.gguf"), scratch("d.gguf"), NULL, &e), 1);
    assert_non_null(strstr(worst("drafter")->found, "the taps are missing"));
    assert_string_equal(
        worst("taps")->text,
        "the file says none; for 2 taps of 3 blocks lucebox would take 1,2 (qwen35) or 1,0 (others)");
    assert_string_equal(worst("taps")->hint, "try them: --taps LIST");
}

/* ---- the config beside the file ---- */

#define ARCH "\"architectures\":[\"DFlashDraftModel\"],"
#define SIZES                                                                                                \
    "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":48,"           \
    "\"intermediate_size\":36,"
#define WIDTH "\"hidden_size\":40,"
#define TAPS "\"target_layer_ids\":[0,2],"
#define MASK "\"mask_token_id\":10"
#define THETA "\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":10000},"
#define BLOCK "\"block_size\":5,"
#define TYPES "\"layer_types\":[\"sliding_attention\",\"full_attention\"],\"sliding_window\":12,"
#define CAUSAL "\"is_causal\":false"

static const struct {
    const char *json; /* NULL: none */
    enum check_level level;
    int n; /* findings, 0: none is made */
    const char *text, *expected, *found;
} configs[] = {
    {NULL, CHECK_OK, 0, NULL, NULL, NULL},
    {"{" ARCH SIZES WIDTH "\"dflash_config\":{" TAPS MASK "}," THETA BLOCK TYPES CAUSAL "}", CHECK_OK, 1,
     "says the same", "", ""},
    {"{" ARCH SIZES WIDTH "\"dflash_config\":{" TAPS MASK "},\"rope_theta\":1e7," BLOCK TYPES CAUSAL "}",
     CHECK_BAD, 1, "theta: config.json", "10000000", "10000"},
    {"{" ARCH SIZES WIDTH "\"dflash_config\":{\"target_layer_ids\":[1,2]," MASK "}," THETA BLOCK TYPES CAUSAL
     "}",
     CHECK_BAD, 1, "taps: config.json", "1,2", "0,2"},
    {"{" ARCH SIZES WIDTH "\"dflash_config\":{" TAPS "\"mask_token_id\":9}," THETA BLOCK TYPES CAUSAL "}",
     CHECK_BAD, 1, "mask id: config.json", "9", "10"},
    {"{" ARCH SIZES WIDTH "\"dflash_config\":{\"block_size\":16," TAPS MASK "}," THETA TYPES CAUSAL "}",
     CHECK_BAD, 1, "block size: config.json", "16", "5"},
    {"{" ARCH SIZES WIDTH "\"dflash_config\":{" TAPS MASK "}," THETA BLOCK CAUSAL "}", CHECK_BAD, 1,
     "layers: config.json", "ff", "sf, window 12"},
    {"{" ARCH SIZES WIDTH "\"dflash_config\":{" TAPS MASK "}," THETA BLOCK TYPES
     "\"sliding_window\":13," CAUSAL "}",
     CHECK_WARN, 1, "config.json", "", ""}, /* a key twice */
    {"{" ARCH SIZES WIDTH "\"dflash_config\":{" TAPS MASK "}," THETA BLOCK TYPES "\"model_type\":\"qwen3\"}",
     CHECK_BAD, 1, "causality (c causal", "cb", "bb"},
    {"{\"architectures\":[\"DFlash2DraftModel\"]," SIZES WIDTH "\"dflash_config\":{" TAPS MASK
     "}," THETA BLOCK TYPES "\"model_type\":\"qwen3\"}",
     CHECK_OK, 1, "says the same", "", ""},
    {"{" ARCH SIZES "\"hidden_size\":48,\"dflash_config\":{" TAPS MASK "}," THETA BLOCK TYPES CAUSAL "}",
     CHECK_WARN, 1, "is of another drafter: hidden_size (expected 40, got 48)", "", ""},
    {"{\"architectures\":[\"Qwen3ForCausalLM\"]," SIZES "\"hidden_size\":48}", CHECK_OK, 0, NULL, NULL, NULL},
    {"{" ARCH, CHECK_WARN, 1, "config.json: ", "", ""},
};

/* What converters lose: each is a misfit where the drafter's own config.json stands beside its file. */
static void test_config(void **state)
{
    (void)state;
    const struct sick none = {0};
    struct err e = {0};
    write_pair(&none, scratch("t.gguf"), scratch("d.gguf"));
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        int n = 0;
        unlink(scratch("config.json"));
        if (configs[i].json) scratch_write(scratch("config.json"), configs[i].json, strlen(configs[i].json));
        const int bad = examine(scratch("t.gguf"), scratch("d.gguf"), NULL, &e);
        for (int j = 0; j < n_seen; j++) n += !strcmp(seen[j].subject, "config");
        const struct seen *w = worst("config");
        if (n != configs[i].n || bad != (configs[i].level == CHECK_BAD))
            fail_msg("config %zu: %d findings, %d bad", i, n, bad);
        if (n && (w->level != configs[i].level || !strstr(w->text, configs[i].text) ||
                  strcmp(w->expected, configs[i].expected) || strcmp(w->found, configs[i].found)))
            fail_msg("config %zu: %s (%s, %s)", i, w->text, w->expected, w->found);
    }
    /* a flag puts it right */
    const struct desc_override o = {.draft_causal = -1, .rope_theta = 1e7f};
    scratch_write(scratch("config.json"), configs[2].json, strlen(configs[2].json));
    assert_int_equal(examine(scratch("t.gguf"), scratch("d.gguf"), &o, &e), 0);
    assert_int_equal(worst("config")->level, CHECK_OK);
    unlink(scratch("config.json"));
}

/* The nth allocation fails: that is said, whatever it was for. */
static void test_memory(void **state)
{
    (void)state;
    const struct sick none = {0};
    int n = 0, rc;
    static const char config[] =
        "{" ARCH SIZES WIDTH "\"dflash_config\":{" TAPS MASK "}," THETA BLOCK TYPES CAUSAL "}";
    write_pair(&none, scratch("t.gguf"), scratch("d.gguf"));
    scratch_write(scratch("config.json"), config, sizeof config - 1);
    do {
        struct err e = {0};
        mem_fail_at((uint64_t)++n);
        rc = examine(scratch("t.gguf"), scratch("d.gguf"), NULL, &e);
        mem_fail_at(0);
        if (rc < 0 && (e.code != ERR_IO || !strstr(e.msg, "out of memory")))
            fail_msg("allocation %d: %s", n, e.msg);
    } while (rc < 0 && n < 1000);
    assert_int_equal(rc, 0);
    assert_int_equal(worst("config")->level, CHECK_OK);
    assert_true(n > 40);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_well),    cmocka_unit_test(test_sick),    cmocka_unit_test(test_ways),
        cmocka_unit_test(test_foreign), cmocka_unit_test(test_no_taps), cmocka_unit_test(test_config),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
