/* rows.c - what a pass costs: 1..64 rows at a context, prompts of several lengths, a draft block.
 *
 * Every size is measured once a round, round after round, so that a drift of the machine meets all of them;
 * the median of the rounds is reported, its ratio to one row, and for rows the share of the memory's speed
 * that reading the weights once in that time means: of experts those that the rows meet, counted in a pass
 * before. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "../../common/base/mem.h"
#include "../../common/run/plan_times.h"
#include "../../common/run/session.h"
#include "../../common/run/times.h"
#include "../redirect.h"
#include "bench.h"
#include "experts_met.h"

#define MAX_SIZES 64
#define SETTLE_S 0.1 /* passes before those that count */

static struct {
    struct models m;
    const char *rows, *prompts, *plan_times;
    int32_t context, rounds, ctx;
} o = {.m = MODELS_INIT, .rows = "1,2,4,8,16,32,64", .prompts = "128,512", .context = 512, .rounds = 9};

static const char *out_path;
static bool force;

static const struct cli_flag flags[] = {
    MODELS_FLAGS(o.m),
    {"--rows", CLI_STR, &o.rows, "LIST", "rows of a pass (default 1,2,4,8,16,32,64)", 0, 0},
    {"--prompts", CLI_STR, &o.prompts, "LIST", "prompt lengths, logits for the last token (default 128,512)",
     0, 0},
    {"--ctx", CLI_I32, &o.ctx, "N", "positions to make room for (default: what --context and the rows need)",
     1, SESSION_MAX_CTX},
    {"--context", CLI_I32, &o.context, "N", "positions before the rows (default 512)", 1, 1 << 24},
    {"--rounds", CLI_I32, &o.rounds, "N", "measurements of each (default 9)", 1, BENCH_MAX_RUNS},
    {"--plan-times", CLI_STR, &o.plan_times, "FILE",
     "write what plans of --width auto go by, of the rows and the context above", 0, 0},
    REDIRECT_FLAGS(out_path, force),
    {0},
};
static struct cli cli = {
    .tool = "bench rows",
    .synopsis =
        "-m TARGET [-d DRAFTER] [--rows LIST] [--prompts LIST] [--context N] [--rounds N] > rows.jsonl",
    .summary = "Measure passes of 1..64 rows, prompts and a draft block. Lines of JSON with the share of the "
               "memory's speed.",
    .flags = flags,
};

struct plan {
    int32_t rows[MAX_SIZES], prompts[MAX_SIZES];
    int n_rows, n_prompts;
    struct sample row_s[MAX_SIZES], prompt_s[MAX_SIZES], draft_s;
    double bytes[MAX_SIZES], experts[MAX_SIZES]; /* of rows: weight bytes; experts met a layer, NaN without */
    double ceiling;
    int32_t *ids; /* any ids: [longest] */
};

static int longest(const struct plan *p)
{
    int n = o.context;
    for (int i = 0; i < p->n_prompts; i++)
        if (p->prompts[i] > n) n = p->prompts[i];
    return n;
}

static int new_session(struct session **s, int32_t ctx, bool drafter, struct err *e)
{
    struct session_options so = {.ctx = ctx + SESSION_MAX_ROWS, .check_layers = o.m.check_layers};
    if (models_kv(&o.m, NULL, &so, e)) return -1;
    return session_new(s, o.m.target, drafter ? o.m.drafter : NULL, &so, e);
}

static int measure_rows(struct session *s, struct plan *p, struct err *e)
{
    static const struct kn_sampler greedy = {.top_p = 1, .repeat_penalty = 1};
    int32_t picks[SESSION_MAX_ROWS];
    /* Not counted: passes after something else find caches and page tables cold (5 ms of 20 on Qwen3-0.6B's
     * shapes), a device's clock lowered by the power that a prompt drew, and memory that was freed being
     * cleared (up to 9 % for 10 to 100 ms: docs/speed/method.md). */
    const double from = cli_seconds();
    do
        if (session_forward(s, p->ids, 1, e) || session_pick(s, &greedy, 1, picks, e))
            return -1; /* the pick waits for it */
    while (cli_seconds() - from < SETTLE_S);
    for (int i = 0; i < p->n_rows; i++) {
        double t = cli_seconds();
        if (session_forward(s, p->ids, p->rows[i], e) || session_pick(s, &greedy, p->rows[i], picks, e))
            return -1;
        sample_add(&p->row_s[i], cli_seconds() - t);
    }
    if (o.m.drafter) {
        bool usable;
        double t = cli_seconds();
        if (session_draft(s, p->ids[0], picks, &usable, false, e)) return -1;
        sample_add(&p->draft_s, cli_seconds() - t);
    }
    return 0;
}

static int measure_prompts(struct plan *p, struct err *e)
{
    for (int i = 0; i < p->n_prompts; i++) {
        struct session *s;
        if (new_session(&s, p->prompts[i], false, e)) return -1;
        double t = cli_seconds();
        int rc = session_prefill(s, p->ids, p->prompts[i], NULL, NULL, e);
        sample_add(&p->prompt_s[i], cli_seconds() - t);
        session_free(s);
        if (rc) return -1;
    }
    return 0;
}

