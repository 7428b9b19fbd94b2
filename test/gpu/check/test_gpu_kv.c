/* test_gpu_kv.c - quantised caches on the device: rows stored, and attention over them, against the CPU's
 * (test_gpu.c). */
#include "../forms.h"
#include "test_gpu.h"

/* ---- rows stored ---- */

struct store_case {
    int n, n_head, n_kv, d, first;
    struct kn_kv_types type;
    bool v_norm;
};

static void *stored(struct kn_backend *be, const struct store_case *c, int step, const float *k,
                    const float *v, const float *table, const int32_t *pos, bool values)
{
    const size_t row = (size_t)c->n_kv * (size_t)c->d;
    struct kn_kv kv = {.type = c->type, .cap = 512, .n_head_kv = c->n_kv, .head_dim = c->d};
    const size_t bytes_k = kn_kv_bytes(&kv, c->type.k), bytes_v = kn_kv_bytes(&kv, c->type.v);
    float *dk = put(be, k, (size_t)c->n * row * 4), *dv = put(be, v, (size_t)c->n * row * 4),
          *dt = put(be, table, (size_t)(c->n * c->d) * 4);
    int32_t *dp = put(be, pos, (size_t)c->n * 4);
    kv.k = put(be, NULL, bytes_k), kv.v = put(be, NULL, bytes_v);
    for (int i = 0; i < c->n; i += step) {
        const struct kn_rope_store a = {.k = dk + (size_t)i * row,
                                        .v = dv + (size_t)i * row,
                                        .v_norm = c->v_norm,
                                        .table = dt + (size_t)i * (size_t)c->d,
                                        .pos = dp + i,
                                        .n = c->n - i < step ? c->n - i : step,
                                        .n_rot = c->d,
                                        .eps = 1e-6f,
                                        .kv = &kv};
        must(be, "rope_store", kn_op(be)->rope_store(be, &a));
    }
    void *out = values ? get(be, kv.v, bytes_v) : get(be, kv.k, bytes_k);
    drop(be, dk), drop(be, dv), drop(be, dt), drop(be, dp), drop(be, kv.k), drop(be, kv.v);
    return out;
}

/* The rows' numbers as they come out: the device's differ from the CPU's where a rounding tipped a code over,
 * which is a step of one number in thousands, and nowhere else. */
static void check_stores(void)
{
    static const uint32_t types[] = {KN_Q8_0, KN_Q5_0, KN_Q4_0, KN_TQ3_0};
    static const struct {
        int n, n_kv, d;
    } shapes[] = {{1, 8, 128}, {16, 8, 128}, {33, 2, 256}, {7, 1, 512}, {5, 3, 64}, {9, 2, 96}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int t = 0; t < 4; t++) {
            const int d = shapes[s].d;
            if (d % kn_kv_block(types[t])) continue;
            const struct store_case c = {shapes[s].n, shapes[s].n_kv,       shapes[s].n_kv, d,
                                         500,         {types[t], types[t]}, s % 2 == 1};
            const struct kn_kv kv = {.type = c.type, .cap = 512, .n_head_kv = c.n_kv, .head_dim = d};
            const int row = c.n_kv * d;
            const size_t bytes = kn_kv_bytes(&kv, types[t]), one = kn_kv_row_bytes(&kv, types[t]);
            rnd_state = 100 * s + (unsigned)t;
            float *k = gaussians((size_t)(c.n * row), 2.0f), *v = gaussians((size_t)(c.n * row), 1.0f),
                  *table = gaussians((size_t)(c.n * d), 0.7f), *x = malloc((size_t)row * 4),
                  *y = malloc((size_t)row * 4);
            int32_t *pos = malloc((size_t)c.n * 4);
            for (int i = 0; i < c.n; i++) pos[i] = c.first + i;
            for (int values = 0; values < 2; values++) {
                uint8_t *want = stored(cpu, &c, c.n, k, v, table, pos, values),
                        *got = stored(gpu, &c, c.n, k, v, table, pos, values),
                        *alone = stored(gpu, &c, 1, k, v, table, pos, values);
                double err = 0, all = 0;
                for (int i = 0; i < c.n; i++) {
                    kn_kv_get(&kv, values, want + (size_t)kn_kv_slot(&kv, pos[i]) * one, x);
                    kn_kv_get(&kv, values, got + (size_t)kn_kv_slot(&kv, pos[i]) * one, y);
                    for (int j = 0; j < row; j++) {
                        const double e = (double)x[j] - y[j];
                        err += isnan(e) ? INFINITY : e * e, all += (double)x[j] * x[j];
                    }
                }
                const bool same = !memcmp(got, alone, bytes);
                const double off = sqrt(err / all), tol = types[t] == KN_Q8_0   ? 0.002
                                                          : types[t] == KN_Q5_0 ? 0.01
                                                                                : 0.02;
                verdict(off <= tol && same,
                        "%s stored as %s, %d rows of %d heads of %d: off by %.2g of %.2g%s",
                        values ? "values" : "keys", kn_kv_name(types[t]), c.n, c.n_kv, d, off, tol,
                        same ? "" : ", other bytes row by row");
                free(want), free(got), free(alone);
            }
            free(k), free(v), free(table), free(x), free(y), free(pos);
        }
}

