/* test_imatrix.c - importance matrices: what a watch adds up, files, merging, and what is refused. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "../../../common/file/imatrix.h"
#include "../../../common/base/mem.h"
#include "../../../common/run/session.h"
#include "../rnd.h"
#include "../run/tiny_pair.h"

/* ---- sums ---- */

enum { N = 13, IN = 48, OUT = 6, MATS = 5, USED = 2 };

static struct kn_backend *cpu(void)
{
    struct kn_backend *be;
    char msg[256];
    const struct kn_open o = {.device = "cpu", .threads = 2};
    assert_int_equal(kn_backend_open(&be, &o, msg, sizeof msg), 0);
    assert_int_equal(kn_op(be)->reserve(be, N * USED, IN, 16, 1, 16), 0);
    return be;
}

/* A model that is nothing but four matrices and two stacks of experts. */
static struct kn_weight weights[6];
static struct model_matrix matrices[] = {{&weights[0], "a.weight"},
                                         {&weights[1], "b.weight"},
                                         {&weights[2], "gate.weight"},
                                         {&weights[3], "gate_exps.weight"},
                                         {&weights[4], "down_exps.weight"}};
static float data[MATS * IN * IN];

static struct model load(struct kn_backend *be)
{
    uint64_t seed = 3;
    rnd_fill(data, MATS * IN * IN, 0.2f, &seed);
    for (int i = 0; i < 3; i++)
        assert_int_equal(kn_op(be)->weight_load(be, &weights[i], KN_F32, IN, OUT, data, KN_USE_LINEAR), 0);
    for (int i = 3; i < 6; i++)
        assert_int_equal(kn_op(be)->experts_load(be, &weights[i], KN_F32, IN, IN, MATS, data), 0);
    return (struct model){.be = be, .matrix = matrices, .n_matrix = 5};
}

static void near(const struct imatrix *m, const char *name, int mat, const double *want, double count)
{
    const struct imatrix_entry *t = imatrix_find(m, name);
    assert_non_null(t);
    assert_true(t->count[mat] == count);
    for (int c = 0; c < IN; c++) /* rows normed in float32: a relative 1e-6 a value, twice that in squares */
        if (!(fabs(t->sum2[mat * IN + c] - want[c]) <= 4e-6 * want[c]))
            fail_msg("%s %d: column %d: %g, expected %g", name, mat, c, t->sum2[mat * IN + c], want[c]);
}

/* The sums of squares of what the products take in, in double. */
struct sums {
    double plain[IN], normed[IN], gate[MATS][IN], down[MATS][IN], hits[MATS];
};

static void sums_by_the_book(struct sums *w, const float *x, const float *norm, const float *h, int32_t *ids)
{
    memset(w, 0, sizeof *w);
    for (int i = 0; i < N; i++) { /* expert 4 sees nothing */
        double ms = 0;
        for (int c = 0; c < IN; c++) ms += (double)x[i * IN + c] * x[i * IN + c];
        const double scale = 1 / sqrt(ms / IN + 1e-6);
        for (int j = 0; j < USED; j++) ids[i * USED + j] = (i + 2 * j) % 4, w->hits[(i + 2 * j) % 4]++;
        for (int c = 0; c < IN; c++) {
            const double y = x[i * IN + c] * scale * norm[c];
            w->plain[c] += (double)x[i * IN + c] * x[i * IN + c];
            w->normed[c] += y * y;
            for (int j = 0; j < USED; j++) {
                const double v = h[(i * USED + j) * IN + c];
                w->gate[ids[i * USED + j]][c] += y * y;
                w->down[ids[i * USED + j]][c] += v * v;
            }
        }
    }
}

/* Behind linear, norm_linear, norm_gated, experts_gated and experts_down, once each. */
static void check_sums(const struct imatrix *m, const struct sums *w)
{
    double twice[IN], sum[IN];
    for (int c = 0; c < IN; c++) twice[c] = 2 * w->normed[c], sum[c] = w->plain[c] + w->normed[c];
    near(m, "a.weight", 0, sum, 2 * N);
    near(m, "b.weight", 0, twice, 2 * N);
    near(m, "gate.weight", 0, w->normed, N);
    for (int j = 0; j < MATS; j++) {
        near(m, "gate_exps.weight", j, w->gate[j], w->hits[j]);
        near(m, "down_exps.weight", j, w->down[j], w->hits[j]);
    }
}

