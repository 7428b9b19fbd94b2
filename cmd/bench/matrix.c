/* matrix.c - the rules of a benchmark matrix, for make: target types x drafter types x prompt classes x
 * settings.
 *
 * Files carry the state, so make resumes where it stopped: models and prompts, one stream cell a combination
 * (plain and drafted output compared), one timed cell a combination. Everything may run in parallel but the
 * timed cells, which take a lock and begin when all the rest is done. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "../../common/make/quantize.h"
#include "../../common/file/safetensors.h"
#include "../redirect.h"
#include "bench.h"

#define MAX_WORDS 64 /* of a setting */

static struct {
    const char *target, *drafter, *types, *draft_types, *settings, *out, *random;
    int64_t n;
    int32_t runs, threads;
} o = {.types = "bf16,q8_0,q4_k_m",
       .draft_types = "bf16,q8_0",
       .settings = "greedy:;sampled:--temp 0.8 --seed 1",
       .out = "build/matrix",
       .n = 128,
       .runs = 5};

static const char *out_path;
static bool force;
static int n_steps; /* cells: streams and times */

static const struct cli_flag flags[] = {
    {"--target", CLI_STR, &o.target, "HF_DIR", "target in Hugging Face form", 0, 0},
    {"--drafter", CLI_STR, &o.drafter, "HF_DIR", "drafter in Hugging Face form", 0, 0},
    {"--types", CLI_STR, &o.types, "LIST", "target types (default bf16,q8_0,q4_k_m)", 0, 0},
    {"--draft-types", CLI_STR, &o.draft_types, "LIST", "drafter types (default bf16,q8_0)", 0, 0},
    {"--settings", CLI_STR, &o.settings, "LIST",
     "NAME:FLAGS;... (default greedy:;sampled:--temp 0.8 --seed 1)", 0, 0},
    {"--random", CLI_STR, &o.random, "SEED", "random weights at the sizes of the configs", 0, 0},
    {"--out", CLI_STR, &o.out, "DIR", "where the matrix keeps its files (default build/matrix)", 0, 0},
    {"-n", CLI_I64, &o.n, "N", "tokens a prompt (default 128)", 1, 1 << 24},
    {"--runs", CLI_I32, &o.runs, "N", "counted runs of a timed cell (default 5)", 1, BENCH_MAX_RUNS},
    {"--threads", CLI_I32, &o.threads, "N", "threads of the timed cells (default: all)", 1, CLI_MAX_THREADS},
    REDIRECT_FLAGS(out_path, force),
    {0},
};
static struct cli cli = {
    .tool = "bench matrix",
    .synopsis =
        "--target HF_DIR --drafter HF_DIR [flags] CLASS-NAME.txt... > matrix.mk; make -f matrix.mk -j2",
    .summary = "Write the rules of a benchmark matrix. A prompt's class is its file name up to the first "
               "'-'; .tok files are taken as they are.",
    .flags = flags,
    .min_args = 1,
    .max_args = 4096,
};

/* A copy of the flag's text in room bytes, cut into its words. */
static int words(const char *flag, const char *text, char *list, size_t room, char separator, const char **w,
                 int max)
{
    int n = 0;
    if ((size_t)snprintf(list, room, "%s", text) >= room)
        cli_usage_error(&cli, "%s: too long (expected at most %zu bytes)", flag, room - 1);
    for (char *p = list; p && *p;) {
        char *next = strchr(p, separator);
        if (next) *next++ = 0;
        if (n == max) cli_usage_error(&cli, "%s: too many (expected at most %d)", flag, max);
        if (!*p || (next && !*next)) cli_usage_error(&cli, "%s: an empty word (got '%s')", flag, text);
        w[n++] = p;
        p = next;
    }
    if (!n) cli_usage_error(&cli, "%s: empty", flag);
    return n;
}

/* Two of one name, which ends at the character end, would share their files. */
static void check_distinct(const char *flag, const char **w, int n, const char *end)
{
    for (int i = 0; i < n; i++)
        for (int k = 0; k < i; k++) {
            const size_t len = strcspn(w[i], end);
            if (len == strcspn(w[k], end) && !memcmp(w[i], w[k], len))
                cli_usage_error(&cli, "%s: two of one name (%.*s)", flag, (int)len, w[i]);
        }
}

