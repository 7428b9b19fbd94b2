/* chain_kernel.cu - the kernel of a chain (chain.cuh). Bound: the bytes of the weights, once, or what the
 * steps of one row take after another, whichever is longer. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#pragma nv_diag_suppress 177 /* nothing of this is for such a device */
#endif
#include "chain_debug.cuh"
#include "chain_far_slots.cuh"
#include "chain_items.cuh"

CHAIN_TIMES_GET(chain_times_get)
CHAIN_FAULT_GET(chain_fault_get)

/* ---- weights ---- */

/* A block's rings in shared memory. Barriers: of slots, filled and free; of descriptors. */
struct chain_room {
    uint64_t *full, *empty, *told, *read;
    uint8_t *ring;
    chain_step *steps;
};

/* Is it a step of other types than K? */
DEV bool has_items(const chain_step &s)
{
    return s.kind != CHAIN_K;
}

/* A warp that asks, one of two: for every other tile (s.per units of two panels at the same columns), a lane
 * a tile, a.some of them at a time. The ring has an even number of slots and s.ahead is even, so each waits
 * for its own only. */
template <bool FAR> DEV void chain_ask(const chain_args &a, const chain_room &m, int which)
{
    const int lane = threadIdx.x % 32, slots = a.slots;
    int base = 0, base_lap = 0; /* the slot of the step's first tile; how often the ring had gone round */
    int pos = -1;
#pragma unroll 1
    for (int i = 0; i < a.count; i++) {
        if (lane == 0 && which == 0 && i + 2 < a.count) {
            const int next = i + 2, at = next % CHAIN_DESCS;
            if (next >= CHAIN_DESCS) bar_pass(m.read + at, (next / CHAIN_DESCS - 1) & 1);
            bar_expect(m.told + at, sizeof(chain_step));
            copy_bulk_to(m.steps + at, a.step + next, sizeof(chain_step), m.told + at);
        }
        __syncwarp();
        const chain_step &s = m.steps[i % CHAIN_DESCS];
        bar_pass(m.told + i % CHAIN_DESCS, i / CHAIN_DESCS & 1);
        if (FAR && s.n_m == 0) {
            if (pos < 0) {
                cuda_grid_wait(); /* for the position, and keys of the launch before */
                pos = __ldcg(s.pos);
            }
            far_ask(a, s, pos, which, base, base_lap);
            base += far_tiles(s, pos);
            base_lap += base / slots;
            base %= slots;
            if (which && lane == 0) bar_arrive(m.read + i % CHAIN_DESCS);
            continue;
        }
        const int units = s.units, cuts = s.cuts, per = s.per, ahead = s.ahead,
                  tiles = has_items(s) ? item_tiles(s) : pairs_here(s) * cuts;
        const bool plain = s.gated || s.n_m == 1; /* one type, and pairs the same way apart */
        const int t0 = ((base ^ which) & 1) + 2 * lane;
        int cut = t0, pair = (int)blockIdx.x, slot = base + t0, lap = base_lap;
        while (slot >= slots) slot -= slots, lap++;
#pragma unroll 1
        for (int first = 0; first < tiles; first += 64) {
            const bool mine = first + t0 < tiles;
            const uint8_t *p = nullptr, *q = nullptr;
            uint32_t bytes = 0, apart = 0;
            while (!has_items(s) && cut >= cuts) cut -= cuts, pair += (int)gridDim.x;
            if (mine && has_items(s)) {
                p = item_tile(s, first + t0, &bytes);
            } else if (mine) {
                int panel = s.gated ? pair : 2 * pair;
                bool two = true;
                const chain_matrix &x = plain ? s.m[0] : pair_of(s, pair, &panel, &two);
                if (!s.gated) two = 16 * panel + 16 < x.n_out;
                const int unit = cut * per;
                bytes = (uint32_t)(min(per, units - unit) * x.unit_bytes);
                apart = (uint32_t)(per * x.unit_bytes);
                const size_t at = (size_t)(panel * units + unit) * (size_t)x.unit_bytes;
                p = x.w + at;
                q = s.gated ? s.m[1].w + at : two ? p + (size_t)(units * x.unit_bytes) : nullptr;
            }
            cut += 64;
            const int before = slot - ahead, slot_before = before < 0 ? before + slots : before,
                      lap_before = before < 0 ? lap - 1 : lap;
#pragma unroll 1
            for (int group = 0; group < 32 && first + 2 * group < tiles; group += a.some) {
                /* All wait before any asks (some <= ahead: none waits for another): when a tile has been
                 * asked for, what is s.ahead before it or before any earlier tile has come. */
                const bool now = lane >= group && lane < group + a.some && mine;
                if (now && lap > 0)
                    CHAIN_SPENT(48, 32 * CHAIN_WARPS + 32 + group, bar_pass(m.empty + slot, (lap - 1) & 1));
                if (now && lap_before >= 0)
                    CHAIN_SPENT(49, 32 * CHAIN_WARPS + 32 + group,
                                bar_pass(m.full + slot_before, lap_before & 1));
                __syncwarp();
                if (now) {
                    bar_expect(m.full + slot, q ? 2 * bytes : bytes);
                    if (bytes) copy_bulk_to(m.ring + (size_t)slot * a.slot_bytes, p, bytes, m.full + slot);
                    if (q)
                        copy_bulk_to(m.ring + (size_t)slot * a.slot_bytes + apart, q, bytes, m.full + slot);
                }
                __syncwarp();
            }
            slot += 64;
            while (slot >= slots) slot -= slots, lap++;
        }
        base += tiles;
        while (base >= slots) base -= slots, base_lap++;
        if (which && lane == 0) bar_arrive(m.read + i % CHAIN_DESCS);
    }
}

