/* test_gpu.c - the CUDA backend against the CPU's: every operation but the matrix products (mm_gpu.cu has
 * those), then the pair.
 *
 * usage: test_gpu [--generic] PAIR_DIR PROMPT.txt
 *        test_gpu [--generic] --ops   without the pair
 *        test_gpu --bench          microseconds of the sampler (attention: attention_gpu.cu)
 *        test_gpu [--generic] --pair PAIR_DIR PROMPT.txt   the pair alone
 *        test_gpu --small          the small cases of the operations, for compute-sanitizer
 * Each case is a line of a table: shape, type, tolerance. A tolerance of 0 asks for the CPU's bits. Rows are
 * computed together and in other groups, and must have the same bits. Prints "ok   gpu/..." or "FAIL gpu/..."
 * a case; exit 1 if any failed, 5 if there is no device. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../../common/mem.h"
#include "../../common/session.h"
#include "../../common/spec.h"
#include "../../common/tokenizer.h"
#include "../../kernels/cuda/cuda.h"

static struct kn_backend *cpu, *gpu;
static long passed, failed;
static bool small;

static void verdict(bool ok, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    printf(ok ? "ok   gpu/" : "FAIL gpu/");
    vprintf(fmt, ap);
    va_end(ap);
    printf("\n");
    fflush(stdout);
    passed += ok;
    failed += !ok;
}

static void die(const char *what, const char *why)
{
    printf("FAIL gpu/%s: %s\n", what, why);
    exit(1);
}

static uint64_t rnd_state;
static uint64_t rnd(void)
{
    uint64_t z = rnd_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}
static float normal(float sigma)
{
    double u = ((double)(rnd() >> 12) + 0.5) * 0x1p-52, v = ((double)(rnd() >> 12) + 0.5) * 0x1p-52;
    return (float)(sigma * sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v));
}
static float *normals(size_t n, float sigma)
{
    float *x = calloc(n ? n : 1, sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = normal(sigma);
    return x;
}

static void must(struct kn_backend *be, const char *what, int rc)
{
    if (rc) die(what, kn_message(be));
}
static void *put(struct kn_backend *be, const void *host, size_t bytes)
{
    void *p = kn_op(be)->alloc(be, bytes);
    if (!p) die("alloc", kn_message(be));
    if (host) must(be, "upload", kn_op(be)->upload(be, p, host, bytes));
    return p;
}
static void *get(struct kn_backend *be, const void *p, size_t bytes)
{
    void *host = malloc(bytes ? bytes : 1);
    must(be, "download", kn_op(be)->download(be, host, p, bytes));
    return host;
}
static void drop(struct kn_backend *be, void *p)
{
    kn_op(be)->free(be, p);
}

static float from16(uint32_t type, uint16_t h)
{
    return type == KN_F16 ? kn_f16_to_f32(h) : kn_bf16_to_f32(h);
}

/* ---- embed ---- */

static void check_embed(void)
{
    static const uint32_t types[] = {KN_F32,  KN_F16,  KN_BF16, KN_Q8_0,   KN_Q4_0,
                                     KN_Q4_1, KN_Q5_0, KN_Q5_1, KN_Q4_K,   KN_Q5_K,
                                     KN_Q6_K, KN_Q2_K, KN_Q3_K, KN_IQ4_NL, KN_IQ4_XS};
    for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
        enum { N_OUT = 37, N = 9 };
        const int64_t n_in = 768;
        const struct kn_type_info *t = kn_type_info(types[k]);
        size_t row = kn_row_bytes(types[k], n_in);
        char *table = calloc(N_OUT, row);
        bool raw = !t->can_encode;
        rnd_state = k;
        for (int i = 0; i < N_OUT; i++) {
            float *x = normals((size_t)n_in, 0.05f * (float)(i + 1));
            if (types[k] == KN_F32)
                memcpy(table + (size_t)i * row, x, row);
            else if (!raw && kn_encode_row(types[k], x, table + (size_t)i * row, n_in, NULL))
                raw = true;
            free(x);
        }
        for (size_t i = 0; raw && i < N_OUT * row; i++)
            table[i] = (char)(rnd() & 0x3f); /* any codes; no NaN scales */
        int32_t ids[N] = {0, 36, 5, 5, 17, 1, 30, 2, 9};
        float *out[2];
        for (int b = 0; b < 2; b++) {
            struct kn_backend *be = b ? gpu : cpu;
            struct kn_weight w = {0};
            must(be, "weight_load",
                 kn_op(be)->weight_load(be, &w, types[k], n_in, N_OUT, table, KN_USE_ROWS));
            int32_t *d_ids = put(be, ids, sizeof ids);
            float *d_out = put(be, NULL, N * (size_t)n_in * 4);
            must(be, "embed", kn_op(be)->embed(be, d_out, &w, d_ids, N, 1.5f));
            out[b] = get(be, d_out, N * (size_t)n_in * 4);
            drop(be, d_out);
            drop(be, d_ids);
            kn_op(be)->weight_free(be, &w);
        }
        verdict(!memcmp(out[0], out[1], N * (size_t)n_in * 4), "embed %s%s", t->name,
                raw ? " (raw codes)" : "");
        free(out[0]);
        free(out[1]);
        free(table);
    }
}

/* ---- norm, rope table, tap, softcap, find_bad ---- */

static void check_rms_norm(void)
{
    static const int widths[] = {1, 7, 40, 255, 256, 257, 1024, 2560, 4096, 5120, 12288};
    for (size_t k = 0; k < sizeof widths / sizeof *widths; k++) {
        const int width = widths[k], n = 33;
        const size_t bytes = (size_t)n * width * 4;
        rnd_state = k;
        float *x = normals((size_t)n * width, 3.0f), *g = normals((size_t)width, 1.0f), *out[2],
              *alone = NULL;
        for (int b = 0; b < 2; b++) {
            struct kn_backend *be = b ? gpu : cpu;
            float *d = put(be, x, bytes), *w = put(be, g, (size_t)width * 4);
            if (b) {
                float *one = put(be, NULL, (size_t)width * 4);
                must(be, "rms_norm", kn_op(be)->rms_norm(be, one, d + 2 * width, w, 1, width, 1e-6f));
                alone = get(be, one, (size_t)width * 4);
                drop(be, one);
            }
            must(be, "rms_norm", kn_op(be)->rms_norm(be, d, d, w, n, width, 1e-6f));
            out[b] = get(be, d, bytes);
            drop(be, d);
            drop(be, w);
        }
        /* Sums of positive terms differ by half the roundings of either order; then root, division, products.
         */
        const double tol = 0x1p-24 * (width / 64.0 + width / 512.0 + 30);
        double worst = 0;
        for (int i = 0; i < n * width; i++) {
            double e = fabs((double)out[1][i] - out[0][i]) / (fabs((double)out[0][i]) + 1e-30);
            worst = e > worst || e != e ? e : worst;
        }
        bool same = !memcmp(alone, out[1] + 2 * width, (size_t)width * 4);
        verdict(worst <= tol && same, "rms_norm width %d: error %.2g of %.2g%s", width, worst, tol,
                same ? "" : ", other bits alone");
        free(x), free(g), free(out[0]), free(out[1]), free(alone);
    }
}

static void check_rope_table(void)
{
    enum { N = 300, ROT = 128 };
    double freq[ROT / 2];
    int32_t pos[N];
    float *out[2];
    for (int j = 0; j < ROT / 2; j++) freq[j] = pow(1e6, -2.0 * j / ROT);
    for (int i = 0; i < N; i++) pos[i] = i < 100 ? i : i < 200 ? 999900 + i : 2000000000 + i;
    for (int b = 0; b < 2; b++) {
        struct kn_backend *be = b ? gpu : cpu;
        int32_t *p = put(be, pos, sizeof pos);
        double *f = put(be, freq, sizeof freq);
        float *d = put(be, NULL, N * ROT * 4);
        must(be, "rope_table", kn_op(be)->rope_table(be, d, p, N, f, ROT));
        out[b] = get(be, d, N * ROT * 4);
        drop(be, p), drop(be, f), drop(be, d);
    }
    verdict(!memcmp(out[0], out[1], N * ROT * 4), "rope_table, the CPU's bits");
    free(out[0]), free(out[1]);
}

