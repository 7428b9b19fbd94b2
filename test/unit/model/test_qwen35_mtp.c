/* test_qwen35_mtp.c - the block of Qwen3.5 that predicts further tokens: in the target's file, in a file of
 * its own, and what either must say. */
#include "qwen35_files.h"

#include "../../../common/model/model.h"
#include "../../foreign_files.h"

/* The block that predicts further tokens. */
static void add_mtp(struct spec *s, bool moe)
{
    add(s, EMBD, 2 * EMBD, "mtp.fc.weight");
    add(s, EMBD, 0, "mtp.pre_fc_norm_embedding.weight");
    add(s, EMBD, 0, "mtp.pre_fc_norm_hidden.weight");
    add(s, EMBD, 0, "mtp.norm.weight");
    add(s, EMBD, 0, "mtp.layers.0.input_layernorm.weight");
    add_mixer(s, "mtp.", 0, true);
    add(s, EMBD, 0, "mtp.layers.0.post_attention_layernorm.weight");
    add_ff(s, "mtp.", 0, moe);
}

/* A file whose last block predicts further tokens: it is no part of the pass. */
static void test_nextn(void **state)
{
    (void)state;
    struct spec s = delta_spec("model.", false);
    struct err e = {0};
    struct gguf *g;
    struct desc *d;
    write_weights("t", &s);
    family_config("t", parts, NULL);
    struct convert o = options("t");
    convert_ok(&o);
    rewrite("edited.gguf", NULL, "qwen35.nextn_predict_layers", 1);
    assert_int_equal(gguf_open(&g, "edited.gguf", &e), 0);
    if (desc_read(&d, g, NULL, &e)) fail_msg("%s", e.msg);
    assert_int_equal(d->n_layer, 2);
    assert_true(d->layer[0].recurrent && !d->layer[1].recurrent);
    assert_int_equal(d->n_nextn, 1);
    desc_free(d);
    gguf_close(g);
}

/* ---- the block that predicts further tokens ---- */

static void check_plus_one(const struct gguf *g, const char *name, const char *hf)
{
    const struct gguf_tensor *t = need(g, name);
    float x;
    assert_int_equal(t->type, KN_F32);
    for (int i = 0; i < t->ne[0]; i++) {
        memcpy(&x, t->data + 4 * i, 4);
        assert_true(x == 1 + source(hf, (uint64_t)i));
    }
}

static struct desc *describe_out(bool drafter)
{
    const struct desc_override o = {.drafter = drafter, .draft_causal = -1};
    struct err e = {0};
    struct desc *d;
    struct gguf *g = open_out();
    if (desc_read(&d, g, &o, &e)) fail_msg("%s", e.msg);
    gguf_close(g);
    return d;
}

/* In the target's file it stands behind the other blocks; a file of its own has what it shares with them. */
static void check_mtp(bool moe, enum convert_mtp mtp)
{
    const bool only = mtp == CONVERT_MTP_ONLY;
    struct convert o = options("t");
    o.mtp = mtp;
    convert_ok(&o);
    struct gguf *g = open_out();
    assert_int_equal(u32(g, moe ? "qwen35moe.block_count" : "qwen35.block_count"), BLOCKS + 1);
    assert_int_equal(u32(g, moe ? "qwen35moe.nextn_predict_layers" : "qwen35.nextn_predict_layers"), 1);
    assert_true(only == !gguf_tensor(g, "blk.0.attn_norm.weight"));
    need(g, "token_embd.weight");
    need(g, "output_norm.weight");
    const struct gguf_tensor *eh = need(g, "blk.3.nextn.eh_proj.weight");
    assert_true(eh->ne[0] == 2 * EMBD && eh->ne[1] == EMBD);
    check_plus_one(g, "blk.3.nextn.enorm.weight", "mtp.pre_fc_norm_embedding.weight");
    check_plus_one(g, "blk.3.nextn.hnorm.weight", "mtp.pre_fc_norm_hidden.weight");
    check_plus_one(g, "blk.3.nextn.shared_head_norm.weight", "mtp.norm.weight");
    check_plus_one(g, "blk.3.attn_q_norm.weight", "mtp.layers.0.self_attn.q_norm.weight");
    assert_true(moe == (gguf_tensor(g, "blk.3.ffn_gate_exps.weight") != NULL));
    gguf_close(g);
    struct desc *d = describe_out(true);
    assert_true(desc_drafts(d) && d->n_layer == 1 && d->first_block == BLOCKS && d->apart == only);
    assert_true(d->layer[0].n_head == HEADS && d->layer[0].n_head_kv == KV && d->layer[0].moe == moe);
    assert_int_equal(d->n_vocab, VOCAB);
    assert_int_equal(d->block_size, 4);
    desc_free(d);
    d = describe_out(false); /* a file of its own is nothing else */
    assert_true(desc_drafts(d) == only);
    if (!only) assert_true(d->n_layer == BLOCKS && d->n_nextn == 1);
    desc_free(d);
}

static void test_mtp(void **state)
{
    (void)state;
    for (int moe = 0; moe < 2; moe++) {
        struct spec s = delta_spec("model.", moe);
        add_mtp(&s, moe);
        write_weights("t", &s);
        family_config("t", moe ? moe_parts : parts, NULL);
        for (int i = 0; i < 3; i++) check_mtp(moe, (enum convert_mtp)i);
        struct convert o = options("t");
        o.mtp = CONVERT_MTP_NONE;
        convert_ok(&o);
        assert_non_null(strstr(said, "left out: "));
        struct gguf *g = open_out();
        assert_null(gguf_tensor(g, "blk.3.nextn.eh_proj.weight"));
        gguf_close(g);
    }
}

