/* cli.c - see cli.h. */
#include "cli.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <float.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../common/base/io.h"
#include "../common/base/json.h"
#include "../common/base/mem.h"
#include "../common/base/text.h"

double cli_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- messages ---- */

static bool progress_shown; /* a progress line stands unfinished on the terminal */

void cli_progress_clear(void)
{
    if (progress_shown) fputs("\r\033[K", stderr);
    progress_shown = false;
}

static void say(const struct cli *c, const char *prefix, const char *fmt, va_list ap)
{
    char text[8192]; /* of no allocation that could fail; what is longer is cut */
    cli_progress_clear();
    vsnprintf(text, sizeof text, fmt, ap);
    fprintf(stderr, "dflash-%s: %s%s\n", c->tool, prefix, text_printable(text));
}

int cli_fail(const struct cli *c, const struct err *e)
{
    cli_progress_clear();
    fprintf(stderr, "dflash-%s: %s\n", c->tool, e->code != ERR_NONE ? e->msg : "failed without a message");
    if (e->hint[0]) fprintf(stderr, "hint: %s\n", e->hint);
    return e->code != ERR_NONE ? (int)e->code : ERR_IO;
}

void cli_usage_error(const struct cli *c, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    say(c, "", fmt, ap);
    va_end(ap);
    fprintf(stderr, "try 'dflash-%s --help'\n", c->tool);
    exit(ERR_USAGE);
}

void cli_note(const struct cli *c, const char *fmt, ...)
{
    va_list ap;
    if (c->quiet) return;
    va_start(ap, fmt);
    say(c, "", fmt, ap);
    va_end(ap);
}

void cli_detail(const struct cli *c, const char *fmt, ...)
{
    va_list ap;
    if (!c->verbose || c->quiet) return;
    va_start(ap, fmt);
    say(c, "", fmt, ap);
    va_end(ap);
}

void cli_warn(const struct cli *c, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    say(c, "warning: ", fmt, ap);
    va_end(ap);
}

void cli_no_binary_tty(const struct cli *c, int fd, const char *what)
{
    if (!isatty(fd)) return;
    cli_progress_clear();
    if (fd == STDIN_FILENO) {
        fprintf(stderr, "dflash-%s: %s is binary: not read from a terminal\n", c->tool, what);
        fprintf(stderr, "hint: redirect it: '< FILE', or pipe into the program\n");
    } else {
        fprintf(stderr, "dflash-%s: %s is binary: not written to a terminal\n", c->tool, what);
        fprintf(stderr, "hint: redirect it: '> FILE', pipe it on, or give -o FILE where there is one\n");
    }
    exit(ERR_USAGE);
}

