/* test_convert_heads.c - DSpark and Domino drafters: converted with all of their pieces, in every form of the
 * Markov head, with and without ends of their own and reduced vocabularies; and what is refused. */
#include "convert_fixture.h"

#include "../../../common/describe/desc.h"
#include "../../../common/inspect/diff.h"

enum { RANK = 8, STATE = 16, LOW = 12, REDUCED = 16 };

static const struct pair dspark[] = {
    {"architectures", "[\"Qwen3DSparkModel\"]"},
    {"block_size", "7"},
    {"confidence_head_with_markov", "true"},
    {"dflash_config", NULL},
    {"enable_confidence_head", "true"},
    {"markov_head_type", "\"vanilla\""},
    {"markov_rank", "8"},
    {"mask_token_id", "39"},
    {"num_anchors", "8"},
    {"target_layer_ids", "[0, 1]"},
    {NULL, NULL},
};
/* SpecForge's form. */
static const struct pair forge[] = {
    {"architectures", "[\"DSparkDraftModel\"]"},
    {"model_type", "\"dspark\""},
    {"dflash_config",
     "{\"mask_token_id\": 39, \"target_layer_ids\": [0, 1], \"projector_type\": \"dspark\", "
     "\"markov_rank\": 8, \"markov_head_type\": \"vanilla\", \"enable_confidence_head\": true, "
     "\"confidence_head_with_markov\": true, \"sample_from_anchor\": false}"},
    {NULL, NULL},
};
#define DOMINO_CONFIG(more)                                                                                  \
    "{\"mask_token_id\": 39, \"target_layer_ids\": [0, 1], \"projector_type\": \"domino\", \"emb_dim\": "    \
    "12, "                                                                                                   \
    "\"gru_hidden_dim\": 16" more "}"
static const struct pair domino[] = {
    {"architectures", "[\"DominoDraftModel\"]"},
    {"dflash_config", DOMINO_CONFIG(", \"pure_draft_prefix_len\": 1, \"shift_label\": true")},
    {NULL, NULL},
};

/* The base with one list of changes over another. */
static void write_all(const struct spec *s, const struct pair *of, const struct pair *change)
{
    write_changed("d", base_drafter, of, change);
    write_weights("d", s);
}

/* type 0, 1, 2: vanilla, gated, rnn. vocab: rows of W2. */
static struct spec dspark_spec(int type, int vocab)
{
    struct spec s = drafter_spec("");
    add(&s, VOCAB, RANK, "markov_head.markov_w1.weight");
    add(&s, vocab, RANK, "markov_head.markov_w2.weight");
    if (type == 1) {
        add(&s, RANK, EMBD + RANK, "markov_head.gate_proj.weight");
        add(&s, RANK, 0, "markov_head.gate_proj.bias");
    } else if (type == 2) {
        add(&s, 3 * RANK, EMBD + 2 * RANK, "markov_head.joint_proj.weight");
        add(&s, 3 * RANK, 0, "markov_head.joint_proj.bias");
    }
    add(&s, 1, EMBD + RANK, "confidence_head.proj.weight");
    add(&s, 1, 0, "confidence_head.proj.bias");
    return s;
}

static struct spec domino_spec(void)
{
    struct spec s = drafter_spec("");
    add(&s, 3 * STATE, EMBD, "prefix_gru.weight_ih_l0");
    add(&s, 3 * STATE, STATE, "prefix_gru.weight_hh_l0");
    add(&s, LOW, EMBD + STATE, "embed_proj.0.weight");
    add(&s, VOCAB, LOW, "embed_proj.2.weight");
    return s;
}

static struct desc *described(struct gguf *g)
{
    struct err e = {0};
    struct desc *d;
    if (desc_read(&d, g, NULL, &e)) fail_msg("%s", e.msg);
    return d;
}

static void holds(const struct gguf *g, const char *name, int64_t ne0, int64_t ne1)
{
    const struct gguf_tensor *t = gguf_tensor(g, name);
    if (!t) fail_msg("no %s", name);
    assert_int_equal(t->ne[0], ne0);
    assert_int_equal(t->ne[1], ne1);
}

