/* desc_dflash.c - DFlash drafters, whatever dialect spells their parts. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "desc_impl.h"
#include "dialect.h"

static const struct desc_expect tensors[] = {
    {"output_norm.weight", {NE_EMBD}, 0},
    {"rope_freqs.weight", {NE_ROT}, ON_DIVISORS},
    {"blk.%d.attn_norm.weight", {NE_EMBD}, 0},
    {"blk.%d.attn_q.weight", {NE_EMBD, NE_Q}, 0},
    {"blk.%d.attn_k.weight", {NE_EMBD, NE_KV}, 0},
    {"blk.%d.attn_v.weight", {NE_EMBD, NE_KV}, ON_VALUES},
    {"blk.%d.attn_output.weight", {NE_Q, NE_EMBD}, 0},
    {"blk.%d.attn_q_norm.weight", {NE_HEAD}, 0},
    {"blk.%d.attn_k_norm.weight", {NE_HEAD}, 0},
    {"blk.%d.ffn_gate.weight", {NE_EMBD, NE_FF}, 0},
    {"blk.%d.ffn_up.weight", {NE_EMBD, NE_FF}, 0},
    {"blk.%d.ffn_down.weight", {NE_FF, NE_EMBD}, 0},
    {0},
};

static const char *flag(const struct desc_reader *r)
{
    return r->o && r->o->flag ? r->o->flag : "--draft-";
}

/* A part that is not in the file, but that a flag can give. */
static int absent(struct desc_reader *r, const char *key, const char *expected, const char *by)
{
    desc_missing(r, key, expected);
    return err_hint(r->e, "%s%s gives it", flag(r), by);
}

/* ---- keys ---- */

/* What every dialect may have, beside those that its row names. */
static const char *const drafter_keys[] = {"attention.causal",
                                           "attention.causal_pattern",
                                           "embedding_scale",
                                           "final_logit_softcapping",
                                           "logit_scale",
                                           "attention.scale",
                                           "hidden_activation",
                                           "hidden_act",
                                           "rope.dimension_sections",
                                           "attention.sliding_window",
                                           "attention.sliding_window_pattern",
                                           "tie_word_embeddings",
                                           DESC_NORM_KEY};
enum { N_DRAFTER_KEYS = sizeof drafter_keys / sizeof drafter_keys[0], MAX_KEYS = 128 };

/* Writers of A.dflash.* give one of these, some both. */
static const char *const width_keys[] = {"dflash.n_target_features", "dflash.n_target_layers"};

static int check_keys(struct desc_reader *r, const struct dialect *x)
{
    const char *known[MAX_KEYS + 1];
    const size_t prefix = strlen(x->arch) + 1;
    int n = 0;
    for (int i = 0; i < N_DRAFTER_KEYS; i++) known[n++] = drafter_keys[i];
    known[n++] = x->taps_key;
    known[n++] = x->block_key;
    if (x->mask_key) known[n++] = x->mask_key;
    if (!x->mask_key) known[n++] = "mask_token_id"; /* see read_mask */
    if (x->width_key) known[n++] = x->width_key;
    for (int i = 0; !strncmp(x->taps_key, "dflash.", 7) && i < 2; i++) known[n++] = width_keys[i];
    if (r->o && r->o->dialect) { /* which of the two counts is said */
        known[n++] = "target_layers";
        known[n++] = "target_layer_ids";
    }
    for (uint64_t i = 0; i < r->g->n_kv && n < MAX_KEYS; i++)
        if (desc_piece_key(r->g->kv[i].key, x->arch)) known[n++] = r->g->kv[i].key + prefix;
    known[n] = NULL;
    return desc_known_keys(r, desc_stack_keys, known);
}

/* ---- taps ---- */

/* Two writers use the same key, one counts from the embeddings and one from block 0; where the mask's id
 * stands tells them apart, and the key that only the second one has. */
