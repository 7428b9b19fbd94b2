/* mm_gpu_attended.cuh - part of mm_gpu_bench.cu: layers with attention between their products. */

/* Layers with attention between their products: of 8B, of 31B's two kinds, of 27B (gated). Keys and values
 * are whatever is there. */
struct attending {
    const char *name;
    int64_t hidden, ff;
    int32_t n_head, n_kv, d, window;
    bool gated;
};
static const attending all_attending[] = {{"8B", 4096, 12288, 32, 8, 128, 0, false},
                                          {"31B sliding", 5376, 21504, 32, 16, 256, 1024, false},
                                          {"31B full", 5376, 21504, 32, 4, 512, 0, false},
                                          {"27B", 5120, 17408, 24, 4, 256, 0, true}};
struct attended {
    attending s;
    model m;
    std::vector<kn_weight> gates;
    std::vector<kn_kv> kv;
    float *q, *g, *k, *v, *out, *table, *norm;
    int32_t *pos, context;
};
static attended attended_open(const attending &s, int n_layers, int context, int n)
{
    attended t = {s,       {},      {},      {},      nullptr, nullptr, nullptr,
                  nullptr, nullptr, nullptr, nullptr, nullptr, context};
    size_t cap = 2048;
    while (cap < (size_t)(context + n)) cap *= 2;
    const size_t ring = cap * s.n_kv * s.d, row = (size_t)n * s.n_head * s.d;
    width = {s.hidden, (int64_t)s.n_head * s.d, (int64_t)s.n_kv * s.d, s.ff, 32768};
    t.m = load_model(n_layers, KN_Q4_K, KN_Q6_K, KN_Q6_K);
    for (int i = 0; i < n_layers; i++) {
        kn_kv kv = {};
        CK(cudaMalloc(&kv.k, 2 * ring));
        CK(cudaMalloc(&kv.v, 2 * ring));
        CK(cudaMemset(kv.k, 0x25, 2 * ring));
        CK(cudaMemset(kv.v, 0x25, 2 * ring));
        kv.type = {KN_F16, KN_F16}, kv.cap = (int32_t)cap, kv.n_head_kv = s.n_kv, kv.head_dim = s.d;
        t.kv.push_back(kv);
        if (s.gated) t.gates.push_back(i ? clone(t.gates[0]) : load(KN_Q4_K, s.hidden, row / n));
    }
    for (float **p : {&t.q, &t.g, &t.k, &t.v, &t.out}) {
        CK(cudaMalloc(p, row * 4));
        CK(cudaMemset(*p, 0, row * 4));
    }
    std::vector<float> ones(16 * 512, 0.5f);
    std::vector<int32_t> pos(n);
    for (int i = 0; i < n; i++) pos[i] = context + i;
    t.table = device(ones), t.norm = device(ones), t.pos = device(pos);
    be->head.kv_bound = 1;
    while (be->head.kv_bound < context + n) be->head.kv_bound *= 2;
    if (!be->scratch_rows) {
        be->scratch_rows_bytes = (size_t)300 << 20;
        CK(cudaMalloc(&be->scratch_rows, be->scratch_rows_bytes));
        OK(cuda_attention_open(be));
    }
    return t;
}
static void attended_free(attended &t)
{
    free_model(t.m);
    for (kn_weight &w : t.gates) cuda_weight_free(kb(), &w);
    for (kn_kv &kv : t.kv) {
        CK(cudaFree(kv.k));
        CK(cudaFree(kv.v));
    }
    for (float *p : {t.q, t.g, t.k, t.v, t.out, t.table, t.norm}) CK(cudaFree(p));
    CK(cudaFree(t.pos));
}
static void attended_attend(const attended &t, size_t i, int n)
{
    kn_rope_store r = {};
    r.q = t.q, r.k = t.k, r.v = t.v, r.table = t.table, r.pos = t.pos, r.n = n, r.q_norm = r.k_norm = t.norm;
    r.n_head = t.s.n_head, r.n_rot = t.s.gated ? 64 : t.s.d, r.eps = 1e-6f, r.kv = &t.kv[i];
    kn_attention a = {};
    a.q = t.q, a.out = t.out, a.kv = &t.kv[i], a.pos = t.pos, a.n = n, a.n_head = t.s.n_head;
    a.scale = 0.088f, a.causal = true, a.window = t.s.window, a.then = &t.m.layers[i].o,
    a.gate = t.s.gated ? t.g : nullptr;
    OK(cuda_attend(kb(), &r, &a));
}
static void attended_step(const attended &t, int n)
{
    be->settled = ++be->launches; /* as a recording starts */
    for (size_t i = 0; i < t.m.layers.size(); i++) {
        const layer &l = t.m.layers[i];
        const kn_weight *w[4] = {&l.q, &l.k, &l.v, t.s.gated ? &t.gates[i] : nullptr};
        float *out[4] = {t.q, t.k, t.v, t.g};
        OK(cuda_norm_linear(kb(), out, w, t.s.gated ? 4 : 3, bench_x, bench_norm, 1e-6f, n));
        attended_attend(t, i, n);
        if (t.s.gated)
            OK(cuda_gate_linear(kb(), bench_x, &l.o, t.out, t.g, n));
        else
            OK(cuda_linear(kb(), bench_x, &l.o, t.out, n, true));
        OK(cuda_norm_gated(kb(), bench_out[1], &l.gate, &l.up, bench_x, bench_norm, 1e-6f, KN_ACT_SILU, n));
        OK(cuda_linear(kb(), bench_x, &l.down, bench_out[1], n, true));
    }
}
/* Bytes that steps leave: what layers read, attention's results, rings. The row `poisoned` begins with NaN.
 */
