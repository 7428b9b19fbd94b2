/* mm_gpu.cuh - what the parts of mm_gpu share: the backend under test, random weights and rows, device
 * memory.
 *
 * mm_gpu.cu: data, opening, main. mm_gpu_layout.cu, mm_gpu_check.cu, mm_gpu_stuck.cu: what must hold.
 * mm_gpu_bench.cu: times. */
#ifndef DFLASH_TEST_MM_GPU_CUH
#define DFLASH_TEST_MM_GPU_CUH

#include "../../kernels/cuda/product/mm.cuh"
#include "../../kernels/cuda/product/pack.cuh"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#define CK(x)                                                                                                \
    do {                                                                                                     \
        cudaError_t e_ = (x);                                                                                \
        if (e_ != cudaSuccess) {                                                                             \
            printf("%s:%d %s: %s\n", __FILE__, __LINE__, #x, cudaGetErrorString(e_));                        \
            exit(5);                                                                                         \
        }                                                                                                    \
    } while (0)
#define OK(x)                                                                                                \
    do {                                                                                                     \
        if (x) {                                                                                             \
            printf("%s:%d %s: %s\n", __FILE__, __LINE__, #x, be->head.message);                              \
            exit(5);                                                                                         \
        }                                                                                                    \
    } while (0)

extern cuda_backend *const be; /* opened by main, but for `layout` */
extern int failures;           /* checks that did not hold; each has printed why */

uint32_t rnd();
float uniform(); /* [-1, 1) */
float normal();

static const uint32_t all_types[] = {KN_F32,   KN_F16,     KN_BF16,   KN_Q8_0,  KN_Q4_0,    KN_Q5_0,
                                     KN_Q4_1,  KN_Q5_1,    KN_Q4_K,   KN_Q5_K,  KN_Q6_K,    KN_Q2_K,
                                     KN_Q3_K,  KN_IQ4_NL,  KN_IQ4_XS, KN_MXFP4, KN_IQ2_XXS, KN_IQ2_XS,
                                     KN_IQ2_S, KN_IQ3_XXS, KN_IQ3_S,  KN_IQ1_S, KN_IQ1_M};

/* Blocks of random bits, so that every code and scale occurs; only the f16 scales are drawn (some negative,
 * some zero). pattern: blocks after which they begin anew. */
std::vector<uint8_t> random_weight(uint32_t type, int64_t n_in, int64_t n_out, size_t pattern = ~(size_t)0);
/* n rows of k values, of several magnitudes. */
void fill_x(std::vector<float> &x, int64_t k, int n);
/* A weight of random blocks on the device. */
kn_weight load(uint32_t type, int64_t n_in, int64_t n_out);

static inline kn_backend *kb()
{
    return (kn_backend *)be;
}
template <class T> T *device(const std::vector<T> &v)
{
    T *p;
    CK(cudaMalloc(&p, v.size() * sizeof(T) + 16));
    CK(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
    return p;
}
/* n values of the device, after all that was launched. */
std::vector<float> host(const float *p, size_t n);
/* n values on the device that are NaN. */
float *poisoned(size_t n);

/* mm_gpu_layout.cu, mm_gpu_check.cu */
void check_layout();
void check_all(bool quick);
void check_owed(uint32_t type, int64_t width, int64_t n_in);
void check_plans(uint32_t type, int64_t n_out, int64_t n_in);

/* mm_gpu_stuck.cu: the case of that name, or all; in processes of their own, which open the device. */
void check_stuck(const char *only, void (*open_device)());

/* mm_gpu_wide.cu */
void check_wide(bool quick);
void bench_wide(const char *only); /* NULL, or NAME or NAME/HOW: lines whose names have these */

/* mm_gpu_bench.cu: the modes of the head of mm_gpu.cu */
void bench(bool quick);
void bench_types();
void profile(const char *which);
void once(int n);
void variants(int layers, bool quick);
void plans();
void few(bool quick);
void few_types(const char *which);
void heads();
void attended_check(int context);
/* Attention of a layer, in the form whose blocks wait for each other, after `before`: launched, not waited
 * for. */
void attended_once(const char *name, int context, int n, const std::function<void()> &before);
void attended_layers(int context, const char *only); /* NULL, or the one of those names, as tuned */
void steps();
void bench_many(bool quick, const char *type, const char *name); /* mm_gpu_many.cu; quick: checks alone */

#endif