/* A checkpoint that holds nothing else has its target's sizes in its config. */
static void test_mtp_alone(void **state)
{
    (void)state;
    struct spec s = {.n = 0};
    add_mtp(&s, false);
    write_weights("t", &s);
    family_config("t", parts, NULL);
    struct convert o = options("t");
    convert_bad(&o, ERR_FORMAT, "t: holds the block that predicts further tokens alone, and no target's");
    o.mtp = CONVERT_MTP_ONLY;
    convert_ok(&o);
    assert_non_null(strstr(said, "the checkpoint has no embedding: llama.cpp reads"));
    struct desc *d = describe_out(false);
    assert_true(d->arch == DESC_QWEN35_MTP && d->apart && d->first_block == BLOCKS && d->n_vocab == VOCAB);
    desc_free(d);
}

static void test_mtp_refused(void **state)
{
    (void)state;
    static const struct {
        const char *out, *add; /* a tensor that is taken out, one that is added */
        struct pair config[2];
        enum convert_mtp mtp;
        const char *msg;
    } c[] = {
        {"mtp.pre_fc_norm_hidden", NULL, {{NULL}}, 0, "t: tensor mtp.pre_fc_norm_hidden.weight is missing"},
        {"mtp.layers.0.self_attn.q_norm",
         NULL,
         {{NULL}},
         0,
         "t: tensor mtp.layers.0.self_attn.q_norm.weight is missing"},
        {"mtp.",
         NULL,
         {{NULL}},
         CONVERT_MTP_KEEP,
         "t: no block that predicts further tokens (expected tensors named mtp.*)"},
        {"no such",
         "mtp.layers.1.input_layernorm.weight",
         {{NULL}},
         0,
         "t: tensor mtp.layers.1.input_layernorm.weight is not part of a Qwen3_5ForCausalLM that is known"},
        {"no such",
         NULL,
         {{"mtp_num_hidden_layers", "2"}},
         0,
         "t/config.json: mtp_num_hidden_layers is not supported (expected 1, got 2)"},
    };
    for (size_t i = 0; i < sizeof c / sizeof c[0]; i++) {
        struct spec s = delta_spec("model.", false);
        add_mtp(&s, false);
        take_out(&s, c[i].out);
        if (c[i].add) add(&s, EMBD, 0, "%s", c[i].add);
        write_weights("t", &s);
        family_config("t", parts, c[i].config);
        struct convert o = options("t");
        o.mtp = c[i].mtp;
        convert_bad(&o, ERR_FORMAT, c[i].msg);
    }
    struct spec s = delta_spec("model.", false);
    add(&s, EMBD, 3 * EMBD, "mtp.fc.weight");
    add_mtp(&s, false);
    for (int i = 0, first = 1; i < s.n; i++)
        if (!strcmp(s.t[i].name, "mtp.fc.weight") && !first)
            s.t[i] = s.t[--s.n];
        else if (!strcmp(s.t[i].name, "mtp.fc.weight"))
            first = 0;
    write_weights("t", &s);
    family_config("t", parts, NULL);
    struct convert o = options("t");
    convert_bad(&o, ERR_FORMAT, "t: mtp.fc.weight: columns are not an embedding and a hidden state ...");
}

/* A drafter's description: what is missing or does not fit, in the target's file and apart. */
static void test_mtp_desc(void **state)
{
    (void)state;
    static const struct desc_case c[] = {
        {NULL, NULL, 0, NULL},
        {"blk.3.nextn.shared_head_norm.weight", NULL, 0, NULL}, /* output_norm then */
        {"token_embd.weight", NULL, 0, NULL},
        {"blk.3.nextn.hnorm.weight", NULL, 0, "tensor 'blk.3.nextn.hnorm.weight': is missing"},
        {"blk.3.nextn.eh_proj.weight", NULL, 0, "tensor 'blk.3.nextn.eh_proj.weight': is missing"},
        {"blk.3.attn_v.weight", NULL, 0, "tensor 'blk.3.attn_v.weight': is missing"},
        {"blk.3.ffn_down.weight", NULL, 0, "tensor 'blk.3.ffn_down.weight': is missing"},
        {NULL, "qwen35.block_count", 3, "tensor 'blk.2.nextn.hnorm.weight': is missing"},
        {NULL, "qwen35.nextn_predict_layers", 2, "several blocks, one behind the other, are not supported"},
        {NULL, "qwen35.attention.head_count", 4, "disagrees with blk.3.attn_q.weight (expected 2, got 4)"},
        {NULL, "qwen35.embedding_length", 4, "disagrees with blk.3.nextn.hnorm.weight"},
        {NULL, "qwen35.vocab_size", 4, "disagrees with token_embd.weight"},
        {NULL, "qwen35.rope.dimension_count", 5, "is odd"},
    };
    struct spec s = delta_spec("model.", false);
    add_mtp(&s, false);
    write_weights("t", &s);
    family_config("t", parts, NULL);
    struct convert o = options("t");
    o.mtp = CONVERT_MTP_ONLY;
    convert_ok(&o);
    run_descs(c, sizeof c / sizeof c[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nextn),       cmocka_unit_test(test_mtp),      cmocka_unit_test(test_mtp_alone),
        cmocka_unit_test(test_mtp_refused), cmocka_unit_test(test_mtp_desc),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
