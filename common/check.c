/* check.c - see check.h. */
#include <math.h>
#include <omp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "check.h"
#include "desc.h"
#include "gguf.h"
#include "mem.h"
#include "safetensors.h"

struct report {
    check_fn fn;
    void *ctx;
    int bad;
};

static void say(struct report *r, enum check_level level, const char *hint, const char *subject, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

static void say(struct report *r, enum check_level level, const char *hint, const char *subject, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (level == CHECK_BAD) r->bad++;
    r->fn(r->ctx, &(struct check_finding){level, subject, text, hint});
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
    static const char *const spaces[] = {"general.", "tokenizer.", "quantize.", "split."};
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

static int scan(const void *tensor, read_fn read, int64_t count, int threads, struct bad_values *b)
{
    int64_t slabs = (count + SLAB - 1) / SLAB, nan = 0, inf = 0, first = INT64_MAX;
    int failed = 0;
#pragma omp parallel for schedule(static) num_threads(threads) reduction(+ : nan, inf) reduction(min : first) reduction(| : failed)
    for (int64_t s = 0; s < slabs; s++) {
        int64_t from = s * SLAB, n = count - from < SLAB ? count - from : SLAB;
        float *x = mem_alloc(SLAB * sizeof *x);
        if (!x || read(tensor, from, n, x)) {
            failed |= 1;
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
    *b = (struct bad_values){nan, inf, first};
    return failed ? -1 : 0;
}

static void scan_tensors(struct report *r, const struct gguf *g, int threads, void (*progress)(void *, uint64_t, uint64_t))
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
        if (!ti->can_decode) {
            skipped++;
            say(r, CHECK_WARN, NULL, subject, "type %s is known but not decoded here: its values were not examined", ti->name);
        } else if (scan(t, read_gguf, count, threads, &b)) {
            bad++;
            say(r, CHECK_BAD, NULL, subject, "values could not be decoded");
        } else if (b.nan || b.inf) {
            bad++;
            say(r, CHECK_BAD, NULL, subject, "%lld NaN and %lld Inf of %lld values, the first at row %lld column %lld",
                (long long)b.nan, (long long)b.inf, (long long)count, (long long)(b.first / t->ne[0]), (long long)(b.first % t->ne[0]));
        }
        done += t->bytes;
        if (progress) progress(r->ctx, done, total);
    }
    if (!bad) say(r, CHECK_OK, NULL, "values", "no NaN and no Inf in %llu tensors", (unsigned long long)(g->n_tensors - skipped));
}

int check_gguf(const char *path, const struct desc_override *o, int threads, check_fn fn, void (*progress)(void *, uint64_t, uint64_t), void *ctx, struct err *e)
{
    struct report r = {fn, ctx, 0};
    struct gguf *g = NULL;
    struct desc *d = NULL;
    struct err mine = {0};
    if (threads < 1) threads = omp_get_num_procs();
    if (gguf_open(&g, path, &mine)) return malformed(&r, &mine, e);
    say(&r, CHECK_OK, NULL, "structure", "GGUF v%u, %llu keys, %llu tensors, no overlap, nothing past the end", g->version,
        (unsigned long long)g->n_kv, (unsigned long long)g->n_tensors);
    struct gguf_str arch = {0};
    char name[128] = "";
    if (gguf_get_str(g, "general.architecture", &arch, &mine) == 0 && arch.n < sizeof name) memcpy(name, arch.s, arch.n);
    int unknown = 0;
    for (uint64_t i = 0; i < g->n_kv; i++)
        if (!known_key(g->kv[i].key, name)) {
            char subject[256];
            snprintf(subject, sizeof subject, "key %s", g->kv[i].key);
            say(&r, CHECK_BAD, NULL, subject, "unknown (expected general.*, tokenizer.* or %s.*)", name[0] ? name : "the architecture");
            unknown++;
        }
    memset(&mine, 0, sizeof mine);
    if (desc_read(&d, g, o, &mine)) {
        if (mine.code != ERR_FORMAT) {
            *e = mine;
            gguf_close(g);
            return -1;
        }
        say(&r, CHECK_BAD, mine.hint[0] ? mine.hint : NULL, "description", "%s", mine.msg);
    } else {
        say(&r, CHECK_OK, NULL, "description", "%s%s%s: keys and tensor shapes agree", d->arch_name, d->dialect[0] ? ", dialect " : "",
            d->dialect);
        if (!unknown) say(&r, CHECK_OK, NULL, "keys", "those of %s each known; general.*, tokenizer.*, quantize.*, split.* by their names' beginning", d->arch_name);
    }
    scan_tensors(&r, g, threads, progress);
    desc_free(d);
    gguf_close(g);
    return r.bad;
}

int check_safetensors(const char *path, int threads, check_fn fn, void (*progress)(void *, uint64_t, uint64_t), void *ctx,
                      struct err *e)
{
    struct report r = {fn, ctx, 0};
    struct st *s = NULL;
    struct err mine = {0};
    uint64_t total = 0, done = 0;
    int bad = 0;
    if (threads < 1) threads = omp_get_num_procs();
    if (st_open(&s, path, &mine)) return malformed(&r, &mine, e);
    say(&r, CHECK_OK, NULL, "structure", "safetensors, %u file%s, %llu tensors, no overlap, nothing past the end", s->n_files,
        s->n_files == 1 ? "" : "s", (unsigned long long)s->n_tensors);
    for (uint64_t i = 0; i < s->n_tensors; i++) total += s->tensor[i].bytes;
    for (uint64_t i = 0; i < s->n_tensors; i++) {
        const struct st_tensor *t = &s->tensor[i];
        struct bad_values b = {0};
        char subject[256];
        snprintf(subject, sizeof subject, "tensor %s", t->name);
        bool real = t->dtype <= ST_F8_E5M2;
        if (real && scan(t, read_safetensors, (int64_t)t->count, threads, &b)) {
            bad++;
            say(&r, CHECK_BAD, NULL, subject, "values could not be decoded");
        } else if (b.nan || b.inf) {
            bad++;
            say(&r, CHECK_BAD, NULL, subject, "%lld NaN and %lld Inf of %llu values, the first at %lld", (long long)b.nan,
                (long long)b.inf, (unsigned long long)t->count, (long long)b.first);
        }
        done += t->bytes;
        if (progress) progress(ctx, done, total);
    }
    if (!bad) say(&r, CHECK_OK, NULL, "values", "no NaN and no Inf");
    st_close(s);
    return r.bad;
}

/* ---- pair ---- */

static void pair_sizes(struct report *r, const struct desc *t, const struct desc *d)
{
    const struct desc_layer *y = desc_attention(t), *z = desc_attention(d);
    bool width = (int64_t)d->n_taps * t->n_embd == d->n_features;
    say(r, width ? CHECK_OK : CHECK_BAD, NULL, "features", "fc takes %d, the target gives %d taps x %d = %lld", d->n_features, d->n_taps,
        t->n_embd, (long long)d->n_taps * t->n_embd);
    bool embd = d->n_embd == t->n_embd;
    say(r, embd ? CHECK_OK : CHECK_BAD, NULL, "hidden size", "target %d, drafter %d%s", t->n_embd, d->n_embd,
        embd ? "" : " (the borrowed embedding and head need them equal)");
    say(r, CHECK_OK, NULL, "heads", "target %d/%d of %d, drafter %d/%d of %d: each its own", y->n_head, y->n_head_kv, y->head_dim,
        z->n_head, z->n_head_kv, z->head_dim);
}

static void pair_taps(struct report *r, const struct desc *t, const struct desc *d)
{
    char list[512] = "", shifted[512] = "";
    bool in_range = d->n_taps > 0;
    for (int i = 0; i < d->n_taps; i++) {
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%d", i ? "," : "", d->taps[i]);
        snprintf(shifted + strlen(shifted), sizeof shifted - strlen(shifted), "%s%d", i ? "," : "", d->taps[i] + 1);
        if (d->taps[i] < 0 || d->taps[i] >= t->n_layer) in_range = false;
    }
    say(r, in_range ? CHECK_OK : CHECK_BAD, NULL, "taps", "output of blocks %s (zero-based; %s in files that count from one), target has %d blocks",
        list, shifted, t->n_layer);
}

/* The mask token needs a row of the target's embedding, and one that is not zero. */
static void pair_mask(struct report *r, const struct desc *t, const struct desc *d, const struct gguf *g)
{
    const struct gguf_tensor *embd = gguf_tensor(g, "token_embd.weight");
    if (d->mask_id < 0 || d->mask_id >= t->n_vocab) {
        say(r, CHECK_BAD, NULL, "mask id", "%d is outside the target's vocabulary of %d", d->mask_id, t->n_vocab);
        return;
    }
    float *x = embd ? mem_alloc((size_t)t->n_embd * sizeof *x) : NULL;
    if (!x || kn_decode_row(embd->type, embd->data + (size_t)d->mask_id * kn_row_bytes(embd->type, t->n_embd), x, t->n_embd)) {
        say(r, CHECK_WARN, NULL, "mask id", "%d: its embedding row could not be decoded", d->mask_id);
    } else {
        double s = 0;
        for (int i = 0; i < t->n_embd; i++) s += (double)x[i] * x[i];
        double rms = sqrt(s / t->n_embd);
        say(r, rms > 0 ? CHECK_OK : CHECK_BAD, NULL, "mask id", "%d, its embedding row has RMS %.4g%s", d->mask_id, rms,
            rms > 0 ? "" : ": the drafter would see nothing");
    }
    mem_free(x);
}

static void pair_attention(struct report *r, const struct desc *t, const struct desc *d)
{
    const float theta = t->rope[desc_attention(t)->rope].theta, own = d->rope[0].theta;
    if (theta == own)
        say(r, CHECK_OK, NULL, "rope", "theta %g in both", (double)theta);
    else
        say(r, CHECK_WARN, "right where it was trained so; a converter's default where it was not", "rope",
            "theta %g in the target, %g in the drafter", (double)theta, (double)own);
    char text[1024] = "";
    for (int i = 0; i < d->n_layer && strlen(text) < sizeof text - 64; i++) {
        const struct desc_layer *l = &d->layer[i];
        size_t n = strlen(text);
        if (l->window)
            snprintf(text + n, sizeof text - n, "%s%d: window %d, %s", i ? "; " : "", i, l->window, l->causal ? "causal" : "bidirectional");
        else
            snprintf(text + n, sizeof text - n, "%s%d: full, %s", i ? "; " : "", i, l->causal ? "causal" : "bidirectional");
    }
    say(r, d->causal_inferred ? CHECK_WARN : CHECK_OK,
        d->causal_inferred ? "the file does not say which layers are causal inside the block; --draft-causal overrides" : NULL, "layers", "%s",
        text);
    if (d->n_ctx_train < t->n_ctx_train)
        say(r, CHECK_WARN, "--draft-window bounds what the drafter sees", "context", "target trained to %d positions, drafter to %d",
            t->n_ctx_train, d->n_ctx_train);
    else
        say(r, CHECK_OK, NULL, "context", "target trained to %d positions, drafter to %d", t->n_ctx_train, d->n_ctx_train);
    say(r, d->block_size >= 2 ? CHECK_OK : CHECK_BAD, NULL, "block", "%d rows: up to %d proposals a cycle", d->block_size, d->block_size - 1);
}

static void pair_tokens(struct report *r, const struct desc *t, const struct desc *d)
{
    bool same = !d->n_vocab || d->n_vocab == t->n_vocab;
    if (!d->n_vocab)
        say(r, CHECK_OK, NULL, "vocabulary", "%d, embedding and head borrowed from the target", t->n_vocab);
    else
        say(r, same ? CHECK_OK : CHECK_BAD, NULL, "vocabulary", "target %d, drafter %d", t->n_vocab, d->n_vocab);
    if (!t->has_tokenizer || !d->has_tokenizer)
        say(r, CHECK_WARN, NULL, "tokenizer", "%s", t->has_tokenizer ? "the drafter's file has none" : "the target's file has none");
    else
        say(r, t->tokenizer_crc == d->tokenizer_crc ? CHECK_OK : CHECK_BAD, NULL, "tokenizer", "crc32 %08x in the target, %08x in the drafter",
            t->tokenizer_crc, d->tokenizer_crc);
}

int check_pair(const char *target, const char *drafter, const struct desc_override *o, check_fn fn, void *ctx, struct err *e)
{
    struct report r = {fn, ctx, 0};
    struct gguf *tg = NULL, *dg = NULL;
    struct desc *t = NULL, *d = NULL;
    int rc = -1;
    if (gguf_open(&tg, target, e) || gguf_open(&dg, drafter, e)) goto done;
    if (desc_read(&t, tg, NULL, e)) {
        err_prefix(e, "target %s", target);
        goto done;
    }
    if (desc_read(&d, dg, o, e)) {
        err_prefix(e, "drafter %s", drafter);
        goto done;
    }
    if (t->arch == DESC_DFLASH || d->arch != DESC_DFLASH) {
        say(&r, CHECK_BAD, "inspect --pair TARGET DRAFTER", "roles", "%s is a %s, %s is a %s (expected a target, then a drafter)", target,
            t->arch == DESC_DFLASH ? "drafter" : "target", drafter, d->arch == DESC_DFLASH ? "drafter" : "target");
        rc = r.bad;
        goto done;
    }
    say(&r, CHECK_OK, NULL, "dialect", "target %s, drafter %s (%s)", t->arch_name, d->arch_name, d->dialect);
    pair_sizes(&r, t, d);
    pair_taps(&r, t, d);
    pair_tokens(&r, t, d);
    pair_mask(&r, t, d, tg);
    pair_attention(&r, t, d);
    rc = r.bad;
done:
    desc_free(t);
    desc_free(d);
    gguf_close(tg);
    gguf_close(dg);
    return rc;
}
