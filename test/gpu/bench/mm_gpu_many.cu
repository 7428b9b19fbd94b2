/* mm_gpu_many.cu - products of more than 64 rows: what they are against double precision, and times of the
 * shapes of many_tile.cu beside the library's. */
#include "../../../kernels/cuda/prompt/many_impl.cuh"
#include "../mm_gpu.cuh"

struct many_case {
    std::vector<kn_weight> w;
    std::vector<float *> out;
    float *x;
    int n;
    bool add, gated;
};

/* By the library (-1), by the shape `kind`, by the one that is chosen (TILE_KINDS), or by the kernels of 17
 * to 64 rows (TILE_KINDS + 1). */
static void run_case(const many_case &c, int kind)
{
    const kn_weight *w[4];
    many_tuning.tile_rows = kind < 0 ? 0 : MANY_ROWS;
    many_tuning.tile = kind == TILE_KINDS ? -1 : kind;
    many_tuning.wide_rows = kind > TILE_KINDS ? MANY_ROWS : 0;
    for (size_t j = 0; j < c.w.size(); j++) w[j] = &c.w[j];
    if (c.gated)
        OK(cuda_norm_gated(kb(), c.out[0], w[0], w[1], c.x, nullptr, 1e-6f, KN_ACT_SILU, c.n));
    else if (c.w.size() == 1)
        OK(cuda_linear(kb(), c.out[0], w[0], c.x, c.n, c.add));
    else
        OK(cuda_norm_linear(kb(), c.out.data(), w, (int)c.w.size(), c.x, nullptr, 1e-6f, c.n));
}

static const char *kind_names[TILE_KINDS + 2] = {"256",    "192",    "128",    "96x64", "128x192",
                                                 "96x192", "64x128", "chosen", "rows"};

/* A product in double precision of the factors rounded to f16: what a sum may be away from it, of the 2-norm
 * of its terms. */
static double rounded(double v)
{
    int e;
    if (v == 0 || !std::isfinite(v)) return v;
    const double m = frexp(v, &e);
    return ldexp(nearbyint(ldexp(m, 11)), e - 11);
}

