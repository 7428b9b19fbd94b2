/* route.cuh - the choice of a row's experts by a warp, its logits in registers: by route.cu, and by what
 * prepares the rows of a mixture (experts/rows.cu). Experts are chosen by logit (see the CPU's route.inc.h),
 * so the same logits choose the same experts on both; the weights differ from the CPU's by the order of the
 * sum over all experts alone. */
#ifndef DFLASH_CUDA_ROUTE_CUH
#define DFLASH_CUDA_ROUTE_CUH

#include "../core/math.cuh"
#include "../core/ops.cuh"

#define ROUTE_USED 32 /* at most: a lane keeps one choice */
#define ROUTE_EXPERTS 1024

/* Floats as integers in the same order; 0 is below them all. -0 is 0. */
static __device__ __forceinline__ uint32_t route_key(float x)
{
    const uint32_t u = __float_as_uint(__fadd_rn(x, 0.0f));
    return u >> 31 ? ~u : u | 0x80000000u;
}
static __device__ __forceinline__ float route_value(uint32_t key)
{
    return __uint_as_float(key >> 31 ? key & 0x7fffffffu : ~key);
}

/* What a warp has chosen for a row: lane j < n_used the j-th of it. */
struct route_pick {
    float top, mine; /* the largest logit; this lane's */
    int id;
    bool bad; /* no distribution */
};
/* x: PER logits a lane, expert i in lane i % 32, -Inf where there is none; none of the results depends on
 * PER. */
/* known(j, id): the warp calls it when the j-th is known. */
template <int PER, class F>
static __device__ __forceinline__ struct route_pick route_choose(const struct kn_route &a, const float x[PER],
                                                                 F known)
{
    const int lane = threadIdx.x % 32;
    struct route_pick c = {-INFINITY, 0.0f, 0, false};
    uint32_t key[PER];
#pragma unroll
    for (int i = 0; i < PER; i++) {
        c.bad |= x[i] != x[i];
        c.top = fmaxf(c.top, x[i]);
        key[i] = 32 * i + lane < a.n_expert ? route_key(x[i]) : 0;
    }
    for (int i = 16; i; i >>= 1) c.top = fmaxf(c.top, __shfl_xor_sync(~0u, c.top, i));
    c.bad = __any_sync(~0u, c.bad) || !(__fsub_rn(c.top, c.top) == 0.0f);
    /* Round j takes the largest of those left, of equal ones the lowest id. */
#pragma unroll 1
    for (int j = 0; j < a.n_used; j++) {
        uint32_t best = 0, id = ~0u;
#pragma unroll
        for (int i = 0; i < PER; i++) best = max(best, key[i]);
        best = __reduce_max_sync(~0u, best);
#pragma unroll
        for (int i = PER - 1; i >= 0; i--)
            if (key[i] == best) id = 32 * i + lane;
        id = __reduce_min_sync(~0u, id);
#pragma unroll
        for (int i = 0; i < PER; i++)
            if (32 * i + lane == (int)id) key[i] = 0;
        if (lane == j) c.mine = route_value(best), c.id = (int)id;
        known(j, c.bad ? j : (int)id);
    }
    if (c.bad) c.id = lane;
    return c;
}
template <int PER>
static __device__ __forceinline__ struct route_pick route_choose(const struct kn_route &a, const float x[PER])
{
    return route_choose<PER>(a, x, [](int, int) {});
}
/* Their weights, to ids and weights [n_used], or one more: where all rows share an expert, that is the last,
 * id n_expert, weight sigmoid(*shared_logit) (NULL: none). */
template <int PER>
static __device__ __forceinline__ void route_weigh(const struct kn_route &a, const struct route_pick &c,
                                                   const float x[PER], const float *shared_logit,
                                                   int32_t *ids, float *weights)
{
    const int lane = threadIdx.x % 32;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < PER; i++) sum = __fadd_rn(sum, dev_exp(__fsub_rn(x[i], c.top)));
    for (int i = 16; i; i >>= 1) sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, i));
    float p = __fdiv_rn(dev_exp(__fsub_rn(c.mine, c.top)), sum), chosen = 0.0f;
#pragma unroll 1
    for (int j = 0; j < a.n_used; j++) chosen = __fadd_rn(chosen, __shfl_sync(~0u, p, j));
    if (a.renorm) p = __fdiv_rn(p, chosen);
    p = __fmul_rn(p, a.scale);
    if (shared_logit && lane == 0) {
        ids[a.n_used] = a.n_expert;
        weights[a.n_used] = dev_sigmoid(*shared_logit);
    }
    if (lane >= a.n_used) return;
    if (c.bad) /* the weights say so, and every output of the row will */
        p = __int_as_float(0x7fc00000);
    else if (a.expert_scale)
        p = __fmul_rn(p, a.expert_scale[c.id]);
    ids[lane] = c.id;
    weights[lane] = p;
}
/* The same from logits l and shared_logit in memory. */
template <int PER>
static __device__ __forceinline__ void route_logits(const struct kn_route &a, const float *l,
                                                    const float *shared_logit, int32_t *ids, float *weights)
{
    const int lane = threadIdx.x % 32;
    float x[PER];
#pragma unroll
    for (int i = 0; i < PER; i++) x[i] = 32 * i + lane < a.n_expert ? __ldcg(l + 32 * i + lane) : -INFINITY;
    const float shared = shared_logit ? __ldcg(shared_logit) : 0.0f;
    route_weigh<PER>(a, route_choose<PER>(a, x), x, shared_logit ? &shared : nullptr, ids, weights);
}
/* The same of a row of a, to its ids and weights; shared_logits [n]. */
template <int PER>
static __device__ __forceinline__ void route_row(const struct kn_route &a, int row,
                                                 const float *shared_logits)
{
    const int64_t at = (int64_t)row * (a.n_used + (shared_logits ? 1 : 0));
    route_logits<PER>(a, a.logits + (int64_t)row * a.n_expert, shared_logits ? shared_logits + row : nullptr,
                      a.ids + at, a.weights + at);
}

#endif