static void check_small(void)
{
    enum { N = 13, WIDTH = 391, STRIDE = 1000, AT = 77 };
    rnd_state = 5;
    float *x = normals(N * WIDTH, 20.0f), *out[2], *cap[2];
    x[3] = 0.0f, x[4] = 1e30f, x[5] = -1e30f, x[6] = 1e-30f, x[7] = -0.0f;
    for (int b = 0; b < 2; b++) {
        struct kn_backend *be = b ? gpu : cpu;
        float *d = put(be, x, N * WIDTH * 4), *t = put(be, NULL, N * STRIDE * 4);
        must(be, "tap", kn_op(be)->tap(be, t, STRIDE, AT, d, N, WIDTH));
        must(be, "softcap", kn_op(be)->softcap(be, d, N * WIDTH, 30.0f));
        out[b] = get(be, t, N * STRIDE * 4);
        cap[b] = get(be, d, N * WIDTH * 4);
        drop(be, d), drop(be, t);
    }
    verdict(!memcmp(out[0], out[1], N * STRIDE * 4), "tap");
    verdict(!memcmp(cap[0], cap[1], N * WIDTH * 4), "softcap, the CPU's bits");
    static const int at[] = {-1, 0, 5, 12};
    for (int k = 0; k < 4; k++) {
        int32_t bad = 99;
        float *y = malloc(N * WIDTH * 4);
        memcpy(y, x, N * WIDTH * 4);
        if (at[k] >= 0) y[at[k] * WIDTH + WIDTH - 1] = k == 2 ? INFINITY : NAN, y[12 * WIDTH + 1] = NAN;
        float *d = put(gpu, y, N * WIDTH * 4);
        must(gpu, "find_bad", kn_op(gpu)->find_bad(gpu, d, N, WIDTH, &bad));
        verdict(bad == at[k], "find_bad: row %d, expected %d", bad, at[k]);
        drop(gpu, d);
        free(y);
    }
    free(x), free(out[0]), free(out[1]), free(cap[0]), free(cap[1]);
}

/* ---- rope_store ---- */

static void check_rope_store(void)
{
    static const struct {
        int n, n_head, n_kv, d, n_rot, cap, first;
        uint32_t type;
        bool interleaved, norm, q;
    } cases[] = {
        {1, 16, 8, 128, 128, 512, 700, KN_F16, false, true, true},
        {16, 32, 8, 128, 128, 256, 250, KN_BF16, false, true, true},
        {5, 4, 2, 64, 32, 256, 254, KN_F32, true, false, true},
        {33, 6, 2, 80, 80, 512, 511, KN_F16, false, true, true},
        {7, 2, 1, 256, 64, 256, 0, KN_BF16, true, true, true},
        {64, 2, 1, 512, 512, 256, 1000, KN_F16, false, true, true},
        {100, 8, 4, 128, 128, 256, 200, KN_F16, false, true, false},
        {3, 4, 4, 16, 0, 256, 5, KN_F16, false, false, true},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        const int n = cases[k].n, d = cases[k].d, slots = cases[k].cap * cases[k].n_kv * d;
        const size_t qb = (size_t)n * cases[k].n_head * d * 4, kb = (size_t)n * cases[k].n_kv * d * 4;
        const size_t size = cases[k].type == KN_F32 ? 4 : 2, cache = (size_t)slots * size;
        rnd_state = k;
        float *q = normals(qb / 4, 2.0f), *key = normals(kb / 4, 2.0f), *v = normals(kb / 4, 1.0f);
        float *qn = normals((size_t)d, 1.0f), *kn = normals((size_t)d, 1.0f),
              *table = normals((size_t)(n * cases[k].n_rot), 0.7f);
        int32_t *pos = malloc((size_t)n * 4);
        for (int i = 0; i < n; i++) pos[i] = cases[k].first + i;
        float *gq[3], *gk[3];
        void *ck[3], *cv[3];
        for (int b = 0; b < 3; b++) { /* the CPU, the device, the device row by row */
            struct kn_backend *be = b ? gpu : cpu;
            float *dq = put(be, q, qb), *dk = put(be, key, kb), *dv = put(be, v, kb),
                  *dqn = put(be, qn, (size_t)d * 4), *dkn = put(be, kn, (size_t)d * 4),
                  *dt = put(be, table, (size_t)(n * cases[k].n_rot) * 4);
            int32_t *dp = put(be, pos, (size_t)n * 4);
            struct kn_kv kv = {put(be, NULL, cache), put(be, NULL, cache), cases[k].type,
                               cases[k].cap,         cases[k].n_kv,        d};
            struct kn_rope_store list[11];
            for (int i = 0; i < (b == 2 ? n : 1); i++) {
                struct kn_rope_store a = {.q = cases[k].q ? dq + (size_t)i * cases[k].n_head * d : NULL,
                                          .k = dk + (size_t)i * cases[k].n_kv * d,
                                          .v = dv + (size_t)i * cases[k].n_kv * d,
                                          .q_norm = cases[k].norm ? dqn : NULL,
                                          .k_norm = cases[k].norm ? dkn : NULL,
                                          .table = dt + (size_t)i * cases[k].n_rot,
                                          .pos = dp + i,
                                          .n = b == 2 ? 1 : n,
                                          .n_head = cases[k].n_head,
                                          .n_rot = cases[k].n_rot,
                                          .interleaved = cases[k].interleaved,
                                          .eps = 1e-6f,
                                          .kv = &kv};
                list[i % 11] = a; /* rows alone go in lists of up to 11 */
                if (i % 11) list[i % 11 - 1].next = &list[i % 11];
                if (b < 2 || i + 1 == n || i % 11 == 10)
                    must(be, "rope_store", kn_op(be)->rope_store(be, list));
            }
            gq[b] = get(be, dq, qb), gk[b] = get(be, dk, kb), ck[b] = get(be, kv.k, cache),
            cv[b] = get(be, kv.v, cache);
            drop(be, dq), drop(be, dk), drop(be, dv), drop(be, dqn), drop(be, dkn), drop(be, dt),
                drop(be, dp);
            drop(be, kv.k), drop(be, kv.v);
        }
        double worst = 0, cached = 0,
               tol = 0x1p-24 * (d / 16.0 + 40) * 16; /* a norm's sum, products of values up to 16 */
        for (size_t i = 0; i < qb / 4; i++) worst = fmax(worst, fabs((double)gq[0][i] - gq[1][i]));
        for (size_t i = 0; i < kb / 4; i++) worst = fmax(worst, fabs((double)gk[0][i] - gk[1][i]));
        for (int i = 0; i < slots; i++) { /* one step of the cache's type */
            double a = size == 4 ? ((float *)ck[0])[i] : from16(cases[k].type, ((uint16_t *)ck[0])[i]);
            double b = size == 4 ? ((float *)ck[1])[i] : from16(cases[k].type, ((uint16_t *)ck[1])[i]);
            double step = fabs(a) * (size == 4 ? 0 : cases[k].type == KN_F16 ? 0x1p-10 : 0x1p-7) + 1e-7 + tol;
            cached = fmax(cached, fabs(a - b) / step);
        }
        bool same_v = !memcmp(cv[0], cv[1], cache);
        bool rows = !memcmp(gq[1], gq[2], qb) && !memcmp(gk[1], gk[2], kb) && !memcmp(ck[1], ck[2], cache) &&
                    !memcmp(cv[1], cv[2], cache);
        verdict(worst <= tol && cached <= 1.0 && same_v && rows,
                "rope_store %d rows, %d/%d heads of %d, %s: error %.2g of %.2g%s%s", n, cases[k].n_head,
                cases[k].n_kv, d, kn_type_info(cases[k].type)->name, worst, tol,
                same_v ? "" : ", other values", rows ? "" : ", other bits row by row");
        for (int b = 0; b < 3; b++) free(gq[b]), free(gk[b]), free(ck[b]), free(cv[b]);
        free(q), free(key), free(v), free(qn), free(kn), free(table), free(pos);
    }
}

