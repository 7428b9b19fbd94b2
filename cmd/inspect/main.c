/* dflash-inspect - what a model's file or a state holds, whether it is sound, whether two files fit or
 * differ. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../../common/inspect/check.h"
#include "../../common/inspect/diff.h"
#include "../../common/file/gguf.h"
#include "../../common/base/io.h"
#include "../../common/file/safetensors.h"
#include "../cli.h"
#include "../drafter_flags.h"
#include "../redirect.h"
#include "show.h"

struct options {
    bool check, for_use, tensors, tokens, json, pair, strict, diff;
    const char *key;
    int32_t threads;
    float tolerance;
    const char *out;
    bool force;
    struct drafter_flags draft;
    struct cli_list keys;
    int32_t causal;
};

static struct options o = {.tolerance = -1, .draft = DRAFTER_FLAGS_INIT, .causal = -1};
static struct desc_override over;

static const struct cli_flag flags[] = {
    {"--check", CLI_FLAG, &o.check, NULL,
     "examine the whole file: structure, keys, types, NaN and Inf; exit 1 if it is bad", 0, 0},
    {"--for-use", CLI_FLAG, &o.for_use, NULL, "with --check: what cannot be run here is bad, too", 0, 0},
    {"--pair", CLI_FLAG, &o.pair, NULL,
     "why does DRAFTER (not) work with TARGET? one line an aspect; exit 1 on a misfit", 0, 0},
    {"--strict", CLI_FLAG, &o.strict, NULL,
     "with --pair: a note is bad, too; with --diff: a key that differs", 0, 0},
    {"--diff", CLI_FLAG, &o.diff, NULL,
     "compare two files key by key and tensor by tensor (GGUF or safetensors on either side)", 0, 0},
    {"--tolerance", CLI_F32, &o.tolerance, "X",
     "with --diff: exit 1 where a tensor's relative RMS error is above X", 0, 1e30},
    {"--tensors", CLI_FLAG, &o.tensors, NULL, "list every tensor", 0, 0},
    {"--tokens", CLI_FLAG, &o.tokens, NULL, "list every token of a GGUF's tokenizer, and nothing else", 0, 0},
    {"--key", CLI_STR, &o.key, "KEY", "print the whole value of this key, and nothing else", 0, 0},
    {"--json", CLI_FLAG, &o.json, NULL, "JSON lines on stdout", 0, 0},
    {"--override-kv", CLI_LIST, &o.keys, "KEY=TYPE:VALUE",
     "with --check and --pair: as if the (target's) key had this value; repeatable", 0, 0},
    {"--threads", CLI_I32, &o.threads, "N", "threads (default 0: one a processor)", 0, CLI_MAX_THREADS},
    DRAFTER_FLAGS(o.draft, "--", "--from-dialect"),
    {"--causal", CLI_I32, &o.causal, "0|1", "drafter: its layers see ahead in the block (0) or not (1)", 0,
     1},
    REDIRECT_FLAGS(o.out, o.force),
    {0},
};

static struct cli cli = {
    .tool = "inspect",
    .synopsis = "FILE [--tensors | --tokens | --key KEY] [--json]\n"
                "--check FILE [--for-use] [--override-kv KEY=TYPE:VALUE]... [--json]\n"
                "--pair TARGET DRAFTER [--strict] [--override-kv KEY=TYPE:VALUE]... [--json]\n"
                "--diff A B [--tolerance X] [--strict] [--tensors] [--json]",
    .summary = "Print what a GGUF or safetensors file or a saved state holds, check it, check that a drafter "
               "fits its target, "
               "or compare two files.",
    .flags = flags,
    .wants = "FILE",
    .min_args = 1,
    .max_args = 2,
};

static void print_finding(void *ctx, const struct check_finding *f)
{
    static const char *const level[] = {"ok", "warn", "BAD"};
    (void)ctx;
    if (o.json) {
        show_json_finding(f);
        return;
    }
    printf("%-4s  %s: %s\n", level[f->level], show_text(f->subject), show_text(f->text));
    if (f->hint && f->level != CHECK_OK) printf("      hint: %s\n", show_text(f->hint));
}

/* The same of a pair: what, expected, found. */
static int pair_notes;
static void print_pair_finding(void *ctx, const struct check_finding *f)
{
    static const char *const level[] = {"ok", "note", "misfit"};
    (void)ctx;
    pair_notes += f->level == CHECK_WARN;
    if (o.json) {
        show_json_pair_finding(f);
        return;
    }
    printf("%-7s %s: %s", level[f->level], show_text(f->subject), show_text(f->text));
    if (f->expected) printf(" (expected %s, found %s)", show_text(f->expected), show_text(f->found));
    putchar('\n');
    if (f->hint) printf("        hint: %s\n", show_text(f->hint));
}

