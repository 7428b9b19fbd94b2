/* test_sparse.c - block-sparse attention of prompts: against a reference in double written from its
 * definition (docs/sparse.md), the bits of dense attention where every block is kept, the same bits from
 * every instruction set, thread count and cut of the rows. */
#include "kv_ref.h"
#include "ops_util.h"
#include "sparse_case.h"

#define BLOCK KN_SPARSE_BLOCK

static const struct sparse_case cases[] = {
    {"one block", 0, 128, 2, 1, 64, KV(F16, F16)},
    {"from 0", 0, 1152, 4, 2, 64, KV(F16, F16)},
    {"behind 9 blocks", 1152, 384, 6, 2, 128, KV(BF16, BF16)},
    {"f32, one head", 2048, 256, 1, 1, 80, KV(F32, F32)},
    {"keys bf16, values f16", 1152, 256, 4, 4, 64, KV(BF16, F16)},
    {"more blocks than a group of means", 33 * 4096, 128, 1, 1, 16, KV(F16, F16)},
    {"q8_0", 1024, 128, 4, 1, 128, KV(Q8_0, Q8_0)},
    {"keys tq3_0, values q5_0", 1024, 256, 4, 2, 128, KV(TQ3_0, Q5_0)},
    {"head 256", 1024, 128, 2, 1, 256, KV(F16, F16)},
};
#define N_CASES (sizeof cases / sizeof *cases)

/* rows from row on, n of them; made: blocks whose means are there. */
static void run(struct kn_backend *be, const struct sparse_case *c, const struct sparse_data *a,
                const struct sparse_setting *s, int32_t step, float *out, uint64_t kept[2])
{
    struct kn_sparse_room room;
    kept[0] = kept[1] = 0;
    assert_ok(be, kn_op(be)->reserve(be, c->n, 0, 0, c->n_head, c->d));
    assert_ok(be, kn_op(be)->sparse_room(be, step, c->n_head, &a->kv, &room));
    struct kn_sparse sparse = {.mean = room.mean, .kept = kept};
    sparse.scratch = test_alloc(room.scratch);
    sparse.mean.k = test_alloc(kn_kv_bytes(&room.mean, room.mean.type.k));
    sparse.mean.v = test_alloc(kn_kv_bytes(&room.mean, room.mean.type.v));
    if (s) sparse_set(&sparse, s);
    for (int32_t i = 0; i < c->n; i += step) {
        struct kn_attention t = sparse_call(c, &a->kv, a->q, a->pos, i, step, s ? &sparse : NULL, out);
        assert_ok(be, kn_op(be)->attention(be, &t));
        sparse.made = (c->first + i + t.n) / BLOCK;
    }
    free(sparse.mean.k);
    free(sparse.mean.v);
    free(sparse.scratch);
}

/* ---- in double ---- */

struct reference {
    double *k, *v;   /* [positions, n_kv, d] */
    double *mk, *mv; /* [blocks, n_kv, d] */
};

static struct reference reference_of(const struct sparse_case *c, const struct sparse_data *a)
{
    const int32_t end = c->first + c->n, row = c->n_kv * c->d;
    const size_t all = (size_t)end * (size_t)row, means = (size_t)(end / BLOCK) * (size_t)row;
    struct reference r = {test_alloc(all * 8), test_alloc(all * 8), test_alloc(means * 8),
                          test_alloc(means * 8)};
    for (int32_t p = 0; p < end; p++) {
        kv_ref_row(c->type.k, false, (char *)a->kv.k + (size_t)p * kn_kv_row_bytes(&a->kv, c->type.k),
                   c->n_kv, c->d, r.k + (int64_t)p * row);
        kv_ref_row(c->type.v, true, (char *)a->kv.v + (size_t)p * kn_kv_row_bytes(&a->kv, c->type.v), c->n_kv,
                   c->d, r.v + (int64_t)p * row);
        for (int32_t i = 0; i < row; i++) {
            r.mk[(int64_t)(p / BLOCK) * row + i] += r.k[(int64_t)p * row + i] / BLOCK;
            r.mv[(int64_t)(p / BLOCK) * row + i] += r.v[(int64_t)p * row + i] / BLOCK;
        }
    }
    return r;
}

static void reference_free(struct reference *r)
{
    free(r->k);
    free(r->v);
    free(r->mk);
    free(r->mv);
}

static double product(const float *q, const double *k, int32_t d)
{
    double s = 0;
    for (int32_t i = 0; i < d; i++) s += (double)q[i] * k[i];
    return s * (float)(1.0 / sqrt(d));
}

