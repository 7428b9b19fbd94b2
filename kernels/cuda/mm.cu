/* mm.cu - matrix products: types, plans, launches. The arithmetic is in mm_kernel.cuh and mm_frag.cuh. */
#include "mm.cuh"

#include <string.h>

#define MM_PARTIAL_BYTES ((size_t)48 << 20)
#define MM_COUNTERS (1 << 17)

struct mm_tuning mm_tuning = {1, 4, 0};

/* Columns and bytes of a unit are those of 16 rows of blocks; the same constants are in mm_frag.cuh. */
static const struct mm_type mm_types[] = {
    {KN_F32, 32, 2048, 2, 3, 512, 4, MM_SUMS_NONE},     {KN_F16, 32, 1024, 2, 2, 512, 4, MM_SUMS_NONE},
    {KN_BF16, 32, 1024, 2, 3, 512, 4, MM_SUMS_NONE},    {KN_Q8_0, 32, 544, 8, 1, 1024, 8, MM_SUMS_NONE},
    {KN_Q4_0, 32, 288, 8, 1, 1024, 8, MM_SUMS_NONE},    {KN_Q5_0, 32, 352, 8, 1, 1024, 8, MM_SUMS_NONE},
    {KN_Q4_1, 32, 320, 8, 1, 1024, 8, MM_SUMS_32},      {KN_Q5_1, 32, 384, 8, 1, 1024, 8, MM_SUMS_32},
    {KN_Q4_K, 256, 2304, 1, 1, 1024, 8, MM_SUMS_K},     {KN_Q5_K, 256, 2816, 1, 1, 1024, 8, MM_SUMS_K},
    {KN_Q6_K, 256, 3360, 1, 1, 1024, 8, MM_SUMS_NONE},
};
#define MM_TYPES (int)(sizeof mm_types / sizeof mm_types[0])

const struct mm_type *mm_type_of(uint32_t type)
{
    for (int i = 0; i < MM_TYPES; i++)
        if (mm_types[i].type == type) return &mm_types[i];
    return nullptr;
}

static mm_kernel_fn kernel_of(uint32_t type, int log2_tiles)
{
    mm_kernel_fn f = mm_kernel_k(type, log2_tiles);
    if (!f) f = mm_kernel_32(type, log2_tiles);
    return f ? f : mm_kernel_float(type, log2_tiles);
}

size_t mm_smem(const struct mm_type *t, int32_t slice_columns, int tiles, int stages)
{
    const size_t tokens = 8 * (size_t)tiles, columns = (size_t)slice_columns;
    const size_t ring = (size_t)MM_WARPS * (size_t)stages * (size_t)t->stage_units * (size_t)t->unit_bytes;
    const size_t act = (size_t)t->planes * tokens * (2 * columns + 64);
    const size_t sums = t->sums == MM_SUMS_K ? columns / 256 * tokens * 32 : t->sums == MM_SUMS_32 ? columns / 32 * tokens * 4 : 0;
    return 512 + ring + act + sums + tokens * 4 * (2 + 2 * MM_WARPS);
}

/* ---- opening ---- */

