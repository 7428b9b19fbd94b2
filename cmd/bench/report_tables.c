/* report_tables.c - the tables of a report: a kind of lines each, and what is drawn from cells together. */
#include <stdio.h>
#include <string.h>
#include "../../common/base/json.h"
#include "../../common/base/mem.h"
#include "../../common/base/text.h"
#include "bench.h"
#include "report.h"

/* A column: a number at a, a.b or a.b.c times scale with digits after the point; a text at a or a.b (digits
 * -1); or what put writes. */
struct column {
    const char *title, *a, *b, *c;
    int digits;
    double scale;
    void (*put)(const json_t *line, char *out, size_t n);
    bool text;
};

bool report_is(const json_t *j, const char *kind)
{
    const char *k = json_string_value(json_object_get(j, "kind"));
    return k && !strcmp(k, kind);
}

static bool drafted(const json_t *j)
{
    return json_object_get(j, "drafted") != NULL;
}

/* ---- cells ---- */

static void cell_speedup(const json_t *j, char *out, size_t n)
{
    *out = 0;
    if (drafted(j))
        snprintf(out, n, "%s (%s to %s)", bench_number(j, "speedup", "median", NULL, 2, 1),
                 bench_number(j, "speedup", "low", NULL, 2, 1),
                 bench_number(j, "speedup", "high", NULL, 2, 1));
}

/* Losslessness: null where nothing was compared. */
static void cell_equal(const json_t *j, char *out, size_t n)
{
    const json_t *equal = json_object_get(j, "equal");
    snprintf(out, n, "%s",
             !drafted(j)            ? ""
             : json_is_true(equal)  ? "yes"
             : json_is_false(equal) ? "NO"
                                    : "-");
}

static void cell_drafted(const json_t *j, char *out, size_t n)
{
    snprintf(out, n, "%s",
             drafted(j) ? bench_number(j, "drafted", "decode_tokens_per_s", "median", 1, 1) : "");
}

static void cell_tau(const json_t *j, char *out, size_t n)
{
    snprintf(out, n, "%s", drafted(j) ? bench_number(j, "drafted", "tau", NULL, 2, 1) : "");
}

static const struct column cells[] = {
    {"target", "target", "file", NULL, -1, 0, NULL, true},
    {"drafter", "drafter", "file", NULL, -1, 0, NULL, true},
    {"cell", "label", NULL, NULL, -1, 0, NULL, true},
    {"plain t/s", "plain", "decode_tokens_per_s", "median", 1, 1, NULL, false},
    {"share of reading", "plain_share_of_ceiling", NULL, NULL, 2, 1, NULL, false},
    {"drafted t/s", NULL, NULL, NULL, 0, 0, cell_drafted, false},
    {"tau", NULL, NULL, NULL, 0, 0, cell_tau, false},
    {"speedup (quartiles)", NULL, NULL, NULL, 0, 0, cell_speedup, true},
    {"verdict", "speedup", "verdict", NULL, -1, 0, NULL, true},
    {"equal", NULL, NULL, NULL, 0, 0, cell_equal, true},
    {0},
};

/* ---- the other kinds ---- */

