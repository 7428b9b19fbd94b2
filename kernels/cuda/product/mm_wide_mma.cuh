/* mm_wide_mma.cuh - products of four warps (wgmma, compute capability 9.0): 64 rows of A in registers, 16 a
 * warp, times 8 NT columns of B in shared memory. A's registers and the results' are those of mma.sync
 * (mm_frag.cuh).
 *
 * B, without swizzle: pieces of 16 bytes along k, of 8 columns side by side 128 bytes; SBO, from 8 columns to
 * the next: 128 bytes; LBO, from 16 bytes along k to the next: 16 bytes times the columns. */
#ifndef DFLASH_CUDA_MM_WIDE_MMA_CUH
#define DFLASH_CUDA_MM_WIDE_MMA_CUH

#include "mm_frag.cuh"

/* The low word of its descriptor; the high one is 128 / 16 (SBO). */
DEV uint32_t wide_matrix(uint32_t at, uint32_t columns)
{
    return at >> 4 | columns << 16;
}
/* Before products, when their registers have been written. */
DEV void wide_begin()
{
    asm_90("wgmma.fence.sync.aligned;" ::: "memory");
}
/* The products since the last one are a group. */
DEV void wide_commit()
{
    asm_90("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/* All groups but the newest LEFT are done. */
template <int LEFT> DEV void wide_wait()
{
    asm_90("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}

/* low, high: += codes times activations of 32 columns (more: 0, = them); A unsigned and signed bytes. sums: =
 * of 16 columns of f16. settle: what reads c below stands below. */
template <int NT> struct wide_mma;
#define WIDE_FOUR(how, i) how(c[i][0]), how(c[i][1]), how(c[i][2]), how(c[i][3])
#define WIDE_INT(A_TYPE, N, RESULTS, A, B, MORE, EACH)                                                       \
    asm_90("{\n.reg .pred p;\n.reg .b64 d;\nsetp.ne.b32 p, %" MORE ", 0;\nmov.b64 d, {%" B "};\n"            \
           "wgmma.mma_async.sync.aligned.m64n" N "k32.s32." A_TYPE ".s8 {" RESULTS "}, {" A "}, d"           \
           ", p;\n}"                                                                                         \
           : EACH("+r")                                                                                      \
           : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(8), "r"(more))
#define WIDE_MMA(NT, N, RESULTS, A, B, MORE, EACH)                                                           \
    template <> struct wide_mma<NT> {                                                                        \
        DEV void low(int (*c)[4], const uint32_t a[4], uint32_t b, int more)                                 \
        {                                                                                                    \
            WIDE_INT("u8", N, RESULTS, A, B, MORE, EACH);                                                    \
        }                                                                                                    \
        DEV void high(int (*c)[4], const uint32_t a[4], uint32_t b, int more)                                \
        {                                                                                                    \
            WIDE_INT("s8", N, RESULTS, A, B, MORE, EACH);                                                    \
        }                                                                                                    \
        DEV void sums(float (*c)[4], const uint32_t a[4], uint32_t b)                                        \
        {                                                                                                    \
            asm_90("{\n.reg .pred p;\n.reg .b64 d;\nsetp.ne.b32 p, %" MORE ", 0;\nmov.b64 d, {%" B "};\n"    \
                   "wgmma.mma_async.sync.aligned.m64n" N "k16.f32.f16.f16 {" RESULTS "}, {" A "}, d"         \
                   ", p, 1, 1, 0;\n}"                                                                        \
                   : EACH("+f")                                                                              \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(8), "r"(0));                    \
        }                                                                                                    \
        DEV void settle(int (*c)[4])                                                                         \
        {                                                                                                    \
            asm_90("" : EACH("+r")::"memory");                                                               \
        }                                                                                                    \
        DEV void settle(float (*c)[4])                                                                       \
        {                                                                                                    \
            asm_90("" : EACH("+f")::"memory");                                                               \
        }                                                                                                    \
    };
#define WIDE_3(how) WIDE_FOUR(how, 0), WIDE_FOUR(how, 1), WIDE_FOUR(how, 2)
#define WIDE_4(how) WIDE_3(how), WIDE_FOUR(how, 3)
#define WIDE_6(how) WIDE_4(how), WIDE_FOUR(how, 4), WIDE_FOUR(how, 5)
#define WIDE_8(how) WIDE_6(how), WIDE_FOUR(how, 6), WIDE_FOUR(how, 7)
#define WIDE_10(how) WIDE_8(how), WIDE_FOUR(how, 8), WIDE_FOUR(how, 9)
#define WIDE_12(how) WIDE_10(how), WIDE_FOUR(how, 10), WIDE_FOUR(how, 11)
#define WIDE_16(how)                                                                                         \
    WIDE_12(how), WIDE_FOUR(how, 12), WIDE_FOUR(how, 13), WIDE_FOUR(how, 14), WIDE_FOUR(how, 15)
#define WIDE_R12 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11"
#define WIDE_R16 WIDE_R12 ", %12, %13, %14, %15"
#define WIDE_R24 WIDE_R16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define WIDE_R32 WIDE_R24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define WIDE_R40 WIDE_R32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define WIDE_R48 WIDE_R40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define WIDE_R64 WIDE_R48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
WIDE_MMA(3, "24", WIDE_R12, "%12, %13, %14, %15", "16, %17", "18", WIDE_3)
WIDE_MMA(4, "32", WIDE_R16, "%16, %17, %18, %19", "20, %21", "22", WIDE_4)
WIDE_MMA(6, "48", WIDE_R24, "%24, %25, %26, %27", "28, %29", "30", WIDE_6)
WIDE_MMA(8, "64", WIDE_R32, "%32, %33, %34, %35", "36, %37", "38", WIDE_8)
WIDE_MMA(10, "80", WIDE_R40, "%40, %41, %42, %43", "44, %45", "46", WIDE_10)
WIDE_MMA(12, "96", WIDE_R48, "%48, %49, %50, %51", "52, %53", "54", WIDE_12)
WIDE_MMA(16, "128", WIDE_R64, "%64, %65, %66, %67", "68, %69", "70", WIDE_16)

#endif
