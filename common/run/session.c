/* session.c - see session.h. */
#include "session_impl.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <string.h>
#include "../base/mem.h"
#include "pages.h"
#include "source.h"

/* ---- making and freeing ---- */

static int32_t max32(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

static void *take(struct session *s, uint64_t count, size_t size)
{
    void *p = s->op->alloc(s->be, (size_t)count * size);
    if (p) s->bytes += count * size;
    return p;
}

static int cache_failed(struct session *s, int layer, const struct kn_kv *kv, struct err *e)
{
    const double bytes = (double)kn_kv_bytes(kv, kv->type.k) + (double)kn_kv_bytes(kv, kv->type.v);
    return model_no_memory(s->be, e, "cache of layer %d, %.2f GiB for %d positions: lower --ctx or -n", layer,
                           bytes / (1024.0 * 1024 * 1024), s->o.ctx);
}

/* ---- keys and values in the host's memory ---- */

/* May layer i's be there? A drafter that reads the target's does so several times a cycle. */
static bool may_host(const struct session *s, int i)
{
    const struct desc *t = s->target->d;
    if (t->layer[i].recurrent || t->layer[i].window) return false;
    for (int32_t k = 0; k < s->n_sources; k++) {
        const struct desc *d = s->by[k].of->model ? s->by[k].of->model->d : NULL;
        for (int j = 0; d && d->arch == DESC_GEMMA4_ASSISTANT && j < d->n_layer; j++)
            if (desc_donor(t, &d->layer[j]) == i) return false;
    }
    return true;
}

bool session_kv_is_host(const struct session *s, int i)
{
    return s->here && s->here[i].k;
}

int32_t session_kv_hosted(const struct session *s)
{
    int32_t n = 0;
    for (int i = 0; i < s->target->d->n_layer; i++) n += session_kv_is_host(s, i);
    return n;
}

/* Which of kv will be, and room on the device for the largest of them, once for all slots, which are alike.
 */
static int new_here(struct session *s, const struct kn_kv *kv, struct err *e)
{
    struct engine *g = s->g;
    uint64_t most[2] = {0, 0};
    int32_t left = s->op->alloc_host ? s->o.kv_host : 0;
    if (left < 1) return 0;
    s->here = mem_calloc((size_t)s->target->d->n_layer, sizeof *s->here);
    if (!s->here) return err_set(e, ERR_IO, "out of memory (caches)");
    for (int pass = 0; pass < 2; pass++) {
        int32_t n = left;
        for (int i = s->target->d->n_layer - 1; i >= 0 && n; i--) {
            if (!may_host(s, i)) continue;
            n--;
            if (pass) s->here[i] = kv[i], s->here[i].k = g->here[0], s->here[i].v = g->here[1];
            const uint64_t k = kn_kv_bytes(&kv[i], kv[i].type.k), v = kn_kv_bytes(&kv[i], kv[i].type.v);
            if (k > most[0]) most[0] = k;
            if (v > most[1]) most[1] = v;
        }
        for (int j = 0; j < 2 && !g->here[j] && most[j]; j++) {
            g->here[j] = s->op->alloc(s->be, most[j]);
            if (!g->here[j])
                return model_no_memory(s->be, e, "a layer's cache of %d positions: lower --ctx or -n",
                                       s->o.ctx);
            g->bytes += most[j];
        }
    }
    return 0;
}

static void *take_cache(struct session *s, uint64_t bytes, bool host)
{
    if (!host) return take(s, bytes, 1);
    void *p = s->op->alloc_host(s->be, bytes);
    if (p) s->host_bytes += bytes;
    return p;
}

/* A ring a layer with attention, and the scratch that attention over it wants. A full layer keeps every
 * position; a sliding one its window and the rows that may be written ahead before the first of them looks
 * back: those of the largest pass, or of two cycles, one of them started before the other's result was known.
 */
int session_new_caches(struct session *s, const struct model *m, const struct session_source *x,
                       int32_t pass_rows, struct kn_kv **out, struct err *e)
{
    const struct desc *d = m->d;
    struct kn_kv *kv = *out = mem_calloc((size_t)d->n_layer, sizeof *kv);
    char why[160];
    if (!kv) return err_set(e, ERR_IO, "out of memory (caches)");
    for (int i = 0; i < d->n_layer; i++) {
        const struct desc_layer *y = &d->layer[i];
        int64_t need = s->g->positions, window = (int64_t)y->window + max32(pass_rows, AHEAD_ROWS);
        if (y->recurrent) continue;
        if (y->window && window < need) need = window;
        if (m == s->target && !y->window && s->o.pool && s->o.pool + POOL_PAGE < need)
            need = s->o.pool + POOL_PAGE;
        kv[i] = (struct kn_kv){.type = session_kv(&s->o, x != NULL, x ? x->first_layer + i : i),
                               .cap = kn_kv_room(need),
                               .n_head_kv = y->n_head_kv,
                               .head_dim = y->head_dim};
        if (kn_kv_check(&kv[i], why, sizeof why))
            return err_set(e, ERR_USAGE, "cache of layer %d: %s", i, why);
    }
    if (m == s->target && new_here(s, kv, e)) return -1;
    for (int i = 0; i < d->n_layer; i++) {
        const struct desc_layer *y = &d->layer[i];
        const bool host = m == s->target && session_kv_is_host(s, i);
        if (y->recurrent) continue;
        kv[i].k = take_cache(s, kn_kv_bytes(&kv[i], kv[i].type.k), host);
        kv[i].v = take_cache(s, kn_kv_bytes(&kv[i], kv[i].type.v), host);
        if (!kv[i].k || !kv[i].v) return cache_failed(s, i, &kv[i], e);
        int rc = s->op->reserve_kv(s->be, pass_rows, y->n_head, &kv[i], y->window);
        if (rc == 0 && m != s->target && !y->window && s->g->draft_reach && desc_draft_reach(m->d))
            rc = s->op->reserve_kv(s->be, pass_rows, y->n_head, &kv[i], s->g->draft_reach);
        if (rc) return model_failed(m, "reserve", rc, e);
    }
    return 0;
}

/* The state of every delta net layer, zero as at the start of a sequence, and the scratch that passes over
 * them want. */
static int new_deltas(struct session *s, int32_t pass_rows, struct err *e)
{
    const struct desc *d = s->target->d;
    uint64_t width = (uint64_t)desc_delta_width(d), n_v = (uint64_t)d->n_v;
    bool any = false, mixed = false;
    for (int i = 0; i < d->n_layer; i++) any |= d->layer[i].recurrent, mixed |= d->layer[i].moe;
    if (!any) return 0;
    s->every = s->op->delta_every[mixed];
    s->delta = mem_calloc((size_t)d->n_layer, sizeof *s->delta);
    if (!s->delta) return err_set(e, ERR_IO, "out of memory (recurrent state)");
    const struct kn_delta shape = {
        .n = pass_rows, .n_k = d->n_k, .n_v = d->n_v, .d_k = d->d_k, .d_v = d->d_v, .n_conv = d->n_conv};
    int rc = s->op->reserve_delta ? s->op->reserve_delta(s->be, &shape) : 0;
    if (rc) return model_failed(s->target, "reserve", rc, e);
    for (int i = 0; i < d->n_layer; i++) {
        struct kn_delta_state *y = &s->delta[i];
        if (!d->layer[i].recurrent) continue;
        y->s = take(s, n_v * (uint64_t)d->d_v * (uint64_t)d->d_k, sizeof *y->s);
        y->conv = take(s, (uint64_t)(d->n_conv - 1) * width, sizeof *y->conv);
        y->log = take(s, KN_DELTA_LOG * (width + 2 * n_v), sizeof *y->log);
        if (!y->s || !y->conv || !y->log) return model_no_memory(s->be, e, "recurrent state of layer %d", i);
    }
    return 0;
}

static int new_lists(struct session *s, struct err *e)
{
    const int32_t n = s->g->positions;
    bool room = true;
    float unknown[SESSION_MAX_ROWS];
    s->history = mem_calloc((size_t)n, sizeof *s->history);
    s->d_history = take(s, (uint64_t)n, sizeof *s->d_history);
    s->d = take(s, 1, sizeof *s->d);
    s->last = take(s, (uint64_t)s->target->d->n_vocab, sizeof *s->last);
    s->results = s->op->alloc_shared(s->be, SESSION_RESULTS * sizeof *s->results);
    for (int32_t i = 0; i < s->n_sources; i++) {
        struct session_source *x = &s->by[i];
        if (!x->width || !x->of->op->context) continue;
        x->kept = take(s, (uint64_t)SESSION_MAX_ROWS * (uint64_t)x->width, sizeof *x->kept);
        room &= x->kept != NULL;
    }
    s->offers = s->op->alloc_shared(s->be, SESSION_RESULTS * sizeof *s->offers);
    if (!s->history) return err_set(e, ERR_IO, "out of memory (%d positions: lower --ctx or -n)", s->o.ctx);
    if (!s->d_history || !s->d || !s->last || !s->results || !s->offers || !room)
        return model_no_memory(s->be, e, "%d positions: lower --ctx or -n", s->o.ctx);
    for (int32_t i = 0; i < SESSION_MAX_ROWS; i++) unknown[i] = NAN;
    int rc = s->op->upload(s->be, s->d->logp, unknown, sizeof unknown);
    return rc ? model_failed(s->target, "upload", rc, e) : 0;
}

struct kn_kv_types session_kv(const struct session_options *o, bool drafter, int layer)
{
    const struct kn_kv_types *list = drafter ? o->draft_kv_layers : o->kv_layers;
    return list ? list[layer] : o->kv;
}

int32_t session_block(const struct session *s)
{
    int32_t most = 1;
    for (int32_t i = 0; i < s->n_sources; i++) most = max32(most, s->by[i].block);
    return most;
}

/* What the sources keep of the stream. */
static int new_contexts(struct session *s, struct err *e)
{
    for (int32_t i = 0; i < s->n_sources; i++)
        if (s->by[i].of->op->open && s->by[i].of->op->open(s, &s->by[i], s->g->rows, e)) return -1;
    if (!s->o.look) return 0;
    s->look.of = s->o.look;
    return s->o.look->op->open ? s->o.look->op->open(s, &s->look, s->g->rows, e) : 0;
}

static int new_slot(struct session **out, struct engine *g, struct err *e)
{
    struct session *s = mem_calloc(1, sizeof *s);
    *out = NULL;
    if (!s) return err_set(e, ERR_IO, "out of memory (a session)");
    s->g = g;
    s->target = g->target;
    s->source = g->source;
    memcpy(s->by, g->by, sizeof s->by);
    s->n_sources = g->n_sources;
    s->be = g->be;
    s->op = g->op;
    s->o = g->o;
    if (session_new_caches(s, g->target, NULL, g->rows, &s->kv, e) || pages_new(s, e) ||
        new_deltas(s, g->rows, e) || new_contexts(s, e) || new_lists(s, e) || session_tree_new(s, e) ||
        session_sparse_new(s, e)) {
        session_slot_free(s);
        return -1;
    }
    g->slots++;
    *out = s;
    return 0;
}

/* Recurrent state as at the start of a sequence. What stands in caches and history is as good as rows that
 * were rejected: no row looks past its own position, and every position before it is written anew. */
static int clear_states(struct session *s, struct err *e)
{
    const struct desc *d = s->target->d;
    const size_t conv = (size_t)(d->n_conv - 1) * (size_t)desc_delta_width(d) * sizeof(float),
                 bytes = (size_t)d->n_v * (size_t)d->d_v * (size_t)d->d_k * sizeof(float);
    void *zero = s->delta ? mem_calloc(1, bytes > conv ? bytes : conv) : NULL;
    int rc = 0;
    if (s->delta && !zero) return err_set(e, ERR_IO, "out of memory (recurrent state)");
    for (int i = 0; s->delta && i < d->n_layer && !rc; i++) {
        if (!d->layer[i].recurrent) continue;
        rc = s->op->upload(s->be, s->delta[i].s, zero, bytes);
        if (!rc && conv) rc = s->op->upload(s->be, s->delta[i].conv, zero, conv);
    }
    mem_free(zero);
    return rc ? model_failed(s->target, "upload", rc, e) : 0;
}

int session_open(struct session **out, struct engine *g, struct err *e)
{
    struct session *s = g->idle;
    *out = NULL;
    if (!s) return new_slot(out, g, e);
    if (clear_states(s, e) || session_sparse_reset(s, e)) return -1;
    g->idle = s->next;
    s->next = NULL;
    s->n_past = s->pending = s->waiting = s->logits_rows = s->reach = 0;
    s->anchored = s->tried = false;
    session_gaps_reset(s);
    s->finished = s->started, s->open = false; /* what was started ahead and not wanted */
    for (int32_t i = 0; i < s->n_sources; i++)
        if (s->by[i].of->op->reset) s->by[i].of->op->reset(s, &s->by[i]);
    pages_reset(s);
    *out = s;
    return 0;
}

struct source source_drafter(struct model *drafter)
{
    switch (drafter->d->arch) {
    case DESC_QWEN35_MTP: return source_mtp(drafter);
    case DESC_GEMMA4_ASSISTANT: return source_assistant(drafter);
    default: return source_dflash(drafter);
    }
}

int session_over(struct session **out, struct model *target, struct source *source,
                 const struct session_options *o, struct err *e)
{
    struct engine *g;
    *out = NULL;
    if (engine_open(&g, target, source, o, e)) return -1;
    if (session_open(out, g, e)) {
        engine_close(g);
        return -1;
    }
    (*out)->solo = true;
    return 0;
}

int session_new(struct session **out, struct model *target, struct model *drafter,
                const struct session_options *o, struct err *e)
{
    struct source *x = NULL;
    *out = NULL;
    if (drafter && !(x = mem_calloc(1, sizeof *x))) return err_set(e, ERR_IO, "out of memory (a session)");
    if (x) *x = source_drafter(drafter);
    if (session_over(out, target, x, o, e)) {
        mem_free(x);
        return -1;
    }
    (*out)->g->own = x;
    return 0;
}

void session_free_caches(struct session *s, const struct model *m, struct kn_kv *kv)
{
    for (int i = 0; kv && i < m->d->n_layer; i++) {
        const bool host = kv == s->kv && session_kv_is_host(s, i);
        void (*const give)(struct kn_backend *, void *) = host ? s->op->free_host : s->op->free;
        give(s->be, kv[i].k);
        give(s->be, kv[i].v);
    }
    mem_free(kv);
}

void session_slot_free(struct session *s)
{
    void *device[] = {s->d_history, s->d, s->last};
    session_plays_forget(s, 0);
    session_tree_free(s);
    pages_free(s);
    session_sparse_free(s);
    session_gaps_free(s);
    s->op->free_shared(s->be, s->results);
    s->op->free_shared(s->be, s->offers);
    for (size_t i = 0; i < sizeof device / sizeof device[0]; i++) s->op->free(s->be, device[i]);
    session_free_caches(s, s->target, s->kv);
    for (int32_t i = 0; i < s->n_sources; i++) {
        s->op->free(s->be, s->by[i].kept);
        if (s->by[i].of->op->close) s->by[i].of->op->close(s, &s->by[i]);
    }
    if (s->look.of && s->look.of->op->close) s->look.of->op->close(s, &s->look);
    for (int i = 0; s->delta && i < s->target->d->n_layer; i++) {
        s->op->free(s->be, s->delta[i].s);
        s->op->free(s->be, s->delta[i].conv);
        s->op->free(s->be, s->delta[i].log);
    }
    mem_free(s->delta);
    mem_free(s->here);
    mem_free(s->history);
    mem_free(s);
}

void session_free(struct session *s)
{
    if (!s) return;
    struct engine *g = s->g;
    if (g->on == s) g->on = NULL;
    s->next = g->idle;
    g->idle = s;
    if (s->solo) engine_close(g);
}

uint64_t session_bytes(const struct session *s)
{
    return s->bytes + s->g->bytes;
}

int32_t session_pass_rows(const struct session_options *o, const struct kn_ops *op)
{
    int32_t several = o->chunk > SESSION_MAX_ROWS ? op->pass_rows / o->chunk : 1;
    return o->chunk * max32(several, 1);
}

/* ---- turns ---- */

int session_turn(struct session *s, struct err *e)
{
    struct engine *g = s->g;
    struct session *on = g->on;
    const size_t bytes = (size_t)s->target->d->n_vocab * sizeof *g->logits;
    int rc = 0;
    if (on == s) return 0;
    if (on && on->logits_rows > 1) on->logits_rows = 0;
    if (on && on->logits_rows) rc = s->op->copy(s->be, on->last, g->logits, bytes);
    if (!rc && s->logits_rows) rc = s->op->copy(s->be, g->logits, s->last, bytes);
    g->on = s;
    return rc ? model_failed(s->target, "copy", rc, e) : 0;
}

/* ---- passes ---- */

/* Whom the target's passes leave taps for; NULL: nobody. */
static const struct session_source *tapped_of(const struct session *s)
{
    for (int32_t i = 0; i < s->n_sources; i++)
        if (s->by[i].of->needs.tapped) return &s->by[i];
    return NULL;
}

/* Put n ids at positions from pos on, in both histories. */
static int set_history(struct session *s, int32_t pos, const int32_t *ids, int32_t n, struct err *e)
{
    memmove(s->history + pos, ids, (size_t)n * sizeof *ids);
    int rc = s->op->upload(s->be, s->d_history + pos, s->history + pos, (size_t)n * sizeof *ids);
    return rc ? model_failed(s->target, "upload", rc, e) : 0;
}

int session_place(struct session *s, const int32_t *ids, int32_t n, struct err *e)
{
    struct cursor c = {.pending = s->pending};
    int32_t mask = ids[0];
    /* A block's places are read by the tapped source alone, or by the only one. */
    const struct session_source *x = tapped_of(s);
    if (x || s->source) mask = x ? x->of->mask : s->source->mask;
    for (int32_t i = 0; i < SESSION_MAX_ROWS; i++) {
        c.pos[i] = s->n_past + i;
        c.place[i] = s->n_past + i - pages_shift(s);
        c.ids[i] = i < n ? ids[i] : 0;
        c.block[i] = i ? mask : ids[0];
    }
    if (s->n_past > s->o.draft_window) c.first = s->n_past - s->o.draft_window;
    int rc = s->op->upload(s->be, s->d, &c, offsetof(struct cursor, picks));
    return rc ? model_failed(s->target, "upload", rc, e) : 0;
}

int session_set_pending(struct session *s, int32_t n, struct err *e)
{
    s->tried = true;
    if (!s->delta || s->pending == n) return 0;
    s->pending = n;
    int rc = s->op->upload(s->be, &s->d->pending, &s->pending, sizeof s->pending);
    return rc ? model_failed(s->target, "upload", rc, e) : 0;
}

/* Of rows at the cursor, or of a prompt. */
static const int32_t *places_of(const struct session *s, const struct session_rows *r)
{
    return !s->pool ? NULL : r->pos == s->d->pos ? s->d->place : r->pos - pages_shift(s);
}

int session_run_target(struct session *s, const struct session_rows *r, enum session_fate fate, struct err *e)
{
    const struct session_source *x = tapped_of(s);
    const bool sparse = fate == SESSION_PROMPT && session_sparse_takes(s, r->first_pos, r->n);
    const struct pass p = {.w = &s->g->work,
                           .kv = s->kv,
                           .here = s->here,
                           .places = places_of(s, r),
                           .queries = s->watch,
                           .n_queries = s->n_watch,
                           .delta = s->delta,
                           .pending = &s->d->pending,
                           .sparse = sparse ? s->sparse : NULL,
                           .stamps = fate == SESSION_PROMPT ? s->stamps : NULL,
                           .commit = fate != SESSION_TRIED,
                           .every = fate == SESSION_FINAL ? s->every : 0,
                           .n = r->n,
                           .first_pos = r->first_pos,
                           .ids = r->ids,
                           .pos = r->pos,
                           .origin = s->origin,
                           .seen = fate == SESSION_PROMPT ? s->seen : NULL,
                           .tree = s->tree && r->ids == s->tree->ids ? s->tree : NULL,
                           .tail = s->tail,
                           .rows = s->g->d_pos,
                           .features = x ? x->features : NULL,
                           .tapped = x ? x->of->needs.tapped : NULL,
                           .check = s->o.check_layers,
                           .fault = s->trying ? &s->fault : NULL,
                           .hidden = fate == SESSION_PROMPT && s->g->hidden.fn ? &s->g->hidden : NULL};
    return model_pass(s->target, &p, e);
}

int session_settle(struct session *s, struct err *e)
{
    const struct pass p = {.w = &s->g->work, .delta = s->delta, .pending = &s->d->pending, .commit = true};
    if (!s->pending) return 0;
    int rc = qwen35_replay(s->target, &p);
    return rc ? model_failed(s->target, "replay", rc, e) : session_set_pending(s, 0, e);
}

int session_leave_hidden(struct session *s, int32_t n, struct err *e)
{
    const struct model *t = s->target;
    int rc = 0;
    for (int32_t i = 0; i < s->n_sources && !rc; i++)
        if (s->by[i].of->needs.hidden)
            rc = s->op->rms_norm(s->be, s->by[i].features, s->g->work.x, t->output_norm, n, t->d->n_embd,
                                 t->d->rms_eps);
    return rc ? model_failed(t, "hidden states", rc, e) : 0;
}

int session_run_context(struct session *s, const struct session_rows *r, enum session_features from,
                        struct err *e)
{
    for (int32_t i = 0; i < s->n_sources; i++) {
        struct session_source *x = &s->by[i];
        struct session_rows own = *r;
        if (!x->of->op->context) continue;
        own.features = from == SESSION_OF_PASS ? x->features : x->kept;
        if (from == SESSION_WAITED && x->kept) own.features += r->first_pos % SESSION_MAX_ROWS * x->width;
        if (x->of->op->context(s, x, &own, e)) return -1;
    }
    return 0;
}

int session_run_head(struct session *s, const struct model *m, int32_t row, int32_t n, struct err *e)
{
    return model_logits(m, s->target, s->g->work.x + (int64_t)row * m->d->n_embd, n, s->g->logits, e);
}

/* Logits of rows [row, row+n) of the activations, the first of them at pos. */
static int run_head(struct session *s, const struct model *m, int32_t row, int32_t n, int32_t pos,
                    struct err *e)
{
    if (session_run_head(s, m, row, n, e)) return -1;
    s->logits_pos = pos;
    s->logits_rows = n;
    return 0;
}

/* Rows of the history at positions pos .. pos+n-1. */
static struct session_rows history_rows(struct session *s, int32_t pos, int32_t n)
{
    return (struct session_rows){
        .ids = s->d_history + pos, .pos = s->g->d_pos + pos, .n = n, .first_pos = pos};
}

int session_make_context(struct session *s, int32_t end, struct err *e)
{
    const int32_t n = s->waiting, pos = end - n;
    const struct session_rows r = history_rows(s, pos, n);
    if (!n) return 0;
    s->waiting = 0;
    kn_bound(s->be, end);
    const int rc = session_run_context(s, &r, SESSION_WAITED, e);
    kn_bound(s->be, 0);
    return rc;
}

int session_catch_up(struct session *s, struct err *e)
{
    const int32_t ahead = (int32_t)(s->started - s->finished);
    s->waiting = s->waiting > ahead ? s->waiting - ahead : 0;
    return session_make_context(s, s->n_past, e);
}

/* ---- prefill ---- */

static int check_ids(const struct session *s, const int32_t *ids, int64_t n, struct err *e)
{
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= s->target->d->n_vocab)
            return err_set(e, ERR_FORMAT,
                           "token %" PRId64 ": id out of the vocabulary (expected 0 to %d, got %d)", i,
                           s->target->d->n_vocab - 1, ids[i]);
    return 0;
}

