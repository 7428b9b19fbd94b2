/* dflash-generate - continue a prompt or a state, with or without a drafter. */
#include <errno.h>
#include <signal.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "serve.h"
#include "../../common/base/io.h"
#include "../../common/base/mem.h"

static struct settings set = {
    .m = MODELS_INIT,
    .n = -1,
    .sampling = SAMPLING_INIT,
    .serve = {.stream_fd = -1, .slot_bytes = (int64_t)4 << 30},
};

static const struct cli_flag flags[] = {
    MODELS_FLAGS(set.m),
    {"-n", CLI_I64, &set.n, "N", "tokens at most (default: to the end of the text, or of the context)", 1,
     SESSION_MAX_CTX},
    {"-o", CLI_STR, &set.out_path, "FILE", "write the tokens there (default stdout)", 0, 0},
    {"--force", CLI_FLAG, &set.force, NULL, "replace an existing FILE of -o or --save-state", 0, 0},
    {"--state", CLI_STR, &set.state_path, "STATE", "continue a saved state; stdin is not read", 0, 0},
    KV_CONVERT_FLAG(set.m.kv),
    SPARSE_FLAGS(set.m.sparse),
    {"--append", CLI_FLAG, &set.append, NULL, "prefill the tokens of stdin after the state", 0, 0},
    {"--save-state", CLI_STR, &set.save_path, "FILE",
     "write what the stream leaves behind, to be gone on with", 0, 0},
    {"--stop", CLI_STR, &set.stop_list, "LIST", "more ids that end the stream, as 1,2,3", 0, 0},
    {"--stop-text", CLI_LIST, &set.text.stops, "TEXT", "end with the token that completes TEXT; repeatable",
     0, 0},
    {"--ignore-eos", CLI_FLAG, &set.ignore_eos, NULL, "the model's own stop ids do not end the stream", 0, 0},
    SAMPLING_FLAGS(set.sampling),
    {"--block", CLI_I32, &set.block, "B", "rows a draft block (default: as the drafter was trained)", 2,
     SESSION_MAX_ROWS},
    PLAN_FLAGS(set.plan),
    PLAN_MTP_FLAG(set.plan),
    {"--draft-window", CLI_I32_ALL, &set.draft_window, "N|all",
     "positions of context the drafter sees, on any layer (default 0: the windows of its layers, and of "
     "those without three of them)",
     0, INT32_MAX},
    {"--draft-sampling", CLI_STR, &set.draft_sampling, "NAME",
     "coupled (the default: proposals take the noise of the picks to come) or greedy", 0, 0},
    LOOKUP_FLAGS(set.lookup),
    {"--chunk", CLI_I32, &set.chunk, "N", "tokens a prefill pass (default 512, or as the state has it)", 1,
     1 << 20},
    {"--ctx", CLI_I32, &set.ctx, "N",
     "positions to make room for (default: what -n needs, or as the target was trained)", 1, SESSION_MAX_CTX},
    {"--stats", CLI_STR, &set.stats_path, "FILE", "write the statistics as one JSON object", 0, 0},
    {"--logprobs", CLI_COUNTED, &set.text.logprobs, "K FILE",
     "write each token's log-probability there, and the K likeliest tokens'", 0, 1000},
    {"--draft-trace", CLI_STR, &set.trace_path, "FILE", "write every cycle's proposals, int32", 0, 0},
    {"--draft-logits", CLI_STR, &set.draft_logits_path, "FILE",
     "write the first block's logits, float32 [block, n_vocab]", 0, 0},
    {"--serve", CLI_FLAG, &set.serve.on, NULL, "stay, and answer requests, a line each (docs/serve.md)", 0,
     0},
    {"--stream-fd", CLI_I32, &set.serve.stream_fd, "N", "--serve: write tokens to this descriptor", 3,
     1 << 20},
    {"--listen", CLI_STR, &set.serve.listen, "PATH",
     "--serve: take requests from a Unix socket there, not from stdin", 0, 0},
    {"--root", CLI_STR, &set.serve.root, "DIR", "--serve: paths in requests stay below DIR", 0, 0},
    {"--streams", CLI_I32, &set.serve.streams, "N",
     "--serve: requests that run at once (default 1; with --listen 2)", 1, 1024},
    {"--slot-bytes", CLI_I64, &set.serve.slot_bytes, "N",
     "--serve: memory for slots and kept beginnings of prompts (default 4 GiB; 0: none)", 0,
     (double)(1ll << 50)},
    {"--time-limit", CLI_F32, &set.serve.time_limit, "S",
     "--serve: seconds that a request may take (default 0: no limit)", 0, 1e9},
    {NULL, CLI_FLAG, NULL, NULL, NULL, 0, 0},
};
static struct cli cli = {
    .tool = "generate",
    .synopsis = "-m TARGET.gguf [-d DRAFTER.gguf] [-n N] [flags] < tokens > tokens\n"
                "-m TARGET.gguf [-d DRAFTER.gguf] --state STATE [--append] [--save-state FILE] [-n N] "
                "[flags] > tokens\n"
                "-m TARGET.gguf [-d DRAFTER.gguf] --serve | --listen PATH [flags]",
    .summary = "Continue a prompt of raw int32 token ids. The output is the same with and without a drafter.",
    .flags = flags,
};

