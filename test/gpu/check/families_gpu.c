/* families_gpu.c - the CUDA backend's operations of some families (norms and gates of branches, values normed
 * into the cache, routers, gated delta nets) against the CPU's or, for the delta nets, against double.
 *
 * usage: families_gpu [--generic] [--device DEVICE]   check; DEVICE cpu runs the checks themselves, without a
 * GPU families_gpu --small                         delta nets, small: for compute-sanitizer families_gpu
 * --bench                         microseconds a call Each case is a line of a table. Rows are computed
 * together and in other groups, and must have the same bits. Prints "ok   gpu/..." or "FAIL gpu/..." a case;
 * exit 1 if any failed, 5 if there is no device. */
#include "families_gpu.h"
#include "../forms.h"

struct kn_backend *cpu, *gpu;
bool small;

/* ---- norm_add, gate ---- */

static void check_norm_add(void)
{
    static const struct {
        int width;
        bool weight, in_place;
        float scale;
    } cases[] = {{1, true, false, 1.0f},     {40, true, true, 0.5f},    {257, false, false, 1.0f},
                 {2816, true, true, 0.061f}, {5376, true, true, 0.7f},  {5120, true, false, 1.0f},
                 {2048, false, true, 2.0f},  {9001, true, false, 1.0f}, {8192, true, true, 1.0f}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const size_t w = (size_t)cases[c].width, n = 9, bytes = n * w * 4;
        uint64_t seed = c + 1;
        float *x = normal(n * w, 3.0f, &seed), *y = normal(n * w, 0.02f, &seed), *g = normal(w, 1.0f, &seed),
              *out[3];
        for (int b = 0; b < 3; b++) { /* the CPU, the device, the device row by row */
            struct kn_backend *be = b ? gpu : cpu;
            float *dx = put(be, x, bytes), *dy = put(be, y, bytes), *dg = put(be, g, w * 4),
                  *to = cases[c].in_place ? dx : put(be, NULL, bytes);
            const size_t step = b == 2 ? 1 : n;
            for (size_t i = 0; i < n; i += step)
                must(be, "norm_add",
                     kn_op(be)->norm_add(be, to + i * w, dx + i * w, dy + i * w, cases[c].weight ? dg : NULL,
                                         (int32_t)step, cases[c].width, 1e-6f, cases[c].scale));
            out[b] = get(be, to, bytes);
            if (!cases[c].in_place) drop(be, to);
            drop(be, dx), drop(be, dy), drop(be, dg);
        }
        /* The two orders of the norm's sum, and root, division, products; then a sum and a product of the
         * CPU's size. */
        double worst = 0;
        for (size_t i = 0; i < n * w; i++) {
            const double sum = fabs(out[0][i] / cases[c].scale), t = fabs(sum - x[i]) + fabs(x[i]);
            const double e = fabs((double)out[1][i] - out[0][i]) / fabs(cases[c].scale);
            worst = fmax(worst, e / (EPS32 * ((double)w / 64 + (double)w / 512 + 30) * (t + 1e-30)));
        }
        const bool same = !memcmp(out[1], out[2], bytes);
        verdict(worst <= 1 && same, "norm_add width %zu: %.2g of the bound%s", w, worst,
                same ? "" : ", other bits row by row");
        free(x), free(y), free(g), free(out[0]), free(out[1]), free(out[2]);
    }
}

