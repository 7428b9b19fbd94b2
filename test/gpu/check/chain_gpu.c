/* chain_gpu.c - all layers of one row in one launch (kernels/cuda/chain/chain.cuh) against the same
 * operations launched one by one: every output, and every key and value stored, has the same bits.
 *
 * usage: chain_gpu [--small]     check; --small: little shapes, for compute-sanitizer
 *        chain_gpu --far         check long contexts alone
 *        chain_gpu --codes       check quantised caches alone
 *        chain_gpu --stress [NAME [N]]   recordings made in many ways, N a shape (30), replayed often
 *        chain_gpu --bench       microseconds a layer, both ways, out of memory
 *        chain_gpu --WHAT NAME   the same of shapes with NAME in their names; =NAME: of that one
 *        chain_gpu --bench NAME CONTEXT   over contexts up to that
 * Prints "ok   gpu/..." or "FAIL gpu/..." a case; exit 1 if any failed, 5 if there is no device. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../../../kernels/cuda/chain/chain_plan.h"
#include "../../../kernels/cuda/core/cuda.h"
#include "../../../kernels/kv_rows.h"
#include "../../block_scales.h"
#include "../forms.h"

extern long chain_launched, chain_heads;
extern int chain_set_heads;

static struct kn_backend *gpu;
static long passed, failed;
static uint64_t seed = 1;

static uint32_t rnd(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 32);
}

static void verdict(bool ok, const char *what)
{
    printf("%s gpu/%s\n", ok ? "ok  " : "FAIL", what);
    fflush(stdout);
    passed += ok;
    failed += !ok;
}

static void must(const char *what, int rc)
{
    if (!rc) return;
    printf("FAIL gpu/%s: %s\n", what, kn_message(gpu));
    exit(rc == KN_EDEVICE ? 5 : 1);
}

static void *take(size_t bytes)
{
    void *p = malloc(bytes);
    if (!p) exit(4);
    return p;
}

static float *put(const float *host, size_t n)
{
    float *p = kn_op(gpu)->alloc(gpu, n * sizeof *p);
    if (!p) must("alloc", KN_EMEM);
    if (host) must("upload", kn_op(gpu)->upload(gpu, p, host, n * sizeof *p));
    return p;
}

static float *values(size_t n, float size)
{
    float *v = take(n * sizeof *v);
    for (size_t i = 0; i < n; i++)
        v[i] = size * (float)((int32_t)rnd() * (1.0 / 2147483648.0)) * (rnd() % 256 ? 1.0f : 20.0f);
    return v;
}

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
    uint8_t *w = take(bytes);
    for (size_t i = 0; i < own * t->bytes; i++) w[i] = (uint8_t)rnd();
    for (size_t i = 0; i < own; i++) {
        uint8_t *b = w + i * t->bytes;
        const float u = (float)((int32_t)rnd() * (1.0 / 2147483648.0));
        if (type == KN_F32) {
            const float v = u / 64;
            memcpy(b, &v, 4);
        } else if (type == KN_F16 || type == KN_BF16) { /* from 1/128 on; zeros */
            const uint16_t h = (uint16_t)(type == KN_BF16 ? (rnd() & 0x80ff) | 0x3c00
                                                          : (rnd() & 0x83ff) | (0x2000 + (rnd() % 3 << 10)));
            memcpy(b, &h, 2);
            if (rnd() % 64 == 0) memset(b, 0, 2);
        } else if (type == KN_MXFP4) {
            b[0] = (uint8_t)(112 + rnd() % 6); /* 2^-15 and more */
        } else if (t->block == 32) {
            set_half(b, (type == KN_Q8_0 ? 0.0005f : type == KN_IQ4_NL ? 0.0003f : 0.004f) * u);
            if (type == KN_Q4_1 || type == KN_Q5_1) set_half(b + 2, 0.004f * u);
        } else if (type == KN_Q2_K) {
            set_half(b + 80, 0.0003f * u), set_half(b + 82, 0.002f * u);
        } else if (type == KN_Q3_K) {
            set_half(b + 108, 0.0002f * u);
        } else if (type == KN_IQ4_XS) {
            set_half(b, 0.00007f * u);
        } else if (type == KN_Q6_K) {
            set_half(b + 208, 0.00003f * u);
        } else if (grid_has(type)) {
            const bool one = type == KN_IQ1_S || type == KN_IQ1_M;
            block_set_scales(type, b, rnd() % 64 ? (one ? 0.002f : 0.0004f) * u : 0.0f, 0);
        } else {
            set_half(b, 0.0003f * u);
            set_half(b + 2, 0.002f * u);
        }
    }
    for (size_t i = own; i < blocks; i += own)
        memcpy(w + i * t->bytes, w, (blocks - i < own ? blocks - i : own) * t->bytes);
    struct kn_weight k = {0};
    must("weight_load", kn_op(gpu)->weight_load(gpu, &k, type, n_in, n_out, w, KN_USE_LINEAR));
    free(w);
    return k;
}

