/* attention/codes.cuh - attention of up to FEW rows over quantised caches, f16 beside them.
 *
 * Bound: reading the codes once. What multiplies takes halves, and halves of a whole cache would be four
 * times its bytes, in memory or through shared memory: so a warp makes the fragments of a tensor product from
 * codes in its registers. It has leaves of its own and needs no other warp until the end.
 *
 *     block: (tiles, kv head, nodes)     warp w of WARPS: leaves of a node whose number modulo WARPS is w
 *     leaf's keys   cp.async -> codes -> halves x scale -> scores of the tiles
 *     leaf's values cp.async -> codes -> halves x scale -> added to the warp's results, at the warp's own top
 *     end: the warps' results are added pairwise, (0 + 1) + (2 + 3), to the node's, in memory; codes_merge
 * adds nodes by their number modulo CLASSES, then the classes in order
 *
 * A node is 256 keys below position 4,096 and in windows, else 1,024: partial results are of float, so many
 * nodes would be as many bytes as the keys. It begins at a fixed position, and all tops are whole, so a row's
 * bits depend on its query and its visible keys alone, as elsewhere (attention.cuh).
 *
 * Which dimension stands where in a product is free if both factors agree: lane c of a quad has dimensions
 * 4 c to 4 c + 3 and 16 + 4 c to 16 + 4 c + 3 of each 32, and lane group g has columns 4 g to 4 g + 3 of each
 * 32 of the values, which are words of codes as they lie (kv_four).
 *
 * Precision: queries and weights are one half where what they meet has codes, whose rounding is far coarser;
 * two where it is f16. Queries are rotated here as the keys are; codes_merge rotates results back. */
#include "few.cuh"
#include "codes_leaf.cuh"
#include "many.cuh"

#define CODES_PATH KN_CYCLE_ROWS

/* What attn_codes and codes_merge take. A tree's rows (ops/cycle.h, struct kn_tree): first the nodes before
 * the anchor's, as of a chain (shared); then, a block a row, what lies behind, by the row's path (PATHS).
 * Windows see few keys: there the second takes all. */
struct codes_args {
    struct attn a;
    struct kv_side k, v;
    const unsigned char *tail_k, *tail_v; /* rows of tried positions, by the tree's row */
    const int32_t *tree_pos;              /* [n]; NULL: no tree */
    const uint8_t *tree_path;             /* [n][CODES_PATH] */
    int32_t row0;                         /* of the tree's rows of this launch */
    bool shared;
    int32_t turned;                /* tiles of this launch */
    int32_t warp_bytes, values_at; /* of a warp's leaf in shared memory; where its values begin */
};

/* attention/far_codes.cu */
int attn_far_codes_open(struct cuda_backend *be);
int attn_far_codes_launch(struct cuda_backend *be, const struct codes_args *p, const struct attn_plan *plan);

template <int D, int T> struct coded {
    static constexpr int LEAF = ATTN_CODES_LEAF(D), NT = LEAF / 8;
    static constexpr int GROUPS = ATTN_CODES_GROUPS(D), C = D / GROUPS; /* of columns; columns of a warp */
    static constexpr int WARPS = 4, THREADS = 32 * WARPS * GROUPS, CT = C / 8;
    static constexpr int RESIDENT = D <= 128 && T == 1 ? 3 : D <= 256 ? 2 : 1;
    static constexpr int QUERIES = T * (D / 16) * 2 * 512; /* bytes: [tile][D / 16][part][lane] */
    static constexpr int FIXED = QUERIES + T * TILE * 4;
    static constexpr int BOX = T * (CT + 1) * 32 * 16; /* bytes of a warp's results */
    static constexpr bool APART =
        D <= 128; /* they have places of their own, so that there may be nodes in turn */
};

/* ---- a leaf's codes into shared memory ---- */

