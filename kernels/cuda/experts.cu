/* experts.cu - products with the matrices that rows chose: plans and launches. The kernel is in
 * experts_kernel.cuh, its arithmetic in mm_int.cuh and mm_frag.cuh.
 *
 * experts_gated: one small kernel rounds the rows' activations, one multiplies. experts_down: the same for
 * [rows, chosen], and where rows are too many for the owning form a kernel adds the pairs of a row. The small
 * kernel lets the product start only after its own wait, so that the router's choice may be read, tiles found
 * and rings filled while it rounds. */
#include "experts.cuh"
#include "ops.cuh"
#include "prep.cuh"

struct experts_tuning experts_tuning = {16, 2, 8, 4};

struct experts_product {
    const char *name;
    const struct kn_weight *w[2];
    int32_t members, n, used;
    const float *x, *norm;
    float eps;
    enum kn_act act;
    const int32_t *ids;
    const float *weights;
    float *out;
    bool add;
};

static bool is_whole(enum mm_act act)
{
    return act == MM_ACT_K || act == MM_ACT_32 || act == MM_ACT_32M;
}

static experts_kernel_fn kernel_of(enum mm_act act, int log2_tiles, enum experts_form form, bool generic)
{
    experts_kernel_fn f = experts_kernel_k(act, log2_tiles, form, generic);
    if (!f) f = experts_kernel_32(act, log2_tiles, form, generic);
    return f ? f : experts_kernel_float(act, log2_tiles, form, generic);
}

/* ---- opening ---- */

int cuda_experts_open(struct cuda_backend *be)
{
    if (be->experts_sums) return 0;
    for (int act = MM_ACT_K; act <= MM_ACT_F32; act++)
        for (int form = 0; form < EXPERTS_FORMS; form++)
            for (int l = 0; l < 6; l++) {
                experts_kernel_fn f = kernel_of((enum mm_act)act, l % 3, (enum experts_form)form, l >= 3);
                if (!f) continue;
                const cudaError_t err =
                    cudaFuncSetAttribute(f, cudaFuncAttributeMaxDynamicSharedMemorySize, be->smem_block);
                if (err) return cuda_check(be, "kernels of experts", err);
            }
    return cuda_check(be, "memory for sums of experts", cudaMalloc(&be->experts_sums, EXPERTS_SUMS_BYTES));
}

void cuda_experts_close(struct cuda_backend *be)
{
    cudaFree(be->experts_sums);
    be->experts_sums = nullptr;
}

size_t cuda_experts_bytes(void)
{
    return EXPERTS_SUMS_BYTES;
}

/* ---- activations ---- */

/* As prep_whole (prep.cu), but what follows may start only when the kernel before is complete: it may then
 * read the router's choice before its own wait. */
template <enum mm_act ACT, int WARPS>
static __global__ void __launch_bounds__(32 * WARPS, WARPS == 4 ? 4 : 2)
    experts_rows(const __grid_constant__ mm_prep a)
{
    __shared__ float squares[MM_ROW_BLOCKS];
    const int first = (int)blockIdx.x * WARPS, blocks = (a.n_in + 255) / 256;
    cuda_grid_wait();
    cuda_grid_early();
    prepare_row<ACT, WARPS, 1>(a, a.x + (size_t)blockIdx.y * (size_t)a.n_in,
                               a.rows + (size_t)blockIdx.y * (size_t)a.slices * (size_t)a.slice_row, first,
                               min(blocks, first + WARPS), squares);
}
template <int WARPS>
static cudaError_t launch_rows(const struct cuda_backend *be, enum mm_act act, const struct mm_prep &p,
                               int32_t n)
{
    const dim3 grid((unsigned)((p.n_in + 256 * WARPS - 1) / (256 * WARPS)), (unsigned)n);
    return cuda_launch(be,
                       act == MM_ACT_K    ? experts_rows<MM_ACT_K, WARPS>
                       : act == MM_ACT_32 ? experts_rows<MM_ACT_32, WARPS>
                                          : experts_rows<MM_ACT_32M, WARPS>,
                       grid, dim3(32 * WARPS), 0, p);
}
static cudaError_t prepare(const struct cuda_backend *be, enum mm_act act, const struct mm_prep *p, int32_t n)
{
    if (!is_whole(act)) return mm_prepare(be, act, p, n);
    return p->n_in <= 1024 ? launch_rows<4>(be, act, *p, n) : launch_rows<16>(be, act, *p, n);
}

