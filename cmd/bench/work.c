/* work.c - one of several workers over a list of jobs, on one machine or on many that share a folder.
 *
 * A job is a file in DIR whose name says its state, and a claim is the rename of that file, which succeeds
 * for one worker alone:
 *
 *     NAME                     free
 *     NAME%HOST%PID%START      claimed by that process (START: when it began, in ticks, for ids come back)
 *     NAME%done, NAME%failed
 *
 * The jobs of a list lie in a folder of DIR that is named by it, and that comes into being whole, by the
 * rename of a folder: no job is there twice. The claim of a process that is gone goes to who renames it: its
 * name holds the old owner, so a claim that lives is never taken. On another machine a process is taken for
 * gone when its claim was not touched for --stale seconds, by the clock of the file system. The command of a
 * worker that is killed ends with it (PR_SET_PDEATHSIG), what it left half-made has names of its own, and the
 * job is done again. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <zlib.h>
#include "../../common/base/io.h"
#include "../../common/base/mem.h"
#include "bench.h"

#define MAX_JOBS 100000
#define ROOM (PATH_MAX + 2 * NAME_MAX + 2) /* of a path */
#define MAX_NAME 160                       /* with the owner behind it a name stays below NAME_MAX */

static const char *file;
static int32_t stale = 120, threads;

static const struct cli_flag flags[] = {
    {"--file", CLI_STR, &file, "FILE", "what a job makes, {} for its name: a job is done while that is there",
     0, 0},
    {"--stale", CLI_I32, &stale, "S",
     "a claim of another machine is void after so many seconds (default 120)", 1, 1 << 20},
    {"--threads", CLI_I32, &threads, "N", "as in every program; a worker has one", 0, CLI_MAX_THREADS},
    {0},
};
static struct cli cli = {
    .tool = "bench work",
    .synopsis = "[--file FILE] DIR -- COMMAND [ARG...] < names",
    .summary = "Run COMMAND, {} in it replaced, for every name that no other worker has claimed in DIR.",
    .flags = flags,
    .wants = "CLAIMS JOB...",
    .min_args = 2,
    .max_args = 4096,
};

enum job_state { FREE, DONE, FAILED, HELD, UNKNOWN };

struct job {
    const char *name;
    enum job_state state;
    char held[NAME_MAX + 1]; /* the file, where it is claimed */
};

static struct job *jobs, **sorted; /* in the order of the list, and by name */
static int n_jobs;
static char *names;  /* what the jobs' names point into */
static char me[128]; /* %HOST%PID%START */
static const char *host;
static char dir[PATH_MAX];            /* DIR/ID, ID of the list of names */
static volatile sig_atomic_t stopped; /* by this signal */

static void on_signal(int sig)
{
    stopped = sig;
}

/* ---- processes ---- */

/* When a process began, in ticks since the machine did; 0: it is not there. */
static unsigned long long started(long pid)
{
    char path[64], text[1024];
    unsigned long long ticks = 0;
    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    FILE *f = fopen(path, "r");
    if (!f) return 0;
    const size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    const char *p = strrchr(text, ')');              /* the name before it may hold anything */
    if (p && (p[2] == 'Z' || p[2] == 'X')) return 0; /* ended, and not asked for yet */
    for (int field = 2; p && field < 22; field++) p = strchr(p + 1, ' ');
    if (p) sscanf(p, "%llu", &ticks);
    return ticks;
}

static void paths(char *out, const char *name, const char *tail)
{
    snprintf(out, ROOM, "%s/%s%s", dir, name, tail);
}

/* Seconds since the claim was touched, by the file system's own clock; 0 where that cannot be told. */
static double untouched(const char *claim)
{
    char path[ROOM], probe[ROOM];
    struct stat c, now;
    paths(path, claim, "");
    paths(probe, ".probe", me);
    const int fd = open(probe, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0) return 0;
    const bool ok = futimens(fd, NULL) == 0 && fstat(fd, &now) == 0 && stat(path, &c) == 0;
    close(fd);
    unlink(probe);
    return ok ? difftime(now.st_mtime, c.st_mtime) : 0;
}

