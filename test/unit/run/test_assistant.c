/* test_assistant.c - Gemma 4 assistants: streams drafted by them, over caches that the target writes and
 * writes over; their states; what does not fit.
 *
 * What is compared is bytes, as in test_recurrent.c. */
#include "../model/family_fixture.h"

#include "../model/recorder.h"
#include "../streams.h"

#include "../../../common/inspect/check.h"
#include "../../../common/run/session_impl.h"
#include "random_models.h"
#include "spans.h"

enum { IDS = 11, BLOCK = 6, KINDS = 2 };

/* ---- models: random weights ---- */

static const struct pair base_gemma[] = {
    {"attention_bias", "false"},
    {"attention_k_eq_v", "true"},
    {"enable_moe_block", "false"},
    {"hidden_activation", "\"gelu_pytorch_tanh\""},
    {"hidden_size_per_layer_input", "0"},
    {"max_position_embeddings", "4096"},
    {"rms_norm_eps", "1e-06"},
    {"tie_word_embeddings", "true"},
    {"rope_parameters", "{\"full_attention\": {\"partial_rotary_factor\": 0.25, \"rope_theta\": 1000000.0, "
                        "\"rope_type\": \"proportional\"}, \"sliding_attention\": {\"rope_theta\": 10000.0, "
                        "\"rope_type\": \"default\"}}"},
    {"head_dim", "48"},
    {"global_head_dim", "80"},
    {"num_attention_heads", "6"},
    {"num_key_value_heads", "3"},
    {"num_global_key_value_heads", "2"},
    {"sliding_window", "19"},
    {"vocab_size", "11"},
    {NULL, NULL},
};
static const struct pair target_parts[] = {
    {"architectures", "[\"Gemma4ForCausalLM\"]"},
    {"model_type", "\"gemma4_text\""},
    {"num_kv_shared_layers", "0"},
    {"hidden_size", "80"},
    {"intermediate_size", "96"},
    {"num_hidden_layers", "3"},
    {"layer_types", "[\"sliding_attention\", \"full_attention\", \"sliding_attention\"]"},
    {"final_logit_softcapping", "2.5"},
    {NULL, NULL},
};
static const struct pair assistant_parts[] = {
    {"model_type", "\"gemma4_text\""},
    {"num_kv_shared_layers", "2"},
    {"hidden_size", "32"},
    {"intermediate_size", "40"},
    {"num_hidden_layers", "2"},
    {"layer_types", "[\"sliding_attention\", \"full_attention\"]"},
    {NULL, NULL},
};

static struct kn_backend *be;

/* kind 1: the vocabulary in clusters, of which few count. key and value: one of the outer keys that is
 * another. */
static void make_assistant(const char *path, int kind, const char *key, const char *value)
{
    char inner[4096], outer[6000];
    struct pair top[] = {{"use_ordered_embeddings", kind ? "true" : "false"},
                         {"backbone_hidden_size", "80"},
                         {"num_centroids", "11"},
                         {"centroid_intermediate_top_k", "4"}};
    write_config("m", base_gemma, assistant_parts);
    FILE *f = fopen("m/config.json", "rb");
    assert_non_null(f);
    const size_t n = fread(inner, 1, sizeof inner - 1, f);
    fclose(f);
    inner[n] = 0;
    int used = snprintf(outer, sizeof outer,
                        "{\"architectures\": [\"Gemma4AssistantForCausalLM\"], "
                        "\"model_type\": \"gemma4_assistant\", \"text_config\": %s",
                        inner);
    for (size_t i = 0; i < sizeof top / sizeof top[0]; i++)
        used += snprintf(outer + used, sizeof outer - (size_t)used, ", \"%s\": %s", top[i].key,
                         key && !strcmp(key, top[i].key) ? value : top[i].value);
    used += snprintf(outer + used, sizeof outer - (size_t)used, "}\n");
    write_file("m/config.json", outer, (size_t)used);
    random_file("m", path, 7, QUANT_F32, CONVERT_MTP_FOUND);
}

static struct model *load(const char *path)
{
    const struct desc_override o = {.drafter = true, .draft_causal = -1, .block_size = BLOCK};
    struct err e = {0};
    struct model *m;
    must(model_load(&m, path, be, strcmp(path, "target.gguf") ? &o : NULL, NULL, NULL, &e), &e);
    return m;
}

static struct model *drafter(int kind)
{
    return load(kind ? "clusters.gguf" : "assistant.gguf");
}

