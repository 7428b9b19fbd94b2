/* state.c - see state.h. Sections, in this order: META, TOKN, LOGT, one a target layer (KV of attention, SSM
 * of a delta net), one DKV a drafter layer. */
#include "state.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "../base/mem.h"
#include "session_impl.h"
#include "state_impl.h"

enum {
    NAME = 128, /* bytes of a model's name */
    META_FIXED = 32 + 2 * 16 + 2 * NAME,
    META_MOST = META_FIXED + 4 * DESC_MAX_TAPS + 16 * DESC_MAX_LAYERS,
    LAYER_HEADER = 16, /* first position, positions, n_head_kv, head_dim */
    SLICE = 256,       /* positions moved at once */
};

/* META in memory; on paper: little-endian u32 in this order, then the identities, the names, the taps, and,
 * where kv_type is MIXED, the types of every layer. */
#define MIXED KN_TYPE_NONE /* caches are not all of one type */
struct meta {
    uint32_t n_tokens, chunk, kv_type, n_vocab, n_layer, n_draft_layer, n_taps;
    uint8_t target_id[16], drafter_id[16];
    char target[NAME], drafter[NAME];
    uint32_t taps[DESC_MAX_TAPS];
    struct kn_kv_types kv[2][DESC_MAX_LAYERS]; /* of target and drafter; KN_TYPE_NONE: a layer without any */
};

struct state {
    struct snap_reader r;
    int fd;
    char *name;
    struct meta m;
};

/* ---- META ---- */

static void put_u32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++) p[i] = (uint8_t)(v >> 8 * i);
}

