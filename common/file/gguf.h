/* gguf.h - GGUF v3 files: read (mapped, views into the file) and written (streamed, whole or not at all).
 *
 * A reader maps the file, checks every length against the bytes that remain, and hands out views: keys,
 * values and tensor data point into the map and live until gguf_close. A writer collects keys and tensor
 * descriptions, then writes the header, then takes tensor data in order. Source: the GGUF specification,
 * version 3 (docs/gguf.md). */
#ifndef DFLASH_GGUF_H
#define DFLASH_GGUF_H

#include <stdbool.h>
#include <stdint.h>
#include "../base/err.h"
#include "../base/io.h"
#include "../../kernels/kernels.h"

enum gguf_type {
    GGUF_U8 = 0,
    GGUF_I8 = 1,
    GGUF_U16 = 2,
    GGUF_I16 = 3,
    GGUF_U32 = 4,
    GGUF_I32 = 5,
    GGUF_F32 = 6,
    GGUF_BOOL = 7,
    GGUF_STRING = 8,
    GGUF_ARRAY = 9,
    GGUF_U64 = 10,
    GGUF_I64 = 11,
    GGUF_F64 = 12,
};
const char *gguf_type_name(uint32_t type); /* "u32", "string", ... or "unknown" */

struct gguf_str {
    const char *s; /* not NUL-terminated */
    uint64_t n;
};

struct gguf_kv {
    char *key;           /* NUL-terminated copy */
    uint32_t type;       /* enum gguf_type */
    uint32_t elem;       /* element type where type is GGUF_ARRAY (an array of arrays is refused by name) */
    uint64_t count;      /* elements of an array, else 1 */
    const uint8_t *data; /* raw little-endian value or elements (strings: u64 length + bytes each) */
    uint64_t bytes;
    struct gguf_str *strings; /* [count] where the value is a string or an array of strings, else NULL */
};

#define GGUF_MAX_DIMS 4
struct gguf_tensor {
    char *name;
    uint32_t n_dims; /* without dimensions of 1 at the end, which some writers leave in: gguf_n_dims */
    int64_t ne[GGUF_MAX_DIMS]; /* ne[0] contiguous; unused are 1 */
    uint32_t type;             /* known to kn_type_info, or the open fails naming it */
    uint64_t offset;           /* from the start of the data section */
    uint64_t bytes;
    uint32_t part;       /* of the file that holds it, from 0 */
    const uint8_t *data; /* in the map */
};

/* [256, 1] and [256] are one shape: dimensions of 1 at the end do not count, as in the ecosystem. Files are
 * read and written so. */
static inline uint32_t gguf_n_dims(uint32_t n_dims, const int64_t *ne)
{
    while (n_dims > 1 && ne[n_dims - 1] == 1) n_dims--;
    return n_dims;
}

struct gguf {
    struct io_map map;
    uint32_t version, alignment;
    uint64_t n_kv, n_tensors;
    struct gguf_kv *kv;          /* in file order; duplicate keys are refused */
    struct gguf_tensor *tensor;  /* in file order; duplicates, overlaps and ranges past the end are refused */
    struct gguf_kv **kv_by_name; /* the same, sorted: gguf_find and gguf_tensor search here */
    struct gguf_tensor **tensor_by_name;
    uint64_t data_offset; /* of the data section in the file */
    uint32_t n_parts;     /* files that the model is in; keys, messages and map are those of the first */
    struct gguf **part;   /* [n_parts], where there are several; part[0] is NULL: this */
    uint64_t bytes;       /* of all of them */
    bool borrowed;        /* opened over the caller's memory */
    struct arena *arena;
};

/* Map a file and check all of it but the tensors' values. ERR_FORMAT: malformed, naming key or tensor;
 * ERR_IO. Of a model in several files (NAME-00001-of-00005.gguf, keys split.*) path is the first; the others
 * are mapped too, and what is handed out has all tensors, in the order of the parts, and no key split.*: it
 * is what the model in one file would be. A part that is missing, of another model or at another's place is
 * ERR_FORMAT, naming the part. */
int gguf_open(struct gguf **g, const char *path, struct err *e);
/* The same over memory that outlives it (tests, fuzzing); name is for messages. Of one file: a part of
 * several is ERR_FORMAT. */
int gguf_open_memory(struct gguf **g, const void *data, uint64_t size, const char *name, struct err *e);
/* Where the hint of a refused drafter is the command that converts it: with its target. */
void gguf_hint_target(const char *target, struct err *e);
void gguf_close(struct gguf *g);

const struct gguf_kv *gguf_find(const struct gguf *g, const char *key); /* NULL if absent */
const struct gguf_tensor *gguf_tensor(const struct gguf *g, const char *name);

/* Typed getters. Integers take any integer type that holds the value; f32 takes f32 or f64. Return 0, 1 if
 * the key is absent (e untouched), or -1 with e set (wrong type or range: key, expected, got). */
