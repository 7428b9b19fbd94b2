/* ops_watch.c - see ops_watch.h. */
#include "ops_watch.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "../../common/base/mem.h"

static struct watch *watch_of(struct kn_backend *be)
{
    return (struct watch *)(void *)(uintptr_t)kn_op(be);
}

static int fail(struct watch *k, int code, const char *what)
{
    struct kn_backend_head *head = (struct kn_backend_head *)(void *)k->be;
    snprintf(head->message, sizeof head->message, "times of operations: %s", what);
    return code;
}

/* Behind an operation that returned rc: its entry and a stamp. */
static int __attribute__((format(printf, 5, 6)))
done(struct watch *k, int rc, const char *op, double bytes, const char *fmt, ...)
{
    if (rc || !k->open || !k->each) return rc;
    if (k->n == WATCH_MOST)
        return fail(k, KN_EINVAL, "too many operations in a pass (expected 8192 at most)");
    struct watch_entry *e = &k->entry[k->n];
    va_list ap;
    va_start(ap, fmt);
    snprintf(e->op, sizeof e->op, "%s", op);
    vsnprintf(e->shape, sizeof e->shape, fmt, ap);
    va_end(ap);
    e->bytes = bytes;
    return k->inner->stamp(k->be, &k->at[1 + WATCH_EMPTY + k->n++]);
}

/* ---- weights ---- */

static double bytes_of(const struct kn_weight *w)
{
    const double mats = w->n_mat ? w->n_mat : 1;
    return mats * (double)w->n_out * (double)kn_row_bytes(w->type, w->n_in);
}

static const char *name_of(uint32_t type)
{
    const struct kn_type_info *t = kn_type_info(type);
    return t ? t->name : "?";
}

/* "Q4_K [8192, 5376]" behind what is there. */
static void put_weight(char *text, size_t room, const struct kn_weight *w)
{
    const size_t have = strlen(text);
    snprintf(text + have, room - have, "%s%s [%lld, %lld]", have ? ", " : "", name_of(w->type),
             (long long)w->n_out, (long long)w->n_in);
}

/* Of n_mat matrices those that n rows with used independent choices each are expected to meet. */
static double met(const struct kn_weight *w, int32_t n, int32_t used)
{
    return 1 - pow(1 - (double)used / w->n_mat, n);
}

/* ---- the operations ---- */

static int t_embed(struct kn_backend *be, float *out, const struct kn_weight *table, const int32_t *ids,
                   int32_t n, float scale)
{
    struct watch *k = watch_of(be);
    return done(k, k->inner->embed(be, out, table, ids, n, scale), "embed", 0, "%s [%lld]",
                name_of(table->type), (long long)table->n_in);
}

static int t_rope_table(struct kn_backend *be, float *out, const int32_t *pos, const int32_t *origin,
                        int32_t n, const double *freq, int32_t n_rot)
{
    struct watch *k = watch_of(be);
    return done(k, k->inner->rope_table(be, out, pos, origin, n, freq, n_rot), "rope_table", 0, "[%d]",
                n_rot);
}

static int t_rms_norm(struct kn_backend *be, float *out, const float *x, const float *weight, int32_t n,
                      int64_t width, float eps)
{
    struct watch *k = watch_of(be);
    return done(k, k->inner->rms_norm(be, out, x, weight, n, width, eps), "rms_norm", 0, "[%lld]",
                (long long)width);
}

static int t_linear(struct kn_backend *be, float *out, const struct kn_weight *w, const float *x, int32_t n,
                    bool add)
{
    struct watch *k = watch_of(be);
    char shape[160] = "";
    put_weight(shape, sizeof shape, w);
    return done(k, k->inner->linear(be, out, w, x, n, add), "linear", bytes_of(w), "%s", shape);
}

static int t_norm_linear(struct kn_backend *be, float *const *out, const struct kn_weight *const *w,
                         int32_t n_w, const float *x, const float *norm, float eps, int32_t n)
{
    struct watch *k = watch_of(be);
    char shape[160] = "";
    double bytes = 0;
    for (int32_t j = 0; j < n_w; j++) {
        put_weight(shape, sizeof shape, w[j]);
        bytes += bytes_of(w[j]);
    }
    return done(k, k->inner->norm_linear(be, out, w, n_w, x, norm, eps, n), "norm_linear", bytes, "%s",
                shape);
}

