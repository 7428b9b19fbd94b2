/* experts/router.cu - the router of a mixture of up to EXPERTS_ROUTER_ROWS rows, the choice of their experts,
 * and their activations for the experts, in one launch: small kernels' work that would wait for each other.
 *
 * Grid: blocks that make sums, a *task* (16 logits' 256 columns of all rows) each or a few in turn; then a
 * block a row that rounds it. A warp of the former has 16 x 32 weights in registers, loaded before the wait;
 * rows, times the norm's weights, pass through shared memory 16 at a time. A task's sums go to whoever
 * chooses for the row as words {value, tag} (tagged.cuh). The first blocks choose, a row each: slices of 256
 * columns are added in ascending order, normed, and a warp chooses. Nobody whom others wait for waits itself,
 * and all blocks are resident. Weights are float32 and so are all products: a row's logits do not depend on
 * the other rows. Bound: latency; 2 MB of weights are half a microsecond. */
#include "experts.cuh"
#include "../core/patience.cuh"
#include "../product/prep.cuh"
#include "route.cuh"
#include "../core/tagged.cuh"
#include "../product/unpack.cuh"

#define WARPS 16
#define ROWS 16 /* at a time: a warp reads one */
#define UNITS 8 /* of 32 columns, a task */

struct router_args {
    const uint8_t *w[2]; /* packed F32: of the experts, of the shared one (or NULL) */
    const float *x, *norm;
    float *logits, *shared_logits; /* [n, n_expert], [n] */
    struct kn_route route;
    unsigned long long *values; /* {value, tag}: [n][slices][stride]: logits in panels' order, then squares */
    unsigned *tag;
    float eps;
    int32_t n, n_in, units, own_panels, slices, tasks, blocks, stride;
};

struct take_weights {
    float (*w)[8]; /* [hi][4 * step + e] */
    __device__ __forceinline__ void operator()(int hi, int column, const float v[4]) const
    {
#pragma unroll
        for (int e = 0; e < 4; e++) w[hi][column / 16 * 4 + e] = v[e];
    }
};

struct router_memory {
    float row[ROWS][32 * UNITS]; /* times the norm's weights */
    float sums[UNITS][ROWS][16]; /* of a warp */
    float logits[ROUTE_EXPERTS];
    float shared;
    unsigned tag;
};

DEV float add_quarters(float v)
{
    v = __fadd_rn(v, __shfl_xor_sync(~0u, v, 1));
    return __fadd_rn(v, __shfl_xor_sync(~0u, v, 2));
}

/* Sums of a task's columns for all rows, to whoever chooses. first: nothing has waited yet. */
DEV void router_sums(const router_args &a, struct router_memory &m, int task, bool first)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, q = lane % 4, panel = task / a.slices,
              slice = task - panel * a.slices;
    const int unit = UNITS * slice + warp % UNITS, mine = UNITS * slice + lane / 4, k = 32 * mine + 4 * q;
    float w[2][8] = {};
    float4 g[2] = {};
    if (unit < a.units) {
        const bool own = panel < a.own_panels;
        const uint8_t *u =
            (own ? a.w[0] : a.w[1]) +
            ((size_t)(own ? panel : panel - a.own_panels) * (size_t)a.units + (size_t)unit) * 2048;
        unpack_unit<KN_F32>(u, lane, take_weights{w});
    }
    if (mine < a.units)
        g[0] = __ldg((const float4 *)(a.norm + k)), g[1] = __ldg((const float4 *)(a.norm + k + 16));
    if (first) {
        cuda_grid_wait();
        if (threadIdx.x == 0) m.tag = __ldcg(a.tag) + 1;
    }
