/* test_blocks.c - tensor types, half floats, and the block codecs. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "../../../kernels/blocks/encode.h"
#include "../../../kernels/blocks/grids.h"

static const uint32_t encoders[] = {KN_F32,   KN_F16,     KN_BF16,   KN_Q8_0,  KN_Q4_0,    KN_Q4_1,
                                    KN_Q5_0,  KN_Q5_1,    KN_Q4_K,   KN_Q5_K,  KN_Q6_K,    KN_Q2_K,
                                    KN_Q3_K,  KN_IQ4_NL,  KN_IQ4_XS, KN_MXFP4, KN_IQ2_XXS, KN_IQ2_XS,
                                    KN_IQ2_S, KN_IQ3_XXS, KN_IQ3_S};
#define ENCODERS (sizeof encoders / sizeof *encoders)
#define N 4096 /* elements of a test row: 16 super-blocks */

/* xorshift64*, and a bell of 12 uniforms: exact arithmetic, so the rows are the same everywhere. */
static uint64_t seed;
static double uniform(void)
{
    seed ^= seed >> 12;
    seed ^= seed << 25;
    seed ^= seed >> 27;
    return (double)(seed * 2685821657736338717ull >> 32) / 4294967296.0;
}

static void bell(float *x, int n, float sigma)
{
    for (int i = 0; i < n; i++) {
        double s = -6;
        for (int k = 0; k < 12; k++) s += uniform();
        x[i] = (float)(s * (double)sigma);
    }
}

static double rms_error(const float *x, const float *y, int n) /* relative */
{
    double e = 0, r = 0;
    for (int i = 0; i < n; i++) {
        e += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
        r += (double)x[i] * (double)x[i];
    }
    return r > 0 ? sqrt(e / r) : sqrt(e);
}

/* ---- types ---- */

static void test_types(void **state)
{
    (void)state;
    static const struct {
        uint32_t type;
        const char *name;
        size_t bytes_of_256;
    } want[] = {{0, "F32", 1024},    {1, "F16", 512},     {2, "Q4_0", 144},  {3, "Q4_1", 160},
                {6, "Q5_0", 176},    {7, "Q5_1", 192},    {8, "Q8_0", 272},  {10, "Q2_K", 84},
                {11, "Q3_K", 110},   {12, "Q4_K", 144},   {13, "Q5_K", 176}, {14, "Q6_K", 210},
                {20, "IQ4_NL", 144}, {23, "IQ4_XS", 136}, {24, "I8", 256},   {26, "I32", 1024},
                {27, "I64", 2048},   {28, "F64", 2048},   {30, "BF16", 512}, {34, "TQ1_0", 54},
                {39, "MXFP4", 136},  {40, "NVFP4", 144},  {41, "Q1_0", 36}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        const struct kn_type_info *t = kn_type_info(want[i].type);
        assert_non_null(t);
        assert_string_equal(t->name, want[i].name);
        assert_ptr_equal(kn_type_by_name(want[i].name), t);
        assert_int_equal(kn_row_bytes(want[i].type, 256), want[i].bytes_of_256);
    }
    assert_ptr_equal(kn_type_by_name("q4_k"), kn_type_info(KN_Q4_K));
    assert_null(kn_type_by_name("Q4"));
    assert_null(kn_type_by_name("Q4_K_M"));
    assert_null(kn_type_by_name(""));
    static const uint32_t withdrawn[] = {4, 5, 31, 32, 33, 36, 37, 38, 43, KN_TYPE_NONE};
    for (size_t i = 0; i < sizeof withdrawn / sizeof *withdrawn; i++) assert_null(kn_type_info(withdrawn[i]));
    assert_int_equal(kn_row_bytes(KN_Q4_K, 255), 0);
    assert_int_equal(kn_row_bytes(KN_Q8_0, 33), 0);
    assert_int_equal(kn_row_bytes(KN_Q8_0, -32), 0);
    assert_int_equal(kn_row_bytes(99, 32), 0);
    assert_int_equal(kn_row_bytes(KN_F64, INT64_MAX), 0); /* more bytes than there are */
}

