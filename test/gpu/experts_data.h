/* experts_data.h - what experts_gpu.c and experts_bench.c share: matrices of experts, rows, and what they
 * choose. */
#ifndef DFLASH_EXPERTS_DATA_H
#define DFLASH_EXPERTS_DATA_H

#include "../../kernels/cuda/core/cuda.h"
#include "../block_scales.h"
#include "harness.h"

static struct kn_backend *gpu;

static void *host_alloc(size_t bytes)
{
    void *p = calloc(1, bytes ? bytes : 1);
    if (!p) {
        printf("FAIL gpu/experts: no memory\n");
        exit(1);
    }
    return p;
}

static uint32_t rnd32(void)
{
    return (uint32_t)(rnd() >> 32);
}

/* ---- weights, activations, choices ---- */

struct matrices {
    uint32_t type;
    int32_t n_mat;
    int64_t n_in, n_out;
    uint8_t *file;
    struct kn_weight w;
};

static void encode_row(uint32_t type, uint8_t *dst, int64_t n)
{
    const struct kn_type_info *t = kn_type_info(type);
    float *x = host_alloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = (float)((int32_t)rnd32() * 0x1p-31);
    if (kn_encode_row(type, x, dst, n, NULL)) /* any codes */
        for (size_t i = 0; i < kn_row_bytes(t->type, n); i++) {
            dst[i] = (uint8_t)rnd32();
            if (i % t->bytes == t->bytes - 1)
                block_set_scales(type, dst + i + 1 - t->bytes, 0x1p-6f, 0x1p-6f);
        }
    free(x);
}

static struct matrices matrices_make(uint32_t type, int32_t n_mat, int64_t n_out, int64_t n_in)
{
    struct matrices m = {.type = type, .n_mat = n_mat, .n_in = n_in, .n_out = n_out};
    const size_t row = kn_row_bytes(type, n_in), rows = (size_t)(n_mat * n_out);
    m.file = host_alloc(rows * row);
    for (size_t i = 0; i < rows; i++)
        if (i < 300)
            encode_row(type, m.file + i * row, n_in);
        else /* of those, in another order */
            memcpy(m.file + i * row, m.file + rnd32() % 300 * row, row);
    must(gpu, "experts_load", kn_op(gpu)->experts_load(gpu, &m.w, type, n_in, n_out, n_mat, m.file));
    return m;
}

static void matrices_free(struct matrices *m)
{
    kn_op(gpu)->weight_free(gpu, &m->w);
    free(m->file);
}

static void integers(float *x, size_t n, float scale)
{
    for (size_t i = 0; i < n; i++) {
        const int32_t v = (int32_t)(rnd32() % 255) - 127;
        x[i] = scale * (float)(i % 32 == 5 ? 127 : v);
    }
}

enum routing { MIXED, SAME, APART };
static const char *const routing_names[] = {"mixed", "the same", "apart"};

static void choose(int32_t *ids, int n, int used, int n_mat, enum routing how)
{
    for (int i = 0; i < n; i++)
        for (int j = 0; j < used; j++) {
            int id = how == SAME    ? j
                     : how == APART ? (i * used + j) % n_mat
                                    : (int)(rnd32() % (uint32_t)n_mat);
            for (bool again = how == MIXED; again;) { /* a row's experts differ */
                again = false;
                for (int k = 0; k < j; k++)
                    if (ids[i * used + k] == id) id = (id + 1) % n_mat, again = true;
            }
            ids[i * used + j] = id;
        }
}

struct shape {
    const char *name;
    int32_t n_mat, used;
    int64_t embd, ff;
    uint32_t gate, down;
    enum kn_act act;
};

struct data {
    const struct shape *s;
    struct matrices gate, up, down;
    int n;
    float *x, *h, *weights, *old; /* [n, embd], [n, used, ff], [n, used], [n, embd] */
    float *norm;
    int32_t *ids;
    float *d_x, *d_h, *d_weights, *d_norm, *d_out;
    int32_t *d_ids;
    size_t hidden, out; /* values of a row */
};
static const float norm_weight = 0.75f, eps = 1e-6f;

static void data_make(struct data *d, const struct shape *s, int n, enum routing how)
{
    d->n = n;
    d->hidden = (size_t)(s->used * s->ff), d->out = (size_t)s->embd;
    d->x = host_alloc((size_t)n * d->out * 4);
    d->h = host_alloc((size_t)n * d->hidden * 4);
    d->weights = host_alloc((size_t)(n * s->used) * 4);
    d->old = host_alloc((size_t)n * d->out * 4);
    d->norm = host_alloc(d->out * 4);
    d->ids = host_alloc((size_t)(n * s->used) * 4);
    integers(d->x, (size_t)n * d->out, 0.125f);
    integers(d->h, (size_t)n * d->hidden, 0.25f);
    for (int i = 0; i < n * s->used; i++) d->weights[i] = (float)(rnd32() >> 8) * 0x1p-24f;
    for (size_t i = 0; i < (size_t)n * d->out; i++) d->old[i] = (float)((int32_t)rnd32() * 0x1p-28);
    for (size_t i = 0; i < d->out; i++) d->norm[i] = norm_weight;
    choose(d->ids, n, s->used, s->n_mat, how);
    d->d_x = put(gpu, d->x, (size_t)n * d->out * 4);
    d->d_h = put(gpu, d->h, (size_t)n * d->hidden * 4);
    d->d_weights = put(gpu, d->weights, (size_t)(n * s->used) * 4);
    d->d_norm = put(gpu, d->norm, d->out * 4);
    d->d_ids = put(gpu, d->ids, (size_t)(n * s->used) * 4);
    d->d_out = put(gpu, NULL, (size_t)n * (d->hidden > d->out ? d->hidden : d->out) * 4);
}

static void data_free(struct data *d)
{
    void *device[] = {d->d_x, d->d_h, d->d_weights, d->d_norm, d->d_ids, d->d_out};
    void *host[] = {d->x, d->h, d->weights, d->old, d->norm, d->ids};
    for (int i = 0; i < 6; i++) {
        drop(gpu, device[i]);
        free(host[i]);
    }
}

#endif
