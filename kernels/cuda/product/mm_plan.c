/* mm_plan.c - the plans of matrix products. What is said to be measured is in docs/speed/verify.md. */
#include "mm_plan.h"

#include <string.h>

struct mm_tuning mm_tuning = {.stages = 4,
                              .copy_k = 2,
                              .copy_32 = 8,
                              .copy_float = 4,
                              .slices = 4,
                              .rounds = 8,
                              .slices_float = 8,
                              .wide_most = MM_WIDE_MOST,
                              .long_row = 14336};

/* Columns and bytes of a unit are those of 16 rows of blocks; the same constants are in mm_int.cuh and
 * mm_frag.cuh. */
static const struct mm_type mm_types[] = {
    {KN_F32, 32, 2048, MM_ACT_F32},   {KN_F16, 32, 1024, MM_ACT_F16},    {KN_BF16, 32, 1024, MM_ACT_BF16},
    {KN_Q8_0, 32, 544, MM_ACT_32},    {KN_Q4_0, 32, 288, MM_ACT_32},     {KN_Q5_0, 32, 352, MM_ACT_32},
    {KN_Q4_1, 32, 320, MM_ACT_32M},   {KN_Q5_1, 32, 384, MM_ACT_32M},    {KN_Q4_K, 256, 2304, MM_ACT_K},
    {KN_Q5_K, 256, 2816, MM_ACT_K},   {KN_Q6_K, 256, 3360, MM_ACT_K},    {KN_IQ4_NL, 32, 288, MM_ACT_32},
    {KN_IQ4_XS, 256, 2176, MM_ACT_K}, {KN_Q3_K, 256, 1760, MM_ACT_K},    {KN_Q2_K, 256, 1344, MM_ACT_K},
    {KN_MXFP4, 32, 272, MM_ACT_32},   {KN_IQ2_XXS, 256, 1056, MM_ACT_K}, {KN_IQ2_XS, 256, 1184, MM_ACT_K},
    {KN_IQ2_S, 256, 1312, MM_ACT_K},  {KN_IQ3_XXS, 256, 1568, MM_ACT_K}, {KN_IQ3_S, 256, 1760, MM_ACT_K},
    {KN_IQ1_S, 256, 800, MM_ACT_K},   {KN_IQ1_M, 256, 896, MM_ACT_K},
};
#define MM_TYPES (int)(sizeof mm_types / sizeof mm_types[0])

const struct mm_type *product_type_of(uint32_t type)
{
    for (int i = 0; i < MM_TYPES; i++)
        if (mm_types[i].type == type) return &mm_types[i];
    return NULL;
}

bool kn_cuda_multiplies(uint32_t type)
{
    return product_type_of(type) != NULL;
}

/* ---- what decides bits ---- */

/* By the shape and the type alone. 8-bit kinds: four, two panels a block at a time, eight where rows are so
 * long that a slice of eight tokens would not fit in shared memory. Float types: eight for every 4,096
 * columns. Of whole 256 columns: a short row has fewer. */
void product_slices(const struct mm_type *t, int64_t n_in, int32_t *slice_units, int32_t *slices)
{
    const int64_t units = (n_in + t->unit_k - 1) / t->unit_k, blocks = (n_in + 255) / 256;
    int64_t most = n_in > mm_tuning.long_row ? 2 * mm_tuning.slices : mm_tuning.slices;
    if (!mm_is_int8(t->act)) most = (n_in + 4095) / 4096 * mm_tuning.slices_float;
    *slice_units = (int32_t)((blocks + most - 1) / most * (256 / t->unit_k));
    *slices = (int32_t)((units + *slice_units - 1) / *slice_units);
}

bool mm_plan_slices(const struct mm_type *t, int64_t n_in, struct mm_args *a)
{
    a->units = (int32_t)((n_in + t->unit_k - 1) / t->unit_k);
    product_slices(t, n_in, &a->slice_units, &a->slices);
    a->slice_row = mm_slice_row(t->act, a->slice_units);
    const size_t wide = t->act == MM_ACT_K ? (size_t)mm_wide_slice(MM_WIDE_MOST, a->slice_units) : 0;
    return a->slices <= MM_SLICES_MAX && (n_in + 255) / 256 <= MM_ROW_BLOCKS &&
           (size_t)a->slices * (size_t)a->slice_row * MM_PREP_ROWS <= MM_ROWS_BYTES &&
           (size_t)a->slices * wide <= MM_ROWS_BYTES;
}

