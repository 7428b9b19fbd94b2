/* experts.c - mixtures of experts: the router, and the products of rows with the matrices that each of them
 * chose.
 *
 * A *pair* is a row and one of its experts. Pairs are sorted by expert, so that a panel of an expert's matrix
 * is read once a call for all of its rows, in tiles as mm.h has them. A row is normalised and rounded once;
 * its words are then dealt into every tile that it is part of (activations of a tile are arrays [.., T] of
 * 4-byte words, so word w of token t stands at w * T + t). What a pair gets is a chain of its own, whoever
 * shares the tile; a row's pairs are added in the order of its list.
 *
 * Rows come in blocks of as many pairs as the scratch holds, which experts_load provides. */
#include "mm.h"
#include "rows.h"

#include <stdlib.h>
#include <string.h>

#define PAIRS_MAX 4096                   /* pairs a block */
#define RESULTS (4 * PAIRS_MAX)          /* of panels and pairs, of a thread, on their way to a sum */
#define PAIRS_MIN 64                     /* room for as many at least */
#define SCRATCH_BYTES ((size_t)64 << 20) /* room for more where this many bytes suffice */
#define ACT_CACHED ((size_t)512 << 10)   /* as mm.c */
#define SMALL_MACS 100e3                 /* as mm.c: fewer stay on this thread */

struct group { /* the pairs of an expert */
    int32_t expert, tile, n_tiles, n;
};

struct tile {
    int32_t first, width, used; /* in the sorted order */
    int32_t slot;               /* of its activations; width 1: none, it reads the row's own */
};

struct experts {
    struct cpu_backend *be;
    const char *name;
    const struct kn_weight *w[2];
    int n_w; /* 2: gate and up */
    enum kn_act act;
    const float *x, *norm; /* gated: [n, n_in]; down: [n, n_used, n_in] */
    float eps;
    const int32_t *ids;
    const float *weights;
    float *out;
    int32_t n, n_used, per_row; /* per_row: pairs that share a row of x */
    bool add;
    /* derived */
    struct part {
        const struct mm_type *type;
        const mm_kernel *kernel;
        size_t panel, matrix, act; /* bytes a panel, a matrix, a token */
        int64_t steps;             /* places where the kernel prefetches */
    } part[2];
    int64_t panels; /* a matrix */
    /* in scratch, for the block at hand */
    int32_t pairs, n_groups, n_tiles, chunk;
    int32_t *start, *order; /* [n_mat + 1], [pairs] */
    struct group *group;
    struct tile *tile;
    uint8_t *row[MM_ACT_COUNT], *tiled[MM_ACT_COUNT];
    float *normed, *result; /* [threads][n_in], [threads][RESULTS, lanes] */
};

