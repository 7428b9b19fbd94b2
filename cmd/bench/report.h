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
/* cells.c: the cells of lines, with what they are of: by their files (target, drafter), by their tags (class,
 * setting, plan; class else by the label). Texts live as long as the lines; numbers tell them apart. */
enum axis { AXIS_TARGET, AXIS_DRAFTER, AXIS_CLASS, AXIS_SETTING, AXIS_PLAN, AXES };
enum {
    OF_TARGET = 1 << AXIS_TARGET,
    OF_DRAFTER = 1 << AXIS_DRAFTER,
    OF_CLASS = 1 << AXIS_CLASS,
    OF_SETTING = 1 << AXIS_SETTING,
    OF_PLAN = 1 << AXIS_PLAN
};
struct report_cell {
    const json_t *j, *drafted, *kept; /* kept: accepted_histogram; NULL: there is none */
    const char *of[AXES];             /* "": nothing is said */
    int id[AXES];
};
struct report_cells {
    struct report_cell *v;
    size_t n;
};
int cells_read(struct report_cells *c, const json_t *lines); /* -1: memory */
void cells_free(struct report_cells *c);
const char *cells_axis(enum axis a);
bool cells_alike(const struct report_cell *a, const struct report_cell *b, unsigned axes);
/* Is none before cell i like it? with_kept: of those that have kept. */
bool cells_first(const struct report_cells *c, size_t i, unsigned axes, bool with_kept);
/* Of the cycles of the cells that are like one in axes: the share that kept so many proposals or more; NaN
 * without cycles. */
double cells_kept(const struct report_cells *c, const struct report_cell *like, unsigned axes, int proposals);

/* The tables of lines in the order that they are shown in, at most most of them; how many. baseline: lines of
 * another time, or NULL; *against: what baseline_compare says of it. */
enum { REPORT_TABLES = 16 };
enum baseline_verdict { BASELINE_HOLDS, BASELINE_WORSE, BASELINE_UNMET };
int report_tables(const json_t *lines, const struct report_cells *cells, const json_t *baseline, double slack,
                  struct grid *g, enum baseline_verdict *against);
/* A plain stream and a drafted one that differ, in any line. */
bool report_streams_differ(const json_t *lines);
/* What cells were measured with, each once, a line each; mem_free it. "" without cells, NULL without memory.
 */
char *report_made(const json_t *lines);
/* What the columns of cells are. */
extern const char report_cells_legend[];

/* baseline.c: WORSE where a cell is slower than the baseline's by more than its noise (at least slack, a
 * share) or writes another stream, or where one of the baseline's was not measured; else UNMET where no speed
 * was compared: no cell is in both, or all of them are another machine's. */
enum baseline_verdict baseline_compare(const json_t *lines, const json_t *baseline, double slack,
                                       struct grid *g);
/* Two-sided p of the rank-sum test (Mann-Whitney): the chance of runs that lie as far apart, of one
 * distribution. */
double rank_test(const struct sample *a, const struct sample *b);

/* page.c: one page, without the network. */
struct page {
    const json_t *lines;
    const struct report_cells *cells;
    const char *title;
    const struct grid *grid;
    int n_grid;
    const char *verdict; /* a sentence, or "" */
};
void page_write(const struct page *p, FILE *out);
/* charts.c: the plots of lines as figures of HTML. */
void charts_write(const json_t *lines, const struct report_cells *cells, FILE *out);
/* text as HTML has it. */
void html_put(FILE *out, const char *text);

#endif
