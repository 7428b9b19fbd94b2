/* attention_gpu.cu - bench of CUDA attention: microseconds a call inside a CUDA graph, keys and values from
 * memory.
 *
 * usage: attention_gpu [all | quick | tree|far|codes [CONTEXT] | wide | sinks | one CONTEXT ROWS]   (all:
 * the variants of cuda_attention_tuning too; quick: few rows of four shapes, with them; tree: rows of a tree
 * beside a chain's; wide: 16 to 512 rows over few keys; far: 1 to 64 rows over many, by attn_far and not;
 * codes: the same over quantised caches; sinks: a drafter's blocks without and with sinks, and by the general
 * form) A graph holds one call a ring, over rings that together exceed the L2; it is replayed and timed by
 * events. Three kinds of graph: attention alone, both as one operation (as a layer has them), and rope_store
 * and attention in turn. floor: the visible keys and values at 4.54 TB/s. Exit: 0, or 5 where the device
 * fails. Checks are test_gpu's. */
#include "../../../kernels/cuda/core/ops.cuh"
#include "../../../kernels/ops/cycle.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
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
            printf("%s:%d %s: %s\n", __FILE__, __LINE__, #x, kn_message(be));                                \
            exit(5);                                                                                         \
        }                                                                                                    \
    } while (0)

static struct kn_backend *be;

static __global__ void fill(uint16_t *p, size_t n) /* halves of 0.25 to 0.5, both signs */
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        p[i] = (uint16_t)(((i * 2654435761u >> 7) & 0x83ff) | 0x3400);
}

struct shape {
    int n_head, n_kv, d, window;
    uint32_t type = KN_F16;
};
struct data {
    struct shape s;
    int ctx, n;
    std::vector<struct kn_kv> kv;
    float *q, *out, *k, *table, *norm;
    int32_t *pos;
    bool sunk;
    struct kn_tree *tree; /* NULL, or of these rows */
    struct kn_kv tail;
};

static struct data make(const struct shape &s, int ctx, int n)
{
    struct data t = {s, ctx, n, {}, NULL, NULL, NULL, NULL, NULL, NULL, false, NULL, {}};
    const int cap = (ctx + n + KN_KV_SPLIT - 1) / KN_KV_SPLIT * KN_KV_SPLIT;
    struct kn_kv shape = {};
    shape.type = {s.type, s.type}, shape.cap = cap, shape.n_head_kv = s.n_kv, shape.head_dim = s.d;
    const size_t ring = kn_kv_bytes(&shape, s.type) / 2; /* halves */
    size_t rings = 150000000 / (4 * ring) + 1;
    rings = std::min<size_t>(std::max<size_t>(rings, 2), 40);
    for (size_t i = 0; i < rings; i++) {
        struct kn_kv kv = shape;
        CK(cudaMalloc(&kv.k, 2 * ring));
        CK(cudaMalloc(&kv.v, 2 * ring));
        fill<<<1024, 256>>>((uint16_t *)kv.k, ring);
        fill<<<1024, 256>>>((uint16_t *)kv.v, ring);
        t.kv.push_back(kv);
    }
    const size_t row = (size_t)n * s.n_head * s.d;
    CK(cudaMalloc(&t.q, row * 4));
    CK(cudaMalloc(&t.out, row * 4));
    CK(cudaMalloc(&t.k, (size_t)n * s.n_kv * s.d * 4));
    CK(cudaMalloc(&t.table, (size_t)n * s.d * 4));
    CK(cudaMalloc(&t.norm, (size_t)s.d * 4));
    CK(cudaMemset(t.norm, 0, (size_t)s.d * 4));
    CK(cudaMalloc(&t.pos, (size_t)n * 4));
    CK(cudaMemset(t.q, 0, row * 4));
    CK(cudaMemset(t.k, 0, (size_t)n * s.n_kv * s.d * 4));
    CK(cudaMemset(t.table, 0, (size_t)n * s.d * 4));
    std::vector<int32_t> pos(n);
    for (int i = 0; i < n; i++) pos[i] = ctx + i;
    CK(cudaMemcpy(t.pos, pos.data(), 4 * (size_t)n, cudaMemcpyHostToDevice));
    CK(cudaDeviceSynchronize());
    OK(kn_op(be)->reserve_kv(be, n, s.n_head, &t.kv[0], s.window));
    kn_bound(be, (ctx + n + 255) / 256 * 256);
    return t;
}
/* A tree of t's rows, half of which have another beside them: 16 rows reach six places deep. */
static void grow(struct data &t)
{
    static struct kn_tree h;
    int32_t at[KN_CYCLE_ROWS] = {0};
    h = {};
    for (int32_t r = 0; r < t.n; r++) {
        h.parent[r] = r > 1 ? (2 * r - 1) / 3 : r - 1;
        at[r] = r ? at[h.parent[r]] + 1 : 0;
        h.pos[r] = t.ctx + at[r], h.at[r] = t.ctx + r;
        for (int i = 0; i < KN_CYCLE_ROWS; i++)
            h.path[r][i] = i < at[r] ? h.path[h.parent[r]][i] : (uint8_t)r;
    }
    t.tail = kn_kv_like(&t.kv[0], KN_CYCLE_ROWS);
    CK(cudaMalloc(&t.tail.k, kn_kv_bytes(&t.tail, t.s.type)));
    CK(cudaMalloc(&t.tail.v, kn_kv_bytes(&t.tail, t.s.type)));
    CK(cudaMemset(t.tail.k, 0, kn_kv_bytes(&t.tail, t.s.type)));
    CK(cudaMemset(t.tail.v, 0, kn_kv_bytes(&t.tail, t.s.type)));
    CK(cudaMalloc(&t.tree, sizeof h));
    CK(cudaMemcpy(t.tree, &h, sizeof h, cudaMemcpyHostToDevice));
    kn_bound(be, (t.ctx + KN_CYCLE_ROWS + 255) / 256 * 256);
}
static void drop(struct data &t)
{
    if (t.tree) {
        CK(cudaFree(t.tail.k));
        CK(cudaFree(t.tail.v));
        CK(cudaFree(t.tree));
    }
    for (auto &kv : t.kv) {
        CK(cudaFree(kv.k));
        CK(cudaFree(kv.v));
    }
    CK(cudaFree(t.q));
    CK(cudaFree(t.out));
    CK(cudaFree(t.k));
    CK(cudaFree(t.table));
    CK(cudaFree(t.norm));
    CK(cudaFree(t.pos));
}

