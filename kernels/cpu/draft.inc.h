/* draft.inc.h - inner kernels of drafters: a row of a convolution along a block, the largest logits of a row,
 * the scores of edges. Included by rows_<isa>.c, after pick.inc.h. */

/* 16 taps, or fewer, of channels c .. c + 15: base + dynamic of their groups. */
static struct vec conv_tap(const struct kn_conv *a, const float *dynamic, int32_t t, int64_t c, int left)
{
    const float *of = dynamic + t * (a->width / a->group);
    float d[16] = {0};
    if (a->group % 16 == 0)
        return v_add(v_load_n(a->base + t * (int64_t)a->width + c, left), v_set1(of[c / a->group]));
    for (int l = 0; l < left; l++) d[l] = of[(c + l) / a->group];
    return v_add(v_load_n(a->base + t * (int64_t)a->width + c, left), v_load(d));
}

/* Row i; scale [n]: rms_norm's 1 / rms of every row, where there is a norm. The first product is rounded, the
 * others are fused. */
static void rows_conv(const struct kn_conv *a, int32_t i, const float *scale)
{
    const int64_t width = a->width;
    const float *dynamic = a->dynamic + i * a->stride + a->offset;
    float *out = a->out + i * width;
    for (int64_t c = 0; c < width; c += 16) {
        const int left = width - c < 16 ? (int)(width - c) : 16;
        struct vec sum = v_zero();
        for (int32_t t = 0; t < a->taps && t <= i; t++) {
            struct vec v = v_load_n(a->x + (i - t) * width + c, left);
            if (a->norm) v = v_mul(v_mul(v, v_set1(scale[i - t])), v_load_n(a->norm + c, left));
            const struct vec w = conv_tap(a, dynamic, t, c, left);
            sum = t ? v_fma(w, v, sum) : v_mul(w, v);
        }
        v_store_n(out + c, a->add ? v_add(v_load_n(out + c, left), sum) : sum, left);
    }
}

static void rows_top(const struct kn_top *a, int32_t row, const struct cpu_pick_work *w)
{
    int32_t *ids = a->ids + (int64_t)row * a->k, n;
    float *values = a->values + (int64_t)row * a->k;
    struct pick s = {.l = a->logits + (int64_t)row * a->n_vocab, .n = a->n_vocab};
    s.n_blocks = (s.n + PICK_BLOCK - 1) / PICK_BLOCK;
    const bool good = pick_maxima(&s, w->block);
    n = good ? pick_gather(&s, pick_bound_k(&s, a->k, w->heap), w->heap) : 0;
    for (int32_t i = 0; i < a->k; i++) {
        ids[i] = n ? pick_pop(w->heap, &n) : KN_PICK_NAN;
        values[i] = ids[i] >= 0 ? s.l[ids[i]] : good ? -INFINITY : __builtin_nanf("");
    }
}

/* scores [k] of the candidates behind one predecessor: from [rank], its row times hidden; after [k, rank]. */
static void rows_edge(float *scores, const float *values, const float *from, const float *after, int32_t k,
                      int64_t rank, float scale)
{
    for (int32_t c = 0; c < k; c++) scores[c] = values[c] + scale * v_dot(from, after + c * rank, rank);
}
