/* mm.cu - matrix products: types, launches. The plans are in mm_plan.cu, the arithmetic in mm_kernel.cuh,
 * mm_int.cuh, mm_frag.cuh. */
#include "../chain/chain.cuh"
#include "../core/copy.cuh"
#include "../prompt/many.cuh"
#include "mm_plan.cuh"

#include <stdlib.h>
#include <string.h>

#define MM_PARTIAL_BYTES ((size_t)48 << 20)
#define MM_ROWS_BYTES ((size_t)32 << 20) /* MM_PREP_ROWS rows of the longest kind */
#define MM_GROUPS 512                    /* groups of blocks, at most: multiprocessors, twice */
#define MM_COUNTERS ((MM_SLICES_MAX + 1) * MM_GROUPS)

struct mm_tuning mm_tuning;

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

mm_kernel_fn mm_kernel_of(enum mm_act act, int log2_tiles, int warps, bool generic, bool low)
{
    mm_kernel_fn f =
        low ? mm_kernel_low(act, log2_tiles, warps, generic) : mm_kernel_k(act, log2_tiles, warps, generic);
    if (!f) f = mm_kernel_32(act, log2_tiles, warps, generic);
    return f ? f : mm_kernel_float(act, log2_tiles, warps, generic);
}

/* ---- opening ---- */

int cuda_mm_open(struct cuda_backend *be)
{
    for (int act = MM_ACT_K; act <= MM_ACT_F32; act++)
        for (int l = 0; l < 20; l++) { /* tiles; generic or not, of low types or not; 16 warps */
            mm_kernel_fn f = mm_kernel_of((enum mm_act)act, l % 4, l < 16 ? MM_WARPS : MM_WARPS_MOST,
                                          l < 16 && l / 4 % 2, l < 16 && l >= 8);
            if (!f) continue;
            const cudaError_t err =
                cudaFuncSetAttribute(f, cudaFuncAttributeMaxDynamicSharedMemorySize, be->smem_block);
            if (err) return cuda_check(be, "matrix product kernels", err);
        }
    for (int l = 0; l < 4 * MM_ACT_F32; l++) {
        mm_kernel_fn f = mm_kernel_few((enum mm_act)(l / 4), l % 2, l / 2 % 2);
        const cudaError_t err =
            f ? cudaFuncSetAttribute(f, cudaFuncAttributeMaxDynamicSharedMemorySize, be->smem_block)
              : cudaSuccess;
        if (err) return cuda_check(be, "matrix product kernels", err);
    }
    const cudaError_t late = cudaFuncSetAttribute(
        mm_kernel_few_late(), cudaFuncAttributeMaxDynamicSharedMemorySize, be->smem_block);
    if (late) return cuda_check(be, "matrix product kernels", late);
    if (mm_owed_open(be)) return KN_EMEM;
    be->mm_partial_bytes = MM_PARTIAL_BYTES;
    be->mm_rows_bytes = MM_ROWS_BYTES;
    cudaError_t err = cudaMalloc(&be->mm_partial, be->mm_partial_bytes);
    if (!err) err = cudaMalloc(&be->mm_rows, be->mm_rows_bytes);
    if (!err) err = cudaMalloc(&be->mm_count, sizeof(unsigned) * MM_COUNTERS);
    if (!err) err = cudaMemsetAsync(be->mm_count, 0, sizeof(unsigned) * MM_COUNTERS, be->stream);
    const int rc = cuda_check(be, "memory for matrix products", err);
    return rc ? rc : chain_open(be);
}

void cuda_mm_close(struct cuda_backend *be)
{
    chain_close(be);
    cudaFree(be->mm_partial);
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
    return act == MM_ACT_K ? mm_tuning.copy_k : mm_is_int8(act) ? mm_tuning.copy_32 : mm_tuning.copy_float;
}

/* The slices of a panel: by the shape and the type alone, for they decide the bits. 8-bit kinds: four, two
 * panels a block at a time, eight where rows are so long that a slice of eight tokens would not fit in shared
 * memory. Float types: eight for every 4,096 columns. Of whole 256 columns: a short row has fewer. */
