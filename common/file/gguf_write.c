/* gguf_write.c - the writer of gguf.h.
 *
 * Keys and tensor descriptions are collected, the header goes out in one piece, and data follows tensor by
 * tensor. The bytes are a function of the calls alone: keys and tensors in the order of the calls, padding
 * zero. */
#include "gguf_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <zlib.h>

#include "../base/mem.h"

#define MAX_KEY 65535
#define MAX_TENSOR_NAME 63 /* readers of the field keep 64 bytes, the NUL included */

struct out_tensor {
    char *name;
    uint32_t type, n_dims;
    int64_t ne[GGUF_MAX_DIMS];
    uint64_t bytes, offset;
    uint32_t part; /* of the file that it goes to, from 0 */
};

struct gguf_writer {
    struct gguf_kv *kv; /* data owned; strings unused (data holds them packed) */
    uint64_t n_kv, room_kv;
    struct out_tensor *tensor;
    uint64_t n_tensors, room_tensors;
    uint32_t alignment;
    uint32_t n_parts; /* files; 0: one, and no key says so */
    uint32_t crc;     /* of parts: what they have in common */
    bool header_done;
    uint64_t at;   /* the tensor whose data comes next */
    uint64_t done; /* its bytes so far */
};

static const uint8_t fixed_size[] = {
    [GGUF_U8] = 1,  [GGUF_I8] = 1,  [GGUF_U16] = 2,  [GGUF_I16] = 2,    [GGUF_U32] = 4,
    [GGUF_I32] = 4, [GGUF_F32] = 4, [GGUF_BOOL] = 1, [GGUF_STRING] = 0, [GGUF_ARRAY] = 0,
    [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8,
};

int gguf_writer_new(struct gguf_writer **w, struct err *e)
{
    *w = mem_calloc(1, sizeof **w);
    return *w ? 0 : err_set(e, ERR_IO, "out of memory (writer)");
}

void gguf_writer_free(struct gguf_writer *w)
{
    if (!w) return;
    for (uint64_t i = 0; i < w->n_kv; i++) {
        mem_free(w->kv[i].key);
        mem_free((void *)(uintptr_t)w->kv[i].data);
    }
    for (uint64_t i = 0; i < w->n_tensors; i++) mem_free(w->tensor[i].name);
    mem_free(w->kv);
    mem_free(w->tensor);
    mem_free(w);
}

/* ---- keys ---- */

static int check_name(const char *what, const char *name, size_t cap, struct err *e)
{
    size_t n = strlen(name);
    if (n < 1 || n > cap)
        return err_set(e, ERR_FORMAT, "%s '%.80s': bad length of its name (expected 1 to %zu bytes, got %zu)",
                       what, name, cap, n);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7f)
            return err_set(e, ERR_FORMAT,
                           "%s %zu bytes long: a control character in its name (byte %zu is 0x%02x)", what, n,
                           i, (unsigned)name[i]);
    return 0;
}

/* Room for one more element of size bytes in *p. */
static int grow(void **p, uint64_t n, uint64_t *room, size_t size, struct err *e)
{
    uint64_t want = *room ? *room * 2 : 32;
    void *q;
    if (n < *room) return 0;
    q = want > SIZE_MAX / size ? NULL : mem_realloc(*p, (size_t)want * size);
    if (!q) return err_set(e, ERR_IO, "out of memory (writer)");
    *p = q;
    *room = want;
    return 0;
}

