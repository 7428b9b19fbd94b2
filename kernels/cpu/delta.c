/* delta.c - the gated delta net layer: what is replayed, what is kept, and key heads shared among threads.
 *
 * The tokens of a call are the pending rows of the log, then the call's own. An item is a key head with some
 * of its value heads: it convolves its channels, then takes each head's state through all tokens. Only when
 * every item is done do the convolution's state and the log change, which all of them read. */
#include "cpu.h"
#include "rows.h"

#include <string.h>

#define RUN_FINAL 16

struct delta_job {
    struct cpu_backend *be;
    const struct kn_delta *a;
    int64_t width;
    int32_t pending, parts;
};

size_t cpu_delta_scratch(const struct cpu_backend *be)
{
    return (size_t)be->threads * CPU_DELTA_FLOATS * sizeof(float);
}

/* Is the state advanced over all rows? */
static bool is_final(const struct delta_job *j)
{
    return j->a->commit && j->pending + j->a->n >= j->a->every;
}

/* The convolution's input at token i of the call; below 0 what went before it. */
static const float *input(const struct delta_job *j, int64_t i)
{
    const struct kn_delta *a = j->a;
    if (i < 0) return a->state->conv + (i + a->n_conv - 1) * j->width;
    if (i < j->pending) return a->state->log + i * (j->width + 2 * a->n_v);
    return a->qkv + (i - j->pending) * j->width;
}

/* A tree: its first path with what is pending before it, then each other path from the state that stands
 * there. What paths share is run again for each. */
static void delta_paths(const struct delta_job *j, struct cpu_delta *w, const float **in, const float **alpha,
                        const float **beta)
{
    const struct kn_delta *a = j->a;
    const struct kn_tree *tree = a->tree;
    const int32_t before = a->n_conv - 1;
    for (int32_t l = 0; l < tree->n_leaves; l++) {
        const int32_t leaf = tree->leaf[l], n = tree->pos[leaf] - tree->pos[0] + 1, from = l ? j->pending : 0;
        w->rows = tree->path[leaf];
        w->n_tokens = j->pending - from + n;
        w->replay = w->advance = j->pending - from;
        for (int32_t t = 0; t < w->n_tokens + before; t++) {
            const int32_t at = from + t - before, row = at - j->pending;
            in[t] = row < 0 ? input(j, at) : a->qkv + w->rows[row] * j->width;
        }
        for (int32_t t = 0; t < w->n_tokens; t++) {
            const int32_t row = from + t - j->pending;
            alpha[t] = row < 0 ? input(j, from + t) + j->width : a->alpha + w->rows[row] * a->n_v;
            beta[t] = row < 0 ? alpha[t] + a->n_v : a->beta + w->rows[row] * a->n_v;
        }
        j->be->isa->rows->delta(w);
    }
}

static void delta_item(void *ctx, int64_t item, int thread)
{
    const struct delta_job *j = ctx;
    const struct kn_delta *a = j->a;
    const int32_t part = (int32_t)(item % j->parts), n_rep = a->n_v / a->n_k, all = j->pending + a->n;
    const float *in[CPU_DELTA_TOKENS + CPU_DELTA_TAPS], *alpha[CPU_DELTA_TOKENS], *beta[CPU_DELTA_TOKENS];
    struct cpu_delta w = {.a = a,
                          .in = in,
                          .alpha = alpha,
                          .beta = beta,
                          .k_head = (int32_t)(item / j->parts),
                          .first = part * n_rep / j->parts,
                          .end = (part + 1) * n_rep / j->parts,
                          .scratch = (float *)j->be->scratch_rows + (size_t)thread * CPU_DELTA_FLOATS};
    if (a->tree) {
        delta_paths(j, &w, in, alpha, beta);
        return;
    }
    /* One run, but for rows that are final: their q and k then stay in the first-level cache. */
    const int32_t run = !a->commit ? CPU_DELTA_TOKENS : j->pending > RUN_FINAL ? j->pending : RUN_FINAL;
    for (int32_t at = 0; at < all; at += w.n_tokens) {
        w.n_tokens = all - at < run ? all - at : run;
        w.replay = at ? 0 : j->pending;
        w.advance = is_final(j) ? w.n_tokens : a->commit ? 0 : w.replay;
        w.row = at ? at - j->pending : 0;
        for (int32_t t = 0; t < w.n_tokens + a->n_conv - 1; t++)
            in[t] = input(j, (int64_t)at + t - (a->n_conv - 1));
        for (int32_t t = 0; t < w.n_tokens; t++) {
            const int64_t row = (int64_t)at + t - j->pending;
            alpha[t] = row < 0 ? input(j, at + t) + j->width : a->alpha + row * a->n_v;
            beta[t] = row < 0 ? alpha[t] + a->n_v : a->beta + row * a->n_v;
        }
        j->be->isa->rows->delta(&w);
    }
}

