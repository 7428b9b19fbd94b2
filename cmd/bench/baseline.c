/* baseline.c - cells against those of another time: is one slower beyond its noise, does it write another
 * stream?
 *
 * A cell's counterpart has its target, drafter, label, tags, settings and prompts. The runs of several lines
 * of one cell are taken together, and how far the medians of these lines lie apart is part of the noise: a
 * baseline of several sessions knows what a machine does from day to day, one of a single session does not.
 * Lines of other machines are no part of it: a baseline may hold several.
 *
 * Slower: the rank test over the runs (Mann-Whitney, two-sided) has p < 0.05, and the medians differ by more
 * than the noise, which is the largest of half the interquartile ranges of both together, the spread of the
 * baseline's medians, and the slack. Speeds are compared on one kind of machine alone, streams on one device.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../../common/base/mem.h"
#include "bench.h"
#include "report.h"

#define CALLS_SLOWER 0.05 /* p of the rank test */
#define EXACT 40          /* runs of both together that the test counts exactly */

/* Two-sided p of the rank-sum test. u: pairs of which b's is larger, ties count half. Exact without ties, by
 * counting how many orders of n_a + n_b runs have each u. */
double rank_test(const struct sample *a, const struct sample *b)
{
    const int n_a = a->n, n_b = b->n, most = n_a * n_b;
    double u = 0;
    if (!n_a || !n_b) return 1;
    for (int i = 0; i < n_a; i++)
        for (int k = 0; k < n_b; k++) u += b->x[k] > a->x[i] ? 1 : b->x[k] == a->x[i] ? 0.5 : 0;
    const double far = fabs(u - most / 2.0); /* from the middle */
    if (n_a + n_b > EXACT)
        return erfc((far - 0.5 > 0 ? far - 0.5 : 0) / sqrt(most * (n_a + n_b + 1.0) / 12) / sqrt(2));
    /* ways[k][v]: orders of some of a's runs and k of b's with u = v */
    double *ways = mem_calloc((size_t)(n_b + 1) * (size_t)(most + 1), sizeof *ways), p = 0, all = 0;
    if (!ways) return NAN;
    for (int k = 0; k <= n_b; k++) ways[(size_t)k * (size_t)(most + 1)] = 1;
    for (int i = 1; i <= n_a; i++)
        for (int k = 1; k <= n_b; k++) { /* the largest is b's, above i of a's; or a's */
            double *here = ways + (size_t)k * (size_t)(most + 1), *less = here - (most + 1);
            for (int v = most; v >= 0; v--) here[v] += v >= i ? less[v - i] : 0;
        }
    const double *last = ways + (size_t)n_b * (size_t)(most + 1);
    for (int v = 0; v <= most; v++) {
        all += last[v];
        if (fabs(v - most / 2.0) >= far - 1e-9) p += last[v];
    }
    mem_free(ways);
    return p / all;
}

/* What tells a cell from others; mem_free it. NULL: memory. */
static char *key_of(const json_t *j)
{
    const char *const same[] = {"label", "tags", "settings", "prompts", "prompt_tokens"};
    json_t *k = json_object();
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        if (json_object_get(j, same[i])) json_object_set(k, same[i], json_object_get(j, same[i]));
    static const char *const model[] = {"target", "drafter"};
    for (size_t i = 0; i < sizeof model / sizeof *model; i++) {
        json_t *file = json_object_get(json_object_get(j, model[i]), "file");
        if (file) json_object_set(k, model[i], file);
    }
    json_t *keys = json_object_get(json_object_get(j, "target"), "override_kv");
    if (keys) json_object_set(k, "override_kv", keys);
    char *text = json_dumps(k, JSON_COMPACT | JSON_SORT_KEYS);
    json_decref(k);
    return text;
}

static const json_t *speeds(const json_t *j, const char *kind)
{
    return json_object_get(json_object_get(json_object_get(j, kind), "decode_tokens_per_s"), "each");
}

static bool same_text(const json_t *a, const json_t *b, const char *outer, const char *key)
{
    const json_t *x = json_object_get(json_object_get(a, outer), key),
                 *y = json_object_get(json_object_get(b, outer), key);
    return x && y && json_equal(x, y);
}

