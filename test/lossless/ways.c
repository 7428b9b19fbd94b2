/* ways.c - what else is run of some cases: look-ups, trees, and two streams over one engine. */
#include <string.h>
#include "../../common/run/cycle.h"
#include "../../common/run/engine.h"
#include "../../common/run/lookup.h"
#include "../../common/run/times.h"
#include "lossless.h"

/* ---- look-ups ---- */

/* Look-ups in a text that knows the stream, or in the history alone. */
struct looks {
    struct lookup_text *text;
    struct source_lookup source;
};

static void looks_open(struct looks *l, const int *c, const struct run *plain, bool knows)
{
    static int32_t ids[4096];
    struct err e = {0};
    const int n = prompt_len[c[PROMPT]];
    memcpy(ids, setting.text, (size_t)n * sizeof *ids);
    memcpy(ids + n, plain->id, sizeof plain->id);
    l->text = NULL;
    if (knows && lookup_text_open(&l->text, ids, n + N_NEW, 2, &e)) die("text", &e);
    l->source = source_lookup(2, l->text);
}

/* Where the text knows the stream, hardly a cycle. */
bool ways_looks_agree(const int *c, const struct run *plain, const struct run *drafted, long n)
{
    struct run r;
    struct looks l;
    const bool knows = n / LOOKS % 2, only = n / LOOKS % 3 == 0;
    const size_t bytes = (size_t)(block_rows[c[BLOCK]] - 1) * sizeof *r.trace;
    looks_open(&l, c, plain, knows);
    run_case(c, &(struct way){.drafter = true, .look = &l.source.source, .look_only = only}, &r);
    lookup_text_close(l.text);
    const bool same = r.made == N_NEW && !memcmp(r.id, plain->id, sizeof r.id),
               trace = only ? r.n_trace == 0 : r.n_trace > 0 && !memcmp(r.trace, drafted->trace, bytes);
    return same && trace && (!knows || (r.looked > 0 && r.cycles < 16));
}

/* ---- trees ---- */

/* Also where a look-up's chain may take a tree's place. */
bool ways_trees_agree(const int *c, const struct run *plain, const struct run *drafted, long n,
                      struct tree_tally *tally)
{
    static const int sizes[] = {15, 3, 63, 31, 7};
    struct run r;
    struct looks l = {0};
    const long k = n / TREES;
    const size_t bytes = (size_t)(block_rows[c[BLOCK]] - 1) * sizeof *r.trace;
    struct way way = {.drafter = true, .tree = sizes[k % 5], .tree_seed = k / 5 % 2};
    if (k % 4 == 3) {
        looks_open(&l, c, plain, k % 8 == 7);
        way.look = &l.source.source;
    }
    run_case(c, &way, &r);
    lookup_text_close(l.text);
    if (r.made != N_NEW || memcmp(r.id, plain->id, sizeof r.id) || r.n_trace <= 0 ||
        memcmp(r.trace, drafted->trace, bytes))
        return false;
    tally->cases++;
    tally->ran += r.trees > 0;
    return true;
}

/* ---- two streams over one engine ---- */

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
    t->plan = (struct plan){.draft = true, .rows = case_width(c)};
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
        run_take_tokens(&t->r, &id, 1, &e);
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
        run_take_proposals(&t->r, y.block + 1, t->s->o.block - 1, &e);
    }
    run_take_tokens(&t->r, y.picks, stay, &e);
    const bool half = t->drawn && !t->saved && t->r.made >= N_NEW / 2 && t->r.made < N_NEW;
    if (!half && t->r.made < N_NEW) return;
    if (session_cycles_end(t->s, y.pos + stay, &e)) die("end", &e);
    t->running = 0, t->open = false;
    if (!half) return;
    char path[] = RUN_STATE_PATH;
    struct engine *g = t->s->g;
    run_save(t->s, path);
    if (session_open(&t->s, g, &e)) die("session", &e);
    run_restore(t->s, path);
    t->saved = true, t->begun = false;
}

/* Do both write the target's stream, the one under the setting with its trace, and propose the same where
 * both drafted? */
bool ways_turns_agree(const int *c, const struct run *plain, const struct run *drafted)
{
    static struct turn t[2];
    struct err e = {0};
    run_backend(c[ISA], c[THREADS]);
    struct source x = source_drafter(run_model(true, c[DRAFTER]));
    struct looks l;
    looks_open(&l, c, plain, draw() % 2);
    const struct session_options o = run_options(c, x.model, &(struct way){.look = &l.source.source});
    const int n = block_rows[c[BLOCK]] - 1;
    struct engine *g;
    int shared = 0;
    if (engine_open(&g, run_model(false, c[TARGET]), &x, &o, &e)) die("engine", &e);
    for (int i = 0; i < 2; i++) {
        t[i] = (struct turn){.drawn = i};
        if (session_open(&t[i].s, g, &e) ||
            session_prefill(t[i].s, setting.text, prompt_len[c[PROMPT]], NULL, NULL, &e))
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
    lookup_text_close(l.text);
    return same && shared > 0;
}
