/* lossless.c - drafted output equals undrafted output, and drafts do not depend on what must not change them.
 *
 * usage: lossless PAIR_DIR PROMPT.txt [--all] [--types LIST] [--untrained] [--kv] [--kv-host]
 *                 [--device NAME] [--jobs N | --part I/N]
 * PAIR_DIR holds target-TYPE.gguf and drafter-TYPE.gguf. A case is a point in prompts x target types x
 * drafter types x blocks x widths x sampling x coupled or greedy proposals x cache types x resumed states x
 * chunks x instruction sets x threads. Without --all a set of cases is run in which every pair of values of
 * two axes occurs; with it, every combination of what shapes the stream (prompt, types, cache, sampling,
 * block, width), every combination of what must not (instruction set, threads, chunk, resuming) with target
 * type, prompt and sampling, and greedy proposals with target type, prompt, sampling, block and width. Each
 * case's stream is compared with the target's own (no drafter), and its draft trace with that of the plainest
 * run of the same drafter (best instruction set, one thread, one chunk size, uninterrupted). One case of
 * LOOKS is also run with look-ups, beside the drafter or in its place, in the history or in a text that knows
 * the stream. One case of TREES is also run with a tree of 3 to 63 proposals every cycle. One case of TURNS
 * is also run as two streams over one engine, which take turns between cycles: one under plans drawn at
 * random (with look-ups), stopped half way, saved, and gone on with from the state; one as the case says.
 * --device cuda: the same there. Instruction sets and threads are no axes then, and the chunk of the prompt
 * is part of a stream's identity: passes of more than 64 rows may round otherwise, alike in both modes.
 * --types LIST: only these types of target, joined by commas; those from iq4_nl on and wide (heads of
 * 128, test/make_wide.c) are run only so. --kv: caches of every type with every other instead (for wide).
 * --kv-host: of most drafted cases one layer's keys and values, or all, are in the host's memory, of no plain
 * one's.
 * --untrained: the drafter's weights are random, it has no relatives and offers no trees, and none of its
 * proposals need be right: what is accepted are look-ups' and rows of drawn plans.
 * --jobs N: N processes, each with the cases of its share of the references. --part I/N: only share I of
 * 0..N-1. Prints "ok   lossless/..." or "FAIL lossless/..." a group and what differed; exit 1 if any failed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "../common/base/mem.h"
#include "../common/run/cycle.h"
#include "../common/run/engine.h"
#include "../common/run/lookup.h"
#include "../common/run/session.h"
#include "../common/run/source.h"
#include "../common/run/spec.h"
#include "../common/run/state.h"
#include "../common/run/times.h"
#include "../common/token/tokenizer.h"
#ifdef LOSSLESS_CUDA
#include "../kernels/cuda/core/cuda.h"
#endif

enum axis {
    PROMPT,
    TARGET,
    DRAFTER,
    BLOCK,
    WIDTH,
    SAMPLING,
    GREEDY,
    CACHE,
    RESUME,
    CHUNK,
    ISA,
    THREADS,
    AXES
};

/* 255..257: the drafter's window; 767..769 and 2304: its ring at the default chunk, and three times it. The
 * first eight are those of the pairwise set. */
static const int prompt_len[] = {1, 40, 255, 256, 257, 767, 768, 769, 511, 512, 513, 2304};
#define TYPES 20 /* the last ten only where --types names them */
static const char *target_type[TYPES] = {"bf16", "f32",  "f16",    "q8_0",   "q4_k_m", "q4_0", "q5_0", "q4_k",
                                         "q5_k", "q6_k", "iq4_nl", "iq4_xs", "q3_k",   "q2_k", "iq3_s", "iq3_xxs", "iq2_s", "iq2_xxs", "mxfp4", "wide"};
static const char *const drafter_type[] = {"bf16",          "q8_0",           "q4_k_m",
                                           "dflash2-bf16",  "dflash2-q4_k_m", "dspark-bf16",
                                           "dspark-q4_k_m", "domino-bf16",    "domino-q4_k_m"};
static const int block_rows[] = {8, 2, 5};
static const int width_rows[] = {8, 1, 3};
static const struct kn_sampler sampling[] = {
    {.temp = 0, .top_p = 1, .repeat_penalty = 1},
    {.temp = 0.8f, .top_p = 1, .repeat_penalty = 1, .seed = 1},
    {.temp = 1,
     .top_k = 40,
     .top_p = 0.9f,
     .min_p = 0.02f,
     .repeat_penalty = 1.1f,
     .repeat_last = 64,
     .seed = 7,
     .presence = 0.3f,
     .frequency = 0.1f},
    {.temp = 0.5f,
     .top_k = 200,
     .top_p = 0.95f,
     .min_p = 0.001f,
     .repeat_penalty = 1,
     .order = KN_ORDER_TOP_P_RAW | KN_ORDER_MIN_P_RAW | KN_ORDER_TOP_P_FIRST | KN_ORDER_MIN_P_FIRST,
     .seed = 3},
};
static const int draft_greedy[] = {0, 1};
/* layers: every second layer of the target has other types than kv, and the drafter's are its own. */
#define CACHES 64
static struct {
    char name[32];
    struct kn_kv_types kv;
    bool layers;
} cache_type[CACHES] = {{"F16", {KN_F16, KN_F16}, false},
                        {"BF16", {KN_BF16, KN_BF16}, false},
                        {"F32", {KN_F32, KN_F32}, false},
                        {"F32,BF16", {KN_F32, KN_BF16}, false},
                        {"F16,BF16 and by layers", {KN_F16, KN_BF16}, true}};
