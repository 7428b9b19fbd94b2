/* test_draft_block.c - drafters whose blocks are not Qwen3's, as some of llama.cpp's are: values made of
 * keys, norms behind the branches, a scale of the layer, divisors of the rotation, gelu, a scale of the
 * scores, one of what attention leaves, sinks; and scales beside matrices. Context and block against a slow
 * reference in double, and the target's stream. */
#include "engine_fixture.h"

#include "../../../common/make/convert.h"
#include "../../../common/run/engine.h"

enum { E = TINY_EMBD, V = TINY_VOCAB, HEADS = 4, KV = 2, D = 48, FF = 36, MOST = 64 };

#define NORMS(i)                                                                                             \
    {"blk." #i ".post_attention_norm.weight", {E, 0}}, {"blk." #i ".post_ffw_norm.weight", {E, 0}},          \
    {                                                                                                        \
        "blk." #i ".layer_output_scale.weight",                                                              \
        {                                                                                                    \
            1, 0                                                                                             \
        }                                                                                                    \
    }
static const struct tiny_tensor norms[] = {NORMS(0), NORMS(1), {"", {0, 0}}},
                                before[] = {{"blk.0.post_attention_norm.weight", {E, 0}},
                                            {"blk.1.post_attention_norm.weight", {E, 0}},
                                            {"", {0, 0}}},
                                after[] = {{"blk.0.post_ffw_norm.weight", {E, 0}},
                                           {"blk.1.post_ffw_norm.weight", {E, 0}},
                                           {"", {0, 0}}},
                                turned[] = {
                                    NORMS(0), NORMS(1), {"rope_freqs.weight", {D / 2, 0}}, {"", {0, 0}}};

#define SCALES(i)                                                                                            \
    {"blk." #i ".attn_q.scale", {1, 0}}, {"blk." #i ".attn_k.scale", {1, 0}},                                \
        {"blk." #i ".attn_output.scale", {1, 0}}, {"blk." #i ".ffn_gate.scale", {1, 0}},                     \
        {"blk." #i ".ffn_up.scale", {1, 0}},                                                                 \
    {                                                                                                        \
        "blk." #i ".ffn_down.scale",                                                                         \
        {                                                                                                    \
            1, 0                                                                                             \
        }                                                                                                    \
    }
static const struct tiny_tensor sinks[] = {{"blk.0.attn_sinks.weight", {HEADS, 0}},
                                           {"blk.1.attn_sinks.weight", {HEADS, 0}},
                                           {"", {0, 0}}},
                                one_sink[] = {{"blk.1.attn_sinks.weight", {HEADS, 0}}, {"", {0, 0}}},
                                scales[] = {{"fc.scale", {1, 0}},
                                            SCALES(0),
                                            SCALES(1),
                                            {"blk.1.attn_v.scale", {1, 0}},
                                            {"", {0, 0}}},
                                everything[] = {NORMS(0),
                                                NORMS(1),
                                                SCALES(0),
                                                SCALES(1),
                                                {"rope_freqs.weight", {D / 2, 0}},
                                                {"blk.0.attn_sinks.weight", {HEADS, 0}},
                                                {"blk.1.attn_sinks.weight", {HEADS, 0}},
                                                {"fc.scale", {1, 0}},
                                                {"", {0, 0}}};

static int gelu(struct gguf_writer *w, struct err *e)
{
    return gguf_put_str(w, "dflash.hidden_activation", "gelu_pytorch_tanh", 17, e);
}
static int gelu_before(struct gguf_writer *w, struct err *e)
{
    return gguf_put_str(w, "dflash.hidden_act", "gelu", 4, e);
}
static int silu(struct gguf_writer *w, struct err *e)
{
    return gguf_put_str(w, "dflash.hidden_activation", "silu", 4, e);
}
static int scored(struct gguf_writer *w, struct err *e)
{
    return gguf_put_f32(w, "dflash.attention.scale", 0.3f, e);
}
static int all(struct gguf_writer *w, struct err *e)
{
    return gelu(w, e) || gguf_put_f32(w, "dflash.attention.scale", 0.05f, e);
}
static int valued(struct gguf_writer *w, struct err *e)
{
    return gguf_put_f32(w, "dflash.attention.value_scale", 0.612f, e);
}
static int from_embeddings(struct gguf_writer *w, struct err *e)
{
    return gguf_put_array(w, "dflash.target_layers", GGUF_I32, (const int32_t[]){0, 2}, 2, e);
}
static int all_sliding(struct gguf_writer *w, struct err *e)
{
    return gguf_put_array(w, "dflash.attention.sliding_window_pattern", GGUF_BOOL, (const uint8_t[]){1, 1}, 2,
                          e);
}
static int whole(struct gguf_writer *w, struct err *e)
{
    return all(w, e) || valued(w, e);
}

static const struct form {
    const char *name;
    struct tiny y;
    bool other;
} forms[] = {
    {"plain", {.drafter = true}, false},
    {"silu", {.drafter = true, .edit = silu}, false},
    {"gelu", {.drafter = true, .edit = gelu}, true},
    {"gelu by the name of before", {.drafter = true, .edit = gelu_before}, true},
    {"scores", {.drafter = true, .edit = scored}, true},
    {"values of keys", {.drafter = true, .extra = before, .drop_tensor = "blk.1.attn_v.weight"}, true},
    {"norms", {.drafter = true, .extra = norms}, true},
    {"norms behind attention", {.drafter = true, .extra = before}, true},
    {"norms behind the feed-forward", {.drafter = true, .extra = after}, true},
    {"sinks", {.drafter = true, .extra = sinks}, false},
    {"sinks of full layers", {.drafter = true, .extra = one_sink}, false},
    {"attention scaled", {.drafter = true, .edit = valued}, true},
    {"attention scaled and normed", {.drafter = true, .extra = norms, .edit = valued}, true},
    {"matrices scaled", {.drafter = true, .extra = scales}, false},
    {"embeddings tapped",
     {.drafter = true, .drop_key = "dflash.target_layers", .edit = from_embeddings},
     false},
    {"everything",
     {.drafter = true, .extra = everything, .drop_tensor = "blk.0.attn_v.weight", .edit = whole},
     true},
    {"all", {.drafter = true, .extra = turned, .drop_tensor = "blk.0.attn_v.weight", .edit = all}, true},
};
enum { N_FORMS = sizeof forms / sizeof forms[0] };

/* ---- the slow reference ---- */

static const float *w_of(const struct model *m, const char *part, int layer)
{
    char name[64];
    snprintf(name, sizeof name, layer < 0 ? "%.0d%s.weight" : "blk.%d.%s.weight", layer < 0 ? 0 : layer,
             part);
    const struct gguf_tensor *t = gguf_tensor(m->file, name);
    return t ? (const float *)(const void *)t->data : NULL;
}

static double scale_of(const struct model *m, const char *part, int layer)
{
    char name[64];
    snprintf(name, sizeof name, layer < 0 ? "%.0d%s.scale" : "blk.%d.%s.scale", layer < 0 ? 0 : layer, part);
    const struct gguf_tensor *t = gguf_tensor(m->file, name);
    return t ? (double)*(const float *)(const void *)t->data : 1;
}

static void times(double *out, const struct model *m, const char *part, int layer, int rows, const double *x,
                  int cols)
{
    const float *w = w_of(m, part, layer);
    const double scale = scale_of(m, part, layer);
    for (int r = 0; r < rows; r++) {
        out[r] = 0;
        for (int c = 0; c < cols; c++) out[r] += scale * (double)w[r * cols + c] * x[c];
    }
}

static void normed(double *out, const double *x, const float *w, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += x[i] * x[i];
    for (int i = 0; i < n; i++) out[i] = x[i] / sqrt(sum / n + 1e-6) * (w ? (double)w[i] : 1);
}

static void turn(const struct model *m, double *x, int pos)
{
    const float *divisor = w_of(m, "rope_freqs", -1);
    for (int i = 0; i < D / 2; i++) {
        const double a = pos * pow(10000, -2.0 * i / D) / (divisor ? (double)divisor[i] : 1);
        const double u = x[i], v = x[i + D / 2];
        x[i] = u * cos(a) - v * sin(a), x[i + D / 2] = v * cos(a) + u * sin(a);
    }
}

/* Key and value of layer i of the row n at pos. */
static void key_value(const struct model *m, int i, const double *n, int pos, double *k, double *v)
{
    const float *wv = w_of(m, "attn_v", i);
    times(k, m, "attn_k", i, KV * D, n, E);
    if (wv) times(v, m, "attn_v", i, KV * D, n, E);
    for (int h = 0; h < KV; h++) {
        if (!wv) normed(v + h * D, k + h * D, NULL, D);
        normed(k + h * D, k + h * D, w_of(m, "attn_k_norm", i), D);
        turn(m, k + h * D, pos);
    }
}

struct slow {
    double context[MOST][E], x[TINY_BLOCK][E], k[MOST][KV * D], v[MOST][KV * D];
    double features[MOST][2 * E];
};

static void attend(const struct model *m, const struct slow *s, int i, int at, int row, const double *n,
                   double *out)
{
    double q[HEADS * D], p[MOST];
    const float *sink = w_of(m, "attn_sinks", i);
    const struct desc_layer *l = &m->d->layer[i];
    const double scale = m->d->attention_scale > 0 ? (double)m->d->attention_scale : 1 / sqrt(D);
    times(q, m, "attn_q", i, HEADS * D, n, E);
    for (int h = 0; h < HEADS; h++) {
        double sum = 0, most = -INFINITY;
        normed(q + h * D, q + h * D, w_of(m, "attn_q_norm", i), D);
        turn(m, q + h * D, at + row);
        for (int j = 0; j < at + TINY_BLOCK; j++) {
            p[j] = 0;
            for (int c = 0; c < D; c++) p[j] += scale * q[h * D + c] * s->k[j][h / 2 * D + c];
            if ((l->causal && j > at + row) || (l->window && at + row - j >= l->window)) p[j] = -INFINITY;
            if (p[j] > most) most = p[j];
        }
        if (sink) sum = exp((double)sink[h] - most);
        for (int j = 0; j < at + TINY_BLOCK; j++) sum += p[j] = exp(p[j] - most);
        for (int c = 0; c < D; c++) out[h * D + c] = 0;
        for (int j = 0; j < at + TINY_BLOCK; j++)
            for (int c = 0; c < D; c++) out[h * D + c] += p[j] / sum * s->v[j][h / 2 * D + c];
    }
}

/* x += y, behind its norm where there is one. */
static void join(const struct model *m, int i, const char *norm, const double *y, double *x)
{
    double n[E];
    memcpy(n, y, sizeof n);
    if (w_of(m, norm, i)) normed(n, y, w_of(m, norm, i), E);
    for (int c = 0; c < E; c++) x[c] += n[c];
}

static void feed_forward(const struct model *m, int i, double *x)
{
    double n[E], y[E], gate[FF], up[FF];
    const float *scale = w_of(m, "layer_output_scale", i);
    normed(n, x, w_of(m, "ffn_norm", i), E);
    times(gate, m, "ffn_gate", i, FF, n, E);
    times(up, m, "ffn_up", i, FF, n, E);
    for (int c = 0; c < FF; c++) {
        const double g = gate[c];
        up[c] *= m->d->gelu ? g / 2 * (1 + tanh(0.7978845608028654 * (g + 0.044715 * g * g * g)))
                            : g / (1 + exp(-g));
    }
    times(y, m, "ffn_down", i, E, up, FF);
    join(m, i, "post_ffw_norm", y, x);
    for (int c = 0; c < E && scale; c++) x[c] *= (double)scale[0];
}

/* The rows of the block behind at tokens, with anchor. */
static void slow_block(const struct model *m, struct slow *s, int at, int32_t anchor)
{
    const float *embed = w_of(pair_target, "token_embd", -1);
    double n[TINY_BLOCK][E], out[HEADS * D], y[E];
    for (int j = 0; j < at; j++) {
        times(y, m, "fc", -1, E, s->features[j], 2 * E);
        normed(s->context[j], y, w_of(m, "enc.output_norm", -1), E);
    }
    for (int r = 0; r < TINY_BLOCK; r++)
        for (int c = 0; c < E; c++) s->x[r][c] = embed[(r ? TINY_MASK : anchor) * E + c];
    for (int i = 0; i < TINY_DRAFT_LAYERS; i++) {
        for (int j = 0; j < at; j++) key_value(m, i, s->context[j], j, s->k[j], s->v[j]);
        for (int r = 0; r < TINY_BLOCK; r++) {
            normed(n[r], s->x[r], w_of(m, "attn_norm", i), E);
            key_value(m, i, n[r], at + r, s->k[at + r], s->v[at + r]);
        }
        for (int r = 0; r < TINY_BLOCK; r++) {
            attend(m, s, i, at, r, n[r], out);
            times(y, m, "attn_output", i, E, out, HEADS * D);
            for (int c = 0; c < E && m->d->value_scale > 0; c++) y[c] *= (double)m->d->value_scale;
            join(m, i, "post_attention_norm", y, s->x[r]);
            feed_forward(m, i, s->x[r]);
        }
    }
}

/* ---- ours ---- */

static struct model *made(const struct form *f, uint32_t seed)
{
    struct err e = {0};
    struct tiny y = f->y;
    y.seed = seed;
    must(tiny_write(drafter_path, &y, &e), &e);
    struct model *m = load(drafter_path, be);
    assert_int_equal(m->d->other_block, f->other);
    return m;
}

static void test_block(void **state)
{
    static struct slow s;
    (void)state;
    for (int i = 0; i < N_FORMS; i++) {
        struct model *m = made(&forms[i], 11);
        for (int at = 1; at < 40; at += 6) {
            struct err e = {0};
            struct session *q;
            const struct session_options o = {
                .ctx = 60, .chunk = MOST, .draft_window = SESSION_DRAFT_ALL, .kv = {KN_F32, KN_F32}};
            int32_t ids[MAX_BLOCK];
            bool usable;
            must(session_new(&q, pair_target, m, &o, &e), &e);
            must(session_prefill(q, prompt, at, NULL, NULL, &e), &e);
            must(session_draft(q, prompt[at], ids, &usable, true, &e), &e);
            for (int j = 0; j < at * 2 * E; j++) s.features[j / (2 * E)][j % (2 * E)] = q->by[0].features[j];
            for (int j = 0; j < at * E && m->d->taps[0] < 0; j++) /* as they are: this target has no scale */
                assert_true(s.features[j / E][j % E] ==
                            (double)w_of(pair_target, "token_embd", -1)[prompt[j / E] * E + j % E]);
            slow_block(m, &s, at, prompt[at]);
            for (int r = 0; r < TINY_BLOCK; r++) {
                double h[E], want[V];
                float got[V];
                normed(h, s.x[r], w_of(m, "output_norm", -1), E);
                times(want, pair_target, "output", -1, V, h, E);
                must(session_logits(q, r, got, &e), &e);
                for (int v = 0; v < V; v++)
                    if (!(fabs(got[v] - want[v]) < 5e-4))
                        fail_msg("%s, behind %d: row %d, id %d: %.7g (expected %.7g)", forms[i].name, at, r,
                                 v, (double)got[v], want[v]);
            }
            session_free(q);
        }
        model_free(m);
    }
}

static void test_streams(void **state)
{
    static struct run plain, r;
    (void)state;
    for (int i = 0; i < N_FORMS; i++) {
        struct model *m = made(&forms[i], 12);
        for (int k = 0; k < 2; k++) {
            struct way y = {.prompt = 20, .sampler = k ? sampled : greedy, .target_model = pair_target};
            run(&y, &plain);
            y.drafter = true, y.drafter_model = m;
            for (int chunk = 0; chunk < 2; chunk++) {
                y.chunk = 7 * chunk, y.state = chunk;
                run(&y, &r);
                same_ids(&plain, &r);
            }
            y.state = false;
            run_recorded(&y, &r);
            same_ids(&plain, &r);
        }
        model_free(m);
    }
}

static int relu(struct gguf_writer *w, struct err *e)
{
    return gguf_put_str(w, "dflash.hidden_activation", "relu", 4, e);
}
static int both_acts(struct gguf_writer *w, struct err *e)
{
    return silu(w, e) || gelu_before(w, e);
}
static int no_value(struct gguf_writer *w, struct err *e)
{
    return gguf_put_f32(w, "dflash.attention.value_scale", 0, e);
}
static int below(struct gguf_writer *w, struct err *e)
{
    return gguf_put_f32(w, "dflash.attention.scale", -1, e);
}

static const struct tiny_tensor scale[] = {{"blk.0.layer_output_scale.weight", {1, 0}}, {"", {0, 0}}},
                                freqs[] = {{"rope_freqs.weight", {D, 0}}, {"", {0, 0}}},
                                long_sinks[] = {{"blk.1.attn_sinks.weight", {HEADS + 1, 0}}, {"", {0, 0}}},
                                no_layer[] = {{"blk.2.attn_sinks.weight", {HEADS, 0}}, {"", {0, 0}}},
                                of_none[] = {{"blk.0.attn_v.scale", {1, 0}}, {"", {0, 0}}},
                                two[] = {{"blk.0.attn_q.scale", {2, 0}}, {"", {0, 0}}},
                                of_head[] = {{"output.scale", {1, 0}}, {"", {0, 0}}},
                                input[] = {{"blk.0.attn_q.input_scale", {1, 0}}, {"", {0, 0}}};
static const struct {
    struct tiny y;
    const char *msg;
} refused_blocks[] = {
    {{.edit = relu},
     "key 'dflash.hidden_activation': is not supported (expected silu, gelu or gelu_pytorch_tanh, got "
     "relu)"},
    {{.edit = both_acts}, "key 'dflash.hidden_act': disagrees with hidden_activation (got gelu)"},
    {{.edit = below},
     "key 'dflash.attention.scale': out of range (expected a finite number above 0, got -1)"},
    {{.extra = scale}, "tensor 'blk.0.layer_output_scale.weight': is not supported without post_ffw_norm"},
    {{.drop_tensor = "blk.1.attn_v.weight"}, "tensor 'blk.1.attn_v.weight': is missing"},
    {{.extra = norms, .drop_tensor = "blk.0.post_attention_norm.weight"},
     "tensor 'blk.0.post_attention_norm.weight': is missing (1 of 2 layers have it)"},
    {{.extra = norms, .drop_tensor = "blk.1.post_ffw_norm.weight"}, "is not supported without post_ffw_norm"},
    {{.extra = after, .drop_tensor = "blk.1.post_ffw_norm.weight"},
     "tensor 'blk.1.post_ffw_norm.weight': is missing (1 of 2 layers have it)"},
    {{.extra = norms, .drop_tensor = "blk.1.layer_output_scale.weight"},
     "tensor 'blk.1.layer_output_scale.weight': is missing (1 of 2 layers have it)"},
    {{.extra = freqs}, "tensor 'rope_freqs.weight': has the wrong shape (expected [24], got [48])"},
    {{.extra = norms, .wide_tensor = "blk.1.post_ffw_norm.weight"},
     "tensor 'blk.1.post_ffw_norm.weight': has the wrong shape (expected [40], got [41])"},
    {{.edit = no_value},
     "key 'dflash.attention.value_scale': out of range (expected a finite number above 0, got 0)"},
    {{.extra = long_sinks}, "tensor 'blk.1.attn_sinks.weight': has the wrong shape (expected [4], got [5])"},
    {{.extra = one_sink, .drop_key = "dflash.attention.sliding_window_pattern", .edit = all_sliding},
     "tensor 'blk.0.attn_sinks.weight': is missing (another sliding layer has it)"},
    {{.extra = no_layer}, "tensor 'blk.2.attn_sinks.weight': is not part of a dflash model"},
    {{.extra = of_none, .drop_tensor = "blk.0.attn_v.weight"},
     "tensor 'blk.0.attn_v.scale': there is no blk.0.attn_v.weight that it is of"},
    {{.extra = two}, "tensor 'blk.0.attn_q.scale': has the wrong shape (expected [1], got [2])"},
    {{.extra = of_head}, "tensor 'output.scale': there is no output.weight that it is of"},
    {{.extra = input}, "tensor 'blk.0.attn_q.input_scale': is not part of a dflash model"},
    {{.extra = scales, .nan_tensor = "blk.1.ffn_down.scale"},
     "tensor 'blk.1.ffn_down.scale': is no scale (expected a finite number other than 0, got nan)"},
};

static void test_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refused_blocks / sizeof refused_blocks[0]; i++) {
        struct err e = {0};
        struct model *m;
        struct tiny y = refused_blocks[i].y;
        y.drafter = true;
        must(tiny_write(drafter_path, &y, &e), &e);
        if (model_load(&m, drafter_path, be, NULL, NULL, NULL, &e) == 0)
            fail_msg("loads: %s", refused_blocks[i].msg);
        if (e.code != ERR_FORMAT || !strstr(e.msg, refused_blocks[i].msg))
            fail_msg("%s\nnot %s", e.msg, refused_blocks[i].msg);
    }
}

/* In its own dialect its bytes stay; another one has no place for it. */
static void test_relabelled(void **state)
{
    struct convert o;
    struct err e = {0};
    (void)state;
    model_free(made(&forms[N_FORMS - 1], 13));
    convert_defaults(&o);
    o.input = drafter_path, o.output = scratch("again.gguf"), o.dialect = "upstream", o.force = true;
    must(convert_run(&o, &e), &e);
    struct gguf *a, *b;
    must(gguf_open(&a, drafter_path, &e), &e);
    must(gguf_open(&b, o.output, &e), &e);
    assert_int_equal(a->n_tensors, b->n_tensors);
    for (uint64_t i = 0; i < a->n_tensors; i++) {
        const struct gguf_tensor *t = gguf_tensor(b, a->tensor[i].name);
        if (!t) fail_msg("no %s", a->tensor[i].name);
        assert_memory_equal(t->data, a->tensor[i].data, t->bytes);
    }
    gguf_close(a), gguf_close(b);
    o.dialect = "ik";
    assert_int_equal(convert_run(&o, &e), -1);
    assert_non_null(strstr(e.msg,
                           "dialect ik has no place for the parts of a DFlash drafter (blocks with gelu, "
                           "scores times 0.05, norms behind branches, values of the keys in 1 of 2 layers"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_block), cmocka_unit_test(test_streams),
                                       cmocka_unit_test(test_refused), cmocka_unit_test(test_relabelled)};
    return cmocka_run_group_tests_name("draft_block", tests, engine_begin_target, engine_end_target);
}
