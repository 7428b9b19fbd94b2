/* delta_step.cu - a gated delta net and the projection of its outputs, for few rows: state, norm, gate and
 * the rounding for the product in one launch, where delta.cu, its finish and prep.cu would be three that wait
 * for each other.
 *
 * A cluster has two neighbouring value heads, 256 outputs of a row: what is rounded together (prep.cuh). Its
 * eight blocks, 32 rows of a state each, take the tokens through the state as delta.cu's do; a token's
 * outputs go straight to the block of the cluster that has it, where a warp norms, gates and rounds 256 of
 * them. The log and the convolution's state, which blocks of other clusters read as well, are written by the
 * last block that has read them: of a key head's, the last of its value heads' blocks.
 *
 * One row has a kernel of its own (delta_one.cuh).
 *
 * Every value has the bits of the three kernels. Bound: latency, from the last projection to the rounded row.
 */
#include "chain.cuh"
#include "cluster.cuh"
#include "delta_rows.cuh"
#include "experts_hand.cuh"
#include "prep.cuh"

#define D 128      /* d_k and d_v that there is code for */
#define CHUNK 32   /* tokens between two meetings of a cluster */
#define TAPS 4     /* n_conv at most */
#define BLOCKS 8   /* of a cluster */
#define QUARTERS 4 /* of a head */

#define COLUMNS (2 * D + ROWS) /* of the convolution that a block needs: a key head's q and k, its own v */

/* Rows of the convolution's inputs, the oldest TAPS - 1 from before the chunk. A thread that has a column of
 * q or k walks down it and leaves token t's output in row t, which it needs no more; those of v stand apart.
 */
struct tokens {
    float rows[CHUNK + TAPS - 1][COLUMNS];
    float v[CHUNK][ROWS];
    float decay[CHUNK], beta[CHUNK], kq[CHUNK];
    __device__ __forceinline__ float *q_of(int t)
    {
        return rows[t];
    }
    __device__ __forceinline__ float *k_of(int t)
    {
        return rows[t] + D;
    }
    __device__ __forceinline__ float *v_of(int t)
    {
        return v[t];
    }
};
#define MINE (CHUNK / BLOCKS) /* tokens of a chunk that a block finishes: every eighth */
struct step_memory {
    struct tokens m;
    __align__(16) float o[MINE][BLOCKS * ROWS]; /* their outputs, from all blocks of the cluster */
    uint64_t come[MINE];                        /* count the bytes of each */
    bool last;
};

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

/* Rows of inputs from token t0 - (n_conv - 1) on, a warp a row; with fewer taps than TAPS the rows before are
 * zeros. */
