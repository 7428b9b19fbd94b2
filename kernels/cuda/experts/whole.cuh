/* experts/whole.cuh - a mixture of one row in a single launch (experts/whole.cu): its parts on the device. */
#ifndef DFLASH_CUDA_EXPERTS_WHOLE_CUH
#define DFLASH_CUDA_EXPERTS_WHOLE_CUH

#include "whole_args.cuh"

/* ---- router ---- */

/* A thread's weights of the router's matrix, and the norm's: addresses of 16 bytes, 512 apart, and of 64
 * columns. */
DEV const float4 *router_weights(const whole_args &a, bool own, int panel, int g)
{
    return (const float4 *)((own ? a.router[0] : a.router[1]) +
                            ((size_t)panel * (size_t)(8 * a.units) + threadIdx.x / 4) * 2048) +
           4 * g + threadIdx.x % 4;
}
/* To the second-level cache. */
DEV void ask_router(const whole_args &a, bool own, int panel, int g)
{
    const float4 *w = router_weights(a, own, panel, g);
#pragma unroll
    for (int i = 0; i < 4; i++) asm volatile("prefetch.global.L2 [%0];" ::"l"(w + 32 * i));
}

/* Sums of logits (1 / rms of the row is still to come) of experts 16 panel + g and + 8 more (of the shared
 * one: 0 alone), put if `put`, and of the row's squares, by warps 0 .. units - 1. A thread has the eight
 * columns that a lane of experts/router.cu has. */
template <enum whole_place P>
DEV void whole_router(const whole_args &a, struct whole_memory *m, bool own, bool put, int panel, int g)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, unit = threadIdx.x / 4, q = lane % 4;
    const float4 *w = router_weights(a, own, panel, g);
    float4 f[4];
    float v[8], n[8];
#pragma unroll
    for (int i = 0; i < 4; i++) f[i] = __ldg(w + 32 * i);
    const int k = 32 * unit + 4 * q;
    *(float4 *)n = __ldg((const float4 *)(a.router_norm + k));
    *(float4 *)(n + 4) = __ldg((const float4 *)(a.router_norm + k + 16));
    unsigned tag;
    if (has_before<P>(a)) {
        tag = m->tag;
        float y[8];
        words_get<true>(y, m->words + WHOLE_X + 256 * warp, 256); /* as whole_row's warps do */
#pragma unroll
        for (int e = 0; e < 8;
             e++) { /* column k + e % 4 + 16 (e / 4): lane 4 (unit % 8) + q / 2 + e / 4 * 2 has it */
            const int from = lane / 4 * 4 + q / 2 + e / 4 * 2;
            const float low = __shfl_sync(~0u, y[e % 4], from), high = __shfl_sync(~0u, y[e % 4 + 4], from);
            v[e] = q % 2 ? high : low;
        }
    } else {
        cuda_grid_wait();
        *(float4 *)v = __ldcg((const float4 *)(a.x + k));
        *(float4 *)(v + 4) = __ldcg((const float4 *)(a.x + k + 16));
        tag = __ldcg(a.tag) + 1;
    }
    float low = 0.0f, high = 0.0f, squares = 0.0f;
#pragma unroll
    for (int e = 0; e < 8; e++) {
        const float4 &c = f[e / 2];
        const float y = __fmul_rn(v[e], n[e]);
        low = __fmaf_rn(y, e % 2 ? c.y : c.x, low);
        high = __fmaf_rn(y, e % 2 ? c.w : c.z, high);
        squares = __fmaf_rn(v[e], v[e], squares);
    }
#pragma unroll
    for (int o = 1; o < 4; o *= 2) {
        low = __fadd_rn(low, __shfl_xor_sync(~0u, low, o));
        high = __fadd_rn(high, __shfl_xor_sync(~0u, high, o));
        squares = __fadd_rn(squares, __shfl_xor_sync(~0u, squares, o));
    }
    /* 256 columns: what was a warp's there is a lane's here */
    const float mine = q == 0 ? low : q == 1 ? high : squares;
    float s = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; i++) s = __fadd_rn(s, __shfl_sync(~0u, mine, 4 * i + q));
    if (lane < 3) m->part[lane][warp] = s;
    warps_meet(2, a.units);
    if (!put || threadIdx.x >= (own ? 2 : 1)) return;
    float sum = 0.0f;