static const struct column rows[] = {
    {"target", "target", "file", NULL, -1, 0, NULL, true},
    {"rows", "rows", NULL, NULL, 0, 1, NULL, false},
    {"context", "context", NULL, NULL, 0, 1, NULL, false},
    {"ms", "seconds", "median", NULL, 3, 1e3, NULL, false},
    {"one-row steps", "one_row_steps", NULL, NULL, 2, 1, NULL, false},
    {"experts", "experts_met", NULL, NULL, 1, 1, NULL, false},
    {"MB of weights", "weight_bytes", NULL, NULL, 1, 1e-6, NULL, false},
    {"GB/s of weights", "weight_bytes_per_s", NULL, NULL, 1, 1e-9, NULL, false},
    {"share of reading", "share_of_ceiling", NULL, NULL, 2, 1, NULL, false},
    {"floor of bytes, ms", "floor_bytes_s", NULL, NULL, 3, 1e3, NULL, false},
    {"of products, ms", "floor_products_s", NULL, NULL, 3, 1e3, NULL, false},
    {"peer, ms", "peer_s", NULL, NULL, 3, 1e3, NULL, false},
    {0},
};
static const struct column prompts[] = {
    {"target", "target", "file", NULL, -1, 0, NULL, true},
    {"prompt tokens", "tokens", NULL, NULL, 0, 1, NULL, false},
    {"ms", "seconds", "median", NULL, 1, 1e3, NULL, false},
    {"tokens/s", "tokens_per_s", NULL, NULL, 0, 1, NULL, false},
    {0},
};
static const struct column drafts[] = {
    {"drafter", "drafter", "file", NULL, -1, 0, NULL, true},
    {"target", "target", "file", NULL, -1, 0, NULL, true},
    {"block", "block", NULL, NULL, 0, 1, NULL, false},
    {"ms", "seconds", "median", NULL, 3, 1e3, NULL, false},
    {"one-row steps", "one_row_steps", NULL, NULL, 2, 1, NULL, false},
    {"share of reading", "share_of_ceiling", NULL, NULL, 2, 1, NULL, false},
    {0},
};
static const struct column passes[] = {
    {"model", "model", "file", NULL, -1, 0, NULL, true},
    {"rows", "rows", NULL, NULL, 0, 1, NULL, false},
    {"context", "context", NULL, NULL, 0, 1, NULL, false},
    {"operations", "calls", NULL, NULL, 0, 1, NULL, false},
    {"ms a pass", "seconds", "median", NULL, 3, 1e3, NULL, false},
    {"ms apart", "apart_seconds", "median", NULL, 3, 1e3, NULL, false},
    {"MB of weights", "weight_bytes", NULL, NULL, 1, 1e-6, NULL, false},
    {"us a stamp", "stamp_seconds", NULL, NULL, 2, 1e6, NULL, false},
    {0},
};

static void us_a_call(const json_t *j, char *out, size_t n)
{
    const double calls = json_number_value(json_object_get(j, "calls"));
    snprintf(out, n, "%s", bench_number(j, "seconds", "median", NULL, 2, calls > 0 ? 1e6 / calls : 0));
}

static const struct column operations[] = {
    {"model", "model", "file", NULL, -1, 0, NULL, true},
    {"rows", "rows", NULL, NULL, 0, 1, NULL, false},
    {"operation", "op", NULL, NULL, -1, 0, NULL, true},
    {"shape", "shape", NULL, NULL, -1, 0, NULL, true},
    {"calls", "calls", NULL, NULL, 0, 1, NULL, false},
    {"us", "seconds", "median", NULL, 1, 1e6, NULL, false},
    {"us a call", NULL, NULL, NULL, 0, 0, us_a_call, false},
    {"MB of weights", "weight_bytes", NULL, NULL, 1, 1e-6, NULL, false},
    {"share of reading", "share_of_ceiling", NULL, NULL, 2, 1, NULL, false},
    {"us a call beside its bytes", "seconds_beside_bytes", NULL, NULL, 2, 1e6, NULL, false},
    {0},
};

static const struct {
    const char *kind, *title, *note;
    const struct column *column;
} table[] = {
    {"cell", "Cells", "", cells},
    {"rows", "Rows of a pass", "", rows},
    {"prompt", "Prompts", "", prompts},
    {"draft", "Drafts", "", drafts},
    {"ops", "Passes",
     "Passes, and the sums of their operations timed apart. Operations that are timed apart do not overlap "
     "as they do in a pass, and what a\n"
     "stamp takes is taken off each: read them against each other, not as parts of the pass.",
     passes},
    {"op", "Operations", "", operations},
};
enum { N_TABLE = sizeof table / sizeof *table };

