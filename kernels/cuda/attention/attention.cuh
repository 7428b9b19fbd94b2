/* attention.cuh - what the attention kernels share.
 *
 * Concepts. A *tile* is 16 query rows, (row, query head of one kv head) in the order row * n_rep + head: the
 * M of mma m16n8k16. A *leaf* is 64 keys (32 where a head has 512) at an absolute multiple of 64; a *node* is
 * NODE keys at an absolute multiple. A partial result has a top T, a sum of weights and an output without its
 * division, all relative to 2^T. T is the maximum of the scores, in units of log 2, rounded up: it is whole,
 * so two partial results are brought to one T by powers of two, which are exact, and only the order of the
 * additions decides the bits: leaves of a node in order, then nodes by their number modulo CLASSES, then the
 * classes in order, whichever block or kernel adds them. The sum of a leaf's weights is a tree: neighbours,
 * then keys 8, 16 and 32 apart, then 2 and 4. What a row gets depends on its own query and visible
 * keys alone: a key that it does not see weighs an exact zero, and a leaf without visible keys adds zeros.
 *
 * Scores: float sums inside the tensor core, weights 2^(x - T) by ex2.approx. Queries and weights enter as
 * PARTS halves: two (22 bits for f16, 16 for bf16) up to FEW rows, so that what is lost is below the cache's
 * own rounding; one above. */
#ifndef DFLASH_CUDA_ATTENTION_CUH
#define DFLASH_CUDA_ATTENTION_CUH

#include "../product/mm.cuh"
#include "../core/ops.cuh"
#include "attention_plan.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define DEV static __device__ __forceinline__
#include "../core/cluster.cuh"
#include "../core/math.cuh"
#include "../experts/hand.cuh"
#include "kv_codes.cuh"

#define TILE ATTN_TILE
#define FEW ATTN_FEW
#define NODE ATTN_NODE
#define CLASSES ATTN_CLASSES
#define PLACES_SIDE(D) ATTN_PLACES_SIDE(D)
#define PLACE_FLOATS ATTN_PLACE_FLOATS
#define STREAM_ROWS ATTN_STREAM_ROWS

struct attn {
    const float *q;
    float *out, *part;
    void *k, *v;
    const int32_t *pos, *first;
    int32_t n, n_head, n_kv, n_rep, d;
    kv_where where;
    int32_t window;
    uint32_t type;        /* kv_form's */
    uint32_t rep_inverse; /* 2^32 / n_rep + 1; 0 where n_rep is 1 */
    float scale;
    bool causal;
    /* attn_step */
    int32_t tiles;          /* of a block */
    int32_t tile0, n_tiles; /* of 16 rows, this launch */
    int32_t slots;          /* partial results a (tile, kv head) has room for */
    int32_t leaves;         /* a unit is a leaf (leaves) or a node */
    int32_t per;            /* units a block, at least: more where there are more than blocks times that */
    int32_t stages;         /* of the ring: keys or values of a leaf */
    bool early;             /* all but this pass's own keys may be read before the wait */
    bool known;             /* and positions, by the merge */
    int32_t log_blocks;     /* of a cluster: attn_step in clusters */
    /* attn_step: q, new_k and new_v are what the projections gave. Norms and rotation are rope_store's. */
    bool fold, v_norm;
    int32_t half; /* pairs that turn: D / 2, 32 or 0 */
    int32_t duty; /* new keys that the blocks of a tile write to the ring */
    float eps;
    const float *new_k, *new_v, *q_norm, *k_norm, *table;
    /* attn_step in clusters: results are also rounded for the product that follows (prep_block.cuh). */
    bool prepare;
    enum mm_act act;
    struct mm_prep then;
    const float *gate; /* NULL, or [n, n_head, d]: gated before they are rounded, as gate_rows.cu does */
    struct experts_hand hand; /* and handed to a mixture */
    const float *sinks;       /* NULL, or [n_head]: add_sink */
    /* NULL, or rows of a tree: attn_places, which writes keys and values to rows of these; attn_far. */
    const struct kn_tree *tree;
    void *tail_k, *tail_v;
};
typedef void (*attn_fn)(const attn);

