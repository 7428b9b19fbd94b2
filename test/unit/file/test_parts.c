/* A model in several files: what is written in parts is read as one; parts that are missing, of another model
 * or at another's place are named. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "../../../common/base/mem.h"
#include "../../../common/file/gguf.h"
#include "../scratch.h"

#define N 23 /* tensors, of 64 to 1472 bytes: tensor i is i everywhere */

static struct gguf_writer *model(const char *name, uint32_t alignment)
{
    struct gguf_writer *w;
    struct err e = {0};
    assert_int_equal(gguf_writer_new(&w, &e), 0);
    assert_int_equal(gguf_put_str(w, "general.architecture", "test", 4, &e), 0);
    assert_int_equal(gguf_put_str(w, "general.name", name, strlen(name), &e), 0);
    if (alignment) assert_int_equal(gguf_put_u32(w, "general.alignment", alignment, &e), 0);
    for (int i = 0; i < N; i++) {
        char tensor[32];
        const int64_t ne[2] = {16, i + 1};
        snprintf(tensor, sizeof tensor, "blk.%d.weight", i);
        assert_int_equal(gguf_add_tensor(w, tensor, KN_F32, 2, ne, &e), 0);
    }
    return w;
}

static void fill(struct gguf_files *f)
{
    struct err e = {0};
    for (int i = 0; i < N; i++) {
        uint8_t data[16 * N * 4];
        memset(data, i, sizeof data);
        assert_int_equal(gguf_files_data(f, data, 7, &e), 0); /* in pieces */
        assert_int_equal(gguf_files_data(f, data, (uint64_t)(16 * (i + 1) * 4 - 7), &e), 0);
    }
}

/* As dflash-quantize writes it; how many files. */
static uint32_t write_parts(const char *path, const char *name, uint32_t alignment, uint64_t split)
{
    struct gguf_writer *w = model(name, alignment);
    struct gguf_files f;
    struct err e = {0};
    if (gguf_files_open(&f, w, path, true, NULL, 0, split, &e)) fail_msg("%s", e.msg);
    fill(&f);
    const uint32_t n = f.n;
    assert_int_equal(gguf_files_end(&f, &e), 0);
    assert_int_equal(gguf_files_commit(&f, &e), 0);
    gguf_files_abort(&f);
    gguf_writer_free(w);
    return n;
}

static void check_model(const struct gguf *g, uint32_t files)
{
    assert_int_equal(g->n_parts, files);
    assert_int_equal(g->n_tensors, N);
    assert_null(gguf_find(g, "split.no"));
    assert_null(gguf_find(g, "split.count"));
    for (int i = 0; i < N; i++) {
        const struct gguf_tensor *t = &g->tensor[i];
        char name[32];
        snprintf(name, sizeof name, "blk.%d.weight", i);
        assert_string_equal(t->name, name);
        assert_ptr_equal(gguf_tensor(g, name), t);
        assert_int_equal(t->bytes, 16 * (i + 1) * 4);
        const struct gguf *of = t->part ? g->part[t->part] : g; /* no copy: it lies in its file's map */
        assert_true(t->data >= of->map.data && t->data + t->bytes <= of->map.data + of->map.size);
        for (uint64_t k = 0; k < t->bytes; k++) assert_int_equal(t->data[k], i);
    }
}

static uint64_t size_of(const char *path)
{
    size_t n = 0;
    char *p = scratch_read(path, &n);
    assert_non_null(p);
    free(p);
    return n;
}

/* Any size gives the same model; no file is larger than asked but for one tensor alone. */
static void sizes(void **state)
{
    static const uint64_t splits[] = {1, 700, 1500, 1800, 2500, 4000, 9000, 100000};
    static const uint32_t alignments[] = {0, 8, 64, 4096};
    uint32_t before = 0;
    (void)state;
    for (int a = 0; a < 4; a++)
        for (size_t s = 0; s < sizeof splits / sizeof *splits; s++) {
            struct gguf *g;
            struct err e = {0};
            char first[200];
            const uint32_t n = write_parts(scratch("m.gguf"), "m", alignments[a], splits[s]);
            if (!s) assert_int_equal(n, N); /* each alone */
            if (s == 7) assert_int_equal(n, 1);
            assert_true(!s || n <= before);
            before = n;
            snprintf(first, sizeof first, "%s/m-00001-of-%05u.gguf", scratch_dir, n);
            if (gguf_open(&g, first, &e)) fail_msg("%s", e.msg);
            check_model(g, n);
            uint64_t all = 0;
            for (uint32_t i = 0; i < n; i++) {
                char part[200];
                int tensors = 0;
                snprintf(part, sizeof part, "%s/m-%05u-of-%05u.gguf", scratch_dir, i + 1, n);
                for (int k = 0; k < N; k++) tensors += g->tensor[k].part == i;
                assert_true(tensors > 0);
                assert_true(tensors == 1 || size_of(part) <= splits[s]);
                all += size_of(part);
            }
            assert_int_equal(g->bytes, all);
            gguf_close(g);
        }
}

