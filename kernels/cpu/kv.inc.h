/* kv.inc.h - keys and values as the CPU stores and reads them: nothing else in this folder knows what a
 * number of a cache looks like.
 *
 * kv_store rounds a head's numbers to the cache's type. kv_stage brings KV_KEYS keys, or values, of one head
 * in as floats. Quantised types are rotated on their way in (kv_rows.h); what meets their keys is rotated by
 * kv_query, what comes of their values is rotated back by kv_result. */
#include "../kv_rows.h"
#include "kv.h"
#include "vec_codes.h"

#define KV_KEYS 16  /* of a step: they lie side by side, in one split */
#define KV_AHEAD 32 /* positions ahead of use that are asked of memory */

/* ---- writing ---- */

/* The numbers of one head, d of them, into a row of n_head_kv heads. */
static void kv_store(uint32_t type, bool values, char *row, int32_t n_head_kv, int32_t head, const float *src,
                     int32_t d)
{
    const int64_t at = (int64_t)head * d;
    uint16_t *half = (uint16_t *)row + at;
    if (type == KN_F32) memcpy((float *)row + at, src, (size_t)d * sizeof(float));
    for (int64_t i = 0; type == KN_F16 && i < d; i += 16) v_store_f16(half + i, v_load(src + i));
    for (int64_t i = 0; type == KN_BF16 && i < d; i += 16) v_store_bf16(half + i, v_load(src + i));
    if (!kv_layout_of(type)) return;
    float turned[KV_HEAD];
    memcpy(turned, src, (size_t)d * sizeof *turned);
    kv_turn(type, values, turned, d);
    kv_encode(type, turned, (uint8_t *)row, n_head_kv, d, head);
}

/* ---- reading ---- */

/* Keys, or values, of one head in one split. */
struct kv_side {
    const char *at; /* the row of the split's first position */
    uint32_t type;
    size_t row;             /* bytes from a position to the next */
    struct kv_planes plane; /* where the head lies in a row: plane.low alone but for quantised types */
    size_t bytes[3];        /* of the head in each plane; 0: there is none */
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
    const struct kv_layout *y = kv_layout_of(type);
    const size_t d = (size_t)kv->head_dim, wide = kn_row_bytes(y ? KN_F32 : type, kv->head_dim);
    struct kv_side s = {.at = cpu_kv_row(kv, values, start),
                        .type = type,
                        .row = kn_kv_row_bytes(kv, type),
                        .plane = {.low = (size_t)head * wide},
                        .bytes = {wide}};
    if (!y) return s;
    s.plane = kv_planes_of(y, kv->n_head_kv, kv->head_dim, head);
    s.bytes[0] = d * (size_t)y->low / 8;
    s.bytes[1] = d * (size_t)y->high / 8;
    s.bytes[2] = d / (size_t)y->group * 2;
    return s;
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
    const size_t plane[3] = {s->plane.low, s->plane.high, s->plane.scale};
    const char *at = s->at + (size_t)j * s->row;
    for (int k = 0; k < KV_KEYS; k++, at += s->row)
        for (int i = 0; i < 3; i++)
            for (size_t b = 0; b < s->bytes[i]; b += 64) __builtin_prefetch(at + plane[i] + b, 0, 2);
}

/* ---- quantised heads, from where they lie in a row to d floats ---- */

static inline struct vec kv_half(const char *p)
{
    uint16_t h;
    memcpy(&h, p, 2);
    return v_set1(kn_f16_to_f32(h));
}

static inline struct ivec kv_word(const char *p)
{
    int32_t w;
    memcpy(&w, p, 4);
    return iv_set1(w);
}

static inline void kv_q8_0(const char *low, const char *scale, float *x, int64_t d)
{
    for (int64_t i = 0; i < d; i += 16)
        v_store(x + i, v_mul(kv_half(scale + i / 32 * 2), v_from_int(iv_load_i8((const int8_t *)low + i))));
}

