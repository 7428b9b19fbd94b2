/* attention/sparse.cuh - lists of blocks (ops/attention.h, struct kn_sparse): sparse.cu makes them, the forms
 * for prompts walk along them.
 *
 * A block of threads has rows of one block of positions and one kv head, so one list. It takes the keys of
 * the list's blocks in order, as it would take all, and behind them the means of the blocks that are not in
 * the list, as keys that weigh KN_SPARSE_BLOCK times as much. A full list so gives the bits of dense
 * attention. */
#ifndef DFLASH_CUDA_ATTENTION_SPARSE_CUH
#define DFLASH_CUDA_ATTENTION_SPARSE_CUH

#include "attention.cuh"

#include <type_traits>

struct sparse_lists {
    const int32_t *list;  /* [blocks of rows, n_kv, pitch] rising */
    const int32_t *count; /* [blocks of rows, n_kv] */
    const uint32_t *mask; /* [blocks of rows, n_kv, pitch / 32] a bit a block of the list */
    int32_t pitch;        /* blocks that the means have room for */
    const void *mk, *mv;  /* means: a cache of halves, */
    kv_where means;       /* of which position b is block b */
};

/* Is T among the arguments that only some forms of a kernel have? Which one? */
template <class T, class... MORE> constexpr bool has_argument = (std::is_same_v<T, MORE> || ...);
template <class T, class A, class... MORE> DEV const T &argument(const A &a, const MORE &...more)
{
    if constexpr (std::is_same_v<T, A>)
        return a;
    else
        return argument<T>(more...);
}

/* The turns of a block of threads, KEYS keys each. */
template <int KEYS> struct sparse_walk {
    const int32_t *list;
    const uint32_t *mask;
    int m, keys, turns; /* its rows' block; turns of keys; of keys and means */
    /* tile: the first of its tiles of 16 rows. */
    __device__ __forceinline__ sparse_walk(const attn &a, const sparse_lists &l, int tile, int kv_head,
                                           int pos0)
    {
        const int own = row_of(a, tile * TILE) / KN_SPARSE_BLOCK;
        const int64_t at = (int64_t)own * a.n_kv + kv_head;
        const int kept = l.count[at];
        list = l.list + at * l.pitch;
        mask = l.mask + at * (l.pitch / 32);
        m = pos0 / KN_SPARSE_BLOCK + own;
        keys = kept * (KN_SPARSE_BLOCK / KEYS);
        turns = keys + (kept <= m ? (m + KEYS - 1) / KEYS : 0);
    }
    __device__ __forceinline__ bool mean(int turn) const
    {
        return turn >= keys;
    }
    /* The first position of a turn, or the first block whose mean it has. */
    __device__ __forceinline__ int at(int turn) const
    {
        constexpr int PER = KN_SPARSE_BLOCK / KEYS;
        return mean(turn) ? (turn - keys) * KEYS : list[turn / PER] * KN_SPARSE_BLOCK + turn % PER * KEYS;
    }
    /* Scores of the means of 8 NT blocks from p0 on, a multiple of 32: those of blocks that are in the list,
     * or not whole before the rows, become -inf, the others grow by the logarithm of a block. */
    template <int NT> __device__ __forceinline__ void hide(float x[NT][4], int p0, const float unit[2]) const
    {
        const int at = p0 + 2 * (threadIdx.x % 4);
        const float more[2] = {__fdiv_rn(7.0f, unit[0]), __fdiv_rn(7.0f, unit[1])}; /* log2 of 128 */
        static_assert(KN_SPARSE_BLOCK == 128, "the logarithm above");
#pragma unroll
        for (int j = 0; j < NT; j++) {
            const uint32_t word = mask[p0 / 32 + j / 4];
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int b = at + 8 * j + e % 2;
                x[j][e] = b < m && !(word >> b % 32 & 1) ? __fadd_rn(x[j][e], more[e / 2]) : -INFINITY;
            }
        }
    }
};

/* Lists of a call whose keys and values are in the cache; a: as attention has it, queries normed and rotated.
 */
int attn_sparse_lists(struct cuda_backend *be, const struct kn_attention *call, const struct attn *a,
                      struct sparse_lists *lists);
/* attention/prefill.cu, attention/group.cu: over these lists. */
int attn_prefill_sparse(struct cuda_backend *be, const struct kn_attention *call, const struct attn *a,
                        const struct attn_plan *plan, const struct sparse_lists *lists);
int attn_group_sparse(struct cuda_backend *be, const struct attn *a, const struct sparse_lists *lists);

#endif