static void check_norm_join(void)
{
    static const int widths[] = {1, 40, 257, 2816, 5120};
    const struct kn_ops *op = kn_op(gpu);
    if (!op->norm_join) return;
    for (size_t c = 0; c < sizeof widths / sizeof *widths; c++) {
        const size_t w = (size_t)widths[c], n = 9, bytes = n * w * 4;
        uint64_t seed = c + 1;
        float *x = normal(n * w, 3.0f, &seed), *y = normal(n * w, 0.02f, &seed),
              *z = normal(n * w, 1.0f, &seed), *g = normal(3 * w, 1.0f, &seed), *out[3];
        for (int how = 0; how < 3; how++) { /* at once, row by row, by three operations */
            float *dx = put(gpu, x, bytes), *dy = put(gpu, y, bytes), *dz = put(gpu, z, bytes),
                  *dg = put(gpu, g, 3 * w * 4);
            const size_t step = how == 1 ? 1 : n;
            for (size_t i = 0; how < 2 && i < n; i += step)
                must(gpu, "norm_join",
                     op->norm_join(gpu, dx + i * w, dx + i * w, dy + i * w, dg, dz + i * w, dg + w,
                                   dg + 2 * w, (int32_t)step, widths[c], 1e-6f, 0.061f));
            if (how == 2) {
                must(gpu, "rms_norm", op->rms_norm(gpu, dy, dy, dg, (int32_t)n, widths[c], 1e-6f));
                must(gpu, "norm_add",
                     op->norm_add(gpu, dy, dy, dz, dg + w, (int32_t)n, widths[c], 1e-6f, 1.0f));
                must(gpu, "norm_add",
                     op->norm_add(gpu, dx, dx, dy, dg + 2 * w, (int32_t)n, widths[c], 1e-6f, 0.061f));
            }
            out[how] = get(gpu, dx, bytes);
            float *all[] = {dx, dy, dz, dg};
            for (int i = 0; i < 4; i++) op->free(gpu, all[i]);
        }
        const bool rows = !memcmp(out[0], out[1], bytes), apart = !memcmp(out[0], out[2], bytes);
        verdict(rows && apart, "norm_join width %zu%s%s", w, rows ? "" : ", other bits row by row",
                apart ? "" : ", other bits by three operations");
        free(x), free(y), free(z), free(g), free(out[0]), free(out[1]), free(out[2]);
    }
}

/* The bits of two rms_norms; rows of y a row late, the first from what was kept. */
static void check_norm_pair(void)
{
    static const int widths[] = {1, 40, 257, 2048, 5120, 6148};
    enum { N = 5, SLOTS = 7 };
    const struct kn_ops *op = kn_op(gpu);
    for (size_t c = 0; c < sizeof widths / sizeof *widths; c++) {
        const size_t w = (size_t)widths[c], row = w * 4;
        uint64_t seed = c + 1;
        float *x = normal(N * w, 3.0f, &seed), *y = normal(N * w, 0.02f, &seed),
              *late = normal(SLOTS * w, 1.0f, &seed), *g = normal(2 * w, 1.0f, &seed);
        float *dx = put(gpu, x, N * row), *dy = put(gpu, y, N * row), *dl = put(gpu, late, SLOTS * row),
              *dg = put(gpu, g, 2 * row), *to = put(gpu, NULL, 2 * N * row), *want = put(gpu, NULL, row);
        bool same = true, moved = true;
        for (int32_t from = 0; from < 17; from += 8) {
            int32_t pos[N];
            for (int i = 0; i < N; i++) pos[i] = from + i;
            int32_t *dp = put(gpu, pos, sizeof pos), *before = put(gpu, NULL, sizeof pos);
            const struct kn_norm_pair a = {.out = to,
                                           .x = dx,
                                           .x_weight = dg,
                                           .y = dy,
                                           .y_weight = dg + w,
                                           .late = from ? dl : NULL,
                                           .slots = SLOTS,
                                           .pos = dp,
                                           .before = before,
                                           .n = N,
                                           .n_before = N,
                                           .width = widths[c],
                                           .eps = 1e-6f};
            must(gpu, "norm_pair", op->norm_pair(gpu, &a));
            float *out = get(gpu, to, 2 * N * row);
            int32_t *at = get(gpu, before, sizeof pos);
            for (size_t i = 0; i < N; i++) {
                const float *second = !from ? dy + i * w : i ? dy + (i - 1) * w : dl + (from - 1) % SLOTS * w;
                for (int half = 0; half < 2; half++) {
                    must(gpu, "rms_norm",
                         op->rms_norm(gpu, want, half ? second : dx + i * w, dg + half * w, 1, widths[c],
                                      1e-6f));
                    float *one = get(gpu, want, row);
                    same &= !memcmp(one, out + (2 * i + (size_t)half) * w, row);
                    free(one);
                }
                moved &= at[i] == (from + (int)i ? from + (int)i - 1 : 0);
            }
            free(out), free(at);
            op->free(gpu, dp), op->free(gpu, before);
        }
        verdict(same && moved, "norm_pair width %zu%s%s", w, same ? "" : ", other bits than rms_norm",
                moved ? "" : ", other places");
        float *all[] = {dx, dy, dl, dg, to, want};
        for (int i = 0; i < 6; i++) op->free(gpu, all[i]);
        free(x), free(y), free(late), free(g);
    }
}

