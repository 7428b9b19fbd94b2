/* experts_gpu.c - products with the experts that rows chose, on the CUDA backend, against double precision.
 *
 * usage: experts_gpu [--generic] [--device DEVICE] [--small] [--around NAME]
 *   --device cpu    runs the checks themselves, without a GPU
 *   --small         few cases, for compute-sanitizer
 *   --around NAME   products around a mixture alone, those with NAME in their names ("": all)
 *
 * Activations are integers of at most 127, the largest of every 32 columns 127: rounding them to 8 bits is
 * exact, also after a norm with one weight for all columns, so what is left is the error of float sums and a
 * wrong code, scale, column or expert shows. (Rounding itself is that of the dense products: mm_gpu.) Every
 * case is computed for all rows at once, for each row alone, in uneven groups and by every form of the
 * kernel, and must have the same bits; outputs are NaN before. Prints "ok   gpu/..." or "FAIL gpu/..." a
 * case; exit 1 if any failed, 5 if there is no device. */
#include "../experts_data.h"
#include "../forms.h"

static void fetch(void *host, const void *p, size_t bytes)
{
    must(gpu, "download", kn_op(gpu)->download(gpu, host, p, bytes));
}

/* ---- references ---- */

/* Row `row` of matrix m times x, and the sum of the terms' magnitudes. */
static double dot(const struct matrices *m, int32_t id, int64_t row, const float *x, double times,
                  float *decoded, double *terms)
{
    double sum = 0;
    *terms = 0;
    kn_decode_row(m->type, m->file + (size_t)(id * m->n_out + row) * kn_row_bytes(m->type, m->n_in), decoded,
                  m->n_in);
    for (int64_t k = 0; k < m->n_in; k++) {
        const double t = (double)decoded[k] * x[k] * times;
        sum += t;
        *terms += fabs(t);
    }
    return sum;
}

static double act_of(enum kn_act act, double g)
{
    return act == KN_ACT_SILU ? g / (1 + exp(-g))
                              : 0.5 * g * (1 + tanh(0.7978845608028654 * (g + 0.044715 * g * g * g)));
}

/* A product's sum in float32: a rounding for each unit, slice, scale; the tensor core's own sums of float
 * types keep fewer bits than float32 has (mm_gpu's bound: 2^-20 of the terms). */
static double sum_error(uint32_t type, int64_t n_in, double terms)
{
    const bool whole = type != KN_F32 && type != KN_F16 && type != KN_BF16;
    return whole ? terms * 0x1p-24 * ((double)n_in / 32 + 24) : terms * 0x1p-20;
}

/* Rows in groups of at most `step`, 0: of 1, 2, 3, ... */
static void run_gated(const struct data *d, int step, float *out)
{
    const struct shape *s = d->s;
    const size_t bytes = (size_t)d->n * d->hidden * 4;
    memset(out, 0xff, bytes);
    must(gpu, "upload", kn_op(gpu)->upload(gpu, d->d_out, out, bytes));
    for (int i = 0, k = 1, some; i < d->n; i += some, k++) {
        some = step ? step : k;
        if (some > d->n - i) some = d->n - i;
        must(gpu, "experts_gated",
             kn_op(gpu)->experts_gated(gpu, d->d_out + (size_t)i * d->hidden, &d->gate.w, &d->up.w,
                                       d->d_x + (size_t)i * d->out, d->d_norm, eps, s->act,
                                       d->d_ids + i * s->used, some, s->used));
    }
    fetch(out, d->d_out, bytes);
}
static void run_down(const struct data *d, int step, bool add, float *out)
{
    const struct shape *s = d->s;
    const size_t bytes = (size_t)d->n * d->out * 4;
    memset(out, 0xff, bytes);
    must(gpu, "upload", kn_op(gpu)->upload(gpu, d->d_out, add ? d->old : out, bytes));
    for (int i = 0, k = 1, some; i < d->n; i += some, k++) {
        some = step ? step : k;
        if (some > d->n - i) some = d->n - i;
        must(gpu, "experts_down",
             kn_op(gpu)->experts_down(gpu, d->d_out + (size_t)i * d->out, &d->down.w,
                                      d->d_h + (size_t)i * d->hidden, d->d_ids + i * s->used,
                                      d->d_weights + i * s->used, some, s->used, add));
    }
    fetch(out, d->d_out, bytes);
}

/* Of the outputs of a row: the first and last 16 and every 29th. */
static bool sampled(int64_t i, int64_t n)
{
    return i < 16 || i >= n - 16 || i % 29 == 0;
}