/* All rows of a chunk through the head, in slices, to the host. host is [SESSION_MAX_ROWS, n_vocab]. */
static int hand_out_rows(struct session *s, int32_t pos, int32_t n, float *host, session_rows_fn rows,
                         void *ctx, struct err *e)
{
    for (int32_t i = 0; i < n; i += SESSION_MAX_ROWS) {
        int32_t some = n - i < SESSION_MAX_ROWS ? n - i : SESSION_MAX_ROWS;
        size_t bytes = (size_t)some * (size_t)s->target->d->n_vocab * sizeof *host;
        if (run_head(s, s->target, i, some, pos + i, e)) return -1;
        int rc = s->op->download(s->be, host, s->g->logits, bytes);
        if (rc) return model_failed(s->target, "download", rc, e);
        if (rows(ctx, host, some, pos + i, e)) return -1;
    }
    return 0;
}

/* Rows of the pass at pos. Passes end at absolute multiples of the chunk, and a last chunk of few rows is one
 * of its own: it runs as a decoding step does, whatever stands before it. */
static int32_t next_pass(const struct session *s, int64_t end)
{
    int32_t chunk = s->o.chunk, pos = s->n_past;
    int64_t stop = (int64_t)pos - pos % chunk + session_pass_rows(&s->o, s->op), tail;
    if (stop > end) stop = end;
    tail = stop % chunk;
    if (tail <= SESSION_MAX_ROWS && stop - tail > pos) stop -= tail;
    return stop - pos < pages_rows(s) ? session_sparse_pass(s, (int32_t)(stop - pos)) : pages_rows(s);
}

