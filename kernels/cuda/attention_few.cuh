/* attention_few.cuh - attention of up to FEW rows in several tiles: partial results of leaves or nodes,
 * spread over blocks; and how partial results are added.
 *
 * A block takes TILES tiles of one kv head and some consecutive units of keys, which it streams through a
 * ring of leaves in shared memory. Warps stand TILES by SIDE: the SIDE warps of a tile share a leaf's scores
 * by keys and its output by columns; in between they exchange the scores, and each makes the weights of all
 * of them for itself, so that a weight or an output has the same chain of operations whatever TILES is. A
 * leaf begins anew at its own T; a node adds its leaves in registers. */
#include "attention.cuh"
#include "prep_block.cuh"

template <int D, int TILES> struct few {
    static constexpr int LEAF = D <= 256 ? 64 : 32;
    static constexpr int LEAVES = NODE / LEAF; /* of a node */
    static constexpr int WARPS = D <= 128 ? 4 : 8;
    static constexpr int SIDE = WARPS / TILES;
    static constexpr int NT = LEAF / 8;                  /* n8 tiles of scores */
    static constexpr int KT = NT > SIDE ? NT / SIDE : 1; /* of a warp */
    static constexpr int CT = D / 8 / SIDE;              /* n8 tiles of a warp's output */
    static constexpr int PITCH =
        2 * D + 8; /* halves of a key and its value: on different banks than the next */
    static constexpr int STAGE = LEAF * PITCH * 2;             /* bytes */
    static constexpr int SPITCH = LEAF + 8;                    /* floats of a row of scores */
    static constexpr int QUERIES = TILES * (D / 16) * 2 * 512; /* bytes */
    static constexpr int SCORES = SIDE > 1 ? TILES *TILE *SPITCH * 4 : 0;
    static constexpr int FIXED = QUERIES + SCORES + TILES * TILE * 4 + 64;
};

/* A leaf in two steps, for the warp that has tile m of the block and share `side` of it. First the scores of
 * its share of the keys at k: to x, or to exchange where several warps share a tile. */
template <int D, bool BF16, int TILES>
DEV void leaf_scores(float x[few<D, TILES>::NT][4], float *exchange, const uint4 *q, unsigned k, int m,
                     int side)
{
    using F = few<D, TILES>;
    if (F::SIDE == 1) {
        scores<D, BF16, F::NT, F::PITCH, 2>(x, q, k);
    } else if (side * F::KT < F::NT) {
        const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
        float part[F::KT][4];
        scores<D, BF16, F::KT, F::PITCH, 2>(part, q, k + side * F::KT * 8 * F::PITCH * 2);
        float *row = exchange + (m * TILE + g) * F::SPITCH + side * F::KT * 8 + 2 * c;
#pragma unroll
        for (int j = 0; j < F::KT; j++) {
            *(float2 *)(row + 8 * j) = make_float2(part[j][0], part[j][1]);
            *(float2 *)(row + 8 * F::SPITCH + 8 * j) = make_float2(part[j][2], part[j][3]);
        }
    }
}
/* Then, all scores of the tile being there, its share of the output's columns, relative to 2^top; all weights
 * are made by each warp. v: the values, also at `values`; rows g and g + 8 see v0 and v1, all of the tile's
 * see full. */
