/* test_kv.c - caches of every pair of types: what a row holds against a reference in double (kv_ref.h), rows
 * stored and attention over them, and the same bits from every instruction set, thread count and grouping. */
#include "kv_ref.h"
#include "ops_util.h"

static const int heads[] = {32, 64, 96, 128, 160, 256, 384, 512};
#define HEADS (sizeof heads / sizeof *heads)

static struct kn_kv kv_new(struct kn_kv_types type, int cap, int n_kv, int d)
{
    struct kn_kv kv = {.type = type, .cap = cap, .n_head_kv = n_kv, .head_dim = d};
    kv.k = test_alloc(kn_kv_bytes(&kv, type.k));
    kv.v = test_alloc(kn_kv_bytes(&kv, type.v));
    memset(kv.k, 0xff, kn_kv_bytes(&kv, type.k)); /* NaN, as a number or as a scale */
    memset(kv.v, 0xff, kn_kv_bytes(&kv, type.v));
    return kv;
}

static void kv_drop(struct kn_kv *kv)
{
    free(kv->k);
    free(kv->v);
}

static uint8_t *row_of(const struct kn_kv *kv, bool values, int32_t pos)
{
    return (uint8_t *)(values ? kv->v : kv->k) +
           (size_t)kn_kv_slot(kv, pos) * kn_kv_row_bytes(kv, values ? kv->type.v : kv->type.k);
}

/* A row's numbers: what the reference reads, near what was stored, and what the library reads. */
static void check_row(uint32_t type, bool values, int d, float outlier, uint64_t *seed)
{
    enum { KV = 3 };
    struct kn_kv kv = kv_new((struct kn_kv_types){type, type}, 256, KV, d);
    float x[KV * KV_REF_HEAD], back[KV * KV_REF_HEAD];
    double want[KV * KV_REF_HEAD];
    void *row = row_of(&kv, values, 5);
    rnd_fill(x, (size_t)(KV * d), 1.3f, seed);
    for (int h = 0; h < KV; h++) x[h * d + 7] *= outlier;
    kn_kv_put(&kv, values, x, row);
    kn_kv_get(&kv, values, row, back);
    kv_ref_row(type, values, row, KV, d, want);
    for (int h = 0; h < KV; h++) {
        double xx = 0, ee = 0;
        for (int i = h * d; i < (h + 1) * d; i++) {
            xx += (double)x[i] * x[i];
            ee += (x[i] - want[i]) * (x[i] - want[i]);
        }
        if (!(sqrt(ee) <= kv_ref_error(type) * sqrt(xx)))
            fail_msg("%s of %d: off by %g of the length (expected at most %g)", kn_kv_name(type), d,
                     sqrt(ee / xx), kv_ref_error(type));
        if (kn_kv_coded(type))
            assert_true(sqrt(ee) > kv_ref_error(type) * sqrt(xx) / 6); /* the reference sees it */
        for (int i = h * d; i < (h + 1) * d; i++)                      /* nine passes of the rotation */
            assert_true(fabs(back[i] - want[i]) <= 12 * 0x1p-24 * sqrt(xx));
    }
    kv_drop(&kv);
}

static void test_rows(void **state)
{
    uint64_t seed = 3;
    (void)state;
    for (int t = 0; t < KV_REF_TYPES; t++)
        for (size_t k = 0; k < HEADS; k++) {
            if (heads[k] % kn_kv_block(kv_ref_types[t])) continue;
            for (int i = 0; i < 4; i++)
                check_row(kv_ref_types[t], i % 2, heads[k], i < 2 ? 1.0f : 20.0f, &seed);
        }
}

/* Bytes, counted by hand: rows of 3 heads of 128, planes and 16 bytes. */
static void test_bytes(void **state)
{
    static const size_t want[] = {768, 768, 1536, 408, 264, 216, 150};
    const struct kn_kv kv = {.cap = 512, .n_head_kv = 3, .head_dim = 128};
    (void)state;
    for (int t = 0; t < KV_REF_TYPES; t++) {
        const size_t row = (want[t] + 15) / 16 * 16;
        assert_int_equal(kn_kv_row_bytes(&kv, kv_ref_types[t]), row);
        assert_int_equal(kn_kv_bytes(&kv, kv_ref_types[t]), 512 * row);
        assert_int_equal(kn_kv_by_name(kn_kv_name(kv_ref_types[t])), kv_ref_types[t]);
        assert_int_equal(kn_kv_coded(kv_ref_types[t]), t > 2);
    }
    assert_int_equal(kn_kv_by_name("tq3_0"), KN_TQ3_0);
    assert_int_equal(kn_kv_by_name("q4_1"), KN_TYPE_NONE);
    assert_null(kn_type_info(KN_TQ3_0)); /* no file has it */
    assert_null(kn_type_by_name("tq3_0"));
}

