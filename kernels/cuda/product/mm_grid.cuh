/* mm_grid.cuh - part of mm_int.cuh: units of the types with grids. Codes are signed bytes (grid_unit.cuh), so
 * nothing is taken off afterwards. Bound: IQ3_XXS 62 * 127 * 256 * 31 < 2^26; others less. */
#ifndef DFLASH_CUDA_MM_GRID_CUH
#define DFLASH_CUDA_MM_GRID_CUH

#include "grid_unit.cuh"

/* The launch's points to shared memory at `to`: all threads call, and meet before one reads. */
template <class POINTS> DEV void grid_load(uint8_t *to, const POINTS &p)
{
    const uint4 *const from = (const uint4 *)grid_all() + p.first;
    for (int i = (int)threadIdx.x; i < p.count; i += (int)blockDim.x) ((uint4 *)to)[i] = __ldg(from + i);
}
/* Where the table of all would begin, of which they are a part. */
DEV const uint16_t *grid_there(const uint8_t *at, const struct mm_points &p)
{
    return (const uint16_t *)at - 8 * p.first;
}

/* A word of codes in the order of activations: columns 0, 2, 1, 3 of four (prep_block.cuh). */
DEV uint32_t grid_ordered(uint32_t codes)
{
    return __byte_perm(codes, 0, 0x3120);
}

/* As codes_45 (mm_int.cuh). */
template <uint32_t TYPE, int NT, class ACT>
DEV void codes_grid(int sum[NT][4], float d[2], const uint8_t *st, int lane, ACT act, const uint16_t *points)
{
    grid_unit<TYPE> unit;
    unit.open(st, lane, points);
#pragma unroll
    for (int hi = 0; hi < 2; hi++) d[hi] = __fmul_rn(h_low(unit.d_of(hi)), grid_down<TYPE>());
#pragma unroll
    for (int part = 0; part < 4; part++) {
        uint4 b[NT];
#pragma unroll
        for (int t = 0; t < NT; t++) b[t] = act(t, part);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int j = 2 * part + i;
            uint32_t a[4];
            unit.step(j, a);
#pragma unroll
            for (int k = 0; k < 4; k++) a[k] = grid_ordered(a[k]);
#pragma unroll
            for (int t = 0; t < NT; t++) {
                const uint32_t b0 = i ? b[t].z : b[t].x, b1 = i ? b[t].w : b[t].y;
                int c[4];
                if (unit.halves) {
                    mma_16<true>(c, a[0], a[1], b0);
                    scale_int(sum[t], c, unit.scale_of(j, 0, 0), unit.scale_of(j, 0, 1), j == 0);
                    mma_16<true>(c, a[2], a[3], b1);
                    scale_int(sum[t], c, unit.scale_of(j, 1, 0), unit.scale_of(j, 1, 1), false);
                } else {
                    mma_32<true>(c, a, b0, b1, 0, 0);
                    scale_int(sum[t], c, unit.scale_of(j, 0, 0), unit.scale_of(j, 0, 1), j == 0);
                }
            }
        }
    }
}

#endif
