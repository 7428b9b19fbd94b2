/* state.c - see state.h. Sections, in this order: META, TOKN, LOGT, one a target layer (KV of attention, SSM
 * of a delta net), one DKV a drafter layer, and DHID where the drafter reads the target's last hidden state.
 */
#include "state.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "../base/mem.h"
#include "session_impl.h"
#include "pages.h"
#include "state_impl.h"

enum {
    LAYER_HEADER = 16, /* first position, positions, n_head_kv, head_dim */
    SLICE = 256,       /* positions moved at once */
};

/* ---- META ---- */

/* The sources' models: drafters. Returns how many. */
static int32_t drafters_of(const struct session *s, const struct desc *d[PLAN_SOURCES])
{
    int32_t n = 0;
    for (int32_t i = 0; i < s->n_sources; i++)
        if (s->by[i].of->model) d[n++] = s->by[i].of->model->d;
    return n;
}

/* The types of a model's layers; kv_type becomes theirs. place: -1 of the target, else of a drafter's first
 * layer among those of all. true: there is more than one, or another than kv_type was. */
static bool types_of(struct state_meta *m, const struct desc *d, const struct session_options *o,
                     int32_t place, struct kn_kv_types *y)
{
    const struct kn_kv_types none = {KN_TYPE_NONE, KN_TYPE_NONE};
    bool mixed = false;
    for (int i = 0; i < d->n_layer; i++, y++) {
        *y = d->layer[i].recurrent ? none : session_kv(o, place >= 0, place < 0 ? i : place + i);
        if (d->layer[i].recurrent) continue;
        if (m->kv_type == KN_TYPE_NONE) m->kv_type = y->k;
        mixed |= y->k != m->kv_type || y->v != m->kv_type;
    }
    return mixed;
}

static void meta_of(const struct desc *t, const struct desc *const *d, int32_t n_drafters,
                    const struct session_options *o, int32_t n_past, struct state_meta *m)
{
    int32_t place = 0;
    *m = (struct state_meta){.n_tokens = (uint32_t)n_past,
                             .chunk = (uint32_t)o->chunk,
                             .n_vocab = (uint32_t)t->n_vocab,
                             .n_layer = (uint32_t)t->n_layer,
                             .n_drafters = (uint32_t)n_drafters};
    memcpy(m->target_id, t->identity, 16);
    snprintf(m->target, STATE_NAME, "%s", t->name);
    m->sparse = o->sparse;
    m->pool = o->pool;
    m->kv_type = KN_TYPE_NONE;
    bool mixed = types_of(m, t, o, -1, m->kv);
    for (int32_t k = 0; k < n_drafters; k++) {
        struct state_drafter *y = &m->by[k];
        if (desc_draft_caches(d[k])) mixed |= types_of(m, d[k], o, place, y->kv);
        place += desc_draft_caches(d[k]);
        y->n_layer = (uint32_t)desc_draft_caches(d[k]);
        y->parts = desc_reads_hidden(d[k]) ? STATE_HIDDEN : 0;
        y->n_taps = (uint32_t)d[k]->n_taps;
        memcpy(y->id, d[k]->identity, 16);
        snprintf(y->name, STATE_NAME, "%s", d[k]->name);
        for (int i = 0; i < d[k]->n_taps; i++) y->taps[i] = (uint32_t)d[k]->taps[i];
    }
    if (mixed) m->kv_type = STATE_MIXED;
    if (!mixed && m->kv_type == KN_TYPE_NONE) m->kv_type = o->kv.k; /* no layer has any */
}

/* ---- caches ---- */

/* The positions of a layer that later rows can still see: n of them from first. */
static void live(const struct desc_layer *y, int32_t n_past, int32_t *first, int32_t *n)
{
    *first = y->window && n_past > y->window ? n_past - y->window : 0;
    *n = n_past - *first;
}

/* Positions side by side on their way between a cache and a section: SLICE rows of k, of v, and of both
 * interleaved. */
struct slice {
    size_t row_k, row_v; /* bytes */
    uint8_t *k, *v, *both;
};

