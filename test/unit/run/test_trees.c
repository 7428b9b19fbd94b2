/* test_trees.c - trees of proposals: a row of a tree has the bits that it has as the last row of its path,
 * run as a chain, whatever the family, cache or context; and a stream that tries trees is the target's own.
 *
 * What is compared is bytes: logits of a tree's rows with those of each of its paths, logits and blocks
 * behind a path that was kept with those behind the same tokens kept as a chain, and streams with plain ones.
 */
#include "../model/family_fixture.h"

#include "../model/recorder.h"
#include "hybrid_parts.h"
#include "plans.h"
#include "random_models.h"
#include "../../../common/run/session_impl.h"

enum { IDS = 9, BLOCK = 6 };

/* ---- models: random weights ---- */

#define SLIDES "\"sliding_attention\""

static const struct pair qwen3[] = {
    {"num_hidden_layers", "3"}, {"num_attention_heads", "6"},     {"num_key_value_heads", "2"},
    {"vocab_size", "9"},        {"tie_word_embeddings", "false"}, {NULL, NULL},
};
/* Heads that quantised caches take. */
static const struct pair wide[] = {
    {"num_hidden_layers", "3"},
    {"num_attention_heads", "4"},
    {"num_key_value_heads", "2"},
    {"head_dim", "128"},
    {"vocab_size", "9"},
    {"tie_word_embeddings", "false"},
    {NULL, NULL},
};
static const struct pair qwen3moe[] = {
    {"architectures", "[\"Qwen3MoeForCausalLM\"]"},
    {"model_type", "\"qwen3_moe\""},
    {"num_hidden_layers", "3"},
    {"num_experts", "3"},
    {"num_experts_per_tok", "2"},
    {"moe_intermediate_size", "24"},
    {"norm_topk_prob", "true"},
    {"decoder_sparse_step", "1"},
    {"mlp_only_layers", "[]"},
    {"vocab_size", "9"},
    {"tie_word_embeddings", "false"},
    {NULL, NULL},
};
static const struct pair llama[] = {
    {"architectures", "[\"LlamaForCausalLM\"]"},
    {"model_type", "\"llama\""},
    {"num_hidden_layers", "3"},
    {"mlp_bias", "false"},
    {"rope_theta", "10000"},
    {"use_sliding_window", NULL},
    {"vocab_size", "9"},
    {"tie_word_embeddings", "false"},
    {NULL, NULL},
};
#define GEMMA(moe)                                                                                           \
    {"architectures", "[\"Gemma4ForCausalLM\"]"}, {"attention_bias", "false"}, {"attention_k_eq_v", "true"}, \
        {"bos_token_id", "2"}, {"enable_moe_block", moe}, {"eos_token_id", "1"},                             \
        {"final_logit_softcapping", "30.0"}, {"global_head_dim", "32"}, {"head_dim", "16"},                  \
        {"hidden_activation", "\"gelu_pytorch_tanh\""}, {"hidden_size", "32"},                               \
        {"hidden_size_per_layer_input", "0"}, {"intermediate_size", "64"},                                   \
        {"layer_types", "[" SLIDES ", " SLIDES ", " FULL "]"}, {"max_position_embeddings", "128"},           \
        {"model_type", "\"gemma4_text\""}, {"num_attention_heads", "4"},                                     \
        {"num_global_key_value_heads", "2"}, {"num_hidden_layers", "3"}, {"num_key_value_heads", "2"},       \
        {"num_kv_shared_layers", "0"}, {"rms_norm_eps", "1e-06"},                                            \
        {"rope_parameters",                                                                                  \
         "{\"full_attention\": {\"rope_theta\": 1e6, \"rope_type\": \"proportional\", "                      \
         "\"partial_rotary_factor\": 0.25}, \"sliding_attention\": {\"rope_theta\": 1e4, \"rope_type\": "    \
         "\"default\"}}"},                                                                                   \
        {"sliding_window", "24"}, {"tie_word_embeddings", "true"}, {"use_double_wide_mlp", "false"},         \
    {                                                                                                        \
        "vocab_size", "9"                                                                                    \
    }
