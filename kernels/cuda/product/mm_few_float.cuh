/* mm_few_float.cuh - mm_few.cuh for F16 and BF16: the chains of mm_frag.cuh (64 columns, all planes), each
 * lane's word of activations for both steps of a unit read at once, so that no two lanes meet at a bank. */
#ifndef DFLASH_CUDA_MM_FEW_FLOAT_CUH
#define DFLASH_CUDA_MM_FEW_FLOAT_CUH

#include "mm_few.cuh"

/* Activations of this lane's token of each tile, a plane after the other; the factors of its outputs' tokens.
 */
template <int NT> struct few_view_float {
    const uint8_t *b[NT], *factor[NT][2];
};

template <uint32_t TYPE> struct few_float {
    static constexpr bool grids = false;
    static constexpr int registers = FEW_REGISTERS;
    static constexpr bool single = false, bf16 = TYPE == KN_BF16;
    static constexpr int planes = bf16 ? 3 : 2, unit_bytes = 1024;

    template <int NT> DEV void prepare(const mm_args &, uint8_t *)
    {
    }
    template <int NT> DEV few_view_float<NT> view(const mm_args &a, const uint8_t *smem, int local, int lane)
    {
        few_view_float<NT> v;
#pragma unroll
        for (int t = 0; t < NT; t++) {
            v.b[t] = few_row(a, smem, local, 8 * t + lane / 4) + lane % 4 * 16;
#pragma unroll
            for (int i = 0; i < 2; i++)
                v.factor[t][i] = few_row(a, smem, local, 8 * t + 2 * (lane % 4) + i) + a.slice_row - 16;
        }
        return v;
    }
    /* fin += COUNT units of a pair */
    template <int NT, int COUNT>
    DEV void pair(float fin[NT][4], const uint8_t *st, const few_view_float<NT> &v, int plane_bytes, int lane)
    {
        float acc[NT][4];
#pragma unroll
        for (int t = 0; t < NT; t++) zero(acc[t]);
#pragma unroll
        for (int u = 0; u < COUNT; u++) {
            uint4 b[NT][planes];
#pragma unroll
            for (int t = 0; t < NT; t++)
#pragma unroll
                for (int p = 0; p < planes; p++) b[t][p] = lds16(v.b[t] + 64 * u + p * plane_bytes);
#pragma unroll
            for (int s = 0; s < 2; s++) {
                const uint4 w = lds16(st + 1024 * u + 512 * s + 16 * lane);
                const uint32_t a[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
                for (int p = planes - 1; p >= 0; p--) /* smallest products first */
#pragma unroll
                    for (int t = 0; t < NT; t++)
                        mma<bf16>(acc[t], a, s ? b[t][p].z : b[t][p].x, s ? b[t][p].w : b[t][p].y);
            }
        }
#pragma unroll
        for (int t = 0; t < NT; t++)
#pragma unroll
            for (int i = 0; i < 4; i++) fin[t][i] = __fadd_rn(fin[t][i], acc[t][i]);
    }
    template <int NT, class R>
    DEV void slice(const mm_args &a, float fin[NT][4], R &ring, uint32_t, few_view_float<NT> v, int units,
                   int lane)
    {
        const int plane_bytes = 64 * a.slice_units;
#pragma unroll
        for (int t = 0; t < NT; t++) zero(fin[t]);
        few_pairs<unit_bytes>(a, ring, units, [&](const uint8_t *st, auto count) {
            pair<NT, decltype(count)::value>(fin, st, v, plane_bytes, lane);
#pragma unroll
            for (int t = 0; t < NT; t++) v.b[t] += 128;
        });
#pragma unroll
        for (int t = 0; t < NT; t++)
#pragma unroll
            for (int i = 0; i < 4; i++) fin[t][i] = __fmul_rn(fin[t][i], lds_float(v.factor[t][i % 2]));
    }
};

#endif
