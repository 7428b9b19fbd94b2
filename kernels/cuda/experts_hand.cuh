/* experts_hand.cuh - 256 values of a row, rounded to 8 bits, and how a launch hands such a row to the mixture behind it
 * without the end of the launch between them (delta_step.cu to experts_whole.cu): as words that bear the mixture's tag
 * (tagged.cuh), which it reads until they do.
 *
 * The tag is made of that of the mixture before, which is complete when the launch between them has waited (it lets the
 * mixture's blocks start only then, so they know it too), and of the launch's number: words that no mixture read are
 * nobody else's. */
#ifndef DFLASH_CUDA_EXPERTS_HAND_CUH
#define DFLASH_CUDA_EXPERTS_HAND_CUH

#include <cuda_fp16.h>

#include "prep_block.cuh"

#define HAND_UNITS 32 /* of a row, at most */
#define HAND_UNIT 33  /* 16-byte words of one: a lane's codes, four and four, each with the tag; the scale with it */

struct cuda_backend;
struct experts_hand { /* words: NULL: not */
    uint4 *words;
    const unsigned *tag; /* of the mixture before */
    unsigned salt;
};
DEV unsigned hand_tag(const unsigned *tag, unsigned salt)
{
    return __ldcg(tag) + salt;
}
/* Where a launch leaves its row of n_in columns; and that the newest one has. */
struct experts_hand experts_hand(const struct cuda_backend *be, int64_t n_in);
void experts_handed(struct cuda_backend *be);

/* v: columns 8 lane .. of a block: their codes in two words, and the scale, as store_block makes them. */
DEV void unit_codes(const float v[8], uint32_t *w0, uint32_t *w1, float *d)
{
    uint32_t top = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) top = max(top, __float_as_uint(v[i]) & 0x7fffffff);
    top = __reduce_max_sync(0xffffffff, top);
    const bool odd = top >= 0x7f800000, none = odd || __uint_as_float(top) < 1e-30f;
    const float amax = none ? 1.0f : __uint_as_float(top), inverse = __fdiv_rn(127.0f, amax);
    *d = odd ? __uint_as_float(0x7fc00000) : none ? 0.0f : __fdiv_rn(amax, 127.0f);
    *w0 = none ? 0 : round_four(v, inverse);
    *w1 = none ? 0 : round_four(v + 4, inverse);
}

/* A value and its tag by one store, and one load. */
DEV void hand_put(uint4 *unit, uint32_t w0, uint32_t w1, float d, unsigned tag)
{
    const int lane = threadIdx.x % 32;
    const uint64_t high = (uint64_t)tag << 32;
    asm volatile("st.relaxed.gpu.global.v2.b64 [%0], {%1, %2};" ::"l"(unit + lane), "l"(high | w0), "l"(high | w1)
                 : "memory");
    if (lane == 0)
        asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(unit + 32), "l"(high | __float_as_uint(d)) : "memory");
}
DEV void hand_get(const uint4 *unit, uint32_t *w0, uint32_t *w1, float *d, unsigned tag)
{
    const int lane = threadIdx.x % 32;
    uint64_t a, b, s;
    do {
        asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];" : "=l"(a), "=l"(b) : "l"(unit + lane) : "memory");
        asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(s) : "l"(unit + 32) : "memory");
    } while (!__all_sync(~0u, a >> 32 == tag && b >> 32 == tag && s >> 32 == tag));
    *w0 = (uint32_t)a, *w1 = (uint32_t)b, *d = __uint_as_float((uint32_t)s);
}

#endif
