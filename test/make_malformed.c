/* make_malformed.c - write the files of data/malformed and the list of what each must be refused with.
 *
 * usage: make_malformed DIR
 * Each case below builds one file and states the message by hand; DIR/EXPECT gets "file<TAB>message" lines.
 * The files are committed, test/unit/file/test_malformed.c opens each and compares. `make malformed` runs
 * this program again. */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static uint8_t buf[16 << 10];
static size_t len;
static const char *dir;
static FILE *expect;

static void raw(const void *p, size_t n)
{
    if (n > sizeof buf - len) abort();
    memcpy(buf + len, p, n);
    len += n;
}

static void u8(unsigned v)
{
    uint8_t b = (uint8_t)v;
    raw(&b, 1);
}

static void u32(uint32_t v)
{
    raw(&v, 4);
}

static void u64(uint64_t v)
{
    raw(&v, 8);
}

static void text(const char *s)
{
    raw(s, strlen(s));
}

static void str(const char *s)
{
    u64(strlen(s));
    text(s);
}

static void fill(int c, size_t n)
{
    while (n--) u8((unsigned)c);
}

static void save(const char *name)
{
    char path[512];
    FILE *f;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    f = fopen(path, "wb");
    if (!f || fwrite(buf, 1, len, f) != len || fclose(f)) {
        perror(path);
        exit(4);
    }
    len = 0;
}

static void want(const char *name, const char *message)
{
    fprintf(expect, "%s\t%s: %s\n", name, name, message);
}

static void done(const char *name, const char *message)
{
    save(name);
    want(name, message);
}

/* ---- GGUF ---- */

static void head(uint64_t n_tensors, uint64_t n_kv)
{
    text("GGUF");
    u32(3);
    u64(n_tensors);
    u64(n_kv);
}

static void tensor(const char *name, uint32_t type, uint64_t ne0, uint64_t ne1, uint64_t offset)
{
    str(name);
    u32(2);
    u64(ne0);
    u64(ne1);
    u32(type);
    u64(offset);
}

static void pad(size_t a)
{
    while (len % a) u8(0);
}

static void gguf_header(void)
{
    done("empty.gguf", "header: the file ends early (expected 4 bytes at offset 0, got 0)");
    text("GGML");
    u32(3);
    done("magic.gguf", "header: not a GGUF file (expected the letters GGUF at its start, the bytes 47 47 55 "
                       "46, got 47 47 4d 4c)");
    text("FUGG");
    u32(3);
    done("magic-swapped.gguf",
         "header: a byte-swapped file is not supported (expected the magic GGUF, got FUGG)");
    for (uint32_t v = 1; v <= 2; v++) {
        text("GGUF");
        u32(v);
        u32(0);
        u32(0);
        done(v == 1 ? "version-1.gguf" : "version-2.gguf",
             v == 1 ? "header: GGUF version 1 is not supported (expected 3)"
                    : "header: GGUF version 2 is not supported (expected 3)");
    }
    text("GGUF");
    u32(0x03000000);
    done("version-big-endian.gguf",
         "header: a big-endian file is not supported (expected version 3, got its bytes swapped: 3)");
    text("GGUF");
    u32(4);
    done("version-4.gguf", "header: unknown GGUF version (expected 3, got 4)");
    text("GGUF");
    u32(0);
    done("version-0.gguf", "header: unknown GGUF version (expected 3, got 0)");
    text("GGUF");
    u32(3);
    u64(0);
    u32(0);
    done("header-short.gguf", "header: the file ends early (expected 8 bytes at offset 16, got 4)");
    head(UINT64_MAX, 0);
    done("tensor-count.gguf",
         "header: more tensors than the file has room for (expected at most 0, got 18446744073709551615)");
    head(0, (uint64_t)1 << 62);
    fill(0, 30);
    done("key-count.gguf",
         "header: more keys than the file has room for (expected at most 2, got 4611686018427387904)");
}

