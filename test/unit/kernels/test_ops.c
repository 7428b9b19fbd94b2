/* test_ops.c - the CPU's operations other than matrix products: each against a reference in double written
 * here, and the same bits from every instruction set, thread count and grouping of rows. */
#include "ops_util.h"

/* ---- norm, rope, the rest ---- */

static void test_rms_norm(void **state)
{
    (void)state;
    static const int widths[] = {1, 7, 16, 63, 64, 65, 127, 128, 1000, 1024, 2560, 5120};
    struct kn_backend *be;
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
        int width = widths[w], n = 33;
        size_t size = (size_t)(n * width);
        float *x = test_alloc(size * 4), *g = test_alloc((size_t)width * 4), *want = test_alloc(size * 4),
              *out = test_alloc(size * 4);
        uint64_t seed = (uint64_t)width;
        rnd_fill(x, size, 3.0f, &seed);
        rnd_fill(g, (size_t)width, 1.0f, &seed);
        for (int b = 0; (be = test_backend(b)); b++) {
            float *y = b ? out : want;
            memcpy(y, x, size * 4);
            assert_ok(be, kn_op(be)->rms_norm(be, y, y, g, n, width, 1e-6f)); /* in place */
            if (b) assert_memory_equal(out, want, size * 4);
            assert_ok(be, kn_op(be)->rms_norm(be, out, x + 2 * width, g, 1, width, 1e-6f)); /* alone */
            assert_memory_equal(out, want + 2 * width, (size_t)width * 4);
            kn_backend_close(be);
        }
        for (int i = 0; i < n; i++) {
            double s = 0;
            for (int j = 0; j < width; j++) s += (double)x[i * width + j] * x[i * width + j];
            double r = 1.0 / sqrt(s / width + (double)1e-6f);
            for (int j = 0; j < width; j++) {
                double e = x[i * width + j] * r * g[j];
                /* half of the sum's (width / 64 + 8 roundings of positive terms), then mean, eps, root,
                 * division, two products */
                assert_true(fabs(want[i * width + j] - e) <= fabs(e) * EPS32 * (0.5 * (width / 64 + 8) + 6));
            }
        }
        free(x);
        free(g);
        free(want);
        free(out);
    }
}

static void test_rope_table(void **state)
{
    (void)state;
    enum { N = 300, ROT = 128 };
    double freq[ROT / 2];
    int32_t pos[N];
    float *want = test_alloc(N * ROT * 4), *out = test_alloc(N * ROT * 4);
    struct kn_backend *be;
    for (int j = 0; j < ROT / 2; j++) freq[j] = pow(1e6, -2.0 * j / ROT);
    for (int i = 0; i < N; i++) pos[i] = i < 100 ? i : i < 200 ? 999900 + i : 40000 + i;
    for (int b = 0; (be = test_backend(b)); b++) {
        assert_ok(be, kn_op(be)->rope_table(be, b ? out : want, pos, NULL, N, freq, ROT));
        if (b) assert_memory_equal(out, want, N * ROT * 4);
        kn_backend_close(be);
    }
    for (int i = 0; i < N; i++)
        for (int j = 0; j < ROT / 2; j++) {
            long double x = (long double)pos[i] * freq[j];
            /* double's error is far below; what remains is the rounding to float */
            assert_true(fabsl(want[(i * ROT / 2 + j) * 2] - cosl(x)) <= fabsl(cosl(x)) * EPS32 + 1e-12L);
            assert_true(fabsl(want[(i * ROT / 2 + j) * 2 + 1] - sinl(x)) <= fabsl(sinl(x)) * EPS32 + 1e-12L);
        }
    be = test_backend(0);
    freq[3] = NAN;
    assert_int_equal(kn_op(be)->rope_table(be, out, pos, NULL, 1, freq, ROT), KN_EINVAL);
    assert_int_equal(kn_op(be)->rope_table(be, out, pos, NULL, 1, freq, 7), KN_EINVAL);
    kn_backend_close(be);
    free(want);
    free(out);
}

