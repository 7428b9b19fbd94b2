/* experts_router.cu - the router's logits of a mixture, and the rows' activations for the experts, in one
 * launch: two small kernels' work that would wait for each other. The choice is made by the experts' own
 * blocks, or by route.cu.
 *
 * Grid: a cluster for every panel of 16 logits, a block for 512 columns of it, then a cluster's worth of
 * blocks for every so many rows' activations. A warp of the former has 16 x 32 weights in registers, loaded
 * before the wait, and meets all rows, ROWS at a time; a block adds its warps' sums, 256 columns together,
 * and the blocks of a cluster add each other's through their shared memory, in ascending order, a share of
 * the logits each, and norm them. Weights are float32 and so are all products: a row's logits do not depend
 * on the other rows. Bound: latency; 2 MB of weights are half a microsecond. */
#include "experts.cuh"
#include "prep.cuh"
#include "unpack.cuh"

#define WARPS 16 /* two slices of 256 columns */
#define SLICES 2
#define ROWS 8
#define CLUSTER 8 /* blocks at most: 4,096 columns */

struct router_args {
    const uint8_t *w[2]; /* packed F32: of the experts, of the shared one (or NULL) */
    const float *x, *norm;
    float *logits, *shared_logits; /* [n, n_expert], [n] */
    float eps;
    int32_t n, n_in, n_expert, units, panels, own_panels, slices;
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

struct router_memory {
    float red[WARPS][ROWS][17]; /* of a warp: 16 logits and the squares */
    float part[EXPERTS_ROUTER_ROWS][SLICES][17];
    float squares[MM_ROW_BLOCKS];
};

/* Sums of this block's columns for all rows, to m.part. */
DEV void block_sums(const router_args &a, int panel, int rank, struct router_memory &m)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, q = lane % 4, unit = rank * WARPS + warp;
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
    for (int row0 = 0; row0 < a.n; row0 += ROWS) {
        float v[ROWS][8] = {};
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            if (unit < a.units && row0 + r < a.n) {
                const float *x = a.x + (size_t)(row0 + r) * (size_t)a.n_in;
                load_four(v[r], x, 32 * unit + 4 * q, a.n_in, aligned);
                load_four(v[r] + 4, x, 32 * unit + 16 + 4 * q, a.n_in, aligned);
            }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float low = 0.0f, high = 0.0f, squares = 0.0f;
            if (row0 + r >= a.n) break;
#pragma unroll
            for (int e = 0; e < 8; e++) {
                const float y = __fmul_rn(v[r][e], g[e]);
                low = __fmaf_rn(y, w[0][e], low);
                high = __fmaf_rn(y, w[1][e], high);
                squares = __fmaf_rn(v[r][e], v[r][e], squares);
            }
#pragma unroll
            for (int o = 1; o < 4; o *= 2) {
                low = __fadd_rn(low, __shfl_xor_sync(~0u, low, o));
                high = __fadd_rn(high, __shfl_xor_sync(~0u, high, o));
                squares = __fadd_rn(squares, __shfl_xor_sync(~0u, squares, o));
            }
            if (q == 0) {
                m.red[warp][r][lane / 4] = low;
                m.red[warp][r][lane / 4 + 8] = high;
                if (lane == 0) m.red[warp][r][16] = squares;
            }
        }
        __syncthreads();
        for (int i = threadIdx.x; i < 17 * ROWS * SLICES; i += 32 * WARPS) {
            const int o = i % 17, r = i / 17 % ROWS, slice = i / (17 * ROWS);
            if (row0 + r >= a.n) continue;
            float s = 0.0f;
            for (int k = 0; k < WARPS / SLICES; k++)
                s = __fadd_rn(s, m.red[slice * (WARPS / SLICES) + k][r][o]);
            m.part[row0 + r][slice][o] = s;
        }
        __syncthreads();
    }
}

