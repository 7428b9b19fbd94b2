/* recorder.h - the CPU backend in the clothes of one that records and runs late: operations between
 * record_begin and record_end are kept with their arguments; a replay is queued, and runs when something
 * waits for it (await up to the cycle that is asked for, every other operation all of it). So a cycle that
 * was started early runs after the host has gone on, as on a device, and one that nobody waits for may run
 * long after. */
#ifndef TEST_RECORDER_H
#define TEST_RECORDER_H

#include <stdlib.h>
#include <string.h>
#include "../../../kernels/kernels.h"

enum { RECORDER_CALLS = 512, RECORDER_QUEUE = 8, RECORDER_LAYERS = 8 };

struct recorder_call {
    enum {
        R_EMBED,
        R_TABLE,
        R_LINEAR,
        R_NORM_LINEAR,
        R_GATED,
        R_ROPE,
        R_ATTENTION,
        R_TAP,
        R_PICK,
        R_PLACE,
        R_STAMP,
        R_OFFER,
        R_KEEP,
        R_ACCEPT,
        R_RMS_NORM,
        R_NORM_ADD,
        R_NORM_PAIR,
        R_CLUSTERS,
        R_GATE,
        R_ROUTE,
        R_EXPERTS_GATED,
        R_EXPERTS_DOWN,
        R_DELTA,
        R_SOFTCAP,
        R_FOLLOW,
        R_SETTLE,
        R_GATHER,
        R_CELL,
        R_SPREAD,
        R_CONV,
        R_TOP,
        R_EDGES,
        R_WALK,
        R_CARRY
    } op;
    void *out, *outs[KN_MATRICES];
    const void *a, *b, *c, *w[KN_MATRICES];
    int64_t n, i, j, k;
    float f, g;
    struct kn_rope_store rope[RECORDER_LAYERS]; /* i of them */
    struct kn_attention attention;
    struct kn_pick pick;
    struct kn_conv conv;
    struct kn_edges edges;
    struct kn_follow follow;
    struct kn_offering offering;
    struct kn_accept accept;
    struct kn_route route;
    struct kn_delta delta;
    struct kn_walk walk;
    struct kn_top top;
    struct kn_norm_pair pair;
    struct kn_clusters clusters;
    struct kn_cell cell;
};
struct recording {
    int n;
    struct recorder_call call[RECORDER_CALLS];
};

static struct {
    const struct kn_ops *cpu;
    struct kn_ops op;
    struct recording *now; /* being recorded */
    struct recording *queue[RECORDER_QUEUE];
    int queued;
    int recorded, replayed, stale_at; /* stale_at: a replay to refuse, from 1 */
} recorder;

