/* experts_plan.c - see experts_plan.h. What is said to be measured is in docs/speed/mixtures.md. */
#include "experts_plan.h"

#include <string.h>

struct experts_tuning experts_tuning = {.spread_rows = 4,
                                        .held_rows = 32,
                                        .made_rows = 2,
                                        .slice_warps = 4,
                                        .copy_k = 2,
                                        .copy_32 = 8,
                                        .copy_float = 4,
                                        .staged_rows = {3, 6},
                                        .staged_pairs = {5, 20},
                                        .staged_tile = -1,
                                        .form = -1,
                                        .whole = 2,
                                        .apart = 0};

bool experts_has(enum mm_act act, int log2_tiles, enum experts_form form, bool generic)
{
    if (form == EXPERTS_PLAIN) return log2_tiles == 0 || log2_tiles == 1;
    if (generic) return false;
    if (form == EXPERTS_STAGED && log2_tiles == 2) return true;
    return mm_is_int8(act) && (log2_tiles == 0 || log2_tiles == 1);
}

/* The slices of a row: by its length and type alone, for they decide the bits. */
static bool cut_slices(const struct mm_type *t, int64_t n_in, struct experts_args *a)
{
    const int64_t blocks = (n_in + 255) / 256, per = 256 / t->unit_k;
    int64_t slices = a->members == 1 && n_in <= 1024 ? 1 : 4;
    if (!mm_is_int8(t->act) && slices * MM_SLICE_MAX < n_in)
        slices = (n_in + MM_SLICE_MAX - 1) / MM_SLICE_MAX;
    a->units = (int32_t)((n_in + t->unit_k - 1) / t->unit_k);
    a->slice_units = (int32_t)((blocks + slices - 1) / slices * per);
    a->slices = (a->units + a->slice_units - 1) / a->slice_units;
    a->slice_row = mm_slice_row(t->act, a->slice_units);
    return a->slices <= MM_SLICES_MAX && blocks <= MM_ROW_BLOCKS;
}

/* How many warps have a part of a job's slices, and how many a block has. */
static void share_out(struct experts_args *a, int log2_tiles, enum experts_form form)
{
    const int32_t most = form == EXPERTS_PLAIN                ? 8 / a->members
                         : form == EXPERTS_HELD               ? experts_tuning.slice_warps
                         : form == EXPERTS_OWNED && a->n == 1 ? 2
                                                              : 1;
    a->slice_warps = a->slices < most ? a->slices : most;
    a->parts = a->slice_warps == 1 ? 1 : a->slices;
    a->warps = form == EXPERTS_PLAIN || (form == EXPERTS_STAGED && log2_tiles == 2) ? 8 : 16;
}
/* Panels that a block takes at a time. */
static int32_t jobs_of(const struct experts_args *a, enum experts_form form)
{
    return form == EXPERTS_SOLO || form == EXPERTS_STAGED ? a->warps
                                                          : a->warps / (a->members * a->slice_warps);
}

/* Shared memory of a block; returns its bytes. */
static size_t lay_out(struct experts_args *a, int tiles, enum experts_form form)
{
    struct experts_memory *m = &a->at;
    const size_t jobs = (size_t)jobs_of(a, form), parts = (size_t)a->parts;
    a->few = (a->pairs + 7) / 8 * 8 <= 32 * a->warps;
    const size_t sort = a->n == 1 || a->few ? 0 : experts_sort_bytes(a->pairs, a->n_mat);
    const bool adding = (form == EXPERTS_PLAIN || form == EXPERTS_HELD) && a->members * a->slice_warps > 1;
    const size_t sums = form == EXPERTS_OWNED ? (size_t)a->pairs * parts * 64
                        : adding              ? 2 * jobs * (size_t)a->members * parts * (size_t)tiles * 512
                                              : 0;
    const size_t rows = form == EXPERTS_PLAIN    ? 0
                        : form == EXPERTS_STAGED ? (size_t)a->tile
                                                 : (size_t)(a->members == 2 ? a->n : a->pairs);
    m->row_bytes = ((uint32_t)(a->slices * a->slice_row) + 63) / 128 * 128 + 64;
    size_t at = MM_BARS + (size_t)(a->warps * a->stages * a->stage_bytes);
    m->tiles = (uint32_t)at;
    at += sizeof(struct experts_tile) * (size_t)experts_most_tiles(a->pairs, a->n_mat, a->tile);
    m->order = (uint32_t)at;
    at = (at + 2 * (size_t)a->pairs + 15) / 16 * 16;
    m->few = (uint32_t)at;
    if (a->few && a->n > 1) at += experts_few_bytes(a->pairs);
    m->sums = (uint32_t)((at + 127) / 128 * 128);
    m->act = (uint32_t)((m->sums + sums + 127) / 128 * 128);
    at = m->act + rows * m->row_bytes;
    if (at < m->sums + sort) at = m->sums + sort;
    m->grid = (uint32_t)((at + 15) / 16 * 16);
    m->total = m->grid + mm_points_bytes(a->points);
    return m->total;
}

