/* pages.c - see pages.h. */
#include "pages.h"

#include <math.h>
#include <omp.h>
#include <string.h>
#include "../base/io.h"
#include "../base/mem.h"
#include "session_impl.h"
#include "state_impl.h"

struct pages {
    int32_t slots;           /* of the pool */
    int32_t *held;           /* [slots + 1] the page in each; the last is being written */
    int32_t shift;           /* positions that places are less than positions */
    int32_t turned;          /* the position of the last turn */
    int32_t stored;          /* full pages that are in the host's memory, from the first on */
    int32_t pages;           /* that there is room for there */
    int32_t n_layer, *layer; /* [n_layer] of the target: those with pages */
    uint8_t **side[2];       /* [n_layer] keys, values of all pages in the host's memory */
    float **mean;            /* [n_layer] of each page [n_head_kv, head_dim] the mean key, of length 1 */
    float *score;            /* [pages] NaN: none yet */
    float *queries;          /* device [layers of the target, n_queries] */
    float *host_queries;     /* the same on the host */
    int64_t n_queries;
    struct pages_stats stats;
};

int pages_check(int32_t positions, struct err *e)
{
    if (positions == 0 || (positions >= POOL_LEAST && positions % POOL_PAGE == 0)) return 0;
    return err_set(
        e, ERR_USAGE,
        "pool out of range (expected a multiple of %d from %d: a page at the start, %d at the end, one "
        "that is chosen and one that is written; got %d)",
        POOL_PAGE, POOL_LEAST, POOL_TAIL, positions);
}

bool pages_scores_at(int32_t pos)
{
    int32_t every = POOL_PAGE;
    while (every < pos / 32) every *= 2;
    return pos % every == 0;
}

int32_t pages_rows(const struct session *s)
{
    const struct pages *p = s->pool;
    if (!p) return INT32_MAX;
    const int32_t full = p->slots * POOL_PAGE;
    return s->n_past < full ? full - s->n_past : POOL_PAGE - s->n_past % POOL_PAGE;
}

int32_t pages_shift(const struct session *s)
{
    return s->pool ? s->pool->shift : 0;
}

struct pages_stats pages_stats(const struct session *s)
{
    return s->pool ? s->pool->stats : (struct pages_stats){0};
}

const int32_t *pages_held(const struct session *s, int32_t *n)
{
    *n = s->pool ? s->pool->slots : 0;
    return s->pool ? s->pool->held : NULL;
}

/* ---- making and freeing ---- */

static size_t page_bytes(const struct kn_kv *kv, int side)
{
    return POOL_PAGE * kn_kv_row_bytes(kv, side ? kv->type.v : kv->type.k);
}

static void *take_host(struct session *s, uint64_t bytes)
{
    void *p = s->op->alloc_host ? s->op->alloc_host(s->be, bytes) : mem_calloc(1, bytes);
    if (p) s->host_bytes += bytes, s->pool->stats.bytes += bytes;
    return p;
}

static void give_host(struct session *s, void *p)
{
    if (s->op->alloc_host)
        s->op->free_host(s->be, p);
    else
        mem_free(p);
}

static int layers_new(struct session *s, struct pages *p, struct err *e)
{
    const struct desc *d = s->target->d;
    p->layer = mem_calloc((size_t)d->n_layer, sizeof *p->layer);
    p->side[0] = mem_calloc((size_t)d->n_layer, sizeof **p->side);
    p->side[1] = mem_calloc((size_t)d->n_layer, sizeof **p->side);
    p->mean = mem_calloc((size_t)d->n_layer, sizeof *p->mean);
    if (!p->layer || !p->side[0] || !p->side[1] || !p->mean)
        return err_set(e, ERR_IO, "out of memory (a pool)");
    for (int32_t i = 0; i < d->n_layer; i++) {
        const struct desc_layer *y = &d->layer[i];
        const struct kn_kv *kv = &s->kv[i];
        if (y->recurrent || y->window) continue;
        const int32_t l = p->n_layer++;
        const size_t heads = (size_t)y->n_head_kv * (size_t)y->head_dim;
        p->layer[l] = i;
        p->mean[l] = s->op->counts ? NULL : mem_calloc((size_t)p->pages * heads, sizeof(float));
        for (int side = 0; side < 2; side++)
            if (!(p->side[side][l] = take_host(s, (uint64_t)p->pages * page_bytes(kv, side))))
                return model_no_memory(s->be, e, "pages of layer %d, %d of them: lower --ctx or -n", i,
                                       p->pages);
        if (!p->mean[l] && !s->op->counts) return err_set(e, ERR_IO, "out of memory (a pool)");
        if (y->n_head * y->head_dim > p->n_queries) p->n_queries = y->n_head * y->head_dim;
    }
    return 0;
}

