/* cluster.cuh - how the blocks of a cluster give each other values (compute capability 9.0; nothing
 * elsewhere). A store goes straight to the shared memory of the block that needs it, whose barrier counts the
 * bytes: no fence, which would be one of all of the device's memory, and nobody waits for more than he needs.
 */
#ifndef DFLASH_CUDA_CLUSTER_CUH
#define DFLASH_CUDA_CLUSTER_CUH

#include "shared.cuh"

#ifndef DEV
#define DEV static __device__ __forceinline__
#endif

/* The same place in the shared memory of block `rank` of my cluster, and what is there. */
DEV unsigned cluster_at(unsigned at, unsigned rank)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    unsigned there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
    return there;
#else
    return rank ? 0 : at;
#endif
}
/* A float, or two or four, to a block of the cluster, whose barrier at `bar` counts the bytes: addresses of
 * cluster_at. */
DEV void cluster_store(unsigned at, float v, unsigned bar)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(at),
                 "f"(v), "r"(bar)
                 : "memory");
#endif
}
DEV void cluster_store(unsigned at, float2 v, unsigned bar)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1,%2}, [%3];" ::"r"(at),
        "f"(v.x), "f"(v.y), "r"(bar)
        : "memory");
#endif
}
DEV void cluster_store(unsigned at, float4 v, unsigned bar)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1,%2,%3,%4}, [%5];" ::"r"(
            at),
        "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(bar)
        : "memory");
#endif
}
/* One thread, before cluster_arrive: a barrier that one arrival, with the number of bytes, completes. */
DEV void cluster_bar_init(unsigned bar)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\n fence.mbarrier_init.release.cluster;" ::"r"(bar)
                 : "memory");
#endif
}
DEV void cluster_bar_expect(unsigned bar, unsigned bytes)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
#endif
}
/* phase: 0 for the first completion, 1 for the second, and so in turn */
DEV void cluster_bar_wait(unsigned bar, unsigned phase = 0)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra "
                 "done;\nbra again;\ndone:\n}" ::"r"(bar),
                 "r"(phase)
                 : "memory");
#endif
}
/* All threads of the cluster have arrived when any goes on behind the wait; in between, other work. */
DEV void cluster_arrive()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
DEV void cluster_wait()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

#endif
