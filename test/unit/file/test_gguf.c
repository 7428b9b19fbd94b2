/* GGUF: what the writer writes is what the reader reads, byte for byte, and misuse of either is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <fcntl.h>
#include <math.h>

#include "../../../common/file/gguf.h"
#include "../../../common/base/mem.h"
#include "../scratch.h"

/* Bytes that differ from tensor to tensor. */
static void pattern(uint8_t *p, size_t n, unsigned seed)
{
    for (size_t i = 0; i < n; i++) p[i] = (uint8_t)(i * 31 + seed);
}

static const struct {
    const char *name;
    uint32_t type, n_dims;
    int64_t ne[GGUF_MAX_DIMS];
    uint64_t bytes;
} shapes[] = {
    {"token_embd.weight", KN_Q4_K, 2, {256, 3, 1, 1}, 3 * 144},
    {"one", KN_F32, 1, {1, 1, 1, 1}, 4},
    {"odd", KN_F16, 2, {3, 5, 1, 1}, 30},
    {"blk.0.experts", KN_Q8_0, 3, {64, 2, 3, 1}, 2 * 2 * 3 * 34},
    {"four", KN_I8, 4, {2, 3, 2, 3}, 36},
    {"wide", KN_MXFP4, 2, {32, 7, 1, 1}, 17 * 7},
};
#define N_SHAPES (sizeof shapes / sizeof *shapes)

static void put_all_kinds(struct gguf_writer *w, struct err *e)
{
    static const int16_t i16[] = {-1, 2, INT16_MIN};
    static const uint64_t u64[] = {UINT64_MAX, 0};
    static const float f32[] = {1.5f, -0.0f, INFINITY};
    static const double f64[] = {0.1};
    static const uint8_t bools[] = {1, 0, 1};
    const struct gguf_str strings[] = {{"a", 1}, {"", 0}, {"with\0nul", 8}, {"\xf0\x9f\x90\xa3", 4}};
    assert_int_equal(gguf_put_str(w, "general.architecture", "test", 4, e), 0);
    assert_int_equal(gguf_put_u32(w, "k.u32", 4000000000u, e), 0);
    assert_int_equal(gguf_put_i32(w, "k.i32", -7, e), 0);
    assert_int_equal(gguf_put_u64(w, "k.u64", UINT64_MAX - 1, e), 0);
    assert_int_equal(gguf_put_f32(w, "k.f32", 1e-5f, e), 0);
    assert_int_equal(gguf_put_bool(w, "k.bool", true, e), 0);
    assert_int_equal(gguf_put_str(w, "k.empty", "", 0, e), 0);
    assert_int_equal(gguf_put_array(w, "a.i16", GGUF_I16, i16, 3, e), 0);
    assert_int_equal(gguf_put_array(w, "a.u64", GGUF_U64, u64, 2, e), 0);
    assert_int_equal(gguf_put_array(w, "a.f32", GGUF_F32, f32, 3, e), 0);
    assert_int_equal(gguf_put_array(w, "a.f64", GGUF_F64, f64, 1, e), 0);
    assert_int_equal(gguf_put_array(w, "a.bool", GGUF_BOOL, bools, 3, e), 0);
    assert_int_equal(gguf_put_array(w, "a.none", GGUF_U32, NULL, 0, e), 0);
    assert_int_equal(gguf_put_strings(w, "a.strings", strings, 4, e), 0);
    assert_int_equal(gguf_put_strings(w, "a.no_strings", NULL, 0, e), 0);
}

/* Every scalar type that has no put function of its own goes through gguf_put_kv. */
static void put_odd_kinds(struct gguf_writer *w, struct err *e)
{
    static char names[5][8] = {"o.u8", "o.i8", "o.u16", "o.i64", "o.f64"};
    static const uint32_t types[5] = {GGUF_U8, GGUF_I8, GGUF_U16, GGUF_I64, GGUF_F64};
    static const uint8_t bytes[5] = {1, 1, 2, 8, 8};
    static const double tenth = 0.1;
    static const int64_t minus = -1;
    for (int i = 0; i < 5; i++) {
        struct gguf_kv kv = {
            .key = names[i], .type = types[i], .elem = types[i], .count = 1, .bytes = bytes[i]};
        kv.data = types[i] == GGUF_F64 ? (const uint8_t *)&tenth : (const uint8_t *)&minus;
        assert_int_equal(gguf_put_kv(w, &kv, e), 0);
    }
}

