/* experts_kernel.cuh - the kernel of experts' products: tiles, rings of packed weights, sums.
 *
 * Grid: blocks of a.warps warps, as many as are resident or have work; block b takes the jobs b, b + grid,
 * ... A job is a run of panels of a tile (OWNED: a panel of all tiles). Of a job's panels a block's warps
 * take `jobs` at a time, members * slice_warps warps each. Bound: the bytes of the chosen matrices, once (a
 * tile has up to 32 pairs; with more, the second reading comes from the second-level cache). */
#ifndef DFLASH_CUDA_EXPERTS_KERNEL_CUH
#define DFLASH_CUDA_EXPERTS_KERNEL_CUH

#include "experts.cuh"
#include "mm_kernel.cuh"

/* The tiles of the launch, in shared memory; returns their number. All threads call. */
DEV int experts_find_tiles(const experts_args &a, uint8_t *smem)
{
    experts_tile *tiles = (experts_tile *)(smem + a.at.tiles);
    uint16_t *order = (uint16_t *)(smem + a.at.order);
    const int i = threadIdx.x, lane = i % 32, warp = i / 32;
    if (a.n == 1) { /* as many tiles as pairs */
        if (i < a.pairs) {
            tiles[i] = experts_tile{experts_id(a.ids, i, a.n_mat), 1, (uint16_t)i, 0};
            order[i] = (uint16_t)i;
        }
        __syncthreads();
        return a.pairs;
    }
    const experts_sort s = experts_sort_at(smem + a.at.sums, a.pairs, a.n_mat, a.tile);
    experts_sort_load(s, a.ids, i, blockDim.x);
    __syncthreads();
    if (warp < EXPERTS_GROUPS) experts_sort_count(s, warp, lane);
    __syncthreads();
    experts_sort_total(s, i, blockDim.x);
    __syncthreads();
    if (warp == 0) experts_sort_sums(s, lane);
    __syncthreads();
    int n = 0;
    if (warp == 0) {
        n = experts_sort_tiles(s, tiles, lane);
        __syncwarp();
        if (lane == 31) s.sums[0] = (uint16_t)n;
    }
    __syncthreads();
    if (warp < EXPERTS_GROUPS) experts_sort_place(s, order, warp, lane);
    n = s.sums[0];
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); /* bulk copies will write here */
#endif
    __syncthreads();
    return n;
}

/* Where a block's jobs lead. */
struct experts_way {
    int n_outer, n_inner, jobs, groups, n_tiles;
};
template <bool OWNED> DEV experts_way experts_way_of(const experts_args &a, int n_tiles, int jobs)
{
    if (OWNED) return experts_way{a.panels, (n_tiles + jobs - 1) / jobs, jobs, 1, n_tiles};
    const int groups = (a.panels + a.run - 1) / a.run;
    return experts_way{n_tiles * groups, (a.run + jobs - 1) / jobs, jobs, groups, n_tiles};
}
/* Tile and panel (of the launch) of a place of the way; false: there is none. */
template <bool OWNED>
DEV bool experts_locate(const experts_args &a, const experts_way &y, int outer, int inner, int sub, int *tile,
                        int *panel)
{
    const int i = inner * y.jobs + sub;
    if (OWNED) {
        *tile = i, *panel = outer;
        return i < y.n_tiles;
    }
    *tile = outer / y.groups;
    *panel = (outer - *tile * y.groups) * a.run + i;
    return i < a.run && *panel < a.panels;
}

/* Sums v (and up) of a tile's 16 x 8 to a.out, as the mma holds them. */
DEV void experts_write(const experts_args &a, const uint16_t *order, const experts_tile &tile, int panel,
                       int t, int lane, const float v[4], const float up[4])
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int token = 8 * t + 2 * (lane % 4) + i % 2, row = 16 * panel + lane / 4 + 8 * (i / 2);
        if (token >= tile.count || 16 * a.first_panel + row >= a.n_out) continue;
        const int pair = order[tile.first + token];
        a.out[(size_t)pair * (size_t)a.ld + row] =
            a.members == 2 ? __fmul_rn(act_gate(a.act, v[i]), up[i]) : v[i];
    }
}

