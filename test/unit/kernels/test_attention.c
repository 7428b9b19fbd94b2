/* test_attention.c - the CPU's attention of rows over caches of floats: against a reference in double written
 * here, and the same bits from every instruction set, thread count and grouping of rows. Caches of codes are
 * test_kv's. */
#include "ops_util.h"

static const struct att_case att_cases[] = {
    {"one row, one key", 1, 2, 1, 64, 256, 0, 0, -1, true, KV(F16, F16)},
    {"short", 5, 4, 2, 64, 256, 17, 0, -1, true, KV(F16, F16)},
    {"split boundary", 16, 6, 2, 128, 512, 260, 0, -1, true, KV(F16, F16)},
    {"ring, cap - 1", 3, 4, 2, 64, 512, 511, 200, -1, true, KV(BF16, BF16)},
    {"ring, cap", 3, 4, 2, 64, 512, 512, 200, -1, true, KV(BF16, BF16)},
    {"ring, cap + 1", 3, 4, 2, 64, 512, 513, 200, -1, true, KV(F32, F32)},
    {"ring, 3 caps", 7, 4, 2, 64, 512, 1539, 500, -1, true, KV(F16, F16)},
    {"ring filled to the last slot", 12, 4, 2, 64, 512, 1600, 501, -1, true, KV(F16, F16)},
    {"groups", 4, 4, 4, 80, 4096, 2500, 0, -1, true, KV(F16, F16)},
    {"more groups than a wave", 2, 2, 1, 16, 18432, 18000, 0, -1, true, KV(F16, F16)},
    {"block, all see all", 8, 4, 2, 128, 1024, 700, 0, -1, false, KV(F16, F16)},
    {"block with window", 8, 4, 2, 128, 1024, 1031, 100, -1, false, KV(F16, F16)},
    {"block, window below the block", 16, 2, 2, 32, 256, 300, 5, -1, false, KV(F32, F32)},
    {"causal, first bound", 6, 4, 1, 64, 2048, 1500, 0, 1200, true, KV(F16, F16)},
    {"block, first bound past a wrap", 8, 4, 2, 64, 1024, 3077, 0, 2500, false, KV(BF16, BF16)},
    {"prefill from 0", 70, 4, 2, 64, 256, 69, 0, -1, true, KV(F16, F16)},
    {"prefill, window and wrap", 100, 4, 2, 48, 512, 1333, 300, -1, true, KV(F16, F16)},
    {"prefill, block", 40, 8, 1, 64, 512, 400, 0, -1, false, KV(F32, F32)},
    {"head 256", 9, 2, 1, 256, 512, 300, 0, -1, true, KV(F16, F16)},
    {"head 512", 3, 2, 1, 512, 512, 300, 0, -1, true, KV(BF16, BF16)},
    {"head 144", 3, 3, 3, 144, 512, 300, 0, -1, true, KV(F16, F16)},
    {"keys f32, values bf16", 5, 4, 2, 64, 512, 513, 200, -1, true, KV(F32, BF16)},
    {"keys bf16, values f32", 16, 4, 1, 128, 512, 300, 0, -1, true, KV(BF16, F32)},
    {"keys f16, values bf16", 9, 4, 2, 128, 1024, 1031, 100, -1, false, KV(F16, BF16)},
    {"keys bf16, values f16", 70, 2, 2, 80, 4096, 2500, 0, -1, true, KV(BF16, F16)},
    {"keys f32, values f16, waves", 2, 2, 1, 16, 18432, 18000, 0, -1, true, KV(F32, F16)},
};
#define N_ATT (sizeof att_cases / sizeof *att_cases)

struct att_data {
    float *q, *out;
    int32_t *pos, first;
    struct kn_kv kv;
    float *k, *v; /* [last + 1, n_kv, d] rounded to the cache's type */
    float sinks[8];
    bool sunk; /* with sinks */
};

