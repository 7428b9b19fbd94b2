/* gguf_read.c - the reader of gguf.h.
 *
 * One cursor walks the mapped bytes. Nothing that the file says is believed: a length is compared with the
 * bytes that remain before it is used or multiplied, a count before memory is taken for it. Every message
 * names the file, then the key or tensor (by name once it is known, before that by number), then what was
 * expected and what was found. */
#include "gguf_impl.h"

#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "../base/io.h"
#include "../base/mem.h"

#define MAX_KEY 65535 /* the limit of the specification */
#define MAX_TENSOR_NAME                                                                                      \
    255                 /* the specification says 64; longer names exist in the wild, unbounded ones do not */
#define MIN_KV_BYTES 14 /* u64 length, one byte of key, u32 type, one byte of value */
#define MIN_TENSOR_BYTES 33 /* u64 length, one byte of name, u32 n_dims, one i64, u32 type, u64 offset */

struct cursor {
    const uint8_t *data;
    uint64_t size, pos;
    const char *path;
    char subject[112]; /* "key 'general.name'", "tensor 3", ... */
    struct err *e;
};

static const struct {
    const char *name;
    uint8_t size; /* bytes of a value; 0: no fixed size */
} value_type[] = {
    [GGUF_U8] = {"u8", 1},       [GGUF_I8] = {"i8", 1},     [GGUF_U16] = {"u16", 2},
    [GGUF_I16] = {"i16", 2},     [GGUF_U32] = {"u32", 4},   [GGUF_I32] = {"i32", 4},
    [GGUF_F32] = {"f32", 4},     [GGUF_BOOL] = {"bool", 1}, [GGUF_STRING] = {"string", 0},
    [GGUF_ARRAY] = {"array", 0}, [GGUF_U64] = {"u64", 8},   [GGUF_I64] = {"i64", 8},
    [GGUF_F64] = {"f64", 8},
};
#define N_VALUE_TYPES (sizeof value_type / sizeof *value_type)

const char *gguf_type_name(uint32_t type)
{
    return type < N_VALUE_TYPES ? value_type[type].name : "unknown";
}

bool gguf_str_is(struct gguf_str a, const char *b)
{
    return a.n == strlen(b) && !memcmp(a.s, b, (size_t)a.n);
}

/* ---- the cursor ---- */