static void test_halves(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        const float f = kn_f16_to_f32((uint16_t)h), b = kn_bf16_to_f32((uint16_t)h);
        if (isnan(f))
            assert_true(isnan(kn_f16_to_f32(kn_f32_to_f16(f))));
        else
            assert_int_equal(kn_f32_to_f16(f), h);
        if (isnan(b))
            assert_true(isnan(kn_bf16_to_f32(kn_f32_to_bf16(b))));
        else
            assert_int_equal(kn_f32_to_bf16(b), h);
    }
    assert_true(kn_f16_to_f32(0x3c00) == 1.0f && kn_f16_to_f32(0xc000) == -2.0f &&
                kn_f16_to_f32(1) == 0x1p-24f);
    /* Halfway between two neighbours goes to the even one, a hair above it up. Covers subnormals and the step
     * to Inf. */
    for (uint32_t h = 0; h < 0x7c00; h++) {
        const double lo = (double)kn_f16_to_f32((uint16_t)h),
                     hi = h == 0x7bff ? 65536.0 : (double)kn_f16_to_f32((uint16_t)(h + 1));
        const float mid = (float)((lo + hi) / 2); /* exact: one bit more than a half has */
        assert_int_equal(kn_f32_to_f16(mid), h + (h & 1));
        assert_int_equal(kn_f32_to_f16(nextafterf(mid, 1e30f)), h + 1);
        assert_int_equal(kn_f32_to_f16(nextafterf(mid, 0.0f)), h);
        assert_int_equal(kn_f32_to_f16(-mid), 0x8000 | (h + (h & 1)));
    }
    for (uint32_t h = 1; h < 0x7f80; h++) {
        const uint32_t mid = h << 16 | 0x8000;
        float f;
        memcpy(&f, &mid, 4);
        assert_int_equal(kn_f32_to_bf16(f), h + (h & 1));
        assert_int_equal(kn_f32_to_bf16(-nextafterf(f, 0.0f)), 0x8000 | h);
    }
    assert_int_equal(kn_f32_to_f16(1e30f), 0x7c00);
    assert_int_equal(kn_f32_to_f16(-INFINITY), 0xfc00);
    assert_int_equal(kn_f32_to_f16(0x1p-149f), 0);
}

/* ---- decoding ---- */

static void check_fixture(uint32_t type, const char *name)
{
    const struct kn_type_info *t = kn_type_info(type);
    char path[256];
    snprintf(path, sizeof path, "%s/blocks_%s.bin", TEST_DATA, name);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    uint32_t n = 0;
    assert_int_equal(fread(&n, 4, 1, f), 1);
    assert_in_range(n, 1, 1024);
    const size_t elements = (size_t)n * t->block;
    uint8_t *raw = malloc((size_t)n * t->bytes);
    float *want = malloc(elements * 4), *got = malloc(elements * 4);
    assert_int_equal(fread(raw, t->bytes, n, f), n);
    assert_int_equal(fread(want, 4, elements, f), elements);
    fclose(f);
    assert_int_equal(kn_decode_row(type, raw, got, (int64_t)elements), 0);
    for (size_t i = 0; i < elements; i++)
        if (memcmp(&got[i], &want[i], 4))
            fail_msg("%s: element %zu: %a, expected %a", name, i, got[i], want[i]);
    free(raw);
    free(want);
    free(got);
}

