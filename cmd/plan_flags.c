/* plan_flags.c - see plan_flags.h. */
#include "plan_flags.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "../common/base/json.h"
#include "../common/run/source.h"
#include "../common/run/times.h"
#include "../kernels/kernels.h"

#define TIMED_S 0.3 /* measuring at load takes at most */

static void check_tree(struct plan_flags *f, const struct cli *c)
{
    f->tree_fixed = f->tree && strcmp(f->tree, "auto") != 0;
    f->seeded = f->tree_seed && !strcmp(f->tree_seed, "chain");
    if (f->tree_seed && !f->seeded && strcmp(f->tree_seed, "none") != 0)
        cli_usage_error(c, "--tree-seed: expected chain or none, got '%s'", f->tree_seed);
    if (f->tree_seed && !f->tree) cli_usage_error(c, "--tree-seed needs --tree");
    if (!f->tree) return;
    f->tree_most = SESSION_MAX_ROWS - 1;
    if (f->tree_fixed) {
        char *end;
        errno = 0;
        const long v = strtol(f->tree, &end, 10);
        if (f->tree[strspn(f->tree, "0123456789")] || !*f->tree || errno || *end)
            cli_usage_error(c, "--tree: not a number of proposals (expected auto or N, got '%s')", f->tree);
        if (v < 1 || v >= SESSION_MAX_ROWS)
            cli_usage_error(c, "--tree: out of range (expected auto or 1 to %d proposals, got %s)",
                            SESSION_MAX_ROWS - 1, f->tree);
        f->tree_most = (int32_t)v;
    }
    if (f->width && (f->tree_fixed || strcmp(f->width, "auto") != 0))
        cli_usage_error(c, "--width %s and --tree %s: both say the rows (expected one of them%s)", f->width,
                        f->tree, f->tree_fixed ? "" : ", or --width auto");
}

void plan_flags_check(struct plan_flags *f, const struct cli *c)
{
    const bool fixed = f->width && strcmp(f->width, "auto");
    if (fixed) {
        char *end;
        errno = 0;
        const long v = strtol(f->width, &end, 10);
        if (f->width[strspn(f->width, "0123456789")] || !*f->width || errno || *end)
            cli_usage_error(c, "--width: not a number of rows (expected auto or N, got '%s')", f->width);
        if (v < 1 || v > SESSION_MAX_ROWS)
            cli_usage_error(c, "--width: out of range (expected auto or 1 to %d, got %s)", SESSION_MAX_ROWS,
                            f->width);
        f->rows = (int32_t)v;
    }
    check_tree(f, c);
    const char *by = fixed ? "width" : "tree";
    if ((fixed || f->tree_fixed) && f->times_path)
        cli_usage_error(c, "--plan-times does nothing with --%s N", by);
    if ((fixed || f->tree_fixed) && f->calibration_path)
        cli_usage_error(c, "--calibration does nothing with --%s N", by);
}

void plan_flags_check_mtp(const struct plan_flags *f, const struct cli *c, bool mtp)
{
    if (mtp && (f->rows || f->tree_fixed))
        cli_usage_error(c, "--mtp and --%s N: plans choose who proposes (expected --width auto)",
                        f->rows ? "width" : "tree");
    if (!mtp && f->mtp_calibration_path) cli_usage_error(c, "--mtp-calibration needs --mtp");
}

int plan_flags_inputs(const struct plan_flags *f, const char **list)
{
    const char *const all[PLAN_INPUTS] = {f->times_path, f->calibration_path, f->mtp_calibration_path};
    int n = 0;
    for (int i = 0; i < PLAN_INPUTS; i++)
        if (all[i]) list[n++] = all[i];
    return n;
}

int plan_flags_read(struct plan_flags *f, struct err *e)
{
    calibration_init(&f->calibration);
    if (f->calibration_path && calibration_read(&f->calibration, f->calibration_path, e)) return -1;
    if (f->mtp_calibration_path && calibration_read_source(&f->calibration, 2, f->mtp_calibration_path, e))
        return -1;
    if (!f->times_path) return 0;
    f->timed = true;
    return plan_times_read(&f->times, f->times_path, e);
}

/* What did not fit the time is guessed until the first cycle's stamps correct it: a draft by the bytes that
 * it reads, rows as they cost where arithmetic is dear (16 rows in 2.3 to 4.6 plain steps on CPUs). */
