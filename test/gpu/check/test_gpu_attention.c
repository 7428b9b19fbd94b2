/* test_gpu_attention.c - rope_store and attention, apart and in one, against the CPU's (test_gpu.c). */
#include "test_gpu.h"
#include "../forms.h"

static float from16(uint32_t type, uint16_t h)
{
    return type == KN_F16 ? kn_f16_to_f32(h) : kn_bf16_to_f32(h);
}

/* ---- rope_store ---- */

void check_rope_store(void)
{
    static const struct {
        int n, n_head, n_kv, d, n_rot, cap, first;
        struct kn_kv_types type;
        bool interleaved, norm, q;
    } cases[] = {
        {1, 16, 8, 128, 128, 512, 700, KV(F16, F16), false, true, true},
        {16, 32, 8, 128, 128, 256, 250, KV(BF16, BF16), false, true, true},
        {5, 4, 2, 64, 32, 256, 254, KV(F32, F32), true, false, true},
        {33, 6, 2, 80, 80, 512, 511, KV(F16, F16), false, true, true},
        {7, 2, 1, 256, 64, 256, 0, KV(BF16, BF16), true, true, true},
        {64, 2, 1, 512, 512, 256, 1000, KV(F16, F16), false, true, true},
        {100, 8, 4, 128, 128, 256, 200, KV(F16, F16), false, true, false},
        {3, 4, 4, 16, 0, 256, 5, KV(F16, F16), false, false, true},
        {16, 32, 8, 128, 128, 256, 250, KV(F32, BF16), false, true, true},
        {5, 4, 2, 64, 32, 256, 254, KV(BF16, F32), true, false, true},
        {33, 6, 2, 80, 80, 512, 511, KV(F16, BF16), false, true, true},
        {100, 8, 4, 128, 128, 256, 200, KV(BF16, F16), false, true, false},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        const int n = cases[k].n, d = cases[k].d, slots = cases[k].cap * cases[k].n_kv * d;
        const size_t qb = (size_t)n * cases[k].n_head * d * 4, kb = (size_t)n * cases[k].n_kv * d * 4;
        const struct kn_kv_types type = cases[k].type;
        const size_t size_k = type.k == KN_F32 ? 4 : 2, size_v = type.v == KN_F32 ? 4 : 2,
                     cache_k = (size_t)slots * size_k, cache_v = (size_t)slots * size_v;
        rnd_state = k;
        float *q = gaussians(qb / 4, 2.0f), *key = gaussians(kb / 4, 2.0f), *v = gaussians(kb / 4, 1.0f);
        float *qn = gaussians((size_t)d, 1.0f), *kn = gaussians((size_t)d, 1.0f),
              *table = gaussians((size_t)(n * cases[k].n_rot), 0.7f);
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
            struct kn_kv kv = {put(be, NULL, cache_k), put(be, NULL, cache_v), type,
                               cases[k].cap,           cases[k].n_kv,          d};
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
            gq[b] = get(be, dq, qb), gk[b] = get(be, dk, kb), ck[b] = get(be, kv.k, cache_k),
            cv[b] = get(be, kv.v, cache_v);
            drop(be, dq), drop(be, dk), drop(be, dv), drop(be, dqn), drop(be, dkn), drop(be, dt),
                drop(be, dp);
            drop(be, kv.k), drop(be, kv.v);
        }
        double worst = 0, cached = 0,
               tol = 0x1p-24 * (d / 16.0 + 40) * 16; /* a norm's sum, products of values up to 16 */
        for (size_t i = 0; i < qb / 4; i++) worst = fmax(worst, fabs((double)gq[0][i] - gq[1][i]));
        for (size_t i = 0; i < kb / 4; i++) worst = fmax(worst, fabs((double)gk[0][i] - gk[1][i]));
        for (int i = 0; i < slots; i++) { /* one step of the cache's type */
            double a = size_k == 4 ? ((float *)ck[0])[i] : from16(type.k, ((uint16_t *)ck[0])[i]);
            double b = size_k == 4 ? ((float *)ck[1])[i] : from16(type.k, ((uint16_t *)ck[1])[i]);
            double step = fabs(a) * (size_k == 4 ? 0 : type.k == KN_F16 ? 0x1p-10 : 0x1p-7) + 1e-7 + tol;
            cached = fmax(cached, fabs(a - b) / step);
        }
        bool same_v = !memcmp(cv[0], cv[1], cache_v);
        bool rows = !memcmp(gq[1], gq[2], qb) && !memcmp(gk[1], gk[2], kb) &&
                    !memcmp(ck[1], ck[2], cache_k) && !memcmp(cv[1], cv[2], cache_v);
        verdict(worst <= tol && cached <= 1.0 && same_v && rows,
                "rope_store %d rows, %d/%d heads of %d, %s and %s: error %.2g of %.2g%s%s", n,
                cases[k].n_head, cases[k].n_kv, d, kn_type_info(type.k)->name, kn_type_info(type.v)->name,
                worst, tol, same_v ? "" : ", other values", rows ? "" : ", other bits row by row");
        for (int b = 0; b < 3; b++) free(gq[b]), free(gk[b]), free(ck[b]), free(cv[b]);
        free(q), free(key), free(v), free(qn), free(kn), free(table), free(pos);
    }
}