static void check_types(const char *flag, const char **type, int n)
{
    for (int i = 0; i < n; i++) {
        struct err e = {0};
        enum quant_recipe r;
        if (quant_recipe_by_name(type[i], &r, &e)) cli_usage_error(&cli, "%s: %s", flag, e.msg);
        for (const char *p = type[i]; *p; p++)
            if (*p >= 'A' && *p <= 'Z')
                cli_usage_error(&cli, "%s: types are file names here (expected lower case, got %s)", flag,
                                type[i]);
    }
}

/* A name goes into rules and shell commands as it is. */
static void check_word(const char *what, const char *s)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+@";
    if (!*s || s[strspn(s, plain)] || *s == '-')
        cli_usage_error(&cli, "%s: cannot go into a makefile (expected letters, digits and /._-+@, got '%s')",
                        what, s);
}

static const char *base_name(const char *path)
{
    const char *s = strrchr(path, '/');
    return s ? s + 1 : path;
}

static size_t class_length(const char *path)
{
    const char *b = base_name(path);
    return strcspn(b, "-.");
}

/* Two prompts of one name would share a token file. */
static void check_prompts(void)
{
    for (int i = 0; i < cli.n_args; i++) {
        const char *a = base_name(cli.args[i]);
        check_word("a prompt", cli.args[i]);
        if (strcspn(a, ".") == 0 || strlen(a) > 200)
            cli_usage_error(&cli, "%s: no name for its tokens", cli.args[i]);
        for (int k = 0; k < i; k++) {
            const char *b = base_name(cli.args[k]);
            if (strcspn(a, ".") == strcspn(b, ".") && !strncmp(a, b, strcspn(a, ".")))
                cli_usage_error(&cli, "two prompts of one name: %s and %s", cli.args[k], cli.args[i]);
        }
    }
}

/* What is not there would be found by make, later. */
static int check_files(struct err *e)
{
    const char *model[] = {o.target, o.drafter};
    for (int i = 0; i < 2 + cli.n_args; i++) {
        const char *path = i < 2 ? model[i] : cli.args[i - 2];
        if (access(path, R_OK)) return err_errno(e, "%s", path);
    }
    return 0;
}

static bool first_of_class(int i)
{
    for (int k = 0; k < i; k++)
        if (class_length(cli.args[k]) == class_length(cli.args[i]) &&
            !strncmp(base_name(cli.args[k]), base_name(cli.args[i]), class_length(cli.args[i])))
            return false;
    return true;
}

static bool same_class(int i, int k)
{
    return class_length(cli.args[i]) == class_length(cli.args[k]) &&
           !strncmp(base_name(cli.args[i]), base_name(cli.args[k]), class_length(cli.args[i]));
}

static void token_file(int i, char *out, size_t n)
{
    const char *b = base_name(cli.args[i]);
    snprintf(out, n, "$(OUT)/%.*s.tok", (int)strcspn(b, "."), b);
}

static void model_rules(const char *role, const char *hf, const char *extra, const char **type, int n)
{
    for (int i = 0; i < n; i++)
        printf("$(OUT)/%s-%s.gguf: $(wildcard %s %s/*.json %s/*.safetensors) | $(OUT)\n\t@echo \"$$(date "
               "+%%T) $@\" >&2\n\t@dflash-convert -q --force %s -o $@ --type %s%s%s%s\n",
               role, type[i], hf, hf, hf, hf, type[i], extra, o.random ? " --random " : "",
               o.random ? o.random : "");
}

static void prompt_rules(const char *type)
{
    for (int i = 0; i < cli.n_args; i++) {
        char tok[512];
        token_file(i, tok, sizeof tok);
        size_t n = strlen(cli.args[i]);
        if (n > 4 && !strcmp(cli.args[i] + n - 4, ".tok"))
            printf("%s: %s | $(OUT)\n\t@cp $< $@\n", tok, cli.args[i]);
        else
            printf("%s: %s $(OUT)/target-%s.gguf\n\t@dflash-tokenize -m $(OUT)/target-%s.gguf <$< >$@.tmp && "
                   "mv $@.tmp $@\n",
                   tok, cli.args[i], type, type);
    }
}

