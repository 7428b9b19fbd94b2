/* trees_gpu.c - operations over the rows of a tree: each row must have the bits that it has as the last row
 * of its path, run as a chain by the same backend; and what becomes of the path that stays.
 *
 * usage: trees_gpu [--generic] [--device DEVICE]   DEVICE cpu runs the checks themselves, without a GPU
 * Prints "ok   gpu/..." or "FAIL gpu/..." a case; exit 1 if any failed, 5 if there is no device. */
#include "../../../kernels/cuda/attention/attention_plan.h"
#include "../../unit/kernels/delta_ref.h"
#include "../forms.h"
#include "../harness.h"

#include "../../../common/run/tree.h"

static struct kn_backend *gpu;

static int32_t draw(int32_t n)
{
    return (int32_t)(rnd() % (uint64_t)n);
}

/* A random tree of n rows whose anchor is at pos. deep: how many in four rows stand behind the one before.
 * most: rows of a path at most. */
struct shape_of {
    int32_t ids[KN_CYCLE_ROWS], parents[KN_CYCLE_ROWS];
};
static void make_tree(struct kn_tree *t, int32_t n, int32_t deep, int32_t most, int32_t pos, int32_t n_ids)
{
    struct shape_of s = {.parents = {-1}};
    int32_t depth[KN_CYCLE_ROWS] = {0};
    for (int32_t r = 0; r < n; r++) {
        s.ids[r] = draw(n_ids);
        if (!r) continue;
        do s.parents[r] = draw(4) < deep ? r - 1 : draw(r);
        while (depth[s.parents[r]] + 1 >= most && (deep = 0, true));
        depth[r] = depth[s.parents[r]] + 1;
    }
    tree_rows(t, s.ids, s.parents, n, pos);
}

/* ---- attention ---- */

static const struct attention_case {
    int n, deep, most, n_head, n_kv, d, cap, base, window;
    uint32_t k, v;
} attention_cases[] = {
    {2, 0, 64, 32, 8, 128, 512, 0, 0, KN_F16, KN_F16},
    {3, 0, 64, 32, 8, 128, 512, 15, 0, KN_F16, KN_F16},
    {4, 2, 64, 24, 4, 256, 512, 64, 0, KN_BF16, KN_BF16},
    {7, 2, 8, 40, 8, 128, 1024, 637, 0, KN_F16, KN_F16},
    {8, 2, 8, 24, 4, 256, 1024, 250, 0, KN_F16, KN_F16},
    {9, 2, 8, 32, 2, 128, 512, 300, 0, KN_BF16, KN_BF16},
    {16, 3, 16, 32, 8, 128, 512, 56, 0, KN_F16, KN_F16},
    {16, 2, 8, 24, 4, 256, 2048, 1985, 0, KN_F16, KN_F16},
    {17, 0, 2, 32, 8, 128, 512, 127, 0, KN_F16, KN_F16},
    {20, 2, 8, 8, 8, 128, 512, 190, 0, KN_F16, KN_F16},
    {24, 3, 24, 16, 4, 256, 2048, 505, 0, KN_BF16, KN_BF16},
    {33, 1, 5, 24, 4, 256, 512, 111, 0, KN_F16, KN_F16},
    {48, 3, 48, 32, 8, 128, 1024, 0, 0, KN_BF16, KN_BF16},
    {64, 3, 64, 32, 8, 128, 1024, 500, 0, KN_F16, KN_F16},
    {64, 0, 3, 32, 8, 128, 2048, 1900, 0, KN_F16, KN_F16},
    {16, 2, 8, 32, 8, 128, 4096, 4032, 0, KN_F16, KN_F16},
    {16, 2, 8, 32, 8, 128, 9216, 20, 0, KN_F16, KN_F16}, /* little of a long ring */
    {8, 2, 8, 32, 8, 128, 9216, 70, 0, KN_BF16, KN_BF16},
    {48, 3, 48, 32, 8, 128, 9216, 640, 0, KN_F16, KN_F16},
    {64, 1, 8, 32, 8, 128, 9216, 4608, 0, KN_F16, KN_F16},
    {16, 2, 8, 24, 4, 256, 6144, 5000, 0, KN_F16, KN_F16},
    {40, 2, 8, 24, 4, 256, 6144, 130, 0, KN_BF16, KN_BF16},
    {5, 2, 64, 32, 8, 128, 512, 63, 0, KN_F16, KN_F16},
    {8, 1, 8, 32, 8, 128, 512, 60, 0, KN_BF16, KN_BF16},
    {16, 2, 16, 32, 8, 128, 2048, 510, 0, KN_F16, KN_F16},
    {16, 2, 8, 16, 8, 128, 2048, 511, 0, KN_F16, KN_F16},
    {16, 2, 8, 64, 8, 128, 2048, 512, 0, KN_BF16, KN_BF16},
    {32, 2, 8, 32, 8, 128, 2048, 1300, 0, KN_F16, KN_F16},
    {64, 1, 8, 32, 8, 128, 2048, 1023, 0, KN_F16, KN_F16},
    {64, 3, 64, 24, 4, 256, 1024, 500, 0, KN_BF16, KN_BF16},
    {31, 2, 8, 24, 4, 256, 1024, 700, 0, KN_F16, KN_F16},
    {16, 2, 16, 16, 8, 256, 1536, 2900, 1024, KN_F16, KN_F16},
    {40, 2, 9, 32, 16, 256, 1536, 1530, 1024, KN_BF16, KN_BF16},
    {16, 2, 16, 32, 4, 512, 1024, 777, 0, KN_F16, KN_F16},
    {63, 2, 8, 16, 1, 512, 512, 31, 0, KN_BF16, KN_BF16},
    {12, 2, 8, 8, 2, 64, 512, 130, 0, KN_F16, KN_F16},
    {33, 1, 8, 20, 1, 64, 512, 400, 100, KN_F16, KN_F16},
    {16, 2, 8, 32, 8, 128, 9216, 9000, 0, KN_F16, KN_F16},
    {64, 2, 8, 64, 8, 128, 9216, 8191, 0, KN_BF16, KN_BF16},
    {9, 2, 8, 4, 2, 80, 512, 300, 0, KN_F16, KN_F16},
    {9, 2, 8, 32, 8, 128, 512, 250, 0, KN_F16, KN_BF16},
    {20, 2, 8, 4, 2, 128, 768, 760, 0, KN_F32, KN_F32},
    {20, 2, 8, 4, 2, 64, 512, 700, 200, KN_F32, KN_F16},
    {16, 2, 8, 32, 8, 128, 2048, 511, 0, KN_Q8_0, KN_Q8_0},
    {16, 2, 8, 32, 8, 128, 2048, 250, 0, KN_Q5_0, KN_TQ3_0},
    {64, 1, 8, 32, 8, 128, 6144, 4090, 0, KN_Q4_0, KN_Q4_0},
    {64, 2, 64, 24, 8, 128, 2048, 1023, 0, KN_TQ3_0, KN_TQ3_0},
    {16, 2, 8, 32, 8, 128, 9216, 9000, 0, KN_Q4_0, KN_F16},
    {31, 2, 8, 24, 4, 256, 1024, 700, 0, KN_Q4_0, KN_Q8_0},
    {16, 2, 16, 16, 8, 256, 1536, 2900, 1024, KN_TQ3_0, KN_Q5_0},
    {16, 2, 16, 32, 4, 512, 1024, 777, 0, KN_Q8_0, KN_Q4_0},
    {33, 1, 8, 20, 1, 64, 512, 400, 100, KN_F16, KN_Q8_0},
    {9, 2, 8, 6, 2, 96, 512, 300, 0, KN_Q4_0, KN_Q5_0},
    {9, 2, 8, 32, 8, 128, 512, 250, 0, KN_Q4_0, KN_BF16},
    {16, 2, 8, 32, 8, 128, 9216, 700, 0, KN_F16, KN_F16}, /* by leaves where positions are promised */
    {31, 3, 31, 24, 4, 256, 9216, 1020, 0, KN_BF16, KN_BF16},
    {16, 2, 16, 32, 4, 512, 9216, 777, 0, KN_F16, KN_F16},
    {31, 2, 8, 32, 2, 512, 16384, 9000, 0, KN_Q4_0, KN_Q4_0}, /* not all at once: 30 rows, then one */
};

