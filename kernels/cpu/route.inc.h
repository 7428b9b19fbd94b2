/* route.inc.h - the router of a mixture of experts, one row. Included by rows_<isa>.c.
 *
 * The probabilities rise with the logits, so the experts are chosen by logit: two that differ never tie,
 * whatever exp rounds them to. The sum runs over vectors of 16 in order, then the tree. */

/* The n_used largest of l [n], descending; of equal ones the lowest id first. */
static void route_top(int32_t *ids, const float *l, int32_t n, int32_t n_used)
{
    int32_t have = 0;
    for (int32_t i = 0; i < n; i++) {
        if (have == n_used && !(l[i] > l[ids[have - 1]])) continue;
        int32_t at = have < n_used ? have++ : have - 1;
        for (; at > 0 && l[i] > l[ids[at - 1]]; at--) ids[at] = ids[at - 1];
        ids[at] = i;
    }
}

static struct vec route_load(const float *l, int32_t left)
{
    float t[16];
    if (left >= 16) return v_load(l);
    for (int i = 0; i < 16; i++) t[i] = i < left ? l[i] : -INFINITY;
    return v_load(t);
}

static void rows_route(const struct kn_route *a, int32_t row)
{
    const int32_t n = a->n_expert, k = a->n_used;
    const float *l = a->logits + (int64_t)row * n;
    int32_t *ids = a->ids + (int64_t)row * k;
    float *w = a->weights + (int64_t)row * k;
    struct vec m = v_set1(-INFINITY), s = v_zero();
    uint32_t nan = 0;
    for (int32_t i = 0; i < n; i += 16) {
        const struct vec x = route_load(l + i, n - i);
        nan |= v_mask_nan(x);
        m = v_max(m, x);
    }
    const float top = v_hmax(m);
    if (nan ||
        !(top - top == 0.0f)) { /* no distribution: the weights say so, and every output of the row will */
        for (int32_t j = 0; j < k; j++) {
            ids[j] = j;
            w[j] = __builtin_nanf("");
        }
        return;
    }
    for (int32_t i = 0; i < n; i += 16) s = v_add(s, v_exp(v_sub(route_load(l + i, n - i), v_set1(top))));
    const float sum = v_sum(s);
    float chosen = 0.0f;
    route_top(ids, l, n, k);
    for (int32_t j = 0; j < k; j++) {
        w[j] = cpu_expf(l[ids[j]] - top) / sum;
        chosen += w[j];
    }
    for (int32_t j = 0; j < k; j++) {
        if (a->renorm) w[j] /= chosen;
        w[j] *= a->scale;
        if (a->expert_scale) w[j] *= a->expert_scale[ids[j]];
    }
}

/* out[n] = sum over j ascending of w[j] * r[j, lanes], or out += that sum; n <= lanes. One product, the
 * others fused. */
static void rows_weigh(float *out, const float *r, const float *w, int32_t n_used, int32_t lanes, int32_t n,
                       bool add)
{
    struct vec s = v_mul(v_set1(w[0]), v_load_n(r, n));
    for (int32_t j = 1; j < n_used; j++) s = v_fma(v_set1(w[j]), v_load_n(r + (int64_t)j * lanes, n), s);
    v_store_n(out, add ? v_add(v_load_n(out, n), s) : s, n);
}
