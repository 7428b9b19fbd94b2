/* mixture.h - a mixture of experts. */
#ifndef DFLASH_OPS_MIXTURE_H
#define DFLASH_OPS_MIXTURE_H

#include <stdbool.h>
#include <stdint.h>

struct kn_weight;

enum kn_act { KN_ACT_SILU = 0, KN_ACT_GELU_TANH = 1 };

/* Router of a mixture of experts. For every row: p = softmax over all n_expert logits; the n_used largest
 * (ties: the lowest id) in descending order; weight = p, divided by the sum of the chosen where renorm; times
 * scale; times expert_scale[id]. */
struct kn_route {
    const float *logits; /* [n, n_expert] */
    int32_t n, n_expert, n_used;
    bool renorm;
    float scale;
    const float *expert_scale; /* [n_expert] or NULL */
    int32_t *ids;              /* [n, n_used] */
    float *weights;            /* [n, n_used] */
};

/* A mixture of experts in one operation: the router (where there is one; else route.logits are there), route,
 * experts_gated and experts_down and, where there is one, the expert that all rows share, which is one more
 * in every row's list, the last, with the weight sigmoid(logit). Its matrices have the shape of one expert's.
 */
struct kn_mixture {
    struct kn_route route; /* n, n_used; ids and weights [n, n_used + (shared)] are filled */
    const float *x, *norm; /* [n, n_in], [n_in]: experts read rms_norm(x; norm) */
    float eps;
    enum kn_act act;
    const struct kn_weight *router; /* or NULL: logits = router rms_norm(x; router_norm) */
    const float *router_norm;
    float *logits; /* [n, n_expert] */
    const struct kn_weight *gate, *up, *down;
    const struct kn_weight *shared[3]; /* gate, up, down of the shared expert, or all NULL */
    const struct kn_weight
        *shared_gate;     /* of one row, read as the router is; NULL: shared_logits are there */
    float *shared_logits; /* [n] */
    float *h;             /* [n, n_used + (shared), n_ff]: scratch */
    float *out;           /* [n, n_out]; may be x */
    bool add;             /* out += */
};

#endif
