/* test_mm.c - matrix products: accuracy against double, and the same bits for every row count, set and thread
 * count. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <math.h>
#include <cmocka.h>

#include "../../../kernels/cpu/cpu.h"
#include "../../../kernels/cpu/mm.h"
#include "../../../kernels/cpu/rows.h"

#include "../../block_scales.h"
#include "mm_vnni_emulated.h"

#define N_MAX 65

static const uint32_t types[] = {KN_F32,   KN_F16,     KN_BF16,   KN_Q8_0,  KN_Q4_0,    KN_Q5_0,
                                 KN_Q4_1,  KN_Q5_1,    KN_Q4_K,   KN_Q5_K,  KN_Q6_K,    KN_Q2_K,
                                 KN_Q3_K,  KN_IQ4_NL,  KN_IQ4_XS, KN_MXFP4, KN_IQ2_XXS, KN_IQ2_XS,
                                 KN_IQ2_S, KN_IQ3_XXS, KN_IQ3_S,  KN_IQ1_S, KN_IQ1_M};
#define N_TYPES (int)(sizeof types / sizeof *types)

static struct cpu_isa isas[5] = {{"scalar", &cpu_rows_scalar, &cpu_mm_scalar}};
static int n_isas = 1;

static void find_isas(void)
{
    n_isas = 1;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
        isas[n_isas++] = (struct cpu_isa){"avx2", &cpu_rows_avx2, &cpu_mm_avx2};
        isas[n_isas++] = (struct cpu_isa){"avx2+vnni, emulated", &cpu_rows_avx2, &mm_vnni_emulated};
    }
    struct kn_open o = {.device = "cpu", .isa = "avx2"};
    struct kn_backend *be;
    char message[256];
    if (!kn_backend_open(&be, &o, message, sizeof message)) {
        if (((struct cpu_backend *)be)->isa->mm == &cpu_mm_avxvnni)
            isas[n_isas++] = *((struct cpu_backend *)be)->isa;
        kn_backend_close(be);
    }
    if (__builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw"))
        isas[n_isas++] = (struct cpu_isa){"avx512", &cpu_rows_avx512, &cpu_mm_avx512};
}

static void set_threads(struct cpu_backend *be, int threads)
{
    pool_free(be->pool);
    be->threads = threads;
    be->pool = pool_new(threads);
    assert_non_null(be->pool);
    free(be->stretch);
    assert_int_equal(cpu_mm_open(be), 0);
}

static struct kn_backend *open_cpu(struct cpu_backend *be, const struct cpu_isa *isa, int threads)
{
    memset(be, 0, sizeof *be);
    be->isa = isa;
    set_threads(be, threads);
    assert_int_equal(cpu_mm_reserve(be, N_MAX, 1024), 0);
    return (struct kn_backend *)be;
}

static void close_cpu(struct cpu_backend *be)
{
    cpu_mm_close(be);
    pool_free(be->pool);
}

/* ---- data ---- */

static uint64_t seed = 1;
static uint32_t rnd(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33);
}
static float rnd_float(void) /* about normal, sigma 1 */
{
    float s = 0;
    for (int i = 0; i < 6; i++) s += (float)rnd() / 2147483648.0f;
    return (s - 3.0f) * 1.41f;
}

/* Random blocks, every code and scale possible; only the f16 scales are kept finite and small. */
static uint8_t *random_weights(uint32_t type, int64_t n_in, int64_t n_out)
{
    const size_t bytes = kn_row_bytes(type, n_in) * (size_t)n_out, block = kn_type_info(type)->bytes;
    uint8_t *w = malloc(bytes);
    assert_non_null(w);
    for (size_t i = 0; i < bytes; i++) w[i] = (uint8_t)rnd();
    if (type == KN_F32)
        for (size_t i = 0; i < bytes / 4; i++) ((float *)w)[i] = rnd_float();
    else if (type == KN_F16 || type == KN_BF16)
        for (size_t i = 0; i < bytes / 2; i++) {
            const uint16_t h = type == KN_F16 ? kn_f32_to_f16(rnd_float()) : kn_f32_to_bf16(rnd_float());
            memcpy(w + 2 * i, &h, 2);
        }
    else
        for (size_t i = 0; i < bytes; i += block) {
            const float d = rnd_float() * 0.02f, m = rnd_float() * 0.02f;
            block_set_scales(type, w + i, d, m);
        }
    return w;
}

/* NaNs compare as one: their payload is not part of the promise. */
static bool same_bits(const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(a + i, b + i, 4) && !(isnan(a[i]) && isnan(b[i]))) return false;
    return true;
}

