/* nll.c - see nll.h.
 *
 * Windows are those of llama-perplexity: the text in pieces of --ctx tokens, each run from position 0, its
 * first token BOS where the model asks for one, the second half scored. */
#include "nll.h"

#include <inttypes.h>
#include <jansson.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../common/base/json.h"
#include "../../common/base/mem.h"
#include "../../common/file/kl_base.h"
#include "../../common/run/session.h"

#define MIN_CTX 3 /* tokens of a window that has a row to score */

bool nll_windows(const struct nll *w)
{
    return w->wanted && (w->ctx || w->base_path || w->save_path);
}

void nll_check_flags(const struct nll *w, const struct cli *c, const char *other)
{
    const char *kl = w->base_path ? "--kl-base" : w->save_path ? "--kl-save" : NULL;
    if (kl && !w->wanted) cli_usage_error(c, "%s goes with --nll", kl);
    if (w->json && !w->wanted) cli_usage_error(c, "--json goes with --nll");
    if (w->base_path && w->save_path)
        cli_usage_error(c, "--kl-base is compared with, --kl-save is written: one of them");
    if (w->save_path && !w->ctx)
        cli_usage_error(c, "--kl-save: of windows of how many tokens (give --ctx N)");
    if (!nll_windows(w)) return;
    if (other) cli_usage_error(c, "%s does not go with windows (--nll with --ctx or --kl-base)", other);
    if (w->ctx && w->ctx < MIN_CTX)
        cli_usage_error(c, "--ctx: too small for a window (expected %d or more, got %d)", MIN_CTX, w->ctx);
}

struct run {
    const struct nll *w;
    struct models *m;
    const struct cli *c;
    struct kl_base base;
    struct io_out out; /* of --kl-save */
    int32_t *read;     /* what stdin held */
    size_t n_read;
    const int32_t *ids;        /* [n_window, ctx] */
    int32_t ctx, n_window, at; /* at: the window that runs */
    int32_t *window;           /* [ctx] its tokens as they are run */
    uint8_t *rows;             /* [SESSION_MAX_ROWS, kl_row_bytes] to write */
    struct perplexity p;
    const struct session *s;
};

static int read_text(struct run *r, struct err *e)
{
    if (io_read_tokens(STDIN_FILENO, "stdin", &r->read, &r->n_read, e)) return -1;
    if (r->n_read < (size_t)r->ctx)
        return err_set(e, ERR_FORMAT, "stdin: too few tokens for a window (expected %d, got %zu)", r->ctx,
                       r->n_read);
    if (r->n_read / (size_t)r->ctx > INT32_MAX)
        return err_set(e, ERR_FORMAT, "stdin: too many windows (expected at most %d)", INT32_MAX);
    r->ids = r->read;
    r->n_window = (int32_t)(r->n_read / (size_t)r->ctx);
    return 0;
}

static int open_base(struct run *r, struct err *e)
{
    if (kl_base_open(&r->base, r->w->base_path, e)) return -1;
    if (r->w->ctx && r->w->ctx != r->base.n_ctx)
        return err_set(e, ERR_USAGE, "--ctx: %s has other windows (expected %d, got %d)", r->w->base_path,
                       r->base.n_ctx, r->w->ctx);
    r->ctx = r->base.n_ctx;
    r->n_window = r->base.n_window;
    r->ids = r->base.ids;
    return 0;
}

/* What the target's description says against it; models.check. */
static int check(void *ctx, struct err *e)
{
    struct run *r = ctx;
    const int32_t n_vocab = r->m->target->d->n_vocab;
    if (r->base.n_vocab && r->base.n_vocab != n_vocab)
        return err_set(e, ERR_FORMAT, "%s: is of another vocabulary (expected the target's %d, got %d)",
                       r->w->base_path, n_vocab, r->base.n_vocab);
    if (!r->ids) return 0; /* stdin is read later */
    models_check_length(r->m, r->c, r->ctx);
    return models_check_ids(r->m, r->w->base_path ? r->w->base_path : "stdin", r->ids,
                            (size_t)r->ctx * (size_t)r->n_window, e);
}

static int save_rows(struct run *r, const float *rows, int32_t n, struct err *e)
{
    const size_t bytes = kl_row_bytes(r->p.n_vocab);
    const int threads = r->p.threads > 0 ? r->p.threads : omp_get_num_procs();
    io_team_begin();
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int32_t i = 0; i < n; i++)
        kl_row_encode(rows + (size_t)i * (size_t)r->p.n_vocab, r->p.n_vocab, r->rows + (size_t)i * bytes);
    io_team_end();
    return io_out_write(&r->out, r->rows, (size_t)n * bytes, e);
}

