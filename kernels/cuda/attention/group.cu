/* attention/group.cu - attention of more than FEW rows with heads of 128, by products of four warps (compute
 * capability 9.0).
 *
 * Bound: tensor operations, 512 a (query row, key). mma.sync reaches 0.6 of what the chip can, and what it
 * reads of shared memory once a warp more than that allows; a product of four warps (wgmma: 64 rows by 128
 * columns) reads both factors from shared memory by itself, keys and values once for all. Two groups of four
 * warps have 64 rows each of one kv head; a warp more asks for tiles of 128 keys and of their values, two of
 * each on their way, as boxes of 64 columns whose 16-byte pieces stand turned by the row (chain/map.cu).
 * While one group makes weights of its scores the other's products run.
 *
 * Numbers as in attention/prefill.cu: one half each of queries and weights, tops that are whole, a tile of
 * keys that a row does not see changes nothing; only the tiles are 128 keys and in one order, so the bits are
 * not that kernel's. Which of the two runs depends on the head and the device alone.
 *
 * Wins over attention/prefill.cu: a prompt of 4,096 rows of 8B 148 to 137 ms. dflash-bench rows -m
 * 8b-q4_k_m.gguf --device cuda --rows 1 --prompts 4096 */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#pragma nv_diag_suppress 177 /* nothing of this is for such a device */
#endif
#define mma attention_mma /* as four.cuh */
#include "many.cuh"
#include "sparse.cuh"
#undef mma
#include "four.cuh"

namespace group
{
using namespace four;
enum {
    D = 128,
    KEYS = 128,
    GROUPS = 2,
    ROWS = 64 * GROUPS,
    THREADS = 128 * GROUPS, /* that multiply */
    HALF = KEYS * 128,      /* bytes of 64 columns of a tile */
    PART = 2 * HALF,        /* of a tile of keys, or of values */
    STAGES = 2,
    QUERIES = 64 * 128, /* bytes of 64 columns of a group's queries */
    AT_RING = GROUPS * 2 * QUERIES,
    AT_UNITS = AT_RING + STAGES * 2 * PART,
    AT_BAD = AT_UNITS + 4 * ROWS,
    AT_BARS = AT_BAD + 4 * KEYS,
    BYTES = AT_BARS + 8 * 4 * STAGES + 1024 /* to stand at a multiple of 1,024 */
};

static_assert(BYTES == ATTN_GROUP_BYTES, "shared memory as attention_plan.h has it");

/* Heads of N rows, four values of each a lane, normed and times g. */
template <int N> DEV void norm_rows(float x[N][4], const float g[4], float eps)
{
    float sum[N];
#pragma unroll
    for (int i = 0; i < N; i++) {
        sum[i] = 0.0f;
#pragma unroll
        for (int j = 0; j < 4; j++) sum[i] = __fmaf_rn(x[i][j], x[i][j], sum[i]);
    }
#pragma unroll
    for (int o = 16; o; o >>= 1)
#pragma unroll
        for (int i = 0; i < N; i++) sum[i] = __fadd_rn(sum[i], __shfl_xor_sync(~0u, sum[i], o));
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float r = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(sum[i], (float)D), eps)));
#pragma unroll
        for (int j = 0; j < 4; j++) x[i][j] = __fmul_rn(__fmul_rn(x[i][j], r), g[j]);
    }
}

/* A warp's 16 rows of queries from at on, normed and rotated where they come as the projections left them
 * (a.fold; the arithmetic of rope_store), scaled as query_rows does, to `to`; units: their 16. A lane has
 * every 32nd column. */