static void ignore(void *ctx, const struct diff_tensor *t)
{
    (void)ctx, (void)t;
}

static void test_markov(void **state)
{
    (void)state;
    static const char *const name[] = {"\"vanilla\"", "\"gated\"", "\"rnn\""};
    for (int type = 0; type < 3; type++) {
        const struct pair change[] = {{"markov_head_type", name[type]}, {NULL, NULL}};
        struct spec s = dspark_spec(type, VOCAB);
        write_all(&s, dspark, change);
        struct convert o = options("d");
        convert_ok(&o);
        struct gguf *g = open_out();
        struct desc *d = described(g);
        holds(g, "markov_w1.weight", RANK, VOCAB);
        holds(g, "markov_w2.weight", RANK, VOCAB);
        holds(g, "conf_proj.weight", EMBD + RANK, 1);
        if (type == 1) holds(g, "markov_gate.weight", EMBD + RANK, RANK);
        if (type == 2) holds(g, "markov_joint.weight", EMBD + 2 * RANK, 3 * RANK);
        assert_int_equal(g->n_tensors, 3 + 11 * LAYERS + 4 + (type ? 2 : 0));
        assert_string_equal(d->kind, "DSpark");
        assert_true(d->runs && d->confidence && d->confidence_markov);
        assert_int_equal(d->markov, type);
        assert_int_equal(d->markov_rank, RANK);
        assert_int_equal(d->first_row, 0);
        assert_int_equal(desc_cycle_rows(d), 8);
        desc_free(d);
        gguf_close(g);
        struct err e = {0};
        struct diff_total total;
        if (diff_files("d", "out.gguf", 1, &(struct diff_fns){.tensor = ignore}, NULL, &total, &e))
            fail_msg("%s", e.msg);
        assert_int_equal(total.identical, total.tensors);
        assert_int_equal(total.missing, 0);
    }
}

static void test_forms(void **state)
{
    (void)state;
    struct spec s = dspark_spec(0, VOCAB);
    struct convert o = options("d");
    write_all(&s, forge, NULL);
    convert_ok(&o);
    struct gguf *g = open_out();
    struct desc *d = described(g);
    assert_int_equal(d->first_row, 1);
    assert_int_equal(desc_cycle_rows(d), 8);
    desc_free(d);
    gguf_close(g);
    /* named by its projector alone */
    static const struct pair other[] = {{"architectures", "[\"DFlashDraftModel\"]"}, {NULL, NULL}};
    write_all(&s, forge, other);
    convert_ok(&o);
    /* DeepSpec's "DFlash": neither head, but the anchor's row proposes */
    static const struct pair bare[] = {{"markov_rank", "0"},
                                       {"markov_head_type", NULL},
                                       {"enable_confidence_head", "false"},
                                       {"confidence_head_with_markov", NULL},
                                       {NULL, NULL}};
    s = drafter_spec("");
    write_all(&s, dspark, bare);
    convert_ok(&o);
    g = open_out();
    d = described(g);
    assert_true(d->runs && !d->markov_rank && !d->confidence && d->first_row == 0);
    desc_free(d);
    gguf_close(g);
}