static int check_shift(struct desc_reader *r, const struct dialect *x)
{
    if (strcmp(x->name, "upstream") || (r->o && (r->o->has_tap_shift || r->o->dialect))) return 0;
    if (gguf_find(r->g, "tokenizer.ggml.mask_token_id") || !gguf_find(r->g, "dflash.mask_token_id")) return 0;
    desc_fail(
        r, "key 'dflash.target_layers': whether it counts from the embeddings or from block 0 is not known "
           "(expected tokenizer.ggml.mask_token_id beside it, or dflash.target_hidden_size, got "
           "dflash.mask_token_id alone)");
    return err_hint(r->e, "%stap-shift 1 (from the embeddings) or %stap-shift 0 (from block 0) says it",
                    flag(r), flag(r));
}

void desc_usual_taps(int32_t n_layer, int32_t n, int32_t *taps)
{
    if (n == 1) taps[0] = n_layer / 2;
    for (int32_t i = 0; n > 1 && i < n; i++)
        taps[i] = (int32_t)nearbyint(1 + i * (double)(n_layer - 4) / (n - 1));
}

int32_t desc_tap_twice(const int32_t *taps, int32_t n, int32_t n_layer)
{
    int32_t usual[DESC_MAX_TAPS], twice = -1;
    for (int32_t i = 0; i < n; i++)
        for (int32_t j = 0; j < i && twice < 0; j++)
            if (taps[j] == taps[i]) twice = taps[i];
    /* From n + 3 blocks on the usual ones are different. */
    for (int32_t depth = n_layer ? n_layer : 4; twice >= 0 && depth <= (n_layer ? n_layer : n + 2); depth++) {
        desc_usual_taps(depth, n, usual);
        if (!memcmp(usual, taps, (size_t)n * sizeof *taps)) return -1;
    }
    return twice;
}

/* The ids that the file stores, less the shift, into out [DESC_MAX_TAPS]: how many, or -1. Who counts from
 * the embeddings can name them too. */
static int stored_taps(struct desc_reader *r, const struct gguf_kv *kv, int32_t *out)
{
    const int32_t shift = r->d->tap_shift, least = shift > 0 && r->d->spelling->tap_shift ? -1 : 0;
    char text[96];
    gguf_value_text(kv, text, sizeof text);
    if (kv->type != GGUF_ARRAY || (kv->elem != GGUF_I32 && kv->elem != GGUF_U32) || !kv->count ||
        kv->count > DESC_MAX_TAPS)
        return desc_fail(r, "key '%s': has the wrong type (expected 1 to %d of i32, got %s)", kv->key,
                         DESC_MAX_TAPS, text);
    for (uint64_t i = 0; i < kv->count; i++) {
        const int64_t id = gguf_array_i64(kv, i) - shift;
        if (id < least || id >= DESC_MAX_LAYERS)
            return desc_fail(r, "key '%s': element %d out of range (expected %d to %d, got %" PRId64 ")",
                             kv->key, (int)i, least + shift, DESC_MAX_LAYERS - 1 + shift, id + shift);
        if (id < 0) desc_infer(r, "element %d of %s names the embeddings", (int)i, kv->key);
        out[i] = (int32_t)id;
    }
    const int32_t twice = desc_tap_twice(out, (int32_t)kv->count, 0);
    if (twice >= 0)
        return desc_fail(r, "key '%s': names a block twice (expected different ones, got %d more than once)",
                         kv->key, twice + shift);
    return (int)kv->count;
}

static int read_taps(struct desc_reader *r, const struct dialect *x)
{
    struct desc *d = r->d;
    char key[160];
    const struct gguf_kv *kv = gguf_find(r->g, dialect_key(x, x->taps_key, key, sizeof key));
    d->tap_shift = r->o && r->o->has_tap_shift ? r->o->tap_shift : x->tap_shift;
    if (r->o && r->o->n_taps > 0) {
        d->taps_given = true;
        d->n_taps = r->o->n_taps;
        memcpy(d->taps, r->o->taps, (size_t)d->n_taps * sizeof d->taps[0]);
        if (kv) desc_infer(r, "%staps in place of %s", flag(r), key);
        return 0;
    }
    if (!kv) return absent(r, key, "the tapped blocks of the target, one by one", "taps LIST");
    if (check_shift(r, x)) return -1;
    if (r->o && r->o->has_tap_shift && r->o->tap_shift != x->tap_shift)
        desc_infer(r, "%stap-shift %d, where the dialect has %d", flag(r), r->o->tap_shift, x->tap_shift);
    d->n_taps = stored_taps(r, kv, d->taps);
    return d->n_taps < 0 ? -1 : 0;
}

