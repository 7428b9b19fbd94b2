/* place.c - which experts of a model stay in the host's memory. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "../base/mem.h"
#include "../file/imatrix.h"
#include "model.h"

/* How often each expert of layer i was chosen. */
static int chosen(const struct model *m, int32_t i, const struct imatrix *counts, double *times,
                  struct err *e)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%" PRId32 ".ffn_down_exps.weight", m->d->first_block + i);
    const struct gguf_tensor *t = gguf_tensor(m->file, name);
    struct imatrix_entry *at = imatrix_find(counts, name);
    if (!t || !at)
        return err_set(e, ERR_FORMAT, "%s: is missing (expected how often each of %d experts was chosen)",
                       name, m->d->n_expert);
    if (imatrix_fit(at, t->ne[0], t->ne[2], e)) return -1;
    memcpy(times, at->count, (size_t)m->d->n_expert * sizeof *times);
    return 0;
}

/* The n of n_all that were chosen least, of equals the last, in rising order of their ids. */
static void least(const double *times, int32_t n_all, int32_t n, int32_t *ids)
{
    for (int32_t x = 0, k = 0; x < n_all; x++) {
        int32_t before = 0; /* that go first */
        for (int32_t y = 0; y < n_all; y++) before += times[y] < times[x] || (times[y] == times[x] && y > x);
        if (before < n) ids[k++] = x;
    }
}

static int take(struct model *m, int32_t n, struct err *e)
{
    const struct desc *d = m->d;
    if (!d->n_expert) return err_set(e, ERR_USAGE, "--experts-host: the target has no experts");
    if (n >= d->n_expert)
        return err_set(e, ERR_USAGE, "--experts-host: too many (expected at most %d of %d experts, got %d)",
                       d->n_expert - 1, d->n_expert, n);
    mem_free(m->host);
    m->host = mem_calloc((size_t)d->n_layer * (size_t)n, sizeof *m->host);
    if (!m->host) return err_set(e, ERR_IO, "out of memory (places of experts)");
    m->n_host = n;
    return 0;
}

int model_place(struct model *m, int32_t n, const struct imatrix *counts, struct err *e)
{
    const struct desc *d = m->d;
    int rc = -1;
    if (n == 0) return 0;
    if (take(m, n, e)) return -1;
    if (counts && counts->by_chunks)
        return err_set(e, ERR_FORMAT,
                       "counts chunks (expected an importance matrix that counts the rows of each expert)");
    double *times = mem_calloc((size_t)d->n_expert, sizeof *times);
    if (!times) return err_set(e, ERR_IO, "out of memory (places of experts)");
    for (int32_t i = 0; i < d->n_layer; i++) {
        if (!d->layer[i].moe) continue;
        if (counts && chosen(m, i, counts, times, e)) goto out;
        least(times, d->n_expert, n, m->host + (size_t)i * (size_t)n);
    }
    rc = 0;
out:
    mem_free(times);
    return rc;
}

int model_place_like(struct model *m, const struct model *other, struct err *e)
{
    if (!other || !other->n_host) return 0;
    if (take(m, other->n_host, e)) return -1;
    memcpy(m->host, other->host, (size_t)m->d->n_layer * (size_t)m->n_host * sizeof *m->host);
    return 0;
}

uint64_t model_host_bytes(const struct model *m)
{
    uint64_t sum = 0;
    for (int32_t i = 0; i < m->d->n_layer && m->n_host; i++) {
        const struct kn_weight *w[] = {&m->layer[i].gate_x, &m->layer[i].up_x, &m->layer[i].down_x};
        for (int j = 0; j < 3 && m->d->layer[i].moe; j++)
            sum += (uint64_t)m->n_host * (uint64_t)w[j]->n_out * kn_row_bytes(w[j]->type, w[j]->n_in);
    }
    return sum;
}
