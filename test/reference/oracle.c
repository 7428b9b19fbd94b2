/* oracle.c - see oracle.h. Written to be read, not to be fast: loops over doubles, one row at a time. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../../common/file/safetensors.h"
#include "oracle.h"

static double *load(const struct st *s, const char *prefix, const char *name, int64_t rows, int64_t cols,
                    struct err *e)
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

struct part {
    const char *name;
    double **dst;
    int64_t rows, cols;
    bool plus; /* stored as w - 1 where the model is a hybrid */
};

static int load_parts(struct oracle *o, int i, const struct st *s, const char *prefix,
                      const struct part *part, size_t n, struct err *e)
{
    for (size_t p = 0; p < n; p++) {
        char name[128];
        snprintf(name, sizeof name, "layers.%d.%s", i, part[p].name);
        double *w = *part[p].dst = load(s, prefix, name, part[p].rows, part[p].cols, e);
        if (!w) return -1;
        for (int64_t k = 0; part[p].plus && o->hybrid && k < part[p].cols; k++) w[k] += 1;
    }
    return 0;
}

static int load_layer(struct oracle *o, int i, const struct st *s, const char *prefix, struct err *e)
{
    struct oracle_layer *l = &o->layer[i];
    const struct part every[] = {
        {"input_layernorm.weight", &l->attn_norm, 1, o->E, true},
        {"post_attention_layernorm.weight", &l->ffn_norm, 1, o->E, true},
        {"mlp.gate_proj.weight", &l->gate, o->F, o->E, false},
        {"mlp.up_proj.weight", &l->up, o->F, o->E, false},
        {"mlp.down_proj.weight", &l->down, o->E, o->F, false},
    };
    const struct part attention[] = {
        {"self_attn.q_norm.weight", &l->q_norm, 1, o->D, true},
        {"self_attn.k_norm.weight", &l->k_norm, 1, o->D, true},
        {"self_attn.q_proj.weight", &l->q, (o->hybrid ? 2 : 1) * o->H * o->D, o->E, false},
        {"self_attn.k_proj.weight", &l->k, o->G * o->D, o->E, false},
        {"self_attn.v_proj.weight", &l->v, o->G * o->D, o->E, false},
        {"self_attn.o_proj.weight", &l->o, o->E, o->H * o->D, false},
    };
    const struct part delta[] = {
        {"linear_attn.in_proj_qkv.weight", &l->qkv, (2 * o->K + o->M) * o->d, o->E, false},
        {"linear_attn.in_proj_z.weight", &l->z, o->M * o->d, o->E, false},
        {"linear_attn.in_proj_a.weight", &l->alpha, o->M, o->E, false},
        {"linear_attn.in_proj_b.weight", &l->beta, o->M, o->E, false},
        {"linear_attn.conv1d.weight", &l->conv, (2 * o->K + o->M) * o->d, o->n_conv, false},
        {"linear_attn.A_log", &l->a_log, 1, o->M, false},
        {"linear_attn.dt_bias", &l->dt, 1, o->M, false},
        {"linear_attn.norm.weight", &l->delta_norm, 1, o->d, false},
        {"linear_attn.out_proj.weight", &l->out, o->E, o->M * o->d, false},
    };
    const int sides = 2 * o->conv_taps;
    const struct part convolutions[] = {
        {"attention_conv.base_kernel", &l->conv_base[0], sides, o->E, false},
        {"attention_conv.kernel_projection.weight", &l->conv_proj[0], sides * (o->E / o->conv_group), o->E,
         false},
        {"mlp_conv.base_kernel", &l->conv_base[1], sides, o->E, false},
        {"mlp_conv.kernel_projection.weight", &l->conv_proj[1], sides * (o->E / o->conv_group), o->E, false},
    };
    char name[128];
    snprintf(name, sizeof name, "%slayers.%d.linear_attn.A_log", prefix, i);
    if (o->conv_taps && load_parts(o, i, s, prefix, convolutions, 4, e)) return -1;
    if (load_parts(o, i, s, prefix, every, sizeof every / sizeof *every, e)) return -1;
    return o->hybrid && st_tensor(s, name)
               ? load_parts(o, i, s, prefix, delta, sizeof delta / sizeof *delta, e)
               : load_parts(o, i, s, prefix, attention, sizeof attention / sizeof *attention, e);
}

