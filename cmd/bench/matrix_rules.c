/* matrix_rules.c - the rules of a matrix, for make.
 *
 * Files carry the state, so make resumes where it stopped: models and prompts; one stream of the target alone
 * a type, setting and prompt; a cell a combination, its drafted streams compared with those; a timed cell a
 * combination. What a rule makes is written beside its place and renamed, under a name that no other process
 * has. Everything may run in parallel but the timed cells, which take a lock a machine and begin when all the
 * rest is done. `make work` is one of many workers over a shared folder: work.c. */
#include <stdio.h>
#include <string.h>
#include "matrix.h"

static int step, n_steps; /* cells: streams and times */

static bool same_class(const struct matrix *m, int i, int k)
{
    const size_t n = matrix_class(m->prompt[i]);
    return n == matrix_class(m->prompt[k]) &&
           !strncmp(matrix_base(m->prompt[i]), matrix_base(m->prompt[k]), n);
}

static bool first_of_class(const struct matrix *m, int i)
{
    for (int k = 0; k < i; k++)
        if (same_class(m, i, k)) return false;
    return true;
}

/* "python-1-short" of ".../python-1-short.txt" */
static int prompt_length(const char *path)
{
    return (int)strcspn(matrix_base(path), ".");
}

static void model_rule(const struct matrix *m, const char *file, const char *hf, const char *type,
                       const char *extra, const char *extra_value)
{
    printf(
        "MODELS += $(OUT)/%s-%s.gguf\n$(OUT)/%s-%s.gguf: $(wildcard %s %s/*.json %s/*.safetensors) | $(OUT)\n"
        "\t@echo \"$$(date +%%T) $@\" >&2\n\t@dflash-convert -q --force %s -o $@ --type %s%s%s%s%s\n",
        file, type, file, type, hf, hf, hf, hf, type, extra, extra_value, m->random ? " --random " : "",
        m->random ? m->random : "");
}

/* "drafter" or "drafter-NAME" */
static const char *drafter_file(const struct matrix_drafter *d, char *out, size_t n)
{
    snprintf(out, n, "drafter%s%s", *d->name ? "-" : "", d->name);
    return out;
}

static void model_rules(const struct matrix *m)
{
    char file[96];
    for (int i = 0; i < m->n_types; i++) model_rule(m, "target", m->target, m->type[i], "", "");
    for (int d = 0; d < m->n_drafters; d++) {
        const struct matrix_drafter *x = &m->drafter[d];
        const char *extra = x->mtp ? " --mtp only" : x->alone ? "" : " --target ";
        for (int i = 0; i < m->n_draft_types; i++)
            model_rule(m, drafter_file(x, file, sizeof file), x->dir, m->draft_type[i], extra,
                       x->mtp || x->alone ? "" : m->target);
    }
}

static void prompt_rules(const struct matrix *m)
{
    for (int i = 0; i < m->n_prompts; i++) {
        const char *path = m->prompt[i];
        const size_t n = strlen(path);
        printf("PROMPTS += $(OUT)/%.*s.tok\n$(OUT)/%.*s.tok: %s", prompt_length(path), matrix_base(path),
               prompt_length(path), matrix_base(path), path);
        if (n > 4 && !strcmp(path + n - 4, ".tok"))
            printf(" | $(OUT)\n\t@cp $< $(TMP) && mv $(TMP) $@\n");
        else
            printf(" $(OUT)/target-%s.gguf\n\t@dflash-tokenize -q -m $(OUT)/target-%s.gguf <$< >$(TMP) && mv "
                   "$(TMP) $@\n",
                   m->type[0], m->type[0]);
    }
}

/* What the target writes alone: what all cells of a type, setting and prompt are compared with. */
static void plain_rules(const struct matrix *m, const char *type, const struct matrix_named *set)
{
    for (int i = 0; i < m->n_prompts; i++) {
        const int n = prompt_length(m->prompt[i]);
        const char *name = matrix_base(m->prompt[i]);
        printf("PLAIN += $(OUT)/plain.%s.%s.%.*s.tok\n"
               "$(OUT)/plain.%s.%s.%.*s.tok: $(OUT)/target-%s.gguf $(OUT)/%.*s.tok\n"
               "\t@dflash-generate -q -m $(OUT)/target-%s.gguf -n %lld --ignore-eos %s <$(OUT)/%.*s.tok "
               ">$(TMP) && mv "
               "$(TMP) $@\n",
               type, set->name, n, name, type, set->name, n, name, type, n, name, type, (long long)m->n,
               set->flags, n, name);
    }
}