/* The CPU's logits, and queries alone as the CPU turns them beside keys. */
static void check_clusters(void)
{
    static const int32_t cases[][3] = {{12, 4, 1}, {1000, 100, 7}, {262144, 2048, 32}, {60, 20, 20}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const size_t v = (size_t)cases[c][0], m = (size_t)cases[c][1], n = 3;
        uint64_t seed = c + 1;
        float *x = normal(n * v, 3.0f, &seed), *s = normal(n * m, 1.0f, &seed), *out[2];
        int32_t *of = layer_alloc(v * 4);
        for (size_t i = 0; i < v; i++) of[i] = (int32_t)(i * 7919 % m);
        for (size_t i = 0; i < n * m; i += 3) s[i] = 0.5f; /* ties */
        for (int b = 0; b < 2; b++) {
            struct kn_backend *be = b ? gpu : cpu;
            float *dx = put(be, x, n * v * 4), *ds = put(be, s, n * m * 4);
            int32_t *dof = put(be, of, v * 4);
            const struct kn_clusters a = {.logits = dx,
                                          .scores = ds,
                                          .of_id = dof,
                                          .n = (int32_t)n,
                                          .n_vocab = cases[c][0],
                                          .n_clusters = cases[c][1],
                                          .n_best = cases[c][2]};
            must(be, "clusters", kn_op(be)->clusters(be, &a));
            out[b] = get(be, dx, n * v * 4);
            drop(be, dx), drop(be, ds), drop(be, dof);
        }
        verdict(!memcmp(out[0], out[1], n * v * 4), "clusters %d ids, %d of %d", cases[c][0], cases[c][2],
                cases[c][1]);
        free(x), free(s), free(of), free(out[0]), free(out[1]);
    }
}

/* Queries have the bits that they have beside keys, and the cache stays as it was. */
static void check_queries(void)
{
    enum { N = 5, HEADS = 8, KV = 2, D = 256 };
    uint64_t seed = 9;
    float *q = normal(N * HEADS * D, 1.0f, &seed), *k = normal(N * KV * D, 1.0f, &seed),
          *norm = normal(D, 1.0f, &seed), *table = normal(N * D, 1.0f, &seed), *out[2];
    int32_t pos[N];
    for (int i = 0; i < N; i++) pos[i] = 300 + i;
    struct kn_kv kv = {.type = {KN_F16, KN_F16}, .cap = kn_kv_room(512), .n_head_kv = KV, .head_dim = D};
    const size_t bytes = kn_kv_bytes(&kv, KN_F16);
    kv.k = put(gpu, NULL, bytes), kv.v = put(gpu, NULL, bytes);
    float *dk = put(gpu, k, N * KV * D * 4), *dv = put(gpu, k, N * KV * D * 4), *dn = put(gpu, norm, D * 4),
          *dt = put(gpu, table, N * D * 4);
    int32_t *dp = put(gpu, pos, sizeof pos);
    bool clean = true;
    for (int beside = 0; beside < 2; beside++) {
        float *dq = put(gpu, q, N * HEADS * D * 4);
        const struct kn_rope_store a = {.q = dq,
                                        .k = beside ? dk : NULL,
                                        .v = beside ? dv : NULL,
                                        .q_norm = dn,
                                        .table = dt,
                                        .pos = dp,
                                        .n = N,
                                        .n_head = HEADS,
                                        .n_rot = D,
                                        .eps = 1e-6f,
                                        .kv = &kv};
        must(gpu, "rope_store", kn_op(gpu)->rope_store(gpu, &a));
        out[beside] = get(gpu, dq, N * HEADS * D * 4);
        if (!beside) {
            uint8_t *now = get(gpu, kv.k, bytes);
            for (size_t i = 0; i < bytes; i++) clean &= !now[i];
            free(now);
        }
        drop(gpu, dq);
    }
    verdict(clean && !memcmp(out[0], out[1], N * HEADS * D * 4), "queries alone%s",
            clean ? "" : ", keys were stored");
    drop(gpu, kv.k), drop(gpu, kv.v), drop(gpu, dk), drop(gpu, dv), drop(gpu, dn), drop(gpu, dt),
        drop(gpu, dp);
    free(q), free(k), free(norm), free(table), free(out[0]), free(out[1]);
}