/* attention/step.cu: up to FEW rows; blocks of so many tiles (1, 2, 4), of 8 warps (4 for heads of 64), and
 * stages; resident: blocks a multiprocessor, 1 or 2, that one tile of heads of 512 has registers for. near:
 * one tile, in clusters of so many blocks, which hold so many leaves each. *smem of a block.
 * attention/prefill.cu: more rows; warps 4 or 8; *tiles of a block, *chunks of columns. NULL: no such kernel.
 */
attn_fn attn_step_of(int32_t d, int32_t tiles, int32_t resident, uint32_t type, int32_t stages, size_t *smem);
attn_fn attn_near_of(int32_t d, uint32_t type, int32_t blocks, int32_t leaves, size_t *smem);
/* attention/stream.cu: one tile of up to STREAM_ROWS rows, units are nodes. */
attn_fn attn_stream_of(int32_t d, uint32_t type, size_t *smem);
attn_fn attn_merge_of(int32_t d);
/* attention/leaves.cu: one tile, leaves that the same launch adds. NULL: none. */
attn_fn attn_places_of(int32_t d, uint32_t type, size_t *smem);
attn_fn attn_paths_of(int32_t d, uint32_t type, int32_t n, size_t *smem); /* n rows of a tree */
/* attention/alone.cu: one tile, all its keys a block. NULL: none. */
attn_fn attn_alone_of(int32_t d, uint32_t type, size_t *smem);
/* attention/group.cu: the same, heads of 128, by products of four warps. takes: the device has such. With
 * a->fold queries come as the projections left them (half: 64 or 0); keys and values are in the ring. */
bool attn_group_takes(const struct cuda_backend *be, const struct attn *a);
int attn_group_launch(struct cuda_backend *be, const struct attn *a);
/* attention/far.cu: 2 to FEW rows over long contexts, heads of 128 and 256. blocks: of the grid. */
bool attn_far_takes(const struct cuda_backend *be, const struct attn *a);
int attn_far_launch(struct cuda_backend *be, const struct attn *a, int32_t blocks);
/* attention/tree.cu: rows of a tree that attn_places does not take. p: what attention makes of a. check: is
 * the call one that can be? */
int attn_tree_check(struct cuda_backend *be, const struct kn_attention *a);
int attn_tree(struct cuda_backend *be, const struct kn_attention *a, const struct attn *p,
              const struct attn_plan *far); /* NULL, or what the first of its launches is */
attn_fn attn_prefill_of(int32_t d, uint32_t type, int32_t warps, size_t *smem, int32_t *tiles,
                        int32_t *chunks);

/* at / n_rep, for at * n_rep < 2^32. */
DEV int row_of(const attn &a, int at)
{
    return a.rep_inverse ? (int)__umulhi((unsigned)at, a.rep_inverse) : at;
}

struct span {
    int lo, hi; /* positions [lo, hi) */
};
/* Row i sees these; pos0: the position of row 0, bound: *first or 0. */
DEV struct span visible(const attn &a, int i, int pos0, int bound)
{
    const int pos = pos0 + i, end = a.causal ? pos + 1 : pos0 + a.n;
    const int from = max(a.window ? pos - a.window + 1 : 0, max(bound, 0)),
              to = !a.causal && a.window && end - pos > a.window ? pos + a.window : end;
    return {from, max(to, from)};
}
/* What row `at` of the tiles sees; nothing where there is none. */
DEV struct span visible_at(const attn &a, int at, int pos0, int bound)
{
    const int row = row_of(a, at);
    return row < a.n ? visible(a, row, pos0, bound) : span{0, 0};
}
/* The number, of all rows' heads, of the one that row `at` of a kv head's tiles is; row: row_of(a, at). */
DEV int64_t head_of_row(const attn &a, int row, int kv_head, int at)
{
    return (int64_t)row * (a.n_head - a.n_rep) + kv_head * a.n_rep + at;
}
/* Of tiles [tile, tile + n): what any row sees; rows ascend, so the first row's lower end and the last's
 * upper. Nothing where there are no rows. */
