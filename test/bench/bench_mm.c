/* bench_mm.c - the CPU's matrix products against the memory they stream: each weight type at 1 to 128 rows,
 * and the step of a Qwen3-0.6B in Q4_K_M made of its matrices (no attention, no sampling).
 *
 *   bench_mm [--isa NAME] [--threads N] [--rows N,N..] [--cpu] [--types] [--step] [--seconds S]
 *
 * Times are the minimum of the repetitions that fit in S seconds a line; the read bandwidth is the best of a
 * plain multi-threaded read loop, measured again before every table, because neighbours change it. */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../../kernels/kernels.h"
#include "../block_scales.h"

static int threads = 0;
static double seconds = 0.4;
static int row_counts[16] = {1, 2, 4, 8, 16, 32, 64, 128}, n_counts = 8;
#define ROWS_MAX 128

/* Wall clock, or with --cpu the process's CPU time over its threads: what one thread (or several, with
 * OMP_WAIT_POLICY=passive) would take on a machine of its own, where neighbours take the processors away. */
static bool cpu_time = false;
static double now(void)
{
    struct timespec t;
    clock_gettime(cpu_time ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    const double s = (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
    return cpu_time ? s / threads : s;
}

static void die(const char *what)
{
    fprintf(stderr, "bench_mm: %s\n", what);
    exit(4);
}

/* ---- the ceiling ---- */

static double read_bandwidth(void)
{
    static uint64_t *p;
    const size_t n = (size_t)256 << 20, words = n / 8;
    double best = 1e9;
    if (!p && posix_memalign((void **)&p, (size_t)2 << 20, n)) die("no memory");
    for (int r = 0; r < 6; r++) {
        uint64_t sum = 0;
        if (r == 0) memset(p, 1, n);
        const double t = now();
#pragma omp parallel for num_threads(threads) reduction(+ : sum) schedule(static)
        for (size_t i = 0; i < words / 64; i++)
            for (size_t k = 0; k < 64; k++) sum += p[64 * i + k];
        const double e = now() - t;
        if (r && e < best) best = e;
        if (sum == 42) puts("");
    }
    return (double)n / best;
}

/* ---- weights ---- */

static uint32_t rnd(void)
{
    static uint64_t s = 1;
    s = s * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(s >> 33);
}

/* Random codes; scales 1/64, so that no value is out of range. */
static uint8_t *random_file(uint32_t type, int64_t n_in, int64_t n_out)
{
    const struct kn_type_info *t = kn_type_info(type);
    const size_t bytes = kn_row_bytes(type, n_in) * (size_t)n_out;
    uint8_t *p = malloc(bytes);
    if (!p) die("no memory");
    for (size_t i = 0; i + 4 <= bytes; i += 4) {
        uint32_t r = rnd();
        if (type == KN_F32) r = 0x3c800000u | r >> 9;
        if (type == KN_BF16) r = 0x3c803c80u | (r & 0x007f007fu);
        if (type == KN_F16) r = 0x24002400u | (r & 0x03ff03ffu);
        memcpy(p + i, &r, 4);
    }
    for (size_t i = 0; t->block > 1 && i < bytes; i += t->bytes)
        block_set_scales(type, p + i, 0x1p-6f, 0x1p-6f);
    return p;
}

static void load(struct kn_backend *be, struct kn_weight *w, uint32_t type, int64_t n_in, int64_t n_out)
{
    uint8_t *file = random_file(type, n_in, n_out);
    if (kn_op(be)->weight_load(be, w, type, n_in, n_out, file, KN_USE_LINEAR)) die(kn_message(be));
    free(file);
}

static float *rows(struct kn_backend *be, int64_t width)
{
    float *x = kn_op(be)->alloc(be, (size_t)(ROWS_MAX * width) * sizeof *x);
    if (!x) die("no memory");
    for (int64_t i = 0; i < ROWS_MAX * width; i++) x[i] = (float)(int32_t)(rnd() & 0xffff) / 32768.0f - 1.0f;
    return x;
}

static void ok(struct kn_backend *be, int e)
{
    if (e) die(kn_message(be));
}

/* ---- one type ---- */

static void bench_type(struct kn_backend *be, uint32_t type)
{
    enum { IN = 1024, W = 8 };
    const int64_t n_out =
        (int64_t)((12u << 20) / kn_row_bytes(type, IN)) / 16 * 16; /* 12 MB each, 96 MB in all */
    struct kn_weight w[W];
    float *x = rows(be, IN), *out = rows(be, n_out);
    const double bw = read_bandwidth();
    size_t bytes = 0;
    for (int j = 0; j < W; j++) {
        load(be, &w[j], type, IN, n_out);
        bytes += w[j].packed_bytes;
    }
    printf("%-5s [%d, %d] x %d, %.0f MB; read loop %.1f GB/s\n", kn_type_info(type)->name, (int)n_out, IN, W,
           (double)bytes / 1e6, bw / 1e9);
    double one = 0;
    for (int r = 0; r < n_counts; r++) {
        double best = 1e9, spent = 0;
        for (int i = 0; i < 2 || spent < seconds; i++) {
            const double t = now();
            for (int j = 0; j < W; j++) ok(be, kn_op(be)->linear(be, out, &w[j], x, row_counts[r], false));
            const double e = now() - t;
            if (e < best) best = e;
            spent += e;
        }
        if (r == 0) one = best;
        printf("  %3d rows %8.2f ms %6.1f GB/s (%.2f) %7.1f GMAC/s  %5.2f steps\n", row_counts[r], best * 1e3,
               (double)bytes / best / 1e9, (double)bytes / best / bw,
               (double)W * (double)n_out * IN * row_counts[r] / best / 1e9, best / one);
    }
    for (int j = 0; j < W; j++) kn_op(be)->weight_free(be, &w[j]);
    kn_op(be)->free(be, x);
    kn_op(be)->free(be, out);
}

/* ---- the step of Qwen3-0.6B Q4_K_M ---- */

enum { LAYERS = 28, EMBD = 1024, HEADS = 2048, KV = 1024, FF = 3072, VOCAB = 151936 };

struct layer {
    struct kn_weight q, k, v, o, gate, up, down;
};

static void step(struct kn_backend *be, struct layer *l, struct kn_weight *head, float *x, float *wide,
                 float *kv, float *logits, const float *norm, int n, int head_rows)
{
    for (int i = 0; i < LAYERS; i++) {
        float *out[3] = {wide, kv, kv + ROWS_MAX * KV};
        const struct kn_weight *qkv[3] = {&l[i].q, &l[i].k, &l[i].v};
        ok(be, kn_op(be)->norm_linear(be, out, qkv, 3, x, norm, 1e-6f, n));
        ok(be, kn_op(be)->linear(be, x, &l[i].o, wide, n, true));
        ok(be, kn_op(be)->norm_gated(be, wide, &l[i].gate, &l[i].up, x, norm, 1e-6f, KN_ACT_SILU, n));
        ok(be, kn_op(be)->linear(be, x, &l[i].down, wide, n, true));
    }
    const struct kn_weight *h[1] = {head};
    ok(be, kn_op(be)->norm_linear(be, &logits, h, 1, x + (n - head_rows) * EMBD, norm, 1e-6f, head_rows));
}

static void bench_step(struct kn_backend *be)
{
    static struct layer l[LAYERS];
    struct kn_weight head;
    size_t bytes = 0;
    for (int i = 0; i < LAYERS; i++) {
        const bool more = i < LAYERS / 8 || i >= 7 * LAYERS / 8 || (i - LAYERS / 8) % 3 == 2;
        load(be, &l[i].q, KN_Q4_K, EMBD, HEADS);
        load(be, &l[i].k, KN_Q4_K, EMBD, KV);
        load(be, &l[i].v, more ? KN_Q6_K : KN_Q4_K, EMBD, KV);
        load(be, &l[i].o, KN_Q4_K, HEADS, EMBD);
        load(be, &l[i].gate, KN_Q4_K, EMBD, FF);
        load(be, &l[i].up, KN_Q4_K, EMBD, FF);
        load(be, &l[i].down, more ? KN_Q6_K : KN_Q4_K, FF, EMBD);
        bytes += l[i].q.packed_bytes + l[i].k.packed_bytes + l[i].v.packed_bytes + l[i].o.packed_bytes +
                 l[i].gate.packed_bytes + l[i].up.packed_bytes + l[i].down.packed_bytes;
    }
    load(be, &head, KN_Q6_K, EMBD, VOCAB);
    bytes += head.packed_bytes;
    float *x = rows(be, EMBD), *wide = rows(be, FF), *kv = rows(be, 2 * KV), *norm = rows(be, EMBD),
          *logits = rows(be, VOCAB);
    const double bw = read_bandwidth(), macs = 28.0 * EMBD * (2 * HEADS + 2 * KV + 3 * FF);
    printf("Qwen3-0.6B Q4_K_M, matrices only: %.1f MB; read loop %.1f GB/s\n", (double)bytes / 1e6, bw / 1e9);
    double one = 0;
    for (int r = 0; r <= n_counts; r++) {
        /* The last line: a prompt of 128, the head for its last row only. */
        const int n = r < n_counts ? row_counts[r] : 128, h = r < n_counts ? n : 1;
        double best = 1e9, spent = 0;
        for (int i = 0; i < 2 || spent < 2 * seconds; i++) {
            for (int64_t k = 0; k < ROWS_MAX * EMBD; k++) x[k] = (float)(k % 255) / 127.0f - 1.0f;
            const double t = now();
            step(be, l, &head, x, wide, kv, logits, norm, n, h);
            const double e = now() - t;
            if (e < best) best = e;
            spent += e;
        }
        if (r == 0) one = best;
        printf("  %3d rows, head for %3d %8.2f ms %6.1f GB/s (%.2f) %7.1f GMAC/s  %5.2f steps %7.1f rows/s\n",
               n, h, best * 1e3, (double)bytes / best / 1e9, (double)bytes / best / bw,
               (macs * n + (double)EMBD * VOCAB * h) / best / 1e9, best / one, n / best);
    }
    printf("  read loop after: %.1f GB/s\n", read_bandwidth() / 1e9);
}

static void parse_rows(char *list)
{
    n_counts = 0;
    for (char *s = strtok(list, ","); s && n_counts < 16; s = strtok(NULL, ",")) {
        row_counts[n_counts] = atoi(s);
        if (row_counts[n_counts] < 1 || row_counts[n_counts++] > ROWS_MAX) die("--rows: 1 to 128");
    }
}

int main(int argc, char **argv)
{
    static const uint32_t types[] = {KN_Q4_K,  KN_Q5_K,    KN_Q6_K,   KN_Q8_0,  KN_Q4_0,    KN_Q5_0,
                                     KN_Q4_1,  KN_Q5_1,    KN_F32,    KN_F16,   KN_BF16,    KN_Q2_K,
                                     KN_Q3_K,  KN_IQ4_NL,  KN_IQ4_XS, KN_MXFP4, KN_IQ2_XXS, KN_IQ2_XS,
                                     KN_IQ2_S, KN_IQ3_XXS, KN_IQ3_S,  KN_IQ1_S, KN_IQ1_M};
    struct kn_open o = {.device = "cpu"};
    char message[256];
    struct kn_backend *be;
    bool do_types = false, do_step = false;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--isa") && i + 1 < argc)
            o.isa = argv[++i];
        else if (!strcmp(argv[i], "--threads") && i + 1 < argc)
            o.threads = atoi(argv[++i]);
        else if (!strcmp(argv[i], "--seconds") && i + 1 < argc)
            seconds = atof(argv[++i]);
        else if (!strcmp(argv[i], "--rows") && i + 1 < argc)
            parse_rows(argv[++i]);
        else if (!strcmp(argv[i], "--cpu"))
            cpu_time = true;
        else if (!strcmp(argv[i], "--types"))
            do_types = true;
        else if (!strcmp(argv[i], "--step"))
            do_step = true;
        else {
            fprintf(stderr, "usage: bench_mm [--isa NAME] [--threads N] [--rows N,N..] [--cpu] [--types] "
                            "[--step] [--seconds S]\n");
            return 2;
        }
    }
    if (!do_types && !do_step) do_types = do_step = true;
    threads = o.threads > 0 ? o.threads : omp_get_num_procs();
    if (kn_backend_open(&be, &o, message, sizeof message)) die(message);
    ok(be, kn_op(be)->reserve(be, ROWS_MAX, FF, VOCAB, 16, 128));
    for (int i = 0; do_types && i < (int)(sizeof types / sizeof *types); i++) bench_type(be, types[i]);
    if (do_step) bench_step(be);
    kn_backend_close(be);
    return 0;
}
