/* mm_gpu_check.cu - products against double precision, the same bits for every row count, companions and
 * plan, NaN and Inf, norms, gates, residual adds. */
#include "../mm_gpu.cuh"
#include "../../../kernels/cuda/core/ops.cuh"

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
    const size_t block = product_type_of(type)->act == MM_ACT_K ? 256 : 32;
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
                printf("  rows %d..%d differ from those of %d rows: %zu values, first row %zu column %zu: "
                       "%g, %g\n",
                       first, first + n - 1, ROWS, count, at / width, at % width, got[at],
                       whole[first * width + at]);
            same &= !count;
        }
    CK(cudaFree(out));
    return same;
}

static void verdict(const char *what, uint32_t type, int64_t n_out, int64_t n_in, double error, double limit,
                    bool same)
{
    const bool ok = error <= limit && same; /* a NaN fails */
    printf("%s %-12s %-5s [%6lld, %6lld] error %.2e (limit %.0e) rows %s\n", ok ? "ok  " : "FAIL", what,
           kn_type_info(type)->name, (long long)n_out, (long long)n_in, error, limit,
           same ? "same" : "DIFFER");
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
        printf("FAIL %-12s %-5s [%6lld, %6lld] error with the same activations %.2e (limit 4e-06)\n",
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
    printf("%s %-12s %-5s [%6lld, %6lld]\n", good ? "ok  " : "FAIL", "add, NaN", kn_type_info(type)->name,
           (long long)n_out, (long long)n_in);
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
                 {KN_TQ1_0, 256, 4, KN_USE_LINEAR, KN_ETYPE},
                 {KN_Q8_0, 32, 0, KN_USE_LINEAR, KN_EINVAL},
                 {999, 32, 4, KN_USE_LINEAR, KN_ETYPE},
                 {KN_F32, 64, 4, 0, KN_EINVAL},
                 {KN_F32, 1 << 20, 4, KN_USE_LINEAR, KN_ETYPE}};
    for (auto &c : cases) {
        const int rc = cuda_weight_load(kb(), &w, c.type, c.n_in, c.n_out, data.data(), c.use);
        const bool ok = rc == c.want && be->head.message[0] && !w.packed;
        printf("%s refusal: type %u [%lld, %lld] gave %d, expected %d\n", ok ? "ok  " : "FAIL", c.type,
               (long long)c.n_out, (long long)c.n_in, rc, c.want);
        failures += !ok;
    }
    /* rows stay in file layout */
    std::vector<uint8_t> d = random_weight(KN_Q8_0, 64, 37);
    OK(cuda_weight_load(kb(), &w, KN_Q8_0, 64, 37, d.data(), KN_USE_ROWS));
    std::vector<uint8_t> back(d.size());
    CK(cudaMemcpy(back.data(), w.rows, d.size(), cudaMemcpyDeviceToHost));
    printf("%s rows stay as in the file\n", back == d ? "ok  " : "FAIL");
    failures += back != d;
    cuda_weight_free(kb(), &w);
}

void check_all(bool quick)
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
        check_norm(KN_IQ3_S, KN_IQ2_XXS, KN_Q5_K, 1280);
        check_norm(KN_MXFP4, KN_Q8_0, KN_IQ4_NL, 640);
        if (!quick)
            check_norm(KN_BF16, KN_BF16, KN_F32, 640), check_norm(KN_Q5_K, KN_Q5_K, KN_Q5_K, 256),
                check_norm(KN_F16, KN_Q5_1, KN_Q4_0, 2080);
        if (!quick) check_norm(KN_Q6_K, KN_Q5_0, KN_Q4_K, 512);
    }
    be->generic = false;
    check_refusals();
}

/* A product whose slices are apart, and who reads its outputs: the bits of the product that adds its sums
 * itself. */
void check_owed(uint32_t type, int64_t width, int64_t n_in)
{
    const struct mm_tuning best = mm_tuning;
    const char *const names[] = {"norm_linear", "norm_add, norm_gated", "norm_add alone",
                                 "nothing",     "fewer rows",           "several matrices"};
    kn_weight w = load(type, n_in, width),
              next[3] = {load(type, width, 512), load(type, width, 512), load(KN_Q6_K, width, 1024)};
    std::vector<float> x, norm((size_t)width), old;
    fill_x(x, n_in, 16), fill_x(old, width, 16);
    for (float &v : norm) v = 1.0f + 0.5f * uniform();
    float *dx = device(x), *dn = device(norm), *y = poisoned(16 * width), *r = poisoned(16 * width), *out[3];
    const size_t sizes[5] = {16 * (size_t)width, 16 * (size_t)width, 16 * 512, 16 * 512, 16 * 1024};
    for (int j = 0; j < 3; j++) out[j] = poisoned(sizes[2 + j]);
    for (int way = 0; way < 6; way++) {
        bool same = true;
        for (int n : {2, 3, 8, 9, 16}) {
            std::vector<float> want[5];
            for (int left = 0; left < 2; left++) {
                mm_tuning.no_left = !left, mm_tuning.few_apart = 1;
                CK(cudaMemcpy(y, old.data(), sizes[0] * 4, cudaMemcpyHostToDevice));
                CK(cudaMemcpy(r, old.data(), sizes[0] * 4, cudaMemcpyHostToDevice));
                for (int j = 0; j < 3; j++) CK(cudaMemset(out[j], 0xff, sizes[2 + j] * 4));
                const kn_weight *ws[3] = {&next[0], &next[1], &next[2]};
                OK(cuda_linear(kb(), y, &w, dx, n, way != 1));
                if (way == 0) OK(cuda_norm_linear(kb(), out, ws, 3, y, dn, 1e-6f, n));
                if (way == 1 || way == 2) {
                    if (way == 1) kn_next(kb(), &next[0], dn);
                    OK(cuda_norm_add(kb(), r, r, y, dn, n, width, 1e-6f, 0.75f));
                    OK(cuda_norm_gated(kb(), out[0], &next[0], &next[1], r, dn, 1e-6f, KN_ACT_GELU_TANH, n));
                }
                if (way == 4) OK(cuda_norm_linear(kb(), out, ws, 3, y, dn, 1e-6f, n - 1));
                if (way == 5) {
                    OK(cuda_norm_linear(kb(), out, ws, 3, y, dn, 1e-6f, n));
                    OK(cuda_gate(kb(), out[2], out[2], n, 1024, 1024));
                }
                const float *const all[5] = {y, r, out[0], out[1], out[2]};
                for (int j = 0; j < 5; j++) {
                    const std::vector<float> got = host(all[j], sizes[j]);
                    if (left)
                        same &= !memcmp(got.data(), want[j].data(), sizes[j] * 4);
                    else
                        want[j] = got;
                }
            }
        }
        printf("%s %-12s %-5s [%6lld, %6lld] and %s\n", same ? "ok  " : "FAIL", "sums left",
               kn_type_info(type)->name, (long long)width, (long long)n_in, names[way]);
        failures += !same;
    }
    mm_tuning = best;
    cuda_weight_free(kb(), &w);
    for (kn_weight &m : next) cuda_weight_free(kb(), &m);
    for (float *p : {dx, dn, y, r, out[0], out[1], out[2]}) CK(cudaFree(p));
}

