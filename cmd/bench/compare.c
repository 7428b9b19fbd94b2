/* compare.c - two token streams: are they equal, where do they part, and how close was the choice there. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "../../common/base/json.h"
#include "../../common/base/mem.h"
#include "../../common/run/session.h"
#include "../redirect.h"
#include "bench.h"

static struct {
    struct models m;
    const char *prompt;
    bool json;
    int32_t ctx;
} o = {.m = MODELS_INIT};

static const char *out_path;
static bool force;

static const struct cli_flag flags[] = {
    {"-m", CLI_STR, &o.m.target_path, "TARGET", "target that wrote the streams, a GGUF file", 0, 0},
    MODELS_RUN_FLAGS(o.m),
    MODELS_CHECK_FLAG(o.m),
    {"--prompt", CLI_STR, &o.prompt, "FILE", "with -m: the ids that the streams continue", 0, 0},
    {"--ctx", CLI_I32, &o.ctx, "N", "with -m: positions to make room for (default: what is needed)", 1,
     SESSION_MAX_CTX},
    {"--json", CLI_FLAG, &o.json, NULL, "one line of JSON on stdout", 0, 0},
    REDIRECT_FLAGS(out_path, force),
    {0},
};
static struct cli cli = {
    .tool = "bench compare",
    .synopsis = "A.tok B.tok [-m TARGET --prompt PROMPT.tok] [--json]",
    .summary = "Compare two streams of int32 ids. Exit 1 where they differ; with a model, the logits of the "
               "two ids there.",
    .flags = flags,
    .min_args = 2,
    .max_args = 2,
};

struct stream {
    int32_t *id;
    size_t n;
};

/* What the target thinks at the first difference: logits of both ids and the distance of the best two. */
struct margin {
    float a, b, first, second;
    int32_t best;
};

/* The prompt and the streams up to where they part. */
struct parted {
    const struct stream *p, *a, *b;
    size_t at;
};

/* What the target's description says against them; o.m.check. */
static int check_ids(void *ctx, struct err *e)
{
    const struct parted *x = ctx;
    const size_t need = x->p->n + x->at + 1;
    if (models_check_ids(&o.m, o.prompt, x->p->id, x->p->n, e) ||
        models_check_ids(&o.m, cli.args[0], x->a->id, x->at + 1, e) ||
        models_check_ids(&o.m, cli.args[1], x->b->id, x->at + 1, e))
        return -1;
    if (need <= (size_t)(o.ctx ? o.ctx : SESSION_MAX_CTX)) return 0;
    return err_set(e, ERR_USAGE, "--ctx is too small (expected %zu: prompt, equal tokens and one, got %d)",
                   need, o.ctx ? o.ctx : SESSION_MAX_CTX);
}

static int margin_at(const struct stream *a, const struct stream *b, size_t at, struct margin *r,
                     struct err *e)
{
    struct stream p = {0};
    struct parted parted = {&p, a, b, at};
    struct session *s = NULL;
    float *row = NULL;
    int32_t *all = NULL;
    int rc = -1;
    struct session_options so = {.check_layers = o.m.check_layers};
    if (bench_read_tokens(o.prompt, &p.id, &p.n, e)) goto done;
    if (!p.n) {
        err_set(e, ERR_FORMAT, "%s: the prompt is empty", o.prompt);
        goto done;
    }
    o.m.check = check_ids;
    o.m.check_ctx = &parted;
    if (models_open(&o.m, &cli, e)) goto done;
    int32_t V = o.m.target->d->n_vocab;
    all = mem_alloc((p.n + at) * sizeof *all);
    row = mem_alloc((size_t)V * sizeof *row);
    if (!all || !row) {
        err_set(e, ERR_IO, "out of memory (%zu ids)", p.n + at);
        goto done;
    }
    memcpy(all, p.id, p.n * sizeof *all);
    memcpy(all + p.n, a->id, at * sizeof *all);
    so.ctx = o.ctx ? o.ctx : (int32_t)(p.n + at + 1);
    if (models_kv(&o.m, NULL, &so, e) || session_new(&s, o.m.target, NULL, &so, e) ||
        session_prefill(s, all, (int64_t)(p.n + at), NULL, NULL, e) || session_logits(s, 0, row, e))
        goto done;
    *r = (struct margin){row[a->id[at]], row[b->id[at]], -INFINITY, -INFINITY, 0};
    for (int32_t v = 0; v < V; v++) {
        if (row[v] > r->first) {
            r->second = r->first;
            r->first = row[v];
            r->best = v;
        } else if (row[v] > r->second)
            r->second = row[v];
    }
    rc = 0;
done:
    session_free(s);
    models_close(&o.m);
    mem_free(row);
    mem_free(all);
    mem_free(p.id);
    return rc;
}

