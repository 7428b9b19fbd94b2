/* mm_gpu.cu - check and bench of the CUDA matrix products.
 *
 *   mm_gpu layout          take packed units apart on the host and compare with kn_decode_row: needs no GPU
 *   mm_gpu check           every type: accuracy against double precision, the same bits for every row count
 *                          and companions, NaN and Inf, norms, gates, residual adds
 *   mm_gpu step            the products of a step of several models, 1, 8 and 16 rows, as a CUDA graph
 *   mm_gpu variants [quick]   the same, one model, with other plans
 *   mm_gpu plans           products of a few layers of several models, 1, 8 and 16 rows, with other plans
 *   mm_gpu trace [rows]    builds with MM_TRACE: when the parts of each launch ran
 *   mm_gpu profile         a few products, for a profiler
 *   mm_gpu types           every type, two shapes of Qwen3-8B, as bench
 *   mm_gpu bench [quick]   real shapes: microseconds and share of a one-pass read of the same bytes in the
 *                          same run
 * Exit: 0 all passed, 1 a check failed, 5 the device. */
#include "../../kernels/cuda/mm.cuh"
#include "../../kernels/cuda/pack.cuh"

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

static cuda_backend state, *be = &state;
static int failures;

static uint64_t seed = 1;
static uint32_t rnd()
{
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(seed >> 32);
}
static float uniform() /* [-1, 1) */
{
    return (float)((int32_t)rnd() * (1.0 / 2147483648.0));
}
static float normal()
{
    float s = 0;
    for (int i = 0; i < 6; i++) s += uniform();
    return s * 0.7071f;
}

static const uint32_t all_types[] = {KN_F32,  KN_F16,  KN_BF16, KN_Q8_0,   KN_Q4_0,
                                     KN_Q5_0, KN_Q4_1, KN_Q5_1, KN_Q4_K,   KN_Q5_K,
                                     KN_Q6_K, KN_Q2_K, KN_Q3_K, KN_IQ4_NL, KN_IQ4_XS};

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
    default: abort();
    }
}
static std::vector<uint8_t> random_weight(uint32_t type, int64_t n_in, int64_t n_out,
                                          size_t pattern = ~(size_t)0)
{
    const struct kn_type_info *t = kn_type_info(type);
    std::vector<uint8_t> w(kn_row_bytes(type, n_in) * (size_t)n_out);
    const size_t blocks = w.size() / t->bytes, own = std::min(blocks, pattern);
    for (size_t i = 0; i < own; i++) random_block(type, w.data() + i * t->bytes);
    for (size_t i = own; i < blocks; i += own)
        memcpy(w.data() + i * t->bytes, w.data(), std::min(own, blocks - i) * t->bytes);
    return w;
}

/* ---- layout: decode the units as the kernel does ---- */

static double f16(uint32_t h)
{
    return kn_f16_to_f32((uint16_t)h);
}
/* Value of the weight that lane `lane` holds in register r, half h of step s of 32-group j of a unit. */
static double unit_value(uint32_t type, const uint8_t *u, int lane, int j, int s, int r, int h)
{
    auto word = [&](int at) {
        uint32_t w;
        memcpy(&w, u + at, 4);
        return w;
    };
    auto u16 = [&](int at) { return word(at & ~3) >> (at & 2) * 8 & 0xffff; };
    const int g = lane / 4, hi = r & 1, rp = r >> 1;
    const int row = g + 8 * hi;
    if (type == KN_F32) {
        float f;
        const uint32_t w = word(1024 * s + 512 * rp + 16 * lane + 4 * (2 * hi + h));
        memcpy(&f, &w, 4);
        return f;
    }
    if (type == KN_F16 || type == KN_BF16) {
        const uint16_t v = (uint16_t)(word(512 * s + 16 * lane + 4 * r) >> 16 * h);
        return type == KN_F16 ? kn_f16_to_f32(v) : kn_bf16_to_f32(v);
    }
    if (type == KN_Q8_0) {
        const int b = word(16 * lane + 4 * (2 * s + rp)) >> 8 * (2 * hi + h) & 255;
        return (b - 128) * f16(u16(512 + 4 * g + 2 * hi));
    }
    if (type == KN_Q4_0 || type == KN_Q4_1 || type == KN_Q5_0 || type == KN_Q5_1) {
        const bool five = type == KN_Q5_0 || type == KN_Q5_1, min = type == KN_Q4_1 || type == KN_Q5_1;
        int q = word(8 * lane + 4 * s) >> (4 * r + 16 * h) & 15;
        if (five) q |= (u16(256 + 2 * lane) >> (2 * s + rp + 4 * hi + 8 * h) & 1) << 4;
        const int at = five ? 320 : 256;
        if (!min) return (q - (five ? 16 : 8)) * f16(u16(at + 4 * g + 2 * hi));
        return q * f16(u16(at + 8 * g + 2 * hi)) + f16(u16(at + 8 * g + 4 + 2 * hi));
    }
    if (type == KN_Q2_K || type == KN_Q3_K) {
        const bool three = type == KN_Q3_K;
        const int bit = 2 * s + 8 * rp + 4 * hi + 16 * h, sub = 2 * j + s;
        int c = word(512 * (j / 4) + 16 * lane + 4 * (j % 4)) >> bit & 3;
        if (!three) {
            const int m = u[1024 + 16 * row + sub];
            return f16(u16(1280 + 8 * g + 2 * hi)) * (m & 15) * c -
                   f16(u16(1284 + 8 * g + 2 * hi)) * (m >> 4);
        }
        c |= (word(1024 + 16 * lane + 4 * (j / 2)) >> (bit + j % 2) & 1) << 2;
        const uint8_t *p = u + 1536 + 12 * row;
        const int sc = (p[sub % 8] >> 4 * (sub / 8) & 15) | (p[8 + sub % 4] >> 2 * (sub / 4) & 3) << 4;
        return f16(u16(1728 + 4 * g + 2 * hi)) * (sc - 32) * (c - 4);
    }
    if (type == KN_IQ4_NL)
        return f16(u16(256 + 4 * g + 2 * hi)) *
               mm_iq4(word(8 * lane + 4 * s) >> (4 * rp + 8 * h + 16 * hi) & 15);
    int q = word(512 * (j / 2) + 16 * lane + 4 * (2 * (j % 2) + s)) >> (4 * r + 16 * h) & 15;
    if (type == KN_IQ4_XS) {
        const uint8_t *p = u + 2048 + 8 * row;
        const int sc = (p[4 + j / 2] >> 4 * (j % 2) & 15) | ((p[2] | p[3] << 8) >> 2 * j & 3) << 4;
        q = word(512 * (j / 2) + 16 * lane + 4 * (2 * (j % 2) + s)) >> (4 * rp + 8 * h + 16 * hi) & 15;
        return f16(p[0] | p[1] << 8) * (sc - 32) * mm_iq4((uint32_t)q);
    }
    if (type == KN_Q6_K) {
        q |= (word(2048 + 512 * (j / 4) + 16 * lane + 4 * (j % 4)) >> (2 * s + 8 * rp + 4 * hi + 16 * h) & 3)
             << 4;
        const int sc = (int)u[3072 + 16 * row + 2 * j + s] - 128;
        return (float)(f16(u16(3328 + 4 * g + 2 * hi)) * sc) * (q - 32);
    }
    if (type == KN_Q5_K)
        q |= (word(2048 + 16 * lane + 4 * (j / 2)) >> (j % 2 + 2 * s + 8 * rp + 4 * hi + 16 * h) & 1) << 4;
    const uint8_t *rec = u + (type == KN_Q5_K ? 2560 : 2048) + 16 * row, *p = rec + 4;
    const int sc = j < 4 ? p[j] & 63 : (p[j + 4] & 15) | p[j - 4] >> 6 << 4,
              m = j < 4 ? p[j + 4] & 63 : p[j + 4] >> 4 | p[j] >> 6 << 4;
    return f16(u16((int)(rec - u))) * sc * q - f16(u16((int)(rec - u) + 2)) * m;
}

