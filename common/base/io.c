/* io.c - see io.h. */
#include "io.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "mem.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "files are little-endian and mapped as they are: a big-endian host is not supported"
#endif

#define OUT_BUF ((size_t)256 << 10)

/* ---- maps ----
 * Every map that exists, for the check of a commit and for the handler of a map that was cut. */

#define MAX_MAPS 1024
struct io_live {
    uintptr_t from, to;
    const char *path;
    int fd;
    uint64_t size;
    struct timespec written;
};
static _Atomic(struct io_live *) live_map[MAX_MAPS];

static int map_enter(struct io_map *m, int fd, const struct stat *st, struct err *e)
{
    struct io_live *l = mem_alloc(sizeof *l);
    if (!l) return err_set(e, ERR_IO, "%s: out of memory (a map)", m->path);
    *l = (struct io_live){.from = (uintptr_t)m->data,
                          .to = (uintptr_t)m->data + (uintptr_t)m->size,
                          .path = m->path,
                          .fd = fd,
                          .size = m->size,
                          .written = st->st_mtim};
    for (int i = 0; i < MAX_MAPS; i++) {
        struct io_live *none = NULL;
        if (!atomic_compare_exchange_strong(&live_map[i], &none, l)) continue;
        m->live = l;
        return 0;
    }
    mem_free(l);
    return err_set(e, ERR_IO, "%s: too many files open at once (at most %d)", m->path, MAX_MAPS);
}

int io_maps_check(struct err *e)
{
    for (int i = 0; i < MAX_MAPS; i++) {
        const struct io_live *l = atomic_load(&live_map[i]);
        struct stat st;
        if (!l) continue;
        if (fstat(l->fd, &st)) return err_errno(e, "%s", l->path);
        if ((uint64_t)st.st_size != l->size || st.st_mtim.tv_sec != l->written.tv_sec ||
            st.st_mtim.tv_nsec != l->written.tv_nsec)
            return err_set(e, ERR_IO,
                           "%s: changed while it was read (expected %llu bytes untouched, got %llu)", l->path,
                           (unsigned long long)l->size, (unsigned long long)st.st_size);
    }
    return 0;
}

int io_map_open(struct io_map *m, const char *path, struct err *e)
{
    struct stat st;
    void *p;
    int fd;
    memset(m, 0, sizeof *m);
    /* Non-blocking, so that a pipe without a writer is refused below instead of waited for. */
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return err_errno(e, "%s", path);
    if (fstat(fd, &st)) {
        err_errno(e, "%s", path);
        goto fail;
    }
    if (S_ISDIR(st.st_mode)) {
        err_set(e, ERR_IO, "%s: is a directory (expected a file)", path);
        goto fail;
    }
    if (!S_ISREG(st.st_mode)) {
        err_set(e, ERR_IO, "%s: is not a regular file, so it cannot be mapped", path);
        goto fail;
    }
    m->path = mem_strdup(path);
    if (!m->path) {
        err_set(e, ERR_IO, "%s: out of memory (path)", path);
        goto fail;
    }
    m->size = (uint64_t)st.st_size;
    if (m->size) {
        p = m->size > SIZE_MAX ? MAP_FAILED : mmap(NULL, (size_t)m->size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED) {
            err_errno(e, "%s: cannot map %llu bytes", path, (unsigned long long)m->size);
            goto fail;
        }
        m->data = p;
    }
    if (map_enter(m, fd, &st, e)) goto fail;
    return 0;
fail:
    if (m->data) munmap((void *)(uintptr_t)m->data, (size_t)m->size);
    close(fd);
    mem_free(m->path);
    memset(m, 0, sizeof *m);
    return -1;
}

void io_map_close(struct io_map *m)
{
    if (!m) return;
    for (int i = 0; m->live && i < MAX_MAPS; i++) {
        struct io_live *it = m->live;
        if (atomic_compare_exchange_strong(&live_map[i], &it, NULL)) break;
    }
    if (m->live) close(m->live->fd);
    mem_free(m->live);
    if (m->data) munmap((void *)(uintptr_t)m->data, (size_t)m->size);
    mem_free(m->path);
    memset(m, 0, sizeof *m);
}

