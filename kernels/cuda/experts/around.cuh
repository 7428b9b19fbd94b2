/* experts/around.cuh - the products around a mixture of one row, in its launch (experts/whole.cu): the one
 * before, whose outputs are added to x, and those of the new x behind.
 *
 * before  a block a panel (16 outputs) of W, or two, or none; it lies where down's weights will. The row was
 * rounded by the launch before, which hands it over while it still runs (experts/hand.cuh) or has left it in
 * memory. What the outputs come to is the residual that the blocks add the mixture to; everyone gets it as
 * words and norms it for itself.
 *
 * behind  up to BEHIND_MOST panels a block, which lie where gate's and up's weights were (those that reach
 * into down's are asked for when these are done with), so they come while h is handed over. Sums as
 * mm_kernel.cuh adds them: by units within a slice, then slices.
 *
 * Wins: eight layers of 30B-A3B at one row 0.438 to 0.388 ms. dflash-bench rows -m 30b-a3b-q4_k_m.gguf
 * --device cuda --rows 1 --context 512 */
#ifndef DFLASH_CUDA_EXPERTS_AROUND_CUH
#define DFLASH_CUDA_EXPERTS_AROUND_CUH

#include "whole.cuh"

/* Which panels are this block's, and their weights: by a lane that has initialised the barriers. The blocks
 * that start last, when the launch before leaves their multiprocessors, have none, and as many of the first
 * have two: late weights would be waited for by everyone. */
template <enum whole_place P> DEV void before_ask(const whole_args &a, struct whole_memory *m, uint8_t *smem)
{
    const whole_before &b = a.before;
    if (!has_before<P>(a)) return;
    const int grid = (int)gridDim.x, singles = grid - b.late;
    int first = (int)blockIdx.x;
    m->panels = first < a.out_panels;
    if (b.late) {
        first = (int)atomicInc(a.tag + WHOLE_TICKET, gridDim.x - 1);
        m->panels = first < a.out_panels - singles ? 2 : first < singles;
    }
    m->panel[0] = first;
    m->panel[1] = singles + first;
    if (!m->panels) return;
    const uint32_t bytes = (uint32_t)(b.units * b.bytes);
    bar_expect(&m->before, (uint32_t)m->panels * bytes);
    for (int i = 0; i < m->panels; i++)
        copy_weights_to(smem + (i ? b.at_more : a.at_down), b.w + (size_t)m->panel[i] * bytes, bytes,
                        &m->before);
}

/* x, with the product's outputs, to everyone. All warps that multiply. */
template <bool FIVE, enum whole_place P>
DEV void whole_product_before(const whole_args &a, struct whole_memory *m, uint8_t *smem)
{
    const struct whole_before &b = a.before;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, pairs = (b.units + 1) / 2, all = m->panels;
    const bool adds = warp == WARPS - 1 && lane / 16 < all;
    const int output = 16 * m->panel[lane / 16] + lane % 16;
    uint8_t *const act = smem + a.at_h;
    float2 *const terms = (float2 *)(smem + a.at_terms); /* [panel][unit][16] */
    float old = 0.0f;
    const bool handed = is_handed<P>(a);
    if (!handed) cuda_grid_wait();
    if (!handed && threadIdx.x == 0) whole_turn(a, m);
    if (adds) old = __ldcg(a.out + output);
    for (int u = warp; u < b.units && all; u += WARPS)
        if (handed)
            unit_of_hand(b.hand + HAND_UNIT * u, m->tag - 1 + b.salt, act + UNIT_ACT * u);
        else
            unit_of_row(b.rows, b.slice_units, b.slice_row, u, act + UNIT_ACT * u);
    warps_meet(1, WARPS);
#pragma unroll 1
    for (int t = warp; t < all * pairs; t += WARPS) {
        const int i = t >= pairs, u = 2 * (t - i * pairs);
        const bool both = u + 1 < b.units;
        const uint8_t *w = smem + (i ? b.at_more : a.at_down) + u * b.bytes, *x = act + UNIT_ACT * u;
        bar_wait(&m->before, 0);
        const float2 y = unit_terms<FIVE>(b.type, w, both ? w + b.bytes : w, x, both ? x + UNIT_ACT : x);
        put_terms(terms + 16 * (i * b.units + u), 16, y, both);
    }
    warps_meet(1, WARPS);
    if (adds)
        word_put(m->words + WHOLE_X + word_at(output),
                 __fadd_rn(old, slices_sum(terms + 16 * (lane / 16) * b.units + lane % 16, b.units,
                                           b.slice_units)));
    warps_meet(1, WARPS); /* who reads others' values would delay the block's own */
}

/* A warp's pair of units of the products behind: found while words are waited for. */
struct behind_task {
    uint32_t at, type;   /* of shared memory; 0: there is none */
    int32_t i, u, bytes; /* its panel of the block's, its unit; bytes to the next */
};
DEV struct behind_task behind_find(const whole_args &a, int t, int mine)
{
    const struct whole_behind &b = a.behind;
    const int cuts = (a.units + 1) / 2, i = whole_over(t, a.per_cuts), u = 2 * (t - i * cuts);
    if (t >= mine * cuts) return {};
    int panel = (int)blockIdx.x + i * (int)gridDim.x;
    const int j = behind_matrix(b, &panel);
    return {a.at_pair + (uint32_t)i * b.slot + (uint32_t)(u * b.bytes[j]), b.type[j], i, u,
            u + 1 < a.units ? b.bytes[j] : 0};
}

/* The products behind. All warps that multiply, the last eight having put the block's outputs. */
template <bool FIVE>
DEV void whole_products_behind(const whole_args &a, struct whole_memory *m, uint8_t *smem)
{
    const struct whole_behind &b = a.behind;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, units = a.units;
    const int mine = (b.panels - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x;
    uint8_t *const act = smem + a.at_act;
    float2 *const terms = (float2 *)(smem + a.at_terms); /* [panel][unit][16] */
    struct behind_task k = behind_find(a, warp, mine);
    if (warp < units) {
        whole_unit<false>(m, act, warp, units, b.eps, b.norm, nullptr, m->words + WHOLE_Y + 256 * warp, 256,
                          units + 8);
    } else if (warp >= WARPS - 8) {
        warps_meet(2, units + 8);
    }
    warps_meet(1, WARPS);
#pragma unroll 1
    for (int t = warp; k.at; k = behind_find(a, t += WARPS, mine)) {
        const bool both = k.bytes;
        const uint8_t *const w = smem + k.at, *const x = act + UNIT_ACT * k.u;
        bar_wait(m->behind + k.i, 0);
        const float2 y = unit_terms<FIVE>(k.type, w, w + k.bytes, x, both ? x + UNIT_ACT : x);
        put_terms(terms + (k.i * units + k.u) * 16, 16, y, both);
    }
    const int i = 2 * warp + lane / 16;
    int panel = (int)blockIdx.x + i * (int)gridDim.x, j = 0;
    if (i < mine) j = behind_matrix(b, &panel);
    const int row = 16 * panel + lane % 16;
    float *const out = b.out[j] + row;
    warps_meet(1, WARPS);
    if (i >= mine) return;
    const float y = slices_sum(terms + i * units * 16 + lane % 16, units, b.slice_units);
    if (row < b.n_out[j]) *out = y;
}

#endif
