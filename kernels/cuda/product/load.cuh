/* load.cuh - words of packed units, of global or shared memory. Compiled for the device and for the host. */
#ifndef DFLASH_CUDA_LOAD_CUH
#define DFLASH_CUDA_LOAD_CUH

#include "pack.cuh"

#include <string.h>
#include <vector_types.h>

#ifdef __CUDA_ARCH__
#define UNPACK_UNROLL _Pragma("unroll")
#else
#define UNPACK_UNROLL
#endif

struct unpack_words {
    uint32_t w[4];
};
/* A T, of global or shared memory. */
template <class T> MM_HD T load_one(const uint8_t *p)
{
#ifdef __CUDA_ARCH__
    return *(const T *)p;
#else
    T v;
    memcpy(&v, p, sizeof v);
    return v;
#endif
}
MM_HD unpack_words load_16(const uint8_t *p)
{
    const uint4 x = load_one<uint4>(p);
    return {{x.x, x.y, x.z, x.w}};
}
MM_HD unpack_words load_8(const uint8_t *p)
{
    const uint2 x = load_one<uint2>(p);
    return {{x.x, x.y, 0, 0}};
}
MM_HD uint32_t load_4(const uint8_t *p)
{
    return load_one<uint32_t>(p);
}
MM_HD uint32_t load_2(const uint8_t *p)
{
    return load_one<unsigned short>(p);
}

/* Bytes of two words, as prmt.b32 picks them: nibble i of `which` is byte i's number, 0 to 7. */
MM_HD uint32_t load_pick(uint32_t low, uint32_t high, uint32_t which)
{
#ifdef __CUDA_ARCH__
    uint32_t v;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(v) : "r"(low), "r"(high), "r"(which));
    return v;
#else
    uint32_t v = 0;
    for (int i = 0; i < 4; i++) {
        const uint32_t n = which >> 4 * i & 7;
        v |= ((n < 4 ? low >> 8 * n : high >> 8 * (n - 4)) & 255u) << 8 * i;
    }
    return v;
#endif
}

#endif
