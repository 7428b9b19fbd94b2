/* mm_gpu.cu - check and bench of the CUDA matrix products.
 *
 *   mm_gpu cc              the device's compute capability, as 90: what test/PLAN knows it by
 *   mm_gpu layout          take packed units apart on the host and compare with kn_decode_row: needs no GPU
 *   mm_gpu check           every type: accuracy against double precision, the same bits for every row count
 *                          and companions, NaN and Inf, norms, gates, residual adds
 *   mm_gpu step            the products of a step of several models, 1, 8 and 16 rows, as a CUDA graph
 *   mm_gpu once [rows]     the products of four layers, launch by launch, for a profiler
 *   mm_gpu variants [quick]   the same, one model, with other plans
 *   mm_gpu plans           products of a few layers of several models, 1, 8 and 16 rows, with other plans
 *   mm_gpu few [quick]     the same with the kernels for few rows (mm_few.cuh) and without; quick: one model
 *   mm_gpu few-types TYPE  the same of one type, by shapes of layers and of a drafter's context
 *   mm_gpu wide [SHAPE[/HOW]]   products of layers at 17 to 96 rows by mm_wide.cuh, in several ways, and by
 *                          mm_kernel.cuh; of those whose names have these
 *   mm_gpu layers [CONTEXT [NAME]]  microseconds a layer of few rows, attention between products; NAME: one
 *                          model's, as tuned
 *   mm_gpu attend-check [CONTEXT]   the same layers' bits, with rows made by a launch of their own and
 *                          without (check has this, too)
 *   mm_gpu stuck [CASE]    kernels whose blocks wait for each other, where those have no room: an error, not
 *                          for ever
 *   mm_gpu profile         a few products, for a profiler
 *   mm_gpu types           every type, two shapes of Qwen3-8B, as bench
 *   mm_gpu many [quick]    products of more than 64 rows: every kind of tiles against double precision; then
 * times mm_gpu bench [quick]   real shapes: microseconds and share of a one-pass read of the same bytes in
 * the same run
 *
 * Exit: 0 all passed, 1 a check failed, 5 the device. */
#include "../../block_scales.h"
#include "../../../kernels/cuda/chain/chain.cuh"
#include "../mm_gpu.cuh"
#include "../forms.h"

#ifdef MM_STANDALONE /* without backend.cu */
int cuda_fail(struct cuda_backend *be, int code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(be->head.message, sizeof be->head.message, fmt, ap);
    va_end(ap);
    return code;
}
int cuda_check(struct cuda_backend *be, const char *what, cudaError_t err)
{
    return err ? cuda_fail(be, KN_EDEVICE, "%s: %s", what, cudaGetErrorString(err)) : 0;
}
#endif

#ifdef MM_ONLY_K /* a quick build of the K types alone */
mm_kernel_fn mm_kernel_float(enum mm_act, int, int, bool)
{
    return nullptr;
}
mm_kernel_fn mm_kernel_32(enum mm_act, int, int, bool)
{
    return nullptr;
}
#endif

static cuda_backend state;
cuda_backend *const be = &state;
int failures;

static uint64_t seed = 1;
uint32_t rnd()
{
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(seed >> 32);
}
float uniform() /* [-1, 1) */
{
    return (float)((int32_t)rnd() * (1.0 / 2147483648.0));
}
float normal()
{
    float s = 0;
    for (int i = 0; i < 6; i++) s += uniform();
    return s * 0.7071f;
}

/* Blocks of random bits, so that every code and scale occurs; only the f16 scales are drawn (some negative,
 * some zero). */