/* Rows of a cache like kv. The first so many are drawn, then they come again: long rings took minutes. */
#define DISTINCT 307
static void *random_cache(const struct kn_kv *kv, bool values, size_t rows)
{
    const size_t row = kn_kv_row_bytes(kv, values ? kv->type.v : kv->type.k);
    const int n = kv->n_head_kv * kv->head_dim;
    unsigned char *p = calloc(rows, row);
    float *x = malloc((size_t)n * 4);
    for (size_t r = 0; r < rows; r++) {
        if (r >= DISTINCT) {
            memcpy(p + r * row, p + (r - DISTINCT) * row, row);
            continue;
        }
        for (int i = 0; i < n; i++) x[i] = gaussian(1.0f);
        kn_kv_put(kv, values, x, p + r * row);
    }
    free(x);
    return p;
}

/* What a product makes of the results, told of it before (a->then) or not; gated: by op->gate_linear. */
static float *product_of(const struct kn_attention *a, const struct kn_weight *w, const float *gate,
                         bool told)
{
    enum { N_OUT = 48 };
    const struct kn_ops *op = kn_op(gpu);
    struct kn_attention b = *a;
    float *y = put(gpu, NULL, (size_t)a->n * N_OUT * 4);
    b.then = told ? w : NULL, b.gate = told ? gate : NULL;
    must(gpu, "attention", op->attention(gpu, &b));
    if (gate)
        must(gpu, "gate_linear", op->gate_linear(gpu, y, w, b.out, gate, a->n));
    else
        must(gpu, "linear", op->linear(gpu, y, w, b.out, a->n, false));
    return take(gpu, y, (size_t)a->n * N_OUT * 4);
}
static bool check_product(const struct kn_attention *a)
{
    enum { N_OUT = 48 };
    static const uint32_t types[] = {KN_Q4_K, KN_Q8_0, KN_Q4_1, KN_F16};
    const struct kn_ops *op = kn_op(gpu);
    const int64_t n_in = (int64_t)a->n_head * a->kv->head_dim;
    float *x = gaussians((size_t)n_in, 1.0f), *rows = gaussians((size_t)a->n * (size_t)n_in, 1.0f),
          *gate = put(gpu, rows, (size_t)a->n * (size_t)n_in * 4);
    bool same = true;
    for (int k = 0; k < 4 && n_in % 256 == 0; k++) {
        const size_t row = kn_row_bytes(types[k], n_in);
        char *packed = malloc(N_OUT * row);
        struct kn_weight w = {0};
        for (int i = 0; i < N_OUT; i++) {
            x[i] += 1.0f;
            if (kn_encode_row(types[k], x, packed + (size_t)i * row, n_in, NULL)) die("encode", "weights");
        }
        must(gpu, "weight_load", op->weight_load(gpu, &w, types[k], n_in, N_OUT, packed, KN_USE_LINEAR));
        for (int gated = 0; gated < (op->gate_linear ? 2 : 1); gated++) {
            float *b = product_of(a, &w, gated ? gate : NULL, false),
                  *t = product_of(a, &w, gated ? gate : NULL, true);
            same &= !memcmp(b, t, (size_t)a->n * N_OUT * 4);
            free(b), free(t);
        }
        op->weight_free(gpu, &w);
        free(packed);
    }
    drop(gpu, gate);
    free(x), free(rows);
    return same;
}

