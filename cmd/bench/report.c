/* report.c - tables in Markdown, a page of HTML, or data and commands for gnuplot, from lines of JSON that
 * the other verbs wrote; and their cells held against those of another time. */
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../../common/base/io.h"
#include "../../common/base/json.h"
#include "../../common/base/mem.h"
#include "../../common/base/text.h"
#include "../redirect.h"
#include "bench.h"
#include "report.h"

static bool gnuplot;
static int32_t threads;
static float slack = 0.02f;
static const char *html, *title, *baseline;

static const char *out_path;
static bool force;

static const struct cli_flag flags[] = {
    {"--html", CLI_STR, &html, "FILE",
     "a page with tables and plots there too, which asks the network for nothing", 0, 0},
    {"--title", CLI_STR, &title, "TEXT", "title of the page", 0, 0},
    {"--baseline", CLI_STR, &baseline, "FILE",
     "lines of another time: exit 1 where a cell is slower beyond its noise, where a stream differs, or "
     "where no speed can be compared",
     0, 0},
    {"--slack", CLI_F32, &slack, "X",
     "--baseline: smaller differences are never told (default 0.02: 2 percent)", 0, 1},
    {"--gnuplot", CLI_FLAG, &gnuplot, NULL, "a script for gnuplot (PNG on its stdout) instead of tables", 0,
     0},
    {"--threads", CLI_I32, &threads, "N", "as in every program; a report needs one", 0, CLI_MAX_THREADS},
    REDIRECT_FLAGS(out_path, force),
    {0},
};
static struct cli cli = {
    .tool = "bench report",
    .synopsis = "[--html FILE] [--baseline FILE.jsonl] FILE.jsonl...        (- is stdin)\n"
                "--gnuplot FILE.jsonl...",
    .summary =
        "Tables from the JSON lines of run, rows, ops and compare. Exit 1 where a drafted stream differs.",
    .flags = flags,
    .wants = "FILE.jsonl...",
    .min_args = 1,
    .max_args = 4096,
};

static bool is(const json_t *j, const char *kind)
{
    return report_is(j, kind);
}

/* ---- tables ---- */

/* Streams compared: how many, and those that differ by name. */
static void streams(json_t *lines)
{
    size_t n = 0, equal = 0;
    for (size_t i = 0; i < json_array_size(lines); i++)
        if (is(json_array_get(lines, i), "compare")) {
            n++;
            equal += json_is_true(json_object_get(json_array_get(lines, i), "equal"));
        }
    if (!n) return;
    printf("\n%zu pairs of streams compared: %zu equal, %zu differ\n", n, equal, n - equal);
    for (size_t i = 0; i < json_array_size(lines); i++) {
        const json_t *j = json_array_get(lines, i);
        if (is(j, "compare") && !json_is_true(json_object_get(j, "equal")))
            printf("- %s and %s part at token %s\n", bench_text(j, NULL, "a"), bench_text(j, NULL, "b"),
                   bench_number(j, "first_difference", NULL, NULL, 0, 1));
    }
}

/* Lines that no table takes are told, not dropped in silence. */
static void warn_unknown(json_t *lines)
{
    for (size_t i = 0; i < json_array_size(lines); i++) {
        const json_t *j = json_array_get(lines, i);
        if (!report_knows(j))
            cli_warn(&cli,
                     "a line of kind '%.40s' is not shown (expected cell, rows, prompt, draft, ops, op or "
                     "compare)",
                     bench_text(j, NULL, "kind"));
    }
    if (!json_array_size(lines)) cli_warn(&cli, "no lines to report");
}

/* Below the cells: what they were measured with, each once, and what the columns are. */
static int cells_foot(const json_t *lines, struct err *e)
{
    char *made = report_made(lines), *save = NULL;
    if (!made) return err_set(e, ERR_IO, "out of memory (a report)");
    if (*made) {
        printf("\n");
        for (char *w = strtok_r(made, "\n", &save); w; w = strtok_r(NULL, "\n", &save)) printf("- %s\n", w);
        printf("\n%s\n", report_cells_legend);
    }
    mem_free(made);
    return 0;
}

static int tables(json_t *lines, const struct grid *g, int n, struct err *e)
{
    for (int i = 0; i < n; i++) {
        printf("%s", i ? "\n" : "");
        grid_markdown(&g[i], stdout);
        if (!strcmp(g[i].title, "Cells") && cells_foot(lines, e)) return -1;
    }
    streams(lines);
    return 0;
}

/* Where a page's text goes: a stream of the C library over an output of ours. (One in memory tells no lost
 * write.) */
struct page_to {
    struct io_out *o;
    struct err *e;
};
static ssize_t put_page(void *to, const char *text, size_t n)
{
    const struct page_to *p = to;
    return p->e->code || io_out_write(p->o, text, n, p->e) ? -1 : (ssize_t)n;
}

