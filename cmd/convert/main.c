/* dflash-convert: a Hugging Face checkpoint into a GGUF. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../../common/convert.h"
#include "../../common/io.h"
#include "../cli.h"

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

/* "1,9,17": at most cap integers in 0 .. INT32_MAX. */
static int parse_list(const struct cli *c, const char *flag, const char *text, int32_t *v, int cap)
{
    int n = 0;
    const char *s = text;
    for (;;) {
        char *end;
        if (*s < '0' || *s > '9')
            cli_usage_error(c, "%s: not a list of integers (expected N,N,..., got %s)", flag, text);
        long long x = strtoll(s, &end, 10);
        if (x > INT32_MAX)
            cli_usage_error(c, "%s: out of range (expected at most %d, got %s)", flag, INT32_MAX, text);
        if (n == cap) cli_usage_error(c, "%s: too many (expected at most %d, got %s)", flag, cap, text);
        v[n++] = (int32_t)x;
        if (!*end) return n;
        if (*end != ',')
            cli_usage_error(c, "%s: not a list of integers (expected N,N,..., got %s)", flag, text);
        s = end + 1;
    }
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

/* A positive number, or the flag's complaint. */
static double parse_positive(const struct cli *c, const char *flag, const char *text)
{
    char *end;
    double v = strtod(text, &end);
    if (end == text || *end || !(v > 0) || v > 1e30)
        cli_usage_error(c, "%s: not a positive number (got %s)", flag, text);
    return v;
}

static void parse_type(const struct cli *c, const char *text, struct convert *o)
{
    static const enum quant_recipe known[] = {QUANT_F32, QUANT_F16, QUANT_BF16, QUANT_Q8_0, QUANT_Q4_K_M};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (!strcasecmp(text, quant_recipe_name(known[i]))) {
            o->type = known[i];
            o->type_given = true;
            return;
        }
    cli_usage_error(
        c, "--type %s is not known (expected f32, f16, bf16, q8_0 or q4_k_m; dflash-quantize has more)",
        text);
}

int main(int argc, char **argv)
{
    struct convert o;
    struct err e = {0};
    const char *type = NULL, *taps = NULL, *heads = NULL, *seed = NULL, *theta = NULL, *eps = NULL;
    convert_defaults(&o);
    int32_t block = 0, mask = -1, ctx = 0, threads = 0;
    bool force = false;
    const struct cli_flag flags[] = {
        {"-o", CLI_STR, &o.output, "FILE", "output (default stdout)", 0, 0},
        {"--type", CLI_STR, &type, "TYPE", "f32, f16, bf16, q8_0 or q4_k_m (default: as stored)", 0, 0},
        {"--target", CLI_STR, &o.target, "DIR|GGUF",
         "a drafter's target: checked against it, its tokenizer copied", 0, 0},
        {"--dialect", CLI_STR, &o.dialect, "NAME", "names of a drafter's keys and tensors: upstream", 0, 0},
        {"--name", CLI_STR, &o.name, "TEXT", "general.name (default: the input's own)", 0, 0},
        {"--random", CLI_STR, &seed, "SEED", "random weights at the sizes of config.json", 0, 0},
        {"--rope-theta", CLI_STR, &theta, "X", "drafter: rotary base", 0, 0},
        {"--rms-eps", CLI_STR, &eps, "X", "drafter: epsilon of the norms", 0, 0},
        {"--taps", CLI_STR, &taps, "LIST", "drafter: zero-based target layers whose output is tapped", 0, 0},
        {"--mask-id", CLI_I32, &mask, "N", "drafter: mask token id", 0, 2147483647},
        {"--block-size", CLI_I32, &block, "N", "drafter: rows of a block", 2, 64},
        {"--heads", CLI_STR, &heads, "N,N", "drafter: heads and key heads, checked against the shapes", 0, 0},
        {"--context-length", CLI_I32, &ctx, "N", "drafter: trained length", 1, 2147483647},
        {"--threads", CLI_I32, &threads, "N", "threads (default 0: one a processor)", 0, 4096},
        {"--force", CLI_FLAG, &force, NULL, "overwrite an existing output", 0, 0},
        {NULL, CLI_FLAG, NULL, NULL, NULL, 0, 0},
    };
    struct cli c = {
        .tool = "convert",
        .synopsis = "HF_DIR|FILE.safetensors|FILE.gguf [-o OUT.gguf] [--type TYPE] [--target HF_DIR|GGUF]\n"
                    "HF_DIR|CONFIG.json --random SEED [-o OUT.gguf] [--type TYPE]",
        .summary = "Convert a Qwen3 target or a DFlash drafter from Hugging Face form to GGUF.",
        .flags = flags,
        .min_args = 1,
        .max_args = 1,
    };
    cli_parse(&c, argc, argv);
    o.input = c.args[0];
    o.block_size = block;
    o.mask_id = mask;
    o.n_ctx = ctx;
    o.threads = threads;
    o.force = force;
    o.ctx = &c;
    o.say = say;
    o.progress = progress;
    if (type) parse_type(&c, type, &o);
    if (theta) o.rope_theta = parse_positive(&c, "--rope-theta", theta);
    if (eps) o.rms_eps = parse_positive(&c, "--rms-eps", eps);
    if (taps) o.n_taps = parse_list(&c, "--taps", taps, o.taps, CONVERT_MAX_TAPS);
    if (heads) {
        int32_t h[2];
        if (parse_list(&c, "--heads", heads, h, 2) != 2 || h[0] < 1 || h[1] < 1)
            cli_usage_error(&c, "--heads: not two positive integers (expected N,N, got %s)", heads);
        o.n_head = h[0];
        o.n_head_kv = h[1];
    }
    if (seed) {
        o.random = true;
        o.seed = parse_seed(&c, seed);
    }
    if (!o.output || !strcmp(o.output, "-")) cli_no_binary_tty(&c, STDOUT_FILENO, "a GGUF");
    io_signals_install();
    double t0 = cli_seconds();
    if (convert_run(&o, &e)) return cli_fail(&c, &e);
    cli_detail(&c, "%.1f s", cli_seconds() - t0);
    return 0;
}