DEV struct span visible_any(const attn &a, int tile, int n, int pos0, int bound)
{
    const int from = row_of(a, tile * TILE), to = min(row_of(a, (tile + n) * TILE - 1), a.n - 1);
    if (from >= a.n) return {0, 0};
    const struct span v = {visible(a, from, pos0, bound).lo, visible(a, to, pos0, bound).hi};
    return v.hi > v.lo ? v : span{0, 0};
}
/* What every row of the tile sees. */
DEV struct span visible_all(const attn &a, int tile, int pos0, int bound)
{
    const int from = row_of(a, tile * TILE), to = min(row_of(a, (tile + 1) * TILE - 1), a.n - 1);
    return {visible(a, to, pos0, bound).lo, visible(a, min(from, a.n - 1), pos0, bound).hi};
}

/* ---- numbers ---- */

template <bool BF16> DEV uint16_t to_half(float x)
{
    if (BF16) return __bfloat16_as_ushort(__float2bfloat16_rn(x));
    return __half_as_ushort(__float2half_rn(x));
}
template <bool BF16> DEV float from_half(uint16_t h)
{
    if (BF16) return __uint_as_float((uint32_t)h << 16);
    return __half2float(__ushort_as_half(h));
}
template <bool BF16> DEV uint32_t pair_of(float x, float y)
{
    if (BF16) {
        const __nv_bfloat162 h = __floats2bfloat162_rn(x, y);
        return *(const uint32_t *)&h;
    }
    const __half2 h = __floats2half2_rn(x, y);
    return *(const uint32_t *)&h;
}
/* x and y as PARTS pairs, the rest of each in the next; x in the low half of a word. */
template <int PARTS, bool BF16> DEV void parts_of(float x, float y, uint32_t p[PARTS])
{
    p[0] = pair_of<BF16>(x, y);
    if (PARTS == 2)
        p[PARTS - 1] = pair_of<BF16>(__fsub_rn(x, from_half<BF16>((uint16_t)p[0])),
                                     __fsub_rn(y, from_half<BF16>((uint16_t)(p[0] >> 16))));
}
DEV float exp_two(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
/* 2^(t - to), t <= to whole or -inf: what a result relative to 2^t is multiplied by. */
DEV float factor(float t, float to)
{
    const float d = __fsub_rn(t, to);
    return t == -INFINITY || d < -126.0f ? 0.0f : __int_as_float(((int)d + 127) << 23);
}

/* c[16, 8] += a[16, 16] b[16, 8] */
template <bool BF16> DEV void mma(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    if (BF16)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
            "{%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Halves of w that are NaN or Inf become 0. */
template <bool BF16> DEV bool make_finite(uint32_t &w)
{
    const uint32_t e = BF16 ? 0x7f80u : 0x7c00u;
    const bool low = (w & e) == e, high = (w >> 16 & e) == e;
    if (low) w &= 0xffff0000u;
    if (high) w &= 0x0000ffffu;
    return low || high;
}

template <bool BF16> DEV bool make_finite(uint4 &v)
{
    return make_finite<BF16>(v.x) | make_finite<BF16>(v.y) | make_finite<BF16>(v.z) | make_finite<BF16>(v.w);
}

/* ---- memory ---- */

DEV void copy_async(unsigned to, const void *from, bool really)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(really ? 16 : 0)
                 : "memory");
}
DEV void copy_async(unsigned to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
DEV void copy_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/* Until all but the newest n groups have landed. */
DEV void copy_wait(int n)
{
    switch (n) {
    case 0: asm volatile("cp.async.wait_group 0;" ::: "memory"); break;
    case 1: asm volatile("cp.async.wait_group 1;" ::: "memory"); break;
    case 2: asm volatile("cp.async.wait_group 2;" ::: "memory"); break;
    case 3: asm volatile("cp.async.wait_group 3;" ::: "memory"); break;
    case 4: asm volatile("cp.async.wait_group 4;" ::: "memory"); break;
    default:
        asm volatile("cp.async.wait_group 5;" ::: "memory");
        break; /* of more: earlier than it need be */
    }
}
DEV uint4 load_matrices(unsigned at)
{
    uint4 r;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
                 : "r"(at)
                 : "memory");
    return r;
}
DEV uint4 load_transposed(unsigned at)
{
    uint4 r;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
                 : "r"(at)
                 : "memory");
    return r;
}

