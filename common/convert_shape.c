/* convert_shape.c - which tensor is which, and what their shapes say about the model.
 *
 * Shapes are spelled with symbols (enum conv_dim). The first tensor that has a symbol sets its value, every
 * other one must agree; config.json is a witness, not a source, except for random weights, which have no
 * shapes of their own. */
#include "convert_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "mem.h"

static const char *const prefixes[] = {"", "model.", NULL};

/* Buffers that frameworks save beside the weights and that a forward pass computes anew. */
static bool skippable(const char *name)
{
    static const char *const ends[] = {"rotary_emb.inv_freq", "rotary_emb.cos_cached",
                                       "rotary_emb.sin_cached", ".masked_bias", NULL};
    size_t n = strlen(name);
    for (int i = 0; ends[i]; i++) {
        size_t m = strlen(ends[i]);
        if (n >= m && !strcmp(name + n - m, ends[i])) return true;
    }
    return false;
}

static int set_dim(struct conv *c, enum conv_dim d, int64_t v, const char *from)
{
    c->dim[d] = v;
    snprintf(c->dim_from[d], sizeof c->dim_from[d], "%s", from);
    return 0;
}

/* ---- random weights: sizes from config.json ---- */

static int need_i64(struct conv *c, const char *key, int64_t *v, struct err *e)
{
    int r = hf_get_i64(c->cfg, key, 1, INT32_MAX, v, e);
    if (r == 1)
        return err_set(e, ERR_FORMAT, "%s: %s is missing (there are no weights to tell it)",
                       hf_config_name(c->cfg), key);
    return r;
}

int conv_sizes_from_config(struct conv *c, struct err *e)
{
    int64_t embd, ff, head, heads, kv, layers, vocab = 0;
    if (need_i64(c, "hidden_size", &embd, e) || need_i64(c, "intermediate_size", &ff, e) ||
        need_i64(c, "head_dim", &head, e) || need_i64(c, "num_attention_heads", &heads, e) ||
        need_i64(c, "num_key_value_heads", &kv, e) || need_i64(c, "num_hidden_layers", &layers, e))
        return -1;
    if (!c->fam->drafter && need_i64(c, "vocab_size", &vocab, e)) return -1;
    if (layers > DESC_MAX_LAYERS)
        return err_set(e, ERR_FORMAT, "%s: num_hidden_layers is out of range (expected at most %d, got %lld)",
                       hf_config_name(c->cfg), DESC_MAX_LAYERS, (long long)layers);
    c->n_layer = (int32_t)layers;
    set_dim(c, DIM_EMBD, embd, "hidden_size");
    set_dim(c, DIM_FF, ff, "intermediate_size");
    set_dim(c, DIM_HEAD, head, "head_dim");
    set_dim(c, DIM_Q, heads * head, "num_attention_heads x head_dim");
    set_dim(c, DIM_KV, kv * head, "num_key_value_heads x head_dim");
    set_dim(c, DIM_VOCAB, vocab, "vocab_size");
    set_dim(c, DIM_FEATURES, c->d.n_taps * embd, "taps x hidden_size");
    return 0;
}

/* ---- tensors to rules ---- */

/* "layers.%d.x" with the layer's number in it. */
static void fill_layer(char *buf, size_t n, const char *pattern, int32_t layer)
{
    const char *p = strstr(pattern, "%d");
    if (!p)
        snprintf(buf, n, "%s", pattern);
    else
        snprintf(buf, n, "%.*s%d%s", (int)(p - pattern), pattern, layer, p + 2);
}

/* The number after "layers." at the start of a name (its prefix taken off), or -1. */
static int64_t layer_of(const char *name)
{
    for (int i = 0; prefixes[i]; i++) {
        size_t n = strlen(prefixes[i]);
        if (!strncmp(name, prefixes[i], n) && !strncmp(name + n, "layers.", 7)) {
            const char *s = name + n + 7;
            char *end;
            if (*s < '0' || *s > '9') continue;
            long long v = strtoll(s, &end, 10);
            if (*end == '.') return v;
        }
    }
    return -1;
}