/* Takes data (mem_alloc'ed) in any case. */
static int put(struct gguf_writer *w, const char *key, uint32_t type, uint32_t elem, uint64_t count,
               uint8_t *data, uint64_t bytes, struct err *e)
{
    struct gguf_kv *kv = NULL;
    char *copy = NULL;
    if (!data) return err_set(e, ERR_IO, "out of memory (key '%.80s')", key);
    if (w->header_done) {
        err_set(e, ERR_FORMAT, "key '%.80s': set after the header was written", key);
        goto fail;
    }
    if (check_name("key", key, MAX_KEY, e)) goto fail;
    for (uint64_t i = 0; i < w->n_kv && !kv; i++)
        if (!strcmp(w->kv[i].key, key)) kv = &w->kv[i];
    if (kv) {
        mem_free((void *)(uintptr_t)kv->data);
    } else {
        copy = mem_strdup(key);
        if (!copy) err_set(e, ERR_IO, "out of memory (key '%.80s')", key);
        if (!copy || grow((void **)&w->kv, w->n_kv, &w->room_kv, sizeof *w->kv, e)) goto fail;
        kv = &w->kv[w->n_kv++];
        kv->key = copy;
    }
    kv->type = type;
    kv->elem = elem;
    kv->count = count;
    kv->data = data;
    kv->bytes = bytes;
    kv->strings = NULL;
    return 0;
fail:
    mem_free(copy);
    mem_free(data);
    return -1;
}

static uint8_t *copy_of(const void *data, uint64_t n)
{
    uint8_t *p = n > SIZE_MAX ? NULL : mem_alloc((size_t)n);
    if (p && n) memcpy(p, data, (size_t)n);
    return p;
}

int gguf_put_u32(struct gguf_writer *w, const char *key, uint32_t v, struct err *e)
{
    return put(w, key, GGUF_U32, GGUF_U32, 1, copy_of(&v, sizeof v), sizeof v, e);
}

int gguf_put_i32(struct gguf_writer *w, const char *key, int32_t v, struct err *e)
{
    return put(w, key, GGUF_I32, GGUF_I32, 1, copy_of(&v, sizeof v), sizeof v, e);
}

int gguf_put_u64(struct gguf_writer *w, const char *key, uint64_t v, struct err *e)
{
    return put(w, key, GGUF_U64, GGUF_U64, 1, copy_of(&v, sizeof v), sizeof v, e);
}

int gguf_put_f32(struct gguf_writer *w, const char *key, float v, struct err *e)
{
    return put(w, key, GGUF_F32, GGUF_F32, 1, copy_of(&v, sizeof v), sizeof v, e);
}

int gguf_put_bool(struct gguf_writer *w, const char *key, bool v, struct err *e)
{
    uint8_t b = v;
    return put(w, key, GGUF_BOOL, GGUF_BOOL, 1, copy_of(&b, 1), 1, e);
}

/* n strings, each as u64 length and bytes. */
static uint8_t *pack(const struct gguf_str *s, uint64_t n, uint64_t *bytes)
{
    uint8_t *data, *p;
    *bytes = 0;
    for (uint64_t i = 0; i < n; i++)
        if (__builtin_add_overflow(*bytes, 8, bytes) || __builtin_add_overflow(*bytes, s[i].n, bytes))
            return NULL;
    if (*bytes > SIZE_MAX) return NULL;
    p = data = mem_alloc((size_t)*bytes);
    for (uint64_t i = 0; data && i < n; i++) {
        memcpy(p, &s[i].n, 8);
        if (s[i].n) memcpy(p + 8, s[i].s, (size_t)s[i].n);
        p += 8 + s[i].n;
    }
    return data;
}

int gguf_put_str(struct gguf_writer *w, const char *key, const char *s, uint64_t n, struct err *e)
{
    struct gguf_str one = {s, n};
    uint64_t bytes;
    uint8_t *data = pack(&one, 1, &bytes);
    return put(w, key, GGUF_STRING, GGUF_STRING, 1, data, bytes, e);
}

int gguf_put_strings(struct gguf_writer *w, const char *key, const struct gguf_str *s, uint64_t n,
                     struct err *e)
{
    uint64_t bytes;
    uint8_t *data = pack(s, n, &bytes);
    return put(w, key, GGUF_ARRAY, GGUF_STRING, n, data, bytes, e);
}

