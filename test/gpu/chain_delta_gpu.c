/* chain_delta_gpu.c - gated delta nets of one row in one launch (kernels/cuda/chain_delta.cuh) against the
 * same operations launched one by one: outputs, states, convolutions' states and logs have the same bits,
 * through passes that follow one another as a session's do.
 *
 * usage: chain_delta_gpu [--small] [NAME]   check; --small: little shapes, for compute-sanitizer
 *        chain_delta_gpu --bench [NAME]     microseconds a layer, both ways
 * Prints "ok   gpu/..." or "FAIL gpu/..." a case; exit 1 if any failed, 5 if there is no device. */
#include "../../kernels/cuda/cuda.h"
#include "harness.h"

struct chain_tuning { /* as kernels/cuda/chain.cuh has it */
    int off, ahead, least, context, some, tile, items, near, k_ahead;
};
extern struct chain_tuning chain_tuning;
extern long chain_launched;

static struct kn_backend *gpu;

struct shape {
    const char *name;
    int32_t hidden, ff, n_k, n_v, layers;
    uint32_t qkv, z, gates, out, gate, down;
    bool small, starts; /* starts: with the product of a row that is gated */
};
#define K4 KN_Q4_K
#define K5 KN_Q5_K
#define K6 KN_Q6_K
static const struct shape shapes[] = {
    {"256 512, 1 key head of 4", 256, 512, 1, 4, 3, K4, K4, K4, K4, K4, K4, true, false},
    {"512 1024, 2 of 2", 512, 1024, 2, 2, 2, K5, K6, K4, K6, K5, K6, true, true},
    {"768 1280, 3 of 6", 768, 1280, 3, 6, 3, K6, K4, K5, K4, K4, K6, true, true},
    {"256 512, 8 of 48, two units a block", 256, 512, 8, 48, 2, K4, K4, K4, K4, K4, K4, true, true},
    {"1280 768, 2 of 32", 1280, 768, 2, 32, 2, K4, K6, K4, K5, K4, K4, true, false},
    {"2048 6144, 16 of 32", 2048, 6144, 16, 32, 3, K5, K4, K4, K4, K4, K6, false, true},
    {"4096 12288, 16 of 32", 4096, 12288, 16, 32, 3, K5, K4, K4, K4, K4, K6, false, true},
    {"Qwen3.5-27B", 5120, 17408, 16, 48, 6, K5, K4, K4, K4, K4, K6, false, true},
    {"Qwen3.5-27B, Q4_K", 5120, 17408, 16, 48, 6, K4, K4, K4, K4, K4, K4, false, true},
};
enum { LAYERS = 6, HEAD = 128, ROWS = 6 };

struct layer {
    struct kn_weight qkv, z, alpha, beta, out, gate, up, down;
    struct kn_delta_state state;
    float *attn_norm, *ffn_norm, *conv, *a, *dt, *norm;
};
struct model {
    const struct shape *s;
    int64_t width, inner;
    struct layer l[LAYERS];
    float *x, *qkv, *z, *alpha, *beta, *o, *h, *g;
    struct kn_weight first;
    int32_t *pending;
};

static void set_half(uint8_t *b, float v)
{
    const uint16_t h = kn_f32_to_f16(rnd() % 64 ? v : 0.0f);
    memcpy(b, &h, 2);
}
/* Random codes and scales, a pattern of up to 4 MB over and over. */
static struct kn_weight weight(uint32_t type, int64_t n_in, int64_t n_out)
{
    const struct kn_type_info *t = kn_type_info(type);
    const size_t bytes = kn_row_bytes(type, n_in) * (size_t)n_out, blocks = bytes / t->bytes;
    const size_t own = blocks < 30011 ? blocks : 30011;
    uint8_t *w = malloc(bytes);
    if (!w) die("weight", "out of memory");
    for (size_t i = 0; i < own * t->bytes; i++) w[i] = (uint8_t)rnd();
    for (size_t i = 0; i < own; i++) {
        uint8_t *b = w + i * t->bytes;
        const float u = gaussian(1.0f);
        if (type == KN_Q6_K)
            set_half(b + 208, 0.00003f * u);
        else
            set_half(b, 0.0003f * u), set_half(b + 2, 0.002f * u);
    }
    for (size_t i = own; i < blocks; i += own)
        memcpy(w + i * t->bytes, w, (blocks - i < own ? blocks - i : own) * t->bytes);
    struct kn_weight k = {0};
    must(gpu, "weight_load", kn_op(gpu)->weight_load(gpu, &k, type, n_in, n_out, w, KN_USE_LINEAR));
    free(w);
    return k;
}
static float *random_row(int64_t n, float size)
{
    float *v = gaussians((size_t)n, size), *p = put(gpu, v, (size_t)n * sizeof *v);
    free(v);
    return p;
}
static float *room(int64_t n)
{
    return put(gpu, NULL, (size_t)n * sizeof(float));
}

