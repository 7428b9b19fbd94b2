/* test_pick.c - the sampler against the chain written out plainly (docs/sampling.md): a full sort, exp and
 * log of libm, a scalar Philox. Cases that a rounding could turn (a filter's edge or the two best scores
 * closer than 1e-6) are counted and must stay rare. Then the frequencies of picks against the probabilities.
 */
#include "ops_util.h"

/* ---- the definition ---- */

static void philox(uint32_t c[4], uint32_t k0, uint32_t k1)
{
    for (int r = 0; r < 10; r++, k0 += 0x9e3779b9u, k1 += 0xbb67ae85u) {
        uint64_t a = 0xd2511f53ull * c[0], b = 0xcd9e8d57ull * c[2];
        uint32_t n[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k0, (uint32_t)b, (uint32_t)(a >> 32) ^ c[3] ^ k1,
                         (uint32_t)a};
        memcpy(c, n, sizeof n);
    }
}

static double gumbel(uint64_t seed, uint32_t position, uint32_t id)
{
    uint32_t c[4] = {position, id / 4, 0, 0};
    philox(c, (uint32_t)seed, (uint32_t)(seed >> 32));
    return -log(-log((c[id % 4] + 0.5) / 4294967296.0));
}

struct ref {
    double z, p;
    int32_t id;
};

static int by_p(const void *a, const void *b)
{
    const struct ref *x = a, *y = b;
    return x->z != y->z ? (x->z < y->z ? 1 : -1) : x->id < y->id ? -1 : x->id > y->id;
}

/* Logits of a row with biases and penalties: the history's, counted in its window. */
static void adjusted(const struct kn_pick *p, int row, float *l)
{
    const struct kn_sampler *a = &p->sampler;
    const int n = p->n_vocab, pos = p->pos[row];
    char *seen = test_alloc((size_t)n);
    memcpy(l, p->logits + (size_t)row * (size_t)n, (size_t)n * 4);
    for (int i = 0; i < a->n_bias; i++) l[a->bias[i].id] += a->bias[i].add;
    for (int i = pos; p->history && i >= 0 && i > pos - a->repeat_last; i--) {
        const int32_t id = p->history[i];
        int count = 0;
        for (int j = pos; j >= 0 && j > pos - a->repeat_last; j--) count += p->history[j] == id;
        if (seen[id]++) continue;
        l[id] = l[id] > 0 ? l[id] / a->repeat_penalty : l[id] * a->repeat_penalty;
        l[id] -= (float)count * a->frequency + a->presence;
    }
    free(seen);
}

/* How many of the first m of r, the likeliest first, top-p and min-p keep. */
static int top_p_keeps(const struct kn_sampler *a, const struct ref *r, int m, bool *close)
{
    const double raw = a->order & KN_ORDER_TOP_P_RAW ? (double)a->temp : 1;
    double sum = 0, mass = 0;
    int k = 0;
    for (int i = 0; i < m; i++) sum += exp(raw * (r[i].z - r[0].z));
    for (; k < m && (!k || mass / sum < (double)a->top_p); k++) {
        *close |= k && fabs(mass / sum - (double)a->top_p) < 1e-6;
        mass += exp(raw * (r[k].z - r[0].z));
    }
    *close |= fabs(mass / sum - (double)a->top_p) < 1e-6;
    return k;
}
static int min_p_keeps(const struct kn_sampler *a, const struct ref *r, int m, bool *close)
{
    const double raw = a->order & KN_ORDER_MIN_P_RAW ? (double)a->temp : 1;
    int k = 1;
    for (double q; k < m && (q = exp(raw * (r[k].z - r[0].z))) >= (double)a->min_p; k++)
        *close |= fabs(q - (double)a->min_p) < 1e-6 * q;
    if (k < m) *close |= fabs(exp(raw * (r[k].z - r[0].z)) - (double)a->min_p) < 1e-6 * (double)a->min_p;
    return k;
}
/* The filters one after another, each over what the one before it left: top-k K, top-p P, min-p M. */
static int filters_keep(const struct kn_sampler *a, const struct ref *r, int n, bool *close)
{
    const char *order = a->order & KN_ORDER_TOP_P_FIRST   ? a->order & KN_ORDER_MIN_P_FIRST ? "MPK" : "PKM"
                        : a->order & KN_ORDER_MIN_P_FIRST ? "KMP"
                                                          : "KPM";
    int m = n;
    for (const char *f = order; *f; f++) {
        if (*f == 'K' && a->top_k > 0 && a->top_k < m) m = a->top_k;
        if (*f == 'P' && a->top_p < 1) m = top_p_keeps(a, r, m, close);
        if (*f == 'M' && a->min_p > 0) m = min_p_keeps(a, r, m, close);
    }
    return m;
}