/* What a cell's rule says first: "[3/16] 14:05:10 CELL: streams"; of several workers their own count is
 * shown. */
static void say_step(const char *cell, const char *what)
{
    printf("\t@[ -n \"$$DFLASH_WORKER\" ] || echo \"[%d/%d] $$(date +%%T) %s: %s\" >&2\n", ++step, n_steps,
           cell, what);
}

struct cell {
    const char *type, *draft_type;
    const struct matrix_drafter *drafter;
    const struct matrix_named *set, *plan;
    int class_of; /* the first prompt of its class */
};

static void stream_rule(const struct matrix *m, const struct cell *c, const char *cell, const char *draft)
{
    printf("STREAMS += $(OUT)/%s.stream.jsonl\n$(OUT)/%s.stream.jsonl: $(OUT)/target-%s.gguf $(OUT)/%s.gguf",
           cell, cell, c->type, draft);
    for (int i = 0; i < m->n_prompts; i++)
        if (same_class(m, i, c->class_of))
            printf(" $(OUT)/plain.%s.%s.%.*s.tok", c->type, c->set->name, prompt_length(m->prompt[i]),
                   matrix_base(m->prompt[i]));
    printf("\n");
    say_step(cell, "streams");
    /* where streams differ, the line says so, and the report ends with it */
    printf("\t@d=$(OUT)/drafted.$(HOST).$$$$; mkdir -p $$d && rm -f $(TMP); for p in");
    for (int i = 0; i < m->n_prompts; i++)
        if (same_class(m, i, c->class_of))
            printf(" %.*s", prompt_length(m->prompt[i]), matrix_base(m->prompt[i]));
    printf("; do \\\n"
           "\t  dflash-generate -q -m $(OUT)/target-%s.gguf -d $(OUT)/%s.gguf -n %lld --ignore-eos %s %s "
           "<$(OUT)/$$p.tok >$$d/%s.$$p.tok && \\\n"
           "\t  { dflash-bench compare --json $(OUT)/plain.%s.%s.$$p.tok $$d/%s.$$p.tok >>$(TMP) || [ $$? = "
           "1 ]; } || "
           "exit; done; \\\n\trm -r $$d; mv $(TMP) $@\n",
           c->type, draft, (long long)m->n, c->set->flags, c->plan->flags, cell, c->type, c->set->name, cell);
}

static void time_rule(const struct matrix *m, const struct cell *c, const char *cell, const char *draft)
{
    const int len = (int)matrix_class(m->prompt[c->class_of]);
    const char *name = matrix_base(m->prompt[c->class_of]);
    printf("TIMES += $(OUT)/%s.time.jsonl\n$(OUT)/%s.time.jsonl: $(OUT)/%s.stream.jsonl\n", cell, cell, cell);
    say_step(cell, "times");
    printf("\t@{ flock $(OUT)/lock.$(HOST) dflash-bench run -q -m $(OUT)/target-%s.gguf -d $(OUT)/%s.gguf -n "
           "%lld --runs "
           "%d --ignore-eos %s %s",
           c->type, draft, (long long)m->n, m->runs, c->set->flags, c->plan->flags);
    if (m->threads) printf(" --threads %d", m->threads);
    printf(" --label '%.*s %s%s%s' --tag class=%.*s --tag target=%s --tag drafter=%s%s%s --tag setting=%s "
           "--tag plan=%s",
           len, name, c->set->name, *c->plan->name ? " " : "", c->plan->name, len, name, c->type,
           c->drafter->name, *c->drafter->name ? "-" : "", c->draft_type, c->set->name, c->plan->name);
    for (int i = 0; i < m->n_prompts; i++)
        if (same_class(m, i, c->class_of))
            printf(" $(OUT)/%.*s.tok", prompt_length(m->prompt[i]), matrix_base(m->prompt[i]));
    printf(" >$(TMP) || [ $$? = 1 ]; } && mv $(TMP) $@\n");
}