/* "path: subject: what"; always -1. */
__attribute__((format(printf, 2, 3))) static int fail(struct cursor *c, const char *fmt, ...)
{
    char what[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    err_set(c->e, ERR_FORMAT, "%s: %s: %s", c->path, c->subject, what);
    return -1;
}

static int no_memory(struct cursor *c, const char *what)
{
    return err_set(c->e, ERR_IO, "%s: out of memory (%s)", c->path, what);
}

static int take(struct cursor *c, uint64_t n, const uint8_t **p)
{
    if (n > c->size - c->pos) {
        fail(c, "the file ends early (expected %" PRIu64 " bytes at offset %" PRIu64 ", got %" PRIu64 ")", n,
             c->pos, c->size - c->pos);
        return -1;
    }
    *p = c->data + c->pos;
    c->pos += n;
    return 0;
}

static int take_u32(struct cursor *c, uint32_t *v)
{
    const uint8_t *p;
    if (take(c, 4, &p)) return -1;
    memcpy(v, p, 4);
    return 0;
}

static int take_u64(struct cursor *c, uint64_t *v)
{
    const uint8_t *p;
    if (take(c, 8, &p)) return -1;
    memcpy(v, p, 8);
    return 0;
}

static int take_str(struct cursor *c, struct gguf_str *s)
{
    const uint8_t *p;
    uint64_t n;
    if (take_u64(c, &n)) return -1;
    if (n > c->size - c->pos)
        return fail(c, "a string runs past the end of the file (expected %" PRIu64 " bytes, got %" PRIu64 ")",
                    n, c->size - c->pos);
    if (take(c, n, &p)) return -1;
    s->s = (const char *)p;
    s->n = n;
    return 0;
}

/* A key or a tensor name: 1 to cap bytes, none of them a control character (messages print it; a NUL would
 * cut it). */
static int take_name(struct cursor *c, uint64_t cap, struct arena *a, char **name)
{
    struct gguf_str s;
    if (take_str(c, &s)) return -1;
    if (s.n < 1 || s.n > cap)
        return fail(c, "bad length of its name (expected 1 to %" PRIu64 " bytes, got %" PRIu64 ")", cap, s.n);
    for (uint64_t i = 0; i < s.n; i++) {
        unsigned char b = (unsigned char)s.s[i];
        if (b < 0x20 || b == 0x7f)
            return fail(c, "a control character in its name (byte %" PRIu64 " is 0x%02x)", i, b);
    }
    *name = arena_strndup(a, s.s, (size_t)s.n);
    return *name ? 0 : no_memory(c, "names");
}

/* ---- keys ---- */

static int read_strings(struct cursor *c, struct gguf *g, struct gguf_kv *kv)
{
    /* Each string has at least its length, so that the count is bounded before memory is taken for it. */
    if (kv->count > (c->size - c->pos) / 8)
        return fail(c,
                    "the array runs past the end of the file (expected %" PRIu64
                    " strings, got room for %" PRIu64 ")",
                    kv->count, (c->size - c->pos) / 8);
    kv->strings = arena_alloc(g->arena, (size_t)kv->count, sizeof *kv->strings);
    if (!kv->strings) return no_memory(c, "strings");
    for (uint64_t i = 0; i < kv->count; i++)
        if (take_str(c, &kv->strings[i])) return -1;
    return 0;
}

static int check_bools(struct cursor *c, const struct gguf_kv *kv)
{
    for (uint64_t i = 0; i < kv->count; i++)
        if (kv->data[i] > 1)
            return fail(c, "a bool is neither 0 nor 1 (element %" PRIu64 " is %u)", i, kv->data[i]);
    return 0;
}

/* The elements of kv, of type elem, from the cursor. */
static int read_elements(struct cursor *c, struct gguf *g, struct gguf_kv *kv, uint32_t elem)
{
    uint64_t begin = c->pos, size;
    if (elem == GGUF_STRING) {
        if (read_strings(c, g, kv)) return -1;
    } else {
        size = value_type[elem].size;
        if (kv->count > (c->size - c->pos) / size)
            return fail(
                c, "the %s runs past the end of the file (expected %" PRIu64 " x %s, got %" PRIu64 " bytes)",
                kv->type == GGUF_ARRAY ? "array" : "value", kv->count, gguf_type_name(elem),
                c->size - c->pos);
        c->pos += kv->count * size;
    }
    kv->data = c->data + begin;
    kv->bytes = c->pos - begin;
    return elem == GGUF_BOOL ? check_bools(c, kv) : 0;
}

static int read_kv(struct cursor *c, struct gguf *g, uint64_t i)
{
    struct gguf_kv *kv = &g->kv[i];
    snprintf(c->subject, sizeof c->subject, "key %" PRIu64, i);
    if (take_name(c, MAX_KEY, g->arena, &kv->key)) return -1;
    snprintf(c->subject, sizeof c->subject, "key '%.80s'", kv->key);
    if (take_u32(c, &kv->type)) return -1;
    if (kv->type >= N_VALUE_TYPES)
        return fail(c, "unknown value type (expected 0 to 12, got %" PRIu32 ")", kv->type);
    kv->elem = kv->type;
    kv->count = 1;
    if (kv->type != GGUF_ARRAY) return read_elements(c, g, kv, kv->type);
    if (take_u32(c, &kv->elem) || take_u64(c, &kv->count)) return -1;
    if (kv->elem == GGUF_ARRAY)
        return fail(c, "an array of arrays is not supported (%" PRIu64 " of them)", kv->count);
    if (kv->elem >= N_VALUE_TYPES)
        return fail(c, "unknown type of array elements (expected 0 to 12, got %" PRIu32 ")", kv->elem);
    return read_elements(c, g, kv, kv->elem);
}

static int by_key(const void *a, const void *b)
{
    return strcmp((*(struct gguf_kv *const *)a)->key, (*(struct gguf_kv *const *)b)->key);
}

void gguf_sort_keys(struct gguf *g)
{
    for (uint64_t i = 0; i < g->n_kv; i++) g->kv_by_name[i] = &g->kv[i];
    qsort(g->kv_by_name, (size_t)g->n_kv, sizeof *g->kv_by_name, by_key);
}

static int read_kvs(struct cursor *c, struct gguf *g)
{
    const struct gguf_kv *kv;
    g->kv = arena_alloc(g->arena, (size_t)g->n_kv, sizeof *g->kv);
    g->kv_by_name = arena_alloc(g->arena, (size_t)g->n_kv, sizeof *g->kv_by_name);
    if (!g->kv || !g->kv_by_name) return no_memory(c, "keys");
    for (uint64_t i = 0; i < g->n_kv; i++)
        if (read_kv(c, g, i)) return -1;
    gguf_sort_keys(g);
    for (uint64_t i = 1; i < g->n_kv; i++)
        if (!by_key(&g->kv_by_name[i - 1], &g->kv_by_name[i]))
            return err_set(c->e, ERR_FORMAT, "%s: key '%.80s': stands twice in the file", c->path,
                           g->kv_by_name[i]->key);
    g->alignment = 32;
    kv = gguf_find(g, "general.alignment");
    if (!kv) return 0;
    snprintf(c->subject, sizeof c->subject, "key 'general.alignment'");
    if (kv->type != GGUF_U32) return fail(c, "wrong type (expected u32, got %s)", gguf_type_name(kv->type));
    memcpy(&g->alignment, kv->data, 4);
    if (g->alignment < 8 || g->alignment & (g->alignment - 1))
        return fail(c, "bad alignment (expected a power of two, 8 or more, got %" PRIu32 ")", g->alignment);
    return 0;
}

/* ---- tensors ---- */

/* bytes of a tensor from its type and dims, every product checked. */
static int tensor_bytes(struct cursor *c, struct gguf_tensor *t)
{
    const struct kn_type_info *info = kn_type_info(t->type);
    uint64_t n = 1;
    if (!info) return fail(c, "unknown tensor type %" PRIu32, t->type);
    if (t->ne[0] % info->block)
        return fail(
            c, "its rows are no whole blocks of %s (expected a multiple of %" PRIu32 ", got %" PRId64 ")",
            info->name, info->block, t->ne[0]);
    for (uint32_t d = 0; d < t->n_dims; d++)
        if (__builtin_mul_overflow(n, (uint64_t)t->ne[d], &n) || n > INT64_MAX)
            return fail(c, "more elements than 63 bits count (dimension %" PRIu32 " is %" PRId64 ")", d,
                        t->ne[d]);
    if (__builtin_mul_overflow(n / info->block, (uint64_t)info->bytes, &t->bytes))
        return fail(c, "more bytes than 64 bits count (%" PRIu64 " elements of %s)", n, info->name);
    return 0;
}

static int read_tensor(struct cursor *c, struct gguf *g, uint64_t i)
{
    struct gguf_tensor *t = &g->tensor[i];
    snprintf(c->subject, sizeof c->subject, "tensor %" PRIu64, i);
    if (take_name(c, MAX_TENSOR_NAME, g->arena, &t->name)) return -1;
    snprintf(c->subject, sizeof c->subject, "tensor '%.80s'", t->name);
    if (take_u32(c, &t->n_dims)) return -1;
    if (t->n_dims < 1 || t->n_dims > GGUF_MAX_DIMS)
        return fail(c, "bad number of dimensions (expected 1 to %d, got %" PRIu32 ")", GGUF_MAX_DIMS,
                    t->n_dims);
    for (uint32_t d = 0; d < GGUF_MAX_DIMS; d++) {
        uint64_t v = 1;
        if (d < t->n_dims && take_u64(c, &v)) return -1;
        t->ne[d] = (int64_t)v;
        if (t->ne[d] <= 0)
            return fail(c, "bad dimension %" PRIu32 " (expected 1 or more, got %" PRId64 ")", d, t->ne[d]);
    }
    if (take_u32(c, &t->type) || take_u64(c, &t->offset)) return -1;
    if (t->offset % g->alignment)
        return fail(c, "its offset is not aligned (expected a multiple of %" PRIu32 ", got %" PRIu64 ")",
                    g->alignment, t->offset);
    if (tensor_bytes(c, t)) return -1;
    t->n_dims = gguf_n_dims(t->n_dims, t->ne);
    return 0;
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(struct gguf_tensor *const *)a)->name, (*(struct gguf_tensor *const *)b)->name);
}