/* The id; *close: some decision hangs on less than 1e-6. kept (may be NULL): the probabilities of what is
 * kept, by id, in units of the likeliest. logp (may be NULL): log of the id's probability among them. */
static int32_t reference(const struct kn_pick *p, int row, bool *close, double *kept, double *logp)
{
    const struct kn_sampler *a = &p->sampler;
    int n = p->n_vocab, pos = p->pos[row];
    struct ref *r = test_alloc((size_t)n * sizeof *r);
    float *l = test_alloc((size_t)n * 4);
    bool bad = false;
    *close = false;
    adjusted(p, row, l);
    for (int i = 0; i < n; i++) {
        bad |= isnan(l[i]);
        r[i] = (struct ref){.z = a->temp > 0 ? (double)l[i] / (double)a->temp : (double)l[i], .id = i};
    }
    qsort(r, (size_t)n, sizeof *r, by_p);
    int32_t id = bad || !isfinite(r[0].z) ? KN_PICK_NAN : r[0].id;
    double before = 0, z = r[0].z;
    for (int i = 0; i < n && a->temp == 0; i++) before += exp(r[i].z - z);
    if (id >= 0 && a->temp > 0) {
        const int m = filters_keep(a, r, n, close);
        double best = -INFINITY;
        for (int i = 0; i < m; i++) {
            before += r[i].p = exp(r[i].z - r[0].z);
            if (kept) kept[r[i].id] = r[i].p;
            double score = r[i].z + gumbel(a->seed, (uint32_t)pos + 1, (uint32_t)r[i].id);
            *close |= fabs(score - best) < 1e-6 && r[i].z > -INFINITY;
            if (score > best || (score == best && r[i].id < id)) {
                best = score;
                id = r[i].id;
                z = r[i].z;
            }
        }
    }
    if (logp) *logp = id == KN_PICK_NAN ? NAN : z - r[0].z - log(before);
    free(r);
    free(l);
    return id;
}

/* ---- cases ---- */

static int32_t *history_of(int n, int n_vocab, uint64_t seed)
{
    int32_t *h = test_alloc((size_t)n * 4);
    for (int i = 0; i < n; i++) h[i] = (int32_t)(rnd_next(&seed) % (uint64_t)(n_vocab < 50 ? n_vocab : 50));
    return h;
}

/* Of ids that every vocabulary of the tests has: one. */
static const struct kn_bias biases[] = {{0, 3.5f}};
#define BIASED .bias = biases, .n_bias = 1
#define ORDER(t, o)                                                                                          \
    {                                                                                                        \
        .temp = t, .top_k = 40, .top_p = 0.8127f, .min_p = 0.03f, .repeat_penalty = 1, .order = o,           \
        .seed = 18                                                                                           \
    }
