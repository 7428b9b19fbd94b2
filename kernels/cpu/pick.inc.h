/* pick.inc.h - the sampler's chain for one row: docs/sampling.md has the definition. Included by
 * rows_<isa>.c.
 *
 * Nothing is sorted in full: thresholds found from the maxima of blocks of 64 logits gather a superset of
 * what the filters can keep, and a heap hands it out in order (logit descending, id ascending). Without
 * filters, an id is looked at only if its Gumbel number could still beat the best: see pick_any. Skipping is
 * exact, never a change of result. */

#include "noise.h"

#define PICK_BLOCK 64
#define PICK_NOISE_MAX 22.8739 /* > -log(-log(1 - 2^-33)) = 22.87385 */

/* The words of 64 ids from `first`, a multiple of 64. Lane 4 k + j computes counter 4 j + k, so that iv_turn4
 * leaves them in the order of ids. */
static inline void pick_words(uint64_t seed, uint32_t position, uint32_t first, struct ivec c[4])
{
    static const int32_t order[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    c[0] = iv_set1((int32_t)position);
    c[1] = iv_add(iv_set1((int32_t)(first / 4)), iv_load(order));
    c[2] = c[3] = iv_set1(0);
    for (int round = 0; round < 10; round++) {
        struct ivec ahi, alo, bhi, blo;
        iv_mul_wide(c[0], 0xd2511f53u, &ahi, &alo);
        iv_mul_wide(c[2], 0xcd9e8d57u, &bhi, &blo);
        c[0] = iv_xor(iv_xor(bhi, c[1]), iv_set1((int32_t)k0));
        c[1] = blo;
        c[2] = iv_xor(iv_xor(ahi, c[3]), iv_set1((int32_t)k1));
        c[3] = alo;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    iv_turn4(c);
}

struct pick {
    const float *l; /* [n] penalised logits */
    int32_t n, n_blocks;
    float top; /* their maximum */
    const float *block;
    double temp, temp_p, temp_m; /* of the pick; what top-p and min-p measure by */
    uint64_t seed;
    uint32_t position;
    int32_t id;   /* the best so far, */
    double score; /* its log-probability (up to a constant of the row) plus noise */
    double mass;  /* of what the filters keep, in units of the likeliest; set where a filter is */
};

static void pick_offer(struct pick *s, int32_t id, uint32_t word)
{
    double score = (double)s->l[id] / s->temp + pick_gumbel(word);
    if (s->id < 0 || score > s->score || (score == s->score && id < s->id)) {
        s->id = id;
        s->score = score;
    }
}

static void pick_offer_one(struct pick *s, int32_t id)
{
    pick_offer(s, id, pick_word(s->seed, s->position, (uint32_t)id));
}

/* Block b of the logits; a last one that is short is completed with -inf in buf. */
static inline const float *pick_block(const float *l, int32_t n, int32_t b, float *buf)
{
    int32_t at = b * PICK_BLOCK;
    if (n - at >= PICK_BLOCK) return l + at;
    for (int32_t i = 0; i < PICK_BLOCK; i++) buf[i] = at + i < n ? l[at + i] : -INFINITY;
    return buf;
}

/* Maxima of the blocks. False if there is a NaN, or no finite maximum. */
static bool pick_maxima(struct pick *s, float *block)
{
    float buf[PICK_BLOCK];
    uint32_t nan = 0;
    struct vec top = v_set1(-INFINITY);
    for (int32_t b = 0; b < s->n_blocks; b++) {
        const float *l = pick_block(s->l, s->n, b, buf);
        struct vec a0 = v_load(l), a1 = v_load(l + 16), a2 = v_load(l + 32), a3 = v_load(l + 48);
        nan |= v_mask_nan(a0) | v_mask_nan(a1) | v_mask_nan(a2) | v_mask_nan(a3);
        a0 = v_max(v_max(a0, a1), v_max(a2, a3));
        top = v_max(top, a0);
        block[b] = v_hmax(a0);
    }
    s->block = block;
    s->top = v_hmax(top);
    return !nan && s->top - s->top == 0.0f;
}

static int32_t pick_first_of(const struct pick *s, float value)
{
    for (int32_t b = 0; b < s->n_blocks; b++)
        if (s->block[b] == value)
            for (int32_t i = b * PICK_BLOCK; i < s->n; i++)
                if (s->l[i] == value) return i;
    return KN_PICK_NAN;
}

/* No filter. With best the highest score so far, id v beats it only if -log u <= E = exp(z - best); and -log
 * u >= 1 - u, so 1 - u <= E must hold, which costs no logarithm. E in float, with a product by 1 / temp in
 * place of the division, carries an error far below the factor given to it; where 1 / temp overflows its
 * clamp makes E larger, not smaller. */
static void pick_any(struct pick *s)
{
    pick_offer_one(s, pick_first_of(s, s->top));
    const float inverse = 1.0f / (float)s->temp;
    const struct vec scale = v_set1(inverse < 3e38f ? inverse : 3e38f), top = v_set1(s->top);
    float buf[PICK_BLOCK];
    for (int32_t b = 0; b < s->n_blocks; b++) {
        if ((double)s->block[b] / s->temp + PICK_NOISE_MAX < s->score) continue;
        const float *l = pick_block(s->l, s->n, b, buf);
        const struct vec off = v_set1((float)(s->score - (double)s->top / s->temp));
        struct ivec word[4];
        uint32_t could = 0, mask[4];
        pick_words(s->seed, s->position, (uint32_t)b * PICK_BLOCK, word);
        for (int i = 0; i < 4; i++) {
            struct ivec rest = iv_shr(iv_xor(word[i], iv_set1(-1)), 1);
            struct vec v = v_mul(v_from_int(rest), v_set1(0x1p-31f)); /* <= 1 - u, up to a rounding */
            struct vec e = v_exp(v_sub(v_mul(v_sub(v_load(l + 16 * i), top), scale), off));
            could |= mask[i] = v_mask_ge(v_mul(e, v_set1(1.0001f)), v);
        }
        for (int i = 0; could && i < 4; i++)
            for (uint32_t m = mask[i]; m; m &= m - 1) {
                int32_t id = b * PICK_BLOCK + 16 * i + __builtin_ctz(m);
                if (id < s->n) pick_offer_one(s, id);
            }
    }
}

/* ---- candidates in order: a heap of 64-bit keys, smallest first = highest logit first, then lowest id ----
 */

static inline uint64_t pick_key(float l, int32_t id)
{
    uint32_t u = vec_bits1(l + 0.0f); /* -0 and 0 tie */
    u = u >> 31 ? u : ~u & 0x7fffffffu;
    return (uint64_t)u << 32 | (uint32_t)id;
}

static void pick_sift(uint64_t *heap, int32_t n, int32_t i)
{
    uint64_t x = heap[i];
    for (int32_t c; (c = 2 * i + 1) < n; i = c) {
        if (c + 1 < n && heap[c + 1] < heap[c]) c++;
        if (heap[c] >= x) break;
        heap[i] = heap[c];
    }
    heap[i] = x;
}

static int32_t pick_pop(uint64_t *heap, int32_t *n)
{
    int32_t id = (int32_t)(heap[0] & 0xffffffffu);
    heap[0] = heap[--*n];
    if (*n) pick_sift(heap, *n, 0);
    return id;
}

/* The ids whose logit is finite and >= bound, as a heap. */
static int32_t pick_gather(const struct pick *s, float bound, uint64_t *heap)
{
    int32_t n = 0;
    float buf[PICK_BLOCK];
    bound = bound < -3.402823466e38f ? -3.402823466e38f : bound;
    for (int32_t b = 0; b < s->n_blocks; b++) {
        if (s->block[b] < bound) continue;
        const float *l = pick_block(s->l, s->n, b, buf);
        for (int32_t i = 0; i < PICK_BLOCK; i += 16)
            for (uint32_t m = v_mask_ge(v_load(l + i), v_set1(bound)); m; m &= m - 1) {
                int32_t j = i + __builtin_ctz(m);
                heap[n++] = pick_key(l[j], b * PICK_BLOCK + j);
            }
    }
    for (int32_t i = n / 2 - 1; i >= 0; i--) pick_sift(heap, n, i);
    return n;
}

/* A bound that at least k logits reach: the k-th largest of the block maxima, each of another block. */
static float pick_bound_k(const struct pick *s, int32_t k, uint64_t *heap)
{
    if (k > s->n_blocks) return -INFINITY;
    for (int32_t b = 0; b < s->n_blocks; b++) heap[b] = pick_key(s->block[b], b);
    int32_t n = s->n_blocks, b = 0;
    for (int32_t i = n / 2 - 1; i >= 0; i--) pick_sift(heap, n, i);
    for (int32_t i = 0; i < k; i++) b = pick_pop(heap, &n);
    return s->block[b];
}

/* exp((l - top) / temp): an id's probability over that of the likeliest */
static inline float pick_weight(const struct pick *s, int32_t id, double temp)
{
    return cpu_expf((s->l[id] - s->top) / (float)temp);
}

static inline bool pick_below(const struct pick *s, float l, double log_min_p)
{
    return (double)l / s->temp_m - (double)s->top / s->temp_m < log_min_p;
}

/* Of the ids that min-p keeps. */
static double pick_mass_kept(const struct pick *s, double temp, double log_min_p)
{
    double mass = 0;
    for (int32_t b = 0; b < s->n_blocks; b++) {
        if (pick_below(s, s->block[b], log_min_p)) continue;
        for (int32_t i = b * PICK_BLOCK; i < s->n && i < (b + 1) * PICK_BLOCK; i++)
            if (!pick_below(s, s->l[i], log_min_p)) mass += (double)pick_weight(s, i, temp);
    }
    return mass;
}

static double pick_mass(const struct pick *s, double by)
{
    const struct vec temp = v_set1((float)by), top = v_set1(s->top);
    float buf[PICK_BLOCK];
    double mass = 0;
    struct vec sum = v_zero();
    for (int32_t b = 0; b < s->n_blocks; b++) {
        const float *l = pick_block(s->l, s->n, b, buf);
        for (int32_t i = 0; i < PICK_BLOCK; i += 16)
            sum = v_add(sum, v_exp(v_div(v_sub(v_load(l + i), top), temp)));
        if (b % 16 == 15 ||
            b + 1 == s->n_blocks) { /* in double after 1024, so that small ones are not lost */
            mass += (double)v_sum(sum);
            sum = v_zero();
        }
    }
    return mass;
}

/* Offer the heap's ids in order while the filters keep them. True if a filter ended it, false if the heap ran
 * dry. */
static bool pick_walk(struct pick *s, uint64_t *heap, int32_t n, double limit, double log_min_p)
{
    double before = 0; /* what top-p takes its share of */
    bool first = true;
    s->mass = 0;
    while (n) {
        int32_t id = pick_pop(heap, &n);
        if (!first && (!(before < limit) || pick_below(s, s->l[id], log_min_p))) return true;
        first = false;
        pick_offer_one(s, id);
        const double weight = (double)pick_weight(s, id, s->temp);
        s->mass += weight;
        before += s->temp_p == s->temp ? weight : (double)pick_weight(s, id, s->temp_p);
    }
    return false;
}

/* What top-p takes its share of, where top-k is not before it. */
static double pick_whole(const struct pick *s, const struct kn_sampler *a, double log_min_p)
{
    return a->order & KN_ORDER_MIN_P_FIRST ? pick_mass_kept(s, s->temp_p, log_min_p)
                                           : pick_mass(s, s->temp_p);
}

static void pick_top_k(struct pick *s, const struct kn_sampler *a, uint64_t *heap, double log_min_p)
{
    int32_t n = pick_gather(s, pick_bound_k(s, a->top_k, heap), heap), kept = 0;
    /* Popped ids go to the end of the heap's own array: n shrinks as they come. */
    int32_t all = n;
    double mass = 0;
    while (n && kept < a->top_k) {
        uint64_t key = heap[0];
        const int32_t id = pick_pop(heap, &n);
        if (!(a->order & KN_ORDER_MIN_P_FIRST) || !pick_below(s, s->l[id], log_min_p))
            mass += (double)pick_weight(s, id, s->temp_p);
        heap[all - ++kept] = key;
    }
    if (a->top_p < 1.0f && a->order & KN_ORDER_TOP_P_FIRST) mass = pick_whole(s, a, log_min_p);
    double limit = a->top_p < 1.0f ? (double)a->top_p * mass : INFINITY;
    /* heap[all - kept .. all) is in descending key order: reversed it is a sorted heap. */
    uint64_t *h = heap + (all - kept);
    for (int32_t i = 0; i < kept / 2; i++) {
        uint64_t t = h[i];
        h[i] = h[kept - 1 - i];
        h[kept - 1 - i] = t;
    }
    pick_walk(s, h, kept, limit, log_min_p);
}

static void pick_top_p(struct pick *s, const struct kn_sampler *a, uint64_t *heap, double log_min_p)
{
    double limit = a->top_p < 1.0f ? (double)a->top_p * pick_whole(s, a, log_min_p) : INFINITY;
    const double temp = s->temp > s->temp_p ? s->temp : s->temp_p; /* of the depths */
    /* What min-p can keep lies above floor; the slack covers the roundings of this line. */
    double slack = 1e-5 * (fabs((double)s->top) - s->temp_m * log_min_p);
    double floor = log_min_p > -INFINITY ? (double)s->top + s->temp_m * log_min_p - slack : -INFINITY;
    for (double depth = a->top_p < 1.0f ? 7.0 : INFINITY;; depth *= 2) {
        double bound = (double)s->top - temp * depth;
        bool last = !(bound > floor) || depth > 200.0;
        s->id = -1;
        int32_t n = pick_gather(s, (float)(last ? floor : bound), heap);
        if (pick_walk(s, heap, n, limit, log_min_p) || last) return;
    }
}

static bool pick_penalises(const struct kn_sampler *a)
{
    return (a->repeat_penalty != 1.0f || a->presence != 0.0f || a->frequency != 0.0f) && a->repeat_last > 0;
}

/* The token at position i of a row's history. */
static inline int32_t pick_past(const struct kn_pick *p, int32_t row, int64_t i)
{
    const struct kn_tree *t = p->tree;
    return t && i >= t->pos[0] ? t->ids[t->path[row][i - t->pos[0]]] : p->history[i];
}

/* Copy the row, add the biases, and penalise each distinct id of the window once. */
static bool pick_change(const struct kn_pick *p, int32_t row, const struct cpu_pick_work *w)
{
    const struct kn_sampler *a = &p->sampler;
    float *copy = w->logits;
    int32_t *count = (int32_t *)w->heap; /* [n_vocab], of the window's ids alone */
    memcpy(copy, p->logits + (int64_t)row * p->n_vocab, (size_t)p->n_vocab * sizeof(float));
    for (int32_t i = 0; i < a->n_bias; i++) copy[a->bias[i].id] += a->bias[i].add;
    if (!pick_penalises(a)) return true;
    int64_t last = p->pos[row], first = last - a->repeat_last + 1;
    if (first < 0) first = 0;
    for (int64_t i = first; i <= last; i++) {
        const int32_t id = pick_past(p, row, i);
        if (id < 0 || id >= p->n_vocab) return false;
        count[id] = 0;
    }
    for (int64_t i = first; i <= last; i++) count[pick_past(p, row, i)]++;
    for (int64_t i = first; i <= last; i++) {
        const int32_t id = pick_past(p, row, i), n = count[id];
        if (!n) continue;
        const float l = copy[id] > 0.0f ? copy[id] / a->repeat_penalty : copy[id] * a->repeat_penalty;
        copy[id] = l - ((float)n * a->frequency + a->presence);
        count[id] = 0;
    }
    return true;
}

static int32_t pick_id(struct pick *s, const struct kn_sampler *a, const struct cpu_pick_work *w)
{
    if (!pick_maxima(s, w->block)) return KN_PICK_NAN;
    if (a->temp == 0.0f) return pick_first_of(s, s->top);
    double log_min_p = a->min_p > 0.0f ? cpu_log((double)a->min_p) : -INFINITY;
    if (a->top_k > 0 && a->top_k < s->n)
        pick_top_k(s, a, w->heap, log_min_p);
    else if (a->top_p < 1.0f || a->min_p > 0.0f)
        pick_top_p(s, a, w->heap, log_min_p);
    else
        pick_any(s);
    return s->id;
}

/* log of an id's probability. Without a filter all is kept, and costs a pass over the row. */
static float pick_logp(struct pick *s, int32_t id)
{
    if (id == KN_PICK_NAN) return NAN;
    if (s->temp == 0.0) s->temp = 1.0;
    const double mass = s->mass > 0.0 ? s->mass : pick_mass(s, s->temp);
    return (float)(((double)s->l[id] - (double)s->top) / s->temp - cpu_log(mass));
}

static int32_t rows_pick(const struct kn_pick *p, int32_t row, const struct cpu_pick_work *w)
{
    const struct kn_sampler *a = &p->sampler;
    struct pick s = {.l = p->logits + (int64_t)row * p->n_vocab,
                     .n = p->n_vocab,
                     .temp = (double)a->temp,
                     .temp_p = a->order & KN_ORDER_TOP_P_RAW ? 1.0 : (double)a->temp,
                     .temp_m = a->order & KN_ORDER_MIN_P_RAW ? 1.0 : (double)a->temp,
                     .seed = a->seed,
                     .position = (uint32_t)p->pos[row] + 1,
                     .id = -1};
    s.n_blocks = (s.n + PICK_BLOCK - 1) / PICK_BLOCK;
    if (a->n_bias || pick_penalises(a)) {
        if (!pick_change(p, row, w)) return KN_PICK_NAN - 1;
        s.l = w->logits;
    }
    const int32_t id = pick_id(&s, a, w);
    if (p->logp) p->logp[row] = pick_logp(&s, id);
    return id;
}