static int by_offset(const void *a, const void *b)
{
    const struct gguf_tensor *x = *(struct gguf_tensor *const *)a, *y = *(struct gguf_tensor *const *)b;
    return x->offset != y->offset ? (x->offset < y->offset ? -1 : 1) : by_name(a, b);
}

void gguf_sort_tensors(struct gguf *g)
{
    for (uint64_t i = 0; i < g->n_tensors; i++) g->tensor_by_name[i] = &g->tensor[i];
    qsort(g->tensor_by_name, (size_t)g->n_tensors, sizeof *g->tensor_by_name, by_name);
}

static int read_tensors(struct cursor *c, struct gguf *g)
{
    g->tensor = arena_alloc(g->arena, (size_t)g->n_tensors, sizeof *g->tensor);
    g->tensor_by_name = arena_alloc(g->arena, (size_t)g->n_tensors, sizeof *g->tensor_by_name);
    if (!g->tensor || !g->tensor_by_name) return no_memory(c, "tensors");
    for (uint64_t i = 0; i < g->n_tensors; i++)
        if (read_tensor(c, g, i)) return -1;
    gguf_sort_tensors(g);
    for (uint64_t i = 1; i < g->n_tensors; i++)
        if (!by_name(&g->tensor_by_name[i - 1], &g->tensor_by_name[i]))
            return err_set(c->e, ERR_FORMAT, "%s: tensor '%.80s': stands twice in the file", c->path,
                           g->tensor_by_name[i]->name);
    return 0;
}