static void random_block(uint32_t type, uint8_t *b)
{
    const struct kn_type_info *t = kn_type_info(type);
    for (uint32_t i = 0; i < t->bytes; i++) b[i] = (uint8_t)rnd();
    auto half = [&](int at, float v) {
        const uint16_t h = kn_f32_to_f16(rnd() % 64 ? v : 0.0f);
        memcpy(b + at, &h, 2);
    };
    switch (type) {
    case KN_F32: {
        const float v = normal() * 0.05f;
        memcpy(b, &v, 4);
        break;
    }
    case KN_F16: half(0, normal() * 0.05f); break;
    case KN_BF16: {
        const uint16_t h = kn_f32_to_bf16(normal() * 0.05f);
        memcpy(b, &h, 2);
        break;
    }
    case KN_Q8_0: half(0, 0.0005f * uniform()); break;
    case KN_Q4_0:
    case KN_Q5_0: half(0, 0.01f * uniform()); break;
    case KN_Q4_1:
    case KN_Q5_1: half(0, 0.01f * uniform()), half(2, 0.05f * uniform()); break;
    case KN_Q4_K:
    case KN_Q5_K: half(0, 0.0003f * uniform()), half(2, 0.002f * uniform()); break;
    case KN_Q6_K: half(208, 0.00003f * uniform()); break;
    case KN_Q3_K: half(108, 0.001f * uniform()); break;
    case KN_Q2_K: half(80, 0.003f * uniform()), half(82, 0.003f * uniform()); break;
    case KN_IQ4_NL: half(0, 0.0005f * uniform()); break;
    case KN_IQ4_XS: half(0, 0.00002f * uniform()); break;
    case KN_IQ2_XXS:
    case KN_IQ2_XS:
    case KN_IQ2_S: block_set_scales(type, b, 0.002f * uniform(), 0); break;
    case KN_IQ3_XXS:
    case KN_IQ3_S: block_set_scales(type, b, 0.0008f * uniform(), 0); break;
    case KN_IQ1_S:
    case KN_IQ1_M:
    case KN_MXFP4: block_set_scales(type, b, 0.02f * uniform(), 0); break;
    default: abort();
    }
}
std::vector<uint8_t> random_weight(uint32_t type, int64_t n_in, int64_t n_out, size_t pattern)
{
    const struct kn_type_info *t = kn_type_info(type);
    std::vector<uint8_t> w(kn_row_bytes(type, n_in) * (size_t)n_out);
    const size_t blocks = w.size() / t->bytes, own = std::min(blocks, pattern);
    for (size_t i = 0; i < own; i++) random_block(type, w.data() + i * t->bytes);
    for (size_t i = own; i < blocks; i += own)
        memcpy(w.data() + i * t->bytes, w.data(), std::min(own, blocks - i) * t->bytes);
    return w;
}

void fill_x(std::vector<float> &x, int64_t k, int n)
{
    x.resize((size_t)(n * k));
    for (int t = 0; t < n; t++) {
        const float size = t % 7 == 3 ? 1e-4f : t % 7 == 5 ? 300.0f : 1.0f;
        for (int64_t i = 0; i < k; i++) x[t * k + i] = size * normal() * (rnd() % 256 ? 1.0f : 20.0f);
    }
}
float *poisoned(size_t n)
{
    float *p;
    CK(cudaMalloc(&p, n * sizeof(float)));
    CK(cudaMemset(p, 0xff, n * sizeof(float)));
    return p;
}

kn_weight load(uint32_t type, int64_t n_in, int64_t n_out)
{
    kn_weight w;
    std::vector<uint8_t> d = random_weight(type, n_in, n_out, 4099);
    OK(cuda_weight_load(kb(), &w, type, n_in, n_out, d.data(), KN_USE_LINEAR));
    return w;
}

__global__ void no_work()
{
}
static void open_device()
{
    cudaDeviceProp p;
    CK(cudaSetDevice(0));
    CK(cudaGetDeviceProperties(&p, 0));
    be->cc = p.major * 10 + p.minor;
    be->sm_count = p.multiProcessorCount;
    be->smem_block = (int)p.sharedMemPerBlockOptin;
    be->smem_sm = (int)p.sharedMemPerMultiprocessor;
    be->l2_bytes = (size_t)p.l2CacheSize;
    cudaFuncAttributes
        code; /* as backend.cu: the kernels of sm_90 are empty where only compute_80 was compiled */
    CK(cudaFuncGetAttributes(&code, no_work));
    be->cc = std::min(be->cc, code.ptxVersion);
    CK(cudaStreamCreate(&be->stream));
    OK(cuda_mm_open(be));
    chain_tuning.off = 1; /* one row's products are launched here, not collected: outputs are read directly */
    printf("%s, cc %d, %d SMs\n", p.name, be->cc, be->sm_count);
}
std::vector<float> host(const float *p, size_t n)
{
    std::vector<float> v(n);
    OK(cuda_flush(be));
    CK(cudaStreamSynchronize(be->stream));
    CK(cudaMemcpy(v.data(), p, n * sizeof(float), cudaMemcpyDeviceToHost));
    return v;
}