/* ---- streams ---- */

static const struct kn_sampler samplers[] = {
    {.top_p = 1, .repeat_penalty = 1},
    {.temp = 2, .top_k = 7, .top_p = 0.95f, .repeat_penalty = 1.1f, .repeat_last = 20, .seed = 3},
};

static struct session *start(struct model *t, struct model *d)
{
    struct err e = {0};
    struct session *s;
    const struct session_options o = {.ctx = 400, .chunk = 16, .kv = {KN_F16, KN_F16}};
    must(session_new(&s, t, d, &o, &e), &e);
    return s;
}

static void run(struct model *t, struct model *d, int32_t n_prompt, int sampler, int32_t width, struct run *r)
{
    struct err e = {0};
    struct session *s = start(t, d);
    must(session_prefill(s, prompt, n_prompt, NULL, NULL, &e), &e);
    go_on(s, &samplers[sampler], N_NEW, width, r);
    assert_int_equal(r->n, N_NEW);
    session_free(s);
}

static void test_lossless(void **state)
{
    static struct run plain, host, early;
    static const int32_t width[] = {0, 1, 2, 4};
    int64_t accepted = 0, cycles = 0;
    (void)state;
    struct model *t = load("target.gguf");
    for (int kind = 0; kind < KINDS; kind++) {
        struct model *d = drafter(kind);
        for (int sampler = 0; sampler < 2; sampler++)
            for (int i = 0; i < 4; i++) {
                run(t, NULL, 33, sampler, 0, &plain);
                run(t, d, 33, sampler, width[i], &host);
                same_ids(&plain, &host);
                recorder_on(be);
                run(t, d, 33, sampler, width[i], &early);
                recorder_off(be);
                same_ids(&host, &early);
                same_trace(&host, &early);
                for (int j = 0; j < BLOCK; j++) accepted += j * host.st.accepted[j];
                cycles += host.st.cycles;
            }
        model_free(d);
    }
    /* Random models over 11 ids: some proposals must have been right. */
    assert_true(accepted > cycles / 30 && accepted < 4 * cycles);
    model_free(t);
}

/* The window is a layer's and shows: the same weights with another one propose otherwise. */
static void test_window(void **state)
{
    static struct run a, b;
    (void)state;
    struct model *t = load("target.gguf"), *d = drafter(0);
    run(t, d, 60, 0, 1, &a);
    for (int32_t i = 0; i < d->d->n_layer; i++)
        if (d->d->layer[i].window) d->d->layer[i].window = 12;
    for (int32_t i = 0; i < t->d->n_layer; i++) /* so that they pair; its caches hold more */
        if (t->d->layer[i].window) t->d->layer[i].window = 12;
    struct err e = {0};
    struct session *s;
    const struct session_options o = {.ctx = 400, .chunk = 16, .kv = {KN_F16, KN_F16}};
    must(session_new(&s, t, d, &o, &e), &e);
    for (int32_t i = 0; i < t->d->n_layer; i++)
        if (t->d->layer[i].window) t->d->layer[i].window = 19;
    must(session_prefill(s, prompt, 60, NULL, NULL, &e), &e);
    go_on(s, &samplers[0], N_NEW, 1, &b);
    session_free(s);
    same_ids(&a, &b);
    assert_memory_not_equal(a.trace, b.trace, (size_t)a.n_trace * sizeof *a.trace);
    model_free(d);
    model_free(t);
}

static struct setting setting(struct model *t, struct source *x, int i, int32_t n_prompt)
{
    return (struct setting){.target = t,
                            .source = x,
                            .o = {.ctx = 400, .chunk = 16, .kv = {KN_F16, KN_F16}},
                            .sampler = samplers[i % 2],
                            .n_prompt = n_prompt};
}