#include "chain_shapes.h"

enum {
    LAYERS = 28,
    HEAD = 70003,    /* wider than a step of a chain, no whole panels */
    PERIOD = 1000003 /* of keys and values: no row of a head is like another */
};

struct layer {
    struct kn_weight o, gate, up, down, q, k, v;
    struct kn_kv kv;
    float *attn_norm, *ffn_norm, *q_norm, *k_norm;
};
struct model {
    const struct shape *s;
    struct layer l[LAYERS];
    float *x, *q, *k, *v, *attn, *h, *table, *logits, *out_norm, *taps; /* taps: [layers][hidden] */
    int32_t *pos;
    struct kn_weight head; /* of HEAD outputs, where the shape is no small one */
};

static size_t ring(const struct shape *s)
{
    return (size_t)s->cap * (size_t)s->n_kv * 128;
}
/* Keys or values: numbers of about 1. */
static void *halves(const struct shape *s)
{
    uint16_t *h = take(2 * ring(s));
    const size_t own = ring(s) < PERIOD ? ring(s) : PERIOD;
    for (size_t i = 0; i < own; i++)
        h[i] = (uint16_t)((rnd() & 0x83ff) |
                          (s->cache == KN_F16 ? 0x3400 + (rnd() % 3 << 10) : 0x3e00 + (rnd() % 2 << 8)));
    for (size_t i = own; i < ring(s); i += own) memcpy(h + i, h, 2 * (ring(s) - i < own ? ring(s) - i : own));
    void *p = kn_op(gpu)->alloc(gpu, 2 * ring(s));
    if (!p) must("alloc", KN_EMEM);
    must("upload", kn_op(gpu)->upload(gpu, p, h, 2 * ring(s)));
    free(h);
    return p;
}
static size_t row_bytes(const struct kn_kv *kv, bool value)
{
    return kn_kv_row_bytes(kv, value ? kv->type.v : kv->type.k);
}
/* The same of a quantised type: 509 rows over and over. */
static void *codes(const struct kn_kv *kv, bool value)
{
    const int32_t heads = kv->n_head_kv, own = kv->cap < 509 ? kv->cap : 509;
    const size_t row = row_bytes(kv, value), bytes = row * (size_t)kv->cap, some = row * (size_t)own;
    uint8_t *h = take(bytes);
    memset(h, 0, some);
    for (int32_t i = 0; i < own * heads; i++) {
        float *x = values(128, 1.0f);
        kv_encode(value ? kv->type.v : kv->type.k, x, h + (size_t)(i / heads) * row, heads, 128, i % heads);
        free(x);
    }
    for (size_t i = some; i < bytes; i += some) memcpy(h + i, h, bytes - i < some ? bytes - i : some);
    void *p = kn_op(gpu)->alloc(gpu, bytes);
    if (!p) must("alloc", KN_EMEM);
    must("upload", kn_op(gpu)->upload(gpu, p, h, bytes));
    free(h);
    return p;
}
static float *random_row(int64_t n, float size)
{
    float *v = values((size_t)n, size), *p = put(v, (size_t)n);
    free(v);
    return p;
}

