/* needles.c - the needle suite: does a way to run a prompt find what stands far back in it?
 *
 * Prompts of needles_make.h, each run as the flags say, densely with f16 caches, and by controls that must
 * fail: attention to the first and the last blocks alone (turns: behind the state of another prompt); of
 * sparse prompts, lists as long as theirs but spread evenly, no layer kept dense in either; of compressed
 * ones, as many tokens, in blocks taken at random. A task passes where the flags' way is within two points of
 * the dense one, and counts as blind where a control loses less than twenty. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../common/base/io.h"
#include "../../common/base/mem.h"
#include "../../common/run/compress.h"
#include "../../common/run/engine.h"
#include "../../common/run/state.h"
#include "../sparse_flags.h"
#include "bench.h"
#include "needles_make.h"

#define NEAR_ENOUGH 0.02 /* of the dense answers that are right */
#define MUST_LOSE 0.20
enum { TURN = 64 }; /* positions at which a pool chooses its pages anew */

static struct {
    struct models m;
    int32_t length, cases, chunk;
    uint64_t seed;
    const char *tasks;
    float dense_least, keep; /* keep: 0: prompts are not compressed */
} o = {.m = MODELS_INIT, .length = 4096, .cases = 400, .chunk = SESSION_CHUNK, .seed = 1};

static const char *out_path;
static bool force;

static const struct cli_flag flags[] = {
    MODELS_FLAGS(o.m),
    SPARSE_FLAGS(o.m.sparse),
    {"--tasks", CLI_STR, &o.tasks, "LIST",
     "records, keys, last, values, chains, copies, turns (default: all)", 0, 0},
    {"--length", CLI_I32, &o.length, "N", "tokens a prompt, a multiple of 128 (default 4096)", NEEDLE_LEAST,
     NEEDLE_MOST},
    {"--cases", CLI_I32, &o.cases, "N", "questions a task, at least (default 400)", 1, 1 << 20},
    {"--seed", CLI_U64, &o.seed, "S", "of the prompts (default 1)", 0, 0},
    {"--dense-least", CLI_F32, &o.dense_least, "X", "fail where the dense way answers less (default 0)", 0,
     1},
    {"--compress", CLI_F32, &o.keep, "KEEP", "compress the prompt before every question to this part (lossy)",
     0, 1},
    {"--chunk", CLI_I32, &o.chunk, "N", "tokens a prefill pass (default 512)", 1, 1 << 20},
    REDIRECT_FLAGS(out_path, force),
    {0},
};
static struct cli cli = {
    .tool = "bench needles",
    .synopsis = "-m MODEL [--sparse ALPHA] [--kv K[,V]] [--length N] [--tasks LIST] [flags]",
    .summary =
        "Score a way to run prompts on what it finds in them, beside dense f16 and controls that must fail.",
    .flags = flags,
};

/* ---- one way to run a prompt ---- */

enum { DENSE, FLAGS, NEAR, SPREAD, WAYS };
static const char *const way_names[WAYS] = {"dense", "flags", "near", "spread"};

struct way {
    struct engine *g;
    int64_t right, cases, right_at[NEEDLE_DEPTHS], cases_at[NEEDLE_DEPTHS];
    uint64_t kept[2]; /* blocks kept, blocks seen */
};

static int open_way(struct way *w, bool turns, int which, struct err *e)
{
    struct session_options so = {.ctx = o.length + TURN, .chunk = o.chunk};
    if (models_kv(&o.m, NULL, &so, e)) return -1;
    const struct session_sparse given = so.sparse;
    if (which != FLAGS) {
        so.kv = (struct kn_kv_types){KN_F16, KN_F16};
        so.kv_layers = NULL;
        so.sparse = (struct session_sparse){0};
        so.pool = 0; /* what stays in the host's memory changes no answer */
    }
    if (which == NEAR && !turns) so.sparse = (struct session_sparse){.on = true, .alpha = 1000};
    if (which == SPREAD && !o.keep)
        so.sparse = (struct session_sparse){.on = true, .alpha = given.alpha, .spread = true};
    return engine_open(&w->g, o.m.target, NULL, &so, e);
}

/* ---- answers ---- */