/* Sizes of a hybrid's delta nets; the first layer of attention tells the head size. */
static int read_hybrid_config(struct oracle *o, json_t *c, const struct st *s, const char *prefix,
                              struct err *e)
{
    const char *type = json_string_value(json_object_get(c, "model_type"));
    char name[128];
    int full = 0;
    o->hybrid = type && !strcmp(type, "qwen3_5_text");
    if (o->hybrid) {
        o->K = (int)json_integer_value(json_object_get(c, "linear_num_key_heads"));
        o->M = (int)json_integer_value(json_object_get(c, "linear_num_value_heads"));
        o->d = (int)json_integer_value(json_object_get(c, "linear_key_head_dim"));
        o->n_conv = (int)json_integer_value(json_object_get(c, "linear_conv_kernel_dim"));
        if (o->K < 1 || o->M < 1 || o->M % o->K || o->d < 1 || o->n_conv < 1 ||
            o->d != json_integer_value(json_object_get(c, "linear_value_head_dim")))
            return err_set(e, ERR_FORMAT,
                           "oracle: sizes of delta nets missing, or value heads not of the key heads' size");
        for (;; full++) {
            snprintf(name, sizeof name, "layers.%d.self_attn.q_norm.weight", full);
            if (rows_of(s, prefix, name) || full == o->L - 1) break;
        }
    }
    snprintf(name, sizeof name, "layers.%d.self_attn.q_norm.weight", full);
    if (!(o->D = (int)rows_of(s, prefix, name)))
        return err_set(e, ERR_FORMAT, "oracle: no layer has attention");
    snprintf(name, sizeof name, "layers.%d.self_attn.q_proj.weight", full);
    o->H = (int)rows_of(s, prefix, name) / o->D / (o->hybrid ? 2 : 1);
    snprintf(name, sizeof name, "layers.%d.self_attn.k_proj.weight", full);
    o->G = (int)rows_of(s, prefix, name) / o->D;
    json_t *partial = json_object_get(json_object_get(c, "rope_parameters"), "partial_rotary_factor");
    o->n_rot = partial ? (int)(o->D * json_number_value(partial)) : o->D;
    return 0;
}

#define LOOK(key) ((v = json_object_get(nested, key)) ? v : json_object_get(c, key))
/* Before the layers are loaded: conv_taps 0, a group of 1 where there are no convolutions. */
static void read_conv_config(struct oracle *o, json_t *c)
{
    json_t *nested = json_object_get(c, "dflash_config"), *v;
    o->conv_taps = (int)json_integer_value(LOOK("conv_kernel_size"));
    o->conv_group = o->conv_taps ? (int)json_integer_value(LOOK("conv_group_size")) : 1;
    o->candidates = (int)json_integer_value(LOOK("selector_top_k"));
    o->rank = (int)json_integer_value(LOOK("selector_rank"));
    o->multiplier = LOOK("output_multiplier") ? json_number_value(v) : 1;
    o->cap = LOOK("final_logit_softcapping") ? json_number_value(v) : 0;
}

static int load_selector(struct oracle *o, const struct st *s, const char *prefix, struct err *e)
{
    const int64_t rows = rows_of(s, prefix, "candidate_selector.predecessor_codebook");
    if (!o->conv_taps) return 0;
    o->before = load(s, prefix, "candidate_selector.predecessor_codebook", rows, o->rank, e);
    o->after = load(s, prefix, "candidate_selector.successor_codebook", rows, o->rank, e);
    o->hidden = load(s, prefix, "candidate_selector.hidden_projection.weight", o->rank, o->E, e);
    return o->before && o->after && o->hidden && o->candidates > 0 && o->candidates < rows ? 0 : -1;
}

