/* draft.c - the operations of drafters: checks, threads, and the walk, which is plain C and serial. Inner
 * kernels: draft.inc.h. */
#include "cpu.h"
#include "noise.h"
#include "rows.h"

#include <math.h>

/* ---- convolution along a block ---- */

struct conv_job {
    const struct cpu_rows *rows;
    const struct kn_conv *a;
    float scale[KN_CYCLE_ROWS];
};

static void conv_row(void *ctx, int64_t i, int thread)
{
    const struct conv_job *j = ctx;
    (void)thread;
    j->rows->conv(j->a, (int32_t)i, j->scale);
}

int cpu_conv(struct kn_backend *kb, const struct kn_conv *a)
{
    struct cpu_backend *be = cpu_of(kb);
    if (a->n < 1 || a->n > KN_CYCLE_ROWS || a->width < 1 || a->group < 1 || a->width % a->group ||
        a->taps < 1 || a->taps > KN_CONV_TAPS)
        return cpu_fail(be, KN_EINVAL, "conv: %d rows of %d by %d taps of groups of %d", a->n, a->width,
                        a->taps, a->group);
    if (a->offset < 0 || a->offset + (int64_t)a->taps * (a->width / a->group) > a->stride || a->out == a->x)
        return cpu_fail(be, KN_EINVAL, "conv: %lld taps of a row from %lld on, or out is x",
                        (long long)a->stride, (long long)a->offset);
    struct conv_job job = {.rows = be->isa->rows, .a = a};
    for (int32_t i = 0; a->norm && i < a->n; i++)
        job.scale[i] = job.rows->rms_scale(a->x + (int64_t)i * a->width, a->width, a->eps);
    cpu_share(be, a->n, (int64_t)a->n * a->width * a->taps >= CPU_SHARE, conv_row, &job);
    return 0;
}

/* ---- the largest logits ---- */

struct top_job {
    const struct cpu_rows *rows;
    const struct kn_top *a;
    const struct cpu_pick_room *room;
};

static void top_rows(void *ctx, int64_t item, int thread)
{
    const struct top_job *j = ctx;
    const struct cpu_pick_work w = cpu_pick_work(j->room, item);
    (void)thread;
    for (int32_t i = (int32_t)item; i < j->a->n; i += j->room->items) j->rows->top(j->a, i, &w);
}

int cpu_top(struct kn_backend *kb, const struct kn_top *a)
{
    struct cpu_backend *be = cpu_of(kb);
    struct cpu_pick_room room;
    if (a->n < 1 || a->n > KN_CYCLE_ROWS || a->k < 1 || a->k > KN_TOP_MOST || a->k > a->n_vocab)
        return cpu_fail(be, KN_EINVAL, "top: the %d largest of %d rows of %d logits (expected at most %d)",
                        a->k, a->n, a->n_vocab, KN_TOP_MOST);
    const int rc = cpu_pick_room(be, "top", a->n, a->n_vocab, &room);
    if (rc) return rc;
    struct top_job job = {be->isa->rows, a, &room};
    pool_run(be->pool, room.items, top_rows, &job);
    return 0;
}

/* ---- edges ---- */

#define EDGE_TILE 16 /* candidates whose rows are decoded at once */

struct edges_job {
    const struct cpu_rows *rows;
    const struct kn_edges *a;
};

/* Row id of a table, times hidden where that is not NULL; zeros where it is none. */
static bool table_row(const struct kn_weight *w, int32_t id, const float *hidden, float *out)
{
    const bool good = id >= 0 && id < w->n_out;
    const size_t bytes = kn_row_bytes(w->type, w->n_in);
    if (good) kn_decode_row(w->type, (const char *)w->rows + (size_t)id * bytes, out, w->n_in);
    for (int64_t r = 0; r < w->n_in; r++) out[r] = !good ? 0 : hidden ? out[r] * hidden[r] : out[r];
    return good;
}

/* The row of after that is an id's. */
static int32_t row_of(const struct kn_edges *a, int32_t id)
{
    return !a->row_of ? id : id >= 0 && id < a->n_ids ? a->row_of[id] : -1;
}

static void edges_slot(void *ctx, int64_t i, int thread)
{
    const struct edges_job *j = ctx;
    const struct kn_edges *a = j->a;
    const int64_t rank = a->after->n_in;
    const int32_t k = a->k, *ids = a->ids + i * k, *before = i ? ids - k : a->anchor;
    const float *hidden = a->hidden ? a->hidden + i * rank : NULL;
    float after[EDGE_TILE * KN_EDGE_RANK], from[KN_EDGE_RANK];
    (void)thread;
    for (int32_t c = 0; c < k; c += EDGE_TILE) {
        const int32_t some = k - c < EDGE_TILE ? k - c : EDGE_TILE;
        for (int32_t t = 0; t < some; t++) table_row(a->after, row_of(a, ids[c + t]), NULL, after + t * rank);
        for (int32_t p = 0; p < (i ? k : 1); p++) {
            float *scores = a->scores + (i * k + p) * k + c;
            const bool good = a->left ? before[p] >= 0 : table_row(a->before, before[p], hidden, from);
            const float *left = a->left ? a->left + (i * k + p) * rank : from;
            j->rows->edge(scores, a->values + i * k + c, left, after, some, rank, a->scale);
            for (int32_t t = 0; !good && t < some; t++) scores[t] = NAN;
        }
    }
}

