/* mm_one.cuh - wide products of one row, K types, by a kernel of their own (mm_one.cu). */
#ifndef DFLASH_CUDA_MM_ONE_CUH
#define DFLASH_CUDA_MM_ONE_CUH

#include "mm.cuh"

extern int mm_one_panels; /* of a product, from which on it is taken; the checks vary it */

/* Once, before any launch. */
int mm_one_open(struct cuda_backend *be);
/* out = W row, the row as p says: p->rows where it is prepared, else p->x. false: nothing was launched, for
 * the product is not for this kernel; else *rc. */
bool mm_one(struct cuda_backend *be, const char *name, const struct kn_weight *w, float *out,
            const struct mm_prep *p, bool prepared, int *rc);

#endif