/* Does the form fit with rings of two stages or more? Smaller copies where it does not. */
static bool fit(const struct cuda_device *dev, struct experts_args *a, enum mm_act act, int log2_tiles,
                enum experts_form form)
{
    const size_t part = ((size_t)dev->smem_sm - 6144) / (form == EXPERTS_PLAIN ? 2 : 1) - 1024,
                 most = (size_t)dev->smem_block < part ? (size_t)dev->smem_block : part;
    const int copy = act == MM_ACT_K   ? experts_tuning.copy_k
                     : mm_is_int8(act) ? experts_tuning.copy_32
                                       : experts_tuning.copy_float;
    const int32_t least = act == MM_ACT_K ? 1 : 2; /* 64 columns are one step of the others */
    int32_t widest = 0;
    for (int j = 0; j < 4; j++)
        if (a->unit_bytes[j] > widest) widest = a->unit_bytes[j];
    share_out(a, log2_tiles, form);
    for (a->stage_units = copy < a->slice_units ? copy : a->slice_units; a->stage_units >= least;
         a->stage_units /= 2) {
        a->stage_bytes = a->stage_units * widest;
        for (a->stages = 4; a->stages >= 2; a->stages--)
            if (lay_out(a, 1 << log2_tiles, form) <= most) return true;
    }
    return false;
}

/* Distinct experts that n rows may be expected to choose of n_mat, each used of them. */
static double expected_experts(const struct experts_args *a)
{
    double left = 1;
    for (int32_t i = 0; i < a->n && left > 1e-3; i++) left *= 1.0 - (double)a->used / a->n_mat;
    return a->n_mat * (1 - left);
}

/* Pairs that an expert of those chosen is expected to have. */
static double expected_pairs(const struct experts_args *a)
{
    return a->pairs / expected_experts(a);
}
/* STAGED: tiles of 8, 16 or 32 pairs, by the pairs of an expert. Measured: 16 warps with up to 16 pairs are
 * quicker than 8 with 32 until an expert has some 20; and always for down, whose rows are short. */
static int staged_tile(const struct experts_args *a, enum mm_act act)
{
    const double pairs = expected_pairs(a);
    if (!mm_is_int8(act)) return 2;
    if (experts_tuning.staged_tile >= 0) return experts_tuning.staged_tile;
    if (pairs <= experts_tuning.staged_pairs[0]) return 0;
    if (pairs > experts_tuning.staged_pairs[1]) return a->members == 1 ? 1 : 2;
    return a->members == 1 && act == MM_ACT_K ? 0 : 1;
}
/* Measured: down of K types with more pairs an expert is quicker PLAIN. */
static bool may_stage(const struct experts_args *a, enum mm_act act)
{
    return a->members == 2 || act != MM_ACT_K || expected_pairs(a) <= experts_tuning.staged_pairs[1];
}

/* OWNED: panels that divide well among multiprocessors, or so few rows that it does not matter beside another
 * launch. */
static bool may_own(const struct cuda_device *dev, const struct experts_args *a)
{
    const int32_t rounds = (a->all_panels + dev->sm_count - 1) / dev->sm_count;
    return a->members == 1 && (a->n < 4 || rounds * dev->sm_count <= a->all_panels * 5 / 4);
}

/* The form of a launch, the first that is there and fits; none of it changes a bit. */
static void choose(const struct cuda_device *dev, struct experts_args *a, enum mm_act act,
                   struct experts_choice *c)
{
    const bool generic = !cuda_device_early(dev);
    const int widest = !generic ? 2 : dev->cc < 90 ? 1 : 0, few = a->n <= 8 ? 0 : 1;
    const int *const staged = experts_tuning.staged_rows;
    const bool stage = a->members == 2 && a->n >= staged[0] && a->n <= staged[1];
    const enum experts_form first = stage                                ? EXPERTS_STAGED
                                    : a->n <= experts_tuning.spread_rows ? EXPERTS_HELD
                                                                         : EXPERTS_SOLO,
                            second = first == EXPERTS_SOLO ? EXPERTS_HELD : EXPERTS_SOLO;
    const struct {
        int log2_tiles;
        enum experts_form form;
    } list[] = {{few, EXPERTS_OWNED}, {stage ? 2 : few, first},
                {few, second},        {staged_tile(a, act), EXPERTS_STAGED},
                {2, EXPERTS_STAGED},  {few, EXPERTS_PLAIN},
                {1, EXPERTS_PLAIN},   {0, EXPERTS_PLAIN}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        const int l = list[i].log2_tiles;
        const enum experts_form f = list[i].form;
        const bool rows = f == EXPERTS_OWNED || f == EXPERTS_HELD || f == EXPERTS_SOLO;
        if (l > widest || (rows && a->n > experts_tuning.held_rows) ||
            (f == EXPERTS_OWNED && !may_own(dev, a)) ||
            (f == EXPERTS_STAGED && experts_tuning.form < 0 && !may_stage(a, act)))
            continue;
        if (experts_tuning.form >= 0 && f != EXPERTS_PLAIN && (int)f != experts_tuning.form) continue;
        a->tile = 8 << l;
        if (!experts_has(act, l, f, generic) || !fit(dev, a, act, l, f)) continue;
        c->found = true;
        c->form = f;
        c->log2_tiles = l;
        c->grid = (unsigned)(dev->sm_count * (f == EXPERTS_PLAIN ? 2 : 1));
        return;
    }
}

