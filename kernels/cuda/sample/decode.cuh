/* sample/decode.cuh - one value of a table's row in file layout: computed as kernels/blocks/decode.c does,
 * every step rounded, so the bits are the CPU's. */
#ifndef DFLASH_CUDA_SAMPLE_DECODE_CUH
#define DFLASH_CUDA_SAMPLE_DECODE_CUH

#include "../product/grid_unit.cuh"

#include <cuda_fp16.h>

/* Code k of the block at b; Q2_K and Q3_K: its low two bits. */
DEV int code_of(uint32_t type, const uint8_t *b, int k)
{
    if (type == KN_Q2_K || type == KN_Q3_K) return (int)mm_two(type, b, k);
    const bool high = type == KN_Q5_0 || type == KN_Q5_1 || type == KN_Q5_K || type == KN_Q6_K;
    return (int)(mm_nibble(type, b, k) | (high ? mm_high(type, b, k) << 4 : 0));
}
DEV float times(float d, int code)
{
    return __fmul_rn(d, (float)code);
}

/* Value k of a block of a type with a grid: exact. */
template <uint32_t TYPE> DEV float decode_grid_value(const uint8_t *b, int k)
{
    constexpr bool four = TYPE == KN_IQ3_XXS || TYPE == KN_IQ3_S;
    const uint32_t i = grid_index(TYPE, b, k / (four ? 4 : 8)),
                   level = grid_all()[grid_first(TYPE) + (four ? i : 2 * i + (uint32_t)(k / 4 % 2))] >>
                               4 * (k % 4) &
                           15;
    const bool minus = grid_signs(TYPE, b, k / 8) >> k % 8 & 1;
    const float ds =
        times(__fmul_rn(__half2float(__ushort_as_half((unsigned short)grid_d(TYPE, b))), grid_down<TYPE>()),
              (int)(2 * grid_scale(TYPE, b, k / 16) + 1));
    return times(ds, grid_code<TYPE>(level, minus));
}
DEV float decode_grid(uint32_t type, const uint8_t *b, int k)
{
    switch (type) {
    case KN_IQ2_XXS: return decode_grid_value<KN_IQ2_XXS>(b, k);
    case KN_IQ2_XS: return decode_grid_value<KN_IQ2_XS>(b, k);
    case KN_IQ2_S: return decode_grid_value<KN_IQ2_S>(b, k);
    case KN_IQ3_XXS: return decode_grid_value<KN_IQ3_XXS>(b, k);
    case KN_IQ3_S: return decode_grid_value<KN_IQ3_S>(b, k);
    case KN_IQ1_S: return decode_grid_value<KN_IQ1_S>(b, k);
    default: return decode_grid_value<KN_IQ1_M>(b, k);
    }
}

/* Value k of the block at b. */
DEV float decode_block(uint32_t type, const uint8_t *b, int k)
{
    if (grid_has(type)) return decode_grid(type, b, k);
    const auto f16 = [&](int at) { return __half2float(__ushort_as_half((unsigned short)mm_u16(b + at))); };
    if (type == KN_Q8_0) return times(f16(0), (int8_t)b[2 + k]);
    const int code = code_of(type, b, k), i = k / 16, j = k / 32;
    switch (type) {
    case KN_Q4_0: return times(f16(0), code - 8);
    case KN_Q5_0: return times(f16(0), code - 16);
    case KN_IQ4_NL: return times(f16(0), mm_iq4((uint32_t)code));
    case KN_MXFP4: return times(__uint_as_float(mxfp4_scale(b[0])), mm_mxfp4((uint32_t)code));
    case KN_Q4_1:
    case KN_Q5_1: return __fadd_rn(times(f16(0), code), f16(2));
    case KN_IQ4_XS: {
        const int sc = (b[4 + j / 2] >> 4 * (j % 2) & 15) | (int)(mm_u16(b + 2) >> 2 * j & 3) << 4;
        return times(times(f16(0), sc - 32), mm_iq4((uint32_t)code));
    }
    case KN_Q2_K: return __fsub_rn(times(times(f16(80), b[i] & 15), code), times(f16(82), b[i] >> 4));
    case KN_Q3_K: {
        const int low = i < 8 ? b[96 + i] & 15 : b[88 + i] >> 4, high = b[104 + i % 4] >> 2 * (i / 4) & 3;
        return times(times(f16(108), (low | high << 4) - 32), code - (mm_high(type, b, k) ? 0 : 4));
    }
    case KN_Q6_K: return times(times(f16(208), (int8_t)b[192 + i]), code - 32);
    default: { /* Q4_K, Q5_K: the 6-bit scale and minimum j of 12 bytes */
        const uint8_t *s = b + 4 + j % 4;
        const int sc = j < 4 ? s[0] & 63 : (s[8] & 15) | s[0] >> 6 << 4,
                  m = j < 4 ? s[4] & 63 : s[8] >> 4 | s[4] >> 6 << 4;
        return __fsub_rn(times(times(f16(0), sc), code), times(f16(2), m));
    }
    }
}

DEV float decode(uint32_t type, const uint8_t *row, int64_t i, uint32_t block, uint32_t bytes)
{
    switch (type) {
    case KN_F32: return ((const float *)row)[i];
    case KN_F16: return __half2float(((const __half *)row)[i]);
    case KN_BF16: return __uint_as_float((uint32_t)((const uint16_t *)row)[i] << 16);
    case KN_F64: return (float)((const double *)row)[i];
    default: return decode_block(type, row + i / block * bytes, (int)((uint32_t)i & (block - 1)));
    }
}

#endif