static void check_layout()
{
    for (uint32_t type : all_types) {
        const struct kn_type_info *info = kn_type_info(type);
        const mm_type *t = mm_type_of(type);
        const int64_t n_in = info->block == 1 ? 77 : info->block * 3, rows = 21;
        std::vector<uint8_t> w = random_weight(type, n_in, rows);
        const size_t row_bytes = kn_row_bytes(type, n_in);
        int bad = 0;
        for (int panel = 0; panel < 2; panel++)
            for (int64_t unit = 0; unit < (n_in + t->unit_k - 1) / t->unit_k; unit++) {
                std::vector<uint8_t> u((size_t)t->unit_bytes);
                const mm_source m = {w.data() + panel * 16 * row_bytes,
                                     row_bytes,
                                     (int32_t)(rows - 16 * panel),
                                     n_in,
                                     type,
                                     (int32_t)info->bytes};
                for (int i = 0; i < t->unit_bytes / 4; i++) {
                    const uint32_t v = mm_word(m, unit, i);
                    memcpy(u.data() + 4 * i, &v, 4);
                }
                for (int j = 0; j < t->unit_k / 32; j++)
                    for (int lane = 0; lane < 32; lane++)
                        for (int e = 0; e < 16; e++) {
                            const int s = e / 8, r = e / 2 % 4, h = e % 2, row = mm_row(lane, r) + 16 * panel;
                            const int64_t k = unit * t->unit_k + 32 * j + mm_col(lane, s, r, h);
                            float want = 0;
                            if (row < rows && k < n_in) {
                                std::vector<float> y((size_t)n_in);
                                kn_decode_row(type, w.data() + row * row_bytes, y.data(), n_in);
                                want = y[k];
                            }
                            const double got = unit_value(type, u.data(), lane, j, s, r, h);
                            if (!(std::fabs(got - want) <= 1e-6 * (1e-3 + std::fabs(want))) && bad++ < 3)
                                printf("  %s row %d k %lld: %g, expected %g\n", info->name, row, (long long)k,
                                       got, want);
                        }
            }
        printf("layout %-5s %s\n", info->name, bad ? "FAILED" : "ok");
        failures += bad != 0;
    }
}

/* ---- check ---- */

