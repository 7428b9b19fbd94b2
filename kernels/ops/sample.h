/* sample.h - how a token is picked of a row of logits (docs/sampling.md). */
#ifndef DFLASH_OPS_SAMPLE_H
#define DFLASH_OPS_SAMPLE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The order of temperature and filters: 0 is temperature, top-k, top-p, min-p. Every filter keeps the first
 * of the ids in order of their logits, so an order is what top-p and min-p measure by, and of what top-p
 * takes its share: four bits. */
enum {
    KN_ORDER_TOP_P_RAW = 1,   /* top-p stands before the temperature: its probabilities are those at 1 */
    KN_ORDER_MIN_P_RAW = 2,   /* the same of min-p */
    KN_ORDER_TOP_P_FIRST = 4, /* top-p stands before top-k: its share is of all, not of the k */
    KN_ORDER_MIN_P_FIRST = 8, /* min-p stands before top-p: the share is of what min-p keeps */
};

struct kn_bias {
    int32_t id;
    float add; /* -Inf: never picked */
};

/* temp 0: argmax. top_k 0, top_p 1, min_p 0, repeat_penalty 1, presence 0, frequency 0: off. See
 * docs/sampling.md. */
struct kn_sampler {
    float temp, top_p, min_p, repeat_penalty;
    int32_t top_k, repeat_last;
    uint64_t seed;
    float presence, frequency; /* of ids among the last repeat_last, as repeat_penalty */
    uint32_t order;            /* KN_ORDER_* */
    int32_t n_bias;
    const struct kn_bias *bias; /* [n_bias] device memory, or NULL: every id once, in the vocabulary */
};

#define KN_PICK_NAN (-1) /* in place of an id: the row's logits hold a NaN or no finite maximum */

/* The noise of sampling (docs/sampling.md): what is added to the log-probability of an id whose pick stands
 * at a position. The bits of op->pick. */
double kn_noise(uint64_t seed, int32_t position, int32_t id);

struct kn_tree;

struct kn_pick {
    const float *logits; /* [n, n_vocab] */
    const int32_t
        *pos; /* [n] position of each row's input token; the pick stands at pos + 1, which keys the noise */
    const int32_t
        *history; /* [..] the token at each absolute position 0..pos[n-1], rows' own tokens included */
    int32_t n, n_vocab;
    struct kn_sampler sampler;
    int32_t *out;               /* [n] ids, or KN_PICK_NAN */
    const struct kn_tree *tree; /* NULL, or rows of a tree (device): pos is its pos, and a row's history is
                                   what is committed, then its path's ids */
    /* NULL, or [n]: log of the probability that the id picked had. Temperature 0: by the softmax of the row;
     * above: among what the filters keep, which adds up to 1. NaN where out is KN_PICK_NAN. */
    float *logp;
};

#ifdef __cplusplus
}
#endif
#endif