DEV void load_inputs(const struct layer &l, struct tokens &m, const struct columns &c, int32_t t0, int32_t n,
                     int32_t pending)
{
    const int lane = threadIdx.x % 32, before = l.a.n_conv - 1;
#pragma unroll 2
    for (int i = threadIdx.x / 32; i < n + TAPS - 1; i += THREADS / 32) {
        const int32_t t = t0 + i - (TAPS - 1);
        const float4 zero = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        float4 q = zero, k = zero, v = zero;
        if (t >= t0 - before) {
            const float *row = input(l, t, pending);
            q = __ldcg((const float4 *)(row + c.q));
            k = __ldcg((const float4 *)(row + c.k));
            if (lane < 8) v = __ldcg((const float4 *)(row + c.v));
        }
        ((float4 *)m.rows[i])[lane] = q;
        ((float4 *)m.rows[i])[32 + lane] = k;
        if (lane < 8) ((float4 *)m.rows[i])[64 + lane] = v;
    }
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
/* A thread has a column of q or k and walks down it, then one of v for an eighth of the tokens, by the same
 * code (which is fetched once), two tokens at a time. */
DEV void convolve_columns(struct tokens &m, const float4 &w, const float4 &w_v, int32_t n, int skip)
{
    const int i = threadIdx.x, each = (n + THREADS / 32 - 1) / (THREADS / 32);
#pragma unroll 1
    for (int pass = 0; pass < 2; pass++) {
        const int column = pass ? 2 * D + i % 32 : i, from = pass ? i / 32 * each : 0,
                  to = pass ? min(from + each, n) : n, stride = pass ? ROWS : COLUMNS;
        const float4 taps = pass ? w_v : w;
        float *out = pass ? &m.v[from][i % 32] : &m.rows[0][i];
        const float *in = &m.rows[from][column];
        if (from >= to) continue;
        float x[TAPS + 1] = {in[0], in[COLUMNS], in[2 * COLUMNS]};
#pragma unroll 1
        for (int t = from; t < to; t += 2) {
            const bool two = t + 1 < to;
            float y[2];
            in += 2 * COLUMNS;
            x[3] = in[COLUMNS];
            x[4] = two ? in[2 * COLUMNS] : 0.0f;
            y[0] = convolved(taps, x, skip);
            y[1] = two ? convolved(taps, x + 1, skip) : 1.0f;
            silu_all(y);
            out[0] = y[0];
            if (two) out[stride] = y[1];
            out += 2 * stride;
            x[0] = x[2], x[1] = x[3], x[2] = x[4];
        }
    }
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
    store_block<ACT>(p, p.rows + (size_t)r * (size_t)p.slices * (size_t)p.slice_row, (int)blockIdx.y / 2, v, (int)r);
}

/* Rows of the log, from row `first` on, every `step`th of the call from row i on, of four columns. */
DEV void log_rows(const struct layer &l, int64_t at, int32_t first, int i, int step)
{
    const int64_t stride = l.width + 2 * l.a.n_v;
#pragma unroll 4
    for (; i < l.a.n; i += step)
        __stcg((float4 *)(l.s.log + (first + i) * stride + at), __ldcg((const float4 *)(l.a.qkv + i * l.width + at)));
}
/* What this block is the last to read of the log and of the convolution's state: its columns of v, and where
 * it is the last of its key head's blocks, those of q and k and the gates. What the convolution keeps is read
 * before any of the log is written. All threads call. */
DEV void keep_columns(const struct layer &l, const struct columns &c, int32_t pending, bool last)
{
    const struct kn_delta &a = l.a;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, rep = a.n_v / a.n_k;
    const bool final = final_of(l, pending);
    const int32_t done = final ? pending + a.n : a.commit ? 0 : pending, before = a.n_conv - 1,
                  first = logged_at(l, pending);
    const bool mine = done && (warp == 0 ? lane < 8 : last && warp < 3);
    const int64_t at = warp == 0 ? c.v : warp == 1 ? c.q : c.k;
    float4 x[TAPS - 1];
    if (mine)
#pragma unroll
        for (int j = 0; j < TAPS - 1; j++)
            if (j < before) x[j] = __ldcg((const float4 *)(input(l, done - before + j, pending) + at));
    __syncthreads();
    if (mine)
#pragma unroll
        for (int j = 0; j < TAPS - 1; j++)
            if (j < before) __stcg((float4 *)(l.s.conv + j * l.width + at), x[j]);
    if (final) return;
    if (lane < 8) log_rows(l, c.v, first, warp, THREADS / 32);
    if (!last) return;
    log_rows(l, warp % 2 ? c.k : c.q, first, warp / 2, THREADS / 64);
    const int kh = blockIdx.y % a.n_k;
#pragma unroll 1
    for (int i = threadIdx.x; i < 2 * rep * a.n; i += THREADS) {
        const int row = i / (2 * rep), g = i % (2 * rep), h = kh + g % rep * a.n_k;
        l.s.log[(first + row) * (l.width + 2 * a.n_v) + l.width + (g < rep ? h : a.n_v + h)] =
            __ldcg((g < rep ? a.alpha : a.beta) + (int64_t)row * a.n_v + h);
    }
}

template <enum mm_act ACT>
DEV void step_block(const struct layer &l, const mm_prep &p, unsigned *count, struct step_memory &m)
{
    const struct kn_delta &a = l.a;
    const int lane = threadIdx.x % LANES, row = threadIdx.x / LANES, row0 = (int)blockIdx.x * ROWS,
              warp = threadIdx.x / 32, rank = (int)(blockIdx.x + QUARTERS * (blockIdx.y % 2));
    float *state = l.s.s + ((int64_t)blockIdx.y * D + row0 + row) * D;
    __align__(16) float s[D / LANES];
    float norm[8];
    const struct columns c = columns_of(a, row0);
    const int i = threadIdx.x, skip = TAPS - a.n_conv;
    const unsigned come = shared_at(m.come), to = shared_at(&m.o[0][rank * ROWS + row]);
    unsigned turn = 0; /* of the warp's barrier */
    cuda_grid_early();
    if (i == 0)
        for (int j = 0; j < MINE; j++) cluster_bar_init(come + 8 * j);
    cluster_arrive();
    ask_early(l, c, row0);
    const float4 w = taps_of(a, (int64_t)(i / D * a.n_k + blockIdx.y % a.n_k) * D + i % D),
                 w_v = taps_of(a, 2 * (int64_t)a.n_k * D + (int64_t)blockIdx.y * D + row0 + i % 32);
    load_eight(norm, a.norm, 8 * (threadIdx.x % 16), D);
    cuda_grid_wait();
    const int32_t pending = pending_of(l), all = pending + a.n;
    move_state<D, false>(s, state, lane, D);
    for (int32_t t0 = 0; t0 < all; t0 += CHUNK) {
        const int32_t n = min(CHUNK, all - t0);
        if (t0) { /* the chunk before has been finished: the place of its outputs is free, and here that of
                     its inputs */
            cluster_arrive();
            __syncthreads();
        }
        const struct gate_inputs g = gate_inputs_of(l, t0, n, pending);
        load_inputs(l, m.m, c, t0, n, pending);
        __syncthreads();
        convolve_columns(m.m, w, w_v, n, skip);
        __syncthreads();
        gates(l, m.m, g, n);
        norms<D>(l, m.m, n);
        __syncthreads();
        if (t0 + n == all && i == THREADS - 1) { /* all that this block reads of the log has been read */
            const unsigned blocks = (unsigned)(QUARTERS * (a.n_v / a.n_k));
            __threadfence();
            m.last = atomicInc(count + blockIdx.y % a.n_k, blocks - 1) == blocks - 1;
        }
        const int mine = rank + BLOCKS * warp; /* the token that this warp finishes */
        const int64_t r = t0 + mine - pending;
        const bool finishes = warp < MINE && mine < n && r >= 0;
        if (finishes && i % 32 == 0) cluster_bar_expect(come + 8 * warp, BLOCKS * ROWS * 4);
        cluster_wait(); /* all have barriers */
#pragma unroll 1
        for (int t = 0; t < n; t++) {
            const int32_t rt = t0 + t - pending;
            if (rt == 0 && pending && !a.commit) move_state<D, true>(s, state, lane, D);
            const float o = step<D>(s, m.m, t, row, lane, rt >= 0);
            if (lane == 0 && rt >= 0)
                cluster_store(cluster_at(to + t / BLOCKS * (BLOCKS * ROWS * 4), t % BLOCKS), o,
                              cluster_at(come + t / BLOCKS * 8, t % BLOCKS));
        }
        if (finishes) {
            float gate[8];
            load_eight(gate, a.z + (r * a.n_v + (int64_t)(blockIdx.y & ~1)) * D, 8 * (threadIdx.x % 32),
                       2 * D);
            silu_all(gate);
            cluster_bar_wait(come + 8 * warp, turn);
            turn ^= 1;
            finish_row<ACT>(l, p, m.o[warp], r, gate, norm);
        }
    }
    __syncthreads(); /* m.last */
    if (final_of(l, pending)) move_state<D, true>(s, state, lane, D);
    keep_columns(l, c, pending, m.last);
}
#include "delta_one.cuh"
#endif

template <enum mm_act ACT>
static __global__ void __launch_bounds__(THREADS, 2)
    delta_step(const __grid_constant__ struct layer l, const __grid_constant__ mm_prep p, unsigned *count,
               const struct experts_hand)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    __shared__ __align__(16) struct step_memory m;
    step_block<ACT>(l, p, count, m);
#endif
}

