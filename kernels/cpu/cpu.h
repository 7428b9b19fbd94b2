/* cpu.h - inside the CPU backend: its struct, its instruction sets, and what its files share.
 *
 * An inner kernel is written once, over the virtual vectors of vec.h (16 float lanes), and compiled three
 * times: scalar, AVX2, AVX-512. The order of operations in every lane is the same in all three, so the bits
 * are. Files: name.inc.h holds the code, name_scalar.c / name_avx2.c / name_avx512.c include it, name.c holds
 * the threads and the shape checks. */
#ifndef DFLASH_CPU_H
#define DFLASH_CPU_H

#include "../kernels.h"
#include "pool.h"

struct cpu_rows; /* small operations: rows.h */
struct cpu_mm;   /* matrix products: mm.h */

struct cpu_isa {
    const char *name;
    const struct cpu_rows *rows;
    const struct cpu_mm *mm;
};
extern const struct cpu_isa cpu_isa_scalar, cpu_isa_avx2, cpu_isa_avxvnni, cpu_isa_avx512;
extern const struct cpu_mm cpu_mm_scalar, cpu_mm_avx2, cpu_mm_avxvnni, cpu_mm_avx512; /* mm_<isa>.c */

struct cpu_backend {
    struct kn_backend_head head;
    const struct cpu_isa *isa;
    int threads;
    struct pool *pool; /* of that many threads */
    void *scratch;     /* of linear and friends: normed rows, quantised activations (mm.c) */
    size_t scratch_bytes;
    struct stretch *stretch; /* [threads], of the call at hand (mm.c) */
    struct mm_arena *arena;  /* packed weights (mm_pack.c) */
    void *scratch_rows;      /* of attention, delta and pick (rows.c) */
    size_t scratch_rows_bytes;
    void *scratch_experts; /* of experts_gated and experts_down (experts.c) */
    size_t scratch_experts_bytes;
};
static inline struct cpu_backend *cpu_of(struct kn_backend *be)
{
    return (struct cpu_backend *)be;
}
/* Fill the message; returns code. */
int cpu_fail(struct cpu_backend *be, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Items 0 .. n-1 over the threads where it pays, else here (rows.c). A call below CPU_SHARE elements does not
 * pay for waking threads. */
#define CPU_SHARE (1 << 16)
void cpu_share(struct cpu_backend *be, int64_t n, bool pays, void (*fn)(void *, int64_t, int), void *ctx);

/* fn for items 0 .. n-1 like pool_run, each thread from its own part of them on, which is the same from call
 * to call as far as threads come in time: what one computed it finds in its cache. mm.c: products deal their
 * rows likewise. */
void cpu_share_near(struct cpu_backend *be, int64_t n, void (*fn)(void *ctx, int64_t item, int thread),
                    void *ctx);

/* cpu.c */
int cpu_open(struct kn_backend **be, const struct kn_open *o, char *msg, size_t n);
void cpu_close(struct kn_backend *be);

/* rows.c, attention.c, pick.c: see the operation table. reserve: bytes of scratch_rows a call needs. */
int cpu_embed(struct kn_backend *, float *out, const struct kn_weight *table, const int32_t *ids, int32_t n,
              float scale);
int cpu_rope_table(struct kn_backend *, float *out, const int32_t *pos, const int32_t *origin, int32_t n,
                   const double *freq, int32_t n_rot);
int cpu_rms_norm(struct kn_backend *, float *out, const float *x, const float *weight, int32_t n,
                 int64_t width, float eps);
int cpu_norm_add(struct kn_backend *, float *out, const float *x, const float *y, const float *weight,
                 int32_t n, int64_t width, float eps, float scale);
int cpu_norm_pair(struct kn_backend *, const struct kn_norm_pair *);
int cpu_clusters(struct kn_backend *, const struct kn_clusters *);
int cpu_gate(struct kn_backend *, float *x, const float *g, int32_t n, int64_t width, int64_t g_width);
int cpu_rope_store(struct kn_backend *, const struct kn_rope_store *);
int cpu_tap(struct kn_backend *, float *dst, int64_t stride, int64_t offset, const float *x, int32_t n,
            int64_t width);
int cpu_softcap(struct kn_backend *, float *x, int64_t count, float cap);
int cpu_find_bad(struct kn_backend *, const float *x, int32_t n, int64_t width, int32_t *bad);
int cpu_attention(struct kn_backend *, const struct kn_attention *);
int cpu_attention_sparse(struct cpu_backend *, const struct kn_attention *);         /* sparse.c */
int cpu_attention_weights(struct kn_backend *, const struct kn_attention_weights *); /* weights.c */
int cpu_sparse_room(struct kn_backend *, int32_t n, int32_t n_head, const struct kn_kv *kv,
                    struct kn_sparse_room *room);
int cpu_pick(struct kn_backend *, const struct kn_pick *);
int cpu_cell(struct kn_backend *, const struct kn_cell *);
int cpu_spread(struct kn_backend *, float *out, int64_t n_out, const float *x, int64_t n_x,
               const int32_t *from, int32_t n);
int cpu_check_kv(struct cpu_backend *, const char *op, const struct kn_kv *);
size_t cpu_attention_scratch(const struct cpu_backend *, int32_t n, int32_t n_head, int32_t head_dim);
size_t cpu_pick_scratch(const struct cpu_backend *, int32_t n, int64_t n_vocab);

/* draft.c */
int cpu_conv(struct kn_backend *, const struct kn_conv *);
int cpu_top(struct kn_backend *, const struct kn_top *);
int cpu_edges(struct kn_backend *, const struct kn_edges *);
int cpu_walk(struct kn_backend *, const struct kn_walk *);

/* delta.c */
int cpu_delta(struct kn_backend *, const struct kn_delta *);
size_t cpu_delta_scratch(const struct cpu_backend *);

/* cycle.c */
void *cpu_alloc_shared(struct kn_backend *, size_t bytes);
void cpu_free_shared(struct kn_backend *, void *);
int cpu_place(struct kn_backend *, int32_t *history, const int32_t *pos, const int32_t *ids, int32_t n);
int cpu_stamp(struct kn_backend *, uint64_t *at);
int cpu_offer(struct kn_backend *, const struct kn_offering *);
int cpu_keep(struct kn_backend *, float *dst, int32_t slots, const int32_t *pos, const float *x, int32_t n,
             int64_t width);
int cpu_accept(struct kn_backend *, const struct kn_accept *);
int cpu_follow(struct kn_backend *, const struct kn_follow *);
int cpu_settle(struct kn_backend *, const struct kn_settle *);
int cpu_gather(struct kn_backend *, float *dst, const float *src, const int32_t *rows, int32_t n,
               int64_t width);
int cpu_await(struct kn_backend *, const uint32_t *number, uint32_t want);

/* mm.c */
int cpu_weight_load(struct kn_backend *, struct kn_weight *, uint32_t type, int64_t n_in, int64_t n_out,
                    const void *data, unsigned use);
int cpu_experts_load(struct kn_backend *, struct kn_weight *, uint32_t type, int64_t n_in, int64_t n_out,
                     int32_t n_mat, const void *data);
void cpu_weight_free(struct kn_backend *, struct kn_weight *);
int cpu_mm_open(struct cpu_backend *); /* be->threads is known */
void cpu_mm_close(struct cpu_backend *);
int cpu_mm_reserve(struct cpu_backend *, int32_t n, int64_t n_in);
int cpu_linear(struct kn_backend *, float *out, const struct kn_weight *w, const float *x, int32_t n,
               bool add);
int cpu_norm_linear(struct kn_backend *, float *const *out, const struct kn_weight *const *w, int32_t n_w,
                    const float *x, const float *norm, float eps, int32_t n);
int cpu_norm_gated(struct kn_backend *, float *out, const struct kn_weight *gate, const struct kn_weight *up,
                   const float *x, const float *norm, float eps, enum kn_act act, int32_t n);

/* experts.c */
int cpu_experts_reserve(struct cpu_backend *, const struct kn_weight *); /* scratch for a loaded weight */
int cpu_route(struct kn_backend *, const struct kn_route *);
int cpu_experts_gated(struct kn_backend *, float *out, const struct kn_weight *gate,
                      const struct kn_weight *up, const float *x, const float *norm, float eps,
                      enum kn_act act, const int32_t *ids, int32_t n, int32_t n_used);
int cpu_experts_down(struct kn_backend *, float *out, const struct kn_weight *w, const float *h,
                     const int32_t *ids, const float *weights, int32_t n, int32_t n_used, bool add);

#endif