/* What a norm_add that knows its reader leaves: x as the CPU has it, and a product of it with the bits of one
 * that rounds for itself. changed: x is written between the two, and what was prepared must not be taken. */
static void check_norm_next(uint32_t type, int64_t width, bool gated, bool changed)
{
    const size_t n = 9, w = (size_t)width, n_out = 40, bytes = n * w * 4;
    uint64_t seed = (uint64_t)width + type;
    float *x = normal(n * w, 3.0f, &seed), *y = normal(n * w, 0.02f, &seed), *g = normal(2 * w, 1.0f, &seed),
          *flat = normal(n_out * w, 1.0f, &seed), *xs[2], *out[2];
    void *packed = layer_alloc(n_out * kn_row_bytes(type, width));
    struct kn_weight m;
    if (kn_encode_row(type, flat, packed, (int64_t)(n_out * w), NULL)) abort();
    must(gpu, "weight_load",
         kn_op(gpu)->weight_load(gpu, &m, type, width, (int64_t)n_out, packed, KN_USE_LINEAR));
    float *dg = put(gpu, g, 2 * w * 4), *dy = put(gpu, y, bytes), *dx = put(gpu, x, bytes),
          *other = put(gpu, x, bytes);
    const struct kn_weight *list[] = {&m};
    float *to[2] = {put(gpu, NULL, n * n_out * 4), put(gpu, NULL, n * n_out * 4)};
    kn_next(gpu, &m, dg + w);
    must(gpu, "norm_add", kn_op(gpu)->norm_add(gpu, dx, dx, dy, dg, (int32_t)n, width, 1e-6f, 0.7f));
    if (changed) must(gpu, "copy", kn_op(gpu)->copy(gpu, dx, other, bytes));
    for (int i = 0; i < 2; i++) { /* the second has nothing prepared */
        const int rc =
            gated ? kn_op(gpu)->norm_gated(gpu, to[i], &m, &m, dx, dg + w, 1e-6f, KN_ACT_SILU, (int32_t)n)
                  : kn_op(gpu)->norm_linear(gpu, &to[i], list, 1, dx, dg + w, 1e-6f, (int32_t)n);
        must(gpu, "product", rc);
    }
    for (int i = 0; i < 2; i++) out[i] = get(gpu, to[i], n * n_out * 4);
    xs[0] = get(gpu, dx, bytes);
    drop(gpu, dx), dx = put(gpu, x, bytes);
    must(gpu, "norm_add", kn_op(gpu)->norm_add(gpu, dx, dx, dy, dg, (int32_t)n, width, 1e-6f, 0.7f));
    xs[1] = changed ? get(gpu, other, bytes) : get(gpu, dx, bytes);
    double worst = 0;
    for (size_t i = 0; i < n * w; i++) /* two orders of the norm's sum */
        worst = fmax(worst, fabs((double)xs[0][i] - xs[1][i]) /
                                (EPS32 * 60 * (fabs(xs[1][i]) + fabs(x[i]) + 1e-30)));
    verdict(worst <= 1 && !memcmp(out[0], out[1], n * n_out * 4),
            "norm_add before %s %s width %lld%s: %.2g of the bound", kn_type_info(type)->name,
            gated ? "gated" : "linear", (long long)width, changed ? ", x changed" : "", worst);
    kn_op(gpu)->weight_free(gpu, &m);
    for (int i = 0; i < 2; i++) drop(gpu, to[i]), free(out[i]), free(xs[i]);
    drop(gpu, dg), drop(gpu, dy), drop(gpu, dx), drop(gpu, other);
    free(x), free(y), free(g), free(flat), free(packed);
}

