/* safetensors.c - see safetensors.h. Source: the safetensors format (docs/safetensors.md).
 *
 * A file is u64 n, n bytes of JSON, data. The JSON maps a tensor's name to its dtype, shape and [begin, end)
 * in the data; together the ranges cover the data without overlap or hole. */
#include "safetensors.h"

#include <dirent.h>
#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../kernels/kernels.h"
#include "../base/json.h"
#include "../base/mem.h"

#define MAX_HEADER ((uint64_t)100 << 20) /* the limit of the reference implementation, 100 MB */
#define MAX_INDEX ((uint64_t)100 << 20)
#define MAX_FILES 4096

static const struct {
    const char *name;
    uint32_t size;
} dtype[] = {
    [ST_F64] = {"F64", 8},   [ST_F32] = {"F32", 4},         [ST_F16] = {"F16", 2},
    [ST_BF16] = {"BF16", 2}, [ST_F8_E4M3] = {"F8_E4M3", 1}, [ST_F8_E5M2] = {"F8_E5M2", 1},
    [ST_I64] = {"I64", 8},   [ST_I32] = {"I32", 4},         [ST_I16] = {"I16", 2},
    [ST_I8] = {"I8", 1},     [ST_U8] = {"U8", 1},           [ST_BOOL] = {"BOOL", 1},
};
#define N_DTYPES ((int)(sizeof dtype / sizeof *dtype))

const char *st_dtype_name(enum st_dtype t)
{
    return (int)t >= 0 && (int)t < N_DTYPES ? dtype[t].name : "unknown";
}

uint32_t st_dtype_size(enum st_dtype t)
{
    return (int)t >= 0 && (int)t < N_DTYPES ? dtype[t].size : 0;
}

/* ---- one tensor ---- */

/* A name of the file in a message: no control characters, no more than fits. */
struct quoted {
    char s[96];
};

static struct quoted quote(const char *s)
{
    struct quoted q;
    size_t i;
    for (i = 0; s[i] && i + 1 < sizeof q.s; i++)
        q.s[i] = (unsigned char)s[i] < 0x20 || s[i] == 0x7f ? '?' : s[i];
    q.s[i] = 0;
    return q;
}

static int no_memory(const char *path, struct err *e)
{
    return err_set(e, ERR_IO, "%s: out of memory (tensors)", path);
}

#define BAD(t, fmt, ...)                                                                                     \
    err_set(e, ERR_FORMAT, "%s: tensor '%s': " fmt, (t)->file, quote((t)->name).s, __VA_ARGS__)

static int read_dtype(struct st_tensor *t, const json_t *v, struct err *e)
{
    if (!json_is_string(v)) return BAD(t, "%s", "dtype: missing, or no string");
    for (int i = 0; i < N_DTYPES; i++) {
        if (strcmp(json_string_value(v), dtype[i].name)) continue;
        t->dtype = (enum st_dtype)i;
        return 0;
    }
    return BAD(t,
               "unsupported dtype '%s' (expected F64, F32, F16, BF16, F8_E4M3, F8_E5M2, I64, I32, I16, I8, "
               "U8 or BOOL)",
               quote(json_string_value(v)).s);
}

static int read_shape(struct st_tensor *t, const json_t *v, struct err *e)
{
    if (!json_is_array(v)) return BAD(t, "%s", "shape: missing, or no array");
    if (json_array_size(v) > ST_MAX_DIMS)
        return BAD(t, "shape: too many dimensions (expected at most %d, got %zu)", ST_MAX_DIMS,
                   json_array_size(v));
    t->n_dims = (uint32_t)json_array_size(v);
    t->count = 1;
    for (uint32_t d = 0; d < t->n_dims; d++) {
        const json_t *x = json_array_get(v, d);
        int64_t n = json_is_integer(x) ? json_integer_value(x) : -1;
        if (n < 0) return BAD(t, "shape: dimension %" PRIu32 " is no whole number of 0 or more", d);
        t->shape[d] = n;
        if (__builtin_mul_overflow(t->count, (uint64_t)n, &t->count) || t->count > INT64_MAX)
            return BAD(t, "%s", "shape: more elements than 63 bits count");
    }
    return 0;
}

