/* encode.h - what the encoders share. */
#ifndef DFLASH_ENCODE_H
#define DFLASH_ENCODE_H

#include "blocks.h"
#include "search.h"

/* Transpose n columns of c->len values (and their weights; 1 where importance is
 * NULL); the rest are zeros. */
void search_load(struct search_cols *c, const float *x, const float *importance, int n);
/* f clamped to f16's finite range and rounded: *h and its value. */
float search_round_f16(float f, uint16_t *h);

/* encode_k.c: n is a multiple of 256, src checked. */
void encode_k45(const struct search *s, const float *x, uint8_t *dst, int64_t n, const float *importance,
                bool five);
void encode_k6(const struct search *s, const float *x, uint8_t *dst, int64_t n, const float *importance);

/* Without importance: the root of the mean square of the column plus |x|, so that large values count more.
 * With it: importance * sqrt(2 * mean square of the super-block + x^2). */
void encode_weigh(struct search_cols *c, bool importance, int cols_a_block);
/* encode_low.c: the same of IQ4_NL (n: of 32), IQ4_XS, Q3_K and Q2_K. */
void encode_iq4_nl(const struct search *s, const float *x, uint8_t *dst, int64_t n, const float *importance);
void encode_iq4_xs(const struct search *s, const float *x, uint8_t *dst, int64_t n, const float *importance);
void encode_k3(const struct search *s, const float *x, uint8_t *dst, int64_t n, const float *importance);
void encode_k2(const struct search *s, const float *x, uint8_t *dst, int64_t n, const float *importance);

/* encode_grid.c: IQ2 and IQ3, and MXFP4 (n: of 32). Scalar code. */
void encode_grid(uint32_t type, const float *x, uint8_t *dst, int64_t n, const float *importance);
void encode_mxfp4(const float *x, uint8_t *dst, int64_t n, const float *importance);

/* kn_encode_row with the instruction set given (tests compare them). */
int encode_with(const struct search *s, uint32_t type, const float *src, void *dst, int64_t n,
                const float *importance);

#endif