/* Of these rows those that are scored. */
static int take_rows(void *ctx, const float *rows, int32_t n, int32_t pos, struct err *e)
{
    struct run *r = ctx;
    const int32_t first = kl_first(r->ctx), last = r->ctx - 1; /* first .. last - 1 */
    for (int32_t i = 0; i < n; i++)
        if (session_check_row(r->s, rows + (size_t)i * (size_t)r->p.n_vocab, pos + i, e)) return -1;
    const int32_t from = pos > first ? pos : first, to = pos + n < last ? pos + n : last;
    if (from >= to) return 0;
    const float *row = rows + (size_t)(from - pos) * (size_t)r->p.n_vocab;
    const int32_t *next = r->ids + (size_t)r->at * (size_t)r->ctx + from + 1;
    const size_t of_file = (size_t)r->at * (size_t)kl_scored(r->ctx) + (size_t)(from - first);
    const uint8_t *base = r->base.rows ? r->base.rows + of_file * kl_row_bytes(r->p.n_vocab) : NULL;
    if (perplexity_add(&r->p, row, to - from, next, base, e)) return -1;
    if (!r->w->save_path) return 0;
    for (int32_t done = 0; done < to - from; done += SESSION_MAX_ROWS) {
        const int32_t left = to - from - done, some = left < SESSION_MAX_ROWS ? left : SESSION_MAX_ROWS;
        if (save_rows(r, row + (size_t)done * (size_t)r->p.n_vocab, some, e)) return -1;
    }
    return 0;
}

static int one_window(struct run *r, struct engine *g, struct err *e)
{
    const struct desc *d = r->m->target->d;
    struct session *s = NULL;
    memcpy(r->window, r->ids + (size_t)r->at * (size_t)r->ctx, (size_t)r->ctx * sizeof *r->window);
    if (d->add_bos && d->bos_id >= 0) r->window[0] = d->bos_id;
    if (session_open(&s, g, e)) return -1;
    r->s = s;
    const int rc = session_prefill(s, r->window, r->ctx, take_rows, r, e);
    session_free(s);
    return rc;
}

static int all_windows(struct run *r, struct err *e)
{
    struct session_options o = {.ctx = r->ctx, .chunk = r->w->chunk, .check_layers = r->m->check_layers};
    struct engine *g = NULL;
    int rc = -1;
    r->window = mem_alloc((size_t)r->ctx * sizeof *r->window);
    r->rows = r->w->save_path ? mem_alloc(SESSION_MAX_ROWS * kl_row_bytes(r->p.n_vocab)) : NULL;
    if (!r->window || (r->w->save_path && !r->rows))
        return err_set(e, ERR_IO, "out of memory (a window of %d tokens)", r->ctx);
    if (r->w->save_path && kl_base_header(&r->out, r->ctx, r->p.n_vocab, r->n_window, r->ids, e)) return -1;
    if (models_kv(r->m, NULL, &o, e) || models_engine(r->m, r->c, &o, NULL, 1, &g, e)) goto done;
    const double start = cli_seconds();
    for (r->at = 0; r->at < r->n_window; r->at++) {
        if (one_window(r, g, e)) goto done;
        cli_progress(r->c, "perplexity", (uint64_t)r->at + 1, (uint64_t)r->n_window, "windows");
    }
    const double s = cli_seconds() - start, n = (double)r->n_window * r->ctx;
    cli_note(r->c, "%d windows of %d tokens in %.3f s, %.1f t/s", r->n_window, r->ctx, s, n / s);
    rc = 0;
done:
    engine_close(g);
    return rc;
}

static int open_all(struct run *r, struct err *e)
{
    const struct nll *w = r->w;
    const char *inputs[1 + MODELS_INPUTS] = {"-"};
    const int n = 1 + models_inputs(r->m, inputs + 1);
    if (w->base_path && open_base(r, e)) return -1;
    if (w->save_path && io_out_open(&r->out, w->save_path, true, inputs, n, e)) return -1;
    const bool early = w->base_path || !io_waits(STDIN_FILENO);
    if (!w->base_path && early && read_text(r, e)) return -1;
    r->m->known = (struct session_options){.ctx = r->ctx, .chunk = w->chunk};
    r->m->check = check;
    r->m->check_ctx = r;
    if (models_open(r->m, r->c, e)) return -1;
    return early ? 0 : read_text(r, e) || check(r, e) ? -1 : 0;
}

