/* attention/few.cuh - partial results of leaves or nodes that blocks of attn_step and attn_stream leave in
 * memory, and how they are added. */
#ifndef DFLASH_CUDA_ATTENTION_FEW_CUH
#define DFLASH_CUDA_ATTENTION_FEW_CUH

#include "attention.cuh"
#include "../core/math.cuh"
#include "../product/prep_block.cuh"

template <int D> struct few {
    static constexpr int LEAF = D <= 256 ? 64 : 32;
    static constexpr int LEAVES = NODE / LEAF; /* of a node */
};

/* Of `count` leaves from `first` on those before the first multiple of CLASSES nodes: the others, whose nodes
 * are of lower classes, are added first. */
template <int D> DEV int leaves_ahead(int first, int count)
{
    constexpr int L = few<D>::LEAVES;
    return min(count, (first / L + CLASSES) / CLASSES * CLASSES * L - first);
}

/* Rows of values at my columns that hold a NaN or Inf: a bit a key, and zeros in their place. */
template <bool BF16, int KEYS, int COLS, int PITCH> DEV uint64_t clean_values(uint16_t *v)
{
    uint64_t bits = 0;
#pragma unroll 1
    for (int part = 0; part < KEYS / 32; part++) {
        uint4 *row = (uint4 *)(v + (part * 32 + threadIdx.x % 32) * PITCH);
        bool bad = false;
#pragma unroll 1
        for (int i = 0; i < COLS / 8; i++) {
            uint4 x = row[i];
            const bool here = make_finite<BF16>(x);
            if (here) row[i] = x;
            bad |= here;
        }
        bits |= (uint64_t)__ballot_sync(~0u, bad) << (32 * part);
    }
    __syncwarp();
    return bits;
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
/* A sink, the last of a row's partial results: one key of this score, whose value is zero. A row that sees no
 * other key gives zeros. */
template <int N> DEV void add_sink(float &T, float &S, float *Y, float sink)
{
    const float x = __fmul_rn(sink, 0x1.715476p+0f), t = ceilf(x), zeros[N] = {};
    if (S != 0.0f) add_result<N>(T, S, Y, t, exp_two(__fsub_rn(x, t == -INFINITY ? 0.0f : t)), zeros);
}
/* Merge the partial results of one row: four values a lane at column col. Leaves of a node in order, nodes of
 * a class in order, classes in order. classes: which of them (a mask), so that warps may share the work. */
template <int D> struct merged {
    float T, S, Y[4];
    __device__ __forceinline__ void clear()
    {
        T = -INFINITY, S = 0.0f;
#pragma unroll
        for (int i = 0; i < 4; i++) Y[i] = 0.0f;
    }
    __device__ __forceinline__ void add(const merged &o)
    {
        add_result<4>(T, S, Y, o.T, o.S, o.Y);
    }
    __device__ __forceinline__ void load(const float *record, int r, int col)
    {
        T = __ldcg(record + r);
        S = __ldcg(record + TILE + r);
        const float4 v = __ldcg((const float4 *)(record + 2 * TILE + r * D + col));
        Y[0] = v.x, Y[1] = v.y, Y[2] = v.z, Y[3] = v.w;
    }
};
/* All nodes of one class, of the units [0, n) from absolute unit u0: a batch at a time, of the leaves of a
 * node or of the nodes. */
template <int D>
DEV merged<D> merge_class(const attn &a, const float *part, int u0, int n, int cls, int r, int col)
{
    constexpr int L = few<D>::LEAVES, RECORD = TILE * (D + 2), BATCH = 4;
    const int log_unit = a.leaves ? L == 8 ? 3 : 4 : 0, node0 = u0 >> log_unit, step = a.leaves ? 1 : CLASSES;
    merged<D> all, sum;
    all.clear();
    sum.clear();
    for (int node = node0 + ((cls - node0) & (CLASSES - 1)), i = max((node << log_unit) - u0, 0), left;
         i < n;) {
        merged<D> one[BATCH];
        left = a.leaves ? ((node + 1) << log_unit) - u0 - i : BATCH; /* units of this batch */
        left = min(left, (n - i + step - 1) / step);
#pragma unroll
        for (int j = 0; j < BATCH; j++)
            if (j < left) one[j].load(part + (int64_t)(i + j * step) * RECORD, r, col);
#pragma unroll
        for (int j = 0; j < BATCH; j++)
            if (j < left) sum.add(one[j]);
        i += BATCH * step;
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
    const int unit = a.leaves ? few<D>::LEAF : NODE;
    return v.hi > v.lo ? units{v.lo / unit, (v.hi - 1) / unit - v.lo / unit + 1} : units{0, 0};
}

/* The block at blockIdx.z takes units [from, from + per) of them; nothing where there are fewer blocks at
 * work. */
DEV int units_a_block(const attn &a, const struct units &u)
{
    return max(a.per, (u.count + (int)gridDim.z - 1) / (int)gridDim.z);
}

/* 256 results of a token's part of a kv head, block by block as the product that follows wants them; a warp.
 * x: shared memory; at_row, col: where in the tiles' rows they begin. */
template <int D> DEV void prepare_strip(const attn &a, const float *x, int kv_head, int at_row, int col)
{
    const int lane = threadIdx.x % 32, row = row_of(a, at_row),
              block = ((kv_head * a.n_rep + at_row - row * a.n_rep) * D + col) / 256;
    const float4 y = *(const float4 *)(x + lane * 8), z = *(const float4 *)(x + lane * 8 + 4);
    float v[8] = {y.x, y.y, y.z, y.w, z.x, z.y, z.z, z.w};
    if (a.hand.words) /* of K types, one row */
        hand_put(a.hand.words + HAND_UNIT * block, round_block<true>(v), hand_tag(a.hand.tag, a.hand.salt));
    uint8_t *to = a.then.rows + (size_t)row * (size_t)(a.then.slices * a.then.slice_row);
    if (a.act == MM_ACT_K)
        store_block<MM_ACT_K>(a.then, to, block, v, row);
    else if (a.act == MM_ACT_32)
        store_block<MM_ACT_32>(a.then, to, block, v);
    else
        store_block<MM_ACT_32M>(a.then, to, block, v);
}

/* What is rounded of four results z: gated, where there is a gate; g: that of them. */
DEV float4 gated(const attn &a, float4 z, float4 g)
{
    if (!a.gate) return z;
    return make_float4(__fmul_rn(z.x, dev_sigmoid(g.x)), __fmul_rn(z.y, dev_sigmoid(g.y)),
                       __fmul_rn(z.z, dev_sigmoid(g.z)), __fmul_rn(z.w, dev_sigmoid(g.w)));
}
/* The gate of four results at `at`. */
DEV float4 gate_at(const attn &a, int64_t at, bool there)
{
    return a.prepare && a.gate && there ? __ldcg((const float4 *)(a.gate + at))
                                        : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

/* The merge: a block 256 results of a tile, row after row; two warps, side by side, a class. */
#define MERGE_THREADS (64 * CLASSES)
template <int D>
__global__ void __launch_bounds__(MERGE_THREADS, 2) attn_merge(const __grid_constant__ attn a)
{
    __shared__ merged<D> box[CLASSES][64];
    __shared__ __align__(16) float copy[256];
    cuda_grid_early();
    if (!a.known) cuda_grid_wait();
    const int cls = threadIdx.x / 64, mine = threadIdx.x % 64 * 4, kv_head = blockIdx.y;
    const int from = a.tile0 * TILE * D + (int)blockIdx.x * 256, at = (from + mine) / D, tile = at / TILE,
              row = row_of(a, at), col = (from + mine) % D;
    if (row_of(a, from / D) >= a.n) return;
    const int pos0 = a.pos[0], bound = a.first ? *a.first : 0;
    /* as the block of attn_step saw it: its tiles' units start where its first row's do */
    const int group = a.tile0 + (tile - a.tile0) / a.tiles * a.tiles;
    const struct units u = units_of<D>(a, visible_any(a, group, a.tiles, pos0, bound));
    float *out = a.out + ((int64_t)row * (a.n_head - a.n_rep) + kv_head * a.n_rep + at) * D + col;
    if (a.known) cuda_grid_wait();
    if (u.count > 1 || a.sinks) { /* else written already */
        if (row < a.n)
            box[cls][threadIdx.x % 64] =
                merge_class<D>(a, record_of(a, tile, kv_head, 0, D), u.first, u.count, cls, at % TILE, col);
        __syncthreads();
        if (cls == 0 && row < a.n) {
            merged<D> all;
            all.clear();
#pragma unroll 2
            for (int i = 0; i < CLASSES; i++) all.add(box[i][threadIdx.x % 64]);
            if (a.sinks)
                add_sink<4>(all.T, all.S, all.Y, __ldg(a.sinks + kv_head * a.n_rep + at - row * a.n_rep));
#pragma unroll
            for (int i = 0; i < 4; i++) all.Y[i] = out[i] = divided(all.Y[i], all.S);
            *(float4 *)(copy + mine) =
                gated(a, make_float4(all.Y[0], all.Y[1], all.Y[2], all.Y[3]), gate_at(a, out - a.out, true));
        }
    } else if (cls == 0 && row < a.n && a.prepare) {
        *(float4 *)(copy + mine) = gated(a, __ldcg((const float4 *)out), gate_at(a, out - a.out, true));
    }
    if (!a.prepare) return;
    __syncthreads();
    if (threadIdx.x < 32) prepare_strip<D>(a, copy, kv_head, from / D, from % D);
}

#endif
