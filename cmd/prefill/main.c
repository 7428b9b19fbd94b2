/* dflash-prefill - run a prompt once and keep what it leaves: a state for dflash-generate, logits, a
 * perplexity, or an importance matrix. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../cli.h"
#include "../models.h"
#include "compress.h"
#include "nll.h"
#include "../../common/file/imatrix.h"
#include "../../common/base/io.h"
#include "../../common/base/mem.h"
#include "../../common/run/session.h"
#include "../../common/run/state.h"

static struct models m = MODELS_INIT;
static const char *out_path, *state_path, *logits_path, *hidden_path, *imatrix_path, *dataset;
static int32_t chunk, ctx_size;
static struct compress_flags cf;
static struct nll nll;
static bool force;

static const struct cli_flag flags[] = {
    MODELS_FLAGS(m),
    {"-o", CLI_STR, &out_path, "STATE", "write the state there (default stdout)", 0, 0},
    {"--force", CLI_FLAG, &force, NULL, "replace an existing STATE", 0, 0},
    {"--state", CLI_STR, &state_path, "STATE", "go on behind a saved state", 0, 0},
    KV_CONVERT_FLAG(m.kv),
    SPARSE_FLAGS(m.sparse),
    {"--chunk", CLI_I32, &chunk, "N", "tokens a pass, part of the state (default 512, or as STATE has it)", 1,
     1 << 20},
    {"--ctx", CLI_I32, &ctx_size, "N",
     "positions to make room for (default: what the prompt needs); with --nll tokens a window", 1,
     SESSION_MAX_CTX},
    COMPRESS_FLAGS(cf),
    {"--logits", CLI_STR, &logits_path, "FILE",
     "write the logits of every token of stdin, float32 [n, n_vocab]", 0, 0},
    {"--hidden", CLI_STR, &hidden_path, "FILE",
     "write what every layer leaves, float32 [n_layer + 1, n, n_embd]", 0, 0},
    {"--imatrix", CLI_STR, &imatrix_path, "FILE",
     "add the squares of the inputs of the target's products to this importance matrix; no state without -o",
     0, 0},
    {"--dataset", CLI_STR, &dataset, "NAME", "what FILE says of the tokens (default stdin)", 0, 0},
    {"--nll", CLI_FLAG, &nll.wanted, NULL,
     "print the perplexity instead of writing a state: of the whole prompt, or of windows of --ctx tokens", 0,
     0},
    {"--kl-save", CLI_STR, &nll.save_path, "FILE",
     "with --nll and --ctx: write the log-probabilities, for --kl-base here or in llama-perplexity", 0, 0},
    {"--kl-base", CLI_STR, &nll.base_path, "FILE",
     "with --nll: compare with these, over their tokens: KL divergence, agreement of the likeliest token", 0,
     0},
    {"--json", CLI_FLAG, &nll.json, NULL, "with --nll: one line of JSON", 0, 0},
    {NULL, CLI_FLAG, NULL, NULL, NULL, 0, 0},
};
static struct cli cli = {
    .tool = "prefill",
    .synopsis = "-m TARGET.gguf [-d DRAFTER.gguf] [--state STATE] [-o STATE] [--chunk N] "
                "[--compress KEEP [--scorer MODEL] [--kept FILE]] [--logits FILE] "
                "[--hidden FILE] < "
                "tokens > state\n"
                "-m TARGET.gguf --nll [--ctx N [--kl-save FILE]] [--json] < tokens\n"
                "-m TARGET.gguf --nll --kl-base FILE [--json]\n"
                "-m TARGET.gguf --imatrix FILE [--dataset NAME] < tokens",
    .summary = "Run a prompt of raw int32 token ids and write the state that dflash-generate resumes from.",
    .flags = flags,
};

/* The file of --hidden. */
struct planes {
    struct io_out out;
    size_t n;     /* tokens of the prompt */
    int32_t from; /* the position of its first */
};

