/* calibrate.c - how often the target agrees with a drafter's proposals, at every position of what it writes.
 *
 * Every prompt is continued with a draft before every token, of which none is verified: so each position has
 * the proposals that a cycle there would have, and the stream itself says how many of them would stay. From
 * these the calibration is learnt that plans start with (generate --calibration), and a trace is written that
 * dflash-bench run --accept-trace replays. A position is left out where the stream ends before a proposal
 * there was wrong. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../../common/base/io.h"
#include "../../common/base/json.h"
#include "../../common/base/mem.h"
#include "../../common/run/calibration.h"
#include "../../common/run/session.h"
#include "../../common/run/spec.h"
#include "../redirect.h"
#include "../sampling_flags.h"
#include "bench.h"

static struct {
    struct models m;
    int64_t n;
    int32_t block, draft_window, chunk, ctx;
    struct sampling_flags sampling;
    bool ignore_eos, draft_greedy;
    const char *start, *trace, *draft_sampling;
} o = {
    .m = MODELS_INIT,
    .n = 256,
    .chunk = SESSION_CHUNK,
    .sampling = SAMPLING_INIT,
};

static const char *out_path;
static bool force;

static const struct cli_flag flags[] = {
    MODELS_FLAGS(o.m),
    {"-n", CLI_I64, &o.n, "N", "tokens to generate after each prompt (default 256)", 2, 1 << 24},
    {"--calibration", CLI_STR, &o.start, "FILE", "go on from this one (default: the built-in one)", 0, 0},
    {"--trace", CLI_STR, &o.trace, "FILE", "write what would stay, for bench run --accept-trace", 0, 0},
    {"--ignore-eos", CLI_FLAG, &o.ignore_eos, NULL, "the model's stop ids do not end a stream", 0, 0},
    SAMPLING_FLAGS(o.sampling),
    {"--block", CLI_I32, &o.block, "B", "rows a draft block (default: as trained)", 2, SESSION_MAX_ROWS},
    {"--draft-window", CLI_I32_ALL, &o.draft_window, "N|all",
     "positions of context the drafter sees, on any layer (default 0: the windows of its layers, and of "
     "those without three of them)",
     0, INT32_MAX},
    {"--ctx", CLI_I32, &o.ctx, "N", "positions to make room for (default: what each prompt needs)", 1,
     SESSION_MAX_CTX},
    {"--chunk", CLI_I32, &o.chunk, "N", "tokens a prefill pass (default 512)", 1, 1 << 20},
    {"--draft-sampling", CLI_STR, &o.draft_sampling, "HOW", "as of generate: coupled (default) or greedy", 0,
     0},
    REDIRECT_FLAGS(out_path, force),
    {0},
};
static struct cli cli = {
    .tool = "bench calibrate",
    .synopsis =
        "-m TARGET -d DRAFTER [-n N] [--temp T] [--trace FILE] [flags] PROMPT.tok... > calibration.json",
    .summary =
        "Learn how often the target agrees with the drafter, by slot and by the drafter's probability.",
    .flags = flags,
    .wants = "PROMPT.tok...",
    .min_args = 1,
    .max_args = 4096,
};

/* What a prompt's run left: the stream, and a draft before each of its tokens but the first. */
struct gathered {
    int32_t slots;
    int32_t *stream; /* [n] */
    int64_t n;
    int32_t *ids; /* [n_drafts, slots] proposals at the i-th token of the stream */
    float *logp;  /* [n_drafts, slots] */
    bool *usable; /* [n_drafts] */
    int64_t n_drafts, n_ids;
};

static void gathered_free(struct gathered *g)
{
    mem_free(g->stream);
    mem_free(g->ids);
    mem_free(g->logp);
    mem_free(g->usable);
}

static int gathered_new(struct gathered *g, int32_t slots, struct err *e)
{
    const size_t n = (size_t)o.n + 1, all = n * (size_t)slots;
    *g = (struct gathered){.slots = slots,
                           .stream = mem_alloc(n * sizeof *g->stream),
                           .ids = mem_alloc(all * sizeof *g->ids),
                           .logp = mem_alloc(all * sizeof *g->logp),
                           .usable = mem_alloc(n * sizeof *g->usable)};
    if (g->stream && g->ids && g->logp && g->usable) return 0;
    return err_set(e, ERR_IO, "out of memory (drafts at %lld positions)", (long long)o.n);
}

static int take_tokens(void *ctx, const int32_t *ids, int32_t n, struct err *e)
{
    struct gathered *g = ctx;
    (void)e;
    memcpy(g->stream + g->n, ids, (size_t)n * sizeof *ids);
    g->n += n;
    return 0;
}

