/* compress.c - see compress.h. */
#include "compress.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../base/mem.h"
#include "../token/frames.h"
#include "session_impl.h"

/* Can the attention of layer i be asked for? A ring of a sliding layer holds its window alone. */
static bool sees_all(const struct desc *d, int32_t i)
{
    return !d->layer[i].recurrent && !d->layer[i].window && d->layer[i].causal;
}

int compress_check(const struct model *m, struct err *e)
{
    if (!kn_op(m->be)->attention_weights)
        return err_set(e, ERR_USAGE, "%s: does not score prompts (expected cpu)", kn_op(m->be)->name);
    for (int32_t i = 0; i < m->d->n_layer; i++)
        if (sees_all(m->d, i)) return 0;
    return err_set(e, ERR_USAGE, "no layer of the scorer sees every position: it cannot score");
}

static int new_seen(struct pass_seen *x, struct session *s, int32_t n, struct err *e)
{
    const struct desc *d = s->target->d;
    int32_t heads = 0;
    *x = (struct pass_seen){.from = n - 1, .n_keys = n, .pool = COMPRESS_POOL};
    for (int32_t i = 0; i < d->n_layer; i++) {
        x->wanted[i] = sees_all(d, i);
        if (x->wanted[i] && d->layer[i].n_head > heads) heads = d->layer[i].n_head;
    }
    x->scratch = s->op->alloc(s->be, (size_t)PASS_SEEN_ROWS * (size_t)heads * (size_t)n * sizeof(float));
    x->out = s->op->alloc(s->be, (size_t)(1 + COMPRESS_AHEAD) * (size_t)n * sizeof(float));
    return x->scratch && x->out ? 0 : model_no_memory(s->be, e, "scores of %d tokens", n);
}

static bool ends_text(const struct desc *d, int32_t id)
{
    for (int32_t i = 0; i < d->n_stops; i++)
        if (d->stops[i] == id) return true;
    return false;
}

/* Passes end where those of a whole prompt do. */
static int score_pass(struct compress_scores *x, struct err *e)
{
    const struct session *s = x->s;
    const int32_t pos = s->n_past, chunk = s->o.chunk;
    const int64_t whole = (int64_t)pos - pos % chunk + session_pass_rows(&s->o, s->op);
    return session_prefill(x->s, x->ids + pos, (whole < x->n ? whole : x->n) - pos, NULL, NULL, e);
}

/* A token that the scorer would write behind the prompt, greedily, up to one that ends the text. */
static int look_ahead(struct compress_scores *x, struct err *e)
{
    const struct kn_sampler greedy = {.top_p = 1, .repeat_penalty = 1};
    int32_t id;
    if (session_pick(x->s, &greedy, 1, &id, e)) return -1;
    x->done = ends_text(x->s->target->d, id);
    if (!x->done && session_prefill(x->s, &id, 1, NULL, NULL, e)) return -1;
    x->done |= ++x->ahead == COMPRESS_AHEAD;
    return 0;
}

int compress_scores_begin(struct compress_scores *x, struct model *m, const int32_t *ids, int32_t n,
                          int32_t chunk, struct err *e)
{
    const struct session_options own = {.ctx = n + COMPRESS_AHEAD, .chunk = chunk, .kv = {KN_F16, KN_F16}};
    *x = (struct compress_scores){.ids = ids, .n = n};
    if (compress_check(m, e) || session_new(&x->s, m, NULL, &own, e)) return -1;
    if (new_seen(&x->seen, x->s, n, e)) return -1;
    x->s->seen = &x->seen;
    return 0;
}

int compress_scores_step(struct compress_scores *x, struct err *e)
{
    return x->s->n_past < x->n ? score_pass(x, e) : look_ahead(x, e);
}

/* The mean over the queries: rows are added in their order. */
int compress_scores_end(struct compress_scores *c, float *score, struct err *e)
{
    const struct session *s = c->s;
    const struct pass_seen *x = &c->seen;
    const int32_t n = x->n_keys, rows = s->n_past - x->from;
    float *row = mem_alloc((size_t)n * sizeof *row);
    double *sum = mem_calloc((size_t)n, sizeof *sum);
    int rc = row && sum ? 0 : err_set(e, ERR_IO, "out of memory (scores of %d tokens)", n);
    for (int32_t r = 0; r < rows && rc == 0; r++) {
        rc = s->op->download(s->be, row, x->out + (int64_t)r * n, (size_t)n * sizeof *row);
        if (rc) rc = model_failed(s->target, "download", rc, e);
        for (int32_t j = 0; j < n && rc == 0; j++) sum[j] += (double)row[j];
    }
    for (int32_t j = 0; j < n && rc == 0; j++) {
        score[j] = (float)(sum[j] / rows);
        if (!isfinite(score[j]))
            rc = err_set(e, ERR_DEVICE, "token %d: the scorer's attention to it is no number", j);
    }
    mem_free(row);
    mem_free(sum);
    return rc;
}

