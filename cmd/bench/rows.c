/* rows.c - what a pass costs: 1..64 rows at a context, prompts of several lengths, a draft block.
 *
 * Every size is measured once a round, round after round, so that a drift of the machine meets all of them;
 * the median of the rounds is reported, its ratio to one row, and for rows the share of the memory's speed
 * that reading the weights once in that time means: of experts those that the rows meet, counted in a pass
 * before. More rows than a pass has are a prompt of that length. Each has two floors, at speeds measured in
 * the run: its weight bytes read once, and its products with the weights (attention is in neither). */
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
#define MOST_ROWS (1 << 20) /* of --rows */
#define SETTLE_S 0.1        /* passes before those that count */

static struct {
    struct models m;
    const char *rows, *prompts, *plan_times, *plot, *peer;
    int32_t context, rounds, ctx;
    bool added;
    float density;
} o = {.m = MODELS_INIT, .rows = "1,2,4,8,16,32,64", .prompts = "128,512", .context = 512, .rounds = 9};

static const char *out_path;
static bool force;

static const struct cli_flag flags[] = {
    MODELS_FLAGS(o.m),
    {"--rows", CLI_STR, &o.rows, "LIST",
     "rows of a pass (default 1,2,4,8,16,32,64); above 64 a prompt of that length", 0, 0},
    {"--plot", CLI_STR, &o.plot, "FILE", "draw time over rows, with floors: FILE.svg or FILE.png, by gnuplot",
     0, 0},
    {"--peer", CLI_STR, &o.peer, "FILE", "a peer's figures to put beside: lines of rows and milliseconds", 0,
     0},
    {"--prompts", CLI_STR, &o.prompts, "LIST", "prompt lengths, logits for the last token (default 128,512)",
     0, 0},
    {"--ctx", CLI_I32, &o.ctx, "N", "positions to make room for (default: what --context and the rows need)",
     1, SESSION_MAX_CTX},
    {"--context", CLI_I32, &o.context, "N", "positions before the rows (default 512)", 1, 1 << 24},
    {"--added", CLI_FLAG, &o.added, NULL,
     "measure at an empty context too: what the context adds, in reads of its caches", 0, 0},
    {"--sparse-density", CLI_F32_ABOVE, &o.density, "D",
     "prompts attend to a stated part of their blocks, whatever their scores, but in the first two layers", 0,
     1},
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
               "memory's speed and with floors.",
    .flags = flags,
};

struct sizes {
    int32_t rows[MAX_SIZES], prompts[2 * MAX_SIZES]; /* of passes; of prompts: those of --rows first */
    int n_rows, n_prompts, n_long;                   /* n_long: of --rows */
    struct sample empty_s[MAX_SIZES];                /* of row_s's passes behind one position */
    double cache_bytes; /* of the keys and values that a row sees at the context */
    struct sample row_s[MAX_SIZES], prompt_s[2 * MAX_SIZES], draft_s;
    /* Weight bytes; experts met a layer, NaN without. Of passes, then of the prompts of --rows. */
    double bytes[MAX_SIZES], experts[MAX_SIZES], long_bytes[MAX_SIZES], long_experts[MAX_SIZES];
    double host[MAX_SIZES], long_host[MAX_SIZES]; /* of experts in the host's memory */
    double host_cache, link;                      /* of keys and values there; bytes a second of reading it */
    double ceiling, products;                     /* bytes and operations a second */
    double layers, head; /* numbers that a row is multiplied with: in layers, in the head */
    struct peer {
        char name[128];
        int32_t n, rows[1024];
        double s[1024];
    } peer;
    json_t *lines; /* of rows, for the plot; NULL: none */
    int32_t *ids;  /* any ids: [longest] */
};

static int longest(const struct sizes *p)
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
    if (o.density > 0)
        so.sparse = (struct session_sparse){.on = true, .alpha = 0.1f, .dense = 2, .density = o.density};
    return session_over(s, o.m.target, drafter ? models_sources(&o.m) : NULL, &so, e);
}