static const struct pair gemma[] = {GEMMA("false"), {NULL, NULL}};
static const struct pair gemma_experts[] = {GEMMA("true"),
                                            {"num_experts", "3"},
                                            {"top_k_experts", "2"},
                                            {"moe_intermediate_size", "24"},
                                            {NULL, NULL}};

static const struct {
    const struct pair *parts;
    bool whole; /* a config of its own */
} kinds[] = {{qwen3, false},   {qwen3moe, false}, {llama, false},        {dense, false}, {even, false},
             {experts, false}, {gemma, true},     {gemma_experts, true}, {wide, false}};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

static struct kn_backend *be;

static struct model *target(int kind)
{
    if (kinds[kind].whole)
        write_config("target", kinds[kind].parts, NULL);
    else
        family_config("target", kinds[kind].parts, NULL);
    return random_model(be, "target", 11 + (uint64_t)kind, kind % 3 == 1 ? QUANT_Q8_0 : QUANT_F32,
                        CONVERT_MTP_FOUND);
}

static struct model *drafter(void)
{
    write_config("drafter", base_drafter, drafter_parts);
    return random_model(be, "drafter", 5, QUANT_F32, CONVERT_MTP_FOUND);
}

/* ---- rows ---- */

static uint32_t seed;
static int32_t draw(int32_t n)
{
    return (int32_t)(draw_next(&seed) % (uint32_t)n);
}

/* A random tree. deep: how many in four nodes stand behind the one before. */
struct shape {
    int32_t n, ids[SESSION_MAX_ROWS], parents[SESSION_MAX_ROWS];
};
static struct shape shape_of(int32_t n, int32_t deep)
{
    struct shape t = {.n = n};
    t.parents[0] = -1;
    for (int32_t r = 0; r < n; r++) {
        t.ids[r] = draw(IDS);
        if (r) t.parents[r] = draw(4) < deep ? r - 1 : draw(r);
    }
    return t;
}
static int32_t path_of(const struct shape *t, int32_t row, int32_t *path)
{
    int32_t n = 0, at = 0;
    for (int32_t r = row; r >= 0; r = t->parents[r]) n++;
    for (int32_t r = row; r >= 0; r = t->parents[r]) path[n - 1 - at++] = r;
    return n;
}

static struct session *start(struct model *t, struct model *d, const struct kn_kv_types *types, int32_t tree,
                             int32_t every)
{
    struct err e = {0};
    struct session *s;
    const struct session_options o = {
        .ctx = 900, .chunk = 64, .kv = {KN_F16, KN_F16}, .kv_layers = types, .tree = tree};
    must(session_new(&s, t, d, &o, &e), &e);
    if (s->delta) s->every = every;
    return s;
}

static void logits_of(struct session *s, int32_t row, float *x)
{
    struct err e = {0};
    must(session_logits(s, row, x, &e), &e);
}

/* The rows' logits, and what stands behind one path that is kept. */
static void same_paths(struct session *s, struct session *chain, const struct shape *t, bool drafts)
{
    static float row[SESSION_MAX_ROWS][IDS];
    float x[IDS];
    struct err e = {0};
    int32_t path[SESSION_MAX_ROWS], ids[SESSION_MAX_ROWS], a[BLOCK], b[BLOCK];
    bool usable;
    must(session_forward_tree(s, t->ids, t->parents, t->n, &e), &e);
    assert_int_equal(s->logits_rows, t->n);
    for (int32_t r = 0; r < t->n; r++) logits_of(s, r, row[r]);
    const int32_t keep = draw(t->n);
    for (int32_t i = 0; i <= t->n; i++) {
        const int32_t r = i < t->n ? i : keep, n = path_of(t, r, path);
        for (int32_t k = 0; k < n; k++) ids[k] = t->ids[path[k]];
        must(session_forward(chain, ids, n, &e), &e);
        logits_of(chain, n - 1, x);
        if (memcmp(x, row[r], sizeof x)) fail_msg("row %d of %d, a path of %d at %d", r, t->n, n, s->n_past);
        if (i < t->n) continue;
        must(session_commit(chain, n, &e) || session_commit_path(s, r, &e), &e);
    }
    assert_int_equal(s->n_past, chain->n_past);
    if (!drafts) return;
    must(session_draft(s, 1, a, &usable, false, &e) || session_draft(chain, 1, b, &usable, false, &e), &e);
    assert_memory_equal(a, b, (BLOCK - 1) * sizeof *a);
}