/* The largest error in bounds, over a sample; INFINITY where it is NaN. */
static double gated_error(const struct data *d, const float *out)
{
    const struct shape *s = d->s;
    float *decoded = host_alloc((size_t)s->embd * 4);
    double worst = 0;
    for (int p = 0; p<d->n * s->used; p += d->n> 20 ? 1 + d->n * s->used / 97 : 1) {
        const float *x = d->x + (size_t)(p / s->used) * d->out;
        double squares = 0;
        for (int64_t i = 0; i < s->embd; i++) squares += (double)x[i] * x[i];
        const double r = norm_weight / sqrt(squares / (double)s->embd + (double)eps);
        for (int64_t o = 0; o < s->ff; o++) {
            if (!sampled(o, s->ff)) continue;
            double tg, tu;
            const double g = dot(&d->gate, d->ids[p], o, x, r, decoded, &tg),
                         u = dot(&d->up, d->ids[p], o, x, r, decoded, &tu);
            /* the norm: its sum and root; both slopes are below 1.13 */
            const double norm = 0x1p-24 * ((double)s->embd / 32 + 24),
                         eg = sum_error(s->gate, s->embd, tg) + norm * tg,
                         eu = sum_error(s->gate, s->embd, tu) + norm * tu, a = act_of(s->act, g);
            const double bound = 1.13 * eg * (fabs(u) + eu) + (fabs(a) + 1e-6) * eu + fabs(a * u) * 0x1p-20 +
                                 fabs(u) * fabs(g) * 0x1p-21 + 1e-30;
            const double e = fabs(out[(size_t)p * (size_t)s->ff + (size_t)o] - a * u) / bound;
            worst = e != e ? INFINITY : fmax(worst, e);
        }
    }
    free(decoded);
    return worst;
}
static double down_error(const struct data *d, bool add, const float *out)
{
    const struct shape *s = d->s;
    float *decoded = host_alloc((size_t)s->ff * 4);
    double worst = 0;
    for (int i = 0; i<d->n; i += d->n> 20 ? 1 + d->n / 9 : 1)
        for (int64_t o = 0; o < s->embd; o++) {
            if (!sampled(o, s->embd)) continue;
            const size_t at = (size_t)i * d->out + (size_t)o;
            double sum = add ? d->old[at] : 0, bound = 1e-30, all = fabs(sum);
            for (int j = 0; j < s->used; j++) {
                const int p = i * s->used + j;
                double terms;
                const double v = d->weights[p] * dot(&d->down, d->ids[p], o, d->h + (size_t)p * (size_t)s->ff,
                                                     1, decoded, &terms);
                sum += v;
                all += fabs(v);
                bound += d->weights[p] * sum_error(s->down, s->ff, terms);
            }
            bound += 0x1p-24 * (s->used + 2) * all;
            const double e = fabs(out[at] - sum) / bound;
            worst = e != e ? INFINITY : fmax(worst, e);
        }
    free(decoded);
    return worst;
}

/* ---- cases ---- */

static const int row_counts[] = {1, 2, 5, 8, 9, 16, 17, 40, 64, 0};
static const int few_counts[] = {1, 3, 11, 20, 0}, odd_counts[] = {1, 3, 11, 20, 2100, 0};

static void check_rows(struct data *d, int n, enum routing how)
{
    const struct shape *s = d->s;
    data_make(d, s, n, how);
    const size_t hidden = (size_t)n * d->hidden * 4, outs = (size_t)n * d->out * 4;
    float *all = host_alloc(hidden > outs ? hidden : outs), *part = host_alloc(hidden > outs ? hidden : outs);
    run_gated(d, n, all);
    double worst = gated_error(d, all);
    bool same = true;
    for (int step = 0; step < 2; step++) {
        run_gated(d, step, part);
        same &= !memcmp(all, part, hidden);
    }
    for (experts_tuning.form = 0; experts_tuning.form < 5; experts_tuning.form++) {
        run_gated(d, n, part);
        same &= !memcmp(all, part, hidden);
    }
    experts_tuning.form = -1;
    verdict(worst <= 1 && same, "experts_gated %s, %d rows choose %s: %.3f of the bound%s", s->name, n,
            routing_names[how], worst, same ? "" : ", other bits in other company");
    const bool add = n % 2;
    run_down(d, n, add, all);
    worst = down_error(d, add, all);
    same = true;
    for (int step = 0; step < 2; step++) {
        run_down(d, step, add, part);
        same &= !memcmp(all, part, outs);
    }
    for (experts_tuning.form = 0; experts_tuning.form < 5; experts_tuning.form++) {
        run_down(d, n, add, part);
        same &= !memcmp(all, part, outs);
    }
    experts_tuning.form = -1;
    verdict(worst <= 1 && same, "experts_down %s, %d rows choose %s: %.3f of the bound%s", s->name, n,
            routing_names[how], worst, same ? "" : ", other bits in other company");
    free(all), free(part);
    data_free(d);
}