static void read_drafter_config(struct oracle *o, json_t *c)
{
    json_t *nested = json_object_get(c, "dflash_config"), *v;
    o->block = (int)json_integer_value(LOOK("block_size"));
    o->mask_id = (int)json_integer_value(LOOK("mask_token_id"));
    json_t *ids = LOOK("target_layer_ids"), *causal = LOOK("is_causal");
    if (!causal) causal = LOOK("causal_head"); /* JetSpec's name for it */
    o->n_taps = (int)json_array_size(ids);
    for (int i = 0; i < o->n_taps && i < 64; i++)
        o->taps[i] = (int)json_integer_value(json_array_get(ids, (size_t)i));
    for (int i = 0; i < o->L; i++) {
        const char *kind = json_string_value(json_array_get(json_object_get(c, "layer_types"), (size_t)i));
        bool sliding = kind && !strcmp(kind, "sliding_attention");
        o->layer[i].window = sliding ? (int)json_integer_value(json_object_get(c, "sliding_window")) : 0;
        o->layer[i].causal = causal ? json_is_true(causal) : sliding && !o->conv_taps;
    }
    /* ORACLE_WINDOWS=N: layers without a window, where others have one, see N of the widest. */
    int widest = 0;
    for (int i = 0; i < o->L; i++)
        if (o->layer[i].window > widest) widest = o->layer[i].window;
    for (int i = 0; i < o->L && getenv("ORACLE_WINDOWS"); i++)
        if (!o->layer[i].window) o->layer[i].window = atoi(getenv("ORACLE_WINDOWS")) * widest;
}
#undef LOOK

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
    if (o->L < 1 || !(o->eps > 0) || !(o->theta > 0)) {
        err_set(e, ERR_FORMAT, "oracle: %s: layers, eps or theta missing", dir);
        goto done;
    }
    if (read_hybrid_config(o, c, s, prefix, e)) goto done;
    read_conv_config(o, c);
    o->F = (int)rows_of(s, prefix, "layers.0.mlp.gate_proj.weight");
    o->V = (int)rows_of(s, prefix, "embed_tokens.weight");
    o->layer = calloc((size_t)o->L, sizeof *o->layer);
    for (int i = 0; i < o->L; i++) {
        o->layer[i].causal = true;
        if (load_layer(o, i, s, prefix, e)) goto done;
    }
    if (!(o->norm = load(s, prefix, "norm.weight", 1, o->E, e))) goto done;
    for (int i = 0; o->hybrid && i < o->E; i++) o->norm[i] += 1;
    if (o->V) {
        if (!(o->embed = load(s, prefix, "embed_tokens.weight", o->V, o->E, e))) goto done;
        o->head = st_tensor(s, "lm_head.weight") ? load(s, "", "lm_head.weight", o->V, o->E, e) : o->embed;
        if (!o->head) goto done;
    } else {
        read_drafter_config(o, c);
        if (!(o->fc = load(s, prefix, "fc.weight", o->E, (int64_t)o->n_taps * o->E, e))) goto done;
        if (!(o->hidden_norm = load(s, prefix, "hidden_norm.weight", 1, o->E, e))) goto done;
        if (load_selector(o, s, prefix, e)) goto done;
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
        double *all[] = {l->attn_norm,
                         l->ffn_norm,
                         l->q_norm,
                         l->k_norm,
                         l->q,
                         l->k,
                         l->v,
                         l->o,
                         l->gate,
                         l->up,
                         l->down,
                         l->qkv,
                         l->z,
                         l->alpha,
                         l->beta,
                         l->a_log,
                         l->dt,
                         l->delta_norm,
                         l->conv,
                         l->out,
                         l->conv_base[0],
                         l->conv_base[1],
                         l->conv_proj[0],
                         l->conv_proj[1]};
        for (size_t p = 0; p < sizeof all / sizeof *all; p++) free(all[p]);
    }
    if (o->head != o->embed) free(o->head);
    free(o->embed);
    free(o->norm);
    free(o->fc);
    free(o->hidden_norm);
    free(o->before);
    free(o->after);
    free(o->hidden);
    free(o->layer);
    free(o);
}

