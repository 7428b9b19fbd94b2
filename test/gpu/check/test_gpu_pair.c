/* test_gpu_pair.c - logits and drafts of the trained pair against the CPU's, recorded cycles against launched
 * ones (test_gpu.c). */
#include <unistd.h>

#include "../../../common/base/io.h"
#include "../../../common/base/mem.h"
#include "../../../common/run/cycle.h"
#include "../../../common/run/engine.h"
#include "../../../common/run/source.h"
#include "../../../common/run/spec.h"
#include "../../../common/run/state.h"
#include "../../../common/run/times.h"
#include "../../../common/token/tokenizer.h"
#include "test_gpu.h"

/* ---- the pair ---- */

static int32_t *text;
static size_t n_text;
#define WANTED 700

static int add_ids(void *ctx, const int32_t *ids, size_t n, struct err *e)
{
    (void)ctx;
    (void)e;
    text = realloc(text, (n_text + n) * sizeof *text);
    memcpy(text + n_text, ids, n * sizeof *ids);
    n_text += n;
    return 0;
}

static void read_prompt(const char *dir, const char *path)
{
    char model[512];
    struct err e = {0};
    struct gguf *g;
    struct tokenizer *t;
    struct tok_encoder *x;
    struct io_map m;
    if (text) return;
    snprintf(model, sizeof model, "%s/target-bf16.gguf", dir);
    if (gguf_open(&g, model, &e) || tok_open(&t, g, &e) || io_map_open(&m, path, &e) ||
        tok_encoder_new(&x, t, false, true, &e))
        die("prompt", e.msg);
    while (n_text < WANTED)
        if (tok_encode(x, m.data, m.size, true, add_ids, NULL, &e)) die("encode", e.msg);
    tok_encoder_free(x);
    tok_close(t);
    gguf_close(g);
    io_map_close(&m);
}

/* How far two rows of logits are apart, and whether their largest is the same up to the tolerance. */
struct distance {
    double square, norm, worst;
    long rows, flips, wrong;
};

static void compare_row(struct distance *x, const float *want, const float *got, int n, double near)
{
    int a = 0, b = 0;
    for (int i = 0; i < n; i++) {
        double e = fabs((double)want[i] - got[i]);
        x->square += e * e;
        x->norm += (double)want[i] * want[i];
        if (!(e <= x->worst)) x->worst = e;
        if (want[i] > want[a]) a = i;
        if (got[i] > got[b]) b = i;
    }
    x->rows++;
    if (a == b) return;
    x->flips++;
    if ((double)want[a] - want[b] > near) x->wrong++; /* not a near tie */
}

struct rows {
    float *at;
    int n_vocab;
};
static int keep_rows(void *ctx, const float *rows, int32_t n, int32_t pos, struct err *e)
{
    struct rows *r = ctx;
    (void)e;
    memcpy(r->at + (size_t)pos * (size_t)r->n_vocab, rows, (size_t)n * (size_t)r->n_vocab * 4);
    return 0;
}

/* Tolerance in logits: the CPU meets quantised weights with 8-bit blocks of activations, an error of the
 * order of the weights' own (2^-8 a value, averaged over a row); the device does so up to 64 rows, and with
 * 11 bits above. With float weights both are near exact up to 64 rows. Above, the device rounds both factors
 * of a product to 11 bits: 2^-11 at most, 2e-4 in the mean of squares a value, 2.9e-4 a product relative to
 * its terms' 2-norm, and so the logits by the head alone; the layers before add theirs. Three times that is
 * the limit of a prompt's logits.
 *
 * Q2_K's weights make more of the same rounding: on the 20 rows of the steps the CPU is 0.0286 of the norm
 * away from the same weights as float32 (Q3_K 0.0244, IQ4_XS 0.0229), so two roundings that know nothing of
 * each other are the root of two times that apart. */
