/* mm.cu - matrix products: types, plans, launches. The arithmetic is in mm_kernel.cuh, mm_int.cuh,
 * mm_frag.cuh. */
#include "copy.cuh"
#include "many.cuh"
#include "mm.cuh"

#include <string.h>

#define MM_PARTIAL_BYTES ((size_t)48 << 20)
#define MM_ROWS_BYTES ((size_t)32 << 20) /* MM_PREP_ROWS rows of the longest kind */
#define MM_GROUPS 512                    /* groups of blocks, at most: multiprocessors, twice */
#define MM_COUNTERS ((MM_SLICES_MAX + 1) * MM_GROUPS)

struct mm_tuning mm_tuning = {4, 2, 8, 4, 4, 0, 0, 8, 8};

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
static mm_kernel_fn kernel_of(enum mm_act act, int log2_tiles, bool generic, bool low)
{
    mm_kernel_fn f = low ? mm_kernel_low(act, log2_tiles, generic) : mm_kernel_k(act, log2_tiles, generic);
    if (!f) f = mm_kernel_32(act, log2_tiles, generic);
    return f ? f : mm_kernel_float(act, log2_tiles, generic);
}

/* ---- opening ---- */

int cuda_mm_open(struct cuda_backend *be)
{
    for (int act = MM_ACT_K; act <= MM_ACT_F32; act++)
        for (int l = 0; l < 16; l++) {
            mm_kernel_fn f = kernel_of((enum mm_act)act, l % 4, l / 4 % 2, l >= 8);
            if (!f) continue;
            const cudaError_t err =
                cudaFuncSetAttribute(f, cudaFuncAttributeMaxDynamicSharedMemorySize, be->smem_block);
            if (err) return cuda_check(be, "matrix product kernels", err);
        }
    be->mm_partial_bytes = MM_PARTIAL_BYTES;
    be->mm_rows_bytes = MM_ROWS_BYTES;
    cudaError_t err = cudaMalloc(&be->mm_partial, be->mm_partial_bytes);
    if (!err) err = cudaMalloc(&be->mm_rows, be->mm_rows_bytes);
    if (!err) err = cudaMalloc(&be->mm_count, sizeof(unsigned) * MM_COUNTERS);
    if (!err) err = cudaMemset(be->mm_count, 0, sizeof(unsigned) * MM_COUNTERS);
    return cuda_check(be, "memory for matrix products", err);
}

