/* run.c - a cell: prompts through the target alone and with the drafter, in turn, run by run.
 *
 * Plain and drafted runs alternate, so that a drift of the machine meets both; each run takes every prompt of
 * the cell, and its rate is tokens over seconds summed over them. The streams are compared as they come: a
 * cell whose streams differ is reported and exits 1. The memory's speed is measured before, between and
 * after, and its best is the ceiling. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <zlib.h>
#include "../../common/base/json.h"
#include "../../common/base/mem.h"
#include "../../common/run/session.h"
#include "../../common/run/spec.h"
#include "../lookup_flags.h"
#include "../redirect.h"
#include "../sampling_flags.h"
#include "bench.h"
#include "synthetic.h"
#include "../plan_flags.h"

#define STATED_POSITIONS 65536 /* that --accept-rates draws before it begins anew */

static struct options {
    struct models m;
    struct lookup_flags lookup;
    int64_t n;
    int32_t runs, warmup, block, draft_window, chunk;
    struct plan_flags plan;
    struct sampling_flags sampling;
    int32_t ctx;
    bool ignore_eos, draft_greedy;
    const char *label, *draft_sampling;
    const char *accept_rates, *accept_trace;
    struct cli_list tags;
    struct synthetic synthetic; /* what these say; slots 0 without */
} o = {
    .m = MODELS_INIT,
    .n = 128,
    .runs = 5,
    .warmup = 1,
    .chunk = SESSION_CHUNK,
    .sampling = SAMPLING_INIT,
    .label = "",
};

static const char *out_path;
static bool force;

static const struct cli_flag flags[] = {
    MODELS_FLAGS(o.m),
    {"-n", CLI_I64, &o.n, "N", "tokens to generate after each prompt (default 128)", 1, 1 << 24},
    {"--runs", CLI_I32, &o.runs, "N", "counted runs of each (default 5)", 1, BENCH_MAX_RUNS},
    {"--warmup", CLI_I32, &o.warmup, "N", "runs before them that do not count (default 1)", 0, 100},
    {"--ignore-eos", CLI_FLAG, &o.ignore_eos, NULL, "the model's stop ids do not end a stream", 0, 0},
    SAMPLING_FLAGS(o.sampling),
    {"--block", CLI_I32, &o.block, "B", "rows a draft block (default: as trained)", 2, SESSION_MAX_ROWS},
    PLAN_FLAGS(o.plan),
    PLAN_MTP_FLAG(o.plan),
    {"--draft-window", CLI_I32_ALL, &o.draft_window, "N|all",
     "positions of context the drafter sees, on any layer (default 0: the windows of its layers, and of "
     "those without three of them)",
     0, INT32_MAX},
    {"--draft-sampling", CLI_STR, &o.draft_sampling, "NAME",
     "coupled (default: proposals take the noise of the picks to come) or greedy", 0, 0},
    LOOKUP_FLAGS(o.lookup),
    {"--chunk", CLI_I32, &o.chunk, "N", "tokens a prefill pass (default 512)", 1, 1 << 20},
    {"--ctx", CLI_I32, &o.ctx, "N", "positions to make room for (default: what each prompt needs)", 1,
     SESSION_MAX_CTX},
    {"--accept-rates", CLI_STR, &o.accept_rates, "P1,P2,...",
     "by slot the chance that a proposal stays where those before it do; nothing is compared", 0, 0},
    {"--accept-trace", CLI_STR, &o.accept_trace, "FILE",
     "what dflash-bench calibrate --trace recorded stays; nothing is compared", 0, 0},
    {"--label", CLI_STR, &o.label, "TEXT", "put into the line, for reports", 0, 0},
    {"--tag", CLI_LIST, &o.tags, "NAME=TEXT", "the same, for reports by class, drafter, ...; repeatable", 0,
     0},
    REDIRECT_FLAGS(out_path, force),
    {0},
};
static struct cli cli = {
    .tool = "bench run",
    .synopsis = "-m TARGET [-d DRAFTER] [-n N] [--runs R] [flags] PROMPT.tok... > cell.jsonl",
    .summary = "Measure a cell: the same prompts plain and drafted, in turn. One line of JSON.",
    .flags = flags,
    .wants = "PROMPT.tok...",
    .min_args = 1,
    .max_args = 4096,
};