static void att_put(uint32_t type, void *cache, int64_t slot, int64_t row, const float *x)
{
    for (int64_t i = 0; i < row; i++)
        if (type == KN_F32)
            ((float *)cache)[slot * row + i] = x[i];
        else
            ((uint16_t *)cache)[slot * row + i] = type == KN_F16 ? kn_f32_to_f16(x[i]) : kn_f32_to_bf16(x[i]);
}

static void att_make(const struct att_case *c, struct att_data *a, uint64_t seed)
{
    int64_t row = (int64_t)c->n_kv * c->d, n = c->last + 1;
    const struct kn_kv_types type = c->type;
    a->q = test_alloc((size_t)(c->n * c->n_head * c->d) * 4);
    a->out = test_alloc((size_t)(c->n * c->n_head * c->d) * 4);
    a->pos = test_alloc((size_t)c->n * 4);
    a->k = test_alloc((size_t)(n * row) * 4);
    a->v = test_alloc((size_t)(n * row) * 4);
    a->first = c->first;
    a->kv = (struct kn_kv){.type = type, .cap = c->cap, .n_head_kv = c->n_kv, .head_dim = c->d};
    a->kv.k = test_alloc((size_t)(c->cap * row) * 4);
    a->kv.v = test_alloc((size_t)(c->cap * row) * 4);
    rnd_fill(a->sinks, 8, 3.0f, &seed);
    a->sinks[0] = 40; /* more than any score: what is left is nearly nothing */
    a->sunk = false;
    rnd_fill(a->q, (size_t)(c->n * c->n_head * c->d), 1.5f, &seed);
    rnd_fill(a->k, (size_t)(n * row), 1.0f, &seed);
    rnd_fill(a->v, (size_t)(n * row), 1.0f, &seed);
    for (int64_t i = 0; i < n * row; i++) {
        a->k[i] = round_to(type.k, a->k[i]);
        a->v[i] = round_to(type.v, a->v[i]);
    }
    /* What nobody may see is poison: slots never written, and every key before `first`. */
    uint32_t nan =
        0x7fc07e00u; /* NaN as float, and in its halves as f16 (7e00) or bf16 (7fc0) every second */
    for (int64_t i = 0; i < c->cap * row; i++) {
        memcpy((char *)a->kv.k + 4 * i, &nan, 4);
        memcpy((char *)a->kv.v + 4 * i, &nan, 4);
    }
    for (int64_t p = n > c->cap ? n - c->cap : 0; p < n; p++) {
        if (p < c->first) continue;
        att_put(type.k, a->kv.k, p % c->cap, row, a->k + p * row);
        att_put(type.v, a->kv.v, p % c->cap, row, a->v + p * row);
    }
    for (int i = 0; i < c->n; i++) a->pos[i] = c->last - c->n + 1 + i;
}

static void att_free(struct att_data *a)
{
    free(a->q);
    free(a->out);
    free(a->pos);
    free(a->k);
    free(a->v);
    free(a->kv.k);
    free(a->kv.v);
}

