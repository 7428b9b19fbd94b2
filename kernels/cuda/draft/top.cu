/* top.cu - the k largest logits of every row, k of 8 to 64 among 150,000 to 250,000.
 *
 * Bound: reading the rows once from the L2 cache, where the head's product has just left them: 15 rows of
 * 248,320 are 15 MB, some 4 us. The key of the largest logit is taken of every group of 128 (top_groups, the
 * whole chip); the k largest logits lie in the k groups of the largest keys, for any other group has k logits
 * above all of its own. So one block a row (top_rows) finds those groups, and the k largest of their 128 k
 * logits. Keys are all different, the lower id being the larger of equals, so the order is one, and who is
 * counted first does not matter.
 *
 * Both times most keys are out at once. Of k sets of the keys, each has one as large as the least of the
 * sets' largest: below that none counts. Of groups some k (1 + 1/2 + .. + 1/k) are left, 54 for k of 16. Of
 * logits none below the k-th group's counts. What is left is listed and ranked, each key by how many are
 * larger. If more than LISTED are left (many equal logits, or an order made to be slow), halfway steps take a
 * bounded list each: the largest of 16 groups first; of a group, those of its 16 parts of 8.
 *
 * Alternatives: those steps for all rows, 16.9 us for 15 rows of 151,936 where this takes 11.4, and 19.1 of
 * 248,320 for 12.8 (docs/speed/lost.md). On paper: each block keeps the k largest of its part, 31 lists of 16
 * a row to merge: twice the latency in the first kernel. */
#include "../core/ops.cuh"

#define GROUP 128     /* logits */
#define SUPER 16      /* groups */
#define PART 8        /* logits of a group, a thread's */
#define THREADS 512   /* of top_rows */
#define SUPERS 1024   /* at most: 2,097,152 logits */
#define LISTED SUPERS /* keys of a list */
#define HELD 2        /* pairs of groups' keys that a thread keeps: of 262,144 logits */
#define SCAN_WARPS 8
#define SCAN_GROUPS 8 /* of a warp */

typedef unsigned long long key;
#define NAN_KEY (~(key)0)

