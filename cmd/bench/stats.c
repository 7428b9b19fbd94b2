/* stats.c - see bench.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "bench.h"

void sample_add(struct sample *s, double x)
{
    if (s->n < BENCH_MAX_RUNS) s->x[s->n++] = x;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double sample_quantile(const struct sample *s, double q)
{
    double v[BENCH_MAX_RUNS];
    if (!s->n) return NAN;
    memcpy(v, s->x, (size_t)s->n * sizeof *v);
    qsort(v, (size_t)s->n, sizeof *v, ascending);
    double at = q * (s->n - 1);
    int i = (int)at;
    return i + 1 < s->n ? v[i] + (at - i) * (v[i + 1] - v[i]) : v[i];
}

json_t *sample_json(const struct sample *s)
{
    return json_pack("{s:o,s:o,s:o,s:o,s:i}", "median", json_finite(sample_quantile(s, 0.5)), "min",
                     json_finite(sample_quantile(s, 0)), "max", json_finite(sample_quantile(s, 1)), "iqr",
                     json_finite(sample_quantile(s, 0.75) - sample_quantile(s, 0.25)), "n", s->n);
}

/* Two-sided sign test: the chance that at least k of n fair coins fall alike, doubled. */
static double sign_test(int n, int k)
{
    double p = 0, c = pow(0.5, n);
    for (int i = 0; i <= n; i++) {
        if (i >= k) p += c;
        c = c * (n - i) / (i + 1);
    }
    return p * 2 < 1 ? p * 2 : 1;
}

/* Where the mean lies at least, by Student's t with 95 % between two such bounds (its quantiles within 1 %
 * from 4 samples on). NaN of fewer than 3. */
static double lower_bound(const struct sample *r)
{
    const double n = r->n, f = 1 / (n - 1);
    double mean = 0, square = 0;
    for (int i = 0; i < r->n; i++) mean += r->x[i] / n;
    for (int i = 0; i < r->n; i++) square += (r->x[i] - mean) * (r->x[i] - mean);
    return r->n < 3 ? NAN : mean - (1.96 + 2.4 * f + 3 * f * f) * sqrt(square * f / n);
}

struct verdict verdict_of(const struct sample *a, const struct sample *b)
{
    struct sample r = {0};
    int n = a->n < b->n ? a->n : b->n, above = 0, below = 0;
    for (int i = 0; i < n; i++) {
        sample_add(&r, b->x[i] / a->x[i]);
        above += b->x[i] > a->x[i];
        below += b->x[i] < a->x[i];
    }
    struct verdict v = {sample_quantile(&r, 0.5),  sample_quantile(&r, 0.25),
                        sample_quantile(&r, 0.75), 1,
                        lower_bound(&r),           "too few runs"};
    if (n < 5) return v;
    v.p = sign_test(above + below, above > below ? above : below);
    bool clear = v.p < 0.1 && fabs(v.ratio - 1) > (v.high - v.low) / 2;
    v.text = !clear ? "no difference seen" : v.ratio > 1 ? "faster" : "slower";
    return v;
}

json_t *verdict_json(const struct verdict *v)
{
    return json_pack("{s:o,s:o,s:o,s:o,s:o,s:s}", "median", json_finite(v->ratio), "low", json_finite(v->low),
                     "high", json_finite(v->high), "p", json_finite(v->p), "at_least",
                     json_finite(v->at_least), "verdict", v->text);
}