/* Log of the sum of exp of a block's scores, of a block of rows and a query head: [own][h][n], n below all.
 */
static double *scores_of(const struct sparse_case *c, const struct sparse_data *a, const struct reference *r)
{
    const int32_t all = (c->first + c->n) / BLOCK, rep = c->n_head / c->n_kv, row = c->n_kv * c->d;
    double *score = test_alloc((size_t)(c->n / BLOCK * c->n_head * all) * sizeof *score), x[BLOCK];
    for (int32_t u = 0; u < c->n / BLOCK * c->n_head; u++)
        for (int32_t n = 0, own = u / c->n_head, h = u % c->n_head, m = c->first / BLOCK + own; n <= m; n++) {
            const int32_t from = n == m ? BLOCK - 1 : 0;
            double top = -INFINITY, sum = 0;
            for (int32_t i = from; i < BLOCK; i++) {
                x[i] = product(a->q + ((int64_t)(own * BLOCK + i) * c->n_head + h) * c->d,
                               r->mk + (int64_t)n * row + h / rep * c->d, c->d);
                top = fmax(top, x[i]);
            }
            for (int32_t i = from; i < BLOCK; i++) sum += exp(x[i] - top);
            score[(int64_t)u * all + n] = top + log(sum);
        }
    return score;
}

/* The list of a block of rows and kv head; false: a block stands so near the limit that float may say other.
 */
static bool list_of(const struct sparse_case *c, const double *scores, const struct sparse_setting *s,
                    int32_t own, int32_t head, bool *keep)
{
    const int32_t m = c->first / BLOCK + own, rep = c->n_head / c->n_kv, all = (c->first + c->n) / BLOCK;
    bool clear = true;
    for (int32_t n = 0; n <= m; n++) keep[n] = n < s->sink || m - n < s->window;
    for (int32_t h = head * rep; h < (head + 1) * rep; h++) {
        const double *score = scores + (int64_t)(own * c->n_head + h) * all;
        double most = -INFINITY;
        for (int32_t n = 0; n <= m; n++) most = fmax(most, score[n]);
        for (int32_t n = 0; n <= m; n++) {
            const double part = exp(score[n] - most), off = fabs(part - (double)s->alpha);
            keep[n] |= part >= (double)s->alpha;
            clear &= s->alpha == 0 || off > 1e-3 * (double)s->alpha;
        }
    }
    return clear;
}

static void row_of(const struct sparse_case *c, const struct sparse_data *a, const struct reference *r,
                   int32_t i, int32_t h, const bool *keep, double *out)
{
    const int32_t pos = a->pos[i], row = c->n_kv * c->d, head = h / (c->n_head / c->n_kv);
    const float *q = a->q + ((int64_t)i * c->n_head + h) * c->d;
    double top = -INFINITY, sum = 0;
    memset(out, 0, (size_t)c->d * sizeof *out);
    for (int pass = 0; pass < 2; pass++)
        for (int32_t n = 0; n <= pos / BLOCK; n++)
            for (int32_t p = n * BLOCK; p <= pos && p < (n + 1) * BLOCK; p += keep[n] ? 1 : BLOCK) {
                const int64_t at = keep[n] ? (int64_t)p * row + head * c->d : (int64_t)n * row + head * c->d;
                const double x = product(q, (keep[n] ? r->k : r->mk) + at, c->d);
                if (!pass) {
                    top = fmax(top, x);
                    continue;
                }
                const double w = exp(x - top) * (keep[n] ? 1 : BLOCK);
                sum += w;
                for (int32_t j = 0; j < c->d; j++) out[j] += w * ((keep[n] ? r->v : r->mv)[at + j]);
            }
    for (int32_t j = 0; j < c->d; j++) out[j] /= sum;
}

