/* test_gpu.c - the CUDA backend against the CPU's: every operation but the matrix products (mm_gpu.cu has
 * those), then the pair.
 *
 * usage: test_gpu [--generic] PAIR_DIR PROMPT.txt
 *        test_gpu [--generic] --ops   without the pair; --draft: what drafters alone have
 *        test_gpu --bench          microseconds of the sampler (attention: attention_gpu.cu)
 *        test_gpu [--generic] --pair PAIR_DIR PROMPT.txt   the pair alone; --cycles: of it recorded cycles
 * alone test_gpu --small          the small cases of the operations, for compute-sanitizer Each case is a
 * line of a table: shape, type, tolerance. A tolerance of 0 asks for the CPU's bits. Rows are computed
 * together and in other groups, and must have the same bits. Prints "ok   gpu/..." or "FAIL gpu/..." a case;
 * exit 1 if any failed, 5 if there is no device. */
#include "test_gpu.h"

struct kn_backend *cpu, *gpu;
bool small;

/* ---- embed ---- */

static void check_embed(void)
{
    static const uint32_t types[] = {KN_F32,   KN_F16,     KN_BF16,   KN_Q8_0,  KN_Q4_0,    KN_Q4_1,
                                     KN_Q5_0,  KN_Q5_1,    KN_Q4_K,   KN_Q5_K,  KN_Q6_K,    KN_Q2_K,
                                     KN_Q3_K,  KN_IQ4_NL,  KN_IQ4_XS, KN_MXFP4, KN_IQ2_XXS, KN_IQ2_XS,
                                     KN_IQ2_S, KN_IQ3_XXS, KN_IQ3_S,  KN_IQ1_S, KN_IQ1_M};
    for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
        enum { N_OUT = 37, N = 9 };
        const int64_t n_in = 768;
        const struct kn_type_info *t = kn_type_info(types[k]);
        size_t row = kn_row_bytes(types[k], n_in);
        char *table = calloc(N_OUT, row);
        bool raw = !t->can_encode;
        rnd_state = k;
        for (int i = 0; i < N_OUT; i++) {
            float *x = gaussians((size_t)n_in, 0.05f * (float)(i + 1));
            if (types[k] == KN_F32)
                memcpy(table + (size_t)i * row, x, row);
            else if (!raw && kn_encode_row(types[k], x, table + (size_t)i * row, n_in, NULL))
                raw = true;
            free(x);
        }
        for (size_t i = 0; raw && i < N_OUT * row; i++)
            table[i] = (char)(rnd() & 0x3f); /* any codes; no NaN scales */
        int32_t ids[N] = {0, 36, 5, 5, 17, 1, 30, 2, 9};
        float *out[2];
        for (int b = 0; b < 2; b++) {
            struct kn_backend *be = b ? gpu : cpu;
            struct kn_weight w = {0};
            must(be, "weight_load",
                 kn_op(be)->weight_load(be, &w, types[k], n_in, N_OUT, table, KN_USE_ROWS));
            int32_t *d_ids = put(be, ids, sizeof ids);
            float *d_out = put(be, NULL, N * (size_t)n_in * 4);
            must(be, "embed", kn_op(be)->embed(be, d_out, &w, d_ids, N, 1.5f));
            out[b] = get(be, d_out, N * (size_t)n_in * 4);
            drop(be, d_out);
            drop(be, d_ids);
            kn_op(be)->weight_free(be, &w);
        }
        verdict(!memcmp(out[0], out[1], N * (size_t)n_in * 4), "embed %s%s", t->name,
                raw ? " (raw codes)" : "");
        free(out[0]);
        free(out[1]);
        free(table);
    }
}

/* ---- norm, rope table, tap, softcap, find_bad ---- */

