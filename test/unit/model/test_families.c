/* test_families.c - the families beside Qwen3: where their tensors' rows go, and
 * what their files must say. */
#include "family_fixture.h"
#include "../../../common/file/imatrix.h"

#include "../../../common/file/hf_config.h"
#include "../../../common/model/model.h"

enum { EXPERTS = 3, FFX = 24 };

/* ---- checkpoints ---- */

static const struct pair llama_parts[] = {
    {"architectures", "[\"LlamaForCausalLM\"]"},
    {"model_type", "\"llama\""},
    {"mlp_bias", "false"},
    {"rope_theta", "10000"},
    {"rope_scaling",
     "{\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": "
     "4.0, \"original_max_position_embeddings\": 64}"},
    {"use_sliding_window", NULL},
    {NULL, NULL},
};

static const struct pair moe_parts[] = {
    {"architectures", "[\"Qwen3MoeForCausalLM\"]"},
    {"model_type", "\"qwen3_moe\""},
    {"num_experts", "3"},
    {"num_experts_per_tok", "2"},
    {"moe_intermediate_size", "24"},
    {"norm_topk_prob", "true"},
    {"decoder_sparse_step", "1"},
    {"mlp_only_layers", "[]"},
    {NULL, NULL},
};

static struct spec llama_spec(void)
{
    struct spec s = target_spec("model.");
    take_out(&s, "_norm.weight");
    return s;
}

static struct spec moe_spec(bool fused)
{
    struct spec s = target_spec("model.");
    take_out(&s, ".mlp.");
    for (int i = 0; i < LAYERS; i++) {
        add(&s, EXPERTS, EMBD, "model.layers.%d.mlp.gate.weight", i);
        if (fused) {
            add(&s, EXPERTS, 2 * FFX, "model.layers.%d.mlp.experts.gate_up_proj", i);
            add_dim(&s, EMBD);
            add(&s, EXPERTS, EMBD, "model.layers.%d.mlp.experts.down_proj", i);
            add_dim(&s, FFX);
            continue;
        }
        for (int x = 0; x < EXPERTS; x++) {
            add(&s, FFX, EMBD, "model.layers.%d.mlp.experts.%d.gate_proj.weight", i, x);
            add(&s, FFX, EMBD, "model.layers.%d.mlp.experts.%d.up_proj.weight", i, x);
            add(&s, EMBD, FFX, "model.layers.%d.mlp.experts.%d.down_proj.weight", i, x);
        }
    }
    return s;
}

/* ---- conversion ---- */

/* HF's row i of a head stands at 2i, its row i + half at 2i + 1; rows of v do not move. */
static void test_llama_rows(void **state)
{
    (void)state;
    struct spec s = llama_spec();
    write_weights("t", &s);
    family_config("t", llama_parts, NULL);
    struct convert o = options("t");
    convert_ok(&o);
    struct gguf *g = open_out();
    const struct gguf_tensor *q = need(g, "blk.1.attn_q.weight"), *v = need(g, "blk.1.attn_v.weight");
    for (int r = 0; r < HEADS * HEAD; r++)
        for (int c = 0; c < EMBD; c++) {
            int j = r % HEAD, from = r - j + (j % 2 ? HEAD / 2 + j / 2 : j / 2);
            uint16_t bits,
                want = value_bits("model.layers.1.self_attn.q_proj.weight", (uint64_t)(from * EMBD + c));
            memcpy(&bits, q->data + 2 * (r * EMBD + c), 2);
            assert_int_equal(bits, want);
            if (r >= KV * HEAD) continue;
            memcpy(&bits, v->data + 2 * (r * EMBD + c), 2);
            assert_int_equal(bits,
                             value_bits("model.layers.1.self_attn.v_proj.weight", (uint64_t)(r * EMBD + c)));
        }
    gguf_close(g);
}

/* By hand, for head size 16, theta 10000, factor 8, 1 and 4 over 64 positions: wavelengths 6.28, 19.9, 62.8,
 * 199, ... below 16 stay, above 64 are stretched by 8, 19.9 and 62.8 lie between. */
