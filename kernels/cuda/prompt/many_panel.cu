/* many_panel.cu - panels of a weight: from the streaming layout to f16, and the largest magnitude of a
 * weight.
 *
 * Bound: the packed bytes read, two bytes a weight written. Q4_K: 0.56 + 2 bytes, 0.6 us a million weights at
 * 4.25 TB/s, beside the product of the panel before. */
#include "many_impl.cuh"
#include "../product/unpack.cuh"

struct store_half {
    __half *row;  /* row lane / 4, at the unit's first column */
    int64_t high; /* to row + 8 */
    float scale;
    __host__ __device__ __forceinline__ void operator()(int hi, int column, const float v[4]) const
    {
#ifdef __CUDA_ARCH__
        const __half2 a = __floats2half2_rn(__fmul_rn(v[0], scale), __fmul_rn(v[1], scale)),
                      b = __floats2half2_rn(__fmul_rn(v[2], scale), __fmul_rn(v[3], scale));
        *(uint2 *)(row + (hi ? high : 0) + column) = make_uint2(*(const uint32_t *)&a, *(const uint32_t *)&b);
#else
        (void)hi, (void)column, (void)v;
#endif
    }
};

/* A warp a run of columns: one unit of 256 or eight of 32. */
template <uint32_t T> __global__ void __launch_bounds__(256) unpack_panels(const panel_args a)
{
    constexpr bool k = T == KN_Q2_K || T == KN_Q3_K || T == KN_Q4_K || T == KN_Q5_K || T == KN_Q6_K ||
                       T == KN_IQ4_XS || grid_has(T);
    constexpr int run = k ? 1 : 8, unit_k = k ? 256 : 32;
    const int lane = threadIdx.x % 32, runs = (a.units + run - 1) / run;
    const int64_t unit_bytes = a.panel_bytes / a.units, all = (int64_t)runs * a.panels;
    for (int64_t i = (int64_t)blockIdx.x * 8 + threadIdx.x / 32; i < all; i += (int64_t)gridDim.x * 8) {
        const int64_t panel = i / runs;
        const int first = (int)(i % runs) * run;
        const uint8_t *u = a.packed + panel * a.panel_bytes + first * unit_bytes;
        __half *dst = a.dst + (16 * panel + lane / 4) * a.ld + (int64_t)first * unit_k;
        for (int j = 0; j < run && first + j < a.units; j++) {
            const store_half put = {dst + j * unit_k, 8 * a.ld, a.scale};
            unpack_unit<T>(u + j * unit_bytes, lane, put);
        }
    }
}

struct largest {
    uint32_t *top;
    __host__ __device__ __forceinline__ void operator()(int, int, const float v[4]) const
    {
#ifdef __CUDA_ARCH__
        for (int e = 0; e < 4; e++) {
            const uint32_t b = __float_as_uint(v[e]) & 0x7fffffff;
            if (b < 0x7f800000) *top = max(*top, b);
        }
#else
        (void)v;
#endif
    }
};

template <uint32_t T> __global__ void __launch_bounds__(256) largest_kernel(const panel_args a, unsigned *out)
{
    const int lane = threadIdx.x % 32;
    const int64_t unit_bytes = a.panel_bytes / a.units, all = (int64_t)a.units * a.panels;
    uint32_t top = 0;
    for (int64_t i = (int64_t)blockIdx.x * 8 + threadIdx.x / 32; i < all; i += (int64_t)gridDim.x * 8)
        unpack_unit<T>(a.packed + i * unit_bytes, lane, largest{&top});
    top = __reduce_max_sync(~0u, top);
    if (lane == 0 && top) atomicMax(out, top);
}

struct panel_kernels {
    uint32_t type;
    void (*unpack)(const panel_args);
    void (*largest)(const panel_args, unsigned *);
};
#define KERNELS(t)                                                                                           \
    {                                                                                                        \
        t, unpack_panels<t>, largest_kernel<t>                                                               \
    }
static const struct panel_kernels panel_kernels[] = {
    KERNELS(KN_F32),   KERNELS(KN_F16),     KERNELS(KN_BF16),   KERNELS(KN_Q8_0),  KERNELS(KN_Q4_0),
    KERNELS(KN_Q5_0),  KERNELS(KN_Q4_1),    KERNELS(KN_Q5_1),   KERNELS(KN_Q4_K),  KERNELS(KN_Q5_K),
    KERNELS(KN_Q6_K),  KERNELS(KN_IQ4_NL),  KERNELS(KN_IQ4_XS), KERNELS(KN_Q3_K),  KERNELS(KN_Q2_K),
    KERNELS(KN_MXFP4), KERNELS(KN_IQ2_XXS), KERNELS(KN_IQ2_XS), KERNELS(KN_IQ2_S), KERNELS(KN_IQ3_XXS),
    KERNELS(KN_IQ3_S), KERNELS(KN_IQ1_S),   KERNELS(KN_IQ1_M)};

static const struct panel_kernels *kernels_of(uint32_t type)
{
    for (size_t i = 0; i < sizeof panel_kernels / sizeof *panel_kernels; i++)
        if (panel_kernels[i].type == type) return &panel_kernels[i];
    return nullptr;
}

struct panel_args many_panel_args(const struct kn_weight *w, int32_t first, int32_t rows)
{
    const struct mm_type *t = product_type_of(w->type);
    struct panel_args a = {};
    a.panel_bytes = mm_panel_bytes(t, w->n_in);
    a.units = (int32_t)(a.panel_bytes / t->unit_bytes);
    a.packed = (const uint8_t *)w->packed + (int64_t)(first / 16) * a.panel_bytes;
    a.panels = (rows + 15) / 16;
    a.ld = (int64_t)a.units * t->unit_k;
    return a;
}

static unsigned blocks_of(const struct cuda_backend *be, int64_t warps)
{
    const int64_t blocks = (warps + 7) / 8, most = (int64_t)be->sm_count * 8;
    return (unsigned)(blocks < most ? blocks : most);
}

cudaError_t many_unpack(const struct cuda_backend *be, cudaStream_t s, uint32_t type,
                        const struct panel_args *a)
{
    const int run = a->ld == a->units * 256 ? 1 : 8; /* as in unpack_panels */
    const int64_t warps = (int64_t)((a->units + run - 1) / run) * a->panels;
    kernels_of(type)->unpack<<<blocks_of(be, warps), 256, 0, s>>>(*a);
    return cudaGetLastError();
}

int many_exponent(struct cuda_backend *be, struct kn_weight *w)
{
    const struct panel_kernels *k = kernels_of(w->type);
    const struct panel_args a = many_panel_args(w, 0, (int32_t)w->n_out);
    unsigned top = 0, *at = (unsigned *)be->mm_partial;
    if (!k) return cuda_fail(be, KN_ETYPE, "weight of type %s: no panels", kn_type_info(w->type)->name);
    cudaError_t err = cudaMemsetAsync(at, 0, sizeof top, be->stream);
    if (!err) {
        k->largest<<<blocks_of(be, (int64_t)a.units * a.panels), 256, 0, be->stream>>>(a, at);
        err = cudaGetLastError();
    }
    if (!err) err = cudaMemcpyAsync(&top, at, sizeof top, cudaMemcpyDeviceToHost, be->stream);
    if (!err) err = cudaStreamSynchronize(be->stream);
    w->exponent = top >> 23 ? (int32_t)(top >> 23) - 127 : top ? -126 : 0;
    return cuda_check(be, "weight_load", err);
}
