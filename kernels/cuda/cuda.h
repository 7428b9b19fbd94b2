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

#ifdef __cplusplus
}
#endif
#endif
