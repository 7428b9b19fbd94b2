/* bench_ops.c - how long the CPU's operations take, matrix products aside. Usage: bench_ops [isa [threads
 * [families]]] One line a case: the best of several calls, and for attention the bytes of keys and values
 * read a second.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "../../kernels/kernels.h"

/* One thread: its own processor time, which a busy machine does not stretch. More: the clock on the wall. */
static clockid_t clock_used = CLOCK_MONOTONIC;

static double now(void)
{
    struct timespec t;
    clock_gettime(clock_used, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static uint64_t state = 1;
static float uniform(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (float)(state >> 40) * 0x1p-24f;
}

static float *floats(struct kn_backend *be, size_t n, float scale)
{
    float *p = kn_op(be)->alloc(be, n * sizeof *p);
    if (!p) exit(4);
    for (size_t i = 0; i < n; i++)
        p[i] = scale * (uniform() + uniform() + uniform() + uniform() - 2.0f); /* near enough to a normal */
    return p;
}

static void check(struct kn_backend *be, int rc)
{
    if (rc) {
        fprintf(stderr, "bench_ops: %s\n", kn_message(be));
        exit(5);
    }
}

#define BEST(seconds, call)                                                                                  \
    do {                                                                                                     \
        double begin_ = now();                                                                               \
        seconds = 1e9;                                                                                       \
        for (int k_ = 0; k_ < 5 || (k_ < 2000 && now() - begin_ < 0.3); k_++) {                              \
            double t_ = now();                                                                               \
            check(be, call);                                                                                 \
            t_ = now() - t_;                                                                                 \
            seconds = t_ < seconds ? t_ : seconds;                                                           \
        }                                                                                                    \
    } while (0)

static void bench_attention(struct kn_backend *be, int ctx, int n)
{
    enum { N_HEAD = 16, N_KV = 8, D = 128 };
    int cap = (ctx + n + KN_KV_SPLIT - 1) / KN_KV_SPLIT * KN_KV_SPLIT;
    size_t ring = (size_t)cap * N_KV * D;
    struct kn_kv kv = {.type = {KN_F16, KN_F16}, .cap = cap, .n_head_kv = N_KV, .head_dim = D};
    uint16_t *half = kn_op(be)->alloc(be, 4 * ring);
    if (!half) exit(4);
    for (size_t i = 0; i < 2 * ring; i++) half[i] = kn_f32_to_f16(uniform() - 0.5f);
    kv.k = half;
    kv.v = half + ring;
    float *q = floats(be, (size_t)n * N_HEAD * D, 1.0f), *out = floats(be, (size_t)n * N_HEAD * D, 0.0f);
    int32_t *pos = kn_op(be)->alloc(be, (size_t)n * sizeof *pos);
    for (int i = 0; i < n; i++) pos[i] = ctx - n + i;
    struct kn_attention a = {.q = q,
                             .out = out,
                             .kv = &kv,
                             .pos = pos,
                             .n = n,
                             .n_head = N_HEAD,
                             .scale = 0.0884f,
                             .causal = true};
    double s;
    BEST(s, kn_op(be)->attention(be, &a));
    printf("attention  ctx %6d  rows %3d  %10.1f us  %6.2f GB/s  %6.1f Gmul-add/s\n", ctx, n, 1e6 * s,
           4e-9 * (double)ctx * N_KV * D / s, 2e-9 * (double)ctx * n * N_HEAD * D / s);
    kn_op(be)->free(be, half);
    kn_op(be)->free(be, q);
    kn_op(be)->free(be, out);
    kn_op(be)->free(be, pos);
}

static void bench_pick(struct kn_backend *be)
{
    enum { V = 151936, R = 16 };
    static const struct {
        const char *name;
        struct kn_sampler s;
    } cases[] = {
        {"greedy", {.temp = 0, .top_p = 1, .repeat_penalty = 1}},
        {"greedy, penalty", {.temp = 0, .top_p = 1, .repeat_penalty = 1.1f, .repeat_last = 64}},
        {"temp 0.8", {.temp = 0.8f, .top_p = 1, .repeat_penalty = 1}},
        {"temp 2", {.temp = 2, .top_p = 1, .repeat_penalty = 1}},
        {"top-k 40", {.temp = 0.8f, .top_k = 40, .top_p = 1, .repeat_penalty = 1}},
        {"top-k 20, top-p 0.95", {.temp = 0.6f, .top_k = 20, .top_p = 0.95f, .repeat_penalty = 1}},
        {"top-p 0.95", {.temp = 0.8f, .top_p = 0.95f, .repeat_penalty = 1}},
        {"min-p 0.05", {.temp = 0.8f, .top_p = 1, .min_p = 0.05f, .repeat_penalty = 1}},
    };
    float *l = floats(be, (size_t)V * R, 4.0f);
    for (int i = 0; i < R; i++) /* a few likely ones, as a trained model has */
        for (int j = 0; j < 50; j++) l[(size_t)i * V + (size_t)(uniform() * V)] = 12.0f + 8.0f * uniform();
    int32_t history[128] = {0}, pos[R], out[R];
    for (int i = 0; i < R; i++) pos[i] = 100 + i;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (int n = 1; n <= R; n += R - 1) {
            struct kn_pick p = {.logits = l,
                                .pos = pos,
                                .history = history,
                                .n = n,
                                .n_vocab = V,
                                .sampler = cases[c].s,
                                .out = out};
            double s;
            BEST(s, kn_op(be)->pick(be, &p));
            printf("pick       %-22s rows %3d  %8.1f us\n", cases[c].name, n, 1e6 * s);
        }
    kn_op(be)->free(be, l);
}

static void bench_small(struct kn_backend *be)
{
    enum { N = 512, W = 1024, HEADS = 16, KV = 8, D = 128 };
    float *x = floats(be, N * W, 1.0f), *w = floats(be, W, 1.0f), *out = floats(be, N * W, 0.0f);
    float *q = floats(be, N * HEADS * D, 1.0f), *k = floats(be, N * KV * D, 1.0f),
          *table = floats(be, N * D, 1.0f);
    struct kn_kv kv = {.type = {KN_F16, KN_F16}, .cap = 512, .n_head_kv = KV, .head_dim = D};
    int32_t pos[N];
    double freq[D / 2], s;
    kv.k = floats(be, 512 * KV * D / 2, 0.0f);
    kv.v = floats(be, 512 * KV * D / 2, 0.0f);
    for (int i = 0; i < N; i++) pos[i] = i;
    for (int i = 0; i < D / 2; i++) freq[i] = pow(1e6, -2.0 * i / D);
    static const int rows[] = {1, 16, 512};
    for (int i = 0; i < 3; i++) {
        int n = rows[i];
        BEST(s, kn_op(be)->rms_norm(be, out, x, w, n, W, 1e-6f));
        printf("rms_norm   1024                   rows %3d  %8.2f us\n", n, 1e6 * s);
        BEST(s, kn_op(be)->rope_table(be, table, pos, NULL, n, freq, D));
        printf("rope_table 128                    rows %3d  %8.2f us\n", n, 1e6 * s);
        struct kn_rope_store r = {.q = q,
                                  .k = k,
                                  .v = k,
                                  .q_norm = w,
                                  .k_norm = w,
                                  .table = table,
                                  .pos = pos,
                                  .n = n,
                                  .n_head = HEADS,
                                  .n_rot = D,
                                  .eps = 1e-6f,
                                  .kv = &kv};
        BEST(s, kn_op(be)->rope_store(be, &r));
        printf("rope_store 16 + 8 heads of 128    rows %3d  %8.2f us\n", n, 1e6 * s);
    }
    float *all[] = {x, w, out, q, k, table, kv.k, kv.v};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) kn_op(be)->free(be, all[i]);
}

/* Qwen3 30B A3B's experts in Q4_K, but 32 of them where it has 128: 88 MB. Bytes: what the panels of the
 * chosen take. */
static void bench_experts(struct kn_backend *be)
{
    enum { E = 2048, F = 768, MAT = 32, USED = 8, N = 512 };
    const size_t bytes = kn_row_bytes(KN_Q4_K, E) * F * MAT;
    uint8_t *data = kn_op(be)->alloc(be, bytes);
    if (!data) exit(4);
    for (size_t i = 0; i < bytes; i++) data[i] = (uint8_t)(i % 144 < 4 ? 0x11 : 256 * uniform());
    struct kn_weight gate, up, down;
    check(be, kn_op(be)->experts_load(be, &gate, KN_Q4_K, E, F, MAT, data));
    check(be, kn_op(be)->experts_load(be, &up, KN_Q4_K, E, F, MAT, data));
    check(be, kn_op(be)->experts_load(be, &down, KN_Q4_K, F, E, MAT, data));
    float *x = floats(be, N * E, 1.0f), *norm = floats(be, E, 1.0f), *l = floats(be, N * MAT, 2.0f),
          *h = floats(be, N * USED * F, 0.0f), *w = floats(be, N * USED, 0.0f);
    static int32_t ids[N * USED];
    static const int rows[] = {1, 2, 4, 8, 16, 64, 512};
    for (int i = 0; i < 7; i++) {
        const int n = rows[i];
        bool used[MAT] = {false};
        int count = 0;
        double r, g, d;
        struct kn_route route = {.logits = l,
                                 .n = n,
                                 .n_expert = MAT,
                                 .n_used = USED,
                                 .renorm = true,
                                 .scale = 1,
                                 .ids = ids,
                                 .weights = w};
        BEST(r, kn_op(be)->route(be, &route));
        for (int k = 0; k < n * USED; k++) count += !used[ids[k]], used[ids[k]] = true;
        BEST(g, kn_op(be)->experts_gated(be, h, &gate, &up, x, norm, 1e-6f, KN_ACT_SILU, ids, n, USED));
        BEST(d, kn_op(be)->experts_down(be, x, &down, h, ids, w, n, USED, true));
        printf("experts    8 of 32, 2048 x 768    rows %3d  route %6.2f us, gated %9.1f us %5.2f GB/s, down "
               "%9.1f us %5.2f GB/s\n",
               n, 1e6 * r, 1e6 * g, 2e-9 * (double)bytes * count / MAT / g, 1e6 * d,
               1e-9 * (double)bytes * count / MAT / d);
    }
    kn_op(be)->weight_free(be, &gate);
    kn_op(be)->weight_free(be, &up);
    kn_op(be)->weight_free(be, &down);
    void *all[] = {data, x, norm, l, h, w};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) kn_op(be)->free(be, all[i]);
}

