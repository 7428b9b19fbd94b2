/* delta_ref.h - a gated delta net layer with random weights, and what it computes, in double, with the error
 * that float may have. For the tests of the CPU and of the devices. */
#ifndef TEST_DELTA_REF_H
#define TEST_DELTA_REF_H

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "../../../kernels/kernels.h"
#include "../rnd.h"

#define EPS32 0x1p-24 /* half an ulp of 1: the rounding of one float operation */

static inline void *layer_alloc(size_t bytes)
{
    void *p = calloc(1, bytes ? bytes : 1);
    if (!p) abort();
    return p;
}

struct shape {
    int n_k, n_v, d_k, d_v, n_conv;
};

/* The inputs of n rows and the layer's weights. */
struct layer {
    struct shape s;
    int n;
    size_t width, size; /* of a row of qkv, and of out and z */
    float *qkv, *alpha, *beta, *z, *conv, *a, *dt, *norm;
};

static inline float *normal(size_t n, float sigma, uint64_t *seed)
{
    float *x = layer_alloc(n * sizeof *x);
    rnd_fill(x, n, sigma, seed);
    return x;
}

static inline struct layer layer_make(const struct shape *s, int n, uint64_t seed)
{
    struct layer l = {.s = *s, .n = n, .size = (size_t)(s->n_v * s->d_v)};
    l.width = 2 * (size_t)(s->n_k * s->d_k) + l.size;
    l.qkv = normal((size_t)n * l.width, 1.0f, &seed);
    l.alpha = normal((size_t)(n * s->n_v), 2.0f, &seed);
    l.beta = normal((size_t)(n * s->n_v), 2.0f, &seed);
    l.z = normal((size_t)n * l.size, 1.0f, &seed);
    l.conv = normal(l.width * (size_t)s->n_conv, 0.5f, &seed);
    l.a = normal((size_t)s->n_v, 1.0f, &seed);
    l.dt = normal((size_t)s->n_v, 1.0f, &seed);
    l.norm = normal((size_t)s->d_v, 1.0f, &seed);
    for (int i = 0; i < s->n_v; i++) l.a[i] = -expf(l.a[i] - 2); /* decays from hardly any to a half */
    return l;
}

/* Rows from row from on, n of them, of l, whose arrays lie where the backend works, as out's rows do. */
static inline struct kn_delta layer_call(const struct layer *l, const struct kn_delta_state *state, int from,
                                         int n, const int32_t *pending, bool commit, float *out)
{
    const struct shape *s = &l->s;
    return (struct kn_delta){.qkv = l->qkv + (size_t)from * l->width,
                             .alpha = l->alpha + from * s->n_v,
                             .beta = l->beta + from * s->n_v,
                             .z = l->z + (size_t)from * l->size,
                             .conv = l->conv,
                             .a = l->a,
                             .dt = l->dt,
                             .norm = l->norm,
                             .eps = 1e-6f,
                             .out = out + (size_t)from * l->size,
                             .n = n,
                             .n_k = s->n_k,
                             .n_v = s->n_v,
                             .d_k = s->d_k,
                             .d_v = s->d_v,
                             .n_conv = s->n_conv,
                             .state = state,
                             .pending = pending,
                             .commit = commit};
}

static inline void layer_free(struct layer *l)
{
    free(l->qkv), free(l->alpha), free(l->beta), free(l->z), free(l->conv), free(l->a), free(l->dt),
        free(l->norm);
}

struct reference {
    double *s, *out, *u, *bound_s, *bound_out;
    double *mass; /* NULL; in blocks: of every element of s, the sum of the sizes of what makes it */
};

/* Products of blocks of tokens on tensor cores, of factors that are two bf16 each: 2^-18 a factor, the
 * product of the low parts 2^-18, and sums that truncate, 2^-18 in 24 steps. */
#define UNIT_BLOCKS 0x1p-16

static inline double silu(double x)
{
    return x / (1 + exp(-x));
}

/* One row of the layer; u [width] is scratch. The bounds beside: an element of S takes three roundings a
 * token of itself and the error of e; the latter's sums have d_k / 32 + 6 roundings of the masses |S||k| and
 * |S||q|. A token shrinks what it finds, so errors of tokens add. The inputs k, q, v carry the errors of a
 * convolution, silu and a norm: 12 roundings each.
 * All that is a worst case; of errors of random signs a 64th is asked for (a 16th of the state's), and a slip
 * shows.
 *
 * In blocks (r->mass) products have errors of UNIT_BLOCKS of the sizes of their terms, which are those of the
 * state taken apart: mass, |e_j| |k_j|^T decayed. Of e_t: S k and the block's k_t . k_j, each mass |k_t|; the
 * inverse T and its product with X, to first order another two of mass |k_t| and |v|. A token's decay shrinks
 * errors as it shrinks the state. Of o: the products with q and P, each mass |q|. Of S itself: mass
 * (reference_of). Such errors are fewer and larger than those of single roundings, so a quarter is asked for
 * (also of the state's). */