int gguf_get_u32(const struct gguf *g, const char *key, uint32_t *v, struct err *e);
int gguf_get_i32(const struct gguf *g, const char *key, int32_t *v, struct err *e);
int gguf_get_u64(const struct gguf *g, const char *key, uint64_t *v, struct err *e);
int gguf_get_f32(const struct gguf *g, const char *key, float *v, struct err *e);
int gguf_get_bool(const struct gguf *g, const char *key, bool *v, struct err *e);
int gguf_get_str(const struct gguf *g, const char *key, struct gguf_str *v, struct err *e);
/* Element i of an integer or bool array as i64; f32 of a float array. */
int64_t gguf_array_i64(const struct gguf_kv *kv, uint64_t i);
double gguf_array_f64(const struct gguf_kv *kv, uint64_t i);
bool gguf_str_is(struct gguf_str a, const char *b);
/* For messages: a scalar's value, a string in quotes and cut, "u32[36]" of an array. */
void gguf_value_text(const struct gguf_kv *kv, char *out, size_t n);
bool gguf_same_value(const struct gguf_kv *a, const struct gguf_kv *b); /* type and bytes */

/* ---- other values than the file's ---- */
/* KEY=TYPE:VALUE. TYPE: int (any integer type) or float (f32 or f64), bool, str, as llama.cpp has them; or a
 * type of GGUF by its name, which the file's must then be. */
struct gguf_override {
    const char *text; /* as given, borrowed */
    size_t n_key;     /* its first bytes: the key */
    uint32_t type;
    bool exact, minus; /* exact: type, else its kind; minus: bits are those of a negative i64 */
    uint64_t bits;
    double real;
    struct gguf_str string;
};
int gguf_override_parse(struct gguf_override *o, const char *text, struct err *e); /* ERR_USAGE */
/* n of them, mem_alloc'ed; NULL where n is 0. */
int gguf_overrides_parse(struct gguf_override **o, const char *const *text, int n, struct err *e);
/* g's keys get these values, in order; one that it lacks comes behind the others. What is made of g then
 * (description, identity) is made of them. ERR_USAGE: another type than the file's, out of its range, an
 * array, a key that says how the file lies; and, unless add, one that is neither in the file nor the
 * architecture's nor looked at here. */
int gguf_override(struct gguf *g, const struct gguf_override *o, int n, bool add, struct err *e);

/* ---- writing ---- */
struct gguf_writer;
int gguf_writer_new(struct gguf_writer **w, struct err *e);
void gguf_writer_free(struct gguf_writer *w);
/* A key set twice replaces the first value in place. */
int gguf_put_u32(struct gguf_writer *w, const char *key, uint32_t v, struct err *e);
int gguf_put_i32(struct gguf_writer *w, const char *key, int32_t v, struct err *e);
int gguf_put_u64(struct gguf_writer *w, const char *key, uint64_t v, struct err *e);
int gguf_put_f32(struct gguf_writer *w, const char *key, float v, struct err *e);
int gguf_put_bool(struct gguf_writer *w, const char *key, bool v, struct err *e);
int gguf_put_str(struct gguf_writer *w, const char *key, const char *s, uint64_t n, struct err *e);
/* n elements of elem, packed little-endian at data (bool: one byte each). */
int gguf_put_array(struct gguf_writer *w, const char *key, uint32_t elem, const void *data, uint64_t n,
                   struct err *e);
int gguf_put_strings(struct gguf_writer *w, const char *key, const struct gguf_str *s, uint64_t n,
                     struct err *e);
/* Copy of a read value, verbatim. */
int gguf_put_kv(struct gguf_writer *w, const struct gguf_kv *kv, struct err *e);
int gguf_remove(struct gguf_writer *w, const char *key);
/* Describe a tensor; order here is the order of the data. bytes follow from type and ne. Dimensions of 1 at
 * the end are left out. */
int gguf_add_tensor(struct gguf_writer *w, const char *name, uint32_t type, uint32_t n_dims,
                    const int64_t *ne, struct err *e);
/* Header, keys, tensor infos, padding. Afterwards each tensor's bytes, in order, in any number of pieces. */
int gguf_write_header(struct gguf_writer *w, struct io_out *o, struct err *e);
int gguf_write_data(struct gguf_writer *w, struct io_out *o, const void *data, uint64_t n, struct err *e);
/* Checks that every tensor is complete; does not commit o. */
int gguf_write_end(struct gguf_writer *w, struct io_out *o, struct err *e);

/* The files of a model: one at path (NULL or "-": stdout), or, with split > 0, NAME-00001-of-00005.gguf and
 * so on beside each other, path being NAME.gguf. A file has at most split bytes, unless one tensor alone has
 * more. They appear together or not at all. In place of io_out_open, gguf_write_* and io_out_commit; a zeroed
 * struct is legal in abort. */
struct gguf_files {
    struct gguf_writer *w;
    struct io_out *out; /* [n] */
    uint32_t n;
};
int gguf_files_open(struct gguf_files *f, struct gguf_writer *w, const char *path, bool force,
                    const char *const *inputs, int n_inputs, uint64_t split,
                    struct err *e); /* headers are written */
int gguf_files_data(struct gguf_files *f, const void *data, uint64_t n, struct err *e);
int gguf_files_end(struct gguf_files *f, struct err *e); /* complete, and safe on the disk; no names yet */
int gguf_files_commit(struct gguf_files *f, struct err *e);
void gguf_files_abort(struct gguf_files *f); /* legal after commit: does nothing */

#endif
