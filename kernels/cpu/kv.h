/* kv.h - where one head of a position lies in the CPU's caches. kv.inc.h reads and writes its numbers. */
#ifndef DFLASH_CPU_KV_H
#define DFLASH_CPU_KV_H

#include "../kernels.h"

/* The numbers of one head at position pos: keys, or values. */
static inline char *cpu_kv_head(const struct kn_kv *kv, bool values, int32_t pos, int32_t head)
{
    const size_t bytes = kn_row_bytes(values ? kv->type.v : kv->type.k, kv->head_dim);
    const size_t at = (size_t)kn_kv_slot(kv, pos) * (size_t)kv->n_head_kv + (size_t)head;
    return (char *)(values ? kv->v : kv->k) + at * bytes;
}

#endif
