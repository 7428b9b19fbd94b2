/* rows.h - inner kernels of the small operations: everything of the CPU backend but the matrix products.
 *
 * One table of functions for each instruction set, compiled from rows.inc.h, attention.inc.h, pick.inc.h
 * and the like.
 * A function works for one row (or one tile of rows) on the calling thread; rows.c, attention.c and pick.c
 * check shapes and share the work among threads. Nothing here allocates. */
#ifndef DFLASH_CPU_ROWS_H
#define DFLASH_CPU_ROWS_H

#include "cpu.h"

/* Attention cuts the keys at absolute multiples of KN_KV_SPLIT; the splits of one group of this many keys are
 * merged in ascending order, then the groups are, in ascending order. A group is the unit that threads share.
 */
#define CPU_ATTN_GROUP (4 * KN_KV_SPLIT)
#define CPU_ATTN_ROWS 16 /* rows of a tile: they share every load of a key or value */

/* One kv head, one tile of rows. A query row is (row, query head):
 * r = i * n_rep + h, i < n_rows, h < n_rep. */
struct cpu_attn_tile {
    const float
        *q; /* row i, head h at q + (i * n_head + h) * head_dim: already at the kv head's first query head */
    int32_t n_rows, n_rep, n_head, head_dim;
    float scale;
    const struct kn_kv *kv;
    int32_t kv_head;
    const int32_t *lo, *hi;     /* [n_rows] row i sees the keys at positions lo[i] <= p < hi[i] */
    const struct kn_tree *tree; /* NULL, or row i is row + i of a tree, whose own keys are in tail */
    const struct kn_kv *tail;
    int32_t row;
};

/* Floats a query row's partial result takes: the maximum, the sum, and the weighted values (from CPU_ATTN_ACC
 * on). */
#define CPU_ATTN_ACC 16
static inline size_t cpu_attn_part(int32_t head_dim)
{
    return (size_t)CPU_ATTN_ACC + (size_t)head_dim;
}
/* Floats of scratch that attn_group needs for a tile: weights, a partial result and the rotated query of each
 * row; two tiles of 16 keys. */
static inline size_t cpu_attn_scratch(int32_t n_rows, int32_t n_rep, int32_t head_dim)
{
    size_t r = (size_t)n_rows * (size_t)n_rep;
    return r * (KN_KV_SPLIT + cpu_attn_part(head_dim) + (size_t)head_dim) + 2 * 16 * (size_t)head_dim;
}

struct cpu_rope {
    float *k, *q;   /* of one row n_head_kv heads, [n_head_kv, head_dim]; [n_head, head_dim] or NULL */
    const float *v; /* may be k */
    bool v_norm;
    const float *q_norm, *k_norm;
    const float *table; /* [n_rot/2, 2] */
    int32_t n_head, n_head_kv, n_rot;
    bool interleaved;
    float eps;
    const struct kn_kv *kv;
    char *k_row, *v_row; /* of the position, all heads */
    int32_t head;        /* that k and v begin with */
};

struct cpu_pick_work {
    float *logits;  /* [n_vocab] penalised copy */
    float *block;   /* [n_vocab / 64 + 1] block maxima */
    uint64_t *heap; /* [n_vocab] candidates */
};

/* The same of the items that a call's rows are dealt out to (pick.c), in scratch_rows. */
struct cpu_pick_room {
    char *scratch;
    int64_t n_vocab;
    int items;
};
int cpu_pick_room(struct cpu_backend *be, const char *op, int32_t n, int64_t n_vocab,
                  struct cpu_pick_room *r);
struct cpu_pick_work cpu_pick_work(const struct cpu_pick_room *r, int64_t item);
int cpu_check_sampler(struct cpu_backend *be, const char *op, const struct kn_sampler *s);

/* A run of tokens of a gated delta net layer: one key head and the value heads k_head + j * n_k, first <= j <
 * end. */
