/* plot.c - time over rows: commands for gnuplot, and a file that it draws. See bench.h. */
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "../../common/base/io.h"
#include "../../common/base/text.h"
#include "bench.h"

const char *bench_text(const json_t *j, const char *outer, const char *key)
{
    const char *s = json_string_value(json_object_get(outer ? json_object_get(j, outer) : j, key));
    static char text[8][512];
    static int turn;
    char *t = text[turn = (turn + 1) % 8];
    snprintf(t, sizeof text[0], "%s", s ? s : "");
    for (char *p = text_printable(t); *p; p++)
        if (*p == '|') *p = '/'; /* it would end a cell of the table */
    return t;
}

const char *bench_number(const json_t *j, const char *a, const char *b, const char *c, int digits,
                         double scale)
{
    static char text[16][40];
    static int turn;
    char *s = text[turn = (turn + 1) % 16];
    j = json_object_get(j, a);
    if (b) j = json_object_get(j, b);
    if (c) j = json_object_get(j, c);
    if (json_is_number(j))
        snprintf(s, sizeof text[0], "%.*f", digits, json_number_value(j) * scale);
    else
        snprintf(s, sizeof text[0], "-");
    return s;
}

const char *bench_unquoted(char *text)
{
    for (char *p = text; *p; p++)
        if (*p == '"' || *p == '\'' || *p == '\\') *p = '_';
    return text;
}

/* ---- commands ---- */

static bool is_rows(const json_t *j)
{
    return !strcmp(bench_text(j, NULL, "kind"), "rows");
}

static bool same_machine(const json_t *a, const json_t *b)
{
    return !strcmp(bench_text(a, "target", "file"), bench_text(b, "target", "file")) &&
           !strcmp(bench_text(a, "machine", "device"), bench_text(b, "machine", "device")) &&
           !strcmp(bench_number(a, "machine", "threads", NULL, 0, 1),
                   bench_number(b, "machine", "threads", NULL, 0, 1));
}

/* What a curve of rows is called, and what tells it from another. Prompts go on with the first passes of
 * their model and machine. */
static const char *curve_name(const json_t *lines, const json_t *j, char *out, size_t n)
{
    for (size_t i = 0; json_is_true(json_object_get(j, "prompt")) && i < json_array_size(lines); i++) {
        const json_t *k = json_array_get(lines, i);
        if (is_rows(k) && !json_is_true(json_object_get(k, "prompt")) && same_machine(j, k)) j = k;
    }
    snprintf(out, n, "%s, context %s, %s, %s threads", bench_text(j, "target", "file"),
             bench_number(j, "context", NULL, NULL, 0, 1), bench_text(j, "machine", "device"),
             bench_number(j, "machine", "threads", NULL, 0, 1));
    return bench_unquoted(out);
}

static const struct {
    const char *key, *title;
} beside[] = {{"floor_bytes_s", "bytes at the measured ceiling"},
              {"floor_products_s", "products at the measured ceiling"},
              {"peer_s", ""}};
enum { BESIDE = sizeof beside / sizeof *beside };

/* The lines of the curve that line i begins. there: which columns beside the time have a number. */
static size_t put_curve(FILE *out, const json_t *lines, size_t i, size_t curve, const char *name, bool *there,
                        char *peer, size_t n_peer)
{
    char other[700];
    size_t drawn = 0;
    snprintf(peer, n_peer, "peer");
    fprintf(out, "title%zu = '%s'\n$data%zu << EOD\n", curve, name, curve);
    for (size_t k = i; k < json_array_size(lines); k++) {
        const json_t *r = json_array_get(lines, k);
        if (!is_rows(r) || strcmp(name, curve_name(lines, r, other, sizeof other)) != 0) continue;
        fprintf(out, "%s %s", bench_number(r, "rows", NULL, NULL, 0, 1),
                bench_number(r, "seconds", "median", NULL, 6, 1e3));
        for (int c = 0; c < BESIDE; c++) {
            fprintf(out, " %s", bench_number(r, beside[c].key, NULL, NULL, 6, 1e3));
            there[c] |= json_is_number(json_object_get(r, beside[c].key));
        }
        fprintf(out, "\n");
        if (*bench_text(r, NULL, "peer")) snprintf(peer, n_peer, "%s", bench_text(r, NULL, "peer"));
        drawn++;
    }
    fprintf(out, "EOD\npeer%zu = '%s'\n", curve, bench_unquoted(peer));
    return drawn;
}

