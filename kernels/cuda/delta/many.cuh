/* delta/many.cuh - what the two kernels of a delta net over a prompt share (delta/many.cu): sizes, what one
 * leaves for the other, products of factors in two bf16. */
#ifndef DFLASH_CUDA_DELTA_MANY_CUH
#define DFLASH_CUDA_DELTA_MANY_CUH

#include "delta.cuh"
#include "../core/shared.cuh"

#include <stddef.h>

#define BLOCK 32              /* tokens */
#define HEAD DELTA_BLOCK_HEAD /* d_k at most; shorter keys are filled up with zeros */
#define WIDE 64               /* rows of a state that a block of delta_scan has */
#define KTHREADS 256          /* of delta_blocks */
#define SLOTS (KTHREADS / 32)
#define STHREADS (WIDE * 2)
#define KPITCH (HEAD + 8)          /* of keys and queries in delta_blocks' memory, elements */
#define PLANE (BLOCK * HEAD * 2)   /* bytes of keys or queries, high or low */
#define SQUARE (BLOCK * BLOCK * 2) /* bytes of T or P, high or low */
#define GATES (3 * BLOCK)
#define LOG2E 1.4426950408889634f

/* What delta_blocks leaves for delta_scan. All by block of tokens, [head][block]. */
struct blocks {
    uint8_t *keys;    /* key heads: k high, k low, q high, q low, each [BLOCK, HEAD] bf16 */
    uint8_t *squares; /* T high, T low, P high, P low, each [t, j] bf16 */
    float *values;    /* [BLOCK, wide] */
    float *gates;     /* exp(G_t); exp(G_31 - G_t); b_t */
    int32_t n_blocks, wide;
    int32_t from, n; /* rows of the call that this segment has */
};

DEV float bf_low(uint32_t pair)
{
    return __uint_as_float(pair << 16);
}
DEV float bf_high(uint32_t pair)
{
    return __uint_as_float(pair & 0xffff0000u);
}
/* x in the low half, y in the high one, rounded to nearest; what is left of them, rounded. */
DEV uint32_t split(float x, float y, uint32_t *low)
{
    uint32_t high;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(high) : "f"(y), "f"(x));
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;"
        : "=r"(*low)
        : "f"(__fsub_rn(y, bf_high(high))), "f"(__fsub_rn(x, bf_low(high))));
    return high;
}

DEV void mma(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
DEV uint4 load_matrices(unsigned at)
{
    uint4 v;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at));
    return v;
}
DEV uint4 load_transposed(unsigned at)
{
    uint4 v;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(at));
    return v;
}
/* 2^x, 2 ulp. */
DEV float exp_two(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
/* silu to |x| 2^-24 of it, an eighth of delta.cu's instructions. */
DEV float quick_silu(float x)
{
    return __fdividef(x, __fadd_rn(1.0f, exp_two(__fmul_rn(x, -LOG2E))));
}

#endif