int nll_run(const struct nll *w, struct models *m, const struct cli *c, struct err *e)
{
    struct run r = {.w = w, .m = m, .c = c, .ctx = w->ctx, .out = {.fd = -1}};
    int rc = -1;
    if (open_all(&r, e)) goto done;
    perplexity_begin(&r.p, m->target->d->n_vocab, w->base_path != NULL);
    r.p.threads = m->threads > 0 ? m->threads : 0;
    if (r.n_read % (size_t)r.ctx)
        cli_note(c, "%zu tokens behind the last whole window are left out", r.n_read % (size_t)r.ctx);
    if (all_windows(&r, e) || nll_print(w, &r.p, r.n_window, r.ctx, m, e)) goto done;
    if (w->base_path ? io_maps_check(e) : w->save_path ? io_out_commit(&r.out, e) : 0) goto done;
    rc = 0;
done:
    io_out_abort(&r.out);
    perplexity_free(&r.p);
    kl_base_close(&r.base);
    mem_free(r.read);
    mem_free(r.window);
    mem_free(r.rows);
    return rc;
}

/* ---- what is printed ---- */

#define MAX_FIGURES 32
struct figures {
    struct {
        const char *name;
        double value;
        int digits;
    } x[MAX_FIGURES];
    int n;
};

static void figure(struct figures *f, const char *name, double value, int digits)
{
    f->x[f->n].name = name;
    f->x[f->n].value = value;
    f->x[f->n++].digits = digits;
}

static void estimate(struct figures *f, const char *name, const char *error, struct estimate x, int digits)
{
    figure(f, name, x.value, digits);
    figure(f, error, x.error, digits);
}

static void all_figures(struct figures *f, struct perplexity *p)
{
    estimate(f, "nll", "nll_error", perplexity_nll(p), 6);
    estimate(f, "ppl", "ppl_error", perplexity_ppl(p), 4);
    if (!p->base) return;
    estimate(f, "base_ppl", "base_ppl_error", perplexity_base_ppl(p), 4);
    estimate(f, "ln_ratio", "ln_ratio_error", perplexity_ln_ratio(p), 6);
    estimate(f, "kl", "kl_error", perplexity_kl(p), 6);
    figure(f, "kl_median", perplexity_kl_quantile(p, 0.5), 6);
    figure(f, "kl_90", perplexity_kl_quantile(p, 0.9), 6);
    figure(f, "kl_99", perplexity_kl_quantile(p, 0.99), 6);
    figure(f, "kl_max", perplexity_kl_quantile(p, 1), 6);
    estimate(f, "p_rms", "p_rms_error", perplexity_p_rms(p), 6);
    estimate(f, "same_top", "same_top_error", perplexity_same_top(p), 6);
}

static int print_json(const struct nll *w, const struct perplexity *p, const struct figures *f,
                      int32_t n_windows, int32_t ctx, const struct models *m, struct err *e)
{
    json_t *j = json_pack("{s:i,s:s,s:o,s:o,s:o,s:s,s:I,s:o,s:o}", "schema", 1, "kind", "perplexity",
                          "target", json_text_or_null(m->target_path), "override_kv", models_keys_json(m),
                          "kl_base", json_text_or_null(w->base_path), "device", models_device(m), "tokens",
                          (json_int_t)p->n, "windows", n_windows ? json_integer(n_windows) : json_null(),
                          "ctx", n_windows ? json_integer(ctx) : json_null());
    for (int i = 0; j && i < f->n; i++) json_object_set_new(j, f->x[i].name, json_finite(f->x[i].value));
    char *text = j ? json_line(j, 9) : NULL;
    json_decref(j);
    if (!text || mem_failures()) {
        free(text);
        return err_set(e, ERR_IO, "out of memory (JSON)");
    }
    puts(text);
    free(text);
    return 0;
}

int nll_print(const struct nll *w, struct perplexity *p, int32_t n_windows, int32_t ctx,
              const struct models *m, struct err *e)
{
    struct figures f = {0};
    all_figures(&f, p);
    if (w->json) {
        if (print_json(w, p, &f, n_windows, ctx, m, e)) return -1;
    } else {
        printf("tokens %" PRId64 "\n", p->n);
        for (int i = 0; i < f.n; i++) printf("%s %.*f\n", f.x[i].name, f.x[i].digits, f.x[i].value);
        if (n_windows) printf("windows %d\n", n_windows);
    }
    return fflush(stdout) || ferror(stdout) ? err_errno(e, "stdout: cannot write") : 0;
}
