/* harness.c - see harness.h. */
#include "harness.h"
#include "../unit/rnd.h"

#include <stdarg.h>
#include <time.h>

long passed, failed;

void verdict(bool ok, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    printf(ok ? "ok   gpu/" : "FAIL gpu/");
    vprintf(fmt, ap);
    va_end(ap);
    printf("\n");
    fflush(stdout);
    passed += ok;
    failed += !ok;
}

void die(const char *what, const char *why)
{
    printf("FAIL gpu/%s: %s\n", what, why);
    exit(1);
}

void must(struct kn_backend *be, const char *what, int rc)
{
    if (!rc) return;
    printf("FAIL gpu/%s: %s\n", what, kn_message(be));
    exit(rc == KN_EDEVICE ? 5 : 1);
}

void *put(struct kn_backend *be, const void *host, size_t bytes)
{
    void *p = kn_op(be)->alloc(be, bytes);
    if (!p) must(be, "alloc", KN_EMEM);
    if (host) must(be, "upload", kn_op(be)->upload(be, p, host, bytes));
    return p;
}

void *get(struct kn_backend *be, const void *p, size_t bytes)
{
    void *host = malloc(bytes ? bytes : 1);
    if (!host) die("get", "no memory");
    must(be, "download", kn_op(be)->download(be, host, p, bytes));
    return host;
}

void drop(struct kn_backend *be, void *p)
{
    kn_op(be)->free(be, p);
}

void *take(struct kn_backend *be, void *p, size_t bytes)
{
    void *host = get(be, p, bytes);
    drop(be, p);
    return host;
}

uint64_t rnd_state;
uint64_t rnd(void)
{
    return rnd_next(&rnd_state);
}

float gaussian(float sigma)
{
    return sigma * rnd_normal(&rnd_state);
}

float *gaussians(size_t n, float sigma)
{
    float *x = calloc(n ? n : 1, sizeof *x);
    if (!x) die("gaussians", "no memory");
    for (size_t i = 0; i < n; i++) x[i] = gaussian(sigma);
    return x;
}

double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
