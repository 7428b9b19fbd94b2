/* dialect_files.h - drafter GGUFs as other engines write them: one drafter, spelled in every dialect.
 *
 * The spellings stand here once more, apart from the table that the programs read them by
 * (common/describe/dialect.c), as the engines' own writers have them: without our keys, with their quirks.
 * The drafter is made here (a few KB), or it is that of a file in the dialect upstream. Used by
 * test/unit/describe/test_dialects.c and test/make_dialects.c. */
#ifndef TEST_DIALECT_FILES_H
#define TEST_DIALECT_FILES_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../common/file/gguf.h"

enum {
    DF_EMBD = 32,
    DF_HEAD = 16,
    DF_HEADS = 4,
    DF_KV = 2,
    DF_FF = 48,
    DF_LAYERS = 2,
    DF_VOCAB = 40,
    DF_TAPS = 2,
    DF_BLOCK = 6,
    DF_MASK = 39,
    DF_WINDOW = 12,
};
static const int32_t df_taps[DF_TAPS] = {0, 2}; /* zero-based */

struct spelling {
    const char *name, *arch;
    const char *taps, *block, *mask; /* whole keys but for the architecture's "@." */
    int shift;
    const char *width; /* NULL: no such key */
    int width_is;      /* 1: features, 2: number of taps, 3: width of the target */
    const char *fc, *hidden_norm, *ffn_norm;
    bool pattern; /* writes sliding windows with their pattern */
    int causal;   /* -1: no such key, else its value */
    bool tokenizer;
};
static const struct spelling spellings[] = {
    {"upstream", "dflash", "@.target_layers", "@.block_size", "tokenizer.ggml.mask_token_id", 1, NULL, 0,
     "fc.weight", "enc.output_norm.weight", "ffn_norm", true, -1, true},
    {"unshifted", "dflash", "@.target_layers", "@.block_size", "@.mask_token_id", 0, "@.target_hidden_size",
     3, "fc.weight", "enc.output_norm.weight", "ffn_norm", true, -1, true},
    {"unshifted-2", "dflash", "@.target_layers", "@.block_size", "tokenizer.ggml.mask_token_id", 0,
     "@.target_hidden_size", 3, "fc.weight", "enc.output_norm.weight", "ffn_norm", true, -1, true},
    {"rx", "dflash", "@.target_layer_ids", "@.block_size", "@.mask_token_id", 1, NULL, 0, "fc.weight",
     "hidden_norm.weight", "ffn_norm", false, -1, true},
    {"ik", "dflash-draft", "@.dflash.target_layer_ids", "@.dflash.block_size", "@.dflash.mask_token_id", 0,
     "@.dflash.n_target_features", 1, "dflash_fc.weight", "dflash_hidden_norm.weight", "post_attention_norm",
     true, 0, true},
    {"buun", "dflash-draft", "@.dflash.target_layer_ids", "@.dflash.block_size", "@.dflash.mask_token_id", 0,
     "@.dflash.n_target_features", 1, "dflash_fc.weight", "dflash_hidden_norm.weight", "post_attention_norm",
     true, -1, true},
    {"lucebox", "qwen35-dflash-draft", "@.dflash.target_layer_ids", "@.dflash.block_size",
     "@.dflash.mask_token_id", 0, "@.dflash.n_target_layers", 2, "dflash.fc.weight",
     "dflash.hidden_norm.weight", "ffn_norm", true, -1, false},
    {"lucebox-gemma4", "gemma4-dflash-draft", "@.dflash.target_layer_ids", "@.dflash.block_size",
     "@.dflash.mask_token_id", 0, "@.dflash.n_target_layers", 2, "dflash.fc.weight",
     "dflash.hidden_norm.weight", "ffn_norm", true, -1, false},
    {"lucebox-draft", "dflash-draft", "@.dflash.target_layer_ids", "@.dflash.block_size",
     "@.dflash.mask_token_id", 0, "@.dflash.n_target_layers", 2, "dflash.fc.weight",
     "dflash.hidden_norm.weight", "ffn_norm", true, -1, false},
    /* lucebox's reader takes these names too, and its writers use them in turn */
    {"lucebox-names", "qwen35-dflash-draft", "@.dflash.target_layer_ids", "@.dflash.block_size",
     "@.dflash.mask_token_id", 0, "@.dflash.n_target_layers", 2, "dflash_fc.weight",
     "dflash_hidden_norm.weight", "post_attention_norm", true, -1, false},
};
enum { N_SPELLINGS = sizeof spellings / sizeof spellings[0] };

/* ---- the drafter ---- */

struct df_tensor {
    char name[64]; /* upstream's */
    uint32_t type, n_dims;
    int64_t ne[GGUF_MAX_DIMS];
    const void *data;
    uint64_t bytes;
};

