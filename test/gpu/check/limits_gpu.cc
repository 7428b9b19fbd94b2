/* limits_gpu.cc - the CUDA backend where there is little: on few multiprocessors, and where a call of CUDA or
 * an allocation fails.
 *
 * usage: limits_gpu [NAME]     the checks with NAME in their names alone
 *
 * Few multiprocessors: the backend is told a smaller number than the device has; all outputs must have the
 * bits that they have with all. Failures: the linker puts the functions at the head of this file before
 * CUDA's (--wrap); when armed, one call fails. What is checked is the status that an operation returns, who
 * its message names, and that the backend gives the right bits afterwards. Prints "ok   gpu/..." or "FAIL
 * gpu/..." a check; exit 1 if any failed, 5 if there is no device. */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <vector>

extern "C" {
#include "../harness.h"
}
#include "../../../kernels/cuda/chain/chain.cuh"
#include "../../../kernels/cuda/product/mm.cuh"

/* ---- calls that fail ---- */

static bool fail_malloc, fail_calloc, fail_launch; /* the next call of it */
static int clears;                                 /* calls of cudaMemset */

extern "C" {
cudaError_t __real_cudaMalloc(void **p, size_t bytes);
cudaError_t __real_cudaMemset(void *p, int value, size_t bytes);
cudaError_t __real_cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *kernel, void **args);
void *__real_calloc(size_t n, size_t bytes);
cudaError_t __wrap_cudaMalloc(void **p, size_t bytes);
cudaError_t __wrap_cudaMemset(void *p, int value, size_t bytes);
cudaError_t __wrap_cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *kernel, void **args);
void *__wrap_calloc(size_t n, size_t bytes);

cudaError_t __wrap_cudaMalloc(void **p, size_t bytes)
{
    const bool fail = fail_malloc;
    fail_malloc = false;
    return fail ? cudaErrorMemoryAllocation : __real_cudaMalloc(p, bytes);
}
cudaError_t __wrap_cudaMemset(void *p, int value, size_t bytes)
{
    clears++;
    return __real_cudaMemset(p, value, bytes);
}
cudaError_t __wrap_cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *kernel, void **args)
{
    const bool fail = fail_launch;
    fail_launch = false;
    return fail ? cudaErrorLaunchOutOfResources : __real_cudaLaunchKernelExC(config, kernel, args);
}
void *__wrap_calloc(size_t n, size_t bytes)
{
    const bool fail = fail_calloc;
    fail_calloc = false;
    return fail ? NULL : __real_calloc(n, bytes);
}
}

/* ---- a backend, weights, rows ---- */

static struct kn_backend *gpu;
static const struct kn_ops *op;

static void open_device(void)
{
    char msg[256];
    struct kn_open o = {};
    o.device = "cuda";
    if (kn_backend_open(&gpu, &o, msg, sizeof msg)) {
        fprintf(stderr, "limits_gpu: %s\n", msg);
        exit(5);
    }
    op = kn_op(gpu);
}

static void fill(std::vector<float> &x, float sigma)
{
    for (float &v : x) v = gaussian(sigma);
}
static float *rows_of(size_t n, float sigma)
{
    std::vector<float> x(n);
    fill(x, sigma);
    return (float *)put(gpu, x.data(), n * sizeof(float));
}

/* n_mat: 0, or matrices of experts. Rows are some 64, over and over in another order. */
static struct kn_weight weight(uint32_t type, int64_t n_in, int64_t n_out, int32_t n_mat = 0)
{
    const size_t row = kn_row_bytes(type, n_in), rows = (size_t)n_out * (size_t)(n_mat ? n_mat : 1);
    std::vector<uint8_t> file(row * rows);
    std::vector<float> x((size_t)n_in);
    for (size_t i = 0; i < rows; i++) {
        if (i < 64) {
            fill(x, 0.05f);
            if (kn_encode_row(type, x.data(), file.data() + i * row, n_in, NULL)) die("weight", "no codec");
        } else
            memcpy(file.data() + i * row, file.data() + rnd() % 64 * row, row);
    }
    struct kn_weight w = {};
    must(gpu, "load",
         n_mat ? op->experts_load(gpu, &w, type, n_in, n_out, n_mat, file.data())
               : op->weight_load(gpu, &w, type, n_in, n_out, file.data(), KN_USE_LINEAR));
    return w;
}