static int t_norm_gated(struct kn_backend *be, float *out, const struct kn_weight *gate,
                        const struct kn_weight *up, const float *x, const float *norm, float eps,
                        enum kn_act act, int32_t n)
{
    struct watch *k = watch_of(be);
    char shape[160] = "";
    put_weight(shape, sizeof shape, gate);
    put_weight(shape, sizeof shape, up);
    return done(k, k->inner->norm_gated(be, out, gate, up, x, norm, eps, act, n), "norm_gated",
                bytes_of(gate) + bytes_of(up), "%s", shape);
}

static int t_rope_store(struct kn_backend *be, const struct kn_rope_store *a)
{
    struct watch *k = watch_of(be);
    int layers = 0;
    for (const struct kn_rope_store *y = a; y; y = y->next) layers++;
    return done(k, k->inner->rope_store(be, a), "rope_store", 0, "%d and %d heads of %d%s",
                a->q ? a->n_head : 0, a->kv->n_head_kv, a->kv->head_dim,
                layers > 1 ? ", several layers" : "");
}

static int t_attention(struct kn_backend *be, const struct kn_attention *a)
{
    struct watch *k = watch_of(be);
    char window[32] = "";
    if (a->window) snprintf(window, sizeof window, ", window %d", a->window);
    return done(k, k->inner->attention(be, a), "attention", 0, "%d heads over %d of %d%s", a->n_head,
                a->kv->n_head_kv, a->kv->head_dim, window);
}

static int t_attend(struct kn_backend *be, const struct kn_rope_store *s, const struct kn_attention *a)
{
    struct watch *k = watch_of(be);
    char window[32] = "";
    if (a->window) snprintf(window, sizeof window, ", window %d", a->window);
    return done(k, k->inner->attend(be, s, a), "attend", 0, "%d heads over %d of %d%s", a->n_head,
                a->kv->n_head_kv, a->kv->head_dim, window);
}

static int t_tap(struct kn_backend *be, float *dst, int64_t stride, int64_t offset, const float *x, int32_t n,
                 int64_t width)
{
    struct watch *k = watch_of(be);
    return done(k, k->inner->tap(be, dst, stride, offset, x, n, width), "tap", 0, "[%lld]", (long long)width);
}

static int t_norm_add(struct kn_backend *be, float *out, const float *x, const float *y, const float *weight,
                      int32_t n, int64_t width, float eps, float scale)
{
    struct watch *k = watch_of(be);
    return done(k, k->inner->norm_add(be, out, x, y, weight, n, width, eps, scale), "norm_add", 0, "[%lld]",
                (long long)width);
}

static int t_norm_pair(struct kn_backend *be, const struct kn_norm_pair *a)
{
    struct watch *k = watch_of(be);
    return done(k, k->inner->norm_pair(be, a), "norm_pair", 0, "[%lld]", (long long)a->width);
}

static int t_clusters(struct kn_backend *be, const struct kn_clusters *a)
{
    struct watch *k = watch_of(be);
    return done(k, k->inner->clusters(be, a), "clusters", 0, "[%d] in %d", a->n_vocab, a->n_clusters);
}

static int t_gate(struct kn_backend *be, float *x, const float *g, int32_t n, int64_t width, int64_t g_width)
{
    struct watch *k = watch_of(be);
    return done(k, k->inner->gate(be, x, g, n, width, g_width), "gate", 0, "[%lld] by [%lld]",
                (long long)width, (long long)g_width);
}

static int t_route(struct kn_backend *be, const struct kn_route *a)
{
    struct watch *k = watch_of(be);
    return done(k, k->inner->route(be, a), "route", 0, "%d of %d", a->n_used, a->n_expert);
}

static int t_experts_gated(struct kn_backend *be, float *out, const struct kn_weight *gate,
                           const struct kn_weight *up, const float *x, const float *norm, float eps,
                           enum kn_act act, const int32_t *ids, int32_t n, int32_t n_used)
{
    struct watch *k = watch_of(be);
    char shape[160] = "";
    put_weight(shape, sizeof shape, gate);
    put_weight(shape, sizeof shape, up);
    return done(k, k->inner->experts_gated(be, out, gate, up, x, norm, eps, act, ids, n, n_used),
                "experts_gated", (bytes_of(gate) + bytes_of(up)) * met(gate, n, n_used), "%d of %d, %s",
                n_used, gate->n_mat, shape);
}

static int t_experts_down(struct kn_backend *be, float *out, const struct kn_weight *w, const float *h,
                          const int32_t *ids, const float *weights, int32_t n, int32_t n_used, bool add)
{
    struct watch *k = watch_of(be);
    char shape[160] = "";
    put_weight(shape, sizeof shape, w);
    return done(k, k->inner->experts_down(be, out, w, h, ids, weights, n, n_used, add), "experts_down",
                bytes_of(w) * met(w, n, n_used), "%d of %d, %s", n_used, w->n_mat, shape);
}