/* out of a run against the reference; *skipped: lists near a limit. Counts blocks of the lists. */
static double compare(const struct sparse_case *c, const struct sparse_data *a, const struct reference *r,
                      const double *scores, const struct sparse_setting *s, const float *out, uint64_t all[2],
                      int *skipped)
{
    /* The sum of magnitudes of a score is some size; roundings as in test_ops.c, and those of 128 in a mean.
     */
    const double size = 1.5 * sqrt(c->d) * 2,
                 bound = 0x1p-24 * a->big * (2.0 * (c->d / 16 + 6) * size + 4.0 * size + 35.0 + 128.0) / 16;
    const int32_t rep = c->n_head / c->n_kv;
    bool *keep = test_alloc((size_t)(c->first + c->n) / BLOCK);
    double want[512], worst = 0;
    for (int32_t u = 0; u < c->n / BLOCK * c->n_kv; u++) {
        const int32_t own = u / c->n_kv, head = u % c->n_kv;
        const bool clear = list_of(c, scores, s, own, head, keep);
        for (int32_t n = 0; n <= c->first / BLOCK + own; n++) all[0] += keep[n], all[1]++;
        if (!clear && ++*skipped) continue;
        for (int32_t i = own * BLOCK; i < (own + 1) * BLOCK; i += 63)
            for (int32_t h = head * rep; h < (head + 1) * rep; h++) {
                row_of(c, a, r, i, h, keep, want);
                for (int32_t j = 0; j < c->d; j++) {
                    const double e = fabs(out[((int64_t)i * c->n_head + h) * c->d + j] - want[j]);
                    if (!(e <= bound))
                        fail_msg("%s, alpha %g: row %d head %d value %d: off by %g (bound %g)", c->name,
                                 (double)s->alpha, i, h, j, e, bound);
                    worst = fmax(worst, e / bound);
                }
            }
    }
    free(keep);
    return worst;
}

static void check_case(struct kn_backend *be, const struct sparse_case *c, uint64_t seed)
{
    static const struct sparse_setting settings[] = {
        {2, 0, 0, 1, false}, {0.1f, 0, 2, 4, false}, {0.6f, 0, 1, 1, false}};
    struct sparse_data a = sparse_make(c, seed);
    struct reference r = reference_of(c, &a);
    double *scores = scores_of(c, &a, &r);
    float *out = test_alloc((size_t)c->n * (size_t)c->n_head * (size_t)c->d * 4);
    for (int i = 0; i < (c->first < 10000 ? 3 : 1); i++) {
        uint64_t kept[2], all[2] = {0, 0};
        int skipped = 0;
        run(be, c, &a, &settings[i], c->n, out, kept);
        const double worst = compare(c, &a, &r, scores, &settings[i], out, all, &skipped);
        if (!skipped) assert_int_equal(kept[0], all[0]);
        assert_int_equal(kept[1], all[1]);
        print_message("%s, alpha %g: %.3f kept, error %.3f of the bound%s\n", c->name,
                      (double)settings[i].alpha, (double)kept[0] / (double)kept[1], worst,
                      skipped ? ", near-ties left out" : "");
        assert_true(skipped <= c->n / BLOCK * c->n_kv / 4);
    }
    free(out);
    free(scores);
    reference_free(&r);
    sparse_drop(&a);
}

static void test_reference(void **state)
{
    struct kn_backend *be = test_fastest();
    (void)state;
    for (size_t i = 0; i < N_CASES; i++) check_case(be, &cases[i], i + 1);
    kn_backend_close(be);
}

/* Every block kept: dense attention, to the bit; whatever cuts the rows: the same bits, on every backend. */
static void test_bits(void **state)
{
    static const struct sparse_setting full = {0, 0, 2, 4, false}, some = {0.1f, 0, 2, 4, false};
    (void)state;
    for (size_t i = 0; i < N_CASES; i++) {
        const struct sparse_case *c = &cases[i];
        if (c->first > 10000) continue;
        const size_t n = (size_t)c->n * (size_t)c->n_head * (size_t)c->d;
        struct sparse_data a = sparse_make(c, i + 1);
        float *want[2] = {test_alloc(n * 4), test_alloc(n * 4)}, *out = test_alloc(n * 4);
        uint64_t kept[2], first[2];
        struct kn_backend *be;
        for (int b = 0; (be = test_backend(b)); b += 2) {
            if (b == 0) {
                run(be, c, &a, NULL, c->n, want[0], kept);
                run(be, c, &a, &some, c->n, want[1], first);
            }
            run(be, c, &a, &full, c->n, out, kept);
            assert_memory_equal(out, want[0], n * 4);
            assert_int_equal(kept[0], kept[1]);
            run(be, c, &a, &some, b % 4 ? BLOCK : c->n, out, kept);
            assert_memory_equal(out, want[1], n * 4);
            assert_int_equal(kept[0], first[0]);
            kn_backend_close(be);
        }
        free(out);
        free(want[0]);
        free(want[1]);
        sparse_drop(&a);
    }
}