int session_prompt_check(int32_t ctx, int64_t n, struct err *e)
{
    if (n <= ctx) return 0;
    return err_set(e, ERR_USAGE,
                   "the prompt does not fit the context (expected at most %d tokens, got %" PRId64 ")", ctx,
                   n);
}

/* Look-ups see a prompt before the first question. */
static int show_history(struct session *s, struct err *e)
{
    struct source_look l = {.history = s->history, .n = s->n_past};
    return s->o.look ? s->o.look->op->look(s, &s->look, &l, e) : 0;
}

int session_prefill(struct session *s, const int32_t *ids, int64_t n, session_rows_fn rows, void *ctx,
                    struct err *e)
{
    int64_t end = s->n_past + n;
    float *host = NULL;
    int rc = -1;
    if (n < 1) return err_set(e, ERR_FORMAT, "the prompt is empty (expected at least one token)");
    if (session_prompt_check(s->o.ctx, end, e)) return -1;
    if (check_ids(s, ids, n, e)) return -1;
    if (rows) {
        host = mem_alloc((size_t)SESSION_MAX_ROWS * (size_t)s->target->d->n_vocab * sizeof *host);
        if (!host) return err_set(e, ERR_IO, "out of memory (logits of %d rows)", SESSION_MAX_ROWS);
    }
    if (session_turn(s, e) || session_catch_up(s, e)) goto out;
    s->anchored = false, s->logits_rows = 0;
    if (set_history(s, s->n_past, ids, (int32_t)n, e) || session_place(s, ids, 1, e)) goto out;
    for (int64_t done = 0; s->n_past < end;) {
        if (pages_turn(s, ids[done], e)) goto out;
        int32_t pos = s->n_past, some = next_pass(s, end);
        const struct session_rows r = history_rows(s, pos, some);
        kn_bound(s->be, pos + some);
        if (session_run_target(s, &r, SESSION_PROMPT, e) || session_set_pending(s, 0, e)) goto out;
        if (session_sparse_takes(s, pos, some)) session_sparse_made(s, pos + some);
        if (session_sparse_timed(s, e)) goto out;
        if (rows && hand_out_rows(s, pos, some, host, rows, ctx, e)) goto out;
        if (pos + some == end && run_head(s, s->target, some - 1, 1, pos + some - 1, e)) goto out;
        if (session_leave_hidden(s, some, e) || session_run_context(s, &r, SESSION_OF_PASS, e)) goto out;
        s->n_past += some;
        done += some;
        if (s->o.progress) s->o.progress(s->o.progress_ctx, done, n);
    }
    if (show_history(s, e)) goto out; /* while the device works */
    rc = s->op->sync(s->be);
    if (rc) rc = model_failed(s->target, "sync", rc, e);
out:
    kn_bound(s->be, 0);
    mem_free(host);
    return rc;
}

