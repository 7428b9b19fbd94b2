/* engine.c - see engine.h. */
#include "engine.h"

#include <inttypes.h>
#include <string.h>
#include "../base/mem.h"
#include "pages.h"
#include "session_impl.h"

static void *take(struct engine *g, uint64_t count, size_t size)
{
    void *p = g->op->alloc(g->be, (size_t)count * size);
    if (p) g->bytes += count * size;
    return p;
}

static int new_work(struct engine *g, struct err *e)
{
    const struct desc *t = g->target->d;
    const struct model *drafters[SESSION_SOURCES];
    int32_t n = 0;
    bool there = true;
    for (int32_t i = 0; i < g->n_sources; i++) {
        struct session_source *x = &g->by[i];
        if (x->of->model) drafters[n++] = x->of->model;
        if (!x->width) continue;
        x->features = take(g, (uint64_t)g->rows * (uint64_t)x->width, sizeof *x->features);
        there &= x->features != NULL;
    }
    g->logits = take(g, (uint64_t)SESSION_MAX_ROWS * (uint64_t)t->n_vocab, sizeof *g->logits);
    if (!g->logits || !there)
        return model_no_memory(g->be, e, "activations of %d rows: lower --chunk", g->rows);
    return work_new(&g->work, g->target, drafters, n, g->rows, &g->bytes, e);
}

static int new_hidden(struct engine *g, struct err *e)
{
    const uint64_t count = (uint64_t)g->rows * (uint64_t)g->target->d->n_embd;
    if (!g->o.hidden) return 0;
    g->hidden = (struct hidden){.fn = g->o.hidden,
                                .ctx = g->o.hidden_ctx,
                                .normed = take(g, count, sizeof(float)),
                                .host = mem_alloc(g->op->counts ? 1 : count * sizeof(float))};
    if (!g->hidden.host) return err_set(e, ERR_IO, "out of memory (hidden states of %d rows)", g->rows);
    return g->hidden.normed ? 0
                            : model_no_memory(g->be, e, "hidden states of %d rows: lower --chunk", g->rows);
}

static int new_positions(struct engine *g, struct err *e)
{
    const size_t n = (size_t)g->positions;
    g->d_pos = take(g, n, sizeof *g->d_pos);
    if (!g->d_pos) return model_no_memory(g->be, e, "%d positions: lower --ctx or -n", g->o.ctx);
    if (g->op->counts) return 0; /* however many: nothing is written */
    int32_t *pos = mem_alloc(n * sizeof *pos);
    if (!pos) return err_set(e, ERR_IO, "out of memory (%d positions: lower --ctx or -n)", g->o.ctx);
    for (int32_t i = 0; i < g->positions; i++) pos[i] = i;
    int rc = g->op->upload(g->be, g->d_pos, pos, n * sizeof *pos);
    mem_free(pos);
    return rc ? model_failed(g->target, "upload", rc, e) : 0;
}

static int new_synthetic(struct engine *g, struct err *e)
{
    const struct session_synthetic *x = g->o.synthetic;
    if (!x) return 0;
    if (x->n < g->o.ctx || x->slots != g->o.block - 1)
        return err_set(
            e, ERR_USAGE,
            "stated acceptance does not fit (expected %d positions or more of %d proposals, got %d "
            "of %d)",
            g->o.ctx, g->o.block - 1, x->n, x->slots);
    g->equal = take(g, (uint64_t)g->positions, sizeof *g->equal);
    if (!g->equal) return model_no_memory(g->be, e, "%d positions: lower --ctx or -n", g->o.ctx);
    const size_t n = (size_t)(x->n < g->positions ? x->n : g->positions);
    const int rc = g->op->upload(g->be, g->equal, x->equal, n * sizeof *x->equal);
    return rc ? model_failed(g->target, "upload", rc, e) : 0;
}

