/* blocks.h - what the block codecs share: byte access and the packed scales of the K types.
 *
 * A block is bytes, little-endian, with no alignment; every codec reads and writes it through these. Layouts
 * are in docs/types.md. */
#ifndef DFLASH_BLOCKS_H
#define DFLASH_BLOCKS_H

#include "../kernels.h"

#include <string.h>

static inline uint16_t get_u16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static inline uint32_t get_u32(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline void put_u16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

static inline void put_u32(uint8_t *p, uint32_t v)
{
    put_u16(p, (uint16_t)v);
    put_u16(p + 2, (uint16_t)(v >> 16));
}

/* The 6-bit scale and min of sub-block j (0..7) out of the 12 bytes of Q4_K and Q5_K. */
static inline void get_scale_min(const uint8_t s[12], int j, unsigned *sc, unsigned *m)
{
    if (j < 4) {
        *sc = s[j] & 63;
        *m = s[j + 4] & 63;
    } else {
        *sc = (s[j + 4] & 15) | (unsigned)(s[j - 4] >> 6) << 4;
        *m = (unsigned)(s[j + 4] >> 4) | (unsigned)(s[j] >> 6) << 4;
    }
}

/* The 6-bit scale of sub-block j (0..15) out of the 12 bytes of Q3_K; 32 is still to be taken off. */
static inline int get_scale_q3(const uint8_t s[12], int j)
{
    const int low = j < 8 ? s[j] & 15 : s[j - 8] >> 4;
    return low | (s[8 + j % 4] >> 2 * (j / 4) & 3) << 4;
}

/* The 6-bit scale of sub-block j (0..7) of IQ4_XS; s: u16 high bit pairs, 4 bytes of low nibbles. */
static inline int get_scale_iq4(const uint8_t s[6], int j)
{
    return (s[2 + j / 2] >> 4 * (j % 2) & 15) | (get_u16(s) >> 2 * j & 3) << 4;
}

/* What the codes of IQ4_NL and IQ4_XS stand for. */
static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};
/* The same of MXFP4: twice the value of its 4-bit floats. */
static const int8_t mxfp4_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* n values, a multiple of 256, of a type with a grid (grids.h). */
void decode_grid(uint32_t type, const uint8_t *b, float *y, int64_t n);

#endif