/* Written whole, no key says anything of parts. */
static void whole(void **state)
{
    struct gguf *g;
    struct err e = {0};
    (void)state;
    assert_int_equal(write_parts(scratch("w.gguf"), "m", 0, 0), 1);
    assert_int_equal(gguf_open(&g, scratch("w.gguf"), &e), 0);
    assert_int_equal(g->n_kv, 2);
    check_model(g, 1);
    gguf_close(g);
}

/* ---- files of other writers: u16 and i32 keys, no crc, keys of the model in the first alone ---- */

struct foreign {
    int no, count, tensors; /* keys; below 0: none */
    const char *name;       /* general.name in this part, too; NULL: none */
    int first, n;           /* tensors */
};

static void put_int(struct gguf_writer *w, const char *key, uint32_t type, int v)
{
    char name[32];
    struct err e = {0};
    snprintf(name, sizeof name, "%s", key);
    const struct gguf_kv kv = {.key = name,
                               .type = type,
                               .elem = type,
                               .count = 1,
                               .data = (const uint8_t *)&v,
                               .bytes = type == GGUF_U16 ? 2 : 4};
    if (v >= 0) assert_int_equal(gguf_put_kv(w, &kv, &e), 0);
}

static void write_foreign(const char *path, const struct foreign *p)
{
    struct gguf_writer *w;
    struct io_out o;
    struct err e = {0};
    static const uint8_t zero[64];
    assert_int_equal(gguf_writer_new(&w, &e), 0);
    if (p->no == 0) assert_int_equal(gguf_put_str(w, "general.architecture", "test", 4, &e), 0);
    if (p->name) assert_int_equal(gguf_put_str(w, "general.name", p->name, strlen(p->name), &e), 0);
    put_int(w, "split.no", GGUF_U16, p->no);
    put_int(w, "split.count", GGUF_U16, p->count);
    put_int(w, "split.tensors.count", GGUF_I32, p->tensors);
    for (int i = 0; i < p->n; i++) {
        char name[32];
        const int64_t ne = 16;
        snprintf(name, sizeof name, "t%d", p->first + i);
        assert_int_equal(gguf_add_tensor(w, name, KN_F32, 1, &ne, &e), 0);
    }
    assert_int_equal(io_out_open(&o, path, true, NULL, 0, &e), 0);
    assert_int_equal(gguf_write_header(w, &o, &e), 0);
    for (int i = 0; i < p->n; i++) assert_int_equal(gguf_write_data(w, &o, zero, 64, &e), 0);
    assert_int_equal(gguf_write_end(w, &o, &e), 0);
    assert_int_equal(io_out_commit(&o, &e), 0);
    gguf_writer_free(w);
}

/* Ten parts, the fourth written as other says (NULL: it is not there); text: the message, NULL: it is read.
 */
static void ten(const struct foreign *fourth, bool there, int cut, const char *text)
{
    struct gguf *g;
    struct err e = {0};
    char path[64];
    for (int i = 0; i < 10; i++) {
        struct foreign p = {i, 10, 20, i ? NULL : "m", 2 * i, 2};
        snprintf(path, sizeof path, "x-%05d-of-00010.gguf", i + 1);
        unlink(path);
        if (i == 3 && fourth) p = *fourth;
        if (i != 3 || there) write_foreign(path, &p);
        if (i == 3 && cut) assert_int_equal(truncate(path, (off_t)size_of(path) - cut), 0);
    }
    const int rc = gguf_open(&g, "x-00001-of-00010.gguf", &e);
    if (!text) {
        if (rc) fail_msg("%s", e.msg);
        assert_int_equal(g->n_parts, 10);
        assert_int_equal(g->n_tensors, 20);
        gguf_close(g);
        return;
    }
    assert_int_equal(rc, -1);
    assert_null(g);
    assert_int_equal(e.code, ERR_FORMAT);
    assert_string_equal(e.msg, text);
}

#define X4 "x-00004-of-00010.gguf: "
#define NOT X4 "is no part of x-00001-of-00010.gguf: key "

