/* Files: maps, outputs that appear whole or not at all, streams, errors and memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "../../../common/base/io.h"
#include "../../../common/base/mem.h"
#include "../scratch.h"

/* ---- a system where files without a name are not had, or cannot be given one ---- */

static bool no_unnamed, no_link;

int access(const char *path, int how)
{
    if (!no_unnamed || strcmp(path, "/proc/self/fd")) return faccessat(AT_FDCWD, path, how, 0);
    errno = ENOENT;
    return -1;
}

int linkat(int from_dir, const char *from, int to_dir, const char *to, int flags)
{
    if (!no_link) return (int)syscall(SYS_linkat, from_dir, from, to_dir, to, flags);
    errno = EPERM;
    return -1;
}

/* ---- errors and memory ---- */

static void errors(void **state)
{
    struct err e = {0};
    char longest[2000];
    (void)state;
    assert_int_equal(err_set(NULL, ERR_IO, "x"), -1);
    assert_int_equal(err_set(&e, ERR_FORMAT, "first %d", 1), -1);
    err_set(&e, ERR_IO, "second");
    assert_int_equal(e.code, ERR_FORMAT);
    err_prefix(&e, "%s", "file");
    assert_string_equal(e.msg, "file: first 1");
    err_hint(&e, "do %s", "this");
    err_hint(&e, "or that");
    assert_string_equal(e.hint, "do this");
    memset(&e, 0, sizeof e);
    err_prefix(&e, "nothing to prefix");
    assert_string_equal(e.msg, "");
    errno = ENOENT;
    err_errno(&e, "file");
    assert_int_equal(e.code, ERR_IO);
    assert_string_equal(e.msg, "file: No such file or directory");
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    err_prefix(&e, "%s", longest);
    assert_int_equal(strlen(e.msg), sizeof e.msg - 1);
    memset(&e, 0, sizeof e);
    err_set(&e, ERR_IO, "%s", longest);
    err_prefix(&e, "p");
    assert_memory_equal(e.msg, "p: xxx", 6);
}

static void memory(void **state)
{
    struct arena *a;
    uint8_t *p, *q, *big;
    (void)state;
    assert_null(mem_calloc(SIZE_MAX / 2, 3));
    p = mem_alloc(0);
    assert_non_null(p);
    mem_free(p);
    a = arena_new();
    assert_null(arena_alloc(a, SIZE_MAX / 2, 3));
    assert_null(arena_alloc(a, SIZE_MAX, 1));
    assert_null(arena_strndup(a, "x", SIZE_MAX));
    p = arena_alloc(a, 1, 1);
    big = arena_alloc(a, 1, 1 << 20);
    q = arena_alloc(a, 1, 1);
    assert_int_equal(q - p, 16); /* a large block does not end the chunk in use */
    assert_int_equal((uintptr_t)p % 16 | (uintptr_t)big % 16, 0);
    for (int i = 0; i < 1 << 20; i += 4096) assert_int_equal(big[i], 0);
    memset(big, 1, 1 << 20);
    for (int i = 0; i < 3000; i++) memset(arena_alloc(a, 1, 100), 2, 100);
    assert_string_equal(arena_strndup(a, "hello", 4), "hell");
    arena_free(a);
    arena_free(NULL);
    mem_fail_at(2);
    p = mem_alloc(1);
    assert_non_null(p);
    assert_null(mem_alloc(1));
    assert_null(mem_calloc(1, 1));
    assert_null(mem_realloc(p, 2));
    assert_null(mem_strdup("x"));
    assert_int_equal(mem_fail_at(0), 5);
    mem_free(p);
}

/* ---- maps ---- */

