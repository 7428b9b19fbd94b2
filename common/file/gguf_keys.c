/* gguf_keys.c - values of keys as text, and keys that are to have other values than the file's. */
#include "gguf_impl.h"

#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../base/mem.h"
#include "../base/text.h"

/* As few digits as give the number again, 6 at least. */
static void float_text(double v, bool single, char *out, size_t n)
{
    snprintf(out, n, "%g", v);
    const double back = strtod(out, NULL);
    if (isfinite(v) && (single ? (double)(float)back != v : back != v))
        snprintf(out, n, single ? "%.9g" : "%.17g", v);
}

void gguf_value_text(const struct gguf_kv *kv, char *out, size_t n)
{
    uint32_t type = kv->type == GGUF_ARRAY ? kv->elem : kv->type;
    if (kv->type == GGUF_ARRAY)
        snprintf(out, n, "%s[%" PRIu64 "]", gguf_type_name(type), kv->count);
    else if (type == GGUF_STRING)
        text_quote(out, n, kv->strings[0].s, kv->strings[0].n, 60);
    else if (type == GGUF_F32 || type == GGUF_F64)
        float_text(gguf_array_f64(kv, 0), type == GGUF_F32, out, n);
    else if (type == GGUF_BOOL)
        snprintf(out, n, "%s", gguf_array_i64(kv, 0) ? "true" : "false");
    else if (type == GGUF_U64)
        snprintf(out, n, "%" PRIu64, (uint64_t)gguf_array_i64(kv, 0));
    else
        snprintf(out, n, "%" PRId64, gguf_array_i64(kv, 0));
}

bool gguf_same_value(const struct gguf_kv *a, const struct gguf_kv *b)
{
    return a->type == b->type && a->elem == b->elem && a->count == b->count && a->bytes == b->bytes &&
           !memcmp(a->data, b->data, (size_t)a->bytes);
}

/* ---- KEY=TYPE:VALUE ---- */

/* Types that are written out, and words for any type of a kind, as llama.cpp has them. */
static const struct {
    const char *name;
    uint32_t type;
    bool exact;
} words[] = {{"int", GGUF_I64, false},   {"float", GGUF_F64, false},    {"bool", GGUF_BOOL, true},
             {"str", GGUF_STRING, true}, {"string", GGUF_STRING, true}, {"u8", GGUF_U8, true},
             {"i8", GGUF_I8, true},      {"u16", GGUF_U16, true},       {"i16", GGUF_I16, true},
             {"u32", GGUF_U32, true},    {"i32", GGUF_I32, true},       {"u64", GGUF_U64, true},
             {"i64", GGUF_I64, true},    {"f32", GGUF_F32, true},       {"f64", GGUF_F64, true}};

static const struct {
    uint32_t type;
    int64_t lo;
    uint64_t hi;
    uint8_t bytes;
} ranges[] = {{GGUF_U8, 0, UINT8_MAX, 1},   {GGUF_I8, INT8_MIN, INT8_MAX, 1},
              {GGUF_U16, 0, UINT16_MAX, 2}, {GGUF_I16, INT16_MIN, INT16_MAX, 2},
              {GGUF_U32, 0, UINT32_MAX, 4}, {GGUF_I32, INT32_MIN, INT32_MAX, 4},
              {GGUF_U64, 0, UINT64_MAX, 8}, {GGUF_I64, INT64_MIN, INT64_MAX, 8}};

static int range_of(uint32_t type)
{
    for (int i = 0; i < (int)(sizeof ranges / sizeof *ranges); i++)
        if (ranges[i].type == type) return i;
    return -1;
}

static int wrong(const char *text, const char *expected, struct err *e)
{
    return err_set(e, ERR_USAGE, "--override-kv %s: expected %s", text, expected);
}

/* A whole number, with the sign apart so that all of u64 and of i64 fit. */
static int parse_int(struct gguf_override *o, const char *v, struct err *e)
{
    char *end;
    const bool minus = *v == '-';
    errno = 0;
    const unsigned long long x = strtoull(v + minus, &end, 10);
    if (v[minus] < '0' || v[minus] > '9' || *end || errno || (minus && x > (uint64_t)INT64_MAX + 1))
        return wrong(o->text, "a whole number of 64 bits behind its type", e);
    o->minus = minus && x;
    o->bits = minus ? 0 - (uint64_t)x : (uint64_t)x;
    return 0;
}

