/* The flag parser: each case runs in a child whose output and exit status are compared. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "../../../cmd/cli.c" /* programs link these beside the library, tests do not */
#define DFLASH_COMMIT "0123456789ab+"
#include "../../../cmd/version.c"
#include "../scratch.h"

static struct values {
    bool force;
    const char *out, *type, *target;
    int32_t n;
    int64_t big;
    uint64_t seed;
    float temp;
    struct cli_list list;
    struct cli_counted counted;
} v;

static const struct cli_flag flags[] = {
    {"-o", CLI_STR, &v.out, "FILE", "write to FILE", 0, 0},
    {"--type", CLI_STR, &v.type, "TYPE", "tensor type", 0, 0},
    {"--force", CLI_FLAG, &v.force, NULL, "replace an existing file", 0, 0},
    {"--n", CLI_I32, &v.n, "N", "how many", 0, 0},
    {"--threads", CLI_I32, &v.n, "N", "threads", 1, 1024},
    {"--big", CLI_I64, &v.big, "N", "how many more", 0, 0},
    {"--seed", CLI_U64, &v.seed, "SEED", "seed of the random numbers", 0, 0},
    {"--temp", CLI_F32, &v.temp, "T", "temperature", 0, 100},
    {"--mass", CLI_F32_ABOVE, &v.temp, "P", "above 0", 0, 1},
    {"--target", CLI_STR, &v.target, "DIR|GGUF", "a target", 0, 0},
    {"--a-flag-with-a-long-name", CLI_LIST, &v.list, "PATTERN=TYPE", "one more", 0, 0},
    {"--counted", CLI_COUNTED, &v.counted, "K FILE", "two values", 0, 9},
    {0},
};

