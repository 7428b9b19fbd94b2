/* turns.h - streams of one engine: stopped at any token and gone on with, in the same slot or from a state,
 * and taking turns between cycles.
 *
 * Of test_streams.c and test_recurrent.c. What a stream must be is what it is alone: plain, the target's own
 * tokens; ref, one row a cycle, a block for every anchor. */
#ifndef TEST_TURNS_H
#define TEST_TURNS_H

#include "plans.h"

#include "../../../common/run/cycle.h"
#include "../../../common/run/lookup.h"
#include "../../../common/run/session_impl.h"
#include "../../../common/run/times.h"

/* What streams are of. */
struct setting {
    struct model *target;
    struct source *source; /* NULL: none */
    struct session_options o;
    struct kn_sampler sampler;
    int32_t every; /* where the target is recurrent */
    int32_t n_prompt;
};

static inline struct engine *setting_engine(const struct setting *y, bool source)
{
    struct err e = {0};
    struct engine *g;
    must(engine_open(&g, y->target, source ? y->source : NULL, &y->o, &e), &e);
    return g;
}

/* Plans over it. */
static inline struct draw setting_draw(const struct setting *y, const struct engine *g, uint32_t seed)
{
    return (struct draw){
        .x = seed, .most = y->source ? g->o.block : 1, .looks = y->o.look ? y->o.look->rows : 0};
}

static inline struct session *setting_stream(const struct setting *y, struct engine *g)
{
    struct err e = {0};
    struct session *s;
    must(session_open(&s, g, &e), &e);
    if (s->delta) s->every = y->every;
    return s;
}

/* n tokens: as many as may be written or, where stop is given, up to the first of that id. */
static inline void setting_go(const struct setting *y, struct session *s, const struct planner *p, int n,
                              const int32_t *stop, int32_t width, struct run *r)
{
    struct err e = {0};
    const struct spec_options o = {.n = stop ? N_NEW : n,
                                   .stops = stop,
                                   .n_stops = stop != NULL,
                                   .sampler = y->sampler,
                                   .width = width,
                                   .planner = p,
                                   .tokens = take_tokens,
                                   .proposals = take_proposals,
                                   .ctx = r};
    memset(r, 0, sizeof *r);
    must(spec_generate(s, &o, &r->st, &e), &e);
    assert_int_equal(r->n, n);
}

/* The stream and its blocks, alone and without look-ups. */
static inline void setting_alone(const struct setting *with, struct run *plain, struct run *ref)
{
    struct err e = {0};
    struct setting without = *with;
    const struct setting *y = &without;
    without.o.look = NULL;
    for (int drafted = 0; drafted < (y->source ? 2 : 1); drafted++) {
        struct engine *g = setting_engine(y, drafted);
        struct session *s = setting_stream(y, g);
        must(session_prefill(s, prompt, y->n_prompt, NULL, NULL, &e), &e);
        setting_go(y, s, NULL, N_NEW, NULL, drafted, drafted ? ref : plain);
        session_free(s);
        engine_close(g);
    }
}

/* Look-ups that know what y will write: prompt and stream are the text. */
struct known {
    struct source_lookup source;
    struct lookup_text *text;
    int32_t ids[MAX_PROMPT + N_NEW];
};

static inline void known_open(struct known *k, const struct setting *y, int32_t least)
{
    static struct run plain, ref;
    struct err e = {0};
    setting_alone(y, &plain, &ref);
    memcpy(k->ids, prompt, (size_t)y->n_prompt * sizeof *prompt);
    memcpy(k->ids + y->n_prompt, plain.id, N_NEW * sizeof *prompt);
    must(lookup_text_open(&k->text, k->ids, y->n_prompt + N_NEW, least, &e), &e);
    k->source = source_lookup(least, k->text);
}

static inline void known_close(struct known *k)
{
    lookup_text_close(k->text);
}

/* The blocks of a stream that has begun n tokens behind the prompt are those of ref. */
static inline void same_proposals_from(const struct run *ref, const struct run *r, int n, int32_t block)
{
    struct run moved = *r;
    for (int i = 0; i < N_NEW; i++) moved.made[i] += n;
    same_proposals(ref, &moved, block);
}

