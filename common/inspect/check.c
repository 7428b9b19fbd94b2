/* check.c - see check.h. */
#include <math.h>
#include <omp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "check.h"
#include "../describe/desc.h"
#include "../file/gguf.h"
#include "../file/imatrix.h"
#include "../base/io.h"
#include "../base/mem.h"
#include "../file/safetensors.h"
#include "../token/tokenizer.h"
#include "usable.h"

struct report {
    check_fn fn;
    void *ctx;
    int bad;
    const struct check_type *type; /* of the finding that is said */
};

static void say(struct report *r, enum check_level level, const char *hint, const char *subject,
                const char *fmt, ...) __attribute__((format(printf, 5, 6)));

static void say(struct report *r, enum check_level level, const char *hint, const char *subject,
                const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (level == CHECK_BAD) r->bad++;
    r->fn(r->ctx, &(struct check_finding){
                      .level = level, .subject = subject, .text = text, .hint = hint, .type = r->type});
}

/* Where an open failed: a malformed file is a finding, anything else is the caller's error. */
static int malformed(struct report *r, struct err *mine, struct err *e)
{
    if (mine->code != ERR_FORMAT) {
        *e = *mine;
        return -1;
    }
    say(r, CHECK_BAD, mine->hint[0] ? mine->hint : NULL, "file", "%s", mine->msg);
    return r->bad;
}

/* Namespaces of keys that every file may carry; the architecture's own are checked by desc_read. */
static bool known_key(const char *key, const char *arch)
{
    static const char *const spaces[] = {"general.", "tokenizer.", "quantize."};
    for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++)
        if (!strncmp(key, spaces[i], strlen(spaces[i]))) return true;
    size_t n = strlen(arch);
    return n && !strncmp(key, arch, n) && key[n] == '.';
}

struct bad_values {
    int64_t nan, inf, first; /* counts; index of the first */
};

#define SLAB 65536 /* elements decoded at a time: a multiple of every block */

/* Elements first .. first+n-1 of a tensor of either format; first is a multiple of SLAB. */
typedef int (*read_fn)(const void *tensor, int64_t first, int64_t n, float *x);

static int read_gguf(const void *tensor, int64_t first, int64_t n, float *x)
{
    const struct gguf_tensor *t = tensor;
    const struct kn_type_info *ti = kn_type_info(t->type);
    return kn_decode_row(t->type, t->data + first / ti->block * ti->bytes, x, n);
}

static int read_safetensors(const void *tensor, int64_t first, int64_t n, float *x)
{
    struct err e = {0};
    return st_read_f32(tensor, (uint64_t)first, (uint64_t)n, x, &e);
}

/* 0; 1: values that cannot be decoded; -1: an error. */
static int scan(const void *tensor, read_fn read, int64_t count, int threads, struct bad_values *b,
                struct err *e)
{
    int64_t slabs = (count + SLAB - 1) / SLAB, nan = 0, inf = 0, first = INT64_MAX;
    int failed = 0; /* 1: not decoded, 2: no memory */
    io_team_begin();
#pragma omp parallel for schedule(static) num_threads(threads) \
    reduction(+ : nan, inf) reduction(min : first) reduction(| : failed)
    for (int64_t s = 0; s < slabs; s++) {
        int64_t from = s * SLAB, n = count - from < SLAB ? count - from : SLAB;
        float *x = mem_alloc(SLAB * sizeof *x);
        if (!x || read(tensor, from, n, x)) {
            failed |= x ? 1 : 2;
            n = 0;
        }
        for (int64_t i = 0; i < n; i++)
            if (!isfinite(x[i])) {
                nan += isnan(x[i]) != 0;
                inf += isinf(x[i]) != 0;
                if (from + i < first) first = from + i;
            }
        mem_free(x);
    }
    io_team_end();
    *b = (struct bad_values){nan, inf, first};
    return failed & 2 ? err_set(e, ERR_IO, "out of memory (%d values of a tensor)", SLAB) : failed;
}

