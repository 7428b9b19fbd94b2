/* plans.h - plans drawn at random, what must not depend on them, and a source that follows a script.
 *
 * Of test_plans.c, test_lookups.c and test_recurrent.c. The reference of proposals is a run that drafts in
 * every cycle and keeps one row: it has a block for every anchor. */
#ifndef TEST_PLANS_H
#define TEST_PLANS_H

#include "../streams.h"

#include "../../../common/run/cycle.h"
#include "../../../common/run/engine.h"
#include "../../../common/run/source.h"
#include "../../../common/run/tree.h"

#include <math.h>

/* ---- plans ---- */

struct draw {
    uint32_t x;
    int32_t most;  /* rows of a block; 1: no plan drafts */
    int32_t looks; /* rows of look-ups beside it; 0: there are none */
    int32_t trees; /* proposals of a tree at most; 0: no plan has one */
    int treed;     /* trees that were chosen */
    struct plan_node nodes[SESSION_MAX_ROWS];
    int looked;               /* their chains that were chosen */
    int drafted, opened, all; /* plans made */
    int chosen, seen, offers; /* open plans whose rows were chosen; cycles that were finished, with a draft */
    const struct run *of;     /* that drafted before every token: labels are held against it; NULL: none is */
    int32_t prompt;           /* its prompt's length */
    int next_right, next_wrong; /* labels of the proposal behind the last row that stayed */
    int32_t pos;                /* of the cycle that is finished next; 0: not known */
    /* Of more than one source: runs that each drafted before every token, the run that is checked against
     * them, and how often each proposed. */
    const struct run *refs[PLAN_SOURCES], *now;
    int32_t sources, by[PLAN_SOURCES];
};

static inline uint32_t draw_next(uint32_t *x)
{
    *x = *x * 1664525u + 1013904223u;
    return *x >> 16;
}

/* Runs of both: a plan drafts or not as the one before it, mostly. Half of those that do leave the rows open.
 */
static inline void draw_plan(void *ctx, struct plan *p)
{
    struct draw *d = ctx;
    const bool flip = draw_next(&d->x) % 3 == 0, before = d->x >> 31;
    *p = (struct plan){.draft = d->most > 1 && (flip ? draw_next(&d->x) % 2 : before), .rows = 1};
    if (p->draft && d->sources > 1) p->draft += (int32_t)(draw_next(&d->x) % (uint32_t)d->sources);
    if (p->draft) p->rows = 1 + (int32_t)(draw_next(&d->x) % (uint32_t)d->most);
    if ((p->draft || d->looks) && d->x & 0x400000) p->rows = 0, d->opened++;
    d->drafted += p->draft > 0;
    d->all++;
}

/* A tree: each node behind one of those before it, the next of its children. */
static inline int32_t draw_tree(struct draw *d, const struct plan_offer *o)
{
    int32_t depth[SESSION_MAX_ROWS] = {0}, children[SESSION_MAX_ROWS] = {0}, n = 1;
    const int32_t most = 1 + (int32_t)(draw_next(&d->x) % (uint32_t)(d->trees + 1));
    const uint32_t deep = draw_next(&d->x) % 4;
    d->nodes[0] = (struct plan_node){-1, 0};
    for (int tries = 0; n < most && tries < 500; tries++) {
        const int32_t p = draw_next(&d->x) % 4 < deep ? n - 1 : (int32_t)(draw_next(&d->x) % (uint32_t)n);
        if (depth[p] >= o->n_draft || children[p] >= o->n_top) continue;
        if (!(o->top[depth[p] * o->n_top + children[p]] > -INFINITY)) continue;
        d->nodes[n] = (struct plan_node){(int8_t)p, (int8_t)children[p]++};
        depth[n] = depth[p] + 1;
        n++;
    }
    return n;
}

static inline void draw_choose(void *ctx, const struct plan_offer *o, struct plan_choice *c)
{
    struct draw *d = ctx;
    const bool look = o->n_look && (!o->n_draft || draw_next(&d->x) % 2);
    const int32_t n = look ? o->n_look : o->n_draft;
    assert_true(o->pos > 0 && o->n_draft < d->most && (!o->n_draft || o->logp));
    assert_true(o->n_look < (d->looks ? d->looks : d->most));
    assert_true(o->agree <= o->n_draft && o->agree <= o->n_look);
    assert_true(!d->pos || o->pos == d->pos);
    *c = (struct plan_choice){.rows = 1 + (int32_t)(draw_next(&d->x) % (uint32_t)(n + 1)), .look = look};
    d->chosen++;
    if (!look && o->n_draft && d->trees && draw_next(&d->x) % 4) {
        assert_true(o->top && o->n_top > 1);
        c->rows = draw_tree(d, o), c->nodes = d->nodes;
        d->treed += !tree_is_chain(c->nodes, c->rows);
    }
    d->looked += look && c->rows > 1;
}

/* The newest block is the one that its source drafts at that anchor alone. */
static inline void draw_block(struct draw *d, int32_t source)
{
    const int32_t n = d->most - 1, i = d->now->n_trace / n - 1, at = d->now->made[i] - 1;
    const struct run *ref = d->refs[source - 1];
    assert_true(i >= 0 && at >= 0 && at < ref->n_trace / n && ref->made[at] == d->now->made[i]);
    assert_memory_equal(d->now->trace + i * n, ref->trace + at * n, (size_t)n * sizeof *ref->trace);
    d->by[source - 1]++;
}