#define PROMPT_FLOAT 9e-4
static const struct {
    const char *target, *drafter;
    double rel, prompt, near;
} pairs[] = {
    {"f32", "bf16", 3e-4, PROMPT_FLOAT, 0.02},
    {"f16", "bf16", 3e-4, PROMPT_FLOAT, 0.02},
    {"bf16", "bf16", 3e-4, PROMPT_FLOAT, 0.02},
    {"q8_0", "q8_0", 2e-2, 2e-2, 0.3},
    {"q4_k_m", "q4_k_m", 3e-2, 3e-2, 0.4},
    {"q5_0", "q8_0", 3e-2, 3e-2, 0.4},
    {"iq4_nl", "q4_k_m", 3e-2, 3e-2, 0.4},
    {"iq4_xs", "q4_k_m", 3e-2, 3e-2, 0.4},
    {"q3_k", "q4_k_m", 3e-2, 3e-2, 0.4},
    {"q2_k", "q4_k_m", 4.05e-2, 3e-2, 0.4},
    {"bf16", "dflash2-bf16", 3e-4, PROMPT_FLOAT, 0.02},
    {"q4_k_m", "dflash2-q4_k_m", 3e-2, 3e-2, 0.4},
    {"bf16", "dspark-bf16", 3e-4, PROMPT_FLOAT, 0.02},
    {"q4_k_m", "dspark-q4_k_m", 3e-2, 3e-2, 0.4},
    {"bf16", "domino-bf16", 3e-4, PROMPT_FLOAT, 0.02},
    {"q4_k_m", "domino-q4_k_m", 3e-2, 3e-2, 0.4},
    {"bf16", "block-bf16", 3e-4, PROMPT_FLOAT, 0.02},
    {"q4_k_m", "block-q4_k_m", 3e-2, 3e-2, 0.4},
};

void check_pair(const char *dir, const char *prompt)
{
    read_prompt(dir, prompt);
    static const int lens[] = {1, 40, 256, 300};
    for (size_t k = 0; k < sizeof pairs / sizeof *pairs; k++) {
        struct err e = {0};
        char path[2][512];
        struct model *t[2] = {0}, *d[2] = {0};
        struct distance whole = {0}, step = {0}, block = {0};
        snprintf(path[0], sizeof path[0], "%s/target-%s.gguf", dir, pairs[k].target);
        snprintf(path[1], sizeof path[1], "%s/drafter-%s.gguf", dir, pairs[k].drafter);
        for (int b = 0; b < 2; b++)
            if (model_load(&t[b], path[0], b ? gpu : cpu, NULL, NULL, NULL, &e) ||
                model_load(&d[b], path[1], b ? gpu : cpu, NULL, NULL, NULL, &e))
                die(path[0], e.msg);
        const int v = t[0]->d->n_vocab, n = 600;
        float *rows[2], *one[2] = {malloc((size_t)v * 4), malloc((size_t)v * 4)};
        for (int b = 0; b < 2; b++) { /* all logits of a prompt in chunks of 512 and less */
            struct session *s;
            struct session_options o = {.ctx = n + 64, .kv = {KN_F16, KN_F16}};
            rows[b] = malloc((size_t)n * (size_t)v * 4);
            struct rows r = {rows[b], v};
            if (session_new(&s, t[b], d[b], &o, &e) || session_prefill(s, text, n, keep_rows, &r, &e))
                die("prefill", e.msg);
            session_free(s);
        }
        for (int i = 0; i < n; i++)
            compare_row(&whole, rows[0] + (size_t)i * (size_t)v, rows[1] + (size_t)i * (size_t)v, v,
                        pairs[k].near);
        for (size_t i = 0; i < sizeof lens / sizeof *lens;
             i++) { /* a step of 5 rows and a draft after prompts of many lengths */
            struct session *s[2];
            int32_t proposals[SESSION_MAX_ROWS];
            bool usable;
            for (int b = 0; b < 2; b++) {
                struct session_options o = {.ctx = n, .chunk = 64, .kv = {KN_F16, KN_F16}};
                if (session_new(&s[b], t[b], d[b], &o, &e) ||
                    session_prefill(s[b], text, lens[i], NULL, NULL, &e) ||
                    session_forward(s[b], text + lens[i], 5, &e))
                    die("forward", e.msg);
            }
            for (int r = 0; r < 5; r++) {
                if (session_logits(s[0], r, one[0], &e) || session_logits(s[1], r, one[1], &e))
                    die("logits", e.msg);
                compare_row(&step, one[0], one[1], v, pairs[k].near);
            }
            for (int b = 0; b < 2; b++)
                if (session_commit(s[b], 3, &e) ||
                    session_draft(s[b], text[lens[i] + 3], proposals, &usable, true, &e))
                    die("draft", e.msg);
            for (int r = 1; r < s[0]->o.block; r++) {
                if (session_logits(s[0], r, one[0], &e) || session_logits(s[1], r, one[1], &e))
                    die("logits", e.msg);
                compare_row(&block, one[0], one[1], v, 2 * pairs[k].near);
            }
            session_free(s[0]);
            session_free(s[1]);
        }
        const struct {
            const char *what;
            struct distance *x;
            double rel;
        } each[] = {{"prompt", &whole, pairs[k].prompt},
                    {"steps", &step, pairs[k].rel},
                    {"drafts", &block, 2 * pairs[k].rel}};
        for (int i = 0; i < 3; i++) {
            double rel = sqrt(each[i].x->square / each[i].x->norm);
            verdict(rel <= each[i].rel && each[i].x->wrong == 0,
                    "pair %s + %s, %s: %ld rows, relative error %.2g of %.2g, largest %.2g, %ld other "
                    "argmax, %ld of them no near tie",
                    pairs[k].target, pairs[k].drafter, each[i].what, each[i].x->rows, rel, each[i].rel,
                    each[i].x->worst, each[i].x->flips, each[i].x->wrong);
        }
        for (int b = 0; b < 2; b++) free(rows[b]), free(one[b]), model_free(t[b]), model_free(d[b]);
    }
}

