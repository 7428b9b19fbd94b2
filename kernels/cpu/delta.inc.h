/* delta.inc.h - the gated delta net: a key head and some of its value heads, over a run of tokens. Included
 * by rows_<isa>.c.
 *
 * The rows of a value head's state [d_v, d_k] do not meet: each goes through all tokens in registers, two at
 * a time, and is read once and written at most once. Shapes of the sums: two chains over the vectors of d_k,
 * even and odd, their sum, then the tree. The state's products with k and with q are taken in one pass, of
 * the decayed state: o = S q + e (k q). */

#define DELTA_ROWS 3
#define DELTA_INLINE static inline __attribute__((always_inline))

/* Scratch of a thread, for d_k and d_v rounded up to 16. */
struct delta_buf {
    float *tap;               /* [n_conv, d] of one part */
    float *q, *k;             /* [tokens, dk] normed, zeros past d_k */
    float *v, *o;             /* [tokens, dv] of one value head */
    float *decay, *beta, *kq; /* [tokens] */
    int32_t dk, dv;
};

static struct delta_buf delta_divide(const struct cpu_delta *w)
{
    const struct kn_delta *a = w->a;
    struct delta_buf b = {.dk = (a->d_k + 15) & ~15, .dv = (a->d_v + 15) & ~15};
    const size_t t = CPU_DELTA_TOKENS;
    b.tap = w->scratch;
    b.q = b.tap + CPU_DELTA_TAPS * CPU_DELTA_HEAD;
    b.k = b.q + t * (size_t)b.dk;
    b.v = b.k + t * (size_t)b.dk;
    b.o = b.v + t * (size_t)b.dv;
    b.decay = b.o + t * (size_t)b.dv;
    b.beta = b.decay + t;
    b.kq = b.beta + t;
    return b;
}

/* out[tokens, stride] = silu(convolution) of the channels [c0, c0 + d); zeros up to a multiple of 16. The
 * oldest tap first, its product rounded, the others fused. */
static void delta_conv(const struct cpu_delta *w, float *tap, float *out, int32_t stride, int64_t c0,
                       int32_t d)
{
    const struct kn_delta *a = w->a;
    const int32_t taps = a->n_conv;
    for (int32_t c = 0; c < d; c++)
        for (int32_t j = 0; j < taps; j++) tap[j * CPU_DELTA_HEAD + c] = a->conv[(c0 + c) * taps + j];
    for (int32_t t = 0; t < w->n_tokens; t++, out += stride)
        for (int32_t c = 0; c < d; c += 16) {
            const int left = d - c < 16 ? d - c : 16;
            struct vec s = v_mul(v_load_n(tap + c, left), v_load_n(w->in[t] + c0 + c, left));
            for (int32_t j = 1; j < taps; j++)
                s = v_fma(v_load_n(tap + j * CPU_DELTA_HEAD + c, left), v_load_n(w->in[t + j] + c0 + c, left),
                          s);
            v_store(out + c, v_silu(s)); /* silu(0) = 0 past d */
        }
}

static void delta_l2(float *x, int32_t n, float scale)
{
    const struct vec s = v_set1(1.0f / sqrtf(v_dot(x, x, n) + 1e-6f)), t = v_set1(scale);
    for (int32_t i = 0; i < n; i += 16) v_store(x + i, v_mul(v_mul(v_load(x + i), s), t));
}

/* Tokens [from, to) of R rows of the state in s. Without output o is neither computed nor written. Row after
 * row, so that the processor multiplies one while the sums of another fold: no more than R rows' vectors fit
 * its registers. */
DELTA_INLINE void delta_tokens(struct vec (*s)[16], const struct delta_buf *b, const int nv, const int R,
                               int32_t row, int32_t from, int32_t to, const int output)
{
    for (int32_t t = from; t < to; t++) {
        const float *k = b->k + (int64_t)t * b->dk, *q = b->q + (int64_t)t * b->dk,
                    *v = b->v + (int64_t)t * b->dv + row;
        float *o = b->o + (int64_t)t * b->dv + row;
        const struct vec decay = v_set1(b->decay[t]);
        const float beta = b->beta[t], kq = b->kq[t];
        float e[DELTA_ROWS];
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            struct vec ak[2] = {v_zero(), v_zero()}, aq[2] = {v_zero(), v_zero()};
#pragma GCC unroll 8
            for (int c = 0; c < nv; c++) {
                s[r][c] = v_mul(s[r][c], decay);
                ak[c & 1] = v_fma(s[r][c], v_load(k + 16 * c), ak[c & 1]);
                if (output) aq[c & 1] = v_fma(s[r][c], v_load(q + 16 * c), aq[c & 1]);
            }
            e[r] = beta * (v[r] - v_sum(v_add(ak[0], ak[1])));
            if (output) o[r] = fmaf(e[r], kq, v_sum(v_add(aq[0], aq[1])));
        }
#pragma GCC unroll 4
        for (int r = 0; r < R; r++) {
            const struct vec x = v_set1(e[r]);
#pragma GCC unroll 8
            for (int c = 0; c < nv; c++) s[r][c] = v_fma(x, v_load(k + 16 * c), s[r][c]);
        }
    }
}