/* The page into o; what is printed for it is whole or told. */
static int write_page(const struct page *p, struct io_out *o, struct err *e)
{
    const uint64_t failures = mem_failures();
    struct page_to to = {o, e};
    FILE *f = fopencookie(&to, "w", (cookie_io_functions_t){.write = put_page});
    if (!f) return err_set(e, ERR_IO, "out of memory (a page)");
    page_write(p, f);
    const bool bad = ferror(f) != 0, lost = fclose(f) != 0;
    if (e->code) return -1;
    return bad || lost || mem_failures() != failures ? err_set(e, ERR_IO, "out of memory (a page)") : 0;
}

static const char *verdict_text(enum baseline_verdict against, bool differ)
{
    if (differ) return "A drafted stream differs from the plain one.";
    if (!baseline) return "";
    switch (against) {
    case BASELINE_WORSE:
        return "Against the baseline: a cell is slower beyond its noise, writes another stream, or is "
               "missing.";
    case BASELINE_UNMET:
        return "Against the baseline: no speed was compared (expected a cell of one of its machines, with "
               "its models and settings).";
    default: return "Against the baseline: no cell is slower beyond its noise, and no stream differs.";
    }
}

/* Tables and page; the exit status. */
static int report(json_t *lines, const json_t *then, struct io_out *page_file)
{
    struct grid g[REPORT_TABLES] = {0};
    struct err e = {0};
    enum baseline_verdict against = BASELINE_HOLDS;
    const bool differ = report_streams_differ(lines);
    struct report_cells cells;
    if (cells_read(&cells, lines)) {
        err_set(&e, ERR_IO, "out of memory (cells)");
        return cli_fail(&cli, &e);
    }
    const int n = report_tables(lines, &cells, then, (double)slack, g, &against);
    const char *verdict = verdict_text(against, differ);
    const struct page p = {.lines = lines,
                           .cells = &cells,
                           .title = title ? title : "dflash-bench report",
                           .grid = g,
                           .n_grid = n,
                           .verdict = verdict};
    int rc = 0;
    for (int i = 0; i < n; i++)
        if (g[i].failed) rc = err_set(&e, ERR_IO, "out of memory (a table)");
    if (!rc) rc = tables(lines, g, n, &e);
    if (!rc && *verdict) printf("\n%s\n", verdict);
    if (!rc && html && (write_page(&p, page_file, &e))) rc = -1;
    for (int i = 0; i < n; i++) grid_free(&g[i]);
    cells_free(&cells);
    if (rc) return cli_fail(&cli, &e);
    if (against == BASELINE_HOLDS && !differ) return 0;
    cli_warn(&cli, "%s", verdict);
    return ERR_NEGATIVE;
}

/* ---- a plot ---- */

/* What all cells say at outer's key; "" where they differ. */
static const char *same_in_cells(const json_t *lines, const char *outer, const char *key)
{
    const char *all = NULL;
    for (size_t i = 0; i < json_array_size(lines); i++) {
        const json_t *j = json_array_get(lines, i);
        if (!is(j, "cell")) continue;
        const char *here = json_string_value(json_object_get(json_object_get(j, outer), key));
        if (!here || (all && strcmp(all, here))) return "";
        all = here;
    }
    return all ? all : "";
}

/* Bars of tokens a second, from zero: their lengths are to be compared. */
static size_t plot_cells(const json_t *lines)
{
    size_t drawn = 0;
    char device[256], drafter[512];
    snprintf(device, sizeof device, "%s", same_in_cells(lines, "machine", "device"));
    snprintf(drafter, sizeof drafter, "%s", same_in_cells(lines, "drafter", "file"));
    bench_unquoted(text_printable(device));
    bench_unquoted(text_printable(drafter));
    printf("set title 'tokens a second behind the first, medians%s%s'\n$data << EOD\n", *device ? ", " : "",
           device);
    for (size_t i = 0; i < json_array_size(lines); i++) {
        const json_t *j = json_array_get(lines, i);
        char name[1100];
        if (!is(j, "cell")) continue;
        const char *own =
            *drafter ? "" : bench_text(j, "drafter", "file"); /* where they differ, at each bar */
        snprintf(name, sizeof name, "%s %s%s%s", bench_text(j, "target", "file"),
                 bench_text(j, NULL, "label"), *own ? ", " : "", own);
        printf("\"%s\" %s %s\n", bench_unquoted(name),
               bench_number(j, "plain", "decode_tokens_per_s", "median", 3, 1),
               bench_number(j, "drafted", "decode_tokens_per_s", "median", 3, 1));
        drawn++;
    }
    printf(
        "EOD\nset style data histograms\nset style fill solid\nset ylabel 'tokens/s'\nset yrange [0:*]\n"
        "set xtics rotate by -30\nplot $data using 2:xtic(1) title 'plain', '' using 3 title 'drafted%s%s'\n",
        *drafter ? " by " : "", drafter);
    return drawn;
}