/* Random plans, stopped at any token, gone on with from states, in turns, behind measured times. */
static void test_streams(void **state)
{
    int cut = 0;
    (void)state;
    struct model *t = load("target.gguf");
    for (int i = 0; i < 8; i++) {
        struct model *d = drafter(i / 2 % 2);
        struct source x = source_drafter(d);
        struct setting y = setting(t, &x, i, 33), turns[STREAMS];
        struct known k;
        const bool recorded = (i ^ i >> 1) & 1;
        for (int j = 0; j < STREAMS; j++) turns[j] = setting(t, &x, i, 5 + 31 * j);
        known_open(&k, &y, 2);
        if (i / 4) y.o.look = turns[0].o.look = turns[1].o.look = turns[2].o.look = &k.source.source;
        if (recorded) recorder_on(be);
        any_stop(&y, 12, (uint32_t)i, ".", &cut);
        any_turns(turns, 2 + i % 2, (uint32_t)i * 31 + 5, 2);
        y.o.look = NULL;
        any_times(&y, (uint32_t)i * 5 + 3, recorded, ".");
        any_runs(turns, 2 + i % 2, (uint32_t)i * 7 + 1);
        turns[2].o.look = NULL;
        any_spans(&turns[2], ".");
        if (recorded) recorder_off(be);
        known_close(&k);
        model_free(d);
    }
    assert_true(cut > 0);
    model_free(t);
}

/* Around the borders of chunks and the window. */
static void test_resume(void **state)
{
    static struct run whole, r;
    static const int32_t length[] = {1, 2, 15, 16, 17, 18, 19, 20, 47, 48, 49};
    struct err e = {0};
    (void)state;
    struct model *t = load("target.gguf"), *d = drafter(1);
    for (size_t i = 0; i < sizeof length / sizeof length[0]; i++) {
        struct state *st;
        struct state_info info;
        uint64_t n;
        struct session *s = start(t, d);
        run(t, d, length[i], 0, 0, &whole);
        must(session_prefill(s, prompt, length[i], NULL, NULL, &e), &e);
        save(s, "state");
        session_free(s);
        s = start(t, d);
        must(state_open(&st, "state", &info, &e) || state_restore(st, s, &e), &e);
        assert_true(info.n_drafters == 1 && info.by[0].hidden && info.by[0].n_layer == 0);
        state_close(st);
        go_on(s, &samplers[0], N_NEW, 0, &r);
        same_ids(&whole, &r);
        same_trace(&whole, &r);
        session_free(s);
        must(state_open(&st, "state", &info, &e) || state_verify(st, &n, &e), &e);
        assert_int_equal(n, 3 + 3 + 1);
        state_close(st);
        s = start(t, NULL); /* without it */
        must(state_open(&st, "state", &info, &e) || state_restore(st, s, &e), &e);
        state_close(st);
        go_on(s, &samplers[0], N_NEW, 0, &r);
        same_ids(&whole, &r);
        save(s, "none");
        session_free(s);
    }
    struct session *s = start(t, d); /* a state that was made without one */
    struct state *st;
    struct state_info info;
    must(state_open(&st, "none", &info, &e), &e);
    assert_int_equal(state_restore(st, s, &e), -1);
    assert_non_null(strstr(e.msg, "holds no context for a drafter"));
    state_close(st);
    session_free(s);
    model_free(d);
    model_free(t);
}

/* Proposals that are none. */
static void test_no_proposals(void **state)
{
    static struct run plain, r;
    struct err e = {0};
    (void)state;
    struct model *t = load("target.gguf");
    for (int kind = 0; kind < KINDS; kind++) {
        struct model *d = drafter(kind);
        float nan[32];
        for (int i = 0; i < 32; i++) nan[i] = NAN;
        must(kn_op(be)->upload(be, d->output_norm, nan, sizeof nan), &e);
        run(t, NULL, 20, 1, 0, &plain);
        for (int recorded = 0; recorded < 2; recorded++) {
            if (recorded) recorder_on(be);
            run(t, d, 20, 1, 0, &r);
            if (recorded) recorder_off(be);
            same_ids(&plain, &r);
            assert_int_equal(r.st.nan_cycles, N_NEW - 1);
        }
        model_free(d);
    }
    model_free(t);
}

/* ---- files ---- */