/* Contexts whose tried rows lie in one split, on both sides of a cut, and behind a ring's end. */
static void test_rows(void **state)
{
    static const int32_t length[] = {1, 30, 250, 253, 640};
    static const uint32_t types[] = {KN_F16, KN_F32, KN_BF16, KN_Q8_0, KN_Q4_0, KN_Q5_0, KN_TQ3_0};
    struct model *d = drafter();
    (void)state;
    for (int kind = 0; kind < KINDS; kind++) {
        struct model *t = target(kind);
        const size_t n_types = kinds[kind].parts == wide ? sizeof types / sizeof *types : 3;
        for (size_t i = 0; i < sizeof length / sizeof *length; i++) {
            struct err e = {0};
            struct kn_kv_types kv[8];
            for (int k = 0; k < 8; k++)
                kv[k] = (struct kn_kv_types){types[(i + (size_t)k) % n_types],
                                             types[(i + (size_t)k * 2 + 1) % n_types]};
            struct session *s = start(t, d, kv, 63, i % 2 ? 5 : 0), *chain = start(t, d, kv, 0, 0);
            must(session_prefill(s, prompt, length[i], NULL, NULL, &e) ||
                     session_prefill(chain, prompt, length[i], NULL, NULL, &e),
                 &e);
            for (int k = 0; k < 5; k++) {
                const struct shape tree = shape_of(k == 4 ? 64 : 2 + draw(24), draw(4));
                same_paths(s, chain, &tree, k % 2);
            }
            session_free(chain);
            session_free(s);
        }
        model_free(t);
    }
    model_free(d);
}

/* ---- streams ---- */

static const struct kn_sampler samplers[] = {
    {.top_p = 1, .repeat_penalty = 1},
    {.temp = 0.9f,
     .top_k = 7,
     .top_p = 0.95f,
     .min_p = 0.01f,
     .repeat_penalty = 1.1f,
     .repeat_last = 20,
     .seed = 5,
     .presence = 0.2f,
     .frequency = 0.1f},
    {.temp = 1.5f, .top_p = 1, .repeat_penalty = 1, .seed = 3},
};

struct setting {
    struct model *target;
    struct source *source;
    const struct kn_sampler *sampler;
    int32_t tree, n_prompt, every;
    bool seed, greedy;
    int32_t state; /* saved, and gone on with from the state, behind so many tokens; 0: not */
};

static struct session *open_stream(const struct setting *y, struct engine **g)
{
    struct err e = {0};
    struct session *s;
    const struct session_options o = {.ctx = 800,
                                      .chunk = 64,
                                      .kv = {KN_F16, KN_BF16},
                                      .tree = y->source ? y->tree : 0,
                                      .draft_greedy = y->greedy};
    must(engine_open(g, y->target, y->source, &o, &e) || session_open(&s, *g, &e), &e);
    if (s->delta) s->every = y->every;
    return s;
}

static void go(const struct setting *y, const struct planner *p, int32_t tree, struct run *r)
{
    struct err e = {0};
    struct engine *g;
    struct session *s = open_stream(y, &g);
    struct spec_options o = {.n = y->state ? y->state : N_NEW,
                             .sampler = *y->sampler,
                             .width = p || tree || !y->source ? 0 : 1,
                             .tree = tree,
                             .tree_seed = y->seed,
                             .planner = p,
                             .tokens = take_tokens,
                             .proposals = take_proposals,
                             .ctx = r};
    memset(r, 0, sizeof *r);
    must(session_prefill(s, prompt, y->n_prompt, NULL, NULL, &e) || spec_generate(s, &o, &r->st, &e), &e);
    if (y->state) {
        struct state *st;
        struct state_info info;
        save(s, "stream.state");
        session_free(s);
        engine_close(g);
        s = open_stream(y, &g);
        must(state_open(&st, "stream.state", &info, &e) || state_restore(st, s, &e), &e);
        state_close(st);
        o.n = N_NEW - y->state;
        if (p) ((struct draw *)p->ctx)->pos = 0;
        must(spec_generate(s, &o, &r->st, &e), &e);
    }
    assert_int_equal(r->n, N_NEW);
    session_free(s);
    engine_close(g);
}

