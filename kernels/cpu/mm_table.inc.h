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

WIDTHS(mul_f32)
WIDTHS(mul_f16)
WIDTHS(mul_bf16)
WIDTHS(mul_q8_0)
WIDTHS(mul_q4_0)
WIDTHS(mul_q5_0)
WIDTHS(mul_q4_1)
WIDTHS(mul_q5_1)
WIDTHS(mul_q4_k)
WIDTHS(mul_q5_k)
WIDTHS(mul_q6_k)
WIDTHS(mul_iq4_nl)
WIDTHS(mul_iq4_xs)
WIDTHS(mul_q2_k)
WIDTHS(mul_q3_k)

/* In the order of mm_types (mm_pack.c). */
const struct cpu_mm MM_NAME = {
    .lanes = LANES,
    .tile = TILE,
    .prepare = act_prepare,
#ifdef MM_PREPARE_Q256
    .prepare_q256 = MM_PREPARE_Q256,
#endif
    .kernel = {ROW(mul_f32), ROW(mul_f16), ROW(mul_bf16), ROW(mul_q8_0), ROW(mul_q4_0), ROW(mul_q5_0),
               ROW(mul_q4_1), ROW(mul_q5_1), ROW(mul_q4_k), ROW(mul_q5_k), ROW(mul_q6_k), ROW(mul_iq4_nl),
               ROW(mul_iq4_xs), ROW(mul_q2_k), ROW(mul_q3_k)},
};