struct oracle_cache *oracle_cache_new(const struct oracle *o, int cap)
{
    struct oracle_cache *c = calloc(1, sizeof *c);
    size_t L = (size_t)o->L, rows = (size_t)cap, W = (size_t)((2 * o->K + o->M) * o->d), M = (size_t)o->M,
           d = (size_t)o->d;
    c->cap = cap;
    c->k = calloc(L, sizeof *c->k);
    c->v = calloc(L, sizeof *c->v);
    c->u = calloc(L, sizeof *c->u);
    c->g = calloc(L, sizeof *c->g);
    c->S = calloc(L, sizeof *c->S);
    c->n_state = calloc(L, sizeof *c->n_state);
    for (size_t i = 0; i < L; i++) {
        if (o->layer[i].qkv) {
            c->u[i] = calloc(rows * W, sizeof(double));
            c->g[i] = calloc(rows * 2 * M, sizeof(double));
            c->S[i] = calloc(M * d * d, sizeof(double));
        } else {
            c->k[i] = calloc(rows * (size_t)o->G * (size_t)o->D, sizeof(double));
            c->v[i] = calloc(rows * (size_t)o->G * (size_t)o->D, sizeof(double));
        }
    }
    return c;
}

void oracle_cache_free(const struct oracle *o, struct oracle_cache *c)
{
    if (!c) return;
    for (int i = 0; i < o->L; i++) {
        double *all[] = {c->k[i], c->v[i], c->u[i], c->g[i], c->S[i]};
        for (size_t p = 0; p < sizeof all / sizeof *all; p++) free(all[p]);
    }
    free(c->k);
    free(c->v);
    free(c->u);
    free(c->g);
    free(c->S);
    free(c->n_state);
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
    const int half = o->n_rot / 2;
    for (int i = 0; i < half; i++) {
        double a = pos * pow(o->theta, -2.0 * i / o->n_rot), c = cos(a), s = sin(a), u = x[i],
               v = x[i + half];
        x[i] = u * c - v * s;
        x[i + half] = v * c + u * s;
    }
}

/* Normed and rotated keys, and values, of n rows x [n, E] into the cache at positions pos0 .. (its n is not
 * moved). */
static void put_keys(const struct oracle *o, int layer, struct oracle_cache *c, const double *x, int n,
                     int pos0)
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
static void attend(const struct oracle *o, int layer, const struct oracle_cache *c, const double *q, int head,
                   int pos, int n_keys, double *out, double *score)
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

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* The taps of a branch's convolutions, [n, 2, taps, E / group], from its normed input y [n, E]; NULL: it has
 * none. which: 0 around attention, 1 around the feed-forward. */
static double *conv_taps_of(const struct oracle *o, int layer, int which, const double *y, int n)
{
    const int rows = 2 * o->conv_taps * (o->E / o->conv_group);
    double *taps = o->conv_taps ? malloc((size_t)n * (size_t)rows * sizeof *taps) : NULL;
    if (taps) matmul(taps, o->layer[layer].conv_proj[which], y, n, rows, o->E);
    return taps;
}

/* y [n, E] in place: side 0 before the branch, side 1 behind it; row i reads rows i, i - 1, ... of the block.
 */
static void convolve(const struct oracle *o, int layer, int which, int side, const double *taps, double *y,
                     int n)
{
    const int E = o->E, T = o->conv_taps, G = E / o->conv_group;
    for (int i = n - 1; taps && i >= 0;
         i--) /* from the last row on: those before it are still as they were */
        for (int c = 0; c < E; c++) {
            double sum = 0;
            for (int t = 0; t < T && t <= i; t++)
                sum += (o->layer[layer].conv_base[which][(side * T + t) * E + c] +
                        taps[((i * 2 + side) * T + t) * G + c / o->conv_group]) *
                       y[(size_t)(i - t) * (size_t)E + (size_t)c];
            y[(size_t)i * (size_t)E + (size_t)c] = sum;
        }
}