/* What a cell's rule says first: "[3/16] 14:05:10 CELL: streams". */
static void say_step(const char *cell, const char *what)
{
    static int step;
    printf("\t@echo \"[%d/%d] $$(date +%%T) %s: %s\" >&2\n", ++step, n_steps, cell, what);
}

/* One combination: a stream cell and a timed cell over the prompts of a class. */
static void cell_rules(const char *type, const char *draft, int class_of, const char *name, const char *set)
{
    static char prompts[1 << 20]; /* 4096 names of at most 208 bytes fit */
    char cell[512];
    prompts[0] = 0;
    int len = (int)class_length(cli.args[class_of]);
    snprintf(cell, sizeof cell, "%s.%s.%.*s.%s", type, draft, len, base_name(cli.args[class_of]), name);
    for (int i = 0; i < cli.n_args; i++) {
        char tok[512];
        if (!same_class(i, class_of)) continue;
        token_file(i, tok, sizeof tok);
        snprintf(prompts + strlen(prompts), sizeof prompts - strlen(prompts), " %s", tok);
    }
    printf("STREAMS += $(OUT)/%s.stream.jsonl\nTIMES += $(OUT)/%s.time.jsonl\n", cell, cell);
    printf("$(OUT)/%s.stream.jsonl: $(OUT)/target-%s.gguf $(OUT)/drafter-%s.gguf%s\n", cell, type, draft,
           prompts);
    say_step(cell, "streams");
    printf(
        "\t@rm -f $@.tmp; for p in%s; do \\\n"
        "\t  dflash-generate -q -m $(OUT)/target-%s.gguf -n %lld --ignore-eos %s <$$p >$@.a && \\\n"
        "\t  dflash-generate -q -m $(OUT)/target-%s.gguf -d $(OUT)/drafter-%s.gguf -n %lld --ignore-eos %s "
        "<$$p >$@.b && \\\n"
        "\t  dflash-bench compare --json $@.a $@.b >>$@.tmp || exit 1; done; rm -f $@.a $@.b; mv $@.tmp $@\n",
        prompts, type, (long long)o.n, set, type, draft, (long long)o.n, set);
    printf("$(OUT)/%s.time.jsonl: $(OUT)/%s.stream.jsonl\n", cell, cell);
    say_step(cell, "times");
    printf("\t@flock $(OUT)/lock dflash-bench run -q -m $(OUT)/target-%s.gguf -d $(OUT)/drafter-%s.gguf -n "
           "%lld --runs %d --ignore-eos %s",
           type, draft, (long long)o.n, o.runs, set);
    if (o.threads) printf(" --threads %d", o.threads);
    printf(" --label '%.*s %s'%s >$@.tmp && mv $@.tmp $@\n", len, base_name(cli.args[class_of]), name,
           prompts);
}

/* A flag that is wrong would be found when the models are converted, hours later. The commands set some
 * themselves, and those without a drafter get the same flags. */
static void check_setting_flags(const char *text)
{
    static const char *const not_here[] = {
        "-m",      "-d",     "-n",       "-o",      "-q",           "-v",      "--help",  "--version",
        "--force", "--runs", "--warmup", "--label", "--ignore-eos", "--block", "--width", "--draft-"};
    static char copy[4096];
    char *argv[MAX_WORDS + 4] = {"run", "-m", "TARGET"}, *save = NULL;
    int argc = 3;
    snprintf(copy, sizeof copy, "%s", text); /* of o.settings, which is not longer */
    for (char *w = strtok_r(copy, " \t", &save); w; w = strtok_r(NULL, " \t", &save)) {
        for (size_t i = 0; i < sizeof not_here / sizeof *not_here; i++) {
            const size_t n = strcspn(w, "=");
            if (!strncmp(w, not_here[i], strlen(not_here[i])) &&
                (not_here[i][strlen(not_here[i]) - 1] == '-' || n == strlen(not_here[i])))
                cli_usage_error(&cli,
                                "--settings: %.*s is not for a setting (expected flags of dflash-generate "
                                "that need no drafter)",
                                (int)n, w);
        }
        if (argc == MAX_WORDS)
            cli_usage_error(&cli, "--settings: too many words (expected at most %d, got '%s')", MAX_WORDS - 3,
                            text);
        argv[argc++] = w;
    }
    bench_run_check(argc, argv);
}