/* ---- steps ---- */

int session_forward(struct session *s, const int32_t *ids, int32_t n, struct err *e)
{
    if (n < 1 || n > SESSION_MAX_ROWS || s->n_past > s->o.ctx)
        return err_set(e, ERR_USAGE,
                       "rows do not fit (expected 1 to %d at a position up to %d, got %d at %d)",
                       SESSION_MAX_ROWS, s->o.ctx, n, s->n_past);
    if (check_ids(s, ids, n, e)) return -1;
    if (session_turn(s, e) || session_catch_up(s, e)) return -1;
    s->anchored = false, s->logits_rows = 0;
    if (pages_turn(s, ids[0], e)) return -1;
    if (n > pages_rows(s))
        return err_set(e, ERR_USAGE, "rows do not fit before the pool's next page (expected 1 to %d, got %d)",
                       pages_rows(s), n);
    if (set_history(s, s->n_past, ids, n, e) || session_place(s, ids, n, e)) return -1;
    if (session_play(s, SESSION_FORWARD, n, e) || session_set_pending(s, 0, e)) return -1;
    s->logits_pos = s->n_past;
    s->logits_rows = n;
    return 0;
}

int session_no_number(const struct session *s, int32_t pos, struct err *e)
{
    if (s->o.check_layers) /* every layer passed */
        return err_set(
            e, ERR_DEVICE,
            "position %d: the target's logits hold a NaN or no finite maximum, though every layer's output "
            "is finite: it comes from output_norm or the head",
            pos);
    err_set(e, ERR_DEVICE, "position %d: the target's logits hold a NaN or no finite maximum", pos);
    return err_hint(e, "--check-layers names the first layer that leaves one");
}

