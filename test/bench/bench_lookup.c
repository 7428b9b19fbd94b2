/* bench_lookup.c - what look-ups cost and find in a stream of tokens.
 *
 * usage: bench_lookup TOKENS [PROMPT]
 *
 * Times are of a whole pass, the best of some: a token added, and a search behind every token of the stream.
 * Then for shortest matches of 2 to 16 tokens the stream behind its first PROMPT tokens is cut into cycles of
 * up to 64 rows that have look-ups alone, no more proposals than the match is long: tokens a cycle, rows
 * verified in vain a token, and by length of the match how many of the first proposals were right. No model
 * runs: the stream says what would be accepted. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <time.h>

#include "../../common/base/io.h"
#include "../../common/run/lookup.h"

enum { MOST = 63, REPEATS = 5 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void must(int rc, const struct err *e)
{
    if (!rc) return;
    fprintf(stderr, "bench_lookup: %s\n", e->msg);
    exit(e->code);
}

static void times(const int32_t *ids, int32_t n, int32_t least)
{
    struct err e = {0};
    struct lookup *x;
    double add = 1e9, both = 1e9;
    int64_t sum = 0;
    int32_t out[MOST], match;
    for (int r = 0; r < REPEATS; r++) {
        must(lookup_open(&x, n, least, NULL, &e), &e);
        double t = now();
        must(lookup_set(x, ids, n, 0, &e), &e);
        t = now() - t;
        if (t < add) add = t;
        must(lookup_set(x, ids, 0, 0, &e), &e);
        t = now();
        for (int32_t i = 1; i <= n; i++) {
            must(lookup_set(x, ids, i, i - 1, &e), &e);
            sum += lookup_find(x, MOST, out, &match);
        }
        t = now() - t;
        if (t < both) both = t;
        lookup_close(x);
    }
    printf("least %2d: %6.1f ns a token added, %6.1f with a search behind it, %.1f ids found a search\n",
           least, 1e9 * add / n, 1e9 * both / n, (double)sum / n / REPEATS);
}

static void cycles(const int32_t *ids, int32_t n, int32_t prompt, int32_t least)
{
    static const int32_t bucket[] = {2, 3, 4, 6, 8, 12, 16, 32, 64, INT32_MAX};
    struct err e = {0};
    struct lookup *x;
    int64_t count = 0, asked = 0, accepted = 0, wasted = 0, seen[9] = {0}, right[9] = {0}, whole[9] = {0};
    must(lookup_open(&x, n, least, NULL, &e), &e);
    for (int32_t i = prompt, same = 0; i < n; count++) {
        int32_t out[MOST], match, good = 0, b = 0;
        must(lookup_set(x, ids, i, same, &e), &e);
        same = i;
        const int32_t left = n - i - 1 < MOST ? n - i - 1 : MOST;
        int32_t some = lookup_find(x, left, out, &match);
        if (some > match) some = match;
        while (good < some && ids[i + good] == out[good]) good++;
        i += good + 1;
        if (!some) continue;
        while (match >= bucket[b + 1]) b++;
        seen[b]++, right[b] += good > 0, whole[b] += good;
        asked++, accepted += good, wasted += some - good;
    }
    lookup_close(x);
    printf("least %2d: %5.2f tokens a cycle, %5.2f where one was found (%.2f of them), %.1f rows in vain;",
           least, (double)(n - prompt) / (double)count, asked ? 1 + (double)accepted / (double)asked : 0,
           (double)asked / (double)count, asked ? (double)wasted / (double)asked : 0);
    for (int b = 0; b < 9; b++)
        if (seen[b])
            printf(" %d: %" PRId64 " %.2f %.1f", bucket[b], seen[b], (double)right[b] / (double)seen[b],
                   (double)whole[b] / (double)seen[b]);
    printf("\n");
}

int main(int argc, char **argv)
{
    static const int32_t leasts[] = {2, 3, 4, 5, 6, 8, 12, 16};
    struct err e = {0};
    int32_t *ids;
    size_t n;
    int fd = argc > 1 ? open(argv[1], O_RDONLY) : -1;
    if (fd < 0) {
        fprintf(stderr, "usage: bench_lookup TOKENS [PROMPT]\n");
        return 2;
    }
    must(io_read_tokens(fd, argv[1], &ids, &n, &e), &e);
    if (n < 2 || n > LOOKUP_MAX) return 3;
    const int32_t prompt = argc > 2 ? atoi(argv[2]) : 0;
    for (size_t i = 0; i < sizeof leasts / sizeof *leasts; i++) times(ids, (int32_t)n, leasts[i]);
    printf("in parentheses of a cycle; then by match: cycles, first proposal right, proposals right\n");
    for (size_t i = 0; i < sizeof leasts / sizeof *leasts; i++) cycles(ids, (int32_t)n, prompt, leasts[i]);
    free(ids);
    return 0;
}