/* Trees of a size in every cycle, and plans drawn at random with trees, chains and plain steps among them. */
static void test_streams(void **state)
{
    static struct run plain, ref, r;
    static const int32_t sizes[] = {1, 5, 16, 63};
    struct model *d = drafter();
    struct source x = source_dflash(d);
    int64_t accepted = 0, cycles = 0, treed = 0;
    (void)state;
    for (int kind = 0; kind < KINDS; kind++) {
        struct model *t = target(kind);
        for (int i = 0; i < 12; i++) {
            struct setting y = {.target = t,
                                .sampler = &samplers[i % 3],
                                .n_prompt = i % 2 ? 31 : 240,
                                .every = i % 4 ? 4 : 0,
                                .seed = i / 3 % 2,
                                .greedy = i / 4 % 2};
            go(&y, NULL, 0, &plain);
            y.source = &x, y.tree = sizes[i % 4];
            go(&y, NULL, 0, &ref);
            same_ids(&plain, &ref);
            const bool recorded = (i ^ kind) & 1;
            if (recorded) recorder_on(be);
            for (int k = 0; k < 3; k++) {
                struct draw drawn = {.x = (uint32_t)(i * 7 + k) * 2654435761u + 9,
                                     .most = BLOCK,
                                     .trees = y.tree,
                                     .of = k == 2 ? NULL : &ref,
                                     .prompt = y.n_prompt};
                const struct planner p = draw_planner(&drawn);
                y.state = k == 2 ? 13 + i : 0;
                go(&y, k ? &p : NULL, k ? 0 : y.tree, &r);
                same_ids(&plain, &r);
                if (!y.state) same_proposals(&ref, &r, BLOCK);
                for (int j = 0; j < BLOCK && !k; j++) accepted += j * r.st.accepted[j];
                if (!k) cycles += r.st.cycles;
                treed += drawn.treed;
            }
            if (recorded) recorder_off(be);
        }
        model_free(t);
    }
    assert_true(accepted > cycles / 4);
    assert_true(treed > 200);
    model_free(d);
}

/* ---- what stays is stated ---- */

struct stated {
    struct plan_trees trees;
    struct session_synthetic x;
    int cycles, second, kept;
};

static void stated_next(void *ctx, struct plan *p)
{
    planner_trees_next(&((struct stated *)ctx)->trees, p);
}

static void stated_choose(void *ctx, const struct plan_offer *o, struct plan_choice *c)
{
    struct stated *y = ctx;
    assert_true(o->top && !o->behind);
    for (int32_t j = 0; j < o->n_draft; j++)
        assert_memory_equal(o->top + j * o->n_top, y->x.top + j * KN_TOP, (size_t)o->n_top * sizeof *o->top);
    planner_trees_choose(&y->trees, o, c);
}

/* The path that stays is the one whose ranks are stated; so are the labels. */
static void stated_seen(void *ctx, const struct plan_result *r)
{
    struct stated *y = ctx;
    const int8_t *rank = y->x.rank + (int64_t)r->offer.pos * y->x.slots;
    int32_t kept = 1, at = 0;
    for (int32_t n = 1; r->choice.nodes && n < r->choice.rows; n++)
        if (r->choice.nodes[n].parent == at && r->choice.nodes[n].rank == rank[kept - 1]) {
            y->second += rank[kept - 1] > 0;
            at = n, kept++;
        }
    if (!r->choice.nodes)
        while (kept < r->choice.rows && rank[kept - 1] == 0) kept++;
    assert_int_equal(r->kept, kept);
    for (int32_t j = 0; r->ranks && j < r->labelled; j++) assert_int_equal(r->ranks[j], rank[j]);
    y->cycles++, y->kept += kept;
}

