/* oracle.c - see oracle.h. Written to be read, not to be fast: loops over doubles, one row at a time. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../../common/safetensors.h"
#include "oracle.h"

static double *load(const struct st *s, const char *prefix, const char *name, int64_t rows, int64_t cols, struct err *e)
{
    char full[256];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    const struct st_tensor *t = st_tensor(s, full);
    int64_t n = rows * cols;
    if (!t || t->count != (uint64_t)n) {
        err_set(e, ERR_FORMAT, "oracle: tensor %s: expected %lld elements, got %lld", full, (long long)n,
                t ? (long long)t->count : 0LL);
        return NULL;
    }
    float *f = malloc((size_t)n * sizeof *f);
    double *d = malloc((size_t)n * sizeof *d);
    if (!f || !d || st_read_f32(t, 0, (uint64_t)n, f, e)) {
        free(d);
        d = NULL;
    }
    for (int64_t i = 0; d && i < n; i++) d[i] = f[i];
    free(f);
    return d;
}

static int64_t rows_of(const struct st *s, const char *prefix, const char *name)
{
    char full[256];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    const struct st_tensor *t = st_tensor(s, full);
    return t ? t->shape[0] : 0;
}

static int load_layer(struct oracle *o, int i, const struct st *s, const char *prefix, struct err *e)
{
    struct oracle_layer *l = &o->layer[i];
    struct {
        const char *name;
        double **dst;
        int64_t rows, cols;
    } part[] = {
        {"input_layernorm", &l->attn_norm, 1, o->E},
        {"post_attention_layernorm", &l->ffn_norm, 1, o->E},
        {"self_attn.q_norm", &l->q_norm, 1, o->D},
        {"self_attn.k_norm", &l->k_norm, 1, o->D},
        {"self_attn.q_proj", &l->q, o->H * o->D, o->E},
        {"self_attn.k_proj", &l->k, o->G * o->D, o->E},
        {"self_attn.v_proj", &l->v, o->G * o->D, o->E},
        {"self_attn.o_proj", &l->o, o->E, o->H * o->D},
        {"mlp.gate_proj", &l->gate, o->F, o->E},
        {"mlp.up_proj", &l->up, o->F, o->E},
        {"mlp.down_proj", &l->down, o->E, o->F},
    };
    for (size_t p = 0; p < sizeof part / sizeof *part; p++) {
        char name[128];
        snprintf(name, sizeof name, "layers.%d.%s.weight", i, part[p].name);
        *part[p].dst = load(s, prefix, name, part[p].rows, part[p].cols, e);
        if (!*part[p].dst) return -1;
    }
    return 0;
}

static void read_drafter_config(struct oracle *o, json_t *c)
{
    json_t *nested = json_object_get(c, "dflash_config"), *v;
#define LOOK(key) ((v = json_object_get(nested, key)) ? v : json_object_get(c, key))
    o->block = (int)json_integer_value(LOOK("block_size"));
    o->mask_id = (int)json_integer_value(LOOK("mask_token_id"));
    json_t *ids = LOOK("target_layer_ids"), *causal = LOOK("is_causal");
#undef LOOK
    o->n_taps = (int)json_array_size(ids);
    for (int i = 0; i < o->n_taps && i < 64; i++) o->taps[i] = (int)json_integer_value(json_array_get(ids, (size_t)i));
    for (int i = 0; i < o->L; i++) {
        const char *kind = json_string_value(json_array_get(json_object_get(c, "layer_types"), (size_t)i));
        bool sliding = kind && !strcmp(kind, "sliding_attention");
        o->layer[i].window = sliding ? (int)json_integer_value(json_object_get(c, "sliding_window")) : 0;
        o->layer[i].causal = causal ? json_is_true(causal) : sliding;
    }
}

int oracle_open(struct oracle **out, const char *dir, struct err *e)
{
    char path[4096];
    struct st *s = NULL;
    struct oracle *o = calloc(1, sizeof *o);
    int rc = -1;
    snprintf(path, sizeof path, "%s/config.json", dir);
    json_t *c = json_load_file(path, 0, NULL);
    if (!c || !o) {
        err_set(e, ERR_FORMAT, "oracle: %s: not readable", path);
        goto done;
    }
    if (st_open(&s, dir, e)) goto done;
    const char *prefix = st_tensor(s, "model.norm.weight") ? "model." : "";
    o->L = (int)json_integer_value(json_object_get(c, "num_hidden_layers"));
    o->eps = json_number_value(json_object_get(c, "rms_norm_eps"));
    o->theta = json_number_value(json_object_get(json_object_get(c, "rope_parameters"), "rope_theta"));
    o->E = (int)rows_of(s, prefix, "norm.weight");
    o->D = (int)rows_of(s, prefix, "layers.0.self_attn.q_norm.weight");
    if (o->L < 1 || o->D < 1 || !(o->eps > 0) || !(o->theta > 0)) {
        err_set(e, ERR_FORMAT, "oracle: %s: layers, head size, eps or theta missing", dir);
        goto done;
    }
    o->H = (int)rows_of(s, prefix, "layers.0.self_attn.q_proj.weight") / o->D;
    o->G = (int)rows_of(s, prefix, "layers.0.self_attn.k_proj.weight") / o->D;
    o->F = (int)rows_of(s, prefix, "layers.0.mlp.gate_proj.weight");
    o->V = (int)rows_of(s, prefix, "embed_tokens.weight");
    o->layer = calloc((size_t)o->L, sizeof *o->layer);
    for (int i = 0; i < o->L; i++) {
        o->layer[i].causal = true;
        if (load_layer(o, i, s, prefix, e)) goto done;
    }
    if (!(o->norm = load(s, prefix, "norm.weight", 1, o->E, e))) goto done;
    if (o->V) {
        if (!(o->embed = load(s, prefix, "embed_tokens.weight", o->V, o->E, e))) goto done;
        o->head = st_tensor(s, "lm_head.weight") ? load(s, "", "lm_head.weight", o->V, o->E, e) : o->embed;
        if (!o->head) goto done;
    } else {
        read_drafter_config(o, c);
        if (!(o->fc = load(s, prefix, "fc.weight", o->E, (int64_t)o->n_taps * o->E, e))) goto done;
        if (!(o->hidden_norm = load(s, prefix, "hidden_norm.weight", 1, o->E, e))) goto done;
    }
    rc = 0;
done:
    json_decref(c);
    st_close(s);
    if (rc) {
        oracle_close(o);
        o = NULL;
    }
    *out = o;
    return rc;
}

void oracle_close(struct oracle *o)
{
    if (!o) return;
    for (int i = 0; o->layer && i < o->L; i++) {
        struct oracle_layer *l = &o->layer[i];
        double *all[] = {l->attn_norm, l->ffn_norm, l->q_norm, l->k_norm, l->q, l->k, l->v, l->o, l->gate, l->up, l->down};
        for (size_t p = 0; p < sizeof all / sizeof *all; p++) free(all[p]);
    }
    if (o->head != o->embed) free(o->head);
    free(o->embed);
    free(o->norm);
    free(o->fc);
    free(o->hidden_norm);
    free(o->layer);
    free(o);
}

struct oracle_cache *oracle_cache_new(const struct oracle *o, int cap)
{
    struct oracle_cache *c = calloc(1, sizeof *c);
    c->cap = cap;
    c->k = calloc((size_t)o->L, sizeof *c->k);
    c->v = calloc((size_t)o->L, sizeof *c->v);
    for (int i = 0; i < o->L; i++) {
        c->k[i] = calloc((size_t)cap * (size_t)o->G * (size_t)o->D, sizeof(double));
        c->v[i] = calloc((size_t)cap * (size_t)o->G * (size_t)o->D, sizeof(double));
    }
    return c;
}

void oracle_cache_free(const struct oracle *o, struct oracle_cache *c)
{
    for (int i = 0; c && i < o->L; i++) {
        free(c->k[i]);
        free(c->v[i]);
    }
    if (c) {
        free(c->k);
        free(c->v);
    }
    free(c);
}

/* out[n, rows] = x[n, cols] W^T */
static void matmul(double *out, const double *w, const double *x, int n, int64_t rows, int64_t cols)
{
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; r++)
        for (int i = 0; i < n; i++) {
            double s[4] = {0, 0, 0, 0};
            const double *a = w + r * cols, *b = x + (int64_t)i * cols;
            for (int64_t k = 0; k < cols; k++) s[k & 3] += a[k] * b[k];
            out[(int64_t)i * rows + r] = (s[0] + s[1]) + (s[2] + s[3]);
        }
}

