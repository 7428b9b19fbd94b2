/* sparse.c - block-sparse attention of prompts (ops/attention.h, struct kn_sparse). Threads share (block of
 * rows, kv head). A list's blocks that lie side by side in one group of keys are one run, so a full list
 * gives the bits of dense attention. */
#include "cpu.h"
#include "rows.h"
#include "../kv_rows.h"
#include "kv.h"

#include <math.h>
#include <string.h>

#define BLOCK KN_SPARSE_BLOCK
#define LOG_BLOCK 4.85203026f /* log of it */

struct sparse {
    const struct kn_attention *a;
    const struct cpu_rows *rows;
    const float *mean[2];                        /* keys, values: [blocks, n_kv, head_dim] */
    int32_t n_rep, n_kv, head_dim, m0, n_blocks; /* the first block of rows; all up to the last */
    char *scratch;
    size_t per_thread;
};

static size_t round64(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

/* Of a thread: turned queries; pairs M, E; which blocks are kept; a tile's attention. */
struct room {
    float *queries; /* [BLOCK, n_rep, head_dim] */
    float *scores;  /* [n_rep, blocks, 2] */
    float *lanes;   /* [BLOCK, 16] */
    float *part, *total, *group;
    bool *keep; /* [blocks] */
};

static size_t room_of(char *at, int32_t n_rep, int32_t head_dim, int64_t blocks, struct room *r)
{
    const size_t n_q = (size_t)CPU_ATTN_ROWS * (size_t)n_rep, part = n_q * cpu_attn_part(head_dim) * 4;
    size_t used = 0;
    const size_t size[7] = {BLOCK * (size_t)n_rep * (size_t)head_dim * 4,
                            (size_t)n_rep * (size_t)blocks * 8,
                            BLOCK * 16 * 4,
                            part,
                            part,
                            cpu_attn_scratch(CPU_ATTN_ROWS, n_rep, head_dim) * 4,
                            (size_t)blocks};
    size_t from[7];
    for (int i = 0; i < 7; i++) from[i] = used, used += round64(size[i]);
    if (r)
        *r = (struct room){(float *)(at + from[0]), (float *)(at + from[1]), (float *)(at + from[2]),
                           (float *)(at + from[3]), (float *)(at + from[4]), (float *)(at + from[5]),
                           (bool *)(at + from[6])};
    return used;
}

int cpu_sparse_room(struct kn_backend *kb, int32_t n, int32_t n_head, const struct kn_kv *kv,
                    struct kn_sparse_room *room)
{
    const int32_t blocks = kn_kv_positions(kv) / BLOCK;
    (void)n;
    room->mean = kn_kv_like(kv, blocks);
    room->mean.type = (struct kn_kv_types){KN_F32, KN_F32};
    room->scratch =
        (size_t)cpu_of(kb)->threads * room_of(NULL, n_head / kv->n_head_kv, kv->head_dim, blocks, NULL);
    return 0;
}

/* One head of a row as it lies there: rotated where the type is. */
static void numbers(const struct kn_kv *kv, bool values, int32_t pos, int32_t head, float *x)
{
    const char *row = cpu_kv_row(kv, values, pos);
    const uint32_t type = values ? kv->type.v : kv->type.k;
    const uint16_t *half = (const uint16_t *)row + (size_t)head * (size_t)kv->head_dim;
    if (kv_layout_of(type)) kv_decode(type, (const uint8_t *)row, x, kv->n_head_kv, kv->head_dim, head);
    if (type == KN_F32)
        memcpy(x, (const float *)row + (size_t)head * (size_t)kv->head_dim, (size_t)kv->head_dim * sizeof *x);
    for (int32_t i = 0; type == KN_F16 && i < kv->head_dim; i++) x[i] = kn_f16_to_f32(half[i]);
    for (int32_t i = 0; type == KN_BF16 && i < kv->head_dim; i++) x[i] = kn_bf16_to_f32(half[i]);
}

/* Means of one block and kv head. */
static void make_means(void *ctx, int64_t u, int thread)
{
    const struct sparse *p = ctx;
    const struct kn_kv *kv = p->a->kv;
    const int32_t head = (int32_t)(u % p->n_kv), b = p->a->sparse->made + (int32_t)(u / p->n_kv);
    float x[KV_HEAD];
    (void)thread;
    for (int side = 0; side < 2; side++) {
        float *mean = (float *)p->mean[side] + ((int64_t)b * p->n_kv + head) * p->head_dim;
        memset(mean, 0, (size_t)p->head_dim * sizeof *mean);
        for (int32_t i = 0; i < BLOCK; i++) {
            numbers(kv, side == 1, b * BLOCK + i, head, x);
            for (int32_t j = 0; j < p->head_dim; j++) mean[j] += x[j];
        }
        for (int32_t j = 0; j < p->head_dim; j++) mean[j] *= 1.0f / BLOCK;
    }
}

static void score(const struct sparse *p, const struct room *r, int32_t m, int32_t kv_head)
{
    const int64_t stride = (int64_t)p->n_kv * p->head_dim;
    float most[16], sum[16];
    for (int32_t h = 0; h < p->n_rep; h++)
        for (int32_t n = 0; n <= m; n += 16) {
            p->rows->sparse_scores(r->queries + (int64_t)h * p->head_dim, (int64_t)p->n_rep * p->head_dim,
                                   p->mean[0] + n * stride + (int64_t)kv_head * p->head_dim, stride,
                                   p->head_dim, p->a->scale, m - n, m + 1 - n, r->lanes, most, sum);
            for (int32_t i = 0; i < 16 && n + i <= m; i++) {
                float *to = r->scores + 2 * ((int64_t)h * (m + 1) + n + i);
                to[0] = most[i], to[1] = sum[i];
            }
        }
}

/* The positions [from, to) of what tile t reads, a part of one group, onto the total. grow: added to the
 * maximum. */
static void add_run(const struct sparse *p, const struct room *r, struct cpu_attn_tile *t, int32_t from,
                    int32_t to, const int32_t *pos, float grow)
{
    const size_t size = cpu_attn_part(p->head_dim);
    int32_t lo[CPU_ATTN_ROWS], hi[CPU_ATTN_ROWS];
    for (int32_t i = 0; i < t->n_rows; i++) {
        lo[i] = from;
        hi[i] = pos && pos[i] + 1 < to ? pos[i] + 1 : to;
        if (hi[i] < from) hi[i] = from;
    }
    t->lo = lo, t->hi = hi;
    p->rows->attn_group(t, from / CPU_ATTN_GROUP, r->part, r->group);
    for (int32_t q = 0; q < t->n_rows * t->n_rep; q++) {
        r->part[(size_t)q * size] += grow;
        p->rows->attn_merge(r->total + (size_t)q * size, r->part + (size_t)q * size, p->head_dim);
    }
}

/* CPU_ATTN_ROWS rows from row on: the runs of the list, then those of the means of all others. */
static void attend(const struct sparse *p, const struct room *r, int32_t m, int32_t row, int32_t kv_head)
{
    const struct kn_attention *a = p->a;
    const size_t size = cpu_attn_part(p->head_dim);
    struct cpu_attn_tile t = {.q = a->q + ((int64_t)row * a->n_head + kv_head * p->n_rep) * p->head_dim,
                              .n_rows = CPU_ATTN_ROWS,
                              .n_rep = p->n_rep,
                              .n_head = a->n_head,
                              .head_dim = p->head_dim,
                              .scale = a->scale,
                              .kv = a->kv,
                              .kv_head = kv_head};
    memset(r->total, 0, (size_t)(CPU_ATTN_ROWS * p->n_rep) * size * sizeof(float));
    for (int32_t q = 0; q < CPU_ATTN_ROWS * p->n_rep; q++) r->total[(size_t)q * size] = -INFINITY;
    for (int means = 0; means < 2; means++) {
        const int32_t wide = means ? 1 : BLOCK, per = CPU_ATTN_GROUP / wide;
        if (means) {
            t.kv = &a->sparse->mean;
            t.q = r->queries + (int64_t)(row % BLOCK) * p->n_rep * p->head_dim;
            t.n_head = p->n_rep;
        }
        for (int32_t n = 0, end; n <= m; n = end) {
            for (end = n + 1; end <= m && end % per && r->keep[end] == r->keep[n]; end++) continue;
            if (r->keep[n] == !means)
                add_run(p, r, &t, n * wide, end * wide, means ? NULL : a->pos + row, means ? LOG_BLOCK : 0);
        }
    }
    for (int32_t q = 0; q < CPU_ATTN_ROWS * p->n_rep; q++) {
        const int64_t head = (int64_t)(row + q / p->n_rep) * a->n_head + kv_head * p->n_rep + q % p->n_rep;
        p->rows->attn_finish(a->kv, a->out + head * p->head_dim, r->total + (size_t)q * size, NULL);
    }
}

static void block_head(void *ctx, int64_t u, int thread)
{
    const struct sparse *p = ctx;
    const struct kn_attention *a = p->a;
    const int32_t n_own = a->n / BLOCK, own = n_own - 1 - (int32_t)u / p->n_kv, /* the longest first */
        kv_head = (int32_t)u % p->n_kv, m = p->m0 + own;
    struct room r;
    room_of(p->scratch + (size_t)thread * p->per_thread, p->n_rep, p->head_dim, p->n_blocks, &r);
    for (int32_t i = 0; i < BLOCK; i++)
        for (int32_t h = 0; h < p->n_rep; h++) {
            float *to = r.queries + ((int64_t)i * p->n_rep + h) * p->head_dim;
            memcpy(to, a->q + ((int64_t)(own * BLOCK + i) * a->n_head + kv_head * p->n_rep + h) * p->head_dim,
                   (size_t)p->head_dim * sizeof *to);
            kv_turn(a->kv->type.k, false, to, p->head_dim);
        }
    score(p, &r, m, kv_head);
    const int32_t kept = kn_sparse_keep(a->sparse, m, p->n_rep, r.scores, r.keep);
    __atomic_fetch_add(a->sparse->kept, (uint64_t)kept, __ATOMIC_RELAXED);
    __atomic_fetch_add(a->sparse->kept + 1, (uint64_t)m + 1, __ATOMIC_RELAXED);
    for (int32_t i = 0; i < BLOCK; i += CPU_ATTN_ROWS) attend(p, &r, m, own * BLOCK + i, kv_head);
}

int cpu_attention_sparse(struct cpu_backend *be, const struct kn_attention *a)
{
    const struct kn_sparse *s = a->sparse;
    const int32_t n_kv = a->kv->n_head_kv, n_rep = a->n_head / n_kv,
                  n_blocks = (a->pos[a->n - 1] + 1) / BLOCK;
    if (!a->causal || a->window || a->first || a->tree || a->n % BLOCK || a->pos[0] % BLOCK ||
        s->window < 1 || s->sink < 0 || !(s->alpha >= 0) || kn_kv_positions(&s->mean) < n_blocks ||
        s->mean.type.k != KN_F32 || s->mean.type.v != KN_F32)
        return cpu_fail(be, KN_EINVAL,
                        "attention: %d sparse rows at %d (expected whole blocks of %d, causal, without "
                        "window, and room for the means of %d blocks)",
                        a->n, a->pos[0], BLOCK, n_blocks);
    struct sparse p = {.a = a,
                       .rows = be->isa->rows,
                       .mean = {s->mean.k, s->mean.v},
                       .n_rep = n_rep,
                       .n_kv = n_kv,
                       .head_dim = a->kv->head_dim,
                       .m0 = a->pos[0] / BLOCK,
                       .n_blocks = n_blocks,
                       .scratch = s->scratch};
    p.per_thread = room_of(NULL, n_rep, p.head_dim, kn_kv_positions(a->kv) / BLOCK, NULL);
    pool_run(be->pool, (int64_t)(n_blocks - s->made) * n_kv, make_means, &p);
    pool_run(be->pool, (int64_t)(a->n / BLOCK) * n_kv, block_head, &p);
    return 0;
}
