/* safetensors: every dtype decoded, single files, shards and directories. Refusals: test_malformed.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <stdint.h>
#include <sys/stat.h>

#include "../../../common/file/safetensors.h"
#include "../../../kernels/kernels.h"
#include "../scratch.h"

static uint8_t file[4096];
static size_t build(const char *json, const void *data, size_t n)
{
    uint64_t len = strlen(json);
    memcpy(file, &len, 8);
    memcpy(file + 8, json, len);
    if (n) memcpy(file + 8 + len, data, n);
    return 8 + len + n;
}

/* One tensor x of this dtype over data; the struct is closed with st_close. */
static struct st *one(const char *dtype, size_t count, const void *data, size_t bytes)
{
    char json[256];
    struct st *s;
    struct err e = {0};
    snprintf(json, sizeof json, "{\"x\":{\"dtype\":\"%s\",\"shape\":[%zu],\"data_offsets\":[0,%zu]}}", dtype,
             count, bytes);
    if (st_open_memory(&s, file, build(json, data, bytes), "x", &e)) fail_msg("%s", e.msg);
    return s;
}

static void floats(void **state)
{
    static const float f32[] = {1.5f, -0.0f, INFINITY, 1e-45f};
    static const double f64[] = {0.1, -1e-300, -INFINITY, 3.4028234663852886e38};
    static const uint16_t f16[] = {0x3c00, 0xfbff, 0x0001, 0x7c00}, bf16[] = {0x3f80, 0xc2f7, 0x0001, 0xff80};
    struct err e = {0};
    float got[4];
    struct st *s;
    (void)state;
    s = one("F32", 4, f32, 16);
    assert_int_equal(st_read_f32(st_tensor(s, "x"), 0, 4, got, &e), 0);
    assert_memory_equal(got, f32, 16);
    assert_int_equal(st_read_f32(st_tensor(s, "x"), 3, 1, got, &e), 0);
    assert_memory_equal(got, f32 + 3, 4);
    assert_int_equal(st_read_f32(st_tensor(s, "x"), 4, 0, got, &e), 0);
    assert_int_equal(st_read_f32(st_tensor(s, "x"), 2, 3, got, &e), -1);
    assert_string_equal(e.msg, "x: tensor 'x': elements 2 and 3 more asked for (expected at most 4)");
    memset(&e, 0, sizeof e);
    assert_int_equal(st_read_f32(st_tensor(s, "x"), UINT64_MAX, 2, got, &e), -1);
    memset(&e, 0, sizeof e);
    st_close(s);
    s = one("F64", 4, f64, 32);
    assert_int_equal(st_read_f32(st_tensor(s, "x"), 0, 4, got, &e), 0);
    for (int i = 0; i < 4; i++) assert_true(got[i] == (float)f64[i]);
    st_close(s);
    s = one("F64", 1, &(double){1e39}, 8);
    assert_int_equal(st_read_f32(st_tensor(s, "x"), 0, 1, got, &e), -1);
    assert_string_equal(e.msg, "x: tensor 'x': element 0 is out of range of f32 (1e+39)");
    memset(&e, 0, sizeof e);
    st_close(s);
    s = one("F16", 4, f16, 8);
    assert_int_equal(st_read_f32(st_tensor(s, "x"), 0, 4, got, &e), 0);
    assert_true(got[0] == 1.0f && got[1] == -65504.0f && got[2] == 0x1p-24f && isinf(got[3]));
    st_close(s);
    s = one("BF16", 4, bf16, 8);
    assert_int_equal(st_read_f32(st_tensor(s, "x"), 0, 4, got, &e), 0);
    assert_true(got[0] == 1.0f && got[1] == -123.5f && got[2] == 0x1p-133f && got[3] == -INFINITY);
    st_close(s);
}

/* All 256 values of both 8-bit formats, against their definitions written as sums. */
static void f8(void **state)
{
    uint8_t all[256];
    float got[256];
    struct err e = {0};
    struct st *s;
    (void)state;
    for (int i = 0; i < 256; i++) all[i] = (uint8_t)i;
    for (int five = 0; five < 2; five++) {
        int m_bits = five ? 2 : 3, bias = five ? 15 : 7, top = five ? 31 : 15;
        s = one(five ? "F8_E5M2" : "F8_E4M3", 256, all, 256);
        assert_int_equal(st_read_f32(st_tensor(s, "x"), 0, 256, got, &e), 0);
        for (int i = 0; i < 256; i++) {
            int ex = (i & 0x7f) >> m_bits, man = i & ((1 << m_bits) - 1);
            double m = man / (double)(1 << m_bits), sign = i & 0x80 ? -1 : 1;
            double v = sign * (ex ? (1 + m) * pow(2, ex - bias) : m * pow(2, 1 - bias));
            bool nan = five ? ex == top && man : ex == top && man == 7;
            if (five && ex == top && !man) v = sign * INFINITY;
            if (nan)
                assert_true(isnan(got[i]));
            else
                assert_true(got[i] == (float)v && !signbit(got[i]) == !(i & 0x80));
        }
        st_close(s);
    }
}

static void integers(void **state)
{
    static const char *const names[] = {"I64", "I32", "I16", "I8", "U8", "BOOL"};
    static const uint32_t sizes[] = {8, 4, 2, 1, 1, 1};
    uint8_t zero[8] = {0};
    (void)state;
    for (int i = 0; i < 6; i++) {
        struct err e = {0};
        float f;
        char want[128];
        struct st *s = one(names[i], 1, zero, sizes[i]);
        assert_string_equal(st_dtype_name(s->tensor[0].dtype), names[i]);
        assert_int_equal(st_dtype_size(s->tensor[0].dtype), sizes[i]);
        assert_int_equal(st_read_f32(&s->tensor[0], 0, 1, &f, &e), -1);
        snprintf(want, sizeof want, "x: tensor 'x': holds integers (expected a float dtype, got %s)",
                 names[i]);
        assert_string_equal(e.msg, want);
        assert_int_equal(e.code, ERR_FORMAT);
        st_close(s);
    }
    assert_string_equal(st_dtype_name((enum st_dtype)99), "unknown");
    assert_int_equal(st_dtype_size((enum st_dtype)99), 0);
}