static const struct kn_sampler samplers[] = {
    {.temp = 0, .top_p = 1, .repeat_penalty = 1},
    {.temp = 0, .top_p = 1, .repeat_penalty = 1.3f, .repeat_last = 64},
    {.temp = 1, .top_p = 1, .repeat_penalty = 1, .seed = 1},
    {.temp = 0.2f, .top_p = 1, .repeat_penalty = 1, .seed = 0xfedcba9876543210u},
    {.temp = 5, .top_p = 1, .repeat_penalty = 1.1f, .repeat_last = 1000, .seed = 3},
    {.temp = 0.8f, .top_k = 1, .top_p = 1, .repeat_penalty = 1, .seed = 4},
    {.temp = 0.8f, .top_k = 40, .top_p = 1, .repeat_penalty = 1, .seed = 5},
    {.temp = 1.5f, .top_k = 700, .top_p = 1, .repeat_penalty = 0.9f, .repeat_last = 3, .seed = 6},
    {.temp = 0.8f, .top_k = 20, .top_p = 0.95f, .repeat_penalty = 1, .seed = 7},
    {.temp = 0.6f, .top_p = 0.9f, .repeat_penalty = 1, .seed = 8},
    {.temp = 3, .top_p = 0.999f, .repeat_penalty = 1, .seed = 9},
    {.temp = 1, .top_p = 0, .repeat_penalty = 1, .seed = 10},
    {.temp = 1, .top_p = 1, .min_p = 0.05f, .repeat_penalty = 1, .seed = 11},
    {.temp = 2, .top_p = 0.7f, .min_p = 0.01f, .repeat_penalty = 1.2f, .repeat_last = 20, .seed = 12},
    {.temp = 2,
     .top_k = 50,
     .top_p = 0.9f,
     .min_p = 0.02f,
     .repeat_penalty = 1.05f,
     .repeat_last = 8,
     .seed = 13},
    {.temp = 1, .top_p = 1, .min_p = 1, .repeat_penalty = 1, .seed = 14},
    {.temp = 0, .top_p = 1, .repeat_penalty = 1, .presence = 1.5f, .repeat_last = 30},
    {.temp = 0.9f, .top_p = 1, .repeat_penalty = 1, .frequency = 0.4f, .repeat_last = 300, .seed = 15},
    {.temp = 1.3f,
     .top_p = 0.8f,
     .repeat_penalty = 1.1f,
     .presence = -0.5f,
     .frequency = 0.2f,
     .repeat_last = 100,
     .seed = 16},
    {.temp = 0, .top_p = 1, .repeat_penalty = 1, BIASED},
    {.temp = 0.7f, .top_k = 30, .top_p = 1, .repeat_penalty = 1.2f, .repeat_last = 9, BIASED, .seed = 17},
    /* every order, cold and hot */
    ORDER(0.4f, 0),
    ORDER(0.4f, 1),
    ORDER(0.4f, 2),
    ORDER(0.4f, 3),
    ORDER(0.4f, 4),
    ORDER(0.4f, 5),
    ORDER(0.4f, 6),
    ORDER(0.4f, 7),
    ORDER(0.4f, 8),
    ORDER(0.4f, 9),
    ORDER(0.4f, 10),
    ORDER(0.4f, 11),
    ORDER(0.4f, 12),
    ORDER(0.4f, 13),
    ORDER(0.4f, 14),
    ORDER(0.4f, 15),
    ORDER(2.5f, 3),
    ORDER(2.5f, 4),
    ORDER(2.5f, 8),
    ORDER(2.5f, 12),
    ORDER(2.5f, 15),
    {.temp = 0.5f, .top_p = 0.9f, .repeat_penalty = 1, .order = 1, .seed = 19},
    {.temp = 3, .top_p = 0.9f, .min_p = 0.1f, .repeat_penalty = 1, .order = 10, .seed = 20},
    {.temp = 0.5f, .top_p = 1, .min_p = 0.02f, .repeat_penalty = 1, .order = 2, .seed = 21},
};
#define N_SAMPLERS (sizeof samplers / sizeof *samplers)

enum shape { NORMAL, FLAT, EQUAL, COARSE, MASKED, PEAKED, N_SHAPES };

