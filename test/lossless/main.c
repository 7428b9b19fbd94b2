/* main.c - lossless: drafted output equals undrafted output, and drafts do not depend on what must not change
 * them.
 *
 * usage: lossless PAIR_DIR PROMPT.txt [--all] [--types LIST] [--untrained] [--kv] [--kv-host] [--pool]
 *                 [--device NAME] [--jobs N | --part I/N]
 * PAIR_DIR holds target-TYPE.gguf and drafter-TYPE.gguf. A case is a point in prompts x target types x
 * drafter types x blocks x widths x sampling x coupled or greedy proposals x cache types x resumed states x
 * chunks x instruction sets x threads. Without --all a set of cases is run in which every pair of values of
 * two axes occurs; with it, every combination of what shapes the stream (prompt, types, cache, sampling,
 * block, width), every combination of what must not (instruction set, threads, chunk, resuming) with target
 * type, prompt and sampling, and greedy proposals with target type, prompt, sampling, block and width. Each
 * case's stream is compared with the target's own (no drafter), and its draft trace with that of the plainest
 * run of the same drafter (best instruction set, one thread, one chunk size, uninterrupted). One case of
 * LOOKS is also run with look-ups, beside the drafter or in its place, in the history or in a text that knows
 * the stream. One case of TREES is also run with a tree of 3 to 63 proposals every cycle. One case of TURNS
 * is also run as two streams over one engine, which take turns between cycles: one under plans drawn at
 * random (with look-ups), stopped half way, saved, and gone on with from the state; one as the case says.
 * --device cuda: the same there. Instruction sets and threads are no axes then, and the chunk of the prompt
 * is part of a stream's identity: passes of more than 64 rows may round otherwise, alike in both modes.
 * --types LIST: only these types of target, joined by commas; those from iq4_nl on and wide (heads of
 * 128, test/make_wide.c) are run only so. --kv: caches of every type with every other instead (for wide).
 * --kv-host: of most drafted cases one layer's keys and values, or all, are in the host's memory, of no plain
 * one's.
 * --pool: of all streams full layers keep 448 positions; without trees.
 * --untrained: the drafter's weights are random, it has no relatives and offers no trees, and none of its
 * proposals need be right: what is accepted are look-ups' and rows of drawn plans.
 * --jobs N: N processes, each with the cases of its share of the references. --part I/N: only share I of
 * 0..N-1. Prints "ok   lossless/..." or "FAIL lossless/..." a group and what differed; exit 1 if any failed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "../../common/token/tokenizer.h"
#ifdef LOSSLESS_CUDA
#include "../../kernels/cuda/core/cuda.h"
#endif
#include "lossless.h"

static struct tally {
    long done, bad;
    int64_t accepted, cycles;
    struct tree_tally trees;
} tally;

static void examine(const int *c)
{
    struct run *plain = run_reference(c, false), *drafted = run_reference(c, true), r;
    char name[512];
    run_case(c, &(struct way){.drafter = true}, &r);
    case_describe(c, name, sizeof name);
    bool same = r.made == N_NEW && plain->made == N_NEW && !memcmp(r.id, plain->id, sizeof r.id);
    bool trace = r.n_trace == drafted->n_trace &&
                 !memcmp(r.trace, drafted->trace, (size_t)r.n_trace * sizeof *r.trace);
    bool drafts = r.cycles > 0 && r.n_trace > 0;
    const long n = tally.done++;
    const bool turns = n % TURNS || ways_turns_agree(c, plain, drafted);
    const bool looks = n % LOOKS || ways_looks_agree(c, plain, drafted, n);
    const bool trees = setting.no_trees || n % TREES || ways_trees_agree(c, plain, drafted, n, &tally.trees);
    tally.accepted += r.accepted;
    tally.cycles += r.cycles;
    if (same && trace && drafts && turns && looks && trees) {
        printf("ok   lossless/%s\n", name);
        return;
    }
    tally.bad++;
    printf("FAIL lossless/%s:%s%s%s%s%s%s\n", name, same ? "" : " the stream differs from the target's own",
           trace ? "" : " the draft trace differs", drafts ? "" : " nothing was drafted",
           turns ? "" : " streams over one engine, or plans drawn at random, differ",
           looks ? "" : " look-ups change the stream or the blocks, or find nothing",
           trees ? "" : " trees change the stream or the blocks, or none was run");
}

static void run_all(void)
{
    cases_sort();
    run_backend(0, 0);
    for (size_t i = 0; i < n_cases; i++) {
        run_reference(cases[i].c, false);
        run_reference(cases[i].c, true);
    }
    for (size_t i = 0; i < n_cases; i++) examine(cases[i].c);
}

static int add_ids(void *ctx, const int32_t *ids, size_t n, struct err *e)
{
    (void)ctx;
    (void)e;
    setting.text = realloc(setting.text, (setting.n_text + n) * sizeof *ids);
    memcpy(setting.text + setting.n_text, ids, n * sizeof *ids);
    setting.n_text += n;
    return 0;
}

static void read_prompt(const char *path)
{
    struct err e = {0};
    struct gguf *g;
    struct tokenizer *t;
    struct tok_encoder *x;
    struct io_map m;
    char model[512];
    snprintf(model, sizeof model, "%s/target-bf16.gguf", setting.dir);
    if (gguf_open(&g, model, &e) || tok_open(&t, g, &e) || io_map_open(&m, path, &e) ||
        tok_encoder_new(&x, t, false, true, &e))
        die("prompt", &e);
    while (setting.n_text < (size_t)prompt_len[11])
        if (tok_encode(x, m.data, m.size, true, add_ids, NULL, &e)) die("encode", &e);
    tok_encoder_free(x);
    tok_close(t);
    gguf_close(g);
    io_map_close(&m);
}

/* Run every part in a process of its own; what they print goes to this one's output, a part at a time at its
 * end. */