typedef std::vector<uint8_t> bits;
static void append(bits &b, const void *p, size_t bytes)
{
    const size_t at = b.size();
    b.resize(at + bytes);
    must(gpu, "download", op->download(gpu, b.data() + at, p, bytes));
}

/* ---- few multiprocessors ---- */

struct mixture {
    int32_t n_expert, used;
    int64_t embd, ff;
    struct kn_weight gate, up, down, router, shared_gate, shared[3];
    float *x, *norm;
};

static bits mix(const struct mixture *m, int32_t n, bool shared)
{
    const size_t used = (size_t)m->used + shared, pairs = (size_t)n * used;
    float *logits = (float *)put(gpu, NULL, (size_t)n * (size_t)m->n_expert * 4),
          *gates = (float *)put(gpu, NULL, (size_t)n * 4), *weights = (float *)put(gpu, NULL, pairs * 4),
          *h = (float *)put(gpu, NULL, pairs * (size_t)m->ff * 4),
          *out = (float *)put(gpu, NULL, (size_t)n * (size_t)m->embd * 4);
    int32_t *ids = (int32_t *)put(gpu, NULL, pairs * 4);
    struct kn_mixture a = {};
    a.route.logits = logits, a.route.n = n, a.route.n_expert = m->n_expert, a.route.n_used = m->used;
    a.route.renorm = true, a.route.scale = 1.0f, a.route.ids = ids, a.route.weights = weights;
    a.x = m->x, a.norm = a.router_norm = m->norm, a.eps = 1e-6f, a.act = KN_ACT_SILU;
    a.gate = &m->gate, a.up = &m->up, a.down = &m->down, a.router = &m->router, a.logits = logits;
    a.h = h, a.out = out;
    if (shared) a.shared_logits = gates, a.shared_gate = &m->shared_gate;
    for (int j = 0; shared && j < 3; j++) a.shared[j] = &m->shared[j];
    must(gpu, "mixture", op->mixture(gpu, &a));
    bits b;
    append(b, logits, (size_t)n * (size_t)m->n_expert * 4), append(b, ids, pairs * 4),
        append(b, weights, pairs * 4);
    append(b, out, (size_t)n * (size_t)m->embd * 4);
    for (void *p : {(void *)logits, (void *)gates, (void *)weights, (void *)h, (void *)out, (void *)ids})
        drop(gpu, p);
    return b;
}

static void check_mixture(int32_t n_expert, int32_t used, int64_t embd, int64_t ff, bool shared)
{
    struct mixture m = {};
    m.n_expert = n_expert, m.used = used, m.embd = embd, m.ff = ff;
    m.gate = weight(KN_Q4_K, embd, ff, n_expert), m.up = weight(KN_Q4_K, embd, ff, n_expert);
    m.down = weight(KN_Q4_K, ff, embd, n_expert);
    m.router = weight(KN_F32, embd, n_expert);
    if (shared) {
        m.shared_gate = weight(KN_F32, embd, 1);
        for (int j = 0; j < 3; j++) m.shared[j] = weight(KN_Q4_K, j < 2 ? embd : ff, j < 2 ? ff : embd);
    }
    m.x = rows_of(64 * (size_t)embd, 1.0f), m.norm = rows_of((size_t)embd, 1.0f);
    struct cuda_backend *be = cuda_of(gpu);
    const int all = be->sm_count;
    for (int32_t n : {1, 8, 15, 16, 31, 32, 33, 64}) {
        const bits want = mix(&m, n, shared);
        for (int sms : {16, 5, 2}) {
            be->sm_count = sms;
            const bits got = mix(&m, n, shared);
            be->sm_count = all;
            verdict(got == want,
                    "few multiprocessors, mixture: %d rows to %d of %d experts of [%lld, %lld]%s, %d", n,
                    used, n_expert, (long long)ff, (long long)embd, shared ? " and one more" : "", sms);
        }
    }
    for (struct kn_weight *w : {&m.gate, &m.up, &m.down, &m.router}) op->weight_free(gpu, w);
    if (shared)
        for (struct kn_weight *w : {&m.shared_gate, &m.shared[0], &m.shared[1], &m.shared[2]})
            op->weight_free(gpu, w);
    drop(gpu, m.x), drop(gpu, m.norm);
}

