/* model_load.c - load a model: description first, then every tensor through the backend's table.
 *
 * The description has checked that a family's tensors are all there and that nothing else is, so one list of
 * names serves every family: what the file has of it is loaded into its field. */
#include <math.h>
#include <omp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include "../base/io.h"
#include "../base/mem.h"
#include "../describe/dialect.h"
#include "draft.h"

struct loader {
    struct model *m;
    const struct kn_ops *op;
    struct err *e;
    model_progress_fn progress;
    void *ctx;
    uint64_t done, total; /* bytes */
};

/* ---- fields ---- */

enum kind { LINEAR, VECTOR, ROUTER_SCALE, EXPERTS };

struct field {
    const char *name; /* after "blk.N." */
    size_t at;        /* in struct model_layer */
    enum kind kind;
};
#define AT(f) offsetof(struct model_layer, f)
static const struct field fields[] = {
    {"attn_norm.weight", AT(attn_norm), VECTOR},
    {"ffn_norm.weight", AT(ffn_norm), VECTOR},
    {"post_attention_norm.weight", AT(post_attn_norm), VECTOR},
    {"post_ffw_norm.weight", AT(post_ffw_norm), VECTOR},
    {"post_ffw_norm_1.weight", AT(post_ffw_norm_1), VECTOR},
    {"post_ffw_norm_2.weight", AT(post_ffw_norm_2), VECTOR},
    {"pre_ffw_norm_2.weight", AT(pre_ffw_norm_2), VECTOR},
    {"attn_q_norm.weight", AT(q_norm), VECTOR},
    {"attn_k_norm.weight", AT(k_norm), VECTOR},
    {"attn_sinks.weight", AT(sinks), VECTOR},
    {"attn_q.weight", AT(wq), LINEAR}, /* with the gates: load_gated_query */
    {"attn_k.weight", AT(wk), LINEAR},
    {"attn_v.weight", AT(wv), LINEAR},
    {"attn_output.weight", AT(wo), LINEAR},
    {"ffn_gate.weight", AT(gate), LINEAR},
    {"ffn_up.weight", AT(up), LINEAR},
    {"ffn_down.weight", AT(down), LINEAR},
    {"ffn_gate_inp.weight", AT(router), LINEAR},
    {"ffn_gate_inp.scale", AT(router_scale), ROUTER_SCALE},
    {"ffn_down_exps.scale", AT(expert_scale), VECTOR},
    {"ffn_gate_exps.weight", AT(gate_x), EXPERTS}, /* fused with up: load_fused_experts */
    {"ffn_up_exps.weight", AT(up_x), EXPERTS},
    {"ffn_down_exps.weight", AT(down_x), EXPERTS},
    {"ffn_gate_shexp.weight", AT(gate_s), LINEAR},
    {"ffn_up_shexp.weight", AT(up_s), LINEAR},
    {"ffn_down_shexp.weight", AT(down_s), LINEAR},
    {"ffn_gate_inp_shexp.weight", AT(shared), LINEAR},
    {"attn_qkv.weight", AT(qkv), LINEAR},
    {"attn_gate.weight", AT(z), LINEAR},
    {"ssm_alpha.weight", AT(alpha), LINEAR},
    {"ssm_beta.weight", AT(beta), LINEAR},
    {"ssm_out.weight", AT(ssm_out), LINEAR},
    {"ssm_conv1d.weight", AT(conv), VECTOR},
    {"ssm_a", AT(a), VECTOR},
    {"ssm_dt.bias", AT(dt), VECTOR},
    {"ssm_norm.weight", AT(ssm_norm), VECTOR},
    {"attn_conv_base", AT(conv_base[0]), VECTOR},
    {"ffn_conv_base", AT(conv_base[1]), VECTOR},
    {"attn_conv_proj.weight", AT(conv_proj[0]), LINEAR},
    {"ffn_conv_proj.weight", AT(conv_proj[1]), LINEAR},
};
enum { N_FIELDS = sizeof fields / sizeof fields[0] };

/* Matrices of a drafter that are no layer's. */
static const struct {
    const char *name;
    size_t at; /* in struct model */
    unsigned use;
} parts[] = {
    {"selector_hidden.weight", offsetof(struct model, selector.hidden), KN_USE_LINEAR},
    {"selector_predecessor.weight", offsetof(struct model, selector.before), KN_USE_ROWS},
    {"selector_successor.weight", offsetof(struct model, selector.after), KN_USE_ROWS},
};
enum { N_PARTS = sizeof parts / sizeof parts[0] };

static struct kn_weight *part_at(struct model *m, int i)
{
    return (struct kn_weight *)(void *)((char *)m + parts[i].at);
}