static void gguf_keys(void)
{
    head(0, 1);
    u64(UINT64_MAX);
    fill('k', 12);
    done("key-length.gguf",
         "key 0: a string runs past the end of the file (expected 18446744073709551615 bytes, got 12)");
    head(0, 1);
    str("");
    u32(4);
    fill(0, 8);
    done("key-empty.gguf", "key 0: bad length of its name (expected 1 to 65535 bytes, got 0)");
    head(0, 1);
    str("a\nb");
    u32(4);
    u32(1);
    done("key-control.gguf", "key 0: a control character in its name (byte 1 is 0x0a)");
    head(0, 1);
    str("a.key");
    u32(13);
    u32(1);
    done("key-type.gguf", "key 'a.key': unknown value type (expected 0 to 12, got 13)");
    head(0, 1);
    str("a.key");
    u32(10);
    u32(1);
    done("key-short.gguf",
         "key 'a.key': the value runs past the end of the file (expected 1 x u64, got 4 bytes)");
    head(0, 1);
    str("a.key");
    u32(8);
    u64(100);
    text("short");
    done("key-string.gguf",
         "key 'a.key': a string runs past the end of the file (expected 100 bytes, got 5)");
    head(0, 1);
    str("a.key");
    u32(7);
    u8(2);
    u32(0);
    done("key-bool.gguf", "key 'a.key': a bool is neither 0 nor 1 (element 0 is 2)");
    head(0, 2);
    str("a.key");
    u32(4);
    u32(1);
    str("a.key");
    u32(4);
    u32(1);
    done("key-twice.gguf", "key 'a.key': stands twice in the file");
}

static void gguf_arrays(void)
{
    head(0, 1);
    str("a.key");
    u32(9);
    u32(9);
    u64(1);
    u32(4);
    u64(0);
    done("array-of-arrays.gguf", "key 'a.key': an array of arrays is not supported (1 of them)");
    head(0, 1);
    str("a.key");
    u32(9);
    u32(77);
    u64(1);
    done("array-type.gguf", "key 'a.key': unknown type of array elements (expected 0 to 12, got 77)");
    head(0, 1);
    str("a.key");
    u32(9);
    u32(10);
    u64((uint64_t)1 << 61); /* times 8 is 0 in 64 bits */
    u64(1);
    done("array-count.gguf",
         "key 'a.key': the array runs past the end of the file (expected 2305843009213693952 x u64, got 8 "
         "bytes)");
    head(0, 1);
    str("a.key");
    u32(9);
    u32(8);
    u64(3);
    str("one");
    str("2");
    done("array-strings.gguf",
         "key 'a.key': the array runs past the end of the file (expected 3 strings, got room for 2)");
    head(0, 1);
    str("a.key");
    u32(9);
    u32(8);
    u64(2);
    str("one");
    u64(9);
    text("12345678");
    done("array-string-long.gguf",
         "key 'a.key': a string runs past the end of the file (expected 9 bytes, got 8)");
    head(0, 1);
    str("a.key");
    u32(9);
    u32(7);
    u64(3);
    u8(1);
    u8(0);
    u8(255);
    done("array-bool.gguf", "key 'a.key': a bool is neither 0 nor 1 (element 2 is 255)");
}

static void alignment(const char *name, uint32_t v, const char *message)
{
    head(0, 1);
    str("general.alignment");
    u32(4);
    u32(v);
    done(name, message);
}

static void gguf_tensors(void)
{
    alignment("alignment-0.gguf", 0,
              "key 'general.alignment': bad alignment (expected a power of two, 8 or more, got 0)");
    alignment("alignment-4.gguf", 4,
              "key 'general.alignment': bad alignment (expected a power of two, 8 or more, got 4)");
    alignment("alignment-48.gguf", 48,
              "key 'general.alignment': bad alignment (expected a power of two, 8 or more, got 48)");
    head(0, 1);
    str("general.alignment");
    u32(10);
    u64(32);
    done("alignment-type.gguf", "key 'general.alignment': wrong type (expected u32, got u64)");
    head(1, 0);
    tensor("", 0, 1, 1, 0);
    done("tensor-nameless.gguf", "tensor 0: bad length of its name (expected 1 to 255 bytes, got 0)");
    head(1, 0);
    u64(256);
    fill('n', 256);
    fill(0, 40);
    done("tensor-name-long.gguf", "tensor 0: bad length of its name (expected 1 to 255 bytes, got 256)");
    for (int n = 0; n <= 5; n += 5) {
        head(1, 0);
        str("a.weight");
        u32((uint32_t)n);
        fill(1, 60);
        done(n ? "dims-5.gguf" : "dims-0.gguf",
             n ? "tensor 'a.weight': bad number of dimensions (expected 1 to 4, got 5)"
               : "tensor 'a.weight': bad number of dimensions (expected 1 to 4, got 0)");
    }
    head(1, 0);
    tensor("a.weight", 0, 4, 0, 0);
    done("dim-0.gguf", "tensor 'a.weight': bad dimension 1 (expected 1 or more, got 0)");
    head(1, 0);
    tensor("a.weight", 0, (uint64_t)-4, 1, 0);
    done("dim-negative.gguf", "tensor 'a.weight': bad dimension 0 (expected 1 or more, got -4)");
    head(1, 0);
    tensor("a.weight", 31, 32, 1, 0);
    done("type-withdrawn.gguf", "tensor 'a.weight': unknown tensor type 31");
    head(1, 0);
    tensor("a.weight", 4711, 32, 1, 0);
    done("type-unknown.gguf", "tensor 'a.weight': unknown tensor type 4711");
    head(1, 0);
    tensor("a.weight", 12, 128, 2, 0);
    done("block.gguf",
         "tensor 'a.weight': its rows are no whole blocks of Q4_K (expected a multiple of 256, got 128)");
    head(1, 0);
    tensor("a.weight", 0, (uint64_t)1 << 40, (uint64_t)1 << 40, 0);
    done("elements-overflow.gguf",
         "tensor 'a.weight': more elements than 63 bits count (dimension 1 is 1099511627776)");
    head(1, 0);
    tensor("a.weight", 0, (uint64_t)1 << 40, (uint64_t)1 << 22, 0);
    done("bytes-overflow.gguf",
         "tensor 'a.weight': more bytes than 64 bits count (4611686018427387904 elements of F32)");
}

