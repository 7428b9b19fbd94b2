/* mm.cu - matrix products: types, plans, launches. The arithmetic is in mm_kernel.cuh, mm_int.cuh,
 * mm_frag.cuh. */
#include "chain.cuh"
#include "copy.cuh"
#include "many.cuh"
#include "mm_one.cuh"
#include "owe.cuh"

#include <stdlib.h>
#include <string.h>

#define MM_PARTIAL_BYTES ((size_t)48 << 20)
#define MM_ROWS_BYTES ((size_t)32 << 20) /* MM_PREP_ROWS rows of the longest kind */
#define MM_GROUPS 512                    /* groups of blocks, at most: multiprocessors, twice */
#define MM_COUNTERS ((MM_SLICES_MAX + 1) * MM_GROUPS)

struct mm_tuning mm_tuning = {4, 2, 8, 4, 4, 0, 0, 8, 8, 0, 0, 14336, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};

/* Columns and bytes of a unit are those of 16 rows of blocks; the same constants are in mm_int.cuh and
 * mm_frag.cuh. */
static const struct mm_type mm_types[] = {
    {KN_F32, 32, 2048, MM_ACT_F32},   {KN_F16, 32, 1024, MM_ACT_F16}, {KN_BF16, 32, 1024, MM_ACT_BF16},
    {KN_Q8_0, 32, 544, MM_ACT_32},    {KN_Q4_0, 32, 288, MM_ACT_32},  {KN_Q5_0, 32, 352, MM_ACT_32},
    {KN_Q4_1, 32, 320, MM_ACT_32M},   {KN_Q5_1, 32, 384, MM_ACT_32M}, {KN_Q4_K, 256, 2304, MM_ACT_K},
    {KN_Q5_K, 256, 2816, MM_ACT_K},   {KN_Q6_K, 256, 3360, MM_ACT_K}, {KN_IQ4_NL, 32, 288, MM_ACT_32},
    {KN_IQ4_XS, 256, 2176, MM_ACT_K}, {KN_Q3_K, 256, 1760, MM_ACT_K}, {KN_Q2_K, 256, 1344, MM_ACT_K},
};
#define MM_TYPES (int)(sizeof mm_types / sizeof mm_types[0])

const struct mm_type *mm_type_of(uint32_t type)
{
    for (int i = 0; i < MM_TYPES; i++)
        if (mm_types[i].type == type) return &mm_types[i];
    return nullptr;
}

static bool is_whole(enum mm_act act)
{
    return act == MM_ACT_K || act == MM_ACT_32 || act == MM_ACT_32M;
}

/* low: some matrix is of such a type (mm_is_low). */
static mm_kernel_fn kernel_of(enum mm_act act, int log2_tiles, int warps, bool generic, bool low)
{
    mm_kernel_fn f = low ? mm_kernel_low(act, log2_tiles, warps, generic) : mm_kernel_k(act, log2_tiles, warps, generic);
    if (!f) f = mm_kernel_32(act, log2_tiles, warps, generic);
    return f ? f : mm_kernel_float(act, log2_tiles, warps, generic);
}

/* ---- opening ---- */

int cuda_mm_open(struct cuda_backend *be)
{
    for (int act = MM_ACT_K; act <= MM_ACT_F32; act++)
        for (int l = 0; l < 20; l++) { /* tiles; generic or not, of low types or not; 16 warps */
            mm_kernel_fn f = kernel_of((enum mm_act)act, l % 4, l < 16 ? MM_WARPS : MM_WARPS_MOST, l < 16 && l / 4 % 2, l < 16 && l >= 8);
            if (!f) continue;
            const cudaError_t err =
                cudaFuncSetAttribute(f, cudaFuncAttributeMaxDynamicSharedMemorySize, be->smem_block);
            if (err) return cuda_check(be, "matrix product kernels", err);
        }
    for (int l = 0; l < 4 * MM_ACT_F32; l++) {
        mm_kernel_fn f = mm_kernel_few((enum mm_act)(l / 4), l % 2, l / 2 % 2);
        const cudaError_t err =
            f ? cudaFuncSetAttribute(f, cudaFuncAttributeMaxDynamicSharedMemorySize, be->smem_block) : cudaSuccess;
        if (err) return cuda_check(be, "matrix product kernels", err);
    }
    const cudaError_t late =
        cudaFuncSetAttribute(mm_kernel_few_late(), cudaFuncAttributeMaxDynamicSharedMemorySize, be->smem_block);
    if (late) return cuda_check(be, "matrix product kernels", late);
    if (mm_one_open(be)) return KN_EDEVICE;
    if (mm_owed_open(be)) return KN_EMEM;
    be->mm_partial_bytes = MM_PARTIAL_BYTES;
    be->mm_rows_bytes = MM_ROWS_BYTES;
    cudaError_t err = cudaMalloc(&be->mm_partial, be->mm_partial_bytes);
    if (!err) err = cudaMalloc(&be->mm_rows, be->mm_rows_bytes);
    if (!err) err = cudaMalloc(&be->mm_count, sizeof(unsigned) * 2 * MM_COUNTERS);
    if (!err) err = cudaMemsetAsync(be->mm_count, 0, sizeof(unsigned) * 2 * MM_COUNTERS, be->stream);
    if (!err && mm_beside(be)) {
        be->beside.count = be->mm_count + MM_COUNTERS;
        be->beside.partial_bytes = MM_PARTIAL_BYTES / 4;
        err = cudaMalloc(&be->beside.partial, be->beside.partial_bytes);
        if (!err) err = cudaMalloc(&be->beside.rows, MM_ROWS_BYTES / MM_PREP_ROWS * MM_BESIDE_ROWS);
    }
    const int rc = cuda_check(be, "memory for matrix products", err);
    return rc ? rc : chain_open(be);
}