void io_map_done(const void *p, uint64_t n)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = ((uintptr_t)p + page - 1) & ~(page - 1),
              to = ((uintptr_t)p + (uintptr_t)n) & ~(page - 1);
    if (to > from)
        (void)madvise((void *)from, to - from, MADV_DONTNEED); /* a hint: failure changes nothing */
}

int io_exists(const char *path, struct err *e)
{
    struct stat st;
    if (!lstat(path, &st)) return 1;
    return errno == ENOENT ? 0 : err_errno(e, "%s", path);
}

/* ---- temporaries and signals ----
 * The names of the temporaries that exist, for the handler. A name is entered before the file is created and
 * taken out before its memory is freed, so that a signal at any time leaves no file behind. */

#define MAX_TMP 16
static _Atomic(char *) live_tmp[MAX_TMP];

static bool tmp_enter(char *name)
{
    for (int i = 0; i < MAX_TMP; i++) {
        char *none = NULL;
        if (atomic_compare_exchange_strong(&live_tmp[i], &none, name)) return true;
    }
    return false;
}

static void tmp_leave(char *name)
{
    for (int i = 0; i < MAX_TMP; i++) {
        char *it = name;
        if (atomic_compare_exchange_strong(&live_tmp[i], &it, NULL)) return;
    }
}

static void remove_temporaries(void)
{
    for (int i = 0; i < MAX_TMP; i++) {
        char *name = atomic_load(&live_tmp[i]);
        if (name) unlink(name);
    }
}

/* A page of a map that is no longer there: somebody cut the file. Any other address is a defect of ours, and
 * keeps the default action. */
static void on_bus_error(int sig, siginfo_t *info, void *context)
{
    static const char text[] = ": was cut by another process while it was read\n";
    uintptr_t at = (uintptr_t)info->si_addr;
    (void)context;
    remove_temporaries();
    for (int i = 0; i < MAX_MAPS; i++) {
        const struct io_live *l = atomic_load(&live_map[i]);
        if (!l || at < l->from || at >= l->to) continue;
        if (write(STDERR_FILENO, l->path, strlen(l->path)) < 0 ||
            write(STDERR_FILENO, text, sizeof text - 1) < 0)
            _exit(ERR_IO); /* nobody to tell */
        _exit(ERR_IO);
    }
    raise(sig);
}

/* While the outputs of a commit get their names, a signal waits: it would leave some new and others old. The
 * handler may run on any thread, so one word says who goes first. */
enum { NOBODY, NAMING, ENDING };
static atomic_int turn;
static atomic_int waiting; /* a signal that came while NAMING */

static void on_signal(int sig)
{
    int nobody = NOBODY;
    if (!atomic_compare_exchange_strong(&turn, &nobody, ENDING) && nobody == NAMING) {
        atomic_store(&waiting, sig);
        return;
    }
    remove_temporaries();
    raise(sig); /* SA_RESETHAND: the default action follows, so the parent sees the signal */
}

static void naming_begin(void)
{
    for (int nobody = NOBODY; !atomic_compare_exchange_strong(&turn, &nobody, NAMING); nobody = NOBODY)
        poll(NULL, 0, 1); /* a handler is ending the program */
}

static void naming_end(void)
{
    atomic_store(&turn, NOBODY);
    int sig = atomic_exchange(&waiting, 0);
    if (!sig) return;
    remove_temporaries();
    raise(sig); /* its action is the default one since the handler ran */
}

static atomic_bool interrupt;

static void on_interrupt(int sig)
{
    const int before = errno;
    struct sigaction sa = {.sa_handler = on_signal, .sa_flags = (int)SA_RESETHAND},
                     none = {.sa_handler = SIG_IGN};
    sigaction(sig, &sa, NULL);
    sigaction(SIGPIPE, &none, NULL);
    atomic_store(&interrupt, true);
    errno = before;
}

