/* mm_one.cu - a wide product of one row, K types: heads.
 *
 * The kernel for up to eight rows (mm_kernel.cuh) is bound by its instructions there. Here a
 * warp has whole panels and its own ring of pairs of units, which one lane asks for; a pair is multiplied as
 * in a mixture of one row (experts/unit.cuh), and sums stay in registers. Nothing but weights is touched
 * before the wait. Bound: the bytes of the weights, once. The bits are those of the other kernels: units in
 * order within a slice, slices in order. */
#include "mm_one.cuh"

#include "../core/bulk.cuh"
#include "../experts/unit.cuh"

#define WARPS 16
#define SLOTS_MOST 4 /* of a ring: pairs of units */

int mm_one_panels = 4096;

struct one_args {
    const uint8_t *w, *rows; /* rows: NULL, or the row as prep.cu leaves it; else it is made of x */
    const float *x, *norm;
    float *out;
    float eps;
    int32_t n_out, panels, units, slice_units, slice_row, unit_bytes, slots;
    uint32_t at_act, at_ring; /* shared memory: barriers, squares, the row's units, rings */
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
/* The row, normed and rounded, by all warps: the bits of prepare_row (prep.cuh). */
DEV void one_make(const one_args &a, float *squares, uint8_t *act)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float v[8], w[8], r = 1.0f;
    if (warp < a.units) load_eight(w, a.norm, 256 * warp + 8 * lane, 256 * a.units);
    cuda_grid_wait();
#pragma unroll 1
    for (int u = warp; u < a.units; u += WARPS) {
        load_eight(v, a.x, 256 * u + 8 * lane, 256 * a.units);
        const float s = block_squares(v);
        if (lane == 0) squares[u] = s;
    }
    __syncthreads();
    float s = 0.0f;
    for (int u = lane; u < a.units; u += 32) s = __fadd_rn(s, squares[u]);
#pragma unroll
    for (int o = 16; o; o /= 2) s = __fadd_rn(s, __shfl_xor_sync(~0u, s, o));
    r = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(s, (float)(256 * a.units)), a.eps)));
#pragma unroll 1
    for (int u = warp; u < a.units; u += WARPS) {
        if (a.units > WARPS) { /* else they are there */
            load_eight(w, a.norm, 256 * u + 8 * lane, 256 * a.units);
            load_eight(v, a.x, 256 * u + 8 * lane, 256 * a.units);
        }
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = __fmul_rn(__fmul_rn(v[i], r), w[i]);
        unit_round(act + UNIT_ACT * u, v);
    }
}

/* A warp's ring, and what it asks for next: pairs of its panels in turn. */
struct one_ring {
    uint64_t *bars;
    uint8_t *at;
    const uint8_t *p;
    int panel, unit; /* p's */
    int slot;        /* to be waited for next */
    uint32_t phase;
};
/* To slot `slot`, by one lane. */
DEV void one_ask(const one_args &a, struct one_ring &r, int slot)
{
    const int step = WARPS * (int)gridDim.x;
    if (r.panel >= a.panels) return;
    const uint32_t bytes = (uint32_t)(min(2, a.units - r.unit) * a.unit_bytes);
    bar_expect(r.bars + slot, bytes);
    copy_weights_to(r.at + slot * 2 * a.unit_bytes, r.p, bytes, r.bars + slot);
    r.p += bytes;
    r.unit += 2;
    if (r.unit < a.units) return;
    r.unit = 0;
    r.panel += step;
    r.p += (size_t)(step - 1) * (size_t)(a.units * a.unit_bytes);
}

/* The next panel's outputs: rows g + 8 q, in lanes q < 2. */
template <uint32_t TYPE> DEV float one_panel(const one_args &a, struct one_ring &r, const uint8_t *act)
{
    const int lane = threadIdx.x % 32;
    float y = 0.0f, fin = 0.0f;
    int left = a.slice_units;
    const auto add = [&](float term, float factor, int u) {
        fin = __fmaf_rn(term, factor, fin);
        if (--left && u + 1 < a.units) return;
        y = __fadd_rn(y, fin);
        fin = 0.0f;
        left = a.slice_units;
    };
#pragma unroll 1
    for (int u = 0; u < a.units; u += 2) {
        const bool both = u + 1 < a.units;
        const uint8_t *const w = r.at + r.slot * 2 * a.unit_bytes, *const x0 = act + UNIT_ACT * u;
        const uint8_t *const st[2] = {w, both ? w + a.unit_bytes : w}, *const x[2] = {x0, both ? x0 + UNIT_ACT
                                                                                               : x0};
        bar_wait(r.bars + r.slot, r.phase);
        const float2 t = TYPE == KN_Q4_K   ? unit_45<4>(st, x, lane)
                         : TYPE == KN_Q6_K ? unit_6(st, x, lane)
                                           : unit_45<5>(st, x, lane);
        __syncwarp();
        if (lane == 0) one_ask(a, r, r.slot);
        __syncwarp();
        if (++r.slot == a.slots) r.slot = 0, r.phase ^= 1;
        const float term = __shfl_xor_sync(~0u, t.x, 2), factor = __shfl_xor_sync(~0u, t.y, 2);
        add(t.x, t.y, u);
        if (both) add(term, factor, u + 1);
    }
    return y;
}
#endif