static float *random_rows(int64_t n, int64_t width)
{
    float *x = malloc((size_t)(n * width) * sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < n * width; i++) x[i] = rnd_float();
    return x;
}

static const int64_t widths_256[] = {256, 768}, widths_32[] = {32, 96, 256},
                     widths_any[] = {1, 7, 32, 129, 256};

static int widths_of(uint32_t type, const int64_t **w)
{
    const uint32_t block = kn_type_info(type)->block;
    *w = block == 256 ? widths_256 : block == 32 ? widths_32 : widths_any;
    return block == 256 ? 2 : block == 32 ? 3 : 5;
}

static const int64_t outs[] = {1, 15, 16, 17, 33, 100};

/* ---- accuracy ----
 * Float weights: two chains of n_in / 2 fused steps and a sum: |error| <= (n_in / 2 + 1) u sum|w x|, u =
 * 2^-24, and the double reference rounded once. Quantised: an activation is off by at most half a step, d/2 =
 * amax / 254, in its block, plus the float steps: each of the (at most 2 a block) products is rounded up to 4
 * times (conversion, scale, scale product, sum), over a sum of at most n_in / 16 terms. Weights of the K
 * types enter as integers, so the decoder's own rounding (3 steps a value) is part of the bound. */
static double bound(uint32_t type, const float *w, const float *x, int64_t n_in, double offsets, bool exact)
{
    const double u = 0x1p-24;
    double mass = 0, step = 0;
    const uint32_t block = kn_type_info(type)->block;
    for (int64_t k = 0; k < n_in; k++) mass += fabs((double)w[k] * x[k]);
    if (block == 1) return ((double)n_in / 2 + 3) * u * mass;
    for (int64_t b = 0; b < n_in / block; b++) {
        double amax = 0, wsum = 0;
        for (uint32_t i = 0; i < block; i++) {
            amax = fmax(amax, fabs(x[b * block + i]));
            wsum += fabs(w[b * block + i]);
        }
        step += wsum * amax / 254 * (1 + 8 * u);
        mass += offsets * amax * block; /* the codes and minimums before they cancel */
    }
    return (exact ? 0 : step) + ((double)n_in / 8 + 16) * u * mass;
}

/* The largest |part| of a weight that the kernel sums apart: code * scale or minimum, from the file's own
 * ranges: |d|, |dmin| < 0.07 in random_weights; codes up to 255 (Q8_0, IQ4_NL; 32 with IQ4_XS's
 * scales), 63 * 128 (Q6_K, with scales), 31 * 63 (Q5_K; above what Q2_K and Q3_K have). */
static double offset_of(uint32_t type)
{
    if (type == KN_IQ4_XS) return 0.09 * 255 * 32;
    return type == KN_Q6_K                        ? 0.09 * 63 * 128
           : type == KN_Q8_0 || type == KN_IQ4_NL ? 0.09 * 255
                                                  : 0.09 * 31 * 63;
}

static void test_accuracy(void **state)
{
    (void)state;
    for (int s = 0; s < n_isas; s++)
        for (int ti = 0; ti < N_TYPES; ti++) {
            const int64_t n_in = kn_type_info(types[ti])->block == 256 ? 768 : 288, n_out = 33;
            struct cpu_backend be;
            struct kn_backend *kb = open_cpu(&be, &isas[s], 2);
            struct kn_weight w;
            uint8_t *data = random_weights(types[ti], n_in, n_out);
            float *x = random_rows(3, n_in), *out = random_rows(3, n_out), *row = random_rows(1, n_in);
            for (int64_t k = 0; k < n_in; k++) {
                x[n_in + k] *= k == 5 ? 1e6f : 1e-3f; /* an outlier */
                /* Whole numbers with 127 in each block are their own 8-bit form:
                 * only float rounding is left. */
                x[2 * n_in + k] = k % 32 == 9 ? 127.0f : (float)(int)(rnd() % 255) - 127.0f;
            }
            double worst = 0;
            assert_int_equal(cpu_weight_load(kb, &w, types[ti], n_in, n_out, data, KN_USE_LINEAR), 0);
            assert_int_equal(cpu_linear(kb, out, &w, x, 3, false), 0);
            for (int64_t o = 0; o < n_out; o++) {
                assert_int_equal(
                    kn_decode_row(types[ti], data + (size_t)o * kn_row_bytes(types[ti], n_in), row, n_in), 0);
                for (int i = 0; i < 3; i++) {
                    double ref = 0;
                    for (int64_t k = 0; k < n_in; k++) ref += (double)row[k] * x[i * n_in + k];
                    const double e = fabs(out[i * n_out + o] - ref),
                                 b = bound(types[ti], row, x + i * n_in, n_in, offset_of(types[ti]), i == 2);
                    if (!(e <= b))
                        fail_msg("%s %s row %d out %d: %g, expected %g, off by %g, bound %g", isas[s].name,
                                 kn_type_info(types[ti])->name, i, (int)o, out[i * n_out + o], ref, e, b);
                    worst = fmax(worst, e / b);
                }
            }
            if (getenv("MM_VERBOSE"))
                print_message("%s %s: worst error %.3f of its bound\n", isas[s].name,
                              kn_type_info(types[ti])->name, worst);
            cpu_weight_free(kb, &w);
            close_cpu(&be);
            free(data), free(x), free(out), free(row);
        }
}