int pages_new(struct session *s, struct err *e)
{
    struct pages *p;
    if (!s->o.pool || s->g->positions <= s->o.pool) return 0; /* all of it is held */
    p = s->pool = mem_calloc(1, sizeof *p);
    if (!p) return err_set(e, ERR_IO, "out of memory (a pool)");
    p->slots = s->o.pool / POOL_PAGE;
    p->pages = s->g->positions / POOL_PAGE + 1;
    p->held = mem_calloc((size_t)p->slots + 1, sizeof *p->held);
    p->score = mem_calloc((size_t)p->pages, sizeof *p->score);
    if (!p->held || !p->score) return err_set(e, ERR_IO, "out of memory (a pool)");
    if (layers_new(s, p, e)) return -1;
    const size_t bytes = (size_t)s->target->d->n_layer * (size_t)p->n_queries * sizeof(float);
    p->queries = s->op->alloc(s->be, bytes);
    p->host_queries = mem_calloc(1, bytes);
    if (!p->queries || !p->host_queries) return model_no_memory(s->be, e, "a pool's queries");
    s->bytes += bytes;
    pages_reset(s);
    return 0;
}

void pages_free(struct session *s)
{
    struct pages *p = s->pool;
    if (!p) return;
    for (int32_t l = 0; l < p->n_layer; l++) {
        for (int side = 0; side < 2; side++) give_host(s, p->side[side][l]);
        mem_free(p->mean[l]);
    }
    s->op->free(s->be, p->queries);
    mem_free(p->host_queries);
    mem_free(p->held), mem_free(p->score), mem_free(p->layer), mem_free(p->mean);
    mem_free(p->side[0]), mem_free(p->side[1]);
    mem_free(p);
    s->pool = NULL;
}

void pages_reset(struct session *s)
{
    struct pages *p = s->pool;
    const uint64_t bytes = p ? p->stats.bytes : 0;
    if (!p) return;
    p->shift = p->stored = 0;
    p->turned = -1;
    p->stats = (struct pages_stats){.bytes = bytes};
    for (int32_t i = 0; i <= p->slots; i++) p->held[i] = i;
    for (int32_t i = 0; i < p->pages; i++) p->score[i] = NAN;
}

/* ---- pages ---- */

/* Where a page lies on the device: of a layer's keys or values, in a slot. */
static uint8_t *at_slot(const struct session *s, int32_t l, int side, int32_t slot)
{
    const struct kn_kv *kv = &s->kv[s->pool->layer[l]];
    const size_t row = page_bytes(kv, side) / POOL_PAGE;
    return (uint8_t *)(side ? kv->v : kv->k) + (size_t)kn_kv_slot(kv, slot * POOL_PAGE) * row;
}

static uint8_t *at_page(const struct session *s, int32_t l, int side, int32_t page)
{
    const struct pages *p = s->pool;
    return p->side[side][l] + (size_t)page * page_bytes(&s->kv[p->layer[l]], side);
}

