/* experts.cu - products with the matrices that rows chose: launches. Plans are in experts_plan.c, the kernel
 * in experts/kernel.cuh, its arithmetic in mm_int.cuh and mm_frag.cuh.
 *
 * experts_gated: one small kernel rounds the rows' activations (experts/rows.cu), one multiplies.
 * experts_down: the same for [rows, chosen], and where rows are too many for the owning form a kernel adds
 * the pairs of a row. A mixture is both, with its router and the choice beside the rounding
 * (experts/router.cu), or, of one row, one launch (experts/whole.cu). */
#include "experts.cuh"
#include "../core/ops.cuh"

struct experts_product {
    const char *name;
    const struct kn_weight *w[2], *shared[2]; /* shared: or NULL; then one of used is it */
    int32_t members, n, used;
    const float *x, *norm;
    float eps;
    enum kn_act act;
    const int32_t *ids;
    const float *weights;
    float *out;
    bool add;
    const struct kn_mixture *mixture; /* NULL, or whose router runs beside the preparation */
    bool chosen;                      /* ids and weights were there before the product before */
};

/* low: the highest mm_low of its matrices. */
static experts_kernel_fn kernel_of(enum mm_act act, int log2_tiles, enum experts_form form, bool generic,
                                   int low)
{
    experts_kernel_fn f = low == 2 ? experts_kernel_grid(act, log2_tiles, form, generic)
                          : low    ? experts_kernel_low(act, log2_tiles, form, generic)
                                   : experts_kernel_k(act, log2_tiles, form, generic);
    if (!f) f = experts_kernel_32(act, log2_tiles, form, generic);
    return f ? f : experts_kernel_float(act, log2_tiles, form, generic);
}

/* ---- opening ---- */

int cuda_experts_open(struct cuda_backend *be)
{
    if (be->experts_sums) return 0;
    for (int act = MM_ACT_K; act <= MM_ACT_F32; act++)
        for (int form = 0; form < EXPERTS_FORMS; form++)
            for (int l = 0; l < 18; l++) {
                experts_kernel_fn f =
                    kernel_of((enum mm_act)act, l % 3, (enum experts_form)form, l / 3 % 2, l / 6);
                if (!f) continue;
                const cudaError_t err =
                    cudaFuncSetAttribute(f, cudaFuncAttributeMaxDynamicSharedMemorySize, be->smem_block);
                if (err) return cuda_check(be, "kernels of experts", err);
            }
    const int rc = experts_whole_open(be);
    if (rc) return rc;
    cudaError_t err = cudaMalloc(&be->experts_sums, cuda_experts_bytes());
    if (err) return cuda_check(be, "memory for sums of experts", err);
    be->experts_tag = (unsigned *)((uint8_t *)be->experts_sums + EXPERTS_SUMS_BYTES);
    be->experts_values = (unsigned long long *)(be->experts_tag + 64);
    uint8_t *const words = (uint8_t *)be->experts_tag + EXPERTS_VALUES_BYTES;
    err = cudaMemsetAsync(be->experts_tag, 0, EXPERTS_VALUES_BYTES, be->stream);
    if (!err) err = cudaMemsetAsync(words, 0xff, EXPERTS_WORDS_BYTES, be->stream);
    if (!err) err = cudaMemsetAsync(words + EXPERTS_WORDS_BYTES, 0, EXPERTS_ROW_BYTES, be->stream);
    return cuda_check(be, "memory for sums of experts", err);
}

void cuda_experts_close(struct cuda_backend *be)
{
    experts_whole_close(be);
    cudaFree(be->experts_sums);
    be->experts_sums = nullptr;
    be->experts_tag = nullptr;
    be->experts_values = nullptr;
}