static void test_decode(void **state)
{
    (void)state;
    check_fixture(KN_Q8_0, "q8_0");
    check_fixture(KN_Q4_0, "q4_0");
    check_fixture(KN_Q4_1, "q4_1");
    check_fixture(KN_Q5_0, "q5_0");
    check_fixture(KN_Q5_1, "q5_1");
    check_fixture(KN_Q4_K, "q4_k");
    check_fixture(KN_Q5_K, "q5_k");
    check_fixture(KN_Q6_K, "q6_k");
    check_fixture(KN_Q2_K, "q2_k");
    check_fixture(KN_Q3_K, "q3_k");
    check_fixture(KN_IQ4_NL, "iq4_nl");
    check_fixture(KN_IQ4_XS, "iq4_xs");
    check_fixture(KN_IQ2_XXS, "iq2_xxs");
    check_fixture(KN_IQ2_XS, "iq2_xs");
    check_fixture(KN_IQ2_S, "iq2_s");
    check_fixture(KN_IQ3_XXS, "iq3_xxs");
    check_fixture(KN_IQ3_S, "iq3_s");
    check_fixture(KN_IQ1_S, "iq1_s");
    check_fixture(KN_IQ1_M, "iq1_m");
    check_fixture(KN_MXFP4, "mxfp4");
    static uint16_t h[65536];
    static float f[65536], g[65536];
    for (int i = 0; i < 65536; i++) h[i] = (uint16_t)i;
    assert_int_equal(kn_decode_row(KN_F16, h, f, 65536),
                     0); /* the row is its own code: every value, NaNs' bits too */
    assert_int_equal(kn_decode_row(KN_BF16, h, g, 65536), 0);
    for (int i = 0; i < 65536; i++) {
        const float a = kn_f16_to_f32(h[i]), b = kn_bf16_to_f32(h[i]);
        assert_memory_equal(&f[i], &a, 4);
        assert_memory_equal(&g[i], &b, 4);
    }
    const double d[3] = {1.5, -1e300, 1.0 + 0x1p-24};
    float y[3];
    assert_int_equal(kn_decode_row(KN_F64, d, y, 3), 0);
    assert_true(y[0] == 1.5f && y[1] == -INFINITY && y[2] == 1.0f);
}

/* Every point of every grid, d = 1, scales and signs 0: the crc of the values that the gguf package gives for
 * the same bytes (make_grids.py prints them). */
static void test_grids(void **state)
{
    (void)state;
    static const struct {
        uint32_t type, crc;
    } want[] = {{KN_IQ2_XXS, 0x02171b5d}, {KN_IQ2_XS, 0xa369a625},  {KN_IQ2_S, 0xd5135bcf},
                {KN_IQ1_S, 0xaa0ac74b},   {KN_IQ3_XXS, 0x6b66e48d}, {KN_IQ3_S, 0x4f7d8df3}};
    static float y[2048 * 8];
    static uint8_t raw[64 * 110];
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        const struct grid_kind *kind = grid_kind_of(want[i].type);
        const size_t bytes = kn_type_info(want[i].type)->bytes;
        const int a_block = 256 / kind->values, blocks = kind->points / a_block;
        memset(raw, 0, sizeof raw);
        for (int p = 0; p < kind->points; p++) {
            uint8_t *b = raw + bytes * (size_t)(p / a_block);
            const int e = p % a_block, high = p >> 8;
            put_u16(b, 0x3c00); /* 1 */
            switch (want[i].type) {
            case KN_IQ2_XXS: b[2 + 8 * (e / 4) + e % 4] = (uint8_t)p; break;
            case KN_IQ2_XS: put_u16(b + 2 + 2 * e, (uint16_t)p); break;
            case KN_IQ2_S: b[66 + e / 4] |= (uint8_t)(high << 2 * (e % 4)); break;
            case KN_IQ3_S: b[66 + e / 8] |= (uint8_t)(high << e % 8); break;
            case KN_IQ1_S:
                put_u16(b + 34 + 2 * (e / 4),
                        (uint16_t)(get_u16(b + 34 + 2 * (e / 4)) | high << 3 * (e % 4)));
                break;
            default: break;
            }
            if (want[i].type != KN_IQ2_XXS && want[i].type != KN_IQ2_XS) b[2 + e] = (uint8_t)p;
        }
        assert_int_equal(kn_decode_row(want[i].type, raw, y, 256 * blocks), 0);
        const uint32_t crc = (uint32_t)crc32(0, (const uint8_t *)y, 1024 * (unsigned)blocks);
        if (crc != want[i].crc)
            fail_msg("%s: crc %08x, expected %08x", kn_type_info(want[i].type)->name, crc, want[i].crc);
    }
}

