/* rows.c - the small operations: shape checks, and rows shared among threads. A call that is too small to pay
 * for waking threads runs on the caller's alone; a row's bits do not know the difference. */
#include "cpu.h"
#include "kv.h"
#include "rows.h"

#include <math.h>
#include <string.h>

#define SHARE CPU_SHARE

void cpu_share(struct cpu_backend *be, int64_t n, bool pays, void (*fn)(void *, int64_t, int), void *ctx)
{
    if (pays && n <= POOL_MAX_ITEMS)
        pool_run(be->pool, n, fn, ctx);
    else
        for (int64_t i = 0; i < n; i++) fn(ctx, i, 0);
}

struct embed_job {
    const struct cpu_rows *rows;
    const struct kn_weight *table;
    float *out;
    const int32_t *ids;
    size_t bytes;
    float scale;
};

static void embed_row(void *ctx, int64_t i, int thread)
{
    const struct embed_job *j = ctx;
    float *out = j->out + i * j->table->n_in;
    (void)thread;
    if (j->ids[i] == KN_PICK_NAN) {
        for (int64_t k = 0; k < j->table->n_in; k++) out[k] = NAN;
        return;
    }
    kn_decode_row(j->table->type, (const char *)j->table->rows + (size_t)j->ids[i] * j->bytes, out,
                  j->table->n_in);
    if (j->scale != 1.0f) j->rows->scale(out, j->table->n_in, j->scale);
}

int cpu_embed(struct kn_backend *kb, float *out, const struct kn_weight *table, const int32_t *ids, int32_t n,
              float scale)
{
    struct cpu_backend *be = cpu_of(kb);
    const struct cpu_rows *rows = be->isa->rows;
    size_t bytes = kn_row_bytes(table->type, table->n_in);
    int64_t n_in = table->n_in;
    if (!table->rows || !bytes)
        return cpu_fail(be, KN_EINVAL, "embed: the table has no rows (it was not loaded with KN_USE_ROWS)");
    for (int32_t i = 0; i < n; i++)
        if (ids[i] != KN_PICK_NAN && (ids[i] < 0 || ids[i] >= table->n_out))
            return cpu_fail(be, KN_EINVAL, "embed: token %d in row %d (expected 0 to %lld)", ids[i], i,
                            (long long)table->n_out - 1);
    const struct kn_type_info *t = kn_type_info(table->type);
    if (!t || !t->can_decode)
        return cpu_fail(be, KN_ETYPE, "embed: rows of type %s cannot be decoded", t ? t->name : "?");
    struct embed_job job = {rows, table, out, ids, bytes, scale};
    cpu_share(be, n, n * n_in >= SHARE, embed_row, &job);
    return 0;
}

struct rope_table_job {
    const struct cpu_rows *rows;
    float *out;
    const int32_t *pos, *origin;
    const double *freq;
    int32_t n_rot;
};

static void rope_table_row(void *ctx, int64_t i, int thread)
{
    const struct rope_table_job *j = ctx;
    (void)thread;
    const int32_t p = j->origin ? j->origin[j->pos[i]] : j->pos[i];
    j->rows->rope_table(j->out + i * j->n_rot, p, j->freq, j->n_rot / 2);
}

int cpu_rope_table(struct kn_backend *kb, float *out, const int32_t *pos, const int32_t *origin, int32_t n,
                   const double *freq, int32_t n_rot)
{
    struct cpu_backend *be = cpu_of(kb);
    int32_t half = n_rot / 2;
    if (n_rot < 2 || n_rot % 2)
        return cpu_fail(be, KN_EINVAL, "rope_table: n_rot %d (expected an even number)", n_rot);
    for (int32_t j = 0; j < half; j++)
        if (!(fabs(freq[j]) <= 1.0))
            return cpu_fail(be, KN_EINVAL, "rope_table: frequency %d is %g (expected at most 1)", j, freq[j]);
    struct rope_table_job job = {be->isa->rows, out, pos, origin, freq, n_rot};
    cpu_share(be, n, (int64_t)n * n_rot >= SHARE / 8, rope_table_row, &job);
    return 0;
}

