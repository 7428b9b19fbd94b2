/* kernels.h - the one bridge between the library and the devices.
 *
 * Two concepts. A *backend* is one device with its memory, its threads or stream, and a table of operations;
 * it knows no files and no models. An *operation* computes rows: a row is one token's vector, and every
 * operation gives a row the same bits whatever other rows share the call (row invariance). On the CPU a row's
 * bits are also the same for scalar, AVX2 and AVX-512 code and for any number of threads, because every
 * reduction has a fixed shape (virtual lanes), every multiply-add is fused, and exp, log, sin and cos are
 * ours (kernels/cpu/math.h).
 *
 * Memory: pointers named in an operation are device pointers, taken from op->alloc (zeroed) and returned to
 * op->free; on the CPU they are ordinary memory. Shapes in comments are C order, the last dimension
 * contiguous. Errors: every operation returns 0 or a negative KN_E*; kn_message(be) then holds one line of
 * text. No operation prints or exits. None allocates but alloc, alloc_shared, those named load and reserve,
 * record_end, read_speed and product_speed; none waits for the device but download, sync, find_bad, await,
 * these and what gives memory back. One exception: layers of one row, collected on CUDA
 * (kernels/cuda/chain/chain.cu), take memory for what they hand on when they are first launched and when
 * later ones want more, tens of MB at most, of the margin that plans leave (kn_memory), and wait until it is
 * cleared; a recording of them takes memory for their descriptors.
 *
 * What operations take is said by family in kernels/ops/, all of which this header includes: who uses it
 * includes this one alone. n is the number of rows of a call, 1 or more. pos is [n] int32 in device memory:
 * absolute positions, ascending by one. x, q, k, v, out are float32. */
#ifndef DFLASH_KERNELS_H
#define DFLASH_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "ops/attention.h"
#include "ops/cycle.h"
#include "ops/delta.h"
#include "ops/draft.h"
#include "ops/kv.h"
#include "ops/mixture.h"
#include "ops/sample.h"
#include "ops/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- errors ---- */
#define KN_EMEM (-1)    /* allocation failed */
#define KN_ETYPE (-2)   /* type or shape not supported */
#define KN_EINVAL (-3)  /* bad argument or value */
#define KN_EDEVICE (-4) /* the device failed, or there is none */
#define KN_ESTALE (-5)  /* a recording made before memory moved: record again */

/* ---- backends ---- */

struct kn_backend; /* opaque but for its first member, the operation table: be->op */

struct kn_open {
    const char *device; /* "cpu", "cuda", "cuda:1" */
    const char
        *isa; /* CPU only: NULL or "auto", "scalar", "avx2", "avx512". One not supported here is KN_EDEVICE */
    int threads;  /* CPU only: 0 = all online processors */
    bool generic; /* CUDA only: only kernels that run on any supported device */
    bool direct;  /* CUDA only: operations are launched one by one, none recorded */
};
/* On failure *be is NULL and msg (size n) holds why. */
int kn_backend_open(struct kn_backend **be, const struct kn_open *o, char *msg, size_t n);
void kn_backend_close(struct kn_backend *be);
const char *kn_message(const struct kn_backend *be);
const char *kn_backend_isa(const struct kn_backend *be); /* the instruction set in use; "" but for the CPU */
int kn_backend_threads(const struct kn_backend *be);     /* in use; 0 but for the CPU */
bool kn_cuda_built(void);
int kn_cuda_devices(void); /* 0 if none or not built */

/* ---- weights ---- */

#define KN_MATRICES 16 /* matrices of one norm_linear, at most */

#define KN_USE_LINEAR 1u /* for op->linear, norm_linear, norm_gated */
#define KN_USE_ROWS 2u   /* for op->embed */

/* A matrix [n_out, n_in] in blocks along n_in. data handed to weight_load is in file layout and must outlive
 * the weight (a mapped file): a backend may keep pointing at it for rows, and keeps its own streaming layout
 * for linear. */