static inline void same_bytes(const char *a, const char *b)
{
    struct err e = {0};
    struct io_map x, y;
    must(io_map_open(&x, a, &e) || io_map_open(&y, b, &e), &e);
    assert_int_equal(x.size, y.size);
    assert_memory_equal(x.data, y.data, x.size);
    io_map_close(&x);
    io_map_close(&y);
}

static inline struct session *setting_restore(const struct setting *y, struct engine *g, const char *path)
{
    struct err e = {0};
    struct state *st;
    struct state_info info;
    struct session *s = setting_stream(y, g);
    must(state_open(&st, path, &info, &e) || state_restore(st, s, &e), &e);
    state_close(st);
    assert_int_equal(info.n_tokens, s->n_past);
    return s;
}

static int left_open; /* streams that ended behind a draft whose rows were not chosen, of any_stop */

/* Stopped at every token from 1 to last, by a limit or a stop id, under random plans. Gone on with where it
 * stands, in another slot from a state, and from the same slot behind a state. A state is that of a prefill
 * of the same tokens. dir: for files; *cut: streams that ended with a cycle running. */
static inline void any_stop(const struct setting *y, int last, uint32_t seed, const char *dir, int *cut)
{
    static struct run plain, ref, r, next;
    static int32_t all[MAX_PROMPT];
    char state[200], other[200], whole[200];
    struct err e = {0};
    snprintf(state, sizeof state, "%s/stopped", dir);
    snprintf(other, sizeof other, "%s/restored", dir);
    snprintf(whole, sizeof whole, "%s/prefilled", dir);
    setting_alone(y, &plain, &ref);
    if (y->source) same_ids(&plain, &ref);
    for (int n = 1; n <= last; n++) {
        struct engine *g = setting_engine(y, y->source);
        const int32_t block = g->o.block;
        bool first = true; /* of its id: a stop then, which nobody knows before it comes */
        for (int i = 0; i < n - 1; i++) first &= plain.id[i] != plain.id[n - 1];
        struct draw draw = setting_draw(y, g, seed * 977u + (uint32_t)n * 131u);
        const struct planner p = draw_planner(&draw);
        for (int how = 0; how < 3; how++) {
            struct session *s = setting_stream(y, g);
            must(session_prefill(s, prompt, y->n_prompt, NULL, NULL, &e), &e);
            const int offers = (int)s->offered - draw.offers;
            draw.pos = 0;
            setting_go(y, s, &p, n, first ? &plain.id[n - 1] : NULL, 0, &r);
            left_open += s->started == s->finished && (int)s->offered > offers + draw.offers;
            assert_memory_equal(r.id, plain.id, (size_t)n * sizeof *r.id);
            if (y->source) same_proposals(&ref, &r, block);
            assert_int_equal(s->n_past, y->n_prompt + n - 1);
            *cut += s->started != s->finished;
            if (how) save(s, state);
            if (how == 1) {
                session_free(s);
                s = setting_restore(y, g, state);
                save(s, other);
                same_bytes(state, other);
                memcpy(all, prompt, (size_t)y->n_prompt * sizeof *all);
                memcpy(all + y->n_prompt, plain.id, (size_t)n * sizeof *all);
                struct session *fresh = setting_stream(y, g);
                must(session_prefill(fresh, all, y->n_prompt + n, NULL, NULL, &e), &e);
                save(fresh, whole);
                same_bytes(state, whole);
                session_free(fresh);
            }
            draw.pos = 0;
            setting_go(y, s, &p, N_NEW - n, NULL, 0, &next);
            assert_memory_equal(next.id, plain.id + n, (size_t)(N_NEW - n) * sizeof *r.id);
            if (y->source) same_proposals_from(&ref, &next, n, block);
            session_free(s);
        }
        engine_close(g);
    }
}

/* ---- turns ---- */

enum { STREAMS = 3 };

struct turn {
    const struct setting *y;
    struct session *s;
    struct run plain, ref, r;
    struct draw draw;
    struct plan plan;
    int running;
    bool begun, open;
};

