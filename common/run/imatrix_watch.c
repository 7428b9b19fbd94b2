/* imatrix_watch.c - a table of operations that stands before the backend's own and looks at the inputs of
 * products.
 *
 * A product's rows are fetched (normed first, by the backend's own norm, where the operation norms them) and
 * every column's squares are added in float64, rows in order, so the sums depend on the rows alone and not on
 * threads. Then the operation runs as ever: what a watched model computes is bit for bit what it computes
 * unwatched. */
#include "../file/imatrix.h"
#include "../base/io.h"
#include "../base/mem.h"
#include "../model/model.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <string.h>

struct watched {
    const struct kn_weight *w;
    struct imatrix_entry *entry;
};

struct imatrix_watch {
    struct kn_ops op; /* first: the backend's head points at it */
    const struct kn_ops *inner;
    struct kn_backend *be;
    bool on;
    struct watched *at; /* [n] */
    int32_t n;
    float *device; /* [device_n] rows normed */
    size_t device_n;
    float *x;    /* host [x_n] rows */
    int32_t *id; /* host [id_n] experts */
    double *sum; /* host [sum_n] a column each */
    size_t x_n, id_n, sum_n;
};

static struct imatrix_watch *watch_of(struct kn_backend *be)
{
    return (struct imatrix_watch *)(void *)(uintptr_t)kn_op(be);
}

static int fail(struct imatrix_watch *k, int code, const char *what, const char *name)
{
    struct kn_backend_head *head = (struct kn_backend_head *)(void *)k->be;
    snprintf(head->message, sizeof head->message, "importance of %s: %s", name, what);
    return code;
}

static struct imatrix_entry *entry_of(const struct imatrix_watch *k, const struct kn_weight *w)
{
    for (int32_t i = 0; k->on && i < k->n; i++)
        if (k->at[i].w == w) return k->at[i].entry;
    return NULL;
}

static bool grow(void *p, size_t *have, size_t want, size_t size)
{
    void *now;
    memcpy(&now, p, sizeof now);
    if (want <= *have) return true;
    void *more = mem_realloc(now, want * size);
    if (!more) return false;
    memcpy(p, &more, sizeof more);
    *have = want;
    return true;
}

/* n values of device memory, on the host. */
static int fetch(struct imatrix_watch *k, const float *x, size_t n, const char *name)
{
    if (!grow(&k->x, &k->x_n, n, sizeof *k->x)) return fail(k, KN_EMEM, "out of memory", name);
    return k->inner->download(k->be, k->x, x, n * sizeof *x);
}

/* Rows x [n, n_in], normed as the operation will: in k->x. */
static int fetch_normed(struct imatrix_watch *k, const float *x, const float *norm, float eps, int32_t n,
                        int64_t n_in, const char *name)
{
    const size_t all = (size_t)n * (size_t)n_in;
    if (all > k->device_n) {
        k->inner->free(k->be, k->device);
        k->device = k->inner->alloc(k->be, all * sizeof *k->device);
        k->device_n = k->device ? all : 0;
        if (!k->device) return KN_EMEM; /* the backend has said so */
    }
    const int rc = k->inner->rms_norm(k->be, k->device, x, norm, n, n_in, eps);
    return rc ? rc : fetch(k, k->device, all, name);
}

/* to[n_in] += squares of row x. */
static void add_squares(double *to, const float *x, int64_t n_in)
{
    for (int64_t c = 0; c < n_in; c++) to[c] += (double)x[c] * (double)x[c];
}

/* The squares of k->x [n, n_in] by column, in k->sum; a thread has columns of its own. */
static int sum_columns(struct imatrix_watch *k, int32_t n, int64_t n_in, const char *name)
{
    enum { PART = 256 };
    if (!grow(&k->sum, &k->sum_n, (size_t)n_in, sizeof *k->sum))
        return fail(k, KN_EMEM, "out of memory", name);
    double *sum = k->sum;
    const float *x = k->x;
    const int all = kn_backend_threads(k->be), threads = all ? all : omp_get_num_procs();
    io_team_begin();
#pragma omp parallel for num_threads(threads) if (n * n_in > 1 << 16)
    for (int64_t c = 0; c < n_in; c += PART) {
        const int64_t some = n_in - c < PART ? n_in - c : PART;
        memset(sum + c, 0, (size_t)some * sizeof *sum);
        for (int32_t i = 0; i < n; i++) add_squares(sum + c, x + (int64_t)i * n_in + c, some);
    }
    io_team_end();
    for (int64_t c = 0; c < n_in; c++)
        if (!isfinite(sum[c])) return fail(k, KN_EDEVICE, "a NaN or Inf in the input", name);
    return 0;
}

