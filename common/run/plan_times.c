/* plan_times.c - see plan_times.h. */
#include "plan_times.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "../base/json.h"
#include "../base/mem.h"

#define WEIGHT 0.125 /* of a stamp */

/* ---- looking up ---- */

int32_t plan_times_bucket(int32_t context)
{
    int32_t b = 0;
    while (b < PLAN_TIMES_BUCKETS - 1 && context >= plan_times_context(b + 1)) b++;
    return b;
}

int32_t plan_times_context(int32_t bucket)
{
    return bucket ? PLAN_TIMES_FIRST << (bucket - 1) : 0;
}

static bool has_rows(const struct plan_times *t, int32_t b, int32_t unused)
{
    (void)unused;
    for (int32_t n = 2; n <= PLAN_TIMES_ROWS; n++)
        if (t->rows_s[b][n] > 0) return true;
    return false;
}

static bool has_plain(const struct plan_times *t, int32_t b, int32_t unused)
{
    (void)unused;
    return t->rows_s[b][1] > 0;
}

static bool has_draft(const struct plan_times *t, int32_t b, int32_t source)
{
    return t->draft_s[source - 1][b] > 0;
}

/* The nearest bucket that has some: below, else above; -1: none. */
static int32_t nearest(const struct plan_times *t, int32_t b,
                       bool (*has)(const struct plan_times *, int32_t, int32_t), int32_t source)
{
    for (int32_t i = b; i >= 0; i--)
        if (has(t, i, source)) return i;
    for (int32_t i = b + 1; i < PLAN_TIMES_BUCKETS; i++)
        if (has(t, i, source)) return i;
    return -1;
}

/* What is known of bucket "from", in bucket b. */
static double moved(const struct plan_times *t, int32_t from, int32_t b, double s)
{
    return from != b && has_plain(t, from, 0) && has_plain(t, b, 0) ? s * t->rows_s[b][1] / t->rows_s[from][1]
                                                                    : s;
}

/* On the line through (i, a) and (k, b), a and b seconds. */
static double line(int32_t i, double a, int32_t k, double b, int32_t n)
{
    return a + (b - a) * (n - i) / (k - i);
}

/* n rows in a bucket that has some. */
static double estimate(const double *s, int32_t n)
{
    int32_t below = 0, before = 0, above = 0;
    if (s[n] > 0) return s[n];
    for (int32_t i = 1; i < n; i++)
        if (s[i] > 0) before = below, below = i;
    for (int32_t i = PLAN_TIMES_ROWS; i > n; i--)
        if (s[i] > 0) above = i;
    if (above && below) return line(below, s[below], above, s[above], n);
    if (above) return s[above];
    return before && s[below] > s[before] ? line(before, s[before], below, s[below], n) : s[below];
}

double plan_times_rows(const struct plan_times *t, int32_t n, int32_t context)
{
    const int32_t b = plan_times_bucket(context);
    n = n < 1 ? 1 : n > PLAN_TIMES_ROWS ? PLAN_TIMES_ROWS : n;
    if (t->rows_s[b][n] > 0) return t->rows_s[b][n];
    const int32_t from = nearest(t, b, n == 1 ? has_plain : has_rows, 0);
    return from < 0 ? 0 : moved(t, from, b, estimate(t->rows_s[from], n));
}

double plan_times_draft(const struct plan_times *t, int32_t source, int32_t context)
{
    const int32_t b = plan_times_bucket(context), from = nearest(t, b, has_draft, source);
    return from < 0 ? 0 : moved(t, from, b, t->draft_s[source - 1][from]);
}

bool plan_times_measured(const struct plan_times *t, int32_t n, int32_t context)
{
    return n >= 1 && n <= PLAN_TIMES_ROWS && t->rows_s[plan_times_bucket(context)][n] > 0;
}

void plan_times_put(struct plan_times *t, int32_t context, double plain_s, const double *draft_s,
                    const double *verify_s)
{
    const int32_t b = plan_times_bucket(context);
    for (int32_t i = 0; i < PLAN_SOURCES; i++) t->draft_s[i][b] = draft_s[i];
    t->rows_s[b][1] = plain_s;
    for (int32_t n = 2; n <= PLAN_TIMES_ROWS; n++) t->rows_s[b][n] = verify_s[n];
}

/* ---- stamps ---- */

static void correct(double *to, double known, double s)
{
    if (!(s > 0) || !isfinite(s)) return;
    if (!(known > 0)) {
        *to = s;
        return;
    }
    const double bounded = s > 2 * known ? 2 * known : s < known / 2 ? known / 2 : s;
    *to = *to > 0 ? *to + WEIGHT * (bounded - *to) : bounded;
}

