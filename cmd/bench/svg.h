/* svg.h - three forms of plots as SVG within HTML: bars from zero, curves, shares. Colours are classes s0 to
 * s7 of the page's style; every mark has a title, which a browser shows. Text is escaped here. */
#ifndef DFLASH_BENCH_SVG_H
#define DFLASH_BENCH_SVG_H

#include <stdbool.h>
#include <stdio.h>

enum { SVG_SERIES = 12, SVG_PLACES = 48 };

struct plot {
    const char *title, *note; /* note NULL: none */
    const char *x, *y;        /* what the axes have; NULL: nothing is said */
    int n_series, n_places;
    char series[SVG_SERIES][160], place[SVG_PLACES][160];             /* places: of bars and shares */
    double v[SVG_SERIES][SVG_PLACES];                                 /* NaN: not there */
    double low[SVG_SERIES][SVG_PLACES], high[SVG_SERIES][SVG_PLACES]; /* bars: ends of a whisker; NaN: none */
    double at[SVG_SERIES][SVG_PLACES];                                /* curves: where v is */
    int points[SVG_SERIES];                                           /* curves: how many */
    bool dashed[SVG_SERIES];
    bool log_x, log_y, diagonal, names; /* names: points have their number (calibration by slot) */
    double y_most;                      /* 0: as needed */
    int colour;                         /* of the first series */
    int lost;                           /* values without room, which is said below */
};

/* All of v NaN. */
void plot_init(struct plot *p, const char *title, const char *note);
/* The number of a series or place of that name, which is made where it is not there; -1: there is no room,
 * and a value more is lost. */
int plot_series(struct plot *p, const char *name);
int plot_place(struct plot *p, const char *name);

void plot_bars(FILE *out, const struct plot *p);   /* a group a place, a bar a series */
void plot_curves(FILE *out, const struct plot *p); /* a curve a series */
void plot_shares(FILE *out,
                 const struct plot *p); /* a bar a place, cut into the series; v of a place adds up to 1 */

#endif
