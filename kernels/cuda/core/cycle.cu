/* cycle.cu - what a cycle needs beside rows: acceptance on the device, results in memory that the host reads
 * while the device goes on, and the recording of a sequence of operations as a CUDA graph.
 *
 * accept is one block: a thread a row, bound by its latency and the writes to the host's memory (some 400
 * bytes over the bus). A recording keeps the launches of a stream as they are; programmatic dependent
 * launches become programmatic edges, so a replayed kernel starts as early as a launched one. The arguments
 * of a recorded launch never change: whatever varies from cycle to cycle lies in device memory. */
#include "../chain/chain.cuh"
#include "ops.cuh"

#include <stdlib.h>
#include <string.h>

static void *alloc_shared(struct kn_backend *kb, size_t bytes)
{
    struct cuda_backend *be = cuda_of(kb);
    void *p = NULL;
    if (cuda_check(be, "alloc_shared",
                   cudaHostAlloc(&p, bytes ? bytes : 1, cudaHostAllocMapped | cudaHostAllocPortable)))
        return NULL;
    memset(p, 0, bytes);
    return p;
}

static void free_shared(struct kn_backend *kb, void *p)
{
    struct cuda_backend *be = cuda_of(kb);
    if (!p) return;
    be->lost = cuda_flush(be);
    cudaStreamSynchronize(be->stream); /* a kernel may still write it */
    cudaFreeHost(p);
}

static __device__ __forceinline__ uint64_t device_ns()
{
    uint64_t t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}
static __global__ void __launch_bounds__(1) stamp_now(uint64_t *at)
{
    cuda_grid_start();
    *at = device_ns();
}

static int stamp(struct kn_backend *kb, uint64_t *at)
{
    struct cuda_backend *be = cuda_of(kb);
    return cuda_check(be, "stamp", cuda_launch(be, stamp_now, dim3(1), dim3(1), 0, at));
}

static __global__ void __launch_bounds__(KN_CYCLE_ROWS)
    place_ids(int32_t *history, const int32_t *pos, const int32_t *ids, int32_t n)
{
    cuda_grid_start();
    for (int32_t i = (int32_t)threadIdx.x; i < n; i += KN_CYCLE_ROWS) history[pos[i]] = ids[i];
}

static int place(struct kn_backend *kb, int32_t *history, const int32_t *pos, const int32_t *ids, int32_t n)
{
    struct cuda_backend *be = cuda_of(kb);
    return cuda_check(be, "place",
                      cuda_launch(be, place_ids, dim3(1), dim3(KN_CYCLE_ROWS), 0, history, pos, ids, n));
}

static __global__ void __launch_bounds__(KN_CYCLE_ROWS) offer_rows(const struct kn_offering a)
{
    cuda_grid_start();
    const int32_t t = (int32_t)threadIdx.x;
    const uint32_t number = *a.number;
    struct kn_offer *o = &a.offers[number % (uint32_t)a.n_offers];
    const int32_t id = t < a.n ? a.ids[t] : 0;
    const bool usable = !__syncthreads_or(t > 0 && id < 0); /* and number is read */
    if (t < a.n) o->ids[t] = id;
    if (t + 1 < a.n) o->logp[t] = a.logp[t];
    if (t > 0 && t < a.n && !usable) a.ids[t] = KN_PICK_NAN;
    if (t == 0) {
        *a.stamp = device_ns();
        o->pos = *a.pos;
        o->usable = usable;
        *a.number = number + 1;
    }
    __syncthreads();
    if (t == 0) {
        __threadfence_system(); /* as in accept */
        *(volatile uint32_t *)&o->number = number + 1;
    }
}

static int offer(struct kn_backend *kb, const struct kn_offering *a)
{
    struct cuda_backend *be = cuda_of(kb);
    if (a->n < 1 || a->n > KN_CYCLE_ROWS || a->n_offers < 1)
        return cuda_fail(be, KN_EINVAL, "offer: %d rows (expected 1 to %d), %d offers", a->n, KN_CYCLE_ROWS,
                         a->n_offers);
    const int rc = cuda_offer_candidates(be, a);
    if (rc) return rc;
    return cuda_check(be, "offer", cuda_launch(be, offer_rows, dim3(1), dim3(KN_CYCLE_ROWS), 0, *a));
}

static __global__ void __launch_bounds__(256)
    keep_rows(float *dst, int32_t slots, const int32_t *pos, const float *x, int64_t width)
{
    cuda_grid_start();
    const int32_t row = (int32_t)blockIdx.y;
    float *to = dst + pos[row] % slots * width;
    for (int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x; i < width; i += (int64_t)gridDim.x * 256)
        to[i] = x[row * width + i];
}

