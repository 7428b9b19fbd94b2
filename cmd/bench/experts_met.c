/* experts_met.c - see experts_met.h. */
#include "experts_met.h"

#include <stdio.h>
#include <string.h>
#include "../../common/base/mem.h"

static struct experts_met *met_of(struct kn_backend *be)
{
    return (struct experts_met *)(void *)(uintptr_t)kn_op(be);
}

static int fail(struct experts_met *k, int code, const char *what)
{
    struct kn_backend_head *head = (struct kn_backend_head *)(void *)k->be;
    snprintf(head->message, sizeof head->message, "counting experts: %s", what);
    return code;
}

/* What reading those experts takes of the host's memory that seen marks. */
static int count_host(struct experts_met *k, const struct kn_weight *w, const int32_t *seen)
{
    int16_t places[4096];
    if (!w->n_host || w->n_mat > 4096) return 0;
    const int rc = k->inner->download(k->be, places, w->places, (size_t)w->n_mat * sizeof *places);
    for (int32_t i = 0; i < w->n_mat && rc == 0; i++)
        if (seen[i] && places[i] < 0) k->host += (double)w->n_out * (double)kn_row_bytes(w->type, w->n_in);
    return rc;
}

/* Different ids among those of n rows of n_used, rows `stride` apart, that are experts of w; what reading
 * them in the n_w matrices of their kind takes. */
static int count(struct experts_met *k, const struct kn_weight *const *w, int n_w, const int32_t *ids,
                 int32_t n, int32_t n_used, int32_t stride)
{
    const size_t all = (size_t)n * (size_t)stride;
    const int32_t n_mat = w[0]->n_mat;
    int64_t met = 0;
    if (!k->on) return 0;
    if (all + (size_t)n_mat > k->n_ids) {
        mem_free(k->ids);
        k->n_ids = all + (size_t)n_mat;
        k->ids = mem_alloc(k->n_ids * sizeof *k->ids);
        if (!k->ids) return k->n_ids = 0, fail(k, KN_EMEM, "out of memory");
    }
    int32_t *seen = k->ids + all;
    memset(seen, 0, (size_t)n_mat * sizeof *seen);
    const int rc = k->inner->download(k->be, k->ids, ids, all * sizeof *ids);
    if (rc) return rc;
    for (int32_t i = 0; i < n; i++)
        for (int32_t j = 0; j < n_used; j++) {
            const int32_t id = k->ids[(size_t)i * (size_t)stride + (size_t)j];
            if (id < 0 || id >= n_mat) return fail(k, KN_EDEVICE, "an expert that the model has not");
            met += !seen[id];
            seen[id] = 1;
        }
    for (int j = 0; j < n_w; j++) {
        k->bytes +=
            (double)(met - n_used) * (double)w[j]->n_out * (double)kn_row_bytes(w[j]->type, w[j]->n_in);
        k->experts += (double)met;
        k->lists++;
        const int failed = count_host(k, w[j], seen);
        if (failed) return failed;
    }
    return 0;
}

static int met_gated(struct kn_backend *be, float *out, const struct kn_weight *gate,
                     const struct kn_weight *up, const float *x, const float *norm, float eps,
                     enum kn_act act, const int32_t *ids, int32_t n, int32_t n_used)
{
    struct experts_met *k = met_of(be);
    const struct kn_weight *w[] = {gate, up};
    const int rc = count(k, w, 2, ids, n, n_used, n_used);
    return rc ? rc : k->inner->experts_gated(be, out, gate, up, x, norm, eps, act, ids, n, n_used);
}

static int met_down(struct kn_backend *be, float *out, const struct kn_weight *w, const float *h,
                    const int32_t *ids, const float *weights, int32_t n, int32_t n_used, bool add)
{
    struct experts_met *k = met_of(be);
    const int rc = count(k, &w, 1, ids, n, n_used, n_used);
    return rc ? rc : k->inner->experts_down(be, out, w, h, ids, weights, n, n_used, add);
}

static int met_mixture(struct kn_backend *be, const struct kn_mixture *a)
{
    struct experts_met *k = met_of(be);
    const struct kn_weight *w[] = {a->gate, a->up, a->down};
    const int32_t used = a->route.n_used, stride = used + (a->shared[0] != NULL);
    const int rc = k->inner->mixture(be, a); /* makes the ids */
    return rc ? rc : count(k, w, 3, a->route.ids, a->route.n, used, stride);
}

void experts_met_open(struct experts_met *k, struct kn_backend *be)
{
    *k = (struct experts_met){.be = be, .inner = kn_op(be), .op = *kn_op(be)};
    if (k->op.experts_gated) k->op.experts_gated = met_gated;
    if (k->op.experts_down) k->op.experts_down = met_down;
    if (k->op.mixture) k->op.mixture = met_mixture;
    k->op.record_begin = NULL; /* what is replayed is not seen */
    k->op.record_end = NULL;
    k->op.replay = NULL;
    k->op.record_free = NULL;
    ((struct kn_backend_head *)(void *)be)->op = &k->op;
}

void experts_met_close(struct experts_met *k)
{
    if (!k->be) return;
    ((struct kn_backend_head *)(void *)k->be)->op = k->inner;
    mem_free(k->ids);
    *k = (struct experts_met){0};
}

void experts_met_start(struct experts_met *k)
{
    k->on = true;
    k->bytes = k->experts = k->host = 0;
    k->lists = 0;
}