/* Where the rows of a leaf's keys lie: side by side, or from key `tried` on by a path in the tail. */
template <bool PATHS> struct code_rows {
    const unsigned char *ring, *tail;
    const uint8_t *path; /* of key 0, before which it may begin */
    int64_t stride;
    int tried;
    __device__ __forceinline__ const unsigned char *at(int key) const
    {
        return PATHS && key >= tried ? tail + path[key] * stride : ring + key * stride;
    }
};
/* PIECES of BYTES bytes a key, 16 or 4 at a time, that begin `from` bytes in a row. */
template <int LEAF, int BYTES, int PITCH, bool FAST, bool PATHS>
DEV void stage_plane(unsigned to, const struct code_rows<PATHS> &rows, int from, int p0,
                     const struct span &seen)
{
    constexpr int EACH = BYTES % 16 == 0 ? 16 : 4, PIECES = BYTES / EACH;
    const int lane = threadIdx.x % 32;
    static_assert(BYTES % 4 == 0, "words");
    if (FAST && LEAF * PIECES % 32 == 0 && p0 >= seen.lo && p0 + LEAF <= seen.hi) { /* all of them */
        const int on = 32 / PIECES * (int)rows.stride;
        const unsigned char *src =
            rows.ring + (from + lane / PIECES * (int)rows.stride + lane % PIECES * EACH);
        to += (unsigned)(lane / PIECES * PITCH + lane % PIECES * EACH);
#pragma unroll
        for (int i = 0; i < LEAF; i += 32 / PIECES) {
            if (EACH == 16)
                copy_async(to + (unsigned)(i * PITCH), src);
            else
                copy_four(to + (unsigned)(i * PITCH), src, true);
            src += on;
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < (LEAF * PIECES + 31) / 32; i++) {
        const int at = i * 32 + lane, key = at / PIECES, piece = at % PIECES;
        if (LEAF * PIECES % 32 && key >= LEAF) break;
        const bool in = p0 + key >= seen.lo && p0 + key < seen.hi;
        const unsigned char *src = in ? rows.at(key) + from + piece * EACH : rows.ring + from;
        const unsigned dst = to + (unsigned)(key * PITCH + piece * EACH);
        if (EACH == 16)
            copy_async(dst, src, in);
        else
            copy_four(dst, src, in);
    }
}
/* N columns from col on of a leaf of one side: codes and scales; zeros for keys that are not seen. */
template <uint32_t TYPE, int N, int LEAF, bool FAST, bool PATHS>
DEV void stage_leaf(const struct kv_side &s, const struct code_rows<PATHS> &rows, unsigned to, int p0,
                    int kv_head, int col, const struct span &seen)
{
    using S = staged<TYPE, N>;
    stage_plane<LEAF, S::LOW, S::LOW_PITCH, FAST>(
        to, rows, kv_head * s.head[0] + col * kv_code<TYPE>::LOW / 8, p0, seen);
    if constexpr (S::HIGH > 0)
        stage_plane<LEAF, S::HIGH, S::HIGH_PITCH, FAST>(to + S::high_at(LEAF), rows,
                                                        s.high + kv_head * s.head[1] + col / 8, p0, seen);
    /* A scale of two bytes comes with its neighbour's: its word. */
    const int scale = (s.scale + kv_head * s.head[2] + col / kv_code<TYPE>::GROUP * 2) & ~3;
    stage_plane<LEAF, S::SCALE_PITCH, S::SCALE_PITCH, FAST>(to + S::scale_at(LEAF), rows, scale, p0, seen);
}
template <int D, int N, int LEAF, bool PATHS>
DEV void stage_any(const struct kv_side &s, const struct code_rows<PATHS> &rows, unsigned to, int p0,
                   int kv_head, int col, const struct span &seen)
{
    switch (s.type) {
    case KN_Q8_0:
        stage_leaf<KN_Q8_0, N, LEAF, (D <= 128 && !PATHS)>(s, rows, to, p0, kv_head, col, seen);
        break;
    case KN_Q5_0:
        stage_leaf<KN_Q5_0, N, LEAF, (D <= 128 && !PATHS)>(s, rows, to, p0, kv_head, col, seen);
        break;
    case KN_Q4_0:
        stage_leaf<KN_Q4_0, N, LEAF, (D <= 128 && !PATHS)>(s, rows, to, p0, kv_head, col, seen);
        break;
    case KN_TQ3_0:
        if constexpr (D >= 128)
            stage_leaf<KN_TQ3_0, N, LEAF, (D <= 128 && !PATHS)>(s, rows, to, p0, kv_head, col, seen);
        break;
    default: break; /* f16 is read where it lies */
    }
}
/* Of a scale within its word. */
DEV int scale_odd(const struct kv_side &s, int kv_head)
{
    return (s.scale + kv_head * s.head[2]) & 2;
}

/* ---- products ---- */

/* x[T][NT][4] += q k of the tiles' rows with 8 NT keys. */
template <uint32_t TYPE, int D, int T>
DEV void code_scores(float x[T][coded<D, T>::NT][4], const uint4 *q, const unsigned char *k, int odd)
{
    constexpr int LEAF = coded<D, T>::LEAF, NT = coded<D, T>::NT;
    const int lane = threadIdx.x % 32, g = lane / 4;
#pragma unroll 1
    for (int b = 0; b < D / 32; b++) {
        uint4 f[T][2];
#pragma unroll
        for (int m = 0; m < T; m++)
#pragma unroll
            for (int s = 0; s < 2; s++) f[m][s] = q[((m * (D / 16) + 2 * b + s) * 2) * 32 + lane];
#pragma unroll
        for (int j = 0; j < NT; j++) {
            uint32_t y[2][2];
            key_factors<TYPE, D, LEAF>(y, k, 8 * j + g, b, odd);
#pragma unroll
            for (int m = 0; m < T; m++)
#pragma unroll
                for (int s = 0; s < 2; s++) {
                    const uint32_t a[4] = {f[m][s].x, f[m][s].y, f[m][s].z, f[m][s].w};
                    mma<false>(x[m][j], a, y[s][0], y[s][1]);
                }
        }
    }
}
/* The same with keys of f16, from where they lie; two halves of a query. */
template <int D, int T, bool PATHS>
DEV void half_scores(float x[T][coded<D, T>::NT][4], const uint4 *q, const struct code_rows<PATHS> &rows,
                     int from, int p0, const struct span &seen)
{
    constexpr int NT = coded<D, T>::NT;
    const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
#pragma unroll 1
    for (int b = 0; b < D / 32; b++) {
#pragma unroll
        for (int j = 0; j < NT; j++) {
            const int key = 8 * j + g;
            const bool in = p0 + key >= seen.lo && p0 + key < seen.hi;
            const unsigned char *at = rows.at(in ? key : 0) + from + 64 * b + 8 * c;
#pragma unroll
            for (int s = 0; s < 2; s++) {
                const uint2 y = in ? *(const uint2 *)(at + 32 * s) : make_uint2(0, 0);
#pragma unroll
                for (int m = 0; m < T; m++)
#pragma unroll
                    for (int part = 0; part < 2; part++) {
                        const uint4 f = q[((m * (D / 16) + 2 * b + s) * 2 + part) * 32 + lane];
                        const uint32_t a[4] = {f.x, f.y, f.z, f.w};
                        mma<false>(x[m][j], a, y.x, y.y);
                    }
            }
        }
    }
}

/* Weights of 16 keys, two n8 tiles of x, as fragments: the half, or what it leaves. */
DEV void weight_pair(uint32_t p[4], const float x[2][4], bool rest)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float y = x[i / 2][i % 2 * 2], z = x[i / 2][i % 2 * 2 + 1];
        uint32_t parts[2];
        parts_of<2, false>(y, z, parts);
        p[i] = rest ? parts[1] : parts[0];
    }
}
/* acc[T][C / 8][4] += x v over the leaf: weights x, values' columns. Column 32 b + 4 g + t of a warp's is
 * column g of tile 4 b + t. */