static void make(struct model *m, const struct shape *s)
{
    m->s = s;
    m->inner = (int64_t)s->n_v * HEAD, m->width = 2 * (int64_t)s->n_k * HEAD + m->inner;
    for (int i = 0; i < s->layers; i++) {
        struct layer *l = &m->l[i];
        l->qkv = weight(s->qkv, s->hidden, m->width), l->z = weight(s->z, s->hidden, m->inner);
        l->alpha = weight(s->gates, s->hidden, s->n_v), l->beta = weight(s->gates, s->hidden, s->n_v);
        l->out = weight(s->out, m->inner, s->hidden), l->down = weight(s->down, s->ff, s->hidden);
        l->gate = weight(s->gate, s->hidden, s->ff), l->up = weight(s->gate, s->hidden, s->ff);
        l->attn_norm = random_row(s->hidden, 1.0f), l->ffn_norm = random_row(s->hidden, 1.0f);
        l->conv = random_row(4 * m->width, 0.5f), l->dt = random_row(s->n_v, 1.0f);
        l->norm = random_row(HEAD, 1.0f);
        float *a = gaussians((size_t)s->n_v, 1.0f);
        for (int j = 0; j < s->n_v; j++) a[j] = -expf(a[j] - 2);
        l->a = put(gpu, a, (size_t)s->n_v * sizeof *a);
        free(a);
        l->state = (struct kn_delta_state){room(m->inner * HEAD), room(3 * m->width),
                                           room(KN_DELTA_LOG * (m->width + 2 * s->n_v))};
    }
    m->first = weight(s->out, m->inner, s->hidden);
    m->x = room(ROWS * s->hidden), m->qkv = room(ROWS * m->width), m->z = room(ROWS * m->inner);
    m->alpha = room(ROWS * s->n_v), m->beta = room(ROWS * s->n_v), m->o = room(ROWS * m->inner);
    m->h = room(ROWS * s->ff), m->g = random_row(m->inner, 1.0f);
    m->pending = put(gpu, NULL, 4);
}
static void unmake(struct model *m)
{
    for (int i = 0; i < m->s->layers; i++) {
        struct layer *l = &m->l[i];
        struct kn_weight *w[] = {&l->qkv, &l->z, &l->alpha, &l->beta, &l->out, &l->gate, &l->up, &l->down};
        void *p[] = {l->attn_norm, l->ffn_norm, l->conv,       l->a,        l->dt,
                     l->norm,      l->state.s,  l->state.conv, l->state.log};
        for (size_t j = 0; j < sizeof w / sizeof *w; j++) kn_op(gpu)->weight_free(gpu, w[j]);
        for (size_t j = 0; j < sizeof p / sizeof *p; j++) drop(gpu, p[j]);
    }
    kn_op(gpu)->weight_free(gpu, &m->first);
    void *p[] = {m->x, m->qkv, m->z, m->alpha, m->beta, m->o, m->h, m->g, m->pending};
    for (size_t j = 0; j < sizeof p / sizeof *p; j++) drop(gpu, p[j]);
}

