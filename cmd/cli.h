/* cli.h - what every program shares: one flag table that feeds parser, --help and man page check, messages,
 * progress.
 *
 * A main() declares its flags once; cli_parse fills the variables, answers --help and --version, and rejects
 * what it does not know with one line and "try --help" (exit 2). */
#ifndef DFLASH_CLI_H
#define DFLASH_CLI_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include "../common/base/err.h"

/* CLI_I32_ALL: a whole number, or "all", which is INT32_MAX. CLI_F32_ABOVE: min itself is outside. CLI_LIST:
 * a string, repeated. CLI_COUNTED: a whole number and a name, in two arguments. */
enum cli_kind {
    CLI_FLAG,
    CLI_STR,
    CLI_I32,
    CLI_I32_ALL,
    CLI_I64,
    CLI_U64,
    CLI_F32,
    CLI_F32_ABOVE,
    CLI_LIST,
    CLI_COUNTED
};

struct cli_counted {
    int32_t n;
    const char *name; /* NULL: not given */
};

struct cli_list {
    const char **v;
    int n;
};

struct cli_flag {
    const char *name; /* "--type"; or short: "-o" */
    enum cli_kind kind;
    void *value;      /* bool, const char *, int32_t (two kinds), int64_t, uint64_t, float, struct cli_list,
                         cli_counted */
    const char *arg;  /* "FILE", "N"; NULL for CLI_FLAG */
    const char *help; /* one line, lower case, no full stop */
    double min, max;  /* numbers: inclusive range, checked where min < max */
};

struct cli {
    const char *tool;             /* "convert": the program is dflash-convert */
    const char *synopsis;         /* lines after "usage: dflash-convert " */
    const char *summary;          /* one sentence */
    const struct cli_flag *flags; /* ends with name NULL; -q, -v, -h, --help, --version are always added */
    const char *wants;            /* the arguments, as "HF_DIR|FILE"; NULL where there are none */
    int min_args, max_args;
    const char **args; /* filled: positional arguments */
    int n_args;
    bool quiet, verbose; /* filled; never both */
    const char *
        *given; /* filled: a flag's last value, "" of one that takes none, NULL of one that is not given */
};

/* Exits for --help, --version (0) and usage errors (2). */
void cli_parse(struct cli *c, int argc, char **argv);
/* Was this flag of the table on the command line? Of one that is there more than once, and is no list, the
 * last counts, with a warning where the values differ. */
bool cli_given(const struct cli *c, const char *name);
/* "convert: message" and "hint: ..."; returns the exit status of e (never 0). */
int cli_fail(const struct cli *c, const struct err *e);
void cli_usage_error(const struct cli *c, const char *fmt, ...)
    __attribute__((format(printf, 2, 3), noreturn));
/* Lines to stderr: note unless -q, detail only with -v, warn always (prefixed "warning: "). */
void cli_note(const struct cli *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void cli_detail(const struct cli *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void cli_warn(const struct cli *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Does a program know `known` and was asked for `given`, one edit away: a character more, less or another, or
 * two that changed places? */
bool cli_near(const char *given, const char *known);
/* Progress of what takes a while: on a terminal one line, at most six times a second; elsewhere a line a
 * minute. unit "B" prints binary sizes, "" no rate. done == total ends it. */
void cli_progress(const struct cli *c, const char *what, uint64_t done, uint64_t total, const char *unit);
/* Before a line that is printed past this file: a progress line on the terminal gives way. */
void cli_progress_clear(void);
/* Refuse binary to or from a terminal (exit 2 with the fix). */
void cli_no_binary_tty(const struct cli *c, int fd, const char *what);
/* The same for an output's path, which may be "-" or NULL (stdout), or name a terminal. */
void cli_no_binary_out(const struct cli *c, const char *path, const char *what);
/* Two outputs of a run may not share a file, a pipe or stdout (exit 2), by whatever names: one would be lost,
 * or both mixed. /dev/null may be shared. path NULL: not wanted; "-": stdout. */
struct cli_output {
    const char *flag, *path;
};
void cli_distinct_outputs(const struct cli *c, const struct cli_output *o, int n);
/* A flag's text that goes into a file (NULL: not given): a usage error unless it is UTF-8 without control
 * characters, which other readers of the file would stumble over. */
void cli_check_text(const struct cli *c, const char *flag, const char *text);
/* A number of bytes above 0: "4096", "500K", "64M", "2G" (of 1000), or a usage error. */
uint64_t cli_bytes(const struct cli *c, const char *flag, const char *text);
/* Is path stdin: "-", or the pipe that stdin is, by another name? */
bool cli_is_stdin(const char *path);
/* Stdin can be read once: more than one of n inputs (NULL: none) that are stdin is a usage error. */
void cli_one_stdin(const struct cli *c, const char *const *inputs, int n);
/* fflush, ferror and fclose of stdout; returns 0 or ERR_IO after printing the message. */
int cli_close_stdout(const struct cli *c);
int cli_close_stdout_as(const struct cli *c, const char *name); /* name: what stdout is, in the message */
double cli_seconds(void);                                       /* monotonic */

#define CLI_MAX_THREADS 1024 /* what the CPU backend takes */
#define DFLASH_VERSION "0.1.0"
/* The commit that the program was built from, NULL where it was no clone; was any of its files changed? */
const char *cli_commit(bool *changed);
/* "0.1.0 (f9e283f1c0de)"; "..., changed)" of a changed tree. */
const char *cli_version(void);
#endif