static void write_file(const char *path, uint32_t alignment)
{
    struct gguf_writer *w;
    struct io_out o;
    struct err e = {0};
    uint8_t data[4096];
    assert_int_equal(gguf_writer_new(&w, &e), 0);
    put_all_kinds(w, &e);
    put_odd_kinds(w, &e);
    if (alignment) assert_int_equal(gguf_put_u32(w, "general.alignment", alignment, &e), 0);
    for (size_t i = 0; i < N_SHAPES; i++)
        assert_int_equal(
            gguf_add_tensor(w, shapes[i].name, shapes[i].type, shapes[i].n_dims, shapes[i].ne, &e), 0);
    assert_int_equal(io_out_open(&o, path, true, NULL, 0, &e), 0);
    assert_int_equal(gguf_write_header(w, &o, &e), 0);
    for (size_t i = 0; i < N_SHAPES; i++) {
        pattern(data, (size_t)shapes[i].bytes, (unsigned)i);
        assert_int_equal(gguf_write_data(w, &o, data, 1, &e), 0); /* in pieces */
        assert_int_equal(gguf_write_data(w, &o, data, 0, &e), 0);
        assert_int_equal(gguf_write_data(w, &o, data + 1, shapes[i].bytes - 1, &e), 0);
    }
    assert_int_equal(gguf_write_end(w, &o, &e), 0);
    assert_int_equal(io_out_commit(&o, &e), 0);
    gguf_writer_free(w);
}

static void check_values(const struct gguf *g)
{
    struct err e = {0};
    uint32_t u;
    int32_t i;
    uint64_t l;
    float f;
    bool b;
    struct gguf_str s;
    const struct gguf_kv *kv;
    assert_int_equal(gguf_get_u32(g, "k.u32", &u, &e), 0);
    assert_int_equal(u, 4000000000u);
    assert_int_equal(gguf_get_i32(g, "k.i32", &i, &e), 0);
    assert_int_equal(i, -7);
    assert_int_equal(gguf_get_u64(g, "k.u64", &l, &e), 0);
    assert_true(l == UINT64_MAX - 1);
    assert_int_equal(gguf_get_u64(g, "k.u32", &l, &e), 0);
    assert_int_equal(l, 4000000000u);
    assert_int_equal(gguf_get_f32(g, "k.f32", &f, &e), 0);
    assert_true(f == 1e-5f);
    assert_int_equal(gguf_get_f32(g, "o.f64", &f, &e), 0);
    assert_true(f == 0.1f);
    assert_int_equal(gguf_get_bool(g, "k.bool", &b, &e), 0);
    assert_true(b);
    assert_int_equal(gguf_get_str(g, "k.empty", &s, &e), 0);
    assert_int_equal(s.n, 0);
    assert_int_equal(gguf_get_str(g, "general.architecture", &s, &e), 0);
    assert_true(gguf_str_is(s, "test"));
    assert_false(gguf_str_is(s, "tes"));
    assert_int_equal(gguf_get_i32(g, "o.u8", &i, &e), 0);
    assert_int_equal(i, 255);
    assert_int_equal(gguf_get_i32(g, "o.i8", &i, &e), 0);
    assert_int_equal(i, -1);
    assert_int_equal(gguf_get_i32(g, "o.u16", &i, &e), 0);
    assert_int_equal(i, 65535);
    assert_int_equal(gguf_get_i32(g, "o.i64", &i, &e), 0);
    assert_int_equal(i, -1);
    kv = gguf_find(g, "a.i16");
    assert_int_equal(kv->count, 3);
    assert_int_equal(gguf_array_i64(kv, 2), INT16_MIN);
    assert_int_equal(gguf_array_i64(gguf_find(g, "a.bool"), 2), 1);
    assert_int_equal(gguf_array_i64(gguf_find(g, "a.u64"), 0), -1);
    assert_true(isinf(gguf_array_f64(gguf_find(g, "a.f32"), 2)));
    assert_true(gguf_array_f64(gguf_find(g, "a.f64"), 0) == 0.1);
    kv = gguf_find(g, "a.strings");
    assert_int_equal(kv->count, 4);
    assert_int_equal(kv->strings[2].n, 8);
    assert_memory_equal(kv->strings[2].s, "with\0nul", 8);
    assert_int_equal(gguf_find(g, "a.none")->count, 0);
    assert_int_equal(gguf_find(g, "a.no_strings")->elem, GGUF_STRING);
    assert_null(gguf_find(g, "absent"));
    assert_int_equal(gguf_get_u32(g, "absent", &u, &e), 1);
    assert_int_equal(e.code, ERR_NONE);
}

