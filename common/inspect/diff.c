/* diff.c - see diff.h. */
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../make/convert_impl.h"
#include "../describe/dialect.h"
#include "diff.h"
#include "../file/gguf.h"
#include "../base/io.h"
#include "../base/mem.h"
#include "../file/safetensors.h"

/* A tensor of either format under its GGUF name. Against a GGUF, a checkpoint whose family the converter
 * knows is read through its tables, as the converter would have written it: experts stacked, rows in order,
 * values changed. */
struct side_tensor {
    char name[256];  /* GGUF name; the file's own where the tables do not know it */
    const char *own; /* as the file spells it */
    const char *type;
    int64_t shape[4]; /* rows first, leading ones dropped */
    int n_dims;
    int64_t count;
    const struct gguf_tensor *g; /* one of the three is set */
    const struct st_tensor *s;
    const struct conv *c; /* with ct */
    const struct conv_tensor *ct;
    bool decodable;
};

struct side {
    struct gguf *g;
    struct st *s;
    struct conv *c;
    struct convert options; /* of c */
    struct side_tensor *t;  /* sorted by name */
    size_t n;
};

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct side_tensor *)a)->name, ((const struct side_tensor *)b)->name);
}

/* drafter: its names differ between dialects, upstream's stand for them. */
static void from_gguf(struct side_tensor *t, const struct gguf *file, const struct gguf_tensor *g,
                      bool drafter)
{
    const struct kn_type_info *ti = kn_type_info(g->type);
    if (drafter)
        dialect_to_upstream(file, g->name, t->name, sizeof t->name);
    else
        snprintf(t->name, sizeof t->name, "%s", g->name);
    t->own = g->name;
    t->type = ti->name;
    t->g = g;
    t->decodable = ti->can_decode;
    t->n_dims = (int)g->n_dims;
    t->count = 1;
    for (int i = 0; i < t->n_dims; i++) {
        t->shape[i] = g->ne[t->n_dims - 1 - i];
        t->count *= t->shape[i];
    }
}

static int from_safetensors(struct side_tensor *t, const struct st_tensor *s)
{
    if (convert_gguf_name(s->name, t->name, sizeof t->name)) snprintf(t->name, sizeof t->name, "%s", s->name);
    t->own = s->name;
    t->type = st_dtype_name(s->dtype);
    t->s = s;
    t->decodable = s->dtype <= ST_F8_E5M2 && s->n_dims <= 4;
    t->n_dims = s->n_dims <= 4 ? (int)s->n_dims : 4;
    t->count = (int64_t)s->count;
    for (int i = 0; i < t->n_dims; i++) t->shape[i] = s->shape[i];
    return 0;
}

static void from_conv(struct side_tensor *t, const struct conv *c, const struct conv_tensor *ct)
{
    snprintf(t->name, sizeof t->name, "%s", ct->name);
    t->own = ct->src ? ct->src->name : "(computed)";
    t->type = ct->src ? st_dtype_name(ct->src->dtype) : "F32";
    t->c = c;
    t->ct = ct;
    t->decodable = true;
    t->n_dims = (int)ct->n_dims;
    t->count = 1;
    for (int i = 0; i < t->n_dims; i++) {
        t->shape[i] = ct->ne[t->n_dims - 1 - i];
        t->count *= t->shape[i];
    }
}