static int pair_verdict(int bad, struct err *e)
{
    if (bad < 0) return cli_fail(&cli, e);
    const bool fails = bad || (o.strict && pair_notes);
    if (o.json)
        printf("{\"schema\":1,\"kind\":\"verdict\",\"of\":\"pair\",\"good\":%s,\"bad\":%d,\"notes\":%d}\n",
               fails ? "false" : "true", bad, pair_notes);
    else
        printf("pair: %s: %d misfit%s, %d note%s\n", fails ? "bad" : "good", bad, bad == 1 ? "" : "s",
               pair_notes, pair_notes == 1 ? "" : "s");
    return fails ? ERR_NEGATIVE : 0;
}

static void print_progress(void *ctx, uint64_t done, uint64_t total)
{
    (void)ctx;
    cli_progress(&cli, "check", done, total, "B");
}

static int verdict(const char *what, int bad, struct err *e)
{
    if (bad < 0) return cli_fail(&cli, e);
    if (o.json)
        printf("{\"schema\":1,\"kind\":\"verdict\",\"of\":\"%s\",\"good\":%s,\"bad\":%d}\n", what,
               bad ? "false" : "true", bad);
    else
        printf("%s: %s\n", what, bad ? "bad" : "good");
    return bad ? ERR_NEGATIVE : 0;
}

static void diff_progress(void *ctx, uint64_t done, uint64_t total)
{
    (void)ctx;
    cli_progress(&cli, "diff", done, total, "weights");
}

static void diff_tensor(void *ctx, const struct diff_tensor *t)
{
    cli_progress_clear();
    show_diff_tensor(ctx, t);
    fflush(stdout);
}

static void diff_key(void *ctx, const struct diff_key *k)
{
    cli_progress_clear();
    show_diff_key(ctx, k);
}

static int run_diff(const char *a, const char *b)
{
    struct err e = {0};
    struct diff_total t;
    struct show_diff ctx = {.json = o.json, .tolerance = o.tolerance, .tensors = o.tensors};
    const struct diff_fns fn = {diff_key, diff_tensor, diff_progress};
    if (diff_files(a, b, o.threads, &fn, &ctx, &t, &e)) return cli_fail(&cli, &e);
    show_diff_total(&ctx, &t);
    if (o.strict && t.keys_differ + t.keys_missing) return ERR_NEGATIVE;
    return t.missing || t.shape || t.undecodable || t.not_finite || ctx.above ? ERR_NEGATIVE : 0;
}

static int run_show(const char *path)
{
    struct err e = {0};
    if (st_is_path(path)) {
        struct st *s;
        if (st_open(&s, path, &e)) return cli_fail(&cli, &e);
        show_safetensors(s, path, o.tensors, o.json);
        int changed = io_maps_check(&e);
        st_close(s);
        return changed ? cli_fail(&cli, &e) : 0;
    }
    if (show_is_state(path)) return show_state(path, o.json, &e) ? cli_fail(&cli, &e) : 0;
    struct gguf *g;
    if (gguf_open(&g, path, &e)) return cli_fail(&cli, &e);
    if (o.key || o.tokens) {
        int bad =
            (o.key ? show_one_key(g, o.key, o.json, &e) : show_tokens(g, o.json, &e)) || io_maps_check(&e);
        gguf_close(g);
        return bad ? cli_fail(&cli, &e) : 0;
    }
    show_gguf(g, path, o.tensors, o.json);
    int rc = show_drafter(g, &over, o.json, &e) || show_identity(g, o.json, &e) || io_maps_check(&e);
    gguf_close(g);
    return rc ? cli_fail(&cli, &e) : 0;
}