static void gguf_places(void)
{
    head(1, 0);
    tensor("a.weight", 0, 8, 1, 16);
    pad(32);
    fill(0, 64);
    done("offset-unaligned.gguf",
         "tensor 'a.weight': its offset is not aligned (expected a multiple of 32, got 16)");
    head(2, 0);
    tensor("a.weight", 0, 8, 1, 0);
    tensor("a.weight", 0, 8, 1, 32);
    pad(32);
    fill(0, 64);
    done("tensor-twice.gguf", "tensor 'a.weight': stands twice in the file");
    head(2, 0);
    tensor("b.weight", 0, 8, 2, 0);
    tensor("a.weight", 0, 8, 1, 32);
    pad(32);
    fill(0, 64);
    done("overlap.gguf",
         "tensor 'a.weight': overlaps tensor 'b.weight' (expected an offset of 64 or more, got 32)");
    head(2, 0);
    tensor("a.weight", 0, 8, 1, 0);
    tensor("b.weight", 0, 8, 2, 32);
    pad(32);
    fill(0, 95);
    done("data-short.gguf",
         "tensor 'b.weight': its data runs past the end of the file (expected 64 bytes at offset 32 of "
         "the data section, got a section of 95 bytes)");
    head(1, 0);
    tensor("a.weight", 0, 8, 1, (uint64_t)-32);
    pad(32);
    fill(0, 32);
    done("offset-huge.gguf",
         "tensor 'a.weight': its data runs past the end of the file (expected 32 bytes at offset "
         "18446744073709551584 of the data section, got a section of 32 bytes)");
    head(1, 0);
    tensor("a.weight", 0, 8, 1, 0);
    done("data-missing.gguf",
         "tensor 'a.weight': its data runs past the end of the file (expected 32 bytes at offset 0 of "
         "the data section, got a section of 0 bytes)");
    head(1, 0);
    str("a.weight");
    u32(2);
    u64(8);
    u32(8);
    fill(0, 0);
    done("tensor-short.gguf", "header: more tensors than the file has room for (expected at most 0, got 1)");
    head(1, 1);
    str("a.key");
    u32(8);
    str("some text, so that there seems to be room");
    str("a.weight");
    u32(2);
    u64(8);
    u32(8);
    done("tensor-cut.gguf", "tensor 'a.weight': the file ends early (expected 8 bytes at offset 118, got 4)");
}

/* ---- safetensors ---- */

static void st(const char *json, size_t data, const char *name, const char *message)
{
    u64(strlen(json));
    text(json);
    fill(0, data);
    if (message)
        done(name, message);
    else
        save(name);
}

