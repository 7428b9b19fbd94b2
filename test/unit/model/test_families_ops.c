/* test_families_ops.c - the CPU's operations of norms after a branch, gates and experts: each against plain
 * code in double written here, and the same bits from every instruction set, thread count and grouping of
 * rows. */
#include "../../block_scales.h"
#include "../kernels/ops_util.h"

#define EPS32 0x1p-24 /* half an ulp of 1: the rounding of one float operation */

static bool same_bits(const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++) /* NaNs compare as one */
        if (memcmp(a + i, b + i, 4) && !(isnan(a[i]) && isnan(b[i]))) return false;
    return true;
}

/* ---- norm_add ---- */

struct norm_case {
    int n, width;
    bool weight, in_place;
    float scale;
};

static void norm_add_check(const struct norm_case *c, uint64_t seed)
{
    const size_t w = (size_t)c->width, size = (size_t)c->n * w;
    float *x = test_alloc(size * 4), *y = test_alloc(size * 4), *g = test_alloc(w * 4),
          *want = test_alloc(size * 4), *out = test_alloc(size * 4);
    const float *weight = c->weight ? g : NULL;
    struct kn_backend *be;
    rnd_fill(x, size, 3.0f, &seed);
    rnd_fill(y, size, 0.02f, &seed);
    rnd_fill(g, w, 1.0f, &seed);
    for (int b = 0; (be = test_backend(b)); b++) {
        float *o = b ? out : want;
        const int step = b == 1 ? 1 : c->n; /* rows alone, rows together */
        memcpy(o, x, size * 4);
        for (int i = 0; i < c->n; i += step)
            assert_ok(be, kn_op(be)->norm_add(be, o + (size_t)i * w, (c->in_place ? o : x) + (size_t)i * w,
                                              y + (size_t)i * w, weight, step, c->width, 1e-5f, c->scale));
        if (b) assert_true(same_bits(out, want, size));
        kn_backend_close(be);
    }
    for (int i = 0; i < c->n; i++) {
        const float *yi = y + (size_t)i * w;
        double s = 0;
        for (int j = 0; j < c->width; j++) s += (double)yi[j] * yi[j];
        for (int j = 0; j < c->width; j++) {
            const size_t at = (size_t)i * w + (size_t)j;
            const double t = yi[j] / sqrt(s / c->width + 1e-5f) * (c->weight ? g[j] : 1.0);
            /* the norm's roundings: a chain of width / 64 sums, the tree and six more, half of them in the
             * root; then a sum and a product, of x + t */
            const double bound =
                EPS32 * (fabs(t) * (c->width / 128.0 + 9) + 2 * fabs(x[at] + t)) * fabs(c->scale);
            assert_true(fabs(want[at] - (x[at] + t) * c->scale) <= bound + 1e-37);
        }
    }
    free(x), free(y), free(g), free(want), free(out);
}

static void test_norm_add(void **state)
{
    (void)state;
    static const struct norm_case cases[] = {
        {1, 1, true, false, 1.0f},    {3, 15, true, true, 0.5f},      {5, 64, false, true, 1.0f},
        {4, 130, true, false, 0.07f}, {7, 2816, true, true, 0.0625f}, {40, 2048, true, true, 1.0f},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) norm_add_check(cases + i, i + 1);
    struct kn_backend *be = test_fastest();
    float x[4] = {1, 2, 3, 4};
    assert_int_equal(kn_op(be)->norm_add(be, x, x, x, NULL, 0, 4, 1e-6f, 1.0f), KN_EINVAL);
    assert_int_equal(kn_op(be)->norm_add(be, x, x, x, NULL, 1, 0, 1e-6f, 1.0f), KN_EINVAL);
    assert_non_null(strstr(kn_message(be), "norm_add"));
    kn_backend_close(be);
}

/* ---- gate ---- */