static void test_stated(void **state)
{
    enum { SLOTS = BLOCK - 1, POSITIONS = 800 };
    static int8_t rank[POSITIONS * SLOTS];
    static int32_t equal[POSITIONS];
    static float logp[POSITIONS * SLOTS], top[SLOTS * KN_TOP];
    struct model *d = drafter();
    struct source x = source_dflash(d);
    uint32_t seen = 5;
    struct err e = {0};
    (void)state;
    for (int32_t i = 0; i < SLOTS * KN_TOP; i++) top[i] = -0.7f * (float)(i % KN_TOP) - 0.4f;
    for (int32_t i = 0; i < POSITIONS * SLOTS; i++) rank[i] = (int8_t)((int32_t)(draw_next(&seen) % 5) - 1);
    for (int32_t i = 0; i < POSITIONS; i++)
        while (equal[i] < SLOTS && rank[i * SLOTS + equal[i]] == 0) equal[i]++;
    for (int kind = 0; kind < KINDS; kind += 2) {
        struct model *t = target(kind);
        static struct run r;
        struct engine *g;
        struct session *s;
        struct stated y = {
            .trees = {.proposals = 30, .looks = {.rows = 1}},
            .x = {.n = POSITIONS, .slots = SLOTS, .equal = equal, .logp = logp, .rank = rank, .top = top}};
        const struct session_options o = {
            .ctx = POSITIONS, .chunk = 64, .kv = {KN_F16, KN_F16}, .tree = 30, .synthetic = &y.x};
        const struct planner p = {stated_next, stated_choose, stated_seen, &y};
        const struct spec_options go_on = {
            .n = N_NEW, .sampler = samplers[kind % 3], .planner = &p, .tokens = take_tokens, .ctx = &r};
        memset(&r, 0, sizeof r);
        if (kind % 4) recorder_on(be);
        must(engine_open(&g, t, &x, &o, &e) || session_open(&s, g, &e), &e);
        must(session_prefill(s, prompt, 31, NULL, NULL, &e) || spec_generate(s, &go_on, &r.st, &e), &e);
        session_free(s);
        engine_close(g);
        if (kind % 4) recorder_off(be);
        assert_true(y.second > 2 && y.kept > y.cycles);
        model_free(t);
    }
    model_free(d);
}

/* ---- growing ---- */

static void test_growing(void **state)
{
    /* two places of three candidates */
    static const float p[] = {-0.5f, -1.0f, -3.0f, -0.25f, -2.0f, -INFINITY};
    static const struct plan_node best[] = {{-1, 0}, {0, 0}, {1, 0}, {0, 1}, {3, 0}, {1, 1}, {0, 2}, {3, 1}},
                                  seeded[] = {{-1, 0}, {0, 0}, {1, 0}, {0, 1}};
    static const int32_t depth[] = {0, 1, 2, 1, 2, 2, 1, 2};
    struct tree t;
    double reach;
    int32_t at;
    (void)state;
    tree_begin(&t, p, 2, 3, false);
    while (tree_add(&t, &reach, &at)) {
        const int32_t r = t.n - 1;
        if (r < 8) assert_int_equal(at, depth[r]);
        if (r == 4) assert_true(fabs(log(reach) + 1.25) < 1e-6);
    }
    assert_int_equal(t.n, 10); /* three and two behind each: the third of a place is none */
    for (int i = 0; i < 8; i++) {
        assert_int_equal(t.nodes[i].parent, best[i].parent);
        assert_int_equal(t.nodes[i].rank, best[i].rank);
    }
    static const float flat[] = {-0.5f, -1.0f, -3.0f, -4.0f, -5.0f, -6.0f};
    tree_begin(&t, flat, 2, 3, true);
    for (int i = 1; i < 4; i++) assert_true(tree_add(&t, NULL, NULL));
    assert_memory_equal(t.nodes, seeded, sizeof seeded);
    assert_true(tree_is_chain(t.nodes, 3) && !tree_is_chain(t.nodes, 4));
    tree_begin(&t, flat, 2, 3, false);
    for (int i = 1; i < 4; i++) assert_true(tree_add(&t, NULL, NULL));
    assert_int_equal(t.nodes[2].parent, 0); /* the sibling is likelier than the child */
}

