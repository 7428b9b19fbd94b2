/* mm_kernel.cuh - the product kernel: rings of packed weights, activations, the loop, the sums of slices.
 *
 * Grid: groups blocks (slices together) or groups * slices blocks (apart) of 8 warps, see mm_args. Nothing
 * but weights is touched before cuda_grid_wait(): each warp has its ring filled by then. Bound: the bytes of
 * the weights, once. */
#ifndef DFLASH_CUDA_MM_KERNEL_CUH
#define DFLASH_CUDA_MM_KERNEL_CUH

#include "mm_frag.cuh"

#ifdef MM_PROBE /* to time a kernel without one of its parts */
#define MM_SKIP(bit) (a.probe & (bit))
#else
#define MM_SKIP(bit) false
#endif

/* ---- copies from memory to a warp's ring ---- */

DEV uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}
DEV void bar_init(uint64_t *b)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(b)) : "memory");
#endif
}
DEV void bar_fence()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
DEV void bar_wait(uint64_t *b, uint32_t phase)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n.reg .pred p;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra "
                 "done;\nbra again;\ndone:\n}" ::"r"(shared_address(b)),
                 "r"(phase)
                 : "memory");
#endif
}
/* Bytes that the barrier was told to expect. */
DEV void copy_bulk_to(void *dst, const void *src, uint32_t bytes, uint64_t *b)
{
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
            shared_address(dst)),
        "l"(src), "r"(bytes), "r"(shared_address(b))
        : "memory");
#endif
}
DEV void copy_bulk(void *dst, const void *src, uint32_t bytes, uint64_t *b)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes)
                 : "memory");
    copy_bulk_to(dst, src, bytes, b);
#endif
}
DEV void copy_async(void *dst, const void *src)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(dst)), "l"(src) : "memory");
}
DEV void copy_wait(int stages) /* until the oldest of `stages` groups is complete */
{
    if (stages == 2)
        asm volatile("cp.async.wait_group 1;" ::: "memory");
    else if (stages == 3)
        asm volatile("cp.async.wait_group 2;" ::: "memory");
    else
        asm volatile("cp.async.wait_group 3;" ::: "memory");
}

/* ---- items ---- */

/* The matrix of an item, and the panel in it. */
DEV int item_matrix(const mm_args &a, int item, int member, int *panel)
{
    int j = member;
    *panel = a.first_item + item;
    if (!a.gated) {
        while (*panel >= a.panel_end[j]) j++;
        if (j) *panel -= a.panel_end[j - 1];
    }
    return j;
}
DEV const uint8_t *item_bytes(const mm_args &a, int item, int member)
{
    int panel;
    const int j = item_matrix(a, item, member, &panel);
    return a.w[j] + (size_t)panel * (size_t)a.panel_bytes;
}

/* ---- results ---- */

DEV float act_gate(int act, float g)
{
    if (act == KN_ACT_SILU) return __fdiv_rn(g, __fadd_rn(1.0f, expf(-g)));
    const float c = __fmul_rn(0.7978845608028654f, __fmul_rn(g, __fmaf_rn(__fmul_rn(0.044715f, g), g, 1.0f)));
    return __fmul_rn(__fmul_rn(0.5f, g), __fadd_rn(1.0f, tanhf(c)));
}
/* v, up: sums of all slices of tile t of an item as lane `lane` holds them, up where gated. */
DEV void write_tile(const mm_args &a, int item, int t, int lane, const float v[4], const float up[4])
{
    int panel;
    const int j = item_matrix(a, item, 0, &panel);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int token = 8 * t + 2 * (lane % 4) + i % 2, row = 16 * panel + lane / 4 + 8 * (i / 2);
        if (token >= a.n || row >= a.n_out[j]) continue;
        float *out = a.out[j] + (size_t)token * (size_t)a.n_out[j] + row;
        const float y = a.gated ? __fmul_rn(act_gate(a.act, v[i]), up[i]) : v[i];
        *out = a.add ? __fadd_rn(__ldcg(out), y) : y;
    }
}
DEV void add_four(float v[4], const float4 &c)
{
    v[0] = __fadd_rn(v[0], c.x);
    v[1] = __fadd_rn(v[1], c.y);
    v[2] = __fadd_rn(v[2], c.z);
    v[3] = __fadd_rn(v[3], c.w);
}