static int read_offsets(struct st_tensor *t, const json_t *v, uint64_t room, uint64_t *begin, struct err *e)
{
    const json_t *a = json_array_get(v, 0), *b = json_array_get(v, 1);
    json_int_t x, y;
    uint64_t want;
    if (json_array_size(v) != 2 || !json_is_integer(a) || !json_is_integer(b))
        return BAD(t, "%s", "data_offsets: missing, or not two whole numbers");
    x = json_integer_value(a);
    y = json_integer_value(b);
    if (x < 0 || y < x || (uint64_t)y > room)
        return BAD(
            t, "data_offsets: out of range (expected 0 <= begin <= end <= %" PRIu64 ", got %lld and %lld)",
            room, (long long)x, (long long)y);
    t->bytes = (uint64_t)(y - x);
    if (__builtin_mul_overflow(t->count, (uint64_t)dtype[t->dtype].size, &want) || want != t->bytes)
        return BAD(t, "its bytes do not fit its shape (expected %" PRIu64 " x %" PRIu32 ", got %" PRIu64 ")",
                   t->count, dtype[t->dtype].size, t->bytes);
    *begin = (uint64_t)x;
    return 0;
}

static int read_tensor(struct st_tensor *t, const json_t *v, uint64_t room, uint64_t *begin, struct err *e)
{
    const char *key;
    json_t *member;
    if (!json_is_object(v)) return BAD(t, "%s", "its entry is no object");
    json_object_foreach((json_t *)(uintptr_t)v, key, member)
    {
        (void)member;
        if (strcmp(key, "dtype") && strcmp(key, "shape") && strcmp(key, "data_offsets"))
            return BAD(t, "unknown member '%s' (expected dtype, shape and data_offsets)", quote(key).s);
    }
    if (read_dtype(t, json_object_get(v, "dtype"), e) || read_shape(t, json_object_get(v, "shape"), e))
        return -1;
    return read_offsets(t, json_object_get(v, "data_offsets"), room, begin, e);
}

/* ---- one file ---- */

static int by_data(const void *a, const void *b)
{
    const struct st_tensor *x = a, *y = b;
    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1; /* the empty ones at a place come first */
    return strcmp(x->name, y->name);
}

/* The ranges follow each other from the first byte of the data to the last. */
static int check_cover(const struct io_map *m, const uint8_t *data, uint64_t room, struct st_tensor *t,
                       uint64_t n, struct err *e)
{
    uint64_t pos = 0;
    qsort(t, (size_t)n, sizeof *t, by_data);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t begin = (uint64_t)(t[i].data - data);
        if (begin != pos)
            return BAD(&t[i], "%s (expected to begin at %" PRIu64 " of the data, got %" PRIu64 ")",
                       begin < pos ? "overlaps the tensor before it" : "a hole before its data", pos, begin);
        pos += t[i].bytes;
    }
    if (pos != room)
        return err_set(e, ERR_FORMAT,
                       "%s: bytes after the last tensor (expected %" PRIu64 " bytes of data, got %" PRIu64
                       ")",
                       m->path, pos, room);
    return 0;
}

static int check_metadata(const struct io_map *m, const json_t *v, struct err *e)
{
    const char *key;
    json_t *member;
    if (!json_is_object(v)) return err_set(e, ERR_FORMAT, "%s: __metadata__: is no object", m->path);
    json_object_foreach((json_t *)(uintptr_t)v, key, member)
    {
        if (!json_is_string(member))
            return err_set(e, ERR_FORMAT, "%s: __metadata__: '%s' is no string", m->path, quote(key).s);
    }
    return 0;
}