static void round_trip(void **state)
{
    static const uint32_t alignments[] = {0, 8, 32, 4096};
    (void)state;
    for (size_t a = 0; a < 4; a++) {
        struct gguf *g;
        struct err e = {0};
        uint8_t data[4096];
        write_file(scratch("a.gguf"), alignments[a]);
        assert_int_equal(gguf_open(&g, scratch("a.gguf"), &e), 0);
        assert_int_equal(g->version, 3);
        assert_int_equal(g->alignment, alignments[a] ? alignments[a] : 32);
        assert_int_equal(g->data_offset % g->alignment, 0);
        assert_int_equal(g->map.size % g->alignment, 0);
        check_values(g);
        assert_int_equal(g->n_tensors, N_SHAPES);
        for (size_t i = 0; i < N_SHAPES; i++) {
            const struct gguf_tensor *t = gguf_tensor(g, shapes[i].name);
            assert_ptr_equal(t, &g->tensor[i]); /* file order is the writer's order */
            assert_int_equal(t->type, shapes[i].type);
            assert_int_equal(t->n_dims, shapes[i].n_dims);
            assert_memory_equal(t->ne, shapes[i].ne, sizeof t->ne);
            assert_int_equal(t->bytes, shapes[i].bytes);
            pattern(data, (size_t)t->bytes, (unsigned)i);
            assert_memory_equal(t->data, data, t->bytes);
        }
        assert_null(gguf_tensor(g, "absent"));
        gguf_close(g);
    }
}

/* reader -> writer gives the same bytes. */
static void same_bytes(void **state)
{
    struct gguf *g;
    struct gguf_writer *w;
    struct io_out o;
    struct err e = {0};
    char *a, *b;
    size_t na = 0, nb = 0;
    (void)state;
    write_file(scratch("a.gguf"), 64);
    assert_int_equal(gguf_open(&g, scratch("a.gguf"), &e), 0);
    assert_int_equal(gguf_writer_new(&w, &e), 0);
    for (uint64_t i = 0; i < g->n_kv; i++) assert_int_equal(gguf_put_kv(w, &g->kv[i], &e), 0);
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        const struct gguf_tensor *t = &g->tensor[i];
        assert_int_equal(gguf_add_tensor(w, t->name, t->type, t->n_dims, t->ne, &e), 0);
    }
    assert_int_equal(io_out_open(&o, scratch("b.gguf"), false, NULL, 0, &e), 0);
    assert_int_equal(gguf_write_header(w, &o, &e), 0);
    for (uint64_t i = 0; i < g->n_tensors; i++)
        assert_int_equal(gguf_write_data(w, &o, g->tensor[i].data, g->tensor[i].bytes, &e), 0);
    assert_int_equal(gguf_write_end(w, &o, &e), 0);
    assert_int_equal(io_out_commit(&o, &e), 0);
    gguf_writer_free(w);
    gguf_close(g);
    a = scratch_read(scratch("a.gguf"), &na);
    b = scratch_read(scratch("b.gguf"), &nb);
    assert_int_equal(na, nb);
    assert_memory_equal(a, b, na);
    free(a);
    free(b);
}

