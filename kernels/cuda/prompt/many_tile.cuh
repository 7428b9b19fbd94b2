/* many_tile.cuh - the kernel of products of more than 64 rows that dequantises on the way (compute capability
 * 9.0): weights from the streaming layout to f16 in registers, products of four warps (wgmma) with f16 rows
 * in shared memory. See many_tile.cu for shapes and choices.
 *
 * A group of four warps has 64 outputs, one panel of 16 a warp, and N rows of the pass. Two warps more ask
 * for bytes: one for units of weights, one for the rows, 64 columns of N rows at a time.
 *
 * Columns. A lane quarter q has columns 4 q .. 4 q + 3 of 16 in the streaming layout; as an A fragment they
 * are positions 2 q, 2 q + 1, 2 q + 8, 2 q + 9. The rows are stored in that order (many_rows.cu), so nothing
 * is moved between lanes.
 *
 * Bits. Every output is one chain of products of 16 columns, in the order of the columns: so the bits do not
 * depend on N or on the number of rows. */
#ifndef DFLASH_CUDA_MANY_TILE_CUH
#define DFLASH_CUDA_MANY_TILE_CUH

#include "../core/bulk.cuh"
#include "../product/unpack.cuh"
#include "many_impl.cuh"

namespace tile
{
/* Results as the operands of an instruction, from 0 on. */
#define RESULTS_32                                                                                           \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "   \
    "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define RESULTS_48                                                                                           \
    RESULTS_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define RESULTS_64                                                                                           \
    RESULTS_48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define RESULTS_64_96                                                                                        \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, " \
    "%84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define RESULTS_96 RESULTS_64 RESULTS_64_96
#define RESULTS_96_128                                                                                       \
    ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, "   \
    "%113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define RESULTS_128 RESULTS_96 RESULTS_96_128
#define FOUR(i) "+f"(x[i][0]), "+f"(x[i][1]), "+f"(x[i][2]), "+f"(x[i][3])
#define SIXTEEN(i) FOUR(i), FOUR(i + 1), FOUR(i + 2), FOUR(i + 3)
#define ALL_32 SIXTEEN(0), SIXTEEN(4)
#define ALL_48 ALL_32, SIXTEEN(8)
#define ALL_64 ALL_48, SIXTEEN(12)
#define ALL_96 ALL_64, SIXTEEN(16), SIXTEEN(20)
#define ALL_128 ALL_96, SIXTEEN(24), SIXTEEN(28)
#define PRODUCT(N, RESULTS, ALL, A0, A1, A2, A3, B)                                                          \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" N "k16.f32.f16.f16 {" RESULTS "}, {" A0 "," A1 "," A2   \
                 "," A3 "}, " B ", 1, 1, 1, 0;"                                                              \
                 : ALL                                                                                       \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))

/* x[64, N] += a[64, 16] b[16, N]; a: of this warp, 16 rows. */
template <int N> DEV void multiply(float (&x)[N / 8][4], const uint32_t *a, uint64_t b)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if constexpr (N == 64)
        PRODUCT("64", RESULTS_32, ALL_32, "%32", "%33", "%34", "%35", "%36");
    else if constexpr (N == 96)
        PRODUCT("96", RESULTS_48, ALL_48, "%48", "%49", "%50", "%51", "%52");
    else if constexpr (N == 128)
        PRODUCT("128", RESULTS_64, ALL_64, "%64", "%65", "%66", "%67", "%68");
    else if constexpr (N == 192)
        PRODUCT("192", RESULTS_96, ALL_96, "%96", "%97", "%98", "%99", "%100");
    else
        PRODUCT("256", RESULTS_128, ALL_128, "%128", "%129", "%130", "%131", "%132");
#else
    (void)x, (void)a, (void)b;
#endif
}

