/* desc_dflash.c - DFlash drafters, whatever dialect spells their parts. */
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include "desc_impl.h"

static const struct desc_expect tensors[] = {
    {"output_norm.weight", {NE_EMBD}, 0},
    {"blk.%d.attn_norm.weight", {NE_EMBD}, 0},
    {"blk.%d.attn_q.weight", {NE_EMBD, NE_Q}, 0},
    {"blk.%d.attn_k.weight", {NE_EMBD, NE_KV}, 0},
    {"blk.%d.attn_v.weight", {NE_EMBD, NE_KV}, 0},
    {"blk.%d.attn_output.weight", {NE_Q, NE_EMBD}, 0},
    {"blk.%d.attn_q_norm.weight", {NE_HEAD}, 0},
    {"blk.%d.attn_k_norm.weight", {NE_HEAD}, 0},
    {"blk.%d.ffn_norm.weight", {NE_EMBD}, 0},
    {"blk.%d.ffn_gate.weight", {NE_EMBD, NE_FF}, 0},
    {"blk.%d.ffn_up.weight", {NE_EMBD, NE_FF}, 0},
    {"blk.%d.ffn_down.weight", {NE_FF, NE_EMBD}, 0},
    {0},
};

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

static const char *const drafter_keys[] = {"block_size",
                                           "target_layers",
                                           "attention.causal",
                                           "attention.causal_pattern",
                                           "embedding_scale",
                                           "final_logit_softcapping",
                                           "rope.dimension_sections",
                                           "attention.sliding_window",
                                           "attention.sliding_window_pattern",
                                           NULL};

static int find_dialect(struct desc_reader *r, const struct dialect **out)
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
    return desc_fail(
        r,
        "drafter dialect not supported (expected architecture dflash with the key dflash.target_layers, got "
        "architecture %.*s %s %s)",
        (int)(r->arch.n < 63 ? r->arch.n : 63), r->arch.s, odd ? "with" : "and",
        odd ? odd->key : "no key that lists target layers");
}

static int read_taps(struct desc_reader *r, const struct dialect *x)
{
    struct desc *d = r->d;
    const struct gguf_kv *kv = gguf_find(r->g, x->taps_key);
    char text[96];
    desc_value_text(kv, text, sizeof text);
    if (kv->type != GGUF_ARRAY || (kv->elem != GGUF_I32 && kv->elem != GGUF_U32) || !kv->count ||
        kv->count > DESC_MAX_TAPS)
        return desc_fail(r, "key '%s': has the wrong type (expected 1 to %d of i32, got %s)", kv->key,
                         DESC_MAX_TAPS, text);
    d->n_taps = (int32_t)kv->count;
    for (int i = 0; i < d->n_taps; i++) {
        int64_t id = gguf_array_i64(kv, (uint64_t)i) - x->taps_shift;
        if (id < 0 || id >= DESC_MAX_LAYERS)
            return desc_fail(r, "key '%s': element %d out of range (expected %d to %d, got %" PRId64 ")",
                             kv->key, i, x->taps_shift, DESC_MAX_LAYERS - 1 + x->taps_shift,
                             id + x->taps_shift);
        d->taps[i] = (int32_t)id;
    }
    return 0;
}

/* Which layers are causal inside the block: our own key a layer; else one flag for all; else what the
 * reference infers: sliding layers are, full ones are not. */