int gguf_put_array(struct gguf_writer *w, const char *key, uint32_t elem, const void *data, uint64_t n,
                   struct err *e)
{
    const uint8_t *p = data;
    uint64_t bytes;
    if (elem >= sizeof fixed_size || !fixed_size[elem])
        return err_set(e, ERR_FORMAT, "key '%.80s': not a type of array elements here: %s (%" PRIu32 ")", key,
                       gguf_type_name(elem), elem);
    if (__builtin_mul_overflow(n, (uint64_t)fixed_size[elem], &bytes))
        return err_set(e, ERR_FORMAT, "key '%.80s': too many elements (%" PRIu64 ")", key, n);
    if (elem == GGUF_BOOL)
        for (uint64_t i = 0; i < n; i++)
            if (p[i] > 1)
                return err_set(e, ERR_FORMAT,
                               "key '%.80s': a bool is neither 0 nor 1 (element %" PRIu64 " is %u)", key, i,
                               p[i]);
    return put(w, key, GGUF_ARRAY, elem, n, copy_of(data, bytes), bytes, e);
}

int gguf_put_kv(struct gguf_writer *w, const struct gguf_kv *kv, struct err *e)
{
    return put(w, kv->key, kv->type, kv->elem, kv->count, copy_of(kv->data, kv->bytes), kv->bytes, e);
}

int gguf_remove(struct gguf_writer *w, const char *key)
{
    for (uint64_t i = 0; i < w->n_kv; i++) {
        if (strcmp(w->kv[i].key, key)) continue;
        mem_free(w->kv[i].key);
        mem_free((void *)(uintptr_t)w->kv[i].data);
        memmove(&w->kv[i], &w->kv[i + 1], (size_t)(w->n_kv - i - 1) * sizeof *w->kv);
        w->n_kv--;
        return 0;
    }
    return 1;
}

/* ---- tensors ---- */

/* bytes of a tensor of this type and shape; every product checked. */
static int tensor_bytes(const char *name, uint32_t type, uint32_t n_dims, const int64_t *ne, uint64_t *bytes,
                        struct err *e)
{
    const struct kn_type_info *info = kn_type_info(type);
    uint64_t n = 1;
    if (!info) return err_set(e, ERR_FORMAT, "tensor '%.80s': unknown tensor type %" PRIu32, name, type);
    if (n_dims < 1 || n_dims > GGUF_MAX_DIMS)
        return err_set(e, ERR_FORMAT,
                       "tensor '%.80s': bad number of dimensions (expected 1 to %d, got %" PRIu32 ")", name,
                       GGUF_MAX_DIMS, n_dims);
    for (uint32_t d = 0; d < n_dims; d++) {
        if (ne[d] <= 0)
            return err_set(e, ERR_FORMAT,
                           "tensor '%.80s': bad dimension %" PRIu32 " (expected 1 or more, got %" PRId64 ")",
                           name, d, ne[d]);
        if (__builtin_mul_overflow(n, (uint64_t)ne[d], &n) || n > INT64_MAX)
            return err_set(e, ERR_FORMAT, "tensor '%.80s': more elements than 63 bits count", name);
    }
    if (ne[0] % info->block)
        return err_set(e, ERR_FORMAT,
                       "tensor '%.80s': its rows are no whole blocks of %s (expected a multiple of %" PRIu32
                       ", got %" PRId64 ")",
                       name, info->name, info->block, ne[0]);
    if (__builtin_mul_overflow(n / info->block, (uint64_t)info->bytes, bytes))
        return err_set(e, ERR_FORMAT, "tensor '%.80s': more bytes than 64 bits count", name);
    return 0;
}