/* The mean of a page's keys, of length 1: what its queries are held against. */
static void make_mean(struct session *s, int32_t l, int32_t page, float *row)
{
    struct pages *p = s->pool;
    const struct kn_kv *kv = &s->kv[p->layer[l]];
    const int32_t d = kv->head_dim, n = kv->n_head_kv * d;
    const size_t bytes = page_bytes(kv, 0) / POOL_PAGE;
    float *mean = p->mean[l] + (size_t)page * (size_t)n;
    memset(mean, 0, (size_t)n * sizeof *mean);
    for (int32_t r = 0; r < POOL_PAGE; r++) {
        kn_kv_get(kv, false, at_page(s, l, 0, page) + (size_t)r * bytes, row);
        for (int32_t i = 0; i < n; i++) mean[i] += row[i];
    }
    for (int32_t h = 0; h < n; h += d) {
        double squares = 0;
        for (int32_t i = 0; i < d; i++) squares += (double)mean[h + i] * (double)mean[h + i];
        const float r = squares > 0 ? (float)(1 / sqrt(squares)) : 0;
        for (int32_t i = 0; i < d; i++) mean[h + i] *= r;
    }
}

/* Of the host's team: the backend's on the CPU; beside a device all processors. */
static int team(const struct session *s)
{
    const int threads = kn_backend_threads(s->be);
    return threads ? threads : omp_get_num_procs();
}

/* Of pages first to end - 1, which are in the host's memory. */
static int make_means(struct session *s, int32_t first, int32_t end, struct err *e)
{
    const struct pages *p = s->pool;
    const int threads = team(s);
    bool lacks = false;
    io_team_begin();
#pragma omp parallel for schedule(static) num_threads(threads) reduction(|| : lacks)
    for (int32_t l = 0; l < p->n_layer; l++) {
        const struct kn_kv *kv = &s->kv[p->layer[l]];
        float *row = mem_alloc((size_t)kv->n_head_kv * (size_t)kv->head_dim * sizeof *row);
        for (int32_t page = first; row && page < end; page++) make_mean(s, l, page, row);
        lacks = lacks || !row;
        mem_free(row);
    }
    io_team_end();
    return lacks ? err_set(e, ERR_IO, "out of memory (a page's keys)") : 0;
}

/* The full pages before pos that are not yet in the host's memory, which are all held. */
static int store_pages(struct session *s, int32_t pos, struct err *e)
{
    struct pages *p = s->pool;
    const int32_t first = p->stored, end = pos / POOL_PAGE;
    int rc = 0;
    for (int32_t slot = 0; slot < p->slots && rc == 0; slot++) {
        const int32_t page = p->held[slot];
        if (page < first || page >= end) continue;
        for (int32_t l = 0; l < p->n_layer && rc == 0; l++)
            for (int side = 0; side < 2 && rc == 0; side++)
                rc = s->op->download(s->be, at_page(s, l, side, page), at_slot(s, l, side, slot),
                                     page_bytes(&s->kv[p->layer[l]], side));
    }
    if (rc) return model_failed(s->target, "pages", rc, e);
    if (make_means(s, first, end, e)) return -1;
    p->stored = end;
    return 0;
}

/* ---- scores ---- */

/* The queries of the row at n_past, whose token is id, to the host. The row is forgotten. */
static int ask_queries(struct session *s, int32_t id, struct err *e)
{
    struct pages *p = s->pool;
    const bool anchored = s->anchored;
    if (session_catch_up(s, e)) return -1;
    s->history[s->n_past] = id;
    if (session_place(s, &id, 1, e)) return -1;
    const struct session_rows r = {.ids = s->d->ids, .pos = s->d->pos, .n = 1, .first_pos = s->n_past};
    s->watch = p->queries, s->n_watch = p->n_queries;
    kn_bound(s->be, s->n_past + 1);
    const int bad = session_run_target(s, &r, SESSION_TRIED, e);
    kn_bound(s->be, 0);
    s->watch = NULL;
    if (bad || session_set_pending(s, 0, e)) return -1;
    s->anchored = anchored;
    s->logits_rows = 0;
    int rc = s->op->download(s->be, p->host_queries, p->queries,
                             (size_t)s->target->d->n_layer * (size_t)p->n_queries * sizeof(float));
    return rc ? model_failed(s->target, "queries", rc, e) : 0;
}