#pragma unroll 4
    for (int i = 0; i < a.units; i++) sum = __fadd_rn(sum, m->part[threadIdx.x][i]);
    const int id = 16 * panel + g + 8 * (int)threadIdx.x;
    if (!own || id < a.route.n_expert) value_put(a.values + (own ? id : a.route.n_expert), sum, tag);
}

/* Unit `unit` of a row of `units`, by a warp each: rounded to act. words: its 256 columns (of which there
 * are `columns`), once they are there; NULL (X): they are x's, of the launch before. norm: they are times
 * norm over the row's rms, as in prepare_row; NULL: as they are. meet: warps that have to come first; 0:
 * none. A call, for its instructions are there when it comes a second time. */
template <bool X>
static __device__ __noinline__ void whole_unit(struct whole_memory *m, uint8_t *act, int unit, int units,
                                               float eps, const float *norm, const float *x,
                                               const uint32_t *words, int columns, int meet)
{
    const int lane = threadIdx.x % 32, k = 256 * unit + 8 * lane;
    float v[8], w[8];
    if (norm) load_eight(w, norm, k, k + 8);
    if (meet) warps_meet(2, meet);
    if (!X || words) {
        words_get(v, words, columns);
    } else {
        cuda_grid_wait();
        load_eight(v, x, k, k + 8);
    }
    if (norm) {
        const float squares = block_squares(v);
        if (lane == 0) m->squares[unit] = squares;
        warps_meet(3, units);
        static_assert(ROW_UNITS <= 16, "a lane of sixteen a unit");
        float s = __fadd_rn(0.0f, lane % 16 < units ? m->squares[lane % 16] : 0.0f);
#pragma unroll
        for (int o = 8; o; o /= 2) s = __fadd_rn(s, __shfl_xor_sync(~0u, s, o));
        const float r = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(s, (float)(256 * units)), eps)));
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = __fmul_rn(__fmul_rn(v[i], r), w[i]);
    }
    unit_round(act + UNIT_ACT * unit, v);
}
/* The row, by warps units .. 2 units - 1. */
template <enum whole_place P> DEV void whole_row(const whole_args &a, struct whole_memory *m, uint8_t *act)
{
    const int unit = threadIdx.x / 32 - a.units;
    whole_unit<P != AROUND>(m, act, unit, a.units, a.eps, a.norm, a.x,
                            has_before<P>(a) ? m->words + WHOLE_X + 256 * unit : nullptr, 256, 0);
}

/* ---- weights ---- */

/* All logits, x: expert 32 i + lane, and the shared one's, once all blocks have put them. */
DEV void whole_logits(const whole_args &a, const struct whole_memory *m, float x[CHOICE / 32], float *shared)
{
    constexpr int per = CHOICE / 32;
    const int lane = threadIdx.x % 32, n = a.route.n_expert;
    const unsigned tag = m->tag;
    float all = 0.0f;
#pragma unroll 4
    for (int i = 0; i < a.units; i++) all = __fadd_rn(all, m->part[2][i]);
    const float r = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(all, (float)(256 * a.units)), a.eps)));
    unsigned long long got[per + 1];
    bool there;
    patience wait;
    do {
        there = true;
#pragma unroll
        for (int i = 0; i <= per; i++)
            got[i] = i < per ? value_ask(a.values + min(32 * i + lane, n - 1))
                             : value_ask(a.values + (a.router[1] ? n : 0));
        wait.turn();
#pragma unroll
        for (int i = 0; i <= per; i++) there = there && (unsigned)(got[i] >> 32) == tag;
    } while (!__all_sync(~0u, there));
#pragma unroll
    for (int i = 0; i < per; i++)
        x[i] = 32 * i + lane < n ? __fmul_rn(__uint_as_float((unsigned)got[i]), r) : -INFINITY;
    *shared = __fmul_rn(__uint_as_float((unsigned)got[per]), r);
}

/* Panel number `panel` of the products behind: its matrix, and its number there. */
DEV int behind_matrix(const whole_behind &b, int *panel)
{
    int j = 0;
    while (*panel >= b.panel_end[j]) j++;
    if (j) *panel -= b.panel_end[j - 1];
    return j;
}