static struct kn_weight *weight_at(struct model_layer *y, const struct field *f)
{
    return (struct kn_weight *)(void *)((char *)y + f->at);
}

static float **vector_at(struct model_layer *y, const struct field *f)
{
    return (float **)(void *)((char *)y + f->at);
}

/* ---- tensors ---- */

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

static int loaded(struct loader *l, const struct gguf_tensor *t, int rc)
{
    if (rc == 0) return 0;
    model_failed(l->m, "load", rc, l->e);
    return err_prefix(l->e, "tensor '%s'", t->name);
}

/* A tensor is loaded once, so there is room (model_load_gguf). */
static void remember(struct loader *l, const struct kn_weight *w, const struct gguf_tensor *t)
{
    l->m->matrix[l->m->n_matrix++] = (struct model_matrix){w, t->name};
}

static int load_times(struct loader *l, struct kn_weight *w, unsigned use, const struct gguf_tensor *t,
                      const char *scale);

static int load_weight(struct loader *l, struct kn_weight *w, unsigned use, const char *name)
{
    const struct gguf_tensor *t = tensor(l, name);
    char scale[80];
    if (!t) return -1;
    if (use & KN_USE_LINEAR) remember(l, w, t);
    snprintf(scale, sizeof scale, "%.*s.scale", (int)(strlen(name) - strlen(".weight")), name);
    if (l->m->d->arch == DESC_DFLASH && gguf_tensor(l->m->file, scale))
        return load_times(l, w, use, t, scale);
    return loaded(l, t, l->op->weight_load(l->m->be, w, t->type, t->ne[0], t->ne[1], t->data, use));
}

static int load_experts(struct loader *l, struct kn_weight *w, const char *name)
{
    const struct gguf_tensor *t = tensor(l, name);
    if (!t) return -1;
    remember(l, w, t);
    return loaded(l, t,
                  l->op->experts_load(l->m->be, w, t->type, t->ne[0], t->ne[1], (int32_t)t->ne[2], t->data));
}

/* Rows of t in runs: of every 2 * run rows, the first run (half 0) or the second (half 1), side by side in a
 * copy, which the caller frees. */
static uint8_t *half_rows(struct loader *l, const struct gguf_tensor *t, int64_t run, int half)
{
    size_t bytes = (size_t)run * kn_row_bytes(t->type, t->ne[0]), n = t->bytes / (2 * bytes);
    uint8_t *copy = mem_alloc(l->op->counts ? 1 : t->bytes / 2 + 1);
    if (l->op->counts) n = 0;
    if (!copy) err_set(l->e, ERR_IO, "out of memory (tensor %s)", t->name);
    if (!copy) n = 0;
    /* One thread copies, and takes the pages of, 2.5 GB/s. */
    const int threads = t->bytes < ((uint64_t)32 << 20) ? 1
                        : omp_get_num_procs() < 8       ? omp_get_num_procs()
                                                        : 8;
    io_team_begin();
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (size_t i = 0; i < n; i++) memcpy(copy + i * bytes, t->data + (2 * i + (size_t)half) * bytes, bytes);
    io_team_end();
    return copy;
}

/* attn_q holds [q | gate] a head. */
static int load_gated_query(struct loader *l, int i, const char *name)
{
    struct model_layer *y = &l->m->layer[i];
    struct kn_weight *w[] = {&y->wq, &y->wg};
    const struct gguf_tensor *t = tensor(l, name);
    if (t) remember(l, w[0], t);
    for (int half = 0; half < 2; half++) {
        uint8_t *rows = t ? half_rows(l, t, l->m->d->layer[i].head_dim, half) : NULL;
        if (!rows) return -1;
        int rc = l->op->weight_load(l->m->be, w[half], t->type, t->ne[0], t->ne[1] / 2, rows, KN_USE_LINEAR);
        mem_free(rows);
        if (loaded(l, t, rc)) return -1;
    }
    return 0;
}

/* ffn_gate_up_exps holds [gate; up] an expert. */
static int load_fused_experts(struct loader *l, int i, const char *name)
{
    struct model_layer *y = &l->m->layer[i];
    struct kn_weight *w[] = {&y->gate_x, &y->up_x};
    const struct gguf_tensor *t = tensor(l, name);
    if (t) remember(l, w[0], t);
    for (int half = 0; half < 2; half++) {
        uint8_t *rows = t ? half_rows(l, t, l->m->d->n_ff_exp, half) : NULL;
        if (!rows) return -1;
        int rc =
            l->op->experts_load(l->m->be, w[half], t->type, t->ne[0], t->ne[1] / 2, (int32_t)t->ne[2], rows);
        mem_free(rows);
        if (loaded(l, t, rc)) return -1;
    }
    return 0;
}