/* An embedding and a head of its own: left out where they are the target's, kept where not or not known. */
static void test_ends(void **state)
{
    (void)state;
    struct spec s = dspark_spec(0, VOCAB), t = target_spec("model.");
    add(&s, VOCAB, EMBD, "model.embed_tokens.weight"); /* the target's values */
    add(&s, VOCAB, EMBD, "lm_head.weight");
    write_config("t", base_target, (const struct pair[]){{"num_hidden_layers", "2"}, {NULL, NULL}});
    write_weights("t", &t);
    static const struct pair two[] = {{"num_target_layers", "2"}, {NULL, NULL}};
    write_all(&s, dspark, two);
    struct convert o = options("d");
    convert_ok(&o);
    assert_non_null(strstr(said, "lm_head.weight is kept"));
    struct gguf *g = open_out();
    holds(g, "token_embd.weight", EMBD, VOCAB);
    holds(g, "output.weight", EMBD, VOCAB);
    gguf_close(g);
    for (int form = 0; form < 2; form++) { /* a directory, then its GGUF */
        struct convert u = options("t");
        u.output = "t.gguf";
        convert_ok(&u);
        o = options("d");
        o.target = form ? "t.gguf" : "t";
        convert_ok(&o);
        assert_non_null(strstr(said, "left out: model.embed_tokens.weight, a copy of the target's"));
        assert_non_null(strstr(said, "left out: lm_head.weight, a copy of the target's"));
        g = open_out();
        assert_null(gguf_tensor(g, "token_embd.weight"));
        assert_null(gguf_tensor(g, "output.weight"));
        gguf_close(g);
    }
    strcpy(find(&s, "model.embed_tokens.weight")->name, "embed_tokens.weight"); /* other values */
    write_all(&s, dspark, two);
    o = options("d");
    o.target = "t";
    convert_ok(&o);
    assert_non_null(strstr(said, "embed_tokens.weight is kept"));
    assert_non_null(strstr(said, "it is not the target's"));
    g = open_out();
    holds(g, "token_embd.weight", EMBD, VOCAB);
    assert_null(gguf_tensor(g, "output.weight"));
    gguf_close(g);
}

static const struct pair reduced[] = {{"draft_vocab_size", "16"}, {NULL, NULL}};

static void test_reduced(void **state)
{
    (void)state;
    struct spec s = dspark_spec(0, REDUCED);
    struct convert o = options("d");
    add(&s, REDUCED, EMBD, "lm_head.weight");
    add(&s, REDUCED, 0, "d2t");
    strcpy(s.t[s.n - 1].dtype, "I64");
    add(&s, VOCAB, 0, "t2d");
    write_all(&s, dspark, reduced);
    convert_ok(&o);
    struct gguf *g = open_out();
    struct desc *d = described(g);
    assert_int_equal(gguf_tensor(g, "d2t")->type, KN_I64);
    for (int64_t i = 0; i < REDUCED; i++) assert_int_equal(desc_d2t(g, i), 2 * i);
    assert_null(gguf_tensor(g, "t2d"));
    assert_int_equal(d->n_vocab_draft, REDUCED);
    assert_int_equal(d->d2t_top, 2 * REDUCED - 2);
    assert_int_equal(d->n_vocab, VOCAB);
    desc_free(d);
    gguf_close(g);
    /* no table; a table of floats; one whose ids leave the vocabulary; no head */
    s.n -= 2;
    write_all(&s, dspark, reduced);
    convert_bad(&o, ERR_FORMAT,
                "d: markov_head.markov_w2.weight has 16 rows of a vocabulary of 40, and d2t is "
                "missing");
    add(&s, REDUCED, 0, "d2t");
    write_all(&s, dspark, reduced);
    convert_bad(&o, ERR_FORMAT, "d: d2t: wrong type (expected I64 or I32, got BF16)");
    s = dspark_spec(0, 24);
    add(&s, 24, EMBD, "lm_head.weight");
    add(&s, 24, 0, "d2t");
    strcpy(s.t[s.n - 1].dtype, "I64");
    static const struct pair wide[] = {{"draft_vocab_size", "24"}, {NULL, NULL}};
    write_all(&s, dspark, wide);
    convert_bad(&o, ERR_FORMAT,
                "d: d2t: row 20 is of a token outside the vocabulary (expected 0 to 39, got 40)");
    s = dspark_spec(0, REDUCED);
    add(&s, REDUCED, 0, "d2t");
    strcpy(s.t[s.n - 1].dtype, "I64");
    write_all(&s, dspark, reduced);
    convert_bad(&o, ERR_FORMAT, "d: d2t is there and lm_head.weight is missing");
}

