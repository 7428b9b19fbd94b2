/* io_out.c - outputs that appear whole or not at all; see io.h. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io_priv.h"
#include "mem.h"

#define OUT_BUF ((size_t)256 << 10)

const char *io_folder(const char *path, char *p)
{
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) : 0;
    if (!slash)
        strcpy(p, ".");
    else if (!n)
        strcpy(p, "/");
    else if (n < PATH_MAX)
        memcpy(p, path, n), p[n] = 0;
    else
        strcpy(p, ".");
    return p;
}

static int refuse_inputs(const struct stat *out, const char *name, const char *const *inputs, int n,
                         struct err *e)
{
    struct stat st;
    if (!S_ISREG(out->st_mode)) return 0; /* /dev/null or a terminal may be both */
    for (int i = 0; i < n; i++) {
        if (!inputs[i] || !strcmp(inputs[i], "-") ? fstat(0, &st) : stat(inputs[i], &st)) continue;
        if (st.st_dev == out->st_dev && st.st_ino == out->st_ino)
            return err_set(e, ERR_USAGE, "%s: the output is the same file as the input %s", name,
                           inputs[i] && strcmp(inputs[i], "-") ? inputs[i] : "stdin");
    }
    return io_maps_refuse(out, name, e);
}

static int write_all(struct io_out *o, const uint8_t *p, size_t n, struct err *e)
{
    while (n) {
        ssize_t k = write(o->fd, p, n > (1u << 30) ? 1u << 30 : n);
        if (k < 0 && errno == EINTR) continue;
        if (k < 0 && errno == EAGAIN) {
            struct pollfd pf = {.fd = o->fd, .events = POLLOUT};
            poll(&pf, 1, -1);
            continue;
        }
        if (k == 0) errno = EIO; /* a device that takes nothing and does not say why */
        if (k <= 0) return err_errno(e, "%s: cannot write", o->path);
        p += k;
        n -= (size_t)k;
    }
    return 0;
}

static int close_out(struct io_out *o, struct err *e)
{
    int fd = o->fd;
    o->fd = -1;
    o->unnamed = false;
    /* Interrupted, it is closed all the same, and the bytes are safe. */
    return close(fd) && errno != EINTR ? err_errno(e, "%s: cannot write", o->path) : 0;
}

/* path.PID-K.END; of a path whose last part leaves no room for that, so much of it as does. */
static void name_beside(char *s, size_t n, const char *path, unsigned k, const char *end)
{
    const char *slash = strrchr(path, '/');
    const size_t all = strlen(path), last = slash ? strlen(slash + 1) : all, room = NAME_MAX - 32;
    snprintf(s, n, "%.*s.%ld-%u.%s", (int)(all - (last > room ? last - room : 0)), path, (long)getpid(), k,
             end);
}

/* The name of a temporary that a handler may read at any time: never a part of it, which is somebody's file.
 */
static void tmp_name(struct io_out *o, unsigned k)
{
    const size_t n = strlen(o->path) + 48;
    o->tmp[0] = 0;
    atomic_signal_fence(memory_order_seq_cst);
    name_beside(o->tmp + 1, n, o->path, k, "tmp");
    const char first = o->tmp[1];
    memmove(o->tmp + 1, o->tmp + 2, strlen(o->tmp + 1));
    atomic_signal_fence(memory_order_seq_cst);
    o->tmp[0] = first;
}

/* A file without a name, so that nothing is left of it whatever ends the program; -1 where the file system
 * has none, or where there is no /proc to name it by. */
static int open_unnamed(const char *path)
{
    char dir[PATH_MAX];
    return access("/proc/self/fd", X_OK) ? -1
                                         : open(io_folder(path, dir), O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);
}

static int create_named(struct io_out *o)
{
    int fd = -1;
    for (unsigned k = 0; k < 1000 && fd < 0; k++) {
        tmp_name(o, k);
        fd = open(o->tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd < 0 && errno != EEXIST) break;
    }
    return fd;
}

