/* attention_rows.cuh - attention_made.cu: attn_places, one or two tiles a block, of rows that a launch before made. */
#ifndef DFLASH_CUDA_ATTENTION_ROWS_CUH
#define DFLASH_CUDA_ATTENTION_ROWS_CUH

#include "attention.cuh"

attn_fn attn_made_of(int32_t d, int32_t tiles, uint32_t type, size_t *smem); /* NULL: none */
int64_t attn_made_bytes(int32_t d);                                          /* of a tile's queries */
/* That launch, which takes rows that are owed: queries to `made`, which the other has as a->q, keys and values to the ring. */
int attn_rows_launch(struct cuda_backend *be, const struct kn_rope_store *s, const struct attn *p, unsigned char *made);

#endif
