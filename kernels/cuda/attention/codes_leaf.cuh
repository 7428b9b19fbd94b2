/* attention/codes_leaf.cuh - a leaf of a quantised cache in shared memory, and how a warp makes factors of a
 * tensor product from it: for attention/codes.cuh and chain/codes.cuh, whose bits are the same. */
#ifndef DFLASH_CUDA_ATTENTION_CODES_LEAF_CUH
#define DFLASH_CUDA_ATTENTION_CODES_LEAF_CUH

#include "attention.cuh"

#include "codes.h"

/* Bytes of N columns of a key's codes in a plane, and from a key to the next in shared memory. */
template <uint32_t TYPE, int N> struct staged {
    static constexpr int LOW = N * kv_code<TYPE>::LOW / 8, HIGH = N * kv_code<TYPE>::HIGH / 8,
                         SCALE = N / kv_code<TYPE>::GROUP * 2;
    static constexpr int LOW_PITCH = ATTN_CODES_PITCH(LOW), HIGH_PITCH = ATTN_CODES_PITCH(HIGH),
                         SCALE_PITCH = SCALE < 4 ? 4 : SCALE;
    static __host__ __device__ constexpr int high_at(int leaf)
    {
        return leaf * LOW_PITCH;
    }
    static __host__ __device__ constexpr int scale_at(int leaf)
    {
        return leaf * (LOW_PITCH + HIGH_PITCH);
    }
};
DEV void copy_four(unsigned to, const void *from, bool really)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(really ? 4 : 0)
                 : "memory");
}
DEV uint32_t scale_twice(const unsigned char *p)
{
    const uint32_t h = *(const uint16_t *)p;
    return h | h << 16;
}

/* ---- queries ---- */

/* What a rotated query is multiplied by, a power of two: x [W] of a lane; to at most 1. *unit: what its
 * scores are multiplied by, in the scale of base 2. */
template <int W> DEV float code_down(const float x[W], float scale, float *unit)
{
    float top = 0.0f;
#pragma unroll
    for (int j = 0; j < W; j++) top = fmaxf(top, fabsf(x[j]));
    top = kv_warp_max(top);
    int e = (__float_as_int(top) >> 23) - 126; /* top < 2^e */
    e = top == INFINITY || e < -100 ? 0 : e > 126 ? 126 : e;
    const float down = __int_as_float((127 - e) << 23);
    if (threadIdx.x % 32 == 0)
        *unit = __fmul_rn(__fmul_rn(scale, 0x1.715476p+0f), __int_as_float((127 + e) << 23));
    return down;
}

/* ---- factors ---- */

/* Of a key, 32 columns, whose codes begin at low and high; d: their scale, twice. y[s][h] are two of columns
 * 16 s + 4 c on, 2 h further. */
template <uint32_t TYPE>
DEV void key_factors_at(uint32_t y[2][2], const unsigned char *low, const unsigned char *high, uint32_t d)
{
    const int c = threadIdx.x % 4;
#pragma unroll
    for (int s = 0; s < 2; s++) {
        kv_halves_of<TYPE>(kv_four<TYPE>(low, high, 4 * s + c), y[s]);
        y[s][0] = kv_mul(y[s][0], d), y[s][1] = kv_mul(y[s][1], d);
    }
}
/* Of key `key` of a leaf, columns 32 b on. */
template <uint32_t TYPE, int D, int LEAF>
DEV void key_factors(uint32_t y[2][2], const unsigned char *k, int key, int b, int odd)
{
    using S = staged<TYPE, D>;
    const unsigned char *low = k + key * S::LOW_PITCH + b * (S::LOW * 32 / D),
                        *high = k + S::high_at(LEAF) + key * S::HIGH_PITCH + 4 * b,
                        *scale = k + S::scale_at(LEAF) + key * S::SCALE_PITCH +
                                 b * 32 / kv_code<TYPE>::GROUP * 2 + odd;
    key_factors_at<TYPE>(y, low, high, scale_twice(scale));
}
/* Of the values of a key and the next, 32 columns, whose codes begin at low and high, so many bytes before
 * the next one's; d: both scales. y[t] is column 4 g + t of both. */
template <uint32_t TYPE>
DEV void value_factors_at(uint32_t y[4], const unsigned char *low, int low_pitch, const unsigned char *high,
                          int high_pitch, uint32_t d, int g)
{
    kv_crossed<TYPE>(kv_four<TYPE>(low, high, g), kv_four<TYPE>(low + low_pitch, high + high_pitch, g), y);
#pragma unroll
    for (int t = 0; t < 4; t++) y[t] = kv_mul(y[t], d);
}
/* Of key `key` of a leaf and the next, of C columns those from 32 b on. */
template <uint32_t TYPE, int C, int LEAF>
DEV void value_factors(uint32_t y[4], const unsigned char *v, int key, int b, int g, int odd)
{
    using S = staged<TYPE, C>;
    const unsigned char *low = v + key * S::LOW_PITCH + b * (S::LOW * 32 / C),
                        *high = v + S::high_at(LEAF) + key * S::HIGH_PITCH + 4 * b,
                        *scale = v + S::scale_at(LEAF) + key * S::SCALE_PITCH +
                                 b * 32 / kv_code<TYPE>::GROUP * 2 + odd;
    const uint32_t d = *(const uint16_t *)scale | (uint32_t) * (const uint16_t *)(scale + S::SCALE_PITCH)
                                                      << 16;
    value_factors_at<TYPE>(y, low, S::LOW_PITCH, high, S::HIGH_PITCH, d, g);
}

/* ---- values that are no numbers ---- */

/* Keys of the leaf, a bit each, of whose columns one is a NaN or an Inf: their scales become zeros. */
template <uint32_t TYPE, int N, int LEAF> DEV uint32_t bad_scales(unsigned char *v, int odd)
{
    using S = staged<TYPE, N>;
    const int key = threadIdx.x % LEAF;
    uint16_t *scale = (uint16_t *)(v + S::scale_at(LEAF) + key * S::SCALE_PITCH + odd);
    uint32_t bad = 0;
#pragma unroll
    for (int i = 0; i < S::SCALE / 2; i++) bad |= ((scale[i] & 0x7c00) == 0x7c00 ? 1u : 0u) << i;
    const uint32_t keys = __ballot_sync(~0u, bad != 0) & (LEAF == 32 ? ~0u : 0xffffu);
    if (keys) {
#pragma unroll 1
        for (int i = 0; i < S::SCALE / 2; i++)
            if (bad >> i & 1) scale[i] = 0;
        __syncwarp();
    }
    return keys;
}

#endif