/* Where the data of each tensor lies: inside of the file, and in nothing that another one has. */
static int place_tensors(struct cursor *c, struct gguf *g)
{
    uint64_t room, over = c->pos % g->alignment;
    struct gguf_tensor **order = g->tensor_by_name; /* by offset for a moment, then by name again */
    if (__builtin_add_overflow(c->pos, over ? g->alignment - over : 0, &g->data_offset))
        return fail(c, "the data section begins past 64 bits (offset %" PRIu64 ")", c->pos);
    if (!g->n_tensors) return 0;
    room = g->data_offset <= c->size ? c->size - g->data_offset : 0;
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        struct gguf_tensor *t = &g->tensor[i];
        snprintf(c->subject, sizeof c->subject, "tensor '%.80s'", t->name);
        if (t->offset > room || t->bytes > room - t->offset) {
            fail(c,
                 "its data runs past the end of the file (expected %" PRIu64 " bytes at offset %" PRIu64
                 " of the data section, got a section of %" PRIu64 " bytes)",
                 t->bytes, t->offset, room);
            return err_hint(c->e, "the file is truncated: a download that did not end?");
        }
        t->data = c->data + g->data_offset + t->offset;
    }
    qsort(order, (size_t)g->n_tensors, sizeof *order, by_offset);
    for (uint64_t i = 1; i < g->n_tensors; i++) {
        const struct gguf_tensor *a = order[i - 1], *b = order[i];
        snprintf(c->subject, sizeof c->subject, "tensor '%.80s'", b->name);
        if (a->offset + a->bytes > b->offset)
            return fail(
                c, "overlaps tensor '%.80s' (expected an offset of %" PRIu64 " or more, got %" PRIu64 ")",
                a->name, a->offset + a->bytes, b->offset);
    }
    qsort(order, (size_t)g->n_tensors, sizeof *order, by_name);
    return 0;
}

/* ---- the file ---- */

