/* mm.cu - matrix products: types, launches. The plans are in mm_plan.c, the arithmetic in mm_kernel.cuh,
 * mm_int.cuh, mm_frag.cuh. */
#include "../chain/chain.cuh"
#include "../core/copy.cuh"
#include "../prompt/many.cuh"
#include "mm_plan.h"

#include <stdlib.h>
#include <string.h>

#define MM_PARTIAL_BYTES ((size_t)48 << 20)
#define MM_COUNTERS ((MM_SLICES_MAX + 1) * MM_GROUPS)

mm_kernel_fn mm_kernel_of(enum mm_act act, int log2_tiles, int warps, bool generic, int low)
{
    mm_kernel_fn f = low == 2 ? mm_kernel_grid(act, log2_tiles, warps, generic)
                     : low    ? mm_kernel_low(act, log2_tiles, warps, generic)
                              : mm_kernel_k(act, log2_tiles, warps, generic);
    if (!f) f = mm_kernel_32(act, log2_tiles, warps, generic);
    return f ? f : mm_kernel_float(act, log2_tiles, warps, generic);
}

/* ---- opening ---- */

int cuda_mm_open(struct cuda_backend *be)
{
    cudaError_t err = cudaSuccess;
    const auto give_room = [&](mm_kernel_fn f) {
        if (f && !err)
            err = cudaFuncSetAttribute(f, cudaFuncAttributeMaxDynamicSharedMemorySize, be->smem_block);
    };
    for (int act = MM_ACT_K; act <= MM_ACT_F32; act++)
        for (int l = 0; l < 28; l++) /* tiles; generic or not, by mm_low; 16 warps */
            give_room(mm_kernel_of((enum mm_act)act, l % 4, l < 24 ? MM_WARPS : MM_WARPS_MOST,
                                   l < 24 && l / 4 % 2, l < 24 ? l / 8 : 0));
    for (int l = 0; l < 6 * MM_ACT_F32; l++) give_room(mm_kernel_few((enum mm_act)(l / 6), l % 2, l / 2 % 3));
    give_room(mm_kernel_few_late());
    for (int l = 0; l < 4 * 17; l++) {
        give_room(mm_kernel_wide(8 * (l % 17), l / 17 + 1));
        give_room(mm_kernel_wide_grid(8 * (l % 17), l / 17 + 1));
    }
    if (err) return cuda_check(be, "matrix product kernels", err);
    if (mm_owed_open(be)) return KN_EMEM;
    be->mm_partial_bytes = MM_PARTIAL_BYTES;
    be->mm_rows_bytes = MM_ROWS_BYTES;
    err = cudaMalloc(&be->mm_partial, be->mm_partial_bytes);
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

static int cut_slices(struct cuda_backend *be, const struct mm_type *t, int64_t n_in, struct mm_args *a)
{
    return mm_plan_slices(t, n_in, a)
               ? 0
               : cuda_fail(be, KN_ETYPE, "matrix product: rows of %lld values of %s are too long",
                           (long long)n_in, kn_type_info(t->type)->name);
}

static bool few_format(const struct cuda_backend *be, enum mm_act act, int32_t n, int32_t slice_units)
{
    const struct cuda_device dev = cuda_device_of(be);
    return mm_few_format(&dev, act, n, slice_units);
}
/* The slices' rows, and where `side` is. */
static uint8_t *few_side_of(const struct cuda_backend *be, int32_t n, struct mm_args *a)
{
    a->slice_row = mm_few_row(a->slice_units);
    return be->mm_rows + (size_t)n * (size_t)a->slices * (size_t)a->slice_row;
}

/* How n rows for w are prepared: all of *p but x, norm and eps. */
static int prepare_for(struct cuda_backend *be, const struct kn_weight *w, int32_t n, struct mm_prep *p)
{
    const struct mm_type *t = product_type_of(w->type);
    const struct cuda_device dev = cuda_device_of(be);
    struct mm_args a = {};
    const int rc = cut_slices(be, t, w->n_in, &a);
    *p = {};
    if (mm_wide_format(&dev, t->act, n))
        a.slice_row = mm_wide_slice(n, a.slice_units), p->wide = mm_wide_rows(n);
    if (few_format(be, t->act, n, a.slice_units)) p->side = few_side_of(be, n, &a);
    p->rows = be->mm_rows, p->n_in = (int32_t)w->n_in, p->units = a.units, p->unit_k = t->unit_k;
    p->slice_units = a.slice_units, p->slices = a.slices, p->slice_row = a.slice_row;
    p->tiles = n > 8 ? 2 : 1;
    return rc;
}

bool mm_preparing(struct cuda_backend *be, const struct kn_weight *w, int32_t n, struct mm_prep *a,
                  enum mm_act *act)
{
    const struct mm_type *t = product_type_of(w->type);
    if (!t || !mm_is_int8(t->act) || w->n_in % 256 || prepare_for(be, w, n, a)) return false;
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

static mm_kernel_fn kernel_of(const struct cuda_backend *be, enum mm_act act, const struct mm_choice *c)
{
    return c->form == MM_FEW_LATE ? mm_kernel_few_late()
           : c->form == MM_WIDE
               ? (c->low == 2 ? mm_kernel_wide_grid : mm_kernel_wide)(c->wide_rows, c->wide_groups)
           : c->few ? mm_kernel_few(act, c->log2_tiles, c->low)
                    : mm_kernel_of(act, c->log2_tiles, c->warps, be->generic || be->cc < 90, c->low);
}

/* Launch over all panels: as many at a time as the partial sums have room for. */
static int launch_panels(struct cuda_backend *be, const char *name, const struct mm_group *g,
                         struct mm_args *a, struct mm_choice *c)
{
    const struct cuda_device dev = cuda_device_of(be);
    const bool wide = c->form == MM_WIDE;
    const int32_t most = wide ? g->panels : mm_plan_panels(&dev, c, g->panels, be->mm_partial_bytes, a);
    if (wide)
        a->count = be->mm_count; /* those of one slice, which nobody else uses */
    else if (!a->left && a->block_slices < a->slices)
        a->count = be->mm_count + (size_t)a->slices * MM_GROUPS;
    for (int32_t first = 0; first < g->panels; first += most) {
        if (!wide) mm_plan_launch(&dev, c, first, most, g->panels, a);
        const mm_kernel_fn f = kernel_of(be, g->t->act, c);
        static_assert(CUDA_PRODUCT_GENERIC + MM_WIDE == CUDA_PRODUCT_WIDE, "forms.h has mm_form's order");
        cuda_count(be, (enum cuda_form)(CUDA_PRODUCT_GENERIC + c->form));
        const dim3 blocks((unsigned)c->blocks), threads((unsigned)(32 * c->warps));
        const int err = cuda_check(be, name,
                                   a->cluster > 1 ? cuda_launch_clusters(be, f, blocks, threads, a->at.total,
                                                                         (unsigned)a->cluster, *a)
                                                  : cuda_launch(be, f, blocks, threads, a->at.total, *a));
        if (err) return err;
    }
    return 0;
}

int mm_norm_add(struct cuda_backend *be, const struct mm_add *add, int32_t n, int64_t width, bool *done)
{
    const struct kn_weight *w = be->head.next_w;
    const float *norm = be->head.next_norm;
    const struct mm_type *t = w ? product_type_of(w->type) : nullptr;
    struct mm_prep p;
    *done = t && norm && add->weight && mm_is_int8(t->act) && w->n_in == width && width % 8 == 0 &&
            width <= MM_ADD_WIDTH && n <= MM_PREP_ROWS && ((uintptr_t)norm & 15) == 0;
    if (!*done) return 0;
    const int rc = prepare_for(be, w, n, &p);
    if (rc) return rc;
    p.x = add->out, p.norm = norm, p.eps = add->eps;
    const int err = cuda_check(be, "norm_add", mm_add_prepare(be, t->act, add, &p, n));
    be->rounded = {be->launches, add->out, norm, add->eps, n, t->act, (int32_t)width, p.slice_row};
    return err;
}
/* Has norm_add just left the product's rows in mm_rows? */
static bool is_rounded(const struct cuda_backend *be, const struct mm_product *p, enum mm_act act,
                       int32_t slice_row)
{
    return be->rounded.x && be->rounded.launches == be->launches && be->rounded.x == p->x &&
           be->rounded.norm == p->norm && be->rounded.eps == p->eps && be->rounded.n == p->n &&
           be->rounded.act == act && be->rounded.slice_row == slice_row && be->rounded.n_in == p->w[0]->n_in;
}

/* The matrices list[0 .. count - 1] of the product, which want the same activations. */
static int make_group(struct cuda_backend *be, const struct mm_product *p, const int *list, int count,
                      struct mm_group *g, struct mm_args *a)
{
    const struct kn_weight *w0 = p->w[list[0]];
    struct mm_shape s = {};
    s.n_w = count, s.n = p->n, s.n_in = w0->n_in;
    s.gated = p->gated, s.norm = p->norm, s.placed = true;
    for (int i = 0; i < count; i++) {
        const struct kn_weight *w = p->w[list[i]];
        s.type[i] = w->type, s.n_out[i] = w->n_out;
        s.placed &= (uintptr_t)p->out[list[i]] % 16 == 0;
        a->w[i] = (const uint8_t *)w->packed;
    }
    if (!mm_plan_group(&s, be->mm_partial_bytes, g, a))
        return cut_slices(be, product_type_of(w0->type), w0->n_in, a);
    a->partial = be->mm_partial;
    a->add = p->add;
    a->act = p->act;
    return 0;
}

/* Are the rows at x prepared already? */
static int find_rows(struct cuda_backend *be, const struct mm_product *p, const struct mm_group *g,
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
static int launch_rows(struct cuda_backend *be, const struct mm_product *p, const int *list, int count,
                       const struct mm_group *g, struct mm_args *a, int32_t row, int32_t rows,
                       const struct mm_prep *prep, bool prepared)
{
    const struct cuda_device dev = cuda_device_of(be);
    int err = 0;
    for (int32_t i = 0; i < rows && !err; i += a->n) {
        struct mm_choice c;
        if (prep->wide)
            mm_plan_wide(&dev, g, rows, be->mm_partial_bytes, a, &c);
        else if (!mm_plan_rows(&dev, g, rows - i, a, &c))
            return cuda_fail(be, KN_ETYPE,
                             "%s: %d bytes of shared memory a block are too few for rows of %lld values of "
                             "%s on %d multiprocessors",
                             p->name, be->smem_block, (long long)prep->n_in, kn_type_info(g->t->type)->name,
                             be->sm_count);
        if (!prepared) err = cuda_check(be, p->name, mm_prepare(be, g->t->act, prep, rows, c.few));
        prepared = true;
        a->rows = be->mm_rows + (size_t)i * (size_t)a->slices * (size_t)a->slice_row;
        for (int j = 0; j < count; j++)
            a->out[j] = p->out[list[j]] + (int64_t)(row + i) * p->w[list[j]]->n_out;
        if (!prep->wide) a->left = g->leave;
        if (!err) err = launch_panels(be, p->name, g, a, &c);
        if (!err && a->left) mm_owe(be, a, count);
    }
    return err;
}

static int launch_group(struct cuda_backend *be, const struct mm_product *p, const int *list, int count)
{
    const struct cuda_device dev = cuda_device_of(be);
    const struct kn_weight *w0 = p->w[list[0]];
    struct mm_args a = {};
    struct mm_group g;
    int err = make_group(be, p, list, count, &g, &a);
    const int32_t most = mm_wide_format(&dev, g.t->act, p->n) ? p->n : MM_PREP_ROWS;
    for (int32_t row = 0; row < p->n && !err; row += most) {
        const int32_t rows = p->n - row < most ? p->n - row : most;
        const float *x = p->x + (int64_t)row * w0->n_in;
        if (mm_few_format(&dev, g.t->act, p->n, a.slice_units)) {
            struct mm_choice c;
            a.side = few_side_of(be, p->n, &a);
            if (!mm_plan_few(&dev, &g, p->n, &a, &c)) /* tuned so */
                a.side = nullptr, a.slice_row = mm_slice_row(g.t->act, a.slice_units);
        }
        const bool wide = mm_wide_format(&dev, g.t->act, p->n);
        if (wide) a.slice_row = mm_wide_slice(p->n, a.slice_units);
        const struct mm_prep prep = {x,
                                     p->norm,
                                     be->mm_rows,
                                     p->eps,
                                     (int32_t)w0->n_in,
                                     a.units,
                                     g.t->unit_k,
                                     a.slice_units,
                                     a.slices,
                                     a.slice_row,
                                     (uint8_t *)a.side,
                                     p->n > 8 ? 2 : 1,
                                     wide ? mm_wide_rows(p->n) : 0};
        bool prepared;
        if ((err = find_rows(be, p, &g, &a, x, &prep, &prepared))) break;
        err = launch_rows(be, p, list, count, &g, &a, row, rows, &prep, prepared);
    }
    return err;
}

static int check(struct cuda_backend *be, const struct mm_product *p)
{
    if (p->n < 1 || p->n_w < 1 || p->n_w > MM_WIDTH_MAX || !p->x)
        return cuda_fail(be, KN_EINVAL, "%s: %d rows with %d matrices (expected 1 or more with 1 to %d)",
                         p->name, p->n, p->n_w, MM_WIDTH_MAX);
    for (int j = 0; j < p->n_w; j++) {
        if (!p->w[j]->packed || !product_type_of(p->w[j]->type))
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

static int run_rows(struct cuda_backend *be, const struct mm_product *p)
{
    int err = 0;
    bool done[MM_WIDTH_MAX] = {};
    for (int j = 0; j < p->n_w && !err; j++) {
        int list[MM_WIDTH_MAX], count = 0;
        if (done[j]) continue;
        for (int i = j; i < p->n_w; i++)
            if (!done[i] && product_type_of(p->w[i]->type)->act == product_type_of(p->w[j]->type)->act) {
                done[i] = true;
                list[count++] = i;
            }
        err = launch_group(be, p, list, count);
    }
    return err;
}

static int add_to_chain(struct cuda_backend *be, const struct mm_product *p)
{
    struct chain_product c = {p->name, {},     {},       p->n_w, p->x,   p->norm,
                              p->eps,  p->add, p->gated, p->act, nullptr};
    for (int32_t j = 0; j < p->n_w; j++) c.w[j] = p->w[j], c.out[j] = p->out[j];
    const int with = experts_then(be, &c);
    return with ? with : chain_add(be, &c);
}
int chain_alone(struct cuda_backend *be, const struct chain_product *c)
{
    struct mm_product p = {c->name, {}, {}, c->n_w, 1, c->x, c->norm, c->eps, c->add, c->gated, c->act};
    for (int32_t j = 0; j < c->n_w; j++) p.w[j] = c->w[j], p.out[j] = c->out[j];
    const int rc = c->gate ? chain_gate_alone(be, c) : 0;
    return rc ? rc : run_rows(be, &p);
}

/* Rows row .. row + n - 1 of the product. */
static struct mm_product part_of(const struct mm_product *p, int32_t row, int32_t n)
{
    struct mm_product part = *p;
    part.n = p->n - row < n ? p->n - row : n;
    part.x += (int64_t)row * p->w[0]->n_in;
    for (int j = 0; j < p->n_w; j++) part.out[j] += (int64_t)row * p->w[j]->n_out;
    return part;
}

/* As many rows at a time as mm_wide.cuh takes. */
static int run_parts(struct cuda_backend *be, const struct mm_product *p)
{
    const int32_t most = mm_tuning.wide_most;
    int err = 0;
    for (int32_t row = 0; row < p->n && !err; row += most) {
        const struct mm_product part = part_of(p, row, most);
        err = run_rows(be, &part);
        if (!err && part.n < p->n) err = cuda_flush(be); /* sums of slices: the next part wants their place */
    }
    return err;
}

/* MANY_ROWS rows at a time (many_tuning.rows): through tiles or the library where those are wanted, else the
 * row kernels. */
static int run(struct kn_backend *kb, const struct mm_product *p)
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
    if (many_by_rows(be, p)) return run_parts(be, p);
    for (int32_t row = 0; row < p->n && !err; row += many_tuning.rows) {
        const struct mm_product part = part_of(p, row, many_tuning.rows);
        err = many_wanted(be, part.n) ? many_run(be, &part) : run_rows(be, &part);
    }
    return err;
}

int cuda_linear(struct kn_backend *kb, float *out, const struct kn_weight *w, const float *x, int32_t n,
                bool add)
{
    const struct mm_product p = {"linear", {w}, {out}, 1, n, x, nullptr, 0.0f, add, false, KN_ACT_SILU};
    return run(kb, &p);
}

int cuda_norm_linear(struct kn_backend *kb, float *const *out, const struct kn_weight *const *w, int32_t n_w,
                     const float *x, const float *norm, float eps, int32_t n)
{
    struct mm_product p = {"norm_linear", {}, {}, n_w, n, x, norm, eps, false, false, KN_ACT_SILU};
    for (int32_t j = 0; j < n_w && j < MM_WIDTH_MAX; j++) p.w[j] = w[j], p.out[j] = out[j];
    return run(kb, &p);
}

int cuda_norm_gated(struct kn_backend *kb, float *out, const struct kn_weight *gate,
                    const struct kn_weight *up, const float *x, const float *norm, float eps, enum kn_act act,
                    int32_t n)
{
    const struct mm_product p = {"norm_gated", {gate, up}, {out, out}, 2, n, x, norm, eps, false, true, act};
    return run(kb, &p);
}