/* NAME=TEXT, both plain text. */
static void check_tags(void)
{
    for (int i = 0; i < o.tags.n; i++) {
        const char *eq = strchr(o.tags.v[i], '=');
        if (!eq || eq == o.tags.v[i])
            cli_usage_error(&cli, "--tag: expected NAME=TEXT, got '%s'", o.tags.v[i]);
        cli_check_text(&cli, "--tag", o.tags.v[i]);
        for (int k = 0; k < i; k++)
            if (!strncmp(o.tags.v[i], o.tags.v[k], (size_t)(eq - o.tags.v[i]) + 1))
                cli_usage_error(&cli, "--tag: two of one name (%s and %s)", o.tags.v[k], o.tags.v[i]);
    }
}

static void check_flags(void)
{
    const bool look = lookup_flags_check(&o.lookup, &cli);
    if (!o.m.drafter_path &&
        (o.block || (!look && (o.plan.width || o.plan.times_path || o.plan.calibration_path)) ||
         o.draft_window || o.draft_sampling || o.plan.tree))
        cli_usage_error(&cli, "--block, --width, --tree, --plan-times, --calibration, --draft-window and "
                              "--draft-sampling need a drafter (-d DRAFTER)");
    o.draft_greedy = cli_draft_greedy(&cli, o.draft_sampling);
    if (!o.m.drafter_path && (o.accept_rates || o.accept_trace))
        cli_usage_error(&cli, "%s needs a drafter (-d DRAFTER)",
                        o.accept_rates ? "--accept-rates" : "--accept-trace");
    if (o.accept_rates && o.accept_trace)
        cli_usage_error(&cli, "--accept-rates and --accept-trace: both say what stays (expected one)");
    plan_flags_check(&o.plan, &cli);
    plan_flags_check_mtp(&o.plan, &cli, o.m.mtp);
    if (o.accept_rates || o.accept_trace)
        models_no_mtp(&o.m, &cli, o.accept_rates ? "--accept-rates" : "--accept-trace");
    if (o.lookup.only) models_no_mtp(&o.m, &cli, "--lookup only");
    if (o.plan.tree && o.lookup.only)
        cli_usage_error(&cli, "--tree and --lookup only: a look-up has one chain (expected --lookup on)");
    if (o.plan.tree && (o.accept_trace || (o.accept_rates && !strchr(o.accept_rates, '/'))))
        cli_usage_error(&cli, "%s says what stays of a chain (expected no --tree%s)",
                        o.accept_rates ? "--accept-rates" : "--accept-trace",
                        o.accept_rates ? ", or rates by rank: P/Q/..,P/Q/.." : "");
    check_tags();
    models_check_flags(&o.m, &cli);
    sampling_flags_check(&o.sampling, &cli);
}

void bench_run_check(int argc, char **argv)
{
    const struct options given = o;
    cli.min_args = cli.max_args = 0;
    cli_parse(&cli, argc, argv);
    check_flags();
    sampling_flags_close(&o.sampling, &o.m);
    o = given;
    mem_free(cli.args); /* the next setting is parsed anew */
    mem_free(cli.given);
    cli.args = cli.given = NULL;
}

struct prompt {
    int32_t *id;
    size_t n;
    int32_t *plain; /* the target's own stream */
    int64_t n_plain;
};

struct kind {                      /* of plain or drafted runs */
    struct sample decode, prefill; /* tokens a second */
    double draft_s, verify_s, decode_s;
    int64_t cycles, full_cycles, full_accepted, tree_cycles, tree_rows, look_cycles, look_accepted, generated,
        steps, nan_cycles;
    int64_t accepted[SESSION_MAX_ROWS];
};