/* The weights of this block's panels [from, to) of the products behind: by a warp, to where nobody reads any
 * more. */
DEV void behind_ask(const whole_args &a, struct whole_memory *m, uint8_t *smem, int from, int to)
{
    const whole_behind &b = a.behind;
    const int i = from + (int)threadIdx.x % 32;
    int panel = (int)blockIdx.x + i * (int)gridDim.x;
    if (i < to && panel < b.panels) {
        const int j = behind_matrix(b, &panel);
        const uint32_t bytes = (uint32_t)(a.units * b.bytes[j]);
        bar_expect(m->behind + i, bytes);
        copy_weights_to(smem + a.at_pair + (uint32_t)i * b.slot, b.w[j] + (size_t)(uint32_t)panel * bytes,
                        bytes, m->behind + i);
    }
    __syncwarp();
}

/* A pair of panels of gate and up, and `outs` panels of down of an expert, `next` and next_to bytes apart.
 * Calls: what the shared expert's have fetched is there when others are urgent. */
static __device__ __noinline__ void ask_pair(uint64_t *bar, uint8_t *to, const uint8_t *gate,
                                             const uint8_t *up, uint32_t bytes)
{
    bar_expect(bar, 2 * bytes);
    copy_weights_to(to, gate, bytes, bar);
    copy_weights_to(to + bytes, up, bytes, bar);
}
static __device__ __noinline__ void ask_down(uint64_t *bar, uint8_t *to, const uint8_t *down, uint32_t bytes,
                                             int outs, size_t next, int next_to)
{
    bar_expect(bar, (uint32_t)outs * bytes);
#pragma unroll 1
    for (int o = 0; o < outs; o++) copy_weights_to(to + o * next_to, down + (size_t)o * next, bytes, bar);
}

/* An expert's id becomes the place of its matrices, in the host's memory where true. */
DEV bool on_host(const whole_args &a, int *id)
{
    if (!a.places) return false;
    const int place = __ldg(a.places + *id);
    *id = place < 0 ? ~place : place;
    return place < 0;
}

/* The choice and the logits, to memory, by a warp. */
DEV void whole_leave(const whole_args &a, const struct whole_memory *m, const float x[CHOICE / 32],
                     float shared, int lane, int n)
{
    if (lane < a.slots) {
        a.route.ids[lane] = m->ids[lane];
        a.route.weights[lane] = m->weights[lane];
    }
#pragma unroll
    for (int i = 0; i < CHOICE / 32; i++)
        if (32 * i + lane < n) a.logits[32 * i + lane] = x[i];
    if (lane == 0 && a.router[1]) *a.shared_logits = shared;
}

/* The warp that chooses and asks: a lane a pair of panels of gate and up, of an expert as soon as it is
 * known, then a lane an expert of down. First for what is read of the shared expert. */
