/* attention/codes_launch.cuh - attention over quantised caches (codes.cu), and what it hands the forms for
 * prompts. */
#ifndef DFLASH_CUDA_ATTENTION_CODES_LAUNCH_CUH
#define DFLASH_CUDA_ATTENTION_CODES_LAUNCH_CUH

#include "attention.cuh"

int attn_codes_open(struct cuda_backend *be);
/* attention/far_codes.cu: has the driver maps of such a cache? */
bool attn_far_codes_takes(const struct cuda_backend *be, const struct kn_kv *kv);
/* Up to FEW rows; plan: of ATTN_CODES or ATTN_FAR_CODES. Keys and values are in the ring. */
int attn_codes_launch(struct cuda_backend *be, const struct kn_attention *a, const struct attn *base,
                      const struct attn_plan *plan);
/* Rows of a tree: pos and path [][64] of it, in device memory; tried rows are in tail. A row has the bits
 * that it has in a chain. */
int attn_codes_tree(struct cuda_backend *be, const struct kn_kv *kv, const struct attn *base,
                    const struct kn_kv *tail, const int32_t *pos, const uint8_t *path);
/* attention/prefill.cu: more rows, plan of ATTN_PREFILL. */
int attn_prefill_codes_launch(struct cuda_backend *be, const struct kn_attention *a, const struct attn *base,
                              const struct attn_plan *plan);

#endif