/* ---- attention ---- */

static const struct att_case att_cases[] = {
    {"one row, one key", 1, 2, 1, 64, 256, 0, 0, -1, true, KV(F16, F16)},
    {"short", 5, 4, 2, 64, 256, 17, 0, -1, true, KV(F16, F16)},
    {"split boundary", 16, 6, 2, 128, 512, 260, 0, -1, true, KV(F16, F16)},
    {"split boundary, one row after", 3, 32, 8, 128, 512, 257, 0, -1, true, KV(F16, F16)},
    {"ring, cap - 1", 3, 4, 2, 64, 512, 511, 200, -1, true, KV(BF16, BF16)},
    {"ring, cap", 3, 4, 2, 64, 512, 512, 200, -1, true, KV(BF16, BF16)},
    {"ring, cap + 1", 3, 4, 2, 64, 512, 513, 200, -1, true, KV(F32, F32)},
    {"ring, 3 caps", 7, 4, 2, 64, 512, 1539, 500, -1, true, KV(F16, F16)},
    {"ring filled to the last slot", 12, 4, 2, 64, 512, 1600, 501, -1, true, KV(F16, F16)},
    {"odd head", 4, 4, 4, 80, 4096, 2500, 0, -1, true, KV(F16, F16)},
    {"many splits, tiny head", 2, 2, 1, 16, 18432, 18000, 0, -1, true, KV(F16, F16)},
    {"many splits", 2, 8, 2, 128, 18432, 18000, 0, -1, true, KV(F16, F16)},
    {"many splits, bf16", 16, 8, 1, 128, 9216, 9000, 0, -1, true, KV(BF16, BF16)},
    {"many splits, up to the last leaf's first key", 16, 32, 8, 128, 4096, 3648, 0, -1, true, KV(F16, F16)},
    {"many splits, up to a node's last key", 15, 32, 8, 128, 4096, 3583, 0, -1, true, KV(BF16, BF16)},
    {"many splits, five heads a kv head", 33, 10, 2, 128, 6144, 6000, 0, -1, true, KV(F16, F16)},
    {"many splits, a window and a wrap", 23, 12, 3, 128, 4096, 9010, 3000, -1, true, KV(F16, F16)},
    {"many splits, a window that ends with a leaf", 2, 16, 8, 128, 4096, 8192, 3073, -1, true, KV(F16, F16)},
    {"many splits, 64 rows of 8 heads, first bound", 64, 16, 2, 128, 4096, 3999, 0, 1000, true,
     KV(BF16, BF16)},
    {"many splits, first bound after the first rows", 9, 8, 2, 128, 4096, 3000, 0, 2996, true, KV(F16, F16)},
    {"many splits, all see all, a window", 11, 8, 2, 128, 4096, 5031, 2800, -1, false, KV(F16, F16)},
    {"block, all see all", 8, 4, 2, 128, 1024, 700, 0, -1, false, KV(F16, F16)},
    {"block with window", 8, 4, 2, 128, 1024, 1031, 100, -1, false, KV(F16, F16)},
    {"block, window below the block", 16, 2, 2, 64, 256, 300, 5, -1, false, KV(F16, F16)},
    {"block, window below the block, f32", 16, 2, 2, 32, 256, 300, 5, -1, false, KV(F32, F32)},
    {"causal, first bound", 6, 4, 1, 64, 2048, 1500, 0, 1200, true, KV(F16, F16)},
    {"causal, first bound after the first rows", 6, 4, 1, 64, 2048, 1500, 0, 1498, true, KV(F16, F16)},
    {"block, first bound past a wrap", 8, 4, 2, 64, 1024, 3077, 0, 2500, false, KV(BF16, BF16)},
    {"64 rows", 64, 32, 8, 128, 1024, 800, 0, -1, true, KV(F16, F16)},
    {"64 rows, many splits", 64, 8, 8, 128, 8192, 8000, 0, -1, true, KV(F16, F16)},
    {"head 256, 65 rows from 0, bf16", 65, 6, 1, 256, 256, 64, 0, -1, true, KV(BF16, BF16)},
    {"prefill from 0", 70, 4, 2, 64, 256, 69, 0, -1, true, KV(F16, F16)},
    {"prefill, window and wrap", 100, 4, 2, 48, 512, 1333, 300, -1, true, KV(F16, F16)},
    {"prefill, window, wrap, head 128", 100, 4, 2, 128, 512, 1333, 300, -1, true, KV(F16, F16)},
    {"prefill, block", 80, 8, 1, 64, 512, 400, 0, -1, false, KV(F32, F32)},
    {"prefill, chunk of 512", 512, 16, 8, 128, 2048, 2000, 0, -1, true, KV(F16, F16)},
    {"head 256", 9, 2, 1, 256, 512, 300, 0, -1, true, KV(F16, F16)},
    {"head 512", 3, 2, 1, 512, 512, 300, 0, -1, true, KV(BF16, BF16)},
    {"head 256, prefill", 90, 4, 1, 256, 512, 400, 0, -1, true, KV(F16, F16)},
    {"head 256, many splits", 6, 16, 2, 256, 4096, 4000, 0, -1, true, KV(F16, F16)},
    {"head 256, many splits, six heads a kv head", 16, 24, 4, 256, 4608, 4500, 0, -1, true, KV(F16, F16)},
    {"head 256, many splits, a window and a wrap", 41, 6, 1, 256, 4096, 9010, 2600, -1, true, KV(BF16, BF16)},
    {"head 256, many splits, up to a node's last key", 2, 24, 4, 256, 4096, 3583, 0, -1, true, KV(F16, F16)},
    {"head 256, block with window", 16, 8, 4, 256, 1024, 900, 300, -1, false, KV(BF16, BF16)},
    {"head 512, 40 rows", 40, 4, 1, 512, 2048, 1500, 0, -1, true, KV(F16, F16)},
    {"head 512, prefill, window and wrap", 70, 2, 1, 512, 1024, 1300, 600, -1, true, KV(F16, F16)},
    {"head 128, 16 heads a kv head", 9, 16, 1, 128, 1024, 1000, 0, -1, true, KV(F16, F16)},
    {"three heads a kv head, rows over tiles", 23, 6, 2, 128, 1024, 700, 0, -1, true, KV(F16, F16)},
    {"prefill, bf16, three heads a kv head", 131, 6, 2, 128, 1024, 900, 0, 300, true, KV(BF16, BF16)},
    {"head 144", 3, 3, 3, 144, 512, 300, 0, -1, true, KV(F16, F16)},
    {"keys f32, values bf16, one row", 1, 32, 8, 128, 1024, 700, 0, -1, true, KV(F32, BF16)},
    {"keys bf16, values f32, 16 rows and a wrap", 16, 8, 2, 64, 512, 1539, 400, -1, true, KV(BF16, F32)},
    {"keys f16, values bf16, 5 rows", 5, 16, 4, 128, 1024, 900, 0, -1, true, KV(F16, BF16)},
    {"keys bf16, values f16, one row, many splits", 1, 8, 2, 128, 18432, 18000, 0, -1, true, KV(BF16, F16)},
    {"keys f16, values bf16, head 256", 9, 8, 2, 256, 512, 300, 0, -1, true, KV(F16, BF16)},
    {"keys bf16, values f16, head 512, values' first bound", 7, 8, 2, 512, 1024, 600, 0, 100, true,
     KV(BF16, F16)},
    {"keys f16, values f32, 64 rows", 64, 8, 4, 128, 1024, 800, 0, -1, true, KV(F16, F32)},
    {"keys bf16, values f16, prefill, window and wrap", 100, 4, 2, 128, 512, 1333, 300, -1, true,
     KV(BF16, F16)},
    {"keys f16, values bf16, a block that all see", 8, 4, 2, 128, 1024, 1031, 100, -1, false, KV(F16, BF16)},
};

