/* chain_delta_gpu.c - gated delta nets of one row in one launch (kernels/cuda/chain/delta.cuh), gated
 * attention between them in launches of its own, against the same operations launched one by one: outputs,
 * states, convolutions' states, logs, keys and values have the same bits, through passes that follow one
 * another as a session's do.
 *
 * usage: chain_delta_gpu [--small] [NAME]   check; --small: little shapes, for compute-sanitizer
 *        chain_delta_gpu --bench [NAME]     microseconds a layer, both ways
 * Prints "ok   gpu/..." or "FAIL gpu/..." a case; exit 1 if any failed, 5 if there is no device. */
#include "../../../kernels/cuda/chain/chain_plan.h"
#include "../../../kernels/cuda/core/cuda.h"
#include "../../block_scales.h"
#include "../forms.h"
#include "../harness.h"

extern long chain_launched;

static struct kn_backend *gpu;

struct shape {
    const char *name;
    int32_t hidden, ff, n_k, n_v, layers;
    uint32_t qkv, z, gates, out, gate, down;
    bool small, starts; /* starts: with the product of a row that is gated */
    const char *kinds;  /* NULL: all layers are delta nets; or a letter a layer: A: gated attention */
    int32_t n_head, n_kv, n_rot;
    uint32_t cache;
};
#define K4 KN_Q4_K
#define K5 KN_Q5_K
#define K6 KN_Q6_K
#define X4 KN_IQ4_XS
#define Q8 KN_Q8_0
static const struct shape shapes[] = {
    {"256 512, 1 key head of 4", 256, 512, 1, 4, 3, K4, K4, K4, K4, K4, K4, true, false, NULL, 0, 0, 0, 0},
    {"512 1024, 2 of 2", 512, 1024, 2, 2, 2, K5, K6, K4, K6, K5, K6, true, true, NULL, 0, 0, 0, 0},
    {"768 1280, 3 of 6", 768, 1280, 3, 6, 3, K6, K4, K5, K4, K4, K6, true, true, NULL, 0, 0, 0, 0},
    {"256 512, 8 of 48, two units a block", 256, 512, 8, 48, 2, K4, K4, K4, K4, K4, K4, true, true, NULL, 0,
     0, 0, 0},
    {"1280 768, 2 of 32", 1280, 768, 2, 32, 2, K4, K6, K4, K5, K4, K4, true, false, NULL, 0, 0, 0, 0},
    {"2048 6144, 16 of 32", 2048, 6144, 16, 32, 3, K5, K4, K4, K4, K4, K6, false, true, NULL, 0, 0, 0, 0},
    {"4096 12288, 16 of 32", 4096, 12288, 16, 32, 3, K5, K4, K4, K4, K4, K6, false, true, NULL, 0, 0, 0, 0},
    {"Qwen3.5-27B, gates Q4_K", 5120, 17408, 16, 48, 6, K5, K4, K4, K4, K4, K6, false, true, NULL, 0, 0, 0,
     0},
    {"Qwen3.5-27B, Q4_K", 5120, 17408, 16, 48, 6, K4, K4, K4, K4, K4, K4, false, true, NULL, 0, 0, 0, 0},
    {"256 768, 2 of 4, attention of 2 over 1", 256, 768, 2, 4, 4, K4, K6, K4, K4, K4, K4, true, true, "DDAD",
     2, 1, 64, KN_F16},
    {"768 512, 3 of 6, attention of 12 over 2", 768, 512, 3, 6, 5, K6, K4, K5, K5, K5, K6, true, false,
     "DDADA", 12, 2, 256, KN_BF16},
    {"1280 1024, 2 of 8, attention of 16 over 1, no rope", 1280, 1024, 2, 8, 4, K4, K4, K4, K6, K4, K5, true,
     true, "DDAA", 16, 1, 0, KN_F16},
    {"2560 9216, 16 of 32, attention of 16 over 4", 2560, 9216, 16, 32, 4, K5, K4, K4, K4, K4, K6, false,
     true, "DDAD", 16, 4, 64, KN_F16},
    {"512 1024, 2 of 2, gates F32", 512, 1024, 2, 2, 3, K4, K6, KN_F32, K4, K4, K6, true, true, NULL, 0, 0, 0,
     0},
    {"768 1280, 3 of 6, gates BF16, IQ4_XS", 768, 1280, 3, 6, 3, X4, K4, KN_BF16, X4, X4, K6, true, false,
     NULL, 0, 0, 0, 0},
    {"1280 768, 2 of 32, gates F16, all kinds", 1280, 768, 2, 32, 3, Q8, K6, KN_F16, K4, KN_BF16, Q8, true,
     true, NULL, 0, 0, 0, 0},
    {"768 512, 3 of 6, kinds, attention of 12 over 2", 768, 512, 3, 6, 5, K6, Q8, KN_F32, K5, Q8, KN_F16,
     true, false, "DDADA", 12, 2, 256, KN_BF16},
    {"768 1280, 3 of 6, gates Q5_1, Q3_K and Q2_K", 768, 1280, 3, 6, 3, KN_Q3_K, KN_Q2_K, KN_Q5_1, KN_Q3_K,
     KN_Q3_K, KN_Q2_K, true, false, NULL, 0, 0, 0, 0},
    {"512 1024, 2 of 4, IQ3_XXS, IQ2_S", 512, 1024, 2, 4, 3, KN_IQ3_XXS, KN_IQ2_S, KN_IQ2_S, KN_IQ3_S,
     KN_IQ2_XXS, K5, true, true, NULL, 0, 0, 0, 0},
    {"768 1280, 3 of 6, gates F32, IQ2_XS, IQ1_M", 768, 1280, 3, 6, 3, KN_IQ2_XS, K4, KN_F32, KN_IQ1_M,
     KN_IQ2_XS, KN_IQ1_S, true, false, NULL, 0, 0, 0, 0},
    {"Qwen3.5-27B, IQ3_XXS, gates F32", 5120, 17408, 16, 48, 6, K4, KN_IQ3_XXS, KN_F32, KN_IQ3_XXS,
     KN_IQ3_XXS, KN_IQ3_S, false, true, NULL, 0, 0, 0, 0},
    {"Qwen3.5-27B, gates Q8_0", 5120, 17408, 16, 48, 6, K5, K4, Q8, K4, K4, K6, false, true, NULL, 0, 0, 0,
     0},
    {"Qwen3.5-27B, gates F16", 5120, 17408, 16, 48, 6, K5, K4, KN_F16, K4, K4, K6, false, true, NULL, 0, 0, 0,
     0},
    {"Qwen3.5-27B, gates BF16", 5120, 17408, 16, 48, 6, K5, K4, KN_BF16, K4, K4, K6, false, true, NULL, 0, 0,
     0, 0},
    {"Qwen3.5-27B, gates F32", 5120, 17408, 16, 48, 6, K5, K4, KN_F32, K4, K4, K6, false, true, NULL, 0, 0, 0,
     0},
    {"Qwen3.5-27B, dynamic", 5120, 17408, 16, 48, 6, Q8, K5, KN_F32, K6, X4, KN_F16, false, true, NULL, 0, 0,
     0, 0},
    {"Qwen3.5-27B, attention", 5120, 17408, 16, 48, 4, K5, K4, K4, K4, K4, K6, false, true, "DDAD", 24, 4, 64,
     KN_F16},
    {"Qwen3.5-27B, attention, Q4_K", 5120, 17408, 16, 48, 4, K4, K4, K4, K4, K4, K4, false, false, "DDDA", 24,
     4, 64, KN_BF16},
};
enum { LAYERS = 6, HEAD = 128, ROWS = 6, WIDE = 256, CAP = 4096 };