static void check_gate(void)
{
    static const int cases[][2] = {{1, 1}, {391, 391}, {2048, 1}, {4096, 4096}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const size_t w = (size_t)cases[c][0], gw = (size_t)cases[c][1], n = 17;
        uint64_t seed = c + 1;
        float *x = normal(n * w, 3.0f, &seed), *g = normal(n * gw, 10.0f, &seed), *out[3];
        g[0] = -95.0f;
        for (int b = 0; b < 3; b++) {
            struct kn_backend *be = b ? gpu : cpu;
            float *dx = put(be, x, n * w * 4), *dg = put(be, g, n * gw * 4);
            const size_t step = b == 2 ? 1 : n;
            for (size_t i = 0; i < n; i += step)
                must(be, "gate",
                     kn_op(be)->gate(be, dx + i * w, dg + i * gw, (int32_t)step, (int64_t)w, (int64_t)gw));
            out[b] = take(be, dx, n * w * 4);
            drop(be, dg);
        }
        verdict(!memcmp(out[0], out[1], n * w * 4) && !memcmp(out[1], out[2], n * w * 4),
                "gate %zu by %zu, the CPU's bits", w, gw);
        free(x), free(g), free(out[0]), free(out[1]), free(out[2]);
    }
}

/* ---- rope_store: values normed, and of one projection with the keys ---- */

struct values {
    float *k, *q;
    void *ring_k, *ring_v;
};

static struct values values_run(struct kn_backend *be, const float *q, const float *k, const float *v,
                                struct kn_kv_types type, int n, int d, bool v_norm, bool v_is_k,
                                bool one_by_one)
{
    enum { HEADS = 4, KV = 2, CAP = 256, FIRST = 250 };
    const size_t qb = (size_t)(n * HEADS * d) * 4, kb = (size_t)(n * KV * d) * 4,
                 slots = (size_t)(CAP * KV * d), ring_k = slots * (type.k == KN_F32 ? 4 : 2),
                 ring_v = slots * (type.v == KN_F32 ? 4 : 2);
    int32_t pos[64];
    float *table = layer_alloc((size_t)(n * d) * 4), *norm = layer_alloc((size_t)d * 4);
    for (int i = 0; i < n; i++) pos[i] = FIRST + i;
    for (int i = 0; i < n * d; i++) table[i] = i % 2 ? sinf((float)i) : cosf((float)(i + 1));
    for (int i = 0; i < d; i++) norm[i] = 1.0f + 0.01f * (float)i;
    float *dq = put(be, q, qb), *dk = put(be, k, kb), *dv = put(be, v, kb),
          *dt = put(be, table, (size_t)(n * d) * 4), *dn = put(be, norm, (size_t)d * 4);
    int32_t *dp = put(be, pos, sizeof pos);
    struct kn_kv kv = {put(be, NULL, ring_k), put(be, NULL, ring_v), type, CAP, KV, d};
    const int step = one_by_one ? 1 : n;
    for (int i = 0; i < n; i += step) {
        struct kn_rope_store a = {.q = dq + i * HEADS * d,
                                  .k = dk + i * KV * d,
                                  .v = (v_is_k ? dk : dv) + i * KV * d,
                                  .v_norm = v_norm,
                                  .k_norm = dn,
                                  .q_norm = dn,
                                  .table = dt + i * d,
                                  .pos = dp + i,
                                  .n = step,
                                  .n_head = HEADS,
                                  .n_rot = d,
                                  .eps = 1e-6f,
                                  .kv = &kv};
        must(be, "rope_store", kn_op(be)->rope_store(be, &a));
    }
    struct values out = {take(be, dk, kb), take(be, dq, qb), take(be, kv.k, ring_k), take(be, kv.v, ring_v)};
    drop(be, dv), drop(be, dt), drop(be, dn), drop(be, dp);
    free(table), free(norm);
    return out;
}

static double cached(uint32_t type, const void *ring, size_t i)
{
    return type == KN_F32   ? ((const float *)ring)[i]
           : type == KN_F16 ? kn_f16_to_f32(((const uint16_t *)ring)[i])
                            : kn_bf16_to_f32(((const uint16_t *)ring)[i]);
}