static uint32_t value_type; /* of values; 0: the cache's */
static void make(struct model *m, const struct shape *s)
{
    const int64_t q = 128 * s->n_head, kv = 128 * s->n_kv;
    m->s = s;
    for (int i = 0; i < s->layers; i++) {
        struct layer *l = &m->l[i];
        l->o = weight(s->o, q, s->hidden), l->down = weight(s->down, s->ff, s->hidden);
        l->gate = weight(s->gate, s->hidden, s->ff), l->up = weight(s->gate, s->hidden, s->ff);
        l->q = weight(s->qk, s->hidden, q), l->k = weight(s->qk, s->hidden, kv),
        l->v = weight(s->v, s->hidden, kv);
        l->kv =
            (struct kn_kv){NULL, NULL, {s->cache, value_type ? value_type : s->cache}, s->cap, s->n_kv, 128};
        l->kv.k = kn_kv_coded(l->kv.type.k) ? codes(&l->kv, false) : halves(s);
        l->kv.v = kn_kv_coded(l->kv.type.v) ? codes(&l->kv, true) : halves(s);
        l->attn_norm = random_row(s->hidden, 1.0f), l->ffn_norm = random_row(s->hidden, 1.0f);
        l->q_norm = random_row(128, 1.0f), l->k_norm = random_row(128, 1.0f);
    }
    m->x = put(NULL, (size_t)s->hidden), m->q = put(NULL, (size_t)q), m->k = put(NULL, (size_t)kv);
    m->v = put(NULL, (size_t)kv), m->attn = put(NULL, (size_t)q), m->h = put(NULL, (size_t)s->ff);
    m->pos = (int32_t *)put(NULL, 1);
    float turns[128];
    for (int i = 0; i < 64; i++) {
        const double angle = rnd() * 1e-6;
        turns[2 * i] = (float)cos(angle), turns[2 * i + 1] = (float)sin(angle);
    }
    m->table = put(turns, 128);
    m->head = (struct kn_weight){0};
    m->logits = put(NULL, HEAD), m->out_norm = random_row(s->hidden, 1.0f);
    m->taps = put(NULL, (size_t)(s->layers * s->hidden));
    if (!s->small) m->head = weight(s->v == K4 || s->v == K5 ? K6 : s->v, s->hidden, HEAD);
    must("reserve_kv", kn_op(gpu)->reserve_kv(gpu, 1, s->n_head, &m->l[0].kv, 0));
}

static void unmake(struct model *m)
{
    for (int i = 0; i < m->s->layers; i++) {
        struct layer *l = &m->l[i];
        struct kn_weight *w[] = {&l->o, &l->gate, &l->up, &l->down, &l->q, &l->k, &l->v};
        void *p[] = {l->kv.k, l->kv.v, l->attn_norm, l->ffn_norm, l->q_norm, l->k_norm};
        for (size_t j = 0; j < sizeof w / sizeof *w; j++) kn_op(gpu)->weight_free(gpu, w[j]);
        for (size_t j = 0; j < sizeof p / sizeof *p; j++) kn_op(gpu)->free(gpu, p[j]);
    }
    if (!m->s->small) kn_op(gpu)->weight_free(gpu, &m->head);
    void *p[] = {m->x, m->q, m->k, m->v, m->attn, m->h, m->pos, m->table, m->logits, m->out_norm, m->taps};
    for (size_t j = 0; j < sizeof p / sizeof *p; j++) kn_op(gpu)->free(gpu, p[j]);
}

static bool heads = true; /* a head behind the layers */
static bool tapped;       /* x is wanted behind layers 0, 2, ..., too; and behind the last */
static void tap(float *to, const float *x, int64_t hidden, int layer, int layers)
{
    if (tapped && (layer % 2 == 0 || layer == layers - 1))
        must("tap", kn_op(gpu)->tap(gpu, to, layers * hidden, layer * hidden, x, 1, hidden));
}
static void run(struct model *m, int layers)
{
    const struct shape *s = m->s;
    for (int i = 0; i < layers; i++) {
        struct layer *l = &m->l[i];
        float *const out[] = {m->q, m->k, m->v};
        const struct kn_weight *const w[] = {&l->q, &l->k, &l->v};
        const struct kn_rope_store store = {.q = m->q,
                                            .k = m->k,
                                            .v = m->v,
                                            .q_norm = s->norms ? l->q_norm : NULL,
                                            .k_norm = s->norms ? l->k_norm : NULL,
                                            .table = m->table,
                                            .pos = m->pos,
                                            .n = 1,
                                            .n_head = s->n_head,
                                            .n_rot = s->turn ? 128 : 0,
                                            .eps = 1e-6f,
                                            .kv = &l->kv};
        const struct kn_attention attention = {.q = m->q,
                                               .out = m->attn,
                                               .kv = &l->kv,
                                               .pos = m->pos,
                                               .n = 1,
                                               .n_head = s->n_head,
                                               .scale = 0.088f,
                                               .causal = true,
                                               .then = &l->o};
        must("norm_linear", kn_op(gpu)->norm_linear(gpu, out, w, 3, m->x, l->attn_norm, 1e-6f, 1));
        must("attend", kn_op(gpu)->attend(gpu, &store, &attention));
        must("linear", kn_op(gpu)->linear(gpu, m->x, &l->o, m->attn, 1, true));
        must("norm_gated",
             kn_op(gpu)->norm_gated(gpu, m->h, &l->gate, &l->up, m->x, l->ffn_norm, 1e-6f, KN_ACT_SILU, 1));
        must("linear", kn_op(gpu)->linear(gpu, m->x, &l->down, m->h, 1, true));
        tap(m->taps, m->x, s->hidden, i, s->layers);
    }
    const struct kn_weight *const head = &m->head;
    if (m->head.packed && heads)
        must("norm_linear", kn_op(gpu)->norm_linear(gpu, &m->logits, &head, 1, m->x, m->out_norm, 1e-6f, 1));
}