static int scan_tensors(struct report *r, const struct gguf *g, int threads,
                        void (*progress)(void *, uint64_t, uint64_t), struct err *e)
{
    uint64_t total = 0, done = 0, skipped = 0, bad = 0;
    for (uint64_t i = 0; i < g->n_tensors; i++) total += g->tensor[i].bytes;
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        const struct gguf_tensor *t = &g->tensor[i];
        const struct kn_type_info *ti = kn_type_info(t->type);
        int64_t count = t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
        struct bad_values b;
        char subject[256];
        snprintf(subject, sizeof subject, "tensor %s", t->name);
        int rc = ti->can_decode ? scan(t, read_gguf, count, threads, &b, e) : 0;
        if (rc < 0) {
            err_prefix(e, "%s: %s", g->map.path, subject);
            return -1;
        }
        if (t->type == KN_I64) { /* ids, which the description has looked at */
            skipped++;
        } else if (!ti->can_decode) {
            skipped++;
            say(r, CHECK_WARN, NULL, subject,
                "type %s is known but not decoded here: its values were not examined", ti->name);
        } else if (rc) {
            bad++;
            say(r, CHECK_BAD, NULL, subject, "values could not be decoded");
        } else if (b.nan || b.inf) {
            bad++;
            say(r, CHECK_BAD, NULL, subject,
                "%lld NaN and %lld Inf of %lld values, the first at row %lld column %lld", (long long)b.nan,
                (long long)b.inf, (long long)count, (long long)(b.first / t->ne[0]),
                (long long)(b.first % t->ne[0]));
        }
        done += t->bytes;
        if (progress) progress(r->ctx, done, total);
    }
    if (!bad && g->n_tensors)
        say(r, CHECK_OK, NULL, "values", "no NaN and no Inf in %llu tensors",
            (unsigned long long)(g->n_tensors - skipped));
    return 0;
}

/* What dflash-tokenize would say of it. A drafter needs none, and may have ids of special tokens all the
 * same. */
static int check_tokenizer(struct report *r, const struct gguf *g, bool drafter, struct err *e)
{
    struct tokenizer *t = NULL;
    struct err mine = {0};
    bool any = false;
    static const char *const keys[] = {"tokenizer.ggml.model", "tokenizer.ggml.pre", "tokenizer.ggml.tokens",
                                       "tokenizer.ggml.merges", "tokenizer.ggml.scores"};
    struct gguf_str model = {0};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) any |= gguf_find(g, keys[i]) != NULL;
    if (gguf_get_str(g, keys[0], &model, &mine) == 0 && tok_is_none(model)) any = false;
    memset(&mine, 0, sizeof mine);
    if (!any) {
        if (!drafter)
            say(r, CHECK_WARN, NULL, "tokenizer",
                "none in the file: dflash-tokenize needs another with the same one");
        return 0;
    }
    if (tok_open(&t, g, &mine) == 0) {
        say(r, CHECK_OK, NULL, "tokenizer", "%d tokens", tok_n_vocab(t));
    } else if (mine.code == ERR_FORMAT) {
        say(r, CHECK_BAD, mine.hint[0] ? mine.hint : NULL, "tokenizer", "%s", mine.msg);
    } else {
        *e = mine;
        return -1;
    }
    tok_close(t);
    return 0;
}

/* An importance matrix is no model: it has neither an architecture nor a tokenizer. What its readers would
 * say of it, who use sums and counts alone (other tools' statistics beside them may hold NaN). */
static int check_imatrix(struct report *r, const struct gguf *g, const struct desc_override *o, struct err *e)
{
    struct imatrix *m = NULL;
    struct err mine = {0};
    if (desc_override_given(o))
        return err_set(e, ERR_USAGE, "%s: --%s is for drafters, this is an importance matrix", g->map.path,
                       desc_override_given(o));
    for (uint64_t i = 0; i < g->n_kv; i++)
        if (strncmp(g->kv[i].key, "general.", 8) && strncmp(g->kv[i].key, "imatrix.", 8)) {
            char subject[256];
            snprintf(subject, sizeof subject, "key %s", g->kv[i].key);
            say(r, CHECK_BAD, NULL, subject, "unknown (expected general.* or imatrix.*)");
        }
    if (g->n_parts > 1) {
        say(r, CHECK_BAD, NULL, "importance matrix", "is in %u files (expected one)", g->n_parts);
    } else if (imatrix_read_memory(&m, g->map.data, g->map.size, g->map.path, &mine) == 0) {
        say(r, CHECK_OK, NULL, "importance matrix",
            "%lld products: every sum has its count, none is negative, no NaN and no Inf", (long long)m->n);
    } else if (mine.code == ERR_FORMAT) {
        say(r, CHECK_BAD, mine.hint[0] ? mine.hint : NULL, "importance matrix", "%s", mine.msg);
    } else {
        *e = mine;
        return -1;
    }
    imatrix_free(m);
    return io_maps_check(e);
}