/* ---- outputs ---- */

struct outputs {
    struct io_out tokens, stats, trace, draft_logits, logprobs, state;
};

/* Ctrl-C ends the reader of a pipe too: what it did not take is in the state. */
static int write_tokens(void *ctx, const int32_t *ids, int32_t n, struct err *e)
{
    struct outputs *o = ctx;
    struct err own = {0};
    errno = 0;
    if (io_write_tokens(&o->tokens, ids, (size_t)n, &own) == 0 && io_out_flush(&o->tokens, &own) == 0)
        return 0;
    if (errno == EPIPE && io_interrupted()) return 0;
    *e = own;
    return -1;
}

static bool interrupted(void *ctx)
{
    (void)ctx;
    return io_interrupted();
}

static int write_trace(void *ctx, const int32_t *ids, int32_t n, struct err *e)
{
    struct outputs *o = ctx;
    return set.trace_path ? io_write_tokens(&o->trace, ids, (size_t)n, e) : 0;
}

static int write_draft_row(void *ctx, const float *row, int32_t n_vocab, struct err *e)
{
    struct outputs *o = ctx;
    return io_out_write(&o->draft_logits, row, (size_t)n_vocab * sizeof *row, e);
}

static bool ends(void *ctx, int32_t id)
{
    (void)ctx;
    return text_ends(&set.text, id);
}

static int write_logprobs(void *ctx, int32_t id, const float *logits, int32_t n_vocab, struct err *e)
{
    struct outputs *o = ctx;
    return text_picked(&set.text, id, logits, n_vocab, &o->logprobs, e);
}

static int open_outputs(struct outputs *o, struct err *e)
{
    /* A state may take the place of the one that it goes on from, which is the last of the inputs. */
    const char *inputs[1 + MODELS_INPUTS + PLAN_INPUTS + 2] = {"-"};
    int n = 1 + models_inputs(&set.m, inputs + 1);
    n += plan_flags_inputs(&set.plan, inputs + n);
    if (set.lookup.path) inputs[n++] = set.lookup.path;
    if (set.state_path) inputs[n++] = set.state_path;
    const bool over = set.save_path && set.state_path && io_same_file(set.save_path, set.state_path);
    const struct {
        const char *path;
        struct io_out *out;
    } more[] = {{set.stats_path, &o->stats},
                {set.trace_path, &o->trace},
                {set.draft_logits_path, &o->draft_logits},
                {set.text.logprobs.name, &o->logprobs}};
    if (io_out_open(&o->tokens, set.out_path, set.force, inputs, n, e)) return -1;
    for (int i = 0; i < 4; i++)
        if (more[i].path && io_out_open(more[i].out, more[i].path, true, inputs, n, e)) return -1;
    return set.save_path ? io_out_open(&o->state, set.save_path, set.force || over, inputs, n - over, e) : 0;
}

static int commit_outputs(struct outputs *o, struct err *e)
{
    struct io_out *const all[] = {&o->tokens,       &o->stats,    &o->trace,
                                  &o->draft_logits, &o->logprobs, &o->state};
    return io_outs_commit(all, (int)(sizeof all / sizeof *all), e);
}

static void abort_outputs(struct outputs *o)
{
    struct io_out *all[] = {&o->tokens, &o->stats, &o->trace, &o->draft_logits, &o->logprobs, &o->state};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) io_out_abort(all[i]);
}

