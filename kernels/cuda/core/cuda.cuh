/* cuda.cuh - inside the CUDA backend: its struct, how its files launch kernels, and what they share.
 *
 * A *launcher* (one operation of the table) checks shapes, picks a configuration by a pure function of
 * (shape, device), launches on be->stream and returns. It never waits, allocates or exits, but for the first
 * launch of a chain and those that want more places than all before (chain.cu), which take memory and wait
 * until it is cleared, and what a recording of one keeps. A *kernel* is launched through cuda_launch and
 * opens with cuda_grid_start(), or with cuda_grid_early() and, later, cuda_grid_wait(): on Hopper a kernel
 * starts while its predecessor still runs (programmatic dependent launch), so nothing that an earlier kernel
 * of the stream writes may be read, and nothing at all written, before the wait. Weights are constant and may
 * be read before it. A mixture of experts that is handed its row by tagged words is the exception:
 * experts/hand.cuh says why it may.
 *
 * Owners. backend.cu: opening, memory, the table. mm*.cu, pack.cu: weights and products. The rest: one
 * operation a file. */
#ifndef DFLASH_CUDA_CUH
#define DFLASH_CUDA_CUH

#include "../../kernels.h"
#include "../attention/attention_plan.h"
#include "../delta/delta_plan.h"
#include "cuda.h"
#include "device.h"
#include "forms.h"

#include <cuda_runtime.h>

#define CUDA_RINGS 512 /* of which the newest write is known */

struct cuda_backend {
    struct kn_backend_head head;
    int device; /* CUDA ordinal */
    int cc;     /* architecture of the code that runs * 10: 80, 90; at most the device's compute capability */
    int sm_count;
    int smem_block; /* bytes of shared memory a block may have (opt-in limit) */
    int smem_sm;    /* bytes of shared memory a multiprocessor has */
    size_t l2_bytes;
    bool generic; /* use no instruction newer than sm_80, no dependent launch */
    cudaStream_t stream;

    /* mm.cu: partial sums of K slices and their counters (zero between kernels), allocated by cuda_mm_open.
     * */
    float *mm_partial;
    size_t mm_partial_bytes;
    unsigned *mm_count;
    uint8_t *mm_rows; /* prepared activations of a launch */
    size_t mm_rows_bytes;
    struct { /* which they are, where a kernel that made them prepared them and nothing was launched since */
        const float *x, *gate; /* gate: NULL, or what they were gated with */
        int32_t n, act, slice_units, slice_row;
        uint64_t launch;
    } ready;
    /* The newest rows in mm_rows that a norm_add left there: they hold while nothing has been launched
     * or copied since. */
    struct {
        uint64_t launches;
        const float *x, *norm;
        float eps;
        int32_t n, act, n_in, slice_row;
    } rounded;
    struct mm_owed *owed; /* mm_owed.cu: outputs that the newest launch left as sums of their slices, where */
    mutable bool owes; /* so: completed before anything else is done, except by who reads them so (mm_take) */
    struct copy_crew *crew; /* pack.cu, from its first weight_load on: threads that copy */
    void *mm_stage;         /* its pinned host memory: pieces of mm_stage_bytes */
    void *mm_raw;           /* device twin of mm_stage */
    size_t mm_stage_bytes;

    float *experts_sums;   /* experts.cu, from the first experts_load on */
    unsigned *experts_tag; /* behind them: experts/whole.cu's, and what its blocks hand each other */
    unsigned long long *experts_values;
    struct experts_waiting *waiting; /* experts/whole.cu: a mixture of one row that is not launched yet */
    mutable bool waits;              /* there is one */

    unsigned *delta_count; /* delta/step.cu: one a key head, zero between kernels */

    struct many_state *many; /* many.cu: products of more than 64 rows; NULL until such rows are reserved */