/* A row's results; nans: any NaN for any other. */
static bool same_row(const float *a, const float *b, size_t n, bool nans)
{
    for (size_t i = 0; i < n; i++)
        if (memcmp(a + i, b + i, 4) && !(nans && isnan(a[i]) && isnan(b[i]))) return false;
    return true;
}

/* bound: and the last row's value is a NaN, of which no other row may see anything. */
static void check_attention_case(const struct attention_case *c, bool bound, bool sinks)
{
    const struct kn_ops *op = kn_op(gpu);
    struct kn_tree t;
    const size_t row = (size_t)c->n_head * (size_t)c->d;
    struct kn_kv kv = {.type = {c->k, c->v}, .cap = c->cap, .n_head_kv = c->n_kv, .head_dim = c->d};
    struct kn_kv tail = kn_kv_like(&kv, KN_CYCLE_ROWS);
    const size_t bk = kn_kv_row_bytes(&kv, c->k), bv = kn_kv_row_bytes(&kv, c->v);
    unsigned char *hk = random_cache(&kv, false, (size_t)c->cap),
                  *hv = random_cache(&kv, true, (size_t)c->cap),
                  *tk = random_cache(&kv, false, KN_CYCLE_ROWS), *tv = random_cache(&kv, true, KN_CYCLE_ROWS);
    float *q = gaussians(row * (size_t)c->n, 1.0f);
    const bool nan = bound && c->k == c->v && (c->v == KN_F16 || c->v == KN_BF16);
    if (nan) memset(tv + (size_t)(c->n - 1) * bv, 0xff, bv);
    make_tree(&t, c->n, c->deep, c->most, c->base, 9);
    cuda_attention_tuning.far = bound ? 2 : 1; /* attn_far for what all rows see, and not */
    must(gpu, "reserve", op->reserve(gpu, c->n, (int64_t)row, 0, c->n_head, c->d));
    must(gpu, "reserve_kv", op->reserve_kv(gpu, c->n, c->n_head, &kv, c->window));
    kv.k = put(gpu, hk, bk * (size_t)c->cap), kv.v = put(gpu, hv, bv * (size_t)c->cap);
    tail.k = put(gpu, tk, bk * KN_CYCLE_ROWS), tail.v = put(gpu, tv, bv * KN_CYCLE_ROWS);
    float *dq = put(gpu, q, row * (size_t)c->n * 4), *out = put(gpu, NULL, row * (size_t)c->n * 4);
    float *sunk = put(gpu, q, (size_t)c->n_head * 4);
    struct kn_tree *dt = put(gpu, &t, sizeof t);
    struct kn_attention a = {.q = dq,
                             .out = out,
                             .kv = &kv,
                             .pos = dt->pos,
                             .n = c->n,
                             .n_head = c->n_head,
                             .scale = 1 / sqrtf((float)c->d),
                             .causal = true,
                             .window = c->window,
                             .tree = dt,
                             .tail = &tail,
                             .sinks = sinks ? sunk : NULL};
    kn_bound(gpu, bound ? c->base + KN_CYCLE_ROWS : 0);
    must(gpu, "attention", op->attention(gpu, &a));
    float *got = get(gpu, out, row * (size_t)c->n * 4);
    const bool product = bound || check_product(&a);
    int other = 0, first = -1;
    for (int32_t r = 0; r < c->n; r++) { /* its path, as a chain writes it into the ring */
        const int32_t n = t.pos[r] - t.pos[0] + 1;
        for (int32_t i = 0; i < n; i++) {
            const size_t slot = (size_t)kn_kv_slot(&kv, t.pos[0] + i), from = t.path[r][i];
            must(gpu, "upload", op->upload(gpu, (char *)kv.k + slot * bk, tk + from * bk, bk));
            must(gpu, "upload", op->upload(gpu, (char *)kv.v + slot * bv, tv + from * bv, bv));
        }
        struct kn_attention one = a;
        one.q = dq + (size_t)r * row, one.pos = dt->pos + r, one.n = 1, one.tree = NULL, one.tail = NULL;
        must(gpu, "attention", op->attention(gpu, &one));
        float *want = get(gpu, out, row * 4);
        if (!same_row(want, got + (size_t)r * row, row, nan && r == c->n - 1))
            other++, first = first < 0 ? r : first;
        free(want);
        for (int32_t i = 0; i < n; i++) {
            const size_t slot = (size_t)kn_kv_slot(&kv, t.pos[0] + i);
            must(gpu, "upload", op->upload(gpu, (char *)kv.k + slot * bk, hk + slot * bk, bk));
            must(gpu, "upload", op->upload(gpu, (char *)kv.v + slot * bv, hv + slot * bv, bv));
        }
    }
    kn_bound(gpu, 0);
    cuda_attention_tuning.far = 0;
    verdict(
        !other && product,
        "tree attention, %d rows at %d, %d/%d heads of %d, window %d, %s and %s%s%s: %d rows differ%s%d%s",
        c->n, c->base, c->n_head, c->n_kv, c->d, c->window, kn_kv_name(c->k), kn_kv_name(c->v),
        bound ? ", a bound" : "", sinks ? ", sinks" : "", other, other ? ", first " : " of ",
        other ? first : c->n, product ? "" : ", other bits of a product that it was told of");
    drop(gpu, dq), drop(gpu, out), drop(gpu, dt), drop(gpu, sunk);
    drop(gpu, kv.k), drop(gpu, kv.v), drop(gpu, tail.k), drop(gpu, tail.v);
    free(hk), free(hv), free(tk), free(tv), free(q), free(got);
}