static void fill(float *l, int n, enum shape shape, uint64_t seed)
{
    for (int i = 0; i < n; i++) {
        float x = rnd_normal(&seed);
        switch (shape) {
        case NORMAL: l[i] = 3.0f * x; break;
        case FLAT: l[i] = 0.01f * x; break;
        case EQUAL: l[i] = i % 2 ? 0.0f : -0.0f; break;
        case COARSE: l[i] = rintf(2.0f * x); break; /* ties everywhere, at every filter's edge */
        case MASKED: l[i] = i % 3 ? -INFINITY : 4.0f * x; break;
        default: l[i] = i == n / 2 ? 40.0f : x; break;
        }
    }
}

/* Of a log-probability: a weight is off by 2^-23 for each nat that it lies below the likeliest, which few
 * weights do that count, and 1,024 are summed in float32 on 16 lanes: 64 roundings of 2^-24. */
#define LOGP_BOUND 8e-6

static void check_cases(struct kn_backend *be, int n_vocab, int rows, int *tried, int *skipped)
{
    float *l = test_alloc((size_t)n_vocab * (size_t)rows * 4);
    int32_t *history = history_of(500, n_vocab, 1), pos[16], out[16];
    float logp[16];
    for (int shape = 0; shape < N_SHAPES; shape++) {
        for (int i = 0; i < rows; i++) {
            fill(l + (size_t)i * (size_t)n_vocab, n_vocab, (enum shape)shape, (uint64_t)(shape * 100 + i));
            pos[i] = 37 * shape + i;
        }
        for (size_t s = 0; s < N_SAMPLERS; s++) {
            struct kn_pick p = {.logits = l,
                                .pos = pos,
                                .history = history,
                                .n = rows,
                                .n_vocab = n_vocab,
                                .sampler = samplers[s],
                                .out = out,
                                .logp = logp};
            assert_ok(be, kn_op(be)->pick(be, &p));
            for (int i = 0; i < rows; i++) {
                bool close;
                double want_p;
                int32_t want = reference(&p, i, &close, NULL, &want_p);
                ++*tried;
                if (close)
                    ++*skipped;
                else if (out[i] != want || !(fabs((double)logp[i] - want_p) <= LOGP_BOUND))
                    fail_msg(
                        "vocabulary %d, shape %d, sampler %zu, row %d: got %d (%.8f), expected %d (%.8f)",
                        n_vocab, shape, s, i, out[i], (double)logp[i], want, want_p);
            }
        }
    }
    free(l);
    free(history);
}

static void test_chain(void **state)
{
    (void)state;
    static const int vocab[] = {1, 2, 63, 64, 65, 1000, 4103};
    struct kn_backend *be = test_fastest();
    int tried = 0, skipped = 0;
    assert_ok(be, kn_op(be)->reserve(be, 16, 0, 4103, 0, 0));
    for (size_t v = 0; v < sizeof vocab / sizeof *vocab; v++) check_cases(be, vocab[v], 3, &tried, &skipped);
    print_message("%d picks, %d too close to call\n", tried, skipped);
    assert_true(skipped * 25 <
                tried); /* equal logits put top-p's edge on exact fractions: those are the close ones */
    kn_backend_close(be);
}