static int t_mixture(struct kn_backend *be, const struct kn_mixture *a)
{
    struct watch *k = watch_of(be);
    const int32_t n = a->route.n, used = a->route.n_used;
    char shape[160] = "";
    double bytes = (bytes_of(a->gate) + bytes_of(a->up) + bytes_of(a->down)) * met(a->gate, n, used);
    put_weight(shape, sizeof shape, a->gate);
    put_weight(shape, sizeof shape, a->down);
    if (a->router) bytes += bytes_of(a->router);
    for (int i = 0; i < 3; i++)
        if (a->shared[i]) bytes += bytes_of(a->shared[i]);
    if (a->shared_gate) bytes += bytes_of(a->shared_gate);
    return done(k, k->inner->mixture(be, a), "mixture", bytes, "%d of %d%s, %s", used, a->route.n_expert,
                a->shared[0] ? " and a shared one" : "", shape);
}

static int t_delta(struct kn_backend *be, const struct kn_delta *a)
{
    struct watch *k = watch_of(be);
    return done(k, k->inner->delta(be, a), "delta", 0, "%d heads of %d over %d of %d", a->n_v, a->d_v, a->n_k,
                a->d_k);
}

static int t_norm_join(struct kn_backend *be, float *out, const float *x, const float *y,
                       const float *y_weight, const float *z, const float *z_weight, const float *weight,
                       int32_t n, int64_t width, float eps, float scale)
{
    struct watch *k = watch_of(be);
    return done(k, k->inner->norm_join(be, out, x, y, y_weight, z, z_weight, weight, n, width, eps, scale),
                "norm_join", 0, "[%lld]", (long long)width);
}

static int t_delta_linear(struct kn_backend *be, const struct kn_delta *a, float *out,
                          const struct kn_weight *w)
{
    struct watch *k = watch_of(be);
    char shape[160] = "";
    put_weight(shape, sizeof shape, w);
    return done(k, k->inner->delta_linear(be, a, out, w), "delta_linear", bytes_of(w),
                "%d heads of %d over %d of %d, %s", a->n_v, a->d_v, a->n_k, a->d_k, shape);
}

static int t_gate_linear(struct kn_backend *be, float *out, const struct kn_weight *w, float *x,
                         const float *g, int32_t n)
{
    struct watch *k = watch_of(be);
    char shape[160] = "";
    put_weight(shape, sizeof shape, w);
    return done(k, k->inner->gate_linear(be, out, w, x, g, n), "gate_linear", bytes_of(w), "%s", shape);
}

static int t_softcap(struct kn_backend *be, float *x, int64_t count, float cap)
{
    struct watch *k = watch_of(be);
    return done(k, k->inner->softcap(be, x, count, cap), "softcap", 0, "[%lld]", (long long)count);
}

static int t_cell(struct kn_backend *be, const struct kn_cell *a)
{
    struct watch *k = watch_of(be);
    return done(k, k->inner->cell(be, a), "cell", 0, "[%d]", a->width);
}

static int t_spread(struct kn_backend *be, float *out, int64_t n_out, const float *x, int64_t n_x,
                    const int32_t *from, int32_t n)
{
    struct watch *k = watch_of(be);
    return done(k, k->inner->spread(be, out, n_out, x, n_x, from, n), "spread", 0, "[%lld] of [%lld]",
                (long long)n_x, (long long)n_out);
}

static int t_pick(struct kn_backend *be, const struct kn_pick *a)
{
    struct watch *k = watch_of(be);
    return done(k, k->inner->pick(be, a), "pick", 0, "[%d]", a->n_vocab);
}

static int t_conv(struct kn_backend *be, const struct kn_conv *a)
{
    struct watch *k = watch_of(be);
    return done(k, k->inner->conv(be, a), "conv", 0, "%d taps of [%d]%s%s", a->taps, a->width,
                a->norm ? ", normed" : "", a->add ? ", added" : "");
}

static int t_top(struct kn_backend *be, const struct kn_top *a)
{
    struct watch *k = watch_of(be);
    return done(k, k->inner->top(be, a), "top", 0, "%d of [%d]", a->k, a->n_vocab);
}

static int t_edges(struct kn_backend *be, const struct kn_edges *a)
{
    struct watch *k = watch_of(be);
    return done(k, k->inner->edges(be, a), "edges", 0, "%d x %d, rank %lld", a->k, a->k,
                (long long)a->before->n_in);
}