static const struct {
    struct pair change[3];
    const char *msg;
} dspark_refused[] = {
    {{{"markov_head_type", "\"gated\""}},
     "d/config.json: markov_head_type does not match the tensors (expected \"vanilla\", got \"gated\")"},
    {{{"markov_head_type", "\"lstm\""}},
     "d/config.json: markov_head_type is not known (expected \"vanilla\", \"gated\" or \"rnn\", got "
     "\"lstm\")"},
    {{{"markov_rank", "16"}}, "d/config.json: markov_rank does not match the tensors (expected 8, got 16)"},
    {{{"enable_confidence_head", "false"}},
     "d/config.json: enable_confidence_head does not match the tensors (expected true from "
     "confidence_head.proj, got false)"},
    {{{"confidence_head_with_markov", "false"}},
     "d/config.json: confidence_head_with_markov does not match the tensors (expected true from its "
     "input's width, got false)"},
    {{{"vocab_size", "41"}}, "d: markov_head.markov_w1.weight: rows (expected the vocabulary's 41, got 40)"},
    {{{"draft_vocab_size", "16"}},
     "d/config.json: draft_vocab_size does not match the tensors (expected 40 from "
     "markov_head.markov_w2.weight, got 16)"},
    {{{"output_multiplier", "0.5"}},
     "d/config.json: output_multiplier is not implemented in a DSpark drafter (expected 1)"},
    {{{"model_type", "\"gemma4\""}},
     "d/config.json: model_type is not a DSpark drafter's (expected \"qwen3\", got \"gemma4\")"},
    {{{"target_layer_ids", "[-2, 1]"}},
     "d: target_layer_ids[0] is out of range (expected a zero-based layer, or -1, the embeddings, got "
     "-2)"},
    {{{"gru_hidden_dim", "8"}},
     "d/config.json: key gru_hidden_dim shows a Domino drafter, which is not supported (expected a plain "
     "Qwen3DSparkModel)"},
    {{{"markov_gain", "2"}}, "d/config.json: markov_gain is not a key that is known (its value: 2)"},
};

static void test_dspark_refused(void **state)
{
    (void)state;
    struct spec s = dspark_spec(0, VOCAB);
    struct convert o = options("d");
    for (size_t i = 0; i < sizeof dspark_refused / sizeof dspark_refused[0]; i++) {
        write_all(&s, dspark, dspark_refused[i].change);
        convert_bad(&o, ERR_FORMAT, dspark_refused[i].msg);
    }
    write_all(&s, dspark, NULL);
    o.dialect = "ik";
    convert_bad(&o, ERR_FORMAT,
                "d: dialect ik has no place for the parts of a DSpark drafter (a Markov hea...");
    o = options("d");
    strcpy(find(&s, "markov_head.markov_w2.weight")->name, "markov_head.markov_w3.weight");
    write_all(&s, dspark, NULL);
    convert_bad(&o, ERR_FORMAT,
                "d: tensor markov_head.markov_w3.weight is not part of a Qwen3DSparkModel that is known");
    s = dspark_spec(1, VOCAB);
    find(&s, "markov_head.gate_proj.weight")->shape[1] = EMBD;
    write_all(&s, dspark, (const struct pair[]){{"markov_head_type", "\"gated\""}, {NULL, NULL}});
    convert_bad(&o, ERR_FORMAT,
                "d: markov_head.gate_proj.weight has the wrong shape (expected 40: the stream and the rank, "
                "got 32)");
    s = dspark_spec(0, VOCAB);
    find(&s, "confidence_head.proj.weight")->shape[1] = EMBD + 1;
    write_all(&s, dspark, NULL);
    convert_bad(&o, ERR_FORMAT,
                "d: confidence_head.proj.weight has the wrong shape (expected 32: the stream, or the stream "
                "and the rank, got 33)");
}

