/* dflash-convert: a Hugging Face checkpoint into a GGUF. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../../common/make/convert.h"
#include "../../common/base/io.h"
#include "../../common/base/mem.h"
#include "../cli.h"
#include "../drafter_flags.h"

static struct convert o;
static struct cli_list overrides;
static struct {
    const char *type, *taps, *heads, *seed, *theta, *eps, *mtp, *split;
    int32_t tap_shift;
} given = {.tap_shift = -1}; /* what is still text, or says that it was given */

static const struct cli_flag flags[] = {
    {"-o", CLI_STR, &o.output, "FILE", "output (default stdout)", 0, 0},
    {"--split-size", CLI_STR, &given.split, "BYTES",
     "write FILE in parts of at most so many bytes (2G, 500M), named FILE-00001-of-00005.gguf and so on", 0,
     0},
    {"--type", CLI_STR, &given.type, "TYPE",
     "f32, bf16, q8_0, q4_k_m or another of dflash-quantize (default: as stored)", 0, 0},
    {"--tensor-type", CLI_LIST, &overrides, "PATTERN=TYPE",
     "type of the tensors whose names match; repeatable, the last match wins", 0, 0},
    {"--target", CLI_STR, &o.target, "DIR|GGUF",
     "a drafter's target: checked against it, its tokenizer copied", 0, 0},
    {"--dialect", CLI_STR, &o.dialect, "NAME",
     "names of a drafter's keys and tensors: upstream, unshifted, rx, ik, buun, lucebox, lucebox-gemma4 "
     "or lucebox-draft (default: upstream; of a GGUF its own)",
     0, 0},
    {"--from-dialect", CLI_STR, &o.from_dialect, "NAME", "drafter GGUF: its dialect (default: recognised)", 0,
     0},
    {"--tap-shift", CLI_I32, &given.tap_shift, "0|1",
     "drafter GGUF: its taps count from block 0 (0) or from the embeddings (1)", 0, 1},
    {"--sliding-window", CLI_I32, &o.sliding_window, "N", "drafter GGUF: window of its sliding layers", 1,
     2147483647},
    {"--sliding-pattern", CLI_STR, &o.sliding_pattern, "TEXT",
     "drafter GGUF: a letter a layer, s (sliding) or f (full)", 0, 0},
    {"--causal", CLI_I32, &o.causal, "0|1", "drafter GGUF: its layers see ahead in the block (0) or not (1)",
     0, 1},
    {"--mtp", CLI_STR, &given.mtp, "WHAT",
     "the block that predicts further tokens: keep, none, or only: a drafter's file (default: kept if there)",
     0, 0},
    {"--name", CLI_STR, &o.name, "TEXT", "general.name (default: the input's own)", 0, 0},
    {"--random", CLI_STR, &given.seed, "SEED", "random weights at the sizes of config.json", 0, 0},
    {"--rope-theta", CLI_STR, &given.theta, "X", "drafter: rotary base", 0, 0},
    {"--rms-eps", CLI_STR, &given.eps, "X", "drafter: epsilon of the norms", 0, 0},
    {"--taps", CLI_STR, &given.taps, "LIST", "drafter: zero-based target layers whose output is tapped", 0,
     0},
    {"--mask-id", CLI_I32, &o.mask_id, "N", "drafter: mask token id", 0, 2147483647},
    {"--block-size", CLI_I32, &o.block_size, "N", "drafter: rows of a block", 2, 64},
    {"--heads", CLI_STR, &given.heads, "N,N", "drafter: heads and key heads, checked against the shapes", 0,
     0},
    {"--context-length", CLI_I32, &o.n_ctx, "N", "drafter: trained length", 1, 2147483647},
    {"--threads", CLI_I32, &o.threads, "N", "threads (default 0: one a processor)", 0, CLI_MAX_THREADS},
    {"--force", CLI_FLAG, &o.force, NULL, "overwrite an existing output", 0, 0},
    {NULL, CLI_FLAG, NULL, NULL, NULL, 0, 0},
};
static struct cli cli = {
    .tool = "convert",
    .synopsis =
        "HF_DIR|FILE.safetensors|FILE.gguf [-o OUT.gguf] [--type TYPE] [--tensor-type PATTERN=TYPE]...\n "
        "[--target HF_DIR|GGUF] [--split-size BYTES]\n"
        "HF_DIR|CONFIG.json --random SEED [-o OUT.gguf] [--type TYPE] [--tensor-type PATTERN=TYPE]...",
    .summary = "Convert a target or a DFlash drafter from Hugging Face form to GGUF, or a drafter's GGUF "
               "to another dialect.",
    .flags = flags,
    .wants = "HF_DIR|FILE.safetensors|FILE.gguf",
    .min_args = 1,
    .max_args = 1,
};

