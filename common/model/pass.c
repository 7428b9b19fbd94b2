/* pass.c - what is around a family's blocks and is the same for all: embedding, rope tables, taps, checks,
 * head. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "model.h"

static const struct model_family *const families[] = {&family_qwen3,     &family_qwen3moe, &family_qwen35,
                                                      &family_qwen35moe, &family_llama,    &family_gemma4};

const struct model_family *model_family_of(enum desc_arch arch)
{
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++)
        if (families[i]->arch == arch) return families[i];
    return NULL;
}

int model_failed(const struct model *m, const char *what, int rc, struct err *e)
{
    bool memory =
        rc == KN_EMEM && !kn_op(m->be)->memory; /* the host's; a device's own is the device's failure */
    enum err_class code = memory ? ERR_IO : rc == KN_EDEVICE || rc == KN_EMEM ? ERR_DEVICE : ERR_FORMAT;
    return err_set(e, code, "%s: %s: %s", kn_op(m->be)->name, what, kn_message(m->be));
}

int model_no_memory(struct kn_backend *be, struct err *e, const char *fmt, ...)
{
    char what[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    if (!kn_op(be)->memory) return err_set(e, ERR_IO, "out of memory (%s)", what);
    return err_set(e, ERR_DEVICE, "%s: %s: %s", kn_op(be)->name, what, kn_message(be));
}

static int leave_taps(const struct model *m, const struct pass *p, int32_t block)
{
    const struct kn_ops *op = kn_op(m->be);
    int64_t width = m->d->n_embd;
    int rc = 0;
    for (int32_t t = 0; p->features && t < p->tapped->n_taps && rc == 0; t++)
        if (p->tapped->taps[t] == block)
            rc = op->tap(m->be, p->features, p->tapped->n_features, t * width, p->w->x, p->n, width);
    return rc;
}

int model_fault(const struct fault *f, struct err *e)
{
    if (f->layer < 0) return err_set(e, ERR_DEVICE, "position %d: NaN or Inf in the embedding", f->pos);
    return err_set(e, ERR_DEVICE, "position %d: NaN or Inf in the output of layer %d, the first that has one",
                   f->pos, f->layer);
}

static int check_block(const struct model *m, const struct pass *p, int32_t block, struct err *e)
{
    int32_t bad;
    int rc = kn_op(m->be)->find_bad(m->be, p->w->x, p->n, m->d->n_embd, &bad);
    if (rc) return model_failed(m, "find_bad", rc, e);
    if (bad < 0) return 0;
    const struct fault f = {p->first_pos + bad, block};
    if (!p->fault) return model_fault(&f, e);
    if (f.pos < p->fault->pos) *p->fault = f;
    return 0;
}

/* Show what stands in x as a plane. */
static int show(const struct model *m, const struct pass *p, int32_t plane, struct err *e)
{
    const struct kn_ops *op = kn_op(m->be);
    const struct hidden *h = p->hidden;
    const float *x = p->w->x;
    int rc = 0;
    if (!h) return 0;
    if (plane == m->d->n_layer) {
        rc = op->rms_norm(m->be, h->normed, x, m->output_norm, p->n, m->d->n_embd, m->d->rms_eps);
        x = h->normed;
    }
    if (rc == 0) rc = op->download(m->be, h->host, x, (size_t)p->n * (size_t)m->d->n_embd * sizeof *h->host);
    return rc ? model_failed(m, "hidden states", rc, e)
              : h->fn(h->ctx, plane, h->host, p->n, p->first_pos, e);
}

struct pass_heads pass_heads(const struct model *m, const struct pass *p, int32_t i)
{
    const struct desc *d = m->d;
    const struct desc_layer *l = &d->layer[i];
    const struct model_layer *y = &m->layer[i];
    const struct desc_rope *r = &d->rope[l->rope];
    struct work *w = p->w;
    const int32_t *pos = p->places && !l->window ? p->places : p->pos;
    return (struct pass_heads){
        .rope = {.q = w->q,
                 .k = w->k,
                 .v = w->v,
                 .q_norm = y->q_norm,
                 .k_norm = y->k_norm,
                 .table = w->rope[l->rope],
                 .pos = p->tree ? p->rows : pos,
                 .n = p->n,
                 .n_head = l->n_head,
                 .n_rot = r->n_rot,
                 .interleaved = r->interleaved,
                 .eps = d->rms_eps,
                 .kv = p->tree ? &p->tail[i] : &p->kv[i]},
        .attention = {.q = w->q,
                      .out = w->attn,
                      .kv = &p->kv[i],
                      .pos = pos,
                      .n = p->n,
                      .n_head = l->n_head,
                      .scale = 1.0f / sqrtf((float)l->head_dim),
                      .causal = l->causal,
                      .window = l->window ? l->window : p->reach,
                      .first = p->visible_from,
                      .tree = p->tree,
                      .tail = p->tree ? &p->tail[i] : NULL,
                      .sparse = p->sparse && p->sparse[i].mean.k ? &p->sparse[i] : NULL,
                      .sinks = y->sinks,
                      .then = &y->wo},
        .seen = p->seen && p->seen->wanted[i] && p->first_pos + p->n > p->seen->from ? p->seen : NULL,
        .first_pos = p->first_pos,
        .here = p->here && p->here[i].k ? &p->here[i] : NULL,
        .queries = p->queries ? p->queries + i * p->n_queries : NULL};
}

/* What the rows at and behind seen->from attend to. */
static int see(const struct model *m, const struct pass_heads *h)
{
    const struct pass_seen *l = h->seen;
    const struct kn_attention *a = &h->attention;
    const int64_t width = (int64_t)a->n_head * a->kv->head_dim;
    int rc = 0;
    for (int32_t pos = l->from > h->first_pos ? l->from : h->first_pos;
         rc == 0 && pos < h->first_pos + a->n;) {
        const int32_t row = pos - h->first_pos, left = a->n - row;
        const struct kn_attention_weights w = {.q = a->q + row * width,
                                               .kv = a->kv,
                                               .pos = a->pos + row,
                                               .n = left < PASS_SEEN_ROWS ? left : PASS_SEEN_ROWS,
                                               .n_head = a->n_head,
                                               .n_keys = l->n_keys,
                                               .scale = a->scale,
                                               .pool = l->pool,
                                               .scratch = l->scratch,
                                               .out = l->out + (int64_t)(pos - l->from) * l->n_keys};
        rc = kn_op(m->be)->attention_weights(m->be, &w);
        pos += w.n;
    }
    return rc;
}

/* Of keys and values in the host's memory: what is there comes, and what is new goes. */
static int attend_host(const struct model *m, const struct pass_heads *h)
{
    const struct kn_ops *op = kn_op(m->be);
    const struct kn_kv *there = h->attention.kv;
    struct pass_heads x = *h;
    x.here = NULL;
    x.attention.kv = h->here;
    if (!h->attention.tree) x.rope.kv = h->here;
    int rc = op->carry(m->be, h->here, there, h->attention.pos, 0);
    if (rc == 0) rc = pass_attend(m, &x);
    return rc || h->attention.tree ? rc : op->carry(m->be, there, h->here, h->attention.pos, h->attention.n);
}

int pass_attend(const struct model *m, const struct pass_heads *h)
{
    const struct kn_ops *op = kn_op(m->be);
    if (h->here) return attend_host(m, h);
    if (op->attend && !h->queries && !h->seen) return op->attend(m->be, &h->rope, &h->attention);
    int rc = op->rope_store(m->be, &h->rope);
    if (rc == 0 && h->seen) rc = see(m, h);
    if (rc == 0 && h->queries)
        rc = op->copy(m->be, h->queries, h->rope.q,
                      (size_t)h->rope.n_head * (size_t)h->attention.kv->head_dim * sizeof *h->queries);
    return rc ? rc : op->attention(m->be, &h->attention);
}

bool pass_shares(const struct model *m, int32_t i)
{
    const struct kn_ops *op = kn_op(m->be);
    const struct model_layer *y = &m->layer[i];
    return op->mixture && op->mixture_shares(&y->gate_x, &y->gate_s) &&
           op->mixture_shares(&y->up_x, &y->up_s) && op->mixture_shares(&y->down_x, &y->down_s);
}

int pass_experts(const struct model *m, const struct pass *p, int32_t i, const struct pass_mixture *x)
{
    const struct kn_ops *op = kn_op(m->be);
    const struct desc *d = m->d;
    const struct model_layer *y = &m->layer[i];
    struct work *w = p->w;
    const int32_t used = d->n_expert_used;
    const struct kn_weight *router = &y->router;
    const struct kn_route route = {.logits = w->router,
                                   .n = p->n,
                                   .n_expert = d->n_expert,
                                   .n_used = used,
                                   .renorm = true,
                                   .scale = d->expert_weights_scale,
                                   .expert_scale = y->expert_scale,
                                   .ids = w->expert,
                                   .weights = w->expert_w};
    if (op->mixture) {
        struct kn_mixture all = {.route = route,
                                 .x = w->x,
                                 .norm = x->norm,
                                 .eps = d->rms_eps,
                                 .act = x->act,
                                 .router = router,
                                 .router_norm = x->router_norm,
                                 .logits = w->router,
                                 .gate = &y->gate_x,
                                 .up = &y->up_x,
                                 .down = &y->down_x,
                                 .h = w->expert_ff,
                                 .out = x->out,
                                 .add = x->add};
        if (x->shared) {
            all.shared[0] = &y->gate_s, all.shared[1] = &y->up_s, all.shared[2] = &y->down_s;
            all.shared_gate = &y->shared;
            all.shared_logits = w->shared;
        }
        return op->mixture(m->be, &all);
    }
    int rc = op->norm_linear(m->be, &w->router, &router, 1, w->x, x->router_norm, d->rms_eps, p->n);
    if (rc == 0) rc = op->route(m->be, &route);
    if (rc == 0)
        rc = op->experts_gated(m->be, w->expert_ff, &y->gate_x, &y->up_x, w->x, x->norm, d->rms_eps, x->act,
                               w->expert, p->n, used);
    return rc ? rc
              : op->experts_down(m->be, x->out, &y->down_x, w->expert_ff, w->expert, w->expert_w, p->n, used,
                                 x->add);
}

int model_pass(const struct model *m, const struct pass *p, struct err *e)
{
    const struct kn_ops *op = kn_op(m->be);
    const struct desc *d = m->d;
    int rc = op->embed(m->be, p->w->x, &m->embed, p->ids, p->n, d->embedding_scale);
    for (int32_t i = 0; i < d->n_rope && rc == 0; i++)
        rc = op->rope_table(m->be, p->w->rope[i], p->pos, p->origin, p->n, m->rope_freq[i], d->rope[i].n_rot);
    if (rc == 0) rc = leave_taps(m, p, -1);
    if (rc) return model_failed(m, "embedding", rc, e);
    if ((p->check && check_block(m, p, -1, e)) || show(m, p, 0, e)) return -1;
    for (int32_t i = 0; i < d->n_layer; i++) {
        rc = p->stamps ? op->stamp(m->be, p->stamps + i) : 0;
        if (rc == 0) rc = m->family->block(m, p, i);
        if (rc == 0) rc = leave_taps(m, p, i);
        if (rc) return model_failed(m, "forward pass", rc, e);
        if ((p->check && check_block(m, p, i, e)) || show(m, p, i + 1, e)) return -1;
    }
    rc = p->stamps ? op->stamp(m->be, p->stamps + d->n_layer) : 0;
    return rc ? model_failed(m, "forward pass", rc, e) : 0;
}

int model_logits(const struct model *m, const struct model *target, const float *x, int32_t n, float *logits,
                 struct err *e)
{
    return model_logits_beside(m, target, x, n, logits, NULL, NULL, e);
}

int model_logits_beside(const struct model *m, const struct model *target, const float *x, int32_t n,
                        float *logits, const struct kn_weight *w, float *out, struct err *e)
{
    const struct kn_ops *op = kn_op(m->be);
    const struct kn_weight *head = m->head ? m->head : target->head, *all[] = {head, w};
    float *to[] = {logits, out};
    const struct desc *cap = m->d->has_softcap ? m->d : target->d;
    int rc = op->norm_linear(m->be, to, all, w ? 2 : 1, x, m->output_norm, m->d->rms_eps, n);
    if (rc == 0 && cap->has_softcap && cap->softcap > 0)
        rc = op->softcap(m->be, logits, (int64_t)n * head->n_out, cap->softcap);
    return rc ? model_failed(m, "head", rc, e) : 0;
}
