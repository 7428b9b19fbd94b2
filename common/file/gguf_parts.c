/* gguf_parts.c - a model in several files, read as one.
 *
 * The field's way of splitting: NAME-00001-of-00005.gguf and so on. The first file has the model's keys,
 * every file has split.no (from 0), split.count and split.tensors.count, and each tensor is whole in one of
 * them. Every part is mapped; the first part's tables get the tensors of all. Nothing is copied. */
#include "gguf_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "../base/mem.h"

struct place {
    int32_t no, count, tensors;
    bool has_crc;
    uint32_t crc;
};

/* 1: the file is a model by itself, and so it is with a count of 0: the other engine's tool leaves part 0 of
 * 0 in what it joins. */
static int read_place(const struct gguf *g, struct place *p, struct err *e)
{
    static const char *const keys[] = {GGUF_SPLIT_NO, GGUF_SPLIT_COUNT, GGUF_SPLIT_TENSORS};
    int32_t *const v[] = {&p->no, &p->count, &p->tensors};
    int found = 0;
    *p = (struct place){.count = 1};
    for (int i = 0; i < 3; i++) {
        const int rc = gguf_get_i32(g, keys[i], v[i], e);
        if (rc < 0) return -1;
        found += !rc;
    }
    if (!found) return 1;
    for (int i = 0; i < 3; i++)
        if (!gguf_find(g, keys[i]))
            return err_set(e, ERR_FORMAT, "%s: key '%s': is missing (expected beside other keys split.*)",
                           g->map.path, keys[i]);
    if ((p->no || p->count) && (p->no < 0 || p->no >= p->count))
        return err_set(e, ERR_FORMAT,
                       "%s: keys 'split.no' and 'split.count': out of range (expected 0 to count - 1, got "
                       "%" PRId32 " of %" PRId32 ")",
                       g->map.path, p->no, p->count);
    const int rc = gguf_get_u32(g, GGUF_SPLIT_CRC, &p->crc, e);
    p->has_crc = !rc;
    return rc < 0 ? -1 : 0;
}

int gguf_whole(const struct gguf *g, struct err *e)
{
    struct place p;
    const int rc = read_place(g, &p, e);
    if (rc < 0) return -1;
    return rc || p.count <= 1
               ? 0
               : err_set(e, ERR_FORMAT, "%s: is part %" PRId32 " of %" PRId32 " (expected one file)",
                         g->map.path, p.no + 1, p.count);
}

/* ---- names ---- */

#define TAIL 20 /* -00001-of-00005.gguf */

/* Bytes of NAME in NAME-00001-of-00005.gguf, and what it says; 0: it is named otherwise. */
static size_t parse_name(const char *path, int *no, int *count)
{
    const size_t n = strlen(path);
    int end = 0;
    if (n <= TAIL || sscanf(path + n - TAIL, "-%5d-of-%5d.gguf%n", no, count, &end) != 2 || end != TAIL)
        return 0;
    return n - TAIL;
}

char *gguf_part_path(const char *name, size_t n_name, uint32_t part, uint32_t count)
{
    const size_t room = n_name + TAIL + 8;
    char *s = mem_alloc(room);
    if (s) snprintf(s, room, "%.*s-%05u-of-%05u.gguf", (int)n_name, name, part + 1, count);
    return s;
}

/* ---- one part ---- */

static int no_part(const struct gguf *g, const struct gguf *of, const char *key, int64_t want, int64_t got,
                   struct err *e)
{
    err_set(e, ERR_FORMAT, "%s: is no part of %s: key '%s' (expected %" PRId64 ", got %" PRId64 ")",
            g->map.path, of->map.path, key, want, got);
    return err_hint(e, "it is of another model, or of one that was split otherwise");
}

/* Keys beside split.* are the model's: they stand in the first part, and what stands in another as well
 * agrees. The alignment is each file's own. */
static int check_keys(const struct gguf *part, const struct gguf *first, struct err *e)
{
    for (uint64_t i = 0; i < part->n_kv; i++) {
        const struct gguf_kv *kv = &part->kv[i], *own;
        char want[96], got[96];
        if (!strncmp(kv->key, GGUF_SPLIT, strlen(GGUF_SPLIT)) || !strcmp(kv->key, "general.alignment"))
            continue;
        own = gguf_find(first, kv->key);
        if (own && gguf_same_value(kv, own)) continue;
        gguf_value_text(kv, got, sizeof got);
        if (own) gguf_value_text(own, want, sizeof want);
        return err_set(e, ERR_FORMAT, "%s: is no part of %s: key '%.80s' (expected %s, got %s)",
                       part->map.path, first->map.path, kv->key, own ? want : "it in the first part alone",
                       got);
    }
    return 0;
}

static int check_part(const struct gguf *part, const struct gguf *first, const struct place *want, int32_t no,
                      struct err *e)
{
    struct place p;
    const int rc = read_place(part, &p, e);
    if (rc < 0) return -1;
    if (rc)
        return err_set(e, ERR_FORMAT,
                       "%s: is no part of %s: key '%s' (expected %" PRId32 ", got no such key)",
                       part->map.path, first->map.path, GGUF_SPLIT_NO, no);
    if (p.count != want->count) return no_part(part, first, GGUF_SPLIT_COUNT, want->count, p.count, e);
    if (p.no != no)
        return err_set(e, ERR_FORMAT,
                       "%s: holds part %" PRId32 " of %" PRId32 " (expected part %" PRId32
                       ", which its name says)",
                       part->map.path, p.no + 1, p.count, no + 1);
    if (p.tensors != want->tensors)
        return no_part(part, first, GGUF_SPLIT_TENSORS, want->tensors, p.tensors, e);
    if (p.has_crc != want->has_crc || p.crc != want->crc)
        return no_part(part, first, GGUF_SPLIT_CRC, want->has_crc ? (int64_t)want->crc : -1,
                       p.has_crc ? (int64_t)p.crc : -1, e);
    return check_keys(part, first, e);
}