/* ---- attention ---- */

struct att_case {
    const char *name;
    int n, n_head, n_kv, d, cap, last, window, first; /* last: position of the last row; first: -1 none */
    bool causal;
    uint32_t type;
};
static const struct att_case att_cases[] = {
    {"one row, one key", 1, 2, 1, 64, 256, 0, 0, -1, true, KN_F16},
    {"short", 5, 4, 2, 64, 256, 17, 0, -1, true, KN_F16},
    {"split boundary", 16, 6, 2, 128, 512, 260, 0, -1, true, KN_F16},
    {"split boundary, one row after", 3, 32, 8, 128, 512, 257, 0, -1, true, KN_F16},
    {"ring, cap - 1", 3, 4, 2, 64, 512, 511, 200, -1, true, KN_BF16},
    {"ring, cap", 3, 4, 2, 64, 512, 512, 200, -1, true, KN_BF16},
    {"ring, cap + 1", 3, 4, 2, 64, 512, 513, 200, -1, true, KN_F32},
    {"ring, 3 caps", 7, 4, 2, 64, 512, 1539, 500, -1, true, KN_F16},
    {"ring filled to the last slot", 12, 4, 2, 64, 512, 1600, 501, -1, true, KN_F16},
    {"odd head", 4, 4, 4, 80, 4096, 2500, 0, -1, true, KN_F16},
    {"many splits, tiny head", 2, 2, 1, 16, 18432, 18000, 0, -1, true, KN_F16},
    {"many splits", 2, 8, 2, 128, 18432, 18000, 0, -1, true, KN_F16},
    {"many splits, bf16", 16, 8, 1, 128, 9216, 9000, 0, -1, true, KN_BF16},
    {"block, all see all", 8, 4, 2, 128, 1024, 700, 0, -1, false, KN_F16},
    {"block with window", 8, 4, 2, 128, 1024, 1031, 100, -1, false, KN_F16},
    {"block, window below the block", 16, 2, 2, 64, 256, 300, 5, -1, false, KN_F16},
    {"block, window below the block, f32", 16, 2, 2, 32, 256, 300, 5, -1, false, KN_F32},
    {"causal, first bound", 6, 4, 1, 64, 2048, 1500, 0, 1200, true, KN_F16},
    {"causal, first bound after the first rows", 6, 4, 1, 64, 2048, 1500, 0, 1498, true, KN_F16},
    {"block, first bound past a wrap", 8, 4, 2, 64, 1024, 3077, 0, 2500, false, KN_BF16},
    {"64 rows", 64, 32, 8, 128, 1024, 800, 0, -1, true, KN_F16},
    {"64 rows, many splits", 64, 8, 8, 128, 8192, 8000, 0, -1, true, KN_F16},
    {"prefill from 0", 70, 4, 2, 64, 256, 69, 0, -1, true, KN_F16},
    {"prefill, window and wrap", 100, 4, 2, 48, 512, 1333, 300, -1, true, KN_F16},
    {"prefill, window, wrap, head 128", 100, 4, 2, 128, 512, 1333, 300, -1, true, KN_F16},
    {"prefill, block", 80, 8, 1, 64, 512, 400, 0, -1, false, KN_F32},
    {"prefill, chunk of 512", 512, 16, 8, 128, 2048, 2000, 0, -1, true, KN_F16},
    {"head 256", 9, 2, 1, 256, 512, 300, 0, -1, true, KN_F16},
    {"head 512", 3, 2, 1, 512, 512, 300, 0, -1, true, KN_BF16},
    {"head 256, prefill", 90, 4, 1, 256, 512, 400, 0, -1, true, KN_F16},
    {"head 256, many splits", 6, 16, 2, 256, 4096, 4000, 0, -1, true, KN_F16},
    {"head 256, block with window", 16, 8, 4, 256, 1024, 900, 300, -1, false, KN_BF16},
    {"head 512, 40 rows", 40, 4, 1, 512, 2048, 1500, 0, -1, true, KN_F16},
    {"head 512, prefill, window and wrap", 70, 2, 1, 512, 1024, 1300, 600, -1, true, KN_F16},
    {"head 128, 16 heads a kv head", 9, 16, 1, 128, 1024, 1000, 0, -1, true, KN_F16},
    {"three heads a kv head, rows over tiles", 23, 6, 2, 128, 1024, 700, 0, -1, true, KN_F16},
    {"prefill, bf16, three heads a kv head", 131, 6, 2, 128, 1024, 900, 0, 300, true, KN_BF16},
    {"head 144", 3, 3, 3, 144, 512, 300, 0, -1, true, KN_F16},
};

struct att_data {
    float *q;
    int32_t *pos;
    void *k, *v;      /* the ring as it lies */
    double size, big; /* of the scores' terms, of the values */
};

static void ring_put(const struct att_case *c, void *cache, int64_t at, float x)
{
    if (c->type == KN_F32)
        ((float *)cache)[at] = x;
    else
        ((uint16_t *)cache)[at] = c->type == KN_F16 ? kn_f32_to_f16(x) : kn_f32_to_bf16(x);
}

static struct att_data att_make(const struct att_case *c, bool poison)
{
    struct att_data a;
    const int64_t row = (int64_t)c->n_kv * c->d, n = c->last + 1;
    const size_t values = (size_t)c->cap * (size_t)row, bytes = values * (c->type == KN_F32 ? 4 : 2);
    a.q = normals((size_t)c->n * (size_t)c->n_head * (size_t)c->d, 1.5f);
    a.pos = malloc((size_t)c->n * 4);
    a.k = calloc(1, bytes);
    a.v = calloc(1, bytes);
    for (int i = 0; i < c->n; i++) a.pos[i] = c->last - c->n + 1 + i;
    /* What nobody may see is NaN: slots never written, keys before `first`. */
    for (size_t i = 0; poison && i < values; i++)
        ring_put(c, a.k, (int64_t)i, NAN), ring_put(c, a.v, (int64_t)i, NAN);
    a.big = 0;
    for (int64_t p = n > c->cap ? n - c->cap : 0; p < n; p++) {
        if (p < c->first && poison) continue;
        for (int64_t i = 0; i < row; i++) {
            float x = normal(1.0f), y = normal(1.0f);
            ring_put(c, a.k, p % c->cap * row + i, x);
            ring_put(c, a.v, p % c->cap * row + i, y);
            a.big = fmax(a.big, fabs((double)y));
        }
    }
    a.size = 1.5 * sqrt(c->d); /* sum of |q k| scale: d terms of 1.5 * 2/pi over sqrt d, with room */
    return a;
}

static float *att_run(struct kn_backend *be, const struct att_case *c, const struct att_data *a, int step)
{
    const size_t row = (size_t)c->n_head * (size_t)c->d,
                 ring = (size_t)c->cap * (size_t)c->n_kv * (size_t)c->d;
    const size_t bytes = ring * (c->type == KN_F32 ? 4 : 2);
    struct kn_kv kv = {put(be, a->k, bytes), put(be, a->v, bytes), c->type, c->cap, c->n_kv, c->d};
    float *q = put(be, a->q, (size_t)c->n * row * 4), *poison = malloc((size_t)c->n * row * 4);
    memset(poison, 0xff, (size_t)c->n * row * 4);
    float *out = put(be, poison, (size_t)c->n * row * 4);
    int32_t *pos = put(be, a->pos, (size_t)c->n * 4), *first = put(be, &c->first, 4);
    must(be, "reserve", kn_op(be)->reserve(be, c->n, 0, 8, c->n_head, c->d));
    must(be, "reserve_kv", kn_op(be)->reserve_kv(be, c->n, c->n_head, &kv, c->window));
    for (int i = 0; i < c->n; i += step) {
        struct kn_attention t = {.q = q + (size_t)i * row,
                                 .out = out + (size_t)i * row,
                                 .kv = &kv,
                                 .pos = pos + i,
                                 .n = c->n - i < step ? c->n - i : step,
                                 .n_head = c->n_head,
                                 .scale = (float)(1.0 / sqrt(c->d)),
                                 .causal = c->causal,
                                 .window = c->window,
                                 .first = c->first >= 0 ? first : NULL};
        must(be, c->name, kn_op(be)->attention(be, &t));
    }
    float *host = get(be, out, (size_t)c->n * row * 4);
    drop(be, kv.k), drop(be, kv.v), drop(be, q), drop(be, out), drop(be, pos), drop(be, first);
    free(poison);
    return host;
}