static int recorder_run(struct kn_backend *be, const struct recorder_call *c)
{
    const struct kn_ops *op = recorder.cpu;
    int32_t n = (int32_t)c->n;
    switch (c->op) {
    case R_EMBED: { /* on a device rows of no token are NaN */
        int rc = 0;
        for (int32_t i = 0; i < n && rc == 0; i++) {
            const struct kn_weight *t = c->a;
            const int32_t *id = (const int32_t *)c->b + i;
            float *row = (float *)c->out + i * t->n_in;
            if (*id >= 0) rc = op->embed(be, row, t, id, 1, c->f);
            for (int64_t k = 0; *id < 0 && k < t->n_in; k++) row[k] = kn_f16_to_f32(0x7e00);
        }
        return rc;
    }
    case R_TABLE: return op->rope_table(be, c->out, c->a, c->c, n, c->b, (int32_t)c->i);
    case R_LINEAR: return op->linear(be, c->out, c->a, c->b, n, c->i);
    case R_NORM_LINEAR:
        return op->norm_linear(be, (float *const *)c->outs, (const struct kn_weight *const *)c->w,
                               (int32_t)c->i, c->a, c->b, c->f, n);
    case R_GATED: return op->norm_gated(be, c->out, c->w[0], c->w[1], c->a, c->b, c->f, (enum kn_act)c->i, n);
    case R_ROPE: { /* the list was the caller's */
        struct kn_rope_store list[RECORDER_LAYERS];
        for (int64_t i = 0; i < c->i; i++) {
            list[i] = c->rope[i];
            list[i].next = i + 1 < c->i ? &list[i + 1] : NULL;
        }
        return op->rope_store(be, list);
    }
    case R_ATTENTION: /* the promise of kn_bound holds, also at a replay */
        if (c->i && c->attention.pos[c->attention.n - 1] >= c->i) return KN_EINVAL;
        return op->attention(be, &c->attention);
    case R_TAP: return op->tap(be, c->out, c->i, c->j, c->a, n, c->k);
    case R_PICK: { /* on a device a history that holds what is no token gives KN_PICK_NAN */
        int rc = op->pick(be, &c->pick);
        for (int32_t i = 0; i < c->pick.n; i++)
            if (c->pick.out[i] < KN_PICK_NAN) c->pick.out[i] = KN_PICK_NAN, rc = 0;
        return rc;
    }
    case R_PLACE: return op->place(be, c->out, c->a, c->b, n);
    case R_STAMP: return op->stamp(be, c->out);
    case R_KEEP: return op->keep(be, c->out, (int32_t)c->i, c->a, c->b, n, c->k);
    case R_OFFER: return op->offer(be, &c->offering);
    case R_ACCEPT: return op->accept(be, &c->accept);
    case R_RMS_NORM: return op->rms_norm(be, c->out, c->a, c->b, n, c->i, c->f);
    case R_NORM_ADD: return op->norm_add(be, c->out, c->a, c->b, c->c, n, c->i, c->f, c->g);
    case R_CLUSTERS: return op->clusters(be, &c->clusters);
    case R_NORM_PAIR: return op->norm_pair(be, &c->pair);
    case R_GATE: return op->gate(be, c->out, c->a, n, c->i, c->j);
    case R_ROUTE: return op->route(be, &c->route);
    case R_EXPERTS_GATED:
        return op->experts_gated(be, c->out, c->w[0], c->w[1], c->a, c->b, c->f, (enum kn_act)c->i, c->c, n,
                                 (int32_t)c->j);
    case R_EXPERTS_DOWN:
        return op->experts_down(be, c->out, c->w[0], c->a, c->b, c->c, n, (int32_t)c->j, c->i);
    case R_DELTA: return op->delta(be, &c->delta);
    case R_SOFTCAP: return op->softcap(be, c->out, c->n, c->f);
    case R_FOLLOW: return op->follow(be, &c->follow);
    case R_SETTLE: return op->settle(be, c->a);
    case R_GATHER: return op->gather(be, c->out, c->a, c->b, n, c->i);
    case R_CELL: return op->cell(be, &c->cell);
    case R_SPREAD: return op->spread(be, c->out, c->i, c->a, c->j, c->b, n);
    case R_CONV: return op->conv(be, &c->conv);
    case R_TOP: return op->top(be, &c->top);
    case R_EDGES: return op->edges(be, &c->edges);
    case R_WALK: return op->walk(be, &c->walk);
    case R_CARRY: return op->carry(be, c->out, c->a, c->b, n);
    }
    return KN_EINVAL;
}

static int recorder_flush(struct kn_backend *be, int n)
{
    int rc = 0;
    for (int k = 0; k < n && rc == 0; k++)
        for (int i = 0; i < recorder.queue[k]->n && rc == 0; i++)
            rc = recorder_run(be, &recorder.queue[k]->call[i]);
    recorder.queued -= n;
    memmove(recorder.queue, recorder.queue + n, (size_t)recorder.queued * sizeof *recorder.queue);
    return rc;
}

static int recorder_do(struct kn_backend *be, const struct recorder_call *c)
{
    if (recorder.now) {
        if (recorder.now->n == RECORDER_CALLS) return KN_EMEM;
        recorder.now->call[recorder.now->n++] = *c;
        return 0;
    }
    int rc = recorder_flush(be, recorder.queued);
    return rc ? rc : recorder_run(be, c);
}