static void check_case(uint32_t type, uint32_t other, int64_t n_in, int64_t n_out, int n, bool add,
                       bool gated)
{
    many_case c;
    std::vector<std::vector<float>> y;
    for (int j = 0; j < 2; j++) {
        const uint32_t t = j ? other : type;
        std::vector<uint8_t> d = random_weight(t, n_in, n_out, 4099);
        kn_weight w;
        OK(cuda_weight_load(kb(), &w, t, n_in, n_out, d.data(), KN_USE_LINEAR));
        c.w.push_back(w);
        y.emplace_back((size_t)(n_in * n_out));
        const size_t row = kn_row_bytes(t, n_in);
        for (int64_t i = 0; i < n_out; i++)
            kn_decode_row(t, d.data() + i * row, y[j].data() + i * n_in, n_in);
        for (float &v : y[j]) v = (float)rounded(v);
    }
    std::vector<float> x((size_t)(n * n_in)), before((size_t)(n * n_out));
    for (int i = 0; i < n; i++)
        for (int64_t k = 0; k < n_in; k++)
            x[i * n_in + k] = i == 9 ? 0 : normal() * (i == 3 ? 1e7f : i == 5 ? 1e-9f : 1.0f);
    for (float &v : before) v = normal();
    c.x = device(x), c.n = n, c.add = add, c.gated = gated;
    for (int j = 0; j < 2; j++) c.out.push_back(poisoned((size_t)(n * n_out)));
    OK(many_reserve(be, n, n_in));
    std::vector<float> first[2];
    for (int kind = 0; kind < TILE_KINDS; kind++) {
        for (int j = 0; j < 2; j++)
            CK(cudaMemcpy(c.out[j], before.data(), before.size() * 4, cudaMemcpyHostToDevice));
        if (add)
            for (int j = 0; j < 2; j++) {
                const many_case one = {{c.w[j]}, {c.out[j]}, c.x, n, true, false};
                run_case(one, kind);
            }
        else
            run_case(c, kind);
        std::vector<float> got[2] = {host(c.out[0], before.size()), host(c.out[1], before.size())};
        bool same = true;
        double worst = 0;
        if (first[0].empty()) {
            first[0] = got[0], first[1] = got[1];
            std::vector<double> r((size_t)n_in);
            for (int i = 0; i < n; i += 1 + i / 16) {
                for (int64_t k = 0; k < n_in; k++) r[k] = rounded(x[i * n_in + k]);
                for (int64_t o = 0; o < n_out; o++) {
                    double sum[2], size[2];
                    for (int j = 0; j < 2; j++) {
                        double s = 0, q = 0;
                        const float *row = y[j].data() + o * n_in;
                        for (int64_t k = 0; k < n_in; k++) {
                            const double v = r[k] * row[k];
                            s += v, q += v * v;
                        }
                        sum[j] = s, size[j] = sqrt(q);
                    }
                    const double limit = n_in / 16.0 * 4 * 0x1p-21;
                    if (gated) {
                        const double f = sum[0] / (1 + exp(-sum[0]));
                        const double tol = limit * (1.13 * size[0] * fabs(sum[1]) + fabs(f) * size[1]) +
                                           1e-5 * (fabs(f * sum[1]) + 1e-3);
                        const double e = fabs(got[0][i * n_out + o] - f * sum[1]) / tol;
                        if (!(e <= worst)) worst = e;
                    } else
                        for (int j = 0; j < 2; j++) {
                            const double was = add ? before[i * n_out + o] : 0;
                            double e = fabs(got[j][i * n_out + o] - sum[j] - was) - 0x1p-22 * fabs(was);
                            e = e / (size[j] * limit + 1e-30);
                            if (!(e <= worst)) worst = e;
                        }
                }
            }
        } else
            for (int j = 0; j < (gated ? 1 : 2); j++)
                same &= !memcmp(first[j].data(), got[j].data(), got[j].size() * 4);
        const bool ok = same && worst <= 1;
        failures += !ok;
        if (worst > 0 || !ok)
            printf("%s many %s+%s [%lld, %lld] x %d%s%s, %s: %.3g of the bound, %s\n", ok ? "ok  " : "FAIL",
                   kn_type_info(type)->name, kn_type_info(other)->name, (long long)n_out, (long long)n_in, n,
                   add ? ", added" : "", gated ? ", gated" : "", kind_names[kind], worst,
                   same ? "the same bits" : "OTHER bits");
        fflush(stdout);
    }
    CK(cudaFree(c.x));
    for (int j = 0; j < 2; j++) {
        CK(cudaFree(c.out[j]));
        cuda_weight_free(kb(), &c.w[j]);
    }
}

static double timed(const std::function<void()> &f)
{
    cudaEvent_t a, b;
    float best = 1e9f;
    CK(cudaEventCreate(&a));
    CK(cudaEventCreate(&b));
    f();
    for (int i = 0; i < 3; i++) {
        CK(cudaEventRecord(a, be->stream));
        for (int k = 0; k < 4; k++) f();
        CK(cudaEventRecord(b, be->stream));
        CK(cudaEventSynchronize(b));
        float ms;
        CK(cudaEventElapsedTime(&ms, a, b));
        best = std::min(best, ms / 4);
    }
    CK(cudaEventDestroy(a));
    CK(cudaEventDestroy(b));
    return 1e3 * best;
}