#pragma unroll 1
    for (int row0 = 0; row0 < a.n; row0 += ROWS) {
        const int rows = min(ROWS, a.n - row0);
        float squares = 0.0f;
        if (warp < rows) {
            float4 v[2] = {};
            if (mine < a.units) {
                const float *x = a.x + (size_t)(row0 + warp) * (size_t)a.n_in + k;
                v[0] = __ldcg((const float4 *)x), v[1] = __ldcg((const float4 *)(x + 16));
            }
            float s = 0.0f;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                s = __fmaf_rn(v[i].x, v[i].x, s), s = __fmaf_rn(v[i].y, v[i].y, s);
                s = __fmaf_rn(v[i].z, v[i].z, s), s = __fmaf_rn(v[i].w, v[i].w, s);
                *(float4 *)&m.row[warp][32 * (lane / 4) + 4 * q + 16 * i] =
                    make_float4(__fmul_rn(v[i].x, g[i].x), __fmul_rn(v[i].y, g[i].y),
                                __fmul_rn(v[i].z, g[i].z), __fmul_rn(v[i].w, g[i].w));
            }
            s = add_quarters(s);
#pragma unroll
            for (int i = 0; i < UNITS; i++) squares = __fadd_rn(squares, __shfl_sync(~0u, s, 4 * i));
        }
        __syncthreads();
        unsigned long long *const to = a.values + (size_t)(row0 * a.slices + slice) * (size_t)a.stride;
        const size_t next = (size_t)a.slices * (size_t)a.stride;
        if (panel == 0 && warp < rows && lane == 0)
            value_put(to + (size_t)warp * next + a.stride - 1, squares, m.tag);
#pragma unroll 2
        for (int r = warp / UNITS; r < rows; r += WARPS / UNITS) {
            const float4 y[2] = {*(const float4 *)&m.row[r][32 * (warp % UNITS) + 4 * q],
                                 *(const float4 *)&m.row[r][32 * (warp % UNITS) + 4 * q + 16]};
            float s[2] = {0.0f, 0.0f};
#pragma unroll
            for (int i = 0; i < 2; i++)
#pragma unroll
                for (int hi = 0; hi < 2; hi++) {
                    s[hi] = __fmaf_rn(y[i].x, w[hi][4 * i], s[hi]);
                    s[hi] = __fmaf_rn(y[i].y, w[hi][4 * i + 1], s[hi]);
                    s[hi] = __fmaf_rn(y[i].z, w[hi][4 * i + 2], s[hi]);
                    s[hi] = __fmaf_rn(y[i].w, w[hi][4 * i + 3], s[hi]);
                }
            const float low = add_quarters(s[0]), high = add_quarters(s[1]);
            if (q == 0) {
                m.sums[warp % UNITS][r][lane / 4] = low;
                m.sums[warp % UNITS][r][lane / 4 + 8] = high;
            }
        }
        __syncthreads();
        if ((int)threadIdx.x < 16 * rows) {
            const int r = threadIdx.x / 16, o = threadIdx.x % 16;
            float s = 0.0f;
#pragma unroll
            for (int i = 0; i < UNITS; i++) s = __fadd_rn(s, m.sums[i][r][o]);
            value_put(to + (size_t)r * next + 16 * panel + o, s, m.tag);
        }
    }
}