template <bool BF16>
DEV void queries(const attn &a, uint8_t *to, int row64, float *units, int at, int kv_head)
{
    constexpr int N = 8;
    const int lane = threadIdx.x % 32;
    float g[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    if (a.fold && a.q_norm)
#pragma unroll
        for (int j = 0; j < 4; j++) g[j] = __ldg(a.q_norm + lane + 32 * j);
#pragma unroll 1
    for (int k = 0; k < 16; k += N) {
        float x[N][4];
        float2 cs[N][2];
        uint32_t top[N];
#pragma unroll
        for (int i = 0; i < N; i++) {
            const int row = row_of(a, at + k + i), head = kv_head * a.n_rep + at + k + i - row * a.n_rep;
            const float *q = a.q + ((int64_t)row * a.n_head + head) * D + lane;
            const float2 *table = (const float2 *)a.table + (int64_t)row * (D / 2) + lane;
#pragma unroll
            for (int j = 0; j < 4; j++) x[i][j] = row < a.n ? __ldcg(q + 32 * j) : 0.0f;
#pragma unroll
            for (int j = 0; j < 2; j++)
                cs[i][j] = a.fold && a.half && row < a.n ? __ldcg(table + 32 * j) : make_float2(1.0f, 0.0f);
        }
        if (a.fold && a.q_norm) norm_rows<N>(x, g, a.eps);
        if (a.fold && a.half)
#pragma unroll
            for (int i = 0; i < N; i++)
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    const float u = x[i][j], w = x[i][j + 2];
                    x[i][j] = __fmaf_rn(u, cs[i][j].x, -__fmul_rn(w, cs[i][j].y));
                    x[i][j + 2] = __fmaf_rn(u, cs[i][j].y, __fmul_rn(w, cs[i][j].x));
                }
#pragma unroll
        for (int i = 0; i < N; i++) {
            float most = 0.0f; /* a NaN is no maximum, as in query_rows */
#pragma unroll
            for (int j = 0; j < 4; j++) most = fmaxf(most, fabsf(x[i][j]));
            top[i] = __reduce_max_sync(~0u, __float_as_uint(most));
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            const int r = row64 + k + i;
            int e = (int)(top[i] >> 23) - 126; /* top < 2^e */
            e = top[i] >= 0x7f800000 || e < -100 ? 0 : e > 126 ? 126 : e;
            const float down = __int_as_float((127 - e) << 23);
            if (lane == 0)
                units[k + i] = __fmul_rn(__fmul_rn(a.scale, 0x1.715476p+0f), __int_as_float((127 + e) << 23));
#pragma unroll
            for (int j = 0; j < 4;
                 j++) { /* column lane + 32 j: of the half j / 2, piece 4 (j % 2) + lane / 8 */
                const int piece = 4 * (j % 2) + lane / 8;
                *(uint16_t *)(to + j / 2 * QUERIES + r * 128 + ((piece ^ (r & 7)) << 4) + 2 * (lane % 8)) =
                    to_half<BF16>(__fmul_rn(x[i][j], down));
            }
        }
    }
}

/* A key that a row does not see weighs zero, and zero times NaN or Inf is NaN: so where some row does not see
 * all of a tile, such values become zeros before the product, once what they are to the rows that see them
 * has been added. bad: the keys that have them. Both groups; whether there are any. */