/* Together: the items of one round, from shared memory [member][sub][slice][tile][lane]. */
template <int NT> DEV void merge_round(const mm_args &a, const float4 *merge, int first_item, int round)
{
    const int subs = a.subs, lane = threadIdx.x % 32;
    for (int i = (threadIdx.x / 32 + round) % MM_WARPS; i < subs * NT; i += MM_WARPS) {
        const int sub = i / NT, t = i % NT, item = first_item + sub * a.groups;
        if (item >= a.n_items || 8 * t + 2 * (lane % 4) >= a.n) continue;
        float v[4], up[4];
        zero(v);
        zero(up);
        const float4 *p = merge + (sub * a.slices * NT + t) * 32 + lane;
#pragma unroll 4
        for (int s = 0; s < a.slices; s++) add_four(v, p[s * NT * 32]);
        if (a.gated)
#pragma unroll 4
            for (int s = 0; s < a.slices; s++) add_four(up, p[(subs * a.slices + s) * NT * 32]);
        write_tile(a, item, t, lane, v, up);
    }
}

DEV float *record_of(const mm_args &a, int item, int member, int slice, int tiles)
{
    return a.partial + (((size_t)item * (a.gated ? 2 : 1) + member) * (size_t)a.slices + slice) *
                           (size_t)tiles * MM_RECORD;
}
/* Apart: all blocks of the group have left their sums; this one adds up its share of the group's (item,
 * tile)s. */
template <int NT> DEV void merge_group(const mm_args &a, int group, int slice)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int items = (a.n_items - group + a.groups - 1) / a.groups;
    for (int i = slice * MM_WARPS + warp; i < items * NT; i += a.slices * MM_WARPS) {
        const int item = group + i / NT * a.groups, t = i % NT;
        if (8 * t + 2 * (lane % 4) >= a.n) continue;
        float v[4], up[4];
        zero(v);
        zero(up);
        const float *p = record_of(a, item, 0, 0, NT) + t * MM_RECORD;
#pragma unroll 8
        for (int s = 0; s < a.slices; s++)
            add_four(v, __ldcg((const float4 *)(p + s * NT * MM_RECORD) + lane));
        if (a.gated) {
            p += a.slices * NT * MM_RECORD;
#pragma unroll 8
            for (int s = 0; s < a.slices; s++)
                add_four(up, __ldcg((const float4 *)(p + s * NT * MM_RECORD) + lane));
        }
        write_tile(a, item, t, lane, v, up);
    }
}
/* Wait until all blocks of the group have come here. A launch moves the counter on by a.slices, around a
 * circle of whole launches; it stands still from the last arrival to the next launch, which waits for this
 * one. */
DEV void group_wait(const mm_args &a, int group)
{
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        const unsigned slices = (unsigned)a.slices, circle = slices << 16;
        unsigned *c = a.count + group, now;
        const unsigned target = (atomicInc(c, circle - 1) / slices + 1) * slices % circle;
        do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(c) : "memory");
        while (now != target);
    }
    __syncthreads();
}

/* ---- the kernel ---- */

/* The block's slices of the n prepared tokens to shared memory. All threads call; on return the data is
 * there. */
template <bool BULK>
DEV void load_rows(const mm_args &a, uint8_t *act, uint32_t row_bytes, int first_slice, uint64_t *bar)
{
    const uint32_t bytes = (uint32_t)(a.block_slices * a.slice_row);
    const size_t stride = (size_t)a.slices * (size_t)a.slice_row;
    const uint8_t *src = a.rows + (size_t)first_slice * (size_t)a.slice_row;
    cuda_grid_wait();
    if (BULK) {
#if __CUDA_ARCH__ >= 900
        if (threadIdx.x < 32) {
            if (threadIdx.x == 0)
                asm volatile(
                    "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(bar)),
                    "r"(bytes * a.n)
                    : "memory");
            __syncwarp();
            for (int t = threadIdx.x; t < a.n; t += 32)
                copy_bulk_to(act + t * row_bytes, src + t * stride, bytes, bar);
        }
#endif
        bar_wait(bar, 0);
    } else {
        for (int t = threadIdx.x / 32; t < a.n; t += MM_WARPS)
            for (uint32_t o = 16 * (threadIdx.x % 32); o < bytes; o += 512)
                *(uint4 *)(act + t * row_bytes + o) = __ldcg((const uint4 *)(src + t * stride + o));
        __syncthreads();
    }
}