/* What a run would say before it reads any weight, on the CPU and on CUDA. */
static void check_use(struct report *r, const struct gguf *g, const struct desc *d, bool for_use)
{
    static const usable_fn multiplies[] = {kn_cpu_multiplies, kn_cuda_multiplies, usable_any};
    static const char hint[] =
        "a file of a type of docs/types.md; dflash-convert makes one of the checkpoint";
    const enum check_level level = for_use ? CHECK_BAD : CHECK_WARN;
    char types[3][256];
    int64_t n;
    struct err why = {0};
    const struct gguf_tensor *t[3];
    for (int i = 0; i < 3; i++) t[i] = usable_types(g, d, multiplies[i], &n, types[i], sizeof types[i]);
    if (desc_runnable(d, &why)) say(r, level, NULL, "use", "%s", why.msg);
    if (t[2])
        say(r, level, hint, "use", "cannot be run here: no products with %s, the first is %s", types[2],
            t[2]->name);
    for (int i = 0; i < 2 && !t[2]; i++)
        if (t[i])
            say(r, CHECK_WARN, hint, "use", "cannot be run on %s: no products with %s, the first is %s",
                i ? "CUDA" : "the CPU", types[i], t[i]->name);
    if (!t[2] && !why.code)
        say(r, CHECK_OK, NULL, "use", "every matrix is of a type that is multiplied %s",
            t[0]   ? "on CUDA"
            : t[1] ? "on the CPU"
                   : "on the CPU and on CUDA");
}

/* What each type in the file is good for, in the order of its first tensor. */
static void check_types(struct report *r, const struct gguf *g)
{
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        const uint32_t type = g->tensor[i].type;
        const struct kn_type_info *ti = kn_type_info(type);
        struct check_type c = {.name = ti->name, .decodes = ti->can_decode, .encodes = ti->can_encode};
        char subject[64];
        bool told = false;
        for (uint64_t j = 0; j < g->n_tensors; j++) {
            if (g->tensor[j].type != type) continue;
            told |= j < i;
            c.tensors++;
            c.bytes += g->tensor[j].bytes;
        }
        if (told) continue;
        c.cpu = kn_cpu_multiplies(type);
        c.cuda = kn_cuda_multiplies(type);
        snprintf(subject, sizeof subject, "type %s", ti->name);
        r->type = &c;
        say(r, CHECK_OK, NULL, subject, "%lld tensor%s: read, %sdecoded, %s, %swritten by dflash-quantize",
            (long long)c.tensors, c.tensors == 1 ? "" : "s", c.decodes ? "" : "not ",
            c.cpu && c.cuda ? "multiplied on the CPU and on CUDA"
            : c.cpu         ? "multiplied on the CPU alone"
            : c.cuda        ? "multiplied on CUDA alone"
                            : "not multiplied",
            c.encodes ? "" : "not ");
        r->type = NULL;
    }
}

/* A vocabulary alone, for programs that tokenize: keys of an architecture and no tensor. */
static int check_vocabulary(struct report *r, const struct gguf *g, const struct desc_override *o,
                            const char *arch, bool for_use, struct err *e)
{
    if (desc_override_given(o))
        return err_set(e, ERR_USAGE, "%s: --%s is for drafters, this is a vocabulary", g->map.path,
                       desc_override_given(o));
    say(r, CHECK_OK, NULL, "vocabulary", "a vocabulary alone, without a model: architecture %s, no tensors",
        arch[0] ? arch : "not said");
    if (for_use) say(r, CHECK_BAD, NULL, "use", "cannot be run: dflash-tokenize reads it");
    return 0;
}

/* How many keys are of no namespace that is known. */
static int check_keys(struct report *r, const struct gguf *g, const char *arch)
{
    int unknown = 0;
    for (uint64_t i = 0; i < g->n_kv; i++) {
        char subject[256];
        if (known_key(g->kv[i].key, arch)) continue;
        snprintf(subject, sizeof subject, "key %s", g->kv[i].key);
        say(r, CHECK_BAD, NULL, subject, "unknown (expected general.*, tokenizer.* or %s.*)",
            arch[0] ? arch : "the architecture");
        unknown++;
    }
    return unknown;
}

/* d stays NULL where the file is a vocabulary alone, or malformed. */
static int check_description(struct report *r, const struct gguf *g, const struct desc_override *o,
                             bool for_use, struct desc **d, struct err *e)
{
    struct gguf_str arch = {0};
    struct err mine = {0};
    char name[128] = "";
    if (gguf_get_str(g, "general.architecture", &arch, &mine) == 0 && arch.n < sizeof name)
        memcpy(name, arch.s, arch.n);
    const int unknown = check_keys(r, g, name);
    if (desc_vocabulary_only(g)) return check_vocabulary(r, g, o, name, for_use, e);
    memset(&mine, 0, sizeof mine);
    if (desc_read(d, g, o, &mine)) {
        if (mine.code != ERR_FORMAT) {
            *e = mine;
            return -1;
        }
        say(r, CHECK_BAD, mine.hint[0] ? mine.hint : NULL, "description", "%s", mine.msg);
        return 0;
    }
    say(r, CHECK_OK, NULL, "description", "%s%s%s: keys and tensor shapes agree", (*d)->arch_name,
        (*d)->dialect[0] ? ", dialect " : "", (*d)->dialect);
    if (!unknown)
        say(r, CHECK_OK, NULL, "keys",
            "those of %s each known; general.*, tokenizer.*, quantize.* by their names' beginning",
            (*d)->arch_name);
    check_use(r, g, *d, for_use);
    return 0;
}