void cuda_mm_close(struct cuda_backend *be)
{
    chain_close(be);
    cudaFree(be->mm_partial);
    cudaFree(be->beside.partial);
    cudaFree(be->beside.rows);
    cudaFree(be->mm_count);
    cudaFree(be->mm_rows);
    cudaFree(be->mm_raw);
    cudaFreeHost(be->mm_stage);
    free(be->owed);
    copy_close(be->crew);
    be->crew = nullptr;
    be->mm_partial = nullptr;
    be->mm_count = nullptr;
    be->mm_rows = nullptr;
    be->mm_raw = be->mm_stage = nullptr;
}

/* ---- plans ---- */

struct product {
    const char *name;
    const struct kn_weight *w[MM_WIDTH_MAX];
    float *out[MM_WIDTH_MAX];
    int32_t n_w, n;
    const float *x, *norm;
    float eps;
    bool add, gated;
    enum kn_act act;
};

/* Units of a copy. */
static int32_t copy_units(enum mm_act act)
{
    return act == MM_ACT_K ? mm_tuning.copy_k : is_whole(act) ? mm_tuning.copy_32 : mm_tuning.copy_float;
}

/* The slices of a panel: by the shape and the type alone, for they decide the bits. 8-bit kinds: four, two
 * panels a block at a time, eight where rows are so long that a slice of eight tokens would not fit in shared
 * memory. Float types: eight for every 4,096 columns. Of whole 256 columns: a short row has fewer. */
void mm_slices(const struct mm_type *t, int64_t n_in, int32_t *slice_units, int32_t *slices)
{
    const int64_t units = (n_in + t->unit_k - 1) / t->unit_k, blocks = (n_in + 255) / 256;
    int64_t most = n_in > mm_tuning.long_row ? 2 * mm_tuning.slices : mm_tuning.slices;
    if (!is_whole(t->act)) most = (n_in + 4095) / 4096 * mm_tuning.slices_float;
    *slice_units = (int32_t)((blocks + most - 1) / most * (256 / t->unit_k));
    *slices = (int32_t)((units + *slice_units - 1) / *slice_units);
}

static int cut_slices(struct cuda_backend *be, const struct mm_type *t, int64_t n_in, struct mm_args *a)
{
    const int64_t blocks = (n_in + 255) / 256;
    a->units = (int32_t)((n_in + t->unit_k - 1) / t->unit_k);
    mm_slices(t, n_in, &a->slice_units, &a->slices);
    a->slice_row = mm_slice_row(t->act, a->slice_units);
    if (a->slices > MM_SLICES_MAX || blocks > MM_ROW_BLOCKS ||
        (size_t)a->slices * (size_t)a->slice_row * MM_PREP_ROWS > MM_ROWS_BYTES)
        return cuda_fail(be, KN_ETYPE, "matrix product: rows of %lld values of %s are too long",
                         (long long)n_in, kn_type_info(t->type)->name);
    return 0;
}

/* Are n rows prepared as the kernels of few rows want those of K types, with `side` apart? Where these take every product
 * of so long slices (choose_few: a slice of 16 rows beside the rings of 16 warps). */
#define FEW_UNITS 24
static bool few_format(const struct cuda_backend *be, enum mm_act act, int32_t n, int32_t slice_units)
{
    return act == MM_ACT_K && n > 1 && n >= mm_tuning.few_from && n <= 16 && mm_beside(be) && !mm_tuning.no_few &&
           slice_units <= FEW_UNITS && be->smem_block >= 200 << 10;
}
/* The slices' rows, and where `side` is. */
static uint8_t *few_side_of(const struct cuda_backend *be, int32_t n, struct mm_args *a)
{
    a->slice_row = 256 * a->slice_units;
    return be->mm_rows + (size_t)n * (size_t)a->slices * (size_t)a->slice_row;
}

bool mm_preparing(struct cuda_backend *be, const struct kn_weight *w, int32_t n, struct mm_prep *a, enum mm_act *act)
{
    const struct mm_type *t = mm_type_of(w->type);
    struct mm_args m = {};
    if (!t || !is_whole(t->act) || mm_tuning.prologue || w->n_in % 256 || cut_slices(be, t, w->n_in, &m)) return false;
    *a = {};
    if (few_format(be, t->act, n, m.slice_units)) a->side = few_side_of(be, n, &m), a->tiles = n > 8 ? 2 : 1;
    a->rows = be->mm_rows, a->n_in = (int32_t)w->n_in, a->units = m.units, a->unit_k = t->unit_k;
    a->slice_units = m.slice_units, a->slices = m.slices, a->slice_row = m.slice_row;
    *act = t->act;
    return true;
}

void mm_prepared(struct cuda_backend *be, const float *x, const float *gate, int32_t n, const struct mm_prep *a,
                 enum mm_act act)
{
    be->ready.x = x, be->ready.gate = gate, be->ready.n = n, be->ready.act = act;
    be->ready.slice_units = a->slice_units, be->ready.slice_row = a->slice_row, be->ready.launch = be->launches;
}

bool mm_is_prepared(const struct cuda_backend *be, const float *x, const float *gate, int32_t n, const struct mm_prep *a,
                    enum mm_act act)
{
    return be->ready.x == x && be->ready.gate == gate && be->ready.n == n && be->ready.act == act &&
           be->ready.slice_units == a->slice_units && be->ready.slice_row == a->slice_row &&
           be->ready.launch == be->launches;
}

