/* svg.c - see svg.h. */
#include "svg.h"
#include <math.h>
#include <string.h>
#include "report.h"

enum { WIDTH = 640, HEIGHT = 310, LEFT = 66, RIGHT = 22, TOP = 14 };

void plot_init(struct plot *p, const char *title, const char *note)
{
    memset(p, 0, sizeof *p);
    p->title = title;
    p->note = note;
    for (int s = 0; s < SVG_SERIES; s++)
        for (int i = 0; i < SVG_PLACES; i++) p->v[s][i] = p->low[s][i] = p->high[s][i] = NAN;
}

static int named(struct plot *p, char (*list)[160], int *n, int most, const char *name)
{
    char cut[160];
    snprintf(cut, sizeof cut, "%s", name);
    for (int i = 0; i < *n; i++)
        if (!strcmp(list[i], cut)) return i;
    if (*n == most) {
        p->lost++;
        return -1;
    }
    memcpy(list[*n], cut, sizeof cut);
    return (*n)++;
}

int plot_series(struct plot *p, const char *name)
{
    return named(p, p->series, &p->n_series, SVG_SERIES, name);
}

int plot_place(struct plot *p, const char *name)
{
    return named(p, p->place, &p->n_places, SVG_PLACES, name);
}

/* ---- text and frame ---- */

static void text_at(FILE *out, double x, double y, const char *anchor, const char *extra, const char *text)
{
    fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\"%s>", x, y, anchor, extra);
    html_put(out, text);
    fputs("</text>\n", out);
}

static void title_of(FILE *out, const char *a, const char *b, double v)
{
    fputs("<title>", out);
    html_put(out, a);
    fputs(*a && *b ? ", " : "", out);
    html_put(out, b);
    fprintf(out, ": %.4g</title>", v);
}

static void begin(FILE *out, const struct plot *p, int height)
{
    fputs("<figure>\n<figcaption><b>", out);
    html_put(out, p->title);
    fputs("</b>", out);
    if (p->note) {
        fputs(" <span>", out);
        html_put(out, p->note);
        fputs("</span>", out);
    }
    fputs("</figcaption>\n<ul class=\"key\">", out);
    for (int s = 0; s < p->n_series; s++) {
        fprintf(out, "<li><i class=\"s%d%s\"></i>", (s + p->colour) % 8, p->dashed[s] ? " d" : "");
        html_put(out, p->series[s]);
        fputs("</li>", out);
    }
    fprintf(out, "</ul>\n<div class=\"scroll\"><svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"", WIDTH,
            height);
    html_put(out, p->title);
    fputs("\">\n", out);
}

static void end(FILE *out, const struct plot *p)
{
    fputs("</svg></div>\n", out);
    if (p->lost)
        fprintf(out, "<p class=\"note\">%d values more have no room here; the tables have them.</p>\n",
                p->lost);
    fputs("</figure>\n", out);
}

/* 1, 2 or 5 times a power of ten, of which some five reach most. */
static double step_for(double most)
{
    const double raw = most / 5, ten = pow(10, floor(log10(raw)));
    return raw / ten <= 1 ? ten : raw / ten <= 2 ? 2 * ten : raw / ten <= 5 ? 5 * ten : 10 * ten;
}

static void number_at(FILE *out, double x, double y, const char *anchor, double v)
{
    char text[32];
    snprintf(text, sizeof text, "%.6g", v);
    text_at(out, x, y, anchor, "", text);
}

static void line_to(FILE *out, const char *class, double x1, double y1, double x2, double y2)
{
    fprintf(out, "<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n", class, x1, y1, x2,
            y2);
}

static void axis_titles(FILE *out, const struct plot *p, double bottom, int height)
{
    char turn[80];
    snprintf(turn, sizeof turn, " class=\"axis\" transform=\"rotate(-90 14 %.1f)\"", (TOP + bottom) / 2);
    if (p->y) text_at(out, 14, (TOP + bottom) / 2, "middle", turn, p->y);
    if (p->x) text_at(out, (LEFT + WIDTH - RIGHT) / 2.0, height - 4, "middle", " class=\"axis\"", p->x);
}

/* ---- bars ---- */