/* One combination: a stream cell and a timed cell over the prompts of a class. */
static void cell_rules(const struct matrix *m, const struct cell *c)
{
    char cell[512], file[96], draft[160];
    snprintf(draft, sizeof draft, "%s-%s", drafter_file(c->drafter, file, sizeof file), c->draft_type);
    snprintf(cell, sizeof cell, "%s.%s%s%s.%.*s.%s%s%s", c->type, c->drafter->name,
             *c->drafter->name ? "-" : "", c->draft_type, (int)matrix_class(m->prompt[c->class_of]),
             matrix_base(m->prompt[c->class_of]), c->set->name, *c->plan->name ? "." : "", c->plan->name);
    stream_rule(m, c, cell, draft);
    time_rule(m, c, cell, draft);
}

static void cells(const struct matrix *m)
{
    for (int i = 0; i < m->n_prompts; i++) n_steps += 2 * first_of_class(m, i);
    n_steps *= m->n_settings * m->n_types * m->n_drafters * m->n_draft_types * m->n_plans;
    for (int s = 0; s < m->n_settings; s++)
        for (int t = 0; t < m->n_types; t++) {
            plain_rules(m, m->type[t], &m->setting[s]);
            for (int d = 0; d < m->n_drafters; d++)
                for (int k = 0; k < m->n_draft_types; k++)
                    for (int p = 0; p < m->n_plans; p++)
                        for (int i = 0; i < m->n_prompts; i++) {
                            const struct cell c = {m->type[t],     m->draft_type[k], &m->drafter[d],
                                                   &m->setting[s], &m->plan[p],      i};
                            if (first_of_class(m, i)) cell_rules(m, &c);
                        }
        }
}

/* A worker: what others have claimed is left to them; stage by stage, so that nothing is timed while a
 * machine works on the rest, and no model is made twice. A list is too long for a command line. */
static void worker_rules(void)
{
    static const char *const stage[] = {"MODELS", "PROMPTS", "PLAIN", "STREAMS", "TIMES"};
    printf("THIS := $(firstword $(MAKEFILE_LIST))\n.PHONY: work\nwork: | $(OUT)\n");
    for (size_t i = 0; i < sizeof stage / sizeof *stage; i++) {
        printf("\t+@$(MAKE) -s --no-print-directory -f $(THIS) list-%s | DFLASH_WORKER=1 dflash-bench work "
               "$(WORK) --file "
               "'$(OUT)/{}' $(OUT)/claims -- $(MAKE) -s --no-print-directory -f $(THIS) '$(OUT)/{}'\n",
               stage[i]);
    }
    printf("\t+@$(MAKE) -s --no-print-directory -f $(THIS) report\n");
    for (size_t i = 0; i < sizeof stage / sizeof *stage; i++)
        printf(".PHONY: list-%s\nlist-%s:\n\t$(foreach c,$(%s),$(info $(notdir $c)))@:\n", stage[i], stage[i],
               stage[i]);
}

void matrix_rules(const struct matrix *m)
{
    printf("# made by dflash-bench matrix; run: make -f THIS -j2; on several machines: make -f THIS work on "
           "each\n"
           "OUT := %s\nHOST := $(shell uname -n)\nTMP = $@.$(HOST).$$$$.tmp\nMODELS :=\nPROMPTS :=\nPLAIN "
           ":=\nSTREAMS "
           ":=\nTIMES :=\nWORK :=\n.DELETE_ON_ERROR:\n.PHONY: report\n"
           "report: $(OUT)/verdict\n$(OUT):\n\t@mkdir -p $@\n",
           m->out);
    model_rules(m);
    prompt_rules(m);
    cells(m);
    printf("# no timed cell while others work\n$(TIMES): | $(STREAMS)\n");
    printf("LINES = $(TIMES) $(STREAMS)\n");
    printf("$(OUT)/report.md: $(STREAMS) $(TIMES)%s%s\n\t@dflash-bench report -q%s%s --html "
           "$(OUT)/report.html --force -o "
           "$@ $(LINES) || [ $$? = 1 ]\n",
           m->baseline ? " " : "", m->baseline ? m->baseline : "", m->baseline ? " --baseline " : "",
           m->baseline ? m->baseline : "");
    printf("# fails where streams differ, or a cell is slower than the baseline's\n"
           "$(OUT)/verdict: $(OUT)/report.md\n\t@dflash-bench report -q%s%s $(LINES) >$@\n",
           m->baseline ? " --baseline " : "", m->baseline ? m->baseline : "");
    worker_rules();
}
