/* made.h - rows of attention that a launch before makes (attention_made.cu). Not a bit of the results depends on it. */
#ifndef DFLASH_CUDA_MADE_H
#define DFLASH_CUDA_MADE_H

/* 0: as attention.cu chooses; 1: never; 2: wherever it can be. For benchmarks and tests. */
#ifdef __cplusplus
extern "C"
#else
extern
#endif
    int attn_made_tuning;

#endif