size_t bench_plot_rows(FILE *out, const json_t *lines)
{
    enum { MOST = 64 };
    bool there[MOST][BESIDE] = {{false}};
    char name[700], other[700], peer[512];
    size_t n = json_array_size(lines), drawn = 0, curves = 0;
    for (size_t i = 0; i < n && curves < MOST; i++) {
        const json_t *j = json_array_get(lines, i);
        bool first = is_rows(j);
        if (first) curve_name(lines, j, name, sizeof name);
        for (size_t k = 0; k < i && first; k++)
            first = !is_rows(json_array_get(lines, k)) ||
                    strcmp(name, curve_name(lines, json_array_get(lines, k), other, sizeof other)) != 0;
        if (!first) continue;
        drawn += put_curve(out, lines, i, curves, name, there[curves], peer, sizeof peer);
        curves++;
    }
    if (!curves) return 0;
    fprintf(out, "set title 'time of a pass over its rows (both axes logarithmic)'\nset logscale x 2\nset "
                 "logscale y\nset xlabel 'rows'\nset ylabel 'ms a pass'\nplot");
    for (size_t i = 0; i < curves; i++) {
        fprintf(out, "%s $data%zu using 1:2 with linespoints title title%zu", i ? "," : "", i, i);
        for (int c = 0; c < BESIDE; c++)
            if (there[i][c] && *beside[c].title)
                fprintf(out, ", $data%zu using 1:%d with lines dashtype 2 title '%s'", i, c + 3,
                        beside[c].title);
            else if (there[i][c])
                fprintf(out, ", $data%zu using 1:%d with linespoints title peer%zu", i, c + 3, i);
    }
    fprintf(out, "\n");
    return drawn;
}

/* ---- a file ---- */

static const char *terminal_of(const char *path)
{
    const char *dot = strrchr(path, '.');
    if (dot && !strcmp(dot, ".svg")) return "svg";
    return dot && !strcmp(dot, ".png") ? "pngcairo" : NULL;
}

/* gnuplot with stdin from `in` and stdout to `out`. ERR_IO where it is not there. */
static int start(pid_t *id, char *const *argv, int in, int out, struct err *e)
{
    extern char **environ;
    posix_spawn_file_actions_t to;
    int rc = posix_spawn_file_actions_init(&to);
    if (rc == 0) rc = posix_spawn_file_actions_adddup2(&to, in, STDIN_FILENO);
    if (rc == 0) rc = posix_spawn_file_actions_adddup2(&to, out, STDOUT_FILENO);
    if (rc == 0) rc = posix_spawnp(id, argv[0], &to, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&to);
    if (rc == 0) return 0;
    err_set(e, ERR_IO, "--plot: cannot run gnuplot: %s", strerror(rc));
    return err_hint(e, "install it (Debian: gnuplot-nox), or keep the lines: dflash-bench report --gnuplot");
}

/* Waits; ERR_IO unless it ended well. */
static int ended(pid_t id, struct err *e)
{
    int status = 0;
    while (waitpid(id, &status, 0) < 0)
        if (errno != EINTR) return err_errno(e, "--plot: gnuplot");
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return 0;
    return err_set(e, ERR_IO, "--plot: gnuplot failed (expected status 0, got %d)",
                   WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

int bench_plot_check(const char *path, struct err *e)
{
    char *const argv[] = {"gnuplot", "--version", NULL};
    pid_t id;
    if (!terminal_of(path))
        return err_set(e, ERR_USAGE, "--plot: not a picture's name (expected FILE.svg or FILE.png, got '%s')",
                       path);
    const int none = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (none < 0) return err_errno(e, "/dev/null");
    const int rc = start(&id, argv, none, none, e);
    close(none);
    return rc ? -1 : ended(id, e);
}

/* What gnuplot makes of the script to o. */
static int draw(FILE *script, struct io_out *o, const char *path, struct err *e)
{
    char *const argv[] = {"gnuplot", "-", NULL};
    uint8_t part[4096];
    int ends[2], rc = 0;
    uint64_t all = 0;
    ssize_t n;
    pid_t id;
    if (pipe2(ends, O_CLOEXEC)) return err_errno(e, "--plot: a pipe");
    if (start(&id, argv, fileno(script), ends[1], e)) {
        close(ends[0]), close(ends[1]);
        return -1;
    }
    close(ends[1]);
    while ((n = read(ends[0], part, sizeof part)) > 0 || (n < 0 && errno == EINTR)) {
        if (n < 0 || rc) continue; /* read on: gnuplot must not wait */
        all += (uint64_t)n;
        rc = io_out_write(o, part, (size_t)n, e);
    }
    close(ends[0]);
    if (rc) {
        struct err none = {0};
        (void)ended(id, &none);
        return -1;
    }
    if (ended(id, e)) return -1;
    return all ? 0 : err_set(e, ERR_IO, "%s: gnuplot drew nothing", path);
}

int bench_plot_file(const char *path, bool force, const json_t *lines, struct err *e)
{
    struct io_out o = {0};
    FILE *script = tmpfile();
    if (!script) return err_errno(e, "--plot: a temporary file");
    fprintf(script,
            "set terminal %s noenhanced size 1200,700\nset key left top\nset grid\nset datafile missing "
            "'-'\n",
            terminal_of(path));
    bench_plot_rows(script, lines);
    int rc = fflush(script) || ferror(script) || lseek(fileno(script), 0, SEEK_SET) < 0
                 ? err_errno(e, "--plot: a temporary file")
                 : io_out_open(&o, path, force, NULL, 0, e);
    if (rc == 0 && (draw(script, &o, path, e) || io_out_commit(&o, e))) rc = -1;
    io_out_abort(&o);
    fclose(script);
    return rc;
}
