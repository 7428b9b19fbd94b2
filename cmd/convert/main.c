/* dflash-convert: a Hugging Face checkpoint into a GGUF. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../../common/convert.h"
#include "../../common/io.h"
#include "../cli.h"
#include "../drafter_flags.h"

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

static uint64_t parse_seed(const struct cli *c, const char *text)
{
    char *end;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || errno)
        cli_usage_error(c, "--random: not a seed (expected 0 to 18446744073709551615, got %s)", text);
    return v;
}

static void parse_type(const struct cli *c, const char *text, struct convert *o)
{
    struct err ignored = {0};
    if (quant_recipe_by_name(text, &o->type, &ignored))
        cli_usage_error(c, "--type %s is not known (expected one of %s)", text, quant_recipe_names());
    o->type_given = true;
}

int main(int argc, char **argv)
{
    struct convert o;
    struct err e = {0};
    const char *type = NULL, *taps = NULL, *heads = NULL, *seed = NULL, *theta = NULL, *eps = NULL;
    convert_defaults(&o);
    int32_t block = 0, mask = -1, ctx = 0, threads = 0, shift = -1, causal = -1, window = 0;
    bool force = false;
    const struct cli_flag flags[] = {
        {"-o", CLI_STR, &o.output, "FILE", "output (default stdout)", 0, 0},
        {"--type", CLI_STR, &type, "TYPE", "f32, bf16, q8_0, q4_k_m or another of dflash-quantize (default: as stored)", 0, 0},
        {"--target", CLI_STR, &o.target, "DIR|GGUF",
         "a drafter's target: checked against it, its tokenizer copied", 0, 0},
        {"--dialect", CLI_STR, &o.dialect, "NAME",
         "names of a drafter's keys and tensors: upstream, unshifted, rx, ik, buun, lucebox, lucebox-gemma4 "
         "or lucebox-draft (default: upstream; of a GGUF its own)",
         0, 0},
        {"--from-dialect", CLI_STR, &o.from_dialect, "NAME",
         "drafter GGUF: its dialect (default: recognised)", 0, 0},
        {"--tap-shift", CLI_I32, &shift, "0|1",
         "drafter GGUF: its taps count from block 0 (0) or from the embeddings (1)", 0, 1},
        {"--sliding-window", CLI_I32, &window, "N", "drafter GGUF: window of its sliding layers", 1,
         2147483647},
        {"--sliding-pattern", CLI_STR, &o.sliding_pattern, "TEXT",
         "drafter GGUF: a letter a layer, s (sliding) or f (full)", 0, 0},
        {"--causal", CLI_I32, &causal, "0|1",
         "drafter GGUF: its layers see ahead in the block (0) or not (1)", 0, 1},
        {"--name", CLI_STR, &o.name, "TEXT", "general.name (default: the input's own)", 0, 0},
        {"--random", CLI_STR, &seed, "SEED", "random weights at the sizes of config.json", 0, 0},
        {"--rope-theta", CLI_STR, &theta, "X", "drafter: rotary base", 0, 0},
        {"--rms-eps", CLI_STR, &eps, "X", "drafter: epsilon of the norms", 0, 0},
        {"--taps", CLI_STR, &taps, "LIST", "drafter: zero-based target layers whose output is tapped", 0, 0},
        {"--mask-id", CLI_I32, &mask, "N", "drafter: mask token id", 0, 2147483647},
        {"--block-size", CLI_I32, &block, "N", "drafter: rows of a block", 2, 64},
        {"--heads", CLI_STR, &heads, "N,N", "drafter: heads and key heads, checked against the shapes", 0, 0},
        {"--context-length", CLI_I32, &ctx, "N", "drafter: trained length", 1, 2147483647},
        {"--threads", CLI_I32, &threads, "N", "threads (default 0: one a processor)", 0, CLI_MAX_THREADS},
        {"--force", CLI_FLAG, &force, NULL, "overwrite an existing output", 0, 0},
        {NULL, CLI_FLAG, NULL, NULL, NULL, 0, 0},
    };
    struct cli c = {
        .tool = "convert",
        .synopsis = "HF_DIR|FILE.safetensors|FILE.gguf [-o OUT.gguf] [--type TYPE] [--target HF_DIR|GGUF]\n"
                    "HF_DIR|CONFIG.json --random SEED [-o OUT.gguf] [--type TYPE]",
        .summary = "Convert a target or a DFlash drafter from Hugging Face form to GGUF, or a drafter's GGUF "
                   "to another dialect.",
        .flags = flags,
        .min_args = 1,
        .max_args = 1,
    };
    cli_parse(&c, argc, argv);
    o.input = c.args[0];
    o.block_size = block;
    o.mask_id = mask;
    o.n_ctx = ctx;
    o.has_tap_shift = shift >= 0;
    o.tap_shift = shift;
    o.causal = causal;
    o.sliding_window = window;
    o.threads = threads;
    o.force = force;
    o.ctx = &c;
    o.say = say;
    o.progress = progress;
    cli_check_text(&c, "--name", o.name);
    if (taps && shift >= 0)
        cli_usage_error(&c, "--tap-shift says how the file's taps count, and --taps takes their place: one of them");
    if (type) parse_type(&c, type, &o);
    if (theta) o.rope_theta = cli_theta(&c, "--rope-theta", theta);
    if (eps) o.rms_eps = cli_positive(&c, "--rms-eps", eps);
    if (taps) o.n_taps = cli_taps(&c, "--taps", taps, o.taps);
    if (heads) {
        int32_t h[2];
        if (cli_int_list(&c, "--heads", heads, h, 2) != 2 || h[0] < 1 || h[1] < 1)
            cli_usage_error(&c, "--heads: not two positive integers (expected N,N, got %s)", heads);
        o.n_head = h[0];
        o.n_head_kv = h[1];
    }
    if (seed) {
        o.random = true;
        o.seed = parse_seed(&c, seed);
    }
    cli_no_binary_out(&c, o.output, "a GGUF");
    io_signals_install();
    double t0 = cli_seconds();
    if (convert_run(&o, &e)) return cli_fail(&c, &e);
    cli_detail(&c, "%.1f s", cli_seconds() - t0);
    return 0;
}
