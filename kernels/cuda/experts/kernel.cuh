/* experts/kernel.cuh - the kernel of experts' products: tiles, rings of packed weights, sums.
 *
 * Grid: blocks of a.warps warps, as many as are resident or have work. Members * slice_warps warps of a block
 * take a panel of a tile at a time, `jobs` such groups a block: group s of block b takes panels b + s * grid,
 * and then every (jobs * grid)th, so that where panels run out every multiprocessor still has some. STAGED
 * and OWNED: block b takes the runs b, b + grid, ... of panels of a tile (OWNED: a panel of all tiles),
 * `jobs` at a time. Bound: the bytes of the chosen matrices, once (a tile has up to 32 pairs; with more, the
 * second reading comes from the second-level cache). */
#ifndef DFLASH_CUDA_EXPERTS_KERNEL_CUH
#define DFLASH_CUDA_EXPERTS_KERNEL_CUH

#include "experts.cuh"
#include "../product/mm_kernel.cuh"

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
    if (a.few) {
        const experts_few s = experts_few_at(smem + a.at.few, a.pairs, a.n_mat, a.tile);
        experts_few_load(s, a.ids, i);
        __syncthreads();
        experts_few_place(s, order, i);
        __syncthreads();
        experts_few_head(s, i);
        __syncthreads();
        const int n = experts_few_tile(s, tiles, i);
        if (n) *s.found = n; /* one thread */
        __syncthreads();
        return *s.found;
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
    shared_fence(); /* bulk copies will write here */
    __syncthreads();
    return n;
}

