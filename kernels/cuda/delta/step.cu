/* delta/step.cu - a gated delta net and the projection of its outputs, for few rows: state, norm, gate and
 * the rounding for the product in one launch, where delta.cu, its finish and prep.cu would be three that wait
 * for each other.
 *
 * A cluster has two neighbouring value heads, 256 outputs of a row: what is rounded together (prep.cuh). Its
 * eight blocks, 32 rows of a state each, take the tokens through the state as delta.cu's do; a token's
 * outputs go straight to the block of the cluster that has it, where a warp norms, gates and rounds 256 of
 * them. The log and the convolution's state, which blocks of other clusters read as well, are written by the
 * last block that has read them: of a key head's, the last of its value heads' blocks.
 *
 * Few rows: delta/few.cuh; one: delta/one.cuh; 17 and more: delta/chunks.cuh.
 *
 * Every value has the bits of the three kernels. Bound: latency, from the last projection to the rounded row.
 */
#include "../chain/chain.cuh"
#include "../core/cluster.cuh"
#include "norm.cuh"
#include "rows.cuh"
#include "../experts/hand.cuh"
#include "../product/prep.cuh"

#define D 128                 /* d_k and d_v that there is code for */
#define CHUNK 32              /* tokens between two meetings of a cluster */
#define TAPS 4                /* n_conv at most */
#define BLOCKS 8              /* of a cluster */
#define QUARTERS 4            /* of a head */
#define MINE (CHUNK / BLOCKS) /* tokens of a chunk that a block finishes: every eighth */

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
DEV void to_l2(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

/* The block's columns of a row, of the convolution's inputs, from `row` on: groups of four, of which a lane
 * has `lane` and `lane` + 32, and the first 8 lanes one of v. */
struct columns {
    int64_t q, k, v;
};
DEV struct columns columns_of(const struct kn_delta &a, int row0)
{
    const int h = blockIdx.y, kh = h % a.n_k, lane = threadIdx.x % 32;
    return {(int64_t)kh * D + 4 * lane, (int64_t)(a.n_k + kh) * D + 4 * lane,
            2 * (int64_t)a.n_k * D + (int64_t)h * D + row0 + 4 * lane};
}

/* What does not come from the kernel before this one, on its way to the second-level cache: nothing is read.
 */
DEV void ask_early(const struct layer &l, const struct columns &c, int row0)
{
    const int i = threadIdx.x, warp = i / 32, lane = i % 32;
    const int64_t stride = l.width + 2 * l.a.n_v;
    to_l2(l.s.s + ((int64_t)blockIdx.y * D + row0) * D +
          (int64_t)i * (ROWS * D / THREADS)); /* 64 bytes each */
    const float *row =
        warp < l.a.n_conv - 1 ? l.s.conv + warp * l.width : l.s.log + (warp - l.a.n_conv + 1) * stride;
    if (lane % 2) return; /* 32 bytes each */
    to_l2(row + c.q);
    to_l2(row + c.k);
    if (lane < 8) to_l2(row + c.v);
}

/* Taps of a channel, zeros before the first. */
DEV float4 taps_of(const struct kn_delta &a, int64_t channel)
{
    const float *w = a.conv + channel * a.n_conv;
    const int skip = TAPS - a.n_conv;
    return make_float4(skip < 1 ? w[0] : 0.0f, skip < 2 ? w[1 - skip] : 0.0f, skip < 3 ? w[2 - skip] : 0.0f,
                       w[3 - skip]);
}
/* As convolve: the oldest tap first, whichever that is. */
DEV float convolved(const float4 &w, const float *x, int skip)
{
    float s = __fmul_rn(w.w, x[3]);
    if (skip == 2) s = __fmaf_rn(w.w, x[3], __fmul_rn(w.z, x[2]));
    if (skip == 1) s = __fmaf_rn(w.w, x[3], __fmaf_rn(w.z, x[2], __fmul_rn(w.y, x[1])));
    if (skip == 0) s = __fmaf_rn(w.w, x[3], __fmaf_rn(w.z, x[2], __fmaf_rn(w.y, x[1], __fmul_rn(w.x, x[0]))));
    return s;
}
/* A warp: row r of the cluster's two heads, whose outputs are o. */
template <enum mm_act ACT>
DEV void finish_row(const struct layer &l, const mm_prep &p, const float o[BLOCKS * ROWS], int64_t r,
                    float gate[8], const float norm[8], uint4 *words = nullptr, unsigned tag = 0)
{
    const struct kn_delta &a = l.a;
    const int lane = threadIdx.x % 32;
    __align__(16) float v[8];
    float sum[2] = {0.0f, 0.0f};
    *(float4 *)v = *(const float4 *)(o + 8 * lane);
    *(float4 *)(v + 4) = *(const float4 *)(o + 8 * lane + 4);
#pragma unroll
    for (int j = 0; j < QUARTERS; j++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float x = o[32 * (QUARTERS * h + j) + lane];
            sum[h] = __fmaf_rn(x, x, sum[h]);
        }
#pragma unroll
    for (int i = 16; i; i >>= 1)
#pragma unroll
        for (int h = 0; h < 2; h++) sum[h] = __fadd_rn(sum[h], __shfl_xor_sync(~0u, sum[h], i));
    const float rr =
        __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(lane < 16 ? sum[0] : sum[1], (float)D), a.eps)));
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = __fmul_rn(__fmul_rn(__fmul_rn(v[i], rr), norm[i]), gate[i]);
    if (ACT == MM_ACT_K && words) hand_put(words + HAND_UNIT * (blockIdx.y / 2), round_block<true>(v), tag);
    store_block<ACT>(p, p.rows + (size_t)r * (size_t)p.slices * (size_t)p.slice_row, (int)blockIdx.y / 2, v,
                     (int)r);
}

