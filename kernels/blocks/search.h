/* search.h - the arithmetic of the encoders, in one shape for every machine.
 *
 * Concept: a *column* is a run of 16 or 32 consecutive values that share a scale (a block of Q4_0, a
 * sub-block of Q4_K). SEARCH_COLS columns are handled at once, transposed: x[l][c] is value l of column c.
 * Every column is computed by itself, one SIMD lane a column, with no sum across lanes, so the bits do not
 * depend on how wide the vectors are: the same code (search.inc.h) is compiled for the baseline, AVX2 and
 * AVX-512. */
#ifndef DFLASH_SEARCH_H
#define DFLASH_SEARCH_H

#include "../kernels.h"

#define SEARCH_COLS 16
#define SEARCH_LEN 32

struct search_cols {
    int len; /* values a column: 16 or 32 */
    float x[SEARCH_LEN][SEARCH_COLS] __attribute__((aligned(64)));
    float w[SEARCH_LEN][SEARCH_COLS] __attribute__((aligned(64))); /* weights of the squared error, >= 0 */
    /* results and inputs, a column */
    float scale[SEARCH_COLS] __attribute__((aligned(64)));
    float min[SEARCH_COLS] __attribute__((aligned(64)));
    float error[SEARCH_COLS] __attribute__((aligned(64)));
    uint8_t code[SEARCH_LEN][SEARCH_COLS] __attribute__((aligned(64)));
};

struct search {
    const char *name;
    /* x ~ scale * code + min, code 0..top: the scale and min of least weighted squared error found.
     * no_positive: min <= 0. */
    void (*affine)(struct search_cols *c, int top, bool no_positive);
    /* x ~ scale * (code - bias), code 0..2*bias-1. */
    void (*symmetric)(struct search_cols *c, int bias);
    /* Round to codes with the scale and min given (min < 0 for a K type: the caller passes -dmin*m); error =
     * sum of w * diff^2. */
    void (*affine_code)(struct search_cols *c, int top);
    void (*symmetric_code)(struct search_cols *c, int bias);
    /* Only the error of scale and min, no codes written. */
    void (*affine_error)(struct search_cols *c, int top);
    void (*symmetric_error)(struct search_cols *c, int bias);
    /* x ~ scale * iq4_values[code], code 0..15: the same three (scale of either sign). */
    void (*table)(struct search_cols *c);
    void (*table_code)(struct search_cols *c);
    void (*table_error)(struct search_cols *c);
    /* n values, a multiple of 32, into Q8_0 blocks. */
    void (*q8_0)(const float *x, uint8_t *dst, int64_t n);
    void (*f16)(const float *x, uint8_t *dst, int64_t n);
};
extern const struct search search_base, search_avx2, search_avx512;
const struct search *search_best(void); /* for this processor */

#endif