static int take_proposals(void *ctx, const int32_t *ids, int32_t n, struct err *e)
{
    struct gathered *g = ctx;
    if (n != g->slots)
        return err_set(e, ERR_FORMAT, "a draft of another size (expected %d proposals, got %d)", g->slots, n);
    memcpy(g->ids + g->n_ids++ * g->slots, ids, (size_t)n * sizeof *ids);
    return 0;
}

/* A draft before every token, and one row: each token is one cycle's. */
static void next(void *ctx, struct plan *p)
{
    (void)ctx;
    *p = (struct plan){.draft = true, .rows = 1};
}

static void seen(void *ctx, const struct plan_result *r)
{
    struct gathered *g = ctx;
    float *logp = g->logp + g->n_drafts * g->slots;
    g->usable[g->n_drafts] = r->offer.n_draft == g->slots;
    if (g->usable[g->n_drafts++]) memcpy(logp, r->offer.logp, (size_t)g->slots * sizeof *logp);
}

static int gather(struct gathered *g, const int32_t *id, size_t n, struct err *e)
{
    const struct desc *d = o.m.target->d;
    const struct planner planner = {.next = next, .seen = seen, .ctx = g};
    const struct spec_options sp = {.n = o.n,
                                    .sampler = o.sampling.sampler,
                                    .stops = o.ignore_eos ? NULL : d->stops,
                                    .n_stops = o.ignore_eos ? 0 : d->n_stops,
                                    .planner = &planner,
                                    .tokens = take_tokens,
                                    .proposals = take_proposals,
                                    .ctx = g};
    struct session_options so = {.ctx = o.ctx ? o.ctx : (int32_t)((int64_t)n + o.n + SESSION_MAX_ROWS),
                                 .chunk = o.chunk,
                                 .block = o.block,
                                 .draft_window = o.draft_window,
                                 .draft_greedy = o.draft_greedy,
                                 .check_layers = o.m.check_layers};
    struct spec_stats st;
    struct session *s = NULL;
    int rc = -1;
    if (models_kv(&o.m, NULL, &so, e) == 0 && session_new(&s, o.m.target, o.m.drafter, &so, e) == 0 &&
        session_prefill(s, id, (int64_t)n, NULL, NULL, e) == 0)
        rc = spec_generate(s, &sp, &st, e);
    session_free(s);
    return rc;
}

/* How many proposals at the i-th token would stay; -1: the stream ends before that is known. */
static int32_t stay(const struct gathered *g, int64_t i, const int32_t *ids)
{
    int32_t k = 0;
    while (k < g->slots && i + 1 + k < g->n && ids[k] == g->stream[i + 1 + k]) k++;
    return k < g->slots && i + 1 + k == g->n ? -1 : k;
}

struct learnt {
    struct calibration c;
    struct io_out trace;
    int64_t positions, left_out;
    double stayed; /* sum */
};

static int write_position(struct learnt *l, int32_t equal, const float *logp, int32_t slots, struct err *e)
{
    char text[16 * (SESSION_MAX_ROWS + 1)];
    int used = snprintf(text, sizeof text, "%s[%d", l->positions ? ",\n" : "", equal);
    if (!o.trace) return 0;
    for (int32_t j = 0; j < slots; j++)
        used += snprintf(text + used, sizeof text - (size_t)used, ",%.5g", fmin(exp((double)logp[j]), 1));
    text[used++] = ']';
    return io_out_write(&l->trace, text, (size_t)used, e);
}

static int learn(struct learnt *l, const struct gathered *g, struct err *e)
{
    const int32_t bucket = calibration_bucket(1, (double)o.sampling.sampler.temp, o.draft_greedy);
    int64_t at = 0; /* of the usable ones, which alone have proposals */
    for (int64_t i = 0; i < g->n_drafts; i++) {
        const int32_t *ids = g->ids + at * g->slots;
        const float *logp = g->logp + i * g->slots;
        const int32_t k = g->usable[i] ? stay(g, i, ids) : -1;
        at += g->usable[i];
        if (k < 0) {
            l->left_out++;
            continue;
        }
        const struct plan_result r = {.offer = {.n_draft = g->slots, .logp = logp},
                                      .choice = {.rows = g->slots + 1},
                                      .drafted = true,
                                      .kept = k + 1,
                                      .labelled = k < g->slots ? k + 1 : k,
                                      .equal = k};
        if (write_position(l, k, logp, g->slots, e)) return -1;
        calibration_seen(&l->c, bucket, &r);
        l->positions++;
        l->stayed += k;
    }
    return 0;
}

static int write_head(struct learnt *l, int32_t slots, struct err *e)
{
    char head[128];
    const int n = snprintf(head, sizeof head,
                           "{\"kind\":\"accept-trace\",\"schema\":1,\"slots\":%d,\"temp\":%.9g,"
                           "\"positions\":[\n",
                           slots, (double)o.sampling.sampler.temp);
    return o.trace ? io_out_write(&l->trace, head, (size_t)n, e) : 0;
}

