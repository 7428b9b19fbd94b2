/* state_meta.c - what a state says of itself, read without a model: META, and its sections' checksums. */
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../base/mem.h"
#include "pages.h"
#include "state_impl.h"

void state_put_u32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++) p[i] = (uint8_t)(v >> 8 * i);
}

uint32_t state_get_u32(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint8_t *taps_pack(const struct state_drafter *d, uint8_t *at)
{
    for (uint32_t i = 0; i < d->n_taps; i++, at += 4) state_put_u32(at, d->taps[i]);
    return at;
}

static uint8_t *types_pack(const struct state_meta *m, const struct kn_kv_types *y, uint32_t n, uint8_t *at)
{
    for (uint32_t i = 0; m->kv_type == STATE_MIXED && i < n; i++, at += 8) {
        state_put_u32(at, y[i].k);
        state_put_u32(at + 4, y[i].v);
    }
    return at;
}

static uint8_t *second_pack(const struct state_meta *m, uint8_t *at)
{
    const struct state_drafter *d = &m->by[1];
    state_put_u32(at, d->n_layer);
    state_put_u32(at + 4, d->n_taps);
    state_put_u32(at + 8, d->parts);
    memcpy(at + 12, d->id, 16);
    memcpy(at + 28, d->name, STATE_NAME);
    return types_pack(m, d->kv, d->n_layer, taps_pack(d, at + STATE_META_SECOND));
}

static uint8_t *sparse_pack(const struct state_meta *m, uint8_t *at)
{
    uint32_t alpha;
    memcpy(&alpha, &m->sparse.alpha, 4);
    state_put_u32(at, alpha);
    state_put_u32(at + 4, (uint32_t)m->sparse.dense);
    return at + 8;
}

static uint8_t *gaps_pack(const struct session_gaps *g, uint8_t *p)
{
    uint32_t keep;
    memcpy(&keep, &g->keep, 4);
    const uint32_t v[3] = {(uint32_t)g->n_text, (uint32_t)g->n_kept, keep};
    for (int i = 0; i < 3; i++, p += 4) state_put_u32(p, v[i]);
    memcpy(p, g->scorer_id, 16);
    memcpy(p + 16, g->scorer, STATE_NAME);
    return p + 16 + STATE_NAME;
}

size_t state_meta_pack(const struct state_meta *m, uint8_t *p)
{
    const struct state_drafter *d = m->by;
    const uint32_t more = (m->n_drafters > 1 ? STATE_BESIDE : 0) | (m->sparse.on ? STATE_SPARSE : 0) |
                          (m->pool ? STATE_POOL : 0) | (m->gaps.n_text ? STATE_GAPS : 0);
    const uint32_t v[8] = {m->n_tokens, m->chunk,   m->kv_type, m->n_vocab,
                           m->n_layer,  d->n_layer, d->n_taps,  d->parts | more};
    for (int i = 0; i < 8; i++) state_put_u32(p + 4 * i, v[i]);
    memcpy(p + 32, m->target_id, 16);
    memcpy(p + 48, d->id, 16);
    memcpy(p + 64, m->target, STATE_NAME);
    memcpy(p + 64 + STATE_NAME, d->name, STATE_NAME);
    uint8_t *at = taps_pack(d, p + STATE_META_FIXED);
    at = types_pack(m, m->kv, m->n_layer, at);
    at = types_pack(m, d->kv, d->n_layer, at);
    if (m->n_drafters > 1) at = second_pack(m, at);
    if (m->sparse.on) at = sparse_pack(m, at);
    if (m->pool) state_put_u32(at, (uint32_t)m->pool), at += 4;
    if (m->gaps.n_text) at = gaps_pack(&m->gaps, at);
    return (size_t)(at - p);
}

/* META's bytes, from the front. */
struct meta_reader {
    const uint8_t *p;
    uint64_t size, at;
    const char *name;
};

/* n more of them; NULL: they are not there. */
static const uint8_t *take(struct meta_reader *r, uint64_t n, const char *what, struct err *e)
{
    const uint8_t *p = r->p + r->at;
    if (n <= r->size - r->at) {
        r->at += n;
        return p;
    }
    err_set(e, ERR_FORMAT,
            "%s: section META has the wrong size (expected %" PRIu64 " or more for %s, got %" PRIu64 ")",
            r->name, r->at + n, what, r->size);
    return NULL;
}

static int read_taps(struct meta_reader *r, struct state_drafter *d, struct err *e)
{
    const uint8_t *p;
    if (d->n_taps > DESC_MAX_TAPS)
        return err_set(e, ERR_FORMAT,
                       "%s: section META: taps out of range (expected at most %d, got %" PRIu32 ")", r->name,
                       DESC_MAX_TAPS, d->n_taps);
    if (!(p = take(r, 4ull * d->n_taps, "taps", e))) return -1;
    for (uint32_t i = 0; i < d->n_taps; i++) d->taps[i] = state_get_u32(p + 4 * i);
    return 0;
}

static int read_sparse(struct meta_reader *r, struct state_meta *m, struct err *e)
{
    const uint8_t *p = take(r, 8, "sparse prompts", e);
    if (!p) return -1;
    const uint32_t alpha = state_get_u32(p), dense = state_get_u32(p + 4);
    memcpy(&m->sparse.alpha, &alpha, 4);
    m->sparse.dense = (int32_t)dense;
    if (m->sparse.alpha >= 0 && m->sparse.alpha < INFINITY && dense <= DESC_MAX_LAYERS) return 0;
    return err_set(e, ERR_FORMAT, "%s: section META: sparse prompts of %g with %" PRIu32 " dense layers",
                   r->name, (double)m->sparse.alpha, dense);
}

/* The types of n layers, which are there where they differ. */
static int read_types(struct meta_reader *r, const struct state_meta *m, struct kn_kv_types *y, uint32_t n,
                      const char *role, struct err *e)
{
    const uint8_t *p;
    const bool mixed = m->kv_type == STATE_MIXED;
    if (n > DESC_MAX_LAYERS)
        return err_set(e, ERR_FORMAT, "%s: layers out of range (expected at most %d, got %" PRIu32 ")",
                       r->name, DESC_MAX_LAYERS, n);
    if (!(p = take(r, mixed ? 8ull * n : 0, "the types of layers", e))) return -1;
    for (uint32_t i = 0; i < n; i++, y++) {
        *y = (struct kn_kv_types){m->kv_type, m->kv_type};
        if (!mixed) continue;
        *y = (struct kn_kv_types){state_get_u32(p + 8 * i), state_get_u32(p + 8 * i + 4)};
        if (y->k == KN_TYPE_NONE && y->v == KN_TYPE_NONE) continue;
        if (!kn_kv_known(y->k) || !kn_kv_known(y->v))
            return err_set(e, ERR_FORMAT,
                           "%s: cache type not supported (%s layer %" PRIu32 ": expected " KN_KV_TYPES
                           ", got numbers %" PRIu32 " and %" PRIu32 ")",
                           r->name, role, i, y->k, y->v);
    }
    return 0;
}

static int read_pool(struct meta_reader *r, struct state_meta *m, struct err *e)
{
    const uint8_t *p = take(r, 4, "a pool", e);
    if (!p) return -1;
    m->pool = (int32_t)state_get_u32(p);
    if (m->pool && pages_check(m->pool, e) == 0) return 0;
    if (!m->pool) err_set(e, ERR_FORMAT, "a pool of no position");
    e->code = ERR_FORMAT;
    return err_prefix(e, "%s: section META", r->name);
}

static void read_name(char *to, const uint8_t *p)
{
    memcpy(to, p, STATE_NAME);
    to[STATE_NAME - 1] = 0;
}

static int check_parts(const struct meta_reader *r, uint32_t parts, uint32_t known, struct err *e)
{
    if (!(parts & ~known)) return 0;
    return err_set(e, ERR_FORMAT,
                   "%s: section META: unknown flags (expected 0 to %" PRIu32 ", got %" PRIu32 ")", r->name,
                   known, parts);
}

static int read_second(struct meta_reader *r, struct state_meta *m, struct err *e)
{
    struct state_drafter *d = &m->by[1];
    const uint8_t *p = take(r, STATE_META_SECOND, "a second drafter", e);
    if (!p) return -1;
    d->n_layer = state_get_u32(p), d->n_taps = state_get_u32(p + 4), d->parts = state_get_u32(p + 8);
    memcpy(d->id, p + 12, 16);
    read_name(d->name, p + 28);
    return check_parts(r, d->parts, STATE_HIDDEN, e) || read_taps(r, d, e) ||
                   read_types(r, m, d->kv, d->n_layer, "second drafter", e)
               ? -1
               : 0;
}

static int read_gaps(struct meta_reader *r, struct state_meta *m, struct err *e)
{
    struct session_gaps *g = &m->gaps;
    const uint8_t *p = take(r, STATE_META_GAPS, "a compressed prompt", e);
    if (!p) return -1;
    const uint32_t n_text = state_get_u32(p), n_kept = state_get_u32(p + 4), keep = state_get_u32(p + 8);
    memcpy(&g->keep, &keep, 4);
    memcpy(g->scorer_id, p + 12, 16);
    read_name(g->scorer, p + 28);
    if (n_text > SESSION_MAX_CTX || !n_kept || n_kept > n_text || n_kept > m->n_tokens ||
        !(g->keep > 0 && g->keep <= 1))
        return err_set(e, ERR_FORMAT,
                       "%s: section META: a compressed prompt that cannot be (%" PRIu32 " of %" PRIu32
                       " tokens kept, of %" PRIu32 " positions; fraction %g)",
                       r->name, n_kept, n_text, m->n_tokens, (double)g->keep);
    g->n_text = (int32_t)n_text, g->n_kept = (int32_t)n_kept;
    return 0;
}

static int meta_unpack(struct state_meta *m, const uint8_t *meta, uint64_t size, const char *name,
                       struct err *e)
{
    struct state_drafter *d = m->by;
    struct meta_reader r = {.p = meta, .size = size, .name = name};
    uint32_t *v[8] = {&m->n_tokens, &m->chunk,   &m->kv_type, &m->n_vocab,
                      &m->n_layer,  &d->n_layer, &d->n_taps,  &d->parts};
    if (size < STATE_META_FIXED)
        return err_set(e, ERR_FORMAT,
                       "%s: section META is too short (expected %d bytes or more, got %" PRIu64 ")", name,
                       STATE_META_FIXED, size);
    const uint8_t *p = take(&r, STATE_META_FIXED, "", e);
    for (int i = 0; i < 8; i++) *v[i] = state_get_u32(p + 4 * i);
    if (check_parts(&r, d->parts, STATE_HIDDEN | STATE_BESIDE | STATE_SPARSE | STATE_POOL | STATE_GAPS, e))
        return -1;
    const bool beside = d->parts & STATE_BESIDE, pool = d->parts & STATE_POOL, gaps = d->parts & STATE_GAPS;
    m->sparse.on = d->parts & STATE_SPARSE;
    d->parts &= ~(STATE_BESIDE | STATE_SPARSE | STATE_POOL | STATE_GAPS);
    m->n_drafters = beside ? 2 : d->n_layer || d->parts;
    memcpy(m->target_id, p + 32, 16);
    memcpy(d->id, p + 48, 16);
    read_name(m->target, p + 64);
    read_name(d->name, p + 64 + STATE_NAME);
    if (!m->n_tokens || m->n_tokens > SESSION_MAX_CTX || !m->chunk || m->chunk > 1u << 20)
        return err_set(e, ERR_FORMAT, "%s: tokens or chunk out of range (got %" PRIu32 " and %" PRIu32 ")",
                       name, m->n_tokens, m->chunk);
    if (m->kv_type != STATE_MIXED && !kn_kv_known(m->kv_type))
        return err_set(e, ERR_FORMAT,
                       "%s: cache type not supported (expected " KN_KV_TYPES ", got number %" PRIu32 ")",
                       name, m->kv_type);
    if (read_taps(&r, d, e) || read_types(&r, m, m->kv, m->n_layer, "target", e) ||
        read_types(&r, m, d->kv, d->n_layer, "drafter", e) || (beside && read_second(&r, m, e)) ||
        (m->sparse.on && read_sparse(&r, m, e)) || (pool && read_pool(&r, m, e)) ||
        (gaps && read_gaps(&r, m, e)))
        return -1;
    if (r.at == size) return 0;
    return err_set(e, ERR_FORMAT,
                   "%s: section META has the wrong size (expected %" PRIu64 ", got %" PRIu64 ")", name, r.at,
                   size);
}

int state_section(struct state *st, const char *tag, uint64_t size, struct err *e)
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

int state_open(struct state **out, const char *path, struct state_info *info, struct err *e)
{
    const bool piped = !strcmp(path, "-");
    const int fd = piped ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    *out = NULL;
    return fd < 0 ? err_errno(e, "%s", path) : state_open_fd(out, fd, piped ? "stdin" : path, info, e);
}

int state_open_fd(struct state **out, int fd, const char *name, struct state_info *info, struct err *e)
{
    struct state *st = mem_calloc(1, sizeof *st);
    uint8_t *meta = NULL;
    int rc = -1;
    *out = NULL;
    if (!st) {
        if (fd > STDIN_FILENO) close(fd);
        return err_set(e, ERR_IO, "out of memory (a state)");
    }
    st->fd = fd;
    st->name = mem_strdup(name);
    if (!st->name) {
        err_set(e, ERR_IO, "out of memory (a state)");
        goto out;
    }
    if (snap_open(&st->r, st->fd, st->name, e) || state_section(st, "META", 0, e)) goto out;
    uint64_t size = st->r.size;
    if (snap_read_section(&st->r, STATE_META_MOST, &meta, e)) goto out;
    if (meta_unpack(&st->m, meta, size, st->name, e)) goto out;
    if (st->m.n_tokens * 4ull > st->r.left) {
        err_set(e, ERR_FORMAT, "%s: ends early (expected %" PRIu32 " tokens, got %" PRIu64 " bytes)",
                st->name, st->m.n_tokens, st->r.left);
        goto out;
    }
    *info = (struct state_info){.n_tokens = (int32_t)st->m.n_tokens,
                                .chunk = (int32_t)st->m.chunk,
                                .n_vocab = (int32_t)st->m.n_vocab,
                                .n_layer = (int32_t)st->m.n_layer,
                                .n_drafters = (int32_t)st->m.n_drafters,
                                .target = st->m.target,
                                .target_id = st->m.target_id,
                                .sparse = st->m.sparse,
                                .pool = st->m.pool,
                                .gaps = st->m.gaps,
                                .kv = st->m.kv};
    for (int32_t i = 0; i < info->n_drafters; i++) {
        const struct state_drafter *d = &st->m.by[i];
        info->by[i] = (struct state_drafter_info){.n_layer = (int32_t)d->n_layer,
                                                  .name = d->name,
                                                  .id = d->id,
                                                  .taps = d->taps,
                                                  .n_taps = (int32_t)d->n_taps,
                                                  .kv = d->kv,
                                                  .hidden = (d->parts & STATE_HIDDEN) != 0};
    }
    *out = st;
    st = NULL;
    rc = 0;
out:
    mem_free(meta);
    state_close(st);
    return rc;
}

int state_last_token(struct state *st, int32_t *id, struct err *e)
{
    int32_t ids[1024];
    if (state_section(st, "TOKN", st->m.n_tokens * 4ull, e)) return -1;
    for (uint32_t left = st->m.n_tokens; left;) {
        const uint32_t n = left < 1024 ? left : 1024;
        if (snap_read(&st->r, ids, n * sizeof *ids, e)) return -1;
        *id = ids[n - 1];
        left -= n;
    }
    return snap_section_check(&st->r, e);
}

/* The section of a layer; none: it has no keys (1), or has (0), -1: META does not say. */
static int verify_layer(struct state *st, bool draft, uint32_t i, int none, struct err *e)
{
    int rc = snap_next(&st->r, e);
    if (rc < 0) return -1;
    const bool kv = rc && !strcmp(st->r.tag, draft ? "DKV " : "KV  "),
               delta = rc && !draft && !strcmp(st->r.tag, "SSM ");
    if (none > 0 ? !delta : !(kv || (delta && none < 0)))
        return err_set(e, ERR_FORMAT, "%s: section out of order (expected %s of layer %" PRIu32 ", got %s)",
                       st->name,
                       draft      ? "DKV"
                       : none > 0 ? "SSM"
                                  : "KV or SSM",
                       i, rc ? st->r.tag : "the end");
    return snap_skip(&st->r, e);
}

int state_verify(struct state *st, uint64_t *n_sections, struct err *e)
{
    const struct state_meta *m = &st->m;
    if (state_section(st, "TOKN", m->n_tokens * 4ull, e) || snap_skip(&st->r, e)) return -1;
    if (m->gaps.n_text &&
        (state_section(st, "KEPT", (uint64_t)m->gaps.n_kept * 4, e) || snap_skip(&st->r, e)))
        return -1;
    if (state_section(st, "LOGT", m->n_vocab * 4ull, e) || snap_skip(&st->r, e)) return -1;
    for (uint32_t i = 0; i < m->n_layer; i++)
        if (verify_layer(st, false, i, m->kv_type == STATE_MIXED ? m->kv[i].k == KN_TYPE_NONE : -1, e))
            return -1;
    for (uint32_t k = 0; k < m->n_drafters; k++) {
        for (uint32_t i = 0; i < m->by[k].n_layer; i++)
            if (verify_layer(st, true, i, 0, e)) return -1;
        if (m->by[k].parts & STATE_HIDDEN && (state_section(st, "DHID", 0, e) || snap_skip(&st->r, e)))
            return -1;
    }
    if (m->pool && (state_section(st, "POOL", 0, e) || snap_skip(&st->r, e))) return -1;
    *n_sections = st->r.n;
    int rc = snap_next(&st->r, e);
    return rc > 0 ? err_set(e, ERR_FORMAT, "%s: section out of order (expected the end, got %s)", st->name,
                            st->r.tag)
                  : rc;
}

void state_close(struct state *st)
{
    if (!st) return;
    if (st->fd > STDIN_FILENO) close(st->fd);
    mem_free(st->name);
    mem_free(st);
}
