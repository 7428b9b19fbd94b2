/* bench.h - what the verbs of dflash-bench share: a sample of measurements, the ceiling, prompts, JSON lines.
 */
#ifndef DFLASH_BENCH_H
#define DFLASH_BENCH_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "../../common/base/json.h"
#include "../cli.h"
#include "../models.h"
#include "../redirect.h"

/* The verbs: argv[0] is the verb's own name; they return the exit status. */
int bench_run(int argc, char **argv);
/* The flags of run alone, without a prompt; a usage error exits. */
void bench_run_check(int argc, char **argv);
int bench_rows(int argc, char **argv);
int bench_calibrate(int argc, char **argv);
int bench_ops(int argc, char **argv);
int bench_matrix(int argc, char **argv);
int bench_work(int argc, char **argv);
int bench_compare(int argc, char **argv);
int bench_report(int argc, char **argv);
int bench_needles(int argc, char **argv);

/* stats.c - measurements of one thing, in the order they were made */
#define BENCH_MAX_RUNS 1000
struct sample {
    int n;
    double x[BENCH_MAX_RUNS];
};
void sample_add(struct sample *s, double x);
double sample_quantile(const struct sample *s,
                       double q);            /* 0 min, 0.5 median, 1 max; linear between; NaN if empty */
json_t *sample_json(const struct sample *s); /* {"median":..,"min":..,"max":..,"iqr":..,"n":..} */

/* Is b different from a? a and b were measured in turn, one pair a run; larger is better. "faster" or
 * "slower" where the two-sided sign test over the pairs' ratios has p < 0.1 and the median ratio is further
 * from 1 than half the interquartile range of the ratios; else "no difference seen". Fewer than 5 pairs: "too
 * few runs". */
struct verdict {
    double ratio, low, high, p; /* median and quartiles of b / a */
    double at_least;            /* lower end of the mean's 95 % interval; NaN of fewer than 3 pairs */
    const char *text;
};
struct verdict verdict_of(const struct sample *a, const struct sample *b);
json_t *verdict_json(const struct verdict *v);

/* ceiling.c - reading memory once, bytes a second: where the models are on the CPU a plain loop over bytes
 * (256 MiB to 2 GiB), best of passes, one size and number of threads a process; on a device its own
 * measurement. NaN, which JSON shows as null: not measured. */
double bench_ceiling(const struct models *m, uint64_t bytes, int threads, int passes);

/* Operations a second of products alone, two a multiplication and addition: on the CPU of 8-bit integers in
 * registers, best of three; on a device the library's, of 16-bit numbers. NaN: not measured. */
/* Bytes a second at which the device reads the host's memory, measured now; NaN where nothing lies there. */
double bench_link(const struct models *m);
double bench_product_ceiling(const struct models *m, int threads);

/* plot.c - time over rows, of lines of kind "rows": commands for gnuplot. */
/* Returns how many lines are drawn: a curve a model, context and machine, with floors where lines have them
 * and a peer's times. */
size_t bench_plot_rows(FILE *out, const json_t *lines);
/* ERR_USAGE unless path ends in .svg or .png; ERR_IO with a hint where there is no gnuplot. */
int bench_plot_check(const char *path, struct err *e);
/* The plot of lines, drawn by gnuplot into path, which appears whole or not at all. */
int bench_plot_file(const char *path, bool force, const json_t *lines, struct err *e);
/* The text at key or outer.key, as a terminal and a table may have it. Good until eight more. */
const char *bench_text(const json_t *j, const char *outer, const char *key);
/* The number at a, a.b or a.b.c times scale, with digits after the point; "-" where there is none. Good until
 * 16 more. */
const char *bench_number(const json_t *j, const char *a, const char *b, const char *c, int digits,
                         double scale);
/* text without what would end a string in quotes. */
const char *bench_unquoted(char *text);

/* A line of JSON on stdout, or to o where it is open; steals j. Adds "schema" first. */
int bench_emit(json_t *j, struct err *e);
/* A usage error where --ctx, unless 0, has no room for `context` positions and the most rows of a pass. */
void bench_check_ctx(const struct cli *c, int32_t ctx, int32_t context);
/* What ran where: device, kernels, isa, threads, processor, version, commit, and whether it was changed. */
json_t *bench_machine(const struct models *m);
int bench_threads(const struct models *m);
/* Token file, whole; ids are mem_alloc'ed. */
int bench_read_tokens(const char *path, int32_t **ids, size_t *n, struct err *e);
/* redirect_open with the models and the n files in more as inputs that the output may not be. */
enum { BENCH_INPUTS = 4096 + 8 };
int bench_redirect(struct redirect *r, const char *path, bool force, const struct models *m,
                   const char *const *more, int n, struct err *e);
/* "1,2,4" into v (at most room); ERR_USAGE naming the flag. */
int bench_int_list(const char *flag, const char *text, int32_t *v, int room, int *n, int32_t min, int32_t max,
                   struct err *e);
json_t *bench_model_json(const char *path, const struct model *m);
json_t *bench_target_json(const struct models *m); /* with the keys that --override-kv sets, where it does */

#endif
