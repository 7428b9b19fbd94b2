/* backend.cu - the CUDA backend: a device, its memory, one stream, and the table of operations.
 *
 * Everything goes through one stream, in order; only download, sync and find_bad wait for it. An error that
 * the device reports late is named by the operation that meets it; built with CUDA_DEBUG_SYNC (make
 * DEBUG_SYNC=1) every launch is waited for, so that it is the one that failed. */
#include "../prompt/many.cuh"
#include "ops.cuh"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNTERS 1024 /* find_bad's, one a row of pick, and from 512 on pick's words of greedy rows */

int cuda_fail(struct cuda_backend *be, int code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(be->head.message, sizeof be->head.message, fmt, ap);
    va_end(ap);
    be->lost = 0; /* its message is gone */
    return code;
}

int cuda_check(struct cuda_backend *be, const char *what, cudaError_t err)
{
#ifdef CUDA_DEBUG_SYNC
    if (err == cudaSuccess) err = cudaStreamSynchronize(be->stream);
#endif
    if (err == cudaSuccess) return 0;
    if (err > CUDA_TOLD) return CUDA_TOLD - (int)err;
    (void)cudaGetLastError(); /* an error that does not stick must not be seen again */
    if (err == cudaErrorMisalignedAddress ||
        err == cudaErrorLaunchFailure) /* patience.cuh, chain/sync.cuh; or a kernel at fault */
        return cuda_fail(be, KN_EDEVICE,
                         "%s: %s (%s): so end kernels that wait for blocks which never came: does another "
                         "process use the device?",
                         what, cudaGetErrorString(err), cudaGetErrorName(err));
    return cuda_fail(be, err == cudaErrorMemoryAllocation ? KN_EMEM : KN_EDEVICE, "%s: %s (%s)", what,
                     cudaGetErrorString(err), cudaGetErrorName(err));
}

/* ---- memory ---- */

void *cuda_alloc(struct kn_backend *kb, size_t bytes)
{
    struct cuda_backend *be = cuda_of(kb);
    void *p = NULL;
    size_t free_bytes = 0, total = 0;
    be->rounded.x = be->ready.x = nullptr; /* a new buffer may stand where theirs was */
    cudaError_t err = cudaMalloc(&p, bytes ? bytes : 1);
    if (err == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        if (cudaMemGetInfo(&free_bytes, &total) != cudaSuccess) free_bytes = 0;
        cuda_fail(be, KN_EMEM, "out of device memory (%zu bytes wanted, %zu of %zu free)", bytes, free_bytes,
                  total);
        return NULL;
    }
    if (cuda_check(be, "alloc", err)) return NULL;
    if (cuda_check(be, "alloc", cudaMemsetAsync(p, 0, bytes ? bytes : 1, be->stream))) {
        cudaFree(p);
        return NULL;
    }
    return p;
}

void cuda_free(struct kn_backend *kb, void *p)
{
    struct cuda_backend *be = cuda_of(kb);
    if (!p) return;
    be->lost = cuda_flush(be);
    cudaStreamSynchronize(be->stream); /* a kernel may still read it */
    cudaFree(p);
}

/* Pinned and mapped: a kernel reads it by the same address, 128 bytes of it at a time over the link. */
void *cuda_alloc_host(struct kn_backend *kb, size_t bytes)
{
    struct cuda_backend *be = cuda_of(kb);
    void *p = NULL;
    const cudaError_t err = cudaHostAlloc(&p, bytes ? bytes : 1, cudaHostAllocMapped | cudaHostAllocPortable);
    if (err == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        cuda_fail(be, KN_EMEM, "%zu bytes of the host's memory cannot be pinned for the device", bytes);
        return NULL;
    }
    if (cuda_check(be, "alloc_host", err)) return NULL;
    if (!cuda_check(be, "alloc_host", cudaMemsetAsync(p, 0, bytes ? bytes : 1, be->stream))) return p;
    cudaFreeHost(p);
    return NULL;
}

void cuda_free_host(struct kn_backend *kb, void *p)
{
    struct cuda_backend *be = cuda_of(kb);
    if (!p) return;
    be->lost = cuda_flush(be);
    cudaStreamSynchronize(be->stream); /* a kernel may still read it */
    cudaFreeHost(p);
}

/* From pageable memory the driver copies to a buffer of its own before it returns: host may be reused at
 * once. What alloc_host or alloc_shared gave is read in the stream's turn: until then nobody but the stream
 * may write it. */
static int cuda_upload(struct kn_backend *kb, void *dst, const void *host, size_t bytes)
{
    struct cuda_backend *be = cuda_of(kb);
    const int rc = cuda_flush(be);
    be->rounded.x = be->ready.x = nullptr;
    if (rc) return rc;
    return bytes ? cuda_check(be, "upload", cudaMemcpyAsync(dst, host, bytes, cudaMemcpyDefault, be->stream))
                 : 0;
}

