/* cuda.h - what kernels/backend.c (C) calls of the CUDA backend. Only in builds with CUDA. */
#ifndef DFLASH_CUDA_H
#define DFLASH_CUDA_H

#include "../kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* o->device is "cuda" or "cuda:N". On failure *be is NULL and msg says why (KN_EDEVICE, KN_EMEM, KN_EINVAL). */
int cuda_open(struct kn_backend **be, const struct kn_open *o, char *msg, size_t n);
void cuda_close(struct kn_backend *be);
int cuda_devices(void); /* 0: none, or no driver */

/* How attention is launched; none of it changes a bit of the results but parts. For benchmarks and tests. 0: as
 * attention.cu chooses. */
struct cuda_attention_tuning {
    int unit;  /* partial results of 1: leaves; 2: nodes */
    int merge; /* 1: by the last block; 2: by a kernel of its own */
    int tiles; /* 1: one tile a block */
    int per;   /* units a block */
    int warps; /* of a prefill block: 4 or 8 */
    int parts; /* prefill: 2: queries and weights as two halves (heads of 128) */
    int late;  /* 1: nothing is read before the wait for the kernel before */
};
extern struct cuda_attention_tuning cuda_attention_tuning;

#ifdef __cplusplus
}
#endif
#endif
