/* route.cuh - the choice of a row's experts by a warp, its logits in registers: by route.cu, and by what
 * prepares the rows of a mixture (experts_rows.cu). Experts are chosen by logit (see the CPU's route.inc.h),
 * so the same logits choose the same experts on both; the weights differ from the CPU's by the order of the
 * sum over all experts alone. */
#ifndef DFLASH_CUDA_ROUTE_CUH
#define DFLASH_CUDA_ROUTE_CUH

#include "math.cuh"
#include "ops.cuh"

#define ROUTE_USED 32 /* at most: a lane keeps one choice */
#define ROUTE_EXPERTS 1024

/* A warp chooses for a row. Where all rows share an expert (its logits [n]), that is one more, the last: id
 * n_expert, weight sigmoid(logit). PER logits a lane: expert i in lane i % 32; none of the results depends on
 * PER. */
template <int PER>
static __device__ __forceinline__ void route_row(const struct kn_route &a, int row,
                                                 const float *shared_logits)
{
    const int stride = a.n_used + (shared_logits ? 1 : 0);
    const int lane = threadIdx.x % 32;
    const float *l = a.logits + (int64_t)row * a.n_expert;
    float x[PER], top = -INFINITY, sum = 0.0f;
    bool bad = false;
#pragma unroll
    for (int i = 0; i < PER; i++) {
        const int id = 32 * i + lane;
        x[i] = id < a.n_expert ? l[id] : -INFINITY;
        bad |= x[i] != x[i];
        top = fmaxf(top, x[i]);
    }
    for (int i = 16; i; i >>= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, i));
    bad = __any_sync(~0u, bad) || !(__fsub_rn(top, top) == 0.0f);
#pragma unroll
    for (int i = 0; i < PER; i++) sum = __fadd_rn(sum, dev_exp(__fsub_rn(x[i], top)));
    for (int i = 16; i; i >>= 1) sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, i));
    /* Round j takes the best of what comes after round j - 1's in the order of falling logit, then rising id.
     */
    float last = INFINITY, mine = 0.0f;
    int last_id = -1, my_id = 0;
    for (int j = 0; j < a.n_used; j++) {
        float best = -INFINITY;
        int best_id = a.n_expert;
#pragma unroll
        for (int i = 0; i < PER; i++) {
            const int id = 32 * i + lane;
            const bool left = x[i] < last || (x[i] == last && id > last_id);
            if (id < a.n_expert && left && (x[i] > best || best_id == a.n_expert)) best = x[i], best_id = id;
        }
        for (int i = 16; i; i >>= 1) {
            const float y = __shfl_xor_sync(~0u, best, i);
            const int id = __shfl_xor_sync(~0u, best_id, i);
            if (id < a.n_expert && (best_id == a.n_expert || y > best || (y == best && id < best_id)))
                best = y, best_id = id;
        }
        last = best, last_id = best_id;
        if (lane == j) mine = best, my_id = best_id;
    }
    float p = __fdiv_rn(dev_exp(__fsub_rn(mine, top)), sum), chosen = 0.0f;
    for (int j = 0; j < a.n_used; j++) chosen = __fadd_rn(chosen, __shfl_sync(~0u, p, j));
    if (a.renorm) p = __fdiv_rn(p, chosen);
    p = __fmul_rn(p, a.scale);
    if (shared_logits && lane == 0) {
        a.ids[(int64_t)row * stride + a.n_used] = a.n_expert;
        a.weights[(int64_t)row * stride + a.n_used] = dev_sigmoid(shared_logits[row]);
    }
    if (lane >= a.n_used) return;
    if (bad) { /* no distribution: the weights say so, and every output of the row will */
        p = __int_as_float(0x7fc00000);
        my_id = lane;
    } else if (a.expert_scale) {
        p = __fmul_rn(p, a.expert_scale[my_id]);
    }
    a.ids[(int64_t)row * stride + lane] = my_id;
    a.weights[(int64_t)row * stride + lane] = p;
}

#endif
