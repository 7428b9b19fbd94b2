/* desc.c - read a description from a GGUF and check it whole.
 *
 * The rule of this file: every key below the architecture's prefix and every tensor must be known. A key that
 * is not could change the forward pass, and a model that runs with the wrong one still writes text. */
#include "desc.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <zlib.h>
#include "mem.h"

struct reader {
    const struct gguf *g;
    struct desc *d;
    struct err *e;
    struct gguf_str arch; /* general.architecture */
    bool *seen;           /* [n_tensors] */
};

/* ---- messages ---- */

static int fail(struct reader *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static int fail(struct reader *r, const char *fmt, ...)
{
    va_list ap;
    char text[640];
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return err_set(r->e, ERR_FORMAT, "%s: %s", r->g->map.path ? r->g->map.path : "model", text);
}

static void value_text(const struct gguf_kv *kv, char *out, size_t n)
{
    uint32_t type = kv->type == GGUF_ARRAY ? kv->elem : kv->type;
    if (kv->type == GGUF_ARRAY)
        snprintf(out, n, "%s[%" PRIu64 "]", gguf_type_name(type), kv->count);
    else if (type == GGUF_STRING)
        snprintf(out, n, "\"%.*s\"", (int)(kv->strings[0].n < 60 ? kv->strings[0].n : 60), kv->strings[0].s);
    else if (type == GGUF_F32 || type == GGUF_F64)
        snprintf(out, n, "%g", gguf_array_f64(kv, 0));
    else
        snprintf(out, n, "%" PRId64, gguf_array_i64(kv, 0));
}

/* ---- keys ---- */

static const char *key_of(const struct reader *r, const char *name, char *buf, size_t n)
{
    snprintf(buf, n, "%s.%s", r->d->arch_name, name);
    return buf;
}

static int missing(struct reader *r, const char *key, const char *expected)
{
    return fail(r, "key '%s': is missing (expected %s)", key, expected);
}

/* An integer at arch.name within [lo, hi]; 1 where the key is absent. */
static int maybe_i32(struct reader *r, const char *name, int32_t lo, int32_t hi, int32_t *v)
{
    char key[160];
    int rc = gguf_get_i32(r->g, key_of(r, name, key, sizeof key), v, r->e);
    if (rc) return rc;
    if (*v < lo || *v > hi)
        return fail(r, "key '%s': out of range (expected %d to %d, got %d)", key, lo, hi, *v);
    return 0;
}

static int need_i32(struct reader *r, const char *name, int32_t lo, int32_t hi, int32_t *v)
{
    char key[160];
    int rc = maybe_i32(r, name, lo, hi, v);
    return rc > 0 ? missing(r, key_of(r, name, key, sizeof key), "an integer") : rc;
}

static int need_f32(struct reader *r, const char *name, float *v)
{
    char key[160];
    int rc = gguf_get_f32(r->g, key_of(r, name, key, sizeof key), v, r->e);
    if (rc > 0) return missing(r, key, "a number");
    if (rc == 0 && (!isfinite(*v) || *v <= 0))
        return fail(r, "key '%s': out of range (expected a finite number above 0, got %g)", key, *v);
    return rc;
}

/* A key that may be there but must then say what the tensors say. */
static int agree_i32(struct reader *r, const char *name, int32_t found, const char *where)
{
    char key[160];
    int32_t v;
    int rc = gguf_get_i32(r->g, key_of(r, name, key, sizeof key), &v, r->e);
    if (rc == 0 && v != found)
        return fail(r, "key '%s': disagrees with %s (expected %d, got %d)", key, where, found, v);
    return rc < 0 ? -1 : 0;
}

static bool in_list(const char *name, const char *const *list)
{
    for (; *list; list++)
        if (!strcmp(name, *list)) return true;
    return false;
}

/* Every key below the architecture's prefix must be in one of the lists. */
static int refuse_unknown_keys(struct reader *r, const char *const *known, const char *const *more)
{
    size_t n = strlen(r->d->arch_name);
    for (uint64_t i = 0; i < r->g->n_kv; i++) {
        const struct gguf_kv *kv = &r->g->kv[i];
        char text[96];
        if (strncmp(kv->key, r->d->arch_name, n) || kv->key[n] != '.') continue;
        if (in_list(kv->key + n + 1, known) || in_list(kv->key + n + 1, more)) continue;
        value_text(kv, text, sizeof text);
        return fail(
            r, "key '%s': is not supported and could change the forward pass (expected no such key, got %s)",
            kv->key, text);
    }
    return 0;
}

/* ---- tensors ---- */

static void shape_text(const struct gguf_tensor *t, char *out, size_t n)
{
    size_t used = 0;
    for (uint32_t i = 0; i < t->n_dims && used < n; i++)
        used += (size_t)snprintf(out + used, n - used, "%s%" PRId64, i ? ", " : "", t->ne[i]);
}

static const struct gguf_tensor *find(struct reader *r, const char *name)
{
    const struct gguf_tensor *t = gguf_tensor(r->g, name);
    if (t) r->seen[t - r->g->tensor] = true;
    return t;
}

static const struct gguf_tensor *need_tensor(struct reader *r, const char *name)
{
    const struct gguf_tensor *t = find(r, name);
    if (!t) fail(r, "tensor '%s': is missing", name);
    return t;
}

/* Tensor name must be [ne0] (ne1 0) or [ne0, ne1]. */
static int expect(struct reader *r, int64_t ne0, int64_t ne1, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static int expect(struct reader *r, int64_t ne0, int64_t ne1, const char *fmt, ...)
{
    char name[128], got[100], want[64];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    const struct gguf_tensor *t = need_tensor(r, name);
    if (!t) return -1;
    if (t->n_dims == (ne1 ? 2u : 1u) && t->ne[0] == ne0 && t->ne[1] == (ne1 ? ne1 : 1)) return 0;
    shape_text(t, got, sizeof got);
    if (ne1)
        snprintf(want, sizeof want, "%" PRId64 ", %" PRId64, ne0, ne1);
    else
        snprintf(want, sizeof want, "%" PRId64, ne0);
    return fail(r, "tensor '%s': has the wrong shape (expected [%s], got [%s])", name, want, got);
}

static int refuse_unknown_tensors(struct reader *r)
{
    for (uint64_t i = 0; i < r->g->n_tensors; i++) {
        char shape[100];
        if (r->seen[i]) continue;
        shape_text(&r->g->tensor[i], shape, sizeof shape);
        return fail(r, "tensor '%s': is not part of a %s model (expected no such tensor, got [%s])",
                    r->g->tensor[i].name, r->d->arch_name, shape);
    }
    return 0;
}

/* A dimension of a matrix as int32. */
static int dim(struct reader *r, const char *name, int i, int32_t *v)
{
    const struct gguf_tensor *t = need_tensor(r, name);
    if (!t) return -1;
    if (t->ne[i] < 1 || t->ne[i] > INT32_MAX / 4)
        return fail(r, "tensor '%s': dimension %d out of range (got %" PRId64 ")", name, i, t->ne[i]);
    *v = (int32_t)t->ne[i];
    return 0;
}

/* ---- the parts that every Qwen3-style stack has ---- */

static const char *const stack_keys[] = {"block_count",
                                         "context_length",
                                         "embedding_length",
                                         "feed_forward_length",
                                         "vocab_size",
                                         "attention.head_count",
                                         "attention.head_count_kv",
                                         "attention.key_length",
                                         "attention.value_length",
                                         "attention.layer_norm_rms_epsilon",
                                         "attention.sliding_window",
                                         "attention.sliding_window_pattern",
                                         "rope.freq_base",
                                         "rope.dimension_count",
                                         "rope.scaling.type",
                                         NULL};

static int read_rope(struct reader *r)
{
    struct desc *d = r->d;
    char key[160];
    struct gguf_str s;
    int rc;
    if (need_f32(r, "rope.freq_base", &d->rope_theta) ||
        agree_i32(r, "rope.dimension_count", d->head_dim, "the head size"))
        return -1;
    rc = gguf_get_str(r->g, key_of(r, "rope.scaling.type", key, sizeof key), &s, r->e);
    if (rc == 0 && !gguf_str_is(s, "none"))
        return fail(r, "key '%s': rope scaling is not supported (expected none, got %.*s)", key,
                    (int)(s.n < 60 ? s.n : 60), s.s);
    return rc < 0 ? -1 : 0;
}

/* Sizes: from tensor shapes; the keys must agree. */
static int read_sizes(struct reader *r)
{
    struct desc *d = r->d;
    int32_t q_rows, k_rows;
    if (need_i32(r, "block_count", 1, DESC_MAX_LAYERS, &d->n_layer) ||
        need_i32(r, "context_length", 0, INT32_MAX, &d->n_ctx_train) ||
        need_f32(r, "attention.layer_norm_rms_epsilon", &d->rms_eps) ||
        dim(r, "output_norm.weight", 0, &d->n_embd) || dim(r, "blk.0.attn_q_norm.weight", 0, &d->head_dim) ||
        dim(r, "blk.0.attn_q.weight", 1, &q_rows) || dim(r, "blk.0.attn_k.weight", 1, &k_rows) ||
        dim(r, "blk.0.ffn_gate.weight", 1, &d->n_ff))
        return -1;
    if (d->head_dim % 2 || q_rows % d->head_dim || k_rows % d->head_dim)
        return fail(r,
                    "blk.0: heads do not divide (expected an even head size that divides the rows of "
                    "attn_q and attn_k, "
                    "got %d, %d and %d)",
                    d->head_dim, q_rows, k_rows);
    d->n_head = q_rows / d->head_dim;
    d->n_head_kv = k_rows / d->head_dim;
    if (d->n_head % d->n_head_kv)
        return fail(r, "blk.0: query heads are no multiple of key heads (got %d and %d)", d->n_head,
                    d->n_head_kv);
    int32_t v;
    if (need_i32(r, "embedding_length", 1, INT32_MAX, &v) ||
        need_i32(r, "feed_forward_length", 1, INT32_MAX, &v) ||
        need_i32(r, "attention.head_count", 1, INT32_MAX, &v) ||
        need_i32(r, "attention.head_count_kv", 1, INT32_MAX, &v))
        return -1;
    if (agree_i32(r, "embedding_length", d->n_embd, "output_norm.weight") ||
        agree_i32(r, "feed_forward_length", d->n_ff, "blk.0.ffn_gate.weight") ||
        agree_i32(r, "attention.head_count", d->n_head, "blk.0.attn_q.weight") ||
        agree_i32(r, "attention.head_count_kv", d->n_head_kv, "blk.0.attn_k.weight") ||
        agree_i32(r, "attention.key_length", d->head_dim, "blk.0.attn_q_norm.weight") ||
        agree_i32(r, "attention.value_length", d->head_dim, "blk.0.attn_q_norm.weight"))
        return -1;
    return 0;
}

/* attention.sliding_window with a pattern a layer (true: sliding). Both absent: every layer sees all. */
static int read_windows(struct reader *r)
{
    struct desc *d = r->d;
    char key[160];
    int32_t window = 0;
    if (maybe_i32(r, "attention.sliding_window", 0, INT32_MAX, &window) < 0) return -1;
    const struct gguf_kv *kv =
        gguf_find(r->g, key_of(r, "attention.sliding_window_pattern", key, sizeof key));
    if (kv && (kv->type != GGUF_ARRAY || kv->elem != GGUF_BOOL || kv->count != (uint64_t)d->n_layer)) {
        char text[96];
        value_text(kv, text, sizeof text);
        return fail(r, "key '%s': has the wrong type (expected bool[%d], got %s)", key, d->n_layer, text);
    }
    if (window && !kv) return missing(r, key, "a bool a layer, as attention.sliding_window is set");
    for (int i = 0; kv && i < d->n_layer; i++) {
        bool sliding = gguf_array_i64(kv, (uint64_t)i) != 0;
        if (sliding && !window)
            return missing(r, key_of(r, "attention.sliding_window", key, sizeof key),
                           "the window, as the pattern has sliding layers");
        d->layer[i].window = sliding ? window : 0;
    }
    return 0;
}

static int expect_stack(struct reader *r)
{
    const struct desc *d = r->d;
    int64_t q = (int64_t)d->n_head * d->head_dim, k = (int64_t)d->n_head_kv * d->head_dim;
    for (int i = 0; i < d->n_layer; i++)
        if (expect(r, d->n_embd, 0, "blk.%d.attn_norm.weight", i) ||
            expect(r, d->n_embd, q, "blk.%d.attn_q.weight", i) ||
            expect(r, d->n_embd, k, "blk.%d.attn_k.weight", i) ||
            expect(r, d->n_embd, k, "blk.%d.attn_v.weight", i) ||
            expect(r, q, d->n_embd, "blk.%d.attn_output.weight", i) ||
            expect(r, d->head_dim, 0, "blk.%d.attn_q_norm.weight", i) ||
            expect(r, d->head_dim, 0, "blk.%d.attn_k_norm.weight", i) ||
            expect(r, d->n_embd, 0, "blk.%d.ffn_norm.weight", i) ||
            expect(r, d->n_embd, d->n_ff, "blk.%d.ffn_gate.weight", i) ||
            expect(r, d->n_embd, d->n_ff, "blk.%d.ffn_up.weight", i) ||
            expect(r, d->n_ff, d->n_embd, "blk.%d.ffn_down.weight", i))
            return -1;
    return expect(r, d->n_embd, 0, "output_norm.weight");
}

/* ---- the tokenizer's part ---- */

static int read_id(struct reader *r, const char *key, int32_t *id)
{
    *id = -1;
    int rc = gguf_get_i32(r->g, key, id, r->e);
    if (rc == 0 && (*id < 0 || (r->d->n_vocab && *id >= r->d->n_vocab)))
        return fail(r, "key '%s': out of range (expected 0 to %d, got %d)", key, r->d->n_vocab - 1, *id);
    return rc < 0 ? -1 : 0;
}

static int add_stop(struct reader *r, const char *key, int64_t id)
{
    struct desc *d = r->d;
    if (id < 0 || id > INT32_MAX || (d->n_vocab && id >= d->n_vocab))
        return fail(r, "key '%s': id out of range (expected 0 to %d, got %" PRId64 ")", key, d->n_vocab - 1,
                    id);
    for (int i = 0; i < d->n_stops; i++)
        if (d->stops[i] == id) return 0;
    if (d->n_stops == DESC_MAX_STOPS)
        return fail(r, "key '%s': too many stop ids (expected at most %d)", key, DESC_MAX_STOPS);
    d->stops[d->n_stops++] = (int32_t)id;
    return 0;
}

static uint32_t crc_strings(uint32_t crc, const struct gguf_kv *kv)
{
    for (uint64_t i = 0; kv && kv->strings && i < kv->count; i++) {
        crc = (uint32_t)crc32(crc, (const Bytef *)kv->strings[i].s, (uInt)kv->strings[i].n);
        crc = (uint32_t)crc32(crc, (const Bytef *)"", 1); /* so that a border counts */
    }
    return crc;
}

static int read_tokenizer(struct reader *r)
{
    static const char *const single[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"};
    struct desc *d = r->d;
    const struct gguf_kv *tokens = gguf_find(r->g, "tokenizer.ggml.tokens");
    const struct gguf_kv *list = gguf_find(r->g, "tokenizer.ggml.stop_token_ids");
    int32_t id;
    if (tokens && tokens->strings && tokens->type == GGUF_ARRAY && tokens->count <= INT32_MAX) {
        d->has_tokenizer = true;
        d->n_tokens = (int32_t)tokens->count;
        d->tokenizer_crc = crc_strings(crc_strings(0, tokens), gguf_find(r->g, "tokenizer.ggml.merges"));
        if (d->arch == DESC_QWEN3 && d->n_tokens > d->n_vocab)
            return fail(r, "key 'tokenizer.ggml.tokens': is longer than the embedding (expected %d, got %d)",
                        d->n_vocab, d->n_tokens);
    }
    if (read_id(r, "tokenizer.ggml.bos_token_id", &d->bos_id) || read_id(r, single[0], &d->eos_id)) return -1;
    for (int i = 0; i < 2; i++)
        if (read_id(r, single[i], &id) || (id >= 0 && add_stop(r, single[i], id))) return -1;
    if (list && (list->type != GGUF_ARRAY || (list->elem != GGUF_I32 && list->elem != GGUF_U32)))
        return fail(r, "key '%s': has the wrong type (expected an array of i32, got %s)", list->key,
                    gguf_type_name(list->type == GGUF_ARRAY ? list->elem : list->type));
    for (uint64_t i = 0; list && i < list->count; i++)
        if (add_stop(r, list->key, gguf_array_i64(list, i))) return -1;
    return gguf_get_bool(r->g, "tokenizer.ggml.add_bos_token", &d->add_bos, r->e) < 0 ? -1 : 0;
}

/* ---- identity ---- */

/* Two lanes of 64-bit FNV-1a over the same bytes from different bases, the second one over complemented
 * bytes. This tells files apart; it is no defence against somebody who wants two files to collide. */
struct hash {
    uint64_t a, b;
};

static void hash_bytes(struct hash *h, const void *data, uint64_t n)
{
    const uint8_t *p = data;
    for (uint64_t i = 0; i < n; i++) {
        h->a = (h->a ^ p[i]) * 0x100000001b3u;
        h->b = (h->b ^ (uint8_t)~p[i]) * 0x100000001b3u;
    }
}

static void hash_u64(struct hash *h, uint64_t v)
{
    uint8_t le[8];
    for (int i = 0; i < 8; i++) le[i] = (uint8_t)(v >> 8 * i);
    hash_bytes(h, le, 8);
}

/* 64 runs of 64 bytes, evenly spread, the first and the last byte always among them. */
static void hash_sample(struct hash *h, const uint8_t *data, uint64_t n)
{
    enum { RUN = 64, RUNS = 64 };
    if (n <= RUN * RUNS) {
        hash_bytes(h, data, n);
        return;
    }
    for (uint64_t i = 0; i < RUNS; i++) hash_bytes(h, data + (n - RUN) / (RUNS - 1) * i, RUN);
    hash_bytes(h, data + n - RUN, RUN);
}

static void read_identity(struct reader *r)
{
    struct hash h = {0xcbf29ce484222325u, 0x84222325cbf29ce4u};
    for (uint64_t i = 0; i < r->g->n_kv; i++) {
        const struct gguf_kv *kv = &r->g->kv[i];
        hash_bytes(&h, kv->key, strlen(kv->key) + 1);
        hash_u64(&h, kv->type);
        hash_u64(&h, kv->bytes);
        hash_bytes(&h, kv->data, kv->bytes);
    }
    for (uint64_t i = 0; i < r->g->n_tensors; i++) {
        const struct gguf_tensor *t = &r->g->tensor[i];
        hash_bytes(&h, t->name, strlen(t->name) + 1);
        hash_u64(&h, t->type);
        for (int j = 0; j < GGUF_MAX_DIMS; j++) hash_u64(&h, (uint64_t)t->ne[j]);
        hash_sample(&h, t->data, t->bytes);
    }
    for (int i = 0; i < 8; i++) {
        r->d->identity[i] = (uint8_t)(h.a >> 8 * i);
        r->d->identity[8 + i] = (uint8_t)(h.b >> 8 * i);
    }
}

/* ---- Qwen3 ---- */

static int read_qwen3(struct reader *r)
{
    static const char *const none[] = {NULL};
    struct desc *d = r->d;
    d->arch = DESC_QWEN3;
    d->arch_name = "qwen3";
    d->dialect = "";
    d->has_embedding_scale = true;
    d->embedding_scale = 1;
    if (refuse_unknown_keys(r, stack_keys, none) || read_sizes(r) || read_rope(r) || read_windows(r))
        return -1;
    for (int i = 0; i < d->n_layer; i++) d->layer[i].causal = true;
    if (dim(r, "token_embd.weight", 1, &d->n_vocab) ||
        expect(r, d->n_embd, d->n_vocab, "token_embd.weight") ||
        agree_i32(r, "vocab_size", d->n_vocab, "token_embd.weight"))
        return -1;
    d->tied_head = !gguf_tensor(r->g, "output.weight");
    if (!d->tied_head && expect(r, d->n_embd, d->n_vocab, "output.weight")) return -1;
    return expect_stack(r);
}

/* ---- DFlash drafters ---- */

/* How a dialect spells what the dialects disagree about. A dialect is recognised by its architecture and its
 * taps key. */
struct dialect {
    const char *name, *arch, *taps_key;
    int taps_shift;       /* stored id - zero-based block whose output is tapped */
    const char *mask_key; /* whole key */
    const char *fc, *hidden_norm;
};
static const struct dialect dialects[] = {
    {"upstream", "dflash", "dflash.target_layers", 1, "tokenizer.ggml.mask_token_id", "fc.weight",
     "enc.output_norm.weight"},
};

static const char *const drafter_keys[] = {
    "block_size",      "target_layers",           "attention.causal",        "attention.causal_pattern",
    "embedding_scale", "final_logit_softcapping", "rope.dimension_sections", NULL};

static int find_dialect(struct reader *r, const struct dialect **out)
{
    /* A branch of upstream writes the same taps key unshifted, and this one beside it. */
    const struct gguf_kv *odd = gguf_find(r->g, "dflash.target_hidden_size");
    for (size_t i = 0; i < sizeof dialects / sizeof dialects[0] && !odd; i++)
        if (gguf_str_is(r->arch, dialects[i].arch) && gguf_find(r->g, dialects[i].taps_key)) {
            *out = &dialects[i];
            return 0;
        }
    for (uint64_t i = 0; i < r->g->n_kv && !odd; i++)
        if (strstr(r->g->kv[i].key, "target_layer")) odd = &r->g->kv[i];
    return fail(
        r,
        "drafter dialect not supported (expected architecture dflash with the key dflash.target_layers, got "
        "architecture %.*s %s %s)",
        (int)(r->arch.n < 63 ? r->arch.n : 63), r->arch.s, odd ? "with" : "and",
        odd ? odd->key : "no key that lists target layers");
}

static int read_taps(struct reader *r, const struct dialect *x)
{
    struct desc *d = r->d;
    const struct gguf_kv *kv = gguf_find(r->g, x->taps_key);
    char text[96];
    value_text(kv, text, sizeof text);
    if (kv->type != GGUF_ARRAY || (kv->elem != GGUF_I32 && kv->elem != GGUF_U32) || !kv->count ||
        kv->count > DESC_MAX_TAPS)
        return fail(r, "key '%s': has the wrong type (expected 1 to %d of i32, got %s)", kv->key,
                    DESC_MAX_TAPS, text);
    d->n_taps = (int32_t)kv->count;
    for (int i = 0; i < d->n_taps; i++) {
        int64_t id = gguf_array_i64(kv, (uint64_t)i) - x->taps_shift;
        if (id < 0 || id >= DESC_MAX_LAYERS)
            return fail(r, "key '%s': element %d out of range (expected %d to %d, got %" PRId64 ")", kv->key,
                        i, x->taps_shift, DESC_MAX_LAYERS - 1 + x->taps_shift, id + x->taps_shift);
        d->taps[i] = (int32_t)id;
    }
    return 0;
}

/* Which layers are causal inside the block: our own key a layer; else one flag for all; else what the
 * reference infers: sliding layers are, full ones are not. */
static int read_causal(struct reader *r, const struct desc_override *o)
{
    struct desc *d = r->d;
    const struct gguf_kv *kv = gguf_find(r->g, "dflash.attention.causal_pattern");
    bool all = false;
    int rc = gguf_get_bool(r->g, "dflash.attention.causal", &all, r->e);
    if (rc < 0) return -1;
    if (kv && (kv->type != GGUF_ARRAY || kv->elem != GGUF_BOOL || kv->count != (uint64_t)d->n_layer)) {
        char text[96];
        value_text(kv, text, sizeof text);
        return fail(r, "key '%s': has the wrong type (expected bool[%d], got %s)", kv->key, d->n_layer, text);
    }
    d->causal_inferred = !kv && rc > 0;
    for (int i = 0; i < d->n_layer; i++)
        d->layer[i].causal = kv        ? gguf_array_i64(kv, (uint64_t)i) != 0
                             : rc == 0 ? all
                                       : d->layer[i].window > 0;
    if (o && o->draft_causal >= 0) {
        d->causal_inferred = false;
        for (int i = 0; i < d->n_layer; i++) d->layer[i].causal = o->draft_causal != 0;
    }
    return 0;
}

static int read_scalars(struct reader *r)
{
    struct desc *d = r->d;
    int scale = gguf_get_f32(r->g, "dflash.embedding_scale", &d->embedding_scale, r->e);
    int cap = scale < 0 ? -1 : gguf_get_f32(r->g, "dflash.final_logit_softcapping", &d->softcap, r->e);
    if (scale < 0 || cap < 0) return -1;
    d->has_embedding_scale = scale == 0;
    d->has_softcap = cap == 0;
    if (d->has_embedding_scale && (!isfinite(d->embedding_scale) || d->embedding_scale <= 0))
        return fail(r, "key 'dflash.embedding_scale': out of range (expected above 0, got %g)",
                    d->embedding_scale);
    if (d->has_softcap && (!isfinite(d->softcap) || d->softcap < 0))
        return fail(r, "key 'dflash.final_logit_softcapping': out of range (expected 0 or more, got %g)",
                    d->softcap);
    return 0;
}

/* M-RoPE targets leave [head_dim/2, 0, 0, 0] here, which is plain rope; anything else is not. */
static int check_sections(struct reader *r)
{
    const struct gguf_kv *kv = gguf_find(r->g, "dflash.rope.dimension_sections");
    if (!kv) return 0;
    bool plain = kv->type == GGUF_ARRAY && (kv->elem == GGUF_I32 || kv->elem == GGUF_U32) && kv->count >= 1 &&
                 gguf_array_i64(kv, 0) == r->d->head_dim / 2;
    for (uint64_t i = 1; plain && i < kv->count; i++) plain = gguf_array_i64(kv, i) == 0;
    return plain ? 0
                 : fail(r, "key '%s': rope in sections is not supported (expected [%d, 0, ...])", kv->key,
                        r->d->head_dim / 2);
}

static int read_own_vocabulary(struct reader *r)
{
    struct desc *d = r->d;
    static const char *const name[] = {"token_embd.weight", "output.weight"};
    for (int i = 0; i < 2; i++) {
        if (!gguf_tensor(r->g, name[i])) continue;
        if (!d->n_vocab && dim(r, name[i], 1, &d->n_vocab)) return -1;
        if (expect(r, d->n_embd, d->n_vocab, "%s", name[i])) return -1;
    }
    int32_t v = 0;
    int rc = maybe_i32(r, "vocab_size", 1, INT32_MAX, &v);
    if (rc == 0 && d->n_vocab && v != d->n_vocab)
        return fail(r, "key 'dflash.vocab_size': disagrees with the tensors (expected %d, got %d)",
                    d->n_vocab, v);
    if (rc == 0) d->n_vocab = v;
    return rc < 0 ? -1 : 0;
}

static int read_dflash(struct reader *r, const struct desc_override *o)
{
    struct desc *d = r->d;
    const struct dialect *x;
    d->arch = DESC_DFLASH;
    if (find_dialect(r, &x)) return -1;
    d->arch_name = x->arch;
    d->dialect = x->name;
    d->fc_name = x->fc;
    d->hidden_norm_name = x->hidden_norm;
    if (refuse_unknown_keys(r, stack_keys, drafter_keys) || read_sizes(r) || read_rope(r) ||
        check_sections(r) || read_windows(r) || read_causal(r, o) || read_scalars(r) || read_taps(r, x) ||
        read_own_vocabulary(r))
        return -1;
    if (need_i32(r, "block_size", 2, 64, &d->block_size)) return -1;
    int rc = gguf_get_i32(r->g, x->mask_key, &d->mask_id, r->e);
    if (rc) return rc > 0 ? missing(r, x->mask_key, "the id of the mask token") : -1;
    if (d->mask_id < 0)
        return fail(r, "key '%s': out of range (expected 0 or more, got %d)", x->mask_key, d->mask_id);
    if (dim(r, x->fc, 0, &d->n_features)) return -1;
    if (d->n_features % d->n_taps)
        return fail(r, "tensor '%s': its width %d is no multiple of the %d taps of %s", x->fc, d->n_features,
                    d->n_taps, x->taps_key);
    if (expect(r, d->n_features, d->n_embd, "%s", x->fc) || expect(r, d->n_embd, 0, "%s", x->hidden_norm))
        return -1;
    return expect_stack(r);
}

/* ---- entry points ---- */

static int read_any(struct reader *r, const struct desc_override *o)
{
    struct gguf_str name;
    int rc = gguf_get_str(r->g, "general.architecture", &r->arch, r->e);
    if (rc) return rc > 0 ? missing(r, "general.architecture", "qwen3 or dflash") : -1;
    if (gguf_get_str(r->g, "general.name", &name, r->e) < 0) return -1;
    if (gguf_find(r->g, "general.name"))
        snprintf(r->d->name, sizeof r->d->name, "%.*s", (int)(name.n < 127 ? name.n : 127), name.s);
    if (gguf_str_is(r->arch, "qwen3")) return read_qwen3(r);
    for (size_t i = 0; i + 6 <= r->arch.n; i++)
        if (!memcmp(r->arch.s + i, "dflash", 6)) return read_dflash(r, o);
    return fail(r, "key 'general.architecture': is not supported (expected qwen3 or dflash, got %.*s)",
                (int)(r->arch.n < 63 ? r->arch.n : 63), r->arch.s);
}

int desc_read(struct desc **out, const struct gguf *g, const struct desc_override *o, struct err *e)
{
    struct reader r = {.g = g, .e = e};
    int rc = -1;
    *out = NULL;
    r.d = mem_calloc(1, sizeof *r.d);
    r.seen = mem_calloc(g->n_tensors + 1, sizeof *r.seen);
    if (!r.d || !r.seen) {
        err_set(e, ERR_IO, "out of memory (a model description)");
        goto out;
    }
    r.d->bos_id = r.d->eos_id = r.d->mask_id = -1;
    if (read_any(&r, o) || read_tokenizer(&r) || refuse_unknown_tensors(&r)) goto out;
    read_identity(&r);
    *out = r.d;
    r.d = NULL;
    rc = 0;
out:
    mem_free(r.seen);
    desc_free(r.d);
    return rc;
}

void desc_free(struct desc *d)
{
    mem_free(d);
}

int desc_pair(const struct desc *t, const struct desc *d, struct err *e)
{
    if (t->arch == DESC_DFLASH)
        return err_set(e, ERR_FORMAT, "target: is a drafter (expected a target architecture, got %s)",
                       t->arch_name);
    if (d->arch != DESC_DFLASH)
        return err_set(e, ERR_FORMAT, "drafter: is a target (expected architecture dflash, got %s)",
                       d->arch_name);
    if ((int64_t)t->n_embd * d->n_taps != d->n_features)
        return err_set(e, ERR_FORMAT,
                       "drafter: width of fc (expected %d taps x %d of the target's hidden size = %" PRId64
                       ", got %d)",
                       d->n_taps, t->n_embd, (int64_t)t->n_embd * d->n_taps, d->n_features);
    for (int i = 0; i < d->n_taps; i++)
        if (d->taps[i] >= t->n_layer)
            return err_set(e, ERR_FORMAT,
                           "drafter: tap %d out of range (expected a block of the target, 0 to %d, got %d)",
                           i, t->n_layer - 1, d->taps[i]);
    if (d->n_embd != t->n_embd)
        return err_set(
            e, ERR_FORMAT,
            "drafter: hidden size (expected the target's %d, whose embedding and head it borrows, got %d)",
            t->n_embd, d->n_embd);
    if (d->n_vocab && d->n_vocab != t->n_vocab)
        return err_set(e, ERR_FORMAT, "drafter: vocabulary (expected the target's %d, got %d)", t->n_vocab,
                       d->n_vocab);
    if (d->mask_id >= t->n_vocab)
        return err_set(e, ERR_FORMAT,
                       "drafter: mask id out of the target's vocabulary (expected 0 to %d, got %d)",
                       t->n_vocab - 1, d->mask_id);
    if (t->has_tokenizer && d->has_tokenizer && t->n_tokens != d->n_tokens)
        return err_set(e, ERR_FORMAT, "drafter: tokenizer (expected the target's %d tokens, got %d)",
                       t->n_tokens, d->n_tokens);
    return 0;
}