int gguf_add_tensor(struct gguf_writer *w, const char *name, uint32_t type, uint32_t n_dims,
                    const int64_t *ne, struct err *e)
{
    struct out_tensor *t;
    uint64_t bytes = 0;
    if (w->header_done)
        return err_set(e, ERR_FORMAT, "tensor '%.80s': added after the header was written", name);
    if (check_name("tensor", name, MAX_TENSOR_NAME, e) || tensor_bytes(name, type, n_dims, ne, &bytes, e))
        return -1;
    for (uint64_t i = 0; i < w->n_tensors; i++)
        if (!strcmp(w->tensor[i].name, name)) return err_set(e, ERR_FORMAT, "tensor '%s': added twice", name);
    if (grow((void **)&w->tensor, w->n_tensors, &w->room_tensors, sizeof *w->tensor, e)) return -1;
    t = &w->tensor[w->n_tensors];
    t->name = mem_strdup(name);
    if (!t->name) return err_set(e, ERR_IO, "out of memory (tensor '%s')", name);
    t->type = type;
    t->n_dims = gguf_n_dims(n_dims, ne);
    memcpy(t->ne, ne, n_dims * sizeof *ne);
    t->bytes = bytes;
    t->offset = 0;
    t->part = 0;
    w->n_tensors++;
    return 0;
}

/* ---- output ---- */

static int out_u32(struct io_out *o, uint32_t v, struct err *e)
{
    return io_out_write(o, &v, sizeof v, e);
}

static int out_u64(struct io_out *o, uint64_t v, struct err *e)
{
    return io_out_write(o, &v, sizeof v, e);
}

static int out_name(struct io_out *o, const char *s, struct err *e)
{
    uint64_t n = strlen(s);
    return out_u64(o, n, e) || io_out_write(o, s, (size_t)n, e) ? -1 : 0;
}

static int out_padding(struct io_out *o, uint64_t pos, uint32_t alignment, struct err *e)
{
    static const uint8_t zero[256];
    uint64_t n = (alignment - pos % alignment) % alignment;
    while (n) {
        size_t k = n < sizeof zero ? (size_t)n : sizeof zero;
        if (io_out_write(o, zero, k, e)) return -1;
        n -= k;
    }
    return 0;
}

static int find_alignment(struct gguf_writer *w, struct err *e)
{
    w->alignment = 32;
    for (uint64_t i = 0; i < w->n_kv; i++) {
        const struct gguf_kv *kv = &w->kv[i];
        if (strcmp(kv->key, "general.alignment")) continue;
        if (kv->type != GGUF_U32)
            return err_set(e, ERR_FORMAT, "key 'general.alignment': wrong type (expected u32, got %s)",
                           gguf_type_name(kv->type));
        memcpy(&w->alignment, kv->data, 4);
        if (w->alignment < 8 || w->alignment & (w->alignment - 1))
            return err_set(
                e, ERR_FORMAT,
                "key 'general.alignment': bad alignment (expected a power of two, 8 or more, got %" PRIu32
                ")",
                w->alignment);
    }
    return 0;
}

/* Files behind the first have no key general.alignment. */
static uint32_t alignment_of(const struct gguf_writer *w, uint32_t part)
{
    return part ? 32 : w->alignment;
}

/* The offset of each tensor; the last one is padded too, as every writer of the field does. */
static int place(struct gguf_writer *w, struct err *e)
{
    uint64_t pos = 0;
    for (uint64_t i = 0; i < w->n_tensors; i++) {
        struct out_tensor *t = &w->tensor[i];
        const uint32_t alignment = alignment_of(w, t->part);
        if (i && t->part != w->tensor[i - 1].part) pos = 0;
        t->offset = pos;
        if (__builtin_add_overflow(pos, t->bytes, &pos) || __builtin_add_overflow(pos, alignment - 1, &pos))
            return err_set(e, ERR_FORMAT, "tensor '%s': the data section has more bytes than 64 bits count",
                           t->name);
        pos -= pos % alignment;
    }
    return 0;
}