static void maps(void **state)
{
    struct io_map m;
    struct err e = {0};
    char want[256];
    (void)state;
    scratch_write(scratch("five"), "12345", 5);
    assert_int_equal(io_map_open(&m, scratch("five"), &e), 0);
    assert_int_equal(m.size, 5);
    assert_memory_equal(m.data, "12345", 5);
    io_map_close(&m);
    io_map_close(&m);
    scratch_write(scratch("none"), "", 0);
    assert_int_equal(io_map_open(&m, scratch("none"), &e), 0);
    assert_null(m.data);
    assert_int_equal(m.size, 0);
    io_map_close(&m);
    assert_int_equal(io_map_open(&m, scratch_dir, &e), -1);
    snprintf(want, sizeof want, "%s: is a directory (expected a file)", scratch_dir);
    assert_string_equal(e.msg, want);
    assert_int_equal(e.code, ERR_IO);
    memset(&e, 0, sizeof e);
    assert_int_equal(io_map_open(&m, scratch("absent"), &e), -1);
    assert_int_equal(e.code, ERR_IO);
    assert_non_null(strstr(e.msg, "absent: No such file or directory"));
    memset(&e, 0, sizeof e);
    assert_int_equal(mkfifo(scratch("fifo"), 0600), 0);
    assert_int_equal(io_map_open(&m, scratch("fifo"), &e), -1); /* and does not wait for a writer */
    assert_non_null(strstr(e.msg, "not a regular file"));
    remove(scratch("fifo"));
}

/* ---- outputs ---- */

static void out_whole(void **state)
{
    struct io_out o;
    struct err e = {0};
    char *p, big[100000];
    size_t n;
    struct stat st;
    int before = scratch_files();
    (void)state;
    assert_int_equal(io_out_open(&o, scratch("out"), false, NULL, 0, &e), 0);
    for (size_t i = 0; i < sizeof big; i++) big[i] = (char)(i * 7);
    for (int i = 0; i < 7; i++) assert_int_equal(io_out_write(&o, big, sizeof big, &e), 0);
    assert_int_equal(io_out_write(&o, big, 0, &e), 0);
    assert_int_equal(o.written, 7 * sizeof big);
    assert_int_not_equal(stat(scratch("out"), &st), 0); /* not there before the commit */
    assert_int_equal(io_out_commit(&o, &e), 0);
    io_out_abort(&o);
    assert_int_equal(scratch_files(), before + 1);
    p = scratch_read(scratch("out"), &n);
    assert_int_equal(n, 7 * sizeof big);
    for (int i = 0; i < 7; i++) assert_memory_equal(p + i * sizeof big, big, sizeof big);
    free(p);
}

static void out_refusals(void **state)
{
    struct io_out o;
    struct err e = {0};
    const char *in[1];
    char *p, other[160], link_name[160], file[160];
    int before;
    (void)state;
    strcpy(file, scratch("kept"));
    strcpy(other, scratch("hard"));
    strcpy(link_name, scratch("soft"));
    scratch_write(file, "old", 3);
    assert_int_equal(link(file, other), 0);
    assert_int_equal(symlink(file, link_name), 0);
    before = scratch_files();
    assert_int_equal(io_out_open(&o, file, false, NULL, 0, &e), -1);
    assert_int_equal(e.code, ERR_USAGE);
    assert_non_null(strstr(e.msg, "kept: exists already"));
    assert_string_equal(e.hint, "--force replaces it");
    in[0] = file;
    for (int i = 0; i < 3; i++) { /* the same file under three names, --force or not */
        memset(&e, 0, sizeof e);
        assert_int_equal(io_out_open(&o, i == 0 ? file : i == 1 ? other : link_name, true, in, 1, &e), -1);
        assert_int_equal(e.code, ERR_USAGE);
        assert_non_null(strstr(e.msg, "the output is the same file as the input"));
    }
    memset(&e, 0, sizeof e);
    assert_int_equal(io_out_open(&o, "", false, NULL, 0, &e), -1);
    assert_int_equal(e.code, ERR_USAGE);
    memset(&e, 0, sizeof e);
    assert_int_equal(io_out_open(&o, scratch_dir, true, NULL, 0, &e), -1);
    assert_non_null(strstr(e.msg, "is a directory"));
    memset(&e, 0, sizeof e);
    assert_int_equal(io_out_open(&o, scratch("no/such/dir"), true, NULL, 0, &e), -1);
    assert_int_equal(e.code, ERR_IO);
    memset(&e, 0, sizeof e);
    assert_int_equal(io_out_open(&o, file, true, NULL, 0, &e), 0);
    assert_int_equal(io_out_write(&o, "new!", 4, &e), 0);
    io_out_abort(&o);
    assert_int_equal(scratch_files(), before);
    p = scratch_read(file, NULL);
    assert_string_equal(p, "old");
    free(p);
    /* through the link: the link stays, what it points at is replaced */
    assert_int_equal(io_out_open(&o, link_name, true, NULL, 0, &e), 0);
    assert_int_equal(io_out_write(&o, "new!", 4, &e), 0);
    assert_int_equal(io_out_commit(&o, &e), 0);
    assert_int_equal(scratch_files(), before);
    p = scratch_read(file, NULL);
    assert_string_equal(p, "new!");
    free(p);
    p = scratch_read(other, NULL); /* the hard link keeps the old file */
    assert_string_equal(p, "old");
    free(p);
}