/* ---- attention with the norms, the rotation and the writing before it ---- */

/* Rows of a call: of a tree, its own; of a chain, those of a path. */
struct stored {
    struct kn_rope_store s;
    struct kn_attention a;
    void *memory[8];
    int n;
};
static float *rows_up(struct stored *d, const float *x, size_t width, const uint8_t *rows, int32_t n)
{
    float *some = malloc((size_t)n * width * 4);
    for (int32_t i = 0; i < n; i++)
        memcpy(some + (size_t)i * width, x + (rows ? rows[i] : (size_t)i) * width, width * 4);
    float *p = d->memory[d->n++] = put(gpu, some, (size_t)n * width * 4);
    free(some);
    return p;
}
struct raw_rows {
    float *q, *k, *v, *q_norm, *k_norm;
    double *freq;
};
/* n rows from pos[0] on; where: their own positions. What they give, and their keys and values in kv. */
static float *attend_rows(const struct attention_case *c, const struct raw_rows *x, const uint8_t *rows,
                          int32_t n, const int32_t *pos, const int32_t *where, const struct kn_kv *to,
                          const struct kn_kv *kv, const struct kn_tree *tree)
{
    const struct kn_ops *op = kn_op(gpu);
    const size_t wide = (size_t)c->n_head * (size_t)c->d, small = (size_t)c->n_kv * (size_t)c->d;
    struct stored d = {.n = 0};
    float *table = d.memory[d.n++] = put(gpu, NULL, (size_t)n * (size_t)c->d * 4),
          *out = d.memory[d.n++] = put(gpu, NULL, (size_t)n * wide * 4);
    d.s = (struct kn_rope_store){.q = rows_up(&d, x->q, wide, rows, n),
                                 .k = rows_up(&d, x->k, small, rows, n),
                                 .v = rows_up(&d, x->v, small, rows, n),
                                 .q_norm = x->q_norm,
                                 .k_norm = x->k_norm,
                                 .table = table,
                                 .pos = where,
                                 .n = n,
                                 .n_head = c->n_head,
                                 .n_rot = c->d == 256 ? 64 : c->d,
                                 .eps = 1e-6f,
                                 .kv = to};
    d.a = (struct kn_attention){.q = d.s.q,
                                .out = out,
                                .kv = kv,
                                .pos = pos,
                                .n = n,
                                .n_head = c->n_head,
                                .scale = 1 / sqrtf((float)c->d),
                                .causal = true,
                                .window = c->window,
                                .tree = tree,
                                .tail = tree ? to : NULL};
    must(gpu, "rope_table", op->rope_table(gpu, table, pos, NULL, n, x->freq, d.s.n_rot));
    if (op->attend) {
        must(gpu, "attend", op->attend(gpu, &d.s, &d.a));
    } else {
        must(gpu, "rope_store", op->rope_store(gpu, &d.s));
        must(gpu, "attention", op->attention(gpu, &d.a));
    }
    float *got = get(gpu, out, (size_t)n * wide * 4);
    for (int i = 0; i < d.n; i++) drop(gpu, d.memory[i]);
    return got;
}