/* The tensors of header, appended to s->tensor. data: room bytes of the file. */
static int read_header(struct st *s, const struct io_map *m, const json_t *header, const uint8_t *data,
                       uint64_t room, struct err *e)
{
    const char *key;
    json_t *v;
    uint64_t first = s->n_tensors, n = 0, begin = 0, more = json_object_size(header);
    struct st_tensor *all = mem_realloc(s->tensor, (size_t)(first + more) * sizeof *all);
    if (!all) return no_memory(m->path, e);
    s->tensor = all;
    json_object_foreach((json_t *)(uintptr_t)header, key, v)
    {
        struct st_tensor *t = &all[first + n];
        if (!strcmp(key, "__metadata__")) {
            if (check_metadata(m, v, e)) return -1;
            continue;
        }
        memset(t, 0, sizeof *t);
        t->file = m->path;
        t->name = arena_strndup(s->arena, key, strlen(key));
        if (!t->name) return no_memory(m->path, e);
        if (!*key) return err_set(e, ERR_FORMAT, "%s: a tensor without a name", m->path);
        if (read_tensor(t, v, room, &begin, e)) return -1;
        t->data = data + begin;
        n++;
    }
    if (check_cover(m, data, room, all + first, n, e)) return -1;
    s->n_tensors += n;
    return 0;
}

static int read_file(struct st *s, const struct io_map *m, struct err *e)
{
    char name[640];
    uint64_t n;
    json_t *header;
    int r;
    if (m->size < 8)
        return err_set(e, ERR_FORMAT,
                       "%s: not a safetensors file: too short (expected 8 bytes or more, got %" PRIu64 ")",
                       m->path, m->size);
    memcpy(&n, m->data, 8);
    if (!memcmp(m->data, "GGUF", 4))
        return err_set(e, ERR_FORMAT, "%s: is a GGUF file (expected safetensors)", m->path);
    if (n > MAX_HEADER)
        return err_set(
            e, ERR_FORMAT,
            "%s: header: not a safetensors file, or a header past the limit (expected at most %" PRIu64
            " bytes, got %" PRIu64 ")",
            m->path, MAX_HEADER, n);
    if (n > m->size - 8)
        return err_set(e, ERR_FORMAT,
                       "%s: header: the file ends early (expected %" PRIu64 " bytes, got %" PRIu64 ")",
                       m->path, n, m->size - 8);
    if (!n || m->data[8] != '{')
        return err_set(e, ERR_FORMAT, "%s: header: not a safetensors file (expected an object after 8 bytes)",
                       m->path);
    snprintf(name, sizeof name, "%.600s: header", m->path);
    if (json_parse(&header, m->data + 8, n, name, e)) return -1;
    r = json_is_object(header) ? read_header(s, m, header, m->data + 8 + n, m->size - 8 - n, e)
                               : err_set(e, ERR_FORMAT, "%s: is no object", name);
    json_decref(header);
    return r;
}

/* ---- opening ---- */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct st_tensor *)a)->name, ((const struct st_tensor *)b)->name);
}

/* Names first; the order of equal ones is only for the message that refuses them. */
static int by_name_and_file(const void *a, const void *b)
{
    int r = by_name(a, b);
    return r ? r : strcmp(((const struct st_tensor *)a)->file, ((const struct st_tensor *)b)->file);
}

static int sort_tensors(struct st *s, struct err *e)
{
    if (s->n_tensors) qsort(s->tensor, (size_t)s->n_tensors, sizeof *s->tensor, by_name_and_file);
    for (uint64_t i = 1; i < s->n_tensors; i++)
        if (!by_name(&s->tensor[i - 1], &s->tensor[i]))
            return BAD(&s->tensor[i], "stands in %s too", s->tensor[i - 1].file);
    return 0;
}