void plan_times_seen_rows(struct plan_times *t, int32_t n, int32_t context, double s)
{
    if (n >= 1 && n <= PLAN_TIMES_ROWS)
        correct(&t->rows_s[plan_times_bucket(context)][n], plan_times_rows(t, n, context), s);
}

void plan_times_seen_draft(struct plan_times *t, int32_t source, int32_t context, double s)
{
    correct(&t->draft_s[source - 1][plan_times_bucket(context)], plan_times_draft(t, source, context), s);
}

void plan_times_seen_overhead(struct plan_times *t, double s)
{
    correct(&t->overhead_s, t->overhead_s, s);
}

int plan_times_check(const struct plan_times *t, int32_t drafters, struct err *e)
{
    const char *missing = nearest(t, 0, has_plain, 0) < 0                   ? "a plain step"
                          : nearest(t, 0, has_rows, 0) < 0                  ? "a verify of two rows or more"
                          : drafters > 0 && nearest(t, 0, has_draft, 1) < 0 ? "a draft"
                          : drafters > 1 && nearest(t, 0, has_draft, 2) < 0 ? "a draft of the second drafter"
                                                                            : NULL;
    if (!missing) return 0;
    return err_set(e, ERR_USAGE, "times of plans%s%s: no time of %s (expected one in some context)",
                   *t->of ? " of " : "", t->of, missing);
}

/* ---- the file ---- */

#define MOST_BYTES (1u << 20)

/* Seconds; zero: they may be 0. absent: what stands for no key; below 0: the key must be there. */
static int seconds(const json_t *o, const char *where, const char *key, bool zero, double absent, double *s,
                   struct err *e)
{
    const json_t *j = json_object_get(o, key);
    *s = absent;
    if (!j && absent >= 0) return 0;
    if (j) *s = json_number_value(j);
    if (!json_is_number(j) || !(zero ? *s >= 0 : *s > 0) || *s > 3600)
        return json_wrong(where, key, zero ? "seconds, 0 to 3600" : "seconds, above 0, at most 3600", j, e);
    return 0;
}

static int verify_of(struct plan_times *t, int32_t b, const json_t *o, const char *where, struct err *e)
{
    const json_t *list = json_object_get(o, "verify");
    json_int_t before = 1;
    if (!json_is_array(list)) return json_wrong(where, "verify", "an array of [rows, seconds]", list, e);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *pair = json_array_get(list, i), *rows = json_array_get(pair, 0);
        char key[32], expected[80];
        snprintf(key, sizeof key, "verify[%zu]", i);
        if (!json_is_array(pair) || json_array_size(pair) != 2)
            return json_wrong(where, key, "[rows, seconds]", pair, e);
        const json_int_t n = json_integer_value(rows);
        snprintf(expected, sizeof expected, "rows, %d to %d, rising", (int)before + 1, PLAN_TIMES_ROWS);
        if (!json_is_integer(rows) || n <= before || n > PLAN_TIMES_ROWS)
            return json_wrong(where, key, expected, rows, e);
        const double s = json_number_value(json_array_get(pair, 1));
        if (!json_is_number(json_array_get(pair, 1)) || !(s > 0) || s > 3600)
            return json_wrong(where, key, "seconds, above 0, at most 3600", json_array_get(pair, 1), e);
        t->rows_s[b][n] = s;
        before = n;
    }
    return 0;
}

/* A number, or one a drafter. */
static int drafts_of(struct plan_times *t, int32_t b, const json_t *o, const char *where, struct err *e)
{
    const json_t *list = json_object_get(o, "draft_s");
    if (!json_is_array(list)) return seconds(o, where, "draft_s", false, 0, &t->draft_s[0][b], e);
    if (json_array_size(list) != PLAN_SOURCES)
        return json_wrong(where, "draft_s", "seconds, or two of them", list, e);
    for (size_t i = 0; i < PLAN_SOURCES; i++) {
        const json_t *j = json_array_get(list, i);
        const double s = json_number_value(j);
        if (!json_is_number(j) || !(s > 0) || s > 3600)
            return json_wrong(where, "draft_s", "seconds, above 0, at most 3600", j, e);
        t->draft_s[i][b] = s;
    }
    return 0;
}

static int bucket_of(struct plan_times *t, const json_t *o, const char *where, int32_t *before, struct err *e)
{
    static const char *const keys[] = {"context", "plain_s", "draft_s", "verify", NULL};
    const json_t *context = json_object_get(o, "context");
    int32_t b = 0;
    if (!json_is_object(o)) return json_wrong(where, "a bucket", "an object", o, e);
    if (json_only(o, where, keys, e)) return -1;
    while (b < PLAN_TIMES_BUCKETS && json_integer_value(context) != plan_times_context(b)) b++;
    if (!json_is_integer(context) || b == PLAN_TIMES_BUCKETS)
        return json_wrong(where, "context", "0, or 2048 times a power of two", context, e);
    if (b <= *before)
        return json_wrong(where, "context", "a context above that of the bucket before", context, e);
    *before = b;
    if (seconds(o, where, "plain_s", false, -1, &t->rows_s[b][1], e) || drafts_of(t, b, o, where, e))
        return -1;
    return verify_of(t, b, o, where, e);
}