static int slice_new(struct slice *x, const struct kn_kv *kv, struct err *e)
{
    x->row_k = kn_kv_row_bytes(kv, kv->type.k);
    x->row_v = kn_kv_row_bytes(kv, kv->type.v);
    x->k = mem_alloc(2 * SLICE * (x->row_k + x->row_v));
    if (!x->k) return err_set(e, ERR_IO, "out of memory (a slice of the cache)");
    x->v = x->k + SLICE * x->row_k;
    x->both = x->v + SLICE * x->row_v;
    return 0;
}

/* n positions from pos on, which lie side by side, of a cache to x->both. */
static int slice_take(struct slice *x, struct session *s, const struct kn_kv *kv, int32_t pos, int32_t n)
{
    const size_t slot = (size_t)kn_kv_slot(kv, pos), row = x->row_k + x->row_v;
    int bad = s->op->download(s->be, x->k, (const uint8_t *)kv->k + slot * x->row_k, (size_t)n * x->row_k);
    if (!bad)
        bad = s->op->download(s->be, x->v, (const uint8_t *)kv->v + slot * x->row_v, (size_t)n * x->row_v);
    for (size_t i = 0; !bad && i < (size_t)n; i++) {
        memcpy(x->both + i * row, x->k + i * x->row_k, x->row_k);
        memcpy(x->both + i * row + x->row_k, x->v + i * x->row_v, x->row_v);
    }
    return bad;
}

/* The other way. */
static int slice_put(struct slice *x, struct session *s, const struct kn_kv *kv, int32_t pos, int32_t n)
{
    const size_t slot = (size_t)kn_kv_slot(kv, pos), row = x->row_k + x->row_v;
    for (size_t i = 0; i < (size_t)n; i++) {
        memcpy(x->k + i * x->row_k, x->both + i * row, x->row_k);
        memcpy(x->v + i * x->row_v, x->both + i * row + x->row_k, x->row_v);
    }
    int bad = s->op->upload(s->be, (uint8_t *)kv->k + slot * x->row_k, x->k, (size_t)n * x->row_k);
    return bad ? bad : s->op->upload(s->be, (uint8_t *)kv->v + slot * x->row_v, x->v, (size_t)n * x->row_v);
}

static int32_t slice_length(const struct kn_kv *kv, int32_t pos, int32_t most)
{
    return kn_kv_run(kv, pos, most < SLICE ? most : SLICE);
}

int state_save_layer(struct session *s, const struct kn_kv *kv, const struct desc_layer *y, int32_t end,
                     const char *tag, struct snap_writer *w, struct err *e)
{
    int32_t first, n, rc = -1;
    uint8_t header[LAYER_HEADER];
    struct slice x;
    if (slice_new(&x, kv, e)) return -1;
    const size_t row = x.row_k + x.row_v;
    live(y, end, &first, &n);
    const uint32_t h[4] = {(uint32_t)first, (uint32_t)n, (uint32_t)kv->n_head_kv, (uint32_t)kv->head_dim};
    for (int i = 0; i < 4; i++) state_put_u32(header + 4 * i, h[i]);
    if (snap_section(w, tag, LAYER_HEADER + row * (uint64_t)n, e) || snap_write(w, header, sizeof header, e))
        goto out;
    for (int32_t pos = first, some; pos < end; pos += some) {
        some = slice_length(kv, pos, end - pos);
        int bad = slice_take(&x, s, kv, pos, some);
        if (bad) {
            model_failed(s->target, "download", bad, e);
            goto out;
        }
        if (snap_write(w, x.both, (size_t)some * row, e)) goto out;
    }
    rc = snap_section_end(w, e);
out:
    mem_free(x.k);
    return rc;
}

/* The cache as a layer of the state has it: of the types that it was saved with. */
static struct kn_kv saved_cache(const struct state *st, const struct session *s, const struct kn_kv *kv,
                                const struct desc_layer *y)
{
    const struct desc *d[PLAN_SOURCES], *t = s->target->d;
    struct kn_kv from = *kv;
    if (y >= t->layer && y < t->layer + t->n_layer) from.type = st->m.kv[y - t->layer];
    for (int32_t i = 0, n = drafters_of(s, d); i < n && st->loading; i++)
        if (y >= d[i]->layer && y < d[i]->layer + d[i]->n_layer) from.type = st->loading->kv[y - d[i]->layer];
    return from;
}