/* ---- the matrices of a launch ---- */

bool mm_has(enum mm_act act, int log2_tiles, int warps, bool generic, int low)
{
    if (log2_tiles < 0 || log2_tiles > 2) return false;
    if (warps == MM_WARPS) return true;
    return warps == MM_WARPS_MOST && !generic && log2_tiles < 2 && mm_is_int8(act) &&
           !(low && act == MM_ACT_K);
}

/* Units of a copy. */
static int32_t copy_units(enum mm_act act)
{
    return act == MM_ACT_K ? mm_tuning.copy_k : mm_is_int8(act) ? mm_tuning.copy_32 : mm_tuning.copy_float;
}

/* May the product's slices' sums be left in memory, if they are apart (mm_owed)? Of several rows: one row's
 * results are handed on in other ways (chain.cuh, experts/hand.cuh). */
static bool may_leave(const struct mm_shape *s, const struct mm_args *a, enum mm_act act,
                      size_t partial_bytes)
{
    if (mm_tuning.no_left || s->gated || s->n < 2 || s->n > MM_WIDE_MOST || !mm_is_int8(act) || !s->placed)
        return false;
    size_t rows = 0;
    for (int i = 0; i < s->n_w; i++) {
        if (a->n_out[i] % 16) return false;
        rows += (size_t)a->n_out[i];
    }
    return rows * (size_t)(a->slices * s->n) * sizeof(float) <= partial_bytes;
}

bool mm_plan_group(const struct mm_shape *s, size_t partial_bytes, struct mm_group *g, struct mm_args *a)
{
    memset(g, 0, sizeof *g);
    g->t = product_type_of(s->type[0]);
    if (!mm_plan_slices(g->t, s->n_in, a)) return false;
    for (int i = 0; i < s->n_w; i++) {
        a->n_out[i] = (int32_t)s->n_out[i];
        a->type[i] = s->type[i];
        a->unit_bytes[i] = product_type_of(s->type[i])->unit_bytes;
        g->mixed |= a->unit_bytes[i] != a->unit_bytes[0];
        if (mm_low(s->type[i]) > g->low) g->low = mm_low(s->type[i]);
        a->points = mm_points_with(a->points, s->type[i]);
        if (a->unit_bytes[i] > g->widest) g->widest = a->unit_bytes[i];
        if (i == 0 || !s->gated) g->panels += (int32_t)((s->n_out[i] + 15) / 16);
        a->panel_end[i] = g->panels;
    }
    const int32_t copy = copy_units(g->t->act);
    g->most_units = copy < a->slice_units ? copy : a->slice_units;
    /* Units of 32 columns go in pairs, which share a word of activations (mm_int.cuh) or a sum (mm_frag.cuh).
     */
    g->least_units = g->t->act == MM_ACT_K || g->most_units < 2 ? 1 : 2;
    g->leave = may_leave(s, a, g->t->act, partial_bytes);
    a->left = g->leave;
    a->count_w = s->n_w;
    a->gated = s->gated;
    a->normed = s->norm;
    return true;
}

/* ---- distributions ---- */

/* Is there room for all blocks of a group, one a slice, which wait for each other? `blocks` of them on a
 * multiprocessor. */
static bool may_wait(const struct cuda_device *dev, int32_t slices, int blocks)
{
    return slices <= dev->sm_count * blocks;
}

static void put_together(struct mm_args *a, bool together, int warps)
{
    a->block_slices = together ? a->slices : 1;
    a->slice_warps = !together || a->slices == 1 ? 1 : a->slices == 2 ? 2 : a->slices <= 4 ? 4 : 8;
    a->subs = warps / a->slice_warps;
    a->split = a->gated && a->subs > 1 && !mm_tuning.no_split;
    a->subs >>= a->split;
}