static int count_layers(struct conv *c, struct err *e)
{
    int64_t top = -1;
    for (uint64_t i = 0; i < c->st->n_tensors; i++) {
        int64_t l = layer_of(c->st->tensor[i].name);
        if (l >= DESC_MAX_LAYERS)
            return err_set(e, ERR_FORMAT, "%s: %s: layer number out of range (expected below %d)", c->label,
                           c->st->tensor[i].name, DESC_MAX_LAYERS);
        if (l > top) top = l;
    }
    if (top < 0)
        return err_set(e, ERR_FORMAT, "%s: no layers (expected tensors named layers.0.* or model.layers.0.*)",
                       c->label);
    c->n_layer = (int32_t)top + 1;
    return 0;
}

static int find_source(struct conv *c, const char *hf, const struct st_tensor **t, struct err *e)
{
    char name[256];
    *t = NULL;
    for (int i = 0; prefixes[i]; i++) {
        snprintf(name, sizeof name, "%s%s", prefixes[i], hf);
        const struct st_tensor *found = st_tensor(c->st, name);
        if (found && *t)
            return err_set(e, ERR_FORMAT, "%s: %s and %s are both there (expected one)", c->label, (*t)->name,
                           name);
        if (found) *t = found;
    }
    return 0;
}

static uint32_t source_type(const struct st_tensor *s)
{
    return s->dtype == ST_BF16 ? KN_BF16 : s->dtype == ST_F16 ? KN_F16 : KN_F32;
}

static int check_shape(struct conv *c, const struct conv_rule *r, const struct st_tensor *s, struct err *e)
{
    uint32_t want = r->dim[1] == DIM_NONE ? 1 : 2;
    if (s->n_dims != want)
        return err_set(e, ERR_FORMAT, "%s: %s has the wrong shape (expected %u dimension%s, got %u)",
                       c->label, s->name, want, want == 1 ? "" : "s", s->n_dims);
    if (s->dtype == ST_I64 || s->dtype == ST_I32 || s->dtype == ST_I16 || s->dtype == ST_I8 ||
        s->dtype == ST_U8 || s->dtype == ST_BOOL)
        return err_set(e, ERR_FORMAT, "%s: %s is of an integer type (expected floats, got %s)", c->label,
                       s->name, st_dtype_name(s->dtype));
    for (uint32_t i = 0; i < want; i++) {
        enum conv_dim d = r->dim[i];
        if (s->shape[i] < 1 || s->shape[i] > INT32_MAX)
            return err_set(e, ERR_FORMAT, "%s: %s: dimension %u is out of range (got %lld)", c->label,
                           s->name, i, (long long)s->shape[i]);
        if (!c->dim[d])
            set_dim(c, d, s->shape[i], s->name);
        else if (c->dim[d] != s->shape[i])
            return err_set(
                e, ERR_FORMAT, "%s: %s has the wrong shape: dimension %u (expected %lld as in %s, got %lld)",
                c->label, s->name, i, (long long)c->dim[d], c->dim_from[d], (long long)s->shape[i]);
    }
    return 0;
}

/* Is the head the embedding again? Then it is left out and the embedding serves as both. */
static int tied_head(struct conv *c, const struct st_tensor *head, const struct st_tensor *embed, bool *drop,
                     struct err *e)
{
    bool tie = false;
    int r = hf_get_bool(c->cfg, "tie_word_embeddings", &tie, e);
    if (r < 0) return -1;
    const char *cfg = hf_config_name(c->cfg);
    if (r == 1 && !head)
        return err_set(e, ERR_FORMAT, "%s: tie_word_embeddings is missing and there is no lm_head.weight",
                       cfg);
    if (!tie && !head && c->st)
        return err_set(e, ERR_FORMAT, "%s: lm_head.weight is missing (%s: tie_word_embeddings is false)",
                       c->label, cfg);
    if (tie && head &&
        (head->dtype != embed->dtype || head->bytes != embed->bytes ||
         memcmp(head->data, embed->data, head->bytes)))
        return err_set(e, ERR_FORMAT, "%s: %s differs from %s (%s: tie_word_embeddings is true)", c->label,
                       head->name, embed->name, cfg);
    if (tie && head)
        conv_say(c, CONVERT_DETAIL, "left out: %s, the same bytes as %s", head->name, embed->name);
    *drop = tie;
    c->tied = tie;
    return 0;
}