/* One head as the definition has it, in double. */
static void rope_reference(const float *x, const float *norm, const float *table, int d, int n_rot,
                           bool inter, float eps, double *y)
{
    double s = 0;
    for (int i = 0; i < d; i++) s += (double)x[i] * x[i];
    for (int i = 0; i < d; i++) y[i] = norm ? x[i] / sqrt(s / d + (double)eps) * norm[i] : x[i];
    for (int i = 0; i < n_rot / 2; i++) {
        int a = inter ? 2 * i : i, b = inter ? 2 * i + 1 : i + n_rot / 2;
        double u = y[a], w = y[b], c = table[2 * i], t = table[2 * i + 1];
        y[a] = u * c - w * t;
        y[b] = u * t + w * c;
    }
}

struct rope_case {
    int n, n_head, n_kv, d, n_rot, start;
    bool inter, norms, query;
    struct kn_kv_types type;
    bool v_norm, v_is_k;
};

/* A value as the cache should hold it, from the projection's own. */
static void rope_value(const struct rope_case *c, const float *v, double *y)
{
    double s = 0;
    for (int i = 0; i < c->d; i++) s += (double)v[i] * v[i];
    for (int i = 0; i < c->d; i++) y[i] = c->v_norm ? v[i] / sqrt(s / c->d + 1e-6) : v[i];
}

static float ring_at(uint32_t type, const void *ring, size_t slot)
{
    return type == KN_F32   ? ((const float *)ring)[slot]
           : type == KN_F16 ? kn_f16_to_f32(((const uint16_t *)ring)[slot])
                            : kn_bf16_to_f32(((const uint16_t *)ring)[slot]);
}

/* What a call took, and what it left: q, k and the cache's rows. */
struct rope_rows {
    const float *q, *k, *v, *g, *table, *wq, *wk;
    const void *wrk, *wrv;
    const int32_t *pos;
    int cap;
};

static void rope_compare(const struct rope_case *c, const struct rope_rows *r)
{
    double y[512], yv[512];
    for (int i = 0; i < c->n; i++)
        for (int h = 0; h < c->n_head + c->n_kv; h++) {
            bool is_q = h < c->n_head;
            size_t at =
                is_q ? (size_t)((i * c->n_head + h) * c->d) : (size_t)((i * c->n_kv + h - c->n_head) * c->d);
            if (is_q && !c->query) continue;
            rope_reference((is_q ? r->q : r->k) + at, c->norms ? r->g : NULL, r->table + i * c->n_rot, c->d,
                           c->n_rot, c->inter, 1e-6f, y);
            if (!is_q) rope_value(c, (c->v_is_k ? r->k : r->v) + at, yv);
            for (int j = 0; j < c->d; j++) {
                float got = (is_q ? r->wq : r->wk)[at + (size_t)j];
                /* the norm's roundings (as test_rms_norm: 11 for 128) and two of the rotation, of values up
                 * to |12| */
                assert_true(fabs(got - y[j]) <= 13 * EPS32 * 12.0);
                if (!c->norms && j >= c->n_rot) assert_true(got == (is_q ? r->q : r->k)[at + (size_t)j]);
                if (is_q) continue;
                size_t slot = (size_t)(r->pos[i] % r->cap) * (size_t)(c->n_kv * c->d) + at -
                              (size_t)(i * c->n_kv * c->d) + (size_t)j;
                float sk = ring_at(c->type.k, r->wrk, slot), sv = ring_at(c->type.v, r->wrv, slot);
                /* the norm's 11 roundings, and the cache's own */
                double step = c->type.v == KN_F32 ? 0 : c->type.v == KN_F16 ? 0x1p-11 : 0x1p-8;
                assert_true(sk == round_to(c->type.k, got));
                if (c->v_norm)
                    assert_true(fabs(sv - yv[j]) <= fabs(yv[j]) * (11 * EPS32 + step) + 0x1p-25);
                else
                    assert_true(sv == round_to(c->type.v, (float)yv[j]));
            }
        }
}