static bool quantised; /* --kv: those instead are every type with every other, and each with a neighbour */
static struct kn_kv_types of_target[DESC_MAX_LAYERS], of_drafter[DESC_MAX_LAYERS];
static const int resume[] = {0, 1};
static const int chunk_rows[] = {512, 64, 17};
static const char *const isa_name[] = {"avx512", "avx2", "scalar"};
static const int thread_count[] = {1, 2, 3};
static int axis_size[AXES] = {8, 10, 9, 3, 3, 4, 2, 5, 2, 3, 3, 3};

#define N_NEW 40
struct run {
    int made;
    int32_t id[N_NEW];
    int n_trace;
    int32_t trace[N_NEW * 8];
    int64_t accepted, cycles, looked, trees;
};

static const char *dir, *device = "cpu";
static bool on_cpu = true;
static int32_t *text;
static size_t n_text;
static int isa_of[3], n_isa; /* the instruction sets this machine has, best first */
static long done, bad;

static void die(const char *what, const struct err *e)
{
    fprintf(stderr, "lossless: %s: %s\n", what, e ? e->msg : "failed");
    printf("FAIL lossless/%s\n", what);
    exit(1);
}

/* ---- models: loaded once a backend, dropped when the backend changes ---- */
static struct kn_backend *be;
static int be_isa = -1, be_threads = -1;
static struct model *loaded[2][TYPES];

static void use_backend(int isa, int threads)
{
    char msg[256];
    if (be && be_isa == isa && be_threads == threads) return;
    for (int i = 0; i < 2 * TYPES; i++) {
        model_free(loaded[i / TYPES][i % TYPES]);
        loaded[i / TYPES][i % TYPES] = NULL;
    }
    if (be) kn_backend_close(be);
    struct kn_open o = {
        .device = device, .isa = on_cpu ? isa_name[isa_of[isa]] : NULL, .threads = thread_count[threads]};
    if (kn_backend_open(&be, &o, msg, sizeof msg)) {
        fprintf(stderr, "lossless: %s\n", msg);
        exit(on_cpu ? 1 : 5);
    }
    be_isa = isa;
    be_threads = threads;
}

static struct model *get_model(int drafter, int type)
{
    struct err e = {0};
    char path[512];
    struct model **m = &loaded[drafter][type];
    snprintf(path, sizeof path, "%s/%s-%s.gguf", dir, drafter ? "drafter" : "target",
             drafter ? drafter_type[type] : target_type[type]);
    if (!*m && model_load(m, path, be, NULL, NULL, NULL, &e)) die(path, &e);
    return *m;
}

/* ---- one run ---- */
static struct source *look; /* NULL: none */
static bool look_only;
static int tree; /* proposals of a tree every cycle; 0: chains */
static bool tree_seed;

static int take_tokens(void *ctx, const int32_t *ids, int32_t n, struct err *e)
{
    struct run *r = ctx;
    (void)e;
    memcpy(r->id + r->made, ids, (size_t)n * sizeof *ids);
    r->made += n;
    return 0;
}

static int take_proposals(void *ctx, const int32_t *ids, int32_t n, struct err *e)
{
    struct run *r = ctx;
    (void)e;
    memcpy(r->trace + r->n_trace, ids, (size_t)n * sizeof *ids);
    r->n_trace += n;
    return 0;
}

/* --kv-host: layers of a case in the host's memory; none without a drafter, and of what traces are compared
 * with: all axes at their first values. */
static bool kv_host;
static int32_t layers_hosted(const int *c, const struct model *d)
{
    int sum = 0;
    for (int a = 0; a < AXES; a++) sum += a == PROMPT || a == TARGET || a == DRAFTER ? 0 : c[a];
    return !kv_host || !d ? 0 : sum % 3 == 2 ? 1 : sum % 3 ? DESC_MAX_LAYERS : 0;
}

