/* rows.inc.h - norms, rope, soft capping and the like, over the vectors of
 * vec.h. Included by rows_<isa>.c. */

static float rows_rms_scale(const float *x, int64_t width, float eps)
{
    return 1.0f / sqrtf(v_dot(x, x, width) / (float)width + eps);
}

static void rows_rms_norm(float *out, const float *x, const float *weight, int64_t width, float eps)
{
    struct vec s = v_set1(rows_rms_scale(x, width, eps));
    int64_t i = 0;
    for (; i + 16 <= width; i += 16) {
        struct vec y = v_mul(v_load(x + i), s);
        v_store(out + i, weight ? v_mul(y, v_load(weight + i)) : y);
    }
    if (i < width) {
        int left = (int)(width - i);
        struct vec y = v_mul(v_load_n(x + i, left), s);
        v_store_n(out + i, weight ? v_mul(y, v_load_n(weight + i, left)) : y, left);
    }
}

/* The bits of rms_norm, a sum and a product. */
static void rows_norm_add(float *out, const float *x, const float *y, const float *weight, int64_t width,
                          float eps, float scale)
{
    struct vec s = v_set1(1.0f / sqrtf(v_dot(y, y, width) / (float)width + eps)), t = v_set1(scale);
    for (int64_t i = 0; i < width; i += 16) {
        int left = width - i < 16 ? (int)(width - i) : 16;
        struct vec u = v_mul(v_load_n(y + i, left), s);
        if (weight) u = v_mul(u, v_load_n(weight + i, left));
        v_store_n(out + i, v_mul(v_add(v_load_n(x + i, left), u), t), left);
    }
}

static void rows_gate(float *x, const float *g, int64_t n, bool one)
{
    struct vec s = v_sigmoid(v_set1(g[0]));
    for (int64_t i = 0; i < n; i += 16) {
        int left = n - i < 16 ? (int)(n - i) : 16;
        if (!one) s = v_sigmoid(v_load_n(g + i, left));
        v_store_n(x + i, v_mul(v_load_n(x + i, left), s), left);
    }
}

static void rows_scale(float *x, int64_t n, float s)
{
    for (int64_t i = 0; i < n; i += 16) {
        int left = n - i < 16 ? (int)(n - i) : 16;
        v_store_n(x + i, v_mul(v_load_n(x + i, left), v_set1(s)), left);
    }
}

static void rows_exp(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += 16) {
        int left = n - i < 16 ? (int)(n - i) : 16;
        v_store_n(x + i, v_exp(v_load_n(x + i, left)), left);
    }
}

static void rows_softcap(float *x, int64_t n, float cap)
{
    struct vec c = v_set1(cap);
    for (int64_t i = 0; i < n; i += 16) {
        int left = n - i < 16 ? (int)(n - i) : 16;
        v_store_n(x + i, v_mul(c, v_tanh(v_div(v_load_n(x + i, left), c))), left);
    }
}

static void rows_cell(const struct kn_cell *a)
{
    const int64_t n = a->width;
    const struct vec zero = v_zero(), one = v_set1(1.0f);
    if (a->kind == KN_CELL_LOGP) {
        for (int64_t i = 0; i < n; i++) a->out[i] = -cpu_softplus(-(a->x[i] + (a->bias ? a->bias[0] : 0.0f)));
        return;
    }
    for (int64_t i = 0; i < n; i += 16) {
        const int left = n - i < 16 ? (int)(n - i) : 16;
        const struct vec x = v_load_n(a->x + i, left), b = a->bias ? v_load_n(a->bias + i, left) : zero;
        if (a->kind == KN_CELL_SILU || a->kind == KN_CELL_GATE) {
            const bool silu = a->kind == KN_CELL_SILU;
            v_store_n(a->out + i, silu ? v_silu(x) : v_mul(v_load_n(a->e + i, left), v_sigmoid(v_add(x, b))),
                      left);
            continue;
        }
        /* the other two of three, with what is added to them */
        const float *more = a->kind == KN_CELL_GRU ? a->h : a->bias;
        const struct vec y = v_load_n(a->x + n + i, left), z = v_load_n(a->x + 2 * n + i, left),
                         y2 = more ? v_load_n(more + n + i, left) : zero,
                         z2 = more ? v_load_n(more + 2 * n + i, left) : zero,
                         old = a->state ? v_load_n(a->state + i, left) : zero;
        struct vec keep, fresh;
        if (a->kind == KN_CELL_GRU) {
            const struct vec r = v_sigmoid(v_add(x, more ? v_load_n(more + i, left) : zero));
            keep = v_sigmoid(v_add(y, y2));
            fresh = v_tanh(v_add(z, v_mul(r, z2)));
        } else {
            keep = v_sigmoid(v_add(x, b));
            fresh = v_tanh(v_add(y, y2));
            v_store_n(a->out + i, v_tanh(v_add(z, z2)), left);
        }
        v_store_n(a->next + i, v_add(v_mul(keep, old), v_mul(v_sub(one, keep), fresh)), left);
    }
}

