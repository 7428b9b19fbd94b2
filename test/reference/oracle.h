/* oracle.h - a slow, plain float64 reference of a Qwen3 or dense Qwen3.5 target, its DFlash drafter, and the
 * greedy loop over the two.
 *
 * It reads Hugging Face directories, shares no code with the engine but the file readers, and keeps whole
 * sequences instead of caches where that is simpler to believe. Drafters are DFlash or DFlash2
 * (dflash/model.py of Z Lab). The tests compare the engine with it: logits within a stated tolerance, ids up
 * to near-ties, every cycle's proposals. Sources: the Qwen3 block; the Qwen3.5 block and "Gated Delta
 * Networks", arXiv 2412.06464; DFlash, arXiv 2602.06036 (taps are the residual stream after a block; context
 * features skip input_layernorm; the block is [anchor, mask...]). */
#ifndef DFLASH_ORACLE_H
#define DFLASH_ORACLE_H

#include <stdbool.h>
#include <stdint.h>
#include "../../common/base/err.h"

struct oracle_layer {
    double *attn_norm, *ffn_norm, *q_norm, *k_norm; /* [E], [E], [D], [D] */
    double *q, *k, *v, *o;                          /* [H*D, E], [G*D, E] x2, [E, H*D] */
    double *gate, *up, *down;                       /* [F, E] x2, [E, F] */
    int window;                                     /* 0: full */
    bool causal;
    /* a gated delta net in place of attention: qkv is not NULL; W = 2*K*d + M*d channels */
    double *qkv, *z, *alpha, *beta, *out;   /* [W, E], [M*d, E], [M, E] x2, [E, M*d] */
    double *conv, *a_log, *dt, *delta_norm; /* [W, conv], [M] x2, [d] */
    /* DFlash2: around attention and around the feed-forward, [2, taps, E] and [2 * taps * E / group, E] */
    double *conv_base[2], *conv_proj[2];
};

struct oracle {
    int L, E, H, G, D, F, V; /* layers, hidden, query heads, kv heads, head size, ffn, vocabulary (targets) */
    int n_rot;               /* dimensions of a head that rope turns */
    bool hybrid;             /* Qwen3.5: queries with gates, norms stored as w - 1, delta nets */
    int K, M, d, n_conv;     /* of delta nets: key heads, value heads, head size, taps of the convolution */
    double eps, theta;
    struct oracle_layer *layer;
    double *embed, *head, *norm; /* [V, E] x2 (targets), [E] */
    /* drafters */
    double *fc, *hidden_norm; /* [E, n_taps*E], [E] */
    int block, mask_id, n_taps, taps[64];
    /* DFlash2: conv_taps is not 0. Candidates, rank of the codebooks [V, rank] x2, hidden [rank, E] */
    int conv_taps, conv_group, candidates, rank;
    double *before, *after, *hidden;
    double multiplier, cap; /* on the logits; cap 0: none */
};

/* Keys and values of every layer: k, v [cap, G, D]. A delta net keeps its inputs at every position, u [cap,
 * W], and the decay and step of every value head, g [cap, 2*M]; its state S [M, d, d] (key by value) is that
 * before position n_state, which is never past n at the last call: rows that were rejected since have not
 * entered it. */
struct oracle_cache {
    int n, cap;
    double **k, **v;      /* [L] */
    double **u, **g, **S; /* [L] */
    int *n_state;         /* [L] */
};

int oracle_open(struct oracle **o, const char *dir, struct err *e);
void oracle_close(struct oracle *o);
struct oracle_cache *oracle_cache_new(const struct oracle *o, int cap);
void oracle_cache_free(const struct oracle *o, struct oracle_cache *c);

/* Target: run n tokens at positions c->n ..; c grows by n. logits [n, V] or NULL; taps [n, n_taps*E] for
 * drafter d, or NULL. */
void oracle_forward(const struct oracle *t, struct oracle_cache *c, const int32_t *ids, int n, double *logits,
                    const struct oracle *d, double *taps);
/* Drafter: append the context of n positions at c->n .. from their taps [n, n_taps*E]. */
void oracle_context(const struct oracle *d, struct oracle_cache *c, const double *taps, int n);
/* Drafter: logits [block, V] of the block whose anchor stands at position c->n, and its greedy proposals, ids
 * [block - 1] (NULL: none); c is left as it was. tops, margins [block - 1]: the best logit of their rows, and
 * how far the second best choice was; where a proposal hangs on those before it, the least of theirs as well.
 */
void oracle_draft(const struct oracle *d, const struct oracle *t, struct oracle_cache *c, int32_t anchor,
                  double *logits, int32_t *ids, double *tops, double *margins);

#endif
