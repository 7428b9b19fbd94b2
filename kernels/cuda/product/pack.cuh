/* pack.cuh - one 32-bit word of a unit (mm.cuh) from the file's blocks: the one description of the streaming
 * layout, compiled for the device (pack.cu) and for the host, where the test takes it apart again.
 *
 * Units, in order of their bytes (lane: 0..31, g = lane / 4, q = lane % 4; s: mma step; r: A register 0..3;
 * h: half of it):
 *   nibbles       32-blocks [lane][s] words; K types [4][lane][4] words, word c of part v: group 2 v + c / 2,
 *                 s = c % 2. code (r, h) at bit 4 r + 16 h; IQ4, MXFP4: 4 (r / 2) + 8 h + 16 (r % 2)
 *   Q5 high bits  32-blocks [lane] 16-bit: (r, h) of step s at bit 2 s + r / 2 + 4 (r % 2) + 8 h; Q5_K
 *                 [lane][4] words, word v: group 2 v + i at bit i + 2 s + 8 (r / 2) + 4 (r % 2) + 16 h
 *   Q6 high pairs [2][lane][4] words, word c of part v: group 4 v + c: (r, h) at bit 2 s + 8 (r / 2) + 4 (r %
 *   2) + 16 h
 *   Q8_0          [lane][4] words, word 2 s + r % 2: byte 2 h + r / 2: registers of an mma of 8 bits
 *   Q2, Q3 codes  as the Q6 high pairs; Q3_K's third bits follow as Q5_K's high bits
 *   scales        32-blocks [g] words d of rows g, g + 8 (MXFP4: [g] byte pairs), then (types with
 *                 minimums: interleaved) m of both; Q4_K, Q5_K: the 16-byte records of 16 rows; Q6_K: 16
 *                 scales (128 added) of 16 rows, then [g] words d; IQ4_XS: the first 8 bytes of 16 rows;
 *                 Q2_K: 16 bytes of 16 rows, then [g] words d and dmin of rows g, g + 8; Q3_K: 12 bytes of
 *                 16 rows, then [g] words d
 *   F16, BF16     [s][lane][4] words, word r; F32 [s][2][lane][4] words: word 2 (r % 2) + h of part r / 2
 *
 * Types with grids, by parts that begin where grid_layout has them. A *place* of a lane, (j, s, hi), is bit
 * 4 j + 2 s + hi: columns 32 j + 16 s + 4 q .. + 3 of row g + 8 hi. Own: of a lane (IQ3, points of 4), or of
 * lane / 2.
 *   indices       [2][own][4] words: word j, byte 2 s + hi: the low 8 bits; then, a bit a place, [own] words
 *                 for each bit above
 *   signs         [lane][4] words: word j / 2, element e of 4 at bit 16 hi + 4 e + 2 (j % 2) + s. Where 8
 *                 signs are even in number [3][lane] words: elements 0 to 2 of words 0 to 2 where they are,
 *                 and where element 3 would be those of word 3: element i in word i; and [lane / 2] words:
 *                 whether the first four of a point are odd in number, of word i at bit
 *                 16 hi + 4 i + 2 (j % 2) + s. IQ1_M: a bit a place
 *   scales        of 16 rows, 4 or 3 bits each in order (IQ1_S: bit 3 the sign; IQ1_M: d behind them), then
 *                 (not IQ1_M) [g] words d */
#ifndef DFLASH_CUDA_PACK_CUH
#define DFLASH_CUDA_PACK_CUH

#include "../../blocks/grids.h"

#ifdef __CUDACC__
#define MM_HD static __host__ __device__ __forceinline__
#define MM_HD_MEMBER __host__ __device__ __forceinline__
#else
#define MM_HD static inline
#define MM_HD_MEMBER inline
#endif

struct mm_source {
    const uint8_t *data; /* row 0 of the panel, file layout */
    size_t row_bytes;
    int32_t rows; /* rows there are from it on; those past the end read as zeros */
    int64_t n_in;
    uint32_t type;
    int32_t block_bytes;
};

