/* many_lt.cu - cublasLt: the library opened when first needed, algorithms chosen once a shape, one product.
 *
 * An algorithm is what the library's own ranking puts first for the shape with the next power of two of rows,
 * none that splits k. It is asked once and remembered: the same bits at every run. */
#include "many_impl.cuh"

#include <stdio.h>
#include <stdlib.h>

#ifdef DFLASH_CUBLAS
#include <cublasLt.h>
#include <dlfcn.h>

#define ALGORITHMS 64 /* remembered; more shapes than that are asked for anew */

/* ---- the library, loaded when first needed: mapping its half gigabyte takes longer than a short run ---- */

#define LIBRARY_CALLS(X)                                                                                     \
    X(cublasLtCreate)                                                                                        \
    X(cublasLtDestroy)                                                                                       \
    X(cublasLtMatmul)                                                                                        \
    X(cublasLtMatmulAlgoGetHeuristic)                                                                        \
    X(cublasLtMatmulDescCreate)                                                                              \
    X(cublasLtMatmulDescDestroy)                                                                             \
    X(cublasLtMatmulDescSetAttribute)                                                                        \
    X(cublasLtMatrixLayoutCreate)                                                                            \
    X(cublasLtMatrixLayoutDestroy)                                                                           \
    X(cublasLtMatmulPreferenceCreate)                                                                        \
    X(cublasLtMatmulPreferenceDestroy)                                                                       \
    X(cublasLtMatmulPreferenceSetAttribute)                                                                  \
    X(cublasLtGetStatusName)                                                                                 \
    X(cublasLtGetVersion)
struct library {
    void *file;
#define X(name) decltype(&::name) name;
    LIBRARY_CALLS(X)
#undef X
};

struct algorithm {
    int64_t m, k, ldc;
    int32_t rows; /* class */
    uint32_t align;
    cublasLtMatmulAlgo_t algo;
};

struct many_lt {
    struct library lib;
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t desc;
    cublasLtMatmulPreference_t pref;
    int n_algorithms;
    struct algorithm algorithm[ALGORITHMS];
};

static int lt_check(struct cuda_backend *be, const struct many_lt *m, const char *name, const char *what,
                    cublasStatus_t s)
{
    if (s == CUBLAS_STATUS_SUCCESS) return 0;
    return cuda_fail(be, KN_EDEVICE, "%s: cublasLt: %s: %s", name, what, m->lib.cublasLtGetStatusName(s));
}

static int open_library(struct cuda_backend *be, struct library *l)
{
    char name[32];
    snprintf(name, sizeof name, "libcublasLt.so.%d", CUBLAS_VER_MAJOR);
    l->file = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!l->file)
        return cuda_fail(be, KN_EDEVICE, "products of more than 64 rows: %s (--chunk 64 does without)",
                         dlerror());