void io_interrupts_catch(void)
{
    struct sigaction old, sa = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART};
    if (sigaction(SIGINT, NULL, &old) || old.sa_handler == SIG_IGN) return;
    sigemptyset(&sa.sa_mask);
    sigaction(SIGINT, &sa, NULL);
}

bool io_interrupted(void)
{
    return atomic_load(&interrupt);
}

void io_interrupts_end(void)
{
    if (!atomic_load(&interrupt)) return;
    remove_temporaries();
    signal(SIGINT, SIG_DFL);
    raise(SIGINT);
}

static atomic_int teams; /* parallel regions that are running */

void io_team_begin(void)
{
    atomic_fetch_add(&teams, 1);
}

void io_team_end(void)
{
    atomic_fetch_sub(&teams, 1);
}

/* A usage error that is seen late ends the program too: what is not committed by then is not wanted. */
static void on_program_exit(void)
{
    remove_temporaries();
    if (atomic_load(&teams)) _exit(ERR_IO); /* libgomp has said why */
}

void io_signals_install(void)
{
    static atomic_flag installed = ATOMIC_FLAG_INIT;
    if (!atomic_flag_test_and_set(&installed)) atexit(on_program_exit);
    static const int sigs[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};
    for (size_t i = 0; i < sizeof sigs / sizeof *sigs; i++) {
        struct sigaction old, sa;
        /* nohup stays nohup; a SIGPIPE that a careless parent ignores does not, `generate | head` must end.
         */
        if (sigs[i] != SIGPIPE && (sigaction(sigs[i], NULL, &old) || old.sa_handler == SIG_IGN)) continue;
        memset(&sa, 0, sizeof sa);
        sa.sa_handler = on_signal;
        sa.sa_flags = (int)SA_RESETHAND;
        sigemptyset(&sa.sa_mask);
        sigaction(sigs[i], &sa, NULL);
    }
    struct sigaction bus = {.sa_sigaction = on_bus_error, .sa_flags = (int)(SA_RESETHAND | SA_SIGINFO)};
    sigemptyset(&bus.sa_mask);
    sigaction(SIGBUS, &bus, NULL);
    signal(SIGXFSZ, SIG_IGN); /* past `ulimit -f` a write fails, and that is reported like a full disk */
}

/* ---- outputs ---- */

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
    return 0;
}

/* path.PID-K.END; of a path whose last part leaves no room for that, so much of it as does. */
static void name_beside(char *s, size_t n, const char *path, unsigned k, const char *end)
{
    const char *slash = strrchr(path, '/');
    const size_t all = strlen(path), last = slash ? strlen(slash + 1) : all, room = NAME_MAX - 32;
    snprintf(s, n, "%.*s.%ld-%u.%s", (int)(all - (last > room ? last - room : 0)), path, (long)getpid(), k,
             end);
}

