/* inject.c - a library to preload that makes the nth call of a kind fail, or delivers reads and writes in
 * small pieces.
 *
 * INJECT_FAIL=KIND:N    the Nth call of KIND fails, and KIND:N+ every one after it too. Kinds: alloc (malloc,
 * calloc, realloc and the aligned ones; ENOMEM), mmap (ENOMEM), thread (pthread_create; EAGAIN), open
 * (EMFILE), read and pread (EIO), write and pwrite (ENOSPC), fsync, close (EIO), rename (EIO), link (EPERM,
 * as on a file system without them) INJECT_RAISE=KIND:N   SIGTERM comes before the Nth call of KIND
 * INJECT_SHORT=1        a read or a write moves at most 1, 2, 3 ... 61 bytes, and every third call is first
 * interrupted (EINTR), as is every other fsync; writes to stderr are left alone INJECT_COUNT=FILE     at
 * exit: a line "KIND N" a kind, how many calls there were; behind it, with INJECT_PATHS=1, the numbers of
 * those that stand for all: of every path of calls (24 levels) that led to one, the first, the last, and the
 * one whose number on that path is the largest power of two INJECT_FORK=FOLDER    before each call a copy of
 * the program (fork) in which it fails, and before each on files one that gets SIGTERM: the same as a run
 * with INJECT_FAIL or INJECT_RAISE each, in the time that what comes after the call takes. Only as long as
 * the program has one thread and has opened nothing to write, which a copy would share with it. Each copy
 * runs in a new folder FOLDER/N, with its stdout and stderr in out and err there. FOLDER/made gets, at exit,
 * "upto KIND N" for each kind (copies were made of its first N calls), and "HOW KIND N STATUS COPIES FOLDER"
 * for copies that ended alike: kind, status, stderr, and nothing on stdout nor in the folder. The folder of
 * the first is kept. One that wrote something stands alone.
 *
 * Counting begins with main. Calls within the C library that pass none of its public names (stdio's
 * own reads and writes) are not seen. Works under a sanitizer (ASAN_OPTIONS=verify_asan_link_order=0): what
 * is not made to fail goes to the next definition, which is the sanitizer's. */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <limits.h>
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
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

enum kind { ALLOC, MMAP, THREAD, OPEN, READ, WRITE, FSYNC, CLOSE, RENAME, LINK, N_KINDS };
static const char *const names[N_KINDS] = {"alloc", "mmap",  "thread", "open",   "read",
                                           "write", "fsync", "close",  "rename", "link"};
static const int why[N_KINDS] = {ENOMEM, ENOMEM, EAGAIN, EMFILE, EIO, ENOSPC, EIO, EIO, EIO, EPERM};
static atomic_ulong count[N_KINDS];
static unsigned long fail_at[N_KINDS], raise_at[N_KINDS];
static bool fail_after[N_KINDS], begun, pieces;
static const char *count_path;
static bool ready, paths;
static __thread bool resolving; /* within dlsym or backtrace: nothing counts */
static __thread bool aside;     /* this library's own calls: nothing counts */
static const char *fork_folder; /* NULL: no copies */
static bool fork_on, is_copy;

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
    for (int i = 2; i < depth; i++)
        h = (h ^ (uint64_t)(uintptr_t)at[i]) * 0x100000001b3u; /* without this and fails */
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

/* ---- copies ---- */

static unsigned long fork_upto[N_KINDS];
static struct alike {
    uint64_t hash;
    enum kind kind;
    bool raised;
    int status, folder;
    unsigned long n, copies;
} * alike;
static int n_alike, room_alike;

/* fd ends up as a new file at path that begins with what is in old. */
static void redirect_copy(int fd, const char *path, const char *old)
{
    char part[4096];
    int to = open(path, O_RDWR | O_CREAT | O_TRUNC, 0666), from = open(old, O_RDONLY);
    if (to < 0) _exit(97);
    for (ssize_t n; from >= 0 && (n = read(from, part, sizeof part)) > 0;)
        if (write(to, part, (size_t)n) != n) _exit(97);
    if (from >= 0) close(from);
    if (dup2(to, fd) < 0) _exit(97);
    close(to);
}

static uint64_t add_bytes(uint64_t h, const void *p, size_t n)
{
    for (size_t i = 0; i < n; i++) h = (h ^ ((const unsigned char *)p)[i]) * 0x100000001b3u;
    return h;
}

/* 0: the folder holds more than stderr. */
static uint64_t what_copy_left(const char *folder, int status, enum kind k, bool raised)
{
    char path[PATH_MAX + 8], part[4096];
    uint64_t h = 0x9e3779b97f4a7c15u;
    struct stat st;
    DIR *d = opendir(folder);
    if (!d) _exit(97);
    for (struct dirent *f; (f = readdir(d));)
        if (strcmp(f->d_name, ".") && strcmp(f->d_name, "..") && strcmp(f->d_name, "out") &&
            strcmp(f->d_name, "err"))
            h = 0;
    closedir(d);
    snprintf(path, sizeof path, "%s/out", folder);
    if (!h || stat(path, &st) || st.st_size) return 0;
    h = add_bytes(add_bytes(add_bytes(h, &status, sizeof status), &k, sizeof k), &raised, sizeof raised);
    snprintf(path, sizeof path, "%s/err", folder);
    int fd = open(path, O_RDONLY);
    for (ssize_t n; fd >= 0 && (n = read(fd, part, sizeof part)) > 0;) h = add_bytes(h, part, (size_t)n);
    close(fd);
    return h ? h : 1;
}