static int cuda_download(struct kn_backend *kb, void *host, const void *src, size_t bytes)
{
    struct cuda_backend *be = cuda_of(kb);
    if (!bytes) return 0;
    int rc = cuda_flush(be);
    if (rc == 0)
        rc = cuda_check(be, "download", cudaMemcpyAsync(host, src, bytes, cudaMemcpyDefault, be->stream));
    return rc ? rc : cuda_check(be, "download", cudaStreamSynchronize(be->stream));
}

static int cuda_copy(struct kn_backend *kb, void *dst, const void *src, size_t bytes)
{
    struct cuda_backend *be = cuda_of(kb);
    const int rc = cuda_flush(be);
    be->rounded.x = be->ready.x = nullptr;
    if (rc) return rc;
    return bytes ? cuda_check(be, "copy", cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, be->stream))
                 : 0;
}

static int cuda_sync(struct kn_backend *kb)
{
    struct cuda_backend *be = cuda_of(kb);
    const int rc = cuda_flush(be);
    return rc ? rc : cuda_check(be, "sync", cudaStreamSynchronize(be->stream));
}

/* Grow a buffer; what it held is lost. */
static int grow(struct cuda_backend *be, void **p, size_t *have, size_t want)
{
    if (want <= *have) return 0;
    cuda_free((struct kn_backend *)be, *p);
    *have = 0;
    be->moved++;
    *p = cuda_alloc((struct kn_backend *)be, want);
    if (!*p) return KN_EMEM;
    *have = want;
    return 0;
}

static int cuda_reserve(struct kn_backend *kb, int32_t n, int64_t n_in, int64_t n_vocab, int32_t n_head,
                        int32_t head_dim)
{
    struct cuda_backend *be = cuda_of(kb);
    if (n < 1 || n_in < 0 || n_vocab < 0 || n_vocab > INT32_MAX || n_head < 0 || head_dim < 0)
        return cuda_fail(be, KN_EINVAL, "reserve: bad shape (%d rows, %lld in, %lld logits, %d heads of %d)",
                         n, (long long)n_in, (long long)n_vocab, n_head, head_dim);
    const int rc = grow(be, &be->scratch_rows, &be->scratch_rows_bytes, cuda_pick_scratch(n, n_vocab));
    return rc ? rc : many_reserve(be, n, n_in);
}

static int cuda_reserve_kv(struct kn_backend *kb, int32_t n, int32_t n_head, const struct kn_kv *kv,
                           int32_t window)
{
    struct cuda_backend *be = cuda_of(kb);
    int rc = cuda_check_kv(be, "reserve_kv", kv);
    if (rc) return rc;
    if (n < 1 || n_head < 1 || n_head % kv->n_head_kv || window < 0)
        return cuda_fail(be, KN_EINVAL, "reserve_kv: %d rows of %d heads over %d KV heads, window %d", n,
                         n_head, kv->n_head_kv, window);
    return grow(be, &be->scratch_rows, &be->scratch_rows_bytes,
                cuda_attention_scratch(n, n_head, kv, window));
}

static int cuda_reserve_delta(struct kn_backend *kb, const struct kn_delta *a)
{
    struct cuda_backend *be = cuda_of(kb);
    return grow(be, &be->scratch_rows, &be->scratch_rows_bytes, cuda_delta_scratch(a));
}

/* ---- what would be taken ---- */

static int memory_query(struct kn_backend *kb, size_t *free_bytes, size_t *total)
{
    return cuda_check(cuda_of(kb), "memory", cudaMemGetInfo(free_bytes, total));
}

/* The driver gives out whole pages of 2 MiB, and parts of one for what is small. */
static size_t memory_alloc(size_t bytes)
{
    const size_t unit = bytes < (1u << 20) ? 512 : 2u << 20;
    return (bytes + unit - 1) / unit * unit;
}

static size_t memory_weight(uint32_t type, int64_t n_in, int64_t n_out, int32_t n_mat, unsigned use)
{
    size_t packed = 0, rows = 0;
    cuda_weight_bytes(type, n_in, n_out, n_mat, use, &packed, &rows);
    return memory_alloc(packed) + memory_alloc(rows);
}

static size_t memory_scratch(int32_t n, int64_t n_vocab)
{
    return memory_alloc(cuda_pick_scratch(n, n_vocab));
}

static size_t memory_scratch_kv(int32_t n, int32_t n_head, const struct kn_kv *kv, int32_t window)
{
    return memory_alloc(cuda_attention_scratch(n, n_head, kv, window));
}

static size_t memory_scratch_delta(const struct kn_delta *a)
{
    return memory_alloc(cuda_delta_scratch(a));
}