/* A NaN, an Inf, a number past f16's range: what is rotated with it is no number any more, the
 * neighbours are.
 * Zeros stay zeros. */
static void test_not_finite(void **state)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY, 3e38f};
    uint64_t seed = 4;
    (void)state;
    for (int t = 3; t < KV_REF_TYPES; t++)
        for (int i = 0; i < 8; i++) {
            struct kn_kv kv = kv_new((struct kn_kv_types){kv_ref_types[t], kv_ref_types[t]}, 256, 3, 128);
            float x[3 * 128], y[3 * 128];
            rnd_fill(x, 3 * 128, 1, &seed);
            memset(x, 0, 128 * sizeof *x);
            x[128 + 50] = bad[i / 2];
            kn_kv_put(&kv, i % 2, x, kv.k);
            kn_kv_get(&kv, i % 2, kv.k, y);
            for (int j = 0; j < 3 * 128; j++) {
                if (j < 128) assert_true(y[j] == 0);
                if (j / 64 == 2) assert_false(isfinite(y[j]));
                if (j / 128 == 2) assert_true(isfinite(y[j]));
            }
            kv_drop(&kv);
        }
}

/* ---- rows stored by the operation ---- */

struct store_case {
    int n, n_head, n_kv, d, last;
    bool query, v_norm, v_is_k;
};

static void check_store(const struct store_case *c, struct kn_kv_types type, uint64_t seed)
{
    const size_t row = (size_t)(c->n_kv * c->d), nk = (size_t)c->n * row,
                 nq = (size_t)(c->n * c->n_head * c->d);
    float *k = test_alloc(nk * 4), *v = test_alloc(nk * 4), *q = test_alloc(nq * 4),
          *table = test_alloc(nk * 4), *ok = test_alloc(nk * 4), *oq = test_alloc(nq * 4),
          *g = test_alloc((size_t)c->d * 4);
    double *freq = test_alloc((size_t)c->d * sizeof *freq);
    int32_t *pos = test_alloc((size_t)c->n * 4);
    struct kn_kv wide = kv_new((struct kn_kv_types){KN_F32, KN_F32}, 512, c->n_kv, c->d);
    struct kn_kv kv = kv_new(type, 512, c->n_kv, c->d);
    uint8_t *want = test_alloc(4 * row + 16);
    struct kn_backend *be;
    rnd_fill(k, nk, 2, &seed);
    rnd_fill(v, nk, 2, &seed);
    rnd_fill(q, nq, 2, &seed);
    rnd_fill(g, (size_t)c->d, 1, &seed);
    for (int i = 0; i < c->n; i++) pos[i] = c->last - c->n + 1 + i;
    for (int i = 0; i < c->d / 2; i++) freq[i] = pow(10000, -2.0 * i / c->d);
    for (int b = -1; b < 0 || (be = test_backend(b)); b++) { /* first into a cache of float */
        if (b < 0) be = test_backend(0);
        memcpy(ok, k, nk * 4);
        memcpy(oq, q, nq * 4);
        assert_ok(be, kn_op(be)->rope_table(be, table, pos, NULL, c->n, freq, c->d));
        const int step = b == 1 ? 1 : c->n;
        for (int i = 0; i < c->n; i += step) {
            struct kn_rope_store r = {.q = c->query ? oq + i * c->n_head * c->d : NULL,
                                      .k = ok + i * (int)row,
                                      .v = (c->v_is_k ? ok : v) + i * (int)row,
                                      .v_norm = c->v_norm,
                                      .k_norm = g,
                                      .table = table + i * c->d,
                                      .pos = pos + i,
                                      .n = step,
                                      .n_head = c->n_head,
                                      .n_rot = c->d,
                                      .eps = 1e-6f,
                                      .kv = b < 0 ? &wide : &kv};
            assert_ok(be, kn_op(be)->rope_store(be, &r));
        }
        kn_backend_close(be);
        for (int i = 0; b >= 0 && i < c->n; i++)
            for (int values = 0; values < 2; values++) {
                const uint32_t t = values ? type.v : type.k;
                kn_kv_put(&kv, values, (const float *)(const void *)row_of(&wide, values, pos[i]), want);
                if (memcmp(want, row_of(&kv, values, pos[i]), kn_kv_row_bytes(&kv, t)))
                    fail_msg("backend %d: row %d of %s: other bytes", b, i, kn_kv_name(t));
            }
    }
    void *all[] = {k, v, q, table, ok, oq, g, freq, pos, want};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
    kv_drop(&wide);
    kv_drop(&kv);
}