static void check_rms_norm(void)
{
    static const int widths[] = {1, 7, 40, 255, 256, 257, 1024, 2560, 4096, 5120, 12288};
    for (size_t k = 0; k < sizeof widths / sizeof *widths; k++) {
        const int width = widths[k], n = 33;
        const size_t bytes = (size_t)n * width * 4;
        rnd_state = k;
        float *x = gaussians((size_t)n * width, 3.0f), *g = gaussians((size_t)width, 1.0f), *out[2],
              *alone = NULL;
        for (int b = 0; b < 2; b++) {
            struct kn_backend *be = b ? gpu : cpu;
            float *d = put(be, x, bytes), *w = put(be, g, (size_t)width * 4);
            if (b) {
                float *one = put(be, NULL, (size_t)width * 4);
                must(be, "rms_norm", kn_op(be)->rms_norm(be, one, d + 2 * width, w, 1, width, 1e-6f));
                alone = get(be, one, (size_t)width * 4);
                drop(be, one);
            }
            must(be, "rms_norm", kn_op(be)->rms_norm(be, d, d, w, n, width, 1e-6f));
            out[b] = get(be, d, bytes);
            drop(be, d);
            drop(be, w);
        }
        /* Sums of positive terms differ by half the roundings of either order; then root, division, products.
         */
        const double tol = 0x1p-24 * (width / 64.0 + width / 512.0 + 30);
        double worst = 0;
        for (int i = 0; i < n * width; i++) {
            double e = fabs((double)out[1][i] - out[0][i]) / (fabs((double)out[0][i]) + 1e-30);
            worst = e > worst || e != e ? e : worst;
        }
        bool same = !memcmp(alone, out[1] + 2 * width, (size_t)width * 4);
        verdict(worst <= tol && same, "rms_norm width %d: error %.2g of %.2g%s", width, worst, tol,
                same ? "" : ", other bits alone");
        free(x), free(g), free(out[0]), free(out[1]), free(alone);
    }
}

static void check_rope_table(void)
{
    enum { N = 300, ROT = 128 };
    double freq[ROT / 2];
    int32_t pos[N];
    float *out[2];
    for (int j = 0; j < ROT / 2; j++) freq[j] = pow(1e6, -2.0 * j / ROT);
    for (int i = 0; i < N; i++) pos[i] = i < 100 ? i : i < 200 ? 999900 + i : 2000000000 + i;
    for (int b = 0; b < 2; b++) {
        struct kn_backend *be = b ? gpu : cpu;
        int32_t *p = put(be, pos, sizeof pos);
        double *f = put(be, freq, sizeof freq);
        float *d = put(be, NULL, N * ROT * 4);
        must(be, "rope_table", kn_op(be)->rope_table(be, d, p, NULL, N, f, ROT));
        out[b] = get(be, d, N * ROT * 4);
        drop(be, p), drop(be, f), drop(be, d);
    }
    verdict(!memcmp(out[0], out[1], N * ROT * 4), "rope_table, the CPU's bits");
    free(out[0]), free(out[1]);
}

static void check_small(void)
{
    enum { N = 13, WIDTH = 391, STRIDE = 1000, AT = 77 };
    rnd_state = 5;
    float *x = gaussians(N * WIDTH, 20.0f), *out[2], *cap[2];
    x[3] = 0.0f, x[4] = 1e30f, x[5] = -1e30f, x[6] = 1e-30f, x[7] = -0.0f;
    for (int b = 0; b < 2; b++) {
        struct kn_backend *be = b ? gpu : cpu;
        float *d = put(be, x, N * WIDTH * 4), *t = put(be, NULL, N * STRIDE * 4);
        must(be, "tap", kn_op(be)->tap(be, t, STRIDE, AT, d, N, WIDTH));
        must(be, "softcap", kn_op(be)->softcap(be, d, N * WIDTH, 30.0f));
        out[b] = get(be, t, N * STRIDE * 4);
        cap[b] = get(be, d, N * WIDTH * 4);
        drop(be, d), drop(be, t);
    }
    verdict(!memcmp(out[0], out[1], N * STRIDE * 4), "tap");
    verdict(!memcmp(cap[0], cap[1], N * WIDTH * 4), "softcap, the CPU's bits");
    static const int at[] = {-1, 0, 5, 12};
    for (int k = 0; k < 4; k++) {
        int32_t bad = 99;
        float *y = malloc(N * WIDTH * 4);
        memcpy(y, x, N * WIDTH * 4);
        if (at[k] >= 0) y[at[k] * WIDTH + WIDTH - 1] = k == 2 ? INFINITY : NAN, y[12 * WIDTH + 1] = NAN;
        float *d = put(gpu, y, N * WIDTH * 4);
        must(gpu, "find_bad", kn_op(gpu)->find_bad(gpu, d, N, WIDTH, &bad));
        verdict(bad == at[k], "find_bad: row %d, expected %d", bad, at[k]);
        drop(gpu, d);
        free(y);
    }
    free(x), free(out[0]), free(out[1]), free(cap[0]), free(cap[1]);
}

/* ---- pick ---- */