static int read_causal(struct desc_reader *r)
{
    const struct desc_override *o = r->o;
    struct desc *d = r->d;
    const struct gguf_kv *kv = gguf_find(r->g, "dflash.attention.causal_pattern");
    bool all = false;
    int rc = gguf_get_bool(r->g, "dflash.attention.causal", &all, r->e);
    if (rc < 0) return -1;
    if (kv && (kv->type != GGUF_ARRAY || kv->elem != GGUF_BOOL || kv->count != (uint64_t)d->n_layer)) {
        char text[96];
        desc_value_text(kv, text, sizeof text);
        return desc_fail(r, "key '%s': has the wrong type (expected bool[%d], got %s)", kv->key, d->n_layer,
                         text);
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

static int read_scalars(struct desc_reader *r)
{
    struct desc *d = r->d;
    int scale = gguf_get_f32(r->g, "dflash.embedding_scale", &d->embedding_scale, r->e);
    int cap = scale < 0 ? -1 : gguf_get_f32(r->g, "dflash.final_logit_softcapping", &d->softcap, r->e);
    if (scale < 0 || cap < 0) return -1;
    d->has_embedding_scale = scale == 0;
    d->has_softcap = cap == 0;
    if (d->has_embedding_scale && (!isfinite(d->embedding_scale) || d->embedding_scale <= 0))
        return desc_fail(r, "key 'dflash.embedding_scale': out of range (expected above 0, got %g)",
                         d->embedding_scale);
    if (d->has_softcap && (!isfinite(d->softcap) || d->softcap < 0))
        return desc_fail(r, "key 'dflash.final_logit_softcapping': out of range (expected 0 or more, got %g)",
                         d->softcap);
    return 0;
}

/* M-RoPE targets leave [head_dim/2, 0, 0, 0] here, which is plain rope; anything else is not. */
static int check_sections(struct desc_reader *r)
{
    const struct gguf_kv *kv = gguf_find(r->g, "dflash.rope.dimension_sections");
    if (!kv) return 0;
    bool plain = kv->type == GGUF_ARRAY && (kv->elem == GGUF_I32 || kv->elem == GGUF_U32) && kv->count >= 1 &&
                 gguf_array_i64(kv, 0) == r->d->layer[0].head_dim / 2;
    for (uint64_t i = 1; plain && i < kv->count; i++) plain = gguf_array_i64(kv, i) == 0;
    return plain ? 0
                 : desc_fail(r, "key '%s': rope in sections is not supported (expected [%d, 0, ...])",
                             kv->key, r->d->layer[0].head_dim / 2);
}

static int read_own_vocabulary(struct desc_reader *r)
{
    struct desc *d = r->d;
    static const char *const name[] = {"token_embd.weight", "output.weight"};
    for (int i = 0; i < 2; i++) {
        if (!gguf_tensor(r->g, name[i])) continue;
        if (!d->n_vocab && desc_dim(r, name[i], 1, &d->n_vocab)) return -1;
        const int64_t ne[3] = {d->n_embd, d->n_vocab, 0};
        if (desc_shape(r, ne, name[i])) return -1;
    }
    int32_t v = 0;
    int rc = desc_maybe_i32(r, "vocab_size", 1, INT32_MAX, &v);
    if (rc == 0 && d->n_vocab && v != d->n_vocab)
        return desc_fail(r, "key 'dflash.vocab_size': disagrees with the tensors (expected %d, got %d)",
                         d->n_vocab, v);
    if (rc == 0) d->n_vocab = v;
    return rc < 0 ? -1 : 0;
}

static int read_dflash(struct desc_reader *r)
{
    struct desc *d = r->d;
    const struct dialect *x;
    if (find_dialect(r, &x)) return -1;
    d->arch_name = x->arch;
    d->dialect = x->name;
    d->fc_name = x->fc;
    d->hidden_norm_name = x->hidden_norm;
    if (desc_known_keys(r, desc_stack_keys, drafter_keys) || desc_base(r, false) || desc_heads(r) ||
        desc_dense(r) || desc_rope_plain(r) || check_sections(r) || desc_windows(r) || read_causal(r) ||
        read_scalars(r) || read_taps(r, x) || read_own_vocabulary(r))
        return -1;
    if (desc_need_i32(r, "block_size", 2, 64, &d->block_size)) return -1;
    int rc = gguf_get_i32(r->g, x->mask_key, &d->mask_id, r->e);
    if (rc) return rc > 0 ? desc_missing(r, x->mask_key, "the id of the mask token") : -1;
    if (d->mask_id < 0)
        return desc_fail(r, "key '%s': out of range (expected 0 or more, got %d)", x->mask_key, d->mask_id);
    if (desc_dim(r, x->fc, 0, &d->n_features)) return -1;
    if (d->n_features % d->n_taps)
        return desc_fail(r, "tensor '%s': its width %d is no multiple of the %d taps of %s", x->fc,
                         d->n_features, d->n_taps, x->taps_key);
    const int64_t fc[3] = {d->n_features, d->n_embd, 0}, norm[3] = {d->n_embd, 0, 0};
    if (desc_shape(r, fc, x->fc) || desc_shape(r, norm, x->hidden_norm)) return -1;
    return desc_expect_all(r, tensors);
}

const struct desc_family desc_dflash = {"dflash", DESC_DFLASH, read_dflash};
