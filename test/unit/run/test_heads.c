/* test_heads.c - drafters whose proposals are made one after the other (DSpark, Domino), those of a reduced
 * vocabulary, and JetSpec's: what they propose against a slow reference in double over the block's rows, and
 * that nothing that must not change it does; the target's stream whatever they propose. */
#include "engine_fixture.h"
#include "../../../common/run/session_impl.h"

#include "../../../common/run/cycle.h"
#include "../../../common/run/engine.h"

enum { RANK = 12, STATE = 8, LOW = 16, E = TINY_EMBD, V = TINY_VOCAB };

#define MARKOV                                                                                               \
    {"markov_w1.weight", {RANK, V}},                                                                         \
    {                                                                                                        \
        "markov_w2.weight",                                                                                  \
        {                                                                                                    \
            RANK, V                                                                                          \
        }                                                                                                    \
    }
#define CONFIDENCE(width)                                                                                    \
    {"conf_proj.weight", {width, 1}},                                                                        \
    {                                                                                                        \
        "conf_proj.bias",                                                                                    \
        {                                                                                                    \
            1, 0                                                                                             \
        }                                                                                                    \
    }
#define DOMINO                                                                                               \
    {"domino_ih.weight", {E, 3 * STATE}}, {"domino_hh.weight", {STATE, 3 * STATE}},                          \
        {"domino_down.weight", {E + STATE, LOW}},                                                            \
    {                                                                                                        \
        "domino_up.weight",                                                                                  \
        {                                                                                                    \
            LOW, V                                                                                           \
        }                                                                                                    \
    }
static const struct tiny_tensor vanilla[] = {MARKOV, CONFIDENCE(E + RANK), {"", {0, 0}}},
                                gated[] = {MARKOV,
                                           {"markov_gate.weight", {E + RANK, RANK}},
                                           {"markov_gate.bias", {RANK, 0}},
                                           CONFIDENCE(E),
                                           {"", {0, 0}}},
                                rnn[] = {MARKOV,
                                         {"markov_joint.weight", {E + 2 * RANK, 3 * RANK}},
                                         {"markov_joint.bias", {3 * RANK, 0}},
                                         {"", {0, 0}}},
                                bare[] = {CONFIDENCE(E), {"", {0, 0}}},
                                reduced[] = {{"output.weight", {E, TINY_REDUCED}},
                                             {"d2t", {TINY_REDUCED, 0}},
                                             {"", {0, 0}}},
                                reduced_markov[] = {{"markov_w1.weight", {RANK, V}},
                                                    {"markov_w2.weight", {RANK, TINY_REDUCED}},
                                                    {"output.weight", {E, TINY_REDUCED}},
                                                    {"d2t", {TINY_REDUCED, 0}},
                                                    {"", {0, 0}}},
                                domino[] = {DOMINO, {"", {0, 0}}};

static int from_anchor(struct gguf_writer *w, struct err *e)
{
    return gguf_put_bool(w, "dflash.sample_from_anchor", true, e);
}
static int behind_anchor(struct gguf_writer *w, struct err *e)
{
    return gguf_put_bool(w, "dflash.sample_from_anchor", false, e);
}
static int is_gated(struct gguf_writer *w, struct err *e)
{
    return from_anchor(w, e) || gguf_put_str(w, "dflash.markov_head_type", "gated", 5, e);
}
static int is_rnn(struct gguf_writer *w, struct err *e)
{
    return behind_anchor(w, e) || gguf_put_str(w, "dflash.markov_head_type", "rnn", 3, e);
}
static int is_rnn_from_anchor(struct gguf_writer *w, struct err *e)
{
    return from_anchor(w, e) || gguf_put_str(w, "dflash.markov_head_type", "rnn", 3, e);
}
static int is_domino(struct gguf_writer *w, struct err *e)
{
    return gguf_put_bool(w, "dflash.domino.shift_label", false, e) ||
           gguf_put_u32(w, "dflash.domino.pure_draft_prefix_len", 1, e);
}
static int is_shifted(struct gguf_writer *w, struct err *e)
{
    return gguf_put_bool(w, "dflash.domino.shift_label", true, e) ||
           gguf_put_u32(w, "dflash.domino.pure_draft_prefix_len", 2, e);
}
static int all_at_once(struct gguf_writer *w, struct err *e)
{
    return gguf_put_bool(w, "dflash.domino.shift_label", true, e) ||
           gguf_put_u32(w, "dflash.domino.pure_draft_prefix_len", 0, e);
}
static int is_causal(struct gguf_writer *w, struct err *e)
{
    return gguf_put_bool(w, "dflash.attention.causal", true, e);
}