template <class F, int NT, bool BULK> DEV void product(const mm_args &a)
{
    extern __shared__ __align__(128) uint8_t smem[];
    constexpr int stage_bytes = F::unit_bytes * F::stage_units;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const mm_memory at = mm_memory_of(stage_bytes, &a, NT);
    /* Through a shuffle, so that the compiler keeps them in registers and does not load them anew from the
     * arguments. */
    const int stages = __shfl_sync(0xffffffff, a.stages, 0),
              warp_stage = __shfl_sync(0xffffffff, warp * a.stages, 0);
    uint8_t *const ring = smem + MM_BARS + warp_stage * stage_bytes, *const act = smem + at.act;
    uint64_t *const bars = (uint64_t *)smem + warp_stage, *const act_bar =
                                                              (uint64_t *)smem + MM_WARPS * a.stages;

    cuda_grid_early();
    if (BULK) {
        if (lane == 0) {
            for (int i = 0; i < stages; i++) bar_init(bars + i);
            if (warp == 0) bar_init(act_bar);
            bar_fence();
        }
        __syncwarp();
    }

    /* this warp's part: items first, + stride, ...; of each, slices first_slice + part, + slice_warps, ... */
    const bool together = a.block_slices == a.slices;
    const int group = together ? (int)blockIdx.x : (int)blockIdx.x / a.slices,
              first_slice = together ? 0 : (int)blockIdx.x % a.slices;
    const int sub = warp / a.slice_warps, part = warp % a.slice_warps, members = a.gated ? 2 : 1;
    const int first = group + sub * a.groups, stride = a.subs * a.groups;

    int slot = 0;
    uint32_t phase = 0;
    int next_item = part < a.block_slices ? first : a.n_items, next_member = 0, next_local = part,
        next_left = 0;
    const uint8_t *next = nullptr;
    auto seek = [&]() { /* the first stage of (next_item, next_member, next_local) */
                        if (next_item >= a.n_items) return;
                        const int unit0 = (first_slice + next_local) * a.slice_units;
                        next = item_bytes(a, next_item, next_member) + (size_t)unit0 * F::unit_bytes;
                        next_left = min(a.slice_units, a.units - unit0);
    };
    auto issue = [&](int put) {
        if (next_item < a.n_items) {
            const int bytes =
                F::stage_units == 1 ? stage_bytes : min(F::stage_units, next_left) * F::unit_bytes;
            uint8_t *dst = ring + put * stage_bytes;
            if (BULK) {
                if (lane == 0) copy_bulk(dst, next, bytes, bars + put);
            } else {
                for (int o = 16 * lane; o < bytes; o += 512) copy_async(dst + o, next + o);
            }
            next += stage_bytes;
            next_left -= F::stage_units;
            if (next_left <= 0) {
                next_local += a.slice_warps;
                if (next_local >= a.block_slices) {
                    next_local = part;
                    if (++next_member == members) {
                        next_member = 0;
                        next_item += stride;
                    }
                }
                seek();
            }
        }
        if (!BULK) asm volatile("cp.async.commit_group;" ::: "memory");
    };
    seek();
    for (int i = 0; i < stages; i++) issue(i);
    if (BULK) __syncthreads(); /* act_bar is there */
    if (MM_SKIP(2))
        cuda_grid_wait();
    else
        load_rows<BULK>(a, act, at.row_bytes, first_slice, act_bar);

    mm_view<NT> view;
    const int columns = a.slice_units * F::unit_k;
    view.plane_bytes = 2 * columns;
    view.row_bytes = at.row_bytes;
    view.last = a.n - 1;
    view.magic = __shfl_sync(0xffffffff, a.magic, 0);
#pragma unroll
    for (int t = 0; t < NT; t++) view.row[t] = min(8 * t + lane / 4, a.n - 1) * at.row_bytes + lane % 4 * 16;

    const bool in_shared = together && (a.slices > 1 || a.gated);
    const int rounds =
        (a.n_items - group + stride - 1) / stride; /* the same for all warps: they meet in merge_round */
    for (int round = 0; round < rounds; round++) {
        const int item = first + round * stride;
        float4 *merge = (float4 *)(smem + at.merge + (NT == 1 ? round % 2 * at.merge_bytes : 0));
        for (int member = 0; member < members && item < a.n_items; member++)
            for (int local = part; local < a.block_slices; local += a.slice_warps) {
                const int units = min(a.slice_units, a.units - (first_slice + local) * a.slice_units);
                const uint8_t *x = act + local * a.slice_row;
                float fin[NT][4];
#pragma unroll
                for (int t = 0; t < NT; t++) zero(fin[t]);
                view.b = x;
                view.sums = x + F::planes * 2 * columns;
#pragma unroll 1
                for (int unit = 0; unit < units; unit += F::stage_units) {
                    if (BULK) {
                        bar_wait(bars + slot, phase);
                    } else {
                        copy_wait(stages);
                        __syncwarp();
                    }
                    if (!MM_SKIP(1))
                        F::template stage<NT>(fin, ring + slot * stage_bytes,
                                              min(F::stage_units, units - unit), view, lane);
                    view.b += F::stage_units * F::unit_k * 2;
                    view.sums += F::stage_units * F::unit_k / 8;
                    __syncwarp();
                    issue(slot);
                    if (++slot == stages) {
                        slot = 0;
                        phase ^= 1;
                    }
                }
#pragma unroll
                for (int t = 0; t < NT; t++) {
                    const int token = 8 * t + 2 * (lane % 4);
                    if (token >= a.n || MM_SKIP(4)) break;
                    const uint8_t *factor = x + token * at.row_bytes + a.slice_row - 16;
                    const float f0 = *(const float *)factor,
                                f1 = *(const float *)(factor + (token + 1 < a.n ? at.row_bytes : 0));
                    const float4 c = make_float4(__fmul_rn(fin[t][0], f0), __fmul_rn(fin[t][1], f1),
                                                 __fmul_rn(fin[t][2], f0), __fmul_rn(fin[t][3], f1));
                    if (in_shared) {
                        merge[(((member * a.subs + sub) * a.slices + local) * NT + t) * 32 + lane] = c;
                    } else if (together) {
                        float v[4];
                        zero(v);
                        add_four(v, c);
                        write_tile(a, item, t, lane, v, v);
                    } else {
                        __stcg((float4 *)(record_of(a, item, member, first_slice, NT) + t * MM_RECORD) + lane,
                               c);
                    }
                }
            }
        if (in_shared && !MM_SKIP(4)) {
            __syncthreads();
            merge_round<NT>(a, merge, group + round * stride, round);
            if (NT > 1) __syncthreads();
        }
    }
    if (!together && !MM_SKIP(4)) {
        group_wait(a, group);
        merge_group<NT>(a, group, first_slice);
    }
    if (!BULK) asm volatile("cp.async.wait_all;" ::: "memory");
}