    /* attention.cu, pick.cu and others: scratch of cuda_reserve and cuda_reserve_kv. */
    void *scratch_rows;
    size_t scratch_rows_bytes;
    uint32_t moved; /* times that memory which launches name has moved: a recording must not be older */
    /* What may be read before a kernel waits. Launches are counted; `settled` is the newest whose kernel lets
     * its successor start only after its own wait: when a later kernel starts, all launches before it are
     * complete. (Copies and sets on the stream are complete for every kernel after them.) */
    mutable uint64_t launches; /* so far */
    uint64_t settled;
    uint64_t positions; /* the newest that wrote positions (accept) */
    struct {
        const void *k;   /* kv->k of a ring, near its hash: */
        uint64_t launch; /* the newest launch that wrote it */
    } rings[CUDA_RINGS];
    uint64_t rings_else; /* the newest of those that found no place */
    const void *store_k; /* the newest rope_store of one layer: kv->k, */
    const int32_t *store_pos;
    uint64_t store_launch;              /* and its launch */
    unsigned *count;                    /* [counters], zero between kernels: find_bad's at 0, then pick's */
    struct attn_device attn;            /* attention.cu: what the device has room for */
    struct chain_state *chain;          /* chain.cu; NULL where the device has no bulk copies */
    mutable int32_t chain_steps;        /* collected, not launched */
    float *attn_places;                 /* attention/leaves.cuh; NULL where the device has none */
    mutable uint64_t forms[CUDA_FORMS]; /* launches of each form so far, recorded ones once: forms.h */
    mutable int
        lost; /* what waited failed with it where nobody could be told (free): the next flush returns it */
};
/* What its planners are told of it. */
static inline struct cuda_device cuda_device_of(const struct cuda_backend *be)
{
    return {be->cc, be->sm_count, be->smem_block, be->smem_sm, be->generic};
}
/* A launch of the form. */
static inline void cuda_count(const struct cuda_backend *be, enum cuda_form form)
{
    be->forms[form]++;
}
/* The place of a ring, or, where it has none, the one that was written longest ago of some. */
static inline int cuda_ring_place(const struct cuda_backend *be, const void *k)
{
    const uint32_t at = (uint32_t)((uintptr_t)k >> 9) * 2654435761u;
    int best = (int)(at % CUDA_RINGS);
    for (uint32_t i = 0; i < 16; i++) {
        const int here = (int)((at + i) % CUDA_RINGS);
        if (be->rings[here].k == k) return here;
        if (be->rings[here].launch < be->rings[best].launch) best = here;
    }
    return best;
}
/* The newest launch wrote to the ring with these keys. */
static inline void cuda_ring_written(struct cuda_backend *be, const void *k)
{
    auto &r = be->rings[cuda_ring_place(be, k)];
    if (r.k != k && r.launch > be->rings_else) be->rings_else = r.launch;
    r.k = k;
    r.launch = be->launches;
}
/* The newest launch that may have. */
static inline uint64_t cuda_ring_launch(const struct cuda_backend *be, const void *k)
{
    const auto &r = be->rings[cuda_ring_place(be, k)];
    return r.k == k ? r.launch : be->rings_else;
}
static inline struct cuda_backend *cuda_of(struct kn_backend *be)
{
    return (struct cuda_backend *)be;
}