/* as_gguf: the other side is one. */
static int side_open(struct side *d, const char *path, bool as_gguf, struct err *e)
{
    bool st = st_is_path(path);
    convert_defaults(&d->options);
    d->options.input = path;
    int none = st && as_gguf ? conv_open(&d->c, &d->options, e) : 1;
    if (none < 0) return -1;
    if (none && (st ? st_open(&d->s, path, e) : gguf_open(&d->g, path, e))) return -1;
    d->n = (size_t)(d->c ? (uint64_t)d->c->n_t : st ? d->s->n_tensors : d->g->n_tensors);
    d->t = mem_calloc(d->n + 1, sizeof *d->t);
    if (!d->t) return err_set(e, ERR_IO, "out of memory (%zu tensors)", d->n);
    struct gguf_str arch = {0};
    struct err ignored = {0};
    const bool drafter =
        d->g && !gguf_get_str(d->g, "general.architecture", &arch, &ignored) && dialect_is_drafter(arch);
    for (size_t i = 0; i < d->n; i++) {
        if (d->c)
            from_conv(&d->t[i], d->c, &d->c->t[i]);
        else if (st)
            from_safetensors(&d->t[i], &d->s->tensor[i]);
        else
            from_gguf(&d->t[i], d->g, &d->g->tensor[i], drafter);
    }
    qsort(d->t, d->n, sizeof *d->t, by_name);
    return 0;
}

static void side_close(struct side *d)
{
    gguf_close(d->g);
    st_close(d->s);
    conv_close(d->c);
    mem_free(d->t);
}

/* Elements of a converted tensor, through the whole rows that hold them. */
static int read_converted(const struct side_tensor *t, int64_t first, int64_t n, float *x)
{
    const int64_t width = t->ct->ne[0], row = first / width, rows = (first + n - 1) / width - row + 1;
    struct err e = {0};
    float *all = mem_alloc((size_t)(rows * width) * sizeof *all);
    int rc = all ? conv_read_rows(t->c, t->ct, row, rows, all, &e) : -1;
    if (!rc) memcpy(x, all + (first - row * width), (size_t)n * sizeof *x);
    mem_free(all);
    return rc;
}

static int read_values(const struct side_tensor *t, int64_t first, int64_t n, float *x)
{
    struct err e = {0};
    if (t->ct) return read_converted(t, first, n, x);
    if (t->s) return st_read_f32(t->s, (uint64_t)first, (uint64_t)n, x, &e);
    const struct kn_type_info *ti = kn_type_info(t->g->type);
    return kn_decode_row(t->g->type, t->g->data + first / ti->block * ti->bytes, x, n);
}

struct sums {
    double a2, d2, max;
    int64_t at;
    bool same, finite;
};

#define SLAB 65536 /* a multiple of every block */

static int compare_slab(const struct side_tensor *a, const struct side_tensor *b, int64_t from, int64_t n,
                        struct sums *s)
{
    float *x = mem_alloc(2 * SLAB * sizeof *x), *y = x + SLAB;
    if (!x) return -1;
    if (read_values(a, from, n, x) || read_values(b, from, n, y)) {
        mem_free(x);
        return -1;
    }
    s->same = !memcmp(x, y, (size_t)n * sizeof *x);
    s->finite = true;
    for (int64_t i = 0; i < n; i++) {
        double d = (double)x[i] - y[i];
        if (!isfinite(x[i]) || !isfinite(y[i])) {
            s->finite = false;
            continue;
        }
        s->a2 += (double)x[i] * x[i];
        s->d2 += d * d;
        if (fabs(d) > s->max) {
            s->max = fabs(d);
            s->at = from + i;
        }
    }
    mem_free(x);
    return 0;
}

static int compare(const struct side_tensor *a, const struct side_tensor *b, int threads, struct sums *out)
{
    int64_t slabs = (a->count + SLAB - 1) / SLAB;
    struct sums *part = mem_calloc((size_t)slabs + 1, sizeof *part);
    int failed = 0;
    if (!part) return -1;
    io_team_begin();
#pragma omp parallel for schedule(static) num_threads(threads) reduction(| : failed)
    for (int64_t s = 0; s < slabs; s++) {
        int64_t from = s * SLAB, n = a->count - from < SLAB ? a->count - from : SLAB;
        failed |= compare_slab(a, b, from, n, &part[s]) != 0;
    }
    io_team_end();
    *out = (struct sums){.same = true, .finite = true};
    for (int64_t s = 0; s < slabs; s++) { /* in order: the same sums for any thread count */
        out->a2 += part[s].a2;
        out->d2 += part[s].d2;
        out->same &= part[s].same;
        out->finite &= part[s].finite;
        if (part[s].max > out->max) {
            out->max = part[s].max;
            out->at = part[s].at;
        }
    }
    mem_free(part);
    return failed ? -1 : 0;
}