static int read_mask(struct desc_reader *r, const struct dialect *x)
{
    struct desc *d = r->d;
    char key[160];
    dialect_key(x, x->mask_key, key, sizeof key);
    int rc = gguf_get_i32(r->g, key, &d->mask_id, r->e);
    if (rc >= 0 && (!x->mask_key || x->mask_too)) { /* writers of dflash did not agree where */
        const char *other = x->mask_key ? "tokenizer.ggml.mask_token_id" : "dflash.mask_token_id";
        int32_t v = d->mask_id;
        int rc2 = gguf_get_i32(r->g, other, &v, r->e);
        if (rc2 < 0) return -1;
        if (rc2 == 0 && rc == 0 && v != d->mask_id && !(r->o && r->o->has_mask_id)) {
            desc_fail(r, "keys '%s' and '%s': disagree about the mask token (got %d and %d)", key, other,
                      d->mask_id, v);
            return err_hint(r->e, "%smask-id N says which", flag(r));
        }
        if (rc2 == 0 && rc > 0) desc_infer(r, "mask id from %s", other);
        d->mask_id = v;
        rc = rc && rc2;
    }
    if (r->o && r->o->has_mask_id) {
        if (rc == 0 && d->mask_id != r->o->mask_id)
            desc_infer(r, "%smask-id %d, the file says %d", flag(r), r->o->mask_id, d->mask_id);
        d->mask_id = r->o->mask_id;
        rc = rc < 0 ? -1 : 0;
    }
    if (rc) return rc > 0 ? absent(r, key, "the id of the mask token", "mask-id N") : -1;
    if (d->mask_id < 0)
        return desc_fail(r, "key '%s': out of range (expected 0 or more, got %d)", key, d->mask_id);
    return 0;
}

static int read_block(struct desc_reader *r, const struct dialect *x)
{
    const int32_t given = r->o ? r->o->block_size : 0;
    char key[160];
    int32_t v = 0;
    int rc = desc_maybe_i32(r, x->block_key, given ? INT32_MIN : 2, given ? INT32_MAX : 64, &v);
    if (rc < 0) return -1;
    if (rc > 0 && !given)
        return absent(r, dialect_key(x, x->block_key, key, sizeof key), "an integer", "block-size N");
    if (given && rc == 0 && v != given) desc_infer(r, "%sblock-size %d, the file says %d", flag(r), given, v);
    r->d->block_size = given ? given : v;
    return 0;
}

/* ---- fc and the names of tensors ---- */

static const char *spelled(const struct desc_reader *r, const char *name, const char *too)
{
    return too && !gguf_tensor(r->g, name) && gguf_tensor(r->g, too) ? too : name;
}

static void find_names(struct desc_reader *r, const struct dialect *x)
{
    struct desc *d = r->d;
    char block0[64];
    d->fc_name = spelled(r, x->fc, x->fc_too);
    d->hidden_norm_name = spelled(r, x->hidden_norm, x->hidden_norm_too);
    d->ffn_norm_name = x->ffn_norm;
    snprintf(block0, sizeof block0, "blk.0.%s", x->ffn_norm);
    if (x->ffn_norm_too && !gguf_tensor(r->g, block0)) {
        snprintf(block0, sizeof block0, "blk.0.%s", x->ffn_norm_too);
        if (gguf_tensor(r->g, block0)) d->ffn_norm_name = x->ffn_norm_too;
    }
}