static void check_values(void)
{
    static const struct {
        int n, d;
        struct kn_kv_types type;
        bool v_norm, v_is_k;
    } cases[] = {{1, 256, {KN_F16, KN_F16}, true, false},  {16, 512, {KN_BF16, KN_BF16}, true, true},
                 {40, 128, {KN_F32, KN_F32}, false, true}, {9, 80, {KN_F32, KN_F32}, true, true},
                 {5, 256, {KN_F32, KN_BF16}, true, true},  {3, 128, {KN_BF16, KN_F32}, false, true}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const int n = cases[c].n, d = cases[c].d;
        const uint32_t type = cases[c].type.v;
        const size_t q_size = (size_t)(n * 4 * d), k_size = (size_t)(n * 2 * d),
                     slots = (size_t)(256 * 2 * d), ring = slots * (type == KN_F32 ? 4 : 2),
                     ring_k = slots * (cases[c].type.k == KN_F32 ? 4 : 2);
        uint64_t seed = c + 1;
        float *q = normal(q_size, 1.0f, &seed), *k = normal(k_size, 1.0f, &seed),
              *v = normal(k_size, 1.0f, &seed);
        struct values r[3];
        for (int b = 0; b < 3; b++)
            r[b] = values_run(b ? gpu : cpu, q, k, v, cases[c].type, n, d, cases[c].v_norm, cases[c].v_is_k,
                              b == 2);
        double worst =
            0; /* of a norm's sum in another order, of values to 6, and a step of the cache's type */
        for (size_t i = 0; i < slots; i++) {
            const double a = cached(type, r[0].ring_v, i), b = cached(type, r[1].ring_v, i),
                         step = type == KN_F32   ? 0
                                : type == KN_F16 ? 0x1p-10
                                                 : 0x1p-7;
            worst = fmax(worst, fabs(a - b) / (fabs(a) * step + EPS32 * (d / 16.0 + 40) * 6));
        }
        const bool rows = !memcmp(r[1].k, r[2].k, k_size * 4) && !memcmp(r[1].q, r[2].q, q_size * 4) &&
                          !memcmp(r[1].ring_k, r[2].ring_k, ring_k) &&
                          !memcmp(r[1].ring_v, r[2].ring_v, ring);
        const bool exact = cases[c].v_norm || !memcmp(r[0].ring_v, r[1].ring_v, ring);
        verdict(worst <= 1 && rows && exact, "rope_store values%s%s, %d rows of %d: %.2g of the bound%s",
                cases[c].v_norm ? ", normed" : "", cases[c].v_is_k ? ", of the keys" : "", n, d, worst,
                rows ? "" : ", other bits row by row");
        for (int b = 0; b < 3; b++) free(r[b].k), free(r[b].q), free(r[b].ring_k), free(r[b].ring_v);
        free(q), free(k), free(v);
    }
}

/* ---- route ---- */

static void check_route(void)
{
    static const struct {
        int n, n_expert, n_used;
        bool renorm, scaled;
    } cases[] = {{1, 1, 1, true, false},    {5, 17, 3, false, true},    {33, 128, 8, true, false},
                 {20, 512, 10, true, true}, {70, 256, 8, false, false}, {3, 1000, 32, true, true}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const size_t n = (size_t)cases[c].n, e = (size_t)cases[c].n_expert, u = (size_t)cases[c].n_used;
        uint64_t seed = c + 1;
        float *l = normal(n * e, 3.0f, &seed), *s = normal(e, 1.0f, &seed), *w[3];
        int32_t *ids[3];
        for (size_t i = 0; i < n * e; i += 3) l[i] = rintf(l[i]); /* ties */
        if (n > 4) l[2 * e] = NAN, l[3 * e + 1] = INFINITY;
        if (n > 4)
            for (size_t i = 1; i < e; i++) l[4 * e + i] = -INFINITY;
        for (int b = 0; b < 3; b++) {
            struct kn_backend *be = b ? gpu : cpu;
            float *dl = put(be, l, n * e * 4), *ds = put(be, s, e * 4), *dw = put(be, NULL, n * u * 4);
            int32_t *di = put(be, NULL, n * u * 4);
            const size_t step = b == 2 ? 1 : n;
            for (size_t i = 0; i < n; i += step) {
                struct kn_route a = {.logits = dl + i * e,
                                     .n = (int32_t)step,
                                     .n_expert = (int32_t)e,
                                     .n_used = (int32_t)u,
                                     .renorm = cases[c].renorm,
                                     .scale = cases[c].scaled ? 2.5f : 1.0f,
                                     .expert_scale = cases[c].scaled ? ds : NULL,
                                     .ids = di + i * u,
                                     .weights = dw + i * u};
                must(be, "route", kn_op(be)->route(be, &a));
            }
            w[b] = take(be, dw, n * u * 4);
            ids[b] = take(be, di, n * u * 4);
            drop(be, dl), drop(be, ds);
        }
        double worst = 0; /* the sums' orders: n_expert / 32 + 5 roundings of positive terms each */
        for (size_t i = 0; i < n * u; i++) {
            const double tol = EPS32 * ((double)e / 16 + 20) * fabs(w[0][i]) + 1e-37,
                         d = fabs((double)w[0][i] - w[1][i]);
            if (isnan(w[0][i]) && isnan(w[1][i])) continue;
            worst = d != d ? INFINITY : fmax(worst, d / tol);
        }
        bool same = !memcmp(ids[1], ids[2], n * u * 4);
        for (size_t i = 0; i < n * u; i++)
            same &= !memcmp(w[1] + i, w[2] + i, 4) || (isnan(w[1][i]) && isnan(w[2][i]));
        const bool chosen = !memcmp(ids[0], ids[1], n * u * 4);
        verdict(worst <= 1 && same && chosen, "route %zu rows to %zu of %zu: %.2g of the bound%s%s", n, u, e,
                worst, chosen ? "" : ", other experts", same ? "" : ", other bits row by row");
        for (int b = 0; b < 3; b++) free(w[b]), free(ids[b]);
        free(l), free(s);
    }
}

