/* delta_step.cu - a gated delta net and the projection of its outputs, for few rows: state, norm, gate and
 * the rounding for the product in one launch, where delta.cu, its finish and prep.cu would be three that wait
 * for each other.
 *
 * A cluster has two neighbouring value heads, 256 outputs of a row: what is rounded together (prep.cuh). Its
 * eight blocks, 32 rows of a state each, take the tokens through the state as delta.cu's do and leave the
 * outputs in shared memory; a warp a token then gathers 256 of them from the blocks, norms, gates and rounds.
 * The log and the convolution's state, which blocks of other clusters read as well, are written by the last
 * block that has read them: of a key head's, the last of its value heads' blocks.
 *
 * Every value has the bits of the three kernels. Bound: latency, from the last projection to the rounded row.
 */
#include "delta_rows.cuh"
#include "prep.cuh"

#define D 128      /* d_k and d_v that there is code for */
#define CHUNK 32   /* tokens between two meetings of a cluster */
#define TAPS 4     /* n_conv at most */
#define BLOCKS 8   /* of a cluster */
#define QUARTERS 4 /* of a head */

#define COLUMNS (2 * D + ROWS) /* of the convolution that a block needs: a key head's q and k, its own v */

/* Rows of the convolution's inputs, the oldest TAPS - 1 from before the chunk. A thread that has a column
 * walks down it and leaves token t's output in row t, which it needs no more. */
struct tokens {
    float rows[CHUNK + TAPS - 1][COLUMNS];
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
        return rows[t] + 2 * D;
    }
};
struct step_memory {
    struct tokens m;
    float o[CHUNK][ROWS];
    bool last;
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
DEV uint32_t there_of(const void *p, unsigned rank)
{
    uint32_t at;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(at)
                 : "r"((uint32_t)__cvta_generic_to_shared(p)), "r"(rank));
    return at;
}
DEV float there_one(uint32_t at)
{
    float v;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(at) : "memory");
    return v;
}
DEV float4 there_four(uint32_t at)
{
    float4 v;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(at)
                 : "memory");
    return v;
}
DEV void cluster_arrive()
{
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
DEV void cluster_wait()
{
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
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
DEV float convolved(const float4 &w, float x0, float x1, float x2, float x3, int skip)
{
    float s = __fmul_rn(w.w, x3);
    if (skip == 2) s = __fmaf_rn(w.w, x3, __fmul_rn(w.z, x2));
    if (skip == 1) s = __fmaf_rn(w.w, x3, __fmaf_rn(w.z, x2, __fmul_rn(w.y, x1)));
    if (skip == 0) s = __fmaf_rn(w.w, x3, __fmaf_rn(w.z, x2, __fmaf_rn(w.y, x1, __fmul_rn(w.x, x0))));
    return silu(s);
}
/* q and k: a thread a column. v: a thread of one warp a column. */
DEV void convolve_column(struct tokens &m, const float4 &w, int column, int32_t n, int skip)
{
    float x0 = m.rows[0][column], x1 = m.rows[1][column], x2 = m.rows[2][column];
#pragma unroll 2
    for (int t = 0; t < n; t++) {
        const float x3 = m.rows[t + TAPS - 1][column];
        m.rows[t][column] = convolved(w, x0, x1, x2, x3, skip);
        x0 = x1, x1 = x2, x2 = x3;
    }
}

/* A warp: row r of the cluster's two heads, token t of the chunk. */
template <enum mm_act ACT>
DEV void finish_row(const struct layer &l, const mm_prep &p, const struct step_memory &m, int t, int64_t r,
                    const float z[8], const float norm[8])
{
    const struct kn_delta &a = l.a;
    const int lane = threadIdx.x % 32;
    float v[8], rms[2];
    {
        const uint32_t at = there_of(&m.o[t][8 * (lane % 4)], lane / 4);
        const float4 x = there_four(at), y = there_four(at + 16);
        v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w, v[4] = y.x, v[5] = y.y, v[6] = y.z, v[7] = y.w;
    }
    float o[BLOCKS];
#pragma unroll
    for (int j = 0; j < BLOCKS; j++) o[j] = there_one(there_of(&m.o[t][lane], j));
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < QUARTERS; j++) sum = __fmaf_rn(o[QUARTERS * h + j], o[QUARTERS * h + j], sum);
        rms[h] = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(warp_sum(sum), (float)D), a.eps)));
    }
    const float rr = lane < 16 ? rms[0] : rms[1];
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = __fmul_rn(__fmul_rn(__fmul_rn(v[i], rr), norm[i]), silu(z[i]));
    store_block<ACT>(p, p.rows + (size_t)r * (size_t)p.slices * (size_t)p.slice_row, (int)blockIdx.y / 2, v);
}

