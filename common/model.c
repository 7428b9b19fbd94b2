/* model.c - load a model: description first, then every tensor through the backend's table. */
#include "model.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "mem.h"

struct loader {
    struct model *m;
    const struct kn_ops *op;
    struct err *e;
    model_progress_fn progress;
    void *ctx;
    uint64_t done, total; /* bytes */
};

int model_failed(const struct model *m, const char *what, int rc, struct err *e)
{
    enum err_class code = rc == KN_EMEM ? ERR_IO : rc == KN_EDEVICE ? ERR_DEVICE : ERR_FORMAT;
    return err_set(e, code, "%s: %s: %s", kn_op(m->be)->name, what, kn_message(m->be));
}

static const struct gguf_tensor *tensor(struct loader *l, const char *name)
{
    const struct gguf_tensor *t = gguf_tensor(l->m->file, name);
    if (!t) {
        err_set(l->e, ERR_FORMAT, "tensor '%s': is missing", name);
        return NULL;
    }
    l->done += t->bytes;
    if (l->progress) l->progress(l->ctx, l->done, l->total);
    return t;
}

static int load_weight(struct loader *l, struct kn_weight *w, unsigned use, const char *name)
{
    const struct gguf_tensor *t = tensor(l, name);
    if (!t) return -1;
    int rc = l->op->weight_load(l->m->be, w, t->type, t->ne[0], t->ne[1], t->data, use);
    if (rc == 0) return 0;
    model_failed(l->m, "load", rc, l->e);
    return err_prefix(l->e, "tensor '%s'", name);
}

/* A vector as float32 on the device, whatever it is stored as. */
static int load_vector(struct loader *l, float **v, int64_t n, const char *name)
{
    const struct gguf_tensor *t = tensor(l, name);
    if (!t) return -1;
    int rc = -1;
    float *host = mem_alloc((size_t)n * sizeof *host);
    *v = l->op->alloc(l->m->be, (size_t)n * sizeof **v);
    if (!host || !*v) {
        err_set(l->e, ERR_IO, "out of memory (tensor %s)", name);
        goto out;
    }
    if (kn_decode_row(t->type, t->data, host, n)) {
        err_set(l->e, ERR_FORMAT, "tensor '%s': type %s is not supported for a vector", name,
                kn_type_info(t->type)->name);
        goto out;
    }
    rc = l->op->upload(l->m->be, *v, host, (size_t)n * sizeof *host);
    if (rc) model_failed(l->m, "upload", rc, l->e);
out:
    mem_free(host);
    return rc ? -1 : 0;
}

static int load_layer(struct loader *l, int i)
{
    const struct desc *d = l->m->d;
    struct model_layer *y = &l->m->layer[i];
    const struct {
        const char *name;
        struct kn_weight *w;
    } weight[] = {
        {"attn_q", &y->wq},     {"attn_k", &y->wk}, {"attn_v", &y->wv},     {"attn_output", &y->wo},
        {"ffn_gate", &y->gate}, {"ffn_up", &y->up}, {"ffn_down", &y->down},
    };
    const struct {
        const char *name;
        float **v;
        int64_t n;
    } vector[] = {
        {"attn_norm", &y->attn_norm, d->n_embd},
        {"ffn_norm", &y->ffn_norm, d->n_embd},
        {"attn_q_norm", &y->q_norm, d->head_dim},
        {"attn_k_norm", &y->k_norm, d->head_dim},
    };
    char name[64];
    for (size_t j = 0; j < sizeof weight / sizeof weight[0]; j++) {
        snprintf(name, sizeof name, "blk.%d.%s.weight", i, weight[j].name);
        if (load_weight(l, weight[j].w, KN_USE_LINEAR, name)) return -1;
        l->m->bytes_step += gguf_tensor(l->m->file, name)->bytes;
    }
    for (size_t j = 0; j < sizeof vector / sizeof vector[0]; j++) {
        snprintf(name, sizeof name, "blk.%d.%s.weight", i, vector[j].name);
        if (load_vector(l, vector[j].v, vector[j].n, name)) return -1;
    }
    return 0;
}

static int load_rope(struct loader *l)
{
    const struct desc *d = l->m->d;
    int half = d->head_dim / 2, rc = -1;
    double *freq = mem_alloc((size_t)half * sizeof *freq);
    l->m->rope_freq = l->op->alloc(l->m->be, (size_t)half * sizeof *freq);
    if (!freq || !l->m->rope_freq) {
        err_set(l->e, ERR_IO, "out of memory (rope frequencies)");
        goto out;
    }
    for (int i = 0; i < half; i++) freq[i] = pow((double)d->rope_theta, -2.0 * i / d->head_dim);
    rc = l->op->upload(l->m->be, l->m->rope_freq, freq, (size_t)half * sizeof *freq);
    if (rc) model_failed(l->m, "upload", rc, l->e);
out:
    mem_free(freq);
    return rc ? -1 : 0;
}