static int st_new(struct st **s, uint32_t n_files, const char *path, struct err *e)
{
    *s = mem_calloc(1, sizeof **s);
    if (*s) {
        (*s)->arena = arena_new();
        (*s)->file = mem_calloc(n_files, sizeof *(*s)->file);
        (*s)->n_files = n_files;
        if ((*s)->arena && (*s)->file) return 0;
        if (!(*s)->file) (*s)->n_files = 0;
        st_close(*s);
        *s = NULL;
    }
    return err_set(e, ERR_IO, "%s: out of memory (reader)", path);
}

static int open_single(struct st **out, const char *path, struct err *e)
{
    struct st *s;
    *out = NULL;
    if (st_new(&s, 1, path, e)) return -1;
    if (io_map_open(&s->file[0], path, e) || read_file(s, &s->file[0], e) || sort_tensors(s, e)) {
        st_close(s);
        return -1;
    }
    *out = s;
    return 0;
}

int st_open_memory(struct st **out, const void *data, uint64_t size, const char *name, struct err *e)
{
    struct st *s;
    *out = NULL;
    if (st_new(&s, 1, name, e)) return -1;
    s->borrowed = true;
    s->file[0].path = mem_strdup(name);
    s->file[0].data = data;
    s->file[0].size = size;
    if (!s->file[0].path) err_set(e, ERR_IO, "%s: out of memory (name)", name);
    if (!s->file[0].path || read_file(s, &s->file[0], e) || sort_tensors(s, e)) {
        st_close(s);
        return -1;
    }
    *out = s;
    return 0;
}

bool st_is_path(const char *path)
{
    static const char *const ends[] = {".safetensors", ".index.json"};
    struct stat st;
    if (!stat(path, &st) && S_ISDIR(st.st_mode)) return true;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        size_t n = strlen(path), k = strlen(ends[i]);
        if (n > k && !strcmp(path + n - k, ends[i])) return true;
    }
    return false;
}

const char *const st_folder_files[ST_FOLDER_FILES] = {
    "config.json",         "generation_config.json",       "tokenizer.json",   "tokenizer_config.json",
    "chat_template.jinja", "model.safetensors.index.json", "model.safetensors"};

/* A name that a checkpoint's folder has for what it is read from. */
static bool is_part(const char *name)
{
    for (int i = 0; i < ST_FOLDER_FILES; i++)
        if (!strcmp(name, st_folder_files[i])) return true;
    return st_is_path(name);
}

int st_refuse_output(const char *output, const char *const *inputs, int n, struct err *e)
{
    static const char index[] = ".index.json";
    const size_t k = sizeof index - 1;
    struct stat out, st;
    char folder[PATH_MAX];
    if (!output || stat(output, &out)) return 0;
    for (int i = 0; i < n; i++) {
        const size_t len = inputs[i] ? strlen(inputs[i]) : 0;
        bool found = false;
        if (!len || stat(inputs[i], &st)) continue;
        if (!S_ISDIR(st.st_mode) && (len < k || strcmp(inputs[i] + len - k, index))) continue;
        DIR *d = opendir(S_ISDIR(st.st_mode) ? inputs[i] : io_folder(inputs[i], folder));
        for (const struct dirent *f; d && !found && (f = readdir(d));)
            found = is_part(f->d_name) && !fstatat(dirfd(d), f->d_name, &st, 0) && S_ISREG(st.st_mode) &&
                    st.st_dev == out.st_dev && st.st_ino == out.st_ino;
        if (d) closedir(d);
        if (found)
            return err_set(e, ERR_USAGE, "%s: the output is a file of the input %s", output, inputs[i]);
    }
    return 0;
}

void st_close(struct st *s)
{
    if (!s) return;
    for (uint32_t i = 0; i < s->n_files; i++) {
        if (s->borrowed) s->file[i].data = NULL; /* the caller's memory, no map */
        io_map_close(&s->file[i]);
    }
    mem_free(s->file);
    mem_free(s->tensor);
    arena_free(s->arena);
    mem_free(s);
}