static void run_jobs(int jobs)
{
    struct part {
        pid_t pid;
        FILE *text;
        int tally[2];
    } *part = calloc((size_t)jobs, sizeof *part);
    for (int i = 0; i < jobs; i++) {
        part[i].text = tmpfile();
        if (!part[i].text || pipe(part[i].tally)) die("temporary file", NULL);
        fflush(NULL);
        part[i].pid = fork();
        if (part[i].pid < 0) die("fork", NULL);
        if (part[i].pid) {
            close(part[i].tally[1]);
            continue;
        }
        dup2(fileno(part[i].text), STDOUT_FILENO);
        cases_keep_part((unsigned)i, (unsigned)jobs);
        run_all();
        fflush(stdout);
        _exit(write(part[i].tally[1], &tally, sizeof tally) == sizeof tally ? 0 : 1);
    }
    for (int i = 0; i < jobs; i++) {
        struct tally t;
        int status, c;
        if (read(part[i].tally[0], &t, sizeof t) == sizeof t) {
            tally.done += t.done;
            tally.bad += t.bad;
            tally.accepted += t.accepted;
            tally.cycles += t.cycles;
            tally.trees.ran += t.trees.ran;
            tally.trees.cases += t.trees.cases;
        } else {
            tally.bad++;
        }
        close(part[i].tally[0]);
        waitpid(part[i].pid, &status, 0);
        rewind(part[i].text);
        while ((c = getc(part[i].text)) != EOF) putchar(c);
        fclose(part[i].text);
        if (status) printf("FAIL lossless/part %d of %d ended with %d\n", i, jobs, status);
    }
    free(part);
}

#ifdef LOSSLESS_CUDA
/* That the streams came from the kernels that the device is to use, not from those for older ones: products
 * with bulk copies, and attention over 16-bit caches by other than the general form, whose share is the f32
 * caches'. */