/* All of a tensor as float32 on the host, whatever it is stored as; the caller frees it. */
static float *values(struct loader *l, const char *name, int64_t *n)
{
    const struct gguf_tensor *t = tensor(l, name);
    if (!t) return NULL;
    *n = t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
    float *host = mem_alloc((size_t)*n * sizeof *host);
    if (!host) {
        err_set(l->e, ERR_IO, "out of memory (tensor %s)", name);
    } else if (kn_decode_row(t->type, t->data, host, *n)) {
        err_set(l->e, ERR_FORMAT, "tensor '%s': type %s is not supported for a vector", name,
                kn_type_info(t->type)->name);
        mem_free(host);
        host = NULL;
    }
    return host;
}

/* times: a factor on the file's values. */
static int load_scaled(struct loader *l, float **v, const char *name, float times)
{
    int64_t n = 0;
    float *host = values(l, name, &n);
    int rc = -1;
    if (!host) return -1;
    for (int64_t i = 0; i < n; i++) host[i] *= times;
    *v = l->op->alloc(l->m->be, (size_t)n * sizeof **v);
    if (!*v) {
        model_no_memory(l->m->be, l->e, "tensor %s", name);
        goto out;
    }
    rc = l->op->upload(l->m->be, *v, host, (size_t)n * sizeof *host);
    if (rc) model_failed(l->m, "upload", rc, l->e);
out:
    mem_free(host);
    return rc ? -1 : 0;
}

static int load_vector(struct loader *l, float **v, const char *name)
{
    return load_scaled(l, v, name, 1);
}

/* A matrix with a scale beside it: its values times that, as float32, since the blocks of most types have no
 * place for another factor. */
static int load_times(struct loader *l, struct kn_weight *w, unsigned use, const struct gguf_tensor *t,
                      const char *scale)
{
    const size_t row = kn_row_bytes(t->type, t->ne[0]), width = (size_t)t->ne[0];
    const int64_t n_rows = l->op->counts ? 0 : t->ne[1];
    int64_t one = 0;
    float *times = values(l, scale, &one), *all = NULL;
    int rc = -1;
    if (!times) return -1;
    if (!isfinite(times[0]) || times[0] == 0) {
        err_set(l->e, ERR_FORMAT, "tensor '%s': is no scale (expected a finite number other than 0, got %g)",
                scale, (double)times[0]);
        goto out;
    }
    if (!kn_type_info(t->type)->can_decode) {
        err_set(l->e, ERR_FORMAT, "tensor '%s': type %s is not supported with a scale", t->name,
                kn_type_info(t->type)->name);
        goto out;
    }
    all = mem_alloc((size_t)n_rows * width * sizeof *all + 1);
    if (!all) {
        err_set(l->e, ERR_IO, "out of memory (tensor %s, with its scale)", t->name);
        goto out;
    }
    for (int64_t i = 0; i < n_rows; i++) {
        float *x = all + (size_t)i * width;
        kn_decode_row(t->type, t->data + (size_t)i * row, x, t->ne[0]);
        for (size_t c = 0; c < width; c++) x[c] *= times[0];
    }
    rc = loaded(l, t, l->op->weight_load(l->m->be, w, KN_F32, t->ne[0], t->ne[1], all, use));
    if (use & KN_USE_ROWS && rc == 0) l->m->scaled_rows = all, all = NULL; /* the weight may point at them */
out:
    mem_free(times);
    mem_free(all);
    return rc;
}

/* A vector of n times the same number, for an operation that wants one. */
static int load_filled(struct loader *l, float **v, int64_t n, float with)
{
    float *host = mem_alloc((size_t)n * sizeof *host);
    if (!host) return err_set(l->e, ERR_IO, "out of memory (a scale)");
    for (int64_t i = 0; i < n; i++) host[i] = with;
    *v = l->op->alloc(l->m->be, (size_t)n * sizeof *host);
    const int rc = *v ? l->op->upload(l->m->be, *v, host, (size_t)n * sizeof *host) : 0;
    mem_free(host);
    if (!*v) return model_no_memory(l->m->be, l->e, "a scale");
    return rc ? model_failed(l->m, "upload", rc, l->e) : 0;
}

/* ---- parts ---- */

