/* attention.c - attention: who sees what, and the tiles and groups shared among threads.
 *
 * Up to CPU_ATTN_ROWS rows: threads share (kv head, group of keys), so a single row at a long context has
 * work for all of them; a wave of groups is computed, then merged in order. More rows: threads share (tile,
 * kv head). The order of merges in a row is the same in both. */
#include "cpu.h"
#include "rows.h"

#include <math.h>
#include <string.h>

#define WAVE 16           /* groups computed before they are merged */
#define SHARE (1ll << 18) /* multiply-adds from which several threads are woken */

struct plan {
    const struct kn_attention *a;
    const struct cpu_rows *rows;
    int32_t n_rep, head_dim, n_kv;
    size_t part;   /* floats of one query row's partial result */
    float *thread; /* scratch of the threads */
    size_t per_thread;
    float *total, *wave; /* few rows: [n_kv, n * n_rep, part], [WAVE, the same] */
};

static size_t round16(size_t floats)
{
    return (floats + 15) & ~(size_t)15;
}

/* A thread's floats: what attn_group wants, a partial result and a total. */
static size_t thread_floats(int32_t n, int32_t n_rep, int32_t head_dim)
{
    size_t n_q = (size_t)n * (size_t)n_rep;
    return round16(cpu_attn_scratch(n, n_rep, head_dim) + 2 * n_q * cpu_attn_part(head_dim));
}

static size_t scratch_floats(int threads, int32_t n, int32_t n_rep, int32_t n_kv, int32_t head_dim)
{
    int32_t tile = n < CPU_ATTN_ROWS ? n : CPU_ATTN_ROWS;
    size_t n_q = (size_t)tile * (size_t)n_rep * (size_t)n_kv;
    return (size_t)threads * thread_floats(tile, n_rep, head_dim) +
           (n <= CPU_ATTN_ROWS ? (WAVE + 1) * n_q * cpu_attn_part(head_dim) : 0);
}

size_t cpu_attention_scratch(const struct cpu_backend *be, int32_t n, int32_t n_head, int32_t head_dim)
{
    /* How the heads are grouped is not known here: one kv head wants the most. More rows than a tile want no
     * waves, but fewer rows may come too. */
    int32_t tile = n < CPU_ATTN_ROWS ? n : CPU_ATTN_ROWS;
    return scratch_floats(be->threads, tile, n_head, 1, head_dim) * sizeof(float);
}

/* The positions that row i sees. */
static void visible(const struct kn_attention *a, int32_t i, int32_t *lo, int32_t *hi)
{
    int64_t pos = a->pos[i], last = a->pos[a->n - 1]; /* of no use to a tree, which is causal */
    int64_t from = a->window ? pos - a->window + 1 : 0, to = a->causal ? pos + 1 : last + 1;
    if (!a->causal && a->window && to > pos + a->window) to = pos + a->window;
    if (a->first && from < *a->first) from = *a->first;
    from = from < 0 ? 0 : from;
    *lo = (int32_t)from;
    *hi = (int32_t)(to > from ? to : from);
}

static struct cpu_attn_tile make_tile(const struct plan *p, int32_t row, int32_t n_rows, int32_t kv_head,
                                      int32_t *lo, int32_t *hi)
{
    const struct kn_attention *a = p->a;
    for (int32_t i = 0; i < n_rows; i++) visible(a, row + i, lo + i, hi + i);
    return (struct cpu_attn_tile){
        .q = a->q + ((int64_t)row * a->n_head + kv_head * p->n_rep) * p->head_dim,
        .n_rows = n_rows,
        .n_rep = p->n_rep,
        .n_head = a->n_head,
        .head_dim = p->head_dim,
        .scale = a->scale,
        .kv = a->kv,
        .kv_head = kv_head,
        .lo = lo,
        .hi = hi,
        .tree = a->tree,
        .tail = a->tail,
        .row = row,
    };
}

/* Groups [*first, *end) hold what the tile sees; returns the number of keys from
 * the first seen to the last. */
static int64_t group_range(const struct cpu_attn_tile *t, int64_t *first, int64_t *end)
{
    int64_t lo = INT64_MAX, hi = 0;
    for (int32_t i = 0; i < t->n_rows; i++)
        if (t->lo[i] < t->hi[i]) {
            lo = t->lo[i] < lo ? t->lo[i] : lo;
            hi = t->hi[i] > hi ? t->hi[i] : hi;
        }
    *first = *end = 0;
    if (hi == 0) return 0;
    *first = lo / CPU_ATTN_GROUP;
    *end = (hi + CPU_ATTN_GROUP - 1) / CPU_ATTN_GROUP;
    return hi - lo;
}