static void test_domino(void **state)
{
    (void)state;
    struct spec s = domino_spec();
    struct convert o = options("d");
    write_all(&s, domino, NULL);
    convert_ok(&o);
    struct gguf *g = open_out();
    struct desc *d = described(g);
    holds(g, "domino_ih.weight", EMBD, 3 * STATE);
    holds(g, "domino_hh.weight", STATE, 3 * STATE);
    holds(g, "domino_down.weight", EMBD + STATE, LOW);
    holds(g, "domino_up.weight", LOW, VOCAB);
    assert_string_equal(d->kind, "Domino");
    assert_true(d->runs);
    assert_int_equal(d->n_state, STATE);
    assert_int_equal(d->n_correct, LOW);
    assert_int_equal(d->pure_prefix, 1);
    assert_int_equal(d->first_row, 0);
    assert_int_equal(d->idle_rows, 1);
    assert_int_equal(desc_cycle_rows(d), 8);
    desc_free(d);
    gguf_close(g);
    static const struct {
        struct pair change[3];
        const char *msg;
    } c[] = {
        {{{"dflash_config", DOMINO_CONFIG(", \"shift_label\": true")}},
         "d/config.json: pure_draft_prefix_len is missing (expected at dflash_config.pure_draft_prefix_len "
         "or "
         "pure_draft_prefix_len)"},
        {{{"dflash_config", DOMINO_CONFIG(", \"pure_draft_prefix_len\": 1")}},
         "d/config.json: shift_label is missing (expected at dflash_config.shift_label or shift_label)"},
        {{{"dflash_config", DOMINO_CONFIG(", \"pure_draft_prefix_len\": 9, \"shift_label\": true")}},
         "d/config.json: dflash_config.pure_draft_prefix_len is not usable (expected an integer from 0 to 8, "
         "got 9)"},
        {{{"vocab_size", "41"}},
         "d: embed_proj.2.weight has the wrong shape (expected 41: the vocabulary's rows, got 40)"},
        {{{"markov_rank", "8"}},
         "d/config.json: key markov_rank shows a DSpark drafter, which is not supported (expected a plain "
         "DominoDraftModel)"},
    };
    for (size_t i = 0; i < sizeof c / sizeof c[0]; i++) {
        write_all(&s, domino, c[i].change);
        convert_bad(&o, ERR_FORMAT, c[i].msg);
    }
    find(&s, "embed_proj.0.weight")->shape[1] = EMBD;
    write_all(&s, domino, NULL);
    convert_bad(&o, ERR_FORMAT,
                "d: embed_proj.0.weight has the wrong shape (expected 48: the stream and the state, got 32)");
    s = domino_spec();
    add(&s, STATE, 0, "domino_start");
    write_all(&s, domino, NULL);
    convert_bad(&o, ERR_FORMAT,
                "d: tensor domino_start shows a lucebox Domino drafter, which is not supported (expected a "
                "plain DominoDraftModel)");
}

/* ---- sinks, and a scale of attention ---- */

static void test_sinks(void **state)
{
    static const char *const names[] = {"layers.%d.self_attn.sinks", "layers.%d.self_attn.sinks.weight",
                                        "layers.%d.self_attn.attention_sink_bias"};
    static const struct pair
        scaled[] = {{"dflash_config",
                     "{\"mask_token_id\": 39, \"target_layer_ids\": [0, 1], \"attention_value_scale\": 0.5}"},
                    {NULL, NULL}},
        none[] = {{"dflash_config", "{\"mask_token_id\": 39, \"target_layer_ids\": [0, 1], "
                                    "\"attention_value_scale\": 0}"},
                  {NULL, NULL}};
    struct convert o = options("d");
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct spec s = i ? drafter_spec("") : dspark_spec(0, VOCAB);
        for (int l = 0; l < LAYERS; l++) {
            char name[64];
            snprintf(name, sizeof name, "layers.%d%s", l, strstr(names[i], ".self"));
            add(&s, HEADS, 0, "%s", name);
        }
        write_all(&s, i ? scaled : dspark, NULL);
        convert_ok(&o);
        struct gguf *g = open_out();
        struct desc *d = described(g);
        holds(g, "blk.1.attn_sinks.weight", HEADS, 1);
        assert_true(d->runs && d->sinks && d->value_scale == (i ? 0.5f : 0));
        assert_string_equal(d->kind, i ? "DFlash" : "DSpark");
        desc_free(d);
        gguf_close(g);
    }
    struct spec s = drafter_spec("");
    write_all(&s, none, NULL);
    convert_bad(&o, ERR_FORMAT,
                "d/config.json: attention_value_scale is out of range (expected a positive number, got 0)");
    write_all(&s, scaled, NULL);
    o.dialect = "ik";
    convert_bad(&o, ERR_FORMAT,
                "d: dialect ik has no place for the parts of a DFlash drafter (a scale of att...");
    add(&s, HEADS + 1, 0, "layers.1.self_attn.sinks");
    write_all(&s, scaled, NULL);
    convert_bad(&o, ERR_FORMAT, "d: layers.1.self_attn.sinks has the wrong shape (expected 2 heads, got 3)");
}