/* Shared memory of a block, in a->at; returns its bytes. */
static size_t lay_out(struct mm_args *a, int tiles, int warps)
{
    struct mm_memory *m = &a->at;
    const uint32_t row = (uint32_t)(a->block_slices * a->slice_row);
    const uint32_t pairs = tiles == 1 ? (uint32_t)(a->n + 1) / 2 : 4;
    m->row_bytes = (row + 63) / 128 * 128 + 64;
    m->act = (MM_BARS + (uint32_t)(warps * a->stages * a->stage_bytes) + 127) / 128 * 128;
    m->merge = m->act + (uint32_t)a->n * m->row_bytes;
    m->merge_bytes = a->block_slices == a->slices && (a->slices > 1 || a->gated)
                         ? (uint32_t)((a->gated ? 2 : 1) * a->subs * a->slices * tiles) * 128 * pairs
                         : 0;
    m->grid = m->merge + m->merge_bytes * (uint32_t)(m->merge_rounds * m->merge_sets);
    m->total = m->grid + mm_points_bytes(a->points);
    return m->total;
}

/* How a launch may be distributed, best first. Where the next launch's blocks have room beside, their rings
 * are filled when this one ends. Two blocks of 8 warps or one of 16 hide the latency of a unit; one of 16
 * holds the activations once. */
static const struct mm_plan plans[] = {
    {true, false, 2, 8, 2},   {true, false, 1, 16, 2}, {true, true, 1, 8, 3},   {true, false, 1, 8, 2},
    {false, false, 1, 16, 2}, {false, true, 1, 8, 2},  {false, false, 2, 8, 2}, {false, false, 1, 8, 2},
};
#define PLANS (int)(sizeof plans / sizeof plans[0])

/* Units of the copies that a plan is tried with, down from *most to *least; false: the plan is not for this
 * launch. K types have a choice. Measured, product by product (docs/speed/verify.md): 1 row          blocks
 * of 8 warps; copies of one unit where types of several sizes share a launch, which have no room for two
 * blocks else up to 8 rows   gate and up by blocks of 8 warps; others by 16 warps with copies of one unit up
 * to 16       16 warps with copies of one unit; apart, copies as they are (mm_few.cuh has taken most calls of
 * 2 to 16 rows by then.) Of the 32-blocks' kernels those of 16 warps, for more than 8 rows that are so long
 * that slices are apart. */
static bool suits(const struct mm_plan *p, enum mm_act act, const struct mm_args *a, bool mixed,
                  int32_t *most, int32_t *least)
{
    const bool wide = p->warps > MM_WARPS;
    *least = *most;
    if (act != MM_ACT_K) return !wide || (a->n > 8 && !p->together && mm_is_int8(act));
    if (a->n == 1) {
        if (p->blocks == 2 && mixed) *least = 1;
        return !wide;
    }
    if (a->n <= 8 && a->gated) return !wide;
    if (wide && p->together) *most = 1, *least = 1;
    if (a->n <= 8 && p->blocks == 1 && p->together) *least = 1;
    return true;
}

/* The sums that a block keeps between two barriers: as many rounds as there is room for. */
static void fill_rest(struct mm_args *a, int tiles, int warps, int32_t rounds, size_t most_bytes)
{
    int32_t best = 1;
    if (tiles > 1) { /* better, where there is room */
        a->at.merge_sets = 2;
        if (lay_out(a, tiles, warps) > most_bytes) a->at.merge_sets = 1;
    }
    for (int32_t r = 2; r <= rounds && r <= mm_tuning.rounds; r++) {
        a->at.merge_rounds = r;
        if (lay_out(a, tiles, warps) <= most_bytes) best = r;
    }
    a->at.merge_rounds = best;
    lay_out(a, tiles, warps);
}

/* Does the plan fit with copies of `most` units or fewer, down to `least_copy`? want: stages. Fills the rest
 * of a. */
static bool fits(const struct cuda_device *dev, const struct mm_plan *p, struct mm_args *a, int tiles,
                 int want, int32_t most, int32_t least_copy, int32_t widest, int32_t panels)
{
    const size_t part = ((size_t)dev->smem_sm - 6144) / (size_t)(p->blocks * (p->beside ? 2 : 1)),
                 most_bytes = (size_t)dev->smem_block < part - 1024 ? (size_t)dev->smem_block : part - 1024;
    const int limit = dev->generic || dev->cc < 90 || p->warps > MM_WARPS ? 4 : 8;
    put_together(a, p->together, p->warps);
    const int32_t rounds = (panels - 1) / (dev->sm_count * p->blocks * a->subs) + 1;
    for (int32_t copy = most; copy >= least_copy; copy /= 2) {
        const int full = want * (most / copy), stages = full < limit ? full : limit,
                  least = p->stages + (copy < most);
        a->stage_units = copy;
        a->stage_bytes = copy * widest;
        for (a->stages = stages; a->stages >= (stages < least ? stages : least); a->stages--) {
            a->at.merge_rounds = 1;
            a->at.merge_sets = tiles == 1 ? 2 : 1;
            if (lay_out(a, tiles, p->warps) > most_bytes) continue;
            fill_rest(a, tiles, p->warps, rounds, most_bytes);
            return true;
        }
    }
    return false;
}