static void wipe(float *p, size_t bytes)
{
    void *none = calloc(1, bytes);
    if (!none) exit(4);
    must("upload", kn_op(gpu)->upload(gpu, p, none, bytes));
    free(none);
}

static bool whole; /* nothing is promised of positions */
/* What a pass leaves: x, attn, h, logits, taps, keys and values at pos of all layers. */
static uint8_t *results(struct model *m, const float *x, int32_t pos, int times, bool recorded, size_t *n)
{
    const struct shape *s = m->s;
    const size_t row[2] = {row_bytes(&m->l[0].kv, false), row_bytes(&m->l[0].kv, true)},
                 sizes[] = {4 * (size_t)s->hidden, 512 * (size_t)s->n_head, 4 * (size_t)s->ff,
                            m->head.packed ? 4 * HEAD : 0, 4 * (size_t)(s->layers * s->hidden)};
    const void *from[] = {m->x, m->attn, m->h, m->logits, m->taps};
    int32_t bound = 64;
    while (bound <= pos) bound *= 2;
    kn_bound(gpu, whole ? 0 : bound);
    must("upload", kn_op(gpu)->upload(gpu, m->x, x, sizes[0]));
    must("upload", kn_op(gpu)->upload(gpu, m->pos, &pos, sizeof pos));
    wipe(m->taps, sizes[4]);
    if (recorded) {
        void *rec = NULL;
        must("record_begin", kn_op(gpu)->record_begin(gpu));
        run(m, s->layers);
        must("record_end", kn_op(gpu)->record_end(gpu, &rec));
        for (int i = 0; i < times; i++) must("replay", kn_op(gpu)->replay(gpu, rec));
        must("sync", kn_op(gpu)->sync(gpu));
        kn_op(gpu)->record_free(gpu, rec);
    } else {
        for (int i = 0; i < times; i++) run(m, s->layers);
    }
    *n = sizes[0] + sizes[1] + sizes[2] + sizes[3] + sizes[4] + (row[0] + row[1]) * (size_t)s->layers;
    uint8_t *all = take(*n), *to = all;
    for (int i = 0; i < 5; to += sizes[i++])
        must("download", kn_op(gpu)->download(gpu, to, from[i], sizes[i]));
    for (int i = 0; i < 2 * s->layers; to += row[i++ % 2]) {
        const uint8_t *p = i % 2 ? m->l[i / 2].kv.v : m->l[i / 2].kv.k;
        must("download", kn_op(gpu)->download(gpu, to, p + (size_t)pos * row[i % 2], row[i % 2]));
    }
    kn_bound(gpu, 0);
    return all;
}

/* One comparison of a chain's words with those of the operations in turn. */
struct compared {
    const char *name, *what;
    int32_t pos;
    int times;
    bool recorded, taken, any; /* taken: by a chain; any: whether there are numbers is not looked at */
};

/* want and got [n] in bytes, which begin with hidden floats: numbers, unless what says that a NaN came in. */
static void compare_words(const struct compared *c, const uint8_t *want, const uint8_t *got, size_t n,
                          int64_t hidden)
{
    const bool nan = !strncmp(c->what, "a NaN", 5);
    char line[200];
    size_t differ = 0, odd = 0, first = 0;
    for (size_t i = n / 4; i-- > 0;)
        if (memcmp(got + 4 * i, want + 4 * i, 4)) differ++, first = i;
    for (size_t i = 0; i < (size_t)hidden; i++) {
        float y;
        memcpy(&y, want + 4 * i, 4);
        odd += !isfinite(y);
    }
    snprintf(line, sizeof line,
             "chain %s, %s position %d, %d times%s%s: %zu of %zu words differ (first %zu), %zu not numbers%s",
             c->name, c->what, c->pos, c->times, c->recorded ? ", recorded" : "", tapped ? ", taps" : "",
             differ, n / 4, first, odd, c->taken ? "" : ", no chain");
    verdict(c->taken && differ == 0 && (nan ? odd > 0 : c->any || odd == 0), line);
}