/* ---- the same bits ---- */

/* One row at a time by the scalar set on one thread is the reference of everything else. */
static void check_shape(uint32_t type, int64_t n_in, int64_t n_out)
{
    static const int rows[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 33, 64, 65};
    uint8_t *data = random_weights(type, n_in, n_out);
    float *x = random_rows(N_MAX, n_in), *ref = random_rows(N_MAX, n_out),
          *out = random_rows(N_MAX + 1, n_out);
    for (int s = 0; s < n_isas; s++) {
        struct cpu_backend be;
        struct kn_weight w;
        struct kn_backend *kb = open_cpu(&be, &isas[s], 1);
        assert_int_equal(cpu_weight_load(kb, &w, type, n_in, n_out, data, KN_USE_LINEAR), 0);
        for (int i = 0; s == 0 && i < N_MAX; i++)
            assert_int_equal(cpu_linear(kb, ref + i * n_out, &w, x + i * n_in, 1, false), 0);
        for (int r = 0; r < (int)(sizeof rows / sizeof *rows); r++) {
            const int n = rows[r], first = n < N_MAX ? (int)(rnd() % (uint32_t)(N_MAX - n)) : 0;
            if (s == 0 && n > 17 && n_out > 17)
                continue; /* the scalar set is slow; 33 and more are the same tiles */
            set_threads(&be, 1 + r % 3);
            assert_int_equal(cpu_mm_reserve(&be, N_MAX, 1024 + be.threads), 0);
            for (int i = 0; i < (n + 1) * n_out; i++) out[i] = 12345.0f;
            assert_int_equal(cpu_linear(kb, out, &w, x + first * n_in, n, false), 0);
            if (!same_bits(out, ref + first * n_out, (size_t)(n * n_out)))
                fail_msg("%s %s [%d, %d]: %d rows on %d threads differ from one at a time", isas[s].name,
                         kn_type_info(type)->name, (int)n_out, (int)n_in, n, be.threads);
            for (int i = 0; i < n_out; i++)
                assert_true(out[n * n_out + i] == 12345.0f); /* nothing past the rows */
        }
        cpu_weight_free(kb, &w);
        close_cpu(&be);
    }
    free(data), free(x), free(ref), free(out);
}

static void test_same_bits(void **state)
{
    (void)state;
    for (int ti = 0; ti < N_TYPES; ti++) {
        const int64_t *w;
        const int n = widths_of(types[ti], &w);
        for (int i = 0; i < n; i++)
            for (int o = 0; o < (int)(sizeof outs / sizeof *outs); o++)
                if ((i + o) % 2 == 0 || outs[o] == 17) check_shape(types[ti], w[i], outs[o]);
    }
}

/* ---- the other operations are linear's bits ---- */

