/* inject.c - a library to preload that makes the nth call of a kind fail, or delivers reads and writes in small pieces.
 *
 * INJECT_FAIL=KIND:N    the Nth call of KIND fails, and KIND:N+ every one after it too. Kinds: alloc (malloc, calloc, realloc
 *                       and the aligned ones; ENOMEM), mmap (ENOMEM), thread (pthread_create; EAGAIN), open (EMFILE), read
 *                       and pread (EIO), write and pwrite (ENOSPC), fsync, close (EIO), rename (EIO), link (EPERM, as on a
 *                       file system without them)
 * INJECT_RAISE=KIND:N   SIGTERM comes before the Nth call of KIND
 * INJECT_SHORT=1        a read or a write moves at most 1, 2, 3 ... 61 bytes, and every third call is first interrupted (EINTR),
 *                       as is every other fsync; writes to stderr are left alone
 * INJECT_COUNT=FILE     at exit: a line "KIND N" a kind, how many calls there were; behind it, with INJECT_PATHS=1, the
 *                       numbers of those that stand for all: of every path of calls (24 levels) that led to one, the first,
 *                       the last, and the one whose number on that path is the largest power of two
 *
 * Counting begins when the program's own code does. Calls within the C library that pass none of its public names (stdio's
 * own reads and writes) are not seen. Works under a sanitizer (ASAN_OPTIONS=verify_asan_link_order=0): what is not made to
 * fail goes to the next definition, which is the sanitizer's. */
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

enum kind { ALLOC, MMAP, THREAD, OPEN, READ, WRITE, FSYNC, CLOSE, RENAME, LINK, N_KINDS };
static const char *const names[N_KINDS] = {"alloc", "mmap", "thread", "open", "read", "write", "fsync", "close", "rename", "link"};
static const int why[N_KINDS] = {ENOMEM, ENOMEM, EAGAIN, EMFILE, EIO, ENOSPC, EIO, EIO, EIO, EPERM};
static atomic_ulong count[N_KINDS];
static unsigned long fail_at[N_KINDS], raise_at[N_KINDS];
static bool fail_after[N_KINDS], begun, pieces;
static const char *count_path;
static bool ready, paths;
static __thread bool resolving; /* within dlsym or backtrace: nothing counts */

/* ---- paths of calls ---- */

#define PATHS (1 << 16)
static struct path {
    uint64_t hash; /* 0: free */
    enum kind kind;
    unsigned long calls, first, power, last;
} path[PATHS];
static atomic_flag path_lock = ATOMIC_FLAG_INIT;

static void note_path(enum kind k, unsigned long n)
{
    void *at[26];
    uint64_t h = 0x9e3779b97f4a7c15u + k;
    resolving = true;
    int depth = backtrace(at, 26);
    resolving = false;
    for (int i = 2; i < depth; i++) h = (h ^ (uint64_t)(uintptr_t)at[i]) * 0x100000001b3u; /* without this and fails */
    if (!h) h = 1;
    while (atomic_flag_test_and_set(&path_lock)) continue;
    size_t i = h >> 20 & (PATHS - 1), steps = 0;
    while (path[i].hash && path[i].hash != h && steps++ < PATHS) i = (i + 1) & (PATHS - 1);
    if (steps < PATHS) {
        struct path *p = &path[i];
        p->hash = h, p->kind = k, p->last = n;
        if (!p->calls++) p->first = n;
        if (!(p->calls & (p->calls - 1))) p->power = n;
    }
    atomic_flag_clear(&path_lock);
}

static bool fails(enum kind k)
{
    if (!begun || resolving) return false;
    unsigned long n = atomic_fetch_add(&count[k], 1) + 1;
    if (paths) note_path(k, n);
    if (raise_at[k] == n) kill(getpid(), SIGTERM);
    if (!fail_at[k] || n < fail_at[k] || (n > fail_at[k] && !fail_after[k])) return false;
    errno = why[k];
    return true;
}

/* ---- the next definitions ----
 * dlsym may allocate, and a sanitizer allocates before this library is even relocated: until the constructor has run, and
 * within dlsym, memory comes from a buffer that is never given back, and nothing but its own functions is called. */

static char early[4 << 20] __attribute__((aligned(16)));
static atomic_size_t early_used;

static void *early_alloc(size_t n)
{
    size_t at = atomic_fetch_add(&early_used, (n + 31) / 16 * 16);
    if (at + n + 16 > sizeof early) __builtin_trap();
    *(size_t *)(void *)(early + at) = n;
    return early + at + 16;
}

static bool is_early(const void *p)
{
    return (const char *)p >= early && (const char *)p < early + sizeof early;
}

static void *next(const char *name)
{
    resolving = true;
    void *p = dlsym(RTLD_NEXT, name);
    resolving = false;
    if (!p) _exit(98);
    return p;
}
/* real(f): the next definition of f, with its type. */
#define NEXT(f)                                                                                              \
    static __typeof__(&f) real_##f;                                                                          \
    if (!real_##f) *(void **)&real_##f = next(#f)

/* ---- memory ---- */

void *malloc(size_t n)
{
    if (!ready || resolving) return early_alloc(n);
    NEXT(malloc);
    return fails(ALLOC) ? NULL : real_malloc(n);
}

void *calloc(size_t count_of, size_t size)
{
    if (!ready || resolving) return early_alloc(count_of * size); /* zero as it is */
    NEXT(calloc);
    return fails(ALLOC) ? NULL : real_calloc(count_of, size);
}

void *realloc(void *p, size_t n)
{
    if (!ready || resolving || is_early(p)) {
        size_t old = p ? *(size_t *)(void *)((char *)p - 16) : 0;
        char *q = !ready || resolving ? early_alloc(n) : malloc(n);
        for (size_t i = 0; q && i < old && i < n; i++) q[i] = ((char *)p)[i];
        return q;
    }
    NEXT(realloc);
    return fails(ALLOC) ? NULL : real_realloc(p, n);
}

void free(void *p)
{
    if (!p || is_early(p)) return;
    NEXT(free);
    real_free(p);
}

int posix_memalign(void **p, size_t alignment, size_t n)
{
    NEXT(posix_memalign);
    return fails(ALLOC) ? ENOMEM : real_posix_memalign(p, alignment, n);
}

void *aligned_alloc(size_t alignment, size_t n)
{
    NEXT(aligned_alloc);
    return fails(ALLOC) ? NULL : real_aligned_alloc(alignment, n);
}

void *mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset)
{
    NEXT(mmap);
    return fails(MMAP) ? MAP_FAILED : real_mmap(at, n, prot, flags, fd, offset);
}