static void test_llama_divisors(void **state)
{
    (void)state;
    struct spec s = llama_spec();
    write_weights("t", &s);
    family_config("t", llama_parts, NULL);
    struct convert o = options("t");
    convert_ok(&o);
    struct gguf *g = open_out();
    const struct gguf_tensor *t = need(g, "rope_freqs.weight");
    float x[HEAD / 2];
    assert_int_equal(t->type, KN_F32);
    assert_int_equal(t->ne[0], HEAD / 2);
    memcpy(x, t->data, sizeof x);
    assert_true(x[0] == 1.0f);
    for (int i = 3; i < HEAD / 2; i++) assert_true(x[i] == 8.0f);
    for (int i = 1; i < 3; i++) {
        double wave = 2 * M_PI * pow(10, i * 0.5), smooth = (64 / wave - 1) / 3;
        assert_true(fabs(x[i] - 1 / ((1 - smooth) / 8 + smooth)) < 1e-6);
    }
    gguf_close(g);
    const struct pair plain[] = {{"rope_scaling", "null"}, {NULL, NULL}};
    family_config("t", llama_parts, plain);
    convert_ok(&o);
    g = open_out();
    assert_null(gguf_tensor(g, "rope_freqs.weight"));
    gguf_close(g);
}

static void test_llama_config(void **state)
{
    (void)state;
    static const struct family_case c[] = {
        {{{"head_dim", NULL}}, NULL},
        {{{"head_dim", "8"}},
         "t/config.json: head_dim does not match the tensors (expected 16 from q_proj / num_attention_heads, "
         "got 8)"},
        {{{"num_attention_heads", "3"}},
         "t/config.json: num_attention_heads does not divide the rows of q_proj (got 3 heads, 32 rows)"},
        {{{"rope_scaling", "{\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 1.0}"}},
         "t/config.json: rope_scaling: llama3 scaling is not whole..."},
        {{{"rope_scaling",
           "{\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 4.0, \"high_freq_factor\": "
           "4.0, \"original_max_position_embeddings\": 64}"}},
         "t/config.json: rope_scaling: llama3 scaling is not whole..."},
        {{{"rope_scaling", "{\"rope_type\": \"default\", \"factor\": 8.0}"}},
         "t/config.json: rope_scaling: has the numbers of llama3 scaling without \"rope_type\": \"llama3\""},
        {{{"rope_scaling", "{\"rope_type\": \"yarn\", \"factor\": 8.0}"}},
         "t/config.json: rope_scaling.rope_type is not usable (expected \"default\" or \"llama3\"..."},
        {{{"rope_scaling", "{\"rope_type\": \"llama3\", \"factor\": -8.0}"}},
         "t/config.json: rope_scaling.factor is not usable (expected a number above 0, got -8.0)"},
        {{{"rope_parameters", "{\"rope_theta\": 10000, \"rope_type\": \"default\"}"}},
         "t/config.json: rope_parameters and rope_scaling disagree"},
        {{{"attention_bias", "true"}},
         "t/config.json: attention_bias changes the forward pass and is not implemented (expected false, got "
         "true)"},
        {{{"sliding_window", "64"}},
         "t/config.json: sliding_window changes the forward pass and is not implemented (expected null, got "
         "64)"},
    };
    struct spec s = llama_spec();
    run_family(llama_parts, &s, c, sizeof c / sizeof c[0]);
    add(&s, HEADS * HEAD, 0, "model.layers.0.self_attn.q_proj.bias");
    write_weights("t", &s);
    family_config("t", llama_parts, NULL);
    struct convert o = options("t");
    convert_bad(
        &o, ERR_FORMAT,
        "t: tensor model.layers.0.self_attn.q_proj.bias is not part of a LlamaForCausalLM that is known");
}