static void check_many()
{
    check_case(KN_Q4_K, KN_Q6_K, 512, 200, 70, false, false);
    check_case(KN_Q4_K, KN_Q6_K, 2304, 328, 300, false, false);
    check_case(KN_Q4_K, KN_Q6_K, 2304, 328, 300, true, false);
    check_case(KN_Q4_K, KN_Q4_K, 1024, 456, 150, false, true);
    check_case(KN_Q6_K, KN_Q6_K, 4096, 264, 513, false, true);
    check_case(KN_Q4_K, KN_Q6_K, 1280, 1500, 1100, false, false); /* several tiles a block */
    check_case(KN_Q4_K, KN_Q4_K, 1280, 1500, 1100, false, true);
    check_case(KN_Q8_0, KN_Q5_0, 1056, 328, 300, false, false);
    check_case(KN_Q8_0, KN_Q8_0, 1024, 456, 150, false, true);
    check_case(KN_IQ4_NL, KN_IQ4_NL, 1280, 264, 200, false, true);
}

/* type: of all weights; NULL: Q4_K, of values Q6_K, and checks before. name: of products whose name has it.
 */
void bench_many(bool quick, const char *type, const char *name)
{
    uint32_t of = KN_Q4_K, of_values = KN_Q6_K;
    if (!type) check_many();
    if (quick) return;
    for (uint32_t t : all_types)
        if (type && !strcmp(kn_type_info(t)->name, type)) of = of_values = t;
    static const struct {
        const char *name;
        int64_t n_in, n_out[3];
        int n_w;
        bool add, gated;
    } all[] = {
        {"8b qkv", 4096, {4096, 1024, 1024}, 3, false, false}, {"8b o", 4096, {4096}, 1, true, false},
        {"8b gate", 4096, {12288, 12288}, 2, false, true},     {"8b down", 12288, {4096}, 1, true, false},
        {"27b qkvz", 5120, {10240, 6144}, 2, false, false},    {"27b o", 6144, {5120}, 1, true, false},
        {"27b gate", 5120, {17408, 17408}, 2, false, true},    {"27b down", 17408, {5120}, 1, true, false}};
    static const int rows[] = {65, 96, 128, 192, 256, 384, 512, 1024, 2048};
    OK(many_reserve(be, 2048, 17408));
    for (auto &s : all) {
        if (!strstr(s.name, name)) continue;
        many_case c[2];
        std::vector<float> x((size_t)2048 * s.n_in);
        for (float &v : x) v = normal();
        for (int k = 0; k < 2; k++) {
            for (int j = 0; j < s.n_w; j++) {
                c[k].w.push_back(load(j == 2 ? of_values : of, s.n_in, s.n_out[j]));
                c[k].out.push_back(poisoned((size_t)(2048 * s.n_out[j])));
            }
            c[k].x = k ? c[0].x : device(x), c[k].add = s.add, c[k].gated = s.gated;
        }
        printf("%-9s rows:  library", s.name);
        for (int kind = 0; kind <= TILE_KINDS + 1; kind++) printf(" %8s", kind_names[kind]);
        printf("\n");
        fflush(stdout);
        for (int n : rows) {
            c[0].n = c[1].n = n;
            int turn = 0;
            double flop = 0;
            for (int j = 0; j < s.n_w; j++) flop += 2.0 * n * s.n_in * s.n_out[j];
            const double lib = timed([&] { run_case(c[turn ^= 1], -1); });
            double best = 1e9;
            printf("%-9s %5d: %8.1f", s.name, n, lib);
            for (int kind = 0; kind <= TILE_KINDS + 1; kind++) {
                const double us = timed([&] { run_case(c[turn ^= 1], kind); });
                printf(" %8.1f", us);
                best = std::min(best, us);
            }
            printf("  %.0f TFLOP/s\n", flop / best * 1e-6);
            fflush(stdout);
        }
        for (int k = 0; k < 2; k++)
            for (int j = 0; j < s.n_w; j++) {
                CK(cudaFree(c[k].out[j]));
                cuda_weight_free(kb(), &c[k].w[j]);
            }
        CK(cudaFree(c[0].x));
    }
}