template <class F, int NT, enum experts_form FORM, bool BULK>
struct experts_block {
    static constexpr bool owned = FORM == EXPERTS_OWNED, staged = FORM == EXPERTS_STAGED;
    const experts_args & a; uint8_t *const smem; const int lane, warp; const experts_tile * tiles;
    const uint16_t * order; experts_way way; int sub, member, part; /* of this warp */
    /* its ring, and the way of the copies through the weights */
    int stages, stage_units, stage_bytes, unit_bytes;
    uint8_t * ring; uint64_t * bars; const uint8_t * w; int slot; uint32_t phase;
    struct {int outer, inner, slice, left; const uint8_t * base, *p;}
next;

__device__ __forceinline__ experts_block(const experts_args &args, uint8_t *memory)
    : a(args), smem(memory), lane(threadIdx.x % 32), warp(threadIdx.x / 32)
{
}

/* ---- copies ---- */

__device__ __forceinline__ void find_slice()
{
    const int unit0 = next.slice * a.slice_units;
    next.p = next.base + (uint32_t)(unit0 * unit_bytes);
    next.left = min(a.slice_units, a.units - unit0);
}
/* From (outer, inner) on to a place that is there. */
__device__ __forceinline__ void seek()
{
    int tile, panel;
    while (next.outer < way.n_outer) {
        if (experts_locate<owned>(a, way, next.outer, next.inner, sub, &tile, &panel)) {
            const size_t panel_bytes = (size_t)(a.units * unit_bytes);
            next.base =
                w + ((size_t)tiles[tile].expert * (size_t)a.all_panels + (size_t)(a.first_panel + panel)) *
                        panel_bytes;
            next.slice = part;
            find_slice();
            return;
        }
        forward();
    }
}
__device__ __forceinline__ void forward()
{
    if (++next.inner == way.n_inner) {
        next.inner = 0;
        next.outer += gridDim.x;
    }
}
__device__ __forceinline__ void issue(int put)
{
    if (next.outer < way.n_outer) {
        const int bytes = min(stage_units, next.left) * unit_bytes;
        uint8_t *dst = ring + put * stage_bytes;
        if (BULK) {
            if (lane == 0) copy_bulk(dst, next.p, bytes, bars + put);
        } else {
            for (int o = 16 * lane; o < bytes; o += 512) copy_async(dst + o, next.p + o);
        }
        next.p += bytes;
        next.left -= stage_units;
        if (next.left <= 0) {
            next.slice += a.slice_warps;
            if (next.slice < a.slices) {
                find_slice();
            } else {
                forward();
                seek();
            }
        }
    }
    if (!BULK) asm volatile("cp.async.commit_group;" ::: "memory");
}

/* ---- one panel of one tile: this warp's member and slices ---- */

__device__ __forceinline__ uint32_t row_of(int pair) const
{
    return a.per_row ? __umulhi((uint32_t)pair, a.per_row) : (uint32_t)pair;
}
template <int N>
__device__ __forceinline__ void multiply(const experts_tile &tile, int panel, float4 *sums, float *results)
{
    const uint8_t *x0 = staged ? smem + a.at.act : a.rows;
    const uint32_t stride = staged ? a.at.row_bytes : (uint32_t)(a.slices * a.slice_row);
    mm_view<N> view;
    view.plane_bytes = 64 * a.slice_units;
#pragma unroll
    for (int t = 0; t < N; t++) {
        const int last = tile.count - 1, mine = min(8 * t + lane / 4, last),
                  even = min(8 * t + 2 * (lane % 4), last), odd = min(8 * t + 2 * (lane % 4) + 1, last);
        if (staged) {
            view.row[t] = (uint32_t)mine * stride + lane % 4 * 16;
            view.pair[t][0] = (uint32_t)even * stride;
            view.pair[t][1] = (uint32_t)odd * stride;
        } else {
            view.row[t] = row_of(order[tile.first + mine]) * stride + lane % 4 * 16;
            view.pair[t][0] = row_of(order[tile.first + even]) * stride;
            view.pair[t][1] = row_of(order[tile.first + odd]) * stride;
        }
    }
    const uint32_t type = a.type[member];
#pragma unroll 1
    for (int slice = part; slice < a.slices; slice += a.slice_warps) {
        const int units = min(a.slice_units, a.units - slice * a.slice_units);
        const uint8_t *x = x0 + (uint32_t)(slice * a.slice_row);
        float fin[N][4];
#pragma unroll
        for (int t = 0; t < N; t++) zero(fin[t]);
        view.b = x;
        view.sums = x + F::b_unit * a.slice_units;
        view.aux = x + (F::b_unit + F::sums_unit) * a.slice_units;
#pragma unroll 1
        for (int unit = 0; unit < units; unit += stage_units) {
            if (BULK) {
                bar_wait(bars + slot, phase);
            } else {
                copy_wait(stages);
                __syncwarp();
            }
            F::template stage<N>(fin, ring + slot * stage_bytes, min(stage_units, units - unit), type, view,
                                 lane);
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
        for (int t = 0; t < N; t++) {
            if (8 * t + 2 * (lane % 4) >= tile.count) break;
            float f0 = 1.0f, f1 = 1.0f; /* the slice's factor, where there is one */
            if (!F::whole) {
                f0 = *(const float *)(x + view.pair[t][0] + a.slice_row - 16);
                f1 = *(const float *)(x + view.pair[t][1] + a.slice_row - 16);
            }
            const float c[4] = {__fmul_rn(fin[t][0], f0), __fmul_rn(fin[t][1], f1), __fmul_rn(fin[t][2], f0),
                                __fmul_rn(fin[t][3], f1)};
            if (owned) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int token = 8 * t + 2 * (lane % 4) + i % 2;
                    if (token < tile.count)
                        results[(order[tile.first + token] * a.slices + slice) * 16 + lane / 4 +
                                8 * (i / 2)] = c[i];
                }
            } else if (sums) {
                sums[(((sub * a.members + member) * a.slices + slice) * NT + t) * 32 + lane] =
                    make_float4(c[0], c[1], c[2], c[3]);
            } else {
                float v[4];
                zero(v);
                add_four(v, make_float4(c[0], c[1], c[2], c[3]));
                experts_write(a, order, tile, panel, t, lane, v, v);
            }
        }
    }
}
__device__ __forceinline__ void dispatch(const experts_tile &tile, int panel, float4 *sums, float *results)
{
    if constexpr (NT >= 4)
        if (tile.count > 16) {
            multiply<4>(tile, panel, sums, results);
            return;
        }
    if constexpr (NT >= 2)
        if (tile.count > 8) {
            multiply<2>(tile, panel, sums, results);
            return;
        }
    multiply<1>(tile, panel, sums, results);
}