struct top {
    const float *logits;
    key *groups; /* [n, stride] */
    int32_t *ids;
    float *values;
    int n_vocab, n_groups, stride, k; /* stride: n_groups, and one more where that is odd */
    bool whole;                       /* rows begin at multiples of 16 bytes */
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
            a.groups[(int64_t)blockIdx.y * a.stride + first + g] = (key)most << 32 | low;
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

/* ---- what is out ---- */

/* A number that at least one key in each of k sets reaches: of the largest of all threads' sets of lanes.
 * high: of my own keys. sets: [THREADS / 8]. */
DEV uint32_t reached(uint32_t high, int k, uint32_t *sets)
{
    const int t = threadIdx.x, lanes = k <= 16 ? 32 : k <= 32 ? 16 : 8, n = THREADS / lanes;
    static_assert(THREADS / 32 == 16 && KN_TOP_MOST <= THREADS / 8, "sets");
    for (int o = lanes / 2; o; o /= 2) high = max(high, __shfl_xor_sync(~0u, high, o));
    if (t % lanes == 0) sets[t / lanes] = high;
    __syncthreads();
    return __reduce_min_sync(~0u, min(sets[t % 32 % n], sets[(t % 32 + 32) % n]));
}
/* My key to the list, if it counts: a whole warp calls. *count: how many there are, more than LISTED perhaps.
 */
DEV void list_key(key mine, bool counts, key *list, int *count)
{
    const unsigned all = __ballot_sync(~0u, counts);
    const int lane = threadIdx.x % 32;
    int at = 0;
    if (!all) return;
    if (lane == 0) at = atomicAdd(count, __popc(all));
    at = __shfl_sync(~0u, at, 0) + __popc(all & ((1u << lane) - 1));
    if (counts && at < LISTED) list[at] = mine;
}

/* ---- by steps, whatever the logits are ---- */

/* The k groups of the largest keys, by the largest of 16 groups. */
DEV void groups_by_steps(const top &a, const key *groups, key *list, key *best)
{
    const int t = threadIdx.x, supers = (a.n_groups + SUPER - 1) / SUPER;
    for (int s = t; s < supers; s += THREADS) {
        key most = 0;
#pragma unroll 4
        for (int g = SUPER * s; g < SUPER * (s + 1); g++)
            if (g < a.n_groups) most = max(most, __ldcg(groups + g));
        list[s] = most;
    }
    __syncthreads();
    largest(list, supers, best, a.k);
    for (int j = t; j < SUPER * a.k; j += THREADS) {
        const key s = best[j / SUPER];
        const int g = id_of(s) / (GROUP * SUPER) * SUPER + j % SUPER;
        list[j] = s && g < a.n_groups ? __ldcg(groups + g) : 0;
    }
    __syncthreads();
    largest(list, SUPER * a.k, best, a.k);
}
/* The k largest logits of these groups, by parts of 8. */
DEV void logits_by_steps(const top &a, const float *l, key *list, key *best)
{
    constexpr int parts = GROUP / PART;
    for (int j = threadIdx.x; j < parts * a.k; j += THREADS) {
        const key g = best[j / parts];
        list[j] = g ? part_key(a, l, id_of(g) / GROUP * GROUP + j % parts * PART) : 0;
    }
    __syncthreads();
    largest(list, parts * a.k, best, a.k);
    for (int j = threadIdx.x; j < PART * a.k; j += THREADS) {
        const key p = best[j / PART];
        const int at = id_of(p) / PART * PART + j % PART;
        list[j] = p && at < a.n_vocab ? key_of(__ldcg(l + at), (uint32_t)at) : 0;
    }
    __syncthreads();
    largest(list, PART * a.k, best, a.k);
}

/* ---- a row ---- */

/* Keys of groups 2 i and 2 i + 1; zeros where there are none. */
DEV ulonglong2 two_groups(const top &a, const key *groups, int i)
{
    if (2 * i + 1 < a.n_groups) return __ldcg((const ulonglong2 *)groups + i);
    return make_ulonglong2(2 * i < a.n_groups ? __ldcg(groups + 2 * i) : 0, 0);
}
DEV void list_groups(const top &a, const key *groups, uint32_t *sets, key *list, int *count)
{
    const int t = threadIdx.x;
    ulonglong2 held[HELD];
    uint32_t high = 0;
#pragma unroll
    for (int j = 0; j < HELD; j++) held[j] = two_groups(a, groups, j * THREADS + t);
#pragma unroll
    for (int j = 0; j < HELD; j++) high = max(high, (uint32_t)(max(held[j].x, held[j].y) >> 32));
    for (int j = HELD; 2 * j * THREADS < a.n_groups; j++) {
        const ulonglong2 two = two_groups(a, groups, j * THREADS + t);
        high = max(high, (uint32_t)(max(two.x, two.y) >> 32));
    }
    const key least = max((key)reached(high, a.k, sets) << 32, (key)1);
#pragma unroll
    for (int j = 0; j < HELD; j++) {
        list_key(held[j].x, held[j].x >= least, list, count);
        list_key(held[j].y, held[j].y >= least, list, count);
    }
    for (int j = HELD; 2 * j * THREADS < a.n_groups; j++) {
        const ulonglong2 two = two_groups(a, groups, j * THREADS + t);
        list_key(two.x, two.x >= least, list, count);
        list_key(two.y, two.y >= least, list, count);
    }
    __syncthreads();
}
/* best: the k groups; a warp one at a time. */
DEV void list_logits(const top &a, const float *l, const key *best, key *list, int *count)
{
    const key least = max(best[a.k - 1], (key)1);
    for (int r = threadIdx.x / 32; r < (a.k + 15) / 16 * 16; r += THREADS / 32) {
        const key group = r < a.k ? best[r] : 0;
        const int at = id_of(group) / GROUP * GROUP + (int)threadIdx.x % 32 * 4;
        float x[4];
        if (group && a.whole && at + 3 < a.n_vocab) {
            const float4 v = __ldcg((const float4 *)(l + at));
            x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
        } else {
#pragma unroll
            for (int e = 0; e < 4; e++) x[e] = group && at + e < a.n_vocab ? __ldcg(l + at + e) : -INFINITY;
        }
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const key mine = key_of(x[e], (uint32_t)(at + e));
            list_key(mine, mine >= least, list, count);
        }
    }
    __syncthreads();
}
/* The logit that the key is of; zeros have lost their sign. */
DEV float logit_of(key k, const float *l)
{
    const uint32_t u = (uint32_t)(k >> 32);
    return u == 0x80000000u ? l[id_of(k)] : __uint_as_float(u >> 31 ? u & 0x7fffffffu : ~u);
}