static void check_attention(void)
{
    static const int steps[] = {1, 5, 17, 64};
    for (size_t k = 0; k < sizeof att_cases / sizeof *att_cases; k++) {
        const struct att_case *c = att_cases + k;
        const size_t bytes = (size_t)c->n * (size_t)c->n_head * (size_t)c->d * 4;
        if (small && (c->n > 64 || c->last > 2000)) continue;
        rnd_state = k + 1;
        struct att_data a = att_make(c, true);
        float *want = att_run(cpu, c, &a, c->n), *got = att_run(gpu, c, &a, c->n), *few = NULL;
        bool same = true;
        double worst = 0;
        /* Queries and weights are split in two halves: 2^-22 of each is lost for f16, 2^-17 for bf16, and of
         * random signs over 64 terms and more the root of that: an eighth; f32 caches lose what float sums
         * lose, less than the first. In a score relative to the sum of its terms. */
        double unit = c->type == KN_BF16 ? 0x1p-20 : 0x1p-21;
        /* More rows than 64 where the head size has a kernel for them: one half each, 2^-12 and 2^-9. */
        if (c->n > 64 && c->type != KN_F32 && (c->d == 64 || c->d == 128 || c->d == 256 || c->d == 512))
            unit = c->type == KN_BF16 ? 0x1p-12 : 0x1p-15;
        const double tol = unit * a.big * (a.size + 2);
        for (size_t i = 0; i < bytes / 4; i++) {
            double e = fabs((double)want[i] - got[i]);
            if (!(e <= worst)) worst = e;
        }
        if (c->n <= 64 && c->causal) {
            for (int s = 0; s < 4 && same; s++) {
                if (steps[s] >= c->n) continue;
                few = att_run(gpu, c, &a, steps[s]);
                same = !memcmp(few, got, bytes);
                free(few);
            }
        }
        /* other ways to cut the work, the promise of a bound among them: the same bits */
        static const struct cuda_attention_tuning others[] = {
            {.unit = 1, .near = 1},
            {.unit = 2, .near = 1},
            {.unit = 1, .per = 3, .near = 1},
            {.unit = 1, .tiles = 1, .slots = 2, .near = 1},
            {.unit = 2, .tiles = 1, .spread = 60, .near = 1},
            {.unit = 2, .per = 2, .slots = 3, .warps = 4, .near = 1},
            {.warps = 8, .near = 1},
            {.near = 2, .cluster = 8},
            {.near = 2, .cluster = 16}};
        int other = -1;
        for (int i = 0; i < (int)(sizeof others / sizeof *others) && other < 0; i++) {
            cuda_attention_tuning = others[i];
            kn_bound(gpu, i % 2 ? c->last + 1 : 0);
            few = att_run(gpu, c, &a, c->n);
            if (memcmp(few, got, bytes)) other = i;
            free(few);
        }
        memset(&cuda_attention_tuning, 0, sizeof cuda_attention_tuning);
        kn_bound(gpu, 0);
        char why[64] = "";
        if (other >= 0) snprintf(why, sizeof why, ", other bits when cut as in %d", other);
        verdict(worst <= tol && same && other < 0, "attention, %s: error %.2g of %.2g%s%s", c->name, worst,
                tol, same ? "" : ", other bits in other groups of rows", why);
        free(want), free(got), free(a.q), free(a.pos), free(a.k), free(a.v);
    }
}

/* A NaN in what a row sees shows in that row and in no other; extreme queries neither overflow nor vanish. */
static void check_attention_extremes(void)
{
    static const uint32_t types[] = {KN_F16, KN_BF16, KN_F32};
    for (int k = 0; k < 3; k++) {
        const struct att_case c = {"", 4, 2, 1, 64, 512, 300, 0, -1, true, types[k]};
        rnd_state = 77;
        struct att_data a = att_make(&c, false);
        float *plain = att_run(gpu, &c, &a, 4);
        a.q[1 * 2 * 64] = NAN;                /* row 1, head 0 */
        ring_put(&c, a.v, 299 * 64 + 5, NAN); /* seen by rows 2 and 3 */
        float *got = att_run(gpu, &c, &a, 4);
        bool ok = true;
        for (int i = 0; i < 4; i++)
            for (int h = 0; h < 2; h++) {
                bool bad = false;
                for (int d = 0; d < 64; d++) bad |= !isfinite(got[(i * 2 + h) * 64 + d]);
                ok &= bad == (i >= 2 || (i == 1 && h == 0));
                if (!bad) ok &= !memcmp(got + (i * 2 + h) * 64, plain + (i * 2 + h) * 64, 256);
            }
        verdict(ok, "attention, NaN where it is seen, %s", kn_type_info(types[k])->name);
        free(got), free(plain), free(a.q), free(a.pos), free(a.k), free(a.v);
        rnd_state = 78;
        struct att_data big = att_make(&c, false);
        for (int i = 0; i < 4 * 2 * 64; i++)
            big.q[i] *= i < 2 * 64 ? 1e6f : i < 4 * 64 ? 1e-6f : i < 6 * 64 ? 1e-30f : 100.0f;
        float *want = att_run(cpu, &c, &big, 4);
        got = att_run(gpu, &c, &big, 4);
        double worst = 0;
        for (int i = 2 * 64; i < 6 * 64; i++) worst = fmax(worst, fabs((double)got[i] - want[i]));
        ok = worst < 1e-5; /* all weights equal, or nearly: roundings of a mean of values */
        for (int i = 0; i < 2 * 64; i++)
            ok &=
                fabs((double)got[i] - want[i]) <= (types[k] == KN_BF16 ? 1e-3 : 1e-5); /* one key takes all */
        verdict(ok, "attention, queries of 1e6, 1e-6 and 1e-30, %s: error %.2g", kn_type_info(types[k])->name,
                worst);
        free(got), free(want), free(big.q), free(big.pos), free(big.k), free(big.v);
    }
}

/* ---- rope_store and attention in one ---- */

struct attend_case {
    const char *name;
    int n, n_head, n_kv, d, n_rot, cap, from, window; /* from: position of the first row */
    bool causal, norms, v_is_k, v_norm, interleaved;
    uint32_t type;
};
static const struct attend_case attend_cases[] = {
    {"one row", 1, 32, 8, 128, 128, 1024, 513, 0, true, true, false, false, false, KN_F16},
    {"one row, bf16, no norms", 1, 32, 8, 128, 128, 1024, 700, 0, true, false, false, false, false, KN_BF16},
    {"the first row", 1, 16, 8, 128, 128, 512, 0, 0, true, true, false, false, false, KN_F16},
    {"16 rows", 16, 32, 8, 128, 128, 1024, 500, 0, true, true, false, false, false, KN_F16},
    {"a block that all see", 16, 32, 8, 128, 128, 1024, 505, 0, false, true, false, false, false, KN_F16},
    {"a block with a window", 16, 32, 8, 128, 128, 512, 1020, 200, false, true, false, false, false, KN_F16},
    {"a window below the block", 8, 8, 4, 64, 64, 512, 509, 3, true, true, false, false, false, KN_F16},
    {"two nodes and a wrap", 5, 16, 4, 128, 128, 1024, 1534, 900, true, true, false, false, false, KN_F16},
    {"one row, long", 1, 32, 8, 128, 128, 18432, 18001, 0, true, true, false, false, false, KN_F16},
    {"four rows, long", 4, 32, 8, 128, 128, 12288, 12000, 0, true, true, false, false, false, KN_BF16},
    {"four rows over two leaves, long", 4, 32, 8, 128, 128, 12288, 11966, 0, true, true, false, false, false, KN_F16},
    {"16 rows, long", 16, 32, 8, 128, 128, 4096, 4000, 0, true, true, false, false, false, KN_F16},
    {"head 256, a quarter turns", 2, 16, 2, 256, 64, 1024, 800, 0, true, true, false, false, false, KN_F16},
    {"head 256, windows", 1, 32, 16, 256, 256, 1280, 5000, 1024, true, true, false, true, false, KN_F16},
    {"head 512, values of the keys", 1, 32, 4, 512, 512, 1024, 600, 0, true, true, true, true, false, KN_F16},
    {"head 512, values of the keys, long", 3, 32, 4, 512, 512, 4096, 4001, 0, true, true, true, true, false, KN_BF16},
    {"pairs side by side", 2, 8, 2, 64, 64, 512, 300, 0, true, false, false, false, true, KN_F16},
    {"nothing turns", 2, 8, 2, 64, 0, 512, 300, 0, true, true, false, false, false, KN_F16},
};

