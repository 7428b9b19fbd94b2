/* bench_quant.c - speed and error of the block codecs, one thread: `make bench-quant`.
 *
 * usage: bench_quant [FILE.f32]     raw float32 weights (a multiple of 256 values); default: 2 M values of a
 * bell Columns: MB/s of float32 read while encoding, for each instruction set; MB/s of float32 written while
 * decoding; relative RMS error, and the same with the weights of the K search (rms of 32 + |x|). The best of
 * five runs by CPU time. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "../../kernels/blocks/encode.h"

#define RUNS 5

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static float *bell(int64_t n)
{
    float *x = malloc((size_t)n * sizeof *x);
    uint64_t s = 88172645463325252ull;
    for (int64_t i = 0; x && i < n; i++) {
        double sum = -6;
        for (int k = 0; k < 12; k++) {
            s ^= s << 13;
            s ^= s >> 7;
            s ^= s << 17;
            sum += (double)(s >> 32) / 4294967296.0;
        }
        x[i] = (float)(sum * 0.02);
    }
    return x;
}

static float *read_floats(const char *path, int64_t *n)
{
    FILE *f = fopen(path, "rb");
    float *x = NULL;
    if (f && !fseek(f, 0, SEEK_END)) {
        *n = ftell(f) / 4 / 256 * 256;
        rewind(f);
        x = malloc((size_t)*n * 4 + 1);
        if (x && fread(x, 4, (size_t)*n, f) != (size_t)*n) {
            free(x);
            x = NULL;
        }
    }
    if (f) fclose(f);
    return x;
}

static void errors(const float *x, const float *y, int64_t n, double *plain, double *weighted)
{
    double a = 0, b = 0, c = 0, d = 0;
    for (int64_t i = 0; i < n; i += 32) {
        double ms = 0;
        for (int j = 0; j < 32; j++) ms += (double)x[i + j] * (double)x[i + j];
        for (int j = 0; j < 32; j++) {
            const double v = (double)x[i + j], e = v - (double)y[i + j], w = sqrt(ms / 32) + fabs(v);
            a += e * e;
            b += v * v;
            c += w * e * e;
            d += w * v * v;
        }
    }
    *plain = sqrt(a / b);
    *weighted = sqrt(c / d);
}

static double encode_rate(const struct search *s, uint32_t type, const float *x, uint8_t *b, int64_t n)
{
    double best = 1e30;
    for (int r = 0; r < RUNS; r++) {
        const double begin = now();
        if (encode_with(s, type, x, b, n, NULL)) return 0;
        const double t = now() - begin;
        best = t < best ? t : best;
    }
    return 4e-6 * (double)n / best;
}

int main(int argc, char **argv)
{
    static const uint32_t types[] = {KN_F16,     KN_BF16,   KN_Q8_0,   KN_Q4_0,    KN_Q4_1,
                                     KN_Q5_0,    KN_Q5_1,   KN_Q4_K,   KN_Q5_K,    KN_Q6_K,
                                     KN_Q2_K,    KN_Q3_K,   KN_IQ4_NL, KN_IQ4_XS,  KN_MXFP4,
                                     KN_IQ2_XXS, KN_IQ2_XS, KN_IQ2_S,  KN_IQ3_XXS, KN_IQ3_S};
    int64_t n = 2 << 20;
    float *x = argc > 1 ? read_floats(argv[1], &n) : bell(n), *y = malloc((size_t)n * 4 + 1);
    uint8_t *b = malloc((size_t)n * 4 + 1);
    if (!x || !y || !b || n == 0) {
        fprintf(stderr, "bench_quant: cannot read %s, or no memory\n", argc > 1 ? argv[1] : "");
        return 4;
    }
    const struct search *sets[3] = {&search_base};
    int n_sets = 1;
    if (search_best() != &search_base) sets[n_sets++] = &search_avx2;
    if (search_best() == &search_avx512) sets[n_sets++] = &search_avx512;
    printf("%lld values; encode, MB/s of float32 on one core:\n%-6s", (long long)n, "type");
    for (int s = 0; s < n_sets; s++) printf(" %8s", sets[s]->name);
    printf(" %8s %10s %10s\n", "decode", "rel. RMS", "weighted");
    for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
        printf("%-6s", kn_type_info(types[k])->name);
        for (int s = 0; s < n_sets; s++) printf(" %8.0f", encode_rate(sets[s], types[k], x, b, n));
        double best = 1e30, plain, weighted;
        for (int r = 0; r < RUNS; r++) {
            const double begin = now();
            kn_decode_row(types[k], b, y, n);
            const double t = now() - begin;
            best = t < best ? t : best;
        }
        errors(x, y, n, &plain, &weighted);
        printf(" %8.0f %10.6f %10.6f\n", 4e-6 * (double)n / best, plain, weighted);
        fflush(stdout);
    }
    free(x);
    free(y);
    free(b);
    return 0;
}
