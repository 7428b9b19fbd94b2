/* grid.c - a table as text, and its Markdown. See report.h. */
#include <stdio.h>
#include <string.h>
#include "../../common/base/mem.h"
#include "report.h"

static char *kept(struct grid *g, const char *text)
{
    char *s = mem_strdup(text);
    if (!s) g->failed = true;
    return s;
}

void grid_init(struct grid *g, const char *title, const char *note)
{
    memset(g, 0, sizeof *g);
    g->title = kept(g, title);
    g->note = kept(g, note);
}

void grid_column(struct grid *g, const char *title, bool number)
{
    char **head = mem_realloc(g->head, ((size_t)g->n_col + 1) * sizeof *head);
    if (head) g->head = head;
    bool *is = mem_realloc(g->number, ((size_t)g->n_col + 1) * sizeof *is);
    if (is) g->number = is;
    if (!head || !is) {
        g->failed = true;
        return;
    }
    g->head[g->n_col] = kept(g, title);
    g->number[g->n_col++] = number;
}

void grid_put(struct grid *g, const char *text)
{
    if (g->failed) return;
    if (g->n_cell == g->room) {
        const size_t room = g->room ? 2 * g->room : 64;
        char **cell = mem_realloc(g->cell, room * sizeof *cell);
        if (!cell) {
            g->failed = true;
            return;
        }
        g->cell = cell;
        g->room = room;
    }
    g->cell[g->n_cell] = kept(g, text);
    if (g->cell[g->n_cell]) g->n_cell++;
}

size_t grid_rows(const struct grid *g)
{
    return g->n_col ? g->n_cell / (size_t)g->n_col : 0;
}

void grid_free(struct grid *g)
{
    for (size_t i = 0; i < g->n_cell; i++) mem_free(g->cell[i]);
    for (int c = 0; c < g->n_col; c++) mem_free(g->head[c]);
    mem_free(g->cell);
    mem_free(g->head);
    mem_free(g->number);
    mem_free(g->title);
    mem_free(g->note);
    memset(g, 0, sizeof *g);
}

/* Characters of UTF-8. */
static int width_of(const char *s)
{
    int n = 0;
    for (; *s; s++) n += (*s & 0xc0) != 0x80;
    return n;
}

static void padded(FILE *out, const char *text, int width, bool right)
{
    const int pad = width - width_of(text);
    fprintf(out, " %*s%s%*s |", right && pad > 0 ? pad : 0, "", text, !right && pad > 0 ? pad : 0, "");
}

static void rule(FILE *out, int width, bool right)
{
    fputs(" ", out);
    for (int i = 0; i < width - right; i++) fputc('-', out);
    fputs(right ? ": |" : " |", out);
}

void grid_markdown(const struct grid *g, FILE *out)
{
    int width[64];
    const int n_col = g->n_col < 64 ? g->n_col : 64;
    const size_t rows = grid_rows(g);
    for (int c = 0; c < n_col; c++) {
        width[c] = width_of(g->head[c]) > 3 ? width_of(g->head[c]) : 3;
        for (size_t r = 0; r < rows; r++) {
            const int w = width_of(g->cell[r * (size_t)g->n_col + (size_t)c]);
            if (w > width[c]) width[c] = w;
        }
    }
    if (*g->note) fprintf(out, "%s\n\n", g->note);
    fputs("|", out);
    for (int c = 0; c < n_col; c++) padded(out, g->head[c], width[c], g->number[c]);
    fputs("\n|", out);
    for (int c = 0; c < n_col; c++) rule(out, width[c], g->number[c]);
    fputs("\n", out);
    for (size_t r = 0; r < rows; r++) {
        fputs("|", out);
        for (int c = 0; c < n_col; c++)
            padded(out, g->cell[r * (size_t)g->n_col + (size_t)c], width[c], g->number[c]);
        fputs("\n", out);
    }
}
