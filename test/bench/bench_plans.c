/* bench_plans.c - the table of docs/speed/plans.md: what plans of --width auto come to in the made-up worlds
 * of test/unit/run/plan_machines.h, over seeds that no test and no tuning has.
 *
 * usage: bench_plans [FIRST [COUNT]]     seeds FIRST to FIRST + COUNT - 1; default 20000, 240
 * Seconds are summed over the streams, as dflash-bench has them: a stream that stays plain counts as long as
 * it takes. The best width is that of the smallest sum. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "../unit/run/plan_machines.h"

static struct world w;
static struct planner_auto made;
static uint64_t first = 20000, count = 240;

/* A row: a drafter, perhaps another one from the middle on. */
struct row {
    const char *name;
    struct drafter d, then;
    bool changes;
};

static void make_world(const struct machine *m, const struct row *r, uint64_t seed)
{
    machine_world(&w, m, r->d, seed);
    if (r->changes) w.d[1] = r->then, w.until[0] = WORLD_FIRST + TOKENS / 2;
}

static double planned_s(const struct machine *m)
{
    struct world_run run;
    struct err e = {0};
    if (machine_planner(&made, m, true, false, false, &e)) {
        fprintf(stderr, "bench_plans: %s\n", e.msg);
        exit(1);
    }
    const struct planner p = planner_auto(&made);
    world_run(&w, &p, TOKENS, &run, NULL);
    return run.s;
}

static void of_plain(const struct row *r)
{
    printf("| %s |", r->name);
    for (int i = 0; i < MACHINES; i++) {
        double own = 0, slowest = 0;
        for (uint64_t s = first; s < first + count; s++) {
            make_world(&machines[i], r, s);
            const double one = planned_s(&machines[i]);
            own += one, slowest = one > slowest ? one : slowest;
        }
        printf(" %.3f (%.3f) |", (double)count * TOKENS * machines[i].plain_s / own,
               TOKENS * machines[i].plain_s / slowest);
        fflush(stdout);
    }
    printf("\n");
}

static void of_best(const struct row *r)
{
    printf("| %s |", r->name);
    for (int i = 0; i < MACHINES; i++) {
        const struct machine *m = &machines[i];
        double own = 0, sums[12] = {0};
        int at = 0;
        for (uint64_t s = first; s < first + count; s++) {
            make_world(m, r, s);
            own += planned_s(m);
            for (int n = 0; n < m->n_counts; n++) sums[n] += machine_fixed_s(&w, m->counts[n], TOKENS);
        }
        for (int n = 1; n < m->n_counts; n++)
            if (sums[n] < sums[at]) at = n;
        if (sums[at] < (double)count * TOKENS * m->plain_s)
            printf(" %.3f (%d) |", sums[at] / own, m->counts[at]);
        else
            printf(" does not pay |");
        fflush(stdout);
    }
    printf("\n");
}

static void heads(const char *what)
{
    printf("| %s |", what);
    for (int i = 0; i < MACHINES; i++) printf(" %s |", machines[i].name);
    printf("\n| --- |");
    for (int i = 0; i < MACHINES; i++) printf(" --- |");
    printf("\n");
}

int main(int argc, char **argv)
{
    /* A stated rate is a drafter that is right with one chance, and says so. */
    static const struct drafter none = {.mean = 0}, good = {.mean = 1.735, .trust = 1},
                                bad = {.mean = 1.735, .trust = 1, .never = true};
    static const char *const names[] = {"stated .5",  "stated .7", "stated .75", "stated .8",
                                        "stated .85", "stated .9", "stated .95"};
    static const double rates[] = {.5, .7, .75, .8, .85, .9, .95};
    const struct row plain[] = {{"never right, sure", wrong[2].d, none, false},
                                {"never right, unsure", wrong[0].d, none, false},
                                {"never right, then stated .85", bad, good, true},
                                {"stated .85, then never right", good, bad, true}},
                     best[] = {{".85, calibrated", right[1].d, none, false},
                               {".85, says nothing", right[9].d, none, false}};
    if (argc > 1) first = strtoull(argv[1], NULL, 10);
    if (argc > 2) count = strtoull(argv[2], NULL, 10);
    if (argc > 3 || !count) {
        fprintf(stderr, "usage: bench_plans [FIRST [COUNT]]\n");
        return 2;
    }
    heads("of plain (the slowest stream)");
    for (size_t k = 0; k < sizeof plain / sizeof *plain; k++) of_plain(&plain[k]);
    printf("\n");
    heads("of the best width (rows)");
    for (size_t k = 0; k < sizeof rates / sizeof *rates; k++) {
        const struct drafter d = {.mean = log(rates[k] / (1 - rates[k])), .trust = 1};
        of_best(&(struct row){names[k], d, none, false});
    }
    for (size_t k = 0; k < sizeof best / sizeof *best; k++) of_best(&best[k]);
    return 0;
}
