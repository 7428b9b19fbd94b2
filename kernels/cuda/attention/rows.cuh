/* attention/rows.cuh - attention with heads of 512, of rows that a launch before made (attention/made.cu,
 * attention/columns.cu). */
#ifndef DFLASH_CUDA_ATTENTION_ROWS_CUH
#define DFLASH_CUDA_ATTENTION_ROWS_CUH

#include "attention.cuh"

/* NULL: none. */
attn_fn attn_columns_of(int32_t d, uint32_t type, size_t *smem);
/* The launch before: queries to `made`, which the other has as a->q, keys and values to the ring. */
int attn_rows_launch(struct cuda_backend *be, const struct kn_rope_store *s, const struct attn *p,
                     unsigned char *made);

#endif
