/* many_tile.cu - products of more than 64 rows by the kernel of many_tile.cuh: which of its shapes takes a
 * launch.
 *
 * Bound. A product of four warps takes N / 2 cycles for 64 outputs, 16 columns and N rows; the same weights
 * to f16 some 45 instructions a warp, of which a multiprocessor starts one a cycle and quarter. That is 1 ms
 * for all of Qwen3-8B, as long as its bytes take. docs/speed/prompts.md
 * has what was measured. */
#include "many_impl.cuh"

const int many_tile_kinds = TILE_KINDS;

static const struct {
    int rows, outputs, blocks; /* of a tile; blocks a multiprocessor */
    double few, one, all;      /* us of 32 columns: few multiprocessors busy; a block on each; all blocks.
                                * Measured, Q4_K, H200 */
} shapes[TILE_KINDS] = {{256, 128, 1, 0.34, 0.55, 0.55}, {192, 128, 1, 0.29, 0.41, 0.41},
                        {128, 128, 1, 0.25, 0.36, 0.36}, {96, 64, 2, 0.13, 0.28, 0.31},
                        {128, 192, 1, 0.34, 0.45, 0.45}, {96, 192, 1, 0.32, 0.40, 0.40},
                        {64, 128, 1, 0.20, 0.25, 0.25}};

/* So many tiles of so many groups of 32 columns, round after round of blocks: us. A tile's end: 0.04 us a
 * row. */
static double us_of(int kind, int64_t tiles, int64_t groups, int64_t sms)
{
    const int64_t room = sms * shapes[kind].blocks, rest = tiles % room;
    const double few = shapes[kind].few, one = shapes[kind].one, all = shapes[kind].all,
                 last = !rest         ? 0.0
                        : rest <= sms ? few + (one - few) * (double)rest / (double)sms
                                      : one + (all - one) * (double)(rest - sms) / (double)sms;
    return ((double)(tiles / room) * all + last) * (double)groups +
           0.04 * shapes[kind].rows * (double)((tiles + room - 1) / room);
}
/* The one that takes the least. */
static enum tile_kind choose(const struct cuda_backend *be, const struct tile_args *a)
{
    enum tile_kind best = TILE_256;
    double least = 1e30;
    for (int k = 0; k < TILE_KINDS; k++) {
        const int height = a->gated ? shapes[k].outputs / 2 : shapes[k].outputs;
        if (many_tuning.tile >= 0 && many_tuning.tile != k) continue;
        int64_t tiles = 0;
        for (int j = 0; j < (a->gated ? 1 : a->n_w); j++) tiles += (a->w[j].n_out + height - 1) / height;
        tiles *= (a->n + shapes[k].rows - 1) / shapes[k].rows;
        const double us = us_of(k, tiles, a->groups, be->sm_count);
        if (us < least) least = us, best = (enum tile_kind)k;
    }
    return best;
}

bool many_tiles(const struct cuda_backend *be, const struct mm_product *p)
{
    if (be->cc < 90 || p->n > many_tuning.tile_rows) return false;
    for (int j = 0; j < p->n_w; j++) /* of these, panels alone */
        if (grid_has(p->w[j]->type) || p->w[j]->type == KN_MXFP4) return false;
    return !p->gated || p->w[0]->type == p->w[1]->type;
}

/* The weights j .. j + count - 1, of one set. */
static cudaError_t run_set(const struct cuda_backend *be, const struct mm_product *p, int j, int count,
                           const struct tile_act *act)
{
    const int64_t n_in = p->w[j]->n_in;
    const int columns = tile_stage_columns(p->w[j]->type);
    struct tile_args a = {};
    a.n_w = count, a.n = p->n;
    a.groups = (int32_t)((n_in + 31) / 32), a.stages = (int32_t)((n_in + columns - 1) / columns);
    a.pad = act->pad, a.act = act->act, a.factor = act->factor;
    a.magic = 0x4b000000;
    a.add = p->add, a.gated = p->gated, a.act_kind = (int)p->act;
    for (int i = 0; i < count; i++) {
        const struct kn_weight *w = p->w[j + i];
        const struct panel_args panels = many_panel_args(w, 0, (int32_t)w->n_out);
        const int e = many_scale_exponent(w), unit = tile_unit_bytes(w->type);
        a.w[i] = {panels.packed,
                  p->out[p->gated ? 0 : j + i],
                  panels.panel_bytes,
                  (int32_t)w->n_out,
                  panels.panels,
                  columns == 256 ? unit : unit * columns / 32,
                  w->type,
                  many_power(e),
                  many_power(-e)};
    }
    const enum tile_kind kind = choose(be, &a);
    switch (tile_set_of(a.w[0].type)) {
    case TILE_K: return many_tile_k(be, kind, &a);
    case TILE_LOW: return many_tile_low(be, kind, &a);
    case TILE_FLOAT: return many_tile_float(be, kind, &a);
    default: return many_tile_32(be, kind, &a);
    }
}

cudaError_t many_tile_run(const struct cuda_backend *be, const struct mm_product *p,
                          const struct tile_act *act)
{
    cudaError_t err = cudaSuccess;
    for (int j = 0, count; j < p->n_w && !err; j += count) {
        for (count = 1; j + count < p->n_w; count++)
            if (tile_set_of(p->w[j + count]->type) != tile_set_of(p->w[j]->type)) break;
        err = run_set(be, p, j, count, act);
        cuda_count(be, CUDA_PRODUCT_TILES);
    }
    return err;
}