/* Of 4 bits; high: NULL, or where the fifth lies. */
static inline void kv_nibbles(const char *low, const char *high, const char *scale, int32_t bias, float *x,
                              int64_t d)
{
    static const int32_t bit[16] = {0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27};
    const struct ivec four = iv_set1(15), one = iv_set1(1), off = iv_set1(bias), at = iv_load(bit);
    for (int64_t i = 0; i < d; i += 32) {
        const struct ivec q = iv_load_u8((const uint8_t *)low + i / 2);
        struct ivec a = iv_and(q, four), b = iv_shr(q, 4);
        if (high) {
            const struct ivec h = iv_shr_each(kv_word(high + i / 8), at);
            a = iv_or(a, iv_shl(iv_and(h, one), 4));
            b = iv_or(b, iv_and(h, iv_set1(16)));
        }
        const struct vec s = kv_half(scale + i / 16);
        v_store(x + i, v_mul(s, v_from_int(iv_sub(a, off))));
        v_store(x + i + 16, v_mul(s, v_from_int(iv_sub(b, off))));
    }
}

static inline void kv_tq3_0(const char *low, const char *high, const char *scale, float *x, int64_t d)
{
    static const int32_t bits_low[16] = {0, 4, 8, 12, 16, 20, 24, 28, 2, 6, 10, 14, 18, 22, 26, 30},
                         bits_high[16] = {0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29};
    const struct ivec at_low = iv_load(bits_low), at_high = iv_load(bits_high), two = iv_set1(3),
                      one = iv_set1(1);
    for (int64_t i = 0; i < d; i += 16) {
        const struct ivec h = kv_word(high + i / 32 * 4),
                          a = iv_and(iv_shr_each(kv_word(low + i / 4), at_low), two),
                          b = iv_and(iv_shr_each(i & 16 ? iv_shr(h, 2) : h, at_high), one);
        v_store(x + i, v_mul(kv_half(scale + i / 128 * 2), v_lookup8(kv_centroids, iv_or(a, iv_shl(b, 2)))));
    }
}

/* ---- rotation around attention ---- */

/* Does the cache want its queries rotated? */
static inline bool kv_turns(const struct kn_kv *kv)
{
    return kn_kv_coded(kv->type.k);
}
/* A query of one head as it meets the keys. */
static inline void kv_query(const struct kn_kv *kv, const float *q, float *turned)
{
    memcpy(turned, q, (size_t)kv->head_dim * sizeof *q);
    kv_turn(kv->type.k, false, turned, kv->head_dim);
}
/* The weighted values of one head, in place, as the values were before they were stored. */
static inline void kv_result(const struct kn_kv *kv, float *out)
{
    kv_turn_back(kv->type.v, true, out, kv->head_dim);
}

/* ---- staging ---- */

/* One head of the row at `at` as d floats. */
static inline void kv_numbers(const struct kv_side *x, const char *at, float *to, int64_t d)
{
    const char *low = at + x->plane.low, *high = at + x->plane.high, *scale = at + x->plane.scale;
    switch (x->type) {
    case KN_F32: memcpy(to, low, (size_t)d * sizeof *to); break;
    case KN_F16:
        for (int64_t i = 0; i < d; i += 16) v_store(to + i, v_load_f16((const uint16_t *)low + i));
        break;
    case KN_BF16:
        for (int64_t i = 0; i < d; i += 16) v_store(to + i, v_load_bf16((const uint16_t *)low + i));
        break;
    case KN_Q8_0: kv_q8_0(low, scale, to, d); break;
    case KN_Q5_0: kv_nibbles(low, high, scale, 16, to, d); break;
    case KN_Q4_0: kv_nibbles(low, NULL, scale, 8, to, d); break;
    default: kv_tq3_0(low, high, scale, to, d); /* kn_kv_check lets no other pass */
    }
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
    if (x->type == KN_F32) {
        *stride = (int64_t)(x->row / sizeof(float));
        return (const float *)(at + x->plane.low);
    }
    *stride = s->d;
    for (int64_t k = 0; k < KV_KEYS; k++, at += x->row) kv_numbers(x, at, tile + k * s->d, s->d);
    return tile;
}

/* One head's keys (or values) at a position as floats, to [head_dim]. */
static inline void kv_load(const struct kn_kv *kv, bool values, int32_t pos, int32_t head, float *to)
{
    const struct kv_side x = kv_side_of(kv, values, pos, head);
    kv_numbers(&x, x.at, to, kv->head_dim);
}