MM_HD const uint8_t *mm_block(const mm_source &m, int row, int64_t block)
{
    return row < m.rows ? m.data + (size_t)row * m.row_bytes + (size_t)block * (size_t)m.block_bytes
                        : nullptr;
}
MM_HD uint32_t mm_u16(const uint8_t *p)
{
    return p ? (uint32_t)p[0] | (uint32_t)p[1] << 8 : 0;
}

/* The low 4 bits of element k of a block. */
MM_HD uint32_t mm_nibble(uint32_t type, const uint8_t *b, int k)
{
    if (!b) return 0;
    if (type == KN_Q6_K) {
        const int half = k / 128, quarter = k / 32 % 4, l = k % 32;
        return b[64 * half + 32 * (quarter % 2) + l] >> 4 * (quarter / 2) & 15u;
    }
    if (type == KN_Q4_K || type == KN_Q5_K)
        return b[(type == KN_Q4_K ? 16 : 48) + 32 * (k / 64) + k % 32] >> 4 * (k / 32 % 2) & 15u;
    if (type == KN_IQ4_XS) return b[8 + 16 * (k / 32) + k % 16] >> 4 * (k / 16 % 2) & 15u;
    if (type == KN_MXFP4) return b[1 + k % 16] >> 4 * (k / 16) & 15u;
    const int head = type == KN_Q4_0 || type == KN_IQ4_NL ? 2 : type == KN_Q4_1 ? 4 : type == KN_Q5_0 ? 6 : 8;
    return b[head + k % 16] >> 4 * (k / 16) & 15u;
}

/* The bits above: one (Q5) or two (Q6_K). */
MM_HD uint32_t mm_high(uint32_t type, const uint8_t *b, int k)
{
    if (!b) return 0;
    if (type == KN_Q6_K) return b[128 + 32 * (k / 128) + k % 32] >> 2 * (k / 32 % 4) & 3u;
    if (type == KN_Q5_K) return b[16 + k % 32] >> k / 32 & 1u;
    if (type == KN_Q3_K) return b[k % 32] >> k / 32 & 1u;
    return b[(type == KN_Q5_0 ? 2 : 4) + k / 8] >> k % 8 & 1u;
}

/* Q2_K and Q3_K: the low two bits of element k. */
MM_HD uint32_t mm_two(uint32_t type, const uint8_t *b, int k)
{
    return b ? b[(type == KN_Q2_K ? 16 : 32) + 32 * (k / 128) + k % 32] >> 2 * (k / 32 % 4) & 3u : 0;
}

/* What a nibble of IQ4_NL and IQ4_XS stands for. */
MM_HD int mm_iq4(uint32_t code)
{
    const uint32_t w = code < 8    ? (code < 4 ? 0x3f2d1801u : 0x766a5d4fu)
                       : code < 12 ? 0xa6998d81u
                                   : 0xf1d9c5b5u;
    return (int)(w >> 8 * (code & 3) & 255) - 128;
}

/* The same of MXFP4, twice the value. */
MM_HD int mm_mxfp4(uint32_t code)
{
    const int size = (int)((code & 4 ? 0x0c080604u : 0x03020100u) >> 8 * (code & 3) & 255);
    return code & 8 ? -size : size;
}

/* Bytes at .. at + 3 of a block. */
MM_HD uint32_t mm_bytes(const uint8_t *p, int at)
{
    return p ? mm_u16(p + at) | mm_u16(p + at + 2) << 16 : 0;
}

MM_HD int mm_row(int lane, int r)
{
    return lane / 4 + 8 * (r & 1);
}
MM_HD int mm_col(int lane, int s, int r, int h)
{
    return 16 * s + 4 * (lane % 4) + 2 * (r >> 1) + h;
}

MM_HD uint32_t mm_nibbles(const mm_source &m, int64_t block, int group, int s, int lane)
{
    const bool table = m.type == KN_IQ4_NL || m.type == KN_IQ4_XS || m.type == KN_MXFP4;
    uint32_t w = 0;
    for (int r = 0; r < 4; r++)
        for (int h = 0; h < 2; h++)
            w |= mm_nibble(m.type, mm_block(m, mm_row(lane, r), block), 32 * group + mm_col(lane, s, r, h))
                 << (table ? 4 * (r / 2) + 8 * h + 16 * (r % 2) : 4 * r + 16 * h);
    return w;
}

