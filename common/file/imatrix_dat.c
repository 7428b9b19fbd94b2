/* imatrix_dat.c - the binary form of importance matrices, which tools of the ecosystem wrote before the GGUF.
 * Little-endian:
 *
 *   i32 entries
 *   an entry: i32 length of its name, the name; i32 chunks; i32 values; f32 values[]
 *   i32 chunks of all, i32 length of the data set's name, the name      (files of the first versions end
 * before either)
 *
 * A value is the mean square of a column times the entry's chunks; experts stand one after the other, each
 * over its own rows, and nothing says how many there are: the tensor does (imatrix_fit). */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "imatrix.h"

#define MAX_NAME 255 /* as in a GGUF (gguf_read.c) */

struct reader {
    const uint8_t *p;
    uint64_t n, at;
    struct err *e;
};

static int bad(struct reader *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static int bad(struct reader *r, const char *fmt, ...)
{
    char text[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return err_set(r->e, ERR_FORMAT,
                   "is no importance matrix, neither a GGUF nor the older binary form (offset %" PRIu64
                   ": %s)",
                   r->at, text);
}

static int take_i32(struct reader *r, const char *what, int32_t least, uint64_t most, int32_t *v)
{
    if (r->n - r->at < 4) return bad(r, "%s: the file ends", what);
    memcpy(v, r->p + r->at, 4);
    if (*v < least || (uint64_t)*v > most)
        return bad(r, "%s: expected %d to %" PRIu64 ", got %d", what, least, most, *v);
    r->at += 4;
    return 0;
}

/* A length and that many bytes, none of them a control character (messages print them). buf has room for most
 * + 1. */
static int take_text(struct reader *r, const char *what, int32_t least, uint64_t most, char *buf)
{
    int32_t n;
    if (take_i32(r, what, least, most, &n)) return -1;
    if (r->n - r->at < (uint64_t)n)
        return bad(r, "%s: %d bytes, the file has %" PRIu64 " more", what, n, r->n - r->at);
    for (int32_t i = 0; i < n; i++)
        if (r->p[r->at + (uint64_t)i] < 0x20 || r->p[r->at + (uint64_t)i] == 0x7f)
            return bad(r, "%s: a control character in it", what);
    if (n) memcpy(buf, r->p + r->at, (size_t)n);
    buf[n] = 0;
    r->at += (uint64_t)n;
    return 0;
}

static int take_entry(struct reader *r, struct imatrix *m)
{
    char name[MAX_NAME + 1];
    int32_t chunks, n;
    struct imatrix_entry *t;
    if (take_text(r, "length of a name", 1, MAX_NAME, name) ||
        take_i32(r, "chunks of an entry", 0, INT32_MAX, &chunks) ||
        take_i32(r, "values of an entry", 1, (r->n - r->at) / 4, &n))
        return -1;
    if ((r->n - r->at) / 4 < (uint64_t)n) return bad(r, "'%s': %d values, the file ends", name, n);
    if (imatrix_append(m, name, n, 1, &t, r->e)) return -1;
    t->count[0] = chunks;
    for (int32_t i = 0; i < n; i++) {
        float v;
        memcpy(&v, r->p + r->at + 4 * (uint64_t)i, 4);
        if (!(v >= 0) || !isfinite(v))
            return err_set(r->e, ERR_FORMAT, "'%s': value %d is %g (expected 0 or more)", name, i, (double)v);
        t->sum2[i] = v;
    }
    r->at += 4 * (uint64_t)n;
    return 0;
}

int imatrix_read_dat(struct imatrix *m, const uint8_t *data, uint64_t n, struct err *e)
{
    struct reader r = {.p = data, .n = n, .e = e};
    char set[4096];
    int32_t entries, chunks = 0;
    m->by_chunks = true;
    if (n < 17)
        return err_set(e, ERR_FORMAT, "is no importance matrix (expected 17 bytes or more, got %" PRIu64 ")",
                       n);
    if (take_i32(&r, "number of entries", 1, n / 17, &entries))
        return -1; /* 17: a name and a value of one each */
    for (int32_t i = 0; i < entries; i++)
        if (take_entry(&r, m)) return -1;
    if (r.at < n && take_i32(&r, "number of chunks", 0, INT32_MAX, &chunks)) return -1;
    m->n_chunks = (uint32_t)chunks;
    if (r.at < n) {
        if (take_text(&r, "length of the data set's name", 0, sizeof set - 1, set)) return -1;
        if (set[0] && imatrix_add_dataset(m, set, e)) return -1;
    }
    return r.at == n ? imatrix_sort(m, e) : bad(&r, "%" PRIu64 " bytes after the end", n - r.at);
}