static struct session_options options_of(const int *c, const struct model *d)
{
    for (int i = 0; i < DESC_MAX_LAYERS; i++) {
        const struct kn_kv_types kv = cache_type[c[CACHE]].kv;
        of_target[i] = i % 2 ? (struct kn_kv_types){kv.v, kv.k} : kv;
        of_drafter[i] =
            i % 2 ? (struct kn_kv_types){KN_TQ3_0, KN_Q5_0} : (struct kn_kv_types){KN_Q8_0, KN_Q4_0};
        if (quantised) continue;
        of_target[i] = i % 2 ? (struct kn_kv_types){KN_BF16, KN_F32} : cache_type[c[CACHE]].kv;
        of_drafter[i] = (struct kn_kv_types){KN_F32, KN_F16};
    }
    return (struct session_options){
        .ctx = prompt_len[c[PROMPT]] + N_NEW + 16,
        .chunk = chunk_rows[c[CHUNK]],
        .block = d ? block_rows[c[BLOCK]] : 0,
        .draft_greedy = d && draft_greedy[c[GREEDY]],
        .kv = cache_type[c[CACHE]].kv,
        .kv_host = layers_hosted(c, d),
        .look = look,
        .tree = d ? tree : 0,
        .kv_layers = cache_type[c[CACHE]].layers ? of_target : NULL,
        .draft_kv_layers = cache_type[c[CACHE]].layers ? of_drafter : NULL,
    };
}

static struct session *start(const int *c, struct model *t, struct model *d)
{
    struct err e = {0};
    struct session *s;
    const struct session_options o = options_of(c, d);
    if (session_new(&s, t, d, &o, &e)) die("session", &e);
    return s;
}

/* Through a state on disk: what is resumed is another session, of engine g or, where that is NULL, of its
 * own. */
static struct session *through_state(struct session *s, const int *c, struct engine *g, struct model *t,
                                     struct model *d)
{
    struct err e = {0};
    struct io_out out;
    struct state *st;
    struct state_info info;
    char path[] = "/tmp/lossless-XXXXXX";
    int fd = mkstemp(path);
    if (fd < 0) die("temporary file", NULL);
    close(fd);
    if (io_out_open(&out, path, true, NULL, 0, &e) || state_save(s, &out, &e) || io_out_commit(&out, &e))
        die("state_save", &e);
    session_free(s);
    if (state_open(&st, path, &info, &e)) die("state_open", &e);
    if (!g)
        s = start(c, t, d);
    else if (session_open(&s, g, &e))
        die("session", &e);
    if (state_restore(st, s, &e)) die("state_restore", &e);
    state_close(st);
    unlink(path);
    return s;
}

static int width_of(const int *c)
{
    return width_rows[c[WIDTH]] < block_rows[c[BLOCK]] ? width_rows[c[WIDTH]] : block_rows[c[BLOCK]];
}

static void run_case(const int *c, bool with_drafter, struct run *r)
{
    struct err e = {0};
    struct spec_stats stats;
    use_backend(c[ISA], c[THREADS]);
    struct model *t = get_model(0, c[TARGET]), *d = with_drafter ? get_model(1, c[DRAFTER]) : NULL;
    struct session *s = start(c, t, d);
    struct spec_options o = {
        .n = N_NEW,
        .sampler = sampling[c[SAMPLING]],
        .width = with_drafter && !look && !tree ? width_of(c) : 0,
        .tree = with_drafter ? tree : 0,
        .tree_seed = tree_seed,
        .look_only = look_only,
        .tokens = take_tokens,
        .proposals = take_proposals,
        .ctx = r,
    };
    memset(r, 0, sizeof *r);
    if (session_prefill(s, text, prompt_len[c[PROMPT]], NULL, NULL, &e)) die("prefill", &e);
    if (resume[c[RESUME]] && with_drafter) s = through_state(s, c, NULL, t, d);
    if (spec_generate(s, &o, &stats, &e)) die("generate", &e);
    for (int i = 0; i < 64; i++) r->accepted += stats.accepted[i] * i;
    r->cycles = stats.cycles;
    r->looked = stats.look_accepted;
    r->trees = stats.tree_cycles;
    session_free(s);
}

/* ---- references, kept by their key ---- */
struct kept {
    long key;
    struct run *r;
    struct kept *next;
};
static struct kept *kept[4096];

static struct run *reference(const int *c, bool with_drafter)
{
    int plain[AXES];
    memcpy(plain, c, sizeof plain);
    plain[RESUME] = plain[ISA] = plain[THREADS] = 0;
    if (on_cpu) plain[CHUNK] = 0;
    if (!with_drafter) plain[DRAFTER] = plain[BLOCK] = plain[WIDTH] = 0;
    if (!with_drafter || sampling[c[SAMPLING]].temp == 0) plain[GREEDY] = 0; /* the same proposals */
    long key = with_drafter;
    for (int a = 0; a < AXES; a++) key = key * axis_size[a] + plain[a];
    struct kept **slot = &kept[(unsigned long)key * 2654435761UL % 4096];
    for (struct kept *k = *slot; k; k = k->next)
        if (k->key == key) return k->r;
    struct kept *k = calloc(1, sizeof *k);
    k->key = key;
    k->r = malloc(sizeof *k->r);
    k->next = *slot;
    *slot = k;
    run_case(plain, with_drafter, k->r);
    return k->r;
}

/* ---- look-ups ---- */

#define LOOKS 3