/* KEYS keys from p0 (which KEYS divides), COLS columns from col of a head of D, to rows of PITCH halves; keys
 * that are not in v become zeros. */
template <int D, int COLS, int KEYS, int PITCH, int THREADS>
DEV void kv_stage(const attn &a, unsigned to, const void *cache, int p0, int kv_head, int col,
                  const struct span &v)
{
    constexpr int PIECES = COLS / 8; /* 16 bytes */
    const int64_t stride = (int64_t)a.n_kv * D;
    const uint16_t *base = KV_ROW(D, cache, KV_SLOT(a.where, p0), stride, kv_head) + col;
#pragma unroll
    for (int i = 0; i < KEYS * PIECES / THREADS; i++) {
        const int at = i * THREADS + (int)threadIdx.x, key = at / PIECES, piece = at % PIECES;
        const bool in = p0 + key >= v.lo && p0 + key < v.hi;
        copy_async(to + (unsigned)(key * PITCH + piece * 8) * 2, in ? base + key * stride + piece * 8 : base,
                   in);
    }
}

/* Rows of queries on their way to shared memory: row k of a warp is row (k0 + k) * WARPS + warp of the
 * block's. */
template <int D, int WARPS, int N> struct query_rows {
    static constexpr int WIDE = D / 64;
    float2 x[N][WIDE];
    __device__ __forceinline__ void read(const attn &a, int tile, int kv_head, int k0)
    {
        const int lane = threadIdx.x % 32, w = threadIdx.x / 32;
#pragma unroll
        for (int k = 0; k < N; k++) {
            const int at = tile * TILE + (k0 + k) * WARPS + w, row = row_of(a, at),
                      head = kv_head * a.n_rep + at - row * a.n_rep;
            const float *q = a.q + ((int64_t)row * a.n_head + head) * D;
#pragma unroll
            for (int i = 0; i < WIDE; i++)
                x[k][i] = row < a.n ? *(const float2 *)(q + 64 * i + 2 * lane) : make_float2(0.0f, 0.0f);
        }
    }
    /* Rotated as the keys of a quantised type are (kv_codes.cuh): numbers 64 i + 2 lane and the next. */
    __device__ __forceinline__ void turn(uint32_t type)
    {
        const int lane = threadIdx.x % 32, n = kv_turn_size_of(type, D);
#pragma unroll
        for (int k = 0; k < N; k++) kv_turn_pairs<WIDE>(x[k], type, n, lane);
    }
    /* As fragments to[tile][D / 16][PARTS][32]; unit[row]: what the scores are multiplied by. Each row is
     * scaled by a power of two to at most 1, so that halves neither overflow nor lose low parts. */
    template <bool BF16, int PARTS>
    __device__ __forceinline__ void put(const attn &a, uint4 *to, float *unit, int k0)
    {
        const int lane = threadIdx.x % 32, w = threadIdx.x / 32;
        float top[N];
#pragma unroll
        for (int k = 0; k < N; k++) {
            top[k] = 0.0f;
#pragma unroll
            for (int i = 0; i < WIDE; i++) top[k] = fmaxf(top[k], fmaxf(fabsf(x[k][i].x), fabsf(x[k][i].y)));
        }
#pragma unroll
        for (int i = 16; i; i >>= 1)
#pragma unroll
            for (int k = 0; k < N; k++) top[k] = fmaxf(top[k], __shfl_xor_sync(~0u, top[k], i));
#pragma unroll
        for (int k = 0; k < N; k++) {
            const int r = (k0 + k) * WARPS + w;
            int e = (__float_as_int(top[k]) >> 23) - 126; /* top < 2^e */
            e = top[k] == INFINITY || e < -100 ? 0 : e > 126 ? 126 : e;
            const float down = __int_as_float((127 - e) << 23);
            if (lane == 0)
                unit[r] = __fmul_rn(__fmul_rn(a.scale, 0x1.715476p+0f), __int_as_float((127 + e) << 23));
#pragma unroll
            for (int i = 0; i < WIDE; i++) {
                const int d = 64 * i + 2 * lane, word = d % 16 / 8 * 2 + r % 16 / 8,
                          at_lane = r % 8 * 4 + d % 8 / 2;
                uint32_t p[PARTS];
                parts_of<PARTS, BF16>(__fmul_rn(x[k][i].x, down), __fmul_rn(x[k][i].y, down), p);
#pragma unroll
                for (int j = 0; j < PARTS; j++)
                    ((uint32_t *)&to[((r / 16 * (D / 16) + d / 16) * PARTS + j) * 32 + at_lane])[word] = p[j];
            }
        }
    }
};
/* TILES tiles of queries. All warps; no barrier inside. TURN: as the keys of a quantised type are. */
template <int D, bool BF16, int TILES, int WARPS, int PARTS, bool TURN = false>
DEV void load_queries(const attn &a, uint4 *to, float *unit, int tile, int kv_head, uint32_t type = 0)
{
    constexpr int N = TILES * TILE / WARPS, M = D <= 128 && N % 8 == 0 ? 8 : N < 4 ? N : 4; /* at a time */
#pragma unroll 1
    for (int k = 0; k < N; k += M) {
        struct query_rows<D, WARPS, M> rows;
        rows.read(a, tile, kv_head, k);
        if (TURN) rows.turn(type);
        rows.template put<BF16, PARTS>(a, to, unit, k);
    }
}

