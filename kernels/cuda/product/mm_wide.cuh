/* mm_wide.cuh - the product kernel of 17 to 128 rows of K types (compute capability 9.0): one pass over the
 * weights, with the bits of mm_kernel.cuh and mm_few.cuh.
 *
 * A *tile* is 64 rows of a weight (gated: 32 of the gate, the same 32 of the up), four panels, and belongs to
 * four warps; a block has G tiles and four warps more, of which one copies and all leave registers. A *stage*
 * is a unit (256 columns) of all of the block's panels and of all rows. Codes times their integer scales are
 * two bytes, two factors A (mm_wide_codes.cuh). Each is summed over the unit by products of four warps in
 * int32, exactly; together they are the exact sum of the unit, which then meets its float scales as in
 * mm_few_k.cuh. So no result of a tensor operation is scaled by itself: 4 multiplications for each 16 x 8 x
 * 32 products were as slow as the products.
 *
 * Rows (prep_block.cuh): unit by unit {[16 pieces of 16 columns][N][16] int8; [2 pieces][N][8] sums as f16;
 * [N] scales}, N: 8 NT. Sums of slices wait in shared memory, [G][token][WIDE_PITCH] floats, so that outputs
 * are written row by row. Slices may be shared out, so that blocks have as much to do each: then their sums
 * are left in memory for the next reader (owed.cuh), or, of gates and ups, added by the block that is there
 * last, in order.
 *
 * Bound: the bytes of the weights at 17 rows; at 64, tensor operations and the making of A. */
#ifndef DFLASH_CUDA_MM_WIDE_CUH
#define DFLASH_CUDA_MM_WIDE_CUH

#include "mm_few_k.cuh"
#include "mm_wide_codes.cuh"
#include "mm_wide_mma.cuh"

#define WIDE_BOTH 12   /* columns of eight up to which both sums have registers */
#define WIDE_STAGES 8  /* at most */
#define WIDE_FLAGS 128 /* of shared memory: behind the barriers, flags; sums and stages follow */

/* ---- a unit ---- */