#define WRONG(call, text)                                                                                    \
    do {                                                                                                     \
        struct err e = {0};                                                                                  \
        assert_int_equal(call, -1);                                                                          \
        assert_int_equal(e.code, ERR_FORMAT);                                                                \
        assert_string_equal(e.msg, text);                                                                    \
    } while (0)

static void getters_refuse(void **state)
{
    struct gguf *g;
    struct gguf_writer *w;
    struct io_out o;
    struct err ok = {0};
    uint32_t u;
    int32_t i;
    uint64_t l;
    float f;
    bool b;
    struct gguf_str s;
    static const double huge = 1e300;
    char name[] = "f64";
    const struct gguf_kv kv = {name, GGUF_F64, GGUF_F64, 1, (const uint8_t *)&huge, 8, NULL};
    (void)state;
    assert_int_equal(gguf_writer_new(&w, &ok), 0);
    gguf_put_u64(w, "big", UINT64_MAX, &ok);
    gguf_put_i32(w, "minus", -1, &ok);
    gguf_put_str(w, "text", "x", 1, &ok);
    gguf_put_bool(w, "bool", false, &ok);
    gguf_put_array(w, "array", GGUF_U8, "x", 1, &ok);
    gguf_put_kv(w, &kv, &ok);
    assert_int_equal(io_out_open(&o, scratch("g.gguf"), true, NULL, 0, &ok), 0);
    assert_int_equal(gguf_write_header(w, &o, &ok), 0);
    assert_int_equal(gguf_write_end(w, &o, &ok), 0);
    assert_int_equal(io_out_commit(&o, &ok), 0);
    gguf_writer_free(w);
    assert_int_equal(chdir(scratch_dir), 0);
    assert_int_equal(gguf_open(&g, "g.gguf", &ok), 0);
    WRONG(gguf_get_u32(g, "big", &u, &e),
          "g.gguf: key 'big': out of range (expected 0 to 4294967295, got 18446744073709551615)");
    WRONG(gguf_get_u32(g, "minus", &u, &e),
          "g.gguf: key 'minus': out of range (expected 0 to 4294967295, got -1)");
    WRONG(gguf_get_u64(g, "minus", &l, &e),
          "g.gguf: key 'minus': out of range (expected 0 to 9223372036854775807, got -1)");
    WRONG(gguf_get_i32(g, "text", &i, &e),
          "g.gguf: key 'text': wrong type (expected an integer, got string)");
    WRONG(gguf_get_u32(g, "bool", &u, &e), "g.gguf: key 'bool': wrong type (expected an integer, got bool)");
    WRONG(gguf_get_u32(g, "array", &u, &e),
          "g.gguf: key 'array': wrong type (expected an integer, got an array of u8)");
    WRONG(gguf_get_f32(g, "minus", &f, &e), "g.gguf: key 'minus': wrong type (expected f32 or f64, got i32)");
    WRONG(gguf_get_f32(g, "f64", &f, &e), "g.gguf: key 'f64': out of range of f32 (got 1e+300)");
    WRONG(gguf_get_bool(g, "minus", &b, &e), "g.gguf: key 'minus': wrong type (expected bool, got i32)");
    WRONG(gguf_get_str(g, "array", &s, &e),
          "g.gguf: key 'array': wrong type (expected string, got an array of u8)");
    gguf_close(g);
    gguf_close(NULL);
}