/* ---- the row ---- */

/* Blocks `block` and, with two, `block` + apart of the row. */
DEV void round_blocks(uint8_t *act, int units, int block, int apart, bool two, const float v[2][8])
{
    chain_some<2> e;
#pragma unroll
    for (int i = 0; i < 16; i++) e.v[i / 8][i % 8] = v[i / 8][i % 8];
    chain_round_two(act, units, block, two ? block + apart : block, e);
}
/* May each warp round what it multiplies? Then no warp waits for another in between. A tile's warp is its
 * cut's. */
DEV bool chain_own(const chain_step &s)
{
    return s.cuts % CHAIN_WARPS == 0 && s.units == s.cuts * s.per && (s.norm || s.rounds + (s.rest > 0) == 1);
}
/* The row, normed as prepare_row does, rounded, in shared memory: all of it, or what the warp itself needs.
 * First: of x, which earlier kernels wrote; else of the values of the step before. */
DEV void chain_norm(const chain_step &s, bool first, const float *values, uint8_t *act, float *squares)
{
    constexpr int B = CHAIN_NORM_BLOCKS;
    const bool own = chain_own(s), side = own && s.per == 2; /* side: the warp's columns stand side by side */
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, units = s.units, n_in = 256 * units;
    const int from = side ? 2 * warp : warp, step = side ? 1 : CHAIN_WARPS,
              n = side ? 2 : min(B, (units - warp + CHAIN_WARPS - 1) / CHAIN_WARPS);
    static_assert(B == 2, "a warp's columns are those of a tile, or of two");
    float v[B][8] = {}, w[B][8] = {};
    const float *p = first ? s.x : values;
#pragma unroll
    for (int c = 0; c < B; c++)
        if (c < n) load_eight(w[c], s.norm, 256 * (from + c * step) + 8 * lane, n_in);
    if (side) {
        values_ask<B, 1>(v, p + 256 * from, n, 0);
        if (!first) values_settle<B, 1>(v, p + 256 * from, n);
    } else {
        values_ask<B, CHAIN_WARPS>(v, p + 256 * from, n, 0);
        if (!first) values_settle<B, CHAIN_WARPS>(v, p + 256 * from, n);
    }
    CHAIN_STAMP(1);
#pragma unroll
    for (int c = 0; c < B; c++)
        if (c < n) {
            const float ss = block_squares(v[c]);
            if (lane == 0) squares[from + c * step] = ss;
        }
    chain_meet();
    const float r = norm_factor(s, squares, lane, units, n_in);
#pragma unroll
    for (int c = 0; c < B; c++)
#pragma unroll
        for (int i = 0; i < 8; i++) v[c][i] = __fmul_rn(__fmul_rn(v[c][i], r), w[c][i]);
    if (n > 0) round_blocks(act, units, from, step, n > 1, v);
    if (own)
        __syncwarp();
    else
        chain_meet();
}
/* The same without a norm, all of it. */
DEV void chain_row_load(const chain_step &s, bool first, const float *values, uint8_t *act)
{
    constexpr int B = CHAIN_ROW_BLOCKS;
    const int warp = threadIdx.x / 32, units = s.units;
    const float *p = first ? s.x : values;
    float v[B][8] = {};
#pragma unroll 1
    for (int b = warp; b < units; b += B * CHAIN_WARPS) {
        const int n = (units - b + CHAIN_WARPS - 1) / CHAIN_WARPS;
        values_ask<B, CHAIN_WARPS>(v, p + 256 * b, n, 0);
        if (!first) values_settle<B, CHAIN_WARPS>(v, p + 256 * b, n);
        if (b == warp) CHAIN_STAMP(1);
        round_blocks(act, units, b, CHAIN_WARPS, n > 1, v);
    }
    chain_meet();
}