static void rms_norm(double *out, const double *x, const double *w, int64_t n, double eps)
{
    double s = 0;
    for (int64_t i = 0; i < n; i++) s += x[i] * x[i];
    double scale = 1 / sqrt(s / (double)n + eps);
    for (int64_t i = 0; i < n; i++) out[i] = x[i] * scale * w[i];
}

static void rope(const struct oracle *o, double *x, int pos)
{
    for (int i = 0; i < o->D / 2; i++) {
        double a = pos * pow(o->theta, -2.0 * i / o->D), c = cos(a), s = sin(a), u = x[i], v = x[i + o->D / 2];
        x[i] = u * c - v * s;
        x[i + o->D / 2] = v * c + u * s;
    }
}

/* Normed and rotated keys, and values, of n rows x [n, E] into the cache at positions pos0 .. (its n is not moved). */
static void put_keys(const struct oracle *o, int layer, struct oracle_cache *c, const double *x, int n, int pos0)
{
    const struct oracle_layer *l = &o->layer[layer];
    int GD = o->G * o->D;
    double *k = c->k[layer] + (size_t)pos0 * (size_t)GD;
    matmul(k, l->k, x, n, GD, o->E);
    matmul(c->v[layer] + (size_t)pos0 * (size_t)GD, l->v, x, n, GD, o->E);
    for (int i = 0; i < n; i++)
        for (int g = 0; g < o->G; g++) {
            double *h = k + ((size_t)i * (size_t)o->G + (size_t)g) * (size_t)o->D;
            rms_norm(h, h, l->k_norm, o->D, o->eps);
            rope(o, h, pos0 + i);
        }
}