template <enum whole_place P>
DEV void whole_choose(const whole_args &a, struct whole_memory *m, uint8_t *smem)
{
    constexpr int per = CHOICE / 32;
    const int lane = threadIdx.x % 32, n = a.route.n_expert, last = a.router[1] ? a.slots - 1 : a.slots;
    const int pair = (int)blockIdx.x + lane * (int)gridDim.x, slot = whole_over(pair, a.per_panels),
              panel = pair - slot * a.h_panels;
    const int outs = (a.out_panels - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x;
    const bool asks = lane < a.per && pair < a.pairs;
    const int next_down = a.slots * a.h_units * max(a.down_bytes[0], a.down_bytes[1]);
    uint8_t *const to_pair = smem + a.at_pair + lane * 2 * (a.units * max(a.bytes[0], a.bytes[1])),
                   *const to_down =
                       smem + a.at_down + lane * a.h_units * max(a.down_bytes[0], a.down_bytes[1]);
    struct route_pick c = {};
    float x[per], shared = 0.0f;
    const auto down = [&](bool of_shared, int id) {
        const uint32_t bytes = (uint32_t)(a.h_units * a.down_bytes[of_shared]);
        const uint8_t *w = a.down[of_shared];
        if (!of_shared && on_host(a, &id)) w = a.host[2];
        ask_down(m->slot + lane, to_down, w + (size_t)(uint32_t)(id * a.out_panels + (int)blockIdx.x) * bytes,
                 bytes, outs, (size_t)gridDim.x * bytes, next_down);
    };
    const uint32_t bytes = (uint32_t)(a.units * a.bytes[0]);
    if (asks && slot == last) {
        const uint32_t own = (uint32_t)(a.units * a.bytes[1]);
        const size_t at = (size_t)(uint32_t)panel * own;
        ask_pair(m->pair + lane, to_pair, a.gate[1] + at, a.up[1] + at, own);
    }
    __syncwarp();
    if (lane < a.slots && lane == last && outs > 0) down(true, 0);
    __syncwarp();
    const bool handed = is_handed<P>(a);
    if (!handed) {
        cuda_grid_wait();
        if (lane == 0) whole_turn(a, m);
        __syncwarp();
    }
    warps_meet(0, WARPS + 1);
    whole_logits(a, m, x, &shared);
    c = route_choose<per>(a.route, x, [&](int j, int id) {
        if (asks && slot == j) {
            const bool host = on_host(a, &id);
            const size_t at = (size_t)(uint32_t)(id * a.h_panels + panel) * bytes;
            ask_pair(m->pair + lane, to_pair, (host ? a.host[0] : a.gate[0]) + at,
                     (host ? a.host[1] : a.up[0]) + at, bytes);
        }
        __syncwarp();
    });
    if (handed)
        cuda_grid_wait(); /* long over, but nothing that launches before read may be written earlier */
#pragma unroll 1
    for (int i = 0; i < a.per; i++) /* less on its way at a time: what is wanted first comes first */
        if ((int)blockIdx.x + i * (int)gridDim.x < a.pairs) bar_wait(m->pair + i, 0);
    if (a.over) warps_meet(1, WARPS + 1);
    if (lane < a.slots && outs > 0 && lane != last) down(false, c.id);
    __syncwarp();
    if (!a.over) warps_meet(1, WARPS + 1);
    route_weigh<per>(a.route, c, x, a.router[1] ? &shared : nullptr, m->ids, m->weights);
    __syncwarp();
    warps_arrive(0, WARPS + 1); /* the weights are there */
    /* While much is on its way, words are slow, and down's weights, which others still wait for: so one panel
     * behind at a time. */
#pragma unroll 1
    for (int e = 0; e < a.slots && outs > 0 && has_behind<P>(a) && a.behind.early; e++)
        bar_wait(m->slot + e, 0);
#pragma unroll 1
    for (int i = 0;
         has_behind<P>(a) && i < a.behind.early && (int)blockIdx.x + i * (int)gridDim.x < a.behind.panels;
         i++) {
        if (i) bar_wait(m->behind + i - 1, 0);
        behind_ask(a, m, smem, i, i + 1);
    }
    if (blockIdx.x == 0) whole_leave(a, m, x, shared, lane, n);
}

/* ---- products ---- */

/* Terms of outputs [16] of unit `unit`, and of the next: a lane of the unit lane % 4 / 2. */
DEV void put_terms(float2 *terms, int second, float2 y, bool both)
{
    const int lane = threadIdx.x % 32, q = lane % 4;
    if (q < 2 || both) terms[q / 2 * second + 8 * (q % 2) + lane / 4] = y;
}

/* The sum of terms [units][16], slice by slice, four slices side by side. A call: as whole_unit. */
static __device__ __noinline__ float slices_sum(const float2 *p, int units, int slice_units)
{
    float y = 0.0f;
#pragma unroll 1
    for (int first = 0; first < units; first += 4 * slice_units) {
        float fin[4] = {};
#pragma unroll 2
        for (int u = first; u < first + slice_units; u++)
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const int at = u + k * slice_units;
                const float2 t = p[16 * min(at, units - 1)];
                fin[k] = at < units ? __fmaf_rn(t.x, t.y, fin[k]) : fin[k];
            }
#pragma unroll
        for (int k = 0; k < 4; k++) y = __fadd_rn(y, fin[k]);
    }
    return y;
}
/* From terms of gate (lanes 0 to 15) and up [units][16]: h, in lanes 0 to 15. */
static __device__ __noinline__ float gate_sum(const float2 *p, int units, int slice_units, int act)
{
    const float y = slices_sum(p, units, slice_units), up = __shfl_down_sync(~0u, y, 16);
    return __fmul_rn(act_gate(act, y), up);
}
/* Of half a warp, a lane an expert with its terms [n][16] and weight: the row's sum. */
static __device__ __noinline__ float expert_sum(const float2 *p, int n, int slots, float weight)
{
    float fin = 0.0f, y = 0.0f;
#pragma unroll 2
    for (int u = 0; u < n; u++) fin = __fmaf_rn(p[16 * u].x, p[16 * u].y, fin);
#pragma unroll 3
    for (int e = 0; e < slots; e++)
        y = __fmaf_rn(__shfl_sync(~0u, weight, e, 16), __shfl_sync(~0u, fin, e, 16), y);
    return y;
}
/* While the experts are chosen: warps call what will be wanted, on whatever is there, so that its
 * instructions are. */