int pthread_create(pthread_t *id, const pthread_attr_t *attr, void *(*f)(void *), void *arg)
{
    NEXT(pthread_create);
    return fails(THREAD) ? EAGAIN : real_pthread_create(id, attr, f, arg);
}

/* ---- files ---- */

int open(const char *path, int flags, ...)
{
    va_list ap;
    mode_t mode = 0;
    NEXT(open);
    if (flags & (O_CREAT | __O_TMPFILE)) {
        va_start(ap, flags);
        mode = va_arg(ap, mode_t);
        va_end(ap);
    }
    return fails(OPEN) ? -1 : real_open(path, flags, mode);
}

/* How many of n bytes this call may move; 0: it is interrupted. */
static size_t piece(size_t n)
{
    static atomic_uint turn;
    unsigned t = atomic_fetch_add(&turn, 1);
    if (!pieces || !n) return n ? n : 1;
    if (t % 3 == 2) return 0;
    return n < 1 + t % 61 ? n : 1 + t % 61;
}

static ssize_t interrupted(void)
{
    errno = EINTR;
    return -1;
}

ssize_t read(int fd, void *buf, size_t n)
{
    NEXT(read);
    if (fails(READ)) return -1;
    size_t k = piece(n);
    return k ? real_read(fd, buf, n ? k : 0) : interrupted();
}

ssize_t pread(int fd, void *buf, size_t n, off_t offset)
{
    NEXT(pread);
    if (fails(READ)) return -1;
    size_t k = piece(n);
    return k ? real_pread(fd, buf, n ? k : 0, offset) : interrupted();
}

ssize_t write(int fd, const void *buf, size_t n)
{
    NEXT(write);
    if (fd == STDERR_FILENO) return real_write(fd, buf, n);
    if (fails(WRITE)) return -1;
    size_t k = piece(n);
    return k ? real_write(fd, buf, n ? k : 0) : interrupted();
}

ssize_t pwrite(int fd, const void *buf, size_t n, off_t offset)
{
    NEXT(pwrite);
    if (fails(WRITE)) return -1;
    size_t k = piece(n);
    return k ? real_pwrite(fd, buf, n ? k : 0, offset) : interrupted();
}

int fsync(int fd)
{
    static atomic_uint turn;
    NEXT(fsync);
    if (fails(FSYNC)) return -1;
    if (pieces && atomic_fetch_add(&turn, 1) % 2 == 0) return (int)interrupted();
    return real_fsync(fd);
}

int close(int fd)
{
    NEXT(close);
    if (!fails(CLOSE)) return real_close(fd);
    real_close(fd);
    errno = EIO;
    return -1;
}

int rename(const char *from, const char *to)
{
    NEXT(rename);
    return fails(RENAME) ? -1 : real_rename(from, to);
}

int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
    NEXT(renameat2);
    return fails(RENAME) ? -1 : real_renameat2(from_dir, from, to_dir, to, flags);
}

int link(const char *from, const char *to)
{
    NEXT(link);
    return fails(LINK) ? -1 : real_link(from, to);
}

/* ---- begin and end ---- */

static void read_point(const char *text, unsigned long at[N_KINDS], bool after[N_KINDS])
{
    for (int k = 0; text && k < N_KINDS; k++) {
        size_t n = strlen(names[k]);
        if (strncmp(text, names[k], n) || text[n] != ':') continue;
        char *end;
        at[k] = strtoul(text + n + 1, &end, 10);
        after[k] = *end == '+';
    }
}

__attribute__((constructor)) static void begin(void)
{
    bool ignored[N_KINDS];
    void *warm[4];
    read_point(getenv("INJECT_FAIL"), fail_at, fail_after);
    read_point(getenv("INJECT_RAISE"), raise_at, ignored);
    pieces = getenv("INJECT_SHORT") != NULL;
    count_path = getenv("INJECT_COUNT");
    unsetenv("LD_PRELOAD"); /* not for the programs that this one starts */
    ready = true;
    paths = getenv("INJECT_PATHS") && backtrace(warm, 4); /* its first call loads a library */
    begun = true;
}

__attribute__((destructor)) static void end(void)
{
    begun = false;
    FILE *f = count_path ? fopen(count_path, "w") : NULL;
    for (int k = 0; f && k < N_KINDS; k++) {
        fprintf(f, "%s %lu", names[k], atomic_load(&count[k]));
        for (size_t i = 0; i < PATHS; i++) {
            const struct path *p = &path[i];
            if (!p->hash || p->kind != (enum kind)k) continue;
            fprintf(f, " %lu", p->first);
            if (p->power != p->first) fprintf(f, " %lu", p->power);
            if (p->last != p->first && p->last != p->power) fprintf(f, " %lu", p->last);
        }
        fprintf(f, "\n");
    }
    if (f) fclose(f);
}