struct rms_norm_job {
    const struct cpu_rows *rows;
    float *out;
    const float *x, *weight;
    int64_t width;
    float eps;
};

static void rms_norm_row(void *ctx, int64_t i, int thread)
{
    const struct rms_norm_job *j = ctx;
    (void)thread;
    j->rows->rms_norm(j->out + i * j->width, j->x + i * j->width, j->weight, j->width, j->eps);
}

int cpu_rms_norm(struct kn_backend *kb, float *out, const float *x, const float *weight, int32_t n,
                 int64_t width, float eps)
{
    struct cpu_backend *be = cpu_of(kb);
    if (width < 1) return cpu_fail(be, KN_EINVAL, "rms_norm: width %lld", (long long)width);
    struct rms_norm_job job = {be->isa->rows, out, x, weight, width, eps};
    cpu_share(be, n, n * width >= SHARE, rms_norm_row, &job);
    return 0;
}

struct norm_add_job {
    const struct cpu_rows *rows;
    float *out;
    const float *x, *y, *weight;
    int64_t width;
    float eps, scale;
};

static void norm_add_row(void *ctx, int64_t i, int thread)
{
    const struct norm_add_job *j = ctx;
    const int64_t at = i * j->width;
    (void)thread;
    j->rows->norm_add(j->out + at, j->x + at, j->y + at, j->weight, j->width, j->eps, j->scale);
}

int cpu_norm_add(struct kn_backend *kb, float *out, const float *x, const float *y, const float *weight,
                 int32_t n, int64_t width, float eps, float scale)
{
    struct cpu_backend *be = cpu_of(kb);
    if (n < 1 || width < 1)
        return cpu_fail(be, KN_EINVAL, "norm_add: %d rows of width %lld", n, (long long)width);
    struct norm_add_job job = {be->isa->rows, out, x, y, weight, width, eps, scale};
    cpu_share(be, n, n * width >= SHARE, norm_add_row, &job);
    return 0;
}

struct norm_pair_job {
    const struct cpu_rows *rows;
    const struct kn_norm_pair *a;
};

static void norm_pair_row(void *ctx, int64_t i, int thread)
{
    const struct norm_pair_job *j = ctx;
    const struct kn_norm_pair *a = j->a;
    const float *y = a->y + (a->late ? i - 1 : i) * a->width;
    float *out = a->out + 2 * i * a->width;
    (void)thread;
    if (a->late && i == 0) y = a->late + (a->pos[0] > 0 ? a->pos[0] - 1 : 0) % a->slots * a->width;
    if (a->raw) {
        memcpy(out, a->x + i * a->width, (size_t)a->width * sizeof *out);
        memcpy(out + a->width, y, (size_t)a->width * sizeof *out);
        return;
    }
    j->rows->rms_norm(out, a->x + i * a->width, a->x_weight, a->width, a->eps);
    j->rows->rms_norm(out + a->width, y, a->y_weight, a->width, a->eps);
}

int cpu_norm_pair(struct kn_backend *kb, const struct kn_norm_pair *a)
{
    struct cpu_backend *be = cpu_of(kb);
    struct norm_pair_job job = {be->isa->rows, a};
    if (a->n < 1 || a->width < 1 || (a->late && a->slots < 1))
        return cpu_fail(be, KN_EINVAL, "norm_pair: %d rows of width %lld, %d slots", a->n,
                        (long long)a->width, a->slots);
    for (int32_t i = 0; a->before && i < a->n_before; i++) a->before[i] = a->pos[i] > 0 ? a->pos[i] - 1 : 0;
    cpu_share(be, a->n, a->n * a->width >= SHARE, norm_pair_row, &job);
    return 0;
}

static void clusters_row(void *ctx, int64_t i, int thread)
{
    const struct kn_clusters *a = ctx;
    const float *s = a->scores + i * a->n_clusters;
    float *logits = a->logits + i * a->n_vocab, least = INFINITY;
    bool best[KN_CLUSTERS];
    (void)thread;
    for (int32_t k = 0; k < a->n_clusters; k++) {
        int32_t before = 0;
        for (int32_t j = 0; j < a->n_clusters; j++) before += s[j] > s[k] || (s[j] == s[k] && j < k);
        best[k] = before < a->n_best;
    }
    for (int32_t v = 0; v < a->n_vocab; v++)
        if (best[a->of_id[v]] && logits[v] < least) least = logits[v];
    for (int32_t v = 0; v < a->n_vocab; v++)
        if (!best[a->of_id[v]]) logits[v] = least - 1.0f;
}

