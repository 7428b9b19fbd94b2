/* kv.h - a layer's keys and values by position. */
#ifndef DFLASH_OPS_KV_H
#define DFLASH_OPS_KV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KN_KV_SPLIT 256 /* attention cuts the keys at absolute multiples of this and merges in order */

/* The types of a layer's keys and of its values. They may differ, and a layer's from its neighbour's. */
struct kn_kv_types {
    uint32_t k, v; /* KN_F16, KN_BF16, KN_F32, KN_Q8_0, KN_Q5_0, KN_Q4_0 or KN_TQ3_0 */
};

/* One layer's keys and values by absolute position. Where a position lies, how many bytes a row takes and
 * what a number of a type is are known to few: the functions below, kernels/kv_rows.h, kernels/cpu/kv*.h, and
 * kernels/cuda/attention/kv*.cuh. All else asks them.
 *
 * Today the positions lie in a ring of cap slots, a multiple of KN_KV_SPLIT. Whoever walks along positions
 * may rely on this alone: those of one split, [KN_KV_SPLIT * i, KN_KV_SPLIT * (i + 1)), lie side by side and
 * in order. A table of pages of KN_KV_SPLIT positions keeps that too.
 *
 * A row is a pure function of its token and its position: nothing in it is shared with other rows. k is
 * stored after its norm and rope. A quantised side is stored rotated (kernels/kv_rows.h): rope_store rotates
 * what it stores, attention its queries and its result, so that nobody else sees it. */
struct kn_kv {
    void *k, *v; /* [cap] rows of n_head_kv heads of head_dim, each of its type */
    struct kn_kv_types type;
    int32_t cap, n_head_kv, head_dim;
};

#define KN_KV_TYPES "f16, bf16, f32, q8_0, q5_0, q4_0 or tq3_0" /* that kn_kv_known knows, for messages */
bool kn_kv_known(uint32_t type);
bool kn_kv_coded(uint32_t type);          /* quantised, and rotated */
const char *kn_kv_name(uint32_t type);    /* upper case; "an unknown number" */
uint32_t kn_kv_by_name(const char *name); /* any case; KN_TYPE_NONE: no cache has it */
/* What divides the head size: values that a type takes at once. */
int32_t kn_kv_block(uint32_t type);
/* 0; or KN_ETYPE or KN_EINVAL and why (size n): a type, a ring or heads that no backend takes. */
int kn_kv_check(const struct kn_kv *kv, char *why, size_t n);
/* The least cap that holds so many positions. */
int32_t kn_kv_room(int64_t positions);
/* A cache like kv with room for so many positions; its k and v are NULL. */
struct kn_kv kn_kv_like(const struct kn_kv *kv, int32_t positions);
/* Positions that are held at once: the last so many. */
int32_t kn_kv_positions(const struct kn_kv *kv);
/* Bytes of one position's keys (type: kv->type.k) or values (kv->type.v), and of all slots. 0 where there are
 * none. */
size_t kn_kv_row_bytes(const struct kn_kv *kv, uint32_t type);
size_t kn_kv_bytes(const struct kn_kv *kv, uint32_t type);
/* Where position pos lies: its row of k and of v. */
int32_t kn_kv_slot(const struct kn_kv *kv, int32_t pos);
/* How many positions from pos on, most at most, lie side by side. */
int32_t kn_kv_run(const struct kn_kv *kv, int32_t pos, int32_t most);
/* A row's numbers on the host, [n_head_kv, head_dim], as they were before they were stored: row to x, and x
 * to row. */
void kn_kv_get(const struct kn_kv *kv, bool values, const void *row, float *x);
void kn_kv_put(const struct kn_kv *kv, bool values, const float *x, void *row);
/* Once last is written: is from still there? */
bool kn_kv_holds(const struct kn_kv *kv, int32_t from, int32_t last);

#ifdef __cplusplus
}
#endif
#endif