static void test_arguments(void **state)
{
    (void)state;
    float x[256] = {0}, w[256];
    uint8_t b[1024] = {0};
    assert_int_equal(kn_decode_row(KN_Q4_K, b, x, 255), KN_EINVAL);
    assert_int_equal(kn_decode_row(KN_Q4_K, NULL, x, 256), KN_EINVAL);
    assert_int_equal(kn_decode_row(KN_TQ1_0, b, x, 256), KN_ETYPE);
    assert_int_equal(kn_decode_row(99, b, x, 256), KN_ETYPE);
    assert_int_equal(kn_encode_row(KN_Q4_K, x, b, 128, NULL), KN_EINVAL);
    assert_int_equal(kn_encode_row(KN_Q8_0, x, b, -32, NULL), KN_EINVAL);
    assert_int_equal(kn_encode_row(KN_IQ1_S, x, b, 256, NULL), KN_ETYPE);
    assert_int_equal(kn_encode_row(KN_F64, x, b, 256, NULL), KN_ETYPE);
    assert_int_equal(kn_encode_row(KN_Q4_K, NULL, NULL, 0, NULL), 0);
    for (int i = 0; i < 256; i++) w[i] = 1;
    assert_int_equal(kn_encode_row(KN_Q4_K, x, b, 256, w), 0);
    w[255] = 0;
    assert_int_equal(kn_encode_row(KN_Q4_K, x, b, 256, w), KN_EINVAL);
    w[255] = NAN;
    assert_int_equal(kn_encode_row(KN_Q4_K, x, b, 256, w), KN_EINVAL);
    for (uint32_t t = 0; t < 64; t++) { /* the table promises what the codecs do */
        const struct kn_type_info *k = kn_type_info(t);
        if (!k) continue;
        memset(b, 0, sizeof b);
        assert_int_equal(kn_decode_row(t, b, x, t == KN_F64 ? 1 : k->block) == 0, k->can_decode);
        assert_int_equal(kn_encode_row(t, x, b, k->block, NULL) == 0, k->can_encode);
    }
}

/* ---- encoding ---- */

static void round_trip(uint32_t type, const float *x, float *y, int n)
{
    uint8_t *b = malloc(kn_row_bytes(type, n));
    assert_int_equal(kn_encode_row(type, x, b, n, NULL), 0);
    assert_int_equal(kn_decode_row(type, b, y, n), 0);
    free(b);
}

/* What rounding without any search gives: the range of a column cut in equal steps, scales of a K type cut to
 * their bits from the largest. The bound that the search has to beat. f16 rounding is left out, in the
 * bound's favour. */
static void plain(uint32_t type, const float *x, float *y, int n)
{
    const bool affine = type == KN_Q4_K || type == KN_Q5_K || type == KN_Q4_1 || type == KN_Q5_1 ||
                        type == KN_Q2_K,
               table = type == KN_IQ4_NL || type == KN_IQ4_XS;
    const int len = type == KN_Q6_K || type == KN_Q3_K || type == KN_Q2_K ? 16 : 32,
              block = (int)kn_type_info(type)->block, cols = block / len;
    const int top = type == KN_Q2_K ? 3 : type == KN_Q4_K || type == KN_Q4_1 ? 15 : 31;
    const int bias = table ? 127 : type == KN_Q6_K ? 32 : type == KN_Q5_0 ? 16 : type == KN_Q3_K ? 4 : 8;
    const float steps = type == KN_Q6_K ? -128 : type == KN_Q2_K ? 15 : affine ? 63 : -32;
    float s[16], m[16];
    for (int b = 0; b < n; b += block) {
        float smax = 0, mmax = 0;
        for (int c = 0; c < cols; c++) {
            float lo = x[b + c * len], hi = lo, peak = lo;
            for (int i = 0; i < len; i++) {
                const float v = x[b + c * len + i];
                lo = fminf(lo, v);
                hi = fmaxf(hi, v);
                if (fabsf(v) > fabsf(peak)) peak = v;
            }
            if (block == 256 && lo > 0) lo = 0;
            s[c] = affine ? (hi - lo) / (float)top : peak / (float)-bias;
            m[c] = affine ? lo : 0;
            if (fabsf(s[c]) > fabsf(smax)) smax = s[c];
            mmax = fmaxf(mmax, -m[c]);
        }
        for (int c = 0; c < cols; c++) {
            if (block == 256) {
                s[c] = smax != 0
                           ? fminf(rintf(s[c] / smax * steps), fabsf(steps) - (steps < 0)) * smax / steps
                           : 0;
                m[c] = mmax > 0 ? -rintf(-m[c] / mmax * steps) * mmax / steps : 0;
            }
            for (int i = 0; i < len; i++) {
                const float v = x[b + c * len + i];
                float q = s[c] != 0 ? rintf((v - m[c]) / s[c]) : 0;
                for (int k = 0, at = 0; table && s[c] != 0 && k < 16; k++) {
                    if (fabsf(v / s[c] - iq4_values[k]) < fabsf(v / s[c] - iq4_values[at])) at = k;
                    q = iq4_values[at];
                }
                y[b + c * len + i] = affine ? s[c] * fminf(fmaxf(q, 0), (float)top) + m[c]
                                            : s[c] * fminf(fmaxf(q, (float)-bias), (float)(bias - 1));
            }
        }
    }
}