struct df_drafter {
    struct gguf *from; /* NULL: made here */
    int32_t n_layer, n_embd, n_taps, taps[64], block, mask, window;
    uint8_t sliding[64];
    struct df_tensor t[256];
    int n;
    float *values; /* of the made one */
};

struct df_extra {
    const char *name;
    int64_t ne[3]; /* 0: no such dimension */
};

/* How a file differs from the plain one of its dialect; all zero: not at all. */
struct df_change {
    bool windows;             /* the first layer slides */
    const char *drop, *drop2; /* keys to leave out, after spelling ("@." is the architecture) */
    const char *drop_tensor;
    const char *extra_tensor;     /* [DF_EMBD] */
    const struct df_extra *extra; /* of zeros; ends with name NULL */
    int (*edit)(struct gguf_writer *w, struct err *e);
};

static inline void df_add(struct df_drafter *d, const char *name, int64_t ne0, int64_t ne1, size_t *at)
{
    struct df_tensor *t = &d->t[d->n++];
    *t = (struct df_tensor){.type = KN_F32, .n_dims = ne1 ? 2 : 1, .ne = {ne0, ne1 ? ne1 : 1, 1, 1}};
    snprintf(t->name, sizeof t->name, "%s", name);
    const size_t count = (size_t)(ne0 * (ne1 ? ne1 : 1));
    t->bytes = count * sizeof(float);
    t->data = d->values + *at;
    for (size_t i = 0; i < count; i++) { /* the same for any order of tensors */
        uint32_t h = 2166136261u;
        for (const char *c = t->name; *c; c++) h = (h ^ (uint8_t)*c) * 16777619u;
        h = (h ^ (uint32_t)i) * 2654435761u;
        h ^= h >> 15;
        d->values[*at + i] = ne1 ? ((float)(h % 2001) - 1000) * 2e-4f : 1 + ((float)(h % 201) - 100) * 1e-3f;
    }
    *at += count;
}

/* The made one: at most 32768 values. */
static inline void df_make(struct df_drafter *d)
{
    static const struct {
        const char *name;
        int64_t ne0, ne1;
    } layer[] = {{"attn_norm", DF_EMBD, 0},
                 {"attn_q", DF_EMBD, DF_HEADS * DF_HEAD},
                 {"attn_k", DF_EMBD, DF_KV * DF_HEAD},
                 {"attn_v", DF_EMBD, DF_KV * DF_HEAD},
                 {"attn_output", DF_HEADS * DF_HEAD, DF_EMBD},
                 {"attn_q_norm", DF_HEAD, 0},
                 {"attn_k_norm", DF_HEAD, 0},
                 {"ffn_norm", DF_EMBD, 0},
                 {"ffn_gate", DF_EMBD, DF_FF},
                 {"ffn_up", DF_EMBD, DF_FF},
                 {"ffn_down", DF_FF, DF_EMBD}};
    char name[64];
    size_t at = 0;
    memset(d, 0, sizeof *d);
    d->values = calloc(32768, sizeof *d->values);
    d->n_layer = DF_LAYERS;
    d->n_embd = DF_EMBD;
    d->n_taps = DF_TAPS;
    memcpy(d->taps, df_taps, sizeof df_taps);
    d->block = DF_BLOCK;
    d->mask = DF_MASK;
    d->window = DF_WINDOW;
    d->sliding[0] = 1;
    df_add(d, "fc.weight", DF_TAPS * DF_EMBD, DF_EMBD, &at);
    df_add(d, "enc.output_norm.weight", DF_EMBD, 0, &at);
    for (int i = 0; i < DF_LAYERS; i++)
        for (size_t j = 0; j < sizeof layer / sizeof layer[0]; j++) {
            snprintf(name, sizeof name, "blk.%d.%s.weight", i, layer[j].name);
            df_add(d, name, layer[j].ne0, layer[j].ne1, &at);
        }
    df_add(d, "output_norm.weight", DF_EMBD, 0, &at);
}

