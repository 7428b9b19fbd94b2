/* attention/kv.cuh - the device's door to keys and values: where a position lies, what a row is made of, how
 * rows are brought in. ops/kv.h has the concept; no other file of this backend knows a ring's size or what a
 * number of a cache looks like.
 *
 * Where. kv_where stands in the arguments of every kernel that reads or writes a cache. A leaf (64
 * positions, or 32) lies side by side, so a slot is asked for once a leaf.
 *
 * Numbers. Forms that multiply by tensor cores read halves as they are stored: their caches are of the one
 * type that they multiply (kv_form), a head's row is kv_bytes<D>. They bring rows in by the
 * means that suits them, each asking KV_ROW for the address: 16 bytes a thread (kv_stage), a row at once,
 * counted by a barrier (attention/leaves.cuh, columns.cuh), boxes of a tensor map (kv_map, chain/map.cu). The
 * form for any types reads numbers by kv_get, keys and values apart. Quantised types: kv_codes.cuh. */
#ifndef DFLASH_CUDA_ATTENTION_KV_CUH
#define DFLASH_CUDA_ATTENTION_KV_CUH

#include "../../kernels.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

/* ---- where ---- */

typedef int32_t kv_where; /* the slots of the ring. Only what follows looks into it */

static inline kv_where kv_where_of(const struct kn_kv *kv)
{
    return kv->cap;
}
static inline int32_t kv_positions(kv_where w) /* that are held at once */
{
    return w;
}
/* Of a position, a variable. A macro, as KV_ROW: as functions, though inlined, they gave other machine code,
 * with up to 8 registers more in attn_prefill and attn_step (nvcc 13.0). */
#define KV_SLOT(where, pos) ((pos) < (where) ? (pos) : (pos) % (where))
/* The same of what may be past an int. */
static __device__ __forceinline__ int kv_slot_far(kv_where w, int64_t pos)
{
    return (int)(pos % w);
}
/* Of the leaf of n positions behind the one at slot at. */
static __device__ __forceinline__ int kv_next(kv_where w, int at, int n)
{
    return at + n == w ? 0 : at + n;
}

/* Slots of positions from lo on, all of which the ring holds: without a division each. */
struct kv_where_from {
    int from, cap;
    __device__ __forceinline__ kv_where_from(kv_where w, int lo) : from(lo < w ? 0 : lo / w * w), cap(w)
    {
    }
    __device__ __forceinline__ int slot(int pos) const
    {
        const int at = pos - from;
        return at < cap ? at : at - cap;
    }
};

/* ---- halves: forms for one type, f16 or bf16 ---- */

/* The one type of keys and values that such a form reads; KN_TYPE_NONE: they have others, or two, which the
 * form for any types takes. */
static inline uint32_t kv_form(struct kn_kv_types t)
{
    return t.k == t.v && (t.k == KN_F16 || t.k == KN_BF16) ? t.k : KN_TYPE_NONE;
}
static inline bool kv_halves(uint32_t form) /* is there one? */
{
    return form != KN_TYPE_NONE;
}
static inline bool kv_bf16(uint32_t form)
{
    return form == KN_BF16;
}

template <int D> constexpr int kv_bytes = 2 * D; /* of a head's row */

/* Of keys or values, the row of one head at a slot; stride: halves from a slot to the next, n_kv * D. */
#define KV_ROW(D, cache, slot, stride, head) ((uint16_t *)(cache) + (slot) * (stride) + (head)*D)
/* The same as an index, for who reads keys and values there: of a column of the row; of a head's first. */
#define KV_AT(slot, stride, col) ((size_t)(slot) * (size_t)(stride) + (size_t)(col))
#define KV_INDEX(D, slot, n_kv, head) (((size_t)(slot) * (size_t)(n_kv) + (size_t)(head)) * D)

/* What the device must know of keys or values to gather rows of one head as boxes: chain/map.cu. type: f16 or
 * bf16; heads of d; a box has 64 columns of so many rows, which must divide a split. false: the driver
 * cannot. */
struct chain_map;
bool kv_map(struct chain_map *map, void *cache, uint32_t type, int32_t n_kv, int32_t d, kv_where where,
            int32_t rows);
/* The same of a quantised side, whose rows are `row` bytes: boxes of so many bytes (128, 64, 32: turned; 16)
 * of so many keys. */
bool kv_code_map(struct chain_map *map, const void *rows, int32_t row, kv_where where, int32_t bytes,
                 int32_t keys);

/* ---- numbers of any type ---- */

/* NUMBER: float, __half or __nv_bfloat16. */
template <class NUMBER> static __device__ __forceinline__ float kv_get(const void *cache, int64_t i)
{
    return (float)((const NUMBER *)cache)[i];
}
template <class NUMBER> static __device__ __forceinline__ void kv_put(void *cache, int64_t i, float x)
{
    ((NUMBER *)cache)[i] = NUMBER(x); /* to nearest, ties to even */
}
/* The same of a type that is not known before: it is rope_store's, whose time is not the numbers'. */
static __device__ __forceinline__ void kv_put(void *cache, uint32_t type, int64_t i, float x)
{
    if (type == KN_F32)
        kv_put<float>(cache, i, x);
    else if (type == KN_F16)
        kv_put<__half>(cache, i, x);
    else
        kv_put<__nv_bfloat16>(cache, i, x);
}

/* f(number of K, number of V), of types that are known and not quantised: an instance a pair. */
template <class F> static auto kv_of_types(struct kn_kv_types t, F f)
{
    const auto with = [&](auto k) {
        return t.v == KN_F32 ? f(k, 0.0f) : t.v == KN_F16 ? f(k, __half()) : f(k, __nv_bfloat16());
    };
    return t.k == KN_F32 ? with(0.0f) : t.k == KN_F16 ? with(__half()) : with(__nv_bfloat16());
}
/* Stands for the number of a quantised side: kv_codes.cuh. */
struct kv_coded {
};
/* The same of any types. */
template <class F> static auto kv_of_all_types(struct kn_kv_types t, F f)
{
    const auto with = [&](auto k) {
        return kn_kv_coded(t.v) ? f(k, kv_coded())
               : t.v == KN_F32  ? f(k, 0.0f)
               : t.v == KN_F16  ? f(k, __half())
                                : f(k, __nv_bfloat16());
    };
    return kn_kv_coded(t.k) ? with(kv_coded())
           : t.k == KN_F32  ? with(0.0f)
           : t.k == KN_F16  ? with(__half())
                            : with(__nv_bfloat16());
}

#endif