/* A row that holds a NaN spoils its own outputs, all of them, and no other's. */
static void check_nan(struct data *d)
{
    const struct shape *s = d->s;
    data_make(d, s, 5, MIXED);
    d->x[2 * d->out + 7] = NAN;
    d->h[2 * d->hidden + (size_t)s->ff + 3] = NAN;
    must(gpu, "upload", kn_op(gpu)->upload(gpu, d->d_x, d->x, 5 * d->out * 4));
    must(gpu, "upload", kn_op(gpu)->upload(gpu, d->d_h, d->h, 5 * d->hidden * 4));
    float *out = host_alloc(5 * (d->hidden > d->out ? d->hidden : d->out) * 4);
    int wrong = 0;
    run_gated(d, 5, out);
    for (size_t i = 0; i < 5 * d->hidden; i++) wrong += isnan(out[i]) != (i / d->hidden == 2);
    run_down(d, 5, false, out);
    for (size_t i = 0; i < 5 * d->out; i++) wrong += isnan(out[i]) != (i / d->out == 2);
    verdict(!wrong, "experts %s, a NaN in a row: %d values wrong", s->name, wrong);
    free(out);
    data_free(d);
}

/* Recorded with some experts, replayed with others. */
static void check_replay(struct data *d)
{
    const struct kn_ops *op = kn_op(gpu);
    const struct shape *s = d->s;
    const int n = 6;
    void *recording = NULL;
    if (!op->record_begin) return;
    data_make(d, s, n, SAME);
    const size_t bytes = (size_t)n * d->out * 4;
    float *want = host_alloc(bytes), *got = host_alloc(bytes), *h = put(gpu, NULL, (size_t)n * d->hidden * 4);
    for (int turn = 0; turn < 2; turn++) {
        int rc = 0;
        if (turn) must(gpu, "record_begin", op->record_begin(gpu));
        if (!turn || !rc)
            rc = op->experts_gated(gpu, h, &d->gate.w, &d->up.w, d->d_x, d->d_norm, eps, s->act, d->d_ids, n,
                                   s->used);
        if (!rc)
            rc = op->experts_down(gpu, d->d_out, &d->down.w, h, d->d_ids, d->d_weights, n, s->used, false);
        must(gpu, "experts", rc);
        if (turn) must(gpu, "record_end", op->record_end(gpu, &recording));
    }
    choose(d->ids, n, s->used, s->n_mat, MIXED);
    must(gpu, "upload", op->upload(gpu, d->d_ids, d->ids, (size_t)(n * s->used) * 4));
    must(gpu, "replay", op->replay(gpu, recording));
    fetch(got, d->d_out, bytes);
    must(gpu, "experts",
         op->experts_gated(gpu, h, &d->gate.w, &d->up.w, d->d_x, d->d_norm, eps, s->act, d->d_ids, n,
                           s->used));
    must(gpu, "experts",
         op->experts_down(gpu, d->d_out, &d->down.w, h, d->d_ids, d->d_weights, n, s->used, false));
    fetch(want, d->d_out, bytes);
    verdict(!memcmp(want, got, bytes), "experts %s, recorded with other experts than replayed", s->name);
    op->record_free(gpu, recording);
    op->free(gpu, h);
    free(want), free(got);
    data_free(d);
}

/* ---- the mixture: all in one operation ---- */

struct mixed {
    float *logits, *shared_logits, *weights, *h, *out; /* on the device */
    int32_t *ids;
    const struct kn_weight *router, *shared_gate; /* or NULL: the logits are there */
};

/* Rows first .. of a mixture; shared: NULL, or its three matrices. */
static void mix(const struct data *d, const struct mixed *m, const struct kn_weight *const *shared, int first,
                int n)
{
    const struct shape *s = d->s;
    const int used = s->used + (shared ? 1 : 0);
    struct kn_mixture a = {.route = {.logits = m->logits + first * s->n_mat,
                                     .n = n,
                                     .n_expert = s->n_mat,
                                     .n_used = s->used,
                                     .renorm = true,
                                     .scale = 1.5f,
                                     .ids = m->ids + first * used,
                                     .weights = m->weights + first * used},
                           .x = d->d_x + (size_t)first * d->out,
                           .norm = d->d_norm,
                           .eps = eps,
                           .act = s->act,
                           .gate = &d->gate.w,
                           .up = &d->up.w,
                           .down = &d->down.w,
                           .h = m->h + (size_t)(first * used) * (size_t)s->ff,
                           .out = m->out + (size_t)first * d->out,
                           .add = true};
    for (int j = 0; shared && j < 3; j++) a.shared[j] = shared[j];
    if (shared) a.shared_logits = m->shared_logits + first;
    if (m->router) {
        a.router = m->router;
        a.router_norm = d->d_norm;
        a.logits = m->logits + first * s->n_mat;
        if (shared) a.shared_gate = m->shared_gate;
    }
    must(gpu, "mixture", kn_op(gpu)->mixture(gpu, &a));
}

