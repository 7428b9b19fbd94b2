/* experts_bench.c - microseconds and bytes of products with experts on the CUDA backend, at real shapes.
 *
 * usage: experts_bench [--variants | --mixtures]    --variants: every form of the kernel, not the chosen one
 * alone;
 * --mixtures: whole mixtures alone
 * A line a product: the rows, the experts that they met (choices are random and independent), the time of one
 * call of a recording of 32 with other choices each, so that matrices come from memory, and the bytes of the
 * experts met over it. Rounding activations is in it. Then whole mixtures, with their routers. Exit 5 if
 * there is no device. */
#include "../experts_data.h"

enum { SETS = 32 }; /* of choices, so that experts come from memory */

/* Microseconds of one call, of the recording of SETS. */
static double timed(const struct data *d, const struct shape *s, float *h, int n, bool gated, int sets)
{
    const struct kn_ops *op = kn_op(gpu);
    void *recording;
    must(gpu, "record_begin", op->record_begin(gpu));
    for (int i = 0; i < sets; i++) {
        const int32_t *ids = d->d_ids + (size_t)i * (size_t)(n * s->used);
        must(gpu, "experts",
             gated ? op->experts_gated(gpu, h, &d->gate.w, &d->up.w, d->d_x, d->d_norm, eps, s->act, ids, n,
                                       s->used)
                   : op->experts_down(gpu, d->d_out, &d->down.w, h, ids, d->d_weights, n, s->used, true));
    }
    must(gpu, "record_end", op->record_end(gpu, &recording));
    double best = 1e9;
    for (int r = 0; r < 5; r++) {
        must(gpu, "sync", op->sync(gpu));
        const double t = seconds_now();
        must(gpu, "replay", op->replay(gpu, recording));
        must(gpu, "sync", op->sync(gpu));
        best = fmin(best, (seconds_now() - t) * 1e6 / sets);
    }
    op->record_free(gpu, recording);
    return best;
}

/* Ways to run a product, beside the chosen one: enum experts_form in experts.cuh. */
static const struct variant {
    const char *name;
    int form, slice_warps, copy_k, tile; /* tile: 1 + log2 of tiles of 8, staged */
} variants[] = {{"as chosen", -1, 0, 0, 0},
                {"plain", 0, 0, 0, 0},
                {"held, 4 slices", 1, 4, 0, 0},
                {"held, 2 slices", 1, 2, 0, 0},
                {"solo", 2, 0, 0, 0},
                {"solo, copies of 1", 2, 0, 1, 0},
                {"staged, tiles of 8", 3, 0, 0, 1},
                {"staged, 16", 3, 0, 0, 2},
                {"staged, 32", 3, 0, 0, 3},
                {"staged, 8, copies of 1", 3, 0, 1, 1},
                {"owned", 4, 0, 0, 0},
                {"owned, copies of 1", 4, 0, 1, 0}};

