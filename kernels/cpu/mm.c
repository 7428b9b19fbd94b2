/* mm.c - matrix products: shapes, scratch, threads. The arithmetic is in mm_<isa>.c.
 *
 * First the rows are normalised and rounded, each once and shared by all matrices of the call; then the
 * panels of all matrices are dealt out, a stretch a thread. A panel meets every tile of tokens while it is in
 * the cache, so weights come from memory once a call whatever the number of rows. */
#include "mm.h"
#include "rows.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define WIDTH_MAX KN_MATRICES

struct product {
    struct cpu_backend *be;
    const struct kn_weight *w[WIDTH_MAX];
    float *out[WIDTH_MAX];
    int32_t n_w, n;
    const float *x, *norm;
    float eps;
    bool has_norm, add, gated; /* gated: w[0] is the gate, w[1] the up, out[0] the result */
    enum kn_act act;
    /* derived */
    uint8_t *prepared[MM_ACT_COUNT]; /* NULL: no matrix asks for it */
    uint8_t *normed;                 /* [threads][n_in] */
    int32_t n_tiles, full_tiles, rest[3];
    struct job {
        const struct mm_type *type;
        const mm_kernel *kernel; /* by width */
        size_t panel, act;       /* bytes a panel, bytes a token */
        int32_t steps, ahead;    /* places where a kernel prefetches, lines at each */
        int64_t panel_end;       /* cumulated number of panels */
    } job[WIDTH_MAX];
    int n_jobs, threads;
    bool panel_by_panel;
};

struct tile {
    int32_t first, width, used;
};

size_t mm_act_bytes(enum mm_act a, int64_t n_in)
{
    const size_t n = (size_t)n_in;
    if (a == MM_ACT_F32) return (n + 1) / 2 * 8;
    if (a == MM_ACT_Q32) return n + n / 32 * 12;
    return n + n / 16 + n / 4 + n / 256 * 8;
}

/* n bytes of a token, in units of 4 or 8 that those of the others stand between. */
static void deal_units(uint8_t *tile, const uint8_t *row, size_t n, size_t unit, int t, int T)
{
    tile += unit * (size_t)t;
    for (size_t i = 0; i < n; i += unit, tile += unit * (size_t)T) {
        if (!row)
            memset(tile, 0, unit);
        else if (unit == 8)
            memcpy(tile, row + i, 8);
        else
            memcpy(tile, row + i, 4);
    }
}

void mm_act_deal(enum mm_act a, uint8_t *tile, const uint8_t *row, int64_t n_in, int t, int T)
{
    const size_t n = (size_t)n_in, all = mm_act_bytes(a, n_in);
    if (a != MM_ACT_Q256) {
        deal_units(tile, row, all, 4, t, T);
        return;
    }
    const size_t end[] = {0, n, n + n / 16, n + n / 16 + n / 4, all};
    for (int i = 0; i < 4; i++) /* q, s32, n16, d and wide */
        deal_units(tile + end[i] * (size_t)T, row ? row + end[i] : NULL, end[i + 1] - end[i], i % 2 ? 4 : 8,
                   t, T);
}

static inline void prefetch_write(const void *p)
{
#if defined(__x86_64__)
    __asm__ volatile("prefetchw %0"
                     :
                     : "m"(*(const char *)p)); /* processors without it take it for nothing */
#else
    __builtin_prefetch(p, 1);
#endif
}