/* The same by operations of their own: the shared expert as one more matrix, where all[] are such. */
static void mix_apart(const struct data *d, const struct mixed *m, const struct matrices *all, int n)
{
    const struct kn_ops *op = kn_op(gpu);
    const struct shape *s = d->s;
    const size_t used = (size_t)s->used + (all ? 1 : 0), pairs = (size_t)n * used;
    int32_t *ids = put(gpu, NULL, pairs * 4), *host_ids = host_alloc(pairs * 4);
    float *weights = put(gpu, NULL, pairs * 4), *host_weights = host_alloc(pairs * 4),
          *gates = host_alloc((size_t)n * 4);
    const struct kn_route r = {m->logits, n, s->n_mat, s->used, true, 1.5f, NULL, ids, weights};
    must(gpu, "route", op->route(gpu, &r));
    fetch(host_ids, ids, (size_t)(n * s->used) * 4);
    fetch(host_weights, weights, (size_t)(n * s->used) * 4);
    for (int i = 0; i < n; i++) gates[i] = 1;
    float *d_gates = put(gpu, gates, (size_t)n * 4);
    must(gpu, "gate", op->gate(gpu, d_gates, m->shared_logits, n, 1, 1));
    fetch(gates, d_gates, (size_t)n * 4);
    for (int i = n - 1; i >= 0 && all; i--) {
        memmove(host_ids + (size_t)i * used, host_ids + i * s->used, (size_t)s->used * 4);
        memmove(host_weights + (size_t)i * used, host_weights + i * s->used, (size_t)s->used * 4);
        host_ids[(size_t)i * used + used - 1] = s->n_mat;
        host_weights[(size_t)i * used + used - 1] = gates[i];
    }
    must(gpu, "upload", op->upload(gpu, m->ids, host_ids, pairs * 4));
    must(gpu, "upload", op->upload(gpu, m->weights, host_weights, pairs * 4));
    must(gpu, "experts_gated",
         op->experts_gated(gpu, m->h, all ? &all[0].w : &d->gate.w, all ? &all[1].w : &d->up.w, d->d_x,
                           d->d_norm, eps, s->act, m->ids, n, (int32_t)used));
    must(gpu, "experts_down",
         op->experts_down(gpu, m->out, all ? &all[2].w : &d->down.w, m->h, m->ids, m->weights, n,
                          (int32_t)used, true));
    op->free(gpu, ids), op->free(gpu, weights), op->free(gpu, d_gates);
    free(host_ids), free(host_weights), free(gates);
}

/* All that a mixture leaves, and its sizes. */
struct left {
    uint8_t *all;
    size_t bytes;
};
static struct left left_of(const struct data *d, const struct mixed *m, int n, int used)
{
    const size_t pairs = (size_t)(n * used) * 4, h = pairs * (size_t)d->s->ff, out = (size_t)n * d->out * 4;
    struct left l = {host_alloc(2 * pairs + h + out), 2 * pairs + h + out};
    fetch(l.all, m->ids, pairs);
    fetch(l.all + pairs, m->weights, pairs);
    fetch(l.all + 2 * pairs, m->h, h);
    fetch(l.all + 2 * pairs + h, m->out, out);
    return l;
}

/* Logits of the router against double, in bounds of float32 sums. */
static double logits_error(const struct data *d, const struct matrices *router, const float *logits, int n,
                           int width)
{
    const struct shape *s = d->s;
    float *decoded = host_alloc((size_t)s->embd * 4);
    double worst = 0;
    for (int i = 0; i < n; i++) {
        const float *x = d->x + (size_t)i * d->out;
        double squares = 0, terms;
        for (int64_t k = 0; k < s->embd; k++) squares += (double)x[k] * x[k];
        const double r = norm_weight / sqrt(squares / (double)s->embd + (double)eps);
        for (int e = 0; e < width; e++) {
            const double want = dot(router, 0, e, x, r, decoded, &terms),
                         bound = 0x1p-24 * ((double)s->embd / 16 + 32) * terms + 1e-30;
            const double off = fabs(logits[i * width + e] - want) / bound;
            worst = off != off ? INFINITY : fmax(worst, off);
        }
    }
    free(decoded);
    return worst;
}