template <uint32_t TYPE, int D, int T>
DEV void code_weigh(float acc[T][coded<D, T>::CT][4], const float x[T][coded<D, T>::NT][4],
                    const unsigned char *v, int odd)
{
    constexpr int LEAF = coded<D, T>::LEAF, C = coded<D, T>::C;
    const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
#pragma unroll
    for (int s = 0; s < LEAF / 16; s++) {
        uint32_t p[T][4];
#pragma unroll
        for (int m = 0; m < T; m++) weight_pair(p[m], x[m] + 2 * s, false);
#pragma unroll
        for (int b = 0; b < C / 32; b++) {
            uint32_t y[2][4];
#pragma unroll
            for (int i = 0; i < 2; i++) /* keys 2 c, 2 c + 1; 8 more */
                value_factors<TYPE, C, LEAF>(y[i], v, 16 * s + 8 * i + 2 * c, b, g, odd);
#pragma unroll
            for (int t = 0; t < 4; t++)
#pragma unroll
                for (int m = 0; m < T; m++) mma<false>(acc[m][4 * b + t], p[m], y[0][t], y[1][t]);
        }
    }
}
/* The same with values of f16; two halves of a weight. */
template <int D, int T, bool PATHS>
DEV void half_weigh(float acc[T][coded<D, T>::CT][4], const float x[T][coded<D, T>::NT][4],
                    const struct code_rows<PATHS> &rows, int from, int p0, const struct span &seen,
                    bool clean)
{
    constexpr int LEAF = coded<D, T>::LEAF, C = coded<D, T>::C;
    const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
#pragma unroll
    for (int s = 0; s < LEAF / 16; s++) {
        uint32_t p[T][2][4];
#pragma unroll
        for (int m = 0; m < T; m++)
            weight_pair(p[m][0], x[m] + 2 * s, false), weight_pair(p[m][1], x[m] + 2 * s, true);
#pragma unroll
        for (int b = 0; b < C / 32; b++) {
            uint32_t y[2][4];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint2 w[2];
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    const int key = 16 * s + 8 * i + 2 * c + k;
                    const bool in = p0 + key >= seen.lo && p0 + key < seen.hi;
                    w[k] = in ? *(const uint2 *)(rows.at(key) + from + 64 * b + 8 * g) : make_uint2(0, 0);
                    if (clean) make_finite<false>(w[k].x), make_finite<false>(w[k].y);
                }
                y[i][0] = __byte_perm(w[0].x, w[1].x, 0x5410), y[i][1] = __byte_perm(w[0].x, w[1].x, 0x7632);
                y[i][2] = __byte_perm(w[0].y, w[1].y, 0x5410), y[i][3] = __byte_perm(w[0].y, w[1].y, 0x7632);
            }
#pragma unroll
            for (int t = 0; t < 4; t++)
#pragma unroll
                for (int m = 0; m < T; m++)
#pragma unroll
                    for (int part = 0; part < 2; part++)
                        mma<false>(acc[m][4 * b + t], p[m][part], y[0][t], y[1][t]);
        }
    }
}