static const struct head {
    const char *name, *kind;
    const struct tiny_tensor *extra;
    int (*edit)(struct gguf_writer *w, struct err *e);
    int proposals, first, pure;
} heads[] = {
    {"vanilla", "DSpark", vanilla, NULL, 5, 0, 0}, /* as llama.cpp takes a file that does not say */
    {"vanilla behind the anchor", "DSpark", vanilla, behind_anchor, 4, 1, 0},
    {"gated", "DSpark", gated, is_gated, 5, 0, 0},
    {"rnn", "DSpark", rnn, is_rnn_from_anchor, 5, 0, 0},
    {"rnn behind the anchor", "DSpark", rnn, is_rnn, 4, 1, 0},
    {"no Markov head", "DSpark", bare, from_anchor, 5, 0, 0},
    {"reduced", "DFlash", reduced, NULL, 4, 1, 0},
    {"reduced, Markov", "DSpark", reduced_markov, from_anchor, 5, 0, 0},
    {"domino", "Domino", domino, is_domino, 4, 1, 1},
    {"domino, shifted", "Domino", domino, is_shifted, 4, 0, 2},
    {"domino, shifted, no prefix", "Domino", domino, all_at_once, 4, 0, 0},
    {"jetspec", "DFlash", NULL, is_causal, 4, 1, 0},
};
enum { N_HEADS = sizeof heads / sizeof heads[0] };

static char path[sizeof drafter_path];

static void write_head(const struct head *h, uint32_t seed)
{
    struct err e = {0};
    const struct tiny y = {.seed = seed, .drafter = true, .extra = h->extra, .edit = h->edit};
    snprintf(path, sizeof path, "%s", scratch("head.gguf"));
    must(tiny_write(path, &y, &e), &e);
}

/* ---- the slow reference: rows of the block to logits, along given proposals ---- */

static const float *w_of(const struct model *m, const char *name)
{
    const struct gguf_tensor *t = gguf_tensor(m->file, name);
    if (!t) return NULL;
    assert_true(t->type == KN_F32);
    return (const float *)(const void *)t->data;
}

static void times(double *out, const float *w, int rows, const double *x, int cols)
{
    for (int r = 0; r < rows; r++) {
        out[r] = 0;
        for (int c = 0; c < cols; c++) out[r] += (double)w[r * cols + c] * x[c];
    }
}

static double sigma(double x)
{
    return 1 / (1 + exp(-x));
}

/* rms_norm(row; output_norm) */
static void normed(double *h, const float *row, const float *norm)
{
    double sum = 0;
    for (int i = 0; i < E; i++) sum += (double)row[i] * row[i];
    for (int i = 0; i < E; i++) h[i] = row[i] / sqrt(sum / E + 1e-6) * norm[i];
}

struct slow {
    const struct model *m;
    const struct head *h;
    double state[64];
};