/* Microseconds a ring. */
enum kind { ALONE, TOGETHER, IN_TURN };
static double timed(const struct data &t, enum kind kind)
{
    cudaStream_t stream = cuda_of(be)->stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CK(cudaDeviceSynchronize());
    cuda_of(be)->settled = ++cuda_of(be)->launches; /* as a recording starts */
    CK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    for (const auto &kv : t.kv) {
        struct kn_rope_store s = {};
        s.q = t.q, s.k = t.k, s.v = t.k, s.table = t.table, s.pos = t.pos, s.n = t.n,
        s.q_norm = s.k_norm = t.norm, s.n_head = t.s.n_head, s.n_rot = t.s.d, s.eps = 1e-6f, s.kv = &kv;
        struct kn_attention a = {};
        a.q = t.q, a.out = t.out, a.kv = &kv, a.pos = t.pos, a.n = t.n, a.n_head = t.s.n_head,
        a.scale = 0.088f, a.causal = true, a.window = t.s.window;
        if (t.sunk) a.sinks = t.norm; /* zeros */
        if (t.tree) a.tree = t.tree, a.pos = t.tree->pos, a.tail = s.kv = &t.tail;
        if (kind == IN_TURN) OK(kn_op(be)->rope_store(be, &s));
        if (kind == TOGETHER)
            OK(kn_op(be)->attend(be, &s, &a));
        else
            OK(kn_op(be)->attention(be, &a));
    }
    CK(cudaStreamEndCapture(stream, &graph));
    CK(cudaGraphInstantiate(&exec, graph, 0));
    cudaEvent_t from, to;
    CK(cudaEventCreate(&from));
    CK(cudaEventCreate(&to));
    std::vector<float> ms;
    for (int i = 0; i < 9; i++) {
        float x;
        CK(cudaEventRecord(from, stream));
        CK(cudaGraphLaunch(exec, stream));
        CK(cudaEventRecord(to, stream));
        CK(cudaEventSynchronize(to));
        CK(cudaEventElapsedTime(&x, from, to));
        if (i >= 2) ms.push_back(x);
    }
    CK(cudaEventDestroy(from));
    CK(cudaEventDestroy(to));
    CK(cudaGraphExecDestroy(exec));
    CK(cudaGraphDestroy(graph));
    std::sort(ms.begin(), ms.end());
    return (double)ms[ms.size() / 2] * 1e3 / (double)t.kv.size();
}