static int take_plane(void *ctx, int32_t plane, const float *rows, int32_t n, int32_t pos, struct err *e)
{
    struct planes *p = ctx;
    const uint64_t width = (uint64_t)m.target->d->n_embd * sizeof *rows;
    return io_out_place(&p->out, ((uint64_t)plane * p->n + (uint64_t)(pos - p->from)) * width, rows,
                        (size_t)n * width, e);
}

/* What is made of the logits of all positions. */
struct rows {
    const int32_t *ids;
    size_t n;
    int32_t from; /* the position of the first */
    int32_t n_vocab;
    struct io_out *logits;       /* NULL: not wanted */
    struct perplexity *p;        /* of the tokens that a row predicts; NULL: not wanted */
    struct imatrix_watch *watch; /* NULL: none */
    const struct session *s;
};

static int take_rows(void *ctx, const float *rows, int32_t n, int32_t pos, struct err *e)
{
    struct rows *r = ctx;
    const size_t at = (size_t)(pos - r->from);
    const int32_t scored = at + (size_t)n < r->n ? n : n - 1; /* the last token predicts none */
    for (int32_t i = 0; i < n; i++)
        if (session_check_row(r->s, rows + (size_t)i * (size_t)r->n_vocab, pos + i, e)) return -1;
    if (r->p && scored > 0 && perplexity_add(r->p, rows, scored, r->ids + at + 1, NULL, e)) return -1;
    /* The head runs once more over the last row, for the state: that one is not to count twice. */
    if (r->watch && at + (size_t)n == r->n) imatrix_watch_stop(r->watch);
    return r->logits ? io_out_write(r->logits, rows, (size_t)n * (size_t)r->n_vocab * sizeof *rows, e) : 0;
}

static void progress(void *ctx, int64_t done, int64_t total)
{
    (void)ctx;
    cli_progress(&cli, "prefill", (uint64_t)done, (uint64_t)total, "tokens");
}

/* The prompt and the state that it stands behind, from files before the models are loaded, else after them;
 * and what it will be added to. */
struct prompt {
    int32_t *ids;
    size_t n;
    bool read;
    struct state *state;    /* NULL: none, or not read yet */
    struct state_info info; /* zero without a state */
    struct session_options o;
    struct imatrix *im;       /* NULL: no importance matrix */
    struct compress compress; /* f NULL: nothing is left out */
};

static int read_prompt(struct prompt *p, struct err *e)
{
    if (io_read_tokens(STDIN_FILENO, "stdin", &p->ids, &p->n, e)) return -1;
    p->read = true;
    if (!p->n) return err_set(e, ERR_FORMAT, "stdin: the prompt is empty (expected at least one token)");
    if (nll.wanted && !state_path && p->n < 2)
        return err_set(e, ERR_FORMAT, "stdin: a perplexity needs at least two tokens (got 1)");
    if (p->n > SESSION_MAX_CTX)
        return err_set(e, ERR_FORMAT, "stdin: too many tokens (expected at most %d, got %zu)",
                       SESSION_MAX_CTX, p->n);
    return 0;
}

/* Of state and prompt what was not read yet; unless late, only what need not be waited for. */
static int read_inputs(struct prompt *p, bool late, struct err *e)
{
    if (state_path && !p->state && (late || !io_path_waits(state_path)) &&
        state_open(&p->state, state_path, &p->info, e))
        return -1;
    return p->read || (!late && io_waits(STDIN_FILENO)) ? 0 : read_prompt(p, e);
}

static bool inputs_read(const struct prompt *p)
{
    return p->read && (!state_path || p->state);
}

/* Is the importance matrix of this model? The rest is asked when the products are known. */
static int check_imatrix(const struct imatrix *im, struct err *e)
{
    for (int64_t i = 0; i < im->n; i++) {
        const struct gguf_tensor *t = gguf_tensor(m.target->file, im->entry[i].name);
        if (t && imatrix_fit(&im->entry[i], t->ne[0], t->ne[2] * t->ne[3], e))
            return err_prefix(e, "%s", imatrix_path);
    }
    return 0;
}