static const struct kn_sampler samplers[] = {
    {.temp = 0, .top_p = 1, .repeat_penalty = 1},
    {.temp = 0, .top_p = 1, .repeat_penalty = 1.3f, .repeat_last = 64},
    {.temp = 0.8f, .top_p = 1, .repeat_penalty = 1, .seed = 1},
    {.temp = 1.5f, .top_p = 1, .repeat_penalty = 1.1f, .repeat_last = 7, .seed = 0x123456789abcdefull},
    {.temp = 1, .top_p = 1, .top_k = 1, .repeat_penalty = 1, .seed = 3},
    {.temp = 0.7f, .top_p = 0.95f, .top_k = 20, .repeat_penalty = 1, .seed = 4},
    {.temp = 1, .top_p = 1, .top_k = 500, .repeat_penalty = 1, .seed = 5},
    {.temp = 1, .top_p = 0.9f, .repeat_penalty = 1, .seed = 6},
    {.temp = 2, .top_p = 0.999f, .repeat_penalty = 1, .seed = 7},
    {.temp = 1, .top_p = 1, .min_p = 0.05f, .repeat_penalty = 1, .seed = 8},
    {.temp = 1,
     .top_k = 40,
     .top_p = 0.9f,
     .min_p = 0.02f,
     .repeat_penalty = 1.1f,
     .repeat_last = 64,
     .seed = 9},
    {.temp = 1e-4f, .top_p = 0.9f, .repeat_penalty = 1, .seed = 10},
    {.temp = 100, .top_p = 0.5f, .top_k = 60, .repeat_penalty = 1, .seed = 11},
    {.temp = 0, .top_p = 1, .repeat_penalty = 1, .presence = 0.7f, .repeat_last = 64},
    {.temp = 0.9f, .top_p = 1, .repeat_penalty = 1.2f, .frequency = 0.3f, .repeat_last = 90, .seed = 12},
    {.temp = 1,
     .top_k = 50,
     .top_p = 1,
     .repeat_penalty = 1,
     .presence = -0.4f,
     .frequency = 0.2f,
     .repeat_last = 1000,
     .seed = 13},
    {.temp = 0, .top_p = 1, .repeat_penalty = 1, .n_bias = 1},
    {.temp = 0.8f, .top_p = 0.9f, .repeat_penalty = 1.1f, .repeat_last = 20, .n_bias = 1, .seed = 14},
    /* orders: of the bits that are set, top-p and min-p by probabilities at 1, top-p first, min-p first */
    {.temp = 0.5f,
     .top_k = 40,
     .top_p = 0.8127f,
     .min_p = 0.03f,
     .repeat_penalty = 1,
     .order = 1,
     .seed = 15},
    {.temp = 0.5f,
     .top_k = 40,
     .top_p = 0.8127f,
     .min_p = 0.03f,
     .repeat_penalty = 1,
     .order = 2,
     .seed = 16},
    {.temp = 2, .top_k = 40, .top_p = 0.8127f, .min_p = 0.03f, .repeat_penalty = 1, .order = 4, .seed = 17},
    {.temp = 2, .top_k = 40, .top_p = 0.8127f, .min_p = 0.03f, .repeat_penalty = 1, .order = 8, .seed = 18},
    {.temp = 3, .top_k = 40, .top_p = 0.8127f, .min_p = 0.03f, .repeat_penalty = 1, .order = 12, .seed = 19},
    {.temp = 3,
     .top_k = 900,
     .top_p = 0.8127f,
     .min_p = 0.001f,
     .repeat_penalty = 1,
     .order = 15,
     .seed = 20},
    {.temp = 0.3f, .top_p = 0.8127f, .min_p = 0.01f, .repeat_penalty = 1, .order = 11, .seed = 21},
    {.temp = 3, .top_p = 1, .min_p = 0.01f, .repeat_penalty = 1, .order = 2, .seed = 22},
};
enum shape { SHAPE_NORMAL, SHAPE_FLAT, SHAPE_PEAKED, SHAPE_MASKED, SHAPE_TIES, SHAPES };
static const char *const shape_name[] = {"normal", "flat", "peaked", "masked", "ties"};

/* Of a log-probability, between the CPU and the device: they add the same float32 weights, the CPU 64 of a
 * lane in float32 (64 x 2^-24), and round a number below 64 (2^-18). */
#define LOGP_BOUND 8e-6