static void test_same_bits(void **state)
{
    (void)state;
    enum { V = 3011, R = 6 };
    float *l = test_alloc(V * R * 4);
    int32_t *history = history_of(500, V, 1), pos[R], want[N_SHAPES][N_SAMPLERS][R], out[R];
    float want_p[N_SHAPES][N_SAMPLERS][R], logp[R];
    struct kn_backend *be;
    for (int i = 0; i < R; i++) pos[i] = 90 + i;
    for (int b = 0; (be = test_backend(b)); b++) {
        assert_ok(be, kn_op(be)->reserve(be, R, 0, V, 0, 0));
        for (int shape = 0; shape < N_SHAPES; shape++) {
            for (int i = 0; i < R; i++) fill(l + i * V, V, (enum shape)shape, (uint64_t)i);
            for (size_t s = 0; s < N_SAMPLERS; s++) {
                struct kn_pick p = {.logits = l,
                                    .pos = pos,
                                    .history = history,
                                    .n = R,
                                    .n_vocab = V,
                                    .sampler = samplers[s],
                                    .out = b ? out : want[shape][s],
                                    .logp = b ? logp : want_p[shape][s]};
                assert_ok(be, kn_op(be)->pick(be, &p));
                if (b) assert_memory_equal(out, want[shape][s], sizeof out);
                if (b) assert_memory_equal(logp, want_p[shape][s], sizeof logp);
                p.n = 1; /* alone */
                p.logits = l + 5 * V;
                p.pos = pos + 5;
                p.out = out;
                p.logp = logp;
                assert_ok(be, kn_op(be)->pick(be, &p));
                assert_int_equal(out[0], want[shape][s][5]);
                assert_memory_equal(logp, want_p[shape][s] + 5, sizeof *logp);
                p.logp = NULL; /* not wanted */
                assert_ok(be, kn_op(be)->pick(be, &p));
                assert_int_equal(out[0], want[shape][s][5]);
            }
        }
        kn_backend_close(be);
    }
    free(l);
    free(history);
}

/* Frequencies over positions against the probabilities of the kept set, within 5 sigma, and nothing outside
 * it. */
static void test_frequencies(void **state)
{
    (void)state;
    enum { V = 24, N = 100000, R = 16 };
    static const struct kn_sampler chain[] = {
        {.temp = 1, .top_p = 1, .repeat_penalty = 1, .seed = 42},
        {.temp = 0.7f, .top_k = 8, .top_p = 0.9f, .repeat_penalty = 1, .seed = 43},
    };
    struct kn_backend *be = test_fastest();
    float l[V * R];
    int32_t history[1] = {0}, pos[R], out[R];
    assert_ok(be, kn_op(be)->reserve(be, R, 0, V, 0, 0));
    for (int i = 0; i < R; i++) fill(l + i * V, V, NORMAL, 7);
    for (int i = 0; i < R * V; i++) l[i] *= 0.4f;
    for (size_t s = 0; s < sizeof chain / sizeof *chain; s++) {
        double kept[V] = {0}, sum = 0;
        int count[V] = {0};
        struct kn_pick p = {.logits = l,
                            .pos = pos,
                            .history = history,
                            .n = R,
                            .n_vocab = V,
                            .sampler = chain[s],
                            .out = out};
        bool close;
        pos[0] = 0;
        reference(&p, 0, &close, kept, NULL);
        assert_false(close);
        for (int i = 0; i < V; i++) sum += kept[i];
        for (int i = 0; i < N; i += R) {
            for (int j = 0; j < R; j++) pos[j] = i + j;
            assert_ok(be, kn_op(be)->pick(be, &p));
            for (int j = 0; j < R; j++) count[out[j]]++;
        }
        for (int i = 0; i < V; i++) {
            double q = kept[i] / sum;
            assert_true(fabs(count[i] - N * q) <= 5.0 * sqrt(N * q * (1 - q)));
        }
    }
    kn_backend_close(be);
}

/* How often two rows pick the same, position by position: one that reads a and has one seed, one that reads b
 * and has another. */
static double share_of_equal(struct kn_backend *be, const float *a, const float *b, int n_vocab,
                             struct kn_sampler s, uint64_t other_seed)
{
    enum { N = 20000 };
    int32_t history[1] = {0}, pos, out[2];
    int equal = 0;
    for (pos = 0; pos < N; pos++) {
        struct kn_pick p = {.logits = a,
                            .pos = &pos,
                            .history = history,
                            .n = 1,
                            .n_vocab = n_vocab,
                            .sampler = s,
                            .out = out};
        assert_ok(be, kn_op(be)->pick(be, &p));
        p.logits = b, p.sampler.seed = other_seed, p.out = out + 1;
        assert_ok(be, kn_op(be)->pick(be, &p));
        equal += out[0] == out[1];
    }
    return (double)equal / N;
}