struct sink {
    int32_t *id;
    int64_t n;
};

static int take(void *ctx, const int32_t *ids, int32_t n, struct err *e)
{
    struct sink *s = ctx;
    (void)e;
    memcpy(s->id + s->n, ids, (size_t)n * sizeof *ids);
    s->n += n;
    return 0;
}

/* Is there anything to compare with the target alone? */
static bool two_kinds(void)
{
    return o.m.drafter || o.lookup.look;
}

/* The prompt with number i; the stream goes to out. Stated acceptance goes on where the prompt before ended:
 * the same draws for all prompts would be one stream, measured many times. */
static int one(const struct prompt *p, int i, bool drafted, struct sink *out, struct spec_stats *st,
               double *prefill_s, struct err *e)
{
    const struct desc *d = o.m.target->d;
    struct session *s = NULL;
    struct session_options so = {.chunk = o.chunk,
                                 .look = drafted ? o.lookup.look : NULL,
                                 .check_layers = o.m.check_layers,
                                 .block = drafted ? o.block : 0,
                                 .draft_window = drafted ? o.draft_window : 0,
                                 .draft_greedy = o.draft_greedy,
                                 .tree = drafted ? o.plan.tree_most : 0};
    struct session_synthetic stated = {0};
    struct spec_options sp = {.n = o.n,
                              .sampler = o.sampling.sampler,
                              .width = drafted ? o.plan.rows : 0,
                              .tree = drafted && o.plan.tree_fixed ? o.plan.tree_most : 0,
                              .tree_seed = o.plan.seeded,
                              .look_only = o.lookup.only,
                              .tokens = take,
                              .ctx = out};
    int rc = -1;
    if (!o.ignore_eos) {
        sp.stops = d->stops;
        sp.n_stops = d->n_stops;
    }
    const int64_t room = (int64_t)p->n + o.n + SESSION_MAX_ROWS;
    so.ctx = o.ctx ? o.ctx : room < SESSION_MAX_CTX ? (int32_t)room : SESSION_MAX_CTX;
    if (drafted && o.synthetic.slots) {
        if (synthetic_table(&o.synthetic, i * o.n, (int32_t)p->n, so.ctx, &stated, e)) goto done;
        so.synthetic = &stated;
    }
    if (models_kv(&o.m, NULL, &so, e) ||
        session_over(&s, o.m.target, drafted ? models_sources(&o.m) : NULL, &so, e))
        goto done;
    double t = cli_seconds();
    if (session_prefill(s, p->id, (int64_t)p->n, NULL, NULL, e)) goto done;
    *prefill_s = cli_seconds() - t;
    memset(st, 0, sizeof *st);
    if (drafted && plan_flags_open(&o.plan, s, o.lookup.only, &o.sampling.sampler, e)) goto done;
    if (drafted && o.plan.planner.next) sp.planner = &o.plan.planner;
    rc = spec_generate(s, &sp, st, e);
done:
    session_free(s);
    synthetic_table_free(&stated);
    return rc;
}