void cli_no_binary_out(const struct cli *c, const char *path, const char *what)
{
    struct stat st;
    if (!path || !strcmp(path, "-")) {
        cli_no_binary_tty(c, STDOUT_FILENO, what);
        return;
    }
    if (stat(path, &st) || !S_ISCHR(st.st_mode)) return;
    int fd = open(path, O_WRONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return; /* opening it as an output says why */
    cli_no_binary_tty(c, fd, what);
    close(fd);
}

/* What is at path ("-": stdout); false where nothing is. */
static bool output_stat(const char *path, struct stat *st)
{
    return (strcmp(path, "-") ? stat(path, st) : fstat(STDOUT_FILENO, st)) == 0;
}

/* Of two files that are not there yet: one name in one folder, however it is spelled. */
static bool same_place(const char *a, const char *b)
{
    const char *p[] = {a, b}, *name[2];
    char folder[PATH_MAX];
    struct stat st[2];
    if (!strcmp(a, b)) return true;
    for (int i = 0; i < 2; i++) {
        name[i] = strrchr(p[i], '/') ? strrchr(p[i], '/') + 1 : p[i];
        if (stat(io_folder(p[i], folder), &st[i])) return false; /* it cannot be written either */
    }
    return !strcmp(name[0], name[1]) && st[0].st_dev == st[1].st_dev && st[0].st_ino == st[1].st_ino;
}

static bool same_output(const char *a, const char *b)
{
    struct stat x, y, null;
    const bool there_a = output_stat(a, &x), there_b = output_stat(b, &y);
    if (!there_a && !there_b) return same_place(a, b);
    if (!there_a || !there_b) return false;
    if (stat("/dev/null", &null) == 0 && S_ISCHR(x.st_mode) && x.st_rdev == null.st_rdev) return false;
    return x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

void cli_distinct_outputs(const struct cli *c, const struct cli_output *o, int n)
{
    for (int i = 0; i < n; i++)
        for (int k = i + 1; k < n; k++)
            if (o[i].path && o[k].path && same_output(o[i].path, o[k].path))
                cli_usage_error(c, "%s and %s write to the same place (%s)", o[i].flag, o[k].flag,
                                strcmp(o[k].path, "-") ? o[k].path : "stdout");
}

void cli_check_text(const struct cli *c, const char *flag, const char *text)
{
    char shown[64];
    for (size_t n = text ? strlen(text) : 0; n;) {
        size_t k = text_char(text, n);
        if (!k)
            cli_usage_error(c, "%s: not plain text (expected UTF-8 without control characters, got %s)", flag,
                            text_quote(shown, sizeof shown, text, n, 16));
        text += k;
        n -= k;
    }
}

uint64_t cli_bytes(const struct cli *c, const char *flag, const char *text)
{
    static const char units[] = "KMG";
    char *end;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    const char *unit = *end ? strchr(units, *end) : NULL;
    bool bad = *text < '0' || *text > '9' || errno || !v || (*end && (!unit || end[1]));
    for (const char *u = units; !bad && unit && u <= unit; u++) bad = __builtin_mul_overflow(v, 1000ull, &v);
    if (bad)
        cli_usage_error(c, "%s: not a number of bytes (expected such as 500M or 2G, got %s)", flag, text);
    return v;
}

bool cli_is_stdin(const char *path)
{
    struct stat x, in;
    if (!strcmp(path, "-")) return true;
    if (fstat(STDIN_FILENO, &in) || !S_ISFIFO(in.st_mode) || stat(path, &x)) return false;
    return x.st_dev == in.st_dev && x.st_ino == in.st_ino;
}

void cli_one_stdin(const struct cli *c, const char *const *inputs, int n)
{
    int found = 0;
    for (int i = 0; i < n; i++) found += inputs[i] && cli_is_stdin(inputs[i]);
    if (found > 1)
        cli_usage_error(c, "stdin is named %d times among the inputs (expected once: it can be read once)",
                        found);
}

int cli_close_stdout(const struct cli *c)
{
    return cli_close_stdout_as(c, "stdout");
}

int cli_close_stdout_as(const struct cli *c, const char *name)
{
    /* Started with stdout closed, and nothing was written: no error. */
    bool bad = ferror(stdout) != 0, pending = __fpending(stdout) != 0;
    int why = 0;
    if (fclose(stdout) && (bad || pending || errno != EBADF)) {
        bad = true;
        why = errno;
    }
    if (!bad) return 0;
    cli_progress_clear();
    fprintf(stderr, "dflash-%s: %s: cannot write%s%s\n", c->tool, name, why ? ": " : "",
            why ? strerror(why) : "");
    return ERR_IO;
}

/* ---- progress ---- */

static void human(char *s, size_t n, double v, const char *unit)
{
    static const char *const bin[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    static const char *const dec[] = {"", "k", "M", "G", "T"};
    bool bytes = unit && !strcmp(unit, "B");
    double step = bytes ? 1024 : 1000;
    int k = 0;
    while (v >= step && k < 4) {
        v /= step;
        k++;
    }
    if (bytes)
        snprintf(s, n, k ? "%.1f %s" : "%.0f %s", v, bin[k]);
    else
        snprintf(s, n, "%.*f%s%s%s", k ? 1 : 0, v, dec[k], unit && *unit ? " " : "", unit ? unit : "");
}

static double progress_after = 0.3; /* s: what is done sooner shows nothing */
static double progress_a_line = 60; /* s, where stderr is no terminal */

/* "what: 1.0 GiB of 4.0 GiB (25%), 250.0 MiB/s, 12 s left" */
static void print_progress(const char *what, uint64_t done, uint64_t total, double rate, const char *unit)
{
    char a[32], b[32], r[32];
    human(a, sizeof a, (double)done, unit);
    human(b, sizeof b, (double)total, unit);
    human(r, sizeof r, rate, unit);
    fprintf(stderr, "%s: %s of %s", what, a, b);
    if (total) fprintf(stderr, " (%.0f%%)", 100.0 * (double)done / (double)total);
    if (rate > 0 && *unit) fprintf(stderr, ", %s/s", r);
    if (rate > 0 && done < total) {
        const double left = (double)(total - done) / rate;
        if (left < 60)
            fprintf(stderr, ", %.0f s left", left);
        else
            fprintf(stderr, ", %.0f min left", left / 60);
    }
}

void cli_progress(const struct cli *c, const char *what, uint64_t done, uint64_t total, const char *unit)
{
    static double begun, last;
    static const char *current;
    static uint64_t first, previous;
    static bool shown; /* of the current job */
    if (c->quiet) return;
    const bool terminal = isatty(STDERR_FILENO);
    const double now = cli_seconds();
    if (!current || strcmp(current, what) || done < previous) { /* another job, or the same from its start */
        begun = last = now;
        first = done;
        current = what;
        shown = false;
    }
    previous = done;
    const bool ends = done == total;
    if (ends ? !shown : now - last < (!terminal ? progress_a_line : shown ? 1.0 / 6 : progress_after)) {
        if (ends) current = NULL;
        return;
    }
    last = now;
    shown = true;
    if (terminal)
        fputs("\r\033[K", stderr);
    else
        fprintf(stderr, "dflash-%s: ", c->tool);
    print_progress(what, done, total, now > begun ? (double)(done - first) / (now - begun) : 0, unit);
    progress_shown = terminal && !ends;
    if (!progress_shown) fputc('\n', stderr);
    if (ends) current = NULL;
    fflush(stderr);
}

/* ---- help ---- */

static void print_synopsis(const struct cli *c)
{
    /* A line that begins with a space continues the one before it; any other is one more way to call the
     * program. */
    const char *s = c->synopsis ? c->synopsis : "";
    const char *lead = "usage: ";
    for (;;) {
        size_t n = strcspn(s, "\n");
        if (*s == ' ')
            printf("       %*s%.*s\n", (int)strlen(c->tool) + 7, "", (int)n, s);
        else
            printf("%sdflash-%s%s%.*s\n", lead, c->tool, n ? " " : "", (int)n, s);
        lead = "       ";
        if (!s[n]) return;
        s += n + 1;
    }
}

static void print_flag(const char *name, const char *arg, const char *help)
{
    char left[64];
    snprintf(left, sizeof left, "%s%s%s", name, arg ? " " : "", arg ? arg : "");
    if (strlen(left) > 24)
        printf("  %s\n  %-24s  %s\n", left, "", help);
    else
        printf("  %-24s  %s\n", left, help);
}

static void print_help(const struct cli *c)
{
    print_synopsis(c);
    if (c->summary) printf("\n%s\n", c->summary);
    printf("\nflags:\n");
    for (const struct cli_flag *f = c->flags; f && f->name; f++) print_flag(f->name, f->arg, f->help);
    print_flag("-q", NULL, "no notes and no progress; warnings and errors stay");
    print_flag("-v", NULL, "more notes; of -q and -v the last counts");
    print_flag("-h, --help", NULL, "print this and exit");
    print_flag("--version", NULL, "print the version and exit");
    printf("\nexit status: 0 ok, 1 negative answer, 2 usage, 3 malformed or unsupported input, 4 I/O or "
           "memory, 5 device\n");
}

/* ---- the parser ---- */

static bool only(const char *s, const char *set)
{
    return *s && strspn(s, set) == strlen(s);
}

/* Whether v is outside of f's range; prints it the way the flag is counted. */
static void check_range(const struct cli *c, const struct cli_flag *f, double v, const char *text)
{
    bool above = f->kind == CLI_F32_ABOVE;
    if (f->min < f->max && !(v >= f->min && v <= f->max && !(above && v == f->min)))
        cli_usage_error(c, "%s: out of range (expected %s%.10g to %.10g, got %s)", f->name,
                        above ? "above " : "", f->min, f->max, text);
}

static int64_t parse_int(const struct cli *c, const struct cli_flag *f, const char *s, int64_t lo, int64_t hi)
{
    char *end;
    long long v;
    if (f->min < f->max) { /* whole numbers that a double holds */
        lo = f->min > (double)lo ? (int64_t)f->min : lo;
        hi = f->max < (double)hi ? (int64_t)f->max : hi;
    }
    errno = 0;
    v = only(s, "+-0123456789") ? strtoll(s, &end, 10) : 0;
    if (!only(s, "+-0123456789") || *end || end == s)
        cli_usage_error(c, "%s: not a whole number (expected %s, got '%s')", f->name, f->arg ? f->arg : "N",
                        s);
    if (errno == ERANGE || v < lo || v > hi)
        cli_usage_error(c, "%s: out of range (expected %" PRId64 " to %" PRId64 ", got %s)", f->name, lo, hi,
                        s);
    return v;
}

static uint64_t parse_u64(const struct cli *c, const struct cli_flag *f, const char *s)
{
    char *end;
    unsigned long long v;
    if (!only(s, "0123456789"))
        cli_usage_error(c, "%s: not a whole number of 0 or more (expected %s, got '%s')", f->name,
                        f->arg ? f->arg : "N", s);
    errno = 0;
    v = strtoull(s, &end, 10);
    if (errno == ERANGE)
        cli_usage_error(c, "%s: out of range (expected 0 to %" PRIu64 ", got %s)", f->name, UINT64_MAX, s);
    check_range(c, f, (double)v, s);
    return v;
}

static float parse_f32(const struct cli *c, const struct cli_flag *f, const char *s)
{
    char *end = NULL;
    double v = 0;
    float r;
    /* The set of characters keeps out what strtod takes beyond decimal numbers: nan, inf, hexadecimal,
     * leading blanks. */
    if (only(s, "+-.eE0123456789")) v = strtod(s, &end);
    if (!end || *end || end == s)
        cli_usage_error(c, "%s: not a number (expected %s, got '%s')", f->name, f->arg ? f->arg : "X", s);
    r = (float)v;
    if (!isfinite(r)) cli_usage_error(c, "%s: out of range of a float (got %s)", f->name, s);
    check_range(c, f, v, s);
    if (f->kind == CLI_F32_ABOVE) check_range(c, f, (double)r, s); /* 1e-50 is 0 as a float */
    if (r == 0 &&
        isdigit((unsigned char)s[strcspn(s, "123456789eE")])) /* a digit that is not 0, before the exponent */
        cli_usage_error(c, "%s: too small for a float (expected 0 or at least %.1e in size, got %s)", f->name,
                        (double)FLT_TRUE_MIN, s);
    return r;
}

static void add_to_list(const struct cli *c, struct cli_list *l, const char *s)
{
    const char **v = mem_realloc(l->v, ((size_t)l->n + 1) * sizeof *v);
    if (!v) {
        fprintf(stderr, "dflash-%s: out of memory (arguments)\n", c->tool);
        exit(ERR_IO);
    }
    l->v = v;
    l->v[l->n++] = s;
}

/* Whether f's value is the name of a file or folder: an empty one is often a variable that was not set. */
static bool names_file(const struct cli_flag *f)
{
    static const char *const args[] = {"FILE",   "DIR",     "HF_DIR",     "DIR|GGUF", "STATE",
                                       "TARGET", "DRAFTER", "MODEL.gguf", NULL};
    for (int i = 0; f->arg && args[i]; i++)
        if (!strcmp(f->arg, args[i])) return true;
    return false;
}

static void set_flag(const struct cli *c, const struct cli_flag *f, const char *s)
{
    switch (f->kind) {
    case CLI_FLAG: *(bool *)f->value = true; break;
    case CLI_STR:
        if (!*s && names_file(f)) cli_usage_error(c, "%s: the name is empty (expected %s)", f->name, f->arg);
        if (!*s && (!strcmp(f->arg, "NAME") || !strcmp(f->arg, "TYPE") || !strcmp(f->arg, "TEXT") ||
                    !strcmp(f->arg, "K[,V]")))
            cli_usage_error(c, "%s: the value is empty (expected %s)", f->name, f->arg);
        *(const char **)f->value = s;
        break;
    case CLI_I32_ALL:
        *(int32_t *)f->value =
            strcmp(s, "all") ? (int32_t)parse_int(c, f, s, INT32_MIN, INT32_MAX) : INT32_MAX;
        break;
    case CLI_I32: *(int32_t *)f->value = (int32_t)parse_int(c, f, s, INT32_MIN, INT32_MAX); break;
    case CLI_I64: *(int64_t *)f->value = parse_int(c, f, s, INT64_MIN, INT64_MAX); break;
    case CLI_U64: *(uint64_t *)f->value = parse_u64(c, f, s); break;
    case CLI_F32:
    case CLI_F32_ABOVE: *(float *)f->value = parse_f32(c, f, s); break;
    case CLI_LIST: add_to_list(c, f->value, s); break;
    case CLI_COUNTED:
        ((struct cli_counted *)f->value)->n = (int32_t)parse_int(c, f, s, INT32_MIN, INT32_MAX);
        break;
    }
}

static void enter_given(const struct cli *c, const struct cli_flag *f, const char *s)
{
    const char **was = &c->given[f - c->flags];
    if (*was && f->kind != CLI_FLAG && f->kind != CLI_LIST && strcmp(*was, s))
        cli_warn(c, "%s is given more than once: '%s' counts, '%s' does not", f->name, s, *was);
    *was = s;
}

static const struct cli_flag *find_flag(const struct cli *c, const char *name, size_t n)
{
    for (const struct cli_flag *f = c->flags; f && f->name; f++)
        if (strlen(f->name) == n && !memcmp(f->name, name, n)) return f;
    return NULL;
}

bool cli_given(const struct cli *c, const char *name)
{
    return c->given[find_flag(c, name, strlen(name)) - c->flags] != NULL;
}

bool cli_near(const char *given, const char *known)
{
    const size_t a = strlen(given), b = strlen(known);
    size_t head = 0, tail = 0;
    while (given[head] && given[head] == known[head]) head++;
    while (tail < a - head && tail < b - head && given[a - 1 - tail] == known[b - 1 - tail]) tail++;
    const size_t x = a - head - tail, y = b - head - tail; /* what differs */
    if (x + y == 1) return true;
    if (a != b || a < 4) return false; /* of "-x" and "-n" nothing is alike */
    return x == 1 || (x == 2 && given[head] == known[head + 1] && given[head + 1] == known[head]);
}

/* The first flag that may have been meant; NULL: none. */
static const char *meant(const struct cli *c, const char *name)
{
    static const char *const always[] = {"--help", "--version"};
    for (const struct cli_flag *f = c->flags; f && f->name; f++)
        if (cli_near(name, f->name)) return f->name;
    for (size_t i = 0; i < sizeof always / sizeof *always; i++)
        if (cli_near(name, always[i])) return always[i];
    return NULL;
}

static void unknown_flag(const struct cli *c, const char *given, size_t n)
{
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)(n < sizeof name ? n : sizeof name - 1), given);
    const char *known = n < sizeof name ? meant(c, name) : NULL, *eq = strchr(name, '=');
    if (eq && eq[1] && find_flag(c, name, (size_t)(eq - name)))
        cli_usage_error(c, "unknown flag %s (did you mean %.*s %s?)", name, (int)(eq - name), name, eq + 1);
    if (!strcmp(name, "-m") && c->wants)
        cli_usage_error(c, "unknown flag -m (expected %s without one)", c->wants);
    cli_usage_error(c, known ? "unknown flag %.*s (did you mean %s?)" : "unknown flag %.*s", (int)n, given,
                    known);
}

/* The flags that every program has. */
static bool always_there(const char *s)
{
    return !strcmp(s, "-h") || !strcmp(s, "--help") || !strcmp(s, "--version") || !strcmp(s, "-q") ||
           !strcmp(s, "-v");
}

/* The value of f in an argument of its own, which a flag is not: `-m $MODEL -n 4` with MODEL not set. */
static const char *next_value(const struct cli *c, const struct cli_flag *f, int argc, char **argv, int i)
{
    const char *expected = f->arg ? f->arg : "one", *s = i + 1 < argc ? argv[i + 1] : NULL;
    if (!s) cli_usage_error(c, "%s needs a value (expected %s)", f->name, expected);
    if (find_flag(c, s, strlen(s)) || always_there(s))
        cli_usage_error(c, "%s needs a value (expected %s, got the flag %s)", f->name, expected, s);
    return s;
}

/* One flag at argv[i]; returns the index of the last argument that it took. */
static int parse_flag(struct cli *c, int argc, char **argv, int i)
{
    const char *a = argv[i], *eq = strncmp(a, "--", 2) ? NULL : strchr(a, '=');
    size_t n = eq ? (size_t)(eq - a) : strlen(a);
    const struct cli_flag *f = find_flag(c, a, n);
    if (!f) {
        if (!strcmp(a, "-h") || !strcmp(a, "--help")) {
            print_help(c);
            exit(cli_close_stdout(c));
        }
        if (!strcmp(a, "--version")) {
            printf("dflash-%s %s\n", c->tool, cli_version());
            exit(cli_close_stdout(c));
        }
        if (strcmp(a, "-q") && strcmp(a, "-v")) unknown_flag(c, a, n);
        c->quiet = a[1] == 'q'; /* of both the last counts */
        c->verbose = a[1] == 'v';
        return i;
    }
    if (f->kind == CLI_FLAG) {
        if (eq) cli_usage_error(c, "%s takes no value (got '%s')", f->name, eq + 1);
        set_flag(c, f, NULL);
        enter_given(c, f, "");
        return i;
    }
    const char *s = eq ? eq + 1 : next_value(c, f, argc, argv, i);
    set_flag(c, f, s);
    i += !eq;
    if (f->kind == CLI_COUNTED) {
        s = next_value(c, f, argc, argv, i++);
        if (!*s) cli_usage_error(c, "%s: the name is empty (expected %s)", f->name, f->arg);
        ((struct cli_counted *)f->value)->name = s;
    }
    enter_given(c, f, s);
    return i;
}

/* Where a standard stream is closed, the next file opened would get its number: a model would be read as the
 * prompt, messages be written into an output. What cannot be read (0) or written takes these numbers. */
static void hold_closed_streams(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd)
            _exit(ERR_IO);
}