/* Rows of expert x: apart, or as the halves of the fused matrix. */
static void check_experts(const struct gguf *g, bool fused)
{
    const struct gguf_tensor *gate = need(g, "blk.1.ffn_gate_exps.weight"),
                             *up = need(g, "blk.1.ffn_up_exps.weight"),
                             *down = need(g, "blk.1.ffn_down_exps.weight");
    assert_int_equal(gate->n_dims, 3);
    assert_int_equal(gate->ne[0], EMBD);
    assert_int_equal(gate->ne[1], FFX);
    assert_int_equal(gate->ne[2], EXPERTS);
    assert_int_equal(down->ne[0], FFX);
    assert_int_equal(down->ne[1], EMBD);
    for (int x = 0; x < EXPERTS; x++) {
        char a[96], b[96], d[96];
        snprintf(a, sizeof a, "model.layers.1.mlp.experts.%d.gate_proj.weight", x);
        snprintf(b, sizeof b, "model.layers.1.mlp.experts.%d.up_proj.weight", x);
        snprintf(d, sizeof d, "model.layers.1.mlp.experts.%d.down_proj.weight", x);
        for (int i = 0; i < FFX * EMBD; i++) {
            uint16_t bits[3], want[3] = {value_bits(a, (uint64_t)i), value_bits(b, (uint64_t)i),
                                         value_bits(d, (uint64_t)i)};
            if (fused) {
                want[0] =
                    value_bits("model.layers.1.mlp.experts.gate_up_proj", (uint64_t)(2 * x * FFX * EMBD + i));
                want[1] = value_bits("model.layers.1.mlp.experts.gate_up_proj",
                                     (uint64_t)((2 * x + 1) * FFX * EMBD + i));
                want[2] = value_bits("model.layers.1.mlp.experts.down_proj", (uint64_t)(x * FFX * EMBD + i));
            }
            memcpy(&bits[0], gate->data + 2 * (x * FFX * EMBD + i), 2);
            memcpy(&bits[1], up->data + 2 * (x * FFX * EMBD + i), 2);
            memcpy(&bits[2], down->data + 2 * (x * FFX * EMBD + i), 2);
            assert_memory_equal(bits, want, sizeof bits);
        }
    }
}

static void test_experts(void **state)
{
    (void)state;
    family_config("t", moe_parts, NULL);
    for (int fused = 0; fused < 2; fused++) {
        struct spec s = moe_spec(fused);
        write_weights("t", &s);
        struct convert o = options("t");
        convert_ok(&o);
        struct gguf *g = open_out();
        check_experts(g, fused);
        assert_int_equal(need(g, "blk.0.ffn_gate_inp.weight")->type, KN_F32); /* routers stay exact */
        gguf_close(g);
    }
}

static void test_experts_refused(void **state)
{
    (void)state;
    static const struct family_case c[] = {
        {{{"norm_topk_prob", "false"}},
         "t/config.json: norm_topk_prob changes the forward pass and is not implemented (expected true, got "
         "false)"},
        {{{"norm_topk_prob", NULL}}, "t/config.json: norm_topk_prob is missing..."},
        {{{"mlp_only_layers", "[1]"}}, "t/config.json: mlp_only_layers changes the forward pass..."},
        {{{"decoder_sparse_step", "2"}}, "t/config.json: decoder_sparse_step changes the forward pass..."},
        {{{"num_experts", "4"}},
         "t/config.json: num_experts does not match the tensors (expected 3 from "
         "model.layers.0.mlp.gate.weight, got 4)"},
        {{{"num_experts", NULL}, {"num_local_experts", "3"}}, NULL},
        {{{"num_experts_per_tok", "4"}},
         "t/config.json: num_experts_per_tok is not usable (expected an integer from 1 to 3, got 4)"},
        {{{"num_experts_per_tok", NULL}}, "t/config.json: num_experts_per_tok is missing"},
        {{{"moe_intermediate_size", "32"}},
         "t/config.json: moe_intermediate_size does not match the tensors..."},
    };
    struct spec s = moe_spec(false);
    run_family(moe_parts, &s, c, sizeof c / sizeof c[0]);
    family_config("t", moe_parts, NULL);
    struct convert o = options("t");
    take_out(&s, "layers.1.mlp.experts.2.up_proj");
    write_weights("t", &s);
    convert_bad(
        &o, ERR_FORMAT,
        "t: layers.1.mlp.experts.2.up_proj.weight: wrong number of experts (expected 3, got 2 in a row)");
    take_out(&s, "layers.1.mlp.experts.");
    write_weights("t", &s);
    convert_bad(&o, ERR_FORMAT, "t: tensor layers.1.mlp.experts.0.gate_proj.weight is missing");
    s = moe_spec(false);
    add(&s, EXPERTS, EMBD, "model.layers.0.mlp.experts.down_proj");
    add_dim(&s, FFX);
    write_weights("t", &s);
    convert_bad(&o, ERR_FORMAT,
                "t: model.layers.0.mlp.experts.0.down_proj.weight and model.layers.0.mlp.experts.down_proj "
                "are both there (expected one)");
    s = moe_spec(true);
    find(&s, "model.layers.0.mlp.experts.gate_up_proj")->shape[1]--;
    write_weights("t", &s);
    convert_bad(&o, ERR_FORMAT,
                "t: model.layers.0.mlp.experts.gate_up_proj: dimension 1 is out of range (got 47)");
}