/* ---- plans of mm_few.cuh ---- */

/* Shared memory of a block: barriers, rings, activations, side (mm_few_k.cuh, mm_few_32.cuh), the sums of
 * slices. */
static size_t few_lay_out(struct mm_args *a, enum mm_act act, int tiles, int busy)
{
    struct mm_memory *m = &a->at;
    const uint32_t units = (uint32_t)(a->block_slices * a->slice_units), n = (uint32_t)tiles,
                   side = act == MM_ACT_K   ? 288 * n * units
                          : mm_is_int8(act) ? (64 * n * (act == MM_ACT_32M ? 2 : 1) + 16) * (units / 2)
                                            : 0;
    m->row_bytes = ((uint32_t)(a->block_slices * a->slice_row) + 63) / 128 * 128 + 64;
    m->ring = FEW_RINGS - FEW_BARRIER;
    m->act = (m->ring + (uint32_t)(busy * a->stages * (a->stage_bytes + FEW_BARRIER)) + 127) / 128 * 128;
    m->side = (m->act + (uint32_t)a->n * m->row_bytes + 127) / 128 * 128;
    m->merge = (m->side + side + 127) / 128 * 128;
    m->grid = m->merge;
    if (a->block_slices == a->slices)
        m->grid += (uint32_t)(m->merge_sets * a->subs * a->slices * tiles * 512) << a->split;
    m->total = m->grid + mm_points_bytes(a->points);
    return m->total;
}

/* Copies of its rings: units of one, stages at most and at least; the first that fit. Measured
 * (docs/speed/verify.md): of many long rows of K types fewer bytes early are better. */
struct few_copies {
    int units, stages, least;
};
static int few_copies_of(enum mm_act act, int tiles, int32_t row_units, struct few_copies c[2])
{
    if (mm_tuning.few_copy || mm_tuning.few_stages) {
        const int units = mm_tuning.few_copy ? mm_tuning.few_copy : 4, stages = mm_tuning.few_stages;
        c[0] = (struct few_copies){act == MM_ACT_K ? 1 : units, stages ? stages : 2, 2};
        return 1;
    }
    if (act == MM_ACT_K) {
        c[0] = (struct few_copies){1, tiles == 2 && row_units > 16 ? 3 : 6, 2};
        return 1;
    }
    const int units = mm_is_int8(act) ? 8 : 4;
    c[0] = (struct few_copies){units, 2, 2};
    c[1] = (struct few_copies){units / 2, 3, 2};
    return 2;
}

/* How a ring is filled before the launch before is over. Measured (docs/speed/verify.md): K types copy by
 * copy, for all at once make the small kernel between two products wait; half of the warps at a time where
 * rows are many.
 */
static void few_early(enum mm_act act, int tiles, struct mm_args *a)
{
    a->pace = mm_tuning.few_pace ? mm_tuning.few_pace - 1
              : act != MM_ACT_K  ? FEW_AT_ONCE
              : tiles == 2       ? FEW_HALVES
                                 : FEW_PACED;
    a->ahead = mm_is_int8(act) ? 1 : a->stages;
}

/* Where nobody waits for sums, so that all blocks have as much to do: the last slice may be shorter. */
static void few_split(int32_t grid, int32_t panels, struct mm_args *a)
{
    const int32_t others = a->slices - 1, last = a->units - others * a->slice_units;
    int64_t best = INT64_MAX;
    if (grid < a->slices) grid = a->slices;
    a->groups = a->last_groups = grid / a->slices;
    for (int32_t g = 1; a->left && others && g * others < grid; g++) {
        const int32_t l = grid - g * others;
        const int64_t most = (int64_t)((panels + g - 1) / g) * a->slice_units,
                      short_one = (int64_t)((panels + l - 1) / l) * last,
                      cost = most > short_one ? most : short_one;
        if (cost < best) best = cost, a->groups = g, a->last_groups = l;
    }
    if (a->groups > panels) a->groups = panels;
    if (a->last_groups > panels) a->last_groups = panels;
}