/* From here on sessions have look-ups, in a text that knows the stream or in the history alone. */
static struct lookup_text *look_begin(const int *c, const struct run *plain, bool knows)
{
    static struct source_lookup source;
    static int32_t ids[4096];
    struct lookup_text *t = NULL;
    struct err e = {0};
    const int n = prompt_len[c[PROMPT]];
    memcpy(ids, text, (size_t)n * sizeof *ids);
    memcpy(ids + n, plain->id, sizeof plain->id);
    if (knows && lookup_text_open(&t, ids, n + N_NEW, 2, &e)) die("text", &e);
    source = source_lookup(2, t);
    look = &source.source;
    return t;
}

static void look_end(struct lookup_text *t)
{
    lookup_text_close(t);
    look = NULL;
    look_only = false;
}

/* The target's stream and the drafter's first block; where the text knows the stream, hardly a cycle. */
static bool looks_agree(const int *c, const struct run *plain, const struct run *drafted)
{
    struct run r;
    const bool knows = done / LOOKS % 2;
    const size_t bytes = (size_t)(block_rows[c[BLOCK]] - 1) * sizeof *r.trace;
    struct lookup_text *t = look_begin(c, plain, knows);
    look_only = done / LOOKS % 3 == 0;
    run_case(c, true, &r);
    const bool same = r.made == N_NEW && !memcmp(r.id, plain->id, sizeof r.id),
               trace = look_only ? r.n_trace == 0 : r.n_trace > 0 && !memcmp(r.trace, drafted->trace, bytes);
    look_end(t);
    return same && trace && (!knows || (r.looked > 0 && r.cycles < 16));
}

/* ---- trees ---- */

#define TREES 2

/* The target's stream and the drafter's first block, also where a look-up's chain may take a tree's place. */
static bool no_trees; /* of a drafter that offers no candidates */
static int tree_cases, tree_ran;
static bool trees_agree(const int *c, const struct run *plain, const struct run *drafted)
{
    static const int sizes[] = {15, 3, 63, 31, 7};
    struct run r;
    const int k = done / TREES;
    const size_t bytes = (size_t)(block_rows[c[BLOCK]] - 1) * sizeof *r.trace;
    struct lookup_text *t = k % 4 == 3 ? look_begin(c, plain, k % 8 == 7) : NULL;
    tree = sizes[k % 5];
    tree_seed = k / 5 % 2;
    run_case(c, true, &r);
    tree = 0;
    if (k % 4 == 3) look_end(t);
    return r.made == N_NEW && !memcmp(r.id, plain->id, sizeof r.id) && r.n_trace > 0 &&
           !memcmp(r.trace, drafted->trace, bytes) &&
           (tree_cases++, tree_ran += r.trees > 0, true); /* few nodes may be a chain in every cycle */
}

/* ---- two streams over one engine ---- */

#define TURNS 5

struct turn {
    struct session *s;
    struct run r;
    int anchor[N_NEW]; /* tokens written when block i was drafted */
    int running, blocks, away;
    bool begun, drawn, saved, open;
    struct plan plan;
};

static uint32_t draw(void)
{
    static uint32_t x = 4711;
    x = x * 1664525u + 1013904223u;
    return x >> 16;
}

static void next_plan(struct turn *t, const int *c)
{
    t->plan = (struct plan){.draft = true, .rows = width_of(c)};
    if (!t->drawn) return;
    t->plan = (struct plan){.rows = 1};
    if (t->away-- > 0) return;
    t->plan.draft =
        t->r.made == 1 || draw() % 3 > 0; /* the first: then both streams have a block of one anchor */
    if (!t->plan.draft && draw() % 8 == 0) t->away = (int)(draw() % 12);
    if (t->plan.draft) t->plan.rows += (int32_t)(draw() % (uint32_t)block_rows[c[BLOCK]]);
    if (draw() % 2) t->plan.rows = 0;
}

/* The rows of a cycle that left them open. */
static void choose_rows(struct turn *t)
{
    struct err e = {0};
    struct plan_offer o;
    struct plan_choice rows = {.rows = 1};
    if (session_cycle_offer(t->s, &o, NULL, &e)) die("offer", &e);
    rows.look = o.n_look && (!o.n_draft || draw() % 2);
    const int32_t n = rows.look ? o.n_look : o.n_draft, most = n < N_NEW / 3 ? n : N_NEW / 3; /* no leap */
    rows.rows += (int32_t)(draw() % (uint32_t)(1 + most));
    if (session_cycle_verify(t->s, &rows, N_NEW - t->r.made, &e)) die("verify", &e);
    t->open = false;
    t->running++;
}