#define X(call)                                                                                              \
    l->call = (decltype(l->call))dlsym(l->file, #call);                                                      \
    if (!l->call)                                                                                            \
        return cuda_fail(be, KN_EDEVICE, "products of more than 64 rows: %s has no %s", name, #call);
    LIBRARY_CALLS(X)
#undef X
    return 0;
}

template <class T>
static cublasStatus_t prefer(struct many_lt *m, cublasLtMatmulPreferenceAttributes_t what, T value)
{
    return m->lib.cublasLtMatmulPreferenceSetAttribute(m->pref, what, &value, sizeof value);
}

static int open_handle(struct cuda_backend *be, struct many_lt *m)
{
    const struct library *l = &m->lib;
    const cublasOperation_t t = CUBLAS_OP_T;
    int rc = open_library(be, &m->lib);
    if (rc == 0) rc = lt_check(be, m, "open", "create", l->cublasLtCreate(&m->handle));
    if (rc) return rc;
    cublasStatus_t s = l->cublasLtMatmulDescCreate(&m->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (!s) s = l->cublasLtMatmulDescSetAttribute(m->desc, CUBLASLT_MATMUL_DESC_TRANSA, &t, sizeof t);
    if (s) return lt_check(be, m, "open", "description", s);
    s = l->cublasLtMatmulPreferenceCreate(&m->pref);
    if (!s) s = prefer(m, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, MANY_WORKSPACE);
    if (!s)
        s = prefer(m, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, (uint32_t)CUBLASLT_REDUCTION_SCHEME_NONE);
    return lt_check(be, m, "open", "preference", s);
}

int many_lt_open(struct cuda_backend *be, struct many_lt **lt)
{
    struct many_lt *m = *lt = (struct many_lt *)calloc(1, sizeof *m);
    return m ? open_handle(be, m) : cuda_fail(be, KN_EMEM, "out of memory (%zu bytes)", sizeof *m);
}

void many_lt_close(struct many_lt *m)
{
    if (!m) return;
    if (m->pref) m->lib.cublasLtMatmulPreferenceDestroy(m->pref);
    if (m->desc) m->lib.cublasLtMatmulDescDestroy(m->desc);
    if (m->handle) m->lib.cublasLtDestroy(m->handle);
    free(m); /* the file stays mapped: the library registers code that runs at the end of the process */
}

/* ---- products ---- */

static uint32_t align_of(const struct gemm *g)
{
    const uintptr_t a = (uintptr_t)g->out | (uintptr_t)(g->ldc * 4) | 256;
    return (uint32_t)(a & -a);
}

struct layouts {
    cublasLtMatrixLayout_t a, b, c;
};
static void drop_layouts(const struct library *l, struct layouts *y)
{
    if (y->a) l->cublasLtMatrixLayoutDestroy(y->a);
    if (y->b) l->cublasLtMatrixLayoutDestroy(y->b);
    if (y->c) l->cublasLtMatrixLayoutDestroy(y->c);
}
static cublasStatus_t make_layouts(const struct library *l, struct layouts *y, const struct gemm *g,
                                   int32_t n)
{
    *y = {};
    cublasStatus_t s = l->cublasLtMatrixLayoutCreate(&y->a, CUDA_R_16F, (uint64_t)g->k, (uint64_t)g->m, g->k);
    if (!s) s = l->cublasLtMatrixLayoutCreate(&y->b, CUDA_R_16F, (uint64_t)g->k, (uint64_t)n, g->k);
    if (!s) s = l->cublasLtMatrixLayoutCreate(&y->c, CUDA_R_32F, (uint64_t)g->m, (uint64_t)n, g->ldc);
    return s;
}

/* The algorithm for the shape and the next power of two of rows. */
static int find_algorithm(struct cuda_backend *be, const char *name, const struct gemm *g, int32_t n,
                          const cublasLtMatmulAlgo_t **algo)
{
    struct many_lt *m = be->many->lt;
    const struct library *l = &m->lib;
    const uint32_t align = align_of(g);
    int32_t rows = 128;
    while (rows < n) rows *= 2;
    for (int i = 0; i < m->n_algorithms; i++) {
        const struct algorithm *a = &m->algorithm[i];
        if (a->m == g->m && a->k == g->k && a->ldc == g->ldc && a->rows == rows && a->align == align) {
            *algo = &a->algo;
            return 0;
        }
    }
    struct layouts y;
    cublasLtMatmulHeuristicResult_t found[8];
    int count = 0;
    cublasStatus_t s = make_layouts(l, &y, g, rows);
    if (!s) s = prefer(m, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, align);
    if (!s) s = prefer(m, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, align);
    if (!s)
        s = l->cublasLtMatmulAlgoGetHeuristic(m->handle, m->desc, y.a, y.b, y.c, y.c, m->pref, 8, found,
                                              &count);
    drop_layouts(l, &y);
    if (!s && !count) s = CUBLAS_STATUS_NOT_SUPPORTED;
    if (s) return lt_check(be, m, name, "choice of an algorithm", s);
    if (m->n_algorithms == ALGORITHMS) m->n_algorithms = 0;
    struct algorithm *a = &m->algorithm[m->n_algorithms++];
    *a = {g->m, g->k, g->ldc, rows, align, found[0].algo};
    *algo = &a->algo;
    return 0;
}

/* out[n, m of ldc] = beta out + alpha act W^T */
int many_lt_multiply(struct cuda_backend *be, const char *name, const struct gemm *g, int32_t n)
{
    struct many_lt *m = be->many->lt;
    const cublasLtMatmulAlgo_t *algo;
    struct layouts y;
    int rc = find_algorithm(be, name, g, n, &algo);
    if (rc) return rc;
    cublasStatus_t s = make_layouts(&m->lib, &y, g, n);
    if (!s)
        s = m->lib.cublasLtMatmul(m->handle, m->desc, &g->alpha, g->w, y.a, g->act, y.b, &g->beta, g->out,
                                  y.c, g->out, y.c, algo, be->many->workspace, MANY_WORKSPACE, be->stream);
    drop_layouts(&m->lib, &y);
    rc = lt_check(be, m, name, "product", s);
    return rc ? rc : cuda_check(be, name, cudaSuccess);
}
/* ---- the ceiling ---- */

static __global__ void fill_random(uint32_t *x, size_t words)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < words;
         i += (size_t)gridDim.x * blockDim.x) {
        uint32_t h = (uint32_t)i * 0x9e3779b9u ^ (uint32_t)(i >> 32);
        h ^= h >> 16, h *= 0x85ebca6bu, h ^= h >> 13, h *= 0xc2b2ae35u, h ^= h >> 16;
        x[i] = (h & 0x807f807fu) | 0x3f003f00u; /* bf16 of [0.5, 1), either sign */
    }
}