/* A text model inside another one's config: its own keys come first, and both levels are gone through. */
static void test_nested_config(void **state)
{
    (void)state;
    static const char text[] =
        "{\"hidden_size\": 7, \"image_token_id\": 5, \"text_config\": {\"hidden_size\": 9, \"odd\": 1}}";
    static const struct hf_rule known[] = {{"hidden_size", NULL}, {"image_token_id", NULL}, {NULL, NULL}};
    static const struct hf_rule *const tables[] = {known, NULL};
    struct hf_config *c;
    struct err e = {0};
    int64_t v = 0;
    assert_int_equal(hf_config_parse(&c, text, sizeof text - 1, "c", &e), 0);
    assert_int_equal(hf_config_nest(c, "vision_config", &e), -1);
    assert_int_equal(hf_config_nest(c, "text_config", &e), 0);
    assert_int_equal(hf_get_i64(c, "hidden_size", 1, 100, &v, &e), 0);
    assert_int_equal(v, 9);
    assert_int_equal(hf_get_i64(c, "image_token_id", 1, 100, &v, &e), 0);
    assert_int_equal(v, 5);
    e = (struct err){0};
    assert_int_equal(hf_config_rest(c, tables, &e), -1);
    assert_string_equal(e.msg, "c: odd is not a key that is known (its value: 1)");
    hf_config_free(c);
}

/* Rotations by layer type: one is chosen by name, and what the family does not know is refused. */
static void test_rope_by_layer(void **state)
{
    (void)state;
    static const char text[] =
        "{\"rope_parameters\": {\"full_attention\": {\"rope_theta\": 1e6, \"rope_type\": \"proportional\", "
        "\"partial_rotary_factor\": 0.25}, \"sliding_attention\": {\"rope_theta\": 1e4, \"rope_type\": "
        "\"default\"}}}";
    struct hf_config *c;
    struct hf_rope r;
    struct err e = {0};
    const char *where;
    assert_int_equal(hf_config_parse(&c, text, sizeof text - 1, "c", &e), 0);
    assert_int_equal(hf_get_rope(c, "full_attention", HF_ROPE_PROPORTIONAL, &r, &where, &e), 0);
    assert_true(r.theta == 1e6 && r.partial == 0.25 && !strcmp(r.type, "proportional"));
    assert_int_equal(hf_get_rope(c, "sliding_attention", HF_ROPE_PROPORTIONAL, &r, &where, &e), 0);
    assert_true(r.theta == 1e4 && r.partial == 1 && !strcmp(r.type, "default"));
    assert_int_equal(hf_get_rope(c, "full_attention", 0, &r, &where, &e), -1);
    assert_non_null(strstr(e.msg, "rope_parameters.full_attention.rope_type is not usable"));
    e = (struct err){0};
    assert_int_equal(hf_get_rope(c, NULL, HF_ROPE_PROPORTIONAL, &r, &where, &e), -1);
    assert_non_null(strstr(e.msg, "layer types disagree"));
    assert_int_equal(hf_get_rope(c, "linear_attention", HF_ROPE_PROPORTIONAL, &r, &where, &e), 1);
    hf_config_free(c);
}

/* ---- descriptions ---- */

static void test_llama_desc(void **state)
{
    (void)state;
    static const struct desc_case c[] = {
        {NULL, NULL, 0, NULL},
        {"llama.attention.key_length", NULL, 0, NULL}, /* files of other converters do not say it */
        {"llama.vocab_size", NULL, 0, NULL},
        {"llama.rope.dimension_count", NULL, 0, NULL},
        {"llama.rope.freq_base", NULL, 0, "key 'llama.rope.freq_base': is missing"},
        {"llama.attention.head_count", NULL, 0, "key 'llama.attention.head_count': is missing"},
        {NULL, "llama.attention.head_count", 3,
         "does not divide the rows of blk.0.attn_q.weight (got 3 heads, 32 rows)"},
        {NULL, "llama.attention.head_count", 4, "key 'llama.attention.head_count_kv': disagrees with"},
        {NULL, "llama.rope.dimension_count", 8,
         "key 'llama.rope.dimension_count': disagrees with the head size"},
        {NULL, "llama.expert_count", 8, "key 'llama.expert_count': is not supported"},
        {NULL, "llama.feed_forward_length", 65, "disagrees with blk.0.ffn_gate.weight (expected 64, got 65)"},
        {"blk.1.ffn_up.weight", NULL, 0, "tensor 'blk.1.ffn_up.weight': is missing"},
        {"rope_freqs.weight", NULL, 0, NULL}, /* a file may say it: then the frequencies are not scaled */
        {"output_norm.weight", NULL, 0, "tensor 'output_norm.weight': is missing"},
    };
    struct spec s = llama_spec();
    write_weights("t", &s);
    family_config("t", llama_parts, NULL);
    struct convert o = options("t");
    convert_ok(&o);
    run_descs(c, sizeof c / sizeof c[0]);
}