static void check_pick(void)
{
    static const int vocab[] = {1, 2, 63, 1000, 4103, 151936, 262144};
    for (size_t v = 0; v < sizeof vocab / sizeof *vocab; v++) {
        const int n_vocab = vocab[v], n = n_vocab > 100000 ? 5 : 19, first = 90;
        long wrong = 0, tried = 0, bits = 0, far = 0;
        double furthest = 0;
        char where[200] = "";
        if (small && n_vocab > 5000) continue;
        for (int shape = 0; shape < SHAPES; shape++) {
            rnd_state = v * 10 + (unsigned)shape;
            const size_t bytes = (size_t)n * (size_t)n_vocab * 4;
            float *l = gaussians(bytes / 4, 3.0f);
            for (size_t i = 0; i < bytes / 4; i++) {
                if (shape == SHAPE_FLAT) l[i] = 1.0f + 1e-4f * l[i];
                if (shape == SHAPE_PEAKED) l[i] = i % 97 == 3 ? l[i] + 15 : l[i];
                if (shape == SHAPE_MASKED && i % 3) l[i] = -INFINITY;
                if (shape == SHAPE_TIES) l[i] = rintf(l[i]);
            }
            for (int i = 0; i < n; i++)
                l[(size_t)i * (size_t)n_vocab] = 0.5f; /* something finite in every row */
            if (n_vocab > 60)
                l[(size_t)2 * (size_t)n_vocab + 50] = NAN, l[(size_t)3 * (size_t)n_vocab + 50] = INFINITY;
            int32_t pos[19], hist[200], *out[4];
            float *logp[4];
            for (int i = 0; i < n; i++) pos[i] = first + i;
            for (int i = 0; i < 200; i++) hist[i] = (int32_t)(rnd() % (uint64_t)n_vocab);
            for (size_t k = 0; k < sizeof samplers / sizeof *samplers; k++) {
                for (int b = 0; b < 4; b++) { /* the CPU, the device, row by row, without probabilities */
                    struct kn_backend *be = b ? gpu : cpu;
                    float *dl = put(be, l, bytes);
                    const struct kn_bias bias = {0, 2.5f};
                    struct kn_bias *dbias = put(be, &bias, sizeof bias);
                    int32_t *dp = put(be, pos, (size_t)n * 4), *dh = put(be, hist, sizeof hist),
                            *dout = put(be, NULL, (size_t)n * 4);
                    float *dlog = put(be, NULL, (size_t)n * 4);
                    must(be, "reserve", kn_op(be)->reserve(be, n, 0, n_vocab, 2, 64));
                    for (int i = 0; i < (b == 2 ? n : 1); i++) {
                        struct kn_pick p = {.logits = dl + (size_t)i * (size_t)n_vocab,
                                            .pos = dp + i,
                                            .history = dh,
                                            .n = b == 2 ? 1 : n,
                                            .n_vocab = n_vocab,
                                            .sampler = samplers[k],
                                            .out = dout + i,
                                            .logp = b == 3 ? NULL : dlog + i};
                        if (p.sampler.n_bias) p.sampler.bias = dbias;
                        must(be, "pick", kn_op(be)->pick(be, &p));
                    }
                    drop(be, dbias);
                    out[b] = get(be, dout, (size_t)n * 4);
                    logp[b] = get(be, dlog, (size_t)n * 4);
                    drop(be, dl), drop(be, dp), drop(be, dh), drop(be, dout), drop(be, dlog);
                }
                for (int i = 0; i < n; i++) {
                    tried++;
                    bits += out[1][i] != out[2][i] || out[1][i] != out[3][i];
                    bits += memcmp(logp[1] + i, logp[2] + i, sizeof **logp) != 0;
                    const double off = fabs((double)logp[1][i] - (double)logp[0][i]);
                    if (out[0][i] < 0 || out[1][i] < 0)
                        far += (out[0][i] < 0 && !isnan(logp[0][i])) || (out[1][i] < 0 && !isnan(logp[1][i]));
                    else if (out[0][i] == out[1][i] && off > furthest)
                        furthest = off;
                    else if (isnan(off))
                        far++;
                    if (out[0][i] == out[1][i]) continue;
                    if (!wrong++)
                        snprintf(where, sizeof where, "; first: %s, sampler %zu, row %d: %d, expected %d",
                                 shape_name[shape], k, i, out[1][i], out[0][i]);
                }
                for (int b = 0; b < 4; b++) free(out[b]), free(logp[b]);
            }
            free(l);
        }
        verdict(wrong == 0 && bits == 0,
                "pick, vocabulary %d: %ld of %ld differ from the CPU's, %ld from the row alone or the pick "
                "alone%s",
                n_vocab, wrong, tried, bits, where);
        verdict(far == 0 && furthest <= LOGP_BOUND,
                "pick, vocabulary %d: log-probabilities at most %.1e from the CPU's (bound %.1e), %ld are no "
                "number or "
                "should be none",
                n_vocab, furthest, LOGP_BOUND, far);
    }
}

/* ---- accept, place, offer ---- */