template <bool FIVE> DEV void whole_soon(const whole_args &a, const uint8_t *smem)
{
    const int warp = threadIdx.x / 32;
    const uint8_t *const x = smem + a.at_act;
    float y = 0.0f;
    if (warp == WARPS - 1) y = gate_sum((const float2 *)x, a.units, a.slice_units, a.act);
    if (warp == WARPS - 2) y = expert_sum((const float2 *)x, a.h_terms, a.slots, 0.0f);
    if (warp == WARPS - 3 || warp == WARPS - 4) y = unit_terms<FIVE>(a.type[0], x, x, x, x).x;
    asm volatile("" ::"f"(y));
}

/* Gate and up: h of this block's pairs, to everyone. */
template <bool FIVE> DEV void whole_gated(const whole_args &a, struct whole_memory *m, uint8_t *smem)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int mine = (a.pairs - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x;
    const int last = a.router[1] ? a.slots - 1 : a.slots;
    float2 *const terms = (float2 *)(smem + a.at_terms); /* [pair][gate, up][unit][16] */
#pragma unroll 1
    for (int t = warp; t < mine * a.units; t += WARPS) {
        const int i = whole_over(t, a.per_units), u = t - i * a.units;
        const bool shared = whole_over((int)blockIdx.x + i * (int)gridDim.x, a.per_panels) == last;
        const int bytes = a.bytes[shared];
        const uint8_t *to = smem + a.at_pair + i * 2 * a.units * max(a.bytes[0], a.bytes[1]) + u * bytes;
        const uint8_t *const st[2] = {to, to + a.units * bytes}, *const x[2] = {
                                                                     smem + a.at_act + UNIT_ACT * u,
                                                                     smem + a.at_act + UNIT_ACT * u};
        bar_wait(m->pair + i, 0);
        const float2 y = unit_terms<FIVE>(a.type[shared], st[0], st[1], x[0], x[1]);
        put_terms(terms + (2 * i * a.units + u) * 16, a.units * 16, y, true);
    }
    warps_meet(1, WARPS + 1);
#pragma unroll 1
    for (int i = warp; i < mine; i += WARPS) { /* lanes: gate, up of 16 columns */
        const float2 *p = terms + (2 * i + lane / 16) * a.units * 16 + lane % 16;
        const int pair = (int)blockIdx.x + i * (int)gridDim.x, slot = whole_over(pair, a.per_panels);
        uint32_t *const to =
            m->words + slot * 256 * a.h_blocks + word_at(16 * (pair - slot * a.h_panels) + lane);
        const float y = gate_sum(p, a.units, a.slice_units, a.act);
        if (lane < 16) {
            word_put(to, y);
            a.h[16 * pair + lane] = y;
        }
    }
}

/* Down: h of all experts, rounded; terms of this block's outputs. */
template <bool SMALL, bool FIVE>
DEV void whole_down(const whole_args &a, struct whole_memory *m, uint8_t *smem, int outs)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, last = a.router[1] ? a.slots - 1 : a.slots;
    uint8_t *const act = smem + a.at_h;
    const mm_prep prep = {nullptr, nullptr, nullptr, 0.0f, a.ff, a.h_units, 0, a.h_units, 1, a.h_row};