/* What a planner is told of a cycle goes together. */
static inline void draw_seen(void *ctx, const struct plan_result *r)
{
    struct draw *d = ctx;
    const int32_t rows = r->choice.rows, n = r->choice.look ? r->offer.n_look : r->offer.n_draft,
                  labels = n < r->kept ? n : r->kept;
    assert_true(!d->pos || r->offer.pos == d->pos);
    assert_true(r->kept >= 1 && r->kept <= rows && (r->drafted || r->choice.look || rows == 1));
    assert_true(rows <= (r->choice.look && d->looks ? d->looks
                         : r->choice.nodes          ? d->trees + 1
                                                    : d->most) &&
                (!r->choice.look || rows > 1));
    assert_int_equal(r->labelled, labels);
    assert_true(!r->choice.nodes == !r->ranks && r->equal <= labels);
    if (!r->ranks) assert_in_range(r->equal, r->kept - 1 < labels ? r->kept - 1 : labels, labels);
    if (d->of && r->offer.n_draft && !r->choice.look) {
        const int32_t at = r->offer.pos - d->prompt, *block = d->of->trace + at * (d->most - 1);
        int32_t equal = 0;
        while (equal < labels && at + 1 + equal < d->of->n && block[equal] == d->of->id[at + 1 + equal])
            equal++;
        if (at + 1 + equal < d->of->n) assert_int_equal(r->equal, equal);
        d->next_right += !r->ranks && r->equal == r->kept, d->next_wrong += !r->ranks && r->equal < labels;
    }
    assert_true(r->draft_s >= 0 && r->wait_s >= 0 && r->verify_s > 0 && r->commit_s >= 0 && r->idle_s >= 0);
    assert_true((r->offer.n_draft > 0) == (r->draft_s > 0));
    assert_true((r->offer.source > 0) == r->drafted && r->offer.source <= PLAN_SOURCES);
    if (d->now && r->offer.n_draft) draw_block(d, r->offer.source);
    d->pos = r->offer.pos + r->kept;
    d->offers += r->offer.logp != NULL;
    d->seen++;
}

static inline struct planner draw_planner(struct draw *d)
{
    return (struct planner){draw_plan, draw_choose, draw_seen, d};
}

/* The rows of a cycle that is open, as drawn. */
static inline void draw_rows(struct draw *d, struct session *s, int64_t most)
{
    struct err e = {0};
    struct plan_offer o;
    struct plan_choice c;
    must(session_cycle_offer(s, &o, NULL, &e), &e);
    draw_choose(d, &o, &c);
    must(session_cycle_verify(s, &c, most, &e), &e);
}

/* Every block that r drafted is the one that ref, of one row a cycle, drafted at the same anchor. */
static inline void same_proposals(const struct run *ref, const struct run *r, int32_t block)
{
    const int n = block - 1;
    const size_t bytes = (size_t)n * sizeof *r->trace;
    for (int i = 0; i < r->n_trace / n; i++) {
        const int at = r->made[i] - 1;
        assert_true(at >= 0 && at < ref->n_trace / n && ref->made[at] == r->made[i]);
        assert_memory_equal(r->trace + i * n, ref->trace + at * n, bytes);
    }
}

/* ---- a source without a model ---- */

/* Proposes what was written before, with mistakes, and at some anchors nothing. */
struct script {
    struct source source; /* first */
    const int32_t *will;  /* [n_will] the stream behind the prompt */
    int32_t n_prompt, n_will;
    uint32_t seed;
    int32_t wrong; /* one in so many of what it proposes is; 0: in 5 */
    int asked, silent, proposed;
    int32_t next; /* the position whose features become context next */
    bool watch;   /* nothing is recorded: every context is seen */
};

static inline int script_look(struct session *s, struct session_source *by, struct source_look *l,
                              struct err *e)
{
    struct script *y = (struct script *)by->of;
    const int32_t n = l->n;
    uint32_t x = y->seed + (uint32_t)n * 977u;
    (void)e;
    if (!l->most) return 0; /* the prompt */
    assert_true(l->most >= 1 && l->same <= n);
    assert_int_equal(n, s->n_past + 1);
    assert_int_equal(l->history[n - 1], y->will[n - 1 - y->n_prompt]); /* the anchor */
    y->asked++;
    l->found = draw_next(&x) % 4 ? (int32_t)(draw_next(&x) % (uint32_t)(l->most + 1)) : 0;
    l->match = 1 + l->found;
    for (int32_t i = 0; i < l->found; i++) {
        const int32_t at = n + i - y->n_prompt;
        l->ids[i] = at < y->n_will ? y->will[at] : 0;
        if (draw_next(&x) % (uint32_t)(y->wrong ? y->wrong : 5) == 0) l->ids[i] = 0;
    }
    y->silent += l->found == 0;
    y->proposed += l->found;
    return 0;
}

/* Features come in order, a row a position, and none twice. */
static inline int script_context(struct session *s, struct session_source *by, const struct session_rows *r,
                                 struct err *e)
{
    struct script *y = (struct script *)by->of;
    (void)s, (void)e;
    if (!y->watch) return 0;
    assert_int_equal(r->first_pos, y->next);
    assert_int_equal(r->pos[0], y->next);
    assert_non_null(r->features);
    assert_true(r->n <= SESSION_MAX_ROWS || r->first_pos < y->n_prompt);
    y->next += r->n;
    return 0;
}

static const struct source_ops script_ops = {
    .name = "script", .look = script_look, .context = script_context};
static const struct source_ops beside_ops = {.name = "script", .look = script_look}; /* another source */

#endif