static int t_walk(struct kn_backend *be, const struct kn_walk *a)
{
    struct watch *k = watch_of(be);
    return done(k, k->inner->walk(be, a), "walk", 0, "%d", a->k);
}

/* ---- passes ---- */

int watch_begin(struct watch *k)
{
    int rc = 0;
    k->open = true;
    k->n = 0;
    for (int i = 0; i < (k->each ? 1 + WATCH_EMPTY : 1) && rc == 0; i++)
        rc = k->inner->stamp(k->be, &k->at[i]);
    return rc;
}

int watch_end(struct watch *k)
{
    k->open = false;
    return k->each ? 0 : k->inner->stamp(k->be, &k->at[1]);
}

static int t_record_begin(struct kn_backend *be)
{
    struct watch *k = watch_of(be);
    const int rc = k->inner->record_begin(be);
    return rc ? rc : watch_begin(k);
}

static int t_record_end(struct kn_backend *be, void **recording)
{
    struct watch *k = watch_of(be);
    const int bad = watch_end(k), rc = k->inner->record_end(be, recording);
    if (!bad || rc) return rc;
    k->inner->record_free(be, *recording);
    *recording = NULL;
    return bad;
}

int watch_times(struct watch *k, double *empty, double *ns)
{
    const size_t count = k->each ? (size_t)(1 + WATCH_EMPTY + k->n) : 2;
    uint64_t *at = mem_alloc(count * sizeof *at);
    if (!at) return fail(k, KN_EMEM, "out of memory");
    const int rc = k->inner->download(k->be, at, k->at, count * sizeof *at);
    const uint64_t *from = k->each ? at + WATCH_EMPTY : at;
    *empty = k->each ? (double)(at[WATCH_EMPTY] - at[0]) / WATCH_EMPTY : 0;
    for (int32_t i = 0; i < (k->each ? k->n : 1); i++) ns[i] = (double)(from[i + 1] - from[i]);
    mem_free(at);
    return rc;
}

int watch_open(struct watch *k, struct kn_backend *be)
{
    const struct kn_ops *in = kn_op(be);
    *k = (struct watch){.op = *in, .inner = in, .be = be};
    k->entry = mem_calloc(WATCH_MOST, sizeof *k->entry);
    if (!k->entry) return fail(k, KN_EMEM, "out of memory");
    k->at = in->alloc(be, (1 + WATCH_EMPTY + WATCH_MOST) * sizeof *k->at);
    if (!k->at) {
        mem_free(k->entry);
        return KN_EMEM; /* the backend has said so */
    }
    struct kn_ops *t = &k->op;
    t->embed = t_embed;
    t->rope_table = t_rope_table;
    t->rms_norm = t_rms_norm;
    t->linear = t_linear;
    t->norm_linear = t_norm_linear;
    t->norm_gated = t_norm_gated;
    t->rope_store = t_rope_store;
    t->attention = t_attention;
    if (in->attend) t->attend = t_attend;
    t->tap = t_tap;
    if (in->norm_add) t->norm_add = t_norm_add;
    if (in->norm_pair) t->norm_pair = t_norm_pair;
    if (in->clusters) t->clusters = t_clusters;
    if (in->norm_join) t->norm_join = t_norm_join;
    if (in->gate) t->gate = t_gate;
    if (in->route) t->route = t_route;
    if (in->experts_gated) t->experts_gated = t_experts_gated;
    if (in->experts_down) t->experts_down = t_experts_down;
    if (in->mixture) t->mixture = t_mixture;
    if (in->delta) t->delta = t_delta;
    if (in->delta_linear) t->delta_linear = t_delta_linear;
    if (in->gate_linear) t->gate_linear = t_gate_linear;
    if (in->softcap) t->softcap = t_softcap;
    t->pick = t_pick;
    t->cell = t_cell;
    t->spread = t_spread;
    if (t->conv) t->conv = t_conv;
    if (t->top) t->top = t_top;
    if (t->edges) t->edges = t_edges;
    if (t->walk) t->walk = t_walk;
    if (in->replay) {
        t->record_begin = t_record_begin;
        t->record_end = t_record_end;
    }
    ((struct kn_backend_head *)(void *)be)->op = t;
    return 0;
}

void watch_close(struct watch *k)
{
    if (!k->inner) return;
    ((struct kn_backend_head *)(void *)k->be)->op = k->inner;
    k->inner->free(k->be, k->at);
    mem_free(k->entry);
    k->inner = NULL;
}