/* What a key beside the taps says of fc's width, against fc. */
static int check_width(struct desc_reader *r, const struct dialect *x, const char *key,
                       enum dialect_width width)
{
    struct desc *d = r->d;
    int32_t v = 0;
    int rc = width == WIDTH_NONE ? 1 : desc_maybe_i32(r, key, 0, INT32_MAX, &v);
    if (rc) return rc < 0 ? -1 : 0;
    if (width == WIDTH_TAPS) {
        if (v != d->n_taps)
            desc_infer(r, "%s.%s says %d: not used, there are %d taps", x->arch, key, v, d->n_taps);
        return 0;
    }
    const int32_t have = width == WIDTH_FEATURES ? d->n_features : d->n_features / d->n_taps;
    return v == have ? 0
                     : desc_fail(r, "key '%s.%s': disagrees with %s (expected %d, got %d)", x->arch, key,
                                 d->fc_name, have, v);
}

static int check_widths(struct desc_reader *r, const struct dialect *x)
{
    if (strncmp(x->taps_key, "dflash.", 7)) return check_width(r, x, x->width_key, x->width);
    return check_width(r, x, width_keys[0], WIDTH_FEATURES) || check_width(r, x, width_keys[1], WIDTH_TAPS)
               ? -1
               : 0;
}

static int read_fc(struct desc_reader *r, const struct dialect *x)
{
    struct desc *d = r->d;
    if (desc_dim(r, d->fc_name, 0, &d->n_features)) return -1;
    if (d->n_features % d->n_taps)
        return desc_fail(r, "tensor '%s': its width %d is no multiple of the %d taps of %s%s%s", d->fc_name,
                         d->n_features, d->n_taps, d->taps_given ? flag(r) : x->arch,
                         d->taps_given ? "" : ".", d->taps_given ? "taps" : x->taps_key);
    const int64_t fc[3] = {d->n_features, d->n_embd, 0}, norm[3] = {d->n_embd, 0, 0};
    if (desc_shape(r, fc, d->fc_name) || desc_shape(r, norm, d->hidden_norm_name)) return -1;
    for (int i = 0; i < d->n_layer; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%d.%s", i, d->ffn_norm_name);
        if (desc_shape(r, norm, name)) return -1;
    }
    return check_widths(r, x);
}

/* ---- attention ---- */

/* The flags for sliding layers, over the file or in place of what it lacks. */
static int read_windows(struct desc_reader *r)
{
    const struct desc_override *o = r->o;
    struct desc *d = r->d;
    int32_t window = 0;
    char key[160];
    if (!o || (!o->sliding_window && !o->sliding_pattern)) {
        if (!desc_windows(r)) return 0;
        return strstr(r->e->msg, "sliding_window") && strstr(r->e->msg, "is missing")
                   ? err_hint(
                         r->e,
                         "%ssliding-pattern TEXT (a letter a layer, s or f) and %ssliding-window N say it",
                         flag(r), flag(r))
                   : -1;
    }
    if (gguf_find(r->g, desc_key(r, "attention.sliding_window", key, sizeof key)))
        desc_infer(r, "%s%s in place of the file's", flag(r),
                   o->sliding_pattern ? "sliding-pattern" : "sliding-window");
    if (o->sliding_window) window = o->sliding_window;
    if (!window && desc_maybe_i32(r, "attention.sliding_window", 0, INT32_MAX, &window) < 0) return -1;
    bool sliding[DESC_MAX_LAYERS] = {false}, any = false;
    if (!o->sliding_pattern) {
        int rc = desc_maybe_bools(r, "attention.sliding_window_pattern", sliding);
        if (rc)
            return rc < 0 ? -1
                          : absent(r, desc_key(r, "attention.sliding_window_pattern", key, sizeof key),
                                   "which layers slide", "sliding-pattern TEXT");
    } else if (strlen(o->sliding_pattern) != (size_t)d->n_layer ||
               strspn(o->sliding_pattern, "sf") != (size_t)d->n_layer)
        return err_set(r->e, ERR_USAGE,
                       "%ssliding-pattern: expected %d letters s or f, one a layer, got %.80s", flag(r),
                       d->n_layer, o->sliding_pattern);
    for (int i = 0; i < d->n_layer; i++) {
        if (o->sliding_pattern) sliding[i] = o->sliding_pattern[i] == 's';
        if (sliding[i] && !window)
            return err_set(r->e, ERR_USAGE,
                           "%ssliding-pattern: layer %d slides, over which window is not known "
                           "(expected %ssliding-window N)",
                           flag(r), i, flag(r));
        d->layer[i].window = sliding[i] ? window : 0;
        any |= sliding[i];
    }
    if (o->sliding_window && !any)
        return err_set(
            r->e, ERR_USAGE,
            "%ssliding-window: no layer slides (expected an s in the pattern: %ssliding-pattern TEXT)",
            flag(r), flag(r));
    return 0;
}

