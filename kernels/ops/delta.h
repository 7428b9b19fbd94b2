/* delta.h - layers with recurrent state: gated delta nets. */
#ifndef DFLASH_OPS_DELTA_H
#define DFLASH_OPS_DELTA_H

#include <stdbool.h>
#include <stdint.h>

struct kn_tree;

/* Recurrent state of one gated delta net layer. Committed state is never overwritten by rows that may still
 * be rejected: a call without commit leaves its rows' inputs in log, and the next call first replays the
 * *pending rows of it that were accepted, with the same code and so the same bits. All zero at the start of a
 * sequence. */
struct kn_delta_state {
    float *s;    /* [n_v, d_v, d_k] committed */
    float *conv; /* [n_conv - 1, width] committed: the last inputs of the convolution, oldest first. width as
                    in kn_delta */
    float *log;  /* [KN_DELTA_LOG, width + 2 * n_v]: qkv, alpha and beta of the last call's rows */
};
#define KN_DELTA_LOG 64   /* rows at most in a call without commit */
#define KN_DELTA_EVERY 16 /* a backend keeps what it likes for as many rows in the log's second half */
#define KN_DELTA_HEAD 256 /* d_k and d_v at most, on every backend */
#define KN_DELTA_TAPS 16  /* n_conv at most */

/* Rows of a gated delta net layer (Qwen3.5), from the projections to the gated norm. width = 2 * n_k * d_k +
 * n_v * d_v. For every row, in order: u = silu(causal depthwise convolution of qkv); q, k, v its parts; q and
 * k l2-normed a head (x / sqrt(sum of squares + 1e-6)), q / sqrt(d_k); g = a * softplus(alpha + dt), b =
 * sigmoid(beta); a value head h uses key head h % n_k: S *= exp(g); e = b (v - S k); S += e k^T; o = S q; out
 * = rms_norm(o; norm) * silu(z). A call of more than KN_DELTA_LOG rows is a prompt's, whose bits a device may
 * let depend on where the call begins (as its matrix products may); what is pending is replayed exactly
 * first. */
struct kn_delta {
    const float *qkv;                      /* [n, width] */
    const float *alpha, *beta;             /* [n, n_v] */
    const float *z;                        /* [n, n_v, d_v] */
    const float *conv;                     /* [width, n_conv]: the last tap meets the row itself */
    const float *a, *dt;                   /* [n_v] */
    const float *norm;                     /* [d_v] */
    float eps;                             /* of norm */
    float *out;                            /* [n, n_v, d_v] */
    int32_t n, n_k, n_v, d_k, d_v, n_conv; /* n 0: only replay what is pending */
    const struct kn_delta_state *state;
    const int32_t *pending; /* one int32 in device memory: rows of the log to replay first */
    bool commit;   /* the rows are final: advance the committed state, leave no log. n may then exceed
                      KN_DELTA_LOG */
    int32_t every; /* 0, or of one final row: with *pending + 1 < every the state stays as it is, and the row
                      goes to the log behind those that are pending; else it is advanced over all of them. The
                      caller then makes *pending (*pending + 1) % every. At most KN_DELTA_EVERY */
    const struct kn_tree *tree; /* NULL, or rows of a tree (device), without commit: each row is the last one
                                   of its path, run as a chain. The log has them by row */
};

#endif
