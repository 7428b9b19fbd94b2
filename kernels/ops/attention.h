/* attention.h - what attention and its neighbours take: rope and store, queries over a cache, over a tree,
 * over blocks of a prompt. */
#ifndef DFLASH_OPS_ATTENTION_H
#define DFLASH_OPS_ATTENTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "kv.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kn_tree;
struct kn_weight;

/* ---- block-sparse attention of a prompt (docs/sparse.md) ----
 *
 * Positions are cut into blocks of KN_SPARSE_BLOCK at absolute multiples. Of every block before the rows of a
 * call the means of keys and of values are kept, as a cache of which position b is block b. A block m of rows
 * attends to the blocks n <= m of its list alone, a list a KV head: the first `sink`, the last `window` (its
 * own among them), and those that any query head of that KV head keeps: with s(r, n) = scale * q_r . mean key
 * of n and of rows r that see all of block n,
 *
 *     M[n] = max_r s(r, n) in units of log 2, rounded up;  E[n] = sum_r exp(s(r, n)) / 2^M[n]
 *     kept: E[n] 2^M[n] >= alpha * max_n E[n] 2^M[n]
 *
 * A block that is not kept adds KN_SPARSE_BLOCK * exp(s(r, n)) to row r's sum of weights, and that times its
 * mean value to the weighted values. Scores, the shared maximum: FlashPrefill (arXiv 2603.06199); the
 * correction by means: its second version (2608.19758). */
#define KN_SPARSE_BLOCK 128
struct kn_sparse {
    float alpha;          /* 0: every block; above 1: none but sink and window */
    int32_t sink, window; /* blocks; window 1 or more */
    struct kn_kv mean;    /* of op->sparse_room, with memory */
    int32_t made;         /* blocks whose means are there; those after it, up to the last row's, are made */
    void *scratch;        /* of op->sparse_room; may be another layer's too */
    uint64_t *kept;       /* [2] device: += (block of rows, block) kept, and seen, of all KV heads */
    bool spread;          /* for tests and benchmarks: as many as are kept, but spread evenly, */
    float density;        /* or, above 0, so large a part of what is seen */
};
/* What sparse attention wants beside the cache. */
struct kn_sparse_room {
    struct kn_kv mean; /* its k and v are NULL */
    size_t scratch;    /* bytes */
};
/* Which of the blocks 0 .. m a block m of rows attends to: keep[m + 1]. score: [n_rep, m + 1] pairs M, E.
 * Returns how many. */
int32_t kn_sparse_keep(const struct kn_sparse *s, int32_t m, int32_t n_rep, const float *score, bool *keep);

struct kn_attention {
    const float *q;         /* [n, n_head, head_dim] after norm and rope */
    float *out;             /* [n, n_head, head_dim]; may not alias q */
    const struct kn_kv *kv; /* already holds the rows' own keys (op->rope_store before) */
    const int32_t *pos;     /* [n] */
    int32_t n, n_head;      /* query head h reads kv head h / (n_head / n_head_kv) */
    float scale;
    bool causal;    /* true: keys at positions <= the row's own. false: keys up to the last row's position
                       pos[n-1] */
    int32_t window; /* 0: none; else a key is visible iff row - key < window, and key - row < window where not
                       causal */
    const int32_t
        *first; /* NULL, or one int32 in device memory: keys at positions < *first are not visible */
    const struct kn_weight *then; /* NULL, or what linear will multiply out with next, with nothing between: a
                                     device may prepare for it. Results do not depend on it */
    const float *gate; /* NULL, or what gate_linear will gate out with before that, [n, n_head, head_dim] */
    /* NULL, or rows of a tree, in device memory; pos is its pos, causal. Its rows' keys and values are not in
     * kv: row r's are row r of tail, a cache of kv's shape and types (op->rope_store at positions 0 .. n - 1
     * of it). A row gets the bits that it has as the last row of its path, run as a chain. */
    const struct kn_tree *tree;
    const struct kn_kv *tail;
    /* NULL, or causal rows, without window, first and tree, that are whole blocks: n and pos[0] are multiples
     * of KN_SPARSE_BLOCK. A row gets the bits that it has whatever other blocks of rows share the call. */
    const struct kn_sparse *sparse;
    /* NULL, or [n_head], without sparse: every row of a head sees one key more, whose score this is (as it
     * stands, without scale) and whose value is zero. A row that sees no other gives zeros. Only where
     * ops.sinks. */
    const float *sinks;
};

/* What rows of queries attend to. p[r, h, j] is the softmax, over the keys j <= pos[r] of the first n_keys,
 * of scale * q[r, h] . k[j]; 0 for other keys. m[r, h, j] is the sum of p[r, h, i] over |i - j| <= pool / 2,
 * over pool. out[r, j] becomes the largest of itself and of m[r, h, j] over all heads. */
struct kn_attention_weights {
    const float *q;         /* [n, n_head, head_dim] after norm and rope */
    const struct kn_kv *kv; /* f16, bf16 or f32 keys; holds positions 0 .. n_keys - 1 */
    const int32_t *pos;     /* [n] */
    int32_t n, n_head, n_keys;
    float scale;
    int32_t pool;   /* odd, 1 or more */
    float *scratch; /* [n, n_head, n_keys] */
    float *out;     /* [n, n_keys] */
};

struct kn_rope_store {
    float *q; /* [n, n_head, head_dim] in place, or NULL (context rows have no query) */
    float *k; /* [n, n_head_kv, head_dim] in place: overwritten with the normed, rotated key; NULL: queries
                 alone, and nothing is stored */
    const float *v; /* [n, n_head_kv, head_dim]; may be k (keys and values of one projection): the values are
                       then taken before k is normed and rotated */
    bool v_norm;    /* values are RMS normed a head, without a weight, before they are stored */
    const float *q_norm, *k_norm; /* [head_dim] or NULL: RMS norm a head before rope */
    const float *table;           /* [n, n_rot/2, 2] cos, sin of op->rope_table */
    const int32_t *pos;           /* [n] */
    int32_t n, n_head, n_rot;
    bool interleaved; /* false: pairs (i, i + n_rot/2), NEOX; true: pairs (2i, 2i+1) */
    float eps;
    const struct kn_kv *kv; /* k and v are rounded to its types and written where pos lies */
    const struct kn_rope_store
        *next; /* NULL, or another layer's rows, as many, in the same call: the call takes the whole list */
};

#ifdef __cplusplus
}
#endif
#endif