static bool same_machine(const json_t *a, const json_t *b)
{
    return same_text(a, b, "machine", "device") && same_text(a, b, "machine", "processor") &&
           same_text(a, b, "machine", "threads") && same_text(a, b, "machine", "isa") &&
           same_text(a, b, "machine", "kernels");
}

static double half_range(const struct sample *s)
{
    return (sample_quantile(s, 0.75) - sample_quantile(s, 0.25)) / 2 / sample_quantile(s, 0.5);
}

static void take(struct sample *s, const json_t *each)
{
    for (size_t i = 0; i < json_array_size(each); i++)
        sample_add(s, json_number_value(json_array_get(each, i)));
}

/* One speed of a cell against its counterparts. */
struct change {
    double ratio, noise;
    const char *text; /* "faster", "slower", "no difference seen", "too few runs"; NULL: nothing to compare */
    bool failed;      /* memory */
};
static struct change change_of(const json_t *now, const json_t *const *then, int n, const char *kind,
                               double slack)
{
    struct sample *s = mem_calloc(3, sizeof *s), *a = s, *b = s + 1, *one = s + 2;
    struct change c = {NAN, slack, NULL, !s};
    double low = INFINITY, high = 0;
    if (!s) return c;
    take(b, speeds(now, kind));
    for (int i = 0; i < n; i++) {
        take(a, speeds(then[i], kind));
        one->n = 0;
        take(one, speeds(then[i], kind));
        low = fmin(low, sample_quantile(one, 0.5));
        high = fmax(high, sample_quantile(one, 0.5));
    }
    if (a->n && b->n) {
        const double p = rank_test(a, b);
        c.failed = isnan(p);
        c.ratio = sample_quantile(b, 0.5) / sample_quantile(a, 0.5);
        c.noise = fmax(slack, fmax(half_range(a) + half_range(b), (high - low) / sample_quantile(a, 0.5)));
        c.text = a->n < 5 || b->n < 5                                  ? "too few runs"
                 : !(p < CALLS_SLOWER) || fabs(c.ratio - 1) <= c.noise ? "no difference seen"
                 : c.ratio < 1                                         ? "slower"
                                                                       : "faster";
    }
    mem_free(s);
    return c;
}

static void put_number(struct grid *g, double x, const char *format)
{
    char text[40];
    snprintf(text, sizeof text, x == x ? format : "-", x);
    grid_put(g, text);
}

static bool slower(const struct change *c)
{
    return c->text && !strcmp(c->text, "slower");
}

/* then becomes those of j's machine, in their order; how many. */
static int own_machine(const json_t *j, const json_t **then, int n)
{
    int own = 0;
    for (int i = 0; i < n; i++)
        if (same_machine(j, then[i])) then[own++] = then[i];
    return own;
}

/* The latest of them whose streams can be compared with j's; NULL: none. */
static const json_t *with_streams(const json_t *j, const json_t *const *then, int n)
{
    while (n--)
        if (same_text(j, then[n], "machine", "device") && json_is_object(json_object_get(j, "streams")) &&
            json_is_object(json_object_get(then[n], "streams")))
            return then[n];
    return NULL;
}

/* A cell that is in both; then may lose lines. UNMET: no speed of it was compared. */
static enum baseline_verdict put_pair(struct grid *g, const json_t *j, const json_t **then, int n,
                                      double slack)
{
    const json_t *streams = with_streams(j, then, n), *old = then[n - 1];
    const bool differ =
        streams && !json_equal(json_object_get(j, "streams"), json_object_get(streams, "streams"));
    const int own = own_machine(j, then, n);
    struct change plain = {.ratio = NAN, .noise = NAN}, drafted = plain;
    if (own) {
        old = then[own - 1]; /* the latest */
        plain = change_of(j, then, own, "plain", slack);
        drafted = change_of(j, then, own, "drafted", slack);
        g->failed |= plain.failed || drafted.failed;
    }
    const bool slow = slower(&plain) || slower(&drafted);
    const char *verdict = !own                                 ? "another machine"
                          : slower(&plain) && slower(&drafted) ? "SLOWER"
                          : slower(&plain)                     ? "SLOWER plain"
                          : slower(&drafted)                   ? "SLOWER drafted"
                          : drafted.text                       ? drafted.text
                          : plain.text                         ? plain.text
                                                               : "-";
    put_number(g, plain.ratio, "%.3f");
    put_number(g, drafted.ratio, "%.3f");
    put_number(g, 100 * fmax(plain.noise, drafted.noise), "%.1f");
    grid_put(g, bench_number(old, "drafted", "tau", NULL, 2, 1));
    grid_put(g, bench_number(j, "drafted", "tau", NULL, 2, 1));
    put_number(g,
               json_number_value(json_object_get(j, "read_ceiling_bytes_per_s")) /
                   json_number_value(json_object_get(old, "read_ceiling_bytes_per_s")),
               "%.2f");
    grid_put(g, differ ? "DIFFER" : streams ? "same" : "-");
    grid_put(g, verdict);
    return slow || differ ? BASELINE_WORSE : plain.text || drafted.text ? BASELINE_HOLDS : BASELINE_UNMET;
}