/* Two passes over two layers, one after the other; in the order of a model, or each operation waited for. Results
 * of both passes, what a product makes of each, then the rings. */
static char *attend_run(const struct attend_case *c, bool apart, const float *data, size_t *bytes)
{
    enum { LAYERS = 2, PASSES = 2, N_OUT = 48 };
    static const uint32_t types[] = {KN_Q4_K, KN_Q8_0, KN_Q4_1, KN_F16};
    const struct kn_ops *op = kn_op(gpu);
    const int64_t n_in = (int64_t)c->n_head * c->d;
    const uint32_t type = types[(c - attend_cases) % 4];
    const size_t weight_row = kn_row_bytes(type, n_in), y_all = (size_t)c->n * N_OUT * LAYERS * PASSES;
    char *packed = malloc(N_OUT * weight_row);
    for (size_t i = 0; i < N_OUT; i++)
        if (kn_encode_row(type, data + i % 3, packed + i * weight_row, n_in, NULL)) die("encode", c->name);
    struct kn_weight weight = {0};
    must(gpu, "weight_load", op->weight_load(gpu, &weight, type, n_in, N_OUT, packed, KN_USE_LINEAR));
    float *y = put(gpu, NULL, y_all * 4);
    const size_t q = (size_t)c->n * (size_t)c->n_head * (size_t)c->d, row = (size_t)c->n_kv * (size_t)c->d,
                 k = (size_t)c->n * row, ring = (size_t)c->cap * row;
    float *x = put(gpu, data, (q + 2 * k) * 4 * LAYERS * PASSES), *norm = put(gpu, data, (size_t)c->d * 8),
          *out = put(gpu, NULL, q * 4 * LAYERS * PASSES), *table = put(gpu, NULL, (size_t)c->n * 512 * 4);
    uint16_t *old = malloc(ring * 2);
    double freq[256];
    int32_t at[PASSES * 64];
    struct kn_kv kv[LAYERS];
    for (int i = 0; i < 256; i++) freq[i] = pow(1e6, -i / 128.0);
    for (int i = 0; i < PASSES * c->n; i++) at[i] = c->from + i;
    double *f = put(gpu, freq, sizeof freq);
    int32_t *pos = put(gpu, at, (size_t)(PASSES * c->n) * 4);
    for (size_t i = 0; i < ring; i++) /* what was not written yet is NaN */
        old[i] = (int64_t)(i / row) >= c->from ? 0x7fff
                 : c->type == KN_F16           ? kn_f32_to_f16((float)(i * 37 % 1001) / 500.0f - 1)
                                               : kn_f32_to_bf16((float)(i * 37 % 1001) / 500.0f - 1);
    for (int l = 0; l < LAYERS; l++)
        kv[l] = (struct kn_kv){put(gpu, old, ring * 2), put(gpu, old, ring * 2), c->type, c->cap, c->n_kv, c->d};
    must(gpu, "reserve", op->reserve(gpu, c->n, 0, 8, c->n_head, c->d));
    must(gpu, "reserve_kv", op->reserve_kv(gpu, c->n, c->n_head, &kv[0], c->window));
    for (int p = 0; p < PASSES; p++) {
        if (c->n_rot) must(gpu, "rope_table", op->rope_table(gpu, table, pos + p * c->n, c->n, f, c->n_rot));
        for (int l = 0; l < LAYERS; l++) {
            float *in = x + (size_t)(p * LAYERS + l) * (q + 2 * k);
            const struct kn_rope_store s = {.q = in,
                                            .k = in + q,
                                            .v = c->v_is_k ? in + q : in + q + k,
                                            .v_norm = c->v_norm,
                                            .q_norm = c->norms ? norm : NULL,
                                            .k_norm = c->norms ? norm + c->d : NULL,
                                            .table = table,
                                            .pos = pos + p * c->n,
                                            .n = c->n,
                                            .n_head = c->n_head,
                                            .n_rot = c->n_rot,
                                            .interleaved = c->interleaved,
                                            .eps = 1e-6f,
                                            .kv = &kv[l]};
            const struct kn_attention a = {.q = in,
                                           .out = out + (size_t)(p * LAYERS + l) * q,
                                           .kv = &kv[l],
                                           .pos = pos + p * c->n,
                                           .n = c->n,
                                           .n_head = c->n_head,
                                           .scale = (float)(1.0 / sqrt(c->d)),
                                           .causal = c->causal,
                                           .window = c->window,
                                           .then = apart ? NULL : &weight};
            if (apart) {
                must(gpu, "rope_store", op->rope_store(gpu, &s));
                must(gpu, "sync", op->sync(gpu));
                must(gpu, "attention", op->attention(gpu, &a));
                must(gpu, "sync", op->sync(gpu));
            } else {
                must(gpu, "attend", op->attend(gpu, &s, &a));
            }
            must(gpu, "linear",
                 op->linear(gpu, y + (size_t)(p * LAYERS + l) * (size_t)c->n * N_OUT, &weight, a.out, c->n, false));
        }
    }
    *bytes = (q * LAYERS * PASSES + y_all) * 4 + 2 * LAYERS * ring * 2;
    char *all = malloc(*bytes), *to = all;
    must(gpu, "download", op->download(gpu, to, out, q * 4 * LAYERS * PASSES));
    to += q * 4 * LAYERS * PASSES;
    must(gpu, "download", op->download(gpu, to, y, y_all * 4));
    to += y_all * 4;
    for (int l = 0; l < LAYERS; l++, to += 2 * ring * 2) {
        must(gpu, "download", op->download(gpu, to, kv[l].k, ring * 2));
        must(gpu, "download", op->download(gpu, to + ring * 2, kv[l].v, ring * 2));
        drop(gpu, kv[l].k), drop(gpu, kv[l].v);
    }
    drop(gpu, x), drop(gpu, norm), drop(gpu, out), drop(gpu, table), drop(gpu, f), drop(gpu, pos), drop(gpu, y);
    op->weight_free(gpu, &weight);
    free(old), free(packed);
    return all;
}

static void check_attend(void)
{
    static const struct cuda_attention_tuning others[] = {
        {}, {.near = 1}, {.near = 1, .unit = 1, .slots = 2}, {.near = 1, .unit = 2, .spread = 40}, {.near = 2, .cluster = 8},
        {.near = 2, .cluster = 16}};
    for (size_t i = 0; i < sizeof attend_cases / sizeof *attend_cases; i++) {
        const struct attend_case *c = &attend_cases[i];
        if (small && c->cap > 4096) continue;
        rnd_state = 90 + i;
        size_t bytes, size = 4 * (size_t)c->n * (size_t)(c->n_head + 2 * c->n_kv) * (size_t)c->d;
        float *data = normals(size, 1.5f);
        int other = -1;
        bool finite = true;
        cuda_attention_tuning = (struct cuda_attention_tuning){.apart = 1};
        char *want = attend_run(c, true, data, &bytes);
        for (size_t j = 0; j < 4 * (size_t)c->n * (size_t)c->n_head * (size_t)c->d; j++)
            finite &= isfinite(((float *)want)[j]);
        for (int j = 0; j < (int)(sizeof others / sizeof *others) && other < 0; j++) {
            cuda_attention_tuning = others[j];
            kn_bound(gpu, j % 2 ? c->from + 2 * c->n : 0);
            char *got = attend_run(c, false, data, &bytes);
            if (memcmp(want, got, bytes)) other = j;
            free(got);
        }
        memset(&cuda_attention_tuning, 0, sizeof cuda_attention_tuning);
        kn_bound(gpu, 0);
        char why[64] = "";
        if (other >= 0) snprintf(why, sizeof why, ", other bits when launched as in %d", other);
        verdict(other < 0 && finite, "attend, %s%s%s", c->name, finite ? "" : ", not finite", why);
        free(want), free(data);
    }
}