/* As many blocks as asked, and lists of the same sizes elsewhere. */
static void test_spread(void **state)
{
    const struct sparse_case *c = &cases[2];
    const struct sparse_setting half = {0.1f, 0.5f, 2, 4, false}, scored = {0.1f, 0, 2, 4, false},
                                spread = {0.1f, 0, 2, 4, true};
    const size_t n = (size_t)c->n * (size_t)c->n_head * (size_t)c->d;
    struct kn_backend *be = test_fastest();
    struct sparse_data a = sparse_make(c, 2);
    float *x = test_alloc(n * 4), *y = test_alloc(n * 4);
    uint64_t kept[2], want = 0, other[2];
    (void)state;
    for (int m = c->first / BLOCK; m < (c->first + c->n) / BLOCK; m++) {
        const int all = (m + 2) / 2, fixed = m + 1 < 6 ? m + 1 : 6;
        want += (uint64_t)(c->n_kv * (all > fixed ? all : fixed));
    }
    run(be, c, &a, &half, c->n, x, kept);
    assert_int_equal(kept[0], want);
    run(be, c, &a, &scored, c->n, x, kept);
    run(be, c, &a, &spread, c->n, y, other);
    assert_int_equal(kept[0], other[0]);
    assert_memory_not_equal(x, y, n * 4);
    free(x);
    free(y);
    sparse_drop(&a);
    kn_backend_close(be);
}

/* A block with a NaN is kept whatever its score, so that the NaN shows in the rows that see it. */
static void test_nan(void **state)
{
    const struct sparse_case *c = &cases[3];
    const struct sparse_setting none = {2, 0, 0, 1, false};
    const size_t row = (size_t)c->n_head * (size_t)c->d;
    struct kn_backend *be = test_fastest();
    (void)state;
    for (int values = 0; values < 2; values++) {
        struct sparse_data a = sparse_make(c, 5);
        float *x = test_alloc((size_t)c->n * row * 4);
        uint64_t kept[2];
        ((float *)(values ? a.kv.v : a.kv.k))[(size_t)300 * (size_t)c->d + 3] = NAN;
        run(be, c, &a, &none, c->n, x, kept);
        for (size_t i = 0; i < (size_t)c->n; i++) assert_true(isnan(x[i * row + 3]));
        free(x);
        sparse_drop(&a);
    }
    kn_backend_close(be);
}

static void test_refuses(void **state)
{
    const struct sparse_case *c = &cases[1];
    struct kn_backend *be = test_fastest();
    struct sparse_data a = sparse_make(c, 3);
    struct kn_sparse_room room;
    uint64_t kept[2];
    float *out = test_alloc((size_t)c->n * (size_t)c->n_head * (size_t)c->d * 4);
    (void)state;
    assert_ok(be, kn_op(be)->reserve(be, c->n, 0, 0, c->n_head, c->d));
    assert_ok(be, kn_op(be)->sparse_room(be, c->n, c->n_head, &a.kv, &room));
    struct kn_sparse s = {.mean = room.mean, .window = 1, .kept = kept};
    s.mean.k = test_alloc(kn_kv_bytes(&room.mean, room.mean.type.k));
    s.mean.v = test_alloc(kn_kv_bytes(&room.mean, room.mean.type.v));
    s.scratch = test_alloc(room.scratch);
    const struct kn_attention good = {.q = a.q,
                                      .out = out,
                                      .kv = &a.kv,
                                      .pos = a.pos,
                                      .n = c->n,
                                      .n_head = c->n_head,
                                      .scale = 0.1f,
                                      .causal = true,
                                      .sparse = &s};
    struct kn_attention t = good;
    assert_ok(be, kn_op(be)->attention(be, &t));
    t.n = c->n - 1;
    assert_int_equal(kn_op(be)->attention(be, &t), KN_EINVAL);
    t = good, t.pos = a.pos + 1, t.n = BLOCK;
    assert_int_equal(kn_op(be)->attention(be, &t), KN_EINVAL);
    t = good, t.window = 1000;
    assert_int_equal(kn_op(be)->attention(be, &t), KN_EINVAL);
    t = good, t.causal = false;
    assert_int_equal(kn_op(be)->attention(be, &t), KN_EINVAL);
    t = good, s.window = 0;
    assert_int_equal(kn_op(be)->attention(be, &t), KN_EINVAL);
    s.window = 1, s.alpha = NAN;
    assert_int_equal(kn_op(be)->attention(be, &t), KN_EINVAL);
    free(s.mean.k);
    free(s.mean.v);
    free(s.scratch);
    free(out);
    sparse_drop(&a);
    kn_backend_close(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_reference), cmocka_unit_test(test_bits),
                                       cmocka_unit_test(test_spread), cmocka_unit_test(test_nan),
                                       cmocka_unit_test(test_refuses)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