static void put_names(struct grid *g, const json_t *j)
{
    grid_put(g, bench_text(j, "target", "file"));
    grid_put(g, bench_text(j, "drafter", "file"));
    grid_put(g, bench_text(j, NULL, "label"));
}

static void put_alone(struct grid *g, const json_t *j, const char *why)
{
    put_names(g, j);
    for (int i = 0; i < 7; i++) grid_put(g, "-");
    grid_put(g, why);
}

static void open_grid(struct grid *g, double slack)
{
    char note[900];
    static const char *const number[] = {"plain", "drafted", "noise, %", "tau then", "tau", "reading"};
    snprintf(note, sizeof note,
             "plain, drafted: medians of tokens/s, now to then. noise: what a difference has to exceed, the "
             "largest of the "
             "spreads of both and %.0f percent; slower or faster where the rank test over the runs says so "
             "too (p below %.2f). "
             "reading: the memory's speed, now to then. streams: of the target alone, byte for byte.",
             100 * slack, CALLS_SLOWER);
    grid_init(g, "Against the baseline", note);
    grid_column(g, "target", false);
    grid_column(g, "drafter", false);
    grid_column(g, "cell", false);
    for (size_t i = 0; i < sizeof number / sizeof *number; i++) grid_column(g, number[i], true);
    grid_column(g, "streams", false);
    grid_column(g, "verdict", false);
}

enum { MAX_SESSIONS = 256 };

enum baseline_verdict baseline_compare(const json_t *lines, const json_t *baseline, double slack,
                                       struct grid *g)
{
    const size_t n = json_array_size(lines), n_old = json_array_size(baseline);
    char **key = mem_calloc(n + n_old + 1, sizeof *key);
    const json_t *then[MAX_SESSIONS];
    bool worse = false, met = false;
    open_grid(g, slack);
    if (!key) {
        g->failed = true;
        return BASELINE_WORSE;
    }
    for (size_t i = 0; i < n + n_old; i++) {
        const json_t *j = i < n ? json_array_get(lines, i) : json_array_get(baseline, i - n);
        if (report_is(j, "cell") && !(key[i] = key_of(j))) g->failed = true;
    }
    for (size_t i = 0; i < n; i++) {
        int found = 0;
        for (size_t k = n; key[i] && k < n + n_old && found < MAX_SESSIONS; k++)
            if (key[k] && !strcmp(key[i], key[k])) then[found++] = json_array_get(baseline, k - n);
        if (!key[i]) continue;
        if (!found) {
            put_alone(g, json_array_get(lines, i), "not in the baseline");
            continue;
        }
        put_names(g, json_array_get(lines, i));
        const enum baseline_verdict v = put_pair(g, json_array_get(lines, i), then, found, slack);
        worse |= v == BASELINE_WORSE;
        met |= v != BASELINE_UNMET;
    }
    for (size_t k = n; k < n + n_old; k++) { /* those of the baseline alone, each once */
        bool here = !key[k];
        for (size_t i = 0; i < k && !here; i++) here = key[i] && !strcmp(key[i], key[k]);
        if (!here) put_alone(g, json_array_get(baseline, k - n), "NOT MEASURED");
        worse |= !here;
    }
    for (size_t i = 0; i < n + n_old; i++) mem_free(key[i]);
    mem_free(key);
    return worse ? BASELINE_WORSE : met ? BASELINE_HOLDS : BASELINE_UNMET;
}