/* Every prompt once. *equal is cleared where a drafted stream is not the plain one. */
static int one_run(struct prompt *p, int n_prompts, bool drafted, bool counted, struct kind *k,
                   struct sink *out, bool *equal, struct err *e)
{
    double decode_s = 0, prefill_s = 0;
    int64_t decoded = 0, prefilled = 0;
    for (int i = 0; i < n_prompts; i++) {
        struct spec_stats st;
        double ps = 0;
        out->n = 0;
        if (one(&p[i], i, drafted, out, &st, &ps, e)) return -1;
        if (!p[i].plain) {
            p[i].plain = mem_alloc((size_t)out->n * sizeof *out->id + 1);
            if (!p[i].plain)
                return err_set(e, ERR_IO, "out of memory (a stream of %lld ids)", (long long)out->n);
            memcpy(p[i].plain, out->id, (size_t)out->n * sizeof *out->id);
            p[i].n_plain = out->n;
        }
        if (!o.synthetic.slots &&
            (out->n != p[i].n_plain || memcmp(out->id, p[i].plain, (size_t)out->n * sizeof *out->id)))
            *equal = false;
        decode_s += st.decode_s;
        decoded += st.generated - 1; /* the first token comes from the prefill */
        prefill_s += ps;
        prefilled += (int64_t)p[i].n;
        if (!counted) continue;
        k->draft_s += st.draft_s;
        k->verify_s += st.verify_s;
        k->decode_s += st.decode_s;
        k->cycles += st.cycles;
        k->steps += st.steps;
        k->full_cycles += st.full_cycles;
        k->full_accepted += st.full_accepted;
        k->tree_cycles += st.tree_cycles;
        k->tree_rows += st.tree_rows;
        k->look_cycles += st.look_cycles;
        k->look_accepted += st.look_accepted;
        k->nan_cycles += st.nan_cycles;
        k->generated += st.generated;
        for (int a = 0; a < SESSION_MAX_ROWS; a++) k->accepted[a] += st.accepted[a];
    }
    if (counted && decoded > 0) sample_add(&k->decode, (double)decoded / decode_s);
    if (counted) sample_add(&k->prefill, (double)prefilled / prefill_s);
    return 0;
}

static json_t *kind_json(const struct kind *k, bool drafted)
{
    json_t *decode = sample_json(&k->decode), *each = json_array();
    for (int i = 0; i < k->decode.n; i++) json_array_append_new(each, json_finite(k->decode.x[i]));
    json_object_set_new(decode, "each", each); /* in the order of the runs: what report --baseline compares */
    json_t *j = json_pack("{s:o,s:o,s:I}", "decode_tokens_per_s", decode, "prefill_tokens_per_s",
                          sample_json(&k->prefill), "generated_tokens", (json_int_t)k->generated);
    if (!drafted) return j;
    int top = SESSION_MAX_ROWS;
    while (top > 1 && !k->accepted[top - 1]) top--;
    json_t *h = json_array();
    for (int a = 0; a < top; a++) json_array_append_new(h, json_integer((json_int_t)k->accepted[a]));
    json_object_set_new(j, "cycles", json_integer((json_int_t)k->cycles));
    json_object_set_new(j, "tau",
                        k->full_cycles ? json_finite(1 + (double)k->full_accepted / (double)k->full_cycles)
                                       : json_null());
    json_object_set_new(j, "accepted_histogram", h);
    json_object_set_new(j, "plan", plan_flags_json(&o.plan));
    json_object_set_new(j, "tree_cycles", json_integer((json_int_t)k->tree_cycles));
    json_object_set_new(j, "tree_rows", json_integer((json_int_t)k->tree_rows));
    json_object_set_new(j, "lookup_cycles", json_integer((json_int_t)k->look_cycles));
    json_object_set_new(j, "lookup_accepted", json_integer((json_int_t)k->look_accepted));
    json_object_set_new(j, "draft_share", json_finite(k->draft_s / k->decode_s));
    json_object_set_new(j, "verify_share", json_finite(k->verify_s / k->decode_s));
    json_object_set_new(j, "drafter_nan_cycles", json_integer((json_int_t)k->nan_cycles));
    return j;
}

/* Settings that are there where a flag says them: lines of other times have no such keys. */
static void given_json(json_t *j)
{
    json_t *layers = o.m.kv.layers.n ? json_array() : NULL;
    for (int i = 0; layers && i < o.m.kv.layers.n; i++)
        json_array_append_new(layers, json_text_or_null(o.m.kv.layers.v[i]));
    if (layers) json_object_set_new(j, "kv_layers", layers);
    if (o.m.kv.draft_kv) json_object_set_new(j, "draft_kv", json_text_or_null(o.m.kv.draft_kv));
    if (o.m.experts_host) json_object_set_new(j, "experts_host", json_integer(o.m.experts_host));
    if (o.m.experts_counts) json_object_set_new(j, "experts_counts", json_text_or_null(o.m.experts_counts));
}

