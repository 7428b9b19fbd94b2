/* Perplexity, and the comparison with a reference: the numbers of test/data/make_kl.py, which computes them
 * in float64 by itself; the file of log-probabilities byte for byte; and files that are none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>

#include "../../../common/base/mem.h"
#include "../../../common/file/kl_base.h"
#include "../../../common/run/perplexity.h"
#include "../scratch.h"

#define N_CTX 7
#define N_VOCAB 11
#define ROWS 9 /* three windows of three */

static struct kl_base base;
static float *logits; /* of the reference [ROWS, N_VOCAB], then of the other model */
static int32_t next[ROWS];

static int setup(void **state)
{
    struct err e = {0};
    size_t n = 0;
    (void)state;
    if (kl_base_open(&base, TEST_DATA "/kl_base.bin", &e)) fail_msg("%s", e.msg);
    logits = (float *)(void *)scratch_read(TEST_DATA "/kl_logits.f32", &n);
    assert_int_equal(n, 2 * ROWS * N_VOCAB * sizeof *logits);
    for (int r = 0; r < ROWS; r++) next[r] = base.ids[r / 3 * N_CTX + 3 + r % 3 + 1];
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    kl_base_close(&base);
    free(logits);
    return 0;
}

static void layout(void **state)
{
    (void)state;
    assert_int_equal(base.n_ctx, N_CTX);
    assert_int_equal(base.n_vocab, N_VOCAB);
    assert_int_equal(base.n_window, 3);
    assert_int_equal(kl_first(7), 3);
    assert_int_equal(kl_scored(7), 3);
    assert_int_equal(kl_first(512), 256);
    assert_int_equal(kl_scored(512), 255);
    assert_int_equal(kl_scored(3), 1);
    assert_int_equal(kl_row_bytes(N_VOCAB), 8 + 2 * 12);
    assert_int_equal(kl_row_bytes(12), 8 + 2 * 12);
}

/* What is written of the reference's logits is the file. */
static void same_bytes(void **state)
{
    uint8_t row[8 + 2 * 12];
    size_t n = 0;
    struct io_out o;
    struct err e = {0};
    (void)state;
    assert_int_equal(io_out_open(&o, scratch("kl"), true, NULL, 0, &e), 0);
    assert_int_equal(kl_base_header(&o, N_CTX, N_VOCAB, 3, base.ids, &e), 0);
    for (int r = 0; r < ROWS; r++) {
        kl_row_encode(logits + r * N_VOCAB, N_VOCAB, row);
        assert_int_equal(io_out_write(&o, row, sizeof row, &e), 0);
    }
    assert_int_equal(io_out_commit(&o, &e), 0);
    char *p = scratch_read(scratch("kl"), &n);
    assert_int_equal(n, base.map.size);
    assert_memory_equal(p, base.map.data, n);
    free(p);
}

/* The value of NAME in kl_expect.txt. */
static double expected(const char *name)
{
    static char *text;
    size_t n;
    char at[64];
    if (!text) text = scratch_read(TEST_DATA "/kl_expect.txt", &n);
    assert_non_null(text);
    snprintf(at, sizeof at, "%s ", name);
    for (const char *p = text; p; p = strchr(p, '\n'), p = p ? p + 1 : NULL)
        if (!strncmp(p, at, strlen(at))) return strtod(p + strlen(at), NULL);
    fail_msg("kl_expect.txt: no %s", name);
    return 0;
}

/* Sums in another order than numpy's: 12 printed digits less two. */
static void near(const char *name, double got)
{
    const double want = expected(name);
    if (!(fabs(got - want) <= 1e-10 * fabs(want))) fail_msg("%s: %.15g (expected %.15g)", name, got, want);
}

static void check_estimate(const char *name, struct estimate x)
{
    char error[64];
    snprintf(error, sizeof error, "%s_error", name);
    near(name, x.value);
    near(error, x.error);
}