/* ---- growing where what stands before counts ---- */

enum { PLACES = 4, TOP = 5, ALL = 5 + 25 + 125 + 625 };
struct rows {
    float top[PLACES * TOP], behind[PLACES][TOP][TOP];
};

static const float *row_behind(void *ctx, int32_t place, int32_t rank)
{
    const struct rows *y = ctx;
    assert_true(place > 0 && place < PLACES && rank > 0 && rank < TOP);
    return y->behind[place][rank];
}

/* Every path there is, by brute force: ranks, and the log of its probability. */
struct path {
    int8_t rank[PLACES];
    int32_t n;
    double reach;
};

static int32_t all_paths(const struct rows *y, double beside, struct path *out)
{
    int32_t n = 0;
    for (int32_t depth = 1; depth <= PLACES; depth++)
        for (int32_t code = 0; code < (int32_t)pow(TOP, depth); code++) {
            struct path p = {.n = depth};
            bool off = false;
            for (int32_t i = 0, x = code; i < depth; i++, x /= TOP) p.rank[i] = (int8_t)(x % TOP);
            for (int32_t i = 0; i < depth; i++) {
                const int32_t before = i ? p.rank[i - 1] : 0;
                const float *row = before ? y->behind[i][before] : y->top + i * TOP;
                p.reach += (double)row[p.rank[i]] + (off ? beside : 0);
                off = off || p.rank[i];
            }
            out[n++] = p;
        }
    return n;
}

static int likelier(const void *a, const void *b)
{
    const double x = ((const struct path *)a)->reach, y = ((const struct path *)b)->reach;
    return x < y ? 1 : x > y ? -1 : 0;
}

static void random_row(float *row, uint32_t *x, bool falls)
{
    double sum = 0, v[TOP];
    for (int32_t i = 0; i < TOP; i++) v[i] = (double)(draw_next(x) % 10000) / 1700, sum += exp(v[i]);
    for (int32_t i = 0; i < TOP; i++) row[i] = (float)(v[i] - log(sum));
    for (int32_t i = 1; i < TOP && falls; i++)
        for (int32_t j = i; j > 0 && row[j] > row[j - 1]; j--) {
            const float t = row[j];
            row[j] = row[j - 1], row[j - 1] = t;
        }
}

/* The nodes of a tree are the likeliest of all paths, and no other. */
static void test_behind(void **state)
{
    static struct path all[ALL];
    (void)state;
    for (uint32_t nth = 0; nth < 200; nth++) {
        struct rows y;
        struct tree t;
        uint32_t x = nth * 77 + 5;
        double reach;
        int32_t depth;
        for (int32_t j = 0; j < PLACES; j++) {
            random_row(y.top + j * TOP, &x, true);
            for (int32_t r = 0; r < TOP; r++) random_row(y.behind[j][r], &x, false);
        }
        const double beside = nth % 2 ? -0.4 : 0;
        assert_int_equal(all_paths(&y, beside, all), ALL);
        qsort(all, ALL, sizeof *all, likelier);
        tree_begin(&t, y.top, PLACES, TOP, false);
        t.behind = row_behind, t.behind_ctx = &y, t.beside = beside;
        for (int32_t i = 0; i < TREE_ROWS - 1; i++) {
            struct path p = {0};
            assert_true(tree_add(&t, &reach, &depth));
            assert_true(fabs(log(reach) - all[i].reach) < 1e-6);
            for (int32_t r = t.n - 1, at = depth; r; r = t.nodes[r].parent) p.rank[--at] = t.nodes[r].rank;
            assert_int_equal(depth, all[i].n);
            assert_memory_equal(p.rank, all[i].rank, sizeof p.rank);
        }
        struct err e = {0};
        must(tree_check(t.nodes, t.n, PLACES, TOP, &e), &e);
        /* Seeded: the chain, then the likeliest of the rest. */
        tree_begin(&t, y.top, PLACES, TOP, true);
        t.behind = row_behind, t.behind_ctx = &y, t.beside = beside;
        for (int32_t i = 0; i < PLACES; i++) assert_true(tree_add(&t, NULL, NULL));
        assert_true(tree_is_chain(t.nodes, t.n));
        for (int32_t i = 0; t.n < 40; i++) {
            bool chain = true;
            for (int32_t j = 0; j < all[i].n; j++) chain &= !all[i].rank[j];
            if (chain) continue;
            assert_true(tree_add(&t, &reach, NULL));
            assert_true(fabs(log(reach) - all[i].reach) < 1e-6);
        }
    }
}