/* Eight sums side by side, in one order on every machine. */
static float dot(const float *a, const float *b, int32_t n)
{
    float sum[8] = {0};
    for (int32_t i = 0; i < n; i += 8)
        for (int32_t j = 0; j < 8; j++) sum[j] += a[i + j] * b[i + j];
    return ((sum[0] + sum[4]) + (sum[1] + sum[5])) + ((sum[2] + sum[6]) + (sum[3] + sum[7]));
}

static float page_score(const struct session *s, int32_t page)
{
    const struct pages *p = s->pool;
    float score = 0;
    for (int32_t l = 0; l < p->n_layer; l++) {
        const struct desc_layer *y = &s->target->d->layer[p->layer[l]];
        const int32_t d = y->head_dim, group = y->n_head / y->n_head_kv;
        const float *q = p->host_queries + (int64_t)p->layer[l] * p->n_queries;
        const float *mean = p->mean[l] + (size_t)page * (size_t)(y->n_head_kv * d);
        for (int32_t h = 0; h < y->n_head_kv; h++) {
            float best = -INFINITY;
            for (int32_t g = 0; g < group; g++) {
                const float x = dot(q + (h * group + g) * d, mean + h * d, d);
                if (x > best) best = x;
            }
            score += best;
        }
    }
    return score;
}

static int make_scores(struct session *s, int32_t id, struct err *e)
{
    struct pages *p = s->pool;
    const struct desc *d = s->target->d;
    if (ask_queries(s, id, e)) return -1;
    for (int32_t l = 0; l < p->n_layer; l++) { /* each of length 1 */
        const struct desc_layer *y = &d->layer[p->layer[l]];
        float *q = p->host_queries + (int64_t)p->layer[l] * p->n_queries;
        for (int32_t h = 0; h < y->n_head; h++, q += y->head_dim) {
            double squares = 0;
            for (int32_t i = 0; i < y->head_dim; i++) squares += (double)q[i] * (double)q[i];
            const float r = squares > 0 ? (float)(1 / sqrt(squares)) : 0;
            for (int32_t i = 0; i < y->head_dim; i++) q[i] *= r;
        }
    }
    const int threads = team(s);
    io_team_begin();
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int32_t page = 0; page < p->stored; page++) p->score[page] = page_score(s, page);
    io_team_end();
    p->stats.scored++;
    return 0;
}

/* ---- turns ---- */

/* Does page a leave before b? */
static bool leaves_first(const struct pages *p, int32_t a, int32_t b)
{
    const float x = p->score[a], y = p->score[b];
    if (isnan(x) != isnan(y)) return !isnan(x);
    return x < y || (!(x > y) && a < b);
}

/* Which of the full pages stay, or come (all): as many as there are slots beside the last. stays: [2 full],
 * the second half for itself. */
static void choose(const struct session *s, int32_t full, bool all, bool *stays)
{
    const struct pages *p = s->pool;
    int32_t left = p->slots - 1;
    for (int32_t page = 0; page < full; page++) {
        stays[page] = page == 0 || page >= full - POOL_TAIL;
        left -= stays[page];
    }
    bool *held = stays + full;
    memset(held, all, (size_t)full);
    for (int32_t i = 0; i < p->slots && !all; i++)
        if (p->held[i] < full) held[p->held[i]] = true;
    for (; left > 0; left--) {
        int32_t best = -1;
        for (int32_t page = 0; page < full; page++)
            if (held[page] && !stays[page] && (best < 0 || leaves_first(p, best, page))) best = page;
        if (best < 0) break;
        stays[best] = true;
    }
}

/* Pages that stay to slots: where they are, and the others, rising, to what is free, from the host's memory.
 */