#define CPU_DELTA_TOKENS (2 * KN_DELTA_LOG) /* a run: what may be pending and what a call may add */
#define CPU_DELTA_HEAD KN_DELTA_HEAD
#define CPU_DELTA_TAPS KN_DELTA_TAPS
#define CPU_DELTA_FLOATS (CPU_DELTA_TAPS * CPU_DELTA_HEAD + CPU_DELTA_TOKENS * (4 * CPU_DELTA_HEAD + 3))
struct cpu_delta {
    const struct kn_delta *a;
    const float *const *in;                  /* [n_conv - 1 + n_tokens] rows of the convolution's input */
    const float *const *alpha, *const *beta; /* [n_tokens] rows of n_v */
    int32_t n_tokens, replay;                /* the first of them are replayed: they have no output */
    int32_t advance;     /* the committed state takes this many of them: none, replay, or all */
    int32_t row;         /* of out and z: that of the first token with output */
    const uint8_t *rows; /* or NULL; else of token t with output, in place of row: rows[t - replay] */
    int32_t k_head, first, end;
    float *scratch; /* [CPU_DELTA_FLOATS] of this thread */
};

struct cpu_rows {
    /* out = x / sqrt(mean(x^2) + eps) * weight (NULL: 1). out may be x. Sum: v_dot's shape. Then x * (1/rms)
     * * weight. */
    void (*rms_norm)(float *out, const float *x, const float *weight, int64_t width, float eps);
    float (*rms_scale)(const float *x, int64_t width, float eps); /* rms_norm's 1 / sqrt(..) */
    /* out = (x + rms_norm(y; weight)) * scale, each step rounded; out may be x */
    void (*norm_add)(float *out, const float *x, const float *y, const float *weight, int64_t width,
                     float eps, float scale);
    /* x *= sigmoid(g): g [n], or one for all */
    void (*gate)(float *x, const float *g, int64_t n, bool one);
    void (*scale)(float *x, int64_t n, float s);
    void (*softcap)(float *x, int64_t n, float cap);
    void (*cell)(const struct kn_cell *);
    bool (*has_bad)(const float *x, int64_t n); /* a NaN or Inf among them */
    /* out[half, 2] = cos, sin of pos * freq[half], in double */
    void (*rope_table)(float *out, int32_t pos, const double *freq, int32_t half);
    void (*rope)(const struct cpu_rope *);
    /* part[r, cpu_attn_part]: the keys at positions [g * CPU_ATTN_GROUP, ...) of one group, for each query
     * row */
    void (*attn_group)(const struct cpu_attn_tile *, int64_t g, float *part, float *scratch);
    /* total = total then part, in order; an empty one (sum 0 and maximum -inf) changes nothing */
    void (*attn_merge)(float *total, const float *part, int32_t head_dim);
    void (*attn_finish)(const struct kn_kv *, float *out, const float *total, const float *sink);
    void (*sparse_scores)(const float *q, int64_t row, const float *k, int64_t stride, int64_t d, float scale,
                          int32_t all, int32_t last, float *s, float m[16], float e[16]);
    /* The id that row picks, or KN_PICK_NAN; KN_PICK_NAN - 1: a token of the history is outside the
     * vocabulary */
    int32_t (*pick)(const struct kn_pick *, int32_t row, const struct cpu_pick_work *);
    /* Of drafters: draft.inc.h */
    void (*conv)(const struct kn_conv *, int32_t row, const float *scale);
    void (*top)(const struct kn_top *, int32_t row, const struct cpu_pick_work *);
    void (*edge)(float *scores, const float *values, const float *from, const float *after, int32_t k,
                 int64_t rank, float scale);
    void (*delta)(const struct cpu_delta *);
    void (*route)(const struct kn_route *, int32_t row);
    /* out[n] = sum over j ascending of w[j] * r[j, lanes], or out += that sum; n <= lanes <= 16 */
    void (*weigh)(float *out, const float *r, const float *w, int32_t n_used, int32_t lanes, int32_t n,
                  bool add);
    /* For tests: x = exp(x); out = act(gate) * up, out may be gate */
    void (*exp)(float *x, int64_t n);
    void (*gated)(float *out, const float *gate, const float *up, int64_t n, enum kn_act act);
};
extern const struct cpu_rows cpu_rows_scalar, cpu_rows_avx2, cpu_rows_avx512;

#endif