static void finish(const struct plan *p, int32_t row, int32_t n_rows, int32_t kv_head, const float *total)
{
    const struct kn_attention *a = p->a;
    for (int32_t r = 0; r < n_rows * p->n_rep; r++) {
        const int32_t h = kv_head * p->n_rep + r % p->n_rep;
        const int64_t head = (int64_t)(row + r / p->n_rep) * a->n_head + h;
        p->rows->attn_finish(a->kv, a->out + head * p->head_dim, total + (size_t)r * p->part,
                             a->sinks ? a->sinks + h : NULL);
    }
}

static void clear(float *total, int32_t n_q, size_t part)
{
    memset(total, 0, (size_t)n_q * part * sizeof(float));
    for (int32_t r = 0; r < n_q; r++) total[(size_t)r * part] = -INFINITY;
}

static float *thread_scratch(const struct plan *p, int thread)
{
    return p->thread + (size_t)thread * p->per_thread;
}

/* A wave of groups of few rows: computed by (group, kv head), then merged a row's head at a time, in order.
 */
struct wave {
    const struct plan *p;
    const struct cpu_attn_tile *base;
    int64_t first, n; /* groups */
};

static void wave_group(void *ctx, int64_t u, int thread)
{
    const struct wave *w = ctx;
    const struct plan *p = w->p;
    struct cpu_attn_tile t = *w->base;
    const size_t head = (size_t)t.n_rows * (size_t)p->n_rep * p->part;
    t.kv_head = (int32_t)(u % p->n_kv);
    t.q += (int64_t)t.kv_head * p->n_rep * p->head_dim;
    p->rows->attn_group(&t, w->first + u / p->n_kv, p->wave + (size_t)u * head, thread_scratch(p, thread));
}

static void wave_merge(const struct wave *w, int64_t r)
{
    const struct plan *p = w->p;
    const size_t head = (size_t)w->base->n_rows * (size_t)p->n_rep * p->part;
    for (int64_t g = 0; g < w->n; g++)
        p->rows->attn_merge(p->total + (size_t)r * p->part,
                            p->wave + (size_t)g * (size_t)p->n_kv * head + (size_t)r * p->part, p->head_dim);
}

/* All that is seen lies in one group: a head is finished where it is computed. */
static void only_group(void *ctx, int64_t kv_head, int thread)
{
    const struct wave *w = ctx;
    const struct plan *p = w->p;
    struct cpu_attn_tile t = *w->base;
    float *part = thread_scratch(p, thread), *scratch = part + (size_t)t.n_rows * (size_t)p->n_rep * p->part;
    t.kv_head = (int32_t)kv_head;
    t.q += kv_head * p->n_rep * p->head_dim;
    p->rows->attn_group(&t, w->first, part, scratch);
    finish(p, 0, t.n_rows, t.kv_head, part);
}

static void few_rows(const struct plan *p, struct cpu_backend *be)
{
    const struct kn_attention *a = p->a;
    const int32_t n_q = a->n * p->n_rep, n_kv = p->n_kv;
    const size_t head = (size_t)n_q * p->part;
    int32_t lo[CPU_ATTN_ROWS], hi[CPU_ATTN_ROWS];
    int64_t first, end;
    const struct cpu_attn_tile base = make_tile(p, 0, a->n, 0, lo, hi);
    const int64_t keys = group_range(&base, &first, &end);
    const bool share = keys * n_q * n_kv * p->head_dim >= SHARE;
    if (end - first == 1) {
        struct wave w = {p, &base, first, 1};
        if (share)
            cpu_share_near(be, n_kv, only_group, &w);
        else
            for (int64_t k = 0; k < n_kv; k++) only_group(&w, k, 0);
        return;
    }
    clear(p->total, n_q * n_kv, p->part);
    for (int64_t g0 = first; g0 < end; g0 += WAVE) {
        struct wave w = {p, &base, g0, end - g0 < WAVE ? end - g0 : WAVE};
        if (share)
            pool_run(be->pool, w.n * n_kv, wave_group, &w);
        else
            for (int64_t u = 0; u < w.n * n_kv; u++) wave_group(&w, u, 0);
        /* merging is a small part: here, not where another hand-over costs as much */
        for (int32_t r = 0; r < n_kv * n_q; r++) wave_merge(&w, r);
    }
    for (int32_t k = 0; k < n_kv; k++) finish(p, 0, a->n, k, p->total + (size_t)k * head);
}