/* d (at byte `at` of a block) of rows g and g + 8 */
MM_HD uint32_t mm_pair(const mm_source &m, int64_t block, int g, int at)
{
    const uint8_t *a = mm_block(m, g, block), *b = mm_block(m, g + 8, block);
    return mm_u16(a ? a + at : nullptr) | mm_u16(b ? b + at : nullptr) << 16;
}

/* Two bits a code, those of Q2_K and Q3_K or those above Q6_K's nibbles: word i. */
MM_HD uint32_t mm_pairs(const mm_source &m, int64_t block, int i)
{
    const int group = 4 * (i / 128) + i % 4, lane = i / 4 % 32;
    uint32_t w = 0;
    for (int e = 0; e < 16; e++) {
        const int s = e / 8, r = 2 * (e / 4 % 2) + e / 2 % 2, h = e % 2;
        const uint8_t *b = mm_block(m, mm_row(lane, r), block);
        const int k = 32 * group + mm_col(lane, s, r, h);
        w |= (m.type == KN_Q6_K ? mm_high(m.type, b, k) : mm_two(m.type, b, k))
             << (2 * s + 8 * (r / 2) + 4 * (r % 2) + 16 * h);
    }
    return w;
}
/* One bit a code, above those of Q3_K and Q5_K: word i. */
MM_HD uint32_t mm_singles(const mm_source &m, int64_t block, int i)
{
    const int lane = i / 4;
    uint32_t w = 0;
    for (int e = 0; e < 32; e++) {
        const int h = e / 16, j = e % 2, r = 2 * (e / 8 % 2) + e / 4 % 2, s = e / 2 % 2;
        w |= mm_high(m.type, mm_block(m, mm_row(lane, r), block),
                     32 * (2 * (i % 4) + j) + mm_col(lane, s, r, h))
             << e;
    }
    return w;
}

MM_HD uint32_t mm_word_32(const mm_source &m, int64_t block, int i)
{
    const uint32_t type = m.type;
    uint32_t w = 0;
    if (type == KN_Q8_0) {
        if (i >= 128) return mm_pair(m, block, i - 128, 0);
        const int lane = i / 4, s = i / 2 % 2;
        for (int b = 0; b < 4; b++) {
            const int r = i % 2 + 2 * (b % 2);
            const uint8_t *p = mm_block(m, mm_row(lane, r), block);
            w |= (p ? p[2 + mm_col(lane, s, r, b / 2)] : 0u) << 8 * b;
        }
        return w;
    }
    if (i < 64) return mm_nibbles(m, block, 0, i % 2, i / 2);
    i -= 64;
    if (type == KN_Q5_0 || type == KN_Q5_1) {
        if (i < 16) {
            for (int e = 0; e < 32; e++) { /* bit e: lane 2 i + e / 16 */
                const int lane = 2 * i + e / 16, h = e / 8 % 2, r = 2 * (e % 2) + e / 4 % 2, s = e / 2 % 2;
                w |= mm_high(type, mm_block(m, mm_row(lane, r), block), mm_col(lane, s, r, h)) << e;
            }
            return w;
        }
        i -= 16;
    }
    if (type == KN_MXFP4) { /* two g */
        for (int b = 0; b < 4; b++) {
            const uint8_t *p = mm_block(m, 2 * i + b / 2 + 8 * (b % 2), block);
            w |= (p ? p[0] : 0u) << 8 * b;
        }
        return w;
    }
    if (type == KN_Q4_1 || type == KN_Q5_1) return mm_pair(m, block, i / 2, 2 * (i % 2));
    return mm_pair(m, block, i, 0);
}

/* A word of Q2_K or Q3_K. */
MM_HD uint32_t mm_word_low(const mm_source &m, int64_t block, int i)
{
    if (i < 256) return mm_pairs(m, block, i);
    i -= 256;
    if (m.type == KN_Q2_K)
        return i < 64 ? mm_bytes(mm_block(m, i / 4, block), 4 * (i % 4))
                      : mm_pair(m, block, (i - 64) / 2, 80 + 2 * (i % 2));
    if (i < 128) return mm_singles(m, block, i);
    i -= 128;
    return i < 48 ? mm_bytes(mm_block(m, i / 3, block), 96 + 4 * (i % 3)) : mm_pair(m, block, i - 48, 108);
}