/* The base: a flag's, then the file's. */
static int read_rope(struct desc_reader *r)
{
    char key[160];
    const bool given = r->o && r->o->rope_theta > 0;
    desc_key(r, "rope.freq_base", key, sizeof key);
    if (given && !gguf_find(r->g, key)) {
        r->d->n_rope = 1;
        r->d->rope[0] = (struct desc_rope){.n_rot = r->d->layer[0].head_dim, .base = r->d->layer[0].head_dim};
    } else if (desc_rope_plain(r)) {
        return gguf_find(r->g, key) ? -1 : err_hint(r->e, "%srope-theta X gives it", flag(r));
    }
    if (given && r->d->rope[0].theta > 0 && r->d->rope[0].theta != r->o->rope_theta)
        desc_infer(r, "%srope-theta %g, the file says %g", flag(r), (double)r->o->rope_theta,
                   (double)r->d->rope[0].theta);
    if (given) r->d->rope[0].theta = r->o->rope_theta;
    return 0;
}

/* Which layers are causal inside the block: our own key a layer; else one bool for all, where the dialect
 * obeys it; else what the reference infers: sliding layers are, full ones are not. */
static int read_causal(struct desc_reader *r, const struct dialect *x)
{
    const struct desc_override *o = r->o;
    struct desc *d = r->d;
    char key[160];
    const struct gguf_kv *kv = gguf_find(r->g, desc_key(r, "attention.causal_pattern", key, sizeof key));
    bool all = false;
    int rc = gguf_get_bool(r->g, desc_key(r, "attention.causal", key, sizeof key), &all, r->e);
    if (rc < 0) return -1;
    if (kv && (kv->type != GGUF_ARRAY || kv->elem != GGUF_BOOL || kv->count != (uint64_t)d->n_layer)) {
        char text[96];
        gguf_value_text(kv, text, sizeof text);
        return desc_fail(r, "key '%s': has the wrong type (expected bool[%d], got %s)", kv->key, d->n_layer,
                         text);
    }
    const bool dflash2 = !strcmp(d->kind, "DFlash2"); /* its reference has no causal layers */
    const bool counts = rc == 0 && (x->causal != CAUSAL_IGNORED || !strcmp(d->kind, "Laguna"));
    bool differs = false;
    d->causal_inferred = !kv && !counts;
    for (int i = 0; i < d->n_layer; i++) {
        d->layer[i].causal = kv       ? gguf_array_i64(kv, (uint64_t)i) != 0
                             : counts ? all
                                      : d->layer[i].window > 0 && !dflash2;
        differs |= d->layer[i].causal != all;
    }
    if (o && o->draft_causal >= 0) {
        d->causal_inferred = false;
        for (int i = 0; i < d->n_layer; i++) d->layer[i].causal = o->draft_causal != 0;
    }
    d->causal_ignored = d->causal_inferred && rc == 0 && differs;
    return 0;
}

static int read_scalars(struct desc_reader *r)
{
    struct desc *d = r->d;
    char key[160];
    int scale =
        gguf_get_f32(r->g, desc_key(r, "embedding_scale", key, sizeof key), &d->embedding_scale, r->e);
    if (scale < 0) return -1;
    d->has_embedding_scale = scale == 0;
    if (d->has_embedding_scale && (!isfinite(d->embedding_scale) || d->embedding_scale <= 0))
        return desc_fail(r, "key '%s': out of range (expected above 0, got %g)", key,
                         (double)d->embedding_scale);
    int cap = gguf_get_f32(r->g, desc_key(r, "final_logit_softcapping", key, sizeof key), &d->softcap, r->e);
    if (cap < 0) return -1;
    d->has_softcap = cap == 0;
    if (d->has_softcap && (!isfinite(d->softcap) || d->softcap < 0))
        return desc_fail(r, "key '%s': out of range (expected 0 or more, got %g)", key, (double)d->softcap);
    int crc = gguf_get_u32(r->g, desc_key(r, DESC_NORM_KEY, key, sizeof key), &d->norm_crc, r->e);
    d->has_norm_crc = crc == 0;
    if (crc < 0) return -1;
    d->logit_scale = 1;
    return desc_maybe_f32(r, "logit_scale", &d->logit_scale) < 0 ? -1 : 0;
}

