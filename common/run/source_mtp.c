/* source_mtp.c - the MTP block of a Qwen3.5 target as a source: the passes of qwen35_mtp.c over a stream's
 * cache.
 *
 * Its context is keys and values, and hidden states of the target. A row of it is a token and the hidden
 * state of the position before. A pass leaves the hidden states of its own rows. So they are kept by
 * position, in a ring: the first row of the next pass, and the anchor's, read theirs there, whichever of the
 * rows before were kept. Behind a verify the rows of all its tokens become context, with the target's hidden
 * states in place of what the draft had made up. Those that were rejected are written over before a row looks
 * at them, as in cycle.h: every step of a draft, and every row of a pass, writes its own place, and looks no
 * further.
 *
 * A draft is as many rows as proposals are wanted, one after the other (late_propose). */
#include "late.h"

#include "../base/mem.h"

/* Of one stream. */
struct context {
    struct kn_kv *kv; /* [1] */
    struct late late;
    float *h;        /* device [n_embd] what the next row of a draft reads */
    int32_t *before; /* device [SESSION_MAX_ROWS] places in the cache */
};

static struct context *context_of(const struct session_source *x)
{
    return x->context;
}

static int open_context(struct session *s, struct session_source *x, int32_t pass_rows, struct err *e)
{
    const size_t row = (size_t)s->target->d->n_embd * sizeof(float);
    struct context *c = x->context = mem_calloc(1, sizeof *c);
    if (!c) return err_set(e, ERR_IO, "out of memory (a drafter's context)");
    if (session_new_caches(s, x->of->model, x, pass_rows, &c->kv, e)) return -1;
    if (late_open(s, x, &c->late, e)) return -1;
    c->h = s->op->alloc(s->be, row);
    c->before = s->op->alloc(s->be, SESSION_MAX_ROWS * sizeof *c->before);
    if (!c->h || !c->before) return model_no_memory(s->be, e, "hidden states of a drafter");
    s->bytes += row + SESSION_MAX_ROWS * sizeof *c->before;
    return 0;
}

static void close_context(struct session *s, struct session_source *x)
{
    struct context *c = context_of(x);
    if (!c) return;
    session_free_caches(s, x->of->model, c->kv);
    late_close(s, &c->late);
    s->op->free(s->be, c->h);
    s->op->free(s->be, c->before);
    mem_free(c);
    x->context = NULL;
}

static const struct kn_kv *caches(const struct session *s, const struct session_source *x, int32_t *n)
{
    (void)s;
    *n = 1;
    return context_of(x) ? context_of(x)->kv : NULL;
}

static void *last(const struct session *s, const struct session_source *x, int32_t pos, size_t *n)
{
    (void)s;
    return late_at(x, &context_of(x)->late, pos, n);
}

static struct work draft_work(const struct session *s)
{
    struct work w = s->g->work;
    w.rope[0] = w.draft_rope;
    return w;
}

/* The token at position 0 has no row. Positions of a prompt are known, and their places are positions too. */
static int prompt_context(struct session *s, struct session_source *x, const struct session_rows *r,
                          struct err *e)
{
    struct work w = draft_work(s);
    const struct mtp_rows none = {0};
    const struct pass p = {.w = &w,
                           .kv = context_of(x)->kv,
                           .n = r->n - 1,
                           .ids = r->ids + 1,
                           .pos = r->pos,
                           .origin = s->origin,
                           .features = (float *)r->features};
    if (p.n && qwen35_mtp_context(x->of->model, s->target, &p, &none, e)) return -1;
    return late_keep(s, x, &context_of(x)->late, r, e);
}

/* Rows of the history have positions that the host knows; those of a cycle, whose recording is one for all,
 * have not. */
static int context(struct session *s, struct session_source *x, const struct session_rows *r, struct err *e)
{
    struct context *c = context_of(x);
    struct work w = draft_work(s);
    const bool listed = r->pos >= s->g->d_pos && r->pos < s->g->d_pos + s->g->positions;
    struct mtp_rows rows = {.late = c->late.rows, .slots = LATE_ROWS};
    if (listed && r->first_pos == 0) return prompt_context(s, x, r, e);
    struct pass p = {.w = &w,
                     .kv = c->kv,
                     .n = r->n,
                     .first_pos = r->first_pos,
                     .ids = r->ids,
                     .pos = r->pos,
                     .origin = s->origin,
                     .features = (float *)r->features};
    if (!listed) rows.before = c->before, rows.n_before = r->n;
    if (listed) rows.places = r->pos - 1;
    return qwen35_mtp_context(x->of->model, s->target, &p, &rows, e) || late_keep(s, x, &c->late, r, e) ? -1
                                                                                                        : 0;
}

static int step(const struct session *s, const struct session_source *x, const struct pass *p, int32_t i,
                float *logits, struct err *e)
{
    const struct context *c = context_of(x);
    const struct mtp_rows rows = {
        .late = c->late.rows, .slots = LATE_ROWS, .before = c->before, .n_before = x->block - 1};
    return qwen35_mtp_step(x->of->model, s->target, p, &rows, i, c->h, logits, e);
}

static int propose(struct session *s, struct session_source *x, bool all_rows, struct err *e)
{
    struct work w = draft_work(s);
    return late_propose(s, x, &w, context_of(x)->kv, step, all_rows, e);
}

/* ---- states: the cache, and the hidden state of the last position ---- */

static int save(struct session *s, struct session_source *x, struct snap_writer *w, struct err *e)
{
    const struct context *c = context_of(x);
    const struct desc_layer *y = &x->of->model->d->layer[0];
    return state_save_layer(s, c->kv, y, s->n_past - 1, "DKV ", w, e) || late_save(s, x, &c->late, w, e) ? -1
                                                                                                         : 0;
}

static int load(struct session *s, struct session_source *x, struct state *st, struct err *e)
{
    const struct context *c = context_of(x);
    const struct desc_layer *y = &x->of->model->d->layer[0];
    return state_load_layer(st, s, c->kv, y, (int32_t)st->m.n_tokens - 1, "DKV ", e) ||
                   late_load(s, x, &c->late, st, e)
               ? -1
               : 0;
}

static const struct source_ops mtp = {.name = "mtp",
                                      .open = open_context,
                                      .close = close_context,
                                      .caches = caches,
                                      .last = last,
                                      .context = context,
                                      .propose = propose,
                                      .save = save,
                                      .load = load};

struct source source_mtp(struct model *block)
{
    return (struct source){.op = &mtp,
                           .model = block,
                           .rows = SESSION_MAX_ROWS,
                           .usual = block->d->block_size,
                           .needs = {.hidden = true},
                           .tree = true};
}