static void test_error(void **state)
{
    (void)state;
    static float x[N * 4], y[N * 4], p[N * 4];
    seed = 7;
    bell(x, N * 4, 0.02f);
    static const struct {
        uint32_t type;
        double below_plain; /* the search's error as a part of plain rounding's must stay under this */
    } want[] = {{KN_Q4_0, 0.96},   {KN_Q5_0, 0.96}, {KN_Q4_1, 0.92}, {KN_Q5_1, 0.92},
                {KN_Q4_K, 0.93},   {KN_Q5_K, 0.94}, {KN_Q6_K, 0.98}, {KN_IQ4_NL, 0.94},
                {KN_IQ4_XS, 0.94}, {KN_Q3_K, 0.94}, {KN_Q2_K, 0.85}};
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        round_trip(want[i].type, x, y, N * 4);
        plain(want[i].type, x, p, N * 4);
        const double ours = rms_error(x, y, N * 4), theirs = rms_error(x, p, N * 4);
        print_message("%s: relative RMS %.5f, plain rounding %.5f (%.3f)\n", kn_type_info(want[i].type)->name,
                      ours, theirs, ours / theirs);
        assert_true(ours < want[i].below_plain * theirs);
    }
    /* Beside their neighbours: IQ3_S has the bits of Q3_K, IQ2_S fewer than Q2_K. */
    static const struct {
        uint32_t type, than;
        double by;
    } less[] = {{KN_IQ3_S, KN_Q3_K, 0.93},  {KN_IQ3_XXS, KN_Q2_K, 0.70}, {KN_IQ2_S, KN_Q2_K, 0.92},
                {KN_IQ2_XS, KN_Q2_K, 1.12}, {KN_IQ2_XXS, KN_Q2_K, 1.28}, {KN_MXFP4, KN_Q3_K, 0.80}};
    for (size_t i = 0; i < sizeof less / sizeof *less; i++) {
        round_trip(less[i].type, x, y, N * 4);
        round_trip(less[i].than, x, p, N * 4);
        const double ours = rms_error(x, y, N * 4), theirs = rms_error(x, p, N * 4);
        print_message("%s: relative RMS %.5f, %s %.5f (%.3f)\n", kn_type_info(less[i].type)->name, ours,
                      kn_type_info(less[i].than)->name, theirs, ours / theirs);
        assert_true(ours < less[i].by * theirs);
    }
    /* Q8_0: half a step, and the f16 scale may be off by 2^-11 of itself times 127 codes; it clips nothing
     * more. */
    round_trip(KN_Q8_0, x, y, N * 4);
    for (int b = 0; b < N * 4; b += 32) {
        float amax = 0;
        for (int i = 0; i < 32; i++) amax = fmaxf(amax, fabsf(x[b + i]));
        for (int i = 0; i < 32; i++)
            assert_true(fabs((double)x[b + i] - (double)y[b + i]) <=
                        (double)amax / 127 * (0.5 + 127 * 0x1p-11));
    }
    round_trip(KN_F16, x, y,
               N * 4); /* half a unit in the last of 11 or 8 bits, or half of the least subnormal */
    for (int i = 0; i < N * 4; i++)
        assert_true(fabsf(x[i] - y[i]) <= fmaxf(fabsf(x[i]) * 0x1p-11f, 0x1p-25f));
    round_trip(KN_BF16, x, y, N * 4);
    for (int i = 0; i < N * 4; i++) assert_true(fabsf(x[i] - y[i]) <= fabsf(x[i]) * 0x1p-8f);
    round_trip(KN_F32, x, y, N * 4);
    assert_memory_equal(x, y, sizeof x);
}