struct reading {
    const struct needle_prompt *p;
    const struct session *s;
    bool wrong[NEEDLE_CASES];
    /* of a compressed prompt: the only answer that is read, and where rows stand in the text */
    const struct needle_answer *only;
    const struct session_gaps *gaps;
    const int32_t *at;
};

static bool is_right(const struct needle_answer *a, const float *row, int32_t n_vocab, int32_t want)
{
    float least = INFINITY, other = -INFINITY;
    if (!a->several) {
        for (int32_t i = 0; i < n_vocab; i++)
            if (i != want && !(row[i] < row[want])) return false;
        return true;
    }
    for (int j = 0; j < 4; j++) least = fminf(least, row[a->one_of[j]]);
    for (int32_t i = 0; i < n_vocab; i++) {
        const bool mine = i == a->one_of[0] || i == a->one_of[1] || i == a->one_of[2] || i == a->one_of[3];
        if (!mine) other = fmaxf(other, row[i]);
    }
    return least > other;
}

static int32_t place_of(const struct reading *r, int32_t row)
{
    if (!r->gaps) return row;
    return row < r->gaps->n_kept ? r->at[row] : r->gaps->n_text + row - r->gaps->n_kept;
}

static int read_rows(void *ctx, const float *rows, int32_t n, int32_t pos, struct err *e)
{
    struct reading *r = ctx;
    const int32_t n_vocab = r->s->target->d->n_vocab;
    (void)e;
    for (int32_t k = 0; k < r->p->n_answers; k++) {
        const struct needle_answer *a = &r->p->answer[k];
        if (a->of >= r->p->n_cases || (r->only && a != r->only)) continue;
        for (int32_t i = 0; i < n; i++) {
            const int32_t t = place_of(r, pos + i);
            if (t >= a->at && t < a->at + a->n &&
                !is_right(a, rows + (size_t)i * (size_t)n_vocab, n_vocab, r->p->ids[t + 1]))
                r->wrong[a->of] = true;
        }
    }
    return 0;
}

/* The stream goes on from a state in a file, as another process would. */
static int turn(struct session **s, struct engine *g, struct err *e)
{
    const char *dir = getenv("TMPDIR");
    char path[4096];
    snprintf(path, sizeof path, "%s/dflash-needles-XXXXXX", dir && *dir ? dir : "/tmp");
    const int fd = mkstemp(path);
    struct io_out out = {.fd = -1};
    struct state *st = NULL;
    struct state_info info;
    int rc = fd < 0 ? err_errno(e, "%s", path) : 0;
    if (fd >= 0) close(fd);
    if (rc == 0) rc = io_out_open(&out, path, true, NULL, 0, e);
    if (rc == 0) rc = state_save(*s, &out, e) || io_out_commit(&out, e) ? -1 : 0;
    io_out_abort(&out);
    session_free(*s);
    *s = NULL;
    if (rc == 0) rc = state_open(&st, path, &info, e);
    if (rc == 0) rc = session_open(s, g, e);
    if (rc == 0) rc = state_restore(st, *s, e);
    state_close(st);
    if (fd >= 0) unlink(path);
    return rc;
}

static void count_cases(struct way *w, const struct reading *r)
{
    const struct needle_prompt *p = r->p;
    for (int32_t i = 0; i < p->n_cases; i++) {
        w->right += !r->wrong[i], w->cases++;
        w->right_at[p->depth[i]] += !r->wrong[i], w->cases_at[p->depth[i]]++;
    }
}

static int count_blocks(struct way *w, struct session *s, struct err *e)
{
    uint64_t kept[2 * DESC_MAX_LAYERS];
    if (session_sparse_kept(s, kept, e)) return -1;
    for (int i = 0; i < o.m.target->d->n_layer; i++) w->kept[0] += kept[2 * i], w->kept[1] += kept[2 * i + 1];
    return 0;
}