size_t cuda_experts_bytes(void)
{
    return EXPERTS_SUMS_BYTES + EXPERTS_VALUES_BYTES + EXPERTS_WORDS_BYTES + EXPERTS_ROW_BYTES;
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

struct experts_launch {
    struct experts_args a;
    struct experts_choice c;
    experts_kernel_fn kernel; /* NULL: none fits */
};

static cudaError_t launch_down(struct cuda_backend *be, const struct experts_product *p,
                               struct experts_launch *plan)
{
    struct experts_args *const a = &plan->a;
    const int32_t most = experts_plan_panels(a);
    cudaError_t err = cudaSuccess;
    for (int32_t first = 0; first < a->all_panels && !err; first += most) {
        a->first_panel = first;
        a->panels = a->all_panels - first < most ? a->all_panels - first : most;
        const int32_t left = a->n_out - 16 * first, columns = left < 16 * a->panels ? left : 16 * a->panels;
        a->ld = columns;
        a->out = be->experts_sums;
        const unsigned blocks = experts_plan_blocks(&plan->c, a);
        err = cuda_launch(be, plan->kernel, dim3(blocks), dim3(32 * (unsigned)a->warps), a->at.total, *a);
        const struct experts_sums s = {
            be->experts_sums, a->weights, p->out + 16 * first, p->w[0]->n_out, a->used, columns, p->add};
        if (!err)
            err = cuda_launch(be, experts_add, dim3((unsigned)(columns + 255) / 256, (unsigned)a->n),
                              dim3(256), 0, s);
    }
    return err;
}

/* The logits of a mixture by a product of their own. */
static int router(struct cuda_backend *be, const struct kn_mixture *m)
{
    float *const out[] = {m->logits, m->shared_logits};
    const struct kn_weight *const w[] = {m->router, m->shared_gate};
    if (!m->router) return 0;
    return cuda_norm_linear((struct kn_backend *)be, out, w, m->shared_gate ? 2 : 1, m->x, m->router_norm,
                            m->eps, m->route.n);
}

static struct experts_shape shape_of(const struct experts_product *p, int32_t n)
{
    const struct kn_weight *w0 = p->w[0];
    struct experts_shape s = {n, p->used, w0->n_mat, w0->n_in, w0->n_out, p->members, p->shared[0] != nullptr,
                              {}};
    for (int j = 0; j < 4; j++) {
        const struct kn_weight *w = j % 2 >= p->members ? nullptr : j < 2 ? p->w[j] : p->shared[j - 2];
        if (w) s.type[j] = w->type;
    }
    return s;
}
static int too_long(struct cuda_backend *be, const struct experts_product *p)
{
    return cuda_fail(be, KN_ETYPE, "%s: rows of %lld values of %s are too long", p->name,
                     (long long)p->w[0]->n_in, kn_type_info(p->w[0]->type)->name);
}
/* How n of the product's rows are run. */
static int make_plan(struct cuda_backend *be, const struct experts_product *p, int32_t n,
                     struct experts_launch *plan)
{
    const struct cuda_device dev = cuda_device_of(be);
    const struct experts_shape s = shape_of(p, n);
    struct experts_args *a = &plan->a;
    *plan = {};
    if (!experts_plan(&dev, &s, a, &plan->c)) return too_long(be, p);
    for (int j = 0; j < 4; j++) {
        const struct kn_weight *w = j % 2 >= p->members ? nullptr : j < 2 ? p->w[j] : p->shared[j - 2];
        if (w) a->w[j] = (const uint8_t *)w->packed;
        if (w && j < 2) a->host[j] = (const uint8_t *)w->host;
    }
    a->places = p->w[0]->places;
    a->rows = be->mm_rows;
    a->ids = p->ids;
    a->weights = p->weights;
    a->out = p->out;
    a->act = (int32_t)p->act;
    a->add = p->add;
    plan->kernel = plan->c.found ? kernel_of(product_type_of(s.type[0])->act, plan->c.log2_tiles,
                                             plan->c.form, !cuda_device_early(&dev), plan->c.low)
                                 : nullptr;
    return 0;
}

/* Rows of one launch of each kernel. */
static int run_rows(struct cuda_backend *be, const struct experts_product *p)
{
    const struct kn_weight *w0 = p->w[0];
    const struct mm_type *t = product_type_of(w0->type);
    struct experts_launch plan;
    struct experts_args &a = plan.a;
    int rc = make_plan(be, p, p->n, &plan);
    if (rc) return rc;
    const struct mm_prep prep = {p->x,    p->norm,   be->mm_rows,   p->eps,   (int32_t)w0->n_in,
                                 a.units, t->unit_k, a.slice_units, a.slices, a.slice_row};
    bool early = false;
    if (plan.c.form == EXPERTS_OWNED && p->n <= experts_tuning.made_rows) {
        a.x = p->x;
        a.n_in = (int32_t)w0->n_in;
        early = p->chosen;
    } else if (p->mixture && p->mixture->router && experts_router_fits(be, p->mixture, t->act)) {
        rc = experts_router(be, p->mixture, t->act, &prep);
    } else {
        rc = p->mixture ? router(be, p->mixture) : 0;
        if (rc == 0)
            rc = experts_prepare(be, p->name, t->act, &prep, p->members == 2 ? p->n : a.pairs,
                                 p->mixture ? &p->mixture->route : nullptr,
                                 p->mixture && p->mixture->shared[0] ? p->mixture->shared_logits : nullptr,
                                 &early);
    }
    if (rc) return rc;
    a.early = early;
    static_assert(CUDA_EXPERTS_PLAIN + EXPERTS_OWNED == CUDA_EXPERTS_OWNED,
                  "forms.h has experts_form's order");
    cuda_count(be, (enum cuda_form)(CUDA_EXPERTS_PLAIN + plan.c.form));
    cudaError_t err = cudaSuccess;
    if (p->members == 1 && plan.c.form != EXPERTS_OWNED) {
        err = launch_down(be, p, &plan);
    } else {
        const unsigned blocks = experts_plan_blocks(&plan.c, &a);
        err = cuda_launch(be, plan.kernel, dim3(blocks), dim3(32 * (unsigned)a.warps), a.at.total, a);
    }
    return cuda_check(be, p->name, err);
}

static int check(struct cuda_backend *be, const struct experts_product *p)
{
    const struct kn_weight *a = p->w[0], *b = p->w[p->members - 1];
    for (int j = 0; j < p->members; j++)
        if (!p->w[j]->packed || p->w[j]->n_mat < 1 || !product_type_of(p->w[j]->type))
            return cuda_fail(be, KN_EINVAL, "%s: a weight that experts_load did not load", p->name);
    if (a->n_in != b->n_in || a->n_out != b->n_out || a->n_mat != b->n_mat)
        return cuda_fail(be, KN_EINVAL, "%s: unequal shapes [%d, %lld, %lld] and [%d, %lld, %lld]", p->name,
                         a->n_mat, (long long)a->n_out, (long long)a->n_in, b->n_mat, (long long)b->n_out,
                         (long long)b->n_in);
    if (a->n_host != b->n_host)
        return cuda_fail(be, KN_EINVAL, "%s: matrices with %d and %d experts in the host's memory", p->name,
                         a->n_host, b->n_host);
    if (p->n < 1 || p->used < 1)
        return cuda_fail(be, KN_EINVAL, "%s: %d rows of %d experts", p->name, p->n, p->used);
    if (p->used > EXPERTS_USED)
        return cuda_fail(be, KN_ETYPE, "%s: %d experts a row (at most %d)", p->name, p->used, EXPERTS_USED);
    if (product_type_of(a->type)->act != product_type_of(b->type)->act)
        return cuda_fail(be, KN_ETYPE, "%s: gate of type %s and up of type %s (expected the same)", p->name,
                         kn_type_info(a->type)->name, kn_type_info(b->type)->name);
    return 0;
}

/* Rows at a time. */
static int cut_rows(struct cuda_backend *be, const struct experts_product *p, int32_t *rows)
{
    const struct cuda_device dev = cuda_device_of(be);
    const struct experts_shape s = shape_of(p, p->n);
    *rows = experts_plan_rows(&dev, &s, be->mm_rows_bytes);
    if (*rows < 0) return too_long(be, p);
    if (*rows > 0) return 0;
    return cuda_fail(be, KN_ETYPE,
                     "%s: %d bytes of shared memory a block are too few for rows of %lld values of %s",
                     p->name, be->smem_block, (long long)p->w[0]->n_in, kn_type_info(p->w[0]->type)->name);
}

struct kn_mixture experts_rows_of(const struct kn_mixture *m, int32_t i, int32_t n, int32_t used)
{
    struct kn_mixture part = *m;
    part.route.n = n;
    part.route.logits += (int64_t)i * m->route.n_expert;
    part.route.ids += (int64_t)i * used;
    part.route.weights += (int64_t)i * used;
    part.x += (int64_t)i * m->gate->n_in;
    if (part.logits) part.logits += (int64_t)i * m->route.n_expert;
    if (part.shared_logits) part.shared_logits += i;
    return part;
}

static int run(struct kn_backend *kb, const struct experts_product *p)
{
    struct cuda_backend *be = cuda_of(kb);
    const int32_t each = p->members == 2 ? 1 : p->used;
    int32_t most = 0;
    int rc = check(be, p);
    if (rc == 0) rc = cut_rows(be, p, &most);
    if (rc) return rc;
    for (int32_t i = 0; i < p->n && rc == 0; i += most) {
        struct experts_product part = *p;
        part.n = p->n - i < most ? p->n - i : most;
        part.x += (int64_t)i * each * p->w[0]->n_in;
        part.out += (int64_t)i * p->w[0]->n_out * (p->members == 2 ? p->used : 1);
        part.ids += (int64_t)i * p->used;
        if (part.weights) part.weights += (int64_t)i * p->used;
        struct kn_mixture m = {};
        if (p->mixture) {
            m = experts_rows_of(p->mixture, i, part.n, p->used);
            part.mixture = &m;
        }
        rc = run_rows(be, &part);
    }
    return rc;
}

int cuda_experts_gated(struct kn_backend *kb, float *out, const struct kn_weight *gate,
                       const struct kn_weight *up, const float *x, const float *norm, float eps,
                       enum kn_act act, const int32_t *ids, int32_t n, int32_t n_used)
{
    struct experts_product p = {};
    p.name = "experts_gated", p.w[0] = gate, p.w[1] = up, p.members = 2, p.n = n, p.used = n_used;
    p.x = x, p.norm = norm, p.eps = eps, p.act = act, p.ids = ids, p.out = out;
    return run(kb, &p);
}

int cuda_experts_down(struct kn_backend *kb, float *out, const struct kn_weight *w, const float *h,
                      const int32_t *ids, const float *weights, int32_t n, int32_t n_used, bool add)
{
    struct experts_product p = {};
    p.name = "experts_down", p.w[0] = w, p.members = 1, p.n = n, p.used = n_used;
    p.x = h, p.ids = ids, p.weights = weights, p.out = out, p.add = add;
    return run(kb, &p);
}

bool cuda_mixture_shares(const struct kn_weight *experts, const struct kn_weight *shared)
{
    const struct mm_type *a = product_type_of(experts->type), *b = product_type_of(shared->type);
    return a && b && a->act == b->act && shared->n_mat == 0 && shared->n_in == experts->n_in &&
           shared->n_out == experts->n_out;
}

int cuda_mixture(struct kn_backend *kb, const struct kn_mixture *m)
{
    struct cuda_backend *be = cuda_of(kb);
    const struct kn_weight *const own[3] = {m->gate, m->up, m->down};
    const bool shared = m->shared[0] != nullptr;
    const struct kn_route *r = &m->route;
    for (int j = 0; shared && j < 3; j++)
        if (!m->shared[j] || !m->shared_logits || !m->shared[j]->packed ||
            !cuda_mixture_shares(own[j], m->shared[j]))
            return cuda_fail(be, KN_EINVAL,
                             "mixture: a shared expert of another shape or kind than the others");
    if (r->n < 1 || r->n_used < 1 || r->n_used > r->n_expert || r->n_expert != m->gate->n_mat)
        return cuda_fail(be, KN_EINVAL, "mixture: %d rows to %d of %d experts, with %d matrices", r->n,
                         r->n_used, r->n_expert, m->gate->n_mat);
    if (m->router &&
        (m->router->n_in != m->gate->n_in || m->router->n_out != r->n_expert || !m->logits ||
         (m->shared_gate && (m->shared_gate->n_in != m->gate->n_in || m->shared_gate->n_out != 1)) ||
         (shared && !m->shared_gate)))
        return cuda_fail(be, KN_EINVAL, "mixture: a router of another shape than the experts");
    if (r->n_used > EXPERTS_USED - 1 || r->n_expert > EXPERTS_MATRICES)
        return cuda_fail(be, KN_ETYPE, "mixture: %d of %d experts (at most %d of %d)", r->n_used, r->n_expert,
                         EXPERTS_USED - 1, EXPERTS_MATRICES);
    struct experts_product p = {};
    p.name = "mixture", p.w[0] = m->gate, p.w[1] = m->up, p.members = 2;
    p.shared[0] = m->shared[0], p.shared[1] = m->shared[1];
    p.n = r->n, p.used = r->n_used + (shared ? 1 : 0), p.ids = r->ids;
    p.x = m->x, p.norm = m->norm, p.eps = m->eps, p.act = m->act, p.out = m->h, p.mixture = m;
    bool whole;
    int rc = experts_whole(be, m, &whole);
    if (rc || whole) return rc;
    rc = run(kb, &p);
    if (rc) return rc;
    p.w[0] = m->down, p.shared[0] = m->shared[2], p.w[1] = p.shared[1] = nullptr, p.members = 1;
    p.x = m->h, p.norm = nullptr, p.weights = r->weights, p.out = m->out, p.add = m->add;
    p.mixture = nullptr, p.chosen = true;
    return run(kb, &p);
}
