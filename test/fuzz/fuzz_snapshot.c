/* fuzz_snapshot.c - any bytes through the snapshot reader, as a file (its length known) and as a pipe
 * (unknown, in small pieces). */
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "../../common/base/mem.h"
#include "../../common/file/snapshot.h"
#include "stream.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int read_all(int fd, struct err *e)
{
    struct snap_reader r;
    uint8_t *p;
    int rc = snap_open(&r, fd, "fuzz", e);
    while (!rc && (rc = snap_next(&r, e)) == 1) {
        if (r.n % 2) {
            rc = snap_skip(&r, e);
        } else {
            rc = snap_read_section(&r, 1 << 20, &p, e);
            mem_free(p);
        }
    }
    if (rc && (rc != -1 || e->code != ERR_FORMAT)) __builtin_trap();
    return rc;
}

static void both_ways(const uint8_t *data, size_t size)
{
    struct err a = {0}, b = {0};
    stream_set(data, size, true, 0, false);
    int rc = read_all(STREAM_FD, &a);
    stream_set(data, size, false, 1 + size % 7, true);
    if (read_all(STREAM_FD, &b) != rc) __builtin_trap(); /* one verdict, whatever way the bytes come */
}

/* Put the right checksum behind every section, where one has its place: else no fuzzer comes past the first.
 */
static void mend(uint8_t *p, size_t size)
{
    size_t at = 16;
    uint64_t n;
    uint32_t crc;
    while (size >= at + 16) {
        memcpy(&n, p + at + 4, 8);
        if (n > size - at - 16) return;
        crc = (uint32_t)crc32_z(0, p + at, (size_t)n + 12);
        memcpy(p + at + 12 + n, &crc, 4);
        at += 16 + (size_t)n;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *copy;
    both_ways(data, size);
    copy = malloc(size ? size : 1);
    if (size) memcpy(copy, data, size);
    mend(copy, size);
    both_ways(copy, size);
    free(copy);
    return 0;
}
