/* mm_table.inc.h - every kernel at every tile width, and the set's table. Needs LANES, TILE, MM_NAME and the
 * primitives. */
#define ALWAYS_INLINE inline __attribute__((always_inline))
#ifndef UNROLL
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* `lines` cache lines of what is needed next, into the second-level cache. */
static ALWAYS_INLINE const uint8_t *prefetch_lines(const uint8_t *p, int32_t lines)
{
    for (int32_t i = 0; i < lines; i++) __builtin_prefetch(p + 64 * i, 0, 2);
    return p + 64 * lines;
}

static ALWAYS_INLINE void put_out(const struct mm_call *c, const vf *result, const int T)
{
    float *out = c->out;
    if (c->add)
        UNROLL for (int t = 0; t < T; t++)
            vf_store(out + t * c->stride, vf_add(vf_load((const uint8_t *)(out + t * c->stride)), result[t]));
    else
        UNROLL for (int t = 0; t < T; t++) vf_store(out + t * c->stride, result[t]);
}

#include "mm_act.inc.h"
#ifdef MM_PREPARE_Q256
#include "mm_tile512.inc.h"
#endif
#include "mm_float.inc.h"
#include "mm_quant.inc.h"
#include "mm_low.inc.h"

#include "../blocks/grids.h"
#include "mm_grid.inc.h"

#if TILE == 8
#define WIDTHS(NAME) WIDTH(NAME, 1) WIDTH(NAME, 2) WIDTH(NAME, 4) WIDTH(NAME, 8)
#define ROW(NAME)                                                                                            \
    {                                                                                                        \
        NAME##_1, NAME##_2, NAME##_4, NAME##_8                                                               \
    }
#else
#define WIDTHS(NAME) WIDTH(NAME, 1) WIDTH(NAME, 2) WIDTH(NAME, 4)
#define ROW(NAME)                                                                                            \
    {                                                                                                        \
        NAME##_1, NAME##_2, NAME##_4, NULL                                                                   \
    }
#endif
#define WIDTH(NAME, T)                                                                                       \
    static void NAME##_##T(const struct mm_call *c)                                                          \
    {                                                                                                        \
        NAME(c, T);                                                                                          \
    }

/* A tile of more tokens than lie beside each other, for types that gain nothing by meeting all at once. */
#define PARTS(NAME, ACT) WIDTH(NAME, 1) WIDTH(NAME, 2) WIDTH(NAME, 4) PARTS_8(NAME, ACT)
#if TILE_BESIDE < TILE
#define PARTS_8(NAME, ACT)                                                                                   \
    static void NAME##_8(const struct mm_call *c)                                                            \
    {                                                                                                        \
        struct mm_call part = *c;                                                                            \
        NAME##_4(&part);                                                                                     \
        part.act += 4 * mm_act_bytes(ACT, c->n_in);                                                          \
        part.out += 4 * c->stride;                                                                           \
        part.ahead_step = 0;                                                                                 \
        NAME##_4(&part);                                                                                     \
    }
#elif TILE == 8
#define PARTS_8(NAME, ACT) WIDTH(NAME, 8)
#else
#define PARTS_8(NAME, ACT)
#endif

PARTS(mul_f32, MM_ACT_F32)
PARTS(mul_f16, MM_ACT_F32)
PARTS(mul_bf16, MM_ACT_F32)
PARTS(mul_q8_0, MM_ACT_Q32)
PARTS(mul_q4_0, MM_ACT_Q32)
PARTS(mul_q5_0, MM_ACT_Q32)
PARTS(mul_q4_1, MM_ACT_Q32)
PARTS(mul_q5_1, MM_ACT_Q32)
PARTS(mul_q4_k, MM_ACT_Q256)
PARTS(mul_q5_k, MM_ACT_Q256)
WIDTHS(mul_q6_k)
PARTS(mul_iq4_nl, MM_ACT_Q32)
PARTS(mul_iq4_xs, MM_ACT_Q256)
PARTS(mul_q2_k, MM_ACT_Q256)
PARTS(mul_q3_k, MM_ACT_Q256)
PARTS(mul_mxfp4, MM_ACT_Q32)
PARTS(mul_iq2_xxs, MM_ACT_Q256)
PARTS(mul_iq2_xs, MM_ACT_Q256)
PARTS(mul_iq2_s, MM_ACT_Q256)
PARTS(mul_iq3_xxs, MM_ACT_Q256)
PARTS(mul_iq3_s, MM_ACT_Q256)
PARTS(mul_iq1_s, MM_ACT_Q256)
PARTS(mul_iq1_m, MM_ACT_Q256)

/* In the order of mm_types (mm_pack.c). */
const struct cpu_mm MM_NAME = {
    .lanes = LANES,
    .tile = TILE,
    .beside = TILE_BESIDE,
    .prepare = act_prepare,
#ifdef MM_PREPARE_Q256
    .prepare_q256 = MM_PREPARE_Q256,
#endif
    .kernel = {ROW(mul_f32),   ROW(mul_f16),     ROW(mul_bf16),   ROW(mul_q8_0),  ROW(mul_q4_0),
               ROW(mul_q5_0),  ROW(mul_q4_1),    ROW(mul_q5_1),   ROW(mul_q4_k),  ROW(mul_q5_k),
               ROW(mul_q6_k),  ROW(mul_iq4_nl),  ROW(mul_iq4_xs), ROW(mul_q2_k),  ROW(mul_q3_k),
               ROW(mul_mxfp4), ROW(mul_iq2_xxs), ROW(mul_iq2_xs), ROW(mul_iq2_s), ROW(mul_iq3_xxs),
               ROW(mul_iq3_s), ROW(mul_iq1_s),   ROW(mul_iq1_m)},
};