/* An entry that the model has not, and one of another width. */
static void check_entries(struct kn_backend *be, const struct model *model, struct imatrix *m)
{
    const struct kn_ops *own = kn_op(be);
    struct imatrix_watch *w;
    struct imatrix_entry *t;
    struct err e = {0};
    assert_int_equal(imatrix_entry(m, "c.weight", IN, 1, &t, &e), 0);
    assert_int_equal(imatrix_watch_new(&w, model, m, &e), -1);
    assert_int_equal(e.code, ERR_FORMAT);
    assert_non_null(strstr(e.msg, "c.weight"));
    struct imatrix *narrow;
    e = (struct err){0};
    assert_int_equal(imatrix_new(&narrow, &e), 0);
    assert_int_equal(imatrix_entry(narrow, "gate_exps.weight", IN, 4, &t, &e), 0);
    assert_int_equal(imatrix_watch_new(&w, model, narrow, &e), -1);
    assert_non_null(strstr(e.msg, "48 columns of 5 matrices, got 48 of 4"));
    assert_ptr_equal(kn_op(be), own);
    imatrix_free(narrow);
}

static void test_sums(void **state)
{
    (void)state;
    struct kn_backend *be = cpu();
    struct model model = load(be);
    struct imatrix *m;
    struct imatrix_watch *w;
    struct err e = {0};
    const struct kn_ops *own = kn_op(be);
    static float x[N * IN], norm[IN], h[N * USED * IN], out[N * USED * IN], out2[N * USED * IN],
        both[2][N * OUT];
    float *outs[] = {both[0], both[1]}, share[N * USED];
    const struct kn_weight *ab[] = {&weights[0], &weights[1]};
    int32_t ids[N * USED];
    struct sums want;
    uint64_t seed = 9;
    rnd_fill(x, N * IN, 1.5f, &seed);
    rnd_fill(norm, IN, 1.0f, &seed);
    rnd_fill(h, N * USED * IN, 0.7f, &seed);
    for (int i = 0; i < N * USED; i++) share[i] = 0.5f;
    sums_by_the_book(&want, x, norm, h, ids);
    assert_int_equal(own->experts_down(be, out, &weights[4], h, ids, share, N, USED, false), 0);
    assert_int_equal(imatrix_new(&m, &e), 0);
    assert_int_equal(imatrix_watch_new(&w, &model, m, &e), 0);
    assert_ptr_not_equal(kn_op(be), own);
    const struct kn_ops *op = kn_op(be);
    assert_null(op->record_begin);
    assert_int_equal(op->linear(be, both[0], &weights[0], x, N, false), 0);
    assert_int_equal(op->norm_linear(be, outs, ab, 2, x, norm, 1e-6f, N), 0);
    assert_int_equal(op->norm_gated(be, both[0], &weights[2], &weights[1], x, norm, 1e-6f, KN_ACT_SILU, N),
                     0);
    assert_int_equal(
        op->experts_gated(be, out2, &weights[3], &weights[5], x, norm, 1e-6f, KN_ACT_SILU, ids, N, USED), 0);
    assert_int_equal(op->experts_down(be, out2, &weights[4], h, ids, share, N, USED, false), 0);
    assert_memory_equal(out, out2, N * IN * sizeof *out); /* and the result is what it was */
    check_sums(m, &want);
    imatrix_watch_stop(w);
    assert_int_equal(op->linear(be, both[0], &weights[0], x, N, false), 0);
    check_sums(m, &want);
    imatrix_watch_free(w);
    assert_ptr_equal(kn_op(be), own);
    /* a NaN on its way in is an error that names the product */
    assert_int_equal(imatrix_watch_new(&w, &model, m, &e), 0);
    x[7] = NAN;
    assert_int_equal(kn_op(be)->linear(be, both[0], &weights[0], x, N, false), KN_EDEVICE);
    assert_non_null(strstr(kn_message(be), "a.weight"));
    imatrix_watch_free(w);
    check_entries(be, &model, m);
    imatrix_free(m);
    for (int i = 0; i < 6; i++) own->weight_free(be, &weights[i]);
    kn_backend_close(be);
}