static void test_store(void **state)
{
    static const struct store_case cases[] = {
        {1, 4, 2, 128, 0, true, false, false},  {5, 4, 2, 128, 513, true, false, false},
        {7, 3, 1, 128, 511, false, true, true}, {40, 8, 4, 256, 240, true, true, false},
        {3, 2, 2, 512, 9, true, true, true},    {12, 8, 8, 128, 300, true, false, false}};
    (void)state;
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        for (int t = 0; t < KV_REF_TYPES; t++) {
            const int other = (t + 1 + (int)k) % KV_REF_TYPES;
            check_store(cases + k, (struct kn_kv_types){kv_ref_types[t], kv_ref_types[other]}, k + 1);
        }
}

/* ---- attention ---- */

#define ANY                                                                                                  \
    {                                                                                                        \
        0, 0                                                                                                 \
    } /* types: those of att_pair, each in turn */
static const struct att_case att_cases[] = {
    {"one row, one key", 1, 2, 1, 128, 256, 0, 0, -1, true, ANY},
    {"split boundary", 16, 6, 2, 128, 512, 260, 0, -1, true, ANY},
    {"ring, 3 caps", 7, 4, 2, 128, 512, 1539, 500, -1, true, ANY},
    {"groups", 2, 2, 1, 128, 3072, 2500, 0, -1, true, ANY},
    {"block with window", 8, 4, 2, 128, 1024, 1031, 100, -1, false, ANY},
    {"first bound past a wrap", 8, 4, 2, 128, 1024, 3077, 0, 2500, false, ANY},
    {"prompt", 70, 4, 2, 128, 256, 69, 0, -1, true, ANY},
    {"head 256", 9, 6, 1, 256, 512, 300, 0, -1, true, ANY},
    {"head 512", 3, 2, 1, 512, 512, 300, 0, -1, true, ANY},
    {"head 64", 5, 4, 2, 64, 256, 200, 0, -1, true, ANY},
    {"head 96", 5, 3, 3, 96, 256, 200, 0, -1, true, ANY},
};
#define N_ATT (sizeof att_cases / sizeof *att_cases)

struct att_data {
    float *q, *out;
    double *k, *v; /* [last + 1, n_kv, d] as they stand in the cache */
    int32_t *pos, first;
    struct kn_kv kv;
};

static void att_make(const struct att_case *c, struct kn_kv_types type, struct att_data *a, uint64_t seed,
                     bool reference)
{
    const int row = c->n_kv * c->d, n = c->last + 1;
    float *x = test_alloc((size_t)row * 4);
    a->q = test_alloc((size_t)(c->n * c->n_head * c->d) * 4);
    a->out = test_alloc((size_t)(c->n * c->n_head * c->d) * 4);
    a->pos = test_alloc((size_t)c->n * 4);
    a->k = test_alloc((size_t)n * (size_t)row * sizeof *a->k);
    a->v = test_alloc((size_t)n * (size_t)row * sizeof *a->v);
    a->first = c->first;
    a->kv = kv_new(type, c->cap, c->n_kv, c->d);
    rnd_fill(a->q, (size_t)(c->n * c->n_head * c->d), 1.5f, &seed);
    for (int p = n > c->cap ? n - c->cap : 0; p < n; p++)
        for (int values = 0; values < 2; values++) {
            rnd_fill(x, (size_t)row, 1.0f, &seed);
            if (p < c->first) continue; /* stays poison, as what was never written */
            for (int h = 0; h < c->n_kv; h++) x[h * c->d + 3] *= 6;
            kn_kv_put(&a->kv, values, x, row_of(&a->kv, values, p));
            if (!reference) continue;
            kv_ref_row(values ? type.v : type.k, values, row_of(&a->kv, values, p), c->n_kv, c->d,
                       (values ? a->v : a->k) + (size_t)p * (size_t)row);
        }
    for (int i = 0; i < c->n; i++) a->pos[i] = c->last - c->n + 1 + i;
    free(x);
}