static void other_parts(void **state)
{
    (void)state;
    assert_int_equal(chdir(scratch_dir), 0);
    ten(NULL, true, 0, NULL);
    ten(NULL, false, 0, X4 "part 4 of 10 is missing (expected it beside x-00001-of-00010.gguf)");
    ten(NULL, true, 40,
        X4 "tensor 't7': its data runs past the end of the file (expected 64 bytes at offset 64 of the data "
           "section, "
           "got a section of 88 bytes)");
    ten(&(struct foreign){3, 11, 20, NULL, 6, 2}, true, 0, NOT "'split.count' (expected 10, got 11)");
    ten(&(struct foreign){3, 10, 21, NULL, 6, 2}, true, 0, NOT "'split.tensors.count' (expected 20, got 21)");
    ten(&(struct foreign){-1, -1, -1, NULL, 6, 2}, true, 0, NOT "'split.no' (expected 3, got no such key)");
    ten(&(struct foreign){3, 10, -1, NULL, 6, 2}, true, 0,
        X4 "key 'split.tensors.count': is missing (expected beside other keys split.*)");
    ten(&(struct foreign){5, 10, 20, NULL, 6, 2}, true, 0,
        X4 "holds part 6 of 10 (expected part 4, which its name says)");
    ten(&(struct foreign){11, 10, 20, NULL, 6, 2}, true, 0,
        X4 "keys 'split.no' and 'split.count': out of range (expected 0 to count - 1, got 11 of 10)");
    ten(&(struct foreign){3, 10, 20, "m", 6, 2}, true, 0, NULL);
    ten(&(struct foreign){3, 10, 20, "other", 6, 2}, true, 0,
        NOT "'general.name' (expected \"m\", got \"other\")");
    ten(&(struct foreign){3, 10, 20, NULL, 6, 1}, true, 0,
        "x-00001-of-00010.gguf: its parts hold 19 tensors (expected 20, as key 'split.tensors.count' says)");
    ten(&(struct foreign){3, 10, 20, NULL, 9, 2}, true, 0,
        "x-00001-of-00010.gguf: tensor 't10': stands in part 4 and in part 6 of 10");
}

static void wrong(const char *path, const char *text)
{
    struct gguf *g;
    struct err e = {0};
    assert_int_equal(gguf_open(&g, path, &e), -1);
    assert_int_equal(e.code, ERR_FORMAT);
    assert_string_equal(e.msg, text);
}

/* What llama-gguf-split --merge leaves: part 0 of 0, with all tensors. */
static void joined_elsewhere(void **state)
{
    struct gguf *g;
    struct err e = {0};
    (void)state;
    assert_int_equal(chdir(scratch_dir), 0);
    write_foreign("z.gguf", &(struct foreign){0, 0, 3, "m", 0, 3});
    if (gguf_open(&g, "z.gguf", &e)) fail_msg("%s", e.msg);
    assert_int_equal(g->n_parts, 1);
    assert_int_equal(g->n_tensors, 3);
    assert_int_equal(g->n_kv, 2);
    gguf_close(g);
    write_foreign("z.gguf", &(struct foreign){0, 0, 4, "m", 0, 3});
    wrong("z.gguf", "z.gguf: its parts hold 3 tensors (expected 4, as key 'split.tensors.count' says)");
    write_foreign("z.gguf", &(struct foreign){1, 0, 3, "m", 0, 3});
    wrong("z.gguf",
          "z.gguf: keys 'split.no' and 'split.count': out of range (expected 0 to count - 1, got 1 of 0)");
    ten(&(struct foreign){0, 0, 20, NULL, 6, 2}, true, 0, NOT "'split.count' (expected 10, got 0)");
}

static void first_part(void **state)
{
    struct gguf *g;
    struct err e = {0};
    size_t n = 0;
    (void)state;
    assert_int_equal(chdir(scratch_dir), 0);
    ten(NULL, true, 0, NULL);
    wrong("x-00004-of-00010.gguf", X4 "is part 4 of 10 (expected part 1, with which the others are read)");
    write_foreign("y.gguf", &(struct foreign){0, 10, 20, NULL, 0, 2});
    wrong("y.gguf", "y.gguf: is part 1 of 10, and its name does not say where the others are (expected "
                    "NAME-00001-of-00010.gguf)");
    write_foreign("x-00001-of-00009.gguf", &(struct foreign){0, 10, 20, NULL, 0, 2});
    wrong("x-00001-of-00009.gguf",
          "x-00001-of-00009.gguf: holds part 1 of 10 (expected part 1 of 9, which its name says)");
    write_foreign("z.gguf", &(struct foreign){0, 1, 2, NULL, 0, 2});
    assert_int_equal(gguf_open(&g, "z.gguf", &e), 0); /* one of one needs no name */
    gguf_close(g);
    write_foreign("x-00001-of-00700.gguf", &(struct foreign){0, 700, 20, NULL, 0, 2});
    wrong("x-00001-of-00700.gguf", "x-00001-of-00700.gguf: too many parts (expected at most 512, got 700)");
    char *p = scratch_read("y.gguf", &n);
    assert_int_equal(gguf_open_memory(&g, p, n, "memory", &e), -1);
    assert_string_equal(e.msg, "memory: is part 1 of 10 (expected one file)");
    free(p);
}