/* What one accept leaves: the lists, and the result in shared memory. */
struct accepted {
    int32_t ids[64], pos[64], history[256], anchor, first, kept;
    uint32_t number;
    struct kn_result result[3];
};

/* equal: NULL, or [256] by position (kn_accept). */
static void run_accept(struct kn_backend *be, const struct accepted *in, const int32_t *picks, int32_t n,
                       const int32_t *equal, struct accepted *out)
{
    const struct kn_ops *op = kn_op(be);
    int32_t *d_equal = equal ? put(be, equal, 256 * 4) : NULL;
    int32_t *d_picks = put(be, picks, 64 * 4);
    struct accepted *d = put(be, in, sizeof *in);
    uint64_t *stamp = put(be, NULL, KN_STAMPS * 8);
    struct kn_result *shared = op->alloc_shared(be, sizeof in->result);
    if (!shared) die("alloc_shared", kn_message(be));
    const struct kn_accept a = {.ids = d->ids,
                                .picks = d_picks,
                                .n = n,
                                .pos = d->pos,
                                .history = d->history,
                                .anchor = &d->anchor,
                                .first = &d->first,
                                .window = 20,
                                .kept = &d->kept,
                                .number = &d->number,
                                .stamp = stamp,
                                .results = shared,
                                .n_results = 3,
                                .equal = d_equal};
    for (int i = 0; i < KN_STAMPS; i++) must(be, "stamp", op->stamp(be, stamp + i));
    must(be, "place", op->place(be, d->history, d->pos, d->ids, n));
    must(be, "accept", op->accept(be, &a));
    must(be, "await", op->await(be, &shared[in->number % 3].number, in->number + 1));
    must(be, "download", op->download(be, out, d, sizeof *out));
    memcpy(out->result, shared, sizeof out->result);
    struct kn_result *r = &out->result[in->number % 3];
    for (int i = 0; i < KN_STAMPS; i++)
        if (!r->stamp[i] || (i ? r->stamp[i] < r->stamp[i - 1] : r->accepted < r->stamp[KN_STAMPS - 1]))
            verdict(false, "accept: times out of order");
    memset(r->stamp, 0, sizeof r->stamp);
    r->accepted = 0;
    op->free_shared(be, shared);
    drop(be, d), drop(be, d_picks), drop(be, stamp);
    if (d_equal) drop(be, d_equal);
}

static void check_accept(void)
{
    static const struct {
        int n, equal;         /* leading proposals that are their picks */
        int bad_id, bad_pick; /* index of one that is none; -1 */
    } c[] = {{1, 0, -1, -1},   {1, 0, -1, -1},   {16, 0, -1, -1},  {16, 7, -1, -1},
             {16, 15, -1, -1}, {8, 15, -1, -1},  {64, 31, -1, -1}, {64, 32, -1, -1},
             {64, 40, -1, -1}, {64, 63, -1, -1}, {33, 63, -1, -1}, {16, 9, 5, -1},
             {16, 9, 15, -1},  {8, 9, 12, -1},   {16, 9, -1, 9},   {16, 15, 6, 5}};
    for (size_t k = 0; k < sizeof c / sizeof *c; k++) {
        static struct accepted in, out[2];
        int32_t picks[64];
        memset(&in, 0, sizeof in);
        in.number = (uint32_t)k;
        for (int i = 0; i < 64; i++) {
            in.pos[i] = (int32_t)k + 11 + i;
            picks[i] = 1000 + i;
            in.ids[i] = i && i <= c[k].equal ? picks[i - 1] : 7;
        }
        if (c[k].bad_id >= 0) in.ids[c[k].bad_id] = KN_PICK_NAN;
        if (c[k].bad_pick >= 0) picks[c[k].bad_pick] = KN_PICK_NAN;
        for (int b = 0; b < 2; b++) run_accept(b ? gpu : cpu, &in, picks, c[k].n, NULL, &out[b]);
        verdict(!memcmp(&out[0], &out[1], sizeof out[0]), "accept %d rows, %d equal: %d kept", c[k].n,
                c[k].equal, out[1].kept);
        const int32_t kept = out[1].kept;
        int32_t equal[256] = {0};
        equal[in.pos[0]] = c[k].equal;
        for (int i = 1; i < 64; i++)
            if (in.ids[i] != KN_PICK_NAN) in.ids[i] = 7;
        for (int b = 0; b < 2; b++) run_accept(b ? gpu : cpu, &in, picks, c[k].n, equal, &out[b]);
        verdict(!memcmp(&out[0], &out[1], sizeof out[0]) && (out[1].kept == kept || c[k].bad_pick >= 0),
                "accept %d rows, %d count as equal: %d kept", c[k].n, c[k].equal, out[1].kept);
    }
}