static double most_of(const struct plot *p)
{
    double most = p->y_most;
    for (int s = 0; s < p->n_series; s++)
        for (int i = 0; i < p->n_places; i++) {
            most = fmax(most, p->v[s][i]); /* fmax passes a NaN over */
            most = fmax(most, p->high[s][i]);
        }
    return most > 0 ? most : 1;
}

/* Lines across and their numbers, from zero; returns what the top stands for. */
static double scale_from_zero(FILE *out, double most, double bottom)
{
    const double step = step_for(most), top = step * ceil(most / step - 1e-9);
    for (int i = 0; i * step <= top * (1 + 1e-9); i++) {
        const double y = bottom - (bottom - TOP) * (i * step) / top;
        line_to(out, "grid", LEFT, y, WIDTH - RIGHT, y);
        number_at(out, LEFT - 6, y + 4, "end", i * step);
    }
    return top;
}

static void bar(FILE *out, const struct plot *p, int s, int i, double x, double w, double bottom, double top)
{
    const double v = p->v[s][i], h = (bottom - TOP) * v / top;
    if (v != v) return;
    fprintf(out, "<rect class=\"s%d\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\">",
            (s + p->colour) % 8, x, bottom - h, w, h);
    title_of(out, p->place[i], p->series[s], v);
    fputs("</rect>\n", out);
    if (p->low[s][i] < p->high[s][i])
        line_to(out, "whisker", x + w / 2, bottom - (bottom - TOP) * p->low[s][i] / top, x + w / 2,
                bottom - (bottom - TOP) * p->high[s][i] / top);
}

void plot_bars(FILE *out, const struct plot *p)
{
    size_t longest = 0;
    for (int i = 0; i < p->n_places; i++)
        longest = strlen(p->place[i]) > longest ? strlen(p->place[i]) : longest;
    const double group = (double)(WIDTH - LEFT - RIGHT) / (p->n_places ? p->n_places : 1);
    const bool turned = (double)longest * 7 > group; /* names are some 7 a letter */
    const int height = HEIGHT + (turned ? (int)(longest < 40 ? longest : 40) * 4 : 0);
    const double bottom = HEIGHT - 40;
    begin(out, p, height);
    const double top = scale_from_zero(out, most_of(p), bottom);
    for (int i = 0; i < p->n_places; i++) {
        const double x = LEFT + group * i, w = group * 0.8 / (p->n_series ? p->n_series : 1);
        char turn[80] = "";
        for (int s = 0; s < p->n_series; s++)
            bar(out, p, s, i, x + group * 0.1 + w * s, w * 0.92, bottom, top);
        const double mid = x + group / 2;
        if (turned) snprintf(turn, sizeof turn, " transform=\"rotate(-30 %.1f %.1f)\"", mid, bottom + 16);
        text_at(out, mid, bottom + 16, turned ? "end" : "middle", turn, p->place[i]);
    }
    axis_titles(out, p, bottom, height);
    end(out, p);
}

/* ---- curves ---- */

struct span {
    double from, to; /* of an axis; their logarithms where it is logarithmic */
};

static double along(const struct span *s, bool is_log, double v)
{
    return ((is_log ? log2(v) : v) - s->from) / (s->to - s->from);
}

static struct span span_of(const struct plot *p, bool y, bool is_log)
{
    double low = INFINITY, high = -INFINITY;
    for (int s = 0; s < p->n_series; s++)
        for (int i = 0; i < p->points[s]; i++) {
            const double v = y ? p->v[s][i] : p->at[s][i];
            if (v != v || (is_log && v <= 0)) continue;
            low = fmin(low, v);
            high = fmax(high, v);
        }
    if (!(low <= high)) low = 0, high = 1;
    if (is_log) return (struct span){log2(low) - 0.15, log2(high) + 0.15};
    if (y || p->diagonal) return (struct span){0, fmax(p->y_most, high > 0 ? high : 1)};
    return (struct span){low - 0.1 * (high - low + 1), high + 0.1 * (high - low + 1)};
}