/* ---- a model ---- */

static void run(const char *path, struct imatrix *m, const int32_t *ids, int n, int chunk, float *logits)
{
    struct err e = {0};
    char msg[256];
    struct kn_backend *be;
    const struct kn_open open = {.device = "cpu", .threads = 2};
    struct model *model;
    struct imatrix_watch *w = NULL;
    struct session *s;
    const struct session_options o = {.ctx = n, .chunk = chunk, .kv = {KN_F16, KN_F16}};
    assert_int_equal(kn_backend_open(&be, &open, msg, sizeof msg), 0);
    assert_int_equal(model_load(&model, path, be, NULL, NULL, NULL, &e), 0);
    assert_int_equal(model->n_matrix, 7 * TINY_LAYERS + 1);
    if (m) assert_int_equal(imatrix_watch_new(&w, model, m, &e), 0);
    assert_int_equal(session_new(&s, model, NULL, &o, &e), 0);
    assert_int_equal(session_prefill(s, ids, n, NULL, NULL, &e), 0);
    assert_int_equal(session_logits(s, 0, logits, &e), 0);
    session_free(s);
    imatrix_watch_free(w);
    model_free(model);
    kn_backend_close(be);
}

static void test_model(void **state)
{
    (void)state;
    const struct tiny y = {.type = KN_F16, .seed = 2};
    struct err e = {0};
    struct imatrix *whole, *parts;
    enum { LEN = 37 };
    int32_t ids[LEN];
    float plain[TINY_VOCAB], watched[TINY_VOCAB];
    const char *path = scratch("t.gguf");
    for (int i = 0; i < LEN; i++) ids[i] = i * 7 % TINY_VOCAB;
    assert_int_equal(tiny_write(path, &y, &e), 0);
    assert_int_equal(imatrix_new(&whole, &e), 0);
    assert_int_equal(imatrix_new(&parts, &e), 0);
    run(path, NULL, ids, LEN, 16, plain);
    run(path, whole, ids, LEN, 16, watched);
    assert_memory_equal(plain, watched, sizeof plain);
    run(path, parts, ids, LEN, 5, watched);
    assert_int_equal(whole->n, 7 * TINY_LAYERS + 1);
    for (int64_t i = 0; i < whole->n; i++) {
        const struct imatrix_entry *a = &whole->entry[i], *b = imatrix_find(parts, a->name);
        const bool head = !strcmp(a->name, "output.weight");
        assert_true(a->count[0] == (head ? 1 : LEN)); /* without a taker of rows the head sees the last one */
        assert_non_null(b);
        assert_true(b->count[0] == a->count[0]);
        for (int64_t c = 0; c < a->n_in; c++) /* sums of doubles in another order */
            assert_true(a->sum2[c] > 0 && fabs(a->sum2[c] - b->sum2[c]) <= 1e-12 * a->sum2[c]);
    }
    const struct imatrix_entry *q = imatrix_find(whole, "blk.1.attn_q.weight"),
                               *v = imatrix_find(whole, "blk.1.attn_v.weight");
    assert_memory_equal(q->sum2, v->sum2, TINY_EMBD * sizeof *q->sum2); /* one input */
    imatrix_free(whole);
    imatrix_free(parts);
}

/* ---- files ---- */