/* What one offer leaves. */
struct offered {
    int32_t ids[64], pos;
    float logp[64];
    uint64_t stamp;
    uint32_t number;
    struct kn_offer offer[3];
};

static void run_offer(struct kn_backend *be, const struct offered *in, int32_t n, struct offered *out)
{
    const struct kn_ops *op = kn_op(be);
    struct offered *d = put(be, in, sizeof *in);
    struct kn_offer *shared = op->alloc_shared(be, sizeof in->offer);
    if (!shared) die("alloc_shared", kn_message(be));
    const struct kn_offering a = {.ids = d->ids,
                                  .logp = d->logp,
                                  .pos = &d->pos,
                                  .n = n,
                                  .stamp = &d->stamp,
                                  .number = &d->number,
                                  .offers = shared,
                                  .n_offers = 3};
    must(be, "offer", op->offer(be, &a));
    must(be, "await", op->await(be, &shared[in->number % 3].number, in->number + 1));
    must(be, "download", op->download(be, out, d, sizeof *out));
    memcpy(out->offer, shared, sizeof out->offer);
    if (!out->stamp) verdict(false, "offer: no time");
    out->stamp = 0;
    op->free_shared(be, shared);
    drop(be, d);
}

static void check_offer(void)
{
    static const int c[][2] = {{1, -1}, {2, -1},  {16, -1}, {64, -1},
                               {16, 1}, {16, 15}, {64, 40}}; /* n, bad */
    for (size_t k = 0; k < sizeof c / sizeof *c; k++) {
        static struct offered in, out[2];
        memset(&in, 0, sizeof in);
        in.number = (uint32_t)k + 5;
        in.pos = 1000 + (int32_t)k;
        for (int i = 0; i < 64; i++) in.ids[i] = 100 + i, in.logp[i] = -0.25f * (float)i;
        if (c[k][1] > 0) in.ids[c[k][1]] = KN_PICK_NAN;
        for (int b = 0; b < 2; b++) run_offer(b ? gpu : cpu, &in, c[k][0], &out[b]);
        const struct kn_offer *o = &out[1].offer[in.number % 3];
        verdict(!memcmp(&out[0], &out[1], sizeof out[0]) && o->pos == in.pos && o->usable == (c[k][1] < 0),
                "offer of %d rows, %s", c[k][0], o->usable ? "usable" : "one is none");
    }
}

/* Candidates and their scores that go with an offer. */
static void check_candidates(void)
{
    static const int c[][2] = {{2, 1}, {16, 16}, {64, 32}}; /* n, candidates */
    for (size_t k = 0; k < sizeof c / sizeof *c; k++) {
        const int n = c[k][0], top = c[k][1], all = (n - 1) * top;
        static struct offered in;
        static int32_t ids[63 * KN_TOP];
        static float values[63 * KN_TOP], scores[63 * KN_TOP * KN_TOP];
        struct kn_offer *shared = kn_op(gpu)->alloc_shared(gpu, sizeof in.offer);
        struct kn_candidates *to = kn_op(gpu)->alloc_shared(gpu, 3 * sizeof *to);
        if (!shared || !to) die("alloc_shared", kn_message(gpu));
        in.number = (uint32_t)k + 1;
        for (int i = 0; i < all; i++) ids[i] = i * 3, values[i] = (float)i / 7;
        for (int i = 0; i < all * top; i++) scores[i] = (float)i / 3;
        struct offered *d = put(gpu, &in, sizeof in);
        int32_t *di = put(gpu, ids, (size_t)all * 4);
        float *dv = put(gpu, values, (size_t)all * 4), *ds = put(gpu, scores, (size_t)(all * top) * 4);
        const struct kn_offering a = {.ids = d->ids,
                                      .logp = d->logp,
                                      .pos = &d->pos,
                                      .n = n,
                                      .stamp = &d->stamp,
                                      .number = &d->number,
                                      .offers = shared,
                                      .n_offers = 3,
                                      .top_ids = di,
                                      .top_values = dv,
                                      .top_scores = ds,
                                      .top = top,
                                      .candidates = to};
        must(gpu, "offer", kn_op(gpu)->offer(gpu, &a));
        must(gpu, "await", kn_op(gpu)->await(gpu, &shared[in.number % 3].number, in.number + 1));
        const struct kn_candidates *got = &to[in.number % 3];
        verdict(!memcmp(got->ids, ids, (size_t)all * 4) && !memcmp(got->values, values, (size_t)all * 4) &&
                    !memcmp(got->scores, scores, (size_t)(all * top) * 4),
                "offer of %d places of %d candidates and their scores", n - 1, top);
        drop(gpu, d), drop(gpu, di), drop(gpu, dv), drop(gpu, ds);
        kn_op(gpu)->free_shared(gpu, shared), kn_op(gpu)->free_shared(gpu, to);
    }
}