static size_t memory_products(int32_t n, int64_t n_in)
{
    return memory_alloc(many_bytes(n, n_in));
}

static size_t memory_experts(void)
{
    return memory_alloc(cuda_experts_bytes());
}

static const struct kn_memory memory_table = {memory_query,    memory_alloc,      memory_weight,
                                              memory_scratch,  memory_scratch_kv, memory_scratch_delta,
                                              memory_products, memory_experts,    (size_t)256 << 20};

/* ---- the table ---- */

static const struct kn_ops *table(bool direct, bool chains)
{
    static struct kn_ops tables[2][2], &t = tables[direct][chains];
    t.name = "cuda";
    t.pass_rows = MANY_ROWS;
    t.memory = &memory_table;
    t.alloc = cuda_alloc;
    t.free = cuda_free;
    t.alloc_host = cuda_alloc_host;
    t.free_host = cuda_free_host;
    t.upload = cuda_upload;
    t.download = cuda_download;
    t.copy = cuda_copy;
    t.sync = cuda_sync;
    t.reserve = cuda_reserve;
    t.reserve_kv = cuda_reserve_kv;
    t.reserve_delta = cuda_reserve_delta;
    t.weight_load = cuda_weight_load;
    t.experts_load = cuda_experts_load;
    t.weight_free = cuda_weight_free;
    t.embed = cuda_embed;
    t.rope_table = cuda_rope_table;
    t.rms_norm = cuda_rms_norm;
    t.linear = cuda_linear;
    t.norm_linear = cuda_norm_linear;
    t.norm_gated = cuda_norm_gated;
    t.rope_store = cuda_rope_store;
    t.attention = cuda_attention;
    t.sparse_room = cuda_sparse_room;
    t.attend = cuda_attend;
    t.attention_weights = cuda_attention_weights;
    t.carry = cuda_carry;
    t.tap = cuda_tap;
    t.norm_add = cuda_norm_add;
    t.norm_join = cuda_norm_join;
    t.norm_pair = cuda_norm_pair;
    t.clusters = cuda_clusters;
    t.gate = cuda_gate;
    t.route = cuda_route;
    t.experts_gated = cuda_experts_gated;
    t.experts_down = cuda_experts_down;
    t.mixture = cuda_mixture;
    t.mixture_shares = cuda_mixture_shares;
    t.delta = cuda_delta;
    t.delta_every[0] = chains ? 6 : 0; /* by measurement: docs/speed/delta-nets.md */
    t.delta_every[1] = chains ? 2 : 0;
    t.gate_linear = cuda_gate_linear;
    t.delta_linear = cuda_delta_linear;
    t.softcap = cuda_softcap;
    t.pick = cuda_pick;
    t.cell = cuda_cell;
    t.spread = cuda_spread;
    t.conv = cuda_conv;
    t.sinks = true;
    t.top = cuda_top;
    t.edges = cuda_edges;
    t.walk = cuda_walk;
    t.find_bad = cuda_find_bad;
    t.read_speed = cuda_read_speed;
    t.link_speed = cuda_link_speed;
    t.product_speed = cuda_product_speed;
    cuda_cycle_table(&t, direct);
    cuda_tree_table(&t);
    return &t;
}

/* ---- opening ---- */

int cuda_devices(void)
{
    int n = 0;
    if (cudaGetDeviceCount(&n) == cudaSuccess) return n;
    (void)cudaGetLastError(); /* no driver, or one too old: none */
    return 0;
}

bool cuda_is_early(const struct kn_backend *kb)
{
    const struct cuda_backend *be = (const struct cuda_backend *)kb;
    return be->cc >= 90 && !be->generic;
}

const uint64_t *cuda_forms(const struct kn_backend *kb)
{
    return ((const struct cuda_backend *)kb)->forms;
}

static int parse_ordinal(const char *name, int *ordinal, char *msg, size_t n)
{
    char *end;
    *ordinal = 0;
    if (!strcmp(name, "cuda")) return 0;
    long v = strncmp(name, "cuda:", 5) || name[5] < '0' || name[5] > '9' ? -1 : strtol(name + 5, &end, 10);
    if (v < 0 || v > 1023 || *end) {
        snprintf(msg, n, "device %s: unknown (expected cuda or cuda:N)", name);
        return KN_EINVAL;
    }
    *ordinal = (int)v;
    return 0;
}

/* Asked which of the architectures that this program was compiled for the device runs. */
static __global__ void which_code(void)
{
}

/* Lowers be->cc to the architecture of the code that runs: a device newer than every machine code in the
 * program gets what its driver compiled from the oldest, which lacks the instructions that be->cc would
 * promise. */