static void check_fused(const struct cpu_isa *isa, enum kn_act act, float *keep)
{
    enum { E = 512, N = 9, A = 50, B = 17 };
    struct cpu_backend be;
    struct kn_backend *kb = open_cpu(&be, isa, 2);
    seed = 77;
    const uint32_t mix[4] = {KN_Q4_K, KN_F16, KN_Q8_0, KN_Q6_K};
    struct kn_weight w[4];
    uint8_t *data[4];
    float *out[4], *x = random_rows(N, E), *norm = random_rows(1, E), *y = random_rows(N, E);
    const struct kn_weight *wp[4] = {w, w + 1, w + 2, w + 3};
    float *one = random_rows(N, A), *two = random_rows(N, A);
    for (int j = 0; j < 4; j++) {
        data[j] = random_weights(mix[j], E, j == 3 ? B : A);
        assert_int_equal(cpu_weight_load(kb, &w[j], mix[j], E, j == 3 ? B : A, data[j], KN_USE_LINEAR), 0);
        out[j] = random_rows(N, A);
    }
    for (int i = 0; i < N; i++) isa->rows->rms_norm(y + i * E, x + i * E, norm, E, 1e-6f);
    assert_int_equal(cpu_norm_linear(kb, out, wp, 4, x, norm, 1e-6f, N), 0);
    for (int j = 0; j < 4; j++) {
        assert_int_equal(cpu_linear(kb, one, &w[j], y, N, false), 0);
        assert_true(same_bits(one, out[j], (size_t)(N * w[j].n_out)));
        if (j == 3) continue;
        /* add */
        memcpy(two, x, N * A * sizeof *two);
        assert_int_equal(cpu_linear(kb, two, &w[j], y, N, true), 0);
        for (int i = 0; i < N * A; i++) assert_true(two[i] == x[i] + one[i]);
    }
    assert_int_equal(cpu_norm_gated(kb, one, &w[0], &w[2], x, norm, 1e-6f, act, N), 0);
    isa->rows->gated(two, out[0], out[2], N * A, act);
    assert_true(same_bits(one, two, N * A));
    memcpy(keep, one, N * A * sizeof *keep);
    /* as many as a drafter's context wants, and no more */
    const struct kn_weight *many[KN_MATRICES + 1];
    float *each[KN_MATRICES + 1], *room = random_rows(KN_MATRICES + 1, N * A);
    for (int j = 0; j <= KN_MATRICES; j++) many[j] = &w[j % 4], each[j] = room + j * N * A;
    assert_int_equal(cpu_norm_linear(kb, each, many, KN_MATRICES, x, norm, 1e-6f, N), 0);
    for (int j = 0; j < KN_MATRICES; j++)
        assert_true(same_bits(each[j], out[j % 4], (size_t)(N * w[j % 4].n_out)));
    assert_int_equal(cpu_norm_linear(kb, each, many, KN_MATRICES + 1, x, norm, 1e-6f, N), KN_EINVAL);
    free(room);
    /* a shape error names both */
    assert_int_equal(cpu_norm_gated(kb, one, &w[0], &w[3], x, norm, 1e-6f, act, N), KN_EINVAL);
    assert_non_null(strstr(be.head.message, "[17, 512]"));
    for (int j = 0; j < 4; j++) {
        cpu_weight_free(kb, &w[j]);
        free(data[j]), free(out[j]);
    }
    free(x), free(norm), free(y), free(one), free(two);
    close_cpu(&be);
}

static void test_fused(void **state)
{
    (void)state;
    for (enum kn_act act = KN_ACT_SILU; act <= KN_ACT_GELU_TANH; act++) {
        float kept[5][450];
        for (int s = 0; s < n_isas; s++) {
            check_fused(&isas[s], act, kept[s]);
            assert_true(same_bits(kept[0], kept[s], 450));
        }
    }
}

/* ---- extremes ---- */

static void test_extremes(void **state)
{
    (void)state;
    for (int ti = 0; ti < N_TYPES; ti++) {
        enum { N = 9, IN = 512, OUT = 17 };
        uint8_t *data = random_weights(types[ti], IN, OUT);
        float *x = random_rows(N, IN), ref[N * OUT], out[N * OUT];
        for (int k = 0; k < IN; k++) {
            x[0 * IN + k] = 0.0f;
            x[1 * IN + k] = -0.0f;
            x[2 * IN + k] *= 1e-41f; /* subnormal */
            x[3 * IN + k] *= 1e30f;
            x[7 * IN + k] *= 1e-31f;
        }
        x[4 * IN + 300] = NAN;
        x[5 * IN + 511] = INFINITY;
        x[6 * IN + 0] = -INFINITY;
        for (int s = 0; s < n_isas; s++) {
            struct cpu_backend be;
            struct kn_weight w;
            struct kn_backend *kb = open_cpu(&be, &isas[s], 2);
            assert_int_equal(cpu_weight_load(kb, &w, types[ti], IN, OUT, data, KN_USE_LINEAR), 0);
            assert_int_equal(cpu_linear(kb, out, &w, x, N, false), 0);
            if (s == 0) memcpy(ref, out, sizeof ref);
            assert_true(same_bits(ref, out, N * OUT));
            for (int o = 0; o < OUT; o++) {
                assert_true(out[0 * OUT + o] == 0.0f && out[1 * OUT + o] == 0.0f);
                assert_true(fabsf(out[2 * OUT + o]) < 1e-25f);
                assert_true(isfinite(out[3 * OUT + o]) && out[3 * OUT + o] != 0.0f);
                assert_true(isnan(out[4 * OUT + o]));
                /* Inf times a zero weight is a NaN anyway: no output of the row may look sound */
                assert_false(isfinite(out[5 * OUT + o]));
                assert_false(isfinite(out[6 * OUT + o]));
                assert_true(isfinite(out[8 * OUT + o]));
            }
            cpu_weight_free(kb, &w);
            close_cpu(&be);
        }
        free(data), free(x);
    }
}