template <bool BF16> DEV bool find_bad(const uint8_t *v, uint32_t *bad)
{
    const int key = threadIdx.x / 2, half = threadIdx.x % 2;
    const uint4 *row = (const uint4 *)(v + half * HALF + key * 128);
    bool here = false;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        uint4 x = row[i ^ (key & 7)];
        here |= make_finite<BF16>(x);
    }
    here |= __shfl_xor_sync(~0u, (int)here, 1);
    if (!half) bad[key] = here;
    int any;
    asm volatile(
        "{\n.reg .pred p, q;\nsetp.ne.b32 p, %1, 0;\nbar.red.or.pred q, 3, %2, p;\nselp.b32 %0, 1, 0, q;\n}"
        : "=r"(any)
        : "r"((int)here), "n"((int)THREADS)
        : "memory");
    return any;
}
/* acc += what is NaN or Inf, for rows g and g + 8 that see the key. */
template <bool BF16>
DEV void add_bad(float acc[16][4], const uint32_t p[8][4], const uint8_t *v, const uint32_t *bad, int p0,
                 const struct span &v0, const struct span &v1)
{
    const int lane = threadIdx.x % 32, c = lane % 4;
#pragma unroll
    for (int s = 0; s < 8; s++)
#pragma unroll 1
        for (int i = 0; i < 16; i++) {
            const int key = 16 * s + i, from = lane / 4 * 4 + i % 8 / 2, at = p0 + key;
            if (!bad[key]) continue;
            const uint32_t w0 = __shfl_sync(~0u, i < 8 ? p[s][0] : p[s][2], from) >> 16 * (i % 2),
                           w1 = __shfl_sync(~0u, i < 8 ? p[s][1] : p[s][3], from) >> 16 * (i % 2);
            const float f0 = from_half<BF16>((uint16_t)w0), f1 = from_half<BF16>((uint16_t)w1);
            const bool in0 = at >= v0.lo && at < v0.hi, in1 = at >= v1.lo && at < v1.hi;
#pragma unroll
            for (int t = 0; t < 16; t++) {
                const uint32_t pair =
                    *(const uint32_t *)(v + t / 8 * HALF + key * 128 + ((t % 8 ^ (key & 7)) << 4) + 4 * c);
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const float y = from_half<BF16>((uint16_t)(pair >> 16 * e));
                    if (isfinite(y)) continue;
                    if (in0) acc[t][e] = __fmaf_rn(f0, y, acc[t][e]);
                    if (in1) acc[t][2 + e] = __fmaf_rn(f1, y, acc[t][2 + e]);
                }
            }
        }
}
DEV void meet_all()
{
    asm volatile("bar.sync 3, %0;" ::"n"((int)THREADS) : "memory");
}
template <bool BF16> DEV void clean(uint8_t *v)
{
    uint4 *row = (uint4 *)(v + threadIdx.x % 2 * HALF + threadIdx.x / 2 * 128);
    meet_all();
    for (int i = 0; i < 8; i++) {
        uint4 x = row[i];
        make_finite<BF16>(x);
        row[i] = x;
    }
    shared_fence();
    meet_all();
}

/* What dense attention and attention over lists have beside a cache's maps. */
struct dense {
};
struct sparse {
    sparse_lists lists;
    chain_map mk, mv; /* of the means */
};

/* The warp that asks: tiles from .. to of keys and values, each into its place when both groups are done with
 * it. walk: of `sparse`. */
template <class MORE, class WALK>
DEV void ask(const attn &a, const chain_map *mk, const chain_map *mv, const MORE &more, const WALK &walk,
             uint32_t ring, uint64_t *bars, int kv_head, int from, int to)
{
    if (threadIdx.x % 32) return;
    for (int i = 0; i < 2 * (to - from); i++) {
        const int tile = from + i / 2, stage = i / 2 % STAGES, lap = i / 2 / STAGES,
                  which = 2 * stage + i % 2;
        const uint32_t at = ring + (uint32_t)(which * PART);
        int64_t p0 = (int64_t)tile * KEYS;
        kv_where where = a.where;
        const chain_map *k_map = mk, *v_map = mv;
        if constexpr (std::is_same_v<MORE, sparse>) {
            p0 = walk.at(tile);
            if (walk.mean(tile)) where = more.lists.means, k_map = &more.mk, v_map = &more.mv;
        }
        const int slot = kv_slot_far(where, p0);
        uint64_t *full = bars + which, *empty = bars + 2 * STAGES + which;
        if (lap) bar_wait(empty, (uint32_t)(lap - 1) & 1);
        bar_expect(full, PART);
        box(at, i % 2 ? v_map : k_map, 0, kv_head, slot, full);
        box(at + HALF, i % 2 ? v_map : k_map, 64, kv_head, slot, full);
    }
}

