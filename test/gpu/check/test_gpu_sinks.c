/* test_gpu_sinks.c - attention with sinks, as drafters have them, against a reference in double written here
 * (test_gpu.c): a key more a head, of a score of its own and the value zero. */
#include "test_gpu.h"
#include "../forms.h"

static const struct att_case sink_cases[] = {
    {"one row, one key", 1, 2, 1, 64, 256, 0, 0, -1, true, KV(F16, F16)},
    {"a block in one leaf", 16, 32, 8, 128, 512, 40, 0, -1, false, KV(F16, F16)},
    {"a block in one node", 16, 32, 8, 128, 512, 300, 0, -1, false, KV(BF16, BF16)},
    {"a block that all see", 16, 32, 8, 128, 1024, 700, 0, -1, false, KV(F16, F16)},
    {"a causal block", 16, 32, 8, 128, 1024, 1023, 0, -1, true, KV(F16, F16)},
    {"7 rows, a window and a wrap", 7, 16, 4, 128, 512, 1539, 300, -1, true, KV(F16, F16)},
    {"a block, a window below it", 16, 8, 4, 64, 256, 300, 5, -1, false, KV(F16, F16)},
    {"first bound after the first rows", 6, 4, 1, 64, 2048, 1500, 0, 1498, true, KV(F16, F16)},
    {"one row, long", 1, 32, 8, 128, 18432, 18000, 0, -1, true, KV(F16, F16)},
    {"16 rows, long", 16, 8, 1, 128, 9216, 9000, 0, -1, true, KV(BF16, BF16)},
    {"64 rows", 64, 32, 8, 128, 1024, 800, 0, -1, true, KV(F16, F16)},
    {"three heads a kv head, rows over tiles", 23, 6, 2, 128, 1024, 700, 0, -1, true, KV(F16, F16)},
    {"head 256", 9, 12, 4, 256, 1024, 900, 0, -1, true, KV(F16, F16)},
    {"head 512", 5, 8, 2, 512, 1024, 600, 0, -1, true, KV(F16, F16)},
    {"head 80", 4, 4, 4, 80, 4096, 2500, 0, -1, true, KV(F16, F16)},
    {"f32", 16, 8, 2, 64, 512, 513, 200, -1, true, KV(F32, F32)},
    {"keys f16, values bf16", 5, 16, 4, 128, 1024, 900, 0, -1, true, KV(F16, BF16)},
    {"100 rows", 100, 8, 2, 128, 512, 400, 0, -1, true, KV(F16, F16)},
    {"a block that all see", 16, 32, 8, 128, 1024, 700, 0, -1, false, KV(Q8_0, Q8_0)},
    {"23 rows, three heads a kv head", 23, 6, 2, 128, 1024, 700, 0, -1, true, KV(Q4_0, F16)},
    {"7 rows, a window and a wrap", 7, 16, 4, 128, 512, 1539, 300, -1, true, KV(TQ3_0, Q5_0)},
    {"one row, long", 1, 32, 8, 128, 18432, 18000, 0, -1, true, KV(Q8_0, Q4_0)},
    {"head 256", 9, 12, 4, 256, 1024, 900, 0, -1, true, KV(Q8_0, Q8_0)},
    {"beside bf16", 9, 8, 2, 128, 512, 300, 0, -1, true, KV(BF16, TQ3_0)},
};

struct sink_data {
    struct kn_kv kv; /* of the host */
    float *q, *sinks;
    int32_t *pos;
    float *k, *v;     /* [last + 1, n_kv, d] as the cache has them */
    double size, big; /* of the scores' terms; of the values */
};