static void guess_missing(struct plan_flags *f, const struct session *s, const int32_t *counts, int32_t n,
                          struct session_times *t)
{
    f->guessed = 0;
    for (int32_t i = 0; i < s->n_sources; i++) {
        const struct model *d = s->by[i].of->model;
        if (t->draft_s[i] != 0 || !d) continue;
        const double steps = s->by[i].of->needs.hidden ? s->by[i].block - 1 : 1;
        t->draft_s[i] = t->plain_s * steps * (double)d->bytes_step / (double)s->target->bytes_step;
        f->guessed++;
    }
    for (int32_t i = 0; i < n; i++) {
        if (t->verify_s[counts[i]] > 0) continue;
        f->guessed++;
        if (i == n - 1) t->verify_s[counts[i]] = t->plain_s * (1 + 0.15 * (counts[i] - 1));
    }
}

/* The parts of a cycle, unless a file has their times: measured at the first stream of each bucket of
 * contexts, for a plain step behind 4,000 positions costs more than one behind 200; and recorded at each. */
static int measure(struct plan_flags *f, struct session *s, const struct kn_sampler *sampler,
                   const int32_t *counts, int32_t n, struct err *e)
{
    const int32_t block = session_block(s);
    int32_t order[SESSION_MAX_ROWS + 1], k = 0;
    struct session_times t;
    const bool known = f->timed && (f->times_path || plan_times_measured(&f->times, 1, s->n_past));
    if (known && (f->lazy || !s->op->replay)) return 0;
    /* The time may not suffice for all: a block's first. */
    if (block > 1) order[k++] = block;
    for (int32_t i = 0; i < n; i++)
        if (counts[i] != block) order[k++] = counts[i];
    /* Rows of trees: what a chain of as many costs, until trees are seen. */
    for (int32_t rows = 16; s->o.tree && k < SESSION_MAX_ROWS && rows <= s->o.tree + 1; rows *= 2)
        if (rows > counts[n - 1]) order[k++] = rows;
    order[k++] = 1; /* what remains of a draft that is not worth a verify; for its recording */
    const struct session_timing o = {
        .sampler = *sampler, .rows = order, .n = k, .reach = s->o.ctx, .budget_s = TIMED_S};
    if (session_time(s, &o, &t, e)) return -1;
    f->timed_s = t.spent_s;
    if (known || t.plain_s == 0) return 0;
    f->timed = true;
    guess_missing(f, s, counts, n, &t);
    if (t.wait_s > 0) f->times.overhead_s = t.wait_s;
    plan_times_put(&f->times, s->n_past, t.plain_s, t.draft_s, t.verify_s);
    return 0;
}

int plan_flags_open(struct plan_flags *f, struct session *s, bool look_only, const struct kn_sampler *sampler,
                    struct err *e)
{
    int32_t counts[SESSION_MAX_ROWS];
    f->planner = (struct planner){0};
    if (!plan_flags_auto(f) || (!s->source && !s->o.look)) return 0;
    const int32_t n = planner_auto_counts(session_block(s), s->o.look, s->op->replay != NULL, counts);
    if (measure(f, s, sampler, counts, n, e)) return -1;
    if (!f->timed) return 0; /* no memory to measure in: every cycle drafts and verifies a block */
    const struct planner_auto_options o = {.times = &f->times,
                                           .fixed = f->times_path != NULL,
                                           .calibration = &f->calibration,
                                           .temperature = (double)sampler->temp,
                                           .draft_greedy = s->o.draft_greedy,
                                           .counts = counts,
                                           .n_counts = n,
                                           .block = s->source ? s->o.block : 1,
                                           .beside = s->n_sources > 1 ? s->by[1].block : 0,
                                           .drafter = s->source && !look_only,
                                           .look = s->o.look != NULL,
                                           .tree = s->source && !look_only ? f->tree_most : 0,
                                           .seed = f->seeded};
    if (planner_auto_init(&f->a, &o, e)) return -1;
    f->planner = planner_auto(&f->a);
    return 0;
}

/* [[rows, cycles], ..] of those that there were. */
static json_t *by_rows(const int64_t *cycles)
{
    json_t *j = json_array();
    for (int32_t r = 0; r <= PLAN_TIMES_ROWS; r++)
        if (cycles[r]) json_array_append_new(j, json_pack("[i,I]", r, (json_int_t)cycles[r]));
    return j;
}