static size_t align64(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

/* Rows past the last whole tile go into tiles of powers of two; 3 and 7 are filled up by one row of zeros,
 * which costs less than another pass. */
static void plan_tiles(struct product *p)
{
    const int32_t T = p->be->isa->mm->tile;
    int32_t left = p->n % T, k = 0;
    p->full_tiles = p->n / T;
    memset(p->rest, 0, sizeof p->rest);
    if (left == 3 || left == 7) left++;
    for (int32_t width = T; width >= 1; width /= 2)
        for (; left >= width; left -= width) p->rest[k++] = width;
    p->n_tiles = p->full_tiles + k;
}

static struct tile tile_at(const struct product *p, int32_t i)
{
    const int32_t T = p->be->isa->mm->tile;
    if (i < p->full_tiles) return (struct tile){i * T, T, T};
    struct tile t = {p->full_tiles * T, 0, 0};
    for (int32_t k = 0;; k++) {
        t.width = p->rest[k];
        t.used = p->n - t.first < t.width ? p->n - t.first : t.width;
        if (k == i - p->full_tiles) return t;
        t.first += t.width;
    }
}

/* Room for the rows and one more that fills a tile; a single row is prepared by every thread for itself. */
static size_t prepared_bytes(const struct cpu_backend *be, int32_t n, enum mm_act a, int64_t n_in)
{
    const size_t many = align64(((size_t)n + 1) * mm_act_bytes(a, n_in));
    const size_t each = (size_t)be->threads * align64(mm_act_bytes(a, n_in));
    return many > each ? many : each;
}

static size_t scratch_need(const struct cpu_backend *be, int32_t n, int64_t n_in,
                           const bool want[MM_ACT_COUNT])
{
    size_t need = (size_t)be->threads * align64((size_t)n_in * 4);
    for (int a = 0; a < MM_ACT_COUNT; a++)
        if (want[a]) need += prepared_bytes(be, n, (enum mm_act)a, n_in);
    return need;
}

int cpu_mm_reserve(struct cpu_backend *be, int32_t n, int64_t n_in)
{
    const bool all[MM_ACT_COUNT] = {true, true, true};
    if (n < 1 || n_in < 1 || n_in > INT32_MAX)
        return cpu_fail(be, KN_EINVAL, "scratch for %d rows of %lld values", n, (long long)n_in);
    const size_t need = scratch_need(be, n, n_in, all);
    if (need <= be->scratch_bytes) return 0;
    void *p = NULL;
    if (posix_memalign(&p, 64, need))
        return cpu_fail(be, KN_EMEM, "no memory for %zu bytes of scratch", need);
    memset(p, 0, need);
    free(be->scratch);
    be->scratch = p;
    be->scratch_bytes = need;
    return 0;
}

/* Normalise (where asked) and round the rows of one tile slot: slot is a token index, those past n are
 * filling. */
static void prepare_row(const struct product *p, int32_t slot, float *normed, bool but_q256)
{
    const struct cpu_mm *mm = p->be->isa->mm;
    const int64_t n_in = p->w[0]->n_in;
    int32_t k = slot / mm->tile;
    struct tile t;
    if (k > p->full_tiles) k = p->full_tiles;
    do t = tile_at(p, k++);
    while (slot >= t.first + t.width);
    const float *x = slot < p->n ? p->x + (int64_t)slot * n_in : NULL;
    if (x && p->has_norm) {
        p->be->isa->rows->rms_norm(normed, x, p->norm, n_in, p->eps);
        x = normed;
    }
    for (int i = 0; i < MM_ACT_COUNT; i++) {
        const enum mm_act a = (enum mm_act)i;
        int at = slot - t.first, T = t.width;
        if (!p->prepared[a] || (but_q256 && a == MM_ACT_Q256)) continue;
        uint8_t *tile = p->prepared[a] + (size_t)t.first * mm_act_bytes(a, n_in);
        tile = mm_beside(mm, a, tile, n_in, &at, &T);
        mm->prepare(a, tile, x, n_in, at, T);
    }
}

/* Blocks [first, end) of a tile of the widest width, norm and all, where the instruction set has that. */
static void prepare_q256(const struct product *p, const struct tile *t, int64_t first, int64_t end)
{
    const int64_t n_in = p->w[0]->n_in;
    struct mm_rows r = {.scaled = p->has_norm, .norm = p->norm, .first = first, .end = end};
    for (int32_t i = 0; i < t->used; i++) {
        r.x[i] = p->x + (t->first + i) * n_in;
        if (r.scaled) r.scale[i] = p->be->isa->rows->rms_scale(r.x[i], n_in, p->eps);
    }
    p->be->isa->mm->prepare_q256(
        p->prepared[MM_ACT_Q256] + (size_t)t->first * mm_act_bytes(MM_ACT_Q256, n_in), &r, n_in);
}

static int width_log2(int32_t width)
{
    return width == 8 ? 3 : width == 4 ? 2 : width - 1;
}

/* out[T, lanes], a token every stride floats, = (or +=) a panel of w[j] times a tile. Each tile prefetches
 * its share of the next panel. */
static void multiply(const struct product *p, int j, int64_t panel, int32_t tile, const struct tile *t,
                     float *out, int64_t stride, bool add)
{
    const struct job *job = &p->job[j];
    struct mm_call c = {.panel = (const uint8_t *)p->w[j]->packed + (size_t)panel * job->panel,
                        .act = p->prepared[job->type->act] + (size_t)t->first * job->act,
                        .n_in = p->w[j]->n_in,
                        .out = out,
                        .stride = stride,
                        .add = add,
                        .ahead_step = job->ahead};
    if (job->ahead)
        c.ahead = c.panel + job->panel + (size_t)tile * (size_t)job->steps * (size_t)job->ahead * 64;
    job->kernel[width_log2(t->width)](&c);
}

/* out[first row of the tile, first row of the panel] of [n, n_out] = (or +=) result [T, lanes]: what is there
 * of both. */
static void store(const struct product *p, int j, int64_t panel, const struct tile *t, const float *result)
{
    const int lanes = p->be->isa->mm->lanes;
    const int64_t n_out = p->w[j]->n_out, first = panel * lanes,
                  rows = n_out - first < lanes ? n_out - first : lanes;
    float *out = p->out[j] + (int64_t)t->first * n_out + first;
    for (int32_t i = 0; i < t->used; i++, out += n_out, result += lanes) {
        if (p->add)
            for (int64_t l = 0; l < rows; l++) out[l] += result[l];
        else if (rows == 16)
            memcpy(out, result, 16 * sizeof *out); /* a move, not a call */
        else
            for (int64_t l = 0; l < rows; l++) out[l] = result[l];
    }
}

/* Ask for the lines that a panel and tile will write while the product is still being computed: of a long
 * head's logits no line is in a cache (docs/speed/cpu.md). */
static void prefetch_out(const struct product *p, int j, int64_t panel, const struct tile *t)
{
    const int64_t n_out = p->w[j]->n_out;
    const float *out = p->out[j] + (int64_t)t->first * n_out + panel * p->be->isa->mm->lanes;
    for (int32_t i = 0; i < t->used; i++, out += n_out) prefetch_write(out);
}

/* A whole panel and tile goes where it belongs from the kernel's registers. */
static void panel_tile(const struct product *p, int j, int64_t panel, int32_t tile)
{
    const struct tile t = tile_at(p, tile);
    const int lanes = p->be->isa->mm->lanes;
    const int64_t n_out = p->w[j]->n_out;
    float a[MM_TILE_MAX * MM_LANES_MAX], b[MM_TILE_MAX * MM_LANES_MAX];
    prefetch_out(p, j, panel, &t);
    if (!p->gated && t.used == t.width && (panel + 1) * lanes <= n_out) {
        multiply(p, j, panel, tile, &t, p->out[j] + (int64_t)t.first * n_out + panel * lanes, n_out, p->add);
        return;
    }
    multiply(p, j, panel, tile, &t, a, lanes, false);
    if (p->gated) {
        multiply(p, 1, panel, tile, &t, b, lanes, false);
        p->be->isa->rows->gated(a, a, b, (int64_t)t.used * lanes, p->act);
    }
    store(p, j, panel, &t, a);
}

/* While the activations fit the second-level cache, a panel meets all tiles and the next one is fetched
 * meanwhile. Beyond that a tile meets four panels, which stay in the cache, before the next tile comes. */
static void run_panels(const struct product *p, int j, int64_t first, int64_t end)
{
    const int64_t group = p->panel_by_panel ? 1 : 4;
    for (int64_t i = first; i < end; i += group)
        for (int32_t t = 0; t < p->n_tiles; t++)
            for (int64_t k = i; k < end && k < i + group; k++) panel_tile(p, j, k, t);
}

/* A thread's stretch of the call's panels: first << 32 | end of what nobody has taken. */
struct stretch {
    _Alignas(64) atomic_uint_fast64_t left;
};

int cpu_mm_open(struct cpu_backend *be)
{
    be->stretch = aligned_alloc(64, (size_t)be->threads * sizeof *be->stretch);
    for (int i = 0; be->stretch && i < be->threads; i++) atomic_init(&be->stretch[i].left, 0);
    return be->stretch ? 0 : KN_EMEM;
}

void cpu_mm_close(struct cpu_backend *be)
{
    free(be->stretch);
    free(be->scratch);
}

/* Every thread gets a stretch of its own and takes it from the front, so that it reads memory as a stream and
 * what it prefetches is what it needs next. Done, it takes from the ends of others'. A stretch is the
 * thread's part of each matrix, one after the other: what a thread computes of q, k and v are the same heads,
 * which it then finds in its own cache (cpu_share_near). */
static int64_t part_of(const struct product *p, int j, int64_t thread)
{
    return (p->job[j].panel_end - (j ? p->job[j - 1].panel_end : 0)) * thread / p->threads;
}

static int64_t stretch_at(const struct product *p, int64_t thread)
{
    int64_t at = 0;
    for (int j = 0; j < p->n_jobs; j++) at += part_of(p, j, thread);
    return at;
}

static void deal_range(struct stretch *s, int64_t first, int64_t end)
{
    atomic_store_explicit(&s->left, (uint64_t)first << 32 | (uint64_t)end, memory_order_relaxed);
}

static void deal(const struct product *p)
{
    for (int i = 0; i < p->threads; i++)
        deal_range(&p->be->stretch[i], stretch_at(p, i), stretch_at(p, i + 1));
}

/* Up to 8 panels, an eighth of a stretch at most so that its end can be shared: from the front, or for
 * another thread a quarter from the back. Returns how many. */
static int64_t take(struct stretch *s, bool own, int64_t *first)
{
    uint64_t w = atomic_load_explicit(&s->left, memory_order_relaxed), from, end, n;
    do {
        from = w >> 32, end = w & UINT32_MAX;
        if (from >= end) return 0;
        n = (end - from) / (own ? 8 : 4);
        n = n < 1 ? 1 : own && n > 8 ? 8 : n;
        *first = (int64_t)(own ? from : end - n);
    } while (!atomic_compare_exchange_weak_explicit(&s->left, &w, own ? w + (n << 32) : w - n,
                                                    memory_order_relaxed, memory_order_relaxed));
    return (int64_t)n;
}

static void run_taken(const struct product *p, int owner, int64_t at, int64_t end)
{
    int64_t from = stretch_at(p, owner);
    for (int j = 0; j < p->n_jobs && at < end; j++) {
        const int64_t first = part_of(p, j, owner), to = from + part_of(p, j, owner + 1) - first,
                      stop = end < to ? end : to;
        if (at < stop) run_panels(p, j, first + at - from, first + stop - from);
        if (at < stop) at = stop;
        from = to;
    }
}

static bool none_left(const struct product *p)
{
    for (int i = 0; i < p->threads; i++) {
        const uint64_t w = atomic_load_explicit(&p->be->stretch[i].left, memory_order_relaxed);
        if (w >> 32 < (w & UINT32_MAX)) return false;
    }
    return true;
}

/* Which thread takes which has no effect on the bits. */
static void work(const struct product *p, int thread)
{
    int64_t first, n;
    for (int k = 0; k < p->threads; k++) {
        const int owner = (thread + k) % p->threads;
        while ((n = take(&p->be->stretch[owner], k == 0, &first))) run_taken(p, owner, first, first + n);
    }
}

struct near {
    struct cpu_backend *be;
    void (*fn)(void *, int64_t, int);
    void *ctx;
};

static void near_item(void *ctx, int64_t item, int thread)
{
    const struct near *w = ctx;
    int64_t first, n;
    (void)item;
    for (int k = 0; k < w->be->threads; k++)
        while ((n = take(&w->be->stretch[(thread + k) % w->be->threads], k == 0, &first)))
            for (int64_t i = first; i < first + n; i++) w->fn(w->ctx, i, thread);
}

void cpu_share_near(struct cpu_backend *be, int64_t n, void (*fn)(void *, int64_t, int), void *ctx)
{
    struct near w = {be, fn, ctx};
    for (int i = 0; i < be->threads; i++)
        deal_range(&be->stretch[i], n * i / be->threads, n * (i + 1) / be->threads);
    pool_run(be->pool, be->threads, near_item, &w);
}

#define ACT_CACHED ((size_t)512 << 10) /* activations that a core keeps beside the panels it streams */

/* What is the same for all panels of a matrix. Returns the multiplications of the call. */
static double plan_jobs(struct product *p, int64_t n_in)
{
    const struct cpu_mm *mm = p->be->isa->mm;
    size_t act = 0;
    int64_t panels = 0;
    double macs = 0;
    for (int j = 0; j < p->n_w; j++) {
        struct job *job = &p->job[j];
        job->type = mm_type_of(p->w[j]->type);
        job->kernel = mm->kernel[mm_type_index(p->w[j]->type)];
        job->panel = mm_panel_bytes(job->type, n_in, mm->lanes);
        job->act = mm_act_bytes(job->type->act, n_in);
        panels += (p->w[j]->n_out + mm->lanes - 1) / mm->lanes;
        job->panel_end = panels;
        macs += (double)p->w[j]->n_out * (double)n_in * p->n;
        if (job->act * (size_t)p->n > act) act = job->act * (size_t)p->n;
    }
    p->panel_by_panel = act <= ACT_CACHED;
    for (int j = 0; j < p->n_w; j++) {
        struct job *job = &p->job[j];
        /* Kernels prefetch four times a 256-block, once a 32-block, once in 8 values of k (floats). One row
         * or two stream as fast as the hardware's own prefetching goes: ours would only take its places
         * (docs/speed/cpu.md). */
        const int64_t per = job->type->act == MM_ACT_Q256 ? 64 : job->type->act == MM_ACT_Q32 ? 32 : 8;
        const int64_t lines = (int64_t)(job->panel / 64);
        job->steps = (int32_t)((n_in + per - 1) / per);
        const int64_t all = (int64_t)job->steps * p->n_tiles;
        job->ahead = p->n > 2 && p->panel_by_panel ? (int32_t)((lines + all - 1) / all) : 0;
    }
    return macs;
}

static int check(const struct product *p)
{
    struct cpu_backend *be = p->be;
    if (p->n < 1 || p->n_w < 1 || p->n_w > WIDTH_MAX || !p->x)
        return cpu_fail(be, KN_EINVAL, "matrix product of %d rows with %d matrices (1 to %d)", p->n, p->n_w,
                        WIDTH_MAX);
    for (int j = 0; j < p->n_w; j++) {
        if (!p->w[j]->packed || !mm_type_of(p->w[j]->type))
            return cpu_fail(be, KN_EINVAL, "matrix product with a weight not loaded for it");
        if (p->w[j]->n_mat)
            return cpu_fail(be, KN_EINVAL, "matrix product with a weight of %d experts", p->w[j]->n_mat);
        if (p->w[j]->n_in != p->w[0]->n_in || (p->gated && p->w[j]->n_out != p->w[0]->n_out))
            return cpu_fail(be, KN_EINVAL, "matrix product of unequal shapes: [%lld, %lld] and [%lld, %lld]",
                            (long long)p->w[0]->n_out, (long long)p->w[0]->n_in, (long long)p->w[j]->n_out,
                            (long long)p->w[j]->n_in);
    }
    return 0;
}

static float *normed_of(const struct product *p, int thread)
{
    return (float *)(p->normed + (size_t)thread * align64((size_t)p->w[0]->n_in * 4));
}

/* The rows of a tile are interleaved by four bytes, so one thread writes all of a tile: two that shared its
 * lines took longer. */
static void prepare_tile(void *ctx, int64_t i, int thread)
{
    const struct product *p = ctx;
    const struct tile t = tile_at(p, (int32_t)i);
    const bool whole =
        t.width == p->be->isa->mm->tile && p->prepared[MM_ACT_Q256] && p->be->isa->mm->prepare_q256;
    if (whole) prepare_q256(p, &t, 0, p->w[0]->n_in / 256);
    if (whole && !p->prepared[MM_ACT_Q32] && !p->prepared[MM_ACT_F32]) return;
    for (int32_t slot = t.first; slot < t.first + t.width; slot++)
        prepare_row(p, slot, normed_of(p, thread), whole);
}

/* What another product or attention has written is rounded by the thread that wrote it, a part of the
 * columns: the lines stay its own, to read now and to write in the next layer. A norm wants whole rows. */
static bool by_columns(const struct product *p)
{
    return !p->has_norm && p->prepared[MM_ACT_Q256] && !p->prepared[MM_ACT_Q32] && !p->prepared[MM_ACT_F32] &&
           p->be->isa->mm->prepare_q256 && p->n % p->be->isa->mm->tile == 0 &&
           p->w[0]->n_in / 256 >= p->threads;
}

static void prepare_columns(void *ctx, int64_t i, int thread)
{
    const struct product *p = ctx;
    const struct tile t = tile_at(p, (int32_t)(i % p->n_tiles));
    const int64_t blocks = p->w[0]->n_in / 256, part = i / p->n_tiles;
    (void)thread;
    prepare_q256(p, &t, blocks * part / p->threads, blocks * (part + 1) / p->threads);
}

/* An item is a thread's whole part of the panels: one that comes late finds none left. */
static void work_item(void *ctx, int64_t item, int thread)
{
    const struct product *p = ctx;
    (void)item;
    work(p, thread);
}

/* A row takes less time to prepare than threads take to meet: each has its own copy. */
static void one_row_item(void *ctx, int64_t item, int thread)
{
    struct product own = *(const struct product *)ctx;
    (void)item;
    if (none_left(&own)) return;
    for (int a = 0; a < MM_ACT_COUNT; a++)
        if (own.prepared[a])
            own.prepared[a] += (size_t)thread * align64(mm_act_bytes((enum mm_act)a, own.w[0]->n_in));
    prepare_row(&own, 0, normed_of(&own, thread), false);
    work(&own, thread);
}

static int product(struct product *p)
{
    struct cpu_backend *be = p->be;
    int err = check(p);
    if (err) return err;
    const int64_t n_in = p->w[0]->n_in;
    bool want[MM_ACT_COUNT] = {false};
    for (int j = 0; j < p->n_w; j++) want[mm_type_of(p->w[j]->type)->act] = true;
    const size_t need = scratch_need(be, p->n, n_in, want);
    if (need > be->scratch_bytes)
        return cpu_fail(be, KN_EINVAL,
                        "matrix product of %d rows of %lld values needs %zu bytes of scratch, reserved %zu",
                        p->n, (long long)n_in, need, be->scratch_bytes);
    uint8_t *at = be->scratch;
    p->normed = at;
    at += (size_t)be->threads * align64((size_t)n_in * 4);
    for (int a = 0; a < MM_ACT_COUNT; a++) {
        p->prepared[a] = want[a] ? at : NULL;
        if (want[a]) at += prepared_bytes(be, p->n, (enum mm_act)a, n_in);
    }
    plan_tiles(p);
    p->n_jobs = p->gated ? 1 : p->n_w;
    const double macs = plan_jobs(p, n_in);
    if (p->job[p->n_w - 1].panel_end > UINT32_MAX) /* what a stretch can count */
        return cpu_fail(be, KN_EINVAL, "matrix product of %lld panels of %d rows (at most %u)",
                        (long long)p->job[p->n_w - 1].panel_end, be->isa->mm->lanes, UINT32_MAX);
    const struct tile end = tile_at(p, p->n_tiles - 1);
    const int32_t slots = end.first + end.width;
    /* Handing work over costs a microsecond or more: small products stay on this thread. */
    p->threads = macs < 100e3 ? 1 : be->threads;
    if (slots == 1) {
        deal(p);
        pool_run(be->pool, p->threads, one_row_item, p);
        return 0;
    }
    if (p->threads == 1)
        for (int32_t i = 0; i < p->n_tiles; i++) prepare_tile(p, i, 0);
    else if (by_columns(p))
        cpu_share_near(be, (int64_t)p->threads * p->n_tiles, prepare_columns, p);
    else
        pool_run(be->pool, p->n_tiles, prepare_tile, p);
    deal(p);
    pool_run(be->pool, p->threads, work_item, p);
    return 0;
}

int cpu_linear(struct kn_backend *kb, float *out, const struct kn_weight *w, const float *x, int32_t n,
               bool add)
{
    struct product p = {.be = cpu_of(kb), .w = {w}, .out = {out}, .n_w = 1, .n = n, .x = x, .add = add};
    return product(&p);
}

int cpu_norm_linear(struct kn_backend *kb, float *const *out, const struct kn_weight *const *w, int32_t n_w,
                    const float *x, const float *norm, float eps, int32_t n)
{
    struct product p = {
        .be = cpu_of(kb), .n_w = n_w, .n = n, .x = x, .norm = norm, .eps = eps, .has_norm = norm != NULL};
    for (int32_t j = 0; j < n_w && j < WIDTH_MAX; j++) {
        p.w[j] = w[j];
        p.out[j] = out[j];
    }
    return product(&p);
}

int cpu_norm_gated(struct kn_backend *kb, float *out, const struct kn_weight *gate,
                   const struct kn_weight *up, const float *x, const float *norm, float eps, enum kn_act act,
                   int32_t n)
{
    struct product p = {.be = cpu_of(kb),
                        .w = {gate, up},
                        .out = {out},
                        .n_w = 2,
                        .n = n,
                        .x = x,
                        .norm = norm,
                        .eps = eps,
                        .has_norm = norm != NULL,
                        .gated = true,
                        .act = act};
    return product(&p);
}