const struct st_tensor *st_tensor(const struct st *s, const char *name)
{
    struct st_tensor key = {.name = (char *)(uintptr_t)name};
    return s->n_tensors ? bsearch(&key, s->tensor, (size_t)s->n_tensors, sizeof *s->tensor, by_name) : NULL;
}

/* ---- shards ---- */

/* The file part of path replaced by name; mem_alloc'ed. */
static char *beside(const char *path, const char *name)
{
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) + 1 : 0, m = strlen(name) + 1;
    char *p = mem_alloc(n + m);
    if (!p) return NULL;
    memcpy(p, path, n);
    memcpy(p + n, name, m);
    return p;
}

/* The shards of the map: an object {file name: its number}, names checked. */
static int list_shards(const char *path, const json_t *map, json_t *shards, struct err *e)
{
    const char *key, *file;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)map, key, v)
    {
        file = json_string_value(v);
        if (!file)
            return err_set(e, ERR_FORMAT, "%s: weight_map: the file of '%s' is no string", path,
                           quote(key).s);
        if (!*file || strchr(file, '/')) /* a shard lies beside its index, nowhere else */
            return err_set(e, ERR_FORMAT,
                           "%s: weight_map: '%s' is no name of a file beside the index (tensor '%s')", path,
                           quote(file).s, quote(key).s);
        if (json_object_get(shards, file)) continue;
        if (json_object_size(shards) >= MAX_FILES)
            return err_set(e, ERR_FORMAT, "%s: weight_map: too many shards (expected at most %d)", path,
                           MAX_FILES);
        if (json_object_set_new(shards, file, json_integer((json_int_t)json_object_size(shards))))
            return err_set(e, ERR_IO, "%s: out of memory (shards)", path);
    }
    if (!json_object_size(shards)) return err_set(e, ERR_FORMAT, "%s: weight_map: is empty", path);
    return 0;
}

static int open_shards(struct st *s, const char *path, const json_t *shards, struct err *e)
{
    const char *file;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)shards, file, v)
    {
        struct io_map *m = &s->file[json_integer_value(v)];
        char *p = beside(path, file);
        int r;
        if (!p) return err_set(e, ERR_IO, "%s: out of memory (path)", path);
        r = io_map_open(m, p, e);
        mem_free(p);
        if (r) return err_prefix(e, "%s: shard '%s'", path, quote(file).s);
        if (read_file(s, m, e)) return -1;
    }
    return 0;
}

/* Index and shards say the same of every tensor. */
static int check_index(const struct st *s, const char *path, const json_t *map, const json_t *shards,
                       struct err *e)
{
    const char *key;
    json_t *v;
    for (uint64_t i = 0; i < s->n_tensors; i++) {
        const struct st_tensor *t = &s->tensor[i];
        if (!json_object_get(map, t->name)) return BAD(t, "the index does not name it (%s)", path);
    }
    json_object_foreach((json_t *)(uintptr_t)map, key, v)
    {
        const struct st_tensor *t = st_tensor(s, key);
        const char *file = json_string_value(v);
        if (!t)
            return err_set(e, ERR_FORMAT, "%s: weight_map: tensor '%s' is not in its shard '%s'", path,
                           quote(key).s, quote(file).s);
        if (t->file != s->file[json_integer_value(json_object_get(shards, file))].path)
            return BAD(t, "stands in another shard than the index says (expected %s)", quote(file).s);
    }
    return 0;
}

/* The index, its weight_map, and the shards as list_shards has them: to be released by the caller, also after
 * an error. */
static int read_index(const char *path, json_t **index, const json_t **map, json_t **shards, struct err *e)
{
    *map = NULL, *shards = NULL, *index = NULL;
    if (json_parse_file(index, path, MAX_INDEX, e)) return -1;
    *map = json_object_get(*index, "weight_map");
    *shards = json_object();
    if (!*shards) return err_set(e, ERR_IO, "%s: out of memory (shards)", path);
    if (!json_is_object(*map)) return err_set(e, ERR_FORMAT, "%s: weight_map: missing, or no object", path);
    return list_shards(path, *map, *shards, e);
}

