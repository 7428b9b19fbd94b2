/* block_scales.h - random bytes become a block of ordinary numbers: its f16 scales are set. Of C and C++. */
#ifndef DFLASH_TEST_BLOCK_SCALES_H
#define DFLASH_TEST_BLOCK_SCALES_H

#include "../kernels/kernels.h"

#include <math.h>
#include <string.h>

static inline void block_put_f16(uint8_t *b, float v)
{
    const uint16_t h = kn_f32_to_f16(v);
    memcpy(b, &h, 2);
}

/* d, and m where the type has minimums, to the block b of a type with blocks. MXFP4: the power of two at |d|
 * or below. */
static inline void block_set_scales(uint32_t type, uint8_t *b, float d, float m)
{
    const uint16_t h = kn_f32_to_f16(d);
    switch (type) {
    case KN_Q6_K: block_put_f16(b + 208, d); break;
    case KN_Q3_K: block_put_f16(b + 108, d); break;
    case KN_Q2_K: block_put_f16(b + 80, d), block_put_f16(b + 82, m); break;
    case KN_Q4_1:
    case KN_Q5_1:
    case KN_Q4_K:
    case KN_Q5_K: block_put_f16(b, d), block_put_f16(b + 2, m); break;
    case KN_IQ1_M: /* the upper 4 bits of four words */
        for (int i = 0; i < 4; i++) b[49 + 2 * i] = (uint8_t)((b[49 + 2 * i] & 15) | (h >> 4 * i & 15) << 4);
        break;
    case KN_MXFP4: b[0] = (uint8_t)(d != 0 ? 128 + ilogbf(d) : 0); break;
    default: block_put_f16(b, d);
    }
}

#endif
