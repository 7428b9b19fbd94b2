/* many_tile.cu - products of more than 64 rows by the kernel of many_tile.cuh: which of its shapes takes a
 * launch.
 *
 * Bound. A product of four warps takes N / 2 cycles for 64 outputs, 16 columns and N rows; the same weights
 * to f16 some 45 instructions a warp, of which a multiprocessor starts one a cycle and quarter. That is 1 ms
 * for all of Qwen3-8B, as long as its bytes take. docs/speed/prompts.md
 * has what was measured. */
#include "many_impl.cuh"

const int many_tile_kinds = TILE_KINDS;

enum family { FAMILY_K, FAMILY_32, FAMILY_FLOAT };
static enum family family_of(uint32_t type)
{
    const int columns = tile_stage_columns(type);
    return columns == 256 ? FAMILY_K : columns == 128 ? FAMILY_32 : FAMILY_FLOAT;
}

static const struct {
    int rows, outputs, blocks; /* of a tile; blocks a multiprocessor */
    double one,
        all; /* us of 32 columns: a block a multiprocessor at most; all of them. Measured, Q4_K, H200 */
} shapes[TILE_KINDS] = {{256, 128, 1, 0.36, 0.36}, {192, 128, 1, 0.29, 0.29}, {128, 128, 1, 0.22, 0.22},
                        {128, 64, 2, 0.20, 0.34},  {96, 64, 2, 0.19, 0.25},   {64, 64, 2, 0.16, 0.20},
                        {128, 192, 1, 0.26, 0.26}, {96, 192, 1, 0.22, 0.22},  {64, 256, 1, 0.24, 0.24},
                        {96, 128, 1, 0.18, 0.18},  {64, 128, 1, 0.15, 0.15}};

/* Gates and ups of two types meet in a group where its number is odd. */
static bool takes(int kind, const struct tile_args *a)
{
    return (many_tuning.tile < 0 || many_tuning.tile == kind) &&
           (!a->gated || shapes[kind].outputs % 128 == 0 || a->w[0].type == a->w[1].type);
}

/* The one that takes the least, by how often it fills the device and how far in the end. */
static enum tile_kind choose(const struct cuda_backend *be, const struct tile_args *a)
{
    enum tile_kind best = TILE_256;
    double least = 1e30;
    for (int k = 0; k < TILE_KINDS; k++) {
        const int height = a->gated ? shapes[k].outputs / 2 : shapes[k].outputs;
        if (!takes(k, a)) continue;
        int64_t tiles = 0;
        for (int j = 0; j < (a->gated ? 1 : a->n_w); j++) tiles += (a->w[j].n_out + height - 1) / height;
        tiles *= (a->n + shapes[k].rows - 1) / shapes[k].rows;
        const int64_t room = (int64_t)be->sm_count * shapes[k].blocks, rest = tiles % room;
        const double us = (double)(tiles / room) * shapes[k].all + (rest > be->sm_count ? shapes[k].all
                                                                    : rest              ? shapes[k].one
                                                                                        : 0.0);
        if (us < least) least = us, best = (enum tile_kind)k;
    }
    return best;
}

bool many_tiles(const struct cuda_backend *be, const struct mm_product *p)
{
    if (be->cc < 90 || p->n > many_tuning.tile_rows) return false;
    for (int j = 0; j < p->n_w; j++) /* of these, panels alone */
        if (grid_has(p->w[j]->type) || p->w[j]->type == KN_MXFP4) return false;
    for (int j = 0; j < p->n_w && p->n > many_tuning.tile_rows_32; j++)
        if (family_of(p->w[j]->type) == FAMILY_32) return false;
    return !p->gated || family_of(p->w[0]->type) == family_of(p->w[1]->type);
}

/* The weights j .. j + count - 1, of one set, or gate and up. */
static cudaError_t run_family(const struct cuda_backend *be, const struct mm_product *p, int j, int count,
                              const struct tile_act *act)
{
    const enum family family = family_of(p->w[j]->type);
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
                  family == FAMILY_K ? unit : unit * columns / 32,
                  w->type,
                  many_power(e),
                  many_power(-e)};
    }
    const enum tile_kind kind = choose(be, &a);
    if (family == FAMILY_FLOAT) return many_tile_float(be, kind, &a);
    if (family == FAMILY_32) return many_tile_32(be, kind, &a);
    return tile_mixed(&a) || tile_set_of(a.w[0].type) == TILE_LOW ? many_tile_low(be, kind, &a)
                                                                  : many_tile_k(be, kind, &a);
}

cudaError_t many_tile_run(const struct cuda_backend *be, const struct mm_product *p,
                          const struct tile_act *act)
{
    cudaError_t err = cudaSuccess;
    for (int j = 0, count; j < p->n_w && !err; j += count) {
        for (count = 1; j + count < p->n_w; count++)
            if (!p->gated && tile_set_of(p->w[j + count]->type) != tile_set_of(p->w[j]->type)) break;
        err = run_family(be, p, j, count, act);
        cuda_count(be, CUDA_PRODUCT_TILES);
    }
    return err;
}