static void log_row(void *ctx, int64_t i, int thread)
{
    const struct delta_job *j = ctx;
    const struct kn_delta *a = j->a;
    float *log = a->state->log + (i + (a->commit ? j->pending : 0)) * (j->width + 2 * a->n_v);
    const size_t gates = (size_t)a->n_v * sizeof *log;
    (void)thread;
    memcpy(log, a->qkv + i * j->width, (size_t)j->width * sizeof *log);
    memcpy(log + j->width, a->alpha + i * a->n_v, gates);
    memcpy(log + j->width + a->n_v, a->beta + i * a->n_v, gates);
}

static int check(struct cpu_backend *be, const struct kn_delta *a)
{
    if (a->n_k < 1 || a->n_v < 1 || a->n_v % a->n_k)
        return cpu_fail(be, KN_ETYPE, "delta: %d value heads over %d key heads", a->n_v, a->n_k);
    if (a->d_k < 1 || a->d_v < 1 || a->d_k > CPU_DELTA_HEAD || a->d_v > CPU_DELTA_HEAD)
        return cpu_fail(be, KN_ETYPE, "delta: heads of %d and %d (expected 1 to %d)", a->d_k, a->d_v,
                        CPU_DELTA_HEAD);
    if (a->n_conv < 1 || a->n_conv > CPU_DELTA_TAPS)
        return cpu_fail(be, KN_ETYPE, "delta: a convolution of %d (expected 1 to %d)", a->n_conv,
                        CPU_DELTA_TAPS);
    if (a->n < 0 || (!a->commit && a->n > KN_DELTA_LOG))
        return cpu_fail(be, KN_EINVAL, "delta: %d rows (expected at most %d that may still be rejected)",
                        a->n, KN_DELTA_LOG);
    if (a->every && (a->n != 1 || !a->commit || a->every < 2 || a->every > KN_DELTA_EVERY))
        return cpu_fail(be, KN_EINVAL, "delta: a state every %d rows, of %d (expected 2 to %d, of one)",
                        a->every, a->n, KN_DELTA_EVERY);
    if (a->tree && (a->commit || a->n < 1))
        return cpu_fail(be, KN_EINVAL, "delta: %d rows of a tree that are final", a->n);
    if (!a->state || !a->pending)
        return cpu_fail(be, KN_EINVAL, "delta: no state, or no number of pending rows");
    if (*a->pending < 0 || *a->pending > KN_DELTA_LOG)
        return cpu_fail(be, KN_EINVAL, "delta: %d pending rows (expected 0 to %d)", *a->pending,
                        KN_DELTA_LOG);
    if (cpu_delta_scratch(be) > be->scratch_rows_bytes)
        return cpu_fail(be, KN_EINVAL, "delta: %zu bytes of scratch, %zu are reserved", cpu_delta_scratch(be),
                        be->scratch_rows_bytes);
    return 0;
}

int cpu_delta(struct kn_backend *kb, const struct kn_delta *a)
{
    struct cpu_backend *be = cpu_of(kb);
    const int rc = check(be, a);
    if (rc) return rc;
    struct delta_job j = {.be = be,
                          .a = a,
                          .width = 2 * (int64_t)a->n_k * a->d_k + (int64_t)a->n_v * a->d_v,
                          .pending = *a->pending};
    const int32_t n_rep = a->n_v / a->n_k, tokens = j.pending + a->n,
                  done = is_final(&j) ? tokens
                         : a->commit  ? 0
                                      : j.pending;
    if (!tokens) return 0;
    /* The fewer items a key head is cut into, the less often its q and k are computed. */
    j.parts = (4 * be->threads + a->n_k - 1) / a->n_k;
    if (j.parts > n_rep) j.parts = n_rep;
    const int64_t work = (int64_t)tokens * a->n_v * a->d_k * a->d_v;
    cpu_share(be, (int64_t)a->n_k * j.parts, work >= CPU_SHARE, delta_item, &j);
    /* A row goes to where it or an older one stood: ascending, none is read after it is written. */
    for (int64_t i = 0; done && i < a->n_conv - 1; i++)
        memmove(a->state->conv + i * j.width, input(&j, done - (a->n_conv - 1) + i),
                (size_t)j.width * sizeof(float));
    if (!is_final(&j)) cpu_share(be, a->n, a->n * j.width >= 8 * CPU_SHARE, log_row, &j);
    return 0;
}
