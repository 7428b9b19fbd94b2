/* snapshot.h - the container of a saved state: tagged sections, each with its length and checksum
 * (docs/snapshot.md).
 *
 * A container is a header (magic, version), sections in the writer's order, and an END section that counts
 * them. It is written and read strictly front to back, so both ends may be pipes. What the sections mean is
 * the business of state.h; here they are bytes. A writer borrows its io_out and never commits it; a reader
 * borrows its descriptor. Neither allocates, but snap_read_section. */
#ifndef DFLASH_SNAPSHOT_H
#define DFLASH_SNAPSHOT_H

#include <stdbool.h>
#include <stdint.h>
#include "../base/err.h"
#include "../base/io.h"

#define SNAP_VERSION 1

/* ---- writing: snap_begin, then for each section snap_section, any number of snap_write, snap_section_end;
 * snap_end ---- */
struct snap_writer {
    struct io_out *o;
    char tag[5];         /* of the open section, "" if none */
    uint64_t size, done; /* of its payload, in bytes */
    uint32_t crc;
    uint64_t n; /* sections so far */
};

int snap_begin(struct snap_writer *w, struct io_out *o, struct err *e);
/* tag: 4 characters of A-Z, 0-9 and blank; "END " is the container's own. size: bytes of payload, known
 * beforehand. */
int snap_section(struct snap_writer *w, const char *tag, uint64_t size, struct err *e);
int snap_write(struct snap_writer *w, const void *data, uint64_t n, struct err *e);
/* ERR_FORMAT if fewer than size bytes were written. */
int snap_section_end(struct snap_writer *w, struct err *e);
/* A whole section in one call. */
int snap_put(struct snap_writer *w, const char *tag, const void *data, uint64_t n, struct err *e);
int snap_end(struct snap_writer *w, struct err *e);

/* ---- reading: snap_open, then snap_next until it returns 0; for each section snap_read and
 * snap_section_check, or snap_read_section, or snap_skip. Every message names the section. ---- */
struct snap_reader {
    int fd;
    const char *name;    /* for messages; borrowed */
    char tag[5];         /* of the open section, "" if none */
    uint64_t size, done; /* of its payload */
    uint32_t crc;
    uint64_t n;    /* sections so far */
    uint64_t left; /* bytes that remain of a regular file; UINT64_MAX: a pipe, unknown */
};

/* Reads and checks the header. */
int snap_open(struct snap_reader *r, int fd, const char *name, struct err *e);
/* 1: a section is open, r->tag and r->size say which; 0: the end was reached, counted and nothing follows;
 * -1: error. The section before must have been read to its end and checked. */
int snap_next(struct snap_reader *r, struct err *e);
/* Exactly n bytes of the payload; ERR_FORMAT if the section has fewer left, or the stream ends. */
int snap_read(struct snap_reader *r, void *buf, uint64_t n, struct err *e);
/* After the last byte of the payload: compares the checksum. Until it returned 0 the bytes read are not to be
 * trusted. */
int snap_section_check(struct snap_reader *r, struct err *e);
/* The whole payload of the open section, checked: *data is mem_alloc'ed, with r->size bytes. ERR_FORMAT where
 * the section is larger than cap. Memory grows with the bytes that arrive, so that a false length costs
 * nothing. */
int snap_read_section(struct snap_reader *r, uint64_t cap, uint8_t **data, struct err *e);
/* Reads over what is left of the payload, and checks it. */
int snap_skip(struct snap_reader *r, struct err *e);

#endif