static int load_field(struct loader *l, int i, const struct field *f)
{
    struct model *m = l->m;
    const struct desc *d = m->d;
    char name[64], spelled[64];
    snprintf(spelled, sizeof spelled, "blk.%d.%s", d->first_block + i, f->name);
    dialect_spelled(m->file, spelled, name, sizeof name);
    if (d->arch == DESC_DFLASH && f->at == AT(ffn_norm)) /* in some dialects the name of another norm */
        snprintf(name, sizeof name, "blk.%d.%s", i, d->ffn_norm_name);
    if (d->arch == DESC_DFLASH && f->at == AT(post_attn_norm) && !d->other_block) return 0;
    const struct gguf_tensor *t = gguf_tensor(m->file, name);
    if (!t) return 0;
    if (f->kind == VECTOR) return load_vector(l, vector_at(&m->layer[i], f), name);
    if (f->kind == ROUTER_SCALE) /* Gemma 4's router reads rms_norm(x) * scale / sqrt(n_embd) */
        return load_scaled(l, vector_at(&m->layer[i], f), name, 1.0f / sqrtf((float)d->n_embd));
    if (f->kind == EXPERTS) {
        m->bytes_step += t->bytes / (uint64_t)d->n_expert * (uint64_t)d->n_expert_used;
        return load_experts(l, weight_at(&m->layer[i], f), name);
    }
    m->bytes_step += t->bytes;
    if (d->gated_attention && f->at == AT(wq)) return load_gated_query(l, i, name);
    return load_weight(l, weight_at(&m->layer[i], f), KN_USE_LINEAR, name);
}

static int load_layer(struct loader *l, int i)
{
    struct model *m = l->m;
    char name[64];
    kn_hosted(m->be, m->n_host ? m->host + (size_t)i * (size_t)m->n_host : NULL, m->n_host);
    for (int j = 0; j < N_FIELDS; j++)
        if (load_field(l, i, &fields[j])) return -1;
    snprintf(name, sizeof name, "blk.%d.ffn_gate_up_exps.weight", m->d->first_block + i);
    const struct gguf_tensor *fused = gguf_tensor(m->file, name);
    if (fused) {
        m->bytes_step += fused->bytes / (uint64_t)m->d->n_expert * (uint64_t)m->d->n_expert_used;
        if (load_fused_experts(l, i, name)) return -1;
    }
    m->layer[i].out_scale = 1;
    snprintf(name, sizeof name, "blk.%d.layer_output_scale.weight", m->d->first_block + i);
    if (gguf_tensor(m->file, name)) {
        int64_t n = 0;
        float *scale = values(l, name, &n);
        if (!scale) return -1;
        m->layer[i].out_scale = scale[0];
        mem_free(scale);
    }
    return 0;
}

/* The frequencies of one set: theta^(-2i/base), divided by rope_freqs.weight where the set has it. */
static int load_rope(struct loader *l, int set)
{
    const struct desc_rope *r = &l->m->d->rope[set];
    int half = r->n_rot / 2, rc = -1;
    int64_t n = half;
    double *freq = mem_alloc((size_t)half * sizeof *freq);
    float *divisor = r->has_divisors ? values(l, "rope_freqs.weight", &n) : NULL;
    double **device = &l->m->rope_freq[set];
    *device = l->op->alloc(l->m->be, (size_t)half * sizeof *freq);
    if (!freq) {
        err_set(l->e, ERR_IO, "out of memory (rope frequencies)");
        goto out;
    }
    if (!*device) {
        model_no_memory(l->m->be, l->e, "rope frequencies");
        goto out;
    }
    if (r->has_divisors && !divisor) goto out;
    for (int i = 0; i < half; i++) {
        if (divisor && !(divisor[i] > 0)) {
            err_set(l->e, ERR_FORMAT,
                    "tensor 'rope_freqs.weight': element %d is no divisor (expected above 0, got %g)", i,
                    (double)divisor[i]);
            goto out;
        }
        freq[i] = pow((double)r->theta, -2.0 * i / r->base) / (divisor ? (double)divisor[i] : 1.0);
    }
    rc = l->op->upload(l->m->be, *device, freq, (size_t)half * sizeof *freq);
    if (rc) model_failed(l->m, "upload", rc, l->e);
out:
    mem_free(freq);
    mem_free(divisor);
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
    return load_scaled(l, &m->output_norm, "output_norm.weight",
                       m->d->arch == DESC_DFLASH ? m->d->logit_scale : 1);
}