/* ---- cycles ---- */

enum { CYCLES = 40 };
struct cycled {
    int32_t pos, kept, ids[SESSION_MAX_ROWS], picks[SESSION_MAX_ROWS];
};

/* Cycles after n tokens of the text, width rows verified of a block. */
static void run_cycles(struct model *t, struct model *d, int32_t n, int32_t width, struct cycled *out)
{
    static const struct kn_sampler greedy = {.top_p = 1, .repeat_penalty = 1};
    struct session *s;
    struct err e = {0};
    const struct session_options o = {
        .ctx = n + (CYCLES + 4) * SESSION_MAX_ROWS, .chunk = 64, .kv = {KN_F16, KN_F16}};
    if (session_new(&s, t, d, &o, &e) || session_prefill(s, text, n, NULL, NULL, &e) ||
        session_cycles_begin(s, text[n], &greedy, &e))
        die("cycles", e.msg);
    const struct plan plan = {.draft = true, .rows = width};
    for (int32_t i = 0, running = 0; i < CYCLES; i++, running--) {
        struct session_cycle c;
        for (; running <= session_cycles_ahead(s, &plan); running++)
            if (session_cycle_start(s, &plan, 1000, &e)) die("cycle", e.msg);
        if (session_cycle_finish(s, &c, &e)) die("cycle", e.msg);
        out[i] = (struct cycled){.pos = c.pos, .kept = c.kept};
        memcpy(out[i].ids, c.ids, (size_t)s->o.block * sizeof *c.ids);
        memcpy(out[i].picks, c.picks, (size_t)c.kept * sizeof *c.picks);
    }
    if (session_cycles_end(s, s->n_past, &e)) die("cycles", e.msg);
    session_free(s);
}

/* What is recorded proposes and keeps what operations one by one do. A
 * wrong context would still give the target's tokens, so proposals are compared. */