static void check_product(uint32_t type, int64_t n_in, int64_t n_out, bool gated)
{
    struct cuda_backend *be = cuda_of(gpu);
    const int all = be->sm_count;
    struct kn_weight w = weight(type, n_in, n_out), up = weight(type, n_in, n_out);
    float *x = rows_of(64 * (size_t)n_in, 1.0f), *norm = rows_of((size_t)n_in, 1.0f);
    const size_t bytes = 64 * (size_t)n_out * 4;
    float *out = (float *)put(gpu, NULL, bytes);
    const auto run = [&](int32_t n) {
        bits b;
        must(gpu, "linear", op->linear(gpu, out, &w, x, n, false));
        append(b, out, (size_t)n * (size_t)n_out * 4);
        if (!gated) return b;
        must(gpu, "norm_gated", op->norm_gated(gpu, out, &w, &up, x, norm, 1e-6f, KN_ACT_SILU, n));
        append(b, out, (size_t)n * (size_t)n_out * 4);
        return b;
    };
    for (int32_t n : {1, 2, 8, 16, 17, 64}) {
        const bits want = run(n);
        bool same = true;
        for (int sms : {16, 8, 5, 3}) {
            be->sm_count = sms;
            same &= run(n) == want;
            be->sm_count = all;
        }
        verdict(same, "few multiprocessors, products: %d rows of %s [%lld, %lld]", n,
                kn_type_info(type)->name, (long long)n_out, (long long)n_in);
    }
    op->weight_free(gpu, &w), op->weight_free(gpu, &up);
    drop(gpu, x), drop(gpu, norm), drop(gpu, out);
}

/* Rows whose slices have no room together, of more slices than may wait for each other. */
static void check_too_long(uint32_t type, int64_t n_in)
{
    struct cuda_backend *be = cuda_of(gpu);
    const int all = be->sm_count;
    struct kn_weight w = weight(type, n_in, 16);
    float *x = rows_of(2 * (size_t)n_in, 1.0f), *out = (float *)put(gpu, NULL, 2 * 16 * 4);
    be->sm_count = 16;
    const int rc = op->linear(gpu, out, &w, x, 2, false);
    be->sm_count = all;
    verdict(rc == KN_ETYPE && !strncmp(kn_message(gpu), "linear: ", 8) &&
                strstr(kn_message(gpu), "rows of 28672 values of F32 on 16 multiprocessors"),
            "few multiprocessors, refused: %d (expected %d), \"%s\"", rc, KN_ETYPE, kn_message(gpu));
    must(gpu, "linear", op->linear(gpu, out, &w, x, 2, false));
    op->weight_free(gpu, &w);
    drop(gpu, x), drop(gpu, out);
}

/* ---- what waits, and fails ---- */

#define WIDTH 512
#define HIDDEN 1024
#define LAYERS 6