/* What a DSpark head adds for the token before, of the row h. confidence: its logit. */
static int slow_markov(struct slow *s, const double *h, int32_t before, double *add, double *confidence)
{
    const struct model *m = s->m;
    const float *w1 = w_of(m, "markov_w1.weight"), *w2 = w_of(m, "markov_w2.weight"),
                *gate = w_of(m, "markov_gate.weight"), *joint = w_of(m, "markov_joint.weight"),
                *conf = w_of(m, "conf_proj.weight");
    const int rank = w1 ? RANK : 0, rows = w2 ? (int)gguf_tensor(m->file, "markov_w2.weight")->ne[1] : 0;
    double in[2 * RANK + E], latent[RANK], z[3 * RANK], e[RANK];
    for (int i = 0; i < rank; i++) latent[i] = e[i] = w1[before * RANK + i];
    if (gate) {
        memcpy(in, h, E * sizeof *in), memcpy(in + E, e, sizeof e);
        times(z, gate, RANK, in, E + RANK);
        for (int i = 0; i < RANK; i++) latent[i] = e[i] * sigma(z[i] + w_of(m, "markov_gate.bias")[i]);
    }
    if (joint) {
        memcpy(in, s->state, RANK * sizeof *in), memcpy(in + RANK, e, sizeof e);
        memcpy(in + 2 * RANK, h, E * sizeof *in);
        times(z, joint, 3 * RANK, in, E + 2 * RANK);
        for (int i = 0; i < 3 * RANK; i++) z[i] += w_of(m, "markov_joint.bias")[i];
        for (int i = 0; i < RANK; i++) {
            latent[i] = tanh(z[2 * RANK + i]);
            s->state[i] = sigma(z[i]) * s->state[i] + (1 - sigma(z[i])) * tanh(z[RANK + i]);
        }
    }
    if (rank) times(add, w2, rows, latent, RANK);
    if (conf) {
        const int width = (int)gguf_tensor(m->file, "conf_proj.weight")->ne[0];
        memcpy(in, h, E * sizeof *in), memcpy(in + E, e, (size_t)(width - E) * sizeof *in);
        times(confidence, conf, 1, in, width);
        *confidence += w_of(m, "conf_proj.bias")[0];
    }
    return rows;
}

static void slow_domino(struct slow *s, const double *h, int32_t before, double *add)
{
    const struct model *m = s->m;
    const float *embed = w_of(pair_target, "token_embd.weight");
    double x[E], a[3 * STATE], b[3 * STATE], in[E + STATE], low[LOW];
    for (int i = 0; i < E; i++) x[i] = embed[before * E + i];
    times(a, w_of(m, "domino_ih.weight"), 3 * STATE, x, E);
    times(b, w_of(m, "domino_hh.weight"), 3 * STATE, s->state, STATE);
    for (int i = 0; i < STATE; i++) {
        const double r = sigma(a[i] + b[i]), u = sigma(a[STATE + i] + b[STATE + i]);
        s->state[i] = (1 - u) * tanh(a[2 * STATE + i] + r * b[2 * STATE + i]) + u * s->state[i];
    }
    memcpy(in, h, sizeof x), memcpy(in + E, s->state, STATE * sizeof *in);
    times(low, w_of(m, "domino_down.weight"), LOW, in, E + STATE);
    for (int i = 0; i < LOW; i++) low[i] *= sigma(low[i]);
    times(add, w_of(m, "domino_up.weight"), V, low, LOW);
}

/* Logits [V] of proposal i, -Inf where there are none; of its row, and the token before it. */
static void slow_row(struct slow *s, int i, const float *row, int32_t before, double *logits,
                     double *confidence)
{
    const struct model *m = s->m;
    const bool part = gguf_tensor(m->file, "d2t");
    const int rows = part ? TINY_REDUCED : V;
    double h[E], z[V], add[V] = {0};
    normed(h, row, w_of(m, "output_norm.weight"));
    times(z, w_of(part ? m : pair_target, "output.weight"), rows, h, E);
    if (!strcmp(s->h->kind, "Domino"))
        slow_domino(s, h, before, add);
    else
        slow_markov(s, h, before, add, confidence);
    if (!strcmp(s->h->kind, "Domino") && i < s->h->pure) memset(add, 0, sizeof add);
    for (int v = 0; v < V; v++) logits[v] = part ? -INFINITY : z[v] + add[v];
    for (int r = 0; part && r < rows; r++) logits[tiny_d2t[r]] = z[r] + add[r];
}