/* Embedding and head. A tied head is the embedding, loaded for both uses; a drafter usually has neither. */
static int load_ends(struct loader *l)
{
    struct model *m = l->m;
    bool has_embed = gguf_tensor(m->file, "token_embd.weight"),
         has_head = gguf_tensor(m->file, "output.weight");
    unsigned use = KN_USE_ROWS | (m->d->tied_head ? KN_USE_LINEAR : 0);
    if (has_embed && load_weight(l, &m->embed, use, "token_embd.weight")) return -1;
    if (has_head && load_weight(l, &m->output, KN_USE_LINEAR, "output.weight")) return -1;
    m->head = has_head ? &m->output : m->d->tied_head ? &m->embed : NULL;
    if (m->head)
        m->bytes_step += gguf_tensor(m->file, has_head ? "output.weight" : "token_embd.weight")->bytes;
    return load_vector(l, &m->output_norm, m->d->n_embd, "output_norm.weight");
}

static int load_all(struct loader *l)
{
    struct model *m = l->m;
    if (load_ends(l) || load_rope(l)) return -1;
    if (m->d->arch == DESC_DFLASH) {
        if (load_weight(l, &m->fc, KN_USE_LINEAR, m->d->fc_name)) return -1;
        if (load_vector(l, &m->hidden_norm, m->d->n_embd, m->d->hidden_norm_name)) return -1;
        m->bytes_step += gguf_tensor(m->file, m->d->fc_name)->bytes;
    }
    for (int i = 0; i < m->d->n_layer; i++)
        if (load_layer(l, i)) return -1;
    return 0;
}

int model_load_gguf(struct model **out, struct gguf *g, struct kn_backend *be, const struct desc_override *o,
                    model_progress_fn progress, void *ctx, struct err *e)
{
    struct model *m = mem_calloc(1, sizeof *m);
    struct loader l = {.m = m, .op = kn_op(be), .e = e, .progress = progress, .ctx = ctx};
    *out = NULL;
    if (!m) {
        gguf_close(g);
        return err_set(e, ERR_IO, "out of memory (a model)");
    }
    m->be = be;
    m->file = g;
    if (desc_read(&m->d, g, o, e)) goto fail;
    if (m->d->head_dim % 16) { /* what attention and the rotation work in, on every device */
        err_set(e, ERR_FORMAT, "%s: heads of %d are not supported (expected a multiple of 16)",
                g->map.path ? g->map.path : "model", m->d->head_dim);
        goto fail;
    }
    m->layer = mem_calloc((size_t)m->d->n_layer, sizeof *m->layer);
    if (!m->layer) {
        err_set(e, ERR_IO, "out of memory (layers of a model)");
        goto fail;
    }
    for (uint64_t i = 0; i < g->n_tensors; i++) l.total += g->tensor[i].bytes;
    if (load_all(&l)) {
        err_prefix(e, "%s", g->map.path ? g->map.path : "model");
        goto fail;
    }
    *out = m;
    return 0;
fail:
    model_free(m);
    return -1;
}

int model_load(struct model **m, const char *path, struct kn_backend *be, const struct desc_override *o,
               model_progress_fn progress, void *ctx, struct err *e)
{
    struct gguf *g;
    *m = NULL;
    if (gguf_open(&g, path, e)) return -1;
    return model_load_gguf(m, g, be, o, progress, ctx, e);
}

void model_free(struct model *m)
{
    if (!m) return;
    const struct kn_ops *op = kn_op(m->be);
    for (int i = 0; m->layer && i < m->d->n_layer; i++) {
        struct model_layer *y = &m->layer[i];
        struct kn_weight *w[] = {&y->wq, &y->wk, &y->wv, &y->wo, &y->gate, &y->up, &y->down};
        float *v[] = {y->attn_norm, y->ffn_norm, y->q_norm, y->k_norm};
        for (size_t j = 0; j < sizeof w / sizeof w[0]; j++) op->weight_free(m->be, w[j]);
        for (size_t j = 0; j < sizeof v / sizeof v[0]; j++) op->free(m->be, v[j]);
    }
    op->weight_free(m->be, &m->embed);
    op->weight_free(m->be, &m->output);
    op->weight_free(m->be, &m->fc);
    op->free(m->be, m->output_norm);
    op->free(m->be, m->hidden_norm);
    op->free(m->be, m->rope_freq);
    mem_free(m->layer);
    desc_free(m->d);
    gguf_close(m->file);
    mem_free(m);
}

int model_logits(const struct model *m, const struct model *target, const float *x, int32_t n, float *logits,
                 struct err *e)
{
    const struct kn_ops *op = kn_op(m->be);
    const struct kn_weight *head = m->head ? m->head : target->head;
    const struct desc *cap = m->d->has_softcap ? m->d : target->d;
    int rc = op->norm_linear(m->be, &logits, &head, 1, x, m->output_norm, m->d->rms_eps, n);
    if (rc == 0 && cap->has_softcap && cap->softcap > 0)
        rc = op->softcap(m->be, logits, (int64_t)n * head->n_out, cap->softcap);
    return rc ? model_failed(m, "head", rc, e) : 0;
}