int many_ceiling(struct kn_backend *kb, double *tflops)
{
    struct cuda_backend *be = cuda_of(kb);
    const uint64_t n = 8192;
    const float one = 1.0f, zero = 0.0f;
    int rc = many_reserve(be, MANY_ROWS, 64);
    if (rc) return rc;
    struct many_lt *m = be->many->lt;
    struct layouts y = {};
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;
    uint8_t *p = nullptr;
    cudaEvent_t from = nullptr, to = nullptr;
    float ms = 0;
    cublasStatus_t s;
    cudaError_t err = cudaMalloc(&p, 3 * n * n * 2);
    if (!err) err = cudaEventCreate(&from);
    if (!err) err = cudaEventCreate(&to);
    if ((rc = cuda_check(be, "ceiling", err))) goto out;
    fill_random<<<1024, 256, 0, be->stream>>>((uint32_t *)p, n * n);
    s = m->lib.cublasLtMatrixLayoutCreate(&y.a, CUDA_R_16BF, n, n, (int64_t)n);
    if (!s)
        s = m->lib.cublasLtMatmulAlgoGetHeuristic(m->handle, m->desc, y.a, y.a, y.a, y.a, m->pref, 1, &found,
                                                  &count);
    for (int i = 0; i < 13 && !s; i++) {
        if (i == 3) cudaEventRecord(from, be->stream);
        s = m->lib.cublasLtMatmul(m->handle, m->desc, &one, p, y.a, p + n * n * 2, y.a, &zero, p + n * n * 4,
                                  y.a, p + n * n * 4, y.a, &found.algo, be->many->workspace, MANY_WORKSPACE,
                                  be->stream);
    }
    cudaEventRecord(to, be->stream);
    rc = lt_check(be, m, "ceiling", "product", s);
    err = cudaStreamSynchronize(be->stream);
    if (!err) err = cudaEventElapsedTime(&ms, from, to);
    *tflops = 2e-9 * (double)n * (double)n * (double)n * 10 / ms;
    if (rc == 0) rc = cuda_check(be, "ceiling", err);
    drop_layouts(&m->lib, &y);
out:
    if (from) cudaEventDestroy(from);
    if (to) cudaEventDestroy(to);
    cudaFree(p);
    return rc;
}

#else

int many_lt_open(struct cuda_backend *be, struct many_lt **)
{
    return cuda_fail(be, KN_EDEVICE, "products of more than 64 rows: built without cublasLt");
}
void many_lt_close(struct many_lt *)
{
}
int many_lt_multiply(struct cuda_backend *be, const char *name, const struct gemm *, int32_t)
{
    return cuda_fail(be, KN_EDEVICE, "%s: built without cublasLt", name);
}
int many_ceiling(struct kn_backend *kb, double *)
{
    return cuda_fail(cuda_of(kb), KN_EDEVICE, "ceiling: built without cublasLt");
}

#endif
