/* cluster.cuh - how the blocks of a cluster give each other values (compute capability 9.0; nothing
 * elsewhere). A store goes straight to the shared memory of the block that needs it, whose barrier counts the
 * bytes: no fence, which would be one of all of the device's memory, and nobody waits for more than he needs.
 */
#ifndef DFLASH_CUDA_CLUSTER_CUH
#define DFLASH_CUDA_CLUSTER_CUH

#include "shared.cuh"

/* The same place in the shared memory of block `rank` of my cluster, and what is there. */
DEV unsigned cluster_at(unsigned at, unsigned rank)
{
    unsigned there = 0;
    asm_90("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
    return there;
}
/* A float, or two or four, to a block of the cluster, whose barrier at `bar` counts the bytes: addresses of
 * cluster_at. */
DEV void cluster_store(unsigned at, float v, unsigned bar)
{
    asm_90("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(at), "f"(v),
           "r"(bar)
           : "memory");
}
DEV void cluster_store(unsigned at, float2 v, unsigned bar)
{
    asm_90("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1,%2}, [%3];" ::"r"(at),
           "f"(v.x), "f"(v.y), "r"(bar)
           : "memory");
}
DEV void cluster_store(unsigned at, float4 v, unsigned bar)
{
    asm_90(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1,%2,%3,%4}, [%5];" ::"r"(
            at),
        "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(bar)
        : "memory");
}
/* One thread, before cluster_arrive: a barrier that one arrival, with the number of bytes, completes. */
DEV void cluster_bar_init(unsigned bar)
{
    asm_90("mbarrier.init.shared::cta.b64 [%0], 1;\n fence.mbarrier_init.release.cluster;" ::"r"(bar)
           : "memory");
}
DEV void cluster_bar_expect(unsigned bar, unsigned bytes)
{
    asm_90("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
/* phase: 0 for the first completion, 1 for the second, and so in turn */
DEV void cluster_bar_wait(unsigned bar, unsigned phase = 0)
{
    asm_90("{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra "
           "done;\nbra again;\ndone:\n}" ::"r"(bar),
           "r"(phase)
           : "memory");
}
/* All threads of the cluster have arrived when any goes on behind the wait; in between, other work. */
DEV void cluster_arrive()
{
    asm_90("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
DEV void cluster_wait()
{
    asm_90("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

#endif