/* out [n_head, d] in double for the row at position pos; *bound: what float may differ by, see below. */
static void att_reference(const struct att_case *c, const struct att_data *a, int i, double *out,
                          double *bound)
{
    int pos = a->pos[i], row = c->n_kv * c->d, n = c->last + 1;
    double *w = test_alloc((size_t)n * sizeof *w), scale = 1.0 / sqrt(c->d), size = 0, big = 0;
    for (int h = 0; h < c->n_head; h++) {
        int kh = h / (c->n_head / c->n_kv);
        const float *q = a->q + ((size_t)i * c->n_head + h) * c->d;
        double top = -INFINITY, sum = 0;
        for (int p = 0; p < n; p++) {
            if (!att_sees(c, pos, p)) continue;
            double s = 0, m = 0;
            for (int d = 0; d < c->d; d++) {
                double t = (double)q[d] * a->k[(size_t)p * row + kh * c->d + d];
                s += t;
                m += fabs(t);
            }
            w[p] = s * (float)scale;
            top = w[p] > top ? w[p] : top;
            size = m * scale > size ? m * scale : size;
        }
        memset(out + h * c->d, 0, (size_t)c->d * sizeof *out);
        if (a->sunk) sum = exp((double)a->sinks[h] - top);
        for (int p = 0; p < n; p++) {
            if (!att_sees(c, pos, p)) continue;
            double e = exp(w[p] - top);
            sum += e;
            for (int d = 0; d < c->d; d++) {
                double v = a->v[(size_t)p * row + kh * c->d + d];
                out[h * c->d + d] += e * v;
                big = fabs(v) > big ? fabs(v) : big;
            }
        }
        for (int d = 0; d < c->d; d++) out[h * c->d + d] /= sum;
    }
    free(w);
    /* Rounding of a score: a chain of d/16 fused sums, the tree, the scale, all relative to the sum of
     * magnitudes; twice, as it stands in the weight and in the sum. The weight's subtraction (of scores up to
     * 2 size) and exp: 3. The chain of values over a split, and the merges: 32 (their number's root and a
     * half). All in roundings, relative to the largest value. That is a worst case; errors of random signs
     * stay far inside, and a sixteenth of it is asked for, so that a slip as small as one value rounded to
     * f16 shows. */
    *bound = EPS32 * big * (2.0 * (c->d / 16 + 6) * size + 4.0 * size + 3.0 + 32.0) / 16;
}

static void att_run(struct kn_backend *be, const struct att_case *c, const struct att_data *a, float *out)
{
    struct kn_attention t = att_call(c, &a->kv, a->q, a->pos, &a->first, 0, c->n, out);
    t.sinks = a->sunk ? a->sinks : NULL;
    assert_ok(be, kn_op(be)->attention(be, &t));
}

static void test_attention_reference(void **state)
{
    (void)state;
    struct kn_backend *be = test_fastest();
    double worst = 0;
    assert_ok(be, kn_op(be)->reserve(be, 16, 0, 0, 8, 512));
    assert_true(kn_op(be)->sinks);
    for (size_t k = 0; k < 2 * N_ATT; k++) {
        const struct att_case *c = att_cases + k / 2;
        struct att_data a;
        att_make(c, &a, k + 1);
        a.sunk = k % 2;
        double *want = test_alloc((size_t)(c->n_head * c->d) * sizeof *want), bound;
        att_run(be, c, &a, a.out);
        for (int i = 0; i<c->n; i += c->n> 20 ? 7 : 1) {
            att_reference(c, &a, i, want, &bound);
            for (int j = 0; j < c->n_head * c->d; j++) {
                double e = fabs(a.out[(size_t)i * c->n_head * c->d + j] - want[j]);
                if (!(e <= bound))
                    fail_msg("%s: row %d value %d: got %g, expected %g (bound %g)", c->name, i, j,
                             (double)a.out[(size_t)i * c->n_head * c->d + j], want[j], bound);
                worst = e / bound > worst ? e / bound : worst;
            }
        }
        free(want);
        att_free(&a);
    }
    print_message("largest error: %.3f of the bound\n", worst);
    kn_backend_close(be);
}

/* Every backend, and rows computed in other groups, give the bits of scalar code with one thread and one row
 * a call. A block that is not causal reads pos[n-1], so its rows stay together. */
static void test_attention_bits(void **state)
{
    (void)state;
    for (size_t k = 0; k < 2 * N_ATT; k++) {
        const struct att_case *c = att_cases + k / 2;
        struct att_data a;
        size_t size = (size_t)(c->n_head * c->d);
        struct kn_backend *be;
        att_make(c, &a, k + 1);
        a.sunk = k % 2;
        float *got = test_alloc(c->n * size * 4);
        for (int b = 0; (be = test_backend(b)); b++) {
            assert_ok(be, kn_op(be)->reserve(be, 16, 0, 0, c->n_head, c->d));
            int step = !c->causal ? c->n : b == 0 ? 1 : b == 1 ? 5 : b == 4 ? 17 : c->n;
            for (int i = 0; i < c->n; i += step) {
                struct att_case part = *c;
                struct att_data at = a;
                part.n = c->n - i < step ? c->n - i : step;
                at.q = a.q + (size_t)i * size;
                at.pos = a.pos + i;
                att_run(be, &part, &at, (b ? got : a.out) + (size_t)i * size);
            }
            if (b && memcmp(got, a.out, c->n * size * 4))
                fail_msg("%s: other bits from backend %d", c->name, b);
            kn_backend_close(be);
        }
        free(got);
        att_free(&a);
    }
}

