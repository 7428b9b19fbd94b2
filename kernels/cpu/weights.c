/* weights.c - what rows of queries attend to (op->attention_weights): scores, softmax, and what is made of
 * them, each over all heads before the next begins. Products of floats are summed in double, in the order of
 * the head's numbers, four sums apart; so the bits are those of every instruction set. */
#include "cpu.h"
#include "kv.h"
#include "rows.h"

#include <math.h>

enum { KEYS = 64, ROW = 16384 }; /* keys an item; numbers of a key's row at most */

struct job {
    const struct kn_attention_weights *a;
    const struct cpu_rows *rows;
};

static float *scores_of(const struct kn_attention_weights *a, int64_t row, int32_t head)
{
    return a->scratch + (row * a->n_head + head) * a->n_keys;
}

static double dot(const float *x, const float *y, int32_t n)
{
    double s[4] = {0};
    int32_t i = 0;
    for (; i + 4 <= n; i += 4)
        for (int j = 0; j < 4; j++) s[j] += (double)x[i + j] * (double)y[i + j];
    for (; i < n; i++) s[0] += (double)x[i] * (double)y[i];
    return (s[0] + s[1]) + (s[2] + s[3]);
}

/* Scores of KEYS keys with every query. */
static void score_keys(void *ctx, int64_t item, int thread)
{
    const struct kn_attention_weights *a = ((struct job *)ctx)->a;
    const int32_t d = a->kv->head_dim, rep = a->n_head / a->kv->n_head_kv;
    const int32_t from = (int32_t)item * KEYS, end = from + KEYS < a->n_keys ? from + KEYS : a->n_keys;
    float k[ROW];
    (void)thread;
    for (int32_t j = from; j < end; j++) {
        kn_kv_get(a->kv, false, cpu_kv_row(a->kv, false, j), k);
        for (int32_t r = 0; r < a->n; r++) {
            if (j > a->pos[r]) continue;
            for (int32_t h = 0; h < a->n_head; h++)
                scores_of(a, r, h)[j] =
                    (float)(dot(a->q + ((int64_t)r * a->n_head + h) * d, k + h / rep * d, d) *
                            (double)a->scale);
        }
    }
}

/* The softmax of one query. */
static void weigh_query(void *ctx, int64_t item, int thread)
{
    const struct job *job = ctx;
    const struct kn_attention_weights *a = job->a;
    float *s = a->scratch + item * a->n_keys, most = -INFINITY;
    const int32_t pos = a->pos[item / a->n_head], n = pos < a->n_keys ? pos + 1 : a->n_keys;
    double sum = 0;
    (void)thread;
    for (int32_t j = 0; j < n; j++)
        if (s[j] > most) most = s[j];
    for (int32_t j = 0; j < n; j++) s[j] -= most;
    job->rows->exp(s, n);
    for (int32_t j = 0; j < n; j++) sum += (double)s[j];
    for (int32_t j = 0; j < n; j++) s[j] = (float)((double)s[j] / sum);
    for (int32_t j = n; j < a->n_keys; j++) s[j] = 0;
}

/* KEYS keys of every row of out. */
static void join_heads(void *ctx, int64_t item, int thread)
{
    const struct kn_attention_weights *a = ((struct job *)ctx)->a;
    const int32_t from = (int32_t)item * KEYS, end = from + KEYS < a->n_keys ? from + KEYS : a->n_keys;
    (void)thread;
    for (int32_t r = 0; r < a->n; r++)
        for (int32_t j = from; j < end; j++) {
            const int32_t lo = j - a->pool / 2 < 0 ? 0 : j - a->pool / 2,
                          hi = j + a->pool / 2 < a->n_keys ? j + a->pool / 2 : a->n_keys - 1;
            float *out = a->out + (int64_t)r * a->n_keys + j;
            for (int32_t h = 0; h < a->n_head; h++) {
                const float *p = scores_of(a, r, h);
                double sum = 0;
                for (int32_t i = lo; i <= hi; i++) sum += (double)p[i];
                const float m = (float)(sum / a->pool);
                if (m > *out) *out = m;
            }
        }
}

int cpu_attention_weights(struct kn_backend *kb, const struct kn_attention_weights *a)
{
    struct cpu_backend *be = cpu_of(kb);
    struct job job = {a, be->isa->rows};
    const int rc = cpu_check_kv(be, "attention_weights", a->kv);
    if (rc) return rc;
    if (kn_kv_coded(a->kv->type.k) || a->n_head % a->kv->n_head_kv ||
        (int64_t)a->kv->n_head_kv * a->kv->head_dim > ROW)
        return cpu_fail(be, KN_ETYPE, "attention_weights: keys of type %s, %d query and %d key heads of %d",
                        kn_kv_name(a->kv->type.k), a->n_head, a->kv->n_head_kv, a->kv->head_dim);
    if (a->n < 1 || a->n_keys < 1 || a->pool < 1 || a->pool % 2 == 0 || a->n_keys > kn_kv_positions(a->kv))
        return cpu_fail(be, KN_EINVAL,
                        "attention_weights: %d rows, pool of %d (expected an odd one), %d keys", a->n,
                        a->pool, a->n_keys);
    const int64_t queries = (int64_t)a->n * a->n_head, all = queries * a->n_keys;
    const int64_t parts = (a->n_keys + KEYS - 1) / KEYS;
    cpu_share(be, parts, all * a->kv->head_dim >= CPU_SHARE, score_keys, &job);
    cpu_share(be, queries, all >= CPU_SHARE / 4, weigh_query, &job);
    cpu_share(be, parts, all >= CPU_SHARE / 4, join_heads, &job);
    return 0;
}
