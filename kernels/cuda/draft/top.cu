/* top.cu - the k largest logits of every row, k of 8 to 64 among 150,000 to 250,000.
 *
 * Bound: reading the rows once from the L2 cache, where the head's product has just left them: 15 rows of
 * 248,320 are 15 MB, some 4 us. The key of the largest logit is taken of every group of 128 (top_groups, the
 * whole chip); the k largest logits lie in the k groups of the largest keys, for any other group has k logits
 * above all of its own. So one block a row (top_rows) finds those groups, by the same thought over 16 groups
 * at a time, and the k largest of their 128 k logits. Whatever the logits are, the work is the same. Keys are
 * all different, the lower id being the larger of equals, so the order is one.
 *
 * Alternative on paper that lost: each block keeps the k largest of its part (16 rounds of a block's largest,
 * or a threshold and a list whose length depends on the logits), 31 lists of 16 a row to merge: twice the
 * latency in the first kernel, and ties of a list to be bounded. */
#include "../core/ops.cuh"

#define GROUP 128   /* logits */
#define SUPER 16    /* groups */
#define PART 8      /* logits of a group, a thread's */
#define THREADS 512 /* of top_rows */
#define SUPERS 1024 /* at most: 2,097,152 logits */
#define SCAN_WARPS 8
#define SCAN_GROUPS 8 /* of a warp */

typedef unsigned long long key;
#define NAN_KEY (~(key)0)

struct top {
    const float *logits;
    key *groups; /* [n, n_groups] */
    int32_t *ids;
    float *values;
    int n_vocab, n_groups, k;
    bool whole; /* rows begin at multiples of 16 bytes */
};

/* Ascending with the logit, then descending with the id; 0: none. */
DEV key key_of(float x, uint32_t id)
{
    const uint32_t u = __float_as_uint(__fadd_rn(x, 0.0f)); /* -0 and 0 tie */
    if (x != x) return NAN_KEY;
    return x == -INFINITY ? 0 : (key)(u >> 31 ? ~u : u | 0x80000000u) << 32 | ~id;
}
DEV int id_of(key k)
{
    return (int)~(uint32_t)k;
}

static __global__ void __launch_bounds__(32 * SCAN_WARPS) top_groups(const __grid_constant__ top a)
{
    const int lane = threadIdx.x % 32,
              first = ((int)blockIdx.x * SCAN_WARPS + (int)threadIdx.x / 32) * SCAN_GROUPS;
    const float *l = a.logits + (int64_t)blockIdx.y * a.n_vocab;
    float x[SCAN_GROUPS][4];
    cuda_grid_start();
#pragma unroll
    for (int g = 0; g < SCAN_GROUPS; g++) {
        const int at = (first + g) * GROUP + 4 * lane;
        if (a.whole && at + 3 < a.n_vocab) {
            const float4 v = __ldcg((const float4 *)(l + at));
            x[g][0] = v.x, x[g][1] = v.y, x[g][2] = v.z, x[g][3] = v.w;
        } else {
#pragma unroll
            for (int j = 0; j < 4; j++) x[g][j] = at + j < a.n_vocab ? __ldcg(l + at + j) : -INFINITY;
        }
    }
#pragma unroll
    for (int g = 0; g < SCAN_GROUPS; g++) {
        const uint32_t at = (uint32_t)((first + g) * GROUP + 4 * lane);
        key best = 0;
#pragma unroll
        for (int j = 0; j < 4; j++) best = max(best, key_of(x[g][j], at + j));
        const uint32_t high = (uint32_t)(best >> 32), most = __reduce_max_sync(~0u, high);
        const uint32_t low = __reduce_max_sync(~0u, high == most ? (uint32_t)best : 0u);
        if (lane == 0 && first + g < a.n_groups)
            a.groups[(int64_t)blockIdx.y * a.n_groups + first + g] = (key)most << 32 | low;
    }
}

/* The k largest of from[m] into to[k], descending, zeros behind them: the place of a key is how many are
 * larger. from[m] is readable. All threads. */
DEV void largest(key *from, int m, key *to, int k)
{
    const int t = threadIdx.x;
    int parts = 1;
    while (parts < 32 && 2 * parts * m <= THREADS) parts *= 2;
    if (t < k) to[t] = 0;
    if (t == 0) from[m] = 0;
    __syncthreads();
    for (int base = 0; base < m; base += THREADS / parts) {
        const int i = base + t / parts;
        const key mine = i < m ? from[i] : NAN_KEY;
        int above = 0;
#pragma unroll 4
        for (int j = 2 * (t % parts); j < m; j += 2 * parts) {
            const ulonglong2 two = *(const ulonglong2 *)(from + j);
            above += (two.x > mine) + (two.y > mine);
        }
        for (int o = parts / 2; o; o /= 2) above += __shfl_xor_sync(~0u, above, o);
        if (i < m && mine && above < k && t % parts == 0) to[above] = mine;
    }
    __syncthreads();
}