static json_t *settings_json(void)
{
    json_t *j = json_pack("{s:I,s:b,s:i,s:s,s:b}", "n", (json_int_t)o.n, "ignore_eos", o.ignore_eos, "chunk",
                          o.chunk, "kv", o.m.kv.kv ? o.m.kv.kv : "f16", "check_layers", o.m.check_layers);
    json_object_set_new(j, "pool", json_integer(o.m.pool > 0 ? o.m.pool : 0));
    json_object_set_new(j, "kv_host", json_boolean(o.m.kv_host));
    json_object_set_new(j, "kv_host_layers", json_integer(o.m.kv_host_layers));
    given_json(j);
    sampling_flags_json(&o.sampling, j);
    json_object_set_new(j, "lookup", json_string(o.lookup.look ? o.lookup.mode : "off"));
    if (!o.m.drafter) return j;
    int32_t block = o.block ? o.block : desc_cycle_rows(o.m.drafter->d);
    json_object_set_new(j, "block", json_integer(block));
    json_object_set_new(j, "width",
                        plan_flags_auto(&o.plan) ? json_string("auto")
                        : o.plan.tree_fixed      ? json_null()
                                                 : json_integer(o.plan.rows));
    json_object_set_new(j, "tree", plan_flags_tree(&o.plan));
    json_object_set_new(j, "plan_times", json_text_or_null(o.plan.times_path));
    json_object_set_new(j, "calibration", json_text_or_null(o.plan.calibration_path));
    json_object_set_new(j, "mtp", json_text_or_null(o.m.mtp));
    json_object_set_new(j, "mtp_calibration", json_text_or_null(o.plan.mtp_calibration_path));
    json_object_set_new(j, "draft_window",
                        o.draft_window == SESSION_DRAFT_ALL ? json_string("all")
                                                            : json_integer(o.draft_window));
    json_object_set_new(j, "draft_sampling", json_string(o.draft_greedy ? "greedy" : "coupled"));
    return j;
}

static json_t *tags_json(void)
{
    json_t *j = json_object();
    for (int i = 0; i < o.tags.n; i++) {
        const char *t = o.tags.v[i];
        const size_t n = strcspn(t, "=");
        json_object_setn_new(j, t, n, json_text(t + n + 1, strlen(t + n + 1)));
    }
    return j;
}

/* Of all plain streams, one after the other: what tells them from those of another build. */
static json_t *streams_json(const struct prompt *p, int n_prompts)
{
    uLong crc = crc32(0, NULL, 0);
    json_int_t tokens = 0;
    char text[16];
    for (int i = 0; i < n_prompts; i++) {
        const uint64_t length = (uint64_t)p[i].n_plain; /* two streams are not one that is cut elsewhere */
        crc = crc32(crc, (const Bytef *)&length, sizeof length);
        crc = crc32(crc, (const Bytef *)p[i].plain, (uInt)((size_t)p[i].n_plain * sizeof *p[i].plain));
        tokens += (json_int_t)p[i].n_plain;
    }
    snprintf(text, sizeof text, "%08lx", crc & 0xffffffff);
    return json_pack("{s:s,s:I}", "crc32", text, "tokens", tokens);
}