/* One query head of one row over keys 0 .. n_keys-1. */
static void attend(const struct oracle *o, int layer, const struct oracle_cache *c, const double *q, int head, int pos,
                   int n_keys, double *out, double *score)
{
    const struct oracle_layer *l = &o->layer[layer];
    int g = head / (o->H / o->G), lo = n_keys, hi = 0;
    double max = -INFINITY, sum = 0;
    for (int p = 0; p < n_keys; p++) {
        bool seen = !(l->causal && p > pos) && !(l->window && (pos - p >= l->window || p - pos >= l->window));
        score[p] = -INFINITY;
        if (!seen) continue;
        const double *k = c->k[layer] + ((size_t)p * (size_t)o->G + (size_t)g) * (size_t)o->D;
        double s = 0;
        for (int d = 0; d < o->D; d++) s += q[d] * k[d];
        score[p] = s / sqrt(o->D);
        if (score[p] > max) max = score[p];
        if (p < lo) lo = p;
        hi = p + 1;
    }
    memset(out, 0, (size_t)o->D * sizeof *out);
    for (int p = lo; p < hi; p++) {
        double w = exp(score[p] - max);
        const double *v = c->v[layer] + ((size_t)p * (size_t)o->G + (size_t)g) * (size_t)o->D;
        sum += w;
        for (int d = 0; d < o->D; d++) out[d] += w * v[d];
    }
    for (int d = 0; d < o->D; d++) out[d] /= sum;
}