static int create_tmp(struct io_out *o, struct err *e)
{
    size_t n = strlen(o->path) + 48;
    o->tmp = mem_alloc(n);
    if (!o->tmp) return err_set(e, ERR_IO, "%s: out of memory (name of a temporary file)", o->path);
    if (!tmp_enter(o->tmp)) {
        mem_free(o->tmp);
        o->tmp = NULL;
        return err_set(e, ERR_IO, "%s: too many outputs open at once (at most %d)", o->path, MAX_TMP);
    }
    for (unsigned k = 0; k < 1000; k++) {
        name_beside(o->tmp, n, o->path, k, "tmp");
        o->fd = open(o->tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (o->fd >= 0) return 0;
        if (errno != EEXIST) break;
    }
    err_errno(e, "%s: cannot create %s", o->path, o->tmp);
    tmp_leave(o->tmp);
    mem_free(o->tmp);
    o->tmp = NULL;
    return -1;
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

int io_out_fd(struct io_out *o, int fd, const char *name, struct err *e)
{
    *o = (struct io_out){.fd = fd, .buf = mem_alloc(OUT_BUF), .path = mem_strdup(name)};
    if (o->buf && o->path) return 0;
    err_set(e, ERR_IO, "%s: out of memory (output buffer)", name);
    if (!o->buf && !o->path) close(fd);
    io_out_abort(o);
    return -1;
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
    if (io_out_flush(o, e) || io_maps_check(e)) return -1;
    if (o->to_stdout || o->fd < 0) return 0;
    int rc = fsync(o->fd);
    while (rc && errno == EINTR) rc = fsync(o->fd); /* network file systems let signals interrupt it */
    /* A pipe or a device has nothing to sync and says EINVAL. */
    if (rc && o->tmp) return err_errno(e, "%s: cannot write", o->path);
    int fd = o->fd;
    o->fd = -1;
    /* Interrupted, it is closed all the same, and the bytes are safe. */
    return close(fd) && errno != EINTR ? err_errno(e, "%s: cannot write", o->path) : 0;
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
    naming_begin();
    int rc = name_all(o, n, e);
    for (int i = 0; i < n; i++) {
        mem_free(o[i]->old);
        o[i]->old = NULL;
        if (!o[i]->tmp || rc) continue;
        tmp_leave(o[i]->tmp);
        mem_free(o[i]->tmp);
        o[i]->tmp = NULL;
        o[i]->named = true;
    }
    naming_end();
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
        unlink(o->tmp);
        tmp_leave(o->tmp);
        mem_free(o->tmp);
    }
    mem_free(o->buf);
    mem_free(o->path);
    o->fd = -1;
    o->buf = NULL;
    o->path = o->tmp = NULL;
    o->used = 0;
}

/* ---- reading ---- */

static bool waits(const struct stat *st)
{
    return S_ISFIFO(st->st_mode) || S_ISSOCK(st->st_mode);
}

bool io_waits(int fd)
{
    struct stat st;
    return fstat(fd, &st) == 0 && (waits(&st) || isatty(fd));
}

bool io_path_waits(const char *path)
{
    struct stat st;
    return strcmp(path, "-") ? stat(path, &st) == 0 && (waits(&st) || S_ISCHR(st.st_mode))
                             : io_waits(STDIN_FILENO);
}

bool io_holds_data(int fd)
{
    struct stat st;
    int n = 0;
    if (fstat(fd, &st)) return false;
    if (S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode)) return ioctl(fd, FIONREAD, &n) == 0 && n > 0;
    return S_ISREG(st.st_mode) && lseek(fd, 0, SEEK_CUR) < st.st_size;
}

int io_read_some(int fd, const char *name, void *buf, size_t n, size_t *got, struct err *e)
{
    *got = 0;
    for (;;) {
        ssize_t k = read(fd, buf, n > (1u << 30) ? 1u << 30 : n);
        if (k >= 0) {
            *got = (size_t)k;
            return 0;
        }
        if (errno == EINTR) continue;
        if (errno == EAGAIN) {
            struct pollfd pf = {.fd = fd, .events = POLLIN};
            poll(&pf, 1, -1);
            continue;
        }
        return err_errno(e, "%s: cannot read", name);
    }
}

int io_read_all(int fd, const char *name, uint64_t cap, uint8_t **data, uint64_t *size, struct err *e)
{
    uint8_t *p = NULL, *q;
    uint64_t n = 0, room = 0, want;
    size_t got;
    *data = NULL;
    *size = 0;
    for (;;) {
        if (n == room) {
            want = room ? room * 2 : 64 << 10;
            if (want > cap && room <= cap)
                want = cap + 1 ? cap + 1 : cap; /* one more, to see that there is more */
            q = want > SIZE_MAX ? NULL : mem_realloc(p, (size_t)want);
            if (!q) {
                err_set(e, ERR_IO, "%s: out of memory (%llu bytes)", name, (unsigned long long)want);
                goto fail;
            }
            p = q;
            room = want;
        }
        if (io_read_some(fd, name, p + n, (size_t)(room - n), &got, e)) goto fail;
        if (!got) break;
        n += got;
        if (n > cap) {
            err_set(e, ERR_FORMAT, "%s: too long (expected at most %llu bytes)", name,
                    (unsigned long long)cap);
            goto fail;
        }
    }
    *data = p;
    *size = n;
    return 0;
fail:
    mem_free(p);
    return -1;
}

