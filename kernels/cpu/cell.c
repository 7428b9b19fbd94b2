/* cell.c - what stands between the products of a drafter's chain of picks. */
#include "cpu.h"
#include "rows.h"

#include <math.h>

int cpu_cell(struct kn_backend *kb, const struct kn_cell *a)
{
    struct cpu_backend *be = cpu_of(kb);
    const bool three = a->kind == KN_CELL_MARKOV || a->kind == KN_CELL_GRU;
    if (a->width < 1 || a->kind > KN_CELL_LOGP || !a->x || (three && !a->next) ||
        (a->kind != KN_CELL_GRU && !a->out) || (a->kind == KN_CELL_GATE && !a->e) ||
        (a->kind == KN_CELL_GRU && !a->h != !a->state))
        return cpu_fail(be, KN_EINVAL, "cell: kind %d of %d numbers", (int)a->kind, a->width);
    be->isa->rows->cell(a);
    return 0;
}

struct spread_job {
    float *out;
    int64_t n_out, n_x;
    const float *x;
    const int32_t *from;
};

static void spread_row(void *ctx, int64_t i, int thread)
{
    const struct spread_job *j = ctx;
    float *out = j->out + i * j->n_out;
    const float *x = j->x + i * j->n_x;
    (void)thread;
    for (int64_t v = 0; v < j->n_out; v++) out[v] = j->from[v] < 0 ? -INFINITY : x[j->from[v]];
}

int cpu_spread(struct kn_backend *kb, float *out, int64_t n_out, const float *x, int64_t n_x,
               const int32_t *from, int32_t n)
{
    struct cpu_backend *be = cpu_of(kb);
    if (n < 1 || n_out < 1 || n_x < 1 || n_x > n_out)
        return cpu_fail(be, KN_EINVAL, "spread: %d rows of %lld among %lld", n, (long long)n_x,
                        (long long)n_out);
    for (int64_t v = 0; v < n_out; v++)
        if (from[v] >= n_x)
            return cpu_fail(be, KN_EINVAL, "spread: number %d for %lld (expected below %lld)", from[v],
                            (long long)v, (long long)n_x);
    struct spread_job job = {out, n_out, n_x, x, from};
    cpu_share(be, n, n * n_out >= CPU_SHARE, spread_row, &job);
    return 0;
}