struct att_data {
    float *q;
    int32_t *pos;
    void *k, *v;      /* the ring as it lies */
    double size, big; /* of the scores' terms, of the values */
};

static void ring_put(uint32_t type, void *cache, int64_t at, float x)
{
    if (type == KN_F32)
        ((float *)cache)[at] = x;
    else
        ((uint16_t *)cache)[at] = type == KN_F16 ? kn_f32_to_f16(x) : kn_f32_to_bf16(x);
}

static size_t ring_bytes(const struct att_case *c, uint32_t type)
{
    return (size_t)c->cap * (size_t)c->n_kv * (size_t)c->d * (type == KN_F32 ? 4 : 2);
}

static struct att_data att_make(const struct att_case *c, bool poison)
{
    struct att_data a;
    const int64_t row = (int64_t)c->n_kv * c->d, n = c->last + 1;
    const size_t values = (size_t)c->cap * (size_t)row;
    a.q = gaussians((size_t)c->n * (size_t)c->n_head * (size_t)c->d, 1.5f);
    a.pos = malloc((size_t)c->n * 4);
    a.k = calloc(1, ring_bytes(c, c->type.k));
    a.v = calloc(1, ring_bytes(c, c->type.v));
    for (int i = 0; i < c->n; i++) a.pos[i] = c->last - c->n + 1 + i;
    /* What nobody may see is NaN: slots never written, keys before `first`. */
    for (size_t i = 0; poison && i < values; i++)
        ring_put(c->type.k, a.k, (int64_t)i, NAN), ring_put(c->type.v, a.v, (int64_t)i, NAN);
    a.big = 0;
    for (int64_t p = n > c->cap ? n - c->cap : 0; p < n; p++) {
        if (p < c->first && poison) continue;
        for (int64_t i = 0; i < row; i++) {
            float x = gaussian(1.0f), y = gaussian(1.0f);
            ring_put(c->type.k, a.k, p % c->cap * row + i, x);
            ring_put(c->type.v, a.v, p % c->cap * row + i, y);
            a.big = fmax(a.big, fabs((double)y));
        }
    }
    a.size = 1.5 * sqrt(c->d); /* sum of |q k| scale: d terms of 1.5 * 2/pi over sqrt d, with room */
    return a;
}