/* n rows of logits are there, if only of the last token behind another stream's turn. */
static int check_logits(struct session *s, int32_t n, struct err *e)
{
    if (session_turn(s, e)) return -1;
    if (n <= s->logits_rows) return 0;
    return err_set(e, ERR_USAGE, "the session holds no such logits (expected %d rows, got %d)", n,
                   s->logits_rows);
}

int session_pick(struct session *s, const struct kn_sampler *sampler, int32_t n, int32_t *picks,
                 struct err *e)
{
    const struct kn_pick p = {.logits = s->g->logits,
                              .pos = s->g->d_pos + s->logits_pos,
                              .history = s->d_history,
                              .n = n,
                              .n_vocab = s->target->d->n_vocab,
                              .sampler = *sampler,
                              .out = s->d->picks};
    if (check_logits(s, n, e)) return -1;
    int rc = s->op->pick(s->be, &p);
    if (rc == 0) rc = s->op->download(s->be, picks, s->d->picks, (size_t)n * sizeof *picks);
    if (rc) return model_failed(s->target, "pick", rc, e);
    for (int32_t i = 0; i < n; i++)
        if (picks[i] == KN_PICK_NAN) return session_no_number(s, s->logits_pos + i, e);
    return 0;
}

int session_commit(struct session *s, int32_t n, struct err *e)
{
    const struct session_rows r = history_rows(s, s->n_past, n);
    if (s->g->on != s)
        return err_set(e, ERR_USAGE, "rows cannot be kept behind another stream's turn (run them again)");
    if (session_run_context(s, &r, SESSION_OF_PASS, e) || session_set_pending(s, n, e)) return -1;
    s->n_past += n;
    return 0;
}

