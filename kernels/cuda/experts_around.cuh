/* experts_around.cuh - the products around a mixture of one row, in its launch (experts_whole.cu): the one
 * before, whose outputs are added to x, and those of the new x behind.
 *
 * before  a block a panel (16 outputs) of W, which lies where down's weights will. The row was rounded by the
 * launch before. What the outputs come to is the residual that the block adds the mixture to; everyone gets
 * it as words and norms it for itself.  behind  up to BEHIND_MOST panels a block, which lie
 * where gate's and up's weights were (those that reach into down's are asked for when these are done with),
 * so they come while h is handed over. Sums as mm_kernel.cuh adds them: by units within a slice, then slices.
 */
#ifndef DFLASH_CUDA_EXPERTS_AROUND_CUH
#define DFLASH_CUDA_EXPERTS_AROUND_CUH

#include "experts_whole.cuh"

/* Its weights, by a lane that has initialised the barriers. */
DEV void before_ask(const whole_args &a, struct whole_memory *m, uint8_t *smem)
{
    const uint32_t bytes = (uint32_t)(a.before.units * a.before.bytes);
    if (!a.before.w || (int)blockIdx.x >= a.out_panels) return;
    bar_expect(&m->before, bytes);
    copy_bulk_to(smem + a.at_down, a.before.w + (size_t)blockIdx.x * bytes, bytes, &m->before);
}

/* x, with the product's outputs, to everyone. All warps that multiply. */
DEV void whole_product_before(const whole_args &a, struct whole_memory *m, uint8_t *smem)
{
    const struct whole_before &b = a.before;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, block = blockIdx.x;
    const bool own = block < a.out_panels, adds = own && warp == WARPS - 1 && lane < 16;
    uint8_t *const act = smem + a.at_h;
    float2 *const terms = (float2 *)(smem + a.at_terms);
    float old = 0.0f;
    cuda_grid_wait();
    if (threadIdx.x == 0) whole_turn(a, m);
    if (adds) old = __ldcg(a.out + 16 * block + lane);
    for (int u = warp; u < b.units; u += WARPS)
        unit_of_row(b.rows, b.slice_units, b.slice_row, u, act + UNIT_ACT * u);
    warps_meet(1, WARPS);
#pragma unroll 1
    for (int u = 2 * warp; u < b.units && own; u += 2 * WARPS) {
        const bool both = u + 1 < b.units;
        const uint8_t *w = smem + a.at_down + u * b.bytes, *x = act + UNIT_ACT * u;
        bar_wait(&m->before, 0);
        const float2 y = unit_terms(b.type, w, both ? w + b.bytes : w, x, both ? x + UNIT_ACT : x);
        put_terms(terms + 16 * u, 16, y, both);
    }
    warps_meet(1, WARPS);
    if (adds) {
        const float x = __fadd_rn(old, slices_sum(terms + lane, b.units, b.slice_units));
        word_put(m->words + WHOLE_X + word_at(16 * block + lane), x);
        m->old[0][lane] = x;
    }
    warps_meet(1, WARPS); /* who reads others' values would delay the block's own */
}

/* The products behind. All warps that multiply, the last eight having put the block's outputs. */
DEV void whole_products_behind(const whole_args &a, struct whole_memory *m, uint8_t *smem)
{
    const struct whole_behind &b = a.behind;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, units = a.units, cuts = (units + 1) / 2;
    const int mine = (b.panels - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x;
    uint8_t *const act = smem + a.at_act;
    float2 *const terms = (float2 *)(smem + a.at_terms); /* [panel][unit][16] */
    if (warp < units) {
        whole_unit(m, act, warp, units, b.eps, b.norm, nullptr, m->words + WHOLE_Y + 256 * warp, 256,
                   units + 8);
    } else if (warp >= WARPS - 8) {
        warps_meet(2, units + 8);
    }
    warps_meet(1, WARPS);
#pragma unroll 1
    for (int t = warp; t < mine * cuts; t += WARPS) {
        const int i = whole_over(t, a.per_cuts), u = 2 * (t - i * cuts);
        const bool both = u + 1 < units;
        int panel = (int)blockIdx.x + i * (int)gridDim.x;
        const int j = behind_matrix(b, &panel);
        const uint8_t *w = smem + a.at_pair + (uint32_t)i * b.slot + u * b.bytes[j], *x = act + UNIT_ACT * u;
        bar_wait(m->behind + i, 0);
        const float2 y = unit_terms(b.type[j], w, both ? w + b.bytes[j] : w, x, both ? x + UNIT_ACT : x);
        put_terms(terms + (i * units + u) * 16, 16, y, both);
    }
    warps_meet(1, WARPS);
    const int i = 2 * warp + lane / 16;
    if (i >= mine) return;
    int panel = (int)blockIdx.x + i * (int)gridDim.x;
    const int j = behind_matrix(b, &panel), row = 16 * panel + lane % 16;
    const float y = slices_sum(terms + i * units * 16 + lane % 16, units, b.slice_units);
    if (row < b.n_out[j]) b.out[j][row] = y;
}

#endif