/* most, usual: rows of a source's block; 0 without a source. */
static int check_options(struct session_options *o, int32_t most, int32_t usual, struct err *e)
{
    if (!o->chunk) o->chunk = SESSION_CHUNK;
    if (!o->block) o->block = usual;
    if (o->ctx < 1 || o->ctx > SESSION_MAX_CTX)
        return err_set(e, ERR_USAGE, "context out of range (expected 1 to %d positions, got %d)",
                       SESSION_MAX_CTX, o->ctx);
    if (o->chunk < 1 || o->chunk > 1 << 20)
        return err_set(e, ERR_USAGE, "chunk out of range (expected 1 to %d, got %d)", 1 << 20, o->chunk);
    if (most && (o->block < 2 || o->block > most))
        return err_set(e, ERR_USAGE, "block out of range (expected 2 to %s%d%s, got %d)",
                       most == usual ? "the " : "", most,
                       most == usual ? " that the drafter was trained with" : "", o->block);
    if (o->draft_window < 0)
        return err_set(e, ERR_USAGE, "draft window out of range (expected 0 or more, got %d)",
                       o->draft_window);
    if (o->kv_host < 0)
        return err_set(e, ERR_USAGE, "layers in the host's memory out of range (expected 0 or more, got %d)",
                       o->kv_host);
    if (pages_check(o->pool, e)) return -1;
    if (o->pool && (o->kv_host || o->tree || o->sparse.on))
        return err_set(e, ERR_USAGE, "a pool of %d positions beside %s (expected one of them)", o->pool,
                       o->tree        ? "trees"
                       : o->sparse.on ? "sparse prompts"
                                      : "keys and values in the host's memory");
    if (o->tree < 0 || o->tree >= SESSION_MAX_ROWS)
        return err_set(e, ERR_USAGE, "tree out of range (expected 1 to %d proposals, got %d)",
                       SESSION_MAX_ROWS - 1, o->tree);
    if (o->tree && o->check_layers)
        return err_set(e, ERR_USAGE,
                       "layers are checked by rows of a chain (expected no tree of %d proposals)", o->tree);
    if (!kn_kv_known(o->kv.k) || !kn_kv_known(o->kv.v))
        return err_set(e, ERR_USAGE,
                       "cache type not supported (expected " KN_KV_TYPES ", got number %" PRIu32 ")",
                       kn_kv_known(o->kv.k) ? o->kv.v : o->kv.k);
    return 0;
}

/* Can a source have what it wants? */
static int check_source(const struct model *target, const struct source *x, const struct session_options *o,
                        struct err *e)
{
    const struct source_needs *n = &x->needs;
    if (x->rows < 2 || x->rows > SESSION_MAX_ROWS || !x->op->propose == !x->op->look)
        return err_set(e, ERR_USAGE, "source %s: %d rows, or not one way to propose (expected 2 to %d)",
                       x->op->name, x->rows, SESSION_MAX_ROWS);
    if (n->caches && o->pool)
        return err_set(e, ERR_USAGE,
                       "source %s: reads all of the target's keys and values (expected no pool)",
                       x->op->name);
    if (n->hidden && n->tapped)
        return err_set(
            e, ERR_USAGE,
            "source %s: wants the target's last hidden state beside its taps, which no pass leaves "
            "for it",
            x->op->name);
    return x->model ? desc_pair(target->d, x->model->d, e) : 0;
}

/* The list of them, and whether they can be together: who is asked on the host stands alone, and of what a
 * pass leaves there is one of a kind. */
static int check_sources(struct engine *g, struct err *e)
{
    int32_t tapped = 0, hidden = 0, layers = 0;
    for (struct source *x = g->source; x; x = x->beside) {
        if (g->n_sources == SESSION_SOURCES)
            return err_set(e, ERR_USAGE, "more than %d sources (source %s is one too many)", SESSION_SOURCES,
                           x->op->name);
        if (check_source(g->target, x, &g->o, e)) return -1;
        tapped += x->needs.tapped != NULL, hidden += x->needs.hidden;
        if (g->source->beside && (x->op->look || tapped > 1 || hidden > 1))
            return err_set(
                e, ERR_USAGE,
                "source %s cannot stand beside another (expected drafters, one that reads taps and one "
                "that reads the last hidden state)",
                x->op->name);
        g->by[g->n_sources++] = (struct session_source){.of = x,
                                                        .block = x->usual ? x->usual : x->rows,
                                                        .first_layer = layers,
                                                        .width = source_width(x, g->target->d)};
        if (x->model) layers += desc_draft_caches(x->model->d);
    }
    if (g->n_sources) g->by[0].block = g->o.block;
    return 0;
}