static void gate_check(int n, int width, int g_width, uint64_t seed)
{
    const size_t size = (size_t)n * (size_t)width, gates = (size_t)n * (size_t)g_width;
    float *x = test_alloc(size * 4), *g = test_alloc(gates * 4), *want = test_alloc(size * 4),
          *out = test_alloc(size * 4);
    struct kn_backend *be;
    rnd_fill(x, size, 1.0f, &seed);
    rnd_fill(g, gates, 8.0f, &seed);
    g[gates - 1] = -95.0f; /* a subnormal factor */
    for (int b = 0; (be = test_backend(b)); b++) {
        float *o = b ? out : want;
        const int step = b == 1 ? 1 : n;
        memcpy(o, x, size * 4);
        for (int i = 0; i < n; i += step)
            assert_ok(be, kn_op(be)->gate(be, o + i * width, g + i * g_width, step, width, g_width));
        if (b) assert_true(same_bits(out, want, size));
        kn_backend_close(be);
    }
    for (size_t i = 0; i < size; i++) {
        const double s = x[i] / (1 + exp(-(double)g[g_width == 1 ? i / (size_t)width : i]));
        assert_true(fabs(want[i] - s) <= 7 * EPS32 * fabs(s) + 0x1p-148); /* 3 ulp of sigmoid and a product */
    }
    free(x), free(g), free(want), free(out);
}