static struct sink_data sink_make(const struct att_case *c)
{
    struct sink_data a = {.kv = {.type = c->type, .cap = c->cap, .n_head_kv = c->n_kv, .head_dim = c->d}};
    const int row = c->n_kv * c->d, n = c->last + 1;
    unsigned char *cache[2];
    float *x = malloc((size_t)row * 4), *all[2];
    for (int values = 0; values < 2; values++) {
        const uint32_t type = values ? c->type.v : c->type.k;
        const size_t bytes = kn_kv_bytes(&a.kv, type), one = kn_kv_row_bytes(&a.kv, type);
        cache[values] = malloc(bytes), all[values] = calloc((size_t)n * (size_t)row, 4);
        memset(cache[values], 0xff, bytes); /* what nobody may see is NaN */
        for (int p = n > c->cap ? n - c->cap : 0; p < n; p++) {
            if (p < c->first) continue;
            unsigned char *at = cache[values] + (size_t)kn_kv_slot(&a.kv, p) * one;
            for (int i = 0; i < row; i++) x[i] = gaussian(1.0f);
            kn_kv_put(&a.kv, values, x, at);
            kn_kv_get(&a.kv, values, at, all[values] + (size_t)p * (size_t)row);
        }
    }
    free(x);
    a.kv.k = cache[0], a.kv.v = cache[1], a.k = all[0], a.v = all[1];
    a.q = gaussians((size_t)c->n * (size_t)c->n_head * (size_t)c->d, 1.5f);
    a.sinks = gaussians((size_t)c->n_head, 3.0f);
    a.sinks[0] = 40; /* more than any score: what is left is nearly nothing */
    a.pos = malloc((size_t)c->n * 4);
    for (int i = 0; i < c->n; i++) a.pos[i] = c->last - c->n + 1 + i;
    for (size_t i = 0; i < (size_t)n * (size_t)row; i++) a.big = fmax(a.big, fabs((double)a.v[i]));
    a.size = 1.5 * sqrt(c->d);
    return a;
}
static void sink_free(struct sink_data *a)
{
    free(a->q), free(a->sinks), free(a->pos), free(a->k), free(a->v), free(a->kv.k), free(a->kv.v);
}

/* All rows, step of them a call. */
static float *sink_run(const struct att_case *c, const struct sink_data *a, const float *sinks, int step)
{
    const size_t bytes = (size_t)c->n * (size_t)c->n_head * (size_t)c->d * 4;
    struct kn_kv kv = a->kv;
    kv.k = put(gpu, a->kv.k, kn_kv_bytes(&kv, kv.type.k)),
    kv.v = put(gpu, a->kv.v, kn_kv_bytes(&kv, kv.type.v));
    float *q = put(gpu, a->q, bytes), *out = put(gpu, a->q, bytes),
          *s = put(gpu, sinks, (size_t)c->n_head * 4);
    int32_t *pos = put(gpu, a->pos, (size_t)c->n * 4), *first = put(gpu, &c->first, 4);
    must(gpu, "reserve", kn_op(gpu)->reserve(gpu, c->n, 0, 8, c->n_head, c->d));
    must(gpu, "reserve_kv", kn_op(gpu)->reserve_kv(gpu, c->n, c->n_head, &kv, c->window));
    for (int i = 0; i < c->n; i += step) {
        struct kn_attention t = att_call(c, &kv, q, pos, first, i, step, out);
        t.sinks = sinks ? s : NULL;
        must(gpu, c->name, kn_op(gpu)->attention(gpu, &t));
    }
    float *host = get(gpu, out, bytes);
    drop(gpu, kv.k), drop(gpu, kv.v), drop(gpu, q), drop(gpu, out), drop(gpu, s), drop(gpu, pos);
    drop(gpu, first);
    return host;
}

/* The largest difference from the softmax in double; infinity where one is no number. */
static double sink_error(const struct att_case *c, const struct sink_data *a, const float *got)
{
    const int row = c->n_kv * c->d, n = c->last + 1;
    double *w = malloc((size_t)n * sizeof *w), worst = 0;
    for (int i = 0; i < c->n; i++)
        for (int h = 0; h < c->n_head; h++) {
            const size_t at = ((size_t)i * (size_t)c->n_head + (size_t)h) * (size_t)c->d,
                         head = (size_t)(h / (c->n_head / c->n_kv) * c->d);
            double top = (double)a->sinks[h];
            bool none = true;
            for (int p = 0; p < n; p++) {
                if (!att_sees(c, a->pos[i], p)) continue;
                w[p] = 0, none = false;
                for (int d = 0; d < c->d; d++)
                    w[p] += (double)a->q[at + (size_t)d] * (double)a->k[(size_t)(p * row + d) + head];
                w[p] *= (double)(float)(1.0 / sqrt(c->d));
                top = fmax(top, w[p]);
            }
            double sum = exp((double)a->sinks[h] - top);
            for (int p = 0; p < n; p++)
                if (att_sees(c, a->pos[i], p)) sum += w[p] = exp(w[p] - top);
            for (int d = 0; d < c->d; d++) {
                double y = 0;
                for (int p = 0; p < n; p++)
                    if (att_sees(c, a->pos[i], p)) y += w[p] * (double)a->v[(size_t)(p * row + d) + head];
                const double e = fabs((double)got[at + (size_t)d] - (none ? 0 : y / sum));
                if (!(e <= worst)) worst = isnan(e) ? INFINITY : e;
            }
        }
    free(w);
    return worst;
}