static int run(struct learnt *l, struct err *e)
{
    const int32_t slots = (o.block ? o.block : desc_cycle_rows(o.m.drafter->d)) - 1;
    int rc = write_head(l, slots, e);
    for (int i = 0; i < cli.n_args && rc == 0; i++) {
        struct gathered g;
        int32_t *id = NULL;
        size_t n = 0;
        rc = bench_read_tokens(cli.args[i], &id, &n, e);
        if (rc == 0 && !n) rc = err_set(e, ERR_FORMAT, "%s: the prompt is empty", cli.args[i]);
        if (rc == 0) rc = models_check_ids(&o.m, cli.args[i], id, n, e);
        const int64_t need = (int64_t)n + o.n + SESSION_MAX_ROWS, most = o.ctx ? o.ctx : SESSION_MAX_CTX;
        if (rc == 0 && need > most)
            rc = err_set(
                e, ERR_USAGE,
                "%s: does not fit (expected at most %lld positions%s: %zu tokens, -n %lld and %d rows, "
                "got %lld)",
                cli.args[i], (long long)most, o.ctx ? " of --ctx" : "", n, (long long)o.n, SESSION_MAX_ROWS,
                (long long)need);
        if (rc == 0) {
            rc = gathered_new(&g, slots, e) || gather(&g, id, n, e) || learn(l, &g, e) ? -1 : 0;
            gathered_free(&g);
        }
        mem_free(id);
        cli_progress(&cli, "prompt", (uint64_t)i + 1, (uint64_t)cli.n_args, "");
    }
    if (rc == 0 && o.trace) rc = io_out_write(&l->trace, "]}\n", 3, e);
    if (rc == 0 && !l->positions)
        rc = err_set(e, ERR_NEGATIVE, "nothing was learnt: no position has a draft that the stream outlasts");
    return rc;
}

static int finish(struct learnt *l, struct err *e)
{
    char *text = calibration_text(&l->c);
    if (!text) return err_set(e, ERR_IO, "out of memory (the calibration)");
    const int bad = printf("%s\n", text) < 0 || fflush(stdout);
    mem_free(text);
    if (bad) return err_errno(e, "%s: cannot write", redirect_name());
    if (o.trace && io_out_commit(&l->trace, e)) return -1;
    cli_note(&cli, "%lld positions, %.2f tokens a cycle; %lld left out", (long long)l->positions,
             1 + l->stayed / (double)l->positions, (long long)l->left_out);
    return 0;
}

int bench_calibrate(int argc, char **argv)
{
    struct err e = {0};
    struct redirect file;
    cli_parse(&cli, argc, argv);
    if (!o.m.target_path) cli_usage_error(&cli, "no target (expected -m TARGET.gguf)");
    if (!o.m.drafter_path) cli_usage_error(&cli, "no drafter (expected -d DRAFTER.gguf)");
    o.draft_greedy = cli_draft_greedy(&cli, o.draft_sampling);
    const struct cli_output out[] = {{"-o", out_path ? out_path : "-"}, {"--trace", o.trace}};
    cli_distinct_outputs(&cli, out, 2);
    models_check_flags(&o.m, &cli);
    models_no_mtp(&o.m, &cli, "calibrate");
    sampling_flags_check(&o.sampling, &cli);
    cli_one_stdin(&cli, cli.args, cli.n_args);
    if (bench_redirect(&file, out_path, force, &o.m, cli.args, cli.n_args, &e)) return cli_fail(&cli, &e);
    struct learnt *l = mem_calloc(1, sizeof *l);
    o.m.known = (struct session_options){.ctx = o.ctx ? o.ctx : (int32_t)(o.n + SESSION_MAX_ROWS),
                                         .chunk = o.chunk,
                                         .block = o.block,
                                         .draft_window = o.draft_window};
    int rc = l ? 0 : err_set(&e, ERR_IO, "out of memory (a calibration)");
    if (rc == 0) calibration_init(&l->c);
    if (rc == 0 && o.start) rc = calibration_read(&l->c, o.start, &e);
    if (rc == 0 && o.trace) rc = io_out_open(&l->trace, o.trace, force, cli.args, cli.n_args, &e);
    if (rc == 0)
        rc = models_open(&o.m, &cli, &e) || sampling_flags_open(&o.sampling, &o.m, &e) || run(l, &e) ||
                     finish(l, &e)
                 ? -1
                 : 0;
    if (rc) rc = cli_fail(&cli, &e);
    if (l) io_out_abort(&l->trace);
    mem_free(l);
    sampling_flags_close(&o.sampling, &o.m);
    models_close(&o.m);
    return redirect_close(&file, &cli, rc);
}