template <int D, bool BF16, int TILES>
DEV void leaf_output(float acc[few<D, TILES>::CT][4], float top[2], float sum[2],
                     float x[few<D, TILES>::NT][4], const float *exchange, const float *units, unsigned v,
                     const unsigned char *values, int p0, const struct span &v0, const struct span &v1,
                     const struct span &full, int m, int side)
{
    using F = few<D, TILES>;
    constexpr int LEAF = F::LEAF, CT = F::CT;
    const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
    if (F::SIDE > 1) {
        const float *row = exchange + (m * TILE + g) * F::SPITCH + 2 * c;
#pragma unroll
        for (int j = 0; j < F::NT; j++) {
            const float2 y = *(const float2 *)(row + 8 * j),
                         z = *(const float2 *)(row + 8 * F::SPITCH + 8 * j);
            x[j][0] = y.x, x[j][1] = y.y, x[j][2] = z.x, x[j][3] = z.y;
        }
    }
    const bool ragged = p0 < full.lo || p0 + LEAF > full.hi;
    const float unit[2] = {units[m * TILE + g], units[m * TILE + g + 8]};
    uint32_t p[LEAF / 16][2][4];
    mask_scores<F::NT>(x, top, unit, ragged, p0, v0, v1);
    make_weights<F::NT, 2, BF16>(p, sum, x, top);
    sum[0] = quad_sum(sum[0]);
    sum[1] = quad_sum(sum[1]);
    /* Some row of the tile does not see some key: a NaN there must not meet its zero weight. */
    uint64_t bad = 0;
    if (ragged) bad = find_unfinite<BF16, LEAF, CT * 8, F::PITCH>((const uint16_t *)values + side * CT * 8);
#pragma unroll
    for (int t = 0; t < CT; t++) acc[t][0] = acc[t][1] = acc[t][2] = acc[t][3] = 0.0f;
    weigh<BF16, LEAF / 16, CT, F::PITCH, 2>(acc, p, v + side * CT * 16, bad != 0);
    if (bad) {
        const bool nan0 = bad & bits_of(v0, p0), nan1 = bad & bits_of(v1, p0);
#pragma unroll
        for (int t = 0; t < CT; t++) {
            if (nan0) acc[t][0] = acc[t][1] = __int_as_float(0x7fc00000);
            if (nan1) acc[t][2] = acc[t][3] = __int_as_float(0x7fc00000);
        }
    }
}

/* One partial result: T[16], sums[16], outputs [16][D]. */
DEV float *record_of(const attn &a, int tile, int kv_head, int slot, int d)
{
    return a.part + ((int64_t)(kv_head * a.n_tiles + tile - a.tile0) * a.slots + slot) * (TILE * (d + 2));
}

/* Add (t, sum, y) to (T, S, Y); N values each. */
template <int N> DEV void add_result(float &T, float &S, float *Y, float t, float sum, const float *y)
{
    const float to = fmaxf(T, t), f = factor(T, to), g = factor(t, to);
    S = __fmaf_rn(g, sum, __fmul_rn(S, f));
#pragma unroll
    for (int i = 0; i < N; i++) Y[i] = __fmaf_rn(g, y[i], __fmul_rn(Y[i], f));
    T = to;
}
/* Merge the partial results of one row: N values a lane at column col. Leaves of a node in order, nodes of a
 * class in order, classes in order. classes: which of them (a mask), so that warps may share the work. */
template <int D, int N> struct merged {
    float T, S, Y[N];
    __device__ __forceinline__ void clear()
    {
        T = -INFINITY, S = 0.0f;
#pragma unroll
        for (int i = 0; i < N; i++) Y[i] = 0.0f;
    }
    __device__ __forceinline__ void add(const merged &o)
    {
        add_result<N>(T, S, Y, o.T, o.S, o.Y);
    }
    __device__ __forceinline__ void load(const float *record, int r, int col)
    {
        T = __ldcg(record + r);
        S = __ldcg(record + TILE + r);
        const float *y = record + 2 * TILE + r * D + col;
        if (N == 4) {
            const float4 v = __ldcg((const float4 *)y);
            Y[0] = v.x, Y[1] = v.y, Y[N - 2] = v.z, Y[N - 1] = v.w;
        } else {
            const float2 v = __ldcg((const float2 *)y);
            Y[0] = v.x, Y[1] = v.y;
        }
    }
};
/* All nodes of one class, of the units [0, n) from absolute unit u0: four at a time, of the leaves of a node
 * or of the nodes. */
