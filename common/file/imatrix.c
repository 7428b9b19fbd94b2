/* imatrix.c - importance matrices: entries, files. docs/imatrix.md. */
#include "imatrix.h"
#include "gguf.h"
#include "../base/mem.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SUMS ".in_sum2"
#define COUNTS ".counts"

int imatrix_new(struct imatrix **m, struct err *e)
{
    *m = mem_calloc(1, sizeof **m);
    return *m ? 0 : err_set(e, ERR_IO, "out of memory (an importance matrix)");
}

void imatrix_free(struct imatrix *m)
{
    if (!m) return;
    for (int64_t i = 0; i < m->n; i++) {
        mem_free(m->entry[i].name);
        mem_free(m->entry[i].sum2);
        mem_free(m->entry[i].count);
    }
    for (int64_t i = 0; i < m->n_dataset; i++) mem_free(m->dataset[i]);
    mem_free(m->entry);
    mem_free(m->dataset);
    mem_free(m);
}

static int by_entry(const void *a, const void *b)
{
    return strcmp(((const struct imatrix_entry *)a)->name, ((const struct imatrix_entry *)b)->name);
}

int imatrix_sort(struct imatrix *m, struct err *e)
{
    if (m->n) qsort(m->entry, (size_t)m->n, sizeof *m->entry, by_entry);
    m->sorted = true;
    for (int64_t i = 1; i < m->n; i++)
        if (!by_entry(&m->entry[i - 1], &m->entry[i]))
            return err_set(e, ERR_FORMAT, "'%s': stands twice", m->entry[i].name);
    return 0;
}

struct imatrix_entry *imatrix_find(const struct imatrix *m, const char *name)
{
    const struct imatrix_entry key = {.name = (char *)(uintptr_t)name};
    if (m->sorted) return m->n ? bsearch(&key, m->entry, (size_t)m->n, sizeof key, by_entry) : NULL;
    for (int64_t i = 0; i < m->n; i++)
        if (!strcmp(m->entry[i].name, name)) return &m->entry[i];
    return NULL;
}

int imatrix_fit(struct imatrix_entry *t, int64_t n_in, int64_t n_mat, struct err *e)
{
    int64_t all;
    if (t->n_in == n_in && t->n_mat == n_mat) return 0;
    if (t->n_mat != 1 || __builtin_mul_overflow(n_in, n_mat, &all) || t->n_in != all)
        return err_set(e, ERR_FORMAT,
                       "%s: the importance matrix is of another shape (expected %" PRId64
                       " columns of %" PRId64 " matrices, got %" PRId64 " of %" PRId64 ")",
                       t->name, n_in, n_mat, t->n_in, t->n_mat);
    double *count = mem_realloc(t->count, (size_t)n_mat * sizeof *count);
    if (!count) return err_set(e, ERR_IO, "out of memory (importance of %s)", t->name);
    for (int64_t i = 1; i < n_mat; i++) count[i] = count[0];
    t->count = count;
    t->n_in = n_in;
    t->n_mat = n_mat;
    return 0;
}

int imatrix_append(struct imatrix *m, const char *name, int64_t n_in, int64_t n_mat,
                   struct imatrix_entry **at, struct err *e)
{
    if (m->n == m->cap) {
        const int64_t cap = m->cap ? 2 * m->cap : 64;
        struct imatrix_entry *more = mem_realloc(m->entry, (size_t)cap * sizeof *more);
        if (!more) goto memory;
        m->entry = more;
        m->cap = cap;
    }
    struct imatrix_entry *t = &m->entry[m->n];
    *t = (struct imatrix_entry){.n_in = n_in, .n_mat = n_mat};
    t->name = mem_strdup(name);
    t->count = mem_calloc((size_t)n_mat, sizeof *t->count);
    if ((uint64_t)n_in <= SIZE_MAX / sizeof *t->sum2 / (uint64_t)n_mat)
        t->sum2 = mem_calloc((size_t)n_mat * (size_t)n_in, sizeof *t->sum2);
    *at = t;
    if (t->name && t->count && t->sum2) {
        m->n++;
        m->sorted = false;
        return 0;
    }
    mem_free(t->name);
    mem_free(t->count);
    mem_free(t->sum2);
memory:
    *at = NULL;
    return err_set(e, ERR_IO, "out of memory (importance of %s)", name);
}

