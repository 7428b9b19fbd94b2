/* perplexity.c - see perplexity.h. */
#include "perplexity.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "../base/io.h"
#include "../base/mem.h"
#include "../file/kl_base.h"

void perplexity_begin(struct perplexity *p, int32_t n_vocab, bool base)
{
    *p = (struct perplexity){.n_vocab = n_vocab, .base = base};
}

void perplexity_free(struct perplexity *p)
{
    mem_free(p->each);
    mem_free(p->row);
    *p = (struct perplexity){0};
}

/* Of a reference: probabilities below exp(-16) are not in the file (kl_base.h) and count for nothing. */
static void beside_base(const float *row, int32_t n, double log_sum, int32_t top, int32_t next,
                        const uint8_t *base, struct perplexity_row *out)
{
    const uint8_t *codes = base + 8;
    float scale, least;
    uint16_t code, best = 0, of_next;
    int32_t base_top = 0;
    double kl = 0;
    kl_row_scale(base, &scale, &least);
    for (int32_t i = 0; i < n; i++) {
        memcpy(&code, codes + 2 * (size_t)i, 2);
        if (i == 0 || code > best) best = code, base_top = i;
        const double log_p = (double)scale * code + (double)least;
        if (log_p > -16) kl += exp(log_p) * (log_p - ((double)row[i] - log_sum));
    }
    memcpy(&of_next, codes + 2 * (size_t)next, 2);
    out->base_nll = -((double)scale * of_next + (double)least);
    out->kl = kl;
    out->p_diff = exp(-out->nll) - exp(-out->base_nll);
    out->same_top = top == base_top;
}

void perplexity_row_of(const float *row, int32_t n, int32_t next, const uint8_t *base,
                       struct perplexity_row *out)
{
    int32_t top = 0;
    double sum = 0;
    for (int32_t i = 1; i < n; i++)
        if (row[i] > row[top]) top = i;
    for (int32_t i = 0; i < n; i++) sum += exp((double)row[i] - (double)row[top]);
    const double log_sum = (double)row[top] + log(sum);
    *out = (struct perplexity_row){.nll = log_sum - (double)row[next]};
    if (base) beside_base(row, n, log_sum, top, next, base, out);
}

static int make_room(struct perplexity *p, int32_t n, struct err *e)
{
    if (n > p->row_room) {
        void *q = mem_realloc(p->row, (size_t)n * sizeof *p->row);
        if (!q) return err_set(e, ERR_IO, "out of memory (%d rows)", n);
        p->row = q;
        p->row_room = n;
    }
    if (p->base && p->n + n > p->room) {
        const int64_t room = 2 * (p->n + n);
        void *q = mem_realloc(p->each, (size_t)room * sizeof *p->each);
        if (!q) return err_set(e, ERR_IO, "out of memory (divergences of %lld rows)", (long long)room);
        p->each = q;
        p->room = room;
    }
    return 0;
}

static void sum_row(struct perplexity *p, const struct perplexity_row *r)
{
    const double d2 = r->p_diff * r->p_diff;
    p->nll += r->nll;
    p->nll2 += r->nll * r->nll;
    if (p->base) {
        p->base_nll += r->base_nll;
        p->base_nll2 += r->base_nll * r->base_nll;
        p->nll_base_nll += r->nll * r->base_nll;
        p->kl += r->kl;
        p->kl2 += r->kl * r->kl;
        p->p_diff += r->p_diff;
        p->p_diff2 += d2;
        p->p_diff4 += d2 * d2;
        p->same_top += r->same_top;
        p->each[p->n] = r->kl;
    }
    p->n++;
}

int perplexity_add(struct perplexity *p, const float *rows, int32_t n, const int32_t *next,
                   const uint8_t *base, struct err *e)
{
    const size_t bytes = kl_row_bytes(p->n_vocab);
    const int threads = p->threads > 0 ? p->threads : omp_get_num_procs();
    if (make_room(p, n, e)) return -1;
    io_team_begin();
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int32_t i = 0; i < n; i++)
        perplexity_row_of(rows + (size_t)i * (size_t)p->n_vocab, p->n_vocab, next[i],
                          base ? base + (size_t)i * bytes : NULL, &p->row[i]);
    io_team_end();
    for (int32_t i = 0; i < n; i++) sum_row(p, &p->row[i]);
    return 0;
}

/* ---- what is said of the rows ---- */

/* A mean and its standard error, of n values with these sums; variances that rounding makes negative are 0.
 */
static struct estimate mean_of(double sum, double sum2, int64_t n)
{
    const double mean = sum / (double)n, variance = sum2 / (double)n - mean * mean;
    return (struct estimate){mean, n > 1 ? sqrt((variance > 0 ? variance : 0) / (double)(n - 1)) : NAN};
}

struct estimate perplexity_nll(const struct perplexity *p)
{
    return mean_of(p->nll, p->nll2, p->n);
}

static struct estimate exp_of(struct estimate x)
{
    return (struct estimate){exp(x.value), x.error * exp(x.value)};
}

struct estimate perplexity_ppl(const struct perplexity *p)
{
    return exp_of(perplexity_nll(p));
}

struct estimate perplexity_base_ppl(const struct perplexity *p)
{
    return exp_of(mean_of(p->base_nll, p->base_nll2, p->n));
}

struct estimate perplexity_ln_ratio(const struct perplexity *p)
{
    const double d = p->nll - p->base_nll, d2 = p->nll2 + p->base_nll2 - 2 * p->nll_base_nll;
    return mean_of(d, d2, p->n);
}

struct estimate perplexity_kl(const struct perplexity *p)
{
    return mean_of(p->kl, p->kl2, p->n);
}

struct estimate perplexity_p_rms(const struct perplexity *p)
{
    const struct estimate square = mean_of(p->p_diff2, p->p_diff4, p->n);
    const double rms = sqrt(square.value);
    return (struct estimate){rms, rms > 0 ? square.error / (2 * rms) : 0};
}

struct estimate perplexity_same_top(const struct perplexity *p)
{
    return mean_of((double)p->same_top, (double)p->same_top, p->n); /* squares of 0 and 1 are themselves */
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double perplexity_kl_quantile(struct perplexity *p, double q)
{
    if (!p->n || !p->each) return NAN;
    qsort(p->each, (size_t)p->n, sizeof *p->each, ascending);
    const double at = q * (double)(p->n - 1);
    const int64_t i = (int64_t)at;
    return i + 1 < p->n ? p->each[i] + (at - (double)i) * (p->each[i + 1] - p->each[i]) : p->each[p->n - 1];
}