template <int D, int N>
DEV merged<D, N> merge_class(const attn &a, const float *part, int u0, int n, int cls, int r, int col)
{
    constexpr int L = few<D, 1>::LEAVES, RECORD = TILE * (D + 2);
    const int log_unit = a.leaves ? L == 8 ? 3 : 4 : 0, node0 = u0 >> log_unit, step = a.leaves ? 1 : CLASSES;
    merged<D, N> all, sum;
    all.clear();
    sum.clear();
    for (int node = node0 + ((cls - node0) & (CLASSES - 1)), i = max((node << log_unit) - u0, 0), left;
         i < n;) {
        merged<D, N> one[4];
        left = a.leaves ? ((node + 1) << log_unit) - u0 - i : 4; /* units of this batch */
        left = min(left, (n - i + step - 1) / step);
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (j < left) one[j].load(part + (int64_t)(i + j * step) * RECORD, r, col);
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (j < left) sum.add(one[j]);
        i += 4 * step;
        if (a.leaves && i + u0 >= (node + 1) << log_unit) {
            all.add(sum);
            sum.clear();
            node += CLASSES;
            i = (node << log_unit) - u0;
        }
    }
    all.add(sum);
    return all;
}

/* The units that tiles [tile, tile + n) see. */
struct units {
    int first, count;
};
template <int D> DEV struct units units_of(const attn &a, const struct span &v)
{
    const int unit = a.leaves ? few<D, 1>::LEAF : NODE;
    return v.hi > v.lo ? units{v.lo / unit, (v.hi - 1) / unit - v.lo / unit + 1} : units{0, 0};
}

/* The block at blockIdx.z takes units [from, from + per) of them; nothing where there are fewer blocks at
 * work. */
DEV int units_a_block(const attn &a, const struct units &u)
{
    return max(a.per, (u.count + (int)gridDim.z - 1) / (int)gridDim.z);
}

/* 256 results of a token's part of a kv head, block by block as the product that follows wants them. All
 * threads; warp 0 works. x: shared memory; at_row, col: where in the tiles' rows they begin. */
template <int D> DEV void prepare_strip(const attn &a, const float *x, int kv_head, int at_row, int col)
{
    const int lane = threadIdx.x % 32, row = row_of(a, at_row),
              block = ((kv_head * a.n_rep + at_row - row * a.n_rep) * D + col) / 256;
    const float4 y = *(const float4 *)(x + lane * 8), z = *(const float4 *)(x + lane * 8 + 4);
    const float v[8] = {y.x, y.y, y.z, y.w, z.x, z.y, z.z, z.w};
    uint8_t *to = a.then.rows + (size_t)row * (size_t)(a.then.slices * a.then.slice_row);
    if (a.act == MM_ACT_K)
        store_block<MM_ACT_K>(a.then, to, block, v);
    else if (a.act == MM_ACT_32)
        store_block<MM_ACT_32>(a.then, to, block, v);
    else
        store_block<MM_ACT_32M>(a.then, to, block, v);
}

/* The merge: a block 256 results of a tile, row after row; two warps, side by side, a class. */
#define MERGE_THREADS (64 * CLASSES)
template <int D> __global__ void __launch_bounds__(MERGE_THREADS) attn_merge(const __grid_constant__ attn a)
{
    __shared__ merged<D, 4> box[CLASSES][64];
    __shared__ __align__(16) float copy[256];
    cuda_grid_start();
    const int cls = threadIdx.x / 64, mine = threadIdx.x % 64 * 4, kv_head = blockIdx.y;
    const int from = a.tile0 * TILE * D + (int)blockIdx.x * 256, at = (from + mine) / D, tile = at / TILE,
              row = row_of(a, at), col = (from + mine) % D;
    if (row_of(a, from / D) >= a.n) return;
    const int pos0 = a.pos[0], bound = a.first ? *a.first : 0;
    /* as the block of attn_few saw it: its tiles' units start where its first row's do */
    const int group = a.tile0 + (tile - a.tile0) / a.tiles * a.tiles;
    const struct units u = units_of<D>(a, visible_any(a, group, a.tiles, pos0, bound));
    float *out = a.out + ((int64_t)row * (a.n_head - a.n_rep) + kv_head * a.n_rep + at) * D + col;
    if (u.count > 1) { /* else written already */
        if (row < a.n)
            box[cls][threadIdx.x % 64] = merge_class<D, 4>(a, record_of(a, tile, kv_head, 0, D), u.first,
                                                           u.count, cls, at % TILE, col);
        __syncthreads();
        if (cls == 0 && row < a.n) {
            merged<D, 4> all;
            all.clear();
#pragma unroll 2
            for (int i = 0; i < CLASSES; i++) all.add(box[i][threadIdx.x % 64]);
#pragma unroll
            for (int i = 0; i < 4; i++) copy[mine + i] = out[i] = divided(all.Y[i], all.S);
        }
    } else if (cls == 0 && row < a.n && a.prepare) {
        *(float4 *)(copy + mine) = __ldcg((const float4 *)out);
    }
    if (!a.prepare) return;
    __syncthreads();
    if (threadIdx.x < 32) prepare_strip<D>(a, copy, kv_head, from / D, from % D);
}