/* What chain_tuning.code_heads comes to: two at least. */
static int heads_of_set(const struct model *m)
{
    const int most = m->s->n_kv < 8 ? m->s->n_kv : 8,
              want = chain_tuning.code_heads < 2 ? 2 : chain_tuning.code_heads;
    return want < most && m->s->n_kv % want == 0 ? want : most;
}

static void compare(struct model *m, const float *x, int32_t pos, int times, bool recorded, const char *what)
{
    size_t n;
    tapped = pos % 2 || times > 3;
    chain_tuning.off = 1;
    const long before = chain_launched;
    uint8_t *want = results(m, x, pos, times, recorded, &n);
    const long plain = chain_launched;
    chain_tuning.off = 0;
    const long headless = chain_heads;
    uint8_t *got = results(m, x, pos, times, recorded, &n);
    const long expected = m->s->cut ? 0 : recorded ? 1 : times;
    const bool taken = plain == before && chain_launched == plain + expected &&
                       chain_heads == headless + (m->head.packed ? expected : 0) &&
                       (!chain_tuning.code_heads || chain_set_heads == heads_of_set(m));
    compare_words(&(struct compared){m->s->name, what, pos, times, recorded, taken, *what != 0}, want, got, n,
                  m->s->hidden);
    free(want), free(got);
}

static void check(const struct shape *s, bool quick)
{
    static const int32_t positions[] = {0,   1,   62,  63,   64,   65,   127, 511,
                                        512, 513, 575, 1000, 1023, 1024, 2047};
    static struct model m;
    make(&m, s);
    float *x = values((size_t)s->hidden, 1.0f);
    for (size_t i = 0; i < sizeof positions / sizeof *positions; i++) {
        if (positions[i] >= s->cap || (quick && i % 3)) continue;
        compare(&m, x, positions[i], 1, false, "");
    }
    compare(&m, x, 100, 3, true, "");
    if (!quick) compare(&m, x, 130 % s->cap, 1000, true, "");
    x[3] = (float)(0.0 * HUGE_VAL); /* shows where the launches show it */
    compare(&m, x, 70, 1, false, "a NaN,");
    free(x);
    unmake(&m);
}

/* Keys and values through the ring, from little that there is to see to all of it. */
static void check_far(const struct shape *s, bool quick)
{
    static const int32_t positions[] = {0,     63,    511,   512,   1000,  2047,   3333,   4094,
                                        4095,  4096,  4159,  5055,  8191,  8192,   8255,   16383,
                                        16384, 20000, 36863, 65535, 99999, 131071, 131072, 163839};
    static struct model m;
    make(&m, s);
    const int near = chain_tuning.near, k_near = chain_tuning.k_near;
    float *x = values((size_t)s->hidden, 1.0f);
    for (size_t i = 0; i < sizeof positions / sizeof *positions; i++) {
        const int32_t pos = positions[i];
        if (pos >= s->cap || (quick && pos > 600 && pos % 64 != 63)) continue;
        chain_tuning.near = pos < near ? 0 : near, chain_tuning.k_near = pos < k_near ? 0 : k_near;
        compare(&m, x, pos, 1, false, "far,");
        if (pos < 64 || pos % 5 == 0) {
            whole = true;
            compare(&m, x, pos, 2, true, "of the whole,");
            whole = false;
        }
    }
    chain_tuning.near = near, chain_tuning.k_near = k_near;
    compare(&m, x, s->cap - 1, 3, true, "far,");
    if (!quick) compare(&m, x, 4100, 500, true, "far,");
    if (s->cap > 20000) compare(&m, x, 20031, 300, true, "far,");
    compare(&m, x, s->cap - 64, quick ? 2 : 30, true, "far,");
    compare(&m, x, s->cap - 65, quick ? 2 : 30, true, "far,");
    const int far_ahead = chain_tuning.far_ahead;
    for (int i = 0; i < 4; i++) {
        char what[80];
        chain_tuning.far_ahead = i ? 16384 + (int)(rnd() % 130000) : 0;
        snprintf(what, sizeof what, "%d bytes of keys ahead, far,", chain_tuning.far_ahead);
        compare(&m, x, s->cap - 1 - 65 * i, 1, false, what);
        compare(&m, x, s->cap - 2 - 65 * i, quick ? 2 : 60, true, what);
    }
    chain_tuning.far_ahead = far_ahead;
    x[3] = (float)(0.0 * HUGE_VAL);
    compare(&m, x, s->cap - 2, 1, false, "a NaN,");
    free(x);
    unmake(&m);
}