int cpu_clusters(struct kn_backend *kb, const struct kn_clusters *a)
{
    struct cpu_backend *be = cpu_of(kb);
    struct kn_clusters job = *a;
    if (a->n < 1 || a->n_vocab < 1 || a->n_clusters < 1 || a->n_clusters > KN_CLUSTERS || a->n_best < 1 ||
        a->n_best > a->n_clusters)
        return cpu_fail(be, KN_EINVAL, "clusters: %d rows of %d ids, the best %d of %d clusters", a->n,
                        a->n_vocab, a->n_best, a->n_clusters);
    cpu_share(be, a->n, a->n > 1, clusters_row, &job);
    return 0;
}

struct gate_job {
    const struct cpu_rows *rows;
    float *x;
    const float *g;
    int64_t width, g_width;
};

static void gate_row(void *ctx, int64_t i, int thread)
{
    const struct gate_job *j = ctx;
    (void)thread;
    j->rows->gate(j->x + i * j->width, j->g + i * j->g_width, j->width, j->g_width == 1);
}

int cpu_gate(struct kn_backend *kb, float *x, const float *g, int32_t n, int64_t width, int64_t g_width)
{
    struct cpu_backend *be = cpu_of(kb);
    if (n < 1 || width < 1 || (g_width != width && g_width != 1))
        return cpu_fail(be, KN_EINVAL, "gate: %d rows of width %lld with %lld gates (expected as many, or 1)",
                        n, (long long)width, (long long)g_width);
    struct gate_job job = {be->isa->rows, x, g, width, g_width};
    cpu_share(be, n, n * width >= SHARE / 8, gate_row, &job);
    return 0;
}

int cpu_check_kv(struct cpu_backend *be, const char *op, const struct kn_kv *kv)
{
    char why[160];
    const int rc = kn_kv_check(kv, why, sizeof why);
    return rc ? cpu_fail(be, rc, "%s: %s", op, why) : 0;
}

struct rope_store_job {
    const struct cpu_rows *rows;
    const struct kn_rope_store *a;
    int parts; /* that heads are cut into */
};

/* n KV heads of row i from head on, and the query heads that share them. */
static void rope_store_heads(const struct rope_store_job *j, int64_t i, int32_t head, int32_t n)
{
    const struct kn_rope_store *a = j->a;
    const struct kn_kv *kv = a->kv;
    const int64_t d = kv->head_dim, slot = kv->n_head_kv * d, n_rep = a->q ? a->n_head / kv->n_head_kv : 0;
    struct cpu_rope r = {
        .k = a->k ? a->k + i * slot + head * d : NULL,
        .q = a->q ? a->q + (i * a->n_head + head * n_rep) * d : NULL,
        .v = a->k ? a->v + i * slot + head * d : NULL,
        .v_norm = a->v_norm,
        .q_norm = a->q_norm,
        .k_norm = a->k_norm,
        .table = a->table + (int64_t)i * a->n_rot,
        .n_head = n == kv->n_head_kv ? a->n_head : n * (int32_t)n_rep,
        .n_head_kv = n,
        .n_rot = a->n_rot,
        .interleaved = a->interleaved,
        .eps = a->eps,
        .kv = kv,
        .k_row = cpu_kv_row(kv, false, a->pos[i]),
        .v_row = cpu_kv_row(kv, true, a->pos[i]),
        .head = head,
    };
    j->rows->rope(&r);
}

static void rope_store_row(void *ctx, int64_t i, int thread)
{
    const struct rope_store_job *j = ctx;
    (void)thread;
    rope_store_heads(j, i, 0, j->a->kv->n_head_kv);
}

/* The heads of one part of a row, by the thread that computed them and whose attention reads them. Row after
 * row of all its heads: one head's rows lie multiples of 4096 bytes apart, where a load waits for stores that
 * it has nothing to do with. */
