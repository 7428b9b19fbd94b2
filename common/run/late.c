/* late.c - see late.h. */
#include "late.h"

#include "../base/mem.h"

int late_open(struct session *s, const struct session_source *by, struct late *x, struct err *e)
{
    const size_t bytes = LATE_ROWS * (size_t)by->width * sizeof(float);
    x->rows = s->op->alloc(s->be, bytes);
    if (!x->rows) return model_no_memory(s->be, e, "hidden states of a drafter");
    s->bytes += bytes;
    return 0;
}

void late_close(struct session *s, struct late *x)
{
    s->op->free(s->be, x->rows);
    x->rows = NULL;
}

int late_keep(struct session *s, const struct session_source *by, const struct late *x,
              const struct session_rows *r, struct err *e)
{
    const int32_t n = r->n < SESSION_MAX_ROWS ? r->n : SESSION_MAX_ROWS, from = r->n - n;
    const int64_t width = by->width;
    int rc = s->op->keep(s->be, x->rows, LATE_ROWS, r->pos + from, r->features + from * width, n, width);
    return rc ? model_failed(s->target, "keep", rc, e) : 0;
}

static int clear_anchor(struct session *s, struct err *e)
{
    const size_t n = (size_t)s->target->d->n_vocab * sizeof(float);
    float *zero = mem_calloc(1, n);
    if (!zero) return err_set(e, ERR_IO, "out of memory (a row of logits)");
    int rc = s->op->upload(s->be, s->g->logits, zero, n);
    mem_free(zero);
    return rc ? model_failed(s->target, "upload", rc, e) : 0;
}

int late_propose(struct session *s, struct session_source *by, struct work *w, const struct kn_kv *kv,
                 late_step *step, bool all_rows, struct err *e)
{
    const int32_t n = by->block - 1, n_vocab = s->target->d->n_vocab;
    if (all_rows && clear_anchor(s, e)) return -1;
    for (int32_t i = 0; i < n; i++) {
        float *logits = s->g->logits + (int64_t)(i + all_rows) * n_vocab;
        const struct pass p = {.w = w,
                               .kv = kv,
                               .n = 1,
                               .first_pos = s->n_past,
                               .ids = i ? s->d->ids + i : s->d->block,
                               .pos = s->d->pos,
                               .origin = s->origin,
                               .visible_from = s->o.draft_window ? &s->d->first : NULL};
        const struct kn_pick pick = {.logits = logits,
                                     .pos = s->d->pos + i,
                                     .history = s->d_history,
                                     .n = 1,
                                     .n_vocab = n_vocab,
                                     .sampler = source_sampler(s),
                                     .out = s->d->ids + 1 + i,
                                     .logp = s->d->logp + i};
        if (step(s, by, &p, i, logits, e)) return -1;
        int rc = s->op->pick(s->be, &pick);
        if (rc) return model_failed(by->of->model, "pick", rc, e);
    }
    return session_candidates(s, by, s->g->logits + (int64_t)all_rows * n_vocab, n, e);
}

static float *last(const struct session_source *by, const struct late *x, int32_t n_past)
{
    return x->rows + (n_past - 1) % LATE_ROWS * by->width;
}

void *late_at(const struct session_source *by, const struct late *x, int32_t pos, size_t *n)
{
    *n = (size_t)by->width * sizeof(float);
    return last(by, x, pos + 1);
}

int late_save(struct session *s, const struct session_source *by, const struct late *x, struct snap_writer *w,
              struct err *e)
{
    const size_t bytes = (size_t)by->width * sizeof(float);
    float *row = mem_alloc(bytes);
    if (!row) return err_set(e, ERR_IO, "out of memory (a hidden state)");
    int rc = s->op->download(s->be, row, last(by, x, s->n_past), bytes);
    rc = rc ? model_failed(s->target, "download", rc, e) : snap_put(w, "DHID", row, bytes, e);
    mem_free(row);
    return rc;
}

int late_load(struct session *s, const struct session_source *by, const struct late *x, struct state *st,
              struct err *e)
{
    const size_t bytes = (size_t)by->width * sizeof(float);
    uint8_t *row = NULL;
    if (state_section(st, "DHID", bytes, e) || snap_read_section(&st->r, bytes, &row, e)) return -1;
    int rc = s->op->upload(s->be, last(by, x, (int32_t)st->m.n_tokens), row, bytes);
    mem_free(row);
    return rc ? model_failed(s->target, "upload", rc, e) : 0;
}