void compress_scores_free(struct compress_scores *x)
{
    if (!x->s) return;
    x->s->op->free(x->s->be, x->seen.scratch);
    x->s->op->free(x->s->be, x->seen.out);
    session_free(x->s);
    *x = (struct compress_scores){0};
}

int compress_score(struct model *m, const int32_t *ids, int32_t n, const struct session_options *o,
                   float *score, struct err *e)
{
    struct compress_scores x;
    int rc = compress_scores_begin(&x, m, ids, n, o->chunk, e);
    while (rc == 0 && !x.done) {
        rc = compress_scores_step(&x, e);
        if (rc == 0 && o->progress && !x.ahead) o->progress(o->progress_ctx, x.s->n_past, n);
    }
    if (rc == 0) rc = compress_scores_end(&x, score, e);
    compress_scores_free(&x);
    return rc;
}

/* ---- choosing ---- */

int compress_frames(const struct model *m, const int32_t *ids, int32_t n, bool *stays, struct err *e)
{
    struct tokenizer *t;
    if (!m->d->has_tokenizer) return 0;
    if (tok_open(&t, m->file, e)) return err_prefix(e, "frames of a chat");
    const int rc = frames_find(t, ids, (size_t)n, stays, e);
    tok_close(t);
    return rc;
}

/* The float of 0.3 is a little above it, and of 800 tokens 240 are wanted. */
int32_t compress_budget(float keep, int32_t n)
{
    const double all = keep < 1 ? ceil((double)keep * (1 - 0x1p-24) * n) : n;
    return all < 1 ? 1 : (int32_t)all;
}

int compress_protect(bool *stays, int32_t n, int32_t budget, struct err *e)
{
    int32_t named = 0, all = 0;
    for (int32_t i = 0; i < n; i++) {
        named += stays[i];
        stays[i] |= i < COMPRESS_BLOCK || i >= n - COMPRESS_TAIL;
        all += stays[i];
    }
    const int32_t least = all + COMPRESS_BLOCK < n ? all + COMPRESS_BLOCK : n;
    if (budget >= least) return 0;
    err_set(e, ERR_USAGE,
            "the budget of %d of %d tokens is too small for what must stay (expected at least %d: "
            "%d of chat frames and tools, the first %d, the last %d, and a block of %d)",
            budget, n, least, named, COMPRESS_BLOCK, COMPRESS_TAIL, COMPRESS_BLOCK);
    return err_hint(e, "--compress %.4g would do", ceil(1e4 * least / n) / 1e4);
}

struct block {
    double score;  /* the mean over what may go */
    int32_t at, n; /* of those */
};

static int better_first(const void *a, const void *b)
{
    const struct block *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return y->at - x->at;
}

int32_t compress_choose(const float *score, const bool *stays, int32_t n, int32_t budget, int32_t *at,
                        struct err *e)
{
    const int32_t n_blocks = (n + COMPRESS_BLOCK - 1) / COMPRESS_BLOCK;
    struct block *b = mem_calloc((size_t)n_blocks, sizeof *b);
    bool *taken = mem_calloc((size_t)n_blocks, sizeof *taken);
    int32_t left = budget, k = 0;
    if (!b || !taken) {
        mem_free(b);
        mem_free(taken);
        return err_set(e, ERR_IO, "out of memory (%d blocks)", n_blocks);
    }
    for (int32_t i = 0; i < n_blocks; i++) b[i].at = i;
    for (int32_t i = 0; i < n; i++) {
        struct block *y = &b[i / COMPRESS_BLOCK];
        left -= stays[i];
        if (!stays[i]) y->score += (double)score[i], y->n++;
    }
    for (int32_t i = 0; i < n_blocks; i++)
        if (b[i].n) b[i].score /= b[i].n;
    qsort(b, (size_t)n_blocks, sizeof *b, better_first);
    for (int32_t i = 0; i < n_blocks; i++)
        if (b[i].n && b[i].n <= left) taken[b[i].at] = true, left -= b[i].n;
    for (int32_t i = 0; i < n && k < budget; i++)
        if (stays[i] || taken[i / COMPRESS_BLOCK]) at[k++] = i;
    mem_free(b);
    mem_free(taken);
    return k;
}
