/* ceiling.c - the memory's own speed and that of products, measured beside whatever is compared with them.
 *
 * A decoding step reads every weight once, so the floor of its time is bytes / bandwidth. The loop sums
 * 64-bit words with eight sums a thread; each thread reads its own contiguous part, which it also touched
 * first. The buffer is kept: clearing its pages anew would disturb what is measured next, and so would
 * threads that go on spinning, so they end with a pass. A device measures its own. */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "bench.h"

#define MAX_THREADS 1024

struct part {
    uint8_t *data;
    size_t bytes;
    bool touch;
    uint64_t sum; /* keeps the loop */
};

static void *read_part(void *arg)
{
    struct part *p = arg;
    const uint64_t *w = (const uint64_t *)p->data;
    uint64_t s[8] = {0};
    if (p->touch) memset(p->data, 1, p->bytes);
    for (size_t i = 0; !p->touch && i + 8 <= p->bytes / 8; i += 8)
        for (int k = 0; k < 8; k++) s[k] += w[i + (size_t)k];
    p->sum = s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7];
    return NULL;
}

/* All parts at once; the caller does the first. Returns seconds, or 0 where a thread could not be started. */
static double pass(struct part *p, int threads)
{
    pthread_t id[MAX_THREADS];
    int started = 1;
    double t = cli_seconds();
    while (started < threads && !pthread_create(&id[started], NULL, read_part, &p[started])) started++;
    read_part(&p[0]);
    for (int i = 1; i < started; i++) pthread_join(id[i], NULL);
    return started == threads ? cli_seconds() - t : 0;
}

/* 0: not measured. */
static double read_ceiling(uint64_t bytes, int threads, int passes)
{
    static uint8_t *buffer;
    static size_t size;
    static struct part part[MAX_THREADS];
    double best = 0;
    if (threads > MAX_THREADS) threads = MAX_THREADS;
    if (bytes < (uint64_t)256 << 20) bytes = (uint64_t)256 << 20;
    if (bytes > (uint64_t)2 << 30) bytes = (uint64_t)2 << 30;
    size_t each = (size_t)(bytes / (uint64_t)threads) & ~(size_t)4095;
    if (!buffer) {
        size = each * (size_t)threads;
        buffer = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (buffer == MAP_FAILED) {
            buffer = NULL;
            return 0;
        }
        madvise(buffer, size, MADV_HUGEPAGE);
        for (int i = 0; i < threads; i++) part[i] = (struct part){buffer + each * (size_t)i, each, true, 0};
        pass(part, threads);
        for (int i = 0; i < threads; i++) part[i].touch = false;
    }
    for (int i = 0; i < passes; i++) {
        double t = pass(part, threads);
        if (t > 0 && (double)size / t > best) best = (double)size / t;
    }
    return best;
}

/* ---- arithmetic ---- */

/* 8-bit products summed in 32 bits, as the products of quantised weights are: eight independent sums a
 * thread. Operations, two a multiplication and addition; 0 without AVX2. The empty asm keeps the compiler
 * from doing the same product once. */
#if defined(__x86_64__)
#include <immintrin.h>
enum { TURNS = 1 << 21 };

__attribute__((target("avx2"))) static double products_avx2(uint64_t *sum)
{
    __m256i s[8], a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(5);
    const __m256i one = _mm256_set1_epi16(1);
    for (int k = 0; k < 8; k++) s[k] = _mm256_setzero_si256();
    for (int i = 0; i < TURNS; i++)
#pragma GCC unroll 8
        for (int k = 0; k < 8; k++) {
            __asm__ volatile("" : "+x"(a), "+x"(b));
            s[k] = _mm256_add_epi32(s[k], _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), one));
        }
    for (int k = 1; k < 8; k++) s[0] = _mm256_add_epi32(s[0], s[k]);
    *sum = (uint64_t)_mm256_extract_epi64(s[0], 0);
    return 2. * 32 * 8 * TURNS;
}

__attribute__((target("avx512f,avx512bw,avx512vnni"))) static double products_avx512(uint64_t *sum)
{
    __m512i s[8], a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(5);
    for (int k = 0; k < 8; k++) s[k] = _mm512_setzero_si512();
    for (int i = 0; i < TURNS; i++)
#pragma GCC unroll 8
        for (int k = 0; k < 8; k++) {
            __asm__ volatile("" : "+v"(a), "+v"(b));
            s[k] = _mm512_dpbusd_epi32(s[k], a, b);
        }
    for (int k = 1; k < 8; k++) s[0] = _mm512_add_epi32(s[0], s[k]);
    *sum = (uint64_t)_mm256_extract_epi64(_mm512_castsi512_si256(s[0]), 0);
    return 2. * 64 * 8 * TURNS;
}

static double products(uint64_t *sum)
{
    if (__builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw"))
        return products_avx512(sum);
    return __builtin_cpu_supports("avx2") ? products_avx2(sum) : 0;
}
#else
static double products(uint64_t *sum)
{
    *sum = 0;
    return 0;
}
#endif

struct arithmetic {
    double operations;
    uint64_t sum; /* keeps the loop */
};

static void *multiply(void *arg)
{
    struct arithmetic *a = arg;
    a->operations = products(&a->sum);
    return NULL;
}

static double product_ceiling(int threads)
{
    static struct arithmetic a[MAX_THREADS];
    pthread_t id[MAX_THREADS];
    double best = 0;
    if (threads > MAX_THREADS) threads = MAX_THREADS;
    for (int round = 0; round < 3; round++) {
        double t = cli_seconds(), operations = 0;
        int started = 1;
        while (started < threads && !pthread_create(&id[started], NULL, multiply, &a[started])) started++;
        multiply(&a[0]);
        for (int i = 1; i < started; i++) pthread_join(id[i], NULL);
        t = cli_seconds() - t;
        for (int i = 0; i < started; i++) operations += a[i].operations;
        if (started == threads && operations / t > best) best = operations / t;
    }
    return best;
}

double bench_product_ceiling(const struct models *m, int threads)
{
    double speed = 0;
    if (!strcmp(models_device(m), "cpu"))
        speed = product_ceiling(threads);
    else if (kn_op(m->be)->product_speed)
        speed = kn_op(m->be)->product_speed(m->be);
    return speed > 0 ? speed : NAN;
}

double bench_ceiling(const struct models *m, uint64_t bytes, int threads, int passes)
{
    double speed;
    if (!strcmp(models_device(m), "cpu")) return read_ceiling(bytes, threads, passes);
    speed = kn_op(m->be)->read_speed ? kn_op(m->be)->read_speed(m->be) : 0;
    return speed > 0 ? speed : NAN;
}