void mm_slices(const struct mm_type *t, int64_t n_in, int32_t *slice_units, int32_t *slices)
{
    const int64_t units = (n_in + t->unit_k - 1) / t->unit_k, blocks = (n_in + 255) / 256;
    int64_t most = n_in > mm_tuning.long_row ? 2 * mm_tuning.slices : mm_tuning.slices;
    if (!mm_is_int8(t->act)) most = (n_in + 4095) / 4096 * mm_tuning.slices_float;
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

/* Are n rows prepared as the kernels of few rows want those of K types, with `side` apart? Where these take
 * every product of so long slices (mm_choose_few: a slice of 16 rows beside the rings of 16 warps). */
#define FEW_UNITS 24
static bool few_format(const struct cuda_backend *be, enum mm_act act, int32_t n, int32_t slice_units)
{
    return act == MM_ACT_K && n > 1 && n >= mm_tuning.few_from && n <= 16 && !be->generic && be->cc >= 90 &&
           !mm_tuning.no_few && slice_units <= FEW_UNITS && be->smem_block >= 200 << 10;
}
/* The slices' rows, and where `side` is. */
static uint8_t *few_side_of(const struct cuda_backend *be, int32_t n, struct mm_args *a)
{
    a->slice_row = 256 * a->slice_units;
    return be->mm_rows + (size_t)n * (size_t)a->slices * (size_t)a->slice_row;
}

bool mm_preparing(struct cuda_backend *be, const struct kn_weight *w, int32_t n, struct mm_prep *a,
                  enum mm_act *act)
{
    const struct mm_type *t = mm_type_of(w->type);
    struct mm_args m = {};
    if (!t || !mm_is_int8(t->act) || w->n_in % 256 || cut_slices(be, t, w->n_in, &m)) return false;
    *a = {};
    if (few_format(be, t->act, n, m.slice_units)) a->side = few_side_of(be, n, &m), a->tiles = n > 8 ? 2 : 1;
    a->rows = be->mm_rows, a->n_in = (int32_t)w->n_in, a->units = m.units, a->unit_k = t->unit_k;
    a->slice_units = m.slice_units, a->slices = m.slices, a->slice_row = m.slice_row;
    *act = t->act;
    return true;
}

void mm_prepared(struct cuda_backend *be, const float *x, const float *gate, int32_t n,
                 const struct mm_prep *a, enum mm_act act)
{
    be->ready.x = x, be->ready.gate = gate, be->ready.n = n, be->ready.act = act;
    be->ready.slice_units = a->slice_units, be->ready.slice_row = a->slice_row,
    be->ready.launch = be->launches;
}

bool mm_is_prepared(const struct cuda_backend *be, const float *x, const float *gate, int32_t n,
                    const struct mm_prep *a, enum mm_act act)
{
    return be->ready.x == x && be->ready.gate == gate && be->ready.n == n && be->ready.act == act &&
           be->ready.slice_units == a->slice_units && be->ready.slice_row == a->slice_row &&
           be->ready.launch == be->launches;
}

/* Launch over all panels: as many at a time as the partial sums have room for. */
static int launch_panels(struct cuda_backend *be, const char *name, enum mm_act act, struct mm_args *a,
                         int log2_tiles, const struct mm_plan *plan, bool low, bool few, int32_t panels)
{
    const bool together = a->block_slices == a->slices;
    const mm_kernel_fn usual =
        few ? mm_kernel_few(act, log2_tiles, low)
            : mm_kernel_of(act, log2_tiles, plan->warps, be->generic || be->cc < 90, low);
    int32_t grid = be->sm_count * plan->blocks; /* all resident: apart, blocks wait for each other */
    int32_t most = panels;
    a->left &= few && !together;
    if (a->left) {
        mm_few_split(grid, panels, a);
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
        const mm_kernel_fn f = few && mm_few_is_late(a, act, log2_tiles, low) ? mm_kernel_few_late() : usual;
        const int32_t n_blocks = together  ? a->groups
                                 : a->left ? a->groups * (a->slices - 1) + a->last_groups
                                           : a->groups * a->slices;
        a->pitch = (uint32_t)a->stage_bytes + FEW_BARRIER, a->ring_bytes = (uint32_t)a->stages * a->pitch;
        a->cluster = few ? mm_few_cluster(act, a) : 1;
        const unsigned threads = (unsigned)(32 * (few ? a->warps : plan->warps));
        const int err = cuda_check(
            be, name,
            a->cluster > 1 ? cuda_launch_clusters(be, f, dim3((unsigned)n_blocks), dim3(threads), a->at.total,
                                                  (unsigned)a->cluster, *a)
                           : cuda_launch(be, f, dim3((unsigned)n_blocks), dim3(threads), a->at.total, *a));
        if (err) return err;
    }
    return 0;
}

int mm_norm_add(struct cuda_backend *be, const struct mm_add *add, int32_t n, int64_t width, bool *done)
{
    const struct kn_weight *w = be->head.next_w;
    const float *norm = be->head.next_norm;
    const struct mm_type *t = w ? mm_type_of(w->type) : nullptr;
    struct mm_args a = {};
    *done = t && norm && add->weight && mm_is_int8(t->act) && w->n_in == width && width % 8 == 0 &&
            width <= MM_ADD_WIDTH && n <= MM_PREP_ROWS && ((uintptr_t)norm & 15) == 0;
    if (!*done) return 0;
    const int rc = cut_slices(be, t, width, &a);
    if (rc) return rc;
    uint8_t *const side = few_format(be, t->act, n, a.slice_units) ? few_side_of(be, n, &a) : nullptr;
    const struct mm_prep prep = {add->out,       norm,        be->mm_rows, add->eps,
                                 (int32_t)width, a.units,     t->unit_k,   a.slice_units,
                                 a.slices,       a.slice_row, side,        n > 8 ? 2 : 1};
    const int err = cuda_check(be, "norm_add", mm_add_prepare(be, t->act, add, &prep, n));
    be->rounded = {be->launches, add->out, norm, add->eps, n, t->act, (int32_t)width, a.slice_row};
    return err;
}
/* Has norm_add just left the product's rows in mm_rows? */
static bool is_rounded(const struct cuda_backend *be, const struct product *p, enum mm_act act,
                       int32_t slice_row)
{
    return be->rounded.x && be->rounded.launches == be->launches && be->rounded.x == p->x &&
           be->rounded.norm == p->norm && be->rounded.eps == p->eps && be->rounded.n == p->n &&
           be->rounded.act == act && be->rounded.slice_row == slice_row && be->rounded.n_in == p->w[0]->n_in;
}

/* May the product's slices' sums be left in memory, if they are apart (mm_owed)? Of several rows: one row's
 * results are handed on in other ways (chain.cuh, experts/hand.cuh). */
static bool may_leave(const struct cuda_backend *be, const struct product *p, const struct mm_args *a,
                      enum mm_act act, int count)
{
    if (mm_tuning.no_left || p->gated || p->n < 2 || p->n > 16 || !mm_is_int8(act)) return false;
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
    /* Units of 32 columns go in pairs, which share a word of activations (mm_int.cuh) or a sum (mm_frag.cuh).
     */
    g->least_units = g->t->act == MM_ACT_K || g->most_units < 2 ? 1 : 2;
    a->left = g->leave = may_leave(be, p, a, g->t->act, g->count);
    a->partial = be->mm_partial;
    a->add = p->add;
    a->gated = p->gated;
    a->act = p->act;
    a->normed = p->norm != nullptr;
    return 0;
}

/* Are the rows at x prepared already? */
static int find_rows(struct cuda_backend *be, const struct product *p, const struct group *g,
                     const struct mm_args *a, const float *x, const struct mm_prep *prep, bool *prepared)
{
    const enum mm_act act = g->t->act;
    *prepared = is_rounded(be, p, act, a->slice_row);
    *prepared |= !p->norm && mm_is_prepared(be, x, nullptr, p->n, prep, act);
    if (!*prepared && !p->norm && be->ready.x == x && be->ready.launch == be->launches &&
        be->ready.n == p->n && be->ready.act == act && be->ready.slice_row != a->slice_row)
        return cuda_fail(be, KN_EINVAL, "%s: %d rows prepared for another kernel", p->name, p->n);
    return 0;
}

/* `rows` rows from `row` on, as many at a time as a launch takes. */
static int launch_rows(struct cuda_backend *be, const struct product *p, const struct group *g,
                       struct mm_args *a, int32_t row, int32_t rows, const struct mm_prep *prep,
                       bool prepared)
{
    const enum mm_act act = g->t->act;
    int err = 0;
    for (int32_t i = 0; i < rows && !err; i += a->n) {
        const struct mm_plan *plan = nullptr;
        int log2_tiles = -1; /* smaller copies where these do not fit, */
        const bool few =
            rows - i <= 16 && mm_choose_few(be, act, rows - i, g->panels, g->widest, a, &log2_tiles, &plan);
        for (int32_t n = rows - i; !few && log2_tiles < 0 && n > 0;
             n = (n < 8 ? n : 8) / 2) /* then fewer rows */
            for (int32_t most = g->most_units; log2_tiles < 0 && most >= g->least_units; most /= 2)
                log2_tiles = mm_choose(be, act, n, g->panels, most, g->widest, g->mixed, g->low, a, &plan);
        if (log2_tiles < 0)
            return cuda_fail(be, KN_ETYPE,
                             "%s: %d bytes of shared memory a block are too few for rows of %lld values of "
                             "%s on %d multiprocessors",
                             p->name, be->smem_block, (long long)prep->n_in, kn_type_info(g->t->type)->name,
                             be->sm_count);
        if (!prepared) err = cuda_check(be, p->name, mm_prepare(be, act, prep, rows, few));
        prepared = true;
        a->rows = be->mm_rows + (size_t)i * (size_t)a->slices * (size_t)a->slice_row;
        for (int j = 0; j < g->count; j++)
            a->out[j] = p->out[g->list[j]] + (int64_t)(row + i) * p->w[g->list[j]]->n_out;
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
            const struct mm_plan *plan;
            int log2_tiles;
            a.side = few_side_of(be, p->n, &a);
            if (!mm_choose_few(be, g.t->act, p->n, g.panels, g.widest, &a, &log2_tiles, &plan)) /* tuned so */
                a.side = nullptr, a.slice_row = mm_slice_row(g.t->act, a.slice_units);
        }
        const struct mm_prep prep = {
            x,           p->norm,       be->mm_rows, p->eps,      (int32_t)w0->n_in, a.units,
            g.t->unit_k, a.slice_units, a.slices,    a.slice_row, (uint8_t *)a.side, p->n > 8 ? 2 : 1};
        bool prepared;
        if ((err = find_rows(be, p, &g, &a, x, &prep, &prepared))) break;
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
    struct chain_product c = {p->name, {},     {},       p->n_w, p->x,   p->norm,
                              p->eps,  p->add, p->gated, p->act, nullptr};
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
