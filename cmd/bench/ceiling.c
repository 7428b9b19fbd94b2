/* ceiling.c - the memory's own speed, measured beside whatever is compared with it.
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

double bench_ceiling(const struct models *m, uint64_t bytes, int threads, int passes)
{
    double speed;
    if (!strcmp(models_device(m), "cpu")) return read_ceiling(bytes, threads, passes);
    speed = kn_op(m->be)->read_speed ? kn_op(m->be)->read_speed(m->be) : 0;
    return speed > 0 ? speed : NAN;
}
