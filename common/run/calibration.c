/* calibration.c - see calibration.h. */
#include "calibration.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "../base/json.h"
#include "../base/mem.h"

#define MOST_LOGIT 7.0     /* probabilities beyond are no evidence of more */
#define AGEING 0.006       /* variance that a cycle adds to the intercept; */
#define AGEING_REST 0.0002 /* to the slope and to slots, which differ less from text to text */
#define LOOK_LABELS 24.    /* labels that a rate of look-ups remembers */

enum { RANGES = CALIBRATION_BUCKETS / 2 }; /* of temperatures above 0 */
static const double range_ends[RANGES] = {0.65, 0.9, INFINITY};
static const int32_t match_end[CALIBRATION_MATCHES] = {2, 4, 6, 9, 15, 31, INT32_MAX};
static const int32_t range_end[CALIBRATION_RANGES] = {1, 4, 16, INT32_MAX};

/* The prior: where it comes from is in the header. Rates of look-ups are a guess that a few labels replace.
 */
static const double prior_intercept[CALIBRATION_BUCKETS] = {0.9, -0.1, 0.55, 0.79, 0.7, 0.35, -0.15};
static const double prior_slope[CALIBRATION_BUCKETS] = {0.82, 0.46, 0.38, 0.36, 0.9, 0.84, 0.73};
static const double prior_look[CALIBRATION_MATCHES] = {0.3, 0.45, 0.6, 0.7, 0.8, 0.88, 0.93};
#define PRIOR_LABELS 3 /* that a prior rate of look-ups stands for */
#define INTERCEPT_VARIANCE 1.2
#define SLOPE_VARIANCE 0.06
#define SLOT_VARIANCE 0.1

void calibration_init(struct calibration *c)
{
    memset(c, 0, sizeof *c);
    for (int32_t b = 0; b < CALIBRATION_SETS; b++) {
        struct calibration_slope *s = &c->draft[b];
        s->intercept = (struct belief){prior_intercept[b % CALIBRATION_BUCKETS], INTERCEPT_VARIANCE};
        s->slope = (struct belief){prior_slope[b % CALIBRATION_BUCKETS], SLOPE_VARIANCE};
        for (int32_t j = 0; j < CALIBRATION_SLOTS; j++) s->slot[j] = (struct belief){0, SLOT_VARIANCE};
    }
    for (int32_t m = 0; m < CALIBRATION_MATCHES; m++)
        for (int32_t r = 0; r < CALIBRATION_RANGES; r++)
            c->look[m][r] = (struct calibration_rate){prior_look[m], PRIOR_LABELS};
}

int32_t calibration_bucket(int32_t source, double temperature, bool greedy)
{
    const int32_t first = (source - 1) * CALIBRATION_BUCKETS;
    int32_t i = 0;
    if (!(temperature > 0)) return first;
    while (i < RANGES - 1 && temperature > range_ends[i]) i++;
    return first + 1 + i + (greedy ? RANGES : 0);
}

/* ---- a drafter ---- */

static double sigma(double z)
{
    return 1 / (1 + exp(-z));
}

static double logit(double logp)
{
    if (isnan(logp)) return 0;                   /* not known: the slot's rate decides */
    if (logp <= -MOST_LOGIT) return -MOST_LOGIT; /* there log p is the logit but for 1e-3 */
    if (logp >= 0) return MOST_LOGIT;
    const double x = logp - log(-expm1(logp));
    return x > MOST_LOGIT ? MOST_LOGIT : x;
}

static int32_t at(int32_t j)
{
    return j < 1 ? 0 : j > CALIBRATION_SLOTS ? CALIBRATION_SLOTS - 1 : j - 1;
}

/* The logistic's argument of slot j: its mean and its variance. */
static double argument(const struct calibration_slope *s, int32_t j, double x, double *variance)
{
    const struct belief *b = &s->slot[at(j)];
    *variance = s->intercept.variance + s->slope.variance * x * x + b->variance;
    return s->intercept.mean + s->slope.mean * x + b->mean;
}