int imatrix_entry(struct imatrix *m, const char *name, int64_t n_in, int64_t n_mat, struct imatrix_entry **at,
                  struct err *e)
{
    *at = imatrix_find(m, name);
    return *at ? imatrix_fit(*at, n_in, n_mat, e) : imatrix_append(m, name, n_in, n_mat, at, e);
}

int imatrix_add_dataset(struct imatrix *m, const char *name, struct err *e)
{
    const size_t n = (size_t)m->n_dataset;
    char **more = m->dataset;
    if (!(n & (n - 1)))
        more = mem_realloc(more, (n ? 2 * n : 1) * sizeof *more); /* full at each power of two */
    if (more) m->dataset = more;
    if (!more || !(more[m->n_dataset] = mem_strdup(name)))
        return err_set(e, ERR_IO, "out of memory (data sets of an importance matrix)");
    m->n_dataset++;
    return 0;
}

uint32_t imatrix_chunks(const struct imatrix *m)
{
    double most = 0;
    if (m->by_chunks) return m->n_chunks;
    for (int64_t i = 0; i < m->n; i++)
        for (int64_t k = 0; k < m->entry[i].n_mat; k++) most = fmax(most, m->entry[i].count[k]);
    const double chunks = m->chunk_size ? ceil(most / m->chunk_size) : 0;
    return chunks < (double)UINT32_MAX ? (uint32_t)chunks : UINT32_MAX;
}

bool imatrix_weights(const struct imatrix_entry *t, int64_t i, float *w)
{
    const double *s = t->sum2 + i * t->n_in;
    double sum = 0;
    for (int64_t k = 0; k < t->n_in; k++) sum += s[k];
    const bool none = !(t->count[i] > 0) || !(sum > 0) || !isfinite(sum);
    for (int64_t k = 0; k < t->n_in; k++) {
        const float v = none ? 1.0f : (float)(s[k] / sum * (double)t->n_in);
        w[k] = v > IMATRIX_LEAST ? v : IMATRIX_LEAST;
    }
    return none;
}

/* ---- reading ---- */

static bool ends_with(const char *name, const char *end, size_t *stem)
{
    const size_t n = strlen(name), k = strlen(end);
    *stem = n > k ? n - k : 0;
    return n > k && !strcmp(name + n - k, end);
}

static int bad_tensor(const struct gguf_tensor *t, const char *what, struct err *e)
{
    return err_set(e, ERR_FORMAT, "tensor '%s' [%" PRId64 ", %" PRId64 "]: %s", t->name,
                   t->ne[1] * t->ne[2] * t->ne[3], t->ne[0], what);
}

/* A tensor of numbers that are sums of squares, or counts. */
static int check_values(const struct gguf_tensor *t, struct err *e)
{
    if (t->type != KN_F32) return bad_tensor(t, "another type than F32", e);
    for (uint64_t i = 0; i < t->bytes / 4; i++) {
        float v;
        memcpy(&v, t->data + 4 * i, 4);
        if (!(v >= 0) || !isfinite(v))
            return err_set(e, ERR_FORMAT, "tensor '%s': element %" PRIu64 " is %g (expected 0 or more)",
                           t->name, i, (double)v);
    }
    return 0;
}

static int read_entry(struct imatrix *m, const struct gguf *g, const struct gguf_tensor *sums, size_t stem,
                      struct err *e)
{
    char name[300];
    struct imatrix_entry *t;
    snprintf(name, sizeof name, "%.*s" COUNTS, (int)stem, sums->name);
    const struct gguf_tensor *counts = gguf_tensor(g, name);
    if (!counts)
        return err_set(e, ERR_FORMAT, "tensor '%s': has no counts (expected '%s')", sums->name, name);
    if (check_values(sums, e) || check_values(counts, e)) return -1;
    const int64_t n_mat = sums->ne[1] * sums->ne[2] * sums->ne[3], n = (int64_t)(counts->bytes / 4);
    if (n != n_mat && n != 1) /* one count for all matrices: of a tensor whose matrices see the same rows */
        return bad_tensor(counts, "the number of counts is not that of the matrices", e);
    name[stem] = 0;
    if (imatrix_append(m, name, sums->ne[0], n_mat, &t, e)) return -1;
    for (int64_t i = 0; i < n_mat * t->n_in; i++) {
        float v;
        memcpy(&v, sums->data + 4 * i, 4);
        t->sum2[i] = v;
    }
    for (int64_t i = 0; i < n_mat; i++) {
        float v;
        memcpy(&v, counts->data + (n == 1 ? 0 : 4 * i), 4);
        t->count[i] = v;
    }
    return 0;
}