static int open_index(struct st **out, const char *path, struct err *e)
{
    struct st *s = NULL;
    json_t *index, *shards;
    const json_t *map;
    *out = NULL;
    if (read_index(path, &index, &map, &shards, e) || st_new(&s, (uint32_t)json_object_size(shards), path, e))
        goto done;
    if (open_shards(s, path, shards, e) || sort_tensors(s, e) || check_index(s, path, map, shards, e))
        goto done;
    *out = s;
    s = NULL;
done:
    json_decref(shards);
    json_decref(index);
    st_close(s);
    return *out ? 0 : -1;
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && !strcmp(s + n - m, end);
}

/* Is model.safetensors itself one of several files of the index? One that cannot be read says nothing. */
static bool index_joins(const char *path)
{
    json_t *index, *shards;
    const json_t *map;
    struct err none = {0};
    if (access(path, F_OK)) return false;
    const bool joins = !read_index(path, &index, &map, &shards, &none) && json_object_size(shards) > 1 &&
                       json_object_get(shards, "model.safetensors");
    json_decref(shards);
    json_decref(index);
    return joins;
}

bool st_two_forms(const char *path)
{
    char one[PATH_MAX], index[PATH_MAX];
    if ((size_t)snprintf(index, sizeof index, "%s/model.safetensors.index.json", path) >= sizeof index)
        return false;
    snprintf(one, sizeof one, "%s/model.safetensors", path);
    return !access(one, F_OK) && !access(index, F_OK) && !index_joins(index);
}

/* What a folder has: an index that joins it and others, model.safetensors, else an index, at *path
 * (mem_alloc'ed, NULL if neither). */
enum weights { ONE_FILE, INDEX, NO_WEIGHTS };
static int weights_in(const char *dir, char **path, struct err *e)
{
    static const char *const names[] = {"model.safetensors", "model.safetensors.index.json"};
    size_t n = strlen(dir) + 40;
    char *p = mem_alloc(n);
    *path = NULL;
    if (!p) return err_set(e, ERR_IO, "%s: out of memory (path)", dir);
    snprintf(p, n, "%s%s%s", dir, ends_with(dir, "/") ? "" : "/", names[INDEX]);
    for (int i = index_joins(p) ? INDEX : ONE_FILE; i < NO_WEIGHTS; i++) {
        snprintf(p, n, "%s%s%s", dir, ends_with(dir, "/") ? "" : "/", names[i]);
        int there = io_exists(p, e);
        if (!there) continue;
        if (there < 0) mem_free(p);
        if (there > 0) *path = p;
        return there < 0 ? -1 : i;
    }
    mem_free(p);
    return NO_WEIGHTS;
}

static int open_dir(struct st **out, const char *dir, struct err *e)
{
    char *path;
    int which = weights_in(dir, &path, e), r = -1;
    *out = NULL;
    if (which == NO_WEIGHTS)
        err_set(e, ERR_FORMAT,
                "%s: no weights here (expected model.safetensors or model.safetensors.index.json)", dir);
    else if (which >= 0)
        r = which == INDEX ? open_index(out, path, e) : open_single(out, path, e);
    mem_free(path);
    return r;
}

/* The first shard of an index that is not there: what a link leads to, if it is one. */
static int first_absent(const char *path, char *name, size_t size, struct err *e)
{
    json_t *index, *shards, *v;
    const json_t *map;
    const char *file;
    int rc = read_index(path, &index, &map, &shards, e);
    if (!rc) json_object_foreach(shards, file, v)
        {
            char *p = beside(path, file);
            bool absent = p && access(p, F_OK) && errno == ENOENT;
            if (!p) rc = err_set(e, ERR_IO, "%s: out of memory (path)", path);
            mem_free(p);
            if (absent) snprintf(name, size, "%s", quote(file).s);
            if (absent || rc) break;
        }
    json_decref(shards);
    json_decref(index);
    return rc;
}

