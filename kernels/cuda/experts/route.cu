/* route.cu - the router of a mixture of experts: one warp a row, its logits in registers.
 *
 * [n, n_expert] in, [n, n_used] out: a few kilobytes, bound by the launch and by n_used rounds of a warp's
 * maximum (route.cuh). */
#include "route.cuh"

#define WARPS 4

template <int PER>
static __global__ void __launch_bounds__(32 * WARPS)
    route_rows(const struct kn_route a, const float *shared_logits)
{
    cuda_grid_start();
    const int row = (int)(blockIdx.x * WARPS + threadIdx.x / 32);
    if (row < a.n) route_row<PER>(a, row, shared_logits);
}

int cuda_route_shared(struct cuda_backend *be, const struct kn_route *a, const float *shared_logits)
{
    if (a->n < 1 || a->n_used < 1 || a->n_used > a->n_expert)
        return cuda_fail(be, KN_EINVAL, "route: %d rows to %d of %d experts", a->n, a->n_used, a->n_expert);
    if (a->n_used > ROUTE_USED || a->n_expert > ROUTE_EXPERTS)
        return cuda_fail(be, KN_ETYPE, "route: %d of %d experts (at most %d of 1024)", a->n_used, a->n_expert,
                         ROUTE_USED);
    void (*kernel)(const struct kn_route, const float *) = a->n_expert <= 128   ? route_rows<4>
                                                           : a->n_expert <= 256 ? route_rows<8>
                                                           : a->n_expert <= 512 ? route_rows<16>
                                                                                : route_rows<32>;
    dim3 grid((unsigned)((a->n + WARPS - 1) / WARPS));
    return cuda_check(be, "route", cuda_launch(be, kernel, grid, dim3(32 * WARPS), 0, *a, shared_logits));
}

int cuda_route(struct kn_backend *kb, const struct kn_route *a)
{
    return cuda_route_shared(cuda_of(kb), a, nullptr);
}