/* ---- products ---- */

/* x[N][4] = q k for 8 N keys at k (rows of PITCH halves). */
template <int D, bool BF16, int N, int PITCH, int PARTS>
DEV void scores(float x[N][4], const uint4 *q, unsigned k)
{
    const int lane = threadIdx.x % 32;
    float low[N][4];
#pragma unroll
    for (int j = 0; j < N; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) x[j][e] = low[j][e] = 0.0f;
    if (N == 1) { /* 8 keys by 32 columns a load */
        k += (unsigned)(lane % 8 * PITCH + lane / 8 * 8) * 2;
#pragma unroll
        for (int s = 0; s < D / 16; s += 2) {
            const uint4 b = load_matrices(k + s * 32);
#pragma unroll
            for (int p = 0; p < PARTS; p++) {
                const uint4 f0 = q[(s * PARTS + p) * 32 + lane], f1 = q[((s + 1) * PARTS + p) * 32 + lane];
                const uint32_t a0[4] = {f0.x, f0.y, f0.z, f0.w}, a1[4] = {f1.x, f1.y, f1.z, f1.w};
                mma<BF16>(p ? low[0] : x[0], a0, b.x, b.y);
                mma<BF16>(p ? low[0] : x[0], a1, b.z, b.w);
            }
        }
    } else { /* 16 keys by 16 columns */
        k += (unsigned)((lane % 8 + lane / 16 * 8) * PITCH + lane / 8 % 2 * 8) * 2;
#pragma unroll
        for (int s = 0; s < D / 16; s++) {
            uint4 b[N / 2 + 1];
#pragma unroll
            for (int j = 0; j < N / 2; j++) b[j] = load_matrices(k + j * 16 * PITCH * 2 + s * 32);
#pragma unroll
            for (int p = 0; p < PARTS; p++) {
                const uint4 f = q[(s * PARTS + p) * 32 + lane];
                const uint32_t a[4] = {f.x, f.y, f.z, f.w};
#pragma unroll
                for (int j = 0; j < N / 2; j++) {
                    mma<BF16>(p ? low[2 * j] : x[2 * j], a, b[j].x, b[j].y);
                    mma<BF16>(p ? low[2 * j + 1] : x[2 * j + 1], a, b[j].z, b[j].w);
                }
            }
        }
    }
    if (PARTS == 2)
#pragma unroll
        for (int j = 0; j < N; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) x[j][e] = __fadd_rn(x[j][e], low[j][e]);
}

/* acc[N][4] += p v over 16 S keys: p the fragments, v at its column `col` (rows of PITCH halves). clean: NaN
 * and Inf count as zeros. */
