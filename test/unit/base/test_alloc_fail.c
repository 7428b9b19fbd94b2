/* The nth allocation fails, for every n until none is left to fail: always "out of memory" as ERR_IO, never a
 * crash, never a leak (the leaks are seen by `make test-sanitize`), never an output left behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "../../../common/file/gguf.h"
#include "../../../common/base/json.h"
#include "../../../common/base/mem.h"
#include "../../../common/file/safetensors.h"
#include "../../../common/file/snapshot.h"
#include "../scratch.h"

typedef int (*job)(struct err *e);

/* Runs job with the first, second, ... allocation failing until it succeeds;
 * returns how many had to be made. */
static uint64_t until_success(job f, uint64_t at_least)
{
    int files = scratch_files();
    uint64_t n = 0;
    for (;;) {
        struct err e = {0};
        int rc;
        n++;
        mem_fail_at(n);
        rc = f(&e);
        mem_fail_at(0);
        if (!rc) break;
        if (e.code != ERR_IO || !strstr(e.msg, "out of memory"))
            fail_msg("allocation %d: (%d) %s", (int)n, e.code, e.msg);
        assert_int_equal(scratch_files(), files);
        assert_true(n < 1000);
    }
    assert_true(n > at_least);
    return n;
}

static int write_gguf(struct err *e, const char *path)
{
    const struct gguf_str s[] = {{"one", 3}, {"two", 3}};
    static const int64_t ne[] = {4, 2};
    static const float data[8] = {1};
    struct gguf_writer *w = NULL;
    struct io_out o = {0};
    char name[32];
    int rc = -1;
    if (gguf_writer_new(&w, e)) goto done;
    for (int i = 0; i < 40; i++) { /* past the first growth */
        snprintf(name, sizeof name, "key.%d", i);
        if (gguf_put_u32(w, name, 1, e)) goto done;
    }
    if (gguf_put_strings(w, "strings", s, 2, e) || gguf_put_str(w, "string", "x", 1, e)) goto done;
    if (gguf_put_u32(w, "key.1", 2, e)) goto done; /* a replacement */
    if (gguf_add_tensor(w, "a", KN_F32, 2, ne, e) || gguf_add_tensor(w, "b", KN_F32, 2, ne, e)) goto done;
    if (io_out_open(&o, path, true, NULL, 0, e) || gguf_write_header(w, &o, e)) goto done;
    if (gguf_write_data(w, &o, data, sizeof data, e) || gguf_write_data(w, &o, data, sizeof data, e))
        goto done;
    if (gguf_write_end(w, &o, e)) goto done;
    rc = io_out_commit(&o, e);
done:
    io_out_abort(&o);
    gguf_writer_free(w);
    return rc;
}

static int job_write(struct err *e)
{
    return write_gguf(e, scratch("w.gguf"));
}

static int job_read(struct err *e)
{
    struct gguf *g;
    int rc = gguf_open(&g, scratch("r.gguf"), e);
    gguf_close(g);
    return rc;
}

static char *image;
static size_t image_size;
static int job_read_memory(struct err *e)
{
    struct gguf *g;
    int rc = gguf_open_memory(&g, image, image_size, "image", e);
    gguf_close(g);
    return rc;
}

static void gguf(void **state)
{
    struct err e = {0};
    (void)state;
    until_success(job_write, 50);
    remove(scratch("w.gguf"));
    assert_int_equal(write_gguf(&e, scratch("r.gguf")), 0);
    until_success(job_read, 4);
    image = scratch_read(scratch("r.gguf"), &image_size);
    until_success(job_read_memory, 4);
    free(image);
}

static int job_st_memory(struct err *e)
{
    static const char json[] =
        "{\"__metadata__\":{\"format\":\"pt\"},"
        "\"first\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
        "\"second \\u00e9\":{\"dtype\":\"F16\",\"shape\":[1,1],\"data_offsets\":[2,4]}}";
    uint64_t n = sizeof json - 1;
    uint8_t file[512];
    struct st *s;
    int rc;
    memcpy(file, &n, 8);
    memcpy(file + 8, json, n);
    memcpy(file + 8 + n, "1234", 4);
    rc = st_open_memory(&s, file, 8 + n + 4, "memory", e);
    st_close(s);
    return rc;
}

static int job_st_dir(struct err *e)
{
    struct st *s;
    int rc = st_open(&s, scratch("d"), e);
    st_close(s);
    return rc;
}