/* A row's logits, and its choice. */
template <int PER> DEV void router_choose(const router_args &a, struct router_memory &m, int row)
{
    constexpr int ahead = 8;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n = a.route.n_expert, groups = (n + 31) / 32;
    const unsigned tag = m.tag;
    const unsigned long long *const from = a.values + (size_t)(row * a.slices) * (size_t)a.stride;
#pragma unroll 1
    for (int group = warp; group < groups + (a.w[1] ? 1 : 0); group += WARPS) {
        const int e = 32 * group + lane, at = group < groups ? min(e, n - 1) : 16 * a.own_panels;
        float sum = 0.0f, squares = 0.0f;
#pragma unroll 1
        for (int slice = 0; slice < a.slices; slice += ahead) {
            unsigned long long v[ahead], s; /* s: a lane a slice */
            bool there;
            patience wait;
            do {
                there = true;
#pragma unroll
                for (int i = 0; i < ahead; i++)
                    v[i] = value_ask(from + (uint32_t)(min(slice + i, a.slices - 1) * a.stride + at));
                s = value_ask(from +
                              (uint32_t)((min(slice + lane % ahead, a.slices - 1) + 1) * a.stride - 1));
                wait.turn();
                there = (unsigned)(s >> 32) == tag;
#pragma unroll
                for (int i = 0; i < ahead; i++) there = there && (unsigned)(v[i] >> 32) == tag;
            } while (!__all_sync(~0u, there));
#pragma unroll
            for (int i = 0; i < ahead; i++) {
                const float of = __shfl_sync(~0u, __uint_as_float((unsigned)s), i);
                if (slice + i >= a.slices) break;
                sum = __fadd_rn(sum, __uint_as_float((unsigned)v[i]));
                squares = __fadd_rn(squares, of);
            }
        }
        const float r = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(squares, (float)a.n_in), a.eps))),
                    y = __fmul_rn(sum, r);
        if (group == groups) {
            if (lane == 0) a.shared_logits[row] = m.shared = y;
        } else if (e < n) {
            a.logits[(size_t)row * (size_t)n + e] = m.logits[e] = y;
        }
    }
    __syncthreads();
    if (warp == 0) {
        const size_t at = (size_t)row * (size_t)(a.route.n_used + (a.w[1] ? 1 : 0));
        float x[PER];
#pragma unroll
        for (int i = 0; i < PER; i++) x[i] = 32 * i + lane < n ? m.logits[32 * i + lane] : -INFINITY;
        route_weigh<PER>(a.route, route_choose<PER>(a.route, x), x, a.w[1] ? &m.shared : nullptr,
                         a.route.ids + at, a.route.weights + at);
    }
    __syncthreads();
}

template <enum mm_act ACT, int PER>
static __global__ void __launch_bounds__(32 * WARPS, PER == 8 ? 2 : 1)
    router_kernel(const __grid_constant__ router_args a, const __grid_constant__ mm_prep p)
{
    __shared__ __align__(16) struct router_memory m;
    const int block = blockIdx.x;
    cuda_grid_early();
    if (block >= a.blocks) { /* rows */
        const size_t i = (size_t)(block - a.blocks);
        prepare_row<ACT, WARPS>(p, p.x + i * (size_t)p.n_in,
                                p.rows + i * (size_t)p.slices * (size_t)p.slice_row, 0, (p.n_in + 255) / 256,
                                m.row[0]);
        return;
    }
#pragma unroll 1
    for (int task = block; task < a.tasks; task += a.blocks) {
        if (task != block) __syncthreads();
        router_sums(a, m, task, task == block);
    }
#pragma unroll 1
    for (int row = block; row < a.n; row += a.blocks) router_choose<PER>(a, m, row);
    /* It has seen sums of all blocks, which had read the tag by then. */
    if (block == 0 && threadIdx.x == 0) *(volatile unsigned *)a.tag = m.tag;
}

static int32_t router_slices(const struct kn_mixture *m)
{
    return (int32_t)((m->router->n_in + 255) / 256);
}
static int32_t router_stride(const struct kn_mixture *m)
{
    return (m->route.n_expert + 15) / 16 * 16 + 32;
}

/* Blocks of a launch that are resident together. */
static int32_t router_room(const struct cuda_backend *be, const struct kn_mixture *m)
{
    return (m->route.n_expert <= 256 ? 2 : 1) * be->sm_count;
}
/* Rows of a launch: as many blocks make sums as round rows, at least, and their sums have places. */
static int32_t router_rows(const struct cuda_backend *be, const struct kn_mixture *m)
{
    const size_t each = (size_t)router_slices(m) * (size_t)router_stride(m),
                 places = EXPERTS_ROUTER_VALUES / each, half = (size_t)router_room(be, m) / 2,
                 most = places < half ? places : half;
    return most < EXPERTS_ROUTER_ROWS ? (int32_t)most : EXPERTS_ROUTER_ROWS;
}

