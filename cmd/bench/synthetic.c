/* synthetic.c - see synthetic.h. */
#include "synthetic.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../common/base/json.h"
#include "../../common/base/mem.h"

#define TRACE_BYTES (256u << 20) /* a trace's file at most */

static int take(struct synthetic *s, int32_t slots, int32_t n, struct err *e)
{
    *s = (struct synthetic){.slots = slots,
                            .n = n,
                            .equal = mem_calloc((size_t)n, sizeof *s->equal),
                            .logp = mem_calloc((size_t)n * (size_t)slots, sizeof *s->logp)};
    return s->equal && s->logp ? 0 : err_set(e, ERR_IO, "out of memory (stated acceptance)");
}

void synthetic_free(struct synthetic *s)
{
    mem_free(s->equal);
    mem_free(s->logp);
    mem_free(s->rank);
    mem_free(s->top);
    *s = (struct synthetic){0};
}

struct rates {
    double of[SESSION_MAX_ROWS][KN_TOP]; /* by slot and rank */
    bool ranks;                          /* there is more than one of a slot */
};

static int read_rates(const char *list, int32_t slots, struct rates *y, struct err *e)
{
    int32_t n = 0, rank = 0;
    double sum = 0;
    memset(y, 0, sizeof *y);
    for (const char *p = list;; p++) {
        char *end;
        errno = 0;
        const double v = strtod(p, &end);
        sum += v;
        if (end == p || strspn(p, "0123456789.eE+-") < (size_t)(end - p) || errno || !(v >= 0 && v <= 1) ||
            !(sum <= 1 + 1e-9) || (*end && *end != ',' && *end != '/') || n == slots || rank == KN_TOP)
            return err_set(
                e, ERR_USAGE,
                "--accept-rates: expected up to %d numbers from 0 to 1 with commas between, or up to %d of "
                "candidates with slashes, together at most 1, got '%s'",
                slots, KN_TOP, list);
        y->of[n][rank++] = v;
        y->ranks |= rank > 1;
        p = end;
        if (*p == '/') continue;
        n++, rank = 0, sum = 0;
        if (!*p) break;
    }
    for (; n < slots; n++) memcpy(y->of[n], y->of[n - 1], sizeof y->of[n]);
    return 0;
}