/* ---- values that are no numbers ---- */

/* As bad_scales. */
template <int N, int LEAF, bool PATHS>
DEV uint32_t bad_halves(const struct code_rows<PATHS> &rows, int from, int p0, const struct span &seen)
{
    const int key = threadIdx.x % LEAF;
    bool bad = false;
    if (p0 + key >= seen.lo && p0 + key < seen.hi)
#pragma unroll 1
        for (int i = 0; i < N / 8; i++) {
            uint4 x = *(const uint4 *)(rows.at(key) + from + 16 * i);
            bad |= make_finite<false>(x);
        }
    return __ballot_sync(~0u, bad) & (LEAF == 32 ? ~0u : 0xffffu);
}

/* ---- queries ---- */

/* Rows of T tiles: rotated, scaled by a power of two to at most 1, and as fragments in this form's order. */
template <int D, int T, bool PATHS>
DEV void code_queries(const struct attn &a, uint32_t type, uint4 *to, float *unit, int tile, int kv_head)
{
    constexpr int W = D / 32, WARPS = coded<D, T>::THREADS / 32,
                  N = D <= 128 && !PATHS ? 4 : 1; /* rows at a time: one chain of latencies serves all */
    static_assert(T * TILE % (N * WARPS) == 0, "rows at a time");
    const int lane = threadIdx.x % 32, w = threadIdx.x / 32;
#pragma unroll 1
    for (int r0 = w; r0 < T * TILE; r0 += N * WARPS) {
        float x[N][W];
#pragma unroll
        for (int i = 0; i < N; i++) {
            const int at = tile * TILE + r0 + i * WARPS, row = row_of(a, at);
            const float *q = a.q + head_of_row(a, row, kv_head, at) * D;
#pragma unroll
            for (int j = 0; j < W; j++) x[i][j] = row < a.n ? q[lane + 32 * j] : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < N; i++) kv_turn_head<W>(x[i], type, false, false);
#pragma unroll
        for (int i = 0; i < N; i++) {
            const int r = r0 + i * WARPS;
            const float down = code_down<W>(x[i], a.scale, unit + r);
            const int step = lane / 16, c = lane % 16 / 4, word = lane % 4 / 2 * 2 + r % TILE / 8;
#pragma unroll
            for (int j = 0; j < W; j++) {
                const float y = __fmul_rn(x[i][j], down);
                const uint16_t high = to_half<false>(y);
                uint16_t *half =
                    (uint16_t *)&to[((r / TILE * (D / 16) + 2 * j + step) * 2) * 32 + r % 8 * 4 + c] +
                    2 * word + lane % 2;
                half[0] = high;
                half[256] = to_half<false>(__fsub_rn(y, from_half<false>(high)));
            }
        }
    }
}

/* ---- the kernel ---- */

/* What a warp has come to. */
template <int D, int T> struct code_sums {
    static constexpr int CT = coded<D, T>::CT;
    float acc[T][CT][4], top[T][2], sum[T][2], odd[T][2]; /* odd: of the keys whose number is odd */
    __device__ __forceinline__ void clear()
    {
#pragma unroll
        for (int m = 0; m < T; m++) {
            top[m][0] = top[m][1] = -INFINITY, sum[m][0] = sum[m][1] = odd[m][0] = odd[m][1] = 0.0f;
#pragma unroll
            for (int t = 0; t < CT; t++) acc[m][t][0] = acc[m][t][1] = acc[m][t][2] = acc[m][t][3] = 0.0f;
        }
    }
    __device__ __forceinline__ void give(float4 *box) const
    {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int m = 0; m < T; m++) {
            box[m * (CT + 1) * 32 + lane] = make_float4(top[m][0], top[m][1], sum[m][0], sum[m][1]);
#pragma unroll
            for (int t = 0; t < CT; t++)
                box[(m * (CT + 1) + 1 + t) * 32 + lane] =
                    make_float4(acc[m][t][0], acc[m][t][1], acc[m][t][2], acc[m][t][3]);
        }
    }
    __device__ __forceinline__ void add(const float4 *box)
    {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int m = 0; m < T; m++) {
            const float4 o = box[m * (CT + 1) * 32 + lane];
            const float t0 = fmaxf(top[m][0], o.x), t1 = fmaxf(top[m][1], o.y), f0 = factor(top[m][0], t0),
                        f1 = factor(top[m][1], t1), h0 = factor(o.x, t0), h1 = factor(o.y, t1);
            top[m][0] = t0, top[m][1] = t1;
            sum[m][0] = __fmaf_rn(h0, o.z, __fmul_rn(sum[m][0], f0));
            sum[m][1] = __fmaf_rn(h1, o.w, __fmul_rn(sum[m][1], f1));
#pragma unroll
            for (int t = 0; t < CT; t++) {
                const float4 y = box[(m * (CT + 1) + 1 + t) * 32 + lane];
                acc[m][t][0] = __fmaf_rn(h0, y.x, __fmul_rn(acc[m][t][0], f0));
                acc[m][t][1] = __fmaf_rn(h0, y.y, __fmul_rn(acc[m][t][1], f0));
                acc[m][t][2] = __fmaf_rn(h1, y.z, __fmul_rn(acc[m][t][2], f1));
                acc[m][t][3] = __fmaf_rn(h1, y.w, __fmul_rn(acc[m][t][3], f1));
            }
        }
    }
};