/* Attention of n rows y [n, E], already normed, added to x. taps: of a DFlash2's convolutions. */
static void attention(const struct oracle *o, int layer, struct oracle_cache *c, double *x, const double *y,
                      int n, int pos0, const double *taps)
{
    const struct oracle_layer *l = &o->layer[layer];
    const int D = o->D, step = (o->hybrid ? 2 : 1) * D; /* a head's query, and its gate behind it */
    size_t rows = (size_t)n, HD = (size_t)o->H * (size_t)D, E = (size_t)o->E;
    double *q = malloc(rows * (size_t)o->H * (size_t)step * sizeof *q), *a = malloc(rows * HD * sizeof *a),
           *sum = malloc(rows * E * sizeof *sum);
    put_keys(o, layer, c, y, n, pos0);
    matmul(q, l->q, y, n, (int64_t)o->H * step, o->E);
#pragma omp parallel for schedule(dynamic)
    for (int ih = 0; ih < n * o->H; ih++) {
        int i = ih / o->H, h = ih % o->H;
        double *qh = q + (size_t)ih * (size_t)step, *ah = a + (size_t)ih * (size_t)D;
        double *score = malloc((size_t)(pos0 + n) * sizeof *score);
        rms_norm(qh, qh, l->q_norm, D, o->eps);
        rope(o, qh, pos0 + i);
        attend(o, layer, c, qh, h, pos0 + i, pos0 + n, ah, score);
        for (int d = 0; o->hybrid && d < D; d++) ah[d] *= sigmoid(qh[D + d]);
        free(score);
    }
    matmul(sum, l->o, a, n, o->E, (int64_t)HD);
    convolve(o, layer, 0, 1, taps, sum, n);
    for (size_t i = 0; i < rows * E; i++) x[i] += sum[i];
    free(q);
    free(a);
    free(sum);
}

/* Position p enters the state S of value head h; out [d], what the head gives there, or NULL. */
static void delta_step(const struct oracle *o, int layer, const struct oracle_cache *c, int p, int h,
                       double *S, double *out)
{
    const struct oracle_layer *l = &o->layer[layer];
    const int d = o->d, W = (2 * o->K + o->M) * d, key = h / (o->M / o->K);
    const int first[3] = {key * d, (o->K + key) * d, (2 * o->K + h) * d};
    double *part = malloc((size_t)d * 3 * sizeof *part), *e = malloc((size_t)d * sizeof *e); /* q, k, v */
    for (int w = 0; w < 3; w++) {
        double norm = 0;
        for (int i = 0; i < d; i++) {
            double s = 0;
            for (int t = 0; t < o->n_conv; t++) { /* the last tap meets the current position */
                int at = p - o->n_conv + 1 + t;
                if (at >= 0)
                    s += l->conv[(first[w] + i) * o->n_conv + t] *
                         c->u[layer][(size_t)at * (size_t)W + (size_t)(first[w] + i)];
            }
            part[w * d + i] = s * sigmoid(s);
            norm += part[w * d + i] * part[w * d + i];
        }
        for (int i = 0; w < 2 && i < d; i++) part[w * d + i] /= sqrt(norm + 1e-6) * (w ? 1 : sqrt(d));
    }
    const double *q = part, *k = part + d, *v = part + 2 * d, *g = c->g[layer] + (size_t)p * 2 * (size_t)o->M;
    const double decay = exp(g[h]), beta = g[o->M + h];
    for (int j = 0; j < d; j++) {
        double s = 0;
        for (int i = 0; i < d; i++) s += (S[i * d + j] *= decay) * k[i];
        e[j] = beta * (v[j] - s);
        double y = 0;
        for (int i = 0; i < d; i++) y += (S[i * d + j] += k[i] * e[j]) * q[i];
        if (out) out[j] = y;
    }
    free(part);
    free(e);
}