/* ---- sums ---- */

/* Slices in ascending order, of the jobs at (outer, inner); warps take turns, beginning with another one
 * every time. */
__device__ __forceinline__ void add_slices(const float4 *sums, int outer, int inner, int turn)
{
    const int warps = blockDim.x / 32;
    for (int i = (warp + turn) % warps; i < way.jobs * NT; i += warps) {
        int tile, panel;
        const int job = i / NT, t = i % NT;
        if (!experts_locate<false>(a, way, outer, inner, job, &tile, &panel)) continue;
        const experts_tile at = tiles[tile];
        if (8 * t + 2 * (lane % 4) >= at.count) continue;
        float v[4], up[4];
        zero(v);
        zero(up);
        const float4 *p = sums + (size_t)job * (size_t)(a.members * a.slices * NT * 32) + t * 32 + lane;
#pragma unroll 4
        for (int s = 0; s < a.slices; s++) add_four(v, p[s * NT * 32]);
        if (a.members == 2)
#pragma unroll 4
            for (int s = 0; s < a.slices; s++) add_four(up, p[(a.slices + s) * NT * 32]);
        experts_write(a, order, at, panel, t, lane, v, up);
    }
}
/* OWNED: a row's experts in the order of its list. */
__device__ __forceinline__ void add_pairs(const float *results, int panel)
{
    for (int i = threadIdx.x; i < 16 * a.n; i += blockDim.x) {
        const int row = i / 16, column = 16 * (a.first_panel + panel) + i % 16;
        if (column >= a.n_out) continue;
        const float *p = results + (size_t)(row * a.used * a.slices) * 16 + i % 16;
        float y = 0.0f;
        for (int j = 0; j < a.used; j++) {
            float v = 0.0f;
            for (int s = 0; s < a.slices; s++) v = __fadd_rn(v, p[(j * a.slices + s) * 16]);
            y = __fmaf_rn(__ldcg(a.weights + row * a.used + j), v, y);
        }
        float *out = a.out + (size_t)row * (size_t)a.ld + column;
        *out = a.add ? __fadd_rn(__ldcg(out), y) : y;
    }
}

/* ---- staged activations ---- */

__device__ __forceinline__ void load_tile(int tile, uint64_t *bar, uint32_t act_phase)
{
    const experts_tile t = tiles[tile];
    const uint32_t bytes = (uint32_t)(a.slices * a.slice_row);
    uint8_t *act = smem + a.at.act;
    __syncthreads(); /* all have done with the tile before */
    if (BULK) {
#if __CUDA_ARCH__ >= 900
        if (warp == 0) {
            if (lane == 0)
                asm volatile(
                    "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(bar)),
                    "r"(bytes * t.count)
                    : "memory");
            __syncwarp();
            if (lane < t.count)
                copy_bulk_to(act + lane * a.at.row_bytes,
                             a.rows + (size_t)row_of(order[t.first + lane]) * bytes, bytes, bar);
        }
#endif
        bar_wait(bar, act_phase);
    } else {
        for (int k = warp; k < t.count; k += blockDim.x / 32) {
            const uint8_t *src = a.rows + (size_t)row_of(order[t.first + k]) * bytes;
            for (uint32_t o = 16 * lane; o < bytes; o += 512)
                *(uint4 *)(act + k * a.at.row_bytes + o) = __ldcg((const uint4 *)(src + o));
        }
        __syncthreads();
    }
}