template <bool BF16, class MORE>
__global__ void __launch_bounds__(THREADS + 128, 1)
    attn_group(const attn a, const __grid_constant__ chain_map mk, const __grid_constant__ chain_map mv,
               const __grid_constant__ MORE more)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    extern __shared__ unsigned char raw[];
    unsigned char *const base = raw + (1024 - (shared_at(raw) & 1023)) % 1024;
    float *const units = (float *)(base + AT_UNITS);
    uint32_t *const bad = (uint32_t *)(base + AT_BAD);
    uint64_t *const bars = (uint64_t *)(base + AT_BARS);
    const uint32_t ring = shared_at(base) + AT_RING;
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2 * STAGES; i++) {
            bar_open(bars + i, 1);
            bar_open(bars + 2 * STAGES + i, GROUPS);
        }
        bar_fence();
    }
    __syncthreads();
    cuda_grid_start();

    const int lane = threadIdx.x % 32, w = threadIdx.x / 32, group = w / 4, g = lane / 4;
    const int tile = (int)(gridDim.x - 1 - blockIdx.x) * (ROWS / TILE),
              kv_head = blockIdx.y; /* the longest first */
    const int pos0 = a.pos[0], bound = a.first ? *a.first : 0;
    const struct span seen = visible_any(a, tile, ROWS / TILE, pos0, bound);
    constexpr bool LISTS = std::is_same_v<MORE, sparse>;
    const auto walk = [&] {
        if constexpr (LISTS)
            return sparse_walk<KEYS>(a, more.lists, tile, kv_head, pos0);
        else
            return 0;
    }();
    int from = seen.lo / KEYS, to = seen.hi > seen.lo ? (seen.hi - 1) / KEYS + 1 : from;
    if constexpr (LISTS) from = 0, to = walk.turns;
    if (group == GROUPS) { /* a group of its own, for registers are given and taken by groups */
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (w == 4 * GROUPS) ask(a, &mk, &mv, more, walk, ring, bars, kv_head, from, to);
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    const int own = tile + w; /* the warp's tile */
    const struct span mine = visible_any(a, tile + 4 * group, 4, pos0, bound),
                      full = visible_all(a, own, pos0, bound);
    const struct span v0 = visible_at(a, own * TILE + g, pos0, bound),
                      v1 = visible_at(a, own * TILE + g + 8, pos0, bound);
    const int last = min(row_of(a, tile * TILE + ROWS - 1), a.n - 1);
    const struct span whole = {visible(a, last, pos0, bound).lo,
                               visible(a, row_of(a, tile * TILE), pos0, bound).hi};
    queries<BF16>(a, base + group * 2 * QUERIES, w % 4 * 16, units + 16 * w, own * TILE, kv_head);
    shared_fence();
    asm volatile("bar.sync %0, 128;" ::"r"(1 + group) : "memory");
    const float unit[2] = {units[16 * w + g], units[16 * w + g + 8]};
    const uint32_t q = matrix_at(shared_at(base) + (uint32_t)(group * 2 * QUERIES), 16);

    float acc[16][4], top[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};
#pragma unroll
    for (int t = 0; t < 16; t++) acc[t][0] = acc[t][1] = acc[t][2] = acc[t][3] = 0.0f;
#pragma unroll 1
    for (int i = 0; i < to - from; i++) {
        bool means = false;
        int p0 = (from + i) * KEYS;
        if constexpr (LISTS) means = walk.mean(i), p0 = walk.at(i);
        const int stage = i % STAGES;
        const uint32_t phase = (uint32_t)(i / STAGES) & 1;
        const uint32_t k = ring + (uint32_t)(2 * stage * PART), v = k + PART;
        uint64_t *const at = bars + 2 * stage, *const done = at + 2 * STAGES;
        const bool skips = !means && (p0 >= mine.hi || p0 + KEYS <= mine.lo); /* the whole group */
        float x[16][4];
        uint32_t p[8][4];
        bar_wait(at, phase);
        if (!skips) {
            const uint32_t km = matrix_at(k, 16);
            products_begin();
#pragma unroll
            for (int s = 0; s < 8; s++)
                score_128<BF16>(x, q + (uint32_t)((s / 4 * QUERIES + s % 4 * 32) >> 4),
                                km + (uint32_t)((s / 4 * HALF + s % 4 * 32) >> 4), s);
            products_end();
            settle_128(x);
        }
        if (threadIdx.x % 128 == 0) bar_arrive(done);
        if (!skips) {
            if (means) {
                if constexpr (LISTS) walk.template hide<16>(x, p0, unit);
            } else if (p0 < full.lo || p0 + KEYS > full.hi)
                hide<16>(x, p0, v0, v1);
            float here[2];
            raise_top<16>(here, x, unit, top);
            raise_results<16>(acc, sum, top, here);
            weights_of<16, BF16>(p, sum, x, unit, top);
        }
        bar_wait(at + 1, phase);
        uint8_t *const values = base + AT_RING + (2 * stage + 1) * PART;
        if (!means && (p0 < whole.lo || p0 + KEYS > whole.hi) && find_bad<BF16>(values, bad)) {
            if (!skips) add_bad<BF16>(acc, p, values, bad, p0, v0, v1);
            clean<BF16>(values);
        }
        if (!skips) {
            const uint32_t vm = matrix_at(v, HALF);
            products_begin();
#pragma unroll
            for (int s = 0; s < 8; s++) weigh_128<BF16>(acc, p[s], vm + (uint32_t)(s * 16 * 128 >> 4), 1);
            products_end();
            settle_128(acc);
        }
        if (threadIdx.x % 128 == 0) bar_arrive(done + 1);
    }
    put_rows<D, 16>(a, acc, sum, own, kv_head, 0);
#endif
}
} /* namespace group */