int st_has_weights(const char *dir, struct err *e)
{
    char *path;
    int which = weights_in(dir, &path, e);
    mem_free(path);
    return which < 0 ? -1 : which != NO_WEIGHTS;
}

int st_absent_shard(const char *dir, char *name, size_t size, struct err *e)
{
    char *path;
    int which = weights_in(dir, &path, e), rc = 0;
    *name = 0;
    if (which == INDEX) rc = first_absent(path, name, size, e);
    mem_free(path);
    return which < 0 ? -1 : rc;
}

int st_open(struct st **out, const char *path, struct err *e)
{
    struct stat st;
    *out = NULL;
    if (stat(path, &st)) return err_errno(e, "%s", path);
    if (S_ISDIR(st.st_mode)) return open_dir(out, path, e);
    return ends_with(path, ".index.json") ? open_index(out, path, e) : open_single(out, path, e);
}

/* ---- decoding ---- */

/* OCP 8-bit E4M3, the finite variant: no infinity, exponent and mantissa all ones are NaN. */
static float e4m3_to_f32(uint8_t b)
{
    int exponent = b >> 3 & 15, mantissa = b & 7;
    float v;
    if ((b & 0x7f) == 0x7f)
        v = NAN;
    else if (!exponent)
        v = ldexpf((float)mantissa, -9);
    else
        v = ldexpf((float)(8 + mantissa), exponent - 10);
    return b & 0x80 ? -v : v;
}

static int f64_to_f32(const struct st_tensor *t, uint64_t first, uint64_t count, float *dst, struct err *e)
{
    for (uint64_t i = 0; i < count; i++) {
        double d;
        memcpy(&d, t->data + (first + i) * 8, 8);
        dst[i] = (float)d;
        if (isinf(dst[i]) && !isinf(d))
            return BAD(t, "element %" PRIu64 " is out of range of f32 (%g)", first + i, d);
    }
    return 0;
}

int st_read_f32(const struct st_tensor *t, uint64_t first, uint64_t count, float *dst, struct err *e)
{
    const uint8_t *p;
    uint16_t h;
    uint32_t u;
    float table[256];
    if (first > t->count || count > t->count - first)
        return BAD(t, "elements %" PRIu64 " and %" PRIu64 " more asked for (expected at most %" PRIu64 ")",
                   first, count, t->count);
    if (!count) return 0;
    p = t->data + first * dtype[t->dtype].size; /* not aligned: a header has any length */
    switch (t->dtype) {
    case ST_F64: return f64_to_f32(t, first, count, dst, e);
    case ST_F32: memcpy(dst, p, (size_t)count * 4); return 0;
    case ST_F16:
        for (uint64_t i = 0; i < count; i++) {
            memcpy(&h, p + 2 * i, 2);
            dst[i] = kn_f16_to_f32(h);
        }
        return 0;
    case ST_BF16:
        for (uint64_t i = 0; i < count; i++) {
            memcpy(&h, p + 2 * i, 2);
            u = (uint32_t)h << 16;
            memcpy(&dst[i], &u, 4);
        }
        return 0;
    case ST_F8_E4M3:
        for (int b = 0; b < 256; b++) table[b] = e4m3_to_f32((uint8_t)b);
        break;
    case ST_F8_E5M2: /* the upper half of a float16 */
        for (int b = 0; b < 256; b++) table[b] = kn_f16_to_f32((uint16_t)(b << 8));
        break;
    default: return BAD(t, "holds integers (expected a float dtype, got %s)", st_dtype_name(t->dtype));
    }
    for (uint64_t i = 0; i < count; i++) dst[i] = table[p[i]];
    return 0;
}