MM_HD uint32_t mm_word_k(const mm_source &m, int64_t block, int i)
{
    if (i < 512) return mm_nibbles(m, block, 2 * (i / 128) + i / 2 % 2, i % 2, i / 4 % 32);
    i -= 512;
    if (m.type == KN_IQ4_XS) return mm_bytes(mm_block(m, i / 2, block), 4 * (i % 2));
    if (m.type == KN_Q6_K) {
        if (i < 256) return mm_pairs(m, block, i);
        i -= 256;
        return i < 64 ? mm_bytes(mm_block(m, i / 4, block), 192 + 4 * (i % 4)) ^ 0x80808080u
                      : mm_pair(m, block, i - 64, 208);
    }
    if (m.type == KN_Q5_K) {
        if (i < 128) return mm_singles(m, block, i);
        i -= 128;
    }
    /* the record of a row: d, dmin, 12 bytes of scales */
    return mm_bytes(mm_block(m, i / 4, block), 4 * (i % 4));
}

/* Where the parts of a unit of a type with a grid begin, in words: high bits of the indices, signs, scales,
 * d. */
struct grid_layout {
    int high, sign, scale, d, end;
};
#ifdef __CUDACC__
static __host__ __device__
#else
static
#endif
    constexpr grid_layout
    grid_layout_of(uint32_t type)
{
    return type == KN_IQ2_XXS   ? grid_layout{128, 128, 240, 256, 264}
           : type == KN_IQ2_XS  ? grid_layout{128, 144, 256, 288, 296}
           : type == KN_IQ2_S   ? grid_layout{128, 160, 288, 320, 328}
           : type == KN_IQ3_XXS ? grid_layout{256, 256, 368, 384, 392}
           : type == KN_IQ3_S   ? grid_layout{256, 288, 416, 432, 440}
           : type == KN_IQ1_S   ? grid_layout{128, 176, 176, 192, 200}
                                : grid_layout{128, 176, 192, 224, 224};
}
/* The signs of the point of 8 values, and the index of the point, of lane, j, s and hi. */
MM_HD uint32_t mm_grid_signs(const mm_source &m, int64_t block, int lane, int j, int s, int hi)
{
    const uint8_t *b = mm_block(m, lane / 4 + 8 * hi, block);
    return b ? grid_signs(m.type, b, 4 * j + 2 * s + lane % 4 / 2) : 0;
}
MM_HD uint32_t mm_grid_index(const mm_source &m, int64_t block, bool four, int lane, int j, int s, int hi)
{
    const uint8_t *b = mm_block(m, lane / 4 + 8 * hi, block);
    return b ? grid_index(m.type, b, four ? 8 * j + 4 * s + lane % 4 : 4 * j + 2 * s + lane % 4 / 2) : 0;
}
/* Word i of the signs. */
MM_HD uint32_t mm_grid_sign_word(const mm_source &m, int64_t block, int i)
{
    const bool even = m.type == KN_IQ2_XXS || m.type == KN_IQ2_XS || m.type == KN_IQ3_XXS;
    uint32_t w = 0;
    for (int b = 0; b < 32; b++) {
        const int hi = b / 16, t = b % 4;
        int lane = i / 4, word = i % 4, e = b / 4 % 4;
        if (m.type == KN_IQ1_M) {
            w |= (mm_grid_signs(m, block, 2 * i, b / 4, b / 2 % 2, b % 2) & 1) << b;
            continue;
        }
        if (even && i >= 96) {
            const uint32_t four = mm_grid_signs(m, block, 2 * (i - 96), 2 * e + t / 2, t % 2, hi);
            w |= ((four ^ four >> 1 ^ four >> 2 ^ four >> 3) & 1) << b;
            continue;
        }
        if (even) {
            lane = i % 32, word = e < 3 ? i / 32 : 3;
            if (e == 3) e = i / 32;
        }
        w |= (mm_grid_signs(m, block, lane, 2 * word + t / 2, t % 2, hi) >> (4 * (lane % 2) + e) & 1) << b;
    }
    return w;
}
/* Word i of the scales. */
MM_HD uint32_t mm_grid_scale_word(const mm_source &m, int64_t block, int i)
{
    const bool halves = m.type == KN_IQ2_XS || m.type == KN_IQ2_S || m.type == KN_IQ1_M;
    const uint8_t *b = mm_block(m, halves ? i / 2 : i, block);
    uint64_t w = 0;
    if (!b) return 0;
    if (m.type == KN_IQ1_M) {
        for (int j = 0; j < 16; j++) w |= (uint64_t)grid_scale(m.type, b, j) << 3 * j;
        w |= (uint64_t)grid_d(m.type, b) << 48;
        return (uint32_t)(w >> 32 * (i % 2));
    }
    for (int j = 0; j < 8; j++) {
        w |= (uint64_t)grid_scale(m.type, b, halves ? 8 * (i % 2) + j : 2 * j) << 4 * j;
        if (m.type == KN_IQ1_S) w |= (uint64_t)(grid_signs(m.type, b, 4 * j) & 1) << (4 * j + 3);
    }
    return (uint32_t)w;
}
MM_HD uint32_t mm_word_grid(const mm_source &m, int64_t block, int i)
{
    const grid_layout y = grid_layout_of(m.type);
    const bool four = m.type == KN_IQ3_XXS || m.type == KN_IQ3_S;
    const int owners = four ? 32 : 16, lanes = 32 / owners;
    uint32_t w = 0;
    if (i < y.high) {
        const int j = i / (4 * owners) * 4 + i % 4, lane = lanes * (i / 4 % owners);
        for (int b = 0; b < 4; b++)
            w |= (mm_grid_index(m, block, four, lane, j, b / 2, b % 2) & 255) << 8 * b;
        return w;
    }
    if (i < y.sign) {
        const int bit = 8 + (i - y.high) / owners, lane = lanes * ((i - y.high) % owners);
        for (int b = 0; b < 32; b++)
            w |= (mm_grid_index(m, block, four, lane, b / 4, b / 2 % 2, b % 2) >> bit & 1) << b;
        return w;
    }
    if (i < y.scale) return mm_grid_sign_word(m, block, i - y.sign);
    return i < y.d ? mm_grid_scale_word(m, block, i - y.scale) : mm_pair(m, block, i - y.d, 0);
}

