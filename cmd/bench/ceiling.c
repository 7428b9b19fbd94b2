/* ceiling.c - the memory's own speed, measured beside whatever is compared with it.
 *
 * A decoding step reads every weight once, so the floor of its time is bytes / bandwidth. The loop sums 64-bit words with
 * eight sums a thread; each thread reads its own contiguous part, which it also touched first. */
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "bench.h"

static volatile uint64_t sink; /* keeps the loop */

static uint64_t read_part(const uint64_t *p, size_t words)
{
    uint64_t s[8] = {0};
    for (size_t i = 0; i + 8 <= words; i += 8)
        for (int k = 0; k < 8; k++) s[k] += p[i + (size_t)k];
    return s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7];
}

double bench_read_ceiling(uint64_t bytes, int threads, int passes)
{
    if (bytes < (uint64_t)256 << 20) bytes = (uint64_t)256 << 20;
    if (bytes > (uint64_t)2 << 30) bytes = (uint64_t)2 << 30;
    size_t part = (size_t)(bytes / (uint64_t)threads) & ~(size_t)4095;
    double best = 0;
    uint8_t *b = mmap(NULL, part * (size_t)threads, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (b == MAP_FAILED) return 0;
    madvise(b, part * (size_t)threads, MADV_HUGEPAGE);
#pragma omp parallel num_threads(threads)
    memset(b + part * (size_t)omp_get_thread_num(), 1, part);
    for (int i = 0; i < passes; i++) {
        uint64_t sum = 0;
        double t = cli_seconds();
#pragma omp parallel num_threads(threads) reduction(+ : sum)
        sum += read_part((const uint64_t *)(b + part * (size_t)omp_get_thread_num()), part / 8);
        t = cli_seconds() - t;
        sink = sum;
        double rate = (double)part * threads / t;
        if (rate > best) best = rate;
    }
    munmap(b, part * (size_t)threads);
    return best;
}
