/* report.c - tables in Markdown, or data and commands for gnuplot, from lines of JSON that the other verbs
 * wrote. */
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

static bool gnuplot;
static int32_t threads;

static const char *out_path;
static bool force;

static const struct cli_flag flags[] = {
    {"--gnuplot", CLI_FLAG, &gnuplot, NULL, "a script for gnuplot (PNG on its stdout) instead of tables", 0,
     0},
    {"--threads", CLI_I32, &threads, "N", "as in every program; a report needs one", 0, CLI_MAX_THREADS},
    REDIRECT_FLAGS(out_path, force),
    {0},
};
static struct cli cli = {
    .tool = "bench report",
    .synopsis = "[--gnuplot] FILE.jsonl...        (- is stdin)",
    .summary = "Tables from the JSON lines of run, rows, ops and compare.",
    .flags = flags,
    .min_args = 1,
    .max_args = 4096,
};

static bool is(const json_t *j, const char *kind)
{
    return !strcmp(bench_text(j, NULL, "kind"), kind);
}

static void cell_row(const json_t *j)
{
    bool drafted = json_object_get(j, "drafted") != NULL;
    printf("| %s | %s | %s | %s | %s |", bench_text(j, "target", "file"),
           drafted ? bench_text(j, "drafter", "file") : "", bench_text(j, NULL, "label"),
           bench_number(j, "plain", "decode_tokens_per_s", "median", 1, 1),
           bench_number(j, "plain_share_of_ceiling", NULL, NULL, 2, 1));
    if (drafted)
        printf(" %s | %s | %s (%s to %s) | %s | %s |\n",
               bench_number(j, "drafted", "decode_tokens_per_s", "median", 1, 1),
               bench_number(j, "drafted", "tau", NULL, 2, 1),
               bench_number(j, "speedup", "median", NULL, 2, 1),
               bench_number(j, "speedup", "low", NULL, 2, 1), bench_number(j, "speedup", "high", NULL, 2, 1),
               bench_text(j, "speedup", "verdict"), json_is_true(json_object_get(j, "equal")) ? "yes" : "NO");
    else
        printf(" | | | | |\n");
}

static void rows_row(const json_t *j)
{
    printf("| %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", bench_text(j, "target", "file"),
           bench_number(j, "rows", NULL, NULL, 0, 1), bench_number(j, "context", NULL, NULL, 0, 1),
           bench_number(j, "seconds", "median", NULL, 3, 1e3),
           bench_number(j, "one_row_steps", NULL, NULL, 2, 1),
           bench_number(j, "experts_met", NULL, NULL, 1, 1),
           bench_number(j, "weight_bytes", NULL, NULL, 1, 1e-6),
           bench_number(j, "weight_bytes_per_s", NULL, NULL, 1, 1e-9),
           bench_number(j, "share_of_ceiling", NULL, NULL, 2, 1),
           bench_number(j, "floor_bytes_s", NULL, NULL, 3, 1e3),
           bench_number(j, "floor_products_s", NULL, NULL, 3, 1e3),
           bench_number(j, "peer_s", NULL, NULL, 3, 1e3));
}

static void prompt_row(const json_t *j)
{
    printf("| %s | %s | %s | %s |\n", bench_text(j, "target", "file"),
           bench_number(j, "tokens", NULL, NULL, 0, 1), bench_number(j, "seconds", "median", NULL, 1, 1e3),
           bench_number(j, "tokens_per_s", NULL, NULL, 0, 1));
}

static void draft_row(const json_t *j)
{
    printf("| %s | %s | %s | %s | %s | %s |\n", bench_text(j, "drafter", "file"),
           bench_text(j, "target", "file"), bench_number(j, "block", NULL, NULL, 0, 1),
           bench_number(j, "seconds", "median", NULL, 3, 1e3),
           bench_number(j, "one_row_steps", NULL, NULL, 2, 1),
           bench_number(j, "share_of_ceiling", NULL, NULL, 2, 1));
}

static void op_row(const json_t *j)
{
    const double calls = json_number_value(json_object_get(j, "calls"));
    printf("| %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", bench_text(j, "model", "file"),
           bench_number(j, "rows", NULL, NULL, 0, 1), bench_text(j, NULL, "op"), bench_text(j, NULL, "shape"),
           bench_number(j, "calls", NULL, NULL, 0, 1), bench_number(j, "seconds", "median", NULL, 1, 1e6),
           bench_number(j, "seconds", "median", NULL, 2, calls > 0 ? 1e6 / calls : 0),
           bench_number(j, "weight_bytes", NULL, NULL, 1, 1e-6),
           bench_number(j, "share_of_ceiling", NULL, NULL, 2, 1),
           bench_number(j, "seconds_beside_bytes", NULL, NULL, 2, 1e6));
}

static void ops_row(const json_t *j)
{
    printf("| %s | %s | %s | %s | %s | %s | %s | %s |\n", bench_text(j, "model", "file"),
           bench_number(j, "rows", NULL, NULL, 0, 1), bench_number(j, "context", NULL, NULL, 0, 1),
           bench_number(j, "calls", NULL, NULL, 0, 1), bench_number(j, "seconds", "median", NULL, 3, 1e3),
           bench_number(j, "apart_seconds", "median", NULL, 3, 1e3),
           bench_number(j, "weight_bytes", NULL, NULL, 1, 1e-6),
           bench_number(j, "stamp_seconds", NULL, NULL, 2, 1e6));
}