/* Slices apart: the panels of the block that has most. */
static int32_t few_busiest(int32_t grid, int32_t panels, struct mm_args *a)
{
    few_split(grid, panels, a);
    const int32_t least = a->groups < a->last_groups ? a->groups : a->last_groups;
    return (panels + least - 1) / least;
}

/* The first of the copies that fit beside the rest, with sums in two places if there is room, and if there is
 * room for the small kernel's blocks too. Only warps with items have a ring, no longer than what the busiest
 * is to copy. */
#define FEW_BESIDE 6144
static bool few_fits(const struct cuda_device *dev, enum mm_act act, int tiles, int warps, int32_t widest,
                     int32_t panels, struct mm_args *a)
{
    const bool together = a->block_slices == a->slices;
    const int32_t grid = dev->sm_count,
                  items =
                      together ? (panels + grid - 1) / grid : few_busiest(grid, panels, a), /* of a block */
        some = (items < a->subs ? items : a->subs) * a->slice_warps << a->split,
                  busy = some < warps ? some : warps;
    struct few_copies copies[2];
    const int count = few_copies_of(act, tiles, a->units, copies);
    a->warps = warps;
    for (int i = 0; i < 2 * count; i++) {
        const struct few_copies *c = &copies[i % count];
        const size_t room = (size_t)dev->smem_block - (act == MM_ACT_K && i < count ? FEW_BESIDE : 0);
        a->stage_units = c->units < a->slice_units ? c->units : a->slice_units;
        a->stage_bytes = (a->stage_units * widest + FEW_BARRIER + 127) / 128 * 128 - FEW_BARRIER;
        const int32_t all = (a->slice_units + a->stage_units - 1) / a->stage_units *
                            ((items + a->subs - 1) / a->subs),
                      most = c->stages < all  ? c->stages
                             : all > c->least ? all
                                              : c->least;
        for (a->at.merge_sets = mm_tuning.few_sets ? 1 : 2; a->at.merge_sets > 0; a->at.merge_sets--)
            for (a->stages = most; a->stages >= c->least; a->stages--) {
                if (few_lay_out(a, act, tiles, busy) > room) continue;
                few_early(act, tiles, a);
                return true;
            }
    }
    return false;
}

/* Blocks of 8 warps, where each of these has a panel, none a second, and nobody adds sums with others: beside
 * a block of attention there are registers for one, so it stands, and its ring is full, when attention ends.
 * Measured: of more rows, and with 5 or 6 panels, those of 16 are as quick, or quicker. */
#define FEW_NARROW_ROWS 4
static bool few_is_narrow(const struct cuda_device *dev, enum mm_act act, int32_t n, int32_t panels,
                          struct mm_args *a)
{
    return act == MM_ACT_K && n <= FEW_NARROW_ROWS && a->left &&
           few_busiest(dev->sm_count, panels, a) == MM_WARPS;
}

/* A plan for mm_few.cuh, for 2 rows and more (32-blocks: for one as well); false: none fits, or others were
 * quicker. Slices are together where there is room, but for the eight of long rows of 8-bit kinds and those
 * of K types that the next norm adds, which were quicker apart for more than 8 rows, and where a
 * multiprocessor has one panel or two for fewer. A head has so many panels that sums which meet in memory
 * would cost more than warps do: blocks of 12 where those of 16 leave no room. */