#define T(dtype, shape, offsets) "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void st_header(void)
{
    text("1234567");
    done("short.safetensors", "not a safetensors file: too short (expected 8 bytes or more, got 7)");
    head(0, 0);
    done("gguf.safetensors", "is a GGUF file (expected safetensors)");
    u64(((uint64_t)100 << 20) + 1);
    text("{}");
    done("header-huge.safetensors",
         "header: not a safetensors file, or a header past the limit (expected at most "
         "104857600 bytes, got 104857601)");
    u64(3);
    text("{}");
    done("header-short.safetensors", "header: the file ends early (expected 3 bytes, got 2)");
    u64(0);
    done("header-empty.safetensors", "header: not a safetensors file (expected an object after 8 bytes)");
    st("[]", 0, "header-array.safetensors",
       "header: not a safetensors file (expected an object after 8 bytes)");
    st("{\"a\":}", 0, "json.safetensors", "header: bad JSON in line 1, column 6: unexpected token near '}'");
    st("{} {}", 0, "json-twice.safetensors",
       "header: bad JSON in line 1, column 4: end of file expected near '{'");
    st("{\"a\":" T("U8", "[0]", "[0,0]") ",\"a\":" T("U8", "[0]", "[0,0]") "}", 0, "tensor-twice.safetensors",
       "header: bad JSON in line 1, column 56: duplicate object key near '\"a\"'");
    st("{\"__metadata__\":[]}", 0, "metadata.safetensors", "__metadata__: is no object");
    st("{\"__metadata__\":{\"format\":1}}", 0, "metadata-value.safetensors",
       "__metadata__: 'format' is no string");
}

static void st_entries(void)
{
    st("{\"a\":7}", 0, "entry.safetensors", "tensor 'a': its entry is no object");
    st("{\"\":" T("U8", "[1]", "[0,1]") "}", 1, "nameless.safetensors", "a tensor without a name");
    st("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"sparse\":true}}", 1,
       "member.safetensors", "tensor 'a': unknown member 'sparse' (expected dtype, shape and data_offsets)");
    st("{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "dtype-missing.safetensors",
       "tensor 'a': dtype: missing, or no string");
    st("{\"a\":" T("F4", "[1]", "[0,1]") "}", 1, "dtype-f4.safetensors",
       "tensor 'a': unsupported dtype 'F4' (expected F64, F32, F16, BF16, F8_E4M3, F8_E5M2, I64, I32, I16, "
       "I8, U8 or BOOL)");
    st("{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, "shape-missing.safetensors",
       "tensor 'a': shape: missing, or no array");
    st("{\"a\":" T("U8", "[1,-1]", "[0,1]") "}", 1, "shape-negative.safetensors",
       "tensor 'a': shape: dimension 1 is no whole number of 0 or more");
    st("{\"a\":" T("U8", "[1.0]", "[0,1]") "}", 1, "shape-real.safetensors",
       "tensor 'a': shape: dimension 0 is no whole number of 0 or more");
    st("{\"a\":" T("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]") "}", 1, "shape-9.safetensors",
       "tensor 'a': shape: too many dimensions (expected at most 8, got 9)");
    st("{\"a\":" T("F32", "[4294967296,4294967296]", "[0,0]") "}", 0, "shape-overflow.safetensors",
       "tensor 'a': shape: more elements than 63 bits count");
    st("{\"a\":" T("F32", "[4611686018427387904]", "[0,0]") "}", 0, "bytes-overflow.safetensors",
       "tensor 'a': its bytes do not fit its shape (expected 4611686018427387904 x 4, got 0)");
}

static void st_ranges(void)
{
    st("{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "offsets-missing.safetensors",
       "tensor 'a': data_offsets: missing, or not two whole numbers");
    st("{\"a\":" T("U8", "[1]", "[0,1,2]") "}", 1, "offsets-3.safetensors",
       "tensor 'a': data_offsets: missing, or not two whole numbers");
    st("{\"a\":" T("U8", "[1]", "[1,0]") "}", 1, "offsets-reversed.safetensors",
       "tensor 'a': data_offsets: out of range (expected 0 <= begin <= end <= 1, got 1 and 0)");
    st("{\"a\":" T("U8", "[9]", "[0,9]") "}", 8, "data-short.safetensors",
       "tensor 'a': data_offsets: out of range (expected 0 <= begin <= end <= 8, got 0 and 9)");
    st("{\"a\":" T("BF16", "[2,2]", "[0,7]") "}", 7, "bytes.safetensors",
       "tensor 'a': its bytes do not fit its shape (expected 4 x 2, got 7)");
    st("{\"a\":" T("U8", "[2]", "[0,2]") ",\"b\":" T("U8", "[2]", "[4,6]") "}", 6, "hole.safetensors",
       "tensor 'b': a hole before its data (expected to begin at 2 of the data, got 4)");
    st("{\"a\":" T("U8", "[2]", "[2,4]") "}", 4, "hole-first.safetensors",
       "tensor 'a': a hole before its data (expected to begin at 0 of the data, got 2)");
    st("{\"a\":" T("U8", "[4]", "[0,4]") ",\"b\":" T("U8", "[4]", "[2,6]") "}", 6, "overlap.safetensors",
       "tensor 'b': overlaps the tensor before it (expected to begin at 4 of the data, got 2)");
    st("{\"a\":" T("U8", "[4]", "[0,4]") "}", 6, "trailing.safetensors",
       "bytes after the last tensor (expected 4 bytes of data, got 6)");
}