static int read_root(struct plan_times *t, const json_t *root, const char *name, struct err *e)
{
    static const char *const keys[] = {"schema", "of", "overhead_s", "buckets", NULL};
    const json_t *schema = json_object_get(root, "schema"), *of = json_object_get(root, "of"),
                 *list = json_object_get(root, "buckets");
    int32_t before = -1;
    if (!json_is_object(root)) return json_wrong(name, "not times of plans", "a JSON object", root, e);
    if (!json_is_integer(schema) || json_integer_value(schema) != 1)
        return json_wrong(name, "schema", "1", schema, e);
    if (json_only(root, name, keys, e)) return -1;
    if (of && (!json_is_string(of) || json_string_length(of) >= PLAN_TIMES_OF))
        return json_wrong(name, "of", "a string of less than 128 bytes", of, e);
    if (of) snprintf(t->of, sizeof t->of, "%s", json_string_value(of));
    if (seconds(root, name, "overhead_s", true, -1, &t->overhead_s, e)) return -1;
    if (!json_is_array(list) || !json_array_size(list))
        return json_wrong(name, "buckets", "an array of one bucket or more", list, e);
    for (size_t i = 0; i < json_array_size(list); i++) {
        char where[512];
        snprintf(where, sizeof where, "%.400s: buckets[%zu]", name, i);
        if (bucket_of(t, json_array_get(list, i), where, &before, e)) return -1;
    }
    for (int32_t b = 0; b < PLAN_TIMES_BUCKETS; b++)
        if (has_rows(t, b, 0)) return 0;
    return err_set(e, ERR_FORMAT, "%s: verify (expected a time of two rows or more in some bucket, got none)",
                   name);
}

int plan_times_parse(struct plan_times *t, const void *data, uint64_t n, const char *name, struct err *e)
{
    json_t *root;
    memset(t, 0, sizeof *t);
    if (json_parse(&root, data, n, name, e)) return -1;
    const int rc = read_root(t, root, name, e);
    json_decref(root);
    return rc;
}

int plan_times_read(struct plan_times *t, const char *path, struct err *e)
{
    json_t *root;
    memset(t, 0, sizeof *t);
    if (json_parse_file(&root, path, MOST_BYTES, e)) return -1;
    const int rc = read_root(t, root, path, e);
    json_decref(root);
    return rc;
}

static json_t *bucket_json(const struct plan_times *t, int32_t b)
{
    json_t *o = json_object(), *list = json_array();
    json_object_set_new(o, "context", json_integer(plan_times_context(b)));
    json_object_set_new(o, "plain_s", json_real(plan_times_rows(t, 1, plan_times_context(b))));
    json_t *of_first = has_draft(t, b, 1) ? json_real(t->draft_s[0][b]) : NULL;
    if (of_first && has_draft(t, b, 2))
        json_object_set_new(o, "draft_s", json_pack("[of]", of_first, t->draft_s[1][b]));
    else if (of_first)
        json_object_set_new(o, "draft_s", of_first);
    for (int32_t n = 2; n <= PLAN_TIMES_ROWS; n++)
        if (t->rows_s[b][n] > 0) json_array_append_new(list, json_pack("[if]", n, t->rows_s[b][n]));
    json_object_set_new(o, "verify", list);
    return o;
}

char *plan_times_text(const struct plan_times *t)
{
    const uint64_t failures = mem_failures();
    json_use_mem();
    json_t *root = json_object(), *list = json_array();
    json_object_set_new(root, "schema", json_integer(1));
    if (*t->of) json_object_set_new(root, "of", json_string(t->of));
    json_object_set_new(root, "overhead_s", json_real(t->overhead_s));
    for (int32_t b = 0; b < PLAN_TIMES_BUCKETS; b++)
        if (has_plain(t, b, 0) || has_draft(t, b, 1) || has_rows(t, b, 0))
            json_array_append_new(list, bucket_json(t, b));
    json_object_set_new(root, "buckets", list);
    return json_exact(root, failures);
}

int plan_times_write(const struct plan_times *t, const char *path, bool force, struct err *e)
{
    if (plan_times_check(t, 0, e)) return -1;
    return json_put_file(plan_times_text(t), path, force, e);
}