/* ---- sums and results ---- */

/* Terms of the block's tiles; base: the slot of the step's first. A warp may be eight tiles before another:
 * what it waits for must not have been asked for again (chain.cu: ahead), so that parity tells fillings
 * apart. rounds: the warp first rounds the columns of each tile, which it has asked for during the one
 * before. */
DEV void chain_multiply(const chain_args &a, const chain_step &s, int base, int lap, const chain_room &r,
                        bool rounds, bool first, const float *values, uint8_t *act, float *terms)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, units = s.units, cuts = s.cuts, per = s.per,
              tiles = pairs_here(s) * cuts, slots = a.slots, term = (int)s.terms / 4; /* floats of a panel */
    const chain_row x = chain_row_at(act, units);
    int cut = warp, here = 0, known = -1, bytes = 0, slot = base + warp; /* known: the pair whose type is */
    uint32_t type = 0;
    if (slot >= slots) slot -= slots, lap++;
    const float *row = (first ? s.x : values) + 256 * per * warp;
    float v[2][8] = {};
    if (rounds) {
        values_ask<2, 1>(v, row, per, 0);
        if (!first) values_settle<2, 1>(v, row, per);
        CHAIN_STAMP(1);
    }
#pragma unroll 1
    for (int t = warp; t < tiles; t += CHAIN_WARPS) {
        if (rounds) {
            if (t != warp && !first) values_settle<2, 1>(v, row, per);
            round_blocks(act, units, per * t, 1, per > 1, v);
            __syncwarp();
            row += 256 * per * CHAIN_WARPS;
            if (t + CHAIN_WARPS < tiles) values_ask<2, 1>(v, row, per, 0);
        }
        while (cut >= cuts) cut -= cuts, here++;
        if (here != known) {
            int panel;
            bool two;
            const chain_matrix &m = pair_of(s, (int)blockIdx.x + here * (int)gridDim.x, &panel, &two);
            known = here;
            type = m.type;
            bytes = m.unit_bytes;
        }
        const uint8_t *at = r.ring + (size_t)slot * a.slot_bytes;
        const int unit = cut * per, second = per > 1 && unit + 1 < units ? 1 : 0;
        const int u[2] = {unit, unit + second};
        const uint8_t *const st[2] = {at, at + second * bytes};
        float y[2], factor = 0.0f;
        CHAIN_SPENT(50, 0, bar_pass(r.full + slot, lap & 1));
        if (type == KN_Q4_K && per == 1)
            chain_45<4, 1>(y, st, bytes, x, u, lane);
        else if (type == KN_Q4_K)
            chain_45<4, 2>(y, st, per * bytes, x, u, lane);
        else if (type == KN_Q6_K)
            y[0] = chain_6(at, bytes, x, unit, lane, &factor);
        else
            chain_45<5, CHAIN_FIVES>(y, st, per * bytes, x, u, lane);
        __syncwarp();
        if (lane == 0) bar_arrive(r.empty + slot);
        float *to = terms + (2 * here + lane % 4 / 2) * term + 16 * unit + 8 * (lane % 2) + lane / 4;
        *to = y[0];
        if (second) to[16] = y[1];
        if (type == KN_Q6_K) to[16 * units] = factor;
        cut += CHAIN_WARPS;
        slot += CHAIN_WARPS;
        if (slot >= slots) slot -= slots, lap++;
    }
}