double calibration_draft(const struct calibration *c, int32_t bucket, int32_t j, double logp,
                         double deviations)
{
    double v;
    const double z = argument(&c->draft[bucket], j, logit(logp), &v);
    /* The mean of a logistic over a Gaussian: MacKay 1992, kappa(v) = 1 / sqrt(1 + pi v / 8). */
    return sigma((z + deviations * sqrt(v)) / sqrt(1 + 0.39269908 * v));
}

static void moved(struct belief *b, double f, double gain, double curvature)
{
    const double v = b->variance;
    b->mean += v * f * gain;
    b->variance = v - v * v * f * f * curvature;
}

static void label_draft(struct calibration *c, int32_t bucket, int32_t j, double logp, bool equal)
{
    struct calibration_slope *s = &c->draft[bucket];
    struct calibration_gauge *g = &c->draft_gauge[bucket / CALIBRATION_BUCKETS][at(j)];
    const double h = calibration_draft(c, bucket, j, logp, 0), x = logit(logp);
    double v;
    const double z = argument(s, j, x, &v), p = sigma(z), w = p * (1 - p);
    const double gain = (equal - p) / (1 + v * w), curvature = w / (1 + v * w);
    moved(&s->intercept, 1, gain, curvature);
    moved(&s->slope, x, gain, curvature);
    moved(&s->slot[at(j)], 1, gain, curvature);
    if (s->slope.mean < 0) s->slope.mean = 0; /* what a drafter finds likelier is no less likely */
    g->labels++, g->equal += equal, g->predicted += h;
}

static void older(struct belief *b, double by, double most)
{
    const double v = b->variance + by;
    b->variance = v < most ? v : b->variance > most ? b->variance : most;
}

/* ---- a look-up ---- */

static int32_t range_of(const int32_t *end, int32_t x)
{
    int32_t i = 0;
    while (x > end[i]) i++;
    return i;
}

static const struct calibration_rate *rate_of(const struct calibration *c, int32_t match, int32_t j)
{
    return &c->look[range_of(match_end, match + j - 1)][range_of(range_end, j)];
}

double calibration_look(const struct calibration *c, int32_t match, int32_t j)
{
    return rate_of(c, match, j)->rate;
}

static void label_look(struct calibration *c, int32_t match, int32_t j, bool equal)
{
    struct calibration_rate *r = (struct calibration_rate *)rate_of(c, match, j);
    struct calibration_gauge *g = &c->look_gauge[at(j)];
    g->labels++, g->equal += equal, g->predicted += r->rate;
    r->labels = r->labels + 1 < LOOK_LABELS ? r->labels + 1 : LOOK_LABELS;
    r->rate += (equal - r->rate) / r->labels;
}

/* ---- both ---- */

void calibration_ages(struct calibration *c, int32_t bucket)
{
    struct calibration_slope *s = &c->draft[bucket];
    older(&s->intercept, AGEING, INTERCEPT_VARIANCE);
    older(&s->slope, AGEING_REST, SLOPE_VARIANCE);
    for (int32_t j = 0; j < CALIBRATION_SLOTS; j++) older(&s->slot[j], AGEING_REST, SLOT_VARIANCE);
}

void calibration_seen(struct calibration *c, int32_t bucket, const struct plan_result *r)
{
    const struct plan_offer *o = &r->offer;
    const bool look = r->choice.look;
    /* Behind a second choice of a tree a label is another event. */
    const int32_t labels = r->ranks && r->equal < r->labelled ? r->equal + 1 : r->labelled;
    for (int32_t j = 1; j <= labels; j++) {
        const bool equal = j <= r->equal;
        if (j <= o->n_draft && (!look || j <= o->agree)) label_draft(c, bucket, j, o->logp[j - 1], equal);
        if (j <= o->n_look && (look || j <= o->agree)) label_look(c, o->match, j, equal);
    }
    calibration_ages(c, bucket);
}

/* ---- the file ---- */

#define MOST_BYTES (1u << 20)