/* What an MTP block has beside its layer. Embedding and head are usually the target's. */
static int load_mtp(struct loader *l)
{
    struct model *m = l->m;
    const struct desc *d = m->d;
    char name[64];
#define NAMED(what) (snprintf(name, sizeof name, "blk.%d.nextn." what, d->first_block), name)
    if (load_weight(l, &m->fc, KN_USE_LINEAR, NAMED("eh_proj.weight"))) return -1;
    m->bytes_step += gguf_tensor(m->file, name)->bytes;
    if (load_vector(l, &m->embed_norm, NAMED("enorm.weight")) ||
        load_vector(l, &m->hidden_norm, NAMED("hnorm.weight")) ||
        (d->own_embed && load_weight(l, &m->embed, KN_USE_ROWS, NAMED("embed_tokens.weight"))))
        return -1;
    if (d->own_head) {
        if (load_weight(l, &m->output, KN_USE_LINEAR, NAMED("shared_head_head.weight"))) return -1;
        m->head = &m->output;
        m->bytes_step += gguf_tensor(m->file, name)->bytes;
    }
    if (!strcmp(d->head_norm, "output_norm.weight")) return load_vector(l, &m->output_norm, d->head_norm);
    return load_vector(l, &m->output_norm, NAMED("shared_head_norm.weight"));
#undef NAMED
}

/* An id's cluster is the row of token_ordering that holds it; each id stands in one. */
static int load_clusters(struct loader *l)
{
    static const char *const name = "mtp.token_ordering.weight";
    struct model *m = l->m;
    const struct gguf_tensor *t = tensor(l, name);
    const int32_t n = m->d->n_vocab, size = n / m->d->n_clusters;
    int32_t *of = mem_alloc((size_t)n * sizeof *of), id;
    int rc = -1;
    if (!of) return err_set(l->e, ERR_IO, "out of memory (clusters of %d ids)", n);
    for (int32_t i = 0; i < n; i++) of[i] = -1;
    for (int32_t i = 0; i < n && !l->op->counts; i++) {
        memcpy(&id, t->data + 4 * (size_t)i, sizeof id);
        if (id < 0 || id >= n || of[id] >= 0) {
            err_set(l->e, ERR_FORMAT,
                    "tensor '%s': element %d is no id, or one that stands twice (expected 0 to "
                    "%d, got %d)",
                    name, i, n - 1, id);
            goto out;
        }
        of[id] = i / size;
    }
    m->cluster = l->op->alloc(m->be, (size_t)n * sizeof *of);
    if (!m->cluster) {
        model_no_memory(m->be, l->e, "clusters of %d ids", n);
        goto out;
    }
    rc = l->op->upload(m->be, m->cluster, of, (size_t)n * sizeof *of);
    if (rc) model_failed(m, "upload", rc, l->e);
out:
    mem_free(of);
    return rc ? -1 : 0;
}

/* What an assistant has beside its layers. Its embedding serves as the head alone. */
static int load_assistant(struct loader *l)
{
    struct model *m = l->m;
    const struct desc *d = m->d;
    const char *const names[] = {"token_embd.weight", d->pre_name, d->post_name, "mtp.centroids.weight"};
    struct kn_weight *w[] = {&m->embed, &m->fc, &m->post, &m->centroids};
    for (int i = 0; i < (d->n_clusters ? 4 : 3); i++) {
        if (load_weight(l, w[i], KN_USE_LINEAR, names[i])) return -1;
        m->bytes_step += gguf_tensor(m->file, names[i])->bytes;
    }
    m->head = &m->embed;
    if (d->n_clusters && load_clusters(l)) return -1;
    return load_vector(l, &m->output_norm, "output_norm.weight");
}

/* ---- heads that correct logits ---- */

#define HEAD(f) offsetof(struct draft_heads, f)
/* Read once a proposal, but what is rows of a table, and once a block. */
static const struct head_field {
    const char *name;
    size_t at;
    enum {
        HEAD_ROWS,
        HEAD_EACH,
        HEAD_BOTH,
        HEAD_ONCE,
        HEAD_VECTOR
    } kind; /* BOTH: as EACH, and rows for edges */
} head_fields[] = {
    {"markov_w1.weight", HEAD(w1), HEAD_ROWS},     {"markov_w2.weight", HEAD(w2), HEAD_BOTH},
    {"markov_gate.weight", HEAD(mix), HEAD_EACH},  {"markov_gate.bias", HEAD(mix_bias), HEAD_VECTOR},
    {"markov_joint.weight", HEAD(mix), HEAD_EACH}, {"markov_joint.bias", HEAD(mix_bias), HEAD_VECTOR},
    {"conf_proj.weight", HEAD(conf), HEAD_ONCE},   {"conf_proj.bias", HEAD(conf_bias), HEAD_VECTOR},
    {"domino_ih.weight", HEAD(ih), HEAD_EACH},     {"domino_hh.weight", HEAD(hh), HEAD_EACH},
    {"domino_down.weight", HEAD(down), HEAD_EACH}, {"domino_up.weight", HEAD(up), HEAD_BOTH},
};
enum { N_HEAD_FIELDS = sizeof head_fields / sizeof head_fields[0] };

