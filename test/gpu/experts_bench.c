/* experts_bench.c - microseconds and bytes of products with experts on the CUDA backend, at real shapes.
 *
 * usage: experts_bench [--variants]    --variants: every form of the kernel, not the chosen one alone
 * A line a product: the rows, the experts that they met (choices are random and independent), the time of one
 * call of a recording of 32 with other choices each, so that matrices come from memory, and the bytes of the
 * experts met over it. Rounding activations is in it. Exit 5 if there is no device. */
#include "experts_data.h"

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

enum { SETS = 32 }; /* of choices, so that experts come from memory */

/* Microseconds of one call, of the recording of SETS. */
static double timed(const struct data *d, const struct shape *s, float *h, int n, bool gated, int sets)
{
    const struct kn_ops *op = kn_op(gpu);
    void *recording;
    must("record_begin", op->record_begin(gpu));
    for (int i = 0; i < sets; i++) {
        const int32_t *ids = d->d_ids + (size_t)i * (size_t)(n * s->used);
        must("experts",
             gated ? op->experts_gated(gpu, h, &d->gate.w, &d->up.w, d->d_x, d->d_norm, eps, s->act, ids, n,
                                       s->used)
                   : op->experts_down(gpu, d->d_out, &d->down.w, h, ids, d->d_weights, n, s->used, true));
    }
    must("record_end", op->record_end(gpu, &recording));
    double best = 1e9;
    for (int r = 0; r < 5; r++) {
        must("sync", op->sync(gpu));
        const double t = now();
        must("replay", op->replay(gpu, recording));
        must("sync", op->sync(gpu));
        best = fmin(best, (now() - t) * 1e6 / sets);
    }
    op->record_free(gpu, recording);
    return best;
}

/* Ways to run a product, beside the chosen one: enum experts_form in experts.cuh. */
static const struct variant {
    const char *name;
    int form, slice_warps, copy_k;
} variants[] = {{"as chosen", -1, 0, 0},     {"plain", 0, 0, 0}, {"held, 4 slices", 1, 4, 0},
                {"held, 2 slices", 1, 2, 0}, {"solo", 2, 0, 0},  {"solo, copies of 1", 2, 0, 1},
                {"staged", 3, 0, 0},         {"owned", 4, 0, 0}, {"owned, copies of 1", 4, 0, 1}};

static void use_variant(const struct variant *v)
{
    static struct experts_tuning chosen;
    if (!chosen.held_rows) chosen = experts_tuning;
    experts_tuning = chosen;
    experts_tuning.form = v->form;
    if (v->slice_warps) experts_tuning.slice_warps = v->slice_warps, experts_tuning.spread_rows = 64;
    if (v->copy_k) experts_tuning.copy_k = v->copy_k;
}

static double experts_met(const struct data *d, const struct shape *s, int n, int sets)
{
    double distinct = 0;
    for (int i = 0; i < sets; i++) {
        char seen[1024] = {0};
        for (int j = 0; j < n * s->used; j++) {
            char *was = seen + d->ids[i * n * s->used + j];
            distinct += !*was;
            *was = 1;
        }
    }
    return distinct / sets;
}

static void bench(bool all)
{
    static const struct shape shapes[] = {
        {"35B-A3B", 256, 8, 2048, 512, KN_Q4_K, KN_Q4_K, KN_ACT_SILU},
        {"35B-A3B, down Q6_K", 256, 8, 2048, 512, KN_Q4_K, KN_Q6_K, KN_ACT_SILU},
        {"30B-A3B", 128, 8, 2048, 768, KN_Q4_K, KN_Q4_K, KN_ACT_SILU},
        {"26B-A4B, down Q5_0", 128, 8, 2816, 704, KN_Q4_K, KN_Q5_0, KN_ACT_GELU_TANH}};
    static const int counts[] = {1, 2, 4, 8, 16, 32, 64, 512, 2048};
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
        const struct shape *s = shapes + k;
        struct data d = {.s = s};
        d.gate = matrices_make(s->gate, s->n_mat, s->ff, s->embd);
        d.up = matrices_make(s->gate, s->n_mat, s->ff, s->embd);
        d.down = matrices_make(s->down, s->n_mat, s->embd, s->ff);
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
            const int n = counts[c], sets = n > 64 ? 2 : SETS;
            data_make(&d, s, n * sets, MIXED);
            float *h = put(d.h, (size_t)n * d.hidden * 4);
            const double distinct = experts_met(&d, s, n, sets);
            for (int gated = 1; gated >= 0; gated--) {
                const double bytes =
                    distinct * (gated ? 2 : 1) * (double)(gated ? d.gate : d.down).w.packed_bytes / s->n_mat;
                for (size_t v = 0;
                     v < (all && k % 3 == 0 && n <= 64 ? sizeof variants / sizeof *variants : 1); v++) {
                    use_variant(variants + v);
                    const double us = timed(&d, s, h, n, gated, sets);
                    printf("%-20s %-5s rows %4d, %5.1f experts: %8.2f us, %6.1f MB, %.2f TB/s, %s\n", s->name,
                           gated ? "gated" : "down", n, distinct, us, bytes * 1e-6, bytes / us * 1e-6,
                           variants[v].name);
                    fflush(stdout);
                }
                use_variant(variants);
            }
            kn_op(gpu)->free(gpu, h);
            data_free(&d);
        }
        matrices_free(&d.gate), matrices_free(&d.up), matrices_free(&d.down);
    }
}

int main(int argc, char **argv)
{
    char msg[256];
    const struct kn_open g = {.device = "cuda"};
    if (argc > 2 || (argc == 2 && strcmp(argv[1], "--variants"))) {
        fprintf(stderr, "usage: experts_bench [--variants]\n");
        return 2;
    }
    if (kn_backend_open(&gpu, &g, msg, sizeof msg)) {
        fprintf(stderr, "experts_bench: %s\n", msg);
        return 5;
    }
    bench(argc == 2);
    kn_backend_close(gpu);
    return 0;
}
