/* kv.h - where a position lies in the CPU's caches. kv.inc.h reads and writes its numbers. */
#ifndef DFLASH_CPU_KV_H
#define DFLASH_CPU_KV_H

#include "../kernels.h"

/* The row of position pos: all heads' keys, or values. */
static inline char *cpu_kv_row(const struct kn_kv *kv, bool values, int32_t pos)
{
    return (char *)(values ? kv->v : kv->k) +
           (size_t)kn_kv_slot(kv, pos) * kn_kv_row_bytes(kv, values ? kv->type.v : kv->type.k);
}

#endif