static struct imatrix *sample(void)
{
    struct imatrix *m;
    struct imatrix_entry *t;
    struct err e = {0};
    assert_int_equal(imatrix_new(&m, &e), 0);
    assert_int_equal(imatrix_entry(m, "blk.1.w.weight", 5, 3, &t, &e), 0);
    for (int i = 0; i < 15; i++) t->sum2[i] = i * 0.25;
    t->count[0] = 700, t->count[2] = 9; /* expert 1 saw nothing */
    for (int i = 5; i < 10; i++) t->sum2[i] = 0;
    assert_int_equal(imatrix_entry(m, "blk.0.w.weight", 4, 1, &t, &e), 0);
    for (int i = 0; i < 4; i++) t->sum2[i] = 1 + i;
    t->count[0] = 700;
    assert_int_equal(imatrix_entry(m, "idle.weight", 4, 1, &t, &e), 0);
    assert_int_equal(imatrix_add_dataset(m, "one", &e), 0);
    assert_int_equal(imatrix_add_dataset(m, "two", &e), 0);
    m->chunk_size = 512;
    return m;
}

static void save(const struct imatrix *m, const char *path)
{
    struct io_out o = {.fd = -1};
    struct err e = {0};
    assert_int_equal(io_out_open(&o, path, true, NULL, 0, &e), 0);
    assert_int_equal(imatrix_write(m, &o, &e), 0);
    assert_int_equal(io_out_commit(&o, &e), 0);
}

static void test_file(void **state)
{
    (void)state;
    struct imatrix *m = sample(), *r;
    struct err e = {0};
    save(m, scratch("a"));
    struct gguf *g;
    assert_int_equal(gguf_open(&g, scratch("a"), &e), 0);
    struct gguf_str s;
    uint32_t u;
    assert_int_equal(gguf_get_str(g, "general.type", &s, &e), 0);
    assert_true(gguf_str_is(s, "imatrix"));
    assert_int_equal(gguf_get_u32(g, "imatrix.chunk_count", &u, &e), 0);
    assert_int_equal(u, 2);
    assert_int_equal(gguf_get_u32(g, "imatrix.chunk_size", &u, &e), 0);
    assert_int_equal(u, 512);
    const struct gguf_kv *sets = gguf_find(g, "imatrix.datasets");
    assert_int_equal(sets->count, 2);
    static const struct {
        const char *name;
        int64_t ne[2];
    } want[] = {{"blk.0.w.weight.in_sum2", {4, 1}},
                {"blk.0.w.weight.counts", {1, 1}},
                {"blk.1.w.weight.in_sum2", {5, 3}},
                {"blk.1.w.weight.counts", {1, 3}}};
    assert_int_equal(g->n_tensors, 4); /* by name; the one that saw nothing is not there */
    for (int i = 0; i < 4; i++) {
        assert_string_equal(g->tensor[i].name, want[i].name);
        assert_int_equal(g->tensor[i].type, KN_F32);
        assert_memory_equal(g->tensor[i].ne, want[i].ne, sizeof want[i].ne);
    }
    gguf_close(g);
    assert_int_equal(imatrix_read(&r, scratch("a"), &e), 0);
    assert_int_equal(r->n, 2);
    assert_int_equal(r->n_dataset, 2);
    assert_string_equal(r->dataset[1], "two");
    save(r, scratch("b"));
    size_t na, nb;
    char *a = scratch_read(scratch("a"), &na), *b = scratch_read(scratch("b"), &nb);
    assert_int_equal(na, nb);
    assert_memory_equal(a, b, na);
    free(a);
    free(b);

    float w[5];
    const struct imatrix_entry *t = imatrix_find(r, "blk.1.w.weight");
    assert_false(imatrix_weights(t, 0, w)); /* 0 to 1 by quarters, of mean 0.5; a zero is lifted off zero */
    for (int i = 0; i < 5; i++) assert_true(w[i] == (i ? (float)i * 0.5f : IMATRIX_LEAST));
    assert_true(imatrix_weights(t, 1, w));
    for (int i = 0; i < 5; i++) assert_true(w[i] == 1.0f);
    imatrix_free(m);
    imatrix_free(r);
}

/* A file of one tensor pair that is wrong in one way. */
struct bad {
    const char *type, *sums, *counts;
    int64_t n_in, n_mat, n_counts;
    uint32_t of;
    float value;
    const char *msg;
};