#define FEW_PANELS 4096
static bool choose_few(const struct cuda_device *dev, enum mm_act act, int32_t n, int32_t panels,
                       int32_t widest, struct mm_args *a, int *log2_tiles, const struct mm_plan **plan)
{
    static const struct mm_plan few_plans[] = {
        {true, false, 1, MM_WARPS_MOST, 2}, {true, false, 1, 12, 2}, {false, false, 1, MM_WARPS_MOST, 2}};
    static const struct mm_plan narrow = {false, false, 1, MM_WARPS, 2};
    const int tiles = n > 8 ? 2 : 1, tuned = act == MM_ACT_32 || act == MM_ACT_32M ? 1 : 2,
              from = mm_tuning.few_from ? mm_tuning.few_from : tuned,
              sparse = panels >= dev->sm_count && panels <= 2 * dev->sm_count,
              added = a->left && !a->normed && (n > 8 || sparse) && act == MM_ACT_K,
              first = added || (mm_is_int8(act) && a->slices > mm_tuning.slices);
    if (mm_tuning.no_few || act == MM_ACT_F32 || dev->generic || dev->cc < 90 || n < from) return false;
    a->n = n < 8 * tiles ? n : 8 * tiles;
    for (int i = 0; i < 3; i++) {
        const struct mm_plan *p = &few_plans[first ? 2 - i : i];
        if (!p->together && few_is_narrow(dev, act, n, panels, a)) p = &narrow;
        if (p->warps < MM_WARPS_MOST && p->together &&
            (a->gated || first || (panels < FEW_PANELS && !mm_tuning.few_warps)))
            continue;
        if (i == 0 && mm_tuning.few_warps && !a->gated && !first) continue;
        if (mm_tuning.few_apart && p->together != (mm_tuning.few_apart == 2)) continue;
        if (!p->together && (a->slices == 1 || (!a->left && !may_wait(dev, a->slices, 1)))) continue;
        put_together(a, p->together, p->warps);
        if (a->block_slices > a->slice_warps || a->gated != a->split)
            continue; /* a warp has one slice, of one matrix */
        if (a->slice_warps * (a->subs << a->split) != p->warps) continue;
        a->log2_slice_warps = __builtin_ctz((unsigned)a->slice_warps);
        if (!few_fits(dev, act, tiles, p->warps, widest, panels, a)) continue;
        *log2_tiles = tiles - 1;
        *plan = p;
        return true;
    }
    return false;
}

/* ---- plans of mm_wide.cuh ---- */

bool mm_wide_format(const struct cuda_device *dev, enum mm_act act, int32_t n)
{
    return act == MM_ACT_K && n > 16 && n <= mm_tuning.wide_most && cuda_device_early(dev) &&
           !mm_tuning.no_wide && dev->smem_block >= 220 << 10;
}

/* Blocks of `groups` tiles: what the busiest has, units times tiles. share: slices, else whole tiles. */
static int64_t wide_cost(const struct cuda_device *dev, int groups, bool share, const struct mm_args *a)
{
    const int64_t blocks = (a->wide_tiles + groups - 1) / groups, grid = dev->sm_count;
    if (!share) return (blocks + grid - 1) / grid * a->units * groups;
    const int64_t items = blocks * a->slices, most = (items + grid - 1) / grid * a->slice_units;
    return (most < blocks * a->units ? most : blocks * a->units) * groups;
}

/* Where blocks share tiles, so many units and tiles more: another kernel adds the sums that are left; of
 * others the block that is there last. */
#define WIDE_LEAVE 3
#define WIDE_RING 3 /* stages; measured: all that fit are up to 10 % slower, at 17 rows most */
#define WIDE_MEET 12
void mm_plan_wide(const struct cuda_device *dev, const struct mm_group *g, int32_t n, size_t partial_bytes,
                  struct mm_args *a, struct mm_choice *c)
{
    static const struct {
        int rows, least, most; /* tiles of a block */
    } built[] = {{24, 2, 4}, {32, 2, 4}, {48, 2, 3}, {64, 2, 3}, {80, 2, 2}, {96, 2, 2}, {128, 2, 2}};
    const int rows = mm_wide_rows(n), grid = dev->sm_count;
    int64_t best = INT64_MAX;
    memset(c, 0, sizeof *c);
    c->form = MM_WIDE, c->wide_rows = rows, c->together = true, c->low = g->low;
    a->n = n;
    a->left = g->leave && a->slices > 1;
    a->wide_tiles = 0;
    for (int i = 0; i < (a->gated ? 1 : a->count_w); i++)
        a->wide_tiles += (a->n_out[i] + (a->gated ? 31 : 63)) / (a->gated ? 32 : 64);
    for (int i = 0; i < (int)(sizeof built / sizeof *built); i++)
        for (int groups = built[i].most; groups >= built[i].least; groups--)
            for (int share = 0; share < 2; share++) {
                const size_t room = (size_t)(grid * groups * a->slices * rows) * 64 * sizeof(float);
                if (built[i].rows != rows || (mm_tuning.wide_groups && mm_tuning.wide_groups != groups))
                    continue;
                const bool may = a->left || (a->slices > 1 && room <= partial_bytes);
                if (share && !may) continue;
                if (mm_tuning.wide_share && may && mm_tuning.wide_share != share + 1) continue;
                const int64_t cost = wide_cost(dev, groups, share, a) + (!share    ? 0
                                                                         : a->left ? WIDE_LEAVE
                                                                                   : WIDE_MEET);
                if (cost < best) best = cost, c->wide_groups = groups, a->wide_share = share;
            }
    a->left = a->left && a->wide_share;
    const int32_t items =
        (a->wide_tiles + c->wide_groups - 1) / c->wide_groups * (a->wide_share ? a->slices : 1);
    c->blocks = a->groups = items < grid ? items : grid;
    c->warps = 4 * c->wide_groups + 4;
    a->block_slices = a->slices;
    a->cluster = 1;
    /* barriers, flags; sums; stages */
    a->pitch = (uint32_t)g->widest;
    a->stage_bytes =
        (int32_t)(WIDE_ROWS(rows) + (4u * (uint32_t)c->wide_groups * a->pitch + 127) / 128 * 128);
    a->at.merge = 256;
    a->at.grid = a->at.merge + (uint32_t)(c->wide_groups * rows * WIDE_PITCH * 4);
    a->at.ring = (a->at.grid + mm_points_bytes(a->points) + 127) / 128 * 128;
    a->stages = (dev->smem_block - (int32_t)a->at.ring) / a->stage_bytes;
    const int most = mm_tuning.wide_stages ? mm_tuning.wide_stages : WIDE_RING;
    if (a->stages > most) a->stages = most;
    a->at.total = a->at.ring + (uint32_t)(a->stages * a->stage_bytes);
}