/* Bulk copies need sm_90. To save compilation, the generic form exists for 8 and 16 tokens on what is older,
 * for 8 on sm_90. */
template <class F, int NT, bool BULK>
__global__ void __launch_bounds__(32 * MM_WARPS, NT == 1   ? MM_RESIDENT
                                                 : NT == 2 ? 2
                                                           : 1) mm_kernel(const __grid_constant__ mm_args a)
{
#ifdef __CUDA_ARCH__
    if constexpr (BULK ? __CUDA_ARCH__ >= 900 : NT <= (__CUDA_ARCH__ >= 900 ? 1 : 2)) product<F, NT, BULK>(a);
#endif
}

template <class F, bool BULK> static mm_kernel_fn mm_pick(int log2_tiles)
{
    switch (log2_tiles) {
    case 0: return mm_kernel<F, 1, BULK>;
    case 1: return mm_kernel<F, 2, BULK>;
    case 2: return mm_kernel<F, 4, BULK>;
    case 3:
        if constexpr (F::tiles_max >= 8) return mm_kernel<F, 8, BULK>;
        return nullptr;
    default: return nullptr;
    }
}
template <class F> static mm_kernel_fn mm_pick_kernel(int log2_tiles, bool generic)
{
    return generic ? mm_pick<F, false>(log2_tiles) : mm_pick<F, true>(log2_tiles);
}

#endif
