/* convert_shape.c - which tensor is which, and what their shapes say about the model.
 *
 * Shapes are spelled with symbols (enum conv_dim). The first tensor that has a symbol sets its value, every
 * other one must agree; config.json is a witness, not a source, except for random weights, which have no
 * shapes of their own. */
#include "convert_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../base/mem.h"

#define MTP "mtp." /* what the names of blocks that predict further tokens begin with */

static const char *const prefixes[] = {
    "", "model.", "language_model.", "model.language_model.", "language_model.model.", NULL};

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

int conv_set_dim(struct conv *c, enum conv_dim d, int64_t v, const char *from)
{
    c->dim[d] = v;
    snprintf(c->dim_from[d], sizeof c->dim_from[d], "%s", from);
    return 0;
}

int conv_make_divisors(struct conv *c, struct conv_tensor *t, int64_t head, const char *from, const char *of,
                       struct err *e)
{
    if (c->rope.partial != 1 && strcmp(c->rope.type, "proportional"))
        return err_set(e, ERR_FORMAT,
                       "%s: rope_parameters.full_attention: a partial rotation of type %s is not implemented "
                       "(expected \"proportional\")",
                       hf_config_name(c->cfg), c->rope.type);
    const int64_t half = head / 2, turn = (int64_t)(c->rope.partial * (double)half);
    conv_set_dim(c, DIM_ROT, half, from);
    t->made = mem_alloc((size_t)(half + 1) * sizeof *t->made);
    if (!t->made) return err_set(e, ERR_IO, "out of memory (rope divisors)");
    for (int64_t i = 0; i < half; i++) t->made[i] = i < turn ? 1.0f : 1e30f;
    conv_say(c, CONVERT_DETAIL, "%s%lld of %lld pairs of a head turn (rope_freqs.weight)", of,
             (long long)turn, (long long)half);
    return 0;
}

/* ---- random weights: sizes from config.json ---- */

int conv_need_i64(struct conv *c, const char *key, int64_t *v, struct err *e)
{
    int r = hf_get_i64(c->cfg, key, 1, INT32_MAX, v, e);
    if (r == 1)
        return err_set(e, ERR_FORMAT, "%s: %s is missing (there are no weights to tell it)",
                       hf_config_name(c->cfg), key);
    return r;
}

/* Does any rule of the family have this dimension? */
static bool uses(const struct conv *c, enum conv_dim d)
{
    for (const struct conv_rule *r = c->fam->rules; r->hf; r++)
        for (int i = 0; i < 3; i++)
            if (r->dim[i] == d) return true;
    return false;
}

static const char *head_key(const struct conv *c)
{
    return c->fam->head_key ? c->fam->head_key : "head_dim";
}
static const char *kv_key(const struct conv *c)
{
    return c->fam->kv_key ? c->fam->kv_key : "num_key_value_heads";
}

int conv_sizes_from_config(struct conv *c, struct err *e)
{
    int64_t embd, ff = 0, head, heads, kv, layers, vocab = 0;
    if (conv_need_i64(c, "hidden_size", &embd, e) ||
        (uses(c, DIM_FF) && conv_need_i64(c, "intermediate_size", &ff, e)) ||
        conv_need_i64(c, "num_attention_heads", &heads, e) || conv_need_i64(c, kv_key(c), &kv, e) ||
        conv_need_i64(c, "num_hidden_layers", &layers, e))
        return -1;
    if (!uses(c, DIM_HEAD) && !hf_has(c->cfg, "head_dim") && embd % heads == 0) {
        head = embd / heads; /* what a family without head norms means by leaving it out */
        conv_say(c, CONVERT_DETAIL, "head size: %lld (no head_dim: hidden_size / num_attention_heads)",
                 (long long)head);
    } else if (conv_need_i64(c, head_key(c), &head, e)) {
        return -1;
    }
    if (!c->fam->drafter && conv_need_i64(c, "vocab_size", &vocab, e)) return -1;
    if (layers > DESC_MAX_LAYERS)
        return err_set(e, ERR_FORMAT, "%s: num_hidden_layers is out of range (expected at most %d, got %lld)",
                       hf_config_name(c->cfg), DESC_MAX_LAYERS, (long long)layers);
    c->n_layer = (int32_t)layers;
    conv_set_dim(c, DIM_EMBD, embd, "hidden_size");
    conv_set_dim(c, DIM_EMBD2, 2 * embd, "2 x hidden_size");
    if (ff) conv_set_dim(c, DIM_FF, ff, "intermediate_size");
    conv_set_dim(c, DIM_HEAD, head, "head_dim");
    conv_set_dim(c, DIM_Q, heads * head, "num_attention_heads x head_dim");
    conv_set_dim(c, DIM_Q2, 2 * heads * head, "2 x num_attention_heads x head_dim");
    conv_set_dim(c, DIM_KV, kv * head, "num_key_value_heads x head_dim");
    conv_set_dim(c, DIM_VOCAB, vocab, "vocab_size");
    conv_set_dim(c, DIM_FEATURES, c->d.n_taps * embd, "taps x hidden_size");
    return c->fam->sizes ? c->fam->sizes(c, e) : 0;
}