static void write_bad(const struct bad *b)
{
    struct gguf_writer *w;
    struct io_out o = {.fd = -1};
    struct err e = {0};
    float v[16];
    for (int i = 0; i < 16; i++) v[i] = 1;
    v[3] = b->value;
    assert_int_equal(gguf_writer_new(&w, &e), 0);
    if (b->type) assert_int_equal(gguf_put_str(w, "general.type", b->type, strlen(b->type), &e), 0);
    const int64_t sums[2] = {b->n_in, b->n_mat}, counts[2] = {1, b->n_counts};
    if (b->sums) assert_int_equal(gguf_add_tensor(w, b->sums, b->of, 2, sums, &e), 0);
    if (b->counts) assert_int_equal(gguf_add_tensor(w, b->counts, KN_F32, 2, counts, &e), 0);
    assert_int_equal(io_out_open(&o, scratch("bad"), true, NULL, 0, &e), 0);
    assert_int_equal(gguf_write_header(w, &o, &e), 0);
    if (b->sums)
        assert_int_equal(gguf_write_data(w, &o, v, kn_row_bytes(b->of, b->n_in) * (uint64_t)b->n_mat, &e), 0);
    if (b->counts) assert_int_equal(gguf_write_data(w, &o, v, (uint64_t)b->n_counts * 4, &e), 0);
    assert_int_equal(gguf_write_end(w, &o, &e), 0);
    assert_int_equal(io_out_commit(&o, &e), 0);
    gguf_writer_free(w);
}