/* The command that makes a GGUF of path, a directory or a safetensors file. */
static int hint_convert(const char *path, struct err *e)
{
    char in[300], out[300], stem[256];
    size_t n = strlen(path);
    const char *base;
    while (n > 1 && path[n - 1] == '/') n--;
    if (n > 12 && !memcmp(path + n - 12, ".safetensors", 12)) n -= 12;
    if (n + 6 > sizeof stem) return -1; /* too long to be of use in a message */
    snprintf(stem, sizeof stem, "%.*s", (int)n, path);
    base = strrchr(stem, '/') ? strrchr(stem, '/') + 1 : stem;
    if (!strcmp(base, ".") || !strcmp(base, "..") || !*base)
        snprintf(stem, sizeof stem, "model.gguf");
    else
        strcat(stem, ".gguf");
    return err_hint(e, "dflash-convert %s -o %s", io_shell_word(path, in, sizeof in),
                    io_shell_word(stem, out, sizeof out));
}

void gguf_hint_target(const char *target, struct err *e)
{
    char word[300];
    size_t n = strlen(e->hint);
    if (!strncmp(e->hint, "dflash-convert ", 15))
        snprintf(e->hint + n, sizeof e->hint - n, " --target %s", io_shell_word(target, word, sizeof word));
}

static int read_magic(struct cursor *c, struct gguf *g)
{
    const uint8_t *p;
    snprintf(c->subject, sizeof c->subject, "header");
    if (take(c, 4, &p)) return -1;
    if (memcmp(p, "GGUF", 4)) {
        if (!memcmp(p, "FUGG", 4))
            return fail(c, "a byte-swapped file is not supported (expected the magic GGUF, got FUGG)");
        fail(c,
             "not a GGUF file (expected the letters GGUF at its start, the bytes 47 47 55 46, got %02x %02x "
             "%02x %02x)",
             p[0], p[1], p[2], p[3]);
        if (c->size > 8 && p[8] == '{') return hint_convert(c->path, c->e);
        return io_hint_file(p, c->size, c->size, c->e);
    }
    if (take_u32(c, &g->version)) return -1;
    if (g->version == 1 || g->version == 2) {
        fail(c, "GGUF version %" PRIu32 " is not supported (expected 3)", g->version);
        return err_hint(c->e, "make the file anew with a converter from after August 2023");
    }
    if (g->version && !(g->version & 0xffff))
        return fail(
            c, "a big-endian file is not supported (expected version 3, got its bytes swapped: %" PRIu32 ")",
            __builtin_bswap32(g->version));
    if (g->version != 3) return fail(c, "unknown GGUF version (expected 3, got %" PRIu32 ")", g->version);
    if (take_u64(c, &g->n_tensors) || take_u64(c, &g->n_kv)) return -1;
    if (g->n_tensors > (c->size - c->pos) / MIN_TENSOR_BYTES)
        return fail(c,
                    "more tensors than the file has room for (expected at most %" PRIu64 ", got %" PRIu64 ")",
                    (c->size - c->pos) / MIN_TENSOR_BYTES, g->n_tensors);
    if (g->n_kv > (c->size - c->pos) / MIN_KV_BYTES)
        return fail(c, "more keys than the file has room for (expected at most %" PRIu64 ", got %" PRIu64 ")",
                    (c->size - c->pos) / MIN_KV_BYTES, g->n_kv);
    return 0;
}

/* g->map is set; parses it. */
static int parse(struct gguf *g, struct err *e)
{
    struct cursor c = {.data = g->map.data, .size = g->map.size, .path = g->map.path, .e = e};
    g->arena = arena_new();
    if (!g->arena) return no_memory(&c, "arena");
    g->n_parts = 1;
    g->bytes = g->map.size;
    if (read_magic(&c, g) || read_kvs(&c, g)) return -1;
    if (read_tensors(&c, g)) return -1;
    return place_tensors(&c, g);
}