/* Panels a block takes of a tile at a time: STAGED: as many as leave every block some runs of its own. */
static void cut_runs(struct experts_args *a, enum experts_form form, unsigned grid)
{
    const int32_t jobs = jobs_of(a, form), most = (a->panels + jobs - 1) / jobs;
    a->run = jobs;
    if (form != EXPERTS_STAGED) return;
    const double full = (double)a->pairs / a->tile, some = expected_experts(a),
                 tiles = full > some ? full : some;
    const double runs = 6.0 * grid / tiles; /* of a tile */
    const int32_t parts = runs < 1 ? 1 : runs < most ? (int32_t)runs : most;
    a->run = (most + parts - 1) / parts * jobs;
}
/* Blocks that have something to do. */
static unsigned blocks_of(const struct experts_args *a, enum experts_form form, unsigned grid)
{
    const int64_t jobs = form == EXPERTS_OWNED ? a->panels
                                               : (int64_t)experts_most_tiles(a->pairs, a->n_mat, a->tile) *
                                                     ((a->panels + a->run - 1) / a->run);
    return jobs < grid ? (unsigned)jobs : grid;
}

/* ---- launches ---- */

bool experts_plan(const struct cuda_device *dev, const struct experts_shape *s, struct experts_args *a,
                  struct experts_choice *c)
{
    const struct mm_type *t = product_type_of(s->type[0]);
    memset(a, 0, sizeof *a);
    memset(c, 0, sizeof *c);
    a->members = s->members;
    if (!cut_slices(t, s->n_in, a)) return false;
    for (int j = 0; j < 4; j++) {
        if (j % 2 >= s->members || (j >= 2 && !s->shared)) continue;
        a->type[j] = s->type[j];
        a->unit_bytes[j] = product_type_of(s->type[j])->unit_bytes;
    }
    a->n = s->n;
    a->used = s->used;
    a->pairs = s->n * s->used;
    a->n_mat = s->n_mat + (s->shared ? 1 : 0);
    a->shared = s->shared ? s->n_mat : -1;
    if (s->members == 2 && s->used > 1)
        a->per_row = (uint32_t)((0x100000000u + (uint32_t)s->used - 1) / (uint32_t)s->used);
    a->all_panels = a->panels = (int32_t)((s->n_out + 15) / 16);
    a->n_out = (int32_t)s->n_out;
    a->ld = s->n_out;
    for (int j = 0; j < 4; j++) {
        if (mm_low(a->type[j]) > c->low) c->low = mm_low(a->type[j]);
        a->points = mm_points_with(a->points, a->type[j]);
    }
    choose(dev, a, t->act, c);
    return true;
}

unsigned experts_plan_blocks(const struct experts_choice *c, struct experts_args *a)
{
    cut_runs(a, c->form, c->grid);
    return blocks_of(a, c->form, c->grid);
}

int32_t experts_plan_panels(const struct experts_args *a)
{
    const int64_t most = (int64_t)(EXPERTS_SUMS_BYTES / (16 * (size_t)a->pairs * sizeof(float)));
    return most > a->all_panels ? a->all_panels : (int32_t)most;
}

int32_t experts_plan_rows(const struct cuda_device *dev, const struct experts_shape *s, size_t rows_bytes)
{
    struct experts_shape part = *s;
    struct experts_args a;
    struct experts_choice c;
    const int32_t each = s->members == 2 ? 1 : s->used; /* rows of activations a row */
    part.n = 1;
    if (!experts_plan(dev, &part, &a, &c)) return -1;
    const size_t room = rows_bytes / ((size_t)each * (size_t)a.slices * (size_t)a.slice_row);
    int32_t most = EXPERTS_PAIRS / s->used;
    if (room < (size_t)most) most = (int32_t)room;
    if (s->n < most) most = s->n;
    for (; most > 0; most /= 2) {
        part.n = most;
        if (!experts_plan(dev, &part, &a, &c)) return -1;
        if (c.found) break;
    }
    if (most < 1) return 0;
    const int32_t parts = (s->n - 1) / most + 1;
    return (s->n - 1) / parts + 1;
}
