/* ops.cuh - the CUDA operations other than matrix products, for the table of backend.cu. What each does is in
 * kernels.h. */
#ifndef DFLASH_CUDA_OPS_CUH
#define DFLASH_CUDA_OPS_CUH

#include "cuda.cuh"

/* backend.cu */
void *cuda_alloc(struct kn_backend *, size_t bytes);
void *cuda_alloc_host(struct kn_backend *, size_t bytes);
void cuda_free_host(struct kn_backend *, void *);
double cuda_link_speed(struct kn_backend *);
int cuda_carry(struct kn_backend *, const struct kn_kv *to, const struct kn_kv *from, const int32_t *pos,
               int32_t n);
void cuda_free(struct kn_backend *, void *);

/* ceiling.cu */
double cuda_read_speed(struct kn_backend *);
double cuda_product_speed(struct kn_backend *);

/* cell.cu */
int cuda_cell(struct kn_backend *, const struct kn_cell *);
int cuda_spread(struct kn_backend *, float *out, int64_t n_out, const float *x, int64_t n_x,
                const int32_t *from, int32_t n);

/* embed.cu */
int cuda_embed(struct kn_backend *, float *out, const struct kn_weight *table, const int32_t *ids, int32_t n,
               float scale);

/* rope.cu */
int cuda_rope_table(struct kn_backend *, float *out, const int32_t *pos, const int32_t *origin, int32_t n,
                    const double *freq, int32_t n_rot);
int cuda_rope_store(struct kn_backend *, const struct kn_rope_store *);
int cuda_check_store(struct cuda_backend *, const struct kn_rope_store *, int32_t n); /* 0, or an error */
int cuda_check_kv(struct cuda_backend *, const char *op, const struct kn_kv *);

/* rows.cu */
int cuda_rms_norm(struct kn_backend *, float *out, const float *x, const float *weight, int32_t n,
                  int64_t width, float eps);
int cuda_norm_add(struct kn_backend *, float *out, const float *x, const float *y, const float *weight,
                  int32_t n, int64_t width, float eps, float scale);
int cuda_norm_join(struct kn_backend *, float *out, const float *x, const float *y, const float *y_weight,
                   const float *z, const float *z_weight, const float *weight, int32_t n, int64_t width,
                   float eps, float scale);
int cuda_norm_pair(struct kn_backend *, const struct kn_norm_pair *);
int cuda_clusters(struct kn_backend *, const struct kn_clusters *);
int cuda_gate(struct kn_backend *, float *x, const float *g, int32_t n, int64_t width, int64_t g_width);
int cuda_tap(struct kn_backend *, float *dst, int64_t stride, int64_t offset, const float *x, int32_t n,
             int64_t width);
int cuda_softcap(struct kn_backend *, float *x, int64_t count, float cap);
int cuda_find_bad(struct kn_backend *, const float *x, int32_t n, int64_t width, int32_t *bad);

/* attention.cu. scratch: bytes of be->scratch_rows that calls of up to n rows want. */
int cuda_attention_open(struct cuda_backend *);
int cuda_attention(struct kn_backend *, const struct kn_attention *);
int cuda_attend(struct kn_backend *, const struct kn_rope_store *, const struct kn_attention *);
int cuda_attention_weights(struct kn_backend *, const struct kn_attention_weights *); /* weights.cu */
int cuda_sparse_room(struct kn_backend *, int32_t n, int32_t n_head, const struct kn_kv *,
                     struct kn_sparse_room *);
size_t cuda_attention_scratch(int32_t n, int32_t n_head, const struct kn_kv *, int32_t window);

/* pick.cu */
int cuda_pick(struct kn_backend *, const struct kn_pick *);
size_t cuda_pick_scratch(int32_t n, int64_t n_vocab);

/* the same file: 0, or an error of op */
int cuda_check_sampler(struct cuda_backend *, const char *op, const struct kn_sampler *);

/* draft/ */
int cuda_conv(struct kn_backend *, const struct kn_conv *);
int cuda_top(struct kn_backend *, const struct kn_top *);
size_t cuda_top_scratch(int32_t n, int64_t n_vocab);
int cuda_edges(struct kn_backend *, const struct kn_edges *);
int cuda_walk(struct kn_backend *, const struct kn_walk *);

/* route.cu, delta.cu */
int cuda_route(struct kn_backend *, const struct kn_route *);
/* The same; with shared_logits [n] (or NULL) ids and weights are [n, n_used + 1]: see kn_mixture. */
int cuda_route_shared(struct cuda_backend *, const struct kn_route *, const float *shared_logits);
int cuda_delta(struct kn_backend *, const struct kn_delta *);
/* delta/step.cu, gate_rows.cu: an operation and the rounding of its outputs for the product behind it. */
int cuda_delta_linear(struct kn_backend *, const struct kn_delta *, float *out, const struct kn_weight *w);
int cuda_gate_linear(struct kn_backend *, float *out, const struct kn_weight *w, float *x, const float *g,
                     int32_t n);
size_t
cuda_delta_scratch(const struct kn_delta *); /* bytes of be->scratch_rows that calls of up to n rows want */

/* pack.cu, experts.cu. open: from the first load on; bytes: what it takes. */
int cuda_experts_load(struct kn_backend *, struct kn_weight *, uint32_t type, int64_t n_in, int64_t n_out,
                      int32_t n_mat, const void *data);
int cuda_experts_open(struct cuda_backend *);
void cuda_experts_close(struct cuda_backend *);
size_t cuda_experts_bytes(void);
int cuda_experts_gated(struct kn_backend *, float *out, const struct kn_weight *gate,
                       const struct kn_weight *up, const float *x, const float *norm, float eps,
                       enum kn_act act, const int32_t *ids, int32_t n, int32_t n_used);
int cuda_experts_down(struct kn_backend *, float *out, const struct kn_weight *w, const float *h,
                      const int32_t *ids, const float *weights, int32_t n, int32_t n_used, bool add);
int cuda_mixture(struct kn_backend *, const struct kn_mixture *);
bool cuda_mixture_shares(const struct kn_weight *experts, const struct kn_weight *shared);

/* core/cycle.cu. Put its operations into the table; direct: without those that record. */
void cuda_cycle_table(struct kn_ops *t, bool direct);

/* core/tree.cu. Put its operations into the table. */
void cuda_tree_table(struct kn_ops *t);
/* Candidates to the host, where the offering has any; before the offer. */
int cuda_offer_candidates(struct cuda_backend *, const struct kn_offering *);

#endif
