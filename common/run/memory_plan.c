/* memory_plan.c - see memory_plan.h. */
#include "memory_plan.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "../base/mem.h"
#include "source.h"
#include "times.h"

/* ---- the backend that counts ---- */

struct counter {
    struct kn_backend_head head;
    struct kn_ops op; /* those that take memory; no other is ever called */
    const struct kn_memory *memory;
    uint64_t taken;             /* by alloc and weights */
    uint64_t host;              /* of the host's memory */
    bool experts;               /* some were loaded */
    uint64_t scratch, products; /* each the largest that was asked for */
};

struct memory_planner {
    struct counter c;
    struct kn_backend *be;
    struct model *target, *drafter, *beside;
    uint64_t weights, host;
};

static struct counter *counter_of(struct kn_backend *be)
{
    return (struct counter *)(void *)be;
}

static void *count_alloc(struct kn_backend *be, size_t bytes)
{
    static char nowhere; /* never read or written */
    struct counter *c = counter_of(be);
    c->taken += c->memory->alloc(bytes);
    return &nowhere;
}

static void count_free(struct kn_backend *be, void *p)
{
    (void)be, (void)p;
}

static void *count_alloc_host(struct kn_backend *be, size_t bytes)
{
    static char nowhere;
    counter_of(be)->host += bytes;
    return &nowhere;
}

static int count_upload(struct kn_backend *be, void *dst, const void *host, size_t bytes)
{
    (void)be, (void)dst, (void)host, (void)bytes;
    return 0;
}

static void *count_alloc_shared(struct kn_backend *be, size_t bytes)
{
    (void)be;
    return mem_calloc(1, bytes); /* the host's */
}