struct kn_weight {
    uint32_t type;
    int64_t n_in, n_out;
    int32_t n_mat;    /* 0: one matrix; else the number of experts: data holds [n_mat, n_out, n_in] */
    const void *rows; /* file layout, where KN_USE_ROWS */
    void *packed;     /* the backend's layout, where KN_USE_LINEAR */
    size_t packed_bytes;
    int32_t exponent; /* CUDA: floor(log2) of the largest magnitude in packed */
    /* Experts of which some stay in the host's memory (kn_hosted). */
    int32_t n_host;  /* so many of n_mat; 0: none, and what follows is NULL */
    void *host;      /* theirs, in the layout of packed: memory that the device reads over its link */
    int16_t *places; /* [n_mat] device: an expert's place in packed; ~place, below 0, in host */
};

/* ---- the operation table ---- */

/* What operations that take memory would take, in bytes of the device, without taking it: for plans. */
struct kn_memory {
    int (*query)(struct kn_backend *, size_t *free_bytes, size_t *total); /* now */
    size_t (*alloc)(size_t bytes);
    size_t (*weight)(uint32_t type, int64_t n_in, int64_t n_out, int32_t n_mat, unsigned use);
    /* One scratch is as large as its largest user: reserve for n_vocab logits, reserve_kv, reserve_delta. */
    size_t (*scratch)(int32_t n, int64_t n_vocab);
    size_t (*scratch_kv)(int32_t n, int32_t n_head, const struct kn_kv *kv, int32_t window);
    size_t (*scratch_delta)(const struct kn_delta *);
    size_t (*products)(int32_t n, int64_t n_in); /* reserve for inputs of n_in */
    size_t (*experts)(void); /* the first experts_load, beside the weight; NULL: nothing */
    size_t margin; /* to be left free: for loading, for code that the device loads when it first runs, for
                    * recordings (a draft, plain steps and up to nine counts of rows), and for what layers of
                    * one row hand on */
};