static int create_tmp(struct io_out *o, struct err *e)
{
    o->tmp = mem_calloc(strlen(o->path) + 50, 1); /* "": no name yet */
    if (!o->tmp) return err_set(e, ERR_IO, "%s: out of memory (name of a temporary file)", o->path);
    if (!io_tmp_enter(o->tmp)) {
        mem_free(o->tmp);
        o->tmp = NULL;
        return err_set(e, ERR_IO, "%s: too many outputs open at once (at most %d)", o->path, IO_MAX_TMP);
    }
    o->fd = open_unnamed(o->path);
    o->unnamed = o->fd >= 0;
    if (o->unnamed || (o->fd = create_named(o)) >= 0) return 0;
    err_errno(e, "%s: cannot create %s", o->path, o->tmp);
    io_tmp_leave(o->tmp);
    mem_free(o->tmp);
    o->tmp = NULL;
    return -1;
}

/* The bytes of from in a file with a name, synced: where a file without one cannot be given any. */
static int copy_named(struct io_out *o, struct err *e)
{
    struct stat st;
    const int from = o->fd;
    o->unnamed = false;
    o->fd = create_named(o);
    if (o->fd < 0) {
        err_errno(e, "%s: cannot create %s", o->path, o->tmp);
        o->tmp[0] = 0;
        o->fd = from;
        return -1;
    }
    int rc = fstat(from, &st) || (fchmod(o->fd, st.st_mode & 0777) && errno != EPERM && errno != ENOSYS)
                 ? err_errno(e, "%s: cannot keep the file's mode", o->path)
                 : 0;
    ssize_t got = 0;
    for (off_t at = 0; rc == 0 && (got = pread(from, o->buf, OUT_BUF, at)) != 0; at += got) {
        if (got < 0 && errno == EINTR) {
            got = 0;
            continue;
        }
        rc =
            got < 0 ? err_errno(e, "%s: cannot read it back", o->path) : write_all(o, o->buf, (size_t)got, e);
    }
    close(from);
    if (rc == 0 && fsync(o->fd)) rc = err_errno(e, "%s: cannot write", o->path);
    return rc;
}

/* The temporary's name, just before the file's own, and its end: the bytes are safe. */
static int name_tmp(struct io_out *o, struct err *e)
{
    char fd_path[64];
    if (!o->unnamed) return 0;
    snprintf(fd_path, sizeof fd_path, "/proc/self/fd/%d", o->fd);
    int rc = -1;
    for (unsigned k = 0; k < 1000 && rc; k++) {
        tmp_name(o, k);
        rc = linkat(AT_FDCWD, fd_path, AT_FDCWD, o->tmp, AT_SYMLINK_FOLLOW);
        if (rc) {
            o->tmp[0] = 0;
            if (errno != EEXIST) break;
        }
    }
    if (rc && copy_named(o, e)) return -1;
    return close_out(o, e);
}

/* path exists: st is what stat says of it. Leaves o->fd open where it is a device or a pipe. */
static int open_existing(struct io_out *o, const struct stat *st, struct err *e)
{
    char real[PATH_MAX];
    if (S_ISDIR(st->st_mode))
        return err_set(e, ERR_IO, "%s: is a directory (expected a file to write)", o->path);
    if (!S_ISREG(st->st_mode)) {
        o->fd = open(o->path, O_WRONLY | O_CLOEXEC);
        return o->fd < 0 ? err_errno(e, "%s", o->path) : 0;
    }
    if (!o->force) {
        err_set(e, ERR_USAGE, "%s: exists already", o->path);
        return err_hint(e, "--force replaces it");
    }
    /* Through a link: what it points at is replaced, and the link stays. */
    if (!realpath(o->path, real)) return err_errno(e, "%s: cannot follow the link", o->path);
    char *p = mem_strdup(real);
    if (!p) return err_set(e, ERR_IO, "%s: out of memory (path)", o->path);
    mem_free(o->path);
    o->path = p;
    return 0;
}

int io_out_fd(struct io_out *o, int fd, const char *name, struct err *e)
{
    *o = (struct io_out){.fd = fd, .buf = mem_alloc(OUT_BUF), .path = mem_strdup(name)};
    if (o->buf && o->path) return 0;
    err_set(e, ERR_IO, "%s: out of memory (output buffer)", name);
    if (!o->buf && !o->path) close(fd);
    io_out_abort(o);
    return -1;
}