struct layer {
    struct kn_weight qkv, z, alpha, beta, out, gate, up, down;
    struct kn_delta_state state;
    float *attn_norm, *ffn_norm, *conv, *a, *dt, *norm;
    bool attends; /* then of the above only out, gate, up, down, attn_norm, ffn_norm; and */
    struct kn_weight q, g, k, v;
    float *q_norm, *k_norm;
    struct kn_kv kv;
};
struct model {
    const struct shape *s;
    int64_t width, inner;
    struct layer l[LAYERS];
    float *x, *qkv, *z, *alpha, *beta, *o, *h, *g, *taps; /* taps: [layers][hidden] */
    struct kn_weight first;
    int32_t *pending, *pos;
    float *q, *gates, *k, *v, *heads, *table; /* of attention */
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
        if (type == KN_F32 || type == KN_F16 || type == KN_BF16) {
            const float v = 0.02f * u;
            const uint16_t h = type == KN_F16 ? kn_f32_to_f16(v) : kn_f32_to_bf16(v);
            memcpy(b, type == KN_F32 ? (const void *)&v : (const void *)&h, t->bytes);
        } else if (type == KN_Q8_0) {
            set_half(b, 0.0005f * u);
        } else if (type == KN_Q2_K) {
            set_half(b + 80, 0.0003f * u), set_half(b + 82, 0.002f * u);
        } else if (type == KN_Q3_K) {
            set_half(b + 108, 0.0002f * u);
        } else if (type == KN_IQ4_XS) {
            set_half(b, 0.00007f * u);
        } else if (type == KN_Q6_K)
            set_half(b + 208, 0.00003f * u);
        else if (grid_has(type))
            block_set_scales(type, b, (type == KN_IQ1_S || type == KN_IQ1_M ? 0.002f : 0.0004f) * u, 0);
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

static bool attends(const struct shape *s, int layer)
{
    return s->kinds && s->kinds[layer] == 'A';
}

/* Keys and values of positions below CAP: halves of the cache's type. */
static void *random_ring(const struct shape *s)
{
    const size_t n = (size_t)CAP * (size_t)s->n_kv * WIDE;
    uint16_t *ring = malloc(2 * n);
    if (!ring) die("ring", "out of memory");
    for (size_t i = 0; i < n; i++) {
        const float v = i < 200000 ? gaussian(1.0f) : 0.0f;
        ring[i] = i >= 200000 ? ring[i - 199999] : s->cache == KN_F16 ? kn_f32_to_f16(v) : kn_f32_to_bf16(v);
    }
    void *p = put(gpu, ring, 2 * n);
    free(ring);
    return p;
}
static void make_attention(struct layer *l, const struct shape *s)
{
    const int64_t inner = (int64_t)s->n_head * WIDE, wide = (int64_t)s->n_kv * WIDE;
    l->attends = true;
    l->q = weight(s->qkv, s->hidden, inner), l->g = weight(s->z, s->hidden, inner);
    l->k = weight(s->qkv, s->hidden, wide), l->v = weight(s->down, s->hidden, wide);
    l->out = weight(s->out, inner, s->hidden);
    l->q_norm = random_row(WIDE, 1.0f), l->k_norm = random_row(WIDE, 1.0f);
    l->kv = (struct kn_kv){random_ring(s), random_ring(s), {s->cache, s->cache}, CAP, s->n_kv, WIDE};
    must(gpu, "reserve_kv", kn_op(gpu)->reserve_kv(gpu, ROWS, s->n_head, &l->kv, 0));
}
static void make_net(struct layer *l, const struct shape *s, int64_t width, int64_t inner)
{
    l->attends = false;
    l->qkv = weight(s->qkv, s->hidden, width), l->z = weight(s->z, s->hidden, inner);
    l->alpha = weight(s->gates, s->hidden, s->n_v), l->beta = weight(s->gates, s->hidden, s->n_v);
    l->out = weight(s->out, inner, s->hidden);
    l->conv = random_row(4 * width, 0.5f), l->dt = random_row(s->n_v, 1.0f);
    l->norm = random_row(HEAD, 1.0f);
    float *a = gaussians((size_t)s->n_v, 1.0f);
    for (int j = 0; j < s->n_v; j++) a[j] = -expf(a[j] - 2);
    l->a = put(gpu, a, (size_t)s->n_v * sizeof *a);
    free(a);
    l->state = (struct kn_delta_state){room(inner * HEAD), room(3 * width),
                                       room(KN_DELTA_LOG * (width + 2 * s->n_v))};
}
static void make(struct model *m, const struct shape *s)
{
    m->s = s;
    m->inner = (int64_t)s->n_v * HEAD, m->width = 2 * (int64_t)s->n_k * HEAD + m->inner;
    for (int i = 0; i < s->layers; i++) {
        struct layer *l = &m->l[i];
        memset(l, 0, sizeof *l);
        if (attends(s, i))
            make_attention(l, s);
        else
            make_net(l, s, m->width, m->inner);
        l->down = weight(s->down, s->ff, s->hidden);
        l->gate = weight(s->gate, s->hidden, s->ff), l->up = weight(s->gate, s->hidden, s->ff);
        l->attn_norm = random_row(s->hidden, 1.0f), l->ffn_norm = random_row(s->hidden, 1.0f);
    }
    m->first = weight(s->out, m->inner, s->hidden);
    m->x = room(ROWS * s->hidden), m->qkv = room(ROWS * m->width), m->z = room(ROWS * m->inner);
    m->alpha = room(ROWS * s->n_v), m->beta = room(ROWS * s->n_v), m->o = room(ROWS * m->inner);
    m->h = room(ROWS * s->ff), m->g = random_row(m->inner, 1.0f);
    m->taps = room(s->layers * s->hidden);
    m->pending = put(gpu, NULL, 4), m->pos = put(gpu, NULL, 4 * ROWS);
    const int64_t inner = (int64_t)s->n_head * WIDE + 1, wide = (int64_t)s->n_kv * WIDE + 1;
    m->q = room(ROWS * inner), m->gates = room(ROWS * inner), m->heads = room(ROWS * inner);
    m->k = room(ROWS * wide), m->v = room(ROWS * wide), m->table = room(ROWS * WIDE);
}
static void unmake(struct model *m)
{
    for (int i = 0; i < m->s->layers; i++) {
        struct layer *l = &m->l[i];
        struct kn_weight *w[] = {&l->qkv, &l->z,    &l->alpha, &l->beta, &l->out, &l->gate,
                                 &l->up,  &l->down, &l->q,     &l->g,    &l->k,   &l->v};
        void *p[] = {l->attn_norm,  l->ffn_norm,  l->conv,   l->a,      l->dt,   l->norm, l->state.s,
                     l->state.conv, l->state.log, l->q_norm, l->k_norm, l->kv.k, l->kv.v};
        for (size_t j = 0; j < sizeof w / sizeof *w; j++)
            if (w[j]->packed) kn_op(gpu)->weight_free(gpu, w[j]);
        for (size_t j = 0; j < sizeof p / sizeof *p; j++)
            if (p[j]) drop(gpu, p[j]);
    }
    kn_op(gpu)->weight_free(gpu, &m->first);
    void *p[] = {m->taps,    m->x, m->qkv,   m->z, m->alpha, m->beta,  m->o,     m->h,  m->g,
                 m->pending, m->q, m->gates, m->k, m->v,     m->heads, m->table, m->pos};
    for (size_t j = 0; j < sizeof p / sizeof *p; j++) drop(gpu, p[j]);
}

static void run_net(struct model *m, const struct layer *l, int32_t n, int32_t commit)
{
    const struct shape *s = m->s;
    const struct kn_ops *op = kn_op(gpu);
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
                               .commit = commit > 0,
                               .every = commit > 1 ? commit : 0};
    must(gpu, "norm_linear", op->norm_linear(gpu, out, w, 4, m->x, l->attn_norm, 1e-6f, n));
    must(gpu, "delta_linear", op->delta_linear(gpu, &d, m->x, &l->out));
}
static void run_attention(struct model *m, const struct layer *l, int32_t n)
{
    const struct shape *s = m->s;
    const struct kn_ops *op = kn_op(gpu);
    float *const out[] = {m->q, m->gates, m->k, m->v};
    const struct kn_weight *const w[] = {&l->q, &l->g, &l->k, &l->v};
    const struct kn_rope_store r = {.q = m->q,
                                    .k = m->k,
                                    .v = m->v,
                                    .q_norm = l->q_norm,
                                    .k_norm = l->k_norm,
                                    .table = m->table,
                                    .pos = m->pos,
                                    .n = n,
                                    .n_head = s->n_head,
                                    .n_rot = s->n_rot,
                                    .eps = 1e-6f,
                                    .kv = &l->kv};
    const struct kn_attention a = {.q = m->q,
                                   .out = m->heads,
                                   .kv = &l->kv,
                                   .pos = m->pos,
                                   .n = n,
                                   .n_head = s->n_head,
                                   .scale = 1.0f / sqrtf(WIDE),
                                   .causal = true};
    must(gpu, "norm_linear", op->norm_linear(gpu, out, w, 4, m->x, l->attn_norm, 1e-6f, n));
    must(gpu, "attend", op->attend(gpu, &r, &a));
    must(gpu, "gate_linear", op->gate_linear(gpu, m->x, &l->out, m->heads, m->gates, n));
}
/* commit: the rows are final; more than 1: the state is written after so many. */
static void run(struct model *m, int32_t n, int32_t commit, bool starts)
{
    const struct shape *s = m->s;
    const struct kn_ops *op = kn_op(gpu);
    if (starts) must(gpu, "gate_linear", op->gate_linear(gpu, m->x, &m->first, m->o, m->g, 1));
    for (int i = 0; i < s->layers; i++) {
        struct layer *l = &m->l[i];
        if (l->attends)
            run_attention(m, l, n);
        else
            run_net(m, l, n, commit);
        must(gpu, "norm_gated",
             op->norm_gated(gpu, m->h, &l->gate, &l->up, m->x, l->ffn_norm, 1e-6f, KN_ACT_SILU, n));
        must(gpu, "linear", op->linear(gpu, m->x, &l->down, m->h, n, true));
        if (n == 1 && i % 3 != 1)
            must(gpu, "tap", op->tap(gpu, m->taps, s->layers * s->hidden, i * s->hidden, m->x, 1, s->hidden));
    }
}
/* Rows at positions from pos on: where they stand, and their angles. */
static void place(struct model *m, int32_t pos)
{
    int32_t at[ROWS];
    float table[ROWS * WIDE];
    const int half = m->s->n_rot / 2;
    for (int i = 0; i < ROWS; i++) {
        at[i] = pos + i;
        for (int j = 0; j < half; j++) {
            const double angle = (pos + i) * pow(1e6, -(double)j / half);
            table[(i * half + j) * 2] = (float)cos(angle), table[(i * half + j) * 2 + 1] = (float)sin(angle);
        }
    }
    must(gpu, "upload", kn_op(gpu)->upload(gpu, m->pos, at, sizeof at));
    must(gpu, "upload", kn_op(gpu)->upload(gpu, m->table, table, sizeof table));
}

