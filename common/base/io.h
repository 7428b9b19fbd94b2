/* io.h - files: read-only maps, outputs that appear whole or not at all, and checked standard streams. */
#ifndef DFLASH_IO_H
#define DFLASH_IO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "err.h"

/* A read-only map of a whole regular file. Size 0 is legal (data NULL). A directory is an error that says so.
 */
struct io_map {
    const uint8_t *data;
    uint64_t size;
    char *path;
    struct io_live *live; /* what io_maps_check and the signal handler know of it */
};
int io_map_open(struct io_map *m, const char *path, struct err *e);
void io_map_close(struct io_map *m); /* zeroed struct is legal */
/* No output takes this file's place while it is mapped: opening or committing one at its path is ERR_USAGE.
 */
void io_map_keep(struct io_map *m);
/* ERR_IO naming the file if one that is mapped now was written to or cut since it was mapped. io_out_commit
 * asks first, so nothing made from such a file appears. */
int io_maps_check(struct err *e);
/* The n bytes at p, inside a map, were read and are not needed soon: the process gives their whole pages
 * back, so that streaming through a large file stays small. Reading them again is legal. Never for memory
 * that is not a map. */
void io_map_done(const void *p, uint64_t n);

/* 1 where there is something at path, also a link that points nowhere; 0 where there is nothing; -1 where
 * that cannot be told (a folder that may not be searched, a loop of links). For files that may be absent:
 * what is there is then opened, and said to be missing only where it is. */
int io_exists(const char *path, struct err *e);

/* An output file. path "-" or NULL: stdout, written through. Else a file without a name in path's folder
 * (O_TMPFILE), of which nothing is left whatever ends the program; io_out_commit syncs it, names it
 * PATH.PID-K.tmp and renames that. Where the file system has no such files (NFS, FAT), or there is no /proc,
 * it has that name from the beginning: it is unlinked by io_out_abort, on failure, and on
 * SIGINT/SIGTERM/SIGHUP (io_signals_install), and SIGKILL leaves it. Without force an existing path is
 * refused, and a path that is the same file as one of inputs always is (ERR_USAGE); with it the new file has
 * the mode of the one that it replaces. A device or a pipe at path is written through like stdout: renaming
 * over it would replace it by a file. */
struct io_out {
    int fd;
    bool to_stdout, force;
    char *path, *tmp; /* tmp NULL: written through; "": a file without a name */
    bool unnamed;
    char *old;        /* within a commit: where the file that is replaced waits; else NULL */
    bool named;       /* the commit has renamed it */
    uint64_t written; /* bytes handed to io_out_write */
    uint8_t *buf;     /* NULL: not open (a zeroed struct is legal everywhere but in write) */
    size_t used;
};
int io_out_open(struct io_out *o, const char *path, bool force, const char *const *inputs, int n_inputs,
                struct err *e);
/* Written through to a descriptor that is open, and is o's from here on, also on failure; name for messages.
 */
int io_out_fd(struct io_out *o, int fd, const char *name, struct err *e);
int io_out_write(struct io_out *o, const void *data, size_t n,
                 struct err *e); /* buffered; handles short writes */
int io_out_flush(struct io_out *o, struct err *e);
/* The n bytes at an offset of a file, whatever was written before; not mixed with io_out_write. ERR_USAGE
 * where the output is not a file of its own (stdout, a pipe, a device). */
int io_out_place(struct io_out *o, uint64_t offset, const void *data, size_t n, struct err *e);
int io_out_commit(struct io_out *o, struct err *e); /* flush, fsync, rename; then the struct is closed */
/* The same for n outputs of one run: all of their bytes are safe before the first gets its name, and where
 * one cannot get it, none of them stays and files that were to be replaced (force) are what and where they
 * were. Until the last has its name they are kept beside as PATH.PID-N.old: by a second link, so that PATH is
 * never missing, or, on a file system without links, by a rename. SIGINT, SIGTERM and SIGHUP wait for that
 * moment. Only SIGKILL or a crash of the machine within it leaves .old files, which then hold what was
 * replaced. */
int io_outs_commit(struct io_out *const *o, int n, struct err *e);
/* The part of a commit that a full disk can fail: flush and fsync, but no name yet. Nothing is written
 * after it. On failure abort the output. */
int io_out_prepare(struct io_out *o, struct err *e);
void io_out_abort(struct io_out *o); /* legal after commit: does nothing */
/* Remove temporaries when the program exits with outputs open, and when SIGINT, SIGTERM, SIGHUP or SIGPIPE
 * end it, which they still do; a write past the limit on file sizes fails instead of ending it. Reading a
 * mapped file that another process cut ends the program with a message and exit status 4 (ERR_IO),
 * temporaries removed. */
void io_signals_install(void);

/* From here on the first SIGINT only says so (io_interrupted), and SIGPIPE is ignored from then on, for
 * Ctrl-C ends the readers of a pipe too; a second SIGINT ends the program as before. Where SIGINT is ignored
 * it stays so. */
void io_interrupts_catch(void);
bool io_interrupted(void);
/* At the end of a program: where a SIGINT was caught, end by it, so that the parent sees it. What is not
 * committed by then is removed. */
void io_interrupts_end(void);

/* Around a parallel region of OpenMP. Its runtime ends the program where it gets no threads or no memory,
 * with status 1, which would read as a negative answer: between these two, an exit has status 4 (ERR_IO) and
 * removes the temporaries, once io_signals_install was called. */
void io_team_begin(void);
void io_team_end(void);

/* Whether what is read from fd, or from path (which may be "-"), may have to be waited for: a pipe, a socket,
 * a terminal. false too where there is nothing: reading it will say so. */
bool io_waits(int fd);
bool io_path_waits(const char *path);
/* Are both there, and one file, by whatever names? */
bool io_same_file(const char *a, const char *b);
/* Is something to be read there now, without waiting: bytes in a pipe, or the rest of a file? */
bool io_holds_data(int fd);
/* Read a stream to its end, at most cap bytes (more is ERR_FORMAT). *data is mem_alloc'ed. */
int io_read_all(int fd, const char *name, uint64_t cap, uint8_t **data, uint64_t *size, struct err *e);
/* One read, restarted on EINTR; *got 0 at the end. */
int io_read_some(int fd, const char *name, void *buf, size_t n, size_t *got, struct err *e);

/* Token streams: raw little-endian int32 ids, nothing else. A size that is no multiple of 4 is ERR_FORMAT. */
int io_read_tokens(int fd, const char *name, int32_t **ids, size_t *n, struct err *e);
/* After an error that data is not what was expected: is it a state? Then a hint says so. */
bool io_hint_state(const void *data, size_t n, struct err *e);
/* After the error that data, read as ids, is no prompt: a hint where it is text, a state or a GGUF file.
 * Returns -1. */
int io_hint_tokens(const void *data, size_t n, struct err *e);
/* The same of data, n of size bytes, that is no model or no state: a hint where it is a state, a GGUF file or
 * token ids. Returns -1. */
int io_hint_file(const void *data, size_t n, uint64_t size, struct err *e);
int io_write_tokens(struct io_out *o, const int32_t *ids, size_t n, struct err *e);

/* The folder that path lies in; p has PATH_MAX bytes. Returns p. */
const char *io_folder(const char *path, char *p);
/* path as a word of a shell command, for hints that one can paste: as it is, or in quotes. Returns out. */
const char *io_shell_word(const char *path, char *out, size_t n);

#endif