static int r_embed(struct kn_backend *be, float *out, const struct kn_weight *t, const int32_t *ids,
                   int32_t n, float scale)
{
    return recorder_do(
        be, &(struct recorder_call){.op = R_EMBED, .out = out, .a = t, .b = ids, .n = n, .f = scale});
}
static int r_table(struct kn_backend *be, float *out, const int32_t *pos, const int32_t *origin, int32_t n,
                   const double *freq, int32_t n_rot)
{
    return recorder_do(be,
                       &(struct recorder_call){
                           .op = R_TABLE, .out = out, .a = pos, .b = freq, .c = origin, .n = n, .i = n_rot});
}
static int r_linear(struct kn_backend *be, float *out, const struct kn_weight *w, const float *x, int32_t n,
                    bool add)
{
    return recorder_do(be,
                       &(struct recorder_call){.op = R_LINEAR, .out = out, .a = w, .b = x, .n = n, .i = add});
}
static int r_norm_linear(struct kn_backend *be, float *const *out, const struct kn_weight *const *w,
                         int32_t n_w, const float *x, const float *norm, float eps, int32_t n)
{
    struct recorder_call c = {.op = R_NORM_LINEAR, .a = x, .b = norm, .n = n, .i = n_w, .f = eps};
    for (int32_t i = 0; i < n_w; i++) c.outs[i] = out[i], c.w[i] = w[i];
    return recorder_do(be, &c);
}
static int r_gated(struct kn_backend *be, float *out, const struct kn_weight *gate,
                   const struct kn_weight *up, const float *x, const float *norm, float eps, enum kn_act act,
                   int32_t n)
{
    return recorder_do(
        be, &(struct recorder_call){
                .op = R_GATED, .out = out, .w = {gate, up}, .a = x, .b = norm, .f = eps, .i = act, .n = n});
}
static int r_rope(struct kn_backend *be, const struct kn_rope_store *a)
{
    struct recorder_call c = {.op = R_ROPE};
    for (; a; a = a->next) {
        if (c.i == RECORDER_LAYERS) return KN_EMEM;
        c.rope[c.i++] = *a;
    }
    return recorder_do(be, &c);
}
static int r_attention(struct kn_backend *be, const struct kn_attention *a)
{
    const int32_t bound = ((struct kn_backend_head *)be)->kv_bound;
    return recorder_do(be, &(struct recorder_call){.op = R_ATTENTION, .attention = *a, .i = bound});
}
static int r_tap(struct kn_backend *be, float *dst, int64_t stride, int64_t offset, const float *x, int32_t n,
                 int64_t width)
{
    return recorder_do(be,
                       &(struct recorder_call){
                           .op = R_TAP, .out = dst, .a = x, .n = n, .i = stride, .j = offset, .k = width});
}
static int r_pick(struct kn_backend *be, const struct kn_pick *a)
{
    return recorder_do(be, &(struct recorder_call){.op = R_PICK, .pick = *a});
}
static int r_place(struct kn_backend *be, int32_t *history, const int32_t *pos, const int32_t *ids, int32_t n)
{
    return recorder_do(be,
                       &(struct recorder_call){.op = R_PLACE, .out = history, .a = pos, .b = ids, .n = n});
}
static int r_stamp(struct kn_backend *be, uint64_t *at)
{
    return recorder_do(be, &(struct recorder_call){.op = R_STAMP, .out = at});
}
static int r_offer(struct kn_backend *be, const struct kn_offering *a)
{
    return recorder_do(be, &(struct recorder_call){.op = R_OFFER, .offering = *a});
}
static int r_keep(struct kn_backend *be, float *dst, int32_t slots, const int32_t *pos, const float *x,
                  int32_t n, int64_t width)
{
    return recorder_do(be, &(struct recorder_call){
                               .op = R_KEEP, .out = dst, .a = pos, .b = x, .n = n, .i = slots, .k = width});
}
static int r_accept(struct kn_backend *be, const struct kn_accept *a)
{
    return recorder_do(be, &(struct recorder_call){.op = R_ACCEPT, .accept = *a});
}
static int r_rms_norm(struct kn_backend *be, float *out, const float *x, const float *weight, int32_t n,
                      int64_t width, float eps)
{
    return recorder_do(be,
                       &(struct recorder_call){
                           .op = R_RMS_NORM, .out = out, .a = x, .b = weight, .n = n, .i = width, .f = eps});
}
static int r_norm_add(struct kn_backend *be, float *out, const float *x, const float *y, const float *weight,
                      int32_t n, int64_t width, float eps, float scale)
{
    return recorder_do(be, &(struct recorder_call){.op = R_NORM_ADD,
                                                   .out = out,
                                                   .a = x,
                                                   .b = y,
                                                   .c = weight,
                                                   .n = n,
                                                   .i = width,
                                                   .f = eps,
                                                   .g = scale});
}
static int r_clusters(struct kn_backend *be, const struct kn_clusters *a)
{
    return recorder_do(be, &(struct recorder_call){.op = R_CLUSTERS, .clusters = *a});
}
static int r_norm_pair(struct kn_backend *be, const struct kn_norm_pair *a)
{
    return recorder_do(be, &(struct recorder_call){.op = R_NORM_PAIR, .pair = *a});
}
static int r_gate(struct kn_backend *be, float *x, const float *g, int32_t n, int64_t width, int64_t g_width)
{
    return recorder_do(
        be, &(struct recorder_call){.op = R_GATE, .out = x, .a = g, .n = n, .i = width, .j = g_width});
}
static int r_route(struct kn_backend *be, const struct kn_route *a)
{
    return recorder_do(be, &(struct recorder_call){.op = R_ROUTE, .route = *a});
}
static int r_experts_gated(struct kn_backend *be, float *out, const struct kn_weight *gate,
                           const struct kn_weight *up, const float *x, const float *norm, float eps,
                           enum kn_act act, const int32_t *ids, int32_t n, int32_t n_used)
{
    return recorder_do(be, &(struct recorder_call){.op = R_EXPERTS_GATED,
                                                   .out = out,
                                                   .w = {gate, up},
                                                   .a = x,
                                                   .b = norm,
                                                   .c = ids,
                                                   .f = eps,
                                                   .i = act,
                                                   .n = n,
                                                   .j = n_used});
}
static int r_experts_down(struct kn_backend *be, float *out, const struct kn_weight *w, const float *h,
                          const int32_t *ids, const float *weights, int32_t n, int32_t n_used, bool add)
{
    return recorder_do(be, &(struct recorder_call){.op = R_EXPERTS_DOWN,
                                                   .out = out,
                                                   .w = {w},
                                                   .a = h,
                                                   .b = ids,
                                                   .c = weights,
                                                   .n = n,
                                                   .j = n_used,
                                                   .i = add});
}
static int r_delta(struct kn_backend *be, const struct kn_delta *a)
{
    return recorder_do(be, &(struct recorder_call){.op = R_DELTA, .delta = *a});
}
static int r_softcap(struct kn_backend *be, float *x, int64_t count, float cap)
{
    return recorder_do(be, &(struct recorder_call){.op = R_SOFTCAP, .out = x, .n = count, .f = cap});
}
static int r_follow(struct kn_backend *be, const struct kn_follow *a)
{
    return recorder_do(be, &(struct recorder_call){.op = R_FOLLOW, .follow = *a});
}
static int r_settle(struct kn_backend *be, const struct kn_settle *a)
{
    return recorder_do(be, &(struct recorder_call){.op = R_SETTLE, .a = a}); /* the list is the session's */
}
static int r_gather(struct kn_backend *be, float *dst, const float *src, const int32_t *rows, int32_t n,
                    int64_t width)
{
    return recorder_do(
        be, &(struct recorder_call){.op = R_GATHER, .out = dst, .a = src, .b = rows, .n = n, .i = width});
}
static int r_cell(struct kn_backend *be, const struct kn_cell *a)
{
    return recorder_do(be, &(struct recorder_call){.op = R_CELL, .cell = *a});
}
static int r_spread(struct kn_backend *be, float *out, int64_t n_out, const float *x, int64_t n_x,
                    const int32_t *from, int32_t n)
{
    return recorder_do(be, &(struct recorder_call){
                               .op = R_SPREAD, .out = out, .a = x, .b = from, .n = n, .i = n_out, .j = n_x});
}
static int r_conv(struct kn_backend *be, const struct kn_conv *a)
{
    return recorder_do(be, &(struct recorder_call){.op = R_CONV, .conv = *a});
}
static int r_top(struct kn_backend *be, const struct kn_top *a)
{
    return recorder_do(be, &(struct recorder_call){.op = R_TOP, .top = *a});
}