/* body: what stands before the questions; it may be another prompt's. */
static int run_prompt(struct way *w, const struct needle_prompt *p, const int32_t *body, bool turns,
                      struct err *e)
{
    struct reading r = {.p = p};
    struct session *s;
    int rc = session_open(&s, w->g, e);
    for (int32_t from = 0; rc == 0 && from < p->length;) {
        const int32_t end = !turns                                 ? p->length
                            : from == 0                            ? p->body
                            : from + NEEDLE_GROUP / 2 <= p->length ? from + NEEDLE_GROUP / 2
                                                                   : p->length;
        if (from > 0) rc = turn(&s, w->g, e);
        r.s = s;
        if (rc == 0)
            rc =
                session_prefill(s, (turns && from == 0 ? body : p->ids) + from, end - from, read_rows, &r, e);
        from = end;
    }
    if (rc == 0) rc = count_blocks(w, s, e);
    if (rc == 0) count_cases(w, &r);
    session_free(s);
    return rc;
}

/* ---- compressed prompts ---- */

/* Blocks at random: what a choice that knows nothing would keep. */
static void score_blindly(float *score, int32_t n, uint64_t seed)
{
    for (int32_t i = 0; i < n; i++)
        score[i] = (float)((((uint64_t)(i / COMPRESS_BLOCK) + 1) * 0x9e3779b97f4a7c15u ^ seed) *
                               0xbf58476d1ce4e5b9u >>
                           40);
}

/* An answer behind the compressed text before it. */
static int answer_compressed(struct way *w, struct reading *r, const struct needle_answer *a, bool blindly,
                             struct err *e)
{
    const int32_t n = a->at + 1, budget = compress_budget((double)o.keep, n);
    struct session_gaps gaps = {.n_text = n, .keep = o.keep};
    float *score = mem_alloc((size_t)n * sizeof *score);
    int32_t *at = mem_alloc(2 * (size_t)budget * sizeof *at), *ids = at + budget;
    bool *stays = mem_calloc((size_t)n, sizeof *stays);
    struct session *s = NULL;
    int rc = score && at && stays ? 0 : err_set(e, ERR_IO, "out of memory (a compressed prompt)");
    if (rc == 0) rc = compress_protect(stays, n, budget, e);
    if (rc == 0 && blindly) score_blindly(score, n, o.seed + (uint64_t)w->cases);
    if (rc == 0 && !blindly) rc = compress_score(o.m.target, r->p->ids, n, &w->g->o, score, e);
    if (rc == 0) gaps.n_kept = compress_choose(score, stays, n, budget, at, e);
    if (gaps.n_kept < 0) rc = -1;
    for (int32_t i = 0; rc == 0 && i < gaps.n_kept; i++) ids[i] = r->p->ids[at[i]];
    r->only = a, r->gaps = &gaps, r->at = at;
    if (rc == 0) rc = session_open(&s, w->g, e);
    r->s = s;
    if (rc == 0) rc = session_set_gaps(s, &gaps, at, e);
    if (rc == 0) rc = session_prefill(s, ids, gaps.n_kept, read_rows, r, e);
    if (rc == 0 && a->n > 1) rc = session_prefill(s, r->p->ids + n, a->n - 1, read_rows, r, e);
    if (rc == 0) rc = count_blocks(w, s, e);
    session_free(s);
    mem_free(score);
    mem_free(at);
    mem_free(stays);
    return rc;
}

static int run_compressed(struct way *w, const struct needle_prompt *p, bool blindly, struct err *e)
{
    struct reading r = {.p = p};
    for (int32_t k = 0; k < p->n_answers; k++)
        if (p->answer[k].of < p->n_cases && answer_compressed(w, &r, &p->answer[k], blindly, e)) return -1;
    count_cases(w, &r);
    return 0;
}

/* ---- pools ---- */

/* Each answer alone, its question's last token at a turn: then it is its queries that choose. */
static int run_turned(struct way *w, const struct needle_prompt *p, struct err *e)
{
    struct reading r = {.p = p};
    int32_t *ids = mem_alloc(((size_t)p->length + TURN) * sizeof *ids);
    int rc = ids ? 0 : err_set(e, ERR_IO, "out of memory (a prompt)");
    for (int32_t k = 0; rc == 0 && k < p->n_answers; k++) {
        const struct needle_answer *a = &p->answer[k];
        const int32_t more = (TURN - a->at % TURN) % TURN, end = a->at + a->n;
        struct session *s = NULL;
        if (a->of >= p->n_cases) continue;
        for (int32_t i = 0; i < more; i++) ids[i] = p->ids[0]; /* padding, as at the start */
        memcpy(ids + more, p->ids, (size_t)end * sizeof *ids);
        const struct session_gaps shifted = {.n_kept = 0, .n_text = -more};
        r.only = a, r.gaps = &shifted;
        rc = session_open(&s, w->g, e);
        r.s = s;
        if (rc == 0) rc = session_prefill(s, ids, end + more, read_rows, &r, e);
        session_free(s);
    }
    if (rc == 0) count_cases(w, &r);
    mem_free(ids);
    return rc;
}