/* Of the row counts measured, that whose verify pays from the fewest tokens a cycle on: as many as a draft
 * and the verify take plain steps; rows 0 where every count wants more tokens than it can keep. NULL where
 * one row was not measured, or nothing else. */
static json_t *pays_from(const struct plan *p, double draft, double one)
{
    double best = NAN;
    int32_t rows = 0;
    json_t *all = json_array();
    for (int i = 0; i < p->n_rows; i++) {
        const double tokens = (draft + sample_quantile(&p->row_s[i], 0.5)) / one;
        if (p->rows[i] < 2 || !isfinite(tokens)) continue;
        json_array_append_new(all, json_pack("[i,f]", p->rows[i], tokens));
        if (tokens < p->rows[i] && !(tokens >= best)) best = tokens, rows = p->rows[i];
    }
    if (json_array_size(all))
        return json_pack("{s:i,s:o,s:o}", "rows", rows, "tokens", json_finite(best), "by_rows", all);
    json_decref(all);
    return NULL;
}

static int emit(struct plan *p, struct err *e)
{
    const struct model *t = o.m.target;
    double one = p->rows[0] == 1 ? sample_quantile(&p->row_s[0], 0.5) : NAN;
    for (int i = 0; i < p->n_rows; i++) {
        double s = sample_quantile(&p->row_s[i], 0.5);
        json_t *j = json_pack("{s:i,s:s,s:o,s:i,s:i,s:o,s:o,s:o,s:o,s:o,s:o,s:o}", "schema", 1, "kind",
                              "rows", "target", bench_model_json(o.m.target_path, t), "rows", p->rows[i],
                              "context", o.context, "seconds", sample_json(&p->row_s[i]), "weight_bytes",
                              json_integer((json_int_t)p->bytes[i]), "experts_met",
                              json_finite(p->experts[i]), "weight_bytes_per_s", json_finite(p->bytes[i] / s),
                              "read_ceiling_bytes_per_s", json_finite(p->ceiling), "share_of_ceiling",
                              json_finite(p->bytes[i] / s / p->ceiling), "machine", bench_machine(&o.m));
        if (isfinite(one)) json_object_set_new(j, "one_row_steps", json_real(s / one));
        if (bench_emit(j, e)) return -1;
    }
    for (int i = 0; i < p->n_prompts; i++) {
        double s = sample_quantile(&p->prompt_s[i], 0.5);
        if (bench_emit(json_pack("{s:i,s:s,s:o,s:i,s:o,s:o,s:o}", "schema", 1, "kind", "prompt", "target",
                                 bench_model_json(o.m.target_path, t), "tokens", p->prompts[i], "seconds",
                                 sample_json(&p->prompt_s[i]), "tokens_per_s", json_finite(p->prompts[i] / s),
                                 "machine", bench_machine(&o.m)),
                       e))
            return -1;
    }
    if (!o.m.drafter) return 0;
    /* A block reads the drafter and the head that it borrows. */
    const struct gguf_tensor *head = gguf_tensor(t->file, "output.weight");
    double s = sample_quantile(&p->draft_s, 0.5), bytes = (double)o.m.drafter->bytes_step;
    if (!head) head = gguf_tensor(t->file, "token_embd.weight");
    if (!o.m.drafter->head && head) bytes += (double)head->bytes;
    json_t *j = json_pack(
        "{s:i,s:s,s:o,s:o,s:i,s:i,s:o,s:o,s:o,s:o,s:o}", "schema", 1, "kind", "draft", "target",
        bench_model_json(o.m.target_path, t), "drafter", bench_model_json(o.m.drafter_path, o.m.drafter),
        "block", o.m.drafter->d->block_size, "context", o.context, "seconds", sample_json(&p->draft_s),
        "weight_bytes_per_s", json_finite(bytes / s), "read_ceiling_bytes_per_s", json_finite(p->ceiling),
        "share_of_ceiling", json_finite(bytes / s / p->ceiling), "machine", bench_machine(&o.m));
    if (isfinite(one)) json_object_set_new(j, "one_row_steps", json_real(s / one));
    json_t *pays = pays_from(p, s, one);
    if (pays) {
        const int rows = (int)json_integer_value(json_object_get(pays, "rows"));
        if (rows)
            cli_note(&cli, "drafting pays from %.2f tokens a cycle on, verifying %d rows",
                     json_number_value(json_object_get(pays, "tokens")), rows);
        else
            cli_note(&cli, "drafting cannot pay: every count of rows takes as many plain steps or more");
        json_object_set_new(j, "pays_from", pays);
    }
    return bench_emit(j, e);
}

/* What passes of these rows at this context read. */
static int count_bytes(struct plan *p, struct err *e)
{
    struct experts_met met;
    struct session *s = NULL;
    for (int i = 0; i < p->n_rows; i++) p->bytes[i] = (double)o.m.target->bytes_step, p->experts[i] = NAN;
    if (!o.m.target->d->n_expert) return 0;
    experts_met_open(&met, o.m.target->be);
    int rc =
        new_session(&s, o.context, false, e) || session_prefill(s, p->ids, o.context, NULL, NULL, e) ? -1 : 0;
    for (int i = 0; i < p->n_rows && rc == 0; i++) {
        experts_met_start(&met);
        rc = session_forward(s, p->ids, p->rows[i], e);
        p->bytes[i] += met.bytes;
        p->experts[i] = met.experts / (double)met.lists;
    }
    session_free(s);
    experts_met_close(&met);
    return rc;
}