static json_t *line(const struct kind *plain, const struct kind *drafted, const struct prompt *p,
                    int n_prompts, double ceiling, bool equal)
{
    json_int_t prompt_tokens = 0;
    for (int i = 0; i < n_prompts; i++) prompt_tokens += (json_int_t)p[i].n;
    double decode = sample_quantile(&plain->decode, 0.5);
    json_t *j = json_pack(
        "{s:i,s:s,s:o,s:o,s:o,s:i,s:I,s:i,s:o,s:o,s:o,s:o,s:o,s:o}", "schema", 1, "kind", "cell", "label",
        json_text(o.label, strlen(o.label)), "tags", tags_json(), "target", bench_target_json(&o.m),
        "prompts", n_prompts, "prompt_tokens", prompt_tokens, "runs", o.runs, "settings", settings_json(),
        "plain", kind_json(plain, false), "read_ceiling_bytes_per_s", json_finite(ceiling),
        "plain_share_of_ceiling", json_finite(decode * (double)o.m.target->bytes_step / ceiling), "streams",
        o.synthetic.slots ? json_null() : streams_json(p, n_prompts), "machine", bench_machine(&o.m));
    json_object_set_new(j, "link_bytes_per_s", json_finite(bench_link(&o.m)));
    if (!two_kinds()) return j;
    struct verdict v = verdict_of(&plain->decode, &drafted->decode);
    if (o.m.drafter) json_object_set_new(j, "drafter", bench_model_json(o.m.drafter_path, o.m.drafter));
    json_object_set_new(j, "drafted", kind_json(drafted, true));
    json_object_set_new(j, "speedup", verdict_json(&v));
    json_object_set_new(j, "equal", o.synthetic.slots ? json_null() : json_boolean(equal));
    if (o.synthetic.slots)
        json_object_set_new(j, "synthetic",
                            json_pack("{s:s,s:o,s:o}", "from", o.accept_rates ? "rates" : "trace", "what",
                                      json_text_or_null(o.accept_rates ? o.accept_rates : o.accept_trace),
                                      "mean", json_finite(synthetic_mean(&o.synthetic))));
    return j;
}

static int measure(struct prompt *p, int n_prompts, struct sink *out, bool *equal, struct err *e)
{
    struct kind *k = mem_calloc(2, sizeof *k);
    uint64_t bytes = o.m.target->bytes_step;
    int threads = bench_threads(&o.m), rc = -1;
    if (!k) return err_set(e, ERR_IO, "out of memory (samples)");
    double ceiling = bench_ceiling(&o.m, bytes, threads, 3);
    for (int r = -o.warmup; r < o.runs; r++) {
        cli_progress(&cli, "run", (uint64_t)(r + o.warmup), (uint64_t)(o.runs + o.warmup), "");
        for (int drafted = 0; drafted <= two_kinds(); drafted++)
            if (one_run(p, n_prompts, drafted, r >= 0, &k[drafted], out, equal, e)) goto done;
        if (r == o.runs / 2) ceiling = fmax(ceiling, bench_ceiling(&o.m, bytes, threads, 2));
    }
    ceiling = fmax(ceiling, bench_ceiling(&o.m, bytes, threads, 3));
    cli_progress(&cli, "run", (uint64_t)(o.runs + o.warmup), (uint64_t)(o.runs + o.warmup), "");
    if (o.synthetic.slots)
        cli_note(&cli, "acceptance is stated, %.2f tokens a cycle at most: no stream was compared or kept",
                 synthetic_mean(&o.synthetic));
    rc = bench_emit(line(&k[0], &k[1], p, n_prompts, ceiling, *equal), e);
done:
    mem_free(k);
    return rc;
}

static int read_prompts(struct prompt *p, struct err *e)
{
    for (int i = 0; i < cli.n_args; i++) {
        if (bench_read_tokens(cli.args[i], &p[i].id, &p[i].n, e)) return -1;
        if (!p[i].n) return err_set(e, ERR_FORMAT, "%s: the prompt is empty", cli.args[i]);
    }
    return 0;
}

