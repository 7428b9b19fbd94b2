/* foreign_files.h - GGUFs as other engines' converters leave them, written byte by byte from the public
 * format: what our own writer has no way to write. Used by the unit tests. */
#ifndef TEST_FOREIGN_FILES_H
#define TEST_FOREIGN_FILES_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include "../common/file/gguf.h"

static inline void foreign_u32(FILE *f, uint32_t v)
{
    fwrite(&v, sizeof v, 1, f);
}

static inline void foreign_u64(FILE *f, uint64_t v)
{
    fwrite(&v, sizeof v, 1, f);
}

static inline void foreign_text(FILE *f, const char *s)
{
    foreign_u64(f, strlen(s));
    fwrite(s, 1, strlen(s), f);
}

/* The file from again as to, every tensor whose name holds part with a dimension of 1 behind its own: numpy
 * keeps it of a row that a checkpoint has as a matrix, "[1, 256]". 0, or -1. */
static inline int foreign_trailing(const char *from, const char *to, const char *part)
{
    struct err e = {0};
    struct gguf *g;
    if (gguf_open(&g, from, &e)) return -1;
    FILE *f = fopen(to, "wb");
    if (!f) {
        gguf_close(g);
        return -1;
    }
    fwrite("GGUF", 1, 4, f);
    foreign_u32(f, 3);
    foreign_u64(f, g->n_tensors);
    foreign_u64(f, g->n_kv);
    for (uint64_t i = 0; i < g->n_kv; i++) {
        const struct gguf_kv *kv = &g->kv[i];
        foreign_text(f, kv->key);
        foreign_u32(f, kv->type);
        if (kv->type == GGUF_ARRAY) {
            foreign_u32(f, kv->elem);
            foreign_u64(f, kv->count);
        }
        fwrite(kv->data, 1, (size_t)kv->bytes, f);
    }
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        const struct gguf_tensor *t = &g->tensor[i];
        const uint32_t n = t->n_dims + (t->n_dims < GGUF_MAX_DIMS && strstr(t->name, part));
        foreign_text(f, t->name);
        foreign_u32(f, n);
        for (uint32_t d = 0; d < n; d++) foreign_u64(f, (uint64_t)t->ne[d]);
        foreign_u32(f, t->type);
        foreign_u64(f, t->offset);
    }
    while (ftell(f) % 32) fputc(0, f);
    const long data = ftell(f);
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        while (ftell(f) < data + (long)g->tensor[i].offset) fputc(0, f);
        fwrite(g->tensor[i].data, 1, (size_t)g->tensor[i].bytes, f);
    }
    while (ftell(f) % 32) fputc(0, f);
    gguf_close(g);
    return fclose(f) ? -1 : 0;
}

#endif