void cuda_mm_close(struct cuda_backend *be)
{
    cudaFree(be->mm_partial);
    cudaFree(be->mm_count);
    cudaFree(be->mm_rows);
    cudaFree(be->mm_raw);
    cudaFreeHost(be->mm_stage);
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
static int cut_slices(struct cuda_backend *be, const struct mm_type *t, int64_t n_in, struct mm_args *a)
{
    const int64_t units = (n_in + t->unit_k - 1) / t->unit_k, blocks = (n_in + 255) / 256,
                  per = 256 / t->unit_k;
    int64_t slices = n_in > 14336 ? 2 * mm_tuning.slices : mm_tuning.slices;
    if (!is_whole(t->act)) slices = (n_in + 4095) / 4096 * mm_tuning.slices_float;
    const int64_t even = (blocks + slices - 1) / slices;
    a->units = (int32_t)units;
    a->slice_units = (int32_t)(even * per);
    a->slices = (int32_t)((units + a->slice_units - 1) / a->slice_units);
    a->slice_row = mm_slice_row(t->act, a->slice_units);
    if (a->slices > MM_SLICES_MAX || blocks > MM_ROW_BLOCKS ||
        (size_t)a->slices * (size_t)a->slice_row * MM_PREP_ROWS > MM_ROWS_BYTES || a->slices > be->sm_count)
        return cuda_fail(be, KN_ETYPE, "matrix product: rows of %lld values of %s are too long",
                         (long long)n_in, kn_type_info(t->type)->name);
    return 0;
}

bool mm_preparing(struct cuda_backend *be, const struct kn_weight *w, struct mm_prep *a, enum mm_act *act)
{
    const struct mm_type *t = mm_type_of(w->type);
    struct mm_args m = {};
    if (!t || !is_whole(t->act) || mm_tuning.prologue || w->n_in % 256 || cut_slices(be, t, w->n_in, &m)) return false;
    *a = {};
    a->rows = be->mm_rows, a->n_in = (int32_t)w->n_in, a->units = m.units, a->unit_k = t->unit_k;
    a->slice_units = m.slice_units, a->slices = m.slices, a->slice_row = m.slice_row;
    *act = t->act;
    return true;
}

void mm_prepared(struct cuda_backend *be, const float *x, int32_t n, const struct mm_prep *a, enum mm_act act)
{
    be->ready.x = x, be->ready.n = n, be->ready.act = act;
    be->ready.slice_units = a->slice_units, be->ready.launch = be->launches;
}

static void put_together(struct mm_args *a, bool together)
{
    a->block_slices = together ? a->slices : 1;
    a->slice_warps = !together || a->slices == 1 ? 1 : a->slices == 2 ? 2 : a->slices <= 4 ? 4 : 8;
    a->subs = MM_WARPS / a->slice_warps;
}

/* Shared memory of a block, in a->at; returns its bytes. */
static size_t lay_out(struct mm_args *a, int tiles)
{
    struct mm_memory *m = &a->at;
    const uint32_t row = (uint32_t)(a->block_slices * a->slice_row);
    const uint32_t pairs = tiles == 1 ? (uint32_t)(a->n + 1) / 2 : 4;
    m->row_bytes = (row + 63) / 128 * 128 + 64;
    m->act = (MM_BARS + (uint32_t)(MM_WARPS * a->stages * a->stage_bytes) + 127) / 128 * 128;
    m->merge = m->act + (uint32_t)a->n * m->row_bytes;
    m->merge_bytes = a->block_slices == a->slices && (a->slices > 1 || a->gated)
                         ? (uint32_t)((a->gated ? 2 : 1) * a->subs * a->slices * tiles) * 128 * pairs
                         : 0;
    m->squares = m->merge + m->merge_bytes * (uint32_t)(m->merge_rounds * m->merge_sets);
    m->total = m->squares + (a->x && a->norm ? (uint32_t)(a->n_in + 255) / 256 * 4 : 0);
    return m->total;
}

/* How a launch may be distributed, best first: slices together or apart, blocks a multiprocessor, whether the
 * next launch's blocks have room beside (so that their rings are filled when this one ends), stages at least.
 */
static const struct {
    bool together, beside;
    int blocks, stages;
} plans[] = {
    {true, false, 2, 2}, {true, true, 1, 3},   {true, false, 1, 2},
    {false, true, 1, 2}, {false, false, 2, 2}, {false, false, 1, 2},
};
#define PLANS (int)(sizeof plans / sizeof plans[0])

/* How many rows a launch takes and which plan: the first that fits, then with fewer rows. None of these
 * choices changes a bit. Fills a->n, stages, block_slices, slice_warps, at; returns log2 of the tiles, or an
 * error. */
static int choose(struct cuda_backend *be, enum mm_act act, int32_t n, int32_t panels, struct mm_args *a,
                  int *blocks)
{
    const int most = be->generic || be->cc < 90 ? 4 : 8,
              tuned = mm_tuning.stages < most ? mm_tuning.stages : most;
    const int widest = be->cc < 90 ? 1 : be->generic ? 0 : 2; /* what is compiled: mm_kernel.cuh */
    const float *x = a->x;
    for (int log2_tiles = 2; log2_tiles >= 0; log2_tiles--) {
        const int tiles = 1 << log2_tiles;
        if ((log2_tiles && 4 * tiles >= n) || log2_tiles > widest) continue;
        a->n = n < 8 * tiles ? n : 8 * tiles;
        /* Measured: with more rows the arithmetic covers latencies, and a shorter ring leaves room for sums.
         */
        const int fewer = !is_whole(act) || a->n == 1 ? tuned
                          : tiles > 1                 ? 2
                                                      : 3,
                  want = fewer < tuned ? fewer : tuned;
        for (int i = 0; i < PLANS; i++) {
            if (!plans[i].together && a->slices == 1) continue;
            if ((mm_tuning.skip >> i & 1) && i + 1 < PLANS) continue;
            if (tiles == 4 && plans[i].blocks > 1)
                continue; /* registers; blocks that wait must be resident */
            const size_t part = ((size_t)be->smem_sm - 6144) /
                                (size_t)(plans[i].blocks * (plans[i].beside ? 2 : 1)),
                         most_bytes =
                             (size_t)be->smem_block < part - 1024 ? (size_t)be->smem_block : part - 1024;
            put_together(a, plans[i].together);
            a->x = plans[i].together && n <= mm_tuning.prologue && is_whole(act) ? x : nullptr;
            const int least = want < plans[i].stages ? want : plans[i].stages;
            *blocks = plans[i].blocks;
            const int32_t rounds = (panels - 1) / (be->sm_count * *blocks * a->subs) + 1;
            for (a->stages = want; a->stages >= least; a->stages--) {
                a->at.merge_rounds = 1;
                a->at.merge_sets = tiles == 1 ? 2 : 1;
                if (lay_out(a, tiles) > most_bytes) continue;
                if (tiles > 1) { /* better, where there is room */
                    a->at.merge_sets = 2;
                    if (lay_out(a, tiles) > most_bytes) a->at.merge_sets = 1;
                }
                int32_t best = 1;
                for (int32_t r = 2; r <= rounds && r <= mm_tuning.rounds; r++) {
                    a->at.merge_rounds = r;
                    if (lay_out(a, tiles) <= most_bytes) best = r;
                }
                a->at.merge_rounds = best;
                lay_out(a, tiles);
                return log2_tiles;
            }
        }
    }
    return cuda_fail(be, KN_EDEVICE, "matrix product: %d bytes of shared memory a block are too few",
                     be->smem_block);
}

/* Launch over all panels: as many at a time as the partial sums have room for. */
static int launch_panels(struct cuda_backend *be, const char *name, enum mm_act act, struct mm_args *a,
                         int matrices, int log2_tiles, int blocks, int32_t panels)
{
    const bool together = a->block_slices == a->slices;
    bool low = false;
    for (int j = 0; j < matrices; j++) low |= mm_is_low(a->type[j]);
    const mm_kernel_fn f = kernel_of(act, log2_tiles, be->generic || be->cc < 90, low);
    const int32_t grid = be->sm_count * blocks; /* all resident: apart, blocks wait for each other */
    int32_t most = panels;
    if (!together) {
        const size_t item = (size_t)(a->gated ? 2 : 1) * (size_t)a->slices * ((size_t)1 << log2_tiles) *
                            MM_RECORD * sizeof(float);
        const size_t room = be->mm_partial_bytes / item;
        if ((size_t)most > room) most = (int32_t)room;
        a->count = be->mm_count + (size_t)a->slices * MM_GROUPS;
    }
    for (int32_t first = 0; first < panels; first += most) {
        a->first_item = first;
        a->n_items = panels - first < most ? panels - first : most;
        a->groups = together ? grid : grid / a->slices;
        if (a->groups > a->n_items) a->groups = a->n_items;
        if (!together && a->groups > MM_GROUPS) a->groups = MM_GROUPS;
#ifdef MM_TRACE
        a->trace = mm_trace_next(name);
#endif
        const int32_t n_blocks = together ? a->groups : a->groups * a->slices;
        const int err = cuda_check(
            be, name, cuda_launch(be, f, dim3((unsigned)n_blocks), dim3(32 * MM_WARPS), a->at.total, *a));
        if (err) return err;
    }
    return 0;
}

/* The matrices `list`, which want the same activations. */
static int launch_group(struct cuda_backend *be, const struct product *p, const int *list, int count)
{
    const struct kn_weight *w0 = p->w[list[0]];
    const struct mm_type *t = mm_type_of(w0->type);
    struct mm_args a = {};
    int err = cut_slices(be, t, w0->n_in, &a);
    int32_t panels = 0, widest = 0;
    for (int i = 0; i < count; i++) {
        const struct kn_weight *w = p->w[list[i]];
        a.w[i] = (const uint8_t *)w->packed;
        a.n_out[i] = (int32_t)w->n_out;
        a.type[i] = w->type;
        a.unit_bytes[i] = mm_type_of(w->type)->unit_bytes;
        if (a.unit_bytes[i] > widest) widest = a.unit_bytes[i];
        if (i == 0 || !p->gated) panels += (int32_t)((w->n_out + 15) / 16);
        a.panel_end[i] = panels;
    }
    const int32_t copy = copy_units(t->act), most_units = copy < a.slice_units ? copy : a.slice_units;
    a.partial = be->mm_partial;
    a.add = p->add;
    a.gated = p->gated;
    a.act = p->act;
    a.norm = p->norm;
    a.eps = p->eps;
    a.n_in = (int32_t)w0->n_in;
    for (int32_t row = 0; row < p->n && !err; row += MM_PREP_ROWS) {
        const int32_t rows = p->n - row < MM_PREP_ROWS ? p->n - row : MM_PREP_ROWS;
        const float *x = p->x + (int64_t)row * w0->n_in;
        const struct mm_prep prep = {x,       p->norm,   be->mm_rows,   p->eps,   a.n_in,
                                     a.units, t->unit_k, a.slice_units, a.slices, a.slice_row};
        bool prepared = !p->norm && be->ready.x == x && be->ready.n == p->n && be->ready.act == t->act &&
                        be->ready.slice_units == a.slice_units && be->ready.launch == be->launches;
        for (int32_t i = 0; i < rows && !err; i += a.n) {
            int blocks = 1;
            int log2_tiles = -1; /* smaller copies where these do not fit */
            for (int32_t copy = most_units; log2_tiles < 0; copy /= 2) {
                a.x = p->n <= mm_tuning.prologue ? x : nullptr;
                a.stage_units = copy;
                a.stage_bytes = copy * widest;
                log2_tiles = choose(be, t->act, rows - i, panels, &a, &blocks);
                if (log2_tiles < 0 && copy == 1) return log2_tiles;
            }
            if (!a.x && !prepared) err = cuda_check(be, p->name, mm_prepare(be, t->act, &prep, rows));
            prepared = true;
            a.rows = be->mm_rows + (size_t)i * (size_t)a.slices * (size_t)a.slice_row;
            for (int j = 0; j < count; j++)
                a.out[j] = p->out[list[j]] + (int64_t)(row + i) * p->w[list[j]]->n_out;
            if (!err) err = launch_panels(be, p->name, t->act, &a, count, log2_tiles, blocks, panels);
        }
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

/* MANY_ROWS rows at a time (many_tuning.rows): through the library where that is wanted, else the row
 * kernels. */
static int run(struct kn_backend *kb, const struct product *p)
{
    struct cuda_backend *be = cuda_of(kb);
    int err = check(be, p);
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