static inline bool turn_over(const struct turn *t)
{
    return t->begun && t->r.n == N_NEW;
}

/* One verb, or one half of a cycle; more chooses which. */
static inline void turn_step(struct turn *t, struct engine *g, bool more)
{
    struct err e = {0};
    struct session_cycle c;
    int32_t id;
    if (!t->s) {
        t->s = setting_stream(t->y, g);
        must(session_prefill(t->s, prompt, t->y->n_prompt, NULL, NULL, &e), &e);
        return;
    }
    if (!t->begun) {
        must(session_pick(t->s, &t->y->sampler, 1, &id, &e), &e);
        take_tokens(&t->r, &id, 1, &e);
        must(session_cycles_begin(t->s, id, &t->y->sampler, &e), &e);
        draw_plan(&t->draw, &t->plan);
        t->begun = true;
        return;
    }
    if (t->open && !t->running) {
        draw_rows(&t->draw, t->s, N_NEW - t->r.n);
        t->open = false;
        t->running++;
        return;
    }
    if (!t->open && t->r.n + t->running < N_NEW && (!t->running || more) &&
        t->running <= session_cycles_ahead(t->s, &t->plan)) {
        must(session_cycle_start(t->s, &t->plan, N_NEW - t->r.n, &e), &e);
        t->open = !t->plan.rows;
        t->running += !t->open;
        draw_plan(&t->draw, &t->plan);
        return;
    }
    must(session_cycle_finish(t->s, &c, &e), &e);
    t->running--;
    if (c.block) take_proposals(&t->r, c.block + 1, g->o.block - 1, &e);
    const int32_t kept = c.kept < N_NEW - t->r.n ? c.kept : N_NEW - t->r.n;
    take_tokens(&t->r, c.picks, kept, &e);
    if (t->r.n == N_NEW) must(session_cycles_end(t->s, c.pos + kept, &e), &e);
}

/* Streams of y, which differ in prompt and sampler alone, take turns in any order over one engine, round
 * after round in the slots of those before. */
static inline void any_turns(const struct setting *y, int n, uint32_t seed, int rounds)
{
    static struct turn t[STREAMS];
    struct engine *g = setting_engine(y, y->source);
    uint32_t x = seed;
    for (int round = 0; round < rounds; round++) {
        int left = n;
        for (int i = 0; i < n; i++) {
            t[i] = (struct turn){.y = &y[i], .draw = setting_draw(y, g, draw_next(&x))};
            setting_alone(&y[i], &t[i].plain, &t[i].ref);
        }
        while (left) {
            struct turn *now = &t[draw_next(&x) % (uint32_t)n];
            if (turn_over(now)) continue;
            turn_step(now, g, draw_next(&x) % 2);
            left -= turn_over(now);
        }
        for (int i = 0; i < n; i++) {
            same_ids(&t[i].plain, &t[i].r);
            if (y->source) same_proposals(&t[i].ref, &t[i].r, g->o.block);
        }
        for (int i = 0; i < n; i++) session_free(t[(i + round) % n].s);
        assert_int_equal(g->slots, n);
    }
    engine_close(g);
}

/* A stream in the slot of a longer one is as one in a slot of its own, and records nothing anew. */
static inline void slot_again(const struct setting *y, const struct setting *longer, bool recorded)
{
    static struct run plain, ref, r;
    struct err e = {0};
    struct engine *g = setting_engine(y, y->source);
    const struct kn_kv *kv = NULL;
    int made = 0;
    setting_alone(y, &plain, &ref);
    for (int i = 0; i < 3; i++) {
        const struct setting *now = i == 1 ? longer : y;
        struct session *s = setting_stream(now, g);
        if (i) assert_ptr_equal(kv, s->kv);
        kv = s->kv;
        must(session_prefill(s, prompt, now->n_prompt, NULL, NULL, &e), &e);
        setting_go(now, s, NULL, N_NEW, NULL, 0, &r);
        if (i != 1) same_ids(&plain, &r);
        if (i != 1 && y->source) same_proposals(&ref, &r, g->o.block);
        if (recorded && i) assert_int_equal(recorder.recorded, made);
        if (recorded) made = recorder.recorded;
        session_free(s);
    }
    assert_int_equal(g->slots, 1);
    assert_true(!recorded || made > 0);
    engine_close(g);
}