/* The first part's file, by its name and by what it says. */
static int check_first(const struct gguf *g, const struct place *p, size_t *stem, struct err *e)
{
    int no = 0, count = 0;
    *stem = parse_name(g->map.path, &no, &count);
    if (p->no) {
        err_set(e, ERR_FORMAT,
                "%s: is part %" PRId32 " of %" PRId32 " (expected part 1, with which the others are read)",
                g->map.path, p->no + 1, p->count);
        char *first = *stem ? gguf_part_path(g->map.path, *stem, 0, (uint32_t)p->count) : NULL;
        if (first) err_hint(e, "give %s", first);
        mem_free(first);
        return -1;
    }
    if (!*stem)
        return err_set(e, ERR_FORMAT,
                       "%s: is part 1 of %" PRId32
                       ", and its name does not say where the others are (expected "
                       "NAME-00001-of-%05" PRId32 ".gguf)",
                       g->map.path, p->count, p->count);
    if (no != 1 || count != p->count)
        return err_set(e, ERR_FORMAT,
                       "%s: holds part 1 of %" PRId32 " (expected part %d of %d, which its name says)",
                       g->map.path, p->count, no, count);
    if (p->count > GGUF_MAX_PARTS)
        return err_set(e, ERR_FORMAT, "%s: too many parts (expected at most %d, got %" PRId32 ")",
                       g->map.path, GGUF_MAX_PARTS, p->count);
    return 0;
}

static int open_part(struct gguf *g, const struct place *p, size_t stem, int32_t no, struct err *e)
{
    char *path = gguf_part_path(g->map.path, stem, (uint32_t)no, (uint32_t)p->count);
    int rc = -1;
    if (!path) return err_set(e, ERR_IO, "%s: out of memory (name of a part)", g->map.path);
    const int there = io_exists(path, e);
    if (there == 0) {
        err_set(e, ERR_FORMAT, "%s: part %" PRId32 " of %" PRId32 " is missing (expected it beside %s)", path,
                no + 1, p->count, g->map.path);
        err_hint(e, "a download that did not end?");
    }
    if (there > 0 && gguf_open_one(&g->part[no], path, e) == 0) {
        g->n_parts = (uint32_t)no + 1;
        rc = check_part(g->part[no], g, p, no, e);
    }
    mem_free(path);
    return rc;
}

/* ---- all of them ---- */

static int merge_tensors(struct gguf *g, const struct place *p, struct err *e)
{
    uint64_t n = g->n_tensors, at = 0;
    for (uint32_t i = 1; i < g->n_parts; i++) n += g->part[i]->n_tensors;
    if (n != (uint64_t)p->tensors)
        return err_set(e, ERR_FORMAT,
                       "%s: its parts hold %" PRIu64 " tensors (expected %" PRId32
                       ", as key '" GGUF_SPLIT_TENSORS "' says)",
                       g->map.path, n, p->tensors);
    struct gguf_tensor *all = arena_alloc(g->arena, (size_t)n, sizeof *all);
    struct gguf_tensor **by_name = arena_alloc(g->arena, (size_t)n, sizeof *by_name);
    if (!all || !by_name) return err_set(e, ERR_IO, "%s: out of memory (tensors)", g->map.path);
    for (uint32_t i = 0; i < g->n_parts; i++) {
        const struct gguf *from = i ? g->part[i] : g;
        for (uint64_t j = 0; j < from->n_tensors; j++) {
            all[at] = from->tensor[j];
            all[at++].part = i;
        }
        g->bytes += i ? from->bytes : 0;
    }
    g->tensor = all;
    g->tensor_by_name = by_name;
    g->n_tensors = n;
    gguf_sort_tensors(g);
    for (uint64_t i = 1; i < n; i++) {
        const struct gguf_tensor *a = by_name[i - 1], *b = by_name[i];
        if (!strcmp(a->name, b->name))
            return err_set(e, ERR_FORMAT, "%s: tensor '%.80s': stands in part %u and in part %u of %u",
                           g->map.path, a->name, (a->part < b->part ? a : b)->part + 1,
                           (a->part < b->part ? b : a)->part + 1, g->n_parts);
    }
    return 0;
}

/* What is read is the model, which in one file has none of these keys. */
static void drop_split_keys(struct gguf *g)
{
    uint64_t n = 0;
    for (uint64_t i = 0; i < g->n_kv; i++)
        if (strncmp(g->kv[i].key, GGUF_SPLIT, strlen(GGUF_SPLIT))) g->kv[n++] = g->kv[i];
    g->n_kv = n;
    gguf_sort_keys(g);
}

int gguf_join(struct gguf *g, struct err *e)
{
    struct place p;
    size_t stem = 0;
    const int rc = read_place(g, &p, e);
    if (rc) return rc < 0 ? -1 : 0;
    if (p.count > 1 && check_first(g, &p, &stem, e)) return -1;
    if (!p.count) p.count = 1;
    g->part = arena_alloc(g->arena, (size_t)p.count, sizeof *g->part);
    if (!g->part) return err_set(e, ERR_IO, "%s: out of memory (parts)", g->map.path);
    for (int32_t i = 1; i < p.count; i++)
        if (open_part(g, &p, stem, i, e)) return -1;
    if (merge_tensors(g, &p, e)) return -1;
    drop_split_keys(g);
    return 0;
}