/* router: NULL, or two matrices, of the experts and of the shared one's gate. */
static void mixture_rows(struct data *d, const struct matrices *one, const struct matrices *all,
                         const struct matrices *router, int n)
{
    const struct shape *s = d->s;
    const int used = s->used + (one ? 1 : 0);
    const size_t pairs = (size_t)(n * used), lb = (size_t)(n * s->n_mat) * 4, gb = (size_t)n * 4;
    const struct kn_weight *shared[3] = {0};
    data_make(d, s, n, MIXED);
    float *logits = host_alloc(lb), *gates = host_alloc(gb), *again = host_alloc(lb);
    for (int i = 0; i < n * s->n_mat; i++) logits[i] = (float)((int32_t)rnd32() * 0x1p-29);
    for (int i = 0; i < n; i++) gates[i] = (float)((int32_t)rnd32() * 0x1p-30);
    for (int j = 0; j < 3 && one; j++) shared[j] = &one[j].w;
    struct left l[3];
    bool same = true;
    double worst = 0;
    for (int how = 0; how < 3;
         how++) { /* at once, row by row, by operations of their own from the first's logits */
        struct mixed m = {put(gpu, logits, lb),
                          put(gpu, gates, gb),
                          put(gpu, NULL, pairs * 4),
                          put(gpu, NULL, pairs * (size_t)s->ff * 4),
                          put(gpu, d->old, (size_t)n * d->out * 4),
                          put(gpu, NULL, pairs * 4),
                          router ? &router[0].w : NULL,
                          router ? &router[1].w : NULL};
        for (int i = 0; how < 2 && i < n; i += how ? 1 : n) mix(d, &m, one ? shared : NULL, i, how ? 1 : n);
        if (how == 2) mix_apart(d, &m, all, n);
        l[how] = left_of(d, &m, n, used);
        if (router && how < 2) {
            fetch(how ? again : logits, m.logits, lb);
            if (how) same &= !memcmp(again, logits, lb);
            if (!how) worst = logits_error(d, &router[0], logits, n, s->n_mat);
            if (!how && one) fetch(gates, m.shared_logits, gb);
            if (!how && one) worst = fmax(worst, logits_error(d, &router[1], gates, n, 1));
        }
        void *const device[] = {m.logits, m.shared_logits, m.weights, m.h, m.out, m.ids};
        for (int i = 0; i < 6; i++) drop(gpu, device[i]);
    }
    same &= !memcmp(l[0].all, l[1].all, l[0].bytes);
    const bool apart = !memcmp(l[0].all, l[2].all, l[0].bytes);
    verdict(same && apart && worst <= 1, "mixture %s%s%s, %d rows: %.3f of the logits' bound%s%s", s->name,
            one ? ", a shared expert" : "", router ? ", its router" : "", n, worst,
            same ? "" : ", other bits row by row", apart ? "" : ", other bits by separate operations");
    for (int how = 0; how < 3; how++) free(l[how].all);
    free(logits), free(gates), free(again);
    data_free(d);
}

/* A tensor of n_mat + 1 matrices, and the last of them as the shared expert. */
static void check_mixture(struct data *d, const int *counts)
{
    const struct kn_ops *op = kn_op(gpu);
    struct matrices all[3], one[3], router[2];
    struct matrices *const own[3] = {&d->gate, &d->up, &d->down};
    if (!op->mixture) return;
    for (int j = 0; j < 3; j++) {
        const struct matrices *m = own[j];
        const size_t bytes = (size_t)m->n_out * kn_row_bytes(m->type, m->n_in),
                     before = bytes * (size_t)m->n_mat;
        all[j] =
            (struct matrices){.type = m->type, .n_mat = m->n_mat + 1, .n_in = m->n_in, .n_out = m->n_out};
        all[j].file = host_alloc(before + bytes);
        memcpy(all[j].file, m->file, before);
        memcpy(all[j].file + before, m->file + (m->n_mat / 2) * (int64_t)bytes, bytes / 2);
        memcpy(all[j].file + before + bytes / 2, m->file, bytes - bytes / 2);
        must(gpu, "experts_load",
             op->experts_load(gpu, &all[j].w, m->type, m->n_in, m->n_out, m->n_mat + 1, all[j].file));
        one[j] = (struct matrices){.type = m->type, .n_in = m->n_in, .n_out = m->n_out};
        must(
            gpu, "weight_load",
            op->weight_load(gpu, &one[j].w, m->type, m->n_in, m->n_out, all[j].file + before, KN_USE_LINEAR));
    }
    const bool fits = op->mixture_shares(&d->gate.w, &one[0].w) &&
                      op->mixture_shares(&d->down.w, &one[2].w) &&
                      !op->mixture_shares(&d->gate.w, &d->down.w);
    verdict(fits, "mixture_shares %s", d->s->name);
    for (int j = 0; j < 2; j++) {
        const size_t rows = j ? 1 : (size_t)d->s->n_mat, width = (size_t)d->s->embd;
        router[j] = (struct matrices){.type = KN_F32, .n_in = d->s->embd, .n_out = (int64_t)rows};
        router[j].file = host_alloc(rows * width * 4);
        for (size_t i = 0; i < rows * width; i++)
            ((float *)router[j].file)[i] = (float)((int32_t)rnd32() * 0x1p-33);
        must(gpu, "weight_load",
             op->weight_load(gpu, &router[j].w, KN_F32, (int64_t)width, (int64_t)rows, router[j].file,
                             KN_USE_LINEAR));
    }
    for (int i = 0; counts[i]; i++)
        for (int with = 0; with < 2; with++) {
            if (with && counts[i] > 64) continue; /* a prompt's logits are a product's of f16 factors */
            mixture_rows(d, NULL, NULL, with ? router : NULL, counts[i]);
            if (d->s->used < 32) mixture_rows(d, one, all, with ? router : NULL, counts[i]);
        }
    for (int j = 0; j < 3; j++) matrices_free(all + j), matrices_free(one + j);
    matrices_free(router), matrices_free(router + 1);
}