static void count_free_shared(struct kn_backend *be, void *p)
{
    (void)be;
    mem_free(p);
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static int count_reserve(struct kn_backend *be, int32_t n, int64_t n_in, int64_t n_vocab, int32_t n_head,
                         int32_t head_dim)
{
    struct counter *c = counter_of(be);
    (void)n_head, (void)head_dim;
    c->scratch = larger(c->scratch, c->memory->scratch(n, n_vocab));
    c->products = larger(c->products, c->memory->products(n, n_in));
    return 0;
}

static int count_reserve_kv(struct kn_backend *be, int32_t n, int32_t n_head, const struct kn_kv *kv,
                            int32_t window)
{
    struct counter *c = counter_of(be);
    c->scratch = larger(c->scratch, c->memory->scratch_kv(n, n_head, kv, window));
    return 0;
}

static int count_reserve_delta(struct kn_backend *be, const struct kn_delta *shape)
{
    struct counter *c = counter_of(be);
    c->scratch = larger(c->scratch, c->memory->scratch_delta(shape));
    return 0;
}

/* What w's experts take of the device where `host` of them stay in the host's memory. */
static uint64_t experts_bytes(const struct counter *c, const struct kn_weight *w, int32_t host)
{
    const uint64_t places = host ? c->memory->alloc((size_t)w->n_mat * sizeof *w->places) : 0;
    return places + c->memory->weight(w->type, w->n_in, w->n_out, w->n_mat - host, KN_USE_LINEAR);
}

static int count_experts(struct kn_backend *be, struct kn_weight *w, uint32_t type, int64_t n_in,
                         int64_t n_out, int32_t n_mat, const void *data)
{
    struct counter *c = counter_of(be);
    const int32_t host = c->head.n_hosted;
    (void)data;
    *w = (struct kn_weight){.type = type, .n_in = n_in, .n_out = n_out, .n_mat = n_mat, .n_host = host};
    c->taken += experts_bytes(c, w, host);
    if (host) c->host += c->memory->weight(type, n_in, n_out, host, KN_USE_LINEAR);
    if (!c->experts && c->memory->experts) c->taken += c->memory->experts();
    c->experts = true;
    return 0;
}

static int count_weight(struct kn_backend *be, struct kn_weight *w, uint32_t type, int64_t n_in,
                        int64_t n_out, const void *data, unsigned use)
{
    struct counter *c = counter_of(be);
    (void)data;
    *w = (struct kn_weight){.type = type, .n_in = n_in, .n_out = n_out};
    c->taken += c->memory->weight(type, n_in, n_out, 0, use);
    return 0;
}

static void count_weight_free(struct kn_backend *be, struct kn_weight *w)
{
    (void)be, (void)w;
}

static void counter_init(struct counter *c, struct kn_backend *be)
{
    c->op = *kn_op(be); /* its name, its rows a pass, and which operations it has */
    c->memory = c->op.memory;
    c->op.counts = true;
    c->op.alloc = count_alloc;
    c->op.free = count_free;
    if (c->op.alloc_host) c->op.alloc_host = count_alloc_host;
    if (c->op.alloc_host) c->op.free_host = count_free;
    c->op.upload = count_upload;
    c->op.reserve = count_reserve;
    c->op.reserve_kv = count_reserve_kv;
    if (c->op.reserve_delta) c->op.reserve_delta = count_reserve_delta;
    c->op.weight_load = count_weight;
    if (c->op.experts_load) c->op.experts_load = count_experts;
    c->op.weight_free = count_weight_free;
    c->op.alloc_shared = count_alloc_shared;
    c->op.free_shared = count_free_shared;
    c->op.record_begin = NULL; /* nothing is recorded */
    c->op.record_end = NULL;
    c->op.replay = NULL;
    c->op.record_free = NULL;
    c->head.op = &c->op;
}

/* ---- planners ---- */

int memory_plan_open(struct memory_planner **out, struct kn_backend *be, const struct memory_plan_of *of,
                     struct err *e)
{
    struct memory_planner *p = mem_calloc(1, sizeof *p);
    *out = NULL;
    if (!p) return err_set(e, ERR_IO, "out of memory (a plan)");
    p->be = be;
    counter_init(&p->c, be);
    struct kn_backend *counting = (struct kn_backend *)(void *)&p->c;
    if (model_open(&p->target, of->target, counting, of->target_override, e) ||
        model_place_like(p->target, of->placed, e) || model_fill(p->target, NULL, NULL, e) ||
        (of->drafter &&
         model_load(&p->drafter, of->drafter, counting, of->drafter_override, NULL, NULL, e)) ||
        (of->mtp && model_load(&p->beside, of->mtp, counting, of->mtp_override, NULL, NULL, e))) {
        memory_plan_close(p);
        return -1;
    }
    p->weights = p->c.taken;
    p->host = p->c.host;
    *out = p;
    return 0;
}

void memory_plan_close(struct memory_planner *p)
{
    if (!p) return;
    model_free(p->beside);
    model_free(p->drafter);
    model_free(p->target);
    mem_free(p);
}

/* s: whose target's they are, or NULL. */
static uint64_t bytes_of(const struct memory_planner *p, const struct session *s, const struct kn_kv *kv,
                         int n)
{
    uint64_t sum = 0;
    for (int i = 0; kv && i < n; i++)
        if (kv[i].k && !(s && session_kv_is_host(s, i)))
            sum += p->c.memory->alloc(kn_kv_bytes(&kv[i], kv[i].type.k)) +
                   p->c.memory->alloc(kn_kv_bytes(&kv[i], kv[i].type.v));
    return sum;
}

int memory_plan_session(struct memory_planner *p, const struct session_options *o, bool loaded,
                        struct memory_plan *plan, struct err *e)
{
    struct session *s;
    size_t free_bytes = 0, total = 0;
    memset(plan, 0, sizeof *plan);
    if (p->c.memory->query(p->be, &free_bytes, &total))
        return err_set(e, ERR_DEVICE, "%s: %s", p->c.op.name, kn_message(p->be));
    p->c.taken = p->c.host = p->c.scratch = p->c.products = 0;
    struct source by[PLAN_SOURCES] = {0};
    if (p->drafter) by[0] = source_drafter(p->drafter);
    if (p->beside) by[1] = source_drafter(p->beside), by[0].beside = &by[1];
    if (session_over(&s, p->target, p->drafter ? by : NULL, o, e)) return -1;
    plan->caches = bytes_of(p, s, s->kv, p->target->d->n_layer);
    for (int32_t i = 0; i < s->n_sources; i++) {
        int32_t n;
        if (!by[i].op->caches) continue;
        const struct kn_kv *kv = by[i].op->caches(s, &s->by[i], &n);
        plan->caches += bytes_of(p, NULL, kv, n);
    }
    /* What is measured before the first cycle is recorded meanwhile: that the copy fits into the margin,
     * beside recordings and code, is not to be hoped for. */
    const uint64_t timing = s->source || o->look ? session_time_bytes(s) : 0;
    session_free(s);
    plan->weights = loaded ? 0 : p->weights;
    plan->activations = p->c.taken - plan->caches;
    plan->scratch = p->c.scratch + p->c.products + p->c.memory->margin;
    if (timing) plan->scratch += p->c.memory->alloc(timing);
    plan->all = plan->weights + plan->caches + plan->activations + plan->scratch;
    plan->free = free_bytes;
    plan->total = total;
    plan->host = p->c.host + (loaded ? 0 : p->host);
    plan->host_free = mem_available();
    return 0;
}

/* Does it fit with that context? */
static bool fits(struct memory_planner *p, struct session_options o, int32_t ctx, bool loaded)
{
    struct memory_plan plan;
    struct err none = {0};
    o.ctx = ctx;
    return memory_plan_session(p, &o, loaded, &plan, &none) == 0 && plan.all <= plan.free;
}

/* Would caches of that type throughout be smaller than they are in before, and fit? */
static bool fits_type(struct memory_planner *p, struct session_options o, uint32_t type, bool loaded,
                      const struct memory_plan *before)
{
    struct memory_plan plan;
    struct err none = {0};
    struct kn_kv_types halves[DESC_MAX_LAYERS]; /* a drafter's, as flags have it */
    for (int i = 0; i < DESC_MAX_LAYERS; i++) halves[i] = (struct kn_kv_types){KN_F16, KN_F16};
    o.kv = (struct kn_kv_types){type, type};
    o.kv_layers = NULL;
    o.draft_kv_layers = halves;
    return memory_plan_session(p, &o, loaded, &plan, &none) == 0 && plan.all <= plan.free &&
           plan.caches < before->caches;
}

/* Would it with all caches in the host's memory that may be there? */
static bool fits_host(struct memory_planner *p, struct session_options o, bool loaded,
                      const struct memory_plan *before)
{
    struct memory_plan plan;
    struct err none = {0};
    o.kv_host = DESC_MAX_LAYERS;
    return memory_plan_session(p, &o, loaded, &plan, &none) == 0 && plan.all <= plan.free &&
           plan.caches < before->caches && (!plan.host_free || plan.host <= plan.host_free);
}

int memory_plan_kv_host(struct memory_planner *p, struct session_options *o, bool loaded, struct err *e)
{
    struct memory_plan plan;
    for (uint64_t before = UINT64_MAX;; o->kv_host++) {
        if (memory_plan_session(p, o, loaded, &plan, e)) return -1;
        if (plan.all <= plan.free || (o->kv_host && plan.caches >= before))
            return 0; /* the last was one more */
        before = plan.caches;
    }
}

static int32_t largest_context(struct memory_planner *p, const struct session_options *o, bool loaded)
{
    int32_t low = 0, high = o->ctx; /* low fits (0: nothing known), high does not */
    while (high - low > 1) {
        int32_t mid = low + (high - low) / 2;
        if (fits(p, *o, mid, loaded))
            low = mid;
        else
            high = mid;
    }
    return low < 256 ? low : low / 256 * 256;
}

/* The least number of experts a layer that would have to stay in the host's memory for it to fit, and do; 0:
 * none is enough. */
static int32_t experts_to_move(const struct memory_planner *p, const struct memory_plan *plan)
{
    const struct model *m = p->target;
    for (int32_t n = m->n_host + 1; n < m->d->n_expert; n++) {
        uint64_t saved = 0, host = 0;
        for (int32_t i = 0; i < m->d->n_layer; i++) {
            const struct kn_weight *w[] = {&m->layer[i].gate_x, &m->layer[i].up_x, &m->layer[i].down_x};
            for (int j = 0; j < 3 && m->d->layer[i].moe; j++) {
                saved += experts_bytes(&p->c, w[j], m->n_host) - experts_bytes(&p->c, w[j], n);
                host += p->c.memory->weight(w[j]->type, w[j]->n_in, w[j]->n_out, n, KN_USE_LINEAR);
            }
        }
        if (plan->all <= plan->free + saved) return plan->host_free && host > plan->host_free ? 0 : n;
    }
    return 0;
}

int memory_plan_check(struct memory_planner *p, const struct session_options *o, bool loaded,
                      const struct memory_plan *plan, struct err *e)
{
    const double gib = 1024.0 * 1024 * 1024;
    if (plan->host_free && plan->host > plan->host_free)
        return err_set(e, ERR_IO,
                       "too little of the host's memory (expected %.2f GiB for what stays there, got %.2f)",
                       (double)plan->host / gib, (double)plan->host_free / gib);
    if (plan->all <= plan->free) return 0;
    err_set(e, ERR_DEVICE,
            "%s: too little memory (expected %.2f GiB free for %d positions: weights %.2f, caches %.2f, "
            "activations %.2f, scratch %.2f; got %.2f of %.2f)",
            p->c.op.name, (double)plan->all / gib, o->ctx, (double)plan->weights / gib,
            (double)plan->caches / gib, (double)plan->activations / gib, (double)plan->scratch / gib,
            (double)plan->free / gib, (double)plan->total / gib);
    if (fits_type(p, *o, KN_F16, loaded, plan)) return err_hint(e, "--kv f16 would fit");
    if (fits_type(p, *o, KN_Q8_0, loaded, plan)) return err_hint(e, "--kv q8_0 would fit");
    if (fits_host(p, *o, loaded, plan)) return err_hint(e, "--kv-host would fit");
    const int32_t ctx = largest_context(p, o, loaded), move = loaded ? 0 : experts_to_move(p, plan);
    if (move > 0) return err_hint(e, "--experts-host %d would fit", move);
    if (ctx > 0) return err_hint(e, "--ctx %d would fit", ctx);
    if (plan->weights > plan->free)
        return err_hint(e, "the weights alone do not fit: a smaller type, or --device cpu");
    return err_hint(e, "no context fits beside the weights: a smaller --chunk, or --device cpu");
}