static int keep(struct kn_backend *kb, float *dst, int32_t slots, const int32_t *pos, const float *x,
                int32_t n, int64_t width)
{
    struct cuda_backend *be = cuda_of(kb);
    if (n < 1 || n > slots || n > 65535 || width < 1)
        return cuda_fail(be, KN_EINVAL, "keep: %d rows of width %lld in %d slots", n, (long long)width,
                         slots);
    const int64_t blocks = (width + 255) / 256;
    const dim3 grid((unsigned)(blocks < be->sm_count ? blocks : be->sm_count), (unsigned)n);
    return cuda_check(be, "keep", cuda_launch(be, keep_rows, grid, dim3(256), 0, dst, slots, pos, x, width));
}

/* settled: everything that is read here is there when the kernel starts, for the one before it (the context's
 * last) lets it start only when those before are complete. */
static __global__ void __launch_bounds__(KN_CYCLE_ROWS) accept_rows(const struct kn_accept a, bool settled)
{
    __shared__ int32_t ids[KN_CYCLE_ROWS + 1], picks[KN_CYCLE_ROWS];
    __shared__ uint32_t equal[KN_CYCLE_ROWS / 32];
    cuda_grid_early();
    if (!settled) cuda_grid_wait();
    const int32_t t = (int32_t)threadIdx.x;
    const uint32_t number = *a.number;
    const int32_t pos = a.pos[t], pos0 = a.pos[0];
    struct kn_result *r = &a.results[number % (uint32_t)a.n_results];
    ids[t] = t < a.n ? a.ids[t] : 0;
    picks[t] = t < a.n ? a.picks[t] : KN_PICK_NAN;
    const uint64_t stamp = t < KN_STAMPS ? a.stamp[t] : 0;
    const bool usable = !__syncthreads_or(t > 0 && ids[t] < 0); /* and everything is read */
    const bool same = a.equal ? t < a.equal[pos0] : ids[t + 1] == picks[t];
    const uint32_t here = __ballot_sync(~0u, usable && t + 1 < a.n && same); /* row t + 1 stays */
    if (t % 32 == 0) equal[t / 32] = here;
    __syncthreads();
    int32_t kept = 1;
    for (int i = 0; i < KN_CYCLE_ROWS / 32; i++) {
        const int32_t run = equal[i] == ~0u ? 32 : __ffs((int)~equal[i]) - 1;
        kept += run;
        if (run < 32) break;
    }
    if (settled) cuda_grid_wait();
    const uint64_t began = device_ns();
    if (t < KN_STAMPS) r->stamp[t] = stamp;
    a.pos[t] = pos + kept;
    if (t < kept) a.history[pos0 + 1 + t] = picks[t];
    if (t < a.n) r->ids[t] = ids[t], r->picks[t] = picks[t];
    if (t == 0) {
        const int32_t next = picks[kept - 1], at = pos0 + kept;
        a.ids[0] = next;
        if (a.anchor) *a.anchor = next;
        if (a.first) *a.first = at > a.window ? at - a.window : 0;
        *a.kept = kept;
        if (a.behind) *a.behind = (*a.behind + kept) % a.every;
        *a.number = number + 1;
        r->accepted = began;
        r->pos = pos0;
        r->kept = kept;
        r->usable = usable;
    }
    __syncthreads();
    if (t == 0) {
        __threadfence_system(); /* all threads' writes, for they stand before the barrier */
        *(volatile uint32_t *)&r->number = number + 1;
    }
}

/* The same behind op->follow: the rows that stay are known. */
static __global__ void __launch_bounds__(KN_CYCLE_ROWS) accept_path(const struct kn_accept a)
{
    cuda_grid_start();
    const int32_t t = (int32_t)threadIdx.x, kept = *a.kept;
    const uint32_t number = *a.number;
    const int32_t pos = a.pos[t], pos0 = a.pos[0], row = t < a.n ? a.tree->stays[t] : 0,
                  pick = t < a.n ? a.picks[row] : KN_PICK_NAN;
    struct kn_result *r = &a.results[number % (uint32_t)a.n_results];
    const uint64_t stamp = t < KN_STAMPS ? a.stamp[t] : 0, began = device_ns();
    __syncthreads(); /* everything is read */
    if (t < KN_STAMPS) r->stamp[t] = stamp;
    a.pos[t] = pos + kept;
    if (t < kept) a.history[pos0 + 1 + t] = pick;
    if (t < a.n) r->ids[t] = a.tree->stay_ids[t], r->picks[t] = pick, r->rows[t] = row;
    if (t == kept - 1) {
        const int32_t at = pos0 + kept;
        a.ids[0] = pick;
        if (a.anchor) *a.anchor = pick;
        if (a.first) *a.first = at > a.window ? at - a.window : 0;
        *a.number = number + 1;
        r->accepted = began;
        r->pos = pos0;
        r->kept = kept;
        r->usable = 1;
    }
    __syncthreads();
    if (t == 0) {
        __threadfence_system(); /* as above */
        *(volatile uint32_t *)&r->number = number + 1;
    }
}

