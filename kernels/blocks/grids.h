/* grids.h - what the types with grids share: IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS and IQ3_S.
 *
 * Concept: a block of 256 holds indices of *points*, each 8 values (IQ3: 4) of a few levels, out of a *grid*,
 * a fixed list. A value is d * scale * code / 2^shift, all of it exact in float32: scale is odd, of 16 or 32
 * columns, and the code follows from the level and a sign bit (IQ1: a bit that says which way the level is
 * moved). docs/types.md has the layouts. The functions that take a block apart are inline: a device compiles
 * them too. */
#ifndef DFLASH_GRIDS_H
#define DFLASH_GRIDS_H

#include "../kernels.h"

#ifdef __CUDACC__
#define GRID_FN static __host__ __device__ __forceinline__
#else
#define GRID_FN static inline
#endif
#ifdef __cplusplus
#define GRID_CONST GRID_FN constexpr
#else
#define GRID_CONST GRID_FN
#endif

#define GRID_POINTS_MAX 2048

struct grid_kind {
    uint32_t type;
    int values;      /* of a point: 8 or 4 */
    int points;      /* of the grid */
    int shift;       /* the value is d * scale * code / 2^shift */
    int runs;        /* columns with one scale: 16 or 32 */
    int8_t code[16]; /* of level + 8 * sign */
};
#ifdef __cplusplus
extern "C" {
#endif
const struct grid_kind *grid_kind_of(uint32_t type); /* NULL: a type without a grid */
/* The points of type's grid: byte j % 4 holds value j's level, in bits 0 to 3 (j < 4) or 4 to 7. */
const uint32_t *grid_points(uint32_t type);
#ifdef __cplusplus
}
#endif

GRID_FN uint32_t grid_u16(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8;
}
GRID_FN uint32_t grid_u32(const uint8_t *p)
{
    return grid_u16(p) | grid_u16(p + 2) << 16;
}
GRID_CONST bool grid_has(uint32_t type)
{
    return type == KN_IQ2_XXS || type == KN_IQ2_XS || type == KN_IQ2_S || type == KN_IQ3_XXS ||
           type == KN_IQ3_S || type == KN_IQ1_S || type == KN_IQ1_M;
}
/* Where a type's points begin and end in one table of all, of 16 bits for each four values. */
GRID_CONST int grid_first(uint32_t type)
{
    return type == KN_IQ3_XXS   ? 0
           : type == KN_IQ3_S   ? 256
           : type == KN_IQ2_XXS ? 768
           : type == KN_IQ2_XS  ? 1280
           : type == KN_IQ2_S   ? 2304
                                : 4352;
}
GRID_CONST int grid_end(uint32_t type)
{
    return type == KN_IQ3_XXS   ? 256
           : type == KN_IQ3_S   ? 768
           : type == KN_IQ2_XXS ? 1280
           : type == KN_IQ2_XS  ? 2304
           : type == KN_IQ2_S   ? 4352
                                : 8448;
}

/* The index of point e of a block. */
GRID_FN uint32_t grid_index(uint32_t type, const uint8_t *b, int e)
{
    switch (type) {
    case KN_IQ2_XXS: return b[2 + 8 * (e / 4) + e % 4];
    case KN_IQ2_XS: return grid_u16(b + 2 + 2 * e) & 511u;
    case KN_IQ2_S: return b[2 + e] | (b[66 + e / 4] >> 2 * (e % 4) & 3u) << 8;
    case KN_IQ3_XXS: return b[2 + e];
    case KN_IQ3_S: return b[2 + e] | (b[66 + e / 8] >> e % 8 & 1u) << 8;
    case KN_IQ1_S: return b[2 + e] | (grid_u16(b + 34 + 2 * (e / 4)) >> 3 * (e % 4) & 7u) << 8;
    default: return b[e] | (b[32 + e / 2] >> 4 * (e % 2) & 7u) << 8; /* IQ1_M */
    }
}

/* The signs of values 8 i to 8 i + 7, a bit each. Where 7 are stored the eighth makes their number even. */
GRID_FN uint32_t grid_signs(uint32_t type, const uint8_t *b, int i)
{
    uint32_t seven;
    switch (type) {
    case KN_IQ2_XXS: seven = grid_u32(b + 6 + 8 * (i / 4)) >> 7 * (i % 4) & 127u; break;
    case KN_IQ2_XS: seven = grid_u16(b + 2 + 2 * i) >> 9; break;
    case KN_IQ3_XXS: seven = grid_u32(b + 66 + 4 * (i / 4)) >> 7 * (i % 4) & 127u; break;
    case KN_IQ2_S: return b[34 + i];
    case KN_IQ3_S: return b[74 + i];
    case KN_IQ1_S: return b[35 + 2 * (i / 4)] >> 7 ? 255u : 0u;
    default: return b[32 + i / 2] >> (3 + 4 * (i % 2)) & 1 ? 255u : 0u; /* IQ1_M */
    }
    uint32_t odd = seven ^ seven >> 4;
    odd ^= odd >> 2;
    return seven | ((odd ^ odd >> 1) & 1u) << 7;
}

/* What is stored of the scale of columns 16 j to 16 j + 15; the scale is twice that and 1. */
GRID_FN uint32_t grid_scale(uint32_t type, const uint8_t *b, int j)
{
    switch (type) {
    case KN_IQ2_XXS: return b[9 + 8 * (j / 2)] >> 4;
    case KN_IQ2_XS: return b[66 + j / 2] >> 4 * (j % 2) & 15u;
    case KN_IQ2_S: return b[74 + j / 2] >> 4 * (j % 2) & 15u;
    case KN_IQ3_XXS: return b[69 + 4 * (j / 2)] >> 4;
    case KN_IQ3_S: return b[106 + j / 4] >> 4 * (j / 2 % 2) & 15u;
    case KN_IQ1_S: return b[35 + 2 * (j / 2)] >> 4 & 7u;
    default: return grid_u16(b + 48 + 2 * (j / 4)) >> 3 * (j % 4) & 7u; /* IQ1_M */
    }
}

/* d, an f16. */
GRID_FN uint32_t grid_d(uint32_t type, const uint8_t *b)
{
    if (type != KN_IQ1_M) return grid_u16(b);
    return (uint32_t)b[49] >> 4 | ((uint32_t)b[51] & 0xf0u) | ((uint32_t)b[53] & 0xf0u) << 4 |
           ((uint32_t)b[55] & 0xf0u) << 8;
}

/* MXFP4: half of the value of its scale, 2^(e - 128), so that its codes are whole numbers: as a float's bits.
 */
GRID_FN uint32_t mxfp4_scale(uint32_t e)
{
    return e < 2 ? 0x00200000u << e : (e - 1) << 23;
}

#endif