int io_out_open(struct io_out *o, const char *path, bool force, const char *const *inputs, int n_inputs,
                struct err *e)
{
    struct stat st;
    bool replaces = false; /* a file, whose mode stays: who may read it has been decided */
    memset(o, 0, sizeof *o);
    o->fd = -1;
    o->force = force;
    o->to_stdout = !path || !strcmp(path, "-");
    o->buf = mem_alloc(OUT_BUF);
    o->path = mem_strdup(o->to_stdout ? "stdout" : path);
    if (!o->buf || !o->path) {
        err_set(e, ERR_IO, "%s: out of memory (output buffer)", path ? path : "stdout");
        goto fail;
    }
    if (o->to_stdout) {
        o->fd = STDOUT_FILENO;
        if (!fstat(o->fd, &st) && refuse_inputs(&st, "stdout", inputs, n_inputs, e)) goto fail;
        return 0;
    }
    if (!*path) {
        err_set(e, ERR_USAGE, "the name of the output is empty");
        goto fail;
    }
    if (!stat(path, &st)) {
        if (refuse_inputs(&st, path, inputs, n_inputs, e) || open_existing(o, &st, e)) goto fail;
        replaces = S_ISREG(st.st_mode);
    } else if (errno != ENOENT) {
        err_errno(e, "%s", path);
        goto fail;
    } else if (!force && !lstat(path, &st)) { /* found now, not after hours, when the name is taken */
        err_set(e, ERR_USAGE, "%s: exists already, as a link to nothing", path);
        err_hint(e, "--force replaces it");
        goto fail;
    }
    if (o->fd < 0 && create_tmp(o, e)) goto fail;
    if (replaces && fchmod(o->fd, st.st_mode & 0777) && errno != EPERM &&
        errno != ENOSYS) { /* a file system without modes */
        err_errno(e, "%s: cannot keep the file's mode", o->path);
        goto fail;
    }
    return 0;
fail:
    io_out_abort(o);
    return -1;
}

int io_out_flush(struct io_out *o, struct err *e)
{
    size_t n = o->used;
    if (!o->buf) return 0;
    o->used = 0;
    return write_all(o, o->buf, n, e);
}

int io_out_write(struct io_out *o, const void *data, size_t n, struct err *e)
{
    o->written += n;
    if (n >= OUT_BUF - o->used) {
        if (io_out_flush(o, e)) return -1;
        if (n >= OUT_BUF) return write_all(o, data, n, e);
    }
    if (n) memcpy(o->buf + o->used, data, n);
    o->used += n;
    return 0;
}

int io_out_place(struct io_out *o, uint64_t offset, const void *data, size_t n, struct err *e)
{
    const uint8_t *p = data;
    if (!o->tmp)
        return err_set(e, ERR_USAGE, "%s: cannot be written out of order (expected a file)",
                       o->path ? o->path : "stdout");
    while (n) {
        const ssize_t done = pwrite(o->fd, p, n, (off_t)offset);
        if (done < 0 && errno == EINTR) continue;
        if (done == 0) errno = EIO;
        if (done <= 0) return err_errno(e, "%s: cannot write", o->path);
        p += done;
        n -= (size_t)done;
        offset += (uint64_t)done;
    }
    return 0;
}

/* Without --force a file that appeared meanwhile is not replaced, where the file system can tell. */
static int rename_tmp(struct io_out *o, struct err *e)
{
    if (!o->force) {
        if (!renameat2(AT_FDCWD, o->tmp, AT_FDCWD, o->path, RENAME_NOREPLACE)) return 0;
        if (errno == EEXIST) {
            err_set(e, ERR_USAGE, "%s: exists already (it appeared while it was being written)", o->path);
            return err_hint(e, "--force replaces it");
        }
        if (errno != EINVAL && errno != ENOSYS) return err_errno(e, "%s: cannot rename %s", o->path, o->tmp);
    }
    if (rename(o->tmp, o->path)) return err_errno(e, "%s: cannot rename %s", o->path, o->tmp);
    return 0;
}

int io_out_prepare(struct io_out *o, struct err *e)
{
    if (!o->buf) return 0;
    struct stat there;
    if (io_out_flush(o, e) || io_maps_check(e)) return -1;
    if (o->to_stdout || o->fd < 0) return 0;
    if (o->tmp && !stat(o->path, &there) && io_maps_refuse(&there, o->path, e)) return -1;
    int rc = fsync(o->fd);
    while (rc && errno == EINTR) rc = fsync(o->fd); /* network file systems let signals interrupt it */
    /* A pipe or a device has nothing to sync and says EINVAL. */
    if (rc && o->tmp) return err_errno(e, "%s: cannot write", o->path);
    return o->unnamed ? 0 : close_out(o, e); /* by it a file without a name gets one */
}