static void run(struct model *m, int32_t n, bool commit, bool starts)
{
    const struct shape *s = m->s;
    const struct kn_ops *op = kn_op(gpu);
    if (starts) must(gpu, "gate_linear", op->gate_linear(gpu, m->x, &m->first, m->o, m->g, 1));
    for (int i = 0; i < s->layers; i++) {
        struct layer *l = &m->l[i];
        float *const out[] = {m->qkv, m->z, m->alpha, m->beta};
        const struct kn_weight *const w[] = {&l->qkv, &l->z, &l->alpha, &l->beta};
        const struct kn_delta d = {.qkv = m->qkv,
                                   .alpha = m->alpha,
                                   .beta = m->beta,
                                   .z = m->z,
                                   .conv = l->conv,
                                   .a = l->a,
                                   .dt = l->dt,
                                   .norm = l->norm,
                                   .eps = 1e-6f,
                                   .out = m->o,
                                   .n = n,
                                   .n_k = s->n_k,
                                   .n_v = s->n_v,
                                   .d_k = HEAD,
                                   .d_v = HEAD,
                                   .n_conv = 4,
                                   .state = &l->state,
                                   .pending = m->pending,
                                   .commit = commit};
        must(gpu, "norm_linear", op->norm_linear(gpu, out, w, 4, m->x, l->attn_norm, 1e-6f, n));
        must(gpu, "delta_linear", op->delta_linear(gpu, &d, m->x, &l->out));
        must(gpu, "norm_gated",
             op->norm_gated(gpu, m->h, &l->gate, &l->up, m->x, l->ffn_norm, 1e-6f, KN_ACT_SILU, n));
        must(gpu, "linear", op->linear(gpu, m->x, &l->down, m->h, n, true));
    }
}

/* What stands where: the row and what it leaves, then states, convolutions' states and logs of all layers. */
static int places(struct model *m, const void *from[], size_t size[])
{
    const struct shape *s = m->s;
    int n = 0;
    from[n] = m->x, size[n++] = 4 * (size_t)s->hidden;
    from[n] = m->h, size[n++] = 4 * (size_t)s->ff;
    for (int i = 0; i < s->layers; i++) {
        from[n] = m->l[i].state.s, size[n++] = 4 * (size_t)(m->inner * HEAD);
        from[n] = m->l[i].state.conv, size[n++] = 4 * (size_t)(3 * m->width);
        from[n] = m->l[i].state.log, size[n++] = 4 * (size_t)(ROWS * (m->width + 2 * s->n_v));
    }
    return n;
}
static void clear(void *p, size_t bytes)
{
    void *z = calloc(1, bytes);
    if (!z) die("clear", "out of memory");
    must(gpu, "upload", kn_op(gpu)->upload(gpu, p, z, bytes));
    free(z);
}

/* Passes one after another: rows, rows of the one before that were accepted, whether they are final, replays
 * of a recording (0: none). */
static const struct pass {
    int n, pending, commit, replays;
} passes[] = {{1, 0, 0, 0}, {1, 1, 0, 0}, {1, 1, 0, 0}, {1, 1, 0, 3}, {6, 1, 0, 0},
              {1, 4, 0, 0}, {1, 1, 0, 0}, {1, 1, 1, 0}, {1, 0, 1, 0}, {6, 0, 0, 0},
              {1, 6, 1, 0}, {1, 0, 0, 2}, {1, 1, 0, 40}, {1, 1, 1, 0}, {1, 0, 1, 40}};
enum { PASSES = sizeof passes / sizeof *passes };