#pragma unroll 1
    for (int b = warp; b < a.slots * a.h_blocks; b += WARPS) {
        const int slot = b / a.h_blocks, block = b - slot * a.h_blocks;
        if (!SMALL) {
            whole_unit<false>(m, act, b, 0, 0.0f, nullptr, nullptr, m->words + 256 * b, a.ff - 256 * block,
                              0);
            continue;
        }
        float v[8];
        words_get(v, m->words + 256 * b, a.ff - 256 * block);
        store_block<MM_ACT_32>(prep, act + slot * a.h_row, block, v);
    }
    warps_meet(1, WARPS);
    const int two = SMALL ? 0 : (a.h_units - 1) / 2; /* up to four units are one pair or two */
    const int down_bytes = max(a.down_bytes[0], a.down_bytes[1]);
    float2 *const terms = (float2 *)(smem + a.at_terms); /* [panel][slot][term][16] */
#pragma unroll 1
    for (int t = warp; t < outs * a.slots << two; t += WARPS) {
        const int i = t >> two, u = 2 * (t & two), slot = i < a.slots ? i : i - a.slots;
        const bool shared = slot == last;
        const uint8_t *to = smem + a.at_down + i * a.h_units * down_bytes, *h = act + a.h_row * slot;
        bar_wait(m->slot + slot, 0);
        if (SMALL) {
            const mm_view<1> view = {h, nullptr, h + 32 * a.h_units, {16u * (lane % 4)}, {{0, 0}}, 0};
            float fin[1][4] = {};
            frag_32<false>::stage<1>(fin, to, a.h_units, a.down_type[shared], view, lane);
            if (lane % 4 == 0) { /* of the row: the mma's first column */
                terms[i * 16 + lane / 4] = make_float2(fin[0][0], 1.0f);
                terms[i * 16 + lane / 4 + 8] = make_float2(fin[0][2], 1.0f);
            }
        } else {
            const bool both = u + 1 < a.h_units;
            to += u * a.down_bytes[shared];
            h += UNIT_ACT * u;
            const float2 y = unit_terms<FIVE>(a.down_type[shared], to, both ? to + a.down_bytes[shared] : to,
                                              h, both ? h + UNIT_ACT : h);
            put_terms(terms + (i * a.h_units + u) * 16, 16, y, both);
        }
    }
}

/* The outputs, by the last eight warps that multiply (which had nothing to do in the beginning): half a warp
 * a row of a panel, a lane an expert. i: such a thread's number. */
DEV int whole_row_of(int i, int panel)
{
    return 16 * ((int)blockIdx.x + panel * (int)gridDim.x) + i / 16;
}
template <enum whole_place P> DEV void whole_old(const whole_args &a, struct whole_memory *m, int i)
{
    if (i < 0 || i % 16 || !a.add) return;
#pragma unroll
    for (int o = 0; o < PANELS_MOST; o++) {
        const int row = whole_row_of(i, o);
        if (row >= a.n_out) continue;
        m->old[o][i / 16] =
            has_before<P>(a) ? word_ask(m->words + WHOLE_X + word_at(row)) : __ldcg(a.out + row);
    }
}
template <enum whole_place P>
DEV void whole_add(const whole_args &a, const struct whole_memory *m, const uint8_t *smem, int i, int outs)
{
    const int slot = min(i % 16, a.slots - 1);
    const float2 *p = (const float2 *)(smem + a.at_terms) + slot * a.h_terms * 16 + i / 16;
    const float weight = m->weights[slot];
#pragma unroll 1
    for (int o = 0; o < outs; o++, p += a.slots * a.h_terms * 16) {
        const float y = expert_sum(p, a.h_terms, a.slots, weight);
        const int row = whole_row_of(i, o);
        if (i % 16 == 0 && row < a.n_out) {
            const float x = a.add ? __fadd_rn(m->old[o][i / 16], y) : y;
            if (has_behind<P>(a)) word_put(m->words + WHOLE_Y + word_at(row), x);
            a.out[row] = x;
            if (a.tap) a.tap[row] = x;
        }
    }
}

#endif