/* Outputs from terms: a warp a pair, a lane an output (gated: half of the warp the gates, half the ups). */
DEV void chain_write(const chain_step &s, float *values, const uint8_t *act, const float *terms, float *keep)
{
    const int lane = threadIdx.x % 32, units = s.units, term = (int)s.terms / 4, pairs = pairs_here(s);
    const float *scale = chain_row_at(act, units).scale;
#pragma unroll 1
    for (int in = threadIdx.x / 32; in < pairs; in += CHAIN_WARPS) {
        int panel;
        bool two;
        const chain_matrix &m = pair_of(s, (int)blockIdx.x + in * (int)gridDim.x, &panel, &two);
        const int row = 16 * panel + (s.gated ? lane % 16 : lane), o = 32 * in + lane;
        const bool mine = row < m.n_out && (!s.gated || lane < 16);
        float old = 0.0f;
        if (s.old && mine) old = s.kept ? keep[o] : __ldcg(s.old + row);
        const float *p = terms + (2 * in + lane / 16) * term + lane % 16;
        const bool own = m.type == KN_Q6_K;
        const float *f = own ? p + 16 * units : scale;
        const int stride = own ? 16 : 1;
        float y = 0.0f;
        int u = 0;
#pragma unroll 1
        for (int end = s.slice_units; u < units; end = min(units, end + s.slice_units)) {
            float fin = 0.0f;
#pragma unroll 4
            for (; u < end; u++, f += stride) fin = __fmaf_rn(p[16 * u], *f, fin);
            y = __fadd_rn(y, fin);
        }
        if (s.gated) {
            const float up = __shfl_down_sync(0xffffffff, y, 16);
            y = __fmul_rn(act_gate(s.act, y), up);
        }
        if (!mine) continue;
        if (s.old) y = __fadd_rn(old, y);
        if (s.pass_on) value_put(values + m.column + row, y);
        if (s.keep) keep[o] = y;
        if (m.out) m.out[row] = y;
    }
}

/* ---- the kernel ---- */

/* FAR: attention is over a long context (chain_far.cuh). Steps of K types alone have a kernel of their own
 * (chain_k.cu). */