/* Two models of one shape: our own parts show it by their crc. */
static void two_models(void **state)
{
    struct err e = {0};
    struct gguf *g;
    (void)state;
    assert_int_equal(chdir(scratch_dir), 0);
    const uint32_t n = write_parts("a.gguf", "a", 0, 2500);
    assert_true(n == write_parts("b.gguf", "b", 0, 2500) && n > 3);
    char from[64], to[64];
    snprintf(from, sizeof from, "b-00003-of-%05u.gguf", n);
    snprintf(to, sizeof to, "a-00003-of-%05u.gguf", n);
    assert_int_equal(rename(from, to), 0);
    snprintf(from, sizeof from, "a-00001-of-%05u.gguf", n);
    assert_int_equal(gguf_open(&g, from, &e), -1);
    assert_int_equal(e.code, ERR_FORMAT);
    assert_non_null(strstr(e.msg, "is no part of a-00001-of-"));
    assert_non_null(strstr(e.msg, "split.dflash.crc32"));
    assert_string_equal(e.hint, "it is of another model, or of one that was split otherwise");
}

/* The place of a part that is mapped is no place for an output; and parts appear together or not at all. */
static void outputs(void **state)
{
    struct err e = {0};
    struct gguf *g;
    struct io_out o;
    (void)state;
    assert_int_equal(chdir(scratch_dir), 0);
    ten(NULL, true, 0, NULL);
    assert_int_equal(gguf_open(&g, "x-00001-of-00010.gguf", &e), 0);
    assert_int_equal(io_out_open(&o, "x-00007-of-00010.gguf", true, NULL, 0, &e), -1);
    assert_int_equal(e.code, ERR_USAGE);
    assert_string_equal(
        e.msg, "x-00007-of-00010.gguf: the output is the same file as the input x-00007-of-00010.gguf");
    gguf_close(g);
    assert_int_equal(io_out_open(&o, "x-00007-of-00010.gguf", true, NULL, 0, &e), 0); /* opened before */
    assert_int_equal(gguf_open(&g, "x-00001-of-00010.gguf", &e), 0);
    assert_int_equal(io_out_commit(&o, &e), -1);
    assert_int_equal(e.code, ERR_USAGE);
    gguf_close(g);

    const uint32_t n = write_parts("c.gguf", "a", 0, 2500);
    struct gguf_writer *w = model("new", 0);
    struct gguf_files f;
    char third[64], first[64];
    snprintf(first, sizeof first, "c-00001-of-%05u.gguf", n);
    snprintf(third, sizeof third, "c-00003-of-%05u.gguf", n);
    assert_int_equal(gguf_files_open(&f, w, "c.gguf", false, NULL, 0, 2500, &e), -1);
    assert_int_equal(e.code, ERR_USAGE); /* exists already */
    gguf_files_abort(&f);
    gguf_writer_free(w);
    w = model("new", 0);
    assert_int_equal(gguf_files_open(&f, w, "c.gguf", true, NULL, 0, 2500, &e), 0);
    fill(&f);
    assert_int_equal(unlink(third), 0);
    assert_int_equal(mkdir(third, 0777), 0); /* its name cannot be taken: nor is any other */
    assert_int_equal(gguf_files_commit(&f, &e), -1);
    gguf_writer_free(w);
    assert_int_equal(rmdir(third), 0);
    memset(&e, 0, sizeof e);
    assert_int_equal(gguf_open(&g, first, &e), -1); /* the old first part, whose third is missing */
    assert_non_null(strstr(e.msg, "part 3 of"));
    w = model("new", 0);
    memset(&e, 0, sizeof e);
    assert_int_equal(gguf_files_open(&f, w, NULL, true, NULL, 0, 2500, &e), -1);
    assert_string_equal(e.msg, "--split-size: parts are files (expected -o FILE, got standard output)");
    gguf_files_abort(&f);
    gguf_writer_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes),       cmocka_unit_test(whole),
        cmocka_unit_test(other_parts), cmocka_unit_test(joined_elsewhere),
        cmocka_unit_test(first_part),  cmocka_unit_test(two_models),
        cmocka_unit_test(outputs),
    };
    scratch_begin();
    const int rc = cmocka_run_group_tests(tests, NULL, NULL);
    if (chdir("/")) return 1;
    scratch_end();
    return rc;
}
