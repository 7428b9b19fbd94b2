/* delta.cuh - what the files of the gated delta net share: a layer as its kernels get it, and where its
 * inputs lie. delta.cu: token by token, for rows that may be rejected, replays and short runs; delta/many.cu:
 * blocks of tokens, for prompts. */
#ifndef DFLASH_CUDA_DELTA_CUH
#define DFLASH_CUDA_DELTA_CUH

#include "../core/math.cuh"
#include "../core/ops.cuh"

struct layer {
    struct kn_delta a;
    struct kn_delta_state s;
    int64_t width;
    bool settled; /* the log has been replayed, whatever *pending still says */
};

/* delta/many.cu. Rows that are final, more than KN_DELTA_LOG, once the log has been replayed. */
int cuda_delta_many(struct cuda_backend *, const struct layer *);
/* delta.cu. 0, or the message of what is wrong with a. */
int cuda_delta_check(struct cuda_backend *, const struct kn_delta *a);
/* delta.cu. Norm and gate of the outputs of rows [from, from + n); with the last of them the convolution's
 * state and the log. early: launched while the kernel before still runs. */
cudaError_t cuda_delta_finish(struct cuda_backend *, const struct layer *, int32_t from, int32_t n,
                              bool early);

#ifdef __CUDACC__
#ifndef DEV
#define DEV static __device__ __forceinline__
#endif

/* The rows pending. The caller promises 0 to KN_DELTA_LOG; nothing beyond the log is read. */
static __device__ __forceinline__ int32_t pending_of(const struct layer &l)
{
    return l.settled ? 0 : min(max(*l.a.pending, 0), KN_DELTA_LOG);
}

/* Is the state to be advanced over all rows; where not, which row of the log is the call's first. */
static __device__ __forceinline__ bool final_of(const struct layer &l, int32_t pending)
{
    return l.a.commit && pending + l.a.n >= l.a.every;
}
static __device__ __forceinline__ int32_t logged_at(const struct layer &l, int32_t pending)
{
    return l.a.commit ? pending : 0;
}
/* What the delta nets of a chain replay a pending row t by (kn_delta.every): as its row of the log, but with
 * decays for alphas, normed keys, and for v what its product with the key is added by. */
static __device__ __forceinline__ float *again_of(const struct kn_delta_state &s, int64_t stride, int32_t t)
{
    return s.log + (KN_DELTA_LOG / 2 + t) * stride;
}

/* The row of the convolution's inputs that token t of the call has; below 0 what went before it. */
static __device__ __forceinline__ const float *input(const struct layer &l, int32_t t, int32_t pending)
{
    if (t < 0) return l.s.conv + (t + l.a.n_conv - 1) * l.width;
    if (t < pending) return l.s.log + t * (l.width + 2 * l.a.n_v);
    return l.a.qkv + (t - pending) * l.width;
}

static __device__ __forceinline__ float silu(float x)
{
    return __fdiv_rn(x, __fadd_rn(1.0f, dev_exp(-x)));
}

/* silu of each, the same bits. A division by itself ends in a branch to its rare cases, so that one waits for
 * the other; these go side by side, and one branch stands behind all of them. */
template <int N> static __device__ __forceinline__ void silu_all(float (&v)[N])
{
    float y[N];
    bool plain = true;
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float x = v[i], d = __fadd_rn(1.0f, dev_exp(-x));
        float r;
        asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(d));
        r = __fmaf_rn(r, __fmaf_rn(-d, r, 1.0f), r);
        float q = __fmul_rn(x, r);
        q = __fmaf_rn(__fmaf_rn(-d, q, x), r, q);
        y[i] = __fmaf_rn(__fmaf_rn(-d, q, x), r, q);
        plain = plain && fabsf(x) > 0x1p-60f && fabsf(x) < 0x1p60f && d < 0x1p60f;
    }
    if (plain) {
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = y[i];
    } else {
#pragma unroll 1
        for (int i = 0; i < N; i++) {
            float x = v[0];
#pragma unroll
            for (int j = 0; j < N - 1; j++) v[j] = v[j + 1];
            v[N - 1] = silu(x); /* all turned round once: no index that is not known */
        }
    }
}

static __device__ __forceinline__ float warp_sum(float x)
{
    for (int i = 16; i; i >>= 1) x = __fadd_rn(x, __shfl_xor_sync(~0u, x, i));
    return x;
}
#endif

#endif
