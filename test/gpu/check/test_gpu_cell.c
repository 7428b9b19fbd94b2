/* test_gpu_cell.c - what stands between the products of a drafter's chain of picks: the CPU's bits. */
#include "test_gpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 1100, OUTS = 2 * MOST };

/* out, then next, of one cell over a copy of v [11, width]: x, h and bias of three each, e, state. */
static float *run_cell(struct kn_backend *be, enum kn_cell_kind kind, int width, bool bare, const float *v)
{
    const size_t row = (size_t)width;
    float *d = put(be, v, 11 * row * 4), *out = put(be, NULL, OUTS * 4);
    const bool gru = kind == KN_CELL_GRU;
    const struct kn_cell a = {.kind = kind,
                              .width = width,
                              .x = d,
                              .h = gru && !bare ? d + 3 * row : NULL,
                              .bias = bare || gru ? NULL : d + 6 * row,
                              .e = d + 9 * row,
                              .state = bare ? NULL : d + 10 * row,
                              .out = out,
                              .next = out + MOST};
    must(be, "cell", kn_op(be)->cell(be, &a));
    float *host = get(be, out, OUTS * 4);
    drop(be, d), drop(be, out);
    return host;
}

static void check_kinds(void)
{
    static const int widths[] = {1, 64, 255, 256, 257, MOST};
    for (int kind = KN_CELL_SILU; kind <= KN_CELL_LOGP; kind++) {
        int wrong = 0;
        for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
            for (int bare = 0; bare < 2; bare++) {
                rnd_state = 31 + (unsigned)kind;
                float *v = gaussians(11 * MOST, 3.0f), *out[2];
                v[0] = kind == KN_CELL_LOGP ? NAN : 100.0f;
                for (int b = 0; b < 2; b++)
                    out[b] = run_cell(b ? gpu : cpu, (enum kn_cell_kind)kind, widths[w], bare, v);
                for (int i = 0; i < OUTS; i++)
                    wrong += memcmp(&out[0][i], &out[1][i], 4) && !(isnan(out[0][i]) && isnan(out[1][i]));
                free(v), free(out[0]), free(out[1]);
            }
        verdict(!wrong, "cell of kind %d, the CPU's bits: %d differ", kind, wrong);
    }
}

static void check_spread(void)
{
    enum { N = 7, V = 151936, PART = 32000 };
    rnd_state = 41;
    float *x = gaussians(N * PART, 2.0f);
    int32_t *from = malloc(V * sizeof *from);
    int wrong = 0;
    for (int v = 0; v < V; v++) from[v] = v % 4 == 1 && v / 4 < PART ? PART - 1 - v / 4 : -1;
    float *dx = put(gpu, x, N * PART * 4), *dout = put(gpu, NULL, (size_t)N * V * 4);
    int32_t *df = put(gpu, from, V * sizeof *from);
    must(gpu, "spread", kn_op(gpu)->spread(gpu, dout, V, dx, PART, df, N));
    float *out = get(gpu, dout, (size_t)N * V * 4);
    for (int i = 0; i < N; i++)
        for (int v = 0; v < V; v++)
            wrong += out[i * V + v] != (from[v] < 0 ? -INFINITY : x[i * PART + from[v]]);
    verdict(!wrong, "spread: %d wrong", wrong);
    drop(gpu, dx), drop(gpu, dout), drop(gpu, df);
    free(x), free(from), free(out);
}

/* A chain of one slot as a drafter runs it: the row of the token before, a product that is added to a row of
 * logits, a pick, whose id is the next slot's. A row without a number leaves none behind it. */
static void check_chain(void)
{
    enum { SLOTS = 5, RANK = 256, V = 4096 };
    rnd_state = 51;
    float *w1 = gaussians(V * RANK, 0.1f), *w2 = gaussians(V * RANK, 0.1f),
          *logits = gaussians(SLOTS * V, 1.0f);
    for (int broken = 0; broken < 2; broken++) {
        int32_t ids[2][SLOTS + 1], pos[SLOTS] = {10, 11, 12, 13, 14};
        if (broken) logits[2 * V + 5] = NAN;
        for (int b = 0; b < 2; b++) {
            struct kn_backend *be = b ? gpu : cpu;
            const struct kn_ops *op = kn_op(be);
            struct kn_weight before = {0}, after = {0};
            int32_t *d = put(be, NULL, (SLOTS + 1) * 4), *p = put(be, pos, sizeof pos);
            float *l = put(be, logits, SLOTS * V * 4), *e = put(be, NULL, RANK * 4);
            must(be, "reserve", op->reserve(be, 16, RANK, V, 2, 64));
            must(be, "w1", op->weight_load(be, &before, KN_F32, RANK, V, w1, KN_USE_ROWS));
            must(be, "w2", op->weight_load(be, &after, KN_F32, RANK, V, w2, KN_USE_LINEAR));
            for (int i = 0; i < SLOTS; i++) {
                const struct kn_pick pick = {.logits = l + i * V,
                                             .pos = p + i,
                                             .n = 1,
                                             .n_vocab = V,
                                             .sampler = {.top_p = 1, .repeat_penalty = 1},
                                             .out = d + i + 1};
                must(be, "embed", op->embed(be, e, &before, d + i, 1, 1.0f));
                must(be, "linear", op->linear(be, l + i * V, &after, e, 1, true));
                must(be, "pick", op->pick(be, &pick));
            }
            int32_t *host = get(be, d, (SLOTS + 1) * 4);
            memcpy(ids[b], host, sizeof ids[b]);
            op->weight_free(be, &before), op->weight_free(be, &after);
            drop(be, d), drop(be, p), drop(be, l), drop(be, e);
            free(host);
        }
        bool good = !memcmp(ids[0], ids[1], sizeof ids[0]);
        for (int i = 1; i <= SLOTS; i++) good &= (ids[1][i] == KN_PICK_NAN) == (broken && i > 2);
        verdict(good, "a chain of %d picks%s", SLOTS, broken ? ", broken at the third" : "");
    }
    free(w1), free(w2), free(logits);
}

void check_cells(void)
{
    check_kinds();
    check_spread();
    check_chain();
}