static int accept(struct kn_backend *kb, const struct kn_accept *a)
{
    struct cuda_backend *be = cuda_of(kb);
    int rc = cuda_flush(be);
    if (rc) return rc;
    if (a->n < 1 || a->n > KN_CYCLE_ROWS || a->n_results < 1)
        return cuda_fail(be, KN_EINVAL, "accept: %d rows (expected 1 to %d), %d results", a->n, KN_CYCLE_ROWS,
                         a->n_results);
    const bool settled = be->settled && be->settled == be->launches;
    rc = cuda_check(be, "accept",
                    a->tree ? cuda_launch(be, accept_path, dim3(1), dim3(KN_CYCLE_ROWS), 0, *a)
                            : cuda_launch(be, accept_rows, dim3(1), dim3(KN_CYCLE_ROWS), 0, *a, settled));
    be->positions = be->launches;
    return rc;
}

/* The stream is asked now and then, so that a kernel that failed ends the wait. */
static int await(struct kn_backend *kb, const uint32_t *number, uint32_t want)
{
    struct cuda_backend *be = cuda_of(kb);
    for (unsigned turn = 1;; turn++) {
        if (__atomic_load_n(number, __ATOMIC_ACQUIRE) == want) return 0;
        if (turn % 4096) {
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
            continue;
        }
        const cudaError_t err = cudaStreamQuery(be->stream);
        if (err == cudaErrorNotReady) continue;
        if (err != cudaSuccess) return cuda_check(be, "cycle", err);
        if (__atomic_load_n(number, __ATOMIC_ACQUIRE) == want) return 0;
        return cuda_fail(be, KN_EDEVICE, "%u left no result (the last was %u)", want, *number);
    }
}

#ifndef CUDA_DEBUG_SYNC /* which waits after every launch: nothing is recorded then */
/* ---- recordings ---- */

struct recording {
    cudaGraphExec_t exec;
    uint32_t moved; /* be->moved when it was made */
    void *chains;   /* of chain_take */
};

static int record_begin(struct kn_backend *kb)
{
    struct cuda_backend *be = cuda_of(kb);
    const int rc = cuda_flush(be);
    if (rc) return rc;
    be->settled = ++be->launches; /* a recording starts when all before it is complete */
    return cuda_check(be, "record", cudaStreamBeginCapture(be->stream, cudaStreamCaptureModeRelaxed));
}

static int record_end(struct kn_backend *kb, void **out)
{
    struct cuda_backend *be = cuda_of(kb);
    cudaGraph_t graph = NULL;
    struct recording *r = NULL;
    *out = NULL;
    int rc = cuda_flush(be);
    be->settled = 0; /* what was recorded has not run */
    const int end = cuda_check(be, "record", cudaStreamEndCapture(be->stream, &graph));
    if (rc == 0) rc = end;
    if (rc == 0) {
        r = (struct recording *)calloc(1, sizeof *r);
        if (!r) rc = cuda_fail(be, KN_EMEM, "out of memory (a recording)");
    }
    if (rc == 0) rc = cuda_check(be, "record", cudaGraphInstantiate(&r->exec, graph, 0));
    if (rc == 0) rc = cuda_check(be, "record", cudaGraphUpload(r->exec, be->stream));
    if (graph) cudaGraphDestroy(graph);
    if (rc) {
        if (r && r->exec) cudaGraphExecDestroy(r->exec);
        free(r);
        chain_give(be, chain_take(be));
        return rc;
    }
    r->moved = be->moved;
    r->chains = chain_take(be);
    *out = r;
    return 0;
}

static int replay(struct kn_backend *kb, void *recording)
{
    struct cuda_backend *be = cuda_of(kb);
    const struct recording *r = (const struct recording *)recording;
    if (r->moved != be->moved) return cuda_fail(be, KN_ESTALE, "the recording is older than the scratch");
    const int rc = cuda_flush(be);
    if (rc) return rc;
    return cuda_check(be, "replay", cudaGraphLaunch(r->exec, be->stream));
}

static void record_free(struct kn_backend *kb, void *recording)
{
    struct recording *r = (struct recording *)recording;
    if (!r) return;
    cudaStreamSynchronize(cuda_of(kb)->stream); /* it may still run */
    cudaGraphExecDestroy(r->exec);
    chain_give(cuda_of(kb), r->chains);
    free(r);
}
#endif

void cuda_cycle_table(struct kn_ops *t, bool direct)
{
    t->alloc_shared = alloc_shared;
    t->free_shared = free_shared;
    t->place = place;
    t->stamp = stamp;
    t->offer = offer;
    t->keep = keep;
    t->accept = accept;
    t->await = await;
#ifdef CUDA_DEBUG_SYNC
    (void)direct;
#else
    if (direct) return;
    t->record_begin = record_begin;
    t->record_end = record_end;
    t->replay = replay;
    t->record_free = record_free;
#endif
}