/* Rows that break quantisers, 256 values each. */
enum {
    ZEROS,
    OUTLIER,
    CONSTANT,
    NEGATIVE,
    POSITIVE,
    ONE_COLUMN,
    TINY,
    DENORMAL,
    LARGE,
    TWO_VALUES,
    RAMP,
    EDGES
};
static void edge(int which, float *x)
{
    seed = 100 + (uint64_t)which;
    bell(x, 256, 0.05f);
    for (int i = 0; i < 256; i++) {
        switch (which) {
        case ZEROS: x[i] = i % 2 ? 0.0f : -0.0f; break;
        case OUTLIER: x[i] = i == 77 ? -5.0f : x[i] * 0.1f; break;
        case CONSTANT: x[i] = -0.3f; break;
        case NEGATIVE: x[i] = -1.0f - fabsf(x[i]); break;
        case POSITIVE: x[i] = 1.0f + fabsf(x[i]); break;
        case ONE_COLUMN: x[i] = i / 32 == 3 ? x[i] : 0.0f; break;
        case TINY: x[i] *= 1e-6f; break; /* the f16 scale is a subnormal or zero */
        case DENORMAL: x[i] = (float)(i - 128) * 0x1p-149f; break;
        case LARGE: x[i] *= 1e5f; break; /* within every scale's range but not within f16's own */
        case TWO_VALUES: x[i] = i % 3 ? 0.25f : -0.75f; break;
        case RAMP: x[i] = (float)(i - 100) * 0.01f; break;
        default: break;
        }
    }
}

/* What a type may lose on a row, as a part of the row's own RMS: half a step of the plain grid at the row's
 * peak is amax/top/2; a search may move clipped ends by as much again. Rows whose scale is below f16's range
 * may lose all. */
static void test_edges(void **state)
{
    (void)state;
    static const struct {
        uint32_t type;
        int top; /* steps from zero to the peak, at worst: with a min, the range can be twice the peak */
    } want[] = {{KN_Q8_0, 127}, {KN_Q4_0, 7},    {KN_Q5_0, 15}, {KN_Q4_1, 7},    {KN_Q5_1, 15},
                {KN_Q4_K, 7},   {KN_Q5_K, 15},   {KN_Q6_K, 31}, {KN_Q3_K, 3},    {KN_Q2_K, 1},
                {KN_IQ4_NL, 7}, {KN_IQ4_XS, 7},  {KN_MXFP4, 3}, {KN_IQ2_XXS, 1}, {KN_IQ2_XS, 1},
                {KN_IQ2_S, 1},  {KN_IQ3_XXS, 2}, {KN_IQ3_S, 3}};
    float x[256], y[256];
    for (int which = 0; which < EDGES; which++)
        for (size_t k = 0; k < sizeof want / sizeof *want; k++) {
            const uint32_t type = want[k].type;
            edge(which, x);
            if (which == LARGE && (type == KN_Q4_1 || type == KN_Q5_1)) /* their min is an f16 */
                for (int i = 0; i < 256; i++) x[i] *= 0.5f;
            float amax = 0;
            for (int i = 0; i < 256; i++) amax = fmaxf(amax, fabsf(x[i]));
            round_trip(type, x, y, 256);
            /* A scale that f16 holds as a subnormal is off by up to 2^-25, a code times that. */
            const double bound = (double)amax / want[k].top + 0x1p-25 * 63 * 32;
            for (int i = 0; i < 256; i++) {
                assert_true(isfinite(y[i]));
                if (which == ZEROS) assert_true(y[i] == 0);
                if (which == CONSTANT && type != KN_MXFP4 && fabsf(x[i] - y[i]) > 0.3f * 0x1p-10f)
                    fail_msg("%s: constant -0.3 became %g", kn_type_info(type)->name, (double)y[i]);
                if (fabs((double)x[i] - (double)y[i]) > bound)
                    fail_msg("%s: edge %d, element %d: %g became %g", kn_type_info(type)->name, which, i,
                             (double)x[i], (double)y[i]);
            }
        }
}