static int check_inputs(struct prompt *p, struct err *e)
{
    const int64_t rows = cf.keep > 0 ? compress_budget(cf.keep, (int32_t)p->n) : (int64_t)p->n,
                  all = (int64_t)p->info.n_tokens + rows;
    const struct desc *drafters[PLAN_SOURCES];
    p->o.ctx = ctx_size ? ctx_size : (int32_t)(all < SESSION_MAX_CTX ? all : SESSION_MAX_CTX);
    p->o.chunk = chunk ? chunk : p->info.chunk;
    if (models_check_ids(&m, "stdin", p->ids, p->n, e) || session_prompt_check(p->o.ctx, all, e)) return -1;
    if (!p->state) models_check_bos(&m, &cli, p->ids, p->n);
    models_check_length(&m, &cli, all - rows + (int64_t)p->n + models_left_out(&cli, &p->info));
    if (cf.keep > 0 && compress_inputs(&p->compress, &m, &cli, p->ids, (int32_t)p->n, e)) return -1;
    if (models_kv(&m, p->state ? &p->info : NULL, &p->o, e)) return -1;
    if (!p->state) return 0;
    return models_check_options(&m, &p->o, e) ||
                   state_check(p->state, m.target->d, drafters, models_drafters(&m, drafters), &p->o, e)
               ? -1
               : 0;
}

/* What the target's description says against all of it; m.check. */
static int check_prompt(void *ctx, struct err *e)
{
    struct prompt *p = ctx;
    if (p->im && check_imatrix(p->im, e)) return -1;
    return inputs_read(p) ? check_inputs(p, e) : 0;
}

/* The prompt becomes what is kept of it. */
static int compress_prompt(struct prompt *p, struct err *e)
{
    struct compress *x = &p->compress;
    if (compress_run(x, &m, &cli, p->ids, (int32_t)p->n, &p->o, e)) return -1;
    for (int32_t i = 0; i < x->gaps.n_kept; i++) p->ids[i] = p->ids[x->at[i]];
    p->n = (size_t)x->gaps.n_kept;
    return 0;
}

static int make_session(struct session **s, struct prompt *p, struct err *e)
{
    if (cf.keep > 0 && compress_prompt(p, e)) return -1;
    if (models_session(&m, &cli, &p->o, s, e)) return -1;
    if (cf.keep > 0) return session_set_gaps(*s, &p->compress.gaps, p->compress.at, e);
    return p->state ? state_restore(p->state, *s, e) : 0;
}

/* The state needs the last row checked: what it would resume into must hold numbers. */
static int write_state(struct session *s, struct io_out *out, struct err *e)
{
    float *row = mem_alloc((size_t)m.target->d->n_vocab * sizeof *row);
    int rc = row ? session_logits(s, 0, row, e) : err_set(e, ERR_IO, "out of memory (a row of logits)");
    if (rc == 0) rc = session_check_row(s, row, s->n_past - 1, e);
    if (rc == 0) rc = state_save(s, out, e);
    mem_free(row);
    return rc;
}

/* The row that stands before the prompt: it predicts the prompt's first token. */
static int take_state_row(struct session *s, struct rows *r, struct err *e)
{
    float *row = mem_alloc((size_t)r->n_vocab * sizeof *row);
    int rc = row ? session_logits(s, 0, row, e) : err_set(e, ERR_IO, "out of memory (a row of logits)");
    if (rc == 0) rc = session_check_row(s, row, s->n_past - 1, e);
    if (rc == 0) rc = perplexity_add(r->p, row, 1, r->ids, NULL, e);
    mem_free(row);
    return rc;
}

/* The file of the importance matrix as it was read; all 0: there was none. */
static struct stat imatrix_seen;