bool imatrix_is(const struct gguf *g)
{
    struct gguf_str type = {0};
    struct err none = {0};
    return gguf_get_str(g, "general.type", &type, &none) == 0 && gguf_str_is(type, "imatrix");
}

static int read_keys(struct imatrix *m, const struct gguf *g, struct err *e)
{
    struct gguf_str type;
    int rc = gguf_get_str(g, "general.type", &type, e);
    if (rc < 0) return -1;
    if (rc > 0 || !gguf_str_is(type, "imatrix"))
        return err_set(e, ERR_FORMAT, "is no importance matrix (expected general.type imatrix, got %.*s)",
                       rc ? 4 : (int)(type.n < 64 ? type.n : 64), rc ? "none" : type.s);
    if (gguf_get_u32(g, "imatrix.chunk_size", &m->chunk_size, e) < 0) return -1;
    const struct gguf_kv *sets = gguf_find(g, "imatrix.datasets");
    if (sets && (sets->type != GGUF_ARRAY || sets->elem != GGUF_STRING))
        return err_set(e, ERR_FORMAT, "imatrix.datasets: another type (expected an array of strings)");
    for (uint64_t i = 0; sets && i < sets->count; i++) {
        char name[4096];
        snprintf(name, sizeof name, "%.*s", (int)(sets->strings[i].n < 4095 ? sets->strings[i].n : 4095),
                 sets->strings[i].s);
        if (imatrix_add_dataset(m, name, e)) return -1;
    }
    return 0;
}

static int read_all(struct imatrix *m, const struct gguf *g, struct err *e)
{
    if (read_keys(m, g, e)) return -1;
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        const struct gguf_tensor *t = &g->tensor[i];
        char name[300];
        size_t stem;
        if (ends_with(t->name, SUMS, &stem)) {
            if (read_entry(m, g, t, stem, e)) return -1;
        } else if (ends_with(t->name, COUNTS, &stem)) {
            snprintf(name, sizeof name, "%.*s" SUMS, (int)stem, t->name);
            if (!gguf_tensor(g, name))
                return err_set(e, ERR_FORMAT, "tensor '%s': has no sums (expected '%s')", t->name, name);
        } else { /* NAME.in_sum, NAME.stats and what else a tool says of an entry */
            const char *dot = strrchr(t->name, '.');
            snprintf(name, sizeof name, "%.*s" SUMS, dot ? (int)(dot - t->name) : 0, t->name);
            if (!dot || !gguf_tensor(g, name))
                return bad_tensor(
                    t, "does not belong in an importance matrix (expected *" SUMS " and *" COUNTS ")", e);
        }
    }
    return m->n ? imatrix_sort(m, e) : err_set(e, ERR_FORMAT, "is an importance matrix without entries");
}

static int read_gguf(struct imatrix *m, const uint8_t *data, uint64_t n, const char *name, struct err *e)
{
    struct gguf *g;
    if (gguf_open_memory(&g, data, n, name, e)) return -1;
    const int rc = read_all(m, g, e) ? err_prefix(e, "%s", name) : 0;
    gguf_close(g);
    return rc;
}

int imatrix_read_memory(struct imatrix **out, const uint8_t *data, uint64_t n, const char *name,
                        struct err *e)
{
    struct imatrix *m;
    int rc;
    *out = NULL;
    if (imatrix_new(&m, e)) return -1;
    if (n >= 4 && !memcmp(data, "GGUF", 4))
        rc = read_gguf(m, data, n, name, e);
    else
        rc = imatrix_read_dat(m, data, n, e) ? err_prefix(e, "%s", name) : 0;
    if (rc)
        imatrix_free(m);
    else
        *out = m;
    return rc;
}