/* The same for one row: delta_one.cuh. */
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

/* Launch in clusters of two heads' blocks. */
static cudaError_t launch(struct cuda_backend *be,
                          void (*kernel)(const struct layer, const mm_prep, unsigned *, const struct experts_hand),
                          int threads, const struct layer *l, const struct mm_prep *p, const struct experts_hand &hand)
{
    cudaLaunchAttribute attr[3];
    cudaLaunchConfig_t config = {};
    if (cuda_flush(be)) return cudaErrorLaunchFailure;
    be->launches++;
    config.gridDim = dim3(QUARTERS, (unsigned)l->a.n_v);
    config.blockDim = dim3((unsigned)threads);
    config.stream = be->stream;
    attr[0].id = cudaLaunchAttributeClusterDimension;
    attr[0].val.clusterDim.x = QUARTERS;
    attr[0].val.clusterDim.y = BLOCKS / QUARTERS;
    attr[0].val.clusterDim.z = 1;
    attr[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attr[1].val.programmaticStreamSerializationAllowed = 1;
    attr[2].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
    attr[2].val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
    config.attrs = attr;
    config.numAttrs = 3;
    return cudaLaunchKernelEx(&config, kernel, *l, *p, be->delta_count, hand);
}
template <enum mm_act ACT>
static cudaError_t launch_of(struct cuda_backend *be, const struct layer *l, const struct mm_prep *p)
{
    const bool one = l->a.n == 1 && l->a.n_conv == TAPS && (uintptr_t)l->a.conv % 16 == 0;
    if (cuda_flush(be)) return cudaErrorLaunchFailure; /* the launch's number is the next */
    const struct experts_hand hand = experts_hand(be, one && ACT == MM_ACT_K ? (int64_t)l->a.n_v * D : 0);
    const cudaError_t err = launch(be, one ? delta_one<ACT> : delta_step<ACT>, one ? THREADS + 32 : THREADS, l, p, hand);
    if (!err && hand.words) experts_handed(be);
    return err;
}

int chain_delta_alone(struct cuda_backend *be, const struct kn_delta *a, const struct kn_weight *w)
{
    enum mm_act act;
    struct mm_prep p;
    const bool fits = be->cc >= 90 && !be->generic && !delta_tuning.apart && a->n > 0 &&
                      a->n <= KN_DELTA_LOG && a->d_k == D && a->d_v == D && a->n_v % 2 == 0 &&
                      a->n_k <= DELTA_COUNTERS && a->n_conv <= TAPS && w->n_in == (int64_t)a->n_v * D &&
                      mm_preparing(be, w, a->n, &p, &act);
    if (!fits) return cuda_delta((struct kn_backend *)be, a);
    const struct layer l = {*a, *a->state, 2 * (int64_t)a->n_k * D + (int64_t)a->n_v * D, false};
    const int rc = cuda_check(be, "delta",
                              act == MM_ACT_K    ? launch_of<MM_ACT_K>(be, &l, &p)
                              : act == MM_ACT_32 ? launch_of<MM_ACT_32>(be, &l, &p)
                                                 : launch_of<MM_ACT_32M>(be, &l, &p));
    if (rc == 0) mm_prepared(be, a->out, nullptr, a->n, &p, act);
    return rc;
}

int cuda_delta_linear(struct kn_backend *kb, const struct kn_delta *a, float *out, const struct kn_weight *w)
{
    struct cuda_backend *be = cuda_of(kb);
    int rc = cuda_delta_check(be, a);
    if (rc) return rc;
    if (a->n == 1) {
        const int kept = chain_delta(be, a, out, w);
        if (kept) return kept < 0 ? kept : 0;
    }
    rc = chain_delta_alone(be, a, w);
    return rc ? rc : cuda_linear(kb, out, w, a->out, a->n, true);
}
