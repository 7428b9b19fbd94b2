/* io.c - see io.h. */
#include "io_priv.h"

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

/* ---- maps ----
 * Every map that exists, for the check of a commit and for the handler of a map that was cut. */

#define MAX_MAPS 1024
struct io_live {
    uintptr_t from, to;
    const char *path;
    int fd;
    bool kept;
    uint64_t size;
    dev_t dev;
    ino_t ino;
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
                          .dev = st->st_dev,
                          .ino = st->st_ino,
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

void io_map_keep(struct io_map *m)
{
    if (m->live) m->live->kept = true;
}

int io_maps_refuse(const struct stat *out, const char *path, struct err *e)
{
    for (int i = 0; i < MAX_MAPS; i++) {
        const struct io_live *l = atomic_load(&live_map[i]);
        if (l && l->kept && l->dev == out->st_dev && l->ino == out->st_ino)
            return err_set(e, ERR_USAGE, "%s: the output is the same file as the input %s", path, l->path);
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
    if (fd < 0) {
        err_errno(e, "%s", path);
        return strcmp(path, "-") ? -1 : err_hint(e, "this is mapped, not read: a file, not standard input");
    }
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

static _Atomic(char *) live_tmp[IO_MAX_TMP];

bool io_tmp_enter(char *name)
{
    for (int i = 0; i < IO_MAX_TMP; i++) {
        char *none = NULL;
        if (atomic_compare_exchange_strong(&live_tmp[i], &none, name)) return true;
    }
    return false;
}

void io_tmp_leave(char *name)
{
    for (int i = 0; i < IO_MAX_TMP; i++) {
        char *it = name;
        if (atomic_compare_exchange_strong(&live_tmp[i], &it, NULL)) return;
    }
}

static void remove_temporaries(void)
{
    for (int i = 0; i < IO_MAX_TMP; i++) {
        char *name = atomic_load(&live_tmp[i]);
        if (name && *name) unlink(name);
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

void io_naming_begin(void)
{
    for (int nobody = NOBODY; !atomic_compare_exchange_strong(&turn, &nobody, NAMING); nobody = NOBODY)
        poll(NULL, 0, 1); /* a handler is ending the program */
}

void io_naming_end(void)
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

bool io_same_file(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
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