static void check_attend_case(const struct attention_case *c, bool bound)
{
    const struct kn_ops *op = kn_op(gpu);
    struct kn_tree t;
    const size_t row = (size_t)c->n_head * (size_t)c->d, small = (size_t)c->n_kv * (size_t)c->d,
                 n = (size_t)c->n;
    struct kn_kv kv = {.type = {c->k, c->v}, .cap = c->cap, .n_head_kv = c->n_kv, .head_dim = c->d};
    struct kn_kv tail = kn_kv_like(&kv, KN_CYCLE_ROWS);
    const size_t bk = kn_kv_row_bytes(&kv, c->k), bv = kn_kv_row_bytes(&kv, c->v), cap = (size_t)c->cap;
    unsigned char *hk = random_cache(&kv, false, cap), *hv = random_cache(&kv, true, cap);
    float *gk = gaussians((size_t)c->d, 1.0f), *gq = gaussians((size_t)c->d, 1.0f);
    double freq[256];
    for (int i = 0; i < 256; i++) freq[i] = pow(10000.0, -i / 64.0);
    struct raw_rows x = {.q = gaussians(row * n, 1.0f), .k = gaussians(small * n, 1.0f)};
    x.v = gaussians(small * n, 1.0f);
    x.freq = put(gpu, freq, sizeof freq);
    x.q_norm = put(gpu, gq, (size_t)c->d * 4), x.k_norm = put(gpu, gk, (size_t)c->d * 4);
    make_tree(&t, c->n, c->deep, c->most, c->base, 9);
    must(gpu, "reserve", op->reserve(gpu, c->n, 64, 0, c->n_head, c->d));
    must(gpu, "reserve_kv", op->reserve_kv(gpu, c->n, c->n_head, &kv, c->window));
    kv.k = put(gpu, hk, bk * cap), kv.v = put(gpu, hv, bv * cap);
    tail.k = put(gpu, NULL, bk * KN_CYCLE_ROWS), tail.v = put(gpu, NULL, bv * KN_CYCLE_ROWS);
    struct kn_tree *dt = put(gpu, &t, sizeof t);
    int32_t own[KN_CYCLE_ROWS];
    for (int32_t i = 0; i < KN_CYCLE_ROWS; i++) own[i] = i;
    int32_t *rows = put(gpu, own, sizeof own);
    kn_bound(gpu, bound ? c->base + KN_CYCLE_ROWS : 0);
    float *got = attend_rows(c, &x, NULL, c->n, dt->pos, rows, &tail, &kv, dt);
    unsigned char *tk = get(gpu, tail.k, bk * KN_CYCLE_ROWS), *tv = get(gpu, tail.v, bv * KN_CYCLE_ROWS);
    int other = 0, kept = 0;
    for (int32_t r = 0; r < c->n; r++) {
        const int32_t deep = t.pos[r] - t.pos[0] + 1;
        const size_t slot = (size_t)kn_kv_slot(&kv, t.pos[r]);
        float *want = attend_rows(c, &x, t.path[r], deep, dt->at, dt->at, &kv, &kv, NULL);
        other += memcmp(want + (size_t)(deep - 1) * row, got + (size_t)r * row, row * 4) != 0;
        unsigned char *k = get(gpu, (char *)kv.k + slot * bk, bk),
                      *v = get(gpu, (char *)kv.v + slot * bv, bv);
        kept += memcmp(k, tk + (size_t)r * bk, bk) || memcmp(v, tv + (size_t)r * bv, bv);
        free(want), free(k), free(v);
    }
    kn_bound(gpu, 0);
    verdict(!other && !kept,
            "tree attend, %d rows at %d, %d/%d heads of %d, window %d, %s%s: %d rows differ, %d of the tail",
            c->n, c->base, c->n_head, c->n_kv, c->d, c->window, kn_kv_name(c->k), bound ? ", a bound" : "",
            other, kept);
    void *all[] = {x.freq, x.q_norm, x.k_norm, kv.k, kv.v, tail.k, tail.v, dt, rows};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) drop(gpu, all[i]);
    free(hk), free(hv), free(gk), free(gq), free(x.q), free(x.k), free(x.v), free(got), free(tk), free(tv);
}

/* ---- delta nets ---- */

struct net {
    struct kn_delta a;
    struct kn_delta_state s;
    int32_t *pending;
    size_t n_s, n_conv, n_log;
    void *memory[16];
    int n;
};
static void *keep(struct net *d, const void *host, size_t bytes)
{
    return d->memory[d->n++] = put(gpu, host, bytes);
}
/* Rows of l, in the order of rows [n]; a state of other rows, of which `pending` wait in the log. */
static void net_up(struct net *d, const struct layer *l, const uint8_t *rows, int32_t n, const float *s,
                   const float *conv, const float *log, int32_t pending)
{
    const size_t v = (size_t)l->s.n_v, stride = l->width + 2 * v;
    float *qkv = malloc((size_t)n * l->width * 4), *ab = malloc((size_t)n * v * 8),
          *z = malloc((size_t)n * l->size * 4);
    for (int32_t i = 0; i < n; i++) {
        const size_t r = rows ? rows[i] : (size_t)i, at = (size_t)i;
        memcpy(qkv + at * l->width, l->qkv + r * l->width, l->width * 4);
        memcpy(ab + at * v, l->alpha + r * v, v * 4);
        memcpy(ab + ((size_t)n + at) * v, l->beta + r * v, v * 4);
        memcpy(z + at * l->size, l->z + r * l->size, l->size * 4);
    }
    memset(d, 0, sizeof *d);
    d->n_s = l->size * (size_t)l->s.d_k * 4, d->n_conv = (size_t)(l->s.n_conv - 1) * l->width * 4,
    d->n_log = KN_DELTA_LOG * stride * 4;
    d->s = (struct kn_delta_state){keep(d, s, d->n_s), keep(d, conv, d->n_conv), keep(d, log, d->n_log)};
    d->pending = keep(d, &pending, sizeof pending);
    float *dab = keep(d, ab, (size_t)n * v * 8);
    d->a = (struct kn_delta){.qkv = keep(d, qkv, (size_t)n * l->width * 4),
                             .alpha = dab,
                             .beta = dab + (size_t)n * v,
                             .z = keep(d, z, (size_t)n * l->size * 4),
                             .conv = keep(d, l->conv, l->width * (size_t)l->s.n_conv * 4),
                             .a = keep(d, l->a, v * 4),
                             .dt = keep(d, l->dt, v * 4),
                             .norm = keep(d, l->norm, (size_t)l->s.d_v * 4),
                             .eps = 1e-6f,
                             .out = keep(d, NULL, (size_t)n * l->size * 4),
                             .n = n,
                             .n_k = l->s.n_k,
                             .n_v = l->s.n_v,
                             .d_k = l->s.d_k,
                             .d_v = l->s.d_v,
                             .n_conv = l->s.n_conv,
                             .state = &d->s,
                             .pending = d->pending};
    free(qkv), free(ab), free(z);
}
static void net_down(struct net *d)
{
    for (int i = 0; i < d->n; i++) drop(gpu, d->memory[i]);
}

