/* attention.inc.h - the inside of attention: one tile of rows against one group of keys.
 *
 * Shapes: the query rows of one kv head (rows x query heads that share it), keys in steps of 16 that all
 * query rows read while they are in the first cache level. What a row gets depends on its own query and
 * visible keys alone: score(key) = scale * dot(q, k): one vector accumulator over head_dim, then the tree a
 * split's maximum: its vectors of 16 keys in order, masked keys at -inf, then the tree; weights exp(score -
 * maximum), summed in vectors in order (masked keys add an exact 0), then the tree values: acc = fma(weight,
 * value, acc) over the row's visible keys only, ascending A key that a row does not see costs arithmetic at
 * most: its number, even a NaN, reaches nothing. */

#if VEC_ISA == 2
#define ATTN_KEYS 16 /* dot products in flight */
#define ATTN_WIDTH 8 /* value vectors in flight */
#else
#define ATTN_KEYS 4
#define ATTN_WIDTH 4
#endif

/* 16 scores of one query row. */
static inline struct vec attn_scores(const float *q, const float *k, int64_t stride, int64_t d)
{
    struct vec s[16];
    for (int j0 = 0; j0 < 16; j0 += ATTN_KEYS) {
        struct vec acc[ATTN_KEYS];
#pragma GCC unroll 16
        for (int j = 0; j < ATTN_KEYS; j++) acc[j] = v_zero();
        const float *kj = k + j0 * stride;
        for (int64_t i = 0; i < d; i += 16) {
            struct vec x = v_load(q + i);
#pragma GCC unroll 16
            for (int j = 0; j < ATTN_KEYS; j++) acc[j] = v_fma(x, v_load(kj + j * stride + i), acc[j]);
        }
#pragma GCC unroll 16
        for (int j = 0; j < ATTN_KEYS; j++) s[j0 + j] = acc[j];
    }
    return v_sum16(s);
}

/* s[j, j + 16) with -inf for keys outside [lo, hi). In registers: storing them one by one makes the load
 * after wait. */