/* Two distributions p and q with the same noise pick the same at least as often as (1 - TV) / (1 + TV)
 * (Daliri, Musco, Suresh: Coupling without communication and drafter-invariant speculative decoding), and
 * always where they are equal; with other noise as often as chance has it, sum of p q. Within 5 sigma. */
static void test_coupled(void **state)
{
    (void)state;
    enum { V = 40 };
    static const struct kn_sampler chain[] = {
        {.temp = 1, .top_p = 1, .repeat_penalty = 1, .seed = 21},
        {.temp = 0.8f, .top_k = 12, .top_p = 0.95f, .min_p = 0.01f, .repeat_penalty = 1, .seed = 22},
    };
    struct kn_backend *be = test_fastest();
    float a[V], b[V];
    assert_ok(be, kn_op(be)->reserve(be, 1, 0, V, 0, 0));
    fill(a, V, NORMAL, 7);
    fill(b, V, NORMAL, 8);
    for (int i = 0; i < V; i++) a[i] *= 0.4f, b[i] = a[i] + 0.2f * b[i];
    for (size_t s = 0; s < sizeof chain / sizeof *chain; s++) {
        double p[V] = {0}, q[V] = {0}, of_p = 0, of_q = 0, tv = 0, chance = 0;
        const int32_t pos = 0;
        bool close;
        struct kn_pick x = {.logits = a, .pos = &pos, .n = 1, .n_vocab = V, .sampler = chain[s]};
        reference(&x, 0, &close, p, NULL);
        x.logits = b;
        reference(&x, 0, &close, q, NULL);
        for (int i = 0; i < V; i++) of_p += p[i], of_q += q[i];
        for (int i = 0; i < V; i++)
            tv += fabs(p[i] / of_p - q[i] / of_q) / 2, chance += p[i] / of_p * q[i] / of_q;
        const double bound = (1 - tv) / (1 + tv), sigma = sqrt(0.25 / 20000);
        assert_true(tv > 0.1 && tv < 0.5);
        assert_true(share_of_equal(be, a, a, V, chain[s], chain[s].seed) == 1);
        assert_true(share_of_equal(be, a, b, V, chain[s], chain[s].seed) > bound - 5 * sigma);
        const double other = share_of_equal(be, a, b, V, chain[s], 23);
        assert_true(fabs(other - chance) < 5 * sigma && other < bound - 10 * sigma);
    }
    kn_backend_close(be);
}

static void test_bad_logits(void **state)
{
    (void)state;
    enum { V = 300 };
    struct kn_backend *be;
    float l[V * 6];
    int32_t history[10] = {0}, pos[6] = {1, 2, 3, 4, 5, 6}, out[6];
    float logp[6];
    for (int b = 0; (be = test_backend(b)); b++) {
        assert_ok(be, kn_op(be)->reserve(be, 6, 0, V, 0, 0));
        for (size_t s = 0; s < N_SAMPLERS; s++) {
            for (int i = 0; i < 6; i++) fill(l + i * V, V, NORMAL, (uint64_t)i);
            l[17] = NAN;
            l[V + V - 1] = -NAN;
            l[2 * V + 100] = INFINITY;
            for (int i = 0; i < V; i++) l[3 * V + i] = -INFINITY;
            for (int i = 0; i < V; i++) l[4 * V + i] = i == 77 ? -1e30f : -INFINITY;
            struct kn_pick p = {.logits = l,
                                .pos = pos,
                                .history = history,
                                .n = 6,
                                .n_vocab = V,
                                .sampler = samplers[s],
                                .out = out,
                                .logp = logp};
            assert_ok(be, kn_op(be)->pick(be, &p));
            for (int i = 0; i < 4; i++) assert_int_equal(out[i], KN_PICK_NAN);
            for (int i = 0; i < 4; i++) assert_true(isnan(logp[i]));
            assert_int_equal(out[4], 77);
            assert_true(logp[4] == 0.0f); /* of one id, which is certain */
            assert_in_range(out[5], 0, V - 1);
        }
        kn_backend_close(be);
    }
}