/* A gated delta net over n rows y [n, E], already normed, added to x. The kept state first takes in the rows
 * that were committed since the last call; the new rows advance a copy of it. */
static void delta_net(const struct oracle *o, int layer, struct oracle_cache *c, double *x, const double *y,
                      int n, int pos0)
{
    const struct oracle_layer *l = &o->layer[layer];
    size_t rows = (size_t)n, M = (size_t)o->M, d = (size_t)o->d, E = (size_t)o->E,
           W = (size_t)((2 * o->K + o->M) * o->d);
    double *z = malloc(rows * M * d * sizeof *z), *a = malloc(rows * M * sizeof *a),
           *b = malloc(rows * M * sizeof *b);
    double *out = malloc(rows * M * d * sizeof *out), *sum = malloc(rows * E * sizeof *sum),
           *S = malloc(M * d * d * sizeof *S);
    matmul(c->u[layer] + (size_t)pos0 * W, l->qkv, y, n, (int64_t)W, o->E);
    matmul(z, l->z, y, n, (int64_t)(M * d), o->E);
    matmul(a, l->alpha, y, n, o->M, o->E);
    matmul(b, l->beta, y, n, o->M, o->E);
    for (size_t i = 0; i < rows; i++)
        for (size_t h = 0; h < M; h++) {
            double *g = c->g[layer] + ((size_t)pos0 + i) * 2 * M, w = a[i * M + h] + l->dt[h];
            g[h] = -exp(l->a_log[h]) * (w > 30 ? w : log1p(exp(w)));
            g[M + h] = sigmoid(b[i * M + h]);
        }
#pragma omp parallel for schedule(dynamic)
    for (int h = 0; h < o->M; h++) {
        double *kept = c->S[layer] + (size_t)h * d * d, *now = S + (size_t)h * d * d;
        for (int p = c->n_state[layer]; p < pos0; p++) delta_step(o, layer, c, p, h, kept, NULL);
        memcpy(now, kept, d * d * sizeof *now);
        for (int i = 0; i < n; i++) {
            double *y_h = out + ((size_t)i * M + (size_t)h) * d, *z_h = z + ((size_t)i * M + (size_t)h) * d;
            delta_step(o, layer, c, pos0 + i, h, now, y_h);
            rms_norm(y_h, y_h, l->delta_norm, o->d, o->eps);
            for (size_t k = 0; k < d; k++) y_h[k] *= z_h[k] * sigmoid(z_h[k]);
        }
    }
    c->n_state[layer] = pos0;
    matmul(sum, l->out, out, n, o->E, (int64_t)(M * d));
    for (size_t i = 0; i < rows * E; i++) x[i] += sum[i];
    double *all[] = {z, a, b, out, sum, S};
    for (size_t p = 0; p < sizeof all / sizeof *all; p++) free(all[p]);
}