/* ---- attention ---- */

struct kv_case {
    const char *name;
    int n, n_head, n_kv, d, cap, last, window, first; /* last: position of the last row; first: -1 none */
    bool causal;
    int pairs; /* bits: of the types below */
};
static const struct kn_kv_types kv_pairs[] = {
    KV(Q8_0, Q8_0), KV(Q5_0, Q5_0), KV(Q4_0, Q4_0), KV(TQ3_0, TQ3_0), KV(Q8_0, Q4_0), KV(Q4_0, TQ3_0),
    KV(TQ3_0, F16), KV(F16, Q5_0),  KV(Q5_0, Q8_0), KV(BF16, TQ3_0),  KV(Q4_0, F32)};
#define PAIRS (sizeof kv_pairs / sizeof *kv_pairs)
#define ALL_PAIRS 0x7ff
static const struct kv_case kv_cases[] = {
    {"one row, one key", 1, 2, 1, 128, 256, 0, 0, -1, true, 0x00f},
    {"one row", 1, 32, 8, 128, 1024, 700, 0, -1, true, ALL_PAIRS},
    {"one row, one kv head in seven", 1, 14, 7, 128, 512, 300, 0, -1, true, 0x02c},
    {"one row, near nodes end", 1, 32, 8, 128, 4352, 4095, 0, -1, true, 0x00c},
    {"one row, far nodes", 1, 32, 8, 128, 18432, 18000, 0, -1, true, 0x1ff},
    {"16 rows", 16, 32, 8, 128, 1024, 700, 0, -1, true, ALL_PAIRS},
    {"16 rows over the first far node", 16, 8, 2, 128, 6144, 4103, 0, -1, true, 0x1ff},
    {"64 rows", 64, 32, 8, 128, 1024, 800, 0, -1, true, 0x1ff},
    {"23 rows, three heads a kv head", 23, 6, 2, 128, 1024, 700, 0, -1, true, 0x12c},
    {"40 rows, nodes in turn", 40, 32, 8, 128, 4608, 4400, 0, -1, true, 0x1ff},
    {"40 rows, window, nodes in turn", 40, 32, 8, 128, 8192, 8000, 6000, -1, true, 0x02f},
    {"16 rows, far nodes", 16, 32, 8, 128, 18432, 17500, 0, -1, true, 0x13f},
    {"two rows up to an item's first key", 2, 32, 8, 128, 8192, 7168, 0, -1, true, 0x02c},
    {"35 rows, five heads a kv head, far nodes", 35, 10, 2, 128, 9216, 9001, 0, -1, true, 0x01f},
    {"19 rows, far nodes, first bound past a wrap", 19, 12, 3, 128, 8192, 13001, 0, 6500, true, 0x10b},
    {"64 rows of 8 heads, a long window and a wrap", 64, 16, 2, 128, 4096, 9001, 2700, -1, true, 0x00d},
    {"far nodes, a block that all see", 9, 8, 2, 128, 8192, 7999, 0, -1, false, 0x00e},
    {"far nodes, first bound after the first rows", 9, 8, 2, 128, 8192, 7999, 0, 7996, true, 0x009},
    {"heads of 64", 5, 4, 2, 64, 512, 300, 0, -1, true, 0x197},
    {"heads of 64, one row, wrap", 1, 6, 3, 64, 512, 1539, 400, -1, true, 0x117},
    {"heads of 256", 9, 12, 2, 256, 1024, 800, 0, -1, true, 0x1ff},
    {"heads of 256, one row, far", 1, 24, 4, 256, 8192, 8000, 0, -1, true, 0x00f},
    {"heads of 512", 3, 8, 2, 512, 1024, 600, 0, -1, true, 0x1ff},
    {"heads of 512, 20 rows, window and wrap", 20, 4, 1, 512, 1024, 1700, 600, -1, true, 0x02f},
    {"window and wrap", 7, 8, 2, 128, 512, 1539, 400, -1, true, 0x1ff},
    {"a block that all see", 8, 8, 2, 128, 1024, 700, 0, -1, false, 0x02f},
    {"a block with window", 8, 8, 2, 128, 1024, 1031, 100, -1, false, 0x02f},
    {"first bound past a wrap", 8, 8, 2, 128, 1024, 3077, 0, 2500, false, 0x02f},
    {"first bound after the first rows", 6, 8, 2, 128, 2048, 1500, 0, 1498, true, 0x02f},
    {"prompt", 100, 8, 2, 128, 512, 333, 0, -1, true, ALL_PAIRS},
    {"prompt, window and wrap", 100, 4, 2, 128, 512, 1333, 300, -1, true, 0x02f},
    {"prompt of 512", 512, 16, 4, 128, 2048, 2000, 0, -1, true, 0x00f},
    {"prompt, heads of 64", 70, 4, 2, 64, 256, 69, 0, -1, true, 0x197},
    {"prompt, heads of 256", 90, 6, 1, 256, 512, 400, 0, -1, true, 0x1ff},
    {"prompt, heads of 512", 70, 2, 1, 512, 1024, 1300, 600, -1, true, 0x02f},
    {"prompt, a block that all see", 80, 8, 1, 128, 512, 400, 0, -1, false, 0x009},
    {"heads of 96", 9, 6, 3, 96, 512, 300, 0, -1, true, 0x117},
};

