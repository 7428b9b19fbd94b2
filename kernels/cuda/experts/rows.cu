/* experts/rows.cu - activations of experts' products, and the choice of experts beside them: a small kernel
 * between others, bound by latency.
 *
 * As prep.cu (the function that prepares a row is the same), but for what starts next. Where the choice was
 * made before, what follows may start only when the kernel before is complete, so that it may read the choice
 * before its own wait, find tiles and fill its rings while rows are rounded. Where the choice is made here,
 * by blocks of their own, it may start at once. */
#include "experts.cuh"
#include "../product/prep.cuh"
#include "route.cuh"

#define CHOSEN_HERE                                                                                          \
    64 /* rows up to which the choice is made beside: more would want more registers for longer */

template <enum mm_act ACT, int WARPS>
static __global__ void __launch_bounds__(32 * WARPS, WARPS == 4 ? 4 : 2)
    rows_only(const __grid_constant__ mm_prep a)
{
    __shared__ float squares[MM_ROW_BLOCKS];
    const int first = (int)blockIdx.x * WARPS, blocks = (a.n_in + 255) / 256;
    cuda_grid_wait();
    cuda_grid_early();
    prepare_row<ACT, WARPS>(a, a.x + (size_t)blockIdx.y * (size_t)a.n_in,
                            a.rows + (size_t)blockIdx.y * (size_t)a.slices * (size_t)a.slice_row, first,
                            min(blocks, first + WARPS), squares);
}

struct choice {
    struct kn_route route;
    const float *shared_logits;
    int32_t blocks; /* the first of the grid's rows of blocks */
};
template <enum mm_act ACT, int PER>
static __global__ void __launch_bounds__(512, 1)
    rows_and_choice(const __grid_constant__ mm_prep a, const __grid_constant__ choice c)
{
    __shared__ float squares[MM_ROW_BLOCKS];
    const int first = (int)blockIdx.x * 16, blocks = (a.n_in + 255) / 256;
    cuda_grid_early();
    if ((int)blockIdx.y < c.blocks) {
        const int row = (int)(blockIdx.y * 16 + threadIdx.x / 32);
        cuda_grid_wait();
        if (blockIdx.x == 0 && row < c.route.n) route_row<PER>(c.route, row, c.shared_logits);
        return;
    }
    const size_t i = blockIdx.y - c.blocks;
    prepare_row<ACT, 16>(a, a.x + i * (size_t)a.n_in, a.rows + i * (size_t)a.slices * (size_t)a.slice_row,
                         first, min(blocks, first + 16), squares);
}

template <int WARPS>
static cudaError_t launch_rows(const struct cuda_backend *be, enum mm_act act, const struct mm_prep &p,
                               int32_t n)
{
    const dim3 grid((unsigned)((p.n_in + 256 * WARPS - 1) / (256 * WARPS)), (unsigned)n);
    return cuda_launch(be,
                       act == MM_ACT_K    ? rows_only<MM_ACT_K, WARPS>
                       : act == MM_ACT_32 ? rows_only<MM_ACT_32, WARPS>
                                          : rows_only<MM_ACT_32M, WARPS>,
                       grid, dim3(32 * WARPS), 0, p);
}
template <int PER>
static cudaError_t launch_choice(const struct cuda_backend *be, enum mm_act act, const struct mm_prep &p,
                                 const struct choice &c)
{
    const dim3 grid((unsigned)((p.n_in + 4095) / 4096), (unsigned)(c.route.n + c.blocks));
    return cuda_launch(be,
                       act == MM_ACT_K    ? rows_and_choice<MM_ACT_K, PER>
                       : act == MM_ACT_32 ? rows_and_choice<MM_ACT_32, PER>
                                          : rows_and_choice<MM_ACT_32M, PER>,
                       grid, dim3(512), 0, p, c);
}

int experts_prepare(struct cuda_backend *be, const char *name, enum mm_act act, const struct mm_prep *p,
                    int32_t n, const struct kn_route *route, const float *shared_logits, bool *early)
{
    const bool whole = mm_is_int8(act);
    *early = false;
    if (route && whole && n <= CHOSEN_HERE) {
        const struct choice c = {*route, shared_logits, (n + 15) / 16};
        return cuda_check(be, name,
                          route->n_expert <= 256 ? launch_choice<8>(be, act, *p, c)
                                                 : launch_choice<32>(be, act, *p, c));
    }
    const int rc = route ? cuda_route_shared(be, route, shared_logits) : 0;
    if (rc) return rc;
    *early = whole;
    return cuda_check(be, name,
                      !whole            ? mm_prepare(be, act, p, n, false)
                      : p->n_in <= 1024 ? launch_rows<4>(be, act, *p, n)
                                        : launch_rows<16>(be, act, *p, n));
}