static const char *const bucket_names[CALIBRATION_BUCKETS] = {
    "0", "coupled 0.65", "coupled 0.9", "coupled above", "greedy 0.65", "greedy 0.9", "greedy above"};

/* [first, second], each within its bounds. */
static int two(const json_t *j, const char *where, const char *key, const double bounds[4], double *first,
               double *second, struct err *e)
{
    const json_t *a = json_array_get(j, 0), *b = json_array_get(j, 1);
    char expected[96];
    *first = json_number_value(a), *second = json_number_value(b);
    if (json_is_array(j) && json_array_size(j) == 2 && json_is_number(a) && json_is_number(b) &&
        *first >= bounds[0] && *first <= bounds[1] && *second >= bounds[2] && *second <= bounds[3])
        return 0;
    snprintf(expected, sizeof expected, "[%g to %g, %g to %g]", bounds[0], bounds[1], bounds[2], bounds[3]);
    return json_wrong(where, key, expected, j, e);
}

static int belief_of(const json_t *j, const char *where, const char *key, struct belief *b, struct err *e)
{
    static const double bounds[] = {-100, 100, 0, 100};
    return two(j, where, key, bounds, &b->mean, &b->variance, e);
}

static int bucket_read(struct calibration *c, const json_t *o, const char *where, bool *seen, struct err *e)
{
    static const char *const keys[] = {"bucket", "intercept", "slope", "slots", NULL};
    const json_t *bucket = json_object_get(o, "bucket"), *slots = json_object_get(o, "slots");
    const char *name = json_string_value(bucket);
    const size_t n = json_array_size(slots);
    int32_t t = 0;
    char key[32];
    if (!json_is_object(o)) return json_wrong(where, "a bucket", "an object", o, e);
    if (json_only(o, where, keys, e)) return -1;
    while (name && t < CALIBRATION_BUCKETS && strcmp(name, bucket_names[t])) t++;
    if (!name || t == CALIBRATION_BUCKETS)
        return json_wrong(where, "bucket",
                          "\"0\", or coupled or greedy and 0.65, 0.9 or above, as \"coupled 0.9\"", bucket,
                          e);
    if (seen[t]) return json_wrong(where, "bucket", "one that was not there before", bucket, e);
    seen[t] = true;
    struct calibration_slope *s = &c->draft[t];
    if (belief_of(json_object_get(o, "intercept"), where, "intercept", &s->intercept, e) ||
        belief_of(json_object_get(o, "slope"), where, "slope", &s->slope, e))
        return -1;
    if (!json_is_array(slots) || n < 1 || n > CALIBRATION_SLOTS)
        return json_wrong(where, "slots", "an array of 1 to 63", slots, e);
    for (size_t j = 0; j < n; j++) {
        snprintf(key, sizeof key, "slots[%zu]", j);
        if (belief_of(json_array_get(slots, j), where, key, &s->slot[j], e)) return -1;
    }
    for (size_t j = n; j < CALIBRATION_SLOTS; j++) s->slot[j] = s->slot[n - 1];
    return 0;
}

static int look_read(struct calibration *c, const json_t *rows, const char *name, struct err *e)
{
    static const double bounds[] = {0, 1, 0, 1e9};
    char key[48];
    if (!json_is_array(rows) || json_array_size(rows) != CALIBRATION_MATCHES)
        return json_wrong(name, "lookup", "an array of 7 rows", rows, e);
    for (size_t m = 0; m < CALIBRATION_MATCHES; m++) {
        const json_t *row = json_array_get(rows, m);
        snprintf(key, sizeof key, "lookup[%zu]", m);
        if (!json_is_array(row) || json_array_size(row) != CALIBRATION_RANGES)
            return json_wrong(name, key, "a row of 4", row, e);
        for (size_t r = 0; r < CALIBRATION_RANGES; r++) {
            struct calibration_rate *to = &c->look[m][r];
            snprintf(key, sizeof key, "lookup[%zu][%zu]", m, r);
            if (two(json_array_get(row, r), name, key, bounds, &to->rate, &to->labels, e)) return -1;
        }
    }
    return 0;
}

