/* test_planner_two.c - plans over two drafters in the made-up world of plan_world.h: who drafts, what it
 * costs to find out, and that the account is one.
 *
 * Times of Qwen3.5-27B on one H200: a drafter of blocks of 16, and its own MTP block of 4 rows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "plan_world.h"

enum { TOKENS = 1024, SEEDS = 32 };

static const struct machine first = {"27B",
                                     4.68e-3,
                                     0.905e-3,
                                     7e-6,
                                     {2, 3, 4, 6, 8, 12, 16},
                                     7,
                                     {4.83e-3, 4.9e-3, 4.95e-3, 5.02e-3, 5.1e-3, 5.5e-3, 5.85e-3},
                                     16};
static struct machine second;

static struct world w, beside;
static struct planner_auto made;

/* Of both drafters, or of one of them alone. */
enum { BOTH, FIRST, SECOND };

static double run(int who, int32_t tokens, struct world_run *r)
{
    struct plan_times t;
    struct err e = {0};
    struct world *at = who == SECOND ? &beside : &w;
    struct planner_auto_options o = {.times = &t,
                                     .counts = first.counts,
                                     .n_counts = first.n_counts,
                                     .block = at->m->block,
                                     .beside = who == BOTH ? second.block : 0,
                                     .drafter = true};
    world_times(at->m, &t);
    t.draft_s[1][0] = second.draft_s;
    w.beside = who == BOTH ? &beside : NULL;
    if (planner_auto_init(&made, &o, &e)) fail_msg("%s", e.msg);
    const struct planner p = planner_auto(&made);
    world_run(at, &p, tokens, r, NULL);
    return r->s;
}

static void begin(struct drafter a, struct drafter b, struct drafter a2, struct drafter b2, int32_t until,
                  uint64_t seed)
{
    memset(&w, 0, offsetof(struct world, easy));
    memset(&beside, 0, offsetof(struct world, easy));
    second = first, second.block = 4, second.draft_s = 1.222e-3;
    w.m = &first, w.d[0] = a, w.d[1] = a2, w.until[0] = until;
    beside.m = &second, beside.d[0] = b, beside.d[1] = b2, beside.until[0] = until;
    w.ahead = beside.ahead = 2, w.jitter = beside.jitter = 0.01;
    world_begin(&w, seed);
    world_begin(&beside, seed);
}

#define GOOD                                                                                                 \
    {                                                                                                        \
        .mean = 1.7, .fall = 0.08, .spread = 1, .trust = 1                                                   \
    }
#define POOR                                                                                                 \
    {                                                                                                        \
        .mean = 0, .fall = 0.1, .spread = 1, .trust = 1                                                      \
    }
#define NEVER                                                                                                \
    {                                                                                                        \
        .mean = 2.5, .spread = 1, .trust = 1, .claim = 1, .never = true                                      \
    }
#define UNSURE                                                                                               \
    {                                                                                                        \
        .mean = 2.2, .fall = 0.08, .spread = 1, .trust = 0, .claim = -1                                      \
    }

/* Bars are of the means over the seeds, each a little below what was seen. */
static void test_two(void **state)
{
    static const struct {
        const char *name;
        struct drafter a, b, a2, b2;
        int32_t until;
        double of_best, of_plain; /* speed over the better of both alone, and over plain steps, at least */
    } t[] = {
        {"good, never", GOOD, NEVER, GOOD, NEVER, 0, 0.97, 1},
        {"never, good", NEVER, GOOD, NEVER, GOOD, 0, 0.93, 1},
        {"good, good", GOOD, GOOD, GOOD, GOOD, 0, 0.97, 1},
        {"good, poor", GOOD, POOR, GOOD, POOR, 0, 0.97, 1},
        {"poor, good", POOR, GOOD, POOR, GOOD, 0, 0.96, 1},
        {"unsure, poor", UNSURE, POOR, UNSURE, POOR, 0, 0.97, 1},
        {"both never", NEVER, NEVER, NEVER, NEVER, 0, 0.97, 0.975},
        {"good then never, and the other way", GOOD, NEVER, NEVER, GOOD, 612, 1.1, 1},
        {"never then good, and the other way", NEVER, GOOD, GOOD, NEVER, 612, 1.1, 1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        double best = 0, plain = 0;
        int64_t by[2] = {0, 0};
        for (uint64_t seed = 0; seed < SEEDS; seed++) {
            struct world_run both, one, two;
            begin(t[i].a, t[i].b, t[i].a2, t[i].b2, t[i].until, seed);
            const double s = run(BOTH, TOKENS, &both), a = run(FIRST, TOKENS, &one),
                         b = run(SECOND, TOKENS, &two);
            best += fmin(a, b) / s, plain += first.plain_s * TOKENS / s;
            by[0] += both.by[0], by[1] += both.by[1];
        }
        best /= SEEDS, plain /= SEEDS;
        print_message("%-36s of the better %.3f, of plain %.3f; drafts %lld, %lld\n", t[i].name, best, plain,
                      (long long)by[0], (long long)by[1]);
        if (best < t[i].of_best || plain < t[i].of_plain)
            fail_msg("%s: expected %.3f and %.3f at least", t[i].name, t[i].of_best, t[i].of_plain);
    }
}

/* Labels are of the drafter that proposed alone. */
static void test_apart(void **state)
{
    struct world_run r;
    int64_t labels[2] = {0, 0}, equal[2] = {0, 0};
    (void)state;
    begin((struct drafter)GOOD, (struct drafter)NEVER, (struct drafter)GOOD, (struct drafter)NEVER, 0, 5);
    run(BOTH, TOKENS, &r);
    for (int k = 0; k < 2; k++)
        for (int j = 0; j < CALIBRATION_SLOTS; j++) {
            labels[k] += made.calibration.draft_gauge[k][j].labels;
            equal[k] += made.calibration.draft_gauge[k][j].equal;
        }
    assert_true(labels[0] > 100 && equal[0] > labels[0] / 2);
    assert_true(labels[1] > 4 && equal[1] == 0);
    assert_int_equal(made.stats.by[0], r.by[0]);
    assert_int_equal(made.stats.by[1], r.by[1]);
}

static void test_refused(void **state)
{
    struct plan_times t;
    struct err e = {0};
    (void)state;
    world_times(&first, &t);
    struct planner_auto_options o = {.times = &t,
                                     .counts = first.counts,
                                     .n_counts = first.n_counts,
                                     .block = 16,
                                     .beside = 4,
                                     .drafter = true};
    assert_int_equal(planner_auto_init(&made, &o, &e), -1);
    assert_non_null(strstr(e.msg, "no time of a draft of the second drafter"));
    e = (struct err){0}, o.beside = 65;
    assert_int_equal(planner_auto_init(&made, &o, &e), -1);
    assert_non_null(strstr(e.msg, "rows of a block of plans (expected 2 to 64, got 65)"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two),
        cmocka_unit_test(test_apart),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