static void test_refused(void **state)
{
    (void)state;
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    float x[256];
    uint8_t b[1024];
    seed = 3;
    for (size_t k = 0; k < ENCODERS; k++) {
        for (size_t v = 0; v < 3; v++)
            for (int at = 0; at < 256; at += 51) { /* 0 .. 255 */
                bell(x, 256, 1);
                x[at] = bad[v];
                assert_int_equal(kn_encode_row(encoders[k], x, b, 256, NULL), KN_EINVAL);
            }
        for (int i = 0; i < 256; i++) x[i] = 1;
        x[9] = 3e38f; /* finite, but past every scale; bf16 and f32 hold it */
        assert_int_equal(kn_encode_row(encoders[k], x, b, 256, NULL),
                         encoders[k] == KN_F32 || encoders[k] == KN_BF16 ? 0 : KN_EINVAL);
    }
    /* At the limit of each type's scale: taken, and it comes back finite and close. */
    static const struct {
        uint32_t type;
        float limit;
    } most[] = {{KN_F16, 65504},
                {KN_Q8_0, 65504.f * 127},
                {KN_Q4_0, 65504.f * 8},
                {KN_Q5_0, 65504.f * 16},
                {KN_Q4_1, 65504},
                {KN_Q5_1, 65504},
                {KN_Q4_K, 65504.f * 63},
                {KN_Q5_K, 65504.f * 63},
                {KN_Q6_K, 65504.f * 127 * 31},
                {KN_IQ4_NL, 65504.f * 113},
                {KN_IQ4_XS, 65504.f * 31 * 113},
                {KN_Q3_K, 65504.f * 31 * 3},
                {KN_Q2_K, 65504.f * 15},
                {KN_IQ2_XXS, 65504.f * 31 * 43 / 8},
                {KN_IQ2_XS, 65504.f * 31 * 43 / 8},
                {KN_IQ2_S, 65504.f * 31 * 43 / 8},
                {KN_IQ3_XXS, 65504.f * 31 * 62 / 4},
                {KN_IQ3_S, 65504.f * 31 * 15}};
    float y[256];
    for (size_t k = 0; k < sizeof most / sizeof *most; k++)
        for (int sign = -1; sign <= 1; sign += 2) {
            for (int i = 0; i < 256; i++) x[i] = most[k].limit * (float)sign * (i % 5 == 0 ? 1.0f : 0.01f);
            round_trip(most[k].type, x, y, 256);
            for (int i = 0; i < 256; i += 5)
                assert_true(fabsf(x[i] / y[i] - 1) < 0.15f); /* not saturated by a factor */
            x[3] = nextafterf(most[k].limit, INFINITY) * (most[k].type == KN_F16 ? 1.001f : 1.0f);
            assert_int_equal(kn_encode_row(most[k].type, x, b, 256, NULL), KN_EINVAL);
        }
}

static void test_importance(void **state)
{
    (void)state;
    static float x[N], y[N], z[N], w[N];
    seed = 11;
    bell(x, N, 1);
    for (int i = 0; i < N; i++) w[i] = i % 4 ? 0.02f : 1.0f;
    static const uint32_t types[] = {KN_Q4_0,    KN_Q5_0,   KN_Q4_1,  KN_Q5_1,    KN_Q4_K,   KN_Q5_K,
                                     KN_Q6_K,    KN_Q2_K,   KN_Q3_K,  KN_IQ4_NL,  KN_IQ4_XS, KN_MXFP4,
                                     KN_IQ2_XXS, KN_IQ2_XS, KN_IQ2_S, KN_IQ3_XXS, KN_IQ3_S};
    for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
        uint8_t b[N * 2];
        double with = 0, without = 0;
        assert_int_equal(kn_encode_row(types[k], x, b, N, w), 0);
        kn_decode_row(types[k], b, y, N);
        round_trip(types[k], x, z, N);
        for (int i = 0; i < N; i += 4) {
            with += (double)(x[i] - y[i]) * (double)(x[i] - y[i]);
            without += (double)(x[i] - z[i]) * (double)(x[i] - z[i]);
        }
        assert_true(with < without);
    }
}

/* ---- the same bits everywhere ---- */

static void fill_mixed(float *x) /* N values: bells of several widths, and the edges that every type takes */
{
    seed = 5;
    for (int b = 0; b < N; b += 512) bell(x + b, 512, (float)pow(2, b / 512 - 4));
    for (int which = 0; which < EDGES; which++)
        if (which != LARGE) edge(which, x + 256 * (which + 2));
    seed = 6;
    for (int i = 0; i < 256; i++) x[N - 256 + i] = x[i] * 1e-5f;
}