/* ---- plans ---- */

/* The slices of a row: by its length and type alone, for they decide the bits. */
static int cut_slices(struct cuda_backend *be, const struct experts_product *p, const struct mm_type *t,
                      struct experts_args *a)
{
    const int64_t n_in = p->w[0]->n_in, blocks = (n_in + 255) / 256, per = 256 / t->unit_k;
    int64_t slices = p->members == 1 && n_in <= 1024 ? 1 : 4;
    if (!is_whole(t->act) && slices * MM_SLICE_MAX < n_in) slices = (n_in + MM_SLICE_MAX - 1) / MM_SLICE_MAX;
    a->units = (int32_t)((n_in + t->unit_k - 1) / t->unit_k);
    a->slice_units = (int32_t)((blocks + slices - 1) / slices * per);
    a->slices = (a->units + a->slice_units - 1) / a->slice_units;
    a->slice_row = mm_slice_row(t->act, a->slice_units);
    if (a->slices > MM_SLICES_MAX || blocks > MM_ROW_BLOCKS)
        return cuda_fail(be, KN_ETYPE, "%s: rows of %lld values of %s are too long", p->name, (long long)n_in,
                         kn_type_info(t->type)->name);
    const int most = 8 / p->members;
    a->slice_warps = a->slices < most ? a->slices : most;
    return 0;
}

/* Shared memory of a block; returns its bytes. */
static size_t lay_out(struct experts_args *a, int tiles, enum experts_form form)
{
    struct experts_memory *m = &a->at;
    const size_t jobs = (size_t)(a->warps / (a->members * a->slice_warps)), slices = (size_t)a->slices;
    const size_t sort = a->n == 1 ? 0 : experts_sort_bytes(a->pairs, a->n_mat);
    const size_t sums = form == EXPERTS_OWNED ? (size_t)a->pairs * slices * 64
                        : a->members > 1 || a->slices > 1
                            ? 2 * jobs * (size_t)a->members * slices * (size_t)tiles * 512
                            : 0;
    m->row_bytes = ((uint32_t)(a->slices * a->slice_row) + 63) / 128 * 128 + 64;
    size_t at = MM_BARS + (size_t)(a->warps * a->stages * a->stage_bytes);
    m->tiles = (uint32_t)at;
    at += sizeof(experts_tile) * (size_t)experts_most_tiles(a->pairs, a->n_mat, a->tile);
    m->order = (uint32_t)at;
    m->sums = (uint32_t)((at + 2 * (size_t)a->pairs + 127) / 128 * 128);
    m->act = (uint32_t)((m->sums + sums + 127) / 128 * 128);
    at = m->act + (form == EXPERTS_STAGED ? (size_t)a->tile * m->row_bytes : 0);
    if (at < m->sums + sort) at = m->sums + sort;
    m->total = (uint32_t)at;
    return at;
}