/* Of rows of 128 bytes in shared memory, turned. */
DEV uint64_t matrix_at(uint32_t at)
{
    return (uint64_t)(at >> 4 & 0x3fff) | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

/* Shared memory, from a multiple of 1,024 on: rows, weights, what gate and up give each other, barriers. */
template <int N_, int GROUPS_, int BLOCKS_, int ROW_STAGES_, int WEIGHT_STAGES_, int UNIT_> struct shape {
    static constexpr int N = N_, GROUPS = GROUPS_, BLOCKS = BLOCKS_; /* blocks a multiprocessor */
    static constexpr int ROW_STAGES = ROW_STAGES_, WEIGHT_STAGES = WEIGHT_STAGES_;
    static constexpr int THREADS = 128 * GROUPS + 128, ROW_BYTES = 128 * N;
    static constexpr int UNIT_BYTES = UNIT_; /* of a panel and stage, at most */
    static constexpr int WEIGHT_BYTES = 4 * GROUPS * UNIT_BYTES;
    static constexpr int AT_WEIGHTS = ROW_STAGES * ROW_BYTES;
    static constexpr int AT_GIVEN = AT_WEIGHTS + WEIGHT_STAGES * WEIGHT_BYTES;
    static constexpr int AT_BARS = AT_GIVEN + 8192 * GROUPS;
    static constexpr int BYTES = AT_BARS + 16 * (ROW_STAGES + WEIGHT_STAGES) + 1024;
    static_assert(BLOCKS * (BYTES + 1024) <= 228 << 10, "shared memory of a multiprocessor");
    /* registers a thread, of the warps that ask and of those that multiply */
    static constexpr int HELD = (65536 / BLOCKS / THREADS) / 8 * 8, GIVE = GROUPS == 1 ? 40 : 24,
                         MOST = (HELD * (GROUPS + 1) - GIVE) / GROUPS / 8 * 8, TAKE = MOST < 240 ? MOST : 240;
};

/* Products run beside the making of the next factor only where the assembler leaves the two as they are
 * written: a pair of products, their commit, a wait for the pair before, 32 columns to f16. Codes of those
 * are read behind that wait (LATE): with a unit's all read at once it makes all of the unit's values first,
 * and products then run alone. */
struct ring {
    uint64_t *full, *empty;
    uint32_t at, phase;
    __device__ __forceinline__ void next(uint32_t stages)
    {
        if (++at == stages) at = 0, phase ^= 1;
    }
};

/* What takes the values of a unit, in the order in which unpack_unit gives them, to products. */
template <class S> struct consumer {
    float (&x)[S::N / 8][4];
    uint32_t (&a)[2][8];
    ring &rows;
    uint32_t at_rows; /* of the ring, in shared memory */
    int lane, count;  /* quads so far of the columns of a stage */
    bool behind;      /* products of the stage before may still run */

    __device__ __forceinline__ void let_go()
    {
        if (behind && lane == 0) bar_arrive(rows.empty + (rows.at ? rows.at : S::ROW_STAGES) - 1);
    }
    __host__ __device__ __forceinline__ void operator()(int hi, int, const float v[4])
    {
#ifdef __CUDA_ARCH__
        const int part = count / 4 % 2, s = count / 2 % 2;
        const __half2 lo = __floats2half2_rn(v[0], v[1]), up = __floats2half2_rn(v[2], v[3]);
        a[part][4 * s + hi] = *(const uint32_t *)&lo;
        a[part][4 * s + 2 + hi] = *(const uint32_t *)&up;
        count++;
        if (count % 4 == 0) run(part);
#else
        (void)hi, (void)v;
#endif
    }
    __device__ __forceinline__ void run(int part)
    {
        if (part == 0) bar_wait(rows.full + rows.at, rows.phase);
        const uint64_t b = matrix_at(at_rows + rows.at * S::ROW_BYTES) + (uint64_t)(4 * part);
        asm_90("wgmma.fence.sync.aligned;" ::: "memory");
        multiply<S::N>(x, a[part], b);
        multiply<S::N>(x, a[part] + 4, b + 2);
        asm_90("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 1;" ::: "memory");
        if (part == 0) {
            let_go();
            behind = true;
        } else
            rows.next(S::ROW_STAGES);
    }
};

/* x = W rows of this warp's panel: all columns. */
template <uint32_t T, class S>
DEV void sum_panel(float (&x)[S::N / 8][4], const tile_args &p, float scale, const uint8_t *slots, ring &rows,
                   ring &weights, uint32_t at_rows, int lane)
{
    constexpr bool k =
        T == KN_Q2_K || T == KN_Q3_K || T == KN_Q4_K || T == KN_Q5_K || T == KN_Q6_K || T == KN_IQ4_XS;
    constexpr int unit_bytes = tile_unit_bytes(T), units = k ? 1 : tile_stage_columns(T) / 32;
    uint32_t a[2][8] = {};
#pragma unroll
    for (int j = 0; j < S::N / 8; j++) zero(x[j]);
    const int all = k ? p.groups / 8 : p.groups;
    consumer<S> put = {x, a, rows, at_rows, lane, 0, false};
    const auto unit = [&](const uint8_t *u) { unpack_unit<T, 0, 8, true>(u, lane, put, scale, p.magic); };
    const auto done = [&] {
        __syncwarp();
        if (lane == 0) bar_arrive(weights.empty + weights.at);
        weights.next(S::WEIGHT_STAGES);
    };
    const bool odd = !k && all % 2; /* half of the last 64 columns is not there */
#pragma unroll 1
    for (int i = 0; i < p.stages; i++) {
        bar_wait(weights.full + weights.at, weights.phase);
        const uint8_t *u = slots + weights.at * S::WEIGHT_BYTES;
        if constexpr (k) {
            put.count = 0;
            unit(u);
        } else {
#pragma unroll 1
            for (int j = 0; j < units && i * units + j + 1 < all; j += 2) {
                put.count = 0;
                unit(u + j * unit_bytes);
                unit(u + (j + 1) * unit_bytes);
            }
        }
        if (!odd || i + 1 < p.stages) done();
    }
    if (odd) {
        put.count = 0;
        unit(slots + weights.at * S::WEIGHT_BYTES + (all - 1) % units * unit_bytes);
        done();
        asm_90("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        rows.next(S::ROW_STAGES);
    }
    asm_90("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    put.let_go();
#pragma unroll
    for (int j = 0; j < S::N / 8; j++) asm volatile("" : FOUR(j));
}

struct tile_place {
    int weight, panel; /* the first of a block's; panels of 16 outputs that there are not are not stored */
};
template <class S> DEV tile_place place_of(const tile_args &p, int tile)
{
    int w = 0;
    while (w + 1 < p.n_w && tile >= p.first[w + 1]) w++;
    const int panel = (tile - p.first[w]) * (p.gated ? 2 : 4) * S::GROUPS;
    return {w, panel};
}

/* 16 outputs from `row` on of N rows of the pass from `first` on. */
template <class S>
DEV void put_sums(const float (&x)[S::N / 8][4], const tile_args &p, const tile_weight &w, int row, int first)
{
    const int lane = threadIdx.x % 32;
    const int64_t n_out = w.n_out;
    row += lane / 4;
    first += lane % 4 * 2;
    const bool here[2] = {row < n_out, row + 8 < n_out};
    float *out = w.out + row + first * n_out;
#pragma unroll
    for (int j = 0; j < S::N / 8; j += 4) {
        float was[4][4] = {}, f[4][2];
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int t = 8 * (j + i) + e % 2;
                if (first + t >= p.n) continue;
                if (e < 2) f[i][e] = __ldcg(p.factor + first + t);
                if (p.add && here[e / 2]) was[i][e] = __ldcg(out + t * n_out + 8 * (e / 2));
            }
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int t = 8 * (j + i) + e % 2;
                if (first + t >= p.n || !here[e / 2]) continue;
                const float y = __fmul_rn(__fmul_rn(x[j + i][e], w.back), f[i][e % 2]);
                out[t * n_out + 8 * (e / 2)] = p.add ? __fadd_rn(was[i][e], y) : y;
            }
    }
}

/* act(gate) * up of 16 outputs from `row` on. x: gate's in the first half of the warps, up's in the second; a
 * warp stores one half of the N rows and gives the other's of its own, 32 rows at a time. */
template <class S>
DEV void put_gated(const float (&x)[S::N / 8][4], const tile_args &p, float4 *given, int row, int first,
                   int warp)
{
    constexpr int HALF = S::N / 16, OTHER = 2 * S::GROUPS;
    const int lane = threadIdx.x % 32;
    const int64_t n_out = p.w[0].n_out;
    const bool up = warp >= OTHER;
    float4 *const mine = given + 128 * warp + lane;
    const float4 *const others = mine + 128 * (up ? -OTHER : OTHER);
    row += lane / 4;
    first += lane % 4 * 2 + up * (S::N / 2);
    float *out = p.w[0].out + row + first * n_out;
#pragma unroll
    for (int j = 0; j < HALF; j += 4) {
        float f[4][2] = {};
#pragma unroll
        for (int i = 0; i < 4 && j + i < HALF; i++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                if (first + 8 * (j + i) + e < p.n) f[i][e] = __ldcg(p.factor + first + 8 * (j + i) + e);
        asm volatile("bar.sync 1, %0;" ::"n"(128 * S::GROUPS) : "memory");
#pragma unroll
        for (int i = 0; i < 4 && j + i < HALF; i++) {
            const float(&own)[4] = x[j + i], (&other)[4] = x[HALF + j + i];
            mine[32 * i] = up ? make_float4(own[0], own[1], own[2], own[3])
                              : make_float4(other[0], other[1], other[2], other[3]);
        }
        asm volatile("bar.sync 1, %0;" ::"n"(128 * S::GROUPS) : "memory");
#pragma unroll
        for (int i = 0; i < 4 && j + i < HALF; i++) {
            const float4 v = others[32 * i];
            const float there[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int t = 8 * (j + i) + e % 2;
                if (first + t >= p.n || row + 8 * (e / 2) >= n_out) continue;
                const float here = up ? x[HALF + j + i][e] : x[j + i][e];
                const float g = up ? there[e] : here, u = up ? here : there[e];
                out[t * n_out + 8 * (e / 2)] =
                    __fmul_rn(act_gate(p.act_kind, __fmul_rn(__fmul_rn(g, p.w[0].back), f[i][e % 2])),
                              __fmul_rn(__fmul_rn(u, p.w[1].back), f[i][e % 2]));
            }
        }
    }
}

template <class S, uint32_t... TYPES>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS) sums(const __grid_constant__ tile_args p)
{
    extern __shared__ uint8_t raw[];
    uint8_t *m = raw + ((1024 - (shared_at(raw) & 1023)) & 1023);
    uint64_t *bars = (uint64_t *)(m + S::AT_BARS);
    ring rows = {bars, bars + S::ROW_STAGES, 0, 0},
         weights = {bars + 2 * S::ROW_STAGES, bars + 2 * S::ROW_STAGES + S::WEIGHT_STAGES, 0, 0};
    const int warp = __shfl_sync(~0u, (int)threadIdx.x / 32, 0), lane = threadIdx.x % 32, group = warp / 4;
    const int items = p.tiles * p.parts;
    cuda_grid_early();
    if (threadIdx.x == 0) {
        for (int i = 0; i < S::ROW_STAGES; i++)
            bar_open(rows.full + i, 1), bar_open(rows.empty + i, 4 * S::GROUPS);
        for (int i = 0; i < S::WEIGHT_STAGES; i++)
            bar_open(weights.full + i, 1), bar_open(weights.empty + i, 4 * S::GROUPS);
        bar_fence();
    }
    __syncthreads();
#define EACH_ITEM for (int item = (int)blockIdx.x; item < items; item += (int)gridDim.x)
    if (group == S::GROUPS) {
        asm_90("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(S::GIVE));
        if (warp % 4 == 0) {
            EACH_ITEM
            {
                const tile_place at = place_of<S>(p, item / p.parts);
                constexpr int half = 2 * S::GROUPS; /* panels of gate, and of up */
                const int w = p.gated ? lane / half : at.weight, mine = p.gated ? lane % half : lane;
                const tile_weight &from = p.w[lane < 4 * S::GROUPS ? w : at.weight];
                const int panel = min(at.panel + mine, from.panels - 1);
                const uint8_t *src = from.packed + panel * from.panel_bytes;
                for (int i = 0; i < p.stages; i++) {
                    const int64_t done = (int64_t)i * from.stage_bytes;
                    const uint32_t bytes = (uint32_t)min((int64_t)from.stage_bytes, from.panel_bytes - done);
                    const uint32_t total = __reduce_add_sync(~0u, lane < 4 * S::GROUPS ? bytes : 0u);
                    bar_wait(weights.empty + weights.at, weights.phase ^ 1);
                    if (lane == 0) bar_expect(weights.full + weights.at, total);
                    __syncwarp();
                    if (lane < 4 * S::GROUPS)
                        copy_bulk_to(m + S::AT_WEIGHTS + weights.at * S::WEIGHT_BYTES + lane * S::UNIT_BYTES,
                                     src + done, bytes, weights.full + weights.at);
                    weights.next(S::WEIGHT_STAGES);
                }
            }
        } else if (warp % 4 == 1) {
            cuda_grid_wait();
            EACH_ITEM
            {
                const int lines = (p.groups + 1) / 2; /* of 64 columns */
                const uint8_t *src = (const uint8_t *)p.act + (int64_t)(item % p.parts) * S::ROW_BYTES;
                for (int line = 0; line < lines; line++) {
                    bar_wait(rows.empty + rows.at, rows.phase ^ 1);
                    if (lane == 0) {
                        bar_expect(rows.full + rows.at, S::ROW_BYTES);
                        copy_bulk_to(m + rows.at * S::ROW_BYTES, src + (int64_t)line * 128 * p.pad,
                                     S::ROW_BYTES, rows.full + rows.at);
                    }
                    __syncwarp();
                    rows.next(S::ROW_STAGES);
                }
            }
        }
    } else {
        asm_90("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(S::TAKE));
        cuda_grid_wait();
        EACH_ITEM
        {
            const tile_place at = place_of<S>(p, item / p.parts);
            const tile_weight &w = p.w[p.gated ? warp / (2 * S::GROUPS) : at.weight];
            const uint8_t *slots = m + S::AT_WEIGHTS + warp * S::UNIT_BYTES;
            float x[S::N / 8][4];
            of_types<TYPES...>(w.type, [&](auto of) {
                sum_panel<decltype(of)::type, S>(x, p, w.scale, slots, rows, weights, shared_at(m), lane);
            });
            const int first = item % p.parts * S::N;
            if (p.gated)
                put_gated<S>(x, p, (float4 *)(m + S::AT_GIVEN), 16 * (at.panel + warp % (2 * S::GROUPS)),
                             first, warp);
            else
                put_sums<S>(x, p, w, 16 * (at.panel + warp), first);
        }
    }
}
} // namespace tile

#endif