/* What has the name of o now stays beside it as o->old, until all outputs of the commit have their names: as
 * a second link, or, where the file system has none, under that name alone. */
static int keep_old(struct io_out *o, struct err *e)
{
    struct stat st;
    size_t n = strlen(o->path) + 48;
    if (!o->force || lstat(o->path, &st) || S_ISDIR(st.st_mode))
        return 0; /* nothing that would be replaced */
    char *old = mem_alloc(n);
    if (!old) return err_set(e, ERR_IO, "%s: out of memory (name of the file that is there)", o->path);
    for (unsigned k = 0; k < 1000; k++) {
        name_beside(old, n, o->path, k, "old");
        if (link(o->path, old) == 0) goto kept;
        if (errno == EPERM || errno == EOPNOTSUPP || errno == ENOSYS || errno == EMLINK) {
            /* A folder that takes no new name for it (sticky, another's file) takes no rename either. */
            if (lstat(old, &st) == 0) continue;
            if (rename(o->path, old) == 0) goto kept;
        }
        if (errno != EEXIST) break;
    }
    err_errno(e, "%s: cannot keep the file that is there as %s", o->path, old);
    mem_free(old);
    return -1;
kept:
    o->old = old;
    return 0;
}

/* Back to what was there before; named: o has its name already. */
static void take_back(struct io_out *o, bool named, struct err *e)
{
    if (!o->old) {
        if (named) unlink(o->path);
    } else if (rename(o->old, o->path)) {
        err_hint(e, "%s is now %s: it could not be put back (%s)", o->path, o->old, strerror(errno));
    } else {
        unlink(o->old); /* two links to one file: rename leaves both */
    }
}

/* The names of all of them; where one fails, all is as it was. A rename that fails changes nothing, so the
 * last one needs no old file kept. */
static int name_all(struct io_out *const *o, int n, struct err *e)
{
    int last = n - 1;
    while (last > 0 && !o[last]->tmp) last--;
    for (int i = 0; i <= last; i++)
        if (name_tmp(o[i], e)) return -1;
    for (int i = 0; i <= last; i++) {
        if (!o[i]->tmp) continue;
        if ((i == last || keep_old(o[i], e) == 0) && rename_tmp(o[i], e) == 0) continue;
        for (int k = i; k >= 0; k--)
            if (o[k]->tmp) take_back(o[k], k < i, e);
        return -1;
    }
    for (int i = 0; i <= last; i++)
        if (o[i]->old) unlink(o[i]->old);
    return 0;
}

/* All named: their temporaries are no more. */
static int give_names(struct io_out *const *o, int n, struct err *e)
{
    io_naming_begin();
    int rc = name_all(o, n, e);
    for (int i = 0; i < n; i++) {
        mem_free(o[i]->old);
        o[i]->old = NULL;
        if (!o[i]->tmp || rc) continue;
        io_tmp_leave(o[i]->tmp);
        mem_free(o[i]->tmp);
        o[i]->tmp = NULL;
        o[i]->named = true;
    }
    io_naming_end();
    return rc;
}

int io_outs_commit(struct io_out *const *o, int n, struct err *e)
{
    char dir[PATH_MAX];
    int rc = 0;
    for (int i = 0; i < n && !rc; i++) rc = io_out_prepare(o[i], e);
    if (!rc) rc = give_names(o, n, e);
    for (int i = 0; i < n && !rc; i++) {
        if (!o[i]->named) continue;
        io_folder(o[i]->path,
                  dir); /* best effort: the bytes are safe, only the name may be lost with the power */
        int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd >= 0) {
            fsync(fd);
            close(fd);
        }
    }
    for (int i = 0; i < n; i++) io_out_abort(o[i]);
    return rc;
}

int io_out_commit(struct io_out *o, struct err *e)
{
    return io_outs_commit(&o, 1, e);
}

void io_out_abort(struct io_out *o)
{
    if (!o) return;
    if ((o->buf || o->path) && o->fd >= 0 && !o->to_stdout) close(o->fd);
    if (o->tmp) {
        if (o->tmp[0]) unlink(o->tmp);
        io_tmp_leave(o->tmp);
        mem_free(o->tmp);
    }
    mem_free(o->buf);
    mem_free(o->path);
    o->fd = -1;
    o->buf = NULL;
    o->path = o->tmp = NULL;
    o->used = 0;
}
