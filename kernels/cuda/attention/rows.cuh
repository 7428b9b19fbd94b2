/* attention/rows.cuh - attention of rows that a launch before made. attention/made.cu: attn_places, one or
 * two tiles a block. */
#ifndef DFLASH_CUDA_ATTENTION_ROWS_CUH
#define DFLASH_CUDA_ATTENTION_ROWS_CUH

#include "attention.cuh"

attn_fn attn_made_of(int32_t d, int32_t tiles, uint32_t type, size_t *smem); /* NULL: none */
int64_t attn_made_bytes(int32_t d);                                          /* of a tile's queries */
/* attention/columns.cu: the same for heads of 512, of tiles' columns; bytes of a leaf's weights for one of
 * two readers. */
attn_fn attn_columns_of(int32_t d, uint32_t type, size_t *smem); /* NULL: none */
int64_t attn_columns_bytes();
/* That launch, which takes rows that are owed: queries to `made`, which the other has as a->q, keys and
 * values to the ring. */
int attn_rows_launch(struct cuda_backend *be, const struct kn_rope_store *s, const struct attn *p,
                     unsigned char *made);

#endif