static void out_appeared(void **state)
{
    struct io_out o;
    struct err e = {0};
    char *p;
    int before = scratch_files();
    (void)state;
    assert_int_equal(io_out_open(&o, scratch("race"), false, NULL, 0, &e), 0);
    assert_int_equal(io_out_write(&o, "mine", 4, &e), 0);
    scratch_write(scratch("race"), "theirs", 6);
    assert_int_equal(io_out_commit(&o, &e), -1);
    assert_int_equal(e.code, ERR_USAGE);
    p = scratch_read(scratch("race"), NULL);
    assert_string_equal(p, "theirs");
    free(p);
    assert_int_equal(scratch_files(), before + 1);
}

/* The disk is full: while writing, or only when the buffer goes out. */
static void out_full(void **state)
{
    struct io_out o;
    struct err e = {0};
    static char big[1 << 20];
    struct stat st;
    (void)state;
    for (int late = 0; late < 2; late++) {
        memset(&e, 0, sizeof e);
        assert_int_equal(io_out_open(&o, "/dev/full", false, NULL, 0, &e), 0);
        if (late) {
            assert_int_equal(io_out_write(&o, big, 10, &e), 0);
            assert_int_equal(io_out_commit(&o, &e), -1);
        } else {
            assert_int_equal(io_out_write(&o, big, sizeof big, &e), -1);
            io_out_abort(&o);
        }
        assert_int_equal(e.code, ERR_IO);
        assert_string_equal(e.msg, "/dev/full: cannot write: No space left on device");
    }
    assert_int_equal(stat("/dev/full", &st), 0);
    assert_true(S_ISCHR(st.st_mode)); /* written through, not replaced */
    /* A regular file that may not grow: the temporary goes, nothing appears. */
    if (!fork()) {
        const struct rlimit limit = {4096, 4096};
        int before = scratch_files(), rc;
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &limit);
        memset(&e, 0, sizeof e);
        rc = io_out_open(&o, scratch("limited"), false, NULL, 0, &e) || io_out_write(&o, big, sizeof big, &e);
        if (!rc || e.code != ERR_IO) _exit(1);
        io_out_abort(&o);
        _exit(scratch_files() == before ? 0 : 2);
    } else {
        int status;
        wait(&status);
        assert_int_equal(status, 0);
    }
}

static void out_stdout(void **state)
{
    struct io_out o;
    struct err e = {0};
    char got[16] = "";
    int fd[2], saved = dup(1);
    (void)state;
    fflush(stdout);
    assert_int_equal(pipe(fd), 0);
    dup2(fd[1], 1);
    assert_int_equal(io_out_open(&o, "-", false, NULL, 0, &e), 0);
    assert_true(o.to_stdout);
    assert_int_equal(io_out_write(&o, "data", 4, &e), 0);
    assert_int_equal(io_out_flush(&o, &e), 0);
    assert_int_equal(io_out_write(&o, "more", 4, &e), 0);
    assert_int_equal(io_out_commit(&o, &e), 0);
    assert_int_equal(fcntl(1, F_GETFD), 0); /* stdout stays open */
    dup2(saved, 1);
    close(saved);
    close(fd[1]);
    assert_int_equal(read(fd[0], got, sizeof got), 8);
    assert_string_equal(got, "datamore");
    close(fd[0]);
}