/* ---- Gemma 4's blocks ---- */

static const struct pair gemma4[] = {
    {"architectures", "[\"Gemma4DSparkModel\"]"},
    {"attention_k_eq_v", "true"},
    {"block_size", "7"},
    {"confidence_head_with_markov", "true"},
    {"dflash_config", NULL},
    {"enable_confidence_head", "true"},
    {"global_head_dim", "16"},
    {"head_dim", "8"},
    {"hidden_act", NULL},
    {"hidden_activation", "\"gelu_pytorch_tanh\""},
    {"layer_types", "[\"full_attention\", \"full_attention\"]"},
    {"markov_head_type", "\"vanilla\""},
    {"markov_rank", "8"},
    {"mask_token_id", "39"},
    {"model_type", "\"gemma4_text\""},
    {"num_global_key_value_heads", "1"},
    {"num_key_value_heads", "2"},
    {"rope_parameters",
     "{\"full_attention\": {\"rope_type\": \"proportional\", \"partial_rotary_factor\": 0.25, "
     "\"rope_theta\": 1000000.0}}"},
    {"target_layer_ids", "[-1, 1]"},
    {"use_sliding_window", NULL},
    {NULL, NULL},
};

static struct spec gemma4_spec(void)
{
    struct spec s = dspark_spec(0, VOCAB);
    for (int i = 0; i < s.n; i++) {
        char *at = strstr(s.t[i].name, "v_proj");
        if (at) s.t[i--] = s.t[--s.n];
    }
    for (int l = 0; l < LAYERS; l++) {
        add(&s, EMBD, 0, "layers.%d.pre_feedforward_layernorm.weight", l);
        add(&s, EMBD, 0, "layers.%d.post_feedforward_layernorm.weight", l);
        add(&s, 1, 0, "layers.%d.layer_scalar", l);
    }
    return s;
}

static const struct {
    struct pair change[3];
    const char *msg;
} gemma4_refused[] = {
    {{{"layer_types", "[\"full_attention\", \"sliding_attention\"]"}},
     "d/config.json: layer_types[1] is not implemented in a drafter with Gemma 4's blocks (expected "
     "\"full_attention\", got \"sliding_attention\")"},
    {{{"attention_k_eq_v", "false"}},
     "d/config.json: attention_k_eq_v: values of their own are not implemented in a drafter with Gemma "
     "4's "
     "blocks (expected true)"},
    {{{"attention_k_eq_v", NULL}},
     "d/config.json: attention_k_eq_v: values of their own are not implemented in a drafter with Gemma "
     "4's "
     "blocks (expected true)"},
    {{{"final_logit_softcapping", "30.0"}},
     "d/config.json: final_logit_softcapping is not implemented in a drafter with Gemma 4's blocks "
     "(expected null)"},
    {{{"global_head_dim", "8"}},
     "d/config.json: global_head_dim does not match the tensors (expected 16 from "
     "layers.0.self_attn.q_norm.weight, got 8)"},
    {{{"num_global_key_value_heads", "2"}},
     "d/config.json: num_global_key_value_heads does not match the tensors (expected 1 from "
     "layers.0.self_attn.k_proj.weight / layers.0.self_attn.q_norm.weight, got 2)"},
    {{{"hidden_activation", "\"silu\""}},
     "d/config.json: hidden_activation changes the forward pass and is not implemented (expected "
     "\"gelu_pytorch_tanh\", got \"silu\")"},
    {{{"enable_moe_block", "true"}},
     "d/config.json: enable_moe_block changes the forward pass and is not implemented (expected false, "
     "got "
     "true)"},
};