/* Codes, about the ends of leaves of 32, of nodes of 256 and of 1,024. */
static void check_codes(const struct code_shape *c, bool quick)
{
    const struct shape *s = &c->s;
    static const int32_t positions[] = {0,    31,    32,    62,    127,   255,   256,   511,    1000,  2047,
                                        3333, 4094,  4095,  4096,  4127,  4128,  5119,  5120,   5121,  8191,
                                        8192, 16383, 16384, 20000, 36863, 65535, 99999, 131071, 163839};
    static struct model m;
    value_type = c->values;
    make(&m, s);
    value_type = 0;
    char what[80];
    float *x = values((size_t)s->hidden, 1.0f);
    for (size_t i = 0; i < sizeof positions / sizeof *positions; i++) {
        const int32_t pos = positions[i];
        if (pos >= s->cap || (quick && i % 3)) continue;
        compare(&m, x, pos, 1, false, "codes,");
        chain_tuning.code_heads = 2 << i % 3;
        snprintf(what, sizeof what, "codes, sets of %d heads,", chain_tuning.code_heads);
        compare(&m, x, pos, 1, false, what);
        chain_tuning.code_heads = 0;
        if (i % 5) continue;
        whole = true;
        compare(&m, x, pos, 2, true, "codes, of the whole,");
        whole = false;
    }
    for (chain_tuning.code_heads = 8; chain_tuning.code_heads; chain_tuning.code_heads /= 2) {
        snprintf(what, sizeof what, "codes, sets of %d heads,", chain_tuning.code_heads);
        compare(&m, x, s->cap - 1, 3, true, what);
    }
    if (!quick) compare(&m, x, 4100, 200, true, "codes,");
    compare(&m, x, s->cap - 64, quick ? 2 : 30, true, "codes,");
    x[3] = (float)(0.0 * HUGE_VAL);
    compare(&m, x, s->cap - 2, 1, false, "a NaN,");
    compare(&m, x, 70, 1, false, "a NaN,");
    free(x);
    unmake(&m);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double bytes_of(const struct shape *s)
{
    const int64_t q = 128 * s->n_head, kv = 128 * s->n_kv;
    return (double)kn_row_bytes(s->o, q) * (double)s->hidden +
           2 * (double)kn_row_bytes(s->gate, s->hidden) * (double)s->ff +
           (double)kn_row_bytes(s->down, s->ff) * (double)s->hidden +
           (double)kn_row_bytes(s->qk, s->hidden) * (double)(q + kv) +
           (double)kn_row_bytes(s->v, s->hidden) * (double)kv;
}

/* most: context, 0: any */
static void bench(const struct shape *of, int32_t most)
{
    static struct model m;
    struct shape longer = *of, *s = &longer;
    s->cap = s->hidden > 4096                                    ? 16384
             : of->gate == K4 && of->v == K6 && of->layers <= 12 ? 65536 /* Q4_K_M's mix */
             : of->gate == Q8 && of->layers <= 12                ? 65536
                                                                 : 20480;
    if (most && s->cap > most) s->cap = (most + 255) / 256 * 256;
    make(&m, s);
    float *x = values((size_t)s->hidden, 1.0f);
    static const struct run {
        int context, chain, tile, items, near;
    } runs[] = {{512, 0, 0, 0, 4096},   {512, 1, 0, 0, 4096},   {512, 1, 0, 0, 0},
                {1024, 1, 0, 0, 4096},  {1024, 1, 0, 0, 0},     {2048, 1, 0, 0, 4096},
                {2048, 1, 0, 0, 0},     {4096, 0, 0, 0, 4096},  {4096, 1, 0, 0, 4096},
                {4096, 1, 0, 0, 0},     {8192, 0, 0, 0, 4096},  {8192, 1, 0, 0, 4096},
                {12288, 1, 0, 0, 4096}, {16384, 0, 0, 0, 4096}, {16384, 1, 0, 0, 4096},
                {20480, 1, 0, 0, 4096}, {65536, 0, 0, 0, 4096}, {65536, 1, 0, 0, 4096}},
      others[] = {{512, 0, 0, 0, 4096},         {512, 1, 4608, 65536, 4096},   {512, 1, 8704, 65536, 4096},
                  {512, 1, 8704, 98304, 4096},  {512, 1, 17408, 65536, 4096},  {512, 1, 17408, 98304, 4096},
                  {512, 1, 8704, 65536, 0},     {2048, 1, 8704, 65536, 4096},  {2048, 1, 8704, 65536, 0},
                  {4096, 0, 0, 0, 4096},        {4096, 1, 8704, 65536, 4096},  {4096, 1, 8704, 65536, 0},
                  {16384, 0, 0, 0, 4096},       {16384, 1, 8704, 65536, 4096}, {65536, 0, 0, 0, 4096},
                  {65536, 1, 8704, 65536, 4096}};
    const bool low = kn_type_info(s->down)->block == 256;
    const struct chain_tuning tuned = chain_tuning;
    const size_t n_runs = low ? sizeof runs / sizeof *runs : sizeof others / sizeof *others;
    for (const struct run *r = low ? runs : others, *end = r + n_runs; r < end; r++) {
        if (r->context > s->cap || (most && r->context > most)) continue;
        const int context = r->context, off = !r->chain;
        const int32_t pos = context - 2;
        void *rec = NULL;
        chain_tuning.off = off;
        chain_tuning.tile = r->tile ? r->tile : tuned.tile;
        chain_tuning.items = r->items ? r->items : tuned.items;
        chain_tuning.near = chain_tuning.k_near = r->near;
        kn_bound(gpu, context);
        must("upload", kn_op(gpu)->upload(gpu, m.x, x, 4 * (size_t)s->hidden));
        must("upload", kn_op(gpu)->upload(gpu, m.pos, &pos, sizeof pos));
        must("record_begin", kn_op(gpu)->record_begin(gpu));
        for (int i = 0; i < 36 / s->layers; i++) run(&m, s->layers);
        must("record_end", kn_op(gpu)->record_end(gpu, &rec));
        const int layers = 36 / s->layers * s->layers;
        double best = 1e9;
        for (int i = 0; i < 20; i++) {
            const double t = now();
            for (int j = 0; j < 10; j++) must("replay", kn_op(gpu)->replay(gpu, rec));
            must("sync", kn_op(gpu)->sync(gpu));
            const double d = (now() - t) / 10;
            if (i && d < best) best = d;
        }
        printf("%-20s context %5d %s %6d ahead, tiles of %d: %7.2f us a layer, %.2f TB/s\n", s->name, context,
               off                 ? "launches"
               : context > r->near ? "far     "
                                   : "chain   ",
               off   ? 0
               : low ? chain_tuning.k_ahead
                     : r->items,
               r->tile, 1e6 * best / layers, bytes_of(s) / best * 1e-12 * layers);
        fflush(stdout);
        kn_op(gpu)->record_free(gpu, rec);
        kn_bound(gpu, 0);
    }
    chain_tuning = tuned;
    free(x);
    unmake(&m);
}

#include "chain_wide.h"

/* n recordings made in many ways, each replayed often: the same bits as the launches', and an end. */
static void stress(const struct shape *s, int n)
{
    static struct model m;
    make(&m, s);
    float *x = values((size_t)s->hidden, 1.0f);
    for (int i = 0; i < n; i++) {
        const int ahead = 20000 + (int)(rnd() % 90000);
        chain_tuning.items = 2 * ahead, chain_tuning.tile = 1 << (11 + rnd() % 3);
        chain_tuning.k_ahead = i % 3 ? ahead : 0;
        chain_tuning.split = chain_tuning.split_normed = i % 4; /* 0: never */
        char what[64];
        snprintf(what, sizeof what, "%d bytes ahead,", ahead);
        compare(&m, x, (int32_t)(rnd() % 1000), 150, true, what);
    }
    free(x);
    unmake(&m);
}

/* what: a part of the name, or =NAME. */
static bool called(const char *name, const char *what)
{
    return *what == '=' ? !strcmp(name, what + 1) : strstr(name, what) != NULL;
}

/* Every kind of chain but delta nets (chain_delta_gpu) has run by now. */
static void check_forms(void)
{
    static const enum cuda_form forms[] = {CUDA_CHAIN_FEW,
                                           CUDA_CHAIN_PAIRS,
                                           CUDA_CHAIN_SHARED,
                                           CUDA_CHAIN_FAR,
                                           CUDA_CHAIN_GEMMA,
                                           CUDA_CHAIN_ITEMS,
                                           CUDA_CHAIN_ITEMS_FAR,
                                           CUDA_CHAIN_CODES,
                                           CUDA_CHAIN_ITEMS_CODES,
                                           CUDA_CHAIN_LOW,
                                           CUDA_CHAIN_LOW_FAR,
                                           CUDA_CHAIN_LOW_CODES,
                                           CUDA_CHAIN_KS,
                                           CUDA_CHAIN_GRIDS,
                                           CUDA_CHAIN_GRIDS_FAR,
                                           CUDA_CHAIN_GRIDS_CODES,
                                           CUDA_CHAIN_GRIDS_ITEMS,
                                           CUDA_CHAIN_GRIDS_ITEMS_FAR,
                                           CUDA_CHAIN_GRIDS_ITEMS_CODES};
    char text[900], line[920];
    const bool ok = forms_are(gpu, CUDA_CHAIN_FEW, CUDA_CHAIN_NETS_GRIDS, forms,
                              (int)(sizeof forms / sizeof *forms), text, sizeof text);
    snprintf(line, sizeof line, "forms: %s", text);
    verdict(ok, line);
}

int main(int argc, char **argv)
{
    char msg[256];
    const struct kn_open open = {.device = "cuda"};
    const bool small = argc > 1 && !strcmp(argv[1], "--small"),
               timing = argc > 1 && !strcmp(argv[1], "--bench"),
               often = argc > 1 && !strcmp(argv[1], "--stress"), far = argc > 1 && !strcmp(argv[1], "--far"),
               coded = argc > 1 && !strcmp(argv[1], "--codes");
    chain_tuning.head_columns = 1 << 20;
    if (small) chain_tuning.split = chain_tuning.split_normed = 1;
    heads = !timing;                         /* what is timed is layers */
    tapped = timing && getenv("CHAIN_TAPS"); /* with taps */
    if (kn_backend_open(&gpu, &open, msg, sizeof msg)) {
        fprintf(stderr, "chain_gpu: %s\n", msg);
        return 5;
    }
    must("reserve", kn_op(gpu)->reserve(gpu, 1, 32768, 0, 0, 0));
    for (size_t i = 0; i < sizeof code_shapes / sizeof *code_shapes; i++)
        if (argc > 2 && !called(code_shapes[i].s.name, argv[2]))
            continue;
        else if (timing && !code_shapes[i].s.small)
            bench(&code_shapes[i].s, argc > 3 ? atoi(argv[3]) : 0);
        else if (!timing && !often && !far && (!small || code_shapes[i].s.small))
            check_codes(&code_shapes[i], small);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (coded || (argc > 2 && !called(shapes[i].name, argv[2])))
            continue;
        else if (timing && !shapes[i].small)
            bench(&shapes[i], argc > 3 ? atoi(argv[3]) : 0);
        else if (often && !shapes[i].small)
            stress(&shapes[i], argc > 3 ? atoi(argv[3]) : 30);
        else if (!often && !timing && !far && (!small || shapes[i].small))
            check(&shapes[i], small);
    for (size_t i = 0; i < sizeof far_shapes / sizeof *far_shapes; i++)
        if (!coded && !often && !timing && (!small || far_shapes[i].small) &&
            (argc < 3 || called(far_shapes[i].name, argv[2])))
            check_far(&far_shapes[i], small);
    for (size_t i = 0; i < sizeof wide_shapes / sizeof *wide_shapes; i++)
        if ((argc > 2 && !called(wide_shapes[i].name, argv[2])) || far || coded)
            continue;
        else if (often && !wide_shapes[i].small)
            stress_wide(&wide_shapes[i], argc > 3 ? atoi(argv[3]) : 30);
        else if (timing && !wide_shapes[i].small)
            bench_wide(&wide_shapes[i]);
        else if (!often && !timing && (!small || wide_shapes[i].small))
            check_wide(&wide_shapes[i], small);
    if (!timing && !small && !often && argc == 1) check_forms();
    kn_backend_close(gpu);
    if (timing) return 0;
    printf("%ld passed, %ld failed\n", passed, failed);
    return failed != 0;
}