/* Begin, start a cycle or finish one. */
static void take_turn(struct turn *t, const int *c)
{
    struct err e = {0};
    struct session_cycle y;
    int32_t id;
    if (!t->begun) {
        if (session_pick(t->s, &sampling[c[SAMPLING]], 1, &id, &e) ||
            session_cycles_begin(t->s, id, &sampling[c[SAMPLING]], &e))
            die("begin", &e);
        take_tokens(&t->r, &id, 1, &e);
        next_plan(t, c);
        t->begun = true;
        return;
    }
    if (t->open && !t->running) {
        choose_rows(t);
        return;
    }
    if (!t->open && t->running <= session_cycles_ahead(t->s, &t->plan) && t->r.made + t->running < N_NEW) {
        if (session_cycle_start(t->s, &t->plan, N_NEW - t->r.made, &e)) die("start", &e);
        t->open = !t->plan.rows;
        t->running += !t->open;
        next_plan(t, c);
        return;
    }
    if (session_cycle_finish(t->s, &y, &e)) die("finish", &e);
    t->running--;
    const int stay = y.kept < N_NEW - t->r.made ? y.kept : N_NEW - t->r.made;
    if (y.block) {
        t->anchor[t->blocks++] = t->r.made;
        take_proposals(&t->r, y.block + 1, t->s->o.block - 1, &e);
    }
    take_tokens(&t->r, y.picks, stay, &e);
    const bool half = t->drawn && !t->saved && t->r.made >= N_NEW / 2 && t->r.made < N_NEW;
    if (!half && t->r.made < N_NEW) return;
    if (session_cycles_end(t->s, y.pos + stay, &e)) die("end", &e);
    t->running = 0, t->open = false;
    if (!half) return;
    t->s = through_state(t->s, c, t->s->g, NULL, NULL);
    t->saved = true, t->begun = false;
}

/* Do both write the target's stream, the one under the setting with its trace, and propose the same where
 * both drafted? */
static bool turns_agree(const int *c, const struct run *plain, const struct run *drafted)
{
    static struct turn t[2];
    struct err e = {0};
    use_backend(c[ISA], c[THREADS]);
    struct source x = source_drafter(get_model(1, c[DRAFTER]));
    struct lookup_text *known = look_begin(c, plain, draw() % 2);
    const struct session_options o = options_of(c, x.model);
    const int n = block_rows[c[BLOCK]] - 1;
    struct engine *g;
    int shared = 0;
    if (engine_open(&g, get_model(0, c[TARGET]), &x, &o, &e)) die("engine", &e);
    for (int i = 0; i < 2; i++) {
        t[i] = (struct turn){.drawn = i};
        if (session_open(&t[i].s, g, &e) ||
            session_prefill(t[i].s, text, prompt_len[c[PROMPT]], NULL, NULL, &e))
            die("prefill", &e);
    }
    const int32_t rows[] = {x.rows < block_rows[c[BLOCK]] ? x.rows : block_rows[c[BLOCK]], 2};
    const struct session_timing timing = {
        .sampler = sampling[c[SAMPLING]], .rows = rows, .n = 2, .reach = o.ctx, .budget_s = 0.3};
    struct session_times times;
    if (session_time(t[1].s, &timing, &times, &e)) die("times", &e);
    while (t[0].r.made < N_NEW || t[1].r.made < N_NEW) {
        const int i = draw() % 2;
        if (t[i].r.made < N_NEW) take_turn(&t[i], c);
    }
    bool same = t[1].saved && t[0].r.n_trace == drafted->n_trace &&
                !memcmp(t[0].r.trace, drafted->trace, (size_t)drafted->n_trace * sizeof *drafted->trace);
    for (int i = 0; i < 2; i++) {
        same = same && t[i].r.made == N_NEW && !memcmp(t[i].r.id, plain->id, sizeof plain->id);
        session_free(t[i].s);
    }
    for (int a = 0; a < t[0].blocks; a++)
        for (int b = 0; b < t[1].blocks; b++) {
            if (t[0].anchor[a] != t[1].anchor[b]) continue;
            shared++;
            same = same &&
                   !memcmp(t[0].r.trace + a * n, t[1].r.trace + b * n, (size_t)n * sizeof *drafted->trace);
        }
    engine_close(g);
    look_end(known);
    return same && shared > 0;
}

static void describe(const int *c, char *out, size_t n)
{
    snprintf(out, n,
             "prompt %d target %s drafter %s block %d width %d sampling %d%s cache %s resume %d chunk %d isa "
             "%s threads %d",
             prompt_len[c[PROMPT]], target_type[c[TARGET]], drafter_type[c[DRAFTER]], block_rows[c[BLOCK]],
             width_rows[c[WIDTH]], c[SAMPLING], c[GREEDY] ? " greedy drafts" : "", cache_type[c[CACHE]].name,
             resume[c[RESUME]], chunk_rows[c[CHUNK]], on_cpu ? isa_name[isa_of[c[ISA]]] : device,
             thread_count[c[THREADS]]);
}

static int64_t accepted, cycles;

/* Cases are collected, then run sorted by backend and models, so that each model is loaded once a backend:
 * the references first (they all are of the first backend). */
struct one_case {
    int c[AXES];
};
static struct one_case *cases;
static size_t n_cases, room_cases;

static void add_case(const int *c)
{
    if (n_cases == room_cases)
        cases = realloc(cases, (room_cases = room_cases ? 2 * room_cases : 256) * sizeof *cases);
    memcpy(cases[n_cases++].c, c, sizeof cases->c);
}