static void put_line(struct grid *g, const struct column *c, const json_t *j)
{
    char text[600];
    for (; c->title; c++)
        if (c->put) {
            c->put(j, text, sizeof text);
            grid_put(g, text);
        } else
            grid_put(g, c->digits < 0 ? bench_text(j, c->b ? c->a : NULL, c->b ? c->b : c->a)
                                      : bench_number(j, c->a, c->b, c->c, c->digits, c->scale));
}

static bool one_kind(const json_t *lines, int t, struct grid *g)
{
    bool open = false;
    for (size_t i = 0; i < json_array_size(lines); i++) {
        const json_t *j = json_array_get(lines, i);
        if (!report_is(j, table[t].kind)) continue;
        if (!open) grid_init(g, table[t].title, table[t].note);
        for (const struct column *c = table[t].column; !open && c->title; c++)
            grid_column(g, c->title, !c->text);
        open = true;
        put_line(g, table[t].column, j);
    }
    return open;
}

/* ---- cells together: by class, and by slot ---- */

static const char *shown(const char *text)
{
    static char out[4][512];
    static int turn;
    char *s = out[turn = (turn + 1) % 4];
    snprintf(s, sizeof out[0], "%s", text);
    for (char *p = text_printable(s); *p; p++)
        if (*p == '|') *p = '/';
    return s;
}

enum { MAX_CLASSES = 16, MAX_SLOTS = 16 };

static void axis_columns(struct grid *g, unsigned axes)
{
    for (int a = 0; a < AXES; a++)
        if (axes >> a & 1) grid_column(g, cells_axis((enum axis)a), false);
}

static void axis_cells(struct grid *g, const struct report_cell *x, unsigned axes)
{
    for (int a = 0; a < AXES; a++)
        if (axes >> a & 1) grid_put(g, shown(x->of[a]));
}

/* Accepted length: a row a target, drafter, setting and plan, a column a class. */
static bool by_class(const struct report_cells *c, struct grid *g)
{
    enum { ROW = OF_TARGET | OF_DRAFTER | OF_SETTING | OF_PLAN };
    const struct report_cell *class_of[MAX_CLASSES];
    int n = 0;
    for (size_t i = 0; i < c->n && n < MAX_CLASSES; i++)
        if (c->v[i].kept && cells_first(c, i, OF_CLASS, true)) class_of[n++] = &c->v[i];
    if (n < 2) return false;
    grid_init(g, "Accepted length by class of prompt", "tau, tokens a cycle, by class of prompt.");
    axis_columns(g, ROW);
    for (int k = 0; k < n; k++) grid_column(g, shown(class_of[k]->of[AXIS_CLASS]), true);
    for (size_t i = 0; i < c->n; i++) {
        if (!c->v[i].kept || !cells_first(c, i, ROW, true)) continue;
        axis_cells(g, &c->v[i], ROW);
        for (int k = 0; k < n; k++) {
            const struct report_cell *found = NULL;
            for (size_t x = i; x < c->n && !found; x++)
                if (c->v[x].kept && cells_alike(&c->v[x], &c->v[i], ROW) &&
                    cells_alike(&c->v[x], class_of[k], OF_CLASS))
                    found = &c->v[x];
            grid_put(g, found ? bench_number(found->j, "drafted", "tau", NULL, 2, 1) : "-");
        }
    }
    return true;
}

/* Acceptance by place in the block: a row a drafter, class, setting and plan, over all targets. */
static bool by_slot(const struct report_cells *c, struct grid *g)
{
    enum { ROW = OF_DRAFTER | OF_CLASS | OF_SETTING | OF_PLAN };
    int slots = 0;
    char text[32];
    for (size_t i = 0; i < c->n; i++) {
        const int n = (int)json_array_size(c->v[i].kept) - 1;
        if (n > slots) slots = n < MAX_SLOTS ? n : MAX_SLOTS;
    }
    if (!slots) return false;
    grid_init(g, "Proposals kept, by slot",
              "Share of the cycles that kept so many proposals or more, over all targets.");
    axis_columns(g, ROW);
    for (int s = 1; s <= slots; s++) {
        snprintf(text, sizeof text, "%d", s);
        grid_column(g, text, true);
    }
    for (size_t i = 0; i < c->n; i++) {
        if (!c->v[i].kept || !cells_first(c, i, ROW, true)) continue;
        axis_cells(g, &c->v[i], ROW);
        for (int s = 1; s <= slots; s++) {
            const double share = cells_kept(c, &c->v[i], ROW, s);
            snprintf(text, sizeof text, share == share ? "%.2f" : "-", share);
            grid_put(g, text);
        }
    }
    return true;
}

