/* mm_gpu_wide.cu - the kernels of 17 to 96 rows (mm_wide.cuh): their bits against mm_kernel.cuh's, and their
 * times beside it. */
#include "../mm_gpu.cuh"
#include "../../../kernels/cuda/core/ops.cuh"

#include <string>

static float *wide_x, *wide_norm, *wide_out[2][3];
static const int64_t wide_most_in = 17408, wide_most_out = 40960;

static void wide_open()
{
    if (wide_x) return;
    std::vector<float> x, norm((size_t)wide_most_in);
    fill_x(x, wide_most_in, MM_WIDE_MOST);
    for (float &v : norm) v = 1.0f + 0.3f * normal();
    wide_x = device(x), wide_norm = device(norm);
    for (auto &set : wide_out)
        for (auto &o : set) o = poisoned((size_t)(MM_WIDE_MOST * wide_most_out));
}

enum wide_what { WIDE_LINEAR, WIDE_ADD, WIDE_THREE, WIDE_GATED };
static void wide_run(enum wide_what what, const kn_weight *const w[3], float *const out[3], int n)
{
    if (what == WIDE_GATED)
        OK(cuda_norm_gated(kb(), out[0], w[0], w[1], wide_x, wide_norm, 1e-6f, KN_ACT_SILU, n));
    else if (what == WIDE_THREE)
        OK(cuda_norm_linear(kb(), out, w, 3, wide_x, wide_norm, 1e-6f, n));
    else
        OK(cuda_linear(kb(), out[0], w[0], wide_x, n, what == WIDE_ADD));
}

/* The same calls by both kernels. */
static void wide_compare(enum wide_what what, const kn_weight *const w[3], int n, const char *note)
{
    static const char *const names[] = {"linear", "linear, added", "norm_linear", "norm_gated"};
    const struct mm_tuning as = mm_tuning;
    const int count = what == WIDE_THREE ? 3 : 1;
    std::vector<float> got[2];
    for (int other = 0; other < 2; other++) {
        mm_tuning = as, mm_tuning.no_wide = other;
        for (int j = 0; j < count; j++) {
            const size_t bytes = sizeof(float) * (size_t)(n * w[j]->n_out);
            if (what == WIDE_ADD)
                CK(cudaMemcpy(wide_out[other][j], wide_x, bytes, cudaMemcpyDeviceToDevice));
            else
                CK(cudaMemset(wide_out[other][j], 0xff, bytes));
        }
        wide_run(what, w, wide_out[other], n);
        for (int j = 0; j < count; j++) {
            const std::vector<float> v = host(wide_out[other][j], (size_t)(n * w[j]->n_out));
            got[other].insert(got[other].end(), v.begin(), v.end());
        }
    }
    mm_tuning = as;
    size_t bad = 0, first = 0;
    for (size_t i = 0; i < got[0].size(); i++)
        if (memcmp(&got[0][i], &got[1][i], 4)) {
            if (!bad) first = i;
            bad++;
        }
    if (bad || !note)
        printf("%s wide: %s %s [%lld, %lld]%s %d rows: %zu of %zu values differ (first %zu: %.9g, expected "
               "%.9g)\n",
               bad ? "FAIL" : "ok  ", names[what], kn_type_info(w[0]->type)->name, (long long)w[0]->n_out,
               (long long)w[0]->n_in, note ? note : "", n, bad, got[0].size(), first, got[0][first],
               got[1][first]);
    failures += bad != 0;
}