struct kv_data {
    float *q;
    int32_t *pos;
    uint8_t *k, *v; /* the ring as it lies */
    double big;     /* of the values' lengths, over the root of their number */
};

static struct kn_kv cache_of(const struct kv_case *c, struct kn_kv_types type)
{
    return (struct kn_kv){.type = type, .cap = c->cap, .n_head_kv = c->n_kv, .head_dim = c->d};
}

static void make_data(const struct kv_case *c, struct kn_kv_types type, struct kv_data *a)
{
    const struct kn_kv kv = cache_of(c, type);
    const size_t rows[2] = {kn_kv_row_bytes(&kv, type.k), kn_kv_row_bytes(&kv, type.v)};
    const int row = c->n_kv * c->d, n = c->last + 1;
    float *x = malloc((size_t)row * 4);
    a->q = gaussians((size_t)(c->n * c->n_head * c->d), 1.5f);
    a->pos = malloc((size_t)c->n * 4);
    a->k = malloc(kn_kv_bytes(&kv, type.k)), a->v = malloc(kn_kv_bytes(&kv, type.v));
    memset(a->k, 0xff, kn_kv_bytes(&kv, type.k)), memset(a->v, 0xff, kn_kv_bytes(&kv, type.v)); /* NaN */
    a->big = 0;
    for (int i = 0; i < c->n; i++) a->pos[i] = c->last - c->n + 1 + i;
    for (int p = n > c->cap ? n - c->cap : 0; p < n; p++)
        for (int values = 0; values < 2; values++) {
            if (p < c->first) continue;
            for (int i = 0; i < row; i++) {
                x[i] = gaussian(1.0f) * (i % c->d == 3 ? 4.0f : 1.0f);
                if (values) a->big = fmax(a->big, fabs((double)x[i]));
            }
            kn_kv_put(&kv, values, x, (values ? a->v : a->k) + (size_t)kn_kv_slot(&kv, p) * rows[values]);
        }
    free(x);
}