/* fin += the unit's sums. rows: of the stage, shared memory; done(): all of the stage has been read. */
template <uint32_t TYPE, int NT, class DONE>
DEV void wide_unit(float fin[NT][4], const uint8_t *st, const uint8_t *rows, int lane, const uint16_t *points,
                   DONE done)
{
    constexpr uint32_t n = 8 * NT;
    using mma = wide_mma<NT>;
    /* 128 rows: no registers for both sums. The high ones first, which the low ones then go on with. */
    constexpr bool in_turn = NT > WIDE_BOTH;
    wide_codes<TYPE> unit;
    int low[NT][4] = {}, high[in_turn ? 1 : NT][4] = {};
    float m[NT][4] = {};
    unit.open(st, lane, points);
    const uint32_t b = __shfl_sync(0xffffffff, wide_matrix(shared_at(rows), n), 0);
#pragma unroll
    for (int j = unit.is_low || !in_turn ? 8 : 0; j < 16; j++) {
        const int step = j % 8;
        uint32_t a_low[4], a_high[4];
        unit.step(step, a_low, a_high);
        wide_begin();
        if (j >= 8) {
            mma::low(low, a_low, b + 2 * n * step, in_turn && !unit.is_low ? 1 : step);
            if (!in_turn && unit.in_threes)
                mma::low(high, a_high, b + 2 * n * step, step);
            else if (!in_turn && !unit.is_low)
                mma::high(high, a_high, b + 2 * n * step, step);
        } else if (unit.in_threes) {
            mma::low(low, a_high, b + 2 * n * step, step);
        } else {
            mma::high(low, a_high, b + 2 * n * step, step);
        }
        wide_commit();
        if (step < 7) wide_wait<1>(); /* the registers of the products before */
        if (j == 7) {
            wide_wait<0>();
            mma::settle(low);
#pragma unroll
            for (int t = 0; t < NT; t++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    low[t][i] = (int)((uint32_t)low[t][i] << (unit.in_threes ? 3 : 8));
        }
    }
    wide_wait<0>();
    mma::settle(low);
    if (!in_turn && !unit.is_low) {
        mma::settle(high);
#pragma unroll
        for (int t = 0; t < NT; t++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                low[t][i] = (int)(((uint32_t)high[t % (in_turn ? 1 : NT)][i] << (unit.in_threes ? 3 : 8)) +
                                  (uint32_t)low[t][i]);
    }
    if (unit.has_mins) {
        wide_begin();
        mma::sums(m, unit.mins, b + 16 * n);
        wide_commit();
        wide_wait<0>();
        mma::settle(m);
    }
    const float up[2] = {__fmul_rn(unit.dmin[0], 16777216.0f), __fmul_rn(unit.dmin[1], 16777216.0f)};
    const uint8_t *const scales = rows + 288 * n + lane % 4 * 8;
#pragma unroll
    for (int t = 0; t < NT; t++) {
        const float2 da = *(const float2 *)(scales + 32 * t);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float f = i % 2 ? da.y : da.x, sum = __int2float_rn(low[t][i]);
            if (unit.has_mins) {
                const float y = __fmaf_rn(sum, unit.d[i / 2], -__fmul_rn(m[t][i], up[i / 2]));
                fin[t][i] = __fmaf_rn(y, f, fin[t][i]);
            } else
                fin[t][i] = __fmaf_rn(sum, __fmul_rn(unit.d[i / 2], f), fin[t][i]);
        }
    }
    done();
}

/* ---- what a block has ---- */

/* Of tile `tile` the matrix and the tile in it. */
DEV int wide_find(const mm_args &a, int tile, int *in)
{
    int j = 0, before = 0;
    if (!a.gated)
        for (;; j++) {
            const int count = (a.n_out[j] + 63) / 64;
            if (tile < before + count || j + 1 == a.count_w) break;
            before += count;
        }
    *in = tile - before;
    return j;
}
struct wide_place {
    int matrix, in; /* a tile's matrix, the tile in it */
};
/* The stages in turn. */
struct wide_turn {
    int at;
    uint32_t phase;
    __device__ __forceinline__ void next(int stages)
    {
        if (++at == stages) at = 0, phase ^= 1;
    }
};
DEV uint64_t *wide_full(uint8_t *smem, int at)
{
    return (uint64_t *)smem + 2 * at;
}
DEV uint64_t *wide_empty(uint8_t *smem, int at)
{
    return (uint64_t *)smem + 2 * at + 1;
}
/* What a block has: of each of some blocks of G tiles, one after the other, slices first .. end - 1. Shares
 * differ by a slice at most; a tile whose slices several blocks have is finished by the last of them. */
struct wide_part {
    int at, items; /* next; end: slices, of all blocks of tiles in turn */
    int tiles, first, end, owner;
    bool whole;
};
DEV wide_part wide_part_of(const mm_args &a, int blocks_of_tiles)
{
    const long long all = (long long)blocks_of_tiles * (a.wide_share ? a.slices : 1);
    const int scale = a.wide_share ? 1 : a.slices, here = (int)blockIdx.x, grid = (int)gridDim.x;
    wide_part p = {};
    p.at = (int)(all * here / grid) * scale;
    p.items = (int)(all * (here + 1) / grid) * scale;
    return p;
}
/* The next block of tiles, if there is one. owner: the first of the blocks that share it. */
DEV bool wide_next(const mm_args &a, int blocks_of_tiles, wide_part &p)
{
    if (p.at >= p.items) return false;
    p.tiles = p.at / a.slices, p.first = p.at - p.tiles * a.slices;
    p.end = min(a.slices, p.first + p.items - p.at);
    p.at += p.end - p.first;
    p.whole = p.end - p.first == a.slices;
    p.owner = (int)(((long long)(p.tiles * a.slices + 1) * gridDim.x - 1) / (blocks_of_tiles * a.slices));
    return true;
}

/* The warp that copies: its lanes 0 the rows, 1 + w the units of warp w. */
template <int NT, int G> DEV void wide_copy(const mm_args &a, uint8_t *smem, wide_part part, int lane)
{
    constexpr uint32_t rows_bytes = WIDE_UNIT * 8 * NT, place = WIDE_ROWS(8 * NT);
    const int warp = lane - 1, blocks = (a.wide_tiles + G - 1) / G;
    uint8_t *const ring = smem + a.at.ring;
    wide_turn turn = {0, 0};
    int early = 0; /* stages whose rows wait for the launch before */
    int early_unit[WIDE_STAGES];
    bool waited = false;
    const auto ask_rows = [&] {
        cuda_grid_wait();
        waited = true;
        if (lane == 0)
#pragma unroll
            for (int i = 0; i < WIDE_STAGES; i++)
                if (i < early)
                    copy_bulk_to(ring + i * a.stage_bytes, a.rows + (size_t)early_unit[i] * rows_bytes,
                                 rows_bytes, wide_full(smem, i));
    };
    while (wide_next(a, blocks, part)) {
        const int tile = part.tiles * G + warp / 4, from = part.first * a.slice_units,
                  end = min(part.end * a.slice_units, a.units);
        const bool has = warp >= 0 && warp < 4 * G && tile < a.wide_tiles;
        uint32_t unit_bytes = 0;
        const uint8_t *p = a.rows + (size_t)from * rows_bytes;
        if (has) {
            int in, j = wide_find(a, tile, &in), panel = 4 * in + warp % 4;
            if (a.gated) j = warp % 4 / 2, panel = 2 * in + warp % 2;
            unit_bytes = (uint32_t)a.unit_bytes[j];
            p = a.w[j] + ((size_t)min(panel, (a.n_out[j] + 15) / 16 - 1) * (size_t)a.units + (size_t)from) *
                             unit_bytes;
        } else if (lane == 0) {
            unit_bytes = rows_bytes;
        }
        const uint32_t all = __reduce_add_sync(0xffffffff, unit_bytes);
        for (int unit = from; unit < end; unit++) {
            uint8_t *const to = ring + turn.at * a.stage_bytes;
            uint64_t *const bar = wide_full(smem, turn.at);
            const bool first = !waited && early < a.stages;
            if (!first) {
                if (!waited) ask_rows();
                bar_wait(wide_empty(smem, turn.at), turn.phase ^ 1);
            }
            if (lane == 0) bar_expect(bar, all);
            __syncwarp();
            if (has)
                copy_weights_to(to + place + (uint32_t)warp * a.pitch, p, unit_bytes, bar);
            else if (lane == 0 && !first)
                copy_bulk_to(to, p, rows_bytes, bar);
            if (first) {
#pragma unroll
                for (int i = 0; i < WIDE_STAGES; i++)
                    if (i == early) early_unit[i] = unit;
                early++;
            }
            p += unit_bytes;
            turn.next(a.stages);
        }
    }
    if (!waited) ask_rows();
}

/* ---- results: sums of a tile, [token][WIDE_PITCH] ---- */

DEV void wide_meet(int group)
{
    asm volatile("bar.sync %0, 128;" ::"r"(1 + group) : "memory");
}
/* Four warps write a tile's outputs. sum(token, row): the sums of all slices. */
template <class SUM> DEV void wide_write(const mm_args &a, int tile, int thread, SUM sum)
{
    int in;
    const int j = wide_find(a, tile, &in);
    if (a.gated) {
        const int at = thread % 32, row = 32 * in + at;
        if (row >= a.n_out[0]) return;
#pragma unroll 4
        for (int t = thread / 32; t < a.n; t += 4)
            a.out[0][(size_t)t * (size_t)a.n_out[0] + (size_t)row] =
                __fmul_rn(act_gate(a.act, sum(t, at)), sum(t, at + 32));
        return;
    }
    const int at = thread % 64, row = 64 * in + at;
    const size_t width = (size_t)a.n_out[j];
    if (row >= a.n_out[j]) return;
    float *out = a.out[j] + row;
#pragma unroll 4
    for (int t = thread / 64; t < a.n; t += 2) {
        float *const to = out + (size_t)t * width;
        const float v = sum(t, at);
        *to = a.add ? __fadd_rn(__ldcg(to), v) : v;
    }
}
/* Sums of a shared tile's slices, in memory: [slice][token][64]. */
template <int NT, int G> DEV float *wide_shared(const mm_args &a, const wide_part &part, int group)
{
    return a.partial + (size_t)(part.owner * G + group) * (size_t)(a.slices * 8 * NT * 64);
}
/* This block's slices are there: were they the last? All of the four warps call, and learn it. */
DEV bool wide_last(const mm_args &a, uint8_t *smem, const wide_part &part, int group, int thread)
{
    volatile int *const flag = (int *)(smem + WIDE_FLAGS) + group;
    __threadfence();
    wide_meet(group);
    if (thread == 0) {
        unsigned *const count = a.count + part.owner * 4 + group;
        const int mine = part.end - part.first, all = (int)atomicAdd(count, (unsigned)mine) + mine;
        if (all == a.slices) *count = 0; /* nobody comes any more */
        __threadfence();
        *flag = all == a.slices;
    }
    wide_meet(group);
    return *flag;
}

/* ---- the kernel ---- */

/* A tile's slices of one type, to `sums` in shared memory, [token][WIDE_PITCH], or to a shared tile's place.
 */
template <uint32_t TYPE, int NT>
DEV void wide_tile(const mm_args &a, uint8_t *smem, const wide_part &part, int warp, int lane,
                   wide_turn &turn, float *sums, float *shared, wide_place place_of)
{
    constexpr uint32_t place = WIDE_ROWS(8 * NT);
    const int column = 16 * (warp % 4) + lane / 4;
#pragma unroll 1
    for (int s = part.first; s < part.end; s++) {
        const int units = min(a.slice_units, a.units - s * a.slice_units);
        float fin[NT][4];
#pragma unroll
        for (int t = 0; t < NT; t++) zero(fin[t]);
#pragma unroll 1
        for (int u = 0; u < units; u++) {
            const uint8_t *const stage = smem + a.at.ring + turn.at * a.stage_bytes;
            bar_wait(wide_full(smem, turn.at), turn.phase);
            wide_unit<TYPE, NT>(fin, stage + place + (uint32_t)warp * a.pitch, stage, lane,
                                grid_there(smem + a.at.grid, a.points), [&] {
                                    __syncwarp();
                                    if (lane == 0) bar_arrive(wide_empty(smem, turn.at));
                                });
            turn.next(a.stages);
        }
        if (part.whole && !a.left) {
            float *const mine = sums + 2 * (lane % 4) * WIDE_PITCH + column;
#pragma unroll
            for (int t = 0; t < NT; t++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float *const p = mine + (8 * t + i % 2) * WIDE_PITCH + 8 * (i / 2);
                    *p = __fadd_rn(s == 0 ? 0.0f : *p, fin[t][i]);
                }
        } else { /* in memory: [token][width], of a tile's place or of the matrix's */
            const int width = a.left ? a.n_out[place_of.matrix] : 64,
                      here = a.left ? a.n_out[place_of.matrix] - 64 * place_of.in : 64,
                      n = a.left ? a.n : 8 * NT;
            float *const mine =
                shared + ((size_t)s * (size_t)n + (size_t)(2 * (lane % 4))) * (size_t)width + column;
#pragma unroll
            for (int t = 0; t < NT; t++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (8 * t + 2 * (lane % 4) + i % 2 < n && column + 8 * (i / 2) < here)
                        __stcg(mine + (size_t)(8 * t + i % 2) * (size_t)width + 8 * (i / 2), fin[t][i]);
        }
    }
}

/* GRID: the types with grids as well. */
template <int NT, int G, bool GRID> DEV void wide_product(const mm_args &a)
{
    extern __shared__ __align__(128) uint8_t smem[];
    const int lane = threadIdx.x % 32, warp = __shfl_sync(0xffffffff, (int)threadIdx.x / 32, 0),
              blocks = (a.wide_tiles + G - 1) / G;
    wide_part part = wide_part_of(a, blocks);
    cuda_grid_early();
    if (threadIdx.x == 0) {
        for (int i = 0; i < a.stages; i++)
            bar_open(wide_full(smem, i), 1), bar_open(wide_empty(smem, i), 4 * G);
        bar_fence();
    }
    if constexpr (GRID) grid_load(smem + a.at.grid, a.points);
    __syncthreads();
    if (warp >= 4 * G) {
        asm_90("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(G == 2 ? 40 : 32));
        if (warp == 4 * G) wide_copy<NT, G>(a, smem, part, lane);
        return;
    }
    asm_90("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(G == 2 ? 232 : G == 3 ? 160 : 112));
    cuda_grid_wait();
    const int group = warp / 4, thread = (int)threadIdx.x % 128;
    float *const sums = (float *)(smem + a.at.merge) + group * 8 * NT * WIDE_PITCH;
    wide_turn turn = {0, 0};
#pragma unroll 1
    while (wide_next(a, blocks, part)) {
        const int tile = part.tiles * G + group;
        if (tile >= a.wide_tiles) { /* the others' stages pass */
            const int end = min(part.end * a.slice_units, a.units);
#pragma unroll 1
            for (int u = part.first * a.slice_units; u < end; u++) {
                bar_wait(wide_full(smem, turn.at), turn.phase);
                __syncwarp();
                if (lane == 0) bar_arrive(wide_empty(smem, turn.at));
                turn.next(a.stages);
            }
            continue;
        }
        wide_place at;
        at.matrix = wide_find(a, tile, &at.in);
        /* Through a shuffle: the compiler is to know that all lanes go one way, or products wait for each
         * other. */
        const uint32_t type = __shfl_sync(0xffffffff, a.type[at.matrix], 0);
        float *const shared = a.left ? a.partial +
                                           16 * (size_t)(at.matrix ? a.panel_end[at.matrix - 1] : 0) *
                                               (size_t)(a.slices * a.n) +
                                           64 * at.in
                                     : wide_shared<NT, G>(a, part, group);
        const auto sum = [&](auto of) {
            wide_tile<of.type, NT>(a, smem, part, warp, lane, turn, sums, shared, at);
        };
        if constexpr (GRID)
            of_types<KN_IQ3_XXS, KN_IQ3_S, KN_IQ2_XXS, KN_IQ2_XS, KN_IQ2_S, KN_IQ1_S, KN_IQ1_M, KN_Q4_K,
                     KN_Q6_K, KN_Q5_K, KN_IQ4_XS, KN_Q3_K, KN_Q2_K>(type, sum);
        else
            of_types<KN_Q4_K, KN_Q6_K, KN_Q5_K, KN_IQ4_XS, KN_Q3_K, KN_Q2_K>(type, sum);
        if (a.left) continue;
        if (part.whole) {
            wide_meet(group);
            wide_write(a, tile, thread, [&](int t, int row) { return sums[t * WIDE_PITCH + row]; });
            wide_meet(group);
        } else if (wide_last(a, smem, part, group, thread)) {
            wide_write(a, tile, thread, [&](int t, int row) {
                const float *p = shared + t * 64 + row;
                float v = 0.0f, u[8];
#pragma unroll
                for (int s = 0; s < 8; s++) u[s] = s < a.slices ? __ldcg(p + s * (8 * NT * 64)) : 0.0f;
#pragma unroll
                for (int s = 0; s < 8; s++)
                    if (s < a.slices) v = __fadd_rn(v, u[s]);
                return v;
            });
        }
    }
}

template <int NT, int G, bool GRID>
__global__ void __launch_bounds__(128 * G + 128, 1) mm_wide(const __grid_constant__ mm_args a)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    wide_product<NT, G, GRID>(a);
#endif
}

template <int NT, bool GRID> static mm_kernel_fn wide_pick(int groups)
{
    if (groups == 2) return mm_wide<NT, 2, GRID>;
    if constexpr (NT <= 8)
        if (groups == 3) return mm_wide<NT, 3, GRID>;
    if constexpr (NT <= 4)
        if (groups == 4) return mm_wide<NT, 4, GRID>;
    return nullptr;
}

template <bool GRID> static mm_kernel_fn wide_pick_rows(int rows, int groups)
{
    return rows == 24    ? wide_pick<3, GRID>(groups)
           : rows == 32  ? wide_pick<4, GRID>(groups)
           : rows == 48  ? wide_pick<6, GRID>(groups)
           : rows == 64  ? wide_pick<8, GRID>(groups)
           : rows == 80  ? wide_pick<10, GRID>(groups)
           : rows == 96  ? wide_pick<12, GRID>(groups)
           : rows == 128 ? wide_pick<16, GRID>(groups)
                         : nullptr;
}

#endif
