/* grids.c - the grids of IQ1, IQ2 and IQ3, made of the sets that they are, and blocks to float32. */
#include "blocks.h"
#include "grids.h"

#include "grid_sets.h"

#include <pthread.h>

#define IQ2_CODES                                                                                            \
    {                                                                                                        \
        8, 25, 43, 0, 0, 0, 0, 0, -8, -25, -43, 0, 0, 0, 0, 0                                                \
    }
/* 8 times a level of -1, 0 or 1, and 1 more or less. */
#define IQ1_CODES                                                                                            \
    {                                                                                                        \
        -7, 1, 9, 0, 0, 0, 0, 0, -9, -1, 7, 0, 0, 0, 0, 0                                                    \
    }

static const struct grid_kind kinds[] = {
    {KN_IQ2_XXS, 8, 256, 3, 32, IQ2_CODES},
    {KN_IQ2_XS, 8, 512, 3, 16, IQ2_CODES},
    {KN_IQ2_S, 8, 1024, 3, 16, IQ2_CODES},
    {KN_IQ3_XXS, 4, 256, 2, 32, {4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52, -62}},
    {KN_IQ3_S, 4, 512, 0, 32, {1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15}},
    {KN_IQ1_S, 8, 2048, 3, 32, IQ1_CODES},
    {KN_IQ1_M, 8, 2048, 3, 16, IQ1_CODES},
};
#define KINDS (int)(sizeof kinds / sizeof *kinds)

static struct {
    uint32_t iq2_xxs[256], iq2_xs[512], iq2_s[1024], iq1[2048], iq3_xxs[256], iq3_s[512];
} grid;

/* The numbers below base^values that the set holds, in ascending order. */
static void expand(uint32_t *points, const uint32_t *set, unsigned base, int values)
{
    const unsigned numbers = base == 3 ? 6561 : 4096;
    for (unsigned n = 0; n < numbers; n++) {
        if (!(set[n / 32] >> n % 32 & 1)) continue;
        uint32_t w = 0;
        unsigned rest = n;
        for (int i = 0; i < values; i++, rest /= base) w |= (rest % base) << (8 * (i % 4) + 4 * (i / 4));
        *points++ = w;
    }
}

static void expand_all(void)
{
    expand(grid.iq2_xxs, set_iq2_xxs, 3, 8);
    expand(grid.iq2_xs, set_iq2_xs, 3, 8);
    expand(grid.iq2_s, set_iq2_s, 3, 8);
    expand(grid.iq1, set_iq1, 3, 8);
    expand(grid.iq3_xxs, set_iq3_xxs, 8, 4);
    expand(grid.iq3_s, set_iq3_s, 8, 4);
}

const struct grid_kind *grid_kind_of(uint32_t type)
{
    for (int i = 0; i < KINDS; i++)
        if (kinds[i].type == type) return &kinds[i];
    return NULL;
}

const uint32_t *grid_points(uint32_t type)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, expand_all);
    switch (type) {
    case KN_IQ2_XXS: return grid.iq2_xxs;
    case KN_IQ2_XS: return grid.iq2_xs;
    case KN_IQ2_S: return grid.iq2_s;
    case KN_IQ3_XXS: return grid.iq3_xxs;
    case KN_IQ3_S: return grid.iq3_s;
    case KN_IQ1_S:
    case KN_IQ1_M: return grid.iq1;
    default: return NULL;
    }
}

static void decode_block(const struct grid_kind *kind, const uint32_t *points, const uint8_t *b, float *y)
{
    const float d = kn_f16_to_f32((uint16_t)grid_d(kind->type, b)) / (float)(1 << kind->shift);
    for (int i = 0; i < 32; i++) { /* of 8 values */
        const float ds = d * (float)(2 * grid_scale(kind->type, b, i / 2) + 1);
        const uint32_t signs = grid_signs(kind->type, b, i);
        const uint32_t w = kind->values == 8 ? points[grid_index(kind->type, b, i)]
                                             : points[grid_index(kind->type, b, 2 * i)] |
                                                   points[grid_index(kind->type, b, 2 * i + 1)] << 4;
        for (int j = 0; j < 8; j++) {
            const uint32_t level = w >> (8 * (j % 4) + 4 * (j / 4)) & 15;
            y[8 * i + j] = ds * (float)kind->code[level | (signs >> j & 1) << 3];
        }
    }
}

void decode_grid(uint32_t type, const uint8_t *b, float *y, int64_t n)
{
    const struct grid_kind *kind = grid_kind_of(type);
    const uint32_t *points = grid_points(type);
    const size_t bytes = kn_type_info(type)->bytes;
    for (int64_t i = 0; i < n; i += 256, b += bytes) decode_block(kind, points, b, y + i);
}