static void rope_store_part(void *ctx, int64_t i, int thread)
{
    const struct rope_store_job *j = ctx;
    const int64_t part = i / j->a->n, n_kv = j->a->kv->n_head_kv, first = n_kv * part / j->parts;
    (void)thread;
    rope_store_heads(j, i % j->a->n, (int32_t)first, (int32_t)(n_kv * (part + 1) / j->parts - first));
}

static int store_layer(struct cpu_backend *be, const struct kn_rope_store *a)
{
    const struct kn_kv *kv = a->kv;
    int rc = cpu_check_kv(be, "rope_store", kv);
    if (rc) return rc;
    if (a->n_rot < 0 || a->n_rot % 2 || a->n_rot > kv->head_dim)
        return cpu_fail(be, KN_EINVAL, "rope_store: n_rot %d (expected even, at most %d)", a->n_rot,
                        kv->head_dim);
    if (!kn_kv_holds(kv, 0, a->n - 1))
        return cpu_fail(be, KN_EINVAL, "rope_store: %d rows into a KV ring of %d", a->n, kn_kv_positions(kv));
    for (int32_t i = 0; i < a->n; i++)
        if (a->pos[i] < 0) return cpu_fail(be, KN_EINVAL, "rope_store: position %d in row %d", a->pos[i], i);
    const int64_t d = kv->head_dim, slot = kv->n_head_kv * d,
                  work = a->n * (slot * 2 + (a->q ? a->n_head * d : 0));
    struct rope_store_job job = {be->isa->rows, a, be->threads};
    const bool whole = !a->q || a->n_head % kv->n_head_kv == 0;
    if (work >= SHARE && whole && kv->n_head_kv >= be->threads && a->n <= CPU_ATTN_ROWS)
        cpu_share_near(be, (int64_t)be->threads * a->n, rope_store_part, &job);
    else
        cpu_share(be, a->n, work >= SHARE, rope_store_row, &job);
    return 0;
}

int cpu_rope_store(struct kn_backend *kb, const struct kn_rope_store *a)
{
    int rc = 0;
    for (; a && rc == 0; a = a->next) rc = store_layer(cpu_of(kb), a);
    return rc;
}

int cpu_tap(struct kn_backend *kb, float *dst, int64_t stride, int64_t offset, const float *x, int32_t n,
            int64_t width)
{
    if (offset < 0 || width < 0 || offset + width > stride)
        return cpu_fail(cpu_of(kb), KN_EINVAL, "tap: %lld values at %lld of a row of %lld", (long long)width,
                        (long long)offset, (long long)stride);
    for (int32_t i = 0; i < n; i++)
        memcpy(dst + i * stride + offset, x + i * width, (size_t)width * sizeof(float));
    return 0;
}

#define SOFTCAP_PIECE 4096

struct softcap_job {
    const struct cpu_rows *rows;
    float *x;
    int64_t count;
    float cap;
};

static void softcap_piece(void *ctx, int64_t i, int thread)
{
    const struct softcap_job *j = ctx;
    const int64_t from = i * SOFTCAP_PIECE;
    (void)thread;
    j->rows->softcap(j->x + from, j->count - from < SOFTCAP_PIECE ? j->count - from : SOFTCAP_PIECE, j->cap);
}

int cpu_softcap(struct kn_backend *kb, float *x, int64_t count, float cap)
{
    struct cpu_backend *be = cpu_of(kb);
    if (!(cap > 0.0f)) return cpu_fail(be, KN_EINVAL, "softcap: %g (expected more than 0)", (double)cap);
    struct softcap_job job = {be->isa->rows, x, count, cap};
    cpu_share(be, (count + SOFTCAP_PIECE - 1) / SOFTCAP_PIECE, count >= SHARE, softcap_piece, &job);
    return 0;
}

int cpu_find_bad(struct kn_backend *kb, const float *x, int32_t n, int64_t width, int32_t *bad)
{
    *bad = -1;
    for (int32_t i = 0; i < n && *bad < 0; i++)
        if (cpu_of(kb)->isa->rows->has_bad(x + i * width, width)) *bad = i;
    return 0;
}