static int tell(const struct stream *a, const struct stream *b, size_t at, bool equal, const struct margin *m,
                struct err *e)
{
    if (o.json) {
        json_t *j = json_pack("{s:i,s:s,s:o,s:o,s:b,s:I,s:I}", "schema", 1, "kind", "compare", "a",
                              json_text(cli.args[0], strlen(cli.args[0])), "b",
                              json_text(cli.args[1], strlen(cli.args[1])), "equal", equal, "tokens_a",
                              (json_int_t)a->n, "tokens_b", (json_int_t)b->n);
        if (!equal) {
            json_object_set_new(j, "first_difference", json_integer((json_int_t)at));
            if (at < a->n) json_object_set_new(j, "id_a", json_integer(a->id[at]));
            if (at < b->n) json_object_set_new(j, "id_b", json_integer(b->id[at]));
        }
        if (m)
            json_object_set_new(j, "logits",
                                json_pack("{s:o,s:o,s:o,s:o,s:i}", "a", json_finite(m->a), "b",
                                          json_finite(m->b), "first", json_finite(m->first), "second",
                                          json_finite(m->second), "best_id", m->best));
        return bench_emit(j, e);
    }
    if (equal) {
        printf("equal: %zu tokens\n", a->n);
        return 0;
    }
    printf("differ at token %zu: ", at);
    if (at < a->n && at < b->n)
        printf("%" PRId32 " and %" PRId32 " (of %zu and %zu tokens)\n", a->id[at], b->id[at], a->n, b->n);
    else
        printf("one stream ends (%zu and %zu tokens)\n", a->n, b->n);
    if (m)
        printf("logits there: %.6g and %.6g, apart by %.3g; the best two are apart by %.3g (best id %" PRId32
               ")\n",
               (double)m->a, (double)m->b, fabs((double)m->a - (double)m->b),
               (double)m->first - (double)m->second, m->best);
    return 0;
}

int bench_compare(int argc, char **argv)
{
    struct err e = {0};
    struct redirect file;
    struct stream a = {0}, b = {0};
    struct margin m;
    bool have_margin = false;
    int rc = 0;
    cli_parse(&cli, argc, argv);
    static const char *const of_model[] = {"--kv",  "--kv-layers",    "--device", "--kernels",
                                           "--isa", "--check-layers", "--ctx"};
    if (!o.m.target_path != !o.prompt) cli_usage_error(&cli, "-m and --prompt go together");
    for (size_t i = 0; i < sizeof of_model / sizeof *of_model && !o.m.target_path; i++)
        if (cli_given(&cli, of_model[i]))
            cli_usage_error(&cli, "%s needs a model (-m TARGET --prompt FILE)", of_model[i]);
    const char *read[] = {cli.args[0], cli.args[1], o.prompt ? o.prompt : cli.args[0]};
    cli_one_stdin(&cli, read, o.prompt ? 3 : 2);
    if (bench_redirect(&file, out_path, force, &o.m, read, 3, &e)) return cli_fail(&cli, &e);
    if (bench_read_tokens(cli.args[0], &a.id, &a.n, &e) || bench_read_tokens(cli.args[1], &b.id, &b.n, &e)) {
        rc = cli_fail(&cli, &e);
        goto done;
    }
    size_t at = 0;
    while (at < a.n && at < b.n && a.id[at] == b.id[at]) at++;
    bool equal = at == a.n && at == b.n;
    if (!a.n && !b.n) cli_warn(&cli, "both streams are empty: equal, but was anything written?");
    if (!equal && o.m.target_path && (at == a.n || at == b.n))
        cli_note(&cli, "one stream ends there: there are no two ids whose logits could be compared");
    if (!equal && o.m.target_path && at < a.n && at < b.n) {
        if (margin_at(&a, &b, at, &m, &e)) {
            rc = cli_fail(&cli, &e);
            goto done;
        }
        have_margin = true;
    }
    rc = tell(&a, &b, at, equal, have_margin ? &m : NULL, &e) ? cli_fail(&cli, &e) : equal ? 0 : ERR_NEGATIVE;
done:
    mem_free(a.id);
    mem_free(b.id);
    return redirect_close(&file, &cli, rc);
}