static void shape_text(char *out, size_t n, const struct side_tensor *t)
{
    out[0] = 0;
    for (int i = 0; t && i < t->n_dims; i++)
        snprintf(out + strlen(out), n - strlen(out), "%s%lld", i ? "x" : "", (long long)t->shape[i]);
}

/* Shapes are equal once leading ones are dropped: a [1] scalar and a [] one are the same tensor. */
static bool same_shape(const struct side_tensor *a, const struct side_tensor *b)
{
    int i = 0, j = 0;
    while (i < a->n_dims && a->shape[i] == 1) i++;
    while (j < b->n_dims && b->shape[j] == 1) j++;
    if (a->n_dims - i != b->n_dims - j) return false;
    for (; i < a->n_dims; i++, j++)
        if (a->shape[i] != b->shape[j]) return false;
    return true;
}

static bool same_bytes(const struct side_tensor *a, const struct side_tensor *b)
{
    if (a->g && b->g)
        return a->g->type == b->g->type && a->g->bytes == b->g->bytes &&
               !memcmp(a->g->data, b->g->data, (size_t)a->g->bytes);
    if (a->s && b->s)
        return a->s->dtype == b->s->dtype && a->s->bytes == b->s->bytes &&
               !memcmp(a->s->data, b->s->data, (size_t)a->s->bytes);
    return false;
}

static int diff_one(const struct side_tensor *a, const struct side_tensor *b, int threads,
                    struct diff_tensor *r, struct sums *all, struct diff_total *total, struct err *e)
{
    struct sums s = {0};
    r->name = a ? a->name : b->name;
    r->name_a = a ? a->own : NULL;
    r->name_b = b ? b->own : NULL;
    r->type_a = a ? a->type : NULL;
    r->type_b = b ? b->type : NULL;
    shape_text(r->shape_a, sizeof r->shape_a, a);
    shape_text(r->shape_b, sizeof r->shape_b, b);
    total->tensors++;
    total->missing += !a || !b;
    if (!a || !b) return 0;
    if (!same_shape(a, b)) {
        total->shape++;
        return 0;
    }
    const uint64_t failures = mem_failures();
    const bool decoded = a->decodable && b->decodable && compare(a, b, threads, &s) == 0;
    if (mem_failures() != failures) return err_set(e, ERR_IO, "out of memory (tensor %s)", r->name);
    if (!decoded) { /* a type, or a value in it; equal bytes of one type are equal whatever they mean */
        r->comparable = r->same_bits = same_bytes(a, b);
        r->count = a->count;
        total->compared += r->same_bits;
        total->identical += r->same_bits;
        total->undecodable += !r->same_bits;
        return 0;
    }
    r->comparable = true;
    r->count = a->count;
    r->same_bits = s.same;
    r->max_abs = s.max;
    r->max_at = s.at;
    r->rel_rms = !s.finite ? NAN : s.d2 == 0 ? 0 : s.a2 > 0 ? sqrt(s.d2 / s.a2) : INFINITY;
    total->compared++;
    total->identical += s.same;
    total->not_finite += !s.finite;
    all->a2 += s.a2;
    all->d2 += s.d2;
    return 0;
}

/* ---- keys ---- */

/* Element i of an array, as gguf_value_text has a scalar. */
static void element_text(const struct gguf_kv *kv, uint64_t i, char *out, size_t n)
{
    struct gguf_kv one = {.type = kv->elem, .elem = kv->elem, .count = 1};
    if (kv->strings) {
        one.strings = &kv->strings[i];
    } else {
        const uint64_t size = kv->bytes / kv->count;
        one.data = kv->data + i * size;
        one.bytes = size;
    }
    gguf_value_text(&one, out, n);
}