static size_t align64(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

/* ---- the router ---- */

static void route_row(void *ctx, int64_t i, int thread)
{
    const struct kn_route *a = *(const struct kn_route *const *)ctx;
    const struct cpu_rows *rows = ((const struct cpu_rows *const *)ctx)[1];
    (void)thread;
    rows->route(a, (int32_t)i);
}

int cpu_route(struct kn_backend *kb, const struct kn_route *a)
{
    struct cpu_backend *be = cpu_of(kb);
    if (a->n < 1 || a->n_used < 1 || a->n_used > a->n_expert)
        return cpu_fail(be, KN_EINVAL, "route: %d rows to %d of %d experts", a->n, a->n_used, a->n_expert);
    const void *ctx[2] = {a, be->isa->rows};
    cpu_share(be, a->n, (int64_t)a->n * a->n_expert >= CPU_SHARE / 8, route_row, ctx);
    return 0;
}

/* ---- scratch ---- */

/* Slots of tiles: a group of 3 or 7 left over takes one more. */
static size_t slots_of(size_t pairs)
{
    return pairs + pairs / 3;
}

static size_t scratch_need(const struct cpu_backend *be, size_t pairs, int64_t n_in, int32_t n_mat,
                           const bool want[MM_ACT_COUNT])
{
    size_t need = align64(((size_t)n_mat + 1) * 4) + align64(pairs * 4) +
                  align64(pairs * sizeof(struct group)) + align64(pairs * sizeof(struct tile)) +
                  (size_t)be->threads * (align64((size_t)n_in * 4) + RESULTS * MM_LANES_MAX * sizeof(float));
    for (int a = 0; a < MM_ACT_COUNT; a++)
        if (want[a]) need += align64((pairs + slots_of(pairs)) * mm_act_bytes((enum mm_act)a, n_in)) + 64;
    return need;
}

int cpu_experts_reserve(struct cpu_backend *be, const struct kn_weight *w)
{
    bool want[MM_ACT_COUNT] = {false};
    want[mm_type_of(w->type)->act] = true;
    size_t pairs = PAIRS_MAX;
    while (pairs > PAIRS_MIN && scratch_need(be, pairs, w->n_in, w->n_mat, want) > SCRATCH_BYTES) pairs /= 2;
    const size_t need = scratch_need(be, pairs, w->n_in, w->n_mat, want);
    if (need <= be->scratch_experts_bytes) return 0;
    void *p = NULL;
    if (posix_memalign(&p, 64, need))
        return cpu_fail(be, KN_EMEM, "no memory for %zu bytes of experts' scratch", need);
    free(be->scratch_experts);
    be->scratch_experts = p;
    be->scratch_experts_bytes = need;
    return 0;
}

static void *carve(uint8_t **at, size_t bytes)
{
    void *p = *at;
    *at += align64(bytes);
    return p;
}

/* Divide the scratch; returns the rows that a block may have, 0 if not one. */
static int32_t divide_scratch(struct experts *e)
{
    struct cpu_backend *be = e->be;
    const int64_t n_in = e->w[0]->n_in;
    bool want[MM_ACT_COUNT] = {false};
    for (int j = 0; j < e->n_w; j++) want[e->part[j].type->act] = true;
    int64_t rows = PAIRS_MAX / e->n_used < e->n ? PAIRS_MAX / e->n_used : e->n;
    while (rows > 0 && scratch_need(be, (size_t)(rows * e->n_used), n_in, e->w[0]->n_mat, want) >
                           be->scratch_experts_bytes)
        rows = rows > 16 ? rows - rows / 8 : rows - 1;
    if (rows < 1) return 0;
    const size_t pairs = (size_t)(rows * e->n_used);
    uint8_t *at = be->scratch_experts;
    e->start = carve(&at, ((size_t)e->w[0]->n_mat + 1) * 4);
    e->order = carve(&at, pairs * 4);
    e->group = carve(&at, pairs * sizeof *e->group);
    e->tile = carve(&at, pairs * sizeof *e->tile);
    e->normed = carve(&at, (size_t)be->threads * align64((size_t)n_in * 4));
    e->result = carve(&at, (size_t)be->threads * RESULTS * MM_LANES_MAX * sizeof(float));
    for (int a = 0; a < MM_ACT_COUNT; a++)
        if (want[a]) {
            e->row[a] = carve(&at, pairs * mm_act_bytes((enum mm_act)a, n_in));
            e->tiled[a] = carve(&at, slots_of(pairs) * mm_act_bytes((enum mm_act)a, n_in));
        }
    return (int32_t)rows;
}

/* ---- the plan of a block ---- */

/* Pairs sorted by expert, in their own order within one. */
static void sort_pairs(struct experts *e, const int32_t *ids)
{
    const int32_t n_mat = e->w[0]->n_mat;
    memset(e->start, 0, ((size_t)n_mat + 1) * sizeof *e->start);
    for (int32_t p = 0; p < e->pairs; p++) e->start[ids[p] + 1]++;
    for (int32_t x = 0; x < n_mat; x++) e->start[x + 1] += e->start[x];
    for (int32_t p = 0; p < e->pairs; p++) e->order[e->start[ids[p]]++] = p;
}

/* Tiles as mm.c cuts them: 3 and 7 are filled up by a token of zeros. */
static void plan_block(struct experts *e, const int32_t *ids)
{
    const int32_t T = e->be->isa->mm->tile;
    int32_t slot = 0;
    sort_pairs(e, ids);
    e->n_groups = e->n_tiles = 0;
    for (int32_t first = 0, end; first < e->pairs; first = end) {
        const int32_t expert = ids[e->order[first]];
        end = e->start[expert];
        struct group *g = &e->group[e->n_groups++];
        *g = (struct group){.expert = expert, .tile = e->n_tiles, .n = end - first};
        for (int32_t at = first; at < end;) {
            int32_t left = end - at, width = T;
            if (left < T && (left == 3 || left == 7)) left++;
            while (width > left) width /= 2;
            const int32_t used = end - at < width ? end - at : width;
            e->tile[e->n_tiles++] = (struct tile){at, width, used, slot};
            if (width > 1) slot += width;
            at += used;
        }
        g->n_tiles = e->n_tiles - g->tile;
    }
}

static int32_t row_of(const struct experts *e, int32_t pair)
{
    return pair / e->per_row;
}

/* ---- activations ---- */

static void prepare_row(void *ctx, int64_t i, int thread)
{
    const struct experts *e = ctx;
    const int64_t n_in = e->w[0]->n_in;
    const float *x = e->x + i * n_in;
    if (e->n_w == 2) {
        float *y = (float *)((uint8_t *)e->normed + (size_t)thread * align64((size_t)n_in * 4));
        e->be->isa->rows->rms_norm(y, x, e->norm, n_in, e->eps);
        x = y;
    }
    for (int a = 0; a < MM_ACT_COUNT; a++)
        if (e->row[a])
            e->be->isa->mm->prepare(
                (enum mm_act)a, e->row[a] + (size_t)i * mm_act_bytes((enum mm_act)a, n_in), x, n_in, 0, 1);
}

static void deal_tile(void *ctx, int64_t i, int thread)
{
    const struct experts *e = ctx;
    const struct tile *t = &e->tile[i];
    (void)thread;
    if (t->width == 1) return;
    for (int a = 0; a < MM_ACT_COUNT; a++) {
        const size_t bytes = mm_act_bytes((enum mm_act)a, e->w[0]->n_in);
        if (!e->row[a]) continue;
        uint8_t *dst = e->tiled[a] + (size_t)t->slot * bytes;
        for (int32_t k = 0; k < t->width; k++) {
            int at = k, T = t->width;
            uint8_t *tile = mm_beside(e->be->isa->mm, (enum mm_act)a, dst, e->w[0]->n_in, &at, &T);
            mm_act_deal((enum mm_act)a, tile,
                        k < t->used ? e->row[a] + (size_t)row_of(e, e->order[t->first + k]) * bytes : NULL,
                        e->w[0]->n_in, at, T);
        }
    }
}

/* ---- products ---- */

static void multiply(const struct experts *e, int j, const struct group *g, int32_t tile, int64_t panel,
                     float *result)
{
    const struct part *p = &e->part[j];
    const struct tile *t = &e->tile[g->tile + tile];
    const enum mm_act a = p->type->act;
    struct mm_call c = {.panel = (const uint8_t *)e->w[j]->packed + (size_t)g->expert * p->matrix +
                                 (size_t)panel * p->panel,
                        .n_in = e->w[j]->n_in,
                        .out = result,
                        .stride = e->be->isa->mm->lanes};
    if (t->width == 1)
        c.act = e->row[a] + (size_t)row_of(e, e->order[t->first]) * p->act;
    else
        c.act = e->tiled[a] + (size_t)t->slot * p->act;
    if (g->n > 2 &&
        (size_t)g->n * p->act <= ACT_CACHED) { /* see mm.c: each tile asks for its share of the next panel */
        const int64_t all = p->steps * g->n_tiles;
        c.ahead_step = (int32_t)(((int64_t)(p->panel / 64) + all - 1) / all);
        c.ahead = c.panel + p->panel + (size_t)tile * (size_t)p->steps * (size_t)c.ahead_step * 64;
    }
    p->kernel[t->width == 8 ? 3 : t->width == 4 ? 2 : t->width - 1](&c);
}

/* A panel times a tile: to out, or for a sum over experts to result[pair, lanes]. */
static void panel_tile(const struct experts *e, const struct group *g, int32_t tile, int64_t panel,
                       float *result)
{
    const int lanes = e->be->isa->mm->lanes;
    const struct tile *t = &e->tile[g->tile + tile];
    float a[MM_TILE_MAX * MM_LANES_MAX], b[MM_TILE_MAX * MM_LANES_MAX];
    multiply(e, 0, g, tile, panel, a);
    if (e->n_w == 1) {
        for (int32_t k = 0; k < t->used; k++)
            memcpy(result + (size_t)e->order[t->first + k] * (size_t)lanes, a + k * lanes,
                   (size_t)lanes * sizeof *a);
        return;
    }
    multiply(e, 1, g, tile, panel, b);
    e->be->isa->rows->gated(a, a, b, (int64_t)t->used * lanes, e->act);
    const int64_t n_out = e->w[0]->n_out, first = panel * lanes,
                  n = n_out - first < lanes ? n_out - first : lanes;
    for (int32_t k = 0; k < t->used; k++)
        memcpy(e->out + (int64_t)e->order[t->first + k] * n_out + first, a + k * lanes,
               (size_t)n * sizeof *a);
}

/* Panels [first, end) of an expert times its tiles; many tiles meet four panels at a time, as in mm.c. */
static void run_group(const struct experts *e, const struct group *g, int64_t first, int64_t end,
                      float *result)
{
    const size_t stride = (size_t)e->pairs * (size_t)e->be->isa->mm->lanes;
    const int64_t step = (size_t)g->n * e->part[0].act <= ACT_CACHED ? 1 : 4;
    for (int64_t i = first; i < end; i += step)
        for (int32_t t = 0; t < g->n_tiles; t++)
            for (int64_t k = i; k < end && k < i + step; k++)
                panel_tile(e, g, t, k, result ? result + (size_t)(k - first) * stride : NULL);
}

static int64_t chunk_end(const struct experts *e, int64_t chunk)
{
    const int64_t end = (chunk + 1) * e->chunk;
    return end < e->panels ? end : e->panels;
}

/* Gate and up: an item is a chunk of an expert's panels. */
static void gated_item(void *ctx, int64_t item, int thread)
{
    const struct experts *e = ctx;
    const int64_t chunks = (e->panels + e->chunk - 1) / e->chunk, chunk = item % chunks;
    (void)thread;
    run_group(e, &e->group[item / chunks], chunk * e->chunk, chunk_end(e, chunk), NULL);
}

/* Down: an item is a chunk of panels of all experts, and the rows' sums of them. */
static void down_item(void *ctx, int64_t chunk, int thread)
{
    const struct experts *e = ctx;
    const int lanes = e->be->isa->mm->lanes;
    const int64_t first = chunk * e->chunk, end = chunk_end(e, chunk), n_out = e->w[0]->n_out;
    float *result = e->result + (size_t)thread * RESULTS * MM_LANES_MAX;
    for (int32_t g = 0; g < e->n_groups; g++) run_group(e, &e->group[g], first, end, result);
    for (int64_t k = first; k < end; k++, result += (size_t)e->pairs * (size_t)lanes) {
        const int64_t left = n_out - k * lanes, n = left < lanes ? left : lanes;
        for (int64_t p = 0; p < e->pairs; p += e->n_used)
            e->be->isa->rows->weigh(e->out + p / e->n_used * n_out + k * lanes, result + p * lanes,
                                    e->weights + p, e->n_used, lanes, (int32_t)n, e->add);
    }
}

static void run(struct experts *e, bool several, int64_t n, void (*fn)(void *, int64_t, int))
{
    cpu_share(e->be, n, several, fn, e);
}

/* Items of a few panels: many enough for every thread to have its share, whatever the groups' sizes. */
static void run_block(struct experts *e)
{
    const double macs = (double)e->pairs * (double)e->w[0]->n_out * (double)e->w[0]->n_in * e->n_w;
    const bool several = macs >= SMALL_MACS;
    const int64_t rows = e->pairs / e->per_row, panels = e->panels * (e->n_w == 2 ? e->n_groups : 1);
    int64_t chunk = panels / ((int64_t)e->be->threads * (e->n_w == 2 ? 32 : 16));
    if (e->n_w == 1 && chunk > RESULTS / e->pairs) chunk = RESULTS / e->pairs;
    if (e->n_w == 1 && chunk > 8) chunk = 8;
    if (chunk > e->panels) chunk = e->panels;
    e->chunk = chunk < 1 ? 1 : (int32_t)chunk;
    run(e, several && rows * e->w[0]->n_in >= CPU_SHARE / 4, rows, prepare_row);
    if (e->n_tiles < e->pairs)
        run(e, several && rows * e->w[0]->n_in >= CPU_SHARE / 4, e->n_tiles, deal_tile);
    const int64_t chunks = (e->panels + e->chunk - 1) / e->chunk;
    if (e->n_w == 2)
        run(e, several, chunks * e->n_groups, gated_item);
    else
        run(e, several, chunks, down_item);
}

static int check(const struct experts *e)
{
    struct cpu_backend *be = e->be;
    const struct kn_weight *a = e->w[0], *b = e->w[e->n_w - 1];
    for (int j = 0; j < e->n_w; j++)
        if (!e->w[j]->packed || e->w[j]->n_mat < 1 || !mm_type_of(e->w[j]->type))
            return cpu_fail(be, KN_EINVAL, "%s: a weight that experts_load did not load", e->name);
    if (a->n_in != b->n_in || a->n_out != b->n_out || a->n_mat != b->n_mat)
        return cpu_fail(be, KN_EINVAL, "%s: unequal shapes [%d, %lld, %lld] and [%d, %lld, %lld]", e->name,
                        a->n_mat, (long long)a->n_out, (long long)a->n_in, b->n_mat, (long long)b->n_out,
                        (long long)b->n_in);
    if (e->n < 1 || e->n_used < 1)
        return cpu_fail(be, KN_EINVAL, "%s: %d rows of %d experts", e->name, e->n, e->n_used);
    if (e->n_used > PAIRS_MIN)
        return cpu_fail(be, KN_ETYPE, "%s: %d experts a row (at most %d)", e->name, e->n_used, PAIRS_MIN);
    for (int64_t p = 0; p < (int64_t)e->n * e->n_used; p++)
        if (e->ids[p] < 0 || e->ids[p] >= a->n_mat)
            return cpu_fail(be, KN_EINVAL, "%s: expert %d in row %lld (expected 0 to %d)", e->name, e->ids[p],
                            (long long)(p / e->n_used), a->n_mat - 1);
    return 0;
}

static int experts_run(struct experts *e)
{
    const struct cpu_mm *mm = e->be->isa->mm;
    const int err = check(e);
    if (err) return err;
    const int64_t n_in = e->w[0]->n_in;
    e->panels = (e->w[0]->n_out + mm->lanes - 1) / mm->lanes;
    for (int j = 0; j < e->n_w; j++) {
        struct part *p = &e->part[j];
        p->type = mm_type_of(e->w[j]->type);
        p->kernel = mm->kernel[mm_type_index(e->w[j]->type)];
        p->panel = mm_panel_bytes(p->type, n_in, mm->lanes);
        p->matrix = (size_t)e->panels * p->panel;
        p->act = mm_act_bytes(p->type->act, n_in);
        const int64_t per = p->type->act == MM_ACT_Q256 ? 64 : p->type->act == MM_ACT_Q32 ? 32 : 8;
        p->steps = (n_in + per - 1) / per;
    }
    const int32_t rows = divide_scratch(e), all = e->n;
    if (!rows)
        return cpu_fail(e->be, KN_EINVAL,
                        "%s: a row of %d experts of %lld values does not fit %zu bytes of scratch", e->name,
                        e->n_used, (long long)n_in, e->be->scratch_experts_bytes);
    const int64_t x_row = n_in * (e->n_used / e->per_row),
                  out_row = e->w[0]->n_out * (e->n_w == 2 ? e->n_used : 1);
    for (int32_t i = 0; i < all; i += rows) {
        struct experts b = *e;
        b.pairs = (all - i < rows ? all - i : rows) * e->n_used;
        b.x += i * x_row;
        b.out += i * out_row;
        b.ids += (int64_t)i * e->n_used;
        if (b.weights) b.weights += (int64_t)i * e->n_used;
        plan_block(&b, b.ids);
        run_block(&b);
    }
    return 0;
}

int cpu_experts_gated(struct kn_backend *kb, float *out, const struct kn_weight *gate,
                      const struct kn_weight *up, const float *x, const float *norm, float eps,
                      enum kn_act act, const int32_t *ids, int32_t n, int32_t n_used)
{
    struct experts e = {.be = cpu_of(kb),
                        .name = "experts_gated",
                        .w = {gate, up},
                        .n_w = 2,
                        .act = act,
                        .x = x,
                        .norm = norm,
                        .eps = eps,
                        .ids = ids,
                        .out = out,
                        .n = n,
                        .n_used = n_used,
                        .per_row = n_used};
    return experts_run(&e);
}

int cpu_experts_down(struct kn_backend *kb, float *out, const struct kn_weight *w, const float *h,
                     const int32_t *ids, const float *weights, int32_t n, int32_t n_used, bool add)
{
    struct experts e = {.be = cpu_of(kb),
                        .name = "experts_down",
                        .w = {w},
                        .n_w = 1,
                        .x = h,
                        .ids = ids,
                        .weights = weights,
                        .out = out,
                        .n = n,
                        .n_used = n_used,
                        .per_row = 1,
                        .add = add};
    return experts_run(&e);
}