/* The call over q, k, v, step rows at a time; rows alone go in lists of up to five. table is made. */
static void rope_run(struct kn_backend *be, const struct rope_case *c, int step, float *q, float *k, float *v,
                     float *g, float *table, const int32_t *pos, const double *freq, struct kn_kv *kv)
{
    struct kn_rope_store list[5];
    assert_ok(be, kn_op(be)->rope_table(be, table, pos, NULL, c->n, freq, c->n_rot));
    for (int i = 0; i < c->n; i += step) {
        struct kn_rope_store r = {.q = c->query ? q + i * c->n_head * c->d : NULL,
                                  .k = k + i * c->n_kv * c->d,
                                  .v = (c->v_is_k ? k : v) + i * c->n_kv * c->d,
                                  .v_norm = c->v_norm,
                                  .q_norm = c->norms ? g : NULL,
                                  .k_norm = c->norms ? g : NULL,
                                  .table = table + i * c->n_rot,
                                  .pos = pos + i,
                                  .n = step,
                                  .n_head = c->n_head,
                                  .n_rot = c->n_rot,
                                  .interleaved = c->inter,
                                  .eps = 1e-6f,
                                  .kv = kv};
        list[i % 5] = r;
        if (step == 1 && i % 5) list[i % 5 - 1].next = &list[i % 5];
        if (step > 1 || i + 1 == c->n || i % 5 == 4) assert_ok(be, kn_op(be)->rope_store(be, list));
    }
}