static void out_signal(void **state)
{
    static const int sigs[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGKILL};
    int before = scratch_files();
    (void)state;
    for (int i = 0; i < 9; i++) { /* with and without a name; SIGKILL leaves nothing where it has none */
        int status, fd[2];
        char c;
        pid_t pid;
        no_unnamed = i % 2;
        assert_int_equal(pipe(fd), 0);
        pid = fork();
        if (!pid) {
            struct io_out o;
            struct err e = {0};
            if (sigs[i / 2] != SIGKILL)
                signal(sigs[i / 2], SIG_DFL); /* under nohup it is ignored, and stays so */
            io_signals_install();
            if (io_out_open(&o, scratch("killed"), false, NULL, 0, &e)) _exit(1);
            io_out_write(&o, "x", 1, &e);
            if (o.unnamed == no_unnamed || scratch_files() != before + no_unnamed ||
                write(fd[1], "r", 1) != 1)
                _exit(2);
            for (;;) pause();
        }
        close(fd[1]);
        assert_int_equal(read(fd[0], &c, 1), 1);
        close(fd[0]);
        kill(pid, sigs[i / 2]);
        waitpid(pid, &status, 0);
        assert_true(WIFSIGNALED(status));
        assert_int_equal(WTERMSIG(status), sigs[i / 2]);
        assert_int_equal(scratch_files(), before);
    }
    no_unnamed = false;
}

/* A file without a name that cannot be given one is copied; a name that is taken is passed over. */
static void out_unnamed(void **state)
{
    static char data[700000], got[sizeof data + 1];
    struct io_out o;
    struct err e = {0};
    struct stat st;
    int before = scratch_files();
    char taken[512];
    (void)state;
    for (size_t i = 0; i < sizeof data; i++) data[i] = (char)(i * 2654435761u >> 24);
    snprintf(taken, sizeof taken, "%s.%ld-0.tmp", scratch("given"), (long)getpid());
    for (int way = 0; way < 3; way++) {
        FILE *f = way == 1 ? fopen(taken, "w") : NULL;
        if (f) fclose(f);
        no_link = way == 2;
        assert_int_equal(io_out_open(&o, scratch("given"), way, NULL, 0, &e), 0);
        assert_true(o.unnamed);
        assert_int_equal(io_out_write(&o, data, sizeof data, &e), 0);
        assert_int_equal(scratch_files(), before + (way > 0) + (way == 1));
        assert_int_equal(io_out_commit(&o, &e), 0);
        no_link = false;
        f = fopen(scratch("given"), "r");
        assert_non_null(f);
        assert_int_equal(fread(got, 1, sizeof got, f), sizeof data);
        assert_memory_equal(got, data, sizeof data);
        fclose(f);
        assert_int_equal(stat(scratch("given"), &st), 0);
        assert_int_equal(st.st_mode & 0777, way ? 0640 : st.st_mode & 0777);
        if (!way) assert_int_equal(chmod(scratch("given"), 0640), 0);
        if (way == 1) assert_int_equal(unlink(taken), 0); /* it was left alone */
    }
    assert_int_equal(unlink(scratch("given")), 0);
    assert_int_equal(scratch_files(), before);
}

static void write_file(const char *path, const char *text, size_t n)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* A file that changes while it is mapped: nothing made from it appears, and a read past its new end is an
 * error with a name, not a crash. */