/* The same n rows for every matrix that is watched among w. */
static int add_rows(struct imatrix_watch *k, const struct kn_weight *const *w, int32_t n_w, const float *x,
                    bool has_norm, const float *norm, float eps, int32_t n)
{
    bool have = false;
    for (int32_t j = 0; j < n_w; j++) {
        struct imatrix_entry *t = entry_of(k, w[j]);
        if (!t) continue;
        int rc = 0;
        if (!have)
            rc = has_norm ? fetch_normed(k, x, norm, eps, n, t->n_in, t->name)
                          : fetch(k, x, (size_t)n * (size_t)t->n_in, t->name);
        if (!rc && !have) rc = sum_columns(k, n, t->n_in, t->name);
        if (rc) return rc;
        have = true;
        for (int64_t c = 0; c < t->n_in; c++) t->sum2[c] += k->sum[c];
        t->count[0] += n;
    }
    return 0;
}

/* Rows of k->x: row i of n meets expert ids[i, j] for every j; each: a row is [n_used, n_in], one for every
 * expert. */
static int add_experts(struct imatrix_watch *k, struct imatrix_entry *t, const int32_t *ids, int32_t n,
                       int32_t n_used, bool each)
{
    for (int64_t i = 0; i < (int64_t)n * n_used; i++) {
        if (ids[i] < 0 || ids[i] >= t->n_mat)
            return fail(k, KN_EDEVICE, "an expert that the model has not", t->name);
        double *to = t->sum2 + ids[i] * t->n_in;
        add_squares(to, k->x + (each ? i : i / n_used) * t->n_in, t->n_in);
        t->count[ids[i]]++;
    }
    for (int64_t c = 0; c < t->n_mat * t->n_in; c++)
        if (!isfinite(t->sum2[c])) return fail(k, KN_EDEVICE, "a NaN or Inf in the input", t->name);
    return 0;
}

static int fetch_ids(struct imatrix_watch *k, const int32_t *ids, int32_t n, int32_t n_used, const char *name)
{
    const size_t all = (size_t)n * (size_t)n_used;
    if (!grow(&k->id, &k->id_n, all, sizeof *k->id)) return fail(k, KN_EMEM, "out of memory", name);
    return k->inner->download(k->be, k->id, ids, all * sizeof *ids);
}

/* ---- the operations ---- */

static int watch_linear(struct kn_backend *be, float *out, const struct kn_weight *w, const float *x,
                        int32_t n, bool add)
{
    struct imatrix_watch *k = watch_of(be);
    const int rc = add_rows(k, &w, 1, x, false, NULL, 0, n);
    return rc ? rc : k->inner->linear(be, out, w, x, n, add);
}

static int watch_norm_linear(struct kn_backend *be, float *const *out, const struct kn_weight *const *w,
                             int32_t n_w, const float *x, const float *norm, float eps, int32_t n)
{
    struct imatrix_watch *k = watch_of(be);
    const int rc = add_rows(k, w, n_w, x, norm != NULL, norm, eps, n);
    return rc ? rc : k->inner->norm_linear(be, out, w, n_w, x, norm, eps, n);
}

static int watch_norm_gated(struct kn_backend *be, float *out, const struct kn_weight *gate,
                            const struct kn_weight *up, const float *x, const float *norm, float eps,
                            enum kn_act act, int32_t n)
{
    struct imatrix_watch *k = watch_of(be);
    const struct kn_weight *w[] = {gate, up};
    const int rc = add_rows(k, w, 2, x, norm != NULL, norm, eps, n);
    return rc ? rc : k->inner->norm_gated(be, out, gate, up, x, norm, eps, act, n);
}

