/* kv_quality.c - what caches of each type cost: the perplexity of a trained target over texts, against f32
 * caches.
 *
 * usage: kv_quality TARGET.gguf OUTLIERS.gguf TEXT...     the pairs' targets with heads of 128 (make_wide.c)
 *
 * Both files compute the same; the second has outliers in keys and values, as real models have them. Without
 * rotation coarse caches lose them, which must show: else this test would not see a broken rotation. Chunks
 * of 512: keys are far and near. */
#include "../common/run/perplexity.h"
#include "../common/run/session.h"
#include "../common/token/tokenizer.h"
#include "../kernels/kv_rows.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N 1200
static int32_t ids[N];
static int n_ids;
static struct kn_backend *be;

static void die(const char *what, const struct err *e)
{
    fprintf(stderr, "kv_quality: %s: %s\n", what, e->msg);
    printf("FAIL kv_quality/%s\n", what);
    exit(1);
}

static int add_ids(void *ctx, const int32_t *x, size_t n, struct err *e)
{
    (void)ctx;
    (void)e;
    for (size_t i = 0; i < n && n_ids < N; i++) ids[n_ids++] = x[i];
    return 0;
}

static void read_text(const char *model, const char *path)
{
    struct err e = {0};
    struct gguf *g;
    struct tokenizer *t;
    struct tok_encoder *x;
    struct io_map m;
    if (gguf_open(&g, model, &e) || tok_open(&t, g, &e) || io_map_open(&m, path, &e) ||
        tok_encoder_new(&x, t, false, true, &e) || tok_encode(x, m.data, m.size, true, add_ids, NULL, &e))
        die(path, &e);
    tok_encoder_free(x);
    tok_close(t);
    gguf_close(g);
    io_map_close(&m);
}

static int take_rows(void *ctx, const float *rows, int32_t n, int32_t first, struct err *e)
{
    const int32_t scored = first + n < n_ids ? n : n_ids - 1 - first; /* the last token predicts none */
    return scored > 0 ? perplexity_add(ctx, rows, scored, ids + first + 1, NULL, e) : 0;
}

static double perplexity(struct model *m, struct kn_kv_types kv, bool flat)
{
    struct err e = {0};
    struct session *s;
    struct perplexity p;
    const struct session_options o = {.ctx = N + 1, .chunk = 512, .kv = kv};
    kv_test_flat = flat;
    perplexity_begin(&p, m->d->n_vocab, false);
    if (session_new(&s, m, NULL, &o, &e) || session_prefill(s, ids, n_ids, take_rows, &p, &e))
        die("prefill", &e);
    session_free(s);
    kv_test_flat = false;
    const double x = perplexity_ppl(&p).value;
    perplexity_free(&p);
    return x;
}

/* Limits of log(perplexity / that of f32 caches), without outliers and with: q8_0 0.1 %, the others some 1.5
 * times what the dense pair shows, which loses more than the hybrid one (two of its eight layers have a
 * cache). */
static const struct {
    struct kn_kv_types kv;
    double limit[2];
    bool worse_flat; /* without rotation outliers must cost at least twice as much */
} rows[] = {{{KN_F16, KN_F16}, {0.0002, 0.0002}, false}, {{KN_Q8_0, KN_Q8_0}, {0.001, 0.002}, false},
            {{KN_Q8_0, KN_Q4_0}, {0.01, 0.02}, true},    {{KN_Q4_0, KN_Q8_0}, {0.06, 0.08}, true},
            {{KN_Q5_0, KN_Q5_0}, {0.025, 0.04}, true},   {{KN_Q4_0, KN_Q4_0}, {0.08, 0.09}, true},
            {{KN_TQ3_0, KN_TQ3_0}, {0.22, 0.5}, true}};

int main(int argc, char **argv)
{
    struct err e = {0};
    char msg[256];
    const struct kn_open open = {.device = "cpu"};
    bool bad = false;
    if (argc < 4) {
        fprintf(stderr, "usage: kv_quality TARGET.gguf OUTLIERS.gguf TEXT...\n");
        return 2;
    }
    for (int i = 3; i < argc; i++) read_text(argv[1], argv[i]);
    if (kn_backend_open(&be, &open, msg, sizeof msg)) {
        fprintf(stderr, "kv_quality: %s\n", msg);
        return 1;
    }
    double base[2];
    for (int f = 0; f < 2; f++) {
        static const char *const name[] = {"plain", "outliers"};
        struct model *m;
        if (model_load(&m, argv[1 + f], be, NULL, NULL, NULL, &e)) die(argv[1 + f], &e);
        base[f] = perplexity(m, (struct kn_kv_types){KN_F32, KN_F32}, false);
        printf("%s %s: perplexity %.4f of %d tokens\n", argv[1 + f], name[f], base[f], n_ids);
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            const double loss = log(perplexity(m, rows[i].kv, false) / base[f]), limit = rows[i].limit[f];
            const bool compare = rows[i].worse_flat && f == 1;
            const double flat = compare ? log(perplexity(m, rows[i].kv, true) / base[f]) : 0;
            const bool ok = fabs(loss) <= limit && (!compare || flat > 2 * fabs(loss));
            printf("%s kv_quality/%s %s,%s: %+.5f (limit %.4f)", ok ? "ok  " : "FAIL", name[f],
                   kn_kv_name(rows[i].kv.k), kn_kv_name(rows[i].kv.v), loss, limit);
            printf(compare ? ", without rotation %+.5f\n" : "\n", flat);
            bad |= !ok;
        }
        model_free(m);
    }
    const bool same = fabs(log(base[0] / base[1])) < 1e-4;
    printf("%s kv_quality/outliers change nothing by themselves\n", same ? "ok  " : "FAIL");
    kn_backend_close(be);
    return bad || !same;
}