static void test_extremes(void **state)
{
    (void)state;
    struct kn_backend *be = test_backend(0);
    float l[100];
    int32_t history[2] = {3, 3}, pos = 1, out;
    assert_ok(be, kn_op(be)->reserve(be, 1, 0, 100, 0, 0));
    for (int i = 0; i < 100; i++) l[i] = i == 60 ? 3.4e38f : i % 2 ? -3.4e38f : 3.3e38f;
    for (size_t s = 0; s < N_SAMPLERS; s++) {
        struct kn_pick p = {.logits = l,
                            .pos = &pos,
                            .history = history,
                            .n = 1,
                            .n_vocab = 100,
                            .sampler = samplers[s],
                            .out = &out};
        assert_ok(be, kn_op(be)->pick(be, &p));
        assert_int_equal(out, 60);
        p.sampler.temp = s % 2 ? 1e-45f : 3e38f; /* the smallest temperature, and one that makes all alike */
        assert_ok(be, kn_op(be)->pick(be, &p));
        assert_true(s % 2 ? out == 60 : out >= 0 && out < 100);
    }
    kn_backend_close(be);
}

/* A bias of -Inf takes an id away, drafted or not likely; one that is large enough makes it certain. */
static void test_biases(void **state)
{
    (void)state;
    enum { V = 200 };
    struct kn_backend *be;
    float l[V];
    int32_t history[4] = {0, 7, 7, 9}, pos = 3, out;
    fill(l, V, NORMAL, 5);
    for (int b = 0; (be = test_backend(b)); b++) {
        assert_ok(be, kn_op(be)->reserve(be, 1, 0, V, 0, 0));
        for (size_t s = 0; s < N_SAMPLERS; s++) {
            struct kn_bias bias[2] = {{0, -INFINITY}, {V - 1, 300}};
            struct kn_pick p = {.logits = l,
                                .pos = &pos,
                                .history = history,
                                .n = 1,
                                .n_vocab = V,
                                .sampler = samplers[s],
                                .out = &out};
            p.sampler.bias = bias, p.sampler.n_bias = 2;
            assert_ok(be, kn_op(be)->pick(be, &p));
            assert_int_equal(out, V - 1);
            l[0] = 100;
            p.sampler.n_bias = 1;
            assert_ok(be, kn_op(be)->pick(be, &p));
            assert_int_not_equal(out, 0);
            p.sampler.n_bias = 0;
            assert_ok(be, kn_op(be)->pick(be, &p));
            assert_int_equal(out, 0);
            fill(l, V, NORMAL, 5);
        }
        kn_backend_close(be);
    }
}

