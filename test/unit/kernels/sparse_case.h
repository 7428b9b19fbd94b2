/* sparse_case.h - queries, keys and values whose blocks differ, for tests of block-sparse attention on either
 * backend. Every block of keys has a direction of its own, and every query a block that it looks for. */
#ifndef TEST_SPARSE_CASE_H
#define TEST_SPARSE_CASE_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "../../../kernels/kernels.h"
#include "../rnd.h"
#include "attention_case.h"

struct sparse_case {
    const char *name;
    int32_t first, n; /* the first row's position; rows: multiples of KN_SPARSE_BLOCK */
    int32_t n_head, n_kv, d;
    struct kn_kv_types type;
};

struct sparse_data {
    float *q;        /* [n, n_head, d] */
    int32_t *pos;    /* [n] */
    struct kn_kv kv; /* on the host, filled */
    double big;      /* the largest value */
};

static inline struct sparse_data sparse_make(const struct sparse_case *c, uint64_t seed)
{
    const int32_t end = c->first + c->n, blocks = end / KN_SPARSE_BLOCK, row = c->n_kv * c->d;
    struct sparse_data a = {.q = calloc((size_t)c->n * (size_t)c->n_head * (size_t)c->d, sizeof(float)),
                            .pos = calloc((size_t)c->n, sizeof(int32_t)),
                            .kv = {.type = c->type, .n_head_kv = c->n_kv, .head_dim = c->d}};
    float *way = calloc((size_t)blocks * (size_t)row, sizeof *way), *x = calloc((size_t)row, sizeof *x);
    a.kv.cap = kn_kv_room(end);
    a.kv.k = calloc(1, kn_kv_bytes(&a.kv, c->type.k));
    a.kv.v = calloc(1, kn_kv_bytes(&a.kv, c->type.v));
    rnd_fill(way, (size_t)blocks * (size_t)row, 1.0f, &seed);
    for (int32_t p = 0; p < end; p++) {
        char *k = (char *)a.kv.k + (size_t)p * kn_kv_row_bytes(&a.kv, c->type.k),
             *v = (char *)a.kv.v + (size_t)p * kn_kv_row_bytes(&a.kv, c->type.v);
        rnd_fill(x, (size_t)row, 1.0f, &seed);
        for (int32_t i = 0; i < row; i++) x[i] += way[(int64_t)(p / KN_SPARSE_BLOCK) * row + i];
        kn_kv_put(&a.kv, false, x, k);
        rnd_fill(x, (size_t)row, 1.0f, &seed);
        for (int32_t i = 0; i < row; i++) {
            x[i] += way[(int64_t)(p / KN_SPARSE_BLOCK) * row + (i * 7 + 3) % row];
            a.big = fmax(a.big, fabs((double)x[i]));
        }
        kn_kv_put(&a.kv, true, x, v);
    }
    rnd_fill(a.q, (size_t)c->n * (size_t)c->n_head * (size_t)c->d, 0.5f, &seed);
    for (int32_t i = 0; i < c->n; i++) {
        a.pos[i] = c->first + i;
        for (int32_t h = 0; h < c->n_head; h++) { /* those of one block of rows look for a few blocks alone */
            const int32_t own = a.pos[i] / KN_SPARSE_BLOCK, b = (own * 5 + h * 3 + i % 3) % (own + 1),
                          head = h / (c->n_head / c->n_kv);
            for (int32_t j = 0; j < c->d; j++)
                a.q[((int64_t)i * c->n_head + h) * c->d + j] +=
                    0.4f * way[(int64_t)b * row + head * c->d + j];
        }
    }
    free(way);
    free(x);
    return a;
}

struct sparse_setting {
    float alpha, density;
    int32_t sink, window;
    bool spread;
};

static inline void sparse_set(struct kn_sparse *sparse, const struct sparse_setting *s)
{
    sparse->alpha = s->alpha, sparse->density = s->density, sparse->spread = s->spread;
    sparse->sink = s->sink, sparse->window = s->window;
}

/* Rows from row from on, most of them at most; q, pos and out are all rows'. sparse NULL: dense. */
static inline struct kn_attention sparse_call(const struct sparse_case *c, const struct kn_kv *kv,
                                              const float *q, const int32_t *pos, int32_t from, int32_t most,
                                              struct kn_sparse *sparse, float *out)
{
    const struct att_case all = {.n = c->n, .n_head = c->n_head, .d = c->d, .first = -1, .causal = true};
    struct kn_attention t = att_call(&all, kv, q, pos, NULL, from, most, out);
    t.sparse = sparse;
    return t;
}

static inline void sparse_drop(struct sparse_data *a)
{
    free(a->q);
    free(a->pos);
    free(a->kv.k);
    free(a->kv.v);
}

#endif