static void say(void *ctx, enum convert_level level, const char *text)
{
    const struct cli *c = ctx;
    if (level == CONVERT_WARN)
        cli_warn(c, "%s", text);
    else if (level == CONVERT_NOTE)
        cli_note(c, "%s", text);
    else
        cli_detail(c, "%s", text);
}

static void progress(void *ctx, uint64_t done, uint64_t total)
{
    cli_progress(ctx, "writing", done, total, "B");
}

static uint64_t parse_seed(const char *text)
{
    char *end;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || errno)
        cli_usage_error(&cli, "--random: not a seed (expected 0 to 18446744073709551615, got %s)", text);
    return v;
}

static void parse_type(const char *text)
{
    struct err ignored = {0};
    if (quant_recipe_by_name(text, &o.type, &ignored))
        cli_usage_error(&cli, "--type %s is not known (expected one of %s)", text, quant_recipe_names());
    o.type_given = true;
}

static void parse_mtp(const char *text)
{
    if (!strcmp(text, "keep"))
        o.mtp = CONVERT_MTP_KEEP;
    else if (!strcmp(text, "only"))
        o.mtp = CONVERT_MTP_ONLY;
    else if (!strcmp(text, "none"))
        o.mtp = CONVERT_MTP_NONE;
    else
        cli_usage_error(&cli, "--mtp: not known (expected keep, none or only, got %s)", text);
}

/* Kept until the program ends. */
static void parse_overrides(void)
{
    struct quant_override *list = mem_calloc((size_t)overrides.n + 1, sizeof *list);
    struct err e = {0};
    int rc = list ? 0 : err_set(&e, ERR_IO, "out of memory (--tensor-type)");
    for (int i = 0; i < overrides.n && !rc; i++) rc = quant_override_parse(&list[i], overrides.v[i], &e);
    if (rc) exit(cli_fail(&cli, &e));
    o.override = list, o.n_override = overrides.n;
}

static void parse_heads(const char *text)
{
    int32_t h[2];
    if (cli_int_list(&cli, "--heads", text, h, 2) != 2 || h[0] < 1 || h[1] < 1)
        cli_usage_error(&cli, "--heads: not two positive integers (expected N,N, got %s)", text);
    o.n_head = h[0];
    o.n_head_kv = h[1];
}

/* What the flag table leaves as text. */
static void read_flags(void)
{
    cli_check_text(&cli, "--name", o.name);
    if (given.taps && given.tap_shift >= 0)
        cli_usage_error(
            &cli, "--tap-shift says how the file's taps count, and --taps takes their place: one of them");
    o.has_tap_shift = given.tap_shift >= 0;
    o.tap_shift = given.tap_shift;
    if (given.type) parse_type(given.type);
    if (given.split) o.split = cli_bytes(&cli, "--split-size", given.split);
    if (given.mtp) parse_mtp(given.mtp);
    parse_overrides();
    if (given.theta) o.rope_theta = cli_theta(&cli, "--rope-theta", given.theta);
    if (given.eps) o.rms_eps = cli_positive(&cli, "--rms-eps", given.eps);
    if (given.taps) o.n_taps = cli_taps(&cli, "--taps", given.taps, o.taps);
    if (given.heads) parse_heads(given.heads);
    o.random = given.seed != NULL;
    if (given.seed) o.seed = parse_seed(given.seed);
}

int main(int argc, char **argv)
{
    struct err e = {0};
    convert_defaults(&o);
    cli_parse(&cli, argc, argv);
    read_flags();
    o.input = cli.args[0];
    o.ctx = &cli;
    o.say = say;
    o.progress = progress;
    cli_no_binary_out(&cli, o.output, "a GGUF");
    io_signals_install();
    double t0 = cli_seconds();
    if (convert_run(&o, &e)) return cli_fail(&cli, &e);
    cli_detail(&cli, "%.1f s", cli_seconds() - t0);
    return 0;
}
