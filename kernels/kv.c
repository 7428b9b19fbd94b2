/* kv.c - where a layer's keys and values lie, for the host (kernels.h): both backends' and the library's. */
#include "kernels.h"

#include <stdio.h>

bool kn_kv_known(uint32_t type)
{
    return type == KN_F16 || type == KN_BF16 || type == KN_F32;
}

static const char *name_of(uint32_t type)
{
    const struct kn_type_info *t = kn_type_info(type);
    return t ? t->name : "an unknown number";
}

int kn_kv_check(const struct kn_kv *kv, char *why, size_t n)
{
    if (!kn_kv_known(kv->type.k) || !kn_kv_known(kv->type.v)) {
        snprintf(why, n, "KV types %s and %s (expected each to be " KN_KV_TYPES ")", name_of(kv->type.k),
                 name_of(kv->type.v));
        return KN_ETYPE;
    }
    if (kv->cap < KN_KV_SPLIT || kv->cap % KN_KV_SPLIT) {
        snprintf(why, n, "KV ring of %d (expected a multiple of %d)", kv->cap, KN_KV_SPLIT);
        return KN_EINVAL;
    }
    if (kv->head_dim < 16 || kv->head_dim % 16 || kv->n_head_kv < 1) {
        snprintf(why, n, "%d KV heads of %d (expected a head size that 16 divides)", kv->n_head_kv,
                 kv->head_dim);
        return KN_ETYPE;
    }
    return 0;
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
    return kn_row_bytes(type, (int64_t)kv->n_head_kv * kv->head_dim);
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
