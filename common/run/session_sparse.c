/* session_sparse.c - what block-sparse prompts keep of a stream: means of blocks a layer, and what was kept.
 */
#include <string.h>

#include "../base/mem.h"
#include "session_impl.h"

enum { SINK = 2, WINDOW = 4 }; /* blocks that are always attended to: the first, and the last */

static bool full(const struct desc_layer *y)
{
    return !y->recurrent && !y->window && y->causal;
}

int32_t session_sparse_layers(const struct desc *d)
{
    int32_t n = 0;
    for (int i = 0; i < d->n_layer; i++) n += full(&d->layer[i]);
    return n;
}

static void *take(struct session *s, uint64_t bytes, uint64_t *of)
{
    void *p = s->op->alloc(s->be, bytes);
    if (p) *of += bytes;
    return p;
}

/* What the backend has no form for: asked of a cache of one block. */
static int check_layers(const struct session_options *o, const struct model *m, struct err *e)
{
    int32_t seen = 0;
    for (int i = 0; i < m->d->n_layer; i++) {
        const struct desc_layer *y = &m->d->layer[i];
        const struct kn_kv kv = {.type = session_kv(o, false, i),
                                 .cap = kn_kv_room(KN_SPARSE_BLOCK),
                                 .n_head_kv = y->n_head_kv,
                                 .head_dim = y->head_dim};
        struct kn_sparse_room room;
        if (!full(y) || seen++ < o->sparse.dense) continue;
        const int rc = kn_op(m->be)->sparse_room(m->be, KN_SPARSE_BLOCK, y->n_head, &kv, &room);
        if (rc) return model_failed(m, "sparse attention", rc, e);
    }
    return 0;
}

int session_sparse_check(const struct session_options *o, const struct model *target, struct err *e)
{
    const struct kn_ops *op = kn_op(target->be);
    const int32_t layers = session_sparse_layers(target->d);
    if (!o->sparse.on) return 0;
    if (!op->sparse_room)
        return err_set(e, ERR_USAGE, "%s: has no sparse attention (expected no --sparse)", op->name);
    if (o->pool)
        return err_set(e, ERR_USAGE, "--sparse beside a pool of %d positions (expected one of them)",
                       o->pool);
    if (!(o->sparse.alpha >= 0))
        return err_set(e, ERR_USAGE, "--sparse: out of range (expected 0 or more, got %g)",
                       (double)o->sparse.alpha);
    if (o->sparse.dense < 0 || o->sparse.dense > layers)
        return err_set(
            e, ERR_USAGE,
            "--sparse-dense: out of range (expected 0 to the %d layers that see every position, got "
            "%d)",
            layers, o->sparse.dense);
    if (o->chunk % KN_SPARSE_BLOCK)
        return err_set(e, ERR_USAGE,
                       "--chunk: a sparse prompt runs in whole blocks (expected a multiple of %d, "
                       "got %d)",
                       KN_SPARSE_BLOCK, o->chunk);
    return check_layers(o, target, e);
}

static int new_layer(struct session *s, int i, size_t *scratch, struct err *e)
{
    const struct desc_layer *y = &s->target->d->layer[i];
    struct kn_sparse *x = &s->sparse[i];
    struct kn_sparse_room room;
    const int rc = s->op->sparse_room(s->be, s->g->rows, y->n_head, &s->kv[i], &room);
    if (rc) return model_failed(s->target, "sparse attention", rc, e);
    *x = (struct kn_sparse){.alpha = s->o.sparse.alpha,
                            .sink = SINK,
                            .window = WINDOW,
                            .mean = room.mean,
                            .kept = s->sparse_kept + 2 * i,
                            .spread = s->o.sparse.spread,
                            .density = s->o.sparse.density};
    x->mean.k = take(s, kn_kv_bytes(&x->mean, x->mean.type.k), &s->bytes);
    x->mean.v = take(s, kn_kv_bytes(&x->mean, x->mean.type.v), &s->bytes);
    if (room.scratch > *scratch) *scratch = room.scratch;
    return x->mean.k && x->mean.v ? 0
                                  : model_no_memory(s->be, e, "means of blocks, layer %d: lower --ctx", i);
}