/* A layer of Qwen3.5's gated delta nets. Rows: in doubt, or (-) final. */
static void bench_delta(struct kn_backend *be)
{
    enum { K = 16, V = 32, D = 128, W = 2 * K * D + V * D, N = 512 };
    float *qkv = floats(be, N * W, 1.0f), *gates = floats(be, 2 * N * V, 1.0f),
          *z = floats(be, N * V * D, 1.0f), *w = floats(be, W * 4, 0.5f), *out = floats(be, N * V * D, 0.0f),
          *s = floats(be, V * D * D, 0.0f), *conv = floats(be, 3 * W, 0.0f),
          *log = floats(be, KN_DELTA_LOG * (W + 2 * V), 0.0f), *a = floats(be, V, 0.0f);
    const struct kn_delta_state state_of = {s, conv, log};
    static const struct {
        int n, pending;
        bool commit;
    } cases[] = {{1, 0, true},   {1, 1, false},   {16, 1, false},
                 {16, 8, false}, {64, 64, false}, {512, 0, true}};
    for (int i = 0; i < V; i++) a[i] = -0.05f;
    for (int i = 0; i < 6; i++) {
        const int32_t pending = cases[i].pending;
        struct kn_delta d = {.qkv = qkv,
                             .alpha = gates,
                             .beta = gates + N * V,
                             .z = z,
                             .conv = w,
                             .a = a,
                             .dt = a,
                             .norm = w,
                             .eps = 1e-6f,
                             .out = out,
                             .n = cases[i].n,
                             .n_k = K,
                             .n_v = V,
                             .d_k = D,
                             .d_v = D,
                             .n_conv = 4,
                             .state = &state_of,
                             .pending = &pending,
                             .commit = cases[i].commit};
        double t;
        BEST(t, kn_op(be)->delta(be, &d));
        printf("delta      16, 32 heads of 128    rows %3d%s pending %2d  %9.1f us, %6.2f us a row\n", d.n,
               d.commit ? "-" : " ", pending, 1e6 * t, 1e6 * t / (d.n + pending));
    }
    float *all[] = {qkv, gates, z, w, out, s, conv, log, a};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) kn_op(be)->free(be, all[i]);
}

int main(int argc, char **argv)
{
    struct kn_open o = {
        .device = "cpu", .isa = argc > 1 ? argv[1] : NULL, .threads = argc > 2 ? atoi(argv[2]) : 0};
    struct kn_backend *be;
    char msg[256];
    int rc = kn_backend_open(&be, &o, msg, sizeof msg);
    if (rc) {
        fprintf(stderr, "bench_ops: %s\n", msg);
        return 5;
    }
    if (o.threads == 1) clock_used = CLOCK_THREAD_CPUTIME_ID;
    check(be, kn_op(be)->reserve(be, 512, 0, 151936, 16, 128));
    if (argc > 3) { /* only the parts of some families */
        bench_experts(be);
        bench_delta(be);
        kn_backend_close(be);
        return 0;
    }
    static const int ctx[] = {512, 4096, 16384};
    for (int i = 0; i < 3; i++)
        for (int n = 1; n <= 16; n += 15) bench_attention(be, ctx[i], n);
    bench_attention(be, 512, 512);
    bench_attention(be, 4096, 512);
    bench_pick(be);
    bench_small(be);
    bench_experts(be);
    bench_delta(be);
    kn_backend_close(be);
    return 0;
}