static int by_models(const void *a, const void *b)
{
    static const enum axis order[] = {ISA,      THREADS, TARGET, DRAFTER, CACHE, PROMPT,
                                      SAMPLING, GREEDY,  BLOCK,  WIDTH,   CHUNK, RESUME};
    const int *x = ((const struct one_case *)a)->c, *y = ((const struct one_case *)b)->c;
    for (int i = 0; i < AXES; i++)
        if (x[order[i]] != y[order[i]]) return x[order[i]] - y[order[i]];
    return 0;
}

static void examine(const int *c)
{
    struct run *plain = reference(c, false), *drafted = reference(c, true), r;
    char name[512];
    run_case(c, true, &r);
    describe(c, name, sizeof name);
    bool same = r.made == N_NEW && plain->made == N_NEW && !memcmp(r.id, plain->id, sizeof r.id);
    bool trace = r.n_trace == drafted->n_trace &&
                 !memcmp(r.trace, drafted->trace, (size_t)r.n_trace * sizeof *r.trace);
    bool drafts = r.cycles > 0 && r.n_trace > 0;
    const bool turns = done % TURNS || turns_agree(c, plain, drafted);
    const bool looks = done % LOOKS || looks_agree(c, plain, drafted);
    const bool trees = no_trees || done % TREES || trees_agree(c, plain, drafted);
    done++;
    accepted += r.accepted;
    cycles += r.cycles;
    if (same && trace && drafts && turns && looks && trees) {
        printf("ok   lossless/%s\n", name);
        return;
    }
    bad++;
    printf("FAIL lossless/%s:%s%s%s%s%s%s\n", name, same ? "" : " the stream differs from the target's own",
           trace ? "" : " the draft trace differs", drafts ? "" : " nothing was drafted",
           turns ? "" : " streams over one engine, or plans drawn at random, differ",
           looks ? "" : " look-ups change the stream or the blocks, or find nothing",
           trees ? "" : " trees change the stream or the blocks, or none was run");
}

/* scalar code is for comparing bits, not for long prompts */
static bool allowed(const int *c)
{
    return !on_cpu || isa_of[c[ISA]] != 2 || prompt_len[c[PROMPT]] <= 40;
}

/* ---- every pair of values of two axes ---- */
static unsigned char seen[AXES][AXES][CACHES][CACHES];

static int gain(const int *c)
{
    int g = 0;
    for (int a = 0; a < AXES; a++)
        for (int b = a + 1; b < AXES; b++) g += !seen[a][b][c[a]][c[b]];
    return g;
}

/* Of quantised caches each once, half of them resumed; with all else they are paired by --all. */
static void caches_once(void)
{
    for (int a = 0; a < AXES; a++)
        for (int v = 0; v < CACHES; v++)
            for (int k = 0; k < CACHES; k++) {
                if (a < CACHE) seen[a][CACHE][v][k] = 1;
                if (a > CACHE) seen[CACHE][a][k][v] = a != RESUME || v != k % 2;
            }
}

static void pairwise(void)
{
    uint32_t x = 12345;
    if (quantised) caches_once();
    for (;;) {
        int best[AXES], best_gain = 0;
        for (int tries = 0; tries < 400; tries++) {
            int c[AXES];
            for (int a = 0; a < AXES; a++) {
                x = x * 1664525u + 1013904223u;
                c[a] = (int)((x >> 8) % (unsigned)axis_size[a]);
            }
            for (int a = 0; a < AXES; a++) { /* improve one axis at a time */
                int keep = c[a], top = -1, at = keep;
                for (int v = 0; v < axis_size[a]; v++) {
                    c[a] = v;
                    if (allowed(c) && gain(c) > top) {
                        top = gain(c);
                        at = v;
                    }
                }
                c[a] = at;
            }
            if (allowed(c) && gain(c) > best_gain) {
                best_gain = gain(c);
                memcpy(best, c, sizeof best);
            }
        }
        if (!best_gain) return;
        for (int a = 0; a < AXES; a++)
            for (int b = a + 1; b < AXES; b++) seen[a][b][best[a]][best[b]] = 1;
        add_case(best);
    }
}

/* Every combination of the axes in vary, the others at their first value, but for what proposals are. */
static void product(const enum axis *vary, int n, int greedy)
{
    int c[AXES] = {[GREEDY] = greedy};
    for (;;) {
        if (allowed(c)) add_case(c);
        int i = n - 1;
        while (i >= 0 && ++c[vary[i]] == axis_size[vary[i]]) c[vary[i--]] = 0;
        if (i < 0) return;
    }
}

/* All that shapes a stream and its drafts, and all that must not, crossed with the types, the sampling and
 * the prompts. */