/* A weight's f16 scale that is not finite reaches every output of its row and no other. */
static void test_bad_scale(void **state)
{
    (void)state;
    for (int s = 0; s < n_isas; s++) {
        uint8_t *data = random_weights(KN_Q4_K, 256, 20);
        data[144 * 18 + 0] = 0x00, data[144 * 18 + 1] = 0x7e;
        float *x = random_rows(2, 256), out[40];
        struct cpu_backend be;
        struct kn_weight w;
        struct kn_backend *kb = open_cpu(&be, &isas[s], 1);
        assert_int_equal(cpu_weight_load(kb, &w, KN_Q4_K, 256, 20, data, KN_USE_LINEAR), 0);
        assert_int_equal(cpu_linear(kb, out, &w, x, 2, false), 0);
        for (int i = 0; i < 40; i++) assert_int_equal(isnan(out[i]) != 0, i % 20 == 18);
        cpu_weight_free(kb, &w);
        close_cpu(&be);
        free(data), free(x);
    }
}

/* Q8_0's code -128 (other writers use it) and the ends of every range. */
static void test_code_ends(void **state)
{
    (void)state;
    enum { IN = 64, OUT = 3 };
    uint8_t data[OUT * IN / 32 * 34];
    float x[IN], out[OUT];
    for (int b = 0; b < OUT * IN / 32; b++) {
        const uint16_t one = 0x3c00;
        memcpy(data + 34 * b, &one, 2);
        memset(data + 34 * b + 2, b / 2 == 0 ? 0x80 : b / 2 == 1 ? 0x7f : 0x81, 32);
    }
    for (int k = 0; k < IN; k++) x[k] = k % 2 ? 127.0f : 127.0f * (k < 32 ? 1 : -1);
    for (int s = 0; s < n_isas; s++) {
        struct cpu_backend be;
        struct kn_weight w;
        struct kn_backend *kb = open_cpu(&be, &isas[s], 1);
        assert_int_equal(cpu_weight_load(kb, &w, KN_Q8_0, IN, OUT, data, KN_USE_LINEAR), 0);
        assert_int_equal(cpu_linear(kb, out, &w, x, 1, false), 0);
        assert_true(out[0] == -128.0f * 127 * 32 && out[1] == 127.0f * 127 * 32 &&
                    out[2] == -127.0f * 127 * 32);
        cpu_weight_free(kb, &w);
        close_cpu(&be);
    }
}

/* ---- sums at the end of 16 bits ----
 * K types join the sums of two sub-blocks in 16 bits each where the activations allow it (mm_quant.inc.h). */

/* Of 256 integers, 127 the largest: in every sub-block of n the sum of sizes is sum; signs + - + - or all
 * one. */
static void fill_sums(float *x, int n, int sum, int even, int odd)
{
    for (int j = 0; j < 256; j += n) {
        const int first = j ? sum / n : 127, rest = sum - first;
        for (int i = 0; i < n; i++) {
            const int size = i == 0 ? first : rest / (n - 1) + (i <= rest % (n - 1));
            x[j + i] = (float)((i % 2 ? odd : even) * size);
        }
    }
}

static void exact_sums(const float *x, const float *want, const struct kn_weight *w, struct kn_backend *kb,
                       int rows, int out_n)
{
    static const int counts[] = {1, 2, 4, 8, 16};
    float out[64 * 20];
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
        for (int i = 0; i + counts[c] <= rows; i += counts[c]) {
            assert_int_equal(cpu_linear(kb, out, w, x + 256 * i, counts[c], false), 0);
            assert_memory_equal(out, want + out_n * i, sizeof *out * (size_t)(counts[c] * out_n));
        }
}