float *attend_rows(struct kn_backend *be, const struct att_case *c, const struct kn_kv *of, const float *q,
                   const int32_t *pos, int step)
{
    const size_t bytes = (size_t)c->n * (size_t)c->n_head * (size_t)c->d * 4;
    struct kn_kv kv = *of;
    kv.k = put(be, of->k, kn_kv_bytes(of, of->type.k));
    kv.v = put(be, of->v, kn_kv_bytes(of, of->type.v));
    float *rows = put(be, q, bytes), *poison = malloc(bytes);
    memset(poison, 0xff, bytes);
    float *out = put(be, poison, bytes);
    int32_t *at = put(be, pos, (size_t)c->n * 4), *first = put(be, &c->first, 4);
    must(be, "reserve", kn_op(be)->reserve(be, c->n, 0, 8, c->n_head, c->d));
    must(be, "reserve_kv", kn_op(be)->reserve_kv(be, c->n, c->n_head, &kv, c->window));
    for (int i = 0; i < c->n; i += step) {
        const struct kn_attention t = att_call(c, &kv, rows, at, first, i, step, out);
        must(be, c->name, kn_op(be)->attention(be, &t));
    }
    float *host = get(be, out, bytes);
    drop(be, kv.k), drop(be, kv.v), drop(be, rows), drop(be, out), drop(be, at), drop(be, first);
    free(poison);
    return host;
}

static float *att_run(struct kn_backend *be, const struct att_case *c, const struct att_data *a, int step)
{
    const struct kn_kv kv = {a->k, a->v, c->type, c->cap, c->n_kv, c->d};
    return attend_rows(be, c, &kv, a->q, a->pos, step);
}

/* Did the case just run by a form that it is for? Odd heads, f32 and two types by the general one alone;
 * others never, more than 64 rows by those for prompts, and what needs early launches only where there are
 * such. */
static bool att_form_ran(const struct att_case *c, const struct forms *before)
{
    const bool odd = c->type.k != c->type.v || c->type.k == KN_F32 ||
                     (c->d != 64 && c->d != 128 && c->d != 256 && c->d != 512),
               early = cuda_is_early(gpu);
    const long all = forms_range(gpu, before, CUDA_ATTN_ANY, CUDA_ATTN_GROUP),
               any = forms_since(gpu, before, CUDA_ATTN_ANY), step = forms_since(gpu, before, CUDA_ATTN_STEP),
               prefill = forms_since(gpu, before, CUDA_ATTN_PREFILL),
               group = forms_since(gpu, before, CUDA_ATTN_GROUP),
               alone = forms_since(gpu, before, CUDA_ATTN_ALONE);
    if (all < 1) return false;
    if (odd) return any == all;
    if (c->n > 64 && c->n <= 128 && early && c->d == 256) return alone == all;
    if (c->n > 64) return (early && c->d == 128 && c->cap % 128 == 0 ? group : prefill) == all;
    return early ? any + prefill + group == 0 : step == all;
}

/* All forms of attention there are have run by now. */
void check_attention_forms(void)
{
    static const enum cuda_form forms[] = {
        CUDA_ATTN_ANY,    CUDA_ATTN_STEP,     CUDA_ATTN_PREFILL,  CUDA_ATTN_MERGE,   CUDA_ATTN_CODES,
        CUDA_ATTN_STREAM, CUDA_ATTN_CLUSTERS, CUDA_ATTN_PLACES,   CUDA_ATTN_COLUMNS, CUDA_ATTN_ALONE,
        CUDA_ATTN_GROUP,  CUDA_ATTN_FAR,      CUDA_ATTN_FAR_CODES};
    char text[480];
    const bool ok =
        forms_are(gpu, CUDA_ATTN_ANY, CUDA_ATTN_MERGE, forms,
                  cuda_is_early(gpu) ? (int)(sizeof forms / sizeof *forms) : 5, text, sizeof text);
    verdict(ok, "forms: %s", text);
}