/* x - x is 0 for a finite number and NaN for the rest. */
static bool rows_has_bad(const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i += 16) {
        struct vec a = v_load_n(x + i, n - i < 16 ? (int)(n - i) : 16);
        if (v_mask_nan(v_sub(a, a))) return true;
    }
    return false;
}

static void rows_gated(float *out, const float *gate, const float *up, int64_t n, enum kn_act act)
{
    for (int64_t i = 0; i < n; i += 16) {
        int left = n - i < 16 ? (int)(n - i) : 16;
        struct vec g = v_load_n(gate + i, left);
        g = act == KN_ACT_SILU ? v_silu(g) : v_gelu_tanh(g);
        v_store_n(out + i, v_mul(g, v_load_n(up + i, left)), left);
    }
}

static void rows_rope_table(float *out, int32_t pos, const double *freq, int32_t half)
{
    double p = (double)pos, s, c;
    for (int32_t j = 0; j < half; j++) {
        double x = p * freq[j];
        cpu_sincos(x, fma(p, freq[j], -x), &s, &c);
        out[2 * j] = (float)c;
        out[2 * j + 1] = (float)s;
    }
}

/* Rotate the first n_rot values of a head. Scalar code in a fixed order: a cos - b sin and a sin + b cos, one
 * product rounded, the other fused. The compiler may use vectors; the bits are those of fmaf. */
static void rows_rotate(float *x, const float *table, int32_t n_rot, bool interleaved)
{
    int32_t half = n_rot / 2;
    for (int32_t i = 0; i < half; i++) {
        float *a = interleaved ? x + 2 * i : x + i, *b = interleaved ? x + 2 * i + 1 : x + i + half;
        float c = table[2 * i], s = table[2 * i + 1], u = *a, w = *b;
        *a = fmaf(u, c, -(w * s));
        *b = fmaf(u, s, w * c);
    }
}

static void rows_store(const struct cpu_rope *a, bool values, int32_t h, const float *x)
{
    const struct kn_kv *kv = a->kv;
    kv_store(values ? kv->type.v : kv->type.k, values, values ? a->v_row : a->k_row, kv->n_head_kv,
             a->head + h, x, kv->head_dim);
}

/* Values, RMS normed a head where asked: the bits of rms_norm without a weight. */
static void rows_store_values(const struct cpu_rope *a)
{
    const int32_t d = a->kv->head_dim;
    float y[KV_HEAD];
    for (int32_t h = 0; h < a->n_head_kv; h++) {
        const float *v = a->v + (int64_t)h * d;
        if (a->v_norm) {
            const struct vec s = v_set1(1.0f / sqrtf(v_dot(v, v, d) / (float)d + a->eps));
            for (int32_t i = 0; i < d; i += 16) v_store(y + i, v_mul(v_load(v + i), s));
        }
        rows_store(a, true, h, a->v_norm ? y : v);
    }
}

static void rows_rope(const struct cpu_rope *a)
{
    const int32_t d = a->kv->head_dim;
    if (a->k) rows_store_values(a); /* first: v may be k */
    for (int32_t h = 0; a->q && h < a->n_head; h++) {
        float *q = a->q + (int64_t)h * d;
        if (a->q_norm) rows_rms_norm(q, q, a->q_norm, d, a->eps);
        rows_rotate(q, a->table, a->n_rot, a->interleaved);
    }
    if (!a->k) return;
    for (int32_t h = 0; h < a->n_head_kv; h++) {
        float *k = a->k + (int64_t)h * d;
        if (a->k_norm) rows_rms_norm(k, k, a->k_norm, d, a->eps);
        rows_rotate(k, a->table, a->n_rot, a->interleaved);
        rows_store(a, false, h, k);
    }
}