void check_cycles(const char *dir, const char *prompt, bool generic)
{
    static const char *const pair[][2] = {{"bf16", "bf16"},
                                          {"q8_0", "q8_0"},
                                          {"q4_k_m", "q4_k_m"},
                                          {"bf16", "dflash2-bf16"},
                                          {"bf16", "dspark-bf16"},
                                          {"q4_k_m", "dflash2-q4_k_m"},
                                          {"q4_k_m", "dspark-q4_k_m"},
                                          {"bf16", "domino-bf16"},
                                          {"q4_k_m", "domino-q4_k_m"},
                                          {"bf16", "block-bf16"}};
    static const int32_t widths[] = {8, 3, 2, 1}, lens[] = {40, 300};
    char msg[256];
    struct kn_backend *direct;
    const struct kn_open o = {.device = "cuda", .generic = generic, .direct = true};
    read_prompt(dir, prompt);
    if (kn_backend_open(&direct, &o, msg, sizeof msg)) die("direct", msg);
    for (size_t k = 0; k < sizeof pair / sizeof *pair; k++) {
        struct err e = {0};
        struct model *t[2], *d[2];
        char path[2][512];
        snprintf(path[0], sizeof path[0], "%s/target-%s.gguf", dir, pair[k][0]);
        snprintf(path[1], sizeof path[1], "%s/drafter-%s.gguf", dir, pair[k][1]);
        for (int b = 0; b < 2; b++)
            if (model_load(&t[b], path[0], b ? direct : gpu, NULL, NULL, NULL, &e) ||
                model_load(&d[b], path[1], b ? direct : gpu, NULL, NULL, NULL, &e))
                die(path[0], e.msg);
        for (int i = 0; i < 8; i++) {
            static struct cycled c[2][CYCLES];
            int32_t wrong = 0, kept = 0;
            for (int b = 0; b < 2; b++) run_cycles(t[b], d[b], lens[i / 4], widths[i % 4], c[b]);
            for (int j = 0; j < CYCLES; j++)
                wrong += memcmp(&c[0][j], &c[1][j], sizeof c[0][j]) != 0, kept += c[0][j].kept;
            verdict(!wrong, "cycles of %s + %s, %d rows after %d: %d of %d other than one by one, %d tokens",
                    pair[k][0], pair[k][1], widths[i % 4], lens[i / 4], wrong, CYCLES, kept);
        }
        for (int b = 0; b < 2; b++) model_free(d[b]), model_free(t[b]);
    }
    kn_backend_close(direct);
}

/* ---- plans ---- */

enum { PLANNED = 150, PLAN_ROWS = 8 };

/* A stream under plans: tokens, and the blocks by the tokens that were written when they were made. */
struct planned {
    int32_t id[PLANNED], block[PLANNED][PLAN_ROWS - 1];
    bool drafted[PLANNED];
    int n, blocks, opened;
    int32_t away, rows; /* plain rows before the next draft; 0: drawn, else of every plan, which drafts */
    uint32_t x;
};

static int planned_tokens(void *ctx, const int32_t *ids, int32_t n, struct err *e)
{
    struct planned *p = ctx;
    (void)e;
    memcpy(p->id + p->n, ids, (size_t)n * sizeof *ids);
    p->n += n;
    return 0;
}

static int planned_block(void *ctx, const int32_t *ids, int32_t n, struct err *e)
{
    struct planned *p = ctx;
    (void)e;
    memcpy(p->block[p->n], ids, (size_t)n * sizeof *ids);
    p->drafted[p->n] = true;
    p->blocks++;
    return 0;
}

static int32_t drawn(struct planned *p, int32_t n)
{
    p->x = p->x * 1664525u + 1013904223u;
    return (int32_t)((p->x >> 16) % (uint32_t)n);
}

/* Drafts in a row, rows known or left open, and now and then plain rows for longer than the features of any
 * are kept. */