static void att_free(struct att_data *a)
{
    void *all[] = {a->q, a->out, a->pos, a->k, a->v};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
    kv_drop(&a->kv);
}

/* Head h of row i: out[d]; *bound: what float may differ by. */
static void att_reference(const struct att_case *c, const struct att_data *a, int i, int h, double *out,
                          double *bound)
{
    const int kh = h / (c->n_head / c->n_kv), row = c->n_kv * c->d, n = c->last + 1;
    const float *q = a->q + ((size_t)i * c->n_head + h) * c->d;
    double *w = test_alloc((size_t)n * sizeof *w), scale = 1.0 / sqrt(c->d), size = 0, big = 0,
           top = -INFINITY, sum = 0;
    for (int p = 0; p < n; p++) {
        double s = 0, qq = 0, kk = 0, vv = 0;
        if (!att_sees(c, a->pos[i], p)) continue;
        const double *k = a->k + (size_t)p * row + kh * c->d, *v = a->v + (size_t)p * row + kh * c->d;
        for (int d = 0; d < c->d; d++) {
            s += q[d] * k[d];
            qq += (double)q[d] * q[d];
            kk += k[d] * k[d];
            vv += v[d] * v[d];
        }
        w[p] = s * (float)scale;
        top = w[p] > top ? w[p] : top;
        size = sqrt(qq * kk) * scale > size ? sqrt(qq * kk) * scale : size;
        big = sqrt(vv) > big ? sqrt(vv) : big;
    }
    memset(out, 0, (size_t)c->d * sizeof *out);
    for (int p = 0; p < n; p++) {
        if (!att_sees(c, a->pos[i], p)) continue;
        const double e = exp(w[p] - top);
        sum += e;
        for (int d = 0; d < c->d; d++) out[d] += e * a->v[(size_t)p * row + kh * c->d + d];
    }
    for (int d = 0; d < c->d; d++) out[d] /= sum;
    free(w);
    /* Roundings of a score, twice (in the weight and in the sum): those of a chain of d / 16 sums, of the
     * query's nine passes of rotation; exp; the chain of values; the result's passes. Relative to lengths,
     * which rotation keeps. Worst cases: random signs stay far inside, so a 64th is asked for. */
    *bound = 0x1p-24 * big * (2.0 * (c->d / 16 + 16) * size + 4.0 * size + 3.0 + 32.0 + 9.0) / 64;
}

static void att_run(struct kn_backend *be, const struct att_case *c, const struct att_data *a, float *out)
{
    struct kn_attention t = att_call(c, &a->kv, a->q, a->pos, &a->first, 0, c->n, out);
    assert_ok(be, kn_op(be)->attention(be, &t));
}

/* Every type with every other, each pair with some of the cases; every case with every type on either side.
 */
static bool att_pair(size_t k, int t, struct kn_kv_types *type)
{
    *type = (struct kn_kv_types){kv_ref_types[t / KV_REF_TYPES], kv_ref_types[t % KV_REF_TYPES]};
    const int d = att_cases[k].d;
    return d % kn_kv_block(type->k) == 0 && d % kn_kv_block(type->v) == 0 &&
           (k == 1 || (t / KV_REF_TYPES + t % KV_REF_TYPES + (int)k) % KV_REF_TYPES == 0);
}