/* The old spelling is the same drafter. */
static void old_spelling(const char *from, const char *to)
{
    struct err e = {0};
    struct gguf *g;
    struct gguf_writer *w;
    struct io_out out;
    char name[160];
    must(gguf_open(&g, from, &e) || gguf_writer_new(&w, &e), &e);
    for (uint64_t i = 0; i < g->n_kv; i++) {
        struct gguf_kv kv = g->kv[i];
        if (!strcmp(kv.key, "general.architecture")) {
            must(gguf_put_str(w, kv.key, "gemma4_assistant", 16, &e), &e);
            continue;
        }
        const char *rest = !strncmp(kv.key, "gemma4-assistant.", 17) ? kv.key + 17 : NULL;
        if (rest) {
            if (!strcmp(rest, "nextn_predict_layers")) continue;
            snprintf(name, sizeof name, "gemma4_assistant.%s",
                     strcmp(rest, "embedding_length_out") ? rest : "n_embd_backbone");
            kv.key = name;
        }
        must(gguf_put_kv(w, &kv, &e), &e);
    }
    must(gguf_put_str(w, "gemma4_assistant.requires_target_arch", "gemma4", 6, &e), &e);
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        const struct gguf_tensor *t = &g->tensor[i];
        snprintf(name, sizeof name, "%s%s", strncmp(t->name, "nextn.", 6) ? "" : "mtp.",
                 t->name + (strncmp(t->name, "nextn.", 6) ? 0 : 6));
        must(gguf_add_tensor(w, name, t->type, t->n_dims, t->ne, &e), &e);
    }
    must(io_out_open(&out, to, true, NULL, 0, &e) || gguf_write_header(w, &out, &e), &e);
    for (uint64_t i = 0; i < g->n_tensors; i++)
        must(gguf_write_data(w, &out, g->tensor[i].data, g->tensor[i].bytes, &e), &e);
    must(gguf_write_end(w, &out, &e) || io_out_commit(&out, &e), &e);
    gguf_writer_free(w);
    gguf_close(g);
}

static void test_spellings(void **state)
{
    static struct run a, b;
    (void)state;
    struct model *t = load("target.gguf"), *d = drafter(1);
    old_spelling("clusters.gguf", "old.gguf");
    struct model *old = load("old.gguf");
    run(t, d, 40, 1, 3, &a);
    run(t, old, 40, 1, 3, &b);
    same_ids(&a, &b);
    same_trace(&a, &b);
    model_free(old);
    model_free(d);
    model_free(t);
}

static void test_desc(void **state)
{
    (void)state;
#define A "gemma4-assistant."
    static const struct desc_case c[] = {
        {NULL, NULL, 0, NULL},
        {"blk.1.layer_output_scale.weight", NULL, 0,
         "tensor 'blk.1.layer_output_scale.weight': is missing (1 of 2 layers have it)"},
        {"nextn.pre_projection.weight", NULL, 0, "tensor 'nextn.pre_projection.weight': is missing"},
        {"nextn.post_projection.weight", NULL, 0, "tensor 'nextn.post_projection.weight': is missing"},
        {"token_embd.weight", NULL, 0, "tensor 'token_embd.weight': is missing"},
        {"blk.0.attn_q_norm.weight", NULL, 0, "tensor 'blk.0.attn_q_norm.weight': is missing"},
        {"rope_freqs.weight", NULL, 0, "tensor 'rope_freqs.weight': is missing"},
        {"mtp.token_ordering.weight", NULL, 0, "tensor 'mtp.token_ordering.weight': is missing"},
        {A "embedding_length_out", NULL, 0, "embedding_length_out': is missing"},
        {A "attention.sliding_window_pattern", NULL, 0, "sliding_window_pattern': is missing"},
        {A "rope.freq_base_swa", NULL, 0, "rope.freq_base_swa': is missing"},
        {A "centroid_top_k", NULL, 0, "centroid_top_k': is missing"},
        {NULL, A "centroid_top_k", 12, "out of range (expected 1 to 11, got 12)"},
        {NULL, A "n_centroids", 7, "clusters do not divide the vocabulary (got 7 and 11)"},
        {NULL, A "embedding_length_out", 64, "tensor 'nextn.pre_projection.weight': has the wrong shape"},
        {NULL, A "nextn_predict_layers", 3, "is not block_count (expected 2, got 3)"},
        {NULL, A "attention.head_count", 5, "disagrees with blk.0.attn_q.weight"},
        {NULL, A "attention.key_length_swa", 32, "disagrees with blk.0.attn_q_norm.weight"},
        {NULL, A "final_logit_softcapping", 30, "final_logit_softcapping': is not supported"},
    };
    make_assistant("out.gguf", 1, NULL, NULL);
    run_descs(c, sizeof c / sizeof c[0]);
    /* a layer's, as the target's: llama.cpp finds its way in the target's caches by them */
    struct gguf *g = open_out();
    const struct gguf_kv *kv = gguf_find(g, A "attention.head_count_kv");
    assert_non_null(kv);
    assert_int_equal(kv->type, GGUF_ARRAY);
    assert_int_equal(kv->count, 2);
    assert_int_equal(gguf_array_i64(kv, 0), 3);
    assert_int_equal(gguf_array_i64(kv, 1), 2);
    gguf_close(g);
}