/* A shared expert of other types than the others': its part of h, and what it adds, against itself alone. */
static void check_other_types(void)
{
    static const struct shape s = {
        "12 of [256, 512] Q4_K, shared Q6_K", 12, 3, 512, 256, KN_Q4_K, KN_Q4_K, KN_ACT_SILU};
    const struct kn_ops *op = kn_op(gpu);
    enum { N = 5 };
    struct data d = {.s = &s};
    struct matrices one[3];
    if (!op->mixture) return;
    d.gate = matrices_make(s.gate, s.n_mat, s.ff, s.embd);
    d.up = matrices_make(s.gate, s.n_mat, s.ff, s.embd);
    d.down = matrices_make(s.down, s.n_mat, s.embd, s.ff);
    for (int j = 0; j < 3; j++) {
        one[j] = matrices_make(j == 1 ? KN_Q5_K : KN_Q6_K, 1, j < 2 ? s.ff : s.embd, j < 2 ? s.embd : s.ff);
        one[j].w.n_mat = 0; /* one matrix is packed as a weight of its own */
    }
    const struct kn_weight *shared[3] = {&one[0].w, &one[1].w, &one[2].w};
    data_make(&d, &s, N, MIXED);
    float logits[N * 12], gates[N], ones[N], h[N * 4 * 256], own[N * 256], out[2][N * 512], alone[N * 512];
    int32_t zero[N] = {0};
    for (int i = 0; i < N * 12; i++) logits[i] = (float)((int32_t)rnd32() * 0x1p-29);
    for (int i = 0; i < N; i++) gates[i] = (float)((int32_t)rnd32() * 0x1p-30), ones[i] = 1;
    struct mixed m = {put(gpu, logits, sizeof logits),
                      put(gpu, gates, sizeof gates),
                      put(gpu, NULL, N * 4 * 4),
                      put(gpu, NULL, sizeof h),
                      put(gpu, NULL, sizeof alone),
                      put(gpu, NULL, N * 4 * 4),
                      NULL,
                      NULL};
    for (int with = 0; with < 2; with++) {
        must(gpu, "upload", op->upload(gpu, m.out, d.old, sizeof alone));
        mix(&d, &m, with ? shared : NULL, 0, N);
        fetch(out[with], m.out, sizeof alone);
    }
    fetch(h, m.h, sizeof h);
    for (int j = 0; j < 3; j++) one[j].w.n_mat = 1;
    int32_t *ids = put(gpu, zero, sizeof zero);
    float *w = put(gpu, ones, sizeof ones), *own_h = put(gpu, NULL, sizeof own);
    must(gpu, "gate", op->gate(gpu, w, m.shared_logits, N, 1, 1));
    must(gpu, "experts_gated",
         op->experts_gated(gpu, own_h, &one[0].w, &one[1].w, d.d_x, d.d_norm, eps, s.act, ids, N, 1));
    must(gpu, "experts_down", op->experts_down(gpu, m.out, &one[2].w, own_h, ids, w, N, 1, false));
    fetch(own, own_h, sizeof own);
    fetch(alone, m.out, sizeof alone);
    bool same = true;
    double worst = 0;
    for (int i = 0; i < N; i++) same &= !memcmp(h + (size_t)(i * 4 + 3) * 256, own + (size_t)i * 256, 1024);
    for (int i = 0; i < N * 512; i++) { /* two sums, of which one rounds at the size of either */
        const double e = fabs((double)out[1][i] - out[0][i] - alone[i]),
                     bound = 0x1p-22 * (fabs(out[0][i]) + fabs(out[1][i]) + fabs(alone[i]) + fabs(d.old[i]));
        worst = fmax(worst, e / bound);
    }
    verdict(same && worst <= 1, "mixture %s: %.3f of the bound%s", s.name, worst,
            same ? "" : ", other bits of h");
    void *const device[] = {m.logits, m.shared_logits, m.weights, m.h, m.out, m.ids, ids, w, own_h};
    for (int i = 0; i < 9; i++) op->free(gpu, device[i]);
    data_free(&d);
    for (int j = 0; j < 3; j++) matrices_free(one + j);
    matrices_free(&d.gate), matrices_free(&d.up), matrices_free(&d.down);
}

