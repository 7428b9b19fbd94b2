/* dflash-bench - speed as a share of a ceiling measured in the same run, and streams compared. */
#include <stdio.h>
#include <string.h>
#include "bench.h"

static struct cli cli = {
    .tool = "bench",
    .synopsis =
        "run     -m TARGET [-d DRAFTER] -n N PROMPT.tok...   a cell: plain and drafted in turn\n"
        "rows    -m TARGET [-d DRAFTER]                      1..64 rows and prompts, against the memory's "
        "speed\n"
        "calibrate -m TARGET -d DRAFTER PROMPT.tok...        how often the target agrees with the drafter\n"
        "needles -m MODEL [--sparse ALPHA] [--kv K[,V]]      what a way to run prompts finds in them\n"
        "ops     -m TARGET                                   where a pass's time goes, operation by "
        "operation\n"
        "matrix  --target HF_DIR --drafter HF_DIR ...        rules of a whole matrix, for make\n"
        "work    DIR -- COMMAND... < names                   one of several workers over a list of jobs\n"
        "compare A.tok B.tok [-m TARGET --prompt P.tok]      two streams: the first difference\n"
        "report  FILE.jsonl...                               tables (or a plot) from what the others wrote",
    .summary =
        "Measure the engine and compare token streams. 'dflash-bench VERB --help' lists a verb's flags.",
    .flags = (const struct cli_flag[]){{0}},
    .max_args = 1,
};

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(int argc, char **argv);
    } verb[] = {{"run", bench_run},         {"rows", bench_rows},
                {"ops", bench_ops},         {"calibrate", bench_calibrate},
                {"matrix", bench_matrix},   {"work", bench_work},
                {"compare", bench_compare}, {"report", bench_report},
                {"needles", bench_needles}};
    for (size_t i = 0; argc > 1 && i < sizeof verb / sizeof *verb; i++)
        if (!strcmp(argv[1], verb[i].name)) return verb[i].run(argc - 1, argv + 1);
    cli_parse(&cli, argc, argv);
    for (size_t i = 0; cli.n_args && i < sizeof verb / sizeof *verb; i++)
        if (cli_near(cli.args[0], verb[i].name))
            cli_usage_error(&cli, "unknown verb '%s' (did you mean %s?)", cli.args[0], verb[i].name);
    if (cli.n_args)
        cli_usage_error(&cli,
                        "unknown verb '%s' (expected run, rows, calibrate, needles, ops, matrix, work, "
                        "compare or report)",
                        cli.args[0]);
    cli_usage_error(&cli,
                    "no verb (expected run, rows, calibrate, needles, ops, matrix, work, compare or report)");
}