static void test_instruction_sets(void **state)
{
    (void)state;
    static float x[N], w[N];
    fill_mixed(x);
    /* the largest of a column may count little, and lie far outside of the codes */
    for (int i = 0; i < N; i++) w[i] = i < N / 2 ? (float)(1 + i % 7) : fabsf(x[i]) > 1 ? 1e-6f : 1.0f;
    const struct search *set[3] = {&search_base};
    int n = 1;
    if (search_best() != &search_base) set[n++] = &search_avx2;
    if (search_best() == &search_avx512) set[n++] = &search_avx512;
    for (size_t k = 0; k < ENCODERS; k++)
        for (int64_t len = 256; len <= N;
             len += len == 256 ? 512 : N - 768) { /* 1, 3 and 16 super-blocks: tails */
            static uint8_t a[N * 4], b[N * 4];
            const size_t bytes = kn_row_bytes(encoders[k], len);
            assert_int_equal(encode_with(set[0], encoders[k], x, a, len, k % 2 ? w : NULL), 0);
            for (int s = 1; s < n; s++) {
                memset(b, 0xa5, sizeof b);
                assert_int_equal(encode_with(set[s], encoders[k], x, b, len, k % 2 ? w : NULL), 0);
                assert_memory_equal(a, b, bytes);
                assert_int_equal(b[bytes == sizeof b ? 0 : bytes], bytes == sizeof b ? b[0] : 0xa5);
            }
        }
    print_message("%d instruction sets compared\n", n);
}

/* A block's bytes depend on the block alone, wherever it stands in a row and however long the row is. */
static void test_position(void **state)
{
    (void)state;
    static float x[N];
    static uint8_t all[N * 4], one[1024];
    fill_mixed(x);
    for (size_t k = 0; k < ENCODERS; k++) {
        const struct kn_type_info *t = kn_type_info(encoders[k]);
        const int n = t->block == 1 ? 32 : (int)t->block;
        const size_t bytes = kn_row_bytes(encoders[k], n);
        assert_int_equal(kn_encode_row(encoders[k], x, all, N, NULL), 0);
        for (int i = 0; i < N / n; i++) {
            assert_int_equal(kn_encode_row(encoders[k], x + i * n, one, n, NULL), 0);
            assert_memory_equal(one, all + bytes * (size_t)i, bytes);
        }
    }
}

/* The bytes of one row, as a checksum: files must not change from machine to machine, nor by accident. A
 * deliberate change of the search changes them. */
static void test_golden(void **state)
{
    (void)state;
    static float x[N];
    static uint8_t b[N * 4];
    static const uint32_t want[ENCODERS] = {
        0x378e50de, 0x67e59808, 0x51d32afc, 0x83f82f8c, 0xff29d30c, 0x4715e398, 0x56638510, 0x55d61e87,
        0xf49bce3a, 0xc646cc1b, 0xbe75c749, 0xb6410eae, 0x9bebcf97, 0xc95898ae, 0x1e885da6, 0x469d603f,
        0xe5b0d872, 0x31b72fe2, 0x7fba2dc0, 0x4bdecca2, 0xfefe0581}; /* in the order of encoders[] */
    fill_mixed(x);
    int bad = 0;
    for (size_t k = 0; k < ENCODERS; k++) {
        assert_int_equal(kn_encode_row(encoders[k], x, b, N, NULL), 0);
        const uint32_t crc = (uint32_t)crc32(0, b, (uInt)kn_row_bytes(encoders[k], N));
        if (crc != want[k]) {
            print_message("%s: crc32 0x%08x, expected 0x%08x\n", kn_type_info(encoders[k])->name, crc,
                          want[k]);
            bad++;
        }
    }
    assert_int_equal(bad, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_types),      cmocka_unit_test(test_halves),
        cmocka_unit_test(test_decode),     cmocka_unit_test(test_grids),
        cmocka_unit_test(test_arguments),  cmocka_unit_test(test_error),
        cmocka_unit_test(test_edges),      cmocka_unit_test(test_refused),
        cmocka_unit_test(test_importance), cmocka_unit_test(test_instruction_sets),
        cmocka_unit_test(test_position),   cmocka_unit_test(test_golden),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