void cli_parse(struct cli *c, int argc, char **argv)
{
    static const char **volatile kept[2]; /* to the end of the program, and seen to be by a leak checker */
    bool ended = false;
    size_t n_flags = 0;
    hold_closed_streams();
    io_signals_install();
    json_use_mem();
    c->n_args = 0;
    while (c->flags && c->flags[n_flags].name) n_flags++;
    kept[0] = c->args = mem_calloc((size_t)argc + 1, sizeof *c->args);
    kept[1] = c->given = mem_calloc(n_flags + 1, sizeof *c->given);
    (void)kept;
    if (!c->args || !c->given) {
        fprintf(stderr, "dflash-%s: out of memory (arguments)\n", c->tool);
        exit(ERR_IO);
    }
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        if (ended || a[0] != '-' || !a[1])
            c->args[c->n_args++] = a; /* "-" alone is stdin or stdout */
        else if (!strcmp(a, "--"))
            ended = true;
        else
            i = parse_flag(c, argc, argv, i);
    }
    for (int i = 0; i < c->n_args; i++)
        if (!*c->args[i]) cli_usage_error(c, "argument %d is empty (expected a name)", i + 1);
    if (c->n_args < c->min_args)
        cli_usage_error(c, "missing argument%s%s (expected %s%d, got %d)", c->wants ? ": " : "",
                        c->wants ? c->wants : "", c->max_args == c->min_args ? "" : "at least ", c->min_args,
                        c->n_args);
    if (c->max_args >= 0 && c->n_args > c->max_args)
        cli_usage_error(c, "too many arguments: '%s' (expected %s%d, got %d%s)", c->args[c->max_args],
                        c->max_args == c->min_args ? "" : "at most ", c->max_args, c->n_args,
                        !c->max_args && find_flag(c, "-m", 2) ? ": a model goes with -m" : "");
}