int cpu_edges(struct kn_backend *kb, const struct kn_edges *a)
{
    struct cpu_backend *be = cpu_of(kb);
    const struct kn_weight *t[] = {a->after, a->left ? a->after : a->before};
    if (a->n < 1 || a->n > KN_CYCLE_ROWS || a->k < 1 || a->k > KN_TOP_MOST)
        return cpu_fail(be, KN_EINVAL, "edges: %d slots of %d candidates", a->n, a->k);
    for (int i = 0; i < 2; i++)
        if (!t[i]->rows || t[i]->n_in != t[0]->n_in || (!a->row_of && t[i]->n_out != t[0]->n_out) ||
            t[i]->n_in > KN_EDGE_RANK || !kn_type_info(t[i]->type)->can_decode)
            return cpu_fail(be, KN_EINVAL,
                            "edges: tables of unequal shapes, without rows, or of a type that "
                            "is not decoded");
    struct edges_job job = {be->isa->rows, a};
    cpu_share(be, a->n, (int64_t)a->n * a->k * a->k * t[0]->n_in >= CPU_SHARE, edges_slot, &job);
    return 0;
}

/* ---- the walk ---- */

/* The candidates of one slot in order: score descending, then id ascending. */
struct walk_row {
    int32_t n; /* without those that are masked */
    int32_t id[KN_TOP_MOST];
    float l[KN_TOP_MOST];
    int32_t from[KN_TOP_MOST]; /* where it stands among the k */
};

/* False: no finite maximum, or a NaN. */
static bool walk_sort(const struct kn_walk *a, const int32_t *ids, const float *scores, struct walk_row *w)
{
    w->n = 0;
    for (int32_t c = 0; c < a->k; c++) {
        float l = scores[c];
        for (int32_t b = 0; b < a->sampler.n_bias; b++)
            if (a->sampler.bias[b].id == ids[c]) l += a->sampler.bias[b].add;
        if (isnan(l)) return false;
        if (l == -INFINITY || ids[c] < 0) continue;
        int32_t at = w->n++;
        for (; at > 0 && (w->l[at - 1] < l || (w->l[at - 1] == l && w->id[at - 1] > ids[c])); at--)
            w->l[at] = w->l[at - 1], w->id[at] = w->id[at - 1], w->from[at] = w->from[at - 1];
        w->l[at] = l, w->id[at] = ids[c], w->from[at] = c;
    }
    return w->n > 0 && isfinite(w->l[0]);
}

static float walk_weight(const struct walk_row *w, int32_t i, double temp)
{
    return cpu_expf((w->l[i] - w->l[0]) / (float)temp);
}

/* How many of the row's candidates the filters keep: docs/sampling.md. */
static int32_t walk_kept(const struct kn_sampler *s, const struct walk_row *w)
{
    const double temp = (double)s->temp, temp_p = s->order & KN_ORDER_TOP_P_RAW ? 1.0 : temp,
                 temp_m = s->order & KN_ORDER_MIN_P_RAW ? 1.0 : temp;
    const double log_min_p = s->min_p > 0 ? cpu_log((double)s->min_p) : -INFINITY;
    const int32_t most = s->top_k > 0 && s->top_k < w->n ? s->top_k : w->n;
    const int32_t all = s->order & KN_ORDER_TOP_P_FIRST ? w->n : most;
    double limit = INFINITY, before = 0, mass = 0;
    int32_t n = 0, likely = 0; /* that min-p keeps */
    while (likely < w->n && !((double)w->l[likely] / temp_m - (double)w->l[0] / temp_m < log_min_p)) likely++;
    if (likely < 1) likely = 1;
    for (int32_t i = 0; i < all && (!(s->order & KN_ORDER_MIN_P_FIRST) || i < likely); i++)
        mass += (double)walk_weight(w, i, temp_p);
    if (s->top_p < 1) limit = (double)s->top_p * mass;
    for (; n < most && n < likely && (n == 0 || before < limit); n++)
        before += (double)walk_weight(w, n, temp_p);
    return n;
}

/* The place among the k of what slot i picks; -1: nothing. */
static int32_t walk_slot(const struct kn_walk *a, int32_t i, const float *scores)
{
    const struct kn_sampler *s = &a->sampler;
    struct walk_row w;
    double best = -INFINITY, mass = 0;
    int32_t pick = -1;
    a->out[i] = KN_PICK_NAN;
    if (a->logp) a->logp[i] = NAN;
    if (!scores || !walk_sort(a, a->ids + (int64_t)i * a->k, scores, &w)) return -1;
    const double temp = s->temp > 0 ? (double)s->temp : 1.0;
    const int32_t kept = s->temp > 0 ? walk_kept(s, &w) : w.n;
    for (int32_t c = 0; c < kept; c++) {
        mass += (double)walk_weight(&w, c, temp);
        if (s->temp == 0) continue;
        const double score = (double)w.l[c] / temp +
                             pick_gumbel(pick_word(s->seed, (uint32_t)a->pos[i] + 1, (uint32_t)w.id[c]));
        if (pick < 0 || score > best || (score == best && w.id[c] < w.id[pick])) best = score, pick = c;
    }
    if (pick < 0) pick = 0;
    a->out[i] = w.id[pick];
    if (a->logp) a->logp[i] = (float)(((double)w.l[pick] - (double)w.l[0]) / temp - cpu_log(mass));
    return w.from[pick];
}

int cpu_walk(struct kn_backend *kb, const struct kn_walk *a)
{
    struct cpu_backend *be = cpu_of(kb);
    if (a->n < 1 || a->n > KN_CYCLE_ROWS || a->k < 1 || a->k > KN_TOP_MOST)
        return cpu_fail(be, KN_EINVAL, "walk: %d slots of %d candidates", a->n, a->k);
    const int rc = cpu_check_sampler(be, "walk", &a->sampler);
    if (rc) return rc;
    for (int32_t i = 0, p = 0; i < a->n; i++)
        p = walk_slot(a, i, p < 0 ? NULL : a->scores + ((int64_t)i * a->k + p) * a->k);
    return 0;
}