static void test_narrow_sums(void **state)
{
    (void)state;
    enum { OUT = 20, ROWS = 48 };
    static const uint32_t k_types[] = {KN_Q4_K, KN_Q5_K, KN_Q6_K};
    static const int n[] = {32, 32, 16}, limit[] = {32767 / 15, 32767 / 31, 32767 / 32};
    for (int k = 0; k < 3; k++) {
        const size_t block = kn_type_info(k_types[k])->bytes;
        uint8_t *data = random_weights(k_types[k], 256, OUT);
        float x[ROWS * 256], w[256], want[ROWS * OUT];
        for (int o = 0; o < OUT; o++) { /* d 1, dmin 0; scales and codes at their ends, then at random */
            uint8_t *b = data + block * (size_t)o;
            const uint16_t one = 0x3c00;
            if (o < 8)
                for (size_t i = 0; i < block; i++) b[i] = o / 4 ? 0x80 : 0xff;
            if (o % 4 != 3 && o < 8)
                for (size_t i = k == 2 ? 0 : 16; i < (k == 2 ? 192 : block); i++)
                    b[i] = o % 4 == 2 ? 0 : (i % 2 == (size_t)o % 4) ? 0xff : 0;
            if (k == 2 && o < 8) memset(b + 192, o / 4 ? 0x80 : 0x7f, 16);
            if (k < 2) memset(b, 0, 4);
            memcpy(k == 2 ? b + 208 : b, &one, 2);
        }
        for (int i = 0; i < ROWS; i++) {
            const int sum = i % 3 == 0 ? limit[k] : i % 3 == 1 ? limit[k] + 1 : 127 * n[k];
            fill_sums(x + 256 * i, n[k], sum, i / 3 % 2 ? 1 : -1, i / 6 % 2 ? 1 : -1);
            if (i >= 24)
                fill_sums(x + 256 * i, n[k], i % 8 == 5 ? limit[k] + 1 : limit[k], 1, i % 2 ? 1 : -1);
            for (int o = 0; o < OUT; o++) {
                double sum_o = 0;
                assert_int_equal(kn_decode_row(k_types[k], data + block * (size_t)o, w, 256), 0);
                for (int j = 0; j < 256; j++) sum_o += (double)w[j] * (double)x[256 * i + j];
                want[OUT * i + o] = (float)sum_o; /* a sum of integers, rounded once, as the kernels do */
            }
        }
        for (int s = 0; s < n_isas; s++) {
            struct cpu_backend be;
            struct kn_weight kw;
            struct kn_backend *kb = open_cpu(&be, &isas[s], 1);
            assert_int_equal(cpu_weight_load(kb, &kw, k_types[k], 256, OUT, data, KN_USE_LINEAR), 0);
            exact_sums(x, want, &kw, kb, ROWS, OUT);
            cpu_weight_free(kb, &kw);
            close_cpu(&be);
        }
        free(data);
    }
}

/* Every other type whose products a set may add in 16 bits: codes and activations at both ends. */
static void test_short_sums(void **state)
{
    (void)state;
    enum { IN = 256, OUT = 3, ROWS = 8 };
    static const uint32_t short_types[] = {KN_Q4_0, KN_Q5_0, KN_Q4_1, KN_Q5_1, KN_Q2_K, KN_Q3_K};
    for (int k = 0; k < 6; k++) {
        const uint32_t type = short_types[k];
        const size_t bytes = kn_row_bytes(type, IN), block = kn_type_info(type)->bytes;
        const bool has_min = type == KN_Q4_1 || type == KN_Q5_1 || type == KN_Q2_K;
        const size_t at = type == KN_Q2_K ? 80 : type == KN_Q3_K ? 108 : 0;
        uint8_t data[OUT * 400];
        float x[ROWS * IN], w[IN], want[ROWS * OUT], out[ROWS * OUT];
        for (int i = 0; i < ROWS * IN; i++) { /* of every four k: all, or two, or alternating ones negative */
            const int row = i / IN, k4 = i % 4;
            const bool negative = row % 4 == 0   ? row > 3
                                  : row % 4 == 1 ? k4 < 2
                                  : row % 4 == 2 ? k4 % 2
                                                 : k4 > 1;
            x[i] = negative ? -127.0f : 127.0f;
        }
        for (int o = 0; o < OUT; o++) {
            uint8_t *row = data + bytes * (size_t)o;
            memset(row, o == 0 ? 0xff : o == 1 ? 0x00 : 0xf0, bytes);
            for (size_t b = 0; b < bytes; b += block) { /* d 1, minimum's factor 0 */
                const uint16_t one[2] = {0x3c00, 0};
                memcpy(row + b + at, one, has_min ? 4 : 2);
            }
            assert_int_equal(kn_decode_row(type, row, w, IN), 0);
            for (int i = 0; i < ROWS; i++) {
                double sum = 0;
                for (int j = 0; j < IN; j++) sum += (double)w[j] * (double)x[i * IN + j];
                want[i * OUT + o] = (float)sum; /* a sum of integers, as in test_narrow_sums */
            }
        }
        for (int s = 0; s < n_isas; s++) {
            struct cpu_backend be;
            struct kn_weight kw;
            struct kn_backend *kb = open_cpu(&be, &isas[s], 1);
            assert_int_equal(cpu_weight_load(kb, &kw, type, IN, OUT, data, KN_USE_LINEAR), 0);
            for (int n = 1; n <= ROWS; n *= 2)
                for (int i = 0; i < ROWS; i += n) {
                    assert_int_equal(cpu_linear(kb, out, &kw, x + IN * i, n, false), 0);
                    for (int j = 0; j < n * OUT; j++) assert_true(out[j] == want[i * OUT + j]);
                }
            cpu_weight_free(kb, &kw);
            close_cpu(&be);
        }
    }
}