/* splitmix64: numbers in [0, 1). */
static double uniform(uint64_t *x)
{
    uint64_t z = *x += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

/* Which candidate stays: -1 none. */
static int8_t draw_rank(const double *rate, uint64_t *seed)
{
    double u = uniform(seed);
    for (int8_t r = 0; r < KN_TOP; r++)
        if ((u -= rate[r]) < 0) return r;
    return -1;
}

static int take_ranks(struct synthetic *s, const struct rates *y, struct err *e)
{
    s->rank = mem_calloc((size_t)s->n * (size_t)s->slots, sizeof *s->rank);
    s->top = mem_calloc((size_t)s->slots * KN_TOP, sizeof *s->top);
    if (!s->rank || !s->top) return err_set(e, ERR_IO, "out of memory (stated acceptance)");
    for (int32_t j = 0; j < s->slots; j++)
        for (int32_t r = 0; r < KN_TOP; r++) s->top[j * KN_TOP + r] = logf((float)y->of[j][r]);
    return 0;
}

int synthetic_rates(struct synthetic *s, const char *list, int32_t slots, int32_t n, uint64_t seed,
                    struct err *e)
{
    struct rates y;
    if (read_rates(list, slots, &y, e) || take(s, slots, n, e) || (y.ranks && take_ranks(s, &y, e)))
        return -1;
    for (int32_t i = 0; i < n; i++) {
        if (!y.ranks) /* as many draws as stay, and one: lists without ranks mean what they did */
            while (s->equal[i] < slots && uniform(&seed) < y.of[s->equal[i]][0]) s->equal[i]++;
        for (int32_t j = 0; j < slots; j++) {
            const int64_t at = (int64_t)i * slots + j;
            s->logp[at] = logf((float)y.of[j][0]);
            if (!y.ranks) continue;
            s->rank[at] = draw_rank(y.of[j], &seed);
            if (s->equal[i] == j && s->rank[at] == 0) s->equal[i]++;
        }
    }
    return 0;
}

static int bad_trace(const char *path, const char *what, const char *expected, const json_t *got,
                     struct err *e)
{
    char show[64];
    return err_set(e, ERR_FORMAT, "%s: %s (expected %s, got %s)", path, what, expected,
                   json_show(got, show, sizeof show));
}

static int read_position(struct synthetic *s, int32_t i, const json_t *row, const char *path, struct err *e)
{
    const json_t *equal = json_array_get(row, 0);
    if (json_array_size(row) != (size_t)s->slots + 1)
        return bad_trace(path, "a position of another size", "how many stay, and a probability a slot", row,
                         e);
    if (!json_is_integer(equal) || json_integer_value(equal) < 0 || json_integer_value(equal) > s->slots)
        return bad_trace(path, "how many stay", "0 to the slots", equal, e);
    s->equal[i] = (int32_t)json_integer_value(equal);
    for (int32_t j = 0; j < s->slots; j++) {
        const json_t *p = json_array_get(row, (size_t)j + 1);
        if (!json_is_number(p) || !(json_number_value(p) >= 0 && json_number_value(p) <= 1))
            return bad_trace(path, "a probability", "0 to 1", p, e);
        s->logp[(int64_t)i * s->slots + j] = logf((float)json_number_value(p));
    }
    return 0;
}

static int read_trace(struct synthetic *s, const json_t *j, const char *path, int32_t slots, struct err *e)
{
    const json_t *kind = json_object_get(j, "kind"), *schema = json_object_get(j, "schema"),
                 *of = json_object_get(j, "slots"), *rows = json_object_get(j, "positions");
    char want[32];
    if (!json_is_string(kind) || strcmp(json_string_value(kind), "accept-trace"))
        return bad_trace(path, "kind", "\"accept-trace\"", kind, e);
    if (json_integer_value(schema) != 1) return bad_trace(path, "schema", "1", schema, e);
    snprintf(want, sizeof want, "%d, of this block", slots);
    if (json_integer_value(of) != slots) return bad_trace(path, "slots", want, of, e);
    if (!json_array_size(rows) || json_array_size(rows) > SESSION_MAX_CTX)
        return bad_trace(path, "positions", "a list of one or more", rows, e);
    if (take(s, slots, (int32_t)json_array_size(rows), e)) return -1;
    for (int32_t i = 0; i < s->n; i++)
        if (read_position(s, i, json_array_get(rows, (size_t)i), path, e)) return -1;
    return 0;
}

int synthetic_trace(struct synthetic *s, const char *path, int32_t slots, struct err *e)
{
    json_t *j;
    if (json_parse_file(&j, path, TRACE_BYTES, e)) return -1;
    const int rc = read_trace(s, j, path, slots, e);
    json_decref(j);
    return rc;
}

int synthetic_table(const struct synthetic *s, int64_t first, int32_t from, int32_t positions,
                    struct session_synthetic *t, struct err *e)
{
    int32_t *equal = mem_calloc((size_t)positions, sizeof *equal);
    float *logp = mem_calloc((size_t)positions * (size_t)s->slots, sizeof *logp);
    int8_t *rank = s->rank ? mem_calloc((size_t)positions * (size_t)s->slots, sizeof *rank) : NULL;
    *t = (struct session_synthetic){
        .n = positions, .slots = s->slots, .equal = equal, .logp = logp, .rank = rank, .top = s->top};
    if (!equal || !logp || (s->rank && !rank)) return err_set(e, ERR_IO, "out of memory (stated acceptance)");
    for (int32_t p = from; p < positions; p++) {
        const int32_t i = (int32_t)((first + p - from) % s->n);
        equal[p] = s->equal[i];
        if (rank) memcpy(rank + (int64_t)p * s->slots, s->rank + (int64_t)i * s->slots, (size_t)s->slots);
        memcpy(logp + (int64_t)p * s->slots, s->logp + (int64_t)i * s->slots,
               (size_t)s->slots * sizeof *logp);
    }
    return 0;
}

void synthetic_table_free(struct session_synthetic *t)
{
    mem_free((void *)(uintptr_t)t->equal);
    mem_free((void *)(uintptr_t)t->logp);
    mem_free((void *)(uintptr_t)t->rank);
    *t = (struct session_synthetic){0};
}

double synthetic_mean(const struct synthetic *s)
{
    double sum = 0;
    for (int32_t i = 0; i < s->n; i++) sum += s->equal[i];
    return 1 + sum / s->n;
}
