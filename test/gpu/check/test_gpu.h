/* test_gpu.h - what the files of test_gpu share. */
#ifndef DFLASH_TEST_GPU_H
#define DFLASH_TEST_GPU_H

#include "../../../kernels/cuda/core/cuda.h"
#include "../harness.h"

extern struct kn_backend *cpu, *gpu;
extern bool small; /* leave out what takes long under compute-sanitizer */

/* test_gpu_attention.c: rope_store, attention, both in one. */
void check_rope_store(void);
void check_attention(void);
void check_attention_forms(void);
void check_attention_extremes(void);
void check_attend(void);

/* test_gpu_cell.c: cell, spread, and a chain of picks. */
void check_cells(void);

/* test_gpu_pair.c: logits and drafts of the pairs in dir, over the text at prompt. */
void check_pair(const char *dir, const char *prompt);
/* The same file: recorded cycles against those that are launched one by one. */
void check_cycles(const char *dir, const char *prompt, bool generic);
/* Plans drawn at random, of either pair. */
void check_plans(const char *dir, const char *prompt);

#endif
