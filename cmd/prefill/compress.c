/* compress.c - see compress.h. */
#include "compress.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "../../common/base/mem.h"

void compress_check_flags(const struct compress_flags *f, const char *state_path, const char *others,
                          bool pool, const struct cli *c)
{
    const char *alone = f->scorer ? "--scorer" : f->kept_path ? "--kept" : NULL;
    if (alone && !cli_given(c, "--compress")) cli_usage_error(c, "%s needs --compress KEEP", alone);
    if (!cli_given(c, "--compress")) return;
    if (state_path)
        cli_usage_error(c, "--compress: a whole prompt is compressed (expected no --state, got %s)",
                        state_path);
    if (pool) cli_usage_error(c, "--compress: no pool holds a compressed prompt (expected no --pool)");
    if (others)
        cli_usage_error(c, "--compress: tokens are left out (expected no %s, which is of them all)", others);
}

static void show_progress(void *ctx, uint64_t done, uint64_t total)
{
    cli_progress(ctx, "loading scorer", done, total, "B");
}

/* Ids must mean the same to both. */
static int check_scorer(const struct compress *x, const struct models *m, struct err *e)
{
    const struct desc *s = x->scorer->d, *t = m->target->d;
    if (desc_drafts(s))
        return err_set(e, ERR_FORMAT, "%s: is a drafter (expected a target, got architecture %s)",
                       x->f->scorer, s->arch_name);
    if (s->has_tokenizer != t->has_tokenizer || s->n_tokens != t->n_tokens ||
        s->tokenizer_crc != t->tokenizer_crc || (!t->has_tokenizer && s->n_vocab != t->n_vocab))
        return err_set(e, ERR_FORMAT,
                       "%s: has another vocabulary than the target (expected %d tokens with crc32 %08x in a "
                       "vocabulary of %d, got %d with %08x in %d)",
                       x->f->scorer, t->n_tokens, t->tokenizer_crc, t->n_vocab, s->n_tokens, s->tokenizer_crc,
                       s->n_vocab);
    return 0;
}

static int open_scorer(struct compress *x, const struct models *m, struct err *e)
{
    const struct desc_override none = {.draft_causal = -1};
    if (x->f->scorer && (model_open(&x->scorer, x->f->scorer, m->be, &none, e) || check_scorer(x, m, e)))
        return -1;
    const struct model *scorer = x->scorer ? x->scorer : m->target;
    if (compress_check(scorer, e)) return -1;
    memcpy(x->gaps.scorer_id, scorer->d->identity, 16);
    snprintf(x->gaps.scorer, sizeof x->gaps.scorer, "%s", scorer->d->name);
    return 0;
}

int compress_inputs(struct compress *x, const struct models *m, const struct cli *c, const int32_t *ids,
                    int32_t n, struct err *e)
{
    if (session_gaps_check(m->target->d, e) || open_scorer(x, m, e)) return -1;
    x->gaps.keep = x->f->keep;
    x->gaps.n_text = n;
    x->budget = compress_budget(x->f->keep, n);
    x->stays = mem_calloc((size_t)n, sizeof *x->stays);
    if (!x->stays) return err_set(e, ERR_IO, "out of memory (%d tokens)", n);
    if (!m->target->d->has_tokenizer)
        cli_detail(c, "the target's file has no tokenizer: chat frames and tools are not looked for");
    if (compress_frames(m->target, ids, n, x->stays, e) || compress_protect(x->stays, n, x->budget, e))
        return err_prefix(e, "--compress");
    return 0;
}

int compress_run(struct compress *x, const struct models *m, const struct cli *c, const int32_t *ids,
                 int32_t n, const struct session_options *o, struct err *e)
{
    struct model *scorer = x->scorer ? x->scorer : m->target;
    float *score = mem_alloc((size_t)n * sizeof *score);
    const double start = cli_seconds();
    int rc = -1;
    x->at = mem_alloc((size_t)x->budget * sizeof *x->at);
    if (!score || !x->at) {
        err_set(e, ERR_IO, "out of memory (scores of %d tokens)", n);
        goto out;
    }
    if (x->scorer && model_fill(x->scorer, show_progress, (void *)(uintptr_t)c, e)) goto out;
    if (compress_score(scorer, ids, n, o, score, e)) goto out;
    x->gaps.n_kept = compress_choose(score, x->stays, n, x->budget, x->at, e);
    if (x->gaps.n_kept < 0) goto out;
    model_free(x->scorer); /* its memory is the target's again */
    x->scorer = NULL;
    x->seconds = cli_seconds() - start;
    cli_warn(c,
             "the prompt is compressed: %" PRId32 " of %" PRId32 " tokens are run; what is left out is lost",
             x->gaps.n_kept, n);
    rc = 0;
out:
    mem_free(score);
    return rc;
}

void compress_free(struct compress *x)
{
    model_free(x->scorer);
    mem_free(x->stays);
    mem_free(x->at);
}