/* ---- stops ---- */

int stops_read(const struct settings *own, int32_t **ids, int32_t *n, struct err *e)
{
    const struct desc *d = own->m.target->d;
    const char *p = own->stop_list ? own->stop_list : "";
    size_t room = (size_t)d->n_stops + strlen(p) / 2 + 1;
    *n = 0;
    *ids = mem_alloc(room * sizeof **ids);
    if (!*ids) return err_set(e, ERR_IO, "out of memory (stop ids)");
    while (own->stop_list && p) { /* p: the next number */
        char *end;
        errno = 0;
        long long v = strtoll(p, &end, 10);
        if (*p >= '0' && *p <= '9' && (!*end || *end == ',') && (errno || v >= d->n_vocab))
            return err_set(e, ERR_USAGE, "--stop: an id out of the vocabulary (expected 0 to %d, got %.*s)",
                           d->n_vocab - 1, (int)strcspn(p, ","), p);
        if (*p < '0' || *p > '9' || (*end && *end != ','))
            return err_set(e, ERR_USAGE,
                           "--stop: not a list of ids (expected 0 to %d with commas between, got '%s')",
                           d->n_vocab - 1, own->stop_list);
        (*ids)[(*n)++] = (int32_t)v;
        p = *end ? end + 1 : NULL;
    }
    return 0;
}

/* Those, and the model's own ids, unless they are ignored. */
static int make_stops(int32_t **ids, int32_t *n, struct err *e)
{
    const struct desc *d = set.m.target->d;
    if (stops_read(&set, ids, n, e)) return -1;
    for (int i = 0; i < d->n_stops && !set.ignore_eos; i++) (*ids)[(*n)++] = d->stops[i];
    return 0;
}

/* ---- the run ---- */

static void progress(void *ctx, int64_t done, int64_t total)
{
    (void)ctx;
    cli_progress(&cli, "prefill", (uint64_t)done, (uint64_t)total, "tokens");
}

struct run {
    struct outputs out;
    struct state *state;
    struct state_info info; /* zero without a state */
    struct session_options o;
    struct session *s;
    int32_t *prompt, *stops;
    size_t n_prompt;
    bool prompt_read, trained; /* trained: for want of -n and --ctx the caches are of the trained context */
    int32_t n_stops;
    int64_t left_out; /* tokens of the text that the state does not hold */
    struct result r;
};

static bool from_stdin(void)
{
    return !set.state_path || set.append;
}

/* Of state and prompt what was not read yet; unless late, only what is in files, which need not be waited
 * for. */
static int read_inputs(struct run *u, bool late, struct err *e)
{
    if (set.state_path && !u->state && (late || !io_path_waits(set.state_path)) &&
        state_open(&u->state, set.state_path, &u->info, e))
        return -1;
    if (!from_stdin() || u->prompt_read || (!late && io_waits(STDIN_FILENO))) return 0;
    if (io_read_tokens(STDIN_FILENO, "stdin", &u->prompt, &u->n_prompt, e)) return -1;
    u->prompt_read = true;
    return set.state_path || u->n_prompt
               ? 0
               : err_set(e, ERR_FORMAT, "stdin: the prompt is empty (expected at least one token)");
}

/* The options of a session large enough; what the state says is taken where the flags say nothing, and must
 * agree where they do. */