static int out_key(struct io_out *o, const struct gguf_kv *kv, struct err *e)
{
    if (out_name(o, kv->key, e) || out_u32(o, kv->type, e)) return -1;
    if (kv->type == GGUF_ARRAY && (out_u32(o, kv->elem, e) || out_u64(o, kv->count, e))) return -1;
    return io_out_write(o, kv->data, (size_t)kv->bytes, e);
}

static bool is_split_key(const char *key)
{
    return !strncmp(key, GGUF_SPLIT, strlen(GGUF_SPLIT));
}

/* The keys split.* of a part. */
#define SPLIT_KEYS 4
static int out_split_keys(const struct gguf_writer *w, struct io_out *o, uint32_t part, struct err *e)
{
    const uint16_t no = (uint16_t)part, count = (uint16_t)w->n_parts;
    const int32_t tensors = (int32_t)w->n_tensors;
    char names[SPLIT_KEYS][32] = {GGUF_SPLIT_NO, GGUF_SPLIT_COUNT, GGUF_SPLIT_TENSORS, GGUF_SPLIT_CRC};
    const struct gguf_kv kv[SPLIT_KEYS] = {
        {.key = names[0], .type = GGUF_U16, .data = (const uint8_t *)&no, .bytes = 2},
        {.key = names[1], .type = GGUF_U16, .data = (const uint8_t *)&count, .bytes = 2},
        {.key = names[2], .type = GGUF_I32, .data = (const uint8_t *)&tensors, .bytes = 4},
        {.key = names[3], .type = GGUF_U32, .data = (const uint8_t *)&w->crc, .bytes = 4}};
    for (int i = 0; i < SPLIT_KEYS; i++)
        if (out_key(o, &kv[i], e)) return -1;
    return 0;
}

static int out_info(struct io_out *o, const struct out_tensor *t, struct err *e)
{
    if (out_name(o, t->name, e) || out_u32(o, t->n_dims, e)) return -1;
    if (io_out_write(o, t->ne, t->n_dims * sizeof *t->ne, e)) return -1;
    return out_u32(o, t->type, e) || out_u64(o, t->offset, e) ? -1 : 0;
}

/* The header of one file: the model's keys stand in the first. */
static int out_header(const struct gguf_writer *w, struct io_out *o, uint32_t part, struct err *e)
{
    const uint64_t begin = o->written;
    uint64_t n = 0, n_kv = part ? 0 : w->n_kv;
    for (uint64_t i = 0; i < w->n_tensors; i++) n += w->tensor[i].part == part;
    if (w->n_parts) n_kv += SPLIT_KEYS;
    if (io_out_write(o, "GGUF", 4, e) || out_u32(o, 3, e) || out_u64(o, n, e) || out_u64(o, n_kv, e))
        return -1;
    for (uint64_t i = 0; !part && i < w->n_kv; i++)
        if (out_key(o, &w->kv[i], e)) return -1;
    if (w->n_parts && out_split_keys(w, o, part, e)) return -1;
    for (uint64_t i = 0; i < w->n_tensors; i++)
        if (w->tensor[i].part == part && out_info(o, &w->tensor[i], e)) return -1;
    return out_padding(o, o->written - begin, alignment_of(w, part), e);
}

int gguf_write_header(struct gguf_writer *w, struct io_out *o, struct err *e)
{
    if (w->header_done) return err_set(e, ERR_FORMAT, "the header was written already");
    if (find_alignment(w, e) || place(w, e)) return -1;
    w->header_done = true;
    return out_header(w, o, 0, e);
}

int gguf_write_data(struct gguf_writer *w, struct io_out *o, const void *data, uint64_t n, struct err *e)
{
    const struct out_tensor *t;
    if (!w->header_done) return err_set(e, ERR_FORMAT, "%s: tensor data before the header", o->path);
    if (!n) return 0;
    if (w->at == w->n_tensors)
        return err_set(e, ERR_FORMAT, "%s: %" PRIu64 " bytes of data after the last tensor", o->path, n);
    t = &w->tensor[w->at];
    if (n > t->bytes - w->done)
        return err_set(e, ERR_FORMAT,
                       "tensor '%s': too much data (expected %" PRIu64 " bytes, got %" PRIu64 ")", t->name,
                       t->bytes, w->done + n);
    if (io_out_write(o, data, (size_t)n, e)) return -1;
    w->done += n;
    if (w->done < t->bytes) return 0;
    w->at++;
    w->done = 0;
    return out_padding(o, t->bytes, alignment_of(w, t->part), e);
}