static inline void reference_row(const struct layer *l, struct reference *r, int t)
{
    const struct shape *s = &l->s;
    for (size_t c = 0; c < l->width; c++) {
        double x = 0;
        for (int j = 0; j < s->n_conv; j++) {
            const int from = t - (s->n_conv - 1) + j;
            if (from >= 0)
                x += (double)l->conv[c * (size_t)s->n_conv + (size_t)j] * l->qkv[(size_t)from * l->width + c];
        }
        r->u[c] = silu(x);
    }
    for (int h = 0; h < 2 * s->n_k; h++) {
        double *x = r->u + h * s->d_k, ss = 0;
        for (int i = 0; i < s->d_k; i++) ss += x[i] * x[i];
        for (int i = 0; i < s->d_k; i++) x[i] /= sqrt(ss + 1e-6) * (h < s->n_k ? sqrt(s->d_k) : 1);
    }
    for (int h = 0; h < s->n_v; h++) {
        const double *q = r->u + h % s->n_k * s->d_k, *k = q + s->n_k * s->d_k,
                     *v = r->u + 2 * s->n_k * s->d_k + h * s->d_v;
        const double g = l->a[h] * log1p(exp((double)l->alpha[t * s->n_v + h] + l->dt[h])),
                     b = 1 / (1 + exp(-(double)l->beta[t * s->n_v + h]));
        double *o = r->out + (size_t)t * l->size + h * s->d_v,
               *bo = r->bound_out + (size_t)t * l->size + h * s->d_v, ss = 0;
        for (int i = 0; i < s->d_v; i++) {
            double *S = r->s + (size_t)(h * s->d_v + i) * (size_t)s->d_k, *bs = r->bound_s + h * s->d_v + i;
            double *M = r->mass ? r->mass + (S - r->s) : NULL, sk = 0, mass = 0, big = 0, apart = 0;
            o[i] = 0, bo[i] = 0;
            for (int j = 0; j < s->d_k; j++) {
                S[j] *= exp(g);
                sk += S[j] * k[j];
                mass += fabs(S[j] * k[j]);
                big = fmax(big, fabs(S[j]));
                if (M) M[j] *= exp(g), apart += M[j] * fabs(k[j]);
            }
            const double e = b * (v[i] - sk);
            if (M) *bs = *bs * exp(g) + UNIT_BLOCKS * (4 * apart + 2 * fabs(v[i]));
            *bs += EPS32 * (3 * big + (s->d_k / 32 + 30) * (mass + fabs(v[i])));
            for (int j = 0; j < s->d_k; j++) {
                S[j] += e * k[j];
                o[i] += S[j] * q[j];
                bo[i] += fabs(S[j] * q[j]) * EPS32 * (s->d_k / 32 + 30) + *bs * fabs(q[j]);
                if (M) M[j] += fabs(e * k[j]), bo[i] += 2 * UNIT_BLOCKS * M[j] * fabs(q[j]);
            }
            ss += o[i] * o[i];
        }
        const double rms = sqrt(ss / s->d_v + 1e-6);
        double worst = 0;
        for (int i = 0; i < s->d_v; i++) worst = fmax(worst, bo[i]);
        for (int i = 0; i < s->d_v; i++) {
            const double z = silu(l->z[(size_t)t * l->size + (size_t)(h * s->d_v + i)]) * l->norm[i];
            bo[i] = (bo[i] + fabs(o[i]) / rms * worst) / rms * fabs(z) / (r->mass ? 4 : 64) +
                    EPS32 * 20 * fabs(o[i] / rms * z);
            o[i] *= z / rms;
        }
    }
}

static inline struct reference reference_of(const struct layer *l, bool blocks)
{
    const size_t n = (size_t)l->n * l->size, n_s = l->size * (size_t)l->s.d_k;
    struct reference r = {.s = layer_alloc(n_s * 8),
                          .out = layer_alloc(n * 8),
                          .u = layer_alloc(l->width * 8),
                          .bound_s = layer_alloc(l->size * 8),
                          .bound_out = layer_alloc(n * 8),
                          .mass = blocks ? layer_alloc(n_s * 8) : NULL};
    for (int t = 0; t < l->n; t++) reference_row(l, &r, t);
    for (size_t i = 0; blocks && i < l->size; i++) {
        double most = 0;
        for (size_t j = 0; j < (size_t)l->s.d_k; j++) most = fmax(most, r.mass[i * (size_t)l->s.d_k + j]);
        r.bound_s[i] += UNIT_BLOCKS * most;
    }
    return r;
}

static inline struct reference reference_make(const struct layer *l)
{
    return reference_of(l, false);
}

static inline void reference_free(struct reference *r)
{
    free(r->s), free(r->out), free(r->u), free(r->bound_s), free(r->bound_out), free(r->mass);
}

#endif