/* empty: behind one position. */
static int measure_rows(struct session *s, struct sizes *p, bool empty, struct err *e)
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
        sample_add(empty ? &p->empty_s[i] : &p->row_s[i], cli_seconds() - t);
    }
    if (o.m.drafter && !empty) {
        bool usable;
        double t = cli_seconds();
        if (session_draft(s, p->ids[0], picks, &usable, false, e)) return -1;
        sample_add(&p->draft_s, cli_seconds() - t);
    }
    return 0;
}

/* The rows of the caches that a row behind the context sees. host: of those in the host's memory. */
static double cache_bytes(const struct session *s, bool host)
{
    const struct desc *d = s->target->d;
    double sum = 0;
    for (int i = 0; i < d->n_layer; i++) {
        const struct kn_kv *kv = &s->kv[i];
        const int32_t window = d->layer[i].window, seen = window && window < o.context ? window : o.context;
        if (!d->layer[i].recurrent && (!host || session_kv_is_host(s, i)))
            sum += (double)seen * (double)(kn_kv_row_bytes(kv, kv->type.k) + kn_kv_row_bytes(kv, kv->type.v));
    }
    return sum;
}

static int measure_prompts(struct sizes *p, struct err *e)
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
static json_t *pays_from(const struct sizes *p, double draft, double one)
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

/* Seconds of so many rows; NaN: it has none. */
static double peer_of(const struct peer *t, int32_t rows)
{
    for (int32_t i = 0; i < t->n; i++)
        if (t->rows[i] == rows) return t->s[i];
    return NAN;
}

/* What lies in the host's memory is read over the link, once a pass. */
static void put_host(json_t *j, const struct sizes *p, double host)
{
    json_object_set_new(j, "host_bytes", json_integer((json_int_t)host));
    json_object_set_new(j, "link_bytes_per_s", json_finite(p->link));
    json_object_set_new(j, "floor_host_s", host > 0 ? json_finite(host / p->link) : json_real(0));
}

/* empty: NULL, or the same behind one position. host: bytes of experts in the host's memory. */
static int emit_rows(struct sizes *p, int32_t rows, bool prompt, const struct sample *t,
                     const struct sample *empty, double bytes, double host, double experts, double one,
                     struct err *e)
{
    const double s = sample_quantile(t, 0.5),
                 operations = 2 * (p->layers * rows + p->head * (prompt ? 1 : rows));
    json_t *j = json_pack("{s:i,s:s,s:o,s:i,s:b,s:i,s:o,s:o,s:o,s:o,s:o,s:o}", "schema", 1, "kind", "rows",
                          "target", bench_target_json(&o.m), "rows", rows, "prompt", prompt, "context",
                          prompt ? 0 : o.context, "seconds", sample_json(t), "weight_bytes",
                          json_integer((json_int_t)bytes), "experts_met", json_finite(experts),
                          "weight_bytes_per_s", json_finite(bytes / s), "read_ceiling_bytes_per_s",
                          json_finite(p->ceiling), "share_of_ceiling", json_finite(bytes / s / p->ceiling));
    json_object_set_new(j, "products", json_finite(operations));
    json_object_set_new(j, "product_ceiling_per_s", json_finite(p->products));
    json_object_set_new(j, "floor_bytes_s", json_finite(bytes / p->ceiling));
    json_object_set_new(j, "floor_products_s", json_finite(operations / p->products));
    put_host(j, p, host + (prompt ? 0 : p->host_cache));
    if (empty && o.added) {
        const double added = s - sample_quantile(empty, 0.5);
        json_object_set_new(j, "empty_seconds", sample_json(empty));
        json_object_set_new(j, "cache_bytes", json_integer((json_int_t)p->cache_bytes));
        json_object_set_new(j, "added_s", json_finite(added));
        json_object_set_new(j, "added_cache_reads", json_finite(added * p->ceiling / p->cache_bytes));
    }
    if (o.peer) {
        json_object_set_new(j, "peer", json_text(p->peer.name, strlen(p->peer.name)));
        json_object_set_new(j, "peer_s", json_finite(peer_of(&p->peer, rows)));
    }
    json_object_set_new(j, "machine", bench_machine(&o.m));
    if (isfinite(one)) json_object_set_new(j, "one_row_steps", json_real(s / one));
    if (p->lines) json_array_append(p->lines, j);
    return bench_emit(j, e);
}