static int32_t product_sms(const struct cuda_backend *be)
{
    return be->product_sms ? be->product_sms : be->sm_count;
}

/* Is there room for all blocks of a group, one a slice, which wait for each other? `blocks` of them on a multiprocessor; beside other
 * products, which may have a group that is resident in part as well, one on every second. */
static bool may_wait(const struct cuda_backend *be, int32_t slices, int blocks)
{
    return be->product_sms ? 2 * slices <= be->sm_count : slices <= be->sm_count * blocks;
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
    m->squares = m->merge + m->merge_bytes * (uint32_t)(m->merge_rounds * m->merge_sets);
    m->total = m->squares + (a->x && a->norm ? (uint32_t)(a->n_in + 255) / 256 * 4 : 0);
    return m->total;
}

/* How a launch may be distributed, best first: slices together or apart, blocks a multiprocessor and warps of one,
 * whether the next launch's blocks have room beside (so that their rings are filled when this one ends), stages
 * at least. Two blocks of 8 warps or one of 16 hide the latency of a unit; one of 16 holds the activations once. */
static const struct plan {
    bool together, beside;
    int blocks, warps, stages;
} plans[] = {
    {true, false, 2, 8, 2},   {true, false, 1, 16, 2}, {true, true, 1, 8, 3},   {true, false, 1, 8, 2},
    {false, false, 1, 16, 2}, {false, true, 1, 8, 2},  {false, false, 2, 8, 2}, {false, false, 1, 8, 2},
};
#define PLANS (int)(sizeof plans / sizeof plans[0])

/* Units of the copies that a plan is tried with, down from *most to *least; false: the plan is not for this launch.
 * K types have a choice. Measured, product by product (SPEED.md):
 *   1 row          blocks of 8 warps; copies of one unit where types of several sizes share a launch, which have no
 *                  room for two blocks else
 *   up to 8 rows   gate and up by blocks of 8 warps; others by 16 warps with copies of one unit
 *   up to 16       16 warps with copies of one unit; apart, copies as they are
 * (mm_few.cuh has taken most calls of 2 to 16 rows by then.) Of the 32-blocks' kernels those of 16 warps, for more than 8
 * rows that are so long that slices are apart. */