/* ---- a gate before a product ---- */

struct kn_weight weight_make(struct kn_backend *be, uint32_t type, int64_t n_in, int64_t n_out, void **file)
{
    const size_t row = kn_row_bytes(type, n_in);
    float *x = layer_alloc((size_t)n_in * 4);
    struct kn_weight w;
    *file = layer_alloc(row * (size_t)n_out);
    for (int64_t i = 0; i < n_out; i++) {
        for (int64_t k = 0; k < n_in; k++)
            x[k] = (float)((int32_t)((uint32_t)(i * 7919 + k) * 2654435761u)) * 0x1p-36f;
        if (kn_encode_row(type, x, (char *)*file + row * (size_t)i, n_in, NULL)) exit(1);
    }
    free(x);
    must(be, "weight_load", kn_op(be)->weight_load(be, &w, type, n_in, n_out, *file, KN_USE_LINEAR));
    return w;
}

static void check_gate_linear(void)
{
    static const struct {
        int n_in, n_out, n;
        uint32_t type;
    } cases[] = {{4096, 2048, 1, KN_Q4_K}, {4096, 96, 16, KN_Q6_K}, {2048, 40, 64, KN_Q8_0},
                 {96, 17, 5, KN_Q5_1},     {5120, 64, 70, KN_Q4_K}, {256, 33, 3, KN_BF16}};
    if (!kn_op(gpu)->gate_linear) return;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const size_t w = (size_t)cases[c].n_in, n = (size_t)cases[c].n, size = n * w * 4,
                     out_size = n * (size_t)cases[c].n_out * 4;
        uint64_t seed = c + 1;
        void *file;
        float *x = normal(n * w, 1.0f, &seed), *g = normal(n * w, 2.0f, &seed),
              *old = normal(n * (size_t)cases[c].n_out, 1.0f, &seed), *out[3];
        if (c == 1) x[3] = NAN;
        struct kn_weight m = weight_make(gpu, cases[c].type, cases[c].n_in, cases[c].n_out, &file);
        must(gpu, "reserve", kn_op(gpu)->reserve(gpu, 70, cases[c].n_in, 0, 4, 512));
        for (int how = 0; how < 3; how++) { /* at once, row by row, apart */
            float *dx = put(gpu, x, size), *dg = put(gpu, g, size), *to = put(gpu, old, out_size);
            const size_t step = how == 1 && n <= 64 ? 1 : n; /* a prompt's bits are of its length */
            for (size_t i = 0; how < 2 && i < n; i += step)
                must(gpu, "gate_linear",
                     kn_op(gpu)->gate_linear(gpu, to + i * (size_t)cases[c].n_out, &m, dx + i * w, dg + i * w,
                                             (int32_t)step));
            if (how == 2) {
                must(gpu, "gate", kn_op(gpu)->gate(gpu, dx, dg, (int32_t)n, (int64_t)w, (int64_t)w));
                must(gpu, "linear", kn_op(gpu)->linear(gpu, to, &m, dx, (int32_t)n, true));
            }
            out[how] = get(gpu, to, out_size);
            drop(gpu, dx), drop(gpu, dg), drop(gpu, to);
        }
        const bool rows = !memcmp(out[0], out[1], out_size), apart = !memcmp(out[0], out[2], out_size);
        verdict(rows && apart, "gate_linear %s [%d, %d], %zu rows%s%s", kn_type_info(cases[c].type)->name,
                cases[c].n_out, cases[c].n_in, n, rows ? "" : ", other bits row by row",
                apart ? "" : ", other bits apart");
        kn_op(gpu)->weight_free(gpu, &m);
        free(file), free(x), free(g), free(old), free(out[0]), free(out[1]), free(out[2]);
    }
}