void check_attention(void)
{
    static const int steps[] = {1, 5, 17, 64};
    for (size_t k = 0; k < sizeof att_cases / sizeof *att_cases; k++) {
        const struct att_case *c = att_cases + k;
        const size_t bytes = (size_t)c->n * (size_t)c->n_head * (size_t)c->d * 4;
        if (small && (c->n > 64 || c->last > 2000)) continue;
        rnd_state = k + 1;
        struct att_data a = att_make(c, true);
        const struct forms before = forms_now(gpu);
        float *want = att_run(cpu, c, &a, c->n), *got = att_run(gpu, c, &a, c->n), *few = NULL;
        const bool taken = att_form_ran(c, &before);
        bool same = true;
        double worst = 0;
        /* Queries and weights are split in two halves: 2^-22 of each is lost for f16, 2^-17 for bf16, and of
         * random signs over 64 terms and more the root of that: an eighth; f32 caches, and two types, lose
         * what float sums lose, less than the first. In a score relative to the sum of its terms. */
        const bool bf16 = c->type.k == KN_BF16 && c->type.v == KN_BF16, one = c->type.k == c->type.v;
        double unit = bf16 ? 0x1p-20 : 0x1p-21;
        /* More rows than 64 where the head size has a kernel for them: one half each, 2^-12 and 2^-9. */
        if (c->n > 64 && one && c->type.k != KN_F32 &&
            (c->d == 64 || c->d == 128 || c->d == 256 || c->d == 512))
            unit = bf16 ? 0x1p-12 : 0x1p-15;
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
            {.places = 1},
            {.places = 2},
            {.far = 1},
            {.far = 2},
            {.far = 2, .unit = 1},
            {.far = 2, .late = 1},
            {.near = 1, .alone = 1},
            {.near = 1, .alone = 2},
            {.unit = 1, .per = 3, .near = 1},
            {.unit = 1, .tiles = 1, .slots = 2, .near = 1},
            {.unit = 2, .tiles = 1, .spread = 60, .near = 1},
            {.unit = 2, .per = 2, .slots = 3, .warps = 4, .near = 1},
            {.warps = 8, .near = 1},
            {.near = 2, .cluster = 8},
            {.near = 2, .cluster = 16},
            {.unit = 1, .tiles = 2, .near = 1},
            {.unit = 2, .tiles = 2, .slots = 4, .near = 1},
            {.unit = 2, .tiles = 1, .near = 1},
            {.unit = 2, .tiles = 4, .near = 1},
            {.unit = 2, .tiles = 1, .per = 2, .near = 1}};
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
        verdict(worst <= tol && same && other < 0 && taken, "attention, %s: error %.2g of %.2g%s%s%s",
                c->name, worst, tol, same ? "" : ", other bits in other groups of rows", why,
                taken ? "" : ", not by the form that it is for");
        free(want), free(got), free(a.q), free(a.pos), free(a.k), free(a.v);
    }
}