struct kn_ops {
    const char *name;  /* "cpu" */
    int32_t pass_rows; /* a prefill pass is worth this many rows, where chunks are shorter; 0: the chunk's own
                          are enough */
    const struct kn_memory *memory; /* NULL: the host's memory, which is not planned */
    bool sinks;                     /* attention takes kn_attention.sinks */
    bool counts; /* takes no memory and counts what would be taken: what it is handed is not looked at */
    /* memory */
    void *(*alloc)(struct kn_backend *, size_t bytes); /* zeroed, 64-byte aligned; NULL on failure */
    void (*free)(struct kn_backend *, void *);
    int (*upload)(struct kn_backend *, void *dst, const void *host, size_t bytes);
    int (*download)(struct kn_backend *, void *host, const void *src, size_t bytes); /* waits */
    int (*copy)(struct kn_backend *, void *dst, const void *src, size_t bytes);
    int (*sync)(struct kn_backend *);
    /* Scratch for calls of up to n rows with inputs up to n_in wide, n_vocab logits: call once before the
     * token loop. */
    int (*reserve)(struct kn_backend *, int32_t n, int64_t n_in, int64_t n_vocab, int32_t n_head,
                   int32_t head_dim);
    /* Scratch of attention: calls of up to n rows of n_head heads over rings like kv (its k and v are not
     * looked at), with that window (0: none). After reserve, once for every kind of layer. */
    int (*reserve_kv)(struct kn_backend *, int32_t n, int32_t n_head, const struct kn_kv *kv, int32_t window);
    /* What sparse attention of up to n rows of n_head heads over caches like kv wants. KN_ETYPE: not of such
     * a cache. NULL: the backend has none. Looks at no memory. */
    int (*sparse_room)(struct kn_backend *, int32_t n, int32_t n_head, const struct kn_kv *kv,
                       struct kn_sparse_room *room);
    /* Scratch of delta: calls of up to n rows of heads of that shape (nothing else of it is looked at). NULL
     * where reserve is enough. */
    int (*reserve_delta)(struct kn_backend *, const struct kn_delta *);
    int (*weight_load)(struct kn_backend *, struct kn_weight *w, uint32_t type, int64_t n_in, int64_t n_out,
                       const void *data, unsigned use);
    /* n_mat matrices of one shape, for experts_gated and experts_down. data need not outlive the call. */
    int (*experts_load)(struct kn_backend *, struct kn_weight *w, uint32_t type, int64_t n_in, int64_t n_out,
                        int32_t n_mat, const void *data);
    void (*weight_free)(struct kn_backend *, struct kn_weight *w);
    /* out[n, n_in] = scale * table rows of ids; the row of KN_PICK_NAN is NaN */
    int (*embed)(struct kn_backend *, float *out, const struct kn_weight *table, const int32_t *ids,
                 int32_t n, float scale);
    /* out[n, n_rot/2, 2] = cos, sin of p * freq[i], p = pos, or where there is an origin origin[pos] (both in
     * device memory); freq [n_rot/2] double in device memory; computed in double */
    int (*rope_table)(struct kn_backend *, float *out, const int32_t *pos, const int32_t *origin, int32_t n,
                      const double *freq, int32_t n_rot);
    /* out[n, width] = x / rms(x) * weight (weight NULL: 1); out may be x */
    int (*rms_norm)(struct kn_backend *, float *out, const float *x, const float *weight, int32_t n,
                    int64_t width, float eps);
    /* out[n, n_out] = W x, or out += W x where add */
    int (*linear)(struct kn_backend *, float *out, const struct kn_weight *w, const float *x, int32_t n,
                  bool add);
    /* out[j][n, n_out_j] = W_j rms_norm(x; norm) for j < n_w <= KN_MATRICES: one norm, several matrices of
     * one n_in. norm NULL: of x as it is */
    int (*norm_linear)(struct kn_backend *, float *const *out, const struct kn_weight *const *w, int32_t n_w,
                       const float *x, const float *norm, float eps, int32_t n);
    /* out[n, n_ff] = act(W_gate y) * (W_up y), y = rms_norm(x; norm), or x where norm is NULL */
    int (*norm_gated)(struct kn_backend *, float *out, const struct kn_weight *gate,
                      const struct kn_weight *up, const float *x, const float *norm, float eps,
                      enum kn_act act, int32_t n);
    int (*rope_store)(struct kn_backend *, const struct kn_rope_store *);
    int (*attention)(struct kn_backend *, const struct kn_attention *);
    int (*attention_weights)(struct kn_backend *, const struct kn_attention_weights *);
    /* rope_store of one layer, then attention over its rows, both with the same q, pos, n, n_head and kv; of
     * a tree's rows the first with the tail, and their places there. q and k may be left as they were. The
     * same results as the two. NULL: the two. */
    int (*attend)(struct kn_backend *, const struct kn_rope_store *, const struct kn_attention *);
    /* Keys and values between two caches of one shape and types that hold all positions, one of them in the
     * host's memory: those of positions pos[0] to pos[0] + n - 1, n 0: of all before pos[0]. Bytes beside
     * them, fewer than 16, may be carried too. NULL where alloc_host is. */
    int (*carry)(struct kn_backend *, const struct kn_kv *to, const struct kn_kv *from, const int32_t *pos,
                 int32_t n);
    /* dst[i, offset .. offset+width) = x[i]: a tap into the features [n, stride] */
    int (*tap)(struct kn_backend *, float *dst, int64_t stride, int64_t offset, const float *x, int32_t n,
               int64_t width);
    /* The operations below are NULL where a backend lacks them; a model that needs one is then refused when
     * it is loaded. */
    /* out[n, width] = (x + rms_norm(y; weight)) * scale; weight NULL: 1; out may be x */
    int (*norm_add)(struct kn_backend *, float *out, const float *x, const float *y, const float *weight,
                    int32_t n, int64_t width, float eps, float scale);
    /* out[n, width] = (x + rms_norm(rms_norm(y; y_weight) + rms_norm(z; z_weight); weight)) * scale; out may
     * be x. NULL: rms_norm, then norm_add twice. */
    int (*norm_join)(struct kn_backend *, float *out, const float *x, const float *y, const float *y_weight,
                     const float *z, const float *z_weight, const float *weight, int32_t n, int64_t width,
                     float eps, float scale);
    int (*norm_pair)(struct kn_backend *, const struct kn_norm_pair *);
    /* x[n, width] *= sigmoid(g); g is [n, g_width], g_width = width, or 1 for one gate a row */
    int (*gate)(struct kn_backend *, float *x, const float *g, int32_t n, int64_t width, int64_t g_width);
    int (*route)(struct kn_backend *, const struct kn_route *);
    /* out[n, n_used, n_ff] = act(W_gate[e] y) * (W_up[e] y), e = ids[n, n_used], y = rms_norm(x; norm) */
    int (*experts_gated)(struct kn_backend *, float *out, const struct kn_weight *gate,
                         const struct kn_weight *up, const float *x, const float *norm, float eps,
                         enum kn_act act, const int32_t *ids, int32_t n, int32_t n_used);
    /* out[n, n_out] = sum over j ascending of weights[n, j] * (W[ids[n, j]] h[n, j]), or out += that sum
     * where add; h [n, n_used, n_in] */
    int (*experts_down)(struct kn_backend *, float *out, const struct kn_weight *w, const float *h,
                        const int32_t *ids, const float *weights, int32_t n, int32_t n_used, bool add);
    /* NULL: norm_linear, route, experts_gated and experts_down, and products of the shared expert's own. */
    int (*mixture)(struct kn_backend *, const struct kn_mixture *);
    /* May mixture take this matrix of a shared expert with those of the others? */
    bool (*mixture_shares)(const struct kn_weight *experts, const struct kn_weight *shared);
    int (*delta)(struct kn_backend *, const struct kn_delta *);
    /* out[n, n_out] += W (x * sigmoid(g)), x and g [n, n_in]; x may be left gated. NULL: gate, then linear.
     */
    int (*gate_linear)(struct kn_backend *, float *out, const struct kn_weight *w, float *x, const float *g,
                       int32_t n);
    /* out[n, n_out] += W of the outputs of delta, which may be left in its out. NULL: delta, then linear. */
    int (*delta_linear)(struct kn_backend *, const struct kn_delta *, float *out, const struct kn_weight *w);
    /* logits in place: cap * tanh(x / cap) */
    int (*softcap)(struct kn_backend *, float *x, int64_t count, float cap);
    int (*clusters)(struct kn_backend *, const struct kn_clusters *);
    int (*pick)(struct kn_backend *, const struct kn_pick *);
    int (*cell)(struct kn_backend *, const struct kn_cell *);
    /* Logits of a reduced vocabulary among those of the whole: out[n, n_out] = x[i, from[v]], or -Inf where
     * from[v] < 0; x [n, n_x], from [n_out] in device memory, below n_x. out may not be x. */
    int (*spread)(struct kn_backend *, float *out, int64_t n_out, const float *x, int64_t n_x,
                  const int32_t *from, int32_t n);
    /* Of drafters; n at most KN_CYCLE_ROWS rows. */
    int (*conv)(struct kn_backend *, const struct kn_conv *);
    int (*top)(struct kn_backend *, const struct kn_top *);
    int (*edges)(struct kn_backend *, const struct kn_edges *);
    int (*walk)(struct kn_backend *, const struct kn_walk *);
    /* *bad (host) = index of the first row of x[n, width] holding a NaN or Inf, or -1. Waits. */
    int (*find_bad)(struct kn_backend *, const float *x, int32_t n, int64_t width, int32_t *bad);
    /* Bytes a second at which the device reads its own memory once, measured now; 0: not measured. Takes
     * memory for a moment and waits. NULL: rows are in the host's memory. */
    double (*read_speed)(struct kn_backend *);
    /* The same of the host's memory (alloc_host), read over the link by the faster of a kernel and a copy. */
    double (*link_speed)(struct kn_backend *);
    /* Operations a second of the device's library in a large product of 16-bit numbers, measured now, two a
     * multiplication and addition; 0: not measured. As read_speed. */
    double (*product_speed)(struct kn_backend *);