static void draw_plan(void *ctx, struct plan *plan)
{
    struct planned *p = ctx;
    *plan = (struct plan){.draft = true, .rows = p->rows};
    if (p->rows) return;
    if (p->away-- > 0) {
        *plan = (struct plan){.rows = 1};
        return;
    }
    p->away = drawn(p, 3) ? 0 : drawn(p, 8) ? drawn(p, 6) : 66 + drawn(p, 8);
    plan->rows = drawn(p, 3) ? 0 : 1 + drawn(p, PLAN_ROWS);
}

static void draw_choice(void *ctx, const struct plan_offer *o, struct plan_choice *c)
{
    struct planned *p = ctx;
    *c = (struct plan_choice){.rows = 1 + drawn(p, 1 + o->n_draft)};
    p->opened++;
}

/* The stream; where half is given saved, and gone on with in the slot that it left, behind so many tokens. */
static void run_planned(struct engine *g, const struct kn_sampler *sampler, int32_t n_prompt, int half,
                        bool timed, struct planned *p)
{
    static const int32_t rows[] = {PLAN_ROWS, 2, 3, 1};
    char path[64]; /* of this process: the suites may run side by side */
    struct err e = {0};
    struct session *s;
    struct session_times times;
    struct spec_stats st;
    const struct planner planner = {.next = draw_plan, .choose = draw_choice, .ctx = p};
    const struct session_timing timing = {
        .sampler = *sampler, .rows = rows, .n = 4, .reach = n_prompt + PLANNED, .budget_s = 1};
    struct spec_options o = {.n = half ? half : PLANNED,
                             .sampler = *sampler,
                             .planner = g->source ? &planner : NULL,
                             .tokens = planned_tokens,
                             .proposals = planned_block,
                             .ctx = p};
    snprintf(path, sizeof path, "build/test/planned-state.%ld", (long)getpid());
    if (session_open(&s, g, &e) || session_prefill(s, text, n_prompt, NULL, NULL, &e)) die("planned", e.msg);
    if (timed && session_time(s, &timing, &times, &e)) die("times", e.msg);
    if (timed && (times.missing || !(times.plain_s > 0) || !(times.draft_s[0] > 0) || !(times.wait_s > 0)))
        die("times", "some part was not measured");
    if (spec_generate(s, &o, &st, &e)) die("planned", e.msg);
    if (half) {
        struct io_out out;
        struct state *state;
        struct state_info info;
        if (io_out_open(&out, path, true, NULL, 0, &e) || state_save(s, &out, &e) || io_out_commit(&out, &e))
            die("state", e.msg);
        session_free(s);
        if (session_open(&s, g, &e) || state_open(&state, path, &info, &e) || state_restore(state, s, &e))
            die("state", e.msg);
        state_close(state);
        unlink(path);
        o.n = PLANNED - half;
        if (spec_generate(s, &o, &st, &e)) die("planned", e.msg);
    }
    session_free(s);
}

/* Plans drawn at random, over rows that wait, drafts ahead, states and times taken at the start: the stream
 * is the target's own, and a block is the one of a stream that drafts always. */