static __global__ void __launch_bounds__(THREADS) top_rows(const __grid_constant__ top a)
{
    __shared__ __align__(16) key list[LISTED + 2], best[KN_TOP_MOST];
    __shared__ uint32_t sets[THREADS / 8];
    __shared__ int count[2]; /* of groups; of logits */
    const int t = threadIdx.x;
    const float *l = a.logits + (int64_t)blockIdx.x * a.n_vocab;
    const key *groups = a.groups + (int64_t)blockIdx.x * a.stride;
    if (t < 2) count[t] = 0;
    cuda_grid_start();
    list_groups(a, groups, sets, list, &count[0]);
    if (count[0] <= LISTED)
        largest(list, count[0], best, a.k);
    else
        groups_by_steps(a, groups, list, best);
    const uint32_t top = (uint32_t)(best[0] >> 32); /* NaN, Inf or nothing at all: no finite maximum */
    if (top >= 0xff800000u || top == 0) {
        if (t < a.k) {
            a.ids[blockIdx.x * a.k + t] = KN_PICK_NAN;
            a.values[blockIdx.x * a.k + t] = __int_as_float(0x7fc00000);
        }
        return;
    }
    list_logits(a, l, best, list, &count[1]);
    if (count[1] <= LISTED)
        largest(list, count[1], best, a.k);
    else
        logits_by_steps(a, l, list, best);
    if (t < a.k) {
        const key mine = best[t];
        a.ids[blockIdx.x * a.k + t] = mine ? id_of(mine) : KN_PICK_NAN;
        a.values[blockIdx.x * a.k + t] = mine ? logit_of(mine, l) : -INFINITY;
    }
}

static int stride_of(int64_t n_groups)
{
    return (int)(n_groups + 1) / 2 * 2;
}

size_t cuda_top_scratch(int32_t n, int64_t n_vocab)
{
    return (size_t)n * (size_t)stride_of((n_vocab + GROUP - 1) / GROUP) * sizeof(key);
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
    const struct top args = {a->logits,
                             (key *)be->scratch_rows,
                             a->ids,
                             a->values,
                             a->n_vocab,
                             (a->n_vocab + GROUP - 1) / GROUP,
                             stride_of((a->n_vocab + GROUP - 1) / GROUP),
                             a->k,
                             a->n_vocab % 4 == 0 && ((uintptr_t)a->logits & 15) == 0};
    const int per = SCAN_WARPS * SCAN_GROUPS;
    const dim3 grid((unsigned)((args.n_groups + per - 1) / per), (unsigned)a->n);
    const int rc = cuda_check(be, "top", cuda_launch(be, top_groups, grid, dim3(32 * SCAN_WARPS), 0, args));
    return rc ? rc
              : cuda_check(be, "top",
                           cuda_launch(be, top_rows, dim3((unsigned)a->n), dim3(THREADS), 0, args));
}