static void map_changes(void **state)
{
    static char pages[3 << 12];
    struct io_map m;
    struct io_out o;
    struct err e = {0};
    char said[512] = "", want[512];
    int before, status, fd[2];
    (void)state;
    write_file(scratch("source"), pages, sizeof pages);
    before = scratch_files();
    assert_int_equal(io_map_open(&m, scratch("source"), &e), 0);
    assert_int_equal(io_maps_check(&e), 0);
    assert_int_equal(io_out_open(&o, scratch("made"), false, NULL, 0, &e), 0);
    assert_int_equal(truncate(scratch("source"), 5), 0);
    assert_int_equal(io_out_commit(&o, &e), -1);
    assert_int_equal(e.code, ERR_IO);
    snprintf(want, sizeof want, "%s: changed while it was read (expected 12288 bytes untouched, got 5)",
             scratch("source"));
    assert_string_equal(e.msg, want);
    assert_int_equal(scratch_files(), before);
    io_map_close(&m);
    memset(&e, 0, sizeof e);
    assert_int_equal(io_maps_check(&e), 0); /* a closed map is nobody's business */

    write_file(scratch("source"), pages, sizeof pages);
    assert_int_equal(pipe(fd), 0);
    if (!fork()) {
        dup2(fd[1], 2);
        io_signals_install();
        if (io_map_open(&m, scratch("source"), &e) || io_out_open(&o, scratch("made"), false, NULL, 0, &e))
            _exit(90);
        if (scratch_files() != before + !o.unnamed || truncate(scratch("source"), 5)) _exit(91);
        volatile uint8_t sink = m.data[2 << 12];
        _exit(92 + sink);
    }
    close(fd[1]);
    wait(&status);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 4);
    assert_true(read(fd[0], said, sizeof said - 1) > 0);
    close(fd[0]);
    snprintf(want, sizeof want, "%s: was cut by another process while it was read\n", scratch("source"));
    assert_string_equal(said, want);
    assert_int_equal(scratch_files(), before);
    remove(scratch("source"));
}

static void out_zeroed(void **state)
{
    struct io_out o = {0};
    struct err e = {0};
    (void)state;
    io_out_abort(&o);
    assert_int_not_equal(fcntl(0, F_GETFD), -1); /* descriptor 0 was not closed */
    io_out_abort(NULL);
    assert_int_equal(io_out_commit(&o, &e), 0);
}

/* ---- reading ---- */

static int piped(const void *data, size_t n)
{
    int fd[2];
    assert_int_equal(pipe(fd), 0);
    assert_int_equal(write(fd[1], data, n), (ssize_t)n);
    close(fd[1]);
    return fd[0];
}

static void read_all(void **state)
{
    struct err e = {0};
    uint8_t *data;
    uint64_t size;
    int fd;
    (void)state;
    fd = piped("123456", 6);
    assert_int_equal(io_read_all(fd, "in", 6, &data, &size, &e), 0);
    assert_int_equal(size, 6);
    mem_free(data);
    close(fd);
    fd = piped("1234567", 7);
    assert_int_equal(io_read_all(fd, "in", 6, &data, &size, &e), -1);
    assert_string_equal(e.msg, "in: too long (expected at most 6 bytes)");
    assert_int_equal(e.code, ERR_FORMAT);
    close(fd);
    memset(&e, 0, sizeof e);
    fd = piped("", 0);
    assert_int_equal(io_read_all(fd, "in", 0, &data, &size, &e), 0);
    assert_int_equal(size, 0);
    mem_free(data);
    close(fd);
    fd = open(scratch_dir, O_RDONLY);
    assert_int_equal(io_read_all(fd, "dir", 6, &data, &size, &e), -1);
    assert_string_equal(e.msg, "dir: cannot read: Is a directory");
    close(fd);
    memset(&e, 0, sizeof e);
    fd = piped("1", 1);
    mem_fail_at(1);
    assert_int_equal(io_read_all(fd, "in", 6, &data, &size, &e), -1);
    mem_fail_at(0);
    assert_int_equal(e.code, ERR_IO);
    close(fd);
}

static void on_alarm(int sig)
{
    (void)sig;
}

/* A signal in the middle of a read: it is taken up again. */
static void interrupted(void **state)
{
    struct sigaction sa = {.sa_handler = on_alarm};
    struct err e = {0};
    uint8_t *data;
    uint64_t size;
    int fd[2];
    pid_t pid;
    (void)state;
    sigaction(SIGUSR1, &sa, NULL); /* without SA_RESTART */
    assert_int_equal(pipe(fd), 0);
    pid = fork();
    if (!pid) {
        for (int i = 0; i < 5; i++) {
            usleep(3000);
            kill(getppid(), SIGUSR1);
            if (write(fd[1], "abc", 3) != 3) _exit(1);
        }
        _exit(0);
    }
    close(fd[1]);
    assert_int_equal(io_read_all(fd[0], "in", 100, &data, &size, &e), 0);
    assert_int_equal(size, 15);
    mem_free(data);
    close(fd[0]);
    waitpid(pid, NULL, 0);
}

