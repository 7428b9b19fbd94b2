/* chain/kernel.cuh - the kernel of a chain (chain.cuh): kernel_k.cu and kernel_grid.cu have its forms. Bound:
 * the bytes of the weights, once, or what the steps of one row take after another, whichever is longer.
 *
 * Wins over launches: 8B 57.1 to 35.5 us a layer, one row. dflash-bench rows -m 8b-q4_k_m.gguf --device
 * cuda --rows 1 --context 512 */
#ifndef DFLASH_CUDA_CHAIN_KERNEL_CUH
#define DFLASH_CUDA_CHAIN_KERNEL_CUH

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#pragma nv_diag_suppress 177 /* nothing of this is for such a device */
#endif
#include "attend.cuh"
#include "codes.cuh"
#include "far_ring.cuh"
#include "items.cuh"
#include "pair.cuh"
#include "delta.cuh"
#include "post.cuh"
#include "products.cuh"
#include "split.cuh"
#include "wide.cuh"

/* ---- the kernel ---- */

/* A warp's own number in shared memory, by nothing that would have to be kept. */
DEV void warp_put(uint32_t at, int v)
{
    asm volatile("{\n.reg .u32 t;\nmov.u32 t, %%tid.x;\nshr.u32 t, t, 5;\nmad.lo.u32 t, t, 4, "
                 "%0;\nst.shared.u32 [t], %1;\n}" ::"r"(at),
                 "r"(v)
                 : "memory");
}
DEV int warp_get(uint32_t at)
{
    int v;
    asm volatile("{\n.reg .u32 t;\nmov.u32 t, %%tid.x;\nshr.u32 t, t, 5;\nmad.lo.u32 t, t, 4, "
                 "%1;\nld.shared.u32 %0, [t];\n}"
                 : "=r"(v)
                 : "r"(at)
                 : "memory");
    return v;
}

template <class KV> DEV chain_room chain_room_of(uint8_t *smem)
{
    chain_room r = chain_room_at(smem);
    if (KV::grids) r.ring += CHAIN_GRID_PAGE;
    if (KV::ring) r.ring += (0u - shared_at(r.ring)) & 1023; /* tiles of keys are turned by addresses */
    return r;
}
/* Step i, of types other than K, in forms where what K types keep in registers stays there: nothing that the
 * kernel has may be in memory for this. */
template <class KV>
static __device__ __noinline__ void chain_items_apart(const chain_args &a, uint8_t *smem, int i)
{
    const chain_room r = chain_room_of<KV>(smem);
    const chain_step &s = r.steps[i % CHAIN_DESCS];
    const bool first = s.from < 0;
    chain_items<KV::low>(s, r.plan[i % CHAIN_DESCS], r, first, row_of(a, r, s, first), values_of(a, r) + s.at,
                         smem + a.act, (float *)(smem + CHAIN_K_SQUARES), (float *)(smem + a.terms),
                         (float *)(smem + CHAIN_K_KEEP));
}

/* SPLIT: all blocks share pairs of some steps. KV: where keys and values come to: near_keys, far_keys or,
 * with chain/post.cuh, wide_keys; code_keys: far_keys over quantised ones; early_beside of those two: outputs
 * come early; net_steps: gated delta nets or gated rows are among the steps, and no attention. near_items,
 * far_items, code_items, net_items: those beside steps of types other than K, and of IQ4_XS; low_beside: any
 * of these with low types. all_k: K types of any kind; all_grids, or grids_beside of those with items: types
 * with grids too. */