    /* Cycles. Memory that the host may read while the device writes it; zeroed. */
    void *(*alloc_shared)(struct kn_backend *, size_t bytes);
    void (*free_shared)(struct kn_backend *, void *);
    /* Memory of the host's that operations read and write as if it were alloc's, over the device's link, and
     * that upload, download and copy take; zeroed. NULL where all memory is the host's. */
    void *(*alloc_host)(struct kn_backend *, size_t bytes);
    void (*free_host)(struct kn_backend *, void *);
    /* history[pos[i]] = ids[i] */
    int (*place)(struct kn_backend *, int32_t *history, const int32_t *pos, const int32_t *ids, int32_t n);
    /* *at (device) = the time in ns, of a clock that only differences can be taken of */
    int (*stamp)(struct kn_backend *, uint64_t *at);
    int (*offer)(struct kn_backend *, const struct kn_offering *);
    /* dst[pos[i] % slots] = x[i], rows of width values; n <= slots */
    int (*keep)(struct kn_backend *, float *dst, int32_t slots, const int32_t *pos, const float *x, int32_t n,
                int64_t width);
    int (*accept)(struct kn_backend *, const struct kn_accept *);
    /* Trees. follow is NULL where a backend runs none; then the three are. */
    int (*follow)(struct kn_backend *, const struct kn_follow *);
    int (*settle)(struct kn_backend *, const struct kn_settle *);
    /* dst[i] = src[rows[i]], rows of width values; rows in device memory */
    int (*gather)(struct kn_backend *, float *dst, const float *src, const int32_t *rows, int32_t n,
                  int64_t width);
    /* Waits until *number (shared, of a kn_offer or a kn_result) is want. */
    int (*await)(struct kn_backend *, const uint32_t *number, uint32_t want);
    /* Recording. Between record_begin and record_end operations are kept, not run; replay then runs them all.
     * Only operations that neither wait nor move memory to or from the host may be recorded; after one that
     * fails record_end still ends it (and fails). KN_ESTALE from replay: reserve has moved the scratch since.
     * All NULL where a backend does not record. */
    int (*record_begin)(struct kn_backend *);
    int (*record_end)(struct kn_backend *, void **recording);
    int (*replay)(struct kn_backend *, void *recording);
    void (*record_free)(struct kn_backend *, void *recording);
    int32_t delta_every[2]; /* kn_delta.every that pays: without experts, with them; 0: each row */
};