static void check_plans_of(const char *dir, const char *type, const char *drafter, const int32_t *lens,
                           int n_lens)
{
    static const struct kn_sampler sampler[] = {
        {.top_p = 1, .repeat_penalty = 1},
        {.temp = 0.8f, .top_p = 0.95f, .top_k = 40, .repeat_penalty = 1.1f, .repeat_last = 64, .seed = 5}};
    struct err e = {0};
    char path[2][512];
    struct model *t, *d;
    struct engine *with, *without;
    snprintf(path[0], sizeof path[0], "%s/target-%s.gguf", dir, type);
    snprintf(path[1], sizeof path[1], "%s/drafter-%s.gguf", dir, drafter);
    if (model_load(&t, path[0], gpu, NULL, NULL, NULL, &e) ||
        model_load(&d, path[1], gpu, NULL, NULL, NULL, &e))
        die(path[0], e.msg);
    struct source x = source_drafter(d);
    const struct session_options o = {.ctx = 300 + PLANNED + SESSION_MAX_ROWS,
                                      .chunk = 64,
                                      .block = x.rows < PLAN_ROWS ? x.rows : PLAN_ROWS,
                                      .kv = {KN_F16, KN_F16}};
    if (engine_open(&with, t, &x, &o, &e) || engine_open(&without, t, NULL, &o, &e)) die("engine", e.msg);
    for (int i = 0; i < 2 * n_lens; i++) {
        static struct planned plain, ref, p;
        const struct kn_sampler *k = &sampler[i % 2];
        const int32_t len = lens[i / 2];
        int wrong = 0, blocks = 0, opened = 0;
        plain = (struct planned){0}, ref = (struct planned){.rows = 1};
        run_planned(without, k, len, 0, false, &plain);
        run_planned(with, k, len, 0, false, &ref);
        wrong += memcmp(plain.id, ref.id, sizeof plain.id) != 0 || ref.blocks != PLANNED - 1;
        for (uint32_t seed = 0; seed < 12; seed++) {
            p = (struct planned){.x = seed * 2654435761u + (uint32_t)i};
            run_planned(with, k, len, seed % 3 == 1 ? 30 + (int)seed * 7 : 0, seed % 4 == 2, &p);
            wrong += memcmp(plain.id, p.id, sizeof p.id) != 0;
            for (int n = 0; n < PLANNED; n++)
                wrong += p.drafted[n] && memcmp(p.block[n], ref.block[n], sizeof p.block[n]) != 0;
            blocks += p.blocks, opened += p.opened;
        }
        verdict(
            !wrong && opened > 12 && blocks > opened,
            "plans over %s + %s, %s, after %d: %d wrong of 12 streams and %d blocks, rows of %d chosen late",
            type, drafter, k->temp > 0 ? "sampled" : "greedy", len, wrong, blocks, opened);
    }
    engine_close(with);
    engine_close(without);
    model_free(d);
    model_free(t);
}

void check_plans(const char *dir, const char *prompt)
{
    static const char *const types[] = {"bf16", "q8_0", "q4_k_m"};
    static const char *const relatives[][2] = {{"bf16", "dflash2-bf16"},
                                               {"q4_k_m", "dflash2-q4_k_m"},
                                               {"q4_k_m", "dspark-q4_k_m"},
                                               {"q4_k_m", "domino-q4_k_m"}};
    static const int32_t lens[] = {1, 40, 290};
    char path[512];
    read_prompt(dir, prompt);
    for (int k = 0; k < 3; k++) check_plans_of(dir, types[k], types[k], lens, 3);
    snprintf(path, sizeof path, "%s/drafter-%s.gguf", dir, relatives[0][1]);
    if (access(path, R_OK)) return; /* the drafter is no DFlash */
    for (int k = 0; k < 4; k++) check_plans_of(dir, relatives[k][0], relatives[k][1], lens, 3);
}

/* ---- the pieces of a chat ---- */

enum { PIECES = 3, SAID = 40 };

static void save_planned(struct session *s, const char *path)
{
    struct io_out out;
    struct err e = {0};
    if (io_out_open(&out, path, true, NULL, 0, &e) || state_save(s, &out, &e) || io_out_commit(&out, &e))
        die("state", e.msg);
}

/* Pieces of a prompt, each answered by SAID tokens, as generate --append --save-state runs them: through
 * states, a session a piece, or in one session that was never saved. At the end its state is at path. */