static inline struct vec attn_seen(const float *s, int32_t j, int32_t lo, int32_t hi)
{
    static const float count[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const struct vec x = v_load(s + j), none = v_set1(-INFINITY);
    if (j >= lo && j + 16 <= hi) return x;
    const struct vec at = v_add(v_set1((float)j), v_load(count));
    return v_if_lt(at, v_set1((float)lo), none, v_if_lt(at, v_set1((float)hi), x, none));
}

/* Scores s[KN_KV_SPLIT] to weights, lo <= visible < hi within the split (not empty). Writes maximum and sum.
 */
static void attn_softmax(float *s, int32_t lo, int32_t hi, float *maximum, float *sum)
{
    int32_t a = lo & ~15, b = (hi + 15) & ~15;
    struct vec m = v_set1(-INFINITY), l = v_zero();
    for (int32_t j = a; j < b; j += 16) m = v_max(m, attn_seen(s, j, lo, hi));
    struct vec top = v_set1(v_hmax(m));
    for (int32_t j = a; j < b; j += 16) {
        struct vec p = v_exp(v_sub(attn_seen(s, j, lo, hi), top));
        v_store(s + j, p);
        l = v_add(l, p);
    }
    *maximum = v_hmax(m);
    *sum = v_sum(l);
}

/* acc[d] += sum over j in [lo, hi) of w[j] * value[j], ascending. */
static inline void attn_values(float *acc, const float *w, const float *v, int64_t stride, int32_t lo,
                               int32_t hi, int64_t d)
{
    int64_t i = 0;
    for (; i + 16 * ATTN_WIDTH <= d; i += 16 * ATTN_WIDTH) {
        struct vec a[ATTN_WIDTH];
#pragma GCC unroll 8
        for (int c = 0; c < ATTN_WIDTH; c++) a[c] = v_load(acc + i + 16 * c);
        for (int32_t j = lo; j < hi; j++) {
            struct vec x = v_set1(w[j]);
            const float *vj = v + j * stride + i;
#pragma GCC unroll 8
            for (int c = 0; c < ATTN_WIDTH; c++) a[c] = v_fma(x, v_load(vj + 16 * c), a[c]);
        }
#pragma GCC unroll 8
        for (int c = 0; c < ATTN_WIDTH; c++) v_store(acc + i + 16 * c, a[c]);
    }
    for (; i < d; i += 16) {
        struct vec a = v_load(acc + i);
        for (int32_t j = lo; j < hi; j++) a = v_fma(v_set1(w[j]), v_load(v + j * stride + i), a);
        v_store(acc + i, a);
    }
}

/* What of [start, start + n) row i sees, relative to start; false if nothing. */
static inline bool attn_range(const struct cpu_attn_tile *t, int32_t i, int64_t start, int32_t n, int32_t *lo,
                              int32_t *hi)
{
    int64_t a = t->lo[i] - start, b = t->hi[i] - start;
    *lo = (int32_t)(a < 0 ? 0 : a > n ? n : a);
    *hi = (int32_t)(b < 0 ? 0 : b > n ? n : b);
    return *lo < *hi;
}

static inline const float *attn_query(const struct cpu_attn_tile *t, int32_t i, int32_t h)
{
    return t->q + ((int64_t)i * t->n_head + h) * t->head_dim;
}

/* The keys (or values) at start + j of a tree's row i into tile: those before base from the cache, the others
 * from the tail. What the row does not see becomes zeros, which reach nothing. */
static const float *attn_stage_path(const struct cpu_attn_tile *t, int32_t i, int64_t start, int32_t j,
                                    bool values, float *tile, int64_t *stride)
{
    const struct kn_tree *tree = t->tree;
    const int32_t row = t->row + i, base = tree->pos[0];
    *stride = t->head_dim;
    for (int32_t k = 0; k < KV_KEYS; k++) {
        const int64_t p = start + j + k;
        float *to = tile + (int64_t)k * t->head_dim;
        if (p < t->lo[i] || p >= t->hi[i])
            memset(to, 0, (size_t)t->head_dim * sizeof *to);
        else if (p < base)
            kv_load(t->kv, values, (int32_t)p, t->kv_head, to);
        else
            kv_load(t->tail, values, tree->path[row][p - base], t->kv_head, to);
    }
    return tile;
}

/* Are there tried positions of a tree among the 16 from start + j on? */
static inline bool attn_on_paths(const struct cpu_attn_tile *t, int64_t start, int32_t j)
{
    return t->tree && start + j + KV_KEYS > t->tree->pos[0];
}

/* One split: part rows are written (maximum, sum, values); a row that sees nothing gets -inf, 0, zeros. */
static void attn_split(const struct cpu_attn_tile *t, int64_t start, float *part, float *scores, float *tile)
{
    const int32_t n_q = t->n_rows * t->n_rep;
    const int64_t d = t->head_dim, size = (int64_t)cpu_attn_part(t->head_dim);
    int32_t from = KN_KV_SPLIT, to = 0, lo, hi;
    int64_t stride;
    for (int32_t r = 0; r < n_q; r++) {
        float *p = part + r * size;
        memset(p, 0, (size_t)size * sizeof(float));
        p[0] = -INFINITY;
    }
    for (int32_t i = 0; i < t->n_rows; i++)
        if (attn_range(t, i, start, KN_KV_SPLIT, &lo, &hi)) {
            from = lo < from ? lo : from;
            to = hi > to ? hi : to;
        }
    from &= ~15;
    to = (to + 15) & ~15;
    const struct kv_split split = kv_split_of(t->kv, t->kv_head, (int32_t)start, from, to);
    for (int32_t j = from; j < to; j += 16) {
        const bool paths = attn_on_paths(t, start, j);
        const float *k = paths ? NULL : kv_stage(&split, false, j, tile, &stride);
        for (int32_t r = 0; r < n_q; r++) {
            if (!attn_range(t, r / t->n_rep, start + j, 16, &lo, &hi)) continue;
            if (paths && r % t->n_rep == 0)
                k = attn_stage_path(t, r / t->n_rep, start, j, false, tile, &stride);
            struct vec s = attn_scores(attn_query(t, r / t->n_rep, r % t->n_rep), k, stride, d);
            v_store(scores + (int64_t)r * KN_KV_SPLIT + j, v_mul(s, v_set1(t->scale)));
        }
    }
    for (int32_t r = 0; r < n_q; r++)
        if (attn_range(t, r / t->n_rep, start, KN_KV_SPLIT, &lo, &hi))
            attn_softmax(scores + (int64_t)r * KN_KV_SPLIT, lo, hi, part + r * size, part + r * size + 1);
    for (int32_t j = from; j < to; j += 16) {
        const bool paths = attn_on_paths(t, start, j);
        const float *v = paths ? NULL : kv_stage(&split, true, j, tile, &stride);
        for (int32_t r = 0; r < n_q; r++) {
            if (!attn_range(t, r / t->n_rep, start + j, 16, &lo, &hi)) continue;
            if (paths && r % t->n_rep == 0)
                v = attn_stage_path(t, r / t->n_rep, start, j, true, tile, &stride);
            attn_values(part + r * size + CPU_ATTN_ACC, scores + (int64_t)r * KN_KV_SPLIT + j, v, stride, lo,
                        hi, d);
        }
    }
}

/* The sum tells an empty part: a visible key at the maximum weighs 1. A NaN sum is not empty. */
static void rows_attn_merge(float *total, const float *part, int32_t head_dim)
{
    if (part[1] == 0.0f) return;
    if (total[1] == 0.0f) {
        memcpy(total, part, cpu_attn_part(head_dim) * sizeof(float));
        return;
    }
    float m = total[0] > part[0] ? total[0] : part[0];
    float a = cpu_expf(total[0] - m), b = cpu_expf(part[0] - m);
    total[0] = m;
    total[1] = fmaf(total[1], a, part[1] * b);
    struct vec va = v_set1(a), vb = v_set1(b);
    for (int32_t i = CPU_ATTN_ACC; i < CPU_ATTN_ACC + head_dim; i += 16)
        v_store(total + i, v_fma(v_load(total + i), va, v_mul(v_load(part + i), vb)));
}

static bool attn_any(const struct cpu_attn_tile *t, int64_t start)
{
    int32_t lo, hi;
    for (int32_t i = 0; i < t->n_rows; i++)
        if (attn_range(t, i, start, KN_KV_SPLIT, &lo, &hi)) return true;
    return false;
}

/* The tile with its queries as the cache wants them, in turned[n_rows, n_rep, head_dim]. */
static struct cpu_attn_tile attn_turned(const struct cpu_attn_tile *t, float *turned)
{
    struct cpu_attn_tile y = *t;
    if (!kv_turns(t->kv)) return y;
    for (int32_t r = 0; r < t->n_rows * t->n_rep; r++)
        kv_query(t->kv, attn_query(t, r / t->n_rep, r % t->n_rep), turned + (int64_t)r * t->head_dim);
    y.q = turned;
    y.n_head = t->n_rep;
    return y;
}

/* Where only one split is seen it is the group: merging it into nothing would copy it. */
static void rows_attn_group(const struct cpu_attn_tile *given, int64_t g, float *part, float *scratch)
{
    const int32_t n_q = given->n_rows * given->n_rep;
    const size_t size = cpu_attn_part(given->head_dim);
    float *split = scratch, *scores = split + (size_t)n_q * size,
          *turned = scores + (size_t)n_q * KN_KV_SPLIT,
          *tile = turned + (size_t)n_q * (size_t)given->head_dim;
    const struct cpu_attn_tile at = attn_turned(given, turned), *t = &at;
    const int64_t end = (g + 1) * CPU_ATTN_GROUP;
    int64_t only = 0;
    int seen = 0;
    for (int64_t start = end - CPU_ATTN_GROUP; start < end; start += KN_KV_SPLIT)
        if (attn_any(t, start)) only = start, seen++;
    if (seen == 1) {
        attn_split(t, only, part, scores, tile);
        return;
    }
    memset(part, 0, (size_t)n_q * size * sizeof(float));
    for (int32_t r = 0; r < n_q; r++) part[(size_t)r * size] = -INFINITY;
    for (int64_t start = end - CPU_ATTN_GROUP; start < end; start += KN_KV_SPLIT) {
        if (!attn_any(t, start)) continue;
        attn_split(t, start, split, scores, tile);
        for (int32_t r = 0; r < n_q; r++)
            rows_attn_merge(part + (size_t)r * size, split + (size_t)r * size, t->head_dim);
    }
}

/* A row that sees no key at all gives zeros. A sink (NULL: none) is merged last. */
static void rows_attn_finish(const struct kn_kv *kv, float *out, const float *total, const float *sink)
{
    float sum = total[1], by = 1.0f;
    if (sink && sum != 0.0f) {
        const float m = total[0] > *sink ? total[0] : *sink;
        by = cpu_expf(total[0] - m);
        sum = fmaf(sum, by, cpu_expf(*sink - m));
    }
    struct vec l = v_set1(sum), scale = v_set1(by);
    for (int32_t i = 0; i < kv->head_dim; i += 16) {
        struct vec a = v_load(total + CPU_ATTN_ACC + i);
        if (sink) a = v_mul(a, scale);
        v_store(out + i, total[1] == 0.0f ? v_zero() : v_div(a, l));
    }
    kv_result(kv, out);
}

/* 16 means of keys at k, stride floats apart, against the KN_SPARSE_BLOCK queries of one head at q, row
 * floats apart: M and E of struct kn_sparse, by lane. A row sees lanes below `all`, the last one those below
 * `last`. s: scratch [KN_SPARSE_BLOCK, 16]. */
static void rows_sparse_scores(const float *q, int64_t row, const float *k, int64_t stride, int64_t d,
                               float scale, int32_t all, int32_t last, float *s, float m[16], float e[16])
{
    const struct vec unit = v_set1(scale * 1.44269504f), half = v_set1(0.693147181f);
    struct vec most = v_set1(-INFINITY), sum = v_zero();
    for (int32_t r = 0; r < KN_SPARSE_BLOCK; r++) {
        float *at = s + 16 * r;
        v_store(at, v_mul(attn_scores(q + r * row, k, stride, d), unit));
        v_store(at, attn_seen(at, 0, 0, r == KN_SPARSE_BLOCK - 1 ? last : all));
        most = v_max(most, v_load(at));
    }
    v_store(m, most);
    for (int i = 0; i < 16; i++) m[i] = ceilf(m[i]);
    most = v_load(m);
    for (int32_t r = 0; r < KN_SPARSE_BLOCK; r++)
        sum = v_add(sum, v_exp(v_mul(v_sub(v_load(s + 16 * r), most), half)));
    v_store(e, sum);
}
