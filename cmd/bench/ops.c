/* ops.c - where a pass's time goes: every operation of it timed apart, added up by kind and shape.
 *
 * The pass is run as it is (its own time, from the first operation to the last), then with a stamp behind
 * every operation, which keeps each from starting before the one before it has ended. On a device both are
 * recordings: what stands between two stamps is the operation's launches and nothing of the host. A stamp
 * costs a launch itself; stamps with nothing between them tell how much, and that is taken off each call. So
 * the sum of the parts is more than the pass where neighbours overlap, and it says by how much. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../../common/base/mem.h"
#include "../../common/run/session.h"
#include "../redirect.h"
#include "bench.h"
#include "ops_watch.h"

#define MAX_SIZES 64
#define MAX_GROUPS 512

static struct {
    struct models m;
    const char *rows;
    int32_t context, rounds, ctx;
} o = {.m = MODELS_INIT, .rows = "1,16", .context = 512, .rounds = 9};

static const char *out_path;
static bool force;

static const struct cli_flag flags[] = {
    MODELS_FLAGS(o.m),
    {"--rows", CLI_STR, &o.rows, "LIST", "rows of a pass (default 1,16)", 0, 0},
    {"--context", CLI_I32, &o.context, "N", "positions before the rows (default 512)", 1, 1 << 24},
    {"--ctx", CLI_I32, &o.ctx, "N", "positions to make room for (default: what --context and the rows need)",
     1, SESSION_MAX_CTX},
    {"--rounds", CLI_I32, &o.rounds, "N", "measurements of each (default 9)", 1, BENCH_MAX_RUNS},
    REDIRECT_FLAGS(out_path, force),
    {0},
};
static struct cli cli = {
    .tool = "bench ops",
    .synopsis = "-m TARGET [-d DRAFTER] [--rows LIST] [--context N] [--rounds N] > ops.jsonl",
    .summary = "Time every operation of a pass apart from its neighbours, added up by kind and shape: which "
               "cost more than "
               "reading their weights does. Lines of JSON; 'dflash-bench report' makes a table.",
    .flags = flags,
};

/* Calls of one kind and shape. */
struct group {
    const struct watch_entry *entry;
    int32_t calls;
    double bytes; /* of weights, all calls */
    struct sample s;
};
/* One pass: rows of the target, or the drafter's block (rows 0). */
struct measured {
    struct sample whole, apart;
    double empty_s; /* a stamp */
    struct group *group;
    int n_groups;
};

static int failed(int rc, struct err *e)
{
    return rc ? model_failed(o.m.target, "times of operations", rc, e) : 0;
}

static int one_pass(struct session *s, const int32_t *ids, int32_t rows, struct err *e)
{
    int32_t proposals[SESSION_MAX_ROWS];
    bool usable;
    if (rows) return session_forward(s, ids, rows, e);
    return session_draft(s, ids[0], proposals, &usable, false, e);
}

/* A pass and its times: ns[k->n], or ns[0] of the whole. Passes of a session that are recorded from the
 * second on are run often enough before they count. */
static int timed_pass(struct session *s, struct watch *k, const int32_t *ids, int32_t rows, double *empty,
                      double *ns, struct err *e)
{
    if (!kn_op(k->be)->replay && failed(watch_begin(k), e)) return -1;
    if (one_pass(s, ids, rows, e)) return -1;
    if (!kn_op(k->be)->replay && failed(watch_end(k), e)) return -1;
    return failed(watch_times(k, empty, ns), e);
}

static struct group *group_of(struct measured *m, const struct watch_entry *x)
{
    for (int i = 0; i < m->n_groups; i++)
        if (!strcmp(m->group[i].entry->op, x->op) && !strcmp(m->group[i].entry->shape, x->shape))
            return &m->group[i];
    if (m->n_groups == MAX_GROUPS) return NULL;
    m->group[m->n_groups].entry = x;
    return &m->group[m->n_groups++];
}

