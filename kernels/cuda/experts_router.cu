/* experts_router.cu - the router of a mixture in one launch: logits, the choice, and the rows' activations
 * for the experts, three small kernels' work that would wait for each other.
 *
 * Grid: a block for every (panel of 16 logits, 256 columns), then one a row that prepares its activations. A
 * warp of the former has 16 x 32 weights in registers, loaded before the wait, and meets all rows; sums of
 * 256 columns go to memory, and the block that comes last adds them in ascending order, norms them and
 * chooses, a warp a row. Weights are float32 and so are all products: a row's logits do not depend on the
 * other rows. Bound: latency; 2 MB of weights are half a microsecond. */
#include "experts.cuh"
#include "prep.cuh"
#include "route.cuh"
#include "unpack.cuh"

#define WARPS 8

struct router_args {
    const uint8_t *w[2]; /* packed F32: of the experts, of the shared one (or NULL) */
    const float *x, *norm;
    float *partial; /* [n][slices][ld]: sums of 16 * panels logits, then of the squares */
    unsigned *count;
    struct kn_route route; /* its logits are written */
    float *logits, *shared_logits;
    float eps;
    int32_t n_in, units, panels, own_panels, slices, ld;
};

struct take_weights {
    float (*w)[8]; /* [hi][4 * step + e] */
    __device__ __forceinline__ void operator()(int hi, int column, const float v[4]) const
    {
#pragma unroll
        for (int e = 0; e < 4; e++) w[hi][column / 16 * 4 + e] = v[e];
    }
};

/* Four columns from k on; 0 past the end. */
DEV void load_four(float v[4], const float *x, int k, int n_in, bool aligned)
{
    if (aligned && k + 3 < n_in) {
        const float4 f = __ldcg((const float4 *)(x + k));
        v[0] = f.x, v[1] = f.y, v[2] = f.z, v[3] = f.w;
        return;
    }
#pragma unroll
    for (int e = 0; e < 4; e++) v[e] = k + e < n_in ? __ldcg(x + k + e) : 0.0f;
}

/* Rows of a panel's 256 columns. */
DEV void logits_block(const router_args &a, int block, float (*red)[64][17])
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, q = lane % 4;
    const int panel = block % a.panels, slice = block / a.panels, unit = slice * WARPS + warp;
    const bool aligned = a.n_in % 4 == 0;
    float w[2][8] = {}, g[8] = {};
    if (unit < a.units) {
        const int own = panel < a.own_panels ? panel : panel - a.own_panels;
        const uint8_t *u =
            (panel < a.own_panels ? a.w[0] : a.w[1]) + ((size_t)own * (size_t)a.units + (size_t)unit) * 2048;
        unpack_unit<KN_F32>(u, lane, take_weights{w});
        load_four(g, a.norm, 32 * unit + 4 * q, a.n_in, aligned);
        load_four(g + 4, a.norm, 32 * unit + 16 + 4 * q, a.n_in, aligned);
    }
    cuda_grid_wait();
    for (int row = 0; row < a.route.n; row++) {
        float v[8] = {}, low = 0.0f, high = 0.0f, squares = 0.0f;
        if (unit < a.units) {
            const float *x = a.x + (size_t)row * (size_t)a.n_in;
            load_four(v, x, 32 * unit + 4 * q, a.n_in, aligned);
            load_four(v + 4, x, 32 * unit + 16 + 4 * q, a.n_in, aligned);
        }
#pragma unroll
        for (int e = 0; e < 8; e++) {
            const float y = __fmul_rn(v[e], g[e]);
            low = __fmaf_rn(y, w[0][e], low);
            high = __fmaf_rn(y, w[1][e], high);
            squares = __fmaf_rn(v[e], v[e], squares);
        }
#pragma unroll
        for (int o = 1; o < 4; o *= 2) {
            low = __fadd_rn(low, __shfl_xor_sync(~0u, low, o));
            high = __fadd_rn(high, __shfl_xor_sync(~0u, high, o));
            squares = __fadd_rn(squares, __shfl_xor_sync(~0u, squares, o));
        }
        if (q == 0) {
            red[warp][row][lane / 4] = low;
            red[warp][row][lane / 4 + 8] = high;
            if (lane == 0) red[warp][row][16] = squares;
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < 17 * a.route.n; i += 32 * WARPS) {
        const int row = i / 17, o = i % 17;
        if (o == 16 && panel) continue;
        float s = 0.0f;
        for (int k = 0; k < WARPS; k++) s = __fadd_rn(s, red[k][row][o]);
        __stcg(a.partial + ((size_t)row * (size_t)a.slices + (size_t)slice) * (size_t)a.ld +
                   (o == 16 ? 16 * a.panels : 16 * panel + o),
               s);
    }
}

