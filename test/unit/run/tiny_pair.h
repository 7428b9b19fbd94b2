/* tiny_pair.h - a random target and drafter of odd sizes, written as GGUF by the test itself.
 *
 * Few ids, so that random proposals are sometimes right and an accepted prefix is exercised. */
#ifndef TEST_TINY_PAIR_H
#define TEST_TINY_PAIR_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include "../../../common/file/gguf.h"
#include "../scratch.h"

enum {
    TINY_EMBD = 40,
    TINY_VOCAB = 11,
    TINY_LAYERS = 3,
    TINY_DRAFT_LAYERS = 2,
    TINY_WINDOW = 12,
    TINY_BLOCK = 5,
    TINY_MASK = 10,
};

struct tiny_tensor {
    char name[48];
    int64_t ne[2];
};

/* What to do differently. Zero: nothing. */
struct tiny {
    bool drafter;
    bool own_ends; /* a drafter with embedding and head in its file: those of every tiny target */
    uint32_t seed;
    uint32_t type;                   /* of the matrices: KN_F32, KN_F16, ... */
    const char *drop_key;            /* a key to leave out */
    const char *drop_tensor;         /* a tensor to leave out */
    const char *nan_tensor;          /* a tensor whose first element is NaN */
    const char *wide_tensor;         /* a tensor with one row too many */
    const struct tiny_tensor *extra; /* more tensors; ends with an empty name. d2t: I64, TINY_REDUCED ids */
    const int64_t *d2t;              /* other ids */
    int (*edit)(struct gguf_writer *w, struct err *e);
};

/* Ids of a reduced vocabulary, whose head has so many rows. */
enum { TINY_REDUCED = 7 };
static const int64_t tiny_d2t[TINY_REDUCED] = {9, 0, 3, 4, 5, 7, 2};

static inline void tiny_add(struct tiny_tensor *t, int *n, const char *name, int64_t ne0, int64_t ne1)
{
    snprintf(t[*n].name, sizeof t[*n].name, "%s", name);
    t[*n].ne[0] = ne0;
    t[(*n)++].ne[1] = ne1;
}

static inline int tiny_tensors(const struct tiny *y, struct tiny_tensor *t)
{
    static const struct {
        const char *name;
        int in, out; /* 0: none, 1: embd, 2: q, 3: kv, 4: ff, 5: head */
    } layer[] = {{"attn_norm", 1, 0},   {"attn_q", 1, 2},      {"attn_k", 1, 3},      {"attn_v", 1, 3},
                 {"attn_output", 2, 1}, {"attn_q_norm", 5, 0}, {"attn_k_norm", 5, 0}, {"ffn_norm", 1, 0},
                 {"ffn_gate", 1, 4},    {"ffn_up", 1, 4},      {"ffn_down", 4, 1}};
    int head = y->drafter ? 48 : 16, n_head = y->drafter ? 4 : 6, n_kv = 2, ff = y->drafter ? 36 : 52, n = 0;
    int64_t dim[] = {0, TINY_EMBD, n_head * head, n_kv * head, ff, head};
    char name[48];
    if (y->drafter) {
        tiny_add(t, &n, "fc.weight", 2 * TINY_EMBD, TINY_EMBD);
        tiny_add(t, &n, "enc.output_norm.weight", TINY_EMBD, 0);
    } else {
        tiny_add(t, &n, "token_embd.weight", TINY_EMBD, TINY_VOCAB);
        /* A tied head would name the input's own id, and a mask row the mask. */
        tiny_add(t, &n, "output.weight", TINY_EMBD, TINY_VOCAB);
    }
    if (y->own_ends) {
        tiny_add(t, &n, "token_embd.weight", TINY_EMBD, TINY_VOCAB);
        tiny_add(t, &n, "output.weight", TINY_EMBD, TINY_VOCAB);
    }
    tiny_add(t, &n, "output_norm.weight", TINY_EMBD, 0);
    for (int i = 0; i < (y->drafter ? TINY_DRAFT_LAYERS : TINY_LAYERS); i++)
        for (size_t j = 0; j < sizeof layer / sizeof layer[0]; j++) {
            snprintf(name, sizeof name, "blk.%d.%s.weight", i, layer[j].name);
            tiny_add(t, &n, name, dim[layer[j].in], dim[layer[j].out]);
        }
    for (const struct tiny_tensor *x = y->extra; x && x->name[0]; x++) t[n++] = *x;
    for (int i = 0; i < n; i++) {
        if (y->wide_tensor && !strcmp(t[i].name, y->wide_tensor))
            t[i].ne[1] += t[i].ne[1] ? 1 : 0, t[i].ne[0] += t[i].ne[1] ? 0 : 1;
        if (y->drop_tensor && !strcmp(t[i].name, y->drop_tensor)) {
            memmove(t + i, t + i + 1, (size_t)(n - i - 1) * sizeof *t);
            n--;
            i--;
        }
    }
    return n;
}

