/* mm.cu - matrix products: types, plans, launches. The arithmetic is in mm_kernel.cuh and mm_frag.cuh. */
#include "many.cuh"
#include "mm.cuh"

#include <string.h>

#define MM_PARTIAL_BYTES ((size_t)48 << 20)
#define MM_ROWS_BYTES ((size_t)32 << 20) /* MM_PREP_ROWS rows of the longest kind */
#define MM_GROUPS 512                    /* groups of blocks, at most: multiprocessors */
#define MM_COUNTERS ((MM_SLICES_MAX + 1) * MM_GROUPS)

struct mm_tuning mm_tuning = {2, 3, 0, 0, 0};

/* Columns and bytes of a unit are those of 16 rows of blocks; the same constants are in mm_frag.cuh. */
static const struct mm_type mm_types[] = {
    {KN_F32, 32, 2048, 2, 3, 512, 4, MM_SUMS_NONE},    {KN_F16, 32, 1024, 2, 2, 512, 4, MM_SUMS_NONE},
    {KN_BF16, 32, 1024, 2, 3, 512, 4, MM_SUMS_NONE},   {KN_Q8_0, 32, 544, 8, 1, 1024, 8, MM_SUMS_NONE},
    {KN_Q4_0, 32, 288, 8, 1, 1024, 8, MM_SUMS_NONE},   {KN_Q5_0, 32, 352, 8, 1, 1024, 8, MM_SUMS_NONE},
    {KN_Q4_1, 32, 320, 8, 1, 1024, 8, MM_SUMS_32},     {KN_Q5_1, 32, 384, 8, 1, 1024, 8, MM_SUMS_32},
    {KN_Q4_K, 256, 2304, 1, 1, 1024, 8, MM_SUMS_K},    {KN_Q5_K, 256, 2816, 1, 1, 1024, 8, MM_SUMS_K},
    {KN_Q6_K, 256, 3360, 1, 1, 1024, 8, MM_SUMS_NONE},
};
#define MM_TYPES (int)(sizeof mm_types / sizeof mm_types[0])

const struct mm_type *mm_type_of(uint32_t type)
{
    for (int i = 0; i < MM_TYPES; i++)
        if (mm_types[i].type == type) return &mm_types[i];
    return nullptr;
}

static mm_kernel_fn kernel_of(uint32_t type, int log2_tiles, bool generic)
{
    mm_kernel_fn f = mm_kernel_k(type, log2_tiles, generic);
    if (!f) f = mm_kernel_32(type, log2_tiles, generic);
    return f ? f : mm_kernel_float(type, log2_tiles, generic);
}

/* ---- opening ---- */