static bool maps_of(const struct attn *a, struct chain_map *mk, struct chain_map *mv)
{
    return kv_map(mk, a->k, a->type, a->n_kv, group::D, a->where, group::KEYS) &&
           kv_map(mv, a->v, a->type, a->n_kv, group::D, a->where, group::KEYS);
}
bool attn_group_takes(const struct cuda_backend *be, const struct attn *a)
{
    struct chain_map mk, mv;
    return be->cc >= 90 && !be->generic && a->d == group::D && kv_halves(a->type) &&
           be->smem_block >= group::BYTES && maps_of(a, &mk, &mv);
}
template <class MORE> static int launch(struct cuda_backend *be, const struct attn *a, const MORE &more)
{
    struct chain_map mk, mv;
    const auto f = kv_bf16(a->type) ? group::attn_group<true, MORE> : group::attn_group<false, MORE>;
    const cudaError_t err =
        cudaFuncSetAttribute(f, cudaFuncAttributeMaxDynamicSharedMemorySize, group::BYTES);
    const int64_t rows = (int64_t)a->n * a->n_rep;
    const dim3 grid((unsigned)((rows + group::ROWS - 1) / group::ROWS), (unsigned)a->n_kv);
    if (err || !maps_of(a, &mk, &mv)) return cuda_check(be, "attention", err ? err : cudaErrorUnknown);
    return cuda_check(be, "attention",
                      cuda_launch(be, f, grid, dim3(group::THREADS + 128), group::BYTES, *a, mk, mv, more));
}
int attn_group_launch(struct cuda_backend *be, const struct attn *a)
{
    return launch(be, a, group::dense());
}
int attn_group_sparse(struct cuda_backend *be, const struct attn *a, const struct sparse_lists *lists)
{
    struct group::sparse more = {*lists, {}, {}};
    if (!kv_map(&more.mk, (void *)lists->mk, a->type, a->n_kv, group::D, lists->means, group::KEYS) ||
        !kv_map(&more.mv, (void *)lists->mv, a->type, a->n_kv, group::D, lists->means, group::KEYS))
        return cuda_check(be, "attention", cudaErrorUnknown);
    return launch(be, a, more);
}