static int make_options(struct run *u, struct err *e)
{
    const struct desc *t = set.m.target->d, *d = set.m.drafter ? set.m.drafter->d : NULL;
    int64_t prompt = (int64_t)u->info.n_tokens + (int64_t)u->n_prompt;
    const int32_t block = models_block(&set.m, set.block);
    int64_t need = prompt + set.n + block;
    u->o = (struct session_options){.ctx = set.ctx,
                                    .chunk = set.chunk ? set.chunk : u->info.chunk,
                                    .block = set.block,
                                    .draft_window = set.draft_window,
                                    .draft_greedy = cli_draft_greedy(&cli, set.draft_sampling),
                                    .look = set.lookup.look,
                                    .tree = set.plan.tree_most,
                                    .check_layers = set.m.check_layers,
                                    .progress = progress};
    if (set.ctx && need > set.ctx)
        return err_set(e, ERR_USAGE,
                       "--ctx is too small (expected %" PRId64 ": a prompt of %" PRId64 ", %" PRId64
                       " new tokens and a block of %d, got %d)",
                       need, prompt, set.n, block, set.ctx);
    if (need > SESSION_MAX_CTX)
        return err_set(e, ERR_USAGE,
                       "prompt and -n need too large a context (expected at most %d, got %" PRId64 ")",
                       SESSION_MAX_CTX, need);
    if (!set.ctx) u->o.ctx = (int32_t)need;
    if (models_kv(&set.m, u->state ? &u->info : NULL, &u->o, e)) return -1;
    if (models_check_options(&set.m, &u->o, e)) return -1;
    if ((d || u->o.look) && spec_width_check(set.plan.rows, u->o.block, u->o.look, e)) return -1;
    const struct desc *drafters[PLAN_SOURCES];
    const int32_t n = models_drafters(&set.m, drafters);
    return u->state ? state_check(u->state, t, drafters, n, &u->o, e) : 0;
}

/* Without -n: what the context holds behind the prompt, which is --ctx, or what the target was trained for.
 */
static int rest_of_context(struct run *u, struct err *e)
{
    const int32_t block = models_block(&set.m, set.block);
    const int64_t ctx = set.ctx ? set.ctx : set.m.target->d->n_ctx_train - u->left_out,
                  used = (int64_t)u->info.n_tokens + (int64_t)u->n_prompt + block;
    if (set.n >= 0) return 0;
    if (ctx < 1) return err_set(e, ERR_USAGE, "-n N is missing, and the target does not say its context");
    if (used >= ctx)
        return err_set(e, ERR_USAGE,
                       "the context is full (expected room behind the prompt%s, got %" PRId64
                       " positions of %" PRId64 ")",
                       set.m.drafter ? " and a block" : "", used, ctx);
    set.n = ctx - used;
    u->trained = !set.ctx;
    return 0;
}

static int check_inputs(struct run *u, struct err *e)
{
    u->left_out = models_left_out(&cli, &u->info);
    if (models_check_ids(&set.m, "stdin", u->prompt, u->n_prompt, e) || rest_of_context(u, e)) return -1;
    if (!set.state_path) models_check_bos(&set.m, &cli, u->prompt, u->n_prompt);
    models_check_length(&set.m, &cli, (int64_t)u->info.n_tokens + (int64_t)u->n_prompt + set.n + u->left_out);
    return make_options(u, e);
}

static bool inputs_read(const struct run *u)
{
    return (!set.state_path || u->state) && (!from_stdin() || u->prompt_read);
}

/* What the descriptions say against the flags and the inputs that are there; set.m.check. */
static int check_run(void *ctx, struct err *e)
{
    struct run *u = ctx;
    if (make_stops(&u->stops, &u->n_stops, e) || text_open(&set.text, set.m.target, e) ||
        sampling_flags_open(&set.sampling, &set.m, e) || lookup_flags_open(&set.lookup, &set.m, e))
        return -1;
    if (inputs_read(u) && check_inputs(u, e)) return -1;
    /* A device is asked before weights are loaded for what is known by now. With a state it is not: its cache
     * types may be smaller than those of the flags. */
    if (!set.state_path && inputs_read(u))
        set.m.known.ctx = u->o.ctx;
    else if (!set.state_path && !set.ctx && set.n < 0 && set.m.target->d->n_ctx_train > 0)
        set.m.known.ctx = set.m.target->d->n_ctx_train;
    return 0;
}

/* The models, and the inputs before or after them. */
static int open_all(struct run *u, struct err *e)
{
    set.m.known = (struct session_options){.ctx = set.ctx     ? set.ctx
                                                  : set.n > 0 ? (int32_t)set.n
                                                              : 1,
                                           .chunk = set.chunk,
                                           .block = set.block,
                                           .draft_window = set.draft_window,
                                           .tree = set.plan.tree_most,
                                           .check_layers = set.m.check_layers};
    set.m.check = check_run;
    set.m.check_ctx = u;
    if (plan_flags_read(&set.plan, e) || lookup_flags_read(&set.lookup, e) || read_inputs(u, false, e))
        return -1;
    const bool early = inputs_read(u);
    if (models_open(&set.m, &cli, e)) return -1;
    return early ? 0 : read_inputs(u, true, e) || check_inputs(u, e) ? -1 : 0;
}