static int choose(const struct cuda_device *dev, enum mm_act act, int32_t n, int32_t panels, int32_t most,
                  int32_t widest, bool mixed, int low, struct mm_args *a, const struct mm_plan **plan)
{
    const bool bulk = !dev->generic && dev->cc >= 90;
    const int deepest = bulk ? 8 : 4, tuned = mm_tuning.stages < deepest ? mm_tuning.stages : deepest;
    const int widest_tiles = dev->cc < 90 ? 1 : dev->generic ? 0 : 2; /* what is compiled: mm_kernel.cuh */
    for (int log2_tiles = 2; log2_tiles >= 0; log2_tiles--) {
        const int tiles = 1 << log2_tiles;
        if ((log2_tiles && 4 * tiles >= n) || log2_tiles > widest_tiles) continue;
        a->n = n < 8 * tiles ? n : 8 * tiles;
        /* Measured: with more rows the arithmetic covers latencies, and a shorter ring leaves room for sums.
         */
        const int fewer = !mm_is_int8(act) || a->n == 1 ? tuned
                          : tiles > 1                   ? 2
                                                        : 3,
                  want = fewer < tuned ? fewer : tuned;
        for (int i = 0; i < PLANS; i++) {
            const struct mm_plan *p = &plans[i];
            if (!p->together && (a->slices == 1 || !may_wait(dev, a->slices, p->blocks))) continue;
            if ((mm_tuning.skip >> i & 1) && i + 1 < PLANS) continue;
            if (tiles == 4 && p->blocks > 1) continue; /* registers; blocks that wait must be resident */
            int32_t copy = most, least = most;
            if (!mm_has(act, log2_tiles, p->warps, !bulk, low)) continue;
            if (!mm_tuning.any && !suits(p, act, a, mixed, &copy, &least)) continue;
            *plan = p;
            if (fits(dev, p, a, tiles, want, copy, least, widest, panels)) return log2_tiles;
        }
    }
    return -1;
}

/* Blocks that are given their rows together: pairs, of K types always, of others for 4 rows and more.
 * Measured: else these start later by more than it saves, and fours leave multiprocessors without work.
 * Slices apart: none, for such blocks wait for others, which must be resident. */
static int few_cluster(enum mm_act act, const struct mm_args *a)
{
    const bool pairs = act == MM_ACT_K || a->n >= 4;
    const int most = a->block_slices < a->slices ? 1
                     : mm_tuning.few_cluster     ? mm_tuning.few_cluster
                     : pairs                     ? 2
                                                 : 1;
    return a->groups % most ? 1 : most;
}

/* Is it for mm_few_late.cuh? Where slices are not of one length and a warp has several: else it loses, for
 * instructions of another kernel have to come too (docs/speed/verify.md). */
