/* test_gpu_weights.c - what rows attend to, against the CPU; rope by origin. */
#include "test_gpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct shape {
    uint32_t type;
    int n, n_head, n_kv, d, last, keys, pool; /* last: position of the last row */
} shapes[] = {{KN_F16, 1, 32, 8, 128, 4099, 4100, 13}, {KN_F16, 8, 16, 8, 128, 4100, 4096, 13},
              {KN_BF16, 5, 24, 4, 256, 700, 701, 5},   {KN_F32, 3, 2, 2, 96, 250, 251, 1},
              {KN_F16, 2, 8, 1, 512, 64, 65, 3},       {KN_F16, 8, 4, 2, 64, 7, 8, 31},
              {KN_F16, 1, 2, 1, 128, 0, 1, 13}};

static float *run(struct kn_backend *be, const struct shape *c, const float *q, const void *k, size_t bytes)
{
    const size_t n = (size_t)c->n, keys = (size_t)c->keys;
    int32_t pos[8];
    for (int r = 0; r < c->n; r++) pos[r] = c->last - c->n + 1 + r;
    struct kn_kv kv = {
        .type = {c->type, c->type}, .cap = kn_kv_room(c->keys), .n_head_kv = c->n_kv, .head_dim = c->d};
    kv.k = put(be, k, bytes);
    kv.v = kv.k;
    float *dq = put(be, q, n * (size_t)(c->n_head * c->d) * 4), *out = put(be, NULL, n * keys * 4),
          *scratch = put(be, NULL, n * (size_t)c->n_head * keys * 4);
    int32_t *p = put(be, pos, sizeof pos);
    const struct kn_attention_weights w = {.q = dq,
                                           .kv = &kv,
                                           .pos = p,
                                           .n = c->n,
                                           .n_head = c->n_head,
                                           .n_keys = c->keys,
                                           .scale = 1 / sqrtf((float)c->d),
                                           .pool = c->pool,
                                           .scratch = scratch,
                                           .out = out};
    must(be, "attention_weights", kn_op(be)->attention_weights(be, &w));
    float *host = get(be, out, n * keys * 4);
    drop(be, kv.k), drop(be, dq), drop(be, out), drop(be, scratch), drop(be, p);
    return host;
}

/* Products are summed in float, a lane's of d / 32 and a tree of 5: an error of (d / 32 + 6) / 2 eps of the
 * sum of magnitudes, which is below 4 times the root of d here; a weight is off by as much. */
static void check_shapes(void)
{
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        const struct shape *c = &shapes[s];
        const size_t row = (size_t)(c->n_kv * c->d), n_q = (size_t)(c->n * c->n_head * c->d);
        const struct kn_kv kv = {
            .type = {c->type, c->type}, .cap = kn_kv_room(c->keys), .n_head_kv = c->n_kv, .head_dim = c->d};
        const size_t bytes = kn_kv_bytes(&kv, c->type), row_bytes = kn_kv_row_bytes(&kv, c->type);
        rnd_state = 7 + (unsigned)s;
        float *q = gaussians(n_q, 1.5f), *x = gaussians((size_t)c->keys * row, 1.0f), *out[2];
        char *k = calloc(1, bytes);
        for (size_t j = 0; j < (size_t)c->keys; j++) kn_kv_put(&kv, false, x + j * row, k + j * row_bytes);
        for (int b = 0; b < 2; b++) out[b] = run(b ? gpu : cpu, c, q, k, bytes);
        const double tol = 0x1p-24 * (4 * sqrt(c->d) * (c->d / 32 + 6) + c->pool + 8);
        double worst = 0;
        for (int i = 0; i < c->n * c->keys; i++) {
            const double e = fabs((double)out[1][i] - out[0][i]) / ((double)fabsf(out[0][i]) + 1e-30);
            worst = e > worst || e != e ? e : worst;
        }
        verdict(worst <= tol, "attention_weights %s heads %d/%d of %d, %d rows, %d keys: error %.2g of %.2g",
                kn_kv_name(c->type), c->n_head, c->n_kv, c->d, c->n, c->keys, worst, tol);
        free(q), free(x), free(k), free(out[0]), free(out[1]);
    }
}

static void check_origin(void)
{
    enum { N = 100, MOST = 1000, ROT = 128 };
    double freq[ROT / 2];
    int32_t pos[N], origin[MOST];
    float *out[2];
    for (int j = 0; j < ROT / 2; j++) freq[j] = pow(1e6, -2.0 * j / ROT);
    for (int i = 0; i < N; i++) pos[i] = 7 * i;
    for (int i = 0; i < MOST; i++) origin[i] = 131 * i + 3;
    for (int b = 0; b < 2; b++) {
        struct kn_backend *be = b ? gpu : cpu;
        int32_t *p = put(be, pos, sizeof pos), *o = put(be, origin, sizeof origin);
        double *f = put(be, freq, sizeof freq);
        float *d = put(be, NULL, N * ROT * 4);
        must(be, "rope_table", kn_op(be)->rope_table(be, d, p, o, N, f, ROT));
        out[b] = get(be, d, N * ROT * 4);
        drop(be, p), drop(be, o), drop(be, f), drop(be, d);
    }
    verdict(!memcmp(out[0], out[1], N * ROT * 4), "rope_table by origin, the CPU's bits");
    free(out[0]), free(out[1]);
}

void check_weights(void)
{
    check_shapes();
    check_origin();
}