/* The parts of cycles, which cost more than passes do: acceptance, and the drafter's context. */
static int write_plan_times(struct session *s, const struct plan *p, struct err *e)
{
    const int32_t block = o.m.drafter->d->block_size;
    struct plan_times *times = mem_calloc(1, sizeof *times);
    struct session_times t;
    int32_t rows[MAX_SIZES], n = 0;
    for (int i = 0; i < p->n_rows; i++)
        if (p->rows[i] > 1 && p->rows[i] <= block) rows[n++] = p->rows[i];
    const struct session_timing timing = {.sampler = {.top_p = 1, .repeat_penalty = 1},
                                          .rows = rows,
                                          .n = n,
                                          .reach = s->o.ctx,
                                          .budget_s = 3600};
    int rc = !times ? err_set(e, ERR_IO, "out of memory (times)") : session_time(s, &timing, &t, e);
    if (rc == 0 && !n)
        rc = err_set(e, ERR_USAGE,
                     "--plan-times: no row counts for verifies (expected some of 2 to %d in --rows)", block);
    if (rc == 0) {
        snprintf(times->of, sizeof times->of, "%.*s", (int)sizeof times->of - 1, o.m.target->d->name);
        times->overhead_s = t.wait_s;
        plan_times_put(times, o.context, t.plain_s, t.draft_s, t.verify_s);
        rc = plan_times_write(times, o.plan_times, force, e);
    }
    mem_free(times);
    return rc;
}

static int measure(struct plan *p, struct err *e)
{
    struct session *s = NULL;
    int n = longest(p), threads = bench_threads(&o.m), rc = -1;
    uint64_t bytes = o.m.target->bytes_step;
    p->ids = mem_alloc(((size_t)n + SESSION_MAX_ROWS) * sizeof *p->ids);
    if (!p->ids) return err_set(e, ERR_IO, "out of memory (%d ids)", n);
    uint32_t x = 1;
    for (int i = 0; i < n + SESSION_MAX_ROWS; i++) {
        x = x * 1664525u + 1013904223u;
        p->ids[i] = (int32_t)((x >> 8) % (uint32_t)o.m.target->d->n_vocab);
    }
    models_check_length(&o.m, &cli, n);
    if (count_bytes(p, e)) goto done;
    if (new_session(&s, o.ctx ? o.ctx - SESSION_MAX_ROWS : o.context, true, e) ||
        session_prefill(s, p->ids, o.context, NULL, NULL, e))
        goto done;
    for (int r = 0; r < o.rounds; r++) {
        p->ceiling = r ? fmax(p->ceiling, bench_ceiling(&o.m, bytes, threads, 2))
                       : bench_ceiling(&o.m, bytes, threads, 2);
        if (r == 0 && measure_rows(s, p, e)) goto done; /* warm up, then forget */
        if (r == 0) {
            for (int i = 0; i < p->n_rows; i++) p->row_s[i].n = 0;
            p->draft_s.n = 0;
        }
        if (measure_rows(s, p, e) || measure_prompts(p, e)) goto done;
        cli_progress(&cli, "round", (uint64_t)r + 1, (uint64_t)o.rounds, "");
    }
    rc = o.plan_times && write_plan_times(s, p, e) ? -1 : emit(p, e);
done:
    session_free(s);
    mem_free(p->ids);
    return rc;
}

int bench_rows(int argc, char **argv)
{
    struct err e = {0};
    struct redirect file;
    cli_parse(&cli, argc, argv);
    if (!o.m.target_path) cli_usage_error(&cli, "no target (expected -m TARGET.gguf)");
    if (o.plan_times && !o.m.drafter_path) cli_usage_error(&cli, "--plan-times needs a drafter (-d DRAFTER)");
    bench_check_ctx(&cli, o.ctx, o.context);
    if (bench_redirect(&file, out_path, force, &o.m, NULL, 0, &e)) return cli_fail(&cli, &e);
    struct plan *p = mem_calloc(1, sizeof *p);
    int rc = !p ? err_set(&e, ERR_IO, "out of memory (samples)")
                : bench_int_list("--rows", o.rows, p->rows, MAX_SIZES, &p->n_rows, 1, SESSION_MAX_ROWS, &e) ||
                      (o.prompts[0] && bench_int_list("--prompts", o.prompts, p->prompts, MAX_SIZES,
                                                      &p->n_prompts, 1, 1 << 24, &e)) ||
                      (o.m.known.ctx = o.ctx ? o.ctx : longest(p) + SESSION_MAX_ROWS,
                       models_open(&o.m, &cli, &e)) ||
                      measure(p, &e);
    if (rc) rc = cli_fail(&cli, &e);
    models_close(&o.m);
    mem_free(p);
    return redirect_close(&file, &cli, rc);
}