/* n positions of old->both, of types from, to x->both, of types to: each number is taken out and stored anew.
 */
static int convert_rows(struct slice *x, const struct kn_kv *to, const struct slice *old,
                        const struct kn_kv *from, int32_t n, struct err *e)
{
    const size_t row = x->row_k + x->row_v, old_row = old->row_k + old->row_v;
    float *f = mem_alloc((size_t)to->n_head_kv * (size_t)to->head_dim * sizeof *f);
    if (!f) return err_set(e, ERR_IO, "out of memory (a row of the cache)");
    for (size_t i = 0; i < (size_t)n; i++) {
        kn_kv_get(from, false, old->both + i * old_row, f);
        kn_kv_put(to, false, f, x->both + i * row);
        kn_kv_get(from, true, old->both + i * old_row + old->row_k, f);
        kn_kv_put(to, true, f, x->both + i * row + x->row_k);
    }
    mem_free(f);
    return 0;
}

static int check_header(struct state *st, const uint32_t want[4], const char *tag, struct err *e)
{
    uint8_t header[LAYER_HEADER];
    if (snap_read(&st->r, header, sizeof header, e)) return -1;
    for (int i = 0; i < 4; i++)
        if (state_get_u32(header + 4 * i) != want[i])
            return err_set(e, ERR_FORMAT,
                           "%s: section %s: its header does not fit the model (word %d: expected %" PRIu32
                           ", got %" PRIu32 ")",
                           st->name, tag, i, want[i], state_get_u32(header + 4 * i));
    return 0;
}

int state_load_layer(struct state *st, struct session *s, const struct kn_kv *kv, const struct desc_layer *y,
                     int32_t end, const char *tag, struct err *e)
{
    const struct kn_kv from = saved_cache(st, s, kv, y);
    const bool other = from.type.k != kv->type.k || from.type.v != kv->type.v;
    int32_t first, n, rc = -1;
    struct slice x, old = {0};
    if (slice_new(&x, kv, e)) return -1;
    if (other && slice_new(&old, &from, e)) goto out;
    const size_t row = other ? old.row_k + old.row_v : x.row_k + x.row_v;
    live(y, end, &first, &n);
    const uint32_t want[4] = {(uint32_t)first, (uint32_t)n, (uint32_t)kv->n_head_kv, (uint32_t)kv->head_dim};
    if (state_section(st, tag, LAYER_HEADER + row * (uint64_t)n, e) || check_header(st, want, tag, e))
        goto out;
    for (int32_t pos = first, some; pos < end; pos += some) {
        some = slice_length(kv, pos, end - pos);
        if (snap_read(&st->r, other ? old.both : x.both, (size_t)some * row, e)) goto out;
        if (other && convert_rows(&x, kv, &old, &from, some, e)) goto out;
        int bad = slice_put(&x, s, kv, pos, some);
        if (bad) {
            model_failed(s->target, "upload", bad, e);
            goto out;
        }
    }
    rc = snap_section_check(&st->r, e);
out:
    mem_free(old.k);
    mem_free(x.k);
    return rc;
}

/* ---- recurrent state: the committed matrices, then the inputs that the convolution still sees ---- */

static size_t delta_bytes(const struct desc *d, size_t *conv)
{
    *conv = (size_t)(d->n_conv - 1) * (size_t)desc_delta_width(d) * sizeof(float);
    return (size_t)d->n_v * (size_t)d->d_v * (size_t)d->d_k * sizeof(float) + *conv;
}

static int save_delta(struct session *s, int i, struct snap_writer *w, struct err *e)
{
    size_t conv, bytes = delta_bytes(s->target->d, &conv);
    uint8_t *p = mem_alloc(bytes);
    if (!p) return err_set(e, ERR_IO, "out of memory (recurrent state of layer %d)", i);
    int rc = s->op->download(s->be, p, s->delta[i].s, bytes - conv);
    if (!rc) rc = s->op->download(s->be, p + bytes - conv, s->delta[i].conv, conv);
    rc = rc ? model_failed(s->target, "download", rc, e) : snap_put(w, "SSM ", p, bytes, e);
    mem_free(p);
    return rc;
}

