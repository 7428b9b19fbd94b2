/* desc.c - read a description from a GGUF and check it whole: the family's part, then what all files have.
 *
 * The rule of these files: every key below the architecture's prefix and every tensor must be known. A key
 * that is not could change the forward pass, and a model that runs with the wrong one still writes text. */
#include "desc.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <zlib.h>
#include "desc_impl.h"
#include "../file/imatrix.h"
#include "dialect.h"
#include "../base/mem.h"
#include "../base/text.h"

static const struct desc_family *const families[] = {&desc_qwen3,     &desc_qwen3moe,  &desc_qwen35,
                                                     &desc_qwen35moe, &desc_llama,     &desc_gemma4,
                                                     &desc_dflash,    &desc_assistant, &desc_assistant_old};

const char *desc_arch_names(void)
{
    return "qwen3, qwen3moe, qwen35, qwen35moe, llama, gemma4 or dflash";
}

const struct desc_layer *desc_attention(const struct desc *d)
{
    for (int32_t i = 0; i < d->n_layer; i++)
        if (!d->layer[i].recurrent) return &d->layer[i];
    return d->layer;
}

/* ---- the tokenizer's part ---- */

static int read_id(struct desc_reader *r, const char *key, int32_t *id)
{
    *id = -1;
    int rc = gguf_get_i32(r->g, key, id, r->e);
    if (rc == 0 && (*id < 0 || (r->d->n_vocab && *id >= r->d->n_vocab)))
        return desc_fail(r, "key '%s': out of range (expected 0 to %d, got %d)", key, r->d->n_vocab - 1, *id);
    return rc < 0 ? -1 : 0;
}

static int add_stop(struct desc_reader *r, const char *key, int64_t id)
{
    struct desc *d = r->d;
    if (id < 0 || id > INT32_MAX || (d->n_vocab && id >= d->n_vocab))
        return desc_fail(r, "key '%s': id out of range (expected 0 to %d, got %" PRId64 ")", key,
                         d->n_vocab - 1, id);
    for (int i = 0; i < d->n_stops; i++)
        if (d->stops[i] == id) return 0;
    if (d->n_stops == DESC_MAX_STOPS)
        return desc_fail(r, "key '%s': too many stop ids (expected at most %d)", key, DESC_MAX_STOPS);
    d->stops[d->n_stops++] = (int32_t)id;
    return 0;
}

/* What the keys leave out: most files name one end, and a turn has another. */
static void add_ends(struct desc_reader *r)
{
    struct desc *d = r->d;
    int32_t ids[ENDS_MAX];
    const int32_t n = ends_find(r->g, ids);
    for (int32_t i = 0; i < n; i++) {
        int j = 0;
        while (j < d->n_stops && d->stops[j] != ids[i]) j++;
        if (j == d->n_stops) d->stops[d->n_stops++] = ids[i];
    }
}

static uint32_t crc_strings(uint32_t crc, const struct gguf_kv *kv)
{
    for (uint64_t i = 0; kv && kv->strings && i < kv->count; i++) {
        crc = (uint32_t)crc32_z(crc, (const Bytef *)kv->strings[i].s, kv->strings[i].n);
        crc = (uint32_t)crc32(crc, (const Bytef *)"", 1); /* so that a border counts */
    }
    return crc;
}

static int read_tokenizer(struct desc_reader *r)
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
        if (!desc_drafts(d) && d->n_tokens > d->n_vocab)
            return desc_fail(
                r, "key 'tokenizer.ggml.tokens': is longer than the embedding (expected %d, got %d)",
                d->n_vocab, d->n_tokens);
    }
    if (read_id(r, "tokenizer.ggml.bos_token_id", &d->bos_id) || read_id(r, single[0], &d->eos_id)) return -1;
    for (int i = 0; i < 2; i++)
        if (read_id(r, single[i], &id) || (id >= 0 && add_stop(r, single[i], id))) return -1;
    if (list && (list->type != GGUF_ARRAY || (list->elem != GGUF_I32 && list->elem != GGUF_U32)))
        return desc_fail(r, "key '%s': has the wrong type (expected an array of i32, got %s)", list->key,
                         gguf_type_name(list->type == GGUF_ARRAY ? list->elem : list->type));
    for (uint64_t i = 0; list && i < list->count; i++)
        if (add_stop(r, list->key, gguf_array_i64(list, i))) return -1;
    d->n_stops_said = d->n_stops;
    if (!desc_drafts(d)) add_ends(r);
    return gguf_get_bool(r->g, "tokenizer.ggml.add_bos_token", &d->add_bos, r->e) < 0 ? -1 : 0;
}

/* ---- which target ---- */