static int parse_value(struct gguf_override *o, const char *v, struct err *e)
{
    char *end;
    if (o->type == GGUF_STRING) {
        o->string = (struct gguf_str){v, strlen(v)};
        return 0;
    }
    if (o->type == GGUF_BOOL) {
        if (strcmp(v, "true") && strcmp(v, "false")) return wrong(o->text, "true or false behind bool", e);
        o->bits = !strcmp(v, "true");
        return 0;
    }
    if (o->type != GGUF_F32 && o->type != GGUF_F64) return parse_int(o, v, e);
    o->real = strtod(v, &end);
    if (!*v || *v == ' ' || *end || !isfinite(o->real))
        return wrong(o->text, "a finite number behind its type", e);
    return 0;
}

int gguf_override_parse(struct gguf_override *o, const char *text, struct err *e)
{
    const char *equals = strchr(text, '='), *colon = equals ? strchr(equals, ':') : NULL;
    *o = (struct gguf_override){.text = text};
    if (!colon || equals == text) return wrong(text, "KEY=TYPE:VALUE", e);
    o->n_key = (size_t)(equals - text);
    const size_t n = (size_t)(colon - equals) - 1;
    size_t i = 0;
    while (i < sizeof words / sizeof *words &&
           (strlen(words[i].name) != n || strncmp(words[i].name, equals + 1, n)))
        i++;
    if (i == sizeof words / sizeof *words)
        return wrong(text, "the type int, float, bool, str, or one of GGUF (u32, f32, ...)", e);
    o->type = words[i].type;
    o->exact = words[i].exact;
    return parse_value(o, colon + 1, e);
}

int gguf_overrides_parse(struct gguf_override **out, const char *const *text, int n, struct err *e)
{
    *out = NULL;
    if (!n) return 0;
    struct gguf_override *o = mem_calloc((size_t)n, sizeof *o);
    if (!o) return err_set(e, ERR_IO, "out of memory (--override-kv)");
    for (int i = 0; i < n; i++)
        if (gguf_override_parse(&o[i], text[i], e)) {
            mem_free(o);
            return -1;
        }
    *out = o;
    return 0;
}

/* ---- into a file ---- */

