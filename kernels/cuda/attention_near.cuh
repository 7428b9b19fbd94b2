/* attention_near.cuh - attention of few rows where all keys fit into the shared memory of some clusters:
 * short contexts, whose cost is a chain of latencies.
 *
 * A cluster takes one tile of one kv head. Each of its blocks asks for all its leaves at once, makes their
 * partial results as attn_few does, with the same bits, and leaves them in its shared memory where the keys
 * were. Then all blocks of the cluster add them, a share of the outputs each, reading each other's: no result
 * crosses global memory, and there is no second kernel. */
#include "attention_few.cuh"

/* A leaf's partial result in place of its keys, 2 D + 8 halves a row: row r of the tile has D floats in the
 * keys' part of rows 2 r and 2 r + 1, its top and sum in what row r has too much. Bytes from the leaf's
 * stage. */
template <int D> DEV unsigned near_value(int r, int col)
{
    return (unsigned)((2 * r + col / (D / 2)) * few<D, 1>::PITCH * 2 + col % (D / 2) * 4);
}
template <int D> DEV unsigned near_top(int r)
{
    return (unsigned)(r * few<D, 1>::PITCH * 2 + 4 * D);
}

/* Leaves 0 .. n - 1 (the first is leaf `first` absolutely) of class cls, 4 columns from col of row r; leaf i
 * is in block i / per, stage i % per, the stages from `ring` on. As merge_class. */
template <int D>
DEV merged<D, 4> near_class(unsigned ring, int first, int n, unsigned per, int cls, int r, int col)
{
    constexpr int L = few<D, 1>::LEAVES;
    const unsigned inverse = 65536 / per + 1, value = ring + near_value<D>(r, col),
                   top = ring + near_top<D>(r);
    const int node0 = first / L, node1 = (first + n - 1) / L;
    merged<D, 4> all;
    all.clear();
    for (int node = node0 + (cls - node0 % CLASSES + CLASSES) % CLASSES; node <= node1; node += CLASSES) {
        const int from = max(node * L, first) - first, to = min(node * L + L, first + n) - first;
        merged<D, 4> sum, one[8];
        sum.clear();
#pragma unroll 1
        for (int i = from; i < to; i += 8) {
#pragma unroll
            for (int j = 0; j < 8; j++)
                if (i + j < to) {
                    const unsigned rank = (unsigned)(i + j) * inverse >> 16,
                                   at = ((unsigned)(i + j) - rank * per) * few<D, 1>::STAGE;
                    const float4 ts = cluster_load(cluster_at(top + at, rank)),
                                 y = cluster_load(cluster_at(value + at, rank));
                    one[j].T = ts.x, one[j].S = ts.y;
                    one[j].Y[0] = y.x, one[j].Y[1] = y.y, one[j].Y[2] = y.z, one[j].Y[3] = y.w;
                }
#pragma unroll
            for (int j = 0; j < 8; j++)
                if (i + j < to) sum.add(one[j]);
        }
        all.add(sum);
    }
    return all;
}

