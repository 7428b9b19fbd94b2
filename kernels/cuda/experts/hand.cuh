/* experts/hand.cuh - 256 values of a row, rounded to 8 bits, and how a launch hands such a row to the mixture
 * behind it without the end of the launch between them (delta/step.cu to experts/whole.cu): as words that
 * bear the mixture's tag (tagged.cuh), which it reads until they do.
 *
 * The tag is made of that of the mixture before, which is complete when the launch between them has waited
 * (it lets the mixture's blocks start only then, so they know it too), and of the launch's number: words that
 * no mixture read are nobody else's.
 *
 * Wins: a token of 35B-A3B 1,269.5 to 1,249 us by attention's row, 1,295 to 1,258 by a net's (with
 * panels given out as blocks start). dflash-bench rows -m 35b-a3b-q4_k_m.gguf --device cuda --rows 1
 * --context 512 */
#ifndef DFLASH_CUDA_EXPERTS_HAND_CUH
#define DFLASH_CUDA_EXPERTS_HAND_CUH

#include <cuda_fp16.h>

#include "../product/prep_block.cuh"

#define HAND_UNITS 32 /* of a row, at most */
#define HAND_UNIT                                                                                            \
    33 /* 16-byte words of one: a lane's codes, four and four, each with the tag; the scale with it */

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

/* A value and its tag by one store, and one load. */
DEV void hand_put(uint4 *unit, const rounded &r, unsigned tag)
{
    const int lane = threadIdx.x % 32;
    const uint64_t high = (uint64_t)tag << 32;
    asm volatile("st.relaxed.gpu.global.v2.b64 [%0], {%1, %2};" ::"l"(unit + lane), "l"(high | r.w0),
                 "l"(high | r.w1)
                 : "memory");
    if (lane == 0)
        asm volatile("st.relaxed.gpu.global.b64 [%0], %1;" ::"l"(unit + 32), "l"(high | __float_as_uint(r.d))
                     : "memory");
}
DEV rounded hand_get(const uint4 *unit, unsigned tag)
{
    const int lane = threadIdx.x % 32;
    uint64_t a, b, s;
    do {
        asm volatile("ld.relaxed.gpu.global.v2.b64 {%0, %1}, [%2];"
                     : "=l"(a), "=l"(b)
                     : "l"(unit + lane)
                     : "memory");
        asm volatile("ld.relaxed.gpu.global.b64 %0, [%1];" : "=l"(s) : "l"(unit + 32) : "memory");
    } while (!__all_sync(~0u, a >> 32 == tag && b >> 32 == tag && s >> 32 == tag));
    return {(uint32_t)a, (uint32_t)b, __uint_as_float((uint32_t)s)};
}

#endif