/* What the copy in folder number i left, noted; its folder goes if there was one like it. */
static void note_copy(const char *folder, int i, int status, enum kind k, bool raised, unsigned long n)
{
    char path[PATH_MAX + 8];
    const uint64_t h = what_copy_left(folder, status, k, raised);
    for (int a = 0; h && a < n_alike; a++) {
        if (alike[a].hash != h) continue;
        alike[a].copies++;
        for (int f = 0; f < 2; f++) {
            snprintf(path, sizeof path, "%s/%s", folder, f ? "err" : "out");
            unlink(path);
        }
        rmdir(folder);
        return;
    }
    if (n_alike == room_alike) {
        room_alike = room_alike * 2 + 64;
        alike = realloc(alike, (size_t)room_alike * sizeof *alike);
        if (!alike) _exit(97);
    }
    alike[n_alike++] = (struct alike){h, k, raised, status, i, n, 1};
}

/* Returns in the copy with true, in the program with false. */
static bool made_copy(enum kind k, unsigned long n, bool raised)
{
    static int made;
    enum { FILES = 64 };
    char folder[PATH_MAX], path[PATH_MAX + 8];
    off_t at[FILES];
    int status;
    snprintf(folder, sizeof folder, "%s/%d", fork_folder, ++made);
    if (mkdir(folder, 0777)) _exit(97);
    for (int fd = 0; fd < FILES; fd++) at[fd] = lseek(fd, 0, SEEK_CUR);
    const pid_t pid = fork();
    if (pid < 0) _exit(97);
    if (!pid) {
        is_copy = true;
        fork_on = false;
        snprintf(path, sizeof path, "%s/out", folder);
        redirect_copy(STDOUT_FILENO, path, "out");
        snprintf(path, sizeof path, "%s/err", folder);
        redirect_copy(STDERR_FILENO, path, "err");
        if (chdir(folder)) _exit(97);
        return true;
    }
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
    for (int fd = 0; fd < FILES; fd++) /* a copy's reads move what it shares with us */
        if (at[fd] >= 0) lseek(fd, at[fd], SEEK_SET);
    note_copy(folder, made, WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status), k, raised, n);
    return false;
}

/* Before the nth call of a kind: true in the copy in which it fails. */
static bool fails_in_copy(enum kind k, unsigned long n)
{
    const int was = errno;
    aside = true;
    fork_upto[k] = n;
    const bool here = made_copy(k, n, false);
    if (!here && k >= OPEN && made_copy(k, n, true)) kill(getpid(), SIGTERM);
    aside = false;
    errno = here ? why[k] : was;
    return here;
}

static void write_copies(void)
{
    char path[PATH_MAX + 8];
    snprintf(path, sizeof path, "%s/made", fork_folder);
    FILE *f = fopen(path, "w");
    for (int k = 0; f && k < N_KINDS; k++) fprintf(f, "upto %s %lu\n", names[k], fork_upto[k]);
    for (int i = 0; f && i < n_alike; i++)
        fprintf(f, "%s %s %lu %d %lu %d\n", alike[i].raised ? "RAISE" : "FAIL", names[alike[i].kind],
                alike[i].n, alike[i].status, alike[i].copies, alike[i].folder);
    if (f) fclose(f);
}

static bool fails(enum kind k)
{
    if (!begun || resolving || aside) return false;
    unsigned long n = atomic_fetch_add(&count[k], 1) + 1;
    if (fork_on && fails_in_copy(k, n)) return true;
    if (paths) note_path(k, n);
    if (raise_at[k] == n) kill(getpid(), SIGTERM);
    if (!fail_at[k] || n < fail_at[k] || (n > fail_at[k] && !fail_after[k])) return false;
    errno = why[k];
    return true;
}

/* ---- the next definitions ----
 * dlsym may allocate, and a sanitizer allocates before this library is even relocated: until the constructor
 * has run, and within dlsym, memory comes from a buffer that is never given back, and nothing but its own
 * functions is called. */

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
    if (fails(THREAD)) return EAGAIN;
    fork_on = false;
    return real_pthread_create(id, attr, f, arg);
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
    if (fails(OPEN)) return -1;
    if (!aside && (flags & O_ACCMODE) != O_RDONLY) fork_on = false;
    return real_open(path, flags, mode);
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

int linkat(int from_dir, const char *from, int to_dir, const char *to, int flags)
{
    NEXT(linkat);
    return fails(LINK) ? -1 : real_linkat(from_dir, from, to_dir, to, flags);
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
    fork_folder = getenv("INJECT_FORK");
    fork_on = fork_folder != NULL;
    unsetenv("LD_PRELOAD"); /* not for the programs that this one starts */
    ready = true;
    paths = getenv("INJECT_PATHS") && backtrace(warm, 4); /* its first call loads a library */
}

/* The C library's start calls what the program registers before main (a GPU's runtime registers every kernel
 * there, and does not look at what malloc returns), then main. */
static int (*real_main)(int, char **, char **);
static int main_begins(int argc, char **argv, char **env)
{
    begun = true;
    return real_main(argc, argv, env);
}
int __libc_start_main(int (*program)(int, char **, char **), int argc, char **argv, void (*init)(void),
                      void (*fini)(void), void (*end_of_loader)(void), void *stack_end);
int __libc_start_main(int (*program)(int, char **, char **), int argc, char **argv, void (*init)(void),
                      void (*fini)(void), void (*end_of_loader)(void), void *stack_end)
{
    int (*start)(int (*)(int, char **, char **), int, char **, void (*)(void), void (*)(void), void (*)(void),
                 void *);
    *(void **)&start = dlsym(RTLD_NEXT, "__libc_start_main");
    real_main = program;
    return start(main_begins, argc, argv, init, fini, end_of_loader, stack_end);
}

__attribute__((destructor)) static void end(void)
{
    begun = false;
    if (is_copy) return;
    if (fork_folder) write_copies();
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