/* M-RoPE targets leave [head_dim/2, 0, 0, 0] here, which is plain rope; anything else is not. */
static int check_sections(struct desc_reader *r)
{
    char key[160];
    const struct gguf_kv *kv = gguf_find(r->g, desc_key(r, "rope.dimension_sections", key, sizeof key));
    if (!kv) return 0;
    bool plain = kv->type == GGUF_ARRAY && (kv->elem == GGUF_I32 || kv->elem == GGUF_U32) && kv->count >= 1 &&
                 gguf_array_i64(kv, 0) == r->d->layer[0].head_dim / 2;
    for (uint64_t i = 1; plain && i < kv->count; i++) plain = gguf_array_i64(kv, i) == 0;
    return plain ? 0
                 : desc_fail(r, "key '%s': rope in sections is not supported (expected [%d, 0, ...])",
                             kv->key, r->d->layer[0].head_dim / 2);
}

/* An embedding and a head of the drafter's own, both optional: what it lacks is the target's. With d2t the
 * head has a row for each of the tokens that d2t lists. */
static int read_own_ends(struct desc_reader *r, const struct dialect *x)
{
    struct desc *d = r->d;
    static const char *const name[] = {"token_embd.weight", "output.weight"};
    bool tie = x->ties, own[2];
    char key[160];
    if (gguf_get_bool(r->g, desc_key(r, "tie_word_embeddings", key, sizeof key), &tie, r->e) < 0) return -1;
    for (int i = 0; i < 2; i++) {
        own[i] = gguf_tensor(r->g, name[i]) != NULL;
        if (!own[i]) continue;
        int32_t *rows = i && d->n_vocab_draft ? &d->n_vocab_draft : &d->n_vocab;
        if (!*rows && desc_dim(r, name[i], 1, rows)) return -1;
        const int64_t ne[3] = {d->n_embd, *rows, 0};
        if (desc_shape(r, ne, name[i]))
            return i && !d->n_vocab_draft ? err_hint(r->e, DESC_REDUCED_HINT) : -1;
    }
    d->tied_head = own[0] && !own[1] && tie;
    if (own[0] && !own[1])
        desc_infer(r, "an embedding of its own and no head: the head is %s",
                   tie ? "the embedding" : "the target's");
    int32_t v = 0;
    int rc = desc_maybe_i32(r, "vocab_size", 1, INT32_MAX, &v);
    if (rc == 0 && d->n_vocab && v != d->n_vocab)
        return desc_fail(r, "key '%s.vocab_size': disagrees with the tensors (expected %d, got %d)", x->arch,
                         d->n_vocab, v);
    if (rc == 0) d->n_vocab = v;
    return rc < 0 ? -1 : 0;
}

/* ---- blocks of other targets' families ---- */

/* An optional tensor of a layer: 1 where it is there, -1 where it has another shape. */
static int optional(struct desc_reader *r, int32_t layer, const char *part, int64_t n)
{
    const int64_t ne[3] = {n, 0, 0};
    char name[64];
    snprintf(name, sizeof name, "blk.%d.%s.weight", layer, part);
    if (!gguf_tensor(r->g, name)) return 0;
    return desc_shape(r, ne, name) ? -1 : 1;
}