int imatrix_read(struct imatrix **out, const char *path, struct err *e)
{
    struct io_map map;
    *out = NULL;
    if (io_map_open(&map, path, e)) return -1;
    int rc = imatrix_read_memory(out, map.data, map.size, path, e);
    if (!rc && (rc = io_maps_check(e)) != 0) {
        imatrix_free(*out);
        *out = NULL;
    }
    io_map_close(&map); /* nothing of it is kept: the file may be replaced */
    return rc;
}

/* ---- writing ---- */

static int by_name(const void *a, const void *b)
{
    return strcmp((*(struct imatrix_entry *const *)a)->name, (*(struct imatrix_entry *const *)b)->name);
}

static int put_keys(const struct imatrix *m, struct gguf_writer *w, struct err *e)
{
    struct gguf_str *sets = mem_calloc((size_t)m->n_dataset + 1, sizeof *sets);
    if (!sets) return err_set(e, ERR_IO, "out of memory (data sets of an importance matrix)");
    for (int64_t i = 0; i < m->n_dataset; i++)
        sets[i] = (struct gguf_str){m->dataset[i], strlen(m->dataset[i])};
    int rc = gguf_put_str(w, "general.type", "imatrix", 7, e);
    if (!rc) rc = gguf_put_strings(w, "imatrix.datasets", sets, (uint64_t)m->n_dataset, e);
    if (!rc) rc = gguf_put_u32(w, "imatrix.chunk_count", imatrix_chunks(m), e);
    if (!rc) rc = gguf_put_u32(w, "imatrix.chunk_size", m->chunk_size, e);
    mem_free(sets);
    return rc;
}

static int write_floats(struct gguf_writer *w, struct io_out *out, const double *v, int64_t n, struct err *e)
{
    float part[1024];
    for (int64_t i = 0; i < n; i += 1024) {
        const int64_t some = n - i < 1024 ? n - i : 1024;
        for (int64_t k = 0; k < some; k++) part[k] = (float)v[i + k];
        if (gguf_write_data(w, out, part, (uint64_t)some * 4, e)) return -1;
    }
    return 0;
}

static int describe(struct gguf_writer *w, const struct imatrix_entry *t, struct err *e)
{
    const int64_t sums[2] = {t->n_in, t->n_mat}, counts[2] = {1, t->n_mat};
    const uint32_t n_dims =
        t->n_mat > 1 ? 2 : 1; /* the ecosystem's writer leaves out dimensions of 1 at the end */
    char name[300];
    snprintf(name, sizeof name, "%s" SUMS, t->name);
    if (gguf_add_tensor(w, name, KN_F32, n_dims, sums, e)) return -1;
    snprintf(name, sizeof name, "%s" COUNTS, t->name);
    return gguf_add_tensor(w, name, KN_F32, n_dims, counts, e);
}

static bool has_rows(const struct imatrix_entry *t)
{
    for (int64_t i = 0; i < t->n_mat; i++)
        if (t->count[i] > 0) return true;
    return false;
}

int imatrix_write(const struct imatrix *m, struct io_out *out, struct err *e)
{
    struct gguf_writer *w = NULL;
    int64_t n = 0;
    int rc = -1;
    struct imatrix_entry **sorted = mem_calloc((size_t)m->n + 1, sizeof *sorted);
    if (!sorted) return err_set(e, ERR_IO, "out of memory (an importance matrix)");
    for (int64_t i = 0; i < m->n; i++)
        if (has_rows(&m->entry[i])) sorted[n++] = &m->entry[i];
    qsort(sorted, (size_t)n, sizeof *sorted, by_name);
    if (gguf_writer_new(&w, e) || put_keys(m, w, e)) goto out;
    for (int64_t i = 0; i < n; i++)
        if (describe(w, sorted[i], e)) goto out;
    if (gguf_write_header(w, out, e)) goto out;
    for (int64_t i = 0; i < n; i++)
        if (write_floats(w, out, sorted[i]->sum2, sorted[i]->n_in * sorted[i]->n_mat, e) ||
            write_floats(w, out, sorted[i]->count, sorted[i]->n_mat, e))
            goto out;
    rc = gguf_write_end(w, out, e);
out:
    gguf_writer_free(w);
    mem_free(sorted);
    return rc;
}