/* backend.cu. Fill the message; returns code. */
int cuda_fail(struct cuda_backend *be, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* 0, or the message "what: CUDA's own text" and KN_EDEVICE (KN_EMEM: out of memory). Built with
 * CUDA_DEBUG_SYNC it waits for the stream first, so that a failing kernel is named. what: the operation. */
int cuda_check(struct cuda_backend *be, const char *what, cudaError_t err);
/* The status of what waited, and failed when `what` was to be launched behind it: cuda_check returns it as it
 * is, for its message stands. */
#define CUDA_TOLD 12000 /* no error of CUDA's */
static inline cudaError_t cuda_told(int rc)
{
    return rc ? (cudaError_t)(CUDA_TOLD - rc) : cudaSuccess;
}

/* mm.cu and pack.cu: see the operation table. */
int cuda_mm_open(struct cuda_backend *be); /* after device and stream are set */
void cuda_mm_close(struct cuda_backend *be);
/* weight_load: w->packed is the streaming layout of mm.cuh; w->rows (KN_USE_ROWS) is a copy of the file's
 * rows in device memory, in file layout, 256-byte aligned. Both belong to the weight. */
int cuda_weight_load(struct kn_backend *, struct kn_weight *, uint32_t type, int64_t n_in, int64_t n_out,
                     const void *data, unsigned use);
/* Bytes of both parts of a weight. */
void cuda_weight_bytes(uint32_t type, int64_t n_in, int64_t n_out, int32_t n_mat, unsigned use,
                       size_t *packed, size_t *rows);
void cuda_weight_free(struct kn_backend *, struct kn_weight *);
int cuda_linear(struct kn_backend *, float *out, const struct kn_weight *w, const float *x, int32_t n,
                bool add);
int cuda_norm_linear(struct kn_backend *, float *const *out, const struct kn_weight *const *w, int32_t n_w,
                     const float *x, const float *norm, float eps, int32_t n);
int cuda_norm_gated(struct kn_backend *, float *out, const struct kn_weight *gate, const struct kn_weight *up,
                    const float *x, const float *norm, float eps, enum kn_act act, int32_t n);

/* ---- launching ---- */

/* chain.cu, experts/whole.cu: launch the products that were collected; the mixture that waits. */
int chain_flush(const struct cuda_backend *be);
int experts_flush(const struct cuda_backend *be);
/* Products behind the mixture that waits: into its launch, and returns 1, or 0 where they do not fit. */
struct chain_product;
int experts_then(struct cuda_backend *be, const struct chain_product *p);
/* mm_owed.cu: complete the outputs that are owed. */
int mm_settle(const struct cuda_backend *be);
/* To be called before anything is put on the stream, or waited for, except by cuda_launch. Of products and a
 * mixture one alone waits. */
static inline int cuda_flush(const struct cuda_backend *be)
{
    if (be->lost) {
        const int rc = be->lost;
        be->lost = 0;
        return rc;
    }
    if (be->owes) {
        const int rc = mm_settle(be);
        if (rc) return rc;
    }
    if (be->waits) return experts_flush(be);
    return be->chain_steps ? chain_flush(be) : 0;
}

/* Launch on the backend's stream, dependent on the kernel before it where the device can; cluster: 0, or of
 * so many blocks (compute capability 9.0). Every kernel asks for the same division of a
 * multiprocessor's memory (all shared): kernels that differ in it cannot stand side by side, which is the
 * point of an early launch. */
template <class... P, class... A>
static inline cudaError_t cuda_launch_now(const struct cuda_backend *be, dim3 cluster, void (*kernel)(P...),
                                          dim3 grid, dim3 block, size_t smem, A... args)
{
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attr[3];
    be->launches++;
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = smem;
    config.stream = be->stream;
    attr[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attr[0].val.programmaticStreamSerializationAllowed = 1;
    attr[1].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
    attr[1].val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
    attr[2].id = cudaLaunchAttributeClusterDimension;
    attr[2].val.clusterDim = {cluster.x, cluster.y, cluster.z};
    config.attrs = attr;
    config.numAttrs = cluster.x ? 3 : be->cc >= 90 && !be->generic ? 2 : 0;
    return cudaLaunchKernelEx(&config, kernel, P(args)...);
}
/* Before what waits, but for outputs that are owed. */
template <class... P, class... A>
static inline cudaError_t cuda_launch_first(const struct cuda_backend *be, void (*kernel)(P...), dim3 grid,
                                            dim3 block, size_t smem, A... args)
{
    const int rc = be->owes ? mm_settle(be) : 0;
    return rc ? cuda_told(rc) : cuda_launch_now(be, 0, kernel, grid, block, smem, args...);
}
/* Behind what waits. */
template <class... P, class... A>
static inline cudaError_t cuda_launch(const struct cuda_backend *be, void (*kernel)(P...), dim3 grid,
                                      dim3 block, size_t smem, A... args)
{
    const int rc = cuda_flush(be);
    return rc ? cuda_told(rc) : cuda_launch_first(be, kernel, grid, block, smem, args...);
}
template <class... P, class... A>
static inline cudaError_t cuda_launch_clusters(const struct cuda_backend *be, void (*kernel)(P...), dim3 grid,
                                               dim3 block, size_t smem, dim3 cluster, A... args)
{
    const int rc = cuda_flush(be);
    return rc ? cuda_told(rc) : cuda_launch_now(be, cluster, kernel, grid, block, smem, args...);
}

#ifdef __CUDACC__
#include "shared.cuh"

/* Let the next kernel of the stream start when its blocks fit beside ours. */
DEV void cuda_grid_early()
{
    asm_90("griddepcontrol.launch_dependents;");
}
/* Wait until all earlier kernels of the stream are complete and their writes visible. */
DEV void cuda_grid_wait()
{
    asm_90("griddepcontrol.wait;" ::: "memory");
}
DEV void cuda_grid_start()
{
    cuda_grid_early();
    cuda_grid_wait();
}
#endif

#endif