/* ---- pick ---- */

static const struct kn_sampler samplers[] = {
    {.temp = 0, .top_p = 1, .repeat_penalty = 1},
    {.temp = 0, .top_p = 1, .repeat_penalty = 1.3f, .repeat_last = 64},
    {.temp = 0.8f, .top_p = 1, .repeat_penalty = 1, .seed = 1},
    {.temp = 1.5f, .top_p = 1, .repeat_penalty = 1.1f, .repeat_last = 7, .seed = 0x123456789abcdefull},
    {.temp = 1, .top_p = 1, .top_k = 1, .repeat_penalty = 1, .seed = 3},
    {.temp = 0.7f, .top_p = 0.95f, .top_k = 20, .repeat_penalty = 1, .seed = 4},
    {.temp = 1, .top_p = 1, .top_k = 500, .repeat_penalty = 1, .seed = 5},
    {.temp = 1, .top_p = 0.9f, .repeat_penalty = 1, .seed = 6},
    {.temp = 2, .top_p = 0.999f, .repeat_penalty = 1, .seed = 7},
    {.temp = 1, .top_p = 1, .min_p = 0.05f, .repeat_penalty = 1, .seed = 8},
    {.temp = 1,
     .top_k = 40,
     .top_p = 0.9f,
     .min_p = 0.02f,
     .repeat_penalty = 1.1f,
     .repeat_last = 64,
     .seed = 9},
    {.temp = 1e-4f, .top_p = 0.9f, .repeat_penalty = 1, .seed = 10},
    {.temp = 100, .top_p = 0.5f, .top_k = 60, .repeat_penalty = 1, .seed = 11},
};
enum shape { SHAPE_NORMAL, SHAPE_FLAT, SHAPE_PEAKED, SHAPE_MASKED, SHAPE_TIES, SHAPES };
static const char *const shape_name[] = {"normal", "flat", "peaked", "masked", "ties"};

static void check_pick(void)
{
    static const int vocab[] = {1, 2, 63, 1000, 4103, 151936, 262144};
    for (size_t v = 0; v < sizeof vocab / sizeof *vocab; v++) {
        const int n_vocab = vocab[v], n = n_vocab > 100000 ? 5 : 19, first = 90;
        long wrong = 0, tried = 0, bits = 0;
        char where[200] = "";
        if (small && n_vocab > 5000) continue;
        for (int shape = 0; shape < SHAPES; shape++) {
            rnd_state = v * 10 + (unsigned)shape;
            const size_t bytes = (size_t)n * (size_t)n_vocab * 4;
            float *l = normals(bytes / 4, 3.0f);
            for (size_t i = 0; i < bytes / 4; i++) {
                if (shape == SHAPE_FLAT) l[i] = 1.0f + 1e-4f * l[i];
                if (shape == SHAPE_PEAKED) l[i] = i % 97 == 3 ? l[i] + 15 : l[i];
                if (shape == SHAPE_MASKED && i % 3) l[i] = -INFINITY;
                if (shape == SHAPE_TIES) l[i] = rintf(l[i]);
            }
            for (int i = 0; i < n; i++)
                l[(size_t)i * (size_t)n_vocab] = 0.5f; /* something finite in every row */
            if (n_vocab > 60)
                l[(size_t)2 * (size_t)n_vocab + 50] = NAN, l[(size_t)3 * (size_t)n_vocab + 50] = INFINITY;
            int32_t pos[19], hist[200], *out[3];
            for (int i = 0; i < n; i++) pos[i] = first + i;
            for (int i = 0; i < 200; i++) hist[i] = (int32_t)(rnd() % (uint64_t)n_vocab);
            for (size_t k = 0; k < sizeof samplers / sizeof *samplers; k++) {
                for (int b = 0; b < 3; b++) { /* the CPU, the device, the device row by row */
                    struct kn_backend *be = b ? gpu : cpu;
                    float *dl = put(be, l, bytes);
                    int32_t *dp = put(be, pos, (size_t)n * 4), *dh = put(be, hist, sizeof hist),
                            *dout = put(be, NULL, (size_t)n * 4);
                    must(be, "reserve", kn_op(be)->reserve(be, n, 0, n_vocab, 2, 64));
                    for (int i = 0; i < (b == 2 ? n : 1); i++) {
                        struct kn_pick p = {dl + (size_t)i * (size_t)n_vocab,
                                            dp + i,
                                            dh,
                                            b == 2 ? 1 : n,
                                            n_vocab,
                                            samplers[k],
                                            dout + i};
                        must(be, "pick", kn_op(be)->pick(be, &p));
                    }
                    out[b] = get(be, dout, (size_t)n * 4);
                    drop(be, dl), drop(be, dp), drop(be, dh), drop(be, dout);
                }
                for (int i = 0; i < n; i++) {
                    tried++;
                    bits += out[1][i] != out[2][i];
                    if (out[0][i] == out[1][i]) continue;
                    if (!wrong++)
                        snprintf(where, sizeof where, "; first: %s, sampler %zu, row %d: %d, expected %d",
                                 shape_name[shape], k, i, out[1][i], out[0][i]);
                }
                free(out[0]), free(out[1]), free(out[2]);
            }
            free(l);
        }
        verdict(wrong == 0 && bits == 0,
                "pick, vocabulary %d: %ld of %ld differ from the CPU's, %ld from the row alone%s", n_vocab,
                wrong, tried, bits, where);
    }
}

/* ---- accept, place ---- */

/* What one accept leaves: the lists, and the result in shared memory. */
struct accepted {
    int32_t ids[64], pos[64], history[256], anchor, first, kept;
    uint32_t number;
    struct kn_result result[3];
};

static void run_accept(struct kn_backend *be, const struct accepted *in, const int32_t *picks, int32_t n,
                       int32_t n_ids, struct accepted *out)
{
    const struct kn_ops *op = kn_op(be);
    int32_t *d_picks = put(be, picks, 64 * 4);
    struct accepted *d = put(be, in, sizeof *in);
    uint64_t *stamp = put(be, NULL, KN_STAMPS * 8);
    struct kn_result *shared = op->alloc_shared(be, sizeof in->result);
    if (!shared) die("alloc_shared", kn_message(be));
    const struct kn_accept a = {.ids = d->ids,
                                .picks = d_picks,
                                .n = n,
                                .n_ids = n_ids,
                                .pos = d->pos,
                                .history = d->history,
                                .anchor = &d->anchor,
                                .first = &d->first,
                                .window = 20,
                                .kept = &d->kept,
                                .number = &d->number,
                                .stamp = stamp,
                                .results = shared,
                                .n_results = 3};
    for (int i = 0; i < KN_STAMPS; i++) must(be, "stamp", op->stamp(be, stamp + i));
    must(be, "place", op->place(be, d->history, d->pos, d->ids, n_ids));
    must(be, "accept", op->accept(be, &a));
    must(be, "await", op->await(be, &shared[in->number % 3].number, in->number + 1));
    must(be, "download", op->download(be, out, d, sizeof *out));
    memcpy(out->result, shared, sizeof out->result);
    struct kn_result *r = &out->result[in->number % 3];
    if (!r->stamp[0] || r->stamp[1] < r->stamp[0] || r->stamp[2] < r->stamp[1] || r->accepted < r->stamp[2])
        verdict(false, "accept: times out of order");
    memset(r->stamp, 0, sizeof r->stamp);
    r->accepted = 0;
    op->free_shared(be, shared);
    drop(be, d), drop(be, d_picks), drop(be, stamp);
}