int session_sparse_new(struct session *s, struct err *e)
{
    const struct desc *d = s->target->d;
    const uint64_t n = (uint64_t)d->n_layer;
    size_t scratch = 0;
    int32_t seen = 0;
    if (!s->o.sparse.on) return 0;
    s->sparse = mem_calloc(n, sizeof *s->sparse);
    s->layer_ns = mem_calloc(n, sizeof *s->layer_ns);
    if (!s->sparse || !s->layer_ns) return err_set(e, ERR_IO, "out of memory (sparse layers)");
    s->sparse_kept = take(s, 2 * n * sizeof *s->sparse_kept, &s->bytes);
    s->stamps = take(s, (n + 1) * sizeof *s->stamps, &s->bytes);
    if (!s->sparse_kept || !s->stamps) return model_no_memory(s->be, e, "sparse layers");
    for (int i = 0; i < d->n_layer; i++)
        if (full(&d->layer[i]) && seen++ >= s->o.sparse.dense && new_layer(s, i, &scratch, e)) return -1;
    if (!s->g->sparse_scratch && scratch) {
        s->g->sparse_scratch = take(s, scratch, &s->g->bytes);
        if (!s->g->sparse_scratch)
            return model_no_memory(s->be, e, "sparse attention: lower --chunk or --ctx");
    }
    for (int i = 0; i < d->n_layer; i++) s->sparse[i].scratch = s->g->sparse_scratch;
    return 0;
}

void session_sparse_free(struct session *s)
{
    for (int i = 0; s->sparse && i < s->target->d->n_layer; i++) {
        s->op->free(s->be, s->sparse[i].mean.k);
        s->op->free(s->be, s->sparse[i].mean.v);
    }
    s->op->free(s->be, s->sparse_kept);
    s->op->free(s->be, s->stamps);
    mem_free(s->sparse);
    mem_free(s->layer_ns);
}

/* What stands in the counters belongs to the stream before. */
int session_sparse_reset(struct session *s, struct err *e)
{
    const size_t n = (size_t)s->target->d->n_layer, bytes = 2 * n * sizeof *s->sparse_kept;
    if (!s->sparse) return 0;
    uint64_t *zero = mem_calloc(1, bytes);
    if (!zero) return err_set(e, ERR_IO, "out of memory (sparse layers)");
    const int rc = s->op->upload(s->be, s->sparse_kept, zero, bytes);
    mem_free(zero);
    memset(s->layer_ns, 0, n * sizeof *s->layer_ns);
    session_sparse_made(s, 0);
    return rc ? model_failed(s->target, "upload", rc, e) : 0;
}

void session_sparse_made(struct session *s, int32_t positions)
{
    for (int i = 0; s->sparse && i < s->target->d->n_layer; i++)
        s->sparse[i].made = positions / KN_SPARSE_BLOCK;
}

/* A pass that begins inside a block ends with it, and whole blocks leave the rest to a pass of its own. */
int32_t session_sparse_pass(const struct session *s, int32_t rows)
{
    const int32_t inside = s->n_past % KN_SPARSE_BLOCK;
    if (!s->sparse) return rows;
    if (inside) return rows < KN_SPARSE_BLOCK - inside ? rows : KN_SPARSE_BLOCK - inside;
    return rows > KN_SPARSE_BLOCK ? rows - rows % KN_SPARSE_BLOCK : rows;
}

bool session_sparse_takes(const struct session *s, int32_t first_pos, int32_t rows)
{
    return s->sparse && first_pos % KN_SPARSE_BLOCK == 0 && rows % KN_SPARSE_BLOCK == 0;
}

int session_sparse_timed(struct session *s, struct err *e)
{
    const size_t n = (size_t)s->target->d->n_layer;
    uint64_t at[DESC_MAX_LAYERS + 1];
    if (!s->sparse) return 0;
    const int rc = s->op->download(s->be, at, s->stamps, (n + 1) * sizeof *at);
    if (rc) return model_failed(s->target, "download", rc, e);
    for (size_t i = 0; i < n; i++) s->layer_ns[i] += (double)(at[i + 1] - at[i]);
    return 0;
}

int session_sparse_kept(struct session *s, uint64_t *kept, struct err *e)
{
    const size_t n = (size_t)s->target->d->n_layer;
    memset(kept, 0, 2 * n * sizeof *kept);
    if (!s->sparse) return 0;
    const int rc = s->op->download(s->be, kept, s->sparse_kept, 2 * n * sizeof *kept);
    return rc ? model_failed(s->target, "download", rc, e) : 0;
}