/* What the path of `keep_row` leaves, committed: the state and what the convolution keeps. */
static void *net_state(struct net *d)
{
    const struct kn_ops *op = kn_op(gpu);
    struct kn_delta a = d->a;
    a.n = 0, a.commit = true, a.tree = NULL;
    must(gpu, "delta", op->delta(gpu, &a));
    char *both = malloc(d->n_s + d->n_conv), *s = get(gpu, d->s.s, d->n_s),
         *conv = d->n_conv ? get(gpu, d->s.conv, d->n_conv) : NULL;
    memcpy(both, s, d->n_s);
    if (conv) memcpy(both + d->n_s, conv, d->n_conv);
    free(s), free(conv);
    return both;
}

static void check_delta_case(const struct shape *shape, int32_t n, int32_t deep, int32_t most,
                             int32_t pending)
{
    const struct kn_ops *op = kn_op(gpu);
    struct layer l = layer_make(shape, n, 7 + (uint64_t)n);
    const size_t v = (size_t)shape->n_v, stride = l.width + 2 * v;
    float *s = gaussians(l.size * (size_t)shape->d_k, 0.1f),
          *conv = gaussians((size_t)(shape->n_conv - 1) * l.width + 1, 1.0f),
          *log = gaussians(KN_DELTA_LOG * stride, 1.0f);
    struct kn_tree t;
    struct net tree, chain;
    make_tree(&t, n, deep, most, 100, 9);
    struct kn_tree *dt = put(gpu, &t, sizeof t);
    net_up(&tree, &l, NULL, n, s, conv, log, pending);
    if (op->reserve_delta) must(gpu, "reserve_delta", op->reserve_delta(gpu, &tree.a));
    must(gpu, "reserve", op->reserve(gpu, n, 64, 0, 1, 16));
    tree.a.tree = dt;
    must(gpu, "delta", op->delta(gpu, &tree.a));
    float *got = get(gpu, tree.a.out, (size_t)n * l.size * 4);
    int other = 0;
    const int32_t keep_row = draw(n), kept = t.pos[keep_row] - t.pos[0] + 1;
    bool state = true;
    for (int32_t r = 0; r < n; r++) {
        const int32_t rows = t.pos[r] - t.pos[0] + 1;
        net_up(&chain, &l, t.path[r], rows, s, conv, log, pending);
        must(gpu, "delta", op->delta(gpu, &chain.a));
        float *want = get(gpu, chain.a.out, (size_t)rows * l.size * 4);
        other += memcmp(want + (size_t)(rows - 1) * l.size, got + (size_t)r * l.size, l.size * 4) != 0;
        free(want);
        if (r == keep_row) { /* and what is left behind it */
            for (int32_t i = 0; i < KN_CYCLE_ROWS; i++) t.stays[i] = i < kept ? t.path[r][i] : 0;
            must(gpu, "upload", op->upload(gpu, dt, &t, sizeof t));
            const struct kn_settle y = {.tree = dt,
                                        .kept = tree.pending,
                                        .most = KN_CYCLE_ROWS,
                                        .log = tree.s.log,
                                        .width = (int64_t)stride};
            must(gpu, "upload", op->upload(gpu, tree.pending, &kept, sizeof kept));
            must(gpu, "upload", op->upload(gpu, chain.pending, &kept, sizeof kept));
            must(gpu, "settle", op->settle(gpu, &y));
            void *a = net_state(&tree), *b = net_state(&chain);
            state = !memcmp(a, b, tree.n_s + tree.n_conv);
            free(a), free(b);
        }
        net_down(&chain);
    }
    verdict(!other && state,
            "tree delta %d, %d heads of %d, %d, taps %d, %d rows, %d pending: %d rows differ%s", shape->n_k,
            shape->n_v, shape->d_k, shape->d_v, shape->n_conv, n, pending, other,
            state ? "" : ", and the state behind a path");
    net_down(&tree);
    drop(gpu, dt);
    free(s), free(conv), free(log), free(got);
    layer_free(&l);
}

static void check_delta_trees(void)
{
    static const struct shape shapes[] = {{2, 4, 128, 128, 4}, {16, 48, 128, 128, 4}, {2, 6, 32, 32, 4},
                                          {1, 2, 256, 256, 4}, {4, 8, 64, 33, 5},     {3, 3, 32, 48, 1},
                                          {3, 3, 20, 28, 3},   {1, 3, 255, 13, 16}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int k = 0; k < 3; k++)
            check_delta_case(&shapes[i],
                             k == 0   ? 5
                             : k == 1 ? 16
                                      : 64,
                             k == 2 ? 3 : 1, k == 1 ? 8 : 64, k * 3);
}

/* ---- what stays ---- */

