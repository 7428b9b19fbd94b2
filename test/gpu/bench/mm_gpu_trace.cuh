/* mm_gpu_trace.cuh - part of mm_gpu_bench.cu, in builds with MM_TRACE: when the parts of each launch ran. */

/* Times of the parts of each launch (mm_kernel.cuh, prep.cu), of all its blocks. */
#define TRACES 64
#define TRACE_WORDS (MM_TRACE_TIMES * MM_TRACE_BLOCKS)
static unsigned long long *traces;
static std::vector<const char *> traced;
unsigned long long *mm_trace_next(const char *what)
{
    if (!traces || traced.size() == TRACES) return nullptr;
    traced.push_back(what);
    return traces + TRACE_WORDS * (traced.size() - 1);
}
/* run's launches, recorded: the times of the fourth replay. */
static void show_trace(int n, const std::function<void()> &run)
{
    CK(cudaMalloc(&traces, TRACES * TRACE_WORDS * sizeof *traces));
    CK(cudaMemset(traces, 0, TRACES * TRACE_WORDS * sizeof *traces));
    cudaGraph_t g;
    cudaGraphExec_t e;
    CK(cudaStreamBeginCapture(be->stream, cudaStreamCaptureModeThreadLocal));
    run();
    OK(cuda_flush(be));
    CK(cudaStreamEndCapture(be->stream, &g));
    CK(cudaGraphInstantiate(&e, g, 0));
    for (int i = 0; i < 4; i++) CK(cudaGraphLaunch(e, be->stream));
    OK(cuda_flush(be));
    CK(cudaStreamSynchronize(be->stream));
    std::vector<unsigned long long> t(TRACES * TRACE_WORDS);
    CK(cudaMemcpy(t.data(), traces, t.size() * sizeof t[0], cudaMemcpyDeviceToHost));
    printf("%d rows, microseconds of the device's clock since the launch before was over (its last stamp), "
           "least mean most of the blocks\n"
           "product: start, ring asked for, wait over, activations there, last slice done, sums of slices in "
           "memory added; prepare: start, "
           "norm read, wait over, slices done, end\n",
           n);
    unsigned long long over = 0;
    for (size_t i = 0; i < traced.size(); i++) {
        const unsigned long long *p = &t[TRACE_WORDS * i];
        unsigned long long end = 0;
        int blocks = 0;
        while (blocks < MM_TRACE_BLOCKS && p[MM_TRACE_TIMES * blocks]) blocks++;
        printf("%-12s %3d", traced[i], blocks);
        for (int k = 0; k < MM_TRACE_TIMES; k++) {
            double least = 1e30, most = -1e30, sum = 0;
            int count = 0;
            for (int b = 0; b < blocks; b++) {
                const unsigned long long at = p[MM_TRACE_TIMES * b + k];
                if (!at) continue;
                if (at > end) end = at;
                const double us = (double)(long long)(at - over) / 1e3;
                least = us < least ? us : least, most = us > most ? us : most, sum += us, count++;
            }
            if (count && over)
                printf(" | %6.2f %6.2f %6.2f", least, sum / count, most);
            else
                printf(" | %20s", "");
        }
        over = end;
        printf("\n");
    }
    CK(cudaFree(traces));
    traces = nullptr;
    traced.clear();
}
/* A drafter's context: features to one row, keys and values of five layers from it; Q8_0. */
static void trace_context(int n)
{
    std::vector<kn_weight> fc{load(KN_Q8_0, 20480, 4096)}, kv{load(KN_Q8_0, 4096, 1024)};
    for (int i = 1; i < 4; i++) fc.push_back(clone(fc[0]));
    while (kv.size() < 40) kv.push_back(clone(kv[0]));
    show_trace(n, [&] {
        for (int i = 0; i < 4; i++) {
            const kn_weight *w[10];
            float *out[10];
            for (int j = 0; j < 10; j++) w[j] = &kv[10 * i + j], out[j] = bench_out[1] + j * 16384;
            OK(cuda_linear(kb(), bench_out[0], &fc[i], bench_x, n, false));
            OK(cuda_norm_linear(kb(), out, w, 10, bench_out[0], bench_norm, 1e-6f, n));
        }
    });
}
void trace(int n, const char *what)
{
    bench_open();
    if (!strcmp(what, "context")) return trace_context(n);
    for (const attending &s : all_attending)
        if (!strcmp(what, s.name)) {
            attended t = attended_open(s, 4, 512, n);
            show_trace(n, [&] { attended_step(t, n); });
            return attended_free(t);
        }
    model m = load_model(4, KN_Q4_K, KN_Q6_K, KN_Q4_K);
    show_trace(n, [&] { step(m, n); });
    free_model(m);
}