static int add_round(struct measured *m, const struct watch *k, double empty, const double *ns, struct err *e)
{
    double sum[MAX_GROUPS] = {0}, all = 0;
    for (int i = 0; i < m->n_groups; i++) m->group[i].calls = 0, m->group[i].bytes = 0;
    for (int32_t i = 0; i < k->n; i++) {
        struct group *g = group_of(m, &k->entry[i]);
        if (!g)
            return err_set(e, ERR_FORMAT, "too many shapes of operations (expected %d at most)", MAX_GROUPS);
        g->calls++;
        g->bytes += k->entry[i].bytes;
        sum[g - m->group] += 1e-9 * ns[i];
        all += 1e-9 * ns[i];
    }
    for (int i = 0; i < m->n_groups; i++) sample_add(&m->group[i].s, sum[i]);
    sample_add(&m->apart, all);
    m->empty_s += 1e-9 * empty / o.rounds;
    return 0;
}

/* What a stamp takes is no part of an operation. */
static void take_off(struct sample *s, double t)
{
    for (int i = 0; i < s->n; i++) s->x[i] = s->x[i] > t ? s->x[i] - t : 0;
}

static int measure(struct measured *m, struct watch *k, const int32_t *ids, int32_t rows, double *ns,
                   struct err *e)
{
    struct session_options so = {.ctx = o.ctx ? o.ctx : o.context + SESSION_MAX_ROWS};
    double empty;
    int rc = -1;
    if (models_kv(&o.m, NULL, &so, e)) return -1;
    for (int each = 0; each < 2; each++) {
        struct session *s; /* its own: recordings keep their stamps */
        if (session_new(&s, o.m.target, rows ? NULL : o.m.drafter, &so, e)) return -1;
        rc = session_prefill(s, ids, o.context, NULL, NULL, e);
        k->each = each;
        for (int i = 0; i < 3 && !rc;
             i++) /* not counted: caches, page tables; the first is not recorded yet */
            rc = i && kn_op(k->be)->replay ? timed_pass(s, k, ids, rows, &empty, ns, e)
                                           : one_pass(s, ids, rows, e);
        for (int r = 0; r < o.rounds && !rc; r++) {
            rc = timed_pass(s, k, ids, rows, &empty, ns, e);
            if (!rc && each) rc = add_round(m, k, empty, ns, e);
            if (!rc && !each) sample_add(&m->whole, 1e-9 * ns[0]);
        }
        if (!rc && each) {
            take_off(&m->apart, k->n * m->empty_s);
            for (int i = 0; i < m->n_groups; i++) take_off(&m->group[i].s, m->group[i].calls * m->empty_s);
        }
        session_free(s);
        if (rc) return -1;
    }
    return 0;
}

static int by_time(const void *a, const void *b)
{
    const struct group *x = a, *y = b;
    const double d = sample_quantile(&y->s, 0.5) - sample_quantile(&x->s, 0.5);
    return d > 0 ? 1 : d < 0 ? -1 : 0;
}

static int emit(struct measured *m, int32_t rows, double ceiling, struct err *e)
{
    const int32_t n = rows ? rows : desc_cycle_rows(o.m.drafter->d);
    const char *pass = rows ? "rows" : "draft", *path = rows ? o.m.target_path : o.m.drafter_path;
    const struct model *model = rows ? o.m.target : o.m.drafter;
    double bytes = 0;
    int32_t calls = 0;
    qsort(m->group, (size_t)m->n_groups, sizeof *m->group, by_time);
    for (int i = 0; i < m->n_groups; i++) bytes += m->group[i].bytes, calls += m->group[i].calls;
    if (bench_emit(json_pack("{s:i,s:s,s:o,s:s,s:i,s:i,s:i,s:o,s:o,s:f,s:f,s:o,s:o}", "schema", 1, "kind",
                             "ops", "model",
                             (model == o.m.target ? bench_target_json(&o.m) : bench_model_json(path, model)),
                             "pass", pass, "rows", n, "context", o.context, "calls", calls, "seconds",
                             sample_json(&m->whole), "apart_seconds", sample_json(&m->apart), "stamp_seconds",
                             m->empty_s, "weight_bytes", bytes, "read_ceiling_bytes_per_s",
                             json_finite(ceiling), "machine", bench_machine(&o.m)),
                   e))
        return -1;
    for (int i = 0; i < m->n_groups; i++) {
        const struct group *g = &m->group[i];
        const double s = sample_quantile(&g->s, 0.5);
        if (bench_emit(
                json_pack(
                    "{s:i,s:s,s:o,s:s,s:i,s:i,s:s,s:s,s:i,s:o,s:f,s:o,s:o}", "schema", 1, "kind", "op",
                    "model", (model == o.m.target ? bench_target_json(&o.m) : bench_model_json(path, model)),
                    "pass", pass, "rows", n, "context", o.context, "op", g->entry->op, "shape",
                    g->entry->shape, "calls", g->calls, "seconds", sample_json(&g->s), "weight_bytes",
                    g->bytes, "share_of_ceiling", json_finite(g->bytes > 0 ? g->bytes / s / ceiling : NAN),
                    "seconds_beside_bytes", json_finite((s - g->bytes / ceiling) / g->calls)),
                e))
            return -1;
    }
    return 0;
}