static void expect_pair(struct desc *t, struct desc *d, const char *msg)
{
    struct err e = {0};
    assert_int_equal(desc_pair(t, d, &e), -1);
    if (!strstr(e.msg, msg)) fail_msg("got \"%s\", expected \"%s\"", e.msg, msg);
}

static int n_bad, n_seen;
static char bad[800];
static void collect(void *ctx, const struct check_finding *f)
{
    (void)ctx;
    n_seen++;
    if (f->level != CHECK_BAD) return;
    n_bad++;
    snprintf(bad, sizeof bad, "%s: %s", f->subject, f->text);
}

static void test_pair(void **state)
{
    struct err e = {0};
    (void)state;
    struct model *t = load("target.gguf"), *d = drafter(0);
    struct desc *x = d->d, was = *x;
    must(desc_pair(t->d, x, &e), &e);
    x->n_embd_target = 64;
    expect_pair(t->d, x, "hidden size that it reads (expected the target's 80, got 64)");
    *x = was, x->n_vocab = 12;
    expect_pair(t->d, x, "vocabulary (expected the target's 11, got 12)");
    *x = was, x->layer[0].head_dim = 80;
    expect_pair(t->d, x, "layer 0: heads");
    *x = was, x->layer[1].n_head = 5;
    expect_pair(t->d, x, "layer 1: heads");
    *x = was, x->layer[0].window = 20;
    expect_pair(t->d, x, "layer 0: window (expected that of the target's layer 2, 19, got 20)");
    *x = was, t->d->arch = DESC_QWEN3;
    expect_pair(t->d, x, "is an assistant of Gemma 4");
    t->d->arch = DESC_GEMMA4;
    model_free(d);
    model_free(t);
    if (check_pair("target.gguf", "clusters.gguf", NULL, collect, NULL, &e)) fail_msg("%s; %s", bad, e.msg);
    assert_true(n_seen > 6 && n_bad == 0);
    make_assistant("other.gguf", 0, "backbone_hidden_size", "96");
    assert_int_equal(check_pair("target.gguf", "other.gguf", NULL, collect, NULL, &e), 1);
    assert_non_null(strstr(bad, "hidden size"));
}

/* An ordering that is none. */
static void test_ordering(void **state)
{
    struct err e = {0};
    struct gguf *g;
    struct model *m;
    (void)state;
    must(gguf_open(&g, "clusters.gguf", &e), &e);
    const uint64_t at = (uint64_t)(gguf_tensor(g, "mtp.token_ordering.weight")->data - g->map.data);
    const uint64_t size = g->map.size;
    uint8_t *data = mem_alloc(size);
    assert_non_null(data);
    memcpy(data, g->map.data, size);
    gguf_close(g);
    for (int32_t v = -1; v < 12; v += 12) { /* out of range; one that stands twice is 0 */
        const int32_t id = v < 0 ? -1 : 0;
        memcpy(data + at + 4, &id, sizeof id);
        write_file("bad.gguf", data, size);
        assert_int_equal(model_load(&m, "bad.gguf", be, NULL, NULL, NULL, &e), -1);
        assert_non_null(strstr(e.msg, "element 1 is no id, or one that stands twice"));
        e = (struct err){0};
    }
    mem_free(data);
}

static int open_all(void **state)
{
    const struct kn_open o = {.device = "cpu", .threads = 1};
    char msg[128];
    make_prompt(IDS - 1);
    if (setup(state) || kn_backend_open(&be, &o, msg, sizeof msg)) return -1;
    write_config("m", base_gemma, target_parts);
    random_file("m", "target.gguf", 7, QUANT_F32, CONVERT_MTP_FOUND);
    make_assistant("assistant.gguf", 0, NULL, NULL);
    make_assistant("clusters.gguf", 1, NULL, NULL);
    return 0;
}

static int close_all(void **state)
{
    kn_backend_close(be);
    return teardown(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lossless),     cmocka_unit_test(test_window),
        cmocka_unit_test(test_streams),      cmocka_unit_test(test_resume),
        cmocka_unit_test(test_no_proposals), cmocka_unit_test(test_spellings),
        cmocka_unit_test(test_desc),         cmocka_unit_test(test_pair),
        cmocka_unit_test(test_ordering),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