bool desc_norm_crc(const struct gguf *g, uint32_t *crc)
{
    const struct gguf_tensor *t = gguf_tensor(g, "output_norm.weight");
    if (!t || t->type != KN_F32) return false;
    *crc = (uint32_t)crc32_z(0, t->data, (size_t)t->bytes);
    return true;
}

bool desc_other_target(const struct desc *t, const struct desc *d)
{
    return t->has_norm_crc && d->has_norm_crc && t->norm_crc != d->norm_crc;
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

/* Flags that change what a drafter's context is made of make it another drafter: a state that was made
 * without them does not go with it. */
static void hash_override(struct hash *h, const struct desc_override *o)
{
    uint32_t theta;
    if (!o ||
        (!o->n_taps && !o->has_tap_shift && o->rope_theta == 0 && !o->sliding_window && !o->sliding_pattern))
        return;
    memcpy(&theta, &o->rope_theta, sizeof theta);
    hash_bytes(h, "flags", 6);
    hash_u64(h, (uint64_t)o->n_taps);
    for (int i = 0; i < o->n_taps; i++) hash_u64(h, (uint64_t)o->taps[i]);
    hash_u64(h, o->has_tap_shift ? (uint64_t)o->tap_shift + 1 : 0);
    hash_u64(h, theta);
    hash_u64(h, (uint64_t)o->sliding_window);
    if (o->sliding_pattern) hash_bytes(h, o->sliding_pattern, strlen(o->sliding_pattern));
}

static void read_identity(struct desc_reader *r)
{
    struct hash h = {0xcbf29ce484222325u, 0x84222325cbf29ce4u};
    hash_override(&h, r->o);
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

/* ---- entry points ---- */

const char *desc_override_given(const struct desc_override *o)
{
    return !o                     ? NULL
           : o->dialect           ? o->flag && !strcmp(o->flag, "--") ? "from-dialect" : "dialect"
           : o->n_taps > 0        ? "taps"
           : o->has_tap_shift     ? "tap-shift"
           : o->has_mask_id       ? "mask-id"
           : o->block_size > 0    ? "block-size"
           : o->rope_theta > 0    ? "rope-theta"
           : o->sliding_window    ? "sliding-window"
           : o->sliding_pattern   ? "sliding-pattern"
           : o->draft_causal >= 0 ? "causal"
                                  : NULL;
}

static int refuse_unknown_tensors(struct desc_reader *r)
{
    for (uint64_t i = 0; i < r->g->n_tensors; i++) {
        const struct gguf_tensor *t = &r->g->tensor[i];
        char shape[100];
        size_t used = 0;
        if (r->seen[i]) continue;
        for (uint32_t j = 0; j < t->n_dims && used < sizeof shape; j++)
            used +=
                (size_t)snprintf(shape + used, sizeof shape - used, "%s%" PRId64, j ? ", " : "", t->ne[j]);
        return desc_fail(r, "tensor '%s': is not part of a %s model (expected no such tensor, got [%s])",
                         t->name, r->d->arch_name, shape);
    }
    return 0;
}

static const struct desc_family *find_family(const struct desc_reader *r)
{
    const bool mtp =
        desc_mtp_apart(r->g, r->arch) || (r->o && r->o->drafter && desc_mtp_there(r->g, r->arch));
    if (mtp) return gguf_str_is(r->arch, desc_qwen35_mtp.name) ? &desc_qwen35_mtp : &desc_qwen35moe_mtp;
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++)
        if (gguf_str_is(r->arch, families[i]->name)) return families[i];
    return dialect_is_drafter(r->arch) ? &desc_dflash : NULL;
}

bool desc_vocabulary_only(const struct gguf *g)
{
    return !g->n_tensors && gguf_find(g, "tokenizer.ggml.tokens");
}

static int read_any(struct desc_reader *r)
{
    struct desc *d = r->d;
    struct gguf_str name;
    int rc = gguf_get_str(r->g, "general.architecture", &r->arch, r->e);
    if (rc > 0) {
        desc_missing(r, "general.architecture", desc_arch_names());
        return imatrix_is(r->g)
                   ? err_hint(r->e, "this is an importance matrix: dflash-quantize --imatrix reads it")
                   : -1;
    }
    if (rc) return -1;
    if (gguf_get_str(r->g, "general.name", &name, r->e) < 0) return -1;
    if (gguf_find(r->g, "general.name"))
        snprintf(d->name, sizeof d->name, "%.*s", (int)(name.n < 127 ? name.n : 127), name.s);
    text_printable(d->name);
    if (desc_vocabulary_only(r->g))
        return desc_fail(r, "is a vocabulary alone, without a model (expected tensors, got none)");
    const struct desc_family *f = find_family(r);
    if (!f && desc_stranger(r->arch))
        return desc_fail(r, "architecture %.*s: %s: running it is not supported", (int)r->arch.n, r->arch.s,
                         desc_stranger(r->arch));
    if (!f)
        return desc_fail(r, "key 'general.architecture': is not supported (expected %s, got %.*s)",
                         desc_arch_names(), (int)(r->arch.n < 63 ? r->arch.n : 63), r->arch.s);
    d->arch = f->arch;
    d->arch_name = f->name;
    d->dialect = "";
    d->has_embedding_scale = true;
    d->embedding_scale = 1;
    return f->read(r);
}

/* Flags for drafters of another kind, or for none: nothing is passed over. */
static int refuse_flags(struct desc_reader *r)
{
    struct desc_override o = r->o ? *r->o : (struct desc_override){.draft_causal = -1};
    if (r->d->arch == DESC_DFLASH) return 0;
    if (r->d->arch == DESC_QWEN35_MTP || r->d->arch == DESC_GEMMA4_ASSISTANT) o.block_size = 0;
    if (!desc_override_given(&o)) return 0;
    return err_set(r->e, ERR_USAGE, "%s: %s%s is for %s, this is %s%s",
                   r->g->map.path ? r->g->map.path : "model", o.flag ? o.flag : "--draft-",
                   desc_override_given(&o), desc_drafts(r->d) ? "DFlash drafters" : "drafters",
                   desc_drafts(r->d) ? "an " : "a ",
                   r->d->arch == DESC_QWEN35_MTP ? "MTP block"
                   : desc_drafts(r->d)           ? "assistant"
                                                 : r->d->arch_name);
}

int desc_read(struct desc **out, const struct gguf *g, const struct desc_override *o, struct err *e)
{
    struct desc_reader r = {.g = g, .o = o, .e = e};
    int rc = -1;
    *out = NULL;
    r.d = mem_calloc(1, sizeof *r.d);
    r.seen = mem_calloc(g->n_tensors + 1, sizeof *r.seen);
    if (!r.d || !r.seen) {
        err_set(e, ERR_IO, "out of memory (a model description)");
        goto out;
    }
    r.d->bos_id = r.d->eos_id = r.d->mask_id = -1;
    if (read_any(&r)) goto out;
    if (refuse_flags(&r)) goto out;
    if (read_tokenizer(&r) || refuse_unknown_tensors(&r)) goto out;
    if (r.d->arch != DESC_DFLASH && r.d->arch != DESC_GEMMA4_ASSISTANT)
        r.d->has_norm_crc = desc_norm_crc(g, &r.d->norm_crc);
    if (!r.d->block_most) r.d->block_most = desc_cycle_rows(r.d);
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

/* An MTP block reads what its target writes: the hidden state after the final norm, tokens by the target's
 * embedding, and the head. */
static int pair_mtp(const struct desc *t, const struct desc *d, struct err *e)
{
    if (strcmp(t->arch_name, d->arch_name))
        return err_set(e, ERR_FORMAT,
                       "drafter: is the MTP block of another architecture (expected %s, got %s)",
                       t->arch_name, d->arch_name);
    if (d->n_embd != t->n_embd)
        return err_set(
            e, ERR_FORMAT,
            "drafter: hidden size (expected the target's %d, whose last hidden state, embedding and "
            "head it reads, got %d)",
            t->n_embd, d->n_embd);
    if (d->n_vocab && d->n_vocab != t->n_vocab)
        return err_set(e, ERR_FORMAT, "drafter: vocabulary (expected the target's %d, got %d)", t->n_vocab,
                       d->n_vocab);
    if (t->has_tokenizer && d->has_tokenizer && t->n_tokens != d->n_tokens)
        return err_set(e, ERR_FORMAT, "drafter: tokenizer (expected the target's %d tokens, got %d)",
                       t->n_tokens, d->n_tokens);
    return 0;
}

int32_t desc_donor(const struct desc *t, const struct desc_layer *y)
{
    for (int32_t i = t->n_layer - 1; i >= 0; i--)
        if (!t->layer[i].recurrent && (t->layer[i].window > 0) == (y->window > 0)) return i;
    return -1;
}

/* An assistant's layer reads what a layer of the target left: the same heads, the same window. */
static int pair_donor(const struct desc *t, const struct desc *d, int32_t i, struct err *e)
{
    const struct desc_layer *y = &d->layer[i], *from;
    const int32_t donor = desc_donor(t, y);
    if (donor < 0)
        return err_set(e, ERR_FORMAT, "drafter: layer %d: no layer of the target to read (expected a %s one)",
                       i, y->window ? "sliding" : "full");
    from = &t->layer[donor];
    if (y->head_dim != from->head_dim || y->n_head % from->n_head_kv)
        return err_set(e, ERR_FORMAT,
                       "drafter: layer %d: heads (expected some of the size of the target's layer %d, %d, a "
                       "multiple of its %d key heads, got %d of %d)",
                       i, donor, from->head_dim, from->n_head_kv, y->n_head, y->head_dim);
    if (y->window != from->window)
        return err_set(e, ERR_FORMAT,
                       "drafter: layer %d: window (expected that of the target's layer %d, %d, "
                       "got %d)",
                       i, donor, from->window, y->window);
    return 0;
}

static int pair_assistant(const struct desc *t, const struct desc *d, struct err *e)
{
    if (t->arch != DESC_GEMMA4)
        return err_set(e, ERR_FORMAT,
                       "drafter: is an assistant of Gemma 4 (expected a target of gemma4, got %s)",
                       t->arch_name);
    if (d->n_embd_target != t->n_embd)
        return err_set(e, ERR_FORMAT, "drafter: hidden size that it reads (expected the target's %d, got %d)",
                       t->n_embd, d->n_embd_target);
    if (d->n_vocab != t->n_vocab)
        return err_set(e, ERR_FORMAT, "drafter: vocabulary (expected the target's %d, got %d)", t->n_vocab,
                       d->n_vocab);
    if (t->has_tokenizer && d->has_tokenizer && t->n_tokens != d->n_tokens)
        return err_set(e, ERR_FORMAT, "drafter: tokenizer (expected the target's %d tokens, got %d)",
                       t->n_tokens, d->n_tokens);
    for (int32_t i = 0; i < d->n_layer; i++)
        if (pair_donor(t, d, i, e)) return -1;
    return 0;
}

int desc_pair(const struct desc *t, const struct desc *d, struct err *e)
{
    if (desc_drafts(t))
        return err_set(e, ERR_FORMAT, "target: is a drafter (expected a target architecture, got %s)",
                       t->arch_name);
    if (d->arch == DESC_QWEN35_MTP) return pair_mtp(t, d, e);
    if (d->arch == DESC_GEMMA4_ASSISTANT) return pair_assistant(t, d, e);
    if (d->arch != DESC_DFLASH)
        return err_set(e, ERR_FORMAT, "drafter: is a target (expected the architecture of a drafter, got %s)",
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
    if (desc_tap_twice(d->taps, d->n_taps, t->n_layer) >= 0)
        return err_set(e, ERR_FORMAT,
                       "drafter: a block is tapped twice (expected different ones, got %d more than once)",
                       desc_tap_twice(d->taps, d->n_taps, t->n_layer));
    if (d->n_embd != t->n_embd)
        return err_set(
            e, ERR_FORMAT,
            "drafter: hidden size (expected the target's %d, whose embedding and head it borrows, got %d)",
            t->n_embd, d->n_embd);
    if (d->n_vocab && d->n_vocab != t->n_vocab) {
        err_set(e, ERR_FORMAT, "drafter: vocabulary (expected the target's %d, got %d)", t->n_vocab,
                d->n_vocab);
        return d->n_vocab < t->n_vocab && !d->n_vocab_draft ? err_hint(e, DESC_REDUCED_HINT) : -1;
    }
    if (d->n_vocab_draft && d->d2t_top >= t->n_vocab)
        return err_set(e, ERR_FORMAT,
                       "drafter: d2t names an id out of the target's vocabulary (expected 0 to %d, got %d)",
                       t->n_vocab - 1, d->d2t_top);
    if (d->mask_id >= t->n_vocab)
        return err_set(e, ERR_FORMAT,
                       "drafter: mask id out of the target's vocabulary (expected 0 to %d, got %d)",
                       t->n_vocab - 1, d->mask_id);
    if (t->has_tokenizer && d->has_tokenizer && t->n_tokens != d->n_tokens)
        return err_set(e, ERR_FORMAT, "drafter: tokenizer (expected the target's %d tokens, got %d)",
                       t->n_tokens, d->n_tokens);
    return 0;
}

int32_t desc_draft_reach(const struct desc *d)
{
    int32_t window = 0;
    bool full = false;
    if (d->arch != DESC_DFLASH) return 0;
    for (int i = 0; i < d->n_layer; i++) {
        full |= !d->layer[i].window;
        if (d->layer[i].window > window) window = d->layer[i].window;
    }
    /* A block sees itself whole. */
    return full && window && window <= INT32_MAX / 3 && 3 * window >= d->block_most ? 3 * window : 0;
}