/* The block behind `at` tokens of text as cycles make it: proposals, told probabilities, logits. */
static void check_block(const struct head *h, const struct kn_sampler *sampler, int at, bool all_rows)
{
    static float got[V];
    struct err e = {0};
    struct model *m = load(path, be);
    const struct way y = {.prompt = at};
    struct session *s = start(&y, pair_target, m);
    int32_t ids[MAX_BLOCK], before = prompt[at];
    bool usable;
    struct slow slow = {.m = m, .h = h};
    assert_string_equal(m->d->kind, h->kind);
    assert_int_equal(desc_cycle_rows(m->d) - 1, h->proposals);
    assert_int_equal(m->d->first_row, h->first);
    must(session_prefill(s, prompt, at, NULL, NULL, &e), &e);
    if (sampler) { /* coupled */
        struct plan_offer offer;
        const int32_t *chain;
        must(session_cycles_begin(s, prompt[at], sampler, &e), &e);
        must(session_cycle_start(s, &(struct plan){.draft = true}, 64, &e), &e);
        must(session_cycle_offer(s, &offer, &chain, &e), &e);
        memcpy(ids, chain + 1, (size_t)h->proposals * sizeof *ids);
    } else {
        must(session_draft(s, prompt[at], ids, &usable, all_rows, &e), &e);
        assert_true(usable);
    }
    for (int i = 0; i < h->proposals; i++) {
        const int32_t pos = at + i, row = h->first + i;
        double want[V], confidence = NAN;
        int32_t id;
        slow_row(&slow, i, s->g->work.x + row * E, before, want, &confidence);
        const float *logits = s->g->logits + (i + (all_rows ? h->first : 0)) * V;
        for (int v = 0; v < V; v++)
            if (!(fabs(logits[v] - want[v]) < 2e-4) && !(logits[v] == -INFINITY && want[v] == -INFINITY))
                fail_msg("%s: slot %d, id %d: %.7g (expected %.7g)", h->name, i, v, (double)logits[v],
                         want[v]);
        memcpy(got, logits, sizeof got);
        struct kn_sampler k = sampler ? *sampler : greedy; /* a drafter's has no penalties */
        k.repeat_penalty = 1, k.presence = k.frequency = 0;
        const struct kn_pick p = {.logits = got, .pos = &pos, .n = 1, .n_vocab = V, .sampler = k, .out = &id};
        assert_int_equal(kn_op(be)->pick(be, &p), 0);
        assert_int_equal(ids[i], id);
        if (m->d->confidence) {
            const double told = exp((double)s->d->logp[i]);
            if (!(fabs(told - sigma(confidence)) < 1e-5))
                fail_msg("%s: slot %d: confidence %.7g (expected %.7g)", h->name, i, told, sigma(confidence));
        }
        before = ids[i];
    }
    session_free(s);
    model_free(m);
}

static void test_reference(void **state)
{
    (void)state;
    for (int i = 0; i < N_HEADS; i++) {
        write_head(&heads[i], 3);
        for (int at = 1; at < 40; at += 9) {
            check_block(&heads[i], NULL, at, at % 2);
            check_block(&heads[i], &sampled, at, false);
        }
    }
}

/* ---- streams ---- */

static void test_streams(void **state)
{
    static struct run plain, a, b;
    static const int width[] = {1, 3, 0};
    static const struct kn_sampler *const sampler[] = {&greedy, &sampled};
    int64_t accepted = 0, cycles = 0, treed = 0;
    (void)state;
    for (int i = 0; i < N_HEADS; i++) {
        write_head(&heads[i], 4);
        struct model *d = load(path, be);
        for (int k = 0; k < 2; k++) {
            struct way y = {.prompt = 30, .sampler = *sampler[k], .target_model = pair_target};
            run(&y, &plain);
            y.drafter = true, y.drafter_model = d;
            for (int w = 0; w < 3; w++) {
                y.width = width[w], y.chunk = 64, y.state = y.append = false, y.draft_greedy = false;
                run(&y, &a);
                same_ids(&plain, &a);
                accepted += a.st.full_accepted, cycles += a.st.full_cycles;
                y.chunk = 7, y.state = true, y.append = true;
                run(&y, &b);
                same_ids(&plain, &b);
                same_trace(&a, &b);
                y.draft_greedy = true;
                run(&y, &b);
                same_ids(&plain, &b);
            }
            y.chunk = 64, y.state = y.append = y.draft_greedy = false, y.width = 0;
            run_recorded(&y, &b);
            same_ids(&plain, &b);
            y.block = 3; /* a block that is cut */
            run(&y, &b);
            same_ids(&plain, &b);
            y.block = 2, y.tree = 3; /* one place: nothing stands before another */
            run(&y, &b);
            same_ids(&plain, &b);
            y.block = 0;
            for (y.tree = 3; y.tree < 64; y.tree *= 4) {
                y.state = y.append = y.tree == 12;
                y.draft_greedy = y.tree == 48;
                run(&y, &b);
                same_ids(&plain, &b);
                y.draft_greedy = false;
                recorder_on(be);
                run(&y, &b);
                recorder_off(be);
                same_ids(&plain, &b);
                treed += b.st.tree_cycles;
            }
        }
        model_free(d);
    }
    assert_true(accepted > cycles / 20); /* of eleven ids one is right now and then */
    assert_true(treed > 500);
}