static std::vector<std::vector<char>> attended_bits(const attended &t, int n, int made, int poisoned)
{
    const size_t ring = 2 * (size_t)t.kv[0].cap * t.s.n_kv * t.s.d, row = (size_t)n * t.s.n_head * t.s.d * 4,
                 x = (size_t)n * t.s.hidden * 4;
    std::vector<std::vector<char>> all;
    cuda_attention_tuning = {};
    cuda_attention_tuning.places = 2;
    cuda_attention_tuning.made = made;
    OK(cuda_flush(be));
    CK(cudaMemset(bench_x, 0x3c, x));
    if (poisoned < n) CK(cudaMemset(bench_x + poisoned * t.s.hidden, 0xff, t.s.hidden * 4));
    for (const kn_kv &kv : t.kv) {
        CK(cudaMemset(kv.k, 0x25, ring));
        CK(cudaMemset(kv.v, 0x2d, ring));
    }
    for (int i = 0; i < 2; i++) attended_step(t, n);
    OK(cuda_flush(be));
    CK(cudaDeviceSynchronize());
    auto get = [&](const void *p, size_t bytes) {
        all.emplace_back(bytes);
        CK(cudaMemcpy(all.back().data(), p, bytes, cudaMemcpyDeviceToHost));
    };
    get(bench_x, x);
    get(t.out, row);
    for (const kn_kv &kv : t.kv) get(kv.k, ring), get(kv.v, ring);
    cuda_attention_tuning = {};
    return all;
}
/* Do rows made before attention give the bits of those that it makes? */
void attended_check(int context)
{
    bench_open();
    for (const attending &s : all_attending) {
        if (s.d != 512) continue; /* others have no such rows */
        attended t = attended_open(s, 3, context, 16);
        for (int n : {2, 3, 5, 8, 9, 13, 16})
            for (int poisoned : {n, n / 2}) {
                const auto want = attended_bits(t, n, 1, poisoned), got = attended_bits(t, n, 2, poisoned);
                failures += want != got;
                printf("%s   %s, context %d, %d rows%s\n", want == got ? "ok  " : "FAIL", s.name, context, n,
                       poisoned < n ? ", NaN from one on" : "");
                for (size_t i = 0; i < want.size(); i++)
                    if (want[i] != got[i]) printf("     of array %zu\n", i);
            }
        fflush(stdout);
        attended_free(t);
    }
}
void attended_once(const char *name, int context, int n, const std::function<void()> &before)
{
    bench_open();
    for (const attending &s : all_attending) {
        if (strcmp(name, s.name)) continue;
        const attended t = attended_open(s, 1, context, n);
        cuda_attention_tuning = {};
        cuda_attention_tuning.places = cuda_attention_tuning.made = 2;
        attended_step(t, n);
        OK(cuda_flush(be));
        CK(cudaDeviceSynchronize());
        before();
        attended_attend(t, 0, n);
    }
}
/* Microseconds a layer, at 2 to 16 rows. */
void attended_layers(int context, const char *only)
{
    struct {
        const char *name;
        struct cuda_attention_tuning t;
    } ways[] = {{"as tuned", {}},
                {"one launch, no clusters", {}},
                {"clusters, launches", {}},
                {"launches", {}},
                {"as tuned", {}}};
    ways[1].t.places = 2, ways[2].t.places = ways[3].t.places = 1, ways[3].t.near = 1;
    bench_open();
    for (const attending &s : all_attending) {
        if (only && strcmp(only, s.name)) continue;
        attended t = attended_open(s, 12, context, 16);
        for (const auto &v : ways) {
            if (only && strcmp(v.name, "as tuned")) continue;
            cuda_attention_tuning = v.t;
            printf("%-12s %-28s context %d, us a layer at 2, 4, 8, 16 rows:", s.name, v.name, context);
            for (int n : {2, 4, 8, 16}) printf(" %7.2f", graph_us([&] { attended_step(t, n); }, 21) / 12);
            printf("\n");
            fflush(stdout);
        }
        cuda_attention_tuning = {};
        attended_free(t);
    }
}