/* A directory with an index and shards one.safetensors (a) and two.safetensors (second). */
static void shards_of(const char *name, const char *second, const char *index, const char *message)
{
    char path[512], json[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (mkdir(path, 0777) && errno != EEXIST) {
        perror(path);
        exit(4);
    }
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", name);
    text(index);
    save(path);
    snprintf(path, sizeof path, "%s/one.safetensors", name);
    st("{\"a\":" T("U8", "[1]", "[0,1]") "}", 1, path, NULL);
    snprintf(path, sizeof path, "%s/two.safetensors", name);
    snprintf(json, sizeof json, "{\"%s\":" T("U8", "[1]", "[0,1]") "}", second);
    st(json, 1, path, NULL);
    fprintf(expect, "%s\t%s\n", name, message);
}

static void sharded(const char *name, const char *index, const char *message)
{
    shards_of(name, "b", index, message);
}

static void st_shards(void)
{
    sharded("index-map", "{\"metadata\":{}}",
            "index-map/model.safetensors.index.json: weight_map: missing, or no object");
    sharded("index-empty", "{\"weight_map\":{}}",
            "index-empty/model.safetensors.index.json: weight_map: is empty");
    sharded("index-value", "{\"weight_map\":{\"a\":1}}",
            "index-value/model.safetensors.index.json: weight_map: the file of 'a' is no string");
    sharded("index-path", "{\"weight_map\":{\"a\":\"../one.safetensors\"}}",
            "index-path/model.safetensors.index.json: weight_map: '../one.safetensors' is no name of a file "
            "beside the index (tensor 'a')");
    sharded("index-shard", "{\"weight_map\":{\"a\":\"one.safetensors\",\"b\":\"three.safetensors\"}}",
            "index-shard/model.safetensors.index.json: shard 'three.safetensors': "
            "index-shard/three.safetensors: No such file or directory");
    sharded(
        "index-tensor",
        "{\"weight_map\":{\"a\":\"one.safetensors\",\"b\":\"two.safetensors\",\"c\":\"two.safetensors\"}}",
        "index-tensor/model.safetensors.index.json: weight_map: tensor 'c' is not in its shard "
        "'two.safetensors'");
    sharded("index-lacks", "{\"weight_map\":{\"a\":\"one.safetensors\",\"c\":\"two.safetensors\"}}",
            "index-lacks/two.safetensors: tensor 'b': the index does not name it "
            "(index-lacks/model.safetensors.index.json)");
    sharded(
        "index-swapped", "{\"weight_map\":{\"a\":\"two.safetensors\",\"b\":\"one.safetensors\"}}",
        "index-swapped/one.safetensors: tensor 'a': stands in another shard than the index says (expected "
        "two.safetensors)");
    shards_of("index-twice", "a", "{\"weight_map\":{\"a\":\"one.safetensors\",\"b\":\"two.safetensors\"}}",
              "index-twice/two.safetensors: tensor 'a': stands in index-twice/one.safetensors too");
    sharded("index-json", "{\"weight_map\":{\"a\":\"one.safetensors\"}",
            "index-json/model.safetensors.index.json: bad JSON in line 1, column 37: '}' expected near end "
            "of file");
}

int main(int argc, char **argv)
{
    char path[512];
    if (argc != 2) {
        fprintf(stderr, "usage: make_malformed DIR\n");
        return 2;
    }
    dir = argv[1];
    snprintf(path, sizeof path, "%s/EXPECT", dir);
    expect = fopen(path, "w");
    if (!expect) {
        perror(path);
        return 4;
    }
    gguf_header();
    gguf_keys();
    gguf_arrays();
    gguf_tensors();
    gguf_places();
    st_header();
    st_entries();
    st_ranges();
    st_shards();
    text("1234567");
    done("tokens.i32", "not a token stream: its size is no multiple of 4 (expected int32 ids, got 7 bytes)");
    return fclose(expect) ? 4 : 0;
}