/* Every backend's struct begins so. */
struct kn_backend_head {
    const struct kn_ops *op;
    char message[256];
    int32_t kv_bound;               /* see kn_bound */
    const struct kn_weight *next_w; /* see kn_next */
    const float *next_norm;
    const int32_t *hosted; /* see kn_hosted */
    int32_t n_hosted;
};
static inline const struct kn_ops *kn_op(struct kn_backend *be)
{
    return ((struct kn_backend_head *)be)->op;
}

/* Promise that every position of the attention calls that follow is below bound, also when a recording of
 * them is replayed; 0 (at first): nothing is known but the ring's capacity. A launch may be made as small as
 * the promise allows; results do not depend on it. Before calls at higher positions promise anew. */
static inline void kn_bound(struct kn_backend *be, int32_t bound)
{
    ((struct kn_backend_head *)be)->kv_bound = bound;
}

/* What the operation that follows is good for: its out will be read by norm_linear or norm_gated with that
 * norm, w the first of its matrices. norm_add may then prepare out for it as well; results do not depend on
 * it. Forgotten with the next norm_add. */
static inline void kn_next(struct kn_backend *be, const struct kn_weight *w, const float *norm)
{
    struct kn_backend_head *head = (struct kn_backend_head *)be;
    head->next_w = w;
    head->next_norm = norm;
}

/* Of the matrices of the experts_loads that follow, those of these n ids, distinct and fewer than all, stay
 * in the host's memory, from where the device reads what rows choose of them; results do not depend on it.
 * ids NULL, n 0 (at first): none. Where all memory is the host's it says nothing. */
static inline void kn_hosted(struct kn_backend *be, const int32_t *ids, int32_t n)
{
    struct kn_backend_head *head = (struct kn_backend_head *)be;
    head->hosted = ids;
    head->n_hosted = n;
}

#ifdef __cplusplus
}
#endif
#endif