/* That of a file in the dialect upstream. */
static inline int df_open(struct df_drafter *d, const char *path, struct err *e)
{
    uint32_t v = 0;
    memset(d, 0, sizeof *d);
    if (gguf_open(&d->from, path, e)) return -1;
    const struct gguf_kv *taps = gguf_find(d->from, "dflash.target_layers");
    const struct gguf_kv *sliding = gguf_find(d->from, "dflash.attention.sliding_window_pattern");
    if (!taps || taps->count > 64 || d->from->n_tensors > 256)
        return err_set(e, ERR_FORMAT, "%s: not upstream", path);
    gguf_get_i32(d->from, "dflash.block_count", &d->n_layer, e);
    gguf_get_i32(d->from, "dflash.embedding_length", &d->n_embd, e);
    gguf_get_i32(d->from, "dflash.block_size", &d->block, e);
    gguf_get_i32(d->from, "tokenizer.ggml.mask_token_id", &d->mask, e);
    if (gguf_get_u32(d->from, "dflash.attention.sliding_window", &v, e) == 0) d->window = (int32_t)v;
    for (int i = 0; sliding && i < d->n_layer; i++)
        d->sliding[i] = (uint8_t)gguf_array_i64(sliding, (uint64_t)i);
    d->n_taps = (int32_t)taps->count;
    for (int i = 0; i < d->n_taps; i++) d->taps[i] = (int32_t)gguf_array_i64(taps, (uint64_t)i) - 1;
    for (uint64_t i = 0; i < d->from->n_tensors; i++) {
        const struct gguf_tensor *g = &d->from->tensor[i];
        struct df_tensor *t = &d->t[d->n++];
        *t = (struct df_tensor){.type = g->type, .n_dims = g->n_dims, .data = g->data, .bytes = g->bytes};
        snprintf(t->name, sizeof t->name, "%s", g->name);
        memcpy(t->ne, g->ne, sizeof t->ne);
    }
    return 0;
}

static inline void df_free(struct df_drafter *d)
{
    gguf_close(d->from);
    free(d->values);
}

/* ---- a file ---- */

static inline const char *df_key(const struct spelling *s, const char *key, char *buf, size_t n)
{
    if (key[0] == '@')
        snprintf(buf, n, "%s%s", s->arch, key + 1);
    else
        snprintf(buf, n, "%s", key);
    return buf;
}

static inline bool df_dropped(const struct spelling *s, const struct df_change *c, const char *key)
{
    char a[160];
    return (c->drop && !strcmp(df_key(s, c->drop, a, sizeof a), key)) ||
           (c->drop2 && !strcmp(df_key(s, c->drop2, a, sizeof a), key));
}

static inline int df_u32(struct gguf_writer *w, const struct spelling *s, const struct df_change *c,
                         const char *key, int64_t v, struct err *e)
{
    char k[160];
    df_key(s, key, k, sizeof k);
    return df_dropped(s, c, k) ? 0 : gguf_put_u32(w, k, (uint32_t)v, e);
}

/* The keys of the made one's sizes; of a file the same ones from it. */
static inline int df_sizes(struct gguf_writer *w, const struct df_drafter *d, const struct spelling *s,
                           const struct df_change *c, struct err *e)
{
    static const struct {
        const char *key;
        int64_t v;
    } u[] = {{"context_length", 512},
             {"embedding_length", DF_EMBD},
             {"block_count", DF_LAYERS},
             {"feed_forward_length", DF_FF},
             {"attention.head_count", DF_HEADS},
             {"attention.head_count_kv", DF_KV},
             {"attention.key_length", DF_HEAD},
             {"attention.value_length", DF_HEAD},
             {"vocab_size", DF_VOCAB}};
    static const char *const f[] = {"attention.layer_norm_rms_epsilon", "rope.freq_base"};
    static const float fv[] = {1e-6f, 10000};
    char rel[160], up[160], k[160];
    int bad = 0;
    for (size_t i = 0; i < sizeof u / sizeof u[0]; i++) {
        uint32_t v = (uint32_t)u[i].v;
        snprintf(up, sizeof up, "dflash.%s", u[i].key);
        if (d->from) bad |= gguf_get_u32(d->from, up, &v, e) < 0;
        snprintf(rel, sizeof rel, "@.%s", u[i].key);
        bad |= df_u32(w, s, c, rel, v, e);
    }
    for (int i = 0; i < 2; i++) {
        float v = fv[i];
        snprintf(up, sizeof up, "dflash.%s", f[i]);
        if (d->from) bad |= gguf_get_f32(d->from, up, &v, e) < 0;
        snprintf(k, sizeof k, "%s.%s", s->arch, f[i]);
        if (!df_dropped(s, c, k)) bad |= gguf_put_f32(w, k, v, e);
    }
    return bad;
}