int gguf_open_one(struct gguf **out, const char *path, struct err *e)
{
    struct gguf *g;
    struct stat st;
    *out = NULL;
    if (!stat(path, &st) && S_ISDIR(st.st_mode)) {
        err_set(e, ERR_FORMAT, "%s: is a directory (expected a GGUF file)", path);
        return hint_convert(path, e);
    }
    g = mem_calloc(1, sizeof *g);
    if (!g) return err_set(e, ERR_IO, "%s: out of memory (reader)", path);
    if (io_map_open(&g->map, path, e) || parse(g, e)) {
        gguf_close(g);
        return -1;
    }
    io_map_keep(&g->map);
    *out = g;
    return 0;
}

int gguf_open(struct gguf **out, const char *path, struct err *e)
{
    if (gguf_open_one(out, path, e)) return -1;
    if (gguf_join(*out, e) == 0) return 0;
    gguf_close(*out);
    *out = NULL;
    return -1;
}

int gguf_open_memory(struct gguf **out, const void *data, uint64_t size, const char *name, struct err *e)
{
    struct gguf *g;
    *out = NULL;
    g = mem_calloc(1, sizeof *g);
    if (!g) return err_set(e, ERR_IO, "%s: out of memory (reader)", name);
    g->map.path = mem_strdup(name);
    if (!g->map.path) {
        mem_free(g);
        return err_set(e, ERR_IO, "%s: out of memory (name)", name);
    }
    g->map.data = data;
    g->map.size = size;
    g->borrowed = true;
    if (parse(g, e) || gguf_whole(g, e)) {
        gguf_close(g);
        return -1;
    }
    *out = g;
    return 0;
}

void gguf_close(struct gguf *g)
{
    if (!g) return;
    for (uint32_t i = 1; i < g->n_parts; i++) gguf_close(g->part[i]);
    if (g->borrowed) g->map.data = NULL; /* the caller's memory, no map */
    io_map_close(&g->map);
    arena_free(g->arena);
    mem_free(g);
}

/* ---- lookups ---- */

static int key_is(const void *key, const void *p)
{
    return strcmp(key, (*(struct gguf_kv *const *)p)->key);
}

const struct gguf_kv *gguf_find(const struct gguf *g, const char *key)
{
    struct gguf_kv **p = bsearch(key, g->kv_by_name, (size_t)g->n_kv, sizeof *g->kv_by_name, key_is);
    return p ? *p : NULL;
}

static int name_is(const void *name, const void *p)
{
    return strcmp(name, (*(struct gguf_tensor *const *)p)->name);
}

const struct gguf_tensor *gguf_tensor(const struct gguf *g, const char *name)
{
    struct gguf_tensor **p =
        bsearch(name, g->tensor_by_name, (size_t)g->n_tensors, sizeof *g->tensor_by_name, name_is);
    return p ? *p : NULL;
}

static int wrong_type(const struct gguf *g, const struct gguf_kv *kv, const char *expected, struct err *e)
{
    if (kv->type == GGUF_ARRAY)
        return err_set(e, ERR_FORMAT, "%s: key '%s': wrong type (expected %s, got an array of %s)",
                       g->map.path, kv->key, expected, gguf_type_name(kv->elem));
    return err_set(e, ERR_FORMAT, "%s: key '%s': wrong type (expected %s, got %s)", g->map.path, kv->key,
                   expected, gguf_type_name(kv->type));
}

int64_t gguf_array_i64(const struct gguf_kv *kv, uint64_t i)
{
    int16_t s16;
    uint16_t u16;
    int32_t s32;
    uint32_t u32;
    int64_t s64;
    const uint8_t *p = kv->data;
    switch (kv->elem) {
    case GGUF_U8:
    case GGUF_BOOL: return p[i];
    case GGUF_I8: return (int8_t)p[i];
    case GGUF_U16: memcpy(&u16, p + 2 * i, 2); return u16;
    case GGUF_I16: memcpy(&s16, p + 2 * i, 2); return s16;
    case GGUF_U32: memcpy(&u32, p + 4 * i, 4); return u32;
    case GGUF_I32: memcpy(&s32, p + 4 * i, 4); return s32;
    case GGUF_U64:
    case GGUF_I64: memcpy(&s64, p + 8 * i, 8); return s64;
    default: return 0;
    }
}