static void writer_refuses(void **state)
{
    struct gguf_writer *w;
    struct io_out o;
    struct err ok = {0};
    static const int64_t ne[] = {256, 2}, odd[] = {100}, zero[] = {1, 0}, huge[] = {INT64_MAX, 4};
    char long_name[80];
    uint8_t data[2048] = {2};
    (void)state;
    memset(long_name, 'n', 64);
    long_name[64] = 0;
    assert_int_equal(gguf_writer_new(&w, &ok), 0);
    WRONG(gguf_put_u32(w, "", 1, &e), "key '': bad length of its name (expected 1 to 65535 bytes, got 0)");
    WRONG(gguf_put_array(w, "a", GGUF_STRING, data, 1, &e),
          "key 'a': not a type of array elements here: string (8)");
    WRONG(gguf_put_array(w, "a", 13, data, 1, &e),
          "key 'a': not a type of array elements here: unknown (13)");
    WRONG(gguf_put_array(w, "a", GGUF_BOOL, data, 1, &e),
          "key 'a': a bool is neither 0 nor 1 (element 0 is 2)");
    WRONG(gguf_add_tensor(w, long_name, KN_F32, 1, ne, &e),
          "tensor 'nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn': bad length of its name "
          "(expected 1 to 63 bytes, got 64)");
    WRONG(gguf_add_tensor(w, "t", 31, 1, ne, &e), "tensor 't': unknown tensor type 31");
    WRONG(gguf_add_tensor(w, "t", KN_F32, 5, ne, &e),
          "tensor 't': bad number of dimensions (expected 1 to 4, got 5)");
    WRONG(gguf_add_tensor(w, "t", KN_Q4_K, 1, odd, &e),
          "tensor 't': its rows are no whole blocks of Q4_K (expected a multiple of 256, got 100)");
    WRONG(gguf_add_tensor(w, "t", KN_F32, 2, zero, &e),
          "tensor 't': bad dimension 1 (expected 1 or more, got 0)");
    WRONG(gguf_add_tensor(w, "t", KN_F32, 2, huge, &e), "tensor 't': more elements than 63 bits count");
    WRONG(gguf_add_tensor(w, "t", KN_F32, 1, huge, &e), "tensor 't': more bytes than 64 bits count");
    assert_int_equal(gguf_add_tensor(w, "t", KN_F16, 2, ne, &ok), 0);
    WRONG(gguf_add_tensor(w, "t", KN_F32, 1, ne, &e), "tensor 't': added twice");
    assert_int_equal(io_out_open(&o, "/dev/null", true, NULL, 0, &ok), 0);
    WRONG(gguf_write_data(w, &o, data, 1, &e), "/dev/null: tensor data before the header");
    WRONG(gguf_write_end(w, &o, &e), "/dev/null: the header was not written");
    assert_int_equal(gguf_put_u32(w, "general.alignment", 24, &ok), 0);
    WRONG(gguf_write_header(w, &o, &e),
          "key 'general.alignment': bad alignment (expected a power of two, 8 or more, got 24)");
    assert_int_equal(gguf_put_str(w, "general.alignment", "x", 1, &ok), 0);
    WRONG(gguf_write_header(w, &o, &e), "key 'general.alignment': wrong type (expected u32, got string)");
    assert_int_equal(gguf_remove(w, "general.alignment"), 0);
    assert_int_equal(gguf_remove(w, "general.alignment"), 1);
    assert_int_equal(gguf_write_header(w, &o, &ok), 0);
    WRONG(gguf_write_header(w, &o, &e), "the header was written already");
    WRONG(gguf_put_u32(w, "late", 1, &e), "key 'late': set after the header was written");
    WRONG(gguf_add_tensor(w, "late", KN_F32, 1, ne, &e), "tensor 'late': added after the header was written");
    assert_int_equal(gguf_write_data(w, &o, data, 1000, &ok), 0);
    WRONG(gguf_write_data(w, &o, data, 25, &e), "tensor 't': too much data (expected 1024 bytes, got 1025)");
    WRONG(gguf_write_end(w, &o, &e), "tensor 't': too little data (expected 1024 bytes, got 1000)");
    assert_int_equal(gguf_write_data(w, &o, data, 24, &ok), 0);
    WRONG(gguf_write_data(w, &o, data, 1, &e), "/dev/null: 1 bytes of data after the last tensor");
    assert_int_equal(gguf_write_end(w, &o, &ok), 0);
    io_out_abort(&o);
    gguf_writer_free(w);
    gguf_writer_free(NULL);
}