static void line(const struct data &t, const char *name)
{
    const double alone = timed(t, ALONE), both = timed(t, TOGETHER), turn = timed(t, IN_TURN);
    const double keys = t.s.window ? std::min(t.s.window, t.ctx) : t.ctx;
    const double floor_us = keys * 2 * (double)kn_kv_row_bytes(&t.kv[0], t.s.type) / 4.54e6,
                 flops = 4.0 * t.n * t.s.n_head * t.s.d * (keys + (t.s.window ? 0 : t.n / 2.0));
    printf("%s %d/%d x %d%s ctx %6d rows %3d %-12s attention %8.2f us  attend %8.2f  in turn %8.2f  floor "
           "%6.2f  "
           "ratio %6.2f  %6.1f TFLOP/s\n",
           kn_kv_name(t.s.type), t.s.n_head, t.s.n_kv, t.s.d, t.s.window ? " window" : "", t.ctx, t.n, name,
           alone, both, turn, floor_us, alone / floor_us, flops / alone * 1e-6);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    const bool all = argc > 1 && !strcmp(argv[1], "all"), quick = argc > 1 && !strcmp(argv[1], "quick");
    char msg[256];
    struct kn_open o = {};
    o.device = "cuda";
    if (cuda_open(&be, &o, msg, sizeof msg)) {
        printf("%s\n", msg);
        return 5;
    }
    if (argc > 3 && !strcmp(argv[1], "one")) { /* one CONTEXT ROWS: three calls, for a profiler */
        struct data t = make({32, 8, 128, 0}, atoi(argv[2]), atoi(argv[3]));
        for (int i = 0; i < 3; i++) {
            struct kn_attention a = {};
            a.q = t.q, a.out = t.out, a.kv = &t.kv[i % t.kv.size()], a.pos = t.pos, a.n = t.n, a.n_head = 32;
            a.scale = 0.088f, a.causal = true;
            OK(kn_op(be)->attention(be, &a));
        }
        CK(cudaDeviceSynchronize());
        return 0;
    }
    if (argc > 1 && !strcmp(argv[1], "wide")) {
        static const struct shape wides[] = {{32, 8, 128, 0}, {24, 4, 256, 0}};
        for (const auto &sh : wides)
            for (int ctx : {0, 512, 1024, 1900})
                for (int n : {16, 17, 32, 48, 64, 65, 128, 256, 512}) {
                    struct data t = make(sh, ctx, n);
                    line(t, "");
                    cuda_attention_tuning.alone = 1;
                    line(t, "not alone");
                    cuda_attention_tuning.near = 1;
                    cuda_attention_tuning.alone = 2;
                    line(t, "alone");
                    cuda_attention_tuning.apart = 1;
                    line(t, "alone, in turn");
                    memset(&cuda_attention_tuning, 0, sizeof cuda_attention_tuning);
                    drop(t);
                }
        return 0;
    }
    if (argc > 1 && !strcmp(argv[1], "tree")) { /* beside chains of as many rows */
        static const struct shape shapes[] = {{32, 8, 128, 0}, {24, 4, 256, 0}};
        for (const auto &sh : shapes)
            for (int ctx : {200, 450, 900, 1400, 1900, 2700, 3200, 3900, 7000, 16000, 60000})
                for (int n : {8, 16, 24, 32, 40, 48, 64}) {
                    if (argc > 2 && atoi(argv[2]) != ctx) continue;
                    struct data t = make(sh, ctx, n);
                    line(t, "chain");
                    grow(t);
                    line(t, "tree");
                    cuda_attention_tuning.far = 1;
                    if (ctx < 4000) line(t, "tree, not far");
                    cuda_attention_tuning.places = 1, cuda_attention_tuning.far = 2;
                    if (ctx > 1000) line(t, "tree, far");
                    cuda_attention_tuning.places = cuda_attention_tuning.far = 0;
                    drop(t);
                }
        return 0;
    }
    if (argc > 1 && !strcmp(argv[1], "sinks")) {
        for (int ctx : {512, 2048, 16384})
            for (int n : {7, 8, 16}) {
                struct data t = make({32, 8, 128, 0}, ctx, n);
                line(t, "no sinks");
                t.sunk = true;
                line(t, "sinks");
                for (auto &kv : t.kv) kv.type.v = KN_BF16; /* which attn_any alone takes */
                line(t, "general form");
                drop(t);
            }
        return 0;
    }
    if (argc > 1 && (!strcmp(argv[1], "far") || !strcmp(argv[1], "codes"))) {
        static const struct shape fars[] = {{32, 8, 128, 0},          {24, 4, 256, 0},
                                            {32, 8, 128, 0, KN_Q8_0}, {32, 8, 128, 0, KN_Q5_0},
                                            {32, 8, 128, 0, KN_Q4_0}, {32, 8, 128, 0, KN_TQ3_0}};
        for (const auto &sh : fars)
            for (int ctx : {512, 1024, 2048, 4096, 8192, 16384, 40000, 65536})
                for (int n : {1, 2, 4, 8, 12, 16, 32, 40, 48, 64}) {
                    if ((argc > 2 && atoi(argv[2]) != ctx) ||
                        kn_kv_coded(sh.type) != !strcmp(argv[1], "codes"))
                        continue;
                    struct data t = make(sh, ctx, n);
                    line(t, "");
                    for (int far = 1; far < 3 && n > 1; far++) {
                        cuda_attention_tuning.far = far;
                        line(t, far == 1 ? "not far" : "far");
                    }
                    memset(&cuda_attention_tuning, 0, sizeof cuda_attention_tuning);
                    drop(t);
                }
        return 0;
    }
    static const struct shape shapes[] = {
        {32, 8, 128, 0}, {32, 16, 256, 1024}, {32, 4, 512, 0}, {16, 2, 256, 0}, {16, 8, 128, 0}};
    static const int ctxs[] = {512, 1024, 2048, 4096, 8192, 16384, 65536}, rows[] = {1, 4, 8, 16, 64, 512};
    struct variant {
        const char *name;
        struct cuda_attention_tuning t;
    };
    std::vector<variant> few, many;
    auto add = [](std::vector<variant> &to, const char *name, int cuda_attention_tuning::*m, int v,
                  int cuda_attention_tuning::*m2 = NULL, int v2 = 0) {
        struct variant x = {name, {}};
        x.t.*m = v;
        if (m2) x.t.*m2 = v2;
        to.push_back(x);
    };
    using T = struct cuda_attention_tuning;
    add(few, "of 8", &T::near, 2, &T::cluster, 8);
    add(few, "of 16", &T::near, 2, &T::cluster, 16);
    for (int tiles : {1, 2, 4})
        for (int unit : {1, 2}) {
            static char names[3][2][40];
            char *name = names[tiles / 2][unit - 1];
            snprintf(name, 40, "%d, %s", tiles, unit == 1 ? "leaves" : "nodes");
            add(few, name, &T::near, 1, &T::unit, unit);
            few.back().t.tiles = tiles;
        }
    add(few, "nodes, 2 slots", &T::unit, 2, &T::near, 1);
    few.back().t.slots = 2;
    add(few, "nodes, 5 slots", &T::unit, 2, &T::near, 1);
    few.back().t.slots = 5;
    add(few, "4 slots", &T::slots, 4);
    add(few, "half the blocks", &T::spread, 50, &T::near, 1);
    add(few, "in turn", &T::apart, 1);
    add(few, "fold 64", &T::fold, 64);
    add(many, "4 warps", &T::warps, 4);
    add(many, "8 warps", &T::warps, 8);
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int ctx : ctxs)
            for (int n : rows) {
                if (quick && (s > 3 || (s == 3 && (ctx > 16384 || n > 1 || ctx < 4096)) || n > 16 || n == 4 ||
                              n == 8 || ctx == 1024 || (s == 1 && ctx > 2048) || (s == 2 && ctx > 2048)))
                    continue;
                if (!quick && ((s > 1 && (ctx > 16384 || n == 4)) || (s && (ctx == 1024 || ctx == 2048))))
                    continue;
                struct data t = make(shapes[s], ctx, n);
                line(t, "");
                if ((all && s < 2 && n != 4) || quick) {
                    if (n <= 64)
                        for (const auto &v : few) {
                            if (n == 1 && v.t.tiles > 1) continue;
                            cuda_attention_tuning = v.t;
                            line(t, v.name);
                        }
                    else
                        for (const auto &v : many) {
                            cuda_attention_tuning = v.t;
                            line(t, v.name);
                        }
                    memset(&cuda_attention_tuning, 0, sizeof cuda_attention_tuning);
                }
                drop(t);
            }
    cuda_close(be);
    return 0;
}