template <int D, bool BF16>
__global__ void __launch_bounds__(32 * few<D, 1>::WARPS, D <= 128 ? 2 : 1) attn_near(const attn a)
{
    using F = few<D, 1>;
    static_assert(sizeof(merged<D, 4>) * CLASSES * 32 <= F::QUERIES + F::SCORES, "no room for the classes");
    constexpr int LEAF = F::LEAF, PITCH = F::PITCH, THREADS = 32 * F::WARPS, CT = F::CT;
    extern __shared__ __align__(128) unsigned char raw[];
    uint4 *queries = (uint4 *)raw;
    float *exchange = (float *)(raw + F::QUERIES), *units = (float *)(raw + F::QUERIES + F::SCORES);
    const unsigned ring = shared_at(raw) + (F::FIXED + 127) / 128 * 128;
    cuda_grid_early();
    STAMP(0);

    const int lane = threadIdx.x % 32, w = threadIdx.x / 32, g = lane / 4, c = lane % 4;
    const int tile = blockIdx.x, kv_head = blockIdx.y, rank = blockIdx.z, blocks = gridDim.z;
    if (!a.early) {
        cuda_grid_wait();
        STAMP(2);
    }
    const int pos0 = a.pos[0], bound = a.first ? *a.first : 0;
    const struct span seen = visible_any(a, tile, 1, pos0, bound);
    const int first = seen.lo / LEAF, count = seen.hi > seen.lo ? (seen.hi - 1) / LEAF + 1 - first : 0;
    const int per = max((count + blocks - 1) >> a.log_blocks, 1);
    const int from = min(rank * per, count), to = min(from + per, count); /* my leaves, of count */

    STAMP(1); /* positions are here */
    auto ask = [&](int i) {
        const unsigned at = ring + (unsigned)((i - from) * F::STAGE);
        fetch<D, D, LEAF, PITCH, THREADS>(a, at, a.k, (first + i) * LEAF, kv_head, 0, seen);
        copy_commit();
        fetch<D, D, LEAF, PITCH, THREADS>(a, at + D * 2, a.v, (first + i) * LEAF, kv_head, 0, seen);
        copy_commit();
    };
    int asked = from;
    if (a.early) { /* this pass's own keys begin at pos0 */
        while (asked < to && (first + asked + 1) * LEAF <= pos0) ask(asked++);
        cuda_grid_wait();
        STAMP(2);
    }
    struct query_rows<D, F::WARPS, TILE / F::WARPS> rows;
    if (from < to) rows.read(a, tile, kv_head, 0);
    while (asked < to) ask(asked++);
    if (from < to) rows.template put<BF16, 2>(a, queries, units, 0);
    STAMP(3);

    const int row0 = row_of(a, tile * TILE + g), row1 = row_of(a, tile * TILE + g + 8);
    const struct span v0 = row0 < a.n ? visible(a, row0, pos0, bound) : span{0, 0},
                      v1 = row1 < a.n ? visible(a, row1, pos0, bound) : span{0, 0};
    const struct span full = visible_all(a, tile, pos0, bound);

    for (int i = from; i < to; i++) {
        const unsigned k = ring + (unsigned)((i - from) * F::STAGE), v = k + D * 2;
        float x[F::NT][4], acc[CT][4], top[2], sum[2];
        copy_wait(2 * (to - i) - 1);
        __syncthreads(); /* queries and these keys are here, and all have read the scores before */
        if (i == from) STAMP(4);
        leaf_scores<D, BF16, 1>(x, exchange, queries, k, 0, w);
        if (i == from) STAMP(5);
        copy_wait(2 * (to - i) - 2);
        __syncthreads(); /* all scores and these values are here */
        if (i == from) STAMP(6);
        leaf_output<D, BF16, 1>(acc, top, sum, x, exchange, units, v, raw + (v - shared_at(raw)),
                                (first + i) * LEAF, v0, v1, full, 0, w);
        if (i == from) STAMP(7);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int r = g + 8 * half;
            if ((half ? row1 : row0) >= a.n) continue;
#pragma unroll
            for (int t = 0; t < CT; t++)
                *(float2 *)(raw + (k - shared_at(raw)) + near_value<D>(r, w * CT * 8 + 8 * t + 2 * c)) =
                    make_float2(acc[t][2 * half], acc[t][2 * half + 1]);
            if (w == 0 && c == 0)
                *(float2 *)(raw + (k - shared_at(raw)) + near_top<D>(r)) = make_float2(top[half], sum[half]);
        }
    }
    STAMP(8);
    cluster_sync();
    STAMP(9);
    merged<D, 4>(*box)[32] = (merged<D, 4>(*)[32])raw; /* queries and scores are done with */

    /* Rows' values in fours, 32 at a time: a warp a class, or several classes. */
    const int items = min(TILE, a.n * a.n_rep - tile * TILE) * (D / 4),
              share = (items + blocks - 1) >> a.log_blocks;
    for (int base = rank * share; base < min((rank + 1) * share, items); base += 32) {
        const int item = base + lane, r = item / (D / 4), col = item % (D / 4) * 4;
        const bool mine = item < min((rank + 1) * share, items);
        for (int cls = w; cls < CLASSES; cls += F::WARPS) {
            merged<D, 4> one;
            one.clear();
            if (mine && count) one = near_class<D>(ring, first, count, (unsigned)per, cls, r, col);
            box[cls][lane] = one;
        }
        __syncthreads();
        if (w == 0 && mine) {
            merged<D, 4> all;
            all.clear();
#pragma unroll
            for (int cls = 0; cls < CLASSES; cls++) all.add(box[cls][lane]);
            const int at = tile * TILE + r;
            *(float4 *)(a.out + ((int64_t)row_of(a, at) * (a.n_head - a.n_rep) + kv_head * a.n_rep + at) * D +
                        col) = make_float4(divided(all.Y[0], all.S), divided(all.Y[1], all.S),
                                           divided(all.Y[2], all.S), divided(all.Y[3], all.S));
        }
        __syncthreads();
    }
    STAMP(10);
    cluster_sync(); /* nobody's shared memory goes while another reads it */
    STAMP(11);
}

template <int D> static attn_fn near_of(uint32_t type, int32_t stages, size_t *smem)
{
    using F = few<D, 1>;
    *smem = (size_t)((F::FIXED + 127) / 128 * 128 + stages * F::STAGE);
    return type == KN_BF16 ? attn_near<D, true> : attn_near<D, false>;
}
