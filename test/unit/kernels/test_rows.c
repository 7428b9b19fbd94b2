/* test_rows.c - operations of drafters that propose step by step: rows of two halves, vocabularies in
 * clusters, queries without keys. */
#include "ops_util.h"

/* Which clusters are the best by sorting them; ties go to the lowest, and nothing else of the row changes. */
static void test_clusters(void **state)
{
    (void)state;
    static const struct {
        int32_t n_vocab, n_clusters, n_best, levels; /* levels: of scores, few of them tie */
    } c[] = {{12, 4, 1, 1000},         {12, 4, 4, 1000}, {1000, 100, 7, 5},
             {4096, 2048, 32, 100000}, {5, 1, 1, 3},     {60, 20, 9, 1}};
    struct kn_backend *be;
    for (size_t k = 0; k < sizeof c / sizeof *c; k++) {
        enum { N = 3 };
        const int32_t v = c[k].n_vocab, m = c[k].n_clusters;
        float *logits = test_alloc((size_t)(N * v) * 4), *want = test_alloc((size_t)(N * v) * 4),
              *scores = test_alloc((size_t)(N * m) * 4), *x = test_alloc((size_t)(N * v) * 4);
        int32_t *of = test_alloc((size_t)v * 4);
        uint64_t seed = k + 1;
        rnd_fill(x, (size_t)(N * v), 4.0f, &seed);
        for (int32_t i = 0; i < N * m; i++) scores[i] = (float)(rnd_next(&seed) % (uint64_t)c[k].levels);
        for (int32_t i = 0; i < v; i++) of[i] = (int32_t)(rnd_next(&seed) % (uint64_t)m);
        for (int32_t i = 0; i < m && i < v; i++) of[i] = i; /* none is empty */
        for (int r = 0; r < N; r++) {
            bool *best = test_alloc((size_t)m);
            float least = INFINITY;
            for (int32_t b = 0; b < c[k].n_best; b++) { /* the best of those left, from the lowest on */
                int32_t at = -1;
                for (int32_t i = 0; i < m; i++)
                    if (!best[i] && (at < 0 || scores[r * m + i] > scores[r * m + at])) at = i;
                best[at] = true;
            }
            for (int32_t i = 0; i < v; i++)
                if (best[of[i]]) least = fminf(least, x[r * v + i]);
            for (int32_t i = 0; i < v; i++) want[r * v + i] = best[of[i]] ? x[r * v + i] : least - 1;
            free(best);
        }
        for (int b = 0; (be = test_backend(b)); b++) {
            struct kn_clusters a = {.logits = logits,
                                    .scores = scores,
                                    .of_id = of,
                                    .n = N,
                                    .n_vocab = v,
                                    .n_clusters = m,
                                    .n_best = c[k].n_best};
            memcpy(logits, x, (size_t)(N * v) * 4);
            assert_ok(be, kn_op(be)->clusters(be, &a));
            assert_memory_equal(logits, want, (size_t)(N * v) * 4);
            a.n_best = m + 1;
            assert_int_equal(kn_op(be)->clusters(be, &a), KN_EINVAL);
            kn_backend_close(be);
        }
        free(logits), free(want), free(scores), free(x), free(of);
    }
}

/* Queries alone have the bits that they have beside keys, and nothing is stored. */
static void test_rope_queries(void **state)
{
    (void)state;
    enum { N = 5, HEADS = 6, KV = 3, D = 48, ROT = 24 };
    struct kn_backend *be;
    float q[N * HEADS * D], with[N * HEADS * D], alone[N * HEADS * D], k[N * KV * D], v[N * KV * D], norm[D],
        table[N * ROT];
    double freq[ROT / 2];
    int32_t pos[N];
    uint64_t seed = 4;
    rnd_fill(q, N * HEADS * D, 1.0f, &seed);
    rnd_fill(v, N * KV * D, 1.0f, &seed);
    rnd_fill(norm, D, 1.0f, &seed);
    for (int i = 0; i < ROT / 2; i++) freq[i] = 1.0 / (1 + i);
    for (int i = 0; i < N; i++) pos[i] = 300 + i;
    for (int b = 0; (be = test_backend(b)); b++) {
        struct kn_kv kv = {.type = {KN_F16, KN_F16}, .cap = kn_kv_room(512), .n_head_kv = KV, .head_dim = D};
        const size_t bytes = kn_kv_bytes(&kv, KN_F16);
        uint8_t *none = test_alloc(bytes);
        kv.k = kn_op(be)->alloc(be, bytes), kv.v = kn_op(be)->alloc(be, bytes);
        assert_ok(be, kn_op(be)->rope_table(be, table, pos, NULL, N, freq, ROT));
        struct kn_rope_store a = {.q = alone,
                                  .q_norm = norm,
                                  .table = table,
                                  .pos = pos,
                                  .n = N,
                                  .n_head = HEADS,
                                  .n_rot = ROT,
                                  .eps = 1e-6f,
                                  .kv = &kv};
        memcpy(alone, q, sizeof q);
        assert_ok(be, kn_op(be)->rope_store(be, &a));
        assert_memory_equal(kv.k, none, bytes);
        assert_memory_equal(kv.v, none, bytes);
        memcpy(with, q, sizeof q);
        memcpy(k, v, sizeof k);
        a.q = with, a.k = k, a.v = v;
        assert_ok(be, kn_op(be)->rope_store(be, &a));
        assert_memory_equal(alone, with, sizeof q);
        assert_memory_not_equal(kv.k, none, bytes);
        kn_op(be)->free(be, kv.k), kn_op(be)->free(be, kv.v);
        free(none);
        kn_backend_close(be);
    }
}