static int run_all(const int32_t *rows, int n, struct err *e)
{
    const int32_t longest = o.context + SESSION_MAX_ROWS;
    struct watch *k = mem_calloc(1, sizeof *k);
    struct measured *m = mem_calloc(1, sizeof *m);
    struct group *groups = mem_calloc(MAX_GROUPS, sizeof *groups);
    double *ns = mem_alloc(WATCH_MOST * sizeof *ns);
    int32_t *ids = mem_alloc((size_t)longest * sizeof *ids);
    int rc = -1;
    if (!k || !m || !groups || !ns || !ids) {
        err_set(e, ERR_IO, "out of memory (samples)");
        goto done;
    }
    uint32_t x = 1;
    for (int32_t i = 0; i < longest; i++) {
        x = x * 1664525u + 1013904223u;
        ids[i] = (int32_t)((x >> 8) % (uint32_t)o.m.target->d->n_vocab);
    }
    const double ceiling = bench_ceiling(&o.m, o.m.target->bytes_step, bench_threads(&o.m), 3);
    if (failed(watch_open(k, o.m.be), e)) goto done;
    for (int i = 0; i < n + (o.m.drafter != NULL); i++) {
        const int32_t some = i < n ? rows[i] : 0;
        memset(m, 0, sizeof *m);
        memset(groups, 0, MAX_GROUPS * sizeof *groups);
        m->group = groups;
        if (measure(m, k, ids, some, ns, e) || emit(m, some, ceiling, e)) goto done;
        cli_progress(&cli, "pass", (uint64_t)i + 1, (uint64_t)(n + (o.m.drafter != NULL)), "");
    }
    rc = 0;
done:
    if (k) watch_close(k);
    mem_free(ids);
    mem_free(ns);
    mem_free(groups);
    mem_free(m);
    mem_free(k);
    return rc;
}

int bench_ops(int argc, char **argv)
{
    struct err e = {0};
    struct redirect file;
    int32_t rows[MAX_SIZES];
    int n = 0;
    cli_parse(&cli, argc, argv);
    if (!o.m.target_path) cli_usage_error(&cli, "no target (expected -m TARGET.gguf)");
    if (o.m.check_layers)
        cli_usage_error(&cli, "--check-layers waits after every layer: nothing could be timed");
    models_no_mtp(&o.m, &cli, "ops");
    bench_check_ctx(&cli, o.ctx, o.context);
    if (bench_redirect(&file, out_path, force, &o.m, NULL, 0, &e)) return cli_fail(&cli, &e);
    int rc = bench_int_list("--rows", o.rows, rows, MAX_SIZES, &n, 1, SESSION_MAX_ROWS, &e) ||
             (o.m.known.ctx = o.ctx ? o.ctx : o.context + SESSION_MAX_ROWS, models_open(&o.m, &cli, &e)) ||
             run_all(rows, n, &e);
    if (rc) rc = cli_fail(&cli, &e);
    models_close(&o.m);
    return redirect_close(&file, &cli, rc);
}