/* Rows of the log, from row `first` on, every `step`th of the call from row i on, of four columns; AT_ONCE:
 * on their way together. (A load does not pass the store before it, for all that the compiler knows.) */
template <int AT_ONCE> DEV void log_rows(const struct layer &l, int64_t at, int32_t first, int i, int step)
{
    const int64_t stride = l.width + 2 * l.a.n_v;
#pragma unroll 1
    for (; i < l.a.n; i += AT_ONCE * step) {
        float4 x[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++)
            x[j] = __ldcg((const float4 *)(l.a.qkv + min(i + j * step, l.a.n - 1) * l.width + at));
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++)
            if (i + j * step < l.a.n)
                __stcg((float4 *)(l.s.log + (first + i + j * step) * stride + at), x[j]);
    }
}
#include "one.cuh"
#endif
#include "few.cuh"
#include "chunks.cuh"

template <enum mm_act ACT>
static __global__ void __launch_bounds__(THREADS, 2)
    delta_step(const __grid_constant__ struct layer l, const __grid_constant__ mm_prep p, unsigned *count)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    __shared__ __align__(16) struct few_memory m;
    few_block<ACT>(l, p, count, m);
#endif
}

/* The same for 17 rows and more: delta/chunks.cuh. */
template <enum mm_act ACT>
static __global__ void __launch_bounds__(THREADS, 2)
    delta_chunks(const __grid_constant__ struct layer l, const __grid_constant__ mm_prep p, unsigned *count)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    extern __shared__ __align__(16) uint8_t memory[];
    chunks_block<ACT>(l, p, count, *(struct chunks_memory *)memory);
#endif
}

/* The same for one row: delta/one.cuh. */
template <enum mm_act ACT>
static __global__ void __launch_bounds__(THREADS + 32, 2)
    delta_one(const __grid_constant__ struct layer l, const __grid_constant__ mm_prep p, unsigned *count,
              const struct experts_hand hand)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    __shared__ struct one_memory m;
    one_block<ACT>(l, p, count, hand, m);
#endif
}

template <enum mm_act ACT>
static cudaError_t launch_of(struct cuda_backend *be, enum delta_form form, const struct layer *l,
                             const struct mm_prep *p)
{
    static_assert(D == DELTA_FUSED_HEAD && TAPS == DELTA_FUSED_TAPS && QUARTERS == 4, "as delta_plan.h");
    cuda_count(be, form == DELTA_ONE   ? CUDA_DELTA_ONE
                   : form == DELTA_FEW ? CUDA_DELTA_FEW
                                       : CUDA_DELTA_CHUNKS);
    const dim3 grid(QUARTERS, (unsigned)l->a.n_v),
        cluster(QUARTERS, BLOCKS / QUARTERS); /* two heads' blocks */
    if (form == DELTA_FEW)
        return cuda_launch_clusters(be, delta_step<ACT>, grid, dim3(THREADS), 0, cluster, *l, *p,
                                    be->delta_count);
    if (form == DELTA_CHUNKS) {
        const size_t bytes = sizeof(struct chunks_memory);
        const cudaError_t err =
            cudaFuncSetAttribute(delta_chunks<ACT>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
        return err ? err
                   : cuda_launch_clusters(be, delta_chunks<ACT>, grid, dim3(THREADS), bytes, cluster, *l, *p,
                                          be->delta_count);
    }
    const int rc = cuda_flush(be); /* the launch's number is the next */
    if (rc) return cuda_told(rc);
    const struct experts_hand hand = experts_hand(be, ACT == MM_ACT_K ? (int64_t)l->a.n_v * D : 0);
    const cudaError_t err = cuda_launch_clusters(be, delta_one<ACT>, grid, dim3(THREADS + 32), 0, cluster, *l,
                                                 *p, be->delta_count, hand);
    if (!err && hand.words) experts_handed(be);
    return err;
}

int chain_delta_alone(struct cuda_backend *be, const struct kn_delta *a, const struct kn_weight *w)
{
    enum mm_act act;
    struct mm_prep p;
    const struct cuda_device dev = cuda_device_of(be);
    const enum delta_form form = delta_form_of(&dev, a, w->n_in);
    if (a->tree || (form != DELTA_ONE && form != DELTA_FEW && form != DELTA_CHUNKS) ||
        !mm_preparing(be, w, a->n, &p, &act))
        return cuda_delta((struct kn_backend *)be, a);
    const struct layer l = {*a, *a->state, 2 * (int64_t)a->n_k * D + (int64_t)a->n_v * D, false};
    const int rc = cuda_check(be, "delta",
                              act == MM_ACT_K    ? launch_of<MM_ACT_K>(be, form, &l, &p)
                              : act == MM_ACT_32 ? launch_of<MM_ACT_32>(be, form, &l, &p)
                                                 : launch_of<MM_ACT_32M>(be, form, &l, &p));
    if (rc == 0) mm_prepared(be, a->out, nullptr, a->n, &p, act);
    return rc;
}

int cuda_delta_linear(struct kn_backend *kb, const struct kn_delta *a, float *out, const struct kn_weight *w)
{
    struct cuda_backend *be = cuda_of(kb);
    int rc = cuda_delta_check(be, a);
    if (rc) return rc;
    if (a->n == 1 && !a->tree) {
        const int kept = chain_delta(be, a, out, w);
        if (kept) return kept < 0 ? kept : 0;
    }
    rc = chain_delta_alone(be, a, w);
    return rc ? rc : cuda_linear(kb, out, w, a->out, a->n, true);
}