static void test_gate(void **state)
{
    (void)state;
    static const int cases[][3] = {{1, 1, 1},     {3, 17, 17},  {5, 33, 1},
                                   {2, 256, 256}, {9, 2048, 1}, {16, 4096, 4096}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        gate_check(cases[i][0], cases[i][1], cases[i][2], i + 1);
    struct kn_backend *be = test_fastest();
    float x[8] = {0};
    assert_int_equal(kn_op(be)->gate(be, x, x, 1, 8, 4), KN_EINVAL);
    assert_non_null(strstr(kn_message(be), "gate"));
    assert_int_equal(kn_op(be)->gate(be, x, x, 0, 8, 8), KN_EINVAL);
    kn_backend_close(be);
}

/* ---- route ---- */

static void route_reference(const struct kn_route *a, int row, double *p)
{
    const float *l = a->logits + (size_t)row * (size_t)a->n_expert;
    double top = -INFINITY, sum = 0;
    for (int i = 0; i < a->n_expert; i++) top = l[i] > top ? l[i] : top;
    for (int i = 0; i < a->n_expert; i++) sum += p[i] = exp(l[i] - top);
    for (int i = 0; i < a->n_expert; i++) p[i] /= sum;
}

/* The row's choice against a plain one: logits fall, equal ones stand by id, nothing left out is larger. */
static void route_row_check(const struct kn_route *a, int row)
{
    const float *l = a->logits + (size_t)row * (size_t)a->n_expert, *w = a->weights + row * a->n_used;
    const int32_t *ids = a->ids + row * a->n_used;
    double *p = test_alloc((size_t)a->n_expert * sizeof *p), chosen = 0;
    bool *taken = test_alloc((size_t)a->n_expert * sizeof *taken);
    route_reference(a, row, p);
    for (int j = 0; j < a->n_used; j++) {
        assert_in_range(ids[j], 0, a->n_expert - 1);
        assert_false(taken[ids[j]]);
        taken[ids[j]] = true;
        chosen += p[ids[j]];
        if (j) assert_true(l[ids[j - 1]] > l[ids[j]] || (l[ids[j - 1]] == l[ids[j]] && ids[j - 1] < ids[j]));
    }
    const int last = ids[a->n_used - 1];
    for (int i = 0; i < a->n_expert; i++)
        if (!taken[i]) assert_true(l[i] < l[last] || (l[i] == l[last] && i > last));
    for (int j = 0; j < a->n_used; j++) {
        const double want =
            p[ids[j]] / (a->renorm ? chosen : 1) * a->scale * (a->expert_scale ? a->expert_scale[ids[j]] : 1);
        /* two exps of 1 ulp whose argument is off by half an ulp of up to 40, the sums of n/16 + 4 and
         * n_used, four more */
        const double bound = EPS32 * (2 * 2 + 2 * 40 + a->n_expert / 16 + 4 + a->n_used + 4);
        assert_true(fabs(w[j] - want) <= bound * fabs(want) + 1e-37);
    }
    free(p), free(taken);
}

static void route_check(int n, int n_expert, int n_used, bool renorm, bool scaled, uint64_t seed)
{
    const size_t size = (size_t)n * (size_t)n_expert, pairs = (size_t)n * (size_t)n_used;
    float *l = test_alloc(size * 4), *s = test_alloc((size_t)n_expert * 4), *want_w = test_alloc(pairs * 4),
          *w = test_alloc(pairs * 4);
    int32_t *want_ids = test_alloc(pairs * 4), *ids = test_alloc(pairs * 4);
    struct kn_backend *be;
    rnd_fill(l, size, 3.0f, &seed);
    rnd_fill(s, (size_t)n_expert, 1.0f, &seed);
    for (size_t i = 0; i < size; i += 3) l[i] = rintf(l[i]); /* ties */
    for (int b = 0; (be = test_backend(b)); b++) {
        const int step = b == 1 ? 1 : n;
        for (int i = 0; i < n; i += step) {
            struct kn_route a = {.logits = l + (size_t)i * (size_t)n_expert,
                                 .n = step,
                                 .n_expert = n_expert,
                                 .n_used = n_used,
                                 .renorm = renorm,
                                 .scale = scaled ? 2.5f : 1.0f,
                                 .expert_scale = scaled ? s : NULL,
                                 .ids = (b ? ids : want_ids) + i * n_used,
                                 .weights = (b ? w : want_w) + i * n_used};
            assert_ok(be, kn_op(be)->route(be, &a));
            for (int r = 0; !b && r < n; r++) route_row_check(&a, r);
        }
        if (b) {
            assert_true(same_bits(w, want_w, pairs));
            assert_memory_equal(ids, want_ids, pairs * 4);
        }
        kn_backend_close(be);
    }
    free(l), free(s), free(want_w), free(w), free(want_ids), free(ids);
}

static void test_route(void **state)
{
    (void)state;
    route_check(1, 1, 1, true, false, 1);
    route_check(3, 5, 5, true, true, 2);
    route_check(5, 17, 3, false, true, 3);
    route_check(33, 128, 8, true, false, 4);
    route_check(20, 512, 10, true, true, 5);
    route_check(70, 256, 8, false, false, 6);
}

static void test_route_ends(void **state)
{
    (void)state;
    for (int b = 0; b < TEST_BACKENDS; b += 3) {
        struct kn_backend *be = test_backend(b);
        if (!be) break;
        float l[5 * 4] = {1,
                          1,
                          1,
                          1,
                          /**/ 0,
                          NAN,
                          2,
                          1,
                          /**/ 0,
                          INFINITY,
                          1,
                          2,
                          /**/ -INFINITY,
                          3,
                          -INFINITY,
                          -INFINITY,
                          /**/ -INFINITY,
                          -INFINITY,
                          -INFINITY,
                          -INFINITY};
        float w[10];
        int32_t ids[10];
        struct kn_route a = {.logits = l,
                             .n = 5,
                             .n_expert = 4,
                             .n_used = 2,
                             .renorm = true,
                             .scale = 1,
                             .ids = ids,
                             .weights = w};
        assert_ok(be, kn_op(be)->route(be, &a));
        assert_true(ids[0] == 0 && ids[1] == 1 && w[0] == 0.5f && w[1] == 0.5f);
        for (int i = 2; i < 6; i++) assert_true(isnan(w[i]) && ids[i] == i % 2);
        assert_true(ids[6] == 1 && ids[7] == 0 && w[6] == 1.0f && w[7] == 0.0f);
        assert_true(isnan(w[8]) && isnan(w[9]) && ids[8] == 0 && ids[9] == 1);
        a.n_used = 5;
        assert_int_equal(kn_op(be)->route(be, &a), KN_EINVAL);
        assert_non_null(strstr(kn_message(be), "route"));
        a.n_used = 0;
        assert_int_equal(kn_op(be)->route(be, &a), KN_EINVAL);
        kn_backend_close(be);
    }
}

/* ---- experts ---- */

static const uint32_t types[] = {KN_F32,   KN_F16,     KN_BF16,   KN_Q8_0,  KN_Q4_0,    KN_Q5_0,
                                 KN_Q4_1,  KN_Q5_1,    KN_Q4_K,   KN_Q5_K,  KN_Q6_K,    KN_Q2_K,
                                 KN_Q3_K,  KN_IQ4_NL,  KN_IQ4_XS, KN_MXFP4, KN_IQ2_XXS, KN_IQ2_XS,
                                 KN_IQ2_S, KN_IQ3_XXS, KN_IQ3_S,  KN_IQ1_S, KN_IQ1_M};
#define N_TYPES (sizeof types / sizeof *types)

/* Random blocks, every code possible; the f16 scales finite and small. */
static uint8_t *random_weights(uint32_t type, size_t n_in, size_t n_rows, uint64_t *seed)
{
    const size_t bytes = kn_row_bytes(type, (int64_t)n_in) * n_rows, block = kn_type_info(type)->bytes;
    uint8_t *w = test_alloc(bytes);
    for (size_t i = 0; i < bytes; i++) w[i] = (uint8_t)(rnd_next(seed) >> 56);
    if (type == KN_F32) rnd_fill((float *)w, bytes / 4, 0.1f, seed);
    for (size_t i = 0; i < bytes / 2 && (type == KN_F16 || type == KN_BF16); i++) {
        const float f = 0.1f * rnd_normal(seed);
        const uint16_t h = type == KN_F16 ? kn_f32_to_f16(f) : kn_f32_to_bf16(f);
        memcpy(w + 2 * i, &h, 2);
    }
    for (size_t i = 0; i < bytes && kn_type_info(type)->block > 1; i += block) {
        const float d = 0.01f * rnd_normal(seed), m = 0.01f * rnd_normal(seed);
        block_set_scales(type, w + i, d, m);
    }
    return w;
}

struct experts_case {
    uint32_t gate, up, down;
    int n, n_mat, n_used, n_embd, n_ff;
    enum kn_act act;
};

struct experts_data {
    uint8_t *gate, *up, *down;
    float *x, *norm, *weights;
    int32_t *ids;
};

static void experts_make(const struct experts_case *c, struct experts_data *d, uint64_t seed)
{
    const size_t e = (size_t)c->n_embd, f = (size_t)c->n_ff, m = (size_t)c->n_mat,
                 pairs = (size_t)(c->n * c->n_used);
    d->gate = random_weights(c->gate, e, f * m, &seed);
    d->up = random_weights(c->up, e, f * m, &seed);
    d->down = random_weights(c->down, f, e * m, &seed);
    d->x = test_alloc((size_t)c->n * e * 4);
    d->norm = test_alloc(e * 4);
    d->weights = test_alloc(pairs * 4);
    d->ids = test_alloc(pairs * 4);
    rnd_fill(d->x, (size_t)c->n * e, 1.0f, &seed);
    rnd_fill(d->norm, e, 1.0f, &seed);
    for (size_t i = 0; i < pairs; i++) d->weights[i] = (float)rnd_uniform(&seed);
    for (int i = 0; i < c->n;
         i++) /* distinct ones; the first expert is in every third row, the last in none */
        for (int j = 0; j < c->n_used; j++) {
            int32_t *ids = d->ids + i * c->n_used, id;
            bool again;
            do {
                id = i % 3 == 0 && j == 0
                         ? 0
                         : (int32_t)(rnd_next(&seed) % (uint64_t)(c->n_mat > 1 ? c->n_mat - 1 : 1));
                again = false;
                for (int k = 0; k < j && c->n_used < c->n_mat; k++) again |= ids[k] == id;
            } while (again);
            ids[j] = id;
        }
}

static void experts_free(struct experts_data *d)
{
    free(d->gate), free(d->up), free(d->down), free(d->x), free(d->norm), free(d->weights), free(d->ids);
}

struct experts_weights {
    struct kn_weight gate, up, down;
};

static void experts_load(struct kn_backend *be, const struct experts_case *c, const struct experts_data *d,
                         struct experts_weights *w)
{
    assert_ok(be, kn_op(be)->experts_load(be, &w->gate, c->gate, c->n_embd, c->n_ff, c->n_mat, d->gate));
    assert_ok(be, kn_op(be)->experts_load(be, &w->up, c->up, c->n_embd, c->n_ff, c->n_mat, d->up));
    assert_ok(be, kn_op(be)->experts_load(be, &w->down, c->down, c->n_ff, c->n_embd, c->n_mat, d->down));
    assert_int_equal(w->down.n_mat, c->n_mat);
}

static void experts_unload(struct kn_backend *be, struct experts_weights *w)
{
    kn_op(be)->weight_free(be, &w->gate);
    kn_op(be)->weight_free(be, &w->up);
    kn_op(be)->weight_free(be, &w->down);
    assert_null(w->down.packed);
}

/* Rows [i, i + n) through both operations: h [n, n_used, n_ff] and out [n, n_embd]. */
static void experts_rows(struct kn_backend *be, const struct experts_case *c, const struct experts_data *d,
                         const struct experts_weights *w, int i, int n, float *h, float *out, bool add)
{
    const int32_t *ids = d->ids + i * c->n_used;
    assert_ok(be, kn_op(be)->experts_gated(be, h, &w->gate, &w->up, d->x + (size_t)i * (size_t)c->n_embd,
                                           d->norm, 1e-6f, c->act, ids, n, c->n_used));
    assert_ok(be, kn_op(be)->experts_down(be, out, &w->down, h, ids, d->weights + i * c->n_used, n, c->n_used,
                                          add));
}

/* One expert of one row by the operations of single matrices, whose accuracy test_mm has. */
static void experts_plain(struct kn_backend *be, const struct experts_case *c, const struct experts_data *d,
                          int i, int j, float *h, float *r)
{
    const size_t id = (size_t)d->ids[i * c->n_used + j], f = (size_t)c->n_ff, e = (size_t)c->n_embd;
    struct kn_weight g, u, o;
    assert_ok(be, kn_op(be)->weight_load(be, &g, c->gate, c->n_embd, c->n_ff,
                                         d->gate + id * f * kn_row_bytes(c->gate, c->n_embd), KN_USE_LINEAR));
    assert_ok(be, kn_op(be)->weight_load(be, &u, c->up, c->n_embd, c->n_ff,
                                         d->up + id * f * kn_row_bytes(c->up, c->n_embd), KN_USE_LINEAR));
    assert_ok(be, kn_op(be)->weight_load(be, &o, c->down, c->n_ff, c->n_embd,
                                         d->down + id * e * kn_row_bytes(c->down, c->n_ff), KN_USE_LINEAR));
    assert_ok(be, kn_op(be)->norm_gated(be, h, &g, &u, d->x + (size_t)i * e, d->norm, 1e-6f, c->act, 1));
    assert_ok(be, kn_op(be)->linear(be, r, &o, h, 1, false));
    kn_op(be)->weight_free(be, &g);
    kn_op(be)->weight_free(be, &u);
    kn_op(be)->weight_free(be, &o);
}

static void experts_reference(const struct experts_case *c, const struct experts_data *d, float *h,
                              float *out)
{
    struct kn_backend *be = test_fastest();
    const size_t e = (size_t)c->n_embd, f = (size_t)c->n_ff;
    float *r = test_alloc(e * 4);
    assert_ok(be, kn_op(be)->reserve(be, 1, c->n_embd > c->n_ff ? c->n_embd : c->n_ff, 0, 1, 16));
    for (int i = 0; i < c->n; i++)
        for (int j = 0; j < c->n_used; j++) {
            const float w = d->weights[i * c->n_used + j];
            float *o = out + (size_t)i * e;
            experts_plain(be, c, d, i, j, h + (size_t)(i * c->n_used + j) * f, r);
            for (size_t k = 0; k < e; k++) o[k] = j ? fmaf(w, r[k], o[k]) : w * r[k];
        }
    free(r);
    kn_backend_close(be);
}

static void experts_check(const struct experts_case *c, uint64_t seed)
{
    const size_t e = (size_t)c->n_embd, f = (size_t)c->n_ff, n = (size_t)c->n, pairs = n * (size_t)c->n_used;
    struct experts_data d;
    struct experts_weights w;
    struct kn_backend *be;
    float *want_h = test_alloc(pairs * f * 4), *want = test_alloc(n * e * 4), *h = test_alloc(pairs * f * 4),
          *out = test_alloc(n * e * 4);
    experts_make(c, &d, seed);
    experts_reference(c, &d, want_h, want);
    for (int b = 0; (be = test_backend(b)); b++) {
        const int step = b % 3 == 1 ? 1 : b == 5 ? 4 : c->n; /* rows alone, four at a time, all */
        const bool add = b % 2;
        experts_load(be, c, &d, &w);
        if (add) memcpy(out, d.x, n * e * 4);
        for (int i = 0; i < c->n; i += step)
            experts_rows(be, c, &d, &w, i, c->n - i < step ? c->n - i : step, h + (size_t)(i * c->n_used) * f,
                         out + (size_t)i * e, add);
        if (!same_bits(h, want_h, pairs * f))
            fail_msg("gated, backend %d, types %u %u: other bits than the single matrices", b, c->gate,
                     c->up);
        for (size_t k = 0; k < n * e; k++) {
            const float s = add ? d.x[k] + want[k] : want[k];
            assert_true(same_bits(out + k, &s, 1));
        }
        experts_unload(be, &w);
        kn_backend_close(be);
    }
    experts_free(&d);
    free(want_h), free(want), free(h), free(out);
}

static void test_experts_bits(void **state)
{
    (void)state;
    for (size_t t = 0; t < N_TYPES; t++) {
        const int block = (int)kn_type_info(types[t])->block;
        const struct experts_case c = {types[t],
                                       types[t],
                                       types[t],
                                       block == 1 ? 11 : 5,
                                       5,
                                       2,
                                       block == 1     ? 37
                                       : block == 256 ? 256
                                                      : 96,
                                       block == 1     ? 19
                                       : block == 256 ? 256
                                                      : 64,
                                       t % 2 ? KN_ACT_GELU_TANH : KN_ACT_SILU};
        experts_check(&c, t + 1);
    }
    static const struct experts_case more[] = {
        {KN_Q4_K, KN_Q8_0, KN_Q6_K, 9, 4, 3, 256, 256, KN_ACT_SILU}, /* two forms of a row */
        {KN_F16, KN_F32, KN_Q8_0, 40, 3, 2, 33, 32, KN_ACT_SILU},    /* many rows an expert */
        {KN_F32, KN_F32, KN_F32, 17, 1, 1, 8, 17, KN_ACT_GELU_TANH}, /* all rows in one */
        {KN_BF16, KN_BF16, KN_BF16, 6, 9, 8, 16, 48, KN_ACT_SILU},
    };
    for (size_t i = 0; i < sizeof more / sizeof *more; i++) experts_check(more + i, 100 + i);
}

/* The whole of it in double, for the float types: a bound from their own roundings. */
static void test_experts_double(void **state)
{
    (void)state;
    enum { N = 6, MAT = 4, USED = 2, E = 65, F = 43 };
    const struct experts_case c = {KN_F32, KN_F32, KN_F32, N, MAT, USED, E, F, KN_ACT_SILU};
    struct experts_data d;
    struct experts_weights w;
    struct kn_backend *be = test_fastest();
    float h[N * USED * F], out[N * E];
    experts_make(&c, &d, 7);
    experts_load(be, &c, &d, &w);
    experts_rows(be, &c, &d, &w, 0, N, h, out, false);
    const float *wg = (float *)d.gate, *wu = (float *)d.up, *wd = (float *)d.down;
    for (int i = 0; i < N; i++) {
        double y[E], sum[E] = {0}, mass[E] = {0}, ss = 0;
        for (int k = 0; k < E; k++) ss += (double)d.x[i * E + k] * d.x[i * E + k];
        for (int k = 0; k < E; k++) y[k] = d.x[i * E + k] / sqrt(ss / E + 1e-6) * d.norm[k];
        for (int j = 0; j < USED; j++) {
            const int id = d.ids[i * USED + j];
            for (int f = 0; f < F; f++) {
                double g = 0, u = 0;
                for (int k = 0; k < E; k++) {
                    g += wg[(id * F + f) * E + k] * y[k];
                    u += wu[(id * F + f) * E + k] * y[k];
                }
                const double hv = g / (1 + exp(-g)) * u;
                for (int o = 0; o < E; o++) {
                    const double t = d.weights[i * USED + j] * (double)wd[(id * E + o) * F + f] * hv;
                    sum[o] += t;
                    mass[o] += fabs(t);
                }
            }
        }
        for (int o = 0; o < E;
             o++) /* chains of E/2 and F/2 roundings; their inner sums cancel, hence 16 for a worst row */
            assert_true(fabs(out[i * E + o] - sum[o]) <= 16 * (E / 2 + F / 2 + 12) * EPS32 * mass[o]);
    }
    experts_unload(be, &w);
    experts_free(&d);
    kn_backend_close(be);
}

/* More pairs than a block holds: cut into blocks, which no row can tell. */
static void test_experts_blocks(void **state)
{
    (void)state;
    enum { N = 1100, USED = 4, E = 32, F = 16 };
    const struct experts_case c = {KN_Q8_0, KN_Q8_0, KN_F32, N, 6, USED, E, F, KN_ACT_SILU};
    struct experts_data d;
    struct experts_weights w;
    struct kn_backend *be = test_fastest();
    float *h = test_alloc(N * USED * F * 4), *out = test_alloc(N * E * 4), *h1 = test_alloc(N * USED * F * 4),
          *out1 = test_alloc(N * E * 4);
    experts_make(&c, &d, 3);
    experts_load(be, &c, &d, &w);
    experts_rows(be, &c, &d, &w, 0, N, h, out, false);
    for (int i = 0; i < N; i += 25)
        experts_rows(be, &c, &d, &w, i, 25, h1 + i * USED * F, out1 + i * E, false);
    assert_true(same_bits(h, h1, N * USED * F) && same_bits(out, out1, N * E));
    experts_unload(be, &w);
    experts_free(&d);
    free(h), free(out), free(h1), free(out1);
    kn_backend_close(be);
}

/* A NaN in a row stays in that row. */
static void test_experts_nan(void **state)
{
    (void)state;
    const struct experts_case c = {KN_Q4_0, KN_Q4_0, KN_Q4_0, 4, 2, 1, 32, 32, KN_ACT_SILU};
    struct experts_data d;
    struct experts_weights w;
    struct kn_backend *be = test_fastest();
    float h[4 * 32], out[4 * 32];
    experts_make(&c, &d, 5);
    d.x[2 * 32 + 7] = NAN;
    experts_load(be, &c, &d, &w);
    experts_rows(be, &c, &d, &w, 0, 4, h, out, false);
    for (int i = 0; i < 4 * 32; i++) assert_int_equal(isnan(out[i]) != 0, i / 32 == 2);
    experts_unload(be, &w);
    experts_free(&d);
    kn_backend_close(be);
}

static void test_experts_refuse(void **state)
{
    (void)state;
    const struct experts_case c = {KN_F32, KN_F32, KN_F32, 2, 3, 2, 16, 16, KN_ACT_SILU};
    struct experts_data d;
    struct experts_weights w;
    struct kn_weight one, x;
    struct kn_backend *be = test_fastest();
    const struct kn_ops *op = kn_op(be);
    float h[2 * 2 * 16], out[2 * 16];
    int32_t many[65] = {0};
    experts_make(&c, &d, 5);
    experts_load(be, &c, &d, &w);
    assert_int_equal(op->experts_load(be, &x, 12345, 16, 16, 3, d.gate), KN_ETYPE);
    assert_int_equal(op->experts_load(be, &x, KN_TQ1_0, 256, 16, 3, d.gate), KN_ETYPE);
    assert_non_null(strstr(kn_message(be), "TQ1_0"));
    assert_int_equal(op->experts_load(be, &x, KN_Q8_0, 16, 16, 3, d.gate), KN_ETYPE);
    assert_int_equal(op->experts_load(be, &x, KN_F32, 16, 16, 0, d.gate), KN_EINVAL);
    assert_int_equal(op->experts_load(be, &x, KN_F32, 16, 16, 3, NULL), KN_EINVAL);
    assert_int_equal(op->experts_load(be, &x, KN_F32, 1 << 30, (int64_t)1 << 40, 1 << 30, d.gate), KN_ETYPE);
    assert_non_null(strstr(kn_message(be), "too large"));
    d.ids[3] = 3;
    assert_int_equal(op->experts_down(be, out, &w.down, h, d.ids, d.weights, 2, 2, false), KN_EINVAL);
    assert_non_null(strstr(kn_message(be), "experts_down: expert 3 in row 1"));
    d.ids[3] = -1;
    assert_int_equal(op->experts_gated(be, h, &w.gate, &w.up, d.x, d.norm, 1e-6f, c.act, d.ids, 2, 2),
                     KN_EINVAL);
    d.ids[3] = 0;
    assert_int_equal(op->experts_down(be, out, &w.down, h, d.ids, d.weights, 0, 2, false), KN_EINVAL);
    assert_int_equal(op->experts_down(be, out, &w.down, h, many, d.weights, 1, 65, false), KN_ETYPE);
    assert_ok(be, op->weight_load(be, &one, KN_F32, 16, 16, d.gate, KN_USE_LINEAR));
    assert_int_equal(op->experts_gated(be, h, &w.gate, &one, d.x, d.norm, 1e-6f, c.act, d.ids, 2, 2),
                     KN_EINVAL);
    assert_int_equal(op->linear(be, out, &w.gate, d.x, 1, false), KN_EINVAL);
    assert_non_null(strstr(kn_message(be), "3 experts"));
    op->weight_free(be, &one);
    assert_ok(be, op->experts_load(be, &one, KN_F32, 16, 15, 3, d.gate));
    assert_int_equal(op->experts_gated(be, h, &w.gate, &one, d.x, d.norm, 1e-6f, c.act, d.ids, 2, 2),
                     KN_EINVAL);
    assert_non_null(strstr(kn_message(be), "[3, 15, 16]"));
    op->weight_free(be, &one);
    experts_unload(be, &w);
    experts_free(&d);
    kn_backend_close(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_norm_add),       cmocka_unit_test(test_gate),
        cmocka_unit_test(test_route),          cmocka_unit_test(test_route_ends),
        cmocka_unit_test(test_experts_bits),   cmocka_unit_test(test_experts_double),
        cmocka_unit_test(test_experts_blocks), cmocka_unit_test(test_experts_nan),
        cmocka_unit_test(test_experts_refuse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