/* R rows of one head's state through the call. */
DELTA_INLINE void delta_rows(const struct cpu_delta *w, const struct delta_buf *b, float *state, const int nv,
                             const int R, int32_t row)
{
    const int32_t d_k = w->a->d_k, n = w->n_tokens, replay = w->replay;
    struct vec s[DELTA_ROWS][16];
    float *at = state + (int64_t)row * d_k;
#pragma GCC unroll 4
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int c = 0; c < nv; c++) {
            const int left = d_k - 16 * c;
            s[r][c] = left >= 16 ? v_load(at + r * d_k + 16 * c) : v_load_n(at + r * d_k + 16 * c, left);
        }
    delta_tokens(s, b, nv, R, row, 0, replay, 0);
    for (int end = 0; end < 2; end++) {
        if (end) delta_tokens(s, b, nv, R, row, replay, n, 1);
        if (w->advance == 0 || w->advance != (end ? n : replay) || (end && n == replay)) continue;
#pragma GCC unroll 4
        for (int r = 0; r < R; r++)
#pragma GCC unroll 8
            for (int c = 0; c < nv; c++) {
                const int left = d_k - 16 * c;
                v_store_n(at + r * d_k + 16 * c, s[r][c], left < 16 ? left : 16);
            }
    }
}

static void delta_state(const struct cpu_delta *w, const struct delta_buf *b, float *state)
{
    const int32_t d_v = w->a->d_v, nv = b->dk / 16;
    int32_t r = 0;
    if (w->a->d_k == 128)
        for (; r + DELTA_ROWS <= d_v; r += DELTA_ROWS) delta_rows(w, b, state, 8, DELTA_ROWS, r);
    for (; r < d_v; r++) delta_rows(w, b, state, nv, 1, r);
}

/* Gates, convolution, state and output of one value head; q and k stand in b. */
static void delta_value_head(const struct cpu_delta *w, const struct delta_buf *b, int32_t h)
{
    const struct kn_delta *a = w->a;
    const int64_t first_v = 2 * (int64_t)a->n_k * a->d_k, size = (int64_t)a->n_v * a->d_v;
    for (int32_t t = 0; t < w->n_tokens; t++) {
        b->beta[t] = w->beta[t][h];
        b->decay[t] = a->a[h] * cpu_softplus(w->alpha[t][h] + a->dt[h]);
    }
    for (int32_t t = 0; t < w->n_tokens; t += 16) {
        const int left = w->n_tokens - t < 16 ? w->n_tokens - t : 16;
        v_store_n(b->beta + t, v_sigmoid(v_load_n(b->beta + t, left)), left);
        v_store_n(b->decay + t, v_exp(v_load_n(b->decay + t, left)), left);
    }
    delta_conv(w, b->tap, b->v, b->dv, first_v + (int64_t)h * a->d_v, a->d_v);
    delta_state(w, b, a->state->s + (int64_t)h * a->d_v * a->d_k);
    for (int32_t t = w->replay; t < w->n_tokens; t++) {
        const int64_t row = w->rows ? w->rows[t - w->replay] : w->row + t - w->replay,
                      at = row * size + (int64_t)h * a->d_v;
        float *out = a->out + at;
        rows_rms_norm(out, b->o + (int64_t)t * b->dv, a->norm, a->d_v, a->eps);
        for (int32_t i = 0; i < a->d_v; i += 16) {
            const int left = a->d_v - i < 16 ? a->d_v - i : 16;
            v_store_n(out + i, v_mul(v_load_n(out + i, left), v_silu(v_load_n(a->z + at + i, left))), left);
        }
    }
}

static void rows_delta(const struct cpu_delta *w)
{
    const struct kn_delta *a = w->a;
    const struct delta_buf b = delta_divide(w);
    const float scale = 1.0f / sqrtf((float)a->d_k);
    delta_conv(w, b.tap, b.q, b.dk, (int64_t)w->k_head * a->d_k, a->d_k);
    delta_conv(w, b.tap, b.k, b.dk, (int64_t)(a->n_k + w->k_head) * a->d_k, a->d_k);
    for (int32_t t = 0; t < w->n_tokens; t++) {
        float *q = b.q + (int64_t)t * b.dk, *k = b.k + (int64_t)t * b.dk;
        delta_l2(q, a->d_k, scale);
        delta_l2(k, a->d_k, 1.0f);
        b.kq[t] = v_dot(k, q, a->d_k);
    }
    for (int32_t j = w->first; j < w->end; j++) delta_value_head(w, &b, w->k_head + j * a->n_k);
}
