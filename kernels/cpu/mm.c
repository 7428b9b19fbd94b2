/* mm.c - matrix products: shapes, scratch, threads. The arithmetic is in mm_<isa>.c.
 *
 * An operation is one parallel region: first the rows are normalised and rounded, each once and shared by all
 * matrices of the call; then the panels of all matrices are dealt out in chunks. A panel meets every tile of
 * tokens while it is in the cache, so weights come from memory once a call whatever the number of rows. */
#include "mm.h"
#include "rows.h"

#include <omp.h>
#include <stdlib.h>
#include <string.h>

#define WIDTH_MAX 4 /* matrices a call */

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
    int64_t chunk, chunk_end[WIDTH_MAX]; /* panels a chunk; cumulated number of chunks */
};

struct tile {
    int32_t first, width, used;
};

size_t mm_act_bytes(enum mm_act a, int64_t n_in)
{
    const size_t n = (size_t)n_in;
    if (a == MM_ACT_F32) return (n + 1) / 2 * 8;
    if (a == MM_ACT_Q32) return n + n / 32 * 12;
    return n + n / 16 + n / 4 + n / 256 * 4;
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
static void prepare_row(const struct product *p, int32_t slot, float *normed)
{
    const struct cpu_mm *mm = p->be->isa->mm;
    const int64_t n_in = p->w[0]->n_in;
    int32_t i = slot / mm->tile;
    struct tile t;
    if (i > p->full_tiles) i = p->full_tiles;
    do t = tile_at(p, i++);
    while (slot >= t.first + t.width);
    const float *x = slot < p->n ? p->x + (int64_t)slot * n_in : NULL;
    if (x && p->has_norm) {
        p->be->isa->rows->rms_norm(normed, x, p->norm, n_in, p->eps);
        x = normed;
    }
    for (int a = 0; a < MM_ACT_COUNT; a++)
        if (p->prepared[a])
            mm->prepare((enum mm_act)a, p->prepared[a] + (size_t)t.first * mm_act_bytes((enum mm_act)a, n_in),
                        x, n_in, slot - t.first, t.width);
}

static int width_log2(int32_t width)
{
    return width == 8 ? 3 : width == 4 ? 2 : width - 1;
}

/* result[T, lanes] = panel of w times the tile. ahead: the next panel is prefetched, a share by each tile. A
 * single row streams as fast as the hardware's own prefetching goes: there ours only takes its place in the
 * queue. */
static void multiply(const struct product *p, const struct kn_weight *w, int64_t panel, int32_t tile,
                     const struct tile *t, bool ahead, float *result)
{
    const struct cpu_mm *mm = p->be->isa->mm;
    const struct mm_type *type = mm_type_of(w->type);
    const size_t bytes = mm_panel_bytes(type, w->n_in, mm->lanes);
    struct mm_call c = {.panel = (const uint8_t *)w->packed + (size_t)panel * bytes,
                        .act = p->prepared[type->act] + (size_t)t->first * mm_act_bytes(type->act, w->n_in),
                        .n_in = w->n_in,
                        .out = result};
    if (ahead && p->n > 1) {
        /* Steps: four a 256-block, one a 32-block, one for 8 values of k (block 2). */
        const int64_t per = type->act == MM_ACT_Q256 ? 64 : type->act == MM_ACT_Q32 ? 32 : 8;
        const int64_t lines = (int64_t)(bytes / 64), steps = (w->n_in + per - 1) / per;
        c.ahead_step = (int32_t)((lines + steps * p->n_tiles - 1) / (steps * p->n_tiles));
        c.ahead = c.panel + bytes + (size_t)tile * (size_t)steps * (size_t)c.ahead_step * 64;
    }
    mm->kernel[mm_type_index(w->type)][width_log2(t->width)](&c);
}

static void panel_tile(const struct product *p, int j, int64_t panel, int32_t tile, bool ahead)
{
    const struct tile t = tile_at(p, tile);
    const int lanes = p->be->isa->mm->lanes;
    float a[MM_TILE_MAX * MM_LANES_MAX], b[MM_TILE_MAX * MM_LANES_MAX];
    multiply(p, p->w[j], panel, tile, &t, ahead, a);
    if (p->gated) {
        multiply(p, p->w[1], panel, tile, &t, ahead, b);
        p->be->isa->rows->gated(a, a, b, (int64_t)t.used * lanes, p->act);
    }
    const int64_t n_out = p->w[j]->n_out, first = panel * lanes;
    const int64_t rows = n_out - first < lanes ? n_out - first : lanes;
    for (int32_t i = 0; i < t.used; i++) {
        float *out = p->out[j] + (int64_t)(t.first + i) * n_out + first;
        if (p->add)
            for (int64_t l = 0; l < rows; l++) out[l] += a[i * lanes + l];
        else
            memcpy(out, a + i * lanes, (size_t)rows * sizeof *out);
    }
}

/* Few tiles: a panel meets them all at once, while the next one is fetched. Many: a tile meets the panels of
 * the chunk, so that its activations stay in the first-level cache. */
static void run_chunk(const struct product *p, int64_t chunk)
{
    int j = 0;
    while (chunk >= p->chunk_end[j]) j++;
    const int lanes = p->be->isa->mm->lanes;
    const int64_t panels = (p->w[j]->n_out + lanes - 1) / lanes;
    const int64_t first = (chunk - (j ? p->chunk_end[j - 1] : 0)) * p->chunk;
    const int64_t end = first + p->chunk < panels ? first + p->chunk : panels;
    if (p->n_tiles <= 3) {
        for (int64_t i = first; i < end; i++)
            for (int32_t t = 0; t < p->n_tiles; t++) panel_tile(p, j, i, t, i + 1 < panels);
    } else {
        for (int32_t t = 0; t < p->n_tiles; t++)
            for (int64_t i = first; i < end; i++) panel_tile(p, j, i, t, false);
    }
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
        if (p->w[j]->n_in != p->w[0]->n_in || (p->gated && p->w[j]->n_out != p->w[0]->n_out))
            return cpu_fail(be, KN_EINVAL, "matrix product of unequal shapes: [%lld, %lld] and [%lld, %lld]",
                            (long long)p->w[0]->n_out, (long long)p->w[0]->n_in, (long long)p->w[j]->n_out,
                            (long long)p->w[j]->n_in);
    }
    return 0;
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
    const int lanes = be->isa->mm->lanes;
    const int n_out_w = p->gated ? 1 : p->n_w;
    double work = 0;
    int64_t chunks = 0;
    p->chunk = 4;
    for (int j = 0; j < n_out_w; j++) {
        const int64_t panels = (p->w[j]->n_out + lanes - 1) / lanes;
        chunks += (panels + p->chunk - 1) / p->chunk;
        p->chunk_end[j] = chunks;
        work += (double)p->w[j]->n_out * (double)n_in * p->n;
    }
    const int32_t last = p->n_tiles - 1;
    const struct tile end = tile_at(p, last);
    const int32_t slots = end.first + end.width;
    /* A region costs some microseconds: small products stay on this thread. */
    const int threads = work < 100e3 ? 1 : be->threads;
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        struct product own = *p;
        const size_t thread = (size_t)omp_get_thread_num();
        float *normed = (float *)(p->normed + thread * align64((size_t)n_in * 4));
        if (slots == 1) {
            /* A row takes less time to prepare than threads take to meet. */
            for (int a = 0; a < MM_ACT_COUNT; a++)
                if (own.prepared[a]) own.prepared[a] += thread * align64(mm_act_bytes((enum mm_act)a, n_in));
            prepare_row(&own, 0, normed);
        } else {
#pragma omp for schedule(static)
            for (int32_t i = 0; i < slots; i++) prepare_row(p, i, normed);
        }
#pragma omp for schedule(dynamic, 1) nowait
        for (int64_t i = 0; i < chunks; i++) run_chunk(&own, i);
    }
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
        .be = cpu_of(kb), .n_w = n_w, .n = n, .x = x, .norm = norm, .eps = eps, .has_norm = true};
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
                        .has_norm = true,
                        .gated = true,
                        .act = act};
    return product(&p);
}