static void everything(void)
{
    static const enum axis what[] = {TARGET, DRAFTER, CACHE, PROMPT, SAMPLING, BLOCK, WIDTH};
    static const enum axis how[] = {ISA, THREADS, CHUNK, RESUME, TARGET, PROMPT, SAMPLING};
    static const enum axis drafts[] = {TARGET, PROMPT, SAMPLING, BLOCK, WIDTH};
    static const enum axis kv_what[] = {CACHE, PROMPT, SAMPLING, BLOCK};
    static const enum axis kv_how[] = {CACHE, ISA, THREADS, CHUNK, RESUME};
    axis_size[PROMPT] = sizeof prompt_len / sizeof *prompt_len;
    if (quantised) {
        axis_size[SAMPLING] = 3;
        product(kv_what, 4, 0);
        product(kv_how, 5, 0);
        return;
    }
    product(drafts, 5, 1);
    axis_size[SAMPLING] = 3;
    product(what, 7, 0);
    product(how, 7, 0);
}

/* Keep the cases of one of n_parts: those that share a target's own stream stay together. */
static void keep_part(unsigned part, unsigned n_parts)
{
    static const enum axis shared[] = {TARGET, CACHE, PROMPT, SAMPLING};
    size_t kept_cases = 0;
    for (size_t i = 0; i < n_cases; i++) {
        uint32_t h = 0;
        for (int a = 0; a < 4; a++) h = (h + (uint32_t)cases[i].c[shared[a]] + 1) * 2654435761u;
        if ((h >> 8) % n_parts == part) cases[kept_cases++] = cases[i];
    }
    n_cases = kept_cases;
}

static void run_all(void)
{
    qsort(cases, n_cases, sizeof *cases, by_models);
    use_backend(0, 0);
    for (size_t i = 0; i < n_cases; i++) {
        reference(cases[i].c, false);
        reference(cases[i].c, true);
    }
    for (size_t i = 0; i < n_cases; i++) examine(cases[i].c);
}

static int add_ids(void *ctx, const int32_t *ids, size_t n, struct err *e)
{
    (void)ctx;
    (void)e;
    text = realloc(text, (n_text + n) * sizeof *text);
    memcpy(text + n_text, ids, n * sizeof *ids);
    n_text += n;
    return 0;
}

static void read_prompt(const char *path)
{
    struct err e = {0};
    struct gguf *g;
    struct tokenizer *t;
    struct tok_encoder *x;
    struct io_map m;
    char model[512];
    snprintf(model, sizeof model, "%s/target-bf16.gguf", dir);
    if (gguf_open(&g, model, &e) || tok_open(&t, g, &e) || io_map_open(&m, path, &e) ||
        tok_encoder_new(&x, t, false, true, &e))
        die("prompt", &e);
    while (n_text < (size_t)prompt_len[11])
        if (tok_encode(x, m.data, m.size, true, add_ids, NULL, &e)) die("encode", &e);
    tok_encoder_free(x);
    tok_close(t);
    gguf_close(g);
    io_map_close(&m);
}

struct tally {
    long done, bad;
    int64_t accepted, cycles;
};

/* Run every part in a process of its own; what they print goes to this one's output, a part at a time at its
 * end. */
static void run_jobs(int jobs)
{
    struct part {
        pid_t pid;
        FILE *text;
        int tally[2];
    } *part = calloc((size_t)jobs, sizeof *part);
    for (int i = 0; i < jobs; i++) {
        part[i].text = tmpfile();
        if (!part[i].text || pipe(part[i].tally)) die("temporary file", NULL);
        fflush(NULL);
        part[i].pid = fork();
        if (part[i].pid < 0) die("fork", NULL);
        if (part[i].pid) {
            close(part[i].tally[1]);
            continue;
        }
        dup2(fileno(part[i].text), STDOUT_FILENO);
        keep_part((unsigned)i, (unsigned)jobs);
        run_all();
        struct tally t = {done, bad, accepted, cycles};
        fflush(stdout);
        _exit(write(part[i].tally[1], &t, sizeof t) == sizeof t ? 0 : 1);
    }
    for (int i = 0; i < jobs; i++) {
        struct tally t;
        int status, c;
        if (read(part[i].tally[0], &t, sizeof t) == sizeof t) {
            done += t.done;
            bad += t.bad;
            accepted += t.accepted;
            cycles += t.cycles;
        } else {
            bad++;
        }
        close(part[i].tally[0]);
        waitpid(part[i].pid, &status, 0);
        rewind(part[i].text);
        while ((c = getc(part[i].text)) != EOF) putchar(c);
        fclose(part[i].text);
        if (status) printf("FAIL lossless/part %d of %d ended with %d\n", i, jobs, status);
    }
    free(part);
}

/* Keep the types of target that the list names, in its order; an unknown one is -1. */
static int take_types(char *list)
{
    const char *kept_types[TYPES];
    int n = 0, known = TYPES;
    for (char *name = strtok(list, ","); name; name = strtok(NULL, ",")) {
        int i = 0;
        while (i < known && strcmp(name, target_type[i])) i++;
        if (i == known || n == known) return -1;
        kept_types[n++] = target_type[i];
    }
    memcpy(target_type, kept_types, (size_t)n * sizeof *kept_types);
    axis_size[TARGET] = n;
    return n ? 0 : -1;
}