/* NAME:FLAGS; the flags are those of generate and of run, taken by a shell. */
static void check_setting(const char *s)
{
    const char *colon = strchr(s, ':');
    char name[64];
    if (!colon || colon == s || (size_t)(colon - s) >= sizeof name)
        cli_usage_error(&cli, "--settings: expected NAME:FLAGS, got '%s'", s);
    snprintf(name, sizeof name, "%.*s", (int)(colon - s), s);
    check_word("--settings", name);
    if (strpbrk(colon, "$#\n'\"\\`|&<>()"))
        cli_usage_error(&cli, "--settings: expected plain flags, got '%s'", colon + 1);
    check_setting_flags(colon + 1);
}

int bench_matrix(int argc, char **argv)
{
    static char types[1024], draft_types[1024], settings[4096], extra[4096];
    const char *type[64], *draft[64], *set[64];
    struct err e = {0};
    struct redirect file;
    cli_parse(&cli, argc, argv);
    if (!o.target || !o.drafter) cli_usage_error(&cli, "expected --target and --drafter");
    int n_type = words("--types", o.types, types, sizeof types, ',', type, 64);
    int n_draft = words("--draft-types", o.draft_types, draft_types, sizeof draft_types, ',', draft, 64);
    int n_set = words("--settings", o.settings, settings, sizeof settings, ';', set, 64);
    check_types("--types", type, n_type);
    check_types("--draft-types", draft, n_draft);
    check_distinct("--types", type, n_type, "");
    check_distinct("--draft-types", draft, n_draft, "");
    check_word("--target", o.target);
    check_word("--drafter", o.drafter);
    check_word("--out", o.out);
    if (o.random && (!*o.random || o.random[strspn(o.random, "0123456789")] || strlen(o.random) > 19))
        cli_usage_error(&cli, "--random: not a seed (expected a whole number of at most 19 digits, got '%s')",
                        o.random);
    check_prompts();
    for (int s = 0; s < n_set; s++) check_setting(set[s]);
    check_distinct("--settings", set, n_set, ":");
    const char *const models[] = {o.target, o.drafter};
    if (check_files(&e) || st_refuse_output(out_path, models, 2, &e) ||
        redirect_open(&file, out_path, force, cli.args, cli.n_args, &e))
        return cli_fail(&cli, &e);
    printf("# made by dflash-bench matrix; run: make -f THIS -j2\nOUT := %s\nSTREAMS :=\nTIMES "
           ":=\n.DELETE_ON_ERROR:\n.PHONY: report\n"
           "report: $(OUT)/report.md\n$(OUT):\n\t@mkdir -p $@\n",
           o.out);
    snprintf(extra, sizeof extra, " --target %s", o.target);
    model_rules("target", o.target, "", type, n_type);
    model_rules("drafter", o.drafter, extra, draft, n_draft);
    prompt_rules(type[0]);
    for (int i = 0; i < cli.n_args; i++) n_steps += 2 * first_of_class(i) * n_set * n_type * n_draft;
    for (int s = 0; s < n_set; s++) {
        const char *colon = strchr(set[s], ':');
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)(colon - set[s]), set[s]);
        for (int t = 0; t < n_type; t++)
            for (int d = 0; d < n_draft; d++)
                for (int i = 0; i < cli.n_args; i++)
                    if (first_of_class(i)) cell_rules(type[t], draft[d], i, name, colon + 1);
    }
    printf("# no timed cell while others work\n$(TIMES): | $(STREAMS)\n");
    printf("$(OUT)/report.md: $(STREAMS) $(TIMES)\n\t@dflash-bench report $(TIMES) $(STREAMS) >$@.tmp && mv "
           "$@.tmp $@\n");
    return redirect_close(&file, &cli, 0);
}