static void check_keep(void)
{
    enum { SLOTS = 64 };
    static const struct {
        int32_t pos, n, width;
    } c[] = {{0, 1, 5}, {63, 1, 3000}, {64, 1, 20480}, {100, 3, 1111}, {127, 2, 64}};
    for (size_t k = 0; k < sizeof c / sizeof *c; k++) {
        const size_t all = (size_t)SLOTS * (size_t)c[k].width * 4, some = all / SLOTS * (size_t)c[k].n;
        float *x = malloc(some), *out[2];
        int32_t pos[3];
        if (!x) die("memory", "keep");
        for (size_t i = 0; i < some / 4; i++) x[i] = (float)i + 0.5f;
        for (int i = 0; i < 3; i++) pos[i] = c[k].pos + i;
        for (int b = 0; b < 2; b++) {
            struct kn_backend *be = b ? gpu : cpu;
            float *dst = put(be, NULL, all), *d_x = put(be, x, some);
            int32_t *d_pos = put(be, pos, sizeof pos);
            if (!(out[b] = malloc(all))) die("memory", "keep");
            must(be, "keep", kn_op(be)->keep(be, dst, SLOTS, d_pos, d_x, c[k].n, c[k].width));
            must(be, "download", kn_op(be)->download(be, out[b], dst, all));
            drop(be, dst), drop(be, d_x), drop(be, d_pos);
        }
        verdict(!memcmp(out[0], out[1], all) && out[1][(size_t)(c[k].pos % SLOTS * c[k].width)] == 0.5f,
                "keep %d rows of %d at %d", c[k].n, c[k].width, c[k].pos);
        free(x), free(out[0]), free(out[1]);
    }
}

/* ---- refusals ---- */

static void check_refusals(void)
{
    char msg[256];
    struct kn_backend *be;
    struct kn_open o = {.device = "cuda:77"};
    int rc = kn_backend_open(&be, &o, msg, sizeof msg);
    verdict(rc == KN_EDEVICE && !be && strstr(msg, "77"), "device 77: %s", msg);
    o.device = "cuda:x";
    rc = kn_backend_open(&be, &o, msg, sizeof msg);
    verdict(rc == KN_EINVAL && !be, "device x: %s", msg);
    void *p = kn_op(gpu)->alloc(gpu, (size_t)1 << 50);
    verdict(!p && strstr(kn_message(gpu), "out of device memory"), "a petabyte: %s", kn_message(gpu));
    struct kn_kv kv = {NULL, NULL, {KN_F16, KN_F16}, 500, 2, 64};
    struct kn_attention a = {.kv = &kv, .n = 1, .n_head = 4};
    verdict(kn_op(gpu)->attention(gpu, &a) == KN_EINVAL, "a ring of 500: %s", kn_message(gpu));
    kv.cap = 512, kv.head_dim = 24;
    verdict(kn_op(gpu)->attention(gpu, &a) == KN_ETYPE, "a head of 24: %s", kn_message(gpu));
    kv.head_dim = 64, a.n_head = 5;
    verdict(kn_op(gpu)->attention(gpu, &a) == KN_EINVAL, "5 heads over 2: %s", kn_message(gpu));
    float *x = put(gpu, NULL, 64);
    rc = kn_op(gpu)->sync(gpu);
    verdict(rc == 0, "the device works after all that");
    drop(gpu, x);
}

/* ---- bench ---- */