template <int D, bool BF16, int TILES>
__global__ void __launch_bounds__(32 * few<D, TILES>::WARPS, D <= 128 ? 2 : 1) attn_few(const attn a)
{
    using F = few<D, TILES>;
    constexpr int LEAF = F::LEAF, PITCH = F::PITCH, THREADS = 32 * F::WARPS, CT = F::CT;
    extern __shared__ __align__(128) unsigned char raw[];
    uint4 *queries = (uint4 *)raw;
    float *exchange = (float *)(raw + F::QUERIES), *units = (float *)(raw + F::QUERIES + F::SCORES);
    const unsigned ring = shared_at(raw) + (F::FIXED + 127) / 128 * 128;
    cuda_grid_early();

    const int lane = threadIdx.x % 32, w = threadIdx.x / 32, g = lane / 4, c = lane % 4;
    const int m = w % TILES, side = w / TILES; /* my tile, my share of it */
    const int group = blockIdx.x, tile = a.tile0 + group * TILES, kv_head = blockIdx.y;
    if (!a.early) cuda_grid_wait();
    const int pos0 = a.pos[0], bound = a.first ? *a.first : 0;
    const struct span seen = visible_any(a, tile, TILES, pos0, bound);
    const struct units u = units_of<D>(a, seen);
    const int per = units_a_block(a, u), from_unit = (int)blockIdx.z * per;
    if (from_unit >= max(u.count, 1)) return;
    const int to_unit = min(from_unit + per, u.count);
    const int scale = a.leaves ? 1 : F::LEAVES;
    /* my leaves */
    const int from = max((u.first + from_unit) * scale, seen.lo / LEAF),
              to = u.count ? min((u.first + to_unit) * scale, (seen.hi - 1) / LEAF + 1) : from;

    const int S = a.stages;
    int filled = from; /* the next leaf to ask for */
    auto fill = [&](int stage) {
        if (filled < to) {
            const unsigned at = ring + (unsigned)(stage * F::STAGE);
            fetch<D, D, LEAF, PITCH, THREADS>(a, at, a.k, filled * LEAF, kv_head, 0, seen);
            copy_commit();
            fetch<D, D, LEAF, PITCH, THREADS>(a, at + D * 2, a.v, filled * LEAF, kv_head, 0, seen);
            copy_commit();
        } else {
            copy_commit();
            copy_commit();
        }
        filled++;
    };
    if (a.early) { /* this pass's own keys begin at pos0 */
        while (filled - from < S - 1 && filled < to && (filled + 1) * LEAF <= pos0) fill(filled - from);
        cuda_grid_wait();
    }
    while (filled - from < S - 1) fill(filled - from);

    load_queries<D, BF16, TILES, F::WARPS, 2>(a, queries, units, tile, kv_head);

    const bool active = (tile + m) * TILE < a.n * a.n_rep;
    const int row0 = row_of(a, (tile + m) * TILE + g), row1 = row_of(a, (tile + m) * TILE + g + 8);
    const struct span v0 = row0 < a.n ? visible(a, row0, pos0, bound) : span{0, 0},
                      v1 = row1 < a.n ? visible(a, row1, pos0, bound) : span{0, 0};
    const struct span full = visible_all(a, tile + m, pos0, bound);
    const uint4 *my_q = queries + m * (D / 16) * 2 * 32;

    float node[CT][4], node_top[2] = {-INFINITY, -INFINITY}, node_sum[2] = {};
#pragma unroll
    for (int t = 0; t < CT; t++) node[t][0] = node[t][1] = node[t][2] = node[t][3] = 0.0f;

    /* Write what the node (or leaf) came to; the result itself where it is all there is. */
    auto put = [&](float(&y)[CT][4], const float(&top)[2], const float(&sum)[2], int slot) {
        if (!active) return;
        float *record = record_of(a, tile + m, kv_head, slot, D);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int at = (tile + m) * TILE + g + 8 * half, row = half ? row1 : row0;
            if (row >= a.n) continue;
            const bool alone = u.count <= 1;
            float *dst = alone ? a.out + ((int64_t)row * (a.n_head - a.n_rep) + kv_head * a.n_rep + at) * D
                               : record + 2 * TILE + (g + 8 * half) * D;
            dst += side * CT * 8 + 2 * c;
#pragma unroll
            for (int t = 0; t < CT; t++) {
                float2 z = make_float2(y[t][2 * half], y[t][2 * half + 1]);
                if (alone) z = make_float2(divided(z.x, sum[half]), divided(z.y, sum[half]));
                *(float2 *)(dst + 8 * t) = z;
            }
            if (!alone && side == 0 && c == 0) {
                record[g + 8 * half] = top[half];
                record[TILE + g + 8 * half] = sum[half];
            }
        }
    };

    int stage = 0;
    for (int leaf = from; leaf < to; leaf++) {
        const int p0 = leaf * LEAF;
        if (S == 1) {
            __syncthreads(); /* the stage is free */
            fill(0);
        }
        copy_wait(S == 1 ? 1 : 2 * S - 3);
        __syncthreads(); /* these keys are here, and all are done with the leaf before */
        if (S > 1) fill(stage ? stage - 1 : S - 1);
        const unsigned k = ring + (unsigned)(stage * F::STAGE), v = k + D * 2;
        stage = stage + 1 == S ? 0 : stage + 1;
        float x[F::NT][4], acc[CT][4], top[2], sum[2];
        if (active) leaf_scores<D, BF16, TILES>(x, exchange, my_q, k, m, side);
        copy_wait(2 * S - 2);
        __syncthreads(); /* all scores and these values are here */
        if (!active) continue;
        leaf_output<D, BF16, TILES>(acc, top, sum, x, exchange, units, v, raw + (v - shared_at(raw)), p0, v0,
                                    v1, full, m, side);
        if (a.leaves) {
            put(acc, top, sum, leaf - u.first);
            continue;
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float t = fmaxf(node_top[half], top[half]), f = factor(node_top[half], t),
                        h = factor(top[half], t);
            node_sum[half] = __fmaf_rn(h, sum[half], __fmul_rn(node_sum[half], f));
            node_top[half] = t;
#pragma unroll
            for (int i = 0; i < CT; i++)
#pragma unroll
                for (int e = 2 * half; e < 2 * half + 2; e++)
                    node[i][e] = __fmaf_rn(h, acc[i][e], __fmul_rn(node[i][e], f));
        }
        if ((leaf + 1) % F::LEAVES == 0 || leaf + 1 == to) {
            put(node, node_top, node_sum, leaf / F::LEAVES - u.first);
#pragma unroll
            for (int half = 0; half < 2; half++) node_top[half] = -INFINITY, node_sum[half] = 0.0f;
#pragma unroll
            for (int t = 0; t < CT; t++) node[t][0] = node[t][1] = node[t][2] = node[t][3] = 0.0f;
        }
    }
    copy_wait(0);
    if (u.count == 0) put(node, node_top, node_sum, 0); /* nothing to see: zeros */
}

template <int D, int TILES> static attn_fn few_of(uint32_t type, int32_t stages, size_t *smem)
{
    using F = few<D, TILES>;
    *smem = (size_t)((F::FIXED + 127) / 128 * 128 + stages * F::STAGE);
    return type == KN_BF16 ? attn_few<D, true, TILES> : attn_few<D, false, TILES>;
}