/* Runs cli_parse in a child over the words of line; what it prints and its status come back. */
static char out[8192];
static int run(const char *line, int min_args, int max_args)
{
    char copy[512], *argv[32], *save = NULL;
    int argc = 0, fd[2], status;
    size_t n = 0;
    ssize_t k;
    pid_t pid;
    strcpy(copy, line);
    argv[argc++] = (char *)"dflash-test";
    for (char *w = strtok_r(copy, " ", &save); w; w = strtok_r(NULL, " ", &save)) argv[argc++] = w;
    argv[argc] = NULL;
    fflush(stdout);
    assert_int_equal(pipe(fd), 0);
    pid = fork();
    if (!pid) {
        struct cli c = {.tool = "test",
                        .wants = "IN",
                        .synopsis = "[-o FILE] IN\n    [--type TYPE]\n--diff A B",
                        .summary = "Tests the parser.",
                        .flags = flags,
                        .min_args = min_args,
                        .max_args = max_args};
        dup2(fd[1], 1);
        dup2(fd[1], 2);
        cli_parse(&c, argc, argv);
        printf("force=%d o=%s type=%s n=%d big=%lld seed=%llu temp=%g list=%d:%s q=%d v=%d args=", v.force,
               v.out ? v.out : "", v.type ? v.type : "", v.n, (long long)v.big, (unsigned long long)v.seed,
               v.temp, v.list.n, v.list.n ? v.list.v[v.list.n - 1] : "", c.quiet, c.verbose);
        for (int i = 0; i < c.n_args; i++) printf("[%s]", c.args[i]);
        if (v.counted.name) printf(" counted=%d:%s", v.counted.n, v.counted.name);
        _exit(cli_close_stdout(&c));
    }
    close(fd[1]);
    while ((k = read(fd[0], out + n, sizeof out - 1 - n)) > 0) n += (size_t)k;
    out[n] = 0;
    close(fd[0]);
    waitpid(pid, &status, 0);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void accepted(void **state)
{
    (void)state;
    assert_int_equal(run("", 0, 0), 0);
    assert_string_equal(out, "force=0 o= type= n=0 big=0 seed=0 temp=0 list=0: q=0 v=0 args=");
    assert_int_equal(run("a -o x --type=q8_0 b --force --n -7 -q -v -q", 0, 2), 0);
    assert_string_equal(out, "force=1 o=x type=q8_0 n=-7 big=0 seed=0 temp=0 list=0: q=1 v=0 args=[a][b]");
    assert_int_equal(run("-q -v", 0, 0), 0);
    assert_string_equal(out, "force=0 o= type= n=0 big=0 seed=0 temp=0 list=0: q=0 v=1 args=");
    assert_int_equal(run("--big -9223372036854775808 --seed 18446744073709551615 --temp 1e-1", 0, 0), 0);
    assert_string_equal(out, "force=0 o= type= n=0 big=-9223372036854775808 seed=18446744073709551615 "
                             "temp=0.1 list=0: q=0 v=0 args=");
    assert_int_equal(
        run("--type a --type=b --a-flag-with-a-long-name x=1 --a-flag-with-a-long-name y=2 -o -", 0, 0), 0);
    assert_string_equal(out,
                        "dflash-test: warning: --type is given more than once: 'b' counts, 'a' does not\n"
                        "force=0 o=- type=b n=0 big=0 seed=0 temp=0 list=2:y=2 q=0 v=0 args=");
    assert_int_equal(run("a --counted 3 x.y b --counted=4 z", 0, 2), 0);
    assert_string_equal(
        out, "dflash-test: warning: --counted is given more than once: 'z' counts, 'x.y' does not\n"
             "force=0 o= type= n=0 big=0 seed=0 temp=0 list=0: q=0 v=0 args=[a][b] counted=4:z");
    assert_int_equal(run("--n 3 --force --n 3 --force", 0, 0), 0);
    assert_string_equal(out, "force=1 o= type= n=3 big=0 seed=0 temp=0 list=0: q=0 v=0 args=");
    assert_int_equal(run("- -- --force -o --", 0, 9), 0);
    assert_string_equal(out,
                        "force=0 o= type= n=0 big=0 seed=0 temp=0 list=0: q=0 v=0 args=[-][--force][-o][--]");
}

static const char *const refused_words[][2] = {
    {"--nope", "unknown flag --nope"},
    {"--nope=3", "unknown flag --nope"},
    {"-x", "unknown flag -x"},
    {"-ofile", "unknown flag -ofile"},
    {"--forc", "unknown flag --forc (did you mean --force?)"},
    {"--forcee=3", "unknown flag --forcee (did you mean --force?)"},
    {"--tpye x", "unknown flag --tpye (did you mean --type?)"},
    {"--tempo", "unknown flag --tempo (did you mean --temp?)"},
    {"-force", "unknown flag -force (did you mean --force?)"},
    {"--versoin", "unknown flag --versoin (did you mean --version?)"},
    {"--tepy", "unknown flag --tepy"}, /* two edits from --type */
    {"--a-flag-with-a-long-name-that-is-longer-than-any-flag-there-ever-was-here",
     "unknown flag --a-flag-with-a-long-name-that-is-longer-than-any-flag-there-ever-was-here"},
    {"--force=1", "--force takes no value (got '1')"},
    {"-o", "-o needs a value (expected FILE)"},
    {"-o --force", "-o needs a value (expected FILE, got the flag --force)"},
    {"--counted", "--counted needs a value (expected K FILE)"},
    {"--counted 3", "--counted needs a value (expected K FILE)"},
    {"--counted 3 -o", "--counted needs a value (expected K FILE, got the flag -o)"},
    {"--counted 10 x", "--counted: out of range (expected 0 to 9, got 10)"},
    {"--counted x 3", "--counted: not a whole number (expected K FILE, got 'x')"},
    {"--n --type x", "--n needs a value (expected N, got the flag --type)"},
    {"--type -q", "--type needs a value (expected TYPE, got the flag -q)"},
    {"-o= x", "unknown flag -o= (did you mean -o?)"},
    {"-o=x", "unknown flag -o=x (did you mean -o x?)"},
    {"-m x", "unknown flag -m (expected IN without one)"},
    {"--target=", "--target: the name is empty (expected DIR|GGUF)"},
    {"--n", "--n needs a value (expected N)"},
    {"--n=", "--n: not a whole number (expected N, got '')"},
    {"--n 7x", "--n: not a whole number (expected N, got '7x')"},
    {"--n 0x10", "--n: not a whole number (expected N, got '0x10')"},
    {"--n 1.5", "--n: not a whole number (expected N, got '1.5')"},
    {"--n 1-2", "--n: not a whole number (expected N, got '1-2')"},
    {"--n -", "--n: not a whole number (expected N, got '-')"},
    {"--n 2147483648", "--n: out of range (expected -2147483648 to 2147483647, got 2147483648)"},
    {"--n 99999999999999999999",
     "--n: out of range (expected -2147483648 to 2147483647, got 99999999999999999999)"},
    {"--threads 0", "--threads: out of range (expected 1 to 1024, got 0)"},
    {"--threads 1025", "--threads: out of range (expected 1 to 1024, got 1025)"},
    {"--seed -1", "--seed: not a whole number of 0 or more (expected SEED, got '-1')"},
    {"--seed 18446744073709551616",
     "--seed: out of range (expected 0 to 18446744073709551615, got 18446744073709551616)"},
    {"--temp nan", "--temp: not a number (expected T, got 'nan')"},
    {"--temp inf", "--temp: not a number (expected T, got 'inf')"},
    {"--temp 1..2", "--temp: not a number (expected T, got '1..2')"},
    {"--temp 0x1p3", "--temp: not a number (expected T, got '0x1p3')"},
    {"--temp 1e39", "--temp: out of range of a float (got 1e39)"},
    {"--type=", "--type: the value is empty (expected TYPE)"},
    {"--threads 99999999999", "--threads: out of range (expected 1 to 1024, got 99999999999)"},
    {"--threads 0", "--threads: out of range (expected 1 to 1024, got 0)"},
    {"--temp 1e-46", "--temp: too small for a float (expected 0 or at least 1.4e-45 in size, got 1e-46)"},
    {"--temp -0.0e-9 --temp .001e-400",
     "--temp: too small for a float (expected 0 or at least 1.4e-45 in size, got .001e-400)"},
    {"--temp -0.5", "--temp: out of range (expected 0 to 100, got -0.5)"},
    {"--mass 0", "--mass: out of range (expected above 0 to 1, got 0)"},
    {"--mass -0", "--mass: out of range (expected above 0 to 1, got -0)"},
    {"--mass 1e-50", "--mass: out of range (expected above 0 to 1, got 1e-50)"}, /* 0 as a float */
    {"--mass 1.5", "--mass: out of range (expected above 0 to 1, got 1.5)"},
    {"--temp 100.1", "--temp: out of range (expected 0 to 100, got 100.1)"},
    {"a", "missing argument: IN (expected at least 2, got 1)"},
    {"a b c d", "too many arguments: 'd' (expected at most 3, got 4)"},
};

static void refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refused_words / sizeof *refused_words; i++) {
        char want[512];
        snprintf(want, sizeof want, "dflash-test: %s\ntry 'dflash-test --help'\n", refused_words[i][1]);
        assert_int_equal(run(refused_words[i][0], 2, 3), ERR_USAGE);
        assert_string_equal(out, want);
    }
    assert_int_equal(run("", 1, 1), ERR_USAGE);
    assert_string_equal(out,
                        "dflash-test: missing argument: IN (expected 1, got 0)\ntry 'dflash-test --help'\n");
}

