/* span.c - see span.h. In a span, cache after cache, keys of all positions and then values, and then the
 * sources' last position; in a point, layer
 * after layer, the state and then the convolution's inputs. */
#include "span.h"

#include <string.h>
#include "session_impl.h"

/* The caches of the target and behind them those of the source; those of size 0 are none. */
enum { MODELS = 1 + SESSION_SOURCES };
struct caches {
    const struct kn_kv *kv[MODELS];
    const struct desc *d[MODELS];
    int32_t n[MODELS];
    int32_t late[MODELS]; /* positions by which they end earlier than the stream */
};

static struct caches caches_of(const struct session *s)
{
    struct caches c = {.kv = {s->kv}, .d = {s->target->d}, .n = {s->target->d->n_layer}};
    for (int32_t i = 0; i < s->n_sources; i++) {
        const struct session_source *x = &s->by[i];
        if (!x->of->op->caches) continue;
        c.kv[1 + i] = x->of->op->caches(s, x, &c.n[1 + i]);
        c.d[1 + i] = x->of->model ? x->of->model->d : NULL;
        c.late[1 + i] = x->of->op->last != NULL;
    }
    return c;
}

/* What source i keeps of position pos. */
static void *last_of(const struct session *s, int32_t i, int32_t pos, size_t *n)
{
    const struct session_source *x = &s->by[i];
    *n = 0;
    return x->of->op->last ? x->of->op->last(s, x, pos, n) : NULL;
}

bool span_possible(const struct session *s)
{
    if (s->pool) return false; /* what is held is no function of the positions */
    for (int32_t i = 0; i < s->n_sources; i++) {
        const struct source_ops *op = s->by[i].of->op;
        if (!op->caches && !op->last && (op->context || op->save)) return false;
    }
    return true;
}

uint64_t span_bytes(const struct session *s, int32_t n)
{
    const struct caches c = caches_of(s);
    uint64_t bytes = 0;
    for (int32_t i = 0; i < s->n_sources; i++) {
        size_t last;
        last_of(s, i, 0, &last);
        bytes += last;
    }
    for (int w = 0; w < MODELS; w++)
        for (int32_t i = 0; i < c.n[w]; i++) {
            const struct kn_kv *kv = &c.kv[w][i];
            if (!kv->k) continue;
            bytes += (uint64_t)n * (kn_kv_row_bytes(kv, kv->type.k) + kn_kv_row_bytes(kv, kv->type.v));
        }
    return bytes;
}

/* One of a cache's two halves: positions [from, to) of the span's n from first on. */
struct part {
    uint8_t *device, *host; /* the half; the span's share of it */
    size_t row;
    int32_t first, from, to;
};

static int move(struct session *s, const struct kn_kv *kv, const struct part *p, bool put, struct err *e)
{
    for (int32_t pos = p->from, some; pos < p->to; pos += some) {
        some = kn_kv_run(kv, pos, p->to - pos);
        uint8_t *device = p->device + (size_t)kn_kv_slot(kv, pos) * p->row,
                *host = p->host + (size_t)(pos - p->first) * p->row;
        const size_t bytes = (size_t)some * p->row;
        int rc =
            put ? s->op->upload(s->be, device, host, bytes) : s->op->download(s->be, host, device, bytes);
        if (rc) return model_failed(s->target, put ? "upload" : "download", rc, e);
    }
    return 0;
}

/* What the source keeps of the position before at, which is wanted where the stream will stand there. */
static int move_last(struct session *s, int32_t at, int32_t end, uint8_t *host, bool put, struct err *e)
{
    int rc = 0;
    for (int32_t i = 0; i < s->n_sources && !rc; i++) {
        size_t n;
        void *device = last_of(s, i, at - 1, &n);
        if (!n || (put && at != end)) continue;
        rc = put ? s->op->upload(s->be, device, host, n) : s->op->download(s->be, host, device, n);
        host += n;
    }
    return rc ? model_failed(s->target, put ? "upload" : "download", rc, e) : 0;
}

/* end: where the stream will stand; positions that no row from there on can see are left out of a ring, whose
 * places they may share with others. */
