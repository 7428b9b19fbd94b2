/* fuzz_snapshot.c - any bytes through the snapshot reader, as a file (its length known) and as a pipe
 * (unknown). */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <zlib.h>

#include "../../common/mem.h"
#include "../../common/snapshot.h"

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
    int fd[2], file, rc;
    file = memfd_create("fuzz", 0);
    if (file < 0 || write(file, data, size) != (ssize_t)size || lseek(file, 0, SEEK_SET) || pipe(fd)) __builtin_trap();
    if (write(fd[1], data, size) != (ssize_t)size) __builtin_trap();
    close(fd[1]);
    rc = read_all(file, &a);
    if (read_all(fd[0], &b) != rc) __builtin_trap(); /* one verdict, whatever way the bytes come */
    close(fd[0]);
    close(file);
}

/* Put the right checksum behind every section, where one has its place: else no fuzzer comes past the first. */
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
    if (size > 32768) return 0; /* less than a pipe holds */
    both_ways(data, size);
    copy = malloc(size ? size : 1);
    if (size) memcpy(copy, data, size);
    mend(copy, size);
    both_ways(copy, size);
    free(copy);
    return 0;
}