/* Lines across an axis and their numbers: powers of two, or steps. */
static void scale(FILE *out, const struct span *s, bool is_log, bool y, double bottom)
{
    double step = is_log ? ceil((s->to - s->from) / 8) : step_for(s->to - s->from);
    if (!y && !is_log && step < 1 && s->to > 2) step = 1; /* slots are whole */
    for (double v = ceil(s->from / step - 1e-9) * step; v <= s->to + 1e-9; v += step) {
        const double part = (v - s->from) / (s->to - s->from), shown = is_log            ? exp2(v)
                                                                       : fabs(v) < 1e-12 ? 0
                                                                                         : v;
        const double x = LEFT + part * (WIDTH - RIGHT - LEFT), at = bottom - part * (bottom - TOP);
        if (y) {
            line_to(out, "grid", LEFT, at, WIDTH - RIGHT, at);
            number_at(out, LEFT - 6, at + 4, "end", shown);
        } else {
            line_to(out, "grid", x, TOP, x, bottom);
            number_at(out, x, bottom + 16, "middle", shown);
        }
    }
}

static void curve(FILE *out, const struct plot *p, int s, const struct span *sx, const struct span *sy,
                  double bottom)
{
    char number[32];
    bool open = false;
    for (int pass = 0; pass < 2; pass++) {
        if (pass == 0 && p->names) continue; /* points alone */
        for (int i = 0; i < p->points[s]; i++) {
            if (!(p->v[s][i] == p->v[s][i]) || (p->log_y && p->v[s][i] <= 0)) continue;
            const double x = LEFT + along(sx, p->log_x, p->at[s][i]) * (WIDTH - RIGHT - LEFT);
            const double y = bottom - along(sy, p->log_y, p->v[s][i]) * (bottom - TOP);
            if (pass == 0) {
                if (!open)
                    fprintf(out, "<polyline class=\"s%d%s\" points=\"", (s + p->colour) % 8,
                            p->dashed[s] ? " d" : "");
                fprintf(out, "%s%.1f,%.1f", open ? " " : "", x, y);
                open = true;
            } else if (!p->dashed[s]) {
                snprintf(number, sizeof number, "%.6g", p->at[s][i]);
                fprintf(out, "<circle class=\"s%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\">", (s + p->colour) % 8, x,
                        y);
                title_of(out, p->series[s], number, p->v[s][i]);
                fputs("</circle>\n", out);
                snprintf(number, sizeof number, "%d", i + 1);
                if (p->names) text_at(out, x + 6, y - 4, "start", "", number);
            }
        }
        if (open) fputs("\"/>\n", out);
        open = false;
    }
}

void plot_curves(FILE *out, const struct plot *p)
{
    const struct span sx = span_of(p, false, p->log_x), sy = span_of(p, true, p->log_y);
    const double bottom = HEIGHT - 46;
    begin(out, p, HEIGHT);
    scale(out, &sy, p->log_y, true, bottom);
    scale(out, &sx, p->log_x, false, bottom);
    if (p->diagonal) line_to(out, "whisker", LEFT, bottom, WIDTH - RIGHT, TOP);
    for (int s = 0; s < p->n_series; s++) curve(out, p, s, &sx, &sy, bottom);
    axis_titles(out, p, bottom, HEIGHT);
    end(out, p);
}

/* ---- shares ---- */

void plot_shares(FILE *out, const struct plot *p)
{
    const double left = 290, row = 22, height = TOP + row * p->n_places + 26;
    begin(out, p, (int)height);
    for (int i = 0; i < p->n_places; i++) {
        const double y = TOP + row * i;
        double x = left;
        text_at(out, left - 8, y + 14, "end", "", p->place[i]);
        for (int s = 0; s < p->n_series; s++) {
            const double w = p->v[s][i] * (WIDTH - RIGHT - left);
            if (!(w > 0)) continue;
            fprintf(out, "<rect class=\"s%d\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\">",
                    (s + p->colour) % 8, x, y + 2, w, row - 5);
            title_of(out, p->place[i], p->series[s], p->v[s][i]);
            fputs("</rect>\n", out);
            x += w;
        }
    }
    for (int i = 0; i <= 4; i++)
        number_at(out, left + i * (WIDTH - RIGHT - left) / 4, height - 8, i == 4 ? "end" : "middle",
                  i * 0.25);
    end(out, p);
}