template <bool BF16, bool SPLIT, class KV>
static __global__ void __launch_bounds__(32 * CHAIN_ALL_WARPS<KV>, 1)
    chain_k_kernel(const __grid_constant__ chain_args a)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) uint8_t smem[];
    const chain_room r = chain_room_of<KV>(smem);
    float *const squares = (float *)(smem + CHAIN_K_SQUARES), *const keep = (float *)(smem + CHAIN_K_KEEP),
                 *const terms = (float *)(smem + a.terms);
    uint8_t *const act = smem + a.act, *const keys = smem + a.keys;

    if (threadIdx.x == 0) {
        for (int i = 0; i < CHAIN_TILES; i++) bar_open(r.full + i, 1);
        for (int i = 0; i < CHAIN_WARPS; i++) r.done[i] = 0;
        for (int i = 0; i < CHAIN_DESCS; i++) {
            bar_open(r.told + i, 1);
            bar_open(r.planned + i, 1);
            bar_open(r.read + i, CHAIN_ALL_WARPS<KV>);
        }
        bar_open(r.split, CHAIN_WARPS);
        bar_fence();
        first_steps(a, r.steps, r.told);
    }
    __syncthreads();
    cuda_grid_early(); /* all blocks of this launch stand: nothing that starts now can keep one from its place
                        */
    const int warp = warp_of();
    if (warp >= CHAIN_WARPS) {
        if (KV::writer && warp > CHAIN_WARPS + 1)
            chain_early<KV>(a, smem);
        else if (warp > CHAIN_WARPS)
            chain_fetch<SPLIT>(a, r, KV());
        else
            chain_ask<SPLIT>(a, r, KV());
        return;
    }
    if (KV::grids) grid_fill(a.grids, smem);
    cuda_grid_wait();
    const uint4 state = __ldcg((const uint4 *)a.state);
    if (threadIdx.x == 0) r.state[0] = state.x, r.state[1] = state.y;
    /* The state has come (the operands wait for it) before any of the block's outputs go. */
    asm volatile("bar.sync 3, %0; // %1 %2" ::"n"(32 * CHAIN_WARPS), "r"(state.x), "r"(state.z) : "memory");
    { /* what the launch before wrote is to be what is not yet there */
        uint4 *old = (uint4 *)(a.values + (state.y & 1 ? 0 : a.set));
        for (unsigned i = blockIdx.x * 32 * CHAIN_WARPS + threadIdx.x; i < state.z / 4;
             i += gridDim.x * 32 * CHAIN_WARPS)
            __stcg(old + i, make_uint4(CHAIN_NOT_YET, CHAIN_NOT_YET, CHAIN_NOT_YET, CHAIN_NOT_YET));
    }
    bar_wait(r.planned, 0);
    int pos = -1;
    /* The step: a register, where there is one; elsewhere it would be in local memory, far away. */
    constexpr bool apart = KV::wide, roomy = has_room<KV>;
    const uint32_t number = shared_at(smem + CHAIN_K_DONE + 64);
    int i = 0;