static uint32_t get_u32(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* What the source's model is called in a state: a drafter. NULL where there is none. */
static const struct desc *drafter_of(const struct session *s)
{
    return s->source && s->source->model ? s->source->model->d : NULL;
}

/* The types of a model's layers; kv_type becomes theirs. true: there is more than one, or another than
 * kv_type was. */
static bool types_of(struct meta *m, const struct desc *d, const struct session_options *o, bool drafter)
{
    const struct kn_kv_types none = {KN_TYPE_NONE, KN_TYPE_NONE};
    bool mixed = false;
    for (int i = 0; i < d->n_layer; i++) {
        struct kn_kv_types *y = &m->kv[drafter][i];
        *y = d->layer[i].recurrent ? none : session_kv(o, drafter, i);
        if (d->layer[i].recurrent) continue;
        if (m->kv_type == KN_TYPE_NONE) m->kv_type = y->k;
        mixed |= y->k != m->kv_type || y->v != m->kv_type;
    }
    return mixed;
}

/* d: NULL without a drafter. */
static void meta_of(const struct desc *t, const struct desc *d, const struct session_options *o,
                    int32_t n_past, struct meta *m)
{
    *m = (struct meta){.n_tokens = (uint32_t)n_past,
                       .chunk = (uint32_t)o->chunk,
                       .n_vocab = (uint32_t)t->n_vocab,
                       .n_layer = (uint32_t)t->n_layer};
    memcpy(m->target_id, t->identity, 16);
    snprintf(m->target, NAME, "%s", t->name);
    m->kv_type = KN_TYPE_NONE;
    bool mixed = types_of(m, t, o, false);
    if (d) mixed |= types_of(m, d, o, true);
    if (mixed) m->kv_type = MIXED;
    if (!mixed && m->kv_type == KN_TYPE_NONE) m->kv_type = o->kv.k; /* no layer has any */
    if (!d) return;
    m->n_draft_layer = (uint32_t)d->n_layer;
    m->n_taps = (uint32_t)d->n_taps;
    memcpy(m->drafter_id, d->identity, 16);
    snprintf(m->drafter, NAME, "%s", d->name);
    for (int i = 0; i < d->n_taps; i++) m->taps[i] = (uint32_t)d->taps[i];
}

static size_t meta_pack(const struct meta *m, uint8_t *p)
{
    const uint32_t v[8] = {m->n_tokens, m->chunk,         m->kv_type, m->n_vocab,
                           m->n_layer,  m->n_draft_layer, m->n_taps,  0};
    for (int i = 0; i < 8; i++) put_u32(p + 4 * i, v[i]);
    memcpy(p + 32, m->target_id, 16);
    memcpy(p + 48, m->drafter_id, 16);
    memcpy(p + 64, m->target, NAME);
    memcpy(p + 64 + NAME, m->drafter, NAME);
    uint8_t *at = p + META_FIXED;
    for (uint32_t i = 0; i < m->n_taps; i++, at += 4) put_u32(at, m->taps[i]);
    for (uint32_t i = 0; m->kv_type == MIXED && i < m->n_layer + m->n_draft_layer; i++, at += 8) {
        const struct kn_kv_types *y = i < m->n_layer ? &m->kv[0][i] : &m->kv[1][i - m->n_layer];
        put_u32(at, y->k);
        put_u32(at + 4, y->v);
    }
    return (size_t)(at - p);
}

/* The types of every layer, from p on where they differ. */
static int types_unpack(struct meta *m, const uint8_t *p, const char *name, struct err *e)
{
    const uint32_t n[2] = {m->n_layer, m->n_draft_layer};
    if (n[0] > DESC_MAX_LAYERS || n[1] > DESC_MAX_LAYERS)
        return err_set(e, ERR_FORMAT,
                       "%s: layers out of range (expected at most %d, got %" PRIu32 " and %" PRIu32 ")", name,
                       DESC_MAX_LAYERS, n[0], n[1]);
    for (int d = 0; d < 2; d++)
        for (uint32_t i = 0; i < n[d]; i++) {
            struct kn_kv_types *y = &m->kv[d][i];
            *y = (struct kn_kv_types){m->kv_type, m->kv_type};
            if (m->kv_type != MIXED) continue;
            *y = (struct kn_kv_types){get_u32(p), get_u32(p + 4)};
            p += 8;
            if (y->k == KN_TYPE_NONE && y->v == KN_TYPE_NONE) continue;
            if (!kn_kv_known(y->k) || !kn_kv_known(y->v))
                return err_set(e, ERR_FORMAT,
                               "%s: cache type not supported (%s layer %" PRIu32 ": expected " KN_KV_TYPES
                               ", got numbers %" PRIu32 " and %" PRIu32 ")",
                               name, d ? "drafter" : "target", i, y->k, y->v);
        }
    return 0;
}

static int meta_unpack(struct meta *m, const uint8_t *p, uint64_t size, const char *name, struct err *e)
{
    uint32_t *v[7] = {&m->n_tokens, &m->chunk,         &m->kv_type, &m->n_vocab,
                      &m->n_layer,  &m->n_draft_layer, &m->n_taps};
    if (size < META_FIXED)
        return err_set(e, ERR_FORMAT,
                       "%s: section META is too short (expected %d bytes or more, got %" PRIu64 ")", name,
                       META_FIXED, size);
    for (int i = 0; i < 7; i++) *v[i] = get_u32(p + 4 * i);
    if (get_u32(p + 28))
        return err_set(e, ERR_FORMAT, "%s: section META: unknown flags (expected 0, got %" PRIu32 ")", name,
                       get_u32(p + 28));
    memcpy(m->target_id, p + 32, 16);
    memcpy(m->drafter_id, p + 48, 16);
    memcpy(m->target, p + 64, NAME);
    memcpy(m->drafter, p + 64 + NAME, NAME);
    m->target[NAME - 1] = m->drafter[NAME - 1] = 0;
    const uint64_t mixed = m->kv_type == MIXED ? (uint64_t)m->n_layer + m->n_draft_layer : 0,
                   expected = META_FIXED + 4ull * m->n_taps + 8 * mixed;
    if (m->n_taps > DESC_MAX_TAPS || size != expected)
        return err_set(e, ERR_FORMAT,
                       "%s: section META has the wrong size (expected %" PRIu64 " for %" PRIu32
                       " taps and the types of %" PRIu64 " layers, got %" PRIu64 ")",
                       name, expected, m->n_taps, mixed, size);
    for (uint32_t i = 0; i < m->n_taps; i++) m->taps[i] = get_u32(p + META_FIXED + 4 * i);
    if (!m->n_tokens || m->n_tokens > SESSION_MAX_CTX || !m->chunk || m->chunk > 1u << 20)
        return err_set(e, ERR_FORMAT, "%s: tokens or chunk out of range (got %" PRIu32 " and %" PRIu32 ")",
                       name, m->n_tokens, m->chunk);
    if (m->kv_type != MIXED && !kn_kv_known(m->kv_type))
        return err_set(e, ERR_FORMAT,
                       "%s: cache type not supported (expected " KN_KV_TYPES ", got number %" PRIu32 ")",
                       name, m->kv_type);
    return types_unpack(m, p + META_FIXED + 4 * m->n_taps, name, e);
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

int state_save_layer(struct session *s, const struct kn_kv *kv, const struct desc_layer *y, const char *tag,
                     struct snap_writer *w, struct err *e)
{
    int32_t first, n, rc = -1;
    uint8_t header[LAYER_HEADER];
    struct slice x;
    if (slice_new(&x, kv, e)) return -1;
    const size_t row = x.row_k + x.row_v;
    live(y, s->n_past, &first, &n);
    const uint32_t h[4] = {(uint32_t)first, (uint32_t)n, (uint32_t)kv->n_head_kv, (uint32_t)kv->head_dim};
    for (int i = 0; i < 4; i++) put_u32(header + 4 * i, h[i]);
    if (snap_section(w, tag, LAYER_HEADER + row * (uint64_t)n, e) || snap_write(w, header, sizeof header, e))
        goto out;
    for (int32_t pos = first, some; pos < s->n_past; pos += some) {
        some = slice_length(kv, pos, s->n_past - pos);
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

static int open_section(struct state *st, const char *tag, uint64_t size, struct err *e)
{
    int rc = snap_next(&st->r, e);
    if (rc < 0) return -1;
    if (rc == 0) return err_set(e, ERR_FORMAT, "%s: ends early (expected a section %s)", st->name, tag);
    if (strcmp(st->r.tag, tag))
        return err_set(e, ERR_FORMAT, "%s: section out of order (expected %s, got %s)", st->name, tag,
                       st->r.tag);
    if (size && st->r.size != size)
        return err_set(e, ERR_FORMAT,
                       "%s: section %s has the wrong size (expected %" PRIu64 " bytes, got %" PRIu64 ")",
                       st->name, tag, size, st->r.size);
    return 0;
}

int state_load_layer(struct state *st, struct session *s, const struct kn_kv *kv, const struct desc_layer *y,
                     const char *tag, struct err *e)
{
    int32_t first, n, n_past = (int32_t)st->m.n_tokens, rc = -1;
    uint8_t header[LAYER_HEADER];
    struct slice x;
    if (slice_new(&x, kv, e)) return -1;
    const size_t row = x.row_k + x.row_v;
    live(y, n_past, &first, &n);
    const uint32_t want[4] = {(uint32_t)first, (uint32_t)n, (uint32_t)kv->n_head_kv, (uint32_t)kv->head_dim};
    if (open_section(st, tag, LAYER_HEADER + row * (uint64_t)n, e) ||
        snap_read(&st->r, header, sizeof header, e))
        goto out;
    for (int i = 0; i < 4; i++)
        if (get_u32(header + 4 * i) != want[i]) {
            err_set(e, ERR_FORMAT,
                    "%s: section %s: its header does not fit the model (word %d: expected %" PRIu32
                    ", got %" PRIu32 ")",
                    st->name, tag, i, want[i], get_u32(header + 4 * i));
            goto out;
        }
    for (int32_t pos = first, some; pos < n_past; pos += some) {
        some = slice_length(kv, pos, n_past - pos);
        if (snap_read(&st->r, x.both, (size_t)some * row, e)) goto out;
        int bad = slice_put(&x, s, kv, pos, some);
        if (bad) {
            model_failed(s->target, "upload", bad, e);
            goto out;
        }
    }
    rc = snap_section_check(&st->r, e);
out:
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
    if (open_section(st, "SSM ", bytes, e) || snap_read_section(&st->r, bytes, &p, e)) return -1;
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
    struct meta m;
    uint8_t meta[META_MOST];
    if (session_settle_anchor(s, e)) return -1;
    if (s->n_past < 1 || s->logits_rows != 1 || s->logits_pos != s->n_past - 1)
        return err_set(e, ERR_USAGE,
                       "nothing to save (expected a session that has been prefilled, or has generated)");
    if (session_settle(s, e)) return -1;
    meta_of(s->target->d, drafter_of(s), &s->o, s->n_past, &m);
    size_t size = meta_pack(&m, meta);
    if (snap_begin(&w, o, e) || snap_put(&w, "META", meta, size, e)) return -1;
    if (snap_put(&w, "TOKN", s->history, (size_t)s->n_past * sizeof *s->history, e)) return -1;
    if (save_logits(s, &w, e)) return -1;
    for (int i = 0; i < s->target->d->n_layer; i++)
        if (s->target->d->layer[i].recurrent
                ? save_delta(s, i, &w, e)
                : state_save_layer(s, &s->kv[i], &s->target->d->layer[i], "KV  ", &w, e))
            return -1;
    if (s->source && s->source->op->save && s->source->op->save(s, &w, e)) return -1;
    return snap_end(&w, e);
}

/* ---- restoring ---- */

int state_open(struct state **out, const char *path, struct state_info *info, struct err *e)
{
    struct state *st = mem_calloc(1, sizeof *st);
    bool piped = !strcmp(path, "-");
    uint8_t *meta = NULL;
    int rc = -1;
    *out = NULL;
    if (!st) return err_set(e, ERR_IO, "out of memory (a state)");
    st->fd = piped ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    st->name = mem_strdup(piped ? "stdin" : path);
    if (st->fd < 0) {
        err_errno(e, "%s", path);
        goto out;
    }
    if (!st->name) {
        err_set(e, ERR_IO, "out of memory (a state)");
        goto out;
    }
    if (snap_open(&st->r, st->fd, st->name, e) || open_section(st, "META", 0, e)) goto out;
    uint64_t size = st->r.size;
    if (snap_read_section(&st->r, META_MOST, &meta, e)) goto out;
    if (meta_unpack(&st->m, meta, size, st->name, e)) goto out;
    if (st->m.n_tokens * 4ull > st->r.left) {
        err_set(e, ERR_FORMAT, "%s: ends early (expected %" PRIu32 " tokens, got %" PRIu64 " bytes)",
                st->name, st->m.n_tokens, st->r.left);
        goto out;
    }
    *info = (struct state_info){.n_tokens = (int32_t)st->m.n_tokens,
                                .chunk = (int32_t)st->m.chunk,
                                .n_layer = (int32_t)st->m.n_layer,
                                .n_draft_layer = (int32_t)st->m.n_draft_layer,
                                .kv = st->m.kv[0],
                                .draft_kv = st->m.kv[1],
                                .has_drafter = st->m.n_draft_layer > 0};
    *out = st;
    st = NULL;
    rc = 0;
out:
    mem_free(meta);
    state_close(st);
    return rc;
}

void state_close(struct state *st)
{
    if (!st) return;
    if (st->fd > STDIN_FILENO) close(st->fd);
    mem_free(st->name);
    mem_free(st);
}

static void id_text(const char *name, const uint8_t *id, char out[NAME + 32])
{
    snprintf(out, NAME + 32, "%s%s%02x%02x%02x%02x", name, *name ? " " : "", id[0], id[1], id[2], id[3]);
}

static void taps_text(const uint32_t *taps, uint32_t n, char *out, size_t size)
{
    size_t used = 0;
    out[0] = 0;
    for (uint32_t i = 0; i < n && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%" PRIu32, i ? " " : "", taps[i]);
}

static int check_drafter(const struct state *st, const struct meta *own, struct err *e)
{
    char want[NAME + 32], got[NAME + 32], want_taps[256], got_taps[256];
    if (!own->n_draft_layer) return 0;
    if (!memcmp(st->m.drafter_id, own->drafter_id, 16) && st->m.n_taps == own->n_taps &&
        !memcmp(st->m.taps, own->taps, own->n_taps * sizeof own->taps[0]))
        return 0;
    id_text(own->drafter, own->drafter_id, want);
    taps_text(own->taps, own->n_taps, want_taps, sizeof want_taps);
    id_text(st->m.drafter, st->m.drafter_id, got);
    taps_text(st->m.taps, st->m.n_taps, got_taps, sizeof got_taps);
    if (!st->m.n_draft_layer)
        err_set(e, ERR_FORMAT,
                "%s: holds no context for a drafter, and %s needs it (expected taps %s, got none)", st->name,
                want, want_taps);
    else
        err_set(e, ERR_FORMAT,
                "%s: holds the context of another drafter (expected %s with taps %s, got %s with taps %s)",
                st->name, want, want_taps, got, got_taps);
    return err_hint(e, "make the state with this drafter: dflash-prefill -m TARGET -d DRAFTER");
}

static void types_text(struct kn_kv_types y, char out[32])
{
    const struct kn_type_info *k = kn_type_info(y.k), *v = kn_type_info(y.v);
    snprintf(out, 32, "%s%s%s", k ? k->name : "none", y.k == y.v ? "" : ",",
             y.k == y.v ? ""
             : v        ? v->name
                        : "none");
}

/* The types of the caches that both have. */
static int check_types(const struct state *st, const struct meta *own, struct err *e)
{
    const uint32_t n[2] = {own->n_layer, own->n_draft_layer}, got_n[2] = {st->m.n_layer, st->m.n_draft_layer};
    char want[32], got[32];
    if (own->kv_type != st->m.kv_type && own->kv_type != MIXED && st->m.kv_type != MIXED)
        return err_set(e, ERR_FORMAT, "%s: was made with another cache type (expected %s, got %s)", st->name,
                       kn_type_info(own->kv_type)->name, kn_type_info(st->m.kv_type)->name);
    for (int d = 0; d < 2; d++)
        for (uint32_t i = 0; i < n[d] && i < got_n[d]; i++) {
            const struct kn_kv_types a = own->kv[d][i], b = st->m.kv[d][i];
            if (a.k == KN_TYPE_NONE || (a.k == b.k && a.v == b.v)) continue;
            types_text(a, want);
            types_text(b, got);
            return err_set(e, ERR_FORMAT,
                           "%s: was made with another cache type (%s layer %" PRIu32 ": expected %s, got %s)",
                           st->name, d ? "drafter" : "target", i, want, got);
        }
    return 0;
}

int state_check(const struct state *st, const struct desc *target, const struct desc *drafter,
                const struct session_options *o, struct err *e)
{
    struct meta own;
    char want[NAME + 32], got[NAME + 32];
    meta_of(target, drafter, o, 0, &own);
    id_text(own.target, own.target_id, want);
    id_text(st->m.target, st->m.target_id, got);
    if (memcmp(st->m.target_id, own.target_id, 16))
        return err_set(e, ERR_FORMAT, "%s: was made with another target (expected %s, got %s)", st->name,
                       want, got);
    if (check_types(st, &own, e)) return -1;
    if (st->m.chunk != own.chunk)
        return err_set(e, ERR_FORMAT,
                       "%s: was made with another chunk (expected %" PRIu32 ", got %" PRIu32 ")", st->name,
                       own.chunk, st->m.chunk);
    if (st->m.n_vocab != own.n_vocab || st->m.n_layer != own.n_layer)
        return err_set(e, ERR_FORMAT,
                       "%s: sizes do not fit the target (expected %" PRIu32 " layers, %" PRIu32
                       " ids, got %" PRIu32 " and %" PRIu32 ")",
                       st->name, own.n_layer, own.n_vocab, st->m.n_layer, st->m.n_vocab);
    if (check_drafter(st, &own, e)) return -1;
    if (own.n_draft_layer && own.n_draft_layer != st->m.n_draft_layer)
        return err_set(e, ERR_FORMAT, "%s: drafter layers (expected %" PRIu32 ", got %" PRIu32 ")", st->name,
                       own.n_draft_layer, st->m.n_draft_layer);
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
    if (open_section(st, "TOKN", bytes, e) || snap_read(&st->r, s->history, bytes, e)) return -1;
    if (snap_section_check(&st->r, e)) return -1;
    for (uint32_t i = 0; i < n; i++)
        if (s->history[i] < 0 || s->history[i] >= s->target->d->n_vocab)
            return err_set(e, ERR_FORMAT,
                           "%s: token %" PRIu32 ": id out of the vocabulary (expected 0 to %d, got %d)",
                           st->name, i, s->target->d->n_vocab - 1, s->history[i]);
    int rc = s->op->upload(s->be, s->d_history, s->history, bytes);
    return rc ? model_failed(s->target, "upload", rc, e) : 0;
}

static int load_logits(struct state *st, struct session *s, struct err *e)
{
    size_t bytes = (size_t)s->target->d->n_vocab * sizeof(float);
    uint8_t *row = NULL;
    if (open_section(st, "LOGT", bytes, e) || snap_read_section(&st->r, bytes, &row, e)) return -1;
    int rc = s->op->upload(s->be, s->g->logits, row, bytes);
    mem_free(row);
    return rc ? model_failed(s->target, "upload", rc, e) : 0;
}

static int load_source(struct state *st, struct session *s, struct err *e)
{
    if (s->source && s->source->op->load && s->source->op->load(s, st, e)) return -1;
    for (uint32_t i = 0; i < st->m.n_draft_layer && !drafter_of(s); i++)
        if (open_section(st, "DKV ", 0, e) || snap_skip(&st->r, e)) return -1;
    return 0;
}

int state_restore(struct state *st, struct session *s, struct err *e)
{
    if (s->n_past)
        return err_set(e, ERR_USAGE, "%s: a state goes into a new session (expected position 0, got %d)",
                       st->name, s->n_past);
    if (state_check(st, s->target->d, drafter_of(s), &s->o, e) || session_turn(s, e) ||
        load_history(st, s, e) || load_logits(st, s, e))
        return -1;
    for (int i = 0; i < s->target->d->n_layer; i++)
        if (s->target->d->layer[i].recurrent
                ? load_delta(st, s, i, e)
                : state_load_layer(st, s, &s->kv[i], &s->target->d->layer[i], "KV  ", e))
            return -1;
    if (load_source(st, s, e)) return -1;
    int rc = snap_next(&st->r, e);
    if (rc > 0)
        err_set(e, ERR_FORMAT, "%s: section out of order (expected the end, got %s)", st->name, st->r.tag);
    if (rc) return -1;
    s->n_past = (int32_t)st->m.n_tokens;
    s->logits_pos = s->n_past - 1;
    s->logits_rows = 1;
    return 0;
}