/* A tile of many rows and one kv head: all of its groups, in order. */
static void tile_head(void *ctx, int64_t u, int thread)
{
    const struct plan *p = ctx;
    const struct kn_attention *a = p->a;
    const int32_t n_tiles = (a->n + CPU_ATTN_ROWS - 1) / CPU_ATTN_ROWS;
    float *part = thread_scratch(p, thread);
    float *total = part + (size_t)CPU_ATTN_ROWS * (size_t)p->n_rep * p->part;
    float *scratch = total + (size_t)CPU_ATTN_ROWS * (size_t)p->n_rep * p->part;
    int32_t row = (n_tiles - 1 - (int32_t)u / p->n_kv) * CPU_ATTN_ROWS; /* the longest first */
    int32_t kv_head = (int32_t)u % p->n_kv;
    int32_t n_rows = a->n - row < CPU_ATTN_ROWS ? a->n - row : CPU_ATTN_ROWS, n_q = n_rows * p->n_rep;
    int32_t lo[CPU_ATTN_ROWS], hi[CPU_ATTN_ROWS];
    int64_t first, end;
    struct cpu_attn_tile t = make_tile(p, row, n_rows, kv_head, lo, hi);
    group_range(&t, &first, &end);
    clear(total, n_q, p->part);
    for (int64_t g = first; g < end; g++) {
        p->rows->attn_group(&t, g, part, scratch);
        for (int32_t r = 0; r < n_q; r++)
            p->rows->attn_merge(total + (size_t)r * p->part, part + (size_t)r * p->part, p->head_dim);
    }
    finish(p, row, n_rows, kv_head, total);
}

static void many_rows(struct plan *p, struct pool *pool)
{
    const int32_t n_tiles = (p->a->n + CPU_ATTN_ROWS - 1) / CPU_ATTN_ROWS;
    pool_run(pool, (int64_t)n_tiles * p->n_kv, tile_head, p);
}

/* Keys that a row should see but that the ring no longer holds would be read as others: refuse. */
static int check_ring(struct cpu_backend *be, const struct kn_attention *a)
{
    for (int32_t i = 0; i < a->n; i++) {
        int32_t lo, hi;
        if (a->pos[i] < 0 || a->pos[i] == INT32_MAX)
            return cpu_fail(be, KN_EINVAL, "attention: position %d in row %d", a->pos[i], i);
        visible(a, i, &lo, &hi);
        if (lo < hi && !kn_kv_holds(a->kv, lo, a->tree ? a->tree->pos[0] - 1 : a->pos[a->n - 1]))
            return cpu_fail(
                be, KN_EINVAL,
                "attention: row at %d sees position %d, which a ring of %d at position %d no longer holds",
                a->pos[i], lo, kn_kv_positions(a->kv), a->pos[a->n - 1]);
    }
    return 0;
}

int cpu_attention(struct kn_backend *kb, const struct kn_attention *a)
{
    struct cpu_backend *be = cpu_of(kb);
    int rc = cpu_check_kv(be, "attention", a->kv);
    if (rc) return rc;
    if (a->n < 1 || a->n_head < 1 || a->n_head % a->kv->n_head_kv || a->window < 0)
        return cpu_fail(be, KN_EINVAL, "attention: %d rows of %d heads over %d KV heads, window %d", a->n,
                        a->n_head, a->kv->n_head_kv, a->window);
    if (a->tree && (!a->causal || !a->tail || a->n > KN_CYCLE_ROWS || a->tail->head_dim != a->kv->head_dim ||
                    a->tail->n_head_kv != a->kv->n_head_kv || a->tail->type.k != a->kv->type.k ||
                    a->tail->type.v != a->kv->type.v))
        return cpu_fail(be, KN_EINVAL,
                        "attention: %d rows of a tree, not causal or without a tail like the cache", a->n);
    rc = check_ring(be, a);
    if (rc) return rc;
    if (a->sparse && a->sinks) return cpu_fail(be, KN_EINVAL, "attention: blocks of a prompt, with sinks");
    if (a->sparse) return cpu_attention_sparse(be, a);
    struct plan p = {.a = a, .rows = be->isa->rows, .n_kv = a->kv->n_head_kv, .head_dim = a->kv->head_dim};
    int32_t tile = a->n < CPU_ATTN_ROWS ? a->n : CPU_ATTN_ROWS;
    p.n_rep = a->n_head / p.n_kv;
    p.part = cpu_attn_part(p.head_dim);
    p.thread = be->scratch_rows;
    p.per_thread = thread_floats(tile, p.n_rep, p.head_dim);
    p.total = p.thread + (size_t)be->threads * p.per_thread;
    p.wave = p.total + (size_t)tile * (size_t)a->n_head * p.part;
    size_t need = scratch_floats(be->threads, a->n, p.n_rep, p.n_kv, p.head_dim) * sizeof(float);
    if (need > be->scratch_rows_bytes)
        return cpu_fail(be, KN_EINVAL,
                        "attention: %d rows of %d heads of %d want %zu bytes of scratch, %zu are reserved",
                        a->n, a->n_head, p.head_dim, need, be->scratch_rows_bytes);
    if (a->n <= CPU_ATTN_ROWS)
        few_rows(&p, be);
    else
        many_rows(&p, be->pool);
    return 0;
}