/* ---- a task ---- */

static double share(const struct way *w)
{
    return (double)w->right / (double)w->cases;
}

static json_t *way_json(const struct way *w)
{
    json_t *depths = json_array();
    for (int i = 0; i < NEEDLE_DEPTHS; i++)
        json_array_append_new(depths, w->cases_at[i]
                                          ? json_real((double)w->right_at[i] / (double)w->cases_at[i])
                                          : json_null());
    return json_pack("{s:f,s:o,s:o}", "right", share(w), "density",
                     w->kept[1] ? json_real((double)w->kept[0] / (double)w->kept[1]) : json_null(),
                     "by_depth", depths);
}

static int64_t bytes_a_position(const struct session *s)
{
    int64_t sum = 0;
    for (int i = 0; i < s->target->d->n_layer; i++)
        if (s->kv[i].k)
            sum += (int64_t)(kn_kv_row_bytes(&s->kv[i], s->kv[i].type.k) +
                             kn_kv_row_bytes(&s->kv[i], s->kv[i].type.v));
    return sum;
}

static int say(enum needle_task task, const struct way *w, int64_t bytes, bool *passed, struct err *e)
{
    const double dense = share(&w[DENSE]), got = share(&w[FLAGS]);
    bool blind = false;
    for (int i = NEAR; i < WAYS; i++) blind |= w[i].g && share(&w[i]) > dense - MUST_LOSE;
    const bool ok = got >= dense - NEAR_ENOUGH && dense >= (double)o.dense_least && !blind;
    const struct session_options *flags_o = &w[FLAGS].g->o;
    json_t *j = json_pack("{s:i,s:s,s:s,s:i,s:I,s:I,s:b,s:b,s:o,s:i,s:o,s:I}", "schema", 1, "kind", "needles",
                          "task", needle_names[task], "length", o.length, "cases", (json_int_t)w[DENSE].cases,
                          "seed", (json_int_t)o.seed, "passed", ok, "blind", blind, "alpha",
                          flags_o->sparse.on ? json_real((double)flags_o->sparse.alpha) : json_null(), "pool",
                          flags_o->pool, "keep", o.keep > 0 ? json_real((double)o.keep) : json_null(),
                          "bytes_a_position", (json_int_t)bytes);
    for (int i = 0; j && i < WAYS; i++)
        json_object_set_new(j, way_names[i], w[i].g ? way_json(&w[i]) : json_null());
    if (j) json_object_set_new(j, "machine", bench_machine(&o.m));
    *passed &= ok;
    cli_note(&cli, "%-8s dense %.3f, flags %.3f, near %.3f%s", needle_names[task], dense, got,
             share(&w[NEAR]),
             ok      ? ""
             : blind ? ": blind"
                     : ": FAILED");
    return bench_emit(j, e);
}

static int run_way(struct way *w, int which, const struct needle_prompt *p, const int32_t *body, bool turns,
                   struct err *e)
{
    if (o.keep > 0 && (which == FLAGS || which == SPREAD)) return run_compressed(w, p, which == SPREAD, e);
    return w->g->o.pool && !turns ? run_turned(w, p, e) : run_prompt(w, p, body, turns, e);
}