static void help(void **state)
{
    (void)state;
    assert_int_equal(run("--version --nope", 1, 1), 0);
    assert_string_equal(out, "dflash-test " DFLASH_VERSION " (0123456789ab, changed)\n");
    assert_int_equal(run("x y z --help", 1, 1), 0);
    assert_string_equal(
        out, "usage: dflash-test [-o FILE] IN\n"
             "                      [--type TYPE]\n"
             "       dflash-test --diff A B\n"
             "\n"
             "Tests the parser.\n"
             "\n"
             "flags:\n"
             "  -o FILE                   write to FILE\n"
             "  --type TYPE               tensor type\n"
             "  --force                   replace an existing file\n"
             "  --n N                     how many\n"
             "  --threads N               threads\n"
             "  --big N                   how many more\n"
             "  --seed SEED               seed of the random numbers\n"
             "  --temp T                  temperature\n"
             "  --mass P                  above 0\n"
             "  --target DIR|GGUF         a target\n"
             "  --a-flag-with-a-long-name PATTERN=TYPE\n"
             "                            one more\n"
             "  --counted K FILE          two values\n"
             "  -q                        no notes and no progress; warnings and errors stay\n"
             "  -v                        more notes; of -q and -v the last counts\n"
             "  -h, --help                print this and exit\n"
             "  --version                 print the version and exit\n"
             "\n"
             "exit status: 0 ok, 1 negative answer, 2 usage, 3 malformed or unsupported input, 4 I/O or "
             "memory, 5 device\n");
}