static void test_refused(void **state)
{
    (void)state;
    static const struct bad bad[] = {
        {"imatrix", "a.in_sum2", "a.counts", 4, 2, 2, KN_F32, 1, NULL},
        {"imatrix", "a.in_sum2", "a.counts", 4, 2, 1, KN_F32, 1, NULL}, /* one count for both */
        {NULL, "a.in_sum2", "a.counts", 4, 2, 2, KN_F32, 1, "expected general.type imatrix, got none"},
        {"model", "a.in_sum2", "a.counts", 4, 2, 2, KN_F32, 1, "got model"},
        {"imatrix", "a.in_sum2", NULL, 4, 2, 2, KN_F32, 1, "'a.in_sum2': has no counts"},
        {"imatrix", NULL, "a.counts", 4, 2, 2, KN_F32, 1, "'a.counts': has no sums"},
        {"imatrix", "a.in_sum2", "a.counts", 4, 2, 3, KN_F32, 1, "number of counts"},
        {"imatrix", "a.in_sum2", "a.counts", 4, 2, 2, KN_F32, -1, "element 3 is -1"},
        {"imatrix", "a.in_sum2", "a.counts", 4, 2, 2, KN_F32, NAN, "element 3 is "},
        {"imatrix", "a.in_sum2", "a.counts", 4, 2, 2, KN_F16, 1, "another type than F32"},
        {"imatrix", "a.weight", NULL, 4, 2, 2, KN_F32, 1, "does not belong"},
        {"imatrix", "a.in_sum", NULL, 4, 2, 2, KN_F32, 1, "does not belong"},
        {"imatrix", NULL, NULL, 4, 2, 2, KN_F32, 1, "without entries"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct imatrix *m;
        struct err e = {0};
        write_bad(&bad[i]);
        const int rc = imatrix_read(&m, scratch("bad"), &e);
        if (rc != (bad[i].msg ? -1 : 0) || (bad[i].msg && !strstr(e.msg, bad[i].msg)))
            fail_msg("case %zu: %d, \"%s\", expected \"%s\"", i, rc, e.msg, bad[i].msg ? bad[i].msg : "");
        if (rc) {
            assert_int_equal(e.code, ERR_FORMAT);
            assert_null(m);
        } else {
            assert_true(m->entry[0].count[1] == 1 && m->entry[0].n_mat == 2);
        }
        imatrix_free(m);
    }
}

/* ---- files of others (test/data/make_imatrix.py, which shares no code with the library) ---- */

static struct imatrix *of_others(const char *name)
{
    char path[300];
    struct imatrix *m;
    struct err e = {0};
    snprintf(path, sizeof path, TEST_DATA "/%s", name);
    if (imatrix_read(&m, path, &e)) fail_msg("%s", e.msg);
    return m;
}

/* What quantising takes of two files is the same: relative weights, up to the float32 that the binary form is
 * in. */
static void same_weights(const struct imatrix *a, const struct imatrix *b)
{
    static const int64_t shape[3][2] = {{5, 1}, {512, 1}, {4, 3}};
    struct err e = {0};
    assert_int_equal(a->n, 3);
    assert_int_equal(b->n, 3);
    for (int i = 0; i < 3; i++) {
        struct imatrix_entry *x = &a->entry[i], *y = &b->entry[i];
        float v[512], w[512];
        assert_string_equal(x->name, y->name);
        assert_int_equal(imatrix_fit(x, shape[i][0], shape[i][1], &e), 0);
        assert_int_equal(imatrix_fit(y, shape[i][0], shape[i][1], &e), 0);
        for (int64_t k = 0; k < shape[i][1]; k++) {
            imatrix_weights(x, k, v);
            imatrix_weights(y, k, w);
            for (int64_t c = 0; c < shape[i][0]; c++)
                if (!(fabsf(v[c] - w[c]) <=
                      3e-7f * w[c])) /* two roundings of 2^-24 relative each, and the division's */
                    fail_msg("%s, matrix %d, column %d: %g, expected %g", x->name, (int)k, (int)c,
                             (double)v[c], (double)w[c]);
        }
    }
}

static void test_others(void **state)
{
    (void)state;
    static const char *const names[] = {"imatrix_stats.gguf", "imatrix_flat.gguf", "imatrix.dat",
                                        "imatrix_first.dat"};
    struct imatrix *m = of_others("imatrix.gguf");
    const struct imatrix_entry *x = imatrix_find(m, "blk.1.ffn_gate_exps.weight");
    assert_true(x->n_in == 4 && x->n_mat == 3 && x->count[0] == 700 && x->count[1] == 0 && x->count[2] == 8);
    assert_true(x->sum2[3] == 1400 && x->sum2[4] == 0 && x->sum2[11] == 4);
    assert_int_equal(m->n_dataset, 2);
    assert_string_equal(m->dataset[1], "two");
    assert_int_equal(m->chunk_size, 512);
    assert_int_equal(imatrix_chunks(m), 2);
    save(m, scratch("mine")); /* the same bytes */
    size_t na, nb;
    char *a = scratch_read(scratch("mine"), &na), *b = scratch_read(TEST_DATA "/imatrix.gguf", &nb);
    assert_int_equal(na, nb);
    assert_memory_equal(a, b, na);
    free(a);
    free(b);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct imatrix *o = of_others(names[i]);
        const bool dat = i > 1;
        assert_true(o->by_chunks == dat);
        assert_int_equal(imatrix_chunks(o), i == 3 ? 0 : 2);
        assert_int_equal(o->n_dataset, i == 3 ? 0 : dat ? 1 : 2);
        if (o->n_dataset) assert_string_equal(o->dataset[o->n_dataset - 1], "two");
        same_weights(o, m);
        imatrix_free(o);
    }
    /* experts in one row do not fit anything else */
    struct imatrix *flat = of_others("imatrix_flat.gguf");
    struct err e = {0};
    assert_int_equal(imatrix_fit(&flat->entry[2], 5, 3, &e), -1);
    assert_non_null(strstr(e.msg, "expected 5 columns of 3 matrices, got 12 of 1"));
    imatrix_free(flat);
    imatrix_free(m);
}