template <bool BF16, bool FAR>
static __global__ void __launch_bounds__(32 * (CHAIN_WARPS + 3), 1)
    chain_kernel(const __grid_constant__ chain_args a)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) uint8_t smem[];
    chain_room r;
    r.full = (uint64_t *)smem, r.empty = r.full + CHAIN_SLOTS;
    r.told = r.empty + CHAIN_SLOTS, r.read = r.told + CHAIN_DESCS;
    r.ring = smem + CHAIN_RING, r.steps = (chain_step *)(smem + CHAIN_AT_STEPS);
    float *const squares = (float *)(smem + CHAIN_AT_SQUARES), *const keep = (float *)(smem + CHAIN_AT_KEEP),
                 *const terms = (float *)(smem + a.terms);
    uint8_t *const act = smem + a.act, *const keys = smem + a.keys;

    if (threadIdx.x == 0) {
        for (int i = 0; i < a.slots; i++) {
            bar_open(r.full + i, 1);
            bar_open(r.empty + i, 1);
        }
        for (int i = 0; i < CHAIN_DESCS; i++) {
            bar_open(r.told + i, 1);
            bar_open(r.read + i, CHAIN_WARPS + 1); /* and the warp that asks but does not fetch them */
        }
        bar_fence();
        first_steps(a, r.steps, r.told);
    }
    __syncthreads();
    cuda_grid_early(); /* all blocks of this launch stand: nothing that starts now can keep one from its place
                        */
    if (threadIdx.x / 32 > CHAIN_WARPS) {
        chain_ask<FAR>(a, r, (int)threadIdx.x / 32 - CHAIN_WARPS - 1);
        return;
    }
#ifdef CHAIN_TRACE
    if (threadIdx.x == 0)
        for (int i = 0; i < CHAIN_STAMPS; i++) chain_clock[i] = 0;
    if (threadIdx.x == 0) chain_clock[CHAIN_STAMPS] = clock64();
#endif
    cuda_grid_wait();
#ifdef CHAIN_TRACE
    chain_kind = 5;
#endif
    CHAIN_STAMP(3);
    const uint4 state = __ldcg((const uint4 *)a.state);
    const unsigned tag0 = state.x + 1;
    float *const values = a.values + (state.y & 1 ? a.set : 0);
    /* The state has come (the operands wait for it) before any of the block's outputs go. */
    asm volatile("bar.sync 3, %0; // %1 %2" ::"n"(32 * (CHAIN_WARPS + 1)), "r"(state.x), "r"(state.z)
                 : "memory");
    if (threadIdx.x / 32 == CHAIN_WARPS) { /* what the launch before wrote is to be what is not yet there */
        uint4 *old = (uint4 *)(a.values + (state.y & 1 ? 0 : a.set));
        for (size_t i = blockIdx.x * 32 + threadIdx.x % 32; i < state.z / 4; i += gridDim.x * 32)
            __stcg(old + i, make_uint4(CHAIN_NOT_YET, CHAIN_NOT_YET, CHAIN_NOT_YET, CHAIN_NOT_YET));
        return;
    }
    int base = 0, base_lap = 0; /* as chain_ask's */
    bar_pass(r.told, 0);
    int pos = -1, unit = 0; /* unit: this block's first of attention */