static int arrange(struct session *s, int32_t full, bool *stays, struct err *e)
{
    struct pages *p = s->pool;
    int rc = 0;
    for (int32_t i = 0; i < p->slots - 1; i++) {
        const int32_t page = p->held[i];
        if (page < full && stays[page])
            stays[page] = false;
        else
            p->held[i] = -1;
    }
    const int32_t last = p->held[p->slots - 1];
    for (int32_t page = 0, i = 0; page < full && rc == 0; page++) {
        if (!stays[page]) continue;
        while (p->held[i] >= 0) i++;
        p->held[i] = page;
        p->stats.came += page != last;
        for (int32_t l = 0; l < p->n_layer && rc == 0; l++)
            for (int side = 0; side < 2 && rc == 0; side++)
                rc = s->op->upload(s->be, at_slot(s, l, side, i), at_page(s, l, side, page),
                                   page_bytes(&s->kv[p->layer[l]], side));
    }
    p->held[p->slots - 1] = full;
    return rc ? model_failed(s->target, "pages", rc, e) : 0;
}

int pages_turn(struct session *s, int32_t id, struct err *e)
{
    struct pages *p = s->pool;
    const int32_t pos = s->n_past, full = pos / POOL_PAGE;
    if (!p || pos % POOL_PAGE || pos < p->slots * POOL_PAGE || p->turned == pos) return 0;
    const bool scores = pages_scores_at(pos) || p->turned < 0;
    bool *stays = mem_calloc(2 * (size_t)full, sizeof *stays);
    if (!stays) return err_set(e, ERR_IO, "out of memory (%d pages)", full);
    int rc = store_pages(s, pos, e) || (scores && make_scores(s, id, e)) ? -1 : 0;
    if (rc == 0) {
        choose(s, full, scores, stays);
        rc = arrange(s, full, stays, e);
    }
    mem_free(stays);
    if (rc) return -1;
    p->turned = pos;
    p->shift = pos - (p->slots - 1) * POOL_PAGE;
    p->stats.turns++;
    return session_place(s, &id, 1, e);
}

/* ---- states ---- */

/* Positions of the page in a slot that are before n_past, both ways: to the host's memory or from there. */
static int move_slot(struct session *s, int32_t slot, int32_t n_past, bool back)
{
    const struct pages *p = s->pool;
    const int32_t page = p->held[slot], left = n_past - page * POOL_PAGE,
                  rows = left < POOL_PAGE ? left : POOL_PAGE;
    int rc = 0;
    for (int32_t l = 0; l < p->n_layer && rows > 0 && rc == 0; l++)
        for (int side = 0; side < 2 && rc == 0; side++) {
            const size_t bytes = (size_t)rows * (page_bytes(&s->kv[p->layer[l]], side) / POOL_PAGE);
            uint8_t *here = at_slot(s, l, side, slot), *there = at_page(s, l, side, page);
            rc = back ? s->op->upload(s->be, here, there, bytes) : s->op->download(s->be, there, here, bytes);
        }
    return rc;
}

int pages_collect(struct session *s, struct err *e)
{
    const struct pages *p = s->pool;
    int rc = 0;
    for (int32_t i = 0; p && i < p->slots && rc == 0; i++)
        if (p->held[i] >= p->stored) rc = move_slot(s, i, s->n_past, false);
    return rc ? model_failed(s->target, "pages", rc, e) : 0;
}

struct kn_kv pages_cache(const struct session *s, int i)
{
    const struct pages *p = s->pool;
    int32_t l = 0;
    if (!p) return s->kv[i];
    while (l < p->n_layer && p->layer[l] != i) l++;
    if (l == p->n_layer) return s->kv[i];
    struct kn_kv all = kn_kv_like(&s->kv[i], p->pages * POOL_PAGE);
    all.k = p->side[0][l], all.v = p->side[1][l];
    return all;
}

/* int32: position of the last turn (-1: none yet), slots, pages with scores; the pages by slots; float32: the
 * scores. Behind no turn all is as at the start, and the last two are empty. */
