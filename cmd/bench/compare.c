/* compare.c - two token streams: are they equal, where do they part, and how close was the choice there. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "../../common/base/json.h"
#include "../../common/base/mem.h"
#include "../../common/base/text.h"
#include "../../common/run/session.h"
#include "../../common/token/tokenizer.h"
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
    .synopsis = "A.tok B.tok [-m TARGET [--prompt PROMPT.tok]] [--json]",
    .summary =
        "Compare two streams of int32 ids. Exit 1 where they differ; with a model the text around, with "
        "a prompt too the logits of the two ids there.",
    .flags = flags,
    .wants = "A.tok B.tok",
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

/* ---- text ---- */

#define TEXT_IDS 16  /* ids before the difference, and from it on, that are shown as text */
#define TEXT_MOST 80 /* bytes of it */

/* Of ids [n], what decoding writes, cut to the last or the first TEXT_MOST bytes; NUL-terminated. */
static size_t text_of(const struct tokenizer *t, const int32_t *id, size_t n, bool last, char *out)
{
    char all[TEXT_IDS * 256];
    size_t used = 0;
    for (size_t i = 0; i < n; i++) {
        size_t k;
        bool written;
        if (id[i] < 0 || id[i] >= tok_n_vocab(t)) continue;
        const uint8_t *p = tok_piece(t, id[i], &k, &written);
        if (k > 256) k = 256;
        if (written) memcpy(all + used, p, k), used += k;
    }
    const size_t skip = last && used > TEXT_MOST ? used - TEXT_MOST : 0;
    if (used - skip > TEXT_MOST) used = skip + TEXT_MOST;
    memcpy(out, all + skip, used - skip);
    return used - skip;
}

/* A stream from the difference on: its name, the id there, its piece, and the text that follows. */
static void tell_side(const struct tokenizer *t, const char *name, const struct stream *s, size_t at,
                      json_t *j, const char *side)
{
    char text[TEXT_MOST], quoted[2][4 * TEXT_MOST + 8], key[32];
    size_t k = 0;
    bool written;
    const uint8_t *p = at < s->n && s->id[at] >= 0 && s->id[at] < tok_n_vocab(t)
                           ? tok_piece(t, s->id[at], &k, &written)
                           : NULL;
    const size_t left = at < s->n ? s->n - at : 0,
                 n = text_of(t, s->id + at, left < TEXT_IDS ? left : TEXT_IDS, false, text);
    if (j) {
        snprintf(key, sizeof key, "piece_%s", side);
        json_object_set_new(j, key, p ? json_text((const char *)p, k) : json_null());
        snprintf(key, sizeof key, "text_%s", side);
        json_object_set_new(j, key, json_text(text, n));
    } else if (at < s->n) {
        char shown[256];
        snprintf(shown, sizeof shown, "%s", name);
        printf("%s: %" PRId32 " %s, text from there: %s\n", text_printable(shown), s->id[at],
               p ? text_quote(quoted[0], sizeof quoted[0], (const char *)p, k, 60) : "(none)",
               text_quote(quoted[1], sizeof quoted[1], text, n, TEXT_MOST));
    }
}

static void tell_text(const struct tokenizer *t, const struct stream *a, const struct stream *b, size_t at,
                      json_t *j)
{
    char text[TEXT_MOST], quoted[4 * TEXT_MOST + 8];
    const size_t from = at < TEXT_IDS ? 0 : at - TEXT_IDS,
                 n = text_of(t, a->id + from, at - from, true, text);
    if (j)
        json_object_set_new(j, "text_before", json_text(text, n));
    else
        printf("both: %s\n", text_quote(quoted, sizeof quoted, text, n, TEXT_MOST));
    tell_side(t, cli.args[0], a, at, j, "a");
    tell_side(t, cli.args[1], b, at, j, "b");
}

/* t NULL: no model. */
static int tell(const struct tokenizer *t, const struct stream *a, const struct stream *b, size_t at,
                bool equal, const struct margin *m, struct err *e)
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
        if (t && !equal) tell_text(t, a, b, at, j);
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
    if (t) tell_text(t, a, b, at, NULL);
    if (m)
        printf("logits there: %.6g and %.6g, apart by %.3g; the best two are apart by %.3g (best id %" PRId32
               ")\n",
               (double)m->a, (double)m->b, fabs((double)m->a - (double)m->b),
               (double)m->first - (double)m->second, m->best);
    return 0;
}

/* The target's; NULL where it has none. */
static int open_tokenizer(struct gguf **g, struct tokenizer **t, struct err *e)
{
    struct err none = {0};
    if (gguf_open(g, o.m.target_path, e)) return -1;
    if (tok_open(t, *g, &none) == 0 || none.code == ERR_FORMAT) return 0;
    *e = none;
    return -1;
}

int bench_compare(int argc, char **argv)
{
    struct err e = {0};
    struct redirect file;
    struct stream a = {0}, b = {0};
    struct margin m;
    struct gguf *g = NULL;
    struct tokenizer *t = NULL;
    bool have_margin = false;
    int rc = 0;
    cli_parse(&cli, argc, argv);
    static const char *const of_model[] = {"--override-kv", "--kv",  "--kv-layers",    "--device",
                                           "--kernels",     "--isa", "--check-layers", "--ctx"};
    if (!o.m.target_path && o.prompt) cli_usage_error(&cli, "--prompt needs a model (-m TARGET)");
    for (size_t i = 0; i < sizeof of_model / sizeof *of_model && !o.prompt; i++)
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
    if (!equal && o.m.target_path && open_tokenizer(&g, &t, &e)) {
        rc = cli_fail(&cli, &e);
        goto done;
    }
    if (!equal && o.prompt && (at == a.n || at == b.n))
        cli_note(&cli, "one stream ends there: there are no two ids whose logits could be compared");
    if (!equal && o.prompt && at < a.n && at < b.n) {
        if (margin_at(&a, &b, at, &m, &e)) {
            rc = cli_fail(&cli, &e);
            goto done;
        }
        have_margin = true;
    }
    rc = tell(t, &a, &b, at, equal, have_margin ? &m : NULL, &e) ? cli_fail(&cli, &e)
         : equal                                                 ? 0
                                                                 : ERR_NEGATIVE;
done:
    tok_close(t);
    gguf_close(g);
    mem_free(a.id);
    mem_free(b.id);
    return redirect_close(&file, &cli, rc);
}