#pragma unroll 1
    for (int i = 0; i < a.count; i++) {
        const int at = i % CHAIN_DESCS;
        const unsigned tag = tag0 + (unsigned)i;
        const chain_step &s = r.steps[at];
#ifdef CHAIN_TRACE
        if (threadIdx.x == 0) chain_kind = i % 5;
#endif
        const float *in = values + s.from;
        float *out = values + s.at;
        if (i + 1 < a.count) {
            const chain_step &next = r.steps[(i + 1) % CHAIN_DESCS];
            bar_pass(r.told + (i + 1) % CHAIN_DESCS, (i + 1) / CHAIN_DESCS & 1);
            if (next.n_m == 0) {
                if (pos < 0) pos = __ldcg(next.pos); /* the same for all layers */
            }
            if (!FAR && next.n_m == 0) {
                unit =
                    (int)blockIdx.x - next.rest; /* blocks with less of the projections have leaves first */
                if (unit < 0) unit += (int)gridDim.x;
                const int leaf = unit / next.n_kv, kv_head = unit - leaf * next.n_kv;
                if (threadIdx.x < 32 * CHAIN_HEADS && leaf <= pos / chain_few::LEAF)
                    chain_keys(next, pos, leaf, kv_head, keys);
            }
        }
        CHAIN_STAMP(0); /* descriptors, and asking for keys */
        if (FAR && s.n_m == 0) {
            far_ring ring = {r.full,   r.ring, a.slot_bytes, a.slots, base + (int)threadIdx.x / 32,
                             base_lap, s.far};
            if (ring.slot >= a.slots) ring.slot -= a.slots, ring.lap++;
            far_attention<BF16>(s, pos, far_share_of(s, pos), ring, act, a.parts, in, out, tag);
            base += far_tiles(s, pos);
            base_lap += base / a.slots;
            base %= a.slots;
            chain_meet();
        } else if (s.n_m == 0) {
            if (threadIdx.x < 32 * CHAIN_HEADS)
                chain_attention<BF16>(s, pos, unit, in, out, a.parts, tag, act, keys);
            chain_meet();
        } else if (has_items(s) && pairs_here(s)) {
            chain_items(a, s, base, base_lap, i == 0, in, out, smem);
            chain_meet();
            base += item_tiles(s);
            while (base >= a.slots) base -= a.slots, base_lap++;
            CHAIN_STAMP(5);
        } else if (pairs_here(s)) {
            const bool rounds = !s.norm && chain_own(s);
            if (s.norm)
                chain_norm(s, i == 0, in, act, squares);
            else if (!rounds)
                chain_row_load(s, i == 0, in, act);
            CHAIN_STAMP(2);
            chain_multiply(a, s, base, base_lap, r, rounds, i == 0, in, act, terms);
            base += pairs_here(s) * s.cuts;
            while (base >= a.slots) base -= a.slots, base_lap++;
            CHAIN_STAMP(3);
            chain_meet();
            CHAIN_STAMP(4);
            chain_write(s, out, act, terms, keep);
            chain_meet(); /* activations and terms have been read; and who polls is in the way of who writes
                           */
            CHAIN_STAMP(5);
        }
        __syncwarp();
        if (threadIdx.x % 32 == 0) bar_arrive(r.read + at);
    }
    /* All blocks have read the state: this one has read outputs of all of them, which came after. */
    if (blockIdx.x == 0 && threadIdx.x == 0)
        __stcg((uint4 *)a.state, make_uint4(state.x + (unsigned)a.count, state.y + 1, a.extent, 0));
#ifdef CHAIN_TRACE
    if (threadIdx.x == 0)
        for (int i = 0; i < CHAIN_STAMPS; i++) atomicAdd(&chain_times[i], chain_clock[i]);
#endif
#endif
}

size_t chain_attend_bytes(void)
{
    return chain_few::FIXED;
}
size_t chain_keys_bytes(void)
{
    return 2 * chain_few::SLOT;
}
size_t chain_far_bytes(int32_t n_rep)
{
    return (size_t)(FAR_FIXED + CHAIN_HEADS * n_rep * FAR_ROW * 4);
}

typedef void (*kernel_fn)(chain_args);
static kernel_fn kernel_of(bool bf16, bool far)
{
    if (far) return bf16 ? chain_kernel<true, true> : chain_kernel<false, true>;
    return bf16 ? chain_kernel<true, false> : chain_kernel<false, false>;
}
cudaError_t chain_kernel_open(int smem)
{
#ifdef CHAIN_TRACE
    smem -= 512; /* of the trace's own */
#endif
    cudaError_t err = chain_fault_open();
    for (int i = 0; i < 4 && !err; i++)
        err =
            cudaFuncSetAttribute(kernel_of(i & 1, i & 2), cudaFuncAttributeMaxDynamicSharedMemorySize, smem);
    return err;
}

cudaError_t chain_kernel_launch(const struct cuda_backend *be, const struct chain_args *a, bool bf16,
                                bool far, int blocks, size_t smem)
{
    return cuda_launch(be, kernel_of(bf16, far), dim3((unsigned)blocks), dim3(32 * (CHAIN_WARPS + 3)), smem,
                       *a);
}
