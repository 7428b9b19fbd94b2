/* make_wide.c - a target of the pairs (Qwen3, Qwen3.5) with heads twice as large that computes the same: for
 * types of caches that heads of 64 do not fit.
 *
 * usage: make_wide IN.gguf OUT.gguf [--outliers]     IN: matrices of F32, F16 or BF16
 *
 * The new places of a head are zero. Its norms then divide by a root of mean squares that is sqrt 2 smaller,
 * and scores are scaled by 1 / sqrt(128), not 64: the key's norm takes 1 / sqrt 2, the query's nothing.
 * Rotary pairs (i, i + 32) go to (i, i + 64), with the square of the base where the whole head turns.
 * --outliers: keys are 8 times as large in one rotary pair, values in one place, and what meets them is 20
 * times as small. Both change no output but by rounding, as real models' outliers: they are what coarse
 * caches lose by. */
#include "../common/file/gguf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OLD 64
#define NEW 128
#define LOUD 8.0f
#define PAIR 3  /* the rotary pair of the outlier, and */
#define PLACE 5 /* the place of a value */

static bool outliers, partial; /* partial: only the first dimensions of a head are rotated */

static void die(const char *what, const struct err *e)
{
    fprintf(stderr, "make_wide: %s: %s\n", what, e->msg);
    exit(1);
}

/* Where dimension i of a head goes. */
static int to(int i)
{
    return partial || i < OLD / 2 ? i : i + (NEW - OLD) / 2;
}

static bool ends(const char *name, const char *tail)
{
    const size_t n = strlen(name), m = strlen(tail);
    return n > m && !strcmp(name + n - m, tail);
}

enum kind { AS_IT_IS, HEADS_OUT, HEADS_IN, NORM };
static enum kind kind_of(const char *name)
{
    if (ends(name, ".attn_q.weight") || ends(name, ".attn_k.weight") || ends(name, ".attn_v.weight"))
        return HEADS_OUT;
    if (ends(name, ".attn_output.weight")) return HEADS_IN;
    return ends(name, ".attn_q_norm.weight") || ends(name, ".attn_k_norm.weight") ? NORM : AS_IT_IS;
}

/* What dimension i of a head, in that tensor, is multiplied by. half: of the rotary pairs' first elements to
 * the second. */
static float factor(const char *name, int i, int half)
{
    const bool loud = i == PAIR || i == PAIR + half;
    float f = ends(name, ".attn_k_norm.weight") ? (float)sqrt(0.5) : 1;
    if (!outliers) return f;
    if (ends(name, ".attn_k_norm.weight") && loud) f *= LOUD;
    if (ends(name, ".attn_q_norm.weight") && loud) f /= LOUD;
    if (ends(name, ".attn_v.weight") && i == PLACE) f *= LOUD;
    if (ends(name, ".attn_output.weight") && i == PLACE) f /= LOUD;
    return f;
}

/* The tensor as float [rows][columns], widened. ne: of the new one. */
static float *widen(const struct gguf_tensor *t, int half, int64_t ne[2])
{
    const enum kind kind = kind_of(t->name);
    const int64_t n = t->ne[0], m = t->ne[1];
    float *x = malloc((size_t)(n * m) * sizeof *x);
    kn_decode_row(t->type, t->data, x, n * m);
    ne[0] = kind == HEADS_IN || kind == NORM ? n * 2 : n;
    ne[1] = kind == HEADS_OUT ? m * 2 : m;
    float *y = calloc((size_t)(ne[0] * ne[1]), sizeof *y);
    for (int64_t r = 0; r < m; r++)
        for (int64_t c = 0; c < n; c++) {
            const int64_t along = kind == HEADS_OUT ? r : c, at = along / OLD * NEW + to((int)(along % OLD));
            const float f = factor(t->name, (int)(along % OLD), half);
            y[kind == HEADS_OUT ? at * n + c : r * ne[0] + at] = f * x[r * n + c];
        }
    free(x);
    return y;
}

static void keys(struct gguf_writer *w, const struct gguf *g, const char *arch, struct err *e)
{
    char key[64];
    float base;
    for (uint64_t i = 0; i < g->n_kv; i++)
        if (gguf_put_kv(w, &g->kv[i], e)) die("keys", e);
    snprintf(key, sizeof key, "%s.attention.key_length", arch);
    if (gguf_put_u32(w, key, NEW, e)) die(key, e);
    snprintf(key, sizeof key, "%s.attention.value_length", arch);
    if (gguf_put_u32(w, key, NEW, e)) die(key, e);
    snprintf(key, sizeof key, "%s.rope.freq_base", arch);
    if (gguf_get_f32(g, key, &base, e) || (!partial && gguf_put_f32(w, key, base * base, e))) die(key, e);
}

int main(int argc, char **argv)
{
    struct err e = {0};
    struct gguf *g;
    struct gguf_writer *w;
    struct gguf_str name;
    struct io_out out;
    char arch[32];
    int half = OLD / 2;
    outliers = argc == 4 && !strcmp(argv[3], "--outliers");
    if (argc < 3 || (argc > 3 && !outliers)) {
        fprintf(stderr, "usage: make_wide IN.gguf OUT.gguf [--outliers]\n");
        return 2;
    }
    if (gguf_open(&g, argv[1], &e) || gguf_writer_new(&w, &e) ||
        gguf_get_str(g, "general.architecture", &name, &e))
        die(argv[1], &e);
    snprintf(arch, sizeof arch, "%.*s", (int)name.n, name.s);
    partial = !strcmp(arch, "qwen35");
    if (partial) half = 8; /* of rope.dimension_count 16 */
    keys(w, g, arch, &e);
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        const struct gguf_tensor *t = &g->tensor[i];
        int64_t ne[GGUF_MAX_DIMS];
        const enum kind kind = kind_of(t->name);
        memcpy(ne, t->ne, sizeof ne);
        if (kind == HEADS_IN || kind == NORM) ne[0] *= 2;
        if (kind == HEADS_OUT) ne[1] *= 2;
        if (gguf_add_tensor(w, t->name, kind ? KN_F32 : t->type, t->n_dims, ne, &e)) die(t->name, &e);
    }
    if (io_out_open(&out, argv[2], true, NULL, 0, &e) || gguf_write_header(w, &out, &e)) die(argv[2], &e);
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        const struct gguf_tensor *t = &g->tensor[i];
        int64_t ne[2];
        float *y = kind_of(t->name) ? widen(t, half, ne) : NULL;
        if (gguf_write_data(w, &out, y ? (const void *)y : t->data,
                            y ? (uint64_t)(ne[0] * ne[1]) * 4 : t->bytes, &e))
            die(t->name, &e);
        free(y);
    }
    if (gguf_write_end(w, &out, &e) || io_out_commit(&out, &e)) die(argv[2], &e);
    gguf_writer_free(w);
    gguf_close(g);
    return 0;
}