/* Without norms, as they are; of no row, refused. */
static void raw_pair(struct kn_backend *be, float *out, float *x, float *y, int n, int w)
{
    const size_t row = (size_t)w * 4;
    const struct kn_norm_pair raw = {.out = out, .raw = true, .x = x, .y = y, .n = n, .width = w},
                              none = {.out = out, .x = x, .y = y, .n = 0, .width = w};
    assert_ok(be, kn_op(be)->norm_pair(be, &raw));
    for (int i = 0; i < n; i++) {
        assert_memory_equal(out + 2 * i * w, x + i * w, row);
        assert_memory_equal(out + (2 * i + 1) * w, y + i * w, row);
    }
    assert_int_equal(kn_op(be)->norm_pair(be, &none), KN_EINVAL);
}

/* Two norms side by side, the second one's rows a row late, the first of them from the rows that were kept:
 * the bits of rms_norm, which is held against double above. */
static void test_norm_pair(void **state)
{
    (void)state;
    static const int widths[] = {1, 40, 257, 5120};
    enum { N = 5, SLOTS = 7 };
    struct kn_backend *be;
    for (size_t c = 0; c < sizeof widths / sizeof *widths; c++) {
        const int w = widths[c];
        const size_t row = (size_t)w * 4;
        float *x = test_alloc(N * row), *y = test_alloc(N * row), *late = test_alloc(SLOTS * row),
              *g = test_alloc(2 * row), *out = test_alloc(2 * N * row), *want = test_alloc(row);
        uint64_t seed = (uint64_t)w;
        rnd_fill(x, (size_t)(N * w), 3.0f, &seed);
        rnd_fill(y, (size_t)(N * w), 2.0f, &seed);
        rnd_fill(late, (size_t)(SLOTS * w), 2.0f, &seed);
        rnd_fill(g, (size_t)(2 * w), 1.0f, &seed);
        for (int b = 0; (be = test_backend(b)); b++) {
            for (int32_t from = 0; from < 17; from += 8) { /* NULL: no row late */
                int32_t pos[N], before[N + 1] = {0};
                for (int i = 0; i < N; i++) pos[i] = from + i;
                before[N] = -7;
                const bool shifted = from > 0;
                const struct kn_norm_pair a = {.out = out,
                                               .x = x,
                                               .x_weight = g,
                                               .y = y,
                                               .y_weight = g + w,
                                               .late = shifted ? late : NULL,
                                               .slots = SLOTS,
                                               .pos = pos,
                                               .before = before,
                                               .n = N,
                                               .n_before = N,
                                               .width = w,
                                               .eps = 1e-6f};
                assert_ok(be, kn_op(be)->norm_pair(be, &a));
                for (int i = 0; i < N; i++) {
                    const float *from_y = !shifted ? y + i * w
                                          : i      ? y + (i - 1) * w
                                                   : late + (from - 1) % SLOTS * w;
                    assert_ok(be, kn_op(be)->rms_norm(be, want, x + i * w, g, 1, w, 1e-6f));
                    assert_memory_equal(out + 2 * i * w, want, row);
                    assert_ok(be, kn_op(be)->rms_norm(be, want, from_y, g + w, 1, w, 1e-6f));
                    assert_memory_equal(out + (2 * i + 1) * w, want, row);
                    assert_int_equal(before[i], from + i ? from + i - 1 : 0);
                }
                assert_int_equal(before[N], -7);
            }
            raw_pair(be, out, x, y, N, w);
            kn_backend_close(be);
        }
        free(x), free(y), free(late), free(g), free(out), free(want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_norm_pair), cmocka_unit_test(test_clusters),
                                       cmocka_unit_test(test_rope_queries)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