/* Rows of the log, every `step`th from row i on, of four columns. */
DEV void log_rows(const struct layer &l, int64_t at, int i, int step)
{
    const int64_t stride = l.width + 2 * l.a.n_v;
#pragma unroll 4
    for (; i < l.a.n; i += step)
        __stcg((float4 *)(l.s.log + i * stride + at), __ldcg((const float4 *)(l.a.qkv + i * l.width + at)));
}
/* What this block is the last to read of the log and of the convolution's state: its columns of v, and where
 * it is the last of its key head's blocks, those of q and k and the gates. What the convolution keeps is read
 * before any of the log is written. All threads call. */
DEV void keep_columns(const struct layer &l, const struct columns &c, int32_t pending, bool last)
{
    const struct kn_delta &a = l.a;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, rep = a.n_v / a.n_k;
    const int32_t done = a.commit ? pending + a.n : pending, before = a.n_conv - 1;
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
    if (a.commit) return;
    if (lane < 8) log_rows(l, c.v, warp, THREADS / 32);
    if (!last) return;
    log_rows(l, warp % 2 ? c.k : c.q, warp / 2, THREADS / 64);
    const int kh = blockIdx.y % a.n_k;
#pragma unroll 1
    for (int i = threadIdx.x; i < 2 * rep * a.n; i += THREADS) {
        const int row = i / (2 * rep), g = i % (2 * rep), h = kh + g % rep * a.n_k;
        l.s.log[row * (l.width + 2 * a.n_v) + l.width + (g < rep ? h : a.n_v + h)] =
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
    float z[8], norm[8];
    const struct columns c = columns_of(a, row0);
    const int i = threadIdx.x, skip = TAPS - a.n_conv;
    cuda_grid_early();
    ask_early(l, c, row0);
    const float4 w = taps_of(a, (int64_t)(i / D * a.n_k + blockIdx.y % a.n_k) * D + i % D),
                 w_v = taps_of(a, 2 * (int64_t)a.n_k * D + (int64_t)blockIdx.y * D + row0 + i % 32);
    load_eight(norm, a.norm, 8 * (threadIdx.x % 16), D);
    cuda_grid_wait();
    const int32_t pending = pending_of(l), all = pending + a.n;
    move_state<D, false>(s, state, lane, D);
    for (int32_t t0 = 0; t0 < all; t0 += CHUNK) {
        const int32_t n = min(CHUNK, all - t0);
        const bool end = t0 + n == all;
        if (t0) {
            cluster_arrive(); /* others have read the outputs of the chunk before */
            cluster_wait();
        }
        load_inputs(l, m.m, c, t0, n, pending);
        gates(l, m.m, t0, n, pending);
        __syncthreads();
        convolve_column(m.m, w, i, n, skip);
        __syncthreads();
        if (warp == THREADS / 32 - 1) convolve_column(m.m, w_v, 2 * D + i % 32, n, skip);
        norms<D>(l, m.m, n);
        __syncthreads();
        if (end && threadIdx.x == THREADS - 1) { /* all that this block reads of the log has been read */
            const unsigned blocks = (unsigned)(QUARTERS * (a.n_v / a.n_k));
            __threadfence();
            m.last = atomicInc(count + blockIdx.y % a.n_k, blocks - 1) == blocks - 1;
        }
#pragma unroll 1
        for (int t = 0; t < n; t++) {
            const int32_t r = t0 + t - pending;
            if (r == 0 && pending && !a.commit) move_state<D, true>(s, state, lane, D);
            const float o = step<D>(s, m.m, t, row, lane, r >= 0);
            if (lane == 0) m.o[t][row] = o;
        }
        cluster_arrive();
        /* A block's tokens are every eighth, a warp's every eighth of these. */
        const int first = rank + BLOCKS * warp;
#pragma unroll 1
        for (int t = first, k = 0; k == 0 || t < n; t += BLOCKS * (THREADS / 32), k++) {
            const int64_t r = t0 + t - pending;
            const bool mine = t < n && r >= 0;
            if (mine)
                load_eight(z, a.z + (r * a.n_v + (int64_t)(blockIdx.y & ~1)) * D, 8 * (threadIdx.x % 32),
                           2 * D);
            if (k == 0) cluster_wait();
            if (mine) finish_row<ACT>(l, p, m, t, r, z, norm);
        }
    }
    if (a.commit) move_state<D, true>(s, state, lane, D);
    keep_columns(l, c, pending, m.last);
    cluster_arrive(); /* nobody leaves while another reads its outputs */
    cluster_wait();
}
#endif

template <enum mm_act ACT>
static __global__ void __launch_bounds__(THREADS)
    delta_step(const __grid_constant__ struct layer l, const __grid_constant__ mm_prep p, unsigned *count)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    __shared__ __align__(16) struct step_memory m;
    step_block<ACT>(l, p, count, m);
#endif
}