bool experts_router_fits(const struct cuda_backend *be, const struct kn_mixture *m, enum mm_act act)
{
    return be->cc >= 90 && !be->generic && mm_is_int8(act) && m->route.n <= EXPERTS_ROUTER_ROWS &&
           m->router->n_in % 32 == 0 && m->route.n_expert <= ROUTE_EXPERTS && m->route.n_used <= ROUTE_USED &&
           router_rows(be, m) > 0 && ((uintptr_t)m->x | (uintptr_t)m->router_norm) % 16 == 0 &&
           m->router->type == KN_F32 && (!m->shared_gate || m->shared_gate->type == KN_F32) &&
           !m->shared[0] == !m->shared_gate;
}

template <int PER> static auto kernel_of(enum mm_act act)
{
    return act == MM_ACT_K    ? router_kernel<MM_ACT_K, PER>
           : act == MM_ACT_32 ? router_kernel<MM_ACT_32, PER>
                              : router_kernel<MM_ACT_32M, PER>;
}
/* Rows from `first` on, n of them. a: what all have in common. */
static int launch_rows(struct cuda_backend *be, const struct kn_mixture *m, enum mm_act act, router_args a,
                       struct mm_prep p, int32_t first, int32_t n)
{
    const bool few = m->route.n_expert <= 256;
    const size_t at = (size_t)first;
    const int32_t room = router_room(be, m) - n;
    a.x += at * (size_t)a.n_in;
    a.logits += at * (size_t)a.route.n_expert;
    if (a.shared_logits) a.shared_logits += at;
    a.route.ids += at * (size_t)(a.route.n_used + (a.w[1] ? 1 : 0));
    a.route.weights += at * (size_t)(a.route.n_used + (a.w[1] ? 1 : 0));
    p.x += at * (size_t)p.n_in;
    p.rows += at * (size_t)p.slices * (size_t)p.slice_row;
    a.n = a.route.n = n;
    a.blocks = a.tasks < room ? a.tasks : room;
    const dim3 grid((unsigned)(a.blocks + n)), block(32 * WARPS);
    const auto kernel = few ? kernel_of<8>(act) : kernel_of<32>(act);
    return cuda_check(be, "mixture", cuda_launch(be, kernel, grid, block, 0, a, p));
}

/* Where multiprocessors are few, in several launches: a product of the router's weights, which would do in
 * one, has other bits, and rows must not have them by how many they are. */
int experts_router(struct cuda_backend *be, const struct kn_mixture *m, enum mm_act act,
                   const struct mm_prep *p)
{
    const struct kn_weight *w = m->router, *s = m->shared_gate;
    const int32_t most = router_rows(be, m);
    struct router_args a = {};
    a.w[0] = (const uint8_t *)w->packed;
    a.w[1] = s ? (const uint8_t *)s->packed : nullptr;
    a.x = m->x;
    a.norm = m->router_norm;
    a.logits = m->logits;
    a.shared_logits = s ? m->shared_logits : nullptr;
    a.route = m->route;
    a.values = be->experts_values + EXPERTS_WHOLE_VALUES;
    a.tag = be->experts_tag;
    a.eps = m->eps;
    a.n_in = (int32_t)w->n_in;
    a.units = (a.n_in + 31) / 32;
    a.own_panels = (m->route.n_expert + 15) / 16;
    a.slices = router_slices(m);
    a.tasks = (a.own_panels + (s ? 1 : 0)) * a.slices;
    a.stride = router_stride(m);
    int rc = 0;
    for (int32_t first = 0; first < m->route.n && rc == 0; first += most)
        rc = launch_rows(be, m, act, a, *p, first, m->route.n - first < most ? m->route.n - first : most);
    return rc;
}