static void test_experts_desc(void **state)
{
    (void)state;
    static const struct desc_case c[] = {
        {NULL, NULL, 0, NULL},
        {"qwen3moe.expert_feed_forward_length", NULL, 0, NULL},
        {"qwen3moe.expert_count", NULL, 0, "key 'qwen3moe.expert_count': is missing"},
        {"qwen3moe.expert_used_count", NULL, 0, "key 'qwen3moe.expert_used_count': is missing"},
        {NULL, "qwen3moe.expert_used_count", 4, "out of range (expected 1 to 3, got 4)"},
        {NULL, "qwen3moe.expert_used_count", 0, "out of range (expected 1 to 3, got 0)"},
        {NULL, "qwen3moe.expert_count", 4, "disagrees with blk.0.ffn_down_exps.weight (expected 3, got 4)"},
        {NULL, "qwen3moe.expert_shared_count", 1, "key 'qwen3moe.expert_shared_count': is not supported"},
        {"blk.1.ffn_gate_inp.weight", NULL, 0, "tensor 'blk.1.ffn_gate_inp.weight': is missing"},
        {"blk.1.ffn_up_exps.weight", NULL, 0, "tensor 'blk.1.ffn_up_exps.weight': is missing"},
    };
    struct spec s = moe_spec(false);
    write_weights("t", &s);
    family_config("t", moe_parts, NULL);
    struct convert o = options("t");
    convert_ok(&o);
    run_descs(c, sizeof c / sizeof c[0]);
}

/* A backend whose table lacks an operation refuses the model before it loads anything, and names it. */
static void test_backend_lacks(void **state)
{
    (void)state;
    struct spec s = moe_spec(false);
    struct convert o = options("t");
    struct kn_open open = {.device = "cpu"};
    struct kn_backend *be;
    struct model *m = NULL;
    struct err e = {0};
    char msg[128];
    write_weights("t", &s);
    family_config("t", moe_parts, NULL);
    convert_ok(&o);
    assert_int_equal(kn_backend_open(&be, &open, msg, sizeof msg), 0);
    struct kn_backend_head *head = (struct kn_backend_head *)(void *)be;
    const struct kn_ops *whole = head->op;
    struct kn_ops less = *whole;
    less.route = NULL;
    head->op = &less;
    assert_int_equal(model_load(&m, "out.gguf", be, NULL, NULL, NULL, &e), -1);
    assert_string_equal(
        e.msg, "out.gguf: cpu: the experts of qwen3moe are not supported on this device (operation route)");
    head->op = whole;
    e = (struct err){0};
    if (model_load(&m, "out.gguf", be, NULL, NULL, NULL, &e)) fail_msg("%s", e.msg);
    /* of the experts, two in three are read a step */
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < m->file->n_tensors; i++) {
        const struct gguf_tensor *t = &m->file->tensor[i];
        if (t->n_dims == 3)
            bytes += t->bytes / 3 * 2;
        else if (t->n_dims == 2)
            bytes += t->bytes;
    }
    assert_int_equal(m->bytes_step, bytes);
    model_free(m);
    kn_backend_close(be);
}

/* ---- which experts stay in the host's memory ---- */

static struct {
    const struct kn_ops *own;
    int loads;
    int32_t n, ids[8]; /* of the last one */
} seen;

static int see_experts(struct kn_backend *be, struct kn_weight *w, uint32_t type, int64_t n_in, int64_t n_out,
                       int32_t n_mat, const void *data)
{
    const struct kn_backend_head *head = (const struct kn_backend_head *)(const void *)be;
    seen.loads++;
    seen.n = head->n_hosted;
    for (int32_t i = 0; i < seen.n; i++) seen.ids[i] = head->hosted[i];
    return seen.own->experts_load(be, w, type, n_in, n_out, n_mat, data);
}