__global__ void read_kernel(const uint4 *p, size_t n, unsigned *out);
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
    CK(cudaFuncGetAttributes(&code, read_kernel));
    be->cc = std::min(be->cc, code.ptxVersion);
    CK(cudaStreamCreate(&be->stream));
    OK(cuda_mm_open(be));
    printf("%s, cc %d, %d SMs\n", p.name, be->cc, be->sm_count);
}
static kn_backend *kb()
{
    return (kn_backend *)be;
}
template <class T> static T *device(const std::vector<T> &v)
{
    T *p;
    CK(cudaMalloc(&p, v.size() * sizeof(T) + 16));
    CK(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
    return p;
}
static std::vector<float> host(const float *p, size_t n)
{
    std::vector<float> v(n);
    CK(cudaStreamSynchronize(be->stream));
    CK(cudaMemcpy(v.data(), p, n * sizeof(float), cudaMemcpyDeviceToHost));
    return v;
}

struct matrix {
    kn_weight w;
    std::vector<float> y; /* decoded [n_out, n_in] */
};
static matrix make_matrix(uint32_t type, int64_t n_in, int64_t n_out)
{
    matrix m;
    std::vector<uint8_t> data = random_weight(type, n_in, n_out);
    m.y.resize((size_t)(n_in * n_out));
    for (int64_t r = 0; r < n_out; r++)
        kn_decode_row(type, data.data() + r * kn_row_bytes(type, n_in), m.y.data() + r * n_in, n_in);
    OK(cuda_weight_load(kb(), &m.w, type, n_in, n_out, data.data(), KN_USE_LINEAR));
    return m;
}
/* W x, and |w . x| in the 2-norm, that errors are relative to */
static void reference(const matrix &m, const double *x, std::vector<double> &out, std::vector<double> &size)
{
    const int64_t k = m.w.n_in, n = m.w.n_out;
    out.resize(n), size.resize(n);
    for (int64_t r = 0; r < n; r++) {
        double s = 0, q = 0;
        for (int64_t i = 0; i < k; i++) {
            const double v = (double)m.y[r * k + i] * x[i];
            s += v, q += v * v;
        }
        out[r] = s, size[r] = std::sqrt(q);
    }
}
static bool is_float(uint32_t type)
{
    return type == KN_F32 || type == KN_F16 || type == KN_BF16;
}
/* The activations as quantised products see them: rounded to int8 with a scale for 256 or 32 values, by the
 * rule of kernels/cpu/mm_act.inc.h; steps: the scales, a value each. */
static void round_act(uint32_t type, std::vector<double> &x, std::vector<double> &steps)
{
    const size_t block = mm_type_of(type)->act == MM_ACT_K ? 256 : 32;
    steps.resize(x.size());
    for (size_t b = 0; b < x.size(); b += block) {
        float amax = 0;
        for (size_t i = b; i < b + block; i++) amax = std::max(amax, std::fabs((float)x[i]));
        const float inverse = amax >= 1e-30f ? 127.0f / amax : 0, d = amax >= 1e-30f ? amax / 127.0f : 0;
        for (size_t i = b; i < b + block; i++) {
            const float y = (float)x[i] * inverse;
            x[i] = (double)d * std::nearbyint(y);
            steps[i] = d;
        }
    }
}
/* What errors are measured in. Floats: |w . x| in the 2-norm; float32 sums of up to 4,096 products, cut (not
 * rounded) inside the tensor core. Quantised: rounding to a step d is off by d / sqrt(12) in the root mean
 * square, so an output by the root of the sum of w^2 d^2 / 12; six and a half of these for some 1e6 outputs.
 */
static double tolerance(uint32_t type)
{
    return is_float(type) ? 4e-6 : 6.5;
}
static void stated(const matrix &m, const std::vector<double> &x, std::vector<double> &out,
                   std::vector<double> &size)
{
    reference(m, x.data(), out, size);
    if (is_float(m.w.type)) return;
    std::vector<double> y(x), d, none;
    round_act(m.w.type, y, d);
    for (double &v : d) v /= std::sqrt(12.0);
    reference(m, d.data(), none, size);
    for (int64_t r = 0; r < m.w.n_out; r++) size[r] += 1e-6 * std::fabs(out[r]);
}

#define ROWS 64
static const int row_counts[] = {1, 3, 8, 9, 16, 33, 64};

static void fill_x(std::vector<float> &x, int64_t k, int n)
{
    x.resize((size_t)(n * k));
    for (int t = 0; t < n; t++) {
        const float size = t % 7 == 3 ? 1e-4f : t % 7 == 5 ? 300.0f : 1.0f;
        for (int64_t i = 0; i < k; i++) x[t * k + i] = size * normal() * (rnd() % 256 ? 1.0f : 20.0f);
    }
}
static float *poisoned(size_t n)
{
    float *p;
    CK(cudaMalloc(&p, n * sizeof(float)));
    CK(cudaMemset(p, 0xff, n * sizeof(float)));
    return p;
}

/* The rows of every smaller call, at several offsets, are the rows of the whole. run(out, x, n). */
static bool same_rows(const float *x, int64_t k, const std::vector<float> &whole, size_t width,
                      const std::function<void(float *, const float *, int)> &run)
{
    float *out = poisoned(ROWS * width);
    bool same = true;
    for (int n : row_counts)
        for (int first = 0; first + n <= ROWS && first < 22; first += 7) {
            CK(cudaMemset(out, 0xff, ROWS * width * sizeof(float)));
            run(out, x + first * k, n);
            std::vector<float> got = host(out, n * width);
            size_t count = 0, at = 0;
            for (size_t i = 0; i < got.size(); i++)
                if (memcmp(&got[i], &whole[first * width + i], 4) && !count++) at = i;
            if (count && same)
                printf("  rows %d..%d differ from those of %d rows: %zu values, first row %zu column %zu: %g, %g\n", first,
                       first + n - 1, ROWS, count, at / width, at % width, got[at], whole[first * width + at]);
            same &= !count;
        }
    CK(cudaFree(out));
    return same;
}

static void verdict(const char *what, uint32_t type, int64_t n_out, int64_t n_in, double error, double limit,
                    bool same)
{
    const bool ok = error <= limit && same; /* a NaN fails */
    printf("%-12s %-5s [%6lld, %6lld] error %.2e (limit %.0e) rows %s  %s\n", what, kn_type_info(type)->name,
           (long long)n_out, (long long)n_in, error, limit, same ? "same" : "DIFFER", ok ? "ok" : "FAILED");
    failures += !ok;
}

static void check_linear(uint32_t type, int64_t n_out, int64_t n_in)
{
    matrix m = make_matrix(type, n_in, n_out);
    std::vector<float> x;
    fill_x(x, n_in, ROWS);
    float *dx = device(x), *out = poisoned(ROWS * n_out);
    OK(cuda_linear(kb(), out, &m.w, dx, ROWS, false));
    std::vector<float> got = host(out, ROWS * n_out);
    double worst = 0, tight = 0;
    for (int t = 0; t < ROWS; t += (n_out * n_in > 300000 ? 9 : 1)) {
        std::vector<double> xd(x.begin() + t * n_in, x.begin() + (t + 1) * n_in), ref, size, steps;
        stated(m, xd, ref, size);
        for (int64_t r = 0; r < n_out; r++) {
            const double e = std::fabs(got[t * n_out + r] - ref[r]) / (size[r] + 1e-30);
            if (!(e <= worst)) worst = e;
        }
        if (is_float(type)) continue;
        round_act(type, xd, steps); /* with the same rounded activations only float32 additions differ */
        reference(m, xd.data(), ref, size);
        for (int64_t r = 0; r < n_out; r++) {
            const double e = std::fabs(got[t * n_out + r] - ref[r]) / (size[r] + 1e-30);
            if (!(e <= tight)) tight = e;
        }
    }
    if (!(tight <= 4e-6)) {
        printf("%-12s %-5s [%6lld, %6lld] error with the same activations %.2e (limit 4e-06) FAILED\n",
               "linear", kn_type_info(type)->name, (long long)n_out, (long long)n_in, tight);
        failures++;
    }
    const bool same = same_rows(dx, n_in, got, n_out, [&](float *o, const float *p, int n) {
        OK(cuda_linear(kb(), o, &m.w, p, n, false));
    });
    verdict("linear", type, n_out, n_in, worst, tolerance(type), same);

    /* added to what is there; a NaN, an Inf and a huge companion change no other row and show in their own */
    std::vector<float> before(ROWS * n_out), bad(x);
    for (float &v : before) v = uniform();
    float *db = device(before);
    OK(cuda_linear(kb(), db, &m.w, dx, ROWS, true));
    std::vector<float> sum = host(db, ROWS * n_out);
    bool good = true;
    for (size_t i = 0; i < sum.size(); i++) good &= sum[i] == before[i] + got[i];
    bad[2 * n_in] = NAN, bad[5 * n_in + n_in - 1] = INFINITY, bad[20 * n_in + n_in / 2] = -INFINITY;
    for (int64_t i = 0; i < n_in; i++) bad[9 * n_in + i] *= 1e30f, bad[10 * n_in + i] = 0.0f;
    float *dbad = device(bad);
    CK(cudaMemset(out, 0xff, ROWS * n_out * 4));
    OK(cuda_linear(kb(), out, &m.w, dbad, ROWS, false));
    std::vector<float> odd = host(out, ROWS * n_out);
    for (int t = 0; t < ROWS; t++)
        for (int64_t r = 0; r < n_out; r++) {
            const float v = odd[t * n_out + r];
            if (t == 2 || t == 5 || t == 20)
                good &= !std::isfinite(v);
            else if (t == 10)
                good &= v == 0.0f;
            else if (t != 9)
                good &= !memcmp(&v, &got[t * n_out + r], 4);
        }
    printf("%-12s %-5s [%6lld, %6lld] %s\n", "add, NaN", kn_type_info(type)->name, (long long)n_out,
           (long long)n_in, good ? "ok" : "FAILED");
    failures += !good;
    CK(cudaFree(dx));
    CK(cudaFree(out));
    CK(cudaFree(db));
    CK(cudaFree(dbad));
    cuda_weight_free(kb(), &m.w);
}

static void check_norm(uint32_t ta, uint32_t tb, uint32_t tc, int64_t n_in)
{
    const uint32_t types[3] = {ta, tb, tc};
    const int64_t n_out[3] = {70, 33, 16};
    matrix m[3];
    std::vector<float> x, norm((size_t)n_in);
    fill_x(x, n_in, ROWS);
    for (float &v : norm) v = 1.0f + 0.5f * uniform();
    float *dx = device(x), *dn = device(norm), *out[3];
    const kn_weight *w[3];
    for (int j = 0; j < 3; j++) {
        m[j] = make_matrix(types[j], n_in, n_out[j]);
        w[j] = &m[j].w;
        out[j] = poisoned(ROWS * n_out[j]);
    }
    OK(cuda_norm_linear(kb(), out, w, 3, dx, dn, 1e-6f, ROWS));
    std::vector<float> got[3];
    for (int j = 0; j < 3; j++) got[j] = host(out[j], ROWS * n_out[j]);
    std::vector<std::vector<double>> y(ROWS);
    for (int t = 0; t < ROWS; t++) {
        double ss = 0;
        for (int64_t i = 0; i < n_in; i++) ss += (double)x[t * n_in + i] * x[t * n_in + i];
        const double f = 1 / std::sqrt(ss / n_in + 1e-6);
        for (int64_t i = 0; i < n_in; i++) y[t].push_back(x[t * n_in + i] * f * norm[i]);
    }
    for (int j = 0; j < 3; j++) {
        double worst = 0;
        for (int t = 0; t < ROWS; t++) {
            std::vector<double> ref, size;
            stated(m[j], y[t], ref, size);
            for (int64_t r = 0; r < n_out[j]; r++) {
                const double e = std::fabs(got[j][t * n_out[j] + r] - ref[r]) / (size[r] + 1e-30);
                if (!(e <= worst)) worst = e;
            }
        }
        const bool same = same_rows(dx, n_in, got[j], n_out[j], [&](float *o, const float *p, int n) {
            float *const o3[3] = {j == 0 ? o : out[0], j == 1 ? o : out[1], j == 2 ? o : out[2]};
            OK(cuda_norm_linear(kb(), o3, w, 3, p, dn, 1e-6f, n));
        });
        verdict("norm_linear", types[j], n_out[j], n_in, worst, tolerance(types[j]), same);
    }
    /* gate and up */
    matrix up = make_matrix(ta, n_in, n_out[0]);
    for (int act = 0; act < 2; act++) {
        CK(cudaMemset(out[0], 0xff, ROWS * n_out[0] * 4));
        OK(cuda_norm_gated(kb(), out[0], &m[0].w, &up.w, dx, dn, 1e-6f, (kn_act)act, ROWS));
        std::vector<float> g = host(out[0], ROWS * n_out[0]);
        double worst = 0;
        for (int t = 0; t < ROWS; t++) {
            std::vector<double> a, b, sa, sb;
            stated(m[0], y[t], a, sa);
            stated(up, y[t], b, sb);
            for (int64_t r = 0; r < n_out[0]; r++) {
                const double v = a[r],
                             f = act ? 0.5 * v *
                                           (1 + std::tanh(0.7978845608028654 * (v + 0.044715 * v * v * v)))
                                     : v / (1 + std::exp(-v));
                const double e =
                    std::fabs(g[t * n_out[0] + r] - f * b[r]) /
                    (1.2 * sa[r] * (std::fabs(b[r]) + 6.5 * sb[r]) + std::fabs(f) * sb[r] + 1e-30);
                if (!(e <= worst)) worst = e;
            }
        }
        const bool same = same_rows(dx, n_in, g, n_out[0], [&](float *o, const float *p, int n) {
            OK(cuda_norm_gated(kb(), o, &m[0].w, &up.w, p, dn, 1e-6f, (kn_act)act, n));
        });
        verdict(act ? "gated gelu" : "gated silu", ta, n_out[0], n_in, worst, tolerance(ta), same);
    }
    cuda_weight_free(kb(), &up.w);
    for (int j = 0; j < 3; j++) {
        cuda_weight_free(kb(), &m[j].w);
        CK(cudaFree(out[j]));
    }
    CK(cudaFree(dx));
    CK(cudaFree(dn));
}

static void check_refusals()
{
    kn_weight w;
    std::vector<uint8_t> data(1 << 16);
    struct {
        uint32_t type;
        int64_t n_in, n_out;
        unsigned use;
        int want;
    } cases[] = {{KN_Q4_K, 300, 4, KN_USE_LINEAR, KN_ETYPE},
                 {KN_IQ3_S, 256, 4, KN_USE_LINEAR, KN_ETYPE},
                 {KN_Q8_0, 32, 0, KN_USE_LINEAR, KN_EINVAL},
                 {999, 32, 4, KN_USE_LINEAR, KN_ETYPE},
                 {KN_F32, 64, 4, 0, KN_EINVAL},
                 {KN_F32, 1 << 20, 4, KN_USE_LINEAR, KN_ETYPE}};
    for (auto &c : cases) {
        const int rc = cuda_weight_load(kb(), &w, c.type, c.n_in, c.n_out, data.data(), c.use);
        const bool ok = rc == c.want && be->head.message[0] && !w.packed;
        if (!ok)
            printf("refusal: type %u [%lld, %lld] gave %d, expected %d\n", c.type, (long long)c.n_out,
                   (long long)c.n_in, rc, c.want);
        failures += !ok;
    }
    /* rows stay in file layout */
    std::vector<uint8_t> d = random_weight(KN_Q8_0, 64, 37);
    OK(cuda_weight_load(kb(), &w, KN_Q8_0, 64, 37, d.data(), KN_USE_ROWS));
    std::vector<uint8_t> back(d.size());
    CK(cudaMemcpy(back.data(), w.rows, d.size(), cudaMemcpyDeviceToHost));
    if (back != d) printf("rows: FAILED\n"), failures++;
    cuda_weight_free(kb(), &w);
}

static void check_all(bool quick)
{
    for (int generic = 0; generic < 2; generic++) {
        be->generic = generic;
        printf("-- %s\n", generic ? "generic path (cp.async)" : "native path");
        for (uint32_t type : all_types) {
            const int64_t block = kn_type_info(type)->block;
            if (block == 1) {
                check_linear(type, 7, 33);
                if (!quick)
                    check_linear(type, 100, 1023), check_linear(type, 1, 1), check_linear(type, 50, 4100);
            } else {
                check_linear(type, 33, block * 5);
                if (!quick)
                    check_linear(type, 100, block == 32 ? 1056 : 2304), check_linear(type, 1, block),
                        check_linear(type, 2064, 512);
                if (!quick) check_linear(type, 24, 12288), check_linear(type, 20, 28672);
            }
        }
        check_norm(KN_Q4_K, KN_Q4_K, KN_Q6_K, 1280);
        check_norm(KN_Q8_0, KN_Q4_1, KN_Q8_0, 4096);
        if (!quick)
            check_norm(KN_BF16, KN_BF16, KN_F32, 640), check_norm(KN_Q5_K, KN_Q5_K, KN_Q5_K, 256),
                check_norm(KN_F16, KN_Q5_1, KN_Q4_0, 2080);
        if (!quick) check_norm(KN_Q6_K, KN_Q5_0, KN_Q4_K, 512);
    }
    be->generic = false;
    check_refusals();
}

/* ---- bench ---- */

__global__ void read_kernel(const uint4 *p, size_t n, unsigned *out)
{
    unsigned a = 0;
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x, nth = (size_t)gridDim.x * blockDim.x;
    for (; i + 7 * nth < n; i += 8 * nth) {
        uint4 v[8];
#pragma unroll
        for (int k = 0; k < 8; k++) v[k] = __ldcs(p + i + k * nth);
#pragma unroll
        for (int k = 0; k < 8; k++) a ^= v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
    }
    if (a == 0x12345u) *out = a;
}
static double median_us(const std::function<void()> &f, int reps)
{
    cudaEvent_t a, b;
    std::vector<float> t;
    CK(cudaEventCreate(&a));
    CK(cudaEventCreate(&b));
    for (int i = 0; i < reps + 3; i++) {
        CK(cudaEventRecord(a, be->stream));
        f();
        CK(cudaEventRecord(b, be->stream));
        CK(cudaEventSynchronize(b));
        float ms;
        CK(cudaEventElapsedTime(&ms, a, b));
        if (i >= 3) t.push_back(ms);
    }
    std::sort(t.begin(), t.end());
    return 1e3 * t[t.size() / 2];
}
static double graph_us(const std::function<void()> &f, int reps)
{
    cudaGraph_t g;
    cudaGraphExec_t e;
    CK(cudaStreamBeginCapture(be->stream, cudaStreamCaptureModeThreadLocal));
    f();
    CK(cudaStreamEndCapture(be->stream, &g));
    CK(cudaGraphInstantiate(&e, g, 0));
    const double us = median_us([&] { CK(cudaGraphLaunch(e, be->stream)); }, reps);
    CK(cudaGraphExecDestroy(e));
    CK(cudaGraphDestroy(g));
    return us;
}
static double read_tbs; /* one pass */
static void measure_read()
{
    const size_t bytes = (size_t)4640 << 20;
    uint4 *p;
    CK(cudaMalloc(&p, bytes));
    std::vector<uint32_t> h(1 << 22);
    for (uint32_t &v : h) v = rnd();
    for (size_t o = 0; o < bytes; o += h.size() * 4)
        CK(cudaMemcpy((char *)p + o, o ? (void *)p : (void *)h.data(), std::min(h.size() * 4, bytes - o),
                      o ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice));
    const double us = median_us(
        [&] {
            read_kernel<<<be->sm_count * 8, 256, 0, be->stream>>>(p, bytes / 16, be->mm_count + MM_WARPS);
        },
        20);
    read_tbs = bytes / us / 1e6;
    printf("one read of %.2f GB: %.3f ms = %.3f TB/s: the ceiling\n", bytes / 1e9, us / 1e3, read_tbs);
    CK(cudaFree(p));
}
static kn_weight load(uint32_t type, int64_t n_in, int64_t n_out)
{
    kn_weight w;
    std::vector<uint8_t> d = random_weight(type, n_in, n_out, 4099);
    OK(cuda_weight_load(kb(), &w, type, n_in, n_out, d.data(), KN_USE_LINEAR));
    return w;
}
static float *bench_x, *bench_out[4], *bench_norm;
static void bench_open()
{
    std::vector<float> x, norm(24576, 1.0f);
    fill_x(x, 24576, 64);
    bench_x = device(x);
    bench_norm = device(norm);
    for (int j = 0; j < 4; j++) bench_out[j] = poisoned((size_t)64 * (j ? 32768 : 160000));
}
static const int bench_rows[] = {1, 8, 16, 32, 64};

/* The same bytes elsewhere: quicker than another load. */
static kn_weight clone(const kn_weight &w)
{
    kn_weight c = w;
    CK(cudaMalloc(&c.packed, w.packed_bytes));
    CK(cudaMemcpy(c.packed, w.packed, w.packed_bytes, cudaMemcpyDeviceToDevice));
    return c;
}
/* Are they the same bits? Else how many differ, the first, and by how much at most. */
static bool show_differences(const std::vector<float> &got, const std::vector<float> &want, size_t width, int n, int variant)
{
    size_t count = 0, first = 0;
    double most = 0;
    for (size_t i = 0; i < got.size(); i++)
        if (memcmp(&got[i], &want[i], 4)) {
            if (!count++) first = i;
            most = std::max(most, std::fabs((double)got[i] - want[i]) / (std::fabs(want[i]) + 1e-30));
        }
    if (count)
        printf("  %d rows, variant %d: %zu of %zu values differ, first row %zu column %zu: %g, expected %g; by %.2g at most\n", n,
               variant, count, got.size(), first / width, first % width, got[first], want[first], most);
    return !count;
}

/* Every plan, copies of any size, gates and ups on the same warps or not: the same bits, at shapes that fill the
 * device more than once. */
static void check_plans(uint32_t type, int64_t n_out, int64_t n_in)
{
    const struct mm_tuning best = mm_tuning;
    const int rows[] = {1, 2, 8, 16, 17, 64};
    kn_weight w = load(type, n_in, n_out), up = load(type, n_in, n_out);
    std::vector<float> x, norm((size_t)n_in);
    fill_x(x, n_in, 64);
    for (float &v : norm) v = 1.0f + 0.5f * uniform();
    float *dx = device(x), *dn = device(norm), *out = poisoned((size_t)(64 * n_out));
    for (int gated = 0; gated < 2; gated++) {
        bool same = true, written = true;
        std::vector<float> want;
        for (int n : rows)
            for (int i = -1; i < 10; i++) {
                mm_tuning = best;
                if (i >= 0 && i < 8) mm_tuning.skip = 0xff & ~(1 << i); /* only this one, and the last */
                mm_tuning.any = i >= 0 && i < 9;
                mm_tuning.copy_k = i % 2 ? 2 : 1;
                mm_tuning.no_split = i == 9;
                CK(cudaMemset(out, 0xff, sizeof(float) * 64 * (size_t)n_out));
                if (gated)
                    OK(cuda_norm_gated(kb(), out, &w, &up, dx, dn, 1e-6f, KN_ACT_SILU, n));
                else
                    OK(cuda_linear(kb(), out, &w, dx, n, false));
                std::vector<float> got = host(out, (size_t)(n * n_out));
                for (float v : got) written &= std::isfinite(v);
                if (i < 0 && n == 1) want = got;
                if (i < 0 && memcmp(got.data(), want.data(), std::min(got.size(), want.size()) * 4)) {
                    printf("  %d rows: other bits than of fewer\n", n);
                    same = false;
                }
                if (i < 0) want = got;
                same &= show_differences(got, want, (size_t)n_out, n, i);
            }
        verdict(gated ? "plans, gated" : "plans, linear", type, n_out, n_in, written ? 0 : 1, 0.5, same);
    }
    mm_tuning = best;
    cuda_weight_free(kb(), &w);
    cuda_weight_free(kb(), &up);
    CK(cudaFree(dx));
    CK(cudaFree(dn));
    CK(cudaFree(out));
}

/* One matrix, rotating among copies beyond the L2. */
static void bench_matrix(uint32_t type, int64_t n_out, int64_t n_in, const char *note)
{
    const size_t bytes = kn_row_bytes(type, n_in) * (size_t)n_out;
    const int copies = (int)std::max<size_t>(2, std::min<size_t>(64, ((size_t)400 << 20) / bytes));
    std::vector<kn_weight> w;
    w.push_back(load(type, n_in, n_out));
    for (int i = 1; i < copies; i++) w.push_back(clone(w[0]));
    printf("%-6s %6lld x %-5lld %-10s", kn_type_info(type)->name, (long long)n_out, (long long)n_in, note);
    for (int n : bench_rows) {
        const double us = graph_us(
                              [&] {
                                  for (auto &m : w)
                                      OK(cuda_linear(kb(), bench_out[0], &m, bench_x, n, false));
                              },
                              10) /
                          copies;
        printf(" | %7.2f us %.2f", us, bytes / us / 1e6 / read_tbs);
    }
    printf("\n");
    fflush(stdout);
    for (auto &m : w) cuda_weight_free(kb(), &m);
}

/* The products of a step; shapes of Qwen3-8B. */
static struct {
    int64_t hidden, heads, kv, ff, vocab;
} width = {4096, 4096, 1024, 12288, 151936};
struct layer {
    kn_weight q, k, v, o, gate, up, down;
};
struct model {
    std::vector<layer> layers;
    kn_weight head;
    size_t bytes;
};
static model load_model(int n_layers, uint32_t type, uint32_t more, uint32_t head)
{
    model m;
    m.bytes = 0;
    const int64_t h = width.hidden, a = width.heads, kv = width.kv, f = width.ff;
    for (int i = 0; i < n_layers; i++) {
        const uint32_t big = i % 2 ? type : more; /* half of v and down in the larger type */
        layer l;
        if (i < 2)
            l = {load(type, h, a), load(type, h, kv), load(big, h, kv), load(type, a, h),
                 load(type, h, f), load(type, h, f),  load(big, f, h)};
        else {
            const layer &o = m.layers[i % 2];
            l = {clone(o.q), clone(o.k), clone(o.v), clone(o.o), clone(o.gate), clone(o.up), clone(o.down)};
        }
        for (const kn_weight *w : {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down})
            m.bytes += w->packed_bytes;
        m.layers.push_back(l);
    }
    m.head = load(head, h, width.vocab);
    m.bytes += m.head.packed_bytes;
    return m;
}
static void step(const model &m, int n)
{
    for (const layer &l : m.layers) {
        const kn_weight *w[3] = {&l.q, &l.k, &l.v};
        OK(cuda_norm_linear(kb(), bench_out + 1, w, 3, bench_x, bench_norm, 1e-6f, n));
        OK(cuda_linear(kb(), bench_out[2], &l.o, bench_out[1], n, false));
        OK(cuda_norm_gated(kb(), bench_out[1], &l.gate, &l.up, bench_x, bench_norm, 1e-6f, KN_ACT_SILU, n));
        OK(cuda_linear(kb(), bench_out[2], &l.down, bench_out[1], n, false));
    }
    kn_weight const *w[1] = {&m.head};
    OK(cuda_norm_linear(kb(), bench_out, w, 1, bench_x, bench_norm, 1e-6f, n));
}
static void bench_model(const model &m, const char *name, bool one)
{
    const double floor = m.bytes / read_tbs / 1e6;
    printf("%-34s %.2f GB, floor %.3f ms", name, m.bytes / 1e9, floor / 1e3);
    for (int n : bench_rows) {
        if (one && n != 1 && n != 8 && n != 16) continue;
        const double us = graph_us([&] { step(m, n); }, 10);
        printf(" | %d: %.3f ms %.3f", n, us / 1e3, floor / us);
    }
    printf("\n");
    fflush(stdout);
}
static void free_model(model &m)
{
    for (layer &l : m.layers)
        for (kn_weight *w : {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down}) cuda_weight_free(kb(), w);
    cuda_weight_free(kb(), &m.head);
}

#ifdef MM_TRACE
/* Times of the parts of each launch (mm_kernel.cuh, prep.cu): on one multiprocessor, or for the preparation
 * wherever it ran. */
#define TRACES 64
static unsigned long long *traces;
static std::vector<const char *> traced;
unsigned long long *mm_trace_next(const char *what)
{
    if (!traces || traced.size() == TRACES) return nullptr;
    traced.push_back(what);
    return traces + 10 * (traced.size() - 1);
}
static void trace(int n)
{
    bench_open();
    model m = load_model(4, KN_Q4_K, KN_Q6_K, KN_Q4_K);
    CK(cudaMalloc(&traces, TRACES * 10 * sizeof *traces));
    CK(cudaMemset(traces, 0, TRACES * 10 * sizeof *traces));
    cudaGraph_t g;
    cudaGraphExec_t e;
    CK(cudaStreamBeginCapture(be->stream, cudaStreamCaptureModeThreadLocal));
    step(m, n);
    CK(cudaStreamEndCapture(be->stream, &g));
    CK(cudaGraphInstantiate(&e, g, 0));
    for (int i = 0; i < 4; i++) CK(cudaGraphLaunch(e, be->stream));
    CK(cudaStreamSynchronize(be->stream));
    std::vector<unsigned long long> t(TRACES * 10);
    CK(cudaMemcpy(t.data(), traces, t.size() * sizeof t[0], cudaMemcpyDeviceToHost));
    printf("%d rows, times in ns of the device's clock (and cycles of the multiprocessor's since the launch "
           "before), "
           "launch by launch\n"
           "product: start, ring asked for, wait over, activations there, last slice done; prepare: start, "
           "norm read, "
           "wait over, slices done, end\n",
           n);
    unsigned long long first = 0, clock = 0;
    for (size_t i = 0; i < traced.size(); i++) {
        const unsigned long long *p = &t[10 * i];
        if (!first) first = p[1];
        printf("%-12s", traced[i]);
        for (int k = 0; k < 5; k++) printf(" %8lld", p[2 * k + 1] ? (long long)(p[2 * k + 1] - first) : -1ll);
        if (strcmp(traced[i], "prepare")) {
            printf("  |");
            for (int k = 0; k < 5; k++) printf(" %8lld", p[2 * k] ? (long long)(p[2 * k] - clock) : -1ll);
            clock = p[8];
        }
        printf("\n");
    }
    free_model(m);
}
#endif

/* Variants of the plan, one line each. skip: see `plans` in mm.cu. */
static void variants(int layers, bool quick)
{
    measure_read();
    bench_open();
    model m = load_model(layers, KN_Q4_K, KN_Q6_K, KN_Q6_K);
    const struct mm_tuning best = mm_tuning;
    struct {
        const char *name;
        struct mm_tuning t;
    } v[] = {{"as tuned", best},
             {"2 stages", {2, 2, 8, 4, 4, 0, 0, 8, 8, 0, 0, 14336}},
             {"6 stages", {6, 2, 8, 4, 4, 0, 0, 8, 8, 0, 0, 14336}},
             {"16 warps together", {4, 2, 8, 4, 4, 1, 0, 8, 8, 0, 0, 14336}},
             {"1 block beside", {4, 2, 8, 4, 4, 3, 0, 8, 8, 0, 0, 14336}},
             {"1 block alone", {4, 2, 8, 4, 4, 7, 0, 8, 8, 0, 0, 14336}},
             {"copies of 4", {4, 4, 8, 4, 4, 0, 0, 8, 8, 0, 0, 14336}},
             {"copies of 4, 2 stages", {2, 4, 8, 4, 4, 0, 0, 8, 8, 0, 0, 14336}},
             {"copies of 1", {6, 1, 8, 4, 4, 0, 0, 8, 8, 0, 0, 14336}},
             {"prologue", {4, 2, 8, 4, 4, 0, 1, 8, 8, 0, 0, 14336}},
             {"2 slices", {4, 2, 8, 4, 2, 0, 0, 8, 8, 0, 0, 14336}},
             {"1 slice", {4, 2, 8, 4, 1, 0, 0, 8, 8, 0, 0, 14336}},
             {"8 slices", {4, 2, 8, 4, 8, 0, 0, 8, 8, 0, 0, 14336}},
             {"2 blocks apart", {4, 2, 8, 4, 4, 0x3f, 0, 8, 8, 0, 0, 14336}}};
    for (auto &c : v) {
        if (quick && &c > v + 4) break;
        mm_tuning = c.t;
        bench_model(m, c.name, true);
    }
    mm_tuning = best;
    free_model(m);
}

/* One product of the layers from `from` on, every second one or (step 1) each: microseconds a call. */
static double product_us(const model &m, char what, int from, int step, int n)
{
    int calls = 0;
    const auto run = [&] {
        calls = 0;
        for (size_t i = (size_t)from; i < m.layers.size(); i += (size_t)step, calls++) {
            const layer &l = m.layers[i];
            const kn_weight *w[3] = {&l.q, &l.k, &l.v};
            if (what == 'q') OK(cuda_norm_linear(kb(), bench_out + 1, w, 3, bench_x, bench_norm, 1e-6f, n));
            if (what == 'o') OK(cuda_linear(kb(), bench_out[2], &l.o, bench_x, n, true));
            if (what == 'g')
                OK(cuda_norm_gated(kb(), bench_out[1], &l.gate, &l.up, bench_x, bench_norm, 1e-6f, KN_ACT_SILU, n));
            if (what == 'd') OK(cuda_linear(kb(), bench_out[2], &l.down, bench_x, n, true));
        }
        if (what == 'h') {
            kn_weight const *w[1] = {&m.head};
            OK(cuda_norm_linear(kb(), bench_out, w, 1, bench_x, bench_norm, 1e-6f, n));
            calls++;
        }
    };
    const double us = graph_us(run, 7);
    return us / calls;
}

/* Plans at the shapes of several models, product by product. skip: as in variants. */
static void plans()
{
    measure_read();
    bench_open();
    const struct mm_tuning best = mm_tuning;
    const struct {
        const char *name;
        int64_t hidden, heads, kv, ff;
    } shapes[] = {{"8B", 4096, 4096, 1024, 12288}, {"31B", 5376, 8192, 4096, 21504}, {"27B", 5120, 6144, 5120, 17408}};
    const struct {
        const char *name;
        int stages, copy_k, slices, skip, any, no_split, long_row;
    } v[] = {{"as tuned", 4, 2, 4, 0, 0, 0, best.long_row},
             {"8 warps, copies of 2, not split", 4, 2, 4, 0x12, 1, 1, 14336},
             {"8 warps, copies of 2", 4, 2, 4, 0x12, 1, 0, 14336},
             {"8 warps, copies of 1", 8, 1, 4, 0x12, 1, 0, 14336},
             {"8 warps, copies of 4", 4, 4, 4, 0x12, 1, 0, 14336},
             {"1 block of 8, copies of 2", 4, 2, 4, 0x17, 1, 0, 14336},
             {"1 block of 8, copies of 1", 8, 1, 4, 0x17, 1, 0, 14336},
             {"16 warps second, copies of 1", 8, 1, 4, 0, 1, 0, 14336},
             {"16 warps first, copies of 1", 8, 1, 4, 1, 1, 0, 14336},
             {"16 warps first, copies of 2", 4, 2, 4, 1, 1, 0, 14336},
             {"16 warps first, smaller copies", 4, 2, 4, 1, 0, 0, 14336},
             {"4 slices, 8 warps, copies of 2", 4, 2, 4, 0x12, 1, 0, 1 << 30},
             {"4 slices, 8 warps, copies of 1", 8, 1, 4, 0x12, 1, 0, 1 << 30},
             {"4 slices, 16 first, copies of 1", 8, 1, 4, 1, 1, 0, 1 << 30},
             {"4 slices, 16 first, of 2", 4, 2, 4, 1, 1, 0, 1 << 30},
             {"8 slices, 8 warps, copies of 1", 8, 1, 8, 0x12, 1, 0, 14336}};
    printf("microseconds: q, k, v in Q4_K; with v in Q6_K; o; gate and up; down in Q4_K; in Q6_K; head of 32,768 in Q6_K\n");
    for (auto &s : shapes) {
        width = {s.hidden, s.heads, s.kv, s.ff, 32768};
        model m = load_model(12, KN_Q4_K, KN_Q6_K, KN_Q6_K);
        for (int n : {1, 8, 16})
            for (auto &c : v) {
                mm_tuning.stages = c.stages, mm_tuning.copy_k = c.copy_k, mm_tuning.slices = c.slices;
                mm_tuning.skip = c.skip, mm_tuning.any = c.any, mm_tuning.no_split = c.no_split;
                mm_tuning.long_row = c.long_row;
                printf("%-4s %2d rows %-32s", s.name, n, c.name);
                for (const char *p = "q1q0o0g0d1d0h0"; *p; p += 2)
                    printf(" %7.2f", product_us(m, *p, p[1] - '0', *p == 'q' || *p == 'd' ? 2 : 1, n));
                printf(" | step %.3f ms\n", graph_us([&] { step(m, n); }, 7) / 1e3);
            }
        fflush(stdout);
        mm_tuning = best;
        free_model(m);
    }
}

/* The other models: all rows of the products of a step, few layers. */
static void steps()
{
    measure_read();
    bench_open();
    const struct mm_tuning best = mm_tuning;
    model m = load_model(36, KN_Q4_K, KN_Q6_K, KN_Q6_K);
    bench_model(m, "Q4_K_M, 36 layers", true);
    free_model(m);
    const struct {
        const char *name;
        int stages, copy_32, copy_float, slices, skip, prologue, slices_float;
    } v[] = {{"as tuned", 4, 8, 4, 4, 0, 0, 8},        {"1 block beside", 4, 8, 4, 4, 3, 0, 8},
             {"copies of 16", 4, 16, 8, 4, 0, 0, 8},   {"copies of 4", 4, 4, 4, 4, 0, 0, 8},
             {"half the slices", 4, 8, 4, 2, 0, 0, 4}, {"8 stages", 8, 8, 4, 4, 0, 0, 8},
             {"prologue", 4, 8, 4, 4, 0, 1, 8}};
    for (uint32_t type : {KN_Q8_0, KN_BF16}) {
        m = type == KN_Q8_0 ? load_model(12, type, type, type) : load_model(6, type, type, type);
        for (const auto &c : v) {
            char name[64];
            snprintf(name, sizeof name, "%s, %s", kn_type_info(type)->name, c.name);
            mm_tuning = best;
            mm_tuning.stages = c.stages, mm_tuning.copy_32 = c.copy_32, mm_tuning.copy_float = c.copy_float;
            mm_tuning.slices = c.slices, mm_tuning.skip = c.skip, mm_tuning.prologue = c.prologue;
            mm_tuning.slices_float = c.slices_float;
            bench_model(m, name, true);
        }
        mm_tuning = best;
        free_model(m);
    }
    width = {1024, 2048, 1024, 3072, 151936}; /* Qwen3-0.6B */
    m = load_model(28, KN_Q4_K, KN_Q6_K, KN_Q6_K);
    bench_model(m, "0.6B, Q4_K_M, 28 layers", true);
    mm_tuning.skip = 3;
    bench_model(m, "0.6B, 1 block beside", true);
    mm_tuning = best;
    free_model(m);
}

static void bench(bool quick)
{
    measure_read();
    bench_open();
    printf("columns: rows 1, 8, 16, 32, 64: time, share of the ceiling\n");
    const int64_t shapes[][2] = {{4096, 4096}, {1024, 4096}, {12288, 4096}, {4096, 12288}};
    for (auto &s : shapes) bench_matrix(KN_Q4_K, s[0], s[1], "");
    bench_matrix(KN_Q6_K, 4096, 12288, "");
    bench_matrix(KN_Q6_K, 151936, 4096, "head");
    bench_matrix(KN_Q8_0, 12288, 4096, "");
    bench_matrix(KN_BF16, 12288, 4096, "");
    if (!quick)
        for (uint32_t type : all_types)
            if (type != KN_Q4_K && type != KN_Q8_0 && type != KN_BF16) bench_matrix(type, 4096, 4096, "");
    model m = load_model(36, KN_Q4_K, KN_Q6_K, KN_Q6_K);
    printf("a step of Qwen3-8B: products only\n");
    bench_model(m, "Q4_K_M, as tuned", false);
    be->generic = true;
    bench_model(m, "Q4_K_M, generic", true);
    be->generic = false;
    free_model(m);
    m = load_model(12, KN_Q8_0, KN_Q8_0, KN_Q8_0);
    bench_model(m, "Q8_0, 12 layers", false);
    free_model(m);
    m = load_model(6, KN_BF16, KN_BF16, KN_BF16);
    bench_model(m, "BF16, 6 layers", false);
    free_model(m);
}

static void bench_types()
{
    measure_read();
    bench_open();
    printf("columns: rows 1, 8, 16, 32, 64: time, share of the ceiling\n");
    for (uint32_t type : all_types) {
        bench_matrix(type, 12288, 4096, "");
        bench_matrix(type, 4096, 12288, "");
    }
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "check";
    const bool quick = argc > 2;
    if (!strcmp(what, "layout")) {
        check_layout();
    } else {
        open_device();
        if (!strcmp(what, "check")) {
            check_all(quick);
            check_plans(KN_Q4_K, 5376, 4096), check_plans(KN_Q6_K, 4200, 5376), check_plans(KN_Q5_K, 2064, 21504);
            check_plans(KN_Q8_0, 5000, 2048), check_plans(KN_Q5_1, 2064, 12288), check_plans(KN_BF16, 2064, 4096);
            check_plans(KN_Q3_K, 2064, 5376);
        } else if (!strcmp(what, "profile")) { /* for a profiler: one product at 1 row and at 16 */
            bench_open();
            kn_weight w = load(KN_Q4_K, 4096, 24576);
            for (int i = 0; i < 6; i++)
                OK(cuda_linear(kb(), bench_out[0], &w, bench_x, i < 3 ? 1 : 16, false));
            CK(cudaStreamSynchronize(be->stream));
        } else if (!strcmp(what, "variants")) {
            variants(36, quick);
        } else if (!strcmp(what, "plans")) {
            plans();
        } else if (!strcmp(what, "step")) {
            steps();
        } else if (!strcmp(what, "types")) {
            bench_types();
#ifdef MM_TRACE
        } else if (!strcmp(what, "trace")) {
            trace(argc > 2 ? atoi(argv[2]) : 1);
#endif
        } else if (!strcmp(what, "bench"))
            bench(quick);
        cuda_mm_close(be);
    }
    printf("%d failures\n", failures);
    return failures ? 1 : 0;
}