static int add_tensor(struct conv *c, const struct conv_rule *r, int32_t layer, uint8_t *used, struct err *e)
{
    char hf[128];
    const struct st_tensor *s = NULL;
    fill_layer(hf, sizeof hf, r->hf, layer);
    if (c->st) {
        if (find_source(c, hf, &s, e)) return -1;
        if (!s && !(r->flags & CONV_OPTIONAL)) {
            err_set(e, ERR_FORMAT, "%s: tensor %s is missing", c->label, hf);
            return layer >= 0 ? err_hint(e, "the highest layer number found is %d", c->n_layer - 1) : -1;
        }
        if (s) {
            used[s - c->st->tensor] = 1;
            if (check_shape(c, r, s, e)) return -1;
        }
    }
    if (r->flags & CONV_HEAD) {
        const struct st_tensor *embed = NULL;
        bool drop = false;
        for (int64_t i = 0; i < c->n_t; i++)
            if (c->t[i].rule->flags & CONV_EMBED) embed = c->t[i].src;
        if (tied_head(c, s, embed, &drop, e)) return -1;
        if (drop) return 0;
    }
    struct conv_tensor *t = &c->t[c->n_t++];
    t->rule = r;
    t->layer = layer;
    t->src = s;
    fill_layer(t->name, sizeof t->name, r->gguf, layer);
    t->n_dims = r->dim[1] == DIM_NONE ? 1 : 2;
    t->ne[0] = c->dim[r->dim[t->n_dims - 1]];
    t->ne[1] = t->n_dims == 2 ? c->dim[r->dim[0]] : 1;
    t->ne[2] = t->ne[3] = 1;
    t->from = s ? source_type(s) : KN_F32;
    return 0;
}

static int check_unused(struct conv *c, const uint8_t *used, struct err *e)
{
    for (uint64_t i = 0; i < c->st->n_tensors; i++) {
        const char *name = c->st->tensor[i].name;
        if (used[i]) continue;
        for (const struct conv_relative *r = c->fam->relatives; r && r->part; r++)
            if (strstr(name, r->part))
                return err_set(
                    e, ERR_FORMAT,
                    "%s: tensor %s shows a %s drafter, which is not supported (expected a plain %s)",
                    c->label, name, r->name, c->fam->hf);
        if (c->fam->drafter && (strstr(name, "embed_tokens") || strstr(name, "lm_head"))) {
            err_set(e, ERR_FORMAT,
                    "%s: tensor %s: an embedding or head of the drafter's own is not supported", c->label,
                    name);
            return err_hint(
                e, "if it is a copy of the target's, remove it from the checkpoint: the target's is used");
        }
        if (!skippable(name))
            return err_set(e, ERR_FORMAT, "%s: tensor %s is not part of a %s that is known", c->label, name,
                           c->fam->hf);
        conv_say(c, CONVERT_DETAIL, "left out: %s, a buffer that is computed", name);
    }
    return 0;
}

int conv_map_tensors(struct conv *c, struct err *e)
{
    int64_t n_rules = 0;
    uint8_t *used = NULL;
    int ret = -1;
    while (c->fam->rules[n_rules].hf) n_rules++;
    if (c->st && count_layers(c, e)) return -1;
    c->t = mem_calloc((size_t)n_rules * (size_t)(c->n_layer + 1), sizeof *c->t);
    used = mem_calloc(c->st && c->st->n_tensors ? c->st->n_tensors : 1, 1);
    if (!c->t || !used) {
        err_set(e, ERR_IO, "out of memory (%d layers)", c->n_layer);
        goto done;
    }
    const struct conv_rule *r = c->fam->rules;
    while (r->hf) {
        const struct conv_rule *end = r + 1;
        if (strstr(r->hf, "%d")) {
            while (end->hf && strstr(end->hf, "%d")) end++;
            for (int32_t l = 0; l < c->n_layer; l++)
                for (const struct conv_rule *q = r; q < end; q++)
                    if (add_tensor(c, q, l, used, e)) goto done;
        } else if (add_tensor(c, r, -1, used, e)) {
            goto done;
        }
        r = end;
    }
    if (c->st && check_unused(c, used, e)) goto done;
    ret = 0;
done:
    mem_free(used);
    return ret;
}