static struct imatrix *counts_of(const double (*times)[3], bool by_chunks)
{
    struct imatrix *m;
    struct imatrix_entry *at;
    struct err e = {0};
    assert_int_equal(imatrix_new(&m, &e), 0);
    for (int i = 0; i < 2; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%d.ffn_down_exps.weight", i);
        assert_int_equal(imatrix_entry(m, name, FFX, 3, &at, &e), 0);
        for (int x = 0; x < 3; x++) at->count[x] = times[i][x];
    }
    m->by_chunks = by_chunks;
    return m;
}

static void placed(struct kn_backend *be, int32_t n, const struct imatrix *counts, const int32_t *want)
{
    struct model *m, *again;
    struct err e = {0};
    assert_int_equal(model_open(&m, "out.gguf", be, NULL, &e), 0);
    assert_int_equal(model_open(&again, "out.gguf", be, NULL, &e), 0);
    if (model_place(m, n, counts, &e) || model_place_like(again, m, &e)) fail_msg("%s", e.msg);
    assert_int_equal(m->n_host, n);
    assert_memory_equal(m->host, want, 2 * (size_t)n * sizeof *want);
    assert_memory_equal(again->host, want, 2 * (size_t)n * sizeof *want);
    seen.loads = 0;
    assert_int_equal(model_fill(m, NULL, NULL, &e), 0);
    assert_int_equal(seen.loads, 6); /* gate, up and down of two layers */
    assert_int_equal(seen.n, n);
    assert_memory_equal(seen.ids, want + n, (size_t)n * sizeof *want);
    assert_int_equal(((struct kn_backend_head *)(void *)be)->n_hosted, 0);
    assert_int_equal(model_host_bytes(m), 2 * 3 * (uint64_t)n * FFX * EMBD * 2);
    model_free(m);
    model_free(again);
}

static void misplaced(struct kn_backend *be, int32_t n, const struct imatrix *counts, enum err_class code,
                      const char *what)
{
    struct model *m;
    struct err e = {0};
    assert_int_equal(model_open(&m, "out.gguf", be, NULL, &e), 0);
    assert_int_equal(model_place(m, n, counts, &e), -1);
    if (e.code != code || strcmp(e.msg, what)) fail_msg("got (%d) %s, not %s", e.code, e.msg, what);
    model_free(m);
}

static void test_placed_experts(void **state)
{
    (void)state;
    static const double times[2][3] = {{5, 1, 9}, {4, 4, 0}};
    struct spec s = moe_spec(false);
    struct convert o = options("t");
    const struct kn_open open = {.device = "cpu"};
    struct kn_backend *be;
    struct err e = {0};
    char msg[128];
    write_weights("t", &s);
    family_config("t", moe_parts, NULL);
    convert_ok(&o);
    assert_int_equal(kn_backend_open(&be, &open, msg, sizeof msg), 0);
    struct kn_backend_head *head = (struct kn_backend_head *)(void *)be;
    struct kn_ops watched = *head->op;
    seen.own = head->op;
    watched.experts_load = see_experts;
    head->op = &watched;
    struct imatrix *counts = counts_of(times, false), *chunks = counts_of(times, true), *none;
    assert_int_equal(imatrix_new(&none, &e), 0);
    placed(be, 1, NULL, (const int32_t[]){2, 2});
    placed(be, 2, NULL, (const int32_t[]){1, 2, 1, 2});
    placed(be, 1, counts, (const int32_t[]){1, 2});
    placed(be, 2, counts, (const int32_t[]){0, 1, 1, 2}); /* of equals the last */
    misplaced(be, 3, NULL, ERR_USAGE, "--experts-host: too many (expected at most 2 of 3 experts, got 3)");
    misplaced(be, 1, none, ERR_FORMAT,
              "blk.0.ffn_down_exps.weight: is missing (expected how often each of 3 experts was chosen)");
    misplaced(be, 1, chunks, ERR_FORMAT,
              "counts chunks (expected an importance matrix that counts the rows of each expert)");
    imatrix_free(counts), imatrix_free(chunks), imatrix_free(none);
    head->op = seen.own;
    kn_backend_close(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_llama_rows),      cmocka_unit_test(test_llama_divisors),
        cmocka_unit_test(test_llama_config),    cmocka_unit_test(test_experts),
        cmocka_unit_test(test_experts_refused), cmocka_unit_test(test_nested_config),
        cmocka_unit_test(test_rope_by_layer),   cmocka_unit_test(test_llama_desc),
        cmocka_unit_test(test_experts_desc),    cmocka_unit_test(test_backend_lacks),
        cmocka_unit_test(test_placed_experts),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