/* Scalar keys outside the architecture's that are looked at here and that a file may lack. */
static bool is_read(const char *key)
{
    static const char *const keys[] = {"general.name",
                                       "tokenizer.ggml.model",
                                       "tokenizer.ggml.pre",
                                       "tokenizer.ggml.add_bos_token",
                                       "tokenizer.ggml.bos_token_id",
                                       "tokenizer.ggml.eos_token_id",
                                       "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.mask_token_id",
                                       "tokenizer.ggml.add_space_prefix",
                                       "tokenizer.ggml.padding_token_id",
                                       "tokenizer.ggml.normalizer",
                                       "tokenizer.ggml.ignore_merges",
                                       "tokenizer.chat_template"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (!strcmp(key, keys[i])) return true;
    return false;
}

static int refuse_key(const struct gguf *g, const char *key, bool add, struct err *e)
{
    const struct gguf_kv *arch = gguf_find(g, "general.architecture");
    if (!strncmp(key, GGUF_SPLIT, strlen(GGUF_SPLIT)) || (!add && !strcmp(key, "general.alignment")))
        return err_set(e, ERR_USAGE,
                       "--override-kv: key '%.80s' says how the file lies (expected another key)", key);
    if (add || gguf_find(g, key) || is_read(key)) return 0;
    const uint64_t n = arch && arch->type == GGUF_STRING ? arch->strings[0].n : 0;
    if (n && !strncmp(key, arch->strings[0].s, (size_t)n) && key[n] == '.')
        return 0; /* the description knows which there are */
    return err_set(e, ERR_USAGE, "--override-kv: %s has no key '%.80s' (expected one of its keys, or %.*s.*)",
                   g->map.path, key, n ? (int)n : 4, n ? arch->strings[0].s : "ARCH");
}

static int wrong_type(const struct gguf *g, const struct gguf_override *o, const struct gguf_kv *kv,
                      struct err *e)
{
    return err_set(e, ERR_USAGE, "--override-kv %s: wrong type for %s (expected %s%s, got %s)", o->text,
                   g->map.path, kv->type == GGUF_ARRAY ? "no key that is an array of " : "",
                   gguf_type_name(kv->type == GGUF_ARRAY ? kv->elem : kv->type),
                   o->exact              ? gguf_type_name(o->type)
                   : o->type == GGUF_I64 ? "int"
                                         : "float");
}

/* The type that the value gets: the file's, where it has the key. */
static int type_for(const struct gguf *g, const struct gguf_override *o, const struct gguf_kv *kv,
                    uint32_t *type, struct err *e)
{
    const bool whole = range_of(o->type) >= 0;
    if (!kv) {
        *type = o->exact                           ? o->type
                : !whole                           ? GGUF_F32
                : o->minus || o->bits > UINT32_MAX ? GGUF_I64
                                                   : GGUF_U32;
        return 0;
    }
    *type = kv->type;
    if (o->exact) return o->type == kv->type ? 0 : wrong_type(g, o, kv, e);
    if (whole ? range_of(kv->type) >= 0 : kv->type == GGUF_F32 || kv->type == GGUF_F64) return 0;
    return wrong_type(g, o, kv, e);
}

static int encode(const struct gguf_override *o, uint32_t type, uint8_t *data, uint64_t *bytes, struct err *e)
{
    const int r = range_of(type);
    const float f = (float)o->real;
    if (r >= 0) {
        const bool low = o->minus && (int64_t)o->bits < ranges[r].lo,
                   high = !o->minus && o->bits > ranges[r].hi;
        if (low || high)
            return err_set(e, ERR_USAGE,
                           "--override-kv %s: out of range of %s (expected %" PRId64 " to %" PRIu64 ")",
                           o->text, gguf_type_name(type), ranges[r].lo, ranges[r].hi);
        memcpy(data, &o->bits, 8);
        *bytes = ranges[r].bytes;
    } else if (type == GGUF_BOOL) {
        *data = o->bits != 0;
        *bytes = 1;
    } else if (type == GGUF_F32) {
        if (!isfinite(f)) return err_set(e, ERR_USAGE, "--override-kv %s: out of range of f32", o->text);
        memcpy(data, &f, 4);
        *bytes = 4;
    } else if (type == GGUF_F64) {
        memcpy(data, &o->real, 8);
        *bytes = 8;
    } else {
        memcpy(data, &o->string.n, 8);
        memcpy(data + 8, o->string.s, (size_t)o->string.n);
        *bytes = 8 + o->string.n;
    }
    return 0;
}

static int set_key(struct gguf *g, const struct gguf_override *o, bool add, struct err *e)
{
    char *key = arena_strndup(g->arena, o->text, o->n_key);
    uint8_t *data = arena_alloc(g->arena, 8 + (size_t)o->string.n, 1);
    struct gguf_str *s = arena_alloc(g->arena, 1, sizeof *s);
    struct gguf_kv *kv = NULL;
    uint32_t type;
    uint64_t bytes = 0;
    if (!key || !data || !s) return err_set(e, ERR_IO, "%s: out of memory (a key)", g->map.path);
    if (refuse_key(g, key, add, e)) return -1;
    for (uint64_t i = 0; i < g->n_kv && !kv; i++)
        if (!strcmp(g->kv[i].key, key)) kv = &g->kv[i];
    if (type_for(g, o, kv, &type, e) || encode(o, type, data, &bytes, e)) return -1;
    *s = (struct gguf_str){(const char *)data + 8, o->string.n};
    if (!kv) kv = &g->kv[g->n_kv++];
    *kv = (struct gguf_kv){.key = key,
                           .type = type,
                           .elem = type,
                           .count = 1,
                           .data = data,
                           .bytes = bytes,
                           .strings = type == GGUF_STRING ? s : NULL};
    return 0;
}

int gguf_override(struct gguf *g, const struct gguf_override *o, int n, bool add, struct err *e)
{
    if (!n) return 0;
    const size_t room = (size_t)g->n_kv + (size_t)n;
    struct gguf_kv *kv = arena_alloc(g->arena, room, sizeof *kv);
    struct gguf_kv **by_name = arena_alloc(g->arena, room, sizeof *by_name);
    if (!kv || !by_name) return err_set(e, ERR_IO, "%s: out of memory (keys)", g->map.path);
    if (g->n_kv) memcpy(kv, g->kv, (size_t)g->n_kv * sizeof *kv);
    g->kv = kv;
    g->kv_by_name = by_name;
    gguf_sort_keys(g);
    for (int i = 0; i < n; i++) {
        if (set_key(g, &o[i], add, e)) return -1;
        gguf_sort_keys(g);
    }
    return 0;
}
