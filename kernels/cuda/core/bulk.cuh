/* bulk.cuh - what kernels that stream weights share: barriers in shared memory that count bytes, copies that
 * they count (compute capability 9.0; nothing elsewhere), and the gate's activation, whose bits all of them
 * must give alike. */
#ifndef DFLASH_CUDA_BULK_CUH
#define DFLASH_CUDA_BULK_CUH

#include "../product/mm_int.cuh"
#include "cluster.cuh"

/* One that so many arrivals complete. */
DEV void bar_open(uint64_t *b, int arrivals)
{
    asm_90("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_at(b)), "r"(arrivals) : "memory");
}
DEV void bar_init(uint64_t *b)
{
    bar_open(b, 1);
}
DEV void bar_arrive(uint64_t *b)
{
    asm_90("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_at(b)) : "memory");
}
DEV void bar_fence()
{
    asm_90("fence.mbarrier_init.release.cluster;" ::: "memory");
}
DEV void bar_wait(uint64_t *b, uint32_t phase)
{
    cluster_bar_wait(shared_at(b), phase);
}
/* Is the phase complete? */
DEV bool bar_test(uint64_t *b, uint32_t phase)
{
    uint32_t is = 1;
    asm_90(
        "{\n.reg .pred p;\nmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
        : "=r"(is)
        : "r"(shared_at(b)), "r"(phase)
        : "memory");
    return is;
}
DEV void bar_expect(uint64_t *b, uint32_t bytes)
{
    cluster_bar_expect(shared_at(b), bytes);
}
/* Bytes that the barrier was told to expect. */
DEV void copy_bulk_to(void *dst, const void *src, uint32_t bytes, uint64_t *b)
{
    asm_90("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
               shared_at(dst)),
           "l"(src), "r"(bytes), "r"(shared_at(b))
           : "memory");
}
/* The same of weights (and of a chain's keys and values), which a pass reads once: the L2 cache forgets them
 * before rows, sums and kernels' code. The policy is what createpolicy.fractional.L2::evict_first.b64 makes
 * of all of the bytes. */
#define WEIGHTS_POLICY 0x12f0000000000000ull
DEV void copy_weights_to(void *dst, const void *src, uint32_t bytes, uint64_t *b)
{
    asm_90("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], "
           "%2, [%3], %4;" ::"r"(shared_at(dst)),
           "l"(src), "r"(bytes), "r"(shared_at(b)), "l"(WEIGHTS_POLICY)
           : "memory");
}

/* The same, asked for once by a warp whose lanes all have the same numbers: without a loop over lanes. */
DEV void copy_weights_elected(void *dst, const void *src, uint32_t bytes, uint64_t *b)
{
    asm_90("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\n@p cp.async.bulk.shared::cluster.global.mbarrier::"
           "complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;\n}" ::"r"(shared_at(dst)),
           "l"(src), "r"(bytes), "r"(shared_at(b)), "l"(WEIGHTS_POLICY)
           : "memory");
}

DEV float act_gate(int act, float g)
{
    if (act == KN_ACT_SILU) return __fdiv_rn(g, __fadd_rn(1.0f, expf(-g)));
    const float c = __fmul_rn(0.7978845608028654f, __fmul_rn(g, __fmaf_rn(__fmul_rn(0.044715f, g), g, 1.0f)));
    return __fmul_rn(__fmul_rn(0.5f, g), __fadd_rn(1.0f, tanhf(c)));
}

#endif
