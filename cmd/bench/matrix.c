/* matrix.c - the axes of a benchmark matrix, checked: target types x drafters and their types x prompt
 * classes x settings x plans. matrix_rules.c writes the rules of it, for make.
 *
 * What is wrong would be found when models are converted, hours later: so flags, names, files, kinds and
 * widths are looked at here. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "../../common/base/mem.h"
#include "../../common/file/hf_config.h"
#include "../../common/file/safetensors.h"
#include "../../common/make/quantize.h"
#include "../redirect.h"
#include "bench.h"
#include "matrix.h"

#define MAX_WORDS 64 /* of a setting or a plan */

static struct {
    const char *target, *types, *draft_types, *settings, *plans, *out, *random, *baseline;
    struct cli_list drafters;
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

static const struct cli_flag flags[] = {
    {"--target", CLI_STR, &o.target, "HF_DIR", "target in Hugging Face form", 0, 0},
    {"--drafter", CLI_LIST, &o.drafters, "[NAME=]HF_DIR",
     "drafter in Hugging Face form, or a block that predicts further tokens; repeatable, with names", 0, 0},
    {"--types", CLI_STR, &o.types, "LIST", "target types (default bf16,q8_0,q4_k_m)", 0, 0},
    {"--draft-types", CLI_STR, &o.draft_types, "LIST", "drafter types (default bf16,q8_0)", 0, 0},
    {"--settings", CLI_STR, &o.settings, "LIST",
     "NAME:FLAGS;... (default greedy:;sampled:--temp 0.8 --seed 1)", 0, 0},
    {"--plans", CLI_STR, &o.plans, "LIST",
     "NAME:FLAGS;... of the drafted runs: widths, trees, look-ups (default: one of no name and no flags)", 0,
     0},
    {"--random", CLI_STR, &o.random, "SEED", "random weights at the sizes of the configs", 0, 0},
    {"--out", CLI_STR, &o.out, "DIR", "where the matrix keeps its files (default build/matrix)", 0, 0},
    {"--baseline", CLI_STR, &o.baseline, "FILE", "lines of another time, for the report's --baseline", 0, 0},
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
    .wants = "PROMPT.txt...",
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

const char *matrix_base(const char *path)
{
    const char *s = strrchr(path, '/');
    return s ? s + 1 : path;
}

size_t matrix_class(const char *path)
{
    const char *b = matrix_base(path);
    return strcspn(b, "-.");
}

/* Two prompts of one name would share a token file. */
static void check_prompts(void)
{
    for (int i = 0; i < cli.n_args; i++) {
        const char *a = matrix_base(cli.args[i]);
        check_word("a prompt", cli.args[i]);
        if (strcspn(a, ".") == 0 || strlen(a) > 200)
            cli_usage_error(&cli, "%s: no name for its tokens", cli.args[i]);
        for (int k = 0; k < i; k++) {
            const char *b = matrix_base(cli.args[k]);
            if (strcspn(a, ".") == strcspn(b, ".") && !strncmp(a, b, strcspn(a, ".")))
                cli_usage_error(&cli, "two prompts of one name: %s and %s", cli.args[k], cli.args[i]);
        }
    }
}

/* What is not there would be found by make, later. */
static int check_files(const struct matrix *m, struct err *e)
{
    if (access(o.target, R_OK)) return err_errno(e, "%s", o.target);
    for (int i = 0; i < m->n_drafters; i++)
        if (access(m->drafter[i].dir, R_OK)) return err_errno(e, "%s", m->drafter[i].dir);
    for (int i = 0; i < cli.n_args; i++)
        if (access(cli.args[i], R_OK)) return err_errno(e, "%s", cli.args[i]);
    if (o.baseline && access(o.baseline, R_OK)) return err_errno(e, "%s", o.baseline);
    return 0;
}

/* A flag that is wrong would be found when the models are converted, hours later. The commands set some
 * themselves, and those without a drafter get the same flags as those with one, but for the plan's. */
static const char *const commands_set[] = {
    "-m",      "-d",     "-n",       "-o",      "-q",    "-v",           "--help",    "--version",
    "--force", "--runs", "--warmup", "--label", "--tag", "--ignore-eos", "--accept-", NULL};
static const char *const plans_set[] = {
    "--block",      "--width",           "--draft-", "--tree",        "--tree-seed",
    "--plan-times", "--calibration",     "--lookup", "--lookup-file", "--mtp",
    "--mtp-block",  "--mtp-calibration", NULL};

static bool one_of(const char *const *list, const char *word)
{
    const size_t n = strcspn(word, "=");
    for (int i = 0; list[i]; i++) {
        const size_t k = strlen(list[i]);
        if (!strncmp(word, list[i], k) && (list[i][k - 1] == '-' || n == k)) return true;
    }
    return false;
}

/* The words of a setting or a plan as flags of dflash-bench run. width: of --width N, else 0. */
static void check_words(const char *flag, const char *text, bool plan, int32_t *width)
{
    static char copy[4096];
    char *argv[MAX_WORDS + 6] = {"run", "-m", "TARGET", "-d", "DRAFTER"}, *save = NULL;
    int argc = plan ? 5 : 3, first = argc;
    snprintf(copy, sizeof copy, "%s", text); /* of o.settings or o.plans, which are not longer */
    *width = 0;
    for (char *w = strtok_r(copy, " \t", &save); w; w = strtok_r(NULL, " \t", &save)) {
        if (*w == '-' && (one_of(commands_set, w) || one_of(plans_set, w) != plan))
            cli_usage_error(&cli, "%s: %.*s is not for a %s", flag, (int)strcspn(w, "="), w,
                            plan
                                ? "plan (expected flags of dflash-generate for drafts, verifies and look-ups)"
                                : "setting (expected flags of dflash-generate that need no drafter)");
        if (argc - first == MAX_WORDS)
            cli_usage_error(&cli, "%s: too many words (expected at most %d, got '%s')", flag, MAX_WORDS,
                            text);
        argv[argc++] = w;
        const char *value = !strncmp(w, "--width=", 8)                               ? w + 8
                            : argc > first + 1 && !strcmp(argv[argc - 2], "--width") ? w
                                                                                     : "";
        if (*value && value[strspn(value, "0123456789")] == 0 && strlen(value) < 9)
            sscanf(value, "%d", width);
    }
    bench_run_check(argc, argv);
}

/* NAME:FLAGS; the flags are those of generate and of run, taken by a shell. */
static void split_named(const char *flag, const char *s, bool plan, struct matrix_named *out)
{
    const char *colon = strchr(s, ':');
    if (!colon || colon == s || (size_t)(colon - s) >= sizeof out->name)
        cli_usage_error(&cli, "%s: expected NAME:FLAGS, got '%s'", flag, s);
    snprintf(out->name, sizeof out->name, "%.*s", (int)(colon - s), s);
    out->flags = colon + 1;
    check_word(flag, out->name);
    if (strpbrk(colon, "$#\n'\"\\`|&<>()"))
        cli_usage_error(&cli, "%s: expected plain flags, got '%s'", flag, colon + 1);
    check_words(flag, colon + 1, plan, &out->width);
}

/* ---- drafters ---- */

/* [NAME=]HF_DIR */
static void split_drafter(const char *s, struct matrix_drafter *d)
{
    const char *eq = strchr(s, '=');
    if (eq && (eq == s || (size_t)(eq - s) >= sizeof d->name || memchr(s, '/', (size_t)(eq - s))))
        cli_usage_error(&cli, "--drafter: expected [NAME=]HF_DIR, got '%s'", s);
    snprintf(d->name, sizeof d->name, "%.*s", eq ? (int)(eq - s) : 0, s);
    if (eq) check_word("--drafter", d->name);
    d->dir = eq ? eq + 1 : s;
    check_word("--drafter", d->dir);
}

/* What kind it is, and which widths its blocks allow, as far as its config.json says. */
static int read_drafter(struct matrix_drafter *d, struct err *e)
{
    static const char *const block_at[] = {"dflash_config.block_size", "block_size", NULL};
    char path[4096];
    const char *kind = NULL, *where;
    struct hf_config *c = NULL;
    int64_t block = 0;
    int n = 0;
    snprintf(path, sizeof path, "%s/config.json", d->dir);
    if (hf_config_open(&c, path, e)) return -1;
    int rc = hf_get_str_list(c, "architectures", &kind, 1, &n, e);
    if (rc == 0 && n == 1) {
        const size_t k = strlen(kind), tail = strlen("ForCausalLM");
        d->alone = !strcmp(kind, "Gemma4AssistantForCausalLM");
        d->mtp = !d->alone && k > tail && !strcmp(kind + k - tail, "ForCausalLM");
        if (!strcmp(kind, "DFlashDraftModel")) rc = hf_find_i64(c, block_at, 1, 1 << 20, &block, &where, e);
    }
    d->block = (int32_t)block;
    hf_config_free(c);
    return rc < 0 ? -1 : 0;
}

static int check_models(struct matrix *m, struct err *e)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/config.json", o.target);
    if (access(path, R_OK)) return err_errno(e, "%s", path);
    for (int i = 0; i < m->n_drafters; i++) {
        struct matrix_drafter *d = &m->drafter[i];
        if (read_drafter(d, e)) return -1;
        for (int p = 0; d->block && p < m->n_plans; p++)
            if (m->plan[p].width > d->block && !strstr(m->plan[p].flags, "--lookup"))
                return err_set(e, ERR_USAGE,
                               "--plans: %s: --width %d is more than a block of %s has (%d rows)",
                               m->plan[p].name, m->plan[p].width, d->dir, d->block);
    }
    return 0;
}

/* ---- the axes ---- */

static void read_axes(struct matrix *m)
{
    static char types[1024], draft_types[1024], settings[4096], plans[4096];
    const char *set[MATRIX_MAX];
    m->n_types = words("--types", o.types, types, sizeof types, ',', m->type, MATRIX_MAX);
    m->n_draft_types = words("--draft-types", o.draft_types, draft_types, sizeof draft_types, ',',
                             m->draft_type, MATRIX_MAX);
    check_types("--types", m->type, m->n_types);
    check_types("--draft-types", m->draft_type, m->n_draft_types);
    check_distinct("--types", m->type, m->n_types, "");
    check_distinct("--draft-types", m->draft_type, m->n_draft_types, "");
    m->n_settings = words("--settings", o.settings, settings, sizeof settings, ';', set, MATRIX_MAX);
    for (int i = 0; i < m->n_settings; i++) split_named("--settings", set[i], false, &m->setting[i]);
    check_distinct("--settings", set, m->n_settings, ":");
    m->n_plans = 1; /* of no name */
    if (o.plans) {
        m->n_plans = words("--plans", o.plans, plans, sizeof plans, ';', set, MATRIX_MAX);
        for (int i = 0; i < m->n_plans; i++) split_named("--plans", set[i], true, &m->plan[i]);
        check_distinct("--plans", set, m->n_plans, ":");
    } else
        m->plan[0].flags = "";
    m->n_drafters = o.drafters.n;
    if (o.drafters.n > MATRIX_MAX)
        cli_usage_error(&cli, "--drafter: too many (expected at most %d)", MATRIX_MAX);
    for (int i = 0; i < o.drafters.n; i++) {
        split_drafter(o.drafters.v[i], &m->drafter[i]);
        for (int k = 0; k < i; k++)
            if (!strcmp(m->drafter[i].name, m->drafter[k].name))
                cli_usage_error(&cli, "--drafter: two of one name (expected NAME=HF_DIR, got %s and %s)",
                                o.drafters.v[k], o.drafters.v[i]);
    }
}

int bench_matrix(int argc, char **argv)
{
    static struct matrix m;
    struct err e = {0};
    struct redirect file;
    cli_parse(&cli, argc, argv);
    if (!o.target || !o.drafters.n) cli_usage_error(&cli, "expected --target and --drafter");
    read_axes(&m);
    check_word("--target", o.target);
    check_word("--out", o.out);
    if (o.baseline) check_word("--baseline", o.baseline);
    if (o.random && (!*o.random || o.random[strspn(o.random, "0123456789")] || strlen(o.random) > 19))
        cli_usage_error(&cli, "--random: not a seed (expected a whole number of at most 19 digits, got '%s')",
                        o.random);
    check_prompts();
    m.target = o.target;
    m.random = o.random;
    m.out = o.out;
    m.baseline = o.baseline;
    m.n = o.n;
    m.runs = o.runs;
    m.threads = o.threads;
    m.prompt = cli.args;
    m.n_prompts = cli.n_args;
    const char *models[1 + MATRIX_MAX] = {o.target};
    for (int i = 0; i < m.n_drafters; i++) models[1 + i] = m.drafter[i].dir;
    if (check_files(&m, &e) || check_models(&m, &e) ||
        st_refuse_output(out_path, models, 1 + m.n_drafters, &e) ||
        redirect_open(&file, out_path, force, cli.args, cli.n_args, &e))
        return cli_fail(&cli, &e);
    matrix_rules(&m);
    return redirect_close(&file, &cli, 0);
}