/* ---- refusals ---- */

static void test_refusals(void **state)
{
    (void)state;
    struct cpu_backend be;
    struct kn_backend *kb = open_cpu(&be, &isas[0], 1);
    struct kn_weight w;
    float x[2048] = {0}, out[64];
    uint8_t data[4096] = {0};
    assert_int_equal(cpu_weight_load(kb, &w, 12345, 256, 1, data, KN_USE_LINEAR), KN_ETYPE);
    assert_non_null(strstr(be.head.message, "12345"));
    assert_int_equal(cpu_weight_load(kb, &w, KN_Q4_K, 250, 1, data, KN_USE_LINEAR), KN_ETYPE);
    assert_non_null(strstr(be.head.message, "250"));
    assert_int_equal(cpu_weight_load(kb, &w, KN_TQ1_0, 256, 1, data, KN_USE_LINEAR), KN_ETYPE);
    assert_non_null(strstr(be.head.message, "TQ1_0"));
    assert_int_equal(cpu_weight_load(kb, &w, KN_Q4_K, 256, 0, data, KN_USE_LINEAR), KN_EINVAL);
    assert_int_equal(cpu_weight_load(kb, &w, KN_Q4_K, 256, 1, NULL, KN_USE_LINEAR), KN_EINVAL);
    assert_int_equal(cpu_weight_load(kb, &w, KN_Q4_K, 256, 1, data, 0), KN_EINVAL);
    assert_int_equal(cpu_weight_load(kb, &w, KN_Q4_K, 256, (int64_t)1 << 60, data, KN_USE_LINEAR), KN_ETYPE);
    /* rows only: nothing packed, and the product says so */
    assert_int_equal(cpu_weight_load(kb, &w, KN_Q4_K, 256, 1, data, KN_USE_ROWS), 0);
    assert_ptr_equal(w.rows, data);
    assert_null(w.packed);
    assert_int_equal(cpu_linear(kb, out, &w, x, 1, false), KN_EINVAL);
    cpu_weight_free(kb, &w);
    /* more rows than reserved */
    assert_int_equal(cpu_weight_load(kb, &w, KN_Q4_K, 256, 1, data, KN_USE_LINEAR | KN_USE_ROWS), 0);
    assert_int_equal(cpu_linear(kb, out, &w, x, 0, false), KN_EINVAL);
    assert_int_equal(cpu_linear(kb, out, &w, x, 100000, false), KN_EINVAL);
    assert_non_null(strstr(be.head.message, "100000"));
    assert_int_equal(cpu_mm_reserve(&be, 0, 256), KN_EINVAL);
    cpu_weight_free(kb, &w);
    cpu_weight_free(kb, NULL);
    close_cpu(&be);
}

/* A panel takes the file's bytes: rows of whole panels are not one byte larger (up to the round to 64). */
static void test_packed_bytes(void **state)
{
    (void)state;
    for (int ti = 0; ti < N_TYPES; ti++)
        for (int lanes = 8; lanes <= 16; lanes += 8) {
            const size_t file = kn_row_bytes(types[ti], 1024) * (size_t)lanes;
            assert_int_equal(mm_panel_bytes(mm_type_of(types[ti]), 1024, lanes), (file + 63) / 64 * 64);
        }
}

