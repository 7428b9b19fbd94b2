/* charts.c - which plots the lines of a report give. See report.h. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "../../common/base/mem.h"
#include "../../common/base/text.h"
#include "bench.h"
#include "report.h"
#include "svg.h"

enum { MOST = 12 }; /* plots of one kind; what is left out is said */

static double number(const json_t *j, const char *a, const char *b, const char *c)
{
    j = json_object_get(json_object_get(j, a), b);
    if (c) j = json_object_get(j, c);
    return json_is_number(j) ? json_number_value(j) : NAN;
}

/* "target-q8_0.gguf" is q8_0 where a matrix named it. */
static const char *short_name(const struct report_cell *c, enum axis a)
{
    const char *tag = json_string_value(json_object_get(json_object_get(c->j, "tags"), cells_axis(a)));
    const char *s = tag && *tag ? tag : c->of[a];
    return *s || a != AXIS_DRAFTER ? s : "look-ups";
}

/* What is added to a title: drafter, setting and plan of axes, where they have names. */
static void title_with(char *out, size_t n, const char *title, const struct report_cell *c, unsigned axes)
{
    int at = snprintf(out, n, "%s", title);
    for (int a = 0; a < AXES; a++) {
        const char *s = axes >> a & 1 ? short_name(c, (enum axis)a) : "";
        if (*s && at < (int)n) at += snprintf(out + at, n - (size_t)at, ", %s", s);
    }
}

/* A value more of a bar: the mean of all, with their range as a whisker. count: how many so far. */
static void more(struct plot *p, int s, int i, double v, int count[SVG_SERIES][SVG_PLACES])
{
    if (s < 0 || i < 0 || v != v) return;
    const int n = count[s][i]++;
    p->v[s][i] = n ? (p->v[s][i] * n + v) / (n + 1) : v;
    p->low[s][i] = fmin(p->low[s][i], v);
    p->high[s][i] = fmax(p->high[s][i], v);
}

static void left_out(FILE *out, int n)
{
    if (n > MOST)
        fprintf(out, "<p class=\"note\">%d more are not drawn; the tables have their numbers.</p>\n",
                n - MOST);
}

/* ---- from cells ---- */

/* Bars of a kind: of speed a group a target and a bar a drafter, of accepted length a group a class. */
static void bars(const struct report_cells *c, bool speed, struct plot *p, FILE *out)
{
    enum { PLOT = OF_SETTING | OF_PLAN };
    static int count[SVG_SERIES][SVG_PLACES];
    char title[400];
    int n = 0;
    for (size_t i = 0; i < c->n; i++) {
        const struct report_cell *first = &c->v[i];
        bool any = false;
        if (!cells_first(c, i, PLOT, false)) continue;
        title_with(title, sizeof title,
                   speed ? "Speed by quantisation and drafter" : "Accepted length by class of prompt", first,
                   PLOT);
        plot_init(p, title,
                  speed ? "means over the classes of prompts, lines from the slowest to the fastest"
                        : "means over the targets, lines from the shortest to the longest");
        p->y = speed ? "tokens/s" : "tau, tokens a cycle";
        memset(count, 0, sizeof count);
        if (speed) plot_series(p, "plain");
        p->colour = !speed; /* grey is plain in every plot */
        for (size_t k = i; k < c->n; k++) {
            const struct report_cell *x = &c->v[k];
            if (!cells_alike(x, first, PLOT)) continue;
            const int place = plot_place(p, speed ? short_name(x, AXIS_TARGET) : x->of[AXIS_CLASS]);
            if (speed) more(p, 0, place, number(x->j, "plain", "decode_tokens_per_s", "median"), count);
            const double v = speed ? number(x->j, "drafted", "decode_tokens_per_s", "median")
                                   : number(x->j, "drafted", "tau", NULL);
            any |= speed || v == v;
            if (v == v) more(p, plot_series(p, short_name(x, AXIS_DRAFTER)), place, v, count);
        }
        if (any && n++ < MOST) plot_bars(out, p);
    }
    left_out(out, n);
}