/* All that passes leave. */
static uint8_t *results(struct model *m, const float *x, size_t *bytes)
{
    const struct shape *s = m->s;
    const void *from[2 + 3 * LAYERS];
    size_t size[2 + 3 * LAYERS], all = 0;
    const int n = places(m, from, size);
    for (int i = 0; i < n; i++) all += size[i];
    for (int i = 0; i < s->layers; i++) {
        struct kn_delta_state *y = &m->l[i].state;
        clear(y->s, 4 * (size_t)(m->inner * HEAD)), clear(y->conv, 4 * (size_t)(3 * m->width));
        clear(y->log, 4 * (size_t)(KN_DELTA_LOG * (m->width + 2 * s->n_v)));
    }
    uint8_t *left = malloc(PASSES * all), *to = left;
    if (!left) die("results", "out of memory");
    for (const struct pass *p = passes; p < passes + PASSES; p++) {
        const bool starts = s->starts && p->n == 1;
        must(gpu, "upload",
             kn_op(gpu)->upload(gpu, m->x, x + (p - passes) % 3 * 7, 4 * (size_t)(p->n * s->hidden)));
        must(gpu, "upload", kn_op(gpu)->upload(gpu, m->o, x + 100, 4 * (size_t)m->inner));
        must(gpu, "upload", kn_op(gpu)->upload(gpu, m->pending, &p->pending, 4));
        if (p->replays) {
            void *rec = NULL;
            must(gpu, "record_begin", kn_op(gpu)->record_begin(gpu));
            run(m, p->n, p->commit, starts);
            must(gpu, "record_end", kn_op(gpu)->record_end(gpu, &rec));
            for (int i = 0; i < p->replays; i++) must(gpu, "replay", kn_op(gpu)->replay(gpu, rec));
            must(gpu, "sync", kn_op(gpu)->sync(gpu));
            kn_op(gpu)->record_free(gpu, rec);
        } else {
            run(m, p->n, p->commit, starts);
        }
        for (int i = 0; i < n; to += size[i++])
            must(gpu, "download", kn_op(gpu)->download(gpu, to, from[i], size[i]));
    }
    *bytes = all;
    return left;
}

static void check(const struct shape *of)
{
    static struct model m;
    struct shape fewer = *of, *s = &fewer;
    if (s->layers > 3) s->layers = 3;
    make(&m, s);
    const size_t n_x = (size_t)(ROWS * (s->hidden > m.inner ? s->hidden : m.inner)) + 200;
    float *x = gaussians(n_x, 1.0f);
    for (int odd = 0; odd < 2; odd++) {
        size_t bytes, differ[PASSES] = {0}, first[PASSES], strange = 0, all = 0;
        if (odd) x[3 + s->hidden / 2] = NAN;
        chain_tuning.off = 1;
        const long before = chain_launched;
        uint8_t *want = results(&m, x, &bytes);
        const long plain = chain_launched;
        chain_tuning.off = 0;
        uint8_t *got = results(&m, x, &bytes);
        for (int p = 0; p < PASSES; p++)
            for (size_t i = bytes / 4; i-- > 0;)
                if (memcmp(got + p * bytes + 4 * i, want + p * bytes + 4 * i, 4)) differ[p]++, first[p] = i;
        for (int i = 0; i < PASSES * (int)(bytes / 4); i++) {
            float y;
            memcpy(&y, want + 4 * (size_t)i, 4);
            strange += !isfinite(y);
        }
        char line[400];
        int at = 0;
        for (int p = 0; p < PASSES; all += differ[p++])
            if (differ[p])
                at += snprintf(line + at, sizeof line - (size_t)at, "; pass %d: %zu words differ (first %zu)",
                               p, differ[p], first[p]);
        const bool taken = plain == before && chain_launched == plain + PASSES - 2;
        verdict(taken && !all && (strange > 0) == odd,
                "chain delta %s%s: %zu words a pass%s, %zu not numbers%s", s->name, odd ? ", a NaN" : "",
                bytes / 4, at ? line : "", strange, taken ? "" : ", no chain");
        free(want), free(got);
    }
    free(x);
    unmake(&m);
}