void refused(int rc, int want, const char *word)
{
    verdict(rc == want && strstr(kn_message(gpu), word), "refused: %s", kn_message(gpu));
}

static void check_refusals(void)
{
    float *x = put(gpu, NULL, 4096);
    struct kn_route r = {.n = 1, .n_expert = 4, .n_used = 5};
    refused(kn_op(gpu)->route(gpu, &r), KN_EINVAL, "route");
    refused(kn_op(gpu)->gate(gpu, x, x, 1, 8, 4), KN_EINVAL, "gate");
    refused(kn_op(gpu)->norm_add(gpu, x, x, x, NULL, 0, 8, 1e-6f, 1.0f), KN_EINVAL, "norm_add");
    drop(gpu, x);
}

/* Which forms of the delta nets and of the products around them have run. */
static void check_forms(void)
{
    static const enum cuda_form forms[] = {CUDA_DELTA_ROWS, CUDA_DELTA_BLOCKS, CUDA_DELTA_FEW, CUDA_DELTA_ONE,
                                           CUDA_DELTA_CHUNKS};
    char text[400];
    const bool ok = forms_are(gpu, CUDA_DELTA_ROWS, CUDA_DELTA_BLOCKS, forms, cuda_is_early(gpu) ? 5 : 2,
                              text, sizeof text);
    verdict(ok, "forms: %s", text);
}

int main(int argc, char **argv)
{
    char msg[256];
    bool benching = false;
    struct kn_open c = {.device = "cpu"}, g = {.device = "cuda"};
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--generic")) {
            g.generic = true;
        } else if (!strcmp(argv[i], "--small")) {
            small = true;
        } else if (!strcmp(argv[i], "--bench")) {
            benching = true;
        } else if (!strcmp(argv[i], "--device") && i + 1 < argc) {
            g.device = argv[++i];
        } else {
            fprintf(stderr, "usage: families_gpu [--generic] [--device DEVICE] [--small | --bench]\n");
            return 2;
        }
    }
    if (kn_backend_open(&gpu, &g, msg, sizeof msg) || kn_backend_open(&cpu, &c, msg, sizeof msg)) {
        fprintf(stderr, "families_gpu: %s\n", msg);
        return 5;
    }
    must(gpu, "reserve", kn_op(gpu)->reserve(gpu, 64, 8224, 0, 4, 512));
    if (benching) {
        bench();
    } else if (small) {
        check_delta_linear();
        check_prompt();
        printf("families_gpu: %ld passed, %ld failed\n", passed, failed);
    } else {
        check_norm_add();
        check_norm_join();
        check_norm_pair();
        check_clusters();
        check_queries();
        for (int i = 0; i < 4; i++) {
            check_norm_next(KN_Q4_K, 5376, i % 2, i / 2), check_norm_next(KN_Q6_K, 256, i % 2, i / 2);
            check_norm_next(KN_Q8_0, 2816, i % 2, i / 2), check_norm_next(KN_Q5_1, 8192, i % 2, i / 2);
            check_norm_next(KN_BF16, 5376, i % 2, i / 2), check_norm_next(KN_Q4_0, 8224, i % 2, i / 2);
        }
        check_gate();
        check_values();
        check_route();
        check_delta();
        check_gate_linear();
        check_delta_linear();
        check_prompt();
        check_refusals();
        check_forms();
        check_delta_refusals();
        printf("families_gpu: %ld passed, %ld failed%s\n", passed, failed,
               g.generic ? " (generic kernels)" : "");
    }
    kn_backend_close(gpu);
    kn_backend_close(cpu);
    return failed != 0;
}