/* What stands where: the row and what it leaves, taps, then states, convolutions' states and logs of all
 * layers, or their keys and values from pos on. */
static int places(struct model *m, int32_t pos, const void *from[], size_t size[])
{
    const struct shape *s = m->s;
    const size_t row = 2 * (size_t)s->n_kv * WIDE;
    int n = 0;
    from[n] = m->x, size[n++] = 4 * (size_t)s->hidden;
    from[n] = m->h, size[n++] = 4 * (size_t)s->ff;
    from[n] = m->taps, size[n++] = 4 * (size_t)(s->layers * s->hidden);
    for (int i = 0; i < s->layers; i++) {
        const struct layer *l = &m->l[i];
        if (l->attends) {
            from[n] = (const uint8_t *)l->kv.k + (size_t)pos * row, size[n++] = ROWS * row;
            from[n] = (const uint8_t *)l->kv.v + (size_t)pos * row, size[n++] = ROWS * row;
            continue;
        }
        from[n] = l->state.s, size[n++] = 4 * (size_t)(m->inner * HEAD);
        from[n] = l->state.conv, size[n++] = 4 * (size_t)(3 * m->width);
        const size_t words = (size_t)(m->width + 2 * s->n_v);
        from[n] = l->state.log, size[n++] = 4 * ROWS * words;
        from[n] = l->state.log + KN_DELTA_LOG / 2 * words, size[n++] = 4 * ROWS * words;
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
} passes[] = {{1, 0, 0, 0},  {1, 1, 0, 0}, {1, 1, 0, 0},  {1, 1, 0, 3}, {6, 1, 0, 0}, {1, 4, 0, 0},
              {1, 1, 0, 0},  {1, 1, 1, 0}, {1, 0, 1, 0},  {6, 0, 0, 0}, {1, 6, 1, 0}, {1, 0, 0, 2},
              {1, 1, 0, 40}, {1, 1, 1, 0}, {1, 0, 1, 40}, {1, 0, 5, 0}, {1, 1, 5, 0}, {1, 2, 5, 20},
              {1, 3, 5, 0},  {1, 4, 5, 0}, {1, 0, 5, 0},  {1, 1, 2, 0}, {1, 0, 3, 0}, {1, 1, 3, 0},
              {6, 2, 0, 0},  {1, 6, 0, 0}, {1, 1, 1, 0}};
enum { PASSES = sizeof passes / sizeof *passes };

/* All that passes leave; the first is at pos. launches: 0: none is one; 1: all are; 2: every other. */
static uint8_t *results(struct model *m, const float *x, int32_t pos, size_t *bytes, int launches)
{
    const struct shape *s = m->s;
    const void *from[3 + 4 * LAYERS];
    size_t size[3 + 4 * LAYERS], all = 0;
    const int n = places(m, pos, from, size);
    for (int i = 0; i < n; i++) all += size[i];
    for (int i = 0; i < s->layers; i++) {
        struct kn_delta_state *y = &m->l[i].state;
        const struct kn_kv *kv = &m->l[i].kv;
        const size_t row = 2 * (size_t)s->n_kv * WIDE, rest = (size_t)(CAP - pos) * row;
        if (m->l[i].attends) {
            clear((uint8_t *)kv->k + (size_t)pos * row, rest),
                clear((uint8_t *)kv->v + (size_t)pos * row, rest);
            continue;
        }
        clear(y->s, 4 * (size_t)(m->inner * HEAD)), clear(y->conv, 4 * (size_t)(3 * m->width));
        clear(y->log, 4 * (size_t)(KN_DELTA_LOG * (m->width + 2 * s->n_v)));
    }
    uint8_t *left = malloc(PASSES * all), *to = left;
    if (!left) die("results", "out of memory");
    for (const struct pass *p = passes; p < passes + PASSES; p++) {
        const bool starts = s->starts && p->n == 1;
        chain_tuning.off = launches == 1 || (launches && (p - passes) % 2);
        must(gpu, "upload",
             kn_op(gpu)->upload(gpu, m->x, x + (p - passes) % 3 * 7, 4 * (size_t)(p->n * s->hidden)));
        must(gpu, "upload", kn_op(gpu)->upload(gpu, m->o, x + 100, 4 * (size_t)m->inner));
        must(gpu, "upload", kn_op(gpu)->upload(gpu, m->pending, &p->pending, 4));
        clear(m->taps, 4 * (size_t)(s->layers * s->hidden));
        if (s->kinds) place(m, pos), places(m, pos++, from, size);
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
    chain_tuning.off = 0;
    return left;
}

/* Kinds of activations that the types want: steps of a product with such matrices. */
static int kinds_of(const uint32_t *types, int n)
{
    unsigned seen = 0;
    for (int i = 0; i < n; i++)
        seen |= 1u << (types[i] == KN_F32    ? 1
                       : types[i] == KN_F16  ? 2
                       : types[i] == KN_BF16 ? 3
                       : types[i] == Q8      ? 4
                       : types[i] == KN_Q5_1 ? 5
                                             : 0);
    return __builtin_popcount(seen);
}

/* Chains of a pass of one row: attention is a launch between two, and what has few steps goes as launches. */
static int chains_of(const struct shape *s)
{
    enum { LEAST = 8 }; /* CHAIN_LEAST */
    const uint32_t net[] = {s->qkv, s->z, s->gates}, attention[] = {s->qkv, s->z, s->down};
    int steps = s->starts, chains = 0;
    for (int i = 0; i < s->layers; i++) {
        if (attends(s, i)) { /* the projections end one, the gated row begins the next */
            chains += steps + kinds_of(attention, 3) >= LEAST;
            steps = 3;
        } else {
            steps += 4 + kinds_of(net, 3);
        }
    }
    return chains + (steps >= LEAST);
}

/* Of a shape, at a position, with a NaN or without. mixed: every other pass is launches. */
static void check_at(struct model *m, float *x, int32_t pos, bool odd, bool mixed)
{
    const struct shape *s = m->s;
    size_t bytes, differ[PASSES] = {0}, first[PASSES], strange = 0, all = 0;
    const long before = chain_launched;
    uint8_t *want = results(m, x, pos, &bytes, 1);
    const long plain = chain_launched;
    uint8_t *got = results(m, x, pos, &bytes, mixed ? 2 : 0);
    long chains = 0;
    for (int p = 0; p < PASSES; p++)
        if (passes[p].n == 1 && !(mixed && p % 2)) chains += chains_of(s);
    for (int p = 0; p < PASSES; p++)
        for (size_t i = bytes / 4; i-- > 0;)
            if (memcmp(got + p * bytes + 4 * i, want + p * bytes + 4 * i, 4)) differ[p]++, first[p] = i;
    for (int i = 0; i < PASSES * (int)(bytes / 4); i++) {
        float y;
        memcpy(&y, want + 4 * (size_t)i, 4);
        strange += !isfinite(y) && (size_t)i % (bytes / 4) < (size_t)s->hidden;
    }
    char line[400], where[40] = "";
    int at = 0;
    for (int p = 0; p < PASSES; all += differ[p++])
        if (differ[p] && at < 300)
            at += snprintf(line + at, sizeof line - (size_t)at, "; pass %d: %zu words differ (first %zu)", p,
                           differ[p], first[p]);
    if (s->kinds) snprintf(where, sizeof where, ", from %d on", pos);
    const bool taken = plain == before && chain_launched == plain + chains;
    verdict(taken && !all && (strange > 0) == odd,
            "chain delta %s%s%s%s: %zu words a pass%s, %zu not numbers%s", s->name, where,
            odd ? ", a NaN" : "", mixed ? ", launches between" : "", bytes / 4, at ? line : "", strange,
            taken ? "" : ", other chains than expected");
    free(want), free(got);
}
static void check(const struct shape *of)
{
    static struct model m;
    static const int32_t at[] = {0, 57, 500, 1020, 3000, 4060}; /* leaves and nodes end in between */
    struct shape fewer = *of, *s = &fewer;
    if (s->layers > 3 && !s->kinds) s->layers = 3;
    make(&m, s);
    const size_t n_x = (size_t)(ROWS * (s->hidden > m.inner ? s->hidden : m.inner)) + 200;
    float *x = gaussians(n_x, 1.0f);
    const float plain = x[3 + s->hidden / 2];
    for (int i = 0; i < (int)(s->kinds ? sizeof at / sizeof *at : 1); i++)
        for (int odd = 0; odd < (i ? 1 : 2); odd++) {
            x[3 + s->hidden / 2] = odd ? NAN : plain;
            check_at(&m, x, at[i], odd, false);
            if (!odd && i < 2) check_at(&m, x, at[i], odd, true);
            if (odd && s->kinds) { /* which are keys now */
                x[3 + s->hidden / 2] = plain;
                unmake(&m), make(&m, s);
            }
        }
    free(x);
    unmake(&m);
}

/* Of all layers, states, keys and values read and written. */
static double bytes_of(const struct shape *s, int32_t keys)
{
    const int64_t inner = (int64_t)s->n_v * HEAD, width = 2 * (int64_t)s->n_k * HEAD + inner,
                  heads = (int64_t)s->n_head * WIDE, wide = (int64_t)s->n_kv * WIDE;
    double all = 0;
    for (int i = 0; i < s->layers; i++) {
        if (attends(s, i))
            all +=
                (double)(kn_row_bytes(s->qkv, s->hidden) + kn_row_bytes(s->z, s->hidden)) * (double)heads +
                (double)(kn_row_bytes(s->qkv, s->hidden) + kn_row_bytes(s->down, s->hidden)) * (double)wide +
                (double)kn_row_bytes(s->out, heads) * s->hidden + 4.0 * (double)wide * keys;
        else
            all += (double)kn_row_bytes(s->qkv, s->hidden) * (double)width +
                   (double)kn_row_bytes(s->z, s->hidden) * (double)inner +
                   2 * (double)kn_row_bytes(s->gates, s->hidden) * s->n_v +
                   (double)kn_row_bytes(s->out, inner) * s->hidden + 8.0 * (double)(inner * HEAD);
        all += 2 * (double)kn_row_bytes(s->gate, s->hidden) * s->ff +
               (double)kn_row_bytes(s->down, s->ff) * s->hidden;
    }
    return all;
}
static void bench(const struct shape *s)
{
    enum { AT = 512 };
    static const struct {
        const char *name;
        int off, k_ahead, pending, final;
    } ways[] = {{"launches", 1, 64512, 1, 0},
                {"chain, a row pending", 0, 64512, 1, 0},
                {"none pending", 0, 64512, 0, 0},
                {"final rows", 0, 64512, 0, 1},
                {"final, of 8", 0, 64512, 0, 8},
                {"final, of 8, 1 before", 0, 64512, 1, 8},
                {"final, of 8, 3 before", 0, 64512, 3, 8},
                {"final, of 8, 6 before", 0, 64512, 6, 8}};
    static struct model m;
    make(&m, s);
    float *x = gaussians((size_t)(ROWS * s->hidden), 1.0f);
    place(&m, AT);
    kn_bound(gpu, 2 * AT);
    for (int how = 0; how < (int)(sizeof ways / sizeof *ways); how++) {
        const int32_t pending = ways[how].pending;
        const int times = 36 / s->layers, layers = times * s->layers;
        void *rec = NULL;
        chain_tuning.off = ways[how].off;
        chain_tuning.k_ahead = ways[how].k_ahead;
        must(gpu, "upload", kn_op(gpu)->upload(gpu, m.x, x, 4 * (size_t)s->hidden));
        must(gpu, "upload", kn_op(gpu)->upload(gpu, m.pending, &pending, 4));
        must(gpu, "record_begin", kn_op(gpu)->record_begin(gpu));
        for (int i = 0; i < times; i++) run(&m, 1, ways[how].final, false);
        must(gpu, "record_end", kn_op(gpu)->record_end(gpu, &rec));
        double best = 1e9;
        for (int i = 0; i < 12; i++) {
            const double t = seconds_now();
            for (int j = 0; j < 10; j++) must(gpu, "replay", kn_op(gpu)->replay(gpu, rec));
            must(gpu, "sync", kn_op(gpu)->sync(gpu));
            const double d = (seconds_now() - t) / 10;
            if (i && d < best) best = d;
        }
        printf("%-24s %-21s: %7.2f us a layer, %.2f TB/s\n", s->name, ways[how].name, 1e6 * best / layers,
               bytes_of(s, AT) * times / best * 1e-12);
        fflush(stdout);
        kn_op(gpu)->record_free(gpu, rec);
    }
    chain_tuning.off = 0, chain_tuning.k_ahead = 64512;
    kn_bound(gpu, 0);
    free(x);
    unmake(&m);
}

static void check_forms(void)
{
    static const enum cuda_form forms[] = {CUDA_CHAIN_NETS, CUDA_CHAIN_NETS_SHARED, CUDA_CHAIN_NETS_ITEMS,
                                           CUDA_CHAIN_NETS_LOW, CUDA_CHAIN_NETS_GRIDS};
    char text[900];
    const bool ok = forms_are(gpu, CUDA_CHAIN_NETS, CUDA_CHAIN_NETS_GRIDS, forms, 5, text, sizeof text);
    verdict(ok, "forms: %s", text);
}

int main(int argc, char **argv)
{
    char msg[256];
    const struct kn_open open = {.device = "cuda"};
    const bool small = argc > 1 && !strcmp(argv[1], "--small"),
               timing = argc > 1 && !strcmp(argv[1], "--bench");
    const char *name = argc > 1 + (small || timing) ? argv[argc - 1] : "";
    if (small) chain_tuning.split = chain_tuning.split_normed = 1;
    if (kn_backend_open(&gpu, &open, msg, sizeof msg)) {
        fprintf(stderr, "chain_delta_gpu: %s\n", msg);
        return 5;
    }
    must(gpu, "reserve", kn_op(gpu)->reserve(gpu, ROWS, 32768, 0, 0, 0));
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const struct shape *s = &shapes[i];
        if (!strstr(s->name, name)) continue;
        if (timing && !s->small)
            bench(s);
        else if (!timing && (!small || s->small))
            check(s);
    }
    if (!timing && !small && !*name) check_forms();
    kn_backend_close(gpu);
    if (timing) return 0;
    printf("%ld passed, %ld failed\n", passed, failed);
    return failed != 0;
}