/* Empty tensors, scalars, metadata, padding of the header, order of names and of data. */
static void shapes(void **state)
{
    struct st *s;
    struct err e = {0};
    (void)state;
    size_t n = build("{\"__metadata__\":{\"format\":\"pt\"},"
                     "\"z\":{\"dtype\":\"U8\",\"shape\":[2,3],\"data_offsets\":[0,6]},"
                     "\"m\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[6,10]},"
                     "\"e\":{\"dtype\":\"F32\",\"shape\":[4,0],\"data_offsets\":[6,6]},"
                     "\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1],\"data_offsets\":[10,11]}}     ",
                     "abcdef\0\0\x80?g", 11);
    assert_int_equal(st_open_memory(&s, file, n, "x", &e), 0);
    assert_int_equal(s->n_tensors, 4);
    assert_string_equal(s->tensor[0].name, "a");
    assert_string_equal(s->tensor[3].name, "z");
    assert_int_equal(st_tensor(s, "z")->shape[1], 3);
    assert_int_equal(st_tensor(s, "z")->count, 6);
    assert_memory_equal(st_tensor(s, "z")->data, "abcdef", 6);
    assert_int_equal(st_tensor(s, "m")->n_dims, 0);
    assert_int_equal(st_tensor(s, "m")->count, 1);
    assert_int_equal(st_tensor(s, "e")->count, 0);
    assert_int_equal(st_tensor(s, "a")->n_dims, 8);
    assert_null(st_tensor(s, "absent"));
    st_close(s);
    n = build("{}", NULL, 0); /* no tensors: a file that holds nothing, and says so */
    assert_int_equal(st_open_memory(&s, file, n, "x", &e), 0);
    assert_int_equal(s->n_tensors, 0);
    assert_null(st_tensor(s, "x"));
    st_close(s);
}

static void save_one(const char *path, const char *tensor, uint8_t value)
{
    char json[256];
    snprintf(json, sizeof json, "{\"%s\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", tensor);
    scratch_write(path, file, build(json, &value, 1));
}

static void directories(void **state)
{
    static const char index[] = "{\"metadata\":{\"total_size\":2},\"weight_map\":{\"b\":\"m-2.safetensors\","
                                "\"a\":\"m-1.safetensors\"}}";
    struct st *s;
    struct err e = {0};
    char dir[200];
    (void)state;
    assert_int_equal(mkdir(scratch("d"), 0700), 0);
    assert_int_equal(st_open(&s, scratch("d"), &e), -1);
    assert_non_null(
        strstr(e.msg, "no weights here (expected model.safetensors or model.safetensors.index.json)"));
    assert_int_equal(e.code, ERR_FORMAT);
    memset(&e, 0, sizeof e);
    save_one(scratch("d/m-1.safetensors"), "a", 1);
    save_one(scratch("d/m-2.safetensors"), "b", 2);
    scratch_write(scratch("d/model.safetensors.index.json"), index, sizeof index - 1);
    snprintf(dir, sizeof dir, "%s", scratch("d/"));
    for (int i = 0; i < 3; i++) {
        const char *path = i == 0 ? scratch("d") : i == 1 ? dir : scratch("d/model.safetensors.index.json");
        if (st_open(&s, path, &e)) fail_msg("%s", e.msg);
        assert_int_equal(s->n_tensors, 2);
        assert_int_equal(s->n_files, 2);
        assert_int_equal(*st_tensor(s, "a")->data, 1);
        assert_int_equal(*st_tensor(s, "b")->data, 2);
        assert_non_null(strstr(st_tensor(s, "b")->file, "/d/m-2.safetensors"));
        st_close(s);
    }
    save_one(scratch("d/model.safetensors"), "whole", 3); /* a single file goes before an index */
    assert_int_equal(st_open(&s, scratch("d"), &e), 0);
    assert_int_equal(s->n_tensors, 1);
    st_close(s);
    assert_int_equal(st_open(&s, scratch("absent"), &e), -1);
    assert_int_equal(e.code, ERR_IO);
    st_close(NULL);
}

static void damaged(void **state)
{
    static const char json[] = "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
                               "\"b\":{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[2,4]}}";
    struct st *s;
    size_t n = build(json, "1234", 4);
    (void)state;
    for (size_t k = 0; k < n; k++) {
        struct err e = {0};
        uint8_t *copy = malloc(k ? k : 1);
        memcpy(copy, file, k);
        assert_int_equal(st_open_memory(&s, copy, k, "cut", &e), -1);
        assert_int_equal(e.code, ERR_FORMAT);
        free(copy);
    }
    for (size_t k = 0; k < n; k++) {
        struct err e = {0};
        file[k] ^= 0x15;
        st_open_memory(&s, file, n, "flipped", &e);
        assert_true(s || e.code == ERR_FORMAT);
        st_close(s);
        file[k] ^= 0x15;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(floats), cmocka_unit_test(f8),          cmocka_unit_test(integers),
        cmocka_unit_test(shapes), cmocka_unit_test(directories), cmocka_unit_test(damaged),
    };
    int rc;
    scratch_begin();
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    scratch_end();
    return rc;
}
