/* safetensors.h - Hugging Face weight files: one file, or a directory with model.safetensors or an index and
 * its shards. */
#ifndef DFLASH_SAFETENSORS_H
#define DFLASH_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "../base/err.h"
#include "../base/io.h"

enum st_dtype {
    ST_F64,
    ST_F32,
    ST_F16,
    ST_BF16,
    ST_F8_E4M3,
    ST_F8_E5M2,
    ST_I64,
    ST_I32,
    ST_I16,
    ST_I8,
    ST_U8,
    ST_BOOL
};
const char *st_dtype_name(enum st_dtype t); /* "BF16", "F8_E4M3", ... */
uint32_t st_dtype_size(enum st_dtype t);

#define ST_MAX_DIMS 8
struct st_tensor {
    char *name;
    enum st_dtype dtype;
    uint32_t n_dims;
    int64_t shape[ST_MAX_DIMS]; /* as in PyTorch: the last dimension is contiguous */
    const uint8_t *data;
    uint64_t bytes, count;
    const char *file; /* path of the shard */
};

struct st {
    uint64_t n_tensors;
    struct st_tensor *tensor; /* in name order */
    uint32_t n_files;
    struct io_map *file;
    bool borrowed; /* opened over the caller's memory */
    struct arena *arena;
};

/* path: a .safetensors file, an .index.json, or a directory. Header lengths, offsets (contiguous, no overlap,
 * no hole), dtype sizes and index entries are all checked; a dtype that is not in the list is refused by
 * name. */
int st_open(struct st **s, const char *path, struct err *e);
/* One file, over memory that outlives it. */
int st_open_memory(struct st **s, const void *data, uint64_t size, const char *name, struct err *e);
/* 1: the folder has model.safetensors or an index; 0: neither. */
int st_has_weights(const char *dir, struct err *e);
/* Of a folder without model.safetensors: the first shard that its index names and that is not there, "" if
 * none, or there is no index. */
int st_absent_shard(const char *dir, char *name, size_t size, struct err *e);
/* By its name: a directory, *.safetensors or *.index.json. */
bool st_is_path(const char *path);
/* Is path a folder with model.safetensors and an index beside it that does not join it and others (as where
 * the blocks that predict further tokens came later)? The first is what st_open takes. */
bool st_two_forms(const char *path);
/* What is read of a checkpoint's folder, but for shards that its index names. */
enum { ST_FOLDER_FILES = 7 };
extern const char *const st_folder_files[ST_FOLDER_FILES];
/* ERR_USAGE where output is, by whatever name, a file that a checkpoint among the n inputs (a folder, or its
 * index) is read from: weights, config, tokenizer. NULL: no such output or input. */
int st_refuse_output(const char *output, const char *const *inputs, int n, struct err *e);
void st_close(struct st *s);
const struct st_tensor *st_tensor(const struct st *s, const char *name); /* NULL if absent */
/* Decode count elements from element first to float32. F64/F32/F16/BF16/F8 only; an integer dtype is
 * ERR_FORMAT. */
int st_read_f32(const struct st_tensor *t, uint64_t first, uint64_t count, float *dst, struct err *e);

#endif