int conv_expert_sizes(struct conv *c, struct err *e)
{
    static const char *const count_paths[] = {"num_experts", "num_local_experts", NULL};
    int64_t n = 0, ff;
    int r = hf_find_i64(c->cfg, count_paths, 1, INT32_MAX, &n, NULL, e);
    if (r < 0 || conv_need_i64(c, "moe_intermediate_size", &ff, e)) return -1;
    if (r == 1) return err_set(e, ERR_FORMAT, "%s: num_experts is missing", hf_config_name(c->cfg));
    conv_set_dim(c, DIM_EXPERTS, n, "num_experts");
    return conv_set_dim(c, DIM_FFX, ff, "moe_intermediate_size");
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

/* Is a tensor of a block that predicts further tokens? */
static bool is_mtp(const char *name)
{
    for (int i = 0; prefixes[i]; i++) {
        const size_t n = strlen(prefixes[i]);
        if (!strncmp(name, prefixes[i], n) && !strncmp(name + n, MTP, strlen(MTP))) return true;
    }
    return false;
}

/* Which blocks that predict further tokens are written: n_mtp, mtp_alone. */
static int count_mtp(struct conv *c, struct err *e)
{
    const enum convert_mtp want = c->o->mtp;
    int64_t said = 1;
    uint64_t n = 0, others = 0;
    if (!conv_has_mtp(c->fam) || want == CONVERT_MTP_NONE) return 0;
    for (uint64_t i = 0; c->st && i < c->st->n_tensors; i++)
        if (is_mtp(c->st->tensor[i].name))
            n++;
        else
            others += layer_of(c->st->tensor[i].name) >= 0;
    if (!(c->st ? n > 0 : want != CONVERT_MTP_FOUND))
        return want == CONVERT_MTP_FOUND
                   ? 0
                   : err_set(e, ERR_FORMAT,
                             "%s: no block that predicts further tokens (expected tensors named "
                             "mtp.*)",
                             c->label);
    const int r = hf_get_i64(c->cfg, "mtp_num_hidden_layers", 0, INT32_MAX, &said, e);
    if (r < 0) return -1;
    if (said != 1)
        return err_set(e, ERR_FORMAT, "%s: mtp_num_hidden_layers is not supported (expected 1, got %lld)",
                       hf_config_name(c->cfg), (long long)said);
    c->n_mtp = 1;
    c->mtp_alone = c->st && !others;
    if (c->mtp_alone && want != CONVERT_MTP_ONLY) {
        err_set(e, ERR_FORMAT, "%s: holds the block that predicts further tokens alone, and no target's",
                c->label);
        return err_hint(e, "--mtp only makes a drafter's file of it");
    }
    return 0;
}

/* What the blocks before would say, where there are none. */
static int alone(struct conv *c, struct err *e)
{
    int64_t layers, vocab;
    bool tied; /* of a head that is not there */
    if (hf_get_bool(c->cfg, "tie_word_embeddings", &tied, e) < 0) return -1;
    if (conv_need_i64(c, "num_hidden_layers", &layers, e) || conv_need_i64(c, "vocab_size", &vocab, e))
        return -1;
    if (layers > DESC_MAX_LAYERS - 1)
        return err_set(e, ERR_FORMAT, "%s: num_hidden_layers is out of range (expected at most %d, got %lld)",
                       hf_config_name(c->cfg), DESC_MAX_LAYERS - 1, (long long)layers);
    c->n_layer = (int32_t)layers;
    conv_set_dim(c, DIM_VOCAB, vocab, "vocab_size");
    return c->fam->sizes ? c->fam->sizes(c, e) : 0;
}

/* Of a drafter's file: the blocks that predict further tokens, and what they share with the target. */
static void drop_target(struct conv *c)
{
    int64_t n = 0;
    for (int64_t i = 0; i < c->n_t; i++) {
        if (c->t[i].layer >= 0 && !(c->t[i].rule->flags & CONV_MTP))
            mem_free(c->t[i].part);
        else
            c->t[n++] = c->t[i];
    }
    c->n_t = n;
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
    if (top < 0 && c->mtp_alone) return alone(c, e);
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

static uint32_t dims_of(const struct conv_rule *r)
{
    return r->dim[2] != DIM_NONE ? 3 : r->dim[1] != DIM_NONE ? 2 : 1;
}

/* Dimension i of a source against what the rule calls it. part: how many of the symbol's size stand in it. */
static int check_dim(struct conv *c, enum conv_dim d, const struct st_tensor *s, uint32_t i, int64_t have,
                     int part, struct err *e)
{
    if (have < 1 || have > INT32_MAX || have % part)
        return err_set(e, ERR_FORMAT, "%s: %s: dimension %u is out of range (got %lld)", c->label, s->name, i,
                       (long long)have);
    if (!c->dim[d]) return conv_set_dim(c, d, have / part, s->name);
    if (c->dim[d] * part != have)
        return err_set(e, ERR_FORMAT,
                       "%s: %s has the wrong shape: dimension %u (expected %lld as in %s, got %lld)",
                       c->label, s->name, i, (long long)c->dim[d] * part, c->dim_from[d], (long long)have);
    return 0;
}

static int check_shape(struct conv *c, const struct conv_rule *r, const struct st_tensor *s, struct err *e)
{
    const enum conv_dim *dim = r->dim + (r->flags & CONV_STACK ? 1 : 0);
    uint32_t want = dims_of(r) - (r->flags & CONV_STACK ? 1 : 0), n = 0;
    int64_t shape[8];
    for (uint32_t i = 0; i < s->n_dims && n < 8; i++)
        if (!(r->flags & CONV_SQUEEZE) || s->shape[i] != 1 || s->n_dims == 1) shape[n++] = s->shape[i];
    /* a dimension that is 1 by its own right may have gone with the others */
    if (r->flags & CONV_SQUEEZE && n + 1 == want && s->n_dims >= want) {
        n = 0;
        for (uint32_t i = s->n_dims - want; i < s->n_dims; i++) shape[n++] = s->shape[i];
    }
    if (n != want)
        return err_set(e, ERR_FORMAT, "%s: %s has the wrong shape (expected %u dimension%s, got %u)",
                       c->label, s->name, want, want == 1 ? "" : "s", s->n_dims);
    const bool whole = s->dtype == ST_I64 || s->dtype == ST_I32;
    if (r->flags & (CONV_IDS | CONV_ORDER) && !whole)
        return err_set(e, ERR_FORMAT, "%s: %s: wrong type (expected I64 or I32, got %s)", c->label, s->name,
                       st_dtype_name(s->dtype));
    if (!(r->flags & (CONV_IDS | CONV_ORDER)) &&
        (whole || s->dtype == ST_I16 || s->dtype == ST_I8 || s->dtype == ST_U8 || s->dtype == ST_BOOL))
        return err_set(e, ERR_FORMAT, "%s: %s is of an integer type (expected floats, got %s)", c->label,
                       s->name, st_dtype_name(s->dtype));
    for (uint32_t i = 0; i < want; i++) {
        int part = r->flags & (CONV_HALF_1 | CONV_HALF_2) && i + 2 == want ? 2 : 1;
        if (check_dim(c, dim[i], s, i, shape[i], part, e)) return -1;
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

/* The experts of a layer, held apart: hf with its second "%d" filled. */
static int find_stack(struct conv *c, const char *hf, struct conv_tensor *t, uint8_t *used, struct err *e)
{
    char name[120];
    const struct st_tensor *s;
    int32_t n = 0;
    for (;; n++) {
        fill_layer(name, sizeof name, hf, n);
        if (find_source(c, name, &s, e)) return -1;
        if (!s) break;
    }
    if (!n) return 0;
    if (!c->dim[DIM_EXPERTS]) conv_set_dim(c, DIM_EXPERTS, n, name);
    if (c->dim[DIM_EXPERTS] != n) {
        fill_layer(name, sizeof name, hf, n);
        return err_set(e, ERR_FORMAT, "%s: %s: wrong number of experts (expected %lld, got %d in a row)",
                       c->label, name, (long long)c->dim[DIM_EXPERTS], n);
    }
    t->part = mem_calloc((size_t)n, sizeof *t->part);
    if (!t->part) return err_set(e, ERR_IO, "out of memory (%d experts)", n);
    for (int32_t i = 0; i < n; i++) {
        fill_layer(name, sizeof name, hf, i);
        if (find_source(c, name, &s, e)) return -1;
        used[s - c->st->tensor] = 1;
        t->part[i] = s;
        if (check_shape(c, t->rule, s, e)) return -1;
        if (s->dtype != t->part[0]->dtype)
            return err_set(e, ERR_FORMAT,
                           "%s: %s is of another type than the first expert (expected %s, got %s)", c->label,
                           s->name, st_dtype_name(t->part[0]->dtype), st_dtype_name(s->dtype));
    }
    t->src = t->part[0];
    return 0;
}

/* The source of one rule, 0 and t->src NULL where there is none. */
static int find_tensor(struct conv *c, struct conv_tensor *t, uint8_t *used, struct err *e)
{
    char hf[128];
    const struct st_tensor *s = NULL;
    fill_layer(hf, sizeof hf, t->rule->hf, t->layer);
    if (t->rule->flags & CONV_STACK) return find_stack(c, hf, t, used, e);
    if (find_source(c, hf, &s, e)) return -1;
    if (!s) return 0;
    used[s - c->st->tensor] = 1;
    t->src = s;
    return check_shape(c, t->rule, s, e);
}

/* Of a rule and its CONV_ALTs, the one that the checkpoint has. */
static int choose(struct conv *c, const struct conv_rule *r, struct conv_tensor *t, uint8_t *used,
                  struct err *e)
{
    char hf[128];
    const struct conv_rule *found = NULL, *q = r;
    do {
        struct conv_tensor one = {.rule = q, .layer = t->layer};
        if (find_tensor(c, &one, used, e)) {
            mem_free(one.part);
            return -1;
        }
        if (one.src && found) {
            mem_free(one.part);
            return err_set(e, ERR_FORMAT, "%s: %s and %s are both there (expected one)", c->label,
                           t->src->name, one.src->name);
        }
        if (one.src) {
            found = q;
            t->rule = q;
            t->src = one.src;
            t->part = one.part;
        }
        q++;
    } while (q->hf && q->flags & CONV_ALT);
    if (found || r->flags & CONV_OPTIONAL) return 0;
    char first[160];
    fill_layer(hf, sizeof hf, r->hf, t->layer);
    fill_layer(first, sizeof first, hf, 0); /* of stacked experts */
    err_set(e, ERR_FORMAT, "%s: tensor %s is missing", c->label, first);
    return t->layer >= 0 ? err_hint(e, "the highest layer number found is %d", c->n_layer - 1) : -1;
}

static void set_shape(const struct conv *c, struct conv_tensor *t)
{
    t->n_dims = dims_of(t->rule);
    for (uint32_t i = 0; i < GGUF_MAX_DIMS; i++)
        t->ne[i] = i < t->n_dims ? c->dim[t->rule->dim[t->n_dims - 1 - i]] : 1;
    bool changed = t->rule->flags & (CONV_PLUS_ONE | CONV_NEG_EXP | CONV_ORDER);
    t->from = t->src && !changed ? source_type(t->src) : KN_F32;
    if (t->rule->flags & CONV_IDS) t->from = KN_I64;
}

/* An optional tensor is there where its sizes are given; a bias, where its matrix is. */
static bool made_at_random(const struct conv *c, const struct conv_tensor *t)
{
    const size_t n = strlen(t->name), bias = strlen(".bias");
    if (t->rule->flags & CONV_STORED) return false;
    for (uint32_t i = 0; i < t->n_dims; i++)
        if (!t->ne[i]) return false;
    if (n < bias || strcmp(t->name + n - bias, ".bias")) return true;
    for (const struct conv_tensor *q = c->t; q < t; q++)
        if (!strncmp(q->name, t->name, n - bias) && !strcmp(q->name + n - bias, ".weight")) return true;
    return false;
}

static int add_tensor(struct conv *c, const struct conv_rule *r, int32_t layer, uint8_t *used, struct err *e)
{
    unsigned kinds = r->flags >> 17 & 0xffu;
    if (r->flags & CONV_MTP ? !c->n_mtp : c->mtp_alone) return 0;
    if (r->flags & CONV_ALT || (kinds && (layer < 0 || !(kinds & c->kind[layer])))) return 0;
    struct conv_tensor *t = &c->t[c->n_t++];
    *t = (struct conv_tensor){.rule = r, .layer = layer};
    fill_layer(t->name, sizeof t->name, r->gguf,
               r->flags & CONV_MTP ? c->n_layer + (layer > 0) * layer : layer);
    if (r->flags & CONV_MADE) {
        if (c->fam->make(c, t, e)) return -1;
        if (!t->made)
            c->n_t--;
        else
            set_shape(c, t);
        return 0;
    }
    if (c->st && choose(c, r, t, used, e)) return -1;
    if (r->flags & CONV_HEAD) {
        const struct st_tensor *embed = NULL;
        bool drop = false;
        for (int64_t i = 0; i < c->n_t; i++)
            if (c->t[i].rule->flags & CONV_EMBED) embed = c->t[i].src;
        if (tied_head(c, t->src, embed, &drop, e)) return -1;
        if (drop) {
            c->n_t--;
            return 0;
        }
    } else if (c->st && !t->src) {
        c->n_t--;
        return 0;
    }
    set_shape(c, t);
    if (!c->st && r->flags & CONV_OPTIONAL && !made_at_random(c, t)) {
        c->n_t--;
        return 0;
    }
    for (uint32_t i = 0; i < t->n_dims; i++)
        if (!t->ne[i])
            return err_set(e, ERR_FORMAT, "%s: the size of %s is not known (dimension %u)", c->label, t->name,
                           i);
    return 0;
}

/* A part that is left out, by the start of its name. */
static const struct conv_relative *skipped(const struct conv *c, const char *name)
{
    for (int i = 0; prefixes[i]; i++) {
        size_t n = strlen(prefixes[i]);
        if (strncmp(name, prefixes[i], n)) continue;
        for (const struct conv_relative *r = c->fam->skip; r && r->part; r++)
            if (!strncmp(name + n, r->part, strlen(r->part)) && !(c->n_mtp && !strcmp(r->part, MTP)))
                return r;
    }
    return NULL;
}

/* How many tensors of every skipped part there were; each one by name with -v. */
static void list_skipped(const struct conv *c, const uint8_t *used)
{
    for (const struct conv_relative *r = c->fam->skip; r && r->part; r++) {
        uint64_t n = 0, bytes = 0;
        for (uint64_t i = 0; i < c->st->n_tensors; i++) {
            const struct st_tensor *s = &c->st->tensor[i];
            if (used[i] || skipped(c, s->name) != r) continue;
            conv_say(c, CONVERT_DETAIL, "left out: %s (%s)", s->name, r->name);
            n++;
            bytes += s->bytes;
        }
        if (n)
            conv_say(c, CONVERT_NOTE, "left out: %llu tensors of the %s (%s*, %.1f MB)",
                     (unsigned long long)n, r->name, r->part, (double)bytes / 1e6);
    }
}

/* The order of relatives counts, not that of tensors: some have the pieces of others. */
static int check_relatives(struct conv *c, const uint8_t *used, struct err *e)
{
    for (const struct conv_relative *r = c->fam->relatives; r && r->part; r++)
        for (uint64_t i = 0; i < c->st->n_tensors; i++)
            if (!used[i] && !skipped(c, c->st->tensor[i].name) && strstr(c->st->tensor[i].name, r->part))
                return err_set(
                    e, ERR_FORMAT,
                    "%s: tensor %s shows a %s drafter, which is not supported (expected a plain %s)",
                    c->label, c->st->tensor[i].name, r->name, c->fam->hf);
    return 0;
}

static int check_unused(struct conv *c, const uint8_t *used, struct err *e)
{
    if (check_relatives(c, used, e)) return -1;
    for (uint64_t i = 0; i < c->st->n_tensors; i++) {
        const char *name = c->st->tensor[i].name;
        if (used[i] || skipped(c, name)) continue;
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
    if (count_mtp(c, e) || (c->st && count_layers(c, e))) return -1;
    conv_set_dim(c, DIM_ONE, 1, "one");
    if (c->fam->kinds && c->fam->kinds(c, e)) return -1;
    c->t = mem_calloc((size_t)n_rules * (size_t)(c->n_layer + 2), sizeof *c->t);
    used = mem_calloc(c->st && c->st->n_tensors ? c->st->n_tensors : 1, 1);
    if (!c->t || !used) {
        err_set(e, ERR_IO, "out of memory (%d layers)", c->n_layer);
        goto done;
    }
    const struct conv_rule *r = c->fam->rules;
    while (r->hf) {
        const struct conv_rule *end = r + 1;
        if (strstr(r->hf, "%d")) {
            const unsigned mtp = r->flags & CONV_MTP;
            while (end->hf && strstr(end->hf, "%d") && (end->flags & CONV_MTP) == mtp) end++;
            for (int32_t l = 0; l < (mtp ? c->n_mtp : c->n_layer); l++)
                for (const struct conv_rule *q = r; q < end; q++)
                    if (add_tensor(c, q, l, used, e)) goto done;
        } else if (add_tensor(c, r, -1, used, e)) {
            goto done;
        }
        r = end;
    }
    if (c->st && check_unused(c, used, e)) goto done;
    if (c->st) list_skipped(c, used);
    if (c->o->mtp == CONVERT_MTP_ONLY) drop_target(c);
    if (c->mtp_alone)
        conv_say(
            c, CONVERT_NOTE,
            "the checkpoint has no embedding: llama.cpp reads a block from a file of its own only beside "
            "token_embd and output_norm (an index that joins the target's files gives them)");
    ret = 0;
done:
    mem_free(used);
    return ret;
}

/* ---- sizes against config.json ---- */

int conv_witness(struct conv *c, const char *key, int64_t have, const char *from, struct err *e)
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

static int check_sizes(struct conv *c, struct err *e)
{
    char from[320];
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
    if (conv_witness(c, "hidden_size", c->dim[DIM_EMBD], c->dim_from[DIM_EMBD], e) ||
        (c->dim[DIM_FF] && conv_witness(c, "intermediate_size", c->dim[DIM_FF], c->dim_from[DIM_FF], e)) ||
        conv_witness(c, head_key(c), c->head_dim, c->dim_from[DIM_HEAD], e))
        return -1;
    snprintf(from, sizeof from, "%s / %s", c->dim_from[DIM_Q], c->dim_from[DIM_HEAD]);
    if (conv_witness(c, "num_attention_heads", c->n_head, from, e)) return -1;
    snprintf(from, sizeof from, "%s / %s", c->dim_from[DIM_KV], c->dim_from[DIM_HEAD]);
    if (conv_witness(c, kv_key(c), c->n_head_kv, from, e) ||
        conv_witness(c, "num_hidden_layers", c->n_layer, "the highest layer number", e))
        return -1;
    if (!c->fam->drafter) {
        c->n_vocab = c->dim[DIM_VOCAB];
        return conv_witness(c, "vocab_size", c->n_vocab, c->dim_from[DIM_VOCAB], e);
    }
    int r = c->cfg ? hf_get_i64(c->cfg, "vocab_size", 1, INT32_MAX, &c->n_vocab, e) : 1;
    return r < 0 ? -1 : 0;
}

int conv_heads(struct conv *c, struct err *e)
{
    c->head_dim = (int32_t)c->dim[DIM_HEAD];
    if (split_heads(c, DIM_Q, &c->n_head, e) || split_heads(c, DIM_KV, &c->n_head_kv, e)) return -1;
    return check_sizes(c, e);
}