static int load_delta(struct state *st, struct session *s, int i, struct err *e)
{
    size_t conv, bytes = delta_bytes(s->target->d, &conv);
    uint8_t *p = NULL;
    if (state_section(st, "SSM ", bytes, e) || snap_read_section(&st->r, bytes, &p, e)) return -1;
    int rc = s->op->upload(s->be, s->delta[i].s, p, bytes - conv);
    if (!rc) rc = s->op->upload(s->be, s->delta[i].conv, p + bytes - conv, conv);
    mem_free(p);
    return rc ? model_failed(s->target, "upload", rc, e) : 0;
}

/* ---- saving ---- */

static int save_logits(struct session *s, struct snap_writer *w, struct err *e)
{
    size_t bytes = (size_t)s->target->d->n_vocab * sizeof(float);
    float *row = mem_alloc(bytes);
    int rc = row ? session_logits(s, 0, row, e) : err_set(e, ERR_IO, "out of memory (a row of logits)");
    if (rc == 0) rc = snap_put(w, "LOGT", row, bytes, e);
    mem_free(row);
    return rc;
}

int state_save(struct session *s, struct io_out *o, struct err *e)
{
    struct snap_writer w;
    struct state_meta m;
    uint8_t meta[STATE_META_MOST];
    if (session_settle_anchor(s, e)) return -1;
    if (s->n_past < 1 || s->logits_rows != 1 || s->logits_pos != s->n_past - 1)
        return err_set(e, ERR_USAGE,
                       "nothing to save (expected a session that has been prefilled, or has generated)");
    if (session_settle(s, e)) return -1;
    const struct desc *drafters[PLAN_SOURCES];
    meta_of(s->target->d, drafters, drafters_of(s, drafters), &s->o, s->n_past, &m);
    m.gaps = s->gaps;
    size_t size = state_meta_pack(&m, meta);
    if (snap_begin(&w, o, e) || snap_put(&w, "META", meta, size, e)) return -1;
    if (pages_collect(s, e) || snap_put(&w, "TOKN", s->history, (size_t)s->n_past * sizeof *s->history, e))
        return -1;
    if (s->gaps.n_text && snap_put(&w, "KEPT", s->gaps_at, (size_t)s->gaps.n_kept * sizeof *s->gaps_at, e))
        return -1;
    if (save_logits(s, &w, e)) return -1;
    for (int i = 0; i < s->target->d->n_layer; i++) {
        const struct kn_kv kv = pages_cache(s, i);
        if (s->target->d->layer[i].recurrent
                ? save_delta(s, i, &w, e)
                : state_save_layer(s, &kv, &s->target->d->layer[i], s->n_past, "KV  ", &w, e))
            return -1;
    }
    for (int32_t i = 0; i < s->n_sources; i++)
        if (s->by[i].of->op->save && s->by[i].of->op->save(s, &s->by[i], &w, e)) return -1;
    if (s->o.pool && pages_save(s, &w, e)) return -1;
    return snap_end(&w, e);
}

/* ---- restoring ---- */

static void id_text(const char *name, const uint8_t *id, char out[STATE_NAME + 32])
{
    snprintf(out, STATE_NAME + 32, "%s%s%sidentity %02x%02x%02x%02x", *name ? "'" : "", name,
             *name ? "', " : "", id[0], id[1], id[2], id[3]);
}

/* What a drafter's context is made of. */
static void context_text(const struct state_drafter *d, char *out, size_t size)
{
    size_t used = 0;
    if (d->parts & STATE_HIDDEN) {
        snprintf(out, size, "the last hidden state");
        return;
    }
    used = (size_t)snprintf(out, size, "taps");
    for (uint32_t i = 0; i < d->n_taps && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, " %" PRId32, (int32_t)d->taps[i]);
}