static void use_variant(const struct variant *v)
{
    static struct experts_tuning chosen;
    if (!chosen.held_rows) chosen = experts_tuning;
    experts_tuning = chosen;
    experts_tuning.form = v->form;
    experts_tuning.staged_tile = v->tile - 1;
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

/* Gate and up of eight layers in turn, as in a model: their matrices lie in gigabytes. */
static void bench_spread(struct data *d, const struct shape *s, const int *counts)
{
    enum { LAYERS = 8 };
    const struct kn_ops *op = kn_op(gpu);
    struct kn_weight gate[LAYERS], up[LAYERS];
    for (int i = 0; i < LAYERS; i++) {
        must(gpu, "experts_load",
             op->experts_load(gpu, &gate[i], s->gate, s->embd, s->ff, s->n_mat, d->gate.file));
        must(gpu, "experts_load",
             op->experts_load(gpu, &up[i], s->gate, s->embd, s->ff, s->n_mat, d->up.file));
    }
    for (; *counts && *counts <= 64; counts++) {
        const int n = *counts;
        data_make(d, s, n * SETS, MIXED);
        float *h = put(gpu, d->h, (size_t)n * d->hidden * 4);
        void *recording;
        double best = 1e9;
        must(gpu, "record_begin", op->record_begin(gpu));
        for (int i = 0; i < SETS; i++)
            must(gpu, "experts_gated",
                 op->experts_gated(gpu, h, &gate[i % LAYERS], &up[i % LAYERS], d->d_x, d->d_norm, eps, s->act,
                                   d->d_ids + (size_t)i * (size_t)(n * s->used), n, s->used));
        must(gpu, "record_end", op->record_end(gpu, &recording));
        for (int r = 0; r < 5; r++) {
            must(gpu, "sync", op->sync(gpu));
            const double t = seconds_now();
            must(gpu, "replay", op->replay(gpu, recording));
            must(gpu, "sync", op->sync(gpu));
            best = fmin(best, (seconds_now() - t) * 1e6 / SETS);
        }
        printf("%-20s gated rows %4d: %8.2f us, of %d layers in turn\n", s->name, n, best, LAYERS);
        op->record_free(gpu, recording);
        op->free(gpu, h);
        data_free(d);
    }
    for (int i = 0; i < LAYERS; i++) op->weight_free(gpu, &gate[i]), op->weight_free(gpu, &up[i]);
}

/* A mixture with its router, and a shared expert of its experts' type or none; of one row also in one launch
 * a row. */
static void bench_mixture(struct data *d, const struct shape *s, bool one, const int *counts)
{
    const struct kn_ops *op = kn_op(gpu);
    const int used = s->used + one;
    struct matrices router[2];
    struct kn_weight shared[3];
    const struct matrices *const own[3] = {&d->gate, &d->up, &d->down};
    for (int j = 0; j < 2; j++) {
        const size_t rows = j ? 1 : (size_t)s->n_mat, size = rows * (size_t)s->embd;
        router[j] = (struct matrices){.file = host_alloc(size * 4)};
        for (size_t i = 0; i < size; i++) ((float *)router[j].file)[i] = (float)((int32_t)rnd32() * 0x1p-33);
        must(gpu, "weight_load",
             op->weight_load(gpu, &router[j].w, KN_F32, s->embd, (int64_t)rows, router[j].file,
                             KN_USE_LINEAR));
    }
    for (int j = 0; j < 3; j++)
        must(gpu, "weight_load",
             op->weight_load(gpu, &shared[j], own[j]->type, own[j]->n_in, own[j]->n_out, own[j]->file,
                             KN_USE_LINEAR));
    for (; *counts && *counts <= 64; counts++) {
        const int n = *counts;
        data_make(d, s, n * SETS, MIXED);
        float *logits = put(gpu, NULL, (size_t)(n * s->n_mat) * 4), *gates = put(gpu, NULL, (size_t)n * 4),
              *weights = put(gpu, NULL, (size_t)(n * used) * 4),
              *h = put(gpu, NULL, (size_t)(n * used) * (size_t)s->ff * 4);
        int32_t *ids = put(gpu, NULL, (size_t)(n * used) * 4);
        for (int how = n <= 4 ? -1 : 0; how < 1; how++) { /* -1: one launch a row */
            void *recording;
            double best = 1e9;
            experts_tuning.whole = how < 0 ? n : 0;
            must(gpu, "record_begin", op->record_begin(gpu));
            for (int i = 0; i < SETS; i++) {
                struct kn_mixture a = {.route = {.logits = logits,
                                                 .n = n,
                                                 .n_expert = s->n_mat,
                                                 .n_used = s->used,
                                                 .renorm = true,
                                                 .scale = 1,
                                                 .ids = ids,
                                                 .weights = weights},
                                       .x = d->d_x + (size_t)(i * n) * d->out,
                                       .norm = d->d_norm,
                                       .eps = eps,
                                       .act = s->act,
                                       .router = &router[0].w,
                                       .router_norm = d->d_norm,
                                       .logits = logits,
                                       .gate = &d->gate.w,
                                       .up = &d->up.w,
                                       .down = &d->down.w,
                                       .h = h,
                                       .out = d->d_out,
                                       .add = true};
                for (int j = 0; one && j < 3; j++) a.shared[j] = &shared[j];
                if (one) a.shared_gate = &router[1].w, a.shared_logits = gates;
                must(gpu, "mixture", op->mixture(gpu, &a));
            }
            must(gpu, "record_end", op->record_end(gpu, &recording));
            for (int r = 0; r < 5; r++) {
                must(gpu, "sync", op->sync(gpu));
                const double t = seconds_now();
                must(gpu, "replay", op->replay(gpu, recording));
                must(gpu, "sync", op->sync(gpu));
                best = fmin(best, (seconds_now() - t) * 1e6 / SETS);
            }
            op->record_free(gpu, recording);
            printf("%-20s mixture%s rows %4d: %8.2f us%s\n", s->name, one ? ", a shared expert," : "", n,
                   best, how < 0 ? ", one launch a row" : "");
            fflush(stdout);
        }
        experts_tuning.whole = 1;
        void *const device[] = {logits, gates, weights, h, ids};
        for (int i = 0; i < 5; i++) op->free(gpu, device[i]);
        data_free(d);
    }
    for (int j = 0; j < 3; j++) op->weight_free(gpu, &shared[j]);
    for (int j = 0; j < 2; j++) matrices_free(&router[j]);
}

static void bench(bool all, bool mixtures)
{
    static const struct shape shapes[] = {
        {"35B-A3B", 256, 8, 2048, 512, KN_Q4_K, KN_Q4_K, KN_ACT_SILU},
        {"35B-A3B, down Q6_K", 256, 8, 2048, 512, KN_Q4_K, KN_Q6_K, KN_ACT_SILU},
        {"30B-A3B", 128, 8, 2048, 768, KN_Q4_K, KN_Q4_K, KN_ACT_SILU},
        {"26B-A4B, down Q5_0", 128, 8, 2816, 704, KN_Q4_K, KN_Q5_0, KN_ACT_GELU_TANH}};
    static const int counts[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 2048, 0};
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
        const struct shape *s = shapes + k;
        struct data d = {.s = s};
        d.gate = matrices_make(s->gate, s->n_mat, s->ff, s->embd);
        d.up = matrices_make(s->gate, s->n_mat, s->ff, s->embd);
        d.down = matrices_make(s->down, s->n_mat, s->embd, s->ff);
        for (size_t c = 0; counts[c] && !mixtures; c++) {
            const int n = counts[c], sets = n > 64 ? 2 : SETS;
            data_make(&d, s, n * sets, MIXED);
            float *h = put(gpu, d.h, (size_t)n * d.hidden * 4);
            const double distinct = experts_met(&d, s, n, sets);
            for (int gated = 1; gated >= 0; gated--) {
                const double bytes =
                    distinct * (gated ? 2 : 1) * (double)(gated ? d.gate : d.down).w.packed_bytes / s->n_mat;
                for (size_t v = 0; v < (all && k % 3 == 0 && n > 1 ? sizeof variants / sizeof *variants : 1);
                     v++) {
                    use_variant(variants + v);
                    const double us = timed(&d, s, h, n, gated, sets);
                    printf("%-20s %-5s rows %4d, %5.1f experts: %8.2f us, %6.1f MB, %.2f TB/s, %s\n", s->name,
                           gated ? "gated" : "down", n, distinct, us, bytes * 1e-6, bytes / us * 1e-6,
                           variants[v].name);
                    fflush(stdout);
                }
                use_variant(variants);
            }
            drop(gpu, h);
            data_free(&d);
        }
        if (k == 0 && !mixtures) bench_spread(&d, s, counts);
        bench_mixture(&d, s, k < 2, counts);
        matrices_free(&d.gate), matrices_free(&d.up), matrices_free(&d.down);
    }
}

int main(int argc, char **argv)
{
    char msg[256];
    const struct kn_open g = {.device = "cuda"};
    const bool variants_all = argc == 2 && !strcmp(argv[1], "--variants"),
               mixtures = argc == 2 && !strcmp(argv[1], "--mixtures");
    if (argc > 2 || (argc == 2 && !variants_all && !mixtures)) {
        fprintf(stderr, "usage: experts_bench [--variants | --mixtures]\n");
        return 2;
    }
    if (kn_backend_open(&gpu, &g, msg, sizeof msg)) {
        fprintf(stderr, "experts_bench: %s\n", msg);
        return 5;
    }
    bench(variants_all, mixtures);
    kn_backend_close(gpu);
    return 0;
}