static void slots(const struct report_cells *c, struct plot *p, FILE *out)
{
    enum { PLOT = OF_DRAFTER | OF_SETTING | OF_PLAN };
    char title[400];
    int n = 0;
    for (size_t i = 0; i < c->n; i++) {
        const struct report_cell *first = &c->v[i];
        if (!first->kept || !cells_first(c, i, PLOT, true)) continue;
        title_with(title, sizeof title, "Proposals kept, by slot", first, PLOT);
        plot_init(p, title, "share of the cycles that kept so many or more, over all targets");
        p->x = "slot";
        p->y = "share of cycles";
        p->y_most = 1;
        p->colour = 1;
        for (size_t k = i; k < c->n; k++) {
            const struct report_cell *x = &c->v[k];
            if (!x->kept || !cells_alike(x, first, PLOT)) continue;
            const int had = p->n_series, s = plot_series(p, x->of[AXIS_CLASS]);
            if (s < had) continue; /* drawn already, or no room */
            for (int slot = 1; slot <= 16; slot++) {
                const double v = cells_kept(c, x, PLOT | OF_CLASS, slot);
                if (!(v > 0) && slot > 1) break;
                p->at[s][p->points[s]] = slot;
                p->v[s][p->points[s]++] = v;
            }
        }
        if (n++ < MOST) plot_curves(out, p);
    }
    left_out(out, n);
}

/* Predicted and seen chances that a proposal equals the pick, by slot, of all cells of a drafter together. */
static void calibration(const struct report_cells *c, struct plot *p, FILE *out)
{
    double labels[SVG_SERIES][SVG_PLACES] = {{0}};
    bool any = false;
    plot_init(p, "Calibration",
              "a point a slot, its number beside it; on the line the planner's probabilities are right");
    p->x = "predicted";
    p->y = "seen";
    p->y_most = 1;
    p->diagonal = p->names = true;
    p->colour = 1;
    for (size_t i = 0; i < c->n; i++) {
        const json_t *by = json_object_get(json_object_get(c->v[i].drafted, "plan"), "equality_by_slot");
        if (!json_array_size(by)) continue;
        const int s = plot_series(p, short_name(&c->v[i], AXIS_DRAFTER));
        for (size_t k = 0; s >= 0 && k < json_array_size(by); k++) {
            const json_t *e = json_array_get(by, k);
            const int slot = (int)json_integer_value(json_array_get(e, 0)) - 1;
            const double n = json_number_value(json_array_get(e, 1));
            if (slot < 0 || slot >= SVG_PLACES || !(n > 0)) continue;
            if (slot >= p->points[s]) p->points[s] = slot + 1;
            const double all = labels[s][slot] + n, was = labels[s][slot];
            const double seen = json_number_value(json_array_get(e, 3));
            p->at[s][slot] = (p->at[s][slot] * was + json_number_value(json_array_get(e, 2)) * n) / all;
            p->v[s][slot] = was > 0 ? (p->v[s][slot] * was + seen * n) / all : seen;
            labels[s][slot] = all;
            any = true;
        }
    }
    if (any) plot_curves(out, p);
}

/* Cycles of [[rows, cycles], ..] to the series of that kind and those rows. */
static void by_rows(struct plot *p, int place, const json_t *list, const char *kind)
{
    char name[64];
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *e = json_array_get(list, i);
        const int rows = (int)json_integer_value(json_array_get(e, 0));
        snprintf(name, sizeof name, "%s %d row%s", kind, rows, rows == 1 ? "" : "s");
        int s = plot_series(p, name);
        if (s < 0) s = SVG_SERIES - 1;
        p->v[s][place] =
            (p->v[s][place] == p->v[s][place] ? p->v[s][place] : 0) + json_number_value(json_array_get(e, 1));
    }
}

static void cycles(const struct report_cells *c, struct plot *p, FILE *out)
{
    char name[400];
    int more_cells = 0;
    plot_init(p, "Cycles by plan", "shares of the cycles of each cell's last stream");
    plot_series(p, "plain");
    for (size_t i = 0; i < c->n; i++) {
        const struct report_cell *x = &c->v[i];
        const json_t *plan = json_object_get(x->drafted, "plan");
        const char *label = json_string_value(json_object_get(x->j, "label"));
        if (!json_is_object(plan)) continue;
        snprintf(name, sizeof name, "%s, %s, %s", short_name(x, AXIS_TARGET), short_name(x, AXIS_DRAFTER),
                 label ? label : "");
        const int had = p->n_places, place = plot_place(p, name);
        if (place < had) {
            more_cells++;
            continue;
        }
        p->v[0][place] = json_number_value(json_object_get(plan, "plain_cycles"));
        by_rows(p, place, json_object_get(plan, "drafted_cycles_by_rows"), "drafted,");
        by_rows(p, place, json_object_get(plan, "tree_cycles_by_rows"), "tree,");
        by_rows(p, place, json_object_get(plan, "lookup_cycles_by_rows"), "look-up,");
        double all = 0;
        for (int s = 0; s < p->n_series; s++) all += p->v[s][place] > 0 ? p->v[s][place] : 0;
        for (int s = 0; s < p->n_series; s++) p->v[s][place] /= all;
    }
    if (!p->n_places) return;
    if (p->lost > more_cells) snprintf(p->series[SVG_SERIES - 1], sizeof p->series[0], "%s", "others");
    p->lost = 0; /* in others, or said here */
    plot_shares(out, p);
    if (more_cells) fprintf(out, "<p class=\"note\">%d more cells are not drawn.</p>\n", more_cells);
}