static void check_accept(void)
{
    static const struct {
        int n, n_ids, equal;  /* leading proposals that are their picks */
        int bad_id, bad_pick; /* index of one that is none; -1 */
    } c[] = {{1, 1, 0, -1, -1},    {1, 16, 0, -1, -1},   {16, 16, 0, -1, -1},  {16, 16, 7, -1, -1},
             {16, 16, 15, -1, -1}, {8, 16, 15, -1, -1},  {64, 64, 31, -1, -1}, {64, 64, 32, -1, -1},
             {64, 64, 40, -1, -1}, {64, 64, 63, -1, -1}, {33, 64, 63, -1, -1}, {16, 16, 9, 5, -1},
             {16, 16, 9, 15, -1},  {8, 16, 9, 12, -1},   {16, 16, 9, -1, 9},   {16, 16, 15, 6, 5}};
    for (size_t k = 0; k < sizeof c / sizeof *c; k++) {
        static struct accepted in, out[2];
        int32_t picks[64];
        memset(&in, 0, sizeof in);
        in.number = (uint32_t)k;
        for (int i = 0; i < 64; i++) {
            in.pos[i] = (int32_t)k + 11 + i;
            picks[i] = 1000 + i;
            in.ids[i] = i && i <= c[k].equal ? picks[i - 1] : 7;
        }
        if (c[k].bad_id >= 0) in.ids[c[k].bad_id] = KN_PICK_NAN;
        if (c[k].bad_pick >= 0) picks[c[k].bad_pick] = KN_PICK_NAN;
        for (int b = 0; b < 2; b++) run_accept(b ? gpu : cpu, &in, picks, c[k].n, c[k].n_ids, &out[b]);
        verdict(!memcmp(&out[0], &out[1], sizeof out[0]), "accept %d of %d rows, %d equal: %d kept", c[k].n,
                c[k].n_ids, c[k].equal, out[1].kept);
    }
}

/* ---- refusals ---- */

static void check_refusals(void)
{
    char msg[256];
    struct kn_backend *be;
    struct kn_open o = {.device = "cuda:77"};
    int rc = kn_backend_open(&be, &o, msg, sizeof msg);
    verdict(rc == KN_EDEVICE && !be && strstr(msg, "77"), "device 77: %s", msg);
    o.device = "cuda:x";
    rc = kn_backend_open(&be, &o, msg, sizeof msg);
    verdict(rc == KN_EINVAL && !be, "device x: %s", msg);
    void *p = kn_op(gpu)->alloc(gpu, (size_t)1 << 50);
    verdict(!p && strstr(kn_message(gpu), "out of device memory"), "a petabyte: %s", kn_message(gpu));
    struct kn_kv kv = {NULL, NULL, KN_F16, 500, 2, 64};
    struct kn_attention a = {.kv = &kv, .n = 1, .n_head = 4};
    verdict(kn_op(gpu)->attention(gpu, &a) == KN_EINVAL, "a ring of 500: %s", kn_message(gpu));
    kv.cap = 512, kv.head_dim = 24;
    verdict(kn_op(gpu)->attention(gpu, &a) == KN_ETYPE, "a head of 24: %s", kn_message(gpu));
    kv.head_dim = 64, a.n_head = 5;
    verdict(kn_op(gpu)->attention(gpu, &a) == KN_EINVAL, "5 heads over 2: %s", kn_message(gpu));
    float *x = put(gpu, NULL, 64);
    rc = kn_op(gpu)->sync(gpu);
    verdict(rc == 0, "the device works after all that");
    drop(gpu, x);
}

/* ---- the pair ---- */

static int32_t *text;
static size_t n_text;
#define WANTED 700

static int add_ids(void *ctx, const int32_t *ids, size_t n, struct err *e)
{
    (void)ctx;
    (void)e;
    text = realloc(text, (n_text + n) * sizeof *text);
    memcpy(text + n_text, ids, n * sizeof *ids);
    n_text += n;
    return 0;
}

static void read_prompt(const char *model, const char *path)
{
    struct err e = {0};
    struct gguf *g;
    struct tokenizer *t;
    struct tok_encoder *x;
    struct io_map m;
    if (gguf_open(&g, model, &e) || tok_open(&t, g, &e) || io_map_open(&m, path, &e) ||
        tok_encoder_new(&x, t, false, true, &e))
        die("prompt", e.msg);
    while (n_text < WANTED)
        if (tok_encode(x, m.data, m.size, true, add_ids, NULL, &e)) die("encode", e.msg);
    tok_encoder_free(x);
    tok_close(t);
    gguf_close(g);
    io_map_close(&m);
}

/* How far two rows of logits are apart, and whether their largest is the same up to the tolerance. */
struct distance {
    double square, norm, worst;
    long rows, flips, wrong;
};

static void compare_row(struct distance *x, const float *want, const float *got, int n, double near)
{
    int a = 0, b = 0;
    for (int i = 0; i < n; i++) {
        double e = fabs((double)want[i] - got[i]);
        x->square += e * e;
        x->norm += (double)want[i] * want[i];
        if (!(e <= x->worst)) x->worst = e;
        if (want[i] > want[a]) a = i;
        if (got[i] > got[b]) b = i;
    }
    x->rows++;
    if (a == b) return;
    x->flips++;
    if ((double)want[a] - want[b] > near) x->wrong++; /* not a near tie */
}

struct rows {
    float *at;
    int n_vocab;
};
static int keep_rows(void *ctx, const float *rows, int32_t n, int32_t pos, struct err *e)
{
    struct rows *r = ctx;
    (void)e;
    memcpy(r->at + (size_t)pos * (size_t)r->n_vocab, rows, (size_t)n * (size_t)r->n_vocab * 4);
    return 0;
}

/* Tolerance in logits: the CPU meets quantised weights with 8-bit blocks of activations, an error of the
 * order of the weights' own (2^-8 a value, averaged over a row); the device does so up to 64 rows, and with
 * 11 bits above. With float weights both are near exact up to 64 rows. Above, the device rounds both factors
 * of a product to 11 bits: 2^-11 at most, 2e-4 in the mean of squares a value, 2.9e-4 a product relative to
 * its terms' 2-norm, and so the logits by the head alone; the layers before add theirs. Three times that is
 * the limit of a prompt's logits.
 *
 * Q2_K's weights make more of the same rounding: on the 20 rows of the steps the CPU is 0.0286 of the norm away from
 * the same weights as float32 (Q3_K 0.0244, IQ4_XS 0.0229), so two roundings that know nothing of each other are
 * the root of two times that apart. */
#define PROMPT_FLOAT 9e-4
static const struct {
    const char *target, *drafter;
    double rel, prompt, near;
} pairs[] = {
    {"f32", "bf16", 3e-4, PROMPT_FLOAT, 0.02},  {"f16", "bf16", 3e-4, PROMPT_FLOAT, 0.02},
    {"bf16", "bf16", 3e-4, PROMPT_FLOAT, 0.02}, {"q8_0", "q8_0", 2e-2, 2e-2, 0.3},
    {"q4_k_m", "q4_k_m", 3e-2, 3e-2, 0.4},      {"q5_0", "q8_0", 3e-2, 3e-2, 0.4},
    {"iq4_nl", "q4_k_m", 3e-2, 3e-2, 0.4},      {"iq4_xs", "q4_k_m", 3e-2, 3e-2, 0.4},
    {"q3_k", "q4_k_m", 3e-2, 3e-2, 0.4},        {"q2_k", "q4_k_m", 4.05e-2, 3e-2, 0.4},
};

