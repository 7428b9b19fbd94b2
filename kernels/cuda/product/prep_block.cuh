/* prep_block.cuh - 256 activations of a token, rounded to 8 bits and put where the products look for them
 * (mm.cuh): by the kernel that prepares a row, and by attention, which has its results at hand.
 *
 * A slice of U units:
 *   K types    [U][256] int8; [U][32] sums of 16 columns; [U] float scales
 *   32-blocks  [U][32] int8; [U] of {float scale, int32 minus the sum | float scale times sum}
 * The int8 of 64 columns: lane quarter q finds its 16 in bytes 16 q .. 16 q + 15: [32 columns][step] words; a
 * word is columns 0, 2, 1, 3 of four (so that w & 0x0f0f0f0f is a register of A: pack.cuh). The sums: [4][low
 * byte of four sums, high byte of four], sum = low + 128 high.
 *
 * For the kernels of few rows (mm_few_k.cuh), K types: a slice of codes alone, and at `side` of all rows,
 * unit by unit, [8 tiles][16] sums as f16, those of columns 64 k + 16 {0, 2, 1, 3}; [8 tiles] scales
 *
 * Rounding: that of kernels/cpu/mm_act.inc.h. Of the largest |x| of a block, amax: q = x * (127 / amax), ties
 * to even, scale amax / 127; not finite: scale NaN, q zero; amax below 1e-30: zeros. */
#ifndef DFLASH_CUDA_PREP_BLOCK_CUH
#define DFLASH_CUDA_PREP_BLOCK_CUH

#include "mm.cuh"

/* Four activations times inverse, rounded: bytes 0, 2, 1, 3. */
DEV uint32_t round_four(const float *v, float inverse)
{
    uint32_t u[4];
#pragma unroll
    for (int i = 0; i < 4; i++) u[i] = __float_as_uint(__fadd_rn(__fmul_rn(v[i], inverse), 12582912.0f));
    return __byte_perm(__byte_perm(u[0], u[2], 0x0040), __byte_perm(u[1], u[3], 0x0040), 0x5410);
}

/* A warp's 256 values, 8 a lane, as codes and scale: a block of 256 (K types) or eight of 32, four lanes
 * each. */
struct rounded {
    uint32_t w0, w1; /* columns 8 lane .., four and four */
    float d;
};
template <bool WHOLE> DEV rounded round_block(const float v[8])
{
    uint32_t top = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) top = max(top, __float_as_uint(v[i]) & 0x7fffffff);
    if (WHOLE) {
        top = __reduce_max_sync(0xffffffff, top);
    } else {
        top = max(top, __shfl_xor_sync(0xffffffff, top, 1));
        top = max(top, __shfl_xor_sync(0xffffffff, top, 2));
    }
    const bool odd = top >= 0x7f800000, none = odd || __uint_as_float(top) < 1e-30f;
    const float amax = none ? 1.0f : __uint_as_float(top), inverse = __fdiv_rn(127.0f, amax);
    const float d = odd ? __uint_as_float(0x7fc00000) : none ? 0.0f : __fdiv_rn(amax, 127.0f);
    return {none ? 0 : round_four(v, inverse), none ? 0 : round_four(v + 4, inverse), d};
}

/* Block `block` of a row (v normed) to its place in the prepared row, that of `token`. */
template <enum mm_act ACT>
DEV void store_block(const mm_prep &a, uint8_t *row, int block, const float v[8], int token = 0)
{
    const int lane = threadIdx.x % 32;
    const rounded r = round_block<ACT == MM_ACT_K>(v);
    const uint32_t w0 = r.w0, w1 = r.w1;
    const float d = r.d;
    int sum = __dp4a((int)w0, 0x01010101, __dp4a((int)w1, 0x01010101, 0));
    sum += __shfl_xor_sync(0xffffffff, sum, 1);
    if (ACT != MM_ACT_K) sum += __shfl_xor_sync(0xffffffff, sum, 2);

    constexpr int per = ACT == MM_ACT_K ? 1 : 8; /* units of a block */
    const int slice = per * block / a.slice_units, local = per * block - slice * a.slice_units;
    uint8_t *dst = row + (size_t)slice * (size_t)a.slice_row;
    if (per * block + (per == 1 ? 0 : lane / 4) >= a.units) return;
    if (ACT == MM_ACT_K && a.wide) {
        const uint32_t n = (uint32_t)a.wide, k = lane / 2 % 4;
        uint8_t *const u = a.rows + (uint32_t)block * (WIDE_UNIT * n) + 16 * (uint32_t)token;
        *(uint2 *)(u + lane / 2 * 16 * n + 8 * (lane % 2)) = make_uint2(w0, w1);
        if (lane % 2 == 0)
            *(__half *)(u + 256 * n + k % 2 * 16 * n + 4 * (lane / 8) + 2 * (k / 2)) = __int2half_rn(sum);
        if (lane == 0) *(float *)(u + 288 * n - 12 * token) = d;
        return;
    }
    uint8_t *q = dst + (256 / per) * local + 64 * (lane / 8) + 32 * (lane % 2) + 8 * (lane / 4 % 2) +
                 4 * (lane / 2 % 2);
    *(uint32_t *)q = w0;
    *(uint32_t *)(q + 16) = w1;
    if (ACT == MM_ACT_K && a.side) {
        uint8_t *u = a.side + (uint32_t)block * FEW_SIDE(a.tiles);
        const int k = lane / 2 % 4;
        if (lane % 2 == 0)
            *(__half *)(u + 32 * token + 8 * (lane / 8) +
                        (k == 1   ? 4
                         : k == 2 ? 2
                                  : 2 * k)) = __int2half_rn(sum);
        if (lane == 0) *(float *)(u + 256 * a.tiles + 4 * token) = d;
    } else if (ACT == MM_ACT_K) {
        uint8_t *sums = dst + 256 * a.slice_units + 32 * local + 8 * (lane / 8) + lane / 2 % 4;
        const int low = ((sum + 64) & 127) - 64;
        if (lane % 2 == 0)
            sums[0] = (uint8_t)low;
        else
            sums[4] = (uint8_t)((sum - low) >> 7);
        if (lane == 0) *(float *)(dst + 288 * a.slice_units + 4 * local) = d;
    } else if (lane % 4 == 0) {
        *(uint2 *)(dst + 32 * a.slice_units + 8 * (local + lane / 4)) =
            make_uint2(__float_as_uint(d),
                       ACT == MM_ACT_32 ? (uint32_t)-sum : __float_as_uint(__fmul_rn(d, (float)sum)));
    }
}

#endif