template <bool BF16, int S, int N, int PITCH, int PARTS>
DEV void weigh(float acc[N][4], const uint32_t p[S][PARTS][4], unsigned v, int col, bool clean)
{
    const int lane = threadIdx.x % 32;
    v += (unsigned)((lane % 8 + lane / 8 % 2 * 8) * PITCH + lane / 16 * 8 + col) * 2;
#pragma unroll
    for (int s = 0; s < S; s++)
#pragma unroll
        for (int j = 0; j < N / 2; j++) {
            uint4 b = load_transposed(v + (s * 16 * PITCH + j * 16) * 2);
            if (clean) make_finite<BF16>(b);
#pragma unroll
            for (int i = 0; i < PARTS; i++) {
                mma<BF16>(acc[2 * j], p[s][i], b.x, b.y);
                mma<BF16>(acc[2 * j + 1], p[s][i], b.z, b.w);
            }
        }
}

/* acc = what weights in shared memory, [S][part][lane], give, as weigh. */
template <bool BF16, int S, int N, int PITCH>
DEV void weigh_stored(float acc[N][4], const uint4 *weights, unsigned v, int col)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int t = 0; t < N; t++) acc[t][0] = acc[t][1] = acc[t][2] = acc[t][3] = 0.0f;
    v += (unsigned)((lane % 8 + lane / 8 % 2 * 8) * PITCH + lane / 16 * 8 + col) * 2;
#pragma unroll
    for (int s = 0; s < S; s++) {
        const uint4 f0 = weights[s * 64 + lane], f1 = weights[s * 64 + 32 + lane];
        const uint32_t p[2][4] = {{f0.x, f0.y, f0.z, f0.w}, {f1.x, f1.y, f1.z, f1.w}};
#pragma unroll
        for (int j = 0; j < N / 2; j++) {
            const uint4 b = load_transposed(v + (unsigned)(s * 16 * PITCH + j * 16) * 2);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                mma<BF16>(acc[2 * j], p[i], b.x, b.y);
                mma<BF16>(acc[2 * j + 1], p[i], b.z, b.w);
            }
        }
    }
}

/* Which of KEYS <= 64 keys hold a NaN or Inf in COLS columns at v: a bit a key, in all lanes. */
template <bool BF16, int KEYS, int COLS, int PITCH> DEV uint64_t find_unfinite(const uint16_t *v)
{
    uint64_t bits = 0;
#pragma unroll
    for (int part = 0; part < KEYS / 32; part++) {
        const uint4 *row = (const uint4 *)(v + (part * 32 + threadIdx.x % 32) * PITCH);
        bool bad = false;
        for (int i = 0; i < COLS / 8; i++) {
            uint4 x = row[i];
            bad |= make_finite<BF16>(x);
        }
        bits |= (uint64_t)__ballot_sync(~0u, bad) << (32 * part);
    }
    return bits;
}
/* Of the keys p0 .. p0 + 63 those in v, a bit each. */
DEV uint64_t bits_of(const struct span &v, int p0)
{
    const int from = min(max(v.lo - p0, 0), 64), to = min(max(v.hi - p0, 0), 64);
    const uint64_t below_to = to == 64 ? ~0ull : (1ull << to) - 1,
                   below_from = from == 64 ? ~0ull : (1ull << from) - 1;
    return below_to & ~below_from;
}

/* Row sums of the 8 N weights of a warp's rows g and g + 8, in every lane of a row. */
DEV float quad_sum(float x)
{
    x = __fadd_rn(x, __shfl_xor_sync(~0u, x, 1));
    return __fadd_rn(x, __shfl_xor_sync(~0u, x, 2));
}
DEV float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

/* Scores x[NT][4] of a warp's rows g and g + 8 (keys p0 + 8 j + 2 c and the next) times unit; those that a
 * row does not see -inf. The rows' maxima, rounded up. */