static bool few_is_late(const struct mm_args *a, enum mm_act act, int log2_tiles, int low)
{
    return act == MM_ACT_K && !low && log2_tiles == 1 && a->gated && a->block_slices == a->slices &&
           a->subs == 2 && a->at.merge_sets == 2 && a->units < a->slices * a->slice_units &&
           a->n_items >= 4 * a->groups;
}

/* ---- launches ---- */

/* Where the kernels of few rows take every product of so long slices (choose_few: a slice of 16 rows beside
 * the rings of 16 warps). */
#define FEW_UNITS 24
bool mm_few_format(const struct cuda_device *dev, enum mm_act act, int32_t n, int32_t slice_units)
{
    return act == MM_ACT_K && n > 1 && n >= mm_tuning.few_from && n <= 16 && cuda_device_early(dev) &&
           !mm_tuning.no_few && slice_units <= FEW_UNITS && dev->smem_block >= 200 << 10;
}

bool mm_plan_few(const struct cuda_device *dev, const struct mm_group *g, int32_t n, struct mm_args *a,
                 struct mm_choice *c)
{
    memset(c, 0, sizeof *c);
    c->few = choose_few(dev, g->t->act, n, g->panels, g->widest, a, &c->log2_tiles, &c->plan);
    return c->few;
}

bool mm_plan_rows(const struct cuda_device *dev, const struct mm_group *g, int32_t n, struct mm_args *a,
                  struct mm_choice *c)
{
    const enum mm_act act = g->t->act;
    memset(c, 0, sizeof *c);
    c->log2_tiles = -1;
    c->low = g->low;
    c->few = n <= 16 && choose_few(dev, act, n, g->panels, g->widest, a, &c->log2_tiles, &c->plan);
    /* Smaller copies where these do not fit, then fewer rows. */
    for (int32_t rows = n; !c->few && c->log2_tiles < 0 && rows > 0; rows = (rows < 8 ? rows : 8) / 2)
        for (int32_t most = g->most_units; c->log2_tiles < 0 && most >= g->least_units; most /= 2) {
            c->log2_tiles = choose(dev, act, rows, g->panels, most, g->widest, g->mixed, g->low, a, &c->plan);
        }
    if (c->log2_tiles < 0) return false;
    c->form = c->few ? MM_FEW : cuda_device_early(dev) ? MM_BULK : MM_GENERIC;
    c->warps = c->few ? a->warps : c->plan->warps;
    return true;
}

/* All blocks are resident: apart, they wait for each other. */
static int32_t resident(const struct cuda_device *dev, const struct mm_choice *c)
{
    return dev->sm_count * c->plan->blocks;
}

int32_t mm_plan_panels(const struct cuda_device *dev, const struct mm_choice *c, int32_t panels,
                       size_t partial_bytes, struct mm_args *a)
{
    const bool together = a->block_slices == a->slices;
    a->left &= c->few && !together;
    if (a->left) {
        few_split(resident(dev, c), panels, a);
        return panels;
    }
    if (together) return panels;
    const size_t item = (size_t)(a->gated ? 2 : 1) * (size_t)a->slices * ((size_t)1 << c->log2_tiles) *
                        MM_RECORD * sizeof(float),
                 room = partial_bytes / item;
    return (size_t)panels > room ? (int32_t)room : panels;
}

void mm_plan_launch(const struct cuda_device *dev, struct mm_choice *c, int32_t first, int32_t most,
                    int32_t panels, struct mm_args *a)
{
    const enum mm_act act = product_type_of(a->type[0])->act;
    int32_t grid = resident(dev, c);
    c->together = a->block_slices == a->slices;
    if (!c->together && !a->left && grid < a->slices) grid = a->slices;
    a->first_item = first;
    a->n_items = panels - first < most ? panels - first : most;
    if (!a->left) a->groups = c->together ? grid : grid / a->slices;
    if (a->groups > a->n_items) a->groups = a->n_items;
    if (!c->together && a->groups > MM_GROUPS) a->groups = MM_GROUPS;
    c->blocks = c->together ? a->groups
                : a->left   ? a->groups * (a->slices - 1) + a->last_groups
                            : a->groups * a->slices;
    a->pitch = (uint32_t)a->stage_bytes + FEW_BARRIER, a->ring_bytes = (uint32_t)a->stages * a->pitch;
    a->cluster = c->few ? few_cluster(act, a) : 1;
    if (c->few) c->form = few_is_late(a, act, c->log2_tiles, c->low) ? MM_FEW_LATE : MM_FEW;
}