MM_HD uint32_t mm_word_plain(const mm_source &m, int64_t unit, int i)
{
    const int size = m.type == KN_F32 ? 4 : 2, lane = i / 4 % 32;
    const int s = m.type == KN_F32 ? i / 256 : i / 128;
    const int r = m.type == KN_F32 ? 2 * (i / 128 % 2) + i / 2 % 2 : i % 4;
    const uint8_t *row = mm_block(m, mm_row(lane, r), 0);
    uint32_t w = 0;
    for (int b = 0; b < 4; b++) {
        const int h = size == 4 ? i % 2 : b / 2;
        const int64_t k = 32 * unit + mm_col(lane, s, r, h);
        if (row && k < m.n_in) w |= (uint32_t)row[k * size + b % size] << 8 * b;
    }
    return w;
}

/* Word i of unit `unit` of the panel. */
MM_HD uint32_t mm_word(const mm_source &m, int64_t unit, int i)
{
    switch (m.type) {
    case KN_F32:
    case KN_F16:
    case KN_BF16: return mm_word_plain(m, unit, i);
    case KN_Q2_K:
    case KN_Q3_K: return mm_word_low(m, unit, i);
    case KN_Q4_K:
    case KN_Q5_K:
    case KN_Q6_K:
    case KN_IQ4_XS: return mm_word_k(m, unit, i);
    case KN_IQ2_XXS:
    case KN_IQ2_XS:
    case KN_IQ2_S:
    case KN_IQ3_XXS:
    case KN_IQ3_S:
    case KN_IQ1_S:
    case KN_IQ1_M: return mm_word_grid(m, unit, i);
    default: return mm_word_32(m, unit, i);
    }
}

#endif