/* Cells, or where there are none rows; what is not drawn is told. */
static void plot(const json_t *lines)
{
    bool cells = false;
    for (size_t i = 0; i < json_array_size(lines); i++) cells |= is(json_array_get(lines, i), "cell");
    printf("set terminal pngcairo noenhanced size 1200,700\nset key left top\nset grid\nset datafile missing "
           "'-'\n");
    const size_t drawn = cells ? plot_cells(lines) : bench_plot_rows(stdout, lines);
    if (!drawn && json_array_size(lines))
        cli_warn(&cli, "no cells and no rows: nothing to draw");
    else if (drawn < json_array_size(lines))
        cli_warn(&cli, "not drawn: %zu of %zu lines (expected %s alone)", json_array_size(lines) - drawn,
                 json_array_size(lines), cells ? "cells" : "rows");
}

static int read_lines(const char *path, json_t *lines, struct err *e)
{
    uint8_t *data = NULL;
    uint64_t n = 0;
    bool in = !strcmp(path, "-");
    int fd = in ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC); /* read, not mapped: it may be a pipe */
    if (fd < 0) return err_errno(e, "%s", path);
    int number = 0, rc = io_read_all(fd, in ? "stdin" : path, (uint64_t)1 << 30, &data, &n, e);
    const char *p = (const char *)data, *end = p + n;
    if (!in) close(fd);
    while (p && p < end && !rc) {
        const char *nl = memchr(p, '\n', (size_t)(end - p));
        size_t len = nl ? (size_t)(nl - p) : (size_t)(end - p);
        struct err je = {0};
        json_t *j = NULL;
        number++;
        if (len && json_parse(&j, p, len, "JSON", &je) && je.code != ERR_FORMAT) {
            rc = err_set(e, je.code, "%s: line %d: %s", in ? "stdin" : path, number, je.msg);
        } else if (len && !json_is_object(j)) {
            rc = err_set(e, ERR_FORMAT, "%s: line %d: not a JSON object%s%s", in ? "stdin" : path, number,
                         j ? "" : ": ", j ? "" : je.msg);
            json_decref(j);
        } else if (len && json_integer_value(json_object_get(j, "schema")) != 1) {
            char got[96];
            rc = err_set(e, ERR_FORMAT, "%s: line %d: unknown schema (expected 1, got %s)",
                         in ? "stdin" : path, number,
                         json_show(json_object_get(j, "schema"), got, sizeof got));
            json_decref(j);
        } else if (len && json_array_append_new(lines, j))
            rc = err_set(e, ERR_IO, "%s: line %d: out of memory (JSON)", in ? "stdin" : path, number);
        p += len + 1;
    }
    mem_free(data);
    return rc;
}

int bench_report(int argc, char **argv)
{
    struct err e = {0};
    struct redirect file;
    struct io_out page_file = {0};
    int rc = 0;
    cli_parse(&cli, argc, argv);
    if (gnuplot && (html || baseline))
        cli_usage_error(&cli, "--gnuplot gives a script alone (expected no --html, no --baseline)");
    if (title && !html) cli_usage_error(&cli, "--title is a page's (expected --html FILE)");
    if (cli_given(&cli, "--slack") && !baseline)
        cli_usage_error(&cli, "--slack says nothing without --baseline");
    cli_check_text(&cli, "--title", title);
    const char *inputs[4097];
    int n = 0;
    for (; n < cli.n_args; n++) inputs[n] = cli.args[n];
    if (baseline) inputs[n++] = baseline;
    cli_one_stdin(&cli, inputs, n);
    cli_distinct_outputs(&cli,
                         (const struct cli_output[]){{"-o", out_path ? out_path : "-"}, {"--html", html}}, 2);
    if (redirect_open(&file, out_path, force, inputs, n, &e)) return cli_fail(&cli, &e);
    if (html && io_out_open(&page_file, html, force, inputs, n, &e))
        return redirect_close(&file, &cli, cli_fail(&cli, &e));
    json_t *lines = json_array(),
           *then = baseline ? json_array()
                            : NULL; /* after cli_parse, which says where jansson's memory comes from */
    for (int i = 0; i < cli.n_args && !rc; i++)
        if (read_lines(cli.args[i], lines, &e)) rc = cli_fail(&cli, &e);
    if (!rc && then && read_lines(baseline, then, &e)) rc = cli_fail(&cli, &e);
    if (!rc) warn_unknown(lines);
    if (!rc && gnuplot)
        plot(lines);
    else if (!rc)
        rc = report(lines, then, &page_file);
    json_decref(lines);
    json_decref(then);
    return redirect_close_with(&file, html ? &page_file : NULL, &cli, rc);
}