static int check_model(struct report *r, const struct gguf *g, const struct desc_override *o, bool for_use,
                       int threads, void (*progress)(void *, uint64_t, uint64_t), struct err *e)
{
    struct desc *d = NULL;
    if (check_description(r, g, o, for_use, &d, e)) return -1;
    check_types(r, g);
    const int rc = check_tokenizer(r, g, d && desc_drafts(d), e) ||
                   scan_tensors(r, g, threads, progress, e) || io_maps_check(e);
    desc_free(d);
    return rc ? -1 : 0;
}

int check_gguf(const char *path, const struct desc_override *o, bool for_use, int threads, check_fn fn,
               void (*progress)(void *, uint64_t, uint64_t), void *ctx, struct err *e)
{
    struct report r = {.fn = fn, .ctx = ctx};
    struct gguf *g = NULL;
    struct err mine = {0};
    char files[32] = "";
    int rc;
    if (threads < 1) threads = omp_get_num_procs();
    if (gguf_open(&g, path, &mine)) return malformed(&r, &mine, e);
    if (o && gguf_override(g, o->kv, o->n_kv, false, e)) {
        gguf_close(g);
        return -1;
    }
    if (g->n_parts > 1) snprintf(files, sizeof files, " in %u files", g->n_parts);
    say(&r, CHECK_OK, NULL, "structure",
        "GGUF v%u%s, %llu keys, %llu tensors, no overlap, nothing past the end", g->version, files,
        (unsigned long long)g->n_kv, (unsigned long long)g->n_tensors);
    if (imatrix_is(g)) {
        rc = check_imatrix(&r, g, o, e);
        if (for_use) say(&r, CHECK_BAD, NULL, "use", "cannot be run: dflash-quantize --imatrix reads it");
    } else {
        rc = check_model(&r, g, o, for_use, threads, progress, e);
    }
    gguf_close(g);
    return rc ? -1 : r.bad;
}

int check_safetensors(const char *path, int threads, check_fn fn,
                      void (*progress)(void *, uint64_t, uint64_t), void *ctx, struct err *e)
{
    struct report r = {.fn = fn, .ctx = ctx};
    struct st *s = NULL;
    struct err mine = {0};
    uint64_t total = 0, done = 0;
    int bad = 0;
    if (threads < 1) threads = omp_get_num_procs();
    if (st_open(&s, path, &mine)) return malformed(&r, &mine, e);
    say(&r, CHECK_OK, NULL, "structure",
        "safetensors, %u file%s, %llu tensors, no overlap, nothing past the end", s->n_files,
        s->n_files == 1 ? "" : "s", (unsigned long long)s->n_tensors);
    for (uint64_t i = 0; i < s->n_tensors; i++) total += s->tensor[i].bytes;
    for (uint64_t i = 0; i < s->n_tensors; i++) {
        const struct st_tensor *t = &s->tensor[i];
        struct bad_values b = {0};
        char subject[256];
        snprintf(subject, sizeof subject, "tensor %s", t->name);
        bool real = t->dtype <= ST_F8_E5M2;
        int rc = real ? scan(t, read_safetensors, (int64_t)t->count, threads, &b, e) : 0;
        if (rc < 0) {
            err_prefix(e, "%s: %s", path, subject);
            st_close(s);
            return -1;
        }
        if (rc) {
            bad++;
            say(&r, CHECK_BAD, NULL, subject, "values could not be decoded");
        } else if (b.nan || b.inf) {
            bad++;
            say(&r, CHECK_BAD, NULL, subject, "%lld NaN and %lld Inf of %llu values, the first at %lld",
                (long long)b.nan, (long long)b.inf, (unsigned long long)t->count, (long long)b.first);
        }
        done += t->bytes;
        if (progress) progress(ctx, done, total);
    }
    if (!bad) say(&r, CHECK_OK, NULL, "values", "no NaN and no Inf");
    int changed = io_maps_check(e);
    st_close(s);
    return changed ? -1 : r.bad;
}
