/* route.cu - the router of a mixture of experts: one warp a row, its logits in registers.
 *
 * [n, n_expert] in, [n, n_used] out: a few kilobytes, bound by the launch and by n_used rounds of a warp's
 * maximum. Experts are chosen by logit (see the CPU's route.inc.h), so the same logits choose the same
 * experts on both; the weights differ from the CPU's by the order of the sum over all experts alone. */
#include "math.cuh"
#include "ops.cuh"

#define WARPS 4
#define USED_MAX 32 /* a lane keeps one choice */

/* PER logits a lane: expert i in lane i % 32. */
template <int PER> static __global__ void __launch_bounds__(32 * WARPS) route_rows(const struct kn_route a)
{
    cuda_grid_start();
    const int lane = threadIdx.x % 32, row = (int)(blockIdx.x * WARPS + threadIdx.x / 32);
    if (row >= a.n) return;
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
    if (lane >= a.n_used) return;
    if (bad) { /* no distribution: the weights say so, and every output of the row will */
        p = __int_as_float(0x7fc00000);
        my_id = lane;
    } else if (a.expert_scale) {
        p = __fmul_rn(p, a.expert_scale[my_id]);
    }
    a.ids[(int64_t)row * a.n_used + lane] = my_id;
    a.weights[(int64_t)row * a.n_used + lane] = p;
}

int cuda_route(struct kn_backend *kb, const struct kn_route *a)
{
    struct cuda_backend *be = cuda_of(kb);
    if (a->n < 1 || a->n_used < 1 || a->n_used > a->n_expert)
        return cuda_fail(be, KN_EINVAL, "route: %d rows to %d of %d experts", a->n, a->n_used, a->n_expert);
    if (a->n_used > USED_MAX || a->n_expert > 1024)
        return cuda_fail(be, KN_ETYPE, "route: %d of %d experts (at most %d of 1024)", a->n_used, a->n_expert,
                         USED_MAX);
    void (*kernel)(const struct kn_route) = a->n_expert <= 128   ? route_rows<4>
                                            : a->n_expert <= 256 ? route_rows<8>
                                            : a->n_expert <= 512 ? route_rows<16>
                                                                 : route_rows<32>;
    dim3 grid((unsigned)((a->n + WARPS - 1) / WARPS));
    return cuda_check(be, "route", cuda_launch(be, kernel, grid, dim3(32 * WARPS), 0, *a));
}