static int make_session(struct run *u, struct err *e)
{
    if (u->trained)
        cli_detail(&cli, "no -n and no --ctx: room for %d positions, which the target was trained for",
                   u->o.ctx);
    if (models_session(&set.m, &cli, &u->o, &u->s, e)) {
        if (u->trained && (e->code == ERR_IO || e->code == ERR_DEVICE))
            err_hint(
                e,
                "without -n and --ctx there is room for the %d positions that the target was trained for; "
                "--ctx N asks for less",
                u->o.ctx);
        return -1;
    }
    return u->state ? state_restore(u->state, u->s, e) : 0;
}

static int prefill(struct run *u, struct err *e)
{
    double start = cli_seconds();
    if (u->n_prompt && session_prefill(u->s, u->prompt, (int64_t)u->n_prompt, NULL, NULL, e)) return -1;
    u->r.prefilled = (int64_t)u->n_prompt;
    u->r.prompt_tokens = set.text.position = u->s->n_past;
    u->r.prefill_s = u->n_prompt ? cli_seconds() - start : 0;
    report_prefill(&cli, &u->r);
    return 0;
}

static int generate(struct run *u, struct err *e)
{
    const struct spec_options o = {.n = set.n,
                                   .sampler = set.sampling.sampler,
                                   .stops = u->stops,
                                   .n_stops = u->n_stops,
                                   .width = set.plan.rows,
                                   .tree = set.plan.tree_fixed ? set.plan.tree_most : 0,
                                   .tree_seed = set.plan.seeded,
                                   .planner = set.plan.planner.next ? &set.plan.planner : NULL,
                                   .look_only = set.lookup.only,
                                   .draft_logits = set.draft_logits_path != NULL,
                                   .tokens = write_tokens,
                                   .proposals = write_trace,
                                   .draft_row = write_draft_row,
                                   .ends = set.text.stops.n ? ends : NULL,
                                   .picked = set.text.logprobs.name ? write_logprobs : NULL,
                                   .row = set.text.row,
                                   .interrupted = interrupted,
                                   .ctx = &u->out};
    io_interrupts_catch();
    return spec_generate(u->s, &o, &u->r.st, e);
}

/* What may not be what was meant: a message that --append would prefill; context of a drafter that ends here.
 */
static void warn_state(const struct run *u)
{
    static bool said;
    if (!said && !from_stdin() && !cli_is_stdin(set.state_path) && io_holds_data(STDIN_FILENO)) {
        cli_warn(&cli, "stdin holds data, which is not read: --append prefills it after the state");
        said = true;
    }
    if (set.save_path && !u->r.st.generated)
        models_warn_dropped(&set.m, &cli, &u->info, set.state_path, set.save_path);
}

static int run(struct run *u, struct err *e)
{
    if (open_outputs(&u->out, e) || open_all(u, e) || make_session(u, e)) return -1;
    warn_state(u);
    if (prefill(u, e) ||
        (set.n > 1 && plan_flags_open(&set.plan, u->s, set.lookup.only, &set.sampling.sampler, e)) ||
        generate(u, e) || (set.save_path && state_save(u->s, &u->out.state, e)))
        return -1;
    warn_state(u);
    if (set.stats_path && report_write(&set, u->s, &u->r, &u->out.stats, e)) return -1;
    if (commit_outputs(&u->out, e)) return -1;
    report_print(&cli, &set, u->s, &u->r);
    if (set.draft_logits_path && !u->r.st.cycles)
        cli_warn(&cli, "no block was drafted (the stream ended with its first token): %s is empty",
                 set.draft_logits_path);
    cli_detail(&cli, "%.1f MiB of caches and activations", (double)session_bytes(u->s) / 1048576);
    return 0;
}