void check_wide(bool quick)
{
    static const uint32_t types[] = {KN_Q4_K,  KN_Q6_K,    KN_Q5_K,   KN_IQ4_XS, KN_Q3_K,
                                     KN_Q2_K,  KN_IQ2_XXS, KN_IQ2_XS, KN_IQ2_S,  KN_IQ3_XXS,
                                     KN_IQ3_S, KN_IQ1_S,   KN_IQ1_M};
    static const int rows[] = {64, 17, 24, 25, 32, 33, 48, 49, 65, 80, 81, 96, 97, 128};
    static const struct {
        int groups, share;
        const char *note;
    } how[] = {{0, 0, " as planned"},
               {2, 2, " groups 2, shared"},
               {3, 2, " groups 3, shared"},
               {4, 2, " groups 4, shared"},
               {2, 1, " groups 2, whole"}};
    const int most = mm_tuning.wide_most;
    int before = failures, done = 0;
    mm_tuning.wide_most = MM_WIDE_MOST;
    wide_open();
    for (uint32_t type : types) {
        static const int64_t shapes[][2] = {{1040, 1024}, {4096, 4096}, {528, 12288}, {2064, 5376}};
        for (auto &s : shapes) {
            kn_weight m[3] = {load(type, s[1], s[0]), load(type, s[1], s[0]),
                              load(type == KN_Q4_K ? KN_Q6_K : KN_Q4_K, s[1], 512)};
            const kn_weight *const w[3] = {&m[0], &m[1], &m[2]};
            for (int n : rows)
                for (auto &h : how) {
                    if (quick && &h > how) continue;
                    if ((h.groups == 4 && n > 32) || (h.groups == 3 && n > 64)) continue;
                    mm_tuning.wide_groups = h.groups, mm_tuning.wide_share = h.share;
                    for (int what = 0; what < 4; what++)
                        wide_compare((enum wide_what)what, w, n, h.note), done++;
                }
            for (auto &v : m) cuda_weight_free(kb(), &v);
        }
        printf("%s wide: %s: %d comparisons\n", failures == before ? "ok  " : "FAIL",
               kn_type_info(type)->name, done);
        fflush(stdout);
        if (failures > before + 40) break;
    }
    mm_tuning.wide_groups = mm_tuning.wide_share = 0;
    mm_tuning.wide_most = most;
}

static double wide_us(const std::function<void()> &f, int reps)
{
    cudaGraph_t g;
    cudaGraphExec_t e;
    cudaEvent_t a, b;
    std::vector<float> t;
    CK(cudaStreamBeginCapture(be->stream, cudaStreamCaptureModeThreadLocal));
    f();
    OK(cuda_flush(be));
    CK(cudaStreamEndCapture(be->stream, &g));
    CK(cudaGraphInstantiate(&e, g, 0));
    CK(cudaEventCreate(&a));
    CK(cudaEventCreate(&b));
    for (int i = 0; i < reps + 2; i++) {
        float ms;
        CK(cudaEventRecord(a, be->stream));
        CK(cudaGraphLaunch(e, be->stream));
        CK(cudaEventRecord(b, be->stream));
        CK(cudaEventSynchronize(b));
        CK(cudaEventElapsedTime(&ms, a, b));
        if (i >= 2) t.push_back(ms);
    }
    std::sort(t.begin(), t.end());
    CK(cudaGraphExecDestroy(e));
    CK(cudaGraphDestroy(g));
    CK(cudaEventDestroy(a));
    CK(cudaEventDestroy(b));
    return 1e3 * t[t.size() / 2];
}