int cuda_mm_open(struct cuda_backend *be)
{
    for (int i = 0; i < MM_TYPES; i++)
        for (int l = 0; l < 4; l++) {
            mm_kernel_fn f = kernel_of(mm_types[i].type, l);
            if (!f) continue;
            cudaError_t err = cudaFuncSetAttribute(f, cudaFuncAttributeMaxDynamicSharedMemorySize, be->smem_block);
            if (!err) err = cudaFuncSetAttribute(f, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
            if (err) return cuda_check(be, "matrix product kernels", err);
        }
    be->mm_partial_bytes = MM_PARTIAL_BYTES;
    be->mm_counters = MM_COUNTERS;
    cudaError_t err = cudaMalloc(&be->mm_partial, be->mm_partial_bytes);
    if (!err) err = cudaMalloc(&be->mm_count, sizeof(unsigned) * MM_COUNTERS);
    if (!err) err = cudaMemset(be->mm_count, 0, sizeof(unsigned) * MM_COUNTERS);
    return cuda_check(be, "memory for matrix products", err);
}

void cuda_mm_close(struct cuda_backend *be)
{
    cudaFree(be->mm_partial);
    cudaFree(be->mm_count);
    cudaFree(be->mm_raw);
    cudaFreeHost(be->mm_stage);
    be->mm_partial = nullptr;
    be->mm_count = nullptr;
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

/* How a launch is cut. Slices come from the shape and the type alone: they decide the bits. The rest does not. */
struct plan {
    int32_t units, slice_units, slices;
    int tiles, log2_tiles, stages;
    size_t smem;
};

static int make_plan(struct cuda_backend *be, const struct mm_type *t, int64_t n_in, int32_t n, struct plan *p)
{
    const int64_t columns = mm_tuning.slice_k ? mm_tuning.slice_k : t->slice_k;
    const int64_t units = (n_in + t->unit_k - 1) / t->unit_k, slices = (units * t->unit_k + columns - 1) / columns;
    const int64_t even = (units + slices - 1) / slices;
    p->units = (int32_t)units;
    p->slice_units = (int32_t)((even + t->stage_units - 1) / t->stage_units * t->stage_units);
    p->slices = (int32_t)((units + p->slice_units - 1) / p->slice_units);
    const int most = be->generic || be->cc < 90 ? 4 : 8, want = mm_tuning.stages < most ? mm_tuning.stages : most;
    const size_t whole = (size_t)be->smem_block, half = (size_t)be->smem_sm / 2 - 1024;
    for (p->log2_tiles = 3; p->log2_tiles >= 0; p->log2_tiles--) {
        p->tiles = 1 << p->log2_tiles;
        if (p->tiles > t->tiles_max || (p->log2_tiles && 8 * (p->tiles / 2) >= n)) continue;
        for (int pass = 0; pass < 2; pass++) /* room for the next launch beside this one, or else alone */
            for (p->stages = want; p->stages >= (pass ? 2 : 3); p->stages--) {
                p->smem = mm_smem(t, p->slice_units * t->unit_k, p->tiles, p->stages);
                if (p->smem <= (pass ? whole : half < whole ? half : whole)) return 0;
            }
    }
    return cuda_fail(be, KN_EDEVICE, "matrix product: %d bytes of shared memory a block are too few", be->smem_block);
}

/* One launch or more over matrices `list` of one type. */
static int launch_group(struct cuda_backend *be, const struct product *p, const int *list, int count)
{
    const struct kn_weight *w0 = p->w[list[0]];
    const struct mm_type *t = mm_type_of(w0->type);
    for (int32_t row = 0; row < p->n;) {
        struct plan plan = {};
        int err = make_plan(be, t, w0->n_in, p->n - row, &plan);
        if (err) return err;
        const int32_t rows = p->n - row < 8 * plan.tiles ? p->n - row : 8 * plan.tiles;
        mm_args a = {};
        int32_t panels = 0;
        for (int i = 0; i < count; i++) {
            const struct kn_weight *w = p->w[list[i]];
            a.w[i] = (const uint8_t *)w->packed;
            a.n_out[i] = (int32_t)w->n_out;
            if (i == 0 || !p->gated) {
                panels += (int32_t)((w->n_out + 15) / 16);
                a.out[i] = p->out[list[i]] + (int64_t)row * w->n_out;
            }
            a.panel_end[i] = panels;
        }
        a.x = p->x + (int64_t)row * w0->n_in;
        a.norm = p->norm;
        a.eps = p->eps;
        a.partial = be->mm_partial;
        a.count = be->mm_count;
        a.panel_bytes = mm_panel_bytes(t, w0->n_in);
        a.n = rows;
        a.n_in = (int32_t)w0->n_in;
        a.units = plan.units;
        a.slice_units = plan.slice_units;
        a.slices = plan.slices;
        a.stages = plan.stages;
        a.bulk = be->cc >= 90 && !be->generic;
        a.has_norm = p->norm != nullptr;
        a.add = p->add;
        a.gated = p->gated;
        a.act = p->act;
        const int32_t grid = be->sm_count * mm_tuning.blocks_per_sm;
        a.slice_lanes = a.slices < grid ? a.slices : grid;
        int32_t most = panels; /* items a launch: what the partial sums of all slices have room for */
        if (a.slices > 1 || p->gated) {
            const size_t item = (size_t)(p->gated ? 2 : 1) * (size_t)a.slices * (size_t)plan.tiles * MM_RECORD * sizeof(float);
            const size_t room = be->mm_partial_bytes / item;
            if (room < 1) return cuda_fail(be, KN_EINVAL, "%s: rows of %d values are too long", p->name, a.n_in);
            if ((size_t)most > room) most = (int32_t)room;
            if (most > be->mm_counters) most = be->mm_counters;
        }
        for (int32_t first = 0; first < panels; first += most) {
            a.first_item = first;
            a.n_items = panels - first < most ? panels - first : most;
            const int32_t blocks = grid / a.slice_lanes;
            a.slice_blocks = blocks < a.n_items ? blocks : a.n_items;
            err = cuda_check(be, p->name, cuda_launch(be, kernel_of(t->type, plan.log2_tiles), dim3(a.slice_lanes * a.slice_blocks),
                                                      dim3(32 * MM_WARPS), plan.smem, a));
            if (err) return err;
        }
        row += rows;
    }
    return 0;
}

static int check(struct cuda_backend *be, const struct product *p)
{
    if (p->n < 1 || p->n_w < 1 || p->n_w > MM_WIDTH_MAX || !p->x)
        return cuda_fail(be, KN_EINVAL, "%s: %d rows with %d matrices (expected 1 or more with 1 to %d)", p->name, p->n, p->n_w,
                         MM_WIDTH_MAX);
    for (int j = 0; j < p->n_w; j++) {
        if (!p->w[j]->packed || !mm_type_of(p->w[j]->type))
            return cuda_fail(be, KN_EINVAL, "%s: a weight not loaded for products", p->name);
        if (p->w[j]->n_in != p->w[0]->n_in || (p->gated && (p->w[j]->n_out != p->w[0]->n_out)))
            return cuda_fail(be, KN_EINVAL, "%s: unequal shapes [%lld, %lld] and [%lld, %lld]", p->name, (long long)p->w[0]->n_out,
                             (long long)p->w[0]->n_in, (long long)p->w[j]->n_out, (long long)p->w[j]->n_in);
    }
    if (p->gated && p->w[0]->type != p->w[1]->type)
        return cuda_fail(be, KN_ETYPE, "%s: gate of type %s and up of type %s (expected the same)", p->name,
                         kn_type_info(p->w[0]->type)->name, kn_type_info(p->w[1]->type)->name);
    return 0;
}

static int run(struct kn_backend *kb, const struct product *p)
{
    struct cuda_backend *be = cuda_of(kb);
    int err = check(be, p);
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

int cuda_linear(struct kn_backend *kb, float *out, const struct kn_weight *w, const float *x, int32_t n, bool add)
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

int cuda_norm_linear(struct kn_backend *kb, float *const *out, const struct kn_weight *const *w, int32_t n_w, const float *x,
                     const float *norm, float eps, int32_t n)
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

int cuda_norm_gated(struct kn_backend *kb, float *out, const struct kn_weight *gate, const struct kn_weight *up, const float *x,
                    const float *norm, float eps, enum kn_act act, int32_t n)
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