static bool same_element(const struct gguf_kv *a, const struct gguf_kv *b, uint64_t i)
{
    if (a->strings)
        return a->strings[i].n == b->strings[i].n &&
               !memcmp(a->strings[i].s, b->strings[i].s, (size_t)a->strings[i].n);
    const uint64_t size = a->bytes / a->count;
    return !memcmp(a->data + i * size, b->data + i * size, (size_t)size);
}

static void diff_key(const struct gguf_kv *a, const struct gguf_kv *b, const struct diff_fns *fn, void *ctx,
                     struct diff_total *total)
{
    struct diff_key k = {.key = a ? a->key : b->key, .at = -1};
    total->keys++;
    total->keys_missing += !a || !b;
    if (a && b && gguf_same_value(a, b)) return;
    total->keys_differ += a && b;
    if (a)
        gguf_value_text(a, k.a, sizeof k.a), k.type_a = gguf_type_name(a->elem),
                                             k.array_a = a->type == GGUF_ARRAY;
    if (b)
        gguf_value_text(b, k.b, sizeof k.b), k.type_b = gguf_type_name(b->elem),
                                             k.array_b = b->type == GGUF_ARRAY;
    if (a && b && k.array_a && k.array_b && a->elem == b->elem && a->count == b->count) {
        uint64_t i = 0;
        while (i + 1 < a->count && same_element(a, b, i)) i++;
        k.at = (int64_t)i;
        element_text(a, i, k.a, sizeof k.a);
        element_text(b, i, k.b, sizeof k.b);
    }
    if (fn->key) fn->key(ctx, &k);
}

static void diff_keys(const struct gguf *a, const struct gguf *b, const struct diff_fns *fn, void *ctx,
                      struct diff_total *total)
{
    for (uint64_t i = 0, j = 0; i < a->n_kv || j < b->n_kv;) {
        const int order = i == a->n_kv   ? 1
                          : j == b->n_kv ? -1
                                         : strcmp(a->kv_by_name[i]->key, b->kv_by_name[j]->key);
        diff_key(order <= 0 ? a->kv_by_name[i] : NULL, order >= 0 ? b->kv_by_name[j] : NULL, fn, ctx, total);
        i += order <= 0;
        j += order >= 0;
    }
}

int diff_files(const char *pa, const char *pb, int threads, const struct diff_fns *fn, void *ctx,
               struct diff_total *total, struct err *e)
{
    struct side a = {0}, b = {0};
    struct sums all = {0};
    uint64_t done = 0, whole = 0;
    int rc = -1;
    if (threads < 1) threads = omp_get_num_procs();
    memset(total, 0, sizeof *total);
    if (side_open(&a, pa, !st_is_path(pb), e) || side_open(&b, pb, !st_is_path(pa), e)) goto done;
    if (a.g && b.g) diff_keys(a.g, b.g, fn, ctx, total);
    for (size_t i = 0; i < a.n; i++) whole += (uint64_t)a.t[i].count;
    for (size_t i = 0, j = 0; i < a.n || j < b.n;) {
        int order = i == a.n ? 1 : j == b.n ? -1 : strcmp(a.t[i].name, b.t[j].name);
        struct diff_tensor r = {0};
        if (diff_one(order <= 0 ? &a.t[i] : NULL, order >= 0 ? &b.t[j] : NULL, threads, &r, &all, total, e))
            goto done;
        fn->tensor(ctx, &r);
        if (order <= 0) done += (uint64_t)a.t[i].count;
        if (fn->progress) fn->progress(ctx, done, whole);
        i += order <= 0;
        j += order >= 0;
    }
    total->rel_rms = all.a2 > 0 ? sqrt(all.d2 / all.a2) : all.d2 > 0 ? INFINITY : 0;
    rc = io_maps_check(e);
done:
    side_close(&a);
    side_close(&b);
    return rc;
}