__device__ __forceinline__ void run()
{
    stages = __shfl_sync(0xffffffff, a.stages, 0), stage_bytes = a.stage_bytes, stage_units = a.stage_units;
    ring = smem + MM_BARS + warp * stages * stage_bytes;
    bars = (uint64_t *)smem + warp * stages;
    uint64_t *const act_bar = (uint64_t *)smem + blockDim.x / 32 * stages;
    cuda_grid_early();
    if (BULK && lane == 0) {
        for (int i = 0; i < stages; i++) bar_init(bars + i);
        if (warp == 0) bar_init(act_bar);
        bar_fence();
    }
    if (!a.early) cuda_grid_wait();
    const int tasks = a.members * a.slice_warps, jobs = blockDim.x / 32 / tasks;
    sub = warp / tasks;
    member = warp % tasks / a.slice_warps;
    part = warp % a.slice_warps;
    const bool busy = sub < jobs;
    unit_bytes = a.unit_bytes[busy ? member : 0];
    w = a.w[busy ? member : 0];
    tiles = (const experts_tile *)(smem + a.at.tiles);
    order = (const uint16_t *)(smem + a.at.order);
    way = experts_way_of<owned>(a, experts_find_tiles(a, smem), jobs);
    slot = 0;
    phase = 0;
    next = {busy ? (int)blockIdx.x : way.n_outer, 0, 0, 0, nullptr, nullptr};
    seek();
    for (int i = 0; i < stages; i++) issue(i);
    cuda_grid_wait();

    const bool adding = !owned && (a.slices > 1 || a.members > 1);
    float4 *const sums = (float4 *)(smem + a.at.sums);
    const int set = jobs * a.members * a.slices * NT * 32; /* two sets, which take turns */
    int turn = 0;
    uint32_t act_phase = 0;
    for (int outer = blockIdx.x; outer < way.n_outer; outer += gridDim.x) {
        if (staged) {
            load_tile(outer / way.groups, act_bar, act_phase);
            act_phase ^= 1;
        }
        for (int inner = 0; inner < way.n_inner; inner++) {
            int tile, panel;
            float4 *to = adding ? sums + turn % 2 * set : nullptr;
            if (busy && experts_locate<owned>(a, way, outer, inner, sub, &tile, &panel))
                dispatch(tiles[tile], panel, to, (float *)sums);
            if (adding) {
                __syncthreads();
                add_slices(to, outer, inner, turn);
                turn++;
            }
        }
        if (owned) {
            __syncthreads();
            add_pairs((const float *)sums, outer);
            __syncthreads();
        }
    }
    if (!BULK) asm volatile("cp.async.wait_all;" ::: "memory");
}
}
;

/* Registers: two blocks of 8 warps a multiprocessor for up to 16 pairs, else one; OWNED: one of 16. */
template <class F, int NT, enum experts_form FORM, bool BULK>
__global__ void __launch_bounds__(FORM == EXPERTS_OWNED ? 512 : 256, FORM == EXPERTS_OWNED || NT == 4 ? 1 : 2)
    experts_kernel(const __grid_constant__ experts_args a)
{
#ifdef __CUDA_ARCH__
    if constexpr (BULK ? __CUDA_ARCH__ >= 900 : NT <= (__CUDA_ARCH__ >= 900 ? 1 : 2)) {
        extern __shared__ __align__(128) uint8_t experts_smem[];
        experts_block<F, NT, FORM, BULK>(a, experts_smem).run();
    }
#endif
}

template <class F> static experts_kernel_fn experts_pick(int log2_tiles, enum experts_form form, bool generic)
{
    if (generic)
        return form != EXPERTS_PLAIN ? nullptr
               : log2_tiles == 0     ? experts_kernel<F, 1, EXPERTS_PLAIN, false>
               : log2_tiles == 1     ? experts_kernel<F, 2, EXPERTS_PLAIN, false>
                                     : nullptr;
    switch (form) {
    case EXPERTS_PLAIN:
        return log2_tiles == 0   ? experts_kernel<F, 1, EXPERTS_PLAIN, true>
               : log2_tiles == 1 ? experts_kernel<F, 2, EXPERTS_PLAIN, true>
                                 : nullptr;
    case EXPERTS_STAGED: return log2_tiles == 2 ? experts_kernel<F, 4, EXPERTS_STAGED, true> : nullptr;
    case EXPERTS_OWNED:
        if constexpr (F::whole)
            return log2_tiles == 0   ? experts_kernel<F, 1, EXPERTS_OWNED, true>
                   : log2_tiles == 1 ? experts_kernel<F, 2, EXPERTS_OWNED, true>
                                     : nullptr;
    default: return nullptr;
    }
}

#endif