double gguf_array_f64(const struct gguf_kv *kv, uint64_t i)
{
    float f;
    double d;
    if (kv->elem == GGUF_F32) {
        memcpy(&f, kv->data + 4 * i, 4);
        return f;
    }
    if (kv->elem == GGUF_F64) {
        memcpy(&d, kv->data + 8 * i, 8);
        return d;
    }
    return (double)gguf_array_i64(kv, i);
}

static bool is_integer(uint32_t t)
{
    return t <= GGUF_I32 || t == GGUF_U64 || t == GGUF_I64;
}

/* The value of an integer key, in lo..hi. A u64 past INT64_MAX is above every hi but that of gguf_get_u64. */
static int get_int(const struct gguf *g, const char *key, int64_t lo, int64_t hi, int64_t *v, struct err *e)
{
    const struct gguf_kv *kv = gguf_find(g, key);
    if (!kv) return 1;
    if (!is_integer(kv->type)) return wrong_type(g, kv, "an integer", e);
    *v = gguf_array_i64(kv, 0);
    if (kv->type == GGUF_U64 && *v < 0)
        return err_set(e, ERR_FORMAT,
                       "%s: key '%s': out of range (expected %" PRId64 " to %" PRId64 ", got %" PRIu64 ")",
                       g->map.path, key, lo, hi, (uint64_t)*v);
    if (*v < lo || *v > hi)
        return err_set(e, ERR_FORMAT,
                       "%s: key '%s': out of range (expected %" PRId64 " to %" PRId64 ", got %" PRId64 ")",
                       g->map.path, key, lo, hi, *v);
    return 0;
}

int gguf_get_u32(const struct gguf *g, const char *key, uint32_t *v, struct err *e)
{
    int64_t x = 0;
    int r = get_int(g, key, 0, UINT32_MAX, &x, e);
    if (!r) *v = (uint32_t)x;
    return r;
}

int gguf_get_i32(const struct gguf *g, const char *key, int32_t *v, struct err *e)
{
    int64_t x = 0;
    int r = get_int(g, key, INT32_MIN, INT32_MAX, &x, e);
    if (!r) *v = (int32_t)x;
    return r;
}

int gguf_get_u64(const struct gguf *g, const char *key, uint64_t *v, struct err *e)
{
    const struct gguf_kv *kv = gguf_find(g, key);
    int64_t x = 0;
    int r;
    if (kv && kv->type == GGUF_U64) {
        memcpy(v, kv->data, 8);
        return 0;
    }
    r = get_int(g, key, 0, INT64_MAX, &x, e);
    if (!r) *v = (uint64_t)x;
    return r;
}

int gguf_get_f32(const struct gguf *g, const char *key, float *v, struct err *e)
{
    const struct gguf_kv *kv = gguf_find(g, key);
    double d;
    if (!kv) return 1;
    if (kv->type != GGUF_F32 && kv->type != GGUF_F64) return wrong_type(g, kv, "f32 or f64", e);
    d = gguf_array_f64(kv, 0);
    if (isfinite(d) && fabs(d) > (double)FLT_MAX)
        return err_set(e, ERR_FORMAT, "%s: key '%s': out of range of f32 (got %g)", g->map.path, key, d);
    *v = (float)d;
    return 0;
}

int gguf_get_bool(const struct gguf *g, const char *key, bool *v, struct err *e)
{
    const struct gguf_kv *kv = gguf_find(g, key);
    if (!kv) return 1;
    if (kv->type != GGUF_BOOL) return wrong_type(g, kv, "bool", e);
    *v = kv->data[0] != 0;
    return 0;
}

int gguf_get_str(const struct gguf *g, const char *key, struct gguf_str *v, struct err *e)
{
    const struct gguf_kv *kv = gguf_find(g, key);
    if (!kv) return 1;
    if (kv->type != GGUF_STRING) return wrong_type(g, kv, "string", e);
    *v = kv->strings[0];
    return 0;
}