static void *head_at(struct draft_heads *h, const struct head_field *f)
{
    return (char *)h + f->at;
}

static int load_heads(struct loader *l)
{
    struct model *m = l->m;
    const uint64_t proposals = (uint64_t)desc_cycle_rows(m->d) - 1;
    for (int i = 0; i < N_HEAD_FIELDS; i++) {
        const struct head_field *f = &head_fields[i];
        const struct gguf_tensor *t = gguf_tensor(m->file, f->name);
        void *at = head_at(&m->heads, f);
        if (!t) continue;
        const unsigned use = f->kind == HEAD_ROWS   ? KN_USE_ROWS
                             : f->kind == HEAD_BOTH ? KN_USE_ROWS | KN_USE_LINEAR
                                                    : KN_USE_LINEAR;
        if (f->kind != HEAD_ROWS)
            m->bytes_step += t->bytes * (f->kind == HEAD_EACH || f->kind == HEAD_BOTH ? proposals : 1);
        if (f->kind == HEAD_VECTOR ? load_vector(l, at, f->name) : load_weight(l, at, use, f->name))
            return -1;
    }
    return 0;
}

static void free_heads(struct model *m)
{
    const struct kn_ops *op = kn_op(m->be);
    for (int i = 0; i < N_HEAD_FIELDS; i++) {
        const struct head_field *f = &head_fields[i];
        if (f->kind == HEAD_VECTOR)
            op->free(m->be, *(float **)head_at(&m->heads, f)), *(float **)head_at(&m->heads, f) = NULL;
        else
            op->weight_free(m->be, head_at(&m->heads, f));
    }
}

static int load_all(struct loader *l)
{
    struct model *m = l->m;
    const enum desc_arch arch = m->d->arch;
    if (arch == DESC_QWEN35_MTP         ? load_mtp(l)
        : arch == DESC_GEMMA4_ASSISTANT ? load_assistant(l)
                                        : load_ends(l))
        return -1;
    for (int i = 0; i < m->d->n_rope; i++)
        if (load_rope(l, i)) return -1;
    if (m->d->arch == DESC_DFLASH) {
        if (load_weight(l, &m->fc, KN_USE_LINEAR, m->d->fc_name)) return -1;
        if (load_vector(l, &m->hidden_norm, m->d->hidden_norm_name)) return -1;
        if (m->d->value_scale > 0 && load_filled(l, &m->value_scale, m->d->n_embd, m->d->value_scale))
            return -1;
        m->bytes_step += gguf_tensor(m->file, m->d->fc_name)->bytes;
        if (load_heads(l)) return -1;
    }
    for (int i = 0; i < N_PARTS; i++) {
        char name[64];
        const struct gguf_tensor *t =
            gguf_tensor(m->file, dialect_spelled(m->file, parts[i].name, name, sizeof name));
        if (t && load_weight(l, part_at(m, i), parts[i].use, name)) return -1;
        if (t && parts[i].use & KN_USE_LINEAR) m->bytes_step += t->bytes;
    }
    int rc = 0;
    for (int i = 0; i < m->d->n_layer && rc == 0; i++) rc = load_layer(l, i);
    kn_hosted(m->be, NULL, 0);
    return rc;
}

/* ---- what a backend cannot do is said before its memory is filled ---- */

static int unsupported(struct loader *l, const char *what, const char *op)
{
    return err_set(l->e, ERR_FORMAT, "%s: %s of %s are not supported on this device (operation %s)",
                   l->op->name, what, l->m->d->arch_name, op);
}

/* The shape of a delta net. */
static int check_delta(struct loader *l)
{
    const struct desc *d = l->m->d;
    const struct {
        const char *key, *what;
        int32_t found, most;
    } limits[] = {{"ssm.state_size", "keys", d->d_k, KN_DELTA_HEAD},
                  {"ssm.inner_size", "values (of ssm.time_step_rank heads)", d->d_v, KN_DELTA_HEAD},
                  {"ssm.conv_kernel", "convolutions", d->n_conv, KN_DELTA_TAPS}};
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++)
        if (limits[i].found > limits[i].most)
            return err_set(l->e, ERR_FORMAT,
                           "key '%s.%s': %s of this length are not supported (expected at most %d, got %d)",
                           d->arch_name, limits[i].key, limits[i].what, limits[i].most, limits[i].found);
    return l->op->delta ? 0 : unsupported(l, "the delta nets", "delta");
}