/* hidden_activation is llama.cpp's; hidden_act is what dflash-convert wrote before. */
static int read_act(struct desc_reader *r)
{
    static const char *const names[] = {"hidden_activation", "hidden_act"};
    struct gguf_str v;
    char key[160];
    for (int i = 0, said = 0; i < 2; i++) {
        const int rc = gguf_get_str(r->g, desc_key(r, names[i], key, sizeof key), &v, r->e);
        if (rc < 0) return -1;
        if (rc) continue;
        const bool gelu = gguf_str_is(v, "gelu") || gguf_str_is(v, "gelu_pytorch_tanh");
        if (!gelu && !gguf_str_is(v, "silu"))
            return desc_fail(
                r, "key '%s': is not supported (expected silu, gelu or gelu_pytorch_tanh, got %.*s)", key,
                (int)(v.n < 60 ? v.n : 60), v.s);
        if (said++ && gelu != r->d->gelu)
            return desc_fail(r, "key '%s': disagrees with %s (got %.*s)", key, names[0],
                             (int)(v.n < 60 ? v.n : 60), v.s);
        r->d->gelu = gelu;
    }
    return 0;
}

/* Among the pieces: what the block has that Qwen3's has not. */
static int tell_block(struct desc_reader *r, int32_t no_values)
{
    struct desc *d = r->d;
    const size_t n = strlen(d->pieces);
    char name[64], scale[96] = "";
    bool norms = false;
    for (int i = 0; i < 2 * d->n_layer; i++) {
        snprintf(name, sizeof name, "blk.%d.post_%s_norm.weight", i / 2, i % 2 ? "ffw" : "attention");
        norms |= gguf_tensor(r->g, name) != NULL;
    }
    if (d->attention_scale > 0)
        snprintf(scale, sizeof scale, ", scores times %g", (double)d->attention_scale);
    if (d->value_scale > 0)
        snprintf(scale + strlen(scale), sizeof scale - strlen(scale), ", attention times %g",
                 (double)d->value_scale);
    snprintf(d->pieces + n, sizeof d->pieces - n,
             "%sblocks with%s%s%s, values of the keys in %d of %d layers", n ? ", " : "",
             d->gelu ? " gelu" : " silu", scale, norms ? ", norms behind branches" : "", no_values,
             d->n_layer);
    if (strcmp(d->kind, "DFlash2")) return 0;
    return desc_fail(r, "a DFlash2 drafter: its layers must be Qwen3's (found %.300s)",
                     d->pieces + n + (n ? 2 : 0));
}

/* Scales of matrices, each [1], beside the matrix that they are of. */
static int read_scale(struct desc_reader *r, const char *matrix)
{
    static const int64_t one[3] = {1, 0, 0};
    char scale[64], weight[64];
    snprintf(scale, sizeof scale, "%s.scale", matrix);
    snprintf(weight, sizeof weight, "%s.weight", matrix);
    if (!gguf_tensor(r->g, scale)) return 0;
    if (desc_shape(r, one, scale)) return -1;
    return gguf_tensor(r->g, weight)
               ? 0
               : desc_fail(r, "tensor '%s': there is no %s that it is of", scale, weight);
}

static int read_scales(struct desc_reader *r)
{
    static const char *const whole[] = {"fc", "markov_w2", "output"}, *const layer[] = {
                                                                          "attn_q",      "attn_k",   "attn_v",
                                                                          "attn_output", "ffn_gate", "ffn_up",
                                                                          "ffn_down"};
    char name[64];
    for (size_t i = 0; i < sizeof whole / sizeof whole[0]; i++)
        if (read_scale(r, whole[i])) return -1;
    for (int i = 0; i < r->d->n_layer; i++)
        for (size_t k = 0; k < sizeof layer / sizeof layer[0]; k++) {
            snprintf(name, sizeof name, "blk.%d.%s", i, layer[k]);
            if (read_scale(r, name)) return -1;
        }
    return 0;
}

/* What llama.cpp's drafters of Gemma 4 have beside a Qwen3 block. Other dialects have none of it, and one of
 * the names is another norm there. */