/* In calls of any number of rows, on any number of threads: the same bits. */
static void numbers(void **state)
{
    const float *other = logits + ROWS * N_VOCAB;
    double first[2] = {0};
    (void)state;
    for (int threads = 1; threads <= 3; threads++)
        for (int step = 1; step <= ROWS; step++) {
            struct perplexity p;
            struct err e = {0};
            perplexity_begin(&p, N_VOCAB, true);
            p.threads = threads;
            for (int r = 0; r < ROWS; r += step)
                assert_int_equal(perplexity_add(&p, other + r * N_VOCAB, r + step < ROWS ? step : ROWS - r,
                                                next + r, base.rows + (size_t)r * kl_row_bytes(N_VOCAB), &e),
                                 0);
            assert_int_equal(p.n, ROWS);
            check_estimate("nll", perplexity_nll(&p));
            check_estimate("ppl", perplexity_ppl(&p));
            check_estimate("base_ppl", perplexity_base_ppl(&p));
            check_estimate("ln_ratio", perplexity_ln_ratio(&p));
            check_estimate("kl", perplexity_kl(&p));
            check_estimate("p_rms", perplexity_p_rms(&p));
            check_estimate("same_top", perplexity_same_top(&p));
            near("kl_median", perplexity_kl_quantile(&p, 0.5));
            near("kl_90", perplexity_kl_quantile(&p, 0.9));
            near("kl_max", perplexity_kl_quantile(&p, 1));
            if (threads == 1 && step == 1) first[0] = p.nll, first[1] = p.kl;
            assert_true(p.nll == first[0] && p.kl == first[1]);
            perplexity_free(&p);
        }
}

/* Beside itself a reference differs by its codes alone: 16 / 65535 a step, a hundredth of which is left of
 * KL. */
static void itself(void **state)
{
    struct perplexity p;
    struct err e = {0};
    (void)state;
    perplexity_begin(&p, N_VOCAB, true);
    assert_int_equal(perplexity_add(&p, logits, ROWS, next, base.rows, &e), 0);
    assert_true(fabs(perplexity_kl(&p).value) < 1e-4);
    assert_true(perplexity_same_top(&p).value == 1);
    assert_true(fabs(perplexity_ln_ratio(&p).value) < 1e-3);
    perplexity_free(&p);
    perplexity_begin(&p, N_VOCAB, false); /* without a reference, of one row: no error can be told */
    assert_int_equal(perplexity_add(&p, logits, 1, next, NULL, &e), 0);
    assert_true(isnan(perplexity_nll(&p).error) && isnan(perplexity_kl_quantile(&p, 0.5)));
    perplexity_free(&p);
}

static void wrong(const uint8_t *data, size_t n, const char *text)
{
    struct kl_base b;
    struct err e = {0};
    scratch_write(scratch("bad"), data, n);
    assert_int_equal(kl_base_open(&b, scratch("bad"), &e), -1);
    assert_int_equal(e.code, ERR_FORMAT);
    assert_string_equal(e.msg + strlen(scratch("bad")), text);
}

static void refused(void **state)
{
    size_t n = 0;
    uint8_t *p = (uint8_t *)scratch_read(TEST_DATA "/kl_base.bin", &n), keep[4];
    const int32_t many = 1 << 30, none = 0, id = N_VOCAB;
    (void)state;
    p = realloc(p, n + 2);
    wrong(p, n - 2,
          ": wrong length (expected 392 bytes: 3 windows of 7 tokens, a vocabulary of 11; got 390)");
    wrong(p, n + 2,
          ": wrong length (expected 392 bytes: 3 windows of 7 tokens, a vocabulary of 11; got 394)");
    for (size_t k = 0; k < n; k++) { /* cut anywhere */
        struct kl_base b;
        struct err e = {0};
        scratch_write(scratch("cut"), p, k);
        assert_int_equal(kl_base_open(&b, scratch("cut"), &e), -1);
        assert_int_equal(e.code, ERR_FORMAT);
    }
    memcpy(keep, p + 24, 4);
    memcpy(p + 24, &id, 4);
    wrong(p, n, ": token 1: id out of the vocabulary (expected 0 to 10, got 11)");
    memcpy(p + 24, keep, 4);
    memcpy(p + 16, &many, 4);
    wrong(p, n,
          ": wrong length (expected 133143986196 bytes: 1073741824 windows of 7 tokens, a vocabulary of 11; "
          "got 392)");
    memcpy(p + 16, &none, 4);
    wrong(p, n,
          ": sizes out of range (expected windows of 3 tokens or more, a vocabulary and windows of 1 or "
          "more, got 7, "
          "11 and 0)");
    p[0] = 'x';
    wrong(p, n, ": no log-probabilities of a reference (expected the letters _logits_ at its start)");
    free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(layout), cmocka_unit_test(same_bytes),
                                       cmocka_unit_test(numbers), cmocka_unit_test(itself),
                                       cmocka_unit_test(refused)};
    scratch_begin();
    const int rc = cmocka_run_group_tests(tests, setup, teardown);
    scratch_end();
    return rc;
}