static int move_all(struct session *s, int32_t first, int32_t n, int32_t end, uint8_t *host, bool put,
                    struct err *e)
{
    const struct caches c = caches_of(s);
    for (int w = 0; w < MODELS; w++)
        for (int32_t i = 0; i < c.n[w]; i++) {
            const struct kn_kv *kv = &c.kv[w][i];
            const int32_t window = c.d[w] ? c.d[w]->layer[i].window : 0;
            const size_t row_k = kv->k ? kn_kv_row_bytes(kv, kv->type.k) : 0,
                         row_v = kv->k ? kn_kv_row_bytes(kv, kv->type.v) : 0;
            const int32_t from = first - c.late[w];
            struct part p = {kv->k, host, row_k, from, from < 0 ? 0 : from, from + n};
            if (!kv->k) continue;
            if (put && window && end - window > p.from) p.from = end - window;
            if (move(s, kv, &p, put, e)) return -1;
            p.device = kv->v, p.host = host + (size_t)n * row_k, p.row = row_v;
            if (move(s, kv, &p, put, e)) return -1;
            host += (size_t)n * (row_k + row_v);
        }
    return move_last(s, first + n, end, host, put, e);
}

int span_take(struct session *s, int32_t first, int32_t n, uint8_t *out, struct err *e)
{
    return move_all(s, first, n, first + n, out, false, e);
}

int span_put(struct session *s, int32_t first, int32_t n, int32_t end, const uint8_t *in, struct err *e)
{
    return move_all(s, first, n, end, (uint8_t *)(uintptr_t)in, true, e);
}

/* ---- points ---- */

static size_t point_parts(const struct session *s, size_t *conv)
{
    const struct desc *d = s->target->d;
    *conv = (size_t)(d->n_conv - 1) * (size_t)desc_delta_width(d) * sizeof(float);
    return (size_t)d->n_v * (size_t)d->d_v * (size_t)d->d_k * sizeof(float);
}

uint64_t span_point_bytes(const struct session *s)
{
    size_t conv, state;
    uint64_t bytes = 0;
    if (!s->delta) return 0;
    state = point_parts(s, &conv);
    for (int i = 0; i < s->target->d->n_layer; i++)
        if (s->target->d->layer[i].recurrent) bytes += state + conv;
    return bytes;
}

static int move_point(struct session *s, uint8_t *host, bool put, struct err *e)
{
    size_t conv, state;
    int rc = 0;
    if (!s->delta) return 0;
    state = point_parts(s, &conv);
    for (int i = 0; i < s->target->d->n_layer && !rc; i++) {
        struct kn_delta_state *y = &s->delta[i];
        if (!s->target->d->layer[i].recurrent) continue;
        rc = put ? s->op->upload(s->be, y->s, host, state) : s->op->download(s->be, host, y->s, state);
        host += state;
        if (!rc && conv)
            rc =
                put ? s->op->upload(s->be, y->conv, host, conv) : s->op->download(s->be, host, y->conv, conv);
        host += conv;
    }
    return rc ? model_failed(s->target, put ? "upload" : "download", rc, e) : 0;
}

int span_point_take(struct session *s, uint8_t *out, struct err *e)
{
    return session_settle(s, e) ? -1 : move_point(s, out, false, e);
}

int span_point_put(struct session *s, const uint8_t *in, struct err *e)
{
    return move_point(s, (uint8_t *)(uintptr_t)in, true, e);
}

int span_stand(struct session *s, const int32_t *ids, int32_t n, struct err *e)
{
    if (s->n_past || n > s->o.ctx)
        return err_set(e, ERR_USAGE,
                       "a prefix goes into a new session (expected position 0 and up to %d, got %d and %d)",
                       s->o.ctx, s->n_past, n);
    memcpy(s->history, ids, (size_t)n * sizeof *ids);
    int rc = s->op->upload(s->be, s->d_history, ids, (size_t)n * sizeof *ids);
    if (rc) return model_failed(s->target, "upload", rc, e);
    s->n_past = n;
    s->logits_rows = 0;
    return 0;
}