static void free_data(struct kv_data *a)
{
    free(a->q), free(a->pos), free(a->k), free(a->v);
}

static float *run_kv(struct kn_backend *be, const struct kv_case *c, struct kn_kv_types type,
                     const struct kv_data *a, int step)
{
    const struct att_case of = {c->name, c->n,      c->n_head, c->n_kv,   c->d, c->cap,
                                c->last, c->window, c->first,  c->causal, type};
    struct kn_kv kv = cache_of(c, type);
    kv.k = a->k, kv.v = a->v;
    return attend_rows(be, &of, &kv, a->q, a->pos, step);
}

/* The form that the case is for: codes to 64 rows, prompts; f32 and bf16 beside codes, and odd heads, the
 * general one. */
static bool right_form(const struct kv_case *c, struct kn_kv_types t, const struct forms *before)
{
    const bool odd = t.k == KN_BF16 || t.v == KN_F32 || c->d == 96;
    const enum cuda_form form = odd ? CUDA_ATTN_ANY : c->n > 64 ? CUDA_ATTN_PREFILL : CUDA_ATTN_CODES;
    const long ran = forms_since(gpu, before, form) +
                     (form == CUDA_ATTN_CODES ? forms_since(gpu, before, CUDA_ATTN_FAR_CODES) : 0);
    return ran > 0 && ran == forms_range(gpu, before, CUDA_ATTN_ANY, CUDA_ATTN_FAR_CODES);
}

static void check_one(const struct kv_case *c, struct kn_kv_types type, uint64_t seed)
{
    static const int steps[] = {1, 5, 17};
    const size_t bytes = (size_t)c->n * (size_t)(c->n_head * c->d) * 4;
    struct kv_data a;
    rnd_state = seed;
    make_data(c, type, &a);
    const struct forms before = forms_now(gpu);
    float *want = run_kv(cpu, c, type, &a, c->n), *got = run_kv(gpu, c, type, &a, c->n);
    const bool taken = right_form(c, type, &before);
    int other = -1;
    double worst = 0;
    for (size_t i = 0; i < bytes / 4; i++) {
        const double e = fabs((double)want[i] - got[i]);
        if (!(e <= worst)) worst = e;
    }
    for (int s = 0; s < 3 && c->n <= 64 && c->causal && other < 0; s++) {
        if (steps[s] >= c->n) continue;
        float *few = run_kv(gpu, c, type, &a, steps[s]);
        if (memcmp(few, got, bytes)) other = steps[s];
        free(few);
    }
    kn_bound(gpu, c->last + 1);
    float *promised = run_kv(gpu, c, type, &a, c->n);
    kn_bound(gpu, 0);
    bool bound = !memcmp(promised, got, bytes);
    bool far_taken = true;
    for (int far = 1; far <= 2 && c->n <= 64 && bound;
         far++) { /* never by attn_far_codes, wherever it can be */
        const bool can = far == 2 && c->d == 128 && c->n > 1 && kn_kv_coded(type.k) && kn_kv_coded(type.v);
        const struct forms then = forms_now(gpu);
        cuda_attention_tuning.far = far;
        kn_bound(gpu, far == 2 ? c->last + 1 : 0);
        float *cut = run_kv(gpu, c, type, &a, c->n);
        bound = !memcmp(cut, got, bytes);
        far_taken &= (forms_since(gpu, &then, CUDA_ATTN_FAR_CODES) > 0) == can;
        free(cut);
    }
    cuda_attention_tuning.far = 0;
    kn_bound(gpu, 0);
    /* Numbers of the cache, queries and weights are a half each: an error of 2^-12.26 of each (rms), of
     * random signs over a head's terms. Queries of 1.5 and keys of 1.11 (rms) make 1.5 x 1.11 x sqrt 2 x
     * 2^-12.26 = 4.8e-4 = 16 x 2^-15 of a score, whatever the head's size: its terms grow by sqrt d, the
     * scale takes that back. Rows of few keys do not average it: two of equal weight pass a quarter of the
     * difference of their errors (sqrt 2 of one) times that of their values (to 1.7 big); at 3.5 sigma 33 x
     * 2^-15 x big. Emulated in double for 70 rows of heads of 64 (150 seeds for each of three pairs):
     * to 24.5, the median 9.6. So no size of head has less than that of 256: 26. */
    const double tol = 0x1p-15 * a.big * (1.5 * sqrt(c->d > 256 ? c->d : 256) + 2);
    char why[64] = "";
    if (other >= 0) snprintf(why, sizeof why, ", other bits in groups of %d rows", other);
    verdict(worst <= tol && other < 0 && bound && taken && far_taken,
            "attention of %s, %s: %s: error %.2g of %.2g%s%s%s%s", kn_kv_name(type.k), kn_kv_name(type.v),
            c->name, worst, tol, why, bound ? "" : ", other bits with a bound, or by another form",
            taken ? "" : ", not by the form that it is for",
            far_taken ? "" : ", not by attn_far_codes where it can be, or where it cannot");
    free(want), free(got), free(promised);
    free_data(&a);
}