/* ---- all ---- */

bool report_streams_differ(const json_t *lines)
{
    for (size_t i = 0; i < json_array_size(lines); i++) {
        const json_t *j = json_array_get(lines, i);
        if ((report_is(j, "compare") || report_is(j, "cell")) && json_is_false(json_object_get(j, "equal")))
            return true;
    }
    return false;
}

int report_tables(const json_t *lines, const struct report_cells *cells_of, const json_t *baseline,
                  double slack, struct grid *g, enum baseline_verdict *against)
{
    int n = 0;
    if (baseline) *against = baseline_compare(lines, baseline, slack, &g[n++]);
    for (int t = 0; t < N_TABLE; t++) {
        n += one_kind(lines, t, &g[n]);
        if (t == 0) {
            n += by_class(cells_of, &g[n]);
            n += by_slot(cells_of, &g[n]);
        }
    }
    return n;
}

bool report_knows(const json_t *j)
{
    bool known = report_is(j, "compare");
    for (int t = 0; t < N_TABLE; t++) known |= report_is(j, table[t].kind);
    return known;
}

const char report_cells_legend[] =
    "t/s: tokens a second behind the first, medians. share of reading: of the weights, once a token, at the "
    "speed that the run read at. tau: tokens a cycle. speedup: median of the runs' ratios, drafted to plain "
    "in turn, with their quartiles; verdict: faster or slower where a sign test over the runs says so (p "
    "below "
    "0.1) and the median is further from 1 than half of what the quartiles span. equal: the streams, byte "
    "for byte.";

/* What a cell was measured with, but for its models and label. */
static void cell_made(const json_t *j, char *out, size_t n)
{
    char settings[900] = "{}";
    const json_t *set = json_object_get(j, "settings");
    char *all = set ? json_line(set, 6) : NULL;
    if (all) snprintf(settings, sizeof settings, "%s", text_printable(all));
    mem_free(all);
    snprintf(out, n,
             "%s runs, %s prompts of %s tokens together, on %s (%s, %s threads), version %s %s%s: %s\n",
             bench_number(j, "runs", NULL, NULL, 0, 1), bench_number(j, "prompts", NULL, NULL, 0, 1),
             bench_number(j, "prompt_tokens", NULL, NULL, 0, 1), bench_text(j, "machine", "device"),
             bench_text(j, "machine", "processor"), bench_number(j, "machine", "threads", NULL, 0, 1),
             bench_text(j, "machine", "version"), bench_text(j, "machine", "commit"),
             json_is_true(json_object_get(json_object_get(j, "machine"), "changed")) ? "+" : "", settings);
}

char *report_made(const json_t *lines)
{
    char made[1800], *all = mem_strdup("");
    size_t n = 0;
    for (size_t i = 0; all && i < json_array_size(lines); i++) {
        const json_t *j = json_array_get(lines, i);
        if (!report_is(j, "cell")) continue;
        cell_made(j, made, sizeof made);
        const char *there = strstr(all, made); /* lines: each begins one */
        if (there && (there == all || there[-1] == '\n')) continue;
        char *more = mem_realloc(all, n + strlen(made) + 1);
        if (!more) {
            mem_free(all);
            return NULL;
        }
        all = more;
        strcpy(all + n, made);
        n += strlen(made);
    }
    return all;
}