int cuda_mm_open(struct cuda_backend *be)
{
    for (int i = 0; i < MM_TYPES; i++) {
        const cudaError_t first = mm_prepare_open(&mm_types[i]);
        if (first) return cuda_check(be, "matrix product kernels", first);
        for (int l = 0; l < 8; l++) {
            mm_kernel_fn f = kernel_of(mm_types[i].type, l % 4, l >= 4);
            if (!f) continue;
            cudaError_t err =
                cudaFuncSetAttribute(f, cudaFuncAttributeMaxDynamicSharedMemorySize, be->smem_block);
            if (!err)
                err = cudaFuncSetAttribute(f, cudaFuncAttributePreferredSharedMemoryCarveout,
                                           cudaSharedmemCarveoutMaxShared);
            if (err) return cuda_check(be, "matrix product kernels", err);
        }
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

/* The slices of a panel: by the shape and the type alone, for they decide the bits. A number that 8 warps
 * share evenly: 1, 2, 4 or a multiple of 8; at least 4 from 1,024 columns on, so that a small matrix still
 * occupies the device. */
static int cut_slices(struct cuda_backend *be, const struct mm_type *t, int64_t n_in, struct mm_args *a)
{
    const int64_t columns = mm_tuning.slice_k ? mm_tuning.slice_k : t->slice_k;
    const int64_t units = (n_in + t->unit_k - 1) / t->unit_k;
    int64_t slices = (units * t->unit_k + columns - 1) / columns;
    if (n_in >= 1024 && slices < 4) slices = 4;
    slices = slices <= 2 ? slices : slices <= 4 ? 4 : (slices + 7) / 8 * 8;
    const int64_t even = (units + slices - 1) / slices;
    a->units = (int32_t)units;
    a->slice_units = (int32_t)((even + t->stage_units - 1) / t->stage_units * t->stage_units);
    a->slices = (int32_t)((units + a->slice_units - 1) / a->slice_units);
    a->slice_row = mm_slice_row(t->planes, t->sums, a->slice_units * t->unit_k);
    if (a->slices > MM_SLICES_MAX ||
        (size_t)a->slices * (size_t)a->slice_row * MM_PREP_ROWS > MM_ROWS_BYTES || a->slices > be->sm_count)
        return cuda_fail(be, KN_ETYPE, "matrix product: rows of %lld values are too long (at most %lld)",
                         (long long)n_in, (long long)(columns * MM_SLICES_MAX));
    return 0;
}

static size_t smem_of(const struct mm_type *t, const struct mm_args *a, int tiles)
{
    return mm_memory_of(t->unit_bytes * t->stage_units, a, tiles).total;
}

static void put_together(struct mm_args *a, bool together)
{
    a->block_slices = together ? a->slices : 1;
    a->slice_warps = !together || a->slices == 1 ? 1 : a->slices == 2 ? 2 : a->slices <= 4 ? 4 : 8;
    a->subs = MM_WARPS / a->slice_warps;
}

/* How many rows a launch takes, where its slices are, how deep its rings: the first that fits of
 *   slices together, the next launch's blocks beside; together; apart, beside; apart; and then with fewer
 *   rows.
 * None of these choices changes a bit. Fills a->n, stages, block_slices, slice_warps; returns log2 of the
 * tiles, or an error. */
static int choose(struct cuda_backend *be, const struct mm_type *t, int32_t n, struct mm_args *a,
                  size_t *smem)
{
    const int most = be->generic || be->cc < 90 ? 4 : 8,
              want = mm_tuning.stages < most ? mm_tuning.stages : most;
    const size_t whole = (size_t)be->smem_block;
    const int widest = be->cc < 90 ? 1 : be->generic ? 0 : 3; /* what is compiled: mm_kernel.cuh */
    for (int log2_tiles = 3; log2_tiles >= 0; log2_tiles--) {
        const int tiles = 1 << log2_tiles;
        if (tiles > t->tiles_max || (log2_tiles && 4 * tiles >= n) || log2_tiles > widest) continue;
        a->n = n < 8 * tiles ? n : 8 * tiles;
        const size_t part = (size_t)be->smem_sm / (tiles == 1 ? MM_RESIDENT : 2) - 1024;
        for (int pass = 0; pass < 4; pass++) {
            const bool together = pass < 2, beside = pass % 2 == 0;
            if (together && a->slices > 1 && (mm_tuning.apart == 1 || (mm_tuning.apart == 2 && !beside)))
                continue;
            put_together(a, together);
            for (a->stages = want; a->stages >= (beside && MM_RESIDENT < 3 ? 3 : 2); a->stages--) {
                *smem = smem_of(t, a, tiles);
                if (*smem <= (beside && part < whole ? part : whole)) return log2_tiles;
            }
        }
    }
    return cuda_fail(be, KN_EDEVICE, "matrix product: %d bytes of shared memory a block are too few",
                     be->smem_block);
}

/* Launch over all panels: as many at a time as the partial sums have room for. */
static int launch_panels(struct cuda_backend *be, const char *name, const struct mm_type *t,
                         struct mm_args *a, int log2_tiles, size_t smem, int32_t panels)
{
    const bool together = a->block_slices == a->slices;
    const mm_kernel_fn f = kernel_of(t->type, log2_tiles, be->generic || be->cc < 90);
    const int fit =
        log2_tiles > 1 ? 1
                       : (int)((size_t)be->smem_sm / (smem + 1024)); /* blocks side by side: no second wave */
    int32_t most = panels,
            grid = be->sm_count * (mm_tuning.blocks_per_sm < fit ? mm_tuning.blocks_per_sm : fit);
    if (!together) { /* blocks wait for each other: one a multiprocessor is always resident */
        const size_t item = (size_t)(a->gated ? 2 : 1) * (size_t)a->slices * ((size_t)1 << log2_tiles) *
                            MM_RECORD * sizeof(float);
        const size_t room = be->mm_partial_bytes / item;
        if ((size_t)most > room) most = (int32_t)room;
        grid = be->sm_count;
        a->count = be->mm_count + (size_t)a->slices * MM_GROUPS;
    }
    for (int32_t first = 0; first < panels; first += most) {
        a->first_item = first;
        a->n_items = panels - first < most ? panels - first : most;
        a->groups = together ? grid : grid / a->slices;
        if (a->groups > a->n_items) a->groups = a->n_items;
        const int32_t blocks = together ? a->groups : a->groups * a->slices;
        const int err =
            cuda_check(be, name, cuda_launch(be, f, dim3((unsigned)blocks), dim3(32 * MM_WARPS), smem, *a));
        if (err) return err;
    }
    return 0;
}

/* The matrices `list` of one type. */
static int launch_group(struct cuda_backend *be, const struct product *p, const int *list, int count)
{
    const struct kn_weight *w0 = p->w[list[0]];
    const struct mm_type *t = mm_type_of(w0->type);
    struct mm_args a = {};
    int err = cut_slices(be, t, w0->n_in, &a);
    int32_t panels = 0;
    for (int i = 0; i < count; i++) {
        const struct kn_weight *w = p->w[list[i]];
        a.w[i] = (const uint8_t *)w->packed;
        a.n_out[i] = (int32_t)w->n_out;
        if (i == 0 || !p->gated) panels += (int32_t)((w->n_out + 15) / 16);
        a.panel_end[i] = panels;
    }
    a.partial = be->mm_partial;
    a.panel_bytes = mm_panel_bytes(t, w0->n_in);
    a.add = p->add;
    a.gated = p->gated;
    a.act = p->act;
    a.magic = 0x64006400;
#ifdef MM_PROBE
    a.probe = mm_tuning.probe;
#endif
    for (int32_t row = 0; row < p->n && !err; row += MM_PREP_ROWS) {
        const int32_t rows = p->n - row < MM_PREP_ROWS ? p->n - row : MM_PREP_ROWS;
        const struct mm_prep prep = {p->x + (int64_t)row * w0->n_in,
                                     p->norm,
                                     be->mm_rows,
                                     p->eps,
                                     (int32_t)w0->n_in,
                                     a.units,
                                     t->unit_k,
                                     a.slice_units,
                                     a.slices,
                                     a.slice_row};
        err = cuda_check(be, p->name, mm_prepare(be, t, &prep, rows));
        for (int32_t i = 0; i < rows && !err; i += a.n) {
            size_t smem = 0;
            const int log2_tiles = choose(be, t, rows - i, &a, &smem);
            if (log2_tiles < 0) return log2_tiles;
            a.rows = be->mm_rows + (size_t)i * (size_t)a.slices * (size_t)a.slice_row;
            for (int j = 0; j < count; j++)
                a.out[j] = p->out[list[j]] + (int64_t)(row + i) * p->w[list[j]]->n_out;
            err = launch_panels(be, p->name, t, &a, log2_tiles, smem, panels);
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
            if (!done[i] && p->w[i]->type == p->w[j]->type) {
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