static void take_caches(void)
{
    static const uint32_t types[] = {KN_F16, KN_BF16, KN_F32, KN_Q8_0, KN_Q5_0, KN_Q4_0, KN_TQ3_0};
    int n = 0;
    quantised = true;
    for (int i = 0; i < 56; i++) {
        const struct kn_kv_types kv = {types[i % 7], types[i < 49 ? i / 7 : (i * 3 + 1) % 7]};
        cache_type[n].kv = kv;
        cache_type[n].layers = i >= 49;
        snprintf(cache_type[n++].name, sizeof cache_type->name, "%s,%s%s", kn_kv_name(kv.k), kn_kv_name(kv.v),
                 i >= 49 ? " and by layers" : "");
    }
    axis_size[CACHE] = n;
    axis_size[DRAFTER] = 3; /* other kinds keep their context in the same caches */
    axis_size[DRAFTER] = 5; /* caches of the kinds behind them are alike */
}

#ifdef LOSSLESS_CUDA
/* That the streams came from the kernels that the device is to use, not from those for older ones: products
 * with bulk copies, and attention over 16-bit caches by other than the general form, whose share is the f32
 * caches'. */
static bool forms_ok(void)
{
    const uint64_t *n = cuda_forms(be);
    uint64_t attention = 0;
    for (int f = CUDA_ATTN_STEP; f <= CUDA_ATTN_GROUP; f++) attention += n[f];
    const bool ok = !cuda_is_early(be) ||
                    (n[CUDA_PRODUCT_FEW] && n[CUDA_PRODUCT_BULK] && !n[CUDA_PRODUCT_GENERIC] && attention);
    printf("%s lossless/forms of kernels:", ok ? "ok  " : "FAIL");
    for (int f = 0; f < CUDA_FORMS; f++)
        if (n[f]) printf(" %s %llu,", cuda_form_name((enum cuda_form)f), (unsigned long long)n[f]);
    printf(" recordings once\n");
    return ok;
}
#endif

int main(int argc, char **argv)
{
    int jobs = 1;
    unsigned part = 0, parts = 1;
    bool all = false, untrained = false, usage = argc < 3;
    for (int i = 3; i < argc && !usage; i++)
        if (!strcmp(argv[i], "--all"))
            all = true;
        else if (!strcmp(argv[i], "--untrained"))
            untrained = no_trees = true, axis_size[DRAFTER] = 3;
        else if (!strcmp(argv[i], "--kv"))
            take_caches();
        else if (!strcmp(argv[i], "--kv-host"))
            kv_host = true;
        else if (!strcmp(argv[i], "--device") && i + 1 < argc)
            device = argv[++i];
        else if (!strcmp(argv[i], "--types") && i + 1 < argc)
            usage = take_types(argv[++i]);
        else if (!strcmp(argv[i], "--jobs") && i + 1 < argc)
            usage = (jobs = atoi(argv[++i])) < 1;
        else if (!strcmp(argv[i], "--part") && i + 1 < argc)
            usage = sscanf(argv[++i], "%u/%u", &part, &parts) != 2 || part >= parts;
        else
            usage = true;
    if (usage) {
        fprintf(stderr, "usage: lossless PAIR_DIR PROMPT.txt [--all] [--types LIST] [--untrained] [--kv] [--kv-host] "
                        "[--device NAME] [--jobs N | --part I/N]\n");
        return 2;
    }
    dir = argv[1];
    on_cpu = !strcmp(device, "cpu");
    for (int i = 0; i < 3 && on_cpu; i++) {
        char msg[256];
        struct kn_backend *probe;
        struct kn_open o = {.device = "cpu", .isa = isa_name[i], .threads = 1};
        if (kn_backend_open(&probe, &o, msg, sizeof msg)) continue;
        kn_backend_close(probe);
        isa_of[n_isa++] = i;
    }
    if (!on_cpu) n_isa = axis_size[THREADS] = 1;
    axis_size[ISA] = n_isa;
    read_prompt(argv[2]);
    if (all)
        everything();
    else
        pairwise();
    if (parts > 1) keep_part(part, parts);
    if (jobs > 1)
        run_jobs(jobs);
    else
        run_all();
    printf("lossless: %ld cases, %ld wrong, %d instruction sets, mean accepted %.2f\n", done, bad, n_isa,
           (double)accepted / (double)(cycles ? cycles : 1));
#ifdef LOSSLESS_CUDA
    if (!on_cpu && be && !forms_ok()) bad++;
#endif
    if (parts > 1 || untrained) return bad != 0; /* a few cases of one target may draft badly */
    printf(accepted > cycles / 4 ? "ok   lossless/the drafter drafts\n"
                                 : "FAIL lossless/the drafter drafts\n");
    const bool few = jobs <= 1 && 2 * tree_ran < tree_cases; /* of other processes that is not known here */
    if (jobs <= 1)
        printf("%s lossless/trees are run: by %d of %d cases\n", few ? "FAIL" : "ok  ", tree_ran, tree_cases);
    return bad != 0 || accepted <= cycles / 4 || few;
}