#include "experts_around.h"
#include "experts_host.h"

/* ---- all of a shape ---- */

static void check_shape(const struct shape *s, const int *counts, bool rest)
{
    struct data d = {.s = s};
    d.gate = matrices_make(s->gate, s->n_mat, s->ff, s->embd);
    d.up = matrices_make(s->gate, s->n_mat, s->ff, s->embd);
    d.down = matrices_make(s->down, s->n_mat, s->embd, s->ff);
    for (int i = 0; counts[i]; i++) check_rows(&d, counts[i], MIXED);
    if (rest) {
        check_rows(&d, 16, SAME);
        check_rows(&d, 40, SAME);
        check_rows(&d, 12, APART);
        check_rows(&d, 301, MIXED);
        check_rows(&d, 70, SAME);
        check_nan(&d);
        check_replay(&d);
        static const int mixed_counts[] = {1, 3, 9, 16, 17, 64, 70, 0};
        check_mixture(&d, mixed_counts);
        check_host(&d);
    }
    matrices_free(&d.gate), matrices_free(&d.up), matrices_free(&d.down);
}

static void check_shapes(bool small)
{
    static const struct shape small_shapes[] = {
        {"5 of [64, 256] Q4_K, down Q8_0", 5, 2, 256, 64, KN_Q4_K, KN_Q8_0, KN_ACT_SILU},
        {"9 of [40, 96] F16, down F32", 9, 3, 96, 40, KN_F16, KN_F32, KN_ACT_SILU}};
    static const struct shape shapes[] = {
        {"256 of [512, 2048] Q4_K", 256, 8, 2048, 512, KN_Q4_K, KN_Q4_K, KN_ACT_SILU},
        {"64 of [768, 2048] Q4_K, down Q6_K", 64, 8, 2048, 768, KN_Q4_K, KN_Q6_K, KN_ACT_SILU},
        {"32 of [704, 2816] Q4_K, down Q5_0", 32, 8, 2816, 704, KN_Q4_K, KN_Q5_0, KN_ACT_GELU_TANH},
        {"32 of [704, 2816] Q4_K, down Q8_0", 32, 8, 2816, 704, KN_Q4_K, KN_Q8_0, KN_ACT_GELU_TANH},
        {"8 of [704, 2816] Q6_K, down Q8_0", 8, 8, 2816, 704, KN_Q6_K, KN_Q8_0, KN_ACT_GELU_TANH},
        {"4 of [1408, 5120] Q5_K, down Q5_1", 4, 4, 5120, 1408, KN_Q5_K, KN_Q5_1, KN_ACT_SILU}};
    static const uint32_t types[] = {KN_F32,   KN_F16,     KN_BF16,   KN_Q8_0,  KN_Q4_0,    KN_Q4_1,
                                     KN_Q5_0,  KN_Q5_1,    KN_Q4_K,   KN_Q5_K,  KN_Q6_K,    KN_Q2_K,
                                     KN_Q3_K,  KN_IQ4_NL,  KN_IQ4_XS, KN_MXFP4, KN_IQ2_XXS, KN_IQ2_XS,
                                     KN_IQ2_S, KN_IQ3_XXS, KN_IQ3_S,  KN_IQ1_S, KN_IQ1_M};
    if (small) {
        for (int i = 0; i < 2; i++) check_shape(small_shapes + i, few_counts, i == 0);
        return;
    }
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) check_shape(shapes + i, row_counts, true);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) { /* odd sizes */
        const struct kn_type_info *t = kn_type_info(types[i]);
        const int64_t k = t->block == 1 ? 1 : t->block, embd = t->block == 1 ? 119 : 5 * k,
                      ff = t->block == 1 ? 43 : 3 * k;
        char name[64];
        const struct shape s = {name, 11,       3,        embd,
                                ff,   types[i], types[i], i % 2 ? KN_ACT_SILU : KN_ACT_GELU_TANH};
        snprintf(name, sizeof name, "11 of [%lld, %lld] %s", (long long)ff, (long long)embd, t->name);
        check_shape(&s, odd_counts, true);
    }
    static const struct shape
        one = {"1 of [17, 64] Q8_0, down BF16", 1, 1, 64, 17, KN_Q8_0, KN_BF16, KN_ACT_SILU},
        wide = {"40 of [32, 512] F32, 32 a row", 40, 32, 512, 32, KN_F32, KN_Q8_0, KN_ACT_SILU};
    check_shape(&one, few_counts, false);
    check_shape(&wide, odd_counts, true);
}

