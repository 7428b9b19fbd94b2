/* test_weights.c - op->attention_weights against its definition in double, and its bits on every instruction
 * set and with any threads; rope_table by origin. */
#include "ops_util.h"

struct shape {
    const char *name;
    uint32_t type;
    int n, n_head, n_kv, d, last, keys, pool; /* last: position of the last row */
};

static const struct shape shapes[] = {
    {"one row over a prompt", KN_F16, 1, 4, 2, 128, 299, 300, 13},
    {"rows behind the keys", KN_F16, 8, 6, 2, 16, 130, 120, 13},
    {"rows inside", KN_BF16, 5, 4, 1, 64, 70, 71, 5},
    {"no pool", KN_F32, 3, 2, 2, 96, 250, 251, 1},
    {"one key", KN_F16, 1, 2, 1, 128, 0, 1, 13},
    {"all keys in one pool", KN_F32, 4, 3, 3, 48, 9, 10, 31},
    {"heads of 512", KN_F16, 2, 2, 1, 512, 64, 65, 3},
    {"several groups of keys", KN_F16, 2, 2, 1, 32, 2000, 1900, 13},
};
#define N_SHAPES (sizeof shapes / sizeof *shapes)

struct data {
    struct kn_kv kv;
    float *q, *out, *want, *scratch;
    double *k; /* [keys, n_kv, d] as they stand in the cache */
    int32_t pos[8];
};

static struct data make(const struct shape *c, uint64_t seed)
{
    const size_t row = (size_t)(c->n_kv * c->d), n = (size_t)c->n, keys = (size_t)c->keys;
    struct data a = {
        .kv = {
            .type = {c->type, c->type}, .cap = kn_kv_room(c->keys), .n_head_kv = c->n_kv, .head_dim = c->d}};
    float *x = test_alloc(row * 4);
    a.kv.k = test_alloc(kn_kv_bytes(&a.kv, c->type));
    a.kv.v = a.kv.k;
    a.q = test_alloc(n * (size_t)(c->n_head * c->d) * 4);
    a.out = test_alloc(n * keys * 4);
    a.want = test_alloc(n * keys * 4);
    a.scratch = test_alloc(n * (size_t)c->n_head * keys * 4);
    a.k = test_alloc(keys * row * sizeof *a.k);
    rnd_fill(a.q, n * (size_t)(c->n_head * c->d), 1.0f, &seed);
    for (size_t j = 0; j < keys; j++) {
        void *at = (char *)a.kv.k + j * kn_kv_row_bytes(&a.kv, c->type);
        rnd_fill(x, row, 1.5f, &seed);
        kn_kv_put(&a.kv, false, x, at);
        kn_kv_get(&a.kv, false, at, x);
        for (size_t i = 0; i < row; i++) a.k[j * row + i] = (double)x[i];
    }
    for (int r = 0; r < c->n; r++) a.pos[r] = c->last - c->n + 1 + r;
    free(x);
    return a;
}

