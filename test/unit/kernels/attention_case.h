/* attention_case.h - a case of attention: its shape, the keys that a row sees, and the call for rows of it.
 * For the tests of the CPU and of the devices. */
#ifndef TEST_ATTENTION_CASE_H
#define TEST_ATTENTION_CASE_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../../../kernels/kernels.h"

#define KV(k, v)                                                                                             \
    {                                                                                                        \
        KN_##k, KN_##v                                                                                       \
    } /* types of a cache */

struct att_case {
    const char *name;
    int n, n_head, n_kv, d, cap, last, window, first; /* last: position of the last row; first: -1 none */
    bool causal;
    struct kn_kv_types type;
};

static inline bool att_sees(const struct att_case *c, int row, int key)
{
    if (key < c->first || (c->causal && key > row) || key > c->last) return false;
    return !c->window || (row - key < c->window && key - row < c->window);
}

/* Rows from row from on, most of them at most; q, pos and out are all rows', first is where c->first lies. */
static inline struct kn_attention att_call(const struct att_case *c, const struct kn_kv *kv, const float *q,
                                           const int32_t *pos, const int32_t *first, int from, int most,
                                           float *out)
{
    const size_t row = (size_t)c->n_head * (size_t)c->d;
    return (struct kn_attention){.q = q + (size_t)from * row,
                                 .out = out + (size_t)from * row,
                                 .kv = kv,
                                 .pos = pos + from,
                                 .n = c->n - from < most ? c->n - from : most,
                                 .n_head = c->n_head,
                                 .scale = (float)(1.0 / sqrt(c->d)),
                                 .causal = c->causal,
                                 .window = c->window,
                                 .first = c->first >= 0 ? first : NULL};
}

#endif