/* What is in the file already is added to. */
static int open_imatrix(struct imatrix **im, struct io_out *out, const char *const *inputs, int n,
                        struct err *e)
{
    const bool exists = stat(imatrix_path, &imatrix_seen) == 0;
    if (!exists) imatrix_seen = (struct stat){0};
    if (!exists && errno != ENOENT) return err_errno(e, "%s", imatrix_path);
    if (exists ? imatrix_read(im, imatrix_path, e) : imatrix_new(im, e)) return -1;
    if ((*im)->by_chunks) {
        err_set(e, ERR_FORMAT,
                "%s: an importance matrix in the older binary form counts chunks, not rows: nothing can be "
                "added to it",
                imatrix_path);
        return err_hint(e, "dflash-quantize takes it as it is");
    }
    (*im)->chunk_size = (uint32_t)(chunk ? chunk : SESSION_CHUNK);
    if (imatrix_add_dataset(*im, dataset ? dataset : "stdin", e)) return -1;
    return io_out_open(out, imatrix_path, true, inputs, n, e);
}

/* The names of all outputs. Two runs that add to one importance matrix at a time would each replace what the
 * other had gathered: one of them is refused. Its folder is locked between the look and the name, where it
 * can be. */
static int commit(struct io_out *const *o, int n, struct err *e)
{
    char folder[PATH_MAX];
    struct stat now = {0};
    int lock = -1, rc = 0;
    if (imatrix_path) {
        lock = open(io_folder(imatrix_path, folder), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        while (lock >= 0 && flock(lock, LOCK_EX) && errno == EINTR) continue;
        if (stat(imatrix_path, &now)) now = (struct stat){0};
        const struct stat *was = &imatrix_seen;
        if (now.st_dev != was->st_dev || now.st_ino != was->st_ino || now.st_size != was->st_size ||
            now.st_mtim.tv_sec != was->st_mtim.tv_sec || now.st_mtim.tv_nsec != was->st_mtim.tv_nsec) {
            rc = err_set(
                e, ERR_IO,
                "%s: another run wrote it since it was read (expected %lld bytes untouched, got %lld)",
                imatrix_path, (long long)was->st_size, (long long)now.st_size);
            err_hint(e, "what this run gathered is in no file: run texts one after the other");
        }
    }
    if (!rc) rc = io_outs_commit(o, n, e);
    if (lock >= 0) close(lock);
    return rc;
}

static void note_imatrix(const struct imatrix *im)
{
    cli_note(&cli, "%s: %" PRId64 " products, %" PRIu32 " chunks of %" PRIu32 " tokens", imatrix_path, im->n,
             imatrix_chunks(im), im->chunk_size);
}

/* A run: what it reads, computes and leaves. */
struct run {
    struct prompt prompt;
    struct session *s;
    struct rows rows;
    struct perplexity perplexity;
    struct io_out state, logits, importance, kept;
    struct planes planes;
    bool leaves_state;
};

static int open_outputs(struct run *r, struct err *e)
{
    /* A state may take the place of the one that it goes on from, which is the last of the inputs; an
     * importance matrix, of the one that says which experts are the host's. */
    const char *inputs[1 + MODELS_INPUTS + 2] = {"-"};
    int n = 1 + models_inputs(&m, inputs + 1);
    const int models = n - (m.experts_counts != NULL);
    if (cf.scorer) inputs[n++] = cf.scorer;
    if (state_path) inputs[n++] = state_path;
    const bool over = state_path && out_path && io_same_file(out_path, state_path);
    if (r->leaves_state && io_out_open(&r->state, out_path, force || over, inputs, n - over, e)) return -1;
    if (imatrix_path && open_imatrix(&r->prompt.im, &r->importance, inputs, models, e)) return -1;
    if (logits_path && io_out_open(&r->logits, logits_path, true, inputs, n, e)) return -1;
    if (cf.kept_path && io_out_open(&r->kept, cf.kept_path, true, inputs, n, e)) return -1;
    return hidden_path && (io_out_open(&r->planes.out, hidden_path, true, inputs, n, e) ||
                           io_out_place(&r->planes.out, 0, NULL, 0, e))
               ? -1
               : 0;
}

/* Models, prompt and state; the session over them. */
static int open_run(struct run *r, struct err *e)
{
    struct prompt *p = &r->prompt;
    m.known =
        (struct session_options){.ctx = ctx_size, .chunk = chunk, .hidden = hidden_path ? take_plane : NULL};
    m.check = check_prompt;
    m.check_ctx = p;
    p->o = (struct session_options){.progress = progress,
                                    .hidden = hidden_path ? take_plane : NULL,
                                    .hidden_ctx = &r->planes,
                                    .check_layers = m.check_layers};
    if (read_inputs(p, false, e)) return -1;
    const bool early = inputs_read(p);
    if (models_open(&m, &cli, e)) return -1;
    if (!early && (read_inputs(p, true, e) || check_inputs(p, e))) return -1;
    if (p->im && imatrix_watch_new(&r->rows.watch, m.target, p->im, e))
        return err_prefix(e, "%s", imatrix_path);
    return make_session(&r->s, p, e);
}

static int prefill(struct run *r, double *seconds, struct err *e)
{
    const struct prompt *p = &r->prompt;
    struct rows *rows = &r->rows;
    const bool every = nll.wanted || logits_path || p->im;
    r->planes.n = rows->n = p->n;
    r->planes.from = rows->from = r->s->n_past;
    rows->ids = p->ids;
    rows->n_vocab = m.target->d->n_vocab;
    rows->logits = logits_path ? &r->logits : NULL;
    rows->s = r->s;
    rows->p = nll.wanted ? &r->perplexity : NULL;
    perplexity_begin(&r->perplexity, rows->n_vocab, false);
    r->perplexity.threads = m.threads;
    if (nll.wanted && p->state && take_state_row(r->s, rows, e)) return -1;
    if (r->leaves_state) models_warn_dropped(&m, &cli, &p->info, state_path, "the state");
    *seconds = cli_seconds();
    if (session_prefill(r->s, p->ids, (int64_t)p->n, every ? take_rows : NULL, rows, e)) return -1;
    *seconds = cli_seconds() - *seconds;
    return 0;
}

static int write_outputs(struct run *r, struct err *e)
{
    const struct prompt *p = &r->prompt;
    if (r->leaves_state && write_state(r->s, &r->state, e)) return -1;
    if (p->im && imatrix_write(p->im, &r->importance, e)) return -1;
    if (nll.wanted && nll_print(&nll, &r->perplexity, 0, 0, &m, e)) return -1;
    if (cf.kept_path && io_out_write(&r->kept, p->compress.at, p->n * sizeof *p->compress.at, e)) return -1;
    return commit((struct io_out *const[]){&r->state, &r->logits, &r->planes.out, &r->importance, &r->kept},
                  5, e);
}

static void note_run(const struct run *r, double seconds, struct err *e)
{
    if (r->prompt.im) note_imatrix(r->prompt.im);
    if (cf.keep > 0) cli_note(&cli, "scored in %.3f s", r->prompt.compress.seconds);
    cli_note(&cli, "%zu tokens in %.3f s, %.1f t/s", r->rows.n, seconds, (double)r->rows.n / seconds);
    if (r->s->sparse)
        cli_note(&cli, "sparse: %.3f of the blocks that could be attended to", sparse_flags_density(r->s, e));
    cli_detail(&cli, "%.1f MiB of caches and activations", (double)session_bytes(r->s) / 1048576);
}

/* Outputs that were not committed are gone. */
static void close_run(struct run *r)
{
    io_out_abort(&r->state);
    io_out_abort(&r->logits);
    io_out_abort(&r->planes.out);
    io_out_abort(&r->importance);
    io_out_abort(&r->kept);
    session_free(r->s);
    compress_free(&r->prompt.compress);
    perplexity_free(&r->perplexity);
    imatrix_watch_free(r->rows.watch);
    imatrix_free(r->prompt.im);
    mem_free(r->prompt.ids);
    state_close(r->prompt.state);
    models_close(&m);
}

static int run(struct err *e)
{
    struct run r = {.prompt.compress.f = &cf,
                    .state.fd = -1,
                    .logits.fd = -1,
                    .importance.fd = -1,
                    .kept.fd = -1,
                    .planes.out.fd = -1,
                    .leaves_state = !nll.wanted && (!imatrix_path || out_path)};
    double seconds = 0;
    const int rc =
        open_outputs(&r, e) || open_run(&r, e) || prefill(&r, &seconds, e) || write_outputs(&r, e) ? -1 : 0;
    if (!rc) note_run(&r, seconds, e);
    close_run(&r);
    return rc;
}

static int run_windows(struct err *e)
{
    const int rc = nll_run(&nll, &m, &cli, e);
    models_close(&m);
    return rc;
}

int main(int argc, char **argv)
{
    struct err e = {0};
    cli_parse(&cli, argc, argv);
    models_check_flags(&m, &cli);
    nll.ctx = ctx_size, nll.chunk = chunk;
    nll_check_flags(&nll, &cli,
                    state_path     ? "--state"
                    : logits_path  ? "--logits"
                    : hidden_path  ? "--hidden"
                    : imatrix_path ? "--imatrix"
                                   : NULL);
    if (nll.wanted && out_path) cli_usage_error(&cli, "--nll writes no state (-o %s)", out_path);
    cli_check_text(&cli, "--dataset", dataset);
    if (dataset && !imatrix_path)
        cli_usage_error(&cli, "--dataset %s: there is no --imatrix to name it in", dataset);
    if (imatrix_path && !strcmp(imatrix_path, "-"))
        cli_usage_error(&cli, "--imatrix -: an importance matrix is added to (give it a file)");
    const bool state = !nll.wanted && (!imatrix_path || out_path);
    if (m.drafter_path && !state)
        cli_usage_error(
            &cli, "-d %s: a drafter is only for a state, and none is written (expected no -d%s, got %s)",
            m.drafter_path, nll.wanted ? "" : ", or -o STATE", nll.wanted ? "--nll" : "--imatrix without -o");
    const struct cli_output out[] = {
        {nll.wanted ? "the perplexity" : "-o", nll.wanted || state ? (out_path ? out_path : "-") : NULL},
        {"--logits", logits_path},
        {"--hidden", hidden_path},
        {"--imatrix", imatrix_path},
        {"--kl-save", nll.save_path},
        {"--kept", cf.kept_path}};
    cli_distinct_outputs(&cli, out, 6);
    compress_check_flags(&cf, state_path,
                         nll.wanted     ? "--nll"
                         : logits_path  ? "--logits"
                         : hidden_path  ? "--hidden"
                         : imatrix_path ? "--imatrix"
                                        : NULL,
                         m.pool > 0, &cli);
    sparse_flags_check(&m.sparse, state_path, &cli);
    if (*kv_flags_convert_doubt(&m.kv, state_path))
        cli_usage_error(&cli, "%s", kv_flags_convert_doubt(&m.kv, state_path));
    if (state_path && imatrix_path)
        cli_usage_error(&cli, "--state: an importance matrix is of whole texts (expected no --imatrix)");
    if (m.pool > 0 && imatrix_path)
        cli_usage_error(&cli,
                        "--pool: its scores run rows of their own, which an importance matrix would count "
                        "(expected no --imatrix)");
    if (state_path && (cli_is_stdin(state_path) || !strcmp(state_path, "/dev/stdin")))
        cli_usage_error(&cli, "--state: the tokens are read from stdin: the state must be a file");
    if (!nll.base_path) cli_no_binary_tty(&cli, STDIN_FILENO, "the token stream");
    if (state) cli_no_binary_out(&cli, out_path, "the state");
    if (logits_path) cli_no_binary_out(&cli, logits_path, "the logits");
    if (nll.save_path) cli_no_binary_out(&cli, nll.save_path, "log-probabilities");
    if (nll_windows(&nll) ? run_windows(&e) : run(&e)) return cli_fail(&cli, &e);
    return cli_close_stdout(&cli);
}