static const struct {
    size_t at;
    int32_t v;
    const char *msg;
} bad_dats[] = {
    {0, 0, "offset 0: number of entries: expected 1 to "},
    {0, -1, "number of entries: "},
    {0, 4, "length of a name: "}, /* the chunks of all are taken for one more name's length */
    {0, 0x7fffffff, "number of entries: "},
    {4, 0, "length of a name: expected 1 to 255, got 0"},
    {4, 256, "length of a name: expected 1 to 255, got 256"},
    {8, 0x1b6b6c62, "length of a name: a control character"},
    {32, -1, "chunks of an entry: "},
    {36, 0, "values of an entry: expected 1 to "},
    {36, 0x7fffffff, "values of an entry: expected 1 to "},
    {44, (int32_t)0x7fc00000, "'blk.0.attn_output.weight': value 1 is "},
    {44, (int32_t)0xbf800000, "value 1 is -1"},
    {44, 0x7f800000, "value 1 is inf"},
};

/* The binary form cut at every byte, but where the first versions ended and after the number of chunks; and
 * wrong in one way each. */
static void test_dat_refused(void **state)
{
    (void)state;
    size_t n = 0;
    char *whole = scratch_read(TEST_DATA "/imatrix.dat", &n);
    struct imatrix *m;
    int ok = 0;
    for (size_t k = 0; k <= n; k++) {
        struct err e = {0};
        uint8_t *part = malloc(k + 1); /* exactly as long, for the sanitizer */
        memcpy(part, whole, k);
        assert_int_equal(imatrix_new(&m, &e), 0);
        if (imatrix_read_dat(m, part, k, &e))
            assert_int_equal(e.code, ERR_FORMAT);
        else
            ok++;
        imatrix_free(m);
        free(part);
    }
    assert_int_equal(ok, 3);
    for (size_t i = 0; i < sizeof bad_dats / sizeof *bad_dats; i++) {
        struct err e = {0};
        char *copy = malloc(n);
        memcpy(copy, whole, n);
        memcpy(copy + bad_dats[i].at, &bad_dats[i].v, 4);
        assert_int_equal(imatrix_new(&m, &e), 0);
        const int rc = imatrix_read_dat(m, (const uint8_t *)copy, n, &e);
        if (rc != -1 || !strstr(e.msg, bad_dats[i].msg) || e.code != ERR_FORMAT)
            fail_msg("case %zu: %d, \"%s\"", i, rc, e.msg);
        imatrix_free(m);
        free(copy);
    }
    /* a name that stands twice */
    struct err e = {0};
    memcpy(whole + 8, "blk.1", 5);
    char *at = memmem(whole, n, "blk.0.ffn_down.weight", 21);
    assert_non_null(at);
    assert_int_equal(imatrix_new(&m, &e), 0);
    struct imatrix_entry *t;
    assert_int_equal(imatrix_append(m, "blk.0.ffn_down.weight", 1, 1, &t, &e), 0);
    assert_int_equal(imatrix_read_dat(m, (const uint8_t *)whole, n, &e), -1);
    assert_string_equal(e.msg, "'blk.0.ffn_down.weight': stands twice");
    imatrix_free(m);
    free(whole);
    assert_int_equal(imatrix_read(&m, TEST_DATA "/tok.txt", &(struct err){0}), -1);
}

/* Every allocation of a read and a write fails once. */
static void test_memory(void **state)
{
    (void)state;
    struct imatrix *m = sample(), *r = NULL;
    save(m, scratch("a"));
    int failures = 0;
    for (uint64_t nth = 1;; nth++) {
        struct err e = {0};
        struct io_out o = {.fd = -1};
        mem_fail_at(nth);
        int rc = imatrix_read(&r, scratch("a"), &e);
        if (!rc) rc = io_out_open(&o, scratch("b"), true, NULL, 0, &e);
        if (!rc) rc = imatrix_write(r, &o, &e);
        mem_fail_at(0);
        io_out_abort(&o);
        imatrix_free(r);
        r = NULL;
        if (!rc) break;
        assert_int_equal(e.code, ERR_IO);
        failures++;
    }
    assert_true(failures > 10);
    imatrix_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sums),   cmocka_unit_test(test_model),
                                       cmocka_unit_test(test_file),   cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_others), cmocka_unit_test(test_dat_refused),
                                       cmocka_unit_test(test_memory)};
    scratch_begin();
    const int rc = cmocka_run_group_tests(tests, NULL, NULL);
    scratch_end();
    return rc;
}