static void check_stays(int32_t n, int32_t deep, int32_t most, uint32_t type, bool ends)
{
    enum { CAP = 512, HEADS = 3, D = 48, WIDTH = 301 };
    const struct kn_ops *op = kn_op(gpu);
    struct kn_tree t;
    struct kn_kv kv = {
        .type = {type, type == KN_F32 ? KN_F16 : type}, .cap = CAP, .n_head_kv = HEADS, .head_dim = D};
    struct kn_kv tail = kn_kv_like(&kv, KN_CYCLE_ROWS);
    const size_t bk = kn_kv_row_bytes(&kv, kv.type.k), bv = kn_kv_row_bytes(&kv, kv.type.v);
    const int32_t base = ends ? CAP - 2 : 200;
    int32_t picks[KN_CYCLE_ROWS], pos[KN_CYCLE_ROWS], row = draw(n), anchor = -5, first = 0, kept = 0;
    uint32_t number = 6;
    make_tree(&t, n, deep, most, base, 1000);
    for (int32_t r = 0; r < KN_CYCLE_ROWS; r++) picks[r] = 5000 + r, pos[r] = base + r;
    for (int32_t r = row; r; r = t.parent[r])
        picks[t.parent[r]] = t.ids[r]; /* the way to row, and no further */
    const int32_t want = t.pos[row] - base + 1;
    unsigned char *hk = random_cache(&kv, false, CAP), *hv = random_cache(&kv, true, CAP),
                  *tk = random_cache(&kv, false, KN_CYCLE_ROWS), *tv = random_cache(&kv, true, KN_CYCLE_ROWS);
    float *x = gaussians(KN_CYCLE_ROWS * WIDTH, 1.0f);
    kv.k = put(gpu, hk, bk * CAP), kv.v = put(gpu, hv, bv * CAP);
    tail.k = put(gpu, tk, bk * KN_CYCLE_ROWS), tail.v = put(gpu, tv, bv * KN_CYCLE_ROWS);
    struct kn_tree *dt = put(gpu, &t, sizeof t);
    float *dx = put(gpu, x, KN_CYCLE_ROWS * WIDTH * 4), *dy = put(gpu, NULL, KN_CYCLE_ROWS * WIDTH * 4),
          *log = put(gpu, x, KN_CYCLE_ROWS * WIDTH * 4);
    int32_t *dpicks = put(gpu, picks, sizeof picks), *dpos = put(gpu, pos, sizeof pos),
            *dids = put(gpu, pos, sizeof pos), *history = put(gpu, NULL, 4096), *dkept = put(gpu, &kept, 4),
            *danchor = put(gpu, &anchor, 4), *dfirst = put(gpu, &first, 4);
    uint32_t *dnumber = put(gpu, &number, 4);
    uint64_t *stamp = put(gpu, NULL, KN_STAMPS * 8);
    struct kn_result *results = op->alloc_shared(gpu, 4 * sizeof *results);
    const struct kn_settle
        logs = {.tree = dt, .kept = dkept, .most = KN_CYCLE_ROWS, .log = log, .width = WIDTH},
        both = {.tree = dt, .kept = dkept, .most = KN_CYCLE_ROWS, .kv = &kv, .tail = &tail, .next = &logs};
    must(gpu, "follow", op->follow(gpu, &(struct kn_follow){dt, dpicks, n, dkept}));
    must(gpu, "settle", op->settle(gpu, &both));
    must(gpu, "gather", op->gather(gpu, dy, dx, dt->stays, n, WIDTH));
    const struct kn_accept accept = {.ids = dids,
                                     .picks = dpicks,
                                     .n = n,
                                     .pos = dpos,
                                     .history = history,
                                     .anchor = danchor,
                                     .first = dfirst,
                                     .window = 50,
                                     .kept = dkept,
                                     .number = dnumber,
                                     .stamp = stamp,
                                     .results = results,
                                     .n_results = 4,
                                     .tree = dt};
    must(gpu, "accept", op->accept(gpu, &accept));
    must(gpu, "await", op->await(gpu, &results[2].number, 7));
    const struct kn_result *r = &results[2];
    bool ok = r->kept == want && r->pos == base && r->usable;
    for (int32_t i = 0; i < want; i++) {
        const int32_t at = t.path[row][i];
        ok &= r->rows[i] == at && r->ids[i] == t.ids[at] && r->picks[i] == picks[at];
    }
    int32_t *h = get(gpu, history, 4096), *p = get(gpu, dpos, sizeof pos), *a = get(gpu, danchor, 4),
            *i0 = get(gpu, dids, 4), *f = get(gpu, dfirst, 4);
    for (int32_t i = 0; i < want; i++) ok &= h[base + 1 + i] == picks[t.path[row][i]];
    ok &=
        p[0] == base + want && p[63] == base + 63 + want && *a == picks[row] && *i0 == *a && *f == p[0] - 50;
    unsigned char *gk = get(gpu, kv.k, bk * CAP), *gv = get(gpu, kv.v, bv * CAP);
    bool moved = true;
    for (int32_t i = 0; i < want; i++) {
        const size_t slot = (size_t)kn_kv_slot(&kv, base + i), from = t.path[row][i];
        memcpy(hk + slot * bk, tk + from * bk, bk);
        memcpy(hv + slot * bv, tv + from * bv, bv);
    }
    moved = !memcmp(gk, hk, bk * CAP) && !memcmp(gv, hv, bv * CAP); /* and nothing else */
    float *y = get(gpu, dy, KN_CYCLE_ROWS * WIDTH * 4), *lg = get(gpu, log, KN_CYCLE_ROWS * WIDTH * 4);
    for (int32_t i = 0; i < n; i++) {
        const size_t from = i < want ? t.path[row][i] : 0;
        moved &= !memcmp(y + (size_t)i * WIDTH, x + from * WIDTH, WIDTH * 4);
        if (i < want) moved &= !memcmp(lg + (size_t)i * WIDTH, x + from * WIDTH, WIDTH * 4);
    }
    verdict(ok && moved, "tree of %d rows, %d stay, %s%s%s%s", n, want, kn_type_info(type)->name,
            ends ? ", over the ring's end" : "", ok ? "" : ": another result",
            moved ? "" : ": other rows moved");
    op->free_shared(gpu, results);
    void *all[] = {kv.k, kv.v, tail.k,  tail.v, dt,      dx,     dy,      log,  dpicks,
                   dpos, dids, history, dkept,  danchor, dfirst, dnumber, stamp};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) drop(gpu, all[i]);
    free(hk), free(hv), free(tk), free(tv), free(x), free(h), free(p), free(a), free(i0), free(f), free(gk),
        free(gv), free(y), free(lg);
}