static bool forms_ok(void)
{
    const uint64_t *n = cuda_forms(backend);
    uint64_t attention = 0;
    for (int f = CUDA_ATTN_STEP; f <= CUDA_ATTN_GROUP; f++) attention += n[f];
    const bool ok = !cuda_is_early(backend) ||
                    (n[CUDA_PRODUCT_FEW] && n[CUDA_PRODUCT_BULK] && !n[CUDA_PRODUCT_GENERIC] && attention);
    printf("%s lossless/forms of kernels:", ok ? "ok  " : "FAIL");
    for (int f = 0; f < CUDA_FORMS; f++)
        if (n[f]) printf(" %s %llu,", cuda_form_name((enum cuda_form)f), (unsigned long long)n[f]);
    printf(" recordings once\n");
    return ok;
}
#endif

struct flags {
    int jobs;
    unsigned part, parts;
    bool all, untrained;
};

/* -1: usage. */
static int take_flags(struct flags *f, int argc, char **argv)
{
    int usage = argc < 3;
    for (int i = 3; i < argc && !usage; i++)
        if (!strcmp(argv[i], "--all"))
            f->all = true;
        else if (!strcmp(argv[i], "--untrained"))
            f->untrained = setting.no_trees = true, axis_size[DRAFTER] = 3;
        else if (!strcmp(argv[i], "--kv"))
            cases_take_caches();
        else if (!strcmp(argv[i], "--kv-host"))
            setting.kv_host = true;
        else if (!strcmp(argv[i], "--pool"))
            setting.pool = 448, setting.no_trees = true;
        else if (!strcmp(argv[i], "--device") && i + 1 < argc)
            setting.device = argv[++i];
        else if (!strcmp(argv[i], "--types") && i + 1 < argc)
            usage = cases_take_types(argv[++i]);
        else if (!strcmp(argv[i], "--jobs") && i + 1 < argc)
            usage = (f->jobs = atoi(argv[++i])) < 1;
        else if (!strcmp(argv[i], "--part") && i + 1 < argc)
            usage = sscanf(argv[++i], "%u/%u", &f->part, &f->parts) != 2 || f->part >= f->parts;
        else
            usage = true;
    return usage ? -1 : 0;
}

/* Print what was found; the exit status. */
static int report(const struct flags *f)
{
    printf("lossless: %ld cases, %ld wrong, %d instruction sets, mean accepted %.2f\n", tally.done, tally.bad,
           n_isa, (double)tally.accepted / (double)(tally.cycles ? tally.cycles : 1));
#ifdef LOSSLESS_CUDA
    if (!setting.on_cpu && backend && !forms_ok()) tally.bad++;
#endif
    if (f->parts > 1 || f->untrained) return tally.bad != 0; /* a few cases of one target may draft badly */
    const bool drafts = tally.accepted > tally.cycles / 4;
    printf("%s lossless/the drafter drafts\n", drafts ? "ok  " : "FAIL");
    const bool few = 2 * tally.trees.ran < tally.trees.cases;
    printf("%s lossless/trees are run: by %d of %d cases\n", few ? "FAIL" : "ok  ", tally.trees.ran,
           tally.trees.cases);
    return tally.bad != 0 || !drafts || few;
}

int main(int argc, char **argv)
{
    struct flags f = {.jobs = 1, .parts = 1};
    if (take_flags(&f, argc, argv)) {
        fprintf(stderr, "usage: lossless PAIR_DIR PROMPT.txt [--all] [--types LIST] [--untrained] [--kv] "
                        "[--kv-host] [--pool] "
                        "[--device NAME] [--jobs N | --part I/N]\n");
        return 2;
    }
    setting.dir = argv[1];
    setting.on_cpu = !strcmp(setting.device, "cpu");
    cases_find_isas();
    read_prompt(argv[2]);
    if (f.all)
        cases_everything();
    else
        cases_pairwise();
    if (f.parts > 1) cases_keep_part(f.part, f.parts);
    if (f.jobs > 1)
        run_jobs(f.jobs);
    else
        run_all();
    return report(&f);
}
