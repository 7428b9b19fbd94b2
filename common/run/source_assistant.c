/* source_assistant.c - a Gemma 4 assistant as a source: gemma4_assistant.c over a stream's own caches.
 *
 * It keeps nothing but hidden states of the target (late.h). What it reads else are the target's keys and
 * values of positions before the anchor, which are those of tokens that stay: a row at the anchor's position
 * or later is not looked at, whatever was tried there. So what it proposes is a function of the tokens up to
 * the anchor, as in cycle.h. */
#include "late.h"

#include "../base/mem.h"

/* Of one stream. */
struct context {
    struct late late;
    struct kn_kv *kv; /* [n_layer] the target's, of each layer's donor: borrowed */
    float *h, *y;     /* device [target's n_embd], [n_embd] */
    float *scores;    /* device [n_clusters], or NULL */
    int32_t *before;  /* device [1] */
};

static struct context *context_of(const struct session_source *x)
{
    return x->context;
}

static int open_context(struct session *s, struct session_source *x, int32_t pass_rows, struct err *e)
{
    const struct desc *d = x->of->model->d;
    const size_t h = (size_t)d->n_embd_target * sizeof(float), y = (size_t)d->n_embd * sizeof(float),
                 scores = (size_t)d->n_clusters * sizeof(float);
    struct context *c = x->context = mem_calloc(1, sizeof *c);
    (void)pass_rows;
    if (!c || !(c->kv = mem_calloc((size_t)d->n_layer, sizeof *c->kv)))
        return err_set(e, ERR_IO, "out of memory (a drafter's context)");
    for (int32_t i = 0; i < d->n_layer; i++) {
        const int32_t donor = desc_donor(s->target->d, &d->layer[i]);
        c->kv[i] = s->kv[donor];
        int rc = s->op->reserve_kv(s->be, 1, d->layer[i].n_head, &c->kv[i], d->layer[i].window);
        if (rc) return model_failed(x->of->model, "reserve", rc, e);
    }
    if (late_open(s, x, &c->late, e)) return -1;
    c->h = s->op->alloc(s->be, h);
    c->y = s->op->alloc(s->be, y);
    c->before = s->op->alloc(s->be, sizeof *c->before);
    if (scores) c->scores = s->op->alloc(s->be, scores);
    if (!c->h || !c->y || !c->before || (scores && !c->scores))
        return model_no_memory(s->be, e, "a drafter's context");
    s->bytes += h + y + scores + sizeof *c->before;
    return 0;
}

static void close_context(struct session *s, struct session_source *x)
{
    struct context *c = context_of(x);
    if (!c) return;
    late_close(s, &c->late);
    void *device[] = {c->h, c->y, c->scores, c->before};
    for (size_t i = 0; i < sizeof device / sizeof device[0]; i++) s->op->free(s->be, device[i]);
    mem_free(c->kv);
    mem_free(c);
    x->context = NULL;
}

static int context(struct session *s, struct session_source *x, const struct session_rows *r, struct err *e)
{
    return late_keep(s, x, &context_of(x)->late, r, e);
}

static int step(const struct session *s, const struct session_source *x, const struct pass *p, int32_t i,
                float *logits, struct err *e)
{
    const struct context *c = context_of(x);
    const struct assistant_rows rows = {.late = c->late.rows,
                                        .slots = LATE_ROWS,
                                        .before = c->before,
                                        .h = c->h,
                                        .y = c->y,
                                        .scores = c->scores};
    return gemma4_assistant_step(x->of->model, s->target, p, &rows, i, logits, e);
}

static int propose(struct session *s, struct session_source *x, bool all_rows, struct err *e)
{
    return late_propose(s, x, &s->g->work, context_of(x)->kv, step, all_rows, e);
}

static void *last(const struct session *s, const struct session_source *x, int32_t pos, size_t *n)
{
    (void)s;
    return late_at(x, &context_of(x)->late, pos, n);
}

static int save(struct session *s, struct session_source *x, struct snap_writer *w, struct err *e)
{
    return late_save(s, x, &context_of(x)->late, w, e);
}

static int load(struct session *s, struct session_source *x, struct state *st, struct err *e)
{
    return late_load(s, x, &context_of(x)->late, st, e);
}

static const struct source_ops assistant = {.name = "assistant",
                                            .open = open_context,
                                            .close = close_context,
                                            .last = last,
                                            .context = context,
                                            .propose = propose,
                                            .save = save,
                                            .load = load};

struct source source_assistant(struct model *m)
{
    return (struct source){.op = &assistant,
                           .model = m,
                           .rows = SESSION_MAX_ROWS,
                           .usual = m->d->block_size,
                           .needs = {.hidden = true, .caches = true},
                           .tree = true};
}