/* A NaN in what a row sees shows in that row and in no other; extreme queries neither overflow nor vanish. */
void check_attention_extremes(void)
{
    static const uint32_t types[] = {KN_F16, KN_BF16, KN_F32};
    for (int k = 0; k < 3; k++) {
        const struct att_case c = {"", 4, 2, 1, 64, 512, 300, 0, -1, true, {types[k], types[k]}};
        rnd_state = 77;
        struct att_data a = att_make(&c, false);
        float *plain = att_run(gpu, &c, &a, 4);
        a.q[1 * 2 * 64] = NAN;                      /* row 1, head 0 */
        ring_put(types[k], a.v, 299 * 64 + 5, NAN); /* seen by rows 2 and 3 */
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
    struct kn_kv_types type; /* of the second layer the other way round */
};
static const struct attend_case attend_cases[] = {
    {"one row", 1, 32, 8, 128, 128, 1024, 513, 0, true, true, false, false, false, KV(F16, F16)},
    {"one row, bf16, no norms", 1, 32, 8, 128, 128, 1024, 700, 0, true, false, false, false, false,
     KV(BF16, BF16)},
    {"the first row", 1, 16, 8, 128, 128, 512, 0, 0, true, true, false, false, false, KV(F16, F16)},
    {"16 rows", 16, 32, 8, 128, 128, 1024, 500, 0, true, true, false, false, false, KV(F16, F16)},
    {"a block that all see", 16, 32, 8, 128, 128, 1024, 505, 0, false, true, false, false, false,
     KV(F16, F16)},
    {"a block with a window", 16, 32, 8, 128, 128, 512, 1020, 200, false, true, false, false, false,
     KV(F16, F16)},
    {"a window below the block", 8, 8, 4, 64, 64, 512, 509, 3, true, true, false, false, false, KV(F16, F16)},
    {"two nodes and a wrap", 5, 16, 4, 128, 128, 1024, 1534, 900, true, true, false, false, false,
     KV(F16, F16)},
    {"one row, long", 1, 32, 8, 128, 128, 18432, 18001, 0, true, true, false, false, false, KV(F16, F16)},
    {"four rows, long", 4, 32, 8, 128, 128, 12288, 12000, 0, true, true, false, false, false, KV(BF16, BF16)},
    {"four rows over two leaves, long", 4, 32, 8, 128, 128, 12288, 11966, 0, true, true, false, false, false,
     KV(F16, F16)},
    {"16 rows, long", 16, 32, 8, 128, 128, 4096, 4000, 0, true, true, false, false, false, KV(F16, F16)},
    {"three rows over a node's end, long", 3, 32, 8, 128, 128, 4096, 3070, 0, true, true, false, false, false,
     KV(BF16, BF16)},
    {"37 rows, three heads a kv head, a long window and a wrap", 37, 6, 2, 128, 64, 4096, 8150, 2500, true,
     true, false, false, false, KV(F16, F16)},
    {"head 256, a quarter turns", 2, 16, 2, 256, 64, 1024, 800, 0, true, true, false, false, false,
     KV(F16, F16)},
    {"head 256, 16 rows, long, a quarter turns", 16, 24, 4, 256, 64, 4096, 3500, 0, true, true, false, false,
     false, KV(F16, F16)},
    {"head 256, windows", 1, 32, 16, 256, 256, 1280, 5000, 1024, true, true, false, true, false,
     KV(F16, F16)},
    {"head 256, 16 rows, windows", 16, 32, 16, 256, 256, 2048, 1500, 1024, true, true, false, true, false,
     KV(F16, F16)},
    {"head 256, 13 rows, three tiles", 13, 12, 4, 256, 64, 1024, 500, 0, true, true, false, false, false,
     KV(BF16, BF16)},
    {"head 256, a block that all see", 9, 8, 4, 256, 256, 1024, 633, 300, false, true, false, false, false,
     KV(F16, F16)},
    {"head 512, 16 rows", 16, 32, 4, 512, 512, 1024, 500, 0, true, true, true, true, false, KV(F16, F16)},
    {"head 512, 16 rows, bf16", 16, 32, 4, 512, 512, 1024, 960, 0, true, true, true, true, false,
     KV(BF16, BF16)},
    {"head 512, 13 rows, five heads a kv head, a window over nodes and a wrap", 13, 10, 2, 512, 512, 1024,
     4700, 990, true, true, false, true, false, KV(F16, F16)},
    {"head 512, 7 rows, a window in one node", 7, 16, 2, 512, 512, 512, 4333, 100, true, true, true, false,
     false, KV(F16, F16)},
    {"head 512, 9 rows that all see, a window", 9, 8, 4, 512, 64, 1024, 1633, 300, false, true, false, false,
     false, KV(F16, F16)},
    {"head 512, 6 rows from the first", 6, 32, 4, 512, 512, 512, 0, 0, true, true, true, true, false,
     KV(F16, F16)},
    {"head 512, values of the keys", 1, 32, 4, 512, 512, 1024, 600, 0, true, true, true, true, false,
     KV(F16, F16)},
    {"head 512, values of the keys, long", 3, 32, 4, 512, 512, 4096, 4001, 0, true, true, true, true, false,
     KV(BF16, BF16)},
    {"pairs side by side", 2, 8, 2, 64, 64, 512, 300, 0, true, false, false, false, true, KV(F16, F16)},
    {"300 rows", 300, 32, 8, 128, 128, 1024, 260, 0, true, true, false, false, false, KV(F16, F16)},
    {"130 rows from the first, bf16, three heads a kv head", 130, 6, 2, 128, 128, 1024, 0, 0, true, false,
     false, false, false, KV(BF16, BF16)},
    {"100 rows, a window and a wrap", 100, 4, 2, 128, 128, 512, 1333, 300, true, true, false, false, false,
     KV(F16, F16)},
    {"70 rows, nothing turns", 70, 8, 8, 128, 0, 512, 300, 0, true, true, false, false, false, KV(F16, F16)},
    {"nothing turns", 2, 8, 2, 64, 0, 512, 300, 0, true, true, false, false, false, KV(F16, F16)},
    {"keys f16, values bf16, one row", 1, 32, 8, 128, 128, 1024, 513, 0, true, true, false, false, false,
     KV(F16, BF16)},
    {"keys bf16, values f16, 16 rows and a wrap", 16, 32, 8, 128, 128, 1024, 1020, 500, true, true, false,
     false, false, KV(BF16, F16)},
    {"keys f16, values bf16, head 512, values of the keys", 3, 32, 4, 512, 512, 1024, 600, 0, true, true,
     true, true, false, KV(F16, BF16)},
    {"keys bf16, values f16, 100 rows", 100, 4, 2, 128, 128, 512, 133, 0, true, true, false, false, false,
     KV(BF16, F16)},
    {"17 rows", 17, 32, 8, 128, 128, 1024, 500, 0, true, true, false, false, false, KV(F16, F16)},
    {"64 rows", 64, 32, 8, 128, 128, 1024, 480, 0, true, true, false, false, false, KV(F16, F16)},
    {"64 rows from the first", 64, 32, 8, 128, 128, 512, 0, 0, true, true, false, false, false, KV(F16, F16)},
    {"40 rows, three heads a kv head, a window and a wrap", 40, 6, 2, 128, 128, 512, 1333, 300, true, true,
     false, false, false, KV(BF16, BF16)},
    {"33 rows that all see", 33, 32, 8, 128, 128, 1024, 505, 0, false, true, false, false, false,
     KV(F16, F16)},
    {"64 rows, long", 64, 8, 2, 128, 128, 8192, 7000, 0, true, true, false, false, false, KV(F16, F16)},
    {"head 64, 48 rows", 48, 16, 8, 64, 64, 1024, 500, 0, true, false, false, false, false, KV(F16, F16)},
    {"head 256, 64 rows, a quarter turns", 64, 24, 4, 256, 64, 1024, 500, 0, true, true, false, false, false,
     KV(F16, F16)},
    {"head 256, 24 rows, windows and a wrap", 24, 32, 16, 256, 256, 2048, 2900, 1024, true, true, false, true,
     false, KV(BF16, BF16)},
    {"head 512, 20 rows", 20, 32, 4, 512, 512, 1024, 500, 0, true, true, true, true, false, KV(F16, F16)},
    {"head 256, 128 rows, six heads a kv head", 128, 12, 2, 256, 64, 1024, 500, 0, true, true, false, false,
     false, KV(F16, F16)},
    {"head 256, 65 rows from the first", 65, 24, 4, 256, 256, 512, 0, 0, true, true, false, false, false,
     KV(F16, F16)},
    {"keys f16, values bf16, 30 rows", 30, 32, 8, 128, 128, 1024, 513, 0, true, true, false, false, false,
     KV(F16, BF16)},
    {"q8_0, 16 rows, long", 16, 32, 8, 128, 128, 4096, 3900, 0, true, true, false, false, false,
     KV(Q8_0, Q8_0)},
    {"q4_0 and tq3_0, 5 rows over the first far node", 5, 16, 2, 128, 128, 6144, 4094, 0, true, true, false,
     false, false, KV(Q4_0, TQ3_0)},
    {"q5_0 and f16, 33 rows", 33, 32, 8, 128, 128, 1024, 500, 0, true, true, false, false, false,
     KV(Q5_0, F16)},
    {"q8_0, head 64, 7 rows, a window and a wrap", 7, 16, 4, 64, 64, 512, 1333, 300, true, true, false, false,
     false, KV(Q8_0, Q4_0)},
    {"tq3_0, head 256, 16 rows, a quarter turns", 16, 24, 4, 256, 64, 1024, 600, 0, true, true, false, false,
     false, KV(TQ3_0, TQ3_0)},
    {"q4_0, head 512, 6 rows", 6, 8, 2, 512, 512, 1024, 500, 0, true, true, false, true, false,
     KV(Q4_0, Q4_0)},
};

/* Keys or values of positions below c->from; what was not written yet is NaN. */
static uint8_t *attend_ring(const struct attend_case *c, uint32_t type, bool values)
{
    const struct kn_kv kv = {.type = {type, type}, .cap = c->cap, .n_head_kv = c->n_kv, .head_dim = c->d};
    const size_t row = (size_t)c->n_kv * (size_t)c->d;
    uint8_t *ring = malloc(kn_kv_bytes(&kv, type));
    float *x = malloc(row * 4);
    memset(ring, 0xff, kn_kv_bytes(&kv, type));
    for (int p = 0; p < c->from && p < c->cap; p++) {
        for (size_t i = 0; i < row; i++) x[i] = (float)(((size_t)p * row + i) * 37 % 1001) / 500.0f - 1;
        kn_kv_put(&kv, values, x, ring + (size_t)p * kn_kv_row_bytes(&kv, type));
    }
    free(x);
    return ring;
}

/* Two passes over two layers, one after the other; in the order of a model, or each operation waited for. The
 * second layer's results are gated before their product. Results of both passes (zeros where they were gated,
 * which is done in place or is not), what a product makes of each, then the rings. */
static char *attend_run(const struct attend_case *c, bool apart, bool sinks, const float *data, size_t *bytes)
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
                 k = (size_t)c->n * row;
    size_t rings = 0;
    float *x = put(gpu, data, (q + 2 * k) * 4 * LAYERS * PASSES), *norm = put(gpu, data, (size_t)c->d * 8),
          *out = put(gpu, NULL, q * 4 * LAYERS * PASSES), *zeros = put(gpu, NULL, q * 4),
          *gate = put(gpu, data, q * 4), *sunk = put(gpu, data, (size_t)c->n_head * 4),
          *table = put(gpu, NULL, (size_t)c->n * 512 * 4);
    double freq[256];
    int32_t at[PASSES * 512];
    struct kn_kv kv[LAYERS];
    for (int i = 0; i < 256; i++) freq[i] = pow(1e6, -i / 128.0);
    for (int i = 0; i < PASSES * c->n; i++) at[i] = c->from + i;
    double *f = put(gpu, freq, sizeof freq);
    int32_t *pos = put(gpu, at, (size_t)(PASSES * c->n) * 4);
    for (int l = 0; l < LAYERS; l++) {
        const struct kn_kv_types kept = l ? (struct kn_kv_types){c->type.v, c->type.k} : c->type;
        uint8_t *keys = attend_ring(c, kept.k, false), *values = attend_ring(c, kept.v, true);
        kv[l] = (struct kn_kv){.type = kept, .cap = c->cap, .n_head_kv = c->n_kv, .head_dim = c->d};
        kv[l].k = put(gpu, keys, kn_kv_bytes(&kv[l], kept.k));
        kv[l].v = put(gpu, values, kn_kv_bytes(&kv[l], kept.v));
        rings += kn_kv_bytes(&kv[l], kept.k) + kn_kv_bytes(&kv[l], kept.v);
        free(keys), free(values);
    }
    must(gpu, "reserve", op->reserve(gpu, c->n, n_in, 8, c->n_head, c->d));
    must(gpu, "reserve_kv", op->reserve_kv(gpu, c->n, c->n_head, &kv[0], c->window));
    for (int p = 0; p < PASSES; p++) {
        if (c->n_rot)
            must(gpu, "rope_table", op->rope_table(gpu, table, pos + p * c->n, NULL, c->n, f, c->n_rot));
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
                                           .then = apart ? NULL : &weight,
                                           .gate = l ? gate : NULL,
                                           .sinks = sinks ? sunk : NULL};
            if (apart) {
                must(gpu, "rope_store", op->rope_store(gpu, &s));
                must(gpu, "sync", op->sync(gpu));
                must(gpu, "attention", op->attention(gpu, &a));
                must(gpu, "sync", op->sync(gpu));
            } else {
                must(gpu, "attend", op->attend(gpu, &s, &a));
            }
            float *to = y + (size_t)(p * LAYERS + l) * (size_t)c->n * N_OUT;
            if (!l) {
                must(gpu, "linear", op->linear(gpu, to, &weight, a.out, c->n, false));
                continue;
            }
            if (apart) {
                must(gpu, "gate",
                     op->gate(gpu, a.out, gate, c->n, (int64_t)(q / (size_t)c->n),
                              (int64_t)(q / (size_t)c->n)));
                must(gpu, "linear", op->linear(gpu, to, &weight, a.out, c->n, true));
            } else {
                must(gpu, "gate_linear", op->gate_linear(gpu, to, &weight, a.out, gate, c->n));
            }
            must(gpu, "copy", op->copy(gpu, a.out, zeros, q * 4));
        }
    }
    *bytes = (q * LAYERS * PASSES + y_all) * 4 + rings;
    char *all = malloc(*bytes), *to = all;
    must(gpu, "download", op->download(gpu, to, out, q * 4 * LAYERS * PASSES));
    to += q * 4 * LAYERS * PASSES;
    must(gpu, "download", op->download(gpu, to, y, y_all * 4));
    to += y_all * 4;
    for (int l = 0; l < LAYERS; l++) {
        const size_t keys = kn_kv_bytes(&kv[l], kv[l].type.k), values = kn_kv_bytes(&kv[l], kv[l].type.v);
        must(gpu, "download", op->download(gpu, to, kv[l].k, keys));
        must(gpu, "download", op->download(gpu, to + keys, kv[l].v, values));
        to += keys + values;
        drop(gpu, kv[l].k), drop(gpu, kv[l].v);
    }
    drop(gpu, x), drop(gpu, norm), drop(gpu, out), drop(gpu, zeros), drop(gpu, gate), drop(gpu, table),
        drop(gpu, f), drop(gpu, pos), drop(gpu, y), drop(gpu, sunk);
    op->weight_free(gpu, &weight);
    free(packed);
    return all;
}