/* What the flag table's ranges cannot say. */
static void check_flags(void)
{
    models_check_flags(&set.m, &cli);
    serve_check_flags(&set, &cli);
    text_check(&set.text, &cli);
    sparse_flags_check(&set.m.sparse, set.state_path, &cli);
    if (set.m.sparse.alpha >= 0 && set.serve.on)
        cli_usage_error(&cli,
                        "--sparse: --serve runs prompts in pieces (expected no --serve, or dense prompts)");
    if (*kv_flags_convert_doubt(&set.m.kv, set.state_path))
        cli_usage_error(&cli, "%s", kv_flags_convert_doubt(&set.m.kv, set.state_path));
    if (set.append && !set.state_path) cli_usage_error(&cli, "--append needs --state STATE");
    if (set.append && (cli_is_stdin(set.state_path) || !strcmp(set.state_path, "/dev/stdin")))
        cli_usage_error(&cli, "--append reads tokens from stdin: the state must be a file");
    const struct cli_output out[] = {
        {"-o", set.out_path ? set.out_path : "-"}, {"--stats", set.stats_path},
        {"--draft-trace", set.trace_path},         {"--draft-logits", set.draft_logits_path},
        {"--logprobs", set.text.logprobs.name},    {"--save-state", set.save_path}};
    cli_distinct_outputs(&cli, out, 6);
    sampling_flags_check(&set.sampling, &cli);
    cli_draft_greedy(&cli, set.draft_sampling);
    plan_flags_check(&set.plan, &cli);
    plan_flags_check_mtp(&set.plan, &cli, set.m.mtp);
    const bool look = lookup_flags_check(&set.lookup, &cli);
    const struct {
        const char *name;
        bool given;
    } draft[] = {{"--block", set.block > 0},
                 {"--width", set.plan.width && !look},
                 {"--tree", set.plan.tree != NULL},
                 {"--plan-times", set.plan.times_path && !look},
                 {"--calibration", set.plan.calibration_path && !look},
                 {"--draft-window", set.draft_window > 0},
                 {"--draft-sampling", set.draft_sampling != NULL},
                 {"--draft-trace", set.trace_path != NULL},
                 {"--draft-logits", set.draft_logits_path != NULL}};
    for (size_t i = 0; i < sizeof draft / sizeof draft[0] && !set.m.drafter_path; i++)
        if (draft[i].given) cli_usage_error(&cli, "%s needs a drafter (-d DRAFTER)", draft[i].name);
    if (set.plan.tree && set.lookup.only)
        cli_usage_error(&cli, "--tree and --lookup only: a look-up has one chain (expected --lookup on)");
    if (set.m.mtp && set.lookup.only) models_no_mtp(&set.m, &cli, "--lookup only");
    if (set.trace_path) models_no_mtp(&set.m, &cli, "--draft-trace");
    if (set.draft_logits_path) models_no_mtp(&set.m, &cli, "--draft-logits");
    if (set.trace_path && plan_flags_auto(&set.plan) && !set.plan.times_path)
        cli_usage_error(&cli, "--draft-trace: what is drafted hangs on times that are measured now (expected "
                              "--width N, --tree N, or --plan-times FILE)");
}

static void close_flags(void)
{
    lookup_flags_close(&set.lookup);
    sampling_flags_close(&set.sampling, &set.m);
    models_close(&set.m);
}

int main(int argc, char **argv)
{
    struct err e = {0};
    struct run u = {0};
    int rc;
    cli_parse(&cli, argc, argv);
    check_flags();
    if (set.serve.on) {
        rc = serve(&set, &cli);
        close_flags();
        if (!rc) rc = cli_close_stdout(&cli);
        if (!rc && serve_stopped()) raise(serve_stopped()); /* its handler is the default's again */
        return rc;
    }
    if (!set.state_path || set.append) cli_no_binary_tty(&cli, STDIN_FILENO, "the token stream");
    if (set.state_path && !strcmp(set.state_path, "-")) cli_no_binary_tty(&cli, STDIN_FILENO, "a state");
    cli_no_binary_out(&cli, set.out_path, "the token stream");
    if (set.trace_path) cli_no_binary_out(&cli, set.trace_path, "the proposals");
    if (set.draft_logits_path) cli_no_binary_out(&cli, set.draft_logits_path, "the drafter's logits");
    if (set.save_path) cli_no_binary_out(&cli, set.save_path, "the state");
    rc = run(&u, &e);
    abort_outputs(&u.out);
    session_free(u.s);
    state_close(u.state);
    mem_free(u.prompt);
    mem_free(u.stops);
    text_close(&set.text);
    close_flags();
    if (rc) return cli_fail(&cli, &e);
    rc = cli_close_stdout(&cli);
    if (!rc) io_interrupts_end();
    return rc;
}