/* The smallest context of each bucket that has times. */
static json_t *contexts(const struct plan_times *t)
{
    json_t *j = json_array();
    for (int32_t b = 0; b < PLAN_TIMES_BUCKETS; b++)
        if (plan_times_measured(t, 1, plan_times_context(b)))
            json_array_append_new(j, json_integer(plan_times_context(b)));
    return j;
}

/* [[slot, labels, predicted, seen], ..]: mean probabilities. */
static json_t *by_slot(const struct calibration_gauge *g)
{
    json_t *j = json_array();
    for (int32_t i = 0; i < CALIBRATION_SLOTS; i++)
        if (g[i].labels)
            json_array_append_new(j, json_pack("[i,I,f,f]", i + 1, (json_int_t)g[i].labels,
                                               g[i].predicted / (double)g[i].labels,
                                               (double)g[i].equal / (double)g[i].labels));
    return j;
}

void plan_flags_print(const struct plan_flags *f, const struct cli *c)
{
    const struct planner_auto_stats *st = &f->a.stats;
    char why[256], text[512] = "";
    for (int32_t r = 0, used = 0; r <= PLAN_TIMES_ROWS && used < (int32_t)sizeof text - 32; r++)
        if (st->drafted[r])
            used += snprintf(text + used, sizeof text - (size_t)used, ", %lld of %d rows",
                             (long long)st->drafted[r], r);
    cli_detail(c, "plans: %lld plain cycles, %lld probes%s", (long long)st->plain, (long long)st->probes,
               text);
    if (f->a.n_drafters > 1)
        cli_detail(c, "plans: %lld drafts by the drafter, %lld by the MTP block", (long long)st->by[0],
                   (long long)st->by[1]);
    cli_detail(c,
               "plans: plain steps alone would have had %.1f t/s; times took %.3f s to measure, %d were "
               "guessed",
               planner_auto_plain_rate(&f->a), f->timed_s, f->guessed);
    cli_detail(c, "plans: %s", planner_auto_why(&f->a, why, sizeof why));
}

json_t *plan_flags_json(const struct plan_flags *f)
{
    const struct planner_auto_stats *st = &f->a.stats;
    char why[256];
    if (!f->planner.next) return json_null();
    json_t *j = json_object();
    json_object_set_new(j, "plain_cycles", json_integer((json_int_t)st->plain));
    json_object_set_new(j, "drafted_cycles_by_rows", by_rows(st->drafted));
    json_object_set_new(j, "tree_cycles_by_rows", by_rows(st->tree));
    json_object_set_new(j, "lookup_cycles_by_rows", by_rows(st->look));
    json_object_set_new(j, "probes", json_integer((json_int_t)st->probes));
    json_object_set_new(j, "equality_by_slot", by_slot(f->a.calibration.draft_gauge[0]));
    json_object_set_new(j, "mtp_equality_by_slot",
                        f->a.n_drafters > 1 ? by_slot(f->a.calibration.draft_gauge[1]) : json_null());
    json_object_set_new(j, "cycles_by_drafter",
                        json_pack("[I,I]", (json_int_t)st->by[0], (json_int_t)st->by[1]));
    json_object_set_new(j, "lookup_equality_by_slot", by_slot(f->a.calibration.look_gauge));
    json_object_set_new(j, "probe_lost_s", json_finite(st->probe_lost_s));
    json_object_set_new(j, "draft_lost_s", json_finite(planner_auto_lost(&f->a)));
    json_object_set_new(j, "plain_tokens_per_s", json_finite(planner_auto_plain_rate(&f->a)));
    json_object_set_new(j, "times_s", json_finite(f->timed_s));
    json_object_set_new(j, "times_guessed", json_integer(f->guessed));
    json_object_set_new(j, "times_contexts", contexts(&f->times));
    json_object_set_new(j, "why", json_string(planner_auto_why(&f->a, why, sizeof why)));
    return j;
}

json_t *plan_flags_tree(const struct plan_flags *f)
{
    if (!f->tree) return json_null();
    return json_pack("{s:o,s:s}", "proposals",
                     f->tree_fixed ? json_integer(f->tree_most) : json_string("auto"), "seed",
                     f->seeded ? "chain" : "none");
}