/* Every form of a product that this device has has run by now, the generic one too: check_all compares it. */
static void check_forms()
{
    static const enum cuda_form all[] = {CUDA_PRODUCT_GENERIC, CUDA_PRODUCT_BULK, CUDA_PRODUCT_FEW,
                                         CUDA_PRODUCT_LATE,    CUDA_PRODUCT_WIDE, CUDA_PRODUCT_SUMS};
    const bool is_early = be->cc >= 90 && !be->generic;
    char text[400];
    const bool ok =
        forms_are(kb(), CUDA_PRODUCT_GENERIC, CUDA_PRODUCT_SUMS, all, is_early ? 6 : 1, text, sizeof text);
    printf("%s gpu/forms: %s\n", ok ? "ok  " : "FAIL", text);
    failures += !ok;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "check";
    const bool quick = argc > 2;
    if (!strcmp(what, "cc")) {
        cudaDeviceProp p;
        CK(cudaGetDeviceProperties(&p, 0));
        printf("%d\n", p.major * 10 + p.minor);
        return 0;
    } else if (!strcmp(what, "layout")) {
        check_layout();
    } else if (!strcmp(what, "stuck")) { /* each case opens the device itself */
        check_stuck(argc > 2 ? argv[2] : NULL, open_device);
    } else {
        open_device();
        if (!strcmp(what, "check")) {
            check_owed(KN_Q4_K, 4096, 12288), check_owed(KN_Q6_K, 5376, 21504),
                check_owed(KN_Q4_K, 5120, 17408);
            check_owed(KN_Q8_0, 2048, 20480), check_owed(KN_Q4_1, 1024, 16384),
                check_owed(KN_Q5_K, 1280, 2304);
            check_all(quick);
            check_wide(quick);
            check_plans(KN_Q4_K, 5376, 4096), check_plans(KN_Q6_K, 4200, 5376),
                check_plans(KN_Q5_K, 2064, 21504);
            check_plans(KN_Q8_0, 5000, 2048), check_plans(KN_Q5_1, 2064, 12288),
                check_plans(KN_BF16, 2064, 4096);
            check_plans(KN_Q3_K, 2064, 5376), check_plans(KN_Q8_0, 4100, 20480),
                check_plans(KN_Q4_0, 2064, 4096);
            check_plans(KN_Q5_0, 2064, 5376), check_plans(KN_Q4_1, 2064, 2080),
                check_plans(KN_IQ4_NL, 2064, 12288);
            check_plans(KN_IQ3_S, 2064, 5376), check_plans(KN_IQ2_XXS, 2064, 12288),
                check_plans(KN_IQ1_M, 2064, 4096), check_plans(KN_MXFP4, 2064, 2080);
            attended_check(512), attended_check(1500);
            check_plans(KN_Q4_K, 8768, 5376),
                check_plans(KN_Q6_K, 8640, 2560); /* 4 items a block and more: mm_few_late.cuh */
            if (!quick) check_forms();
        } else if (!strcmp(what, "profile")) { /* for a profiler: products at 16 rows */
            profile(argc > 2 ? argv[2] : "");
        } else if (!strcmp(what, "once")) {
            once(argc > 2 ? atoi(argv[2]) : 16);
        } else if (!strcmp(what, "variants")) {
            variants(36, quick);
        } else if (!strcmp(what, "plans")) {
            plans();
        } else if (!strcmp(what, "few")) {
            few(quick);
        } else if (!strcmp(what, "wide")) {
            bench_wide(argc > 2 ? argv[2] : nullptr);
        } else if (!strcmp(what, "few-types")) {
            few_types(argc > 2 ? argv[2] : "Q8_0");
        } else if (!strcmp(what, "heads")) {
            heads();
        } else if (!strcmp(what, "attend-check")) {
            attended_check(argc > 2 ? atoi(argv[2]) : 512);
        } else if (!strcmp(what, "layers")) {
            attended_layers(argc > 2 ? atoi(argv[2]) : 512, argc > 3 ? argv[3] : NULL);
        } else if (!strcmp(what, "step")) {
            steps();
        } else if (!strcmp(what, "many")) {
            bench_many(quick, nullptr, "");
        } else if (!strcmp(what, "many-type")) {
            bench_many(false, argc > 2 ? argv[2] : "Q8_0", argc > 3 ? argv[3] : "");
        } else if (!strcmp(what, "types")) {
            bench_types();
        } else if (!strcmp(what, "bench"))
            bench(quick);
        cuda_mm_close(be);
    }
    printf("%d failures\n", failures);
    return failures ? 1 : 0;
}