static void safetensors(void **state)
{
    static const char index[] = "{\"weight_map\":{\"b\":\"m-2.safetensors\",\"a\":\"m-1.safetensors\"}}";
    char file[128] = "\x35\0\0\0\0\0\0";
    (void)state;
    until_success(job_st_memory, 30);
    assert_int_equal(mkdir(scratch("d"), 0700), 0);
    strcpy(file + 8, "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}x");
    assert_int_equal(strlen(file + 8), 0x35 + 1);
    scratch_write(scratch("d/m-1.safetensors"), file, 8 + 0x35 + 1);
    file[10] = 'b';
    scratch_write(scratch("d/m-2.safetensors"), file, 8 + 0x35 + 1);
    scratch_write(scratch("d/model.safetensors.index.json"), index, sizeof index - 1);
    until_success(job_st_dir, 60);
}

static int job_json(struct err *e)
{
    static const char text[] =
        "{\"a\":[1,2.5,\"text\",null,true,{\"b\":\"\\u20ac\\ud83d\\ude00\"}],"
        "\"a rather long name of a member, longer than any buffer that lives in a struct\":"
        "\"and a value that needs its buffer to grow, and grow, and grow, and grow again\"}";
    json_t *j;
    int rc = json_parse(&j, text, sizeof text - 1, "text", e);
    json_decref(j);
    return rc;
}

static void json(void **state)
{
    struct err e = {0};
    json_t *j;
    (void)state;
    until_success(job_json, 20);
    assert_int_equal(json_parse(&j, "[1,", 3, "text", &e), -1); /* and a bad text is still told apart */
    assert_int_equal(e.code, ERR_FORMAT);
}

/* One allocation alone fails: no half-read text comes out as if it were whole. */
static void json_one(void **state)
{
    static const char text[] =
        "{\"a name of more than sixteen bytes\":\"and a value whose buffer grows again and again\"}";
    json_t *j, *whole;
    struct err e = {0};
    uint64_t n = 0;
    (void)state;
    assert_int_equal(json_parse(&whole, text, sizeof text - 1, "text", &e), 0);
    for (bool failed = true; failed;) {
        uint64_t before = mem_failures();
        memset(&e, 0, sizeof e);
        mem_fail_one(++n);
        int rc = json_parse(&j, text, sizeof text - 1, "text", &e);
        mem_fail_one(0);
        failed = mem_failures() != before;
        if (rc ? !failed || j || e.code != ERR_IO || !strstr(e.msg, "out of memory")
               : failed || !json_equal(j, whole))
            fail_msg("allocation %d: %d, (%d) %s", (int)n, rc, e.code, e.msg);
        json_decref(j);
    }
    json_decref(whole);
    assert_true(n > 6);
}

static int job_snapshot(struct err *e)
{
    struct snap_reader r;
    uint8_t *data = NULL;
    int fd = open(scratch("s.snap"), O_RDONLY), rc;
    rc = snap_open(&r, fd, "s.snap", e);
    while (!rc && (rc = snap_next(&r, e)) == 1) {
        rc = snap_read_section(&r, 1 << 20, &data, e);
        mem_free(data);
    }
    close(fd);
    return rc;
}

static int job_tokens(struct err *e)
{
    int32_t *ids = NULL;
    size_t n;
    int fd = open(scratch("s.snap"), O_RDONLY), rc = io_read_tokens(fd, "tokens", &ids, &n, e);
    mem_free(ids);
    close(fd);
    return rc;
}

static void streams(void **state)
{
    static char big[200000];
    struct snap_writer w;
    struct io_out o;
    struct err e = {0};
    (void)state;
    assert_int_equal(io_out_open(&o, scratch("s.snap"), true, NULL, 0, &e), 0);
    assert_int_equal(snap_begin(&w, &o, &e), 0);
    assert_int_equal(snap_put(&w, "ONE ", big, sizeof big, &e), 0);
    assert_int_equal(snap_put(&w, "TWO ", big, 8, &e), 0);
    assert_int_equal(snap_end(&w, &e), 0);
    assert_int_equal(io_out_commit(&o, &e), 0);
    until_success(job_snapshot, 2);
    until_success(job_tokens, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gguf),     cmocka_unit_test(safetensors), cmocka_unit_test(json),
        cmocka_unit_test(json_one), cmocka_unit_test(streams),
    };
    int rc;
    scratch_begin();
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    scratch_end();
    return rc;
}