static void check_pair(const char *dir)
{
    static const int lens[] = {1, 40, 256, 300};
    for (size_t k = 0; k < sizeof pairs / sizeof *pairs; k++) {
        struct err e = {0};
        char path[2][512];
        struct model *t[2] = {0}, *d[2] = {0};
        struct distance whole = {0}, step = {0}, block = {0};
        snprintf(path[0], sizeof path[0], "%s/target-%s.gguf", dir, pairs[k].target);
        snprintf(path[1], sizeof path[1], "%s/drafter-%s.gguf", dir, pairs[k].drafter);
        for (int b = 0; b < 2; b++)
            if (model_load(&t[b], path[0], b ? gpu : cpu, NULL, NULL, NULL, &e) ||
                model_load(&d[b], path[1], b ? gpu : cpu, NULL, NULL, NULL, &e))
                die(path[0], e.msg);
        const int v = t[0]->d->n_vocab, n = 600;
        float *rows[2], *one[2] = {malloc((size_t)v * 4), malloc((size_t)v * 4)};
        for (int b = 0; b < 2; b++) { /* all logits of a prompt in chunks of 512 and less */
            struct session *s;
            struct session_options o = {.ctx = n + 64, .kv_type = KN_F16};
            rows[b] = malloc((size_t)n * (size_t)v * 4);
            struct rows r = {rows[b], v};
            if (session_new(&s, t[b], d[b], &o, &e) || session_prefill(s, text, n, keep_rows, &r, &e))
                die("prefill", e.msg);
            session_free(s);
        }
        for (int i = 0; i < n; i++)
            compare_row(&whole, rows[0] + (size_t)i * (size_t)v, rows[1] + (size_t)i * (size_t)v, v,
                        pairs[k].near);
        for (size_t i = 0; i < sizeof lens / sizeof *lens;
             i++) { /* a step of 5 rows and a draft after prompts of many lengths */
            struct session *s[2];
            int32_t proposals[SESSION_MAX_ROWS];
            bool usable;
            for (int b = 0; b < 2; b++) {
                struct session_options o = {.ctx = n, .chunk = 64, .kv_type = KN_F16};
                if (session_new(&s[b], t[b], d[b], &o, &e) ||
                    session_prefill(s[b], text, lens[i], NULL, NULL, &e) ||
                    session_forward(s[b], text + lens[i], 5, &e))
                    die("forward", e.msg);
            }
            for (int r = 0; r < 5; r++) {
                if (session_logits(s[0], r, one[0], &e) || session_logits(s[1], r, one[1], &e))
                    die("logits", e.msg);
                compare_row(&step, one[0], one[1], v, pairs[k].near);
            }
            for (int b = 0; b < 2; b++)
                if (session_commit(s[b], 3, &e) ||
                    session_draft(s[b], text[lens[i] + 3], proposals, &usable, true, &e))
                    die("draft", e.msg);
            for (int r = 1; r < s[0]->o.block; r++) {
                if (session_logits(s[0], r, one[0], &e) || session_logits(s[1], r, one[1], &e))
                    die("logits", e.msg);
                compare_row(&block, one[0], one[1], v, 2 * pairs[k].near);
            }
            session_free(s[0]);
            session_free(s[1]);
        }
        const struct {
            const char *what;
            struct distance *x;
            double rel;
        } each[] = {{"prompt", &whole, pairs[k].prompt},
                    {"steps", &step, pairs[k].rel},
                    {"drafts", &block, 2 * pairs[k].rel}};
        for (int i = 0; i < 3; i++) {
            double rel = sqrt(each[i].x->square / each[i].x->norm);
            verdict(rel <= each[i].rel && each[i].x->wrong == 0,
                    "pair %s + %s, %s: %ld rows, relative error %.2g of %.2g, largest %.2g, %ld other "
                    "argmax, %ld of them no near tie",
                    pairs[k].target, pairs[k].drafter, each[i].what, each[i].x->rows, rel, each[i].rel,
                    each[i].x->worst, each[i].x->flips, each[i].x->wrong);
        }
        for (int b = 0; b < 2; b++) free(rows[b]), free(one[b]), model_free(t[b]), model_free(d[b]);
    }
}

/* ---- bench ---- */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#define TIMED(seconds, times, call)                                                                          \
    do {                                                                                                     \
        for (int i_ = 0; i_ < 3; i_++) must(gpu, "bench", call);                                             \
        kn_op(gpu)->sync(gpu);                                                                               \
        double from_ = now();                                                                                \
        for (int i_ = 0; i_ < times; i_++) must(gpu, "bench", call);                                         \
        kn_op(gpu)->sync(gpu);                                                                               \
        seconds = (now() - from_) / times;                                                                   \
    } while (0)

static void bench(void)
{
    static const struct {
        const char *name;
        struct kn_sampler s;
    } set[] = {
        {"greedy", {.temp = 0, .top_p = 1, .repeat_penalty = 1}},
        {"temperature", {.temp = 0.8f, .top_p = 1, .repeat_penalty = 1, .seed = 1}},
        {"top-k 20, top-p 0.95", {.temp = 0.7f, .top_k = 20, .top_p = 0.95f, .repeat_penalty = 1, .seed = 1}},
        {"top-p 0.95, penalty",
         {.temp = 1, .top_p = 0.95f, .repeat_penalty = 1.1f, .repeat_last = 64, .seed = 1}}};
    const int v = 151936;
    rnd_state = 2;
    float *l = normals((size_t)16 * v, 3.0f), *dl = put(gpu, l, (size_t)16 * v * 4);
    int32_t host[512], *pos, *hist, *out = put(gpu, NULL, 64);
    for (int i = 0; i < 512; i++) host[i] = i + 100;
    pos = put(gpu, host, sizeof host), hist = put(gpu, host, sizeof host);
    must(gpu, "reserve", kn_op(gpu)->reserve(gpu, 16, 0, v, 2, 64));
    for (int k = 0; k < 4; k++)
        for (int n = 1; n <= 16; n += 15) {
            struct kn_pick p = {dl, pos, hist, n, v, set[k].s, out};
            double s;
            TIMED(s, 50, kn_op(gpu)->pick(gpu, &p));
            printf("bench pick %s, %d of %d, %d rows: %.1f us\n", set[k].name, v, v, n, s * 1e6);
        }
    drop(gpu, dl), drop(gpu, pos), drop(gpu, hist), drop(gpu, out), free(l);
}

int main(int argc, char **argv)
{
    char msg[256];
    bool generic = false, benching = false, ops = false, pair = false;
    for (; argc > 1 && argv[1][0] == '-'; argc--, argv++) {
        generic |= !strcmp(argv[1], "--generic");
        benching |= !strcmp(argv[1], "--bench");
        small |= !strcmp(argv[1], "--small");
        ops |= !strcmp(argv[1], "--ops");
        pair |= !strcmp(argv[1], "--pair");
    }
    ops |= small;
    struct kn_open c = {.device = "cpu"}, g = {.device = "cuda", .generic = generic};
    if (!benching && argc != (ops ? 1 : 3)) {
        fprintf(stderr, "usage: test_gpu [--generic] [--pair] PAIR_DIR PROMPT.txt | test_gpu [--generic] "
                        "--ops | --bench | "
                        "--small\n");
        return 2;
    }
    if (kn_backend_open(&gpu, &g, msg, sizeof msg) || kn_backend_open(&cpu, &c, msg, sizeof msg)) {
        fprintf(stderr, "test_gpu: %s\n", msg);
        return 5;
    }
    if (benching) {
        bench();
    } else {
        char path[512];
        if (!pair) {
            check_embed();
            check_rms_norm();
            check_rope_table();
            check_small();
            check_rope_store();
            check_attention();
            check_attention_extremes();
            check_attend();
            check_pick();
            check_accept();
            check_refusals();
        }
        if (!ops) {
            snprintf(path, sizeof path, "%s/target-%s.gguf", argv[1], pairs[0].target);
            read_prompt(path, argv[2]);
            check_pair(argv[1]);
        }
        printf("test_gpu: %ld passed, %ld failed%s\n", passed, failed, generic ? " (generic kernels)" : "");
    }
    kn_backend_close(gpu);
    kn_backend_close(cpu);
    return failed != 0;
}