static void test_gemma4(void **state)
{
    (void)state;
    struct spec s = gemma4_spec();
    struct convert o = options("d");
    struct err e = {0};
    struct diff_total total;
    write_all(&s, gemma4, NULL);
    convert_ok(&o);
    struct gguf *g = open_out();
    struct desc *d = described(g);
    holds(g, "blk.1.post_attention_norm.weight", EMBD, 1);
    holds(g, "blk.1.post_ffw_norm.weight", EMBD, 1);
    holds(g, "blk.1.layer_output_scale.weight", 1, 1);
    holds(g, "rope_freqs.weight", HEAD / 2, 1);
    const float *turns = (const float *)(const void *)gguf_tensor(g, "rope_freqs.weight")->data;
    for (int i = 0; i < HEAD / 2; i++) assert_true(turns[i] == (i < HEAD / 8 ? 1.0f : 1e30f));
    assert_string_equal(d->kind, "DSpark");
    assert_true(d->runs && d->other_block && d->gelu && d->confidence && d->rope[0].has_divisors);
    assert_non_null(gguf_find(g, "dflash.hidden_activation")); /* as llama.cpp spells it */
    assert_true(d->layer[0].value_is_key && d->layer[1].value_is_key && d->attention_scale == 1);
    assert_true(d->has_embedding_scale && d->embedding_scale == 5.65625f); /* the root of 32 in bf16 */
    assert_true(d->has_softcap && d->softcap == 0 && d->first_row == 0);
    assert_int_equal(d->taps[0], -1);
    assert_int_equal(d->layer[0].head_dim, HEAD);
    desc_free(d);
    gguf_close(g);
    if (diff_files("d", "out.gguf", 1, &(struct diff_fns){.tensor = ignore}, NULL, &total, &e))
        fail_msg("%s", e.msg);
    assert_int_equal(total.identical, total.tensors);
    o = options("d/config.json");
    o.random = true;
    convert_ok(&o);
    o = options("d");
    for (size_t i = 0; i < sizeof gemma4_refused / sizeof gemma4_refused[0]; i++) {
        write_all(&s, gemma4, gemma4_refused[i].change);
        convert_bad(&o, ERR_FORMAT, gemma4_refused[i].msg);
    }
    add(&s, KV, EMBD, "layers.0.self_attn.v_proj.weight");
    write_all(&s, gemma4, NULL);
    convert_bad(
        &o, ERR_FORMAT,
        "d: tensor layers.0.self_attn.v_proj.weight is not part of a Gemma4DSparkModel that is known");
    write_all(&s, gemma4, NULL);
    s = gemma4_spec();
    write_all(&s, gemma4, (const struct pair[]){{"target_layer_ids", "[0, 1]"}, {NULL, NULL}});
    o.dialect = "ik";
    convert_bad(&o, ERR_FORMAT,
                "d: dialect ik has no place for the parts of a DSpark drafter (Gemma 4's blocks, a Mark...");
}

/* Sizes alone. */
static void test_random(void **state)
{
    (void)state;
    static const char *const name[] = {"\"vanilla\"", "\"gated\"", "\"rnn\""};
    for (int i = 0; i < 4; i++) {
        const struct pair change[] = {{"markov_head_type", name[i % 3]}, {NULL, NULL}};
        struct spec s = drafter_spec("");
        write_all(&s, i < 3 ? dspark : domino, i < 3 ? change : NULL);
        struct convert o = options("d/config.json");
        o.random = true;
        o.seed = 3;
        convert_ok(&o);
        struct gguf *g = open_out();
        struct desc *d = described(g);
        assert_true(d->runs);
        assert_int_equal(g->n_tensors, 3 + 11 * LAYERS + (i == 0 ? 4 : i == 3 ? 4 : 6));
        assert_null(gguf_tensor(g, "output.weight"));
        desc_free(d);
        gguf_close(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_markov),         cmocka_unit_test(test_forms),  cmocka_unit_test(test_ends),
        cmocka_unit_test(test_reduced),        cmocka_unit_test(test_domino), cmocka_unit_test(test_random),
        cmocka_unit_test(test_dspark_refused), cmocka_unit_test(test_gemma4), cmocka_unit_test(test_sinks),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