template <int NT>
DEV void mask_scores(float x[NT][4], float top[2], const float unit[2], bool ragged, int p0,
                     const struct span &v0, const struct span &v1)
{
    const int at = p0 + 2 * (threadIdx.x % 4);
    top[0] = top[1] = -INFINITY;
#pragma unroll
    for (int j = 0; j < NT; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int p = at + 8 * j + e % 2;
            const struct span &r = e < 2 ? v0 : v1;
            x[j][e] = __fmul_rn(x[j][e], unit[e / 2]);
            if (ragged && !(p >= r.lo && p < r.hi)) x[j][e] = -INFINITY;
            top[e / 2] = fmaxf(top[e / 2], x[j][e]);
        }
    top[0] = ceilf(quad_max(top[0]));
    top[1] = ceilf(quad_max(top[1]));
}
/* Weights relative to 2^top, as fragments of keys; and their sums. */
template <int NT, int PARTS, bool BF16>
DEV void make_weights(uint32_t p[NT / 2][PARTS][4], float sum[2], float x[NT][4], const float top[2])
{
    const float base[2] = {top[0] == -INFINITY ? 0.0f : top[0], top[1] == -INFINITY ? 0.0f : top[1]};
    float tree[2][NT];
#pragma unroll
    for (int j = 0; j < NT; j++) {
#pragma unroll
        for (int e = 0; e < 4; e++) x[j][e] = exp_two(__fsub_rn(x[j][e], base[e / 2]));
        tree[0][j] = __fadd_rn(x[j][0], x[j][1]);
        tree[1][j] = __fadd_rn(x[j][2], x[j][3]);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t h[PARTS];
            parts_of<PARTS, BF16>(x[j][2 * half], x[j][2 * half + 1], h);
#pragma unroll
            for (int i = 0; i < PARTS; i++) p[j / 2][i][j % 2 * 2 + half] = h[i];
        }
    }
#pragma unroll
    for (int i = 1; i < NT; i *= 2)
#pragma unroll
        for (int j = 0; j < NT; j += 2 * i) {
            tree[0][j] = __fadd_rn(tree[0][j], tree[0][j + i]);
            tree[1][j] = __fadd_rn(tree[1][j], tree[1][j + i]);
        }
    sum[0] = tree[0][0];
    sum[1] = tree[1][0];
}
DEV float divided(float y, float sum)
{
    return sum == 0.0f ? 0.0f : __fdiv_rn(__fadd_rn(y, 0.0f), sum); /* + 0: a zero is positive */
}

/* ---- any type, any head size: a row and head a block, a thread a key, then a column or two ---- */

/* exp(x - top) where top is a maximum that may be -inf (nothing seen yet, or only NaN). */
DEV float any_weight(float x, float top)
{
    return dev_exp(__fsub_rn(x, top == -INFINITY ? 0.0f : top));
}
/* A thread has the score of a key, of KN_KV_SPLIT at a time (-INFINITY: it is not seen). w: their weights
 * under the maximum so far, top; sum: with those before. What was added before takes the factor that is
 * returned. */
DEV float any_weigh(float x, float &top, float &sum, float w[KN_KV_SPLIT], float tree[KN_KV_SPLIT / 32])
{
    const int t = threadIdx.x;
    float here = x;
    for (int i = 16; i; i >>= 1) here = fmaxf(here, __shfl_xor_sync(~0u, here, i));
    if (t % 32 == 0) tree[t / 32] = here;
    __syncthreads();
    for (int i = 0; i < KN_KV_SPLIT / 32; i++) here = fmaxf(here, tree[i]);
    here = fmaxf(here, top);
    x = any_weight(x, here);
    w[t] = x;
    for (int i = 16; i; i >>= 1) x = __fadd_rn(x, __shfl_xor_sync(~0u, x, i));
    __syncthreads();
    if (t % 32 == 0) tree[t / 32] = x;
    __syncthreads();
    const float f = any_weight(top, here);
    sum = __fmul_rn(sum, f);
    for (int i = 0; i < KN_KV_SPLIT / 32; i++) sum = __fadd_rn(sum, tree[i]);
    top = here;
    return f;
}
/* The sink, after all keys that are seen: a key of this score and the value zero. */
DEV void any_sink(float top, float &sum, float acc[2], float sink)
{
    if (sum == 0.0f) return;
    const float to = fmaxf(top, sink), f = any_weight(top, to);
    sum = __fmaf_rn(sum, f, any_weight(sink, to));
    acc[0] = __fmul_rn(acc[0], f), acc[1] = __fmul_rn(acc[1], f);
}

#endif
