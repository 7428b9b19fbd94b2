/* mm_gpu_stuck.cu - kernels whose blocks wait for each other, on a device of which something else holds a
 * part: each must end with an error that says so. The part is held by blocks of this program with all of a
 * multiprocessor's shared memory; a case ends the context, so each is a process of its own. attn_columns ends
 * whatever is held: its blocks that are waited for start first. What a mixture waits for from the launch
 * before is not tried: that launch is at work by then. */
#include "../../../kernels/cuda/core/ops.cuh"
#include "../mm_gpu.cuh"

#include <sys/wait.h>
#include <unistd.h>

/* Holds its place until the context ends, a minute at most. */
static __global__ void hold(volatile unsigned *here)
{
    unsigned long long from, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(from));
    atomicAdd_system((unsigned *)here, 1u);
    do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - from < 60000000000ull);
}
/* All multiprocessors but so many. */
static void hold_all_but(int left)
{
    unsigned *here;
    cudaStream_t stream;
    const int want = be->sm_count - left;
    CK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CK(cudaHostAlloc(&here, sizeof *here, cudaHostAllocMapped));
    *here = 0;
    CK(cudaFuncSetAttribute(hold, cudaFuncAttributeMaxDynamicSharedMemorySize, be->smem_block));
    CK(cudaFuncSetAttribute(hold, cudaFuncAttributePreferredSharedMemoryCarveout,
                            cudaSharedmemCarveoutMaxShared));
    CK(cudaDeviceSynchronize());
    hold<<<want, 32, be->smem_block, stream>>>(here);
    CK(cudaGetLastError());
    while (*(volatile unsigned *)here < (unsigned)want) usleep(1000);
}

static void stuck_product()
{
    kn_weight w = load(KN_Q4_K, 12288, 4096);
    float *x = device(std::vector<float>(16 * 12288, 1.0f)), *out = poisoned(16 * 4096);
    mm_tuning.no_left = 1,
    mm_tuning.few_apart = 1; /* slices in blocks that wait for each other, eight a group */
    OK(cuda_linear(kb(), out, &w, x, 16, false));
    OK(cuda_flush(be));
    CK(cudaStreamSynchronize(be->stream)); /* whole, it ends */
    hold_all_but(3);
    OK(cuda_linear(kb(), out, &w, x, 16, false));
}

static void stuck_mixture(int rows)
{
    const int64_t n_in = 2048, n_ff = 512;
    const int experts = 128, used = 8;
    kn_weight gate, up, down;
    const std::vector<uint8_t> w = random_weight(KN_Q4_K, n_in, n_ff * experts, 4099);
    OK(cuda_experts_load(kb(), &gate, KN_Q4_K, n_in, n_ff, experts, w.data()));
    OK(cuda_experts_load(kb(), &up, KN_Q4_K, n_in, n_ff, experts, w.data()));
    OK(cuda_experts_load(kb(), &down, KN_Q4_K, n_ff, n_in, experts, w.data()));
    kn_weight router = load(KN_F32, n_in, experts);
    float *ones = device(std::vector<float>(rows * n_in, 1.0f));
    kn_mixture m = {};
    m.route.n = rows, m.route.n_expert = experts, m.route.n_used = used, m.route.renorm = true,
    m.route.scale = 1.0f;
    m.route.ids = device(std::vector<int32_t>(rows * used)), m.route.weights = poisoned(rows * used);
    m.route.logits = m.logits = poisoned(rows * experts);
    m.x = m.norm = m.router_norm = ones, m.eps = 1e-6f, m.act = KN_ACT_SILU, m.router = &router;
    m.gate = &gate, m.up = &up, m.down = &down;
    m.h = poisoned(rows * used * n_ff), m.out = poisoned(rows * n_in);
    OK(cuda_mixture(kb(), &m));
    OK(cuda_flush(be));
    CK(cudaStreamSynchronize(be->stream));
    hold_all_but(rows == 1 ? 32 : 3);
    OK(cuda_mixture(kb(), &m));
}

static void stuck_attention(const char *name)
{
    attended_once(name, 512, 16, [] { hold_all_but(32); });
}

static const struct {
    const char *name;
    void (*run)();
} cases[] = {{"slices of a product", stuck_product},
             {"mixture of a row", [] { stuck_mixture(1); }},
             {"router of eight rows", [] { stuck_mixture(8); }},
             {"leaves, heads of 128", [] { stuck_attention("8B"); }},
             {"leaves of rows made before, heads of 256", [] { stuck_attention("31B sliding"); }}};

/* A process: ends with 0 if the device gave up, and the message says why. */
static int one_case(int i, void (*open_device)())
{
    struct timespec from, to;
    alarm(60);
    open_device();
    cases[i].run();
    clock_gettime(CLOCK_MONOTONIC, &from);
    int rc = cuda_flush(be);
    if (rc == 0) rc = cuda_check(be, "wait", cudaStreamSynchronize(be->stream));
    clock_gettime(CLOCK_MONOTONIC, &to);
    const bool ok = rc == KN_EDEVICE && strstr(be->head.message, "never came");
    printf("%s   stuck: %s: %s after %.1f s\n", ok ? "ok  " : "FAIL", cases[i].name,
           rc ? be->head.message : "it ended",
           (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec));
    fflush(stdout);
    _exit(!ok);
}

void check_stuck(const char *only, void (*open_device)())
{
    for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++) {
        if (only && strncmp(only, cases[i].name, strlen(only))) continue;
        const pid_t child = fork();
        if (child == 0) one_case(i, open_device);
        int status = 0;
        if (child < 0 || waitpid(child, &status, 0) < 0 || !WIFEXITED(status) || WEXITSTATUS(status)) {
            failures++;
            printf("FAIL stuck: %s: status %#x\n", cases[i].name, (unsigned)status);
        }
    }
}