/* What the descriptions say against the prompts and the flags; o.m.check. */
static int check_prompts(void *ctx, struct err *e)
{
    const struct prompt *p = ctx;
    const int32_t block = o.m.drafter ? o.block ? o.block : desc_cycle_rows(o.m.drafter->d) : 1;
    if (lookup_flags_open(&o.lookup, &o.m, e)) return -1;
    if (two_kinds() && spec_width_check(o.plan.rows, block, o.lookup.look, e)) return -1;
    if (o.accept_rates && synthetic_rates(&o.synthetic, o.accept_rates, block - 1, STATED_POSITIONS,
                                          o.sampling.sampler.seed, e))
        return -1;
    if (o.accept_trace && synthetic_trace(&o.synthetic, o.accept_trace, block - 1, e)) return -1;
    if (o.synthetic.slots) o.ignore_eos = true; /* the ids are not those of a text */
    for (int i = 0; i < cli.n_args; i++) {
        if (models_check_ids(&o.m, cli.args[i], p[i].id, p[i].n, e)) return -1;
        int64_t need = (int64_t)p[i].n + o.n + models_block(&o.m, o.block);
        if (need > (o.ctx ? o.ctx : SESSION_MAX_CTX))
            return err_set(e, ERR_USAGE,
                           "%s: --ctx is too small (expected %lld: %zu prompt tokens, %lld new ones and a "
                           "block, got %d)",
                           cli.args[i], (long long)need, p[i].n, (long long)o.n,
                           o.ctx ? o.ctx : SESSION_MAX_CTX);
        models_check_bos(&o.m, &cli, p[i].id, p[i].n);
        models_check_length(&o.m, &cli, (int64_t)p[i].n + o.n);
    }
    return 0;
}

static int open_output(struct redirect *file, struct err *e)
{
    const char *inputs[BENCH_INPUTS];
    int n = plan_flags_inputs(&o.plan, inputs);
    if (o.lookup.path) inputs[n++] = o.lookup.path;
    if (o.accept_trace) inputs[n++] = o.accept_trace;
    for (int i = 0; i < cli.n_args; i++) inputs[n++] = cli.args[i];
    return bench_redirect(file, out_path, force, &o.m, inputs, n, e);
}

int bench_run(int argc, char **argv)
{
    struct err e = {0};
    struct redirect file;
    struct sink out = {0};
    bool equal = true;
    int rc = ERR_IO;
    cli_parse(&cli, argc, argv);
    if (!o.m.target_path) cli_usage_error(&cli, "no target (expected -m TARGET.gguf)");
    check_flags();
    cli_one_stdin(&cli, cli.args, cli.n_args);
    if (open_output(&file, &e)) return cli_fail(&cli, &e);
    struct prompt *p = mem_calloc((size_t)cli.n_args, sizeof *p);
    out.id = mem_alloc((size_t)(o.n + SESSION_MAX_ROWS) * sizeof *out.id);
    if (!p || !out.id) {
        err_set(&e, ERR_IO, "out of memory (prompts)");
        goto done;
    }
    o.m.known = (struct session_options){.ctx = o.ctx ? o.ctx : (int32_t)(o.n + SESSION_MAX_ROWS),
                                         .chunk = o.chunk,
                                         .block = o.block,
                                         .draft_window = o.draft_window,
                                         .tree = o.plan.tree_most,
                                         .check_layers = o.m.check_layers};
    o.m.check = check_prompts;
    o.m.check_ctx = p;
    if (plan_flags_read(&o.plan, &e) || lookup_flags_read(&o.lookup, &e) || read_prompts(p, &e) ||
        models_open(&o.m, &cli, &e) || sampling_flags_open(&o.sampling, &o.m, &e))
        goto done;
    if (measure(p, cli.n_args, &out, &equal, &e)) goto done;
    rc = equal ? 0 : ERR_NEGATIVE;
    if (!equal) cli_warn(&cli, "the drafted streams differ from the plain ones");
done:
    if (e.code) rc = cli_fail(&cli, &e);
    for (int i = 0; p && i < cli.n_args; i++) {
        mem_free(p[i].id);
        mem_free(p[i].plain);
    }
    mem_free(p);
    mem_free(out.id);
    synthetic_free(&o.synthetic);
    lookup_flags_close(&o.lookup);
    sampling_flags_close(&o.sampling, &o.m);
    models_close(&o.m);
    return redirect_close(&file, &cli, rc);
}