/* The largest key of PART logits from at on. */
DEV key part_key(const top &a, const float *l, int at)
{
    float x[PART];
    key best = 0;
#pragma unroll
    for (int j = 0; j < PART; j += 4) {
        if (a.whole && at + j + 3 < a.n_vocab) {
            const float4 v = __ldcg((const float4 *)(l + at + j));
            x[j] = v.x, x[j + 1] = v.y, x[j + 2] = v.z, x[j + 3] = v.w;
        } else {
#pragma unroll
            for (int e = j; e < j + 4; e++) x[e] = at + e < a.n_vocab ? __ldcg(l + at + e) : -INFINITY;
        }
    }
#pragma unroll
    for (int j = 0; j < PART; j++) best = max(best, key_of(x[j], (uint32_t)(at + j)));
    return best;
}

static __global__ void __launch_bounds__(THREADS) top_rows(const __grid_constant__ top a)
{
    __shared__ __align__(16) key list[SUPERS + 2], best[KN_TOP_MOST];
    const int t = threadIdx.x, supers = (a.n_groups + SUPER - 1) / SUPER;
    const float *l = a.logits + (int64_t)blockIdx.x * a.n_vocab;
    const key *groups = a.groups + (int64_t)blockIdx.x * a.n_groups;
    cuda_grid_start();
    for (int s = t; s < supers; s += THREADS) {
        key most = 0;
#pragma unroll
        for (int g = SUPER * s; g < SUPER * (s + 1); g++)
            if (g < a.n_groups) most = max(most, __ldcg(groups + g));
        list[s] = most;
    }
    __syncthreads();
    largest(list, supers, best, a.k);
    const uint32_t top = (uint32_t)(best[0] >> 32); /* NaN, Inf or nothing at all: no finite maximum */
    if (top >= 0xff800000u || top == 0) {
        if (t < a.k) {
            a.ids[blockIdx.x * a.k + t] = KN_PICK_NAN;
            a.values[blockIdx.x * a.k + t] = __int_as_float(0x7fc00000);
        }
        return;
    }
    for (int j = t; j < SUPER * a.k; j += THREADS) {
        const key s = best[j / SUPER];
        const int g = id_of(s) / (GROUP * SUPER) * SUPER + j % SUPER;
        list[j] = s && g < a.n_groups ? __ldcg(groups + g) : 0;
    }
    __syncthreads();
    largest(list, SUPER * a.k, best, a.k);
    constexpr int parts = GROUP / PART;
    for (int j = t; j < parts * a.k; j += THREADS) {
        const key g = best[j / parts];
        list[j] = g ? part_key(a, l, id_of(g) / GROUP * GROUP + j % parts * PART) : 0;
    }
    __syncthreads();
    largest(list, parts * a.k, best, a.k);
    for (int j = t; j < PART * a.k; j += THREADS) {
        const key p = best[j / PART];
        const int at = id_of(p) / PART * PART + j % PART;
        list[j] = p && at < a.n_vocab ? key_of(__ldcg(l + at), (uint32_t)at) : 0;
    }
    __syncthreads();
    largest(list, PART * a.k, best, a.k);
    if (t < a.k) {
        const key mine = best[t];
        a.ids[blockIdx.x * a.k + t] = mine ? id_of(mine) : KN_PICK_NAN;
        a.values[blockIdx.x * a.k + t] = mine ? l[id_of(mine)] : -INFINITY;
    }
}

size_t cuda_top_scratch(int32_t n, int64_t n_vocab)
{
    return (size_t)n * (size_t)((n_vocab + GROUP - 1) / GROUP) * sizeof(key);
}

int cuda_top(struct kn_backend *kb, const struct kn_top *a)
{
    struct cuda_backend *be = cuda_of(kb);
    if (a->n < 1 || a->n > KN_CYCLE_ROWS || a->k < 1 || a->k > KN_TOP_MOST || a->k > a->n_vocab ||
        a->n_vocab > SUPERS * SUPER * GROUP)
        return cuda_fail(be, KN_EINVAL, "top: the %d largest of %d rows of %d logits (expected at most %d)",
                         a->k, a->n, a->n_vocab, KN_TOP_MOST);
    const size_t need = cuda_top_scratch(a->n, a->n_vocab);
    if (need > be->scratch_rows_bytes)
        return cuda_fail(be, KN_EINVAL,
                         "top: %d rows of %d logits want %zu bytes of scratch, %zu are reserved", a->n,
                         a->n_vocab, need, be->scratch_rows_bytes);
    const struct top args = {a->logits,  (key *)be->scratch_rows,
                             a->ids,     a->values,
                             a->n_vocab, (a->n_vocab + GROUP - 1) / GROUP,
                             a->k,       a->n_vocab % 4 == 0 && ((uintptr_t)a->logits & 15) == 0};
    const int per = SCAN_WARPS * SCAN_GROUPS;
    const dim3 grid((unsigned)((args.n_groups + per - 1) / per), (unsigned)a->n);
    const int rc = cuda_check(be, "top", cuda_launch(be, top_groups, grid, dim3(32 * SCAN_WARPS), 0, args));
    return rc ? rc
              : cuda_check(be, "top",
                           cuda_launch(be, top_rows, dim3((unsigned)a->n), dim3(THREADS), 0, args));
}
