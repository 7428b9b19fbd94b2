/* mm_kernel.cuh - the product kernel: rings of packed weights, activations, the loop, the sums of slices.
 *
 * Grid: groups blocks (slices together) or groups * slices blocks (apart) of W warps, 8 or 16, see mm_args.
 * Nothing but weights is touched before cuda_grid_wait(): each warp has its ring filled by then. Bound: the
 * bytes of the weights, once. */
#ifndef DFLASH_CUDA_MM_KERNEL_CUH
#define DFLASH_CUDA_MM_KERNEL_CUH

#include "../core/bulk.cuh"
#include "../core/patience.cuh"
#include "prep.cuh"

/* ---- copies from memory to a warp's ring ---- */

DEV void copy_bulk(void *dst, const void *src, uint32_t bytes, uint64_t *b)
{
    bar_expect(b, bytes);
    copy_weights_to(dst, src, bytes, b);
}
DEV void copy_async(void *dst, const void *src)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_at(dst)), "l"(src) : "memory");
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
/* ---- results ---- */

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

/* Together: a tile's sums of a slice, in shared memory [member][sub][slice][tile]: [row g][pairs of tokens]
 * of float4; a.at.merge_rounds rounds, in a.at.merge_sets sets that take turns. */
template <int NT> DEV int merge_pairs(const mm_args &a)
{
    return NT == 1 ? (a.n + 1) / 2 : 4;
}
template <int NT, int W>
DEV void merge_rounds(const mm_args &a, const uint8_t *merge, int first_item, int rounds)
{
    const int subs = a.subs, lane = threadIdx.x % 32, pairs = merge_pairs<NT>(a), step = NT * 8 * pairs;
    for (int i = threadIdx.x / 32; i < rounds * subs * NT; i += W) {
        const int sub = i / NT % subs, t = i % NT, round = i / NT / subs,
                  item = first_item + (round * subs + sub) * a.groups;
        if (item >= a.n_items || 8 * t + 2 * (lane % 4) >= a.n) continue;
        float v[4], up[4];
        zero(v);
        zero(up);
        const float4 *p = (const float4 *)(merge + round * a.at.merge_bytes) +
                          (sub * a.slices * NT + t) * 8 * pairs + lane / 4 * pairs + lane % 4;
#pragma unroll 4
        for (int s = 0; s < a.slices; s++) add_four(v, p[s * step]);
        if (a.gated)
#pragma unroll 4
            for (int s = 0; s < a.slices; s++) add_four(up, p[(subs * a.slices + s) * step]);
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
template <int NT, int W> DEV void merge_group(const mm_args &a, int group, int slice)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int items = (a.n_items - group + a.groups - 1) / a.groups;
    for (int i = slice * W + warp; i < items * NT; i += a.slices * W) {
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
        patience wait;
        do {
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(c) : "memory");
            wait.turn();
        } while (now != target);
    }
    __syncthreads();
}

/* ---- the kernel ---- */

/* The block's slices of the n prepared tokens to shared memory. All threads call; on return the data is
 * there. */
template <int W, bool BULK> DEV void load_rows(const mm_args &a, uint8_t *act, int first_slice, uint64_t *bar)
{
    const uint32_t bytes = (uint32_t)(a.block_slices * a.slice_row);
    const size_t stride = (size_t)a.slices * (size_t)a.slice_row;
    const uint8_t *src = a.rows + (size_t)first_slice * (size_t)a.slice_row;
    cuda_grid_wait();
    if (BULK) {
        if (threadIdx.x % 32 ==
            0) { /* all warps ask; the barrier may hear of bytes before it knows how many */
            if (threadIdx.x == 0) bar_expect(bar, bytes * a.n);
#pragma unroll 1
            for (int t = threadIdx.x / 32; t < a.n; t += W)
                copy_bulk_to(act + t * a.at.row_bytes, src + t * stride, bytes, bar);
        }
        bar_wait(bar, 0);
    } else {
        for (int t = threadIdx.x / 32; t < a.n; t += W)
            for (uint32_t o = 16 * (threadIdx.x % 32); o < bytes; o += 512)
                *(uint4 *)(act + t * a.at.row_bytes + o) = __ldcg((const uint4 *)(src + t * stride + o));
        __syncthreads();
    }
}

/* A warp's way through the weights: items first, + stride, ...; of each its members, of these the slices
 * first_slice + part, + slice_warps, ... Pointers move by constants where the matrix stays the same: what is
 * computed here takes issue slots from the products. */
struct walk {
    int panel, matrix;       /* of the first member; panel counts from the first matrix on */
    int member, local, left; /* left: units of the slice */
    int unit_bytes;
    const uint8_t *base, *p; /* of the first member's panel; of the next copy */
};

/* Where a lane's tokens lie in the rows in shared memory. */
template <int NT> DEV void find_view(const mm_args &a, int lane, mm_view<NT> &view)
{
    view.plane_bytes = 64 * a.slice_units;
#pragma unroll
    for (int t = 0; t < NT; t++) {
        view.row[t] = min(8 * t + lane / 4, a.n - 1) * a.at.row_bytes + lane % 4 * 16;
        view.pair[t][0] = min(8 * t + 2 * (lane % 4), a.n - 1) * a.at.row_bytes;
        view.pair[t][1] = min(8 * t + 2 * (lane % 4) + 1, a.n - 1) * a.at.row_bytes;
    }
}