/* ---- what stands behind other candidates ---- */

struct edges_watch {
    struct session *s;
    const struct model *m;
    const struct head *h;
    int checked;
};

/* What the head adds to the logits of proposal j where before stands in front of it, and the proposals in
 * front of that: of every id, -Inf where the reduced vocabulary has none. */
static void slow_edges(const struct edges_watch *w, const int32_t *chain, int32_t j, int32_t before,
                       double *out)
{
    static double confidence;
    struct slow slow = {.m = w->m, .h = w->h};
    const bool part = gguf_tensor(w->m->file, "d2t");
    double h[E], add[V];
    int rows = V;
    for (int32_t i = 0; i <= j; i++) {
        const int32_t id = i == j ? before : chain[i];
        normed(h, w->s->g->work.x + (w->h->first + i) * E, w_of(w->m, "output_norm.weight"));
        if (!strcmp(w->h->kind, "Domino"))
            slow_domino(&slow, h, id, add);
        else
            rows = slow_markov(&slow, h, id, add, &confidence);
    }
    for (int32_t v = 0; v < V; v++) out[v] = part ? -INFINITY : j < w->h->pure ? 0 : add[v];
    for (int32_t r = 0; part && r < rows; r++) out[tiny_d2t[r]] = add[r];
}

static void edges_next(void *ctx, struct plan *p)
{
    (void)ctx;
    *p = (struct plan){.draft = true};
}

/* Rows behind the proposals, and behind every other candidate, are softmaxes among the candidates of the
 * head's own logits and what it adds: by a slow reference that runs it along each path that leaves the
 * proposals there. */
static void edges_choose(void *ctx, const struct plan_offer *o, struct plan_choice *c)
{
    struct edges_watch *w = ctx;
    struct session *s = w->s;
    struct session_started *b = &s->begun[s->started % SESSION_RESULTS];
    const struct session_ranked *r = session_ranked(s, b);
    const int32_t k = o->n_top;
    *c = (struct plan_choice){.rows = 1};
    assert_non_null(o->behind);
    assert_int_equal(k, gguf_tensor(w->m->file, "d2t") ? TINY_REDUCED : TINY_VOCAB);
    int32_t tokens[MAX_BLOCK] = {s->offers[(b->offer - 1) % SESSION_RESULTS].ids[0]};
    for (int32_t j = 0; j < o->n_draft; j++) tokens[j + 1] = r->ids[j * k];
    for (int32_t j = 1; j < o->n_draft; j++)
        for (int32_t rank = 1; rank < k; rank++) {
            const float *logits = s->g->logits + (int64_t)j * TINY_VOCAB,
                        *row = o->behind(o->behind_ctx, j, rank);
            const int32_t *ids = r->ids + j * k;
            double x[TINY_VOCAB], by[V], here[V], most = -INFINITY, sum = 0, mass = 0;
            slow_edges(w, tokens, j, tokens[j], here);
            slow_edges(w, tokens, j, r->ids[(j - 1) * k + rank], by);
            for (int32_t i = 0; i < k; i++) {
                x[i] = (double)logits[ids[i]] - here[ids[i]] + by[ids[i]];
                most = fmax(most, x[i]);
            }
            for (int32_t i = 0; i < k; i++) sum += exp(x[i] - most), mass += exp((double)o->top[j * k + i]);
            const double all = log(sum) - fmin(0, log(mass));
            for (int32_t i = 0; i < k; i++)
                if (!(fabs(x[i] - most - all - (double)row[i]) < 1e-4))
                    fail_msg("%s: place %d behind candidate %d, candidate %d: %g, expected %g", w->h->name, j,
                             rank, i, (double)row[i], x[i] - most - all);
            w->checked++;
        }
}