static int r_edges(struct kn_backend *be, const struct kn_edges *a)
{
    return recorder_do(be, &(struct recorder_call){.op = R_EDGES, .edges = *a});
}
static int r_walk(struct kn_backend *be, const struct kn_walk *a)
{
    return recorder_do(be, &(struct recorder_call){.op = R_WALK, .walk = *a});
}
static int r_carry(struct kn_backend *be, const struct kn_kv *to, const struct kn_kv *from,
                   const int32_t *pos, int32_t n)
{
    return recorder_do(be, &(struct recorder_call){
                               .op = R_CARRY, .out = (void *)(uintptr_t)to, .a = from, .b = pos, .n = n});
}
static int r_await(struct kn_backend *be, const uint32_t *number, uint32_t want)
{
    while (*number != want && recorder.queued) {
        int rc = recorder_flush(be, 1);
        if (rc) return rc;
    }
    return recorder.cpu->await(be, number, want);
}

/* Memory that moves while something is recorded would not be seen again at a replay. */
static int r_upload(struct kn_backend *be, void *dst, const void *host, size_t bytes)
{
    int rc = recorder.now ? KN_EINVAL : recorder_flush(be, recorder.queued);
    return rc ? rc : recorder.cpu->upload(be, dst, host, bytes);
}
static int r_download(struct kn_backend *be, void *host, const void *src, size_t bytes)
{
    int rc = recorder.now ? KN_EINVAL : recorder_flush(be, recorder.queued);
    return rc ? rc : recorder.cpu->download(be, host, src, bytes);
}
static int r_copy(struct kn_backend *be, void *dst, const void *src, size_t bytes)
{
    int rc = recorder.now ? KN_EINVAL : recorder_flush(be, recorder.queued);
    return rc ? rc : recorder.cpu->copy(be, dst, src, bytes);
}
static void r_free(struct kn_backend *be, void *p)
{
    (void)recorder_flush(be, recorder.queued);
    recorder.cpu->free(be, p);
}