static const struct {
    const char *kind, *head;
    void (*row)(const json_t *);
} table[] = {
    {"cell",
     "| target | drafter | cell | plain t/s | share of reading | drafted t/s | tau | speedup (quartiles) | "
     "verdict | equal |\n"
     "| --- | --- | --- | ---: | ---: | ---: | ---: | --- | --- | --- |\n",
     cell_row},
    {"rows",
     "| target | rows | context | ms | one-row steps | experts | MB of weights | GB/s of weights | share of "
     "reading | floor of bytes, ms | of products, ms | peer, ms |\n"
     "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n",
     rows_row},
    {"prompt", "| target | prompt tokens | ms | tokens/s |\n| --- | ---: | ---: | ---: |\n", prompt_row},
    {"draft",
     "| drafter | target | block | ms | one-row steps | share of reading |\n| --- | --- | ---: | ---: | ---: "
     "| ---: |\n",
     draft_row},
    {"ops",
     "Passes, and the sums of their operations timed apart. Operations that are timed apart do not overlap "
     "as they do in a pass, and what a\n"
     "stamp takes is taken off each: read them against each other, not as parts of the pass.\n\n"
     "| model | rows | context | operations | ms a pass | ms apart | MB of weights | us a stamp |\n"
     "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n",
     ops_row},
    {"op",
     "| model | rows | operation | shape | calls | us | us a call | MB of weights | share of reading | us a "
     "call beside its bytes |\n"
     "| --- | ---: | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n",
     op_row},
};

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
        bool known = is(j, "compare");
        for (size_t t = 0; t < sizeof table / sizeof *table; t++) known |= is(j, table[t].kind);
        if (!known)
            cli_warn(&cli,
                     "a line of kind '%.40s' is not shown (expected cell, rows, prompt, draft, ops, op or "
                     "compare)",
                     bench_text(j, NULL, "kind"));
    }
    if (!json_array_size(lines)) cli_warn(&cli, "no lines to report");
}

/* What a cell was measured with, but for its models and label. */
static void cell_made(const json_t *j, char *out, size_t n)
{
    char settings[900] = "{}";
    const json_t *set = json_object_get(j, "settings");
    char *all = set ? json_line(set, 6) : NULL;
    if (all) snprintf(settings, sizeof settings, "%s", text_printable(all));
    mem_free(all);
    snprintf(out, n, "%s runs, %s prompts of %s tokens together, on %s (%s, %s threads), version %s %s%s: %s",
             bench_number(j, "runs", NULL, NULL, 0, 1), bench_number(j, "prompts", NULL, NULL, 0, 1),
             bench_number(j, "prompt_tokens", NULL, NULL, 0, 1), bench_text(j, "machine", "device"),
             bench_text(j, "machine", "processor"), bench_number(j, "machine", "threads", NULL, 0, 1),
             bench_text(j, "machine", "version"), bench_text(j, "machine", "commit"),
             json_is_true(json_object_get(json_object_get(j, "machine"), "changed")) ? "+" : "", settings);
}

/* Below the cells: what they were measured with, each once, and what the columns are. */
static void cells_foot(const json_t *lines)
{
    bool any = false;
    for (size_t i = 0; i < json_array_size(lines); i++) {
        const json_t *j = json_array_get(lines, i);
        char made[1800], other[1800];
        bool said = false;
        if (!is(j, "cell")) continue;
        cell_made(j, made, sizeof made);
        for (size_t k = 0; k < i && !said; k++) {
            if (!is(json_array_get(lines, k), "cell")) continue;
            cell_made(json_array_get(lines, k), other, sizeof other);
            said = !strcmp(made, other);
        }
        if (!said) printf("%s- %s\n", any ? "" : "\n", made);
        any = true;
    }
    if (any)
        printf("\nt/s: tokens a second behind the first, medians. share of reading: of the weights, once a "
               "token, at the "
               "speed that the run read at. tau: tokens a cycle. speedup: median of the runs' ratios, "
               "drafted to plain "
               "in turn, with their quartiles; verdict: faster or slower where a sign test over the runs "
               "says so (p below 0.1) and the median is further "
               "from 1 than half of what the quartiles span. equal: the streams, byte for byte.\n");
}

static void tables(json_t *lines)
{
    bool first = true;
    for (size_t t = 0; t < sizeof table / sizeof *table; t++) {
        bool open = false;
        for (size_t i = 0; i < json_array_size(lines); i++) {
            const json_t *j = json_array_get(lines, i);
            if (!is(j, table[t].kind)) continue;
            if (!open) printf("%s%s", first ? "" : "\n", table[t].head);
            open = true;
            first = false;
            table[t].row(j);
        }
        if (open && !strcmp(table[t].kind, "cell")) cells_foot(lines);
    }
    streams(lines);
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
    int rc = 0;
    cli_parse(&cli, argc, argv);
    cli_one_stdin(&cli, cli.args, cli.n_args);
    if (redirect_open(&file, out_path, force, cli.args, cli.n_args, &e)) return cli_fail(&cli, &e);
    json_t *lines = json_array(); /* after cli_parse, which says where jansson's memory comes from */
    for (int i = 0; i < cli.n_args && !rc; i++)
        if (read_lines(cli.args[i], lines, &e)) rc = cli_fail(&cli, &e);
    if (!rc) warn_unknown(lines);
    if (!rc && gnuplot)
        plot(lines);
    else if (!rc)
        tables(lines);
    json_decref(lines);
    return redirect_close(&file, &cli, rc);
}