/* Kept until the program ends. */
static void read_keys(void)
{
    struct err e = {0};
    if (!o.keys.n) return;
    if (!(o.check || o.pair) || st_is_path(cli.args[0]) || show_is_state(cli.args[0]))
        cli_usage_error(&cli, "--override-kv goes with --check or --pair of GGUFs");
    struct gguf_override *kv;
    if (gguf_overrides_parse(&kv, o.keys.v, o.keys.n, &e)) exit(cli_fail(&cli, &e));
    over.kv = kv;
    over.n_kv = o.keys.n;
}

int main(int argc, char **argv)
{
    struct err e = {0};
    struct redirect out;
    int rc;
    cli_parse(&cli, argc, argv);
    if (o.check + o.pair + o.diff > 1) cli_usage_error(&cli, "--check, --pair and --diff exclude each other");
    if (o.tolerance >= 0 && !o.diff) cli_usage_error(&cli, "--tolerance goes with --diff");
    if (o.for_use && (!o.check || st_is_path(cli.args[0])))
        cli_usage_error(&cli, o.check ? "--for-use is for GGUFs: a checkpoint is converted first"
                                      : "--for-use goes with --check");
    if (o.strict && !o.pair && !o.diff) cli_usage_error(&cli, "--strict goes with --pair or --diff");
    if (o.tensors + o.tokens + (o.key != NULL) > 1)
        cli_usage_error(&cli, "--tensors, --tokens and --key exclude each other");
    if ((o.tokens || o.key) && (o.check || o.pair || o.diff || st_is_path(cli.args[0])))
        cli_usage_error(&cli, "%s goes with one GGUF alone", o.key ? "--key" : "--tokens");
    if (o.tensors && (o.check || o.pair))
        cli_usage_error(&cli, "--tensors does not go with %s", o.check ? "--check" : "--pair");
    if ((o.tensors || o.for_use) && !o.diff && cli.n_args && show_is_state(cli.args[0]))
        cli_usage_error(&cli, "%s is for models: %s is a saved state", o.tensors ? "--tensors" : "--for-use",
                        cli.args[0]);
    if (cli.n_args != (o.pair || o.diff ? 2 : 1))
        cli_usage_error(&cli, "expected %s, got %d argument%s",
                        o.pair   ? "TARGET DRAFTER"
                        : o.diff ? "two files"
                                 : "one FILE",
                        cli.n_args, cli.n_args == 1 ? "" : "s");
    drafter_flags_read(&cli, &o.draft, "--", &over);
    over.draft_causal = o.causal;
    read_keys();
    if (o.diff && desc_override_given(&over))
        cli_usage_error(&cli, "--%s does not go with --diff", desc_override_given(&over));
    if (!o.pair && !o.diff && st_is_path(cli.args[0]) && desc_override_given(&over))
        cli_usage_error(&cli, "--%s is for a drafter's GGUF", desc_override_given(&over));
    if (st_refuse_output(o.out, cli.args, cli.n_args, &e) ||
        redirect_open(&out, o.out, o.force, cli.args, cli.n_args, &e))
        return cli_fail(&cli, &e);
    for (int i = 0; i < cli.n_args; i++)
        if (st_two_forms(cli.args[i]))
            cli_warn(&cli, "%s: model.safetensors is used, model.safetensors.index.json beside it is not",
                     cli.args[i]);
    if (o.pair) /* "target": the MTP block that its file holds */
        rc = pair_verdict(check_pair(cli.args[0], strcmp(cli.args[1], "target") ? cli.args[1] : cli.args[0],
                                     &over, print_pair_finding, NULL, &e),
                          &e);
    else if (o.diff)
        rc = run_diff(cli.args[0], cli.args[1]);
    else if (o.check && show_is_state(cli.args[0]))
        rc = verdict("check", check_state(cli.args[0], print_finding, &e), &e);
    else if (o.check)
        rc = verdict("check",
                     st_is_path(cli.args[0])
                         ? check_safetensors(cli.args[0], o.threads, print_finding, print_progress, NULL, &e)
                         : check_gguf(cli.args[0], &over, o.for_use, o.threads, print_finding, print_progress,
                                      NULL, &e),
                     &e);
    else
        rc = run_show(cli.args[0]);
    return redirect_close(&out, &cli, rc);
}
