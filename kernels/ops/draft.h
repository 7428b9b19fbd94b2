/* draft.h - what stands between the products of a drafter. */
#ifndef DFLASH_OPS_DRAFT_H
#define DFLASH_OPS_DRAFT_H

#include <stdbool.h>
#include <stdint.h>
#include "sample.h"

struct kn_weight;

/* What stands between the products of a drafter's chain of picks (DSpark, Domino), number by number. x is
 * what a product left; s is the sigmoid; every product and sum is rounded by itself. */
enum kn_cell_kind {
    KN_CELL_SILU, /* out = x s(x), 3 ulp */
    KN_CELL_GATE, /* out = e s(x + bias) */
    /* x + bias [3, width] is g, c, o: out = tanh(o), next = s(g) state + (1 - s(g)) tanh(c) */
    KN_CELL_MARKOV,
    /* x and h [3, width] are r, z, n: next = (1 - s(xz + hz)) tanh(xn + s(xr + hr) hn) + s(xz + hz) state */
    KN_CELL_GRU,
    KN_CELL_LOGP, /* out = log s(x + bias), with one bias for all */
};
struct kn_cell {
    enum kn_cell_kind kind;
    int32_t width;
    const float *x;     /* [width], or [3, width] */
    const float *h;     /* GRU: [3, width], made of state; NULL where state is */
    const float *bias;  /* as x; LOGP: [1]. NULL: 0 */
    const float *e;     /* GATE: [width] */
    const float *state; /* MARKOV, GRU: [width]; NULL: zeros */
    float *next;        /* [width]; may be state */
    float *out;         /* [width]; may be x or e */
};

/* Rows of a block through a convolution along it, whose taps are made of the rows themselves: out[i, c] = sum
 * over t ascending of (base[t, c] + dynamic[i, t, c / group]) * v[i - t, c], v = x or rms_norm(x; norm), rows
 * before the first 0. A row's bits depend on it and on the rows before it in the call. */
struct kn_conv {
    const float *x;    /* [n, width] */
    const float *norm; /* NULL, or [width] */
    float eps;
    const float *base; /* [taps, width] */
    float *dynamic; /* [n, stride]: of every row so many values, [taps, width / group] of them from offset */
    int64_t stride, offset;
    float *out; /* [n, width]; apart from x and dynamic */
    bool add;   /* out += */
    int32_t n, width, group, taps;
    /* NULL, or the first of the matrices that norm_linear or norm_gated will multiply out with next: with
     * that norm and eps, or without where then_norm is NULL. A device may prepare for it; results do not
     * depend on it. */
    const struct kn_weight *then;
    const float *then_norm;
};
#define KN_CONV_TAPS 16 /* at most */

/* The k largest logits of every row in descending order, of equals the lowest id first. A logit of -Inf is
 * none: where there are fewer, ids KN_PICK_NAN, values -Inf. Of a row with a NaN or no finite maximum: ids
 * KN_PICK_NAN, values NaN. */
struct kn_top {
    const float *logits; /* [n, n_vocab] */
    int32_t n, n_vocab, k;
    int32_t *ids;  /* [n, k] */
    float *values; /* [n, k] */
};
#define KN_TOP_MOST 64 /* k at most */
#define KN_EDGE_RANK 1024

/* How well a candidate of a slot follows each of those of the slot before: scores[i, p, c] = values[i, c] +
 * scale * sum over r of (before[b, r] * hidden[i, r]) * after[ids[i, c], r], b = ids[i - 1, p]; or with left,
 * left[i, p, r] in place of the product. Slot 0 has one predecessor, *anchor: scores[0, 0, c]; the others of
 * it are not written. NaN where the predecessor is none, -Inf where the candidate is. */
struct kn_edges {
    const int32_t *ids;                     /* [n, k] of op->top */
    const float *values;                    /* [n, k] */
    const int32_t *anchor;                  /* one id in device memory */
    const float *hidden;                    /* [n, n_in of the tables]; NULL: ones */
    const struct kn_weight *before, *after; /* KN_USE_ROWS, [n_vocab, rank], rank at most
                                               KN_EDGE_RANK */
    float scale;
    int32_t n, k;
    float *scores;     /* [n, k, k] */
    const float *left; /* NULL, or [n, k, n_in]; then before and hidden are not read */
    const int32_t
        *row_of; /* NULL, or [n_ids]: the row of after that is an id's, -1: none, which counts as zeros */
    int32_t n_ids;
};

/* A walk from slot to slot along scores: in each, the sampler's pick (docs/sampling.md) among the k
 * candidates by scores[i, p, :] in place of logits, p the candidate picked in the slot before. Penalties are
 * not looked at. Where a slot picks nothing (a NaN, no finite maximum) none behind it does. */
struct kn_walk {
    const int32_t *ids;  /* [n, k] */
    const float *scores; /* [n, k, k]; of slot 0 the first k */
    const int32_t *pos;  /* [n] as in kn_pick: the pick of slot i stands at pos[i] + 1 */
    int32_t n, k;
    struct kn_sampler sampler;
    int32_t *out; /* [n] */
    float *logp;  /* NULL, or [n], as in kn_pick */
};

/* Rows that a head for further tokens reads: of each token its embedding and the hidden state before it, each
 * normed, side by side. The hidden states of a pass are those of its own rows, so they are read a row late:
 * row i reads row i - 1 of y, and row 0 the row of the position before it, which was kept (op->keep). */
struct kn_norm_pair {
    float *out;                /* [n, 2 width]: rms_norm(x; x_weight), then rms_norm(y; y_weight) */
    bool raw;                  /* x and y as they are; the weights are not looked at */
    const float *x, *x_weight; /* [n, width], [width] */
    const float *y, *y_weight; /* [n, width], or late [n - 1, width] (n 1: not looked at); [width] */
    const float *late; /* NULL: row i reads y[i]; else [slots, width]: of row 0, at (pos[0] - 1) % slots */
    int32_t slots;
    const int32_t *pos; /* [n or n_before] with late or before. 0 has none before it: 0 stands for that */
    int32_t *before;    /* NULL, or [n_before]: becomes pos[i] - 1 */
    int32_t n, n_before;
    int64_t width;
    float eps;
};

/* Logits of a vocabulary that is cut into clusters: those of ids outside the n_best clusters of the largest
 * scores (ties: the lowest cluster) become the smallest of the others', minus 1. */
struct kn_clusters {
    float *logits;                          /* [n, n_vocab] */
    const float *scores;                    /* [n, n_clusters] */
    const int32_t *of_id;                   /* [n_vocab] an id's cluster */
    int32_t n, n_vocab, n_clusters, n_best; /* n_clusters: KN_CLUSTERS at most */
};
#define KN_CLUSTERS 8192

#endif