int gguf_write_end(struct gguf_writer *w, struct io_out *o, struct err *e)
{
    if (!w->header_done) return err_set(e, ERR_FORMAT, "%s: the header was not written", o->path);
    if (w->at < w->n_tensors)
        return err_set(e, ERR_FORMAT,
                       "tensor '%s': too little data (expected %" PRIu64 " bytes, got %" PRIu64 ")",
                       w->tensor[w->at].name, w->tensor[w->at].bytes, w->done);
    return 0;
}

/* ---- one file or several ---- */

static uint64_t info_bytes(const struct out_tensor *t)
{
    return 8 + strlen(t->name) + 4 + 8 * (uint64_t)t->n_dims + 4 + 8;
}

static uint64_t key_bytes(const struct gguf_kv *kv)
{
    return 8 + strlen(kv->key) + 4 + (kv->type == GGUF_ARRAY ? 12 : 0) + kv->bytes;
}

static uint64_t padded(uint64_t n, uint64_t alignment)
{
    return n + (alignment - n % alignment) % alignment;
}

/* Which tensor goes to which file: in order, as many as leave the file at most split bytes, one at least. */
static int share_out(struct gguf_writer *w, uint64_t split, struct err *e)
{
    uint64_t head = 24, data = 0, n = 0, split_keys = 0;
    static const char *const names[] = {GGUF_SPLIT_NO, GGUF_SPLIT_COUNT, GGUF_SPLIT_TENSORS, GGUF_SPLIT_CRC};
    static const int bytes[] = {2, 2, 4, 4};
    for (int i = 0; i < SPLIT_KEYS; i++) split_keys += 8 + strlen(names[i]) + 4 + (uint64_t)bytes[i];
    for (uint64_t i = 0; i < w->n_kv; i++) head += key_bytes(&w->kv[i]);
    head += split_keys;
    w->n_parts = 1;
    for (uint64_t i = 0; i < w->n_tensors; i++) {
        struct out_tensor *t = &w->tensor[i];
        uint64_t a = alignment_of(w, w->n_parts - 1), all;
        if (__builtin_add_overflow(padded(head + info_bytes(t), a) + data, t->bytes, &all) ||
            all > UINT64_MAX - a)
            return err_set(e, ERR_FORMAT, "tensor '%s': the file has more bytes than 64 bits count", t->name);
        if (n && padded(all, a) > split) {
            w->n_parts++;
            a = alignment_of(w, w->n_parts - 1);
            head = 24 + split_keys;
            data = n = 0;
        }
        if (w->n_parts > GGUF_MAX_PARTS)
            return err_set(e, ERR_USAGE,
                           "--split-size: too many parts (expected at most %d, got more with %" PRIu64
                           " bytes a part)",
                           GGUF_MAX_PARTS, split);
        t->part = w->n_parts - 1;
        head += info_bytes(t);
        data = padded(data + t->bytes, a);
        n++;
    }
    return 0;
}

/* Parts of two models differ in it, unless these have the same keys and tensors. */
static uint32_t model_crc(const struct gguf_writer *w)
{
    uLong crc = crc32(0, NULL, 0);
    for (uint64_t i = 0; i < w->n_kv; i++) {
        const struct gguf_kv *kv = &w->kv[i];
        crc = crc32_z(crc, (const Bytef *)kv->key, strlen(kv->key) + 1);
        crc = crc32_z(crc, (const Bytef *)&kv->type, sizeof kv->type);
        crc = crc32_z(crc, kv->data, (size_t)kv->bytes);
    }
    for (uint64_t i = 0; i < w->n_tensors; i++) {
        const struct out_tensor *t = &w->tensor[i];
        crc = crc32_z(crc, (const Bytef *)t->name, strlen(t->name) + 1);
        crc = crc32_z(crc, (const Bytef *)&t->type, sizeof t->type);
        crc = crc32_z(crc, (const Bytef *)t->ne, t->n_dims * sizeof *t->ne);
    }
    return (uint32_t)crc;
}