/* A record of a tile, kv head and node: T[16], sums[16], outputs [16][D]. */
DEV float *code_record(const struct codes_args &p, int tile, int kv_head, int slot, int d)
{
    const struct attn &a = p.a;
    return a.part + ((int64_t)(kv_head * p.turned + tile - a.tile0) * a.slots + slot) * (TILE * (d + 2));
}

template <int D, int T, bool PATHS>
__global__ void __launch_bounds__(coded<D, T>::THREADS, coded<D, T>::RESIDENT)
    attn_codes(const __grid_constant__ struct codes_args p)
{
    using F = coded<D, T>;
    constexpr int LEAF = F::LEAF, NT = F::NT, CT = F::CT, C = F::C;
    constexpr bool TURNS = F::APART && !PATHS; /* nodes in turn */
    extern __shared__ __align__(128) unsigned char raw[];
    uint4 *queries = (uint4 *)raw;
    float *units = (float *)(raw + F::QUERIES);
    cuda_grid_start();

    const int lane = threadIdx.x % 32, w = threadIdx.x / 32, g = lane / 4, c = lane % 4;
    const int part = w % F::WARPS, col = w / F::WARPS * C; /* leaves of mine, my first column */
    /* PATHS: the tiles are of one row alone, whose number is tree_row. */
    const int row_tiles = PATHS ? (p.a.n_rep + TILE - 1) / TILE : 1,
              tree_row = PATHS ? p.row0 + (int)blockIdx.x / row_tiles : 0;
    struct attn a = p.a;
    const int base = p.tree_pos ? p.tree_pos[0] : 0;
    if (PATHS) a.q += (int64_t)tree_row * a.n_head * D, a.n = 1, a.tile0 = 0;
    const int tile = PATHS ? (int)blockIdx.x % row_tiles : a.tile0 + (int)blockIdx.x * T,
              kv_head = blockIdx.y;
    const int pos0 = PATHS ? p.tree_pos[tree_row] : a.pos[0], bound = a.first ? *a.first : 0;
    struct span seen = visible_any(a, tile, T, pos0, bound);
    if (p.shared) seen.hi = ATTN_CODES_START(a.window, ATTN_CODES_NODE(a.window, base)); /* may be 0 */
    const int node0 = PATHS && !a.window ? ATTN_CODES_NODE(0, base) : ATTN_CODES_NODE(a.window, seen.lo),
              last = seen.hi > seen.lo ? ATTN_CODES_NODE(a.window, seen.hi - 1) : node0 - (p.shared ? 1 : 0);
    int node = node0 + (int)blockIdx.z;
    if (node > last) return;
    code_queries<D, T, PATHS>(a, p.k.type, queries, units, tile, kv_head);

    unsigned char *slot = raw + F::FIXED + w * p.warp_bytes; /* of my keys; values behind */
    unsigned char *values = slot + p.values_at;
    const int k_odd = scale_odd(p.k, kv_head), v_odd = scale_odd(p.v, kv_head) & (col ? 0 : 2);
    /* Leaves of mine of a node: [x, y) from the first at or behind that of its first key that is seen. */
    const auto leaves_of = [&](int at) {
        const int lo = max(ATTN_CODES_START(a.window, at), seen.lo),
                  hi = min(ATTN_CODES_START(a.window, at + 1), seen.hi);
        const int first = lo / LEAF, own = first + ((part - first) & (F::WARPS - 1));
        return make_int2(own, hi > lo ? (hi - 1) / LEAF + 1 : own);
    };
    const auto rows_of = [&](const struct kv_side &s, const unsigned char *tail, int at) {
        const int p0 = at * LEAF;
        struct code_rows<PATHS> r;
        r.ring = s.at + (int64_t)KV_SLOT(a.where, p0) * s.row, r.stride = s.row;
        r.tail = tail, r.tried = base - p0;
        r.path = PATHS ? p.tree_path + tree_row * CODES_PATH - r.tried : nullptr;
        return r;
    };
    const auto ask_keys = [&](int at) {
        if (at >= 0)
            stage_any<D, D, LEAF>(p.k, rows_of(p.k, p.tail_k, at), shared_at(slot), at * LEAF, kv_head, 0,
                                  seen);
        copy_commit();
    };
    const auto ask_values = [&](int at) {
        if (at >= 0)
            stage_any<D, C, LEAF>(p.v, rows_of(p.v, p.tail_v, at), shared_at(values), at * LEAF, kv_head, col,
                                  seen);
        copy_commit();
    };
    const int2 begin = leaves_of(node);
    int asked = begin.x < begin.y ? begin.x : -1; /* of the leaves of mine, what comes next */
    ask_keys(asked);
    ask_values(asked);

    struct code_sums<D, T> mine;
    struct span full[T];
#pragma unroll
    for (int m = 0; m < T; m++) full[m] = visible_all(a, tile + m, pos0, bound);
    const auto seen_by = [&](int m, int half) {
        return visible_at(a, (tile + m) * TILE + g + 8 * half, pos0, bound);
    };
    __syncthreads(); /* queries are here */
#pragma unroll 1
    do {
        mine.clear();
        const int2 own = leaves_of(node);
        int leaf = own.x;
        const int end = own.y;
        if (TURNS && leaf < end && asked != leaf) {
            asked = leaf;
            ask_keys(asked);
            ask_values(asked);
        }
#pragma unroll 1
        for (; leaf < end; leaf += F::WARPS) {
            asked = leaf + F::WARPS;
            if (asked >= end) { /* the first of the next node */
                const int then = node + (int)gridDim.z;
                const int2 next = TURNS && then <= last ? leaves_of(then) : make_int2(0, 0);
                asked = next.x < next.y ? next.x : -1;
            }
            const int p0 = leaf * LEAF;
            float x[T][NT][4];
#pragma unroll
            for (int m = 0; m < T; m++)
#pragma unroll
                for (int j = 0; j < NT; j++) x[m][j][0] = x[m][j][1] = x[m][j][2] = x[m][j][3] = 0.0f;
            copy_wait(1);
            __syncwarp();
            switch (p.k.type) {
            case KN_Q8_0: code_scores<KN_Q8_0, D, T>(x, queries, slot, k_odd); break;
            case KN_Q5_0: code_scores<KN_Q5_0, D, T>(x, queries, slot, k_odd); break;
            case KN_Q4_0: code_scores<KN_Q4_0, D, T>(x, queries, slot, k_odd); break;
            case KN_TQ3_0:
                if constexpr (D >= 128) code_scores<KN_TQ3_0, D, T>(x, queries, slot, k_odd);
                break;
            default:
                half_scores<D, T>(x, queries, rows_of(p.k, p.tail_k, leaf), kv_head * p.k.head[0], p0, seen);
            }
            __syncwarp(); /* all have read the keys */
            ask_keys(asked);

            bool ragged = false;
#pragma unroll
            for (int m = 0; m < T; m++) {
                const bool some = p0 < full[m].lo || p0 + LEAF > full[m].hi;
                const float unit[2] = {units[m * TILE + g], units[m * TILE + g + 8]};
                float here[2];
                if (some) hide<NT>(x[m], p0, seen_by(m, 0), seen_by(m, 1));
                ragged |= some;
                raise_top<NT>(here, x[m], unit, mine.top[m]);
                raise_results<CT>(mine.acc[m], mine.sum[m], mine.top[m], here, mine.odd[m]);
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const float base = mine.top[m][half] == -INFINITY ? 0.0f : -mine.top[m][half];
                    float sum[2] = {0.0f, 0.0f};
#pragma unroll
                    for (int j = 0; j < NT; j++)
#pragma unroll
                        for (int e = 0; e < 2; e++) {
                            float &y = x[m][j][2 * half + e];
                            y = exp_two(__fmaf_rn(y, unit[half], base));
                            sum[e] = __fadd_rn(sum[e], y);
                        }
                    mine.sum[m][half] = __fadd_rn(mine.sum[m][half], sum[0]);
                    mine.odd[m][half] = __fadd_rn(mine.odd[m][half], sum[1]);
                }
            }
            copy_wait(1);
            __syncwarp();
            uint32_t bad = 0;
            if (ragged) switch (p.v.type) {
                case KN_Q8_0: bad = bad_scales<KN_Q8_0, C, LEAF>(values, v_odd); break;
                case KN_Q5_0: bad = bad_scales<KN_Q5_0, C, LEAF>(values, v_odd); break;
                case KN_Q4_0: bad = bad_scales<KN_Q4_0, C, LEAF>(values, v_odd); break;
                case KN_TQ3_0:
                    if constexpr (D >= 128) bad = bad_scales<KN_TQ3_0, C, LEAF>(values, v_odd);
                    break;
                default:
                    bad = bad_halves<C, LEAF>(rows_of(p.v, p.tail_v, leaf), kv_head * p.v.head[0] + 2 * col,
                                              p0, seen);
                }
            switch (p.v.type) {
            case KN_Q8_0: code_weigh<KN_Q8_0, D, T>(mine.acc, x, values, v_odd); break;
            case KN_Q5_0: code_weigh<KN_Q5_0, D, T>(mine.acc, x, values, v_odd); break;
            case KN_Q4_0: code_weigh<KN_Q4_0, D, T>(mine.acc, x, values, v_odd); break;
            case KN_TQ3_0:
                if constexpr (D >= 128) code_weigh<KN_TQ3_0, D, T>(mine.acc, x, values, v_odd);
                break;
            default:
                half_weigh<D, T>(mine.acc, x, rows_of(p.v, p.tail_v, leaf), kv_head * p.v.head[0] + 2 * col,
                                 p0, seen, bad != 0);
            }
            __syncwarp();
            ask_values(asked);
            if (bad) /* who sees it gets none; acc, not sum, which another group of columns has too */
#pragma unroll
                for (int m = 0; m < T; m++) {
                    const float none = __int_as_float(0x7fc00000);
                    const bool low = bad & (uint32_t)bits_of(seen_by(m, 0), p0),
                               high = bad & (uint32_t)bits_of(seen_by(m, 1), p0);
#pragma unroll
                    for (int t = 0; t < CT; t++) {
                        if (low) mine.acc[m][t][0] = mine.acc[m][t][1] = none;
                        if (high) mine.acc[m][t][2] = mine.acc[m][t][3] = none;
                    }
                }
        }

        /* The warps' results: (0 + 1) + (2 + 3). */
        float4 *box = (float4 *)(raw + F::FIXED + (F::APART ? F::THREADS / 32 * p.warp_bytes : 0) +
                                 (w / F::WARPS * 2 + part / 2) * F::BOX);
#pragma unroll
        for (int m = 0; m < T; m++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                mine.sum[m][half] = quad_sum(__fadd_rn(mine.sum[m][half], mine.odd[m][half]));
        if (!TURNS) copy_wait(0);
        __syncthreads(); /* the slots, or the boxes, are done with */
        if (part & 1) mine.give(box);
        __syncthreads();
        if (!(part & 1)) mine.add(box);
        __syncthreads();
        if (part == 2) mine.give(box);
        __syncthreads();
        if (part) continue; /* with the next node */
        mine.add(box + F::BOX / 16);

        /* Of a path the slots count from the first node that any row sees, as those of the rows together. */
        const int real = min(T * TILE, a.n * a.n_rep - tile * TILE),
                  at_slot = PATHS ? node - (a.window ? ATTN_CODES_NODE(1, max(base - a.window + 1, 0)) : 0)
                                  : node - node0;
#pragma unroll
        for (int m = 0; m < T; m++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int mine_at = m * TILE + g + 8 * half,
                          at = PATHS ? tree_row * a.n_rep + tile * TILE + mine_at : tile * TILE + mine_at,
                          r = at % TILE;
                if (mine_at >= real) continue;
                float *record = code_record(p, at / TILE, kv_head, at_slot, D);
                if (col == 0 && c == 0) record[r] = mine.top[m][half], record[TILE + r] = mine.sum[m][half];
                float *out = record + 2 * TILE + r * D + col + 8 * c;
#pragma unroll
                for (int b = 0; b < CT / 4; b++)
#pragma unroll
                    for (int e = 0; e < 2; e++)
                        *(float4 *)(out + 32 * b + 4 * e) = make_float4(
                            mine.acc[m][4 * b][2 * half + e], mine.acc[m][4 * b + 1][2 * half + e],
                            mine.acc[m][4 * b + 2][2 * half + e], mine.acc[m][4 * b + 3][2 * half + e]);
            }
        }
    } while (TURNS && (node += (int)gridDim.z) <= last);
    copy_wait(0);
}

