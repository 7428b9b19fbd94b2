/* plan_machines.h - machines and drafters for made-up worlds (plan_world.h), and runs in these: for
 * test_planner_auto.c, and for the table of docs/speed/plans.md (test/bench/bench_plans.c). */
#ifndef TEST_PLAN_MACHINES_H
#define TEST_PLAN_MACHINES_H

#include "plan_world.h"

#define COUNTS {2, 3, 4, 6, 8, 12, 16}, 7
/* One H200 with three targets, and two cores with a small one, as they were timed (docs/speed/now.md); row
 * counts between are on a line. A draft is with the context of the rows that stayed. 35B-A3B's draft and rows
 * are those with which fixed widths are as fast as they were measured (test_stated). */
static const struct machine machines[] = {
    {"8B", 1.4e-3, .59e-3, 6e-6, COUNTS, {1.78e-3, 1.81e-3, 1.83e-3, 1.88e-3, 1.93e-3, 2.03e-3, 2.13e-3}, 16},
    {"27B",
     4.67e-3,
     .93e-3,
     7e-6,
     COUNTS,
     {4.83e-3, 4.87e-3, 4.91e-3, 5.02e-3, 5.11e-3, 5.5e-3, 5.83e-3},
     16},
    {"35B-A3B",
     1.131e-3,
     .6e-3,
     7e-6,
     COUNTS,
     {1.87e-3, 2.22e-3, 2.5e-3, 2.95e-3, 3.05e-3, 3.9e-3, 4.27e-3},
     16},
    {"CPU", 15e-3, 12e-3, 1e-5, COUNTS, {16e-3, 18e-3, 20e-3, 23e-3, 26e-3, 31e-3, 35e-3}, 16},
};
enum { MACHINES = 4, TOKENS = 512 };

/* Drafters that do not pay. */
static const struct {
    const char *name;
    struct drafter d;
} wrong[] = {
    {"never, unsure", {.mean = -3, .spread = 1, .trust = 1, .claim = -2, .never = true}},
    {"never, half sure", {.mean = 0.5, .spread = 1.5, .trust = 1, .never = true}},
    {"never, sure", {.mean = 2.5, .spread = 1, .trust = 1, .claim = 1, .never = true}},
    {"never, now and then sure", {.mean = -2, .spread = 4, .trust = 1, .never = true}},
    {"one in five", {.mean = -1.4, .spread = 0.5, .trust = 0, .claim = 3, .noise = 1}},
};

/* Drafters that do. */
static const struct {
    const char *name;
    struct drafter d;
    double bar; /* of the best fixed width; less where it says why */
} right[] = {
    {".95, calibrated", {.mean = 3.5, .fall = .03, .spread = 1.5, .trust = 1}, 0.97},
    {".85, calibrated", {.mean = 2.2, .fall = .05, .spread = 1.5, .trust = 1}, 0.97},
    {".75, calibrated", {.mean = 1.3, .fall = .1, .spread = 1.5, .trust = 1}, 0.97},
    {".6, calibrated", {.mean = .6, .fall = .15, .spread = 1.5, .trust = 1}, 0.97},
    {".4, calibrated", {.mean = -.5, .fall = .15, .spread = 1.5, .trust = 1}, 0.97},
    {".85, too sure", {.mean = 2.2, .fall = .05, .spread = 1.5, .trust = 1.5, .claim = 1, .noise = .3}, 0.97},
    {".75, too sure",
     {.mean = 1.3, .fall = .1, .spread = 1.5, .trust = 1.5, .claim = 1.5, .noise = .3},
     0.97},
    {".85, unsure", {.mean = 2.2, .fall = .05, .spread = 1.5, .trust = .6, .claim = -1.5, .noise = .3}, 0.97},
    {".75, unsure", {.mean = 1.3, .fall = .1, .spread = 1.5, .trust = .6, .claim = -1.5, .noise = .3}, 0.97},
    /* What the drafter says means nothing, and stretches of text are hard: leaving and coming back cost
     * (0.912 with the account of seven tokens). */
    {".85, says nothing", {.mean = 2.2, .fall = .05, .spread = 1.5, .noise = 1}, 0.92},
};

static inline int machine_planner(struct planner_auto *a, const struct machine *m, bool drafter, bool look,
                                  bool fixed, struct err *e)
{
    struct plan_times t;
    const struct planner_auto_options o = {.times = &t,
                                           .fixed = fixed,
                                           .counts = m->counts,
                                           .n_counts = m->n_counts,
                                           .block = m->block,
                                           .drafter = drafter,
                                           .look = look};
    world_times(m, &t);
    return planner_auto_init(a, &o, e);
}

/* Plans are asked for two cycles ahead, stamps have 1 % of noise. */
static inline void machine_world(struct world *w, const struct machine *m, struct drafter d, uint64_t seed)
{
    memset(w, 0, offsetof(struct world, easy));
    w->m = m, w->d[0] = d, w->ahead = 2, w->jitter = 0.01;
    w->look = d.look > 0;
    world_begin(w, seed);
}

static inline void machine_same_plan(void *ctx, struct plan *p)
{
    *p = *(const struct plan *)ctx;
}
/* Seconds of so many tokens where every cycle drafts and verifies `width` rows. */
static inline double machine_fixed_s(struct world *w, int32_t width, int32_t tokens)
{
    struct plan plan = {.draft = true, .rows = width};
    const struct planner p = {.next = machine_same_plan, .ctx = &plan};
    struct world_run r;
    world_run(w, &p, tokens, &r, NULL);
    return r.s;
}

#endif