/* ---- from rows ---- */

static bool same_curve(const json_t *a, const json_t *b)
{
    static const char *const at[][2] = {{"target", "file"}, {"machine", "device"}, {"machine", "threads"}};
    for (size_t i = 0; i < sizeof at / sizeof *at; i++)
        if (!json_equal(json_object_get(json_object_get(a, at[i][0]), at[i][1]),
                        json_object_get(json_object_get(b, at[i][0]), at[i][1])))
            return json_object_get(json_object_get(a, at[i][0]), at[i][1]) ==
                   json_object_get(json_object_get(b, at[i][0]), at[i][1]);
    return json_is_true(json_object_get(a, "prompt")) || json_is_true(json_object_get(b, "prompt")) ||
           json_number_value(json_object_get(a, "context")) ==
               json_number_value(json_object_get(b, "context"));
}

static void point(struct plot *p, const char *name, double at, const json_t *v, bool dashed)
{
    if (!json_is_number(v)) return;
    const int s = plot_series(p, name);
    if (s >= 0 && p->points[s] == SVG_PLACES) p->lost++;
    if (s < 0 || p->points[s] == SVG_PLACES) return;
    int i = p->points[s]++;
    for (; i > 0 && p->at[s][i - 1] > at; i--) { /* in the order of rows */
        p->at[s][i] = p->at[s][i - 1];
        p->v[s][i] = p->v[s][i - 1];
    }
    p->at[s][i] = at;
    p->v[s][i] = json_number_value(v) * 1e3;
    p->dashed[s] = dashed;
}

static void rows(const json_t *lines, struct plot *p, FILE *out)
{
    char title[600];
    int n = 0;
    for (size_t i = 0; i < json_array_size(lines); i++) {
        const json_t *j = json_array_get(lines, i);
        bool first = report_is(j, "rows");
        for (size_t k = 0; k < i && first; k++)
            first = !report_is(json_array_get(lines, k), "rows") || !same_curve(json_array_get(lines, k), j);
        if (!first) continue;
        snprintf(title, sizeof title, "Time against rows, %s, context %s, %s",
                 bench_text(j, "target", "file"), bench_number(j, "context", NULL, NULL, 0, 1),
                 bench_text(j, "machine", "device"));
        plot_init(p, title, "with the floors of the same run; both axes are logarithmic");
        p->x = "rows of a pass";
        p->y = "ms";
        p->log_x = p->log_y = true;
        p->colour = 1;
        for (size_t k = i; k < json_array_size(lines); k++) {
            const json_t *x = json_array_get(lines, k);
            const double at = json_number_value(json_object_get(x, "rows"));
            const char *peer = json_string_value(json_object_get(x, "peer"));
            if (!report_is(x, "rows") || !same_curve(x, j) || !(at > 0)) continue;
            point(p, "measured", at, json_object_get(json_object_get(x, "seconds"), "median"), false);
            point(p, "floor: bytes at the measured ceiling", at, json_object_get(x, "floor_bytes_s"), true);
            point(p, "floor: products at the measured ceiling", at, json_object_get(x, "floor_products_s"),
                  true);
            point(p, peer ? peer : "peer", at, json_object_get(x, "peer_s"), false);
        }
        if (n++ < MOST) plot_curves(out, p);
    }
    left_out(out, n);
}

void charts_write(const json_t *lines, const struct report_cells *cells, FILE *out)
{
    struct plot *p = mem_alloc(sizeof *p);
    if (!p) return; /* mem_failures tells */
    bars(cells, true, p, out);
    bars(cells, false, p, out);
    slots(cells, p, out);
    rows(lines, p, out);
    calibration(cells, p, out);
    cycles(cells, p, out);
    mem_free(p);
}