/* Is the owner of NAME%HOST%PID%START gone? */
static bool is_gone(const char *claim)
{
    char owner[NAME_MAX + 1];
    unsigned long long start;
    long pid;
    const char *p = strchr(claim, '%');
    if (!p || sscanf(p, "%%%[^%]%%%ld%%%llu", owner, &pid, &start) != 3) return false;
    if (strcmp(owner, host) != 0) return untouched(claim) > stale;
    return started(pid) != start;
}

/* ---- the folder ---- */

/* DIR with a file a name, unless it is there. */
static int make_folder(struct err *e)
{
    char tmp[ROOM], path[2 * ROOM];
    int rc = 0;
    if (access(dir, F_OK) == 0) return 0;
    if (mkdir(cli.args[0], 0777) && errno != EEXIST) return err_errno(e, "%s", cli.args[0]);
    snprintf(tmp, sizeof tmp, "%s%s.tmp", dir, me);
    if (mkdir(tmp, 0777)) return err_errno(e, "%s", tmp);
    for (int i = 0; i < n_jobs && !rc; i++) {
        snprintf(path, sizeof path, "%s/%s", tmp, jobs[i].name);
        const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd < 0 || close(fd)) rc = err_errno(e, "%s", path);
    }
    if (!rc && rename(tmp, dir) == 0) return 0;
    const int why = errno;
    for (int i = 0; i < n_jobs; i++) {
        snprintf(path, sizeof path, "%s/%s", tmp, jobs[i].name);
        unlink(path);
    }
    rmdir(tmp);
    errno = why;
    return rc ? rc : access(dir, F_OK) == 0 ? 0 : err_errno(e, "%s", dir);
}

