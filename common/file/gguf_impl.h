/* gguf_impl.h - what the files of gguf.h share. */
#ifndef DFLASH_GGUF_IMPL_H
#define DFLASH_GGUF_IMPL_H

#include "gguf.h"

/* One file, whatever it says of others. */
int gguf_open_one(struct gguf **g, const char *path, struct err *e);
/* The other parts of a model whose first file g is; 0 too where g is all of it. */
int gguf_join(struct gguf *g, struct err *e);
/* ERR_FORMAT where g is one of several files. */
int gguf_whole(const struct gguf *g, struct err *e);
/* kv_by_name and tensor_by_name, which have room for all, made anew. */
void gguf_sort_keys(struct gguf *g);
void gguf_sort_tensors(struct gguf *g);

/* Keys of a model in several files. */
#define GGUF_SPLIT "split."
#define GGUF_SPLIT_NO "split.no"
#define GGUF_SPLIT_COUNT "split.count"
#define GGUF_SPLIT_TENSORS "split.tensors.count"
/* Our own, in every part: crc32 of the model's keys and tensor infos, so that parts of two models show. */
#define GGUF_SPLIT_CRC "split.dflash.crc32"
#define GGUF_MAX_PARTS 512
/* NAME-00003-of-00005.gguf, part from 0; NULL: no memory. For mem_free. */
char *gguf_part_path(const char *name, size_t n_name, uint32_t part, uint32_t count);

#endif