static void run_pieces(struct engine *g, const struct kn_sampler *sampler, const int32_t *lens, bool saved,
                       const char *path, struct planned *p)
{
    struct err e = {0};
    struct session *s;
    struct spec_stats st;
    const int32_t *piece = text;
    const struct spec_options o = {.n = SAID,
                                   .sampler = *sampler,
                                   .width = g->source ? PLAN_ROWS : 0,
                                   .tokens = planned_tokens,
                                   .ctx = p};
    *p = (struct planned){0};
    if (session_open(&s, g, &e)) die("pieces", e.msg);
    for (int i = 0; i < PIECES; i++) {
        if (session_prefill(s, piece, lens[i], NULL, NULL, &e) || spec_generate(s, &o, &st, &e))
            die("pieces", e.msg);
        piece += lens[i];
        if (!saved && session_settle_anchor(s, &e)) die("pieces", e.msg);
        if (!saved && i + 1 < PIECES) continue;
        save_planned(s, path);
        if (i + 1 == PIECES) break;
        struct state *state;
        struct state_info info;
        session_free(s);
        if (session_open(&s, g, &e) || state_open(&state, path, &info, &e) || state_restore(state, s, &e))
            die("state", e.msg);
        state_close(state);
    }
    session_free(s);
}

/* A chat that goes on from states is that of one process which was fed the same pieces: its tokens, with and
 * without a drafter, and the bytes of its state. Pieces of more and of fewer than 64 rows, which differ in
 * precision. */
static void check_pieces_of(const char *dir, const char *type)
{
    static const struct kn_sampler sampler[] = {
        {.top_p = 1, .repeat_penalty = 1},
        {.temp = 0.8f, .top_p = 0.95f, .top_k = 40, .repeat_penalty = 1.1f, .repeat_last = 64, .seed = 5}};
    static const int32_t lens[][PIECES] = {{290, 70, 5}, {1, 65, 130}};
    struct err e = {0};
    char path[2][512];
    struct model *t, *d;
    struct engine *g[2];
    snprintf(path[0], sizeof path[0], "%s/target-%s.gguf", dir, type);
    snprintf(path[1], sizeof path[1], "%s/drafter-%s.gguf", dir, type);
    if (model_load(&t, path[0], gpu, NULL, NULL, NULL, &e) ||
        model_load(&d, path[1], gpu, NULL, NULL, NULL, &e))
        die(path[0], e.msg);
    struct source x = source_drafter(d);
    const struct session_options o = {
        .ctx = 700, .block = x.rows < PLAN_ROWS ? x.rows : PLAN_ROWS, .kv = {KN_F16, KN_F16}};
    if (engine_open(&g[0], t, NULL, &o, &e) || engine_open(&g[1], t, &x, &o, &e)) die("engine", e.msg);
    for (int k = 0; k < 2; k++)
        snprintf(path[k], sizeof path[k], "build/test/pieces-state.%ld-%d", (long)getpid(), k);
    for (int i = 0; i < 4; i++) {
        static struct planned plain, one, turns;
        struct io_map a, b;
        const struct kn_sampler *k = &sampler[i % 2];
        run_pieces(g[0], k, lens[i / 2], true, path[0], &plain);
        run_pieces(g[1], k, lens[i / 2], true, path[0], &turns);
        run_pieces(g[1], k, lens[i / 2], false, path[1], &one);
        if (io_map_open(&a, path[0], &e) || io_map_open(&b, path[1], &e)) die("pieces", e.msg);
        const bool same = a.size == b.size && memcmp(a.data, b.data, a.size) == 0;
        io_map_close(&a), io_map_close(&b);
        verdict(same && one.n == PIECES * SAID && memcmp(one.id, turns.id, sizeof one.id) == 0 &&
                    memcmp(plain.id, turns.id, sizeof one.id) == 0,
                "pieces of %d, %d and %d over %s, %s: through states as in one session, states %s",
                lens[i / 2][0], lens[i / 2][1], lens[i / 2][2], type, k->temp > 0 ? "sampled" : "greedy",
                same ? "equal" : "differ");
    }
    for (int k = 0; k < 2; k++) unlink(path[k]);
    engine_close(g[0]);
    engine_close(g[1]);
    model_free(d);
    model_free(t);
}

void check_pieces(const char *dir, const char *prompt)
{
    static const char *const types[] = {"bf16", "q8_0", "q4_k_m"};
    read_prompt(dir, prompt);
    for (int k = 0; k < 3; k++) check_pieces_of(dir, types[k]);
}