static int open_parts(struct gguf_files *f, const char *path, bool force, const char *const *inputs,
                      int n_inputs, struct err *e)
{
    const size_t n = strlen(path), stem = n > 5 && !strcmp(path + n - 5, ".gguf") ? n - 5 : n;
    for (uint32_t i = 0; i < f->w->n_parts; i++) {
        char *name = gguf_part_path(path, stem, i, f->w->n_parts);
        int rc = name ? io_out_open(&f->out[i], name, force, inputs, n_inputs, e)
                      : err_set(e, ERR_IO, "%s: out of memory (name of a part)", path);
        mem_free(name);
        if (rc) return -1;
        f->n++;
        if (out_header(f->w, &f->out[i], i, e)) return -1;
    }
    return 0;
}

int gguf_files_open(struct gguf_files *f, struct gguf_writer *w, const char *path, bool force,
                    const char *const *inputs, int n_inputs, uint64_t split, struct err *e)
{
    *f = (struct gguf_files){.w = w};
    if (split && (!path || !strcmp(path, "-")))
        return err_set(e, ERR_USAGE, "--split-size: parts are files (expected -o FILE, got standard output)");
    for (uint64_t i = 0; i < w->n_kv; i++)
        if (is_split_key(w->kv[i].key))
            return err_set(e, ERR_FORMAT, "key '%.80s': parts have keys of their own (expected no such key)",
                           w->kv[i].key);
    if (split && (find_alignment(w, e) || share_out(w, split, e))) return -1;
    w->crc = split ? model_crc(w) : 0;
    f->out = mem_calloc(split ? w->n_parts : 1, sizeof *f->out);
    if (!f->out) return err_set(e, ERR_IO, "%s: out of memory (outputs)", path ? path : "stdout");
    int rc;
    if (split) {
        if (place(w, e)) return -1;
        w->header_done = true;
        rc = open_parts(f, path, force, inputs, n_inputs, e);
    } else {
        rc = io_out_open(f->out, path, force, inputs, n_inputs, e);
        f->n = rc == 0;
        if (!rc) rc = gguf_write_header(w, f->out, e);
    }
    if (rc) gguf_files_abort(f);
    return rc;
}

int gguf_files_data(struct gguf_files *f, const void *data, uint64_t n, struct err *e)
{
    const struct gguf_writer *w = f->w;
    const uint32_t part = w->at < w->n_tensors ? w->tensor[w->at].part : f->n - 1;
    return gguf_write_data(f->w, &f->out[part], data, n, e);
}

int gguf_files_end(struct gguf_files *f, struct err *e)
{
    if (gguf_write_end(f->w, f->out, e)) return -1;
    for (uint32_t i = 0; i < f->n; i++)
        if (io_out_prepare(&f->out[i], e)) return -1;
    return 0;
}

int gguf_files_commit(struct gguf_files *f, struct err *e)
{
    struct io_out *all[GGUF_MAX_PARTS];
    for (uint32_t i = 0; i < f->n; i++) all[i] = &f->out[i];
    const int rc = io_outs_commit(all, (int)f->n, e);
    gguf_files_abort(f);
    return rc;
}

void gguf_files_abort(struct gguf_files *f)
{
    for (uint32_t i = 0; i < f->n; i++) io_out_abort(&f->out[i]);
    mem_free(f->out);
    *f = (struct gguf_files){.w = f->w};
}