static inline int tiny_keys(const struct tiny *y, struct gguf_writer *w, struct err *e)
{
    const char *arch = y->drafter ? "dflash" : "qwen3";
    const struct {
        const char *key;
        uint32_t v;
    } u[] = {{"block_count", y->drafter ? TINY_DRAFT_LAYERS : TINY_LAYERS},
             {"context_length", 4096},
             {"embedding_length", TINY_EMBD},
             {"feed_forward_length", y->drafter ? 36 : 52},
             {"attention.head_count", y->drafter ? 4 : 6},
             {"attention.head_count_kv", 2},
             {"attention.key_length", y->drafter ? 48 : 16}};
    const uint8_t sliding[] = {1, 0};
    const int32_t taps[] = {1, 3}; /* after blocks 0 and 2 */
    char key[64];
    int bad = gguf_put_str(w, "general.architecture", arch, strlen(arch), e);
    bad |= gguf_put_str(w, "general.name", y->drafter ? "tiny drafter" : "tiny", y->drafter ? 12 : 4, e);
    for (size_t i = 0; i < sizeof u / sizeof u[0]; i++) {
        snprintf(key, sizeof key, "%s.%s", arch, u[i].key);
        bad |= gguf_put_u32(w, key, u[i].v, e);
    }
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", arch);
    bad |= gguf_put_f32(w, key, 1e-6f, e);
    snprintf(key, sizeof key, "%s.rope.freq_base", arch);
    bad |= gguf_put_f32(w, key, 10000, e);
    if (y->drafter) {
        bad |= gguf_put_u32(w, "dflash.block_size", TINY_BLOCK, e);
        bad |= gguf_put_array(w, "dflash.target_layers", GGUF_I32, taps, 2, e);
        bad |= gguf_put_u32(w, "tokenizer.ggml.mask_token_id", TINY_MASK, e);
        bad |= gguf_put_u32(w, "dflash.attention.sliding_window", TINY_WINDOW, e);
        bad |= gguf_put_array(w, "dflash.attention.sliding_window_pattern", GGUF_BOOL, sliding, 2, e);
    }
    if (y->drop_key) gguf_remove(w, y->drop_key);
    if (y->edit) bad |= y->edit(w, e);
    return bad ? -1 : 0;
}

/* xorshift, then roughly normal with the scale that keeps a layer's output of the order of its input */
static inline float tiny_random(uint64_t *x, float scale)
{
    double sum = 0;
    for (int i = 0; i < 4; i++) {
        *x ^= *x << 13;
        *x ^= *x >> 7;
        *x ^= *x << 17;
        sum += (double)(*x >> 11) / 9007199254740992.0 - 0.5;
    }
    return (float)(sum * 1.73) * scale;
}

static inline int tiny_data(const struct tiny *y, struct gguf_writer *w, struct io_out *o,
                            const struct tiny_tensor *t, uint64_t *x, struct err *e)
{
    static float v[TINY_EMBD * 4 * 48];
    static uint8_t packed[sizeof v];
    int64_t n = t->ne[0] * (t->ne[1] ? t->ne[1] : 1);
    uint32_t type = t->ne[1] ? y->type : KN_F32;
    uint64_t ends = 0x5a45f4914f6cdd1du + strlen(t->name); /* embedding and head are the same in every file */
    if (!strcmp(t->name, "token_embd.weight") || !strcmp(t->name, "output.weight")) x = &ends;
    for (int64_t i = 0; i < n; i++)
        v[i] = t->ne[1] ? tiny_random(x, 1.6f / sqrtf((float)t->ne[0])) : 1 + tiny_random(x, 0.2f);
    if (!strcmp(t->name, "token_embd.weight"))
        for (int64_t i = 0; i < n; i++) v[i] *= 2;
    if (y->nan_tensor && !strcmp(t->name, y->nan_tensor)) v[0] = NAN;
    if (!strcmp(t->name, "d2t")) return gguf_write_data(w, o, y->d2t ? y->d2t : tiny_d2t, sizeof tiny_d2t, e);
    if (type == KN_F32) return gguf_write_data(w, o, v, (uint64_t)n * sizeof *v, e);
    if (kn_encode_row(type, v, packed, n, NULL)) return err_set(e, ERR_FORMAT, "encode");
    return gguf_write_data(w, o, packed, kn_row_bytes(type, t->ne[0]) * (uint64_t)t->ne[1], e);
}

/* Write the file; returns 0, or -1 with e filled. */
static inline int tiny_write(const char *path, const struct tiny *y, struct err *e)
{
    struct tiny_tensor t[64];
    struct gguf_writer *w = NULL;
    struct io_out o = {0};
    uint64_t x = 0x9e3779b97f4a7c15u ^ ((uint64_t)y->seed << 20);
    int n = tiny_tensors(y, t), rc = -1;
    if (gguf_writer_new(&w, e) || tiny_keys(y, w, e)) goto out;
    for (int i = 0; i < n; i++)
        if (gguf_add_tensor(w, t[i].name,
                            !strcmp(t[i].name, "d2t") ? KN_I64
                            : t[i].ne[1]              ? y->type
                                                      : KN_F32,
                            t[i].ne[1] ? 2 : 1, t[i].ne, e))
            goto out;
    if (io_out_open(&o, path, true, NULL, 0, e) || gguf_write_header(w, &o, e)) goto out;
    for (int i = 0; i < n; i++)
        if (tiny_data(y, w, &o, &t[i], &x, e)) goto out;
    rc = gguf_write_end(w, &o, e) || io_out_commit(&o, e) ? -1 : 0;
out:
    io_out_abort(&o);
    gguf_writer_free(w);
    return rc;
}

#endif
