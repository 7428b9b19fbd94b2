/* serve_compress.c - see serve.h. A job of compress runs when no other does, in turns of a pass of its
 * scorer, so that it can be cancelled and ends with its client as any other. Without nopark the models'
 * memory is the scorer's meanwhile. They come back before the reply, as they were. */
#include "serve.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../common/base/mem.h"
#include "../../common/run/compress.h"

struct serve_compress {
    struct model *scorer;
    struct compress_scores scores;
    bool *stays;     /* [n] */
    int32_t budget;  /* tokens at most */
    unsigned parked; /* what was there before */
};

/* The message names the path of the request, not the descriptor that it was opened by. */
static void tell_path(const char *opened, const char *path, struct err *e)
{
    const size_t n = strlen(opened);
    char rest[sizeof e->msg];
    if (strncmp(e->msg, opened, n)) return;
    snprintf(rest, sizeof rest, "%s", e->msg + n);
    snprintf(e->msg, sizeof e->msg, "%.300s%.450s", path, rest);
}

static int open_model(struct server *sv, struct serve_compress *x, const char *path, struct err *e)
{
    const struct desc_override none = {.draft_causal = -1};
    char name[32];
    const int fd = path_open(sv, path, e);
    if (fd < 0) return -1;
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    /* Without a root the name that was given: a model in several files is found by it. */
    const int rc = model_open(&x->scorer, sv->root < 0 ? path : name, sv->set->m.be, &none, e);
    close(fd);
    if (rc) tell_path(name, path, e);
    return rc;
}

/* A target by whose attention a prompt can be judged. Its vocabulary is the prompt's, not the target's. */
static const char *open_scorer(struct job *j, struct server *sv, struct err *e)
{
    struct serve_compress *x = j->compress;
    if (open_model(sv, x, j->r.scorer, e)) return e->code == ERR_USAGE ? "bad_args" : "adapter_unavailable";
    const struct desc *d = x->scorer->d;
    if (desc_drafts(d))
        err_set(e, ERR_FORMAT, "%s: is a drafter (expected a target, got architecture %s)", j->r.scorer,
                d->arch_name);
    else if (compress_check(x->scorer, e) == 0)
        return NULL;
    return "adapter_unavailable";
}

static const char *check_ids(const struct job *j, struct err *e)
{
    const int32_t n = j->compress->scorer->d->n_vocab;
    for (int32_t i = 0; i < j->n_prompt; i++)
        if (j->prompt[i] < 0 || j->prompt[i] >= n) {
            err_set(e, ERR_FORMAT,
                    "%s: token %d: id out of the scorer's vocabulary (expected 0 to %d, got %d)", j->r.path,
                    i, n - 1, j->prompt[i]);
            return "bad_prompt";
        }
    return NULL;
}

static const char *what_stays(struct job *j, struct err *e)
{
    struct serve_compress *x = j->compress;
    const int32_t n = j->n_prompt;
    x->budget = compress_budget((float)j->r.keep_x1000 / 1000, n);
    x->stays = mem_calloc((size_t)n, sizeof *x->stays);
    if (!x->stays) {
        err_set(e, ERR_IO, "out of memory (%d tokens)", n);
        return "no_memory";
    }
    if (compress_frames(x->scorer, j->prompt, n, x->stays, e))
        return e->code == ERR_FORMAT ? "adapter_unavailable" : "no_memory";
    return compress_protect(x->stays, n, x->budget, e) ? "bad_args" : NULL;
}

static const char *load_scorer(struct job *j, struct server *sv, struct err *e)
{
    struct serve_compress *x = j->compress;
    const unsigned has = serve_parts(sv) & ~sv->parked;
    if (!j->r.nopark && has && serve_park(sv, has, true, e)) return "model_parked";
    x->parked = j->r.nopark ? 0 : has;
    if (model_fill(x->scorer, NULL, NULL, e) ||
        compress_scores_begin(&x->scores, x->scorer, j->prompt, j->n_prompt, sv->o.chunk, e))
        return e->code == ERR_FORMAT ? "adapter_unavailable" : "no_memory";
    return NULL;
}

int compress_begin(struct job *j, struct server *sv, const char **code, struct err *e)
{
    j->compress = mem_calloc(1, sizeof *j->compress);
    *code = "no_memory";
    if (!j->compress) return err_set(e, ERR_IO, "out of memory (a request)");
    sv->alone = true;
    *code = prompt_read(j, sv, e);
    if (!*code) *code = open_scorer(j, sv, e);
    if (!*code) *code = check_ids(j, e);
    if (!*code) *code = what_stays(j, e);
    if (!*code && j->compress->scorer->d->n_ctx_train > 0 &&
        j->n_prompt > j->compress->scorer->d->n_ctx_train)
        cli_warn(sv->cli, "%s: %d tokens, the scorer was trained to %d: its choice may be poor", j->r.path,
                 j->n_prompt, j->compress->scorer->d->n_ctx_train);
    if (!*code) *code = load_scorer(j, sv, e);
    return *code ? -1 : 0;
}

/* What stays, in place of the prompt's ids. */
static int choose(struct job *j, struct err *e)
{
    struct serve_compress *x = j->compress;
    float *score = mem_alloc((size_t)j->n_prompt * sizeof *score);
    int32_t *at = mem_alloc((size_t)x->budget * sizeof *at);
    int rc = score && at ? 0 : err_set(e, ERR_IO, "out of memory (scores of %d tokens)", j->n_prompt);
    if (rc == 0) rc = compress_scores_end(&x->scores, score, e);
    const int32_t n = rc ? -1 : compress_choose(score, x->stays, j->n_prompt, x->budget, at, e);
    for (int32_t i = 0; i < n; i++) j->prompt[i] = j->prompt[at[i]];
    if (n >= 0) j->n_made = (size_t)n;
    mem_free(score);
    mem_free(at);
    return n < 0 ? -1 : 0;
}

int compress_step(struct job *j, struct server *sv, const char **code, struct err *e)
{
    struct serve_compress *x = j->compress;
    *code = "prefill_failed";
    if (compress_scores_step(&x->scores, e)) return -1;
    if (!x->scores.done) return 0;
    if (choose(j, e)) return -1;
    *code = "model_parked";
    if (compress_end(j, sv, e)) return -1;
    cli_note(sv->cli, "%s: %zu of %d tokens stay", j->r.path, j->n_made, j->n_prompt);
    return 1;
}

int compress_end(struct job *j, struct server *sv, struct err *e)
{
    struct serve_compress *x = j->compress;
    if (!x) return 0;
    const unsigned parked = x->parked;
    compress_scores_free(&x->scores);
    model_free(x->scorer);
    mem_free(x->stays);
    mem_free(x);
    j->compress = NULL;
    sv->alone = false;
    /* A process that ends has no use for them. */
    if (!parked || sv->quits || serve_stopped() || sv->lost.code) return 0;
    return serve_park(sv, parked, false, e);
}