/* Keys and values of any two types give the bits of the same numbers held as float: what each type has by
 * itself. */
static void test_attention_types(void **state)
{
    (void)state;
    static const uint32_t types[] = {KN_F32, KN_F16, KN_BF16};
    struct kn_backend *be;
    for (int b = 0; (be = test_backend(b)); b += 2) {
        assert_ok(be, kn_op(be)->reserve(be, 16, 0, 0, 8, 512));
        for (int t = 0; t < 9; t++) {
            struct att_case c = {
                "types", 7, 6, 2, 80, 1024, 1500, 700, -1, true, {types[t / 3], types[t % 3]}};
            struct att_data a;
            const size_t size = (size_t)(c.n * c.n_head * c.d), row = (size_t)(c.n_kv * c.d);
            float *wide[2] = {test_alloc((size_t)c.cap * row * 4), test_alloc((size_t)c.cap * row * 4)};
            float *want = test_alloc(size * 4);
            att_make(&c, &a, 77);
            att_run(be, &c, &a, a.out);
            for (int p = c.last + 1 - c.cap; p <= c.last; p++) {
                memcpy(wide[0] + (size_t)(p % c.cap) * row, a.k + (size_t)p * row, row * 4);
                memcpy(wide[1] + (size_t)(p % c.cap) * row, a.v + (size_t)p * row, row * 4);
            }
            struct att_data f = a;
            f.kv = (struct kn_kv){wide[0], wide[1], {KN_F32, KN_F32}, c.cap, c.n_kv, c.d};
            att_run(be, &c, &f, want);
            if (memcmp(want, a.out, size * 4)) fail_msg("types %u and %u: other bits", c.type.k, c.type.v);
            free(want);
            free(wide[0]);
            free(wide[1]);
            att_free(&a);
        }
        kn_backend_close(be);
        if (b + 2 >= TEST_BACKENDS) break;
    }
}

static void test_attention_refuses(void **state)
{
    (void)state;
    struct kn_backend *be = test_backend(0);
    const struct kn_ops *op = kn_op(be);
    struct att_case c = {"", 4, 256, 2, 64, 512, 600, 510, -1, true, KV(F16, F16)};
    struct att_data a;
    att_make(&c, &a, 1);
    struct kn_attention t = {
        .q = a.q, .out = a.out, .kv = &a.kv, .pos = a.pos, .n = 4, .n_head = 4, .scale = 1, .causal = true};
    assert_int_equal(op->attention(be, &t), KN_EINVAL); /* nothing reserved, and the ring is too small */
    assert_ok(be, op->reserve(be, 4, 0, 0, 4, 64));
    assert_int_equal(op->attention(be, &t), KN_EINVAL);
    assert_non_null(strstr(kn_message(be), "no longer holds"));
    t.window = 510; /* row 597 would see 88; 600 has overwritten it */
    assert_int_equal(op->attention(be, &t), KN_EINVAL);
    t.window = 509;
    assert_ok(be, op->attention(be, &t));
    t.n_head = 5;
    assert_int_equal(op->attention(be, &t), KN_EINVAL);
    t.n_head = 4;
    a.kv.type.k = KN_Q4_1;
    assert_int_equal(op->attention(be, &t), KN_ETYPE);
    a.kv.type = (struct kn_kv_types){KN_F16, KN_Q4_1};
    assert_int_equal(op->attention(be, &t), KN_ETYPE);
    assert_non_null(strstr(kn_message(be), "KV types F16 and Q4_1 (expected each to be " KN_KV_TYPES ")"));
    a.kv.type.v = KN_F16;
    a.kv.cap = 500;
    assert_int_equal(op->attention(be, &t), KN_EINVAL);
    a.kv.cap = 512;
    a.kv.head_dim = 24;
    assert_int_equal(op->attention(be, &t), KN_ETYPE);
    a.kv.head_dim = 64;
    kn_backend_close(be);
    be = test_backend(0);
    op = kn_op(be);
    assert_ok(be, op->reserve(be, 1, 0, 0, 1, 16)); /* less than these shapes want */
    t.n_head = 256;
    assert_int_equal(op->attention(be, &t), KN_EINVAL);
    assert_non_null(strstr(kn_message(be), "scratch"));
    att_free(&a);
    kn_backend_close(be);
}