static double bytes_of(const struct shape *s)
{
    const int64_t inner = (int64_t)s->n_v * HEAD, width = 2 * (int64_t)s->n_k * HEAD + inner;
    return (double)kn_row_bytes(s->qkv, s->hidden) * (double)width +
           (double)kn_row_bytes(s->z, s->hidden) * (double)inner +
           2 * (double)kn_row_bytes(s->gates, s->hidden) * s->n_v +
           (double)kn_row_bytes(s->out, inner) * s->hidden +
           2 * (double)kn_row_bytes(s->gate, s->hidden) * s->ff +
           (double)kn_row_bytes(s->down, s->ff) * s->hidden + 8.0 * (double)(inner * HEAD);
}
#ifdef CHAIN_TRACE
static void trace(int layers, int replays)
{
    extern void chain_k_times_get(unsigned long long t[56]);
    static const char *const names[6] = {"in", "state", "out", "gate, up", "down", "all"};
    unsigned long long t[56];
    chain_k_times_get(t);
    for (int i = 0; i < 6; i++) {
        printf("    %-8s", names[i]);
        for (int j = 0; j < 6; j++) printf(" %6.2f", (double)t[8 * i + j] / replays / layers / 132 / 1980);
        printf("\n");
    }
    printf("    sums wait for weights %.2f\n", (double)t[50] / replays / layers / 132 / 1980);
}
#endif
static void bench(const struct shape *s)
{
    static struct model m;
    make(&m, s);
    float *x = gaussians((size_t)(ROWS * s->hidden), 1.0f);
    for (int how = 0; how < 5; how++) {
        const int32_t pending = how < 3;
        const int times = 36 / s->layers, layers = times * s->layers;
        void *rec = NULL;
        chain_tuning.off = how == 0;
        chain_tuning.k_ahead = how == 2 ? 0 : 64512;
        must(gpu, "upload", kn_op(gpu)->upload(gpu, m.x, x, 4 * (size_t)s->hidden));
        must(gpu, "upload", kn_op(gpu)->upload(gpu, m.pending, &pending, 4));
        must(gpu, "record_begin", kn_op(gpu)->record_begin(gpu));
        for (int i = 0; i < times; i++) run(&m, 1, how == 4, false);
        must(gpu, "record_end", kn_op(gpu)->record_end(gpu, &rec));
        double best = 1e9;
        for (int i = 0; i < 20; i++) {
            const double t = seconds_now();
            for (int j = 0; j < 10; j++) must(gpu, "replay", kn_op(gpu)->replay(gpu, rec));
            must(gpu, "sync", kn_op(gpu)->sync(gpu));
            const double d = (seconds_now() - t) / 10;
            if (i && d < best) best = d;
        }
        printf("%-24s %s: %7.2f us a layer, %.2f TB/s\n", s->name,
               how == 0   ? "launches          "
               : how == 1 ? "chain             "
               : how == 2 ? "chain, ring full  "
               : how == 3 ? "chain, none pending"
                          : "chain, final rows ",
               1e6 * best / layers, bytes_of(s) / best * 1e-12 * layers);
#ifdef CHAIN_TRACE
        if (how) trace(layers, 200);
#endif
        fflush(stdout);
        kn_op(gpu)->record_free(gpu, rec);
    }
    free(x);
    unmake(&m);
}

#ifdef CHAIN_CHECK
static void fault(void)
{
    extern void chain_k_fault_get(unsigned f[5]);
    unsigned f[5];
    chain_k_fault_get(f);
    if (f[0]) printf("     chain_k.cu: line %u, block %u, thread %u, %u\n", f[1], f[2], f[3], f[4]);
}
#endif

int main(int argc, char **argv)
{
    char msg[256];
    const struct kn_open open = {.device = "cuda"};
    const bool small = argc > 1 && !strcmp(argv[1], "--small"),
               timing = argc > 1 && !strcmp(argv[1], "--bench");
    const char *name = argc > 1 + (small || timing) ? argv[argc - 1] : "";
    if (kn_backend_open(&gpu, &open, msg, sizeof msg)) {
        fprintf(stderr, "chain_delta_gpu: %s\n", msg);
        return 5;
    }
#ifdef CHAIN_CHECK
    atexit(fault);
#endif
    must(gpu, "reserve", kn_op(gpu)->reserve(gpu, ROWS, 32768, 0, 0, 0));
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const struct shape *s = &shapes[i];
        if (!strstr(s->name, name)) continue;
        if (timing && !s->small)
            bench(s);
        else if (!timing && (!small || s->small))
            check(s);
    }
    kn_backend_close(gpu);
    if (timing) return 0;
    printf("%ld passed, %ld failed\n", passed, failed);
    return failed != 0;
}