static int r_begin(struct kn_backend *be)
{
    (void)be;
    recorder.now = calloc(1, sizeof *recorder.now);
    return recorder.now ? 0 : KN_EMEM;
}
static int r_end(struct kn_backend *be, void **out)
{
    (void)be;
    *out = recorder.now;
    recorder.now = NULL;
    recorder.recorded++;
    return 0;
}
static int r_replay(struct kn_backend *be, void *recording)
{
    if (++recorder.replayed == recorder.stale_at) return KN_ESTALE;
    if (recorder.queued == RECORDER_QUEUE) {
        int rc = recorder_flush(be, 1);
        if (rc) return rc;
    }
    recorder.queue[recorder.queued++] = recording;
    return 0;
}
static void r_record_free(struct kn_backend *be, void *recording)
{
    (void)recorder_flush(be, recorder.queued);
    free(recording);
}

/* From here on be records; back to what it was with recorder_off. */
static void recorder_on(struct kn_backend *be)
{
    struct kn_backend_head *h = (struct kn_backend_head *)be;
    memset(&recorder, 0, sizeof recorder);
    recorder.cpu = h->op;
    recorder.op = *h->op;
    recorder.op.embed = r_embed;
    recorder.op.rope_table = r_table;
    recorder.op.linear = r_linear;
    recorder.op.norm_linear = r_norm_linear;
    recorder.op.norm_gated = r_gated;
    recorder.op.rope_store = r_rope;
    recorder.op.attention = r_attention;
    recorder.op.tap = r_tap;
    recorder.op.pick = r_pick;
    recorder.op.place = r_place;
    recorder.op.stamp = r_stamp;
    recorder.op.offer = r_offer;
    recorder.op.keep = r_keep;
    recorder.op.accept = r_accept;
    recorder.op.await = r_await;
    recorder.op.upload = r_upload;
    recorder.op.download = r_download;
    recorder.op.copy = r_copy;
    recorder.op.free = r_free;
    recorder.op.rms_norm = r_rms_norm;
    recorder.op.norm_add = r_norm_add;
    recorder.op.norm_pair = r_norm_pair;
    recorder.op.clusters = r_clusters;
    recorder.op.gate = r_gate;
    recorder.op.route = r_route;
    recorder.op.experts_gated = r_experts_gated;
    recorder.op.experts_down = r_experts_down;
    recorder.op.delta = r_delta;
    recorder.op.softcap = r_softcap;
    recorder.op.follow = r_follow;
    recorder.op.settle = r_settle;
    recorder.op.gather = r_gather;
    recorder.op.cell = r_cell;
    recorder.op.spread = r_spread;
    recorder.op.conv = r_conv;
    recorder.op.top = r_top;
    recorder.op.edges = r_edges;
    recorder.op.walk = r_walk;
    if (recorder.cpu->carry) recorder.op.carry = r_carry;
    recorder.op.record_begin = r_begin;
    recorder.op.record_end = r_end;
    recorder.op.replay = r_replay;
    recorder.op.record_free = r_record_free;
    h->op = &recorder.op;
}

static void recorder_off(struct kn_backend *be)
{
    ((struct kn_backend_head *)be)->op = recorder.cpu;
}

#endif