static void bench(void)
{
    static const struct {
        const char *name;
        struct kn_sampler s;
    } set[] = {
        {"greedy", {.temp = 0, .top_p = 1, .repeat_penalty = 1}},
        {"temperature", {.temp = 0.8f, .top_p = 1, .repeat_penalty = 1, .seed = 1}},
        {"top-k 20, top-p 0.95", {.temp = 0.7f, .top_k = 20, .top_p = 0.95f, .repeat_penalty = 1, .seed = 1}},
        {"top-p 0.95, penalty",
         {.temp = 1, .top_p = 0.95f, .repeat_penalty = 1.1f, .repeat_last = 64, .seed = 1}}};
    const int v = 151936;
    rnd_state = 2;
    float *l = gaussians((size_t)16 * v, 3.0f), *dl = put(gpu, l, (size_t)16 * v * 4);
    int32_t host[512], *pos, *hist, *out = put(gpu, NULL, 64);
    float *logp = put(gpu, NULL, 64);
    for (int i = 0; i < 512; i++) host[i] = i + 100;
    pos = put(gpu, host, sizeof host), hist = put(gpu, host, sizeof host);
    must(gpu, "reserve", kn_op(gpu)->reserve(gpu, 16, 0, v, 2, 64));
    for (int k = 0; k < 4; k++)
        for (int n = 1; n <= 16; n += 15)
            for (int with = 0; with < 2; with++) {
                struct kn_pick p = {.logits = dl,
                                    .pos = pos,
                                    .history = hist,
                                    .n = n,
                                    .n_vocab = v,
                                    .sampler = set[k].s,
                                    .out = out,
                                    .logp = with ? logp : NULL};
                double s;
                TIMED(s, 50, kn_op(gpu)->pick(gpu, &p));
                printf("bench pick %s%s, %d of %d, %d rows: %.1f us\n", set[k].name,
                       with ? " and how probable" : "", v, v, n, s * 1e6);
            }
    drop(gpu, dl), drop(gpu, pos), drop(gpu, hist), drop(gpu, out), drop(gpu, logp), free(l);
}

int main(int argc, char **argv)
{
    char msg[256];
    bool generic = false, benching = false, ops = false, pair = false, cycles = false, plans = false,
         attend = false, only_kv = false, only_sparse = false, only_draft = false;
    for (; argc > 1 && argv[1][0] == '-'; argc--, argv++) {
        generic |= !strcmp(argv[1], "--generic");
        benching |= !strcmp(argv[1], "--bench");
        small |= !strcmp(argv[1], "--small");
        ops |= !strcmp(argv[1], "--ops");
        cycles |= !strcmp(argv[1], "--cycles");
        plans |= !strcmp(argv[1], "--plans");
        attend |= !strcmp(argv[1], "--attend");
        only_kv |= !strcmp(argv[1], "--kv");
        only_sparse |= !strcmp(argv[1], "--sparse");
        only_draft |= !strcmp(argv[1], "--draft");
        pair |= cycles || plans || !strcmp(argv[1], "--pair");
    }
    ops |= small || attend || only_kv || only_sparse || only_draft;
    small |= attend;
    struct kn_open c = {.device = "cpu"}, g = {.device = "cuda", .generic = generic};
    if (!benching && argc != (ops ? 1 : 3)) {
        fprintf(stderr, "usage: test_gpu [--generic] [--pair|--cycles|--plans] PAIR_DIR PROMPT.txt | "
                        "test_gpu [--generic] "
                        "--ops | --attend | --kv | --draft | --bench | "
                        "--small\n");
        return 2;
    }
    if (kn_backend_open(&gpu, &g, msg, sizeof msg) || kn_backend_open(&cpu, &c, msg, sizeof msg)) {
        fprintf(stderr, "test_gpu: %s\n", msg);
        return 5;
    }
    if (benching) {
        bench();
        bench_draft();
    } else {
        if (only_kv) {
            check_kv();
        } else if (only_sparse) {
            check_sparse();
        } else if (only_draft) {
            check_sinks();
            check_top();
            check_edges();
            check_walk(samplers, sizeof samplers / sizeof *samplers);
        } else if (attend) {
            check_attend();
            check_attention();
            check_sinks();
        } else if (!pair) {
            check_embed();
            check_rms_norm();
            check_rope_table();
            check_small();
            check_cells();
            check_weights();
            check_rope_store();
            check_attention();
            check_attention_extremes();
            check_sinks();
            check_attend();
            check_kv();
            check_sparse();
            if (!small) check_attention_forms();
            check_pick();
            check_conv();
            check_conv_then();
            check_top();
            check_edges();
            check_walk(samplers, sizeof samplers / sizeof *samplers);
            check_accept();
            check_offer();
            check_candidates();
            check_keep();
            check_refusals();
        }
        if (!ops && !cycles && !plans) check_pair(argv[1], argv[2]);
        if (!ops && !plans) check_cycles(argv[1], argv[2], generic);
        if (!ops) check_plans(argv[1], argv[2]);
        if (!ops) check_pieces(argv[1], argv[2]);
        printf("test_gpu: %ld passed, %ld failed%s\n", passed, failed, generic ? " (generic kernels)" : "");
    }
    kn_backend_close(gpu);
    kn_backend_close(cpu);
    return failed != 0;
}