/* Are they the same bits? Else how many differ, the first, and by how much at most. */
static bool show_differences(const std::vector<float> &got, const std::vector<float> &want, size_t width,
                             int n, int variant)
{
    size_t count = 0, first = 0;
    double most = 0;
    for (size_t i = 0; i < got.size(); i++)
        if (memcmp(&got[i], &want[i], 4)) {
            if (!count++) first = i;
            most = std::max(most, std::fabs((double)got[i] - want[i]) / (std::fabs(want[i]) + 1e-30));
        }
    if (count)
        printf("  %d rows, variant %d: %zu of %zu values differ, first row %zu column %zu: %g, expected %g; "
               "by %.2g at most\n",
               n, variant, count, got.size(), first / width, first % width, got[first], want[first], most);
    return !count;
}

/* Every plan, copies of any size, gates and ups on the same warps or not: the same bits, at shapes that fill
 * the device more than once. */
void check_plans(uint32_t type, int64_t n_out, int64_t n_in)
{
    const struct mm_tuning best = mm_tuning;
    const int rows[] = {1, 2, 8, 16, 17, 64};
    kn_weight w = load(type, n_in, n_out), up = load(type, n_in, n_out);
    std::vector<float> x, norm((size_t)n_in);
    fill_x(x, n_in, 64);
    for (float &v : norm) v = 1.0f + 0.5f * uniform();
    float *dx = device(x), *dn = device(norm), *out = poisoned((size_t)(64 * n_out));
    for (int kind = 0; kind < 3; kind++) {
        const kn_weight *const w1 = &w;
        const bool gated = kind == 1;
        bool same = true, written = true;
        std::vector<float> want;
        for (int n : rows)
            for (int i = -1; i < 17; i++) {
                mm_tuning = best;
                mm_tuning.no_few = mm_tuning.no_wide = i >= 0 && i < 10;
                if (i == 16) mm_tuning.few_warps = 1;
                if (i >= 10 && i < 16) { /* mm_few.cuh: together and apart, rings of any length */
                    mm_tuning.few_from = 1;
                    mm_tuning.wide_groups = 2 + i % 2, mm_tuning.wide_share = 1 + i / 2 % 2;
                    mm_tuning.wide_stages = i < 14 ? 2 : 0;
                    mm_tuning.few_apart = 1 + i % 2;
                    mm_tuning.few_stages = i < 12 ? 2 : i < 14 ? 3 : 8;
                    mm_tuning.few_sets = i >= 14;
                    mm_tuning.few_copy = i < 12 ? 2 : i < 14 ? 4 : 8;
                    mm_tuning.few_cluster = i < 12 ? 1 : i < 14 ? 2 : 4;
                    mm_tuning.few_pace = 1 + (i - 10) % 3;
                }
                if (i >= 0 && i < 8) mm_tuning.skip = 0xff & ~(1 << i); /* only this one, and the last */
                mm_tuning.any = i >= 0 && i < 9;
                mm_tuning.copy_k = i % 2 ? 2 : 1;
                mm_tuning.no_split = i == 9;
                CK(cudaMemset(out, 0xff, sizeof(float) * 64 * (size_t)n_out));
                if (gated)
                    OK(cuda_norm_gated(kb(), out, &w, &up, dx, dn, 1e-6f, KN_ACT_SILU, n));
                else if (kind)
                    OK(cuda_norm_linear(kb(), &out, &w1, 1, dx, dn, 1e-6f, n));
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
        verdict(gated  ? "plans, gated"
                : kind ? "plans, norm"
                       : "plans, linear",
                type, n_out, n_in, written ? 0 : 1, 0.5, same);
    }
    mm_tuning = best;
    cuda_weight_free(kb(), &w);
    cuda_weight_free(kb(), &up);
    CK(cudaFree(dx));
    CK(cudaFree(dn));
    CK(cudaFree(out));
}
