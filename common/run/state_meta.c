/* state_meta.c - what a state says of itself, read without a model: META, and its sections' checksums. */
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "../base/mem.h"
#include "state_impl.h"

void state_put_u32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++) p[i] = (uint8_t)(v >> 8 * i);
}

uint32_t state_get_u32(const uint8_t *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
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

static int gaps_unpack(struct state_meta *m, const uint8_t *p, const char *name, struct err *e)
{
    struct session_gaps *g = &m->gaps;
    uint32_t v[3];
    for (int i = 0; i < 3; i++, p += 4) v[i] = state_get_u32(p);
    memcpy(&g->keep, &v[2], 4);
    memcpy(g->scorer_id, p, 16);
    memcpy(g->scorer, p + 16, STATE_NAME);
    g->scorer[STATE_NAME - 1] = 0;
    if (v[0] > SESSION_MAX_CTX || !v[1] || v[1] > v[0] || v[1] > m->n_tokens ||
        !(g->keep > 0 && g->keep <= 1))
        return err_set(e, ERR_FORMAT,
                       "%s: section META: a compressed prompt that cannot be (%" PRIu32 " of %" PRIu32
                       " tokens kept, of %" PRIu32 " positions; fraction %g)",
                       name, v[1], v[0], m->n_tokens, (double)g->keep);
    g->n_text = (int32_t)v[0], g->n_kept = (int32_t)v[1];
    return 0;
}

size_t state_meta_pack(const struct state_meta *m, uint8_t *p)
{
    const uint32_t v[8] = {
        m->n_tokens, m->chunk,
        m->kv_type,  m->n_vocab,
        m->n_layer,  m->n_draft_layer,
        m->n_taps,   m->parts | (m->sparse.on ? STATE_SPARSE : 0) | (m->gaps.n_text ? STATE_GAPS : 0)};
    for (int i = 0; i < 8; i++) state_put_u32(p + 4 * i, v[i]);
    memcpy(p + 32, m->target_id, 16);
    memcpy(p + 48, m->drafter_id, 16);
    memcpy(p + 64, m->target, STATE_NAME);
    memcpy(p + 64 + STATE_NAME, m->drafter, STATE_NAME);
    uint8_t *at = p + STATE_META_FIXED;
    for (uint32_t i = 0; i < m->n_taps; i++, at += 4) state_put_u32(at, m->taps[i]);
    for (uint32_t i = 0; m->kv_type == STATE_MIXED && i < m->n_layer + m->n_draft_layer; i++, at += 8) {
        const struct kn_kv_types *y = i < m->n_layer ? &m->kv[0][i] : &m->kv[1][i - m->n_layer];
        state_put_u32(at, y->k);
        state_put_u32(at + 4, y->v);
    }
    if (m->sparse.on) {
        uint32_t alpha;
        memcpy(&alpha, &m->sparse.alpha, 4);
        state_put_u32(at, alpha);
        state_put_u32(at + 4, (uint32_t)m->sparse.dense);
        at += 8;
    }
    if (m->gaps.n_text) at = gaps_pack(&m->gaps, at);
    return (size_t)(at - p);
}

/* The types of every layer, from p on where they differ. */
static int types_unpack(struct state_meta *m, const uint8_t *p, const char *name, struct err *e)
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
            if (m->kv_type != STATE_MIXED) continue;
            *y = (struct kn_kv_types){state_get_u32(p), state_get_u32(p + 4)};
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

static int sparse_unpack(struct state_meta *m, const uint8_t *p, const char *name, struct err *e)
{
    const uint32_t alpha = state_get_u32(p), dense = state_get_u32(p + 4);
    memcpy(&m->sparse.alpha, &alpha, 4);
    m->sparse.dense = (int32_t)dense;
    if (m->sparse.alpha >= 0 && m->sparse.alpha < INFINITY && dense <= DESC_MAX_LAYERS) return 0;
    return err_set(e, ERR_FORMAT, "%s: section META: sparse prompts of %g with %" PRIu32 " dense layers",
                   name, (double)m->sparse.alpha, dense);
}

static int meta_unpack(struct state_meta *m, const uint8_t *p, uint64_t size, const char *name, struct err *e)
{
    uint32_t *v[8] = {&m->n_tokens, &m->chunk,         &m->kv_type, &m->n_vocab,
                      &m->n_layer,  &m->n_draft_layer, &m->n_taps,  &m->parts};
    if (size < STATE_META_FIXED)
        return err_set(e, ERR_FORMAT,
                       "%s: section META is too short (expected %d bytes or more, got %" PRIu64 ")", name,
                       STATE_META_FIXED, size);
    for (int i = 0; i < 8; i++) *v[i] = state_get_u32(p + 4 * i);
    if (m->parts & ~(STATE_HIDDEN | STATE_SPARSE | STATE_GAPS))
        return err_set(e, ERR_FORMAT, "%s: section META: unknown flags (expected 0 to 7, got %" PRIu32 ")",
                       name, m->parts);
    const uint64_t gaps = m->parts & STATE_GAPS ? STATE_META_GAPS : 0;
    m->sparse.on = m->parts & STATE_SPARSE;
    m->parts &= ~(STATE_SPARSE | STATE_GAPS);
    memcpy(m->target_id, p + 32, 16);
    memcpy(m->drafter_id, p + 48, 16);
    memcpy(m->target, p + 64, STATE_NAME);
    memcpy(m->drafter, p + 64 + STATE_NAME, STATE_NAME);
    m->target[STATE_NAME - 1] = m->drafter[STATE_NAME - 1] = 0;
    const uint64_t mixed = m->kv_type == STATE_MIXED ? (uint64_t)m->n_layer + m->n_draft_layer : 0,
                   sparse = m->sparse.on ? 8 : 0,
                   expected = STATE_META_FIXED + 4ull * m->n_taps + 8 * mixed + sparse + gaps;
    if (m->n_taps > DESC_MAX_TAPS || size != expected)
        return err_set(e, ERR_FORMAT,
                       "%s: section META has the wrong size (expected %" PRIu64 " for %" PRIu32
                       " taps and the types of %" PRIu64 " layers, got %" PRIu64 ")",
                       name, expected, m->n_taps, mixed, size);
    for (uint32_t i = 0; i < m->n_taps; i++) m->taps[i] = state_get_u32(p + STATE_META_FIXED + 4 * i);
    if (!m->n_tokens || m->n_tokens > SESSION_MAX_CTX || !m->chunk || m->chunk > 1u << 20)
        return err_set(e, ERR_FORMAT, "%s: tokens or chunk out of range (got %" PRIu32 " and %" PRIu32 ")",
                       name, m->n_tokens, m->chunk);
    if (m->kv_type != STATE_MIXED && !kn_kv_known(m->kv_type))
        return err_set(e, ERR_FORMAT,
                       "%s: cache type not supported (expected " KN_KV_TYPES ", got number %" PRIu32 ")",
                       name, m->kv_type);
    if (sparse && sparse_unpack(m, p + size - gaps - sparse, name, e)) return -1;
    if (gaps && gaps_unpack(m, p + size - gaps, name, e)) return -1;
    return types_unpack(m, p + STATE_META_FIXED + 4 * m->n_taps, name, e);
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
                                .n_draft_layer = (int32_t)st->m.n_draft_layer,
                                .target = st->m.target,
                                .drafter = st->m.drafter,
                                .target_id = st->m.target_id,
                                .drafter_id = st->m.drafter_id,
                                .taps = st->m.taps,
                                .n_taps = (int32_t)st->m.n_taps,
                                .sparse = st->m.sparse,
                                .gaps = st->m.gaps,
                                .kv = st->m.kv[0],
                                .draft_kv = st->m.kv[1],
                                .has_drafter = st->m.n_draft_layer > 0 || st->m.parts,
                                .has_hidden = (st->m.parts & STATE_HIDDEN) != 0};
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

int state_verify(struct state *st, uint64_t *n_sections, struct err *e)
{
    const struct state_meta *m = &st->m;
    if (state_section(st, "TOKN", m->n_tokens * 4ull, e) || snap_skip(&st->r, e)) return -1;
    if (m->gaps.n_text &&
        (state_section(st, "KEPT", (uint64_t)m->gaps.n_kept * 4, e) || snap_skip(&st->r, e)))
        return -1;
    if (state_section(st, "LOGT", m->n_vocab * 4ull, e) || snap_skip(&st->r, e)) return -1;
    for (uint32_t i = 0; i < m->n_layer + m->n_draft_layer; i++) {
        const bool draft = i >= m->n_layer;
        const bool none = !draft && m->kv_type == STATE_MIXED && m->kv[0][i].k == KN_TYPE_NONE;
        int rc = snap_next(&st->r, e);
        if (rc < 0) return -1;
        const bool kv = rc && !strcmp(st->r.tag, draft ? "DKV " : "KV  ");
        const bool delta = rc && !draft && !strcmp(st->r.tag, "SSM ");
        if (none ? !delta : !(kv || (delta && m->kv_type != STATE_MIXED)))
            return err_set(e, ERR_FORMAT,
                           "%s: section out of order (expected %s of layer %" PRIu32 ", got %s)", st->name,
                           draft  ? "DKV"
                           : none ? "SSM"
                                  : "KV or SSM",
                           draft ? i - m->n_layer : i, rc ? st->r.tag : "the end");
        if (snap_skip(&st->r, e)) return -1;
    }
    if (m->parts & STATE_HIDDEN && (state_section(st, "DHID", 0, e) || snap_skip(&st->r, e))) return -1;
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