static void test_behind(void **state)
{
    (void)state;
    for (int i = 0; i < N_HEADS; i++) {
        if (!strcmp(heads[i].kind, "DFlash") || heads[i].extra == bare) continue;
        struct err e = {0};
        static struct run r;
        write_head(&heads[i], 4);
        struct model *d = load(path, be);
        const struct way y = {.prompt = 30, .drafter = true, .tree = 20};
        struct session *s = start(&y, pair_target, d);
        struct edges_watch w = {.s = s, .m = d, .h = &heads[i]};
        const struct planner p = {.next = edges_next, .choose = edges_choose, .ctx = &w};
        const struct spec_options o = {
            .n = N_NEW, .sampler = greedy, .planner = &p, .tokens = take_tokens, .ctx = &r};
        memset(&r, 0, sizeof r);
        must(session_prefill(s, prompt, 30, NULL, NULL, &e) || spec_generate(s, &o, &r.st, &e), &e);
        if (w.checked < 500) fail_msg("%s: %d rows", heads[i].name, w.checked);
        session_free(s);
        model_free(d);
    }
}

static void test_backends(void **state)
{
    static const char *const isa[] = {"scalar", "avx2", "avx512"};
    static struct run a, b;
    (void)state;
    for (int i = 0; i < N_HEADS; i++) {
        write_head(&heads[i], 5);
        memcpy(drafter_path, path, sizeof path);
        struct way y = {.prompt = 20, .drafter = true, .sampler = sampled};
        run(&y, &a);
        for (int k = 0; k < 6; k++) {
            struct kn_backend *own = be;
            be = open_backend(isa[k / 2], 1 + 2 * (k % 2));
            if (be) {
                run(&y, &b);
                same_ids(&a, &b);
                same_trace(&a, &b);
                kn_backend_close(be);
            }
            be = own;
        }
    }
}

/* A row without a number proposes nothing, and nothing behind it. */
static void test_nan(void **state)
{
    static const char *const broken[] = {"markov_w2.weight", "domino_hh.weight", "markov_joint.bias"};
    static const int of[] = {0, 8, 3};
    static struct run plain, r;
    struct err e = {0};
    (void)state;
    for (int i = 0; i < 3; i++) {
        const struct head *h = &heads[of[i]];
        const struct tiny y = {
            .seed = 6, .drafter = true, .extra = h->extra, .edit = h->edit, .nan_tensor = broken[i]};
        must(tiny_write(scratch("nan.gguf"), &y, &e), &e);
        struct model *d = load(scratch("nan.gguf"), be);
        struct way w = {.prompt = 20, .target_model = pair_target};
        run(&w, &plain);
        w.drafter = true, w.drafter_model = d;
        run(&w, &r);
        same_ids(&plain, &r);
        assert_int_equal(r.st.nan_cycles, r.st.cycles);
        run_recorded(&w, &r);
        same_ids(&plain, &r);
        model_free(d);
    }
}

/* ---- what is refused ---- */

static int lstm(struct gguf_writer *w, struct err *e)
{
    return gguf_put_str(w, "dflash.markov_head_type", "lstm", 4, e);
}
static int headless(struct gguf_writer *w, struct err *e)
{
    return gguf_put_bool(w, "dflash.has_confidence_head", false, e);
}
static int scaled(struct gguf_writer *w, struct err *e)
{
    return from_anchor(w, e) || gguf_put_f32(w, "dflash.logit_scale", 0.5f, e);
}
static int scaled_domino(struct gguf_writer *w, struct err *e)
{
    return is_domino(w, e) || gguf_put_f32(w, "dflash.logit_scale", 0.5f, e);
}
static int no_prefix(struct gguf_writer *w, struct err *e)
{
    return gguf_put_bool(w, "dflash.domino.shift_label", false, e);
}
static int no_shift(struct gguf_writer *w, struct err *e)
{
    return gguf_put_u32(w, "dflash.domino.pure_draft_prefix_len", 1, e);
}
static int long_prefix(struct gguf_writer *w, struct err *e)
{
    return gguf_put_bool(w, "dflash.domino.shift_label", false, e) ||
           gguf_put_u32(w, "dflash.domino.pure_draft_prefix_len", 6, e);
}
static int small_vocab(struct gguf_writer *w, struct err *e)
{
    return from_anchor(w, e) || gguf_put_u32(w, "dflash.vocab_size", V - 1, e);
}