static void drop(struct data *a)
{
    void *all[] = {a->kv.k, a->q, a->out, a->want, a->scratch, a->k};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

static struct kn_attention_weights call_of(const struct shape *c, struct data *a)
{
    return (struct kn_attention_weights){.q = a->q,
                                         .kv = &a->kv,
                                         .pos = a->pos,
                                         .n = c->n,
                                         .n_head = c->n_head,
                                         .n_keys = c->keys,
                                         .scale = 1 / sqrtf((float)c->d),
                                         .pool = c->pool,
                                         .scratch = a->scratch,
                                         .out = a->out};
}

/* Row r's p of one head; *most: the largest magnitude of a score. */
static void softmax(const struct shape *c, const struct data *a, int r, int h, double *p, double *most)
{
    const int n = a->pos[r] < c->keys ? a->pos[r] + 1 : c->keys;
    const float *q = a->q + (r * c->n_head + h) * c->d;
    double top = -INFINITY, sum = 0;
    *most = 0;
    for (int j = 0; j < c->keys; j++) {
        const double *k = a->k + (j * c->n_kv + h / (c->n_head / c->n_kv)) * c->d;
        p[j] = 0;
        for (int i = 0; i < c->d; i++) p[j] += (double)q[i] * k[i];
        p[j] *= (double)(1 / sqrtf((float)c->d));
        if (j < n && p[j] > top) top = p[j];
        if (j < n && fabs(p[j]) > *most) *most = fabs(p[j]);
    }
    for (int j = 0; j < n; j++) sum += p[j] = exp(p[j] - top);
    for (int j = 0; j < c->keys; j++) p[j] = j < n ? p[j] / sum : 0;
}

/* A score is rounded once, and once more where the largest is taken from it: 2 |s| eps in all, which is what
 * a weight is off by; exp 1 ulp, the quotient and the mean half an ulp each. */
static void check_row(const struct shape *c, const struct data *a, int r, const float *out)
{
    double *p = test_alloc((size_t)c->keys * sizeof *p), *want = test_alloc((size_t)c->keys * sizeof *want);
    double most = 0, some;
    for (int h = 0; h < c->n_head; h++) {
        softmax(c, a, r, h, p, &some);
        if (some > most) most = some;
        for (int j = 0; j < c->keys; j++) {
            double m = 0;
            for (int i = j - c->pool / 2; i <= j + c->pool / 2; i++) m += i < 0 || i >= c->keys ? 0 : p[i];
            if (m / c->pool > want[j]) want[j] = m / c->pool;
        }
    }
    for (int j = 0; j < c->keys; j++)
        if (fabs((double)out[j] - want[j]) > want[j] * 0x1p-24 * (4 * most + 6) + 1e-30)
            fail_msg("%s: row %d, key %d: %g, expected %g", c->name, r, j, (double)out[j], want[j]);
    free(p);
    free(want);
}

static void test_reference(void **state)
{
    struct kn_backend *be;
    (void)state;
    for (size_t s = 0; s < N_SHAPES; s++) {
        const struct shape *c = &shapes[s];
        struct data a = make(c, s + 1);
        const size_t bytes = (size_t)(c->n * c->keys) * 4;
        for (int b = 0; (be = test_backend(b)); b++) {
            struct kn_attention_weights w = call_of(c, &a);
            memset(a.out, 0, bytes);
            if (b % 2) { /* row by row: the same bits */
                w.n = 1;
                for (int r = 0; r < c->n; r++) {
                    w.q = a.q + r * c->n_head * c->d, w.pos = a.pos + r, w.out = a.out + r * c->keys;
                    assert_ok(be, kn_op(be)->attention_weights(be, &w));
                }
            } else
                assert_ok(be, kn_op(be)->attention_weights(be, &w));
            if (b) assert_memory_equal(a.out, a.want, bytes);
            memcpy(a.want, a.out, bytes);
            kn_backend_close(be);
        }
        for (int r = 0; r < c->n; r++) check_row(c, &a, r, a.want + r * c->keys);
        drop(&a);
    }
}

/* A second layer: the larger of the two stays. */
static void test_larger(void **state)
{
    const struct shape *c = &shapes[0];
    struct data a = make(c, 3), other = make(c, 4);
    struct kn_backend *be = test_fastest();
    struct kn_attention_weights w = call_of(c, &a), v = call_of(c, &other);
    int larger = 0;
    (void)state;
    assert_ok(be, kn_op(be)->attention_weights(be, &w));
    assert_ok(be, kn_op(be)->attention_weights(be, &v));
    memcpy(a.want, a.out, (size_t)c->keys * 4);
    v.out = a.out;
    assert_ok(be, kn_op(be)->attention_weights(be, &v));
    for (int j = 0; j < c->keys; j++) {
        assert_true(a.out[j] == fmaxf(a.want[j], other.out[j]));
        larger += a.out[j] > a.want[j];
    }
    assert_true(larger > 0 && larger < c->keys);
    kn_backend_close(be);
    drop(&a);
    drop(&other);
}

static void test_refused(void **state)
{
    const struct shape *c = &shapes[0];
    struct data a = make(c, 5);
    struct kn_backend *be = test_fastest();
    const struct kn_attention_weights good = call_of(c, &a);
    struct kn_attention_weights w = good;
    struct kn_kv coded = a.kv;
    (void)state;
    w.pool = 4;
    assert_int_equal(kn_op(be)->attention_weights(be, &w), KN_EINVAL);
    w = good, w.n_keys = a.kv.cap + 1;
    assert_int_equal(kn_op(be)->attention_weights(be, &w), KN_EINVAL);
    w = good, w.n_head = 5;
    assert_int_equal(kn_op(be)->attention_weights(be, &w), KN_ETYPE);
    coded.type.k = KN_Q8_0;
    w = good, w.kv = &coded;
    assert_int_equal(kn_op(be)->attention_weights(be, &w), KN_ETYPE);
    kn_backend_close(be);
    drop(&a);
}

/* Rows turn by their origin's place: what positions give that are those places. */
static void test_origin(void **state)
{
    enum { N = 5, ROT = 32, MOST = 300 };
    static const int32_t pos[N] = {0, 1, 2, 3, 7}, places[N] = {0, 4, 5, 100, 299};
    int32_t origin[MOST] = {0, 4, 5, 100, -1, -1, -1, 299};
    float want[N * ROT], out[N * ROT];
    double freq[ROT / 2];
    struct kn_backend *be;
    (void)state;
    for (int i = 0; i < ROT / 2; i++) freq[i] = pow(10000, -2.0 * i / ROT);
    for (int b = 0; (be = test_backend(b)); b++) {
        assert_ok(be, kn_op(be)->rope_table(be, want, places, NULL, N, freq, ROT));
        assert_ok(be, kn_op(be)->rope_table(be, out, pos, origin, N, freq, ROT));
        assert_memory_equal(out, want, sizeof out);
        kn_backend_close(be);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference),
        cmocka_unit_test(test_larger),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_origin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
