/* test_gpu_sparse.c - block-sparse attention of prompts on the device: against the CPU's, and where every
 * block is kept the bits of dense attention (test_gpu.c). */
#include "../../unit/kernels/sparse_case.h"
#include "../forms.h"
#include "test_gpu.h"

#define BLOCK KN_SPARSE_BLOCK

static const struct sparse_case cases[] = {
    {"head 128, from 0", 0, 1024, 16, 4, 128, KV(F16, F16)},
    {"head 128, bf16, six heads a kv head", 1152, 384, 12, 2, 128, KV(BF16, BF16)},
    {"head 128, one block behind 40", 5120, 128, 32, 8, 128, KV(F16, F16)},
    {"head 128, means over several tiles", 128 * 300, 128, 4, 1, 128, KV(F16, F16)},
    {"head 64", 1152, 512, 4, 2, 64, KV(F16, F16)},
    {"head 64, bf16", 0, 768, 14, 2, 64, KV(BF16, BF16)},
    {"head 256", 1024, 256, 24, 4, 256, KV(F16, F16)},
    {"head 256, bf16, chunk of 1,024", 2048, 1024, 16, 2, 256, KV(BF16, BF16)},
    {"head 512", 1024, 256, 8, 2, 512, KV(F16, F16)},
    {"q8_0", 1152, 512, 16, 4, 128, KV(Q8_0, Q8_0)},
    {"q8_0 and q4_0, head 256", 1024, 256, 8, 2, 256, KV(Q8_0, Q4_0)},
    {"f16 and q5_0, head 64", 1024, 384, 8, 4, 64, KV(F16, Q5_0)},
    {"tq3_0", 1024, 256, 8, 2, 128, KV(TQ3_0, TQ3_0)},
    {"q4_0, head 512", 640, 128, 4, 1, 512, KV(Q4_0, Q4_0)},
};

/* s NULL: dense. step rows a call. */
static float *run(struct kn_backend *be, const struct sparse_case *c, const struct sparse_data *a,
                  const struct sparse_setting *s, int32_t step, uint64_t kept[2])
{
    const size_t row = (size_t)c->n_head * (size_t)c->d, bytes = (size_t)c->n * row * 4;
    const uint64_t none[2] = {0, 0};
    struct kn_kv kv = a->kv;
    struct kn_sparse_room room;
    kv.k = put(be, a->kv.k, kn_kv_bytes(&kv, kv.type.k));
    kv.v = put(be, a->kv.v, kn_kv_bytes(&kv, kv.type.v));
    float *q = put(be, a->q, bytes), *out = put(be, NULL, bytes);
    int32_t *pos = put(be, a->pos, (size_t)c->n * 4);
    must(be, "reserve", kn_op(be)->reserve(be, c->n, 0, 8, c->n_head, c->d));
    must(be, "reserve_kv", kn_op(be)->reserve_kv(be, c->n, c->n_head, &kv, 0));
    must(be, "sparse_room", kn_op(be)->sparse_room(be, step, c->n_head, &kv, &room));
    struct kn_sparse sparse = {.mean = room.mean};
    sparse.mean.k = put(be, NULL, kn_kv_bytes(&room.mean, room.mean.type.k));
    sparse.mean.v = put(be, NULL, kn_kv_bytes(&room.mean, room.mean.type.v));
    sparse.scratch = put(be, NULL, room.scratch);
    sparse.kept = put(be, none, sizeof none);
    if (s) sparse_set(&sparse, s);
    for (int32_t i = 0; i < c->n; i += step) {
        struct kn_attention t = sparse_call(c, &kv, q, pos, i, step, s ? &sparse : NULL, out);
        kn_bound(be, c->first + i + t.n);
        must(be, c->name, kn_op(be)->attention(be, &t));
        sparse.made = (c->first + i + t.n) / BLOCK;
    }
    kn_bound(be, 0);
    uint64_t *k = take(be, sparse.kept, sizeof none);
    kept[0] = k[0], kept[1] = k[1];
    free(k);
    drop(be, kv.k), drop(be, kv.v), drop(be, q), drop(be, pos);
    drop(be, sparse.mean.k), drop(be, sparse.mean.v), drop(be, sparse.scratch);
    return take(be, out, bytes);
}

static double furthest(const float *x, const float *y, size_t n)
{
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        const double e = fabs((double)x[i] - y[i]);
        if (!(e <= worst)) worst = e;
    }
    return worst;
}

/* A list may differ in a block near the limit: then the means of that block stand for it, or it for them. */
static void check_lists(const struct sparse_case *c, const struct sparse_data *a)
{
    static const struct sparse_setting settings[] = {{2, 0, 0, 1, false},
                                                     {0.1f, 0, 2, 4, false},
                                                     {0.6f, 0, 1, 1, false},
                                                     {0.1f, 0, 2, 4, true},
                                                     {0.1f, 0.4f, 2, 4, false}};
    const size_t n = (size_t)c->n * (size_t)c->n_head * (size_t)c->d;
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        const struct sparse_setting *s = &settings[i];
        uint64_t want_kept[2], kept[2], again[2];
        float *want = run(cpu, c, a, s, c->n, want_kept), *got = run(gpu, c, a, s, c->n, kept),
              *parts = run(gpu, c, a, s, c->n % 256 ? BLOCK : 256, again);
        /* Prompts have one half of a query and of a weight (test_gpu_attention.c), means are halves: 2^-12
         * and 2^-9 of scores up to 30 and values up to big. Codes are read as halves. */
        const double unit = c->type.k == KN_BF16 ? 0x1p-12 : 0x1p-14, tol = unit * a->big * 60,
                     worst = furthest(want, got, n);
        const bool exact = s->alpha > 1 || s->density > 0;
        const long off = labs((long)(kept[0] - want_kept[0]));
        const bool counts =
            kept[1] == want_kept[1] && off <= (exact ? 0 : (long)(kept[1] / 200)) && kept[0] == again[0];
        verdict(worst <= tol || (!exact && off && worst <= 100 * tol),
                "sparse, %s, setting %zu: error %.2g of %.2g", c->name, i, worst, tol);
        verdict(counts, "sparse, %s, setting %zu: %llu of %llu blocks, the CPU %llu", c->name, i,
                (unsigned long long)kept[0], (unsigned long long)kept[1], (unsigned long long)want_kept[0]);
        verdict(!memcmp(got, parts, n * 4), "sparse, %s, setting %zu: the same bits in other passes", c->name,
                i);
        free(want), free(got), free(parts);
    }
}

void check_sparse(void)
{
    static const struct sparse_setting full = {0, 0, 2, 4, false};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        const struct sparse_case *c = &cases[k];
        const size_t n = (size_t)c->n * (size_t)c->n_head * (size_t)c->d;
        if (small && c->first > 2000) continue;
        struct sparse_data a = sparse_make(c, k + 1);
        uint64_t kept[2];
        float *dense = run(gpu, c, &a, NULL, c->n, kept), *all = run(gpu, c, &a, &full, c->n, kept);
        verdict(!memcmp(dense, all, n * 4) && kept[0] == kept[1],
                "sparse, %s: every block, the bits of dense attention", c->name);
        free(dense), free(all);
        check_lists(c, &a);
        sparse_drop(&a);
    }
}