int pages_save(struct session *s, struct snap_writer *w, struct err *e)
{
    const struct pages *p = s->pool;
    const bool turned = p && p->turned >= 0;
    const int32_t head[3] = {turned ? p->turned : -1, turned ? p->slots : 0, turned ? p->stored : 0};
    const size_t n = (size_t)(head[1] + head[2]) * sizeof(int32_t);
    if (snap_section(w, "POOL", sizeof head + n, e) || snap_write(w, head, sizeof head, e)) return -1;
    if (turned && (snap_write(w, p->held, (size_t)head[1] * sizeof *p->held, e) ||
                   snap_write(w, p->score, (size_t)head[2] * sizeof *p->score, e)))
        return -1;
    return snap_section_end(w, e);
}

static int bad_pages(const struct state *st, const char *what, int32_t got, struct err *e)
{
    return err_set(e, ERR_FORMAT, "%s: section POOL: %s (got %d)", st->name, what, got);
}

static int check_pages(const struct state *st, const struct pages *p, const int32_t head[3], int32_t n_past,
                       struct err *e)
{
    const int32_t full = head[0] / POOL_PAGE;
    if (head[0] < 0)
        return n_past <= p->slots * POOL_PAGE ? 0 : bad_pages(st, "no turn of so long a stream", n_past, e);
    if (head[0] % POOL_PAGE || head[0] < p->slots * POOL_PAGE || head[0] > n_past ||
        n_past > head[0] + POOL_PAGE)
        return bad_pages(st, "a turn at such a position", head[0], e);
    if (head[1] != p->slots) return bad_pages(st, "another number of slots", head[1], e);
    return head[2] == full ? 0 : bad_pages(st, "another number of pages", head[2], e);
}

static int take_pages(const struct state *st, struct pages *p, const int32_t *held, struct err *e)
{
    const int32_t full = p->turned / POOL_PAGE;
    for (int32_t i = 0; i < p->slots; i++) {
        if (held[i] < 0 || held[i] > full || (held[i] == full) != (i == p->slots - 1))
            return bad_pages(st, "no such page", held[i], e);
        for (int32_t j = 0; j < i; j++)
            if (held[j] == held[i]) return bad_pages(st, "a page twice", held[i], e);
        p->held[i] = held[i];
    }
    return 0;
}

int pages_load(struct state *st, struct session *s, int32_t n_past, struct err *e)
{
    struct pages *p = s->pool;
    uint8_t *section = NULL;
    int32_t head[3];
    if (state_section(st, "POOL", 0, e)) return -1;
    const uint64_t size = st->r.size;
    if (size < sizeof head || size > (uint64_t)1 << 28)
        return bad_pages(st, "of such a size", (int32_t)(size >> 4), e);
    if (snap_read_section(&st->r, size, &section, e)) return -1;
    memcpy(head, section, sizeof head);
    int rc = p || head[0] < 0 ? 0 : bad_pages(st, "a turn, where everything is held", head[0], e);
    if (!p || rc) goto out;
    rc = -1;
    if (check_pages(st, p, head, n_past, e)) goto out;
    p->turned = head[0] < 0 ? -1 : head[0];
    if (size != sizeof head + (head[0] < 0 ? 0 : 4 * (uint64_t)(head[1] + head[2]))) {
        bad_pages(st, "of such a size", (int32_t)size, e);
        goto out;
    }
    if (head[0] >= 0) {
        if (take_pages(st, p, (const int32_t *)(const void *)(section + sizeof head), e)) goto out;
        memcpy(p->score, section + sizeof head + 4 * (size_t)head[1], 4 * (size_t)head[2]);
        p->shift = p->turned - (p->slots - 1) * POOL_PAGE;
        if (make_means(s, 0, head[2], e)) goto out;
        p->stored = head[2];
    }
    rc = 0;
    for (int32_t i = 0; i < p->slots && rc == 0; i++) rc = move_slot(s, i, n_past, true);
    if (rc) rc = model_failed(s->target, "pages", rc, e);
out:
    mem_free(section);
    return rc;
}