static int code_of(struct cuda_backend *be, char *msg, size_t n)
{
    cudaFuncAttributes attr;
    const cudaError_t err = cudaFuncGetAttributes(&attr, which_code);
    if (err != cudaSuccess) {
        (void)cudaGetLastError();
        snprintf(msg, n, "cuda:%d: compute capability %d.%d: no code for it in this build: %s", be->device,
                 be->cc / 10, be->cc % 10, cudaGetErrorString(err));
        return KN_EDEVICE;
    }
    if (attr.ptxVersion < be->cc) be->cc = attr.ptxVersion;
    return 0;
}

/* Where there is no driver the runtime says that it is too old. */
static int none_found(cudaError_t err, char *msg, size_t n)
{
    int driver = 0;
    (void)cudaGetLastError();
    if (err == cudaErrorInsufficientDriver && cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0)
        snprintf(msg, n, "no CUDA device: no NVIDIA driver");
    else
        snprintf(msg, n, "no CUDA device: %s", err != cudaSuccess ? cudaGetErrorString(err) : "none found");
    return KN_EDEVICE;
}

static int describe(struct cuda_backend *be, char *msg, size_t n)
{
    int count = 0, major = 0, minor = 0, l2 = 0;
    cudaError_t err = cudaGetDeviceCount(&count);
    if (err != cudaSuccess || count == 0) return none_found(err, msg, n);
    if (be->device >= count) {
        snprintf(msg, n, "no CUDA device %d (expected 0 to %d)", be->device, count - 1);
        return KN_EDEVICE;
    }
    err = cudaSetDevice(be->device);
    const struct {
        cudaDeviceAttr attr;
        int *to;
    } ask[] = {{cudaDevAttrComputeCapabilityMajor, &major},
               {cudaDevAttrComputeCapabilityMinor, &minor},
               {cudaDevAttrMultiProcessorCount, &be->sm_count},
               {cudaDevAttrMaxSharedMemoryPerBlockOptin, &be->smem_block},
               {cudaDevAttrMaxSharedMemoryPerMultiprocessor, &be->smem_sm},
               {cudaDevAttrL2CacheSize, &l2}};
    for (size_t i = 0; i < sizeof ask / sizeof ask[0] && err == cudaSuccess; i++)
        err = cudaDeviceGetAttribute(ask[i].to, ask[i].attr, be->device);
    if (err != cudaSuccess) {
        (void)cudaGetLastError();
        snprintf(msg, n, "cuda:%d: %s", be->device, cudaGetErrorString(err));
        return KN_EDEVICE;
    }
    be->cc = 10 * major + minor;
    be->l2_bytes = (size_t)l2;
    if (be->cc < 80) {
        cudaDeviceProp prop;
        snprintf(msg, n, "cuda:%d (%s): compute capability %d.%d is not supported (expected 8.0 or more)",
                 be->device, cudaGetDeviceProperties(&prop, be->device) == cudaSuccess ? prop.name : "?",
                 major, minor);
        return KN_EDEVICE;
    }
    return code_of(be, msg, n);
}

int cuda_open(struct kn_backend **out, const struct kn_open *o, char *msg, size_t n)
{
    struct cuda_backend *be = (struct cuda_backend *)calloc(1, sizeof *be);
    int rc;
    *out = NULL;
    if (!be) {
        snprintf(msg, n, "out of memory (%zu bytes)", sizeof *be);
        return KN_EMEM;
    }
    be->head.op = table(o->direct, false);
    be->generic = o->generic;
    rc = parse_ordinal(o->device, &be->device, msg, n);
    if (rc == 0) rc = describe(be, msg, n);
    if (rc == 0) {
        rc = cuda_check(be, "stream", cudaStreamCreateWithFlags(&be->stream, cudaStreamNonBlocking));
        if (rc == 0) {
            be->count = (unsigned *)cuda_alloc((struct kn_backend *)be,
                                               (COUNTERS + DELTA_COUNTERS) * sizeof *be->count);
            be->delta_count = be->count ? be->count + COUNTERS : NULL;
            rc = be->count ? cuda_mm_open(be) : KN_EDEVICE;
        }
        if (rc == 0) rc = cuda_attention_open(be);
        if (rc) snprintf(msg, n, "cuda:%d: %s", be->device, be->head.message);
    }
    if (rc) {
        cuda_close((struct kn_backend *)be);
        return rc;
    }
    if (be->chain) be->head.op = table(o->direct, true);
    *out = (struct kn_backend *)be;
    return 0;
}

void cuda_close(struct kn_backend *kb)
{
    struct cuda_backend *be = cuda_of(kb);
    if (be->stream) {
        many_close(be);
        cuda_experts_close(be);
        cuda_mm_close(be);
        cuda_free(kb, be->scratch_rows);
        cuda_free(kb, be->attn_places);
        cuda_free(kb, be->count);
        cudaStreamDestroy(be->stream);
    }
    free(be);
}