struct layers {
    struct kn_weight gate, up, down;
    float *x, *h, *norm, *other;
    std::vector<float> row;
};
static struct layers make_layers(void)
{
    struct layers l = {};
    l.gate = weight(KN_Q4_K, WIDTH, HIDDEN), l.up = weight(KN_Q4_K, WIDTH, HIDDEN),
    l.down = weight(KN_Q4_K, HIDDEN, WIDTH);
    l.x = (float *)put(gpu, NULL, WIDTH * 4), l.h = (float *)put(gpu, NULL, HIDDEN * 4);
    l.norm = rows_of(WIDTH, 1.0f), l.other = rows_of(64, 1.0f);
    l.row.resize(WIDTH);
    fill(l.row, 1.0f);
    return l;
}
static void free_layers(struct layers *l)
{
    for (struct kn_weight *w : {&l->gate, &l->up, &l->down}) op->weight_free(gpu, w);
    for (float *p : {l->x, l->h, l->norm, l->other}) drop(gpu, p);
}
/* One row through n layers: collected, where the device has chains. */
static void go(struct layers *l, int n)
{
    must(gpu, "upload", op->upload(gpu, l->x, l->row.data(), WIDTH * 4));
    for (int i = 0; i < n; i++) {
        must(gpu, "norm_gated",
             op->norm_gated(gpu, l->h, &l->gate, &l->up, l->x, l->norm, 1e-6f, KN_ACT_SILU, 1));
        must(gpu, "linear", op->linear(gpu, l->x, &l->down, l->h, 1, true));
    }
}
static bits gone(struct layers *l, int n)
{
    bits b;
    go(l, n);
    append(b, l->x, WIDTH * 4);
    return b;
}
static bits launched(struct layers *l, int n)
{
    chain_tuning.off = 1;
    const bits b = gone(l, n);
    chain_tuning.off = 0;
    return b;
}

/* rc: what an operation returned that is not to blame. */
static void blamed(const char *name, int rc, int want, const char *who)
{
    const bool ok = rc == want && !strncmp(kn_message(gpu), who, strlen(who));
    verdict(ok, "%s: %d (expected %d), \"%s\" (expected \"%s...\")", name, rc, want,
            rc ? kn_message(gpu) : "", who);
}

/* A backend of its own: the first chain's places. */
static void check_places(const char *name, bool *fail)
{
    open_device();
    struct layers l = make_layers();
    if (!cuda_of(gpu)->chain) printf("no chains on this device: %s left out\n", name);
    if (cuda_of(gpu)->chain) {
        const bits want = launched(&l, LAYERS);
        go(&l, LAYERS);
        *fail = true;
        blamed(name, op->softcap(gpu, l.other, 64, 30.0f), KN_EMEM, "layers of one row: out of memory");
        verdict(!*fail && gone(&l, LAYERS) == want, "%s: the same layers again", name);
    }
    free_layers(&l);
    kn_backend_close(gpu);
}

static void check_deferred(void)
{
    struct layers l = make_layers();
    if (!cuda_of(gpu)->chain) return;
    const bits want = launched(&l, LAYERS);
    verdict(gone(&l, LAYERS) == want, "layers of one row: as launched one by one");
    go(&l, LAYERS);
    fail_launch = true;
    blamed("a chain that cannot be launched", op->softcap(gpu, l.other, 64, 30.0f), KN_EDEVICE,
           "layers of one row: ");
    verdict(gone(&l, LAYERS) == want, "a chain that cannot be launched: the same layers again");
    float *some = rows_of(64, 1.0f);
    go(&l, LAYERS);
    fail_launch = true;
    drop(gpu, some);
    blamed("a chain that cannot be launched in free", op->sync(gpu), KN_EDEVICE, "layers of one row: ");
    verdict(gone(&l, LAYERS) == want, "a chain that cannot be launched in free: the same layers again");

    const int64_t n_in = l.down.n_in;
    go(&l, 1);
    l.down.n_in = 1 << 20; /* when what was collected is launched, it is found unfit */
    blamed("a product that is refused late, in tap", op->tap(gpu, l.other, 64, 0, l.x, 1, 64), KN_ETYPE,
           "matrix product: rows of ");
    l.down.n_in = n_in;
    go(&l, 1);
    l.down.n_in = 1 << 20;
    blamed("a product that is refused late, in rope_table",
           op->rope_table(gpu, l.other, (const int32_t *)l.other, NULL, 1, (const double *)l.norm, 64),
           KN_ETYPE, "matrix product: rows of ");
    l.down.n_in = n_in;
    verdict(gone(&l, LAYERS) == want, "a product that is refused late: the same layers again");
    free_layers(&l);
}