/* A NaN in what a row sees shows in that row and in no other. */
static void check_nan(struct kn_kv_types type, int d, int far)
{
    const struct kv_case c = {"", 4, 4, 1, d, 512, 300, 0, -1, true, 0};
    const struct kn_kv kv = cache_of(&c, type);
    struct kv_data a;
    float x[512];
    rnd_state = 77;
    cuda_attention_tuning.far = far;
    make_data(&c, type, &a);
    float *plain = run_kv(gpu, &c, type, &a, 4);
    for (int i = 0; i < d; i++) x[i] = gaussian(1.0f);
    x[5] = NAN;
    a.q[1 * 4 * d] = NAN; /* row 1, head 0 */
    kn_kv_put(&kv, true, x,
              a.v + (size_t)kn_kv_slot(&kv, 299) * kn_kv_row_bytes(&kv, type.v)); /* seen by 2 and 3 */
    float *got = run_kv(gpu, &c, type, &a, 4);
    bool ok = true;
    for (int i = 0; i < 4; i++)
        for (int h = 0; h < 4; h++) {
            const float *y = got + (i * 4 + h) * d;
            bool bad = false;
            for (int j = 0; j < d; j++) bad |= !isfinite(y[j]);
            ok &= bad == (i >= 2 || (i == 1 && h == 0));
            if (!bad) ok &= !memcmp(y, plain + (i * 4 + h) * d, (size_t)d * 4);
        }
    cuda_attention_tuning.far = 0;
    verdict(ok, "attention of %s, %s, heads of %d%s: NaN where it is seen", kn_kv_name(type.k),
            kn_kv_name(type.v), d, far ? ", far" : "");
    free(plain), free(got);
    free_data(&a);
}

void check_kv(void)
{
    check_stores();
    for (size_t i = 0; i < sizeof kv_cases / sizeof *kv_cases; i++)
        for (size_t k = 0; k < PAIRS; k++) {
            const struct kv_case *c = kv_cases + i;
            if (!(c->pairs >> k & 1) || c->d % kn_kv_block(kv_pairs[k].k) ||
                c->d % kn_kv_block(kv_pairs[k].v))
                continue;
            if (small && (c->n > 64 || c->last > 2000)) continue;
            check_one(c, kv_pairs[k], 1000 * i + k);
        }
    for (size_t k = 0; k < PAIRS; k++)
        for (int d = 128; d <= 512; d *= 2) check_nan(kv_pairs[k], d, 0);
    for (int k = 0; k < 4; k++) check_nan(kv_pairs[k], 128, 2);
}
