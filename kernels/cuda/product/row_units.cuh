/* row_units.cuh - products of one row on tensor cores: what the kernels that run many operations in one
 * launch share (chain/pair.cuh, experts/unit.cuh say how a unit is multiplied). */
#ifndef DFLASH_CUDA_ROW_UNITS_CUH
#define DFLASH_CUDA_ROW_UNITS_CUH

#include "mm_int.cuh"

/* The two int16 of a times bytes 2, 3 of b */
DEV int row_dot_high(uint32_t a, uint32_t b)
{
    int d;
    asm("dp2a.hi.s32.u32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(0));
    return d;
}
/* c + the two int16 of a times bytes 2, 3 (high) or 0, 1 of b */
DEV int row_dot_signed(uint32_t a, uint32_t b, bool high, int c)
{
    int d;
    if (high)
        asm("dp2a.hi.s32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    else
        asm("dp2a.lo.s32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
/* c += A B */
DEV void row_mma_32(int c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
DEV void row_mma_16(int c[4], uint32_t a0, uint32_t a1, uint32_t b)
{
    asm("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(b));
}

/* Four rows' sums of a lane (unit 0: g, g + 8; unit 1: the same) to the row of lane q, over q. */
DEV int row_gather(const int v[4], int q)
{
    const bool odd = q & 1, second = q & 2;
    int w[2];
#pragma unroll
    for (int p = 0; p < 2; p++)
        w[p] =
            (odd ? v[2 * p + 1] : v[2 * p]) + __shfl_xor_sync(0xffffffff, odd ? v[2 * p] : v[2 * p + 1], 1);
    return (second ? w[1] : w[0]) + __shfl_xor_sync(0xffffffff, second ? w[0] : w[1], 2);
}

/* Of a record of Q4_K or Q5_K: the scales (bytes 0, 1) and minimums (2, 3) of sub-blocks 2 q and 2 q + 1. */
DEV uint32_t row_fields(uint4 r, int q)
{
    const uint32_t pick = q & 1 ? 0x7632 : 0x5410;
    const uint32_t u = __byte_perm(r.y, r.z, pick), w = __byte_perm(r.w, r.w >> 4, pick);
    return q < 2 ? u & 0x3f3f3f3f : (w & 0x0f0f0f0f) | (u >> 2 & 0x30303030);
}

#endif