/* ---- picks: the history of a row is its path's ---- */

static void check_picks(int32_t n, int32_t base, int32_t last)
{
    enum { VOCAB = 40, PAST = 400 };
    const struct kn_ops *op = kn_op(gpu);
    struct kn_tree t;
    int32_t history[PAST], got[KN_CYCLE_ROWS], differ = 0, moved = 0;
    make_tree(&t, n, 2, 12, base, 40);
    for (int i = 0; i < PAST; i++) history[i] = draw(40);
    float *x = gaussians((size_t)n * VOCAB, 1.0f);
    float *dx = put(gpu, x, (size_t)n * VOCAB * 4);
    struct kn_tree *dt = put(gpu, &t, sizeof t);
    int32_t *dh = put(gpu, history, sizeof history), *out = put(gpu, NULL, sizeof got);
    struct kn_pick p = {.logits = dx,
                        .pos = dt->pos,
                        .history = dh,
                        .n = n,
                        .n_vocab = VOCAB,
                        .sampler = {.temp = 0.7f,
                                    .top_p = 0.95f,
                                    .repeat_penalty = 1.3f,
                                    .repeat_last = last,
                                    .seed = 4,
                                    .presence = 0.5f,
                                    .frequency = 0.7f},
                        .out = out,
                        .tree = dt};
    must(gpu, "reserve", op->reserve(gpu, n, 64, VOCAB, 1, 16));
    must(gpu, "pick", op->pick(gpu, &p));
    int32_t *all = get(gpu, out, sizeof got);
    for (int32_t r = 0; r < n; r++) {
        int32_t past[PAST], one, plain;
        memcpy(past, history, sizeof past);
        for (int32_t i = 0; i <= t.pos[r] - base; i++) past[base + i] = t.ids[t.path[r][i]];
        struct kn_pick alone = p;
        alone.logits = dx + (size_t)r * VOCAB, alone.pos = dt->pos + r, alone.n = 1, alone.tree = NULL;
        must(gpu, "pick", op->pick(gpu, &alone)); /* of another history */
        must(gpu, "download", op->download(gpu, &plain, out, 4));
        must(gpu, "upload", op->upload(gpu, dh, past, sizeof past));
        must(gpu, "pick", op->pick(gpu, &alone));
        must(gpu, "download", op->download(gpu, &one, out, 4));
        must(gpu, "upload", op->upload(gpu, dh, history, sizeof history));
        differ += one != all[r], moved += one != plain;
    }
    verdict(!differ && moved, "tree picks, %d rows at %d, the last %d tokens: %d differ, %d by their path", n,
            base, last, differ, moved);
    drop(gpu, dx), drop(gpu, dt), drop(gpu, dh), drop(gpu, out);
    free(x), free(all);
}

int main(int argc, char **argv)
{
    struct kn_open o = {.device = "cuda", .threads = 2};
    char msg[256];
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--generic")) o.generic = true;
        if (!strcmp(argv[i], "--device") && i + 1 < argc) o.device = argv[++i];
    }
    if (kn_backend_open(&gpu, &o, msg, sizeof msg)) {
        fprintf(stderr, "trees_gpu: %s\n", msg);
        return 5;
    }
    rnd_state = 11;
    const bool cuda = !strcmp(o.device, "cuda");
    struct forms before = {{0}};
    if (cuda) before = forms_now(gpu);
    for (size_t i = 0; i < sizeof attention_cases / sizeof *attention_cases; i++)
        for (int k = 0; k < 4; k++) check_attention_case(&attention_cases[i], k % 2, k / 2);
    for (size_t i = 0; i < sizeof attention_cases / sizeof *attention_cases; i++) {
        const struct attention_case *c = &attention_cases[i];
        if (c->k != c->v || (c->k != KN_F16 && c->k != KN_BF16)) continue;
        for (int bound = 0; bound < 2; bound++) check_attend_case(c, bound);
    }
    if (cuda) { /* where blocks may wait for each other, in one launch where that can be */
        const bool paths = forms_since(gpu, &before, CUDA_ATTN_PATHS) > 0,
                   tree = forms_since(gpu, &before, CUDA_ATTN_TREE) > 0;
        verdict(paths == cuda_is_early(gpu) && tree, "tree attention: in one launch %d, in two %d", paths,
                tree);
    }
    check_delta_trees();
    for (int i = 0; i < 12; i++)
        check_stays(i == 0 ? 1 : 2 + draw(63), i % 4, i % 2 ? 8 : 64,
                    i % 3 == 0   ? KN_F16
                    : i % 3 == 1 ? KN_BF16
                                 : KN_F32,
                    i % 2);
    check_picks(16, 100, 20), check_picks(64, 300, 150), check_picks(40, 3, 64);
    kn_backend_close(gpu);
    printf("%ld passed, %ld failed\n", passed, failed);
    return failed ? 1 : 0;
}