static bool suits(const struct plan *p, enum mm_act act, const struct mm_args *a, bool mixed, int32_t *most, int32_t *least)
{
    const bool wide = p->warps > MM_WARPS;
    *least = *most;
    if (act != MM_ACT_K) return !wide || (a->n > 8 && !p->together && is_whole(act));
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

/* Does the plan fit with copies of `most` units or fewer, down to `least_copy`? want: stages. Fills the rest of a. */
static bool fits(struct cuda_backend *be, const struct plan *p, struct mm_args *a, int tiles, int want, int32_t most,
                 int32_t least_copy, int32_t widest, int32_t panels)
{
    const size_t part = ((size_t)be->smem_sm - 6144) / (size_t)(p->blocks * (p->beside ? 2 : 1)),
                 most_bytes = (size_t)be->smem_block < part - 1024 ? (size_t)be->smem_block : part - 1024;
    const int limit = be->generic || be->cc < 90 || p->warps > MM_WARPS ? 4 : 8;
    put_together(a, p->together, p->warps);
    const int32_t rounds = (panels - 1) / (product_sms(be) * p->blocks * a->subs) + 1;
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

/* Shared memory of a block: barriers, rings, activations, side (mm_few_k.cuh, mm_few_32.cuh), the sums of slices. */
static size_t few_lay_out(struct mm_args *a, enum mm_act act, int tiles, int busy)
{
    struct mm_memory *m = &a->at;
    const uint32_t units = (uint32_t)(a->block_slices * a->slice_units), n = (uint32_t)tiles,
                   side = act == MM_ACT_K  ? 288 * n * units
                          : is_whole(act) ? (64 * n * (act == MM_ACT_32M ? 2 : 1) + 16) * (units / 2)
                                          : 0;
    m->row_bytes = ((uint32_t)(a->block_slices * a->slice_row) + 63) / 128 * 128 + 64;
    m->ring = FEW_RINGS - FEW_BARRIER;
    m->act = (m->ring + (uint32_t)(busy * a->stages * (a->stage_bytes + FEW_BARRIER)) + 127) / 128 * 128;
    m->side = (m->act + (uint32_t)a->n * m->row_bytes + 127) / 128 * 128;
    m->merge = (m->side + side + 127) / 128 * 128;
    m->total = m->merge;
    if (a->block_slices == a->slices)
        m->total += (uint32_t)(m->merge_sets * a->subs * a->slices * tiles * 512) << a->split;
    return m->total;
}

/* Copies of its rings: units of one, stages at most and at least; the first that fit. Measured (SPEED.md): of many long rows of K types
 * fewer bytes early are better. */
struct few_copies {
    int units, stages, least;
};
static int few_copies_of(enum mm_act act, int tiles, int32_t row_units, struct few_copies c[2])
{
    if (mm_tuning.few_copy || mm_tuning.few_stages) {
        const int units = mm_tuning.few_copy ? mm_tuning.few_copy : 4, stages = mm_tuning.few_stages;
        c[0] = {act == MM_ACT_K ? 1 : units, stages ? stages : 2, 2};
        return 1;
    }
    if (act == MM_ACT_K) {
        c[0] = {1, tiles == 2 && row_units > 16 ? 3 : 6, 2};
        return 1;
    }
    const int units = is_whole(act) ? 8 : 4;
    c[0] = {units, 2, 2};
    c[1] = {units / 2, 3, 2};
    return 2;
}

/* How a ring is filled before the launch before is over. Measured (SPEED.md): K types copy by copy, for all at once make the
 * small kernel between two products wait; half of the warps at a time where rows are many. */
static void few_early(enum mm_act act, int tiles, struct mm_args *a)
{
    a->pace = mm_tuning.few_pace ? mm_tuning.few_pace - 1 : act != MM_ACT_K ? FEW_AT_ONCE : tiles == 2 ? FEW_HALVES : FEW_PACED;
    a->ahead = is_whole(act) ? 1 : a->stages;
}

/* Slices apart: the blocks of each, groups (all but the last), last_groups. Where nobody waits for them, so that all have as much to do:
 * the last slice may be shorter. */
static void few_split(int32_t grid, int32_t panels, struct mm_args *a)
{
    const int32_t others = a->slices - 1, last = a->units - others * a->slice_units;
    int64_t best = INT64_MAX;
    if (grid < a->slices) grid = a->slices;
    a->groups = a->last_groups = grid / a->slices;
    for (int32_t g = 1; a->left && others && g * others < grid; g++) {
        const int32_t l = grid - g * others;
        const int64_t most = (int64_t)((panels + g - 1) / g) * a->slice_units, short_one = (int64_t)((panels + l - 1) / l) * last,
                      cost = most > short_one ? most : short_one;
        if (cost < best) best = cost, a->groups = g, a->last_groups = l;
    }
    if (a->groups > panels) a->groups = panels;
    if (a->last_groups > panels) a->last_groups = panels;
}

/* The first of the copies that fit beside the rest, with sums in two places if there is room, and if there is room for the small
 * kernel's blocks too. Only warps with items have a ring, no longer than what the busiest is to copy. */
#define FEW_BESIDE 6144
static bool few_fits(const struct cuda_backend *be, enum mm_act act, int tiles, int warps, int32_t widest, int32_t panels,
                     struct mm_args *a)
{
    const bool together = a->block_slices == a->slices;
    const int32_t grid = product_sms(be);
    few_split(grid, panels, a);
    const int32_t least = a->groups < a->last_groups ? a->groups : a->last_groups, groups = together ? grid : least,
                  items = (panels + groups - 1) / groups, /* of a block */
                  some = (items < a->subs ? items : a->subs) * a->slice_warps << a->split, busy = some < warps ? some : warps;
    struct few_copies copies[2];
    const int count = few_copies_of(act, tiles, a->units, copies);
    a->warps = warps;
    for (int i = 0; i < 2 * count; i++) {
        const struct few_copies *c = &copies[i % count];
        const size_t room = (size_t)be->smem_block - (act == MM_ACT_K && i < count ? FEW_BESIDE : 0);
        a->stage_units = c->units < a->slice_units ? c->units : a->slice_units;
        a->stage_bytes = (a->stage_units * widest + FEW_BARRIER + 127) / 128 * 128 - FEW_BARRIER;
        const int32_t all = (a->slice_units + a->stage_units - 1) / a->stage_units * ((items + a->subs - 1) / a->subs),
                      most = c->stages < all ? c->stages : all > c->least ? all : c->least;
        for (a->at.merge_sets = mm_tuning.few_sets ? 1 : 2; a->at.merge_sets > 0; a->at.merge_sets--)
            for (a->stages = most; a->stages >= c->least; a->stages--) {
                if (few_lay_out(a, act, tiles, busy) > room) continue;
                few_early(act, tiles, a);
                return true;
            }
    }
    return false;
}

/* A plan for mm_few.cuh, for 2 rows and more (32-blocks: for one as well); false: none fits, or others were quicker. Slices are
 * together where there is room, but for the eight of long rows of 8-bit kinds and those of K types that the next norm adds, which were
 * quicker apart for more than 8 rows, and where a multiprocessor has one panel or two for fewer. A head has so many panels that sums
 * which meet in memory would cost more than warps do: blocks of 12 where those of 16 leave no room. */
#define FEW_PANELS 4096
static bool choose_few(const struct cuda_backend *be, enum mm_act act, int32_t n, int32_t panels, int32_t widest, bool heads,
                       struct mm_args *a, int *log2_tiles, const struct plan **plan)
{
    static const struct plan few_plans[] = {
        {true, false, 1, MM_WARPS_MOST, 2}, {true, false, 1, 12, 2}, {false, false, 1, MM_WARPS_MOST, 2}};
    const int tiles = n > 8 ? 2 : 1, tuned = act == MM_ACT_32 || act == MM_ACT_32M ? 1 : 2,
              from = mm_tuning.few_from ? mm_tuning.few_from : tuned,
              sparse = panels >= be->sm_count && panels <= 2 * be->sm_count,
              added = a->left && (heads || (!a->norm && (n > 8 || sparse))) && act == MM_ACT_K,
              first = added || (is_whole(act) && a->slices > mm_tuning.slices);
    if (mm_tuning.no_few || act == MM_ACT_F32 || be->generic || be->cc < 90 || n < from) return false;
    a->n = n < 8 * tiles ? n : 8 * tiles;
    a->x = nullptr;
    for (int i = 0; i < 3; i++) {
        const struct plan *p = &few_plans[first ? 2 - i : i];
        if (p->warps < MM_WARPS_MOST && (a->gated || first || (panels < FEW_PANELS && !mm_tuning.few_warps))) continue;
        if (i == 0 && mm_tuning.few_warps && !a->gated && !first) continue;
        if (mm_tuning.few_apart && p->together != (mm_tuning.few_apart == 2)) continue;
        if (!p->together && (a->slices == 1 || (!a->left && !may_wait(be, a->slices, 1)))) continue;
        put_together(a, p->together, p->warps);
        if (a->block_slices > a->slice_warps || a->gated != a->split) continue; /* a warp has one slice, of one matrix */
        if (a->slice_warps * (a->subs << a->split) != p->warps) continue;
        a->log2_slice_warps = __builtin_ctz((unsigned)a->slice_warps);
        if (!few_fits(be, act, tiles, p->warps, widest, panels, a)) continue;
        *log2_tiles = tiles - 1;
        *plan = p;
        return true;
    }
    return false;
}

/* How many rows a launch takes and which plan: the first that fits, then with fewer rows. None of these
 * choices changes a bit. most: units of a copy. mixed: matrices of types of several sizes;
 * low: some of a low type. Fills a->n, stages, stage_units, block_slices, slice_warps, at and
 * *plan; returns log2 of the tiles, or -1. */
static int choose(struct cuda_backend *be, enum mm_act act, int32_t n, int32_t panels, int32_t most, int32_t widest,
                  bool mixed, bool low, struct mm_args *a, const struct plan **plan)
{
    const bool bulk = !be->generic && be->cc >= 90;
    const int deepest = bulk ? 8 : 4, tuned = mm_tuning.stages < deepest ? mm_tuning.stages : deepest;
    const int widest_tiles = be->cc < 90 ? 1 : be->generic ? 0 : 2; /* what is compiled: mm_kernel.cuh */
    const float *x = a->x;
    for (int log2_tiles = 2; log2_tiles >= 0; log2_tiles--) {
        const int tiles = 1 << log2_tiles;
        if ((log2_tiles && 4 * tiles >= n) || log2_tiles > widest_tiles) continue;
        a->n = n < 8 * tiles ? n : 8 * tiles;
        /* Measured: with more rows the arithmetic covers latencies, and a shorter ring leaves room for sums.
         */
        const int fewer = !is_whole(act) || a->n == 1 ? tuned
                          : tiles > 1                 ? 2
                                                      : 3,
                  want = fewer < tuned ? fewer : tuned;
        for (int i = 0; i < PLANS; i++) {
            const struct plan *p = &plans[i];
            if (!p->together && (a->slices == 1 || !may_wait(be, a->slices, p->blocks))) continue;
            if ((mm_tuning.skip >> i & 1) && i + 1 < PLANS) continue;
            if (tiles == 4 && p->blocks > 1) continue; /* registers; blocks that wait must be resident */
            int32_t copy = most, least = most;
            if (!kernel_of(act, log2_tiles, p->warps, !bulk, low)) continue;
            if (!mm_tuning.any && !suits(p, act, a, mixed, &copy, &least)) continue;
            a->x = p->together && n <= mm_tuning.prologue && is_whole(act) ? x : nullptr;
            *plan = p;
            if (fits(be, p, a, tiles, want, copy, least, widest, panels)) return log2_tiles;
        }
    }
    return -1;
}

/* Blocks that are given their rows together: pairs, of K types always, of others for 4 rows and more. Measured: else these
 * start later by more than it saves, and fours leave multiprocessors without work. Slices apart: none, for such blocks wait for others, which must
 * be resident. Beside others: none, for what those leave are not pairs of neighbours, and some would wait for their end. */
static int few_cluster(const struct cuda_backend *be, enum mm_act act, const struct mm_args *a)
{
    const bool pairs = act == MM_ACT_K || a->n >= 4;
    const int most = a->block_slices < a->slices || be->product_sms ? 1
                     : mm_tuning.few_cluster                         ? mm_tuning.few_cluster
                     : pairs                                         ? 2
                                                                     : 1;
    return a->groups % most ? 1 : most;
}

/* Is it for mm_few_late.cuh? Where slices are not of one length and a warp has several: else it loses, for instructions of another
 * kernel have to come too (SPEED.md). */
static bool few_is_late(const struct mm_args *a, enum mm_act act, int log2_tiles, bool low)
{
    return act == MM_ACT_K && !low && log2_tiles == 1 && a->gated && a->block_slices == a->slices && a->subs == 2 &&
           a->at.merge_sets == 2 && a->units < a->slices * a->slice_units && a->n_items >= 4 * a->groups;
}

/* Launch over all panels: as many at a time as the partial sums have room for. */
static int launch_panels(struct cuda_backend *be, const char *name, enum mm_act act, struct mm_args *a,
                         int log2_tiles, const struct plan *plan, bool low, bool few, int32_t panels)
{
    const bool together = a->block_slices == a->slices;
    const mm_kernel_fn usual = few ? mm_kernel_few(act, log2_tiles, low)
                                   : kernel_of(act, log2_tiles, plan->warps, be->generic || be->cc < 90, low);
    /* All resident: apart, blocks wait for each other. Beside other products that is so as well, or nearly: those of a
     * group are neighbours, so of each launch one group at most is resident in part, and all others end (may_wait). */
    int32_t grid = product_sms(be) * plan->blocks;
    int32_t most = panels;
    a->left &= few && !together;
    if (a->left) {
        few_split(grid, panels, a);
    } else if (!together) {
        if (grid < a->slices) grid = a->slices;
        const size_t item = (size_t)(a->gated ? 2 : 1) * (size_t)a->slices * ((size_t)1 << log2_tiles) *
                            MM_RECORD * sizeof(float);
        const size_t room = be->mm_partial_bytes / item;
        if ((size_t)most > room) most = (int32_t)room;
        a->count = be->mm_count + (size_t)a->slices * MM_GROUPS;
    }
    for (int32_t first = 0; first < panels; first += most) {
        a->first_item = first;
        a->n_items = panels - first < most ? panels - first : most;
        if (!a->left) a->groups = together ? grid : grid / a->slices;
        if (a->groups > a->n_items) a->groups = a->n_items;
        if (!together && a->groups > MM_GROUPS) a->groups = MM_GROUPS;
#ifdef MM_TRACE
        a->trace = mm_trace_next(name);
#endif
        const mm_kernel_fn f = few && few_is_late(a, act, log2_tiles, low) ? mm_kernel_few_late() : usual;
        const int32_t n_blocks = together  ? a->groups
                                 : a->left ? a->groups * (a->slices - 1) + a->last_groups
                                           : a->groups * a->slices;
        a->pitch = (uint32_t)a->stage_bytes + FEW_BARRIER, a->ring_bytes = (uint32_t)a->stages * a->pitch;
        a->cluster = few ? few_cluster(be, act, a) : 1;
        const unsigned threads = (unsigned)(32 * (few ? a->warps : plan->warps));
        const int err = cuda_check(be, name,
                                   a->cluster > 1 ? cuda_launch_clusters(be, f, dim3((unsigned)n_blocks), dim3(threads), a->at.total,
                                                                           (unsigned)a->cluster, *a)
                                                  : cuda_launch(be, f, dim3((unsigned)n_blocks), dim3(threads), a->at.total, *a));
        if (err) return err;
    }
    be->late = be->beside.joins; /* small blocks that came early would take the places of what runs beside */
    return 0;
}

int mm_norm_add(struct cuda_backend *be, const struct mm_add *add, int32_t n, int64_t width, bool *done)
{
    const struct kn_weight *w = be->head.next_w;
    const float *norm = be->head.next_norm;
    const struct mm_type *t = w ? mm_type_of(w->type) : nullptr;
    struct mm_args a = {};
    *done = t && norm && add->weight && is_whole(t->act) && w->n_in == width && width % 8 == 0 &&
            width <= MM_ADD_WIDTH && n <= MM_PREP_ROWS && ((uintptr_t)norm & 15) == 0;
    if (!*done) return 0;
    const int rc = cut_slices(be, t, width, &a);
    if (rc) return rc;
    uint8_t *const side = few_format(be, t->act, n, a.slice_units) ? few_side_of(be, n, &a) : nullptr;
    const struct mm_prep prep = {add->out, norm,      be->mm_rows,   add->eps, (int32_t)width, a.units,
                                 t->unit_k, a.slice_units, a.slices, a.slice_row, side, n > 8 ? 2 : 1};
    const int err = cuda_check(be, "norm_add", mm_add_prepare(be, t->act, add, &prep, n));
    be->rounded = {be->launches, add->out, norm, add->eps, n, t->act, (int32_t)width, a.slice_row};
    return err;
}
/* Has norm_add just left the product's rows in mm_rows? */
static bool is_rounded(const struct cuda_backend *be, const struct product *p, enum mm_act act, int32_t slice_row)
{
    return be->rounded.x && be->rounded.launches == be->launches && be->rounded.x == p->x && be->rounded.norm == p->norm &&
           be->rounded.eps == p->eps && be->rounded.n == p->n && be->rounded.act == act && be->rounded.slice_row == slice_row &&
           be->rounded.n_in == p->w[0]->n_in;
}

/* May the product's slices' sums be left in memory, if they are apart (mm_owed)? Of several rows: one row's results are handed on
 * in other ways (chain.cuh, experts_hand.cuh). */
static bool may_leave(const struct cuda_backend *be, const struct product *p, const struct mm_args *a, enum mm_act act, int count)
{
    if (mm_tuning.no_left || p->gated || p->n < 2 || p->n > 16 || !is_whole(act)) return false;
    size_t rows = 0;
    for (int i = 0; i < count; i++) {
        if (a->n_out[i] % 16 || (uintptr_t)p->out[i] % 16) return false;
        rows += (size_t)a->n_out[i];
    }
    return rows * (size_t)(a->slices * p->n) * sizeof(float) <= be->mm_partial_bytes;
}

/* The matrices that a launch reads, which want the same activations. */
struct group {
    const struct mm_type *t;
    const int *list; /* [count], of the product's */
    int count;
    int32_t panels, widest;          /* of all; bytes of the largest unit */
    bool mixed, low, leave;          /* units of several sizes; a low type; the slices' sums may be left */
    bool heads;                      /* their sums are wanted by attention or a delta net (owe.cuh) */
    int32_t most_units, least_units; /* of a copy */
};

static int make_group(struct cuda_backend *be, const struct product *p, struct group *g, struct mm_args *a)
{
    const struct kn_weight *w0 = p->w[g->list[0]];
    g->t = mm_type_of(w0->type);
    const int err = cut_slices(be, g->t, w0->n_in, a);
    if (err) return err;
    for (int i = 0; i < g->count; i++) {
        const struct kn_weight *w = p->w[g->list[i]];
        a->w[i] = (const uint8_t *)w->packed;
        a->n_out[i] = (int32_t)w->n_out;
        a->type[i] = w->type;
        a->unit_bytes[i] = mm_type_of(w->type)->unit_bytes;
        g->mixed |= a->unit_bytes[i] != a->unit_bytes[0];
        g->low |= mm_is_low(w->type);
        if (a->unit_bytes[i] > g->widest) g->widest = a->unit_bytes[i];
        if (i == 0 || !p->gated) g->panels += (int32_t)((w->n_out + 15) / 16);
        a->panel_end[i] = g->panels;
    }
    const int32_t copy = copy_units(g->t->act);
    g->most_units = copy < a->slice_units ? copy : a->slice_units;
    /* Units of 32 columns go in pairs, which share a word of activations (mm_int.cuh) or a sum (mm_frag.cuh). */
    g->least_units = g->t->act == MM_ACT_K || g->most_units < 2 ? 1 : 2;
    a->left = g->leave = may_leave(be, p, a, g->t->act, g->count);
    g->heads = p->norm && g->count == p->n_w && mm_wanted_owed(be, p->out[g->list[0]], p->n, w0->n_out);
    a->partial = be->mm_partial;
    a->add = p->add;
    a->gated = p->gated;
    a->act = p->act;
    a->norm = p->norm;
    a->eps = p->eps;
    a->n_in = (int32_t)w0->n_in;
    return 0;
}

/* Are the rows at x prepared already? */
static int find_rows(struct cuda_backend *be, const struct product *p, const struct group *g, const struct mm_args *a, const float *x,
                     const struct mm_prep *prep, bool *prepared)
{
    const enum mm_act act = g->t->act;
    *prepared = is_rounded(be, p, act, a->slice_row);
    *prepared |= !p->norm && mm_is_prepared(be, x, nullptr, p->n, prep, act);
    if (!*prepared && !p->norm && be->ready.x == x && be->ready.launch == be->launches && be->ready.n == p->n && be->ready.act == act &&
        be->ready.slice_row != a->slice_row)
        return cuda_fail(be, KN_EINVAL, "%s: %d rows prepared for another kernel", p->name, p->n);
    return 0;
}

/* `rows` rows from `row` on, as many at a time as a launch takes. */
static int launch_rows(struct cuda_backend *be, const struct product *p, const struct group *g, struct mm_args *a, int32_t row, int32_t rows,
                       const struct mm_prep *prep, bool prepared)
{
    const enum mm_act act = g->t->act;
    int err = 0;
    for (int32_t i = 0; i < rows && !err; i += a->n) {
        const struct plan *plan = nullptr;
        int log2_tiles = -1; /* smaller copies where these do not fit, */
        const bool few = rows - i <= 16 && choose_few(be, act, rows - i, g->panels, g->widest, g->heads, a, &log2_tiles, &plan);
        for (int32_t n = rows - i; !few && log2_tiles < 0 && n > 0; n = (n < 8 ? n : 8) / 2) /* then fewer rows */
            for (int32_t most = g->most_units; log2_tiles < 0 && most >= g->least_units; most /= 2) {
                a->x = p->n <= mm_tuning.prologue ? prep->x : nullptr;
                log2_tiles = choose(be, act, n, g->panels, most, g->widest, g->mixed, g->low, a, &plan);
            }
        if (log2_tiles < 0)
            return cuda_fail(be, KN_ETYPE, "%s: %d bytes of shared memory a block are too few for rows of %lld values of %s on %d multiprocessors",
                             p->name, be->smem_block, (long long)a->n_in, kn_type_info(g->t->type)->name, be->sm_count);
        if (!a->x && !prepared) err = cuda_check(be, p->name, mm_prepare(be, act, prep, rows, few));
        prepared = true;
        a->rows = be->mm_rows + (size_t)i * (size_t)a->slices * (size_t)a->slice_row;
        for (int j = 0; j < g->count; j++) a->out[j] = p->out[g->list[j]] + (int64_t)(row + i) * p->w[g->list[j]]->n_out;
        a->left = g->leave;
        if (!err) err = launch_panels(be, p->name, act, a, log2_tiles, plan, g->low, few, g->panels);
        if (!err && a->left) mm_owe(be, a, g->count);
    }
    return err;
}

static int launch_group(struct cuda_backend *be, const struct product *p, const int *list, int count)
{
    const struct kn_weight *w0 = p->w[list[0]];
    struct mm_args a = {};
    struct group g = {};
    g.list = list, g.count = count;
    int err = make_group(be, p, &g, &a);
    for (int32_t row = 0; row < p->n && !err; row += MM_PREP_ROWS) {
        const int32_t rows = p->n - row < MM_PREP_ROWS ? p->n - row : MM_PREP_ROWS;
        const float *x = p->x + (int64_t)row * w0->n_in;
        if (few_format(be, g.t->act, p->n, a.slice_units)) {
            const struct plan *plan;
            int log2_tiles;
            a.side = few_side_of(be, p->n, &a);
            if (!choose_few(be, g.t->act, p->n, g.panels, g.widest, g.heads, &a, &log2_tiles, &plan)) /* tuned so */
                a.side = nullptr, a.slice_row = mm_slice_row(g.t->act, a.slice_units);
        }
        const struct mm_prep prep = {x, p->norm, be->mm_rows, p->eps, a.n_in, a.units, g.t->unit_k, a.slice_units, a.slices,
                                     a.slice_row, (uint8_t *)a.side, p->n > 8 ? 2 : 1};
        bool prepared;
        int rc = 0;
        if ((err = find_rows(be, p, &g, &a, x, &prep, &prepared))) break;
        if (p->n == 1 && count == 1 && !p->gated && !p->add && mm_one(be, p->name, w0, p->out[list[0]], &prep, prepared, &rc)) return rc;
        err = launch_rows(be, p, &g, &a, row, rows, &prep, prepared);
    }
    return err;
}

static int check(struct cuda_backend *be, const struct product *p)
{
    if (p->n < 1 || p->n_w < 1 || p->n_w > MM_WIDTH_MAX || !p->x)
        return cuda_fail(be, KN_EINVAL, "%s: %d rows with %d matrices (expected 1 or more with 1 to %d)",
                         p->name, p->n, p->n_w, MM_WIDTH_MAX);
    for (int j = 0; j < p->n_w; j++) {
        if (!p->w[j]->packed || !mm_type_of(p->w[j]->type))
            return cuda_fail(be, KN_EINVAL, "%s: a weight not loaded for products", p->name);
        if (p->w[j]->n_in != p->w[0]->n_in || (p->gated && (p->w[j]->n_out != p->w[0]->n_out)))
            return cuda_fail(be, KN_EINVAL, "%s: unequal shapes [%lld, %lld] and [%lld, %lld]", p->name,
                             (long long)p->w[0]->n_out, (long long)p->w[0]->n_in, (long long)p->w[j]->n_out,
                             (long long)p->w[j]->n_in);
    }
    if (p->gated && p->w[0]->type != p->w[1]->type)
        return cuda_fail(be, KN_ETYPE, "%s: gate of type %s and up of type %s (expected the same)", p->name,
                         kn_type_info(p->w[0]->type)->name, kn_type_info(p->w[1]->type)->name);
    return 0;
}

static int run_rows(struct cuda_backend *be, const struct product *p)
{
    int err = 0;
    bool done[MM_WIDTH_MAX] = {};
    for (int j = 0; j < p->n_w && !err; j++) {
        int list[MM_WIDTH_MAX], count = 0;
        if (done[j]) continue;
        for (int i = j; i < p->n_w; i++)
            if (!done[i] && mm_type_of(p->w[i]->type)->act == mm_type_of(p->w[j]->type)->act) {
                done[i] = true;
                list[count++] = i;
            }
        err = launch_group(be, p, list, count);
    }
    return err;
}

static int add_to_chain(struct cuda_backend *be, const struct product *p)
{
    struct chain_product c = {p->name, {}, {}, p->n_w, p->x, p->norm, p->eps, p->add, p->gated, p->act,
                              nullptr};
    for (int32_t j = 0; j < p->n_w; j++) c.w[j] = p->w[j], c.out[j] = p->out[j];
    const int with = experts_then(be, &c);
    return with ? with : chain_add(be, &c);
}
int chain_alone(struct cuda_backend *be, const struct chain_product *c)
{
    struct product p = {c->name, {}, {}, c->n_w, 1, c->x, c->norm, c->eps, c->add, c->gated, c->act};
    for (int32_t j = 0; j < c->n_w; j++) p.w[j] = c->w[j], p.out[j] = c->out[j];
    const int rc = c->gate ? chain_gate_alone(be, c) : 0;
    return rc ? rc : run_rows(be, &p);
}

/* MANY_ROWS rows at a time (many_tuning.rows): through the library where that is wanted, else the row
 * kernels. */
static int run(struct kn_backend *kb, const struct product *p)
{
    struct cuda_backend *be = cuda_of(kb);
    int err = check(be, p);
    if (err) return err;
    if (p->n == 1 && p->n_w <= CHAIN_MATRICES) {
        const int rc = add_to_chain(be, p);
        if (rc) return rc < 0 ? rc : 0;
    }
    err = p->norm && mm_is_owed(be, p->x, p->n, p->w[0]->n_in) ? 0 : cuda_flush(be);
    if (err || !many_wanted(be, p->n)) return err ? err : run_rows(be, p);
    for (int32_t row = 0; row < p->n && !err; row += many_tuning.rows) {
        struct product part = *p;
        part.n = p->n - row < many_tuning.rows ? p->n - row : many_tuning.rows;
        part.x += (int64_t)row * p->w[0]->n_in;
        for (int j = 0; j < p->n_w; j++) part.out[j] += (int64_t)row * p->w[j]->n_out;
        const struct many_product q = {part.name, part.w,   part.out, part.n_w,   part.n,  part.x,
                                       part.norm, part.eps, part.add, part.gated, part.act};
        err = many_wanted(be, part.n) ? many_run(be, &q) : run_rows(be, &part);
    }
    return err;
}

int cuda_linear(struct kn_backend *kb, float *out, const struct kn_weight *w, const float *x, int32_t n,
                bool add)
{
    struct product p = {};
    p.name = "linear";
    p.w[0] = w;
    p.out[0] = out;
    p.n_w = 1;
    p.n = n;
    p.x = x;
    p.add = add;
    return run(kb, &p);
}

int cuda_norm_linear(struct kn_backend *kb, float *const *out, const struct kn_weight *const *w, int32_t n_w,
                     const float *x, const float *norm, float eps, int32_t n)
{
    struct product p = {};
    p.name = "norm_linear";
    p.n_w = n_w;
    p.n = n;
    p.x = x;
    p.norm = norm;
    p.eps = eps;
    for (int32_t j = 0; j < n_w && j < MM_WIDTH_MAX; j++) {
        p.w[j] = w[j];
        p.out[j] = out[j];
    }
    return run(kb, &p);
}

int cuda_norm_gated(struct kn_backend *kb, float *out, const struct kn_weight *gate,
                    const struct kn_weight *up, const float *x, const float *norm, float eps, enum kn_act act,
                    int32_t n)
{
    struct product p = {};
    p.name = "norm_gated";
    p.w[0] = gate;
    p.w[1] = up;
    p.out[0] = p.out[1] = out;
    p.n_w = 2;
    p.n = n;
    p.x = x;
    p.norm = norm;
    p.eps = eps;
    p.gated = true;
    p.act = act;
    return run(kb, &p);
}