/* Weights share arenas and leave in any order; one larger than an arena has its own. */
static void test_arena(void **state)
{
    (void)state;
    struct cpu_backend be;
    struct kn_backend *kb = open_cpu(&be, &isas[0], 2);
    struct kn_weight w[5];
    const int64_t rows[5] = {100, 17, 20000, 33, 1};
    for (int j = 0; j < 5; j++) { /* the middle one: 80 MB of F32 */
        float *data = calloc((size_t)rows[j] * 1024, sizeof *data);
        assert_non_null(data);
        data[0] = (float)(j + 1);
        assert_int_equal(cpu_weight_load(kb, &w[j], KN_F32, 1024, rows[j], data, KN_USE_LINEAR), 0);
        assert_int_equal((uintptr_t)w[j].packed % 64, 0);
        free(data);
    }
    float *x = calloc(1024, sizeof *x), *out = calloc(20000, sizeof *out);
    x[0] = 1.0f;
    const int order[5] = {2, 0, 4, 1, 3};
    for (int i = 0; i < 5; i++) {
        for (int k = i; k < 5; k++) { /* those left are whole */
            assert_int_equal(cpu_linear(kb, out, &w[order[k]], x, 1, false), 0);
            assert_true(out[0] == (float)(order[k] + 1));
        }
        cpu_weight_free(kb, &w[order[i]]);
    }
    assert_null(be.arena);
    free(x), free(out);
    close_cpu(&be);
}

/* ---- a tile at once is its tokens one by one ---- */

static void check_tile(const struct cpu_isa *isa, const float *x, const float *norm, bool scaled, int used)
{
    enum { IN = 1024, T = 8 };
    const size_t bytes = mm_act_bytes(MM_ACT_Q256, IN) * T;
    uint8_t *one = aligned_alloc(64, bytes), *all = aligned_alloc(64, bytes);
    struct mm_rows r = {.scaled = scaled, .norm = norm, .end = IN / 256};
    float y[IN];
    memset(one, 0x11, bytes), memset(all, 0x22, bytes);
    for (int t = 0; t < T; t++) {
        const float *row = t < used ? x + t * IN : NULL;
        if (row && scaled) {
            r.scale[t] = isa->rows->rms_scale(row, IN, 1e-6f);
            isa->rows->rms_norm(y, row, norm, IN, 1e-6f);
        }
        r.x[t] = row;
        isa->mm->prepare(MM_ACT_Q256, one, row && scaled ? y : row, IN, t, T);
    }
    isa->mm->prepare_q256(all, &r, IN);
    assert_memory_equal(one, all, bytes);
    memset(all, 0x22, bytes); /* the same from parts, in any order */
    r.first = 1, isa->mm->prepare_q256(all, &r, IN);
    r.first = 0, r.end = 1, isa->mm->prepare_q256(all, &r, IN);
    assert_memory_equal(one, all, bytes);
    free(one), free(all);
}

static void test_whole_tile(void **state)
{
    (void)state;
    enum { IN = 1024, T = 8 };
    for (int s = 0; s < n_isas; s++) {
        if (!isas[s].mm->prepare_q256) continue;
        assert_int_equal(isas[s].mm->tile, T);
        float *x = random_rows(T, IN), *norm = random_rows(1, IN);
        for (int scaled = 0; scaled < 3; scaled++)
            check_tile(&isas[s], x, scaled == 2 ? norm : NULL, scaled > 0, T);
        for (int k = 0; k < IN; k++) {
            x[0 * IN + k] = k < 512 ? 0.0f : -0.0f;
            x[1 * IN + k] *= k < 256 ? 1e-41f : k < 512 ? 1e-31f : 1e37f;
            x[2 * IN + k] = k / 256 == 1   ? 127.0f
                            : k / 256 == 2 ? -127.0f
                                           : (float)(k % 255 - 127) / 2; /* wide; ties */
            fill_sums(x + 3 * IN + k / 256 * 256, k / 256 % 2 ? 16 : 32,
                      32767 / (k < 512 ? 15 : 31) + k / 256 % 2, 1, -1);
        }
        x[4 * IN + 300] = NAN;
        x[5 * IN + 1023] = INFINITY;
        x[6 * IN + 0] = -INFINITY;
        for (int used = 1; used <= T; used++)
            for (int scaled = 0; scaled < 3; scaled++)
                check_tile(&isas[s], x, scaled == 2 ? norm : NULL, scaled > 0, used);
        free(x), free(norm);
    }
}

int main(void)
{
    find_isas();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accuracy),   cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_fused),      cmocka_unit_test(test_extremes),
        cmocka_unit_test(test_bad_scale),  cmocka_unit_test(test_code_ends),
        cmocka_unit_test(test_refusals),   cmocka_unit_test(test_packed_bytes),
        cmocka_unit_test(test_arena),      cmocka_unit_test(test_narrow_sums),
        cmocka_unit_test(test_short_sums), cmocka_unit_test(test_whole_tile),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