/* One block over x [n, E] at positions pos0 ..; keys 0 .. pos0+n-1 are in the cache after it. */
static void block(const struct oracle *o, int layer, struct oracle_cache *c, double *x, int n, int pos0)
{
    const struct oracle_layer *l = &o->layer[layer];
    size_t E = (size_t)o->E, HD = (size_t)o->H * (size_t)o->D, F = (size_t)o->F, rows = (size_t)n;
    double *y = malloc(rows * E * sizeof *y), *q = malloc(rows * HD * sizeof *q), *a = malloc(rows * HD * sizeof *a);
    double *g = malloc(rows * F * sizeof *g), *u = malloc(rows * F * sizeof *u);
    for (int i = 0; i < n; i++) rms_norm(y + (size_t)i * E, x + (size_t)i * E, l->attn_norm, o->E, o->eps);
    put_keys(o, layer, c, y, n, pos0);
    matmul(q, l->q, y, n, (int64_t)HD, o->E);
#pragma omp parallel for schedule(dynamic)
    for (int ih = 0; ih < n * o->H; ih++) {
        int i = ih / o->H, h = ih % o->H;
        double *qh = q + (size_t)ih * (size_t)o->D, *score = malloc((size_t)(pos0 + n) * sizeof *score);
        rms_norm(qh, qh, l->q_norm, o->D, o->eps);
        rope(o, qh, pos0 + i);
        attend(o, layer, c, qh, h, pos0 + i, pos0 + n, a + (size_t)ih * (size_t)o->D, score);
        free(score);
    }
    matmul(y, l->o, a, n, o->E, (int64_t)HD);
    for (size_t i = 0; i < rows * E; i++) x[i] += y[i];
    for (int i = 0; i < n; i++) rms_norm(y + (size_t)i * E, x + (size_t)i * E, l->ffn_norm, o->E, o->eps);
    matmul(g, l->gate, y, n, o->F, o->E);
    matmul(u, l->up, y, n, o->F, o->E);
    for (size_t i = 0; i < rows * F; i++) g[i] = g[i] / (1 + exp(-g[i])) * u[i];
    matmul(y, l->down, g, n, o->E, o->F);
    for (size_t i = 0; i < rows * E; i++) x[i] += y[i];
    free(y);
    free(q);
    free(a);
    free(g);
    free(u);
}

void oracle_forward(const struct oracle *t, struct oracle_cache *c, const int32_t *ids, int n, double *logits,
                    const struct oracle *d, double *taps)
{
    size_t E = (size_t)t->E;
    double *x = malloc((size_t)n * E * sizeof *x);
    for (int i = 0; i < n; i++) memcpy(x + (size_t)i * E, t->embed + (size_t)ids[i] * E, E * sizeof *x);
    for (int l = 0; l < t->L; l++) {
        block(t, l, c, x, n, c->n);
        for (int k = 0; taps && k < d->n_taps; k++)
            for (int i = 0; d->taps[k] == l && i < n; i++)
                memcpy(taps + ((size_t)i * (size_t)d->n_taps + (size_t)k) * E, x + (size_t)i * E, E * sizeof *x);
    }
    c->n += n;
    if (logits) {
        for (int i = 0; i < n; i++) rms_norm(x + (size_t)i * E, x + (size_t)i * E, t->norm, t->E, t->eps);
        matmul(logits, t->head, x, n, t->V, t->E);
    }
    free(x);
}

void oracle_context(const struct oracle *d, struct oracle_cache *c, const double *taps, int n)
{
    size_t E = (size_t)d->E;
    double *g = malloc((size_t)n * E * sizeof *g);
    matmul(g, d->fc, taps, n, d->E, (int64_t)d->n_taps * d->E);
    for (int i = 0; i < n; i++) rms_norm(g + (size_t)i * E, g + (size_t)i * E, d->hidden_norm, d->E, d->eps);
    for (int l = 0; l < d->L; l++) put_keys(d, l, c, g, n, c->n);
    c->n += n;
    free(g);
}

void oracle_draft(const struct oracle *d, const struct oracle *t, struct oracle_cache *c, int32_t anchor, double *logits)
{
    size_t E = (size_t)d->E;
    double *x = malloc((size_t)d->block * E * sizeof *x);
    for (int i = 0; i < d->block; i++)
        memcpy(x + (size_t)i * E, t->embed + (size_t)(i ? d->mask_id : anchor) * E, E * sizeof *x);
    for (int l = 0; l < d->L; l++) block(d, l, c, x, d->block, c->n);
    for (int i = 0; i < d->block; i++) rms_norm(x + (size_t)i * E, x + (size_t)i * E, d->norm, d->E, d->eps);
    matmul(logits, t->head, x, d->block, t->V, d->E);
    free(x);
}