#define EXTRA(...)                                                                                           \
    (const struct tiny_tensor[])                                                                             \
    {                                                                                                        \
        __VA_ARGS__,                                                                                         \
        {                                                                                                    \
            "",                                                                                              \
            {                                                                                                \
                0, 0                                                                                         \
            }                                                                                                \
        }                                                                                                    \
    }
#define LOW_OF(head, low)                                                                                    \
    {"output.weight", {E, head}},                                                                            \
    {                                                                                                        \
        "d2t",                                                                                               \
        {                                                                                                    \
            low, 0                                                                                           \
        }                                                                                                    \
    }

static const int64_t twice[TINY_REDUCED] = {9, 0, 3, 4, 5, 0, 2},
                     out_of[TINY_REDUCED] = {9, 0, 11, 4, 5, 7, 2},
                     below[TINY_REDUCED] = {9, 0, -1, 4, 5, 7, 2};

static const struct {
    struct tiny y;
    const char *msg, *hint;
} refusals[] = {
    {{.extra = vanilla, .edit = lstm},
     "key 'dflash.markov_head_type': is not known (expected vanilla, gated or rnn, got lstm)",
     NULL},
    {{.extra = gated}, "tensor 'markov_gate.weight': is not expected (markov_head_type is not gated)", NULL},
    {{.extra = rnn}, "tensor 'markov_joint.weight': is not expected (markov_head_type is not rnn)", NULL},
    {{.extra = vanilla, .edit = is_gated}, "tensor 'markov_gate.weight': is missing", NULL},
    {{.extra = gated, .edit = is_gated, .drop_tensor = "markov_gate.bias"},
     "tensor 'markov_gate.bias': is missing",
     NULL},
    {{.extra = gated, .edit = is_gated, .wide_tensor = "markov_gate.weight"},
     "tensor 'markov_gate.weight': has the wrong shape (expected [52, 12], got [52, 13])",
     NULL},
    {{.extra = rnn, .edit = is_rnn, .wide_tensor = "markov_joint.weight"},
     "tensor 'markov_joint.weight': has the wrong shape (expected [64, 36], got [64, 37])",
     NULL},
    {{.extra = vanilla, .drop_tensor = "markov_w2.weight"}, "tensor 'markov_w2.weight': is missing", NULL},
    {{.extra = vanilla, .wide_tensor = "markov_w2.weight"},
     "tensor 'markov_w1.weight', 'markov_w2.weight': rows (expected 11 and 11, got 11 and 12)",
     NULL},
    {{.extra = vanilla, .edit = small_vocab},
     "tensor 'markov_w1.weight', 'markov_w2.weight': rows (expected 10 and 11, got 11 and 11)",
     NULL},
    {{.extra = vanilla, .wide_tensor = "conf_proj.weight"},
     "tensor 'conf_proj.weight': has the wrong shape (expected [52, 1], got [52, 2])",
     NULL},
    {{.extra = EXTRA(MARKOV, CONFIDENCE(E + 1))},
     "tensor 'conf_proj.weight': width (expected 40, or 52 with the token before, got 41)",
     NULL},
    {{.extra = vanilla, .drop_tensor = "conf_proj.weight"}, "tensor 'conf_proj.weight': is missing", NULL},
    {{.extra = vanilla, .edit = headless},
     "key 'dflash.has_confidence_head': disagrees with the tensors (expected true, got false)",
     NULL},
    {{.extra = vanilla, .edit = scaled},
     "key 'dflash.logit_scale': is not supported in a DSpark drafter (expected 1, got 0.5)",
     NULL},
    {{.extra = domino, .edit = scaled_domino},
     "key 'dflash.logit_scale': is not supported in a Domino drafter (expected 1, got 0.5)",
     NULL},
    {{.extra = domino, .edit = no_prefix}, "key 'dflash.domino.pure_draft_prefix_len': is missing", NULL},
    {{.extra = domino, .edit = no_shift},
     "key 'dflash.domino.shift_label': is missing (expected whether a row proposes what follows its own "
     "place)",
     NULL},
    {{.extra = domino, .edit = long_prefix},
     "key 'dflash.domino.pure_draft_prefix_len': out of range (expected 0 to 5, got 6)",
     NULL},
    {{.extra = domino, .edit = is_domino, .drop_tensor = "domino_up.weight"},
     "tensor 'domino_up.weight': is missing",
     NULL},
    {{.extra = domino, .edit = is_domino, .wide_tensor = "domino_ih.weight"},
     "tensor 'domino_ih.weight': has the wrong shape (expected [40, 24], got [40, 25])",
     NULL},
    {{.extra = EXTRA({"markov_w1.weight", {RANK, V}}, {"markov_w2.weight", {RANK, TINY_REDUCED}},
                     {"output.weight", {E, TINY_REDUCED}})},
     "tensor 'markov_w1.weight', 'markov_w2.weight': rows (expected 7 and 11, got 11 and 7)",
     "d2t"},
    {{.extra = EXTRA({"d2t", {TINY_REDUCED, 0}})},
     "tensor 'output.weight': is missing (a vocabulary of 7 rows needs a head of its own)",
     NULL},
    {{.extra = reduced, .d2t = twice},
     "tensor 'd2t': row 5 has an id that a row before it has (expected each once, got 0)",
     "differences"},
    {{.extra = reduced, .d2t = below},
     "tensor 'd2t': row 2 is out of range (expected 0 to 2147483646, got -1)",
     NULL},
    {{.extra = reduced_markov, .edit = from_anchor, .d2t = out_of},
     "tensor 'd2t': row 2 is out of range (expected 0 to 10, got 11)",
     NULL},
    {{.extra = EXTRA({"markov_w1.weight", {10, V}}, {"markov_w2.weight", {10, V}})},
     "a DSpark drafter: ranks of 10 are not supported (expected a multiple of 4)",
     NULL},
};