static int read_root(struct calibration *c, const json_t *root, const char *name, struct err *e)
{
    static const char *const keys[] = {"schema", "of", "draft", "lookup", NULL};
    const json_t *schema = json_object_get(root, "schema"), *of = json_object_get(root, "of"),
                 *list = json_object_get(root, "draft"), *look = json_object_get(root, "lookup");
    bool seen[CALIBRATION_BUCKETS] = {false};
    if (!json_is_object(root)) return json_wrong(name, "not a calibration", "a JSON object", root, e);
    if (!json_is_integer(schema) || json_integer_value(schema) != 1)
        return json_wrong(name, "schema", "1", schema, e);
    if (json_only(root, name, keys, e)) return -1;
    if (of && (!json_is_string(of) || json_string_length(of) >= CALIBRATION_OF))
        return json_wrong(name, "of", "a string of less than 128 bytes", of, e);
    if (of) snprintf(c->of, sizeof c->of, "%s", json_string_value(of));
    if (!json_is_array(list) || !json_array_size(list))
        return json_wrong(name, "draft", "an array of one bucket or more", list, e);
    for (size_t i = 0; i < json_array_size(list); i++) {
        char where[512];
        snprintf(where, sizeof where, "%.400s: draft[%zu]", name, i);
        if (bucket_read(c, json_array_get(list, i), where, seen, e)) return -1;
    }
    return look ? look_read(c, look, name, e) : 0;
}

int calibration_parse(struct calibration *c, const void *data, uint64_t n, const char *name, struct err *e)
{
    json_t *root;
    calibration_init(c);
    if (json_parse(&root, data, n, name, e)) return -1;
    const int rc = read_root(c, root, name, e);
    json_decref(root);
    return rc;
}

int calibration_read(struct calibration *c, const char *path, struct err *e)
{
    json_t *root;
    calibration_init(c);
    if (json_parse_file(&root, path, MOST_BYTES, e)) return -1;
    const int rc = read_root(c, root, path, e);
    json_decref(root);
    return rc;
}

int calibration_read_source(struct calibration *c, int32_t source, const char *path, struct err *e)
{
    struct calibration of;
    if (calibration_read(&of, path, e)) return -1;
    memcpy(c->draft + (source - 1) * CALIBRATION_BUCKETS, of.draft, CALIBRATION_BUCKETS * sizeof *of.draft);
    return 0;
}

static json_t *belief_json(const struct belief *b)
{
    return json_pack("[ff]", b->mean, b->variance);
}

char *calibration_text(const struct calibration *c)
{
    const uint64_t failures = mem_failures();
    json_use_mem();
    json_t *root = json_object(), *list = json_array(), *look = json_array();
    json_object_set_new(root, "schema", json_integer(1));
    if (*c->of) json_object_set_new(root, "of", json_string(c->of));
    for (int32_t t = 0; t < CALIBRATION_BUCKETS; t++) {
        const struct calibration_slope *s = &c->draft[t];
        json_t *slots = json_array();
        for (int32_t j = 0; j < CALIBRATION_SLOTS; j++)
            json_array_append_new(slots, belief_json(&s->slot[j]));
        json_array_append_new(list, json_pack("{s:s,s:o,s:o,s:o}", "bucket", bucket_names[t], "intercept",
                                              belief_json(&s->intercept), "slope", belief_json(&s->slope),
                                              "slots", slots));
    }
    json_object_set_new(root, "draft", list);
    for (int32_t m = 0; m < CALIBRATION_MATCHES; m++) {
        json_t *row = json_array();
        for (int32_t r = 0; r < CALIBRATION_RANGES; r++)
            json_array_append_new(row, json_pack("[ff]", c->look[m][r].rate, c->look[m][r].labels));
        json_array_append_new(look, row);
    }
    json_object_set_new(root, "lookup", look);
    return json_exact(root, failures);
}

int calibration_write(const struct calibration *c, const char *path, bool force, struct err *e)
{
    return json_put_file(calibration_text(c), path, force, e);
}