/* Launch in clusters of two heads' blocks. */
static cudaError_t launch(struct cuda_backend *be,
                          void (*kernel)(const struct layer, const mm_prep, unsigned *),
                          const struct layer *l, const struct mm_prep *p)
{
    cudaLaunchAttribute attr[3];
    cudaLaunchConfig_t config = {};
    be->launches++;
    config.gridDim = dim3(QUARTERS, (unsigned)l->a.n_v);
    config.blockDim = dim3(THREADS);
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
    if (cuda_flush(be)) return cudaErrorLaunchFailure;
    return cudaLaunchKernelEx(&config, kernel, *l, *p, be->delta_count);
}

int cuda_delta_linear(struct kn_backend *kb, const struct kn_delta *a, float *out, const struct kn_weight *w)
{
    struct cuda_backend *be = cuda_of(kb);
    enum mm_act act;
    struct mm_prep p;
    const bool fits = be->cc >= 90 && !be->generic && !delta_tuning.apart && a->n > 0 &&
                      a->n <= KN_DELTA_LOG && a->d_k == D && a->d_v == D && a->n_v % 2 == 0 &&
                      a->n_k <= DELTA_COUNTERS && a->n_conv <= TAPS && w->n_in == (int64_t)a->n_v * D &&
                      mm_preparing(be, w, &p, &act);
    int rc = cuda_delta_check(be, a);
    if (rc) return rc;
    if (!fits) {
        rc = cuda_delta(kb, a);
        return rc ? rc : cuda_linear(kb, out, w, a->out, a->n, true);
    }
    const struct layer l = {*a, *a->state, 2 * (int64_t)a->n_k * D + (int64_t)a->n_v * D, false};
    rc = cuda_check(be, "delta",
                    launch(be,
                           act == MM_ACT_K    ? delta_step<MM_ACT_K>
                           : act == MM_ACT_32 ? delta_step<MM_ACT_32>
                                              : delta_step<MM_ACT_32M>,
                           &l, &p));
    if (rc) return rc;
    mm_prepared(be, a->out, a->n, &p, act);
    return cuda_linear(kb, out, w, a->out, a->n, true);
}