/* Microseconds of a product, of copies beyond the L2. */
void bench_wide(const char *only)
{
    static const struct {
        const char *name;
        enum wide_what what;
        uint32_t type, last;
        int64_t n_in, n_out, kv;
    } of[] = {{"8B q,k,v", WIDE_THREE, KN_Q4_K, KN_Q6_K, 4096, 4096, 1024},
              {"8B o", WIDE_ADD, KN_Q4_K, 0, 4096, 4096, 0},
              {"8B gate,up", WIDE_GATED, KN_Q4_K, 0, 4096, 12288, 0},
              {"8B down", WIDE_ADD, KN_Q4_K, 0, 12288, 4096, 0},
              {"8B down", WIDE_ADD, KN_Q6_K, 0, 12288, 4096, 0},
              {"32768 of 8B's head", WIDE_LINEAR, KN_Q6_K, 0, 4096, 32768, 0},
              {"27B q,k,v", WIDE_THREE, KN_Q4_K, KN_Q6_K, 5120, 12288, 1024},
              {"27B o", WIDE_ADD, KN_Q4_K, 0, 6144, 5120, 0},
              {"27B gate,up", WIDE_GATED, KN_Q4_K, 0, 5120, 17408, 0},
              {"27B down", WIDE_ADD, KN_Q4_K, 0, 17408, 5120, 0}};
    static const struct {
        const char *name;
        int no_wide, groups, stages, share, no_left;
    } how[] = {{"mm_kernel", 1, 0, 0, 0, 0}, {"as planned", 0, 0, 0, 0, 0},  {"groups 2", 0, 2, 0, 0, 0},
               {"groups 3", 0, 3, 0, 0, 0},  {"groups 4", 0, 4, 0, 0, 0},    {"whole tiles", 0, 0, 0, 1, 0},
               {"shared", 0, 0, 0, 2, 0},    {"shared, met", 0, 0, 0, 2, 1}, {"3 stages", 0, 0, 3, 0, 0}};
    static const int bench_rows[] = {16, 17, 24, 32, 48, 64, 80, 96, 128};
    mm_tuning.wide_most = MM_WIDE_MOST;
    wide_open();
    printf("microseconds (and TB/s of weights); rows");
    for (int n : bench_rows) printf(" %14d", n);
    printf("\n");
    for (auto &o : of) {
        const char *const slash = only ? strchr(only, '/') : nullptr;
        const std::string part(only ? only : "", only ? slash ? (size_t)(slash - only) : strlen(only) : 0);
        if (!strstr(o.name, part.c_str())) continue;
        std::vector<kn_weight> m;
        size_t bytes = 0;
        const int count = o.what == WIDE_THREE ? 3 : o.what == WIDE_GATED ? 2 : 1;
        for (size_t total = 0; total < ((size_t)250 << 20); total += bytes) {
            bytes = 0;
            for (int j = 0; j < count; j++) {
                kn_weight w;
                if (total == 0)
                    w = load(j == 2 ? o.last : o.type, o.n_in, j && o.what == WIDE_THREE ? o.kv : o.n_out);
                else {
                    w = m[(size_t)j];
                    CK(cudaMalloc(&w.packed, w.packed_bytes));
                    CK(cudaMemcpy(w.packed, m[(size_t)j].packed, w.packed_bytes, cudaMemcpyDeviceToDevice));
                }
                bytes += w.packed_bytes;
                m.push_back(w);
            }
        }
        const size_t calls = m.size() / (size_t)count;
        printf("%-20s %s %-12s", o.name, kn_type_info(o.type)->name, "rows alone");
        for (int n : bench_rows) {
            struct mm_prep p;
            enum mm_act act;
            if (!mm_preparing(be, &m[0], n, &p, &act)) continue;
            p.x = wide_x, p.norm = o.what == WIDE_THREE || o.what == WIDE_GATED ? wide_norm : nullptr,
            p.eps = 1e-6f;
            const double us = wide_us(
                [&] {
                    for (int i = 0; i < 20; i++) CK(mm_prepare(be, act, &p, n, n <= 16));
                },
                5);
            printf(" %7.2f       ", us / 20);
        }
        printf("\n");
        for (auto &h : how) {
            if (slash && !strstr(h.name, slash + 1)) continue;
            printf("%-20s %s %-12s", o.name, kn_type_info(o.type)->name, h.name);
            for (int n : bench_rows) {
                const bool none = (h.groups == 2 && n <= 48) || (h.groups == 4 && n > 32) ||
                                  (h.groups == 3 && n > 64) || (n == 16 && &h > how);
                if (none) {
                    printf("       -       ");
                    continue;
                }
                mm_tuning.no_wide = h.no_wide, mm_tuning.wide_groups = h.groups;
                mm_tuning.wide_stages = h.stages, mm_tuning.wide_share = h.share,
                mm_tuning.no_left = h.no_left;
                const double us = wide_us(
                                      [&] {
                                          for (size_t i = 0; i < calls; i++) {
                                              const kn_weight *const w[3] = {
                                                  &m[i * (size_t)count], &m[i * (size_t)count + (count > 1)],
                                                  &m[i * (size_t)count + (count > 2 ? 2 : 0)]};
                                              wide_run(o.what, w, wide_out[0], n);
                                          }
                                      },
                                      5) /
                                  (double)calls;
                printf(" %7.2f (%4.2f)", us, (double)bytes / us / 1e6);
            }
            mm_tuning.no_wide = mm_tuning.wide_groups = mm_tuning.wide_stages = mm_tuning.wide_share =
                mm_tuning.no_left = 0;
            printf("\n");
            fflush(stdout);
        }
        for (auto &w : m) cuda_weight_free(kb(), &w);
    }
}