/* Which of the state's drafters is it? -1: none. */
static int32_t saved_drafter(const struct state *st, const struct state_drafter *own)
{
    for (uint32_t i = 0; i < st->m.n_drafters; i++) {
        const struct state_drafter *d = &st->m.by[i];
        if (!memcmp(d->id, own->id, 16) && d->n_taps == own->n_taps && d->parts == own->parts &&
            !memcmp(d->taps, own->taps, own->n_taps * sizeof own->taps[0]))
            return (int32_t)i;
    }
    return -1;
}

static int check_drafter(const struct state *st, const struct state_drafter *own, struct err *e)
{
    char want[STATE_NAME + 32], got[STATE_NAME + 32], want_of[256], got_of[256];
    const int32_t at = saved_drafter(st, own);
    if (!own->n_layer && !own->parts) return 0;
    if (at >= 0 && own->n_layer != st->m.by[at].n_layer)
        return err_set(e, ERR_FORMAT, "%s: drafter layers (expected %" PRIu32 ", got %" PRIu32 ")", st->name,
                       own->n_layer, st->m.by[at].n_layer);
    if (at >= 0) return 0;
    id_text(own->name, own->id, want);
    context_text(own, want_of, sizeof want_of);
    if (!st->m.n_drafters) {
        err_set(e, ERR_FORMAT, "%s: holds no context for a drafter, and %s needs it (expected %s, got none)",
                st->name, want, want_of);
    } else {
        const struct state_drafter *last = &st->m.by[st->m.n_drafters - 1];
        id_text(last->name, last->id, got);
        context_text(last, got_of, sizeof got_of);
        err_set(e, ERR_FORMAT,
                "%s: holds the context of another drafter (expected %s with %s, got %s with %s)", st->name,
                want, want_of, got, got_of);
    }
    return err_hint(e, "make the state with this drafter: dflash-prefill -m TARGET -d DRAFTER");
}

static void types_text(struct kn_kv_types y, char out[32])
{
    const char *k = kn_kv_known(y.k) ? kn_kv_name(y.k) : "none",
               *v = kn_kv_known(y.v) ? kn_kv_name(y.v) : "none";
    snprintf(out, 32, "%s%s%s", k, y.k == y.v ? "" : ",", y.k == y.v ? "" : v);
}

static int check_layer_types(const struct state *st, const struct kn_kv_types *own,
                             const struct kn_kv_types *saved, uint32_t n, const char *role, struct err *e)
{
    char want[32], got[32];
    for (uint32_t i = 0; i < n; i++) {
        if (own[i].k == KN_TYPE_NONE || (own[i].k == saved[i].k && own[i].v == saved[i].v)) continue;
        types_text(own[i], want);
        types_text(saved[i], got);
        return err_set(e, ERR_FORMAT,
                       "%s: was made with another cache type (%s layer %" PRIu32 ": expected %s, got %s)",
                       st->name, role, i, want, got);
    }
    return 0;
}

static int check_sparse(const struct state *st, const struct state_meta *own, struct err *e)
{
    const struct session_sparse *a = &own->sparse, *b = &st->m.sparse;
    if (a->on == b->on && (!a->on || (a->alpha == b->alpha && a->dense == b->dense))) return 0;
    if (!b->on)
        return err_set(e, ERR_FORMAT,
                       "%s: was made of dense prompts (expected --sparse %g --sparse-dense %d)", st->name,
                       (double)a->alpha, a->dense);
    if (!a->on)
        return err_set(
            e, ERR_FORMAT,
            "%s: was made of sparse prompts (expected dense ones, got --sparse %g --sparse-dense %d)",
            st->name, (double)b->alpha, b->dense);
    return err_set(
        e, ERR_FORMAT,
        "%s: was made of other sparse prompts (expected --sparse %g --sparse-dense %d, got --sparse %g "
        "--sparse-dense %d)",
        st->name, (double)a->alpha, a->dense, (double)b->alpha, b->dense);
}