static void test_attention_reference(void **state)
{
    struct kn_backend *be = test_fastest();
    struct kn_kv_types type;
    double worst = 0;
    (void)state;
    assert_ok(be, kn_op(be)->reserve(be, 16, 0, 0, 8, 512));
    for (size_t k = 0; k < N_ATT; k++)
        for (int t = 0; t < KV_REF_TYPES * KV_REF_TYPES; t++) {
            const struct att_case *c = att_cases + k;
            struct att_data a;
            double want[KV_REF_HEAD], bound;
            if (!att_pair(k, t, &type)) continue;
            att_make(c, type, &a, k + 1, true);
            att_run(be, c, &a, a.out);
            for (int i = 0; i<c->n; i += c->n> 20 ? 23 : c->n > 4 ? 3 : 1)
                for (int h = 0; h < c->n_head; h++) {
                    att_reference(c, &a, i, h, want, &bound);
                    for (int d = 0; d < c->d; d++) {
                        const double got = a.out[((size_t)i * c->n_head + h) * c->d + d],
                                     e = fabs(got - want[d]);
                        if (!(e <= bound))
                            fail_msg("%s, %s and %s: row %d head %d value %d: got %g, expected %g (bound %g)",
                                     c->name, kn_kv_name(type.k), kn_kv_name(type.v), i, h, d, got, want[d],
                                     bound);
                        worst = e / bound > worst ? e / bound : worst;
                    }
                }
            att_free(&a);
        }
    print_message("largest error: %.3f of the bound\n", worst);
    kn_backend_close(be);
}

/* Every backend, and rows computed in other groups, give the bits of scalar code with one thread and one row
 * a call. */
static void test_attention_bits(void **state)
{
    struct kn_kv_types type;
    (void)state;
    for (size_t k = 0; k < N_ATT; k++)
        for (int t = 0; t < KV_REF_TYPES * KV_REF_TYPES; t++) {
            const struct att_case *c = att_cases + k;
            const size_t size = (size_t)(c->n_head * c->d);
            struct att_data a;
            struct kn_backend *be;
            if (!att_pair(k, t, &type)) continue;
            att_make(c, type, &a, k + 1, false);
            float *got = test_alloc((size_t)c->n * size * 4);
            for (int b = 0; (be = test_backend(b)); b++) {
                assert_ok(be, kn_op(be)->reserve(be, 16, 0, 0, c->n_head, c->d));
                const int step = !c->causal ? c->n : b == 0 ? 1 : b == 1 ? 5 : b == 4 ? 17 : c->n;
                for (int i = 0; i < c->n; i += step) {
                    struct att_case part = *c;
                    struct att_data at = a;
                    part.n = c->n - i < step ? c->n - i : step;
                    at.q = a.q + (size_t)i * size;
                    at.pos = a.pos + i;
                    att_run(be, &part, &at, (b ? got : a.out) + (size_t)i * size);
                }
                if (b && memcmp(got, a.out, (size_t)c->n * size * 4))
                    fail_msg("%s, %s and %s: other bits from backend %d", c->name, kn_kv_name(type.k),
                             kn_kv_name(type.v), b);
                kn_backend_close(be);
            }
            free(got);
            att_free(&a);
        }
}

/* Head sizes that a type does not divide, with the numbers. */
static void test_refuses(void **state)
{
    static const struct {
        int d;
        struct kn_kv_types type;
        const char *why;
    } cases[] = {
        {80, {KN_F16, KN_Q8_0}, "3 KV heads of 80 as Q8_0 (expected a head size that 32 divides)"},
        {80, {KN_Q4_0, KN_F16}, "3 KV heads of 80 as Q4_0 (expected a head size that 32 divides)"},
        {64, {KN_F16, KN_TQ3_0}, "3 KV heads of 64 as TQ3_0 (expected a head size that 128 divides)"},
        {192, {KN_TQ3_0, KN_Q4_0}, "3 KV heads of 192 as TQ3_0 (expected a head size that 128 divides)"},
        {2048, {KN_F16, KN_Q4_0}, "KV heads of 2048 (expected at most 1024)"},
        {128, {KN_F16, KN_Q4_K}, "KV types F16 and Q4_K (expected each to be " KN_KV_TYPES ")"},
        {80, {KN_F16, KN_BF16}, NULL},
        {192, {KN_Q5_0, KN_Q4_0}, NULL},
    };
    char why[160];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct kn_kv kv = {.type = cases[i].type, .cap = 256, .n_head_kv = 3, .head_dim = cases[i].d};
        assert_int_equal(kn_kv_check(&kv, why, sizeof why), cases[i].why ? KN_ETYPE : 0);
        if (cases[i].why) assert_string_equal(why, cases[i].why);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),           cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_not_finite),     cmocka_unit_test(test_store),
        cmocka_unit_test(test_refuses),        cmocka_unit_test(test_attention_reference),
        cmocka_unit_test(test_attention_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
