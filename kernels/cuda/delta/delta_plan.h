/* delta_plan.h - how the rows of a gated delta net are run: a pure function of the call and the device, in
 * plain C. delta.cu and delta/step.cu ask and launch. FEW, ONE and CHUNKS have the bits of ROWS. */
#ifndef DFLASH_CUDA_DELTA_PLAN_H
#define DFLASH_CUDA_DELTA_PLAN_H

#include "../../kernels.h"
#include "../core/cuda.h"
#include "../core/device.h"

#ifdef __cplusplus
extern "C" {
#endif

enum delta_form {
    DELTA_ROWS,   /* delta.cu: token by token, any heads; norm and rounding are kernels of their own */
    DELTA_FEW,    /* delta/few.cuh: few rows, with norm, gate and rounding for the product */
    DELTA_ONE,    /* delta/one.cuh: the same of one row */
    DELTA_CHUNKS, /* delta/chunks.cuh: the same of up to KN_DELTA_LOG rows */
    DELTA_BLOCKS, /* delta/many.cu: a prompt, by blocks of tokens, behind what is pending */
};

#define DELTA_FUSED_HEAD 128 /* d_k and d_v of DELTA_FEW and DELTA_ONE, */
#define DELTA_FUSED_TAPS 4   /* and n_conv at most */
#define DELTA_BLOCK_HEAD 128 /* d_k of DELTA_BLOCKS, at most */
#define DELTA_CHUNKS_FROM 17 /* rows from which CHUNKS takes them (delta_tuning.chunks_from) */
#define DELTA_COUNTERS 1024  /* four a key head */

/* The shape of a: n, heads, sizes, taps, and whether conv lies on 16 bytes. n_in: of the product that reads
 * the outputs, which then may be rounded for it; 0: none. */
enum delta_form delta_form_of(const struct cuda_device *dev, const struct kn_delta *a, int64_t n_in);

#ifdef __cplusplus
}
#endif
#endif