void check_attend(void)
{
    static const struct cuda_attention_tuning others[] = {{},
                                                          {.near = 1},
                                                          {.places = 1},
                                                          {.places = 2},
                                                          {.places = 1, .near = 1},
                                                          {.places = 2},
                                                          {.near = 1, .unit = 1, .slots = 2},
                                                          {.near = 1, .unit = 2, .spread = 40},
                                                          {.near = 2, .cluster = 8},
                                                          {.near = 2, .cluster = 16},
                                                          {.near = 1, .unit = 1, .tiles = 2},
                                                          {.near = 1, .unit = 1, .tiles = 4, .slots = 3},
                                                          {.near = 1, .unit = 2, .tiles = 4},
                                                          {.near = 1, .unit = 2, .tiles = 2, .slots = 4},
                                                          {.near = 1, .unit = 2, .tiles = 1},
                                                          {.near = 1, .unit = 2, .tiles = 1, .slots = 3},
                                                          {.far = 1},
                                                          {.far = 2},
                                                          {.far = 2, .unit = 1},
                                                          {.far = 2, .late = 1},
                                                          {.near = 1, .fold = 64},
                                                          {.near = 1, .alone = 1},
                                                          {.near = 1, .alone = 2},
                                                          {.near = 1, .alone = 2},
                                                          {.near = 1, .alone = 2, .fold = 1}};
    enum { CASES = sizeof attend_cases / sizeof *attend_cases };
    for (size_t i = 0; i < 2 * CASES; i++) { /* without sinks; with */
        const struct attend_case *c = &attend_cases[i % CASES];
        const bool sinks = i >= CASES;
        if ((small && c->cap > 4096) || (sinks && c->n > 64)) continue;
        rnd_state = 90 + i;
        size_t bytes, size = 4 * (size_t)c->n * (size_t)(c->n_head + 2 * c->n_kv) * (size_t)c->d;
        float *data = gaussians(size, 1.5f);
        int other = -1;
        bool finite = true;
        cuda_attention_tuning = (struct cuda_attention_tuning){.apart = 1};
        char *want = attend_run(c, true, sinks, data, &bytes);
        for (size_t j = 0; j < 4 * (size_t)c->n * (size_t)c->n_head * (size_t)c->d; j++)
            finite &= isfinite(((float *)want)[j]);
        for (int j = 0; j < (int)(sizeof others / sizeof *others) && other < 0; j++) {
            if (sinks && (others[j].places || others[j].alone)) continue; /* forms that take none */
            for (int made = 0; made < (others[j].places == 2 ? 3 : 1) && other < 0; made += 2) {
                cuda_attention_tuning = others[j];
                cuda_attention_tuning.made = made;
                kn_bound(gpu, j % 2 ? c->from + 2 * c->n : 0);
                char *got = attend_run(c, false, sinks, data, &bytes);
                if (memcmp(want, got, bytes)) other = j;
                free(got);
            }
        }
        memset(&cuda_attention_tuning, 0, sizeof cuda_attention_tuning);
        kn_bound(gpu, 0);
        char why[64] = "";
        if (other >= 0) snprintf(why, sizeof why, ", other bits when launched as in %d", other);
        verdict(other < 0 && finite, "attend, %s%s%s%s", c->name, sinks ? ", sinks" : "",
                finite ? "" : ", not finite", why);
        free(want), free(data);
    }
}