static int read_block_parts(struct desc_reader *r, const struct dialect *x)
{
    struct desc *d = r->d;
    int32_t keys_alone = 0;
    char name[64];
    d->rope[0].has_divisors = gguf_tensor(r->g, "rope_freqs.weight") != NULL;
    if (strcmp(x->name, "upstream")) return 0;
    if (read_act(r) || desc_maybe_f32(r, "attention.scale", &d->attention_scale) < 0 ||
        desc_maybe_f32(r, "attention.value_scale", &d->value_scale) < 0 || read_scales(r))
        return -1;
    d->other_block = d->gelu || d->attention_scale > 0 || d->value_scale > 0;
    for (int i = 0; i < d->n_layer; i++) {
        snprintf(name, sizeof name, "blk.%d.attn_v.weight", i);
        d->layer[i].value_is_key = !gguf_tensor(r->g, name);
        keys_alone += d->layer[i].value_is_key;
        const int attn = optional(r, i, "post_attention_norm", d->n_embd),
                  ffw = optional(r, i, "post_ffw_norm", d->n_embd),
                  scale = optional(r, i, "layer_output_scale", 1),
                  sinks = optional(r, i, "attn_sinks", d->layer[i].n_head);
        if (attn < 0 || ffw < 0 || scale < 0 || sinks < 0) return -1;
        d->sinks |= sinks > 0;
        if (d->layer[i].value_is_key && !attn)
            return desc_fail(r,
                             "tensor '%s': is missing (no post_attention_norm: no block that has values of "
                             "its keys)",
                             name);
        if (scale && !ffw)
            return desc_fail(r,
                             "tensor 'blk.%d.layer_output_scale.weight': is not supported without "
                             "post_ffw_norm",
                             i);
        d->other_block |= d->layer[i].value_is_key || attn || ffw;
    }
    if (desc_all_or_none(r, "post_attention_norm") || desc_all_or_none(r, "post_ffw_norm") ||
        desc_all_or_none(r, "layer_output_scale"))
        return -1;
    return d->other_block ? tell_block(r, keys_alone) : 0;
}

/* Sinks stand in all layers of a kind, sliding or full, or in none of it: one that lacks them has lost them.
 */
static int whole_sinks(struct desc_reader *r)
{
    const struct desc *d = r->d;
    char name[64];
    bool in[2] = {false, false}; /* some full layer, some sliding one */
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < d->n_layer && d->sinks; i++) {
            const bool sliding = d->layer[i].window > 0;
            snprintf(name, sizeof name, "blk.%d.attn_sinks.weight", i);
            if (gguf_tensor(r->g, name))
                in[sliding] = true;
            else if (pass && in[sliding])
                return desc_fail(r, "tensor '%s': is missing (another %s layer has it)", name,
                                 sliding ? "sliding" : "full");
        }
    return 0;
}

static int read_parts(struct desc_reader *r, const struct dialect *x)
{
    if (check_keys(r, x) || desc_base(r, false) || desc_heads(r) || desc_dense(r) || read_rope(r) ||
        read_block_parts(r, x) || check_sections(r) || read_windows(r) || whole_sinks(r) ||
        read_causal(r, x) || read_scalars(r) || read_taps(r, x) || read_own_ends(r, x) || read_block(r, x) ||
        read_mask(r, x) || read_fc(r, x))
        return -1;
    return desc_expect_all(r, tensors) || desc_piece_shapes(r) ? -1 : 0;
}

static int read_dflash(struct desc_reader *r)
{
    struct desc *d = r->d;
    const struct dialect *x;
    const struct desc_override *o = r->o;
    if (dialect_find(&x, r->g, o ? o->dialect : NULL, o && o->n_taps > 0, flag(r), r->e)) return -1;
    d->arch_name = x->arch;
    d->dialect = x->name;
    d->spelling = x;
    d->first_row = 1;
    find_names(r, x);
    if (desc_pieces(r)) return -1;
    if (!read_parts(r, x)) return 0;
    /* A relative whose file is not understood is a relative in the first place. */
    return !d->runs ? err_prefix(r->e, "a %s drafter: running it is not supported (found %.300s)", d->kind,
                                 d->pieces)
                    : -1;
}

const struct desc_family desc_dflash = {"dflash", DESC_DFLASH, read_dflash};