/* A NaN in what a row sees shows in that row, and in that row alone. */
static void test_attention_nan(void **state)
{
    (void)state;
    struct kn_backend *be = test_backend(0);
    struct att_case c = {"", 4, 2, 1, 32, 512, 300, 0, -1, true, KV(F32, F32)};
    struct att_data a;
    att_make(&c, &a, 1);
    assert_ok(be, kn_op(be)->reserve(be, 4, 0, 0, 2, 32));
    a.q[1 * 2 * 32] = NAN;                      /* row 1, head 0 */
    ((float *)a.kv.v)[299 * 32 + 5] = INFINITY; /* seen by rows 2 and 3 */
    att_run(be, &c, &a, a.out);
    for (int i = 0; i < 4; i++)
        for (int h = 0; h < 2; h++)
            for (int d = 0; d < 32; d++) {
                float x = a.out[(i * 2 + h) * 32 + d];
                if (i == 1 && h == 0)
                    assert_true(isnan(x));
                else
                    assert_true(i >= 2 && d == 5 ? !isfinite(x) : isfinite(x));
            }
    att_free(&a);
    kn_backend_close(be);
}

/* With one visible key the output is its value, whatever the query: every half is read as the reference
 * decodes it. */
static void test_attention_reads_halves(void **state)
{
    (void)state;
    struct kn_backend *be;
    for (int b = 0; b < TEST_BACKENDS && (be = test_backend(b)); b += 3) {
        for (int type = 0; type < 2; type++) {
            struct kn_kv kv = {.type = {type ? KN_BF16 : KN_F16, type ? KN_BF16 : KN_F16},
                               .cap = 256,
                               .n_head_kv = 128,
                               .head_dim = 512};
            uint16_t *half = test_alloc(2 * 256 * 65536);
            float *q = test_alloc(65536 * 4), *out = test_alloc(65536 * 4);
            int32_t pos = 0;
            kv.v = half;
            kv.k = test_alloc(2 * 256 * 65536);
            for (int i = 0; i < 65536; i++) half[i] = (uint16_t)i;
            struct kn_attention t = {.q = q,
                                     .out = out,
                                     .kv = &kv,
                                     .pos = &pos,
                                     .n = 1,
                                     .n_head = 128,
                                     .scale = 1,
                                     .causal = true};
            assert_ok(be, kn_op(be)->reserve(be, 1, 0, 0, 128, 512));
            assert_ok(be, kn_op(be)->attention(be, &t));
            for (int i = 0; i < 65536; i++) {
                float want = type ? kn_bf16_to_f32((uint16_t)i) : kn_f16_to_f32((uint16_t)i);
                assert_true(out[i] == want || (isnan(out[i]) && isnan(want)));
            }
            free(half);
            free(kv.k);
            free(q);
            free(out);
        }
        kn_backend_close(be);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention_reference),    cmocka_unit_test(test_attention_bits),
        cmocka_unit_test(test_attention_refuses),      cmocka_unit_test(test_attention_nan),
        cmocka_unit_test(test_attention_reads_halves), cmocka_unit_test(test_attention_types),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