/* Runs fn in a child, stdout going to path and stderr to a scratch file, which comes back in out. */
static int child(int (*fn)(struct cli *), const char *path)
{
    int status;
    char *p;
    fflush(stdout);
    if (!fork()) {
        struct cli c = {.tool = "test"};
        dup2(open(scratch("stderr"), O_WRONLY | O_CREAT | O_TRUNC, 0600), 2);
        if (path)
            dup2(open(path, O_WRONLY), 1);
        else
            close(1);
        _exit(fn(&c));
    }
    wait(&status);
    p = scratch_read(scratch("stderr"), NULL);
    snprintf(out, sizeof out, "%s", p);
    free(p);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static int print_some(struct cli *c)
{
    printf("data");
    return cli_close_stdout(c);
}

static int print_much(struct cli *c)
{
    for (int i = 0; i < 100000; i++) printf("data");
    return cli_close_stdout(c);
}

static int print_none(struct cli *c)
{
    return cli_close_stdout(c);
}

static int print_help_only(struct cli *c)
{
    char name[] = "dflash-test", arg[] = "--help";
    char *argv[] = {name, arg, NULL};
    cli_parse(c, 2, argv);
    return 99;
}

static int messages(struct cli *c)
{
    struct err e = {0};
    err_set(&e, ERR_DEVICE, "gpu: gone");
    err_hint(&e, "buy another");
    cli_note(c, "note %d", 1);
    cli_detail(c, "unseen");
    c->verbose = true;
    cli_detail(c, "detail");
    c->quiet = true;
    cli_note(c, "unseen");
    cli_detail(c, "unseen");
    cli_warn(c, "care");
    c->quiet = false;
    cli_progress(c, "unseen", 1, 2, "B"); /* stderr is no terminal, and it took no minute */
    cli_progress(c, "unseen", 2, 2, "B");
    return cli_fail(c, &e);
}

/* Where stderr is a log: whole lines, and the end of what had one. */
static int log_lines(struct cli *c)
{
    progress_a_line = 0;
    cli_progress(c, "copy", 1 << 20, 4 << 20, "B");
    progress_a_line = 60;
    cli_progress(c, "copy", 2 << 20, 4 << 20, "B");
    cli_note(c, "a note");
    cli_progress(c, "copy", 4 << 20, 4 << 20, "B");
    cli_progress(c, "copy", 4 << 20, 4 << 20, "B"); /* another, at once at its end */
    c->quiet = true;
    progress_a_line = 0;
    cli_progress(c, "unseen", 1, 2, "B");
    return 0;
}

static int empty_failure(struct cli *c)
{
    struct err e = {0};
    return cli_fail(c, &e);
}

static void streams(void **state)
{
    static const char full[] = "dflash-test: stdout: cannot write: No space left on device\n";
    (void)state;
    assert_int_equal(child(print_some, "/dev/null"), 0);
    assert_int_equal(child(print_some, "/dev/full"), ERR_IO);
    assert_string_equal(out, full);
    assert_int_equal(child(print_much, "/dev/full"), ERR_IO);
    assert_non_null(strstr(out, "dflash-test: stdout: cannot write"));
    assert_int_equal(child(print_help_only, "/dev/full"), ERR_IO);
    assert_string_equal(out, full);
    assert_int_equal(child(print_none, NULL), 0);
    assert_int_equal(child(print_some, NULL), ERR_IO);
    assert_string_equal(out, "dflash-test: stdout: cannot write: Bad file descriptor\n");
    assert_int_equal(child(messages, "/dev/null"), ERR_DEVICE);
    assert_string_equal(
        out, "dflash-test: note 1\ndflash-test: detail\ndflash-test: warning: care\ndflash-test: gpu: gone\n"
             "hint: buy another\n");
    assert_int_equal(child(empty_failure, "/dev/null"), ERR_IO);
    assert_int_equal(child(log_lines, "/dev/null"), 0);
    char *end = strstr(out, "dflash-test: copy: 4.0 MiB of 4.0 MiB (100%), ");
    assert_non_null(end);
    assert_ptr_equal(strchr(end, '\n') + 1, strchr(out, 0));
    *end = 0;
    assert_string_equal(out, "dflash-test: copy: 1.0 MiB of 4.0 MiB (25%)\ndflash-test: a note\n");
}

/* SIGPIPE ends the program even where the parent ignored it. */
static void broken_pipe(void **state)
{
    int fd[2], status;
    (void)state;
    fflush(stdout);
    assert_int_equal(pipe(fd), 0);
    close(fd[0]);
    signal(SIGPIPE, SIG_IGN);
    if (!fork()) {
        char name[] = "dflash-test";
        char *argv[] = {name, NULL};
        struct cli c = {.tool = "test"};
        dup2(fd[1], 1);
        cli_parse(&c, 1, argv);
        _exit(print_much(&c));
    }
    close(fd[1]);
    wait(&status);
    signal(SIGPIPE, SIG_DFL);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGPIPE);
}