DEV float slices_sum(const router_args &a, int row, int at)
{
    const float *p = a.partial + (size_t)row * (size_t)a.slices * (size_t)a.ld + at;
    float s = 0.0f;
#pragma unroll 8
    for (int i = 0; i < a.slices; i++) s = __fadd_rn(s, __ldcg(p + (size_t)i * (size_t)a.ld));
    return s;
}

/* All sums are there: a warp a row. */
template <int PER> DEV void choose_block(const router_args &a)
{
    const int lane = threadIdx.x % 32;
    for (int row = threadIdx.x / 32; row < a.route.n; row += WARPS) {
        const float squares = slices_sum(a, row, 16 * a.panels),
                    r = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(squares, (float)a.n_in), a.eps)));
        float *l = a.logits + (size_t)row * (size_t)a.route.n_expert; /* a lane reads what it wrote */
#pragma unroll
        for (int i = 0; i < PER; i++)
            if (32 * i + lane < a.route.n_expert)
                l[32 * i + lane] = __fmul_rn(slices_sum(a, row, 32 * i + lane), r);
        if (a.shared_logits && lane == 0)
            a.shared_logits[row] = __fmul_rn(slices_sum(a, row, 16 * a.own_panels), r);
        route_row<PER>(a.route, row, a.shared_logits);
    }
}

template <enum mm_act ACT, int PER>
static __global__ void __launch_bounds__(32 * WARPS)
    router_kernel(const __grid_constant__ router_args a, const __grid_constant__ mm_prep p)
{
    __shared__ float red[WARPS][64][17];
    __shared__ float squares[MM_ROW_BLOCKS];
    __shared__ bool last;
    const int blocks = a.panels * a.slices;
    cuda_grid_early();
    if ((int)blockIdx.x >= blocks) {
        const size_t i = blockIdx.x - blocks;
        prepare_row<ACT, WARPS, 1>(p, p.x + i * (size_t)p.n_in,
                                   p.rows + i * (size_t)p.slices * (size_t)p.slice_row, 0,
                                   (p.n_in + 255) / 256, squares);
        return;
    }
    logits_block(a, blockIdx.x, red);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicInc(a.count, (unsigned)blocks - 1) == (unsigned)blocks - 1;
    __syncthreads();
    if (!last) return;
    __threadfence();
    choose_block<PER>(a);
}

template <int PER> static void (*kernel_of(enum mm_act act))(const router_args, const mm_prep)
{
    return act == MM_ACT_K    ? router_kernel<MM_ACT_K, PER>
           : act == MM_ACT_32 ? router_kernel<MM_ACT_32, PER>
                              : router_kernel<MM_ACT_32M, PER>;
}

bool experts_router_fits(const struct cuda_backend *be, const struct kn_mixture *m, enum mm_act act)
{
    const int64_t panels = (m->route.n_expert + 15) / 16 + 1, slices = (m->router->n_in + 255) / 256;
    return (act == MM_ACT_K || act == MM_ACT_32 || act == MM_ACT_32M) && m->route.n <= EXPERTS_ROUTER_ROWS &&
           m->router->type == KN_F32 && (!m->shared_gate || m->shared_gate->type == KN_F32) &&
           (size_t)EXPERTS_ROUTER_ROWS * (size_t)slices * (size_t)(16 * panels + 1) * sizeof(float) <=
               be->mm_partial_bytes;
}

int experts_router(struct cuda_backend *be, const struct kn_mixture *m, enum mm_act act,
                   const struct mm_prep *p)
{
    const struct kn_weight *w = m->router, *s = m->shared_gate;
    struct router_args a = {};
    a.w[0] = (const uint8_t *)w->packed;
    a.w[1] = s ? (const uint8_t *)s->packed : nullptr;
    a.x = m->x;
    a.norm = m->router_norm;
    a.partial = be->mm_partial;
    a.count = be->experts_count;
    a.route = m->route;
    a.route.logits = a.logits = m->logits;
    a.shared_logits = s ? m->shared_logits : nullptr;
    a.eps = m->eps;
    a.n_in = (int32_t)w->n_in;
    a.units = (a.n_in + 31) / 32;
    a.own_panels = (m->route.n_expert + 15) / 16;
    a.panels = a.own_panels + (s ? 1 : 0);
    a.slices = (a.n_in + 255) / 256;
    a.ld = 16 * a.panels + 1;
    const dim3 grid((unsigned)(a.panels * a.slices + m->route.n));
    return cuda_check(be, "mixture",
                      cuda_launch(be, m->route.n_expert <= 256 ? kernel_of<8>(act) : kernel_of<32>(act), grid,
                                  dim3(32 * WARPS), 0, a, *p));
}