#pragma unroll 1
    for (; i < a.count; i++) {
        if (apart) warp_put(number, i);
        const chain_step &s = r.steps[i % CHAIN_DESCS];
        const chain_plan &plan = r.plan[i % CHAIN_DESCS];
        if (i + 1 < a.count) {
            const int at = (i + 1) % CHAIN_DESCS;
            const chain_step &next = r.steps[at];
            bar_wait(r.planned + at, (i + 1) / CHAIN_DESCS & 1);
            if (!KV::nets && !KV::ring && next.n_m == 0) {
                if (pos < 0) pos = __ldcg(next.pos); /* the same for all layers */
                if (!KV::wide && !KV::held && !KV::writer && threadIdx.x < 32 * CHAIN_HEADS &&
                    r.plan[at].leaf <= pos / chain_few::LEAF)
                    chain_keys(next, pos, r.plan[at].leaf, r.plan[at].kv_head, keys);
            }
        }
        if (KV::nets && s.replays) {
            const int then = i + s.replays, at = then % CHAIN_DESCS;
            bar_wait(r.planned + at, then / CHAIN_DESCS & 1);
            chain_delta_run<false, false>(r.steps[at], r.plan[at], nullptr, nullptr,
                                          *(chain_delta_room *)(smem + a.net), nullptr);
        }
        if (KV::nets && s.d.what == CHAIN_STATE) {
            chain_delta_run<true, KV::items>(s, plan, row_of(a, r, s, false), values_of(a, r) + s.at,
                                             *(chain_delta_room *)(smem + a.net), terms);
            chain_meet();
        } else if (KV::codes && s.n_m == 0) {
            code_attention(s, plan, act, KV::grids ? CHAIN_GRID_PAGE : 0, a.parts, row_of(a, r, s, false),
                           values_of(a, r) + s.at, r.state[0] + 1 + (unsigned)i);
            chain_meet();
        } else if (KV::ring && !KV::codes && s.n_m == 0) {
            far_attention<BF16>(s, plan.kv_head, far_share_of(s, plan.kv_head), far_bytes_at(r, s, plan), act,
                                a.parts, row_of(a, r, s, false), values_of(a, r) + s.at,
                                r.state[0] + 1 + (unsigned)i);
            chain_meet();
        } else if (!KV::nets && s.n_m == 0) {
            if (KV::wide)
                chain_attention_wide<BF16>(
                    s, pos, plan.unit, row_of(a, r, s, false), [&] { return values_of(a, r) + s.at; },
                    a.parts, r.state[0] + 1 + (unsigned)warp_get(number), act);
            else if constexpr (KV::held)
                attention_held<BF16>(s, plan, r, i, pos, row_of(a, r, s, false), values_of(a, r) + s.at,
                                     a.parts, r.state[0] + 1 + (unsigned)i, act);
            else if (!KV::ring && (CHAIN_HEADS == CHAIN_WARPS || threadIdx.x < 32 * CHAIN_HEADS))
                chain_attention<BF16, KV::items, KV::writer>(i, pos, plan.unit, row_of(a, r, s, false),
                                                             values_of(a, r) + s.at, a.parts,
                                                             r.state[0] + 1 + (unsigned)i, act, keys);
            chain_meet();
        } else if (KV::items && s.kind != CHAIN_K) {
            const bool first = s.from < 0;
            if (plan.pairs && items_apart<KV>)
                chain_items_apart<KV>(a, smem, i);
            else if (plan.pairs)
                chain_items<KV::low>(s, plan, r, first, row_of(a, r, s, first), values_of(a, r) + s.at, act,
                                     squares, terms, keep);
        } else if (plan.pairs || (KV::post && s.post)) {
            const bool rounds = !s.norm && s.own,
                       first = KV::items ? s.from < 0 : (apart ? warp_get(number) : i) == 0;
            const int lanes = plan.share;
            const unsigned flags = s.flags | (roomy ? (unsigned)lanes * CHAIN_SHARE : 0);
            chain_output c = roomy ? output_here(s, plan.pairs, first_late<KV>(s, plan), lanes)
                                   : output_of(s, plan.pairs, first_late<KV>(s, plan), lanes);
            if (roomy && lanes && c.at >= 0) c.at += outputs_at(a, r, s);
            if (KV::post && s.post)
                chain_post(s, (float *)(smem + a.net), row_of(a, r, s, false), act, squares);
            else if (!SPLIT && s.norm && s.units <= CHAIN_WARPS)
                chain_norm<1, KV>(a, r, s, first, act, squares);
            else if (!SPLIT && s.norm && s.units <= 2 * CHAIN_WARPS)
                chain_norm<2, KV>(a, r, s, first, act, squares);
            else if (s.norm)
                chain_norm<3, KV>(a, r, s, first, act, squares);
            else if (KV::nets && s.d.what)
                chain_row_gated(s, row_of(a, r, s, first),
                                s.d.what == CHAIN_STATE_ROW ? values_of(a, r) + s.d.gates : s.d.gate, act,
                                terms);
            else if (!rounds)
                chain_row_load<KV>(a, r, s, first, act);
            chain_multiply<SPLIT, KV>(a, s, plan, r, rounds, first, act, terms);
            chain_meet();
            if (roomy && flags / CHAIN_SHARE == 2)
                chain_write_shared<2>(a, r, s, c, flags, act, terms, keep);
            else if (roomy && flags / CHAIN_SHARE)
                chain_write_shared<1>(a, r, s, c, flags, act, terms, keep);
            else
                write_late<KV>(a, r, s, plan, c, flags, act, terms, keep);
            if (KV::nets && s.d.what == CHAIN_STATE_ROW)
                chain_delta_keep(s, plan, false, row_of(a, r, s, false), *(chain_delta_room *)(smem + a.net));
            /* Activations and terms have been read; and who polls is in the way of who writes. */
            const bool early = early_of<KV>(s, plan.pairs) > 0;
            if (early) chain_early_over(true);
            if (SPLIT && flags & CHAIN_SPLIT)
                split_meet();
            else if (!early)
                chain_meet();
        } else if (KV::nets && s.d.what == CHAIN_STATE_ROW) {
            chain_delta_keep(s, plan, true, row_of(a, r, s, false), *(chain_delta_room *)(smem + a.net));
        }
        __syncwarp();
        if (apart) i = warp_get(number);
        if (thread_now() % 32 == 0) bar_arrive(r.read + i % CHAIN_DESCS);
    }
    /* All blocks have read the state: this one has read outputs of all of them, which came after. */
    if (blockIdx.x == 0 && threadIdx.x == 0)
        __stcg((uint4 *)a.state, make_uint4(r.state[0] + (unsigned)a.count, r.state[1] + 1, a.extent, 0));
#endif
}

struct chain_k_fn {
    void (*f)(chain_args);
    int warps;
};
template <bool BF16, bool SPLIT, class KV> static chain_k_fn chain_k_form()
{
    return {chain_k_kernel<BF16, SPLIT, KV>, CHAIN_ALL_WARPS<KV>};
}
/* kernel_grid.cu: the forms from CHAIN_KS on; kernel_mixed.cu: from CHAIN_GRIDS_ITEMS on. */
chain_k_fn chain_k_grids(bool bf16, int form);
chain_k_fn chain_k_mixed(bool bf16, int form);

#endif