static inline int df_keys(struct gguf_writer *w, const struct df_drafter *d, const struct spelling *s,
                          const struct df_change *c, struct err *e)
{
    char k[160];
    int32_t ids[64];
    int bad = gguf_put_str(w, "general.architecture", s->arch, strlen(s->arch), e);
    bad |= df_sizes(w, d, s, c, e);
    for (int i = 0; i < d->n_taps; i++) ids[i] = d->taps[i] + s->shift;
    df_key(s, s->taps, k, sizeof k);
    if (!df_dropped(s, c, k)) bad |= gguf_put_array(w, k, GGUF_I32, ids, (uint64_t)d->n_taps, e);
    bad |= df_u32(w, s, c, s->block, d->block, e);
    bad |= df_u32(w, s, c, s->mask, d->mask, e);
    const int64_t width[] = {0, (int64_t)d->n_taps * d->n_embd, d->n_taps, d->n_embd};
    if (s->width) bad |= df_u32(w, s, c, s->width, width[s->width_is], e);
    if (s->causal >= 0 && !df_dropped(s, c, df_key(s, "@.attention.causal", k, sizeof k)))
        bad |= gguf_put_bool(w, k, s->causal != 0, e);
    if (c->windows) {
        bad |= df_u32(w, s, c, "@.attention.sliding_window", d->window, e);
        df_key(s, "@.attention.sliding_window_pattern", k, sizeof k);
        if (s->pattern && !df_dropped(s, c, k))
            bad |= gguf_put_array(w, k, GGUF_BOOL, d->sliding, (uint64_t)d->n_layer, e);
    }
    for (uint64_t i = 0; d->from && s->tokenizer && i < d->from->n_kv; i++)
        if (!strncmp(d->from->kv[i].key, "tokenizer.", 10) &&
            strcmp(d->from->kv[i].key, "tokenizer.ggml.mask_token_id"))
            bad |= gguf_put_kv(w, &d->from->kv[i], e);
    if (c->edit) bad |= c->edit(w, e);
    return bad ? -1 : 0;
}

static inline const char *df_name(const struct spelling *s, const char *name, char *buf, size_t n)
{
    int layer, at = 0;
    if (!strcmp(name, "fc.weight"))
        snprintf(buf, n, "%s", s->fc);
    else if (!strcmp(name, "enc.output_norm.weight"))
        snprintf(buf, n, "%s", s->hidden_norm);
    else if (sscanf(name, "blk.%d.ffn_norm.weight%n", &layer, &at) == 1 && at)
        snprintf(buf, n, "blk.%d.%s.weight", layer, s->ffn_norm);
    else
        snprintf(buf, n, "%s", name);
    return buf;
}

static inline int df_write(const char *path, const struct df_drafter *d, const struct spelling *s,
                           const struct df_change *c, struct err *e)
{
    static const float extra[8192];
    const int64_t extra_ne[GGUF_MAX_DIMS] = {DF_EMBD, 1, 1, 1};
    struct gguf_writer *w = NULL;
    struct io_out o = {.fd = -1};
    char name[96];
    int rc = -1;
    if (gguf_writer_new(&w, e) || df_keys(w, d, s, c, e)) goto out;
    for (int i = 0; i < d->n; i++) {
        if (c->drop_tensor && !strcmp(d->t[i].name, c->drop_tensor)) continue;
        if (gguf_add_tensor(w, df_name(s, d->t[i].name, name, sizeof name), d->t[i].type, d->t[i].n_dims,
                            d->t[i].ne, e))
            goto out;
    }
    if (c->extra_tensor && gguf_add_tensor(w, c->extra_tensor, KN_F32, 1, extra_ne, e)) goto out;
    for (const struct df_extra *x = c->extra; x && x->name; x++)
        if (gguf_add_tensor(w, x->name, KN_F32,
                            x->ne[2]   ? 3
                            : x->ne[1] ? 2
                                       : 1,
                            (int64_t[]){x->ne[0], x->ne[1] ? x->ne[1] : 1, x->ne[2] ? x->ne[2] : 1, 1}, e))
            goto out;
    if (io_out_open(&o, path, true, NULL, 0, e) || gguf_write_header(w, &o, e)) goto out;
    for (int i = 0; i < d->n; i++)
        if (!(c->drop_tensor && !strcmp(d->t[i].name, c->drop_tensor)) &&
            gguf_write_data(w, &o, d->t[i].data, d->t[i].bytes, e))
            goto out;
    if (c->extra_tensor && gguf_write_data(w, &o, extra, DF_EMBD * sizeof extra[0], e)) goto out;
    for (const struct df_extra *x = c->extra; x && x->name; x++) {
        const int64_t n = x->ne[0] * (x->ne[1] ? x->ne[1] : 1) * (x->ne[2] ? x->ne[2] : 1);
        if (n > 8192 || gguf_write_data(w, &o, extra, (uint64_t)n * sizeof extra[0], e)) goto out;
    }
    if (gguf_write_end(w, &o, e) || io_out_commit(&o, e)) goto out;
    rc = 0;
out:
    if (rc) io_out_abort(&o);
    gguf_writer_free(w);
    return rc;
}

#endif