/* A float in the shared memory of block `rank` of the cluster. */
DEV float there(const float *p, int rank)
{
    float v = 0.0f;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("{\n.reg .u32 at;\nmapa.shared::cluster.u32 at, %1, %2;\nld.shared::cluster.f32 %0, [at];\n}"
                 : "=f"(v)
                 : "r"((uint32_t)__cvta_generic_to_shared(p)), "r"(rank)
                 : "memory");
#endif
    return v;
}
/* All slices' sum of an output of a row. */
DEV float slices_sum(const router_args &a, const struct router_memory &m, int row, int o)
{
    float s = 0.0f;
#pragma unroll 8
    for (int i = 0; i < a.slices; i++) s = __fadd_rn(s, there(&m.part[row][i % SLICES][o], i / SLICES));
    return s;
}

/* One cluster's meeting. */
DEV void meet()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;\n barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
#endif
}

template <enum mm_act ACT>
static __global__ void __launch_bounds__(32 * WARPS)
    router_kernel(const __grid_constant__ router_args a, const __grid_constant__ mm_prep p)
{
    __shared__ struct router_memory m;
    const int blocks = gridDim.x, rank = blockIdx.x, panel = blockIdx.y;
    cuda_grid_early();
    if (panel >= a.panels) { /* rows */
        const int row = (panel - a.panels) * blocks + rank;
        const size_t i = (size_t)row;
        if (row >= a.n) return;
        prepare_row<ACT, WARPS, 1>(p, p.x + i * (size_t)p.n_in,
                                   p.rows + i * (size_t)p.slices * (size_t)p.slice_row, 0,
                                   (p.n_in + 255) / 256, m.squares);
        return;
    }
    block_sums(a, panel, rank, m);
    meet();
    for (int i = (int)threadIdx.x + 32 * WARPS * rank; i < 16 * a.n; i += 32 * WARPS * blocks) {
        const int row = i / 16, o = 16 * panel + i % 16;
        const bool own = panel < a.own_panels;
        if (own ? o >= a.n_expert : i % 16 > 0) continue;
        const float squares = slices_sum(a, m, row, 16),
                    r = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(squares, (float)a.n_in), a.eps))),
                    y = __fmul_rn(slices_sum(a, m, row, i % 16), r);
        if (own)
            a.logits[(size_t)row * (size_t)a.n_expert + o] = y;
        else
            a.shared_logits[row] = y;
    }
    meet(); /* nobody leaves while another reads its sums */
}

bool experts_router_fits(const struct cuda_backend *be, const struct kn_mixture *m, enum mm_act act)
{
    return be->cc >= 90 && !be->generic && (act == MM_ACT_K || act == MM_ACT_32 || act == MM_ACT_32M) &&
           m->route.n <= EXPERTS_ROUTER_ROWS && m->router->n_in <= 32 * WARPS * CLUSTER &&
           m->router->type == KN_F32 && (!m->shared_gate || m->shared_gate->type == KN_F32);
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
    a.logits = m->logits;
    a.shared_logits = s ? m->shared_logits : nullptr;
    a.eps = m->eps;
    a.n = m->route.n;
    a.n_in = (int32_t)w->n_in;
    a.n_expert = m->route.n_expert;
    a.units = (a.n_in + 31) / 32;
    a.own_panels = (a.n_expert + 15) / 16;
    a.panels = a.own_panels + (s ? 1 : 0);
    a.slices = (a.n_in + 255) / 256;
    const int32_t blocks = (a.slices + SLICES - 1) / SLICES;
    cudaLaunchAttribute attr[3];
    cudaLaunchConfig_t config = {};
    be->launches++;
    config.gridDim = dim3((unsigned)blocks, (unsigned)(a.panels + (a.n + blocks - 1) / blocks));
    config.blockDim = dim3(32 * WARPS);
    config.stream = be->stream;
    attr[0].id = cudaLaunchAttributeClusterDimension;
    attr[0].val.clusterDim.x = (unsigned)blocks;
    attr[0].val.clusterDim.y = attr[0].val.clusterDim.z = 1;
    attr[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attr[1].val.programmaticStreamSerializationAllowed = 1;
    attr[2].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
    attr[2].val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
    config.attrs = attr;
    config.numAttrs = 3;
    return cuda_check(be, "mixture",
                      cudaLaunchKernelEx(&config,
                                         act == MM_ACT_K    ? router_kernel<MM_ACT_K>
                                         : act == MM_ACT_32 ? router_kernel<MM_ACT_32>
                                                            : router_kernel<MM_ACT_32M>,
                                         a, *p));
}