static int watch_experts_gated(struct kn_backend *be, float *out, const struct kn_weight *gate,
                               const struct kn_weight *up, const float *x, const float *norm, float eps,
                               enum kn_act act, const int32_t *ids, int32_t n, int32_t n_used)
{
    struct imatrix_watch *k = watch_of(be);
    struct imatrix_entry *t[] = {entry_of(k, gate), entry_of(k, up)}, *any = t[0] ? t[0] : t[1];
    int rc = any ? fetch_normed(k, x, norm, eps, n, any->n_in, any->name) : 0;
    if (!rc && any) rc = fetch_ids(k, ids, n, n_used, any->name);
    for (int j = 0; j < 2 && !rc; j++)
        if (t[j]) rc = add_experts(k, t[j], k->id, n, n_used, false);
    return rc ? rc : k->inner->experts_gated(be, out, gate, up, x, norm, eps, act, ids, n, n_used);
}

static int watch_experts_down(struct kn_backend *be, float *out, const struct kn_weight *w, const float *h,
                              const int32_t *ids, const float *weights, int32_t n, int32_t n_used, bool add)
{
    struct imatrix_watch *k = watch_of(be);
    struct imatrix_entry *t = entry_of(k, w);
    int rc = t ? fetch(k, h, (size_t)n * (size_t)n_used * (size_t)t->n_in, t->name) : 0;
    if (!rc && t) rc = fetch_ids(k, ids, n, n_used, t->name);
    if (!rc && t) rc = add_experts(k, t, k->id, n, n_used, true);
    return rc ? rc : k->inner->experts_down(be, out, w, h, ids, weights, n, n_used, add);
}

/* ---- beginning and end ---- */

/* Every matrix of the model has an entry, and every entry a matrix. */
static int match(struct imatrix_watch *k, const struct model *model, struct imatrix *m, struct err *e)
{
    struct imatrix_entry *t;
    for (int64_t i = 0; i < m->n; i++) {
        bool found = false;
        for (int32_t j = 0; j < model->n_matrix; j++)
            found |= !strcmp(m->entry[i].name, model->matrix[j].name);
        if (!found)
            return err_set(e, ERR_FORMAT, "%s: the importance matrix has it, the model has no such product",
                           m->entry[i].name);
    }
    for (int32_t j = 0; j < model->n_matrix; j++) {
        const struct kn_weight *w = model->matrix[j].w;
        if (imatrix_entry(m, model->matrix[j].name, w->n_in, w->n_mat ? w->n_mat : 1, &t, e)) return -1;
    }
    for (int32_t j = 0; j < model->n_matrix; j++) /* after the last that may move entries */
        k->at[j] = (struct watched){model->matrix[j].w, imatrix_find(m, model->matrix[j].name)};
    k->n = model->n_matrix;
    return 0;
}

int imatrix_watch_new(struct imatrix_watch **out, const struct model *model, struct imatrix *m, struct err *e)
{
    struct imatrix_watch *k = mem_calloc(1, sizeof *k);
    *out = NULL;
    if (k) k->at = mem_calloc((size_t)model->n_matrix + 1, sizeof *k->at);
    if (!k || !k->at) {
        mem_free(k);
        return err_set(e, ERR_IO, "out of memory (to watch a model)");
    }
    k->be = model->be;
    k->inner = kn_op(model->be);
    k->op = *k->inner;
    if (match(k, model, m, e)) {
        mem_free(k->at);
        mem_free(k);
        return -1;
    }
    k->op.linear = watch_linear;
    k->op.norm_linear = watch_norm_linear;
    k->op.norm_gated = watch_norm_gated;
    if (k->op.experts_gated) k->op.experts_gated = watch_experts_gated;
    if (k->op.experts_down) k->op.experts_down = watch_experts_down;
    k->op.record_begin = NULL; /* what is replayed is not seen */
    k->op.record_end = NULL;
    k->op.replay = NULL;
    k->op.record_free = NULL;
    k->on = true;
    ((struct kn_backend_head *)(void *)k->be)->op = &k->op;
    *out = k;
    return 0;
}

void imatrix_watch_stop(struct imatrix_watch *w)
{
    w->on = false;
}

void imatrix_watch_free(struct imatrix_watch *w)
{
    if (!w) return;
    ((struct kn_backend_head *)(void *)w->be)->op = w->inner;
    w->inner->free(w->be, w->device);
    mem_free(w->x);
    mem_free(w->id);
    mem_free(w->sum);
    mem_free(w->at);
    mem_free(w);
}