template <uint32_t TYPE>
static __global__ void __launch_bounds__(32 * WARPS, 1) one_row(const __grid_constant__ one_args a)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) uint8_t smem[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, q = lane % 4;
    const int first = (int)blockIdx.x + warp * (int)gridDim.x;
    uint8_t *const act = smem + a.at_act;
    struct one_ring r = {(uint64_t *)smem + warp * SLOTS_MOST,
                         smem + a.at_ring + warp * a.slots * 2 * a.unit_bytes,
                         a.w + (size_t)first * (size_t)(a.units * a.unit_bytes),
                         first,
                         0,
                         0,
                         0};
    cuda_grid_early();
    if (lane == 0) {
        for (int i = 0; i < a.slots; i++) bar_init(r.bars + i);
        bar_fence();
        for (int i = 0; i < a.slots; i++) one_ask(a, r, i);
    }
    __syncwarp();
    if (a.rows) {
        cuda_grid_wait();
        for (int u = warp; u < a.units; u += WARPS)
            unit_of_row(a.rows, a.slice_units, a.slice_row, u, act + UNIT_ACT * u);
    } else {
        one_make(a, (float *)(smem + 8 * WARPS * SLOTS_MOST), act);
    }
    __syncthreads();
#pragma unroll 1
    for (int panel = first; panel < a.panels; panel += WARPS * (int)gridDim.x) {
        const float y = one_panel<TYPE>(a, r, act);
        const int row = 16 * panel + lane / 4 + 8 * q;
        if (q < 2 && row < a.n_out) a.out[row] = y;
    }
#endif
}

typedef void (*one_fn)(const one_args);
static one_fn kernel_of(uint32_t type) /* NULL: there is none */
{
    return type == KN_Q4_K   ? one_row<KN_Q4_K>
           : type == KN_Q5_K ? one_row<KN_Q5_K>
           : type == KN_Q6_K ? one_row<KN_Q6_K>
                             : nullptr;
}

int mm_one_open(struct cuda_backend *be)
{
    static const uint32_t types[] = {KN_Q4_K, KN_Q5_K, KN_Q6_K};
    cudaError_t err = cudaSuccess;
    for (int i = 0; i < 3 && !err; i++)
        err = cudaFuncSetAttribute(kernel_of(types[i]), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   be->smem_block);
    return cuda_check(be, "wide products of one row", err);
}

bool mm_one(struct cuda_backend *be, const char *name, const struct kn_weight *w, float *out,
            const struct mm_prep *p, bool prepared, int *rc)
{
    const one_fn f = kernel_of(w->type);
    struct one_args a = {};
    if (!f || be->cc < 90 || be->generic) return false;
    a.w = (const uint8_t *)w->packed, a.rows = prepared || !p->norm ? p->rows : nullptr;
    a.x = p->x, a.norm = p->norm, a.eps = p->eps, a.out = out;
    a.n_out = (int32_t)w->n_out, a.panels = (int32_t)((w->n_out + 15) / 16);
    a.units = p->units, a.slice_units = p->slice_units, a.slice_row = p->slice_row;
    a.unit_bytes = mm_type_of(w->type)->unit_bytes;
    a.at_act = (uint32_t)(8 * WARPS * SLOTS_MOST + (4 * a.units + 15) / 16 * 16);
    a.at_ring = (a.at_act + (uint32_t)(UNIT_ACT * a.units) + 127) / 128 * 128;
    const int pairs = WARPS * 2 * a.unit_bytes;
    a.slots = (be->smem_block - (int)a.at_ring) / pairs;
    if (a.slots > SLOTS_MOST) a.slots = SLOTS_MOST;
    if (a.slots < 2 || a.panels < mm_one_panels) return false;
    const cudaError_t err = prepared || p->norm ? cudaSuccess : mm_prepare(be, MM_ACT_K, p, 1, false);
    *rc = cuda_check(be, name,
                     err ? err
                         : cuda_launch(be, f, dim3((unsigned)be->sm_count), dim3(32 * WARPS),
                                       a.at_ring + (size_t)(a.slots * pairs), a));
    return true;
}