static int emit(struct sizes *p, struct err *e)
{
    const struct model *t = o.m.target;
    double one = p->rows[0] == 1 ? sample_quantile(&p->row_s[0], 0.5) : NAN;
    for (int i = 0; i < p->n_rows; i++)
        if (emit_rows(p, p->rows[i], false, &p->row_s[i], &p->empty_s[i], p->bytes[i], p->host[i],
                      p->experts[i], one, e))
            return -1;
    for (int i = 0; i < p->n_long; i++)
        if (emit_rows(p, p->prompts[i], true, &p->prompt_s[i], NULL, p->long_bytes[i], p->long_host[i],
                      p->long_experts[i], one, e))
            return -1;
    for (int i = p->n_long; i < p->n_prompts; i++) {
        double s = sample_quantile(&p->prompt_s[i], 0.5);
        json_t *j = json_pack("{s:i,s:s,s:o,s:i,s:o,s:o,s:o}", "schema", 1, "kind", "prompt", "target",
                              bench_target_json(&o.m), "tokens", p->prompts[i], "seconds",
                              sample_json(&p->prompt_s[i]), "tokens_per_s", json_finite(p->prompts[i] / s),
                              "machine", bench_machine(&o.m));
        if (o.density > 0) json_object_set_new(j, "sparse_density_stated", json_real((double)o.density));
        if (bench_emit(j, e)) return -1;
    }
    if (!o.m.drafter) return 0;
    /* A block reads the drafter and the head that it borrows; those that go step by step both for every
     * proposal. */
    const struct gguf_tensor *head = gguf_tensor(t->file, "output.weight");
    double s = sample_quantile(&p->draft_s, 0.5), bytes = (double)o.m.drafter->bytes_step;
    if (!head) head = gguf_tensor(t->file, "token_embd.weight");
    if (!o.m.drafter->head && head) bytes += (double)head->bytes;
    if (desc_reads_hidden(o.m.drafter->d)) bytes *= o.m.drafter->d->block_size - 1;
    json_t *j = json_pack(
        "{s:i,s:s,s:o,s:o,s:i,s:i,s:o,s:o,s:o,s:o,s:o}", "schema", 1, "kind", "draft", "target",
        bench_target_json(&o.m), "drafter", bench_model_json(o.m.drafter_path, o.m.drafter), "block",
        desc_cycle_rows(o.m.drafter->d), "context", o.context, "seconds", sample_json(&p->draft_s),
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

/* The numbers in the matrices that a row is multiplied with, of experts those used; what all bytes are. */
static double count_numbers(struct sizes *p)
{
    const struct desc *d = o.m.target->d;
    const struct gguf *f = o.m.target->file;
    const bool own = gguf_tensor(f, "output.weight") != NULL;
    double bytes = 0;
    for (uint64_t i = 0; i < f->n_tensors; i++) {
        const struct gguf_tensor *t = &f->tensor[i];
        const bool head = !strcmp(t->name, own ? "output.weight" : "token_embd.weight");
        double n = 1;
        int layer = -1;
        for (uint32_t k = 0; k < t->n_dims; k++) n *= (double)t->ne[k];
        if (head) p->head = n, bytes += (double)t->bytes;
        if (head || sscanf(t->name, "blk.%d.", &layer) != 1 || layer >= d->n_layer) continue;
        bytes += (double)t->bytes;
        if (t->n_dims == 2) p->layers += n;
        if (t->n_dims == 3) p->layers += n / d->n_expert * d->n_expert_used;
    }
    return bytes;
}

/* What prompts read at least: of experts those that each of their passes meets. all: every weight's bytes. */
static int count_long(struct sizes *p, struct experts_met *met, double all, struct err *e)
{
    for (int i = 0; i < p->n_long; i++) {
        struct session *s = NULL;
        if (new_session(&s, p->prompts[i], false, e)) return -1;
        experts_met_start(met);
        const int rc = session_prefill(s, p->ids, p->prompts[i], NULL, NULL, e);
        session_free(s);
        if (rc) return -1;
        p->long_bytes[i] = fmin(p->long_bytes[i] + met->bytes, all);
        p->long_experts[i] = met->experts / (double)met->lists;
        p->long_host[i] = met->host;
    }
    return 0;
}

/* What passes of these rows at this context read. */
static int count_bytes(struct sizes *p, struct err *e)
{
    struct experts_met met;
    struct session *s = NULL;
    const double all = count_numbers(p);
    for (int i = 0; i < p->n_rows; i++) p->bytes[i] = (double)o.m.target->bytes_step, p->experts[i] = NAN;
    for (int i = 0; i < p->n_long; i++)
        p->long_bytes[i] = (double)o.m.target->bytes_step, p->long_experts[i] = NAN;
    if (!o.m.target->d->n_expert) return 0;
    experts_met_open(&met, o.m.target->be);
    int rc =
        new_session(&s, o.context, false, e) || session_prefill(s, p->ids, o.context, NULL, NULL, e) ? -1 : 0;
    for (int i = 0; i < p->n_rows && rc == 0; i++) {
        experts_met_start(&met);
        rc = session_forward(s, p->ids, p->rows[i], e);
        p->bytes[i] += met.bytes;
        p->experts[i] = met.experts / (double)met.lists;
        p->host[i] = met.host;
    }
    session_free(s);
    if (rc == 0) rc = count_long(p, &met, all, e);
    experts_met_close(&met);
    return rc;
}

/* The parts of cycles, which cost more than passes do: acceptance, and the drafter's context. */
static int write_plan_times(struct session *s, const struct sizes *p, struct err *e)
{
    const int32_t block = desc_cycle_rows(o.m.drafter->d);
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

static int measure(struct sizes *p, struct err *e)
{
    struct session *s = NULL, *empty = NULL; /* empty: behind one position */
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
    p->cache_bytes = cache_bytes(s, false);
    p->host_cache = cache_bytes(s, true);
    p->link = bench_link(&o.m);
    if (o.added && (new_session(&empty, 1, false, e) || session_prefill(empty, p->ids, 1, NULL, NULL, e)))
        goto done;
    for (int r = 0; r < o.rounds; r++) {
        p->ceiling = r ? fmax(p->ceiling, bench_ceiling(&o.m, bytes, threads, 2))
                       : bench_ceiling(&o.m, bytes, threads, 2);
        if (r == 0) p->products = bench_product_ceiling(&o.m, threads);
        if (r == 0 && (measure_rows(s, p, false, e) || (empty && measure_rows(empty, p, true, e))))
            goto done; /* warm up, then forget */
        if (r == 0) {
            for (int i = 0; i < p->n_rows; i++) p->row_s[i].n = p->empty_s[i].n = 0;
            p->draft_s.n = 0;
        }
        if (measure_rows(s, p, false, e) || (empty && measure_rows(empty, p, true, e)) ||
            measure_prompts(p, e))
            goto done;
        cli_progress(&cli, "round", (uint64_t)r + 1, (uint64_t)o.rounds, "");
    }
    if (o.plot) p->lines = json_array();
    rc = (o.plan_times && write_plan_times(s, p, e)) || emit(p, e) ||
                 (o.plot && bench_plot_file(o.plot, force, p->lines, e))
             ? -1
             : 0;
done:
    session_free(empty);
    session_free(s);
    mem_free(p->ids);
    return rc;
}

/* Lines of rows and milliseconds; a first line of # has the peer's name, other lines of # say nothing. */
static int read_peer(struct peer *t, const char *path, struct err *e)
{
    char line[256], more;
    FILE *f = fopen(path, "re");
    const char *base = strrchr(path, '/');
    int number = 0, rc = 0;
    if (!f) return err_errno(e, "%s", path);
    snprintf(t->name, sizeof t->name, "%s", base ? base + 1 : path);
    while (rc == 0 && fgets(line, sizeof line, f)) {
        int rows = 0;
        double ms = 0;
        line[strcspn(line, "\r\n")] = 0;
        if (++number == 1 && *line == '#' && line[1 + strspn(line + 1, " ")])
            snprintf(t->name, sizeof t->name, "%s", line + 1 + strspn(line + 1, " "));
        if (*line == '#' || !line[strspn(line, " \t")]) continue;
        const bool good =
            sscanf(line, "%d %lf %c", &rows, &ms, &more) == 2 && rows > 0 && ms > 0 && isfinite(ms);
        if (!good || isfinite(peer_of(t, rows)) || t->n == sizeof t->rows / sizeof *t->rows)
            rc = err_set(
                e, ERR_FORMAT,
                "%s: line %d: not a peer's figure (expected ROWS MILLISECONDS, each count of rows once, "
                "1024 at most, got '%s')",
                path, number, line);
        else
            t->rows[t->n] = rows, t->s[t->n++] = ms / 1e3;
    }
    if (rc == 0 && ferror(f)) rc = err_errno(e, "%s", path);
    if (rc == 0 && !t->n)
        rc = err_set(e, ERR_FORMAT, "%s: no figures (expected lines of ROWS MILLISECONDS)", path);
    fclose(f);
    return rc;
}

/* --rows: those of a pass, and above them prompts. */
static int split_rows(struct sizes *p, struct err *e)
{
    int32_t all[MAX_SIZES];
    int n;
    if (bench_int_list("--rows", o.rows, all, MAX_SIZES, &n, 1, MOST_ROWS, e)) return -1;
    for (int i = 0; i < n; i++)
        if (all[i] <= SESSION_MAX_ROWS)
            p->rows[p->n_rows++] = all[i];
        else
            p->prompts[p->n_prompts++] = all[i];
    p->n_long = p->n_prompts;
    if (o.prompts[0]) {
        if (bench_int_list("--prompts", o.prompts, p->prompts + p->n_long, MAX_SIZES, &n, 1, 1 << 24, e))
            return -1;
        p->n_prompts += n;
    }
    return 0;
}

/* What is refused before models are read. */
static int check(struct sizes *p, struct err *e)
{
    int missing = 0;
    if (split_rows(p, e) || (o.peer && read_peer(&p->peer, o.peer, e)) ||
        (o.plot && bench_plot_check(o.plot, e)))
        return -1;
    for (int32_t i = 0; i < p->peer.n; i++) {
        bool there = false;
        for (int k = 0; k < p->n_rows; k++) there |= p->rows[k] == p->peer.rows[i];
        for (int k = 0; k < p->n_long; k++) there |= p->prompts[k] == p->peer.rows[i];
        missing += !there;
    }
    if (missing)
        cli_warn(&cli, "%s: %d of %d figures are of counts that --rows does not have", o.peer, missing,
                 (int)p->peer.n);
    return 0;
}

int bench_rows(int argc, char **argv)
{
    struct err e = {0};
    struct redirect file;
    cli_parse(&cli, argc, argv);
    const struct cli_output out[] = {
        {"-o", out_path ? out_path : "-"}, {"--plot", o.plot}, {"--plan-times", o.plan_times}};
    cli_distinct_outputs(&cli, out, 3);
    if (!o.m.target_path) cli_usage_error(&cli, "no target (expected -m TARGET.gguf)");
    if (o.plan_times && !o.m.drafter_path) cli_usage_error(&cli, "--plan-times needs a drafter (-d DRAFTER)");
    if (!o.plan_times) models_no_mtp(&o.m, &cli, "rows without --plan-times");
    bench_check_ctx(&cli, o.ctx, o.context);
    if (bench_redirect(&file, out_path, force, &o.m, &o.peer, o.peer != NULL, &e)) return cli_fail(&cli, &e);
    struct sizes *p = mem_calloc(1, sizeof *p);
    int rc = !p ? err_set(&e, ERR_IO, "out of memory (samples)")
                : check(p, &e) ||
                      (o.m.known.ctx = o.ctx ? o.ctx : longest(p) + SESSION_MAX_ROWS,
                       models_open(&o.m, &cli, &e)) ||
                      measure(p, &e);
    if (rc) rc = cli_fail(&cli, &e);
    if (p) json_decref(p->lines);
    models_close(&o.m);
    mem_free(p);
    return redirect_close(&file, &cli, rc);
}
