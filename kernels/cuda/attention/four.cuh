/* four.cuh - products of four warps (wgmma, compute capability 9.0; nothing elsewhere): 64 rows of queries or
 * weights by keys or values that stand in shared memory as boxes of 64 columns, whose 16-byte pieces are
 * turned by the row (chain/map.cu). A chain of them has the bits of the chain of mma m16n8k16 of the same
 * operands in the same order. */
#ifndef DFLASH_CUDA_ATTENTION_FOUR_CUH
#define DFLASH_CUDA_ATTENTION_FOUR_CUH

#define mma attention_mma /* the products of bulk.cuh have an mma of their own */
#include "attention.cuh"
#undef mma
#include "../core/bulk.cuh"
#include "../chain/chain.cuh"

namespace four
{
/* Of a matrix in shared memory with rows of 128 bytes, turned: where it begins; bytes from 64 columns to the
 * next (where columns are what is multiplied over: nothing). The lower word of what a product wants, the
 * upper one is always that of 1,024 bytes from 8 rows to the next. */
DEV uint32_t matrix_at(uint32_t at, uint32_t apart)
{
    return (at >> 4 & 0x3fff) | (apart >> 4) << 16;
}
#define MATRIX(NAME, LOWER) ".reg .b64 " NAME ";\nmov.b64 " NAME ", {" LOWER ", 0x40000040};\n"
DEV void products_begin()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
DEV void products_commit()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
DEV void products_wait()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#endif
}
DEV void products_end()
{
    products_commit();
    products_wait();
}
/* Of a ring of places with a barrier each: one, and the parity of its turn. */
struct place {
    uint32_t at, phase;
    __device__ __forceinline__ void next(uint32_t stages)
    {
        if (++at == stages) at = 0, phase ^= 1;
    }
};
/* Rows from `row` of a head, 64 columns, to shared memory: as many rows as the map's box has. policy: of the
 * L2 cache, BOX_KEPT or WEIGHTS_POLICY. */
#define BOX_KEPT 0x1000000000000000ull
DEV void box(uint32_t to, const chain_map *map, int column, int head, int row, uint64_t *b,
             uint64_t policy = BOX_KEPT)
{
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
        "[%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
        "l"(map), "r"(column), "r"(head), "r"(row), "r"(shared_at(b)), "l"(policy)
        : "memory");
#endif
}

/* Results of a thread, as the operands 0 to 63, or to 31, of an instruction. */
#define RESULTS_64                                                                                           \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                 \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define RESULTS                                                                                              \
    RESULTS_64 ", "                                                                                          \
               "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "            \
               "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define FOUR(x, i) "+f"(x[i][0]), "+f"(x[i][1]), "+f"(x[i][2]), "+f"(x[i][3])
#define ALL_64(x)                                                                                            \
    FOUR(x, 0), FOUR(x, 1), FOUR(x, 2), FOUR(x, 3), FOUR(x, 4), FOUR(x, 5), FOUR(x, 6), FOUR(x, 7)
#define ALL(x)                                                                                               \
    ALL_64(x), FOUR(x, 8), FOUR(x, 9), FOUR(x, 10), FOUR(x, 11), FOUR(x, 12), FOUR(x, 13), FOUR(x, 14),      \
        FOUR(x, 15)

/* x[64, 128] = q k, or += : 16 columns of both. */
template <bool BF16> DEV void score_128(float x[16][4], uint32_t q, uint32_t k, int more)
{
#if __CUDA_ARCH__ >= 900
#define SCORES(TYPE)                                                                                         \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n" MATRIX("a", "%64")                             \
                     MATRIX("b", "%65") "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE         \
                                        " {" RESULTS "}, a, b, p, 1, 1, 0, 0;\n}"                            \
                 : ALL(x)                                                                                    \
                 : "r"(q), "r"(k), "r"(more))
    if (BF16)
        SCORES("bf16");
    else
        SCORES("f16");
#endif
}
/* x[64, 64]. */
template <bool BF16> DEV void score_64(float x[8][4], uint32_t q, uint32_t k, int more)
{
#if __CUDA_ARCH__ >= 900
#define SCORES_64(TYPE)                                                                                      \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n" MATRIX("a", "%32")                             \
                     MATRIX("b", "%33") "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE          \
                                        " {" RESULTS_64 "}, a, b, p, 1, 1, 0, 0;\n}"                         \
                 : ALL_64(x)                                                                                 \
                 : "r"(q), "r"(k), "r"(more))
    if (BF16)
        SCORES_64("bf16");
    else
        SCORES_64("f16");
#endif
}
/* acc[64, 128] = p v over 16 keys, or +=. */
template <bool BF16> DEV void weigh_128(float acc[16][4], const uint32_t p[4], uint32_t v, int more)
{
#if __CUDA_ARCH__ >= 900
#define WEIGH(TYPE)                                                                                          \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n" MATRIX(                                        \
                     "b", "%68") "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE " {" RESULTS   \
                                 "}, {%64, %65, %66, %67}, b, p, 1, 1, 1;\n}"                                \
                 : ALL(acc)                                                                                  \
                 : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "r"(v), "r"(more))
    if (BF16)
        WEIGH("bf16");
    else
        WEIGH("f16");
#endif
}

/* 64 columns. */
template <bool BF16> DEV void weigh_64(float acc[8][4], const uint32_t p[4], uint32_t v, int more)
{
#if __CUDA_ARCH__ >= 900
#define WEIGH_64(TYPE)                                                                                       \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n" MATRIX(                                        \
                     "b", "%36") "wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE " {" RESULTS_64 \
                                 "}, {%32, %33, %34, %35}, b, p, 1, 1, 1;\n}"                                \
                 : ALL_64(acc)                                                                               \
                 : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "r"(v), "r"(more))
    if (BF16)
        WEIGH_64("bf16");
    else
        WEIGH_64("f16");
#endif
}

/* What reads x below stands below. */
DEV void settle_128(float x[16][4])
{
    asm volatile("" : ALL(x)::"memory");
}
DEV void settle_64(float x[8][4])
{
    asm volatile("" : ALL_64(x)::"memory");
}
} /* namespace four */

#endif