static void rope_check(const struct rope_case *c, int number)
{
    const int cap = 256;
    const struct kn_kv_types type = c->type;
    size_t nq = (size_t)(c->n * c->n_head * c->d), nk = (size_t)(c->n * c->n_kv * c->d),
           ring = (size_t)(cap * c->n_kv * c->d) * 4;
    float *q = test_alloc(nq * 4), *k = test_alloc(nk * 4), *v = test_alloc(nk * 4),
          *table = test_alloc((size_t)(c->n * c->d) * 4);
    float *q2 = test_alloc(nq * 4), *k2 = test_alloc(nk * 4), *g = test_alloc((size_t)c->d * 4),
          *wq = test_alloc(nq * 4), *wk = test_alloc(nk * 4);
    void *rk = test_alloc(ring), *rv = test_alloc(ring), *wrk = test_alloc(ring), *wrv = test_alloc(ring);
    int32_t *pos = test_alloc((size_t)c->n * 4);
    double *freq = test_alloc((size_t)c->d * sizeof *freq);
    uint64_t seed = (uint64_t)number;
    struct kn_backend *be;
    rnd_fill(q, nq, 2.0f, &seed);
    rnd_fill(k, nk, 2.0f, &seed);
    rnd_fill(v, nk, 2.0f, &seed);
    rnd_fill(g, (size_t)c->d, 1.0f, &seed);
    for (int i = 0; i < c->n; i++) pos[i] = c->start + i;
    for (int i = 0; i < c->n_rot / 2; i++) freq[i] = pow(1e4, -2.0 * i / c->n_rot);
    for (int b = 0; (be = test_backend(b)); b++) {
        struct kn_kv kv = {.k = b ? rk : wrk,
                           .v = b ? rv : wrv,
                           .type = type,
                           .cap = cap,
                           .n_head_kv = c->n_kv,
                           .head_dim = c->d};
        float *oq = b ? q2 : wq, *ok = b ? k2 : wk;
        memcpy(oq, q, nq * 4);
        memcpy(ok, k, nk * 4);
        memset(kv.k, 0, ring);
        memset(kv.v, 0, ring);
        rope_run(be, c, b == 1 ? 1 : c->n, oq, ok, v, g, table, pos, freq, &kv);
        if (b) {
            assert_memory_equal(oq, wq, nq * 4);
            assert_memory_equal(ok, wk, nk * 4);
            assert_memory_equal(rk, wrk, ring);
            assert_memory_equal(rv, wrv, ring);
        }
        kn_backend_close(be);
    }
    rope_compare(c, &(struct rope_rows){q, k, v, g, table, wq, wk, wrk, wrv, pos, cap});
    void *all[] = {q, k, v, table, q2, k2, g, wq, wk, rk, rv, wrk, wrv, pos, freq};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

static void test_rope_store(void **state)
{
    (void)state;
    static const struct rope_case cases[] = {
        {1, 4, 2, 128, 128, 0, false, true, true, KV(F16, F16), false, false},
        {5, 4, 2, 128, 128, 254, false, true, true, KV(F16, F16), false, false},
        {7, 3, 1, 64, 32, 511, true, false, true, KV(BF16, BF16), false, false},
        {3, 4, 4, 80, 64, 1000, false, true, false, KV(F32, F32), false, false},
        {40, 8, 4, 128, 128, 240, false, true, true, KV(F16, F16), false, false},
        {2, 2, 1, 256, 64, 77, true, true, true, KV(F32, F32), false, false},
        {3, 4, 2, 256, 64, 250, false, true, true, KV(F16, F16), false, false},
        {3, 4, 2, 256, 128, 250, true, false, true, KV(BF16, BF16), false, false},
        {4, 4, 1, 512, 512, 254, false, true, true, KV(F16, F16), true, true},
        {3, 2, 2, 512, 128, 9, false, true, true, KV(F32, F32), true, false},
        {3, 2, 2, 512, 128, 9, true, false, false, KV(F32, F32), false, true},
        {20, 4, 2, 256, 256, 100, false, true, true, KV(BF16, BF16), true, false},
        {2, 1, 3, 16, 4, 0, false, false, true, KV(F16, F16), true, true},
        {5, 4, 2, 128, 128, 254, false, true, true, KV(F32, BF16), false, false},
        {7, 4, 4, 80, 64, 511, true, true, true, KV(BF16, F32), false, false},
        {4, 4, 1, 512, 512, 254, false, true, true, KV(F16, BF16), true, true},
        {40, 8, 4, 256, 128, 240, false, true, true, KV(BF16, F16), true, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) rope_check(cases + i, (int)i + 1);
}

/* Every instruction set rounds into the cache as the reference conversions do: halfway cases, subnormals,
 * infinities. */
static void test_store_rounding(void **state)
{
    (void)state;
    enum { N = 1 << 16 };
    float *x = test_alloc(N * 4), *k = test_alloc(N * 4);
    uint16_t *ring_k = test_alloc((size_t)N * 256 * 2), *ring_v = test_alloc((size_t)N * 256 * 2);
    int32_t pos = 256;
    struct kn_backend *be;
    uint64_t seed = 9;
    for (int b = 0; b < TEST_BACKENDS && (be = test_backend(b)); b += 3) {
        for (int type = 0; type < 2; type++) {
            for (int i = 0; i < N; i++) {
                uint32_t u = i & 1 ? (uint32_t)rnd_next(&seed) : 0;
                if (!u) { /* a half, and half a step or a little more or less above it */
                    float f = type ? kn_bf16_to_f32((uint16_t)i) : kn_f16_to_f32((uint16_t)i);
                    memcpy(&u, &f, 4);
                    u += (type ? 0x8000u : 0x1000u) + (uint32_t)(i / 2 % 3) - 1;
                }
                memcpy(x + i, &u, 4);
                if (isnan(x[i])) x[i] = 1.0f;
            }
            memcpy(k, x, N * 4);
            struct kn_kv kv = {.k = ring_k,
                               .v = ring_v,
                               .type = {type ? KN_BF16 : KN_F16, type ? KN_BF16 : KN_F16},
                               .cap = 256,
                               .n_head_kv = N / 512,
                               .head_dim = 512};
            struct kn_rope_store r = {.k = k, .v = x, .pos = &pos, .n = 1, .kv = &kv};
            assert_ok(be, kn_op(be)->rope_store(be, &r));
            for (int i = 0; i < N; i++) {
                uint16_t want = type ? kn_f32_to_bf16(x[i]) : kn_f32_to_f16(x[i]);
                assert_true(ring_v[i] == want && ring_k[i] == want);
            }
        }
        kn_backend_close(be);
    }
    free(x);
    free(k);
    free(ring_k);
    free(ring_v);
}

static void test_small_ones(void **state)
{
    (void)state;
    enum { N = 70001 };
    struct kn_backend *be;
    float *x = test_alloc(N * 4), *want = test_alloc(N * 4), *out = test_alloc(N * 4);
    uint64_t seed = 5;
    rnd_fill(x, N, 40.0f, &seed);
    for (int b = 0; (be = test_backend(b)); b++) {
        const struct kn_ops *op = kn_op(be);
        memcpy(b ? out : want, x, N * 4);
        assert_ok(be, op->softcap(be, b ? out : want, N, 30.0f));
        if (b) assert_memory_equal(out, want, N * 4);
        assert_int_equal(op->softcap(be, out, N, 0.0f), KN_EINVAL);
        float dst[3 * 10] = {0};
        assert_ok(be, op->tap(be, dst, 10, 4, x, 3, 5));
        for (int i = 0; i < 30; i++)
            assert_true(dst[i] == (i % 10 >= 4 && i % 10 < 9 ? x[i / 10 * 5 + i % 10 - 4] : 0.0f));
        assert_int_equal(op->tap(be, dst, 10, 6, x, 3, 5), KN_EINVAL);
        int32_t bad;
        assert_ok(be, op->find_bad(be, x, 7, 10000, &bad));
        assert_int_equal(bad, -1);
        memcpy(out, x, N * 4);
        out[49999] = -INFINITY;
        out[60000] = NAN;
        assert_ok(be, op->find_bad(be, out, 7, 10000, &bad));
        assert_int_equal(bad, 4);
        assert_ok(be, op->find_bad(be, out + 50000, 2, 10000, &bad));
        assert_int_equal(bad, 1);
        float *m = op->alloc(be, 100), back[25];
        assert_non_null(m);
        assert_int_equal((uintptr_t)m % 64, 0);
        for (int i = 0; i < 25; i++) assert_true(m[i] == 0.0f);
        assert_ok(be, op->upload(be, m, x, 40));
        assert_ok(be, op->copy(be, m + 10, m, 40));
        assert_ok(be, op->download(be, back, m, 100));
        assert_ok(be, op->sync(be));
        assert_memory_equal(back + 10, x, 40);
        op->free(be, m);
        op->free(be, NULL);
        assert_null(op->alloc(be, SIZE_MAX - 5));
        kn_backend_close(be);
    }
    for (int i = 0; i < N; i++) /* tanh 1.5 ulp, division and product */
        assert_true(fabs(want[i] - 30.0 * tanh(x[i] / 30.0)) <= fabs((double)want[i]) * EPS32 * 6);
    free(x);
    free(want);
    free(out);
}

static void test_embed(void **state)
{
    (void)state;
    static const uint32_t types[] = {KN_F32,   KN_F16,     KN_BF16,   KN_Q8_0,  KN_Q4_0,    KN_Q5_0,
                                     KN_Q4_1,  KN_Q5_1,    KN_Q4_K,   KN_Q5_K,  KN_Q6_K,    KN_Q2_K,
                                     KN_Q3_K,  KN_IQ4_NL,  KN_IQ4_XS, KN_MXFP4, KN_IQ2_XXS, KN_IQ2_XS,
                                     KN_IQ2_S, KN_IQ3_XXS, KN_IQ3_S,  KN_IQ1_S, KN_IQ1_M};
    enum { V = 9, W = 512, N = 200 };
    float *x = test_alloc(V * W * 4), *want = test_alloc(W * 4), *out = test_alloc(N * W * 4);
    char *data = test_alloc(V * W * 4);
    int32_t ids[N];
    uint64_t seed = 6;
    struct kn_backend *be;
    rnd_fill(x, V * W, 1.0f, &seed);
    for (int i = 0; i < N; i++) ids[i] = (int32_t)(rnd_next(&seed) % V);
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        size_t row = kn_row_bytes(types[t], W);
        for (size_t i = 0; i < V * row; i++)
            data[i] = (char)(rnd_next(&seed) & 0x3b); /* f16s that are finite */
        for (int i = 0; i < V && kn_type_info(types[t])->can_encode; i++)
            assert_int_equal(kn_encode_row(types[t], x + i * W, data + (size_t)i * row, W, NULL), 0);
        struct kn_weight w = {.type = types[t], .n_in = W, .n_out = V, .rows = data};
        for (int b = 0; (be = test_backend(b)); b++) {
            assert_ok(be, kn_op(be)->embed(be, out, &w, ids, N, 3.25f));
            for (int i = 0; i < N; i++) {
                assert_int_equal(kn_decode_row(types[t], data + (size_t)ids[i] * row, want, W), 0);
                for (int j = 0; j < W; j++) want[j] *= 3.25f;
                assert_memory_equal(out + i * W, want, W * 4);
            }
            kn_backend_close(be);
        }
    }
    be = test_backend(0);
    struct kn_weight w = {.type = KN_F32, .n_in = W, .n_out = V, .rows = data};
    ids[1] = V;
    assert_int_equal(kn_op(be)->embed(be, out, &w, ids, 2, 1.0f), KN_EINVAL);
    assert_non_null(strstr(kn_message(be), "token 9"));
    ids[1] = -2;
    assert_int_equal(kn_op(be)->embed(be, out, &w, ids, 2, 1.0f), KN_EINVAL);
    ids[1] = KN_PICK_NAN; /* a proposal that is none */
    assert_ok(be, kn_op(be)->embed(be, out, &w, ids, 2, 1.0f));
    for (int i = 0; i < W; i++) assert_true(isfinite(out[i]) && isnan(out[W + i]));
    w.rows = NULL;
    assert_int_equal(kn_op(be)->embed(be, out, &w, ids, 1, 1.0f), KN_EINVAL);
    kn_backend_close(be);
    free(x);
    free(want);
    free(out);
    free(data);
}

static void test_open(void **state)
{
    (void)state;
    static const struct {
        const char *device, *isa;
        int threads, rc;
        const char *message;
    } cases[] = {
        {"cpu", NULL, 0, 0, ""},
        {"cpu", "auto", 2, 0, ""},
        {"cpu", "sse", 1, KN_EINVAL, "instruction set sse: unknown"},
        {"cpu", NULL, -1, KN_EINVAL, "threads: -1"},
        {"gpu", NULL, 1, KN_EINVAL, "device gpu: unknown"},
        {"cudaX", NULL, 1, KN_EINVAL, "device cudaX: unknown"},
        {NULL, NULL, 1, KN_EINVAL, "no device named"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct kn_open o = {.device = cases[i].device, .isa = cases[i].isa, .threads = cases[i].threads};
        struct kn_backend *be;
        char msg[256];
        assert_int_equal(kn_backend_open(&be, &o, msg, sizeof msg), cases[i].rc);
        assert_true(!!be == !cases[i].rc);
        assert_non_null(strstr(msg, cases[i].message));
        kn_backend_close(be);
    }
    if (!kn_cuda_built()) {
        struct kn_open o = {.device = "cuda:0"};
        struct kn_backend *be;
        char msg[256];
        assert_int_equal(kn_backend_open(&be, &o, msg, sizeof msg), KN_EDEVICE);
        assert_non_null(strstr(msg, "built without CUDA"));
    }
}

/* Proposals that count as equal by a table instead of by what stands in them: as many rows stay as where the
 * ids are equal, and the tokens are the picks. */
static void test_accept(void **state)
{
    static const struct {
        int32_t n, equal, kept;
    } cases[] = {{1, 0, 1},  {1, 15, 1},   {16, 0, 1},   {16, 7, 8},
                 {8, 15, 8}, {16, 15, 16}, {64, 40, 41}, {64, 63, 64}};
    (void)state;
    struct kn_backend *be = test_fastest();
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        for (int by_table = 0; by_table < 2; by_table++) {
            int32_t ids[64], pos[64], picks[64], history[256] = {0}, equal[256] = {0}, kept = 0;
            uint32_t number = 0;
            uint64_t stamp[KN_STAMPS] = {0};
            struct kn_result result;
            equal[20] = cases[k].equal;
            for (int i = 0; i < 64; i++) {
                pos[i] = 20 + i;
                picks[i] = 1000 + i;
                ids[i] = i && (i <= cases[k].equal) != by_table ? 999 + i : 7;
            }
            const struct kn_accept a = {.ids = ids,
                                        .picks = picks,
                                        .n = cases[k].n,
                                        .pos = pos,
                                        .history = history,
                                        .kept = &kept,
                                        .number = &number,
                                        .stamp = stamp,
                                        .results = &result,
                                        .n_results = 1,
                                        .equal = by_table ? equal : NULL};
            assert_ok(be, kn_op(be)->accept(be, &a));
            assert_int_equal(kept, cases[k].kept);
            assert_int_equal(result.kept, kept);
            assert_int_equal(ids[0], picks[kept - 1]);
            assert_int_equal(pos[0], 20 + kept);
            for (int i = 0; i < kept; i++) assert_int_equal(history[21 + i], picks[i]);
            assert_int_equal(history[21 + kept], 0);
        }
    }
    kn_backend_close(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accept),     cmocka_unit_test(test_open),
        cmocka_unit_test(test_small_ones), cmocka_unit_test(test_embed),
        cmocka_unit_test(test_rms_norm),   cmocka_unit_test(test_rope_table),
        cmocka_unit_test(test_rope_store), cmocka_unit_test(test_store_rounding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