static void tokens(void **state)
{
    static const int32_t some[] = {0, 1, -1, 151643, INT32_MAX, INT32_MIN};
    struct io_out o;
    struct err e = {0};
    int32_t *ids;
    size_t n;
    int fd;
    (void)state;
    assert_int_equal(io_out_open(&o, scratch("t.i32"), true, NULL, 0, &e), 0);
    assert_int_equal(io_write_tokens(&o, some, 6, &e), 0);
    assert_int_equal(io_write_tokens(&o, some, 0, &e), 0);
    assert_int_equal(io_out_commit(&o, &e), 0);
    fd = open(scratch("t.i32"), O_RDONLY);
    assert_int_equal(io_read_tokens(fd, "t", &ids, &n, &e), 0);
    close(fd);
    assert_int_equal(n, 6);
    assert_memory_equal(ids, some, sizeof some);
    mem_free(ids);
    fd = piped("12345", 5);
    assert_int_equal(io_read_tokens(fd, "t", &ids, &n, &e), -1);
    assert_string_equal(
        e.msg, "t: not a token stream: its size is no multiple of 4 (expected int32 ids, got 5 bytes)");
    assert_int_equal(e.code, ERR_FORMAT);
    assert_non_null(strstr(e.hint, "this looks like text: dflash-tokenize"));
    close(fd);
    memset(&e, 0, sizeof e);
    fd = piped("1\0\0\0"
               "5",
               5); /* ids, and one cut */
    assert_int_equal(io_read_tokens(fd, "t", &ids, &n, &e), -1);
    assert_string_equal(e.hint, "");
    close(fd);
    memset(&e, 0, sizeof e);
    fd = piped("", 0);
    assert_int_equal(io_read_tokens(fd, "t", &ids, &n, &e), 0);
    assert_int_equal(n, 0);
    mem_free(ids);
    close(fd);
}

/* Several outputs of a run: all of them or none. */
static void together(void **state)
{
    struct io_out a, b, none = {0};
    struct err e = {0};
    char path_a[512], path_b[512];
    (void)state;
    snprintf(path_a, sizeof path_a, "%s", scratch("together-a"));
    snprintf(path_b, sizeof path_b, "%s", scratch("together-b"));
    for (int clash = 0; clash < 2; clash++) {
        int files = scratch_files();
        assert_int_equal(io_out_open(&a, path_a, false, NULL, 0, &e), 0);
        assert_int_equal(io_out_open(&b, path_b, false, NULL, 0, &e), 0);
        assert_int_equal(io_out_write(&a, "one", 3, &e), 0);
        assert_int_equal(io_out_write(&b, "two", 3, &e), 0);
        if (clash) scratch_write(path_b, "else", 4); /* appears while it is written: b cannot get its name */
        struct io_out *const all[] = {&a, &none, &b};
        assert_int_equal(io_out_prepare(&a, &e), 0); /* twice is legal */
        assert_int_equal(io_outs_commit(all, 3, &e), clash ? -1 : 0);
        assert_int_equal(e.code, clash ? ERR_USAGE : ERR_NONE);
        assert_int_equal(scratch_files(), files + (clash ? 1 : 2));
        assert_int_equal(access(path_a, F_OK), clash ? -1 : 0);
        remove(path_a);
        remove(path_b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors),      cmocka_unit_test(memory),       cmocka_unit_test(maps),
        cmocka_unit_test(out_whole),   cmocka_unit_test(out_refusals), cmocka_unit_test(out_appeared),
        cmocka_unit_test(out_full),    cmocka_unit_test(out_stdout),   cmocka_unit_test(out_signal),
        cmocka_unit_test(out_unnamed), cmocka_unit_test(map_changes),  cmocka_unit_test(out_zeroed),
        cmocka_unit_test(read_all),    cmocka_unit_test(interrupted),  cmocka_unit_test(tokens),
        cmocka_unit_test(together),
    };
    int rc;
    scratch_begin();
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    scratch_end();
    return rc;
}