static int check_dflash2(struct loader *l)
{
    const struct desc *d = l->m->d;
    const struct kn_ops *op = l->op;
    const struct {
        const char *key;
        int32_t found, most;
    } limits[] = {{"conv_kernel_size", d->conv_kernel, KN_CONV_TAPS},
                  {"selector_rank", d->selector_rank, KN_EDGE_RANK},
                  {"selector_top_k", d->selector_k, KN_TOP_MOST}};
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++)
        if (limits[i].found > limits[i].most)
            return err_set(l->e, ERR_FORMAT, "key '%s.%s': is not supported (expected at most %d, got %d)",
                           d->arch_name, limits[i].key, limits[i].most, limits[i].found);
    if (!op->conv) return unsupported(l, "the convolutions", "conv");
    if (!op->top) return unsupported(l, "the candidates", "top");
    if (!op->edges) return unsupported(l, "the candidates", "edges");
    return op->walk ? 0 : unsupported(l, "the candidates", "walk");
}

/* The heads of DSpark and Domino. Their rows stand one behind the other, and products read four numbers at
 * once. */
static int check_heads(struct loader *l)
{
    const struct desc *d = l->m->d;
    const struct {
        const char *what;
        int32_t found;
    } widths[] = {{"ranks", d->markov_rank}, {"states", d->n_state}, {"corrections", d->n_correct}};
    for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++)
        if (widths[i].found % 4)
            return err_set(l->e, ERR_FORMAT,
                           "a %s drafter: %s of %d are not supported (expected a multiple of 4)", d->kind,
                           widths[i].what, widths[i].found);
    if ((d->markov_rank || d->confidence || d->n_state) && !l->op->cell)
        return unsupported(l, "the proposals", "cell");
    return d->n_vocab_draft && !l->op->spread ? unsupported(l, "the reduced vocabulary", "spread") : 0;
}

static int check_backend(struct loader *l)
{
    const struct desc *d = l->m->d;
    const struct kn_ops *op = l->op;
    bool moe = false, recurrent = false;
    for (int i = 0; i < d->n_layer; i++) {
        moe |= d->layer[i].moe;
        recurrent |= d->layer[i].recurrent;
        if (!d->layer[i].recurrent && d->layer[i].head_dim % 16) /* what attention and the rotation work in */
            return err_set(l->e, ERR_FORMAT, "heads of %d are not supported (expected a multiple of 16)",
                           d->layer[i].head_dim);
    }
    if (moe && !op->experts_load) return unsupported(l, "the experts", "experts_load");
    if (moe && !op->route) return unsupported(l, "the experts", "route");
    if (moe && !op->experts_gated) return unsupported(l, "the experts", "experts_gated");
    if (moe && !op->experts_down) return unsupported(l, "the experts", "experts_down");
    if (recurrent && check_delta(l)) return -1;
    if ((d->gated_attention || d->n_ff_shexp) && !op->gate) return unsupported(l, "the gates", "gate");
    if (d->has_softcap && !op->softcap) return unsupported(l, "the capped logits", "softcap");
    if (d->n_clusters && !op->clusters) return unsupported(l, "the clusters", "clusters");
    if (d->arch == DESC_GEMMA4_ASSISTANT && !op->norm_pair)
        return unsupported(l, "the assistant", "norm_pair");
    if ((d->arch == DESC_GEMMA4 || d->arch == DESC_GEMMA4_ASSISTANT || d->other_block) && !op->norm_add)
        return unsupported(l, "the norms of branches", "norm_add");
    if (d->arch == DESC_QWEN35_MTP && !op->norm_pair) return unsupported(l, "the MTP block", "norm_pair");
    l->m->family = model_family_of(d->arch);
    if (!desc_drafts(d) && !l->m->family)
        return err_set(l->e, ERR_FORMAT, "architecture %s: its forward pass is not implemented",
                       d->arch_name);
    if (d->sinks && !op->sinks) return unsupported(l, "the attention sinks", "attention with sinks");
    if (d->value_scale > 0 && !op->conv) return unsupported(l, "the scale of attention", "conv");
    if ((d->conv_kernel && check_dflash2(l)) || check_heads(l)) return -1;
    l->m->kind = draft_kind_of(d);
    if (d->arch == DESC_DFLASH && !l->m->kind)
        return err_set(l->e, ERR_FORMAT, "a %s drafter: its proposals are not implemented", d->kind);
    return 0;
}