/* Sums that a product left, for whoever reads its outputs. */
static void check_owed(void)
{
    struct kn_weight w = weight(KN_Q4_K, 4096, 4096);
    float *x = rows_of(8 * 4096, 1.0f), *out = (float *)put(gpu, NULL, 8 * 4096 * 4),
          *other = rows_of(64, 1.0f);
    const int apart = mm_tuning.few_apart;
    mm_tuning.few_apart = 1;
    must(gpu, "linear", op->linear(gpu, out, &w, x, 8, false));
    mm_tuning.few_apart = apart;
    if (!cuda_of(gpu)->owes)
        printf("no sums are left on this device\n");
    else {
        fail_launch = true;
        blamed("sums that cannot be added", op->softcap(gpu, other, 64, 30.0f), KN_EDEVICE,
               "sums of slices: ");
    }
    op->weight_free(gpu, &w);
    drop(gpu, x), drop(gpu, out), drop(gpu, other);
}

/* ---- small promises ---- */

static void check_promises(void)
{
    clears = 0;
    open_device();
    struct kn_weight e = weight(KN_Q4_K, 256, 256, 4);
    verdict(!clears, "opened without a clear on the default stream, which nothing waits for (%d)", clears);
    struct kn_weight w = weight(KN_Q4_K, 256, 64);
    float *x = rows_of(258, 1.0f);
    kn_next(gpu, &w, x);
    must(gpu, "norm_add", op->norm_add(gpu, x, x, x, x, 1, 258, 1e-6f, 1.0f));
    verdict(!cuda_of(gpu)->head.next_w, "what a norm_add is for is forgotten with it, rows of 258 too");
    must(gpu, "sync", op->sync(gpu));
    op->weight_free(gpu, &e), op->weight_free(gpu, &w);
    drop(gpu, x);
    kn_backend_close(gpu);
}

int main(int argc, char **argv)
{
    const char *only = argc > 1 ? argv[1] : "";
    if (argc > 2 || (argc == 2 && argv[1][0] == '-')) {
        fprintf(stderr, "usage: limits_gpu [NAME]\n");
        return 2;
    }
    const auto wanted = [&](const char *name) { return strstr(name, only) != NULL; };
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (wanted("places, malloc")) check_places("places of a chain, no device memory", &fail_malloc);
    if (wanted("places, calloc")) check_places("places of a chain, no memory", &fail_calloc);
    if (wanted("promises")) check_promises();
    open_device();
    if (wanted("deferred")) check_deferred();
    if (wanted("owed")) check_owed();
    if (wanted("mixture")) check_mixture(32, 4, 2816, 256, false);
    if (wanted("mixture")) check_mixture(32, 4, 2048, 256, true);
    if (wanted("mixture")) check_mixture(300, 6, 512, 256, false);
    if (wanted("products"))
        for (uint32_t type : {KN_F32, KN_F16, KN_BF16, KN_Q4_K, KN_Q8_0})
            for (int64_t n_in : {9728, 28672}) {
                if (type == KN_F32 && n_in > 9728) {
                    check_too_long(type, n_in);
                } else {
                    check_product(type, n_in, 80, n_in == 9728);
                }
            }
    kn_backend_close(gpu);
    printf("limits_gpu: %ld passed, %ld failed\n", passed, failed);
    return failed != 0;
}