static int by_name(const void *a, const void *b)
{
    const struct job *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

/* For find; two of one name would be one job. */
static int sort_jobs(struct err *e)
{
    sorted = mem_calloc((size_t)n_jobs, sizeof *sorted);
    if (!sorted) return err_set(e, ERR_IO, "out of memory (jobs)");
    for (int i = 0; i < n_jobs; i++) sorted[i] = &jobs[i];
    qsort(sorted, (size_t)n_jobs, sizeof *sorted, by_name);
    for (int i = 1; i < n_jobs; i++)
        if (!strcmp(sorted[i - 1]->name, sorted[i]->name))
            return err_set(e, ERR_FORMAT, "stdin: two of one name (%s)", sorted[i]->name);
    return 0;
}

static struct job *find(const char *entry)
{
    char name[NAME_MAX + 1];
    const struct job key = {.name = name}, *k = &key;
    snprintf(name, sizeof name, "%.*s", (int)strcspn(entry, "%"), entry);
    struct job **found = bsearch(&k, sorted, (size_t)n_jobs, sizeof *sorted, by_name);
    return found ? *found : NULL;
}

/* The state of every job. A file that is renamed meanwhile may be missed: then again. */
static int scan(struct err *e)
{
    for (int try = 0; try < 50; try++) {
        int seen = 0;
        DIR *d = opendir(dir);
        if (!d) return err_errno(e, "%s", dir);
        for (int i = 0; i < n_jobs; i++) jobs[i].state = UNKNOWN;
        for (const struct dirent *f; (f = readdir(d));) {
            struct job *j = *f->d_name == '.' ? NULL : find(f->d_name);
            if (!j) continue;
            const char *tail = f->d_name + strlen(j->name);
            seen += j->state == UNKNOWN;
            j->state = !*tail                     ? FREE
                       : !strcmp(tail, "%done")   ? DONE
                       : !strcmp(tail, "%failed") ? FAILED
                                                  : HELD;
            snprintf(j->held, sizeof j->held, "%s", f->d_name);
        }
        closedir(d);
        if (seen == n_jobs) return 0;
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
    for (int i = 0; i < n_jobs; i++)
        if (jobs[i].state == UNKNOWN) err_set(e, ERR_FORMAT, "%s: no job %s there", dir, jobs[i].name);
    return err_hint(e, "remove the folder while no worker runs: what is made stays");
}

static bool move(const char *from, const char *from_tail, const char *to, const char *to_tail)
{
    char a[ROOM], b[ROOM];
    paths(a, from, from_tail);
    paths(b, to, to_tail);
    return rename(a, b) == 0;
}

/* That a worker is at it: its file's time. */
static void touch(const char *name, const char *tail)
{
    char path[ROOM];
    paths(path, name, tail);
    utimensat(AT_FDCWD, path, NULL, 0);
}

/* ---- a job ---- */

/* text with every {} replaced by the name; mem_free it. */
static char *filled(const char *text, const char *name)
{
    size_t n = strlen(text) + 1, at = 0;
    for (const char *p = text; (p = strstr(p, "{}")); p += 2) n += strlen(name);
    char *out = mem_alloc(n);
    if (!out) return NULL;
    for (const char *p = text; *p;) {
        const bool here = p[0] == '{' && p[1] == '}';
        at += (size_t)snprintf(out + at, n - at, "%.*s", here ? (int)strlen(name) : 1, here ? name : p);
        p += here ? 2 : 1;
    }
    out[at] = 0;
    return out;
}

static bool made(const struct job *j)
{
    if (!file) return true;
    char *path = filled(file, j->name);
    const bool there = path && access(path, F_OK) == 0;
    mem_free(path);
    return there;
}

/* The command of a job; 0: it ended well. Its claim is touched while it runs. */
static int run(struct job *j, struct err *e)
{
    const pid_t parent = getpid();
    int status = -1;
    char **argv = mem_calloc((size_t)cli.n_args, sizeof *argv);
    for (int i = 1; argv && i < cli.n_args; i++)
        if (!(argv[i - 1] = filled(cli.args[i], j->name))) goto memory;
    if (!argv) goto memory;
    const pid_t id = fork();
    if (id == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM); /* a worker that is killed takes its command with it */
        if (getppid() != parent) _exit(1);
        execvp(argv[0], argv);
        fprintf(stderr, "dflash-bench work: %s: cannot run: %s\n", argv[0], strerror(errno));
        _exit(127);
    }
    if (id < 0) err_errno(e, "%s", argv[0]);
    double touched = cli_seconds();
    bool told = false;
    for (pid_t got = 0; id > 0 && got != id;) {
        got = waitpid(id, &status, WNOHANG);
        if (got < 0 && errno != EINTR) break;
        if (got == id) break;
        if (stopped && !told) kill(id, SIGTERM);
        told = stopped;
        if (cli_seconds() - touched > stale / 4.0) {
            touch(j->name, me);
            touched = cli_seconds();
        }
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
    for (int i = 0; i + 1 < cli.n_args; i++) mem_free(argv[i]);
    mem_free(argv);
    return id < 0 ? -1 : status;
memory:
    for (int i = 0; argv && i + 1 < cli.n_args; i++) mem_free(argv[i]);
    mem_free(argv);
    return err_set(e, ERR_IO, "out of memory (a command)");
}

/* "[3/16] 14:05:10 NAME": the third that is done or under way, by any worker. */
static void say(const struct job *j)
{
    char at[16] = "";
    const time_t now = time(NULL);
    struct tm tm;
    int begun = 1;
    for (int i = 0; i < n_jobs; i++) begun += jobs[i].state != FREE && &jobs[i] != j;
    if (localtime_r(&now, &tm)) strftime(at, sizeof at, "%H:%M:%S", &tm);
    if (!cli.quiet) fprintf(stderr, "[%d/%d] %s %s\n", begun, n_jobs, at, j->name);
}

/* Claims the first job that is free, or whose owner is gone, and runs it. 1: there was none; -1: failed. */
static int next(struct err *e)
{
    for (int i = 0; i < n_jobs; i++) {
        struct job *j = &jobs[i];
        const bool gone = j->state == HELD && is_gone(j->held);
        if (j->state != FREE && !gone) continue;
        touch(gone ? j->held : j->name, ""); /* before: a claim that is as old as the list would be void */
        if (!move(gone ? j->held : j->name, "", j->name, me)) continue; /* another was faster */
        if (gone) cli_warn(&cli, "%s: its worker is gone; begun again", j->name);
        say(j);
        const int status = run(j, e);
        const bool good = status == 0 && made(j);
        if (status == 0 && !good) cli_warn(&cli, "%s: its command made no such file", j->name);
        move(j->name, me, j->name, stopped || e->code ? "" : good ? "%done" : "%failed");
        return e->code ? -1 : 0;
    }
    return 1;
}

/* Until every job is done or failed, by whomever. */
static int work(struct err *e)
{
    if (scan(e)) return -1;
    for (int i = 0; i < n_jobs; i++) /* once more: what failed, and what is no longer there */
        if (jobs[i].state == FAILED || (jobs[i].state == DONE && !made(&jobs[i])))
            move(jobs[i].held, "", jobs[i].name, "");
    for (;;) {
        bool waits = false;
        if (stopped) return 0;
        if (scan(e)) return -1;
        const int none = next(e);
        if (none < 0) return -1;
        if (!none) continue;
        for (int i = 0; i < n_jobs; i++) waits |= jobs[i].state == HELD || jobs[i].state == FREE;
        if (!waits) return 0;
        nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
    }
}

/* A name a line. */
static int read_names(struct err *e)
{
    uint8_t *data = NULL;
    uint64_t n = 0;
    if (io_read_all(STDIN_FILENO, "stdin", (uint64_t)MAX_JOBS * MAX_NAME, &data, &n, e)) return -1;
    names = mem_alloc(n + 1);
    jobs = mem_calloc(MAX_JOBS, sizeof *jobs);
    if (!names || !jobs) {
        mem_free(data);
        return err_set(e, ERR_IO, "out of memory (names)");
    }
    memcpy(names, data, n);
    names[n] = 0;
    snprintf(dir, sizeof dir, "%s/%08lx-%llu", cli.args[0],
             crc32(crc32(0, NULL, 0), data, (uInt)n) & 0xffffffff, (unsigned long long)n);
    mem_free(data);
    char *save = NULL;
    for (char *w = strtok_r(names, "\n", &save); w; w = strtok_r(NULL, "\n", &save)) {
        if (n_jobs == MAX_JOBS) return err_set(e, ERR_FORMAT, "stdin: more than %d names", MAX_JOBS);
        if (strlen(w) > MAX_NAME || *w == '.' || strpbrk(w, "/%"))
            return err_set(
                e, ERR_FORMAT,
                "stdin: not a job's name (expected a file's name of up to %d bytes without %%, got '%.40s')",
                MAX_NAME, w);
        jobs[n_jobs++].name = w;
    }
    return n_jobs ? sort_jobs(e) : err_set(e, ERR_FORMAT, "stdin: no names");
}

/* What failed, by name. */
static int tell(struct err *e)
{
    int failed = 0, done = 0;
    if (scan(e)) return cli_fail(&cli, e);
    for (int i = 0; i < n_jobs; i++) {
        done += jobs[i].state == DONE;
        if (jobs[i].state != FAILED) continue;
        failed++;
        cli_warn(&cli, "%s: failed", jobs[i].name);
    }
    cli_detail(&cli, "%d of %d jobs are done", done, n_jobs);
    return failed ? ERR_NEGATIVE : 0;
}

int bench_work(int argc, char **argv)
{
    struct err e = {0};
    struct utsname u;
    const struct sigaction act = {.sa_handler = on_signal};
    cli_parse(&cli, argc, argv);
    if (file && !strstr(file, "{}")) cli_usage_error(&cli, "--file: expected {} in it, got '%s'", file);
    if (strlen(cli.args[0]) > PATH_MAX - 64)
        cli_usage_error(&cli, "%.40s...: the name is too long", cli.args[0]);
    if (uname(&u)) snprintf(u.nodename, sizeof u.nodename, "here");
    for (char *p = u.nodename; *p; p++)
        if (*p == '%' || *p == '/') *p = '_';
    u.nodename[sizeof u.nodename < 64 ? sizeof u.nodename - 1 : 63] = 0;
    host = u.nodename;
    snprintf(me, sizeof me, "%%%s%%%ld%%%llu", host, (long)getpid(), started(getpid()));
    if (read_names(&e) || make_folder(&e)) return cli_fail(&cli, &e);
    sigaction(SIGINT, &act, NULL);
    sigaction(SIGTERM, &act, NULL);
    sigaction(SIGHUP, &act, NULL);
    int rc = work(&e) ? cli_fail(&cli, &e) : 0;
    if (stopped) {
        signal(stopped, SIG_DFL);
        raise(stopped);
    }
    if (!rc) rc = tell(&e);
    mem_free(jobs);
    mem_free(sorted);
    mem_free(names);
    return rc;
}