/* Is it one that can stand beside a source? */
static int check_look(const struct source *source, const struct source *x, struct err *e)
{
    const struct source_ops *op = x->op;
    if (x->rows >= 2 && x->rows <= SESSION_MAX_ROWS && op->look && !op->propose && !op->context &&
        !x->model && !x->needs.tapped && !x->needs.hidden && !x->needs.caches &&
        !(source && source->op->look))
        return 0;
    return err_set(e, ERR_USAGE,
                   "source %s cannot stand beside another: %d rows (expected 2 to %d, a source on the host "
                   "that needs nothing of passes, and no other on the host)",
                   op->name, x->rows, SESSION_MAX_ROWS);
}

/* Who can run and propose trees. */
static int check_tree(const struct engine *g, struct err *e)
{
    if (!g->o.tree) return 0;
    if (!g->op->follow)
        return err_set(e, ERR_USAGE, "%s: runs no trees of proposals (expected cpu)", g->op->name);
    bool any = false;
    for (int32_t i = 0; i < g->n_sources; i++) any |= g->by[i].of->tree;
    if (!any)
        return err_set(e, ERR_USAGE,
                       "source %s: offers no candidates for a tree (expected a drafter that does)",
                       g->source ? g->source->op->name : "none");
    if (g->o.synthetic && !g->o.synthetic->rank)
        return err_set(e, ERR_USAGE, "stated acceptance is that of chains (expected no tree of %d proposals)",
                       g->o.tree);
    return 0;
}

/* All that needs no memory of the device; g is what it was asked for, and has its defaults then. */
static int check(struct engine *g, struct err *e)
{
    const struct source *x = g->source;
    if (desc_drafts(g->target->d))
        return err_set(e, ERR_FORMAT, "the target is a drafter (expected another architecture, got %s)",
                       g->target->d->arch_name);
    if (g->o.look && check_look(x, g->o.look, e)) return -1;
    if (check_options(&g->o, x ? x->rows : 0, !x ? 0 : x->usual ? x->usual : x->rows, e)) return -1;
    return check_sources(g, e) || check_tree(g, e) || session_sparse_check(&g->o, g->target, e) ? -1 : 0;
}

static struct engine asked(struct model *target, struct source *source, const struct session_options *o)
{
    return (struct engine){
        .target = target, .source = source, .be = target->be, .op = kn_op(target->be), .o = *o};
}

int engine_check(struct model *target, struct source *source, struct session_options *o, struct err *e)
{
    struct engine g = asked(target, source, o);
    const int rc = check(&g, e);
    if (rc == 0) *o = g.o;
    return rc;
}

int engine_open(struct engine **out, struct model *target, struct source *source,
                const struct session_options *o, struct err *e)
{
    struct engine *g = mem_calloc(1, sizeof *g);
    *out = NULL;
    if (!g) return err_set(e, ERR_IO, "out of memory (an engine)");
    *g = asked(target, source, o);
    if (check(g, e)) goto fail;
    for (int32_t i = 0; i < g->n_sources && !g->o.draft_window && !g->draft_reach; i++)
        if (g->by[i].of->model) g->draft_reach = desc_draft_reach(g->by[i].of->model->d);
    if (g->o.draft_window == SESSION_DRAFT_ALL) g->o.draft_window = 0;
    /* No pass is longer than the context, however large the chunk. */
    const int32_t most = session_pass_rows(&g->o, g->op), ctx = g->o.ctx;
    g->rows = most < ctx ? most : ctx;
    if (g->rows < SESSION_MAX_ROWS) g->rows = SESSION_MAX_ROWS;
    g->positions = ctx + AHEAD_ROWS;
    if (new_work(g, e) || new_hidden(g, e) || new_positions(g, e) || new_synthetic(g, e)) goto fail;
    *out = g;
    return 0;
fail:
    engine_close(g);
    return -1;
}

void engine_close(struct engine *g)
{
    if (!g) return;
    while (g->idle) {
        struct session *s = g->idle;
        g->idle = s->next;
        session_slot_free(s);
    }
    void *device[] = {g->d_pos,          g->equal,   g->logits, g->hidden.normed,
                      g->sparse_scratch, g->here[0], g->here[1]};
    for (int32_t i = 0; i < g->n_sources; i++) g->op->free(g->be, g->by[i].features);
    for (size_t i = 0; i < sizeof device / sizeof device[0]; i++) g->op->free(g->be, device[i]);
    work_free(&g->work, g->be);
    mem_free(g->hidden.host);
    mem_free(g->own);
    mem_free(g);
}