/* Nodes to results, rotated back: a block a head of a row, or as many as 256 results are, a warp the nodes of
 * a class of one; a lane has columns lane + 32 j. Several nodes are on their way at once. T: tiles of
 * attn_codes's blocks. */
#define CODES_HEADS(D) ((D) < 256 ? 256 / (D) : 1)
template <int D>
__global__ void __launch_bounds__(32 * CLASSES * CODES_HEADS(D))
    codes_merge(const __grid_constant__ struct codes_args p)
{
    constexpr int W = D / 32, HEADS = CODES_HEADS(D), BATCH = D <= 128 ? 5 : 2;
    __shared__ float box[HEADS][CLASSES][D], tops[HEADS][CLASSES], sums[HEADS][CLASSES];
    const struct attn &a = p.a;
    cuda_grid_start();
    const int lane = threadIdx.x % 32, cls = threadIdx.x / 32 % CLASSES, mine = threadIdx.x / (32 * CLASSES);
    const int kv_head = (int)blockIdx.y, begin = a.tile0 * TILE + (int)blockIdx.x * HEADS, at = begin + mine,
              row = row_of(a, at);
    if (row_of(a, begin) >= a.n) return;
    const bool there = row < a.n;
    const int pos0 = p.tree_pos ? p.tree_pos[there ? row : 0] - row : a.pos[0],
              bound = a.first ? *a.first : 0, tile = at / TILE, r = at % TILE;
    const struct span own = there ? visible(a, row, pos0, bound) : span{0, 0};
    int base = 0; /* the node of slot 0 */
    if (!p.tree_pos) {
        const int group = a.tile0 + (tile - a.tile0) / a.tiles * a.tiles;
        base = ATTN_CODES_NODE(a.window, visible_any(a, group, a.tiles, pos0, bound).lo);
    } else if (a.window) {
        base = ATTN_CODES_NODE(1, max(p.tree_pos[0] - a.window + 1, 0));
    }
    float T = -INFINITY, S = 0.0f, Y[W];
#pragma unroll
    for (int j = 0; j < W; j++) Y[j] = 0.0f;
    if (own.hi > own.lo) {
        const int from = ATTN_CODES_NODE(a.window, own.lo), to = ATTN_CODES_NODE(a.window, own.hi - 1);
#pragma unroll 1
        for (int node = from + ((cls - from) & (CLASSES - 1)); node <= to; node += BATCH * CLASSES) {
            float t[BATCH], s[BATCH], y[BATCH][W];
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                if (node + i * CLASSES > to) continue;
                const float *record = code_record(p, tile, kv_head, node + i * CLASSES - base, D);
                t[i] = __ldcg(record + r), s[i] = __ldcg(record + TILE + r);
#pragma unroll
                for (int j = 0; j < W; j++) y[i][j] = __ldcg(record + 2 * TILE + r * D + lane + 32 * j);
            }
#pragma unroll
            for (int i = 0; i < BATCH; i++)
                if (node + i * CLASSES <= to) add_result<W>(T, S, Y, t[i], s[i], y[i]);
        }
    }