static int run_task(enum needle_task task, bool *passed, struct err *e)
{
    struct way *w = mem_calloc(WAYS, sizeof *w);
    const bool turns = task == NEEDLE_TURNS;
    int32_t *ids = mem_alloc(2 * (size_t)o.length * sizeof *ids), *other = ids ? ids + o.length : NULL;
    struct needle_prompt p;
    int64_t bytes = 0;
    int rc = w && ids ? 0 : err_set(e, ERR_IO, "out of memory (prompts)");
    for (int i = 0; rc == 0 && i < WAYS; i++)
        if (i != SPREAD || o.keep > 0 || (o.m.sparse.alpha > 0 && !turns)) rc = open_way(&w[i], turns, i, e);
    for (int32_t number = 0; rc == 0 && w[DENSE].cases < o.cases; number++) {
        if (turns) needle_make(&p, task, o.length, o.seed, number + 100000, other);
        needle_make(&p, task, o.length, o.seed, number, ids);
        for (int i = 0; i < WAYS && rc == 0; i++)
            if (w[i].g) rc = run_way(&w[i], i, &p, i == NEAR ? other : ids, turns, e);
        cli_progress(&cli, needle_names[task], (uint64_t)w[DENSE].cases, (uint64_t)o.cases, "questions");
    }
    if (rc == 0) bytes = bytes_a_position(w[FLAGS].g->idle);
    if (rc == 0) rc = say(task, w, bytes, passed, e);
    for (int i = 0; w && i < WAYS; i++) engine_close(w[i].g);
    mem_free(w);
    mem_free(ids);
    return rc;
}

static int task_list(bool want[NEEDLE_TASKS], struct err *e)
{
    for (int i = 0; i < NEEDLE_TASKS; i++) want[i] = !o.tasks && (i != NEEDLE_TURNS || !(o.keep > 0));
    for (const char *p = o.tasks; p && *p;) {
        const size_t n = strcspn(p, ",");
        int at = -1;
        for (int i = 0; i < NEEDLE_TASKS; i++)
            if (strlen(needle_names[i]) == n && !strncmp(p, needle_names[i], n)) at = i;
        if (at < 0)
            return err_set(
                e, ERR_USAGE,
                "--tasks: expected records, keys, last, values, chains, copies or turns, got '%.*s'", (int)n,
                p);
        want[at] = true;
        p += n + (p[n] == ',');
    }
    return 0;
}

static int run(bool *passed, struct err *e)
{
    bool want[NEEDLE_TASKS];
    if (task_list(want, e)) return -1;
    if (want[NEEDLE_TURNS] && o.keep > 0)
        return err_set(e, ERR_USAGE, "--compress: turns go on from a state (expected other tasks)");
    o.m.known = (struct session_options){.ctx = o.length + TURN, .chunk = o.chunk};
    if (models_open(&o.m, &cli, e)) return -1;
    if (o.m.target->d->n_vocab != NEEDLE_VOCABULARY)
        return err_set(
            e, ERR_FORMAT,
            "%s: not the suite's model (expected %d ids, which data/train_needles.py trains, got %d)",
            o.m.target_path, NEEDLE_VOCABULARY, o.m.target->d->n_vocab);
    for (int i = 0; i < NEEDLE_TASKS; i++)
        if (want[i] && run_task((enum needle_task)i, passed, e)) return -1;
    return 0;
}

int bench_needles(int argc, char **argv)
{
    struct err e = {0};
    struct redirect file;
    bool passed = true;
    cli_parse(&cli, argc, argv);
    if (!o.m.target_path) cli_usage_error(&cli, "no model (expected -m MODEL.gguf)");
    if (o.m.drafter_path) cli_usage_error(&cli, "-d: prompts are not drafted (expected no drafter)");
    if (cli_given(&cli, "--compress") && !(o.keep > 0))
        cli_usage_error(&cli, "--compress: expected more than 0 and at most 1, got %g", (double)o.keep);
    if (o.length % KN_SPARSE_BLOCK)
        cli_usage_error(&cli, "--length: expected a multiple of %d, got %d", KN_SPARSE_BLOCK, o.length);
    if (o.chunk % KN_SPARSE_BLOCK)
        cli_usage_error(&cli, "--chunk: expected a multiple of %d, for the controls are sparse, got %d",
                        KN_SPARSE_BLOCK, o.chunk);
    sparse_flags_check(&o.m.sparse, NULL, &cli);
    models_check_flags(&o.m, &cli);
    if (bench_redirect(&file, out_path, force, &o.m, NULL, 0, &e)) return cli_fail(&cli, &e);
    o.m.known = (struct session_options){.ctx = o.length + TURN, .chunk = o.chunk};
    int rc = run(&passed, &e) ? cli_fail(&cli, &e) : passed ? 0 : ERR_NEGATIVE;
    models_close(&o.m);
    return redirect_close(&file, &cli, rc);
}
