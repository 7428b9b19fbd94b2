/* families_gpu.h - what the files of families_gpu share. */
#ifndef DFLASH_FAMILIES_GPU_H
#define DFLASH_FAMILIES_GPU_H

#include "../../../kernels/cuda/core/cuda.h"
#include "../../unit/kernels/delta_ref.h"
#include "../harness.h"

extern struct kn_backend *cpu, *gpu;
extern bool small; /* leave out what takes long under compute-sanitizer */

/* A matrix [n_out, n_in] of values to 1 / 32, the same ones every time; *file is to be given to free(). */
struct kn_weight weight_make(struct kn_backend *be, uint32_t type, int64_t n_in, int64_t n_out, void **file);
/* The last call failed with `want` and a message with `word` in it. */
void refused(int rc, int want, const char *word);

/* families_gpu_delta.c: gated delta nets of few rows, with the product behind them, prompts, what is refused.
 */
void check_delta(void);
void check_delta_linear(void);
void check_prompt(void);
void check_delta_refusals(void);
void bench(void);

#endif