/* One block over x [n, E] at positions pos0 ..; keys 0 .. pos0+n-1 are in the cache after it. */
static void block(const struct oracle *o, int layer, struct oracle_cache *c, double *x, int n, int pos0)
{
    const struct oracle_layer *l = &o->layer[layer];
    size_t E = (size_t)o->E, F = (size_t)o->F, rows = (size_t)n;
    double *y = malloc(rows * E * sizeof *y), *g = malloc(rows * F * sizeof *g),
           *u = malloc(rows * F * sizeof *u);
    for (int i = 0; i < n; i++) rms_norm(y + (size_t)i * E, x + (size_t)i * E, l->attn_norm, o->E, o->eps);
    double *taps = conv_taps_of(o, layer, 0, y, n);
    convolve(o, layer, 0, 0, taps, y, n);
    if (l->qkv)
        delta_net(o, layer, c, x, y, n, pos0);
    else
        attention(o, layer, c, x, y, n, pos0, taps);
    free(taps);
    for (int i = 0; i < n; i++) rms_norm(y + (size_t)i * E, x + (size_t)i * E, l->ffn_norm, o->E, o->eps);
    taps = conv_taps_of(o, layer, 1, y, n);
    convolve(o, layer, 1, 0, taps, y, n);
    matmul(g, l->gate, y, n, o->F, o->E);
    matmul(u, l->up, y, n, o->F, o->E);
    for (size_t i = 0; i < rows * F; i++) g[i] *= sigmoid(g[i]) * u[i];
    matmul(y, l->down, g, n, o->E, o->F);
    convolve(o, layer, 1, 1, taps, y, n);
    free(taps);
    for (size_t i = 0; i < rows * E; i++) x[i] += y[i];
    free(y);
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
                memcpy(taps + ((size_t)i * (size_t)d->n_taps + (size_t)k) * E, x + (size_t)i * E,
                       E * sizeof *x);
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

/* The best of n scores, and how far the second best is. */
static int best_of(const double *x, int n, double *margin)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    *margin = INFINITY;
    for (int i = 0; i < n; i++)
        if (i != best && x[best] - x[i] < *margin) *margin = x[best] - x[i];
    return best;
}

/* DFlash2's choice for a row h [E] (normed) of logits l [V] behind token `before`. */
static int32_t choose(const struct oracle *d, int V, const double *l, const double *h, int32_t before,
                      double *margin)
{
    double *score = malloc((size_t)V * sizeof *score), *r = malloc((size_t)d->rank * sizeof *r),
           last = INFINITY;
    matmul(r, d->hidden, h, 1, d->rank, d->E);
    for (int v = 0; v < V; v++) score[v] = -INFINITY;
    for (int k = 0, id = 0; k < d->candidates; k++) { /* the largest logits, one after the other */
        int best = -1;
        for (int v = 0; v < V; v++)
            if ((l[v] < last || (l[v] == last && v > id)) && (best < 0 || l[v] > l[best])) best = v;
        id = best, last = l[best];
        score[id] = l[id];
        for (int i = 0; i < d->rank; i++)
            score[id] += d->before[before * d->rank + i] * r[i] * d->after[id * d->rank + i];
    }
    const int id = best_of(score, V, margin);
    free(score);
    free(r);
    return id;
}

void oracle_draft(const struct oracle *d, const struct oracle *t, struct oracle_cache *c, int32_t anchor,
                  double *logits, int32_t *ids, double *tops, double *margins)
{
    size_t E = (size_t)d->E;
    double *x = malloc((size_t)d->block * E * sizeof *x);
    for (int i = 0; i < d->block; i++)
        memcpy(x + (size_t)i * E, t->embed + (size_t)(i ? d->mask_id : anchor) * E, E * sizeof *x);
    for (int l = 0; l < d->L; l++) block(d, l, c, x, d->block, c->n);
    for (int i = 0; i < d->block; i++) rms_norm(x + (size_t)i * E, x + (size_t)i * E, d->norm, d->E, d->eps);
    matmul(logits, t->head, x, d->block, t->V, d->E);
    for (int i = 0; i < d->block * t->V; i++) {
        logits[i] *= d->multiplier;
        if (d->cap > 0) logits[i] = d->cap * tanh(logits[i] / d->cap);
    }
    for (int i = 1; ids && i < d->block; i++) {
        const double *l = logits + (size_t)i * (size_t)t->V;
        const int top = best_of(l, t->V, &margins[i - 1]);
        ids[i - 1] = top, tops[i - 1] = l[top];
        if (!d->conv_taps) continue;
        ids[i - 1] = choose(d, t->V, l, x + (size_t)i * E, i > 1 ? ids[i - 2] : anchor, &margins[i - 1]);
        if (i > 1 && margins[i - 2] < margins[i - 1]) margins[i - 1] = margins[i - 2];
    }
    free(x);
}
