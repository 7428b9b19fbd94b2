/* The snapshot container: round trips through files and pipes, every flipped byte and every truncation
 * refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../../common/base/mem.h"
#include "../../../common/file/snapshot.h"

static char path[64];

static void write_one(void)
{
    struct snap_writer w;
    struct io_out o;
    struct err e = {0};
    assert_int_equal(io_out_open(&o, path, true, NULL, 0, &e), 0);
    assert_int_equal(snap_begin(&w, &o, &e), 0);
    assert_int_equal(snap_put(&w, "MODL", "identity", 8, &e), 0);
    assert_int_equal(snap_section(&w, "KV 0", 10, &e), 0);
    assert_int_equal(snap_write(&w, "01234", 5, &e), 0);
    assert_int_equal(snap_write(&w, "", 0, &e), 0);
    assert_int_equal(snap_write(&w, "56789", 5, &e), 0);
    assert_int_equal(snap_section_end(&w, &e), 0);
    assert_int_equal(snap_put(&w, "NONE", NULL, 0, &e), 0);
    assert_int_equal(snap_end(&w, &e), 0);
    assert_int_equal(io_out_commit(&o, &e), 0);
}

static uint8_t *load(size_t *n)
{
    FILE *f = fopen(path, "rb");
    uint8_t *p = malloc(4096);
    *n = fread(p, 1, 4096, f);
    fclose(f);
    return p;
}

/* Reads n bytes through a file or a pipe to the end; 0 if every section is whole. */
static int read_back(const uint8_t *p, size_t n, bool pipe_it, struct err *e)
{
    struct snap_reader r;
    uint8_t *data;
    int fd[2], rc;
    memset(e, 0, sizeof *e);
    if (pipe_it) {
        assert_int_equal(pipe(fd), 0);
        assert_int_equal(write(fd[1], p, n), (ssize_t)n); /* less than a pipe holds */
        close(fd[1]);
    } else {
        FILE *f = fopen(path, "wb");
        fwrite(p, 1, n, f);
        fclose(f);
        f = fopen(path, "rb");
        fd[0] = dup(fileno(f));
        fclose(f);
    }
    rc = snap_open(&r, fd[0], "state", e);
    while (!rc && (rc = snap_next(&r, e)) == 1) {
        if (!strcmp(r.tag, "MODL")) {
            rc = snap_read_section(&r, 64, &data, e);
            mem_free(data);
        } else {
            rc = snap_skip(&r, e);
        }
    }
    close(fd[0]);
    return rc;
}

static void round_trip(void **state)
{
    struct snap_reader r;
    struct err e = {0};
    uint8_t *data;
    char buf[8] = "";
    FILE *f;
    (void)state;
    write_one();
    f = fopen(path, "rb");
    assert_int_equal(snap_open(&r, fileno(f), path, &e), 0);
    assert_int_equal(snap_next(&r, &e), 1);
    assert_string_equal(r.tag, "MODL");
    assert_int_equal(snap_read_section(&r, 8, &data, &e), 0);
    assert_memory_equal(data, "identity", 8);
    mem_free(data);
    assert_int_equal(snap_next(&r, &e), 1);
    assert_string_equal(r.tag, "KV 0");
    assert_int_equal(r.size, 10);
    assert_int_equal(snap_read(&r, buf, 7, &e), 0);
    assert_memory_equal(buf, "0123456", 7);
    assert_int_equal(snap_read(&r, buf, 3, &e), 0);
    assert_memory_equal(buf, "789", 3);
    assert_int_equal(snap_section_check(&r, &e), 0);
    assert_int_equal(snap_next(&r, &e), 1);
    assert_int_equal(snap_read_section(&r, 0, &data, &e), 0);
    mem_free(data);
    assert_int_equal(snap_next(&r, &e), 0);
    fclose(f);
}

static void damage(void **state)
{
    struct err e;
    size_t n;
    uint8_t *p;
    (void)state;
    write_one();
    p = load(&n);
    for (int piped = 0; piped < 2; piped++) {
        assert_int_equal(read_back(p, n, piped, &e), 0);
        for (size_t k = 0; k < n; k++) {
            assert_int_equal(read_back(p, k, piped, &e), -1);
            assert_int_equal(e.code, ERR_FORMAT);
        }
        for (size_t k = 0; k < n; k++) {
            p[k] ^= 0x11;
            assert_int_equal(read_back(p, n, piped, &e), -1);
            assert_int_equal(e.code, ERR_FORMAT);
            p[k] ^= 0x11;
        }
        p[n] = 0;
        assert_int_equal(read_back(p, n + 1, piped, &e), -1);
        assert_string_equal(e.msg, "state: bytes after the end of the snapshot");
    }
    free(p);
}

static void messages(void **state)
{
    struct err e;
    size_t n;
    uint8_t *p;
    (void)state;
    write_one();
    p = load(&n);
    p[0] = 'X';
    read_back(p, n, false, &e);
    assert_string_equal(e.msg, "state: header: not a snapshot (expected the magic DFSNAP01)");
    p[0] = 'D';
    p[8] = 2;
    read_back(p, n, false, &e);
    assert_string_equal(e.msg, "state: header: unknown version (expected 1, got 2)");
    p[8] = 1;
    p[16 + 12 + 3] ^= 1; /* in the payload of MODL */
    read_back(p, n, false, &e);
    assert_non_null(strstr(e.msg, "state: section 'MODL': damaged: wrong checksum (expected "));
    p[16 + 12 + 3] ^= 1;
    memset(p + 16 + 4, 0xff, 8); /* its size */
    read_back(p, n, false, &e);
    assert_string_equal(
        e.msg, "state: section 'MODL': the snapshot ends early (expected 18446744073709551615 bytes and a "
               "checksum, got 78)");
    read_back(p, n, true, &e);
    assert_string_equal(
        e.msg, "state: section 'MODL': too long (expected at most 64 bytes, got 18446744073709551615)");
    free(p);
}

static void misuse(void **state)
{
    struct snap_writer w;
    struct io_out o;
    struct err e = {0};
    (void)state;
    assert_int_equal(io_out_open(&o, path, true, NULL, 0, &e), 0);
    assert_int_equal(snap_begin(&w, &o, &e), 0);
    assert_int_equal(snap_section(&w, "abcd", 1, &e), -1);
    e.code = ERR_NONE;
    assert_int_equal(snap_section(&w, "END ", 1, &e), -1);
    e.code = ERR_NONE;
    assert_int_equal(snap_write(&w, "x", 1, &e), -1);
    e.code = ERR_NONE;
    assert_int_equal(snap_section(&w, "ABCD", 2, &e), 0);
    assert_int_equal(snap_write(&w, "x", 1, &e), 0);
    assert_int_equal(snap_section_end(&w, &e), -1);
    assert_non_null(strstr(e.msg, "section 'ABCD': too little data (expected 2 bytes, got 1)"));
    e.code = ERR_NONE;
    assert_int_equal(snap_write(&w, "xy", 2, &e), -1);
    assert_non_null(strstr(e.msg, "section 'ABCD': too much data (expected 2 bytes, got 3)"));
    io_out_abort(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),
        cmocka_unit_test(damage),
        cmocka_unit_test(messages),
        cmocka_unit_test(misuse),
    };
    int rc;
    snprintf(path, sizeof path, "/tmp/dflash-test-snapshot.%ld", (long)getpid());
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    remove(path);
    return rc;
}
