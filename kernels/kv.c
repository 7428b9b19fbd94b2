/* kv.c - where a layer's keys and values lie, for the host (ops/kv.h): both backends' and the library's. */
#include "kv_rows.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

static const struct {
    uint32_t type;
    int32_t block;
    const char *name;
} types[] = {{KN_F16, 16, "F16"},   {KN_BF16, 16, "BF16"}, {KN_F32, 16, "F32"},     {KN_Q8_0, 32, "Q8_0"},
             {KN_Q5_0, 32, "Q5_0"}, {KN_Q4_0, 32, "Q4_0"}, {KN_TQ3_0, 128, "TQ3_0"}};
#define TYPES (sizeof types / sizeof *types)

static size_t at(uint32_t type) /* TYPES: none */
{
    size_t i = 0;
    while (i < TYPES && types[i].type != type) i++;
    return i;
}

bool kn_kv_known(uint32_t type)
{
    return at(type) < TYPES;
}

bool kn_kv_coded(uint32_t type)
{
    return kv_layout_of(type) != NULL;
}

const char *kn_kv_name(uint32_t type)
{
    const struct kn_type_info *other = kn_type_info(type);
    return kn_kv_known(type) ? types[at(type)].name : other ? other->name : "an unknown number";
}

uint32_t kn_kv_by_name(const char *name)
{
    for (size_t i = 0; i < TYPES; i++)
        if (!strcasecmp(types[i].name, name)) return types[i].type;
    return KN_TYPE_NONE;
}

int32_t kn_kv_block(uint32_t type)
{
    return types[at(type)].block;
}

static int check_heads(const struct kn_kv *kv, uint32_t type, char *why, size_t n)
{
    const int32_t block = kn_kv_block(type);
    if (kv->head_dim < block || kv->head_dim % block || kv->n_head_kv < 1)
        snprintf(why, n, "%d KV heads of %d as %s (expected a head size that %d divides)", kv->n_head_kv,
                 kv->head_dim, kn_kv_name(type), block);
    else if (kv->head_dim > KV_HEAD)
        snprintf(why, n, "KV heads of %d (expected at most %d)", kv->head_dim, KV_HEAD);
    else
        return 0;
    return KN_ETYPE;
}

int kn_kv_check(const struct kn_kv *kv, char *why, size_t n)
{
    if (!kn_kv_known(kv->type.k) || !kn_kv_known(kv->type.v)) {
        snprintf(why, n, "KV types %s and %s (expected each to be " KN_KV_TYPES ")", kn_kv_name(kv->type.k),
                 kn_kv_name(kv->type.v));
        return KN_ETYPE;
    }
    if (kv->cap < KN_KV_SPLIT || kv->cap % KN_KV_SPLIT) {
        snprintf(why, n, "KV ring of %d (expected a multiple of %d)", kv->cap, KN_KV_SPLIT);
        return KN_EINVAL;
    }
    const int rc = check_heads(kv, kv->type.k, why, n);
    return rc ? rc : check_heads(kv, kv->type.v, why, n);
}

int32_t kn_kv_room(int64_t positions)
{
    return (int32_t)((positions + KN_KV_SPLIT - 1) / KN_KV_SPLIT * KN_KV_SPLIT);
}

struct kn_kv kn_kv_like(const struct kn_kv *kv, int32_t positions)
{
    struct kn_kv like = *kv;
    like.cap = kn_kv_room(positions);
    like.k = like.v = NULL;
    return like;
}

int32_t kn_kv_positions(const struct kn_kv *kv)
{
    return kv->cap;
}

size_t kn_kv_row_bytes(const struct kn_kv *kv, uint32_t type)
{
    const struct kv_layout *y = kv_layout_of(type);
    return y ? kv_planes_of(y, kv->n_head_kv, kv->head_dim, 0).row
             : kn_row_bytes(type, (int64_t)kv->n_head_kv * kv->head_dim);
}

size_t kn_kv_bytes(const struct kn_kv *kv, uint32_t type)
{
    return (size_t)kv->cap * kn_kv_row_bytes(kv, type);
}

int32_t kn_kv_slot(const struct kn_kv *kv, int32_t pos)
{
    return pos % kv->cap;
}

int32_t kn_kv_run(const struct kn_kv *kv, int32_t pos, int32_t most)
{
    const int32_t n = kv->cap - pos % kv->cap;
    return n < most ? n : most;
}

bool kn_kv_holds(const struct kn_kv *kv, int32_t from, int32_t last)
{
    return (int64_t)last - from < kv->cap;
}

void kn_kv_get(const struct kn_kv *kv, bool values, const void *row, float *x)
{
    const uint32_t type = values ? kv->type.v : kv->type.k;
    const int32_t d = kv->head_dim, n = kv->n_head_kv;
    if (!kn_kv_coded(type)) {
        kn_decode_row(type, row, x, (int64_t)n * d);
        return;
    }
    for (int32_t h = 0; h < n; h++) {
        kv_decode(type, row, x + h * d, n, d, h);
        kv_turn_back(type, values, x + h * d, d);
    }
}

void kn_kv_put(const struct kn_kv *kv, bool values, const float *x, void *row)
{
    const uint32_t type = values ? kv->type.v : kv->type.k;
    const int32_t d = kv->head_dim, n = kv->n_head_kv;
    const int64_t all = (int64_t)n * d;
    float head[KV_HEAD];
    uint16_t *half = row;
    if (!kn_kv_coded(type)) { /* not kn_encode_row, which refuses a NaN */
        if (type == KN_F32) memcpy(row, x, (size_t)all * sizeof *x);
        for (int64_t i = 0; type != KN_F32 && i < all; i++)
            half[i] = type == KN_F16 ? kn_f32_to_f16(x[i]) : kn_f32_to_bf16(x[i]);
        return;
    }
    for (int32_t h = 0; h < n; h++) {
        memcpy(head, x + h * d, (size_t)d * sizeof *head);
        kv_turn(type, values, head, d);
        kv_encode(type, head, row, n, d, h);
    }
}