/* A pseudo-terminal as stderr: the progress line, and a message that clears it; binary to a terminal is
 * refused. */
static void terminal(void **state)
{
    char got[4096] = "";
    size_t n = 0;
    ssize_t k;
    int pt = posix_openpt(O_RDWR | O_NOCTTY), tty = -1, status;
    (void)state;
    if (pt < 0 || grantpt(pt) || unlockpt(pt) || (tty = open(ptsname(pt), O_RDWR | O_NOCTTY)) < 0) {
        skip(); /* no pseudo-terminals here */
    }
    fflush(stdout);
    if (!fork()) {
        struct cli c = {.tool = "test"};
        dup2(tty, 1);
        dup2(tty, 2);
        cli_progress(&c, "soon", 1, 2, "B"); /* done before anybody could read it */
        cli_progress(&c, "soon", 2, 2, "B");
        progress_after = 0;
        cli_progress(&c, "copy", 1 << 20, 4 << 20, "B");
        for (int i = 0; i < 1000; i++)
            cli_progress(&c, "copy", (1 << 20) + 1, 4 << 20, "B"); /* within a sixth of a second */
        cli_note(&c, "a note");
        cli_progress(&c, "copy", 4 << 20, 4 << 20, "B");
        cli_no_binary_tty(&c, 1, "a token stream");
        _exit(9);
    }
    wait(&status);
    close(tty);
    while (n < sizeof got - 1 && (k = read(pt, got + n, sizeof got - 1 - n)) > 0) n += (size_t)k;
    close(pt);
    assert_int_equal(WEXITSTATUS(status), ERR_USAGE);
    assert_non_null(strstr(got, "\r\033[Kcopy: 1.0 MiB of 4.0 MiB (25%)"));
    assert_non_null(strstr(got, "\r\033[Kdflash-test: a note"));
    assert_non_null(strstr(got, "copy: 4.0 MiB of 4.0 MiB (100%)"));
    assert_non_null(strstr(got, "dflash-test: a token stream is binary: not written to a terminal"));
    assert_null(strstr(got, "soon"));
    k = 0;
    for (const char *p = got; (p = strstr(p, "copy: ")); p++) k++;
    assert_int_equal(k, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accepted), cmocka_unit_test(refused),     cmocka_unit_test(help),
        cmocka_unit_test(streams),  cmocka_unit_test(broken_pipe), cmocka_unit_test(terminal),
    };
    int rc;
    scratch_begin();
    rc = cmocka_run_group_tests(tests, NULL, NULL);
    scratch_end();
    return rc;
}