/* Where a block's jobs lead. */
struct experts_way {
    int n_outer, n_inner, jobs, groups, n_tiles;
};
template <int FORM> DEV experts_way experts_way_of(const experts_args &a, int n_tiles, int jobs)
{
    if (FORM == EXPERTS_OWNED) return experts_way{a.panels, (n_tiles + jobs - 1) / jobs, jobs, 1, n_tiles};
    if (FORM != EXPERTS_STAGED) return experts_way{n_tiles * a.panels, 1, jobs, a.panels, n_tiles};
    const int groups = (a.panels + a.run - 1) / a.run;
    return experts_way{n_tiles * groups, (a.run + jobs - 1) / jobs, jobs, groups, n_tiles};
}
/* Tile and panel (of the launch) of a place of the way; false: there is none. */
template <int FORM>
DEV bool experts_locate(const experts_args &a, const experts_way &y, int outer, int inner, int sub, int *tile,
                        int *panel)
{
    const int i = inner * y.jobs + sub;
    if (FORM == EXPERTS_OWNED) {
        *tile = i, *panel = outer;
        return i < y.n_tiles;
    }
    *tile = outer / y.groups;
    if (FORM != EXPERTS_STAGED) {
        *panel = outer - *tile * y.groups;
        return true;
    }
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

template <class F, int NT, int FORM, bool BULK> struct experts_block {
    static constexpr bool owned = FORM == EXPERTS_OWNED, staged = FORM == EXPERTS_STAGED,
                          held = FORM == EXPERTS_HELD || FORM == EXPERTS_SOLO || owned,
                          solo = FORM == EXPERTS_SOLO || staged;
    const experts_args &a;
    uint8_t *const smem;
    const int lane, warp;
    const experts_tile *tiles;
    const uint16_t *order;
    experts_way way;
    int sub, member, part; /* of this warp */
    int first, stride;     /* its way */
    /* its ring, and the way of the copies through the weights */
    int stages, stage_units, stage_bytes;
    uint8_t *ring;
    uint64_t *bars;
    int slot;
    uint32_t phase;
    struct {
        int outer, inner, tile, panel, member, slice, left, unit_bytes;
        const uint8_t *base, *p;
    } next;

    __device__ __forceinline__ experts_block(const experts_args &args, uint8_t *memory)
        : a(args), smem(memory), lane(threadIdx.x % 32), warp(threadIdx.x / 32)
    {
    }

    __device__ __forceinline__ int matrix_of(int of, int expert) const
    {
        return of + (expert == a.shared ? 2 : 0);
    }

    /* ---- copies ---- */

    __device__ __forceinline__ void find_slice()
    {
        const int unit0 = next.slice * a.slice_units;
        next.p = next.base + (uint32_t)(unit0 * next.unit_bytes);
        next.left = min(a.slice_units, a.units - unit0);
    }
    __device__ __forceinline__ void find_matrix()
    {
        const int id = tiles[next.tile].expert, which = matrix_of(next.member, id);
        const uint8_t *w = a.w[which];
        int place = which < 2 ? id : 0;
        if (a.places && which < 2) {
            place = __ldg(a.places + id);
            if (place < 0) w = a.host[which], place = ~place;
        }
        next.unit_bytes = a.unit_bytes[which];
        next.base = w + ((size_t)place * (size_t)a.all_panels + (size_t)(a.first_panel + next.panel)) *
                            (size_t)(a.units * next.unit_bytes);
        next.slice = part;
        find_slice();
    }
    /* From (outer, inner) on to a place that is there. */
    __device__ __forceinline__ void seek()
    {
        while (next.outer < way.n_outer) {
            if (experts_locate<FORM>(a, way, next.outer, next.inner, sub, &next.tile, &next.panel)) {
                next.member = member;
                find_matrix();
                return;
            }
            forward();
        }
    }
    __device__ __forceinline__ void forward()
    {
        if (++next.inner == way.n_inner) {
            next.inner = 0;
            next.outer += stride;
        }
    }
    __device__ __forceinline__ void issue(int put)
    {
        if (next.outer < way.n_outer) {
            const int bytes = min(stage_units, next.left) * next.unit_bytes;
            uint8_t *dst = ring + put * stage_bytes;
            if (BULK) {
                if (lane == 0) copy_bulk(dst, next.p, bytes, bars + put);
            } else {
#pragma unroll 1
                for (int o = 16 * lane; o < bytes; o += 512) copy_async(dst + o, next.p + o);
            }
            next.p += bytes;
            next.left -= stage_units;
            if (next.left <= 0) {
                next.slice += a.slice_warps;
                if (next.slice < a.slices) {
                    find_slice();
                } else if (solo && next.member + 1 < a.members) {
                    next.member++;
                    find_matrix();
                } else {
                    forward();
                    seek();
                }
            }
        }
        if (!BULK) asm volatile("cp.async.commit_group;" ::: "memory");
    }

    /* ---- one panel of one tile: this warp's members and slices ---- */

    __device__ __forceinline__ uint32_t row_of(int pair) const
    {
        return a.per_row ? __umulhi((uint32_t)pair, a.per_row) : (uint32_t)pair;
    }
    __device__ __forceinline__ uint32_t row_at(const experts_tile &tile, int token) const
    {
        token = min(token, tile.count - 1);
        if (staged) return (uint32_t)token * a.at.row_bytes;
        return row_of(order[tile.first + token]) *
               (held ? a.at.row_bytes : (uint32_t)(a.slices * a.slice_row));
    }
    /* fin = the slice's sum, scaled. */
    template <int N>
    __device__ __forceinline__ void slice_sum(float fin[N][4], mm_view<N> &view, int slice, uint32_t type)
    {
        const uint8_t *x = (held || staged ? smem + a.at.act : a.rows) + (uint32_t)(slice * a.slice_row);
        const int units = min(a.slice_units, a.units - slice * a.slice_units);
#pragma unroll
        for (int t = 0; t < N; t++) zero(fin[t]);
        view.b = x;
        view.sums = x + F::b_unit * a.slice_units;
        view.aux = x + (F::b_unit + F::sums_unit) * a.slice_units;
#pragma unroll 1
        for (int unit = 0; unit < units; unit += stage_units) {
            wait_stage<BULK>(bars, slot, phase, stages);
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
        if constexpr (!F::whole) /* the slice's factor */
#pragma unroll
            for (int t = 0; t < N; t++) {
                const float f0 = *(const float *)(x + view.pair[t][0] + a.slice_row - 16),
                            f1 = *(const float *)(x + view.pair[t][1] + a.slice_row - 16);
                fin[t][0] = __fmul_rn(fin[t][0], f0), fin[t][1] = __fmul_rn(fin[t][1], f1);
                fin[t][2] = __fmul_rn(fin[t][2], f0), fin[t][3] = __fmul_rn(fin[t][3], f1);
            }
    }
    /* A sum to where it meets others: of slice `part_of`, or of all (0). */
    template <int N>
    __device__ __forceinline__ void store(const float c[N][4], const experts_tile &tile, int part_of,
                                          float4 *sums)
    {
#pragma unroll
        for (int t = 0; t < N; t++) {
            if (8 * t + 2 * (lane % 4) >= tile.count) break;
            if constexpr (!owned) {
                sums[((member * a.parts + part_of) * NT + t) * 32 + lane] =
                    make_float4(c[t][0], c[t][1], c[t][2], c[t][3]);
            } else {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int token = 8 * t + 2 * (lane % 4) + i % 2;
                    if (token < tile.count)
                        ((float *)sums)[(order[tile.first + token] * a.parts + part_of) * 16 + lane / 4 +
                                        8 * (i / 2)] = c[t][i];
                }
            }
        }
    }
    template <int N>
    __device__ __forceinline__ void multiply(const experts_tile &tile, int panel, float4 *sums)
    {
        mm_view<N> view;
        view.plane_bytes = 64 * a.slice_units;
        if constexpr (F::grids) view.points = grid_there(smem + a.at.grid, a.points);
#pragma unroll
        for (int t = 0; t < N; t++) {
            view.row[t] = row_at(tile, 8 * t + lane / 4) + lane % 4 * 16;
            view.pair[t][0] = row_at(tile, 8 * t + 2 * (lane % 4));
            view.pair[t][1] = row_at(tile, 8 * t + 2 * (lane % 4) + 1);
        }
        float fin[N][4], v[N][4], gate[N][4];
#pragma unroll
        for (int t = 0; t < N; t++) zero(gate[t]);
        for (int m = member; m < (solo ? a.members : member + 1); m++) {
            const uint32_t type = a.type[matrix_of(m, tile.expert)];
#pragma unroll
            for (int t = 0; t < N; t++) zero(v[t]);
#pragma unroll 1
            for (int slice = part; slice < a.slices; slice += a.slice_warps) {
                slice_sum<N>(fin, view, slice, type);
                if (!solo && a.slice_warps > 1) {
                    store<N>(fin, tile, slice, sums);
                    continue;
                }
#pragma unroll
                for (int t = 0; t < N; t++)
                    add_four(v[t], make_float4(fin[t][0], fin[t][1], fin[t][2], fin[t][3]));
            }
            if (solo && m + 1 < a.members)
#pragma unroll
                for (int t = 0; t < N; t++)
#pragma unroll
                    for (int i = 0; i < 4; i++) gate[t][i] = v[t][i];
        }
        if (solo || (!owned && a.members * a.slice_warps == 1)) {
#pragma unroll
            for (int t = 0; t < N; t++) {
                if (8 * t + 2 * (lane % 4) >= tile.count) break;
                float first[4];
#pragma unroll
                for (int i = 0; i < 4; i++) first[i] = solo && a.members == 2 ? gate[t][i] : v[t][i];
                experts_write(a, order, tile, panel, t, lane, first, v[t]);
            }
        } else if (a.slice_warps == 1) {
            store<N>(v, tile, 0, sums);
        }
    }
    __device__ __forceinline__ void dispatch(const experts_tile &tile, int panel, float4 *sums)
    {
        if constexpr (NT >= 4)
            if (tile.count > 16) {
                multiply<4>(tile, panel, sums);
                return;
            }
        if constexpr (NT >= 2)
            if (tile.count > 8) {
                multiply<2>(tile, panel, sums);
                return;
            }
        multiply<1>(tile, panel, sums);
    }

    /* ---- sums ---- */

    /* Of a job's warps, which have come here: slices in ascending order, tiles of 8 among its warps. */
    __device__ __forceinline__ void add_slices(const experts_tile &tile, int panel, const float4 *sums,
                                               int turn)
    {
        const int warps = a.members * a.slice_warps;
        for (int t = (warp + turn) % warps; t < NT; t += warps) {
            if (8 * t + 2 * (lane % 4) >= tile.count) continue;
            float v[4], up[4];
            zero(v);
            zero(up);
            const float4 *p = sums + t * 32 + lane;
#pragma unroll 4
            for (int s = 0; s < a.parts; s++) add_four(v, p[s * NT * 32]);
            if (a.members == 2)
#pragma unroll 4
                for (int s = 0; s < a.parts; s++) add_four(up, p[(a.parts + s) * NT * 32]);
            experts_write(a, order, tile, panel, t, lane, v, up);
        }
    }
    /* OWNED: a row's experts in the order of its list. */
    __device__ __forceinline__ void add_pairs(const float *results, int panel)
    {
        for (int i = threadIdx.x; i < 16 * a.n; i += blockDim.x) {
            const int row = i / 16, column = 16 * (a.first_panel + panel) + i % 16;
            if (column >= a.n_out) continue;
            const float *p = results + (size_t)(row * a.used * a.parts) * 16 + i % 16;
            float y = 0.0f;
            for (int j = 0; j < a.used; j++) {
                float v = 0.0f;
                for (int s = 0; s < a.parts; s++) v = __fadd_rn(v, p[(j * a.parts + s) * 16]);
                y = __fmaf_rn(__ldcg(a.weights + row * a.used + j), v, y);
            }
            float *out = a.out + (size_t)row * (size_t)a.ld + column;
            *out = a.add ? __fadd_rn(__ldcg(out), y) : y;
        }
    }

    /* ---- activations in shared memory ---- */

    /* `rows` rows, the i-th of them row_of_i(i); of all warps the first asks, all wait. */
    template <class G> __device__ __forceinline__ void ask_rows(int rows, uint64_t *bar, G row_of_i)
    {
        if (BULK) {
#if __CUDA_ARCH__ >= 900
            const uint32_t bytes = (uint32_t)(a.slices * a.slice_row);
            uint8_t *act = smem + a.at.act;
            if (warp == 0) {
                if (lane == 0)
                    asm volatile(
                        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_at(bar)),
                        "r"(bytes * rows)
                        : "memory");
                __syncwarp();
#pragma unroll 1
                for (int i = lane; i < rows; i += 32)
                    copy_bulk_to(act + i * a.at.row_bytes, a.rows + (size_t)row_of_i(i) * bytes, bytes, bar);
            }
#endif
        }
    }
    template <class G>
    __device__ __forceinline__ void load_rows(int rows, uint64_t *bar, uint32_t act_phase, G row_of_i)
    {
        const uint32_t bytes = (uint32_t)(a.slices * a.slice_row);
        uint8_t *act = smem + a.at.act;
        if (BULK) {
            ask_rows(rows, bar, row_of_i);
            bar_wait(bar, act_phase);
        } else {
            for (int i = warp; i < rows; i += blockDim.x / 32) {
                const uint8_t *src = a.rows + (size_t)row_of_i(i) * bytes;
                for (uint32_t o = 16 * lane; o < bytes; o += 512)
                    *(uint4 *)(act + i * a.at.row_bytes + o) = __ldcg((const uint4 *)(src + o));
            }
            __syncthreads();
        }
    }

    /* All pairs, rounded by this block: a warp a block of 256 columns, as prepare_row does. */
    __device__ __forceinline__ void make_rows()
    {
        const mm_prep p = {nullptr, nullptr, nullptr,       0.0f,     a.n_in,
                           a.units, 0,       a.slice_units, a.slices, a.slice_row};
        constexpr int batch = 3;
        const int blocks = (a.n_in + 255) / 256, warps = blockDim.x / 32;
        for (int i = warp; i < a.pairs * blocks; i += batch * warps) {
            float v[batch][8];
#pragma unroll
            for (int k = 0; k < batch; k++) {
                const int at = i + k * warps, row = at / blocks;
                if (row < a.pairs)
                    load_eight(v[k], a.x + (size_t)row * (size_t)a.n_in, 256 * (at - row * blocks) + 8 * lane,
                               a.n_in);
            }
#pragma unroll
            for (int k = 0; k < batch; k++) {
                const int at = i + k * warps, row = at / blocks;
                if (row < a.pairs)
                    store_block<F::act>(p, smem + a.at.act + row * a.at.row_bytes, at - row * blocks, v[k]);
            }
        }
        __syncthreads();
    }

    __device__ __forceinline__ void run()
    {
        stages = __shfl_sync(0xffffffff, a.stages, 0), stage_bytes = a.stage_bytes,
        stage_units = a.stage_units;
        ring = smem + MM_BARS + warp * stages * stage_bytes;
        bars = (uint64_t *)smem + warp * stages;
        uint64_t *const act_bar = (uint64_t *)smem + blockDim.x / 32 * stages;
        if (a.early) cuda_grid_early();
        if (BULK && lane == 0) {
#pragma unroll 1
            for (int i = 0; i < stages; i++) bar_init(bars + i);
            if (warp == 0) bar_init(act_bar);
            bar_fence();
        }
        if (!a.early) { /* in this order: the next product may start once the choice that it reads is there */
            cuda_grid_wait();
            cuda_grid_early();
        }
        /* Rows that are there, on their way while pairs are sorted (not where their place is wanted for
         * that). */
        const int n_rows = a.per_row || a.members == 2 ? a.n : a.pairs;
        const auto same = [](int i) { return (uint32_t)i; };
        const bool asked = BULK && held && !a.early && (a.n == 1 || a.few) && !(owned && a.x);
        if (asked) ask_rows(n_rows, act_bar, same);
        const int tasks = solo ? 1 : a.members * a.slice_warps, jobs = blockDim.x / 32 / tasks;
        sub = warp / tasks;
        member = warp % tasks / a.slice_warps;
        part = solo ? 0 : warp % a.slice_warps;
        const bool busy = sub < jobs;
        tiles = (const experts_tile *)(smem + a.at.tiles);
        order = (const uint16_t *)(smem + a.at.order);
        if constexpr (F::grids) grid_load(smem + a.at.grid, a.points); /* they meet in what follows */
        way = experts_way_of<FORM>(a, experts_find_tiles(a, smem), jobs);
        slot = 0;
        phase = 0;
        first = (int)(staged || owned ? blockIdx.x : blockIdx.x + gridDim.x * sub);
        stride = (int)(staged || owned ? gridDim.x : gridDim.x * jobs);
        next.outer = busy ? first : way.n_outer;
        next.inner = 0;
        seek();
#pragma unroll 1
        for (int i = 0; i < stages; i++) issue(i);
        cuda_grid_wait();
        bool made = false;
        if constexpr (owned) {
            made = a.x != nullptr;
            if (made) make_rows();
        }
        if (asked)
            bar_wait(act_bar, 0);
        else if (held && !made)
            load_rows(n_rows, act_bar, 0, same);

        const bool adding = !owned && tasks > 1;
        float4 *const sums = (float4 *)(smem + a.at.sums);
        const int set = a.members * a.parts * NT * 32; /* of a job; two sets, which take turns */
        int turn = 0;
        uint32_t act_phase = 0;
        for (int outer = first; outer < way.n_outer; outer += stride) {
            if (staged) {
                const experts_tile t = tiles[outer / way.groups];
                __syncthreads(); /* all have done with the tile before */
                load_rows(t.count, act_bar, act_phase, [&](int i) { return row_of(order[t.first + i]); });
                act_phase ^= 1;
            }
            for (int inner = 0; inner < way.n_inner && busy; inner++) {
                int tile, panel;
                if (!experts_locate<FORM>(a, way, outer, inner, sub, &tile, &panel)) continue;
                float4 *const to = adding ? sums + (turn % 2 * jobs + sub) * set : sums;
                const experts_tile t = tiles[tile];
                dispatch(t, panel, to);
                if (adding) { /* the job's warps alone */
                    asm volatile("bar.sync %0, %1;" ::"r"(1 + sub), "r"(32 * tasks) : "memory");
                    add_slices(t, panel, to, turn);
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
};

/* Registers: PLAIN two blocks of 8 warps a multiprocessor, the others one, of 16 warps or (STAGED, tiles of
 * 32) 8. */
template <class F, int NT, int FORM, bool BULK>
__global__ void __launch_bounds__(FORM == EXPERTS_PLAIN || (FORM == EXPERTS_STAGED && NT == 4) ? 256 : 512,
                                  FORM == EXPERTS_PLAIN ? 2 : 1)
    experts_kernel(const __grid_constant__ experts_args a)
{
#ifdef __CUDA_ARCH__
    if constexpr (BULK ? __CUDA_ARCH__ >= 900 : NT <= (__CUDA_ARCH__ >= 900 ? 1 : 2)) {
        extern __shared__ __align__(128) uint8_t experts_smem[];
        experts_block<F, NT, FORM, BULK>(a, experts_smem).run();
    }
#endif
}

template <class F, int FORM, bool BULK> static experts_kernel_fn experts_pick_form(int log2_tiles)
{
    return log2_tiles == 0   ? experts_kernel<F, 1, FORM, BULK>
           : log2_tiles == 1 ? experts_kernel<F, 2, FORM, BULK>
                             : nullptr;
}
/* As experts_has (experts_plan.c) has it. */
template <class F> static experts_kernel_fn experts_pick(int log2_tiles, enum experts_form form, bool generic)
{
    if (form == EXPERTS_PLAIN)
        return generic ? experts_pick_form<F, EXPERTS_PLAIN, false>(log2_tiles)
                       : experts_pick_form<F, EXPERTS_PLAIN, true>(log2_tiles);
    if (generic) return nullptr;
    if (form == EXPERTS_STAGED && log2_tiles == 2) return experts_kernel<F, 4, EXPERTS_STAGED, true>;
    if constexpr (F::whole)
        return form == EXPERTS_HELD     ? experts_pick_form<F, EXPERTS_HELD, true>(log2_tiles)
               : form == EXPERTS_SOLO   ? experts_pick_form<F, EXPERTS_SOLO, true>(log2_tiles)
               : form == EXPERTS_STAGED ? experts_pick_form<F, EXPERTS_STAGED, true>(log2_tiles)
                                        : experts_pick_form<F, EXPERTS_OWNED, true>(log2_tiles);
    return nullptr;
}

#endif