/* ---- sizes against config.json ---- */

static int witness(struct conv *c, const char *key, int64_t have, const char *from, struct err *e)
{
    int64_t v;
    int r = c->cfg ? hf_get_i64(c->cfg, key, 0, INT32_MAX, &v, e) : 1;
    if (r < 0) return -1;
    if (r == 0 && v != have)
        return err_set(e, ERR_FORMAT, "%s: %s does not match the tensors (expected %lld from %s, got %lld)",
                       hf_config_name(c->cfg), key, (long long)have, from, (long long)v);
    return 0;
}

static int split_heads(struct conv *c, enum conv_dim d, int32_t *n, struct err *e)
{
    if (c->dim[d] % c->dim[DIM_HEAD])
        return err_set(
            e, ERR_FORMAT,
            "%s: %s: rows are no whole number of heads (expected a multiple of %lld from %s, got %lld)",
            c->label, c->dim_from[d], (long long)c->dim[DIM_HEAD], c->dim_from[DIM_HEAD],
            (long long)c->dim[d]);
    *n = (int32_t)(c->dim[d] / c->dim[DIM_HEAD]);
    return 0;
}

int conv_heads(struct conv *c, struct err *e)
{
    char from[320];
    c->head_dim = (int32_t)c->dim[DIM_HEAD];
    if (split_heads(c, DIM_Q, &c->n_head, e) || split_heads(c, DIM_KV, &c->n_head_kv, e)) return -1;
    if (c->n_head % c->n_head_kv)
        return err_set(
            e, ERR_FORMAT,
            "%s: heads do not share keys evenly (expected a multiple of %d key heads, got %d heads)",
            c->label, c->n_head_kv, c->n_head);
    if (c->head_dim % 2)
        return err_set(e, ERR_FORMAT, "%s: the head size is odd (expected pairs for the rotation, got %d)",
                       c->label, c->head_dim);
    if (c->o->n_head > 0 && (c->o->n_head != c->n_head || c->o->n_head_kv != c->n_head_kv))
        return err_set(e, ERR_USAGE, "%s: --heads does not match the tensors (expected %d,%d, got %d,%d)",
                       c->label, c->n_head, c->n_head_kv, c->o->n_head, c->o->n_head_kv);
    if (witness(c, "hidden_size", c->dim[DIM_EMBD], c->dim_from[DIM_EMBD], e) ||
        witness(c, "intermediate_size", c->dim[DIM_FF], c->dim_from[DIM_FF], e) ||
        witness(c, "head_dim", c->head_dim, c->dim_from[DIM_HEAD], e))
        return -1;
    snprintf(from, sizeof from, "%s / %s", c->dim_from[DIM_Q], c->dim_from[DIM_HEAD]);
    if (witness(c, "num_attention_heads", c->n_head, from, e)) return -1;
    snprintf(from, sizeof from, "%s / %s", c->dim_from[DIM_KV], c->dim_from[DIM_HEAD]);
    if (witness(c, "num_key_value_heads", c->n_head_kv, from, e) ||
        witness(c, "num_hidden_layers", c->n_layer, "the highest layer number", e))
        return -1;
    if (!c->fam->drafter) {
        c->n_vocab = c->dim[DIM_VOCAB];
        return witness(c, "vocab_size", c->n_vocab, c->dim_from[DIM_VOCAB], e);
    }
    int r = c->cfg ? hf_get_i64(c->cfg, "vocab_size", 1, INT32_MAX, &c->n_vocab, e) : 1;
    return r < 0 ? -1 : 0;
}