/* The types of the caches that both have. */
static int check_types(const struct state *st, const struct state_meta *own, struct err *e)
{
    const uint32_t layers = own->n_layer < st->m.n_layer ? own->n_layer : st->m.n_layer;
    if (own->kv_type != st->m.kv_type && own->kv_type != STATE_MIXED && st->m.kv_type != STATE_MIXED)
        return err_set(e, ERR_FORMAT, "%s: was made with another cache type (expected %s, got %s)", st->name,
                       kn_kv_name(own->kv_type), kn_kv_name(st->m.kv_type));
    if (check_layer_types(st, own->kv, st->m.kv, layers, "target", e)) return -1;
    for (uint32_t k = 0; k < own->n_drafters; k++) {
        const int32_t at = saved_drafter(st, &own->by[k]);
        if (at < 0) continue;
        const struct state_drafter *d = &st->m.by[at];
        const uint32_t n = own->by[k].n_layer < d->n_layer ? own->by[k].n_layer : d->n_layer;
        if (check_layer_types(st, own->by[k].kv, d->kv, n, "drafter", e)) return -1;
    }
    return 0;
}

int state_check(const struct state *st, const struct desc *target, const struct desc *const *drafters,
                int32_t n, const struct session_options *o, struct err *e)
{
    struct state_meta own;
    char want[STATE_NAME + 32], got[STATE_NAME + 32];
    meta_of(target, drafters, n, o, 0, &own);
    id_text(own.target, own.target_id, want);
    id_text(st->m.target, st->m.target_id, got);
    if (memcmp(st->m.target_id, own.target_id, 16)) {
        err_set(e, ERR_FORMAT, "%s: was made with another target (expected %s; got %s%s)", st->name, want,
                got, strcmp(own.target, st->m.target) ? "" : ", a file of the same name and other contents");
        return err_hint(e, "dflash-inspect names the model that a state wants, and prints the identity of a "
                           "model's file; keys "
                           "of --override-kv count");
    }
    if (check_sparse(st, &own, e)) return -1;
    if (st->m.pool != own.pool)
        return err_set(e, ERR_FORMAT,
                       "%s: was made with another pool (expected %d positions, got %d; 0: none)", st->name,
                       own.pool, st->m.pool);
    if (st->m.gaps.n_text && session_gaps_check(target, e)) return err_prefix(e, "%s", st->name);
    if (st->m.gaps.n_text && o->pool)
        return err_set(e, ERR_USAGE, "%s: its prompt is compressed, which no pool holds (expected no --pool)",
                       st->name);
    if (!o->kv_convert && check_types(st, &own, e))
        return err_hint(e, "--kv-convert brings the state's keys and values into these types");
    if (st->m.chunk != own.chunk)
        return err_set(e, ERR_FORMAT,
                       "%s: was made with another chunk (expected %" PRIu32 ", got %" PRIu32 ")", st->name,
                       own.chunk, st->m.chunk);
    if (st->m.n_vocab != own.n_vocab || st->m.n_layer != own.n_layer)
        return err_set(e, ERR_FORMAT,
                       "%s: sizes do not fit the target (expected %" PRIu32 " layers, %" PRIu32
                       " ids, got %" PRIu32 " and %" PRIu32 ")",
                       st->name, own.n_layer, own.n_vocab, st->m.n_layer, st->m.n_vocab);
    for (uint32_t k = 0; k < own.n_drafters; k++)
        if (check_drafter(st, &own.by[k], e)) return -1;
    if ((int64_t)st->m.n_tokens > o->ctx)
        return err_set(e, ERR_USAGE,
                       "%s: does not fit the context (expected at most %d tokens, got %" PRIu32 ")", st->name,
                       o->ctx, st->m.n_tokens);
    return 0;
}

static int load_history(struct state *st, struct session *s, struct err *e)
{
    uint32_t n = st->m.n_tokens;
    size_t bytes = (size_t)n * sizeof *s->history;
    if (state_section(st, "TOKN", bytes, e) || snap_read(&st->r, s->history, bytes, e)) return -1;
    if (snap_section_check(&st->r, e)) return -1;
    for (uint32_t i = 0; i < n; i++)
        if (s->history[i] < 0 || s->history[i] >= s->target->d->n_vocab)
            return err_set(e, ERR_FORMAT,
                           "%s: token %" PRIu32 ": id out of the vocabulary (expected 0 to %d, got %d)",
                           st->name, i, s->target->d->n_vocab - 1, s->history[i]);
    int rc = s->op->upload(s->be, s->d_history, s->history, bytes);
    return rc ? model_failed(s->target, "upload", rc, e) : 0;
}

