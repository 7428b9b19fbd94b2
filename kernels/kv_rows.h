/* kv_rows.h - what a row of a quantised cache is made of, for both backends' doors (ops/kv.h, struct kn_kv).
 *
 * A row is the keys, or the values, of one position. Heads lie plane by plane, so that each plane is read in
 * words that are aligned:
 *
 *     low bits of the codes, head after head | high bits, the same | f16 scales | zeros up to 16 bytes
 *
 *     type    low  high  scale of   value            codes of a block of 32
 *     q8_0     8    0       32      d * q            a byte each
 *     q5_0     4    1       32      d * (q - 16)     byte j: element j, and above it element j + 16. Bit
 *                                                    8 * (j % 4) + j / 4 is the high bit of element j, or,
 *                                                    4 higher, of element j + 16, j < 16
 *     q4_0     4    0       32      d * (q - 8)      as q5_0
 *     tq3_0    2    1      128      d * centroid[q]  two words of 16: element i at bit 4 * (i % 8) + 2 * (i /
 * 8); high bits: bit 4 * (i % 8) + i / 8
 *
 * The numbers are those of the formats of these names; only where bits stand is our own, and tq3_0's norm of
 * 128 stands once (others repeat it in four blocks: 3.5 bits a value, here 3.125).
 *
 * Rotation. A quantised side is stored rotated, by the Hadamard matrix H[i][j] = (-1)^popcount(i & j) /
 * sqrt(n), which is its own inverse: keys by n = the largest power of two that divides the head size, values
 * by n = 64 (32 where 64 does not divide it). tq3_0, keys and values, by signs2 H signs1 over groups of 128.
 * It spreads what is large in few places over all. A score does not change if the query is rotated too; the
 * weighted values are rotated back. After llama.cpp's caches (its pull request 21038) and TurboQuant
 * (arXiv 2504.19874) as the forks of llama.cpp have it. */
#ifndef DFLASH_KV_ROWS_H
#define DFLASH_KV_ROWS_H

#include "kernels.h"

#define KV_HEAD 1024 /* the largest head of a cache */

#ifdef __cplusplus
extern "C" {
#endif

struct kv_layout {
    int32_t low, high; /* bits a code */
    int32_t group;     /* values a scale; it divides the head size */
};
/* NULL: the type has no codes. */
const struct kv_layout *kv_layout_of(uint32_t type);

/* Bytes from the beginning of a row to head's part of each plane; and of the whole row. */
struct kv_planes {
    size_t low, high, scale, row;
};
struct kv_planes kv_planes_of(const struct kv_layout *y, int32_t n_head_kv, int32_t head_dim, int32_t head);

/* The n of the Hadamard matrix. */
int32_t kv_turn_size(uint32_t type, bool values, int32_t head_dim);
/* x[d] of one head rotated, or back, in place. Nothing where the type has no codes. */
void kv_turn(uint32_t type, bool values, float *x, int32_t d);
void kv_turn_back(uint32_t type, bool values, float *x, int32_t d);

/* One head of a row from x[d], rotated already. A block with a NaN or an Inf gets a NaN as its scale. */
void kv_encode(uint32_t type, const float *x, uint8_t *row, int32_t n_head_kv, int32_t d, int32_t head);
/* The other way: still rotated. */
void kv_decode(uint32_t type, const uint8_t *row, float *x, int32_t n_head_kv, int32_t d, int32_t head);

extern const float kv_centroids[8];
extern const float kv_mids[7];        /* halfway between neighbours; what lies on one goes up */
extern const uint32_t kv_signs[2][4]; /* bit i of word w: element 32 w + i changes its sign */

/* For tests alone: caches are not rotated, so that what rotation is good for can be seen. */
extern bool kv_test_flat;

#ifdef __cplusplus
}
#endif
#endif