#pragma unroll
    for (int j = 0; j < W; j++) box[mine][cls][lane + 32 * j] = Y[j];
    if (lane == 0) tops[mine][cls] = T, sums[mine][cls] = S;
    __syncthreads();
    if (cls == 0 && there) {
#pragma unroll 1
        for (int i = 1; i < CLASSES; i++) {
            float y[W];
#pragma unroll
            for (int j = 0; j < W; j++) y[j] = box[mine][i][lane + 32 * j];
            add_result<W>(T, S, Y, tops[mine][i], sums[mine][i], y);
        }
        if (a.sinks) add_sink<W>(T, S, Y, __ldg(a.sinks + kv_head * a.n_rep + at - row * a.n_rep));
#pragma unroll
        for (int j = 0; j < W; j++) Y[j] = divided(Y[j], S);
        kv_turn_head<W>(Y, p.v.type, true, true);
        const int64_t to = head_of_row(a, row, kv_head, at) * D;
        float *copy = box[mine][0]; /* whose results are in registers here; all heads' side by side below */
#pragma unroll
        for (int j = 0; j < W; j++) {
            a.out[to + lane + 32 * j] = Y[j];
            copy[lane + 32 * j] = a.prepare && a.gate
                                      ? __fmul_rn(Y[j], dev_sigmoid(__ldcg(a.gate + to + lane + 32 * j)))
                                      : Y[j];
        }
    }
    if (!a.prepare) return;
    __syncthreads();
    __shared__ __align__(16) float strip[D < 256 ? 256 : D];
    for (int i = threadIdx.x; i < HEADS * D; i += 32 * CLASSES * HEADS) strip[i] = box[i / D][0][i % D];
    __syncthreads();
    if (threadIdx.x < 32)
#pragma unroll 1
        for (int i = 0; i < HEADS * D; i += 256) prepare_strip<D>(a, strip + i, kv_head, begin, i % D);
}