static void test_refused(void **state)
{
    static const struct {
        struct plan_node nodes[4];
        int32_t n;
        const char *what;
    } bad[] = {
        {{{-1, 0}, {1, 0}}, 2, "node 1 of a tree stands behind 1 (expected 0 to 0)"},
        {{{-1, 0}, {0, 0}, {-1, 0}}, 3, "node 2 of a tree stands behind -1 (expected 0 to 1)"},
        {{{-1, 0}, {0, 3}}, 2, "candidate 3 of place 1 (expected 3 candidates of 2 places)"},
        {{{-1, 0}, {0, 0}, {1, 0}, {2, 0}}, 4, "candidate 0 of place 3"},
        {{{-1, 0}, {0, 1}, {0, 1}}, 3, "nodes 1 and 2 of a tree are the same candidate behind 0"},
        {{{-1, 0}}, 65, "rows of a tree out of range (expected 1 to 64, got 65)"},
    };
    struct err e = {0};
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        e = (struct err){0};
        assert_int_equal(tree_check(bad[i].nodes, bad[i].n, 2, 3, &e), -1);
        if (!strstr(e.msg, bad[i].what)) fail_msg("%s", e.msg);
    }
    struct model *t = target(0), *d = drafter();
    struct engine *g;
    struct source x = source_dflash(d);
    struct session_options o = {.ctx = 90, .kv = {KN_F16, KN_F16}, .tree = 64};
    e = (struct err){0};
    assert_int_equal(engine_open(&g, t, &x, &o, &e), -1);
    assert_non_null(strstr(e.msg, "tree out of range (expected 1 to 63 proposals, got 64)"));
    o.tree = 9;
    e = (struct err){0};
    assert_int_equal(engine_open(&g, t, NULL, &o, &e), -1);
    assert_non_null(strstr(e.msg, "source none: offers no candidates for a tree"));
    x.tree = false;
    e = (struct err){0};
    assert_int_equal(engine_open(&g, t, &x, &o, &e), -1);
    assert_non_null(strstr(e.msg, "source dflash: offers no candidates for a tree"));
    x.tree = true, o.check_layers = true;
    e = (struct err){0};
    assert_int_equal(engine_open(&g, t, &x, &o, &e), -1);
    assert_non_null(strstr(e.msg, "layers are checked by rows of a chain"));
    o.check_layers = false;
    struct kn_backend_head *head = (struct kn_backend_head *)(void *)be;
    const struct kn_ops *inner = head->op;
    struct kn_ops op = *inner;
    op.follow = NULL, head->op = &op;
    e = (struct err){0};
    assert_int_equal(engine_open(&g, t, &x, &o, &e), -1);
    head->op = inner;
    assert_non_null(strstr(e.msg, "runs no trees of proposals"));
    model_free(d);
    model_free(t);
}

static int open_all(void **state)
{
    const struct kn_open o = {.device = "cpu", .threads = 1};
    char msg[128];
    make_prompt(IDS - 1);
    return setup(state) || kn_backend_open(&be, &o, msg, sizeof msg) ? -1 : 0;
}

static int close_all(void **state)
{
    kn_backend_close(be);
    return teardown(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),    cmocka_unit_test(test_streams), cmocka_unit_test(test_stated),
        cmocka_unit_test(test_growing), cmocka_unit_test(test_behind),  cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