/* A key that is set again keeps its place. */
static void replace(void **state)
{
    struct gguf_writer *w;
    struct gguf *g;
    struct io_out o;
    struct err e = {0};
    (void)state;
    assert_int_equal(gguf_writer_new(&w, &e), 0);
    gguf_put_u32(w, "a", 1, &e);
    gguf_put_u32(w, "b", 2, &e);
    gguf_put_u32(w, "c", 3, &e);
    gguf_put_str(w, "a", "again", 5, &e);
    gguf_remove(w, "b");
    assert_int_equal(io_out_open(&o, scratch("r.gguf"), true, NULL, 0, &e), 0);
    assert_int_equal(gguf_write_header(w, &o, &e), 0);
    assert_int_equal(gguf_write_end(w, &o, &e), 0);
    assert_int_equal(io_out_commit(&o, &e), 0);
    gguf_writer_free(w);
    assert_int_equal(gguf_open(&g, scratch("r.gguf"), &e), 0);
    assert_int_equal(g->n_kv, 2);
    assert_string_equal(g->kv[0].key, "a");
    assert_true(gguf_str_is(g->kv[0].strings[0], "again"));
    assert_string_equal(g->kv[1].key, "c");
    gguf_close(g);
}

/* Cut anywhere, a file is refused; and no flipped byte crashes the reader. */
static void truncation(void **state)
{
    struct gguf *g;
    char *p;
    size_t n = 0, end;
    (void)state;
    write_file(scratch("a.gguf"), 8);
    p = scratch_read(scratch("a.gguf"), &n);
    end = n - 1; /* the last tensor, 119 bytes, has one byte of padding, which a file may lack */
    for (size_t k = 0; k < end; k++) {
        struct err e = {0};
        uint8_t *copy = malloc(k + 1); /* exactly as long, so that a sanitizer sees a byte too far */
        memcpy(copy, p, k);
        copy = realloc(copy, k ? k : 1);
        assert_int_equal(gguf_open_memory(&g, copy, k, "cut", &e), -1);
        assert_int_equal(e.code, ERR_FORMAT);
        assert_memory_equal(e.msg, "cut: ", 5);
        free(copy);
    }
    for (size_t k = 0; k < n; k++) {
        struct err e = {0};
        p[k] = (char)~p[k];
        gguf_open_memory(&g, p, n, "flipped", &e);
        assert_true(g || e.code == ERR_FORMAT);
        gguf_close(g);
        p[k] = (char)~p[k];
    }
    free(p);
}

static void hints(void **state)
{
    struct gguf *g;
    struct err e = {0};
    char want[512];
    (void)state;
    assert_int_equal(gguf_open(&g, scratch_dir, &e), -1);
    assert_int_equal(e.code, ERR_FORMAT);
    snprintf(want, sizeof want, "dflash-convert %s -o %s.gguf", scratch_dir, scratch_dir);
    assert_string_equal(e.hint, want);
    memset(&e, 0, sizeof e);
    scratch_write(scratch("x.safetensors"), "\2\0\0\0\0\0\0\0{}", 10);
    assert_int_equal(gguf_open(&g, scratch("x.safetensors"), &e), -1);
    assert_int_equal(e.code, ERR_FORMAT);
    snprintf(want, sizeof want, "dflash-convert %s/x.safetensors -o %s/x.gguf", scratch_dir, scratch_dir);
    assert_string_equal(e.hint, want);
    memset(&e, 0, sizeof e);
    assert_int_equal(mkdir(scratch("it's a dir"), 0777), 0);
    assert_int_equal(gguf_open(&g, scratch("it's a dir///"), &e), -1);
    snprintf(want, sizeof want, "dflash-convert '%s/it'\\''s a dir///' -o '%s/it'\\''s a dir.gguf'",
             scratch_dir, scratch_dir);
    assert_string_equal(e.hint, want);
    assert_int_equal(rmdir(scratch("it's a dir")), 0);
    memset(&e, 0, sizeof e);
    assert_int_equal(gguf_open(&g, scratch("absent"), &e), -1);
    assert_int_equal(e.code, ERR_IO);
    assert_string_equal(gguf_type_name(GGUF_ARRAY), "array");
    assert_string_equal(gguf_type_name(13), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),     cmocka_unit_test(same_bytes), cmocka_unit_test(getters_refuse),
        cmocka_unit_test(writer_refuses), cmocka_unit_test(replace),    cmocka_unit_test(truncation),
        cmocka_unit_test(hints),
    };
    int rc;
    scratch_begin();
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    scratch_end();
    return rc;
}