static void refused(int rc, int want, const char *word)
{
    verdict(rc == want && strstr(kn_message(gpu), word), "refused: %s", kn_message(gpu));
}

static void check_refusals(void)
{
    const struct kn_ops *op = kn_op(gpu);
    struct matrices a = matrices_make(KN_Q8_0, 3, 16, 64), b = matrices_make(KN_Q8_0, 3, 32, 64),
                    c = matrices_make(KN_F16, 3, 16, 64);
    struct kn_weight none = {0}, w;
    float *x = put(gpu, NULL, 1 << 16);
    int32_t *ids = put(gpu, NULL, 1 << 10);
    refused(op->experts_gated(gpu, x, &a.w, &b.w, x, x, eps, KN_ACT_SILU, ids, 1, 2), KN_EINVAL,
            "unequal shapes");
    if (!strcmp(op->name, "cuda"))
        refused(op->experts_gated(gpu, x, &a.w, &c.w, x, x, eps, KN_ACT_SILU, ids, 1, 2), KN_ETYPE,
                "gate of type Q8_0");
    refused(op->experts_gated(gpu, x, &a.w, &a.w, x, x, eps, KN_ACT_SILU, ids, 0, 2), KN_EINVAL, "0 rows");
    refused(op->experts_down(gpu, x, &a.w, x, ids, x, 1, 99, false), KN_ETYPE, "99 experts a row");
    refused(op->experts_down(gpu, x, &none, x, ids, x, 1, 2, false), KN_EINVAL, "experts_load did not load");
    refused(op->experts_load(gpu, &w, KN_TQ1_0, 256, 16, 2, x), KN_ETYPE, "TQ1_0");
    refused(op->experts_load(gpu, &w, KN_Q4_K, 300, 16, 2, x), KN_ETYPE, "300");
    op->free(gpu, x), op->free(gpu, ids);
    matrices_free(&a), matrices_free(&b), matrices_free(&c);
}

/* Every form has run by now; on a device without early launches the plain one alone. */
static void check_forms(void)
{
    static const enum cuda_form forms[] = {CUDA_EXPERTS_PLAIN,  CUDA_EXPERTS_HELD,  CUDA_EXPERTS_SOLO,
                                           CUDA_EXPERTS_STAGED, CUDA_EXPERTS_OWNED, CUDA_EXPERTS_WHOLE,
                                           CUDA_EXPERTS_AROUND};
    char text[400];
    const bool ok = forms_are(gpu, CUDA_EXPERTS_PLAIN, CUDA_EXPERTS_AROUND, forms, cuda_is_early(gpu) ? 7 : 1,
                              text, sizeof text);
    verdict(ok, "forms: %s", text);
}

int main(int argc, char **argv)
{
    char msg[256];
    bool small = false;
    const char *around = NULL;
    struct kn_open g = {.device = "cuda"};
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--generic")) {
            g.generic = true;
        } else if (!strcmp(argv[i], "--small")) {
            small = true;
        } else if (!strcmp(argv[i], "--around") && i + 1 < argc) {
            around = argv[++i];
        } else if (!strcmp(argv[i], "--device") && i + 1 < argc) {
            g.device = argv[++i];
        } else {
            fprintf(stderr, "usage: experts_gpu [--generic] [--device DEVICE] [--small] [--around NAME]\n");
            return 2;
        }
    }
    if (kn_backend_open(&gpu, &g, msg, sizeof msg)) {
        fprintf(stderr, "experts_gpu: %s\n", msg);
        return 5;
    }
    if (!around) check_shapes(small);
    if (!around) check_other_types();
    check_all_around(around ? around : "", small);
    if (!around) check_refusals();
    if (!around) check_host_refusals();
    if (!around && !small && !strcmp(kn_op(gpu)->name, "cuda")) check_forms();
    printf("experts_gpu: %ld passed, %ld failed%s\n", passed, failed, g.generic ? " (generic kernels)" : "");
    kn_backend_close(gpu);
    return failed != 0;
}
