/* mm.h - matrix products of the CPU: packed weights, prepared activations, and the kernels between them.
 *
 * Three concepts. A *panel* is a group of mm->lanes output rows of a matrix, interleaved at load so that a
 * SIMD lane is an output row: a product needs no sum across lanes, and an output is one sequential chain
 * whose shape depends on n_in alone. A *tile* is 1, 2, 4 or 8 tokens that meet a panel together; its
 * activations are interleaved so that the tokens' values of one k are neighbours. A *kernel* multiplies one
 * panel with one tile. Lanes, tile widths and threads differ between instruction sets and calls; the chain of
 * an output does not, so neither do its bits.
 *
 * Arithmetic: float weights meet float32 activations; quantised weights meet activations rounded to 8 bits, a
 * scale a token and 32 or 256 values (as the weight's own block), with exact integer sums inside a block and
 * one fused multiply-add a block. A NaN or Inf in an activation block makes the block's scale NaN, and so
 * every output of the row.
 *
 * mm.c: shapes, threads, the operations. mm_pack.c: packing. mm_act.inc.h, mm_quant.inc.h, mm_low.inc.h,
 * mm_grid.inc.h, mm_float.inc.h: the code of every instruction set, over the primitives that mm_scalar.c,
 * mm_avx2.c, mm_avxvnni.c and mm_avx512.c define.
 */
#ifndef DFLASH_CPU_MM_H
#define DFLASH_CPU_MM_H

#include "cpu.h"

#define MM_TILE_MAX 8
#define MM_LANES_MAX 16

/* What a weight type asks of the activations. */
enum mm_act {
    MM_ACT_F32,  /* as they are */
    MM_ACT_Q32,  /* int8, a scale for 32 */
    MM_ACT_Q256, /* int8, a scale for 256 */
    MM_ACT_COUNT,
};

/* Activations of a tile of T tokens, every array [.., T], one after the other in the order given. A tile
 * starts at T-independent bytes a token (mm_act_bytes), so tiles of any width tile a buffer.
 *
 * - F32: float x[n_in up to even]
 * - Q32: int8 q[n_in / 4][T][4]; float d[n_in / 32]; int32 nsum[n_in / 32] = -(sum of q);
 *   float s[n_in / 32] = d * (sum of q)
 * - Q256: int8 q[n_in / 64][8][T][2][4]: group g of 4 of the first and of the second 32; int16 s32[n_in /
 * 64][T][2], sums of 32 q; int32 n16[n_in / 64][2][T][2] = -32 * (sum of 16 q), the h-th 16 of the first and
 * of the second 32; float d[n_in / 256]; int32 wide[n_in / 256], MM_WIDE_*. A set that adds in 16 bits (AVX2:
 * SHORT_SUMS of mm_quant.inc.h) has in n16 two int16: -32 * the sum of the q whose k is 0 or 1 modulo 4, and
 * of the others. Only kernels of the set that wrote a tile read it. */
size_t mm_act_bytes(enum mm_act a, int64_t n_in);

/* Copy token t of a tile of T from what was prepared for it alone, as a tile of one; row NULL: zeros. */
void mm_act_deal(enum mm_act a, uint8_t *tile, const uint8_t *row, int64_t n_in, int t, int T);

/* The block's activations are so large that the codes of a type could bring the sum of a sub-block over 16
 * bits. */
enum { MM_WIDE_4 = 1, MM_WIDE_5 = 2, MM_WIDE_6 = 4 }; /* Q4_K, Q5_K, Q6_K */

/* iq4_values (blocks.h) + 128, as codes of a byte are packed. */
#define MM_IQ4_BIASED                                                                                        \
    {                                                                                                        \
        1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241                              \
    }
/* The same of mxfp4_values. */
#define MM_MXFP4_BIASED                                                                                      \
    {                                                                                                        \
        128, 129, 130, 131, 132, 134, 136, 140, 128, 127, 126, 125, 124, 122, 120, 116                       \
    }

/* One panel times one tile. */
struct mm_call {
    const uint8_t *panel;
    const uint8_t *act; /* the tile */
    int64_t n_in;
    float *out; /* [T, lanes], a token every stride floats */
    int64_t stride;
    bool add;             /* to what out holds */
    const uint8_t *ahead; /* prefetched while working; NULL: nothing */
    int32_t ahead_step;   /* 64-byte lines of ahead a block */
};
typedef void (*mm_kernel)(const struct mm_call *);

/* A weight type's packed form. Codes are interleaved by groups of 4 k: a vector is [lanes][4] bytes. A panel
 * is its blocks, one after the other, each whole with its scales: one stream, which the hardware's
 * prefetching follows (scales at the panel's end cost a third of the bandwidth). Rounded up to 64 bytes. */
struct mm_type {
    uint32_t type;
    enum mm_act act;
    int32_t block;      /* elements of n_in a block */
    int32_t lane_bytes; /* bytes a lane of a block */
};
const struct mm_type *mm_type_of(uint32_t type); /* NULL: cannot multiply */
int mm_type_index(uint32_t type);                /* row of cpu_mm.kernel, or -1 */
size_t mm_panel_bytes(const struct mm_type *t, int64_t n_in, int lanes);

#define MM_TYPES 23

/* Rows that fill a whole tile. x [n_in] each, NULL: a token of zeros. scaled: x * scale, and that * norm
 * (NULL: 1), stand for x, each product rounded: the bits of rms_norm. */
struct mm_rows {
    const float *x[MM_TILE_MAX];
    bool scaled;
    float scale[MM_TILE_MAX];
    const float *norm;  /* [n_in] */
    int64_t first, end; /* blocks of 256 to write */
};

/* What an instruction set supplies. kernel[type][log2 of the tile's width]. */
struct cpu_mm {
    int lanes; /* output rows a panel: 16 or 8 */
    int tile;  /* widest tile: 4 or 8 */
    /* Tokens of a tile that are interleaved: 4 or 8. A wider tile is two of these, one after the other. */
    int beside;
    /* Write token t of a tile of T: x [n_in] to act. x NULL: a token of zeros, which fills a tile up. */
    void (*prepare)(enum mm_act a, uint8_t *act, const float *x, int64_t n_in, int t, int T);
    /* The same bytes of MM_ACT_Q256 for all of a tile of the widest width at once; NULL: a token at a time.
     */
    void (*prepare_q256)(uint8_t *act, const struct mm_rows *r, int64_t n_in);
    mm_kernel kernel[MM_TYPES][4];
};

/* Where token *t of a tile of *T is prepared: the tokens beside it, with its place among them. */
static inline uint8_t *mm_beside(const struct cpu_mm *mm, enum mm_act a, uint8_t *tile, int64_t n_in, int *t,
                                 int *T)
{
    if (*T <= mm->beside) return tile;
    const int first = *t / mm->beside * mm->beside;
    *t -= first;
    *T = mm->beside;
    return tile + (size_t)first * mm_act_bytes(a, n_in);
}

extern const struct cpu_mm cpu_mm_scalar, cpu_mm_avx2, cpu_mm_avxvnni, cpu_mm_avx512;

#endif