bool io_hint_state(const void *data, size_t n, struct err *e)
{
    if (n < 6 || memcmp(data, "DFSNAP", 6)) return false;
    err_hint(e, "this is a state: dflash-generate --state reads it");
    return true;
}

int io_hint_tokens(const void *data, size_t n, struct err *e)
{
    const uint8_t *p = data;
    if (n >= 6 && !memcmp(p, "DFSNAP", 6))
        return err_hint(e, "this is a state: --state FILE reads it, --state - from standard input");
    if (n >= 4 && !memcmp(p, "GGUF", 4))
        return err_hint(e, "this is a GGUF file: a model goes with -m or -d");
    /* Ids below 2^24 have a zero in every fourth byte, which text has not; a -1 has bytes that UTF-8 has not.
     */
    for (size_t i = 0; i < n && i < 64; i++)
        if (!p[i] || p[i] >= 0xf8 || (p[i] < 32 && !strchr("\t\n\r\f", p[i]))) return -1;
    return err_hint(e, "this looks like text: dflash-tokenize -m MODEL.gguf makes ids of it");
}

int io_hint_file(const void *data, size_t n, uint64_t size, struct err *e)
{
    const uint8_t *p = data;
    if (io_hint_state(p, n, e)) return -1;
    if (n >= 4 && !memcmp(p, "GGUF", 4))
        return err_hint(e, "this is a GGUF file: a model goes with -m or -d");
    if (n > 64) n = 64;
    if (n < 4 || size % 4) return -1;
    for (size_t i = 0; i + 4 <= n; i += 4) /* ids of a vocabulary: below 2^20 */
        if (p[i + 3] || p[i + 2] >= 16) return -1;
    return err_hint(e, "this looks like token ids: a prompt goes to standard input");
}

int io_read_tokens(int fd, const char *name, int32_t **ids, size_t *n, struct err *e)
{
    uint8_t *data;
    uint64_t size;
    *ids = NULL;
    *n = 0;
    if (io_read_all(fd, name, (uint64_t)INT32_MAX * 4, &data, &size, e)) return -1;
    if (size % 4) {
        err_set(e, ERR_FORMAT,
                "%s: not a token stream: its size is no multiple of 4 (expected int32 ids, got %llu bytes)",
                name, (unsigned long long)size);
        io_hint_tokens(data, (size_t)size, e);
        mem_free(data);
        return -1;
    }
    *ids = (int32_t *)(void *)data; /* little-endian host, and malloc's alignment */
    *n = (size_t)(size / 4);
    return 0;
}

int io_write_tokens(struct io_out *o, const int32_t *ids, size_t n, struct err *e)
{
    if (n > SIZE_MAX / 4) return err_set(e, ERR_IO, "%s: too many tokens (%zu)", o->path, n);
    return io_out_write(o, ids, n * 4, e);
}

/* ---- names ---- */

const char *io_shell_word(const char *path, char *out, size_t n)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+=,:@%";
    size_t at = 0;
    if (*path && path[strspn(path, plain)] == 0) {
        snprintf(out, n, "%s", path);
        return out;
    }
    if (n) out[0] = 0;
    if (n < 3) return out;
    out[at++] = '\'';
    for (const char *p = path; *p && at + 6 < n; p++) { /* room for a quote, the end and the last byte */
        if (*p == '\'') {
            memcpy(out + at, "'\\'", 3); /* close, a quoted quote; the byte itself opens again */
            at += 3;
        }
        out[at++] = *p;
    }
    out[at++] = '\'';
    out[at] = 0;
    return out;
}