/* A warp's barriers, one a stage, and by the first warp that of the rows. */
DEV void init_bars(uint64_t *bars, int stages, uint64_t *act_bar, int warp)
{
    for (int i = 0; i < stages; i++) bar_init(bars + i);
    if (warp == 0) bar_init(act_bar);
    bar_fence();
}

template <bool BULK> DEV void wait_stage(uint64_t *bars, int slot, uint32_t phase, int stages)
{
    if (BULK) {
        bar_wait(bars + slot, phase);
    } else {
        copy_wait(stages);
        __syncwarp();
    }
}

/* On to the warp's next slice, of this panel's member, the next member, the next panel. */
template <class Panel>
DEV void next_slice(const mm_args &a, walk &next, int part, int member0, int member_last, int stride,
                    int end_panel, const Panel &find_panel)
{
    next.local += a.slice_warps;
    if (next.local < a.block_slices) return;
    next.local = part;
    if (next.member++ != member_last) return;
    next.member = member0;
    next.panel += stride;
    if (next.panel >= end_panel) return;
    if (!a.gated && next.panel >= a.panel_end[next.matrix])
        find_panel();
    else
        next.base += (uint32_t)stride * (uint32_t)(a.units * next.unit_bytes);
}

template <class F, int NT, int W, bool BULK> DEV void product(const mm_args &a)
{
    extern __shared__ __align__(128) uint8_t smem[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    /* Through a shuffle, so that the compiler keeps them in registers and does not load them anew from the
     * arguments. */
    const int stages = __shfl_sync(0xffffffff, a.stages, 0), stage_bytes = a.stage_bytes,
              stage_units = a.stage_units;
    uint8_t *const ring = smem + MM_BARS + warp * stages * stage_bytes, *const act = smem + a.at.act;
    uint64_t *const bars = (uint64_t *)smem + warp * stages, *const act_bar = (uint64_t *)smem + W * stages;

    cuda_grid_early();
    if (BULK) {
        if (lane == 0) init_bars(bars, stages, act_bar, warp);
        __syncwarp();
    }

    const bool together = a.block_slices == a.slices;
    const int group = together ? (int)blockIdx.x : (int)blockIdx.x / a.slices,
              first_slice = together ? 0 : (int)blockIdx.x % a.slices;
    /* Split: half of the warps have the gates, the others the ups; else a warp has one after the other. */
    const int sub = warp / a.slice_warps >> a.split, part = warp % a.slice_warps;
    const int member0 = a.split ? warp / a.slice_warps % 2 : 0, member_last = a.split   ? member0
                                                                              : a.gated ? 1
                                                                                        : 0;
    const int first = group + sub * a.groups, stride = a.subs * a.groups;

    int slot = 0;
    uint32_t phase = 0;
    walk next = {
        a.first_item + (part < a.block_slices ? first : a.n_items), 0, member0, part, 0, 0, nullptr, nullptr};
    const int end_panel = a.first_item + a.n_items;
    const ptrdiff_t up = a.gated ? a.w[1] - a.w[0] : 0;
    auto find_panel = [&]() { /* base: of a panel in another matrix than before */
                              if (!a.gated)
                                  while (next.panel >= a.panel_end[next.matrix]) next.matrix++;
                              const int j = next.matrix;
                              next.unit_bytes = a.unit_bytes[j];
                              next.base = a.w[j] + (size_t)(next.panel - (j ? a.panel_end[j - 1] : 0)) *
                                                       (size_t)(a.units * next.unit_bytes);
    };
    auto find_slice = [&]() { /* p, left: the first unit of (panel, member, local) */
                              const int unit0 = (first_slice + next.local) * a.slice_units;
                              next.p =
                                  next.base + (next.member ? up : 0) + (uint32_t)(unit0 * next.unit_bytes);
                              next.left = min(a.slice_units, a.units - unit0);
    };
    auto issue = [&](int put) {
        if (next.panel < end_panel) {
            const int bytes = min(stage_units, next.left) * next.unit_bytes;
            uint8_t *dst = ring + put * stage_bytes;
            if (BULK) {
                if (lane == 0) copy_bulk(dst, next.p, bytes, bars + put);
            } else {
                for (int o = 16 * lane; o < bytes; o += 512) copy_async(dst + o, next.p + o);
            }
            next.p += bytes;
            next.left -= stage_units;
            if (next.left <= 0) {
                next_slice(a, next, part, member0, member_last, stride, end_panel, find_panel);
                find_slice();
            }
        }
        if (!BULK) asm volatile("cp.async.commit_group;" ::: "memory");
    };
    if (next.panel < end_panel) {
        find_panel();
        find_slice();
    }
    for (int i = 0; i < stages; i++) issue(i);
    if constexpr (F::grids) grid_load(smem + a.at.grid, a.points);
    if (BULK) __syncthreads(); /* act_bar is there */
    load_rows<W, BULK>(a, act, first_slice, act_bar);

    mm_view<NT> view;
    find_view<NT>(a, lane, view);
    if constexpr (F::grids) view.points = grid_there(smem + a.at.grid, a.points);

    const bool in_shared = together && (a.slices > 1 || a.gated);
    const int pairs = merge_pairs<NT>(a);
    int set = 0, filled = 0; /* of the sums in shared memory */
    const int rounds =
        (a.n_items - group + stride - 1) / stride; /* the same for all warps: they meet in merge_rounds */
    for (int round = 0; round < rounds; round++) {
        const int item = first + round * stride;
        float4 *merge = (float4 *)(smem + a.at.merge + (set * a.at.merge_rounds + filled) * a.at.merge_bytes);
        for (int member = member0; member <= member_last && item < a.n_items; member++)
            for (int local = part; local < a.block_slices; local += a.slice_warps) {
                const int units = min(a.slice_units, a.units - (first_slice + local) * a.slice_units);
                const uint8_t *x = act + local * a.slice_row;
                int panel;
                const uint32_t type = F::whole ? a.type[item_matrix(a, item, member, &panel)] : 0;
                float fin[NT][4];
#pragma unroll
                for (int t = 0; t < NT; t++) zero(fin[t]);
                view.b = x;
                view.sums = x + F::b_unit * a.slice_units;
                view.aux = x + (F::b_unit + F::sums_unit) * a.slice_units;
#pragma unroll 1
                for (int unit = 0; unit < units; unit += stage_units) {
                    wait_stage<BULK>(bars, slot, phase, stages);
                    F::template stage<NT>(fin, ring + slot * stage_bytes, min(stage_units, units - unit),
                                          type, view, lane);
                    view.b += stage_units * F::b_unit;
                    view.sums += stage_units * F::sums_unit;
                    view.aux += stage_units * F::aux_unit;
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
                    if (token >= a.n) break;
                    float f0 = 1.0f, f1 = 1.0f; /* the slice's factor, where there is one */
                    if (!F::whole) {
                        f0 = *(const float *)(x + view.pair[t][0] + a.slice_row - 16);
                        f1 = *(const float *)(x + view.pair[t][1] + a.slice_row - 16);
                    }
                    const float4 c = make_float4(__fmul_rn(fin[t][0], f0), __fmul_rn(fin[t][1], f1),
                                                 __fmul_rn(fin[t][2], f0), __fmul_rn(fin[t][3], f1));
                    if (in_shared) {
                        merge[(((member * a.subs + sub) * a.slices + local) * NT + t) * 8 * pairs +
                              lane / 4 * pairs + lane % 4] = c;
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
        if (in_shared && (++filled == a.at.merge_rounds || round == rounds - 1)) {
            __syncthreads();
            merge_rounds<NT, W>(a, smem + a.at.merge + set * a.at.merge_rounds * a.at.merge_bytes,
                                group + (round + 1 - filled) * stride, filled);
            filled = 0;
            if (a.at.merge_sets == 2) /* the next sums go elsewhere, and the barrier after them frees these */
                set ^= 1;
            else
                __syncthreads();
        }
    }
    if (!together) {
        group_wait(a, group);
        merge_group<NT, W>(a, group, first_slice);
    }
    if (!BULK) asm volatile("cp.async.wait_all;" ::: "memory");
}

/* Registers: two blocks of 8 warps or one of 16 (8-bit kinds, up to 16 rows). Bulk copies need sm_90. To save
 * compilation, the generic form exists for 8 and 16 tokens on what is older, for 8 on sm_90. */
template <class F, int NT, int W, bool BULK>
__global__ void __launch_bounds__(32 * W, W <= MM_WARPS && NT <= 2 ? 2 : 1)
    mm_kernel(const __grid_constant__ mm_args a)
{
#ifdef __CUDA_ARCH__
    if constexpr (BULK ? __CUDA_ARCH__ >= 900 : NT <= (__CUDA_ARCH__ >= 900 ? 1 : 2))
        product<F, NT, W, BULK>(a);
#endif
}

template <class F, int W, bool BULK> static mm_kernel_fn mm_pick(int log2_tiles)
{
    if (log2_tiles == 0) return mm_kernel<F, 1, W, BULK>;
    if (log2_tiles == 1) return mm_kernel<F, 2, W, BULK>;
    if constexpr (W == MM_WARPS)
        if (log2_tiles == 2) return mm_kernel<F, 4, W, BULK>;
    return nullptr;
}
/* WIDE: also blocks of 16 warps. */
template <class F, bool WIDE> static mm_kernel_fn mm_pick_kernel(int log2_tiles, int warps, bool generic)
{
    if (warps == MM_WARPS)
        return generic ? mm_pick<F, MM_WARPS, false>(log2_tiles) : mm_pick<F, MM_WARPS, true>(log2_tiles);
    if constexpr (WIDE)
        if (!generic && warps == MM_WARPS_MOST) return mm_pick<F, MM_WARPS_MOST, true>(log2_tiles);
    return nullptr;
}

#endif