int session_settle_anchor(struct session *s, struct err *e)
{
    const int32_t id = s->history[s->n_past];
    if (!s->anchored) return 0;
    return session_forward(s, &id, 1, e) || session_commit(s, 1, e) ? -1 : 0;
}

int session_anchor_check(const struct session *s, struct err *e)
{
    for (int32_t i = 0; i < s->n_sources && s->n_past == 0; i++)
        if (s->by[i].of->needs.hidden)
            return err_set(e, ERR_USAGE,
                           "source %s: a draft needs a token before the anchor, and there is none",
                           s->by[i].of->op->name);
    return 0;
}

int session_draft(struct session *s, int32_t anchor, int32_t *proposals, bool *usable, bool all_rows,
                  struct err *e)
{
    const struct kn_sampler greedy = {.top_p = 1, .repeat_penalty = 1};
    int32_t n = s->o.block;
    if (!s->source || !s->source->op->propose)
        return err_set(e, ERR_USAGE, "there is no drafter in this session (expected one to draft)");
    const int32_t first = s->source->model ? s->source->model->d->first_row : 1, skip = all_rows ? 0 : first;
    session_use_sampler(s, &greedy);
    if (session_anchor_check(s, e)) return -1;
    if (session_turn(s, e) || session_place(s, &anchor, 1, e)) return -1;
    if (all_rows ? s->source->op->propose(s, &s->by[0], true, e) : session_play(s, SESSION_DRAFT, 1, e))
        return -1;
    s->logits_pos = s->n_past + skip;
    s->logits_rows = n - 1 + first - skip;
    int rc = s->op->download(s->be, proposals, s->d->ids + 1, (size_t)(n - 1) * sizeof *proposals);
    if (rc) return model_failed(s->target, "proposals", rc, e);
    *usable = true;
    for (int32_t i = 0; i < n - 1; i++)
        if (proposals[i] == KN_PICK_NAN) *usable = false;
    return 0;
}

/* ---- logits on the host ---- */

int session_logits(struct session *s, int32_t i, float *row, struct err *e)
{
    size_t n = (size_t)s->target->d->n_vocab;
    if (check_logits(s, i + 1, e)) return -1;
    int rc = s->op->download(s->be, row, s->g->logits + (size_t)i * n, n * sizeof *row);
    return rc ? model_failed(s->target, "download", rc, e) : 0;
}

int session_check_row(const struct session *s, const float *row, int32_t pos, struct err *e)
{
    float best = -INFINITY;
    bool nan = false;
    for (int32_t i = 0; i < s->target->d->n_vocab; i++) {
        nan |= isnan(row[i]);
        if (row[i] > best) best = row[i];
    }
    return nan || !isfinite(best) ? session_no_number(s, pos, e) : 0;
}