/* Does the form fit with rings of so many stages? Smaller copies where it does not. */
static bool fit(const struct cuda_backend *be, struct experts_args *a, enum mm_act act, int log2_tiles,
                enum experts_form form)
{
    const int blocks = form == EXPERTS_OWNED || log2_tiles == 2 ? 1 : 2;
    const size_t part = ((size_t)be->smem_sm - 6144) / (size_t)blocks - 1024,
                 most = (size_t)be->smem_block < part ? (size_t)be->smem_block : part;
    const int32_t widest = a->unit_bytes[0] > a->unit_bytes[1] ? a->unit_bytes[0] : a->unit_bytes[1];
    const int copy = act == MM_ACT_K ? experts_tuning.copy_k
                     : is_whole(act) ? experts_tuning.copy_32
                                     : experts_tuning.copy_float;
    a->warps = form == EXPERTS_OWNED ? 16 : 8;
    const int32_t least = act == MM_ACT_K ? 1 : 2; /* 64 columns are one step of the others */
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

/* OWNED: few enough rows, and panels that divide well among multiprocessors, or so few rows that it does not
 * matter beside another launch. */
static bool may_own(const struct cuda_backend *be, const struct experts_product *p,
                    const struct experts_args *a, enum mm_act act)
{
    if (p->members != 1 || !is_whole(act) || p->n > experts_tuning.own_rows) return false;
    const int32_t rounds = (a->all_panels + be->sm_count - 1) / be->sm_count;
    return p->n < 4 || rounds * be->sm_count <= a->all_panels * 5 / 4;
}

/* The kernel and the form of a launch; none of it changes a bit. NULL: none fits. */
static experts_kernel_fn choose(const struct cuda_backend *be, const struct experts_product *p,
                                struct experts_args *a, enum mm_act act, enum experts_form *form,
                                unsigned *grid)
{
    const bool generic = be->generic || be->cc < 90;
    const int widest = !generic ? 2 : be->cc < 90 ? 1 : 0;
    for (int l = p->n <= 8 ? 0 : p->n <= 16 ? 1 : 2; l >= 0; l--) {
        if (l > widest) continue;
        for (int f = EXPERTS_FORMS - 1; f >= 0; f--) {
            if (f == EXPERTS_OWNED && !may_own(be, p, a, act)) continue;
            const experts_kernel_fn k = kernel_of(act, l, (enum experts_form)f, generic);
            a->tile = 8 << l;
            if (!k || !fit(be, a, act, l, (enum experts_form)f)) continue;
            *form = (enum experts_form)f;
            *grid = (unsigned)(be->sm_count * (f == EXPERTS_OWNED || l == 2 ? 1 : 2));
            return k;
        }
    }
    return nullptr;
}

/* Panels a block takes of a tile at a time: STAGED: as many as leave every block some runs of its own. */
static void cut_runs(struct experts_args *a, enum experts_form form, unsigned grid)
{
    const int32_t jobs = a->warps / (a->members * a->slice_warps);
    a->run = jobs;
    if (form != EXPERTS_STAGED) return;
    const double full = (double)a->pairs / a->tile, some = expected_experts(a),
                 tiles = full > some ? full : some;
    const double runs = 6.0 * grid / tiles; /* of a tile */
    const int32_t even = (int32_t)(a->panels / (runs < 1 ? 1 : runs));
    a->run = even < jobs ? jobs : even / jobs * jobs;
}
/* Blocks that have something to do. */
static unsigned blocks_of(const struct experts_args *a, enum experts_form form, unsigned grid)
{
    const int64_t jobs = form == EXPERTS_OWNED ? a->panels
                                               : (int64_t)experts_most_tiles(a->pairs, a->n_mat, a->tile) *
                                                     ((a->panels + a->run - 1) / a->run);
    return jobs < grid ? (unsigned)jobs : grid;
}

/* ---- sums of pairs ---- */

struct experts_sums {
    const float *sums, *weights; /* [n, used, columns] */
    float *out;                  /* [n, ld], from the first column on */
    int64_t ld;
    int32_t used, columns, add;
};
/* Bound: the sums, read once. */
static __global__ void __launch_bounds__(256) experts_add(const __grid_constant__ experts_sums a)
{
    cuda_grid_start();
    const int row = blockIdx.y, i = blockIdx.x * 256 + threadIdx.x;
    if (i >= a.columns) return;
    const float *p = a.sums + (size_t)row * (size_t)a.used * (size_t)a.columns + i;
    float y = 0.0f;
    for (int j = 0; j < a.used; j++)
        y = __fmaf_rn(__ldcg(a.weights + (size_t)row * a.used + j), __ldcg(p + (size_t)j * a.columns), y);
    float *out = a.out + (size_t)row * (size_t)a.ld + i;
    *out = a.add ? __fadd_rn(__ldcg(out), y) : y;
}

/* ---- launches ---- */

static cudaError_t launch_down(struct cuda_backend *be, const struct experts_product *p,
                               struct experts_args *a, experts_kernel_fn f, enum experts_form form,
                               unsigned grid)
{
    const size_t column = (size_t)a->pairs * sizeof(float);
    int64_t most = (int64_t)(EXPERTS_SUMS_BYTES / (16 * column));
    cudaError_t err = cudaSuccess;
    if (most > a->all_panels) most = a->all_panels;
    for (int32_t first = 0; first < a->all_panels && !err; first += (int32_t)most) {
        a->first_panel = first;
        a->panels = (int32_t)(a->all_panels - first < most ? a->all_panels - first : most);
        const int32_t left = a->n_out - 16 * first, columns = left < 16 * a->panels ? left : 16 * a->panels;
        a->ld = columns;
        a->out = be->experts_sums;
        cut_runs(a, form, grid);
        err = cuda_launch(be, f, dim3(blocks_of(a, form, grid)), dim3(32 * (unsigned)a->warps), a->at.total,
                          *a);
        const struct experts_sums s = {
            be->experts_sums, a->weights, p->out + 16 * first, p->w[0]->n_out, a->used, columns, p->add};
        if (!err)
            err = cuda_launch(be, experts_add, dim3((unsigned)(columns + 255) / 256, (unsigned)a->n),
                              dim3(256), 0, s);
    }
    return err;
}

/* Rows of one launch of each kernel. */
static int run_rows(struct cuda_backend *be, const struct experts_product *p)
{
    const struct kn_weight *w0 = p->w[0];
    const struct mm_type *t = mm_type_of(w0->type);
    struct experts_args a = {};
    enum experts_form form = EXPERTS_PLAIN;
    unsigned grid = 0;
    const int rc = cut_slices(be, p, t, &a);
    if (rc) return rc;
    for (int j = 0; j < p->members; j++) {
        a.w[j] = (const uint8_t *)p->w[j]->packed;
        a.type[j] = p->w[j]->type;
        a.unit_bytes[j] = mm_type_of(p->w[j]->type)->unit_bytes;
    }
    a.rows = be->mm_rows;
    a.ids = p->ids;
    a.weights = p->weights;
    a.out = p->out;
    a.ld = w0->n_out;
    a.n = p->n;
    a.used = p->used;
    a.pairs = p->n * p->used;
    a.n_mat = w0->n_mat;
    a.per_row = p->members == 2 && p->used > 1
                    ? (uint32_t)((0x100000000u + (uint32_t)p->used - 1) / (uint32_t)p->used)
                    : 0;
    a.all_panels = a.panels = (int32_t)((w0->n_out + 15) / 16);
    a.n_out = (int32_t)w0->n_out;
    a.members = p->members;
    a.act = (int32_t)p->act;
    a.add = p->add;
    a.early = is_whole(t->act);
    const experts_kernel_fn f = choose(be, p, &a, t->act, &form, &grid);
    if (!f)
        return cuda_fail(be, KN_ETYPE,
                         "%s: %d bytes of shared memory a block are too few for rows of %lld values of %s",
                         p->name, be->smem_block, (long long)w0->n_in, kn_type_info(w0->type)->name);
    const struct mm_prep prep = {p->x,    p->norm,   be->mm_rows,   p->eps,   (int32_t)w0->n_in,
                                 a.units, t->unit_k, a.slice_units, a.slices, a.slice_row};
    cudaError_t err = prepare(be, t->act, &prep, p->members == 2 ? p->n : a.pairs);
    if (!err && p->members == 1 && form != EXPERTS_OWNED) {
        err = launch_down(be, p, &a, f, form, grid);
    } else if (!err) {
        cut_runs(&a, form, grid);
        err =
            cuda_launch(be, f, dim3(blocks_of(&a, form, grid)), dim3(32 * (unsigned)a.warps), a.at.total, a);
    }
    return cuda_check(be, p->name, err);
}

static int check(struct cuda_backend *be, const struct experts_product *p)
{
    const struct kn_weight *a = p->w[0], *b = p->w[p->members - 1];
    for (int j = 0; j < p->members; j++)
        if (!p->w[j]->packed || p->w[j]->n_mat < 1 || !mm_type_of(p->w[j]->type))
            return cuda_fail(be, KN_EINVAL, "%s: a weight that experts_load did not load", p->name);
    if (a->n_in != b->n_in || a->n_out != b->n_out || a->n_mat != b->n_mat)
        return cuda_fail(be, KN_EINVAL, "%s: unequal shapes [%d, %lld, %lld] and [%d, %lld, %lld]", p->name,
                         a->n_mat, (long long)a->n_out, (long long)a->n_in, b->n_mat, (long long)b->n_out,
                         (long long)b->n_in);
    if (p->n < 1 || p->used < 1)
        return cuda_fail(be, KN_EINVAL, "%s: %d rows of %d experts", p->name, p->n, p->used);
    if (p->used > EXPERTS_USED)
        return cuda_fail(be, KN_ETYPE, "%s: %d experts a row (at most %d)", p->name, p->used, EXPERTS_USED);
    if (mm_type_of(a->type)->act != mm_type_of(b->type)->act)
        return cuda_fail(be, KN_ETYPE, "%s: gate of type %s and up of type %s (expected the same)", p->name,
                         kn_type_info(a->type)->name, kn_type_info(b->type)->name);
    return 0;
}

/* As many rows at a time as the tables of pairs and the prepared activations have room for. */
static int run(struct kn_backend *kb, const struct experts_product *p)
{
    struct cuda_backend *be = cuda_of(kb);
    int rc = check(be, p);
    if (rc) return rc;
    struct experts_args cut = {};
    rc = cut_slices(be, p, mm_type_of(p->w[0]->type), &cut);
    if (rc) return rc;
    const int32_t each = p->members == 2 ? 1 : p->used; /* rows of activations a row */
    const size_t room = be->mm_rows_bytes / ((size_t)each * (size_t)cut.slices * (size_t)cut.slice_row);
    int32_t most = EXPERTS_PAIRS / p->used;
    if (room < 1)
        return cuda_fail(be, KN_ETYPE, "%s: rows of %lld values are too long", p->name,
                         (long long)p->w[0]->n_in);
    if (room < (size_t)most) most = (int32_t)room;
    for (int32_t i = 0; i < p->n && rc == 0; i += most) {
        struct experts_product part = *p;
        part.n = p->n - i < most ? p->n - i : most;
        part.x += (int64_t)i * each * p->w[0]->n_in;
        part.out += (int64_t)i * p->w[0]->n_out * (p->members == 2 ? p->used : 1);
        part.ids += (int64_t)i * p->used;
        if (part.weights) part.weights += (int64_t)i * p->used;
        rc = run_rows(be, &part);
    }
    return rc;
}

int cuda_experts_gated(struct kn_backend *kb, float *out, const struct kn_weight *gate,
                       const struct kn_weight *up, const float *x, const float *norm, float eps,
                       enum kn_act act, const int32_t *ids, int32_t n, int32_t n_used)
{
    const struct experts_product p = {"experts_gated", {gate, up}, 2,    n, n_used, x, norm, eps, act, ids,
                                      nullptr,         out,        false};
    return run(kb, &p);
}

int cuda_experts_down(struct kn_backend *kb, float *out, const struct kn_weight *w, const float *h,
                      const int32_t *ids, const float *weights, int32_t n, int32_t n_used, bool add)
{
    const struct experts_product p = {"experts_down", {w, nullptr}, 1,   n,       n_used, h,  nullptr,
                                      0.0f,           KN_ACT_SILU,  ids, weights, out,    add};
    return run(kb, &p);
}
