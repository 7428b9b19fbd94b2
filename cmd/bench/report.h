/* report.h - what dflash-bench report is made of: lines of JSON become grids of text, and these become
 * Markdown or, with plots, a page; a baseline's lines are held against them.
 *
 * Nothing here judges by itself whether a run was good: report.c asks report_streams_differ and
 * baseline_compare. */
#ifndef DFLASH_BENCH_REPORT_H
#define DFLASH_BENCH_REPORT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include "bench.h"

/* A table's text: n_col titles, then rows. Text is owned. */
struct grid {
    char *title, *note; /* note "": none */
    int n_col;
    char **head;
    bool *number;        /* a column of numbers is set to the right, and sorted by them */
    char **cell;         /* [rows][n_col] */
    size_t n_cell, room; /* cells, not rows: grid_rows */
    bool failed;         /* memory: what is there is not whole */
};
void grid_init(struct grid *g, const char *title, const char *note);
void grid_column(struct grid *g, const char *title, bool number); /* before the first row */
/* The cells of a row, one after the other; the row is there when all of its columns are. */
void grid_put(struct grid *g, const char *text);
size_t grid_rows(const struct grid *g);
void grid_free(struct grid *g);
/* Aligned for a terminal, and a table to Markdown. */
void grid_markdown(const struct grid *g, FILE *out);

bool report_is(const json_t *line, const char *kind);
/* Is there a place for lines of its kind? */
bool report_knows(const json_t *line);
/* The tables of lines in the order that they are shown in, at most most of them; how many. baseline: lines of
 * another time, or NULL; *worse: what baseline_compare says of it. */
enum { REPORT_TABLES = 16 };
int report_tables(const json_t *lines, const json_t *baseline, double slack, struct grid *g, bool *worse);
/* A plain stream and a drafted one that differ, in any line. */
bool report_streams_differ(const json_t *lines);
/* What cells were measured with, each once, a line each; mem_free it. "" without cells, NULL without memory.
 */
char *report_made(const json_t *lines);
/* Of the cycles of cells that are like cell in axes (NULL ends them): the share that kept so many proposals
 * or more; NaN without cycles. */
double report_kept(const json_t *lines, const json_t *cell, const char *const *axes, int proposals);
/* What the columns of cells are. */
extern const char report_cells_legend[];
/* What a cell is of: "class", "setting", "plan" of its tags (class: else its label), "target" and "drafter"
 * by their files. */
const char *report_axis(const json_t *cell, const char *axis);

/* baseline.c: true where a cell is slower than the baseline's by more than its noise (at least slack, a
 * share) or writes another stream, where one of the baseline's was not measured, or none is in both. */
bool baseline_compare(const json_t *lines, const json_t *baseline, double slack, struct grid *g);
/* Two-sided p of the rank-sum test (Mann-Whitney): the chance of runs that lie as far apart, of one
 * distribution. */
double rank_test(const struct sample *a, const struct sample *b);

/* page.c: one page, without the network. */
struct page {
    const json_t *lines;
    const char *title;
    const struct grid *grid;
    int n_grid;
    const char *verdict; /* a sentence, or "" */
};
void page_write(const struct page *p, FILE *out);
/* charts.c: the plots of lines as figures of HTML. */
void charts_write(const json_t *lines, FILE *out);
/* text as HTML has it. */
void html_put(FILE *out, const char *text);

#endif