static void test_refuses(void **state)
{
    (void)state;
    struct kn_backend *be = test_backend(0);
    float l[8] = {0};
    int32_t history[4] = {1, 8, 2, 3}, pos = 3, out;
    const struct kn_sampler good = {.temp = 1, .top_p = 1, .repeat_penalty = 1.1f, .repeat_last = 2};
    struct kn_pick p = {
        .logits = l, .pos = &pos, .history = history, .n = 1, .n_vocab = 8, .sampler = good, .out = &out};
    assert_int_equal(kn_op(be)->pick(be, &p), KN_EINVAL);
    assert_non_null(strstr(kn_message(be), "scratch"));
    assert_ok(be, kn_op(be)->reserve(be, 1, 0, 8, 0, 0));
    assert_ok(be, kn_op(be)->pick(be, &p));
    p.sampler.repeat_last = 3; /* now the window holds token 8 of a vocabulary of 8 */
    assert_int_equal(kn_op(be)->pick(be, &p), KN_EINVAL);
    assert_non_null(strstr(kn_message(be), "position 4"));
    const struct kn_sampler bad[] = {
        {.temp = -1, .top_p = 1, .repeat_penalty = 1},
        {.temp = NAN, .top_p = 1, .repeat_penalty = 1},
        {.temp = 1, .top_p = 1.5f, .repeat_penalty = 1},
        {.temp = 1, .top_p = 1, .min_p = -1, .repeat_penalty = 1},
        {.temp = 1, .top_p = 1, .repeat_penalty = 0},
        {.temp = 1, .top_p = 1, .top_k = -1, .repeat_penalty = 1},
        {.temp = 1, .top_p = 1, .repeat_last = -1, .repeat_penalty = 1},
        {.temp = INFINITY, .top_p = 1, .repeat_penalty = 1},
        {.temp = 1, .top_p = 1, .repeat_penalty = 1, .presence = NAN},
        {.temp = 1, .top_p = 1, .repeat_penalty = 1, .frequency = INFINITY},
        {.temp = 1, .top_p = 1, .repeat_penalty = 1, .order = 16},
        {.temp = 1, .top_p = 1, .repeat_penalty = 1, .bias = &(struct kn_bias){8, 1}, .n_bias = 1},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        p.sampler = bad[i];
        assert_int_equal(kn_op(be)->pick(be, &p), KN_EINVAL);
    }
    kn_backend_close(be);
}

/* The generator of the definition above is Philox4x32-10: the known answers of its authors' Random123. With
 * that, and test_chain, the one in the library is too. */
static void test_philox(void **state)
{
    (void)state;
    static const uint32_t known[3][10] = {
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {~0u, ~0u, ~0u, ~0u, ~0u, ~0u, 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09, 0x94fdcceb,
         0x5001e420, 0x24126ea1},
    };
    for (int i = 0; i < 3; i++) {
        uint32_t c[4];
        memcpy(c, known[i], sizeof c);
        philox(c, known[i][4], known[i][5]);
        assert_memory_equal(c, known[i] + 6, sizeof c);
    }
}

/* The noise of the host is that of the definition, and a pick of flat logits is where it is largest. */
static void test_noise(void **state)
{
    struct kn_backend *be = test_fastest();
    float flat[100] = {0};
    (void)state;
    assert_int_equal(kn_op(be)->reserve(be, 1, 0, 100, 1, 16), 0);
    for (int32_t pos = 0; pos < 50; pos++) {
        int32_t id, best = 0;
        const struct kn_pick p = {
            .logits = flat,
            .pos = &pos,
            .n = 1,
            .n_vocab = 100,
            .sampler = {.temp = 1, .top_p = 1, .repeat_penalty = 1, .seed = 1ull << 40 | 9},
            .out = &id};
        for (int32_t i = 0; i < 100; i++) {
            const double g = kn_noise(p.sampler.seed, pos + 1, i);
            assert_true(fabs(g - gumbel(p.sampler.seed, (uint32_t)pos + 1, (uint32_t)i)) < 1e-12);
            if (g > kn_noise(p.sampler.seed, pos + 1, best)) best = i;
        }
        assert_int_equal(kn_op(be)->pick(be, &p), 0);
        assert_int_equal(id, best);
    }
    kn_backend_close(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_philox),     cmocka_unit_test(test_chain),
        cmocka_unit_test(test_same_bits),  cmocka_unit_test(test_frequencies),
        cmocka_unit_test(test_bad_logits), cmocka_unit_test(test_extremes),
        cmocka_unit_test(test_refuses),    cmocka_unit_test(test_coupled),
        cmocka_unit_test(test_biases),     cmocka_unit_test(test_noise),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
