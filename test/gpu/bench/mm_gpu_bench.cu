/* mm_gpu_bench.cu - times of matrix products. */
#include "../mm_gpu.cuh"
#include "../../../kernels/cuda/core/ops.cuh"

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
    OK(cuda_flush(be));
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
        OK(cuda_linear(kb(), bench_x, &l.o, bench_out[1], n, true));
        OK(cuda_norm_gated(kb(), bench_out[1], &l.gate, &l.up, bench_x, bench_norm, 1e-6f, KN_ACT_SILU, n));
        OK(cuda_linear(kb(), bench_x, &l.down, bench_out[1], n, true));
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

#include "mm_gpu_attended.cuh"

/* The products of four layers, three times, one launch after the other: for a profiler. */
void once(int n)
{
    bench_open();
    model m = load_model(4, KN_Q4_K, KN_Q6_K, KN_Q4_K);
    for (int i = 0; i < 3; i++) step(m, n);
    OK(cuda_flush(be));
    CK(cudaStreamSynchronize(be->stream));
    free_model(m);
}

/* Variants of the plan, one line each. skip: see `plans` in mm_plan.c. */
void variants(int layers, bool quick)
{
    measure_read();
    bench_open();
    model m = load_model(layers, KN_Q4_K, KN_Q6_K, KN_Q6_K);
    const struct mm_tuning best = mm_tuning;
    struct {
        const char *name;
        int stages, copy_k, slices, skip;
    } v[] = {{"as tuned", best.stages, best.copy_k, best.slices, best.skip},
             {"2 stages", 2, 2, 4, 0},
             {"6 stages", 6, 2, 4, 0},
             {"16 warps together", 4, 2, 4, 1},
             {"1 block beside", 4, 2, 4, 3},
             {"1 block alone", 4, 2, 4, 7},
             {"copies of 4", 4, 4, 4, 0},
             {"copies of 4, 2 stages", 2, 4, 4, 0},
             {"copies of 1", 6, 1, 4, 0},
             {"2 slices", 4, 2, 2, 0},
             {"1 slice", 4, 2, 1, 0},
             {"8 slices", 4, 2, 8, 0},
             {"2 blocks apart", 4, 2, 4, 0x3f}};
    for (auto &c : v) {
        if (quick && &c > v + 4) break;
        mm_tuning.stages = c.stages, mm_tuning.copy_k = c.copy_k;
        mm_tuning.slices = c.slices, mm_tuning.skip = c.skip;
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
                OK(cuda_norm_gated(kb(), bench_out[1], &l.gate, &l.up, bench_x, bench_norm, 1e-6f,
                                   KN_ACT_SILU, n));
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
void plans()
{
    measure_read();
    bench_open();
    const struct mm_tuning best = mm_tuning;
    const struct {
        const char *name;
        int64_t hidden, heads, kv, ff;
    } shapes[] = {
        {"8B", 4096, 4096, 1024, 12288}, {"31B", 5376, 8192, 4096, 21504}, {"27B", 5120, 6144, 5120, 17408}};
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
    printf("microseconds: q, k, v in Q4_K; with v in Q6_K; o; gate and up; down in Q4_K; in Q6_K; head of "
           "32,768 in Q6_K\n");
    for (auto &s : shapes) {
        width = {s.hidden, s.heads, s.kv, s.ff, 32768};
        model m = load_model(12, KN_Q4_K, KN_Q6_K, KN_Q6_K);
        for (int n : {1, 8, 16})
            for (auto &c : v) {
                mm_tuning.stages = c.stages, mm_tuning.copy_k = c.copy_k, mm_tuning.slices = c.slices;
                mm_tuning.skip = c.skip, mm_tuning.any = c.any, mm_tuning.no_split = c.no_split;
                mm_tuning.long_row = c.long_row;
                mm_tuning.no_few = c.any;
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

/* With the kernels of mm_few.cuh and without, as plans. */
void few(bool quick)
{
    measure_read();
    bench_open();
    const struct mm_tuning best = mm_tuning;
    const struct {
        const char *name;
        int64_t hidden, heads, kv, ff;
    } shapes[] = {
        {"8B", 4096, 4096, 1024, 12288}, {"31B", 5376, 8192, 4096, 21504}, {"27B", 5120, 6144, 5120, 17408}};
    const struct {
        const char *name;
        int no_few, from, stages, apart, pace;
    } v[] = {{"without", 1, 0, 0, 0, 0},  {"as tuned", 0, 0, 0, 0, 0}, {"2 stages", 0, 1, 2, 0, 0},
             {"3 stages", 0, 1, 3, 0, 0}, {"apart", 0, 1, 0, 1, 0},    {"at once", 0, 0, 0, 0, 1},
             {"paced", 0, 0, 0, 0, 2},    {"halves", 0, 0, 0, 0, 3}};
    printf("microseconds: q, k, v in Q4_K; with v in Q6_K; o; gate and up; down in Q4_K; in Q6_K; head of "
           "32,768 in Q6_K\n");
    for (auto &s : shapes) {
        if (quick && &s > shapes) break;
        width = {s.hidden, s.heads, s.kv, s.ff, 32768};
        model m = load_model(12, KN_Q4_K, KN_Q6_K, KN_Q6_K);
        for (int n : {1, 8, 16})
            for (auto &c : v) {
                mm_tuning = best;
                mm_tuning.no_few = c.no_few, mm_tuning.few_from = c.from;
                mm_tuning.few_stages = c.stages, mm_tuning.few_apart = c.apart, mm_tuning.few_pace = c.pace;
                printf("%-4s %2d rows %-10s", s.name, n, c.name);
                for (const char *p = "q1q0o0g0d1d0h0"; *p; p += 2)
                    printf(" %7.2f", product_us(m, *p, p[1] - '0', *p == 'q' || *p == 'd' ? 2 : 1, n));
                printf(" | step %.3f ms\n", graph_us([&] { step(m, n); }, 7) / 1e3);
                fflush(stdout);
            }
        mm_tuning = best;
        free_model(m);
    }
}

/* The other models: all rows of the products of a step, few layers. */
void steps()
{
    measure_read();
    bench_open();
    const struct mm_tuning best = mm_tuning;
    model m = load_model(36, KN_Q4_K, KN_Q6_K, KN_Q6_K);
    bench_model(m, "Q4_K_M, 36 layers", true);
    free_model(m);
    const struct {
        const char *name;
        int stages, copy_32, copy_float, slices, skip, slices_float;
    } v[] = {{"as tuned", 4, 8, 4, 4, 0, 8},        {"1 block beside", 4, 8, 4, 4, 3, 8},
             {"copies of 16", 4, 16, 8, 4, 0, 8},   {"copies of 4", 4, 4, 4, 4, 0, 8},
             {"half the slices", 4, 8, 4, 2, 0, 4}, {"8 stages", 8, 8, 4, 4, 0, 8}};
    for (uint32_t type : {KN_Q8_0, KN_BF16}) {
        m = type == KN_Q8_0 ? load_model(12, type, type, type) : load_model(6, type, type, type);
        for (const auto &c : v) {
            char name[64];
            snprintf(name, sizeof name, "%s, %s", kn_type_info(type)->name, c.name);
            mm_tuning = best;
            mm_tuning.stages = c.stages, mm_tuning.copy_32 = c.copy_32, mm_tuning.copy_float = c.copy_float;
            mm_tuning.slices = c.slices, mm_tuning.skip = c.skip;
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

void bench(bool quick)
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

void bench_types()
{
    measure_read();
    bench_open();
    printf("columns: rows 1, 8, 16, 32, 64: time, share of the ceiling\n");
    for (uint32_t type : all_types) {
        bench_matrix(type, 12288, 4096, "");
        bench_matrix(type, 4096, 12288, "");
    }
}

/* For a profiler: products at 16 rows. */
void profile(const char *which)
{
    bench_open();
    mm_tuning.no_few = !strcmp(which, "before");
    kn_weight w[] = {load(KN_Q4_K, 4096, 24576), load(KN_Q4_K, 12288, 4096), load(KN_Q6_K, 4096, 24576)};
    for (const kn_weight &m : w)
        for (int i = 0; i < 2; i++) OK(cuda_linear(kb(), bench_out[0], &m, bench_x, 16, false));
    OK(cuda_flush(be));
    CK(cudaStreamSynchronize(be->stream));
}

/* Products of other types by mm_few.cuh, one shape at a time: those of a drafter's context, of layers. */
static double shape_us(const std::vector<kn_weight> &w, bool gated, int n)
{
    const size_t each = gated ? 2 : 1, calls = w.size() / each;
    return graph_us(
               [&] {
                   for (size_t i = 0; i + each <= w.size(); i += each) {
                       const kn_weight *p = &w[i];
                       if (gated)
                           OK(cuda_norm_gated(kb(), bench_out[0], p, p + 1, bench_x, bench_norm, 1e-6f,
                                              KN_ACT_SILU, n));
                       else
                           OK(cuda_norm_linear(kb(), bench_out, &p, 1, bench_x, bench_norm, 1e-6f, n));
                   }
               },
               9) /
           calls;
}
void few_types(const char *which)
{
    measure_read();
    bench_open();
    const struct mm_tuning best = mm_tuning;
    const struct {
        const char *name;
        int64_t n_out, n_in;
        bool gated;
    } shapes[] = {{"fc", 4096, 20480, false},          {"keys, values", 10240, 4096, false},
                  {"q, k, v", 6144, 4096, false},      {"o", 4096, 4096, false},
                  {"gate, up", 12288, 4096, true},     {"down", 4096, 12288, false},
                  {"27B gate, up", 17408, 5120, true}, {"27B down", 5120, 17408, false},
                  {"31B gate, up", 21504, 5376, true}, {"31B down", 5376, 21504, false}};
    const struct {
        const char *name;
        int none, copy, stages, apart;
    } v[] = {{"without", 1, 0, 0, 0}, {"tuned", 0, 0, 0, 0},     {"4x3", 0, 4, 3, 2}, {"8x2", 0, 8, 2, 2},
             {"16x2", 0, 16, 2, 2},   {"apart 4x3", 0, 4, 3, 1}, {"8x2", 0, 8, 2, 1}};
    printf("microseconds (bytes at the speed of the read) by copies of units x stages, together and "
           "apart\n%-32s",
           "");
    for (const auto &c : v) printf(" %9s", c.name);
    printf("\n");
    for (uint32_t type : all_types) {
        const struct kn_type_info *t = kn_type_info(type);
        if (strcmp(which, t->name)) continue;
        for (const auto &s : shapes) {
            const size_t bytes = kn_row_bytes(type, s.n_in) * (size_t)s.n_out,
                         copies = std::max<size_t>(4, ((size_t)300 << 20) / bytes / 2 * 2);
            std::vector<kn_weight> w{load(type, s.n_in, s.n_out)};
            while (w.size() < copies) w.push_back(clone(w[0]));
            for (int n : {1, 2, 4, 8, 16}) {
                printf("%-5s %-12s %2d (%5.1f)   ", t->name, s.name, n,
                       bytes * (s.gated ? 2 : 1) / read_tbs / 1e6);
                for (const auto &c : v) {
                    mm_tuning.no_few = c.none, mm_tuning.few_copy = c.copy, mm_tuning.few_stages = c.stages;
                    mm_tuning.few_apart = c.apart, mm_tuning.few_from = c.copy ? 1 : 0;
                    printf(" %9.2f", shape_us(w, s.gated, n));
                }
                mm_tuning = best;
                printf("\n");
                fflush(stdout);
            }
            for (auto &m : w) cuda_weight_free(kb(), &m);
        }
    }
}

/* Heads, and what else is of wide rows in Q6_K, by blocks of 16 warps and of 12. */
void heads()
{
    measure_read();
    bench_open();
    const struct mm_tuning best = mm_tuning;
    const struct {
        const char *name;
        uint32_t type;
        int64_t n_out, n_in;
    } shapes[] = {{"8B head", KN_Q6_K, 151936, 4096},    {"27B head", KN_Q6_K, 248320, 5120},
                  {"31B head", KN_Q6_K, 262144, 5376},   {"31B v", KN_Q6_K, 4096, 5376},
                  {"31B q, k, v", KN_Q6_K, 16384, 5376}, {"31B q, k, v", KN_Q4_K, 16384, 5376},
                  {"27B q, k, v", KN_Q6_K, 16384, 5120}, {"27B o", KN_Q4_K, 5120, 6144},
                  {"31B o", KN_Q4_K, 5376, 8192}};
    const struct {
        const char *name;
        int no_few, warps, cluster;
    } v[] = {{"without", 1, 0, 0}, {"as tuned", 0, 0, 0}, {"12 warps", 0, 1, 1}, {"pairs", 0, 0, 2}};
    printf("microseconds (bytes at the speed of the read)\n%-32s", "");
    for (const auto &c : v) printf(" %11s", c.name);
    printf("\n");
    for (const auto &s : shapes) {
        const size_t bytes = kn_row_bytes(s.type, s.n_in) * (size_t)s.n_out,
                     copies = std::max<size_t>(1, ((size_t)300 << 20) / bytes);
        std::vector<kn_weight> w{load(s.type, s.n_in, s.n_out)};
        while (w.size() < copies) w.push_back(clone(w[0]));
        for (int n : {2, 8, 12, 16}) {
            printf("%-5s %-12s %2d (%5.1f)   ", kn_type_info(s.type)->name, s.name, n,
                   bytes / read_tbs / 1e6);
            for (const auto &c : v) {
                mm_tuning.no_few = c.no_few, mm_tuning.few_warps = c.warps, mm_tuning.few_cluster = c.cluster;
                printf(" %11.2f", shape_us(w, false, n));
            }
            mm_tuning = best;
            printf("\n");
            fflush(stdout);
        }
        for (auto &m : w) cuda_weight_free(kb(), &m);
    }
}