/* ---- times ---- */

/* Every part of a cycle, measured. */
static inline void take_all_times(const struct setting *y, struct session *s, bool recorded)
{
    struct err e = {0};
    const int32_t rows[] = {2, 1, s->o.block, 3};
    struct session_times t;
    const struct session_timing o = {.sampler = y->sampler,
                                     .rows = rows,
                                     .n = y->source ? 4 : 0,
                                     .reach = y->n_prompt + N_NEW + SESSION_MAX_ROWS,
                                     .budget_s = 30};
    const int32_t n_past = s->n_past;
    must(session_time(s, &o, &t, &e), &e);
    assert_int_equal(s->n_past, n_past);
    assert_true(t.plain_s > 0 && t.plain_s < 30 && t.spent_s >= t.plain_s && !t.missing);
    assert_true((t.draft_s[0] > 0) == (y->source != NULL) && (t.wait_s > 0) == (y->source && recorded));
    for (int32_t r = 0; r <= SESSION_MAX_ROWS; r++) {
        bool asked = false;
        for (int32_t i = 0; i < o.n; i++) asked |= rows[i] == r;
        assert_true((t.verify_s[r] > 0) == asked);
    }
    assert_true(!recorded || s->plays[SESSION_PLAIN][1].recording);
}

/* Plain rows, and rows of 1 to 3 chosen behind a draft. */
static inline void times_plan(void *ctx, struct plan *p)
{
    struct draw *d = ctx;
    *p = (struct plan){.draft = d->most > 1 && draw_next(&d->x) % 2, .rows = 1};
    if (p->draft) p->rows = 0;
}

static inline void times_choose(void *ctx, const struct plan_offer *o, struct plan_choice *c)
{
    struct draw *d = ctx;
    *c = (struct plan_choice){.rows = 1 + (int32_t)(draw_next(&d->x) % 3)};
    if (c->rows > 1 + o->n_draft) c->rows = 1 + o->n_draft;
}

/* Measured before its prompt, behind it, and behind half of its tokens, a stream is the one that was not; and
 * once measured it records nothing more. */
static inline void any_times(const struct setting *y, uint32_t seed, bool recorded, const char *dir)
{
    static struct run plain, ref, r, next;
    char state[200], other[200];
    struct err e = {0};
    const int half = N_NEW / 2;
    struct draw draw = {.x = seed};
    const struct planner p = {.next = times_plan, .choose = times_choose, .ctx = &draw};
    snprintf(state, sizeof state, "%s/timed", dir);
    snprintf(other, sizeof other, "%s/untimed", dir);
    setting_alone(y, &plain, &ref);
    struct engine *g = setting_engine(y, y->source);
    struct session *s = setting_stream(y, g), *untimed = setting_stream(y, g);
    draw.most = y->source ? g->o.block : 1;
    take_all_times(y, s, recorded);
    const int made = recorder.recorded;
    must(session_prefill(s, prompt, y->n_prompt, NULL, NULL, &e), &e);
    must(session_prefill(untimed, prompt, y->n_prompt, NULL, NULL, &e), &e);
    take_all_times(y, s, recorded);
    assert_int_equal(recorder.recorded, made);
    save(s, state);
    save(untimed, other);
    same_bytes(state, other);
    session_free(untimed);
    setting_go(y, s, &p, half, NULL, 0, &r);
    assert_int_equal(recorder.recorded, made);
    assert_memory_equal(r.id, plain.id, (size_t)half * sizeof *r.id);
    take_all_times(y, s, recorded);
    setting_go(y, s, &p, N_NEW - half, NULL, 0, &next);
    assert_memory_equal(next.id, plain.id + half, (size_t)(N_NEW - half) * sizeof *r.id);
    if (y->source) {
        same_proposals(&ref, &r, g->o.block);
        same_proposals_from(&ref, &next, half, g->o.block);
    }
    session_free(s);
    engine_close(g);
}

#endif