static int load_gaps(struct state *st, struct session *s, struct err *e)
{
    const struct session_gaps *g = &st->m.gaps;
    const size_t bytes = (size_t)g->n_kept * sizeof(int32_t);
    uint8_t *at = NULL;
    if (!g->n_text) return 0;
    if (state_section(st, "KEPT", bytes, e) || snap_read_section(&st->r, bytes, &at, e)) return -1;
    const int rc = session_set_gaps(s, g, (const int32_t *)(const void *)at, e);
    mem_free(at);
    return rc ? err_prefix(e, "%s", st->name) : 0;
}

static int load_logits(struct state *st, struct session *s, struct err *e)
{
    size_t bytes = (size_t)s->target->d->n_vocab * sizeof(float);
    uint8_t *row = NULL;
    if (state_section(st, "LOGT", bytes, e) || snap_read_section(&st->r, bytes, &row, e)) return -1;
    int rc = s->op->upload(s->be, s->g->logits, row, bytes);
    mem_free(row);
    return rc ? model_failed(s->target, "upload", rc, e) : 0;
}

/* The sections of one of the state's drafters: into the source that they are of, or past them. */
static int load_drafter(struct state *st, struct session *s, const struct state_drafter *d, struct err *e)
{
    for (int32_t i = 0; i < s->n_sources; i++) {
        struct session_source *x = &s->by[i];
        const struct desc *own = x->of->model ? x->of->model->d : NULL;
        if (!own || memcmp(own->identity, d->id, 16) || !x->of->op->load) continue;
        st->loading = d;
        return x->of->op->load(s, x, st, e);
    }
    for (uint32_t i = 0; i < d->n_layer; i++)
        if (state_section(st, "DKV ", 0, e) || snap_skip(&st->r, e)) return -1;
    if (d->parts & STATE_HIDDEN) return state_section(st, "DHID", 0, e) || snap_skip(&st->r, e) ? -1 : 0;
    return 0;
}

int state_restore(struct state *st, struct session *s, struct err *e)
{
    if (s->n_past)
        return err_set(e, ERR_USAGE, "%s: a state goes into a new session (expected position 0, got %d)",
                       st->name, s->n_past);
    const struct desc *drafters[PLAN_SOURCES];
    if (state_check(st, s->target->d, drafters, drafters_of(s, drafters), &s->o, e) || session_turn(s, e) ||
        load_history(st, s, e) || load_gaps(st, s, e) || load_logits(st, s, e))
        return -1;
    for (int i = 0; i < s->target->d->n_layer; i++) {
        const struct kn_kv kv = pages_cache(s, i);
        if (s->target->d->layer[i].recurrent
                ? load_delta(st, s, i, e)
                : state_load_layer(st, s, &kv, &s->target->d->layer[i], (int32_t)st->m.n_tokens, "KV  ", e))
            return -1;
    }
    for (uint32_t i = 0; i < st->m.n_drafters; i++)
        if (load_drafter(st, s, &st->m.by[i], e)) return -1;
    for (int32_t i = 0; i < s->n_sources; i++) /* without a model: made of the history */
        if (!s->by[i].of->model && s->by[i].of->op->load && s->by[i].of->op->load(s, &s->by[i], st, e))
            return -1;
    if (s->o.pool && pages_load(st, s, (int32_t)st->m.n_tokens, e)) return -1;
    int rc = snap_next(&st->r, e);
    if (rc > 0)
        err_set(e, ERR_FORMAT, "%s: section out of order (expected the end, got %s)", st->name, st->r.tag);
    if (rc) return -1;
    s->n_past = (int32_t)st->m.n_tokens;
    s->logits_pos = s->n_past - 1;
    s->logits_rows = 1;
    return 0;
}
