/* kv.inc.h - keys and values as the CPU stores and reads them: nothing else in this folder knows what a
 * number of a cache looks like.
 *
 * kv_store rounds a row's numbers to the cache's type. kv_stage brings KV_KEYS keys, or values, of one head
 * in as floats. A type is one line in each. */
#include "kv.h"

#define KV_KEYS 16  /* of a step: they lie side by side, in one split */
#define KV_AHEAD 32 /* positions ahead of use that are asked of memory */

/* ---- writing ---- */

/* n numbers, a multiple of 16. */
static void kv_store(uint32_t type, void *dst, const float *src, int64_t n)
{
    uint16_t *half = dst;
    if (type == KN_F32) memcpy(dst, src, (size_t)n * sizeof(float));
    for (int64_t i = 0; type == KN_F16 && i < n; i += 16) v_store_f16(half + i, v_load(src + i));
    for (int64_t i = 0; type == KN_BF16 && i < n; i += 16) v_store_bf16(half + i, v_load(src + i));
}

/* ---- reading ---- */

/* Keys, or values, of one head in one split. */
struct kv_side {
    const char *at; /* of the split's first position */
    uint32_t type;
    size_t row, head; /* bytes from a position to the next, and of the head */
};

/* What attention reads of one split: positions [from, to), multiples of KV_KEYS relative to its first: all
 * keys, then all values. */
struct kv_split {
    struct kv_side k, v;
    int64_t d;
    int32_t from, to;
};

static inline struct kv_side kv_side_of(const struct kn_kv *kv, bool values, int32_t start, int32_t head)
{
    const uint32_t type = values ? kv->type.v : kv->type.k;
    return (struct kv_side){.at = cpu_kv_head(kv, values, start, head),
                            .type = type,
                            .row = kn_kv_row_bytes(kv, type),
                            .head = kn_row_bytes(type, kv->head_dim)};
}

/* start: the split's first position. */
static inline struct kv_split kv_split_of(const struct kn_kv *kv, int32_t head, int32_t start, int32_t from,
                                          int32_t to)
{
    return (struct kv_split){kv_side_of(kv, false, start, head), kv_side_of(kv, true, start, head),
                             kv->head_dim, from, to};
}

/* Ask memory for KV_KEYS positions of a side from j on. One head's are far apart, which the hardware's
 * prefetching does not follow. For the same reason they share few places of the first cache level, so the
 * second is asked. */
static inline void kv_ask(const struct kv_side *s, int32_t j)
{
    const char *at = s->at + (size_t)j * s->row;
    for (int k = 0; k < KV_KEYS; k++)
        for (size_t i = 0; i < s->head; i += 64) __builtin_prefetch(at + (size_t)k * s->row + i, 0, 2);
}

/* KV_KEYS keys (or values) at j as floats, stride floats apart: the cache itself where it is float, else
 * converted into tile [KV_KEYS, d]. Asks for those that are KV_AHEAD later in the order of struct kv_split.
 */
static const float *kv_stage(const struct kv_split *s, bool values, int32_t j, float *tile, int64_t *stride)
{
    const struct kv_side *x = values ? &s->v : &s->k;
    const char *at = x->at + (size_t)j * x->row;
    const int32_t ahead = j + KV_AHEAD, past = ahead - s->to + s->from;
    if (ahead < s->to)
        kv_ask(x, ahead);
    else if (!values && past < s->to)
        kv_ask(&s->v, past);
    *stride = s->d;
    switch (x->type) {
    case KN_F16:
        for (int64_t k = 0; k < KV_KEYS; k++)
            for (int64_t i = 0; i < s->d; i += 16)
                v_store(tile + k * s->d + i, v_load_f16((const uint16_t *)(at + (size_t)k * x->row) + i));
        return tile;
    case KN_BF16:
        for (int64_t k = 0; k < KV_KEYS; k++)
            for (int64_t i = 0; i < s->d; i += 16)
                v_store(tile + k * s->d + i, v_load_bf16((const uint16_t *)(at + (size_t)k * x->row) + i));
        return tile;
    default: /* KN_F32: kn_kv_check lets no other pass */
        *stride = (int64_t)(x->row / sizeof(float));
        return (const float *)at;
    }
}

/* One head's keys (or values) at a position as floats, to [head_dim]. */
static inline void kv_load(const struct kn_kv *kv, bool values, int32_t pos, int32_t head, float *to)
{
    const uint32_t type = values ? kv->type.v : kv->type.k;
    const char *at = cpu_kv_head(kv, values, pos, head);
    if (type == KN_F32) memcpy(to, at, (size_t)kv->head_dim * sizeof *to);
    for (int32_t i = 0; type == KN_F16 && i < kv->head_dim; i += 16)
        v_store(to + i, v_load_f16((const uint16_t *)at + i));
    for (int32_t i = 0; type == KN_BF16 && i < kv->head_dim; i += 16)
        v_store(to + i, v_load_bf16((const uint16_t *)at + i));
}