static int open_gguf(struct model **out, struct gguf *g, struct kn_backend *be, const struct desc_override *o,
                     struct err *e)
{
    struct model *m = mem_calloc(1, sizeof *m);
    struct loader l = {.m = m, .op = kn_op(be), .e = e};
    *out = NULL;
    if (!m) {
        gguf_close(g);
        return err_set(e, ERR_IO, "out of memory (a model)");
    }
    m->be = be;
    m->file = g;
    if (desc_read(&m->d, g, o, e)) goto fail;
    m->layer = mem_calloc((size_t)m->d->n_layer, sizeof *m->layer);
    m->matrix = mem_calloc((size_t)g->n_tensors + 1, sizeof *m->matrix);
    if (!m->layer || !m->matrix) {
        err_set(e, ERR_IO, "out of memory (layers of a model)");
        goto fail;
    }
    if (desc_runnable(m->d, e) || check_backend(&l)) {
        err_prefix(e, "%s", g->map.path ? g->map.path : "model");
        goto fail;
    }
    *out = m;
    return 0;
fail:
    model_free(m);
    return -1;
}

/* The file, with the keys that are to be others. */
static int open_file(struct gguf **g, const char *path, const struct desc_override *o, struct err *e)
{
    if (gguf_open(g, path, e)) return -1;
    if (!o || gguf_override(*g, o->kv, o->n_kv, false, e) == 0) return 0;
    gguf_close(*g);
    *g = NULL;
    return -1;
}

int model_open(struct model **m, const char *path, struct kn_backend *be, const struct desc_override *o,
               struct err *e)
{
    struct gguf *g;
    *m = NULL;
    if (open_file(&g, path, o, e)) return -1;
    return open_gguf(m, g, be, o, e);
}

/* Is a tensor of the file this model's, as far as progress goes? */
static bool is_of(const struct desc *d, const char *name)
{
    int32_t block;
    return d->arch != DESC_QWEN35_MTP || (sscanf(name, "blk.%9d.", &block) == 1 && block == d->first_block);
}

int model_fill(struct model *m, model_progress_fn progress, void *ctx, struct err *e)
{
    struct loader l = {.m = m, .op = kn_op(m->be), .e = e, .progress = progress, .ctx = ctx};
    for (uint64_t i = 0; i < m->file->n_tensors; i++)
        if (is_of(m->d, m->file->tensor[i].name)) l.total += m->file->tensor[i].bytes;
    return load_all(&l) ? err_prefix(e, "%s", m->file->map.path ? m->file->map.path : "model") : 0;
}

int model_load_gguf(struct model **m, struct gguf *g, struct kn_backend *be, const struct desc_override *o,
                    model_progress_fn progress, void *ctx, struct err *e)
{
    if (open_gguf(m, g, be, o, e)) return -1;
    if (model_fill(*m, progress, ctx, e) == 0) return 0;
    model_free(*m);
    *m = NULL;
    return -1;
}

int model_load(struct model **m, const char *path, struct kn_backend *be, const struct desc_override *o,
               model_progress_fn progress, void *ctx, struct err *e)
{
    struct gguf *g;
    *m = NULL;
    if (open_file(&g, path, o, e)) return -1;
    return model_load_gguf(m, g, be, o, progress, ctx, e);
}

void model_free(struct model *m)
{
    if (!m) return;
    const struct kn_ops *op = kn_op(m->be);
    for (int i = 0; m->layer && i < m->d->n_layer; i++) {
        for (int j = 0; j < N_FIELDS; j++) {
            if (fields[j].kind == VECTOR || fields[j].kind == ROUTER_SCALE)
                op->free(m->be, *vector_at(&m->layer[i], &fields[j]));
            else
                op->weight_free(m->be, weight_at(&m->layer[i], &fields[j]));
        }
        op->weight_free(m->be, &m->layer[i].wg);
    }
    op->weight_free(m->be, &m->embed);
    op->weight_free(m->be, &m->output);
    op->weight_free(m->be, &m->fc);
    op->weight_free(m->be, &m->post);
    op->weight_free(m->be, &m->centroids);
    op->free(m->be, m->cluster);
    free_heads(m);
    for (int i = 0; i < N_PARTS; i++) op->weight_free(m->be, part_at(m, i));
    op->free(m->be, m->output_norm);
    op->free(m->be, m->hidden_norm);
    op->free(m->be, m->embed_norm);
    op->free(m->be, m->value_scale);
    mem_free(m->scaled_rows);
    for (int i = 0; i < DESC_MAX_ROPES; i++) op->free(m->be, m->rope_freq[i]);
    mem_free(m->layer);
    mem_free(m->host);
    mem_free(m->matrix);
    desc_free(m->d);
    gguf_close(m->file);
    mem_free(m);
}