static void test_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        struct err e = {0};
        struct model *d = NULL;
        struct tiny y = refusals[i].y;
        y.drafter = true;
        must(tiny_write(scratch("bad.gguf"), &y, &e), &e);
        if (model_load(&d, scratch("bad.gguf"), be, NULL, NULL, NULL, &e) == 0)
            fail_msg("loads: %s", refusals[i].msg);
        if (e.code != ERR_FORMAT || !strstr(e.msg, refusals[i].msg) ||
            (refusals[i].hint && !strstr(e.hint, refusals[i].hint)))
            fail_msg("(%d) %s\n(%s)\nnot %s", e.code, e.msg, e.hint, refusals[i].msg);
    }
}

/* ---- memory ---- */

static int load_and_run(struct err *e)
{
    struct model *d = NULL;
    struct session *s = NULL;
    const struct session_options o = {.ctx = 50, .kv = {KN_F16, KN_F16}, .tree = 12};
    const struct spec_options g = {.n = 9, .sampler = greedy};
    struct spec_stats st;
    int rc = -1;
    if (model_load(&d, path, be, NULL, NULL, NULL, e)) goto out;
    if (session_new(&s, pair_target, d, &o, e) || session_prefill(s, prompt, 10, NULL, NULL, e)) goto out;
    rc = spec_generate(s, &g, &st, e);
out:
    session_free(s);
    model_free(d);
    return rc;
}

static void test_memory(void **state)
{
    static const int of[] = {3, 7, 8};
    (void)state;
    for (int i = 0; i < 3; i++) {
        write_head(&heads[of[i]], 7);
        for (uint64_t n = 1;; n++) {
            struct err e = {0};
            mem_fail_at(n);
            const int rc = load_and_run(&e);
            mem_fail_at(0);
            if (rc == 0) {
                assert_true(n > 15);
                break;
            }
            if (e.code != ERR_IO || !strstr(e.msg, "out of memory"))
                fail_msg("%s, allocation %d: (%d) %s", heads[of[i]].name, (int)n, e.code, e.msg);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference), cmocka_unit_test(test_streams), cmocka_unit_test(test_backends),
        cmocka_unit_test(test_behind),    cmocka_unit_test(test_nan),     cmocka_unit_test(test_memory),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests_name("heads", tests, engine_begin_target, engine_end_target);
}