/* Beside a quantised cache a number of it is a half, in the general form too, as test_gpu_kv.c has it; else
 * two halves, or floats, as test_gpu_attention.c: the sink adds the rounding of its own score, which is less.
 */
static double sink_bound(const struct att_case *c, const struct sink_data *a)
{
    const bool bf16 = c->type.k == KN_BF16 && c->type.v == KN_BF16;
    return kn_kv_coded(c->type.k) || kn_kv_coded(c->type.v)
               ? 0x1p-15 * a->big * (1.5 * sqrt(c->d > 256 ? c->d : 256) + 2)
               : (bf16 ? 0x1p-20 : 0x1p-21) * a->big * (a->size + 2);
}

/* Other ways to cut the work, and other groups of rows: -1, or the first that gives other bits. */
static int sink_other(const struct att_case *c, const struct sink_data *a, const float *got)
{
    static const struct cuda_attention_tuning others[] = {{},
                                                          {.unit = 1},
                                                          {.unit = 2},
                                                          {.unit = 1, .per = 3},
                                                          {.unit = 1, .tiles = 1, .slots = 2},
                                                          {.unit = 2, .tiles = 1, .spread = 60},
                                                          {.unit = 1, .tiles = 2},
                                                          {.unit = 2, .tiles = 4},
                                                          {.places = 2, .near = 2, .alone = 2}};
    static const int steps[] = {1, 5, 17, 64};
    const size_t bytes = (size_t)c->n * (size_t)c->n_head * (size_t)c->d * 4;
    int other = -1;
    for (int i = 0; i < (int)(sizeof others / sizeof *others) && other < 0; i++) {
        cuda_attention_tuning = others[i];
        kn_bound(gpu, i % 2 ? 0 : c->last + 1);
        float *x = sink_run(c, a, a->sinks, c->n);
        if (memcmp(x, got, bytes)) other = i;
        free(x);
    }
    memset(&cuda_attention_tuning, 0, sizeof cuda_attention_tuning);
    kn_bound(gpu, 0);
    for (int s = 0; s < 4 && c->causal && other < 0; s++) {
        if (steps[s] >= c->n) continue;
        float *x = sink_run(c, a, a->sinks, steps[s]);
        if (memcmp(x, got, bytes)) other = 100 + steps[s];
        free(x);
    }
    return other;
}

void check_sinks(void)
{
    verdict(kn_op(gpu)->sinks && kn_op(cpu)->sinks, "both backends take sinks");
    for (size_t k = 0; k < sizeof sink_cases / sizeof *sink_cases; k++) {
        const struct att_case *c = &sink_cases[k];
        if (small && (c->n > 64 || c->last > 2000)) continue;
        rnd_state = 40 + k;
        struct sink_data a = sink_make(c);
        const struct forms before = forms_now(gpu);
        float *got = sink_run(c, &a, a.sinks, c->n);
        const bool codes = forms_since(gpu, &before, CUDA_ATTN_CODES) > 0,
                   any = forms_since(gpu, &before, CUDA_ATTN_ANY) > 0,
                   step = forms_since(gpu, &before, CUDA_ATTN_STEP) > 0;
        const double worst = sink_error(c, &a, got), tol = sink_bound(c, &a);
        const int other = sink_other(c, &a, got);
        /* A sink that weighs nothing: the bits of a call without, whatever form that takes. */
        for (int h = 0; h < c->n_head; h++) a.sinks[h] = -1e6f;
        float *light = sink_run(c, &a, a.sinks, c->n), *plain = sink_run(c, &a, NULL, c->n);
        const bool nothing =
            c->n > 64 || !memcmp(light, plain, (size_t)c->n * (size_t)(c->n_head * c->d) * 4);
        char why[64] = "";
        if (other >= 0) snprintf(why, sizeof why, ", other bits when cut as in %d", other);
        verdict(worst <= tol && other < 0 && nothing && codes + any + step == 1,
                "sinks, %s, %s and %s: error %.2g of %.2g%s%s%s", c->name, kn_kv_name(c->type.k),
                kn_kv_name(c->type.v), worst, tol, why, nothing ? "" : ", a light sink changes bits",
                codes + any + step == 1 ? "" : ", not by a form that takes them");
        free(got), free(light), free(plain);
        sink_free(&a);
    }
}
